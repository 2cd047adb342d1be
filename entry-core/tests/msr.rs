//! Register numbers, constructors, and values that no constructor makes.

use entry_core::address::{AddressError, UserLimit, Width};
use entry_core::cpu::CpuFeatures;
use entry_core::msr::{
    Cstar, Efer, FakeMsrs, Fmask, FsBase, GsBase, KernelGsBase, Lstar, Msr, MsrError, Register, SpecCtrl, Star,
    SysenterCs, SysenterEip, SysenterEsp, TscAux,
};
use entry_core::rflags::FlagMask;
use entry_core::segment::{SegmentLayout, Selector};
use x86_64::registers::model_specific::EferFlags;

/// Puts `bits` into the register behind the type's back, reads it as the type, and writes it back.
fn round_trip<R: Register>(bits: u64) {
    let mut msrs = FakeMsrs::new();
    msrs.set(R::NUMBER, bits);
    // SAFETY: a fake has every register and controls nothing.
    let value = unsafe { R::read(&mut msrs) };
    assert_eq!(value.bits(), bits, "{}", R::NAME);
    // SAFETY: as above.
    unsafe { value.write(&mut msrs) };
    assert_eq!(msrs.writes(), [(R::NUMBER, bits)], "{}", R::NAME);
}

fn row<R: Register>(number: u32, name: &str) {
    assert_eq!((R::NUMBER, R::NAME), (number, name));
    for bit in 0..64 {
        round_trip::<R>(1 << bit);
        round_trip::<R>(!(1 << bit));
    }
    round_trip::<R>(0);
    round_trip::<R>(u64::MAX);
}

#[test]
fn registers_have_the_manuals_numbers_and_take_every_bit_pattern() {
    row::<SpecCtrl>(0x48, "SPEC_CTRL");
    row::<SysenterCs>(0x174, "SYSENTER_CS");
    row::<SysenterEsp>(0x175, "SYSENTER_ESP");
    row::<SysenterEip>(0x176, "SYSENTER_EIP");
    row::<Efer>(0xc000_0080, "EFER");
    row::<Star>(0xc000_0081, "STAR");
    row::<Lstar>(0xc000_0082, "LSTAR");
    row::<Cstar>(0xc000_0083, "CSTAR");
    row::<Fmask>(0xc000_0084, "FMASK");
    row::<FsBase>(0xc000_0100, "FS_BASE");
    row::<GsBase>(0xc000_0101, "GS_BASE");
    row::<KernelGsBase>(0xc000_0102, "KERNEL_GS_BASE");
    row::<TscAux>(0xc000_0103, "TSC_AUX");
}

#[test]
fn efer_and_spec_ctrl_bits_are_those_of_the_manuals() {
    for (flag, bits) in [
        (Efer::SYSTEM_CALL_ENABLE, 0x1),
        (Efer::LONG_MODE_ENABLE, 0x100),
        (Efer::LONG_MODE_ACTIVE, 0x400),
        (Efer::NO_EXECUTE_ENABLE, 0x800),
        (Efer::SECURE_VIRTUAL_MACHINE_ENABLE, 0x1000),
        (Efer::LONG_MODE_SEGMENT_LIMIT_ENABLE, 0x2000),
        (Efer::FAST_FXSAVE, 0x4000),
        (Efer::TRANSLATION_CACHE_EXTENSION, 0x8000),
        (Efer::UPPER_ADDRESS_IGNORE_ENABLE, 0x10_0000),
        (Efer::AUTOMATIC_IBRS_ENABLE, 0x20_0000),
    ] {
        assert_eq!(Efer::bits(&flag), bits, "{flag:?}");
    }
    let other = EferFlags::from(Efer::from_bits_retain(0xffff_0000_0000_0d01));
    assert_eq!(Efer::bits(&other.into()), 0xffff_0000_0000_0d01);
    for (flag, bits) in [
        (SpecCtrl::INDIRECT_BRANCH_RESTRICTED_SPECULATION, 0x1),
        (SpecCtrl::SINGLE_THREAD_INDIRECT_BRANCH_PREDICTORS, 0x2),
        (SpecCtrl::SPECULATIVE_STORE_BYPASS_DISABLE, 0x4),
        (SpecCtrl::PREDICTIVE_STORE_FORWARDING_DISABLE, 0x80),
        (SpecCtrl::BRANCH_HISTORY_DISABLE_SUPERVISOR, 0x400),
    ] {
        assert_eq!(SpecCtrl::bits(&flag), bits, "{flag:?}");
    }
}

#[test]
fn star_holds_base_and_kernel_code() {
    assert_eq!(Star::new(&SegmentLayout::NATURAL).bits(), 0x001b_0008_0000_0000);
    let layout = SegmentLayout::new(Selector::from_bits(0x10)).unwrap();
    assert_eq!(Star::new(&layout).bits(), 0x0023_0010_0000_0000);
    assert_eq!(SysenterCs::new(&layout).bits(), 0x10);
}

#[test]
fn sysenter_cs_is_never_a_null_selector_unless_disabled() {
    for index in 1..8000 {
        let layout = SegmentLayout::new(Selector::from_bits(index * 8)).unwrap();
        let cs = SysenterCs::new(&layout).bits();
        assert_eq!(cs, u64::from(index) * 8);
    }
    assert_eq!(SysenterCs::DISABLED.bits(), 0);
}

