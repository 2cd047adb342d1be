//! The stubs of the running kernel, and which of their boundaries an injector has hit.

use core::fmt;

use entry_core::windows::{self, flags};
use entry_sysret::landing::LandingPage;

use super::listing::{Flow, Instruction, Listing};
use crate::entry::sysenter::Way;
use crate::memory::layout::index;
use crate::println;

/// Most instructions of one stub: a set of them is one `u128`.
const MAX_INSTRUCTIONS: usize = 128;
/// Most stubs.
const MAX_STUBS: usize = 64;

/// A set of instructions of one stub, by number.
type Set = u128;

/// What makes an event arrive at a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injector {
    /// The APIC timer, raised after so many instructions; delivered there or, where interrupts are off, when they come on.
    Timer,
    /// The APIC timer with delivery mode NMI, after so many instructions: exact, on emulators that deliver it.
    TimerNmi,
    /// An NMI that has been pending since the handler of an instruction breakpoint sent it, NMIs being blocked, and that the
    /// handler's IRET lets in.
    Nmi,
    /// An instruction breakpoint: #DB.
    Debug,
}

impl Injector {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Timer, Self::TimerNmi, Self::Nmi, Self::Debug];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Timer => "timer",
            Self::TimerNmi => "timer-nmi",
            Self::Nmi => "nmi",
            Self::Debug => "debug",
        }
    }
}

/// Some instructions of a stub, told by its control flow, so that no number changes with an instruction more or less.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// All of them.
    All,
    /// INT3 behind a jump.
    Traps,
    /// What no instruction leads to: data.
    Unreachable,
    /// The first one.
    First,
    /// Up to and including the conditional branch of this number, from 0.
    Head(usize),
    /// The conditional branch of this number.
    Branch(usize),
    /// What can be reached only when the branch of this number is taken.
    Taken(usize),
    /// What can be reached only when the branch of this number is not taken.
    NotTaken(usize),
}

/// Instructions that an injector can't hit, with the reason. One that is hit all the same fails the test, so a row can't
/// outlive its reason.
#[derive(Clone, Copy, Debug)]
pub struct Exception {
    /// Stub.
    pub stub: Name<'static>,
    /// Instructions.
    pub part: Part,
    /// Reason.
    pub reason: &'static str,
}

impl Exception {
    fn is_about(&self, stub: Name<'_>) -> bool {
        self.stub == Name::Any || self.stub == stub
    }
}

/// The name of a stub: a function, or a slot of the vector stubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// A function, and which of its instances for different kernels, in order of discovery.
    Function(&'a str, u32),
    /// The slot of this vector.
    Slot(u8),
    /// The slot of this vector with interrupts on at SYSCALL.
    IrqsOnSlot(u8),
    /// The trampoline of SYSENTER in this slot.
    Trampoline(&'a str),
    /// What a program executes between the kernel's exit and its own next instruction: the landing page, in user mode.
    Landing,
    /// Any stub, in an [`Exception`].
    Any,
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(name, 0) => f.write_str(name),
            Self::Function(name, instance) => write!(f, "{name}#{instance}"),
            Self::Slot(vector) => write!(f, "vector_stubs[{vector:#x}]"),
            Self::IrqsOnSlot(vector) => write!(f, "vector_stubs_irqs_on[{vector:#x}]"),
            Self::Trampoline(way) => write!(f, "trampoline[{way}]"),
            Self::Landing => f.write_str("landing_page"),
            Self::Any => f.write_str("any"),
        }
    }
}

/// One stub.
#[derive(Clone, Copy, Debug)]
pub struct Stub {
    /// Name.
    pub name: Name<'static>,
    instructions: [Instruction; MAX_INSTRUCTIONS],
    count: usize,
    hit: [Set; Injector::ALL.len()],
    /// Where the timer was let in.
    delivered: Set,
}

impl Stub {
    const EMPTY: Self = Self {
        name: Name::Any,
        instructions: [Instruction {
            address: 0,
            bytes: 0,
            flow: Flow::Next,
        }; MAX_INSTRUCTIONS],
        count: 0,
        hit: [0; Injector::ALL.len()],
        delivered: 0,
    };

