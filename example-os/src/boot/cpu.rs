//! What the CPU can do, and the control registers that follow from it.
//!
//! A bit of CR4 is set only when CPUID has the feature: the CPU answers an unknown one with #GP, and QEMU's TCG hangs.
//!
//! # Source
//!
//! Intel SDM vol. 2A, *CPUID—CPU Identification*; vol. 3A, *Control Registers*; AMD APM vol. 3, *CPUID*.

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::fmt;

use x86_64::VirtAddr;
use x86_64::instructions::tables::lgdt;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};
use x86_64::registers::model_specific::{Efer, EferFlags};
use x86_64::structures::DescriptorTablePointer;

use super::{BootCell, BootError, entry};

/// The features that the kernel asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The vendor string of CPUID leaf 0.
    pub vendor: [u8; 12],
    /// CPUID 1:EDX.APIC: a local APIC.
    pub apic: bool,
    /// CPUID 1:EDX.PGE: global pages.
    pub pge: bool,
    /// CPUID 7:EBX.SMEP: no execution of user pages by the kernel.
    pub smep: bool,
    /// CPUID 7:EBX.SMAP: no access to user pages by the kernel unless RFLAGS.AC is set.
    pub smap: bool,
    /// CPUID 7:EBX.FSGSBASE: the instructions that read and write FS and GS base.
    pub fsgsbase: bool,
    /// CPUID 7:ECX.UMIP: no SGDT, SIDT, SLDT, SMSW, STR in user mode.
    pub umip: bool,
    /// CPUID `8000_0001`:EDX.NX: pages that do not execute.
    pub nx: bool,
}

impl Features {
    const NONE: Self = Self {
        vendor: [0; 12],
        apic: false,
        pge: false,
        smep: false,
        smap: false,
        fsgsbase: false,
        umip: false,
        nx: false,
    };

    fn read() -> Self {
        let bit = |register: u32, bit: u32| register >> bit & 1 == 1;
        let basic = __cpuid(0);
        let mut vendor = [0; 12];
        for (place, word) in vendor.chunks_exact_mut(4).zip([basic.ebx, basic.edx, basic.ecx]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let features = __cpuid(1);
        let (structured_ebx, structured_ecx) = if basic.eax >= 7 {
            let leaf = __cpuid_count(7, 0);
            (leaf.ebx, leaf.ecx)
        } else {
            (0, 0)
        };
        let extended = __cpuid(0x8000_0001);
        Self {
            vendor,
            apic: bit(features.edx, 9),
            pge: bit(features.edx, 13),
            smep: bit(structured_ebx, 7),
            smap: bit(structured_ebx, 20),
            fsgsbase: bit(structured_ebx, 0),
            umip: bit(structured_ecx, 2),
            nx: bit(extended.edx, 20),
        }
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(core::str::from_utf8(&self.vendor).unwrap_or("of unknown vendor"))?;
        for (name, has) in [
            ("SMEP", self.smep),
            ("SMAP", self.smap),
            ("UMIP", self.umip),
            ("FSGSBASE", self.fsgsbase),
        ] {
            write!(f, " {}{name}", if has { "" } else { "no-" })?;
        }
        Ok(())
    }
}

static FEATURES: BootCell<Features> = BootCell::new(Features::NONE);

/// What CPUID said at boot.
#[must_use]
pub fn features() -> Features {
    *FEATURES
}

/// Reads CPUID and sets CR0, CR4 and EFER.
pub(super) fn init() -> Result<Features, BootError> {
    let features = FEATURES.fill(|features| {
        *features = Features::read();
        *features
    });
    if !features.nx {
        return Err(BootError::NoNx);
    }
    // SAFETY: CPUID has NX, and no boot table has bit 63 set.
    unsafe { Efer::update(|efer| *efer |= EferFlags::NO_EXECUTE_ENABLE) };
    // Nobody saves floating-point registers: with EM, and CR4.OSFXSR clear, a program that uses them gets #NM or #UD
    // instead of what another left there.
    let no_floating_point = Cr0Flags::EMULATE_COPROCESSOR | Cr0Flags::MONITOR_COPROCESSOR | Cr0Flags::NUMERIC_ERROR;
    // SAFETY: write protection binds the kernel to its own tables; the kernel has no floating-point code.
    unsafe { Cr0::update(|cr0| cr0.insert(Cr0Flags::WRITE_PROTECT | no_floating_point)) };
    let mut wanted = Cr4Flags::empty();
    for (has, flag) in [
        (features.pge, Cr4Flags::PAGE_GLOBAL),
        (features.smep, Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION),
        (features.smap, Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION),
        (features.umip, Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION),
    ] {
        wanted.set(flag, has);
    }
    // SAFETY: each bit is one that CPUID has, and no page is a user page yet.
    unsafe { Cr4::update(|cr4| cr4.insert(wanted)) };
    Ok(features)
}

/// Sets or clears CR4.FSGSBASE, on a CPU that has it where it is set.
pub(crate) fn let_programs_write_bases(may_write: bool) {
    let control = Cr4::read();
    if control.contains(Cr4Flags::FSGSBASE) != may_write {
        // SAFETY: the stubs in use suit either; who sets it asks CPUID before.
        unsafe { Cr4::write(control ^ Cr4Flags::FSGSBASE) };
    }
}

/// Sets CR4.PCIDE for good, on a CPU that has it. Tables are loaded with identifier 0 as before, but by stubs for it.
pub(crate) fn use_pcid() {
    // SAFETY: the CPU has it, and CR3 has identifier 0 until a stub loads another.
    unsafe { Cr4::update(|control| control.insert(Cr4Flags::PCID)) };
}

/// A copy of the boot GDT in the image: the boot data lies where no table of the kernel maps it.
static GDT: [u64; 3] = entry::GDT;

/// Loads the GDT from where the kernel's tables show it.
pub(super) fn reload_gdt() {
    let pointer = DescriptorTablePointer {
        limit: entry::GDT_LIMIT,
        base: VirtAddr::from_ptr(&raw const GDT),
    };
    // SAFETY: the table has the descriptors that CS and SS were loaded from, at the same places, and lives for ever.
    unsafe { lgdt(&pointer) };
}
