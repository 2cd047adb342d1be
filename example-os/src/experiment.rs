//! The control system call: kernels in the kernel, whose cost a program can measure.
//!
//! Number [`CONTROL`] lies far above Linux's numbers, so Linux answers ENOSYS. RDI is the operation, RSI its argument.
//!
//! | operation | argument | result |
//! |---|---|---|
//! | 0 | – | [`QUERY_ANSWER`] |
//! | 1 | set of stubs for SYSCALL: 0 normal, 1 null call left by SYSRET, 2 null call left by IRET, 3 null call with a lean frame, 4 null call with registers zeroed, 5 the least stub there can be, 6 null call of a kernel that hides from user mode, 7 null call with interrupts left on, 8 the kernel proper with interrupts left on, 9 the kernel proper with FSGSBASE, registers zeroed and VERW, 10 the kernel proper with IBRS, 11 the kernel proper hidden, with process-context identifiers | 0; ENOSYS where the CPU lacks what the set needs |
//! | 2 | exit of this process's page faults: 0 IRET, 1 SYSRET, which destroys RCX and R11, 2 SYSRET to a landing page, which is mapped then | 0 |
//! | 4 | bit 0: the interrupt flag is toggled; bits 63:8: rounds | ticks of the time-stamp counter |
//! | 5 | context tracking of this process: 0 off, 1 by transitions that save the interrupt flag, 2 by transitions that know it to be 0; with the set of stubs back to 0 | 0 |
//! | 6 | 0 page faults served, 1 context switches, 2 timer interrupts | count since boot |
//! | 7 | 1: the timer tick stops; 0: it goes on | 0 |
//! | 8 | 1: INT 0x80 and SYSCALL from 32-bit code do nothing, and an exception skips 2 bytes; 0: they are the kernel's again | 0 |
//! | 9 | nanoseconds from one timer interrupt to the next, which are counted and lead to nothing else; 0: none comes | 0 |
//! | 10 | SYSENTER: bits 3:0 how the stack is loaded: 0 from the per-CPU header, 1 by WRMSR at each switch, 2 by a trampoline, 3 from the TSS at a fixed offset, 4 by a trampoline with an absolute address, 5 by one that swaps GS; bit 4: null calls; bit 5: it stays on for processes with IOPL 3 | 0; ENOSYS where the CPU has none |
//! | 11 | 1: this process has IOPL 3, and the set of stubs 0; 0: IOPL 0 | 0 |
//! | 12 | rounds of a loop that writes `IA32_SYSENTER_ESP` | ticks of the time-stamp counter |
//! | 13 | bit 0: FS base and the user's GS base are written by WRFSBASE and WRGSBASE, else by WRMSR; bits 63:8: rounds | ticks of the time-stamp counter; ENOSYS where the CPU has no WRFSBASE |
//! | 14 | 1: this process may have 32-bit code, and has a page by which such code enters, and the set of stubs 0; 2: IOPL 3 besides; 0: none of it, but for the page | how the page enters: 1 INT 0x80, 2 SYSENTER, 3 SYSCALL |
//! | 15 | 1: FS base and the user's GS base are read and written at a switch by the instructions of FSGSBASE, which programs may use, too; 0: written by WRMSR | 0; ENOSYS where the CPU has no such instructions |
//! | 16 | an excursion to 32-bit protected mode: bit 0: the stack is loaded by a trampoline, else written by WRMSR at each switch; bit 1: two tasks take turns, else null calls; bits 15:8: blocks of 512 bytes that a task reads at its turn; bits 63:16: rounds | ticks of the time-stamp counter |
//! | 17 | bits 7:0: breakpoints in the kernel, each in the handler of the one before, at most 8; bits 63:8: rounds | ticks of the time-stamp counter |
//! | 24 | – | RFLAGS in the kernel's own code, with interrupts off for this call |
//! | 30 | bit 0: in a window of the stubs, else in the kernel's code; bits 63:8: rounds of a loop that takes an interrupt each time, which is counted and leads to nothing else | ticks of the time-stamp counter |
//! | 25 | bit 0: a timer interrupt is pending then | none: this call, if it came by SYSENTER, is left by SYSEXIT, which destroys RDX and, in 64-bit code, loads SS with its own selector |
//!
//! With stubs other than the normal ones every SYSCALL returns 0 and does nothing; this call is then made by INT 0x80,
//! which stays with the kernel proper. After operation 8 it is the other way round. 32-bit code makes the call with its own
//! registers: operation in EBX, argument in ECX. Settings belong to the process that
//! makes them, and end with it, but for that of operation 5, which its children inherit; those of operations 7 to 10, and 15,
//! belong to the CPU, and stay, that of operation 10 until a process of the other kind runs: with 32-bit code or without. While
//! a process is tracked there are only the sets of stubs 0 and 1, and no operation 8; while the kernel hides from it there are neither operation 5 nor 8.

