//! What a #DB was about: DR6.
//!
//! The CPU only ever sets bits of DR6, and a #DB reports what is new by setting more. A handler that looks at the register
//! without clearing it takes an old reason for its own; one that clears it late may clear that of a later #DB. So the stubs'
//! Rust half does both before anything else, and leaves what it found in the frame, where other exceptions have their error
//! code: [`TrapFrame::debug_status`](crate::TrapFrame::debug_status).

use bitflags::bitflags;

use crate::guard::guard;

bitflags! {
    /// Why a #DB was raised: DR6, with every bit that reports something as 1.
    ///
    /// | bit | name | meaning |
    /// |---|---|---|
    /// | 3:0 | B3–B0 | the condition of DR3 to DR0 was met, whether or not DR7 enables it |
    /// | 11 | BLD | a bus lock; 0 in the register |
    /// | 13 | BD | the next instruction accesses a debug register |
    /// | 14 | BS | single step |
    /// | 15 | BT | task switch |
    /// | 16 | RTM | inside a transaction; 0 in the register |
    ///
    /// ```
    /// use entry_core::debug::DebugStatus;
    /// assert_eq!(DebugStatus::from_register(0xffff_0ff0), DebugStatus::empty());
    /// assert_eq!(DebugStatus::from_register(0xffff_4ff1), DebugStatus::STEP | DebugStatus::BREAKPOINT_0);
    /// assert_eq!(DebugStatus::from_register(0xffff_07f0), DebugStatus::BUS_LOCK);
    /// ```
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3B, *Debug Status Register (DR6)*; AMD APM vol. 2, *Debug-Status Register (DR6)*.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct DebugStatus: u64 {
        /// B0.
        const BREAKPOINT_0 = 1 << 0;
        /// B1.
        const BREAKPOINT_1 = 1 << 1;
        /// B2.
        const BREAKPOINT_2 = 1 << 2;
        /// B3.
        const BREAKPOINT_3 = 1 << 3;
        /// BLD.
        const BUS_LOCK = 1 << 11;
        /// BD.
        const REGISTER_ACCESS = 1 << 13;
        /// BS.
        const STEP = 1 << 14;
        /// BT.
        const TASK_SWITCH = 1 << 15;
        /// RTM.
        const TRANSACTION = 1 << 16;
    }
}

impl DebugStatus {
    /// DR6 with nothing to report: bits 31:16, 11 and 10:4 are 1.
    const NOTHING: u64 = 0xffff_0ff0;

    /// Takes an image of DR6. Bits that report nothing are dropped.
    #[must_use]
    #[inline(always)]
    pub const fn from_register(bits: u64) -> Self {
        Self::from_bits_truncate(bits ^ Self::NOTHING)
    }

    /// Reads DR6, and makes it report nothing.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0, and this is the first that looks at DR6 since the #DB that it is about.
    #[inline(always)]
    pub(crate) unsafe fn take() -> Self {
        let bits: u64;
        // SAFETY: reading DR6 changes nothing, and condition 1.
        unsafe { core::arch::asm!("mov {}, dr6", out(reg) bits, options(nomem, nostack, preserves_flags)) };
        if guard!("stale-debug-status", true) {
            // SAFETY: the register only reports, and condition 1.
            unsafe { core::arch::asm!("mov dr6, {}", in(reg) Self::NOTHING, options(nomem, nostack, preserves_flags)) };
        }
        Self::from_register(bits)
    }
}
