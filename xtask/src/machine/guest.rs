//! A running machine: its output as it comes, its end, and that it does end.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::error::{Error, Result};
use crate::machine::{Machine, shown};

/// Statuses with which QEMU ends: the debug-exit value, shifted left, plus one.
const SUCCESS: i32 = 33;
const PANIC: i32 = 35;
const TESTS_FAILED: i32 = 37;
const INIT_FAILED: i32 = 39;
/// The test runner wants the image booted again.
pub(crate) const REBOOT: i32 = 41;
const BAD_BOOT_INPUT: i32 = 43;

/// Lines of the guest that are shown when it ends badly.
const TAIL: usize = 20;
/// No guest of ours prints as many lines; one that does is looping.
const MOST_LINES: usize = 200_000;
/// The longest piece that is taken for a line.
const LONGEST_LINE: u64 = 1 << 16;
/// How often a waiting thread looks at the clock and for Ctrl-C.
pub(crate) const TURN: Duration = Duration::from_millis(20);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C and termination end machines first and this program then.
pub(crate) fn catch_interrupts() -> Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst)).map_err(|error| Error::Missing {
        what: format!("a handler for Ctrl-C ({error})"),
        remedy: "start xtask from an ordinary process".to_owned(),
    })
}

/// Whether this program has been asked to end.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// How a machine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// QEMU ended by itself.
    Status(ExitStatus),
    /// Bochs ended by itself; its own status says nothing.
    PoweredOff,
    /// The guest was over and could not end the machine, which was stopped.
    Halted,
    /// The time was up.
    TimedOut,
    /// More output than any guest of ours has.
    TooMuchOutput,
}

/// A machine that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// How.
    pub(crate) end: End,
    /// Everything the guest printed.
    pub(crate) lines: Vec<String>,
    /// The last lines that QEMU itself printed.
    pub(crate) emulator: VecDeque<String>,
    /// From the start of QEMU to the first instruction of a user program.
    pub(crate) until_user: Option<Duration>,
    /// The time limit it had.
    limit: Duration,
}

/// Kills and reaps the machine on every way out.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only when the child is gone already, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads pieces that end in a newline, or are as long as a line may be, until the end or until told to stop.
pub(crate) fn each_line(reader: impl Read, mut take: impl FnMut(&[u8]) -> bool) {
    let mut reader = BufReader::with_capacity(1 << 18, reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                while let [rest @ .., b'\n' | b'\r'] = &line[..] {
                    let length = rest.len();
                    line.truncate(length);
                }
                if !take(&line) {
                    return;
                }
            }
        }
    }
}

/// Whether QEMU only says that its translator lacks a feature of the CPU model, as it does at every start.
fn is_noise(line: &[u8]) -> bool {
    String::from_utf8_lossy(line).contains("TCG doesn't support requested feature")
}

/// Takes what QEMU writes to standard error, a line at a time; says whether the line was a log entry.
pub(crate) trait LogSink: Send {
    /// One line.
    fn line(&mut self, line: &[u8]) -> bool;
}

/// For machines that log nothing.
#[derive(Debug)]
pub(crate) struct NoLog;

impl LogSink for NoLog {
    fn line(&mut self, _: &[u8]) -> bool {
        false
    }
}

/// Where an emulator puts what the guest writes to COM1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serial {
    /// Standard output, with standard error for the log: QEMU.
    Output,
    /// Standard error, with standard output for its own words: Bochs.
    Errors,
}

/// Starts a machine in QEMU and waits for its end.
///
/// `on_line` sees each serial line as it comes.
pub(crate) fn boot(
    machine: &Machine,
    limit: Duration,
    log: &mut dyn LogSink,
    on_line: &mut dyn FnMut(&str),
) -> Result<Ended> {
    let mut command = machine.command();
    if let Some(number) = machine.on_cpu {
        keep_on(&mut command, number);
    }
    watch(command, Serial::Output, limit, log, on_line)
}

/// Keeps what the command starts, and nothing else, on one of the host's CPUs.
fn keep_on(command: &mut Command, number: usize) {
    let mut one = CpuSet::new();
    one.set(number);
    // SAFETY: `pre_exec` demands that the closure only does what is allowed between fork and exec.
    // It makes one system call, sched_setaffinity, which is async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(move || Ok(sched_setaffinity(None, &one)?));
    }
}

