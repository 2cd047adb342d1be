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

use core::fmt;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use static_assertions::const_assert_eq;

use crate::guard::guard;
use crate::irq::IrqOff;
use crate::msr::SpecCtrl;

/// The part of a per-CPU structure that the stubs use.
///
/// | offset | field | written by | read by |
/// |---|---|---|---|
/// | 0 | own address | [`PerCpuHeader::bind`] | [`PerCpuHeader::current`] |
/// | 8 | top of the current thread's kernel stack | the scheduler | SYSCALL and SYSENTER stubs |
/// | 16 | scratch: user RSP | SYSCALL stubs, SYSRET exits with `KPTI` | the same, until it is pushed or loaded |
/// | 24 | scratch: RAX | stubs that move a frame to the thread's stack | the same |
/// | 32 | work pending | anybody who wants the kernel's attention | every exit |
/// | 36 | `IA32_SPEC_CTRL` of the kernel, 32 bits | the kernel | entries with `IBRS` |
/// | 40 | CR3 of the kernel's tables | the scheduler | entries with `KPTI` |
/// | 48 | CR3 of the user's tables | the scheduler | exits with `KPTI` |
/// | 56 | top of the entry stack | once | IRET exits with `KPTI` |
/// | 64 | `IA32_SPEC_CTRL` of the user, 32 bits | the scheduler | exits with `IBRS` |
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
    kernel_spec_ctrl: AtomicU32,
    kernel_cr3: AtomicU64,
    user_cr3: AtomicU64,
    entry_stack: AtomicU64,
    user_spec_ctrl: AtomicU32,
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
    /// Offset of the kernel's `IA32_SPEC_CTRL`, 32 bits.
    pub const KERNEL_SPEC_CTRL: usize = offset_of!(Self, kernel_spec_ctrl);
    /// Offset of the CR3 value of the kernel's tables.
    pub const KERNEL_CR3: usize = offset_of!(Self, kernel_cr3);
    /// Offset of the CR3 value of the user's tables.
    pub const USER_CR3: usize = offset_of!(Self, user_cr3);
    /// Offset of the entry stack's top.
    pub const ENTRY_STACK: usize = offset_of!(Self, entry_stack);
    /// Offset of the user's `IA32_SPEC_CTRL`, 32 bits.
    pub const USER_SPEC_CTRL: usize = offset_of!(Self, user_spec_ctrl);

    /// A header with no stack and no work.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            this: AtomicU64::new(0),
            kernel_stack: AtomicU64::new(0),
            scratch_rsp: AtomicU64::new(0),
            scratch_rax: AtomicU64::new(0),
            work: AtomicU32::new(0),
            kernel_spec_ctrl: AtomicU32::new(0),
            kernel_cr3: AtomicU64::new(0),
            user_cr3: AtomicU64::new(0),
            entry_stack: AtomicU64::new(0),
            user_spec_ctrl: AtomicU32::new(0),
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

    /// Sets the page tables that stubs with [`Options::KPTI`](crate::kernel::Options::KPTI) load.
    ///
    /// # Safety
    ///
    /// 1. Both tables are live, and map what [`SplitTables`] demands; CR3 holds the kernel's, or will before user mode is
    ///    entered.
    /// 2. If `tables` has process-context identifiers, CR4.PCIDE is set and the stubs have
    ///    [`Options::PCID`](crate::kernel::Options::PCID); else they have not, unless the tables are
    ///    [shared](SplitTables::shared).
    /// 3. As condition 2 of [`PerCpuHeader::set_kernel_stack`].
    #[inline(always)]
    pub unsafe fn set_tables(&self, tables: SplitTables) {
        self.kernel_cr3.store(tables.kernel, Ordering::Relaxed);
        self.user_cr3.store(tables.user(), Ordering::Relaxed);
    }

    /// Sets the stack through which IRET leaves with [`Options::KPTI`](crate::kernel::Options::KPTI).
    ///
    /// # Safety
    ///
    /// 1. `top` is that of an [`EntryStack`] of this CPU alone, mapped in all tables that the CPU uses; TSS.RSP0 is the
    ///    same whenever user mode is left through stubs with that option.
    #[inline(always)]
    pub unsafe fn set_entry_stack(&self, top: u64) {
        self.entry_stack.store(top, Ordering::Relaxed);
    }

    /// Sets what stubs with [`Options::IBRS`](crate::kernel::Options::IBRS) write to `IA32_SPEC_CTRL`: `kernel` on entry,
    /// `user` on exit. Bits above 31, which no CPU has, are left out.
    ///
    /// # Safety
    ///
    /// 1. The CPU has all bits of both ([`SpecCtrl::supported`]): WRMSR in the stubs is #GP otherwise.
    /// 2. As condition 2 of [`PerCpuHeader::set_kernel_stack`].
    #[inline(always)]
    pub unsafe fn set_spec_ctrl(&self, kernel: SpecCtrl, user: SpecCtrl) {
        self.kernel_spec_ctrl.store(low_half(kernel.bits()), Ordering::Relaxed);
        self.user_spec_ctrl.store(low_half(user.bits()), Ordering::Relaxed);
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

/// Bits 31:0.
const fn low_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// CR3 values of the two page tables of an address space, for kernels that hide from user mode.
///
/// The user's root table lies [`SplitTables::USER_ROOT`] behind the kernel's, and the kernel's at a multiple of twice that.
/// This is a rule and not a choice because some stubs find CR3 in an unknown state and GS base too: from the value of CR3
/// alone they tell which tables it selects, and compute the other. So it holds for *every* table that CR3 may select while
/// the vectors are those of such stubs, tables of the kernel's own that no process has among them.
///
/// The user's tables map the user half as the kernel's do, and of the kernel half nothing but what the CPU and the stubs need
/// before they switch, none of it for user mode:
///
/// - the stubs (section `.entry.text`);
/// - the IDT, the GDT and the TSS;
/// - the [`PerCpuHeader`];
/// - the [`EntryStack`] and the [`IstStack`]s.
///
/// Whatever of the kernel is mapped must not be global, or its translations outlive the switch.
///
/// ```
/// use entry_core::percpu::{SplitTables, SplitTablesError};
/// let tables = SplitTables::new(0x10_2000)?;
/// assert_eq!((tables.kernel(), tables.user()), (0x10_2000, 0x10_3000));
/// let tables = SplitTables::with_pcid(0x10_2001)?;
/// assert_eq!((tables.kernel(), tables.user()), (1 << 63 | 0x10_2001, 1 << 63 | 0x10_3801));
/// assert_eq!(SplitTables::shared(0x10_2000)?.user(), 0x10_2000);
/// assert_eq!(SplitTables::new(0x10_3000), Err(SplitTablesError::OddRoot { cr3: 0x10_3000 }));
/// # Ok::<(), SplitTablesError>(())
/// ```
///
/// # Source
///
/// Intel SDM vol. 3A, *Process-Context Identifiers (PCIDs)*, *Caching Translation Information*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitTables {
    kernel: u64,
    distance: u64,
}

