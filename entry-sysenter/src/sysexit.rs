//! Leaving by SYSEXIT: a check, and then a step that takes the checked value.
//!
//! SYSEXIT loads RIP from RDX and RSP from RCX, CS and SS from fixed distances to `IA32_SYSENTER_CS`, and nothing else.
//!
//! **Prefer SYSRETL or IRET**, which the exit named by [`Kernel::Exit`](entry_core::Kernel::Exit) chooses between. They are
//! the way out that the stubs of this crate take, on Intel CPUs too: SYSRETL there is legal although SYSCALL from 32-bit
//! code is not. What speaks against SYSEXIT:
//!
//! - It restores no flags, so IF has to be set before it. Between STI and SYSEXIT the CPU is in ring 0 with the user's GS
//!   base, and only STI's shadow of one instruction keeps interrupts out. An NMI in the shadow ends it: whether the
//!   shadow is still there after the NMI's IRET is not defined, and an interrupt at that point finds kernel CS with
//!   user GS.
//! - Both operands can fault in ring 0 when they are not canonical, RSP too, which neither SYSRET nor IRET look at.
//! - It destroys RDX as well as RCX.
//! - The 64-bit form loads SS with another selector than SYSRET does (0x33 with the natural layout). From then on frames have
//!   that selector, and an exit that lists the selectors it allows has to list this one. The exits of `entry-sysret` do not:
//!   with them the next interrupt ends the program as refused, so 64-bit SYSEXIT is not supported beside them.
//! - It exists on Intel CPUs alone.
//! - The exits here do nothing of what [`Options`](entry_core::kernel::Options) ask of an exit.
//!
//! It is here for kernels that measure it, and for those that must use it.
//!
//! ```
//! use entry_core::address::{UserLimit, Width};
//! use entry_core::{SegmentLayout, TrapFrame};
//! use entry_sysenter::error::SysexitRefusal;
//! use entry_sysenter::sysexit::{Sysexit, SysexitRules};
//!
//! const RULES: SysexitRules = match SysexitRules::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48) {
//!     Ok(rules) => rules,
//!     Err(_) => panic!("the layout has no segments for SYSEXIT"),
//! };
//! // A frame that no SYSENTER stub has made has live registers.
//! assert_eq!(Sysexit::check(&TrapFrame::zeroed(), &RULES).err(), Some(SysexitRefusal::LiveRegisters));
//! ```
//!
//! # Source
//!
//! Intel SDM vol. 2B, *SYSEXIT—Fast Return from Fast System Call*; vol. 2B, *STI—Set Interrupt Flag*.

use core::arch::naked_asm;

use entry_core::address::{UserLimit, Width};
use entry_core::rflags::Rflags;
use entry_core::windows::flags;
use entry_core::{EntryKind, SegmentLayout, TrapFrame, UserReturn, entry_window};

use crate::error::{NoSysexitSegments, Operand64, SysexitRefusal};
use crate::guard::guard;

/// What a frame may hold that leaves by SYSEXIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysexitRules {
    code64: u64,
    code32: u64,
    data: u64,
    limit: UserLimit,
    width: Width,
    is_rdx_destroyed: bool,
}

impl SysexitRules {
    /// Rules for the selectors of `layout` and user space below `limit`, in a paging mode of `width`. A limit above the highest
    /// one for `width` is lowered to that.
    ///
    /// # Errors
    ///
    /// The layout has no segments where SYSEXIT looks for them:
    /// [`sysexit_data`](entry_core::segment::Selectors::sysexit_data) is `None`.
    pub const fn new(layout: &SegmentLayout, limit: UserLimit, width: Width) -> Result<Self, NoSysexitSegments> {
        // A layout with data for SYSEXIT was checked for all four of its relations.
        let (Some(_), Some(code32)) = (layout.sysexit_data(), layout.user_code32()) else {
            return Err(NoSysexitSegments);
        };
        Ok(Self {
            code64: layout.user_code64().bits() as u64,
            code32: code32.bits() as u64,
            data: layout.user_data().bits() as u64,
            limit: limit.within(width),
            width,
            is_rdx_destroyed: false,
        })
    }

