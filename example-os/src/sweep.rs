//! An event at every instruction boundary of the entry and exit stubs.
//!
//! A *shot* enters a small program with all registers chosen, lets it cause an [`Event`], injects something else at one
//! instruction boundary of the kernel's way in or out, and compares everything that the program can see afterwards. A
//! *sweep* does that for all boundaries, all events, and user stack pointers and GS bases of every kind. What is tested
//! are the stubs of the running image with [`OsKernel`] behind them: the harness adds a hook where
//! the kernel has no answer, and nothing on its fast paths.
//!
//! | [`Injector`] | how the event comes to the boundary | proves |
//! |---|---|---|
//! | timer | APIC timer, count swept | nothing is let in where RSP or GS is the user's, and what is held back comes later |
//! | timer-nmi | the same with delivery mode NMI: exact where the emulator delivers it (QEMU) | paranoid entry from anywhere |
//! | nmi | sent by the handler of an instruction breakpoint while NMIs are blocked; its IRET lets it in | the same, anywhere |
//! | debug | instruction breakpoint | the same for #DB |
//!
//! Events enter by SYSCALL of 64-bit and, where the CPU has it, of 32-bit code, by SYSENTER with each way of loading the stack, by its
//! stub for 32-bit code and by that for both, through the IDT, and in ring 0. With TF set before SYSENTER the first two injectors
//! meet a kernel that is single-stepped besides.
//!
//! The landing page, through which faults return, is user code of the kernel's making and swept like a stub: with all of these,
//! and with page faults for want of the stack and of the page itself.
//!
//! With KPTI the program is entered on tables of its own, and the kernel's are made useless to it: what comes back on the wrong
//! ones faults. Every handler has to find the kernel's CR3, identifier included.
//!
//! The counts of the first two are instructions, so the machine's clock has to count those: QEMU with `-icount shift=0`,
//! or Bochs. The list of boundaries comes from the archive ([`Listing`]); coverage is reported for each stub.
//!
//! What a sweep can't show: races of two CPUs, and places nobody aims at (those are for storms under real time).

mod exceptions;
mod handler;
mod launch;
pub mod listing;
mod registers;
pub mod stub;
mod victim;

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use entry_core::msr::{Cpu, FsBase, KernelGsBase, Register};
use entry_core::{IrqOff, windows};

use self::exceptions::OWN_ENTRY;
use self::handler::{EVENT_VECTOR, Phase, SHARED, SYSTEM_CALL_VECTOR, Shared, TIMER_VECTOR};
pub use self::listing::Listing;
pub use self::stub::{Exception, Injector, Name, Part, Stub, Stubs};
pub use self::victim::{Base, Event, Set, Stack};
use self::victim::{Page, Start, VECTORS, Victim};
use crate::archive::Archive;
use crate::boot;
use crate::device::apic;
use crate::entry::compat::{self, Kernel32};
use crate::entry::sysenter::{Callee, Callee32, Callee64, CalleeBoth, Way};
use crate::entry::{self, OsKernel, PerCpu, options};
use crate::harness::Suite;
use crate::lock::{Guard, Lock};
use crate::memory::USER_LIMIT;
use crate::println;

/// Where the archive has the boundaries of this image.
const BOUNDARIES: &str = "etc/boundaries";

/// A count that never runs out in one shot.
const SILENT_COUNT: u32 = 1_000_000;

/// Most boundaries that one event passes.
const MOST_ON_PATH: usize = 512;

/// A program that sets TF before SYSENTER is stepped over at least so many instructions of the stub.
const LEAST_STEPS: u32 = 8;

/// Fewest interrupts of a sweep with the timer that say something, of either kind.
const LEAST_INTERRUPTS: u32 = 10_000;

/// Corrupt shots that are described; the others are counted.
const MOST_DESCRIBED: u32 = 8;

/// The stubs: too large for a stack.
static STUBS: Lock<Stubs> = Lock::new(Stubs::new());

/// The harness. There is one, since there is one CPU.
#[derive(Debug)]
pub struct Sweep {
    set: Set,
    irq: IrqOff,
    victim: Victim,
    stubs: Guard<'static, Stubs>,
    /// Whether the timer can deliver NMIs here, so that one shows where a count leads.
    has_timer_nmi: bool,
    /// Boundaries that the event passes.
    path: [u64; MOST_ON_PATH],
    path_length: usize,
    corrupt: u32,
    shots: u32,
    /// Timer interrupts that were let in during shots: with interrupts off at SYSCALL, and on.
    tallies: [Tally; 2],
    /// Whether the lower half of the injected interrupt takes another one.
    nests: bool,
    /// Page faults in the landing page.
    landing_faults: u32,
}

