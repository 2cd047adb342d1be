//! House rules that no compiler checks.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::test::ablate;
use crate::workspace::{KERNEL, LIBRARIES};

/// A rule: looks at the repository and gives the places where it is broken.
type Rule = fn(&Path) -> io::Result<Vec<String>>;

/// Every rule with its name.
pub(crate) const RULES: &[(&str, Rule)] = &[
    ("rule: one lint line in the libraries", one_lint_line),
    ("rule: no allow attributes", no_allow),
    ("rule: file names say what is inside", file_names),
    ("rule: every guard is listed with a test", guards),
    ("rule: every hazard has a test or says why not", hazards),
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

/// The table of hazards.
const HAZARDS: &str = "xtask/hazards.txt";

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

/// Names of the guards in a source: the first text after `guard!(`, and what `ablate` is compared with.
fn guard_names(source: &str) -> BTreeSet<String> {
    ["guard!(", "ablate = "]
        .iter()
        .flat_map(|start| source.split(start).skip(1))
        .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
        .filter(|name| {
            !name.is_empty()
                && name
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        })
        .map(str::to_owned)
        .collect()
}

fn guards(root: &Path) -> io::Result<Vec<String>> {
    let mut broken = Vec::new();
    for library in LIBRARIES.into_iter().chain([KERNEL]) {
        let mut there = BTreeSet::new();
        for path in sources(&root.join(library).join("src"))? {
            there.extend(guard_names(&fs::read_to_string(&path)?));
        }
        let listing = root.join(library).join(ablate::LISTING);
        let listed = match ablate::parse(library, &fs::read_to_string(&listing).unwrap_or_default()) {
            Ok(guards) => guards.into_iter().map(|guard| guard.name).collect(),
            Err(line) => {
                broken.push(format!("{}: `{line}` is not `GUARD FILE TEST`", shown(root, &listing)));
                continue;
            }
        };
        for name in there.symmetric_difference(&listed) {
            let wrong = if listed.contains(name) {
                "is no guard of the sources"
            } else {
                "is not listed"
            };
            broken.push(format!("{}: {name} {wrong}", shown(root, &listing)));
        }
    }
    Ok(broken)
}

/// Whether a source has a function, or a test that a macro makes, of this name.
fn has_test(source: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    source.match_indices(name).any(|(start, _)| {
        let (before, rest) = source.split_at(start);
        !before.ends_with(is_part) && !rest[name.len()..].starts_with(is_part)
    })
}

/// What is wrong with a line of the table, and the id that it has.
fn hazard(root: &Path, line: &str) -> (String, Vec<String>) {
    let parts: Vec<&str> = line.split(" · ").collect();
    let [id, sentence, tests] = parts[..] else {
        return (line.to_owned(), vec!["is not `ID · SENTENCE · TESTS`".to_owned()]);
    };
    let mut wrong = Vec::new();
    if !sentence.ends_with('.') {
        wrong.push("its sentence has no end".to_owned());
    }
    if let Some(why) = tests.strip_prefix("untested: ") {
        if !why.contains("; guarded by ") {
            wrong.push("does not say what guards".to_owned());
        }
        return (id.to_owned(), wrong);
    }
    for test in tests.split(", ") {
        let there = test.split_once("::").is_some_and(|(file, name)| {
            fs::read_to_string(root.join(file)).is_ok_and(|source| !name.is_empty() && has_test(&source, name))
        });
        if !there {
            wrong.push(format!("there is no test {test}"));
        }
    }
    (id.to_owned(), wrong)
}

/// Every id of the table, from the first to the last of each letter.
fn hazard_ids() -> impl Iterator<Item = String> {
    const LAST: [(&str, u32); 13] = [
        ("R", 24),
        ("C", 18),
        ("E", 15),
        ("I", 6),
        ("T", 8),
        ("G", 5),
        ("N", 6),
        ("D", 4),
        ("X", 10),
        ("P", 5),
        ("Z", 1),
        ("A", 3),
        ("B", 3),
    ];
    LAST.into_iter()
        .flat_map(|(letter, last)| (1..=last).map(move |number| format!("{letter}{number:02}")))
}

fn hazards(root: &Path) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(root.join(HAZARDS))?;
    let mut broken = Vec::new();
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (id, wrong) = hazard(root, line);
        broken.extend(wrong.into_iter().map(|wrong| format!("{HAZARDS}: {id}: {wrong}")));
        found.push(id);
    }
    for id in hazard_ids() {
        match found.iter().filter(|other| **other == id).count() {
            1 => {}
            count => broken.push(format!("{HAZARDS}: {id} is there {count} times")),
        }
    }
    Ok(broken)
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
    fn guards_are_found_in_both_forms_and_over_lines() {
        let source =
            "guard!(\"a-b\", x) guard!(\n    \"c\",\n y) cfg!(not(ablate = \"d1\")) `ablate=\"NAME\"` ablate = $name";
        assert_eq!(guard_names(source).into_iter().collect::<Vec<_>>(), ["a-b", "c", "d1"]);
    }

    #[test]
    fn guard_without_a_test_and_test_without_a_guard_are_found() {
        let root = tempfile::tempdir().unwrap();
        for library in LIBRARIES.into_iter().chain([KERNEL]) {
            fs::create_dir_all(root.path().join(library).join("src")).unwrap();
        }
        let core = root.path().join(LIBRARIES[0]);
        fs::create_dir(core.join("tests")).unwrap();
        fs::write(core.join("src/a.rs"), "guard!(\"new\", true)").unwrap();
        fs::write(core.join(ablate::LISTING), "old file test\n").unwrap();
        assert_eq!(
            guards(root.path()).unwrap(),
            [
                "entry-core/tests/ablations.txt: new is not listed",
                "entry-core/tests/ablations.txt: old is no guard of the sources"
            ]
        );
    }

    #[test]
    fn hazard_names_a_test_that_exists_or_what_guards() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a.rs"), "fn shows_it() {}").unwrap();
        let wrong = |line: &str| hazard(root.path(), line).1;
        assert!(wrong("R01 · It breaks. · a.rs::shows_it").is_empty());
        assert_eq!(
            wrong("R01 · It breaks. · a.rs::shows"),
            ["there is no test a.rs::shows"]
        );
        assert_eq!(
            wrong("R01 · It breaks. · b.rs::shows_it"),
            ["there is no test b.rs::shows_it"]
        );
        assert!(wrong("R01 · It breaks. · untested: too rare; guarded by a check").is_empty());
        assert_eq!(
            wrong("R01 · It breaks. · untested: too rare"),
            ["does not say what guards"]
        );
        assert_eq!(wrong("R01 · It breaks."), ["is not `ID · SENTENCE · TESTS`"]);
    }

    #[test]
    fn table_of_this_repository_is_whole() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert_eq!(hazards(root).unwrap(), [""; 0]);
        assert_eq!(guards(root).unwrap(), [""; 0]);
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
