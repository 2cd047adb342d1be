//! The exit decision against the manuals, exhaustively over what decides: flags × boundary RIPs × selectors × entry kinds.

use entry_core::address::{UserLimit, Width};
use entry_core::kernel::{Exit, Leave};
use entry_core::{EntryKind, IrqOff, TrapFrame};
use entry_sysret::decide::{
    has_live_registers, is_dead_exception, is_plain_iret, is_plain_iret32, is_plain_sysret, is_plain_sysret32,
    is_untouched_syscall, is_untouched_syscall32, is_untouched_sysenter, is_untouched_sysenter32,
};
use entry_sysret::{ExitWords, IretOnly, RuleSet, Rules, SysretOrIret, decide};
use proptest::prelude::*;

#[path = "oracle/comparison.rs"]
mod comparison;
#[path = "oracle/input.rs"]
mod input;
#[path = "oracle/manual.rs"]
mod manual;

use comparison::{LAYOUT, MACHINE, check, kind, machines, words};
use manual::{ENTRIES, Entry, Machine, Question};

const PLAIN: RuleSet = RuleSet::new(&LAYOUT, UserLimit::HIGHEST_48, Width::Bits48);

const fn question(entry: Entry, m: &Machine) -> Question {
    Question {
        entry,
        modified: false,
        declared_dead: false,
        no_breakpoint: false,
        rip: 0x40_1000,
        cs: m.cs64,
        rflags: 0x202,
        ss: m.ss,
        rcx: 0x40_1000,
        r11: 0x202,
    }
}

/// RIPs where a comparison could be off by one: each power of two, its neighbours, and the same counted down from 2^64.
fn boundary_rips(machines: &[Machine]) -> Vec<u64> {
    let mut rips = vec![0, 1, u64::MAX, 0x40_1000];
    for number in 0..64 {
        for delta in [u64::MAX, 0, 1] {
            let power = (1u64 << number).wrapping_add(delta);
            rips.push(power);
            rips.push(power.wrapping_neg());
        }
    }
    for machine in machines {
        rips.extend([machine.user_end - 1, machine.user_end, machine.user_end + 1]);
    }
    rips.sort_unstable();
    rips.dedup();
    rips
}

/// 2^17 patterns of the flags that matter and some that don't, for every entry and every set of marks.
#[test]
fn agrees_with_the_manuals_for_every_pattern_of_flags() {
    const NUMBERS: [u32; 17] = [1, 5, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 63];
    let all = machines();
    // 32-bit code allowed, with and without I/O privilege.
    for (rules, m) in [&all[0], &all[3]] {
        for pattern in 0u64..1 << NUMBERS.len() {
            let rflags = NUMBERS.iter().enumerate().map(|(i, n)| (pattern >> i & 1) << n).sum();
            for entry in ENTRIES {
                let marks = pattern.wrapping_mul(0x9e37_79b9) >> 7;
                let q = Question {
                    modified: marks & 1 != 0,
                    declared_dead: marks & 2 != 0,
                    no_breakpoint: marks & 4 != 0,
                    rflags,
                    r11: if marks & 8 != 0 { rflags } else { 0x202 },
                    ..question(entry, m)
                };
                check(&q, rules, m);
            }
        }
    }
}

/// Every flag alone, every boundary RIP, usual and unusual selectors, every entry, for every set of rules.
#[test]
fn agrees_with_the_manuals_for_flags_by_rips_by_selectors_by_entries() {
    let all = machines();
    let only: Vec<Machine> = all.iter().map(|(_, m)| *m).collect();
    let rips = boundary_rips(&only);
    let flags = [
        0x202, 0x302, 0x0_0002, 0x1_0202, 0x3202, 0x4202, 0x8_0202, 0x2_0202, 0x8202,
    ];
    for (rules, m) in &all {
        let selectors = [
            (m.cs64, m.ss),
            (3 << 3 | 3, m.ss), // 32-bit code
            (1 << 3, 2 << 3),   // the kernel's
            (m.cs64 - 3, m.ss), // RPL 0
            (m.cs64 | 4, m.ss), // local
            (m.cs64, 3),        // null
            (m.cs64, m.ss | 4), // local
            (m.cs64, m.ss - 3), // RPL 0
            (9 << 3 | 3, m.ss), // beyond the table
            (m.cs64 | 1 << 16, m.ss),
            (m.cs64, m.ss | 1 << 32),
        ];
        for &rip in &rips {
            for (cs, ss) in selectors {
                for (rflags, entry) in flags.iter().flat_map(|f| ENTRIES.map(|e| (*f, e))) {
                    let q = Question {
                        rip,
                        cs,
                        ss,
                        rflags,
                        rcx: rip,
                        r11: rflags,
                        ..question(entry, m)
                    };
                    check(&q, rules, m);
                }
            }
        }
    }
}

