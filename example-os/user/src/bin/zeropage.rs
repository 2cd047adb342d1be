//! Shows what a page fault on the zero page costs: touches each page of a fresh read-only mapping
//! once, unmaps it and starts again.
//!
//! `zeropage [MIB] [PASSES]`, 16 and 2 by default. The shape is that of the test program of May
//! 2014 that went with returning from a page fault by SYSRET (1024 MiB, 100 passes): the mapping
//! starts at an odd multiple of 8 KiB, so that no huge page can serve it whole. On Linux a large
//! mapping still gets huge pages unless
//! `/sys/kernel/mm/transparent_hugepage/enabled` says `never`.
#![no_std]
#![no_main]

use user::sys::{PAGE_BYTES, PROT_READ};
use user::{Args, println, rdtsc, sys};

user::program!(main);

fn main(args: Args) -> i32 {
    let mib = args.number(1, 16);
    let passes = args.number(2, 2);
    let bytes = mib << 20;

    let one_page = sys::mmap(0, PAGE_BYTES, PROT_READ).expect("one page is there");
    let start = 8192 | (8192 + one_page.addr());

    let mut wrong = 0_u64;
    let mut ticks = 0;
    for _ in 0..passes {
        let base = sys::mmap(start, bytes, PROT_READ).expect("the mapping fits");
        let before = rdtsc();
        for offset in (0..bytes).step_by(PAGE_BYTES) {
            let word = base.wrapping_add(offset).cast::<u32>();
            // SAFETY: `offset` is below `bytes`, all mapped readable, and aligned for a u32.
            let value = unsafe { word.read_volatile() };
            wrong += u64::from(value != 0);
        }
        ticks += rdtsc() - before;
        // SAFETY: 1. the range is the one just mapped, and no reference into it exists.
        unsafe { sys::munmap(base, bytes) }.expect("it was mapped");
    }

    let pages = (bytes / PAGE_BYTES * passes) as u64;
    println!(
        "zeropage: {mib} MiB, {passes} passes, {pages} pages, {wrong} not zero, {} ticks per page",
        ticks.checked_div(pages).unwrap_or(0),
    );
    i32::from(wrong != 0)
}