/// How many timer interrupts were let in, and where.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    in_windows: u32,
    in_kernel: u32,
    in_user_mode: u32,
    nested: u32,
}

impl Tally {
    /// Adds what arrived in a shot.
    fn add(&mut self, shared: &Shared) {
        if shared.during.count() == 0 {
            return;
        }
        let place = shared.during.last();
        if place < USER_LIMIT {
            self.in_user_mode += 1;
        } else if windows::find_irqs_on(place).is_some() {
            self.in_windows += 1;
        } else {
            self.in_kernel += 1;
        }
        self.nested += shared.nested.count();
    }

    /// Those that were injected.
    const fn total(&self) -> u32 {
        self.in_windows + self.in_kernel + self.in_user_mode
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            in_windows,
            in_kernel,
            in_user_mode,
            nested,
        } = self;
        let total = self.total();
        write!(
            f,
            "{total} interrupts, {in_windows} in windows, {in_kernel} elsewhere in the kernel, {in_user_mode} in user mode; \
             {nested} inside them"
        )
    }
}

/// What is done to the victim in a shot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Injection {
    /// Nothing.
    None,
    /// A timer interrupt after so many instructions.
    Timer(u32),
    /// An NMI after so many instructions.
    TimerNmi(u32),
    /// #DB at this address.
    Debug(u64),
    /// #DB and then an NMI at this address.
    Nmi(u64),
    /// #DB at this address, and then a page fault of that instruction for want of the page.
    Fault(u64, Page),
}

/// What is the same for the shots of a sweep.
#[derive(Clone, Copy, Debug)]
struct Scene {
    event: Event,
    stack: Stack,
    base: Base,
}

impl Scene {
    /// Whether it is the first of its event: the path is the same in the others.
    fn is_first(self) -> bool {
        self.stack == Stack::ALL[0] && self.base == Base::ALL[0]
    }
}

impl Sweep {
    /// Makes the harness of a machine on which [`entry::install`] has just been called. It keeps the idle thread's
    /// address space and stacks for itself, so nothing else can run afterwards.
    ///
    /// # Panics
    ///
    /// If the archive lacks the list of boundaries or has another image's, and if memory runs out.
    #[must_use]
    pub fn new(set: Set, archive: &Archive<'static>, irq: IrqOff) -> Self {
        let file = archive.find(BOUNDARIES).unwrap_or_else(|error| panic!("{error}"));
        let file = file.unwrap_or_else(|| panic!("the archive has no {BOUNDARIES}"));
        let text = str::from_utf8(file).unwrap_or_else(|error| panic!("{BOUNDARIES}: {error}"));
        let listing = Listing::new(text);
        let mut stubs = STUBS.lock();
        for &event in set.events() {
            stubs.add_function(&listing, set.syscall_entry(event).address());
        }
        for vector in VECTORS {
            let slot_bytes = entry_core::vector::SLOT_BYTES;
            let slot = set.vector_stubs() + u64::from(vector) * slot_bytes;
            stubs.add_slot(&listing, Name::Slot(vector), slot, slot_bytes);
        }
        let is_usual = set == Set::Usual;
        for vector in [EVENT_VECTOR, SYSTEM_CALL_VECTOR].into_iter().filter(|_| is_usual) {
            let slot_bytes = entry_core::vector::SLOT_BYTES;
            let slot = entry::irqs_on_vector_stubs() + u64::from(vector) * slot_bytes;
            stubs.add_slot(&listing, Name::IrqsOnSlot(vector), slot, slot_bytes);
        }
        let victim = Victim::new(set, &irq);
        let cpu = PerCpu::current(&irq);
        if is_usual && cpu.has_sysenter(&irq) {
            for way in Way::ALL {
                let address = install::<Callee64<OsKernel>>(cpu, way, &irq);
                if way.instructions().is_empty() {
                    stubs.add_function(&listing, address);
                } else {
                    stubs.add_trampoline(&listing, way, address);
                }
            }
            for address in [
                install::<Callee32<Kernel32>>(cpu, Way::FromHeader, &irq),
                install::<CalleeBoth<Kernel32>>(cpu, Way::FromHeader, &irq),
            ] {
                stubs.add_function(&listing, address);
            }
        }
        if is_usual && Event::Syscall32.is_possible(cpu, &irq) {
            stubs.add_function(&listing, compat::syscall_entry());
        }
        stubs.add_landing(victim.landing().address());
        SHARED
            .header
            .store(core::ptr::from_ref(PerCpu::current(&irq)).addr() as u64, Relaxed);
        SHARED.cr3.store(victim.cr3(), Relaxed);
        entry::set_kernel_hook(Some(handler::handle));
        Self {
            set,
            irq,
            victim,
            stubs,
            has_timer_nmi: can_timer_send_nmi(),
            path: [0; MOST_ON_PATH],
            path_length: 0,
            corrupt: 0,
            shots: 0,
            tallies: [Tally::default(); 2],
            nests: false,
            landing_faults: 0,
        }
    }

