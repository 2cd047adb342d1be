//! User mode as a call: [`UserContext::run`] goes there and comes back with a [`UserEvent`].
//!
//! A kernel that is built around a loop, "run the program, see what it wants, run it again", implements [`RunKernel`] and
//! installs the stubs of [`Events`], a [`Kernel`] whose handlers do one thing: they resume the caller of `run`. The stubs,
//! the frame, the exit decision and its refusals are the same as for handlers.
//!
//! ```text
//!  run: RBX, RBP, R12–R15 pushed, RSP kept ──► frame copied to the run stack ──► decide ──► SYSRET │ IRET
//!                                                                                              │
//!  run returns the event ◄── frame copied back ◄── RSP as it was ◄── handler ◄── stub ◄── user mode
//! ```
//!
//! # Stacks
//!
//! Events from user mode arrive on the CPU's [`RunStack`], and nothing stays on it: the frame is copied to the context
//! before interrupts can come on, and the caller goes on with its own stack. RSP points into a context at no time, so an NMI, a
//! #MC, or a fault of IRETQ finds a stack below RSP and not whatever lies before a context in memory. A thread may be moved
//! to another CPU between two runs.
//!
//! # Base addresses
//!
//! The bases of FS and GS belong to the context. `run` writes the two MSRs when something else is loaded on this CPU, which
//! it knows without reading them; a context that is run again and again costs two comparisons. With
//! [`Options::FSGSBASE`] programs write their bases themselves, and `run` reads them back after each event. Without, a
//! program can still load a selector into FS or GS, which makes the base 0 until the context's is loaded anew.
//!
//! ```
//! use entry_core::address::{UserLimit, Width};
//! use entry_core::kernel::Baseline;
//! use entry_core::msr::Cpu;
//! use entry_core::plan::Installed;
//! use entry_core::{IrqOff, NoTracking, SegmentLayout, TrapFrame};
//! use entry_sysret::context::{RunKernel, UserContext, UserEvent};
//! use entry_sysret::{RuleSet, Rules, SysretOrIret};
//!
//! struct MyKernel;
//!
//! impl Rules for MyKernel {
//!     const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
//! }
//!
//! // SAFETY: 1. to 5. by the code that sets each CPU up with `StubTable::of::<Events<MyKernel>, Baseline>()`; the handlers
//! // change no frame and turn no interrupts on.
//! unsafe impl RunKernel for MyKernel {
//!     type Exit = SysretOrIret<Self>;
//!     type Tracking = NoTracking;
//!     type Msrs = Cpu;
//!     const LAYOUT: SegmentLayout = SegmentLayout::NATURAL;
//!
//!     fn kernel_exception(frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
//!         panic!("{frame}")
//!     }
//!     fn kernel_interrupt(_frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
//!         irq // tell the interrupt controller
//!     }
//!     fn paranoid(frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
//!         panic!("{frame}")
//!     }
//!     fn nested_paranoid(frame: &TrapFrame) -> ! {
//!         panic!("{frame}")
//!     }
//! }
//!
//! /// Runs a program until it does something that isn't a system call.
//! ///
//! /// # Safety
//! ///
//! /// As [`UserContext::run`].
//! unsafe fn serve(context: &mut UserContext, mut irq: IrqOff, installed: &Installed) -> IrqOff {
//!     loop {
//!         // SAFETY: by the caller.
//!         let (event, off) = unsafe { context.run::<MyKernel, Baseline>(irq, installed) };
//!         let UserEvent::SystemCall = event else { return off };
//!         let on = off.enable();
//!         let frame = context.frame_mut();
//!         frame.set_return_value(frame.rax() + 1); // a system call that adds 1 to its number
//!         irq = on.disable();
//!     }
//! }
//! ```

use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr;

use entry_core::address::AddressError;
use entry_core::kernel::{Exit, Kernel, Leave, Options, Tracking};
use entry_core::msr::{FsBase, KernelGsBase, Msr, Register};
use entry_core::plan::Installed;
use entry_core::vector::Vector;
use entry_core::{EntryKind, IrqOff, PerCpuHeader, SegmentLayout, TrapFrame, UserEntry, UserReturn};
use static_assertions::const_assert_eq;

