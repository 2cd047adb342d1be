//! Guards that a test build can take away, one at a time, to show that a test notices.

/// `condition`, unless the build has `--cfg ablate="NAME"`. That is no cargo feature: features unify, and no user of the
/// crate could be sure of its guards.
macro_rules! guard {
    ($name:tt, $condition:expr) => {
        cfg!(not(ablate = $name)) && $condition
    };
}

pub(crate) use guard;
