//! Every interleaving and every allowed reordering of a reader and a writer, by loom.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p context-tracking --release --lib
//! ```
//!
//! Loom explores the C11 model, in which much more may be reordered than an x86-64 CPU does: what passes here does not
//! rest on the LOCK prefix being a full barrier.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::observer::quiescence::Snapshot;
use crate::observer::time::{TimeAccount, Times};
use crate::state::{CpuWord, State, delta};
use crate::sync::{AtomicU64, Ordering};

/// One CPU that reads, one object in two places, and which of them is published.
struct Shared {
    word: CpuWord,
    published: AtomicU64,
    objects: [UnsafeCell<u32>; 2],
}

impl Shared {
    /// A reader CPU in user mode, with object 0 published.
    fn new() -> Arc<Self> {
        let shared = Self {
            word: CpuWord::new(),
            published: AtomicU64::new(0),
            objects: [UnsafeCell::new(10), UnsafeCell::new(11)],
        };
        shared.word.add(delta::ENTER_USER);
        Arc::new(shared)
    }

    /// Kernel code on the reader's CPU: follows the pointer. Loom reports an access that races with the writer's.
    fn read(&self) {
        let place = self.published.load(Ordering::Acquire);
        let object = if place == 0 { &self.objects[0] } else { &self.objects[1] };
        object.with(|value| {
            // SAFETY: the grace period is what makes this right, and what loom checks.
            let value = unsafe { *value };
            assert_ne!(value, 0, "the object was freed");
        });
    }

    /// What the writer does with the object that nobody uses any more.
    fn free(&self) {
        self.objects[0].with_mut(|value| {
            // SAFETY: as in `read`.
            unsafe { *value = 0 };
        });
    }
}

/// Unpublishes, takes a snapshot by `take`, and frees if the grace period is over at once or after one more look.
fn writer(shared: &Shared, take: impl Fn(&CpuWord) -> Option<u64>) {
    shared.published.store(1, Ordering::Release);
    let counter = take(&shared.word);
    for _ in 0..2 {
        if counter.is_none_or(|counter| shared.word.load().counter() != counter) {
            shared.free();
            return;
        }
        thread::yield_now();
    }
}

/// The same, as the crate has it.
fn writer_with_snapshot(shared: &Shared) {
    shared.published.store(1, Ordering::Release);
    let snapshot = Snapshot::take(&shared.word);
    for _ in 0..2 {
        if snapshot.has_passed(&shared.word) {
            shared.free();
            return;
        }
        thread::yield_now();
    }
}

#[test]
fn grace_period_outlasts_two_system_calls() {
    loom::model(|| {
        let shared = Shared::new();
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for _ in 0..2 {
                    shared.word.add(delta::EXIT_USER);
                    shared.read();
                    shared.word.add(delta::ENTER_USER);
                }
            })
        };
        writer_with_snapshot(&shared);
        reader.join().unwrap();
    });
}

#[test]
fn grace_period_outlasts_an_nmi_from_user_mode() {
    loom::model(|| {
        let shared = Shared::new();
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.word.add(delta::ENTER_NMI_QUIESCENT);
                shared.read();
                shared.word.add(delta::ENTER_NMI);
                shared.read();
                shared.word.add(delta::EXIT_NMI);
                shared.word.add(delta::EXIT_NMI_QUIESCENT);
            })
        };
        writer_with_snapshot(&shared);
        reader.join().unwrap();
    });
}

#[test]
fn grace_period_outlasts_an_interrupt_in_idle_and_a_quiescent_moment() {
    loom::model(|| {
        let shared = Shared::new();
        shared.word.add(delta::EXIT_USER);
        shared.word.add(delta::ENTER_IDLE);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.word.add(delta::EXIT_IDLE);
                shared.read();
                shared.word.add(delta::PASS);
                shared.read();
                shared.word.add(delta::ENTER_IDLE);
            })
        };
        writer_with_snapshot(&shared);
        reader.join().unwrap();
    });
}

/// The model can see the mistake: with a plain load as the first look, the writer can find the CPU in user mode while
/// the kernel code that follows still finds the old pointer.
#[test]
#[should_panic(expected = "Causality violation")]
fn first_look_by_a_plain_load_frees_too_early() {
    loom::model(|| {
        let shared = Shared::new();
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.word.add(delta::EXIT_USER);
                shared.read();
                shared.word.add(delta::ENTER_USER);
            })
        };
        writer(&shared, |word| {
            let now = word.load();
            now.is_watching().then_some(now.counter())
        });
        reader.join().unwrap();
    });
}

/// And that by a read-modify-write is right in the same frame, so the failure above is due to the load.
#[test]
fn first_look_by_a_read_modify_write_does_not() {
    loom::model(|| {
        let shared = Shared::new();
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.word.add(delta::EXIT_USER);
                shared.read();
                shared.word.add(delta::ENTER_USER);
            })
        };
        writer(&shared, |word| {
            let now = word.load_ordered();
            now.is_watching().then_some(now.counter())
        });
        reader.join().unwrap();
    });
}

/// Poison may come from any CPU at any moment and disturbs nothing.
#[test]
fn poison_from_afar_leaves_state_and_counter_alone() {
    loom::model(|| {
        let word = Arc::new(CpuWord::new());
        let other = {
            let word = Arc::clone(&word);
            thread::spawn(move || word.poison())
        };
        word.add(delta::ENTER_USER);
        word.add(delta::EXIT_USER);
        other.join().unwrap();
        let now = word.load();
        assert!(now.is_poisoned() && now.is_watching());
        assert_eq!((now.state(), now.nmi_depth(), now.counter()), (State::Kernel, 0, 3));
    });
}

/// Totals read from afar are those of one moment: their sum is the time that passed.
#[test]
fn account_is_never_read_torn() {
    loom::model(|| {
        let account = Arc::new(TimeAccount::default());
        let owner = {
            let account = Arc::clone(&account);
            thread::spawn(move || {
                account.change(State::Kernel, State::User, 3);
                account.change(State::User, State::Kernel, 7);
            })
        };
        if let Some(times) = account.try_read(10) {
            let allowed = [(0, 10), (7, 3), (4, 6)].map(|(user, system)| Times {
                user,
                system,
                ..Times::default()
            });
            assert!(allowed.contains(&times), "{times:?}");
        }
        owner.join().unwrap();
    });
}
