//! What belongs to a process in the CPU, and is loaded when the process is switched to.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use entry_core::IrqOff;

use super::segments::{self, Saved};
use crate::entry::variant::Variant;
use crate::entry::{PerCpu, SyscallEntry, Vectors};
use crate::guard::guard;
use crate::memory::{USER_LIMIT, kernel};
use crate::syscall::Errno;

/// The value of no [`Variant`].
const NO_REQUEST: u8 = u8::MAX;

/// What a switch loads.
#[derive(Debug)]
pub struct Context {
    /// RSP where the process was switched out.
    pub(super) rsp: AtomicU64,
    /// 0 for the idle thread, which has no address space.
    pub(super) cr3: AtomicU64,
    /// End of the kernel stack.
    pub(super) stack_top: AtomicU64,
    pub(super) fs_base: AtomicU64,
    pub(super) gs_base: AtomicU64,
    pub(super) selectors: Saved,
    /// What `IA32_LSTAR` holds while the process runs: experiments replace it.
    pub(super) syscall_entry: AtomicU64,
    /// The vectors that go with it.
    pub(super) vectors: AtomicU8,
    /// Of the kernel's stubs, a [`Variant`].
    variant: AtomicU8,
    /// The variant to be taken at the next exit, or [`NO_REQUEST`].
    requested_variant: AtomicU8,
}

impl Context {
    /// Nothing to load.
    pub(super) const fn new() -> Self {
        Self {
            rsp: AtomicU64::new(0),
            cr3: AtomicU64::new(0),
            stack_top: AtomicU64::new(0),
            fs_base: AtomicU64::new(0),
            gs_base: AtomicU64::new(0),
            selectors: Saved::new(),
            syscall_entry: AtomicU64::new(0),
            vectors: AtomicU8::new(0),
            variant: AtomicU8::new(Variant::Plain as u8),
            requested_variant: AtomicU8::new(NO_REQUEST),
        }
    }

    /// FS base while the process runs.
    #[inline(always)]
    #[must_use]
    pub fn fs_base(&self) -> u64 {
        self.fs_base.load(Ordering::Relaxed)
    }

    /// The user's GS base while the process runs.
    #[inline(always)]
    #[must_use]
    pub fn gs_base(&self) -> u64 {
        self.gs_base.load(Ordering::Relaxed)
    }

    /// Sets FS base, of the current process at once.
    ///
    /// # Errors
    ///
    /// [`Errno::EPERM`], as on Linux, if the address is not one of user space.
    pub fn set_fs_base(&self, address: u64, irq: &IrqOff) -> Result<(), Errno> {
        if address >= USER_LIMIT {
            return Err(Errno::EPERM);
        }
        segments::clear_fs();
        self.fs_base.store(address, Ordering::Relaxed);
        let _ = PerCpu::current(irq).load_fs_base(address);
        Ok(())
    }

    /// Sets the user's GS base, of the current process at once.
    ///
    /// # Errors
    ///
    /// As [`Context::set_fs_base`].
    pub fn set_gs_base(&self, address: u64, irq: &IrqOff) -> Result<(), Errno> {
        if address >= USER_LIMIT {
            return Err(Errno::EPERM);
        }
        segments::clear_gs(irq);
        self.gs_base.store(address, Ordering::Relaxed);
        let _ = PerCpu::current(irq).load_user_gs_base(address);
        Ok(())
    }

    /// Sets the system-call entry of the current process.
    pub fn set_syscall_entry(&self, entry: SyscallEntry, irq: &IrqOff) {
        let cpu = PerCpu::current(irq);
        let was_split = cpu.is_split();
        self.refresh_bases(cpu);
        if cpu.has_interrupts_on() {
            // The system call that runs may be left with interrupts on, which only its own vectors allow: exit work turns
            // them off.
            cpu.set_work_pending();
        }
        self.store_syscall_entry(entry);
        cpu.take_syscall_entry(entry, irq);
        if guard!("tables-after-a-change", was_split) || self.is_split() {
            kernel::stop_global_pages();
            // SAFETY: 1. the tables are those of the current process; every root table has a twin.
            unsafe { cpu.load_tables(self.cr3.load(Ordering::Relaxed)) };
        }
    }

    /// Whether the kernel hides from the process.
    #[must_use]
    pub fn is_split(&self) -> bool {
        Vectors::are_split(self.vectors.load(Ordering::Relaxed))
    }

    /// Notes the bases that the process has, where it could write them itself; it is the current one, or was until now. The
    /// idle thread has none.
    pub(crate) fn refresh_bases(&self, cpu: &PerCpu) {
        if self.cr3.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some((fs_base, gs_base)) = cpu.written_bases() {
            self.fs_base.store(fs_base, Ordering::Relaxed);
            self.gs_base.store(gs_base, Ordering::Relaxed);
        }
    }

    /// Loads both bases in place of those of `previous`, which keeps what it has written.
    #[inline(always)]
    pub(super) fn load_bases(&self, previous: &Self, cpu: &PerCpu) {
        if let Some(written) = cpu.load_fs_base(self.fs_base()) {
            previous.keep_base(&previous.fs_base, written);
        }
        if let Some(written) = cpu.load_user_gs_base(self.gs_base()) {
            previous.keep_base(&previous.gs_base, written);
        }
    }

    /// The idle thread, which runs with what the last process has, keeps nothing.
    fn keep_base(&self, base: &AtomicU64, written: u64) {
        if self.cr3.load(Ordering::Relaxed) != 0 {
            base.store(written, Ordering::Relaxed);
        }
    }

    /// As [`Context::set_syscall_entry`], of a process that is not the current one.
    pub(super) fn store_syscall_entry(&self, entry: SyscallEntry) {
        self.vectors.store(entry.vectors() as u8, Ordering::Relaxed);
        self.syscall_entry.store(entry.address(), Ordering::Relaxed);
    }

    /// What [`Context::set_syscall_entry`] set.
    pub(crate) fn syscall_entry(&self) -> SyscallEntry {
        let vectors = Vectors::from_number(self.vectors.load(Ordering::Relaxed));
        SyscallEntry::new(self.syscall_entry.load(Ordering::Relaxed), vectors)
    }

    /// The variant of the kernel's stubs that the process has.
    #[must_use]
    pub fn variant(&self) -> Variant {
        Variant::from_number(self.variant.load(Ordering::Relaxed))
    }

    /// Notes that the process has another one.
    pub(crate) fn set_variant(&self, variant: Variant) {
        self.variant.store(variant as u8, Ordering::Relaxed);
        self.requested_variant.store(NO_REQUEST, Ordering::Relaxed);
    }

    /// Asks for another one, for the current process, from its next exit on.
    pub(crate) fn request_variant(&self, variant: Variant, irq: &IrqOff) {
        self.requested_variant.store(variant as u8, Ordering::Relaxed);
        PerCpu::current(irq).set_work_pending();
    }

    /// The variant that was asked for, once.
    #[inline(always)]
    pub(crate) fn take_requested_variant(&self) -> Option<Variant> {
        if self.requested_variant.load(Ordering::Relaxed) == NO_REQUEST {
            return None;
        }
        Some(Variant::from_number(
            self.requested_variant.swap(NO_REQUEST, Ordering::Relaxed),
        ))
    }
}
