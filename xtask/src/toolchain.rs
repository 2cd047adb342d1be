//! Compilers: which there are, how cargo is called with each, and how a missing piece is installed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, Result};
use crate::machine::guest::{TURN, each_line, is_interrupted};
use crate::workspace::{Workspace, first_line};

/// The one nightly, which builds the kernel's test images and nothing else.
pub(crate) const NIGHTLY: &str = "nightly-2026-05-20";

/// The target of everything that runs without an operating system under it.
pub(crate) const GUEST_TARGET: &str = "x86_64-unknown-none";

/// Flags of every guest build. They are given here alone, so that a user's own flags cannot move a count.
const GUEST_RUSTFLAGS: &str = "-Crelocation-model=static";

/// A compiler with its cargo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Toolchain {
    /// The one that built this program.
    Active,
    /// Another one, by its rustup name.
    Named(String),
}

impl Toolchain {
    /// The pinned nightly.
    pub(crate) fn nightly() -> Self {
        Self::Named(NIGHTLY.to_owned())
    }

    /// How messages call it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Active => "the stable toolchain",
            Self::Named(name) => name,
        }
    }
}

/// One call of cargo, as a value.
#[derive(Debug, Clone)]
pub(crate) struct Cargo {
    /// Whose cargo.
    pub(crate) toolchain: Toolchain,
    /// Everything after `cargo`.
    pub(crate) arguments: Vec<String>,
    /// Where to build; cargo's own choice when absent.
    pub(crate) target: Option<PathBuf>,
    /// Whether code for the guest comes out, whose flags are ours alone.
    pub(crate) guest: bool,
    /// Whether warnings of rustdoc fail.
    pub(crate) deny_doc_warnings: bool,
    /// A `cfg` of the compiler that the build is made with.
    pub(crate) cfg: Option<&'static str>,
}

/// Variables that the cargo around us sets or reads, and that would change what the cargo inside does.
fn is_nested(name: &str) -> bool {
    const KEPT: [&str; 6] = [
        "CARGO_HOME",
        "CARGO_NET_",
        "CARGO_HTTP_",
        "CARGO_REGISTR",
        "CARGO_TERM_",
        "CARGO_TARGET_DIR",
    ];
    name == "CARGO"
        || name == "RUST_RECURSION_COUNT"
        || name == "__CARGO_DEFAULT_LIB_METADATA"
        || (name.starts_with("CARGO_") && !KEPT.iter().any(|kept| name.starts_with(kept)))
}

/// Variables that change the code that comes out.
fn is_flag(name: &str) -> bool {
    matches!(name, "RUSTFLAGS" | "RUSTDOCFLAGS" | "RUSTC" | "RUSTC_BOOTSTRAP")
}

impl Cargo {
    /// `cargo ARGUMENTS` of a toolchain.
    pub(crate) fn new<A: Into<String>>(toolchain: Toolchain, arguments: impl IntoIterator<Item = A>) -> Self {
        Self {
            toolchain,
            arguments: arguments.into_iter().map(Into::into).collect(),
            target: None,
            guest: false,
            deny_doc_warnings: false,
            cfg: None,
        }
    }

    /// Build in this directory.
    pub(crate) fn in_target(mut self, target: PathBuf) -> Self {
        self.target = Some(target);
        self
    }

    /// Build for the guest.
    pub(crate) const fn for_guest(mut self) -> Self {
        self.guest = true;
        self
    }

    /// Build with a `cfg`.
    pub(crate) const fn with_cfg(mut self, cfg: &'static str) -> Self {
        self.cfg = Some(cfg);
        self
    }