use core::arch::asm;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

use context_tracking::IrqSaved;
use entry_core::address::{UserLimit, Width};
use entry_core::cpu::CpuFeatures;
use entry_core::msr::{Cpu, FsBase, KernelGsBase, Register, SysenterEsp};
use entry_core::stub::{IrqsOnKernel, LeanKernel, LeanResult, StubTable};
use entry_core::vector::Vector;
use entry_core::windows::flags;
use entry_core::{
    Exit, IrqOff, IrqOn, Kernel, NoTracking, SegmentLayout, Tracking, TrapFrame, UserEntry, entry_window,
};
use entry_sysenter::stub::Compat;
use entry_sysenter::sysexit::{Sysexit, SysexitRules};
use entry_sysenter::user_page::Entry32;
use entry_sysret::landing::LandingPage;
use entry_sysret::{IretOnly, Refusal, Rules, SysretOrIret};

use x86_64::registers::control::{Cr4, Cr4Flags};
use x86_64::registers::rflags;

use crate::boot;
use crate::device::apic;
use crate::entry::compat::{self, Code32Rules, Kernel32};
use crate::entry::sysenter::{Callee32, Callee64, PrivilegedCallee, Way};
use crate::entry::variant::{Track, Variant, entry_of};
use crate::entry::{self, LAYOUT, OsKernel, PerCpu, SyscallEntry, TIMER_VECTOR, UserRules, Vectors, options};
use crate::legacy32;
use crate::memory::{PAGE_SIZE, Placement, Protection, layout};
use crate::process::{FaultExit, Process, current};
use crate::syscall::{Answer, Errno};

/// Number of the control call.
pub const CONTROL: u64 = 0x4558;

/// What operation 0 returns: "ENTR".
pub const QUERY_ANSWER: u64 = 0x454e_5452;

/// Length of the instructions whose exceptions are skipped by operation 8.
const SKIPPED_BYTES: u64 = 2;

/// A kernel whose system calls do nothing, and whose exceptions skip [`SKIPPED_BYTES`]; all else is as in [`OsKernel`].
#[derive(Debug)]
struct NullKernel<E, T = NoTracking>(PhantomData<(E, T)>);

// SAFETY: the CPU set-up is that of `OsKernel`, whose layout and stacks this one shares.
unsafe impl<E: Exit<Refusal = Refusal>, T: Tracking> Kernel for NullKernel<E, T> {
    type Exit = E;
    type Tracking = T;
    const LAYOUT: SegmentLayout = LAYOUT;

    #[inline(always)]
    fn syscall(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        frame.set_return_value(0);
        entry.into_irq_off()
    }

    #[inline(always)]
    fn user_exception(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        frame.set_rip(frame.rip().wrapping_add(SKIPPED_BYTES));
        entry.into_irq_off()
    }

    fn user_interrupt(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        OsKernel::<T>::user_interrupt(frame, entry)
    }

    fn kernel_exception(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        OsKernel::<T>::kernel_exception(frame, irq)
    }

    fn kernel_interrupt(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        OsKernel::<T>::kernel_interrupt(frame, irq)
    }

