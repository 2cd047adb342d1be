//! CPUID bits, one by one, and whole CPUs forged.

use entry_core::address::Width;
use entry_core::cpu::{CpuFeatures, CpuidLeaf, Vendor};

const INTEL: [u32; 3] = [0x756e_6547, 0x4965_6e69, 0x6c65_746e];
const AMD: [u32; 3] = [0x6874_7541, 0x6974_6e65, 0x444d_4163];

/// A CPU whose leaf 0 has `vendor` (EBX, EDX, ECX), and whose other leaves are as `rest` says.
fn forge(vendor: [u32; 3], rest: impl Fn(u32, u32) -> CpuidLeaf) -> CpuFeatures {
    let [ebx, edx, ecx] = vendor;
    CpuFeatures::from_cpuid(|leaf, subleaf| match (leaf, subleaf) {
        (0, _) => CpuidLeaf {
            eax: 0x20,
            ebx,
            ecx,
            edx,
        },
        (0x8000_0000, _) => CpuidLeaf {
            eax: 0x8000_0021,
            ..Default::default()
        },
        _ => rest(leaf, subleaf),
    })
}

/// Every flag field, by name.
fn flags(cpu: &CpuFeatures) -> Vec<&'static str> {
    macro_rules! names {
        ($($name:ident)*) => {
            [$((stringify!($name), cpu.$name)),*].into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
        };
    }
    names!(hypervisor sep syscall fsgsbase lkgs fred tsc rdtscp rdpid apic x2apic tsc_deadline xsave smep smap umip pku
        lass nx page1gb la57 pcid invpcid pge cet_ss cet_ibt ibrs stibp ssbd psfd bhi_ctrl automatic_ibrs md_clear verw_clear lfence_serializing
        null_selector_clears_base erms fsrm)
}

/// Leaf, subleaf, register (0 to 3 for EAX to EDX), bit, feature. From the manuals' CPUID tables.
const BITS: &[(u32, u32, usize, u32, &str)] = &[
    (1, 0, 2, 17, "pcid"),
    (1, 0, 2, 21, "x2apic"),
    (1, 0, 2, 24, "tsc_deadline"),
    (1, 0, 2, 26, "xsave"),
    (1, 0, 2, 31, "hypervisor"),
    (1, 0, 3, 4, "tsc"),
    (1, 0, 3, 9, "apic"),
    (1, 0, 3, 11, "sep"),
    (1, 0, 3, 13, "pge"),
    (7, 0, 1, 0, "fsgsbase"),
    (7, 0, 1, 7, "smep"),
    (7, 0, 1, 9, "erms"),
    (7, 0, 1, 10, "invpcid"),
    (7, 0, 1, 20, "smap"),
    (7, 0, 2, 2, "umip"),
    (7, 0, 2, 3, "pku"),
    (7, 0, 2, 7, "cet_ss"),
    (7, 0, 2, 16, "la57"),
    (7, 0, 2, 22, "rdpid"),
    (7, 0, 3, 4, "fsrm"),
    (7, 0, 3, 10, "md_clear"),
    (7, 0, 3, 20, "cet_ibt"),
    (7, 0, 3, 26, "ibrs"),
    (7, 0, 3, 27, "stibp"),
    (7, 0, 3, 31, "ssbd"),
    (7, 1, 0, 6, "lass"),
    (7, 1, 0, 17, "fred"),
    (7, 1, 0, 18, "lkgs"),
    (7, 2, 3, 0, "psfd"),
    (7, 2, 3, 4, "bhi_ctrl"),
    (0x8000_0001, 0, 3, 11, "syscall"),
    (0x8000_0001, 0, 3, 20, "nx"),
    (0x8000_0001, 0, 3, 26, "page1gb"),
    (0x8000_0001, 0, 3, 27, "rdtscp"),
    (0x8000_0008, 0, 1, 14, "ibrs"),
    (0x8000_0008, 0, 1, 15, "stibp"),
    (0x8000_0008, 0, 1, 24, "ssbd"),
    (0x8000_0008, 0, 1, 28, "psfd"),
    (0x8000_0021, 0, 0, 2, "lfence_serializing"),
    (0x8000_0021, 0, 0, 5, "verw_clear"),
    (0x8000_0021, 0, 0, 6, "null_selector_clears_base"),
    (0x8000_0021, 0, 0, 8, "automatic_ibrs"),
];

