//! What belongs to one CPU, reached through GS.

use core::arch::asm;
use core::cell::{OnceCell, UnsafeCell};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};

use context_tracking::{CpuWord, GsWord};
use entry_core::msr::{Cpu, FsBase, KernelGsBase, Lstar, Register, SpecCtrl};
use entry_core::percpu::SplitTables;
use entry_core::plan::Installed;
use entry_core::tss::TaskStateSegment;
use entry_core::{IrqOff, PerCpuHeader};
use entry_sysenter::error::Unsupported;

use super::compat::{self, Kernel32};
use super::sysenter::{Callee, Callee32, Callee64, Installed as Sysenter, PrivilegedCallee32, TaskState, Way};
use super::{OsKernel, SyscallEntry, Vectors, options};
use crate::boot;
use crate::guard::guard;
use crate::memory::kernel;
use crate::process::Process;

/// The per-CPU structure. GS base points at it while the CPU is in the kernel.
///
/// What the CPU has loaded is remembered here, so that a context switch writes only what differs: WRMSR and the load
/// of CR3 are the expensive part of a switch.
#[derive(Debug)]
#[repr(C)]
pub struct PerCpu {
    header: PerCpuHeader,
    tracking: CpuWord,
    process: AtomicPtr<Process>,
    cr3: AtomicU64,
    /// The base, or [`UNKNOWN`], or [`ITS_OWN`].
    fs_base: AtomicU64,
    /// The same of the user's GS base.
    user_gs_base: AtomicU64,
    /// Whether a switch reads and writes both by the instructions of FSGSBASE, which programs may use, too.
    has_instructions_for_bases: AtomicBool,
    syscall_entry: AtomicU64,
    vectors: AtomicU8,
    needs_reschedule: AtomicBool,
    ticks: AtomicU64,
    switches: AtomicU64,
    preemptions: AtomicU64,
    faults: AtomicU64,
    nmis: AtomicU64,
    /// Whether `sysenter` wants to be told of each switch.
    sysenter_follows: AtomicBool,
    /// Whether SYSENTER leads to a stub that serves processes without 32-bit code.
    sysenter_serves_64_bit: AtomicBool,
    /// Whether to one that serves those with it.
    sysenter_serves_32_bit: AtomicBool,
    /// Whether it leads to one that leaves to programs with IOPL 3.
    sysenter_allows_io_privilege: AtomicBool,
    /// Where that stub returns to while a process runs that has 32-bit code, else 0.
    landing: AtomicU64,
    /// `None` where the CPU has no SYSENTER.
    sysenter: UnsafeCell<Option<Sysenter>>,
    /// That the system-call registers were written: `None` before.
    installed: OnceCell<Installed>,
    task_state: TaskState,
}

/// Of a base, that it has to be written, whatever the next one is. No base has this number.
const UNKNOWN: u64 = u64::MAX;
/// The same, and the process may have written its own since it came to run.
const ITS_OWN: u64 = u64::MAX - 1;

// SAFETY: three fields are not `Sync` by themselves. The TSS is written by its own CPU alone, with interrupts off, as
// `set_kernel_stack` demands; nobody else reads RSP0. `sysenter` is used in `with_sysenter` alone. `installed` is written once, before anybody else can
// reach the structure.
unsafe impl Sync for PerCpu {}

const _: () = assert!(offset_of!(PerCpu, header) == 0, "GS base is the header's address");

// SAFETY: 1. `install` binds the header and points GS base at it before it loads any stub; the structure is static. 2. The
// field is private, and only read here.
unsafe impl GsWord for PerCpu {
    const OFFSET: usize = offset_of!(Self, tracking);
}

impl PerCpu {
    /// Offset of the word with the address to which SYSENTER returns in 32-bit code.
    pub(super) const LANDING: usize = offset_of!(Self, landing);

    pub(super) const fn new() -> Self {
        Self {
            header: PerCpuHeader::new(),
            tracking: CpuWord::new(),
            process: AtomicPtr::new(core::ptr::from_ref(Process::idle()).cast_mut()),
            cr3: AtomicU64::new(0),
            fs_base: AtomicU64::new(0),
            user_gs_base: AtomicU64::new(0),
            has_instructions_for_bases: AtomicBool::new(false),
            syscall_entry: AtomicU64::new(0),
            vectors: AtomicU8::new(Vectors::Normal as u8),
            needs_reschedule: AtomicBool::new(false),
            ticks: AtomicU64::new(0),
            switches: AtomicU64::new(0),
            preemptions: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            nmis: AtomicU64::new(0),
            sysenter_follows: AtomicBool::new(false),
            sysenter_serves_64_bit: AtomicBool::new(true),
            sysenter_serves_32_bit: AtomicBool::new(false),
            sysenter_allows_io_privilege: AtomicBool::new(false),
            landing: AtomicU64::new(0),
            sysenter: UnsafeCell::new(None),
            installed: OnceCell::new(),
            task_state: TaskState::new(),
        }
    }