    /// States that 64-bit programs expect SYSENTER to destroy RDX, which the contract of
    /// [`sysenter64_entry`](crate::stub::sysenter64_entry) does not say. Without it, 64-bit frames are refused.
    #[must_use]
    pub const fn with_rdx_destroyed(self) -> Self {
        Self {
            is_rdx_destroyed: true,
            ..self
        }
    }
}

/// A frame that SYSEXIT can leave with. It holds the frame borrowed, so nothing changes what was checked.
///
/// ```compile_fail,E0502
/// # use entry_core::TrapFrame;
/// # use entry_sysenter::sysexit::{Sysexit, SysexitRules};
/// fn too_late(frame: &mut TrapFrame, rules: &SysexitRules) {
///     let checked = Sysexit::check(frame, rules);
///     frame.set_rip(0x8000_0000_0000);
///     let _ = checked.is_ok();
/// }
/// ```
///
/// ```
/// # use entry_core::TrapFrame;
/// # use entry_sysenter::sysexit::{Sysexit, SysexitRules};
/// fn in_time(frame: &mut TrapFrame, rules: &SysexitRules) {
///     frame.set_rip(0x8000_0000_0000);
///     let checked = Sysexit::check(frame, rules);
///     let _ = checked.is_ok();
/// }
/// ```
#[derive(Debug)]
pub struct Sysexit<'f> {
    frame: &'f TrapFrame,
    is_64_bit: bool,
}

impl<'f> Sysexit<'f> {
    /// Checks a frame. Its kind says whether it is of 64-bit or of 32-bit code, and CS has to agree.
    ///
    /// # Errors
    ///
    /// The first [`SysexitRefusal`] that applies. The kernel leaves by another way then, or not at all: the exit that the
    /// stubs jump to decides.
    pub const fn check(frame: &'f TrapFrame, rules: &SysexitRules) -> Result<Self, SysexitRefusal> {
        let is_64_bit = match frame.entry_kind() {
            Some(EntryKind::Sysenter32) => false,
            Some(EntryKind::Sysenter64) if rules.is_rdx_destroyed => true,
            _ if guard!("sysexit-live-registers", true) => return Err(SysexitRefusal::LiveRegisters),
            _ => frame.cs() == rules.code64,
        };
        let code = if is_64_bit { rules.code64 } else { rules.code32 };
        if guard!("sysexit-code-segment", frame.cs() != code) {
            return Err(SysexitRefusal::CodeSegment { cs: frame.cs() });
        }
        if guard!("sysexit-stack-segment", frame.ss() != rules.data) {
            return Err(SysexitRefusal::StackSegment { ss: frame.ss() });
        }
        let operands = if is_64_bit {
            check_64(frame, rules)
        } else {
            check_32(frame)
        };
        if let Err(refusal) = operands {
            return Err(refusal);
        }
        if let Err(refusal) = check_flags(frame.rflags()) {
            return Err(refusal);
        }
        Ok(Self { frame, is_64_bit })
    }

    /// Whether this is the 64-bit form.
    #[must_use]
    pub const fn is_64_bit(&self) -> bool {
        self.is_64_bit
    }

