//! The generated trampolines, executed at CPL 3.
//!
//! Ring 3 can run all of a trampoline but SWAPGS, which is privileged: that form is entered behind it, with GS base set
//! through the operating system. The 32-bit form runs in a 32-bit code segment, where the system has one.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::arch::{asm, naked_asm};
use core::ptr::null_mut;

use entry_core::address::Width;
use entry_sysenter::arrival::{Arrival, EntryAddress};
use entry_sysenter::trampoline::{Absolute, RipRelative, SwapgsRelative, Trampoline32, Trampoline64};

/// Three pages below 2 GiB, readable, writable and executable: code, field, and a stack.
struct Pages(*mut u8);

const PAGE: usize = 4096;
const FIELD: usize = PAGE;
const STACK_TOP: usize = 3 * PAGE;
/// Where the code that the trampoline jumps to is put.
const ENTRY: usize = 0x400;

impl Pages {
    fn new() -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        // SAFETY: a fresh anonymous mapping at an address of the system's choice.
        let at = unsafe { libc::mmap(null_mut(), 3 * PAGE, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast())
    }

    fn address(&self, offset: usize) -> u64 {
        self.0.addr() as u64 + offset as u64
    }

    fn address32(&self, offset: usize) -> u32 {
        u32::try_from(self.address(offset)).expect("MAP_32BIT")
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= 3 * PAGE);
        // SAFETY: the offset is inside the mapping, by the line above.
        let to = unsafe { self.0.add(offset) };
        // SAFETY: the mapping is writable, `bytes` is not part of it, and nothing runs there now.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing refers to any more.
        unsafe { libc::munmap(self.0.cast(), 3 * PAGE) };
    }
}

/// `mov rax, rsp` · `mov rsp, r12` · `jmp r13`: reports the stack pointer that it was entered with.
const REPORT_RSP: [u8; 9] = [0x48, 0x89, 0xe0, 0x4c, 0x89, 0xe4, 0x41, 0xff, 0xe5];

fn entry<A: Arrival>(pages: &Pages) -> EntryAddress<A> {
    // SAFETY: at this address is `REPORT_RSP` while the test runs; nobody installs it anywhere.
    unsafe { EntryAddress::new(pages.address(ENTRY)) }
}

/// Jumps to `offset` and returns the stack pointer that `REPORT_RSP` saw.
fn run(pages: &Pages, offset: usize) -> u64 {
    let seen;
    // The stack pointer is an arbitrary number for three instructions: no signal may be delivered on it.
    let signals = SignalsBlocked::new();
    // SAFETY: the code there changes RAX and RSP, restores RSP from R12 and comes back through R13. Memory is read
    // alone. The red zone is not touched, since nothing is pushed.
    unsafe {
        asm!(
            "mov r12, rsp",
            "lea r13, [rip + 2f]",
            "jmp {code}",
            "2:",
            code = in(reg) pages.address(offset),
            out("rax") seen,
            out("r12") _,
            out("r13") _,
        );
    }
    drop(signals);
    seen
}

#[test]
fn rip_relative_form_arrives_with_the_field_in_rsp() {
    let mut pages = Pages::new();
    let top = pages.address(STACK_TOP);
    pages.write(ENTRY, &REPORT_RSP);
    let (at, field) = (pages.address(0), pages.address(FIELD));
    let code = Trampoline64::<RipRelative>::new(at, field, entry(&pages), Width::Bits48).unwrap();
    pages.write(0, code.bytes());
    for value in [top, top - 0x100, 0x1234_5678_9abc_def0] {
        pages.write(FIELD, &value.to_le_bytes());
        assert_eq!(run(&pages, 0), value);
    }
}

#[test]
fn absolute_form_arrives_with_the_field_in_rsp() {
    let mut pages = Pages::new();
    let top = pages.address(STACK_TOP);
    pages.write(ENTRY, &REPORT_RSP);
    let (at, field) = (pages.address(0), pages.address(FIELD));
    let code = Trampoline64::<Absolute>::new(at, field, entry(&pages), Width::Bits48).unwrap();
    pages.write(0, code.bytes());
    for value in [top, top - 0x100, 0x1234_5678_9abc_def0] {
        pages.write(FIELD, &value.to_le_bytes());
        assert_eq!(run(&pages, 0), value);
    }
}

#[test]
fn gs_relative_form_arrives_with_the_field_in_rsp_once_gs_is_the_kernels() {
    const ARCH_SET_GS: libc::c_int = 0x1001;
    const SWAPGS_BYTES: usize = 3;
    let mut pages = Pages::new();
    pages.write(ENTRY, &REPORT_RSP);
    for offset in [8i32, 0x100, -8] {
        let code = Trampoline64::<SwapgsRelative>::new(pages.address(0), offset, entry(&pages), Width::Bits48).unwrap();
        pages.write(0, code.bytes());
        let value = pages.address(STACK_TOP) - u64::from(offset.unsigned_abs());
        pages.write(FIELD.checked_add_signed(offset as isize).unwrap(), &value.to_le_bytes());
        // SAFETY: GS base of this thread is nobody else's on x86-64 Linux: thread-local storage uses FS.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, pages.address(FIELD)) };
        assert_eq!(result, 0);
        assert_eq!(run(&pages, SWAPGS_BYTES), value);
    }
}