    /// The structure of this CPU, for as long as the thread stays on it.
    ///
    /// Nobody has an [`IrqOff`] proof from an entry stub, and nobody calls this with another one, before
    /// [`install`](super::install) has set GS base.
    #[inline(always)]
    #[must_use]
    pub fn current(irq: &IrqOff) -> &Self {
        // SAFETY: GS base is the address of a bound header since `install`.
        let header = unsafe { PerCpuHeader::current(irq) };
        // SAFETY: every header that GS base ever points at is the first field of a `PerCpu`.
        unsafe { &*core::ptr::from_ref(header).cast() }
    }

    /// The process that runs on this CPU, read in one instruction. It needs no proof: wherever the thread runs, the
    /// word there names the same process.
    #[inline(always)]
    pub(crate) fn current_process() -> &'static Process {
        let process: *const Process;
        // SAFETY: GS base is the address of a `PerCpu` since `install`; the word is read, nothing is written. `pure`
        // would be wrong only if the answer changed for the thread that asks.
        unsafe {
            asm!(
                "mov {}, gs:[{}]",
                out(reg) process,
                const offset_of!(Self, process),
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        // SAFETY: the word is set from `&'static Process` alone.
        unsafe { &*process }
    }

    /// The header for the stubs.
    pub(super) const fn header(&self) -> &PerCpuHeader {
        &self.header
    }

    /// The task-state segment.
    pub(super) const fn task_state(&self) -> &TaskStateSegment {
        &self.task_state.segment
    }

    /// The task-state segment and what lies around it.
    pub(super) const fn task_state_area(&self) -> &TaskState {
        &self.task_state
    }

    /// The task-state segment, before the CPU uses it.
    pub(super) const fn task_state_mut(&mut self) -> &mut TaskStateSegment {
        &mut self.task_state.segment
    }

    /// The process that runs on this CPU.
    #[inline(always)]
    pub fn process(&self) -> &'static Process {
        // SAFETY: the word is set from `&'static Process` alone.
        unsafe { &*self.process.load(Ordering::Relaxed) }
    }

    /// Sets [`PerCpu::process`].
    #[inline(always)]
    pub(crate) fn set_process(&self, process: &'static Process) {
        self.process
            .store(core::ptr::from_ref(process).cast_mut(), Ordering::Relaxed);
    }

    /// Loads CR3 if it holds something else.
    ///
    /// # Safety
    ///
    /// 1. `self` is the structure of this CPU.
    /// 2. `cr3` is the address of top-level tables that map the kernel as all others do, and stay alive until the next call.
    #[inline(always)]
    pub(crate) unsafe fn load_cr3(&self, cr3: u64) {
        if self.cr3.load(Ordering::Relaxed) != cr3 {
            self.cr3.store(cr3, Ordering::Relaxed);
            // SAFETY: condition 2.
            unsafe { asm!("mov cr3, {}", in(reg) cr3, options(nostack, preserves_flags)) };
        }
    }

    /// Sets the stack that the next entry from user mode runs on, by SYSCALL and by interrupt alike.
    ///
    /// # Safety
    ///
    /// 1. As [`PerCpuHeader::set_kernel_stack`] and [`TaskStateSegment::set_rsp0`].
    #[inline(always)]
    pub(crate) unsafe fn set_kernel_stack(&self, top: u64) {
        // SAFETY: condition 1.
        unsafe { self.header.set_kernel_stack(top) };
        // SAFETY: condition 1.
        unsafe { self.task_state.segment.set_rsp0(top) };
    }

