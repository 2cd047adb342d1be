//! The exit decision against the oracle, for words that the fuzzer chooses.
//!
//! Input: entry, set of rules, marks (one byte each), then RIP, CS, RFLAGS, SS, RCX, R11, eight bytes each, little endian.
//! What is missing is 0. CS and SS are taken from the rules when they are 0 and 1.
#![no_main]

use entry_sysret::{RuleSet, decide};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

#[path = "../../tests/oracle/comparison.rs"]
mod comparison;
#[path = "../../tests/oracle/manual.rs"]
mod manual;

use comparison::{check, machines, words};
use manual::{ENTRIES, Machine, Question};

static MACHINES: LazyLock<Vec<(RuleSet, Machine)>> = LazyLock::new(machines);

fuzz_target!(|data: &[u8]| {
    let mut input = data.iter().copied();
    let mut byte = || input.next().unwrap_or(0);
    let entry = ENTRIES[usize::from(byte()) % ENTRIES.len()];
    let (rules, machine) = &MACHINES[usize::from(byte()) % MACHINES.len()];
    let marks = byte();
    let mut word = || u64::from_le_bytes([(); 8].map(|()| byte()));
    let selector = |word: u64, usual: u64| match word {
        0 => usual,
        1 => machine.cs32,
        other => other,
    };
    let question = Question {
        entry,
        modified: marks & 1 != 0,
        declared_dead: marks & 2 != 0,
        no_breakpoint: marks & 4 != 0,
        rip: word(),
        cs: selector(word(), machine.cs64),
        rflags: word(),
        ss: selector(word(), machine.ss),
        rcx: word(),
        r11: word(),
    };
    check(&question, rules, machine);
    // What is let through is ring 3 with a user's RIP.
    if decide(&words(&question), rules).is_ok() {
        assert_eq!(question.cs % 4, 3);
        assert!(question.rip < machine.user_end || question.rip >> 32 == 0);
    }
});
