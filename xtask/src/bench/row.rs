//! The rows of the benchmark: seed, target, what Linux takes, and the events each name promises.

use crate::bench::event::Event;

/// What Linux 6.1 takes for the same in the same emulator, instructions on a Haswell model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linux {
    /// With mitigations off and the optional work of the entry path configured away.
    pub(crate) lean: u32,
    /// With the distribution's command line.
    pub(crate) default: u32,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// The stable name, used by filters and in JSON.
    pub(crate) name: &'static str,
    /// The experiment that the row reproduces, if any.
    pub(crate) seed: Option<&'static str>,
    /// At most so many instructions.
    pub(crate) target: Option<u32>,
    /// Linux beside it.
    pub(crate) linux: Option<Linux>,
    /// What happens in each operation.
    pub(crate) promise: Promise,
    /// Whether each round maps another page, and so every 512th another page table.
    pub(crate) maps_pages: bool,
    /// Whether it is run only when asked for by name: its instructions are those of a row that is run anyway, and only its
    /// cycles differ.
    pub(crate) on_request: bool,
}

/// Exact number of events in each operation. An event of which nothing is said is only reported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Promise([Option<u32>; Event::ALL.len()]);

impl Promise {
    /// The same, with so many of an event.
    const fn with(mut self, event: Event, count: u32) -> Self {
        self.0[event as usize] = Some(count);
        self
    }

    /// What is promised of each event of which anything is.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Event, u32)> {
        let all = Event::ALL.into_iter().zip(self.0);
        all.filter_map(|(event, count)| Some((event, count?)))
    }
}

impl Row {
    const fn seed(mut self, seed: &'static str) -> Self {
        self.seed = Some(seed);
        self
    }

    const fn at_most(mut self, instructions: u32) -> Self {
        self.target = Some(instructions);
        self
    }

    const fn beside(mut self, lean: u32, default: u32) -> Self {
        self.linux = Some(Linux { lean, default });
        self
    }

    const fn maps_pages(mut self) -> Self {
        self.maps_pages = true;
        self
    }

    const fn on_request(mut self) -> Self {
        self.on_request = true;
        self
    }
}

const fn row(name: &'static str, promise: Promise) -> Row {
    Row {
        name,
        seed: None,
        target: None,
        linux: None,
        promise,
        maps_pages: false,
        on_request: false,
    }
}

/// No way to leave the kernel, and nothing in between.
const NOTHING: Promise = Promise([None; Event::ALL.len()])
    .with(Event::Sysret, 0)
    .with(Event::Iret, 0)
    .with(Event::Fault, 0)
    .with(Event::Interrupt, 0)
    .with(Event::Switch, 0);
/// Left by SYSRET.
const BY_SYSRET: Promise = NOTHING.with(Event::Sysret, 1);
/// As [`BY_SYSRET`], with CLI and POPF around each of two transitions.
const BY_SYSRET_WITH_SAVED_FLAG: Promise = BY_SYSRET.with(Event::InterruptFlag, 4);
/// As [`BY_SYSRET`], with the interrupt flag as SYSCALL left it.
const BY_SYSRET_WITH_FLAG_UNTOUCHED: Promise = BY_SYSRET.with(Event::InterruptFlag, 0);
/// Left by IRET.
const BY_IRET: Promise = NOTHING.with(Event::Iret, 1);
/// An exception, left by IRET.
const FAULT_BY_IRET: Promise = BY_IRET.with(Event::Fault, 1);
/// An interrupt, left by IRET.
const INTERRUPT_BY_IRET: Promise = BY_IRET.with(Event::Interrupt, 1);
/// An interrupt between STI and CLI in the kernel.
const INTERRUPT_IN_KERNEL: Promise = INTERRUPT_BY_IRET.with(Event::InterruptFlag, 2);
/// An exception, left by SYSRET.
const FAULT_BY_SYSRET: Promise = BY_SYSRET.with(Event::Fault, 1);

/// A hop of a ring whose processes enter by SYSENTER: one to write, one to read.
const HOP: Promise = NOTHING
    .with(Event::Switch, 1)
    .with(Event::Sysenter, 2)
    .with(Event::Sysret, 2);
/// The switch writes the stack's register.
const BY_WRMSR: Promise = HOP.with(Event::Wrmsr, 1);
/// It does not.
const WITHOUT_WRMSR: Promise = HOP.with(Event::Wrmsr, 0);

/// A row whose memory, if any, is read by instructions that are no part of the hop.
const fn ring(name: &'static str, promise: Promise) -> Row {
    row(name, promise).seed("002").at_most(600)
}

