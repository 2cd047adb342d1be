//! The saved user or kernel state, one shape for every entry.
//!
//! Each stub builds the same 22 words, so a handler, a debugger and every exit read one layout. The words at the top
//! are what the CPU pushes for an interrupt in 64-bit mode, and what IRETQ pops; RCX and R11 stand next to them because
//! SYSRET consumes copies of RIP and RFLAGS in those registers: the exits load RCX, R11 and RSP *from the RIP, RFLAGS
//! and RSP words themselves*, so that what was checked is what is consumed.
//!
//! | offset | word | SYSCALL | exception, interrupt |
//! |---|---|---|---|
//! | 0–40 | R15, R14, R13, R12, RBP, RBX | live | live |
//! | 48–96 | R10, R9, R8, RDI, RSI, RDX, RAX | live | live |
//! | 104 | R11 | RFLAGS | live |
//! | 112 | RCX | RIP | live |
//! | 120 | kind, marks and vector | pushed by the stub | pushed by the stub |
//! | 128 | original RAX, or error code | RAX | pushed by the CPU, or 0 |
//! | 136 | RIP | RCX | pushed by the CPU |
//! | 144 | CS | constant | pushed by the CPU |
//! | 152 | RFLAGS | R11 | pushed by the CPU |
//! | 160 | RSP | per-CPU scratch | pushed by the CPU |
//! | 168 | SS | constant | pushed by the CPU |
//!
//! 22 words are 176 bytes: the CPU aligns RSP to 16 before it pushes five words, so the frame is 16-byte aligned for
//! every entry and the stubs can call compiled code as they are.
//!
//! Fields are private. The setters mark the frame ([`TrapFrame::is_modified`]), and a modified frame gets the full
//! check on exit.
//!
//! # Source
//!
//! Intel SDM vol. 3A, *64-Bit Mode Stack Frame*; vol. 2B, *SYSCALL—Fast System Call*; AMD APM vol. 2, *Interrupt Stack Frame*.

use core::fmt;
use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;

use crate::debug::DebugStatus;
use crate::guard::guard;

/// How the kernel was entered. Bits 15:8 of the frame's kind word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum EntryKind {
    /// SYSCALL from 64-bit code.
    Syscall64 = 1,
    /// SYSCALL from compatibility mode (AMD).
    Syscall32 = 2,
    /// SYSENTER from compatibility mode.
    Sysenter32 = 3,
    /// SYSENTER from 64-bit code (Intel).
    Sysenter64 = 4,
    /// INT 0x80.
    Int80 = 5,
    /// An exception other than the paranoid ones.
    Exception = 6,
    /// A maskable interrupt.
    Interrupt = 7,
    /// NMI, #MC, #DB or #DF: vectors that can arrive at any instruction. Their frames have no way to SYSRET.
    Paranoid = 8,
    /// Built by the kernel: first entry to user mode, exec, fork child, sigreturn.
    Built = 9,
    /// IRETQ to user mode faulted: the registers are the program's, RIP, CS, RFLAGS, RSP and SS what it could not be
    /// given. Vector and error code are those of the fault.
    IretFault = 10,
}

impl EntryKind {
    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Syscall64,
            2 => Self::Syscall32,
            3 => Self::Sysenter32,
            4 => Self::Sysenter64,
            5 => Self::Int80,
            6 => Self::Exception,
            7 => Self::Interrupt,
            8 => Self::Paranoid,
            9 => Self::Built,
            10 => Self::IretFault,
            _ => return None,
        })
    }

    /// The kind word of a fresh frame: `kind << 8 | vector`.
    #[must_use]
    pub const fn word(self, vector: u8) -> u64 {
        (self as u64) << 8 | vector as u64
    }
}

