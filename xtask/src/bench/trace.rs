//! The executed path: QEMU's log of a run in which each translation block is one instruction.
//!
//! Four kinds of line matter. `Trace` names an instruction that is about to run. `Stopped execution` and
//! `cpu_io_recompile` take the last one back: it did not run, and is announced again when it does. A line
//! with `v=` is an event delivered through the IDT. An instruction that faults has been announced, but the
//! instruction clock charges it only when it is redone; a software interrupt, #BP, #OF and #UD are charged
//! at once.

use std::collections::HashMap;

use crate::bench::event::{self, Counts, Event};
use crate::build::image::Image;
use crate::machine::guest::LogSink;

/// The longest stretch that is kept.
const MOST_STEPS: usize = 20_000_000;

/// What a line of the log says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// An instruction is about to run, at this privilege level, in a code segment of 64 or 32 bits.
    Step { pc: u64, level: u8, bits: u32 },
    /// The last instruction did not run.
    Undo,
    /// A hardware interrupt is about to be delivered.
    Hardware,
    /// Delivery through the IDT.
    Delivery { vector: u8, software: bool, pc: u64 },
}

fn hexadecimal(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    u64::from_str_radix(text, 16).ok()
}

/// Reads `Trace N: HOST [CS_BASE/PC/FLAGS/CFLAGS] SYMBOL`.
fn step(line: &[u8]) -> Option<Entry> {
    let open = line.iter().position(|&byte| byte == b'[')?;
    let mut fields = line.get(open + 1..)?.split(|&byte| byte == b'/' || byte == b']');
    let _cs_base = fields.next()?;
    let pc = hexadecimal(fields.next()?)?;
    /// The translator's flag for 64-bit code.
    const CODE_64: u64 = 1 << 15;
    let flags = hexadecimal(fields.next()?)?;
    // The two lowest bits are the current privilege level.
    Some(Entry::Step {
        pc,
        level: u8::try_from(flags & 3).ok()?,
        bits: if flags & CODE_64 == 0 { 32 } else { 64 },
    })
}

/// Reads `     N: v=0e e=0004 i=0 cpl=3 IP=0023:… pc=… SP=…`.
fn delivery(line: &[u8]) -> Option<Entry> {
    let text = std::str::from_utf8(line).ok()?;
    let field = |name: &str| text.split_ascii_whitespace().find_map(|word| word.strip_prefix(name));
    Some(Entry::Delivery {
        vector: u8::from_str_radix(field("v=")?, 16).ok()?,
        software: field("i=")? == "1",
        pc: u64::from_str_radix(field("pc=")?, 16).ok()?,
    })
}

/// Reads one line; `None` when it is none of the log's.
fn parse(line: &[u8]) -> Option<Entry> {
    if line.starts_with(b"Trace ") {
        return step(line);
    }
    if line.starts_with(b"Stopped execution of TB chain before") || line.starts_with(b"cpu_io_recompile: rewound") {
        return Some(Entry::Undo);
    }
    if line.starts_with(b"Servicing hardware INT") {
        return Some(Entry::Hardware);
    }
    let digits = line.iter().position(|byte| !matches!(byte, b' ' | b'0'..=b'9'))?;
    line.get(digits..)?
        .starts_with(b": v=")
        .then(|| delivery(line))
        .flatten()
}

/// Whether a line belongs to the register dump that follows a delivery.
fn is_register_dump(line: &[u8]) -> bool {
    const STARTS: [&[u8]; 20] = [
        b"RAX=", b"RSI=", b"R8 =", b"R12=", b"RIP=", b"ES =", b"CS =", b"SS =", b"DS =", b"FS =", b"GS =", b"LDT=",
        b"TR =", b"GDT=", b"IDT=", b"CR0=", b"DR0=", b"DR6=", b"CCS=", b"EFER=",
    ];
    STARTS.iter().any(|start| line.starts_with(start))
        || line.starts_with(b"check_exception ")
        || line.starts_with(b"EAX=")
        || line.starts_with(b"ESI=")
        || line.starts_with(b"EIP=")
}

/// One executed instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// Its address.
    pub(crate) pc: u64,
    /// Privilege level.
    pub(crate) level: u8,
    /// Bits of its code segment: 64 or 32.
    pub(crate) bits: u32,
    /// False for an instruction that faulted and will be redone.
    pub(crate) charged: bool,
    /// Vector that was delivered after it.
    pub(crate) vector: Option<Vector>,
}

/// Something delivered through the IDT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vector {
    /// Number in the IDT.
    pub(crate) number: u8,
    /// Whether a device caused it.
    pub(crate) hardware: bool,
}

