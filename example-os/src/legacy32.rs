//! SYSENTER where it comes from: an excursion to 32-bit protected mode.
//!
//! In January 2003 Linux wrote `IA32_SYSENTER_CS` and `IA32_SYSENTER_ESP` at each context switch, so that SYSENTER found the
//! thread's stack; the alternative was a trampoline of 11 bytes that loads it from the TSS. Here both run with the bytes
//! of [`Trampoline32`] and 32-bit code at CPL 3 that enters by SYSENTER and comes back by SYSEXIT: a call that does nothing, and two
//! tasks, each with an address space and memory of its own, that switch to each other.
//!
//! [`run`] leaves long mode, lets the tasks have their rounds, and comes back. No Rust runs in between: `code` is
//! assembly, and lies with `Low` in the identity-mapped first pages of the image. There is no kernel to speak of in
//! there: interrupts stay off, the table of vectors has #DB and the way back, and anything else ends the machine, NMIs
//! included.
//!
//! | | without a trampoline | with one |
//! |---|---|---|
//! | a switch | two WRMSRs, as Linux 2.5.54 had them | nothing of its own |
//! | an entry | nothing | one load and one jump |
//! | ESP at the first kernel instruction | the task's stack | a small stack |
//! | ESP at the first instruction of the kernel proper | the task's stack | the task's stack |
//!
//! # Source
//!
//! Intel SDM vol. 3A, *Switching Between Protected Mode and IA-32e Mode*; vol. 2B, *SYSENTER—Fast System Call*,
//! *SYSEXIT—Fast Return from Fast System Call*. AMD CPUs have both here, though not in long mode: AMD APM vol. 2,
//! *SYSENTER and SYSEXIT (Legacy Mode Only)*.

#![expect(
    clippy::cast_possible_truncation,
    reason = "addresses in the boot part of the image and sizes in `Low` fit 32 bits, selectors 16"
)]

mod code;

use core::cell::UnsafeCell;
use core::mem::offset_of;

use entry_core::IrqOff;
use entry_core::cpu::CpuFeatures;
use entry_core::msr::{Cpu, FsBase, GsBase, KernelGsBase, Msr, Register, SysenterCs, SysenterEip, SysenterEsp};
use entry_core::segment::Selector;
use entry_core::vector::Vector;
use entry_sysenter::error::Unsupported;
use entry_sysenter::support::{ProtectedModeSupport, sysenter_cs};
use entry_sysenter::trampoline::Trampoline32;
use x86_64::instructions::tables;

use crate::boot;
use crate::entry::{LAYOUT, sysenter};
use crate::experiment::time_stamp;
use crate::memory::{DIRECT_MAP, layout};

/// Selectors of the table that is loaded meanwhile, in the order that SYSENTER and SYSEXIT compute with.
const KERNEL_CODE: u16 = 1 << 3;
const KERNEL_DATA: u16 = 2 << 3;
const USER_CODE: u16 = (3 << 3) | 3;
const USER_DATA: u16 = (4 << 3) | 3;
const TASK_STATE: u16 = 5 << 3;
/// 64-bit code, for the way back.
const LONG_CODE: u16 = 6 << 3;
const GDT_ENTRIES: usize = 7;

/// The vector by which a task ends the excursion.
const END_VECTOR: u8 = 0x20;
const VECTORS: usize = END_VECTOR as usize + 1;

/// Most memory that a task touches at its turn.
const MEMORY_BYTES: usize = 64 << 10;
/// Bytes of memory that one block of it has: eight cache lines.
pub const BLOCK_BYTES: u32 = 512;

const STACK_WORDS: usize = 128;
/// Most single steps that are noted.
const MAX_STEPS: usize = 64;

/// Where a single-step trap found the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// EIP: the next instruction.
    pub eip: u32,
    /// ESP there.
    pub esp: u32,
    /// CS there: its lowest two bits are the CPL.
    pub cs: u32,
}

