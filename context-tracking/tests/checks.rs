//! Each check by itself: what it finds, what it says, and what it leaves alone. The strings of the model say that they find
//! nothing else.

#[path = "support/hooks.rs"]
#[expect(dead_code, reason = "some of them are enough here")]
mod hooks;

use std::cell::{Cell, RefCell};

use context_tracking::quiescence::{GracePeriod, Progress};
use context_tracking::time::{TimeAccount, Times};
use context_tracking::{
    CpuWord, Ctx, IrqOff, Kernel, NoTracking, PerCpu, State, Tracked, Transition, UserEntry, Violation,
};

thread_local! {
    static WORD: Cell<&'static CpuWord> = Cell::new(Box::leak(Box::new(CpuWord::new())));
    static VIOLATIONS: RefCell<Vec<Violation>> = const { RefCell::new(Vec::new()) };
}

/// A thread as a CPU, checked or not.
struct Cpu<const CHECKED: bool>;

// SAFETY: 1. Each thread has a word. 2. The defaults are used. 3. The word is used for nothing else. 4. There are no
// interrupts here.
unsafe impl<const CHECKED: bool> PerCpu for Cpu<CHECKED> {
    const CHECKED: bool = CHECKED;

    fn word() -> &'static CpuWord {
        WORD.get()
    }

    fn violation(violation: Violation) {
        VIOLATIONS.with_borrow_mut(|list| list.push(violation));
    }
}

type Track = Tracked<Cpu<true>>;
/// Makes the transitions that the other one refuses.
type Unchecked = Tracked<Cpu<false>>;

const fn irq() -> IrqOff {
    // SAFETY: no code here runs with interrupts.
    unsafe { IrqOff::assume() }
}

/// What was reported since the last call.
fn said() -> Vec<String> {
    VIOLATIONS.take().iter().map(Violation::to_string).collect()
}

/// Leaves the word with a state and a counter that contradict each other: idle was entered twice.
fn contradict() {
    hooks::idle_enter::<Unchecked>(&irq());
    hooks::idle_enter::<Unchecked>(&irq());
    let word = WORD.get().load();
    assert_eq!((word.state(), word.is_watching()), (State::User, true));
}

#[test]
fn a_transition_from_the_wrong_state_is_named() {
    hooks::idle_enter::<Track>(&irq());
    drop(hooks::user_enter::<Track>(irq()));
    assert_eq!(said(), ["user enter in state idle, wanted kernel"]);
}

#[test]
fn a_wrong_transition_is_not_made() {
    let before = WORD.get().load();
    hooks::user_exit::<Track>(&irq());
    let after = WORD.get().load();
    assert_eq!(
        (after.state(), after.counter(), after.nmi_depth()),
        (before.state(), before.counter(), before.nmi_depth())
    );
}

#[test]
fn a_wrong_transition_poisons_the_word() {
    hooks::user_exit::<Track>(&irq());
    assert!(WORD.get().load().is_poisoned());
}

#[test]
fn a_poisoned_word_is_not_reported_again() {
    for _ in 0..3 {
        hooks::user_exit::<Track>(&irq());
    }
    assert_eq!(said().len(), 1);
}

#[test]
fn a_word_that_contradicts_itself_is_found_by_every_kind_of_transition() {
    contradict();
    hooks::user_exit::<Track>(&irq());
    assert_eq!(said(), ["user exit in state user but watching, wanted user"]);

    WORD.set(Box::leak(Box::new(CpuWord::new())));
    contradict();
    let _saved = hooks::exception_enter::<Track>(&irq());
    assert_eq!(
        said(),
        ["exception enter in state user but watching, wanted a state that does not contradict itself"]
    );
}

#[test]
fn the_256th_nmi_inside_others_is_named() {
    for _ in 0..255 {
        let _saved = hooks::nmi_enter::<Track>(&irq());
    }
    assert_eq!(said(), [""; 0]);
    let _saved = hooks::nmi_enter::<Track>(&irq());
    assert_eq!(
        said(),
        ["NMI enter in state kernel in NMI depth 255, wanted a state that does not contradict itself"]
    );
}

#[test]
fn an_exception_that_ends_elsewhere_is_named() {
    let saved = hooks::exception_enter::<Track>(&irq());
    hooks::idle_enter::<Track>(&irq());
    hooks::exception_exit::<Track>(&irq(), saved);
    assert_eq!(said(), ["exception exit in state idle, wanted kernel"]);
}

#[test]
fn a_claim_to_be_in_the_kernel_is_checked() {
    let irq = hooks::user_enter::<Track>(irq());
    // SAFETY: there is no CPU, and no frame.
    let entry = unsafe { UserEntry::assume() };
    // SAFETY: as above; that nobody has made the transition is what is tested.
    let _ctx = unsafe { Ctx::<Kernel, IrqOff, Track>::entered_from_user(entry) };
    drop(irq);
    assert_eq!(said(), ["claim to be in the kernel in state user, wanted kernel"]);

    WORD.set(Box::leak(Box::new(CpuWord::new())));
    // SAFETY: the word is new, and there is no other claim.
    let ctx = unsafe { Ctx::<Kernel, IrqOff, Track>::assume(self::irq()) };
    // A switch that comes back on a CPU that is idle.
    let _ctx = ctx.schedule(hooks::idle_enter::<Track>);
    let violations = VIOLATIONS.take();
    assert_eq!(violations[0].transition(), Transition::Schedule);
}

#[test]
fn a_grace_period_waits_for_a_cpu_in_the_kernel() {
    let reader = CpuWord::new();
    // SAFETY: as above.
    let mut ctx = unsafe { Ctx::<Kernel, IrqOff, NoTracking>::assume(irq()) };
    let mut grace = GracePeriod::start(&mut ctx, [&reader, WORD.get()]);
    assert_eq!(grace.poll(), Progress::WaitingFor(0));
    hooks::pass::<Track>(&irq());
    assert_eq!(grace.poll(), Progress::WaitingFor(0));
}

#[test]
fn a_grace_period_does_not_end_with_a_poisoned_cpu() {
    let reader = CpuWord::new();
    // SAFETY: as above.
    let mut ctx = unsafe { Ctx::<Kernel, IrqOff, NoTracking>::assume(irq()) };
    let mut grace = GracePeriod::start(&mut ctx, [&reader, WORD.get()]);
    hooks::pass::<Track>(&irq());
    // As a panic does.
    reader.poison();
    assert_eq!(grace.poll(), Progress::Poisoned(0));
}

#[test]
fn a_clock_that_steps_back_adds_nothing() {
    let account = TimeAccount::new();
    account.start(&irq(), 1_000);
    account.change(State::Kernel, State::User, 900);
    account.change(State::User, State::Kernel, 905);
    let times = Times {
        user: 5,
        ..Times::default()
    };
    assert_eq!(account.try_read(905), Some(times));
}

#[test]
fn tracking_that_is_not_checked_says_nothing() {
    contradict();
    hooks::user_exit::<Unchecked>(&irq());
    assert_eq!(said(), [""; 0]);
}