/// A call in protected mode.
const PROTECTED_CALL: Promise = NOTHING
    .with(Event::Sysenter, 1)
    .with(Event::Sysexit, 1)
    .with(Event::Wrmsr, 0)
    .with(Event::Cr3, 0);
/// SYSENTER finds the stack in its register.
const PROTECTED_DIRECT: Promise = PROTECTED_CALL.with(Event::StackLoad, 0);
/// The trampoline loads it.
const PROTECTED_LOADED: Promise = PROTECTED_CALL.with(Event::StackLoad, 1);

/// A hop of two tasks in protected mode.
const PROTECTED_HOP: Promise = PROTECTED_CALL.with(Event::Switch, 1).with(Event::Cr3, 1);
/// The switch writes two registers and loads the other task's ESP.
const PROTECTED_BY_WRMSR: Promise = PROTECTED_HOP.with(Event::Wrmsr, 2).with(Event::StackLoad, 1);
/// Each entry loads ESP, and the switch the other task's.
const PROTECTED_BY_TRAMPOLINE: Promise = PROTECTED_HOP.with(Event::StackLoad, 2);

/// Every row, in the order of the report.
pub(crate) const ROWS: &[Row] = &[
    row("syscall/null/full", BY_SYSRET)
        .seed("003")
        .at_most(64)
        .beside(194, 221),
    row("syscall/null/iret", BY_IRET).seed("000").at_most(66),
    row("syscall/null/floor", BY_SYSRET).at_most(8),
    row("syscall/null/lean", BY_SYSRET)
        .seed("003")
        .at_most(36)
        .beside(194, 221),
    row("syscall/null/full-clear", BY_SYSRET)
        .seed("003")
        .at_most(78)
        .beside(194, 221),
    row("syscall/null/kpti", BY_SYSRET.with(Event::Cr3, 2))
        .at_most(74)
        .beside(194, 221),
    row("syscall/null/int80", FAULT_BY_IRET).at_most(66),
    row("sysenter/null/64", BY_SYSRET.with(Event::Sysenter, 1))
        .seed("002")
        .at_most(72)
        .beside(194, 221),
    row("syscall/null/irqs-on", BY_SYSRET_WITH_FLAG_UNTOUCHED)
        .seed("003")
        .at_most(64)
        .beside(194, 221),
    row("int80/null/32", FAULT_BY_IRET.with(Event::Sysenter, 0))
        .seed("002")
        .at_most(72),
    row("sysenter/null/32", BY_SYSRET.with(Event::Sysenter, 1))
        .seed("002")
        .at_most(72)
        .beside(221, 247),
    row("syscall/null/32", BY_SYSRET.with(Event::Sysenter, 0))
        .seed("002")
        .at_most(72),
    row("syscall/getppid", BY_SYSRET).at_most(105).beside(308, 341),
    row("fault/zero-page/iret", FAULT_BY_IRET)
        .seed("000")
        .at_most(240)
        .beside(1125, 1254)
        .maps_pages(),
    row("fault/zero-page/sysret-dead", FAULT_BY_SYSRET)
        .seed("000")
        .at_most(260)
        .beside(1125, 1254)
        .maps_pages(),
    row("fault/zero-page/sysret-landing", FAULT_BY_SYSRET)
        .seed("000")
        .at_most(310)
        .beside(1125, 1254)
        .maps_pages(),
    row("exception/user", FAULT_BY_IRET).at_most(72),
    row("exception/kernel", FAULT_BY_IRET),
    row("fault/floor", FAULT_BY_IRET).seed("000"),
    row("interrupt/user", INTERRUPT_BY_IRET).at_most(75).beside(2543, 2635),
    row("interrupt/user/irqs-on", INTERRUPT_BY_IRET)
        .seed("003")
        .at_most(87)
        .beside(2543, 2635),
    row("interrupt/kernel", INTERRUPT_IN_KERNEL),
    row("interrupt/kernel/irqs-on", INTERRUPT_IN_KERNEL).seed("003"),
    row("interrupt/window/irqs-on", INTERRUPT_IN_KERNEL).seed("003"),
    row("switch/yield/2p", BY_SYSRET.with(Event::Switch, 1))
        .seed("002")
        .at_most(240)
        .beside(1940, 2080),
    row(
        "switch/yield/2p/bases-wrmsr",
        BY_SYSRET.with(Event::Switch, 1).with(Event::Wrmsr, 2),
    )
    .seed("002"),
    row(
        "switch/yield/2p/bases-fsgsbase",
        BY_SYSRET.with(Event::Switch, 1).with(Event::Wrmsr, 0),
    )
    .seed("002"),
    row(
        "switch/pipe/2p-0k/syscall",
        NOTHING.with(Event::Switch, 1).with(Event::Sysret, 2),
    )
    .seed("002")
    .at_most(600)
    .beside(5871, 6341),
    ring("switch/pipe/2p-0k/wrmsr", BY_WRMSR).beside(5871, 6341),
    ring("switch/pipe/2p-0k/trampoline", WITHOUT_WRMSR).beside(5871, 6341),
    ring("switch/pipe/2p-0k/tss", WITHOUT_WRMSR).beside(5871, 6341),
    ring("switch/pipe/2p-16k/wrmsr", BY_WRMSR).on_request(),
    ring("switch/pipe/2p-16k/trampoline", WITHOUT_WRMSR).on_request(),
    ring("switch/pipe/2p-16k/tss", WITHOUT_WRMSR).on_request(),
    ring("switch/pipe/2p-64k/wrmsr", BY_WRMSR).on_request(),
    ring("switch/pipe/2p-64k/trampoline", WITHOUT_WRMSR).on_request(),
    ring("switch/pipe/2p-64k/tss", WITHOUT_WRMSR).on_request(),
    ring("switch/pipe/8p-16k/wrmsr", BY_WRMSR).on_request(),
    ring("switch/pipe/8p-16k/trampoline", WITHOUT_WRMSR).on_request(),
    ring("switch/pipe/8p-16k/tss", WITHOUT_WRMSR).on_request(),
    ring("switch/pipe/8p-64k/wrmsr", BY_WRMSR).on_request(),
    ring("switch/pipe/8p-64k/trampoline", WITHOUT_WRMSR).on_request(),
    ring("switch/pipe/8p-64k/tss", WITHOUT_WRMSR).on_request(),
    ring("switch/pipe/16p-16k/wrmsr", BY_WRMSR).on_request(),
    ring("switch/pipe/16p-16k/trampoline", WITHOUT_WRMSR).on_request(),
    ring("switch/pipe/16p-16k/tss", WITHOUT_WRMSR).on_request(),
    ring("switch/pipe/16p-64k/wrmsr", BY_WRMSR).on_request(),
    ring("switch/pipe/16p-64k/trampoline", WITHOUT_WRMSR).on_request(),
    ring("switch/pipe/16p-64k/tss", WITHOUT_WRMSR).on_request(),
    row("legacy32/sysenter/null/direct", PROTECTED_DIRECT)
        .seed("002")
        .at_most(8),
    row("legacy32/sysenter/null/trampoline", PROTECTED_LOADED)
        .seed("002")
        .at_most(10),
    row("legacy32/switch/wrmsr", PROTECTED_BY_WRMSR).seed("002"),
    row("legacy32/switch/trampoline", PROTECTED_BY_TRAMPOLINE).seed("002"),
    row("legacy32/switch/16k/wrmsr", PROTECTED_BY_WRMSR)
        .seed("002")
        .on_request(),
    row("legacy32/switch/16k/trampoline", PROTECTED_BY_TRAMPOLINE)
        .seed("002")
        .on_request(),
    row("legacy32/switch/64k/wrmsr", PROTECTED_BY_WRMSR)
        .seed("002")
        .on_request(),
    row("legacy32/switch/64k/trampoline", PROTECTED_BY_TRAMPOLINE)
        .seed("002")
        .on_request(),
    row("wrmsr/sysenter-esp", NOTHING.with(Event::Wrmsr, 1)).seed("002"),
    row("base/wrmsr", NOTHING.with(Event::Wrmsr, 2).with(Event::Swapgs, 0)).seed("002"),
    row("base/wrfsbase", NOTHING.with(Event::Swapgs, 2).with(Event::Wrmsr, 0)).seed("002"),
    row("tracking/null/off", BY_SYSRET_WITH_FLAG_UNTOUCHED)
        .seed("004")
        .at_most(64)
        .beside(194, 221),
    row("tracking/null/irqsave", BY_SYSRET_WITH_SAVED_FLAG).seed("004"),
    row("tracking/null/irqsoff", BY_SYSRET_WITH_FLAG_UNTOUCHED)
        .seed("004")
        .at_most(72),
    row("tracking/kill-winch/off", BY_SYSRET)
        .seed("004")
        .at_most(180)
        .beside(1050, 1407),
    row("tracking/kill-winch/irqsave", BY_SYSRET)
        .seed("004")
        .at_most(180)
        .beside(1050, 1407),
    row("tracking/kill-winch/irqsoff", BY_SYSRET)
        .seed("004")
        .at_most(180)
        .beside(1050, 1407),
    row("irqflag/simulation/toggled", NOTHING.with(Event::InterruptFlag, 4)).seed("003"),
    row("irqflag/simulation/untouched", NOTHING.with(Event::InterruptFlag, 0)).seed("003"),
    row(
        "irqflag/simulation/ring3-toggled",
        NOTHING.with(Event::InterruptFlag, 4),
    )
    .seed("003"),
    row(
        "irqflag/simulation/ring3-untouched",
        NOTHING.with(Event::InterruptFlag, 0),
    )
    .seed("003"),
    row("pipe/latency", NOTHING.with(Event::Switch, 2).with(Event::Sysret, 4))
        .seed("002")
        .at_most(1200)
        .beside(11742, 12682),
    row("pipe/self", NOTHING.with(Event::Sysret, 2))
        .seed("002")
        .beside(2065, 2386),
];

