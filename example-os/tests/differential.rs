//! Random register files, each left by every exit that the decision allows, and seen alike by the program.
//!
//! A program that is nothing but INT3 is entered with a random file. Its next exception shows what it was given, which
//! is compared with what IRET gave it for the same file: all registers, flags and stack pointer, but for RCX and R11 where
//! they were declared dead and SYSRET was taken without a landing page. `seed=N` on the command line repeats a run.
//!
//! Runs on TCG with any CPU model, and on Bochs, as many files on each. It can't show RF, which no exception of INT3 reports.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use core::arch::x86_64::_rdtsc;
use core::cell::UnsafeCell;

use entry_core::kernel::Leave;
use entry_core::rflags::Rflags;
use entry_core::vector::Vector;
use entry_core::{EntryKind, TrapFrame};
use entry_sysret::landing::{LandingPage, UserStack};
use entry_sysret::{ExitWords, Rules, decide};
use example_os::entry::{self, UserRules};
use example_os::harness::Machine;
use example_os::memory::{AddressSpace, PAGE_SIZE, Placement, Protection, user};
use example_os::process::{self, Children, WaitStatus, scheduler};
use example_os::registers::Registers;
use example_os::{boot, println};

const RCX: usize = Registers::RCX;
const R11: usize = Registers::R11;
const RSP: usize = Registers::RSP;
const RIP: usize = Registers::RIP;
const RFLAGS: usize = Registers::RFLAGS;

/// Register files in a run.
const FILES: u64 = 100_000;

/// Pages of INT3: low, in the middle, and the last that a program can have.
const PAGES: [u64; 3] = [0x40_0000, 0x1234_5678_9000, 0x7fff_ffff_e000];
/// Pages in which half of the files have their stack: low, and where the program's other pages are.
const STACKS: [u64; 2] = [0x70_0000, 0x7fff_ff00_0000];
/// The landing page.
const LANDING: u64 = 0x7fff_fe00_0000;
/// Where the code is that ends the program.
const END: u64 = 0x60_0000;
/// `mov eax, 60` · `xor edi, edi` · `syscall`: exit with 0.
const EXIT: [u8; 9] = [0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05];

/// Flags that differ from file to file. IF and bit 1 are always set.
const FREE_FLAGS: u64 = Rflags::ARITHMETIC
    .union(Rflags::TRAP)
    .union(Rflags::DIRECTION)
    .union(Rflags::NESTED_TASK)
    .union(Rflags::RESUME)
    .union(Rflags::ALIGNMENT_CHECK)
    .union(Rflags::IDENTIFICATION)
    .bits();
const SET_FLAGS: u64 = 0x202;

/// George Marsaglia's xorshift, 64 bits.
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A register: any number, or one that is special to somebody.
    const fn register(&mut self) -> u64 {
        const SPECIAL: [u64; 8] = [
            0,
            u64::MAX,
            1 << 63,
            0x7fff_ffff_ffff,
            0x8000_0000_0000,
            0xffff_8000_0000_0000,
            0xffff_ffff_8000_0000,
            0x202,
        ];
        match self.next() % 4 {
            0 => SPECIAL[(self.next() % 8) as usize],
            _ => self.next(),
        }
    }
}

/// A register file that differs in everything but CS and SS.
fn random_file(random: &mut Random) -> Registers {
    let mut file = Registers::read(&entry::first_frame(0, 0));
    for word in file.first(Registers::GENERAL + 1) {
        *word = random.register();
    }
    if random.next().is_multiple_of(2) {
        file[RSP] = STACKS[(random.next() % 2) as usize] + 152 + random.next() % (PAGE_SIZE - 152);
    }
    file[RIP] = PAGES[(random.next() % 3) as usize] + random.next() % PAGE_SIZE;
    // Most programs have neither TF nor RF, and only those leave by SYSRET.
    let rare = if random.next().is_multiple_of(4) {
        0
    } else {
        Rflags::TRAP.union(Rflags::RESUME).bits()
    };
    file[RFLAGS] = SET_FLAGS | (random.next() & FREE_FLAGS & !rare);
    file
}

