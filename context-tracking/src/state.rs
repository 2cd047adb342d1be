//! The state of one CPU as one word, and the steps between states as additions.
//!
//! What a CPU runs, how many NMIs deep it is, and how often it has crossed the border of quiescence all live in one
//! 64-bit word, so that one atomic addition moves everything at once. An NMI that arrives at any instruction finds the
//! word either before a transition or after it, and puts it back as it was.
//!
//! | bits | name | meaning |
//! |---|---|---|
//! | 1:0 | state | 0 kernel, 1 idle, 2 user, 3 guest |
//! | 2 | active | set by [`Switched`](crate::Switched) while this CPU is tracked; not looked at by the others |
//! | 3 | poisoned | this CPU panicked or broke the rules: nobody may wait for it |
//! | 7:4 | – | zero |
//! | 15:8 | NMI depth | NMI, #MC, #DB and #DF handlers on this CPU, one inside the other |
//! | 63:16 | counter | steps at each boundary of quiescence; wraps |
//!
//! A CPU is **quiescent** while it runs a user program, a guest, or nothing at all, and neither an exception nor an NMI
//! handler on top of that. It is **watching** otherwise. The invariant of the word is that the counter is odd exactly
//! while the CPU is watching. So a remote reader needs one look to learn whether a CPU is quiescent, and two looks to
//! learn whether it has been in between: the counter differs.
//!
//! The counter has 48 bits. It wraps after 2⁴⁸ steps, which is more than a hundred days at 30 million steps a second;
//! two looks would have to be exactly that far apart to be mistaken for one another, and the mistake would only make an
//! observer wait for one more step.
//!
//! An exception *replaces* the state by kernel and puts it back on exit, so a fault on the IRET of an exit path, which
//! is kernel code with the word already at "user", is tracked like any other. An NMI leaves the state alone and counts.
//!
//! # Memory ordering
//!
//! Every transition is one read-modify-write with [`Ordering::AcqRel`]. Let *S* be kernel code between two steps of the
//! counter, and *O* an observer on another CPU that has unpublished an object and asks whether it may free it.
//!
//! 1. *O* first steps onto the word itself: [`Snapshot::take`](crate::quiescence::Snapshot::take) is a
//!    read-modify-write of +0, not a load. All writes to one word have one order, so it falls either before or after
//!    the step by which *S* began.
//! 2. If it falls *before*: the step of *S* reads from it, or from a later read-modify-write (a release sequence), and
//!    acquires. So *S* sees the unpublishing, and can't have found the object.
//! 3. If it falls *after*: *O* sees an odd counter, unless *S* has already ended, and waits. The step that ends *S* is
//!    a release, and *O*'s later look is an acquire that reads from it or from a later step, each of which continues
//!    the release sequence. So all that *S* did happened before *O* goes on.
//!
//! With a plain load in 1 the second case fails: a load can be satisfied before the unpublishing store leaves the store
//! buffer, and no acquire or release on the other side repairs that. One of the loom tests shows the failure. With the
//! read-modify-write there, no transition needs a sequentially consistent fence, and the price is paid by who asks.
//!
//! On x86-64 a transition is one LOCK ADD, which is also a full barrier.
//!
//! # Source
//!
//! Intel SDM vol. 3A, *Memory Ordering in P6 and More Recent Processor Families* (locked instructions have a total order
//! and are not reordered with loads and stores); AMD APM vol. 2, *Memory System*. The Rust Reference, *Memory model* of
//! `core::sync::atomic`, which is that of C++20.

use core::fmt;

use crate::guard::guard;
use crate::sync::{AtomicU64, Ordering};