/// Starts an emulator, whose two outputs are piped, and waits for its end.
pub(crate) fn watch(
    mut command: Command,
    serial: Serial,
    limit: Duration,
    log: &mut dyn LogSink,
    on_line: &mut dyn FnMut(&str),
) -> Result<Ended> {
    // SAFETY: `pre_exec` demands that the closure only does what is allowed between fork and exec.
    // It makes one system call, prctl, which is async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        });
    }
    let start = Instant::now();
    let mut child = Killed(command.spawn().map_err(|source| Error::Start {
        command: shown(&command),
        source,
        remedy: "run `cargo xtask setup`",
    })?);
    let (Some(output), Some(errors)) = (child.0.stdout.take(), child.0.stderr.take()) else {
        unreachable!("both are piped by whoever made the command");
    };
    // A larger pipe saves switches between QEMU, with its log, and us; without it only time is lost.
    let _ = rustix::pipe::fcntl_setpipe_size(&errors, 1 << 20);
    let (output, errors): (Box<dyn Read + Send>, Box<dyn Read + Send>) = match serial {
        Serial::Output => (Box::new(output), Box::new(errors)),
        Serial::Errors => (Box::new(errors), Box::new(output)),
    };
    let mut ended = Ended {
        end: End::TimedOut,
        lines: Vec::new(),
        emulator: VecDeque::new(),
        until_user: None,
        limit,
    };
    let emulator = &mut ended.emulator;
    thread::scope(|scope| {
        let (sender, lines) = mpsc::sync_channel::<String>(1024);
        scope.spawn(move || {
            each_line(output, |line| {
                sender.send(String::from_utf8_lossy(line).into_owned()).is_ok()
            });
        });
        scope.spawn(move || {
            each_line(errors, |line| {
                if !log.line(line) && !is_noise(line) {
                    if emulator.len() == TAIL {
                        emulator.pop_front();
                    }
                    emulator.push_back(String::from_utf8_lossy(line).into_owned());
                }
                true
            });
        });
        let result = loop {
            if is_interrupted() {
                break Err(Error::Interrupted);
            }
            if start.elapsed() > limit {
                break Ok(End::TimedOut);
            }
            match lines.recv_timeout(TURN) {
                Ok(line) => {
                    if ended.until_user.is_none() && line.starts_with("[user] first instruction") {
                        ended.until_user = Some(start.elapsed());
                    }
                    on_line(&line);
                    let is_over = line.starts_with("[halt] ");
                    ended.lines.push(line);
                    if is_over {
                        break Ok(End::Halted);
                    }
                    if ended.lines.len() > MOST_LINES {
                        break Ok(End::TooMuchOutput);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Serial output is closed: QEMU is ending, or has lost its output and never will.
                Err(RecvTimeoutError::Disconnected) => match child.0.try_wait() {
                    Ok(Some(_)) if serial == Serial::Errors => break Ok(End::PoweredOff),
                    Ok(Some(status)) => break Ok(End::Status(status)),
                    Ok(None) => thread::sleep(TURN / 10),
                    Err(source) => {
                        break Err(Error::Start {
                            command: shown(&command),
                            source,
                            remedy: "run it by hand to see why it cannot be waited for",
                        });
                    }
                },
            }
        };
        // Readers see the end of their pipes only when the machine is gone.
        drop(child);
        drop(lines);
        result
    })
    .map(|end| Ended { end, ..ended })
}

/// The status that the guest's last `[exit]` line stands for.
fn said(lines: &[String]) -> Option<i32> {
    let last = lines.iter().rev().find_map(|line| line.strip_prefix("[exit] "))?;
    Some(match last {
        "success" => SUCCESS,
        "failure: panic" => PANIC,
        "failure: tests failed" => TESTS_FAILED,
        "failure: reboot wanted by the test runner" => REBOOT,
        _ if last.starts_with("failure: bad boot input: ") => BAD_BOOT_INPUT,
        _ => INIT_FAILED,
    })
}

impl Ended {
    /// QEMU's exit status if it ended by itself; otherwise the one that the guest's last line stands for.
    pub(crate) fn status(&self) -> Option<i32> {
        match self.end {
            End::Status(status) => status.code(),
            End::PoweredOff | End::Halted => said(&self.lines),
            End::TimedOut | End::TooMuchOutput => None,
        }
    }

    /// Whether the guest asked for success.
    pub(crate) fn is_success(&self) -> bool {
        self.status() == Some(SUCCESS)
    }

    /// What went wrong, in words.
    pub(crate) fn trouble(&self) -> String {
        let silent = if self.lines.is_empty() {
            " and printed nothing"
        } else {
            ""
        };
        let code = match self.end {
            End::PoweredOff | End::Halted => match said(&self.lines) {
                Some(code) => Some(code),
                None => return format!("Bochs ended before the guest did{silent}"),
            },
            End::TimedOut => {
                return format!("the guest did not end within {} s{silent}", self.limit.as_secs());
            }
            End::TooMuchOutput => return format!("the guest printed more than {MOST_LINES} lines"),
            End::Status(status) => match status.code() {
                Some(code) => Some(code),
                None => return format!("QEMU was killed by signal {}", status.signal().unwrap_or_default()),
            },
        };
        match code {
            Some(SUCCESS) => "the guest ended with success".to_owned(),
            Some(PANIC) => "the kernel panicked".to_owned(),
            Some(TESTS_FAILED) => "tests failed in the guest".to_owned(),
            Some(INIT_FAILED) => self
                .lines
                .iter()
                .rev()
                .find_map(|line| line.strip_prefix("[exit] failure: "))
                .map_or_else(
                    || "the program failed".to_owned(),
                    |reason| format!("the program failed ({reason})"),
                ),
            Some(REBOOT) => "the guest asked to be booted again, which only tests may".to_owned(),
            Some(BAD_BOOT_INPUT) => self
                .lines
                .iter()
                .rev()
                .find_map(|line| line.strip_prefix("[exit] failure: "))
                .map_or_else(
                    || "the kernel refused what it was given to boot".to_owned(),
                    |reason| format!("the kernel refused what it was given to boot ({reason})"),
                ),
            Some(0) => format!("the guest rebooted, by a triple fault or on purpose{silent}"),
            Some(code) if self.lines.is_empty() => {
                format!("QEMU ended with status {code} before the guest printed anything")
            }
            Some(code) => format!("the guest ended with status {code}, which means nothing"),
            None => unreachable!("answered above"),
        }
    }

    /// The last lines: the guest's, or QEMU's own when the guest has none.
    pub(crate) fn tail(&self) -> Vec<String> {
        let first = self.lines.len().saturating_sub(TAIL);
        let mut tail: Vec<String> = self.lines[first..].to_vec();
        if tail.is_empty() {
            tail.extend(self.emulator.iter().cloned());
        }
        tail
    }

    /// The error for a machine that should have ended in another way.
    ///
    /// `seen` says that the guest's lines have been shown already, so that they are not shown again.
    pub(crate) fn error(&self, seen: bool) -> Error {
        let remedy = match self.end {
            // Long mode is turned on before there is anything to print with.
            End::Status(status) if status.code() == Some(0) && self.lines.is_empty() => {
                "take a 64-bit model, as `--cpu Skylake-Client` is, if it has another one"
            }
            End::TimedOut if self.tail().is_empty() => "raise --timeout if it only needs longer",
            End::TimedOut => "raise --timeout if it only needs longer, or see its last lines above",
            _ if seen => "see its last lines above",
            _ => "see its last lines above, or all of them with --verbose",
        };
        Error::Guest {
            what: self.trouble(),
            tail: if seen && !self.lines.is_empty() {
                Vec::new()
            } else {
                self.tail()
            },
            remedy: remedy.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Accel, Boot, Clock, Qemu};
    use rustix::thread::sched_getaffinity;
    use std::os::unix::fs::PermissionsExt;

    /// A machine whose emulator is a shell script.
    fn scripted(script: &str) -> (tempfile::TempDir, Machine) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qemu");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let machine = Machine {
            qemu: Qemu {
                path,
                version: (7, 2, 0),
            },
            accel: Accel::Tcg,
            cpu: String::new(),
            memory: 32,
            boot: Boot {
                kernel: "kernel".into(),
                archive: None,
                append: String::new(),
            },
            clock: Clock::Host,
            logged: Vec::new(),
            on_cpu: None,
        };
        (directory, machine)
    }

    fn ended(script: &str, limit: Duration) -> Ended {
        let (_directory, machine) = scripted(script);
        boot(&machine, limit, &mut NoLog, &mut |_| ()).unwrap()
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn success_is_a_status_that_is_not_zero() {
        let good = ended("printf '[boot] one\\r\\n[exit] success\\r\\n'; exit 33", LONG);
        assert!(good.is_success());
        assert_eq!(good.lines, ["[boot] one", "[exit] success"]);
    }

    #[test]
    fn triple_fault_is_a_failure() {
        let bad = ended("echo '[boot] one'; exit 0", LONG);
        assert!(!bad.is_success());
        assert_eq!(bad.trouble(), "the guest rebooted, by a triple fault or on purpose");
    }

    #[test]
    fn silence_is_named_and_the_emulators_own_words_are_kept() {
        let bad = ended("echo 'could not load kernel' >&2; exit 1", LONG);
        assert_eq!(
            bad.trouble(),
            "QEMU ended with status 1 before the guest printed anything"
        );
        assert_eq!(bad.tail(), ["could not load kernel"]);
    }

    #[test]
    fn complaints_about_the_cpu_model_are_left_out() {
        let bad = ended(
            "echo \"qemu: warning: TCG doesn't support requested feature: x\" >&2; echo other >&2; exit 1",
            LONG,
        );
        assert_eq!(bad.tail(), ["other"]);
    }

    #[test]
    fn hanging_guest_is_stopped_in_time() {
        let start = Instant::now();
        let bad = ended("echo '[boot] one'; exec sleep 30", Duration::from_millis(300));
        assert_eq!(bad.end, End::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!(bad.tail(), ["[boot] one"]);
    }

    #[test]
    fn endless_output_is_stopped() {
        let bad = ended("exec yes '[boot] again'", LONG);
        assert_eq!(bad.end, End::TooMuchOutput);
    }

    #[test]
    fn remedy_does_not_point_at_lines_that_are_not_there() {
        for script in ["exit 0", "exec sleep 30"] {
            let silent = ended(script, Duration::from_millis(300));
            assert!(silent.tail().is_empty());
            let text = silent.error(false).to_string();
            assert!(!text.contains("above"), "{text}");
        }
    }

    #[test]
    fn bochs_is_judged_by_the_guests_last_line() {
        let bochs = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command.stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::piped());
            watch(command, Serial::Errors, LONG, &mut NoLog, &mut |_| ()).unwrap()
        };
        let good = bochs("echo banner; echo '[exit] success' >&2; exit 1");
        assert!(good.is_success());
        assert_eq!(good.lines, ["[exit] success"]);
        assert_eq!(bochs("echo '[exit] failure: panic' >&2").status(), Some(PANIC));
        let again = "echo '[exit] failure: reboot wanted by the test runner' >&2";
        assert_eq!(bochs(again).status(), Some(REBOOT));
        let reset = bochs("echo '[boot] one' >&2; exit 0");
        assert_eq!(reset.status(), None);
        assert_eq!(reset.trouble(), "Bochs ended before the guest did");
    }

    #[test]
    fn reason_of_a_failed_program_is_given() {
        let bad = ended("echo '[exit] failure: init exited with 3'; exit 39", LONG);
        assert_eq!(bad.trouble(), "the program failed (init exited with 3)");
    }

    #[test]
    fn a_command_is_kept_on_one_cpu_alone() {
        let number = crate::machine::last_cpu().unwrap();
        let mut command = Command::new("grep");
        command.args(["Cpus_allowed_list", "/proc/self/status"]);
        let before = sched_getaffinity(None).unwrap();
        keep_on(&mut command, number);
        let status = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert_eq!(status.split_whitespace().nth(1), Some(number.to_string().as_str()));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let mut pieces = Vec::new();
        each_line(&vec![b'x'; 200_000][..], |piece| {
            pieces.push(piece.len());
            true
        });
        assert_eq!(pieces, [65_536, 65_536, 65_536, 3_392]);
    }
}
