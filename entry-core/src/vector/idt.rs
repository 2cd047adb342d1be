//! Gates and the table of them.

use core::error::Error;
use core::fmt;

use crate::guard::guard;
use crate::segment::{SegmentLayout, Selector};
#[cfg(doc)]
use crate::vector::EXCEPTIONS;
use crate::vector::{Ist, SLOT_BYTES, Vector};

/// Who may name the vector in an INT n instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// DPL 0: INT n in a program is #GP.
    Kernel,
    /// DPL 3.
    User,
}

/// Why a gate or a table was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateError {
    /// The CS of the gate is null, names the LDT, or has an RPL other than 0.
    BadCodeSelector {
        /// The selector.
        selector: Selector,
    },
    /// A program may not be able to raise this vector. Only #BP, #OF and one interrupt vector are for programs; for a
    /// vector with an error code, INT n would push none and the frame would be off by a word.
    NotForUser {
        /// The vector.
        vector: Vector,
    },
    /// The system-call vector is an exception's.
    SystemCallIsException {
        /// The vector.
        vector: Vector,
    },
    /// A handler address is 0, or the slots reach beyond the end of the address space.
    BadHandler {
        /// The address.
        address: u64,
    },
}

impl fmt::Display for GateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadCodeSelector { selector } => {
                write!(
                    f,
                    "gate code selector is {selector}, wanted a GDT selector that is not null, with RPL 0"
                )
            }
            Self::NotForUser { vector } => write!(
                f,
                "vector {} ({vector}) with DPL 3, wanted DPL 0: programs may raise #BP, #OF and one system-call vector",
                vector.0
            ),
            Self::SystemCallIsException { vector } => {
                write!(f, "system-call vector is {} ({vector}), wanted 32 to 255", vector.0)
            }
            Self::BadHandler { address } => write!(f, "handler address is {address:#x}, wanted one in the kernel"),
        }
    }
}

impl Error for GateError {}

/// The type field of an interrupt gate: the CPU clears IF. A trap gate, `0xf`, would not.
const INTERRUPT_GATE: u64 = if guard!("interrupt-gate", true) { 0xe } else { 0xf };

/// A 16-byte entry of the IDT.
///
/// | bits | meaning |
/// |---|---|
/// | 15:0, 63:48, 95:64 | address of the stub |
/// | 31:16 | CS |
/// | 34:32 | IST number, 0 for none |
/// | 43:40 | type: `0xe`, interrupt gate |
/// | 46:45 | DPL |
/// | 47 | present |
///
/// # Source
///
/// Intel SDM vol. 3A, *64-Bit Mode IDT*; AMD APM vol. 2, *Interrupt-Gate and Trap-Gate Descriptors—64-Bit Gate
/// Descriptors*.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct GateDescriptor {
    low: u64,
    high: u64,
}

impl GateDescriptor {
    /// A gate that is not present: the vector is #NP.
    pub const MISSING: Self = Self { low: 0, high: 0 };

    /// An interrupt gate.
    ///
    /// # Errors
    ///
    /// [`GateError::BadHandler`] for address 0, [`GateError::BadCodeSelector`].
    pub const fn new(handler: u64, code: Selector, ist: Option<Ist>, privilege: Privilege) -> Result<Self, GateError> {
        if guard!("null-handler", handler == 0) {
            return Err(GateError::BadHandler { address: handler });
        }
        if guard!(
            "gate-code-selector",
            code.is_null() || code.is_local() || code.rpl() != 0
        ) {
            return Err(GateError::BadCodeSelector { selector: code });
        }
        let ist = match ist {
            Some(ist) => ist.number(),
            None => 0,
        };
        let dpl: u64 = match privilege {
            Privilege::Kernel => 0,
            Privilege::User => 3,
        };
        let low = handler & 0xffff
            | (code.bits() as u64) << 16
            | (ist as u64) << 32
            | INTERRUPT_GATE << 40
            | dpl << 45
            | 1 << 47
            | (handler >> 16 & 0xffff) << 48;
        Ok(Self {
            low,
            high: handler >> 32,
        })
    }

    const fn on_stack(self, ist_number: u8) -> Self {
        Self {
            low: self.low & !(7 << 32) | (ist_number as u64) << 32,
            ..self
        }
    }