/// What a CPU runs, apart from NMI handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Kernel code, exception and interrupt handlers included.
    Kernel = 0,
    /// Nothing: the CPU waits for an interrupt.
    Idle = 1,
    /// A user program.
    User = 2,
    /// A virtual machine.
    Guest = 3,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Idle, Self::User, Self::Guest];

    const fn from_bits(bits: u64) -> Self {
        match bits & STATE {
            1 => Self::Idle,
            2 => Self::User,
            3 => Self::Guest,
            _ => Self::Kernel,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Idle => "idle",
            Self::User => "user",
            Self::Guest => "guest",
        })
    }
}

/// Bits 1:0.
const STATE: u64 = 0b11;
/// Bit 2.
pub(crate) const ACTIVE: u64 = 1 << 2;
/// Bit 3.
const POISONED: u64 = 1 << 3;
/// One NMI.
const DEPTH: u64 = 1 << 8;
/// One step of the counter.
const STEP: u64 = 1 << 16;
/// State and depth.
const PLACE: u64 = STATE | (0xff * DEPTH);

/// What the transitions add. All of them fit the sign-extended 32-bit immediate of an ADD.
pub(crate) mod delta {
    /// One step of the counter.
    pub(super) const STEP: i32 = 1 << 16;
    /// One NMI.
    const DEPTH: i32 = 1 << 8;

    pub(crate) const ENTER_IDLE: i32 = STEP + 1;
    pub(crate) const EXIT_IDLE: i32 = STEP - 1;
    pub(crate) const ENTER_USER: i32 = STEP + 2;
    pub(crate) const EXIT_USER: i32 = STEP - 2;
    pub(crate) const ENTER_GUEST: i32 = STEP + 3;
    pub(crate) const EXIT_GUEST: i32 = STEP - 3;
    pub(crate) const ENTER_NMI: i32 = DEPTH;
    pub(crate) const EXIT_NMI: i32 = -DEPTH;
    pub(crate) const ENTER_NMI_QUIESCENT: i32 = STEP + DEPTH;
    pub(crate) const EXIT_NMI_QUIESCENT: i32 = STEP - DEPTH;
    pub(crate) const PASS: i32 = 2 * STEP;
}

/// The value of a [`CpuWord`] at one moment. See the [module](self) for the layout.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(u64);

impl Word {
    /// The image.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Takes any image, for instance one found in a memory dump.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// What the CPU runs below its NMI handlers.
    #[must_use]
    pub const fn state(self) -> State {
        State::from_bits(self.0)
    }

    /// NMI, #MC, #DB and #DF handlers, one inside the other.
    #[must_use]
    pub const fn nmi_depth(self) -> u8 {
        ((self.0 / DEPTH) & 0xff) as u8
    }

    /// The counter: 48 bits, one step at each boundary of quiescence.
    #[must_use]
    pub const fn counter(self) -> u64 {
        self.0 / STEP
    }

    /// Whether kernel code that an observer has to wait for may be running.
    #[must_use]
    pub const fn is_watching(self) -> bool {
        self.0 & STEP != 0
    }

    /// Whether this CPU panicked or broke the rules. Its state can't be relied on.
    #[must_use]
    pub const fn is_poisoned(self) -> bool {
        self.0 & POISONED != 0
    }

    /// Whether this CPU is tracked, where that can be switched at run time.
    #[must_use]
    pub const fn is_active(self) -> bool {
        self.0 & ACTIVE != 0
    }

    /// Whether the invariant holds: watching exactly in the kernel and in NMI handlers.
    const fn is_consistent(self) -> bool {
        self.is_watching() == (matches!(self.state(), State::Kernel) || self.nmi_depth() > 0)
    }

    /// What every check asks.
    const fn contradicts_itself(self) -> bool {
        guard!("contradiction", !self.is_consistent())
    }

    /// What has to be added to come from this state to the kernel. By the bits, not by cases: this is on an entry path,
    /// where a table of jumps is not wanted.
    pub(crate) const fn exit_delta(self) -> i32 {
        delta::STEP - (self.0 & STATE) as i32
    }

    /// What has to be added to come from the kernel back to this state.
    pub(crate) const fn enter_delta(self) -> i32 {
        delta::STEP + (self.0 & STATE) as i32
    }

