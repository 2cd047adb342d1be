//! The table that `--table` prints, for a machine on which nothing but a person reads the output.
//!
//! What a tick of the clock is decides what may be said, by the rules of `cargo xtask bench`: where every instruction takes
//! one tick, instructions; on a CPU, ticks; of an emulator's time only how rows compare.

use core::cell::{Cell, RefCell};

use user::println;

use crate::rows::{IRQFLAG_OVERHEAD, Row};

/// The most repeats of a row that are kept.
pub(crate) const MOST_REPEATS: usize = 31;
/// Instructions of a round of the calibration loop.
pub(crate) const CALIBRATION: u64 = 10;
/// Width of the column of names.
const NAME: usize = 36;

/// What a tick of the time-stamp counter is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tick {
    /// One instruction, whatever it is.
    Instruction,
    /// Time of a CPU that runs the program itself.
    Cpu,
    /// Time in which an emulator ran the program.
    Emulator,
}

/// How long a stretch took, and how many of its instructions were spent waiting.
#[derive(Clone, Copy)]
struct Stretch {
    ticks: u64,
    idle: u64,
}

/// What the table knows while it is printed.
pub(crate) struct Table {
    tick: Tick,
    /// The stretches of the row that is being measured, the shorter and the longer one of each repeat in turn.
    stretches: RefCell<([Stretch; 2 * MOST_REPEATS], usize)>,
    /// What the first row took, in tenths.
    first: Cell<Option<u64>>,
    measured: Cell<u32>,
    without: Cell<u32>,
    failed: Cell<u32>,
}

/// `amount / parts` in tenths, rounded.
const fn tenths(amount: u64, parts: u64) -> u64 {
    (10 * amount + parts / 2) / parts
}

/// Ticks of an instruction, in tenths, by the median of the longer stretches; and whether each takes one tick.
///
/// The shorter stretches have so many `instructions`, the longer ones twice as many.
fn calibrate(stretches: &[[u64; 2]], instructions: u64) -> (u64, bool) {
    let mut ticks = [0; MOST_REPEATS];
    let ticks = &mut ticks[..stretches.len()];
    for (place, [_, longer]) in ticks.iter_mut().zip(stretches) {
        *place = *longer;
    }
    ticks.sort_unstable();
    let median = tenths(ticks[ticks.len() / 2], 2 * instructions);
    let is_exact = stretches
        .iter()
        .all(|[shorter, longer]| longer.wrapping_sub(*shorter) == instructions);
    (median, is_exact)
}

impl Table {
    /// Decides what a tick is, says so, and prints the head of the table.
    ///
    /// `ring_3` and `ring_0` have the ticks of loops over `rounds` and over twice as many rounds.
    pub(crate) fn start(hypervisor: &str, rounds: u64, ring_3: &[[u64; 2]], ring_0: &[[u64; 2]]) -> Self {
        /// No real CPU takes as many ticks for one instruction of a loop of NOPs, in tenths.
        const SLOWEST_CPU: u64 = 100;
        /// What CPUID says where QEMU translates.
        const TRANSLATOR: &str = "TCGTCGTCGTCG";
        let (user, user_is_exact) = calibrate(ring_3, rounds * CALIBRATION);
        let (kernel, kernel_is_exact) = calibrate(ring_0, rounds * IRQFLAG_OVERHEAD);
        let tick = if user_is_exact && kernel_is_exact {
            Tick::Instruction
        } else if hypervisor == TRANSLATOR || user.max(kernel) > SLOWEST_CPU {
            Tick::Emulator
        } else {
            Tick::Cpu
        };
        println!(
            "clock: {} ticks an instruction in ring 3, {} in ring 0",
            Tenths(user),
            Tenths(kernel)
        );
        match tick {
            Tick::Instruction => {
                println!("An emulator that counts: one tick is one instruction.");
                println!("Instructions of one operation, without the loop around it:");
                println!("{:<NAME$}{:>12}{:>12}", "row", "min", "median");
            }
            Tick::Cpu => {
                match hypervisor {
                    "none" => println!("No hypervisor by CPUID: taken for the time of a real CPU."),
                    _ => println!("The time of a CPU, under a hypervisor."),
                }
                println!("Ticks of its time-stamp counter for one operation, the loop around it included:");
                println!("{:<NAME$}{:>12}{:>12}", "row", "min", "median");
            }
            Tick::Emulator => {
                println!("An emulator's time, which is no figure.");
                println!("How many times as long as the first row one operation takes here:");
                println!("{:<NAME$}{:>12}", "row", "ratio");
            }
        }
        Self {
            tick,
            stretches: RefCell::new(([Stretch { ticks: 0, idle: 0 }; 2 * MOST_REPEATS], 0)),
            first: Cell::new(None),
            measured: Cell::new(0),
            without: Cell::new(0),
            failed: Cell::new(0),
        }
    }

