//! The table for a layout: made, checked, loaded.

#[cfg(target_arch = "x86_64")]
use x86_64::{
    VirtAddr,
    instructions::tables::{lgdt, load_tss},
    registers::segmentation::{CS, DS, ES, SS, Segment},
    structures::{DescriptorTablePointer, gdt::SegmentSelector},
};

use crate::guard::guard;
use crate::segment::{Field, LayoutError, SegmentLayout, Selector};

// Descriptor images. The accessed bit is set, so that the CPU never writes to them.

/// P, S, execute/read, accessed, DPL 0, L, G, limit 4 GiB.
const KERNEL_CODE: u64 = 0x00af_9b00_0000_ffff;
/// P, S, read/write, accessed, DPL 0, B, G, limit 4 GiB.
const KERNEL_DATA: u64 = 0x00cf_9300_0000_ffff;
/// P, S, execute/read, accessed, DPL 3, D, G, limit 4 GiB.
const USER_CODE32: u64 = 0x00cf_fb00_0000_ffff;
/// P, S, read/write, accessed, DPL 3, B, G, limit 4 GiB.
const USER_DATA: u64 = 0x00cf_f300_0000_ffff;
/// P, S, execute/read, accessed, DPL 3, L, G, limit 4 GiB.
const USER_CODE64: u64 = 0x00af_fb00_0000_ffff;
/// P, 64-bit TSS, available, DPL 0.
const TSS: u64 = 0x0000_8900_0000_0000;

/// What 64-bit mode looks at in a code segment: P, DPL, S, execute, conforming, L, D.
const CODE64_BITS: u64 = 0x0060_fc00_0000_0000;
/// What 64-bit mode looks at in a data segment: P, DPL, S, execute, expand-down, writable.
const DATA64_BITS: u64 = 0x0000_fe00_0000_0000;
/// What compatibility mode looks at: everything but accessed and AVL.
const FLAT_BITS: u64 = 0xffef_feff_ffff_ffff;
/// P, DPL, S and type but for busy.
const TSS_BITS: u64 = 0x0000_fd00_0000_0000;

impl SegmentLayout {
    /// The entries that a GDT for this layout needs.
    #[must_use]
    pub const fn entries(&self) -> usize {
        self.last_index() as usize + 1
    }

    /// The limit for LGDT: bytes of [`SegmentLayout::entries`], less one.
    #[must_use]
    pub const fn gdt_limit(&self) -> u16 {
        self.last_index() * 8 + 7
    }

    const fn last_index(&self) -> u16 {
        let mut last = 0;
        let mut rest: &[_] = &self.slots();
        while let [(_, selector, _), tail @ ..] = rest {
            if let Some(selector) = selector
                && selector.index() > last
            {
                last = selector.index();
            }
            rest = tail;
        }
        last
    }

    /// The GDT of [`SegmentLayout::NATURAL`]: null, six segments, the TSS.
    ///
    /// `tss_base` is the linear address of the TSS, `tss_limit` its bytes less one.
    ///
    /// ```
    /// use entry_core::segment::SegmentLayout;
    /// const GDT: [u64; 9] = SegmentLayout::natural_gdt(0, 0x67);
    /// assert_eq!(GDT[1], 0x00af_9b00_0000_ffff);
    /// ```
    #[must_use]
    pub const fn natural_gdt(tss_base: u64, tss_limit: u16) -> [u64; 9] {
        let [lower, upper] = Self::tss_descriptor(tss_base, tss_limit);
        [
            0,
            KERNEL_CODE,
            KERNEL_DATA,
            USER_CODE32,
            USER_DATA,
            USER_CODE64,
            USER_DATA,
            lower,
            upper,
        ]
    }

    /// A GDT of `N` entries for this layout; entries that it does not name are null.
    ///
    /// # Errors
    ///
    /// [`LayoutError::OutsideTable`] if `N` is less than [`SegmentLayout::entries`].
    #[expect(clippy::indexing_slicing, reason = "the index is compared with N one step before")]
    pub const fn gdt<const N: usize>(&self, tss_base: u64, tss_limit: u16) -> Result<[u64; N], LayoutError> {
        let [lower, upper] = Self::tss_descriptor(tss_base, tss_limit);
        let mut table = [0; N];
        let mut rest: &[_] = &self.slots();
        while let [(field, selector, kind), tail @ ..] = rest {
            rest = tail;
            let Some(value) = *selector else { continue };
            let index = value.index() as usize;
            if index >= N {
                return Err(LayoutError::OutsideTable {
                    field: *field,
                    value,
                    entries: N,
                });
            }
            table[index] = match field {
                Field::Tss => lower,
                Field::TssUpper => upper,
                _ => kind.0,
            };
        }
        Ok(table)
    }

