//! Builders of frames that leave by IRET: program start, fork child, signal return; and the start of a kernel thread.
//!
//! Each takes values from somewhere else (an ELF header, a signal frame, a debugger) and writes a [`TrapFrame`] from which
//! [`decide`](crate::decide()) will let the kernel leave. What the values may not choose is not asked for: CS and SS come
//! from the rules, IF is set, IOPL stays what it was. So no builder can be made to return to ring 0.
//!
//! The exit examines the frame again; that a builder was used is no reason to trust it.

use core::error::Error;
use core::fmt;

use entry_core::TrapFrame;
use entry_core::rflags::Rflags;
use entry_core::segment::SegmentLayout;

use crate::decide::{guard, refuse_target};
use crate::refusal::Refusal;
use crate::rules::RuleSet;

/// Which instruction set user code is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeSize {
    /// 64-bit code.
    Bits64,
    /// 32-bit code, where the rules allow it.
    Bits32,
}

impl CodeSize {
    pub(crate) const fn selector(self, rules: &RuleSet) -> u64 {
        match self {
            Self::Bits64 => rules.code64,
            Self::Bits32 => rules.layout_code32,
        }
    }
}

/// Flags that a program starts with: IF, and bit 1.
const START: u64 = Rflags::INTERRUPT_ENABLE.union(Rflags::ALWAYS_ONE).bits();

/// Flags that values from outside the kernel may set. The rest of RFLAGS is the kernel's: IF is forced, IOPL is kept, and NT,
/// VM, VIF, VIP and reserved bits are dropped.
pub(crate) const SETTABLE: u64 = Rflags::ARITHMETIC
    .union(Rflags::TRAP)
    .union(Rflags::DIRECTION)
    .union(Rflags::RESUME)
    .union(Rflags::ALIGNMENT_CHECK)
    .union(Rflags::IDENTIFICATION)
    .bits();

/// `wanted` reduced to what it may choose, on top of what `current` says about IOPL.
pub(crate) const fn sanitised(wanted: u64, current: u64, rules: &RuleSet) -> u64 {
    let settable = if guard!("sanitise-flags", true) {
        wanted & SETTABLE
    } else {
        wanted
    };
    let iopl = if guard!("builder-io-privilege", !rules.allows_io_privilege) {
        0
    } else {
        current & Rflags::IO_PRIVILEGE_LEVEL.bits()
    };
    let forced = if guard!("force-interrupts", true) {
        START
    } else {
        Rflags::ALWAYS_ONE.bits()
    };
    settable | iopl | forced
}

/// The frame of a program that starts: the first entry to user mode, or what exec leaves behind.
///
/// Every register but RIP and RSP is 0, so nothing of the kernel or of the program before leaks. RFLAGS is `0x202`.
///
/// ```
/// use entry_core::address::{UserLimit, Width};
/// use entry_core::segment::SegmentLayout;
/// use entry_sysret::iret::{CodeSize, program_start};
/// use entry_sysret::{Refusal, RuleSet};
///
/// let rules = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
/// let frame = program_start(&rules, CodeSize::Bits64, 0x40_1000, 0x7fff_0000_0000)?;
/// assert!(frame.is_user());
/// assert_eq!(frame.rflags(), 0x202);
///
/// let kernel = 0xffff_ffff_8000_0000;
/// assert_eq!(program_start(&rules, CodeSize::Bits64, kernel, 0), Err(Refusal::KernelRip { rip: kernel }));
/// # Ok::<(), Refusal>(())
/// ```
///
/// # Errors
///
/// The [`Refusal`] that the exit would meet: RIP, or 32-bit code where the rules don't allow it.
pub const fn program_start(rules: &RuleSet, size: CodeSize, rip: u64, rsp: u64) -> Result<TrapFrame, Refusal> {
    let cs = size.selector(rules);
    if let Err(refusal) = check_target(rules, cs, rules.data, rip) {
        return Err(refusal);
    }
    let mut frame = TrapFrame::zeroed();
    frame.mark_built();
    frame.set_rip(rip);
    frame.set_cs(cs);
    frame.set_rflags(START);
    frame.set_rsp(rsp);
    frame.set_ss(rules.data);
    Ok(frame)
}

/// What the exit would refuse about CS, SS and RIP, before anything is written.
pub(crate) const fn check_target(rules: &RuleSet, cs: u64, ss: u64, rip: u64) -> Result<(), Refusal> {
    if guard!("builder-target", true)
        && let Some(refusal) = refuse_target(cs, ss, rip, rules)
    {
        return Err(refusal);
    }
    Ok(())
}

