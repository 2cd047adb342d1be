//! The rows: what each one sets up, checks once and then times.

use user::control::{self, control};
use user::println;
use user::sys::{self, Errno, PAGE_BYTES, PROT_READ};

use crate::compat;
use crate::loops::{self, RingWork, Timed};
use crate::table::{CALIBRATION, MOST_REPEATS, Table};

/// Bytes that one page of page-table entries covers.
const TABLE_BYTES: usize = 512 * PAGE_BYTES;

/// Instructions of a round of the kernel's flag loop that are no flag instructions.
pub(crate) const IRQFLAG_OVERHEAD: u64 = 22;

/// Instructions of a round of the kernel's loop that takes interrupts.
const INTERRUPTS_OVERHEAD: u64 = 6;

/// One row of the report.
pub(crate) struct Row {
    /// Its name in reports and comparisons.
    pub(crate) name: &'static str,
    /// Instructions of a round that are not the operation's.
    pub(crate) overhead: u64,
    /// Operations in a round.
    pub(crate) operations: u64,
    /// Checks the operation once, then measures it.
    pub(crate) run: fn(&Bench, &Self) -> Result<(), Problem>,
}

impl Row {
    /// Whether it is run only when it is asked for: a round is many times as long as what is measured, or does another row's
    /// operation in a larger size, which the name says after an `@`.
    pub(crate) fn is_on_request(&self) -> bool {
        /// Above the overhead of rows that do no work of their own.
        const SMALL: u64 = 100;
        self.overhead > SMALL || self.name.contains('@')
    }
}

