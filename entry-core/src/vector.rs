//! The 256 interrupt vectors: one table row for each exception, and the gates made from it.
//!
//! Which exceptions push an error code, which can arrive at any instruction and so need a stack of their own, and which
//! a program may raise by INT n, is written down once, in [`EXCEPTIONS`]. Stubs, gates and the decoding of frames
//! follow it.
//!
//! | vectors | what |
//! |---|---|
//! | 0–31 | exceptions, and what is reserved for them |
//! | 32–255 | interrupts; one of them may be the system call's |
//!
//! Gates are interrupt gates without exception: a trap gate would leave IF as it is, and an interrupt could arrive
//! before SWAPGS. Their CS is an argument: taking the one that is live would fail for a table that is filled before the
//! GDT is loaded.
//!
//! # Source
//!
//! Intel SDM vol. 3A, *Exception and Interrupt Reference*, *64-Bit Mode IDT*; AMD APM vol. 2, *Vectors*.

mod idt;

use core::fmt;

pub use self::idt::{GateDescriptor, GateError, Idt, Privilege};

/// Bytes between the stubs of two neighbouring vectors.
pub const SLOT_BYTES: u64 = 16;

/// What happens to the interrupted instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RIP is that of the instruction, which has had no effect.
    Fault,
    /// RIP is that of the next instruction.
    Trap,
    /// Fault or trap, by its cause (#DB).
    FaultOrTrap,
    /// RIP can't be relied upon; the context can't be resumed.
    Abort,
    /// It has nothing to do with the instruction. RIP is that of the next one.
    Interrupt,
    /// No CPU delivers it.
    Reserved,
}

/// A stack of the interrupt stack table, IST1 to IST7 of the TSS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Ist {
    /// IST1: #DB here.
    Ist1 = 1,
    /// IST2: NMI here.
    Ist2 = 2,
    /// IST3: #DF here.
    Ist3 = 3,
    /// IST4: #MC here.
    Ist4 = 4,
    /// IST5, for the kernel's own use.
    Ist5 = 5,
    /// IST6, for the kernel's own use.
    Ist6 = 6,
    /// IST7, for the kernel's own use.
    Ist7 = 7,
}

impl Ist {
    /// The number in the gate: 1 to 7.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// A row of [`EXCEPTIONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The vector, which is also the row's index.
    pub vector: Vector,
    /// The manual's mnemonic, `#GP`; empty for reserved vectors.
    pub mnemonic: &'static str,
    /// The manual's name.
    pub name: &'static str,
    /// What happens to the interrupted instruction.
    pub kind: Kind,
    /// Whether the CPU pushes an error code.
    pub has_error_code: bool,
    /// The stack of its own, for those that can arrive at any instruction.
    pub ist: Option<Ist>,
    /// Whether a program may raise it by INT n, INT3 or INTO. Never together with an error code: INT n pushes none.
    pub user_may_raise: bool,
}

impl Exception {
    const fn plain(vector: u8, mnemonic: &'static str, name: &'static str, kind: Kind) -> Self {
        Self {
            vector: Vector(vector),
            mnemonic,
            name,
            kind,
            has_error_code: false,
            ist: None,
            user_may_raise: false,
        }
    }

    const fn with_error_code(vector: u8, mnemonic: &'static str, name: &'static str, kind: Kind) -> Self {
        Self {
            has_error_code: true,
            ..Self::plain(vector, mnemonic, name, kind)
        }
    }

    const fn reserved(vector: u8) -> Self {
        Self::plain(vector, "", "Reserved", Kind::Reserved)
    }

    const fn on(self, ist: Ist) -> Self {
        Self { ist: Some(ist), ..self }
    }

    const fn for_user(self) -> Self {
        Self {
            user_may_raise: true,
            ..self
        }
    }

    /// Whether it can arrive between any two instructions of the kernel, entry stubs included, so that the saved CS
    /// doesn't tell whose GS base is live.
    #[must_use]
    pub const fn is_paranoid(&self) -> bool {
        self.ist.is_some()
    }
}

