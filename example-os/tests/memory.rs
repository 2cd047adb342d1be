//! Frames, areas, page tables, kernel stacks.
//!
//! Any accelerator. Faults are simulated by calling their answer; user mode is not entered.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::harness::Suite;
use example_os::memory::area::MAX_AREAS;
use example_os::memory::layout::{MMAP_TOP, USER_START};
use example_os::memory::{
    AddressSpace, FaultError, KernelStack, MapError, PAGE_SIZE, Placement, Protection, USER_LIMIT, frame, user,
};

const READ: u64 = 1 << 2;
const WRITE: u64 = 1 << 2 | 1 << 1;
const WRITE_PRESENT: u64 = WRITE | 1;
const FETCH: u64 = 1 << 2 | 1 << 4;
const RW: Protection = Protection::READ.union(Protection::WRITE);
const RX: Protection = Protection::READ.union(Protection::EXECUTE);

/// An address space of its own for each test.
struct Machine {
    free_at_start: u64,
}

impl Suite for Machine {
    fn set_up() -> Self {
        Self {
            free_at_start: frame::free_count(),
        }
    }
}

impl Machine {
    fn space(&self) -> AddressSpace {
        AddressSpace::new().unwrap()
    }

    /// Every test gives back what it took.
    fn assert_no_leak(&self) {
        assert_eq!(frame::free_count(), self.free_at_start);
    }
}