    /// State and depth alone, for comparison.
    pub(crate) const fn place(self) -> u64 {
        self.0 & PLACE
    }

    /// Checks that `transition` may be made from here, where it starts in `wanted` outside NMI handlers.
    pub(crate) const fn check(self, transition: Transition, wanted: State) -> Result<(), Violation> {
        if self.contradicts_itself() || guard!("wrong-state", self.place() != wanted as u64) {
            return Err(Violation {
                transition,
                found: self,
                wanted: Wanted::State(wanted),
            });
        }
        Ok(())
    }

    /// Checks that an exception or NMI may begin here: anywhere but in a word that contradicts itself.
    pub(crate) const fn check_begin(self, transition: Transition) -> Result<(), Violation> {
        if self.contradicts_itself() || guard!("nmi-depth", self.nmi_depth() == u8::MAX) {
            return Err(Violation {
                transition,
                found: self,
                wanted: Wanted::Consistent,
            });
        }
        Ok(())
    }

    /// Checks that an exception or NMI ends where it began: `place` is what the word should say just before the end.
    pub(crate) const fn check_end(self, transition: Transition, place: u64) -> Result<(), Violation> {
        if self.contradicts_itself() || guard!("wrong-end", self.place() != place) {
            return Err(Violation {
                transition,
                found: self,
                wanted: Wanted::Place(Self(place)),
            });
        }
        Ok(())
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.state())?;
        if self.nmi_depth() > 0 {
            write!(f, " in NMI depth {}", self.nmi_depth())?;
        }
        if !self.is_consistent() {
            f.write_str(if self.is_watching() {
                " but watching"
            } else {
                " but quiescent"
            })?;
        }
        if self.is_poisoned() {
            f.write_str(" (poisoned)")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Word({self}, counter {})", self.counter())
    }
}

/// A step between states, as diagnostics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transition {
    /// Kernel to user.
    UserEnter,
    /// User to kernel.
    UserExit,
    /// Kernel to idle.
    IdleEnter,
    /// Idle to kernel.
    IdleExit,
    /// Kernel to guest.
    GuestEnter,
    /// Guest to kernel.
    GuestExit,
    /// An exception or interrupt that arrived in the kernel.
    ExceptionEnter,
    /// Its end.
    ExceptionExit,
    /// An NMI, #MC, #DB or #DF.
    NmiEnter,
    /// Its end.
    NmiExit,
    /// A quiescent moment inside the kernel, as at a context switch.
    Pass,
    /// A switch to another task, or back.
    Schedule,
    /// A claim that the CPU is in the kernel.
    Kernel,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UserEnter => "user enter",
            Self::UserExit => "user exit",
            Self::IdleEnter => "idle enter",
            Self::IdleExit => "idle exit",
            Self::GuestEnter => "guest enter",
            Self::GuestExit => "guest exit",
            Self::ExceptionEnter => "exception enter",
            Self::ExceptionExit => "exception exit",
            Self::NmiEnter => "NMI enter",
            Self::NmiExit => "NMI exit",
            Self::Pass => "quiescent moment",
            Self::Schedule => "schedule",
            Self::Kernel => "claim to be in the kernel",
        })
    }
}

/// What a [`Violation`] wanted to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    State(State),
    Place(Word),
    Consistent,
}

