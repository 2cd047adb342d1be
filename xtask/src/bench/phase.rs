//! Where the instructions of an operation go: the way in, the kernel's own work, the way out.
//!
//! Each stay in ring 0 is cut in the order of execution. The way in ends at the first instruction of a
//! function that is none of the entry crates', the way out begins behind the last one. A stay without any
//! such function has no work, and its way out begins with the exit's own stub.

use crate::bench::ratio::Ratio;
use crate::bench::trace::{Code, Step};
use crate::workspace::LIBRARIES;

/// Instructions of one operation by phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Phases {
    /// From the entering instruction on.
    pub(crate) entry: Ratio,
    /// The kernel's own functions, and what they call.
    pub(crate) handler: Ratio,
    /// To the leaving instruction.
    pub(crate) exit: Ratio,
}

/// Whose code a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// An entry crate's, but no exit.
    Entry,
    /// The stub of an exit.
    Exit,
    /// The kernel's.
    Kernel,
}

fn owner(function: &str) -> Owner {
    let path = function.trim_start_matches('<');
    let of_library = LIBRARIES.iter().any(|library| {
        path.strip_prefix(&library.replace('-', "_"))
            .is_some_and(|rest| rest.starts_with("::"))
    });
    match function.rsplit("::").next() {
        _ if !of_library => Owner::Kernel,
        Some(name) if name.starts_with("leave") => Owner::Exit,
        _ => Owner::Entry,
    }
}

/// Instructions in work and way out of one stay in ring 0.
fn cut(stay: &[Owner]) -> (usize, usize) {
    let first = stay.iter().position(|&owner| owner == Owner::Kernel);
    let last = stay.iter().rposition(|&owner| owner == Owner::Kernel);
    match (first, last) {
        (Some(first), Some(last)) => (last + 1 - first, stay.len() - last - 1),
        _ => {
            let exit = stay.iter().position(|&owner| owner == Owner::Exit);
            (0, exit.map_or(0, |exit| stay.len() - exit))
        }
    }
}

/// Cuts a whole round of `operations`, each of `instructions`.
///
/// `None` for a round that never leaves ring 0, or never enters it.
pub(crate) fn of_round(round: &[Step], code: &Code, instructions: Ratio, operations: u64) -> Option<Phases> {
    if round.iter().all(|step| step.level == 3) || round.iter().all(|step| step.level != 3) {
        return None;
    }
    let (mut handler, mut exit) = (0, 0);
    for stay in round.split(|step| step.level == 3) {
        let owners: Vec<Owner> = stay
            .iter()
            .filter(|step| step.charged)
            .map(|step| {
                code.kernel
                    .symbol_at(step.pc)
                    .map_or(Owner::Kernel, |(name, _)| owner(name))
            })
            .collect();
        let (work, way_out) = cut(&owners);
        handler += work;
        exit += way_out;
    }
    let each = |count: usize| Ratio::new(i128::try_from(count).ok()?, i128::from(operations));
    let (handler, exit) = (each(handler)?, each(exit)?);
    Some(Phases {
        entry: instructions.minus(handler).minus(exit),
        handler,
        exit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::image::Image;

    #[test]
    fn functions_belong_to_the_crate_that_defines_them() {
        assert_eq!(owner("entry_core::stub::system_call"), Owner::Entry);
        assert_eq!(
            owner("<entry_sysret::exit::SysretOrIret<R> as entry_core::kernel::Exit>::leave"),
            Owner::Exit
        );
        assert_eq!(
            owner("<entry_sysret::exit::Iret as entry_core::kernel::Exit>::leave_by_iret"),
            Owner::Exit
        );
        assert_eq!(owner("example_os::process::life::leave"), Owner::Kernel);
        assert_eq!(owner("entry_corelike::x"), Owner::Kernel);
    }

    #[test]
    fn a_stay_is_cut_at_the_kernels_first_and_last_instruction() {
        use Owner::{Entry, Exit, Kernel};
        assert_eq!(cut(&[Entry, Entry, Kernel, Entry, Kernel, Entry, Exit]), (3, 2));
        assert_eq!(cut(&[Entry, Entry, Exit, Exit, Exit]), (0, 3));
        assert_eq!(cut(&[Entry]), (0, 0));
        assert_eq!(cut(&[]), (0, 0));
    }

    #[test]
    fn phases_add_up_to_the_operation() {
        let code = Code {
            user: Image::from_code(0x40_0000, &[0x90; 4]),
            kernel: Image::from_code(0x1000, &[0x90; 4]),
            switches: Vec::new(),
        };
        let step = |pc, level| Step {
            pc,
            level,
            bits: 64,
            charged: true,
            vector: None,
        };
        let round = [step(0x40_0000, 3), step(0x1000, 0), step(0x1001, 0), step(0x40_0001, 3)];
        let phases = of_round(&round, &code, Ratio::whole(3), 1).unwrap();
        assert_eq!(phases.handler, Ratio::whole(2));
        assert_eq!(phases.exit, Ratio::ZERO);
        assert_eq!(phases.entry, Ratio::whole(1));
        assert_eq!(of_round(&round[1..3], &code, Ratio::whole(3), 1), None);
    }
}
