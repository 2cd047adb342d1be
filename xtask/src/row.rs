//! The rows of the benchmark: seed, target, what Linux takes, and the events each name promises.

use crate::event::Event;

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
    /// Exact number of events in each operation. An event that is not named is only reported.
    pub(crate) promise: &'static [(Event, u32)],
    /// Whether each round maps another page, and so every 512th another page table.
    pub(crate) maps_pages: bool,
    /// Whether it is run only when asked for by name: its instructions are those of a row that is run anyway, and only its
    /// cycles differ.
    pub(crate) on_request: bool,
}

const fn linux(lean: u32, default: u32) -> Option<Linux> {
    Some(Linux { lean, default })
}

/// Entered by SYSCALL and left by SYSRET, nothing else in between.
const BY_SYSRET: &[(Event, u32)] = &[
    (Event::Sysret, 1),
    (Event::Iret, 0),
    (Event::Fault, 0),
    (Event::Interrupt, 0),
    (Event::Switch, 0),
];

/// As [`BY_SYSRET`], with CLI and POPF around each of two transitions.
const BY_SYSRET_WITH_SAVED_FLAG: &[(Event, u32)] = &[
    (Event::InterruptFlag, 4),
    (Event::Sysret, 1),
    (Event::Iret, 0),
    (Event::Fault, 0),
    (Event::Interrupt, 0),
    (Event::Switch, 0),
];

/// As [`BY_SYSRET`], with the interrupt flag as SYSCALL left it.
const BY_SYSRET_WITH_FLAG_UNTOUCHED: &[(Event, u32)] = &[
    (Event::InterruptFlag, 0),
    (Event::Sysret, 1),
    (Event::Iret, 0),
    (Event::Fault, 0),
    (Event::Interrupt, 0),
    (Event::Switch, 0),
];

/// A hop of a ring whose processes enter by SYSENTER: one to write, one to read.
const fn hop(wrmsrs: u32) -> [(Event, u32); 7] {
    [
        (Event::Switch, 1),
        (Event::Sysenter, 2),
        (Event::Sysret, 2),
        (Event::Wrmsr, wrmsrs),
        (Event::Iret, 0),
        (Event::Fault, 0),
        (Event::Interrupt, 0),
    ]
}

/// The switch writes the stack's register.
const BY_WRMSR: &[(Event, u32)] = &hop(1);
/// It does not.
const WITHOUT_WRMSR: &[(Event, u32)] = &hop(0);

const fn ring(name: &'static str, linux: Option<Linux>, promise: &'static [(Event, u32)]) -> Row {
    Row {
        name,
        seed: Some("002"),
        target: Some(600),
        linux,
        promise,
        maps_pages: false,
        // Memory is read by instructions that are no part of the hop.
        on_request: linux.is_none(),
    }
}

/// A call in protected mode.
const fn protected_call(stack_loads: u32) -> [(Event, u32); 10] {
    [
        (Event::Sysenter, 1),
        (Event::Sysexit, 1),
        (Event::StackLoad, stack_loads),
        (Event::Wrmsr, 0),
        (Event::Cr3, 0),
        (Event::Sysret, 0),
        (Event::Iret, 0),
        (Event::Fault, 0),
        (Event::Interrupt, 0),
        (Event::Switch, 0),
    ]
}

/// SYSENTER finds the stack in its register.
const PROTECTED_DIRECT: &[(Event, u32)] = &protected_call(0);
/// The trampoline loads it.
const PROTECTED_LOADED: &[(Event, u32)] = &protected_call(1);

/// A hop of two tasks in protected mode.
const fn protected_hop(wrmsrs: u32, stack_loads: u32) -> [(Event, u32); 10] {
    [
        (Event::Switch, 1),
        (Event::Sysenter, 1),
        (Event::Sysexit, 1),
        (Event::Wrmsr, wrmsrs),
        (Event::Cr3, 1),
        (Event::StackLoad, stack_loads),
        (Event::Sysret, 0),
        (Event::Iret, 0),
        (Event::Fault, 0),
        (Event::Interrupt, 0),
    ]
}

