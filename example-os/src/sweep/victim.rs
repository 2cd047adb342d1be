//! The program whose registers must survive: an address space with one page of code, and what each event expects.

use entry_core::percpu::SplitTables;
use entry_core::rflags::Rflags;
use entry_core::{IrqOff, Kernel, TrapFrame};
use entry_sysenter::encode;
use entry_sysenter::user_page::Entry32;
use entry_sysret::landing::LandingPage;
use x86_64::instructions::segmentation::{SS, Segment};
use x86_64::instructions::tables::sgdt;

use super::handler::{EVENT_VECTOR, SYSTEM_CALL_VECTOR};
use super::launch::{Way as Launch, kernel_invalid_opcode, kernel_nothing};
use super::registers::Registers;
use crate::entry::compat;
use crate::entry::sysenter::Way;
use crate::entry::variant::{Variant, entry_of};
use crate::entry::{self, OsKernel, PerCpu, SyscallEntry, options};
use crate::experiment;
use crate::memory::layout::CALL_PAGE_32;
use crate::memory::table::{ENTRIES, Entry, Flags, Slot, USER_TABLE, twin};
use crate::memory::{AddressSpace, DIRECT_MAP, Frame, KernelStack, PAGE_SIZE, Placement, Protection, kernel, layout};
use crate::process::{FaultExit, current};

/// What the victim does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// SYSCALL: `getppid`.
    Syscall,
    /// SYSCALL through the null kernel's full stub: what the benchmarks time.
    Null,
    /// The same, left by IRET.
    NullIret,
    /// The same with a lean frame.
    Lean,
    /// The same with work pending, so that the lean frame becomes a full one.
    LeanWork,
    /// The same with a stub that zeroes registers.
    Clearing,
    /// The same with the least stub that there can be.
    Floor,
    /// SYSCALL through the null kernel's stub with interrupts on.
    IrqsOn,
    /// The same with work pending, so that it turns them off on the way out.
    IrqsOnWork,
    /// The same with NT, which SYSRET doesn't restore: another reason for that way.
    IrqsOnSlow,
    /// INT 0x80, on a CPU with interrupts on at SYSCALL.
    IrqsOnInt80,
    /// A maskable interrupt that is pending when user mode is entered, there.
    IrqsOnInterrupt,
    /// A maskable interrupt in ring 0, there.
    IrqsOnKernelInterrupt,
    /// The vector of INT 0x80 in ring 0, there.
    IrqsOnKernelInt80,
    /// SYSENTER: `getppid`, the stack loaded from the per-CPU header, with none of the flags that its stub repairs.
    SysenterQuiet,
    /// The same with NT, AC and DF.
    Sysenter,
    /// The same with the stack in `IA32_SYSENTER_ESP`.
    SysenterDirect,
    /// The same through a trampoline that loads the stack from the TSS, whose address it has as a displacement.
    SysenterTrampoline,
    /// The same through one that has it as a number.
    SysenterAbsolute,
    /// The same through one that swaps GS and loads the stack from the header.
    SysenterSwapgs,
    /// The same with the stack loaded from the TSS, at a fixed distance from `IA32_SYSENTER_ESP`.
    SysenterTss,
    /// [`Event::Sysenter`] with TF, so that #DB comes at each instruction up to that which clears it.
    SysenterStepped,
    /// The same through the trampoline that swaps GS.
    SysenterSteppedSwapgs,
    /// SYSCALL of 64-bit code in a process that has 32-bit code.
    Code32Syscall,
    /// SYSENTER there: by the stub that takes every caller for 32-bit code, and returns to where that is.
    Sysenter32,
    /// SYSENTER by the stub that serves both, in a process without 32-bit code.
    SysenterBoth64,
    /// The same in one that has it.
    SysenterBoth32,
    /// SYSCALL of 32-bit code, where the CPU has that.
    Syscall32,
    /// INT 0x80 with a number that nothing answers to.
    Int80,
    /// UD2, skipped by the kernel.
    InvalidOpcode,
    /// INT3.
    Breakpoint,
    /// A store to a page that is not there yet.
    PageFault,
    /// The same, left through the landing page where the stack allows it.
    Landing,
    /// A maskable interrupt that is pending when user mode is entered.
    Interrupt,
    /// An instruction breakpoint in user mode: a paranoid vector from user mode.
    UserDebug,
    /// An NMI that is pending when user mode is entered: the other one.
    UserNmi,
    /// SYSCALL with an instruction breakpoint at the stub's first instruction: a paranoid vector in ring 0, under user GS.
    EntryDebug,
    /// INT3, with the user's stack segment gone when the kernel returns: a fault of IRETQ.
    BadIret,
    /// UD2 in ring 0.
    KernelInvalidOpcode,
    /// A maskable interrupt in ring 0.
    KernelInterrupt,
    /// The vector of INT 0x80 in ring 0, as a device could send it.
    KernelInt80,
    /// An instruction breakpoint in ring 0, under kernel GS.
    KernelDebug,
}

