//! What measuring took: time, work, and the memory of this program and its emulators together.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::machine::QEMU;

/// How often memory is looked at.
const TURN: Duration = Duration::from_millis(200);

/// Watches from its start on.
#[derive(Debug)]
pub(crate) struct Meter {
    start: Instant,
    /// Work done before.
    before: Option<Duration>,
    stop: mpsc::Sender<()>,
    watch: JoinHandle<u64>,
}

impl Meter {
    /// Starts to watch.
    pub(crate) fn start() -> Self {
        let (stop, stopped) = mpsc::channel();
        let watch = thread::spawn(move || {
            let mut most = 0;
            loop {
                most = most.max(resident());
                if stopped.recv_timeout(TURN) != Err(RecvTimeoutError::Timeout) {
                    return most;
                }
            }
        });
        Self {
            start: Instant::now(),
            before: work(),
            stop,
            watch,
        }
    }

    /// Ends, and says in words what it saw.
    pub(crate) fn stop(self) -> String {
        let mut words = format!("measured in {} s", self.start.elapsed().as_secs());
        if let (Some(before), Some(now)) = (self.before, work()) {
            words.push_str(&format!(", with {} s of CPU", now.saturating_sub(before).as_secs()));
        }
        drop(self.stop);
        if let Ok(most @ 1..) = self.watch.join() {
            let mib = most.div_ceil(1024);
            words.push_str(&format!(
                "; QEMU and this program had at most {mib} MiB of memory together"
            ));
        }
        words
    }
}

/// KiB of memory that this process and its emulators have. What two of them share is counted twice.
fn resident() -> u64 {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let of_emulators: u64 = children
        .flat_map(|children| {
            let numbers = children.split_ascii_whitespace();
            numbers.filter_map(of_emulator).collect::<Vec<_>>()
        })
        .sum();
    of_emulators + of_process("self").unwrap_or(0)
}

/// KiB of a process, if it is an emulator.
fn of_emulator(process: &str) -> Option<u64> {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    // The system keeps the first 15 bytes of a name.
    let name = name.trim_end();
    (!name.is_empty() && QEMU.starts_with(name))
        .then(|| of_process(process))
        .flatten()
}

/// KiB of a process.
fn of_process(process: &str) -> Option<u64> {
    kib(&fs::read_to_string(format!("/proc/{process}/status")).ok()?)
}

/// The resident memory in a file `status` of `/proc`.
fn kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim_end().parse().ok()
}

/// How long CPUs have worked for this process and its children that have ended.
fn work() -> Option<Duration> {
    let ticks = ticks(&fs::read_to_string("/proc/self/stat").ok()?)?;
    let a_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis(ticks * 1000 / a_second.max(1)))
}

/// The sum of the four times in a file `stat` of `/proc`: user and system, own and of children.
fn ticks(stat: &str) -> Option<u64> {
    // The second field is a name in brackets that may have anything in it; the times are fields 14 to 17.
    let (_, rest) = stat.rsplit_once(") ")?;
    let times = rest.split_ascii_whitespace().skip(11).take(4);
    let times: Option<Vec<u64>> = times.map(|time| time.parse().ok()).collect();
    times.filter(|times| times.len() == 4).map(|times| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b c) S 1 7 7 0 -1 4194560 100 0 0 0 30 4 500 6 20 0 3 0 99 1 2";
        assert_eq!(ticks(stat), Some(540));
        assert_eq!(ticks("7 (short) S 1 7"), None);
    }

    #[test]
    fn resident_memory_is_read_in_kib() {
        assert_eq!(kib("Name:\txtask\nVmHWM:\t  300 kB\nVmRSS:\t  204 kB\n"), Some(204));
        assert_eq!(kib("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn emulators_are_counted_and_other_children_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let start = |name: &str| {
            let path = directory.path().join(name);
            std::os::unix::fs::symlink("/bin/sh", &path).unwrap();
            let mut command = Command::new(path);
            command.args(["-c", "echo; read line"]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        };
        let mut children = [start(QEMU), start("cargo")];
        for child in &mut children {
            let mut one = [0];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut one).unwrap();
        }
        let [emulator, other] = children.each_ref().map(|child| of_emulator(&child.id().to_string()));
        assert!(emulator.is_some_and(|kib| kib > 0));
        assert_eq!(other, None);
        assert!(resident() >= emulator.unwrap() + 1024);
        for mut child in children {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    #[test]
    fn words_have_time_work_and_memory() {
        let words = Meter::start().stop();
        assert!(words.contains(" s of CPU; QEMU and "), "{words}");
        assert!(words.ends_with(" MiB of memory together"), "{words}");
    }
}
