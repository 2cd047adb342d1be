//! The registers of a frame as one comparable value, with their names: for tests that set and compare all of them.

use core::fmt;
use core::ops::{Index, IndexMut};

use entry_core::TrapFrame;

macro_rules! registers {
    ($($get:ident $set:ident),*) => {
        const NAMES: [&str; COUNT] = [$(stringify!($get)),*];

        /// The words of a frame, and their names.
        ///
        /// | number | register |
        /// |---|---|
        /// | 0–14 | RAX, RBX, RCX, RDX, RSI, RDI, RBP, R8–R15: [`Registers::GENERAL`] of them |
        /// | 15–19 | RSP, RIP, RFLAGS, CS, SS |
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct Registers([u64; COUNT]);

        impl Registers {
            /// What `frame` holds.
            #[must_use]
            pub const fn read(frame: &TrapFrame) -> Self {
                Self([$(frame.$get()),*])
            }

            /// Sets all of them in `frame`, which is a modified one then.
            pub const fn write(&self, frame: &mut TrapFrame) {
                let [$($get),*] = self.0;
                $(frame.$set($get);)*
            }
        }
    };
}

/// How many words there are.
const COUNT: usize = 20;

registers! {
    rax set_rax, rbx set_rbx, rcx set_rcx, rdx set_rdx, rsi set_rsi, rdi set_rdi, rbp set_rbp, r8 set_r8, r9 set_r9,
    r10 set_r10, r11 set_r11, r12 set_r12, r13 set_r13, r14 set_r14, r15 set_r15, rsp set_rsp, rip set_rip,
    rflags set_rflags, cs set_cs, ss set_ss
}

impl Registers {
    /// All 0.
    pub const ZERO: Self = Self([0; COUNT]);
    /// How many general registers come first. RSP is not one of them.
    pub const GENERAL: usize = 15;
    /// Number of RCX.
    pub const RCX: usize = 2;
    /// Number of R11.
    pub const R11: usize = 10;
    /// Number of RSP.
    pub const RSP: usize = 15;
    /// Number of RIP.
    pub const RIP: usize = 16;
    /// Number of RFLAGS.
    pub const RFLAGS: usize = 17;

    /// Those before `count`, changeable: [`Registers::GENERAL`], or one more for RSP.
    pub fn first(&mut self, count: usize) -> &mut [u64] {
        &mut self.0[..count]
    }

    /// Names and words, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }

    /// The same with a word changed.
    #[must_use]
    pub const fn with(mut self, number: usize, word: u64) -> Self {
        self.0[number] = word;
        self
    }

    /// What differs from `wanted`, for people.
    #[must_use]
    pub const fn differences<'a>(&'a self, wanted: &'a Self) -> Differences<'a> {
        Differences { seen: self, wanted }
    }
}

impl Index<usize> for Registers {
    type Output = u64;

    fn index(&self, number: usize) -> &u64 {
        &self.0[number]
    }
}

impl IndexMut<usize> for Registers {
    fn index_mut(&mut self, number: usize) -> &mut u64 {
        &mut self.0[number]
    }
}

impl fmt::Debug for Registers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(name, word)| (name, Hex(word))))
            .finish()
    }
}

/// A number that is shown in hexadecimal.
struct Hex(u64);

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The registers that differ.
#[derive(Debug)]
pub struct Differences<'a> {
    seen: &'a Registers,
    wanted: &'a Registers,
}

impl fmt::Display for Differences<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((name, seen), (_, wanted)) in self.seen.iter().zip(self.wanted.iter()) {
            if seen != wanted {
                write!(f, " {name} is {seen:#x}, was to be {wanted:#x};")?;
            }
        }
        Ok(())
    }
}