/// Whose stubs are swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Those that processes have, and those of the experiments.
    Usual,
    /// Those with FSGSBASE, CLEAR and VERW. Programs may write GS base themselves then.
    Guarded,
    /// Those with KPTI: user mode has tables without the kernel.
    Split,
    /// The same with process-context identifiers: no load of CR3 by a stub drops a translation.
    SplitWithPcid,
}

impl Set {
    /// What leads to them.
    pub(super) const fn events(self) -> &'static [Event] {
        match self {
            Self::Usual => &Event::ALL,
            Self::Guarded | Self::Split | Self::SplitWithPcid => &[
                Event::Syscall,
                Event::Int80,
                Event::InvalidOpcode,
                Event::Breakpoint,
                Event::PageFault,
                Event::Landing,
                Event::Interrupt,
                Event::UserDebug,
                Event::UserNmi,
                Event::EntryDebug,
                Event::BadIret,
                Event::KernelInvalidOpcode,
                Event::KernelInterrupt,
                Event::KernelInt80,
                Event::KernelDebug,
            ],
        }
    }

    /// Whether it is swept with such a stack and base. What differs from the usual set is about the base, or about memory that
    /// the kernel alone has, like what the base is forged to be.
    pub(super) fn has_scene(self, stack: Stack, base: Base) -> bool {
        self == Self::Usual || stack == Stack::Good || base == Base::Forged
    }

    /// What SYSCALL leads to, with an event of the set.
    pub(super) fn syscall_entry(self, event: Event) -> SyscallEntry {
        match self {
            Self::Usual => event.syscall_entry(),
            Self::Guarded => SyscallEntry::guarded::<OsKernel>(),
            Self::Split => SyscallEntry::split::<OsKernel>(),
            Self::SplitWithPcid => SyscallEntry::split_with_pcid(),
        }
    }

    /// Whether user mode has tables of its own.
    pub(super) const fn is_split(self) -> bool {
        matches!(self, Self::Split | Self::SplitWithPcid)
    }

    /// CR3 in the kernel, and what stubs load for a program whose root table is at `root`, or 0 if they load nothing.
    const fn tables(self, root: u64) -> (u64, u64) {
        const KERNEL_PCID: u64 = options::KERNEL_PCID;
        let user = twin(Frame::containing(root)).start();
        match self {
            Self::Usual | Self::Guarded => (root, 0),
            Self::Split => (root, user),
            Self::SplitWithPcid => (
                root | KERNEL_PCID,
                user | KERNEL_PCID | SplitTables::USER_PCID | SplitTables::NO_FLUSH,
            ),
        }
    }

    /// The first of the slots.
    pub(super) fn vector_stubs(self) -> u64 {
        match self {
            Self::Usual => entry::vector_stubs(),
            Self::Guarded => entry::guarded_vector_stubs(),
            Self::Split => entry::split_vector_stubs(),
            Self::SplitWithPcid => entry::split_with_pcid_vector_stubs(),
        }
    }
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 42] = [
        Self::Syscall,
        Self::Null,
        Self::NullIret,
        Self::Lean,
        Self::LeanWork,
        Self::Clearing,
        Self::Floor,
        Self::IrqsOn,
        Self::IrqsOnWork,
        Self::IrqsOnSlow,
        Self::IrqsOnInt80,
        Self::IrqsOnInterrupt,
        Self::IrqsOnKernelInterrupt,
        Self::IrqsOnKernelInt80,
        Self::SysenterQuiet,
        Self::Sysenter,
        Self::SysenterDirect,
        Self::SysenterTrampoline,
        Self::SysenterAbsolute,
        Self::SysenterSwapgs,
        Self::SysenterTss,
        Self::SysenterStepped,
        Self::SysenterSteppedSwapgs,
        Self::Code32Syscall,
        Self::Sysenter32,
        Self::SysenterBoth64,
        Self::SysenterBoth32,
        Self::Syscall32,
        Self::Int80,
        Self::InvalidOpcode,
        Self::Breakpoint,
        Self::PageFault,
        Self::Landing,
        Self::Interrupt,
        Self::UserDebug,
        Self::UserNmi,
        Self::EntryDebug,
        Self::BadIret,
        Self::KernelInvalidOpcode,
        Self::KernelInterrupt,
        Self::KernelInt80,
        Self::KernelDebug,
    ];

    /// The instruction, in user mode.
    const fn code(self) -> &'static [u8] {
        match self {
            _ if self.is_syscall() => &[0x0f, 0x05],
            _ if self.needs_sysenter() => &encode::SYSENTER,
            Self::Int80 | Self::IrqsOnInt80 => &[0xcd, 0x80],
            Self::InvalidOpcode => &[0x0f, 0x0b],
            Self::Breakpoint | Self::BadIret => &[0xcc],
            // mov [rbx], al
            Self::PageFault | Self::Landing => &[0x88, 0x03],
            // nop
            _ => &[0x90],
        }
    }

    const fn is_syscall(self) -> bool {
        matches!(
            self,
            Self::Syscall
                | Self::Null
                | Self::NullIret
                | Self::Lean
                | Self::LeanWork
                | Self::Clearing
                | Self::Floor
                | Self::IrqsOn
                | Self::IrqsOnWork
                | Self::IrqsOnSlow
                | Self::Code32Syscall
                | Self::Syscall32
                | Self::EntryDebug
        )
    }

    /// Whether the CPU has what leads to it.
    pub(super) fn is_possible(self, cpu: &PerCpu, irq: &IrqOff) -> bool {
        match self {
            Self::Syscall32 => compat::entry() == Entry32::Syscall,
            _ => !self.needs_sysenter() || cpu.has_sysenter(irq),
        }
    }

    /// Whether the CPU has to have SYSENTER for it.
    const fn needs_sysenter(self) -> bool {
        self.is_sysenter() || self.is_sysenter32()
    }

    /// Whether it is a system call by SYSENTER that returns to 32-bit code.
    const fn is_sysenter32(self) -> bool {
        matches!(self, Self::Sysenter32 | Self::SysenterBoth32)
    }

    /// Whether SYSENTER leads to the stub that serves both kinds of processes.
    pub(super) const fn has_stub_for_both(self) -> bool {
        matches!(self, Self::SysenterBoth64 | Self::SysenterBoth32)
    }

    /// Whether the process has 32-bit code.
    const fn is_of_code32(self) -> bool {
        matches!(self, Self::Code32Syscall | Self::Syscall32) || self.is_sysenter32()
    }

    /// Whether it is a system call by SYSENTER, of 64-bit code.
    const fn is_sysenter(self) -> bool {
        self.sysenter_way().is_some()
    }

    /// How SYSENTER gets at the stack, if that is what happens.
    pub(super) const fn sysenter_way(self) -> Option<Way> {
        Some(match self {
            Self::SysenterQuiet | Self::Sysenter | Self::SysenterStepped | Self::SysenterBoth64 => Way::FromHeader,
            Self::SysenterDirect => Way::WrmsrPerSwitch,
            Self::SysenterTrampoline => Way::ByTrampoline,
            Self::SysenterAbsolute => Way::ByAbsoluteTrampoline,
            Self::SysenterSwapgs | Self::SysenterSteppedSwapgs => Way::BySwapgsTrampoline,
            Self::SysenterTss => Way::AtFixedOffset,
            _ => return None,
        })
    }

    /// From one count of a sweep to the next. The steps into SYSENTER each have the whole way of a #DB, the same every time.
    pub(super) const fn stride(self) -> usize {
        /// Prime, so that it meets the ways at other places each time.
        const SPARSE: usize = 61;
        if self.is_stepped() { SPARSE } else { 1 }
    }

    /// Whether its way depends on the user's RSP and GS base. That by SYSENTER never has the user's RSP.
    pub(super) fn has_scene(self, stack: Stack, base: Base) -> bool {
        match self {
            _ if self.is_in_kernel() => false,
            _ if self.is_stepped() => stack == Stack::Good && base == Base::Forged,
            _ if self.needs_sysenter() => stack == Stack::Good,
            _ => true,
        }
    }

    /// Whether TF is set before it.
    pub(super) const fn is_stepped(self) -> bool {
        matches!(self, Self::SysenterStepped | Self::SysenterSteppedSwapgs)
    }

    /// Whether SYSCALL would leave interrupts on.
    pub(super) const fn has_irqs_on(self) -> bool {
        matches!(
            self,
            Self::IrqsOn
                | Self::IrqsOnWork
                | Self::IrqsOnSlow
                | Self::IrqsOnInt80
                | Self::IrqsOnInterrupt
                | Self::IrqsOnKernelInterrupt
                | Self::IrqsOnKernelInt80
        )
    }

    /// Whether work is pending from the start.
    pub(super) const fn has_work(self) -> bool {
        matches!(self, Self::LeanWork | Self::IrqsOnWork)
    }

    /// What SYSCALL leads to.
    fn syscall_entry(self) -> SyscallEntry {
        if self.is_of_code32() {
            return entry_of(Variant::Code32);
        }
        let set = match self {
            Self::Null => 1,
            Self::NullIret => 2,
            Self::Lean | Self::LeanWork => 3,
            Self::Clearing => 4,
            Self::Floor => 5,
            _ if self.has_irqs_on() => 7,
            _ => 0,
        };
        experiment::stub_set(set).expect("the sets have numbers")
    }

    /// The victim's flags. The lean exit and that with interrupts on do not restore NT.
    const fn flags(self) -> u64 {
        match self {
            Self::Lean | Self::LeanWork | Self::IrqsOn | Self::IrqsOnWork => FLAGS & !Rflags::NESTED_TASK.bits(),
            Self::SysenterQuiet => QUIET_FLAGS,
            _ if self.is_stepped() => FLAGS | Rflags::TRAP.bits(),
            _ => FLAGS,
        }
    }

    /// Whether the victim runs in ring 0.
    #[must_use]
    pub const fn is_in_kernel(self) -> bool {
        matches!(
            self,
            Self::KernelInvalidOpcode
                | Self::KernelInterrupt
                | Self::IrqsOnKernelInterrupt
                | Self::IrqsOnKernelInt80
                | Self::KernelInt80
                | Self::KernelDebug
        )
    }

    /// Whether it enters through #DB itself, so that no other #DB may come before its frame has left the stack that
    /// both have.
    #[must_use]
    pub const fn is_debug(self) -> bool {
        matches!(self, Self::UserDebug | Self::EntryDebug | Self::KernelDebug) || self.is_stepped()
    }

    /// Whether it stores to a page that is not there.
    pub(super) const fn demands_page(self) -> bool {
        matches!(self, Self::PageFault | Self::Landing)
    }

    pub(super) const fn launch(self) -> Launch {
        match self {
            // TF counts from the instruction behind IRET on.
            Self::UserNmi => Launch::Iret,
            _ if self.is_stepped() => Launch::Iret,
            _ if self.is_in_kernel() => Launch::Kernel,
            _ => Launch::Sysret,
        }
    }

    /// Vector of the interrupt that has to be pending, if any.
    pub(super) const fn pending_vector(self) -> Option<u8> {
        match self {
            Self::Interrupt | Self::KernelInterrupt | Self::IrqsOnInterrupt | Self::IrqsOnKernelInterrupt => {
                Some(EVENT_VECTOR)
            }
            Self::KernelInt80 | Self::IrqsOnKernelInt80 => Some(SYSTEM_CALL_VECTOR),
            _ => None,
        }
    }

    /// How many events the hook sees of it. System calls, page faults and skipped opcodes never come that far, and an NMI
    /// is counted as such.
    pub(super) const fn arrivals(self) -> u32 {
        match self {
            Self::EntryDebug => 1,
            Self::Int80 | Self::IrqsOnInt80 | Self::InvalidOpcode | Self::UserNmi => 0,
            _ if self.demands_page() => 0,
            _ if self.is_syscall() || self.needs_sysenter() => 0,
            _ => 1,
        }
    }

    /// Whether RCX and R11 are loaded by the victim's own code, since the way in can't.
    const fn loads_rcx_and_r11(self) -> bool {
        !matches!(
            self,
            Self::Interrupt | Self::IrqsOnInterrupt | Self::UserNmi | Self::Syscall32
        ) && !self.is_sysenter32()
            && !self.is_in_kernel()
            && !self.is_stepped()
    }

    /// The victim's code before the event: loads of RCX and R11, as SYSENTER wants them or with any values.
    fn preparation(self) -> impl Iterator<Item = u8> {
        let (mut stack, mut address, mut any) = (None, None, None);
        if self.loads_rcx_and_r11() && self.is_sysenter() {
            stack = Some(encode::MOV_RCX_RSP);
            address = Some(encode::lea_r11_rip(SYSENTER_BYTES));
        } else if self.loads_rcx_and_r11() {
            any = Some(load_rcx_and_r11());
        }
        let sysenter = stack.into_iter().flatten().chain(address.into_iter().flatten());
        sysenter.chain(any.into_iter().flatten())
    }
}