/// What a switch needs of a task.
#[repr(C)]
struct Task {
    /// ESP where the task was switched out.
    esp: u32,
    /// End of its kernel stack.
    stack_top: u32,
    /// Its page directory.
    directory: u32,
    /// Address of the other one.
    next: u32,
}

#[repr(C, align(4096))]
struct Directory([u32; 1024]);

#[repr(C, align(64))]
struct Stack([u32; STACK_WORDS]);

#[repr(C, align(8))]
struct Pointer {
    limit: u16,
    base: [u16; 4],
}

/// The address of a field in RAM.
macro_rules! address {
    ($($field:tt)+) => {
        low_address() + offset_of!(Low, $($field)+) as u32
    };
}

/// Everything that the 32-bit code works with, and what is kept for the way back.
#[repr(C)]
struct Low {
    directories: [Directory; 2],
    memory: [[u8; MEMORY_BYTES]; 2],
    kernel_stacks: [Stack; 2],
    user_stacks: [Stack; 2],
    /// Where ESP is between SYSENTER and the trampoline's load, and during the changes of mode.
    small_stack: Stack,
    gdt: [u64; GDT_ENTRIES],
    idt: [u64; VECTORS],
    gdt_pointer: Pointer,
    idt_pointer: Pointer,
    /// The 32-bit task-state segment: ESP0 is word 1.
    tss: [u32; 26],
    tasks: [Task; 2],
    /// Address of the task that runs.
    current: u32,
    sysenter_cs: u32,
    sysenter_esp: u32,
    sysenter_eip: u32,
    /// What IRET enters the first task with: EIP, CS, EFLAGS, ESP, SS.
    first: [u32; 5],
    rounds: u32,
    blocks: u32,
    step_count: u32,
    steps: [Step; MAX_STEPS],
    /// CR3 of boot, whose tables map the first GiB at 0.
    boot_cr3: u64,
    saved_rsp: u64,
    saved_cr3: u64,
    saved_cr4: u64,
    saved_gdt: Pointer,
    saved_idt: Pointer,
}

const TSS_WORDS: usize = 26;
const TSS_ESP0: usize = 1;
const TSS_SS0: usize = 2;

struct Place(UnsafeCell<Low>);

// SAFETY: `run` alone reads and writes it, through the direct map, with interrupts off on the one CPU.
unsafe impl Sync for Place {}

/// Its address is that of its RAM.
#[unsafe(link_section = ".bss.legacy32")]
static LOW: Place = Place(UnsafeCell::new(Low {
    directories: [const { Directory([0; 1024]) }; 2],
    memory: [[0; MEMORY_BYTES]; 2],
    kernel_stacks: [const { Stack([0; STACK_WORDS]) }; 2],
    user_stacks: [const { Stack([0; STACK_WORDS]) }; 2],
    small_stack: Stack([0; STACK_WORDS]),
    gdt: [0; GDT_ENTRIES],
    idt: [0; VECTORS],
    gdt_pointer: Pointer { limit: 0, base: [0; 4] },
    idt_pointer: Pointer { limit: 0, base: [0; 4] },
    tss: [0; TSS_WORDS],
    tasks: [const {
        Task {
            esp: 0,
            stack_top: 0,
            directory: 0,
            next: 0,
        }
    }; 2],
    current: 0,
    sysenter_cs: 0,
    sysenter_esp: 0,
    sysenter_eip: 0,
    first: [0; 5],
    rounds: 0,
    blocks: 0,
    step_count: 0,
    steps: [Step { eip: 0, esp: 0, cs: 0 }; MAX_STEPS],
    boot_cr3: 0,
    saved_rsp: 0,
    saved_cr3: 0,
    saved_cr4: 0,
    saved_gdt: Pointer { limit: 0, base: [0; 4] },
    saved_idt: Pointer { limit: 0, base: [0; 4] },
}));