    fn paranoid(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        OsKernel::<T>::paranoid(frame, irq)
    }

    fn work(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        OsKernel::<T>::work(frame, irq)
    }

    fn refused(frame: &mut TrapFrame, refusal: Refusal, irq: IrqOff) -> IrqOff {
        OsKernel::<T>::refused(frame, refusal, irq)
    }
}

impl<E: Exit<Refusal = Refusal>> LeanKernel for NullKernel<E> {
    unsafe extern "sysv64" fn syscall_lean(_: u64, _: u64, _: u64, _: u64, _: u64, _: u64, _number: u64) -> LeanResult {
        // SAFETY: it is called once, first, here, in a handler that the stub calls.
        let irq = unsafe { Self::lean_entry() };
        LeanResult::new(0, irq)
    }
}

impl IrqsOnKernel for NullKernel<SysretOrIret<UserRules>> {
    #[inline(always)]
    fn syscall_irqs_on(frame: &mut TrapFrame, irq: IrqOn) -> IrqOn {
        frame.set_return_value(0);
        irq
    }

    fn window_interrupt(frame: &mut TrapFrame, irq: &IrqOff) {
        <OsKernel as IrqsOnKernel>::window_interrupt(frame, irq);
    }
}

/// The first of the 256 slots of the kernel whose INT 0x80 does nothing.
pub(crate) fn null_vectors() -> u64 {
    entry::stubs::<NullKernel<SysretOrIret<UserRules>>>().vectors
}

/// The same for processes that have 32-bit code.
type NullKernel32 = NullKernel<SysretOrIret<Code32Rules>>;

// SAFETY: as `Kernel32`, whose per-CPU structure this one shares.
unsafe impl Compat for NullKernel32 {
    const LANDING: usize = Kernel32::LANDING;
}

/// The stubs of that kernel.
pub(crate) fn null_stubs_32() -> StubTable {
    entry::stubs::<NullKernel32>()
}

/// Serves the control call, whose frame this is; operation and argument are where the caller's convention has them.
pub(crate) fn control(frame: &TrapFrame, operation: u64, argument: u64, irq: IrqOn) -> (Answer, IrqOn) {
    let irq = irq.disable();
    let answer = if operation == LEAVE_BY_SYSEXIT {
        leave_by_sysexit(frame, argument, &irq)
    } else {
        perform(operation, argument, &irq)
    };
    (answer.into(), irq.enable())
}

/// The operation that [`leave_by_sysexit`] serves.
const LEAVE_BY_SYSEXIT: u64 = 25;

/// Leaves the call whose frame it is by SYSEXIT, with an interrupt pending if that is wanted. What is on the stack below the
/// frame is lost: nothing that owns anything.
fn leave_by_sysexit(frame: &TrapFrame, argument: u64, irq: &IrqOff) -> Result<u64, Errno> {
    const RULES: SysexitRules = match SysexitRules::new(&LAYOUT, UserLimit::HIGHEST_48, Width::Bits48) {
        Ok(rules) => rules.with_rdx_destroyed(),
        Err(_) => panic!("the layout has segments for SYSEXIT"),
    };
    if PerCpu::current(irq).is_work_pending() {
        return Err(Errno::EINVAL);
    }
    let is_interrupted = argument & 1 != 0;
    let checked = Sysexit::check(frame, &RULES).map_err(|_| Errno::EINVAL)?;
    if is_interrupted {
        apic::send_to_self(TIMER_VECTOR);
    }
    // SAFETY: interrupts are off by `irq`, which nobody uses from here on, since this function does not return.
    let irq = unsafe { IrqOff::assume() };
    // SAFETY: 1. to 3. the process is not tracked, or it could not have come by SYSENTER.
    let ready = unsafe { <NoTracking as Tracking>::user_enter(irq) };
    // SAFETY: 1. this is a system call with interrupts off. 2. SYSENTER led here, with the layout's selector. 3. The frame is that
    // of the entry, at the top of the stack. 4. None of the three is sent while this experiment runs. 5. Stubs of SYSENTER with KPTI
    // or IBRS don't compile; what VERW would clear is no secret here.
    unsafe { checked.leave(ready) }
}