/// The row of this name.
pub(crate) fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

/// An experiment whose rows have names of several kinds.
struct Experiment {
    name: &'static str,
    seed: &'static str,
    /// Rows of others that it compares with.
    beside: &'static [&'static str],
}

const EXPERIMENTS: [Experiment; 3] = [
    Experiment {
        name: "switch",
        seed: "002",
        beside: &["syscall/null/full"],
    },
    Experiment {
        name: "irqflag",
        seed: "003",
        beside: &[],
    },
    Experiment {
        name: "tracking",
        seed: "004",
        beside: &[],
    },
];

/// The rows whose name contains `filter`, and all rows of the experiment that it names.
pub(crate) fn matching(filter: &str) -> Vec<&'static Row> {
    let experiment = EXPERIMENTS.iter().find(|experiment| experiment.name == filter);
    let is_of_it = |row: &&Row| {
        let is_part =
            |experiment: &Experiment| row.seed == Some(experiment.seed) || experiment.beside.contains(&row.name);
        row.name.contains(filter) || experiment.is_some_and(is_part)
    };
    ROWS.iter().filter(is_of_it).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (position, row) in ROWS.iter().enumerate() {
            assert!(ROWS[position + 1..].iter().all(|other| other.name != row.name));
        }
    }

    #[test]
    fn an_experiment_has_all_its_rows() {
        let names: Vec<&str> = matching("irqflag").iter().map(|row| row.name).collect();
        for name in [
            "syscall/null/full",
            "syscall/null/irqs-on",
            "interrupt/user/irqs-on",
            "interrupt/kernel/irqs-on",
            "irqflag/simulation/ring3-toggled",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(matching("irqf").iter().all(|row| row.name.contains("irqf")));
    }

    #[test]
    fn the_table_of_switches_has_each_ring_and_way_and_what_belongs_to_it() {
        let names: Vec<&str> = matching("switch").iter().map(|row| row.name).collect();
        for ring in ["2p-0k", "2p-16k", "2p-64k", "8p-16k", "8p-64k", "16p-16k", "16p-64k"] {
            for way in ["wrmsr", "trampoline", "tss"] {
                assert!(
                    names.contains(&format!("switch/pipe/{ring}/{way}").as_str()),
                    "{ring} {way}"
                );
            }
        }
        for name in [
            "syscall/null/full",
            "sysenter/null/64",
            "sysenter/null/32",
            "legacy32/sysenter/null/trampoline",
            "legacy32/switch/64k/wrmsr",
            "wrmsr/sysenter-esp",
            "switch/yield/2p/bases-wrmsr",
            "switch/yield/2p/bases-fsgsbase",
            "pipe/latency",
        ] {
            assert!(names.contains(&name), "{name}");
        }
    }

    #[test]
    fn every_row_promises_how_it_is_left() {
        for row in ROWS {
            for event in [Event::Sysret, Event::Iret, Event::Fault] {
                assert!(
                    row.promise.iter().any(|(named, _)| named == event),
                    "{} says nothing about {event:?}",
                    row.name
                );
            }
        }
    }

    #[test]
    fn filter_takes_any_part_of_the_name() {
        let names: Vec<_> = matching("zero-page").iter().map(|row| row.name).collect();
        assert_eq!(
            names,
            [
                "fault/zero-page/iret",
                "fault/zero-page/sysret-dead",
                "fault/zero-page/sysret-landing"
            ]
        );
        assert!(matching("nonsense").is_empty());
    }
}