    /// The command to start.
    pub(crate) fn command(&self, environment: impl Iterator<Item = OsString>) -> Command {
        let mut command = match &self.toolchain {
            Toolchain::Active => Command::new("cargo"),
            Toolchain::Named(name) => {
                let mut command = Command::new("rustup");
                command.args(["run", name, "cargo"]).env_remove("RUSTUP_TOOLCHAIN");
                command
            }
        };
        command.args(&self.arguments);
        for name in environment {
            let Some(text) = name.to_str() else { continue };
            let own_flags = self.guest || self.deny_doc_warnings || self.cfg.is_some();
            if is_nested(text) || (own_flags && is_flag(text)) {
                command.env_remove(&name);
            }
        }
        if self.guest {
            command.env("CARGO_ENCODED_RUSTFLAGS", GUEST_RUSTFLAGS);
        }
        if let Some(cfg) = self.cfg {
            command.env("CARGO_ENCODED_RUSTFLAGS", format!("--cfg={cfg}"));
        }
        if self.deny_doc_warnings {
            command.env("RUSTDOCFLAGS", "-Dwarnings");
        }
        if let Some(target) = &self.target {
            command.env("CARGO_TARGET_DIR", target);
        }
        command.stdin(Stdio::null());
        command
    }

    /// The command to start from this process, for the whole workspace wherever this process was started.
    pub(crate) fn nested(&self, workspace: &Workspace) -> Command {
        let mut command = self.command(std::env::vars_os().map(|(name, _)| name));
        command.current_dir(&workspace.root);
        if self.target.is_none() {
            // A relative CARGO_TARGET_DIR would mean another directory there.
            command.env("CARGO_TARGET_DIR", &workspace.target);
        }
        command
    }

    /// How messages call it.
    pub(crate) fn shown(&self) -> String {
        let arguments = self.arguments.join(" ");
        match &self.toolchain {
            Toolchain::Active => format!("cargo {arguments}"),
            Toolchain::Named(name) => format!("rustup run {name} cargo {arguments}"),
        }
    }

    /// Runs it with its messages shown; `take` gets each line of its standard output as it comes.
    ///
    /// When this program is asked to end, cargo is, too: a request that is not Ctrl-C reaches this process alone.
    pub(crate) fn lines(&self, workspace: &Workspace, take: &mut dyn FnMut(&str)) -> Result<ExitStatus> {
        let mut command = self.nested(workspace);
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(|source| self.not_started(source))?;
        let (sender, lines) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            // Not waited for: a program that cargo left behind could keep the output open.
            thread::spawn(move || each_line(output, |line| sender.send(line.to_vec()).is_ok()));
        }
        loop {
            if is_interrupted() {
                if let Some(cargo) = Pid::from_raw(child.id().cast_signed()) {
                    // It fails only for one that has ended already.
                    let _ = kill_process(cargo, Signal::TERM);
                }
                child.wait().map_err(|source| self.not_started(source))?;
                return Err(Error::Interrupted);
            }
            match lines.recv_timeout(TURN) {
                Ok(line) => take(&String::from_utf8_lossy(&line)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    if let Some(status) = child.try_wait().map_err(|source| self.not_started(source))? {
                        return Ok(status);
                    }
                    thread::sleep(TURN / 10);
                }
            }
        }
    }

    /// Runs it with its messages shown, and returns what it wrote to standard output.
    pub(crate) fn output(&self, workspace: &Workspace) -> Result<String> {
        let mut output = String::new();
        let status = self.lines(workspace, &mut |line| {
            output.push_str(line);
            output.push('\n');
        })?;
        if status.success() {
            return Ok(output);
        }
        Err(Error::Command {
            command: self.shown(),
            status,
            remedy: "mend what the compiler says above".to_owned(),
        })
    }

    /// The error for a cargo that is not there.
    pub(crate) fn not_started(&self, source: std::io::Error) -> Error {
        Error::Start {
            command: self.shown(),
            source,
            remedy: "install Rust from https://rustup.rs",
        }
    }
}

