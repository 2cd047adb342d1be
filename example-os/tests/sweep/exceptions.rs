//! The machine of the sweeps, and the one table of boundaries that an injector can't hit.

use example_os::archive::Archive;
use example_os::harness::Suite;
use example_os::sweep::{Exception, Injector, Name, OWN_ENTRY, Part, Sweep};
use example_os::{boot, entry};

/// For every injector.
const ALWAYS: [Exception; 2] = [
    Exception {
        stub: Name::Any,
        part: Part::Traps,
        reason: "INT3 behind an instruction that does not come back",
    },
    Exception {
        stub: Name::Function("leave"),
        part: Part::Taken(1),
        reason: "SYSRETL: the kernel has no 32-bit programs",
    },
];

/// For NMIs of both kinds.
const NMI: [Exception; 1] = [Exception {
    stub: Name::Slot(2),
    part: Part::All,
    reason: "an NMI's own way in: the next one is blocked until its IRET",
}];

/// For an NMI that an IRET of #DB's lets in.
const NMI_AFTER_DEBUG: [Exception; 1] = [Exception {
    stub: Name::Function("paranoid_common"),
    part: Part::NotTaken(0),
    reason: "the way in from user mode is that of #DB or NMI, and neither can be nested in itself",
}];

/// For counts, where a faulting access takes none.
const COUNTS: [Exception; 2] = {
    const REASON: &str = "QEMU counts no instruction for a faulting access, so no count ends right behind it";
    [
        Exception { stub: Name::Slot(11), part: Part::First, reason: REASON },
        Exception { stub: Name::Slot(14), part: Part::First, reason: REASON },
    ]
};

/// For breakpoints on Bochs, which is told by a timer that delivers no NMI.
const DEBUG_ON_BOCHS: [Exception; 1] = [Exception {
    stub: Name::Slot(2),
    part: Part::First,
    reason: "Bochs looks for no breakpoint at the first instruction after an NMI",
}];

/// For the same NMI on Bochs.
const NMI_ON_BOCHS: [Exception; 2] = {
    const REASON: &str = "the IRETQ that fails has unblocked NMIs there, as on real CPUs; QEMU keeps them blocked";
    [
        Exception { stub: Name::Slot(11), part: Part::All, reason: REASON },
        Exception { stub: Name::Function("exception_common"), part: Part::NotTaken(1), reason: REASON },
    ]
};

/// Most rows.
const ROWS: usize = 16;

/// A machine with the harness on it.
pub(crate) struct Machine {
    sweep: Sweep,
}

impl Suite for Machine {
    fn set_up() -> Self {
        let archive = boot::info().archive.expect("an archive with the boundaries of this image");
        Self { sweep: Sweep::new(&Archive::new(archive), entry::install()) }
    }
}

impl Machine {
    /// Whether this machine has what the injector needs.
    pub(crate) fn can_inject(&self, injector: Injector) -> bool {
        self.sweep.can_inject(injector)
    }

    /// Sweeps, and fails the test unless all is well.
    pub(crate) fn run(&mut self, injector: Injector) {
        let is_bochs = !self.sweep.can_inject(Injector::TimerNmi);
        let tables: [&[Exception]; 4] = match injector {
            Injector::Debug if is_bochs => [&OWN_ENTRY, &DEBUG_ON_BOCHS, &[], &[]],
            Injector::Debug => [&OWN_ENTRY, &[], &[], &[]],
            Injector::Nmi if is_bochs => [&OWN_ENTRY, &NMI, &NMI_AFTER_DEBUG, &NMI_ON_BOCHS],
            Injector::Nmi => [&OWN_ENTRY, &NMI, &NMI_AFTER_DEBUG, &[]],
            // Where no NMI shows the place that a count leads to, breakpoints do.
            Injector::Timer if is_bochs => [&OWN_ENTRY, &DEBUG_ON_BOCHS, &[], &[]],
            Injector::Timer => [&COUNTS, &[], &[], &[]],
            Injector::TimerNmi => [&NMI, &COUNTS, &[], &[]],
        };
        let mut rows = [ALWAYS[0]; ROWS];
        let mut count = 0;
        for row in ALWAYS.iter().chain(tables.into_iter().flatten()) {
            rows[count] = *row;
            count += 1;
        }
        assert!(self.sweep.run(injector, &rows[..count]), "a boundary or a register is wrong, see above");
    }
}
