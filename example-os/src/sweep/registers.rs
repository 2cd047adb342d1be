//! Everything that a program can see of the CPU's registers, as one comparable value.

use core::fmt;

use entry_core::TrapFrame;
use entry_core::msr::{Cpu, FsBase, GsBase, KernelGsBase, Register};
use entry_core::rflags::Rflags;

use crate::registers::Registers as FrameRegisters;

/// The registers of a frame, and the three bases: FS, GS, kernel GS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registers {
    frame: FrameRegisters,
    bases: [u64; 3],
}

impl Registers {
    pub(super) const ZERO: Self = Self {
        frame: FrameRegisters::ZERO,
        bases: [0; 3],
    };

    /// A frame's registers and the three bases. RF is left out: whether a fault frame has it set is the CPU's business.
    pub(super) const fn new(frame: &TrapFrame, fs_base: u64, gs_base: u64, kernel_gs_base: u64) -> Self {
        let frame_registers = FrameRegisters::read(frame);
        let rflags = frame.rflags() & !Rflags::RESUME.bits();
        Self {
            frame: frame_registers.with(FrameRegisters::RFLAGS, rflags),
            bases: [fs_base, gs_base, kernel_gs_base],
        }
    }

    /// A frame's registers, and the bases as they are now.
    pub(super) fn read(frame: &TrapFrame) -> Self {
        // SAFETY: 1. this is the kernel. 2. Every x86-64 CPU has the register.
        let fs_base = unsafe { FsBase::read(&mut Cpu) };
        // SAFETY: as above.
        let gs_base = unsafe { GsBase::read(&mut Cpu) };
        // SAFETY: as above.
        let kernel_gs_base = unsafe { KernelGsBase::read(&mut Cpu) };
        Self::new(frame, fs_base.bits(), gs_base.bits(), kernel_gs_base.bits())
    }

    /// What differs from `wanted`, for people.
    pub(super) const fn differences<'a>(&'a self, wanted: &'a Self) -> Differences<'a> {
        Differences { seen: self, wanted }
    }
}

/// The words that differ.
pub(super) struct Differences<'a> {
    seen: &'a Registers,
    wanted: &'a Registers,
}

impl fmt::Display for Differences<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seen.frame.differences(&self.wanted.frame))?;
        if self.seen.bases != self.wanted.bases {
            write!(
                f,
                " bases of FS, GS, kernel GS are {:x?}, were to be {:x?};",
                self.seen.bases, self.wanted.bases
            )?;
        }
        Ok(())
    }
}