fn perform(operation: u64, argument: u64, irq: &IrqOff) -> Result<u64, Errno> {
    let process = current();
    match operation {
        0 => return Ok(QUERY_ANSWER),
        1 => {
            let entry = stub_set_in(process.context().variant(), argument)?;
            process.context().set_syscall_entry(entry, irq);
        }
        2 => process.set_fault_exit(fault_exit(process, argument, irq)?),
        4 => return Ok(simulate_interrupt_flag(argument & 1 != 0, argument >> 8, irq)),
        5 | 11 | 14 if process.context().is_split() => return Err(Errno::EINVAL),
        5 => process.context().request_variant(tracked_variant(argument)?, irq),
        6 => return read_counter(argument, irq),
        7 if switch(argument)? => entry::stop_timer(irq),
        7 => entry::start_timer(irq),
        8 => select_null_vectors(switch(argument)?, irq)?,
        9 if argument == 0 => entry::stop_timer(irq),
        11 => {
            let variant = if switch(argument)? {
                Variant::IoPrivilege
            } else {
                Variant::Plain
            };
            process.context().request_variant(variant, irq);
        }
        9 => entry::start_experiment_timer(u32::try_from(argument).map_err(|_| Errno::EINVAL)?, irq),
        10 => select_sysenter(argument, irq)?,
        12 => return time_stack_register(argument, irq),
        13 => return time_base(argument & 1 != 0, argument >> 8, irq),
        14 => return allow_32_bit_code(process, argument, irq),
        15 => select_instructions_for_bases(switch(argument)?, irq)?,
        16 => return time_protected_mode(argument, irq),
        24 => return Ok(rflags::read_raw()),
        30 => return Ok(time_interrupts(argument & 1 != 0, argument >> 8, irq)),
        17 => return time_breakpoints(argument & 0xff, argument >> 8, irq),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// The exit of page faults of this number.
fn fault_exit(process: &Process, number: u64, irq: &IrqOff) -> Result<FaultExit, Errno> {
    match number {
        0 => Ok(FaultExit::Iret),
        1 => Ok(FaultExit::Dead),
        2 => map_landing_page(process, irq).map(FaultExit::Landing),
        _ => Err(Errno::EINVAL),
    }
}

/// Gives the process a landing page, in place of whatever is there. It goes with the address space.
pub(crate) fn map_landing_page(process: &Process, irq: &IrqOff) -> Result<LandingPage, Errno> {
    let mut space = process.space().lock(irq);
    let space = space.as_mut().ok_or(Errno::EINVAL)?;
    let protection = Protection::READ.union(Protection::EXECUTE);
    let address = space.mmap(layout::LANDING_PAGE, PAGE_SIZE, protection, Placement::Fixed);
    let address = address.map_err(|_| Errno::ENOMEM)?;
    space.write(address, LandingPage::BYTES).map_err(|_| Errno::ENOMEM)?;
    LandingPage::new(address, &UserRules::RULES).map_err(|_| Errno::EINVAL)
}

const fn switch(argument: u64) -> Result<bool, Errno> {
    match argument {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

const fn tracked_variant(number: u64) -> Result<Variant, Errno> {
    match number {
        0 => Ok(Variant::Plain),
        1 => Ok(Variant::IrqSaved),
        2 => Ok(Variant::IrqOff),
        _ => Err(Errno::EINVAL),
    }
}

/// Chooses between the table of the kernel and that of the experiment whose exceptions and INT 0x80 do nothing.
fn select_null_vectors(is_null: bool, irq: &IrqOff) -> Result<(), Errno> {
    let vectors = match (current().context().syscall_entry().vectors(), is_null) {
        (Vectors::Normal, true) => Vectors::Null,
        (Vectors::Code32, true) => Vectors::NullCode32,
        (own @ (Vectors::Normal | Vectors::Code32), false) => own,
        _ => return Err(Errno::EINVAL),
    };
    PerCpu::current(irq).select_vectors(vectors, irq);
    Ok(())
}

/// Lets a process have 32-bit code, and gives it the page by which that enters, or takes the leave away.
fn allow_32_bit_code(process: &Process, argument: u64, irq: &IrqOff) -> Result<u64, Errno> {
    let variant = match argument {
        0 => Variant::Plain,
        1 => Variant::Code32,
        2 => Variant::IoCode32,
        _ => return Err(Errno::EINVAL),
    };
    if !variant.allows_32_bit_code() {
        process.context().request_variant(variant, irq);
        return Ok(0);
    }
    let mut space = process.space().lock(irq);
    let space = space.as_mut().ok_or(Errno::EINVAL)?;
    compat::map_call_page(space).map_err(|_| Errno::ENOMEM)?;
    process.context().request_variant(variant, irq);
    Ok(match compat::entry() {
        Entry32::Int80 => 1,
        Entry32::Sysenter => 2,
        Entry32::Syscall => 3,
    })
}

/// Chooses how SYSENTER gets at the stack, and which kernel answers.
fn select_sysenter(argument: u64, irq: &IrqOff) -> Result<(), Errno> {
    /// The bit for null calls.
    const NULL: u64 = 1 << 4;
    /// The bit for programs with IOPL 3.
    const IO_PRIVILEGE: u64 = 1 << 5;
    let context = current().context();
    let vectors = context.syscall_entry().vectors();
    let way = match argument & !(NULL | IO_PRIVILEGE) {
        0 => Way::FromHeader,
        1 => Way::WrmsrPerSwitch,
        2 => Way::ByTrampoline,
        3 => Way::AtFixedOffset,
        4 => Way::ByAbsoluteTrampoline,
        5 => Way::BySwapgsTrampoline,
        _ => return Err(Errno::EINVAL),
    };
    let cpu = PerCpu::current(irq);
    let installed = match (vectors, argument & NULL != 0) {
        (Vectors::Normal, false) if argument & IO_PRIVILEGE != 0 => cpu.install_sysenter::<PrivilegedCallee>(way, irq),
        _ if argument & IO_PRIVILEGE != 0 => return Err(Errno::EINVAL),
        (Vectors::Normal, false) => cpu.install_sysenter::<Callee64<OsKernel>>(way, irq),
        (Vectors::Normal, true) => cpu.install_sysenter::<Callee64<NullKernel<SysretOrIret<UserRules>>>>(way, irq),
        (Vectors::Code32, false) => cpu.install_sysenter::<Callee32<Kernel32>>(way, irq),
        (Vectors::Code32, true) => cpu.install_sysenter::<Callee32<NullKernel32>>(way, irq),
        _ => return Err(Errno::EINVAL),
    };
    installed.map_err(|_| Errno::ENOSYS)
}

/// Writes to `IA32_SYSENTER_ESP`, as often as `rounds` says, what it holds: a round is what a context switch has to do for it,
/// two shuffles of the value and WRMSR. Returns the ticks that it took.
fn time_stack_register(rounds: u64, irq: &IrqOff) -> Result<u64, Errno> {
    if !PerCpu::current(irq).has_sysenter(irq) {
        return Err(Errno::ENOSYS);
    }
    // SAFETY: 1. this is the kernel, on a CPU that has the register.
    let stack = unsafe { SysenterEsp::read(&mut Cpu) }.bits();
    let rounds = rounds.max(1);
    let start = time_stamp();
    // SAFETY: 1. and 2. the register keeps its value.
    unsafe { write_register_often(SysenterEsp::NUMBER, stack, rounds) };
    Ok(time_stamp() - start)
}

/// Writes `value` to a register, `rounds` times: five instructions as a context switch needs them, DEC and JNZ.
///
/// # Safety
///
/// 1. The CPU has the register, and this is CPL 0.
/// 2. Writing the value changes nothing, or nothing that matters.
#[inline(always)]
unsafe fn write_register_often(register: u32, value: u64, rounds: u64) {
    // SAFETY: conditions 1 and 2.
    unsafe {
        asm!(
            "2:",
            "mov ecx, {register:e}",
            "mov rax, {value}",
            "mov rdx, {value}",
            "shr rdx, 32",
            "wrmsr",
            "dec {rounds}",
            "jnz 2b",
            register = in(reg) register,
            value = in(reg) value,
            rounds = inout(reg) rounds => _,
            out("rax") _,
            out("rcx") _,
            out("rdx") _,
            options(nomem, nostack),
        );
    }
}

/// Writes FS base and the user's GS base, as often as `rounds` says, with what they hold: what a context switch has to do for
/// them, by WRMSR or by WRFSBASE and WRGSBASE. Returns the ticks that it took.
fn time_base(is_by_wrfsbase: bool, rounds: u64, _irq: &IrqOff) -> Result<u64, Errno> {
    if !boot::cpu::features().fsgsbase {
        return Err(Errno::ENOSYS);
    }
    let (fs_base, gs_base) = (current().context().fs_base(), current().context().gs_base());
    let rounds = rounds.max(1);
    if !is_by_wrfsbase {
        let start = time_stamp();
        // SAFETY: both registers are there, and keep their values.
        unsafe {
            asm!(
                "2:",
                "mov ecx, {fs}",
                "mov rax, {fs_base}",
                "mov rdx, {fs_base}",
                "shr rdx, 32",
                "wrmsr",
                "mov ecx, {gs}",
                "mov rax, {gs_base}",
                "mov rdx, {gs_base}",
                "shr rdx, 32",
                "wrmsr",
                "dec {rounds}",
                "jnz 2b",
                fs = const FsBase::NUMBER,
                // Where the user's is while the kernel's is in force.
                gs = const KernelGsBase::NUMBER,
                fs_base = in(reg) fs_base,
                gs_base = in(reg) gs_base,
                rounds = inout(reg) rounds => _,
                out("rax") _,
                out("rcx") _,
                out("rdx") _,
                options(nomem, nostack),
            );
        }
        return Ok(time_stamp() - start);
    }
    let control = Cr4::read();
    // SAFETY: the CPU has the feature; programs don't run before it is off again.
    unsafe { Cr4::write(control | Cr4Flags::FSGSBASE) };
    let start = time_stamp();
    // SAFETY: the registers keep their values. Between the two SWAPGS nothing uses GS: interrupts are off, and NMIs compare.
    unsafe {
        asm!(
            "2:",
            "wrfsbase {fs_base}",
            "swapgs",
            "wrgsbase {gs_base}",
            "swapgs",
            "dec {rounds}",
            "jnz 2b",
            fs_base = in(reg) fs_base,
            gs_base = in(reg) gs_base,
            rounds = inout(reg) rounds => _,
            options(nomem, nostack),
        );
    }
    let ticks = time_stamp() - start;
    // SAFETY: what it was before.
    unsafe { Cr4::write(control) };
    Ok(ticks)
}

/// Chooses how a switch writes FS base and the user's GS base.
fn select_instructions_for_bases(has_them: bool, irq: &IrqOff) -> Result<(), Errno> {
    if has_them && !boot::cpu::features().fsgsbase {
        return Err(Errno::ENOSYS);
    }
    let cpu = PerCpu::current(irq);
    current().context().refresh_bases(cpu);
    cpu.set_instructions_for_bases(has_them, irq);
    Ok(())
}

/// Calls or switches by SYSENTER in 32-bit protected mode. Returns the ticks, changes of mode included.
fn time_protected_mode(argument: u64, irq: &IrqOff) -> Result<u64, Errno> {
    let way = if argument & 1 == 0 {
        legacy32::Way::WrmsrPerSwitch
    } else {
        legacy32::Way::ByTrampoline
    };
    let rounds = u32::try_from(argument >> 16).map_err(|_| Errno::EINVAL)?.max(1);
    let blocks = (argument >> 8 & 0xff) as u32;
    let workload = if argument & 2 == 0 {
        legacy32::Workload::NullCall { rounds }
    } else {
        legacy32::Workload::Switch { rounds, blocks }
    };
    let seen = legacy32::run(way, workload, irq).map_err(|_| Errno::ENOSYS)?;
    // What was timed is what was asked for.
    let turns = if argument & 2 == 0 { 0 } else { rounds - 1 };
    let is_done = seen.other_rounds == turns && seen.last_cs & 3 == 3;
    if is_done { Ok(seen.ticks) } else { Err(Errno::EINVAL) }
}

/// Breakpoints that are still to come.
static BREAKPOINTS_LEFT: AtomicU32 = AtomicU32::new(0);

/// The handler of a breakpoint that has the next one in it, if there is to be one.
fn next_breakpoint(frame: &mut TrapFrame) -> bool {
    if Vector(frame.vector()) != Vector::BREAKPOINT {
        return false;
    }
    let left = BREAKPOINTS_LEFT.load(Ordering::Relaxed).saturating_sub(1);
    BREAKPOINTS_LEFT.store(left, Ordering::Relaxed);
    if left != 0 {
        // SAFETY: this function is its handler, and goes on here.
        unsafe { asm!("int3") };
    }
    true
}

/// `depth` breakpoints within each other, so many times. Returns the ticks that it took: a round is the breakpoints, MOV, DEC
/// and JNZ.
fn time_breakpoints(depth: u64, rounds: u64, _irq: &IrqOff) -> Result<u64, Errno> {
    /// The frames of so many have room on a process's stack.
    const DEEPEST: u64 = 8;
    if !(1..=DEEPEST).contains(&depth) {
        return Err(Errno::EINVAL);
    }
    let rounds = rounds.max(1);
    entry::set_kernel_hook(Some(next_breakpoint));
    let start = time_stamp();
    // SAFETY: breakpoints of the kernel lead to the function above, which changes nothing here.
    unsafe {
        asm!(
            "2:",
            "mov dword ptr [rip + {left}], {depth:e}",
            "int3",
            "dec {rounds}",
            "jnz 2b",
            left = sym BREAKPOINTS_LEFT,
            depth = in(reg) depth,
            rounds = inout(reg) rounds => _,
        );
    }
    let ticks = time_stamp() - start;
    entry::set_kernel_hook(None);
    Ok(ticks)
}

/// What SYSCALL leads to with a set of stubs, in a process with this variant of the kernel's.
fn stub_set_in(variant: Variant, number: u64) -> Result<SyscallEntry, Errno> {
    match (number, variant) {
        (_, Variant::Plain) => stub_set(number),
        (0, _) => Ok(entry_of(variant)),
        (1, Variant::IrqSaved) => Ok(SyscallEntry::tracked::<
            NullKernel<SysretOrIret<UserRules>, IrqSaved<Track>>,
        >()),
        (1, Variant::IrqOff) => Ok(SyscallEntry::tracked::<NullKernel<SysretOrIret<UserRules>, Track>>()),
        _ => Err(Errno::EINVAL),
    }
}

/// What SYSCALL leads to with the set of stubs of this number.
pub(crate) fn stub_set(number: u64) -> Result<SyscallEntry, Errno> {
    match number {
        0 => Ok(SyscallEntry::first()),
        1 => Ok(SyscallEntry::of::<NullKernel<SysretOrIret<UserRules>>>()),
        2 => Ok(SyscallEntry::of::<NullKernel<IretOnly<UserRules>>>()),
        3 => Ok(SyscallEntry::lean::<NullKernel<SysretOrIret<UserRules>>>()),
        4 => Ok(SyscallEntry::clearing::<NullKernel<SysretOrIret<UserRules>>>()),
        5 => Ok(SyscallEntry::floor()),
        6 => Ok(SyscallEntry::split::<NullKernel<SysretOrIret<UserRules>>>()),
        7 => Ok(SyscallEntry::irqs_on::<NullKernel<SysretOrIret<UserRules>>>()),
        8 => Ok(SyscallEntry::irqs_on::<OsKernel>()),
        9 if boot::cpu::features().fsgsbase => Ok(SyscallEntry::guarded::<OsKernel>()),
        10 if CpuFeatures::detect().ibrs => Ok(SyscallEntry::restricted()),
        11 if options::has_pcid() => Ok(SyscallEntry::split_with_pcid()),
        9..=11 => Err(Errno::ENOSYS),
        _ => Err(Errno::EINVAL),
    }
}

fn read_counter(number: u64, irq: &IrqOff) -> Result<u64, Errno> {
    let cpu = PerCpu::current(irq);
    match number {
        0 => Ok(cpu.faults()),
        1 => Ok(cpu.switches()),
        2 => Ok(cpu.ticks()),
        _ => Err(Errno::EINVAL),
    }
}

/// The loop by which the cost of IF was once estimated: a stretch of work, with or without the flag instructions of a
/// system call around it. Returns the ticks that `rounds` of it took.
///
/// Interrupts are off at the beginning and at the end, and PUSHFQ saves IF = 0, so POPFQ leaves them off; the window
/// between STI and CLI is real.
fn simulate_interrupt_flag(is_toggled: bool, rounds: u64, _irq: &IrqOff) -> u64 {
    let rounds = rounds.max(1);
    let start = time_stamp();
    if is_toggled {
        // SAFETY: IF is 0 again after each POPFQ; an interrupt in between finds the kernel's own stack and GS. Memory is
        // not declared untouched, since its handler changes it.
        unsafe {
            asm!(
                "2:",
                "pushfq",
                "cli",
                "sti",
                ".rept 20",
                "nop",
                ".endr",
                "cli",
                "popfq",
                "dec {rounds}",
                "jnz 2b",
                rounds = inout(reg) rounds => _,
            );
        }
    } else {
        // SAFETY: the loop changes one register.
        unsafe {
            asm!(
                "2:",
                ".rept 20",
                "nop",
                ".endr",
                "dec {rounds}",
                "jnz 2b",
                rounds = inout(reg) rounds => _,
                options(nomem, nostack),
            );
        }
    }
    time_stamp() - start
}

/// Takes an interrupt in each round: a round is the store that raises it, STI, NOP, CLI, DEC and JNZ, and the interrupt comes
/// before CLI. Returns the ticks that `rounds` of it took.
///
/// In a window CLI has a record as stubs have them, of the kind in which GS base is the kernel's.
#[inline(never)]
fn time_interrupts(is_in_window: bool, rounds: u64, _irq: &IrqOff) -> u64 {
    let rounds = rounds.max(1);
    let (register, command) = apic::interrupt_to_self(entry::EXPERIMENT_VECTOR);
    let start = time_stamp();
    if is_in_window {
        // SAFETY: IF is 0 again after each CLI; the interrupt finds the kernel's own GS, and a stack of its own or the
        // kernel's. The store raises a vector that the kernel knows. Its handler changes memory.
        unsafe {
            asm!(
                "2:",
                "mov [{register}], {command:e}",
                "sti",
                "nop",
                "3:",
                "cli",
                "4:",
                "dec {rounds}",
                "jnz 2b",
                entry_window!("3b", "4b", "{window}"),
                register = in(reg) register,
                command = in(reg) command,
                rounds = inout(reg) rounds => _,
                window = const flags::USER_RSP | flags::IRQS_ON,
            );
        }
    } else {
        // SAFETY: as above.
        unsafe {
            asm!(
                "2:",
                "mov [{register}], {command:e}",
                "sti",
                "nop",
                "cli",
                "dec {rounds}",
                "jnz 2b",
                register = in(reg) register,
                command = in(reg) command,
                rounds = inout(reg) rounds => _,
            );
        }
    }
    time_stamp() - start
}

/// RDTSC.
pub(crate) fn time_stamp() -> u64 {
    // SAFETY: the kernel may read the counter; every x86-64 CPU has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
