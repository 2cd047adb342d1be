//! The runner of in-kernel tests: one image and one boot for each file of `tests/`.
//!
//! [`tests!`](crate::tests) makes such an image from a set-up function and test functions, which get what it returned.
//! Results go to the serial line as they come:
//!
//! ```text
//! [test] begin maps_a_page
//! [test] ok maps_a_page
//! [test] begin counts_cycles
//! [test] ignored counts_cycles: needs KVM
//! [tests] 1 passed, 0 failed, 1 ignored
//! ```
//!
//! There is no unwinding. A test that ends in an unexpected panic ends the boot, and so does one that is *expected* to
//! panic; the runner on the host boots the image again with `from=K` on the command line, K being the number of the next
//! test. `only=TEXT` selects the tests whose name contains the text; `long` asks for the long form of those that have one.

use core::cell::UnsafeCell;
use core::fmt;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicUsize, Ordering};

use entry_core::IrqOff;

use crate::boot;
use crate::device::exit::{Outcome, finish};
use crate::entry;
use crate::panic::Panic;
use crate::println;
use crate::process::WaitStatus;
use crate::process::signal::Signal;

/// What a test needs of the machine: made once a boot, before the first test.
pub trait Suite: Sized + 'static {
    /// Makes it.
    fn set_up() -> Self;
}

impl Suite for () {
    fn set_up() -> Self {}
}

/// A CPU that is set up, with interrupts off.
#[derive(Debug)]
pub struct Machine {
    /// The proof that they are.
    pub irq: IrqOff,
}

impl Suite for Machine {
    fn set_up() -> Self {
        Self { irq: entry::install() }
    }
}

/// How a program ends that did what it was to do.
pub const FINE: WaitStatus = WaitStatus::exited(0);

/// How a program ends that a signal killed.
///
/// # Panics
///
/// If no signal has this number: 1 to 64 are some.
#[must_use]
pub const fn killed(signal: u8) -> WaitStatus {
    WaitStatus::killed(Signal::new(signal).unwrap())
}