    /// Writes FS base, unless it holds 0 and shall do so: a program can make it 0 by a load of FS, and nothing else.
    /// `base` is a user address, which [`crate::process::Context`] checks, or one that the program wrote itself.
    ///
    /// Returns what it was if only the CPU knew: the program may have written it.
    #[inline(always)]
    pub(crate) fn load_fs_base(&self, base: u64) -> Option<u64> {
        if self.fs_base.load(Ordering::Relaxed) | base == 0 {
            return None;
        }
        if !self.has_instructions_for_bases.load(Ordering::Relaxed) {
            self.fs_base.store(base, Ordering::Relaxed);
            // SAFETY: 1. this is the kernel. 2. What a base has been is canonical, and so are user addresses. 3. The kernel
            // does not use FS.
            unsafe { FsBase::from_bits(base).write(&mut Cpu) };
            return None;
        }
        // Read again, so that the usual case does not have to keep it.
        let is_its_own = self.fs_base.load(Ordering::Relaxed) == ITS_OWN;
        self.fs_base.store(ITS_OWN, Ordering::Relaxed);
        let old;
        // SAFETY: CR4.FSGSBASE is set. What a base has been is canonical, and so are user addresses; the kernel does not use FS.
        unsafe {
            asm!(
                "rdfsbase {old}",
                "wrfsbase {base}",
                old = out(reg) old,
                base = in(reg) base,
                options(nomem, nostack, preserves_flags),
            );
        }
        guard!("switch-keeps-written-bases", is_its_own).then_some(old)
    }

    /// Writes the user's GS base, which is in `IA32_KERNEL_GS_BASE` now, as [`PerCpu::load_fs_base`] does.
    ///
    /// Between two SWAPGS an NMI finds it in force, as in a window of the stubs, and decides by comparison.
    #[inline(always)]
    pub(crate) fn load_user_gs_base(&self, base: u64) -> Option<u64> {
        if self.user_gs_base.load(Ordering::Relaxed) | base == 0 {
            return None;
        }
        if !self.has_instructions_for_bases.load(Ordering::Relaxed) {
            self.user_gs_base.store(base, Ordering::Relaxed);
            // SAFETY: 1. this is the kernel. 2. What a base has been is canonical, and so are user addresses. 3. It is the
            // user's until SWAPGS.
            unsafe { KernelGsBase::from_bits(base).write(&mut Cpu) };
            return None;
        }
        // Read again, so that the usual case does not have to keep it.
        let is_its_own = self.user_gs_base.load(Ordering::Relaxed) == ITS_OWN;
        self.user_gs_base.store(ITS_OWN, Ordering::Relaxed);
        let old;
        // SAFETY: CR4.FSGSBASE is set. What a base has been is canonical, and so are user addresses. Nothing here uses GS while
        // it is the user's; interrupts are off, as for all that has to do with this structure.
        unsafe {
            asm!(
                "swapgs",
                "rdgsbase {old}",
                "wrgsbase {base}",
                "swapgs",
                old = out(reg) old,
                base = in(reg) base,
                options(nomem, nostack, preserves_flags),
            );
        }
        guard!("switch-keeps-written-bases", is_its_own).then_some(old)
    }

    /// Chooses how a switch writes both bases: by the instructions of FSGSBASE, on a CPU that has it, or by WRMSR.
    pub(crate) fn set_instructions_for_bases(&self, has_them: bool, _irq: &IrqOff) {
        self.has_instructions_for_bases.store(has_them, Ordering::Relaxed);
        self.forget_bases();
        boot::cpu::let_programs_write_bases(self.may_write_bases());
    }

    /// Whether programs may write both bases themselves.
    fn may_write_bases(&self) -> bool {
        let is_guarded = self.vectors.load(Ordering::Relaxed) == Vectors::Guarded as u8;
        is_guarded || self.has_instructions_for_bases.load(Ordering::Relaxed)
    }

    /// The bases of FS and GS as the program left them, where it may write them itself.
    pub(crate) fn written_bases(&self) -> Option<(u64, u64)> {
        if !self.may_write_bases() {
            return None;
        }
        // SAFETY: 1. this is the kernel. 2. All x86-64 CPUs have it.
        let fs_base = unsafe { FsBase::read(&mut Cpu) };
        // SAFETY: as above.
        let gs_base = unsafe { KernelGsBase::read(&mut Cpu) };
        Some((fs_base.bits(), gs_base.bits()))
    }

    /// Lets the next loads of both bases write them: a load of FS or GS may have changed them, or the program.
    pub(crate) fn forget_bases(&self) {
        let word = if self.has_instructions_for_bases.load(Ordering::Relaxed) {
            ITS_OWN
        } else {
            UNKNOWN
        };
        self.fs_base.store(word, Ordering::Relaxed);
        self.user_gs_base.store(word, Ordering::Relaxed);
    }

