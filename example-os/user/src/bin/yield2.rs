//! Shows the scheduler's order: two processes write their letter into one pipe and yield.
//!
//! `yield2 [TURNS]`, 32 by default, 1024 at most. On example-os the letters must alternate strictly. A timer interrupt
//! between a write and its yield gives the other process a turn too many: two of a kind stand side by side there, and
//! two more at the end, where the first one catches up. So two exceptions pass for each tick. Linux promises no order:
//! there only the number of letters is checked.
#![no_std]
#![no_main]

use user::{Args, control, println, sys};

user::program!(main);

fn main(args: Args) -> i32 {
    let turns = args.number(1, 32).min(1024);
    let [read_end, write_end] = sys::pipe().expect("a pipe");
    let ticks_before = control::counter(control::COUNT_TICKS);

    let child = sys::fork().expect("a child");
    let letter = if child == 0 { b'c' } else { b'p' };
    let mut failed = 0;
    for _ in 0..turns {
        failed |= i32::from(sys::write(write_end, &[letter]) != Ok(1));
        failed |= i32::from(sys::sched_yield().is_err());
    }
    if child == 0 {
        sys::exit(failed);
    }
    let (_, status) = sys::wait4(child).expect("the child is ours");
    sys::close(write_end).expect("it was open");

    let (letters, repeats) = read_letters(read_end);
    println!("yield2: {letters} letters, {repeats} times the same twice");
    if failed != 0 || status != 0 || letters != 2 * turns {
        return 1;
    }
    match (ticks_before, control::counter(control::COUNT_TICKS)) {
        (Ok(before), Ok(after)) if repeats > 2 * (after - before) => {
            println!("yield2: only {} timer ticks explain that", after - before);
            1
        }
        _ => 0,
    }
}

/// Reads to the end: how many letters there are, and how many equal the one before.
fn read_letters(from: i32) -> (usize, usize) {
    let (mut letters, mut repeats, mut last) = (0, 0, 0);
    let mut buffer = [0; 64];
    while let Ok(count @ 1..) = sys::read(from, &mut buffer) {
        for &letter in &buffer[..count] {
            letters += 1;
            repeats += usize::from(letter == last);
            last = letter;
        }
    }
    (letters, repeats)
}
