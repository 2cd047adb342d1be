//! What can go wrong, each as one line that ends in the remedy.

use std::path::PathBuf;
use std::process::ExitStatus;

use thiserror::Error;

/// Everything a verb can fail with.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// A program or toolchain piece is not there.
    #[error("{what} is missing; {remedy}")]
    Missing { what: String, remedy: String },

    /// A value given by the user is none that can be worked with.
    #[error("{field} is `{value}`, {why}; {remedy}")]
    Invalid {
        field: &'static str,
        value: String,
        why: String,
        remedy: String,
    },

    /// A file could not be read, written or made.
    #[error("cannot {action} {}: {source}; {remedy}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
        remedy: &'static str,
    },

    /// A program could not be started at all.
    #[error("cannot start `{command}`: {source}; {remedy}")]
    Start {
        command: String,
        source: std::io::Error,
        remedy: &'static str,
    },

    /// A program ended with a failing status.
    #[error("`{command}` ended with {status}; {remedy}")]
    Command {
        command: String,
        status: ExitStatus,
        remedy: String,
    },

    /// Something that a program printed is not what was agreed.
    #[error("{what} said `{line}`, which is not {wanted}; {remedy}")]
    Unexpected {
        what: &'static str,
        line: String,
        wanted: &'static str,
        remedy: &'static str,
    },

    /// The guest did not end as it should. Its last lines are shown above the error.
    #[error("{what}; {remedy}")]
    Guest {
        what: String,
        tail: Vec<String>,
        remedy: String,
    },

    /// Everything ran, and the result is bad.
    #[error("{what}; {remedy}")]
    Verdict { what: String, remedy: String },

    /// Tests failed. The line that counts them is the last one, so nothing is said after it.
    #[error("some tests failed; see the lines with FAILED above")]
    Counted,

    /// Ctrl-C or a request to end.
    #[error("interrupted; every machine that was running has been stopped")]
    Interrupted,
}

impl Error {
    /// The exit code of `xtask` for this error.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Invalid { .. } => 2,
            Self::Interrupted => 130,
            _ => 1,
        }
    }
}

/// Shorthand for results of this program.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// The few names that are most like what was given, in whatever case it is.
pub(crate) fn closest<'a>(given: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    /// As many as one reads.
    const MOST: usize = 4;
    let given = given.to_lowercase();
    let mut names: Vec<(f64, &str)> = names.map(|name| (strsim::jaro_winkler(&given, name), name)).collect();
    names.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    names.into_iter().take(MOST).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_names_come_first_and_are_few() {
        let names = [
            "pipe/self",
            "syscall/null/full",
            "syscall/getppid",
            "base/wrmsr",
            "fault/floor",
        ];
        let near = closest("syscal/null", names.into_iter());
        assert_eq!(near[0], "syscall/null/full");
        assert_eq!(near.len(), 4);
        assert_eq!(closest("SYSCALL/Getppid", names.into_iter())[0], "syscall/getppid");
    }
}
