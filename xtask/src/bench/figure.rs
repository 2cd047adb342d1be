//! The lines that the bench program prints, and the figures they give.
//!
//! Each repeat of a row is timed twice, with N and with 2N rounds. What the two have in common (the two
//! clock reads, the loop's start) drops out of the difference, so that
//! `((T2 - T1) / (R2 - R1) - L) / O` is exactly one operation.

use crate::bench::ratio::Ratio;

/// One timed stretch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Timing {
    /// Row name; empty for the calibration loop.
    pub(crate) row: String,
    /// How many rounds were timed.
    pub(crate) rounds: u64,
    /// Ticks of the time-stamp counter from the first clock read to the second.
    pub(crate) ticks: u64,
    /// Instructions of each round that are no part of an operation.
    pub(crate) overhead: u64,
    /// Operations in each round.
    pub(crate) operations: u64,
    /// Instructions of the whole stretch that are no part of an operation either: a loop that waits, and counts.
    pub(crate) idle: u64,
}

impl Timing {
    /// Whether the other one is the same stretch with more rounds.
    fn is_shorter_form_of(&self, other: &Self) -> bool {
        self.row == other.row
            && self.rounds < other.rounds
            && self.overhead == other.overhead
            && self.operations == other.operations
    }
}

/// A line of the bench program that the host acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// A timed stretch of a row.
    Timed(Timing),
    /// A timed stretch of the loop of known length.
    Calibration(Timing),
    /// A timed stretch of a loop of known length in ring 0; the clock is read there, too.
    Ring0(Timing),
    /// What CPUID says of the machine.
    Machine { hypervisor: String, cpu: String },
    /// A row that this kernel or CPU cannot run.
    Skip { row: String, reason: String },
    /// The check before timing failed, or the program was called wrongly.
    Failed(String),
}

fn field<'a>(rest: &'a str, name: &str) -> Option<&'a str> {
    rest.split_ascii_whitespace()
        .find_map(|token| token.strip_prefix(name)?.strip_prefix('='))
}

fn number(rest: &str, name: &str) -> Option<u64> {
    field(rest, name)?.parse().ok()
}

/// Reads one serial line.
///
/// `Ok(None)` is a line that is not meant for the host; `Err(())` one that is and cannot be read.
pub(crate) fn parse(line: &str) -> Result<Option<Line>, ()> {
    let Some(rest) = line.strip_prefix("[bench] ") else {
        return Ok(None);
    };
    if let Some(text) = rest.strip_prefix("error") {
        return Ok(Some(Line::Failed(text.trim().to_owned())));
    }
    if let Some(row) = field(rest, "skip") {
        let reason = rest.split_once("reason=").map_or("", |(_, reason)| reason);
        return Ok(Some(Line::Skip {
            row: row.to_owned(),
            reason: reason.trim().to_owned(),
        }));
    }
    if let Some(machine) = rest.strip_prefix("machine ") {
        let cpu = machine.split_once("cpu=").map_or("", |(_, name)| name);
        return Ok(Some(Line::Machine {
            hypervisor: field(machine, "hypervisor").ok_or(())?.to_owned(),
            cpu: cpu.trim().to_owned(),
        }));
    }
    let ring_0 = rest.starts_with("ring0");
    let calibration = ring_0 || rest.starts_with("calibration");
    let row = field(rest, "row");
    if row.is_none() && !calibration {
        return Ok(None);
    }
    let read = || {
        Some(Timing {
            row: row.unwrap_or_default().to_owned(),
            rounds: number(rest, "rounds")?,
            ticks: number(rest, "ticks")?,
            overhead: number(rest, "loop")?,
            operations: if calibration { 1 } else { number(rest, "ops")? },
            idle: if field(rest, "idle").is_some() {
                number(rest, "idle")?
            } else {
                0
            },
        })
    };
    match read() {
        Some(timing) if timing.operations == 0 || timing.rounds == 0 => Err(()),
        Some(timing) if ring_0 => Ok(Some(Line::Ring0(timing))),
        Some(timing) if calibration => Ok(Some(Line::Calibration(timing))),
        Some(timing) => Ok(Some(Line::Timed(timing))),
        None => Err(()),
    }
}