example_os::tests! { Machine;
    fn gives_each_frame_once(machine) {
        let frames: [_; 64] = core::array::from_fn(|_| frame::allocate().unwrap());
        for (index, one) in frames.iter().enumerate() {
            assert!(frames[index + 1..].iter().all(|other| other != one));
            assert_eq!(one.start() % PAGE_SIZE, 0);
        }
        for one in frames {
            // SAFETY: allocated above, mapped nowhere.
            unsafe { frame::free(one) };
        }
        machine.assert_no_leak();
    }

    fn maps_the_zero_page_for_reads(machine) {
        let mut space = machine.space();
        let at = space.mmap(0, 2 * PAGE_SIZE, RW, Placement::Hint).unwrap();
        assert_eq!(space.translate(at), None);
        space.resolve_fault(at + 5, READ).unwrap();
        space.resolve_fault(at + PAGE_SIZE, READ).unwrap();
        let first = space.translate(at + 5).unwrap();
        let second = space.translate(at + PAGE_SIZE).unwrap();
        assert!(first.is_zero_page && second.is_zero_page);
        assert_eq!(first.physical, second.physical + 5);
        assert_eq!(first.protection, Protection::READ);
        drop(space);
        machine.assert_no_leak();
    }

    fn gives_a_frame_of_its_own_for_a_write(machine) {
        let mut space = machine.space();
        let at = space.mmap(0, PAGE_SIZE, RW, Placement::Hint).unwrap();
        space.resolve_fault(at, READ).unwrap();
        let shared = space.translate(at).unwrap().physical;
        space.resolve_fault(at, WRITE_PRESENT).unwrap();
        let own = space.translate(at).unwrap();
        assert!(!own.is_zero_page && own.physical != shared);
        assert_eq!(own.protection, RW);
        drop(space);
        machine.assert_no_leak();
    }

    fn refuses_faults_outside_an_area(machine) {
        let mut space = machine.space();
        let at = space.mmap(0x10_0000, PAGE_SIZE, RW, Placement::Fixed).unwrap();
        for address in [0, at - 1, at + PAGE_SIZE, USER_LIMIT, 1 << 47, u64::MAX] {
            assert_eq!(space.resolve_fault(address, READ), Err(FaultError::NoMapping), "{address:#x}");
        }
    }

    fn refuses_what_the_protection_does_not_allow(machine) {
        let mut space = machine.space();
        let read = space.mmap(0, PAGE_SIZE, Protection::READ, Placement::Hint).unwrap();
        assert_eq!(space.resolve_fault(read, WRITE), Err(FaultError::Denied));
        assert_eq!(space.resolve_fault(read, FETCH), Err(FaultError::Denied));
        let none = space.mmap(0, PAGE_SIZE, Protection::empty(), Placement::Hint).unwrap();
        assert_eq!(space.resolve_fault(none, READ), Err(FaultError::Denied));
        let code = space.mmap(0, PAGE_SIZE, RX, Placement::Hint).unwrap();
        assert_eq!(space.resolve_fault(code, WRITE), Err(FaultError::Denied));
        space.resolve_fault(code, FETCH).unwrap();
        assert_eq!(space.translate(code).unwrap().protection, RX);
    }

    fn reports_faults_that_its_tables_cannot_cause(machine) {
        let mut space = machine.space();
        let at = space.mmap(0, PAGE_SIZE, RW, Placement::Hint).unwrap();
        assert_eq!(space.resolve_fault(at, READ | 1 << 3), Err(FaultError::Unexpected));
        space.resolve_fault(at, READ).unwrap();
        assert_eq!(space.resolve_fault(at, READ | 1), Err(FaultError::Unexpected));
        space.resolve_fault(at, WRITE_PRESENT).unwrap();
        assert_eq!(space.resolve_fault(at, WRITE_PRESENT), Err(FaultError::Unexpected));
        // The page may have been mapped between the fault and its handling.
        assert_eq!(space.resolve_fault(at, READ), Ok(()));
    }

    fn takes_a_free_hint_and_else_goes_down_from_the_top(machine) {
        let mut space = machine.space();
        assert_eq!(space.mmap(0, 1, RW, Placement::Hint), Ok(MMAP_TOP - PAGE_SIZE));
        assert_eq!(space.mmap(0, PAGE_SIZE + 1, RX, Placement::Hint), Ok(MMAP_TOP - 3 * PAGE_SIZE));
        assert_eq!(space.mmap(0x40_0123, PAGE_SIZE, RW, Placement::Hint), Ok(0x40_0000));
        assert_eq!(space.mmap(0x40_0000, PAGE_SIZE, RW, Placement::Hint), Ok(MMAP_TOP - 4 * PAGE_SIZE));
        assert_eq!(space.mmap(1, PAGE_SIZE, RW, Placement::Hint), Ok(MMAP_TOP - 5 * PAGE_SIZE));
        assert_eq!(space.mmap(0x1000, PAGE_SIZE, RW, Placement::Hint), Ok(USER_START));
        assert_eq!(space.mmap(USER_LIMIT, PAGE_SIZE, RW, Placement::Hint), Ok(MMAP_TOP - 6 * PAGE_SIZE));
        space.munmap(MMAP_TOP - 2 * PAGE_SIZE, PAGE_SIZE).unwrap();
        assert_eq!(space.mmap(0, PAGE_SIZE, RW, Placement::Hint), Ok(MMAP_TOP - 2 * PAGE_SIZE));
    }

    fn names_what_is_wrong_with_a_mapping(machine) {
        let mut space = machine.space();
        let mut fixed = |start, length| space.mmap(start, length, RW, Placement::Fixed);
        assert_eq!(fixed(0x10_0000, 0), Err(MapError::NoLength));
        assert_eq!(fixed(0x10_0001, 1), Err(MapError::Unaligned { address: 0x10_0001 }));
        assert_eq!(fixed(0xf000, 1), Err(MapError::TooLow { address: 0xf000 }));
        for (start, length) in [(USER_LIMIT, 1), (USER_LIMIT - PAGE_SIZE, PAGE_SIZE + 1), (PAGE_SIZE, u64::MAX)] {
            assert_eq!(fixed(start, length), Err(MapError::Range { start, length }));
        }
        assert_eq!(fixed(USER_LIMIT - PAGE_SIZE, 1), Ok(USER_LIMIT - PAGE_SIZE));
        let (start, length) = (USER_LIMIT, PAGE_SIZE);
        assert_eq!(space.munmap(start, length), Err(MapError::UnmapRange { start, length }));
        assert_eq!(space.protect(start, length, RW), Err(MapError::Range { start, length }));
        let length = 1 << 47;
        assert_eq!(space.mmap(0, length, RW, Placement::Hint), Err(MapError::NoSpace { length }));
        assert_eq!(space.mmap(0, u64::MAX, RW, Placement::Hint), Err(MapError::NoSpace { length: u64::MAX }));
        let all = RW | RX;
        for placement in [Placement::Hint, Placement::Fixed, Placement::FixedNoReplace] {
            let result = space.mmap(USER_LIMIT - PAGE_SIZE, 1, all, placement);
            assert_eq!(result, Err(MapError::WritableAndExecutable));
        }
        assert!(space.areas().find(USER_LIMIT - 1).is_some(), "a refused mapping replaced what was there");
        assert_eq!(
            space.mmap(USER_LIMIT - PAGE_SIZE, 1, RW, Placement::FixedNoReplace),
            Err(MapError::Occupied { start: USER_LIMIT - PAGE_SIZE })
        );
    }

    fn cuts_and_joins_areas(machine) {
        let mut space = machine.space();
        let at = space.mmap(0x40_0000, 8 * PAGE_SIZE, RW, Placement::Fixed).unwrap();
        let ranges = |space: &AddressSpace| space.areas().as_slice().len();
        space.munmap(at + 2 * PAGE_SIZE, PAGE_SIZE).unwrap();
        assert_eq!(ranges(&space), 2);
        space.mmap(at + 2 * PAGE_SIZE, PAGE_SIZE, RW, Placement::Fixed).unwrap();
        assert_eq!(ranges(&space), 1);
        space.protect(at + 4 * PAGE_SIZE, PAGE_SIZE, Protection::READ).unwrap();
        assert_eq!(ranges(&space), 3);
        space.protect(at, 8 * PAGE_SIZE, RW).unwrap();
        assert_eq!(ranges(&space), 1);
        space.munmap(0x1_0000, USER_LIMIT - 0x1_0000).unwrap();
        assert_eq!(ranges(&space), 0);
        assert_eq!(space.protect(at, 1, RW), Err(MapError::Hole { address: at }));
    }

    fn fills_the_area_table_to_its_end(machine) {
        let mut space = machine.space();
        for number in 0..MAX_AREAS as u64 {
            space.mmap(0x40_0000 + 4 * number * PAGE_SIZE, 3 * PAGE_SIZE, RW, Placement::Fixed).unwrap();
        }
        assert_eq!(space.mmap(0, 1, RW, Placement::Hint), Err(MapError::TooManyAreas));
        assert_eq!(space.munmap(0x40_0000 + PAGE_SIZE, PAGE_SIZE), Err(MapError::TooManyAreas));
        assert_eq!(space.protect(0x40_0000 + PAGE_SIZE, PAGE_SIZE, RX), Err(MapError::TooManyAreas));
        assert_eq!(space.areas().as_slice().len(), MAX_AREAS);
        space.munmap(0x40_0000, PAGE_SIZE).unwrap();
    }

    fn changes_the_protection_of_touched_pages(machine) {
        let mut space = machine.space();
        let at = space.mmap(0x40_0000, 3 * PAGE_SIZE, RW, Placement::Fixed).unwrap();
        space.resolve_fault(at, WRITE).unwrap();
        space.resolve_fault(at + PAGE_SIZE, READ).unwrap();
        let own = space.translate(at).unwrap().physical;
        space.protect(at, 3 * PAGE_SIZE, Protection::READ).unwrap();
        assert_eq!(space.translate(at).unwrap().protection, Protection::READ);
        assert_eq!(space.resolve_fault(at, WRITE_PRESENT), Err(FaultError::Denied));
        space.protect(at, 3 * PAGE_SIZE, Protection::empty()).unwrap();
        assert_eq!(space.translate(at), None);
        assert_eq!(space.resolve_fault(at, READ), Err(FaultError::Denied));
        space.protect(at, 3 * PAGE_SIZE, RW).unwrap();
        let again = space.translate(at).unwrap();
        assert_eq!((again.physical, again.protection), (own, RW));
        drop(space);
        machine.assert_no_leak();
    }

    fn gives_back_all_frames_of_unmapped_pages(machine) {
        let mut space = machine.space();
        let empty = frame::free_count();
        let at = space.mmap(0, 4 << 20, RW, Placement::Hint).unwrap();
        for page in 0..1024 {
            space.resolve_fault(at + page * PAGE_SIZE, if page % 3 == 0 { WRITE } else { READ }).unwrap();
        }
        assert!(frame::free_count() < empty - 341);
        space.munmap(at, 4 << 20).unwrap();
        assert_eq!(space.translate(at), None);
        // Tables whose range was unmapped in part stay until the space is dropped.
        assert!(frame::free_count() >= empty - 5);
        drop(space);
        machine.assert_no_leak();
    }

    fn forgets_unmapped_pages(machine) {
        let mut space = machine.space();
        for pages in [1, 32, 33, 600] {
            let at = space.mmap(0, pages * PAGE_SIZE, RW, Placement::Hint).unwrap();
            // SAFETY: the space outlives the accesses, and the kernel's tables are loaded before it is dropped.
            unsafe { space.activate() };
            let last = at + (pages - 1) * PAGE_SIZE;
            space.write(last, b"old").unwrap();
            assert_eq!(user::read_user_u64(last), Ok(0x64_6c6f));
            space.munmap(at, pages * PAGE_SIZE).unwrap();
            space.mmap(at, pages * PAGE_SIZE, RW, Placement::Fixed).unwrap();
            space.resolve_fault(last, READ).unwrap();
            assert_eq!(user::read_user_u64(last), Ok(0), "{pages} pages");
            space.munmap(at, pages * PAGE_SIZE).unwrap();
            example_os::memory::activate_kernel();
        }
        drop(space);
        machine.assert_no_leak();
    }

    fn forks_into_frames_of_its_own(machine) {
        let mut parent = machine.space();
        let at = parent.mmap(0, 3 * PAGE_SIZE, RW, Placement::Hint).unwrap();
        parent.write(at + 4090, b"across a page").unwrap();
        parent.resolve_fault(at + 2 * PAGE_SIZE, READ).unwrap();
        let child = parent.fork().unwrap();
        for page in 0..2 {
            let (one, other) = (parent.translate(at + page * PAGE_SIZE), child.translate(at + page * PAGE_SIZE));
            assert_ne!(one.unwrap().physical, other.unwrap().physical);
            assert_eq!(other.unwrap().protection, RW);
        }
        assert_eq!(parent.translate(at + 2 * PAGE_SIZE), child.translate(at + 2 * PAGE_SIZE));
        assert_eq!(child.areas().as_slice(), parent.areas().as_slice());
        // SAFETY: `child` outlives the accesses, and the kernel's tables are loaded before it is dropped.
        unsafe { child.activate() };
        let mut bytes = [0; 13];
        user::copy_from_user(&mut bytes, at + 4090).unwrap();
        example_os::memory::activate_kernel();
        assert_eq!(&bytes, b"across a page");
        drop(child);
        drop(parent);
        machine.assert_no_leak();
    }

    fn copies_every_length_both_ways(machine) {
        let mut space = machine.space();
        let at = space.mmap(0, 2 * PAGE_SIZE, RW, Placement::Hint).unwrap();
        space.write(at + PAGE_SIZE - 20, &[0; 40]).unwrap();
        // SAFETY: the space outlives the accesses, and the kernel's tables are loaded before it is dropped.
        unsafe { space.activate() };
        let pattern: [u8; 40] = core::array::from_fn(|index| u8::try_from(index).unwrap() + 1);
        for length in 0..=40 {
            user::copy_to_user(at + PAGE_SIZE - 20, &[0xee; 40]).unwrap();
            user::copy_to_user(at + PAGE_SIZE - 20, &pattern[..length]).unwrap();
            let mut back = [0; 40];
            user::copy_from_user(&mut back, at + PAGE_SIZE - 20).unwrap();
            assert_eq!(back[..length], pattern[..length]);
            assert!(back[length..].iter().all(|&byte| byte == 0xee));
        }
        user::write_user_u64(at + PAGE_SIZE - 4, 0x0123_4567_89ab_cdef).unwrap();
        assert_eq!(user::read_user_u64(at + PAGE_SIZE - 4), Ok(0x0123_4567_89ab_cdef));
        example_os::memory::activate_kernel();
        drop(space);
        machine.assert_no_leak();
    }

    fn refuses_user_pointers_outside_the_user_half(_machine) {
        let mut bytes = [0; 16];
        for address in [USER_LIMIT - 15, USER_LIMIT, 1 << 47, 0xffff_8000_0000_0000, u64::MAX - 7] {
            assert_eq!(user::copy_from_user(&mut bytes, address), Err(user::BadAddress { address }));
            assert_eq!(user::copy_to_user(address, &bytes), Err(user::BadAddress { address }));
        }
    }

    fn knows_user_accesses_by_their_exact_address(_machine) {
        assert_eq!(user::fixup(0), None);
        assert_eq!(user::fixup((user::fixup as *const ()).addr() as u64), None);
    }

    fn maps_kernel_stacks_above_an_unmapped_page(machine) {
        let first = KernelStack::new().unwrap();
        let second = KernelStack::new().unwrap();
        assert!(first.top().is_multiple_of(16) && first.top() != second.top());
        for stack in [&first, &second] {
            let lowest = core::ptr::with_exposed_provenance_mut::<u64>(
                usize::try_from(stack.top() - 16 * 1024).unwrap(),
            );
            // SAFETY: the lowest word of a stack that nobody runs on.
            unsafe { lowest.write_volatile(7) };
        }
        drop(first);
        drop(second);
        machine.assert_no_leak();
    }

    fn gives_all_kernel_stacks_and_no_more(machine) {
        let stacks: [_; 65] = core::array::from_fn(|_| KernelStack::new());
        assert_eq!(stacks.iter().filter(|stack| stack.is_ok()).count(), 64);
        assert!(stacks[64].is_err());
        drop(stacks);
        machine.assert_no_leak();
    }
}
