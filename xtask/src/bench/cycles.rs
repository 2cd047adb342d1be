//! Cycles of each row on the host's own CPU, where there is real virtualisation.
//!
//! One boot. A repeat of every row is made before the next repeat of any, and every second time in the opposite order, so
//! that what changes with time, as a clock rate does, changes for all rows alike. The emulator, and nothing of ours besides,
//! is kept on one CPU, and the first repeats only warm it up. Of the others the median counts, with an interval for it;
//! outliers are shown, not left out.

use statrs::distribution::{Binomial, DiscreteCDF};
use statrs::statistics::{Data, OrderStatistics};

use crate::bench::Plan;
use crate::bench::clock::{self, Clock, Kind};
use crate::bench::figure::{Figures, Repeat};
use crate::build::Built;
use crate::error::Result;
use crate::machine::guest::{Ended, NoLog};
use crate::machine::{self, Accel, Boot, Machine, Qemu};
use crate::progress::Progress;
use crate::test::Counts;

/// Repeats that are thrown away: caches, branch predictors and the clock rate settle.
const WARM_UP: usize = 3;
/// Repeats that are made.
const REPEATS: u32 = 31 + 3;
/// Rounds of the shorter stretch.
const ROUNDS: u32 = 4096;
/// How sure the interval for the median is.
const CONFIDENCE: f64 = 0.95;

/// What the samples of a row say.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cycles {
    /// The middle one.
    pub(crate) median: f64,
    /// Between these two the median of all that could have been measured lies, with 95 % confidence.
    pub(crate) interval: (f64, f64),
    /// Samples farther from the middle half than one and a half times its width, smallest first.
    pub(crate) outliers: Vec<f64>,
    /// How many samples there are.
    pub(crate) samples: usize,
}

/// The CPU on which the cycles passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// Its model, and its microcode where the host tells it.
    pub(crate) name: String,
    /// Its number.
    pub(crate) number: usize,
    /// What the guest measured of the clock.
    pub(crate) clock: String,
}

/// Sums samples up; `None` when there is none.
fn sum_up(mut samples: Vec<f64>) -> Option<Cycles> {
    samples.sort_by(f64::total_cmp);
    let count = samples.len();
    if count == 0 {
        return None;
    }
    // The k smallest and the k largest samples are left out, as many as leave the confidence: how many samples are below
    // the true median is a binomial matter, whatever their distribution is.
    let below = Binomial::new(0.5, u64::try_from(count).ok()?).ok()?;
    let is_unlikely = |most: &u64| below.cdf(*most) < (1.0 - CONFIDENCE) / 2.0;
    let rank = (0..).take_while(is_unlikely).count().max(1);
    let interval = (*samples.get(rank - 1)?, *samples.get(count.checked_sub(rank)?)?);
    let mut data = Data::new(samples.clone());
    let (median, lower, upper) = (data.median(), data.lower_quartile(), data.upper_quartile());
    let fence = 1.5 * (upper - lower);
    samples.retain(|sample| *sample < lower - fence || *sample > upper + fence);
    Some(Cycles {
        median,
        interval,
        outliers: samples,
        samples: count,
    })
}

/// The cycles of a row's operation in the figures of an interleaved boot.
pub(crate) fn of(figures: &Figures, row: &str) -> Option<Cycles> {
    let (_, repeats) = figures.rows.iter().find(|(name, _)| name == row)?;
    let repeats = repeats.iter().skip(WARM_UP);
    let samples: Option<Vec<f64>> = repeats
        .map(|repeat| Some(Repeat::ticks_per_operation(repeat)?.as_f64()))
        .collect();
    sum_up(samples?)
}

/// The clock, which must be a real CPU's; else what it is.
fn real_clock(figures: &Figures) -> std::result::Result<Clock, String> {
    match clock::decide(figures) {
        Some(clock) if clock.kind == Kind::Hardware => Ok(clock),
        Some(clock) => Err(format!("the guest's clock is {clock}")),
        None => Err("the guest's clock cannot be told: too much ran beside it".to_owned()),
    }
}