/// The exceptions, by vector.
///
/// | vector | mnemonic | error code | stack | INT n by a program |
/// |---|---|---|---|---|
/// | 1 | #DB | | IST1 | |
/// | 2 | NMI | | IST2 | |
/// | 3 | #BP | | | yes |
/// | 4 | #OF | | | yes |
/// | 8 | #DF | 0 | IST3 | |
/// | 10–13 | #TS #NP #SS #GP | selector | | |
/// | 14 | #PF | access | | |
/// | 17 | #AC | 0 | | |
/// | 18 | #MC | | IST4 | |
/// | 21 | #CP | cause | | |
/// | 29 | #VC | exit code | | |
/// | 30 | #SX | cause | | |
/// | other | | | | |
///
/// #BP has no stack of its own: a data breakpoint that MOV SS holds back until the breakpoint handler runs would bring it
/// back to the top of that stack while it is in use.
///
/// #VE, #VC and #HV have none either. In a guest that does not trust its hypervisor (TDX, SEV-ES, SEV-SNP) those can be made to
/// arrive between SYSCALL and the load of RSP, where their frames would go to an address of the program's: such a guest needs
/// other stubs, unless it has had them ruled out in the kernel (TDX: `SEPT_VE_DISABLE`). Elsewhere no CPU raises them there.
pub const EXCEPTIONS: [Exception; 32] = [
    Exception::plain(0, "#DE", "Divide Error", Kind::Fault),
    Exception::plain(1, "#DB", "Debug Exception", Kind::FaultOrTrap).on(Ist::Ist1),
    Exception::plain(2, "NMI", "NMI Interrupt", Kind::Interrupt).on(Ist::Ist2),
    Exception::plain(3, "#BP", "Breakpoint", Kind::Trap).for_user(),
    Exception::plain(4, "#OF", "Overflow", Kind::Trap).for_user(),
    Exception::plain(5, "#BR", "BOUND Range Exceeded", Kind::Fault),
    Exception::plain(6, "#UD", "Invalid Opcode", Kind::Fault),
    Exception::plain(7, "#NM", "Device Not Available", Kind::Fault),
    Exception::with_error_code(8, "#DF", "Double Fault", Kind::Abort).on(Ist::Ist3),
    Exception::plain(9, "", "Coprocessor Segment Overrun", Kind::Reserved),
    Exception::with_error_code(10, "#TS", "Invalid TSS", Kind::Fault),
    Exception::with_error_code(11, "#NP", "Segment Not Present", Kind::Fault),
    Exception::with_error_code(12, "#SS", "Stack-Segment Fault", Kind::Fault),
    Exception::with_error_code(13, "#GP", "General Protection", Kind::Fault),
    Exception::with_error_code(14, "#PF", "Page Fault", Kind::Fault),
    Exception::reserved(15),
    Exception::plain(16, "#MF", "x87 FPU Floating-Point Error", Kind::Fault),
    Exception::with_error_code(17, "#AC", "Alignment Check", Kind::Fault),
    Exception::plain(18, "#MC", "Machine Check", Kind::Abort).on(Ist::Ist4),
    Exception::plain(19, "#XM", "SIMD Floating-Point Exception", Kind::Fault),
    Exception::plain(20, "#VE", "Virtualization Exception", Kind::Fault),
    Exception::with_error_code(21, "#CP", "Control Protection Exception", Kind::Fault),
    Exception::reserved(22),
    Exception::reserved(23),
    Exception::reserved(24),
    Exception::reserved(25),
    Exception::reserved(26),
    Exception::reserved(27),
    Exception::plain(28, "#HV", "Hypervisor Injection Exception", Kind::Interrupt),
    Exception::with_error_code(29, "#VC", "VMM Communication Exception", Kind::Fault),
    Exception::with_error_code(30, "#SX", "Security Exception", Kind::Fault),
    Exception::reserved(31),
];

/// Bit n is set if vector n pushes an error code. For the `.if` of a stub's assembly.
pub const ERROR_CODE_MASK: u32 = {
    let mut mask = 0;
    let mut rest: &[Exception] = &EXCEPTIONS;
    while let [row, tail @ ..] = rest {
        if row.has_error_code {
            mask |= 1 << row.vector.0;
        }
        rest = tail;
    }
    mask
};