/// The frame of a fork child: the parent's, with 0 in RAX and perhaps another stack.
///
/// The whole frame is copied, marks included: the child of an untouched system call leaves by SYSRET as its parent does.
///
/// ```
/// use entry_core::TrapFrame;
/// use entry_sysret::iret::fork_child;
/// let mut parent = TrapFrame::zeroed();
/// parent.set_rax(57);
/// parent.set_rbx(7);
/// let child = fork_child(&parent, Some(0x7000_0000));
/// assert_eq!((child.rax(), child.rbx(), child.rsp()), (0, 7, 0x7000_0000));
/// ```
#[must_use]
pub fn fork_child(parent: &TrapFrame, stack: Option<u64>) -> TrapFrame {
    let mut child = parent.clone();
    child.set_return_value(0);
    if let Some(rsp) = stack {
        child.set_rsp(rsp);
    }
    child
}

/// The registers of a program as someone outside the kernel wrote them down: a signal frame, a debugger.
///
/// Any pattern is a value; [`restore`] decides what of it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the registers of their names")]
pub struct SavedContext {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub rsp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
    pub cs: u16,
    pub ss: u16,
}

impl SavedContext {
    /// What `frame` holds, for a signal frame or a debugger to read.
    #[must_use]
    pub const fn of(frame: &TrapFrame) -> Self {
        Self {
            rax: frame.rax(),
            rbx: frame.rbx(),
            rcx: frame.rcx(),
            rdx: frame.rdx(),
            rsi: frame.rsi(),
            rdi: frame.rdi(),
            rbp: frame.rbp(),
            rsp: frame.rsp(),
            r8: frame.r8(),
            r9: frame.r9(),
            r10: frame.r10(),
            r11: frame.r11(),
            r12: frame.r12(),
            r13: frame.r13(),
            r14: frame.r14(),
            r15: frame.r15(),
            rip: frame.rip(),
            rflags: frame.rflags(),
            cs: (frame.cs() & 0xffff) as u16,
            ss: (frame.ss() & 0xffff) as u16,
        }
    }
}

/// Makes `frame` resume at a context that came from outside the kernel: what sigreturn and a debugger's register write do.
///
/// | from the context | what becomes of it |
/// |---|---|
/// | general registers, RSP | taken as they are |
/// | RIP | refused unless it is a user address |
/// | CS, SS | the RPL is made 3, then refused unless the rules list it |
/// | CF, PF, AF, ZF, SF, OF, TF, DF, RF, AC, ID | taken |
/// | IF | 1 |
/// | IOPL | as in `frame` if the rules allow any, else 0 |
/// | NT, VM, VIF, VIP, reserved | 0 |
///
/// RCX and R11 are live afterwards, so the frame leaves by IRET unless they equal RIP and RFLAGS.
///
/// # Errors
///
/// The [`Refusal`] that the exit would meet; `frame` is unchanged then.
pub const fn restore(frame: &mut TrapFrame, rules: &RuleSet, context: &SavedContext) -> Result<(), Refusal> {
    let rpl = if guard!("force-rpl", true) { 3 } else { 0 };
    let cs = context.cs as u64 | rpl;
    let ss = context.ss as u64 | rpl;
    if let Err(refusal) = check_target(rules, cs, ss, context.rip) {
        return Err(refusal);
    }
    let rflags = sanitised(context.rflags, frame.rflags(), rules);
    if guard!("restore-marks", true) {
        frame.mark_built();
    }
    frame.set_rax(context.rax);
    frame.set_rbx(context.rbx);
    frame.set_rcx(context.rcx);
    frame.set_rdx(context.rdx);
    frame.set_rsi(context.rsi);
    frame.set_rdi(context.rdi);
    frame.set_rbp(context.rbp);
    frame.set_rsp(context.rsp);
    frame.set_r8(context.r8);
    frame.set_r9(context.r9);
    frame.set_r10(context.r10);
    frame.set_r11(context.r11);
    frame.set_r12(context.r12);
    frame.set_r13(context.r13);
    frame.set_r14(context.r14);
    frame.set_r15(context.r15);
    frame.set_rip(context.rip);
    frame.set_rflags(rflags);
    frame.set_cs(cs);
    frame.set_ss(ss);
    Ok(())
}

/// Why a kernel thread can't be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelThreadError {
    /// The top of the stack is 0 or not a multiple of 16.
    BadStack {
        /// The address given as the top.
        top: u64,
    },
}

impl fmt::Display for KernelThreadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadStack { top } => write!(f, "top of stack {top:#x} is 0 or not a multiple of 16"),
        }
    }
}

impl Error for KernelThreadError {}

