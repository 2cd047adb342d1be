//! Why a frame can't be left with: one variant per hazard, each the hazard's page.
//!
//! A refusal is made while the CPU is still wholly in the kernel: kernel GS, kernel stack, interrupts off, the frame as it was.
//! The kernel repairs the frame, or makes the thread end; it must not pass the same frame again.
//!
//! Falling back from SYSRET to IRET is no remedy for any of these. IRET faults in ring 0 on a RIP that is not canonical as
//! SYSRET does; it returns to ring 0 without a fault if the frame says so.

use core::error::Error;
use core::fmt;

/// Why neither SYSRET nor IRET may consume a frame. Each variant carries the word that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The kind word is none that an entry stub writes: the frame was overwritten, or the pointer is wrong.
    ///
    /// **The CPU** has no part in this. **Attack**: a write beyond a buffer on the kernel stack reaches the frame; the
    /// kind word lies between the registers and the words that decide about privilege.
    ///
    /// # Source
    ///
    /// The layout in [`entry_core::frame`].
    UnknownEntryKind,
    /// RIP is not canonical.
    ///
    /// **Intel**: SYSRETQ and IRETQ raise #GP *in ring 0*, before the privilege level changes. At SYSRETQ the stack pointer
    /// and GS are already the user's, so the CPU writes the fault frame to an address that the user chose and the handler runs
    /// with the user's GS. **AMD**: SYSRETQ faults in ring 3; IRETQ in ring 0. **Emulators**: QEMU's TCG faults in ring 3 in
    /// both cases and hides this.
    ///
    /// **Attack** (CVE-2012-0217, and CVE-2006-0744 before): place SYSCALL in the last two bytes below the hole, or have a
    /// debugger, a signal frame, exec or fork store such a RIP (CVE-2014-4699). The test therefore stands at the exit, on
    /// the word that is consumed, and not at the setters.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSRET—Return From Fast System Call*; vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*; AMD APM vol. 3,
    /// *SYSRET*, *IRET*.
    NonCanonicalRip {
        /// RIP.
        rip: u64,
    },
    /// RIP is a canonical address of the kernel's half.
    ///
    /// **Intel and AMD**: the exit succeeds and the first fetch in ring 3 faults, if the page is a supervisor page. A kernel
    /// page that is mapped for the user (a vsyscall page, a trampoline) would run, and with Meltdown-class bugs the address alone
    /// is a probe.
    ///
    /// **Attack**: rewrites that pass a test for canonical addresses only.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *Determination of Access Rights*; AMD APM vol. 2, *Page-Protection Checks*.
    KernelRip {
        /// RIP.
        rip: u64,
    },
    /// RIP is in the lower half, at or above the end of user space.
    ///
    /// **Intel and AMD**: nothing happens at the exit itself. In the last page below the hole a SYSCALL in the last bytes has
    /// a return address that is not canonical, without any rewriting; some early AMD parts hang when they fetch across the
    /// boundary (CVE-2012-2934). With a limit that is lower than the paging mode's, the address may belong to something
    /// else that the kernel keeps there.
    ///
    /// **Attack**: map or jump to the last page.
    ///
    /// # Source
    ///
    /// AMD, *Revision Guide for AMD Athlon 64 and AMD Opteron Processors*, erratum 121; Intel SDM vol. 1, *Canonical Addressing*.
    RipAboveUserLimit {
        /// RIP.
        rip: u64,
    },
    /// CS is the 32-bit code segment and RIP is 4 GiB or more.
    ///
    /// **Intel and AMD**: IRETQ to compatibility mode tests RIP against the segment's limit and raises #GP in ring 0; SYSRETL
    /// takes the low 32 bits and resumes somewhere else.
    ///
    /// **Attack**: a 32-bit debugger or signal frame with garbage in the upper half.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*; vol. 2B, *SYSRET—Return From Fast System Call*.
    RipAboveCode32 {
        /// RIP.
        rip: u64,
    },
    /// The RPL of CS is not 3.
    ///
    /// **Intel and AMD**: IRETQ takes the new privilege level from the RPL of CS. With RPL 0 and the kernel's code selector
    /// it returns to ring 0, at the RIP of the frame, without a fault. With another RPL it faults in ring 0. SYSRET ignores CS.
    ///
    /// **Attack**: a signal frame or a debugger that writes CS. There is nothing else to do for the attacker.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*; AMD APM vol. 3, *IRET*.
    KernelCodeSegment {
        /// CS.
        cs: u64,
    },
    /// CS is a selector of the local descriptor table (bit 2, TI, is 1).
    ///
    /// **Intel and AMD**: IRETQ reads a descriptor that the program may change, on another CPU, between the test and the
    /// instruction; not present is #NP, anything else wrong is #GP, both in ring 0 with the user's GS. With LDTR never
    /// loaded, its limit after reset is 64 KiB at address 0.
    ///
    /// **Attack** (CVE-2014-9090, CVE-2014-9322): bring such a fault about, and have its handler run with the wrong GS.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *Segment Selectors*; AMD APM vol. 2, *Segment Selectors*.
    LocalCodeSegment {
        /// CS.
        cs: u64,
    },
    /// CS has RPL 3 and TI 0, but is no code selector that the rules list.
    ///
    /// **Intel and AMD**: IRETQ raises #GP or #NP in ring 0 for most of them (beyond the GDT's limit, a data segment, a system
    /// segment). The 32-bit code selector is good for the CPU; it is here when the rules don't allow 32-bit code.
    /// Bits 63:16 of the word are ignored by the CPU and must be 0 here.
    ///
    /// **Attack**: as for a local selector, by way of the kernel's own table.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*.
    UnlistedCodeSegment {
        /// CS.
        cs: u64,
    },
    /// SS is null: 0 to 3.
    ///
    /// **Intel and AMD**: IRETQ to ring 3 with a null SS raises #GP in ring 0. (To ring 0 to 2 in 64-bit mode null is allowed.)
    ///
    /// **Attack**: a signal frame with SS = 0; programs for kernels that do not save SS write that in good faith.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*; AMD APM vol. 3, *IRET*.
    NullStackSegment {
        /// SS.
        ss: u64,
    },
    /// The RPL of SS is not 3.
    ///
    /// **Intel and AMD**: IRETQ raises #GP in ring 0 if the RPL of SS differs from that of CS. An STAR whose SYSRET base has
    /// RPL 0 produces such frames by itself on **AMD**, which loads SS as it is; **Intel** sets the RPL to 3.
    ///
    /// **Attack**: a signal frame or a debugger that writes SS.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSRET—Return From Fast System Call*; AMD APM vol. 3, *SYSRET*.
    KernelStackSegment {
        /// SS.
        ss: u64,
    },
    /// SS is a selector of the local descriptor table.
    ///
    /// **Intel and AMD**: as for CS, with #SS for a segment that is not present; and IRET to a 16-bit stack segment loads
    /// 16 bits of the stack pointer and leaves the kernel's in bits 31:16, which the user then reads.
    ///
    /// **Attack** (CVE-2014-8133, CVE-2014-8134): read kernel addresses by way of a 16-bit stack.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*; vol. 3A, *Segment Selectors*.
    LocalStackSegment {
        /// SS.
        ss: u64,
    },
    /// SS has RPL 3 and TI 0, but is not the user data selector.
    ///
    /// **Intel and AMD**: #GP in ring 0 for anything but a writable data segment of DPL 3, #SS if that is not present. A
    /// 16-bit one in the GDT leaks as a local one does.
    ///
    /// **Attack**: as for a local selector.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*.
    UnlistedStackSegment {
        /// SS.
        ss: u64,
    },
    /// RFLAGS.VM is 1.
    ///
    /// **Intel and AMD**: SYSRET clears VM; IRETQ in 64-bit mode ignores it. **Emulators**: QEMU's TCG loads VM by SYSRET and
    /// then treats the program's INT instructions as those of virtual-8086 mode.
    ///
    /// **Attack**: a signal frame that sets it.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSRET—Return From Fast System Call*; AMD APM vol. 3, *SYSRET*.
    Virtual8086 {
        /// RFLAGS.
        rflags: u64,
    },
    /// RFLAGS.VIF or RFLAGS.VIP is 1.
    ///
    /// **Intel and AMD**: both exits load them at CPL 0. With CR4.PVI on, VIP together with VIF makes the program's next
    /// instruction fault, and STI and CLI act on VIF.
    ///
    /// **Attack**: a signal frame that sets them; a kernel that does not know them runs a program whose faults make no sense.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3B, *Protected-Mode Virtual Interrupts*.
    VirtualInterrupts {
        /// RFLAGS.
        rflags: u64,
    },
    /// A bit of RFLAGS that has no meaning is 1: 3, 5, 15 or 63:22.
    ///
    /// **Intel**: SYSRET clears them, IRETQ ignores them. **AMD**: software must keep what it read. Emulators load some.
    ///
    /// **Attack**: none known; it is a sign that the frame is not what it should be, and a bit may get a meaning.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 1, *EFLAGS Register*; AMD APM vol. 2, *RFLAGS Register*.
    ReservedFlags {
        /// RFLAGS.
        rflags: u64,
    },
    /// RFLAGS.IOPL is above 0 and the rules do not allow that.
    ///
    /// **Intel and AMD**: both exits load IOPL at CPL 0, without a further test. With IOPL 3 the program has all ports and
    /// may execute CLI and STI.
    ///
    /// **Attack**: a signal frame with IOPL = 3 is the whole exploit.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 1, *I/O Privilege Level*; vol. 2B, *SYSRET—Return From Fast System Call*.
    IoPrivilege {
        /// RFLAGS.
        rflags: u64,
    },
    /// RFLAGS.IF is 0, and the program could not have cleared it.
    ///
    /// **Intel and AMD**: both exits load IF. The program then runs until it enters the kernel by itself: no timer, no
    /// preemption.
    ///
    /// **Attack**: a signal frame with IF = 0, and a loop.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *Masking Maskable Hardware Interrupts*.
    InterruptsOff {
        /// RFLAGS.
        rflags: u64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownEntryKind => f.write_str("kind word is none that an entry stub writes"),
            Self::NonCanonicalRip { rip } => write!(f, "rip {rip:#x} is not canonical"),
            Self::KernelRip { rip } => write!(f, "rip {rip:#x} is in the kernel's half"),
            Self::RipAboveUserLimit { rip } => write!(f, "rip {rip:#x} is not below the end of user space"),
            Self::RipAboveCode32 { rip } => write!(f, "rip {rip:#x} of 32-bit code is not below 4 GiB"),
            Self::KernelCodeSegment { cs } => write!(f, "cs {cs:#x} has an rpl other than 3"),
            Self::LocalCodeSegment { cs } => write!(f, "cs {cs:#x} is in the local descriptor table"),
            Self::UnlistedCodeSegment { cs } => write!(f, "cs {cs:#x} is no allowed user code selector"),
            Self::NullStackSegment { ss } => write!(f, "ss {ss:#x} is null"),
            Self::KernelStackSegment { ss } => write!(f, "ss {ss:#x} has an rpl other than 3"),
            Self::LocalStackSegment { ss } => write!(f, "ss {ss:#x} is in the local descriptor table"),
            Self::UnlistedStackSegment { ss } => write!(f, "ss {ss:#x} is not the user data selector"),
            Self::Virtual8086 { rflags } => write!(f, "rflags {rflags:#x} has VM set"),
            Self::VirtualInterrupts { rflags } => write!(f, "rflags {rflags:#x} has VIF or VIP set"),
            Self::ReservedFlags { rflags } => write!(f, "rflags {rflags:#x} has reserved bits set"),
            Self::IoPrivilege { rflags } => write!(f, "rflags {rflags:#x} has an iopl above 0"),
            Self::InterruptsOff { rflags } => write!(f, "rflags {rflags:#x} has IF clear"),
        }
    }
}

impl Error for Refusal {}
