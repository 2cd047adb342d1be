//! The user side: a page of code from which programs enter the kernel by the instruction that suits the CPU.
//!
//! No one instruction serves every CPU and both kinds of code, so programs don't contain any: they call the start of a page
//! that the kernel maps, as they would call a function, and the kernel fills it at boot. This module generates the
//! page: code, the address that SYSENTER returns to, and unwind information, so that debuggers and signal handlers find their
//! way out of it.
//!
//! | CPU | 64-bit code | 32-bit code |
//! |---|---|---|
//! | Intel | SYSCALL (or SYSENTER) | SYSENTER |
//! | AMD, Hygon | SYSCALL | SYSCALL |
//! | other | SYSCALL | INT 0x80 |
//!
//! # Register contract
//!
//! The caller executes CALL to the page's first byte.
//!
//! | | 64-bit code | 32-bit code |
//! |---|---|---|
//! | number | RAX | EAX |
//! | arguments | RDI, RSI, RDX, R10, R8, R9 | EBX, ECX, EDX, ESI, EDI, EBP |
//! | result | RAX | EAX |
//! | destroyed | RCX, R11 | nothing |
//! | RFLAGS | preserved | preserved |
//!
//! All other registers are preserved; R8 to R15 and the upper halves, which 32-bit code has no name for, are not. DF is 0, as
//! everywhere.
//!
//! # Layout
//!
//! | offset | content |
//! |---|---|
//! | 0 | code, then INT3 up to the next row |
//! | [`UserPage::EH_FRAME`] | `.eh_frame`: one CIE, one FDE, the terminator |
//!
//! Every address in it is relative, so the bytes work at any address: a kernel may put the page somewhere else in each
//! process. For SYSENTER it then has to keep the landing address ([`UserPage::landing`]) per process
//! ([`Compat::LANDING`](crate::stub::Compat::LANDING)).
//!
//! # Source
//!
//! System V ABI, AMD64 and Intel386 supplements, *DWARF Register Number Mapping*; Linux Standard Base, *Exception Frames*.

use entry_core::cpu::{CpuFeatures, Vendor};
use static_assertions::const_assert_eq;

use crate::encode;
use crate::error::BufferTooSmall;
use crate::support::SysenterSupport;

/// How 64-bit code enters the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry64 {
    /// SYSCALL. Every CPU has it in 64-bit mode.
    Syscall,
    /// SYSENTER, on CPUs with [`SysenterSupport`].
    Sysenter,
}

/// How 32-bit code enters the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry32 {
    /// SYSENTER: Intel.
    Sysenter,
    /// SYSCALL: AMD and Hygon.
    Syscall,
    /// INT 0x80: works everywhere.
    Int80,
}

impl Entry32 {
    /// The fastest instruction that works in compatibility mode on a CPU.
    ///
    /// ```
    /// use entry_core::cpu::{CpuFeatures, Vendor};
    /// use entry_sysenter::user_page::Entry32;
    /// let mut cpu = CpuFeatures::from_cpuid(|_, _| Default::default());
    /// assert_eq!(Entry32::on(&cpu), Entry32::Int80);
    /// (cpu.vendor, cpu.syscall, cpu.sep) = (Vendor::Amd, true, true);
    /// assert_eq!(Entry32::on(&cpu), Entry32::Syscall);
    /// cpu.vendor = Vendor::Intel;
    /// assert_eq!(Entry32::on(&cpu), Entry32::Sysenter);
    /// ```
    #[must_use]
    pub const fn on(cpu: &CpuFeatures) -> Self {
        if SysenterSupport::on(cpu).is_ok() {
            return Self::Sysenter;
        }
        if cpu.syscall && matches!(cpu.vendor, Vendor::Amd | Vendor::Hygon) {
            return Self::Syscall;
        }
        Self::Int80
    }
}

/// The bytes of a user page.
///
/// ```
/// use entry_sysenter::user_page::{Entry32, UserPage};
/// let content = UserPage::for_32_bit_code(Entry32::Sysenter);
/// let mut page = [0; 4096];
/// content.write_to(&mut page)?;
/// // Mapped at 0xf7ff_0000, this is what the SYSENTER stub has to know.
/// let landing = 0xf7ff_0000 + content.landing();
/// assert_eq!(page[content.landing() - 2..content.landing()], [0x0f, 0x34]);
/// # assert_eq!(landing, 0xf7ff_0007);
/// # Ok::<(), entry_sysenter::error::BufferTooSmall>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserPage {
    bytes: &'static [u8],
    code_bytes: usize,
    landing: usize,
}

impl UserPage {
    /// Offset of the unwind information.
    pub const EH_FRAME: usize = 32;

