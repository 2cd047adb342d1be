//! RFLAGS and the SYSCALL flag mask.

use entry_core::rflags::{FlagMask, FlagMaskError, Rflags};
use x86_64::registers::rflags::RFlags;

#[test]
fn flags_stand_at_the_bits_of_the_manual() {
    for (flag, bits) in [
        (Rflags::CARRY, 0x1),
        (Rflags::ALWAYS_ONE, 0x2),
        (Rflags::PARITY, 0x4),
        (Rflags::AUXILIARY_CARRY, 0x10),
        (Rflags::ZERO, 0x40),
        (Rflags::SIGN, 0x80),
        (Rflags::TRAP, 0x100),
        (Rflags::INTERRUPT_ENABLE, 0x200),
        (Rflags::DIRECTION, 0x400),
        (Rflags::OVERFLOW, 0x800),
        (Rflags::IO_PRIVILEGE_LEVEL, 0x3000),
        (Rflags::NESTED_TASK, 0x4000),
        (Rflags::RESUME, 0x1_0000),
        (Rflags::VIRTUAL_8086, 0x2_0000),
        (Rflags::ALIGNMENT_CHECK, 0x4_0000),
        (Rflags::VIRTUAL_INTERRUPT, 0x8_0000),
        (Rflags::VIRTUAL_INTERRUPT_PENDING, 0x10_0000),
        (Rflags::IDENTIFICATION, 0x20_0000),
    ] {
        assert_eq!(flag.bits(), bits, "{flag:?}");
    }
}

#[test]
fn no_bit_pattern_is_refused_or_changed() {
    for bit in 0..64 {
        for bits in [1u64 << bit, !(1u64 << bit)] {
            assert_eq!(Rflags::from_bits(bits).unwrap().bits(), bits);
            let other: RFlags = Rflags::from_bits_retain(bits).into();
            assert_eq!(Rflags::from(other).bits(), bits);
        }
    }
}

#[test]
fn required_mask_is_the_one_linux_uses() {
    assert_eq!(FlagMask::REQUIRED.bits(), 0x25_7fd5);
    assert_eq!(FlagMask::default(), FlagMask::REQUIRED);
}

#[test]
fn each_flag_that_hurts_the_kernel_is_masked() {
    for flag in [
        Rflags::TRAP,
        Rflags::INTERRUPT_ENABLE,
        Rflags::DIRECTION,
        Rflags::IO_PRIVILEGE_LEVEL,
        Rflags::NESTED_TASK,
        Rflags::ALIGNMENT_CHECK,
        Rflags::RESUME,
        Rflags::IDENTIFICATION,
        Rflags::ARITHMETIC,
    ] {
        assert!(FlagMask::REQUIRED.flags().contains(flag), "{flag:?}");
    }
}

#[test]
fn masks_grow_and_never_shrink() {
    for bit in 0..64 {
        let bits = 1u64 << bit;
        match FlagMask::REQUIRED.with(Rflags::from_bits_retain(bits)) {
            Ok(mask) => assert_eq!(mask.bits(), 0x25_7fd5 | bits),
            Err(error) => assert_eq!(error, FlagMaskError::Reserved { bits }),
        }
    }
}

#[test]
fn reserved_bits_are_not_maskable() {
    let refused: Vec<u32> = (0..64)
        .filter(|bit| FlagMask::REQUIRED.with(Rflags::from_bits_retain(1 << bit)).is_err())
        .collect();
    let reserved: Vec<u32> = [1, 3, 5, 15].into_iter().chain(22..64).collect();
    assert_eq!(refused, reserved);
    let error = FlagMask::REQUIRED
        .with(Rflags::from_bits_retain(0x8000_0302))
        .unwrap_err();
    assert_eq!(error.to_string(), "flag mask bits 0x80000002 are reserved in rflags");
}
