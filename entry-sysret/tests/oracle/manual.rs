//! What the manuals say about leaving with a frame, in bit numbers.
//!
//! Nothing here comes from the crate under test: no constant, no mask, no type. Each rule looks at the bits that its manual
//! section names, one at a time, and all rules are tried: the answer is the set of those that apply, without an order.
//!
//! Sources: Intel SDM vol. 1, *EFLAGS Register*, *Canonical Addressing*; vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*; vol. 2B,
//! *SYSRET—Return From Fast System Call*; vol. 3A, *Segment Selectors*, *Handling Multiple NMIs*; AMD APM vol. 3, *SYSRET*.

/// How the kernel was entered, as the oracle sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Syscall64,
    Syscall32,
    Sysenter32,
    Sysenter64,
    Int80,
    Exception,
    Interrupt,
    NmiOrSuch,
    Built,
    IretFault,
    Unknown,
}

pub(crate) const ENTRIES: [Entry; 11] = [
    Entry::Syscall64,
    Entry::Syscall32,
    Entry::Sysenter32,
    Entry::Sysenter64,
    Entry::Int80,
    Entry::Exception,
    Entry::Interrupt,
    Entry::NmiOrSuch,
    Entry::Built,
    Entry::IretFault,
    Entry::Unknown,
];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) entry: Entry,
    pub(crate) modified: bool,
    pub(crate) declared_dead: bool,
    pub(crate) no_breakpoint: bool,
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) rflags: u64,
    pub(crate) ss: u64,
    pub(crate) rcx: u64,
    pub(crate) r11: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// Bits of a linear address: 48 or 57.
    pub(crate) address_bits: u32,
    /// First address that is not the user's.
    pub(crate) user_end: u64,
    /// Selectors, with RPL 3; 0 for no 32-bit code.
    pub(crate) cs64: u64,
    pub(crate) cs32: u64,
    pub(crate) ss: u64,
    pub(crate) iopl_allowed: bool,
    pub(crate) sysret_loads_ss: bool,
}

/// Refusals, one bit each.
pub(crate) mod refusal {
    pub(crate) const UNKNOWN_ENTRY_KIND: u32 = 1 << 0;
    pub(crate) const NON_CANONICAL_RIP: u32 = 1 << 1;
    pub(crate) const KERNEL_RIP: u32 = 1 << 2;
    pub(crate) const RIP_ABOVE_USER_LIMIT: u32 = 1 << 3;
    pub(crate) const RIP_ABOVE_CODE32: u32 = 1 << 4;
    pub(crate) const KERNEL_CODE_SEGMENT: u32 = 1 << 5;
    pub(crate) const LOCAL_CODE_SEGMENT: u32 = 1 << 6;
    pub(crate) const UNLISTED_CODE_SEGMENT: u32 = 1 << 7;
    pub(crate) const NULL_STACK_SEGMENT: u32 = 1 << 8;
    pub(crate) const KERNEL_STACK_SEGMENT: u32 = 1 << 9;
    pub(crate) const LOCAL_STACK_SEGMENT: u32 = 1 << 10;
    pub(crate) const UNLISTED_STACK_SEGMENT: u32 = 1 << 11;
    pub(crate) const VIRTUAL8086: u32 = 1 << 12;
    pub(crate) const VIRTUAL_INTERRUPTS: u32 = 1 << 13;
    pub(crate) const RESERVED_FLAGS: u32 = 1 << 14;
    pub(crate) const IO_PRIVILEGE: u32 = 1 << 15;
    pub(crate) const INTERRUPTS_OFF: u32 = 1 << 16;
}

/// Reasons for IRET, one bit each.
pub(crate) mod reason {
    pub(crate) const PARANOID_ENTRY: u32 = 1 << 0;
    pub(crate) const SINGLE_STEP: u32 = 1 << 1;
    pub(crate) const RESUME_FLAG: u32 = 1 << 2;
    pub(crate) const LIVE_REGISTERS: u32 = 1 << 3;
    pub(crate) const NULL_STACK_SEGMENT: u32 = 1 << 4;
}

const fn bit(word: u64, number: u32) -> bool {
    (word >> number) % 2 == 1
}

