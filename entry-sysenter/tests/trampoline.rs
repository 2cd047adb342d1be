//! The generated trampolines, read by an independent disassembler.

use entry_core::address::Width;
use entry_sysenter::arrival::{Arrival, AtOffset, EntryAddress, Load, OnEntryStack, Ready, ReadySwapped};
use entry_sysenter::encode;
use entry_sysenter::error::{BufferTooSmall, Operand, OutOfReach, TrampolineError};
use entry_sysenter::trampoline::{Absolute, RipRelative, SwapgsRelative, Trampoline32, Trampoline64};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Register};
use proptest::prelude::*;

fn decode(bits: u32, at: u64, code: &[u8]) -> Vec<Instruction> {
    let decoded: Vec<Instruction> = Decoder::with_ip(bits, code, at, DecoderOptions::NONE)
        .into_iter()
        .collect();
    assert_eq!(decoded.iter().map(Instruction::len).sum::<usize>(), code.len());
    decoded
}

const fn entry<A: Arrival>(address: u64) -> EntryAddress<A> {
    // SAFETY: the tests of this file look at the code and never run it.
    unsafe { EntryAddress::new(address) }
}

const fn rip_relative(at: u64, field: u64, to: u64) -> Result<Trampoline64<RipRelative>, TrampolineError> {
    Trampoline64::<RipRelative>::new(at, field, entry(to), Width::Bits48)
}

const fn absolute(at: u64, field: u64, to: u64) -> Result<Trampoline64<Absolute>, TrampolineError> {
    Trampoline64::<Absolute>::new(at, field, entry(to), Width::Bits48)
}

const fn swapgs_relative(at: u64, offset: i32, to: u64) -> Result<Trampoline64<SwapgsRelative>, TrampolineError> {
    Trampoline64::<SwapgsRelative>::new(at, offset, entry(to), Width::Bits48)
}

/// The instruction loads RSP or ESP from `field`, with nothing added.
fn assert_loads(load: &Instruction, code: Code, register: Register, field: u64) {
    assert_eq!(load.code(), code, "{load}");
    assert_eq!(load.op0_register(), register, "{load}");
    assert_eq!(load.memory_index(), Register::None, "{load}");
    assert_eq!(load.memory_displacement64(), field, "{load}");
}

fn assert_jumps(jump: &Instruction, code: Code, to: u64) {
    assert_eq!(jump.code(), code, "{jump}");
    assert_eq!(jump.near_branch_target(), to, "{jump}");
}

fn assert_rip_relative(at: u64, field: u64, to: u64) {
    let trampoline = rip_relative(at, field, to).unwrap();
    let [load, jump] = decode(64, at, trampoline.bytes())[..] else {
        panic!("two instructions")
    };
    assert_loads(&load, Code::Mov_r64_rm64, Register::RSP, field);
    assert_eq!(load.memory_base(), Register::RIP);
    assert_eq!(load.segment_prefix(), Register::None);
    assert_jumps(&jump, Code::Jmp_rel32_64, to);
}

fn assert_absolute(at: u64, field: u64, to: u64) {
    let trampoline = absolute(at, field, to).unwrap();
    let [load, jump] = decode(64, at, trampoline.bytes())[..] else {
        panic!("two instructions")
    };
    assert_loads(&load, Code::Mov_r64_rm64, Register::RSP, field);
    assert_eq!(load.memory_base(), Register::None);
    assert_eq!(load.segment_prefix(), Register::None);
    assert_jumps(&jump, Code::Jmp_rel32_64, to);
}

#[test]
fn writes_the_eleven_bytes_of_2003() {
    // 8b 25 and the field, e9 and the distance from byte 11: at c050_0000, ESP0 at c043_2104, entry at c010_9a40.
    let trampoline = Trampoline32::new(0xc050_0000, 0xc043_2104, 0xc010_9a40).unwrap();
    assert_eq!(
        trampoline.bytes(),
        &[0x8b, 0x25, 0x04, 0x21, 0x43, 0xc0, 0xe9, 0x35, 0x9a, 0xc0, 0xff]
    );
}

#[test]
fn swaps_before_it_loads() {
    let trampoline = swapgs_relative(0xffff_ffff_8000_1000, 8, 0xffff_ffff_8010_0000).unwrap();
    let [swap, load, jump] = decode(64, trampoline.address(), trampoline.bytes())[..] else {
        panic!("three instructions")
    };
    assert_eq!(swap.code(), Code::Swapgs);
    assert_loads(&load, Code::Mov_r64_rm64, Register::RSP, 8);
    assert_eq!(load.segment_prefix(), Register::GS);
    assert_eq!(load.memory_base(), Register::None);
    assert_jumps(&jump, Code::Jmp_rel32_64, 0xffff_ffff_8010_0000);
}

