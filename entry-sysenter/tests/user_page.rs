//! The user pages: code by an independent disassembler, unwind information by an independent DWARF reader, and both
//! against each other.

use entry_core::cpu::{CpuFeatures, CpuidLeaf, Vendor};
use entry_sysenter::error::BufferTooSmall;
use entry_sysenter::user_page::{Entry32, Entry64, UserPage};
use gimli::{BaseAddresses, CfaRule, EhFrame, LittleEndian, Register, RegisterRule, UnwindContext, UnwindSection};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};

/// An address at which the page's relative addresses are resolved.
const BASE: u64 = 0xf7ff_0000;

const PAGES: [(u32, UserPage); 5] = [
    (64, UserPage::for_64_bit_code(Entry64::Syscall)),
    (64, UserPage::for_64_bit_code(Entry64::Sysenter)),
    (32, UserPage::for_32_bit_code(Entry32::Int80)),
    (32, UserPage::for_32_bit_code(Entry32::Sysenter)),
    (32, UserPage::for_32_bit_code(Entry32::Syscall)),
];

fn code(bits: u32, page: &UserPage) -> Vec<Instruction> {
    let bytes = &page.bytes()[..page.code_bytes()];
    let code: Vec<_> = Decoder::with_ip(bits, bytes, BASE, DecoderOptions::NONE)
        .into_iter()
        .collect();
    assert_eq!(code.iter().map(Instruction::len).sum::<usize>(), bytes.len());
    code
}

fn listing(bits: u32, page: &UserPage) -> Vec<String> {
    code(bits, page).iter().map(ToString::to_string).collect()
}

