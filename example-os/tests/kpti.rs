//! User mode on page tables without the kernel: what is in them, and that every way in and out works on them.
//!
//! Runs on TCG with any CPU model; no CPU that TCG has offers process-context identifiers, so none are used. It can't show
//! that nothing is reached by speculation, only that there is nothing to be reached.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
mod program;

use core::sync::atomic::{AtomicU64, Ordering};

use entry_core::TrapFrame;
use entry_core::percpu::SplitTables;
use entry_core::vector::Vector;
use example_os::archive::Archive;
use example_os::device::apic;
use example_os::entry::{self, LAYOUT, PerCpu, TIMER_VECTOR};
use example_os::harness::{FINE, is_bochs};
use example_os::memory::table::{ENTRIES, Entry, Flags, Slot, entry_bytes, twin};
use example_os::memory::{AddressSpace, Frame, KERNEL_BASE, KernelStack, kernel};
use example_os::process::signal::Signal;
use example_os::process::{self, WaitStatus};
use example_os::{boot, elf};
use program::{Machine, program};
use x86_64::instructions::tables;

const SIGILL: u8 = 4;

/// The error code of a page fault.
mod code {
    pub(super) const PRESENT: u64 = 1;
    pub(super) const USER: u64 = 4;
}

/// The error code of the last page fault that would have ended a program.
static CODE: AtomicU64 = AtomicU64::new(u64::MAX);

/// Skips a load of two bytes that faults, and notes its error code.
fn skip_load(frame: &mut TrapFrame) -> bool {
    if frame.vector() != Vector::PAGE_FAULT.0 {
        return false;
    }
    CODE.store(frame.error_code(), Ordering::Relaxed);
    frame.set_rip(frame.rip() + 2);
    true
}

/// The error code with which a program is told that it may not read `address`.
fn error_code_at(machine: &mut Machine, address: u64) -> u64 {
    CODE.store(u64::MAX, Ordering::Relaxed);
    entry::set_kernel_hook(Some(skip_load));
    let mut frame = entry::first_frame(program::CODE, program::STACK_TOP);
    frame.set_rbx(address);
    // The kernel is used before the load, so that whatever a translation buffer can hold of it is there.
    let code = program!(
        "mov eax, 39",
        "syscall",
        "mov eax, [rbx]",
        "xor edi, edi",
        "mov eax, 60",
        "syscall",
        "ud2"
    );
    let pid = machine.start_at(program::CODE, code, &frame);
    assert_eq!(machine.finish(pid), Some(FINE));
    entry::set_kernel_hook(None);
    CODE.load(Ordering::Relaxed)
}

/// Calls `page` with the address and the entry of each page that the kernel half of `root` maps.
fn for_each_page(root: Frame, page: &mut impl FnMut(u64, Entry)) {
    for index in ENTRIES / 2..ENTRIES {
        // SAFETY: the root table is that of a live space, which nobody changes meanwhile.
        let entry = unsafe { Slot::new(root, index) }.read();
        if entry.is_present() {
            let address = (u64::MAX << 48) | (index as u64 * entry_bytes(4));
            walk(entry.frame(), 3, address, page);
        }
    }
}

fn walk(table: Frame, level: u32, start: u64, page: &mut impl FnMut(u64, Entry)) {
    for index in 0..ENTRIES {
        // SAFETY: the table is one of the kernel's, which nobody changes meanwhile.
        let entry = unsafe { Slot::new(table, index) }.read();
        let address = start + index as u64 * entry_bytes(level);
        if !entry.is_present() {
            continue;
        }
        if level == 1 || entry.has(Flags::LARGE) {
            page(address, entry);
        } else {
            walk(entry.frame(), level - 1, address, page);
        }
    }
}

/// NMIs while the storm lasts.
static NMIS: AtomicU64 = AtomicU64::new(0);

/// Lets the next NMI come after another odd time.
fn again(frame: &mut TrapFrame) -> bool {
    if frame.vector() != Vector::NMI.0 {
        return false;
    }
    let number = NMIS.fetch_add(1, Ordering::Relaxed);
    let count = 5_000 + number.wrapping_mul(7_919) % 40_000;
    apic::timer_nmi(u32::try_from(count).unwrap_or(u32::MAX));
    true
}

