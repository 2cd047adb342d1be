//! A few bytes of code, one copy per CPU, that load the kernel stack pointer before the SYSENTER stub runs.
//!
//! SYSENTER takes its stack pointer from `IA32_SYSENTER_ESP`. A kernel with a stack for each thread would have to write
//! that MSR at every context switch. The alternative: the MSR holds a constant, and the first kernel instruction loads
//! the current thread's stack pointer from a word in memory, the *field*, which a context switch writes anyway
//! (TSS.ESP0 or TSS.RSP0, or the per-CPU header). Where the stub can't name that field, because each CPU has another,
//! each CPU gets a trampoline that can: one load and one jump, generated at boot.
//!
//! | type | code | bytes | field |
//! |---|---|---|---|
//! | [`Trampoline32`] | `mov esp, [abs32]` · `jmp rel32` | 11 | anywhere in 4 GiB |
//! | [`Trampoline64<RipRelative>`] | `mov rsp, [rip + disp32]` · `jmp rel32` | 12 | within 2 GiB of the trampoline |
//! | [`Trampoline64<Absolute>`] | `mov rsp, [disp32]` · `jmp rel32` | 13 | the lowest or highest 2 GiB |
//! | [`Trampoline64<SwapgsRelative>`] | `swapgs` · `mov rsp, gs:[disp32]` · `jmp rel32` | 17 | within 2 GiB of the kernel's GS base |
//!
//! The invariant: a trampoline value jumps to an entry that expects the GS base which the trampoline leaves. A load
//! relative to the *user's* GS base would be a stack of the user's choice, so the GS-relative form swaps first, and
//! its type [`Form::Arrival`] says so to the stub, which must not swap again.
//!
//! The MSR's constant must be a valid stack all the same: an NMI or a single-step trap can arrive at the trampoline's
//! first instruction ([`stack`](crate::stack)). [`Trampoline64::window`] is the range in which a #DB handler finds RIP
//! when user code single-steps into SYSENTER.
//!
//! ```
//! use entry_core::address::Width;
//! use entry_sysenter::arrival::EntryAddress;
//! use entry_sysenter::trampoline::{RipRelative, Trampoline64};
//! # // SAFETY: the bytes are looked at, and never run.
//! # let entry = unsafe { EntryAddress::new(0xffff_ffff_8010_0000) };
//! // The field is TSS.RSP0, the entry a stub of this crate.
//! let code = Trampoline64::<RipRelative>::new(0xffff_ffff_8030_0000, 0xffff_ffff_8030_1004, entry, Width::Bits48)?;
//! assert_eq!(code.bytes(), &[0x48, 0x8b, 0x25, 0xfd, 0x0f, 0x00, 0x00, 0xe9, 0xf4, 0xff, 0xdf, 0xff]);
//! # Ok::<(), entry_sysenter::error::TrampolineError>(())
//! ```

use core::fmt;
use core::ops::Range;

use entry_core::address::Width;

use crate::arrival::{Arrival, EntryAddress, Ready, ReadySwapped};
use crate::encode;
use crate::error::{BufferTooSmall, Operand, TrampolineError};
use crate::guard::guard;

/// The 32-bit trampoline of protected mode, 11 bytes: `mov esp, [field]`, `jmp entry`.
///
/// ```
/// use entry_sysenter::trampoline::Trampoline32;
/// // In a const: a bad address stops the build.
/// const CODE: [u8; 11] = match Trampoline32::new(0xc040_0000, 0xc040_1004, 0xc010_0000) {
///     Ok(code) => *code.bytes(),
///     Err(_) => panic!("bad trampoline address"),
/// };
/// assert_eq!(CODE, [0x8b, 0x25, 0x04, 0x10, 0x40, 0xc0, 0xe9, 0xf5, 0xff, 0xcf, 0xff]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trampoline32 {
    at: u32,
    bytes: [u8; Self::SIZE],
}

impl Trampoline32 {
    /// Bytes of code.
    pub const SIZE: usize = encode::MOV_ESP_ABS32 + encode::JMP_REL32;