    /// The same, where neither is that of a process any more.
    pub(crate) fn drop_bases(&self) {
        self.fs_base.store(UNKNOWN, Ordering::Relaxed);
        self.user_gs_base.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Whether SYSCALL leads to this address.
    #[inline(always)]
    pub(crate) fn has_syscall_entry(&self, address: u64) -> bool {
        self.syscall_entry.load(Ordering::Relaxed) == address
    }

    /// Lets SYSCALL lead to `entry`, with the vectors that belong to it, and SYSENTER to the stub that goes with them.
    pub(crate) fn take_syscall_entry(&self, entry: SyscallEntry, irq: &IrqOff) {
        if !self.has_syscall_entry(entry.address()) {
            self.syscall_entry.store(entry.address(), Ordering::Relaxed);
            // SAFETY: 1. this is the kernel. 2. Kernel code is at canonical addresses. 3. It is a stub for this CPU.
            unsafe { Lstar::from_bits(entry.address()).write(&mut Cpu) };
        }
        if self.written_bases().is_some() {
            self.forget_bases();
        }
        self.load_vectors(entry.vectors());
        if entry.vectors() == Vectors::Restricted {
            // SAFETY: 1. the set is there only where the CPU has the bit. 2. The structure is this CPU's, with interrupts off.
            unsafe {
                self.header
                    .set_spec_ctrl(SpecCtrl::INDIRECT_BRANCH_RESTRICTED_SPECULATION, SpecCtrl::empty())
            };
        }
        if entry.vectors() == Vectors::Guarded {
            // Every switch from here is to come by this way, even one to a process of the same kind.
            self.syscall_entry.store(0, Ordering::Relaxed);
        }
        if entry.vectors().allow_32_bit_code() {
            self.prepare_for_32_bit_code(entry.vectors() == Vectors::IoCode32, irq);
            return;
        }
        self.landing.store(0, Ordering::Relaxed);
        if entry.vectors().go_with_sysenter() && !self.sysenter_serves_64_bit.load(Ordering::Relaxed) {
            // A CPU that had it still has it.
            let _ = self.install_sysenter::<Callee64<OsKernel>>(Way::FromHeader, irq);
        }
        let is_possible = match entry.vectors() {
            Vectors::IoPrivilege => self.sysenter_allows_io_privilege.load(Ordering::Relaxed),
            vectors => vectors.go_with_sysenter(),
        };
        // A stub of the wrong kind would find neither its tables nor its tracking.
        self.set_sysenter_enabled(!guard!("sysenter-of-another-kernel", !is_possible), irq);
    }

    /// Turns SYSENTER on or off, if there is one.
    fn set_sysenter_enabled(&self, is_enabled: bool, irq: &IrqOff) {
        self.with_sysenter(irq, |sysenter| {
            if let Some(sysenter) = sysenter {
                sysenter.set_enabled(is_enabled, irq);
            }
        });
    }

    /// The part of [`PerCpu::take_syscall_entry`] that only 32-bit code needs.
    fn prepare_for_32_bit_code(&self, is_privileged: bool, irq: &IrqOff) {
        // Every switch from here is to come by `take_syscall_entry`, even one to a process of the same kind.
        self.syscall_entry.store(0, Ordering::Relaxed);
        self.landing.store(compat::landing(), Ordering::Relaxed);
        let fits = self.sysenter_serves_32_bit.load(Ordering::Relaxed)
            && self.sysenter_allows_io_privilege.load(Ordering::Relaxed) == is_privileged;
        // A CPU that had it still has it.
        if self.has_sysenter(irq) && !fits {
            let _ = if is_privileged {
                self.install_sysenter::<PrivilegedCallee32>(Way::FromHeader, irq)
            } else {
                self.install_sysenter::<Callee32<Kernel32>>(Way::FromHeader, irq)
            };
        }
        if guard!("sysenter-on-for-32-bit-code", true) {
            // It is off if the last process was one that the kernel hides from.
            self.set_sysenter_enabled(true, irq);
        }
    }

    /// Gives `change` the SYSENTER of this CPU.
    #[inline(always)]
    fn with_sysenter<R>(&self, _irq: &IrqOff, change: impl FnOnce(&mut Option<Sysenter>) -> R) -> R {
        // SAFETY: no reference outlives this call, none of the callers below calls this function again, and interrupts are
        // off, so nothing else on this CPU does; `self` is that of this CPU, since no other can be had.
        change(unsafe { &mut *self.sysenter.get() })
    }

    /// Lets SYSENTER lead to `C`, with the stack loaded in the way given.
    ///
    /// # Errors
    ///
    /// The CPU has no SYSENTER in long mode.
    pub(crate) fn install_sysenter<C: Callee>(&self, way: Way, irq: &IrqOff) -> Result<(), Unsupported> {
        // SAFETY: per-CPU structures are statics; what ends is the claim to be on this CPU.
        let cpu: &'static Self = unsafe { &*core::ptr::from_ref(self) };
        self.with_sysenter(irq, |sysenter| {
            if let Some(mut old) = sysenter.take() {
                old.set_enabled(false, irq);
            }
        });
        let installed = Sysenter::new::<C>(way, cpu, irq)?;
        self.sysenter_follows
            .store(installed.follows_threads(), Ordering::Relaxed);
        self.sysenter_serves_64_bit.store(C::SERVES_64_BIT, Ordering::Relaxed);
        self.sysenter_serves_32_bit.store(C::SERVES_32_BIT, Ordering::Relaxed);
        self.sysenter_allows_io_privilege
            .store(C::ALLOWS_IO_PRIVILEGE, Ordering::Relaxed);
        self.with_sysenter(irq, |sysenter| *sysenter = Some(installed));
        Ok(())
    }

    /// Where SYSENTER leads to, if the CPU has it in long mode.
    pub(crate) fn sysenter_entry(&self, irq: &IrqOff) -> Option<u64> {
        self.with_sysenter(irq, |sysenter| sysenter.as_ref().map(Sysenter::entry_point))
    }

    /// Whether the CPU has SYSENTER in long mode.
    pub(crate) fn has_sysenter(&self, irq: &IrqOff) -> bool {
        self.with_sysenter(irq, |sysenter| sysenter.is_some())
    }

    /// Whether a single-step trap in the kernel at `rip` was armed by the user, before SYSENTER.
    pub(super) fn is_user_step(&self, rip: u64, irq: &IrqOff) -> bool {
        self.with_sysenter(irq, |sysenter| {
            sysenter.as_ref().is_some_and(|sysenter| sysenter.is_user_step(rip))
        })
    }

    /// The part of a switch that belongs to SYSENTER.
    ///
    /// # Safety
    ///
    /// 1. As [`PerCpuHeader::set_kernel_stack`].
    #[inline(always)]
    pub(crate) unsafe fn set_sysenter_stack(&self, top: u64, irq: &IrqOff) {
        if self.sysenter_follows.load(Ordering::Relaxed) {
            self.with_sysenter(irq, |sysenter| {
                if let Some(sysenter) = sysenter {
                    // SAFETY: 1. condition 1.
                    unsafe { sysenter.switch_to(top, irq) };
                }
            });
        }
    }

    /// Executes LIDT, and writes the registers that go with it, if the CPU has another table.
    fn load_vectors(&self, vectors: Vectors) {
        if self.vectors.swap(vectors as u8, Ordering::Relaxed) != vectors as u8 {
            super::select_gates(vectors, self.may_write_bases());
        }
    }

    /// The tracked state of this CPU: "kernel" while processes run that are not tracked.
    pub const fn tracking(&self) -> &CpuWord {
        &self.tracking
    }

    /// Notes what `IA32_LSTAR` holds, and that it does.
    pub(super) fn remember_syscall_entry(&self, entry: SyscallEntry, installed: Installed) {
        let _is_first = self.installed.set(installed);
        self.syscall_entry.store(entry.address(), Ordering::Relaxed);
        self.vectors.store(entry.vectors() as u8, Ordering::Relaxed);
    }

    /// Proof that the system-call registers of this CPU were written.
    ///
    /// # Panics
    ///
    /// If they were not.
    pub(super) fn installed(&self) -> &Installed {
        let installed = self.installed.get();
        installed.unwrap_or_else(|| panic!("user mode on a CPU that was never set up"))
    }

    /// Whether the vectors are those that track.
    pub(crate) fn is_tracked(&self) -> bool {
        self.vectors.load(Ordering::Relaxed) == Vectors::Tracked as u8
    }

    /// Whether the stubs are those that hide the kernel.
    #[inline(always)]
    pub(crate) fn is_split(&self) -> bool {
        Vectors::are_split(self.vectors.load(Ordering::Relaxed))
    }

    /// Whether the stubs are those with interrupts on at SYSCALL.
    pub(crate) fn has_interrupts_on(&self) -> bool {
        self.vectors.load(Ordering::Relaxed) == Vectors::IrqsOn as u8
    }

    /// Sets the tables that stubs load which hide the kernel, and the stack of RSP0 that goes with the vectors of this CPU;
    /// after [`PerCpu::set_kernel_stack`], [`PerCpu::load_cr3`] with the same `cr3`, and [`PerCpu::take_syscall_entry`].
    ///
    /// # Safety
    ///
    /// 1. As [`PerCpu::load_cr3`]; the root table has a twin for user mode.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn load_tables(&self, cr3: u64) {
        let (tables, rsp0) = if self.is_split() {
            let tables = if self.has_pcid() {
                kernel::drop_all_translations();
                SplitTables::with_pcid(cr3 | options::KERNEL_PCID)
            } else {
                SplitTables::new(cr3)
            };
            (tables, super::ENTRY_STACK.top())
        } else {
            // The process may have got here by a stub of the other kind, and leave by it.
            (SplitTables::shared(cr3), self.header.kernel_stack())
        };
        let tables = tables.unwrap_or_else(|error| panic!("{error}"));
        // SAFETY: 1. and 3. condition 1; the twin maps what the stubs need. 2. There are identifiers for the stubs that
        // have the option, and CR4.PCIDE goes with their vectors.
        unsafe { self.header.set_tables(tables) };
        // SAFETY: it is the top of this CPU's entry stack, or what `set_kernel_stack` was given.
        unsafe { self.task_state.segment.set_rsp0(rsp0) };
    }