/// Bit of a segment descriptor: present.
const SEGMENT_PRESENT: u64 = 1 << 47;

/// Takes the user's stack segment away, or gives it back.
fn toggle_user_data() {
    let gdt = tables::sgdt();
    let at = gdt
        .base
        .as_mut_ptr::<u64>()
        .wrapping_add(usize::from(LAYOUT.user_data().bits() >> 3));
    // SAFETY: the descriptor is in the GDT, which is kernel data; nobody else uses it meanwhile.
    let descriptor = unsafe { at.read_volatile() };
    // SAFETY: as above; it is put back before anybody needs it.
    unsafe { at.write_volatile(descriptor ^ SEGMENT_PRESENT) };
}

/// Vectors that `lose_stack_segment` has seen, one digit of 16 bits each.
static SEEN: AtomicU64 = AtomicU64::new(0);

/// INT3 loses the stack segment, and whatever the IRET then leads to brings it back.
fn lose_stack_segment(frame: &mut TrapFrame) -> bool {
    SEEN.store(
        SEEN.load(Ordering::Relaxed) << 16 | u64::from(frame.vector()),
        Ordering::Relaxed,
    );
    toggle_user_data();
    true
}

/// Skips UD2, which would end a program.
const fn skip_ud2(frame: &mut TrapFrame) -> bool {
    if frame.vector() != Vector::INVALID_OPCODE.0 {
        return false;
    }
    frame.set_rip(frame.rip() + 2);
    true
}

fn hidden(machine: &Machine, is_hidden: bool) {
    entry::set_hides_from_new_processes(is_hidden, &machine.irq);
}