/// Runs a short query and returns its standard output; `None` when it cannot be run or fails.
pub(crate) fn query(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A piece that rustup manages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A whole toolchain, with the minimal profile.
    Toolchain(String),
    /// The standard library for a target.
    Target(Toolchain, String),
    /// A component such as clippy.
    Component(Toolchain, String),
}

impl Piece {
    /// How messages call it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Toolchain(name) => format!("toolchain {name}"),
            Self::Target(toolchain, target) => format!("target {target} for {}", toolchain.name()),
            Self::Component(toolchain, component) => format!("{component} for {}", toolchain.name()),
        }
    }

    /// Arguments of the `rustup` that installs it.
    pub(crate) fn install(&self) -> Vec<String> {
        let (words, toolchain): (&[&str], _) = match self {
            Self::Toolchain(name) => {
                return ["toolchain", "install", name, "--profile", "minimal", "--no-self-update"]
                    .map(str::to_owned)
                    .to_vec();
            }
            Self::Target(toolchain, target) => (&["target", "add", target], toolchain),
            Self::Component(toolchain, component) => (&["component", "add", component], toolchain),
        };
        let mut arguments: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        if let Toolchain::Named(name) = toolchain {
            arguments.extend(["--toolchain".to_owned(), name.clone()]);
        }
        arguments
    }
}

/// What is installed, asked once for each toolchain.
#[derive(Debug, Default)]
pub(crate) struct Installed {
    toolchains: Option<String>,
    lists: Vec<(Vec<String>, String)>,
}

impl Installed {
    fn list(&mut self, what: &str, toolchain: &Toolchain) -> &str {
        let mut arguments = vec![what.to_owned(), "list".to_owned(), "--installed".to_owned()];
        if let Toolchain::Named(name) = toolchain {
            arguments.extend(["--toolchain".to_owned(), name.clone()]);
        }
        let position = match self.lists.iter().position(|(asked, _)| *asked == arguments) {
            Some(position) => position,
            None => {
                let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let answer = query("rustup", &words).unwrap_or_default();
                self.lists.push((arguments, answer));
                self.lists.len() - 1
            }
        };
        self.lists.get(position).map_or("", |(_, answer)| answer)
    }

    /// Whether a piece is there.
    pub(crate) fn has(&mut self, piece: &Piece) -> bool {
        match piece {
            Piece::Toolchain(name) => self
                .toolchains
                .get_or_insert_with(|| query("rustup", &["toolchain", "list"]).unwrap_or_default())
                .lines()
                .any(|line| is_toolchain(line, name)),
            Piece::Target(toolchain, target) => {
                self.list("target", toolchain).lines().any(|line| line == target)
                    || (*toolchain == Toolchain::Active && has_without_rustup(target))
            }
            Piece::Component(toolchain, component) => self
                .list("component", toolchain)
                .lines()
                .any(|line| is_component(line, component)),
        }
    }

    /// Forget the answers, after something was installed.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Whether a line of `rustup toolchain list` is this toolchain on some host.
fn is_toolchain(line: &str, name: &str) -> bool {
    line.split_ascii_whitespace()
        .next()
        .and_then(|word| word.strip_prefix(name))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("-x86_64") || rest.starts_with("-aarch64"))
}

/// Whether a line of `rustup component list --installed` is this component on some host.
fn is_component(line: &str, name: &str) -> bool {
    line.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("-x86_64") || rest.starts_with("-aarch64"))
}

/// Whether a compiler that does not come from rustup has the target.
fn has_without_rustup(target: &str) -> bool {
    query("rustc", &["--print", "target-libdir", "--target", target])
        .is_some_and(|directory| PathBuf::from(directory.trim()).is_dir())
}