    /// Checks the descriptors of a GDT that a kernel already has.
    ///
    /// SYSCALL and SYSRET load fixed attributes whatever the table says; IRETQ reads the table. If they differ, a
    /// program changes its mode or its privilege when an interrupt hits it.
    ///
    /// # Errors
    ///
    /// [`LayoutError::OutsideTable`], [`LayoutError::WrongDescriptor`].
    #[expect(
        clippy::indexing_slicing,
        reason = "the index is compared with the length one step before"
    )]
    pub const fn check_gdt(&self, gdt: &[u64]) -> Result<(), LayoutError> {
        let mut rest: &[_] = &self.slots();
        while let [(field, selector, (wanted, compared)), tail @ ..] = rest {
            rest = tail;
            let Some(value) = *selector else { continue };
            let index = value.index() as usize;
            if index >= gdt.len() {
                return Err(LayoutError::OutsideTable {
                    field: *field,
                    value,
                    entries: gdt.len(),
                });
            }
            let found = gdt[index];
            if guard!("wrong-descriptor", (found ^ *wanted) & *compared != 0) {
                let (wanted, compared) = (*wanted, *compared);
                return Err(LayoutError::WrongDescriptor {
                    field: *field,
                    value,
                    found,
                    wanted,
                    compared,
                });
            }
        }
        Ok(())
    }

    /// Every descriptor of the layout: image, and the bits of it that matter.
    const fn slots(&self) -> [(Field, Option<Selector>, (u64, u64)); 8] {
        // Base, limit and B of user data matter to 32-bit programs alone.
        let user_data_bits = if self.0.user_code32.is_some() {
            FLAT_BITS
        } else {
            DATA64_BITS
        };
        [
            (Field::KernelCode, Some(self.0.kernel_code), (KERNEL_CODE, CODE64_BITS)),
            (Field::KernelData, Some(self.0.kernel_data), (KERNEL_DATA, DATA64_BITS)),
            (Field::UserCode32, self.0.user_code32, (USER_CODE32, FLAT_BITS)),
            (Field::UserData, Some(self.0.user_data), (USER_DATA, user_data_bits)),
            (Field::UserCode64, Some(self.0.user_code64), (USER_CODE64, CODE64_BITS)),
            (Field::SysexitData, self.0.sysexit_data, (USER_DATA, DATA64_BITS)),
            (Field::Tss, Some(self.0.tss), (TSS, TSS_BITS)),
            (Field::TssUpper, Some(self.0.tss.after(8)), (0, 0)),
        ]
    }

    /// The two entries of a 64-bit TSS descriptor: available, DPL 0.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *TSS Descriptor in 64-bit mode*.
    #[must_use]
    pub const fn tss_descriptor(base: u64, limit: u16) -> [u64; 2] {
        let lower = TSS | limit as u64 | (base & 0x00ff_ffff) << 16 | (base >> 24 & 0xff) << 56;
        [lower, base >> 32]
    }

    /// Makes a GDT the CPU's: LGDT, then CS, SS, DS, ES and TR from this layout, and no local table. FS and GS stay as they
    /// are, since loading a selector would change their bases.
    ///
    /// LDTR comes out of reset with base 0 and the largest limit there is: a program that loads a selector of the local table
    /// would be given whatever lies at the beginning of its own address space for a descriptor.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0 and RFLAGS.IF is 0.
    /// 2. `gdt` is valid for reads and writes for ever, in every address space, and used for this CPU alone: LTR marks the
    ///    TSS as busy.
    /// 3. [`SegmentLayout::check_gdt`] accepts it, and its TSS descriptor (available, not busy) names a TSS that stays.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2A, *LGDT/LIDT—Load Global/Interrupt Descriptor Table Register*, *LLDT—Load Local Descriptor Table
    /// Register*, *LTR—Load Task Register*; vol. 3A, *Processor State After Reset*.
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn load(&self, gdt: *mut [u64]) {
        // SAFETY: the address is passed on to LGDT, which takes 64 bits; nothing computes with it.
        let base = unsafe { VirtAddr::new_unsafe(gdt.cast::<u64>().addr() as u64) };
        // SAFETY: 1 to 3; the limit is that of a table with `entries` entries, which `check_gdt` found there.
        unsafe {
            lgdt(&DescriptorTablePointer {
                limit: self.gdt_limit(),
                base,
            })
        };
        // SAFETY: the descriptor is 64-bit kernel code by 3.
        unsafe { CS::set_reg(self.kernel_code().into()) };
        // SAFETY: the descriptor is kernel data by 3.
        unsafe { SS::set_reg(self.kernel_data().into()) };
        // SAFETY: 64-bit mode does not use DS.
        unsafe { DS::set_reg(SegmentSelector::NULL) };
        // SAFETY: 64-bit mode does not use ES.
        unsafe { ES::set_reg(SegmentSelector::NULL) };
        if guard!("local-table", true) {
            // SAFETY: CPL is 0 by 1; a null selector means that there is no such table.
            unsafe { core::arch::asm!("lldt {0:x}", in(reg) 0_u32, options(nostack, preserves_flags)) };
        }
        // SAFETY: the descriptor is an available TSS by 3, and the table may be written by 2.
        unsafe { load_tss(self.tss().into()) };
    }
}