pub(crate) fn refusals(q: &Question, m: &Machine) -> u32 {
    let mut set = 0;
    let mut add = |refusal: u32, applies: bool| set |= if applies { refusal } else { 0 };
    add(refusal::UNKNOWN_ENTRY_KIND, q.entry == Entry::Unknown);

    let is64 = q.cs == m.cs64;
    let is32 = m.cs32 != 0 && q.cs == m.cs32;
    if is64 {
        // Canonical: all bits from the highest translated one up are equal.
        let high = (q.rip >> (m.address_bits - 1)).count_ones();
        let all = 64 - (m.address_bits - 1);
        add(refusal::NON_CANONICAL_RIP, high != 0 && high != all);
        add(refusal::KERNEL_RIP, high == all);
        add(refusal::RIP_ABOVE_USER_LIMIT, high == 0 && q.rip >= m.user_end);
    } else if is32 {
        add(refusal::RIP_ABOVE_CODE32, q.rip >> 32 != 0);
    } else {
        // RPL: bits 1:0. TI: bit 2.
        let ring3 = bit(q.cs, 0) && bit(q.cs, 1);
        add(refusal::KERNEL_CODE_SEGMENT, !ring3);
        add(refusal::LOCAL_CODE_SEGMENT, ring3 && bit(q.cs, 2));
        add(refusal::UNLISTED_CODE_SEGMENT, ring3 && !bit(q.cs, 2));
    }
    if q.ss != m.ss {
        let ring3 = bit(q.ss, 0) && bit(q.ss, 1);
        let null = q.ss % 0x1_0000 < 4;
        add(refusal::NULL_STACK_SEGMENT, null);
        add(refusal::KERNEL_STACK_SEGMENT, !null && !ring3);
        add(refusal::LOCAL_STACK_SEGMENT, !null && ring3 && bit(q.ss, 2));
        add(refusal::UNLISTED_STACK_SEGMENT, !null && ring3 && !bit(q.ss, 2));
    }
    let (off, iopl_low, iopl_high) = (!bit(q.rflags, 9), bit(q.rflags, 12), bit(q.rflags, 13));
    add(refusal::VIRTUAL8086, bit(q.rflags, 17));
    add(refusal::VIRTUAL_INTERRUPTS, bit(q.rflags, 19) || bit(q.rflags, 20));
    add(
        refusal::RESERVED_FLAGS,
        bit(q.rflags, 3) || bit(q.rflags, 5) || bit(q.rflags, 15) || q.rflags >> 22 != 0,
    );
    add(refusal::IO_PRIVILEGE, (iopl_low || iopl_high) && !m.iopl_allowed);
    add(
        refusal::INTERRUPTS_OFF,
        off && !(m.iopl_allowed && iopl_low && iopl_high),
    );
    set
}

/// Why SYSRET would not do what IRET does.
pub(crate) fn reasons(q: &Question, m: &Machine) -> u32 {
    let mut set = 0;
    let mut add = |reason: u32, applies: bool| set |= if applies { reason } else { 0 };
    add(
        reason::PARANOID_ENTRY,
        matches!(q.entry, Entry::NmiOrSuch | Entry::Unknown),
    );
    add(reason::SINGLE_STEP, bit(q.rflags, 8));
    add(reason::RESUME_FLAG, bit(q.rflags, 16) && !q.no_breakpoint);

    let by_gate = matches!(
        q.entry,
        Entry::Int80 | Entry::Exception | Entry::Interrupt | Entry::NmiOrSuch | Entry::IretFault
    );
    // SYSCALL destroys both. SYSENTER saves neither RIP nor RSP, so its callers hand them over in registers that they give up:
    // RCX and R11 in 64-bit code. 32-bit code has no R11, and its page on the user side reloads ECX.
    let destroyed_by_call = matches!(
        q.entry,
        Entry::Syscall64 | Entry::Syscall32 | Entry::Sysenter64 | Entry::Sysenter32
    ) && !q.modified;
    let cannot_tell = !by_gate && q.rcx == q.rip && q.r11 == q.rflags;
    add(
        reason::LIVE_REGISTERS,
        !(q.declared_dead || destroyed_by_call || cannot_tell),
    );
    add(reason::NULL_STACK_SEGMENT, by_gate && m.cs32 != 0 && !m.sysret_loads_ss);
    set
}