/// How a test is expected to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// By returning.
    Return,
    /// In a panic whose place or message contains this text.
    Panic(&'static str),
    /// It is not run, for this reason.
    Ignored(&'static str),
}

/// One test.
#[derive(Debug)]
pub struct Case<S: Suite> {
    /// The name of its function.
    pub name: &'static str,
    /// What it does with the suite.
    pub run: fn(&mut S),
    /// How it is expected to end.
    pub expected: Expected,
}

/// Number of the running test.
static RUNNING: AtomicUsize = AtomicUsize::new(NO_TEST);
const NO_TEST: usize = usize::MAX;

/// What the panic handler has to know of the running test: its name, and how it is expected to end.
struct RunningCase(UnsafeCell<(&'static str, Expected)>);

// SAFETY: written by the runner before `RUNNING` names a test, read by the panic handler after; one CPU runs tests.
unsafe impl Sync for RunningCase {}

static RUNNING_CASE: RunningCase = RunningCase(UnsafeCell::new(("", Expected::Return)));

/// Why the running test found nothing to do.
struct Skipped(UnsafeCell<Option<&'static str>>);

// SAFETY: written by the running test, read by the runner after it; one CPU runs tests.
unsafe impl Sync for Skipped {}

static SKIPPED: Skipped = Skipped(UnsafeCell::new(None));

/// Counts the running test as ignored when it returns. For [`skip!`](crate::skip).
pub fn skip(reason: &'static str) {
    // SAFETY: the runner reads it after the test has returned.
    unsafe { *SKIPPED.0.get() = Some(reason) };
}

/// Ends the running test as ignored, for a machine that lacks what it needs.
#[macro_export]
macro_rules! skip {
    ($reason:literal) => {{
        $crate::harness::skip($reason);
        return;
    }};
}

/// Whether the long form of tests was asked for.
#[must_use]
pub fn is_long() -> bool {
    boot::info().command_line.split(' ').any(|word| word == "long")
}

/// How often a storm is raised.
#[must_use]
pub fn rounds() -> u32 {
    if is_long() { 10 } else { 1 }
}

/// Runs the tests of one image, and ends the machine.
pub fn run<S: Suite>(cases: &[&Case<S>]) -> ! {
    let command_line = boot::info().command_line;
    let option = |name: &str| command_line.split(' ').find_map(|word| word.strip_prefix(name));
    let from = match option("from=").map(str::parse) {
        None => 0,
        Some(Ok(from)) => from,
        Some(Err(_)) => finish(Outcome::BadBoot(format_args!("from= wants a number"))),
    };
    let only = option("only=").unwrap_or("");
    let mut suite = S::set_up();
    let mut passed = 0;
    let mut failed = 0;
    let mut ignored = 0;
    for (number, case) in cases
        .iter()
        .filter(|case| case.name.contains(only))
        .enumerate()
        .skip(from)
    {
        let name = case.name;
        println!("[test] begin {name}");
        if let Expected::Ignored(reason) = case.expected {
            println!("[test] ignored {name}: {reason}");
            ignored += 1;
            continue;
        }
        // SAFETY: `RUNNING` names no test, so the panic handler does not look.
        unsafe { *RUNNING_CASE.0.get() = (name, case.expected) };
        RUNNING.store(number, Ordering::SeqCst);
        (case.run)(&mut suite);
        RUNNING.store(NO_TEST, Ordering::SeqCst);
        // SAFETY: `skip` is called by tests alone, and none runs.
        if let Some(reason) = unsafe { (*SKIPPED.0.get()).take() } {
            println!("[test] ignored {name}: {reason}");
            ignored += 1;
        } else if matches!(case.expected, Expected::Panic(_)) {
            println!("[test] fail {name}: returned, wanted a panic");
            failed += 1;
        } else {
            println!("[test] ok {name}");
            passed += 1;
        }
    }
    println!("[tests] {passed} passed, {failed} failed, {ignored} ignored");
    finish(if failed == 0 {
        Outcome::Success
    } else {
        Outcome::TestsFailed
    })
}

/// Called by the panic handler: ends the boot when a test was running.
pub(crate) fn on_panic(info: &PanicInfo<'_>) {
    let running = RUNNING.load(Ordering::SeqCst);
    if running == NO_TEST {
        return;
    }
    // SAFETY: `RUNNING` names a test, so the runner is done writing.
    let (name, expected) = unsafe { *RUNNING_CASE.0.get() };
    match expected {
        Expected::Panic(text) if contains(&Panic(info), text) => {
            println!("[test] ok {name}");
            println!("[tests] reboot from={}", running + 1);
            finish(Outcome::Reboot)
        }
        Expected::Panic(text) => println!("[test] fail {name}: panicked at {}, wanted \"{text}\"", Panic(info)),
        _ => println!("[test] fail {name}: panicked at {}", Panic(info)),
    }
}

/// Whether the first 512 bytes of `message` contain `text`.
fn contains(message: &Panic<'_>, text: &str) -> bool {
    struct Buffer {
        bytes: [u8; 512],
        used: usize,
    }
    impl fmt::Write for Buffer {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = &mut self.bytes[self.used..];
            let count = room.len().min(text.len());
            room[..count].copy_from_slice(&text.as_bytes()[..count]);
            self.used += count;
            Ok(())
        }
    }
    let mut buffer = Buffer {
        bytes: [0; 512],
        used: 0,
    };
    // `Buffer` never fails: what does not fit is left out.
    let _ = fmt::Write::write_fmt(&mut buffer, format_args!("{message}"));
    let wanted = text.as_bytes();
    wanted.is_empty()
        || buffer.bytes[..buffer.used]
            .windows(wanted.len())
            .any(|window| window == wanted)
}

/// Makes an image out of test functions. Each gets the suite by `&mut`, which [`Suite::set_up`](crate::harness::Suite)
/// made, and returns `()`.
///
/// `#[should_panic = "text"]` marks a test that passes by a panic with this text in its place or message,
/// `#[ignore = "reason"]` one that is not run. [`skip!`](crate::skip) ends a test as ignored.
#[macro_export]
macro_rules! tests {
    ($suite:ty; $($(#[doc = $doc:literal])* $(#[$mark:ident $(= $reason:literal)?])? fn $name:ident($state:ident) $body:block)*) => {
        $(
            $(#[doc = $doc])*
            #[doc = stringify!($name)]
            #[test_case]
            #[expect(non_upper_case_globals, reason = "named like the function that it stands for")]
            static $name: $crate::harness::Case<$suite> = $crate::harness::Case {
                name: stringify!($name),
                run: {
                    fn run($state: &mut $suite) $body
                    run
                },
                expected: $crate::expected!($($mark $(= $reason)?)?),
            };
        )*

        #[unsafe(no_mangle)]
        extern "Rust" fn kernel_main() -> ! {
            test_main();
            unreachable!("the runner ends the machine")
        }
    };
}

/// The value of [`Expected`](crate::harness::Expected) that an attribute of [`tests!`](crate::tests) stands for.
#[doc(hidden)]
#[macro_export]
macro_rules! expected {
    () => {
        $crate::harness::Expected::Return
    };
    (should_panic = $text:literal) => {
        $crate::harness::Expected::Panic($text)
    };
    (ignore = $reason:literal) => {
        $crate::harness::Expected::Ignored($reason)
    };
}

/// Whether this boot is in Bochs, which lacks some of what QEMU has: the command line says so.
#[must_use]
pub fn is_bochs() -> bool {
    boot::info().command_line.split(' ').any(|word| word == "bochs")
}
