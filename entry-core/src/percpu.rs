//! The words that the stubs reach through GS.
//!
//! A kernel embeds [`PerCpuHeader`] as the *first* field of its own per-CPU structure and points GS base at it. The
//! stubs know only this header; everything behind it is the kernel's.
//!
//! While the CPU is in the kernel, GS base is the header's address and IA32_KERNEL_GS_BASE holds the user's GS base;
//! SWAPGS at the border exchanges them. Paranoid entries, which can't trust that, find the header's address at the top
//! of their own stack: see [`IstStack`].
//!
//! # Source
//!
//! Intel SDM vol. 2B, *SWAPGS—Swap GS Base Register*; AMD APM vol. 2, *SWAPGS Instruction*.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use static_assertions::const_assert_eq;

use crate::irq::IrqOff;

/// The part of a per-CPU structure that the stubs use.
///
/// | offset | field | written by | read by |
/// |---|---|---|---|
/// | 0 | own address | [`PerCpuHeader::bind`] | [`PerCpuHeader::current`] |
/// | 8 | top of the current thread's kernel stack | the scheduler | SYSCALL and SYSENTER stubs |
/// | 16 | scratch: user RSP | SYSCALL stubs | SYSCALL stubs, until it is pushed |
/// | 24 | scratch: RAX | paranoid stubs, from user mode only | paranoid stubs |
/// | 32 | work pending | anybody who wants the kernel's attention | every exit |
///
/// ```
/// use entry_core::PerCpuHeader;
///
/// #[repr(C)]
/// struct PerCpu {
///     header: PerCpuHeader, // first: GS base points here
///     ticks: u64,
/// }
/// static CPU0: PerCpuHeader = PerCpuHeader::new();
/// CPU0.set_work_pending();
/// assert!(CPU0.is_work_pending());
/// ```
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct PerCpuHeader {
    this: AtomicU64,
    kernel_stack: AtomicU64,
    scratch_rsp: AtomicU64,
    scratch_rax: AtomicU64,
    work: AtomicU32,
}

const_assert_eq!(PerCpuHeader::SELF, 0);

impl PerCpuHeader {
    /// Offset of the header's own address.
    pub const SELF: usize = offset_of!(Self, this);
    /// Offset of the kernel stack's top.
    pub const KERNEL_STACK: usize = offset_of!(Self, kernel_stack);
    /// Offset of the scratch word for the user RSP.
    pub const SCRATCH_RSP: usize = offset_of!(Self, scratch_rsp);
    /// Offset of the scratch word for RAX.
    pub const SCRATCH_RAX: usize = offset_of!(Self, scratch_rax);
    /// Offset of the work word, 32 bits.
    pub const WORK: usize = offset_of!(Self, work);

    /// A header with no stack and no work.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            this: AtomicU64::new(0),
            kernel_stack: AtomicU64::new(0),
            scratch_rsp: AtomicU64::new(0),
            scratch_rax: AtomicU64::new(0),
            work: AtomicU32::new(0),
        }
    }

    /// Writes the header's own address into it, once it is where it will stay. GS base has to be set to the same address.
    pub fn bind(&'static self) {
        self.this
            .store(core::ptr::from_ref(self).addr() as u64, Ordering::Relaxed);
    }

    /// The header of this CPU, for as long as the caller can't be moved to another.
    ///
    /// # Safety
    ///
    /// 1. GS base is the address of a header on which [`PerCpuHeader::bind`] was called.
    #[must_use]
    #[inline(always)]
    pub unsafe fn current(_irq: &IrqOff) -> &Self {
        let this: *const Self;
        // SAFETY: condition 1: offset 0 of the header holds its address, written by `bind`. No `pure`: the answer
        // changes when the thread is moved, so it must not be kept across a schedule.
        unsafe {
            core::arch::asm!("mov {}, gs:[{}]", out(reg) this, const Self::SELF, options(nostack, preserves_flags, readonly));
        }
        // SAFETY: the address is that of a live header, by condition 1; `bind` demands `'static`.
        unsafe { &*this }
    }

    /// Top of the current thread's kernel stack, as the SYSCALL stub loads it.
    #[must_use]
    #[inline(always)]
    pub fn kernel_stack(&self) -> u64 {
        self.kernel_stack.load(Ordering::Relaxed)
    }

    /// Sets the stack that the next system call on this CPU runs on.
    ///
    /// # Safety
    ///
    /// 1. `top` is 16-byte aligned, and the end of a mapped, writable stack that belongs to the thread which runs next
    ///    on this CPU, with nothing live on it.
    /// 2. `self` is the header of this CPU, with interrupts off, or of a CPU that is not running yet.
    #[inline(always)]
    pub unsafe fn set_kernel_stack(&self, top: u64) {
        self.kernel_stack.store(top, Ordering::Relaxed);
    }

    /// Asks for [`Kernel::work`](crate::kernel::Kernel::work) before this CPU next returns to user mode.
    #[inline(always)]
    pub fn set_work_pending(&self) {
        self.work.store(1, Ordering::Relaxed);
    }

    /// Takes the request back; `work` does this *before* it looks what there is to do, or a request would be lost.
    #[inline(always)]
    pub fn clear_work_pending(&self) {
        self.work.store(0, Ordering::Relaxed);
    }

    /// Whether work is pending.
    #[must_use]
    #[inline(always)]
    pub fn is_work_pending(&self) -> bool {
        self.work.load(Ordering::Relaxed) != 0
    }
}

/// A stack for one paranoid vector of one CPU, with that CPU's header address above its top.
///
/// NMI, #MC, #DB and #DF can arrive while GS base is still the user's, so their stub may not ask GS where the per-CPU
/// data is. It reads the answer from the word that [`IstStack::top`] points at, just above the frame that the CPU
/// pushes, and compares it with GS base: equality means that GS is usable, whatever put the value there, so a user who
/// can write GS base gains nothing by forging it.
///
/// ```
/// use entry_core::percpu::{IstStack, PerCpuHeader};
/// static HEADER: PerCpuHeader = PerCpuHeader::new();
/// static STACK: IstStack<4096> = IstStack::new();
/// let ist = STACK.bind(&HEADER);
/// assert_eq!(ist % 16, 0);
/// ```
#[derive(Debug)]
#[repr(C, align(16))]
pub struct IstStack<const BYTES: usize> {
    stack: core::cell::UnsafeCell<[u8; BYTES]>,
    header: AtomicU64,
    padding: u64,
}

// SAFETY: the bytes are written by the CPU that the stack belongs to, and by stubs running on it; Rust code has no
// access to them.
unsafe impl<const BYTES: usize> Sync for IstStack<BYTES> {}

impl<const BYTES: usize> IstStack<BYTES> {
    /// An empty stack. `BYTES` has to be a multiple of 16.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(BYTES.is_multiple_of(16), "the stack size is a multiple of 16") };
        Self {
            stack: core::cell::UnsafeCell::new([0; BYTES]),
            header: AtomicU64::new(0),
            padding: 0,
        }
    }

    /// Ties the stack to a CPU and returns the value for its IST slot in the TSS.
    #[must_use]
    pub fn bind(&'static self, header: &'static PerCpuHeader) -> u64 {
        self.header
            .store(core::ptr::from_ref(header).addr() as u64, Ordering::Relaxed);
        self.top()
    }

    /// The address of the word above the stack: what goes into the TSS.
    #[must_use]
    pub fn top(&'static self) -> u64 {
        core::ptr::from_ref(&self.header).addr() as u64
    }
}

impl<const BYTES: usize> Default for IstStack<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}
