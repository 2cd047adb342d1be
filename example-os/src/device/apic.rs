//! The local APIC in xAPIC mode: timer and end of interrupt.
//!
//! Registers are memory-mapped, 32 bits wide, 16 bytes apart. The page has a fixed virtual address in the top 2 GiB, so
//! that [`eoi`] is one store. The timer counts down at the bus clock, undivided; on QEMU that is 1 GHz of virtual time.
//!
//! # Source
//!
//! Intel SDM vol. 3A, *Advanced Programmable Interrupt Controller (APIC)*.

use core::fmt;
use core::ptr::NonNull;

use volatile::VolatilePtr;
use x86_64::registers::model_specific::{ApicBase, ApicBaseFlags};

use crate::memory::layout::APIC_WINDOW;

const ID: usize = 0x20;
const TASK_PRIORITY: usize = 0x80;
const END_OF_INTERRUPT: usize = 0xb0;
const SPURIOUS: usize = 0xf0;
/// The first of eight registers.
const IN_SERVICE: usize = 0x100;
const COMMAND_LOW: usize = 0x300;
const COMMAND_HIGH: usize = 0x310;
const LVT_TIMER: usize = 0x320;
const LVT_LINT0: usize = 0x350;
const LVT_LINT1: usize = 0x360;
const LVT_ERROR: usize = 0x370;
const INITIAL_COUNT: usize = 0x380;
const CURRENT_COUNT: usize = 0x390;
const DIVIDE_CONFIGURATION: usize = 0x3e0;

const SOFTWARE_ENABLE: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;
const DELIVERY_NMI: u32 = 4 << 8;
const COMMAND_ASSERT: u32 = 1 << 14;
const COMMAND_TO_SELF: u32 = 1 << 18;
const DIVIDE_BY_1: u32 = 0b1011;

/// The vector of spurious interrupts. Its handler sends no end of interrupt.
pub const SPURIOUS_VECTOR: u8 = 0xff;

/// Why there is no usable local APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApicError {
    /// CPUID reports no local APIC.
    Missing,
    /// The firmware left the APIC in x2APIC mode; wanted xAPIC.
    X2Apic {
        /// The value of `IA32_APIC_BASE`.
        base: u64,
    },
}

impl fmt::Display for ApicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("the CPU has no local APIC"),
            Self::X2Apic { base } => write!(f, "local APIC is in x2APIC mode (base {base:#x}), wanted xAPIC"),
        }
    }
}

impl core::error::Error for ApicError {}

fn register(offset: usize) -> VolatilePtr<'static, u32> {
    let address = NonNull::with_exposed_provenance(APIC_WINDOW | offset);
    // SAFETY: the kernel tables map one page of device memory at `APIC_WINDOW`, for good, and `offset` is that of a
    // 32-bit register in it.
    unsafe { VolatilePtr::new(address) }
}

/// The physical address of the APIC page.
///
/// # Errors
///
/// [`ApicError`] when there is none or it is not in xAPIC mode.
pub(crate) fn physical_base() -> Result<u64, ApicError> {
    if !crate::boot::cpu::features().apic {
        return Err(ApicError::Missing);
    }
    let (page, flags) = ApicBase::read();
    let page = page.start_address().as_u64();
    if flags.contains(ApicBaseFlags::X2APIC_ENABLE) {
        return Err(ApicError::X2Apic {
            base: page | flags.bits(),
        });
    }
    Ok(page)
}

/// Enables the APIC with every local source masked and all priorities accepted.
pub(crate) fn init() {
    let (page, flags) = ApicBase::read();
    if !flags.contains(ApicBaseFlags::LAPIC_ENABLE) {
        // SAFETY: the value is the one read, with the enable bit set.
        unsafe { ApicBase::write(page, flags | ApicBaseFlags::LAPIC_ENABLE) };
    }
    register(SPURIOUS).write(SOFTWARE_ENABLE | u32::from(SPURIOUS_VECTOR));
    for source in [LVT_TIMER, LVT_LINT0, LVT_ERROR] {
        register(source).write(MASKED);
    }
    register(LVT_LINT1).write(DELIVERY_NMI);
    register(TASK_PRIORITY).write(0);
    register(DIVIDE_CONFIGURATION).write(DIVIDE_BY_1);
}

/// Ends the interrupt in service.
#[inline(always)]
pub fn eoi() {
    register(END_OF_INTERRUPT).write(0);
}

/// Whether an interrupt of this vector has been delivered and not been ended: INT n delivers none.
#[must_use]
pub fn is_in_service(vector: u8) -> bool {
    let number = usize::from(vector);
    register(IN_SERVICE + number / 32 * 16).read() >> (number % 32) & 1 == 1
}

/// Raises `vector` once, after `count` bus clocks.
#[inline(always)]
pub fn timer_one_shot(vector: u8, count: u32) {
    register(LVT_TIMER).write(u32::from(vector));
    register(INITIAL_COUNT).write(count);
}

/// Raises `vector` every `count` bus clocks.
pub fn timer_periodic(vector: u8, count: u32) {
    register(LVT_TIMER).write(PERIODIC | u32::from(vector));
    register(INITIAL_COUNT).write(count);
}

/// Stops the timer. An interrupt that it has already raised still arrives.
pub fn timer_stop() {
    register(LVT_TIMER).write(MASKED);
    register(INITIAL_COUNT).write(0);
}

/// Sends an NMI to this CPU, which takes it after one of the next instructions.
pub fn send_nmi_to_self() {
    let id = register(ID).read();
    register(COMMAND_HIGH).write(id);
    register(COMMAND_LOW).write(COMMAND_ASSERT | DELIVERY_NMI);
}

/// Raises `vector` on this CPU, as a device would.
pub fn send_to_self(vector: u8) {
    register(COMMAND_LOW).write(self_command(vector));
}

/// The store by which [`send_to_self`] does that: where, and what.
pub(crate) fn interrupt_to_self(vector: u8) -> (*mut u32, u32) {
    (register(COMMAND_LOW).as_raw_ptr().as_ptr(), self_command(vector))
}

const fn self_command(vector: u8) -> u32 {
    COMMAND_TO_SELF | COMMAND_ASSERT | vector as u32
}

/// Sends an NMI once, after `count` bus clocks. The manuals reserve this delivery mode for other sources than the timer;
/// QEMU delivers it, Bochs does not.
#[inline(always)]
pub fn timer_nmi(count: u32) {
    register(LVT_TIMER).write(DELIVERY_NMI);
    register(INITIAL_COUNT).write(count);
}

/// Lets the timer count down from `count` without raising anything.
#[inline(always)]
pub fn timer_silent(count: u32) {
    register(LVT_TIMER).write(MASKED);
    register(INITIAL_COUNT).write(count);
}

/// What is left of the timer's count.
#[must_use]
pub fn timer_count() -> u32 {
    register(CURRENT_COUNT).read()
}
