//! Plans for forged CPUs, and their installation into fake registers.

use entry_core::address::{AddressError, Width};
use entry_core::cpu::{CpuFeatures, CpuidLeaf, Vendor};
use entry_core::msr::FakeMsrs;
use entry_core::plan::{Action, EntryPoints, InstallError, PlanError, SyscallPlan, SysenterEntry};
use entry_core::rflags::FlagMask;
use entry_core::segment::SegmentLayout;

const SYSCALL: u64 = 0xffff_ffff_8010_0000;
const SYSCALL32: u64 = 0xffff_ffff_8010_0100;
const SYSENTER: u64 = 0xffff_ffff_8010_0200;
const STACK: u64 = 0xffff_c000_0001_0000;

const ENTRIES: EntryPoints = EntryPoints {
    syscall: Some(SYSCALL),
    syscall32: Some(SYSCALL32),
    sysenter: Some(SysenterEntry {
        entry: SYSENTER,
        stack: STACK,
    }),
    cpu_number: 5,
};

fn cpu(vendor: Vendor) -> CpuFeatures {
    let mut cpu = CpuFeatures::from_cpuid(|_, _| CpuidLeaf::default());
    cpu.vendor = vendor;
    cpu.sep = true;
    cpu.syscall = true;
    cpu.nx = true;
    cpu.rdtscp = true;
    cpu
}

fn plan(entries: &EntryPoints, cpu: &CpuFeatures) -> Result<SyscallPlan, PlanError> {
    SyscallPlan::new(&SegmentLayout::NATURAL, FlagMask::REQUIRED, entries, cpu, Width::Bits48)
}

fn install(plan: &SyscallPlan, msrs: &mut FakeMsrs) -> Result<(), InstallError> {
    // SAFETY: a fake has every register and controls nothing; the token is dropped.
    unsafe { plan.install(msrs) }.map(drop)
}

#[test]
fn intel_gets_every_image_and_system_calls_last() {
    let mut msrs = FakeMsrs::new();
    msrs.set(0xc000_0080, 0x500); // LME, LMA
    install(&plan(&ENTRIES, &cpu(Vendor::Intel)).unwrap(), &mut msrs).unwrap();
    assert_eq!(
        msrs.writes(),
        [
            (0xc000_0082, SYSCALL),
            (0xc000_0083, SYSCALL32),
            (0xc000_0084, 0x25_7fd5),
            (0xc000_0081, 0x001b_0008_0000_0000),
            (0x175, STACK),
            (0x176, SYSENTER),
            (0x174, 0x08),
            (0xc000_0103, 5),
            (0xc000_0080, 0xd01), // SCE and NXE beside what was there
        ]
    );
}

#[test]
fn efer_keeps_bits_that_nobody_knows() {
    let mut msrs = FakeMsrs::new();
    msrs.set(0xc000_0080, 0x8000_0000_0020_5500);
    install(&plan(&ENTRIES, &cpu(Vendor::Amd)).unwrap(), &mut msrs).unwrap();
    assert_eq!(msrs.get(0xc000_0080), 0x8000_0000_0020_5d01);
}

#[test]
fn sysenter_is_off_on_amd_and_its_registers_hold_no_half_address() {
    for vendor in [Vendor::Amd, Vendor::Hygon, Vendor::Other] {
        let plan = plan(&ENTRIES, &cpu(vendor)).unwrap();
        assert!(!plan.has_sysenter() && plan.has_syscall());
        let mut msrs = FakeMsrs::new();
        for number in [0x174, 0x175, 0x176] {
            msrs.set(number, 0xdead_beef);
        }
        install(&plan, &mut msrs).unwrap();
        assert_eq!([0x174, 0x175, 0x176].map(|number| msrs.get(number)), [0; 3]);
    }
}

#[test]
fn sysenter_that_is_not_wanted_is_turned_off() {
    let plan = plan(
        &EntryPoints {
            sysenter: None,
            ..ENTRIES
        },
        &cpu(Vendor::Intel),
    )
    .unwrap();
    assert!(!plan.has_sysenter());
    let mut msrs = FakeMsrs::new();
    msrs.set(0x174, 0x60); // what firmware or another kernel left
    install(&plan, &mut msrs).unwrap();
    assert_eq!(msrs.get(0x174), 0);
}

