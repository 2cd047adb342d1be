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

/// Runs both on a thread each, in all interleavings. The main thread of the model only waits: what it does itself, loom
/// explores less fully.
fn race(shared: Arc<Shared>, reader: fn(&Shared), writer: fn(&Shared)) {
    let other = Arc::clone(&shared);
    let reader = thread::spawn(move || reader(&other));
    let writer = thread::spawn(move || writer(&shared));
    reader.join().unwrap();
    writer.join().unwrap();
}

fn system_call(shared: &Shared) {
    shared.word.add(delta::EXIT_USER);
    shared.read();
    shared.word.add(delta::ENTER_USER);
}

fn two_system_calls(shared: &Shared) {
    system_call(shared);
    system_call(shared);
}

#[test]
fn grace_period_outlasts_two_system_calls() {
    loom::model(|| race(Shared::new(), two_system_calls, writer_with_snapshot));
}

#[test]
fn grace_period_outlasts_a_system_call_that_is_running() {
    loom::model(|| {
        let shared = Shared::new();
        shared.word.add(delta::EXIT_USER);
        race(
            shared,
            |shared| {
                shared.read();
                shared.word.add(delta::ENTER_USER);
            },
            writer_with_snapshot,
        );
    });
}

#[test]
fn grace_period_outlasts_nested_nmis_from_user_mode() {
    fn reader(shared: &Shared) {
        shared.word.add(delta::ENTER_NMI_QUIESCENT);
        shared.word.add(delta::ENTER_NMI);
        shared.read();
        shared.word.add(delta::EXIT_NMI);
        shared.read();
        shared.word.add(delta::EXIT_NMI_QUIESCENT);
    }
    loom::model(|| race(Shared::new(), reader, writer_with_snapshot));
}

#[test]
fn grace_period_outlasts_an_interrupt_in_idle_and_ends_by_a_quiescent_moment() {
    fn reader(shared: &Shared) {
        shared.word.add(delta::EXIT_IDLE);
        shared.read();
        shared.word.add(delta::PASS);
        shared.read();
        shared.word.add(delta::ENTER_IDLE);
    }
    loom::model(|| {
        let shared = Shared::new();
        shared.word.add(delta::EXIT_USER);
        shared.word.add(delta::ENTER_IDLE);
        race(shared, reader, writer_with_snapshot);
    });
}

/// The model can see the mistake: with a plain load as the first look, the writer can find the CPU in user mode while
/// the kernel code that follows still finds the old pointer.
#[test]
#[should_panic(expected = "Causality violation")]
fn first_look_by_a_plain_load_frees_too_early() {
    fn plain(word: &CpuWord) -> Option<u64> {
        let now = word.load();
        now.is_watching().then_some(now.counter())
    }
    loom::model(|| race(Shared::new(), system_call, |shared| writer(shared, plain)));
}

/// And that by a read-modify-write is right in the same frame, so the failure above is due to the load.
#[test]
fn first_look_by_a_read_modify_write_does_not() {
    fn ordered(word: &CpuWord) -> Option<u64> {
        let now = word.load_ordered();
        now.is_watching().then_some(now.counter())
    }
    loom::model(|| race(Shared::new(), system_call, |shared| writer(shared, ordered)));
}

/// Poison may come from any CPU at any moment and disturbs nothing.
#[test]
fn poison_from_afar_leaves_state_and_counter_alone() {
    loom::model(|| {
        let shared = Shared::new();
        race(Arc::clone(&shared), system_call, |shared| shared.word.poison());
        let now = shared.word.load();
        assert!(now.is_poisoned() && !now.is_watching());
        assert_eq!((now.state(), now.nmi_depth(), now.counter()), (State::User, 0, 4));
    });
}

/// Totals read from afar are those of one moment.
#[test]
fn account_is_never_read_torn() {
    loom::model(|| {
        let account = Arc::new(TimeAccount::default());
        let other = Arc::clone(&account);
        let owner = thread::spawn(move || {
            other.change(State::Kernel, State::User, 3);
        });
        let reader = thread::spawn(move || {
            if let Some(times) = account.try_read(10) {
                let allowed = [(0, 10), (7, 3)].map(|(user, system)| Times {
                    user,
                    system,
                    ..Times::default()
                });
                assert!(allowed.contains(&times), "{times:?}");
            }
        });
        owner.join().unwrap();
        reader.join().unwrap();
    });
}