    /// Whether the stubs are those that keep the program's translations while the kernel runs.
    fn has_pcid(&self) -> bool {
        self.vectors.load(Ordering::Relaxed) == Vectors::SplitWithPcid as u8
    }

    /// Drops what is kept, after a change of tables that neither a system call of the program's nor its page fault was.
    pub(crate) fn drop_kept_translations(&self) {
        if self.has_pcid() {
            kernel::drop_all_translations();
        }
    }

    /// Executes LIDT, for an experiment that lasts while no other process runs.
    pub(crate) fn select_vectors(&self, vectors: Vectors, _irq: &IrqOff) {
        self.load_vectors(vectors);
    }

    /// Says what the current process owes before it returns to user mode: to let others run, to end by a signal.
    #[inline(always)]
    pub(crate) fn set_work(&self, needs_reschedule: bool, has_signal: bool) {
        self.needs_reschedule.store(needs_reschedule, Ordering::Relaxed);
        if needs_reschedule | has_signal {
            self.header.set_work_pending();
        } else {
            self.header.clear_work_pending();
        }
    }

    /// Asks for another exit through the work loop.
    #[inline(always)]
    pub(crate) fn set_work_pending(&self) {
        self.header.set_work_pending();
    }

    /// Whether the next exit goes through the work loop.
    pub(crate) fn is_work_pending(&self) -> bool {
        self.header.is_work_pending()
    }

