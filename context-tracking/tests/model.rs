//! All strings of events up to a length of 8, against a model, with another event at every step of every transition.
//!
//! The model is a stack of what runs, written without a look at the word: a base state, and handlers on top of it. Its
//! answers to "is kernel code running", "how deep in NMIs" and "how often has that changed" are compared with the word
//! after each event. Then each string is run again for every access to the word that it makes, with an NMI, two nested
//! NMIs, an exception inside an NMI, or an exception just before that access; the end must be the same.

#[path = "support/hooks.rs"]
mod hooks;

use std::cell::{Cell, RefCell};

use context_tracking::{CpuWord, IrqOff, PerCpu, Saved, State, Tracked, Tracking, Transition, Violation};

/// Longest string.
const LENGTH: usize = 8;

thread_local! {
    static WORD: Cell<&'static CpuWord> = Cell::new(Box::leak(Box::new(CpuWord::new())));
    /// Accesses to the word until something is injected.
    static COUNTDOWN: Cell<Option<(usize, Injection)>> = const { Cell::new(None) };
    static VIOLATIONS: RefCell<Vec<Violation>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Injection {
    Nmi,
    NestedNmi,
    ExceptionInNmi,
    Exception,
}

const INJECTIONS: [Injection; 4] = [
    Injection::Nmi,
    Injection::NestedNmi,
    Injection::ExceptionInNmi,
    Injection::Exception,
];

/// A CPU that something happens to before it reads or writes its word.
struct Cpu<const CHECKED: bool>;

// SAFETY: 1. Each thread has a word. 2. The defaults are used. 3. The word is used for nothing else. 4. What is injected
// ends before this returns.
unsafe impl<const CHECKED: bool> PerCpu for Cpu<CHECKED> {
    const CHECKED: bool = CHECKED;

    fn word() -> &'static CpuWord {
        match COUNTDOWN.take() {
            Some((0, injection)) => inject::<Tracked<Self>>(injection),
            Some((count, injection)) => COUNTDOWN.set(Some((count - 1, injection))),
            None => {}
        }
        WORD.get()
    }

    fn violation(violation: Violation) {
        VIOLATIONS.with_borrow_mut(|list| list.push(violation));
    }
}

const fn irq() -> IrqOff {
    // SAFETY: no code here runs with interrupts.
    unsafe { IrqOff::assume() }
}

fn inject<T: Tracking<Saved = Saved>>(injection: Injection) {
    let irq = irq();
    let before = WORD.get().load();
    let watching = || assert!(WORD.get().load().is_watching(), "a handler ran unseen");
    match injection {
        Injection::Nmi => {
            let nmi = hooks::nmi_enter::<T>(&irq);
            watching();
            hooks::nmi_exit::<T>(&irq, nmi);
        }
        Injection::NestedNmi => {
            let outer = hooks::nmi_enter::<T>(&irq);
            let inner = hooks::nmi_enter::<T>(&irq);
            watching();
            hooks::nmi_exit::<T>(&irq, inner);
            watching();
            hooks::nmi_exit::<T>(&irq, outer);
        }
        Injection::ExceptionInNmi => {
            let nmi = hooks::nmi_enter::<T>(&irq);
            let exception = hooks::exception_enter::<T>(&irq);
            watching();
            hooks::exception_exit::<T>(&irq, exception);
            watching();
            hooks::nmi_exit::<T>(&irq, nmi);
        }
        Injection::Exception => {
            let exception = hooks::exception_enter::<T>(&irq);
            watching();
            hooks::exception_exit::<T>(&irq, exception);
        }
    }
    let after = WORD.get().load();
    assert_eq!((after.state(), after.nmi_depth()), (before.state(), before.nmi_depth()));
    let steps = if before.is_watching() { 0 } else { 2 };
    assert_eq!(after.counter(), before.counter() + steps);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Kernel to something.
    Enter(State),
    /// Something to kernel.
    Exit(State),
    /// A quiescent moment in the kernel.
    Pass,
    /// An exception or interrupt in ring 0; on top of user, that is a fault of the IRET that leaves.
    ExceptionEnter,
    ExceptionExit,
    NmiEnter,
    NmiExit,
}