/// Length of SYSENTER, behind which it returns.
const SYSENTER_BYTES: u8 = 2;
const _: () = assert!(encode::SYSENTER.len() == SYSENTER_BYTES as usize);

/// `movabs rcx, RCX`, `movabs r11, R11`.
fn load_rcx_and_r11() -> [u8; 20] {
    let mut code = [0; 20];
    code[..2].copy_from_slice(&[0x48, 0xb9]);
    code[2..10].copy_from_slice(&RCX.to_le_bytes());
    code[10..12].copy_from_slice(&[0x49, 0xbb]);
    code[12..].copy_from_slice(&R11.to_le_bytes());
    code
}

/// What the user's RSP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// In a page that is mapped.
    Good,
    /// In a page that is not.
    Unmapped,
    /// In the kernel's memory.
    Kernel,
    /// Not canonical.
    NonCanonical,
}

/// What the user's GS base is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// An address of the user half.
    Harmless,
    /// An address of the kernel half, where nothing is mapped.
    KernelLooking,
    /// The very address of the per-CPU structure.
    Forged,
}

impl Stack {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Good, Self::Unmapped, Self::Kernel, Self::NonCanonical];
}

impl Base {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Harmless, Self::KernelLooking, Self::Forged];
}

const CODE: u64 = 0x1000_0000;
/// Bytes of code for each event.
const CODE_BYTES: usize = 64;
const STACK: u64 = 0x2000_0000;
const DEMAND: u64 = 0x3000_0000;
/// A user address where nothing is ever mapped.
const NOWHERE: u64 = 0x4000_0000;
const FS_BASE: u64 = 0x5000_5000;
const HARMLESS_GS: u64 = 0x6000_6000;
/// In the hole between the direct map and the image.
const KERNEL_GS: u64 = 0xffff_f000_1234_5000;
const NON_CANONICAL: u64 = 0x8000_0000_0000_1000;

