//! CPU support, and the register writes of each stack strategy, on registers that note every write.

use entry_core::address::{AddressError, Width};
use entry_core::cpu::{CpuFeatures, Vendor};
use entry_core::msr::FakeMsrs;
use entry_core::plan::InstallError;
use entry_core::tss::TaskStateSegment;
use entry_core::{IrqOff, SegmentLayout, Selector};
use entry_sysenter::arrival::{Arrival, AtOffset, EntryAddress};
use entry_sysenter::error::{FieldMisplaced, PlanError, SelectorError, Unsupported};
use entry_sysenter::stack::{
    AtFixedOffset, ByTrampoline, EntryStack, FromHeader, Strategy, Sysenter, SysenterPlan, WrmsrPerSwitch,
};
use entry_sysenter::support::{ProtectedModeSupport, SysenterSupport, sysenter_cs};
use entry_sysenter::trampoline::{RipRelative, SwapgsRelative, Trampoline64};

const CS: u32 = 0x174;
const ESP: u32 = 0x175;
const EIP: u32 = 0x176;

const ENTRY: u64 = 0xffff_ffff_8010_0000;
const AT: u64 = 0xffff_ffff_8030_0000;
const TOP: u64 = 0xffff_c000_0000_4000;

static STACK: EntryStack<512> = EntryStack::new();

fn cpu(vendor: Vendor, family: u16, model: u8, stepping: u8, sep: bool) -> CpuFeatures {
    let mut cpu = CpuFeatures::from_cpuid(|_, _| entry_core::cpu::CpuidLeaf::default());
    (cpu.vendor, cpu.family, cpu.model, cpu.stepping, cpu.sep) = (vendor, family, model, stepping, sep);
    cpu
}

fn support() -> SysenterSupport {
    SysenterSupport::on(&cpu(Vendor::Intel, 6, 0x5e, 3, true)).unwrap()
}

const fn entry<A: Arrival>() -> EntryAddress<A> {
    // SAFETY: nothing is run in these tests.
    unsafe { EntryAddress::new(ENTRY) }
}

const fn irq() -> IrqOff {
    // SAFETY: there are no interrupts in a host test's view of the world.
    unsafe { IrqOff::assume() }
}

fn install<S: Strategy>(strategy: S, msrs: &mut FakeMsrs) -> Result<Sysenter<S>, InstallError> {
    let plan = SysenterPlan::new(support(), &SegmentLayout::NATURAL, strategy, Width::Bits48).unwrap();
    // SAFETY: fake registers control nothing.
    unsafe { plan.install(msrs, &irq()) }
}

fn switch<S: Strategy>(cpu: &mut Sysenter<S>, stack: u64, msrs: &mut FakeMsrs) {
    // SAFETY: fake registers control nothing.
    unsafe { cpu.switch_to(stack, msrs, &irq()) };
}

fn disable<S: Strategy>(cpu: &mut Sysenter<S>, msrs: &mut FakeMsrs) {
    // SAFETY: fake registers control nothing.
    unsafe { cpu.disable(msrs, &irq()) };
}

fn enable<S: Strategy>(cpu: &mut Sysenter<S>, msrs: &mut FakeMsrs) {
    // SAFETY: fake registers control nothing.
    unsafe { cpu.enable(msrs, &irq()) };
}

#[test]
fn long_mode_is_intels_alone() {
    for vendor in [Vendor::Amd, Vendor::Hygon, Vendor::Other] {
        let cpu = cpu(vendor, 25, 1, 1, true);
        assert_eq!(SysenterSupport::on(&cpu), Err(Unsupported::LongMode { vendor }));
        assert!(ProtectedModeSupport::on(&cpu).is_ok());
    }
    let intel = cpu(Vendor::Intel, 6, 0x5e, 3, true);
    assert!(SysenterSupport::on(&intel).is_ok());
    assert!(ProtectedModeSupport::on(&intel).is_ok());
}

#[test]
fn cpu_without_sep_is_refused_in_both_modes() {
    for vendor in [Vendor::Intel, Vendor::Amd, Vendor::Hygon, Vendor::Other] {
        let cpu = cpu(vendor, 15, 4, 1, false);
        assert_eq!(SysenterSupport::on(&cpu), Err(Unsupported::NoSep));
        assert_eq!(ProtectedModeSupport::on(&cpu), Err(Unsupported::NoSep));
    }
}

#[test]
fn false_sep_of_the_pentium_pro_is_known_for_every_model_and_stepping() {
    for model in 0..=255 {
        for stepping in 0..=15 {
            for family in [5, 6, 15] {
                let part = cpu(Vendor::Intel, family, model, stepping, true);
                let is_false = family == 6 && model < 3 && stepping < 3;
                let wanted = is_false.then_some(Unsupported::PentiumPro { model, stepping });
                assert_eq!(
                    ProtectedModeSupport::on(&part).err(),
                    wanted,
                    "{family} {model} {stepping}"
                );
                assert_eq!(SysenterSupport::on(&part).err(), wanted, "{family} {model} {stepping}");
            }
        }
    }
}