impl SplitTables {
    /// Bit 12 of CR3: set for the user's root table.
    pub const USER_ROOT: u64 = 1 << 12;
    /// Bit 11 of CR3: set in the process-context identifier of the user's tables.
    pub const USER_PCID: u64 = 1 << 11;
    /// Bit 63 of a value written to CR3: the translations of the identifier are kept. It reads as 0.
    pub const NO_FLUSH: u64 = 1 << 63;

    /// Tables without process-context identifiers. `kernel` is the CR3 value of the kernel's.
    ///
    /// # Errors
    ///
    /// [`SplitTablesError::OddRoot`], [`SplitTablesError::NoFlush`].
    pub const fn new(kernel: u64) -> Result<Self, SplitTablesError> {
        if guard!("split-no-flush", kernel & Self::NO_FLUSH != 0) {
            return Err(SplitTablesError::NoFlush { cr3: kernel });
        }
        if guard!("split-odd-root", kernel & Self::USER_ROOT != 0) {
            return Err(SplitTablesError::OddRoot { cr3: kernel });
        }
        Ok(Self {
            kernel,
            distance: Self::USER_ROOT,
        })
    }

    /// The same tables for both, those at `cr3`: for a process that the kernel doesn't hide from, while stubs that could
    /// hide it are in use.
    ///
    /// # Errors
    ///
    /// As [`SplitTables::new`].
    pub const fn shared(cr3: u64) -> Result<Self, SplitTablesError> {
        match Self::new(cr3) {
            Ok(tables) => Ok(Self { distance: 0, ..tables }),
            Err(error) => Err(error),
        }
    }

    /// Tables with them. Bits 11:0 of `kernel` are the identifier of the kernel's tables; that of the user's is
    /// [`SplitTables::USER_PCID`] above it. Both are loaded without a flush: what is unmapped has to be flushed by
    /// INVLPG and INVPCID.
    ///
    /// # Errors
    ///
    /// As [`SplitTables::new`], and [`SplitTablesError::UserPcid`].
    pub const fn with_pcid(kernel: u64) -> Result<Self, SplitTablesError> {
        if guard!("split-user-pcid", kernel & Self::USER_PCID != 0) {
            return Err(SplitTablesError::UserPcid { cr3: kernel });
        }
        match Self::new(kernel) {
            Ok(_) => Ok(Self {
                kernel: kernel | Self::NO_FLUSH,
                distance: Self::USER_ROOT | Self::USER_PCID,
            }),
            Err(error) => Err(error),
        }
    }

    /// What selects the kernel's tables.
    #[must_use]
    pub const fn kernel(self) -> u64 {
        self.kernel
    }

    /// What selects the user's tables.
    #[must_use]
    pub const fn user(self) -> u64 {
        self.kernel | self.distance
    }
}

/// Why a CR3 value can't be that of the kernel's tables in a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitTablesError {
    /// The root table lies where the user's would.
    OddRoot {
        /// The value.
        cr3: u64,
    },
    /// The identifier is one of a user's tables.
    UserPcid {
        /// The value.
        cr3: u64,
    },
    /// Bit 63 is set: it is an order to the CPU, and no part of what is loaded.
    NoFlush {
        /// The value.
        cr3: u64,
    },
}

