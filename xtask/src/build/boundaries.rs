//! The instruction boundaries of the entry stubs of an image, as text for the sweeps that run in that image.
//!
//! The format is described where it is read, in the kernel's `sweep::listing`.

use std::fmt::Write;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use crate::build::image::{Image, without_generics};
use crate::error::{Error, Result};

/// Symbols of the linker script around the stubs.
const START: &str = "entry_text_start";
const END: &str = "entry_text_end";

/// Disassembles the stubs of an image.
pub(crate) fn list(image: &Image) -> Result<String> {
    let bound = |name: &str| {
        image.label(name).ok_or_else(|| Error::Missing {
            what: format!("symbol {name} in the image"),
            remedy: "define it in example-os/link.ld, around the input sections .entry.text".to_owned(),
        })
    };
    let (mut address, end) = (bound(START)?, bound(END)?);
    let mut text = String::new();
    let mut function = None;
    let mut was_trap = false;
    while address < end {
        let Some((name, offset)) = image.symbol_at(address) else {
            // Padding between functions.
            address += 1;
            continue;
        };
        let start = address - offset;
        let instruction = decode(image, address)?;
        if function != Some(start) {
            function = Some(start);
            was_trap = false;
            let _ = writeln!(text, "fn {start:x} {}", last_component(name));
        }
        let is_trap = instruction.mnemonic() == Mnemonic::Int3;
        if !(is_trap && was_trap) {
            let _ = writeln!(text, "{address:x} {} {}", instruction.len(), flow(&instruction));
        }
        was_trap = is_trap;
        address = instruction.next_ip();
    }
    Ok(text)
}

fn decode(image: &Image, address: u64) -> Result<Instruction> {
    let bytes = image.bytes_at(address).unwrap_or_default();
    let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
    if instruction.is_invalid() {
        return Err(Error::Invalid {
            field: "the kernel",
            value: format!("{address:#x}"),
            why: "where there is no instruction inside an entry stub".to_owned(),
            remedy: "link only code into .entry.text".to_owned(),
        });
    }
    Ok(instruction)
}

/// What follows an instruction. Calls come back.
fn flow(instruction: &Instruction) -> String {
    if instruction.mnemonic() == Mnemonic::Int3 {
        return "trap".to_owned();
    }
    match instruction.flow_control() {
        FlowControl::ConditionalBranch => format!("branch {:x}", instruction.near_branch_target()),
        FlowControl::UnconditionalBranch => format!("jump {:x}", instruction.near_branch_target()),
        // SYSRET, SYSEXIT and IRET count as returns.
        FlowControl::Return | FlowControl::IndirectBranch => "end".to_owned(),
        _ => "next".to_owned(),
    }
}

/// The last component of a path, generic arguments left out.
fn last_component(name: &str) -> String {
    let plain = without_generics(name);
    plain.rsplit("::").next().unwrap_or(&plain).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_path_and_their_arguments() {
        assert_eq!(
            last_component("entry_core::stub::syscall::syscall_entry"),
            "syscall_entry"
        );
        assert_eq!(last_component("a::syscall_entry::<b::C, d::E<f::G>>"), "syscall_entry");
        assert_eq!(last_component("<a::B<R> as c::Exit>::leave"), "leave");
    }

    #[test]
    fn says_what_follows_an_instruction() {
        let flow_of = |bytes: &[u8]| flow(&Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode());
        assert_eq!(flow_of(&[0x0f, 0x01, 0xf8]), "next", "swapgs");
        assert_eq!(flow_of(&[0xe8, 0, 0, 0, 0]), "next", "call");
        assert_eq!(flow_of(&[0x74, 0x10]), "branch 1012", "jz");
        assert_eq!(flow_of(&[0xe9, 0xfb, 0x0f, 0, 0]), "jump 2000", "jmp");
        assert_eq!(flow_of(&[0x48, 0xcf]), "end", "iretq");
        assert_eq!(flow_of(&[0x48, 0x0f, 0x07]), "end", "sysretq");
        assert_eq!(flow_of(&[0xcc]), "trap", "int3");
    }

    #[test]
    fn runs_of_int3_are_one_line() {
        let code = [0x0f, 0x01, 0xf8, 0x48, 0x0f, 0x07, 0xcc, 0xcc, 0xcc];
        let image = Image::of_function(0x1000, &code, "a::b::stub", [START, END]);
        let text = list(&image).unwrap();
        assert_eq!(text, "fn 1000 stub\n1000 3 next\n1003 3 end\n1006 1 trap\n");
    }

    #[test]
    fn image_without_the_bounds_is_an_error() {
        let image = Image::from_code(0x1000, &[0x90]);
        assert!(list(&image).unwrap_err().to_string().contains(START));
    }
}
