//! The smallest kernel on these crates: it enters user mode, serves two system calls, survives a bad one, and ends.
//!
//! Boot and page tables are the library's; everything about entry and exit is here.
#![no_std]
#![no_main]

use core::arch::naked_asm;
use core::cell::UnsafeCell;

use entry_core::address::{UserLimit, Width};
use entry_core::cpu::CpuFeatures;
use entry_core::kernel::{Baseline, WithSmap};
use entry_core::msr::{Cpu, GsBase, Register};
use entry_core::percpu::{IstStack, PerCpuHeader};
use entry_core::plan::{EntryPoints, Installed, SyscallPlan};
use entry_core::rflags::FlagMask;
use entry_core::stub::StubTable;
use entry_core::tss::TaskStateSegment;
use entry_core::vector::{Idt, Ist};
use entry_core::{IrqOff, Kernel, NoTracking, SegmentLayout, TrapFrame, UserEntry};
use entry_sysret::iret::{CodeSize, program_start};
use entry_sysret::{Refusal, RuleSet, Rules, SysretOrIret};
use example_os::device::exit::{Outcome, finish};
use example_os::memory::layout::index;
use example_os::memory::{AddressSpace, KernelStack, PAGE_SIZE, Placement, Protection};
use example_os::println;

struct Minimal;

impl Rules for Minimal {
    const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
}

// SAFETY: 1. to 3. `set_up` does all of it. 4. The target x86_64-unknown-none has neither a red zone nor SSE. 5. Boot sets all
// of CR4, and clears CET and FRED. 6. to 8. No handler changes a frame of the kernel's, or goes on after one.
unsafe impl Kernel for Minimal {
    type Exit = SysretOrIret<Self>;
    type Tracking = NoTracking;
    const LAYOUT: SegmentLayout = SegmentLayout::NATURAL;

    /// 1 prints a number, 2 ends the machine, all others are bad.
    fn syscall(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        match frame.rax() {
            1 => {
                println!("[minimal] the program says {}", frame.rdi());
                frame.set_return_value(0);
            }
            2 if frame.rdi() == 0 => finish(Outcome::Success),
            2 => finish(Outcome::InitFailed(format_args!("exit code {}", frame.rdi()))),
            _ => frame.set_return_value(ENOSYS.cast_unsigned()),
        }
        entry.into_irq_off()
    }

    fn user_exception(frame: &mut TrapFrame, _entry: UserEntry) -> IrqOff {
        finish(Outcome::InitFailed(format_args!("exception in user mode\n{frame}")))
    }

    fn user_interrupt(_frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        entry.into_irq_off()
    }

    fn kernel_exception(frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
        panic!("exception in the kernel\n{frame}");
    }

    fn kernel_interrupt(_frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        irq
    }

    fn paranoid(frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
        panic!("NMI, #MC or #DF\n{frame}");
    }

    fn work(_frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
        panic!("nothing sets the work flag");
    }

    fn refused(frame: &mut TrapFrame, refusal: Refusal, _irq: IrqOff) -> IrqOff {
        panic!("the exit refuses: {refusal}\n{frame}");
    }
}

const ENOSYS: i64 = -38;

/// What the CPU needs in memory that stays.
struct CpuArea {
    header: PerCpuHeader,
    stacks: [IstStack<8192>; 4],
    tss: TaskStateSegment,
    gdt: [u64; SegmentLayout::NATURAL_ENTRIES],
    idt: Option<Idt>,
}

struct Static(UnsafeCell<CpuArea>);

// SAFETY: one CPU, and `kernel_main` borrows it once.
unsafe impl Sync for Static {}

static CPU: Static = Static(UnsafeCell::new(CpuArea {
    header: PerCpuHeader::new(),
    stacks: [const { IstStack::new() }; 4],
    tss: TaskStateSegment::new(),
    gdt: [0; SegmentLayout::NATURAL_ENTRIES],
    idt: None,
}));