    /// Whether this machine has what the injector needs.
    #[must_use]
    pub fn can_inject(&self, injector: Injector) -> bool {
        injector != Injector::TimerNmi || self.has_timer_nmi
    }

    /// Sweeps with all injectors that the machine has, as [`Sweep::run`] does.
    #[must_use]
    pub fn run_all(&mut self) -> bool {
        let mut is_good = true;
        for injector in Injector::ALL {
            if self.can_inject(injector) {
                is_good &= self.run(injector);
            }
        }
        is_good
    }

    /// Sweeps with one injector over all events, stacks and bases. Prints a line of coverage for each stub. Returns whether
    /// every boundary was hit that is not excepted, no excepted one was, and no shot was corrupt.
    #[must_use]
    pub fn run(&mut self, injector: Injector) -> bool {
        self.corrupt = 0;
        self.shots = 0;
        self.tallies = [Tally::default(); 2];
        self.landing_faults = 0;
        for &event in self.set.events() {
            let cpu = PerCpu::current(&self.irq);
            if !event.is_possible(cpu, &self.irq) {
                continue;
            }
            if event.has_stub_for_both() {
                install::<CalleeBoth<Kernel32>>(cpu, Way::FromHeader, &self.irq);
            } else if let Some(way) = event.sysenter_way() {
                install::<Callee64<OsKernel>>(cpu, way, &self.irq);
            }
            for stack in Stack::ALL {
                for base in Base::ALL {
                    let scene = Scene { event, stack, base };
                    if scene.is_first() || (event.has_scene(stack, base) && self.set.has_scene(stack, base)) {
                        self.sweep(injector, scene);
                    }
                }
            }
        }
        println!(
            "[sweep] injector={} shots={} corrupt={}",
            injector.name(),
            self.shots,
            self.corrupt
        );
        let rows = exceptions::rows(self.set, injector, !self.has_timer_nmi);
        let is_covered = self.stubs.report(injector, rows, self.corrupt);
        // No other set has windows with interrupts on.
        let has_windows = self.set == Set::Usual;
        let is_let_in = injector != Injector::Timer
            || !has_windows
            || (self.stubs.report_delivered(&exceptions::NEVER_LET_IN) & self.report_interrupts());
        let is_faulted = injector != Injector::Debug || self.report_landing_faults();
        is_covered && is_let_in && is_faulted && self.corrupt == 0
    }

    /// Prints how many page faults there were in the landing page. Returns whether there was one for each of its instructions
    /// that a breakpoint has hit and each page that it needs, in all scenes that come by.
    fn report_landing_faults(&self) -> bool {
        let instructions = self.stubs.landing_hits(Injector::Debug) as usize;
        let all = instructions * Page::ALL.len() * Base::ALL.len();
        println!(
            "[sweep] {} page faults in the landing page, of {all}",
            self.landing_faults
        );
        self.landing_faults as usize == all && all > 0
    }

    /// Sweeps with the timer, whose interrupts take another one each, where they have a lower half.
    ///
    /// Returns what [`Sweep::run`] does.
    #[must_use]
    pub fn run_nested(&mut self) -> bool {
        self.nests = true;
        entry::set_lower_half(Some(handler::take_another));
        let is_good = self.run(Injector::Timer);
        entry::set_lower_half(None);
        self.nests = false;
        is_good
    }

    /// Prints how many interrupts were let in, and where. Returns whether they are enough.
    fn report_interrupts(&self) -> bool {
        for (tally, name) in self.tallies.iter().zip(["off", "on"]) {
            println!("[sweep] interrupts {name} at SYSCALL: {tally}");
        }
        self.tallies.iter().all(|tally| tally.total() >= LEAST_INTERRUPTS)
    }