/// Why a row has no figures.
pub(crate) enum Problem {
    /// This kernel does not offer it.
    Skip(&'static str),
    /// A system call failed.
    Failed(&'static str, Errno),
    /// The check before timing found something else.
    Wrong { what: &'static str, got: u64, wanted: u64 },
}

impl core::fmt::Display for Problem {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Skip(reason) => f.write_str(reason),
            Self::Failed(what, errno) => write!(f, "{what}: {errno:?}"),
            Self::Wrong { what, got, wanted } => write!(f, "{what}: got {got}, wanted {wanted}"),
        }
    }
}

/// What most rows need.
const NO_CONTROL: Problem = Problem::Skip("this kernel has no control call");

/// What runs the machine, by CPUID; nothing on a real one, and under an emulator that does not tell.
pub(crate) struct Hypervisor([u8; 12]);

impl Hypervisor {
    /// Its name for itself.
    pub(crate) fn name(&self) -> &str {
        match shown(&self.0) {
            "" => "none",
            name => name,
        }
    }
}

/// All rows, in the order of the report.
pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "syscall/null/full",
        overhead: 3,
        operations: 1,
        run: |bench, row| null_call(bench, row, control::STUBS_NULL_FULL),
    },
    Row {
        name: "syscall/null/iret",
        overhead: 3,
        operations: 1,
        run: |bench, row| null_call(bench, row, control::STUBS_NULL_IRET),
    },
    Row {
        name: "syscall/null/floor",
        overhead: 3,
        operations: 1,
        run: |bench, row| null_call(bench, row, control::STUBS_FLOOR),
    },
    Row {
        name: "syscall/null/lean",
        overhead: 3,
        operations: 1,
        run: |bench, row| null_call(bench, row, control::STUBS_NULL_LEAN),
    },
    Row {
        name: "syscall/null/full-clear",
        overhead: 3,
        operations: 1,
        run: |bench, row| null_call(bench, row, control::STUBS_NULL_CLEAR),
    },
    Row {
        name: "syscall/null/kpti",
        overhead: 3,
        operations: 1,
        run: |bench, row| null_call(bench, row, control::STUBS_NULL_KPTI),
    },
    Row {
        name: "syscall/null/int80",
        overhead: 3,
        operations: 1,
        run: null_soft_interrupt,
    },
    Row {
        name: "syscall/null/irqs-on",
        overhead: 3,
        operations: 1,
        run: |bench, row| null_call(bench, row, control::STUBS_NULL_IRQS_ON),
    },
    Row {
        name: "sysenter/null/64",
        overhead: 3,
        operations: 1,
        run: null_sysenter,
    },
    Row {
        name: "syscall/getppid",
        overhead: 3,
        operations: 1,
        run: getppid,
    },
    Row {
        name: "fault/zero-page/iret",
        overhead: 3,
        operations: 1,
        run: |bench, row| zero_page(bench, row, FaultExit::Iret),
    },
    Row {
        name: "fault/zero-page/sysret-dead",
        overhead: 3,
        operations: 1,
        run: |bench, row| zero_page(bench, row, FaultExit::Sysret),
    },
    Row {
        name: "fault/zero-page/sysret-landing",
        overhead: 3,
        operations: 1,
        run: |bench, row| zero_page(bench, row, FaultExit::Landing),
    },
    gibibyte_row("fault/zero-page/iret@1g", |bench, row| {
        gibibyte(bench, row, FaultExit::Iret)
    }),
    gibibyte_row("fault/zero-page/sysret-dead@1g", |bench, row| {
        gibibyte(bench, row, FaultExit::Sysret)
    }),
    gibibyte_row("fault/zero-page/sysret-landing@1g", |bench, row| {
        gibibyte(bench, row, FaultExit::Landing)
    }),
    // Behind the faults: the page by which 32-bit code enters stays, and is one area more to look through.
    Row {
        name: "int80/null/32",
        overhead: 3,
        operations: 1,
        run: |bench, row| null_from_32_bit_code(bench, row, &BY_INT80),
    },
    Row {
        name: "sysenter/null/32",
        overhead: 11,
        operations: 1,
        run: |bench, row| null_from_32_bit_code(bench, row, &BY_SYSENTER),
    },
    Row {
        name: "syscall/null/32",
        overhead: 3,
        operations: 1,
        run: |bench, row| null_from_32_bit_code(bench, row, &BY_SYSCALL),
    },
    Row {
        name: "exception/user",
        overhead: 2,
        operations: 1,
        run: exception,
    },
    breakpoint_row("exception/kernel", 1, |bench, row| breakpoints(bench, row, 1)),
    breakpoint_row("exception/kernel@2", 2, |bench, row| breakpoints(bench, row, 2)),
    breakpoint_row("exception/kernel@4", 4, |bench, row| breakpoints(bench, row, 4)),
    breakpoint_row("exception/kernel@8", 8, |bench, row| breakpoints(bench, row, 8)),
    Row {
        name: "fault/floor",
        overhead: 2,
        operations: 1,
        run: skipped_fault,
    },
    Row {
        name: "interrupt/user",
        // And the polls, which are subtracted one by one.
        overhead: 3,
        operations: 1,
        run: interrupt,
    },
    Row {
        name: "interrupt/user/irqs-on",
        overhead: 3,
        operations: 1,
        run: interrupt_with_irqs_on,
    },
    Row {
        name: "switch/yield/2p",
        // 3 here (MOV, DEC, JNZ) and 2 in the other process (MOV, JMP).
        overhead: 5,
        operations: 2,
        run: yield_to_other,
    },
    Row {
        name: "switch/yield/2p/bases-wrmsr",
        overhead: 5,
        operations: 2,
        run: |bench, row| yield_with_bases(bench, row, 0),
    },
    Row {
        name: "switch/yield/2p/bases-fsgsbase",
        overhead: 5,
        operations: 2,
        run: |bench, row| yield_with_bases(bench, row, 1),
    },
    Row {
        name: "switch/pipe/2p-0k/syscall",
        // 6 here and 5 in the other process.
        overhead: 11,
        operations: 2,
        run: pipe_ring,
    },
    ring_row("switch/pipe/2p-0k/wrmsr", 2, 0, |bench, row| {
        ring(bench, row, control::SYSENTER_WRMSR, 2, 0)
    }),
    ring_row("switch/pipe/2p-0k/trampoline", 2, 0, |bench, row| {
        ring(bench, row, control::SYSENTER_TRAMPOLINE, 2, 0)
    }),
    ring_row("switch/pipe/2p-0k/tss", 2, 0, |bench, row| {
        ring(bench, row, control::SYSENTER_TSS, 2, 0)
    }),
    ring_row("switch/pipe/2p-16k/wrmsr", 2, 16, |bench, row| {
        ring(bench, row, control::SYSENTER_WRMSR, 2, 16)
    }),
    ring_row("switch/pipe/2p-16k/trampoline", 2, 16, |bench, row| {
        ring(bench, row, control::SYSENTER_TRAMPOLINE, 2, 16)
    }),
    ring_row("switch/pipe/2p-16k/tss", 2, 16, |bench, row| {
        ring(bench, row, control::SYSENTER_TSS, 2, 16)
    }),
    ring_row("switch/pipe/2p-64k/wrmsr", 2, 64, |bench, row| {
        ring(bench, row, control::SYSENTER_WRMSR, 2, 64)
    }),
    ring_row("switch/pipe/2p-64k/trampoline", 2, 64, |bench, row| {
        ring(bench, row, control::SYSENTER_TRAMPOLINE, 2, 64)
    }),
    ring_row("switch/pipe/2p-64k/tss", 2, 64, |bench, row| {
        ring(bench, row, control::SYSENTER_TSS, 2, 64)
    }),
    ring_row("switch/pipe/8p-16k/wrmsr", 8, 16, |bench, row| {
        ring(bench, row, control::SYSENTER_WRMSR, 8, 16)
    }),
    ring_row("switch/pipe/8p-16k/trampoline", 8, 16, |bench, row| {
        ring(bench, row, control::SYSENTER_TRAMPOLINE, 8, 16)
    }),
    ring_row("switch/pipe/8p-16k/tss", 8, 16, |bench, row| {
        ring(bench, row, control::SYSENTER_TSS, 8, 16)
    }),
    ring_row("switch/pipe/8p-64k/wrmsr", 8, 64, |bench, row| {
        ring(bench, row, control::SYSENTER_WRMSR, 8, 64)
    }),
    ring_row("switch/pipe/8p-64k/trampoline", 8, 64, |bench, row| {
        ring(bench, row, control::SYSENTER_TRAMPOLINE, 8, 64)
    }),
    ring_row("switch/pipe/8p-64k/tss", 8, 64, |bench, row| {
        ring(bench, row, control::SYSENTER_TSS, 8, 64)
    }),
    ring_row("switch/pipe/16p-16k/wrmsr", 16, 16, |bench, row| {
        ring(bench, row, control::SYSENTER_WRMSR, 16, 16)
    }),
    ring_row("switch/pipe/16p-16k/trampoline", 16, 16, |bench, row| {
        ring(bench, row, control::SYSENTER_TRAMPOLINE, 16, 16)
    }),
    ring_row("switch/pipe/16p-16k/tss", 16, 16, |bench, row| {
        ring(bench, row, control::SYSENTER_TSS, 16, 16)
    }),
    ring_row("switch/pipe/16p-64k/wrmsr", 16, 64, |bench, row| {
        ring(bench, row, control::SYSENTER_WRMSR, 16, 64)
    }),
    ring_row("switch/pipe/16p-64k/trampoline", 16, 64, |bench, row| {
        ring(bench, row, control::SYSENTER_TRAMPOLINE, 16, 64)
    }),
    ring_row("switch/pipe/16p-64k/tss", 16, 64, |bench, row| {
        ring(bench, row, control::SYSENTER_TSS, 16, 64)
    }),
    legacy_row("legacy32/sysenter/null/direct", 0, |bench, row| {
        protected_mode(bench, row, 0, 0)
    }),
    legacy_row("legacy32/sysenter/null/trampoline", 0, |bench, row| {
        protected_mode(bench, row, control::PROTECTED_TRAMPOLINE, 0)
    }),
    legacy_switch_row("legacy32/switch/wrmsr", 0, |bench, row| {
        protected_mode(bench, row, control::PROTECTED_SWITCH, 0)
    }),
    legacy_switch_row("legacy32/switch/trampoline", 0, |bench, row| {
        protected_mode(bench, row, control::PROTECTED_SWITCH | control::PROTECTED_TRAMPOLINE, 0)
    }),
    legacy_switch_row("legacy32/switch/16k/wrmsr", 16, |bench, row| {
        protected_mode(bench, row, control::PROTECTED_SWITCH, 16)
    }),
    legacy_switch_row("legacy32/switch/16k/trampoline", 16, |bench, row| {
        protected_mode(
            bench,
            row,
            control::PROTECTED_SWITCH | control::PROTECTED_TRAMPOLINE,
            16,
        )
    }),
    legacy_switch_row("legacy32/switch/64k/wrmsr", 64, |bench, row| {
        protected_mode(bench, row, control::PROTECTED_SWITCH, 64)
    }),
    legacy_switch_row("legacy32/switch/64k/trampoline", 64, |bench, row| {
        protected_mode(
            bench,
            row,
            control::PROTECTED_SWITCH | control::PROTECTED_TRAMPOLINE,
            64,
        )
    }),
    Row {
        name: "wrmsr/sysenter-esp",
        // DEC and JNZ.
        overhead: 2,
        operations: 1,
        run: write_stack_register,
    },
    Row {
        name: "base/wrmsr",
        overhead: 2,
        operations: 1,
        run: |bench, row| write_base(bench, row, control::BASE_BY_WRMSR),
    },
    Row {
        name: "base/wrfsbase",
        overhead: 2,
        operations: 1,
        run: |bench, row| write_base(bench, row, control::BASE_BY_WRFSBASE),
    },
    Row {
        name: "tracking/null/off",
        overhead: 3,
        operations: 1,
        run: |bench, row| null_call(bench, row, control::STUBS_NULL_FULL),
    },
    Row {
        name: "tracking/null/irqsave",
        overhead: 3,
        operations: 1,
        run: |bench, row| {
            tracked(bench, control::TRACKING_IRQ_SAVE, || {
                null_call(bench, row, control::STUBS_NULL_FULL)
            })
        },
    },
    Row {
        name: "tracking/null/irqsoff",
        overhead: 3,
        operations: 1,
        run: |bench, row| {
            tracked(bench, control::TRACKING_IRQS_OFF, || {
                null_call(bench, row, control::STUBS_NULL_FULL)
            })
        },
    },
    Row {
        name: "tracking/kill-winch/off",
        overhead: 3,
        operations: 1,
        run: kill_winch,
    },
    Row {
        name: "tracking/kill-winch/irqsave",
        overhead: 3,
        operations: 1,
        run: |bench, row| tracked(bench, control::TRACKING_IRQ_SAVE, || kill_winch(bench, row)),
    },
    Row {
        name: "tracking/kill-winch/irqsoff",
        overhead: 3,
        operations: 1,
        run: |bench, row| tracked(bench, control::TRACKING_IRQS_OFF, || kill_winch(bench, row)),
    },
    Row {
        name: "interrupt/kernel",
        overhead: INTERRUPTS_OVERHEAD,
        operations: 1,
        run: |bench, row| kernel_interrupt(bench, row, control::IN_CODE),
    },
    Row {
        name: "interrupt/kernel/irqs-on",
        overhead: INTERRUPTS_OVERHEAD,
        operations: 1,
        run: |bench, row| with_irqs_on(bench, || kernel_interrupt(bench, row, control::IN_CODE)),
    },
    Row {
        name: "interrupt/window/irqs-on",
        overhead: INTERRUPTS_OVERHEAD,
        operations: 1,
        run: |bench, row| with_irqs_on(bench, || kernel_interrupt(bench, row, control::IN_WINDOW)),
    },
    Row {
        name: "irqflag/simulation/toggled",
        overhead: IRQFLAG_OVERHEAD,
        operations: 1,
        run: |bench, row| irqflag(bench, row, control::TOGGLED),
    },
    Row {
        name: "irqflag/simulation/untouched",
        overhead: IRQFLAG_OVERHEAD,
        operations: 1,
        run: |bench, row| irqflag(bench, row, control::UNTOUCHED),
    },
    Row {
        name: "irqflag/simulation/ring3-toggled",
        overhead: IRQFLAG_OVERHEAD,
        operations: 1,
        run: |bench, row| {
            irqflag_in_user_mode(bench, row, |rounds| {
                // SAFETY: 1. rounds start at 1. 2. `irqflag_in_user_mode` has seen to it.
                unsafe { loops::flag_toggled(rounds, 0, 0, 0) }
            })
        },
    },
    Row {
        name: "irqflag/simulation/ring3-untouched",
        overhead: IRQFLAG_OVERHEAD,
        operations: 1,
        run: |bench, row| {
            irqflag_in_user_mode(bench, row, |rounds| {
                // SAFETY: 1. rounds start at 1.
                unsafe { loops::flag_untouched(rounds, 0, 0, 0) }
            })
        },
    },
    Row {
        // There and back.
        name: "pipe/latency",
        overhead: 11,
        operations: 1,
        run: pipe_ring,
    },
    Row {
        name: "pipe/self",
        overhead: 6,
        operations: 1,
        run: pipe_self,
    },
];

