//! The text screen shows what is printed.
//!
//! Any emulator whose loader finds a text screen: Bochs by GRUB. QEMU's own loader finds none.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::device::screen::{self, COLUMNS, ROWS};
use example_os::{println, skip};

/// Whether the row begins with the text, and is blank behind it.
fn shows(row: usize, text: &str) -> bool {
    screen::row(row)
        .is_some_and(|cells| cells.starts_with(text.as_bytes()) && cells[text.len()..].iter().all(|&cell| cell == 0))
}

/// Prints a line for each letter, one more than the screen has rows.
fn fill() {
    for letter in 'a'..='z' {
        println!("{letter}");
    }
}

example_os::tests! { ();
    fn shows_the_last_lines_in_their_order(_suite) {
        if screen::row(0).is_none() {
            skip!("no text screen");
        }
        fill();
        // The last row is that of the line which is written next.
        for (row, letter) in ('a'..='z').skip(26 + 1 - ROWS).enumerate() {
            assert!(shows(row, letter.encode_utf8(&mut [0; 4])), "row {row}: {:x?}", screen::row(row));
        }
        assert!(shows(ROWS - 1, ""));
    }

    fn goes_on_in_the_next_row_behind_the_last_column(_suite) {
        if screen::row(0).is_none() {
            skip!("no text screen");
        }
        fill();
        println!("{:-<width$}", "", width = COLUMNS + 3);
        assert!(shows(ROWS - 3, core::str::from_utf8(&[b'-'; COLUMNS]).unwrap()));
        assert!(shows(ROWS - 2, "---"));
    }

    fn shows_one_mark_for_a_character_that_it_lacks(_suite) {
        if screen::row(0).is_none() {
            skip!("no text screen");
        }
        println!("a\u{e9}\u{2500}\u{1f980}b\tc");
        assert!(shows(ROWS - 2, "a???bc"));
    }

    fn has_no_row_behind_the_last(_suite) {
        assert_eq!(screen::row(ROWS), None);
    }
}
