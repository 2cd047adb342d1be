//! The form that kernels use, executed: on Linux the GS base of a thread is free for programs, so the host can stand in
//! for a CPU in the kernel.

#![cfg(target_os = "linux")]

use core::mem::offset_of;

#[path = "support/hooks.rs"]
mod hooks;

use context_tracking::{CpuWord, Gs, GsWord, IrqOff, IrqSaved, PerCpu, State, Switched, Tracked, Tracker};
use entry_core::PerCpuHeader;

#[repr(C)]
struct PerCpuData {
    header: PerCpuHeader,
    tracking: CpuWord,
}

// SAFETY: 1. `cpu` binds the header and points GS base at it before anything is tracked, and leaks the structure. 2. The
// field is private and used for nothing else.
unsafe impl GsWord for PerCpuData {
    const OFFSET: usize = offset_of!(Self, tracking);
    const CHECKED: bool = true;
}

type Cpu = Gs<PerCpuData>;

/// Makes this thread a CPU.
fn cpu() -> (IrqOff, &'static CpuWord) {
    const SYS_ARCH_PRCTL: u64 = 158;
    const ARCH_SET_GS: u64 = 0x1001;
    let data: &'static PerCpuData = Box::leak(Box::new(PerCpuData {
        header: PerCpuHeader::new(),
        tracking: CpuWord::new(),
    }));
    data.header.bind();
    let result: i64;
    // SAFETY: the system call changes the GS base of this thread, which nothing else uses on Linux.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => result,
            in("rdi") ARCH_SET_GS,
            in("rsi") core::ptr::from_ref(data),
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    assert_eq!(result, 0);
    // SAFETY: there are no interrupts here.
    (unsafe { IrqOff::assume() }, &data.tracking)
}

#[test]
fn the_word_is_found_through_gs() {
    let (_irq, word) = cpu();
    assert!(core::ptr::eq(Cpu::word(), word));
    assert_eq!(Cpu::load(), word.load());
}

fn goes_round<T: Tracker>(mut irq: IrqOff, word: &CpuWord) {
    let first = word.load().counter();
    let state = || word.load().state();

    irq = hooks::user_enter::<T>(irq);
    assert_eq!(state(), State::User);
    let fault = hooks::exception_enter::<T>(&irq);
    assert_eq!(state(), State::Kernel);
    hooks::exception_exit::<T>(&irq, fault);
    assert_eq!(state(), State::User);
    let nmi = hooks::nmi_enter::<T>(&irq);
    assert_eq!(
        (state(), word.load().nmi_depth(), word.load().is_watching()),
        (State::User, 1, true)
    );
    hooks::nmi_exit::<T>(&irq, nmi);
    hooks::user_exit::<T>(&irq);
    assert_eq!(state(), State::Kernel);
    assert_eq!(word.load().counter(), first + 6);

    hooks::idle_enter::<T>(&irq);
    assert_eq!(state(), State::Idle);
    hooks::idle_exit::<T>(&irq);
    hooks::guest_enter::<T>(&irq);
    assert_eq!(state(), State::Guest);
    hooks::guest_exit::<T>(&irq);
    let nmi = hooks::nmi_enter::<T>(&irq);
    hooks::nmi_exit::<T>(&irq, nmi);
    hooks::pass::<T>(&irq);
    let end = word.load();
    assert_eq!(
        (end.state(), end.nmi_depth(), end.counter()),
        (State::Kernel, 0, first + 12)
    );
    assert!(!end.is_poisoned());
}

#[test]
fn irqs_off_goes_round() {
    let (irq, word) = cpu();
    goes_round::<Tracked<Cpu>>(irq, word);
}

#[test]
fn irqs_saved_goes_round() {
    let (irq, word) = cpu();
    goes_round::<IrqSaved<Tracked<Cpu>>>(irq, word);
}

#[test]
fn switched_goes_round_when_it_is_on_and_stays_when_it_is_off() {
    type Track = Switched<Cpu, Tracked<Cpu>>;
    let (mut irq, word) = cpu();
    let before = word.load();
    irq = hooks::user_enter::<Track>(irq);
    hooks::user_exit::<Track>(&irq);
    let nmi = hooks::nmi_enter::<Track>(&irq);
    hooks::nmi_exit::<Track>(&irq, nmi);
    assert_eq!(word.load(), before);

    // SAFETY: as in `hooks::user_enter`.
    unsafe { Track::activate(&irq) };
    // SAFETY: there are no interrupts here.
    goes_round::<Track>(unsafe { IrqOff::assume() }, word);
    // SAFETY: as in `hooks::user_enter`.
    unsafe { Track::deactivate(&irq) };
    assert!(!word.load().is_active());
    irq = hooks::user_enter::<Track>(irq);
    assert_eq!(word.load().state(), State::Kernel);

    // A word that was left at "user" by an unswitched form is put right.
    let irq = hooks::user_enter::<Tracked<Cpu>>(irq);
    assert!(!word.load().is_watching());
    // SAFETY: as in `hooks::user_enter`.
    unsafe { Track::activate(&irq) };
    let now = word.load();
    assert!(now.is_active() && now.is_watching() && now.state() == State::Kernel);
}