/// Each of the 64 bits of RFLAGS, alone and with each other, on top of 0x202 and on top of 0.
#[test]
fn agrees_with_the_manuals_for_what_fuzzing_found() {
    let machines = machines();
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/exit_decision");
    let mut count = 0;
    for file in std::fs::read_dir(corpus).unwrap() {
        input::check_input(&std::fs::read(file.unwrap().path()).unwrap(), &machines);
        count += 1;
    }
    assert!(count > 10, "{count} files in {corpus}");
}

#[test]
fn agrees_with_the_manuals_for_every_pair_of_flag_bits() {
    for (rules, m) in &machines() {
        for entry in ENTRIES {
            for first in 0..64 {
                for second in 0..64 {
                    for base in [0x202, 0] {
                        let rflags = base ^ (1 << first | 1 << second);
                        check(
                            &Question {
                                rflags,
                                r11: rflags,
                                ..question(entry, m)
                            },
                            rules,
                            m,
                        );
                    }
                }
            }
        }
    }
}

/// All 65,536 selectors as CS and as SS, and each bit above them.
#[test]
fn agrees_with_the_manuals_for_every_selector() {
    for (rules, m) in &machines() {
        for selector in 0..=0xffff {
            check(
                &Question {
                    cs: selector,
                    ..question(Entry::Syscall64, m)
                },
                rules,
                m,
            );
            check(
                &Question {
                    ss: selector,
                    ..question(Entry::Exception, m)
                },
                rules,
                m,
            );
        }
        for high in 16..64 {
            check(
                &Question {
                    cs: m.cs64 | 1 << high,
                    ..question(Entry::Syscall64, m)
                },
                rules,
                m,
            );
            check(
                &Question {
                    ss: m.ss | 1 << high,
                    ..question(Entry::Syscall64, m)
                },
                rules,
                m,
            );
        }
    }
}

/// RCX and R11 equal or not, every mark, every entry.
#[test]
fn agrees_with_the_manuals_about_live_registers() {
    for (rules, m) in &machines() {
        for entry in ENTRIES {
            for pattern in 0..1 << 7 {
                let is = |n: u32| pattern >> n & 1 == 1;
                let rflags = if is(5) { 0x1_0202 } else { 0x202 };
                let q = Question {
                    modified: is(0),
                    declared_dead: is(1),
                    no_breakpoint: is(2),
                    rcx: if is(3) { 0x40_1000 } else { 0x40_1001 },
                    r11: if is(4) { rflags } else { rflags ^ 1 },
                    rflags,
                    cs: if is(6) { 3 << 3 | 3 } else { m.cs64 },
                    ..question(entry, m)
                };
                check(&q, rules, m);
            }
        }
    }
}

struct PlainRules;

impl Rules for PlainRules {
    const RULES: RuleSet = PLAIN;
}

struct OpenRules;

impl Rules for OpenRules {
    const RULES: RuleSet = PLAIN.with_code32().with_io_privilege();
}

/// A frame as a stub would have written it: the layout of `TrapFrame` is documented, and asserted there.
fn frame(kind_word: u64, q: &Question) -> TrapFrame {
    let mut image = [0u64; 22];
    image[13] = q.r11;
    image[14] = q.rcx;
    image[15] = kind_word;
    image[17] = q.rip;
    image[18] = q.cs;
    image[19] = q.rflags;
    image[20] = 0xdead_beef;
    image[21] = q.ss;
    // SAFETY: 22 words without padding or invalid patterns.
    unsafe { core::mem::transmute::<[u64; 22], TrapFrame>(image) }
}