#[test]
fn type_tells_the_stub_who_swaps_and_who_loads() {
    fn of<A: Arrival>() -> (bool, Load) {
        (A::STUB_SWAPS, A::LOAD)
    }
    assert_eq!(of::<Ready>(), (true, Load::Nothing));
    assert_eq!(of::<ReadySwapped>(), (false, Load::Nothing));
    assert_eq!(of::<AtOffset<4>>(), (true, Load::FromStack(4)));
    assert_eq!(of::<OnEntryStack>(), (true, Load::FromHeader));
}

/// Every distance within a page of the limits of a signed 32-bit displacement, on both sides.
fn near_the_limits() -> impl Iterator<Item = i64> {
    [-0x8000_0000i64, 0x7fff_ffff]
        .into_iter()
        .flat_map(|limit| limit - 4096..=limit + 4096)
}

const fn fits(distance: i64) -> bool {
    -0x8000_0000 <= distance && distance <= 0x7fff_ffff
}

#[test]
fn field_may_be_as_far_as_the_displacement_goes_and_no_further() {
    let at = 0xffff_9000_0000_0000u64;
    for distance in near_the_limits() {
        let field = (at + 7).wrapping_add_signed(distance);
        if fits(distance) {
            assert_rip_relative(at, field, at + 4096);
        } else {
            assert_eq!(
                rip_relative(at, field, at + 4096),
                Err(TrampolineError::OutOfReach {
                    operand: Operand::Field,
                    distance: OutOfReach {
                        origin: at + 7,
                        target: field
                    }
                })
            );
        }
    }
}

#[test]
fn entry_may_be_as_far_as_the_displacement_goes_and_no_further() {
    let at = 0xffff_9000_0000_0000u64;
    for distance in near_the_limits() {
        let refused = |origin: u64, target: u64| {
            Some(TrampolineError::OutOfReach {
                operand: Operand::Entry,
                distance: OutOfReach { origin, target },
            })
        };
        let to = (at + 12).wrapping_add_signed(distance);
        if fits(distance) {
            assert_rip_relative(at, at + 4096, to);
        } else {
            assert_eq!(rip_relative(at, at + 4096, to).err(), refused(at + 12, to));
        }

        let to = (at + 13).wrapping_add_signed(distance);
        let field = 0xffff_ffff_ffff_f000;
        if fits(distance) {
            assert_absolute(at, field, to);
        } else {
            assert_eq!(absolute(at, field, to).err(), refused(at + 13, to));
        }

        let to = (at + 17).wrapping_add_signed(distance);
        let built = swapgs_relative(at, 8, to);
        if fits(distance) {
            let built = built.unwrap();
            assert_jumps(&decode(64, at, built.bytes())[2], Code::Jmp_rel32_64, to);
        } else {
            assert_eq!(built.err(), refused(at + 17, to));
        }
    }
}

#[test]
fn absolute_field_is_in_the_lowest_or_highest_two_gib() {
    let at = 0xffff_9000_0000_0000u64;
    for distance in near_the_limits() {
        let field = 0u64.wrapping_add_signed(distance);
        if fits(distance) {
            assert_absolute(at, field, at + 4096);
        } else {
            assert_eq!(
                absolute(at, field, at + 4096).err(),
                Some(TrampolineError::OutOfReach {
                    operand: Operand::Field,
                    distance: OutOfReach {
                        origin: 0,
                        target: field
                    }
                })
            );
        }
    }
}

#[test]
fn every_address_next_to_the_edge_of_a_half_is_judged_to_its_last_byte() {
    let lower_edge = |width: Width| 1u64 << (width.bits() - 1);
    for width in [Width::Bits48, Width::Bits57] {
        let (hole, high) = (lower_edge(width), lower_edge(width).wrapping_neg());
        for back in 0..64u64 {
            // The trampoline at the end of the lower half.
            let at = hole - back;
            let built = Trampoline64::<RipRelative>::new(at, at - 4096, entry(at - 8192), width);
            match back {
                0 => assert_eq!(
                    built.err(),
                    Some(TrampolineError::NonCanonical {
                        operand: Operand::Trampoline,
                        address: hole
                    })
                ),
                1..12 => assert_eq!(
                    built.err(),
                    Some(TrampolineError::NonCanonical {
                        operand: Operand::Trampoline,
                        address: at + 11
                    })
                ),
                _ => assert!(built.is_ok()),
            }
            // The field there.
            let at = hole - 4096;
            let built = Trampoline64::<RipRelative>::new(at, hole - back, entry(at - 8192), width);
            match back {
                0 => assert_eq!(
                    built.err(),
                    Some(TrampolineError::NonCanonical {
                        operand: Operand::Field,
                        address: hole
                    })
                ),
                1..8 => assert_eq!(
                    built.err(),
                    Some(TrampolineError::NonCanonical {
                        operand: Operand::Field,
                        address: hole - back + 7
                    })
                ),
                _ => assert!(built.is_ok()),
            }
            // The entry on both sides of the upper half's first address.
            let at = high + 4096;
            for to in [high - back, high + back] {
                let built = Trampoline64::<RipRelative>::new(at, at + 4096, entry(to), width);
                if to < high {
                    assert_eq!(
                        built.err(),
                        Some(TrampolineError::NonCanonical {
                            operand: Operand::Entry,
                            address: to
                        })
                    );
                } else {
                    assert!(built.is_ok());
                }
            }
        }
    }
}

