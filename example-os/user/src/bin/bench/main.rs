//! Measures what an entry into the kernel and the way back cost, row by row.
//!
//! `bench [--table] [--interleaved] [--rounds N] [--repeats N] [ROW or ~PART ...]`: without a ROW, all but those whose rounds are
//! mostly overhead, and those in a larger size; 4096 rounds and 3 repeats by default. It first says which
//! machine CPUID shows, and measures loops of known length in
//! ring 3 and, on example-os, in ring 0:
//!
//! ```text
//! [bench] machine hypervisor=VENDOR cpu=BRAND
//! [bench] calibration rounds=R ticks=T loop=L
//! [bench] ring0 rounds=R ticks=T loop=L
//! [bench] row=NAME rounds=R ticks=T loop=L ops=O
//! ```
//!
//! Both loops are measured as often as a row. R rounds took T ticks of the time-stamp counter. L
//! instructions of each round are loop and set-up, and a round is O operations. Every repeat prints a
//! line for N rounds and one for 2N, so that what is constant cancels: with one tick an instruction, an
//! operation takes `((T2 - T1) / (R2 - R1) - L) / O` instructions.
//!
//! With `--interleaved` a repeat of every row is made before the next repeat of any, and every second time in the opposite
//! order: what changes in the machine with time then changes for all rows alike.
//!
//! Each row does its operation once and checks the effect before it is timed. `[bench] error
//! row=NAME ...` and exit status 1 say that it was not the expected one; `[bench] skip=NAME
//! reason=...` that this kernel does not offer the row.
//!
//! With `--table`, it prints [a table](table) instead, for people.
#![no_std]
#![no_main]

mod compat;
mod loops;
mod rows;
mod table;

use user::{Args, control, println, sys};

use rows::{Bench, Problem, ROWS};
use table::MOST_REPEATS;

user::program!(main);

/// Whether a word of the command line names a row: whole, or `~` and a part of it.
fn is_named(row: &rows::Row, word: &str) -> bool {
    match word.strip_prefix('~') {
        Some(part) => row.name.contains(part),
        None => row.name == word,
    }
}

fn main(args: Args) -> i32 {
    if sys::getpid() == 1 && !control::is_example_os() {
        in_a_child(args)
    } else {
        run(args)
    }
}

/// Linux's first process is none like others: signals whose default it has not changed do not reach it.
fn in_a_child(args: Args) -> i32 {
    let ended = sys::fork().and_then(|child| {
        if child == 0 {
            sys::exit(run(args));
        }
        sys::wait4(child)
    });
    match ended {
        Ok((_, status)) if status & 0x7f == 0 => status >> 8,
        Ok((_, status)) => {
            println!(
                "[bench] error the process that measures was killed by signal {}",
                status & 0x7f
            );
            1
        }
        Err(errno) => {
            println!("[bench] error no process to measure in: {errno:?}");
            1
        }
    }
}

fn run(args: Args) -> i32 {
    let (mut rounds, mut repeats, mut first_row) = (4096, 3, 1);
    let (mut with_table, mut interleaved) = (false, false);
    loop {
        match args.get(first_row) {
            Some("--interleaved") => {
                interleaved = true;
                first_row += 1;
                continue;
            }
            Some("--table") => {
                with_table = true;
                first_row += 1;
                continue;
            }
            Some("--rounds") => rounds = args.number(first_row + 1, rounds),
            Some("--repeats") => repeats = args.number(first_row + 1, repeats),
            Some(option) if option.starts_with('-') => {
                println!("bench: no option `{option}`; there are --table, --interleaved, --rounds N and --repeats N");
                return 2;
            }
            _ => break,
        }
        first_row += 2;
    }
    if rounds == 0 || repeats == 0 {
        println!("bench: rounds and repeats start at 1");
        return 2;
    }
    if with_table && repeats > MOST_REPEATS {
        println!("bench: a table keeps {MOST_REPEATS} repeats, not {repeats}");
        return 2;
    }
    let chosen = |row: &rows::Row| {
        if first_row >= args.count() {
            return !row.is_on_request();
        }
        args.iter().skip(first_row).any(|wanted| is_named(row, wanted))
    };
    for wanted in args.iter().skip(first_row) {
        if !ROWS.iter().any(|row| is_named(row, wanted)) {
            println!("bench: no row `{wanted}`; there are:");
            for row in ROWS {
                println!("bench:   {}", row.name);
            }
            return 2;
        }
    }

    if with_table && interleaved {
        println!("bench: a table is printed row by row, and so not with --interleaved");
        return 2;
    }
    let (passes, repeats) = if interleaved { (repeats, 1) } else { (1, repeats) };
    let mut bench = Bench::new(rounds as u64, repeats as u64);
    let hypervisor = Bench::identify();
    if !with_table {
        bench.calibrate(passes.max(repeats));
    } else if let Err(problem) = bench.start_table(hypervisor.name()) {
        println!("bench: no table: {problem}");
        return 2;
    }
    let mut status = 0;
    for (pass, place) in (0..passes).flat_map(|pass| (0..ROWS.len()).map(move |place| (pass, place))) {
        let row = &ROWS[if pass % 2 == 0 { place } else { ROWS.len() - 1 - place }];
        if !chosen(row) {
            continue;
        }
        match (row.run)(&bench, row) {
            Ok(()) => {}
            Err(Problem::Skip(_)) if pass > 0 => {}
            Err(Problem::Skip(reason)) => match bench.table() {
                Some(table) => table.omit(row.name, reason),
                None => println!("[bench] skip={} reason={reason}", row.name),
            },
            Err(problem) => {
                println!("[bench] error row={} {problem}", row.name);
                status = 1;
                if let Some(table) = bench.table() {
                    table.fail();
                }
            }
        }
    }
    if let Some(table) = bench.table() {
        table.end();
    }
    status
}
