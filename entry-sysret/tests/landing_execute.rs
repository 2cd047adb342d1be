//! The landing page's code, executed at CPL 3 from the state that the kernel and SYSRET leave.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::arch::naked_asm;
use core::ptr::null_mut;

use entry_sysret::landing::LandingPage;

const PAGE: usize = 4096;

/// A program's registers, in the order of the fields; `rip` is where it was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Registers {
    general: [u64; 15],
    rsp: u64,
    rflags: u64,
}

/// Positions in [`Registers::general`].
const RCX: usize = 2;
const R11: usize = 10;

/// What is entered, and what came back. The code below reaches it without a register.
#[repr(C)]
struct Exchange {
    entered: Registers,
    seen: Registers,
    /// RSP of the test.
    saved: u64,
}

static mut EXCHANGE: Exchange = {
    let zero = Registers {
        general: [0; 15],
        rsp: 0,
        rflags: 0,
    };
    Exchange {
        entered: zero,
        seen: zero,
        saved: 0,
    }
};

/// Loads the registers that are entered with, and jumps to RCX, as SYSRET does.
///
/// # Safety
///
/// 1. RCX is the landing page, R11 is RFLAGS, and RSP is what the kernel makes of a stack with [`resumed`] as the RIP.
#[unsafe(naked)]
unsafe extern "sysv64" fn enter() {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rip + {exchange} + 272], rsp",
        "push [rip + {exchange} + 128]",
        "popfq",
        "mov rax, [rip + {exchange}]",
        "mov rbx, [rip + {exchange} + 8]",
        "mov rcx, [rip + {exchange} + 16]",
        "mov rdx, [rip + {exchange} + 24]",
        "mov rsi, [rip + {exchange} + 32]",
        "mov rdi, [rip + {exchange} + 40]",
        "mov rbp, [rip + {exchange} + 48]",
        "mov r8, [rip + {exchange} + 56]",
        "mov r9, [rip + {exchange} + 64]",
        "mov r10, [rip + {exchange} + 72]",
        "mov r11, [rip + {exchange} + 80]",
        "mov r12, [rip + {exchange} + 88]",
        "mov r13, [rip + {exchange} + 96]",
        "mov r14, [rip + {exchange} + 104]",
        "mov r15, [rip + {exchange} + 112]",
        "mov rsp, [rip + {exchange} + 120]",
        "jmp rcx",
        exchange = sym EXCHANGE,
    )
}

/// Where the program was interrupted: notes everything and returns from [`enter`].
#[unsafe(naked)]
unsafe extern "sysv64" fn resumed() {
    naked_asm!(
        "mov [rip + {exchange} + 136], rax",
        "mov [rip + {exchange} + 144], rbx",
        "mov [rip + {exchange} + 152], rcx",
        "mov [rip + {exchange} + 160], rdx",
        "mov [rip + {exchange} + 168], rsi",
        "mov [rip + {exchange} + 176], rdi",
        "mov [rip + {exchange} + 184], rbp",
        "mov [rip + {exchange} + 192], r8",
        "mov [rip + {exchange} + 200], r9",
        "mov [rip + {exchange} + 208], r10",
        "mov [rip + {exchange} + 216], r11",
        "mov [rip + {exchange} + 224], r12",
        "mov [rip + {exchange} + 232], r13",
        "mov [rip + {exchange} + 240], r14",
        "mov [rip + {exchange} + 248], r15",
        "mov [rip + {exchange} + 256], rsp",
        "mov rsp, [rip + {exchange} + 272]",
        "pushfq",
        "pop [rip + {exchange} + 264]",
        "cld",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        exchange = sym EXCHANGE,
    )
}

/// A landing page in this process.
fn landing_page() -> u64 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh anonymous mapping at an address of the system's choice.
    let at = unsafe {
        libc::mmap(
            null_mut(),
            PAGE,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    let (bytes, count) = (LandingPage::BYTES.as_ptr(), LandingPage::BYTES.len());
    // SAFETY: the mapping is new, writable and longer than the bytes.
    unsafe { at.cast::<u8>().copy_from_nonoverlapping(bytes, count) };
    // SAFETY: nothing refers to the mapping.
    let result = unsafe { libc::mprotect(at, PAGE, libc::PROT_READ | libc::PROT_EXEC) };
    assert_eq!(result, 0);
    at.addr() as u64
}

#[test]
fn every_register_and_flag_is_the_programs() {
    const TOP: usize = 7000;
    let page = landing_page();
    #[expect(clippy::fn_to_numeric_cast_any, reason = "the address is data")]
    let rip = (resumed as *const ()).addr() as u64;
    let mut stack = vec![0x5a_u8; 8192];
    // CF, PF, AF, ZF, SF, DF, OF, ID; with IF and bit 1, which user mode always has.
    for flags in [0u64, 0xcd5 | 0x20_0000, 1, 4, 0x10, 0x40, 0x80, 0x400, 0x800] {
        let rflags = flags | 0x202;
        for misalignment in [0, 1, 4, 8] {
            let top = TOP - misalignment;
            let mut program = Registers {
                general: [0; 15],
                rsp: stack.as_ptr().addr() as u64 + top as u64,
                rflags,
            };
            for (number, word) in (1..).zip(&mut program.general) {
                *word = 0x0123_4567_89ab_cdef_u64.rotate_left(number * 4);
            }
            stack.fill(0x5a);
            // What the kernel stores: RCX, R11, RIP, below the red zone.
            for (number, word) in [program.general[RCX], program.general[R11], rip].iter().enumerate() {
                let at = top - 152 + 8 * number;
                stack[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            let mut entered = program;
            entered.general[RCX] = page;
            entered.general[R11] = rflags;
            entered.rsp -= 152;
            let exchange = &raw mut EXCHANGE;
            // SAFETY: no other thread or test of this program uses it.
            unsafe { (*exchange).entered = entered };
            // SAFETY: 1. as built above.
            unsafe { enter() };
            // SAFETY: as above.
            let seen = unsafe { (*exchange).seen };
            assert_eq!(seen, program);
            // The red zone and what is above.
            assert!(stack[top - 128..].iter().all(|byte| *byte == 0x5a));
            assert!(stack[top - 512..top - 152].iter().all(|byte| *byte == 0x5a));
        }
    }
}