/// What the program had when it executed INT3.
const fn before_breakpoint(frame: &TrapFrame) -> Registers {
    Registers::read(frame)
        .with(RIP, frame.rip() - 1)
        .with(RFLAGS, frame.rflags() & !Rflags::RESUME.bits())
}

/// How a file is offered to the exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// As an exception with everything live: the decision is IRET.
    Live,
    /// As an exception whose RCX and R11 are dead.
    Dead,
    /// As a frame that the kernel built, whatever RCX and R11 are: IRET, since they differ from what SYSRET gives.
    Built,
    /// As above, with RCX and R11 as SYSRET gives them.
    Equal,
    /// Through the landing page, if the file allows it.
    Landing,
}

impl Way {
    const ALL: [Self; 5] = [Self::Live, Self::Dead, Self::Built, Self::Equal, Self::Landing];
}

/// What the hook has seen and does next.
struct State {
    random: Random,
    seed: u64,
    done: u64,
    way: usize,
    file: Registers,
    /// What IRET gave.
    reference: Registers,
    /// The way out that was chosen for the frame that is being seen.
    leave: Option<Leave>,
    sysrets: u64,
    irets: u64,
    landings: u64,
}

/// The user stack as the kernel's copies reach it. None of them faults here: the pages there are have been touched.
struct Stack;

impl UserStack for Stack {
    fn has_shadow_stack(&self) -> bool {
        false
    }

    fn store(&mut self, address: u64, words: [u64; 3]) -> bool {
        STACKS
            .iter()
            .any(|page| (page..=&(page + PAGE_SIZE - 24)).contains(&&address))
            && words
                .iter()
                .zip([0, 8, 16])
                .all(|(word, offset)| user::write_user_u64(address + offset, *word).is_ok())
    }
}

struct Shared(UnsafeCell<State>);

// SAFETY: one CPU; the hook and the code that sets it up never run at the same time.
unsafe impl Sync for Shared {}

static STATE: Shared = Shared(UnsafeCell::new(State {
    random: Random(0),
    seed: 0,
    done: 0,
    way: 0,
    file: Registers::ZERO,
    reference: Registers::ZERO,
    leave: None,
    sysrets: 0,
    irets: 0,
    landings: 0,
}));

/// The program reported what it was given.
fn compare(state: &mut State, frame: &TrapFrame) {
    let way = Way::ALL[state.way];
    let seen = before_breakpoint(frame);
    let place = (state.seed, state.done, way, state.leave);
    let mut expected = state.file;
    expected[RFLAGS] &= !Rflags::RESUME.bits();
    match way {
        Way::Live => {
            assert_eq!(state.leave, Some(Leave::Iret), "{place:?}");
            state.reference = seen;
        }
        Way::Dead if state.leave == Some(Leave::Sysret) => {
            // SYSRET's, which also shows that SYSRET it was.
            expected[RCX] = state.file[RIP];
            expected[R11] = state.file[RFLAGS];
            assert_eq!(seen[RCX], expected[RCX], "{place:?}");
            assert_eq!(seen[R11], expected[R11], "{place:?}");
            let others = state.reference.with(RCX, seen[RCX]).with(R11, seen[R11]);
            assert_eq!(seen, others, "{place:?}");
        }
        Way::Dead | Way::Built | Way::Landing => assert_eq!(seen, state.reference, "{place:?}"),
        Way::Equal => {
            expected[RCX] = state.file[RIP];
            expected[R11] = state.file[RFLAGS];
        }
    }
    assert_eq!(seen, expected, "{place:?}");
    match state.leave {
        Some(Leave::Sysret) => state.sysrets += 1,
        _ => state.irets += 1,
    }
}