/// The row of a ring by SYSENTER, with so many processes that read so many KiB each at their turn.
const fn ring_row(name: &'static str, processes: u64, kib: usize, run: fn(&Bench, &Row) -> Result<(), Problem>) -> Row {
    let memory = blocks(kib) as u64 * loops::RING_BLOCK_INSTRUCTIONS;
    Row {
        name,
        // 10 here and 9 in each of the others.
        overhead: 10 + memory + (processes - 1) * (9 + memory),
        operations: processes,
        run,
    }
}

/// The row of null calls in protected mode.
const fn legacy_row(name: &'static str, kib: usize, run: fn(&Bench, &Row) -> Result<(), Problem>) -> Row {
    Row {
        name,
        // DEC, JNZ, 4 around the memory.
        overhead: 6 + blocks(kib) as u64 * loops::RING_BLOCK_INSTRUCTIONS,
        operations: 1,
        run,
    }
}

/// The row of two tasks in protected mode, each of which has such a round.
const fn legacy_switch_row(name: &'static str, kib: usize, run: fn(&Bench, &Row) -> Result<(), Problem>) -> Row {
    let one = legacy_row(name, kib, run);
    Row {
        overhead: 2 * one.overhead,
        operations: 2,
        ..one
    }
}

/// The row of so many exceptions in the kernel, each in the handler of the one before.
const fn breakpoint_row(name: &'static str, depth: u64, run: fn(&Bench, &Row) -> Result<(), Problem>) -> Row {
    Row {
        name,
        // MOV, DEC and JNZ.
        overhead: 3,
        operations: depth,
        run,
    }
}

const fn blocks(kib: usize) -> usize {
    kib * 1024 / loops::RING_BLOCK
}

/// What the command line and the kernel decide.
pub(crate) struct Bench {
    rounds: u64,
    repeats: u64,
    example_os: bool,
    /// Where figures go, when nobody is there to read lines.
    table: Option<Table>,
}

impl Bench {
    /// Looks which kernel this is.
    pub(crate) fn new(rounds: u64, repeats: u64) -> Self {
        let example_os = control::is_example_os();
        if example_os {
            // The tick would land in one row or another. It starts again with the next boot.
            // SAFETY: 1. and 3. neither the stub set nor the fault exit changes. 2. Just asked.
            let _ = unsafe { control(control::QUIET, 1) };
        } else {
            // Two processes of a ring are to switch, not to run side by side.
            let cpu_0 = 1_u64;
            let address = (&raw const cpu_0).expose_provenance();
            // SAFETY: 1. the mask is only read; 2. nothing is mapped.
            let _ = unsafe { sys::raw(sys::SCHED_SETAFFINITY, [0, 8, address, 0, 0, 0]) };
            // Nor is one to take the CPU from the other at each wake-up, as Linux's scheduler may or may not let it.
            const SCHED_BATCH: usize = 3;
            let priority = 0_u32;
            let address = (&raw const priority).expose_provenance();
            // SAFETY: 1. the priority is only read; 2. nothing is mapped.
            let _ = unsafe { sys::raw(sys::SCHED_SETSCHEDULER, [0, SCHED_BATCH, address, 0, 0, 0]) };
        }
        Self {
            rounds,
            repeats,
            example_os,
            table: None,
        }
    }

    /// Measures loops whose length is known, in ring 3 and in ring 0, for whoever judges the clock.
    ///
    /// As often as a row: on a CPU that has other work too, a single stretch says little.
    pub(crate) fn calibrate(&self, repeats: usize) {
        for _ in 0..repeats {
            for rounds in [self.rounds, 2 * self.rounds] {
                let ticks = Self::time_ring_3(rounds);
                println!("[bench] calibration rounds={rounds} ticks={ticks} loop={CALIBRATION}");
            }
            for rounds in [self.rounds, 2 * self.rounds] {
                if let Some(ticks) = self.time_ring_0(rounds) {
                    println!("[bench] ring0 rounds={rounds} ticks={ticks} loop={IRQFLAG_OVERHEAD}");
                }
            }
        }
    }

    /// From here on rows are printed as a table, under a head that says what the clock is.
    pub(crate) fn start_table(&mut self, hypervisor: &str) -> Result<(), Problem> {
        let repeats = usize::try_from(self.repeats).map_or(MOST_REPEATS, |repeats| repeats.min(MOST_REPEATS));
        let mut ring_3 = [[0; 2]; MOST_REPEATS];
        let mut ring_0 = ring_3;
        let (ring_3, ring_0) = (&mut ring_3[..repeats], &mut ring_0[..repeats]);
        for (user, kernel) in ring_3.iter_mut().zip(ring_0.iter_mut()) {
            for (at, rounds) in [self.rounds, 2 * self.rounds].into_iter().enumerate() {
                user[at] = Self::time_ring_3(rounds);
                kernel[at] = self.time_ring_0(rounds).ok_or(NO_CONTROL)?;
            }
        }
        self.table = Some(Table::start(hypervisor, self.rounds, ring_3, ring_0));
        Ok(())
    }