    /// A trampoline for address `at` that loads ESP from the 4-byte word at `field` and jumps to `entry`.
    ///
    /// All three are offsets into flat segments. EIP wraps at 4 GiB, so any entry can be reached.
    ///
    /// # Errors
    ///
    /// [`TrampolineError::Wraps`] if code or field run over the end of the 4 GiB;
    /// [`TrampolineError::Overlap`] if the field or the entry lies in the trampoline.
    #[expect(clippy::cast_possible_truncation, reason = "the length of an instruction")]
    pub const fn new(at: u32, field: u32, entry: u32) -> Result<Self, TrampolineError> {
        let code = Span {
            start: at as u64,
            bytes: Self::SIZE as u64,
        };
        let word = Span {
            start: field as u64,
            bytes: 4,
        };
        let target = Span {
            start: entry as u64,
            bytes: 1,
        };
        if guard!("trampoline-wraps", code.last() > u32::MAX as u64) {
            return Err(TrampolineError::Wraps {
                operand: Operand::Trampoline,
                address: code.start,
            });
        }
        if guard!("trampoline-wraps", word.last() > u32::MAX as u64) {
            return Err(TrampolineError::Wraps {
                operand: Operand::Field,
                address: word.start,
            });
        }
        if let Err(error) = code.disjoint(word, Operand::Field) {
            return Err(error);
        }
        if let Err(error) = code.disjoint(target, Operand::Entry) {
            return Err(error);
        }
        // `code` doesn't wrap, so neither does the address of its second instruction.
        let jump = at + encode::MOV_ESP_ABS32 as u32;
        let [a, b, c, d, e, f] = encode::mov_esp_abs32(field);
        let [g, h, i, j, k] = encode::jmp_rel32_32(jump, entry);
        Ok(Self {
            at,
            bytes: [a, b, c, d, e, f, g, h, i, j, k],
        })
    }

    /// The code.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; Self::SIZE] {
        &self.bytes
    }

    /// The address that the code was generated for; it works nowhere else. This is what `IA32_SYSENTER_EIP` holds.
    #[must_use]
    pub const fn address(&self) -> u32 {
        self.at
    }

    /// Copies the code to the start of `buffer` and returns the number of bytes.
    ///
    /// # Errors
    ///
    /// The buffer is shorter than [`Trampoline32::SIZE`]; nothing is written.
    pub const fn write_to(&self, buffer: &mut [u8]) -> Result<usize, BufferTooSmall> {
        write(&self.bytes, buffer)
    }
}

/// How a 64-bit trampoline addresses the field.
pub trait Form: sealed::Sealed + 'static {
    /// What the stub finds behind the trampoline.
    type Arrival: Arrival;
    /// The code, an array of bytes.
    type Bytes: Copy + AsRef<[u8]> + fmt::Debug + Eq;
}

/// `mov rsp, [rip + disp32]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RipRelative;

/// `mov rsp, [disp32]`, the displacement sign-extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absolute;

/// `swapgs`, then `mov rsp, gs:[disp32]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapgsRelative;

impl Form for RipRelative {
    type Arrival = Ready;
    type Bytes = [u8; encode::MOV_RSP_RIP + encode::JMP_REL32];
}

impl Form for Absolute {
    type Arrival = Ready;
    type Bytes = [u8; encode::MOV_RSP_ABS + encode::JMP_REL32];
}

impl Form for SwapgsRelative {
    type Arrival = ReadySwapped;
    type Bytes = [u8; encode::SWAPGS.len() + encode::MOV_RSP_GS + encode::JMP_REL32];
}

mod sealed {
    #[expect(
        unnameable_types,
        reason = "the traits of this module are sealed: a stub obeys exactly these types"
    )]
    pub trait Sealed {}
    impl Sealed for super::RipRelative {}
    impl Sealed for super::Absolute {}
    impl Sealed for super::SwapgsRelative {}
}

/// A trampoline of 64-bit mode. The [module](self) lists the forms.
///
/// A form can't be joined to a stub that expects the other GS base:
///
/// ```compile_fail,E0308
/// # use entry_core::address::Width;
/// # use entry_sysenter::arrival::{EntryAddress, Ready, ReadySwapped};
/// # use entry_sysenter::trampoline::{SwapgsRelative, Trampoline64};
/// fn join(entry: EntryAddress<Ready>) {
///     // The stub would swap a second time.
///     let _ = Trampoline64::<SwapgsRelative>::new(0xffff_ffff_8030_0000, 8, entry, Width::Bits48);
/// }
/// ```
///
/// ```
/// # use entry_core::address::Width;
/// # use entry_sysenter::arrival::{EntryAddress, Ready, ReadySwapped};
/// # use entry_sysenter::trampoline::{SwapgsRelative, Trampoline64};
/// fn join(entry: EntryAddress<ReadySwapped>) {
///     let _ = Trampoline64::<SwapgsRelative>::new(0xffff_ffff_8030_0000, 8, entry, Width::Bits48);
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Trampoline64<F: Form> {
    at: u64,
    bytes: F::Bytes,
}