/// The instructions of one timed stretch.
pub(crate) type Stretch = Vec<Step>;

/// Cuts the log at the marks of the bench program.
#[derive(Debug)]
pub(crate) struct Recorder {
    begin: u64,
    end: u64,
    open: Option<Stretch>,
    /// A hardware interrupt was announced and not yet delivered.
    hardware: bool,
    /// The timed stretches, in order.
    pub(crate) stretches: Vec<Stretch>,
    /// A stretch grew beyond any of ours.
    pub(crate) overflowed: bool,
}

impl Recorder {
    /// Records from each execution of `begin` to the next of `end`, both at user level.
    pub(crate) const fn new(begin: u64, end: u64) -> Self {
        Self {
            begin,
            end,
            open: None,
            hardware: false,
            stretches: Vec::new(),
            overflowed: false,
        }
    }

    fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Step { pc, level: 3, .. } if pc == self.begin => self.open = Some(Stretch::new()),
            Entry::Step { pc, level: 3, .. } if pc == self.end => {
                self.stretches.extend(self.open.take());
            }
            Entry::Step { pc, level, bits } => {
                if let Some(steps) = &mut self.open {
                    if steps.len() == MOST_STEPS {
                        self.overflowed = true;
                        self.open = None;
                        return;
                    }
                    steps.push(Step {
                        pc,
                        level,
                        bits,
                        charged: true,
                        vector: None,
                    });
                }
            }
            Entry::Undo => {
                if let Some(steps) = &mut self.open {
                    steps.pop();
                }
            }
            Entry::Hardware => self.hardware = true,
            Entry::Delivery { vector, software, pc } => {
                let hardware = std::mem::take(&mut self.hardware) || vector == 2;
                if let Some(last) = self.open.as_mut().and_then(|steps| steps.last_mut()) {
                    last.vector = Some(Vector {
                        number: vector,
                        hardware,
                    });
                    let redone = !hardware && !software && !matches!(vector, 1 | 3 | 4 | 6);
                    if redone && last.pc == pc {
                        last.charged = false;
                    }
                }
            }
        }
    }
}

impl LogSink for Recorder {
    fn line(&mut self, line: &[u8]) -> bool {
        match parse(line) {
            Some(entry) => {
                self.take(entry);
                true
            }
            None => is_register_dump(line),
        }
    }
}

/// The programs whose code a stretch may run through.
#[derive(Debug)]
pub(crate) struct Code {
    /// The kernel.
    pub(crate) kernel: Image,
    /// The user program.
    pub(crate) user: Image,
    /// Addresses at which the kernel's context switch starts.
    pub(crate) switches: Vec<u64>,
}

impl Code {
    /// The image that an instruction belongs to. 32-bit code of an experiment is the kernel's at every level.
    pub(crate) fn image_of(&self, step: &Step) -> &Image {
        if step.level == 3 && self.user.bytes_at(step.pc).is_some() {
            &self.user
        } else {
            &self.kernel
        }
    }

    /// Takes over the code that the kernel says it has generated: lines `[code] ADDRESS BYTE BYTE …`, in hexadecimal.
    pub(crate) fn read_generated<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>) {
        for line in lines {
            let Some(rest) = line.strip_prefix("[code] ") else {
                continue;
            };
            let mut words = rest.split_ascii_whitespace();
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            let bytes: Option<Vec<u8>> = words.map(|word| u8::from_str_radix(word, 16).ok()).collect();
            if let (Some(address), Some(bytes)) = (address, bytes) {
                self.kernel.generate(address, &bytes);
            }
        }
    }

    /// Decodes the instruction of a step.
    pub(crate) fn decode(&self, step: &Step) -> Option<iced_x86::Instruction> {
        event::decode(self.image_of(step).bytes_at(step.pc)?, step.pc, step.bits)
    }
}

/// What a stretch amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    /// Instructions that the instruction clock charged.
    pub(crate) instructions: u64,
    /// Events among them.
    pub(crate) events: Counts,
}

/// Adds up a stretch. Fails with the address of an instruction that is in neither program.
pub(crate) fn add_up(steps: &[Step], code: &Code) -> Result<Totals, u64> {
    let mut totals = Totals::default();
    let mut known: HashMap<(u64, bool), Option<Event>> = HashMap::new();
    for step in steps {
        if let Some(vector) = step.vector {
            totals.events.add(if vector.hardware {
                Event::Interrupt
            } else {
                Event::Fault
            });
        }
        if !step.charged {
            continue;
        }
        totals.instructions += 1;
        let event = match known.get(&(step.pc, step.level == 3)) {
            Some(event) => *event,
            None => {
                let instruction = code.decode(step).ok_or(step.pc)?;
                let event = event::of_instruction(&instruction);
                known.insert((step.pc, step.level == 3), event);
                event
            }
        };
        if let Some(event) = event {
            totals.events.add(event);
        }
        if step.level != 3 && code.switches.contains(&step.pc) {
            totals.events.add(Event::Switch);
        }
    }
    Ok(totals)
}