/// A kernel thread that has not run: IRET within ring 0 starts it.
///
/// It is no [`TrapFrame`] on purpose: the exits refuse frames with a kernel CS, and this one never passes through them.
#[derive(Debug)]
pub struct KernelThread {
    cs: u64,
    ss: u64,
    rflags: u64,
    rsp: u64,
    entry: extern "sysv64" fn(u64) -> !,
    argument: u64,
}

impl KernelThread {
    /// A thread that runs `entry(argument)` on the stack that ends at `stack_top`, with interrupts on.
    ///
    /// # Errors
    ///
    /// [`KernelThreadError::BadStack`].
    pub const fn new(
        layout: &SegmentLayout,
        entry: extern "sysv64" fn(u64) -> !,
        argument: u64,
        stack_top: u64,
    ) -> Result<Self, KernelThreadError> {
        if guard!("kernel-stack", stack_top == 0 || !stack_top.is_multiple_of(16)) {
            return Err(KernelThreadError::BadStack { top: stack_top });
        }
        Ok(Self {
            cs: layout.kernel_code().bits() as u64,
            ss: layout.kernel_data().bits() as u64,
            rflags: START,
            // As after a call: the return address is a 0, where a backtrace ends.
            rsp: stack_top - 8,
            entry,
            argument,
        })
    }

    /// Leaves interrupts off in the thread until it turns them on.
    #[must_use]
    pub const fn with_interrupts_off(self) -> Self {
        Self {
            rflags: Rflags::ALWAYS_ONE.bits(),
            ..self
        }
    }

    /// Leaves the present stack for good and starts the thread.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0, and CS and SS of the layout are loaded in the GDT.
    /// 2. The 8 bytes below the top of the stack are mapped and writable, and nothing else uses the stack.
    /// 3. Nothing on the present stack is needed again.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*: in 64-bit mode SS and RSP are popped for a return to the same
    /// privilege level too.
    pub unsafe fn start(self) -> ! {
        // SAFETY: by conditions 1 and 2 IRETQ stays in ring 0 and the stack is good; by condition 3 nothing is lost.
        unsafe {
            core::arch::asm!(
                "mov qword ptr [{rsp}], 0",
                "push {ss}",
                "push {rsp}",
                "push {rflags}",
                "push {cs}",
                "push {entry}",
                "xor ebp, ebp",
                "iretq",
                ss = in(reg) self.ss,
                rsp = in(reg) self.rsp,
                rflags = in(reg) self.rflags,
                cs = in(reg) self.cs,
                entry = in(reg) self.entry,
                in("rdi") self.argument,
                options(noreturn),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::KernelThread;
    use std::sync::mpsc::{Sender, channel};
    use std::vec::Vec;

    extern "sysv64" fn entry(argument: u64) -> ! {
        let here = &raw const argument as u64;
        let sender = core::ptr::with_exposed_provenance::<Sender<(u64, u64)>>(usize::try_from(argument).unwrap());
        // SAFETY: the test leaked the sender whose address it passed.
        let sender = unsafe { &*sender };
        sender.send((argument, here)).unwrap();
        loop {
            std::thread::park();
        }
    }

    /// IRETQ to the same ring is no privileged instruction: with the selectors of this process it runs on the host.
    #[test]
    fn a_kernel_thread_starts_on_its_stack_with_its_argument() {
        let (cs, ss): (u64, u64);
        // SAFETY: reads two segment registers.
        unsafe {
            core::arch::asm!("mov {0:e}, cs", "mov {1:e}, ss", out(reg) cs, out(reg) ss, options(nomem, nostack));
        }
        let (sender, receiver) = channel::<(u64, u64)>();
        let sender = std::boxed::Box::leak(std::boxed::Box::new(sender));
        let argument = core::ptr::from_mut(sender).expose_provenance() as u64;
        let stack: &'static mut [u128] = Vec::leak(std::vec![0u128; 1 << 16]);
        let range = stack.as_ptr_range();
        let (low, top) = (range.start as u64, range.end as u64);
        let layout = entry_core::segment::SegmentLayout::NATURAL;
        let thread = KernelThread {
            cs,
            ss,
            ..KernelThread::new(&layout, entry, argument, top).unwrap()
        };
        std::thread::spawn(move || {
            // SAFETY: 1. holds for ring 3 with the selectors in use. 2. the stack is leaked and this thread's alone.
            // 3. the closure owns nothing else.
            unsafe { thread.start() }
        });
        let (seen, here) = receiver.recv().unwrap();
        assert_eq!(seen, argument);
        assert!(low < here && here < top);
    }
}
