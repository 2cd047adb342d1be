//! The executed instructions of one round, in order, with the function each belongs to.

use std::cmp::Reverse;
use std::fmt::Write;

use iced_x86::{Formatter, Instruction, IntelFormatter, SymbolResolver, SymbolResult};

use crate::bench::trace::{Code, Step};
use crate::build::image::Image;

/// Addresses as what they stand for.
struct Places(Image);

/// Lower numbers are no addresses of the kernel's, and may well be something else.
const LOWEST_ADDRESS: u64 = 1 << 63;

impl SymbolResolver for Places {
    fn symbol(&mut self, _: &Instruction, _: u32, _: Option<u32>, address: u64, _: u32) -> Option<SymbolResult<'_>> {
        let place = self.0.place(address).filter(|_| address >= LOWEST_ADDRESS)?;
        Some(SymbolResult::with_string(address, place))
    }
}

/// Intel's syntax as assemblers of our stubs take it.
fn formatter(places: Option<Box<dyn SymbolResolver>>) -> IntelFormatter {
    let mut formatter = IntelFormatter::with_options(places, None);
    let options = formatter.options_mut();
    options.set_branch_leading_zeros(false);
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_space_after_operand_separator(true);
    formatter
}

/// Writes what a round executes in ring 0, with nothing in it that depends on where the linker put something.
pub(crate) fn lasting(steps: &[Step], code: &Code) -> String {
    let mut formatter = formatter(Some(Box::new(Places(code.kernel.clone()))));
    formatter.options_mut().set_show_branch_size(false);
    let mut out = String::new();
    for step in steps.iter().filter(|step| step.level != 3 && step.charged) {
        let (function, offset) = code.kernel.symbol_at(step.pc).unwrap_or(("?", 0));
        let mut words = String::new();
        match code.decode(step) {
            Some(instruction) => formatter.format(&instruction, &mut words),
            None => words.push_str("(bytes unknown)"),
        }
        let _ = writeln!(out, "{function}+{offset:#x}  {words}");
    }
    out
}

/// Writes a round as text: a heading for each stretch in one function, then its instructions.
///
/// The first column numbers what the instruction clock charges; a faulting instruction has none.
pub(crate) fn text(steps: &[Step], code: &Code) -> String {
    let mut formatter = formatter(None);
    let mut out = String::new();
    let mut number = 0_u32;
    let mut here = String::new();
    for step in steps {
        let image = code.image_of(step);
        let (function, offset) = image.symbol_at(step.pc).unwrap_or(("?", step.pc));
        let place = named(step, function);
        if place != here {
            let _ = writeln!(out, "{place}:");
            here = place;
        }
        let mut words = String::new();
        match code.decode(step) {
            Some(instruction) => formatter.format(&instruction, &mut words),
            None => words.push_str("(bytes unknown)"),
        }
        let count = if step.charged {
            number += 1;
            number.to_string()
        } else {
            "-".to_owned()
        };
        let delivered = step.vector.map_or_else(String::new, |vector| {
            let cause = if vector.hardware { "interrupt" } else { "exception" };
            format!("   ; {cause}, vector {}", vector.number)
        });
        let _ = writeln!(
            out,
            "{count:>5}  {step_pc:016x}  +{offset:<#6x} {words}{delivered}",
            step_pc = step.pc
        );
    }
    out
}

/// Whose an instruction of this function is.
fn named(step: &Step, function: &str) -> String {
    format!("{} {function}", if step.level == 3 { "user" } else { "kernel" })
}

/// How many of a round's charged instructions are whose: user program, stub or function, the most first.
pub(crate) fn shares(steps: &[Step], code: &Code) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for step in steps.iter().filter(|step| step.charged) {
        let function = code
            .image_of(step)
            .symbol_at(step.pc)
            .map_or("?", |(function, _)| function);
        let place = named(step, function);
        match counts.iter_mut().find(|(known, _)| *known == place) {
            Some((_, count)) => *count += 1,
            None => counts.push((place, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let mut out = String::new();
    for (place, count) in counts {
        let _ = writeln!(out, "{count:>5}  {place}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::trace::Vector;

    /// A function that calls itself, at one address or another.
    fn moved(start: u64) -> String {
        let bytes = [0x90, 0xe8, 0xfa, 0xff, 0xff, 0xff, 0x48, 0x0f, 0x07];
        let code = Code {
            user: Image::from_code(0x40_0000, &[0x0f, 0x05]),
            kernel: Image::of_function(start, &bytes, "kernel::f", ["first", "last"]),
            switches: Vec::new(),
        };
        let step = |pc, level| Step {
            pc,
            level,
            bits: 64,
            charged: true,
            vector: None,
        };
        let steps = [
            step(0x40_0000, 3),
            step(start, 0),
            step(start + 1, 0),
            step(start + 6, 0),
        ];
        lasting(&steps, &code)
    }

    #[test]
    fn a_lasting_listing_is_of_ring_0_and_names_no_address() {
        let text = moved(0xffff_ffff_8010_0000);
        assert_eq!(
            text,
            "kernel::f+0x0  nop\nkernel::f+0x1  call kernel::f\nkernel::f+0x6  sysretq\n"
        );
        assert_eq!(text, moved(0xffff_ffff_8020_0030));
    }

    #[test]
    fn numbers_what_is_charged_and_names_what_was_delivered() {
        let code = Code {
            user: Image::from_code(0x40_0000, &[0x48, 0x8b, 0x07, 0x90]),
            kernel: Image::from_code(0x1000, &[0x48, 0xcf]),
            switches: Vec::new(),
        };
        let step = |pc, level, charged, vector| Step {
            pc,
            level,
            bits: 64,
            charged,
            vector,
        };
        let fault = Vector {
            number: 14,
            hardware: false,
        };
        let steps = [
            step(0x40_0000, 3, false, Some(fault)),
            step(0x1000, 0, true, None),
            step(0x40_0000, 3, true, None),
        ];
        assert_eq!(shares(&steps, &code), "    1  kernel ?\n    1  user ?\n");
        let text = text(&steps, &code);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "user ?:");
        assert!(lines[1].starts_with("    -  0000000000400000"), "{text}");
        assert!(lines[1].ends_with("mov rax, [rdi]   ; exception, vector 14"), "{text}");
        assert_eq!(lines[2], "kernel ?:");
        assert!(lines[3].starts_with("    1  ") && lines[3].ends_with("iretq"), "{text}");
        assert!(lines[5].starts_with("    2  "), "{text}");
    }
}