    fn sweep(&mut self, injector: Injector, scene: Scene) {
        match injector {
            Injector::Timer | Injector::TimerNmi => self.sweep_counts(injector, scene),
            Injector::Nmi | Injector::Debug => self.sweep_boundaries(injector, scene),
        }
    }

    /// One shot for each count from 1 to the length of the undisturbed victim, or for every so many that the event says.
    fn sweep_counts(&mut self, injector: Injector, scene: Scene) {
        // The second time, page tables are there.
        self.shoot(scene, Injection::None);
        self.shoot(scene, Injection::None);
        let length = SILENT_COUNT - SHARED.remainder.load(Relaxed);
        // The event may be an NMI itself.
        let is_nmi = scene.event == Event::UserNmi;
        let usual = u32::from(is_nmi);
        let mut exact = 0;
        for count in (1..=length).step_by(scene.event.stride()) {
            if injector == Injector::TimerNmi || (self.has_timer_nmi && scene.is_first() && !is_nmi) {
                self.shoot(scene, Injection::TimerNmi(count));
                if SHARED.nmis.count() > usual {
                    self.stubs.hit(injector, SHARED.nmis.last());
                }
            }
            if injector == Injector::Timer {
                self.shoot(scene, Injection::Timer(count));
                self.stubs.deliver(SHARED.timers.last());
                exact += u32::from(SHARED.timers.last() == SHARED.first.load(Relaxed));
            }
        }
        if injector == Injector::Timer {
            if scene.is_first() && (!self.has_timer_nmi || is_nmi) {
                self.hit_path(scene);
            }
            if scene.event == Event::KernelInvalidOpcode && exact != 1 {
                println!("[sweep] the timer interrupted one instruction for {exact} counts: it does not count them");
                self.corrupt += 1;
            }
        }
    }

    /// Notes the timer as raised at all boundaries on the victim's path, since there was one count for each instruction
    /// of it; breakpoints tell which those are.
    fn hit_path(&mut self, scene: Scene) {
        self.sweep_boundaries(Injector::Debug, scene);
        for index in 0..self.path_length {
            self.stubs.hit(Injector::Timer, self.path[index]);
        }
    }

    /// One shot for each boundary of each stub; in all scenes of an event but the first, only for those on the path of the
    /// first.
    fn sweep_boundaries(&mut self, injector: Injector, scene: Scene) {
        // The event's #DB and the injected one would share a stack; and IRET into the victim would unblock NMIs.
        if scene.event.is_debug() || (scene.event == Event::UserNmi && injector == Injector::Nmi) {
            return;
        }
        if !scene.is_first() {
            for index in 0..self.path_length {
                let _is_hit = self.shoot_at(injector, scene, self.path[index]);
            }
            return;
        }
        self.path_length = 0;
        for stub in 0..self.stubs.all().len() {
            for index in 0..self.stubs.all()[stub].instructions().len() {
                if self.stubs.all()[stub].is_part_of(index, &OWN_ENTRY) {
                    continue;
                }
                let address = self.stubs.all()[stub].instructions()[index].address;
                if self.shoot_at(injector, scene, address) {
                    self.path[self.path_length] = address;
                    self.path_length += 1;
                }
            }
        }
    }

    /// One shot at one boundary. Returns whether the victim came by.
    fn shoot_at(&mut self, injector: Injector, scene: Scene, address: u64) -> bool {
        let arrivals = if injector == Injector::Debug {
            self.shoot(scene, Injection::Debug(address));
            &SHARED.breakpoints
        } else {
            self.shoot(scene, Injection::Nmi(address));
            &SHARED.nmis
        };
        let is_hit = arrivals.count() > 0;
        if is_hit {
            self.stubs.hit(injector, arrivals.last());
        }
        if is_hit && injector == Injector::Debug && self.stubs.is_landing(address) {
            for page in Page::ALL {
                self.shoot(scene, Injection::Fault(address, page));
                self.landing_faults += u32::from(SHARED.faults.last() == address);
            }
        }
        is_hit
    }