/// RCX and R11 where the victim loads them.
const RCX: u64 = 0xcccc_0c0c_cccc_0c0c;
const R11: u64 = 0xbbbb_0b0b_bbbb_0b0b;

/// All flags that a program can have set and that change nothing for it here: arithmetic, DF, NT, AC, ID; and IF.
const FLAGS: u64 = Rflags::ALWAYS_ONE
    .union(Rflags::ARITHMETIC)
    .union(Rflags::INTERRUPT_ENABLE)
    .union(Rflags::DIRECTION)
    .union(Rflags::NESTED_TASK)
    .union(Rflags::ALIGNMENT_CHECK)
    .union(Rflags::IDENTIFICATION)
    .bits();

/// The same without those that SYSENTER's stub repairs.
const QUIET_FLAGS: u64 =
    FLAGS & !(Rflags::DIRECTION.bits() | Rflags::NESTED_TASK.bits() | Rflags::ALIGNMENT_CHECK.bits());

const GETPPID: u64 = 110;
/// The same for 32-bit code.
const GETPPID_32: u64 = 64;
/// Where SYSENTER returns to in 32-bit code.
const LANDING_32: u64 = compat::landing();
/// -ENOSYS.
const NO_SUCH_CALL: u64 = 38_u64.wrapping_neg();

