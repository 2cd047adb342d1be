//! Guards that a test build can take away, one at a time, to show that a test notices.

/// `condition`, unless the build has `--cfg ablate="NAME"`. That is no cargo feature: features unify, and no user of the
/// crate could be sure of its guards.
macro_rules! guard {
    ($name:tt, $condition:expr) => {
        cfg!(not(ablate = $name)) && $condition
    };
}

/// INT3 behind an instruction that leaves for good: nothing is executed there, even by a CPU that guesses.
#[cfg(not(ablate = "stop-speculation"))]
macro_rules! stop {
    () => {
        "int3"
    };
}

#[cfg(ablate = "stop-speculation")]
macro_rules! stop {
    () => {
        "nop"
    };
}

pub(crate) use {guard, stop};
