//! The benchmark's page in a real browser: every plot has its marks, the console is silent, nothing is fetched.
//!
//! The page forbids fetches and scripts itself, and a browser reports each breach of that on its console. It is opened as
//! wide as on a desk and on a telephone, and the picture of it is looked at, too: what is in the document may not be seen.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::bench::html;
use crate::bench::plot::DATA;
use crate::error::{Error, Result};
use crate::setup::Setup;
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

/// Widths of windows: a desk's and a telephone's.
const WIDTHS: [u32; 2] = [1280, 390];
/// As high as the page, about.
const HEIGHT: u32 = 4200;
/// So many points at least have the colour of a kind of mark.
const FEWEST_POINTS: usize = 100;

/// A page in a browser.
struct Opened {
    /// The document as the browser holds it.
    document: String,
    /// The browser's messages.
    messages: String,
    /// What is seen of it, as PNG.
    picture: Vec<u8>,
}

/// Opens a page in a window of this width.
fn open(browser: &Path, page: &str, width: u32) -> Result<Opened> {
    let directory = tempfile::tempdir().map_err(|source| Error::File {
        action: "make a directory in",
        path: std::env::temp_dir(),
        source,
        remedy: "make it writable, or set TMPDIR to a directory that is",
    })?;
    let path = directory.path().join("report.html");
    let picture = directory.path().join("report.png");
    write_whole(&path, page.as_bytes())?;
    let output = Command::new(browser)
        // The sandbox needs namespaces that many build machines have not; the page is ours.
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--enable-logging=stderr", "--timeout=20000", "--dump-dom"])
        .arg(format!("--window-size={width},{HEIGHT}"))
        .arg(format!("--screenshot={}", picture.display()))
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
    Ok(Opened {
        document: String::from_utf8_lossy(&output.stdout).into_owned(),
        messages: String::from_utf8_lossy(&output.stderr).into_owned(),
        // A browser that made none is found out by whoever looks at it.
        picture: std::fs::read(picture).unwrap_or_default(),
    })
}

/// What is wrong with a picture of the page: its width, or a kind of mark that is not seen.
fn unseen(picture: &[u8], width: u32) -> Vec<String> {
    let mut decoder = png::Decoder::new(Cursor::new(picture));
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    let read = || {
        let mut reader = decoder.read_info().ok()?;
        let mut points = vec![0; reader.output_buffer_size()?];
        let info = reader.next_frame(&mut points).ok()?;
        Some((info, points))
    };
    let Some((info, points)) = read() else {
        return vec![format!("there is no picture {width} wide")];
    };
    let mut wrong = Vec::new();
    if info.width != width {
        wrong.push(format!("the picture is {} wide, not {width}", info.width));
    }
    for color in DATA {
        let wanted = [color.0, color.1, color.2];
        let points = points.chunks_exact(info.color_type.samples());
        if points.filter(|point| point.starts_with(&wanted)).count() < FEWEST_POINTS {
            wrong.push(format!("no mark of {color:?} is seen at {width}"));
        }
    }
    wrong
}

/// The browser, or its usual name where there is none.
pub(crate) fn find() -> std::result::Result<PathBuf, String> {
    let mut found = BROWSERS.iter().filter_map(|name| which::which(name).ok());
    found.next().ok_or_else(|| BROWSERS[0].to_owned())
}

/// Runs the test where there is a browser; elsewhere it counts as skipped. With `strict` one is installed, or it has failed.
pub(crate) fn run(setup: &Setup, filter: Option<&str>, strict: bool) -> Result<Counts> {
    let mut counts = Counts::default();
    if filter.is_some_and(|filter| !NAME.contains(filter)) {
        return Ok(counts);
    }
    let found = if strict {
        setup.require_browser().map_err(|error| error.to_string())
    } else {
        find().map_err(|name| format!("no {name} in PATH; `cargo xtask setup` installs it"))
    };
    let browser = match found {
        Ok(browser) => browser,
        Err(why) => {
            let outcome = if strict { "FAILED  " } else { "skipped " };
            println!("{outcome} {NAME}: {why}");
            counts.failed += u32::from(strict);
            counts.skipped += u32::from(!strict);
            return Ok(counts);
        }
    };
    let (report, extras) = html::sample();
    let page = html::page(&report, &extras)?;
    let mut wrong = Vec::new();
    for width in WIDTHS {
        let opened = open(&browser, &page, width)?;
        wrong.extend(html::missing_marks(&opened.document));
        wrong.extend(complaints(&opened.messages));
        wrong.extend(unseen(&opened.picture, width));
    }
    // A test of the test: a page that breaks its own rules must be noticed.
    let bad = page.replace("</body>", "<script>0</script></body>");
    if complaints(&open(&browser, &bad, WIDTHS[0])?.messages).is_empty() {
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

    /// A picture 60 wide with 60 points of each of these colours.
    fn picture(colors: &[plotters::style::RGBColor]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let lines = u32::try_from(colors.len()).unwrap();
        let mut encoder = png::Encoder::new(&mut bytes, 60, 2 * lines);
        encoder.set_color(png::ColorType::Rgb);
        let points: Vec<u8> = colors
            .iter()
            .flat_map(|color| [color.0, color.1, color.2].repeat(120))
            .collect();
        encoder.write_header().unwrap().write_image_data(&points).unwrap();
        bytes
    }

    #[test]
    fn marks_that_are_not_seen_are_named() {
        assert_eq!(unseen(&picture(&DATA), 60), Vec::<String>::new());
        assert_eq!(unseen(&picture(&DATA), 390), ["the picture is 60 wide, not 390"]);
        assert_eq!(
            unseen(&picture(&DATA[..2]), 60),
            ["no mark of RGBColor(27, 158, 119) is seen at 60"]
        );
        assert_eq!(unseen(b"", 390), ["there is no picture 390 wide"]);
    }

    #[test]
    fn only_what_concerns_the_page_is_a_complaint() {
        let messages = "[1:2:ERROR:dbus/bus.cc(408)] Failed to connect to the bus\n\
                        [1:2:INFO:CONSOLE:0] \"Refused to load\", source: file:///x (1)\n";
        assert_eq!(complaints(messages).len(), 1);
    }
}