/// A kind word for the question, as stub and setters make it: bits 7:0 vector, 15:8 kind, 16 modified, 17 dead, 18 RF.
fn kind_word(q: &Question, vector: u8) -> u64 {
    let kind = kind(q.entry).map_or(0xee00, |kind| kind.word(0));
    kind | u64::from(vector)
        | u64::from(q.modified) << 16
        | u64::from(q.declared_dead) << 17
        | u64::from(q.no_breakpoint) << 18
}

/// The quick answers to SYSCALL and SYSENTER from 32-bit code.
fn choose_plain_32<R: Rules>(frame: &TrapFrame, irq: &IrqOff) -> [Option<Leave>; 2] {
    [
        SysretOrIret::<R>::choose_plain_syscall32(frame, irq),
        SysretOrIret::<R>::choose_plain_sysenter32(frame, irq),
    ]
}

/// The exits' quick answers never differ from the decision, and both exits agree with it.
fn check_exits<R: Rules>(q: &Question) {
    // SAFETY: there are no interrupts to be off in a test, and nothing here relies on them.
    let irq = unsafe { IrqOff::assume() };
    let frame = frame(kind_word(q, 14), q);
    assert_eq!(ExitWords::of(&frame), words(q), "{q:x?}");
    let decision = decide(&words(q), &R::RULES);
    let by_iret = decision.map(|_| Leave::Iret);
    assert_eq!(SysretOrIret::<R>::choose(&frame, &irq), decision, "{q:x?}");
    assert_eq!(IretOnly::<R>::choose(&frame, &irq), by_iret, "{q:x?}");
    if let Some(leave) = SysretOrIret::<R>::choose_plain(&frame, &irq) {
        assert_eq!(Ok(leave), decision, "{q:x?}");
    }
    if let Some(leave) = SysretOrIret::<R>::choose_plain_sysenter(&frame, &irq) {
        assert_eq!(Ok(leave), decision, "{q:x?}");
    }
    for leave in choose_plain_32::<R>(&frame, &irq).into_iter().flatten() {
        assert_eq!(Ok(leave), decision, "{q:x?}");
    }
    // IRETQ does not consume the kind word, and that exit does not look at it in a hurry.
    if q.entry != Entry::Unknown
        && let Some(leave) = IretOnly::<R>::choose_plain(&frame, &irq)
    {
        assert_eq!(Ok(leave), by_iret, "{q:x?}");
    }
    if let Some(leave) = SysretOrIret::<R>::choose_plain_event(&frame, &irq) {
        match q.entry {
            Entry::Exception | Entry::Interrupt | Entry::NmiOrSuch => assert_eq!(Ok(leave), decision, "{q:x?}"),
            // Not asked for other frames; IRET would be safe for them all the same.
            Entry::Unknown => {}
            _ => assert_eq!((leave, decision.is_ok()), (Leave::Iret, true), "{q:x?}"),
        }
    }
    // The same with the vector that a system call has.
    let frame = self::frame(kind_word(q, 0), q);
    // The stub writes CS and SS of a SYSCALL frame as constants, and SYSRET does not consume them.
    let stub_wrote_selectors = q.cs == R::RULES.code64() && q.ss == R::RULES.data();
    if stub_wrote_selectors && let Some(leave) = SysretOrIret::<R>::choose_plain(&frame, &irq) {
        assert_eq!(Ok(leave), decision, "{q:x?}");
    }
    if stub_wrote_selectors && let Some(leave) = SysretOrIret::<R>::choose_plain_sysenter(&frame, &irq) {
        assert_eq!(Ok(leave), decision, "{q:x?}");
    }
    let stub_wrote_selectors = q.cs == 3 << 3 | 3 && q.ss == R::RULES.data();
    if stub_wrote_selectors {
        for leave in choose_plain_32::<R>(&frame, &irq).into_iter().flatten() {
            assert_eq!(Ok(leave), decision, "{q:x?}");
        }
    }
}

