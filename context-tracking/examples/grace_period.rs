//! Read-copy-update in a page, on top of context tracking, with two threads of the host as CPUs.
//!
//! Readers take no lock and write nothing. That they are in the kernel is announced by the transition that a system
//! call makes anyway; a writer that has replaced an object waits until each CPU was outside the kernel once.
//!
//! ```text
//! cargo run -p context-tracking --release --example grace_period
//! ```

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::thread;

use context_tracking::quiescence::{GracePeriod, Progress};
use context_tracking::{CpuWord, Ctx, IrqOff, Kernel, PerCpu, Tracked, UserEntry, Watching};

static WORDS: [CpuWord; 2] = [CpuWord::new(), CpuWord::new()];

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// A thread of the host as a CPU.
struct Host;

// SAFETY: 1. `run` gives each of its two threads an index of its own, and runs once. 2. The defaults are used. 3. `WORDS`
// is used for nothing else. 4. There are no interrupts on the host.
unsafe impl PerCpu for Host {
    fn word() -> &'static CpuWord {
        &WORDS[CPU.get()]
    }
}

type Track = Tracked<Host>;

/// A pointer that readers follow without a lock, and that writers replace.
struct Rcu<V>(AtomicPtr<V>);

impl<V> Rcu<V> {
    /// Publishes a first object.
    fn new(first: Box<V>) -> Self {
        Self(AtomicPtr::new(Box::into_raw(first)))
    }

    /// The object of now, for as long as the CPU is known to be watching.
    fn read<'a>(&'a self, _: Watching<'a, Track>) -> &'a V {
        let object = self.0.load(Ordering::Acquire);
        // SAFETY: it came from a `Box`. `replace` frees it after a grace period that began after it was unpublished, and
        // such a grace period does not end while this CPU, which is watching for `'a`, goes on to do so.
        unsafe { &*object }
    }

    /// Publishes another object, and returns the old one when nobody can be reading it any more.
    fn replace(&self, ctx: &mut Ctx<Kernel, IrqOff, Track>, next: Box<V>) -> Box<V> {
        let old = self.0.swap(Box::into_raw(next), Ordering::AcqRel);
        let mut grace = GracePeriod::start(ctx, WORDS.each_ref());
        loop {
            match grace.poll() {
                Progress::Done => break,
                Progress::WaitingFor(_) => thread::yield_now(),
                Progress::Poisoned(cpu) => panic!("CPU {cpu} is gone, and with it all hope of freeing anything"),
            }
        }
        // SAFETY: it came from a `Box`, was unpublished by the swap, so that no second caller has it, and the grace
        // period that began after the swap is over.
        unsafe { Box::from_raw(old) }
    }
}

/// What a CPU does for one system call: the entry, the kernel's work, the exit.
fn system_call<R>(work: impl FnOnce(&mut Ctx<Kernel, IrqOff, Track>) -> R) -> R {
    // SAFETY: this stands in for an entry stub; there is no frame, and interrupts don't exist here.
    let entry = unsafe { UserEntry::assume() };
    // SAFETY: 1. there is no stub that could have told anybody.
    let mut ctx = unsafe { Ctx::<Kernel, IrqOff, Track>::enter_from_user(entry) };
    let result = work(&mut ctx);
    if let Ok(ready) = ctx.exit_work(|_| false) {
        let _left = ready.user_enter();
    }
    result
}

/// Starts this thread as a CPU: in the kernel, and from there to its first user program.
fn boot(cpu: usize) {
    CPU.set(cpu);
    // SAFETY: there are no interrupts here.
    let irq = unsafe { IrqOff::assume() };
    // SAFETY: 1. the word is new. 2. The thread has just started.
    let ctx = unsafe { Ctx::<Kernel, IrqOff, Track>::assume(irq) };
    let _user = ctx.user_enter();
}

/// An object that can tell whether it is whole.
struct Object {
    generation: u64,
    complement: u64,
}

impl Object {
    fn new(generation: u64) -> Box<Self> {
        Box::new(Self {
            generation,
            complement: !generation,
        })
    }
}

/// Replaces an object on one CPU while the other reads it in system calls, until each has done so `rounds` times at least.
/// Returns the numbers of replacements and of reads.
///
/// To be called once in a process: the CPUs are `static`.
pub(crate) fn run(rounds: u64) -> (u64, u64) {
    let rcu = &Rcu::new(Object::new(0));
    let is_over = &AtomicBool::new(false);
    let reads = &AtomicU64::new(0);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            boot(0);
            let mut newest = 0;
            while !is_over.load(Ordering::Relaxed) {
                system_call(|ctx| {
                    let object = rcu.read(ctx.watching());
                    for look in 0..20 {
                        // The compiler may not remember the object from the look before.
                        let object = std::hint::black_box(object);
                        assert_eq!(
                            object.complement, !object.generation,
                            "the object was freed under the reader"
                        );
                        if look == 10 {
                            thread::yield_now(); // give the writer a chance to be wrong
                        }
                    }
                    assert!(object.generation >= newest, "an older object came back");
                    newest = object.generation;
                });
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        let writer = scope.spawn(move || {
            boot(1);
            let mut generation = 0;
            while generation < rounds || (reads.load(Ordering::Relaxed) < rounds && !reader.is_finished()) {
                generation += 1;
                let mut old = system_call(|ctx| rcu.replace(ctx, Object::new(generation)));
                // Whoever still read it would see this.
                old.generation = 0;
                old.complement = 0;
                drop(std::hint::black_box(old));
            }
            is_over.store(true, Ordering::Relaxed);
            reader.join().expect("the reader found a freed object");
            generation
        });
        (
            writer.join().expect("the writer goes on"),
            reads.load(Ordering::Relaxed),
        )
    })
}

fn main() {
    let (updates, reads) = run(20_000);
    println!("{updates} objects replaced and freed under {reads} reads, none of which took a lock");
}