#[test]
fn nothing_runs_over_the_end_of_the_address_space() {
    let far = 0xffff_ffff_8000_0000;
    for back in 1..64u64 {
        let at = 0u64.wrapping_sub(back);
        let built = rip_relative(at, far, far + 4096);
        if back < 12 {
            assert_eq!(
                built.err(),
                Some(TrampolineError::Wraps {
                    operand: Operand::Trampoline,
                    address: at
                })
            );
        } else {
            assert_rip_relative(at, far, far + 4096);
        }
        let built = absolute(far, at, far + 4096);
        if back < 8 {
            assert_eq!(
                built.err(),
                Some(TrampolineError::Wraps {
                    operand: Operand::Field,
                    address: at
                })
            );
        } else {
            assert_absolute(far, at, far + 4096);
        }

        let at = 0u32.wrapping_sub(u32::try_from(back).unwrap());
        let built = Trampoline32::new(at, 0xc000_0000, 0xc010_0000).err();
        let wraps = TrampolineError::Wraps {
            operand: Operand::Trampoline,
            address: at.into(),
        };
        assert_eq!(built, (back < 11).then_some(wraps));
        let built = Trampoline32::new(0xc000_0000, at, 0xc010_0000).err();
        assert_eq!(
            built,
            (back < 4).then_some(TrampolineError::Wraps {
                operand: Operand::Field,
                address: at.into()
            })
        );
    }
}

#[test]
fn field_and_entry_lie_outside_the_trampoline() {
    let at = 0xffff_ffff_8000_1000u64;
    for offset in -32..=32i64 {
        let other = at.wrapping_add_signed(offset);
        let built = rip_relative(at, other, at + 4096).err();
        let overlap = |operand| TrampolineError::Overlap {
            operand,
            address: other,
            at,
            bytes: 12,
        };
        assert_eq!(
            built,
            (-7..12).contains(&offset).then_some(overlap(Operand::Field)),
            "field {offset}"
        );
        let built = rip_relative(at, at + 4096, other).err();
        assert_eq!(
            built,
            (0..12).contains(&offset).then_some(overlap(Operand::Entry)),
            "entry {offset}"
        );

        let other32 = 0xc000_1000u32.wrapping_add_signed(i32::try_from(offset).unwrap());
        let built = Trampoline32::new(0xc000_1000, other32, 0xc010_0000).err();
        let overlap = |operand| TrampolineError::Overlap {
            operand,
            address: other32.into(),
            at: 0xc000_1000,
            bytes: 11,
        };
        assert_eq!(
            built,
            (-3..11).contains(&offset).then_some(overlap(Operand::Field)),
            "field {offset}"
        );
        let built = Trampoline32::new(0xc000_1000, 0xc010_0000, other32).err();
        assert_eq!(
            built,
            (0..11).contains(&offset).then_some(overlap(Operand::Entry)),
            "entry {offset}"
        );
    }
}

#[test]
fn buffer_of_every_length_is_filled_or_left_alone() {
    let trampoline = rip_relative(0xffff_ffff_8000_1000, 0xffff_ffff_8000_2000, 0xffff_ffff_8010_0000).unwrap();
    let legacy = Trampoline32::new(0xc000_1000, 0xc000_2000, 0xc010_0000).unwrap();
    for length in 0..32usize {
        let mut buffer = vec![0xaa; length];
        match trampoline.write_to(&mut buffer) {
            Ok(written) => {
                assert_eq!(written, 12);
                assert_eq!(&buffer[..12], trampoline.bytes());
                assert!(buffer[12..].iter().all(|byte| *byte == 0xaa));
            }
            Err(error) => {
                assert!(length < 12);
                assert_eq!(
                    error,
                    BufferTooSmall {
                        needed: 12,
                        given: length
                    }
                );
                assert!(buffer.iter().all(|byte| *byte == 0xaa));
            }
        }
        let mut buffer = vec![0xaa; length];
        assert_eq!(legacy.write_to(&mut buffer).is_ok(), length >= 11);
        assert_eq!(buffer.iter().any(|byte| *byte != 0xaa), length >= 11);
    }
}

