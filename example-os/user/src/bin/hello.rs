//! Shows that a program starts: prints its arguments, its number and its parent's, and exits
//! with 0.
#![no_std]
#![no_main]

use user::{Args, println, sys};

user::program!(main);

fn main(args: Args) -> i32 {
    println!("hello: pid {}, parent {}", sys::getpid(), sys::getppid());
    for (index, argument) in args.iter().enumerate() {
        println!("hello: argv[{index}] = {argument}");
    }
    0
}