/// Words around a stack pointer that must not change.
const WATCHED: usize = 128;
const PATTERN: u64 = 0x5eed_5eed_5eed_5eed;
/// Where in them a good stack pointer points.
const RSP_OFFSET: usize = WATCHED * 4;
/// The first of the three words that are on a good stack after a landing.
const LANDING_WORD: usize = (RSP_OFFSET - LANDING_BYTES) / 8;
/// The red zone and the words below it.
const LANDING_BYTES: usize = 152;

/// Kernel memory that a user RSP points into.
#[repr(align(4096))]
struct Decoy(core::cell::UnsafeCell<[u64; WATCHED]>);

// SAFETY: read and written through raw pointers alone, by one CPU.
unsafe impl Sync for Decoy {}

static DECOY: Decoy = Decoy(core::cell::UnsafeCell::new([PATTERN; WATCHED]));

/// The victim.
#[derive(Debug)]
pub(super) struct Victim {
    /// The stack of entries from user mode.
    _stack: KernelStack,
    /// The stack of a victim in ring 0.
    kernel_stack: KernelStack,
    /// The page of [`STACK`], through the direct map.
    user_stack: u64,
    landing: LandingPage,
    /// CR3 of the kernel.
    cr3: u64,
    /// What is loaded for the program, or 0 if it has the kernel's, too.
    tables: u64,
}

/// A launch: the frame to enter with and what is to be seen at the end.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) frame: TrapFrame,
    /// CR3 to enter with, or 0 for that which is loaded.
    pub(super) tables: u64,
    pub(super) fs_base: u64,
    pub(super) gs_base: u64,
    /// Address of the event's instruction, for a breakpoint there.
    pub(super) event: u64,
    /// RIP of the INT3's frame.
    pub(super) end: u64,
    pub(super) wanted: Registers,
    /// What must not change.
    watched: Option<u64>,
    /// The words that landing leaves on the stack.
    landed: Option<[u64; 3]>,
}

/// Loads SS, which entries from user mode leave null, for a victim in ring 0.
pub(super) fn load_stack_segment() {
    // SAFETY: the selector is that of a writable data segment of DPL 0.
    unsafe { SS::set_reg(<OsKernel>::LAYOUT.kernel_data().into()) };
}

/// Sets or clears the present bit of the user's data descriptor.
pub(super) fn set_user_data_present(is_present: bool) {
    const PRESENT: u64 = 1 << 47;
    let selector = <OsKernel>::LAYOUT.user_data().bits();
    let table = sgdt().base.as_u64();
    let address = layout::index(table) + usize::from(selector & !7);
    let descriptor = core::ptr::with_exposed_provenance_mut::<u64>(address);
    // SAFETY: the GDT is a static of the kernel, in writable memory, and has the selectors of its layout.
    let value = unsafe { descriptor.read_volatile() };
    let value = if is_present { value | PRESENT } else { value & !PRESENT };
    // SAFETY: as above; nobody else uses the table at this moment.
    unsafe { descriptor.write_volatile(value) };
}