    /// Asks the current process to let others run, from an interrupt handler.
    #[inline(always)]
    pub(super) fn request_reschedule(&self) {
        self.needs_reschedule.store(true, Ordering::Relaxed);
        self.header.set_work_pending();
    }

    /// Clears the work flag and returns whether others are to run.
    pub(super) fn take_work(&self) -> bool {
        self.header.clear_work_pending();
        self.needs_reschedule.swap(false, Ordering::Relaxed)
    }

    /// Whether others are to run, asked once: the rest of the work stays pending.
    pub(super) fn take_reschedule(&self) -> bool {
        self.needs_reschedule.swap(false, Ordering::Relaxed)
    }

    /// Timer interrupts since boot.
    pub fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Context switches since boot.
    pub fn switches(&self) -> u64 {
        self.switches.load(Ordering::Relaxed)
    }

    /// System calls and interrupt handlers, since boot, that an interrupt made let others run.
    pub fn preemptions(&self) -> u64 {
        self.preemptions.load(Ordering::Relaxed)
    }

    /// Page faults from user mode that were served.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// NMIs since boot.
    pub fn nmis(&self) -> u64 {
        self.nmis.load(Ordering::Relaxed)
    }

    pub(super) fn count_tick(&self) {
        count(&self.ticks);
    }

    pub(super) fn count_preemption(&self) {
        count(&self.preemptions);
    }

    #[inline(always)]
    pub(crate) fn count_switch(&self) {
        count(&self.switches);
    }

    #[inline(always)]
    pub(super) fn count_fault(&self) {
        count(&self.faults);
    }

    pub(super) fn count_nmi(&self) {
        count(&self.nmis);
    }
}

/// Adds one to a counter of this CPU, which nobody else writes.
#[inline(always)]
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