    /// The page for 64-bit code.
    ///
    /// | SYSCALL | SYSENTER |
    /// |---|---|
    /// | `syscall` | `mov rcx, rsp` |
    /// | `ret` | `lea r11, [rip + 2]` |
    /// | | `sysenter` |
    /// | | `ret` |
    #[must_use]
    pub const fn for_64_bit_code(entry: Entry64) -> Self {
        match entry {
            Entry64::Syscall => SYSCALL_64,
            Entry64::Sysenter => SYSENTER_64,
        }
    }

    /// The page for 32-bit code.
    ///
    /// | INT 0x80 | SYSENTER | SYSCALL |
    /// |---|---|---|
    /// | `int 0x80` | `push ecx`, `push edx`, `push ebp` | the same |
    /// | `ret` | `mov ebp, esp` | `mov ebp, ecx` |
    /// | | `sysenter` | `syscall` |
    /// | | `pop ebp`, `pop edx`, `pop ecx` | the same |
    /// | | `ret` | `ret` |
    ///
    /// With both of the latter the kernel finds the sixth argument on top of the user stack:
    /// [`Arguments32`](crate::stub::Arguments32) knows where each argument is.
    #[must_use]
    pub const fn for_32_bit_code(entry: Entry32) -> Self {
        match entry {
            Entry32::Int80 => INT80_32,
            Entry32::Sysenter => SYSENTER_32,
            Entry32::Syscall => SYSCALL_32,
        }
    }

    /// Code, INT3 up to [`UserPage::EH_FRAME`], and unwind information.
    #[must_use]
    pub const fn bytes(&self) -> &'static [u8] {
        self.bytes
    }

    /// Bytes of code.
    #[must_use]
    pub const fn code_bytes(&self) -> usize {
        self.code_bytes
    }

    /// Offset of the instruction after the one that enters the kernel. The two bytes before it are that instruction, so
    /// [`TrapFrame::restart_system_call`](entry_core::TrapFrame::restart_system_call) makes the call again.
    #[must_use]
    pub const fn landing(&self) -> usize {
        self.landing
    }

    /// Fills `page`: the bytes, then INT3 to the end. Returns the number of bytes before those.
    ///
    /// # Errors
    ///
    /// The page is shorter than the bytes; nothing is written.
    pub fn write_to(&self, page: &mut [u8]) -> Result<usize, BufferTooSmall> {
        let given = page.len();
        let (start, rest) = page.split_at_mut_checked(self.bytes.len()).ok_or(BufferTooSmall {
            needed: self.bytes.len(),
            given,
        })?;
        start.copy_from_slice(self.bytes);
        rest.fill(encode::INT3);
        Ok(self.bytes.len())
    }
}

/// Parts one after the other, and `rest` up to `N`. Too many bytes stop the build.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler alone")]
const fn join<const N: usize>(parts: &[&[u8]], rest: u8) -> [u8; N] {
    let mut bytes = [rest; N];
    let (mut to, mut part) = (0, 0);
    while part < parts.len() {
        let mut from = 0;
        while from < parts[part].len() {
            bytes[to] = parts[part][from];
            (from, to) = (from + 1, to + 1);
        }
        part += 1;
    }
    bytes
}

/// DWARF call-frame instructions: one function per instruction that is used.
mod cfa {
    /// `DW_CFA_advance_loc`.
    pub(super) const fn advance(bytes: u8) -> u8 {
        0x40 | bytes
    }

    /// `DW_CFA_offset`: the register was saved `-offset * data alignment` bytes below the CFA.
    pub(super) const fn saved(register: u8, offset: u8) -> [u8; 2] {
        [0x80 | register, offset]
    }

    /// `DW_CFA_restore`: the register has its value again.
    pub(super) const fn restored(register: u8) -> u8 {
        0xc0 | register
    }

    /// `DW_CFA_def_cfa_offset`.
    pub(super) const DEFINE_OFFSET: u8 = 0x0e;
    /// `DW_CFA_def_cfa`.
    pub(super) const DEFINE: u8 = 0x0c;
    /// `DW_CFA_nop`.
    pub(super) const NOP: u8 = 0;
}