impl<F: Form> fmt::Debug for Trampoline64<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trampoline64({:#x}: {:02x?})", self.at, self.bytes)
    }
}

impl Trampoline64<RipRelative> {
    /// Bytes of code.
    pub const SIZE: usize = encode::MOV_RSP_RIP + encode::JMP_REL32;

    /// A trampoline for address `at` that loads RSP from the 8-byte word at `field` and jumps to `entry`.
    ///
    /// # Errors
    ///
    /// [`TrampolineError::NonCanonical`] for any of the three, last bytes included; [`TrampolineError::Overlap`] if the
    /// field or the entry lies in the trampoline; [`TrampolineError::OutOfReach`] if either is further away than a
    /// signed 32-bit displacement.
    pub const fn new(at: u64, field: u64, entry: EntryAddress<Ready>, width: Width) -> Result<Self, TrampolineError> {
        let code = Span {
            start: at,
            bytes: Self::SIZE as u64,
        };
        if let Err(error) = code.check(Some(field), entry.get(), width) {
            return Err(error);
        }
        let load = match encode::mov_rsp_rip(at, field) {
            Ok(load) => load,
            Err(distance) => {
                return Err(TrampolineError::OutOfReach {
                    operand: Operand::Field,
                    distance,
                });
            }
        };
        let jump = match jump(at + encode::MOV_RSP_RIP as u64, entry.get()) {
            Ok(jump) => jump,
            Err(error) => return Err(error),
        };
        let [a, b, c, d, e, f, g] = load;
        let [h, i, j, k, l] = jump;
        Ok(Self {
            at,
            bytes: [a, b, c, d, e, f, g, h, i, j, k, l],
        })
    }
}

impl Trampoline64<Absolute> {
    /// Bytes of code.
    pub const SIZE: usize = encode::MOV_RSP_ABS + encode::JMP_REL32;

    /// A trampoline for address `at` that loads RSP from the 8-byte word at `field` and jumps to `entry`.
    ///
    /// # Errors
    ///
    /// As [`Trampoline64::<RipRelative>::new`]; here the field is out of reach unless it lies in the lowest or highest
    /// 2 GiB of the address space.
    pub const fn new(at: u64, field: u64, entry: EntryAddress<Ready>, width: Width) -> Result<Self, TrampolineError> {
        let code = Span {
            start: at,
            bytes: Self::SIZE as u64,
        };
        if let Err(error) = code.check(Some(field), entry.get(), width) {
            return Err(error);
        }
        let load = match encode::mov_rsp_abs(field) {
            Ok(load) => load,
            Err(distance) => {
                return Err(TrampolineError::OutOfReach {
                    operand: Operand::Field,
                    distance,
                });
            }
        };
        let jump = match jump(at + encode::MOV_RSP_ABS as u64, entry.get()) {
            Ok(jump) => jump,
            Err(error) => return Err(error),
        };
        let [a, b, c, d, e, f, g, h] = load;
        let [i, j, k, l, m] = jump;
        Ok(Self {
            at,
            bytes: [a, b, c, d, e, f, g, h, i, j, k, l, m],
        })
    }
}

impl Trampoline64<SwapgsRelative> {
    /// Bytes of code.
    pub const SIZE: usize = encode::SWAPGS.len() + encode::MOV_RSP_GS + encode::JMP_REL32;

    /// A trampoline for address `at` that swaps GS, loads RSP from the 8-byte word `offset` bytes from the kernel's GS
    /// base, and jumps to `entry`.
    ///
    /// The code is the same on every CPU, since GS base makes the difference; a copy per CPU serves kernels that map
    /// nothing else for user mode. Whether the field lies in the trampoline depends on GS base, and is not checked.
    ///
    /// # Errors
    ///
    /// [`TrampolineError::NonCanonical`] for trampoline or entry; [`TrampolineError::Overlap`] if the entry lies in the
    /// trampoline; [`TrampolineError::OutOfReach`] if it is further away than a signed 32-bit displacement.
    pub const fn new(
        at: u64,
        offset: i32,
        entry: EntryAddress<ReadySwapped>,
        width: Width,
    ) -> Result<Self, TrampolineError> {
        let code = Span {
            start: at,
            bytes: Self::SIZE as u64,
        };
        if let Err(error) = code.check(None, entry.get(), width) {
            return Err(error);
        }
        let jump = match jump(at + (encode::SWAPGS.len() + encode::MOV_RSP_GS) as u64, entry.get()) {
            Ok(jump) => jump,
            Err(error) => return Err(error),
        };
        let [a, b, c] = encode::SWAPGS;
        let [d, e, f, g, h, i, j, k, l] = encode::mov_rsp_gs(offset);
        let [m, n, o, p, q] = jump;
        Ok(Self {
            at,
            bytes: [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q],
        })
    }
}

