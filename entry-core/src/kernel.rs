//! What a kernel gives to the entry stubs, and what an exit gives to a kernel.
//!
//! Everything between an event and the handler is generic over [`Kernel`]: a kernel implements the trait once, names
//! its [`Exit`] and its [`Tracking`], and never sees a symbol name or an offset. The order of events is fixed here:
//!
//! 1. the stub builds the [`TrapFrame`] with interrupts off and kernel GS in place;
//! 2. [`Tracking`] learns that user mode was left;
//! 3. the handler runs, and has to give back the proof that interrupts are off;
//! 4. pending work is done until there is none, with interrupts off from the last test on;
//! 5. [`Exit`] looks at the frame: SYSRET, IRET, or a refusal, which goes to [`Kernel::refused`] and begins step 4 again;
//! 6. [`Tracking`] learns that user mode is next, and gives the [`UserReturn`];
//! 7. [`Exit::leave`] consumes the frame.
//!
//! Steps 4 to 6 are three tests when there is nothing to do; everything else is out of line.

use crate::frame::TrapFrame;
use crate::irq::{IrqOff, UserEntry, UserReturn};
use crate::percpu::PerCpuHeader;
use crate::segment::SegmentLayout;

/// A kernel, as the stubs see it.
///
/// Handlers that are entered from user mode get a [`UserEntry`], the others a plain proof that interrupts are off. All
/// of them must return such a proof, so none can come back with interrupts on. What is owed before a return to user mode
/// is not a handler's business: the stubs' Rust half does it, in the order given [above](self).
///
/// # Safety
///
/// An implementation states, for every CPU on which its stubs are installed:
///
/// 1. [`Kernel::LAYOUT`] is the layout of the GDT that is loaded, and the SYSCALL and SYSENTER MSRs were computed from it.
///    [`Kernel::Exit`] decides by that layout, and by the [`Width`](crate::address::Width) of the paging mode in use.
/// 2. In the kernel, GS base is the address of a bound [`PerCpuHeader`] whose kernel stack belongs to the current thread;
///    TSS.RSP0 is the same stack, or the header's entry stack with [`Options::KPTI`].
/// 3. The IST slots of NMI, #MC, #DB and #DF hold [`IstStack`](crate::percpu::IstStack)s bound to that header, no two the same.
/// 4. The code is compiled without a red zone and without SSE, or its handlers save what they use of it.
/// 5. CR4.FRED is 0, and so is CR4.CET, or `SH_STK_EN` and `ENDBR_EN` of `IA32_S_CET` are: events go through the IDT, and the stubs
///    have no ENDBR64 and keep no shadow stack. Firmware may have left them on.
///
/// The frames of [`Kernel::kernel_exception`], [`Kernel::kernel_interrupt`] and [`Kernel::paranoid`] may be those of kernel
/// code, which the CPU goes on with as they say: no exit looks at them. Of those frames, as of the proof that comes with them, it
/// states that
///
/// 6. what a handler changes in one, the interrupted code can go on with;
/// 7. a handler turns interrupts on only if the frame has IF set, and never for a paranoid event in the kernel: where IF is
///    clear, the interrupted code may hold a proof of that;
/// 8. [`Kernel::paranoid`] keeps the rules that it has under *Nesting*.
pub unsafe trait Kernel: Sized + 'static {
    /// How this kernel leaves for user mode: `entry-sysret` has implementations.
    type Exit: Exit;
    /// Who is told about the border: [`NoTracking`], or a type of the `context-tracking` crate.
    type Tracking: Tracking;
    /// The order of segment descriptors.
    const LAYOUT: SegmentLayout;

    /// A system call, by whatever instruction: [`TrapFrame::entry_kind`] tells.
    fn syscall(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff;

    /// An exception in user mode; [`TrapFrame::vector`] tells which. #DB comes here too; NMI, #MC and #DF don't, nor does #PF
    /// where [`Kernel::user_page_fault`] is there for it.
    fn user_exception(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff;

    /// A page fault in user mode, at `address`: CR2, read before anything else could fault. The most frequent exception by
    /// far has a path of its own, so that the others don't pay for it.
    fn user_page_fault(frame: &mut TrapFrame, address: u64, entry: UserEntry) -> IrqOff {
        let _ = address;
        Self::user_exception(frame, entry)
    }

    /// A maskable interrupt in user mode. The handler owes the interrupt controller its acknowledgement.
    fn user_interrupt(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff;

    /// An exception in the kernel, on the stack that was in use. Returning retries the instruction unless RIP was set. The
    /// address of a #PF is in CR2, until the next one.
    fn kernel_exception(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff;

    /// A maskable interrupt in the kernel, on the stack that was in use.
    fn kernel_interrupt(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff;

    /// NMI, #MC and #DF, and #DB in the kernel: events that can arrive between any two instructions, on a stack of
    /// their own, with [`Tracking`] in any state. Allowed is what an NMI handler may do: no locks that others take, no
    /// scheduling, no user memory, and nothing that can fault.
    ///
    /// # Nesting
    ///
    /// In the kernel, these events run on the stack of their vector, and the CPU starts at the top of that stack each time:
    /// a second event of the same vector overwrites the frame of the first, which can then never return. Different
    /// vectors may nest in any order, with one exception: at the last instruction of a stub, IRETQ, the frame is still on the
    /// stack and the stack counts as free. What arrives there must not be interrupted by an event of the first's vector in turn,
    /// of which nobody would know. So, while the handler runs for an event that came from the kernel:
    ///
    /// - An NMI handler executes no IRET, neither itself nor by an exception that it takes: NMIs are blocked from the
    ///   delivery of one until the next IRET, whichever event that IRET ends. #DB and #MC that interrupt it end by IRET
    ///   too; a kernel that has breakpoints disables them (DR7) first thing in an NMI.
    /// - A #DB handler touches no breakpoint of its own, and sets no TF in the kernel.
    ///   Why it was raised, [`TrapFrame::debug_status`] says; DR6 has been cleared.
    /// - A #MC handler leaves the CPU's MCIP set until it is about to return: a second #MC then shuts the CPU down.
    ///
    /// An event from user mode is moved to the thread's stack before the handler is called, and may nest like any other
    /// exception. What breaks the rules goes to [`Kernel::nested_paranoid`] instead.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *Handling Multiple NMIs*, *Interrupt Stack Table*.
    fn paranoid(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff;

    /// A paranoid event arrived while an earlier one of its vector was still on the vector's stack, and has
    /// overwritten its frame. There is nothing to go back to; `frame` is that of the later event.
    ///
    /// By default the CPU stops.
    fn nested_paranoid(_frame: &TrapFrame) -> ! {
        loop {
            // SAFETY: CPL is 0 in the kernel; no state is left that anybody could go on with.
            unsafe { core::arch::asm!("cli", "hlt", options(nomem, nostack)) };
        }
    }

    /// Pending work before a return to user mode: rescheduling, signals. Called with interrupts off and expected to
    /// come back so; in between they may be on. Must clear the flag first ([`PerCpuHeader::clear_work_pending`]).
    fn work(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff;

    /// The exit refused the frame as it is: repair it, or make the thread end. Called again for as long as the exit refuses.
    fn refused(frame: &mut TrapFrame, refusal: <Self::Exit as Exit>::Refusal, irq: IrqOff) -> IrqOff;
}

/// The ways that the exit stub can take; what [`Exit::choose`] returns and [`Exit::leave`] finds in EAX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum Leave {
    /// SYSRETQ to 64-bit code.
    Sysret = 0,
    /// IRETQ.
    Iret = 1,
    /// SYSRETL to 32-bit code. The sign bit, so that the stub tells all three apart with one test.
    Sysret32 = 1 << 31,
}

/// A way out of the kernel: a decision in Rust and a stub that obeys it.
///
/// # Safety
///
/// 1. `choose` and the quick forms name a way only for frames with which `leave` can't fault in ring 0 or reach ring 0, save for faults
///    of IRETQ itself that the kernel repairs.
/// 2. `leave` restores the registers from the frame at RSP, swaps GS, and consumes the very words that `choose` examined.
pub unsafe trait Exit: 'static {
    /// Why a frame can't be left with.
    type Refusal: Copy + core::fmt::Debug;

    /// The answer for frames whose answer is cheap, `None` for the rest: a few tests, inlined into every Rust half.
    #[must_use]
    fn choose_plain(frame: &TrapFrame, irq: &IrqOff) -> Option<Leave>;

    /// As [`Exit::choose_plain`], for a frame that an exception or interrupt in user mode built: a kind less to tell apart.
    #[must_use]
    #[inline(always)]
    fn choose_plain_event(frame: &TrapFrame, irq: &IrqOff) -> Option<Leave> {
        Self::choose_plain(frame, irq)
    }

    /// As [`Exit::choose_plain`], for a frame that a stub of SYSENTER built.
    #[must_use]
    #[inline(always)]
    fn choose_plain_sysenter(frame: &TrapFrame, irq: &IrqOff) -> Option<Leave> {
        Self::choose_plain(frame, irq)
    }

    /// As [`Exit::choose_plain`], for a frame that the stub of SYSCALL built for 32-bit code.
    #[must_use]
    #[inline(always)]
    fn choose_plain_syscall32(frame: &TrapFrame, irq: &IrqOff) -> Option<Leave> {
        Self::choose_plain(frame, irq)
    }

    /// As [`Exit::choose_plain`], for a frame that a stub of SYSENTER built for 32-bit code.
    #[must_use]
    #[inline(always)]
    fn choose_plain_sysenter32(frame: &TrapFrame, irq: &IrqOff) -> Option<Leave> {
        Self::choose_plain(frame, irq)
    }

    /// Decides how to leave with `frame`.
    ///
    /// # Errors
    ///
    /// The reason why neither way is safe; the frame is unchanged and the CPU still in the kernel.
    fn choose(frame: &TrapFrame, irq: &IrqOff) -> Result<Leave, Self::Refusal>;

    /// Leaves for user mode. Jumped to by the stubs, never called.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0, RFLAGS.IF is 0, GS base is the kernel's.
    /// 2. RSP is the address of a [`TrapFrame`] on a kernel stack, and EAX what `choose` returned for it, unchanged since.
    /// 3. A [`UserReturn`] was made since.
    unsafe extern "sysv64" fn leave<O: Options>() -> !;

    /// Leaves by IRET: what `leave` does when EAX says so. Events, which mostly leave so, jump here.
    ///
    /// # Safety
    ///
    /// As [`Exit::leave`], for frames of which `choose` said [`Leave::Iret`].
    unsafe extern "sysv64" fn leave_by_iret<O: Options>() -> !;
}

/// What the stubs tell about the border between user mode and kernel; the default does nothing and costs nothing.
///
/// Every hook runs with interrupts off and kernel GS in place. Paranoid vectors from ring 0 use the `nmi` pair, in
/// whatever state tracking is; from user mode they are entries like any other.
///
/// # Safety
///
/// 1. No hook faults, blocks, or enables interrupts: they run where no other kernel code may.
pub unsafe trait Tracking: 'static {
    /// Whether the hooks do anything.
    const ENABLED: bool;

    /// What an exception or NMI saves on entry and gives back on exit.
    type Saved;

    /// User mode was left, by system call, exception or interrupt.
    ///
    /// # Safety
    ///
    /// 1. The CPU is at exactly that border: the first Rust that runs after the entry.
    /// 2. Each crossing is reported once, in order.
    unsafe fn user_exit(irq: &IrqOff);

    /// User mode is about to be entered: the way is chosen, nothing but [`Exit::leave`] follows.
    ///
    /// # Safety
    ///
    /// 1. The CPU is at exactly that border: no Rust runs before user mode but the return of this.
    /// 2. Each crossing is reported once, in order.
    /// 3. No work is pending, and interrupts are off since that was tested.
    unsafe fn user_enter(irq: IrqOff) -> UserReturn;

    /// An exception or interrupt arrived in the kernel, in whatever state tracking was.
    ///
    /// # Safety
    ///
    /// 1. The first Rust that runs after an entry from ring 0, and what it returns goes to
    ///    [`Tracking::exception_exit`] before that entry returns.
    unsafe fn exception_enter(irq: &IrqOff) -> Self::Saved;

    /// The end of what [`Tracking::exception_enter`] began.
    ///
    /// # Safety
    ///
    /// 1. `saved` is from the same entry, and that entry returns now.
    unsafe fn exception_exit(irq: &IrqOff, saved: Self::Saved);

    /// An NMI, #MC, #DB or #DF arrived at an arbitrary instruction of ring 0, perhaps in the middle of another hook.
    ///
    /// # Safety
    ///
    /// 1. The first Rust that runs after such an entry, and what it returns goes to [`Tracking::nmi_exit`] before that
    ///    entry returns.
    unsafe fn nmi_enter(irq: &IrqOff) -> Self::Saved;

    /// The end of what [`Tracking::nmi_enter`] began.
    ///
    /// # Safety
    ///
    /// 1. `saved` is from the same entry, and that entry returns now.
    unsafe fn nmi_exit(irq: &IrqOff, saved: Self::Saved);
}

/// No tracking: no instruction is left in the stubs.
#[derive(Clone, Copy, Debug)]
pub struct NoTracking;

// SAFETY: the hooks are empty.
unsafe impl Tracking for NoTracking {
    const ENABLED: bool = false;
    type Saved = ();

    #[inline(always)]
    unsafe fn user_exit(_irq: &IrqOff) {}

    #[inline(always)]
    unsafe fn user_enter(irq: IrqOff) -> UserReturn {
        // SAFETY: 1. and 3. by the caller's 1 and 3. 2. There is nothing to record.
        unsafe { UserReturn::new(irq) }
    }

    #[inline(always)]
    unsafe fn exception_enter(_irq: &IrqOff) {}

    #[inline(always)]
    unsafe fn exception_exit(_irq: &IrqOff, (): ()) {}

    #[inline(always)]
    unsafe fn nmi_enter(_irq: &IrqOff) {}

    #[inline(always)]
    unsafe fn nmi_exit(_irq: &IrqOff, (): ()) {}
}

/// What the stubs are compiled for. A whole set of stubs is instantiated for each set of options, and the one that
/// suits the CPU is installed at boot: a constant can't follow the CPU.
pub trait Options: 'static {
    /// CLAC at every entry that doesn't clear RFLAGS.AC by itself. #UD on a CPU without SMAP.
    const SMAP: bool = false;
    /// Paranoid entries read and write GS base by RDGSBASE and WRGSBASE rather than RDMSR and SWAPGS. #UD unless
    /// CR4.FSGSBASE is set; where users may write GS base themselves this is the right form.
    const FSGSBASE: bool = false;
    /// LFENCE after each SWAPGS that a branch decided about, and on the other arm (CVE-2019-1125).
    const LFENCE: bool = true;
    /// Zero the registers that hold user values once they are saved, so that they can't steer speculation in the handler.
    const CLEAR: bool = false;
    /// User mode runs on page tables of its own, without the kernel (CVE-2017-5754): each entry from user mode loads
    /// [`PerCpuHeader::KERNEL_CR3`], each exit [`PerCpuHeader::USER_CR3`]. [`SplitTables`](crate::percpu::SplitTables)
    /// says what must be mapped in both. TSS.RSP0 is the CPU's [`EntryStack`](crate::percpu::EntryStack), not the thread's
    /// stack.
    const KPTI: bool = false;
    /// With [`Options::KPTI`]: the two tables have process-context identifiers, and switching between them keeps their
    /// translations. Bit 63 of a CR3 load is #GP unless CR4.PCIDE is set.
    const PCID: bool = false;
    /// VERW with a memory operand as the last instruction before each one that leaves for user mode, so that no kernel data
    /// is left in the CPU's buffers (CVE-2018-12126 and its kin; on AMD CVE-2024-36350 and CVE-2024-36357); and at the end of paranoid events, which may have
    /// interrupted an exit after its VERW.
    const VERW: bool = false;
    /// `IA32_SPEC_CTRL` is written at each entry from user mode and at each exit, from
    /// [`PerCpuHeader::KERNEL_SPEC_CTRL`] and [`PerCpuHeader::USER_SPEC_CTRL`]; paranoid events put back what they found. Which
    /// bits the kernel runs with is its own choice: IBRS (CVE-2022-29900 and its kin), `BHI_DIS_S` against predictions from the
    /// history of branches (CVE-2022-0001).
    const IBRS: bool = false;
}

/// Options that every x86-64 CPU can run.
#[derive(Clone, Copy, Debug)]
pub struct Baseline;

impl Options for Baseline {}

/// [`Baseline`] and CLAC.
#[derive(Clone, Copy, Debug)]
pub struct WithSmap;

impl Options for WithSmap {
    const SMAP: bool = true;
}

/// One compare and one branch.
#[inline(always)]
pub(crate) fn is_work_pending() -> bool {
    // SAFETY: the stubs call handlers with kernel GS in place, and GS base is a header's address by condition 2 of
    // `Kernel`; the work word is read, nothing is written.
    unsafe {
        core::arch::asm!(
            "cmp dword ptr gs:[{work}], 0",
            "jne {pending}",
            work = const PerCpuHeader::WORK,
            pending = label { return true },
            options(nostack, readonly),
        );
    }
    false
}
