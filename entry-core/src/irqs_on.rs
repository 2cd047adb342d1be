//! SYSCALL with interrupts left on: when that is allowed.
//!
//! [`FlagMask`] masks IF, always, because the first instructions after SYSCALL run with the user's RSP and GS base, and an
//! interrupt there would push its frame wherever the user pointed. [`InterruptsOnEntry`] is the one way around: a mask
//! without IF, for an IDT all of whose maskable vectors run on a stack of their own and decide about GS base by RIP.
//!
//! What it saves is one CLI and one STI a system call. What it costs, each interrupt pays:
//!
//! | interrupt arrives | more than usual, in instructions |
//! |---|---|
//! | in user mode | 12: the frame's seven words are moved to the thread's stack |
//! | in the kernel | 68: RIP is compared with the bounds of the [windows](crate::windows), and the frame of 22 words copied |
//! | in a window | the look-up: a binary search where the linker left the records in order; the interrupt is handled, but nothing is scheduled before the next exit |
//!
//! They are measured: in user mode 73 and 85, in the kernel 48 and 116, in a window 212 with 32 records; the workspace's
//! `bench irqflag` has the rows. Records are searched where RIP lies between the first and the last window with interrupts on,
//! and nowhere else. One kernel with one set of stubs has 6.
//!
//! Nested interrupts and preemption work outside the windows with the one stack: an interrupt's frame has left it for the
//! thread's stack before [`Kernel::kernel_interrupt`](crate::Kernel::kernel_interrupt) or
//! [`Kernel::user_interrupt`](crate::Kernel::user_interrupt) is called, so these may turn interrupts on, and call the
//! scheduler. The thread's stack has to hold a frame and a handler for each level, and who turns interrupts on has to bound
//! the levels. In a window neither is possible: the handler borrows its proof.
//!
//! ```compile_fail,E0507
//! use entry_core::{IrqOff, TrapFrame};
//! fn window_interrupt(_frame: &mut TrapFrame, irq: &IrqOff) {
//!     let _irq = irq.enable().disable();
//! }
//! ```
//!
//! ```
//! use entry_core::{IrqOff, TrapFrame};
//! fn kernel_interrupt(_frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
//!     irq.enable().disable()
//! }
//! ```
//!
//! **When not to use it**: with context tracking, which needs to be told with interrupts off; with page tables that hide
//! the kernel, since the windows would have to say whose CR3 is too (the stubs refuse to compile); where an interrupt
//! vector can't be had on the common stack; and wherever the difference hasn't been measured on the CPU at hand, since an
//! instruction count can't show what IF costs.
//!
//! # Source
//!
//! Intel SDM vol. 2B, *SYSCALL—Fast System Call*; vol. 3A, *Interrupt Stack Table*; AMD APM vol. 2, *SYSCALL and SYSRET*,
//! *Interrupt-Stack Table*.

use core::error::Error;
use core::fmt;

use crate::guard::guard;
use crate::msr::Fmask;
use crate::rflags::{FlagMask, Rflags};
use crate::vector::{Idt, SLOT_BYTES, Vector};

/// Why an IDT does not allow interrupts at SYSCALL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InterruptStackError {
    /// A maskable vector runs on whatever stack RSP points at.
    NoStack {
        /// The vector.
        vector: Vector,
    },
    /// An exception runs on the interrupts' stack, and would overwrite an interrupt's frame.
    SharedStack {
        /// The exception's vector.
        vector: Vector,
        /// The stack.
        ist: u8,
    },
    /// A maskable vector goes to another stub, which may ask CS alone about GS base.
    OtherStub {
        /// The vector.
        vector: Vector,
        /// Where it goes.
        handler: u64,
        /// The slot that is wanted.
        wanted: u64,
    },
}

impl fmt::Display for InterruptStackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStack { vector } => write!(
                f,
                "vector {} has no stack of its own, wanted that of all interrupts",
                vector.0
            ),
            Self::SharedStack { vector, ist } => {
                write!(
                    f,
                    "vector {} ({vector}) runs on IST {ist}, wanted that for interrupts alone",
                    vector.0
                )
            }
            Self::OtherStub {
                vector,
                handler,
                wanted,
            } => {
                write!(
                    f,
                    "vector {} goes to {handler:#x}, wanted the slot at {wanted:#x}",
                    vector.0
                )
            }
        }
    }
}