#[test]
fn each_cpuid_bit_turns_on_its_feature_and_no_other() {
    for (leaf, subleaf) in [
        (1, 0),
        (7, 0),
        (7, 1),
        (0x8000_0001, 0),
        (0x8000_0007, 0),
        (0x8000_0008, 0),
        (0x8000_0021, 0),
    ] {
        for register in 0..4 {
            for bit in 0..32 {
                let cpu = forge(AMD, |asked, sub| {
                    let mut words = [0; 4];
                    // Subleaves of 7 exist only if EAX of 7.0 says so.
                    if leaf == 7 && (asked, sub) == (7, 0) {
                        words[0] = subleaf;
                    }
                    if (asked, sub) == (leaf, subleaf) {
                        words[register] |= 1 << bit;
                    }
                    let [eax, ebx, ecx, edx] = words;
                    CpuidLeaf { eax, ebx, ecx, edx }
                });
                let wanted: Vec<&str> = BITS
                    .iter()
                    .filter(|row| (row.0, row.1, row.2, row.3) == (leaf, subleaf, register, bit))
                    .map(|row| row.4)
                    .collect();
                assert_eq!(
                    flags(&cpu),
                    wanted,
                    "leaf {leaf:#x}.{subleaf} register {register} bit {bit}"
                );
            }
        }
    }
}

#[test]
fn leaves_beyond_the_last_are_not_asked_for() {
    let all = CpuidLeaf {
        eax: u32::MAX,
        ebx: u32::MAX,
        ecx: u32::MAX,
        edx: u32::MAX,
    };
    let cpu = CpuFeatures::from_cpuid(|leaf, _| match leaf {
        0 => CpuidLeaf {
            eax: 1,
            ..Default::default()
        },
        0x8000_0000 => CpuidLeaf {
            eax: 0x8000_0001,
            ..Default::default()
        },
        1 | 0x8000_0001 => all,
        _ => panic!("leaf {leaf:#x} does not exist"),
    });
    assert!(cpu.sep && cpu.syscall && !cpu.smap && !cpu.fred);
    assert_eq!((cpu.physical_bits, cpu.linear_bits), (36, 48));
    // Nor subleaves of leaf 7 beyond the one that its EAX names.
    let cpu = CpuFeatures::from_cpuid(|leaf, subleaf| match (leaf, subleaf) {
        (0, _) => CpuidLeaf {
            eax: 7,
            ..Default::default()
        },
        (7, 1..) => panic!("subleaf {subleaf} does not exist"),
        (7, 0) => CpuidLeaf {
            ebx: 1 << 20,
            ..Default::default()
        },
        _ => CpuidLeaf::default(),
    });
    assert!(cpu.smap);
}

#[test]
fn vendors_are_known_by_their_strings() {
    let [ebx, edx, ecx] = INTEL;
    assert_eq!(
        [ebx, edx, ecx].map(u32::to_le_bytes).concat(),
        b"GenuineIntel",
        "the test's own constant"
    );
    assert_eq!(AMD.map(u32::to_le_bytes).concat(), b"AuthenticAMD");
    let hygon = [0x6f67_7948, 0x6e65_476e, 0x656e_6975];
    assert_eq!(hygon.map(u32::to_le_bytes).concat(), b"HygonGenuine");
    for (string, vendor) in [
        (INTEL, Vendor::Intel),
        (AMD, Vendor::Amd),
        (hygon, Vendor::Hygon),
        ([ebx, ecx, edx], Vendor::Other),
        ([0; 3], Vendor::Other),
    ] {
        assert_eq!(forge(string, |_, _| CpuidLeaf::default()).vendor, vendor);
    }
}

fn with_version(vendor: [u32; 3], eax: u32) -> CpuFeatures {
    forge(vendor, |leaf, _| match leaf {
        1 => CpuidLeaf {
            eax,
            edx: 1 << 11,
            ..Default::default()
        },
        _ => CpuidLeaf::default(),
    })
}