/// What one operation took, from two stretches of a repeat and any amount that was counted over each.
///
/// `overhead` is what each round adds to that amount besides its operations. `None` when both stretches
/// have the same number of rounds.
pub(crate) fn per_operation(shorter: (&Timing, u64), longer: (&Timing, u64), overhead: u64) -> Option<Ratio> {
    let amount = i128::from(longer.1) - i128::from(shorter.1);
    let rounds = i128::from(longer.0.rounds) - i128::from(shorter.0.rounds);
    Ratio::new(
        amount - i128::from(overhead) * rounds,
        rounds * i128::from(shorter.0.operations),
    )
}

/// One repeat of a row: positions of its two stretches among all timed stretches, and the stretches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repeat {
    /// The stretch with fewer rounds.
    pub(crate) shorter: (usize, Timing),
    /// The stretch with more rounds.
    pub(crate) longer: (usize, Timing),
}

impl Repeat {
    /// Ticks, and so instructions under an instruction clock, for one operation.
    pub(crate) fn ticks_per_operation(&self) -> Option<Ratio> {
        self.instructions_per_operation(self.shorter.1.ticks, self.longer.1.ticks)
    }

    /// The same from two counts of instructions, the shorter stretch's first.
    pub(crate) fn instructions_per_operation(&self, shorter: u64, longer: u64) -> Option<Ratio> {
        per_operation(
            (&self.shorter.1, shorter.checked_sub(self.shorter.1.idle)?),
            (&self.longer.1, longer.checked_sub(self.longer.1.idle)?),
            self.shorter.1.overhead,
        )
    }
}

/// Everything one boot of the bench program said.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Figures {
    /// The stretches of the calibration loop, a pair for each repeat.
    pub(crate) calibration: Vec<Repeat>,
    /// Two stretches of the loop in ring 0, which are none of the program's, for each repeat.
    pub(crate) ring_0: Vec<(Timing, Timing)>,
    /// Who runs the machine, and its CPU's name, by CPUID.
    pub(crate) machine: Option<(String, String)>,
    /// The rows in the order in which they were printed.
    pub(crate) rows: Vec<(String, Vec<Repeat>)>,
    /// Rows that cannot run here, with the reason.
    pub(crate) skipped: Vec<(String, String)>,
    /// Checks that failed before timing.
    pub(crate) failed: Vec<String>,
    /// How many stretches were timed.
    pub(crate) stretches: usize,
}

/// A sequence of lines that does not follow the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

