//! What boot promises to the image's main function.
//!
//! Any accelerator, any CPU with NX. Cannot show: what firmware of a real machine leaves behind.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::boot;
use example_os::memory::{DIRECT_MAP, KERNEL_BASE};
use x86_64::registers::control::{Cr0, Cr0Flags, Cr3, Cr4, Cr4Flags};
use x86_64::registers::model_specific::{Efer, EferFlags};

example_os::tests! { ();
    fn has_interrupts_off(_suite) {
        assert!(!x86_64::instructions::interrupts::are_enabled());
    }

    fn has_paging_with_write_protection_and_no_execute(_suite) {
        assert!(Cr0::read().contains(Cr0Flags::PAGING | Cr0Flags::WRITE_PROTECT));
        assert!(Efer::read().contains(EferFlags::LONG_MODE_ACTIVE | EferFlags::NO_EXECUTE_ENABLE));
    }

    fn sets_the_protections_that_cpuid_has(_suite) {
        let features = boot::cpu::features();
        let cr4 = Cr4::read();
        for (has, flag) in [
            (features.pge, Cr4Flags::PAGE_GLOBAL),
            (features.smep, Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION),
            (features.smap, Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION),
            (features.umip, Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION),
        ] {
            assert_eq!(cr4.contains(flag), has, "{flag:?}");
        }
    }

    fn keeps_floating_point_away(_suite) {
        assert!(Cr0::read().contains(Cr0Flags::EMULATE_COPROCESSOR));
        assert!(!Cr4::read().contains(Cr4Flags::OSFXSR));
    }

    fn maps_nothing_in_the_user_half(_suite) {
        let root = Cr3::read().0.start_address().as_u64();
        for index in 0..256 {
            assert_eq!(entry(root, index), 0, "root entry {index}");
        }
    }

    fn maps_no_kernel_page_both_writable_and_executable(_suite) {
        let root = Cr3::read().0.start_address().as_u64();
        let mut pages = 0;
        for index in 256..512 {
            visit(entry(root, index), 3, &mut |entry| {
                pages += 1;
                assert!(entry & (1 << 1) == 0 || entry & (1 << 63) != 0, "entry {entry:#x}");
                assert!(entry & (1 << 2) == 0, "entry {entry:#x} is for user mode");
            });
        }
        assert!(pages > 100, "{pages} entries seen");
    }

    fn shows_text_read_only_in_the_direct_map(_suite) {
        let text = (boot::info as *const ()).addr() as u64 - KERNEL_BASE;
        let root = Cr3::read().0.start_address().as_u64();
        let mut current = root;
        for shift in [39, 30, 21, 12] {
            let index = ((DIRECT_MAP + text) >> shift) % 512;
            let next = entry(current, index);
            assert!(next & 1 == 1);
            if shift == 12 {
                assert_eq!(next & 0x000f_ffff_ffff_f000, text & !0xfff);
                assert_eq!(next & (1 << 1), 0);
            }
            current = next & 0x000f_ffff_ffff_f000;
        }
    }

    fn keeps_the_command_line(_suite) {
        assert!(boot::info().command_line.is_ascii());
        assert!(boot::info().memory_bytes >= 16 << 20);
    }
}

fn entry(table: u64, index: u64) -> u64 {
    let pointer = core::ptr::with_exposed_provenance::<u64>(
        usize::try_from(DIRECT_MAP + (table & 0x000f_ffff_ffff_f000) + index * 8).unwrap(),
    );
    // SAFETY: the address of a page table came from CR3 or from an entry, and the direct map shows all of RAM.
    unsafe { pointer.read_volatile() }
}

/// Calls `leaf` for each present entry below `table` that maps a page; `level` is that of the table it names.
fn visit(table: u64, level: u32, leaf: &mut impl FnMut(u64)) {
    if table & 1 == 0 {
        return;
    }
    for index in 0..512 {
        let next = entry(table, index);
        if next & 1 == 0 {
            continue;
        }
        if level == 1 || next & (1 << 7) != 0 {
            leaf(next);
        } else {
            visit(next, level - 1, leaf);
        }
    }
}