const OUTSIDE: [State; 3] = [State::Idle, State::User, State::Guest];

/// What runs, as a stack.
#[derive(Clone, Debug, Default)]
struct Model {
    base: Option<State>,
    handlers: Vec<Handler>,
    steps: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handler {
    Exception,
    Nmi,
}

impl Model {
    fn base(&self) -> State {
        self.base.unwrap_or(State::Kernel)
    }

    /// Kernel code runs, unless a program, a guest or nothing does, with no handler on top.
    fn is_watching(&self) -> bool {
        self.base() == State::Kernel || !self.handlers.is_empty()
    }

    fn depth(&self) -> usize {
        self.handlers.iter().filter(|h| **h == Handler::Nmi).count()
    }

    /// What the word calls the state: an exception that isn't inside an NMI from outside replaces what it interrupted.
    fn state(&self) -> State {
        if self.handlers.first() == Some(&Handler::Exception) {
            State::Kernel
        } else {
            self.base()
        }
    }

    /// The events that may come next.
    fn next(&self) -> Vec<Event> {
        let mut events = vec![Event::ExceptionEnter, Event::NmiEnter];
        match (self.handlers.last(), self.base()) {
            (Some(Handler::Exception), _) => events.push(Event::ExceptionExit),
            (Some(Handler::Nmi), _) => events.push(Event::NmiExit),
            (None, State::Kernel) => {
                events.push(Event::Pass);
                events.extend(OUTSIDE.map(Event::Enter));
            }
            (None, outside) => events.push(Event::Exit(outside)),
        }
        events
    }

    /// The events that may not, and that the word can know of: with an exception on top it says "kernel", and only the
    /// types know better.
    fn wrong(&self) -> Vec<Event> {
        if self.handlers.last() == Some(&Handler::Exception) && self.depth() == 0 {
            return Vec::new();
        }
        let right = self.next();
        let all = OUTSIDE
            .iter()
            .flat_map(|s| [Event::Enter(*s), Event::Exit(*s)])
            .chain([Event::Pass]);
        all.filter(|event| !right.contains(event)).collect()
    }

    fn apply(&mut self, event: Event) {
        let before = self.is_watching();
        match event {
            Event::Enter(state) => self.base = Some(state),
            Event::Exit(_) => self.base = Some(State::Kernel),
            Event::Pass => self.steps += 2,
            Event::ExceptionEnter => self.handlers.push(Handler::Exception),
            Event::NmiEnter => self.handlers.push(Handler::Nmi),
            Event::ExceptionExit | Event::NmiExit => drop(self.handlers.pop()),
        }
        self.steps += u64::from(before != self.is_watching());
    }

    /// The shortest way back to the kernel with no handler.
    fn way_back(&self) -> Vec<Event> {
        let handlers = self.handlers.iter().rev().map(|handler| match handler {
            Handler::Exception => Event::ExceptionExit,
            Handler::Nmi => Event::NmiExit,
        });
        let base = (self.base() != State::Kernel).then_some(Event::Exit(self.base()));
        handlers.chain(base).collect()
    }
}

/// The code under test, with the tokens of its handlers.
struct Machine<const CHECKED: bool> {
    saved: Vec<Saved>,
    first_counter: u64,
}

impl<const CHECKED: bool> Machine<CHECKED> {
    fn new() -> Self {
        Self {
            saved: Vec::new(),
            first_counter: WORD.get().load().counter(),
        }
    }