/// How a task's stack gets into ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `IA32_SYSENTER_ESP` is the stack of the task that runs; a switch writes it, and `IA32_SYSENTER_CS`, as in Linux 2.5.54.
    WrmsrPerSwitch,
    /// `IA32_SYSENTER_ESP` is a small stack, `IA32_SYSENTER_EIP` a [`Trampoline32`] that loads ESP0 of the TSS.
    ByTrampoline,
}

/// What the tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// One task calls a kernel that does nothing, so many times.
    NullCall {
        /// How often.
        rounds: u32,
    },
    /// Two tasks take turns: the first has so many, and touches memory at each.
    Switch {
        /// How often.
        rounds: u32,
        /// Blocks of [`BLOCK_BYTES`] that each reads at its turn.
        blocks: u32,
    },
    /// One task makes one call that does nothing with TF set.
    SingleStep,
}

/// What an excursion showed.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Ticks of the time-stamp counter from before it to after it.
    pub ticks: u64,
    /// CS of the task that ended it, from the frame of its INT.
    pub last_cs: u16,
    /// Turns that the second task has finished.
    pub other_rounds: u32,
    /// `IA32_SYSENTER_EIP` during it.
    pub first_instruction: u32,
    /// The first instruction that is the kernel's whatever the way.
    pub entry: u32,
    /// End of the first task's kernel stack.
    pub stack_top: u32,
    /// End of the small stack.
    pub small_stack_top: u32,
    /// Word below the small stack's end: 0 unless something was pushed there.
    pub small_stack_word: u32,
    steps: [Step; MAX_STEPS],
    step_count: usize,
}

impl Seen {
    /// Single steps, in order, if the workload was [`Workload::SingleStep`].
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps[..self.step_count]
    }
}

/// MSRs that the excursion changes or could: those of SYSENTER, and the bases that are no part of 32-bit segments.
const KEPT_REGISTERS: [u32; 6] = [
    SysenterCs::NUMBER,
    SysenterEsp::NUMBER,
    SysenterEip::NUMBER,
    FsBase::NUMBER,
    GsBase::NUMBER,
    KernelGsBase::NUMBER,
];

/// Leaves long mode, lets the tasks run, and comes back with everything as it was.
///
/// # Errors
///
/// The CPU has no SYSENTER in protected mode.
///
/// # Panics
///
/// If more blocks are asked for than there is memory.
pub fn run(way: Way, workload: Workload, _irq: &IrqOff) -> Result<Seen, Unsupported> {
    ProtectedModeSupport::on(&CpuFeatures::detect())?;
    let place = core::ptr::with_exposed_provenance_mut::<Low>(direct(low_address()));
    let entry = {
        // SAFETY: the direct map shows all of RAM, and `LOW` is used here alone, with interrupts off.
        let low = unsafe { &mut *place };
        prepare(low, way, workload)
    };
    // SAFETY: this is CPL 0, and the CPU has them all.
    let kept = KEPT_REGISTERS.map(|number| unsafe { Cpu.read(number) });
    let start = time_stamp();
    // SAFETY: 1. `_irq`. 2. `prepare` has filled it. 3. The boot tables were never freed, since they are part of the image.
    unsafe { code::cross(place) };
    let ticks = time_stamp() - start;
    for (number, value) in KEPT_REGISTERS.into_iter().zip(kept) {
        // SAFETY: it is what the register held.
        unsafe { Cpu.write(number, value) };
    }
    reload_task_register();

    // SAFETY: as above; the 32-bit code has ended.
    let low = unsafe { &*place };
    let first_top = low.tasks[0].stack_top;
    let rounds_left_of_other = word(low.tasks[1].esp + 12);
    Ok(Seen {
        ticks,
        // EIP, CS, EFLAGS, ESP and SS of the INT, below the end of the stack.
        last_cs: word(first_top - 16) as u16,
        other_rounds: 0_u32.wrapping_sub(rounds_left_of_other),
        first_instruction: low.sysenter_eip,
        entry,
        stack_top: first_top,
        small_stack_top: small_stack_top(),
        small_stack_word: word(small_stack_top() - 4),
        steps: low.steps,
        step_count: (low.step_count as usize).min(MAX_STEPS),
    })
}

