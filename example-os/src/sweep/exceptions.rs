//! The one table of boundaries that an injector can't hit, with the reasons.

use super::stub::{Exception, Injector, Name, Part};
use super::victim::Set;

/// What #DB itself executes in ring 0 before its handler. A breakpoint there would raise the next #DB on the same stack
/// before the first had begun, for ever.
pub(super) const OWN_ENTRY: [Exception; 3] = {
    const REASON: &str = "#DB's own way in and out: a breakpoint there would recur without end";
    const PARANOID: Name<'static> = Name::Function("paranoid_common", 0);
    [
        Exception {
            stub: Name::Slot(1),
            part: Part::All,
            reason: REASON,
        },
        Exception {
            stub: PARANOID,
            part: Part::Head(0),
            reason: REASON,
        },
        Exception {
            stub: PARANOID,
            part: Part::Taken(0),
            reason: REASON,
        },
    ]
};

/// For every injector. Functions have the number of their instance: the stub sets that SYSCALL can lead to come in the
/// order of [`Event`](super::Event).
const ALWAYS: [Exception; 14] = {
    const NO_32_BIT: &str = "SYSRETL: the kernel has no 32-bit programs";
    const ALWAYS_SYSRET: &str = "nothing but system calls leaves by this exit, and none of them needs IRET";
    const ALWAYS_IRET: &str = "SYSRET: page faults alone have their RCX and R11 declared dead";
    const NOT_IN_KERNEL: &str = "no scene has a page fault in the kernel; the way is that of the other exceptions";
    [
        Exception {
            stub: Name::Any,
            part: Part::Traps,
            reason: "INT3 behind an instruction that does not come back",
        },
        Exception {
            stub: Name::Any,
            part: Part::Unreachable,
            reason: "data behind the code of a stub, which the host takes for instructions",
        },
        Exception {
            stub: Name::Function("leave", 0),
            part: Part::Taken(1),
            reason: NO_32_BIT,
        },
        Exception {
            stub: Name::Function("leave", 1),
            part: Part::Taken(1),
            reason: NO_32_BIT,
        },
        Exception {
            stub: Name::Function("leave", 1),
            part: Part::NotTaken(0),
            reason: "SYSRET: the exit of the kernel that leaves by IRET alone",
        },
        Exception {
            stub: Name::Function("leave_by_iret", 2),
            part: Part::All,
            reason: ALWAYS_SYSRET,
        },
        Exception {
            stub: Name::Function("leave_by_iret", 3),
            part: Part::All,
            reason: ALWAYS_SYSRET,
        },
        Exception {
            stub: Name::Function("leave_by_iret", 4),
            part: Part::All,
            reason: ALWAYS_SYSRET,
        },
        Exception {
            stub: Name::Function("leave", 2),
            part: Part::Taken(1),
            reason: NO_32_BIT,
        },
        Exception {
            stub: Name::Function("leave", 3),
            part: Part::Taken(1),
            reason: NO_32_BIT,
        },
        Exception {
            stub: Name::Function("exception_common", 0),
            part: Part::NotTaken(1),
            reason: ALWAYS_IRET,
        },
        Exception {
            stub: Name::Function("interrupt_common", 0),
            part: Part::NotTaken(1),
            reason: ALWAYS_IRET,
        },
        Exception {
            stub: Name::Function("system_call_common", 0),
            part: Part::NotTaken(1),
            reason: ALWAYS_IRET,
        },
        Exception {
            stub: Name::Function("page_fault_common", 0),
            part: Part::Taken(0),
            reason: NOT_IN_KERNEL,
        },
    ]
};

/// For NMIs of both kinds.
const NMI: [Exception; 1] = [Exception {
    stub: Name::Slot(2),
    part: Part::All,
    reason: "an NMI's own way in: the next one is blocked until its IRET",
}];

/// For an NMI that an IRET of #DB's lets in.
const NMI_AFTER_DEBUG: [Exception; 1] = [Exception {
    stub: Name::Function("paranoid_common", 0),
    part: Part::NotTaken(0),
    reason: "the way in from user mode is that of #DB or NMI, and neither can be nested in itself",
}];

/// For counts, where a faulting access takes none.
const COUNTS: [Exception; 2] = {
    const REASON: &str = "QEMU counts no instruction for a faulting access, so no count ends right behind it";
    [
        Exception {
            stub: Name::Slot(11),
            part: Part::First,
            reason: REASON,
        },
        Exception {
            stub: Name::Slot(14),
            part: Part::First,
            reason: REASON,
        },
    ]
};

/// For what is seen inside the paranoid stub.
const NESTED: [Exception; 2] = {
    const REASON: &str = "an event that found its own stack in use, which the kernel never lets happen";
    const PARANOID: Name<'static> = Name::Function("paranoid_common", 0);
    [
        Exception {
            stub: PARANOID,
            part: Part::NotTaken(1),
            reason: REASON,
        },
        Exception {
            stub: PARANOID,
            part: Part::Taken(4),
            reason: REASON,
        },
    ]
};