impl<F: Form> Trampoline64<F> {
    /// The code.
    #[must_use]
    pub const fn bytes(&self) -> &F::Bytes {
        &self.bytes
    }

    /// The address that the code was generated for; it works nowhere else. This is what `IA32_SYSENTER_EIP` holds.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.at
    }

    /// The addresses of the code: where RIP is when an NMI or a single-step trap arrives before the stub.
    ///
    /// In this range RSP is `IA32_SYSENTER_ESP`, or the loaded kernel stack, and GS base the user's or the kernel's.
    #[must_use]
    pub fn window(&self) -> Range<u64> {
        // The constructor has seen to it that the last byte is canonical, so the end is at most 2^64 - 1, or wraps to 0.
        self.at..self.at.wrapping_add(self.bytes.as_ref().len() as u64)
    }

    /// Copies the code to the start of `buffer` and returns the number of bytes.
    ///
    /// # Errors
    ///
    /// The buffer is shorter than the code; nothing is written.
    pub fn write_to(&self, buffer: &mut [u8]) -> Result<usize, BufferTooSmall> {
        write(self.bytes.as_ref(), buffer)
    }
}

/// A stretch of memory. Ends are inclusive, so that the last one of the address space can be written down.
#[derive(Clone, Copy)]
struct Span {
    start: u64,
    bytes: u64,
}

impl Span {
    const fn last(self) -> u64 {
        self.start.wrapping_add(self.bytes - 1)
    }

    const fn disjoint(self, other: Self, operand: Operand) -> Result<(), TrampolineError> {
        let is_disjoint = other.last() < self.start || self.last() < other.start;
        if guard!("trampoline-overlap", !is_disjoint) {
            return Err(TrampolineError::Overlap {
                operand,
                address: other.start,
                at: self.start,
                bytes: self.bytes,
            });
        }
        Ok(())
    }

    const fn canonical(self, operand: Operand, width: Width) -> Result<(), TrampolineError> {
        if guard!("trampoline-non-canonical", !width.is_canonical(self.start)) {
            return Err(TrampolineError::NonCanonical {
                operand,
                address: self.start,
            });
        }
        if guard!("trampoline-wraps", self.last() < self.start) {
            return Err(TrampolineError::Wraps {
                operand,
                address: self.start,
            });
        }
        if guard!("trampoline-non-canonical", !width.is_canonical(self.last())) {
            return Err(TrampolineError::NonCanonical {
                operand,
                address: self.last(),
            });
        }
        Ok(())
    }

    /// What is common to the 64-bit forms: `self` is the trampoline.
    const fn check(self, field: Option<u64>, entry: u64, width: Width) -> Result<(), TrampolineError> {
        let entry = Self { start: entry, bytes: 1 };
        if let Err(error) = self.canonical(Operand::Trampoline, width) {
            return Err(error);
        }
        if let Some(start) = field {
            let field = Self { start, bytes: 8 };
            if let Err(error) = field.canonical(Operand::Field, width) {
                return Err(error);
            }
            if let Err(error) = self.disjoint(field, Operand::Field) {
                return Err(error);
            }
        }
        if let Err(error) = entry.canonical(Operand::Entry, width) {
            return Err(error);
        }
        self.disjoint(entry, Operand::Entry)
    }
}

const fn jump(at: u64, entry: u64) -> Result<[u8; encode::JMP_REL32], TrampolineError> {
    match encode::jmp_rel32_64(at, entry) {
        Ok(jump) => Ok(jump),
        Err(distance) => Err(TrampolineError::OutOfReach {
            operand: Operand::Entry,
            distance,
        }),
    }
}

const fn write(code: &[u8], buffer: &mut [u8]) -> Result<usize, BufferTooSmall> {
    match buffer.split_at_mut_checked(code.len()) {
        Some((start, _)) => {
            start.copy_from_slice(code);
            Ok(code.len())
        }
        None => Err(BufferTooSmall {
            needed: code.len(),
            given: buffer.len(),
        }),
    }
}