/// The switch writes two registers and loads the other task's ESP.
const PROTECTED_BY_WRMSR: &[(Event, u32)] = &protected_hop(2, 1);
/// Each entry loads ESP, and the switch the other task's.
const PROTECTED_BY_TRAMPOLINE: &[(Event, u32)] = &protected_hop(0, 2);

const fn legacy(name: &'static str, promise: &'static [(Event, u32)], target: Option<u32>, on_request: bool) -> Row {
    Row {
        name,
        seed: Some("002"),
        target,
        linux: None,
        promise,
        maps_pages: false,
        on_request,
    }
}

/// Every row, in the order of the report.
pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "syscall/null/full",
        seed: Some("003"),
        target: Some(64),
        linux: linux(194, 221),
        promise: BY_SYSRET,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "syscall/null/iret",
        seed: Some("000"),
        target: Some(66),
        linux: None,
        promise: &[
            (Event::Sysret, 0),
            (Event::Iret, 1),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
            (Event::Switch, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "syscall/null/floor",
        seed: None,
        target: Some(8),
        linux: None,
        promise: BY_SYSRET,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "syscall/null/lean",
        seed: Some("003"),
        target: Some(36),
        linux: linux(194, 221),
        promise: BY_SYSRET,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "syscall/null/full-clear",
        seed: Some("003"),
        target: Some(78),
        linux: linux(194, 221),
        promise: BY_SYSRET,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "syscall/null/kpti",
        seed: None,
        target: Some(74),
        linux: linux(194, 221),
        promise: &[
            (Event::Sysret, 1),
            (Event::Cr3, 2),
            (Event::Iret, 0),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
            (Event::Switch, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "syscall/null/int80",
        seed: None,
        target: Some(66),
        linux: None,
        promise: &[
            (Event::Fault, 1),
            (Event::Iret, 1),
            (Event::Sysret, 0),
            (Event::Interrupt, 0),
            (Event::Switch, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "sysenter/null/64",
        seed: Some("002"),
        target: Some(72),
        linux: linux(194, 221),
        promise: &[
            (Event::Sysenter, 1),
            (Event::Sysret, 1),
            (Event::Iret, 0),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
            (Event::Switch, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "syscall/null/irqs-on",
        seed: Some("003"),
        target: Some(64),
        linux: linux(194, 221),
        promise: BY_SYSRET_WITH_FLAG_UNTOUCHED,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "syscall/getppid",
        seed: None,
        target: Some(105),
        linux: linux(308, 341),
        promise: BY_SYSRET,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "fault/zero-page/iret",
        seed: Some("000"),
        target: Some(240),
        linux: linux(1125, 1254),
        promise: &[
            (Event::Fault, 1),
            (Event::Iret, 1),
            (Event::Sysret, 0),
            (Event::Interrupt, 0),
            (Event::Switch, 0),
        ],
        maps_pages: true,
        on_request: false,
    },
    Row {
        name: "fault/zero-page/sysret-dead",
        seed: Some("000"),
        target: Some(260),
        linux: linux(1125, 1254),
        promise: &[
            (Event::Fault, 1),
            (Event::Sysret, 1),
            (Event::Iret, 0),
            (Event::Interrupt, 0),
            (Event::Switch, 0),
        ],
        maps_pages: true,
        on_request: false,
    },
    Row {
        name: "fault/zero-page/sysret-landing",
        seed: Some("000"),
        target: Some(310),
        linux: linux(1125, 1254),
        promise: &[
            (Event::Fault, 1),
            (Event::Sysret, 1),
            (Event::Iret, 0),
            (Event::Interrupt, 0),
            (Event::Switch, 0),
        ],
        maps_pages: true,
        on_request: false,
    },
    Row {
        name: "exception/user",
        seed: None,
        target: Some(72),
        linux: None,
        promise: &[
            (Event::Fault, 1),
            (Event::Iret, 1),
            (Event::Sysret, 0),
            (Event::Interrupt, 0),
            (Event::Switch, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "exception/kernel",
        seed: None,
        target: None,
        linux: None,
        promise: &[
            (Event::Fault, 1),
            (Event::Iret, 1),
            (Event::Sysret, 0),
            (Event::Interrupt, 0),
            (Event::Switch, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "fault/floor",
        seed: Some("000"),
        target: None,
        linux: None,
        promise: &[
            (Event::Fault, 1),
            (Event::Iret, 1),
            (Event::Sysret, 0),
            (Event::Interrupt, 0),
            (Event::Switch, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "interrupt/user",
        seed: None,
        target: Some(75),
        linux: linux(2543, 2635),
        promise: &[
            (Event::Fault, 0),
            (Event::Iret, 1),
            (Event::Sysret, 0),
            (Event::Interrupt, 1),
            (Event::Switch, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "interrupt/user/irqs-on",
        seed: Some("003"),
        target: Some(87),
        linux: linux(2543, 2635),
        promise: &[
            (Event::Fault, 0),
            (Event::Iret, 1),
            (Event::Sysret, 0),
            (Event::Interrupt, 1),
            (Event::Switch, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "switch/yield/2p",
        seed: Some("002"),
        target: Some(240),
        linux: linux(1940, 2080),
        promise: &[
            (Event::Switch, 1),
            (Event::Sysret, 1),
            (Event::Iret, 0),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "switch/pipe/2p-0k/syscall",
        seed: Some("002"),
        target: Some(600),
        linux: linux(5871, 6341),
        promise: &[
            (Event::Switch, 1),
            (Event::Sysret, 2),
            (Event::Iret, 0),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    ring("switch/pipe/2p-0k/wrmsr", linux(5871, 6341), BY_WRMSR),
    ring("switch/pipe/2p-0k/trampoline", linux(5871, 6341), WITHOUT_WRMSR),
    ring("switch/pipe/2p-0k/tss", linux(5871, 6341), WITHOUT_WRMSR),
    ring("switch/pipe/2p-16k/wrmsr", None, BY_WRMSR),
    ring("switch/pipe/2p-16k/trampoline", None, WITHOUT_WRMSR),
    ring("switch/pipe/2p-16k/tss", None, WITHOUT_WRMSR),
    ring("switch/pipe/2p-64k/wrmsr", None, BY_WRMSR),
    ring("switch/pipe/2p-64k/trampoline", None, WITHOUT_WRMSR),
    ring("switch/pipe/2p-64k/tss", None, WITHOUT_WRMSR),
    ring("switch/pipe/8p-16k/wrmsr", None, BY_WRMSR),
    ring("switch/pipe/8p-16k/trampoline", None, WITHOUT_WRMSR),
    ring("switch/pipe/8p-16k/tss", None, WITHOUT_WRMSR),
    ring("switch/pipe/8p-64k/wrmsr", None, BY_WRMSR),
    ring("switch/pipe/8p-64k/trampoline", None, WITHOUT_WRMSR),
    ring("switch/pipe/8p-64k/tss", None, WITHOUT_WRMSR),
    ring("switch/pipe/16p-16k/wrmsr", None, BY_WRMSR),
    ring("switch/pipe/16p-16k/trampoline", None, WITHOUT_WRMSR),
    ring("switch/pipe/16p-16k/tss", None, WITHOUT_WRMSR),
    ring("switch/pipe/16p-64k/wrmsr", None, BY_WRMSR),
    ring("switch/pipe/16p-64k/trampoline", None, WITHOUT_WRMSR),
    ring("switch/pipe/16p-64k/tss", None, WITHOUT_WRMSR),
    legacy("legacy32/sysenter/null/direct", PROTECTED_DIRECT, Some(8), false),
    legacy("legacy32/sysenter/null/trampoline", PROTECTED_LOADED, Some(10), false),
    legacy("legacy32/switch/wrmsr", PROTECTED_BY_WRMSR, None, false),
    legacy("legacy32/switch/trampoline", PROTECTED_BY_TRAMPOLINE, None, false),
    legacy("legacy32/switch/16k/wrmsr", PROTECTED_BY_WRMSR, None, true),
    legacy("legacy32/switch/16k/trampoline", PROTECTED_BY_TRAMPOLINE, None, true),
    legacy("legacy32/switch/64k/wrmsr", PROTECTED_BY_WRMSR, None, true),
    legacy("legacy32/switch/64k/trampoline", PROTECTED_BY_TRAMPOLINE, None, true),
    Row {
        name: "wrmsr/sysenter-esp",
        seed: Some("002"),
        target: None,
        linux: None,
        promise: &[
            (Event::Wrmsr, 1),
            (Event::Sysret, 0),
            (Event::Iret, 0),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "base/wrmsr",
        seed: Some("002"),
        target: None,
        linux: None,
        promise: &[
            (Event::Wrmsr, 2),
            (Event::Swapgs, 0),
            (Event::Sysret, 0),
            (Event::Iret, 0),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "base/wrfsbase",
        seed: Some("002"),
        target: None,
        linux: None,
        promise: &[
            (Event::Wrmsr, 0),
            (Event::Swapgs, 2),
            (Event::Sysret, 0),
            (Event::Iret, 0),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "tracking/null/off",
        seed: Some("004"),
        target: Some(64),
        linux: linux(194, 221),
        promise: BY_SYSRET_WITH_FLAG_UNTOUCHED,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "tracking/null/irqsave",
        seed: Some("004"),
        target: None,
        linux: None,
        promise: BY_SYSRET_WITH_SAVED_FLAG,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "tracking/null/irqsoff",
        seed: Some("004"),
        target: Some(72),
        linux: None,
        promise: BY_SYSRET_WITH_FLAG_UNTOUCHED,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "tracking/kill-winch/off",
        seed: Some("004"),
        target: Some(180),
        linux: linux(1050, 1407),
        promise: BY_SYSRET,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "tracking/kill-winch/irqsave",
        seed: Some("004"),
        target: Some(180),
        linux: linux(1050, 1407),
        promise: BY_SYSRET,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "tracking/kill-winch/irqsoff",
        seed: Some("004"),
        target: Some(180),
        linux: linux(1050, 1407),
        promise: BY_SYSRET,
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "irqflag/simulation/toggled",
        seed: Some("003"),
        target: None,
        linux: None,
        promise: &[
            (Event::InterruptFlag, 4),
            (Event::Sysret, 0),
            (Event::Iret, 0),
            (Event::Fault, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "irqflag/simulation/untouched",
        seed: Some("003"),
        target: None,
        linux: None,
        promise: &[
            (Event::InterruptFlag, 0),
            (Event::Sysret, 0),
            (Event::Iret, 0),
            (Event::Fault, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "irqflag/simulation/ring3-toggled",
        seed: Some("003"),
        target: None,
        linux: None,
        promise: &[
            (Event::InterruptFlag, 4),
            (Event::Sysret, 0),
            (Event::Iret, 0),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "irqflag/simulation/ring3-untouched",
        seed: Some("003"),
        target: None,
        linux: None,
        promise: &[
            (Event::InterruptFlag, 0),
            (Event::Sysret, 0),
            (Event::Iret, 0),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "pipe/latency",
        seed: Some("002"),
        target: Some(1200),
        linux: linux(11742, 12682),
        promise: &[
            (Event::Switch, 2),
            (Event::Sysret, 4),
            (Event::Iret, 0),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
    Row {
        name: "pipe/self",
        seed: Some("002"),
        target: None,
        linux: linux(2065, 2386),
        promise: &[
            (Event::Switch, 0),
            (Event::Sysret, 2),
            (Event::Iret, 0),
            (Event::Fault, 0),
            (Event::Interrupt, 0),
        ],
        maps_pages: false,
        on_request: false,
    },
];

/// The row of this name.
pub(crate) fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

/// The rows whose name contains `filter`.
pub(crate) fn matching(filter: &str) -> Vec<&'static Row> {
    ROWS.iter().filter(|row| row.name.contains(filter)).collect()
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
    fn every_row_promises_how_it_is_left() {
        for row in ROWS {
            for event in [Event::Sysret, Event::Iret, Event::Fault] {
                assert!(
                    row.promise.iter().any(|(named, _)| *named == event),
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
