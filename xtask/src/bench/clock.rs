//! What the guest's clock is, told from what the guest measured.
//!
//! Loops of known length in ring 3 and in ring 0, and the vendor that CPUID names, tell four clocks apart. Each
//! allows another kind of figure: only the instruction clock counts instructions, only a real CPU gives cycles.

use std::fmt;

use crate::bench::figure::{Figures, Timing};
use crate::bench::ratio::Ratio;

/// No real CPU takes as many ticks for one instruction of a loop of NOPs.
const SLOWEST_CPU: u32 = 10;
/// What CPUID says where QEMU translates.
const TRANSLATOR: &str = "TCGTCGTCGTCG";

/// What a tick is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One instruction, whatever it is.
    Instructions,
    /// Time of the host, in which QEMU translated and ran the guest.
    Translator,
    /// Time of a CPU that runs the guest itself.
    Hardware,
    /// Time of a hypervisor without VMX or SVM, which emulates what ring 0 does.
    SoftwareKvm,
}

impl Kind {
    /// The name in reports and JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Instructions => "icount",
            Self::Translator => "plain TCG",
            Self::Hardware => "hardware virtualisation",
            Self::SoftwareKvm => "software KVM",
        }
    }

    /// What may be said with such a clock.
    const fn use_of_it(self) -> &'static str {
        match self {
            Self::Instructions => "ticks are instructions, exact",
            Self::Translator => "ticks are the translator's time and no figures",
            Self::Hardware => "ticks are cycles of the time-stamp counter",
            Self::SoftwareKvm => "ticks are an emulation's time and no figures",
        }
    }
}

/// The clock, and what it was told from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Clock {
    /// What a tick is.
    pub(crate) kind: Kind,
    /// Ticks for one instruction in ring 3.
    ring_3: Ratio,
    /// Ticks for one instruction in ring 0.
    ring_0: Ratio,
    /// The vendor that CPUID names.
    hypervisor: String,
    /// The CPU that CPUID names.
    pub(crate) cpu: String,
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} ticks an instruction in ring 3, {} in ring 0, under {}; {}",
            self.kind.name(),
            self.ring_3,
            self.ring_0,
            called(&self.hypervisor),
            self.kind.use_of_it()
        )
    }
}

/// Who runs the machine, as people call it.
fn called(hypervisor: &str) -> &str {
    match hypervisor {
        TRANSLATOR => "QEMU's translator",
        "KVMKVMKVM" => "KVM",
        "none" => "no hypervisor",
        other => other,
    }
}

/// Ticks of one instruction of a loop, from two stretches of it.
fn ticks(shorter: &Timing, longer: &Timing) -> Option<Ratio> {
    let rounds = i128::from(longer.rounds) - i128::from(shorter.rounds);
    let ticks = i128::from(longer.ticks) - i128::from(shorter.ticks);
    Ratio::new(ticks, rounds * i128::from(shorter.overhead))
}

/// What pairs of stretches of one loop say.
struct Pairs {
    /// Whether each instruction of each pair took one tick.
    exact: bool,
    /// Ticks for one instruction, by the quickest stretch of each length: what comes between makes a stretch longer only.
    quickest: Ratio,
}

impl Pairs {
    /// `None` without a pair, or with pairs that differ in more than their ticks.
    fn of<'a>(pairs: impl IntoIterator<Item = (&'a Timing, &'a Timing)>) -> Option<Self> {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let shorter = pairs.iter().map(|pair| pair.0).min_by_key(|timing| timing.ticks)?;
        let longer = pairs.iter().map(|pair| pair.1).min_by_key(|timing| timing.ticks)?;
        let one = Some(Ratio::whole(1));
        Some(Self {
            exact: pairs.iter().all(|(shorter, longer)| ticks(shorter, longer) == one),
            quickest: ticks(shorter, longer)?,
        })
    }
}

