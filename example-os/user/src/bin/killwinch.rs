//! Shows what a system call through the whole kernel costs: sends itself SIGWINCH, which is
//! ignored by default, in a loop.
//!
//! `killwinch [CALLS]`, 10000 by default. The loop is that of the May 2016 patch which spared
//! context tracking the saving of the interrupt flag (100 000 000 calls); the process number is
//! fetched once, before it.
#![no_std]
#![no_main]

use user::sys::SIGWINCH;
use user::{Args, println, rdtsc, sys};

user::program!(main);

fn main(args: Args) -> i32 {
    let calls = args.number(1, 10_000);
    let pid = sys::getpid();
    sys::kill(pid, SIGWINCH).expect("SIGWINCH can be sent to oneself");

    let before = rdtsc();
    for _ in 0..calls {
        // Checked above: the loop is as bare as the original.
        let _ = sys::kill(pid, SIGWINCH);
    }
    let ticks = rdtsc() - before;

    println!(
        "killwinch: {ticks} ticks, {calls} calls, {} ticks per call",
        ticks.checked_div(calls as u64).unwrap_or(0),
    );
    0
}