#[test]
fn code_is_what_the_contract_says() {
    assert_eq!(listing(64, &PAGES[0].1), ["syscall", "ret"]);
    assert_eq!(
        listing(64, &PAGES[1].1),
        ["mov rcx,rsp", "lea r11,[0F7FF000Ch]", "sysenter", "ret"]
    );
    assert_eq!(listing(32, &PAGES[2].1), ["int 80h", "ret"]);
    let save = ["push ecx", "push edx", "push ebp"];
    let restore = ["pop ebp", "pop edx", "pop ecx", "ret"];
    let around = |middle: [&'static str; 2]| [&save[..], &middle, &restore].concat();
    assert_eq!(listing(32, &PAGES[3].1), around(["mov ebp,esp", "sysenter"]));
    assert_eq!(listing(32, &PAGES[4].1), around(["mov ebp,ecx", "syscall"]));
}

#[test]
fn landing_is_behind_the_two_bytes_that_enter_the_kernel() {
    for (bits, page) in PAGES {
        let code = code(bits, &page);
        let enter = code
            .iter()
            .find(|i| matches!(i.mnemonic(), Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Int))
            .unwrap();
        assert_eq!(enter.len(), 2);
        assert_eq!(enter.next_ip(), BASE + page.landing() as u64);
    }
    // The 64-bit form hands the landing address over itself.
    let lea = code(64, &PAGES[1].1)[1];
    assert_eq!(lea.ip_rel_memory_address(), BASE + PAGES[1].1.landing() as u64);
}

#[test]
fn code_is_followed_by_int3_up_to_the_unwind_information() {
    for (_, page) in PAGES {
        assert!(
            page.bytes()[page.code_bytes()..UserPage::EH_FRAME]
                .iter()
                .all(|byte| *byte == 0xcc)
        );
    }
}

#[test]
fn unwind_information_agrees_with_the_stack_at_every_instruction() {
    for (bits, page) in PAGES {
        let word = if bits == 64 { 8i64 } else { 4 };
        let (stack_pointer, return_address) = if bits == 64 {
            (Register(7), Register(16))
        } else {
            (Register(4), Register(8))
        };
        let mut section = EhFrame::new(&page.bytes()[UserPage::EH_FRAME..], LittleEndian);
        section.set_address_size(u8::try_from(word).unwrap());
        let bases = BaseAddresses::default()
            .set_text(BASE)
            .set_eh_frame(BASE + UserPage::EH_FRAME as u64);
        let mut context = UnwindContext::new();
        // What the code does to the stack, by the disassembler's account.
        let mut depth = 0i64;
        let mut saved: Vec<(Register, i64)> = Vec::new();
        for instruction in code(bits, &page) {
            let row = section
                .unwind_info_for_address(&bases, &mut context, instruction.ip(), EhFrame::cie_from_offset)
                .unwrap();
            let offset = word + depth;
            assert_eq!(
                *row.cfa(),
                CfaRule::RegisterAndOffset {
                    register: stack_pointer,
                    offset
                },
                "{instruction}"
            );
            assert_eq!(
                row.register(return_address),
                RegisterRule::Offset(-word),
                "{instruction}"
            );
            for register in [Register(1), Register(2), Register(5)] {
                let rule = match saved.iter().find(|(pushed, _)| *pushed == register) {
                    Some((_, at)) => RegisterRule::Offset(*at),
                    None => RegisterRule::Undefined,
                };
                assert_eq!(row.register(register), rule, "{instruction}");
            }
            match instruction.mnemonic() {
                Mnemonic::Push => {
                    depth += word;
                    saved.push((dwarf(&instruction), -word - depth));
                }
                Mnemonic::Pop => {
                    depth -= word;
                    assert_eq!(saved.pop().unwrap().0, dwarf(&instruction), "pops in reverse order");
                }
                Mnemonic::Ret => assert_eq!(depth, 0),
                _ => assert_eq!(instruction.stack_pointer_increment(), 0, "{instruction}"),
            }
        }
        assert!(saved.is_empty());
    }
}

fn dwarf(instruction: &Instruction) -> Register {
    match instruction.op0_register() {
        iced_x86::Register::ECX => Register(1),
        iced_x86::Register::EDX => Register(2),
        iced_x86::Register::EBP => Register(5),
        other => panic!("{other:?}"),
    }
}

#[test]
fn unwind_information_is_one_cie_one_fde_for_the_code_alone_and_an_end() {
    for (bits, page) in PAGES {
        let bytes = &page.bytes()[UserPage::EH_FRAME..];
        let mut section = EhFrame::new(bytes, LittleEndian);
        section.set_address_size(if bits == 64 { 8 } else { 4 });
        let bases = BaseAddresses::default()
            .set_text(BASE)
            .set_eh_frame(BASE + UserPage::EH_FRAME as u64);
        let mut entries = section.entries(&bases);
        let mut fdes = 0;
        let mut cies = 0;
        while let Some(entry) = entries.next().unwrap() {
            match entry {
                gimli::CieOrFde::Cie(_) => cies += 1,
                gimli::CieOrFde::Fde(partial) => {
                    let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
                    assert_eq!((fde.initial_address(), fde.len()), (BASE, page.code_bytes() as u64));
                    fdes += 1;
                }
            }
        }
        assert_eq!((cies, fdes), (1, 1));
        assert_eq!(bytes[bytes.len() - 4..], [0; 4]);
    }
}

#[test]
fn page_of_every_length_is_filled_or_left_alone() {
    for (_, page) in PAGES {
        let needed = page.bytes().len();
        for given in (0..=needed + 2).chain([4096]) {
            let mut buffer = vec![0xaa; given];
            let result = page.write_to(&mut buffer);
            if given < needed {
                assert_eq!(result, Err(BufferTooSmall { needed, given }));
                assert!(buffer.iter().all(|byte| *byte == 0xaa));
            } else {
                assert_eq!(result, Ok(needed));
                assert_eq!(&buffer[..needed], page.bytes());
                assert!(buffer[needed..].iter().all(|byte| *byte == 0xcc));
            }
        }
    }
}

#[test]
fn instruction_suits_the_cpu() {
    for vendor in [Vendor::Intel, Vendor::Amd, Vendor::Hygon, Vendor::Other] {
        for (sep, syscall) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut cpu = CpuFeatures::from_cpuid(|_, _| CpuidLeaf::default());
            (cpu.vendor, cpu.sep, cpu.syscall) = (vendor, sep, syscall);
            (cpu.family, cpu.model) = (6, 0x5e);
            let wanted = match (vendor, sep, syscall) {
                (Vendor::Intel, true, _) => Entry32::Sysenter,
                (Vendor::Amd | Vendor::Hygon, _, true) => Entry32::Syscall,
                _ => Entry32::Int80,
            };
            assert_eq!(Entry32::on(&cpu), wanted, "{vendor:?} {sep} {syscall}");
        }
    }
}

/// The one page whose instruction means the same under the host's kernel.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn syscall_page_makes_system_calls() {
    const LENGTH: usize = 4096;
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: a fresh anonymous mapping at an address of the system's choice.
    let at = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            LENGTH,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the mapping is writable, this long, and nobody else's.
    let page = unsafe { core::slice::from_raw_parts_mut(at.cast::<u8>(), LENGTH) };
    PAGES[0].1.write_to(page).unwrap();
    let result: i64;
    // SAFETY: the page's contract: RAX is number and result, RCX and R11 are destroyed. CALL pushes below the red zone, since
    // the asm block may use the stack.
    unsafe {
        core::arch::asm!(
            "call {page}",
            page = in(reg) at,
            inlateout("rax") libc::SYS_getpid => result,
            out("rcx") _,
            out("r11") _,
        );
    }
    assert_eq!(result, i64::from(std::process::id()));
    // SAFETY: the mapping from above, which nothing refers to any more.
    unsafe { libc::munmap(at, LENGTH) };
}