impl Victim {
    /// Makes it the current process's program.
    pub(super) fn new(set: Set, irq: &IrqOff) -> Self {
        let mut space = AddressSpace::new().expect("memory for the address space");
        let mut map = |address, protection| {
            let mapped = space.mmap(address, PAGE_SIZE, protection, Placement::FixedNoReplace);
            mapped.expect("free address");
        };
        map(CODE, Protection::READ | Protection::EXECUTE);
        // In the place of the page by which 32-bit code would enter.
        map(CALL_PAGE_32, Protection::READ | Protection::EXECUTE);
        map(STACK, Protection::READ | Protection::WRITE);
        map(DEMAND, Protection::READ | Protection::WRITE);
        for event in Event::ALL {
            let mut code = [0xcc; CODE_BYTES];
            let bytes = event.preparation().chain(event.code().iter().copied());
            for (place, byte) in code.iter_mut().zip(bytes) {
                *place = byte;
            }
            space.write(code_address(event), &code).expect("the page is mapped");
        }
        let traps = [0xcc; CODE_BYTES];
        space.write(LANDING_32, &traps).expect("the page is mapped");
        let pattern = PATTERN.to_le_bytes();
        for word in 0..PAGE_SIZE / 8 {
            space.write(STACK + word * 8, &pattern).expect("the page is mapped");
        }
        let user_stack = DIRECT_MAP + space.translate(STACK).expect("the page was written").physical;
        let stack = KernelStack::new().expect("memory for a stack");
        let cpu = PerCpu::current(irq);
        let root = space.cr3();
        // SAFETY: 1. it is this CPU's. 2. The space maps the kernel, and lives in the idle thread's slot for good.
        unsafe { cpu.load_cr3(root) };
        *current().space().lock(irq) = Some(space);
        // SAFETY: 1. the stack is new, lives as long as the victim, and no other thread runs.
        unsafe { cpu.set_kernel_stack(stack.top()) };
        current().set_skips_invalid_opcode(true);
        let landing = experiment::map_landing_page(current(), irq).expect("memory for a landing page");
        if set.is_split() {
            kernel::stop_global_pages();
            cpu.take_syscall_entry(set.syscall_entry(Event::Syscall), irq);
            forbid_execution(Frame::containing(root));
            // SAFETY: 1. as for `load_cr3`; every root table has a twin.
            unsafe { cpu.load_tables(root) };
        }
        let (cr3, tables) = set.tables(root);
        Self {
            _stack: stack,
            landing,
            cr3,
            tables,
            kernel_stack: KernelStack::new().expect("memory for a stack"),
            user_stack,
        }
    }

