//! The exit decision against the oracle, for words that the fuzzer chooses.
#![no_main]

use entry_sysret::RuleSet;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

#[path = "../../tests/oracle/comparison.rs"]
mod comparison;
#[path = "../../tests/oracle/input.rs"]
mod input;
#[path = "../../tests/oracle/manual.rs"]
mod manual;

use comparison::machines;
use manual::Machine;

static MACHINES: LazyLock<Vec<(RuleSet, Machine)>> = LazyLock::new(machines);

fuzz_target!(|data: &[u8]| input::check_input(data, &MACHINES));
