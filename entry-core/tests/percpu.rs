//! The per-CPU header, pairs of page tables, and stacks.

use entry_core::PerCpuHeader;
use entry_core::msr::SpecCtrl;
use entry_core::percpu::{EntryStack, IstStack, SplitTables, SplitTablesError};

/// What a stub reads at an offset of the header.
const fn word(header: &PerCpuHeader, offset: usize) -> u64 {
    let address = core::ptr::from_ref(header).cast::<u8>().wrapping_add(offset);
    // SAFETY: the word is inside the header, aligned, and nobody writes meanwhile.
    unsafe { address.cast::<u64>().read() }
}

#[test]
fn words_stand_where_the_documentation_says() {
    let offsets = [
        (PerCpuHeader::SELF, 0),
        (PerCpuHeader::KERNEL_STACK, 8),
        (PerCpuHeader::SCRATCH_RSP, 16),
        (PerCpuHeader::SCRATCH_RAX, 24),
        (PerCpuHeader::WORK, 32),
        (PerCpuHeader::KERNEL_SPEC_CTRL, 36),
        (PerCpuHeader::KERNEL_CR3, 40),
        (PerCpuHeader::USER_CR3, 48),
        (PerCpuHeader::ENTRY_STACK, 56),
        (PerCpuHeader::USER_SPEC_CTRL, 64),
    ];
    for (found, wanted) in offsets {
        assert_eq!(found, wanted);
    }
}

#[test]
fn setters_write_the_words_that_the_stubs_read() {
    static HEADER: PerCpuHeader = PerCpuHeader::new();
    let header = &HEADER;
    header.bind();
    assert_eq!(word(header, 0), core::ptr::from_ref(header).addr() as u64);
    // SAFETY: no CPU uses the header.
    unsafe { header.set_kernel_stack(0xffff_c000_0000_4000) };
    assert_eq!(
        (word(header, 8), header.kernel_stack()),
        (0xffff_c000_0000_4000, 0xffff_c000_0000_4000)
    );
    // SAFETY: as above.
    unsafe { header.set_tables(SplitTables::new(0x4000).unwrap()) };
    assert_eq!((word(header, 40), word(header, 48)), (0x4000, 0x5000));
    // SAFETY: as above.
    unsafe { header.set_entry_stack(0xffff_c000_0000_8000) };
    assert_eq!(word(header, 56), 0xffff_c000_0000_8000);
    let kernel = SpecCtrl::from_bits_retain(0xffff_ffff_0000_0401);
    // SAFETY: as above.
    unsafe { header.set_spec_ctrl(kernel, SpecCtrl::SPECULATIVE_STORE_BYPASS_DISABLE) };
    // Bits 63:32 of the word at 32 are those at 36.
    assert_eq!((word(header, 32) >> 32, word(header, 64) & 0xffff_ffff), (0x401, 4));
    header.set_work_pending();
    assert_eq!((word(header, 32), header.is_work_pending()), (0x401_0000_0001, true));
    header.clear_work_pending();
    assert_eq!((word(header, 32), header.is_work_pending()), (0x401_0000_0000, false));
}

#[test]
fn a_root_where_the_users_would_be_is_refused() {
    for cr3 in [0x1000, 0x3000, 0x10_3000, 0x000f_ffff_ffff_f000] {
        assert_eq!(SplitTables::new(cr3), Err(SplitTablesError::OddRoot { cr3 }));
        assert_eq!(SplitTables::shared(cr3), Err(SplitTablesError::OddRoot { cr3 }));
        assert_eq!(SplitTables::with_pcid(cr3), Err(SplitTablesError::OddRoot { cr3 }));
    }
    assert_eq!(
        SplitTablesError::OddRoot { cr3: 0x1000 }.to_string(),
        "kernel CR3 0x1000 has bit 12 set, wanted an even page"
    );
}

#[test]
fn an_order_to_the_cpu_is_no_part_of_a_table() {
    let cr3 = 1 << 63 | 0x2000;
    for refused in [
        SplitTables::new(cr3),
        SplitTables::shared(cr3),
        SplitTables::with_pcid(cr3),
    ] {
        assert_eq!(refused, Err(SplitTablesError::NoFlush { cr3 }));
    }
}

#[test]
fn each_identifier_of_the_kernels_has_one_of_the_users_beside_it() {
    for identifier in 0..0x1000 {
        let cr3 = 0x2000 | identifier;
        if identifier < 0x800 {
            let tables = SplitTables::with_pcid(cr3).unwrap();
            assert_eq!(
                (tables.kernel(), tables.user()),
                (1 << 63 | cr3, 1 << 63 | 0x3800 | identifier)
            );
        } else {
            assert_eq!(SplitTables::with_pcid(cr3), Err(SplitTablesError::UserPcid { cr3 }));
        }
    }
}

#[test]
fn stacks_begin_where_16_divides_and_name_their_cpu() {
    static HEADER: PerCpuHeader = PerCpuHeader::new();
    static STACK: IstStack<4096> = IstStack::new();
    static ENTRY: EntryStack<4096> = EntryStack::new();
    let top = STACK.bind(&HEADER);
    assert_eq!((top, top % 16, ENTRY.top() % 16), (STACK.top(), 0, 0));
    // The stub finds the header's address above what the CPU pushes, and behind it whether the stack is in use.
    let above = core::ptr::from_ref(&STACK).cast::<u8>().wrapping_add(4096);
    assert_eq!(above.addr() as u64, top);
    for (offset, wanted) in [(0, core::ptr::from_ref(&HEADER).addr() as u64), (8, 0)] {
        // SAFETY: both words are inside the value, aligned, and nobody writes meanwhile.
        assert_eq!(unsafe { above.wrapping_add(offset).cast::<u64>().read() }, wanted);
    }
}