    /// Its instructions.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions[..self.count]
    }

    fn index_of(&self, address: u64) -> Option<usize> {
        self.instructions()
            .iter()
            .position(|instruction| instruction.address == address)
    }

    fn push(&mut self, instruction: Instruction) {
        assert!(self.count < MAX_INSTRUCTIONS, "{} has too many instructions", self.name);
        self.instructions[self.count] = instruction;
        self.count += 1;
    }

    const fn all(&self) -> Set {
        if self.count == MAX_INSTRUCTIONS {
            Set::MAX
        } else {
            (1 << self.count) - 1
        }
    }

    /// Address of the conditional branch of this number.
    fn branch(&self, number: usize) -> usize {
        let mut branches = (0..self.count).filter(|&index| matches!(self.instructions[index].flow, Flow::Branch(_)));
        branches
            .nth(number)
            .unwrap_or_else(|| panic!("{} has no conditional branch {number}", self.name))
    }

    /// What can be reached from the first instruction without one way out of the branch at `index`.
    fn reached_without(&self, index: usize, is_taken: bool) -> Set {
        let mut seen: Set = 0;
        let mut pending: Set = 1;
        while pending != 0 {
            let now = pending.trailing_zeros() as usize;
            pending &= pending - 1;
            seen |= 1 << now;
            let next = (now + 1 < self.count).then_some(now + 1);
            let (next, target) = match self.instructions[now].flow {
                Flow::Next => (next, None),
                Flow::Branch(target) if now == index => {
                    if is_taken {
                        (next, None)
                    } else {
                        (None, self.index_of(target))
                    }
                }
                Flow::Branch(target) => (next, self.index_of(target)),
                Flow::Jump(target) => (None, self.index_of(target)),
                Flow::End | Flow::Trap => (None, None),
            };
            for follower in [next, target].into_iter().flatten() {
                pending |= (1 << follower) & !seen;
            }
        }
        seen
    }

    fn traps(&self) -> Set {
        let is_trap = |&index: &usize| self.instructions[index].flow == Flow::Trap;
        (0..self.count).filter(is_trap).fold(0, |set, index| set | 1 << index)
    }

    /// Whether the instruction of this number is one of those that the rows name.
    pub(super) fn is_part_of(&self, index: usize, rows: &[Exception]) -> bool {
        self.parts(rows.iter()) & (1 << index) != 0
    }

    /// All that the rows which are about this stub name.
    fn parts<'a>(&self, rows: impl Iterator<Item = &'a Exception>) -> Set {
        let mine = rows.filter(|row| row.is_about(self.name));
        mine.fold(0, |set, row| set | self.part(row.part))
    }

    fn part(&self, part: Part) -> Set {
        match part {
            Part::All => self.all(),
            Part::Traps => self.traps(),
            Part::Unreachable => self.all() & !self.traps() & !self.reached_without(self.count, false),
            Part::First => 1,
            Part::Branch(branch) => 1 << self.branch(branch),
            Part::Head(branch) => (2 << self.branch(branch)) - 1,
            Part::Taken(branch) => self.all() & !self.traps() & !self.reached_without(self.branch(branch), true),
            Part::NotTaken(branch) => self.all() & !self.traps() & !self.reached_without(self.branch(branch), false),
        }
    }
}

/// All stubs that the kernel's entry points lead to.
#[derive(Debug)]
pub struct Stubs {
    stubs: [Stub; MAX_STUBS],
    count: usize,
}