    /// The table, if there is one.
    pub(crate) const fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// Says which machine this is, by CPUID: what runs under it, and the name of the CPU. Returns the former.
    pub(crate) fn identify() -> Hypervisor {
        use core::arch::x86_64::__cpuid;
        const FEATURES: u32 = 1;
        const UNDER_HYPERVISOR: u32 = 1 << 31;
        const HYPERVISOR: u32 = 0x4000_0000;
        const LARGEST_EXTENDED: u32 = 0x8000_0000;
        const BRAND: [u32; 3] = [0x8000_0002, 0x8000_0003, 0x8000_0004];
        let mut vendor = [0; 12];
        if __cpuid(FEATURES).ecx & UNDER_HYPERVISOR != 0 {
            let leaf = __cpuid(HYPERVISOR);
            for (word, bytes) in [leaf.ebx, leaf.ecx, leaf.edx].iter().zip(vendor.chunks_exact_mut(4)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        let mut brand = [0; 48];
        if __cpuid(LARGEST_EXTENDED).eax >= BRAND[2] {
            for (leaf, bytes) in BRAND.iter().zip(brand.chunks_exact_mut(16)) {
                let leaf = __cpuid(*leaf);
                let words = [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx];
                for (word, bytes) in words.iter().zip(bytes.chunks_exact_mut(4)) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        let hypervisor = Hypervisor(vendor);
        println!("[bench] machine hypervisor={} cpu={}", hypervisor.name(), shown(&brand));
        hypervisor
    }

    /// Ticks of so many rounds of a loop in ring 3.
    fn time_ring_3(rounds: u64) -> u64 {
        // SAFETY: 1. rounds start at 1.
        let Timed { ticks, .. } = unsafe { loops::calibration(rounds, 0, 0, 0) };
        ticks
    }

    /// Ticks of so many rounds of a loop in ring 0, where a hypervisor may be far slower than in ring 3.
    fn time_ring_0(&self, rounds: u64) -> Option<u64> {
        if !self.example_os {
            return None;
        }
        simulate_irqflag(control::UNTOUCHED, rounds).ok()
    }

    /// Prints two lines a repeat of what `timed` takes for as many rounds as it is given.
    ///
    /// A loop whose last operation did not give `last` is an error: a failing call is quick, and its time no figure.
    fn measure(
        &self,
        row: &Row,
        most_rounds: u64,
        last: u64,
        timed: impl FnMut(u64) -> Result<Timed, Problem>,
    ) -> Result<(), Problem> {
        self.measure_from(row, self.rounds.min(most_rounds / 2), last, timed)
    }

    /// As [`Bench::measure`], with `base` rounds and twice as many.
    fn measure_from(
        &self,
        row: &Row,
        base: u64,
        last: u64,
        mut timed: impl FnMut(u64) -> Result<Timed, Problem>,
    ) -> Result<(), Problem> {
        for _ in 0..self.repeats {
            for rounds in [base, 2 * base] {
                let Timed { ticks, last: got } = timed(rounds)?;
                expect("result of the last round", got, last)?;
                self.report(row, rounds, ticks, 0);
            }
        }
        self.finish_row(row, base);
        Ok(())
    }

    /// Hands a timed stretch on, with the instructions of waiting in it.
    fn report(&self, row: &Row, rounds: u64, ticks: u64, idle: u64) {
        if let Some(table) = &self.table {
            return table.take(ticks, idle);
        }
        let (name, overhead, operations) = (row.name, row.overhead, row.operations);
        let stretch = format_args!("row={name} rounds={rounds} ticks={ticks} loop={overhead} ops={operations}");
        match idle {
            0 => println!("[bench] {stretch}"),
            _ => println!("[bench] {stretch} idle={idle}"),
        }
    }

    /// Ends a row, whose stretches had `rounds` rounds and twice as many.
    fn finish_row(&self, row: &Row, rounds: u64) {
        if let Some(table) = &self.table {
            table.print(row, rounds);
        }
    }

    /// As [`Bench::measure`] for a loop that waits: the result of `timed` is how often it looked, `poll` instructions
    /// each, and the lines say how many that were.
    fn measure_waiting(
        &self,
        row: &Row,
        poll: u64,
        mut timed: impl FnMut(u64) -> Result<Timed, Problem>,
    ) -> Result<(), Problem> {
        for _ in 0..self.repeats {
            for rounds in [self.rounds, 2 * self.rounds] {
                let Timed { ticks, last: polls } = timed(rounds)?;
                self.report(row, rounds, ticks, polls * poll);
            }
        }
        self.finish_row(row, self.rounds);
        Ok(())
    }

    /// Refuses a row that needs the control call where there is none.
    const fn needs_control(&self) -> Result<(), Problem> {
        if self.example_os { Ok(()) } else { Err(NO_CONTROL) }
    }
}

/// `Ok` when the check before timing saw what it wanted to see.
const fn expect(what: &'static str, got: u64, wanted: u64) -> Result<(), Problem> {
    if got == wanted {
        Ok(())
    } else {
        Err(Problem::Wrong { what, got, wanted })
    }
}

/// Turns the errors of a system call into this row's.
fn done<T>(what: &'static str, result: Result<T, Errno>) -> Result<T, Problem> {
    result.map_err(|errno| Problem::Failed(what, errno))
}

/// How much `counter` grows while `body` runs.
fn counted(counter: usize, body: impl FnOnce()) -> Result<u64, Problem> {
    let before = done("read counter", control::counter(counter))?;
    body();
    let after = done("read counter", control::counter(counter))?;
    Ok((after - before) as u64)
}

/// Any system call through a stub set that answers 0 to all of them.
fn null_call(bench: &Bench, row: &Row, stubs: usize) -> Result<(), Problem> {
    if !bench.example_os && stubs == control::STUBS_NULL_FULL {
        return unknown_call(bench, row);
    }
    bench.needs_control()?;
    let with_stubs = |rounds| {
        // SAFETY: 1. until the normal set is back, only `system_call` below makes calls, and nobody looks at their answer.
        // 2. `needs_control`. 3. The fault exit stays.
        let selected = unsafe { control(control::SELECT_STUBS, stubs) };
        // SAFETY: 1. `rounds` is at least 1; 2. `getpid` takes no arguments.
        let timed = unsafe { loops::system_call(rounds, sys::GETPID, 0, 0) };
        // SAFETY: 1. this brings the normal set back. 2. `needs_control`. 3. The fault exit stays.
        let restored = unsafe { control(control::SELECT_STUBS, control::STUBS_NORMAL) };
        done("select stub set", selected)?;
        done("select normal stub set", restored)?;
        Ok(timed)
    };
    // SAFETY: 1. the next SYSCALL is the one that is to answer 0. 2. `needs_control`. 3. The fault exit stays.
    let selected = unsafe { control(control::SELECT_STUBS, stubs) };
    let answer = sys::getpid();
    // SAFETY: 1. this brings the normal set back. 2. `needs_control`. 3. The fault exit stays.
    let restored = unsafe { control(control::SELECT_STUBS, control::STUBS_NORMAL) };
    done("select stub set", selected)?;
    done("select normal stub set", restored)?;
    expect("getpid through the null stub", u64::from(answer.unsigned_abs()), 0)?;
    expect("getpid is back", u64::from(sys::getpid() > 0), 1)?;
    bench.measure(row, u64::MAX, 0, with_stubs)
}

/// What another kernel does of itself: it has no call of that number, and says so.
fn unknown_call(bench: &Bench, row: &Row) -> Result<(), Problem> {
    let refused = (Errno::ENOSYS.0 as u64).wrapping_neg();
    bench.measure(row, u64::MAX, refused, |rounds| {
        // SAFETY: 1. rounds start at 1; 2. there is no such call.
        Ok(unsafe { loops::system_call(rounds, control::NUMBER, 0, 0) })
    })
}

/// Runs `body` while INT 0x80 does nothing and exceptions are skipped.
///
/// `body` must make no INT 0x80 but the one it times, and touch no page that may be absent.
fn with_null_vectors<T>(body: impl FnOnce() -> T) -> Result<T, Problem> {
    let select = |is_null| {
        // SAFETY: 1. the stub set is the normal one, and the fault exit stays; the callers have asked `needs_control`.
        // 2. `body` sees to it.
        unsafe { control::control_by_syscall(control::NULL_VECTORS, is_null) }
    };
    done("select null vectors", select(1))?;
    let result = body();
    done("select normal vectors", select(0))?;
    Ok(result)
}

/// INT 0x80 to a kernel that answers 0.
fn null_soft_interrupt(bench: &Bench, row: &Row) -> Result<(), Problem> {
    bench.needs_control()?;
    // SAFETY: 1. `getpid` takes none.
    let once = || unsafe { loops::soft_interrupt_once(sys::GETPID) };
    let refused = (Errno::ENOSYS.0 as u64).wrapping_neg();
    expect("INT 0x80 of the kernel proper", once(), refused)?;
    expect("INT 0x80 through the null stub", with_null_vectors(once)?, 0)?;
    bench.measure(row, u64::MAX, 0, |rounds| {
        // SAFETY: 1. rounds start at 1; 2. `getpid` takes none.
        with_null_vectors(|| unsafe { loops::soft_interrupt(rounds, sys::GETPID, 0, 0) })
    })?;
    expect("INT 0x80 afterwards", once(), refused)
}

/// A page fault that the kernel skips without looking.
fn skipped_fault(bench: &Bench, row: &Row) -> Result<(), Problem> {
    /// In the first page, which is never mapped.
    const NOWHERE: usize = 0x10;
    bench.needs_control()?;
    // SAFETY: 1. loads are skipped.
    let skipped = with_null_vectors(|| unsafe { loops::skipped_load_once(NOWHERE) })?;
    expect("loads skipped", skipped, 1)?;
    bench.measure(row, u64::MAX, 0, |rounds| {
        // SAFETY: 1. rounds start at 1. 2. Loads are skipped.
        with_null_vectors(|| unsafe { loops::skipped_load(rounds, NOWHERE, 0, 0) })
    })
}

/// A timer interrupt that arrives in a loop of the program and leads to nothing.
fn interrupt(bench: &Bench, row: &Row) -> Result<(), Problem> {
    /// Time from one interrupt to the next: many times what one takes.
    const PERIOD: usize = 1000;
    bench.needs_control()?;
    if bench.table.as_ref().is_some_and(|table| !table.counts_instructions()) {
        return Err(Problem::Skip("waits: counted, never timed"));
    }
    let timer = |period| {
        // SAFETY: 1. and 3. neither the stub set nor the fault exit changes. 2. `needs_control`.
        done("set timer", unsafe { control(control::TIMER, period) }).map(drop)
    };
    let mut started = Ok(());
    let ticks = counted(control::COUNT_TICKS, || {
        started = timer(PERIOD);
        if started.is_ok() {
            // SAFETY: 1. sixteen rounds, and the timer runs.
            unsafe { loops::wait_for_interrupts(16) };
            started = timer(0);
        }
    })?;
    started?;
    // One more may come before the timer is stopped.
    expect("16 waits took 16 interrupts", u64::from((16..=17).contains(&ticks)), 1)?;
    bench.measure_waiting(row, loops::INTERRUPT_POLL, |rounds| {
        timer(PERIOD)?;
        // SAFETY: 1. rounds start at 1. 2. The timer runs.
        let timed = unsafe { loops::interrupted(rounds, 0, 0, 0) };
        timer(0)?;
        Ok(timed)
    })
}

/// As [`interrupt`], with the vectors that a kernel with interrupts on at SYSCALL needs.
fn interrupt_with_irqs_on(bench: &Bench, row: &Row) -> Result<(), Problem> {
    with_irqs_on(bench, || interrupt(bench, row))
}

/// Runs `body` with the vectors that a kernel with interrupts on at SYSCALL needs.
fn with_irqs_on(bench: &Bench, body: impl FnOnce() -> Result<(), Problem>) -> Result<(), Problem> {
    bench.needs_control()?;
    let select = |stubs| {
        // SAFETY: 1. both sets answer all calls. 2. `needs_control`. 3. The fault exit stays.
        unsafe { control(control::SELECT_STUBS, stubs) }
    };
    done("select stub set", select(control::STUBS_IRQS_ON))?;
    let result = body();
    done("select normal stub set", select(control::STUBS_NORMAL))?;
    result
}

/// An interrupt in ring 0 that leads to nothing. A round there is the store that raises it, STI, NOP, CLI, DEC and JNZ.
fn kernel_interrupt(bench: &Bench, row: &Row, place: usize) -> Result<(), Problem> {
    bench.needs_control()?;
    let mut taken = Ok(0);
    let ticks = counted(control::COUNT_TICKS, || {
        // SAFETY: 1. and 3. the stub set and the fault exit stay. 2. `needs_control`.
        taken = unsafe { control(control::KERNEL_INTERRUPTS, place | 16 << 8) };
    })?;
    done("take interrupts", taken)?;
    expect("16 rounds took 16 interrupts", ticks, 16)?;
    bench.measure(row, u64::MAX, 0, |rounds| {
        // SAFETY: 1. as above.
        let timed = unsafe { loops::kernel_loop(control::KERNEL_INTERRUPTS, place | argument(rounds) << 8) };
        done("take interrupts", timed)
    })
}

/// A system call that does next to nothing, through the whole kernel.
fn getppid(bench: &Bench, row: &Row) -> Result<(), Problem> {
    let parent = sys::getpid();
    let child = done("fork", sys::fork())?;
    if child == 0 {
        sys::exit(i32::from(sys::getppid() != parent));
    }
    let (_, status) = done("wait4", sys::wait4(child))?;
    expect("getppid in a child (wait status)", u64::from(status.unsigned_abs()), 0)?;
    let parent = u64::from(sys::getppid().unsigned_abs());
    bench.measure(row, u64::MAX, parent, |rounds| {
        // SAFETY: 1. rounds start at 1; 2. `getppid` takes no arguments.
        Ok(unsafe { loops::system_call(rounds, sys::GETPPID, 0, 0) })
    })
}

/// The way back from a page fault.
#[derive(Clone, Copy)]
enum FaultExit {
    Iret,
    Sysret,
    /// By SYSRET through the landing page, which keeps all registers.
    Landing,
}

/// Runs `touch` while page faults are left through a landing page, which no code notices.
fn with_landing_page(touch: impl FnOnce() -> Timed) -> Result<Timed, Problem> {
    let select = |exit: FaultExit| {
        // SAFETY: 1. the stub set stays. 2. The row needs the control call. 3. Neither exit destroys RCX and R11.
        let chosen = unsafe { control(control::FAULT_EXIT, exit as usize) };
        done("choose the exit of page faults", chosen)
    };
    select(FaultExit::Landing)?;
    let timed = touch();
    select(FaultExit::Iret)?;
    Ok(timed)
}

/// Fresh read-only pages.
struct Pages {
    mapping: *mut u8,
    bytes: usize,
    start: usize,
}

impl Pages {
    /// Pages of which the first is `offset` bytes, less than a page table covers, behind the start of what one covers.
    fn map(bench: &Bench, pages: u64, offset: usize) -> Result<Self, Problem> {
        // One page table more than needed leaves room to align.
        let bytes = usize::try_from(pages).map_or(usize::MAX, |pages| pages * PAGE_BYTES);
        let bytes = bytes.saturating_add(TABLE_BYTES);
        let mapping = done("mmap", sys::mmap(0, bytes, PROT_READ))?;
        let start = mapping.expose_provenance().next_multiple_of(TABLE_BYTES) + offset;
        if !bench.example_os {
            const NO_HUGE_PAGES: usize = 15;
            let args = [mapping.addr(), bytes, NO_HUGE_PAGES, 0, 0, 0];
            // SAFETY: 1. and 2. hold: advice against huge pages changes no contents.
            done("madvise", sys::check(unsafe { sys::raw(sys::MADVISE, args) }))?;
        }
        Ok(Self { mapping, bytes, start })
    }

    fn unmap(self) -> Result<(), Problem> {
        // SAFETY: 1. this is what `map` mapped, and `self` ends here.
        done("munmap", unsafe { sys::munmap(self.mapping, self.bytes) })
    }
}

/// Reads `count` pages, which are as many as there are or fewer, and not 0.
fn touch(pages: &Pages, count: u64, exit: FaultExit) -> Result<Timed, Problem> {
    match exit {
        // SAFETY: 1. and 2. by the caller.
        FaultExit::Iret => Ok(unsafe { loops::touch(count, pages.start, 0, 0) }),
        // SAFETY: 1. and 2. by the caller.
        FaultExit::Sysret => Ok(unsafe { loops::touch_with_sysret(count, pages.start, 0, 0) }),
        FaultExit::Landing => {
            // SAFETY: 1. and 2. by the caller.
            with_landing_page(|| unsafe { loops::touch(count, pages.start, 0, 0) })
        }
    }
}

/// One read fault on the zero page.
fn zero_page(bench: &Bench, row: &Row, exit: FaultExit) -> Result<(), Problem> {
    check_zero_page(bench, exit)?;
    bench.measure(row, GIBIBYTE, 0, |rounds| {
        let pages = Pages::map(bench, rounds, 0)?;
        let timed = touch(&pages, rounds, exit);
        pages.unmap()?;
        timed
    })
}

/// Pages of 1 GiB.
const GIBIBYTE: u64 = 262_144;

/// A row whose round is a pass over 1 GiB.
const fn gibibyte_row(name: &'static str, run: fn(&Bench, &Row) -> Result<(), Problem>) -> Row {
    Row {
        name,
        overhead: 3 * GIBIBYTE,
        operations: GIBIBYTE,
        run,
    }
}

/// The program of seed 000: maps 1 GiB, read-only and not at the start of a huge page, reads a byte of each page, unmaps it,
/// and begins again. The reading is timed.
fn gibibyte(bench: &Bench, row: &Row, exit: FaultExit) -> Result<(), Problem> {
    check_zero_page(bench, exit)?;
    bench.measure(row, u64::MAX, 0, |passes| {
        let mut all = Timed { ticks: 0, last: 0 };
        let mut read = || {
            for _ in 0..passes {
                let pages = Pages::map(bench, GIBIBYTE, PAGE_BYTES)?;
                let timed = touch(&pages, GIBIBYTE, exit);
                pages.unmap()?;
                let timed = timed?;
                all.ticks += timed.ticks;
                all.last |= timed.last;
            }
            Ok(())
        };
        if bench.example_os {
            let mut result = Ok(());
            let faults = counted(control::COUNT_FAULTS, || result = read())?;
            result?;
            expect("faults of all pages of all passes", faults, passes * GIBIBYTE)?;
        } else {
            read()?;
        }
        Ok(all)
    })
}

/// Makes sure that 16 pages bring 16 faults, which are left as chosen, and read as 0.
fn check_zero_page(bench: &Bench, exit: FaultExit) -> Result<(), Problem> {
    if !matches!(exit, FaultExit::Iret) {
        bench.needs_control()?;
    }
    let chosen = exit as usize;
    let pages = Pages::map(bench, 16, 0)?;
    let addresses = (0..16).map(|page| pages.start + page * PAGE_BYTES);
    if bench.example_os {
        let mut unexpected = 0;
        let count = || {
            for address in addresses.clone() {
                let destroys = matches!(exit, FaultExit::Sysret);
                // SAFETY: 1. the page is mapped readable. 2. `example_os`.
                let taken = unsafe { loops::fault_exit_taken(address, chosen) };
                unexpected += u64::from(taken != u64::from(destroys));
            }
        };
        let faults = counted(control::COUNT_FAULTS, count)?;
        expect("faults of 16 fresh pages", faults, 16)?;
        expect("faults left by another exit", unexpected, 0)?;
    }
    let mut not_zero = 0;
    let read_all = || {
        for address in addresses {
            let byte = core::ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: the page is mapped readable.
            not_zero += u64::from(unsafe { byte.read_volatile() } != 0);
        }
    };
    if bench.example_os {
        let faults = counted(control::COUNT_FAULTS, read_all)?;
        expect("faults of 16 touched pages", faults, 0)?;
    } else {
        read_all();
    }
    expect("bytes of fresh pages that are not zero", not_zero, 0)?;
    pages.unmap()
}

/// #UD from user mode, skipped by the handler.
fn exception(bench: &Bench, row: &Row) -> Result<(), Problem> {
    bench.needs_control()?;
    // SAFETY: 1. UD2 is skipped.
    let reached = with_null_vectors(|| unsafe { loops::undefined_three_times() })?;
    expect("UD2s skipped", reached, 3)?;
    bench.measure(row, u64::MAX, 0, |rounds| {
        // SAFETY: 1. rounds start at 1. 2. UD2 is skipped.
        with_null_vectors(|| unsafe { loops::undefined(rounds, 0, 0, 0) })
    })
}

/// The kernel's own loop around a breakpoint, in whose handler there is another one, `depth` in all.
fn breakpoints(bench: &Bench, row: &Row, depth: usize) -> Result<(), Problem> {
    bench.needs_control()?;
    // SAFETY: 1. and 3. the stub set and the fault exit stay. 2. `needs_control`.
    match unsafe { control(control::BREAKPOINTS, 0) } {
        Err(Errno::EINVAL) => {}
        Err(errno) => return Err(Problem::Failed("no breakpoint at all", errno)),
        Ok(ticks) => return expect("ticks of no breakpoint at all", ticks as u64, 0),
    }
    bench.measure(row, u64::MAX, 0, |rounds| {
        // SAFETY: 1. as above.
        let timed = unsafe { loops::kernel_loop(control::BREAKPOINTS, depth | argument(rounds) << 8) };
        done("run into breakpoints", timed)
    })
}

/// A second process, which is killed at the end of the row.
struct Partner(i32);

impl Partner {
    fn start(body: impl FnOnce()) -> Result<Self, Problem> {
        let child = done("fork", sys::fork())?;
        if child == 0 {
            body();
            sys::exit(0);
        }
        Ok(Self(child))
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        // It runs until killed, so both can only fail if it is gone already.
        let _ = sys::kill(self.0, sys::SIGKILL);
        let _ = sys::wait4(self.0);
    }
}

/// `sched_yield` to another process that does the same.
fn yield_to_other(bench: &Bench, row: &Row) -> Result<(), Problem> {
    if !bench.example_os {
        return Err(Problem::Skip(
            "this kernel does not promise that two processes alternate",
        ));
    }
    let _partner = Partner::start(|| loops::yield_forever())?;
    // The partner's first turn is different: it comes out of its fork.
    done("sched_yield", sys::sched_yield())?;
    let mut failed = 0;
    let yield_often = || {
        for _ in 0..16 {
            failed += u64::from(sys::sched_yield().is_err());
        }
    };
    let switches = counted(control::COUNT_SWITCHES, yield_often)?;
    expect("failed yields", failed, 0)?;
    expect("switches of 16 yields and back", switches, 32)?;
    bench.measure(row, u64::MAX, 0, |rounds| {
        // SAFETY: 1. rounds start at 1; 2. `sched_yield` takes no arguments.
        Ok(unsafe { loops::system_call(rounds, sys::SCHED_YIELD, 0, 0) })
    })
}

/// FS and GS base of this process for as long as the value exists, and how the kernel's switch writes them.
struct Bases;

impl Bases {
    /// `way` is the argument of [`control::INSTRUCTIONS_FOR_BASES`].
    fn new(bench: &Bench, way: usize) -> Result<Self, Problem> {
        bench.needs_control()?;
        // SAFETY: 1. and 3. the stub set and the fault exit stay. 2. `needs_control`.
        match unsafe { control(control::INSTRUCTIONS_FOR_BASES, way) } {
            Err(Errno::ENOSYS) => return Err(Problem::Skip("this CPU has no FSGSBASE")),
            first => done("choose how bases are written", first)?,
        };
        let bases = Self;
        bases.set(PAGE_BYTES)?;
        Ok(bases)
    }

    /// Any user address: nothing is accessed through FS or GS.
    fn set(&self, base: usize) -> Result<(), Problem> {
        for operation in [sys::ARCH_SET_FS, sys::ARCH_SET_GS] {
            // SAFETY: 1. and 2. the call neither reads nor writes memory, and this program uses neither segment.
            let set = unsafe { sys::raw(sys::ARCH_PRCTL, [operation, base, 0, 0, 0, 0]) };
            done("arch_prctl", sys::check(set))?;
        }
        Ok(())
    }
}

impl Drop for Bases {
    fn drop(&mut self) {
        // Both calls have worked before.
        let _ = self.set(0);
        // SAFETY: 1. and 3. the stub set and the fault exit stay. 2. as in `new`.
        let _ = unsafe { control(control::INSTRUCTIONS_FOR_BASES, 0) };
    }
}

/// As [`yield_to_other`], between two processes that have bases.
fn yield_with_bases(bench: &Bench, row: &Row, way: usize) -> Result<(), Problem> {
    let _bases = Bases::new(bench, way)?;
    yield_to_other(bench, row)
}

/// Both ends of a pipe, closed at the end of the row.
struct Pipe {
    from: i32,
    to: i32,
}

impl Pipe {
    fn new() -> Result<Self, Problem> {
        let [from, to] = done("pipe", sys::pipe())?;
        Ok(Self { from, to })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // Both are open for as long as this value exists.
        let _ = sys::close(self.from);
        let _ = sys::close(self.to);
    }
}

/// Runs the write-and-read loop with a byte of its own.
fn write_and_read(rounds: u64, from: i32, to: i32) -> Timed {
    let mut byte = 0x5a_u8;
    let address = (&raw mut byte).expose_provenance();
    // SAFETY: 1. `rounds` is at least 1; 2. `byte` is this function's own.
    unsafe { loops::write_and_read(rounds, sys::int(from), sys::int(to), address) }
}

/// Writes a byte to `to` and expects it back from `from`.
fn byte_returns(from: i32, to: i32) -> Result<(), Problem> {
    let mut byte = [0];
    let written = done("write", sys::write(to, &[0x5a]))?;
    expect("bytes written", written as u64, 1)?;
    let read = done("read", sys::read(from, &mut byte))?;
    expect("bytes read", read as u64, 1)?;
    expect("the byte read", u64::from(byte[0]), 0x5a)
}

/// A byte that goes round through two pipes and two processes.
fn pipe_ring(bench: &Bench, row: &Row) -> Result<(), Problem> {
    let (there, back) = (Pipe::new()?, Pipe::new()?);
    let _partner = Partner::start(|| {
        let mut byte = 0;
        // SAFETY: 1. `byte` is this closure's own, and the call never returns.
        unsafe { loops::read_and_write(there.from, back.to, &raw mut byte) }
    })?;
    byte_returns(back.from, there.to)?;
    if bench.example_os {
        let mut returned = Ok(());
        let send = || returned = (0..16).try_for_each(|_| byte_returns(back.from, there.to));
        let switches = counted(control::COUNT_SWITCHES, send)?;
        returned?;
        expect("switches of 16 bytes there and back", switches, 32)?;
    }
    bench.measure(row, u64::MAX, 1, |rounds| {
        Ok(write_and_read(rounds, back.from, there.to))
    })
}

/// Lets SYSENTER be as `choice` says while `body` runs.
fn with_sysenter(bench: &Bench, choice: usize, body: impl FnOnce() -> Result<(), Problem>) -> Result<(), Problem> {
    bench.needs_control()?;
    let select = |choice| {
        // SAFETY: 1. and 3. neither the SYSCALL stub set nor the fault exit changes. 2. `needs_control`.
        unsafe { control(control::SYSENTER, choice) }
    };
    match select(choice) {
        Err(Errno::ENOSYS) => return Err(Problem::Skip("this CPU has no SYSENTER in long mode")),
        Err(Errno::EINVAL) => return Err(Problem::Skip("there is no SYSENTER stub for a kernel that hides")),
        selected => done("select SYSENTER", selected)?,
    };
    let result = body();
    done("select normal SYSENTER", select(control::SYSENTER_FROM_HEADER))?;
    result
}

/// Any call by SYSENTER to a kernel that answers 0.
fn null_sysenter(bench: &Bench, row: &Row) -> Result<(), Problem> {
    // SAFETY: 1. `getpid` takes no arguments, and SYSENTER is selected where this is called.
    let once = || unsafe { loops::sysenter_once(sys::GETPID) };
    let pid = u64::from(sys::getpid().unsigned_abs());
    with_sysenter(bench, control::SYSENTER_FROM_HEADER, || {
        expect("getpid by SYSENTER", once(), pid)
    })?;
    with_sysenter(bench, control::SYSENTER_FROM_HEADER | control::SYSENTER_NULL, || {
        expect("getpid by SYSENTER through the null stub", once(), 0)?;
        bench.measure(row, u64::MAX, 0, |rounds| {
            // SAFETY: 1. rounds start at 1; 2. `getpid` takes no arguments, and SYSENTER is selected.
            Ok(unsafe { loops::sysenter_call(rounds, sys::GETPID, 0, 0) })
        })
    })
}

/// A way from 32-bit code into the kernel.
struct From32 {
    /// What the page must have, if that tells whether the CPU has it.
    page: Option<usize>,
    /// Why there is no figure where it has something else.
    absent: &'static str,
    /// What a failed check is about.
    what: &'static str,
    once: unsafe extern "sysv64" fn(u64, usize) -> Timed,
    timed: unsafe extern "sysv64" fn(u64, usize) -> Timed,
}

const BY_INT80: From32 = From32 {
    page: None,
    absent: "",
    what: "getpid by INT 0x80 from 32-bit code",
    once: compat::soft_interrupt_once,
    timed: compat::soft_interrupt,
};

const BY_SYSENTER: From32 = From32 {
    page: Some(control::PAGE_SYSENTER),
    absent: "this CPU has no SYSENTER in long mode",
    what: "getpid by SYSENTER from 32-bit code",
    once: compat::sysenter_once,
    timed: compat::sysenter,
};

const BY_SYSCALL: From32 = From32 {
    page: Some(control::PAGE_SYSCALL),
    absent: "this CPU has no SYSCALL in 32-bit code",
    what: "getpid by SYSCALL from 32-bit code",
    once: compat::syscall_once,
    timed: compat::syscall,
};

/// Any call from 32-bit code to a kernel that answers 0.
fn null_from_32_bit_code(bench: &Bench, row: &Row, way: &From32) -> Result<(), Problem> {
    bench.needs_control()?;
    let allow = |is_allowed| {
        // SAFETY: 1. the stub set becomes the normal one, which it was, and the fault exit stays. 2. `needs_control`.
        unsafe { control(control::CODE_32, is_allowed) }
    };
    let page = match allow(1) {
        Err(Errno::EINVAL) => return Err(Problem::Skip("a process that the kernel hides from has no 32-bit code")),
        allowed => done("allow 32-bit code", allowed)?,
    };
    let result = if way.page.is_some_and(|wanted| wanted != page) {
        Err(Problem::Skip(way.absent))
    } else {
        measure_from_32_bit_code(bench, row, way)
    };
    done("take 32-bit code away", allow(0))?;
    compat::null_data_segments();
    result
}

fn measure_from_32_bit_code(bench: &Bench, row: &Row, way: &From32) -> Result<(), Problem> {
    /// `getpid` of i386.
    const GETPID_32: usize = 20;
    // SAFETY: 1. once. 2. `getpid` takes no arguments, and the caller has seen to the rest.
    let once = || unsafe { (way.once)(1, GETPID_32) }.last;
    let pid = u64::from(sys::getpid().unsigned_abs());
    expect(way.what, once(), pid)?;
    if way.page == Some(control::PAGE_SYSENTER) {
        with_sysenter(bench, control::SYSENTER_FROM_HEADER | control::SYSENTER_NULL, || {
            expect("a null call from 32-bit code", once(), 0)?;
            bench.measure(row, u32::MAX.into(), 0, |rounds| {
                // SAFETY: 1. rounds start at 1, and there are no more. 2. As above.
                Ok(unsafe { (way.timed)(rounds, GETPID_32) })
            })
        })?;
    } else {
        expect("a null call from 32-bit code", with_null_vectors(once)?, 0)?;
        bench.measure(row, u32::MAX.into(), 0, |rounds| {
            // SAFETY: 1. rounds start at 1, and there are no more. 2. As above.
            with_null_vectors(|| unsafe { (way.timed)(rounds, GETPID_32) })
        })?;
    }
    expect(way.what, once(), pid)
}

/// The kernel's own loop around WRMSR.
fn write_stack_register(bench: &Bench, row: &Row) -> Result<(), Problem> {
    with_sysenter(bench, control::SYSENTER_FROM_HEADER, || {
        bench.measure(row, u64::MAX, 0, |rounds| {
            // SAFETY: 1. the stub set and the fault exit stay, and `with_sysenter`.
            let timed = unsafe { loops::kernel_loop(control::WRITE_SYSENTER_STACK, argument(rounds)) };
            done("write the register", timed)
        })
    })
}

/// The kernel's excursion to protected mode.
fn protected_mode(bench: &Bench, row: &Row, what: usize, kib: usize) -> Result<(), Problem> {
    bench.needs_control()?;
    let with = |rounds: u64| what | blocks(kib) << 8 | argument(rounds) << 16;
    // SAFETY: 1. and 3. the stub set and the fault exit stay. 2. `needs_control`.
    match unsafe { control(control::PROTECTED_MODE, with(2)) } {
        Err(Errno::ENOSYS) => return Err(Problem::Skip("this CPU has no SYSENTER in protected mode")),
        first => done("go to protected mode", first)?,
    };
    // A turn with memory is long: fewer do.
    let rounds = if kib == 0 {
        bench.rounds
    } else {
        (bench.rounds / 64).max(1)
    };
    bench.measure_from(row, rounds, 0, |rounds| {
        // SAFETY: 1. as above.
        let timed = unsafe { loops::kernel_loop(control::PROTECTED_MODE, with(rounds)) };
        done("go to protected mode", timed)
    })
}

/// The kernel's own loop around a write of FS and GS base.
fn write_base(bench: &Bench, row: &Row, way: usize) -> Result<(), Problem> {
    bench.needs_control()?;
    // SAFETY: 1. and 3. the stub set and the fault exit stay. 2. `needs_control`.
    match unsafe { control(control::WRITE_BASE, way | 1 << 8) } {
        Err(Errno::ENOSYS) => return Err(Problem::Skip("this CPU has no WRFSBASE")),
        first => done("write the bases", first)?,
    };
    bench.measure(row, u64::MAX, 0, |rounds| {
        // SAFETY: 1. as above.
        let timed = unsafe { loops::kernel_loop(control::WRITE_BASE, way | argument(rounds) << 8) };
        done("write the bases", timed)
    })
}

/// Most processes of a ring.
const MOST_IN_RING: usize = 16;

/// A byte that goes round through `processes` pipes and as many processes, all of which enter by SYSENTER, and read `kib`
/// KiB of memory of their own at each turn.
fn ring(bench: &Bench, row: &Row, way: usize, processes: usize, kib: usize) -> Result<(), Problem> {
    with_sysenter(bench, way, || {
        let memory = done("mmap", sys::mmap(0, 64 * 1024, sys::PROT_READ | sys::PROT_WRITE))?;
        let mut work = RingWork {
            byte: 0,
            memory: memory.expose_provenance(),
            blocks: blocks(kib),
        };
        let result = ring_of(bench, row, processes, kib, &mut work);
        // SAFETY: 1. it was mapped above, and `work` is not used again.
        done("munmap", unsafe { sys::munmap(memory, 64 * 1024) })?;
        result
    })
}

fn ring_of(bench: &Bench, row: &Row, processes: usize, kib: usize, work: &mut RingWork) -> Result<(), Problem> {
    let mut pipes = [const { None }; MOST_IN_RING];
    for pipe in &mut pipes[..processes] {
        *pipe = Some(Pipe::new()?);
    }
    let from = |pipe: usize| pipes[pipe].as_ref().map_or(-1, |pipe: &Pipe| pipe.from);
    let to = |pipe: usize| pipes[pipe].as_ref().map_or(-1, |pipe: &Pipe| pipe.to);
    let mut partners = [const { None }; MOST_IN_RING];
    for (number, partner) in partners.iter_mut().enumerate().take(processes).skip(1) {
        let work = &mut *work;
        *partner = Some(Partner::start(|| {
            own_pages(work);
            // SAFETY: 1. `work` is this process's own copy, and its memory is mapped.
            unsafe { loops::pass_on_by_sysenter(from(number - 1), to(number), work) }
        })?);
    }
    own_pages(work);
    let (to_first, from_last) = (to(0), from(processes - 1));
    byte_returns(from_last, to_first)?;
    let mut returned = Ok(());
    let send = || returned = (0..4).try_for_each(|_| byte_returns(from_last, to_first));
    let switches = counted(control::COUNT_SWITCHES, send)?;
    returned?;
    expect("switches of 4 bytes round the ring", switches, 4 * processes as u64)?;
    // A turn with memory is long: fewer do.
    let rounds = if kib == 0 {
        bench.rounds
    } else {
        (bench.rounds / 64).max(1)
    };
    let address = (&raw mut *work).expose_provenance();
    bench.measure_from(row, rounds, 1, |rounds| {
        // SAFETY: 1. rounds start at 1. 2. `work` is this process's own. 3. `with_sysenter`.
        Ok(unsafe { loops::ring_by_sysenter(rounds, sys::int(from_last), sys::int(to_first), address) })
    })
}

/// Writes to each page of the memory, so that it is neither the zero page nor anybody else's.
fn own_pages(work: &RingWork) {
    for offset in (0..work.blocks * loops::RING_BLOCK).step_by(PAGE_BYTES) {
        let byte = core::ptr::with_exposed_provenance_mut::<u8>(work.memory + offset);
        // SAFETY: `ring` mapped that much, and nothing else refers to it.
        unsafe { byte.write_volatile(1) };
    }
}

/// A byte written to a pipe and read back by the same process.
fn pipe_self(bench: &Bench, row: &Row) -> Result<(), Problem> {
    let pipe = Pipe::new()?;
    byte_returns(pipe.from, pipe.to)?;
    bench.measure(row, u64::MAX, 1, |rounds| {
        Ok(write_and_read(rounds, pipe.from, pipe.to))
    })
}

/// SIGWINCH to oneself, which is ignored by default.
fn kill_winch(bench: &Bench, row: &Row) -> Result<(), Problem> {
    let pid = sys::getpid();
    done("kill", sys::kill(pid, sys::SIGWINCH))?;
    match sys::kill(pid, 65) {
        Err(Errno::EINVAL) => {}
        Err(errno) => return Err(Problem::Failed("kill with 65", errno)),
        Ok(()) => return Err(Problem::Failed("kill looks at its signal", Errno(0))),
    }
    bench.measure(row, u64::MAX, 0, |rounds| {
        // SAFETY: 1. rounds start at 1; 2. SIGWINCH is ignored by default.
        Ok(unsafe { loops::kill(rounds, sys::int(pid), sys::int(sys::SIGWINCH), 0) })
    })
}

/// Runs `row` while this process is tracked.
fn tracked(bench: &Bench, form: usize, row: impl FnOnce() -> Result<(), Problem>) -> Result<(), Problem> {
    bench.needs_control()?;
    let select = |form| {
        // SAFETY: 1. the stub set is the normal one before and after. 2. `needs_control`. 3. The fault exit stays.
        unsafe { control(control::TRACKING, form) }
    };
    done("turn tracking on", select(form))?;
    let result = row();
    done("turn tracking off", select(control::TRACKING_OFF))?;
    result
}

/// Rounds as an argument of the control call.
fn argument(rounds: u64) -> usize {
    usize::try_from(rounds).unwrap_or(usize::MAX)
}

/// Ticks of `rounds` rounds of the kernel's own loop in ring 0. Only example-os has it.
fn simulate_irqflag(form: usize, rounds: u64) -> Result<u64, Problem> {
    // SAFETY: 1. and 3. the stub set and the fault exit stay. 2. The callers have asked.
    let ticks = unsafe { control(control::IRQFLAG_SIMULATION, form | argument(rounds) << 8) };
    done("flag simulation", ticks).map(|ticks| ticks as u64)
}

/// The text in bytes that CPUID gave, without what pads it.
fn shown(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes).map_or("?", |text| text.trim_matches(['\0', ' ']))
}

/// The kernel's own loop in ring 0, with or without its flag instructions.
///
/// A round there is 20 NOPs, DEC and JNZ, which are the overhead, and the five flag instructions.
fn irqflag(bench: &Bench, row: &Row, form: usize) -> Result<(), Problem> {
    bench.needs_control()?;
    let longer = simulate_irqflag(control::TOGGLED, 256)? > simulate_irqflag(control::UNTOUCHED, 256)?;
    expect("the toggled loop is the longer one", u64::from(longer), 1)?;
    bench.measure(row, u64::MAX, 0, |rounds| {
        // SAFETY: 1. the stub set and the fault exit stay, and `needs_control`.
        let timed = unsafe { loops::kernel_loop(control::IRQFLAG_SIMULATION, form | argument(rounds) << 8) };
        done("flag simulation", timed)
    })
}

/// The same loop in user mode, as it was first done: with IOPL 3, by which a program may execute CLI and STI.
fn irqflag_in_user_mode(bench: &Bench, row: &Row, mut timed: impl FnMut(u64) -> Timed) -> Result<(), Problem> {
    const INTERRUPT_ENABLE: u64 = 1 << 9;
    const IO_PRIVILEGE_LEVEL: u64 = 3 << 12;
    const BOTH: u64 = INTERRUPT_ENABLE | IO_PRIVILEGE_LEVEL;
    bench.needs_control()?;
    let select = |is_privileged| {
        // SAFETY: 1. the stub set is the normal one before and after. 2. `needs_control`. 3. The fault exit stays.
        unsafe { control(control::IO_PRIVILEGE, is_privileged) }
    };
    done("take IOPL 3", select(1))?;
    expect("IF and IOPL before the loop", loops::rflags() & BOTH, BOTH)?;
    // SAFETY: 1. the process has just got it.
    let inside = unsafe { loops::flag_toggled_once() };
    expect(
        "IF and IOPL where interrupts are off",
        inside & BOTH,
        IO_PRIVILEGE_LEVEL,
    )?;
    expect("IF and IOPL after them", loops::rflags() & BOTH, BOTH)?;
    let result = bench.measure(row, u64::MAX, 0, |rounds| Ok(timed(rounds)));
    done("give IOPL 3 back", select(0))?;
    expect("IF and IOPL at the end", loops::rflags() & BOTH, INTERRUPT_ENABLE)?;
    result
}