    /// Whether a tick is an instruction, so that those of a loop that waits can be taken away.
    pub(crate) fn counts_instructions(&self) -> bool {
        self.tick == Tick::Instruction
    }

    /// Takes a stretch of the row that is being measured.
    pub(crate) fn take(&self, ticks: u64, idle: u64) {
        let (stretches, count) = &mut *self.stretches.borrow_mut();
        stretches[*count] = Stretch { ticks, idle };
        *count += 1;
    }

    /// Prints a row, whose shorter stretches had `rounds` rounds and whose longer ones had twice as many.
    pub(crate) fn print(&self, row: &Row, rounds: u64) {
        let (stretches, count) = &mut *self.stretches.borrow_mut();
        let stretches = &stretches[..core::mem::take(count)];
        let mut amounts = [0; MOST_REPEATS];
        let amounts = &mut amounts[..stretches.len() / 2];
        let counts = self.counts_instructions();
        for (amount, pair) in amounts.iter_mut().zip(stretches.chunks_exact(2)) {
            let [shorter, longer] = [&pair[0], &pair[1]].map(|stretch| stretch.ticks.wrapping_sub(stretch.idle));
            // Of a time the longer stretch alone: what disturbs the shorter one must not make the difference small.
            *amount = if counts {
                longer.wrapping_sub(shorter).wrapping_sub(rounds * row.overhead)
            } else {
                longer
            };
        }
        amounts.sort_unstable();
        let operations = if counts { rounds } else { 2 * rounds } * row.operations;
        let smallest = tenths(amounts[0], operations);
        let median = tenths(amounts[amounts.len() / 2], operations);
        let name = row.name;
        if self.tick == Tick::Emulator {
            let first = self.first.get().unwrap_or(median).max(1);
            self.first.set(Some(first));
            println!("{name:<NAME$}{:>12}", Tenths(tenths(median, first)));
        } else {
            println!("{name:<NAME$}{:>12}{:>12}", Tenths(smallest), Tenths(median));
        }
        self.measured.set(self.measured.get() + 1);
    }

    /// Says why a row has no figure.
    pub(crate) fn omit(&self, name: &str, reason: &str) {
        println!("{name:<NAME$}{:>12}  {reason}", "-");
        self.without.set(self.without.get() + 1);
    }

    /// Counts a row that failed, and forgets what was measured of it.
    pub(crate) fn fail(&self) {
        self.stretches.borrow_mut().1 = 0;
        self.failed.set(self.failed.get() + 1);
    }

    /// Prints the last line.
    pub(crate) fn end(&self) {
        println!(
            "{} rows measured, {} without a figure, {} failed",
            self.measured.get(),
            self.without.get(),
            self.failed.get()
        );
    }
}

/// A number of tenths.
struct Tenths(u64);

impl core::fmt::Display for Tenths {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (whole, tenth) = (self.0 / 10, self.0 % 10);
        // Point and tenth take two of the columns.
        let width = f.width().unwrap_or(0).saturating_sub(2);
        write!(f, "{whole:>width$}.{tenth}")
    }
}
