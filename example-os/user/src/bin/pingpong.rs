//! Shows blocking and waking: two processes pass a byte to and fro over two pipes.
//!
//! `pingpong [ROUNDS]`, 1000 by default. Each byte comes back inverted; the child's end is seen
//! by end of file and its exit status.
#![no_std]
#![no_main]

use user::{Args, println, sys};

user::program!(main);

fn main(args: Args) -> i32 {
    let rounds = args.number(1, 1000);
    let [ping_in, ping_out] = sys::pipe().expect("a first pipe");
    let [pong_in, pong_out] = sys::pipe().expect("a second pipe");

    let child = sys::fork().expect("a child");
    if child == 0 {
        sys::close(ping_out).expect("the child's copy was open");
        sys::close(pong_in).expect("the child's copy was open");
        sys::exit(answer(ping_in, pong_out));
    }
    sys::close(ping_in).expect("the parent's copy was open");
    sys::close(pong_out).expect("the parent's copy was open");

    let mut wrong = 0;
    for round in 0..rounds {
        let sent = round.to_le_bytes()[0];
        let mut byte = [0];
        let there = sys::write(ping_out, &[sent]);
        let back = sys::read(pong_in, &mut byte);
        wrong += usize::from(there != Ok(1) || back != Ok(1) || byte != [!sent]);
    }
    sys::close(ping_out).expect("it was open");
    let end = sys::read(pong_in, &mut [0]);
    let (_, status) = sys::wait4(child).expect("the child is ours");

    println!("pingpong: {rounds} round trips, {wrong} wrong, then read {end:?}, child status {status}");
    i32::from(wrong != 0 || end != Ok(0) || status != 0)
}

/// Sends each byte back inverted until the pipe ends.
fn answer(from: i32, to: i32) -> i32 {
    let mut byte = [0];
    loop {
        match sys::read(from, &mut byte) {
            Ok(0) => return 0,
            Ok(_) if sys::write(to, &[!byte[0]]) == Ok(1) => {}
            _ => return 1,
        }
    }
}
