use core::fmt;

use crate::msr::Msr;

/// Registers that a host test can write to.
///
/// It holds up to 32 registers (what comes after reads as 0), keeps the order of up to 64 writes, and can lose the bits
/// that a real or emulated CPU would lose.
///
/// ```
/// use entry_core::msr::{FakeMsrs, Register, TscAux};
/// let mut msrs = FakeMsrs::new();
/// // SAFETY: a fake has every register and controls nothing.
/// unsafe { TscAux::new(3).write(&mut msrs) };
/// assert_eq!(msrs.get(TscAux::NUMBER), 3);
/// assert_eq!(msrs.writes(), [(0xc000_0103, 3)]);
/// ```
#[derive(Clone)]
pub struct FakeMsrs {
    registers: [Fake; 32],
    used: usize,
    writes: [(u32, u64); 64],
    written: usize,
}

#[derive(Clone, Copy)]
struct Fake {
    number: u32,
    value: u64,
    lost: u64,
}

impl FakeMsrs {
    /// Registers that are all 0.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            registers: [Fake {
                number: 0,
                value: 0,
                lost: 0,
            }; 32],
            used: 0,
            writes: [(0, 0); 64],
            written: 0,
        }
    }

    /// Presets a register.
    pub fn set(&mut self, number: u32, value: u64) {
        if let Some(register) = self.register(number) {
            register.value = value;
        }
    }

    /// Makes writes to a register leave the bits `bits` as they are, without a word, as emulators do.
    pub fn lose(&mut self, number: u32, bits: u64) {
        if let Some(register) = self.register(number) {
            register.lost = bits;
        }
    }

    /// A register's value; 0 if it was never written.
    #[must_use]
    pub fn get(&self, number: u32) -> u64 {
        self.registers
            .iter()
            .take(self.used)
            .find(|register| register.number == number)
            .map_or(0, |found| found.value)
    }

    /// Number and value of each write, in order.
    #[must_use]
    pub fn writes(&self) -> &[(u32, u64)] {
        self.writes.get(..self.written).unwrap_or(&self.writes)
    }

    fn register(&mut self, number: u32) -> Option<&mut Fake> {
        let position = self
            .registers
            .iter()
            .take(self.used)
            .position(|register| register.number == number);
        let index = position.unwrap_or(self.used);
        let register = self.registers.get_mut(index)?;
        register.number = number;
        self.used = self.used.max(index + 1);
        Some(register)
    }
}

impl Default for FakeMsrs {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FakeMsrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(
                self.registers
                    .iter()
                    .take(self.used)
                    .map(|fake| (fake.number, fake.value)),
            )
            .finish()
    }
}

impl Msr for FakeMsrs {
    unsafe fn read(&mut self, number: u32) -> u64 {
        self.get(number)
    }

    unsafe fn write(&mut self, number: u32, value: u64) {
        if let Some(write) = self.writes.get_mut(self.written) {
            *write = (number, value);
            self.written += 1;
        }
        if let Some(register) = self.register(number) {
            register.value = register.value & register.lost | value & !register.lost;
        }
    }
}