/// Decides; `None` when the guest did not measure what is needed, or twice the work took it no longer.
pub(crate) fn decide(figures: &Figures) -> Option<Clock> {
    let ring_3 = figures.calibration.iter();
    let ring_3 = Pairs::of(ring_3.map(|repeat| (&repeat.shorter.1, &repeat.longer.1)))?;
    let ring_0 = Pairs::of(figures.ring_0.iter().map(|(shorter, longer)| (shorter, longer)))?;
    let (hypervisor, cpu) = figures.machine.clone()?;
    let (quickest, slowest) = (
        ring_3.quickest.min(ring_0.quickest),
        ring_3.quickest.max(ring_0.quickest),
    );
    let kind = if ring_3.exact && ring_0.exact {
        Kind::Instructions
    } else if hypervisor == TRANSLATOR {
        Kind::Translator
    } else if quickest <= Ratio::ZERO {
        return None;
    } else if slowest > Ratio::whole(SLOWEST_CPU) {
        Kind::SoftwareKvm
    } else {
        Kind::Hardware
    };
    Some(Clock {
        kind,
        ring_3: ring_3.quickest,
        ring_0: ring_0.quickest,
        hypervisor,
        cpu,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a guest prints whose instructions take so many ticks, over `rounds` and twice as many rounds.
    fn kind(hypervisor: &str, ring_3: f64, ring_0: f64) -> Option<Kind> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small positive figures"
        )]
        let ticks = |each: f64, rounds: u32, length: u32| (each * f64::from(rounds * length)) as u64 + 7;
        let line = |name: &str, each, rounds, length| {
            let ticks = ticks(each, rounds, length);
            format!("[bench] {name} rounds={rounds} ticks={ticks} loop={length}")
        };
        let lines = [
            format!("[bench] machine hypervisor={hypervisor} cpu=Some CPU"),
            line("calibration", ring_3, 128, 10),
            line("calibration", ring_3, 256, 10),
            line("ring0", ring_0, 128, 22),
            line("ring0", ring_0, 256, 22),
        ];
        let figures = Figures::read(lines.iter().map(String::as_str)).unwrap();
        decide(&figures).map(|clock| clock.kind)
    }

    #[test]
    fn each_clock_is_told_by_its_figures() {
        assert_eq!(kind(TRANSLATOR, 1.0, 1.0), Some(Kind::Instructions));
        assert_eq!(kind(TRANSLATOR, 1.7, 1.4), Some(Kind::Translator));
        assert_eq!(kind(TRANSLATOR, 40.0, 41.0), Some(Kind::Translator));
        assert_eq!(kind("KVMKVMKVM", 0.3, 0.3), Some(Kind::Hardware));
        assert_eq!(kind("none", 0.3, 0.3), Some(Kind::Hardware));
        assert_eq!(kind("KVMKVMKVM", 0.3, 5000.0), Some(Kind::SoftwareKvm));
    }

    #[test]
    fn those_that_run_machines_are_called_by_their_names() {
        let clock = Clock {
            kind: Kind::Hardware,
            ring_3: Ratio::whole(1),
            ring_0: Ratio::whole(2),
            hypervisor: "KVMKVMKVM".to_owned(),
            cpu: String::new(),
        };
        assert_eq!(
            clock.to_string(),
            "hardware virtualisation: 1 ticks an instruction in ring 3, 2 in ring 0, under KVM; ticks are cycles of the \
             time-stamp counter"
        );
        assert_eq!(called(TRANSLATOR), "QEMU's translator");
        assert_eq!(called("VMwareVMware"), "VMwareVMware");
    }

    #[test]
    fn a_clock_that_is_exact_in_ring_3_alone_counts_no_instructions() {
        assert_eq!(kind(TRANSLATOR, 1.0, 1.1), Some(Kind::Translator));
        assert_eq!(kind(TRANSLATOR, 1.1, 1.0), Some(Kind::Translator));
    }

    /// What a guest prints whose loops, of 10 instructions a round, took so many ticks over 100 and over 200 rounds.
    fn of_pairs(hypervisor: &str, ring_3: &[[u64; 2]], ring_0: &[[u64; 2]]) -> Option<Clock> {
        let mut lines = vec![format!("[bench] machine hypervisor={hypervisor} cpu=Some CPU")];
        for (name, pairs) in [("calibration", ring_3), ("ring0", ring_0)] {
            for (ticks, rounds) in pairs.iter().flatten().zip([100, 200].into_iter().cycle()) {
                lines.push(format!("[bench] {name} rounds={rounds} ticks={ticks} loop=10"));
            }
        }
        decide(&Figures::read(lines.iter().map(String::as_str)).unwrap())
    }

    #[test]
    fn interrupts_in_single_stretches_are_no_part_of_the_clock() {
        let calm = [[1007, 2007], [1007, 2007]];
        let hit = [[900_007, 1_300], [550, 70_000], [540, 900_000]];
        let clock = of_pairs("KVMKVMKVM", &hit, &hit).unwrap();
        assert_eq!(clock.kind, Kind::Hardware);
        assert_eq!(clock.ring_0.to_string(), "0.76");
        assert_eq!(of_pairs(TRANSLATOR, &calm, &calm).unwrap().kind, Kind::Instructions);
        // One stretch that is not exact, and the clock counts no instructions.
        let nearly = [[1007, 2007], [1007, 2008]];
        assert_eq!(of_pairs(TRANSLATOR, &nearly, &calm).unwrap().kind, Kind::Translator);
        assert_eq!(of_pairs(TRANSLATOR, &calm, &nearly).unwrap().kind, Kind::Translator);
    }

    #[test]
    fn nothing_is_decided_without_figures() {
        assert_eq!(decide(&Figures::default()), None);
        let calm = [[500, 1000]];
        assert_eq!(of_pairs("KVMKVMKVM", &calm, &[]), None);
        assert_eq!(of_pairs("KVMKVMKVM", &calm, &[[70_000, 1000]]), None);
        assert_eq!(of_pairs("KVMKVMKVM", &[[1000, 1000]], &calm), None);
    }
}