/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`.
const POINTER_ENCODING: u8 = 0x1b;
/// Bytes of a CIE, its length word included.
const CIE_BYTES: u8 = 24;
/// Offset of the FDE's address field in the page: behind the first row, CIE, length and CIE pointer.
const FDE_ADDRESS: u8 = 32 + CIE_BYTES + 8;
const_assert_eq!(UserPage::EH_FRAME, 32);

/// A common information entry: the CFA is one word above the stack pointer, and the return address lies in that word.
const fn cie(word_bytes: u8, stack_pointer: u8, return_address: u8) -> [u8; CIE_BYTES as usize] {
    // Minus one word, as a signed LEB128 of one byte.
    let data_alignment = word_bytes.wrapping_neg() & 0x7f;
    let parts: &[&[u8]] = &[
        &[CIE_BYTES - 4, 0, 0, 0], // length
        &[0; 4],                   // this is a CIE
        &[1],                      // version
        b"zR\0",                   // augmentation: a length, and how pointers are encoded
        &[1, data_alignment, return_address],
        &[1, POINTER_ENCODING],
        &[cfa::DEFINE, stack_pointer, word_bytes],
        &cfa::saved(return_address, 1),
    ];
    join(parts, cfa::NOP)
}

/// A frame description entry for code of `code_bytes` from the page's start.
#[expect(clippy::cast_possible_truncation, reason = "asserted to be small")]
const fn fde<const N: usize>(code_bytes: u8, instructions: &[u8]) -> [u8; N] {
    assert!(N < 0x80, "the length is one byte");
    let parts: &[&[u8]] = &[
        &[N as u8 - 4, 0, 0, 0],                              // length
        &[CIE_BYTES + 4, 0, 0, 0],                            // back to the CIE
        &0u32.wrapping_sub(FDE_ADDRESS as u32).to_le_bytes(), // start of the code, relative to this field
        &[code_bytes, 0, 0, 0],                               // its length
        &[0],                                                 // no augmentation data
        instructions,
    ];
    join(parts, cfa::NOP)
}

/// The end of `.eh_frame`: a length of 0.
const TERMINATOR: [u8; 4] = [0; 4];

/// Stack pointer RSP is 7, return address 16.
const CIE_64: [u8; CIE_BYTES as usize] = cie(8, 7, 16);
/// Stack pointer ESP is 4, return address 8.
const CIE_32: [u8; CIE_BYTES as usize] = cie(4, 4, 8);

/// The stack pointer stays where it was: nothing to say.
const UNCHANGED: &[u8] = &[];

/// Call-frame instructions for three pushes, two instructions of two bytes, three pops.
const PUSHED_THREE: [u8; 27] = {
    const ECX: u8 = 1;
    const EDX: u8 = 2;
    const EBP: u8 = 5;
    let parts: &[&[u8]] = &[
        &[cfa::advance(1), cfa::DEFINE_OFFSET, 8],
        &cfa::saved(ECX, 2),
        &[cfa::advance(1), cfa::DEFINE_OFFSET, 12],
        &cfa::saved(EDX, 3),
        &[cfa::advance(1), cfa::DEFINE_OFFSET, 16],
        &cfa::saved(EBP, 4),
        &[cfa::advance(2 + 2 + 1), cfa::DEFINE_OFFSET, 12, cfa::restored(EBP)],
        &[cfa::advance(1), cfa::DEFINE_OFFSET, 8, cfa::restored(EDX)],
        &[cfa::advance(1), cfa::DEFINE_OFFSET, 4, cfa::restored(ECX)],
    ];
    join(parts, cfa::NOP)
};

/// Code, padded to where the unwind information begins.
const fn code(parts: &[&[u8]]) -> [u8; UserPage::EH_FRAME] {
    join(parts, encode::INT3)
}

const fn page_64(parts: &[&[u8]], code_bytes: u8) -> [u8; 84] {
    join(
        &[&code(parts), &CIE_64, &fde::<24>(code_bytes, UNCHANGED), &TERMINATOR],
        0,
    )
}

/// Both fast instructions need a register that holds an argument: it is saved first.
const fn page_32(moved: &[u8; 2], instruction: &[u8; 2]) -> [u8; 104] {
    let parts: &[&[u8]] = &[
        &encode::PUSH_ECX,
        &encode::PUSH_EDX,
        &encode::PUSH_EBP,
        moved,
        instruction,
        &encode::POP_EBP,
        &encode::POP_EDX,
        &encode::POP_ECX,
        &encode::RET,
    ];
    join(&[&code(parts), &CIE_32, &fde::<44>(11, &PUSHED_THREE), &TERMINATOR], 0)
}

const fn page_int80() -> [u8; 80] {
    let parts: &[&[u8]] = &[&encode::INT_80, &encode::RET];
    join(&[&code(parts), &CIE_32, &fde::<20>(3, UNCHANGED), &TERMINATOR], 0)
}

const SYSCALL_64: UserPage = UserPage {
    bytes: &page_64(&[&encode::SYSCALL, &encode::RET], 3),
    code_bytes: 3,
    landing: 2,
};

const SYSENTER_64: UserPage = UserPage {
    bytes: &page_64(
        &[
            &encode::MOV_RCX_RSP,
            &encode::lea_r11_rip(2),
            &encode::SYSENTER,
            &encode::RET,
        ],
        13,
    ),
    code_bytes: 13,
    landing: 12,
};

const INT80_32: UserPage = UserPage {
    bytes: &page_int80(),
    code_bytes: 3,
    landing: 2,
};

const SYSENTER_32: UserPage = UserPage {
    bytes: &page_32(&encode::MOV_EBP_ESP, &encode::SYSENTER),
    code_bytes: 11,
    landing: 7,
};

const SYSCALL_32: UserPage = UserPage {
    bytes: &page_32(&encode::MOV_EBP_ECX, &encode::SYSCALL),
    code_bytes: 11,
    landing: 7,
};
