//! The user pages: code by an independent disassembler, unwind information by an independent DWARF reader, both against each
//! other, and the latter by the unwinder of the C runtime besides.

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

/// The C runtime's own unwinder, given the page's information, finds the caller from each instruction of a call.
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
mod unwinder {
    use core::ffi::{c_int, c_void};
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::{PAGES, UserPage};

    // GCC's interface for code that is generated at run time, and the Itanium ABI's for walking a stack.
    unsafe extern "C" {
        fn __register_frame(eh_frame: *const u8);
        fn __deregister_frame(eh_frame: *const u8);
        fn _Unwind_Backtrace(visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int, argument: *mut c_void) -> c_int;
        fn _Unwind_GetIP(context: *mut c_void) -> usize;
        fn _Unwind_GetCFA(context: *mut c_void) -> usize;
    }

    /// Goes on to the next frame.
    const NO_REASON: c_int = 0;
    /// Stops.
    const NORMAL_STOP: c_int = 4;

    const LENGTH: usize = 4096;
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    /// Bit N: at the instruction at offset N the caller was found, by its address and by its stack.
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    /// The stack pointer before the call, and the address behind it.
    static STACK: AtomicUsize = AtomicUsize::new(0);
    static RETURN: AtomicUsize = AtomicUsize::new(0);

    /// What the walk has seen last: the instruction pointer of the frame that was interrupted, or 0.
    extern "C" fn visit(context: *mut c_void, last: *mut c_void) -> c_int {
        // SAFETY: the unwinder gave the context to this call.
        let ip = unsafe { _Unwind_GetIP(context) };
        // SAFETY: as above.
        let cfa = unsafe { _Unwind_GetCFA(context) };
        let last = last.cast::<usize>();
        // SAFETY: it is the word of `step`.
        let offset = unsafe { last.read() }.wrapping_sub(PAGE.load(Relaxed));
        if offset < UserPage::EH_FRAME {
            // The stack that the page was called on is that of its caller's frame.
            if ip == RETURN.load(Relaxed) && cfa >= STACK.load(Relaxed) {
                FOUND.fetch_or(1 << offset, Relaxed);
            }
            return NORMAL_STOP;
        }
        // SAFETY: as above.
        unsafe { last.write(ip) };
        NO_REASON
    }

    /// Handles SIGTRAP: walks the stack if the trap came in the page.
    extern "C" fn step(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel gave it to a handler with SA_SIGINFO.
        let context = unsafe { &*context.cast::<libc::ucontext_t>() };
        let rip = usize::try_from(context.uc_mcontext.gregs[libc::REG_RIP as usize]).unwrap_or_default();
        if rip.wrapping_sub(PAGE.load(Relaxed)) < UserPage::EH_FRAME {
            let mut last = 0usize;
            // SAFETY: the word outlives the walk.
            unsafe { _Unwind_Backtrace(visit, (&raw mut last).cast()) };
        }
    }

    #[test]
    fn runtime_finds_the_caller_from_each_instruction_of_the_syscall_page() {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping at an address of the system's choice.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.cast::<u8>();
        // SAFETY: the mapping is writable, this long, and nobody else's.
        PAGES[0]
            .1
            .write_to(unsafe { core::slice::from_raw_parts_mut(at, LENGTH) })
            .unwrap();
        PAGE.store(at.addr(), Relaxed);
        // SAFETY: the offset is inside the mapping.
        let eh_frame = unsafe { at.add(UserPage::EH_FRAME) };
        // SAFETY: there is one CIE, one FDE and the end, until it is taken back below.
        unsafe { __register_frame(eh_frame) };
        // SAFETY: all zeros is a set of handlers: the default one, with nothing blocked.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        #[expect(clippy::fn_to_numeric_cast_any, reason = "libc's type for a handler")]
        let handler = step as *const () as usize;
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: as above.
        let mut old: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: both are of this type, and the handler uses nothing that the interrupted code holds.
        let is_set = unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, &raw mut old) };
        assert_eq!(is_set, 0);
        // SAFETY: the call has no conditions.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        let result: i64;
        // The system does not report a step over SYSCALL: the call itself sends the signal, which arrives behind it.
        // SAFETY: the page's contract: RAX is number and result, RCX and R11 are destroyed. The stack is left as it was; each
        // trap between the two POPFQ goes to the handler.
        unsafe {
            core::arch::asm!(
                "lea rcx, [rip + 2f]",
                "mov [{to_return}], rcx",
                "mov [{to_stack}], rsp",
                "pushfq",
                "or dword ptr [rsp], 0x100",
                "popfq",
                "call {page}",
                "2:",
                "pushfq",
                "and dword ptr [rsp], ~0x100",
                "popfq",
                to_return = in(reg) RETURN.as_ptr(),
                to_stack = in(reg) STACK.as_ptr(),
                page = in(reg) at,
                inlateout("rax") libc::SYS_tgkill => result,
                in("rdi") std::process::id(),
                in("rsi") thread,
                in("rdx") libc::SIGTRAP,
                out("rcx") _,
                out("r11") _,
            );
        }
        // SAFETY: what was there before.
        let is_set = unsafe { libc::sigaction(libc::SIGTRAP, &raw const old, core::ptr::null_mut()) };
        assert_eq!(is_set, 0);
        // SAFETY: what was registered above.
        unsafe { __deregister_frame(eh_frame) };
        assert_eq!(result, 0);
        // At SYSCALL, and at RET behind it.
        assert_eq!(FOUND.load(Relaxed), 1 << 0 | 1 << 2);
        // SAFETY: the mapping from above, which nothing refers to any more.
        unsafe { libc::munmap(at.cast(), LENGTH) };
    }
}