/// The interleaved boot.
fn boot(
    plan: &Plan,
    machine: &Machine,
    (rounds, repeats): (u32, u32),
    rows: &[&str],
    progress: &Progress,
) -> Result<(Ended, Figures)> {
    let machine = Machine {
        boot: Boot {
            append: plan.interleaved_command_line(rounds, repeats, rows),
            ..machine.boot.clone()
        },
        ..machine.clone()
    };
    plan.boot(&machine, progress, &mut NoLog)
}

/// A field of the host's first CPU.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        (field.trim() == name).then_some(value.trim())
    })
}

/// The host's CPU by name, with its microcode.
fn name(cpuinfo: &str) -> String {
    let model = field(cpuinfo, "model name").unwrap_or("of unknown model");
    let microcode = field(cpuinfo, "microcode").unwrap_or("not told");
    format!("{model}, microcode {microcode}")
}

/// Times the rows on the host's CPU; says why where that cannot be.
pub(crate) fn measure(plan: &Plan, choice: machine::AccelChoice, rows: &[&str]) -> Result<Option<(Host, Figures)>> {
    let (accel, why) = match choice {
        machine::AccelChoice::Tcg => return Ok(None),
        choice => machine::choose(choice)?,
    };
    if accel != Accel::Kvm {
        eprintln!("no cycles: {why}");
        return Ok(None);
    }
    eprintln!("cycles from KVM ({why})");
    let Some(number) = machine::last_cpu() else {
        println!("no cycles: the host does not say which CPUs there are");
        return Ok(None);
    };
    let machine = Machine {
        accel,
        on_cpu: Some(number),
        cpu: "host".to_owned(),
        clock: machine::Clock::Host,
        ..plan.machine.clone()
    };
    let progress = Progress::start("timing on the host's CPU");
    let (_, figures) = boot(plan, &machine, (ROUNDS, REPEATS), rows, &progress)?;
    drop(progress);
    match real_clock(&figures) {
        Ok(clock) => {
            let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let host = Host {
                name: name(&cpuinfo),
                number,
                clock: clock.to_string(),
            };
            Ok(Some((host, figures)))
        }
        Err(why) => {
            println!("no cycles: {why}");
            Ok(None)
        }
    }
}

/// The test's name, for filters.
const NAME: &str = "cycles::interleaved_boot_gives_samples";
/// Two rows, and how often.
const REHEARSED: ([&str; 2], u32) = (["syscall/null/full", "syscall/null/iret"], 12);

/// What is wrong with an interleaved boot under the instruction clock, by which all samples of a row are the same.
fn wrong(lines: &[String], figures: &Figures) -> Vec<String> {
    let (rows, repeats) = REHEARSED;
    let mut wrong = Vec::new();
    let order: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("[bench] row=")?.split(' ').next())
        .collect();
    // Two stretches each time.
    let forth = [rows[0], rows[0], rows[1], rows[1]];
    let back = [rows[1], rows[1], rows[0], rows[0]];
    let wanted = [forth, back].concat().repeat(repeats as usize / 2);
    if order != wanted {
        wrong.push(format!("rows were timed in the order {order:?}"));
    }
    for row in rows {
        match of(figures, row) {
            Some(cycles)
                if cycles.samples == repeats as usize - WARM_UP
                    && cycles.interval == (cycles.median, cycles.median)
                    && cycles.outliers.is_empty() => {}
            other => wrong.push(format!("{row}: {other:?}")),
        }
    }
    let calibrations = (figures.calibration.len(), figures.ring_0.len());
    if calibrations != (repeats as usize, repeats as usize) {
        wrong.push(format!("the clock was measured {calibrations:?} times in ring 3 and 0"));
    }
    match real_clock(figures) {
        Err(why) if why.contains(Kind::Instructions.name()) => {}
        other => wrong.push(format!("ticks that are instructions were taken for {other:?}")),
    }
    wrong
}