#[test]
fn the_quick_answers_never_differ_from_the_decision() {
    let rips = boundary_rips(&[MACHINE]);
    for entry in ENTRIES {
        for marks in 0..8 {
            let base = Question {
                modified: marks & 1 != 0,
                declared_dead: marks & 2 != 0,
                no_breakpoint: marks & 4 != 0,
                ..question(entry, &MACHINE)
            };
            // The selector of 32-bit code, whether the rules know it or not.
            let base32 = Question { cs: 3 << 3 | 3, ..base };
            for &rip in &rips {
                check_exits::<PlainRules>(&Question { rip, rcx: rip, ..base });
                check_exits::<OpenRules>(&Question { rip, ..base });
                check_exits::<PlainRules>(&Question { rip, ..base32 });
                check_exits::<OpenRules>(&Question { rip, ..base32 });
            }
            for (first, second) in (0..64).flat_map(|f| (0..64).map(move |s| (f, s))) {
                let rflags = 0x202 ^ (1 << first | 1 << second);
                check_exits::<PlainRules>(&Question {
                    rflags,
                    r11: rflags,
                    ..base
                });
                check_exits::<OpenRules>(&Question { rflags, ..base });
                check_exits::<OpenRules>(&Question { rflags, ..base32 });
            }
            for selector in 0..=0xff {
                check_exits::<PlainRules>(&Question { cs: selector, ..base });
                check_exits::<PlainRules>(&Question { ss: selector, ..base });
                check_exits::<OpenRules>(&Question { cs: selector, ..base });
                check_exits::<OpenRules>(&Question { ss: selector, ..base32 });
            }
        }
    }
}

/// The quick tests are worth having: the frames that every program makes pass them.
#[test]
fn the_usual_frames_get_a_quick_answer() {
    // SAFETY: as in `check_exits`.
    let irq = unsafe { IrqOff::assume() };
    // Arithmetic, DF, NT, AC and ID are the program's own.
    for rflags in [0x202, 0x246, 0x602, 0x4202, 0x4_0202, 0x20_0a93] {
        let q = Question {
            rflags,
            r11: rflags,
            ..question(Entry::Syscall64, &MACHINE)
        };
        assert_eq!(
            SysretOrIret::<PlainRules>::choose_plain(&frame(kind_word(&q, 0), &q), &irq),
            Some(Leave::Sysret)
        );
        let sysenter = Question {
            entry: Entry::Sysenter64,
            rcx: 0x7fff_0000,
            ..q
        };
        assert_eq!(
            SysretOrIret::<PlainRules>::choose_plain_sysenter(&frame(kind_word(&sysenter, 0), &sysenter), &irq),
            Some(Leave::Sysret)
        );
        assert_eq!(
            IretOnly::<PlainRules>::choose_plain(&frame(kind_word(&q, 0), &q), &irq),
            Some(Leave::Iret)
        );
        // RF is set in the frame of a fault.
        let q = Question {
            entry: Entry::Exception,
            rflags: rflags | 0x1_0000,
            ..q
        };
        assert_eq!(
            SysretOrIret::<PlainRules>::choose_plain_event(&frame(kind_word(&q, 14), &q), &irq),
            Some(Leave::Iret)
        );
        let q = Question {
            entry: Entry::Interrupt,
            modified: true,
            ..q
        };
        assert_eq!(
            SysretOrIret::<PlainRules>::choose_plain_event(&frame(kind_word(&q, 32), &q), &irq),
            Some(Leave::Iret)
        );
    }
}

#[test]
fn the_usual_frames_of_32_bit_code_get_a_quick_answer() {
    // SAFETY: as in `check_exits`.
    let irq = unsafe { IrqOff::assume() };
    for rflags in [0x202, 0x246, 0x602, 0x4202, 0x4_0202, 0x20_0a93] {
        let q = Question {
            rip: 0xf7f0_0007,
            cs: 3 << 3 | 3,
            rflags,
            ..question(Entry::Syscall32, &MACHINE)
        };
        let sysret = Some(Leave::Sysret32);
        for (entry, wanted) in [(Entry::Syscall32, [sysret, None]), (Entry::Sysenter32, [None, sysret])] {
            let q = Question { entry, ..q };
            assert_eq!(choose_plain_32::<OpenRules>(&frame(kind_word(&q, 0), &q), &irq), wanted);
        }
        for (entry, vector) in [(Entry::Int80, 0), (Entry::Exception, 14), (Entry::Interrupt, 32)] {
            let q = Question { entry, ..q };
            let frame = frame(kind_word(&q, vector), &q);
            assert_eq!(
                SysretOrIret::<OpenRules>::choose_plain_event(&frame, &irq),
                Some(Leave::Iret)
            );
            assert_eq!(IretOnly::<OpenRules>::choose_plain(&frame, &irq), Some(Leave::Iret));
        }
    }
}