/// Linux' selectors: 32-bit user code, user data, 64-bit user code.
const USER32_CS: u32 = 0x23;
const USER_DS: u32 = 0x2b;
const USER_CS: u32 = 0x33;

/// `mov eax, esp` · `jmp far [edi]`: reports the stack pointer and returns to 64-bit mode.
const REPORT_ESP_32: [u8; 4] = [0x89, 0xe0, 0xff, 0x2f];

/// Whether this system lets a 64-bit program use the 32-bit code segment: LAR finds it.
fn has_32_bit_code_segment() -> bool {
    let found: u8;
    // SAFETY: LAR reads a descriptor and changes a register and ZF.
    unsafe {
        asm!("lar {0:e}, {1:e}", "setz {2}", out(reg) _, in(reg) USER32_CS, out(reg_byte) found, options(nomem, nostack));
    }
    found == 1
}

/// Far-jumps to the six-byte pointer at EDI + 8, and comes back through the one at EDI.
///
/// In: EDI, below 4 GiB. Out: EAX. The far pointer at EDI is filled in here.
#[unsafe(naked)]
unsafe extern "sysv64" fn through_32_bit_mode(_pointers: u32) -> u32 {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        // 32-bit mode keeps the low half of RSP and of RIP alone, so both have to be remembered elsewhere.
        "mov [rdi + 24], rsp",
        // 64-bit Linux programs run with a null DS, which 32-bit code may not use.
        "mov ecx, {user_ds}",
        "mov ds, ecx",
        "jmp fword ptr [rdi + 8]",
        user_ds = const USER_DS,
    )
}

/// Back in 64-bit mode: restores what `through_32_bit_mode` put away. Reached through a thunk below 4 GiB.
#[unsafe(naked)]
unsafe extern "sysv64" fn back_from_32_bit_mode() {
    naked_asm!(
        "mov edi, edi",
        "xor ecx, ecx",
        "mov ds, ecx",
        "mov rsp, [rdi + 24]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}

#[test]
fn legacy_form_arrives_with_the_field_in_esp() {
    if !has_32_bit_code_segment() {
        println!("ignored: this system has no 32-bit code segment");
        return;
    }
    /// Where the thunk to 64-bit code is, and the pointers.
    const THUNK: usize = 0x600;
    const POINTERS: usize = 0x800;
    let mut pages = Pages::new();
    pages.write(ENTRY, &REPORT_ESP_32);
    let code = Trampoline32::new(pages.address32(0), pages.address32(FIELD), pages.address32(ENTRY)).unwrap();
    pages.write(0, code.bytes());
    // movabs r11, back · jmp r11
    let mut thunk = vec![0x49, 0xbb];
    #[expect(clippy::fn_to_numeric_cast_any, reason = "the address becomes an operand")]
    let back = (back_from_32_bit_mode as *const ()).addr() as u64;
    thunk.extend_from_slice(&back.to_le_bytes());
    thunk.extend_from_slice(&[0x41, 0xff, 0xe3]);
    pages.write(THUNK, &thunk);
    for (offset, target, selector) in [(0, THUNK, USER_CS), (8, 0, USER32_CS)] {
        let (target, selector) = (pages.address32(target), u16::try_from(selector).unwrap());
        pages.write(POINTERS + offset, &target.to_le_bytes());
        pages.write(POINTERS + offset + 4, &selector.to_le_bytes());
    }
    for value in [pages.address32(STACK_TOP), 0x1000, 0xffff_fff0] {
        pages.write(FIELD, &value.to_le_bytes());
        let signals = SignalsBlocked::new();
        // SAFETY: the far pointers lead to the trampoline, from there to `REPORT_ESP_32`, the thunk, and back. The
        // callee-saved registers and RSP are restored, and no signal arrives while RSP is no stack.
        let seen = unsafe { through_32_bit_mode(pages.address32(POINTERS)) };
        drop(signals);
        assert_eq!(seen, value);
    }
}

/// No signal is delivered to this thread while the value lives.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: a set of signals is plain bits.
        let mut all = unsafe { core::mem::zeroed() };
        // SAFETY: as above.
        let mut old = unsafe { core::mem::zeroed() };
        // SAFETY: the pointer is to a live set.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: both pointers are to live sets.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old) };
        Self(old)
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, null_mut()) };
    }
}