impl Error for InterruptStackError {}

/// Leave to keep IF set at SYSCALL, for one IDT.
///
/// ```
/// use entry_core::irqs_on::{InterruptStackError, InterruptsOnEntry};
/// use entry_core::segment::SegmentLayout;
/// use entry_core::vector::{Idt, Ist, Vector};
/// let slots = 0xffff_ffff_8010_0000;
/// let mut idt = Idt::new(slots, &SegmentLayout::NATURAL)?;
/// // SAFETY: nothing is loaded.
/// let refused = unsafe { InterruptsOnEntry::new(&idt, slots) };
/// assert_eq!(refused, Err(InterruptStackError::NoStack { vector: Vector(32) }));
/// idt.set_interrupt_stack(Ist::Ist5);
/// // SAFETY: nothing is loaded.
/// let allowed = unsafe { InterruptsOnEntry::new(&idt, slots) }?;
/// assert_eq!(allowed.mask().bits() & 0x200, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptsOnEntry(Rflags);

impl InterruptsOnEntry {
    /// Examines an IDT.
    ///
    /// # Errors
    ///
    /// The first vector that breaks the rule: all of 32 to 255, used or not, go to their slots and have one stack, which no
    /// exception has.
    ///
    /// # Safety
    ///
    /// While any CPU has [`InterruptsOnEntry::mask`] in `IA32_FMASK`:
    ///
    /// 1. That CPU has `idt`, or one that passes this too, in IDTR.
    /// 2. Its `IA32_LSTAR` is the address of [`syscall_entry_irqs_on`](crate::stub::syscall_entry_irqs_on): all other stubs
    ///    claim that IF is 0. Both change together, with interrupts off, and not before a system call that began there has
    ///    interrupts off for good. Its `IA32_CSTAR`, which has the same mask, is the address of
    ///    [`syscall_compat_entry`](crate::stub::syscall_compat_entry), or of a stub that lies in windows with
    ///    [`IRQS_ON`](crate::windows::flags::IRQS_ON) wherever interrupts may be on and RSP or GS base is the user's.
    /// 3. `slots` is the address of [`vector_stubs_irqs_on`](crate::stub::vector_stubs_irqs_on), for a kernel whose layout, stacks and
    ///    exit are those of the system-call stub's.
    /// 4. The TSS of each such CPU has a stack of its own in the slot of the interrupt stack table.
    /// 5. Whoever takes the thread away from a CPU does so outside the stubs' windows: an interrupt handler that reaches the
    ///    scheduler is [`Kernel::kernel_interrupt`](crate::Kernel::kernel_interrupt), never
    ///    [`IrqsOnKernel::window_interrupt`](crate::stub::IrqsOnKernel::window_interrupt).
    /// 6. The linker keeps the sections of the [windows](crate::windows).
    pub const unsafe fn new(idt: &Idt, slots: u64) -> Result<Self, InterruptStackError> {
        let ist = idt.gate(Vector::FIRST_INTERRUPT).ist_number();
        let mut vector = Vector(0);
        loop {
            let gate = idt.gate(vector);
            if vector.0 < Vector::FIRST_INTERRUPT.0 {
                if guard!("irqs-on-shared-stack", ist != 0 && gate.ist_number() == ist) {
                    return Err(InterruptStackError::SharedStack { vector, ist });
                }
            } else {
                let wanted = slots.wrapping_add(vector.0 as u64 * SLOT_BYTES);
                // There is no setter that gives two of them different stacks.
                if guard!("irqs-on-no-stack", gate.ist_number() == 0) {
                    return Err(InterruptStackError::NoStack { vector });
                }
                if guard!("irqs-on-other-stub", gate.handler() != wanted) {
                    return Err(InterruptStackError::OtherStub {
                        vector,
                        handler: gate.handler(),
                        wanted,
                    });
                }
            }
            if vector.0 == u8::MAX {
                return Ok(Self(FlagMask::REQUIRED_FLAGS.difference(Rflags::INTERRUPT_ENABLE)));
            }
            vector.0 += 1;
        }
    }

    /// The image for `IA32_FMASK`: [`FlagMask::REQUIRED`] without IF.
    #[must_use]
    pub const fn mask(self) -> Fmask {
        Fmask::from_bits(self.0.bits())
    }
}