#[test]
fn code_selector_is_refused_unless_it_is_a_gdt_entry_with_rpl_0() {
    for bits in 0..=u16::MAX {
        let value = Selector::from_bits(bits);
        let wanted = match bits {
            0..=3 => Err(SelectorError::Null { value }),
            _ if bits & 4 != 0 => Err(SelectorError::Local { value }),
            _ if bits & 3 != 0 => Err(SelectorError::Rpl { value }),
            _ => Ok(u64::from(bits)),
        };
        assert_eq!(sysenter_cs(value).map(|cs| cs.bits()), wanted, "{bits:#x}");
    }
}

#[test]
fn install_keeps_sysenter_off_until_stack_and_entry_point_are_right() {
    let mut msrs = FakeMsrs::new();
    msrs.set(CS, 8);
    let cpu = install(WrmsrPerSwitch::new(entry(), TOP), &mut msrs).unwrap();
    assert_eq!(msrs.writes(), [(CS, 0), (ESP, TOP), (EIP, ENTRY), (CS, 8)]);
    assert!(cpu.is_enabled());
}

#[test]
fn register_that_keeps_32_bits_is_found_out_and_sysenter_stays_off() {
    for register in [ESP, EIP] {
        let mut msrs = FakeMsrs::new();
        msrs.set(CS, 8);
        msrs.lose(register, 0xffff_ffff_0000_0000);
        let planned = if register == ESP { TOP } else { ENTRY };
        let error = install(WrmsrPerSwitch::new(entry(), TOP), &mut msrs).unwrap_err();
        let InstallError::ReadBack {
            number,
            planned: wrote,
            found,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!((number, wrote, found), (register, planned, planned & 0xffff_ffff));
        assert_eq!(msrs.get(CS), 0);
    }
    let mut msrs = FakeMsrs::new();
    msrs.lose(CS, 0xffff);
    assert!(install(WrmsrPerSwitch::new(entry(), TOP), &mut msrs).is_err());
    assert_eq!(msrs.writes().last(), Some(&(CS, 0)));
}

#[test]
fn wrmsr_strategy_writes_one_register_per_switch_and_none_to_the_same_thread() {
    let mut msrs = FakeMsrs::new();
    let mut cpu = install(WrmsrPerSwitch::new(entry(), TOP), &mut msrs).unwrap();
    let installed = msrs.writes().len();
    for stack in [TOP, TOP + 0x4000, TOP + 0x4000, TOP] {
        switch(&mut cpu, stack, &mut msrs);
    }
    assert_eq!(msrs.writes()[installed..], [(ESP, TOP + 0x4000), (ESP, TOP)]);
}

/// Installs, switches, and gives the registers: nothing but install may have written.
fn written_by_constant_strategy<S: Strategy>(strategy: S) -> [u64; 2] {
    let mut msrs = FakeMsrs::new();
    let mut cpu = install(strategy, &mut msrs).unwrap();
    let installed = msrs.writes().len();
    assert_eq!(installed, 4);
    for stack in [TOP, TOP + 0x4000, TOP] {
        switch(&mut cpu, stack, &mut msrs);
    }
    assert_eq!(msrs.writes().len(), installed);
    [msrs.get(ESP), msrs.get(EIP)]
}

#[test]
fn trampoline_strategy_writes_nothing_at_a_switch() {
    let rip = Trampoline64::<RipRelative>::new(AT, AT + 0x1004, entry(), Width::Bits48).unwrap();
    assert_eq!(
        written_by_constant_strategy(ByTrampoline::new(rip, &STACK)),
        [STACK.top(), AT]
    );
    let gs = Trampoline64::<SwapgsRelative>::new(AT, 8, entry(), Width::Bits48).unwrap();
    assert_eq!(
        written_by_constant_strategy(ByTrampoline::new(gs, &STACK)),
        [STACK.top(), AT]
    );
}

#[test]
fn header_strategy_writes_nothing_at_a_switch() {
    assert_eq!(
        written_by_constant_strategy(FromHeader::new(entry(), &STACK)),
        [STACK.top(), ENTRY]
    );
}

#[repr(C)]
struct StackAndTss {
    stack: EntryStack<512>,
    tss: TaskStateSegment,
}

// SAFETY: the tests take addresses and write nothing.
unsafe impl Sync for StackAndTss {}

static STACK_AND_TSS: StackAndTss = StackAndTss {
    stack: EntryStack::new(),
    tss: TaskStateSegment::new(),
};

/// The offset of RSP0 in the structure: 4 bytes in front of the architectural TSS, and 4 in it.
const RSP0: i32 = 8;

#[test]
fn fixed_offset_strategy_writes_nothing_at_a_switch_and_finds_rsp0() {
    let field = (&raw const STACK_AND_TSS.tss).addr() as u64 + 8;
    let strategy = AtFixedOffset::<RSP0>::new(entry(), &STACK_AND_TSS.stack, field).unwrap();
    assert_eq!(TaskStateSegment::RSP0, 8);
    assert_eq!(
        written_by_constant_strategy(strategy),
        [STACK_AND_TSS.stack.top(), ENTRY]
    );
}

#[test]
fn field_at_any_other_distance_is_refused() {
    let wanted = STACK_AND_TSS.stack.top() + 8;
    for off in (-64..=64).filter(|off| *off != 0) {
        let found = wanted.wrapping_add_signed(off);
        let error = AtFixedOffset::<RSP0>::new(entry::<AtOffset<RSP0>>(), &STACK_AND_TSS.stack, found).unwrap_err();
        assert_eq!(error, FieldMisplaced { found, wanted });
    }
}

#[test]
fn disable_and_enable_write_the_code_selector_once_each_and_leave_the_stack_to_switches() {
    let mut msrs = FakeMsrs::new();
    let mut cpu = install(WrmsrPerSwitch::new(entry(), TOP), &mut msrs).unwrap();
    let installed = msrs.writes().len();
    enable(&mut cpu, &mut msrs);
    disable(&mut cpu, &mut msrs);
    disable(&mut cpu, &mut msrs);
    assert!(!cpu.is_enabled());
    assert_eq!(msrs.get(CS), 0);
    switch(&mut cpu, TOP + 0x4000, &mut msrs);
    enable(&mut cpu, &mut msrs);
    enable(&mut cpu, &mut msrs);
    assert!(cpu.is_enabled());
    assert_eq!(msrs.writes()[installed..], [(CS, 0), (ESP, TOP + 0x4000), (CS, 8)]);
}

#[test]
fn strategies_are_exchanged_with_sysenter_off_in_between() {
    let mut msrs = FakeMsrs::new();
    let _given_up = install(WrmsrPerSwitch::new(entry(), TOP), &mut msrs).unwrap();
    let before = msrs.writes().len();
    let _cpu = install(FromHeader::new(entry(), &STACK), &mut msrs).unwrap();
    assert_eq!(
        msrs.writes()[before..],
        [(CS, 0), (ESP, STACK.top()), (EIP, ENTRY), (CS, 8)]
    );
}

#[test]
fn plan_refuses_bad_addresses_and_odd_stacks() {
    let plan = |stack, address| {
        // SAFETY: nothing is run in these tests.
        let entry = unsafe { EntryAddress::new(address) };
        SysenterPlan::new(
            support(),
            &SegmentLayout::NATURAL,
            WrmsrPerSwitch::new(entry, stack),
            Width::Bits48,
        )
        .err()
    };
    let refused = |register, error| Some(PlanError::Address { register, error });
    let width = Width::Bits48;
    for address in [0x8000_0000_0000, 0xffff_7fff_ffff_fff0] {
        let error = AddressError::NonCanonical { address, width };
        assert_eq!(plan(address, ENTRY), refused("SYSENTER_ESP", error));
        assert_eq!(plan(TOP, address), refused("SYSENTER_EIP", error));
    }
    assert_eq!(plan(0, ENTRY), refused("SYSENTER_ESP", AddressError::Null));
    assert_eq!(plan(TOP, 0), refused("SYSENTER_EIP", AddressError::Null));
    for stack in TOP + 1..TOP + 16 {
        assert_eq!(plan(stack, ENTRY), Some(PlanError::MisalignedStack { stack }));
    }
    assert_eq!(plan(TOP, ENTRY), None);
}

#[test]
fn plan_prints_as_a_table() {
    let strategy = WrmsrPerSwitch::new(entry(), TOP);
    let plan = SysenterPlan::new(support(), &SegmentLayout::NATURAL, strategy, Width::Bits48).unwrap();
    let table = "SYSENTER_ESP 0x00000175  0xffffc00000004000\n\
                 SYSENTER_EIP 0x00000176  0xffffffff80100000\n\
                 SYSENTER_CS  0x00000174  0x0000000000000008";
    assert_eq!(plan.to_string(), table);
}

#[test]
fn step_into_the_trampoline_is_recognised() {
    let mut msrs = FakeMsrs::new();
    let trampoline = Trampoline64::<RipRelative>::new(AT, AT + 0x1004, entry(), Width::Bits48).unwrap();
    let cpu = install(ByTrampoline::new(trampoline, &STACK), &mut msrs).unwrap();
    for (rip, wanted) in [
        (AT - 1, false),
        (AT, true),
        (AT + 7, true),
        (AT + 11, true),
        (AT + 12, false),
    ] {
        assert_eq!(cpu.is_user_step(rip), wanted, "{rip:#x}");
    }
}
