//! The executed instructions of one round, in order, with the function each belongs to.

use std::fmt::Write;

use iced_x86::{Formatter, IntelFormatter};

use crate::trace::{Code, Step};

/// Writes a round as text: a heading for each stretch in one function, then its instructions.
///
/// The first column numbers what the instruction clock charges; a faulting instruction has none.
pub(crate) fn text(steps: &[Step], code: &Code) -> String {
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_branch_leading_zeros(false);
    formatter.options_mut().set_hex_prefix("0x");
    formatter.options_mut().set_hex_suffix("");
    formatter.options_mut().set_uppercase_hex(false);
    formatter.options_mut().set_space_after_operand_separator(true);
    let mut out = String::new();
    let mut number = 0_u32;
    let mut here = String::new();
    for step in steps {
        let image = code.image_of(step);
        let (function, offset) = image.symbol_at(step.pc).unwrap_or(("?", step.pc));
        let place = format!("{} {function}", if step.level == 3 { "user" } else { "kernel" });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Image;
    use crate::trace::Vector;

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
