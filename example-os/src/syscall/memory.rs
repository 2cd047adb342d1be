//! Calls on the address space: `mmap` of anonymous private memory, `munmap`.

use entry_core::{IrqOff, IrqOn, TrapFrame};

use super::{Errno, Outcome};
use crate::memory::layout::USER_LIMIT_32;
use crate::memory::{AddressSpace, MapError, Placement, Protection};
use crate::process::current;

const MAP_PRIVATE: u64 = 0x02;
const MAP_TYPE: u64 = 0x0f;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;

/// `mmap(hint, length, protection, flags, descriptor, offset)`
///
/// Only private anonymous mappings are offered: a file gives ENODEV, sharing EINVAL. Unknown flags are ignored, as on
/// Linux; all of those that matter to private anonymous memory are advice.
pub(super) fn mmap(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let [hint, length, protection, flags, ..] = frame.arguments();
    let irq = irq.disable();
    let result = mmap_off(hint, length, protection, flags, Placement::Hint, &irq);
    (result.into(), irq.enable())
}

/// `mmap` for 32-bit code, whose memory ends at [`USER_LIMIT_32`].
pub(super) fn mmap_32(hint: u64, length: u64, protection: u64, flags: u64, irq: &IrqOff) -> Result<u64, Errno> {
    let is_fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0;
    if is_fixed && hint.saturating_add(length) > USER_LIMIT_32 {
        return Err(Errno::ENOMEM);
    }
    mmap_off(hint, length, protection, flags, Placement::Hint32, irq)
}

/// `otherwise` is the placement where the address is not fixed.
fn mmap_off(
    hint: u64,
    length: u64,
    protection: u64,
    flags: u64,
    otherwise: Placement,
    irq: &IrqOff,
) -> Result<u64, Errno> {
    if flags & MAP_ANONYMOUS == 0 {
        return Err(Errno::ENODEV);
    }
    let protection = u8::try_from(protection).ok().and_then(Protection::from_bits);
    let Some(protection) = protection.filter(|_| flags & MAP_TYPE == MAP_PRIVATE) else {
        return Err(Errno::EINVAL);
    };
    let placement = if flags & MAP_FIXED_NOREPLACE != 0 {
        Placement::FixedNoReplace
    } else if flags & MAP_FIXED != 0 {
        Placement::Fixed
    } else {
        otherwise
    };
    with_space(irq, |space| space.mmap(hint, length, protection, placement))
}

/// `munmap(address, length)`
pub(super) fn munmap(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let irq = irq.disable();
    let result = with_space(&irq, |space| space.munmap(frame.rdi(), frame.rsi()));
    (result.into(), irq.enable())
}

fn with_space<T>(irq: &IrqOff, change: impl FnOnce(&mut AddressSpace) -> Result<T, MapError>) -> Result<T, Errno> {
    let mut space = current().space().lock(irq);
    // A process that makes system calls has an address space.
    let space = space.as_mut().ok_or(Errno::ESRCH)?;
    change(space).map_err(|error| Errno::from_number(error.errno()))
}
