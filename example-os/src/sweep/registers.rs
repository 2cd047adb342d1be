//! Everything that a program can see of the CPU's registers, as one comparable value.

use core::fmt;

use entry_core::TrapFrame;
use entry_core::msr::{Cpu, FsBase, GsBase, KernelGsBase, Register};
use entry_core::rflags::Rflags;

/// Names of the words, in order.
const NAMES: [&str; 23] = [
    "rax",
    "rbx",
    "rcx",
    "rdx",
    "rsi",
    "rdi",
    "rbp",
    "r8",
    "r9",
    "r10",
    "r11",
    "r12",
    "r13",
    "r14",
    "r15",
    "rip",
    "rflags",
    "rsp",
    "cs",
    "ss",
    "fs base",
    "gs base",
    "kernel gs base",
];

/// The words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registers([u64; NAMES.len()]);

impl Registers {
    pub(super) const ZERO: Self = Self([0; NAMES.len()]);

    /// A frame's registers and the three bases. RF is left out: whether a fault frame has it set is the CPU's business.
    pub(super) const fn new(frame: &TrapFrame, fs_base: u64, gs_base: u64, kernel_gs_base: u64) -> Self {
        Self([
            frame.rax(),
            frame.rbx(),
            frame.rcx(),
            frame.rdx(),
            frame.rsi(),
            frame.rdi(),
            frame.rbp(),
            frame.r8(),
            frame.r9(),
            frame.r10(),
            frame.r11(),
            frame.r12(),
            frame.r13(),
            frame.r14(),
            frame.r15(),
            frame.rip(),
            frame.rflags() & !Rflags::RESUME.bits(),
            frame.rsp(),
            frame.cs(),
            frame.ss(),
            fs_base,
            gs_base,
            kernel_gs_base,
        ])
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
        for ((name, seen), wanted) in NAMES.iter().zip(self.seen.0).zip(self.wanted.0) {
            if seen != wanted {
                write!(f, " {name} is {seen:#x}, was to be {wanted:#x};")?;
            }
        }
        Ok(())
    }
}
