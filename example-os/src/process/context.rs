//! What belongs to a process in the CPU, and is loaded when the process is switched to.

use core::sync::atomic::{AtomicU64, Ordering};

use entry_core::IrqOff;

use crate::entry::{PerCpu, SyscallEntry};
use crate::memory::USER_LIMIT;
use crate::syscall::Errno;

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
    /// What `IA32_LSTAR` holds while the process runs: experiments replace it.
    pub(super) syscall_entry: AtomicU64,
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
            syscall_entry: AtomicU64::new(0),
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
        self.fs_base.store(address, Ordering::Relaxed);
        PerCpu::current(irq).load_fs_base(address);
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
        self.gs_base.store(address, Ordering::Relaxed);
        PerCpu::current(irq).load_user_gs_base(address);
        Ok(())
    }

    /// Sets the system-call entry of the current process.
    pub fn set_syscall_entry(&self, entry: SyscallEntry, irq: &IrqOff) {
        self.syscall_entry.store(entry.address(), Ordering::Relaxed);
        PerCpu::current(irq).load_syscall_entry(entry.address());
    }
}
