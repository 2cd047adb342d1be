//! DS, ES, FS and GS: 64-bit code has no use for them, and a program can load them all the same.
//!
//! No entry and no exit touches them, so in the kernel they are those of the process that runs. A switch is where they would
//! pass from one process to another: as a channel between the two, and as bases that the other one did not choose. Nearly
//! all processes leave them null, so the switch reads all four and does nothing if they are null and are to be.
//!
//! Loading a selector of the GDT's gives FS and GS the base 0 of its descriptor; a null one leaves a base behind on AMD CPUs,
//! and none on Intel's. So a process with a selector there has base 0, and for all others the base is written after.
//!
//! # Source
//!
//! Intel SDM vol. 2B, *MOV—Move*; AMD APM vol. 2, *Segment Registers*, *FS and GS Registers in 64-Bit Mode*.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use entry_core::{IrqOff, Selector};
use x86_64::instructions::segmentation::{DS, ES, FS, GS, Segment};
use x86_64::structures::gdt::SegmentSelector;

use super::Context;
use crate::entry::{LAYOUT, PerCpu};

/// The four selectors, DS in bits 15:0, ES, FS and GS above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selectors(u64);

impl Selectors {
    /// All null.
    pub(super) const NULL: Self = Self(0);

    /// What a 32-bit program begins with: its data segment in DS and ES.
    pub(super) const fn of_32_bit_code() -> Self {
        let data = LAYOUT.user_data().bits() as u64;
        Self(data << 16 | data)
    }

    /// Those that are loaded.
    pub(super) fn loaded() -> Self {
        let words = [DS::get_reg(), ES::get_reg(), FS::get_reg(), GS::get_reg()].map(|selector| u64::from(selector.0));
        let [ds, es, fs, gs] = words;
        Self(gs << 48 | fs << 32 | es << 16 | ds)
    }

    /// Whether FS and GS select a descriptor, whose base they then have.
    pub(super) const fn have_bases(self) -> (bool, bool) {
        (!self.selector(2).is_null(), !self.selector(3).is_null())
    }

    const fn selector(self, number: u32) -> Selector {
        #[expect(clippy::cast_possible_truncation, reason = "each selector has 16 bits")]
        Selector::from_bits((self.0 >> (16 * number)) as u16)
    }

    /// Loads them. What bases FS and GS have then is for the caller to say.
    fn load(self, irq: &IrqOff) {
        let [ds, es, fs, gs] = [0, 1, 2, 3].map(|number| SegmentSelector::from(self.selector(number)));
        // SAFETY: a program had it loaded, with less privilege, from the same GDT; 64-bit code ignores it.
        unsafe { DS::set_reg(ds) };
        // SAFETY: as DS.
        unsafe { ES::set_reg(es) };
        // SAFETY: as DS; the kernel does not use FS.
        unsafe { FS::set_reg(fs) };
        load_gs(gs, irq);
    }
}

/// Loads GS, whose base is the kernel's before and after.
///
/// Between the two SWAPGS an NMI finds the user's base, as in a window of the stubs, and decides by comparison. MFENCE lets no
/// later SWAPGS pass the load on AMD CPUs.
fn load_gs(gs: SegmentSelector, _irq: &IrqOff) {
    // SAFETY: the selector is one that a program had loaded, or null, so the load does not fault; interrupts are off; the base
    // that it changes is the user's.
    unsafe {
        asm!("swapgs", "mov gs, {0:e}", "mfence", "swapgs", in(reg) u32::from(gs.0), options(nostack, preserves_flags))
    };
}

/// What a process has in the four registers, while it does not run.
#[derive(Debug)]
pub(super) struct Saved(AtomicU64);

impl Saved {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(Selectors::NULL.0))
    }

    pub(super) fn set(&self, selectors: Selectors) {
        self.0.store(selectors.0, Ordering::Relaxed);
    }

    fn get(&self) -> Selectors {
        Selectors(self.0.load(Ordering::Relaxed))
    }
}

/// The part of a switch that belongs to the four registers; before the bases are loaded.
#[inline(always)]
pub(super) fn switch(cpu: &PerCpu, previous: &Context, next: &Context, irq: &IrqOff) {
    // SAFETY: reading selectors changes nothing.
    unsafe {
        asm!(
            "mov {all:e}, ds",
            "mov {one:e}, es",
            "or {all:e}, {one:e}",
            "mov {one:e}, fs",
            "or {all:e}, {one:e}",
            "mov {one:e}, gs",
            "or {all:e}, {one:e}",
            "or {all}, [{next}]",
            "jnz {exchange}",
            all = out(reg) _,
            one = out(reg) _,
            next = in(reg) next.selectors.0.as_ptr(),
            exchange = label { exchange(cpu, previous, next, irq) },
            options(nostack, readonly),
        );
    }
}

#[cold]
#[inline(never)]
fn exchange(cpu: &PerCpu, previous: &Context, next: &Context, irq: &IrqOff) {
    let loaded = Selectors::loaded();
    previous.selectors.set(loaded);
    previous.refresh_bases(cpu);
    // Where a program may write the bases, they have been asked for.
    let (has_fs, has_gs) = if cpu.written_bases().is_some() {
        (false, false)
    } else {
        loaded.have_bases()
    };
    if has_fs {
        previous.fs_base.store(0, Ordering::Relaxed);
    }
    if has_gs {
        previous.gs_base.store(0, Ordering::Relaxed);
    }
    next.selectors.get().load(irq);
    cpu.drop_bases();
}

/// Gives the current process the data segments that 32-bit code needs.
pub(crate) fn load_for_32_bit_code(irq: &IrqOff) {
    load_for_current(Selectors::of_32_bit_code(), irq);
}

/// Gives it what 64-bit code starts with.
pub(crate) fn load_for_64_bit_code(irq: &IrqOff) {
    load_for_current(Selectors::NULL, irq);
}

fn load_for_current(selectors: Selectors, irq: &IrqOff) {
    selectors.load(irq);
    PerCpu::current(irq).forget_bases();
    let context = super::current().context();
    let _ = PerCpu::current(irq).load_fs_base(context.fs_base());
    let _ = PerCpu::current(irq).load_user_gs_base(context.gs_base());
}

/// Makes FS null, for the current process, so that its base is what is written next.
pub(super) fn clear_fs() {
    // SAFETY: null; the kernel does not use FS.
    unsafe { FS::set_reg(SegmentSelector::NULL) };
}

/// Makes GS null, as [`clear_fs`].
pub(super) fn clear_gs(irq: &IrqOff) {
    load_gs(SegmentSelector::NULL, irq);
}