/// For breakpoints on Bochs, which is told by a timer that delivers no NMI.
const DEBUG_ON_BOCHS: [Exception; 3] = [
    Exception {
        stub: Name::Slot(2),
        part: Part::First,
        reason: "Bochs looks for no breakpoint at the first instruction after an NMI",
    },
    LANDING_ON_BOCHS,
    BEHIND_MOV_SS,
];

/// For whatever a breakpoint leads to, there.
const LANDING_ON_BOCHS: Exception = Exception {
    stub: Name::Landing,
    part: Part::First,
    reason: "Bochs' SYSRET loads RF, which the frame of a page fault has; real CPUs clear it",
};

/// The instruction behind the load of SS, by the exit of processes that have 32-bit code.
const BEHIND_MOV_SS: Exception = Exception {
    stub: Name::Function("leave", 4),
    part: Part::Branch(1),
    reason: "MOV SS holds events back for one instruction, as on real CPUs; QEMU lets breakpoints in",
};

/// For the same NMI on Bochs.
const NMI_ON_BOCHS: [Exception; 4] = {
    const REASON: &str = "the IRETQ that fails has unblocked NMIs there, as on real CPUs; QEMU keeps them blocked";
    [
        Exception {
            stub: Name::Slot(11),
            part: Part::All,
            reason: REASON,
        },
        Exception {
            stub: Name::Function("exception_common", 0),
            part: Part::NotTaken(2),
            reason: REASON,
        },
        LANDING_ON_BOCHS,
        BEHIND_MOV_SS,
    ]
};

/// Where interrupts may be on and the timer is never let in.
pub(super) const NEVER_LET_IN: [Exception; 1] = [Exception {
    stub: Name::Function("syscall_compat_entry", 0),
    part: Part::First,
    reason: "no stub set has both 32-bit code and interrupts on at SYSCALL",
}];

/// For the stubs with KPTI, whatever is injected.
const SPLIT: [Exception; 2] = {
    const REASON: &str = "a maskable interrupt in ring 0: they are off as long as the tables are the program's there";
    [
        Exception {
            stub: Name::Function("interrupt_common", 0),
            part: Part::NotTaken(2),
            reason: REASON,
        },
        Exception {
            stub: Name::Function("system_call_common", 0),
            part: Part::NotTaken(2),
            reason: REASON,
        },
    ]
};

/// [`NESTED`] for them, whose paranoid stub has one more branch before the last of those.
const SPLIT_NESTED: [Exception; 1] = [Exception {
    stub: Name::Function("paranoid_common", 0),
    part: Part::Taken(5),
    reason: "an event that found its own stack in use, which the kernel never lets happen",
}];

/// [`NMI_ON_BOCHS`] for them: the IRETQ that fails has the program's tables, which its exception asks for first.
const SPLIT_NMI_ON_BOCHS: [Exception; 1] = [Exception {
    stub: Name::Function("exception_common", 0),
    part: Part::NotTaken(3),
    reason: "the IRETQ that fails has unblocked NMIs there, as on real CPUs; QEMU keeps them blocked",
}];

/// The rows for an injector.
pub(super) fn rows(set: Set, injector: Injector, is_bochs: bool) -> impl Iterator<Item = &'static Exception> + Clone {
    let tables: [&[Exception]; 4] = match injector {
        Injector::Debug if is_bochs => [&OWN_ENTRY, &DEBUG_ON_BOCHS, &[], &[]],
        Injector::Debug => [&OWN_ENTRY, &[], &[], &[]],
        Injector::Nmi if is_bochs => [&OWN_ENTRY, &NMI, &NMI_AFTER_DEBUG, &NMI_ON_BOCHS],
        Injector::Nmi => [&OWN_ENTRY, &NMI, &NMI_AFTER_DEBUG, &[]],
        // Where no NMI shows the place that a count leads to, breakpoints do.
        Injector::Timer if is_bochs => [&OWN_ENTRY, &DEBUG_ON_BOCHS, &[], &[]],
        Injector::Timer => [&COUNTS, &NESTED, &[], &[]],
        Injector::TimerNmi => [&NMI, &COUNTS, &NESTED, &[]],
    };
    let of_set: [&[Exception]; 2] = match injector {
        _ if !set.is_split() => [&[], &[]],
        Injector::Nmi if is_bochs => [&SPLIT, &SPLIT_NMI_ON_BOCHS],
        Injector::Timer if is_bochs => [&SPLIT, &[]],
        Injector::Timer | Injector::TimerNmi => [&SPLIT, &SPLIT_NESTED],
        Injector::Debug | Injector::Nmi => [&SPLIT, &[]],
    };
    let tables = tables.into_iter().chain(of_set).flatten();
    ALWAYS.iter().chain(tables)
}