/// A transition that the state of the CPU does not allow: what was tried, what the word said, and what it should have said.
///
/// ```
/// use context_tracking::{CpuWord, Transition};
/// # use context_tracking::{IrqOff, PerCpu, Tracked, Tracking, Violation};
/// # use std::cell::Cell;
/// # thread_local! { static SEEN: Cell<Option<Violation>> = const { Cell::new(None) }; }
/// # static WORD: CpuWord = CpuWord::new();
/// # struct Cpu;
/// # unsafe impl PerCpu for Cpu {
/// #     const CHECKED: bool = true;
/// #     fn word() -> &'static CpuWord { &WORD }
/// #     fn violation(v: Violation) { SEEN.set(Some(v)); }
/// # }
/// // A CPU in the kernel hears once more that user mode was left:
/// # let irq = unsafe { IrqOff::assume() };
/// # unsafe { Tracked::<Cpu>::user_exit(&irq) };
/// # let violation = SEEN.get().unwrap();
/// assert_eq!(violation.transition(), Transition::UserExit);
/// assert_eq!(violation.to_string(), "user exit in state kernel, wanted user");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    transition: Transition,
    found: Word,
    wanted: Wanted,
}

impl Violation {
    /// What was tried.
    #[must_use]
    pub const fn transition(self) -> Transition {
        self.transition
    }

    /// What the word said.
    #[must_use]
    pub const fn found(self) -> Word {
        self.found
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in state {}, wanted ", self.transition, self.found)?;
        match self.wanted {
            Wanted::State(state) => write!(f, "{state}"),
            Wanted::Place(place) if place.nmi_depth() > 0 => {
                write!(f, "{} in NMI depth {}", place.state(), place.nmi_depth())
            }
            Wanted::Place(place) => write!(f, "{}", place.state()),
            Wanted::Consistent => f.write_str("a state that does not contradict itself"),
        }
    }
}

impl core::error::Error for Violation {}

/// The word of one CPU, written by that CPU alone and read by all.
///
/// Put it on a cache line that other CPUs don't write; the per-CPU structure that GS points at is the natural place.
///
/// ```
/// use context_tracking::{CpuWord, State};
/// static WORD: CpuWord = CpuWord::new();
/// assert_eq!(WORD.load().state(), State::Kernel);
/// assert!(WORD.load().is_watching());
/// ```
#[derive(Debug)]
#[repr(transparent)]
pub struct CpuWord(AtomicU64);

impl CpuWord {
    /// A CPU in the kernel, outside NMI handlers, which is how each CPU starts.
    #[cfg(not(all(loom, test)))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(STEP | State::Kernel as u64))
    }

    /// A CPU in the kernel, outside NMI handlers.
    #[cfg(all(loom, test))]
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(STEP | State::Kernel as u64))
    }

    /// Looks at the word. What this CPU did before a step that is seen here happened before (acquire).
    #[must_use]
    #[inline(always)]
    pub fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Looks at the word by a read-modify-write, which the CPU's next transition will read from: see the
    /// [module](self) on memory ordering.
    #[must_use]
    pub fn load_ordered(&self) -> Word {
        Word(self.0.fetch_add(0, Ordering::AcqRel))
    }

    /// Makes one transition.
    #[inline(always)]
    pub(crate) fn add(&self, delta: i32) {
        self.0.fetch_add(i64::from(delta).cast_unsigned(), Ordering::AcqRel);
    }

    /// Marks the CPU as one that can't be relied on. Sticky. Allowed from any CPU and at any moment: a panic handler's
    /// first act, or that of a CPU which gives another one up.
    pub fn poison(&self) {
        self.0.fetch_or(POISONED, Ordering::AcqRel);
    }

    /// Makes this CPU tracked and in the kernel, whatever the word said; or no longer tracked.
    ///
    /// The counter steps once if the CPU counted as quiescent so far.
    pub(crate) fn set_active(&self, active: bool) {
        let now = self.load();
        let delta = if active {
            let parity = if now.is_watching() { 0 } else { STEP };
            parity
                .wrapping_sub(now.state() as u64)
                .wrapping_add(ACTIVE * u64::from(!now.is_active()))
        } else {
            0u64.wrapping_sub(ACTIVE * u64::from(now.is_active()))
        };
        self.0.fetch_add(delta, Ordering::AcqRel);
    }
}

impl Default for CpuWord {
    fn default() -> Self {
        Self::new()
    }
}