/// All kind words that can arise: 256 kind bytes × 256 vectors × 8 marks.
#[test]
fn the_quick_kind_tests_know_every_kind_word() {
    for word in 0..1u64 << 19 {
        let (kind, dead) = (word >> 8 & 0xff, word >> 17 & 1 == 1);
        assert_eq!(
            is_untouched_syscall(word),
            word == EntryKind::Syscall64.word(0),
            "{word:#x}"
        );
        assert_eq!(
            is_untouched_sysenter(word),
            word == EntryKind::Sysenter64.word(0),
            "{word:#x}"
        );
        assert_eq!(
            is_untouched_syscall32(word),
            word == EntryKind::Syscall32.word(0),
            "{word:#x}"
        );
        assert_eq!(
            is_untouched_sysenter32(word),
            word == EntryKind::Sysenter32.word(0),
            "{word:#x}"
        );
        assert_eq!(has_live_registers(word), !dead, "{word:#x}");
        assert_eq!(
            is_dead_exception(word),
            kind == 6 && dead && word >> 18 & 1 == 1,
            "{word:#x}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(20_000) })]

    /// Words that are random in every bit.
    #[test]
    fn agrees_with_the_manuals_for_random_words(
        entry in 0..ENTRIES.len(),
        machine in 0..32usize,
        marks: [bool; 3],
        random: [u64; 4],
        usual in 0u8..64,
    ) {
        let (rules, m) = &machines()[machine];
        let is = |n: u32| usual >> n & 1 == 1;
        let rip = if is(0) { random[0] >> 17 } else { random[0] };
        let rflags = if is(1) { random[1] & 0x25_4fd7 | 0x200 } else { random[1] };
        let q = Question {
            modified: marks[0],
            declared_dead: marks[1],
            no_breakpoint: marks[2],
            rip,
            rflags,
            cs: if is(2) { m.cs64 } else if is(3) { 3 << 3 | 3 } else { random[2] & 0xffff },
            ss: if is(4) { m.ss } else { random[3] & 0xffff },
            rcx: if is(5) { rip } else { random[2] },
            r11: if is(5) { rflags } else { random[3] },
            ..question(ENTRIES[entry], m)
        };
        check(&q, rules, m);
        check_exits::<OpenRules>(&q);
    }

    /// Nothing that a program can do to the words of a frame takes the kernel to ring 0, or out of user space.
    #[test]
    fn what_leaves_is_ring_3_below_the_limit(rip: u64, cs: u64, ss: u64, rflags: u64, kind in 0..ENTRIES.len()) {
        for (rules, m) in &machines() {
            for cs in [cs, m.cs64, m.cs32] {
                for ss in [ss, m.ss] {
                    let q = Question { rip, cs, ss, rflags, ..question(ENTRIES[kind], m) };
                    if decide(&words(&q), rules).is_ok() {
                        prop_assert_eq!(cs % 4, 3);
                        prop_assert!(rip < m.user_end || cs == m.cs32 && rip >> 32 == 0);
                        prop_assert!(rflags >> 22 == 0);
                    }
                }
            }
        }
    }

    #[test]
    fn the_quick_tests_say_yes_only_where_the_decision_does(rip: u64, rflags: u64, shift in 0u32..40) {
        let rip = rip >> shift;
        for rflags in [rflags, rflags & 0x3f_ffff | 0x202, rflags & 0x25_4ed7 | 0x202] {
            let q = Question { rip, rflags, ..question(Entry::Syscall64, &MACHINE) };
            if is_plain_sysret(rip, rflags, &PLAIN) {
                prop_assert_eq!(decide(&words(&q), &PLAIN), Ok(Leave::Sysret));
            }
            if is_plain_iret(q.cs, q.ss, rip, rflags, &PLAIN) {
                prop_assert!(decide(&words(&q), &PLAIN).is_ok());
            }
            let q = Question { entry: Entry::Sysenter32, cs: 3 << 3 | 3, ..q };
            if is_plain_sysret32(rip, rflags, &OpenRules::RULES) {
                prop_assert_eq!(decide(&words(&q), &OpenRules::RULES), Ok(Leave::Sysret32));
            }
            if is_plain_iret32(q.cs, q.ss, rip, rflags, &OpenRules::RULES) {
                prop_assert!(decide(&words(&q), &OpenRules::RULES).is_ok());
            }
        }
    }
}