#[test]
fn window_covers_every_instruction_and_ends_at_the_stub() {
    let at = 0xffff_ffff_8000_1000;
    let trampoline = swapgs_relative(at, 8, at + 17).unwrap();
    for instruction in decode(64, at, trampoline.bytes()) {
        assert!(trampoline.window().contains(&instruction.ip()));
    }
    assert!(!trampoline.window().contains(&(at + 17)));
}

#[test]
fn one_byte_encodings_are_what_their_names_say() {
    let text = |bits, code: &[u8]| {
        let [instruction] = decode(bits, 0, code)[..] else {
            panic!("one instruction")
        };
        instruction.to_string()
    };
    assert_eq!(text(64, &encode::SWAPGS), "swapgs");
    assert_eq!(text(64, &encode::MOV_RCX_RSP), "mov rcx,rsp");
    assert_eq!(text(64, &encode::SYSCALL), "syscall");
    for bits in [32, 64] {
        assert_eq!(text(bits, &encode::SYSENTER), "sysenter");
        assert_eq!(text(bits, &encode::INT_80), "int 80h");
        assert_eq!(text(bits, &encode::RET), "ret");
        assert_eq!(text(bits, &[encode::INT3]), "int3");
    }
    assert_eq!(text(32, &encode::SYSCALL), "syscall");
    assert_eq!(text(32, &encode::MOV_EBP_ESP), "mov ebp,esp");
    assert_eq!(text(32, &encode::MOV_EBP_ECX), "mov ebp,ecx");
    assert_eq!(text(32, &encode::PUSH_ECX), "push ecx");
    assert_eq!(text(32, &encode::PUSH_EDX), "push edx");
    assert_eq!(text(32, &encode::PUSH_EBP), "push ebp");
    assert_eq!(text(32, &encode::POP_ECX), "pop ecx");
    assert_eq!(text(32, &encode::POP_EDX), "pop edx");
    assert_eq!(text(32, &encode::POP_EBP), "pop ebp");
    for forward in [0, 1, 2, 127, 128, 255] {
        let [lea] = decode(64, 0x1000, &encode::lea_r11_rip(forward))[..] else {
            panic!("one instruction")
        };
        assert_eq!((lea.code(), lea.op0_register()), (Code::Lea_r64_m, Register::R11));
        assert_eq!(lea.ip_rel_memory_address(), 0x1007 + u64::from(forward));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2048) })]

    #[test]
    fn every_32_bit_trampoline_loads_and_jumps_as_asked(at: u32, field: u32, to: u32) {
        // What is refused is checked exhaustively above; at random it is too rare to matter.
        if let Ok(trampoline) = Trampoline32::new(at, field, to) {
            let [load, jump] = decode(32, at.into(), trampoline.bytes())[..] else { panic!("two instructions") };
            assert_loads(&load, Code::Mov_r32_rm32, Register::ESP, field.into());
            assert_eq!(load.memory_base(), Register::None);
            assert_jumps(&jump, Code::Jmp_rel32_32, to.into());
            assert_eq!(trampoline.address(), at);
        }
    }

    #[test]
    fn every_rip_relative_trampoline_in_reach_loads_and_jumps_as_asked(
        at in 0xffff_8000_8000_0000u64..0xffff_ffff_7fff_0000, field: i32, to: i32,
    ) {
        let (field, to) = (at.wrapping_add_signed(field.into()), at.wrapping_add_signed(to.into()));
        match rip_relative(at, field, to) {
            Ok(_) => assert_rip_relative(at, field, to),
            Err(TrampolineError::Overlap { .. } | TrampolineError::OutOfReach { .. }) => {
                let near = |address: u64| address.abs_diff(at) < 32 || address.abs_diff(at) > 0x7fff_ff00;
                prop_assert!(near(field) || near(to));
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn every_absolute_trampoline_loads_and_jumps_as_asked(
        at in 0xffff_8000_8000_0000u64..0xffff_ffff_7fff_0000, field: i32, to in -0x7fff_ff00i64..0x7fff_ff00,
    ) {
        prop_assume!(!(0..32).contains(&to) && field < i32::MAX - 8 && !(-8..0).contains(&field));
        assert_absolute(at, 0u64.wrapping_add_signed(field.into()), at.wrapping_add_signed(to));
    }

    #[test]
    fn every_gs_offset_is_encoded(offset: i32) {
        let trampoline = swapgs_relative(0xffff_ffff_8000_1000, offset, 0xffff_ffff_8010_0000).unwrap();
        let load = decode(64, trampoline.address(), trampoline.bytes())[1];
        assert_loads(&load, Code::Mov_r64_rm64, Register::RSP, 0u64.wrapping_add_signed(offset.into()));
        prop_assert_eq!(load.segment_prefix(), Register::GS);
    }
}
