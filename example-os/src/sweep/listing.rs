//! The instruction boundaries of the entry stubs, as the host found them by disassembling this very image.
//!
//! The archive's file `etc/boundaries` is text. A line for each function of `.entry.text`, then one for each of its
//! instructions, in order of addresses:
//!
//! ```text
//! fn ffffffff80001000 syscall_entry
//! ffffffff80001000 3 next
//! ffffffff80001003 2 branch ffffffff80001020
//! ffffffff80001005 5 jump ffffffff80002000
//! ffffffff8000100a 1 trap
//! ```
//!
//! Numbers of an instruction: address and length. Then what follows it: the `next` one (calls come back, so they count
//! here), the next or a `branch`, a `jump`, nothing because it is the `end` (IRET, SYSRET), or nothing because it is a
//! `trap` (INT3 that is not meant to be reached). A run of INT3 is listed as one.

/// What follows an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The next one.
    Next,
    /// The next one, or the one at this address.
    Branch(u64),
    /// The one at this address.
    Jump(u64),
    /// Nothing: it leaves the kernel or returns from an event.
    End,
    /// Nothing: INT3.
    Trap,
}

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Where it begins.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// What follows.
    pub flow: Flow,
}

/// The file.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    text: &'a str,
}

/// A function of the file.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    /// Last component of its path.
    pub name: &'a str,
    lines: &'a str,
}

impl<'a> Listing<'a> {
    /// A listing over the file's text.
    #[must_use]
    pub const fn new(text: &'a str) -> Self {
        Self { text }
    }

    /// The function that has an instruction at `address`.
    #[must_use]
    pub fn function_at(&self, address: u64) -> Option<Function<'a>> {
        self.functions().find(|function| {
            function
                .instructions()
                .any(|instruction| instruction.address == address)
        })
    }

    fn functions(&self) -> impl Iterator<Item = Function<'a>> {
        self.text.split("fn ").filter_map(|part| {
            let (head, lines) = part.split_once('\n')?;
            let (_, name) = head.split_once(' ')?;
            Some(Function { name, lines })
        })
    }
}

impl<'a> Function<'a> {
    /// Its instructions, in order.
    ///
    /// # Panics
    ///
    /// At a line that is not as the module says.
    pub fn instructions(self) -> impl Iterator<Item = Instruction> + 'a {
        self.lines
            .lines()
            .map(|line| parse(line).unwrap_or_else(|| panic!("boundaries: `{line}` is no instruction")))
    }
}

fn parse(line: &str) -> Option<Instruction> {
    let mut words = line.split(' ');
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let bytes = words.next()?.parse().ok()?;
    let flow = words.next()?;
    let target = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
    let flow = match (flow, target) {
        ("next", None) => Flow::Next,
        ("branch", Some(target)) => Flow::Branch(target),
        ("jump", Some(target)) => Flow::Jump(target),
        ("end", None) => Flow::End,
        ("trap", None) => Flow::Trap,
        _ => return None,
    };
    Some(Instruction { address, bytes, flow })
}