#[test]
fn compatibility_entry_is_demanded_where_programs_can_get_there() {
    let without = EntryPoints {
        syscall32: None,
        ..ENTRIES
    };
    assert!(plan(&without, &cpu(Vendor::Intel)).is_ok());
    for vendor in [Vendor::Amd, Vendor::Hygon, Vendor::Other] {
        assert_eq!(plan(&without, &cpu(vendor)), Err(PlanError::NoCompatibilityEntry));
    }
}

#[test]
fn cpu_without_syscall_is_told_apart_from_a_kernel_without_it() {
    let mut old = cpu(Vendor::Amd);
    old.syscall = false;
    assert_eq!(plan(&ENTRIES, &old), Err(PlanError::NoSyscall));
    let int80_only = EntryPoints {
        syscall: None,
        syscall32: None,
        sysenter: None,
        cpu_number: 0,
    };
    for cpu in [old, cpu(Vendor::Amd), cpu(Vendor::Intel)] {
        let plan = plan(&int80_only, &cpu).unwrap();
        assert!(!plan.has_syscall() && !plan.has_sysenter());
        let mut msrs = FakeMsrs::new();
        msrs.set(0xc000_0080, 0x501);
        install(&plan, &mut msrs).unwrap();
        assert_eq!(msrs.get(0xc000_0080), 0xd00, "SCE is cleared");
        assert!(
            msrs.writes()
                .iter()
                .all(|(number, _)| !(0xc000_0081..=0xc000_0084).contains(number))
        );
    }
}

#[test]
fn registers_that_the_cpu_lacks_are_not_touched() {
    let mut bare = cpu(Vendor::Intel);
    bare.sep = false;
    bare.rdtscp = false;
    bare.nx = false;
    let plan = plan(&ENTRIES, &bare).unwrap();
    let mut msrs = FakeMsrs::new();
    install(&plan, &mut msrs).unwrap();
    let touched: Vec<u32> = msrs.writes().iter().map(|(number, _)| *number).collect();
    assert_eq!(
        touched,
        [0xc000_0082, 0xc000_0083, 0xc000_0084, 0xc000_0081, 0xc000_0080]
    );
    assert_eq!(msrs.get(0xc000_0080), 1);
}

#[test]
fn each_bad_address_is_refused_by_register() {
    let bad = 0x8000_0000_0000;
    let sysenter = |entry, stack| Some(SysenterEntry { entry, stack });
    for (register, entries) in [
        (
            "LSTAR",
            EntryPoints {
                syscall: Some(bad),
                ..ENTRIES
            },
        ),
        (
            "CSTAR",
            EntryPoints {
                syscall32: Some(bad),
                ..ENTRIES
            },
        ),
        (
            "SYSENTER_EIP",
            EntryPoints {
                sysenter: sysenter(bad, STACK),
                ..ENTRIES
            },
        ),
        (
            "SYSENTER_ESP",
            EntryPoints {
                sysenter: sysenter(SYSENTER, bad),
                ..ENTRIES
            },
        ),
    ] {
        let error = AddressError::NonCanonical {
            address: bad,
            width: Width::Bits48,
        };
        assert_eq!(
            plan(&entries, &cpu(Vendor::Intel)),
            Err(PlanError::Address { register, error })
        );
    }
    let null = EntryPoints {
        syscall: Some(0),
        ..ENTRIES
    };
    let error = plan(&null, &cpu(Vendor::Intel)).unwrap_err();
    assert_eq!(
        error,
        PlanError::Address {
            register: "LSTAR",
            error: AddressError::Null
        }
    );
    assert_eq!(error.to_string(), "LSTAR: address is 0");
}

#[test]
fn width_is_the_modes_and_at_most_the_cpus() {
    let high = EntryPoints {
        syscall: Some(0xff10_0000_0000_0000),
        ..ENTRIES
    };
    let narrow = cpu(Vendor::Intel);
    let mut wide = narrow;
    wide.la57 = true;
    let new = |cpu, width| SyscallPlan::new(&SegmentLayout::NATURAL, FlagMask::REQUIRED, &high, cpu, width);
    assert!(new(&wide, Width::Bits57).is_ok());
    // The CPU could, but it runs with 48 bits now: a jump there would fault.
    assert!(matches!(
        new(&wide, Width::Bits48),
        Err(PlanError::Address { register: "LSTAR", .. })
    ));
    assert_eq!(
        new(&narrow, Width::Bits57),
        Err(PlanError::Width {
            width: Width::Bits57,
            widest: Width::Bits48
        })
    );
}