impl fmt::Display for SplitTablesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OddRoot { cr3 } => write!(f, "kernel CR3 {cr3:#x} has bit 12 set, wanted an even page"),
            Self::UserPcid { cr3 } => write!(
                f,
                "kernel CR3 {cr3:#x} has bit 11 set, wanted an identifier below 0x800"
            ),
            Self::NoFlush { cr3 } => write!(
                f,
                "kernel CR3 {cr3:#x} has bit 63 set, wanted an address and an identifier"
            ),
        }
    }
}

impl core::error::Error for SplitTablesError {}

/// The stack on which a CPU arrives from user mode, and leaves by IRET, while its page tables are the user's.
///
/// It holds one interrupt frame at a time, and for a short while the kernel's Rust code if IRET faults; so `BYTES` is a
/// page or more. Every kernel thread has its own stack beside it.
///
/// ```
/// use entry_core::percpu::EntryStack;
/// static STACK: EntryStack<4096> = EntryStack::new();
/// assert_eq!(STACK.top() % 16, 0);
/// ```
#[derive(Debug)]
#[repr(C, align(16))]
pub struct EntryStack<const BYTES: usize>(core::cell::UnsafeCell<[u8; BYTES]>);

// SAFETY: the bytes are written by the CPU that the stack belongs to, and by stubs running on it; Rust code has no
// access to them.
unsafe impl<const BYTES: usize> Sync for EntryStack<BYTES> {}

impl<const BYTES: usize> EntryStack<BYTES> {
    /// An empty stack. `BYTES` has to be a multiple of 16, and at least 4096.
    #[must_use]
    pub const fn new() -> Self {
        const {
            assert!(
                BYTES.is_multiple_of(16) && BYTES >= 4096,
                "the stack size is a multiple of 16, and at least 4096"
            );
        };
        Self(core::cell::UnsafeCell::new([0; BYTES]))
    }

    /// The address above the stack: what goes into the TSS and the header.
    #[must_use]
    pub fn top(&'static self) -> u64 {
        (self.0.get().addr() + BYTES) as u64
    }
}

impl<const BYTES: usize> Default for EntryStack<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}

/// A stack for one paranoid vector of one CPU, with that CPU's header address above its top.
///
/// NMI, #MC, #DB and #DF can arrive while GS base is still the user's, so their stub may not ask GS where the per-CPU
/// data is. It reads the answer from the word that [`IstStack::top`] points at, just above the frame that the CPU
/// pushes, and compares it with GS base: equality means that GS is usable, whatever put the value there, so a user who
/// can write GS base gains nothing by forging it.
///
/// The word behind it is 1 while an event is on the stack, so that a second one is noticed, which has destroyed the first:
/// [`Kernel::nested_paranoid`](crate::kernel::Kernel::nested_paranoid).
///
/// ```
/// use entry_core::percpu::{IstStack, PerCpuHeader};
/// static HEADER: PerCpuHeader = PerCpuHeader::new();
/// static STACK: IstStack<4096> = IstStack::new();
/// let ist = STACK.bind(&HEADER);
/// assert_eq!(ist % 16, 0);
/// ```
///
/// One on which no handler could run does not compile:
///
/// ```compile_fail,E0080
/// static STACK: entry_core::percpu::IstStack<256> = entry_core::percpu::IstStack::new();
/// # assert_eq!(STACK.top() % 16, 0);
/// ```
#[derive(Debug)]
#[repr(C, align(16))]
pub struct IstStack<const BYTES: usize> {
    stack: core::cell::UnsafeCell<[u8; BYTES]>,
    header: AtomicU64,
    depth: AtomicU64,
}

/// Offset of the depth word from [`IstStack::top`].
pub(crate) const IST_DEPTH: usize = offset_of!(IstStack<16>, depth) - offset_of!(IstStack<16>, header);

// SAFETY: the bytes are written by the CPU that the stack belongs to, and by stubs running on it; Rust code has no
// access to them.
unsafe impl<const BYTES: usize> Sync for IstStack<BYTES> {}

impl<const BYTES: usize> IstStack<BYTES> {
    /// An empty stack. `BYTES` has to be a multiple of 16, and at least 4096: the handler runs on it.
    #[must_use]
    pub const fn new() -> Self {
        const {
            assert!(
                BYTES.is_multiple_of(16) && BYTES >= 4096,
                "the stack size is a multiple of 16, and at least 4096"
            );
        };
        Self {
            stack: core::cell::UnsafeCell::new([0; BYTES]),
            header: AtomicU64::new(0),
            depth: AtomicU64::new(0),
        }
    }

    /// Ties the stack, with nothing on it, to a CPU and returns the value for its IST slot in the TSS.
    #[must_use]
    pub fn bind(&'static self, header: &'static PerCpuHeader) -> u64 {
        self.header
            .store(core::ptr::from_ref(header).addr() as u64, Ordering::Relaxed);
        self.depth.store(0, Ordering::Relaxed);
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