    /// The two words.
    #[must_use]
    pub const fn bits(self) -> [u64; 2] {
        [self.low, self.high]
    }

    /// The address of the stub.
    #[must_use]
    pub const fn handler(self) -> u64 {
        self.low & 0xffff | (self.low >> 48) << 16 | self.high << 32
    }

    /// CS.
    #[must_use]
    pub const fn code(self) -> Selector {
        Selector::from_bits((self.low >> 16 & 0xffff) as u16)
    }

    /// The IST number, 0 for none.
    #[must_use]
    pub const fn ist_number(self) -> u8 {
        (self.low >> 32 & 7) as u8
    }

    /// The DPL.
    #[must_use]
    pub const fn dpl(self) -> u8 {
        (self.low >> 45 & 3) as u8
    }

    /// Whether the gate is present.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.low & 1 << 47 != 0
    }
}

impl fmt::Debug for GateDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_present() {
            return f.write_str("GateDescriptor::MISSING");
        }
        f.debug_struct("GateDescriptor")
            .field("handler", &format_args!("{:#x}", self.handler()))
            .field("code", &self.code())
            .field("ist", &self.ist_number())
            .field("dpl", &self.dpl())
            .finish()
    }
}

/// The interrupt descriptor table, 256 gates.
///
/// ```
/// use entry_core::segment::SegmentLayout;
/// use entry_core::vector::{Idt, Vector};
/// let stubs = 0xffff_ffff_8010_0000;
/// let int80 = 0xffff_ffff_8010_2000;
/// let mut idt = Idt::new(stubs, &SegmentLayout::NATURAL)?;
/// idt.set_system_call(Vector::INT80, int80)?;
/// assert_eq!(idt.gate(Vector::PAGE_FAULT).handler(), stubs + 14 * 16);
/// assert_eq!(idt.gate(Vector::NMI).ist_number(), 2);
/// assert_eq!(idt.gate(Vector::INT80).dpl(), 3);
/// assert_eq!(idt.gate(Vector::PAGE_FAULT).dpl(), 0);
/// # Ok::<(), entry_core::vector::GateError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Idt {
    gates: [GateDescriptor; 256],
    code: Selector,
}

impl Idt {
    /// A table of gates that are not present, for a `static` to be filled.
    pub const EMPTY: Self = Self {
        gates: [GateDescriptor::MISSING; 256],
        code: Selector::from_bits(0),
    };

    /// The limit for LIDT: bytes of the gates, less one.
    pub const LIMIT: u16 = 256 * 16 - 1;

    /// Gates to the stubs at `stubs + vector * SLOT_BYTES`, all 256: stacks as in [`EXCEPTIONS`], DPL 3 for #BP and
    /// #OF.
    ///
    /// # Errors
    ///
    /// [`GateError::BadHandler`] if `stubs` is 0 or the slots reach beyond the end of the address space.
    #[expect(clippy::indexing_slicing, reason = "a u8 is below 256, the length of the table")]
    pub const fn new(stubs: u64, layout: &SegmentLayout) -> Result<Self, GateError> {
        let code = layout.kernel_code();
        if stubs == 0 || stubs.checked_add(256 * SLOT_BYTES - 1).is_none() {
            return Err(GateError::BadHandler { address: stubs });
        }
        let mut gates = [GateDescriptor::MISSING; 256];
        let mut vector = Vector(0);
        loop {
            let (ist, privilege) = match vector.exception() {
                Some(row) => (
                    row.ist,
                    if row.user_may_raise {
                        Privilege::User
                    } else {
                        Privilege::Kernel
                    },
                ),
                None => (None, Privilege::Kernel),
            };
            gates[vector.0 as usize] =
                match GateDescriptor::new(stubs + vector.0 as u64 * SLOT_BYTES, code, ist, privilege) {
                    Ok(gate) => gate,
                    Err(error) => return Err(error),
                };
            if vector.0 == u8::MAX {
                break;
            }
            vector.0 += 1;
        }
        Ok(Self { gates, code })
    }