use crate::decide::guard;
use crate::refusal::Refusal;
use crate::rules::RuleSet;

/// Why user mode was left, or not entered at all. Registers, entry kind and all are in the context's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UserEvent<R = Refusal> {
    /// A system call; [`TrapFrame::entry_kind`] tells by which instruction.
    SystemCall,
    /// An exception other than #PF. #DB is one; NMI, #MC and #DF go to [`RunKernel::paranoid`].
    Exception {
        /// Its vector.
        vector: Vector,
        /// What [`TrapFrame::error_code`] says: 0 if it has none.
        error_code: u64,
    },
    /// A page fault.
    PageFault {
        /// CR2.
        address: u64,
        /// The error code.
        error_code: u64,
    },
    /// A maskable interrupt. The caller owes the interrupt controller its acknowledgement.
    Interrupt {
        /// Its vector.
        vector: u8,
    },
    /// IRETQ could not load what the frame says and faulted in the kernel; the frame is as it was given to `run`.
    IretFault {
        /// The vector of the fault.
        vector: Vector,
        /// Its error code: a selector, or 0.
        error_code: u64,
    },
    /// The exit refuses the frame. User mode was not entered, and won't be until the frame is repaired.
    Refused(R),
    /// The work flag of the [`PerCpuHeader`] is set. The caller clears it, does the work and runs the context again; if an NMI in
    /// user mode set it, user mode was left for it.
    Work,
}

impl<R: fmt::Display> fmt::Display for UserEvent<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SystemCall => f.write_str("system call"),
            Self::Exception { vector, error_code } => write!(f, "exception {vector}, error code {error_code:#x}"),
            Self::PageFault { address, error_code } => {
                write!(f, "page fault at {address:#x}, error code {error_code:#x}")
            }
            Self::Interrupt { vector } => write!(f, "interrupt {vector}"),
            Self::IretFault { vector, error_code } => write!(f, "iret faulted: {vector}, error code {error_code:#x}"),
            Self::Refused(refusal) => write!(f, "the exit refuses: {refusal}"),
            Self::Work => f.write_str("work is pending"),
        }
    }
}