    /// The frame for an event, and what is to follow from it.
    pub(super) fn start(&self, set: Set, event: Event, stack: Stack, base: Base, irq: &IrqOff) -> Start {
        let mut frame = TrapFrame::zeroed();
        let pattern = |number: u64| (number * 0x0101_0101_0101_0101) ^ 0x8000_0000_8000_0000;
        frame.set_rax(pattern(1));
        frame.set_rbx(pattern(2));
        frame.set_rcx(pattern(3));
        frame.set_rdx(pattern(4));
        frame.set_rsi(pattern(5));
        frame.set_rdi(pattern(6));
        frame.set_rbp(pattern(7));
        frame.set_r8(pattern(8));
        frame.set_r9(pattern(9));
        frame.set_r10(pattern(10));
        frame.set_r11(pattern(11));
        frame.set_r12(pattern(12));
        frame.set_r13(pattern(13));
        frame.set_r14(pattern(14));
        frame.set_r15(pattern(15));
        frame.set_rflags(event.flags());
        let header = core::ptr::from_ref(PerCpu::current(irq)).addr() as u64;
        let gs_base = match base {
            Base::Harmless => HARMLESS_GS,
            Base::KernelLooking => KERNEL_GS,
            Base::Forged => header,
        };
        if event.is_in_kernel() {
            return self.start_in_kernel(event, frame, gs_base, header);
        }

        let (rsp, watched) = match stack {
            Stack::Good => (STACK + RSP_OFFSET as u64, Some(self.user_stack)),
            Stack::Unmapped => (NOWHERE, None),
            Stack::Kernel => {
                let decoy = DECOY.0.get().expose_provenance() as u64;
                (decoy + RSP_OFFSET as u64, Some(decoy))
            }
            Stack::NonCanonical => (NON_CANONICAL, None),
        };
        frame.set_rsp(rsp);
        frame.set_rip(code_address(event));
        frame.set_cs(<OsKernel>::LAYOUT.user_code64().bits().into());
        frame.set_ss(<OsKernel>::LAYOUT.user_data().bits().into());
        match event {
            Event::Syscall32 => {
                frame.set_rax(GETPPID_32);
                frame.set_cs(code32().into());
            }
            _ if event.is_syscall() || event.is_sysenter() => frame.set_rax(GETPPID),
            _ if event.is_sysenter32() => {
                frame.set_rax(GETPPID_32);
                frame.set_rbp(rsp);
            }
            _ if event.demands_page() => frame.set_rbx(DEMAND),
            _ => {}
        }
        let instruction = code_address(event) + event.preparation().count() as u64;
        let after = instruction + event.code().len() as u64;
        if event.is_stepped() {
            frame.set_rcx(rsp);
            frame.set_r11(after);
        }

        let mut last = frame.clone();
        last.set_rip(after + 1);
        if event.loads_rcx_and_r11() {
            last.set_rcx(RCX);
            last.set_r11(R11);
        } else if event.launch() == Launch::Sysret {
            last.set_rcx(frame.rip());
            last.set_r11(event.flags());
        }
        match event {
            // Left by IRET, which restores them.
            _ if event.is_stepped() => last.set_rax(current().parent().into()),
            _ if event.is_syscall() || event.is_sysenter() => {
                last.set_rax(current().parent().into());
                last.set_rcx(after);
                last.set_r11(event.flags());
            }
            Event::Int80 | Event::IrqsOnInt80 => last.set_rax(NO_SUCH_CALL),
            _ => {}
        }
        let landed = (event == Event::Landing && stack == Stack::Good).then_some([RCX, R11, instruction]);
        if stack == Stack::Good {
            self.clear_landing_words();
        }
        current().set_fault_exit(match event {
            Event::Landing => FaultExit::Landing(self.landing),
            _ => FaultExit::Iret,
        });
        let mut end = after + 1;
        if event == Event::Syscall32 {
            last.set_rsp(rsp & u64::from(u32::MAX));
        }
        if event.is_sysenter32() {
            end = LANDING_32 + 1;
            last = as_32_bit_code(&last, end);
        }
        let event_address = match event {
            Event::EntryDebug => set.syscall_entry(event).address(),
            Event::UserDebug => instruction,
            _ => 0,
        };
        Start {
            wanted: Registers::new(&last, FS_BASE, header, gs_base),
            frame,
            tables: self.tables,
            fs_base: FS_BASE,
            gs_base,
            event: event_address,
            end,
            watched,
            landed,
        }
    }

    /// Makes the words that landing writes what the rest of the page is.
    fn clear_landing_words(&self) {
        let first = core::ptr::with_exposed_provenance_mut::<u64>(layout::index(self.user_stack) + LANDING_WORD * 8);
        // SAFETY: they lie in a page frame of the victim, which does not run.
        unsafe { first.cast::<[u64; 3]>().write_volatile([PATTERN; 3]) };
    }

    /// CR3 in the kernel, once it has been entered.
    pub(super) const fn cr3(&self) -> u64 {
        self.cr3
    }

    /// The landing page.
    pub(super) const fn landing(&self) -> LandingPage {
        self.landing
    }

    fn start_in_kernel(&self, event: Event, mut frame: TrapFrame, gs_base: u64, header: u64) -> Start {
        let flags = FLAGS & !Rflags::NESTED_TASK.bits();
        let (code, length) = match event {
            Event::KernelInvalidOpcode => (address_of(kernel_invalid_opcode), 2),
            _ => (address_of(kernel_nothing), 1),
        };
        let top = self.kernel_stack.top() - 256;
        let words = core::ptr::with_exposed_provenance_mut::<[u64; 2]>(layout::index(top - 16));
        // SAFETY: the words lie in a stack that is the victim's own.
        unsafe { words.write([flags, code]) };
        frame.set_rip(code);
        frame.set_rsp(top - 16);
        let mut last = frame.clone();
        last.set_rsp(top);
        last.set_rip(code + length + 1);
        last.set_rflags(flags);
        last.set_cs(<OsKernel>::LAYOUT.kernel_code().bits().into());
        last.set_ss(<OsKernel>::LAYOUT.kernel_data().bits().into());
        Start {
            wanted: Registers::new(&last, FS_BASE, header, gs_base),
            frame,
            tables: 0,
            fs_base: FS_BASE,
            gs_base,
            event: if event == Event::KernelDebug { code } else { 0 },
            end: code + length + 1,
            watched: None,
            landed: None,
        }
    }