    fn apply(&mut self, event: Event) {
        let irq = irq();
        match event {
            Event::Enter(State::User) => drop(hooks::user_enter::<Tracked<Cpu<CHECKED>>>(irq)),
            Event::Enter(State::Idle) => hooks::idle_enter::<Tracked<Cpu<CHECKED>>>(&irq),
            Event::Enter(State::Guest) => hooks::guest_enter::<Tracked<Cpu<CHECKED>>>(&irq),
            Event::Exit(State::User) => hooks::user_exit::<Tracked<Cpu<CHECKED>>>(&irq),
            Event::Exit(State::Idle) => hooks::idle_exit::<Tracked<Cpu<CHECKED>>>(&irq),
            Event::Exit(State::Guest) => hooks::guest_exit::<Tracked<Cpu<CHECKED>>>(&irq),
            Event::Enter(State::Kernel) | Event::Exit(State::Kernel) => unreachable!("not a border"),
            Event::Pass => hooks::pass::<Tracked<Cpu<CHECKED>>>(&irq),
            Event::ExceptionEnter => self.saved.push(hooks::exception_enter::<Tracked<Cpu<CHECKED>>>(&irq)),
            Event::NmiEnter => self.saved.push(hooks::nmi_enter::<Tracked<Cpu<CHECKED>>>(&irq)),
            Event::ExceptionExit => {
                let saved = self.saved.pop().expect("an exception to end");
                hooks::exception_exit::<Tracked<Cpu<CHECKED>>>(&irq, saved);
            }
            Event::NmiExit => {
                let saved = self.saved.pop().expect("an NMI to end");
                hooks::nmi_exit::<Tracked<Cpu<CHECKED>>>(&irq, saved);
            }
        }
    }

