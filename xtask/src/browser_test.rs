//! The benchmark's page in a real browser: every plot has its marks, the console is silent, nothing is fetched.
//!
//! The page forbids fetches and scripts itself, and a browser reports each breach of that on its console.

use std::process::{Command, Stdio};

use crate::error::{Error, Result};
use crate::html;
use crate::test::Counts;
use crate::workspace::write_whole;

/// The test's name, for filters.
const NAME: &str = "browser::report_opens";
/// Names of the browser.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// What a browser's own messages have to say of the page.
fn complaints(messages: &str) -> Vec<String> {
    messages
        .lines()
        .filter(|line| line.contains(":CONSOLE") || line.contains("Refused to "))
        .map(str::to_owned)
        .collect()
}

/// Opens a page; gives the document as the browser holds it, and the browser's messages.
fn open(browser: &std::path::Path, page: &str) -> Result<(String, String)> {
    let directory = tempfile::tempdir().map_err(|source| Error::File {
        action: "make a directory in",
        path: std::env::temp_dir(),
        source,
        remedy: "make it writable, or set TMPDIR to a directory that is",
    })?;
    let path = directory.path().join("report.html");
    write_whole(&path, page.as_bytes())?;
    let output = Command::new(browser)
        // The sandbox needs namespaces that many build machines have not; the page is ours.
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--enable-logging=stderr", "--timeout=20000", "--dump-dom"])
        .arg(format!(
            "--user-data-dir={}",
            directory.path().join("profile").display()
        ))
        .arg(format!("file://{}", path.display()))
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start {
            command: browser.display().to_string(),
            source,
            remedy: "reinstall it, or take it out of PATH",
        })?;
    Ok((
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    ))
}

/// Runs the test where there is a browser; elsewhere it counts as skipped.
pub(crate) fn run(filter: Option<&str>) -> Result<Counts> {
    let mut counts = Counts::default();
    if filter.is_some_and(|filter| !NAME.contains(filter)) {
        return Ok(counts);
    }
    let Some(browser) = BROWSERS.iter().find_map(|name| which::which(name).ok()) else {
        println!("skipped  {NAME}: no {} in PATH", BROWSERS[0]);
        counts.skipped += 1;
        return Ok(counts);
    };
    let (report, extras) = html::sample();
    let (document, messages) = open(&browser, &html::page(&report, &extras)?)?;
    let mut wrong = html::missing_marks(&document);
    wrong.extend(complaints(&messages));
    // A test of the test: a page that breaks its own rules must be noticed.
    let bad = html::page(&report, &extras)?.replace("</body>", "<script>0</script></body>");
    if complaints(&open(&browser, &bad)?.1).is_empty() {
        wrong.push("a page with a script was not complained of".to_owned());
    }
    if wrong.is_empty() {
        counts.passed += 1;
    } else {
        println!("FAILED   {NAME}: {}", wrong.join("; "));
        counts.failed += 1;
    }
    println!("browser: {}", counts.line());
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_concerns_the_page_is_a_complaint() {
        let messages = "[1:2:ERROR:dbus/bus.cc(408)] Failed to connect to the bus\n\
                        [1:2:INFO:CONSOLE:0] \"Refused to load\", source: file:///x (1)\n";
        assert_eq!(complaints(messages).len(), 1);
    }
}