/// The last whole round of a stretch: from one execution of an instruction that runs once a round to the next.
///
/// Starts at the first such instruction at user level, or anywhere when a round stays in the kernel.
pub(crate) fn last_round(steps: &[Step], rounds: u64) -> Option<&[Step]> {
    let mut count: HashMap<(u64, u8), u64> = HashMap::new();
    for step in steps.iter().filter(|step| step.charged) {
        *count.entry((step.pc, step.level)).or_default() += 1;
    }
    let once = |step: &&Step| step.charged && count.get(&(step.pc, step.level)) == Some(&rounds);
    let head = steps
        .iter()
        .filter(|step| step.level == 3)
        .find(once)
        .or_else(|| steps.iter().find(once))?;
    let places: Vec<usize> = steps
        .iter()
        .enumerate()
        .filter(|(_, step)| step.charged && step.pc == head.pc && step.level == head.level)
        .map(|(place, _)| place)
        .collect();
    let [.., first, last] = places[..] else {
        return None;
    };
    steps.get(first..last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: u64 = 0x40_1000;
    const END: u64 = 0x40_1010;

    fn trace(pc: u64, level: u8) -> String {
        format!("Trace 0: 0x7f0000000000 [0000000000000000/{pc:016x}/0040c0b{level}/ff000201] symbol")
    }

    fn record(lines: &[String]) -> Recorder {
        let mut recorder = Recorder::new(BEGIN, END);
        for line in lines {
            assert!(recorder.line(line.as_bytes()), "{line}");
        }
        recorder
    }

    #[test]
    fn reads_each_kind_of_line() {
        assert_eq!(
            parse(b"Trace 0: 0x7f5b5c0001c0 [0000000000000000/ffffffff80001234/0040c0b0/ff000201] entry"),
            Some(Entry::Step {
                pc: 0xffff_ffff_8000_1234,
                level: 0,
                bits: 64
            })
        );
        assert_eq!(
            parse(b"Trace 0: 0x7f5b5c0001c0 [0000000000000000/0000000000101234/000000b3/ff000201] task"),
            Some(Entry::Step {
                pc: 0x10_1234,
                level: 3,
                bits: 32
            })
        );
        assert_eq!(
            parse(b"Stopped execution of TB chain before 0x7f5b5c0001c0 [0000000000401000] x"),
            Some(Entry::Undo)
        );
        assert_eq!(
            parse(b"cpu_io_recompile: rewound execution of TB to ffffffff80001234"),
            Some(Entry::Undo)
        );
        assert_eq!(parse(b"Servicing hardware INT=0x20"), Some(Entry::Hardware));
        assert_eq!(
            parse(b"    12: v=0e e=0004 i=0 cpl=3 IP=0023:0000000000401234 pc=0000000000401234 SP=001b:00007ffffffde000 CR2=0000000000500000"),
            Some(Entry::Delivery {
                vector: 14,
                software: false,
                pc: 0x40_1234
            })
        );
        assert_eq!(parse(b"RAX=0000000000000000 RBX=0000000000000000"), None);
        assert_eq!(parse(b"qemu-system-x86_64: warning: TCG doesn't support it"), None);
    }

    #[test]
    fn keeps_what_runs_between_the_marks() {
        let recorder = record(&[
            trace(0x40_0000, 3),
            trace(BEGIN, 3),
            trace(0x40_2000, 3),
            trace(BEGIN, 0),
            trace(END, 3),
            trace(0x40_3000, 3),
        ]);
        let pcs: Vec<_> = recorder.stretches[0].iter().map(|step| step.pc).collect();
        assert_eq!(recorder.stretches.len(), 1);
        assert_eq!(pcs, [0x40_2000, BEGIN]);
    }

    #[test]
    fn an_instruction_that_was_taken_back_counts_once() {
        let recorder = record(&[
            trace(BEGIN, 3),
            trace(0x40_2000, 3),
            "Stopped execution of TB chain before 0x7f [0000000000402000] x".to_owned(),
            trace(0x40_2000, 3),
            trace(END, 3),
        ]);
        assert_eq!(recorder.stretches[0].len(), 1);
    }

    #[test]
    fn a_faulting_instruction_is_charged_when_it_is_redone() {
        let recorder = record(&[
            trace(BEGIN, 3),
            trace(0x40_2000, 3),
            "     0: v=0e e=0004 i=0 cpl=3 IP=0023:0000000000402000 pc=0000000000402000 SP=0:0".to_owned(),
            "RAX=0000000000000000 RBX=0000000000000000".to_owned(),
            trace(0xffff_ffff_8000_0000, 0),
            trace(0x40_2000, 3),
            trace(END, 3),
        ]);
        let charged: Vec<_> = recorder.stretches[0].iter().map(|step| step.charged).collect();
        assert_eq!(charged, [false, true, true]);
    }

    #[test]
    fn an_undefined_instruction_is_charged_at_once() {
        let recorder = record(&[
            trace(BEGIN, 3),
            trace(0x40_2000, 3),
            "     0: v=06 e=0000 i=0 cpl=3 IP=0023:0000000000402000 pc=0000000000402000 SP=0:0".to_owned(),
            trace(END, 3),
        ]);
        assert!(recorder.stretches[0][0].charged);
        assert_eq!(
            recorder.stretches[0][0].vector,
            Some(Vector {
                number: 6,
                hardware: false
            })
        );
    }

    #[test]
    fn an_interrupt_is_no_fault() {
        let recorder = record(&[
            trace(BEGIN, 3),
            trace(0x40_2000, 3),
            "Servicing hardware INT=0x20".to_owned(),
            "     0: v=20 e=0000 i=0 cpl=3 IP=0023:0000000000402001 pc=0000000000402001 SP=0:0".to_owned(),
            trace(END, 3),
        ]);
        let step = recorder.stretches[0][0];
        assert!(step.charged);
        assert!(step.vector.is_some_and(|vector| vector.hardware));
    }

    fn code() -> Code {
        // user: syscall; dec rcx; jnz -- kernel: swapgs; swapgs; sysretq
        Code {
            user: Image::from_code(0x40_2000, &[0x0f, 0x05, 0x48, 0xff, 0xc9, 0x75, 0xf9]),
            kernel: Image::from_code(0xffff_8000, &[0x0f, 0x01, 0xf8, 0x0f, 0x01, 0xf8, 0x48, 0x0f, 0x07]),
            switches: vec![0xffff_8003],
        }
    }

    fn rounds(count: usize) -> Vec<Step> {
        let round = [
            (0x40_2000, 3),
            (0xffff_8000, 0),
            (0xffff_8003, 0),
            (0xffff_8006, 0),
            (0x40_2002, 3),
            (0x40_2005, 3),
        ];
        round
            .into_iter()
            .cycle()
            .take(round.len() * count)
            .map(|(pc, level)| Step {
                pc,
                level,
                bits: 64,
                charged: true,
                vector: None,
            })
            .collect()
    }

    #[test]
    fn adds_up_instructions_and_events() {
        let totals = add_up(&rounds(3), &code()).unwrap();
        assert_eq!(totals.instructions, 18);
        assert_eq!(totals.events.get(Event::Swapgs), 6);
        assert_eq!(totals.events.get(Event::Sysret), 3);
        assert_eq!(totals.events.get(Event::Switch), 3);
        assert_eq!(totals.events.get(Event::Iret), 0);
    }

    #[test]
    fn generated_code_takes_the_place_of_what_the_file_has() {
        let mut code = code();
        let load = Step {
            pc: 0xffff_8003,
            level: 0,
            bits: 64,
            charged: true,
            vector: None,
        };
        assert_eq!(add_up(&[load], &code).unwrap().events.get(Event::StackLoad), 0);
        code.read_generated(["[boot] 3", "[code] ffff8003 48 8b 25 fd 0f 00 00", "[code] nonsense"]);
        assert_eq!(add_up(&[load], &code).unwrap().events.get(Event::StackLoad), 1);
        // What lies before and behind it stays.
        assert_eq!(add_up(&rounds(1)[1..2], &code).unwrap().events.get(Event::Swapgs), 1);
    }

    #[test]
    fn names_the_address_of_unknown_code() {
        let mut steps = rounds(1);
        steps[1].pc = 0xdead_0000;
        assert_eq!(add_up(&steps, &code()), Err(0xdead_0000));
    }

    #[test]
    fn a_round_reaches_from_its_head_to_the_next() {
        let steps = rounds(4);
        let round = last_round(&steps, 4).unwrap();
        assert_eq!(round.len(), 6);
        assert_eq!(round[0].pc, 0x40_2000);
        assert!(last_round(&steps, 9).is_none());
    }
}