    /// One shot.
    fn shoot(&mut self, scene: Scene, injection: Injection) {
        let Scene { event, stack, base } = scene;
        let start = self.victim.start(self.set, event, stack, base, &self.irq);
        let shared = &SHARED;
        shared.clear();
        shared.end.store(start.end, Relaxed);
        shared.first.store(start.frame.rip(), Relaxed);
        shared.event.store(start.event, Relaxed);
        shared.breaks_return.store(event == Event::BadIret, Relaxed);
        let (target, sends_nmi) = match injection {
            Injection::Debug(address) => (address, false),
            Injection::Nmi(address) => (address, true),
            Injection::Fault(address, _) => (address, false),
            _ => (0, false),
        };
        shared.takes_page.store(
            match injection {
                Injection::Fault(_, page) => page as u8,
                _ => 0,
            },
            Relaxed,
        );
        shared.target.store(target, Relaxed);
        shared.sends_nmi.store(sends_nmi, Relaxed);
        if sends_nmi || event == Event::UserNmi {
            block_nmi(&self.irq);
        }
        if event == Event::UserNmi {
            apic::send_nmi_to_self();
        }
        if let Some(vector) = event.pending_vector() {
            apic::send_to_self(vector);
        }
        // SAFETY: 1. this is the kernel. 2. It is a user address. 3. The kernel does not use FS.
        unsafe { FsBase::from_bits(start.fs_base).write(&mut Cpu) };
        // SAFETY: 1. as above. 2. It is canonical. 3. It is the user's until SWAPGS.
        unsafe { KernelGsBase::from_bits(start.gs_base).write(&mut Cpu) };
        victim::load_stack_segment();
        let cpu = PerCpu::current(&self.irq);
        cpu.take_syscall_entry(self.set.syscall_entry(event), &self.irq);
        shared.sets_work.store(!event.is_in_kernel(), Relaxed);
        if event.has_work() {
            cpu.set_work_pending();
        }
        shared.arm_breakpoints();
        shared.set_phase(Phase::Shot);
        match injection {
            Injection::Timer(count) => apic::timer_one_shot(TIMER_VECTOR, count),
            Injection::TimerNmi(count) => apic::timer_nmi(count),
            _ => apic::timer_silent(SILENT_COUNT),
        }
        // SAFETY: 1. Interrupts are off by `self.irq`, the victim's stacks were set and are not in use. 2. `start` made the
        // frame for this event. 3. The hook ends the shot at the INT3 behind the event, and resumes whatever comes before.
        // 4. `start` says which, and the stubs are those of the set.
        unsafe {
            launch::launch(
                launch::place(&start.frame),
                shared.saved.as_ptr(),
                event.launch(),
                start.tables,
            );
        };
        // SAFETY: the shot is over and interrupts are expected: one that came too late for the victim.
        unsafe { launch::let_interrupts_in() };
        if sends_nmi {
            // SAFETY: this is the kernel.
            unsafe { launch::unblock_nmi() };
        }
        shared.set_phase(Phase::Idle);
        self.shots += 1;
        self.tallies[usize::from(event.has_irqs_on())].add(shared);
        self.judge(scene, injection, &start);
    }

    /// Compares what the victim had at the end with what it was to have.
    fn judge(&mut self, scene: Scene, injection: Injection, start: &Start) {
        let shared = &SHARED;
        let seen = shared.registers();
        let is_good = seen == start.wanted;
        let is_stack_good = start.is_stack_untouched();
        let is_memory_good = !scene.event.demands_page()
            || self
                .victim
                .reset_demand_page(start.frame.rax().to_le_bytes()[0], &self.irq);
        let timers = u32::from(matches!(injection, Injection::Timer(_)));
        // One that had not been raised by the end of the shot need not come.
        let is_late = shared.timers.count() == 0 && shared.remainder.load(Relaxed) > 0;
        let are_timers_good = shared.timers.count() == timers || is_late;
        // A maskable interrupt in a stub is one that was let in where RSP or GS may be the user's: in one stub by intent.
        let place = shared.timers.last();
        let is_place_good = timers == 0
            || !self.stubs.contains(place)
            || self.stubs.is_landing(place)
            || (scene.event.has_irqs_on() && self.stubs.lets_interrupts_in(place));
        // One in a window has no lower half, and one that came too late has no need of it.
        let takes_another = self.nests && shared.during.count() == 1 && windows::find_irqs_on(place).is_none();
        let are_nested_good = shared.nested.count() == u32::from(takes_another);
        let is_work_done = shared.lost.count() == 0;
        let are_flags_good = shared.dirty.count() == 0;
        let is_base_good = shared.foreign.count() == 0;
        let are_tables_good = shared.strayed.count() == 0;
        let are_events_good = shared.events.count() == scene.event.arrivals()
            && (scene.event != Event::UserNmi || shared.nmis.count() > 0)
            && shared.returns.count() == u32::from(scene.event == Event::BadIret)
            && (shared.steps.count() >= LEAST_STEPS) == scene.event.is_stepped()
            && shared.faults.count() == u32::from(matches!(injection, Injection::Fault(..)));
        if is_good
            && is_stack_good
            && is_memory_good
            && are_timers_good
            && is_place_good
            && are_nested_good
            && is_work_done
            && are_flags_good
            && is_base_good
            && are_tables_good
            && are_events_good
        {
            return;
        }
        self.corrupt += 1;
        if self.corrupt > MOST_DESCRIBED {
            return;
        }
        println!(
            "[sweep] corrupt: {scene:?} {injection:x?}:{}",
            seen.differences(&start.wanted)
        );
        println!(
            "[sweep]   stack untouched {is_stack_good}, work done {is_work_done}, store seen {is_memory_good}, timer interrupts {} last at {:#x} and {} inside, \
             flags left on {:#x}, foreign GS base {:#x}, strayed CR3 {:#x}, events {}, failed returns {}",
            shared.timers.count(),
            shared.timers.last(),
            shared.nested.count(),
            shared.dirty.last(),
            shared.foreign.last(),
            shared.strayed.last(),
            shared.events.count(),
            shared.returns.count(),
        );
    }
}