/// Bit n is set if vector n has a stack of its own and a paranoid entry.
pub const PARANOID_MASK: u32 = {
    let mut mask = 0;
    let mut rest: &[Exception] = &EXCEPTIONS;
    while let [row, tail @ ..] = rest {
        if row.is_paranoid() {
            mask |= 1 << row.vector.0;
        }
        rest = tail;
    }
    mask
};

/// An interrupt vector.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Vector(pub u8);

impl Vector {
    /// #DE.
    pub const DIVIDE_ERROR: Self = Self(0);
    /// #DB.
    pub const DEBUG: Self = Self(1);
    /// NMI.
    pub const NMI: Self = Self(2);
    /// #BP.
    pub const BREAKPOINT: Self = Self(3);
    /// #OF.
    pub const OVERFLOW: Self = Self(4);
    /// #BR.
    pub const BOUND_RANGE: Self = Self(5);
    /// #UD.
    pub const INVALID_OPCODE: Self = Self(6);
    /// #NM.
    pub const DEVICE_NOT_AVAILABLE: Self = Self(7);
    /// #DF.
    pub const DOUBLE_FAULT: Self = Self(8);
    /// #TS.
    pub const INVALID_TSS: Self = Self(10);
    /// #NP.
    pub const SEGMENT_NOT_PRESENT: Self = Self(11);
    /// #SS.
    pub const STACK_SEGMENT: Self = Self(12);
    /// #GP.
    pub const GENERAL_PROTECTION: Self = Self(13);
    /// #PF.
    pub const PAGE_FAULT: Self = Self(14);
    /// #MF.
    pub const X87_FLOATING_POINT: Self = Self(16);
    /// #AC.
    pub const ALIGNMENT_CHECK: Self = Self(17);
    /// #MC.
    pub const MACHINE_CHECK: Self = Self(18);
    /// #XM.
    pub const SIMD_FLOATING_POINT: Self = Self(19);
    /// #VE.
    pub const VIRTUALIZATION: Self = Self(20);
    /// #CP.
    pub const CONTROL_PROTECTION: Self = Self(21);
    /// #HV.
    pub const HYPERVISOR_INJECTION: Self = Self(28);
    /// #VC.
    pub const VMM_COMMUNICATION: Self = Self(29);
    /// #SX.
    pub const SECURITY: Self = Self(30);
    /// The first vector that is an interrupt.
    pub const FIRST_INTERRUPT: Self = Self(32);
    /// The system call of 32-bit Linux programs, INT 0x80.
    pub const INT80: Self = Self(0x80);

    /// Its row of [`EXCEPTIONS`]; `None` for interrupts.
    ///
    /// ```
    /// use entry_core::vector::Vector;
    /// assert_eq!(Vector(21).exception().unwrap().mnemonic, "#CP");
    /// assert_eq!(Vector(32).exception(), None);
    /// ```
    #[must_use]
    #[expect(
        clippy::indexing_slicing,
        reason = "the index is compared with the length in the same expression"
    )]
    pub const fn exception(self) -> Option<&'static Exception> {
        const ROWS: &[Exception; 32] = &EXCEPTIONS;
        if self.0 < 32 {
            Some(&ROWS[self.0 as usize])
        } else {
            None
        }
    }

    /// Whether the CPU pushes an error code.
    #[must_use]
    pub const fn has_error_code(self) -> bool {
        self.0 < 32 && ERROR_CODE_MASK & 1 << self.0 != 0
    }

    /// The stack of its own, if it has one.
    #[must_use]
    pub const fn ist(self) -> Option<Ist> {
        match self.exception() {
            Some(row) => row.ist,
            None => None,
        }
    }
}

impl fmt::Debug for Vector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vector({})", self.0)
    }
}

/// `#PF`, `vector 15`, `interrupt 0x20`.
impl fmt::Display for Vector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.exception() {
            Some(row) if !row.mnemonic.is_empty() => f.write_str(row.mnemonic),
            Some(_) => write!(f, "vector {}", self.0),
            None => write!(f, "interrupt {:#04x}", self.0),
        }
    }
}