/// The saved registers of the interrupted context. See the [module](self) for the layout.
///
/// The stubs make frames; [`TrapFrame::zeroed`] makes one for a context that never ran.
///
/// ```
/// use entry_core::TrapFrame;
/// let mut frame = TrapFrame::zeroed();
/// frame.set_return_value(-38i64 as u64);
/// assert_eq!(frame.rax(), -38i64 as u64);
/// assert!(!frame.is_modified()); // RAX is no concern of the exit
/// frame.set_rip(0x40_0000);
/// assert!(frame.is_modified());
/// ```
#[derive(Clone, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct TrapFrame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    rbp: u64,
    rbx: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    rax: u64,
    r11: u64,
    rcx: u64,
    kind: u64,
    code: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

const_assert_eq!(size_of::<TrapFrame>(), 22 * 8);
const_assert_eq!(offset_of!(TrapFrame, r11), TrapFrame::R11);
const_assert_eq!(offset_of!(TrapFrame, ss), 168);

/// Marks in the kind word, above kind and vector.
const MODIFIED: u64 = 1 << 16;
const CLOBBERED: u64 = 1 << 17;
const RF_MAY_DROP: u64 = 1 << 18;

/// Offsets for stubs of this and other crates.
impl TrapFrame {
    /// Bytes of a frame.
    pub const SIZE: usize = size_of::<Self>();
    /// Bytes of the 13 registers below R11, which every exit pops in order.
    pub const POPPED: usize = offset_of!(Self, r11);
    /// Offset of R11.
    pub const R11: usize = offset_of!(Self, r11);
    /// Offset of RCX.
    pub const RCX: usize = offset_of!(Self, rcx);
    /// Offset of the kind word.
    pub const KIND: usize = offset_of!(Self, kind);
    /// Offset of the original RAX, or the error code.
    pub const CODE: usize = offset_of!(Self, code);
    /// Offset of RIP, the first word that IRETQ pops.
    pub const RIP: usize = offset_of!(Self, rip);
    /// Offset of CS.
    pub const CS: usize = offset_of!(Self, cs);
    /// Offset of RFLAGS.
    pub const RFLAGS: usize = offset_of!(Self, rflags);
    /// Offset of RSP.
    pub const RSP: usize = offset_of!(Self, rsp);
    /// Offset of SS.
    pub const SS: usize = offset_of!(Self, ss);
    /// Offset of RAX.
    pub const RAX: usize = offset_of!(Self, rax);
}

