//! The events that an operation is made of, told from the bytes of each executed instruction.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Something that costs more on a real CPU than an instruction count shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// IRET in any operand size.
    Iret,
    /// SYSRET in either operand size.
    Sysret,
    /// SYSENTER.
    Sysenter,
    /// SYSEXIT.
    Sysexit,
    /// WRMSR.
    Wrmsr,
    /// A write of RFLAGS.IF by CLI, STI or POPF. What SYSCALL, SYSRET, IRET and gates do to it is not counted again.
    InterruptFlag,
    /// A write of CR3.
    Cr3,
    /// SWAPGS.
    Swapgs,
    /// An exception that the CPU raised, software interrupts included.
    Fault,
    /// A hardware interrupt.
    Interrupt,
    /// A call of the kernel's context switch.
    Switch,
    /// A load of the stack pointer from memory: what an entry does that does not find it in an MSR, and most exits.
    StackLoad,
}

impl Event {
    /// Every event, in the order of reports.
    pub(crate) const ALL: [Self; 12] = [
        Self::Iret,
        Self::Sysret,
        Self::Sysenter,
        Self::Sysexit,
        Self::Wrmsr,
        Self::InterruptFlag,
        Self::Cr3,
        Self::Swapgs,
        Self::Fault,
        Self::Interrupt,
        Self::Switch,
        Self::StackLoad,
    ];

    /// The name in reports and JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Iret => "iret",
            Self::Sysret => "sysret",
            Self::Sysenter => "sysenter",
            Self::Sysexit => "sysexit",
            Self::Wrmsr => "wrmsr",
            Self::InterruptFlag => "if",
            Self::Cr3 => "cr3",
            Self::Swapgs => "swapgs",
            Self::Fault => "fault",
            Self::Interrupt => "interrupt",
            Self::Switch => "switch",
            Self::StackLoad => "stack-load",
        }
    }

    /// The name above a narrow column, in two lines where it is long.
    pub(crate) const fn heading(self) -> &'static str {
        match self {
            Self::Sysret => "sys\nret",
            Self::Sysenter => "sys\nenter",
            Self::Sysexit => "sys\nexit",
            Self::Swapgs => "swap\ngs",
            Self::Interrupt => "inter\nrupt",
            Self::StackLoad => "stack\nload",
            _ => self.name(),
        }
    }
}

/// How often each event happened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts([u64; Event::ALL.len()]);

impl Counts {
    /// How often `event` happened.
    pub(crate) const fn get(&self, event: Event) -> u64 {
        self.0[event as usize]
    }

    /// One more of `event`.
    pub(crate) const fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }
}

/// Decodes the instruction at `address` of a code segment of so many bits; `None` when the bytes are no instruction.
pub(crate) fn decode(bytes: &[u8], address: u64, bits: u32) -> Option<Instruction> {
    let mut decoder = Decoder::with_ip(bits, bytes, address, DecoderOptions::NONE);
    let instruction = decoder.decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// The event that executing this instruction is, if it is one.
pub(crate) fn of_instruction(instruction: &Instruction) -> Option<Event> {
    match instruction.mnemonic() {
        Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq => Some(Event::Iret),
        Mnemonic::Sysret | Mnemonic::Sysretq => Some(Event::Sysret),
        Mnemonic::Sysenter => Some(Event::Sysenter),
        Mnemonic::Sysexit | Mnemonic::Sysexitq => Some(Event::Sysexit),
        Mnemonic::Wrmsr => Some(Event::Wrmsr),
        Mnemonic::Cli | Mnemonic::Sti | Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq => {
            Some(Event::InterruptFlag)
        }
        Mnemonic::Swapgs => Some(Event::Swapgs),
        Mnemonic::Mov
            if matches!(instruction.code(), Code::Mov_cr_r64 | Code::Mov_cr_r32)
                && instruction.op0_register() == Register::CR3 =>
        {
            Some(Event::Cr3)
        }
        Mnemonic::Mov
            if matches!(instruction.op0_register(), Register::RSP | Register::ESP)
                && instruction.op1_kind() == OpKind::Memory =>
        {
            Some(Event::StackLoad)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(bytes: &[u8]) -> Option<Event> {
        of_instruction(&decode(bytes, 0x1000, 64).unwrap())
    }

    #[test]
    fn recognises_each_event_by_its_bytes() {
        let table: &[(&[u8], Event)] = &[
            (&[0x48, 0xcf], Event::Iret),
            (&[0xcf], Event::Iret),
            (&[0x48, 0x0f, 0x07], Event::Sysret),
            (&[0x0f, 0x07], Event::Sysret),
            (&[0x0f, 0x34], Event::Sysenter),
            (&[0x48, 0x0f, 0x35], Event::Sysexit),
            (&[0x0f, 0x35], Event::Sysexit),
            (&[0x0f, 0x30], Event::Wrmsr),
            (&[0xfa], Event::InterruptFlag),
            (&[0xfb], Event::InterruptFlag),
            (&[0x9d], Event::InterruptFlag),
            (&[0x0f, 0x22, 0xd8], Event::Cr3),
            (&[0x41, 0x0f, 0x22, 0xd8], Event::Cr3),
            (&[0x0f, 0x01, 0xf8], Event::Swapgs),
            (&[0x65, 0x48, 0x8b, 0x24, 0x25, 8, 0, 0, 0], Event::StackLoad),
        ];
        for (bytes, wanted) in table {
            assert_eq!(event(bytes), Some(*wanted), "{bytes:02x?}");
        }
    }

    #[test]
    fn takes_nothing_else_for_an_event() {
        let table: &[&[u8]] = &[
            &[0x90],             // nop
            &[0x0f, 0x05],       // syscall: the entry, not an event of its own
            &[0x0f, 0x20, 0xd8], // mov rax, cr3
            &[0x0f, 0x22, 0xe0], // mov cr4, rax
            &[0x0f, 0x32],       // rdmsr
            &[0x9c],             // pushfq
            &[0xc3],             // ret
            &[0x89, 0xd8],       // mov eax, ebx
            &[0x48, 0x89, 0xf4], // mov rsp, rsi
            &[0x48, 0x89, 0x27], // mov [rdi], rsp
        ];
        for bytes in table {
            assert_eq!(event(bytes), None, "{bytes:02x?}");
        }
    }

    #[test]
    fn bytes_mean_what_their_segment_says() {
        let load = |bits| decode(&[0x8b, 0x25, 4, 0x10, 0x30, 0], 0x1000, bits).unwrap();
        assert_eq!(of_instruction(&load(32)), Some(Event::StackLoad));
        assert_eq!(load(32).memory_displacement64(), 0x30_1004);
        assert_eq!(load(64).memory_displacement64(), 0x30_200a);
    }

    #[test]
    fn bytes_that_are_no_instruction_give_nothing() {
        assert!(decode(&[0x06], 0, 64).is_none());
        assert!(decode(&[], 0, 64).is_none());
        assert!(decode(&[0x48], 0, 64).is_none());
    }

    #[test]
    fn order_of_all_is_the_order_of_the_counters() {
        for (position, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, position);
        }
    }
}