    /// Restores the registers, sets IF, and leaves.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0, RFLAGS.IF is 0, GS base is the kernel's and `IA32_KERNEL_GS_BASE` the user's.
    /// 2. `IA32_SYSENTER_CS` holds the kernel code selector of the layout that the rules were made for, which is that of the
    ///    GDT in use, and the CPU has SYSEXIT in long mode.
    /// 3. The frame lies on this thread's kernel stack, and nothing that is live lies below it.
    /// 4. STI's shadow holds interrupts back until SYSEXIT, and the IRET of an NMI, #MC or #DB that comes in it may end it. None
    ///    comes there, or the kernel's interrupt stubs look at the recorded window and not at CS alone to tell whose GS base it
    ///    is.
    /// 5. No option of the stubs' owes anything at this border:
    ///    [`Options::KPTI`](entry_core::kernel::Options::KPTI), [`Options::VERW`](entry_core::kernel::Options::VERW) and
    ///    [`Options::IBRS`](entry_core::kernel::Options::IBRS) are off. Here no tables are loaded, no buffers cleared, and
    ///    `IA32_SPEC_CTRL` stays the kernel's.
    pub unsafe fn leave(self, _ready: UserReturn) -> ! {
        let frame = core::ptr::from_ref(self.frame);
        if self.is_64_bit {
            // SAFETY: conditions 1 to 5; `check` has accepted the frame, and it was borrowed since.
            unsafe { sysexit64_exit(frame) }
        } else {
            // SAFETY: conditions 1 to 5; `check` has accepted the frame, and it was borrowed since.
            unsafe { sysexit32_exit(frame) }
        }
    }
}

const fn check_64(frame: &TrapFrame, rules: &SysexitRules) -> Result<(), SysexitRefusal> {
    let rip = (Operand64::Rip, frame.rip(), rules.limit.contains(frame.rip()));
    // A stack may end at the limit.
    let rsp = (Operand64::Rsp, frame.rsp(), frame.rsp() <= rules.limit.get());
    let mut rest: &[_] = &[rip, rsp];
    while let [(operand, value, is_user), tail @ ..] = rest {
        rest = tail;
        let (operand, value) = (*operand, *value);
        if *is_user {
            continue;
        }
        if guard!("sysexit-non-canonical", !rules.width.is_canonical(value)) {
            return Err(SysexitRefusal::NonCanonical { operand, value });
        }
        if guard!("sysexit-above-user-limit", true) {
            return Err(SysexitRefusal::AboveUserLimit { operand, value });
        }
    }
    Ok(())
}

const fn check_32(frame: &TrapFrame) -> Result<(), SysexitRefusal> {
    if guard!("sysexit-above-32-bits", frame.rip() > u32::MAX as u64) {
        return Err(SysexitRefusal::Above32Bits {
            operand: Operand64::Rip,
            value: frame.rip(),
        });
    }
    if guard!("sysexit-above-32-bits", frame.rsp() > u32::MAX as u64) {
        return Err(SysexitRefusal::Above32Bits {
            operand: Operand64::Rsp,
            value: frame.rsp(),
        });
    }
    Ok(())
}

/// Flags that POPF may load in ring 0, a moment before SYSEXIT.
const RESTORED: Rflags = Rflags::ARITHMETIC
    .union(Rflags::ALWAYS_ONE)
    .union(Rflags::DIRECTION)
    .union(Rflags::ALIGNMENT_CHECK)
    .union(Rflags::IDENTIFICATION);

const fn check_flags(rflags: u64) -> Result<(), SysexitRefusal> {
    if guard!("sysexit-single-step", rflags & Rflags::TRAP.bits() != 0) {
        return Err(SysexitRefusal::SingleStep { rflags });
    }
    if guard!("sysexit-virtual-8086", rflags & Rflags::VIRTUAL_8086.bits() != 0) {
        return Err(SysexitRefusal::Virtual8086 { rflags });
    }
    if guard!("sysexit-interrupts-off", rflags & Rflags::INTERRUPT_ENABLE.bits() == 0) {
        return Err(SysexitRefusal::InterruptsOff { rflags });
    }
    if guard!(
        "sysexit-flags",
        rflags & !RESTORED.union(Rflags::INTERRUPT_ENABLE).bits() != 0
    ) {
        return Err(SysexitRefusal::Flags { rflags });
    }
    Ok(())
}

/// Whether SYSEXIT stands directly behind STI.
const IS_ADJACENT: usize = cfg!(not(ablate = "sysexit-adjacent")) as usize;

/// Offsets from the RCX word, where RSP points after the pops.
const RIP: usize = TrapFrame::RIP - TrapFrame::RCX;
const RSP: usize = TrapFrame::RSP - TrapFrame::RCX;
const RFLAGS: usize = TrapFrame::RFLAGS - TrapFrame::RCX;