    /// Makes the page that [`Event::demands_page`] absent again. Returns whether the victim had written its byte there.
    pub(super) fn reset_demand_page(&self, byte: u8, irq: &IrqOff) -> bool {
        let mut guard = current().space().lock(irq);
        let space = guard.as_mut().expect("the victim's space is in the idle thread's slot");
        let mapping = space.translate(DEMAND);
        let was_written = mapping.is_some_and(|mapping| {
            let address = layout::index(DIRECT_MAP + mapping.physical);
            // SAFETY: the direct map shows all of RAM.
            unsafe { core::ptr::with_exposed_provenance::<u8>(address).read_volatile() == byte }
        });
        space.munmap(DEMAND, PAGE_SIZE).expect("the page's area is mapped");
        let protection = Protection::READ | Protection::WRITE;
        let mapped = space.mmap(DEMAND, PAGE_SIZE, protection, Placement::FixedNoReplace);
        mapped.expect("the range was just unmapped");
        PerCpu::current(irq).drop_kept_translations();
        was_written
    }
}

impl Start {
    /// Whether the memory that RSP points into is as it was, but for what landing had to write there.
    pub(super) fn is_stack_untouched(&self) -> bool {
        let Some(watched) = self.watched else { return true };
        let words = core::ptr::with_exposed_provenance::<u64>(layout::index(watched));
        (0..WATCHED).all(|index| {
            // SAFETY: the decoy, or a page frame of the victim, has this many words.
            let word = unsafe { words.add(index) };
            let landed = self
                .landed
                .and_then(|words| words.get(index.wrapping_sub(LANDING_WORD)).copied());
            // SAFETY: as above.
            unsafe { word.read_volatile() == landed.unwrap_or(PATTERN) }
        })
    }
}

/// What is taken from the victim in its landing page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Page {
    /// The page that its stack pointer points into.
    Stack = 1,
    /// The landing page itself.
    Landing = 2,
}

impl Page {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Stack, Self::Landing];

    /// Makes an access to the page fault, or not any more. Its contents stay.
    pub(super) fn set_accessible(self, is_accessible: bool, irq: &IrqOff) {
        let (address, protection) = match self {
            Self::Stack => (STACK, Protection::READ | Protection::WRITE),
            Self::Landing => (layout::LANDING_PAGE, Protection::READ | Protection::EXECUTE),
        };
        let protection = if is_accessible { protection } else { Protection::empty() };
        let mut guard = current().space().lock(irq);
        let space = guard.as_mut().expect("the victim's space is in the idle thread's slot");
        let changed = space.protect(address, PAGE_SIZE, protection);
        changed.expect("the page is mapped");
        PerCpu::current(irq).drop_kept_translations();
    }
}

/// The selector of 32-bit code.
const fn code32() -> u16 {
    let code = <OsKernel>::LAYOUT.user_code32();
    code.expect("the layout has 32-bit code").bits()
}

/// Takes execution in the lower half from the tables at `root`, of which the twin keeps it: a program that an exit leaves on
/// the kernel's own tables faults at its next instruction.
fn forbid_execution(root: Frame) {
    for index in 0..ENTRIES / 2 {
        // SAFETY: the root table is that of a live space, which nobody else changes meanwhile.
        let slot = unsafe { Slot::new(root, index) };
        let entry = slot.read();
        if entry.is_present() {
            let entry = Entry::new(entry.frame().start(), USER_TABLE | Flags::NO_EXECUTE);
            // SAFETY: 1. it gives fewer rights. 2. No program has run on these tables, so there is nothing to execute by.
            unsafe { slot.write(entry) };
        }
    }
}

/// What 32-bit code has after a call by SYSENTER that 64-bit code made with the registers of `frame`, one byte behind
/// [`LANDING_32`]: nothing of R8 to R15 but what SYSRET leaves in R11.
fn as_32_bit_code(frame: &TrapFrame, rip: u64) -> TrapFrame {
    let mut last = TrapFrame::zeroed();
    last.set_rax(current().parent().into());
    last.set_rbx(frame.rbx());
    last.set_rcx(LANDING_32);
    last.set_rdx(frame.rdx());
    last.set_rsi(frame.rsi());
    last.set_rdi(frame.rdi());
    last.set_rbp(frame.rbp());
    last.set_r11(frame.rflags());
    last.set_rip(rip);
    last.set_rflags(frame.rflags());
    last.set_rsp(frame.rbp());
    last.set_cs(code32().into());
    last.set_ss(frame.ss());
    last
}

/// Where a function begins.
#[expect(clippy::fn_to_numeric_cast_any, reason = "a frame holds the address")]
fn address_of(function: unsafe extern "sysv64" fn() -> !) -> u64 {
    function as usize as u64
}

const fn code_address(event: Event) -> u64 {
    CODE + (event as usize * CODE_BYTES) as u64
}

/// The stubs of the vectors that the events and injectors go through.
pub(super) const VECTORS: [u8; 8] = [1, 2, 3, 6, 11, 14, EVENT_VECTOR, SYSTEM_CALL_VECTOR];
