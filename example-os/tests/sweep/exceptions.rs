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

/// For an NMI that an IRET of #DB's lets in.
const NMI: [Exception; 2] = [
    Exception {
        stub: Name::Slot(2),
        part: Part::All,
        reason: "an NMI's own way in: the next one is blocked until its IRET",
    },
    Exception {
        stub: Name::Function("paranoid_common"),
        part: Part::NotTaken(0),
        reason: "only #DB and NMI in user mode go there; the harness does not nest the same one",
    },
];

/// Most rows.
const ROWS: usize = ALWAYS.len() + OWN_ENTRY.len() + NMI.len();

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
    /// Sweeps, and fails the test unless all is well.
    pub(crate) fn run(&mut self, injector: Injector) {
        let own: &[Exception] = match injector {
            Injector::Debug | Injector::Nmi => &OWN_ENTRY,
            Injector::Timer | Injector::TimerNmi => &[],
        };
        let more: &[Exception] = if injector == Injector::Nmi { &NMI } else { &[] };
        let mut rows = [ALWAYS[0]; ROWS];
        let mut count = 0;
        for row in ALWAYS.iter().chain(own).chain(more) {
            rows[count] = *row;
            count += 1;
        }
        assert!(self.sweep.run(injector, &rows[..count]), "a boundary or a register is wrong, see above");
    }
}
