//! Guards that a test build can take away, one at a time, to show that a test notices.

/// `condition`, unless the build has `--cfg ablate="NAME"`. As in the entry crates, whose guards the others are.
macro_rules! guard {
    ($name:tt, $condition:expr) => {
        cfg!(not(ablate = $name)) && $condition
    };
}

pub(crate) use guard;
