//! Bytes as a question, for fuzzing and for tests of what it found.
//!
//! Entry, set of rules, marks (one byte each), then RIP, CS, RFLAGS, SS, RCX, R11, eight bytes each, little endian. What is
//! missing is 0. CS and SS are taken from the rules when they are 0, and CS is that of 32-bit code when it is 1.

use entry_sysret::{RuleSet, decide};

use crate::comparison::{check, words};
use crate::manual::{ENTRIES, Machine, Question};

/// Asks decision and oracle, and makes sure that what is let through is ring 3 with a user's RIP.
pub(crate) fn check_input(data: &[u8], machines: &[(RuleSet, Machine)]) {
    let mut input = data.iter().copied();
    let mut byte = || input.next().unwrap_or(0);
    let entry = ENTRIES[usize::from(byte()) % ENTRIES.len()];
    let (rules, machine) = &machines[usize::from(byte()) % machines.len()];
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
    if decide(&words(&question), rules).is_ok() {
        assert_eq!(question.cs % 4, 3);
        assert!(question.rip < machine.user_end || question.rip >> 32 == 0);
    }
}
