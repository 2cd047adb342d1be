//! What is going on, on standard error: a spinner on a terminal, one line at each start elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// One thing that takes a while.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
}

impl Progress {
    /// Starts showing `what`.
    pub(crate) fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        let bar = ProgressBar::new_spinner();
        if bar.is_hidden() {
            eprintln!("{what}");
        } else {
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg:.dim}") {
                bar.set_style(style);
            }
            bar.set_prefix(what);
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        Self {
            bar,
            start: Instant::now(),
        }
    }

    /// Shows the latest sign of life beside it.
    pub(crate) fn note(&self, text: &str) {
        self.bar.set_message(text.to_owned());
    }

    /// Prints a line that stays, to standard output.
    pub(crate) fn line(&self, text: &str) {
        self.bar.suspend(|| println!("{text}"));
    }

    /// Seconds since the start.
    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