impl Stubs {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stubs: [Stub::EMPTY; MAX_STUBS],
            count: 0,
        }
    }

    /// The stubs.
    #[must_use]
    pub fn all(&self) -> &[Stub] {
        &self.stubs[..self.count]
    }

    /// Adds the slot of a vector and whatever it jumps to.
    ///
    /// # Panics
    ///
    /// If the listing has no instruction there: it is not that of this image.
    pub fn add_slot(&mut self, listing: &Listing<'static>, name: Name<'static>, address: u64, slot_bytes: u64) {
        let function = function_at(listing, address);
        let in_slot = |instruction: &Instruction| (address..address + slot_bytes).contains(&instruction.address);
        self.add(listing, name, function.instructions().filter(in_slot));
    }

    /// Adds the landing page at `address`.
    ///
    /// # Panics
    ///
    /// If its code is not what is known here.
    pub fn add_landing(&mut self, address: u64) {
        // pop rcx; pop r11; ret 128
        const CODE: [u8; 6] = [0x59, 0x41, 0x5b, 0xc2, 128, 0];
        assert_eq!(
            LandingPage::BYTES[..LandingPage::CODE_BYTES],
            CODE,
            "another landing page"
        );
        let instructions = [(0, 1, Flow::Next), (1, 2, Flow::Next), (3, 3, Flow::End)];
        let number = self.begin(Name::Landing);
        for (offset, bytes, flow) in instructions {
            self.stubs[number].push(Instruction {
                address: address + offset,
                bytes,
                flow,
            });
        }
    }

    /// Adds the function at an address and whatever it jumps to.
    ///
    /// # Panics
    ///
    /// As [`Stubs::add_slot`].
    pub fn add_function(&mut self, listing: &Listing<'static>, address: u64) {
        if self.find(address).is_none() {
            let function = function_at(listing, address);
            let is_instance = |stub: &&Stub| matches!(stub.name, Name::Function(name, _) if name == function.name);
            let mut instance = 0;
            for _ in self.all().iter().filter(is_instance) {
                instance += 1;
            }
            self.add(
                listing,
                Name::Function(function.name, instance),
                function.instructions(),
            );
        }
    }

    /// Adds a trampoline of SYSENTER, which was generated and is in no listing, and the stub that it jumps to.
    ///
    /// # Panics
    ///
    /// As [`Stubs::add_slot`], for the stub.
    pub(super) fn add_trampoline(&mut self, listing: &Listing<'static>, way: Way, start: u64) {
        /// Bytes of a JMP's displacement, at its end.
        const DISPLACEMENT: u64 = 4;
        let end = start + way.instructions().iter().sum::<usize>() as u64;
        let displacement = core::ptr::with_exposed_provenance::<i32>(index(end - DISPLACEMENT));
        // SAFETY: the trampoline has been put there, and the kernel's text can be read.
        let target = end.wrapping_add_signed(i64::from(unsafe { displacement.read_unaligned() }));
        let mut address = start;
        let instructions = way.instructions().iter().map(|&bytes| {
            let bytes = bytes as u64;
            let at = address;
            address += bytes;
            let flow = if address == end { Flow::Jump(target) } else { Flow::Next };
            Instruction {
                address: at,
                bytes,
                flow,
            }
        });
        self.add(listing, Name::Trampoline(way.name()), instructions);
    }

    /// A new stub without instructions.
    fn begin(&mut self, name: Name<'static>) -> usize {
        assert!(self.count < MAX_STUBS, "too many stubs");
        let number = self.count;
        self.count += 1;
        self.stubs[number].name = name;
        number
    }

    fn add(
        &mut self,
        listing: &Listing<'static>,
        name: Name<'static>,
        instructions: impl Iterator<Item = Instruction>,
    ) {
        let number = self.begin(name);
        for instruction in instructions {
            self.stubs[number].push(instruction);
        }
        for index in 0..self.stubs[number].count {
            if let Flow::Jump(target) | Flow::Branch(target) = self.stubs[number].instructions[index].flow {
                self.add_function(listing, target);
            }
        }
    }

    fn find(&self, address: u64) -> Option<(usize, usize)> {
        let mut stubs = self.all().iter().enumerate();
        stubs.find_map(|(number, stub)| Some((number, stub.index_of(address)?)))
    }

    /// Whether there is a boundary at `address`.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        self.find(address).is_some()
    }

    /// Notes that an event arrived at `address`, if that is in a stub.
    pub fn hit(&mut self, injector: Injector, address: u64) {
        if let Some((number, index)) = self.find(address) {
            self.stubs[number].hit[injector as usize] |= 1 << index;
        }
    }

    /// Whether maskable interrupts may be on at `address`, which is in a stub.
    pub(super) fn lets_interrupts_in(&self, address: u64) -> bool {
        let name = self.find(address).map(|(number, _)| self.stubs[number].name);
        matches!(name, Some(Name::Function("syscall_entry_irqs_on", _)))
    }

    /// Whether `address` is in the landing page, where maskable interrupts are on as they are in all of user mode.
    pub(super) fn is_landing(&self, address: u64) -> bool {
        self.find(address)
            .is_some_and(|(number, _)| self.stubs[number].name == Name::Landing)
    }

    /// How many instructions of the landing page an injector has hit.
    pub(super) fn landing_hits(&self, injector: Injector) -> u32 {
        let landings = self.all().iter().filter(|stub| stub.name == Name::Landing);
        landings.map(|stub| stub.hit[injector as usize].count_ones()).sum()
    }

    /// Notes that the timer was let in at `address`, if that is in a stub.
    pub(super) fn deliver(&mut self, address: u64) {
        if let Some((number, index)) = self.find(address) {
            self.stubs[number].delivered |= 1 << index;
        }
    }

    /// Prints at how many boundaries with interrupts on the timer was let in: those of windows, and of the landing page.
    /// Returns whether at all that are not excepted, and at no other.
    pub(super) fn report_delivered(&self, exceptions: &[Exception]) -> bool {
        let is_window = |address| windows::find(address).is_some_and(|window| window.flags() & flags::IRQS_ON != 0);
        let (mut delivered, mut all, mut excepted) = (0, 0, 0);
        for stub in self.all() {
            for (index, instruction) in stub.instructions().iter().enumerate() {
                let is_delivered = u32::from(stub.delivered & 1 << index != 0);
                if stub.is_part_of(index, exceptions) {
                    excepted += is_delivered;
                } else if is_window(instruction.address) || stub.name == Name::Landing {
                    all += 1;
                    delivered += is_delivered;
                }
            }
        }
        println!(
            "[sweep] let in at {delivered} of {all} boundaries with interrupts on, and at {excepted} excepted ones"
        );
        delivered == all && all > 0 && excepted == 0
    }

    /// Prints the coverage of an injector, a line for each stub, and what is wrong with it. Returns whether all is well:
    /// every instruction is either hit or excepted, and none is both.
    ///
    /// # Panics
    ///
    /// If an exception names a branch that a stub does not have.
    pub(super) fn report<'a>(
        &self,
        injector: Injector,
        exceptions: impl Iterator<Item = &'a Exception> + Clone,
        corrupt: u32,
    ) -> bool {
        let mut is_good = true;
        for stub in self.all() {
            let hit = stub.hit[injector as usize];
            let excepted = stub.parts(exceptions.clone());
            let wanted = stub.all() & !excepted;
            println!(
                "[sweep] injector={} stub={} hit={} of={} excepted={} corrupt={corrupt}",
                injector.name(),
                stub.name,
                (hit & wanted).count_ones(),
                wanted.count_ones(),
                excepted.count_ones(),
            );
            for (index, instruction) in stub.instructions().iter().enumerate() {
                let bit = 1 << index;
                let offset = instruction.address - stub.instructions[0].address;
                if wanted & bit != 0 && hit & bit == 0 {
                    println!("[sweep] {}+{offset:#x} was not hit and is not excepted", stub.name);
                    is_good = false;
                }
                if hit & excepted & bit != 0 {
                    let mut mine = exceptions.clone().filter(|row| row.is_about(stub.name));
                    let row = mine.find(|row| stub.part(row.part) & bit != 0);
                    let reason = row.map_or("", |row| row.reason);
                    println!("[sweep] {}+{offset:#x} was hit although: {reason}", stub.name);
                    is_good = false;
                }
            }
        }
        is_good
    }
}

impl Default for Stubs {
    fn default() -> Self {
        Self::new()
    }
}

fn function_at(listing: &Listing<'static>, address: u64) -> super::listing::Function<'static> {
    let function = listing.function_at(address);
    function.unwrap_or_else(|| panic!("etc/boundaries has no instruction at {address:#x}: is it of another image?"))
}