/// What is left of a [`Kernel`] when events from user mode come back from [`UserContext::run`]: events in the kernel.
///
/// # Safety
///
/// An implementation states, for every CPU on which the stubs of [`Events`] are installed:
///
/// 1. [`RunKernel::LAYOUT`] is the layout of the GDT that is loaded, and the SYSCALL and SYSENTER MSRs were computed from it.
/// 2. In the kernel, GS base is the address of a bound [`PerCpuHeader`] whose kernel stack is the top of a [`RunStack`] of that
///    CPU alone; TSS.RSP0 is the same, or the header's entry stack with [`Options::KPTI`]. Neither changes.
/// 3. The IST slots of NMI, #MC, #DB and #DF hold [`IstStack`](entry_core::percpu::IstStack)s bound to that header, no two the same.
/// 4. The code is compiled without a red zone and without SSE, or its handlers save what they use of it.
/// 5. Of CPU, exit and handlers, what [`Kernel`] demands by its 1 and by 5 to 8.
pub unsafe trait RunKernel: Sized + 'static {
    /// How this kernel leaves for user mode.
    type Exit: Exit;
    /// Who is told about the border.
    type Tracking: Tracking;
    /// Where the bases of FS and GS are written: [`Cpu`](entry_core::msr::Cpu).
    type Msrs: Msr + Default;
    /// The order of segment descriptors.
    const LAYOUT: SegmentLayout;

    /// As [`Kernel::kernel_exception`].
    fn kernel_exception(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff;

    /// As [`Kernel::kernel_interrupt`].
    fn kernel_interrupt(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff;

    /// As [`Kernel::paranoid`]; from user mode it runs on the [`RunStack`], and goes back there unless it sets the work flag.
    fn paranoid(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff;

    /// As [`Kernel::nested_paranoid`].
    fn nested_paranoid(frame: &TrapFrame) -> !;
}

/// The [`Kernel`] whose stubs a CPU gets where `K` runs contexts: events from user mode resume the caller of
/// [`UserContext::run`].
///
/// Nothing else may enter user mode on such a CPU, or there would be no caller to resume.
#[derive(Debug)]
pub struct Events<K>(PhantomData<K>);

type RefusalOf<K> = <<K as RunKernel>::Exit as Exit>::Refusal;

// SAFETY: 1., 3. and 4. are those of `RunKernel`. 2. By its 2; whoever runs has the stack to itself, since nothing on it
// outlives an event, in which interrupts are off. 5. to 8. By its 5: the handlers are its own.
unsafe impl<K: RunKernel> Kernel for Events<K> {
    type Exit = K::Exit;
    type Tracking = K::Tracking;
    const LAYOUT: SegmentLayout = K::LAYOUT;

    #[inline(always)]
    fn syscall(_frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        resume::<K>(UserEvent::SystemCall, &entry.into_irq_off())
    }

    fn user_exception(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        let (vector, error_code) = (Vector(frame.vector()), frame.error_code());
        let event = if frame.entry_kind() == Some(EntryKind::IretFault) {
            UserEvent::IretFault { vector, error_code }
        } else {
            UserEvent::Exception { vector, error_code }
        };
        resume::<K>(event, &entry.into_irq_off())
    }

    fn user_page_fault(frame: &mut TrapFrame, address: u64, entry: UserEntry) -> IrqOff {
        if frame.entry_kind() == Some(EntryKind::IretFault) {
            return Self::user_exception(frame, entry);
        }
        let error_code = frame.error_code();
        resume::<K>(UserEvent::PageFault { address, error_code }, &entry.into_irq_off())
    }

    fn user_interrupt(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        let vector = frame.vector();
        resume::<K>(UserEvent::Interrupt { vector }, &entry.into_irq_off())
    }

    fn kernel_exception(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        K::kernel_exception(frame, irq)
    }

    fn kernel_interrupt(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        K::kernel_interrupt(frame, irq)
    }

    fn paranoid(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        K::paranoid(frame, irq)
    }

    fn nested_paranoid(frame: &TrapFrame) -> ! {
        K::nested_paranoid(frame)
    }

    fn work(_frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        resume::<K>(UserEvent::Work, &irq)
    }

    fn refused(_frame: &mut TrapFrame, refusal: RefusalOf<K>, irq: IrqOff) -> IrqOff {
        resume::<K>(UserEvent::Refused(refusal), &irq)
    }
}

/// The stack of a CPU on which events from user mode arrive, with what [`UserContext::run`] keeps for each CPU above its top.
///
/// ```
/// use entry_sysret::context::RunStack;
/// static STACK: RunStack<8192> = RunStack::new();
/// assert_eq!(STACK.top() % 16, 0);
/// ```
#[derive(Debug)]
#[repr(C, align(16))]
pub struct RunStack<const BYTES: usize> {
    _stack: UnsafeCell<[u8; BYTES]>,
    words: UnsafeCell<Words>,
}

/// What lies above the top.
#[derive(Debug)]
#[repr(C)]
struct Words {
    /// RSP of the caller of `run`, behind what it pushed.
    rsp: u64,
    /// Counts how often bases were loaded here.
    loads: u64,
}

const_assert_eq!(offset_of!(RunStack<4096>, words), 4096);

// SAFETY: both parts are used by the CPU that the stack belongs to, with interrupts off, and by stubs running on it.
unsafe impl<const BYTES: usize> Sync for RunStack<BYTES> {}

impl<const BYTES: usize> RunStack<BYTES> {
    /// An empty stack. `BYTES` has to be a multiple of 16, and at least 4096; [`RunKernel::paranoid`] runs on it, too.
    #[must_use]
    pub const fn new() -> Self {
        const {
            assert!(
                BYTES.is_multiple_of(16) && BYTES >= 4096,
                "the stack size is a multiple of 16, and at least 4096"
            );
        };
        Self {
            _stack: UnsafeCell::new([0; BYTES]),
            words: UnsafeCell::new(Words { rsp: 0, loads: 0 }),
        }
    }

    /// The address above the stack: what goes into the header, and into the TSS.
    #[must_use]
    pub fn top(&'static self) -> u64 {
        // The whole is exposed: the frame below the words is reached from this address, too.
        (ptr::from_ref(self).expose_provenance() + offset_of!(Self, words)) as u64
    }
}

impl<const BYTES: usize> Default for RunStack<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}

/// The words of this CPU.
///
/// # Safety
///
/// 1. GS base is the address of a header as [`RunKernel`] demands.
unsafe fn words(irq: &IrqOff) -> *mut Words {
    // SAFETY: condition 1.
    let header = unsafe { PerCpuHeader::current(irq) };
    #[expect(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]
    let top = header.kernel_stack() as usize;
    ptr::with_exposed_provenance_mut(top)
}

/// The registers of a program: the frame that it is entered with, and the bases of FS and GS.
///
/// It is plain data and may lie anywhere. Whatever the frame holds is safe: the exit decides.
#[derive(Debug)]
pub struct UserContext {
    frame: TrapFrame,
    fs_base: FsBase,
    gs_base: KernelGsBase,
    /// Which CPU has loaded the bases, and which load of that CPU it was. Null if none has since they were set.
    loaded: (*const (), u64),
}

// SAFETY: the pointer is compared and never followed.
unsafe impl Send for UserContext {}

// SAFETY: as above.
unsafe impl Sync for UserContext {}

impl Clone for UserContext {
    /// A context with the same registers, of which nothing is loaded anywhere: for a fork child, see
    /// [`fork_child`](crate::iret::fork_child).
    fn clone(&self) -> Self {
        Self {
            frame: self.frame.clone(),
            fs_base: self.fs_base,
            gs_base: self.gs_base,
            loaded: NOT_LOADED,
        }
    }
}

const NOT_LOADED: (*const (), u64) = (ptr::null(), 0);

impl UserContext {
    /// A context that enters user mode with `frame`, which a [builder](crate::iret) made, and bases of 0.
    #[must_use]
    pub const fn new(frame: TrapFrame) -> Self {
        Self {
            frame,
            fs_base: FsBase::from_bits(0),
            gs_base: KernelGsBase::from_bits(0),
            loaded: NOT_LOADED,
        }
    }

    /// The registers.
    #[must_use]
    pub const fn frame(&self) -> &TrapFrame {
        &self.frame
    }

    /// The registers, to be changed.
    pub const fn frame_mut(&mut self) -> &mut TrapFrame {
        &mut self.frame
    }

    /// The base of FS.
    #[must_use]
    pub const fn fs_base(&self) -> u64 {
        self.fs_base.bits()
    }

    /// The base of GS.
    #[must_use]
    pub const fn gs_base(&self) -> u64 {
        self.gs_base.bits()
    }

    /// Sets the base of FS.
    ///
    /// # Errors
    ///
    /// [`AddressError::NotUser`]; nothing is changed then.
    pub const fn set_fs_base(&mut self, base: u64, rules: &RuleSet) -> Result<(), AddressError> {
        match FsBase::new_user(base, rules.limit) {
            Ok(base) => self.fs_base = base,
            Err(error) => return Err(error),
        }
        self.loaded = NOT_LOADED;
        Ok(())
    }

    /// Sets the base of GS.
    ///
    /// # Errors
    ///
    /// As [`UserContext::set_fs_base`].
    pub const fn set_gs_base(&mut self, base: u64, rules: &RuleSet) -> Result<(), AddressError> {
        match KernelGsBase::new_user(base, rules.limit) {
            Ok(base) => self.gs_base = base,
            Err(error) => return Err(error),
        }
        self.loaded = NOT_LOADED;
        Ok(())
    }

    /// Enters user mode with the registers of this context and returns with what ended that, the registers as they are then.
    ///
    /// The order is that of [`entry_core::kernel`]: with interrupts off, work is tested for, the exit decides, [`Tracking`] is told,
    /// and the exit leaves. Work and refusals come back as events before anything is entered. Interrupts are off on return, too.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0, and this CPU has the stubs of [`Events<K>`] for the options `O` in its IDT, set up as [`RunKernel`] demands; that its
    ///    system-call registers lead to them, `_installed` proves.
    /// 2. The page tables that are active let user mode reach what the program may have and nothing else.
    /// 3. Nothing but this function writes `IA32_FS_BASE` and `IA32_KERNEL_GS_BASE` on this CPU. CR4.FSGSBASE is set if and
    ///    only if [`Options::FSGSBASE`] is.
    /// 4. RSP is a stack of the caller's, not the [`RunStack`].
    /// 5. The bases of this context were set under rules for the paging mode in use: WRMSR of another is #GP.
    pub unsafe fn run<K: RunKernel, O: Options>(
        &mut self,
        irq: IrqOff,
        _installed: &Installed,
    ) -> (UserEvent<RefusalOf<K>>, IrqOff) {
        // SAFETY: condition 1.
        let header = unsafe { PerCpuHeader::current(&irq) };
        if guard!("run-work", header.is_work_pending()) {
            return (UserEvent::Work, irq);
        }
        let leave = match choose::<K>(&self.frame, &irq) {
            Ok(leave) => leave,
            Err(refusal) if guard!("run-refusal", true) => return (UserEvent::Refused(refusal), irq),
            Err(_) => Leave::Iret,
        };
        // SAFETY: condition 1.
        let words = unsafe { words(&irq) };
        // SAFETY: 1. to 3. conditions 1 and 3.
        unsafe { self.load_bases::<K>(words) };
        let frame = words.cast::<TrapFrame>().wrapping_sub(1);
        // SAFETY: it is the top of the run stack, which nothing uses by condition 4.
        unsafe { frame.copy_from_nonoverlapping(&raw const self.frame, 1) };
        // SAFETY: 1. The exit is chosen, and the next call jumps to it. 2. This is the only one; the stubs report the way back.
        // 3. Work was tested for above, with interrupts off.
        let _ready: UserReturn = unsafe { K::Tracking::user_enter(irq) };
        // SAFETY: 1. Interrupts are off and GS base is the kernel's. 2. The frame was just written, of which `leave` was said.
        // 3. It is below the words.
        let event = unsafe { enter_user::<K, O>(frame, leave) };
        // SAFETY: handlers are entered with interrupts off, and `resume` keeps them so.
        let irq = unsafe { IrqOff::assume() };
        // SAFETY: the stub of the event built its frame at the top of the stack, where nothing has come after it.
        unsafe { frame.copy_to_nonoverlapping(&raw mut self.frame, 1) };
        if guard!("run-reads-bases", O::FSGSBASE) {
            // SAFETY: 1. condition 1. 2. Every x86-64 CPU has it.
            self.fs_base = unsafe { FsBase::read(&mut K::Msrs::default()) };
            // SAFETY: as above; the stub has swapped.
            self.gs_base = unsafe { KernelGsBase::read(&mut K::Msrs::default()) };
        }
        // SAFETY: `resume` gives the address of one, on the run stack, where nothing has overwritten it: interrupts are off,
        // and what arrives all the same has a stack of its own.
        (unsafe { event.read() }, irq)
    }

    /// Writes the bases unless they are loaded on this CPU.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0.
    /// 2. `words` are this CPU's, and nothing else refers to them.
    /// 3. The two MSRs hold what they were last given here, or what the context that was entered last has made of it.
    #[inline(always)]
    unsafe fn load_bases<K: RunKernel>(&mut self, words: *mut Words) {
        // SAFETY: condition 2.
        let loads = unsafe { &mut (*words).loads };
        if guard!("run-bases-loaded", self.loaded == (words.cast_const().cast(), *loads)) {
            return;
        }
        *loads += 1;
        self.loaded = (words.cast_const().cast(), *loads);
        // SAFETY: 1. condition 1. 2. Every x86-64 CPU has it; the base is a user address by condition 5 of `run`, or was read
        // there. 3. The kernel does not use FS, by condition 3 of `run`.
        unsafe { self.fs_base.write(&mut K::Msrs::default()) };
        // SAFETY: 1. and 2. as above. 3. It is the user's until SWAPGS.
        unsafe { self.gs_base.write(&mut K::Msrs::default()) };
    }
}

/// The exit's decision, the cheap question first.
#[inline(always)]
fn choose<K: RunKernel>(frame: &TrapFrame, irq: &IrqOff) -> Result<Leave, RefusalOf<K>> {
    match K::Exit::choose_plain(frame, irq) {
        Some(leave) => Ok(leave),
        None => K::Exit::choose(frame, irq),
    }
}

/// Resumes the caller of [`UserContext::run`].
#[inline(always)]
fn resume<K: RunKernel>(event: UserEvent<RefusalOf<K>>, irq: &IrqOff) -> ! {
    // SAFETY: handlers run in the kernel.
    let words = unsafe { words(irq) };
    // SAFETY: they are this CPU's, interrupts are off, and nothing refers to them while user mode runs.
    let rsp = unsafe { (*words).rsp };
    // SAFETY: 1. `enter_user` wrote the word when it left for the user mode that was now left. 2. The event lies on the run stack,
    // which stays as it is until `run` has read it. The frames of stub and handler, which own nothing, are abandoned.
    unsafe { come_back(rsp, (&raw const event).cast()) }
}

/// Leaves for user mode with `frame`; returns when [`come_back`] is called, with the address that it was given.
///
/// | register | in | out |
/// |---|---|---|
/// | RDI | `frame` | clobbered |
/// | ESI | `leave` | clobbered |
/// | RAX | – | the event |
/// | RBX, RBP, R12–R15, RSP | caller's | caller's |
///
/// **Windows**: none: RSP is the caller's stack, then the run stack; GS base is the kernel's. The exit that is jumped to has
/// its own.
///
/// # Safety
///
/// 1. CPL is 0, interrupts are off, GS base is the kernel's, and a [`UserReturn`] was made.
/// 2. `frame` is a frame of which the exit said `leave`.
/// 3. It lies at the top of this CPU's [`RunStack`], below its words.
#[unsafe(naked)]
unsafe extern "sysv64" fn enter_user<K: RunKernel, O: Options>(
    frame: *mut TrapFrame,
    leave: Leave,
) -> *const UserEvent<RefusalOf<K>> {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi + {saved}], rsp",
        "mov eax, esi",
        "mov rsp, rdi",
        // RSP is the frame, EAX the way to leave by.
        "jmp {leave}",
        "int3",
        saved = const TrapFrame::SIZE + offset_of!(Words, rsp),
        leave = sym <K::Exit as Exit>::leave::<O>,
    )
}

/// Returns from [`enter_user`] with `event`, on the stack that it was called on.
///
/// | register | in | out |
/// |---|---|---|
/// | RDI | RSP that `enter_user` kept | – |
/// | RSI | the event | – |
/// | RAX | any | the event |
/// | RBX, RBP, R12–R15 | any | those of the caller of `enter_user` |
///
/// **Windows**: none.
///
/// # Safety
///
/// 1. `rsp` was written by a call of [`enter_user`] that has not returned.
/// 2. Nothing on the present stack is needed again but `event`, and RFLAGS.IF and RFLAGS.DF are 0.
#[unsafe(naked)]
unsafe extern "sysv64" fn come_back(rsp: u64, event: *const ()) -> ! {
    naked_asm!(
        "mov rax, rsi",
        "mov rsp, rdi",
        // RSP is the stack of the caller of `run`.
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        "int3",
    )
}