    /// Makes `vector` the system call's: DPL 3 and a stub of its own, no IST.
    ///
    /// The vector must not be given to any device: an interrupt on it leaves the same frame as INT n. One that arrives in
    /// the kernel is told by its CS, and the stubs make an interrupt of it; one that hits a program is not. A kernel that
    /// can't trust its devices, or its hypervisor, asks the interrupt controller whether the vector is in service, which INT n
    /// never makes it.
    ///
    /// # Errors
    ///
    /// [`GateError::SystemCallIsException`] for vectors below 32; [`GateError::NotForUser`] if another vector has been
    /// made the system call's; [`GateError::BadHandler`]; [`GateError::BadCodeSelector`] for a table that is still
    /// empty.
    #[expect(clippy::indexing_slicing, reason = "a u8 is below 256, the length of the table")]
    pub const fn set_system_call(&mut self, vector: Vector, stub: u64) -> Result<(), GateError> {
        if guard!("system-call-is-exception", vector.0 < 32) {
            return Err(GateError::SystemCallIsException { vector });
        }
        let mut other = Vector::FIRST_INTERRUPT;
        loop {
            if guard!(
                "one-system-call-vector",
                self.gates[other.0 as usize].dpl() == 3 && other.0 != vector.0
            ) {
                return Err(GateError::NotForUser { vector });
            }
            if other.0 == u8::MAX {
                break;
            }
            other.0 += 1;
        }
        match GateDescriptor::new(stub, self.code, None, Privilege::User) {
            Ok(gate) => {
                self.gates[vector.0 as usize] = gate;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Directs a vector to a handler of its own. Privilege stays as it is, and so does the stack.
    ///
    /// # Errors
    ///
    /// [`GateError::BadHandler`]; [`GateError::BadCodeSelector`] for a table that is still empty.
    #[expect(clippy::indexing_slicing, reason = "a u8 is below 256, the length of the table")]
    pub const fn set_handler(&mut self, vector: Vector, handler: u64) -> Result<(), GateError> {
        let old = self.gates[vector.0 as usize];
        let privilege = if old.dpl() == 3 {
            Privilege::User
        } else {
            Privilege::Kernel
        };
        match GateDescriptor::new(handler, self.code, None, privilege) {
            Ok(gate) => {
                self.gates[vector.0 as usize] = gate.on_stack(old.ist_number());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Gives all vectors from 32 on one stack of the interrupt stack table, which a CPU with interrupts on at SYSCALL
    /// demands ([`InterruptsOnEntry`](crate::irqs_on::InterruptsOnEntry)). To be called after [`Idt::set_system_call`], whose
    /// gate has none.
    #[expect(clippy::indexing_slicing, reason = "a u8 is below 256, the length of the table")]
    pub const fn set_interrupt_stack(&mut self, ist: Ist) {
        let mut vector = Vector::FIRST_INTERRUPT.0;
        loop {
            let gate = &mut self.gates[vector as usize];
            *gate = gate.on_stack(ist.number());
            if vector == u8::MAX {
                return;
            }
            vector += 1;
        }
    }

    /// A gate.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "a u8 is below 256, the length of the table")]
    pub const fn gate(&self, vector: Vector) -> GateDescriptor {
        self.gates[vector.0 as usize]
    }

    /// Executes LIDT, and [prepares](crate::windows::learn_extent) for what the entries look up.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0.
    /// 2. Each stub is mapped and executable in every address space from now on, and handles its vector.
    /// 3. TR holds a TSS whose IST1 to IST4 and RSP0 are the tops of stacks, before the first exception arrives.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2A, *LGDT/LIDT—Load Global/Interrupt Descriptor Table Register*.
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn load(&'static self) {
        crate::windows::learn_extent();
        let table = Pseudo {
            limit: Self::LIMIT,
            base: core::ptr::from_ref(self).addr() as u64,
        };
        // SAFETY: the caller's 1 excludes #GP, 2 and 3 make the table right; `self` lives for ever. LIDT reads ten
        // bytes of
        // `table`.
        unsafe {
            core::arch::asm!("lidt [{}]", in(reg) &raw const table, options(readonly, nostack, preserves_flags));
        }
    }
}

impl fmt::Debug for Idt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.gates).finish()
    }
}

/// The operand of LIDT.
#[cfg(target_arch = "x86_64")]
#[repr(C, packed(2))]
struct Pseudo {
    limit: u16,
    base: u64,
}
