//! House rules that no compiler checks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::workspace::LIBRARIES;

/// A rule: looks at the repository and gives the places where it is broken.
type Rule = fn(&Path) -> io::Result<Vec<String>>;

/// Every rule with its name.
pub(crate) const RULES: &[(&str, Rule)] = &[
    ("rule: one lint line in the libraries", one_lint_line),
    ("rule: no allow attributes", no_allow),
    ("rule: file names say what is inside", file_names),
];

/// The line that each library has in its `lib.rs`, since an inherited lint table cannot be added to.
const LINT_LINE: &[&str] = &[
    "clippy::alloc_instead_of_core",
    "clippy::expect_used",
    "clippy::indexing_slicing",
    "clippy::panic",
    "clippy::std_instead_of_core",
    "clippy::unwrap_used",
];

/// File names under which anything could be.
const EMPTY_NAMES: [&str; 9] = [
    "util", "utils", "common", "helper", "helpers", "types", "misc", "mod", "tools",
];

/// Directories that hold no sources of ours.
const SKIPPED: [&str; 3] = ["target", ".git", "golden"];

fn sources(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() && !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                waiting.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// The lints in `#![warn(…)]` of a crate root, wherever its lines break.
fn warned(source: &str) -> Vec<String> {
    let Some((_, rest)) = source.split_once("#![warn(") else {
        return Vec::new();
    };
    let inside = rest.split_once(")]").map_or("", |(inside, _)| inside);
    let mut lints: Vec<String> = inside
        .split(',')
        .map(|lint| lint.trim().to_owned())
        .filter(|lint| !lint.is_empty())
        .collect();
    lints.sort_unstable();
    lints
}

fn one_lint_line(root: &Path) -> io::Result<Vec<String>> {
    let mut broken = Vec::new();
    for library in LIBRARIES {
        let path = root.join(library).join("src/lib.rs");
        let found = warned(&fs::read_to_string(&path)?);
        if found != LINT_LINE {
            broken.push(format!(
                "{}: wants #![warn({})], has [{}]",
                shown(root, &path),
                LINT_LINE.join(", "),
                found.join(", ")
            ));
        }
    }
    Ok(broken)
}

/// The numbers of lines that have an allow attribute.
fn allow_lines(source: &str) -> Vec<usize> {
    source
        .lines()
        .enumerate()
        .filter(|(_, line)| {
            let line = line.trim_start();
            ["#[", "#!["]
                .iter()
                .filter_map(|start| line.strip_prefix(start))
                .any(|rest| {
                    rest.trim_start().starts_with("allow(")
                        || (rest.starts_with("cfg_attr(") && rest.contains(" allow("))
                })
        })
        .map(|(number, _)| number + 1)
        .collect()
}

fn no_allow(root: &Path) -> io::Result<Vec<String>> {
    let mut broken = Vec::new();
    for path in sources(root)? {
        for line in allow_lines(&fs::read_to_string(&path)?) {
            broken.push(format!(
                "{}:{line}: use #[expect(lint, reason = …)]",
                shown(root, &path)
            ));
        }
    }
    Ok(broken)
}

fn file_names(root: &Path) -> io::Result<Vec<String>> {
    Ok(sources(root)?
        .iter()
        .filter(|path| {
            path.file_stem()
                .is_some_and(|stem| EMPTY_NAMES.iter().any(|name| stem == *name))
        })
        .map(|path| format!("{}: name it after what it holds", shown(root, path)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lint_line_is_read_over_several_lines() {
        let source = "//! Doc.\n#![no_std]\n#![warn(\n    clippy::panic,\n    clippy::expect_used,\n)]\n";
        assert_eq!(warned(source), ["clippy::expect_used", "clippy::panic"]);
        assert!(warned("#![no_std]").is_empty());
    }

    #[test]
    fn allow_is_found_in_each_form_and_not_in_words() {
        let source = "#[allow(dead_code)]\n  #![allow(x)]\n#[cfg_attr(test, allow(y))]\n// #[allow(z)]\n#[expect(a, reason = \"b\")]\nlet allow = allow();\n";
        assert_eq!(allow_lines(source), [1, 2, 3]);
    }

    #[test]
    fn empty_names_are_found_and_others_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join("x/src");
        fs::create_dir_all(&source).unwrap();
        fs::create_dir_all(root.path().join("target")).unwrap();
        for name in ["x/src/helpers.rs", "x/src/mod.rs", "x/src/frame.rs", "target/util.rs"] {
            fs::write(root.path().join(name), "").unwrap();
        }
        assert_eq!(
            file_names(root.path()).unwrap(),
            [
                "x/src/helpers.rs: name it after what it holds",
                "x/src/mod.rs: name it after what it holds"
            ]
        );
    }
}