/// Makes the frame the next one.
fn prepare(state: &mut State, frame: &mut TrapFrame) {
    let mut file = state.file;
    let way = Way::ALL[state.way];
    match way {
        Way::Live => {}
        Way::Landing => frame.declare_no_instruction_breakpoint(),
        Way::Dead => {
            frame.declare_rcx_r11_dead();
            frame.declare_no_instruction_breakpoint();
        }
        Way::Built | Way::Equal => frame.mark_built(),
    }
    if way == Way::Equal {
        file[RCX] = file[RIP];
        file[R11] = file[RFLAGS];
    }
    file.write(frame);
    if way == Way::Landing {
        let page = LandingPage::new(LANDING, &UserRules::RULES).unwrap();
        state.landings += u64::from(page.land(frame, &UserRules::RULES, &mut Stack).is_ok());
    }
    state.leave = Some(decide(&ExitWords::of(frame), &UserRules::RULES).unwrap());
}

fn hook(frame: &mut TrapFrame) -> bool {
    assert_eq!(frame.vector(), Vector::BREAKPOINT.0, "{frame}");
    assert_eq!(frame.entry_kind(), Some(EntryKind::Exception));
    // SAFETY: see `Shared`.
    let state = unsafe { &mut *STATE.0.get() };
    if state.leave.is_some() {
        compare(state, frame);
        state.way += 1;
        if state.way == Way::ALL.len() {
            state.way = 0;
            state.done += 1;
        }
    }
    if state.done == FILES {
        frame.set_rip(END);
        frame.set_rflags(SET_FLAGS);
        return true;
    }
    if state.way == 0 {
        state.file = random_file(&mut state.random);
    }
    prepare(state, frame);
    true
}

/// The seed on the command line, or one from the clock.
fn seed() -> u64 {
    let given = boot::info()
        .command_line
        .split(' ')
        .find_map(|word| word.strip_prefix("seed="));
    // SAFETY: RDTSC reads a counter.
    let clock = unsafe { _rdtsc() };
    given.map_or(clock | 1, |number| number.parse().unwrap())
}

example_os::tests! { Machine;
    fn every_exit_gives_what_iret_gives(machine) {
        let seed = seed();
        println!("[boot] seed={seed}");
        // SAFETY: see `Shared`; no program runs.
        let state = unsafe { &mut *STATE.0.get() };
        (state.random, state.seed) = (Random(seed), seed);
        let executable = Protection::READ.union(Protection::EXECUTE);
        let mut space = AddressSpace::new().unwrap();
        for page in PAGES {
            space.mmap(page, PAGE_SIZE, executable, Placement::Fixed).unwrap();
            space.write(page, &[0xcc; 4096]).unwrap();
        }
        space.mmap(END, PAGE_SIZE, executable, Placement::Fixed).unwrap();
        space.write(END, &EXIT).unwrap();
        for page in STACKS {
            let protection = Protection::READ.union(Protection::WRITE);
            space.mmap(page, PAGE_SIZE, protection, Placement::Fixed).unwrap();
            space.write(page, &[0]).unwrap();
        }
        space.mmap(LANDING, PAGE_SIZE, executable, Placement::Fixed).unwrap();
        space.write(LANDING, LandingPage::BYTES).unwrap();
        entry::set_kernel_hook(Some(hook));
        let pid = process::start("test", space, &entry::first_frame(PAGES[0], 0), &machine.irq).unwrap();
        scheduler::schedule(&mut machine.irq);
        let ended = process::wait(Children::One(pid), false, &mut machine.irq).unwrap();
        entry::set_kernel_hook(None);
        assert_eq!(ended, Some((pid, WaitStatus::exited(0))));
        assert_eq!(state.done, FILES);
        println!("[boot] {} exits by SYSRET, {} by IRET, {} landings", state.sysrets, state.irets, state.landings);
        // Five files in six may leave by SYSRET, in two ways, and about a quarter through the landing page.
        assert!(state.sysrets > FILES, "{}", state.sysrets);
        assert!(state.landings > FILES / 5, "{}", state.landings);
        assert!(state.irets > 2 * FILES, "{}", state.irets);
    }
}