/// Everything but the clock: an interleaved boot of the translator, whose samples are summed up, and refused as cycles.
pub(crate) fn rehearse(built: &Built, qemu: &Qemu, filter: Option<&str>, options: &machine::Options) -> Result<Counts> {
    let mut counts = Counts::default();
    if filter.is_some_and(|filter| !NAME.contains(filter)) {
        return Ok(counts);
    }
    let plan = Plan::counting(built, qemu, options);
    let (rows, repeats) = REHEARSED;
    let progress = Progress::start("timing two rows in turn");
    let (ended, figures) = boot(&plan, &plan.machine, (64, repeats), &rows, &progress)?;
    drop(progress);
    let wrong = wrong(&ended.lines, &figures);
    if wrong.is_empty() {
        counts.passed = 1;
    } else {
        println!("FAILED   {NAME}: {}", wrong.join("; "));
        counts.failed = 1;
    }
    println!("cycles: {}", counts.line());
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 31 samples of one row as a CPU might give them, after three of a cold one: 100 to 104, and two that an interrupt
    /// fell into.
    fn recorded() -> Figures {
        let mut lines = Vec::new();
        let mut samples = vec![900, 400, 300];
        samples.extend((0..29).map(|number| 100 + number % 5));
        samples.extend([180, 2500]);
        for sample in samples {
            lines.push("[bench] row=syscall/null/full rounds=10 ticks=5000 loop=3 ops=1".to_owned());
            lines.push(format!(
                "[bench] row=syscall/null/full rounds=20 ticks={} loop=3 ops=1",
                5000 + 10 * (sample + 3)
            ));
        }
        Figures::read(lines.iter().map(String::as_str)).unwrap()
    }

    #[test]
    fn samples_give_median_interval_and_outliers() {
        let cycles = of(&recorded(), "syscall/null/full").unwrap();
        assert_eq!(cycles.samples, 31);
        assert!((cycles.median - 102.0).abs() < 1e-9);
        // The tenth from either end.
        assert_eq!(cycles.interval, (101.0, 103.0));
        assert_eq!(cycles.outliers, [180.0, 2500.0]);
        assert_eq!(of(&recorded(), "syscall/null/iret"), None);
    }

    #[test]
    fn interval_of_many_samples_is_narrow_and_of_few_is_all() {
        let all = |count: u32| sum_up((1..=count).map(f64::from).collect()).unwrap();
        // By tables of the sign test: ranks 10 and 22 of 31, 1 and 6 of 6.
        assert_eq!(all(31).interval, (10.0, 22.0));
        assert_eq!(all(6).interval, (1.0, 6.0));
        assert_eq!(all(3).interval, (1.0, 3.0));
        assert_eq!(all(31).median.to_string(), "16");
        assert_eq!(sum_up(Vec::new()), None);
    }

    #[test]
    fn cpu_is_named_with_its_microcode() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nmicrocode\t: 0x2b000603\n\nprocessor\t: 1\n";
        assert_eq!(name(cpuinfo), "Some CPU @ 2.00GHz, microcode 0x2b000603");
        assert_eq!(name(""), "of unknown model, microcode not told");
    }

    #[test]
    fn rehearsal_notices_rows_that_are_not_interleaved() {
        let (rows, repeats) = REHEARSED;
        let lines = |order: &mut dyn Iterator<Item = &'static str>| -> Vec<String> {
            let calibration = [
                "[bench] machine hypervisor=TCGTCGTCGTCG cpu=x",
                "[bench] calibration rounds=10 ticks=103 loop=10",
                "[bench] calibration rounds=20 ticks=203 loop=10",
                "[bench] ring0 rounds=10 ticks=225 loop=22",
                "[bench] ring0 rounds=20 ticks=445 loop=22",
            ];
            let rows = order.flat_map(|row| {
                [(10, 655), (20, 1295)]
                    .map(|(rounds, ticks)| format!("[bench] row={row} rounds={rounds} ticks={ticks} loop=3 ops=1"))
            });
            let calibration = calibration.repeat(repeats as usize);
            calibration.iter().map(|line| (*line).to_owned()).chain(rows).collect()
        };
        let wrong_of = |lines: Vec<String>| wrong(&lines, &Figures::read(lines.iter().map(String::as_str)).unwrap());
        let turns = [rows[0], rows[1], rows[1], rows[0]].repeat(repeats as usize / 2);
        assert_eq!(wrong_of(lines(&mut turns.into_iter())), Vec::<String>::new());
        let one_by_one = rows.into_iter().flat_map(|row| [row].repeat(repeats as usize));
        assert_eq!(wrong_of(lines(&mut one_by_one.into_iter())).len(), 1);
    }
}