/// Fills everything in. Returns the address of the kernel's entry.
fn prepare(low: &mut Low, way: Way, workload: Workload) -> u32 {
    low.gdt_pointer = Pointer::new(address!(gdt), GDT_ENTRIES * 8);
    low.idt_pointer = Pointer::new(address!(idt), VECTORS * 8);
    // Flat segments of 4 GiB, marked as accessed; the TSS; 64-bit code.
    low.gdt = [
        0,
        0x00cf_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00cf_fb00_0000_ffff,
        0x00cf_f300_0000_ffff,
        task_state_descriptor(address!(tss)),
        0x00af_9b00_0000_ffff,
    ];
    low.idt = [0; VECTORS];
    low.idt[usize::from(Vector::DEBUG.0)] = gate(code::address(code::note_step), 0);
    low.idt[usize::from(END_VECTOR)] = gate(code::address(code::into_long_mode), 3);
    for directory in &mut low.directories {
        /// Present, writable, for user mode, 4 MiB.
        const LARGE_USER_PAGE: u32 = 0x87;
        directory.0[0] = LARGE_USER_PAGE;
    }
    low.boot_cr3 = boot::tables();
    low.small_stack.0 = [0; STACK_WORDS];
    low.step_count = 0;

    let (rounds, blocks) = match workload {
        Workload::NullCall { rounds } => (rounds, 0),
        Workload::Switch { rounds, blocks } => (rounds, blocks),
        Workload::SingleStep => (1, 0),
    };
    assert!(
        blocks as usize * BLOCK_BYTES as usize <= MEMORY_BYTES,
        "a task has {MEMORY_BYTES} bytes of memory, asked for {blocks} blocks"
    );
    (low.rounds, low.blocks) = (rounds, blocks);
    let tops = [stack_top(0), stack_top(1)];
    for (number, (task, top)) in (0..).zip(low.tasks.iter_mut().zip(tops)) {
        *task = Task {
            esp: top - code::SWITCHED_WORDS * 4,
            stack_top: top,
            directory: address!(directories) + number * size_of::<Directory>() as u32,
            next: address!(tasks) + (1 - number) * size_of::<Task>() as u32,
        };
    }
    low.current = address!(tasks);
    // As if the second task had switched: what `code` pops, from the lowest word on. Its count of rounds runs down from 0.
    let user_top = address!(user_stacks) + 2 * size_of::<Stack>() as u32;
    let words = [
        0,
        blocks,
        address!(memory) + MEMORY_BYTES as u32,
        0,
        code::address(code::other_task),
        user_top,
    ];
    let (_, bottom) = low.kernel_stacks[1].0.split_at_mut(STACK_WORDS - words.len());
    bottom.copy_from_slice(&words);

    let is_stepped = workload == Workload::SingleStep;
    let task = if is_stepped { code::stepped_task } else { code::task };
    let first_user_top = address!(user_stacks) + size_of::<Stack>() as u32;
    low.first = [
        code::address(task),
        USER_CODE.into(),
        // Bit 1 is always set. IF stays clear: there are no handlers.
        2,
        first_user_top,
        USER_DATA.into(),
    ];
    low.tss = [0; TSS_WORDS];
    (low.tss[TSS_ESP0], low.tss[TSS_SS0]) = (tops[0], KERNEL_DATA.into());

    let entry = code::address(match (workload, way) {
        (Workload::Switch { .. }, Way::WrmsrPerSwitch) => code::switch_by_wrmsr,
        (Workload::Switch { .. }, Way::ByTrampoline) => code::switch_by_trampoline,
        _ => code::null_call,
    });
    let selector = sysenter_cs(Selector::from_bits(KERNEL_CODE));
    let selector = selector.unwrap_or_else(|error| panic!("SYSENTER: {error}"));
    low.sysenter_cs = selector.bits() as u32;
    (low.sysenter_esp, low.sysenter_eip) = match way {
        Way::WrmsrPerSwitch => (tops[0], entry),
        Way::ByTrampoline => (
            small_stack_top(),
            install_trampoline(address!(tss) + 4 * TSS_ESP0 as u32, entry),
        ),
    };
    entry
}