/// R15 down to R11, as the frame has them.
macro_rules! pop_registers {
    () => {
        "mov rsp, rdi
         pop r15
         pop r14
         pop r13
         pop r12
         pop rbp
         pop rbx
         pop r10
         pop r9
         pop r8
         pop rdi
         pop rsi
         pop rdx
         pop rax
         pop r11"
    };
}

/// Leaves by the 64-bit SYSEXIT. [`Sysexit::leave`] is the way to get here.
///
/// | register | in | out | clobbered |
/// |---|---|---|---|
/// | RDI | address of the frame | from the frame | – |
/// | RSP | any | the frame's RSP word | – |
/// | RDX, RCX | any | the frame's RIP and RSP words | – |
/// | others | any | from the frame | – |
/// | RFLAGS | any | the frame's, IF 1 | – |
/// | GS base | kernel's | user's | – |
///
/// **Windows**: user GS at STI and at SYSEXIT. STI stands directly before SYSEXIT: its shadow is all that keeps an interrupt
/// out of that window.
///
/// # Safety
///
/// 1. The conditions of [`Sysexit::leave`].
/// 2. [`Sysexit::check`] has accepted the frame as one of 64-bit code, and it has not changed since.
///
/// # Source
///
/// Intel SDM vol. 2B, *SYSEXIT—Fast Return from Fast System Call*.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub unsafe extern "sysv64" fn sysexit64_exit(frame: *const TrapFrame) -> ! {
    naked_asm!(
        pop_registers!(),
        // RSP points at the RCX word.
        "mov rdx, [rsp + {rip}]",
        "mov rcx, [rsp + {rsp}]",
        "push qword ptr [rsp + {rflags}]",
        "and qword ptr [rsp], {without_if}",
        "popfq",
        "swapgs",
        // GS base is the user's.
        "2:",
        "sti",
        ".ifeq {is_adjacent}",
        "nop",
        ".endif",
        "sysexitq",
        "3:",
        "int3",
        entry_window!("2b", "3b", "{user_gs}"),
        rip = const RIP,
        rsp = const RSP,
        rflags = const RFLAGS,
        without_if = const !Rflags::INTERRUPT_ENABLE.bits().cast_signed(),
        is_adjacent = const IS_ADJACENT,
        user_gs = const flags::USER_GS,
    )
}

/// Leaves by the 32-bit SYSEXIT: as [`sysexit64_exit`], with RIP and RSP zero-extended, since some CPUs keep the upper halves
/// of RDX and RCX.
///
/// The frame of [`sysenter32_entry`](crate::stub::sysenter32_entry) has zeros for R8 to R15, so the user's registers hold
/// nothing of the kernel's.
///
/// # Safety
///
/// 1. The conditions of [`Sysexit::leave`].
/// 2. [`Sysexit::check`] has accepted the frame as one of 32-bit code, and it has not changed since.
///
/// # Source
///
/// Intel SDM vol. 2B, *SYSEXIT—Fast Return from Fast System Call*.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub unsafe extern "sysv64" fn sysexit32_exit(frame: *const TrapFrame) -> ! {
    naked_asm!(
        pop_registers!(),
        // RSP points at the RCX word.
        "mov edx, [rsp + {rip}]",
        "mov ecx, [rsp + {rsp}]",
        "push qword ptr [rsp + {rflags}]",
        "and qword ptr [rsp], {without_if}",
        "popfq",
        "swapgs",
        // GS base is the user's.
        "2:",
        "sti",
        ".ifeq {is_adjacent}",
        "nop",
        ".endif",
        "sysexit",
        "3:",
        "int3",
        entry_window!("2b", "3b", "{user_gs}"),
        rip = const RIP,
        rsp = const RSP,
        rflags = const RFLAGS,
        without_if = const !Rflags::INTERRUPT_ENABLE.bits().cast_signed(),
        is_adjacent = const IS_ADJACENT,
        user_gs = const flags::USER_GS,
    )
}