#[test]
fn every_lost_bit_is_found_before_syscall_is_enabled() {
    let plan = plan(&ENTRIES, &cpu(Vendor::Intel)).unwrap();
    for row in plan.rows() {
        let (number, name) = (row.number(), row.name());
        let planned = match row.action() {
            Action::Write { value } | Action::Update { value, .. } => value,
            other => panic!("{name}: {other:?}"),
        };
        for bit in (0..64).filter(|bit| planned & 1 << bit != 0) {
            let mut msrs = FakeMsrs::new();
            msrs.lose(number, 1 << bit);
            let found = planned & !(1 << bit);
            assert_eq!(
                install(&plan, &mut msrs),
                Err(InstallError::ReadBack {
                    number,
                    name,
                    planned,
                    found
                }),
                "{name} bit {bit}"
            );
            if name != "EFER" {
                assert_eq!(msrs.get(0xc000_0080), 0, "SYSCALL stays off");
            }
        }
    }
}

#[test]
fn errors_name_register_found_and_wanted() {
    let mut msrs = FakeMsrs::new();
    msrs.lose(0xc000_0084, 0x4_0000);
    let error = install(&plan(&ENTRIES, &cpu(Vendor::Intel)).unwrap(), &mut msrs).unwrap_err();
    assert_eq!(
        error.to_string(),
        "FMASK (0xc0000084) reads 0x0000000000217fd5, wanted 0x0000000000257fd5"
    );
}

#[test]
fn report_shows_what_was_planned_and_what_is_there() {
    let entries = EntryPoints {
        syscall32: None,
        ..ENTRIES
    };
    let plan = plan(&entries, &cpu(Vendor::Intel)).unwrap();
    let mut msrs = FakeMsrs::new();
    install(&plan, &mut msrs).unwrap();
    // SAFETY: a fake has every register.
    let good = unsafe { plan.read_back(&mut msrs) };
    assert!(good.agrees());
    msrs.set(0x175, 0xffff_c000_0002_0000);
    msrs.set(0xc000_0080, 0x800);
    // SAFETY: as above.
    let bad = unsafe { plan.read_back(&mut msrs) };
    assert!(!bad.agrees());
    let wanted = "\
LSTAR        0xc0000082  0xffffffff80100000, found 0xffffffff80100000
CSTAR        0xc0000083  not written: unused on this CPU
FMASK        0xc0000084  0x0000000000257fd5, found 0x0000000000257fd5
STAR         0xc0000081  0x001b000800000000, found 0x001b000800000000
SYSENTER_ESP 0x00000175  0xffffc00000010000, differs, found 0xffffc00000020000
SYSENTER_EIP 0x00000176  0xffffffff80100200, found 0xffffffff80100200
SYSENTER_CS  0x00000174  0x0000000000000008, found 0x0000000000000008
TSC_AUX      0xc0000103  0x0000000000000005, found 0x0000000000000005
EFER         0xc0000080  0x0000000000000801 in bits 0x801, differs, found 0x0000000000000800";
    assert_eq!(bad.to_string(), wanted);
}

#[test]
fn plan_prints_as_its_documentation_shows() {
    let mut bare = CpuFeatures::from_cpuid(|_, _| CpuidLeaf::default());
    bare.vendor = Vendor::Intel;
    bare.syscall = true;
    let entries = EntryPoints {
        syscall: Some(SYSCALL),
        ..Default::default()
    };
    let wanted = "\
LSTAR        0xc0000082  0xffffffff80100000
CSTAR        0xc0000083  not written: unused on this CPU
FMASK        0xc0000084  0x0000000000257fd5
STAR         0xc0000081  0x001b000800000000
SYSENTER_ESP 0x00000175  not written: no SYSENTER on this CPU
SYSENTER_EIP 0x00000176  not written: no SYSENTER on this CPU
SYSENTER_CS  0x00000174  not written: no SYSENTER on this CPU
TSC_AUX      0xc0000103  not written: no RDTSCP, no RDPID
EFER         0xc0000080  0x0000000000000001 in bits 0x1";
    assert_eq!(plan(&entries, &bare).unwrap().to_string(), wanted);
}