/// Lets SYSENTER lead to `C`, on a CPU that has it. Returns where it leads to.
fn install<C: Callee>(cpu: &PerCpu, way: Way, irq: &IrqOff) -> u64 {
    let installed = cpu.install_sysenter::<C>(way, irq);
    installed.unwrap_or_else(|error| panic!("SYSENTER: {error}"));
    cpu.sysenter_entry(irq).expect("it was just installed")
}

/// Sweeps over a set of stubs, on a machine that has just booted.
fn of_set(set: Set) -> Sweep {
    let archive = boot::info()
        .archive
        .expect("an archive with the boundaries of this image");
    Sweep::new(set, &Archive::new(archive), entry::install())
}

impl Suite for Sweep {
    fn set_up() -> Self {
        of_set(Set::Usual)
    }
}

/// Sweeps over [`Set::Guarded`], where the CPU has it.
#[derive(Debug)]
pub struct GuardedSweep(Option<Sweep>);

impl GuardedSweep {
    /// [`Sweep::run`]; `None` if the CPU has no such set.
    pub fn run(&mut self, injector: Injector) -> Option<bool> {
        self.0.as_mut().map(|sweep| sweep.run(injector))
    }
}

impl Suite for GuardedSweep {
    fn set_up() -> Self {
        Self(boot::cpu::features().fsgsbase.then(|| of_set(Set::Guarded)))
    }
}

/// Sweeps over [`Set::Split`].
#[derive(Debug)]
pub struct SplitSweep(Sweep);

impl SplitSweep {
    /// As [`Sweep::run`].
    #[must_use]
    pub fn run(&mut self, injector: Injector) -> bool {
        self.0.run(injector)
    }
}

impl Suite for SplitSweep {
    fn set_up() -> Self {
        Self(of_set(Set::Split))
    }
}

/// Sweeps over [`Set::SplitWithPcid`], where the CPU has it.
#[derive(Debug)]
pub struct PcidSweep(Option<Sweep>);

impl PcidSweep {
    /// [`Sweep::run`]; `None` if the CPU has no such set.
    pub fn run(&mut self, injector: Injector) -> Option<bool> {
        self.0.as_mut().map(|sweep| sweep.run(injector))
    }
}

impl Suite for PcidSweep {
    fn set_up() -> Self {
        Self(options::has_pcid().then(|| of_set(Set::SplitWithPcid)))
    }
}

/// Takes an NMI and leaves its handler without IRET: from here on NMIs are blocked.
fn block_nmi(irq: &IrqOff) {
    SHARED.set_phase(Phase::Block);
    // SAFETY: 1. The harness runs with interrupts off. 2. The phase makes the handler come back.
    unsafe { launch::take_nmi(SHARED.saved.as_ptr()) };
    entry::abandon_nmi(irq);
}

/// Whether this machine's APIC timer can deliver NMIs.
fn can_timer_send_nmi() -> bool {
    /// More instructions than the NMI takes.
    const PATIENCE: u32 = 1000;
    SHARED.clear();
    SHARED.set_phase(Phase::Shot);
    apic::timer_nmi(PATIENCE / 10);
    for _ in 0..PATIENCE {
        core::hint::spin_loop();
    }
    apic::timer_stop();
    SHARED.set_phase(Phase::Idle);
    SHARED.nmis.count() == 1
}