example_os::tests! { Machine;
    fn nothing_but_stubs_and_their_data_is_in_the_tables(_machine) {
        let space = AddressSpace::new().unwrap();
        let root = Frame::containing(space.cr3());
        let shown = kernel::shown_ranges();
        let mut pages = 0;
        for_each_page(twin(root), &mut |address, entry| {
            pages += 1;
            assert!(shown.iter().any(|range| range.contains(&address)), "{address:#x} is mapped");
            assert!(!entry.has(Flags::USER), "{address:#x} is for programs");
            assert!(!entry.has(Flags::GLOBAL), "{address:#x} survives a load of CR3");
            assert!(!entry.has(Flags::LARGE));
            let is_text = shown[0].contains(&address);
            assert_eq!(entry.has(Flags::NO_EXECUTE), !is_text);
            assert_eq!(entry.has(Flags::WRITABLE), !is_text);
            assert_eq!(entry.frame().start(), address - KERNEL_BASE);
        });
        let bytes: u64 = shown.iter().map(|range| range.end - range.start).sum();
        assert_eq!(pages, bytes / 4096);
        // The kernel's own have it all.
        let mut all = 0;
        for_each_page(root, &mut |_, _| all += 1);
        assert!(all > 4 * pages);
    }

    fn the_kernels_own_tables_are_not_taken_for_a_programs(_machine) {
        // They are loaded while a process ends, and an NMI of the hidden kind may come then.
        assert_eq!(SplitTables::new(kernel::kernel_cr3()).map(SplitTables::kernel), Ok(kernel::kernel_cr3()));
    }

    fn kernel_is_present_without_and_absent_with_them(machine) {
        let text = nothing as *const () as u64;
        let stack = KernelStack::new().unwrap();
        let data = (&raw const NMIS).addr() as u64;
        for address in [text, data, stack.top() - 8, example_os::memory::DIRECT_MAP] {
            hidden(machine, false);
            assert_eq!(error_code_at(machine, address), code::USER | code::PRESENT, "{address:#x}");
            hidden(machine, true);
            assert_eq!(error_code_at(machine, address), code::USER, "{address:#x}");
        }
        // The stubs are there, and still not for programs.
        hidden(machine, true);
        assert_eq!(error_code_at(machine, kernel::shown_ranges()[0].start), code::USER | code::PRESENT);
        hidden(machine, false);
    }

    fn every_way_in_and_out_works(machine) {
        hidden(machine, true);
        // SYSCALL, INT 0x80, a page fault, a skipped exception, and one that ends the program.
        let code = program!(
            "mov rbx, 0x1122334455667788", "mov r12, -1", "mov ebp, 0x500000",
            "mov eax, 39", "syscall", "test eax, eax", "jz 4f",
            "mov eax, 0x4558", "xor edi, edi", "int 0x80", "cmp eax, 0x454e5452", "jne 4f",
            "mov [rbp], rbx", "cmp rbx, [rbp]", "jne 4f",
            "ud2",
            "mov rcx, 0x1122334455667788", "cmp rbx, rcx", "jne 4f", "cmp r12, -1", "jne 4f",
            "mov eax, 57", "syscall", "test eax, eax", "jz 5f",
            "mov edi, -1", "xor esi, esi", "xor edx, edx", "xor r10d, r10d", "mov eax, 61", "syscall",
            "test eax, eax", "js 4f",
            "5:", "xor edi, edi", "jmp 6f", "4:", "mov edi, 1", "6:", "mov eax, 60", "syscall", "ud2",
        );
        entry::set_kernel_hook(Some(skip_ud2));
        let status = machine.run(code);
        entry::set_kernel_hook(None);
        assert_eq!(status, FINE);
        assert_eq!(machine.run(program!("ud2")), WaitStatus::killed(Signal::new(SIGILL).unwrap()));
        hidden(machine, false);
    }

    fn hidden_and_plain_processes_take_turns(machine) {
        let code = program!(
            "mov ebx, 20", "4:", "mov eax, 24", "syscall", "mov [0x500000], ebx", "int3", "dec ebx", "jnz 4b",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        entry::set_kernel_hook(Some(|frame| frame.vector() == Vector::BREAKPOINT.0));
        let mut pids = [0; 6];
        for (number, pid) in pids.iter_mut().enumerate() {
            hidden(machine, number % 3 != 0);
            *pid = machine.start(code);
        }
        hidden(machine, false);
        for pid in pids {
            assert_eq!(machine.finish(pid), Some(FINE));
        }
        entry::set_kernel_hook(None);
    }

    fn a_process_can_be_hidden_from_and_shown_the_kernel_again(machine) {
        // Operation 1 of the control call: stub sets 6 and 0, twice.
        let code = program!(
            "mov ebx, 2",
            "4:", "mov eax, 0x4558", "mov edi, 1", "mov esi, 6", "int 0x80", "test eax, eax", "jnz 5f",
            "mov eax, 39", "syscall", "test eax, eax", "jnz 5f",
            "mov [0x500000], ebx", "mov eax, 39", "syscall", "test eax, eax", "jnz 5f",
            "mov eax, 0x4558", "mov edi, 1", "xor esi, esi", "int 0x80", "test eax, eax", "jnz 5f",
            "mov eax, 39", "syscall", "test eax, eax", "jz 5f",
            "dec ebx", "jnz 4b",
            "xor edi, edi", "jmp 6f", "5:", "mov edi, 1", "6:", "mov eax, 60", "syscall", "ud2",
        );
        hidden(machine, false);
        assert_eq!(machine.run(code), FINE);
    }

    // The change may be its last act before others run: it comes back to the exit of the stub that it came by.
    fn a_process_that_is_shown_the_kernel_leaves_on_its_own_tables(machine) {
        let changing = program!(
            "mov ebx, 300",
            "4:", "mov eax, 0x4558", "mov edi, 1", "mov esi, 6", "int 0x80", "test eax, eax", "jnz 5f",
            "mov eax, 0x4558", "mov edi, 1", "xor esi, esi", "int 0x80", "test eax, eax", "jnz 5f",
            "dec ebx", "jnz 4b",
            "xor edi, edi", "jmp 6f", "5:", "mov edi, 1", "6:", "mov eax, 60", "syscall", "ud2",
        );
        let yielding = program!(
            "mov ebx, 20000", "4:", "mov eax, 24", "syscall", "dec ebx", "jnz 4b",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        hidden(machine, true);
        let other = machine.start(yielding);
        hidden(machine, false);
        let before = PerCpu::current(&machine.irq).ticks();
        let pid = machine.start(changing);
        apic::timer_periodic(TIMER_VECTOR, 100_000);
        let statuses = [pid, other].map(|pid| machine.finish(pid));
        apic::timer_stop();
        assert_eq!(statuses, [Some(FINE); 2]);
        assert!(PerCpu::current(&machine.irq).ticks() > before);
    }

    fn whole_programs_run(machine) {
        let archive = Archive::new(boot::info().archive.unwrap());
        hidden(machine, true);
        for (path, arguments) in [
            ("bin/hello", &[&b"hello"[..]][..]),
            ("bin/pingpong", &[b"pingpong", b"50"]),
            ("bin/yield2", &[b"yield2", b"50"]),
            ("bin/zeropage", &[b"zeropage", b"1", b"1"]),
        ] {
            let file = archive.find(path).unwrap().unwrap();
            let mut space = AddressSpace::new().unwrap();
            let image = elf::load(&mut space, file).unwrap();
            let rsp = elf::build_stack(&mut space, &image, arguments, &[]).unwrap();
            let frame = entry::first_frame(image.entry, rsp);
            let pid = process::start(path, space, &frame, &machine.irq).unwrap();
            assert_eq!(machine.finish(pid), Some(FINE), "{path}");
        }
        hidden(machine, false);
    }

    fn timer_interrupts_are_taken_on_the_entry_stack(machine) {
        let code = program!(
            "mov rbx, 1", "mov r15, 2", "mov rax, 3", "mov rcx, 100000000", "4:", "dec rcx", "jnz 4b",
            "lea rdi, [rbx + r15]", "sub rdi, rax", "mov eax, 60", "syscall", "ud2",
        );
        hidden(machine, true);
        let before = PerCpu::current(&machine.irq).ticks();
        apic::timer_periodic(TIMER_VECTOR, 1_000_000);
        let status = machine.run(code);
        apic::timer_stop();
        hidden(machine, false);
        assert_eq!(status, FINE);
        assert!(PerCpu::current(&machine.irq).ticks() > before);
    }

    fn nmis_find_and_leave_either_tables(machine) {
        if is_bochs() {
            example_os::skip!("the timer of Bochs delivers no NMI; the sweeps send theirs otherwise");
        }
        let code = program!(
            "mov ebx, 100000", "mov r12d, 0x11223344",
            "4:", "mov eax, 39", "syscall", "test eax, eax", "jz 5f",
            "mov eax, 0x4558", "xor edi, edi", "int 0x80", "cmp eax, 0x454e5452", "jne 5f",
            "cmp r12d, 0x11223344", "jne 5f", "dec ebx", "jnz 4b",
            "xor edi, edi", "jmp 6f", "5:", "mov edi, 1", "6:", "mov eax, 60", "syscall", "ud2",
        );
        hidden(machine, true);
        NMIS.store(0, Ordering::Relaxed);
        entry::set_kernel_hook(Some(again));
        apic::timer_nmi(10_000);
        let status = machine.run(code);
        apic::timer_stop();
        entry::set_kernel_hook(None);
        hidden(machine, false);
        assert_eq!(status, FINE);
        assert!(NMIS.load(Ordering::Relaxed) > 20, "{} NMIs", NMIS.load(Ordering::Relaxed));
    }

    fn a_fault_of_iret_is_taken_back_from_the_entry_stack(machine) {
        let code = program!(
            "mov rbx, 0x1122334455667788", "mov r12, rsp", "int3",
            "mov rcx, 0x1122334455667788", "xor edi, edi", "cmp rbx, rcx", "setne dil",
            "cmp r12, rsp", "setne al", "or dil, al", "mov eax, 60", "syscall", "ud2",
        );
        for is_hidden in [false, true] {
            hidden(machine, is_hidden);
            SEEN.store(0, Ordering::Relaxed);
            entry::set_kernel_hook(Some(lose_stack_segment));
            let status = machine.run(code);
            entry::set_kernel_hook(None);
            assert_eq!(status, FINE);
            let seen = SEEN.load(Ordering::Relaxed);
            assert_eq!(seen >> 16, u64::from(Vector::BREAKPOINT.0), "{seen:#x}");
            // #SS on a CPU, #NP on TCG.
            let last = [Vector::STACK_SEGMENT, Vector::SEGMENT_NOT_PRESENT].map(|vector| u64::from(vector.0));
            assert!(last.contains(&(seen & 0xffff)), "{seen:#x}");
        }
        hidden(machine, false);
    }
}

/// Some text of the kernel that is no stub.
#[inline(never)]
const fn nothing() {}