/// Generates the trampoline, and puts it into its place unless it is there. Returns its address.
fn install_trampoline(field: u32, entry: u32) -> u32 {
    let at = code::address(code::slot);
    let trampoline = Trampoline32::new(at, field, entry).unwrap_or_else(|error| panic!("trampoline: {error}"));
    let place = core::ptr::with_exposed_provenance_mut::<[u8; Trampoline32::SIZE]>(direct(at));
    // SAFETY: the slot is as long, and the direct map shows it.
    let old = unsafe { place.read() };
    if old != *trampoline.bytes() {
        sysenter::announce(at.into(), trampoline.bytes());
        // SAFETY: as above; it can be written there, and nothing executes it now. The changes of mode serialise.
        unsafe { place.write(*trampoline.bytes()) };
    }
    at
}

/// A gate to 32-bit code, interrupts off behind it.
const fn gate(address: u32, privilege: u64) -> u64 {
    let address = address as u64;
    (address & 0xffff) | (KERNEL_CODE as u64) << 16 | (0x8e00 | privilege << 13) << 32 | (address >> 16) << 48
}

/// The descriptor of an available 32-bit TSS.
const fn task_state_descriptor(base: u32) -> u64 {
    let base = base as u64;
    let limit = (TSS_WORDS * 4 - 1) as u64;
    limit | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24) << 56
}

impl Pointer {
    fn new(base: u32, bytes: usize) -> Self {
        let limit = u16::try_from(bytes - 1).expect("a table is shorter than 64 KiB");
        Self {
            limit,
            base: [base as u16, (base >> 16) as u16, 0, 0],
        }
    }
}

/// Loads TR with the kernel's TSS again, which is marked as busy since boot.
fn reload_task_register() {
    const BUSY: u64 = 1 << 41;
    let table = tables::sgdt().base.as_u64();
    let descriptor = layout::index(table) + usize::from(LAYOUT.tss().index()) * 8;
    let descriptor = core::ptr::with_exposed_provenance_mut::<u64>(descriptor);
    // SAFETY: the kernel's GDT is in memory that it can write, and has the entries of its layout.
    let value = unsafe { descriptor.read_volatile() };
    // SAFETY: as above; nobody else uses the table at this moment.
    unsafe { descriptor.write_volatile(value & !BUSY) };
    // SAFETY: the descriptor is that of an available TSS, the one that TR held.
    unsafe { tables::load_tss(LAYOUT.tss().into()) };
}

/// Where [`LOW`] is, in RAM and in protected mode.
fn low_address() -> u32 {
    LOW.0.get().addr() as u32
}

fn stack_top(number: u32) -> u32 {
    address!(kernel_stacks) + (number + 1) * size_of::<Stack>() as u32
}

fn small_stack_top() -> u32 {
    address!(small_stack) + size_of::<Stack>() as u32
}

/// The same place through the direct map.
fn direct(address: u32) -> usize {
    layout::index(DIRECT_MAP + u64::from(address))
}

/// A word that the 32-bit code has left.
fn word(address: u32) -> u32 {
    let place = core::ptr::with_exposed_provenance::<u32>(direct(address));
    // SAFETY: all addresses are those of aligned words in `LOW`, which the direct map shows.
    unsafe { place.read_volatile() }
}
