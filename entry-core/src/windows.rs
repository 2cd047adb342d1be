//! Where in the stubs GS, RSP and CR3 are whose, as records that the stubs themselves leave behind.
//!
//! Each stub emits a record for every stretch in which the machine is not wholly the kernel's: GS base, RSP or CR3 is still,
//! or again, the user's; and one for each IRETQ that returns to user mode, so that a fault of exactly that
//! instruction can be told from any other. The records lie in the section `entry_windows`, and in `entry_windows_irqs_on` and
//! `entry_windows_iret` those that an entry looks for: a kernel may have hundreds of windows, and few of these. A kernel's
//! linker script has to keep all three, each as an output section of that name
//! (`entry_windows : { KEEP(*(entry_windows)) }`); the linker provides the symbols of their bounds.
//!
//! Addresses are stored relative to the record, so the section is read-only and needs no relocation at load time.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::kernel::Options;

/// What holds while RIP is in a window. Bits of a record's third word.
pub mod flags {
    /// GS base is the user's.
    pub const USER_GS: u32 = 1 << 0;
    /// RSP is the user's, or no stack at all.
    pub const USER_RSP: u32 = 1 << 1;
    /// The window is one IRETQ that leaves for user mode: GS base is the user's, RSP points at the frame's RIP word.
    pub const IRET: u32 = 1 << 2;
    /// RFLAGS may hold the user's TF, NT, AC and IOPL: after SYSENTER, which clears none of them. With TF, the CPU raises
    /// #DB at each instruction of the window; its handler has to ignore the single step.
    pub const USER_FLAGS: u32 = 1 << 3;
    /// CR3 selects the user's tables, in stubs with [`Options::KPTI`](crate::kernel::Options::KPTI).
    pub const USER_CR3: u32 = 1 << 4;
    /// Maskable interrupts may arrive: only in stubs for [`InterruptsOnEntry`](crate::irqs_on::InterruptsOnEntry), whose
    /// interrupts look for nothing else.
    pub const IRQS_ON: u32 = 1 << 5;
}

/// Emits a window record: from a numeric label behind to a numeric label ahead or behind, with flags from [`flags`]
/// passed as a `const` operand.
///
/// Expands to a string literal for `naked_asm!`: `entry_window!("2b", "3f", "{user_gs}")`.
#[macro_export]
macro_rules! entry_window {
    ($start:literal, $end:literal, $flags:literal) => {
        $crate::entry_window_records!($start, $end, $flags, "0")
    };
}

/// As [`entry_window!`](crate::entry_window), for a window that is left for a numeric label behind if an interrupt in it
/// leaves work: see [`Window::restart`].
#[macro_export]
macro_rules! entry_restart_window {
    ($start:literal, $end:literal, $flags:literal, $restart:literal) => {
        $crate::entry_window_records!($start, $end, $flags, concat!($restart, " - ."))
    };
}

/// The record, and copies in the sections of what entries look for. The numbers are those of [`flags::IRQS_ON`] and
/// [`flags::IRET`].
#[doc(hidden)]
#[macro_export]
macro_rules! entry_window_records {
    ($start:literal, $end:literal, $flags:literal, $restart:expr) => {
        concat!(
            $crate::entry_window_record!("entry_windows", $start, $end, $flags, $restart),
            "\n.if ",
            $flags,
            " & 32\n",
            $crate::entry_window_record!("entry_windows_irqs_on", $start, $end, $flags, $restart),
            "\n.endif\n.if ",
            $flags,
            " & 4\n",
            $crate::entry_window_record!("entry_windows_iret", $start, $end, $flags, $restart),
            "\n.endif"
        )
    };
}

/// One record.
#[doc(hidden)]
#[macro_export]
macro_rules! entry_window_record {
    ($section:literal, $start:literal, $end:literal, $flags:literal, $restart:expr) => {
        concat!(
            ".pushsection ",
            $section,
            ",\"aR\",@progbits\n",
            ".balign 4\n",
            ".long ",
            $start,
            " - .\n",
            ".long ",
            $end,
            " - ",
            $start,
            "\n",
            ".long ",
            $flags,
            "\n",
            ".long ",
            $restart,
            "\n",
            ".popsection"
        )
    };
}

const _: () = assert!(flags::IRQS_ON == 32 && flags::IRET == 4);

/// [`flags::USER_CR3`] for stubs with [`Options::KPTI`].
#[must_use]
pub const fn user_cr3<O: Options>() -> u32 {
    if O::KPTI { flags::USER_CR3 } else { 0 }
}

/// A stretch of a stub. Made by [`entry_window!`](crate::entry_window), read by [`find`].
#[derive(Debug)]
#[repr(C)]
pub struct Window {
    start: i32,
    bytes: u32,
    flags: u32,
    /// 0 if there is none.
    restart: i32,
}

impl Window {
    /// Address of the first instruction.
    #[must_use]
    #[inline(always)]
    pub fn start(&self) -> u64 {
        (core::ptr::from_ref(&self.start).addr() as u64).wrapping_add_signed(i64::from(self.start))
    }

    /// Address of the first byte after the last instruction.
    #[must_use]
    #[inline(always)]
    pub fn end(&self) -> u64 {
        self.start() + u64::from(self.bytes)
    }

    #[inline(always)]
    const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bits of [`flags`].
    #[must_use]
    pub const fn flags(&self) -> u32 {
        self.flags
    }

    /// Where an exit begins that tests for work: an interrupt in the window which leaves some goes back to it, with RSP at the
    /// frame and the kernel's GS base, or the work would wait for the next entry.
    #[must_use]
    pub fn restart(&self) -> Option<u64> {
        let word = core::ptr::from_ref(&self.restart).addr() as u64;
        (self.restart != 0).then(|| word.wrapping_add_signed(i64::from(self.restart)))
    }