#[test]
fn family_and_model_include_the_extended_digits() {
    for (vendor, eax, family, model, stepping) in [
        (INTEL, 0x0005_06e3, 6, 0x5e, 3),  // Skylake client
        (INTEL, 0x0009_06ea, 6, 0x9e, 10), // Coffee Lake
        (AMD, 0x0080_0f12, 0x17, 0x01, 2), // Zen
        (AMD, 0x00a2_0f10, 0x19, 0x21, 0), // Zen 3
        (INTEL, 0x0000_0f4a, 15, 4, 10),   // Pentium 4
        (INTEL, 0x0000_0543, 5, 4, 3),     // Pentium MMX: no extended digits
    ] {
        let cpu = with_version(vendor, eax);
        assert_eq!(
            (cpu.family, cpu.model, cpu.stepping),
            (family, model, stepping),
            "{eax:#x}"
        );
    }
}

#[test]
fn pentium_pro_has_no_sysenter_whatever_cpuid_says() {
    for (eax, sep) in [
        (0x0000_0612, false), // Pentium Pro
        (0x0000_0611, false),
        (0x0000_0613, true), // the manual's test: model < 3 and stepping < 3
        (0x0000_0633, true), // Pentium II
        (0x0000_0632, true),
        (0x0000_0512, true),
        (0x0005_06e3, true),
    ] {
        assert_eq!(with_version(INTEL, eax).sep, sep, "{eax:#x}");
        assert!(with_version(AMD, eax).sep, "{eax:#x}: Intel's parts alone");
    }
}

#[test]
fn sysenter_in_long_mode_is_intels_and_compatibility_syscall_is_not() {
    for (vendor, sysenter, syscall32) in [
        (Vendor::Intel, true, false),
        (Vendor::Amd, false, true),
        (Vendor::Hygon, false, true),
        (Vendor::Other, false, true),
    ] {
        let mut cpu = CpuFeatures::from_cpuid(|_, _| CpuidLeaf::default());
        cpu.vendor = vendor;
        assert!(!cpu.has_sysenter_in_long_mode() && !cpu.has_syscall_in_compatibility_mode());
        cpu.sep = true;
        cpu.syscall = true;
        assert_eq!(cpu.has_sysenter_in_long_mode(), sysenter, "{vendor:?}");
        assert_eq!(cpu.has_syscall_in_compatibility_mode(), syscall32, "{vendor:?}");
    }
}

#[test]
fn address_sizes_come_from_leaf_80000008() {
    let cpu = forge(INTEL, |leaf, _| match leaf {
        7 => CpuidLeaf {
            ecx: 1 << 16,
            ..Default::default()
        },
        0x8000_0008 => CpuidLeaf {
            eax: 0x3934,
            ..Default::default()
        },
        _ => CpuidLeaf::default(),
    });
    assert_eq!(
        (cpu.physical_bits, cpu.linear_bits, cpu.widest()),
        (52, 57, Width::Bits57)
    );
    assert_eq!(forge(INTEL, |_, _| CpuidLeaf::default()).widest(), Width::Bits48);
}

#[test]
fn either_instruction_brings_tsc_aux() {
    let mut cpu = CpuFeatures::from_cpuid(|_, _| CpuidLeaf::default());
    assert!(!cpu.has_tsc_aux());
    cpu.rdpid = true;
    assert!(cpu.has_tsc_aux());
    cpu.rdpid = false;
    cpu.rdtscp = true;
    assert!(cpu.has_tsc_aux());
}

#[test]
fn detection_agrees_with_the_host() {
    let cpu = CpuFeatures::detect();
    assert!(cpu.tsc, "every 64-bit CPU has it");
    assert!(cpu.syscall, "a 64-bit process is running");
    assert_eq!(cpu.widest().bits(), u32::from(cpu.linear_bits));
    assert_eq!(cpu.xsave, std::is_x86_feature_detected!("xsave"));
    assert_eq!(cpu, CpuFeatures::detect());
}