#[test]
fn entry_points_and_stacks_must_be_canonical_and_not_null() {
    type New = fn(u64, Width) -> Result<u64, AddressError>;
    let constructors: [New; 4] = [
        |address, width| Lstar::new(address, width).map(Lstar::bits),
        |address, width| Cstar::new(address, width).map(Cstar::bits),
        |address, width| SysenterEip::new(address, width).map(SysenterEip::bits),
        |address, width| SysenterEsp::new(address, width).map(SysenterEsp::bits),
    ];
    for new in constructors {
        assert_eq!(new(0, Width::Bits48), Err(AddressError::Null));
        for address in [0xffff_8000_0000_0000, 0xffff_ffff_8010_0000, 0x7fff_ffff_ffff] {
            assert_eq!(new(address, Width::Bits48), Ok(address));
        }
        for address in [0x8000_0000_0000, 0xffff_7fff_ffff_ffff, 0xff00_0000_0000_0000] {
            let width = Width::Bits48;
            assert_eq!(new(address, width), Err(AddressError::NonCanonical { address, width }));
        }
        assert_eq!(new(0xff00_0000_0000_0000, Width::Bits57), Ok(0xff00_0000_0000_0000));
        assert!(new(0xfe00_0000_0000_0000, Width::Bits57).is_err());
    }
}

#[test]
fn bases_must_be_canonical_and_a_programs_in_its_half() {
    type New = fn(u64) -> Result<u64, AddressError>;
    let any: [New; 3] = [
        |base| FsBase::new(base, Width::Bits48).map(FsBase::bits),
        |base| GsBase::new(base, Width::Bits48).map(GsBase::bits),
        |base| KernelGsBase::new(base, Width::Bits48).map(KernelGsBase::bits),
    ];
    for new in any {
        assert_eq!(new(0), Ok(0));
        assert_eq!(new(0xffff_8000_0000_0000), Ok(0xffff_8000_0000_0000));
        assert!(new(0x8000_0000_0000).is_err());
    }
    let limit = UserLimit::HIGHEST_48;
    let user: [New; 3] = [
        |base| FsBase::new_user(base, UserLimit::HIGHEST_48).map(FsBase::bits),
        |base| GsBase::new_user(base, UserLimit::HIGHEST_48).map(GsBase::bits),
        |base| KernelGsBase::new_user(base, UserLimit::HIGHEST_48).map(KernelGsBase::bits),
    ];
    for new in user {
        assert_eq!(new(0x7fff_ffff_efff), Ok(0x7fff_ffff_efff));
        for address in [0x7fff_ffff_f000, 0x8000_0000_0000, 0xffff_8000_0000_0000, u64::MAX] {
            assert_eq!(new(address), Err(AddressError::NotUser { address, limit }));
        }
    }
}

#[test]
fn fmask_and_tsc_aux_leave_the_upper_half_clear() {
    assert_eq!(Fmask::new(FlagMask::REQUIRED).bits(), 0x25_7fd5);
    assert_eq!(TscAux::new(u32::MAX).bits(), 0xffff_ffff);
}

#[test]
fn values_print_in_hex() {
    assert_eq!(
        format!("{:?}", Lstar::from_bits(0xffff_8000_0000_1000)),
        "Lstar(0xffff800000001000)"
    );
    assert_eq!(
        format!("{:?}", Efer::from_bits_retain(0x501)),
        "Efer(SYSTEM_CALL_ENABLE | LONG_MODE_ENABLE | LONG_MODE_ACTIVE)"
    );
}

#[test]
fn fake_loses_what_it_is_told_to_lose() {
    let mut msrs = FakeMsrs::new();
    msrs.set(0x174, 0xff);
    msrs.lose(0x174, 0x0f);
    // SAFETY: a fake has every register and controls nothing.
    unsafe { msrs.write(0x174, 0x1230) };
    assert_eq!(msrs.get(0x174), 0x123f);
    // SAFETY: as above.
    assert_eq!(unsafe { msrs.read(0x174) }, 0x123f);
    assert_eq!(msrs.get(0x175), 0);
    assert_eq!(format!("{msrs:?}"), "{372: 4671}");
}

#[test]
fn spec_ctrl_takes_the_bits_that_the_cpu_has() {
    let none = CpuFeatures::from_cpuid(|_, _| Default::default());
    let mut all = none;
    (all.ibrs, all.stibp, all.ssbd, all.psfd, all.bhi_ctrl) = (true, true, true, true, true);
    assert_eq!(SpecCtrl::bits(&SpecCtrl::supported(&all)), 0x487);
    assert_eq!(SpecCtrl::bits(&SpecCtrl::supported(&none)), 0);
    for bit in 0..64 {
        let flags = SpecCtrl::from_bits_retain(1 << bit);
        let refused = Err(MsrError::Unsupported {
            register: "SPEC_CTRL",
            bits: 1 << bit,
        });
        assert_eq!(SpecCtrl::new(flags, &none), refused);
        assert_eq!(
            SpecCtrl::new(flags, &all),
            if 0x487 & 1u64 << bit != 0 { Ok(flags) } else { refused }
        );
    }
    let mut one = none;
    one.ssbd = true;
    let flags = SpecCtrl::from_bits_retain(0x5);
    assert_eq!(
        SpecCtrl::new(flags, &one).unwrap_err().to_string(),
        "SPEC_CTRL bits 0x1 do not exist on this cpu, wanted 0"
    );
}
