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
    first: Cell<Option<i64>>,
    measured: Cell<u32>,
    without: Cell<u32>,
}

/// `amount / parts` in tenths, rounded.
const fn tenths(amount: i64, parts: i64) -> i64 {
    let twice = 20 * amount / parts;
    (twice + 1).div_euclid(2)
}

/// Median of the differences of two stretches, and whether they are all `wanted`.
fn calibrated(stretches: &[[u64; 2]], wanted: u64) -> (i64, bool) {
    let mut differences = [0; MOST_REPEATS];
    let differences = &mut differences[..stretches.len()];
    for (place, [shorter, longer]) in differences.iter_mut().zip(stretches) {
        *place = longer.wrapping_sub(*shorter).cast_signed();
    }
    differences.sort_unstable();
    let is_exact = differences.iter().all(|&ticks| ticks == wanted.cast_signed());
    (differences[differences.len() / 2], is_exact)
}

impl Table {
    /// Decides what a tick is, says so, and prints the head of the table.
    ///
    /// `ring_3` and `ring_0` have the ticks of loops over `rounds` and over twice as many rounds.
    pub(crate) fn start(hypervisor: &str, rounds: u64, ring_3: &[[u64; 2]], ring_0: &[[u64; 2]]) -> Self {
        /// No real CPU takes as many ticks for one instruction of a loop of NOPs, in tenths.
        const SLOWEST_CPU: i64 = 100;
        /// What CPUID says where QEMU translates.
        const TRANSLATOR: &str = "TCGTCGTCGTCG";
        let instructions = rounds * CALIBRATION;
        let (user, user_is_exact) = calibrated(ring_3, instructions);
        let user = tenths(user, instructions.cast_signed());
        let instructions = rounds * IRQFLAG_OVERHEAD;
        let (kernel, kernel_is_exact) = calibrated(ring_0, instructions);
        let kernel = tenths(kernel, instructions.cast_signed());
        let tick = if user_is_exact && kernel_is_exact {
            Tick::Instruction
        } else if hypervisor == TRANSLATOR || user.max(kernel) > SLOWEST_CPU || user.min(kernel) < 0 {
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
        let name = row.name;
        // Shorter and longer stretches apart: whatever disturbs one of them must not pass for a quick operation.
        let mut ticks = [[0; MOST_REPEATS]; 2];
        let repeats = stretches.len() / 2;
        for (number, stretch) in stretches.iter().enumerate() {
            ticks[number % 2][number / 2] = stretch.ticks.wrapping_sub(stretch.idle).cast_signed();
        }
        for ticks in &mut ticks {
            ticks[..repeats].sort_unstable();
        }
        let overhead = if self.counts_instructions() {
            rounds * row.overhead
        } else {
            0
        };
        let each = |rank: usize| {
            let amount = ticks[1][rank] - ticks[0][rank] - overhead.cast_signed();
            tenths(amount, (rounds * row.operations).cast_signed())
        };
        let (smallest, median) = (each(0), each(repeats / 2));
        if self.tick == Tick::Emulator {
            let first = self.first.get().unwrap_or(median);
            if median < 0 || first <= 0 {
                return self.omit(name, "lost in the noise of the clock");
            }
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

    /// Prints the last line.
    pub(crate) fn end(&self, failed: u32) {
        println!(
            "{} rows measured, {} without a figure, {failed} failed",
            self.measured.get(),
            self.without.get()
        );
    }
}

/// A number of tenths.
struct Tenths(i64);

impl core::fmt::Display for Tenths {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (whole, tenth) = (self.0 / 10, self.0.unsigned_abs() % 10);
        // Point and tenth take two of the columns.
        let width = f.width().unwrap_or(0).saturating_sub(2);
        write!(f, "{whole:>width$}.{tenth}")
    }
}
