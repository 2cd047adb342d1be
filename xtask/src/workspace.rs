//! Where things are: packages, programs and build directories.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cargo_metadata::{Metadata, MetadataCommand, Package};

use crate::error::{Error, Result};

/// The kernel's package.
pub(crate) const KERNEL: &str = "example-os";

/// The packages that are published.
pub(crate) const LIBRARIES: [&str; 4] = ["entry-core", "entry-sysret", "entry-sysenter", "context-tracking"];

/// The workspace on disk.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    /// Directory of the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's build directory for the host.
    pub(crate) target: PathBuf,
    /// Name of the package that holds the user programs.
    pub(crate) user_package: String,
    /// Names of the user programs.
    pub(crate) programs: Vec<String>,
    /// Names of the kernel's test images.
    pub(crate) test_images: Vec<String>,
    /// Oldest compiler that the libraries promise to build with.
    pub(crate) oldest: String,
}

fn package(metadata: &Metadata, found: impl Fn(&Package) -> bool) -> Option<&Package> {
    metadata.packages.iter().find(|package| found(package))
}

impl Workspace {
    /// Asks cargo.
    pub(crate) fn find() -> Result<Self> {
        let mut command = MetadataCommand::new();
        command.no_deps();
        if let Some(directory) = std::env::var_os("CARGO_MANIFEST_DIR") {
            command.manifest_path(Path::new(&directory).join("Cargo.toml"));
        }
        let metadata = command.exec().map_err(|error| Error::Verdict {
            what: format!("the workspace cannot be read: {}", first_line(&error.to_string())),
            remedy: "run `cargo xtask` inside the repository, with cargo in PATH".to_owned(),
        })?;
        let root = metadata.workspace_root.clone().into_std_path_buf();
        let user_manifest = root.join("example-os/user/Cargo.toml");
        let missing = |what: &str| Error::Missing {
            what: format!("package {what}"),
            remedy: "restore it from the repository".to_owned(),
        };
        let user = package(&metadata, |package| package.manifest_path == user_manifest)
            .ok_or_else(|| missing("example-os/user"))?;
        let kernel = package(&metadata, |package| package.name == KERNEL).ok_or_else(|| missing(KERNEL))?;
        let library =
            package(&metadata, |package| package.name == LIBRARIES[0]).ok_or_else(|| missing(LIBRARIES[0]))?;
        let names = |package: &Package, wanted: fn(&cargo_metadata::Target) -> bool| {
            package
                .targets
                .iter()
                .filter(|target| wanted(target))
                .map(|target| target.name.clone())
                .collect::<Vec<_>>()
        };
        let oldest = library
            .rust_version
            .as_ref()
            .map_or_else(String::new, |version| format!("{}.{}", version.major, version.minor));
        Ok(Self {
            target: metadata.target_directory.clone().into_std_path_buf(),
            user_package: user.name.to_string(),
            programs: names(user, cargo_metadata::Target::is_bin),
            test_images: names(kernel, cargo_metadata::Target::is_test),
            oldest,
            root,
        })
    }

    /// Build directory of the kernel and the user programs.
    pub(crate) fn guest_target(&self) -> PathBuf {
        self.target.join("guest")
    }

    /// Build directory of the test images, which another compiler builds.
    pub(crate) fn nightly_target(&self) -> PathBuf {
        self.target.join("nightly")
    }

    /// Build directory for the oldest compiler.
    pub(crate) fn oldest_target(&self) -> PathBuf {
        self.target.join("oldest")
    }

    /// Makes sure that build directories can be written, before a compiler says so in many lines.
    pub(crate) fn writable(&self) -> Result<()> {
        for directory in [self.target.clone(), self.guest_target()] {
            fs::create_dir_all(&directory)
                .and_then(|()| tempfile::tempfile_in(&directory).map(drop))
                .map_err(|source| Error::File {
                    action: "write to",
                    path: directory,
                    source,
                    remedy: "make it writable, or set CARGO_TARGET_DIR to a directory that is",
                })?;
        }
        Ok(())
    }
}

/// The first line of a longer message.
pub(crate) fn first_line(text: &str) -> &str {
    text.trim().lines().next().unwrap_or_default()
}

/// A place for contents that will be renamed to `path` when they are complete.
///
/// Made before long work, it tells of a path that cannot be written while nothing is lost yet. `None` where there is
/// something that takes contents but cannot be replaced: a device or a pipe.
pub(crate) fn prepare_file(path: &Path) -> Result<Option<tempfile::NamedTempFile>> {
    let place = behind_links(path);
    let directory = match place.parent() {
        Some(parent) if parent != OsStr::new("") => parent,
        _ => Path::new("."),
    };
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => return Err(not_written(path, std::io::ErrorKind::IsADirectory.into())),
        Ok(found) if !found.is_file() => return Ok(None),
        _ => {}
    }
    // The system's own words, which the next step would lose.
    fs::metadata(directory).map_err(|source| not_written(path, source))?;
    tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(directory)
        .map(Some)
        // The temporary name in the original error would only confuse.
        .map_err(|source| not_written(path, source.kind().into()))
}

fn not_written(path: &Path, source: std::io::Error) -> Error {
    Error::File {
        action: "write",
        path: path.to_owned(),
        source,
        remedy: "choose a file in a directory that exists, can be written and has room",
    }
}

/// Where a path leads to, when there is something.
fn behind_links(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Writes a file as a whole or not at all; a link stays one, and a device or a pipe gets the contents.
pub(crate) fn write_whole(path: &Path, contents: &[u8]) -> Result<()> {
    let failed = |source| not_written(path, source);
    let Some(mut file) = prepare_file(path)? else {
        let mut device = fs::OpenOptions::new().write(true).open(path).map_err(failed)?;
        return device.write_all(contents).map_err(failed);
    };
    // As above: of the temporary name nobody knows.
    file.write_all(contents)
        .map_err(|source| failed(source.kind().into()))?;
    file.persist(behind_links(path)).map_err(|error| failed(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_whole_files_and_leaves_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.json");
        write_whole(&path, b"one").unwrap();
        write_whole(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_stays_one() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("out.json"), directory.path().join("link"));
        fs::write(&file, b"old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_whole(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
    }

    #[test]
    fn what_is_no_file_is_not_replaced() {
        use std::os::unix::fs::FileTypeExt;
        assert!(prepare_file(Path::new("/dev/null")).unwrap().is_none());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // A socket cannot be written by its name either, but it is still there.
        assert!(write_whole(&path, b"x").is_err());
        assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    }

    #[test]
    fn names_the_file_it_cannot_write() {
        let error = write_whole(Path::new("/nonexistent/out.json"), b"x").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot write /nonexistent/out.json: No such file or directory ")
        );
    }
}