/// Sets the CPU up: segments, stacks, vectors, system-call registers.
///
/// # Safety
///
/// 1. CPL is 0 and interrupts are off.
/// 2. `stack` is the top of a mapped stack that nothing else uses.
unsafe fn set_up(area: &'static mut CpuArea, stack: u64) -> (StubTable, Installed) {
    let cpu = CpuFeatures::detect();
    let layout = Minimal::LAYOUT;
    let width = Width::Bits48;
    let (header, stacks): (&'static PerCpuHeader, &'static [IstStack<8192>; 4]) = (&area.header, &area.stacks);
    for (stack, ist) in stacks.iter().zip([Ist::Ist1, Ist::Ist2, Ist::Ist3, Ist::Ist4]) {
        area.tss.set_ist(ist, stack.bind(header));
    }
    area.tss.check(width).unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: condition 2; TR does not hold this TSS yet.
    unsafe { area.tss.set_rsp0(stack) };
    area.gdt = SegmentLayout::natural_gdt(area.tss.base(), TaskStateSegment::LIMIT);
    // SAFETY: the table is static and made for this layout; condition 1.
    unsafe { layout.load(&raw mut area.gdt) };
    header.bind();
    // SAFETY: it is the stack of RSP0.
    unsafe { header.set_kernel_stack(stack) };
    let base = GsBase::new(core::ptr::from_ref(header).addr() as u64, width);
    let base = base.unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: condition 1; the register exists, and the stubs expect a header there.
    unsafe { base.write(&mut Cpu) };
    let sets = [
        StubTable::of::<Minimal, WithSmap>(),
        StubTable::of::<Minimal, Baseline>(),
    ];
    let stubs = *StubTable::select(&sets, &cpu).unwrap_or_else(|error| panic!("{error}"));
    let idt = Idt::new(stubs.vectors, &layout).unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: condition 1; the stubs are mapped everywhere, and TR holds the TSS with its stacks.
    unsafe { area.idt.insert(idt).load() };
    let entries = EntryPoints {
        syscall: Some(stubs.syscall),
        syscall32: Some(stubs.syscall_compat),
        ..EntryPoints::default()
    };
    let plan = SyscallPlan::new(&layout, FlagMask::REQUIRED, &entries, &cpu, width);
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: condition 1; the features are this CPU's, the stubs are made for this layout and mask, the GDT is loaded.
    let installed = unsafe { plan.install(&mut Cpu) };
    (stubs, installed.unwrap_or_else(|error| panic!("{error}")))
}

/// Says 42, makes a bad call, and exits with 0 if that was refused as it should be.
#[unsafe(naked)]
unsafe extern "sysv64" fn program() {
    naked_asm!(
        "mov eax, 1",
        "mov edi, 42",
        "syscall",
        "mov eax, 999",
        "syscall",
        "xor edi, edi",
        "cmp rax, {enosys}",
        "setne dil",
        "mov eax, 2",
        "syscall",
        "ud2",
        enosys = const ENOSYS,
    )
}

#[unsafe(no_mangle)]
extern "Rust" fn kernel_main() -> ! {
    const CODE: u64 = 0x40_0000;
    const PROGRAM_BYTES: usize = 64;
    let stack = KernelStack::new().unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: this function runs once, and nothing else uses the static.
    let area = unsafe { &mut *CPU.0.get() };
    // SAFETY: 1. boot hands over so. 2. The stack is new, and lives as long as this function, which never returns.
    let (stubs, installed) = unsafe { set_up(area, stack.top()) };

    let mut space = AddressSpace::new().unwrap_or_else(|error| panic!("{error}"));
    let executable = Protection::READ.union(Protection::EXECUTE);
    let mapped = space.mmap(CODE, PAGE_SIZE, executable, Placement::Fixed);
    mapped.unwrap_or_else(|error| panic!("{error:?}"));
    #[expect(clippy::fn_to_numeric_cast_any, reason = "the program is read, not called")]
    let start = program as *const u8;
    // SAFETY: the program is kernel text, which goes on behind it.
    let code = unsafe { core::slice::from_raw_parts(start, PROGRAM_BYTES) };
    space.write(CODE, code).unwrap_or_else(|error| panic!("{error:?}"));
    // SAFETY: the kernel is mapped in every space, and this one lives as long as this function.
    unsafe { space.activate() };

    let frame = program_start(&Minimal::RULES, CodeSize::Bits64, CODE, 0).unwrap_or_else(|error| panic!("{error}"));
    let top = core::ptr::with_exposed_provenance_mut::<TrapFrame>(index(stack.top())).wrapping_sub(1);
    // SAFETY: the stack is mapped and nothing uses it.
    unsafe { top.write(frame) };
    // SAFETY: boot hands over with interrupts off.
    let irq = unsafe { IrqOff::assume() };
    // SAFETY: 1. the frame is at the top of the stack that was set up, and this runs on another. 2. `set_up`.
    unsafe { (stubs.return_to_user)(top, irq, &installed) }
}