    /// Compares the word with the model. What was injected may have added a pair of steps.
    fn compare(&self, expected: &Expected, is_injected: bool) {
        let word = WORD.get().load();
        let steps = word.counter() - self.first_counter;
        let right = word.state() == expected.state
            && usize::from(word.nmi_depth()) == expected.depth
            && word.is_watching() == expected.is_watching
            && (steps == expected.steps || is_injected && steps == expected.steps + 2);
        assert!(right, "{word:?} after {steps} steps, {expected:?}");
    }
}

/// What the model says after an event.
#[derive(Debug)]
struct Expected {
    event: Event,
    state: State,
    depth: usize,
    is_watching: bool,
    steps: u64,
}

/// The string and the way back to the kernel, with the model's answers.
fn expect(string: &[Event], end: &Model) -> Vec<Expected> {
    let mut model = Model::default();
    let events = string.iter().copied().chain(end.way_back());
    events
        .map(|event| {
            model.apply(event);
            Expected {
                event,
                state: model.state(),
                depth: model.depth(),
                is_watching: model.is_watching(),
                steps: model.steps,
            }
        })
        .collect()
}

/// Runs a string and the way back, comparing after each event, with something injected before access `at`. Says whether
/// there was such an access within the first `length` events.
fn run<const CHECKED: bool>(expected: &[Expected], length: usize, injection: Option<(usize, Injection)>) -> bool {
    COUNTDOWN.set(injection);
    let mut machine = Machine::<CHECKED>::new();
    let mut was_injected = false;
    for (index, expected) in expected.iter().enumerate() {
        if index == length {
            was_injected = COUNTDOWN.take().is_none();
        }
        machine.apply(expected.event);
        machine.compare(expected, injection.is_some());
    }
    was_injected |= expected.len() == length && COUNTDOWN.take().is_none();
    let word = WORD.get().load();
    assert_eq!(
        (word.state(), word.nmi_depth(), word.is_watching()),
        (State::Kernel, 0, true)
    );
    assert_eq!(VIOLATIONS.with_borrow(Vec::len), 0, "{expected:?}");
    was_injected
}

/// Calls `visit` with every string of right events of exactly `length`, depth first.
fn strings(model: &Model, prefix: &mut Vec<Event>, length: usize, visit: &mut impl FnMut(&[Event], &Model)) {
    if prefix.len() == length {
        return visit(prefix, model);
    }
    for event in model.next() {
        let mut next = model.clone();
        next.apply(event);
        prefix.push(event);
        strings(&next, prefix, length, visit);
        prefix.pop();
    }
}

/// Number of strings that the model allows, counted by hand for the short ones: 6 from the kernel; after `pass` 6 again,
/// after each other event 3.
const SHORT_COUNTS: [usize; 3] = [1, 6, 6 + 5 * 3];

#[test]
fn strings_are_enumerated() {
    for (length, count) in SHORT_COUNTS.into_iter().enumerate() {
        let mut found = 0;
        strings(&Model::default(), &mut Vec::new(), length, &mut |_, _| found += 1);
        assert_eq!(found, count);
    }
}

fn exhaust<const CHECKED: bool>(length: usize) {
    let (mut count, mut runs) = (0, 0);
    strings(&Model::default(), &mut Vec::new(), length, &mut |string, end| {
        count += 1;
        let expected = expect(string, end);
        run::<CHECKED>(&expected, length, None);
        for injection in INJECTIONS {
            let mut at = 0;
            while run::<CHECKED>(&expected, length, Some((at, injection))) {
                at += 1;
            }
            runs += at;
            // An exception that ends where the kernel was interrupted needs no look at the word, if nothing is checked.
            let looks = string
                .iter()
                .filter(|event| CHECKED || **event != Event::ExceptionExit)
                .count();
            assert!(at >= looks, "{string:?} was interrupted {at} times");
        }
    });
    println!("{count} strings of {length}, {runs} runs with an event injected");
    assert!(count > 5_000);
}

#[test]
fn every_string_with_an_event_at_every_step() {
    exhaust::<true>(LENGTH);
}

/// The same code without its checks, which look at the word too: fewer steps to interrupt.
#[test]
fn every_shorter_string_without_checks() {
    exhaust::<false>(LENGTH - 1);
}

#[test]
fn every_wrong_event_after_every_string_is_named_and_not_made() {
    let name = |event| match event {
        Event::Enter(State::User) => Transition::UserEnter,
        Event::Enter(State::Idle) => Transition::IdleEnter,
        Event::Enter(_) => Transition::GuestEnter,
        Event::Exit(State::User) => Transition::UserExit,
        Event::Exit(State::Idle) => Transition::IdleExit,
        Event::Exit(_) => Transition::GuestExit,
        _ => Transition::Pass,
    };
    let mut count = 0;
    for length in 0..6 {
        strings(&Model::default(), &mut Vec::new(), length, &mut |string, model| {
            for wrong in model.wrong() {
                let word: &'static CpuWord = Box::leak(Box::new(CpuWord::new()));
                WORD.set(word);
                let mut machine = Machine::<true>::new();
                string.iter().for_each(|event| machine.apply(*event));
                let before = word.load();
                machine.apply(wrong);
                let after = word.load();
                let violations = VIOLATIONS.take();
                assert_eq!(violations.len(), 1, "{wrong:?} after {string:?}");
                assert_eq!(
                    (violations[0].transition(), violations[0].found()),
                    (name(wrong), before)
                );
                assert!(after.is_poisoned() && !before.is_poisoned());
                assert_eq!((after.state(), after.nmi_depth()), (before.state(), before.nmi_depth()));
                assert_eq!(after.counter(), before.counter());
                // Said once.
                machine.apply(wrong);
                assert!(VIOLATIONS.take().is_empty());
                count += 1;
            }
        });
    }
    println!("{count} wrong events");
    assert!(count > 1_000);
}

/// Ends in the wrong order: the word is not what the token says it should be.
#[test]
fn an_end_that_does_not_match_its_beginning_is_named() {
    type Track = Tracked<Cpu<true>>;
    let irq = irq();
    let exception = hooks::exception_enter::<Track>(&irq);
    let _nmi = hooks::nmi_enter::<Track>(&irq);
    hooks::exception_exit::<Track>(&irq, exception);
    let violations = VIOLATIONS.take();
    assert_eq!(violations.len(), 1);
    assert_eq!(
        violations[0].to_string(),
        "exception exit in state kernel in NMI depth 1, wanted kernel"
    );

    WORD.set(Box::leak(Box::new(CpuWord::new())));
    let nmi = hooks::nmi_enter::<Track>(&irq);
    let inner = hooks::nmi_enter::<Track>(&irq);
    hooks::nmi_exit::<Track>(&irq, nmi);
    let violations = VIOLATIONS.take();
    assert_eq!(violations.len(), 1);
    assert_eq!(
        violations[0].to_string(),
        "NMI exit in state kernel in NMI depth 2, wanted kernel in NMI depth 1"
    );
    drop(inner);
}