impl Figures {
    /// Reads the serial output of one boot.
    pub(crate) fn read<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Self, Malformed> {
        let mut figures = Self::default();
        let mut open: Option<(usize, Timing)> = None;
        let mut open_ring_0: Option<Timing> = None;
        for line in lines {
            let (timing, calibration) = match parse(line).map_err(|()| Malformed(line.to_owned()))? {
                None => continue,
                Some(Line::Skip { row, reason }) => {
                    figures.skipped.push((row, reason));
                    continue;
                }
                Some(Line::Ring0(timing)) => {
                    match open_ring_0.take() {
                        None => open_ring_0 = Some(timing),
                        Some(shorter) if shorter.is_shorter_form_of(&timing) => figures.ring_0.push((shorter, timing)),
                        Some(_) => return Err(Malformed(line.to_owned())),
                    }
                    continue;
                }
                Some(Line::Machine { hypervisor, cpu }) => {
                    figures.machine = Some((hypervisor, cpu));
                    continue;
                }
                Some(Line::Failed(text)) => {
                    figures.failed.push(text);
                    continue;
                }
                Some(Line::Timed(timing)) => (timing, false),
                Some(Line::Calibration(timing)) => (timing, true),
            };
            let position = figures.stretches;
            figures.stretches += 1;
            let Some(shorter) = open.take() else {
                open = Some((position, timing));
                continue;
            };
            if !shorter.1.is_shorter_form_of(&timing) {
                return Err(Malformed(line.to_owned()));
            }
            let repeat = Repeat {
                shorter,
                longer: (position, timing),
            };
            if calibration {
                figures.calibration.push(repeat);
                continue;
            }
            let name = repeat.shorter.1.row.clone();
            match figures.rows.iter_mut().find(|(row, _)| *row == name) {
                Some((_, repeats)) => repeats.push(repeat),
                None => figures.rows.push((name, vec![repeat])),
            }
        }
        match open.map(|(_, timing)| timing).or(open_ring_0) {
            None => Ok(figures),
            Some(timing) => Err(Malformed(format!(
                "row={} rounds={} without its second stretch",
                timing.row, timing.rounds
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[&str] = &[
        "[boot] memory 128 MiB",
        "[bench] calibration rounds=100 ticks=207 loop=2",
        "[bench] calibration rounds=200 ticks=407 loop=2",
        "[bench] row=syscall/null/full rounds=10 ticks=655 loop=3 ops=1",
        "[bench] row=syscall/null/full rounds=20 ticks=1295 loop=3 ops=1",
        "[bench] skip=sysenter/null/64 reason=no SYSENTER in long mode",
        "[bench] row=syscall/null/full rounds=10 ticks=655 loop=3 ops=1",
        "[bench] row=syscall/null/full rounds=20 ticks=1295 loop=3 ops=1",
    ];

    #[test]
    fn difference_of_two_stretches_is_one_operation() {
        let figures = Figures::read(GOOD.iter().copied()).unwrap();
        assert_eq!(figures.calibration[0].ticks_per_operation(), Some(Ratio::ZERO));
        let (name, repeats) = &figures.rows[0];
        assert_eq!(name, "syscall/null/full");
        assert_eq!(repeats.len(), 2);
        assert_eq!(repeats[0].ticks_per_operation(), Some(Ratio::whole(61)));
        assert_eq!(repeats[1].longer.0, 5);
        assert_eq!(figures.stretches, 6);
        assert_eq!(
            figures.skipped,
            [("sysenter/null/64".to_owned(), "no SYSENTER in long mode".to_owned())]
        );
    }

    #[test]
    fn several_operations_in_a_round_share_it() {
        let lines = [
            "[bench] row=switch/yield/2p rounds=4 ticks=1300 loop=5 ops=2",
            "[bench] row=switch/yield/2p rounds=8 ticks=2520 loop=5 ops=2",
        ];
        let figures = Figures::read(lines).unwrap();
        assert_eq!(figures.rows[0].1[0].ticks_per_operation(), Some(Ratio::whole(150)));
    }

    #[test]
    fn waiting_is_subtracted_from_each_stretch() {
        let lines = [
            "[bench] row=interrupt/user rounds=4 ticks=1000 loop=3 ops=1 idle=688",
            "[bench] row=interrupt/user rounds=8 ticks=2100 loop=3 ops=1 idle=1476",
        ];
        let figures = Figures::read(lines).unwrap();
        let repeat = &figures.rows[0].1[0];
        assert_eq!(repeat.ticks_per_operation(), Some(Ratio::whole(75)));
        assert_eq!(repeat.instructions_per_operation(600, 2100), None);
    }

    #[test]
    fn rejects_waiting_that_is_no_number() {
        assert_eq!(parse("[bench] row=a rounds=1 ticks=1 loop=1 ops=1 idle=x"), Err(()));
    }

    #[test]
    fn machine_and_ring_0_are_no_stretches_of_the_program() {
        let lines = [
            "[bench] machine hypervisor=TCGTCGTCGTCG cpu=Intel Core Processor (Skylake)",
            GOOD[1],
            GOOD[2],
            "[bench] ring0 rounds=100 ticks=2207 loop=22",
            "[bench] ring0 rounds=200 ticks=4407 loop=22",
        ];
        let figures = Figures::read(lines).unwrap();
        assert_eq!(figures.stretches, 2);
        assert_eq!(figures.ring_0.len(), 1);
        assert!(Figures::read(lines[..4].iter().copied()).is_err());
        assert!(Figures::read([lines[4], lines[3]]).is_err());
        let machine = ("TCGTCGTCGTCG".to_owned(), "Intel Core Processor (Skylake)".to_owned());
        assert_eq!(figures.machine, Some(machine));
    }

    #[test]
    fn failed_check_is_kept() {
        let figures = Figures::read(["[bench] error row=syscall/getppid got 0"]).unwrap();
        assert_eq!(figures.failed, ["row=syscall/getppid got 0"]);
    }

    #[test]
    fn rejects_a_line_without_ticks() {
        let line = "[bench] row=syscall/null/full rounds=10 loop=3 ops=1";
        assert_eq!(Figures::read([line]), Err(Malformed(line.to_owned())));
    }

    #[test]
    fn rejects_zero_rounds_and_zero_operations() {
        assert_eq!(parse("[bench] row=a rounds=0 ticks=1 loop=1 ops=1"), Err(()));
        assert_eq!(parse("[bench] row=a rounds=1 ticks=1 loop=1 ops=0"), Err(()));
    }

    #[test]
    fn rejects_a_stretch_without_its_second() {
        assert!(Figures::read(GOOD[..2].iter().copied()).is_err());
        assert!(Figures::read([GOOD[3], GOOD[3]]).is_err());
    }
}