macro_rules! plain_registers {
    ($($(#[$doc:meta])* $get:ident, $set:ident;)*) => {
        /// Registers that no exit condition depends on: setting them leaves the fast exit open.
        impl TrapFrame {
            $(
                $(#[$doc])*
                #[must_use]
                #[inline(always)]
                pub const fn $get(&self) -> u64 {
                    self.$get
                }

                #[doc = concat!("Sets what [`TrapFrame::", stringify!($get), "`] returns.")]
                #[inline(always)]
                pub const fn $set(&mut self, value: u64) {
                    self.$get = value;
                }
            )*
        }
    };
}

plain_registers! {
    /// RAX: the system-call number as it is now, then the return value.
    rax, set_rax;
    /// RBX.
    rbx, set_rbx;
    /// RDX: third argument.
    rdx, set_rdx;
    /// RSI: second argument.
    rsi, set_rsi;
    /// RDI: first argument.
    rdi, set_rdi;
    /// RBP.
    rbp, set_rbp;
    /// R8: fifth argument.
    r8, set_r8;
    /// R9: sixth argument.
    r9, set_r9;
    /// R10: fourth argument, since SYSCALL takes RCX.
    r10, set_r10;
    /// R12.
    r12, set_r12;
    /// R13.
    r13, set_r13;
    /// R14.
    r14, set_r14;
    /// R15.
    r15, set_r15;
}

macro_rules! exit_registers {
    ($($(#[$doc:meta])* $get:ident, $set:ident;)*) => {
        /// Registers that decide how the kernel may leave: a setter marks the frame as modified.
        impl TrapFrame {
            $(
                $(#[$doc])*
                #[must_use]
                #[inline(always)]
                pub const fn $get(&self) -> u64 {
                    self.$get
                }

                #[doc = concat!("Sets what [`TrapFrame::", stringify!($get), "`] returns, and marks the frame.")]
                #[inline(always)]
                pub const fn $set(&mut self, value: u64) {
                    self.$get = value;
                    if guard!("mark-modified", true) {
                        self.kind |= MODIFIED;
                    }
                }
            )*
        }
    };
}

exit_registers! {
    /// RIP of the next user instruction.
    rip, set_rip;
    /// CS, with its RPL in bits 1:0.
    cs, set_cs;
    /// RFLAGS.
    rflags, set_rflags;
    /// SS.
    ss, set_ss;
    /// RCX: destroyed by SYSCALL, live in every other frame.
    rcx, set_rcx;
    /// R11: destroyed by SYSCALL, live in every other frame.
    r11, set_r11;
}

impl TrapFrame {
    /// A frame of zeros with kind [`EntryKind::Built`]: no exit accepts it as it is.
    #[must_use]
    pub const fn zeroed() -> Self {
        Self {
            r15: 0,
            r14: 0,
            r13: 0,
            r12: 0,
            rbp: 0,
            rbx: 0,
            r10: 0,
            r9: 0,
            r8: 0,
            rdi: 0,
            rsi: 0,
            rdx: 0,
            rax: 0,
            r11: 0,
            rcx: 0,
            kind: EntryKind::Built.word(0),
            code: 0,
            rip: 0,
            cs: 0,
            rflags: 0,
            rsp: 0,
            ss: 0,
        }
    }

    /// The program's frame out of that of a faulting IRETQ and of the image that it was to load.
    pub(crate) const fn of_iret_fault(fault: &Self, image: &Self) -> Self {
        Self {
            kind: EntryKind::IretFault.word(fault.vector()) | MODIFIED,
            rip: image.rip,
            cs: image.cs,
            rflags: image.rflags,
            rsp: image.rsp,
            ss: image.ss,
            r15: fault.r15,
            r14: fault.r14,
            r13: fault.r13,
            r12: fault.r12,
            rbp: fault.rbp,
            rbx: fault.rbx,
            r10: fault.r10,
            r9: fault.r9,
            r8: fault.r8,
            rdi: fault.rdi,
            rsi: fault.rsi,
            rdx: fault.rdx,
            rax: fault.rax,
            r11: fault.r11,
            rcx: fault.rcx,
            code: fault.code,
        }
    }

    /// RSP of the interrupted context. Every value is legal: neither exit reads through it.
    #[must_use]
    #[inline(always)]
    pub const fn rsp(&self) -> u64 {
        self.rsp
    }

    /// Sets [`TrapFrame::rsp`].
    #[inline(always)]
    pub const fn set_rsp(&mut self, value: u64) {
        self.rsp = value;
    }

    /// How the kernel was entered; `None` for a kind word that no stub writes.
    #[must_use]
    #[inline(always)]
    pub const fn entry_kind(&self) -> Option<EntryKind> {
        EntryKind::from_bits((self.kind >> 8 & 0xff) as u8)
    }

    /// The vector of an exception or interrupt; 0 for the others.
    #[must_use]
    #[inline(always)]
    pub const fn vector(&self) -> u8 {
        (self.kind & 0xff) as u8
    }

    /// The kind word: vector in bits 7:0, kind in 15:8, marks above. For comparison in one step.
    #[must_use]
    #[inline(always)]
    pub const fn kind_word(&self) -> u64 {
        self.kind
    }

    /// Makes this a frame that the kernel built, of which nothing may be assumed on exit.
    #[inline(always)]
    pub const fn mark_built(&mut self) {
        self.kind = EntryKind::Built.word(0) | MODIFIED;
    }

    /// Whether a register that the exit depends on was changed since entry.
    #[must_use]
    #[inline(always)]
    pub const fn is_modified(&self) -> bool {
        self.kind & MODIFIED != 0
    }

    /// Declares RCX and R11 dead: the user's ABI says that this event destroys them, as SYSCALL does. This opens SYSRET
    /// to an exception frame.
    #[inline(always)]
    pub const fn declare_rcx_r11_dead(&mut self) {
        self.kind |= CLOBBERED;
    }

    /// Whether [`TrapFrame::declare_rcx_r11_dead`] was called.
    #[must_use]
    #[inline(always)]
    pub const fn rcx_r11_are_dead(&self) -> bool {
        self.kind & CLOBBERED != 0
    }

    /// Declares that no instruction breakpoint is armed for this thread, so that RFLAGS.RF, which the CPU sets in every
    /// fault frame, may be dropped on the way out.
    #[inline(always)]
    pub const fn declare_no_instruction_breakpoint(&mut self) {
        self.kind |= RF_MAY_DROP;
    }

    /// Whether [`TrapFrame::declare_no_instruction_breakpoint`] was called.
    #[must_use]
    #[inline(always)]
    pub const fn rf_may_be_dropped(&self) -> bool {
        self.kind & RF_MAY_DROP != 0
    }

    /// The error code of an exception; 0 for vectors without one, [`TrapFrame::debug_status`] for #DB.
    #[must_use]
    #[inline(always)]
    pub const fn error_code(&self) -> u64 {
        self.code
    }

    /// Why #DB was raised, in a frame of that vector: the CPU gives it no error code, and DR6 has been told to forget.
    #[must_use]
    #[inline(always)]
    pub const fn debug_status(&self) -> DebugStatus {
        DebugStatus::from_bits_truncate(self.code)
    }

    /// Sets what [`TrapFrame::debug_status`] returns.
    #[inline(always)]
    pub(crate) const fn set_debug_status(&mut self, status: DebugStatus) {
        self.code = status.bits();
    }

    /// RAX as it was when a system call was made: what a restart needs.
    #[must_use]
    #[inline(always)]
    pub const fn original_rax(&self) -> u64 {
        self.code
    }

    /// Whether the interrupted context was user mode: the RPL of CS is 3.
    #[must_use]
    #[inline(always)]
    pub const fn is_user(&self) -> bool {
        self.cs & 3 == 3
    }

    /// The six arguments of a 64-bit system call, in order: RDI, RSI, RDX, R10, R8, R9.
    #[must_use]
    #[inline(always)]
    pub const fn arguments(&self) -> [u64; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
    }

    /// Sets the system call's result, RAX.
    #[inline(always)]
    pub const fn set_return_value(&mut self, value: u64) {
        self.rax = value;
    }

    /// Arranges for the system call to be made again: RAX is the number once more and RIP points at the two-byte
    /// SYSCALL, SYSENTER or INT 0x80. The frame leaves by IRET, since RIP is no longer RCX.
    pub const fn restart_system_call(&mut self) {
        self.rax = self.code;
        self.set_rip(self.rip.wrapping_sub(2));
    }
}

impl fmt::Debug for TrapFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TrapFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:?} vector {} code {:#x}{}",
            self.entry_kind(),
            self.vector(),
            self.code,
            if self.is_modified() { " modified" } else { "" }
        )?;
        writeln!(f, "rip {:04x}:{:016x} rflags {:08x}", self.cs, self.rip, self.rflags)?;
        writeln!(
            f,
            "rsp {:04x}:{:016x} rax {:016x} rbx {:016x}",
            self.ss, self.rsp, self.rax, self.rbx
        )?;
        writeln!(
            f,
            "rcx {:016x} rdx {:016x} rsi {:016x} rdi {:016x}",
            self.rcx, self.rdx, self.rsi, self.rdi
        )?;
        writeln!(
            f,
            "rbp {:016x}  r8 {:016x}  r9 {:016x} r10 {:016x}",
            self.rbp, self.r8, self.r9, self.r10
        )?;
        write!(
            f,
            "r11 {:016x} r12 {:016x} r13 {:016x} r14 {:016x} r15 {:016x}",
            self.r11, self.r12, self.r13, self.r14, self.r15
        )
    }
}