    /// Whether `rip` is the address of an instruction in this window.
    #[must_use]
    #[inline(always)]
    pub fn contains(&self, rip: u64) -> bool {
        // One comparison: what lies before the window is far beyond its length.
        rip.wrapping_sub(self.start()) < u64::from(self.bytes)
    }
}

/// A section of records, named by the symbols of its bounds, which holds an empty one at least: an image without stubs has
/// it, too.
macro_rules! section {
    ($name:ident, $section:literal, $start:literal, $stop:literal) => {
        #[inline(always)]
        fn $name() -> &'static [Window] {
            #[used]
            #[unsafe(link_section = $section)]
            static NONE: Window = Window {
                start: 0,
                bytes: 0,
                flags: 0,
                restart: 0,
            };
            unsafe extern "C" {
                #[link_name = $start]
                static FIRST: Window;
                #[link_name = $stop]
                static LAST: Window;
            }
            let first = &raw const FIRST;
            let bytes = (&raw const LAST).addr() - first.addr();
            // SAFETY: the linker defines the two symbols as the bounds of the section, which holds records of this type
            // alone, each 4-byte aligned; it is never written.
            unsafe { core::slice::from_raw_parts(first, bytes / size_of::<Window>()) }
        }
    };
}

section!(every, "entry_windows", "__start_entry_windows", "__stop_entry_windows");
section!(
    irqs_on,
    "entry_windows_irqs_on",
    "__start_entry_windows_irqs_on",
    "__stop_entry_windows_irqs_on"
);
section!(
    iret,
    "entry_windows_iret",
    "__start_entry_windows_iret",
    "__stop_entry_windows_iret"
);

/// All windows of the image.
#[must_use]
pub fn all() -> &'static [Window] {
    every()
}

/// The window that `rip` lies in, if any. Every record is looked at: this is for diagnostics, and not for entry paths.
///
/// ```
/// assert!(entry_core::windows::find(0).is_none());
/// ```
#[must_use]
pub fn find(rip: u64) -> Option<&'static Window> {
    all().iter().find(|window| window.contains(rip))
}

/// What is known of a section's windows: the lowest and the highest address in them, for nearly every RIP that an entry asks
/// about lies outside; and whether the records are in the order of their addresses, as linkers leave them.
///
/// Until they are learned the bounds are those of the address space, and nothing is known of the order. Each word changes
/// once. So no window is ever outside, whatever mix of old and new ones a CPU sees while another writes them.
struct Extent {
    first: AtomicU64,
    last: AtomicU64,
    is_sorted: AtomicBool,
}

impl Extent {
    const fn unknown() -> Self {
        Self {
            first: AtomicU64::new(0),
            last: AtomicU64::new(u64::MAX),
            is_sorted: AtomicBool::new(false),
        }
    }

    fn learn(&self, windows: &[Window]) {
        if self.last.load(Ordering::Relaxed) < u64::MAX {
            return;
        }
        let (mut first, mut last) = (u64::MAX, 0);
        for window in windows.iter().filter(|window| !window.is_empty()) {
            first = first.min(window.start());
            last = last.max(window.end() - 1);
        }
        // Empty ones may only come last: see the search.
        let is_sorted =
            windows.is_sorted_by(|one, next| next.is_empty() || (!one.is_empty() && one.end() <= next.start()));
        self.is_sorted.store(is_sorted, Ordering::Relaxed);
        self.first.store(first, Ordering::Relaxed);
        self.last.store(last, Ordering::Relaxed);
    }

    /// The window of `windows`, the section that this is about, that `rip` lies in.
    #[inline(always)]
    fn find(&self, windows: &'static [Window], rip: u64) -> Option<&'static Window> {
        if rip < self.first.load(Ordering::Relaxed) || rip > self.last.load(Ordering::Relaxed) {
            return None;
        }
        let is_before = |window: &Window| !window.is_empty() && window.end() <= rip;
        let index = if self.is_sorted.load(Ordering::Relaxed) {
            windows.partition_point(is_before)
        } else {
            windows.iter().position(|window| window.contains(rip))?
        };
        windows.get(index).filter(|window| window.contains(rip))
    }
}

static IRQS_ON_EXTENT: Extent = Extent::unknown();
static IRET_EXTENT: Extent = Extent::unknown();

/// Learns between which addresses the windows lie that entries look for, and whether the linker left them in order.
///
/// From now on an entry looks at records only where RIP lies between those, and at few of them if they are.
/// [`Idt::load`](crate::vector::Idt::load) does this; entries are right before it, too, and slower.
pub fn learn_extent() {
    IRQS_ON_EXTENT.learn(irqs_on());
    IRET_EXTENT.learn(iret());
}

/// The window that `rip` lies in, among those where [maskable interrupts may arrive](flags::IRQS_ON).
///
/// An interrupt in the kernel asks this first. Only their records are looked at, and those only within
/// [their extent](learn_extent).
#[must_use]
#[inline(never)]
pub fn find_irqs_on(rip: u64) -> Option<&'static Window> {
    IRQS_ON_EXTENT.find(irqs_on(), rip)
}

/// Whether `rip` is the address of an IRETQ that leaves for user mode.
///
/// An exception in the kernel asks this first. Only their records are looked at, and those only within
/// [their extent](learn_extent).
#[must_use]
#[inline(never)]
pub fn is_iret(rip: u64) -> bool {
    IRET_EXTENT.find(iret(), rip).is_some()
}