/// Installs a piece.
pub(crate) fn install(piece: &Piece) -> Result<()> {
    let arguments = piece.install();
    let command = format!("rustup {}", arguments.join(" "));
    let output = Command::new("rustup")
        .args(&arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|_| Error::Missing {
            what: piece.name(),
            remedy: format!("install rustup from https://rustup.rs, then run `{command}`"),
        })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let reason = text
        .lines()
        .find(|line| line.starts_with("error:"))
        .unwrap_or_else(|| first_line(&text));
    Err(Error::Missing {
        what: format!("{} (`{command}` said: {reason})", piece.name()),
        remedy: format!("run `{command}` where rustup can reach its server"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(names: &[&str]) -> Vec<OsString> {
        names.iter().map(|&name| OsString::from(name)).collect()
    }

    fn value(command: &Command, name: &str) -> Option<Option<String>> {
        command
            .get_envs()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.map(|value| value.to_string_lossy().into_owned()))
    }

    #[test]
    fn nested_cargo_does_not_see_the_outer_one() {
        let cargo = Cargo::new(Toolchain::Active, ["test"]);
        let command = cargo
            .command(environment(&["CARGO", "CARGO_PKG_NAME", "CARGO_HOME", "CARGO_NET_OFFLINE", "PATH"]).into_iter());
        assert_eq!(value(&command, "CARGO"), Some(None));
        assert_eq!(value(&command, "CARGO_PKG_NAME"), Some(None));
        assert_eq!(value(&command, "CARGO_HOME"), None);
        assert_eq!(value(&command, "CARGO_NET_OFFLINE"), None);
        assert_eq!(value(&command, "PATH"), None);
    }

    #[test]
    fn guest_flags_are_ours_alone() {
        let cargo = Cargo::new(Toolchain::Active, ["build"]).for_guest();
        let names = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_PROFILE_RELEASE_LTO"];
        let command = cargo.command(environment(&names).into_iter());
        assert_eq!(value(&command, "RUSTFLAGS"), Some(None));
        assert_eq!(value(&command, "CARGO_PROFILE_RELEASE_LTO"), Some(None));
        assert_eq!(
            value(&command, "CARGO_ENCODED_RUSTFLAGS"),
            Some(Some(GUEST_RUSTFLAGS.to_owned()))
        );
    }

    #[test]
    fn host_builds_keep_the_users_flags() {
        let cargo = Cargo::new(Toolchain::Active, ["test"]);
        let command = cargo.command(environment(&["RUSTFLAGS"]).into_iter());
        assert_eq!(value(&command, "RUSTFLAGS"), None);
    }

    #[test]
    fn named_toolchain_is_run_by_rustup() {
        let cargo = Cargo::new(Toolchain::nightly(), ["test", "--no-run"]);
        let command = cargo.command(std::iter::empty());
        assert_eq!(command.get_program(), "rustup");
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(arguments, ["run", NIGHTLY, "cargo", "test", "--no-run"]);
        assert_eq!(value(&command, "RUSTUP_TOOLCHAIN"), Some(None));
    }

    #[test]
    fn rustup_commands_name_the_toolchain() {
        let piece = Piece::Component(Toolchain::nightly(), "clippy".to_owned());
        assert_eq!(piece.install(), ["component", "add", "clippy", "--toolchain", NIGHTLY]);
        let piece = Piece::Target(Toolchain::Active, GUEST_TARGET.to_owned());
        assert_eq!(piece.install(), ["target", "add", GUEST_TARGET]);
    }

    #[test]
    fn lists_are_read_to_the_end_of_the_name() {
        assert!(is_toolchain("1.88-x86_64-unknown-linux-gnu", "1.88"));
        assert!(is_toolchain(
            "stable-x86_64-unknown-linux-gnu (active, default)",
            "stable"
        ));
        assert!(!is_toolchain("1.88.0-x86_64-unknown-linux-gnu", "1.88"));
        assert!(!is_toolchain("nightly-2026-05-20-x86_64-unknown-linux-gnu", "nightly"));
        assert!(is_component("clippy-x86_64-unknown-linux-gnu", "clippy"));
        assert!(!is_component("rust-std-x86_64-unknown-none", "rust"));
    }
}
