//! All registers of the system-call instructions as one value: plan, install, read back.
//!
//! [`SyscallPlan::new`] computes every image from the layout, the flag mask, the entry points and the CPU, and touches
//! no hardware, so it is tested and printed on the host. [`SyscallPlan::install`] writes the images in an order in
//! which no half of the set-up can be used: SYSCALL is enabled last, after what it uses was written and read back.
//!
//! The token [`Installed`] says that this was done on this CPU. A CPU that was never set up (an application processor,
//! or one that came back from suspend) has EFER.SCE clear, and SYSCALL is #UD there; or worse, SCE set and LSTAR 0.
//!
//! # Source
//!
//! Intel SDM vol. 3A, *Performing Fast Calls to System Procedures with the SYSENTER and SYSEXIT Instructions*, *Fast
//! System Calls in 64-Bit Mode*; AMD APM vol. 2, *Fast System Call and Return*.

use core::error::Error;
use core::fmt;
use core::marker::PhantomData;

use static_assertions::assert_not_impl_any;

use crate::address::{AddressError, Width};
use crate::cpu::CpuFeatures;
use crate::guard::guard;
use crate::msr::{Cstar, Efer, Fmask, Lstar, Msr, Register, Star, SysenterCs, SysenterEip, SysenterEsp, TscAux};
use crate::rflags::FlagMask;
use crate::segment::SegmentLayout;

/// Where the system-call instructions enter the kernel on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryPoints {
    /// The stub for SYSCALL from 64-bit code; `None` in a kernel that uses INT 0x80 alone.
    pub syscall: Option<u64>,
    /// The stub for SYSCALL from compatibility mode. Where the CPU has that instruction (AMD), it must be given.
    pub syscall32: Option<u64>,
    /// The stub for SYSENTER and its stack; `None` turns SYSENTER off.
    pub sysenter: Option<SysenterEntry>,
    /// The number of the CPU, for `TSC_AUX`.
    pub cpu_number: u32,
}

/// Where SYSENTER enters the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysenterEntry {
    /// The stub.
    pub entry: u64,
    /// RSP on entry.
    pub stack: u64,
}

/// One register of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    number: u32,
    name: &'static str,
    action: Action,
}

/// What a plan does with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Gives it this value.
    Write {
        /// The 64 bits.
        value: u64,
    },
    /// Gives some bits a value and leaves the others as they are.
    Update {
        /// The bits.
        bits: u64,
        /// Which of them become 1.
        value: u64,
    },
    /// Leaves it alone.
    Skip {
        /// Why.
        reason: &'static str,
    },
}

impl Row {
    const fn new(number: u32, name: &'static str, action: Action) -> Self {
        Self { number, name, action }
    }

    /// The register number.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// The manual's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What the plan does with it.
    #[must_use]
    pub const fn action(&self) -> Action {
        self.action
    }

    /// Whether a value read from the register is what the plan wants.
    #[must_use]
    pub const fn agrees(&self, found: u64) -> bool {
        match self.action {
            Action::Write { value } => found == value,
            Action::Update { bits, value } => found & bits == value,
            Action::Skip { .. } => true,
        }
    }

    /// # Safety
    ///
    /// Those of [`Msr::write`] for this row.
    unsafe fn write(&self, msrs: &mut impl Msr) {
        let value = match self.action {
            Action::Write { value } => value,
            Action::Update { bits, value } => {
                // SAFETY: the caller's: the register exists and CPL is 0.
                let old = unsafe { msrs.read(self.number) };
                old & !bits | value
            }
            Action::Skip { .. } => return,
        };
        // SAFETY: the caller's. Bits outside an update are those that were read.
        unsafe { msrs.write(self.number, value) }
    }

    /// The value, if it is not what was wanted.
    ///
    /// # Safety
    ///
    /// Those of [`Msr::read`] for this row.
    unsafe fn verify(&self, msrs: &mut impl Msr) -> Result<(), InstallError> {
        let planned = match self.action {
            Action::Write { value } | Action::Update { value, .. } => value,
            Action::Skip { .. } => return Ok(()),
        };
        // SAFETY: the caller's.
        let found = unsafe { msrs.read(self.number) };
        if guard!("read-back", !self.agrees(found)) {
            return Err(InstallError::ReadBack {
                number: self.number,
                name: self.name,
                planned,
                found,
            });
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<12} {:#010x}  ", self.name, self.number)?;
        match self.action {
            Action::Write { value } => write!(f, "{value:#018x}"),
            Action::Update { bits, value } => write!(f, "{value:#018x} in bits {bits:#x}"),
            Action::Skip { reason } => write!(f, "not written: {reason}"),
        }
    }
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// An address was refused.
    Address {
        /// The register that it was meant for.
        register: &'static str,
        /// Why.
        error: AddressError,
    },
    /// The CPU has no SYSCALL.
    NoSyscall,
    /// [`EntryPoints::syscall32`] is missing on a CPU where programs can get there.
    NoCompatibilityEntry,
    /// The CPU can't translate addresses of that width.
    Width {
        /// The width given.
        width: Width,
        /// What the CPU has.
        widest: Width,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { register, error } => write!(f, "{register}: {error}"),
            Self::NoSyscall => write!(
                f,
                "lstar: the cpu has no syscall instruction, wanted no syscall entry point"
            ),
            Self::NoCompatibilityEntry => {
                write!(
                    f,
                    "cstar: syscall works in compatibility mode on this cpu, wanted a syscall32 entry point"
                )
            }
            Self::Width { width, widest } => {
                write!(
                    f,
                    "address width is {} bits, wanted at most {}",
                    width.bits(),
                    widest.bits()
                )
            }
        }
    }
}

impl Error for PlanError {}

/// Why the registers are not as planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallError {
    /// A register holds another value than was written. SYSCALL was not enabled, unless it was before.
    ReadBack {
        /// The register.
        number: u32,
        /// Its name.
        name: &'static str,
        /// What was written.
        planned: u64,
        /// What was read.
        found: u64,
    },
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadBack {
                number,
                name,
                planned,
                found,
            } => {
                write!(f, "{name} ({number:#x}) reads {found:#018x}, wanted {planned:#018x}")
            }
        }
    }
}

impl Error for InstallError {}

/// Proof that the system-call registers of this CPU were written and read back.
///
/// The one way to user mode that no entry came before, [`return_to_user`](crate::stub::return_to_user), demands one. It
/// stays on its CPU, as the registers do: it is neither `Copy` nor `Send`, so a kernel keeps it with what belongs to the CPU.
///
/// ```
/// # use entry_core::plan::Installed;
/// # use entry_core::{IrqOff, TrapFrame};
/// # use entry_core::stub::StubTable;
/// fn first_entry(stubs: &StubTable, frame: &mut TrapFrame, irq: IrqOff, installed: &Installed) {
///     // SAFETY: this function is not called.
///     unsafe { (stubs.return_to_user)(frame, irq, installed) }
/// }
/// ```
///
/// A kernel that never installed anything has nothing to pass:
///
/// ```compile_fail,E0061
/// # use entry_core::plan::Installed;
/// # use entry_core::{IrqOff, TrapFrame};
/// # use entry_core::stub::StubTable;
/// fn first_entry(stubs: &StubTable, frame: &mut TrapFrame, irq: IrqOff) {
///     // SAFETY: this function is not called.
///     unsafe { (stubs.return_to_user)(frame, irq) }
/// }
/// ```
///
/// and can't make one:
///
/// ```compile_fail,E0603
/// let installed = entry_core::plan::Installed(core::marker::PhantomData);
/// ```
#[derive(Debug)]
#[must_use = "entering user mode demands it"]
pub struct Installed(PhantomData<*mut ()>);

assert_not_impl_any!(Installed: Copy, Clone, Send, Sync);

impl Installed {
    /// States that this CPU was set up by other means.
    ///
    /// # Safety
    ///
    /// 1. For each system-call instruction that a program can execute on this CPU without #UD or #GP, its entry point, stack,
    ///    selectors and flag mask are right.
    /// 2. They stay so while the value exists.
    pub const unsafe fn assume() -> Self {
        Self(PhantomData)
    }
}

/// The images of the system-call registers of one CPU, in the order in which they are written.
///
/// ```
/// use entry_core::address::Width;
/// use entry_core::cpu::{CpuFeatures, Vendor};
/// use entry_core::msr::FakeMsrs;
/// use entry_core::plan::{EntryPoints, SyscallPlan};
/// use entry_core::rflags::FlagMask;
/// use entry_core::segment::SegmentLayout;
///
/// let mut cpu = CpuFeatures::from_cpuid(|_, _| Default::default());
/// cpu.vendor = Vendor::Intel;
/// cpu.syscall = true;
/// let entries = EntryPoints { syscall: Some(0xffff_ffff_8010_0000), ..Default::default() };
/// let plan = SyscallPlan::new(&SegmentLayout::NATURAL, FlagMask::REQUIRED, &entries, &cpu, Width::Bits48)?;
/// println!("{plan}");
///
/// let mut msrs = FakeMsrs::new(); // `Cpu` in a kernel
/// // SAFETY: a fake has every register and controls nothing.
/// let installed = unsafe { plan.install(&mut msrs) }?;
/// # drop(installed);
/// assert_eq!(msrs.get(0xc000_0080), 1); // EFER.SCE
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// prints
///
/// ```text
/// LSTAR        0xc0000082  0xffffffff80100000
/// CSTAR        0xc0000083  not written: unused on this CPU
/// FMASK        0xc0000084  0x0000000000257fd5
/// STAR         0xc0000081  0x001b000800000000
/// SYSENTER_ESP 0x00000175  not written: no SYSENTER on this CPU
/// SYSENTER_EIP 0x00000176  not written: no SYSENTER on this CPU
/// SYSENTER_CS  0x00000174  not written: no SYSENTER on this CPU
/// TSC_AUX      0xc0000103  not written: no RDTSCP, no RDPID
/// EFER         0xc0000080  0x0000000000000001 in bits 0x1
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallPlan {
    /// All but EFER.
    rows: [Row; 8],
    efer: Row,
}

impl SyscallPlan {
    /// Computes the plan.
    ///
    /// `width` is that of the paging mode in use. Addresses are refused rather than changed. What the CPU lacks is skipped,
    /// and the row says so; in particular SYSENTER on AMD, whose registers hold 32 bits: it is #UD there in long mode,
    /// and the registers are set to 0. EFER keeps all bits but SCE and, where the CPU has it, NXE, which is set.
    ///
    /// # Errors
    ///
    /// [`PlanError`].
    pub fn new(
        layout: &SegmentLayout,
        mask: FlagMask,
        entries: &EntryPoints,
        cpu: &CpuFeatures,
        width: Width,
    ) -> Result<Self, PlanError> {
        if guard!("address-width", width > cpu.widest()) {
            return Err(PlanError::Width {
                width,
                widest: cpu.widest(),
            });
        }
        let [lstar, cstar, fmask, star] = Self::syscall_actions(layout, mask, entries, cpu, width)?;
        let [esp, eip, cs] = Self::sysenter_actions(layout, entries, cpu, width)?;
        let tsc_aux = if cpu.has_tsc_aux() {
            write_of(TscAux::new(entries.cpu_number))
        } else {
            Action::Skip {
                reason: "no RDTSCP, no RDPID",
            }
        };

        let mut bits = Efer::SYSTEM_CALL_ENABLE;
        let mut value = Efer::empty();
        if cpu.nx {
            bits |= Efer::NO_EXECUTE_ENABLE;
            value |= Efer::NO_EXECUTE_ENABLE;
        }
        if entries.syscall.is_some() {
            value |= Efer::SYSTEM_CALL_ENABLE;
        }
        let efer = if cpu.syscall || cpu.nx {
            Action::Update {
                bits: bits.bits(),
                value: value.bits(),
            }
        } else {
            Action::Skip {
                reason: "no SYSCALL, no NX",
            }
        };

        Ok(Self {
            rows: [
                row_of::<Lstar>(lstar),
                row_of::<Cstar>(cstar),
                row_of::<Fmask>(fmask),
                row_of::<Star>(star),
                row_of::<SysenterEsp>(esp),
                row_of::<SysenterEip>(eip),
                row_of::<SysenterCs>(cs),
                row_of::<TscAux>(tsc_aux),
            ],
            efer: row_of::<Efer>(efer),
        })
    }

    /// LSTAR, CSTAR, FMASK, STAR.
    fn syscall_actions(
        layout: &SegmentLayout,
        mask: FlagMask,
        entries: &EntryPoints,
        cpu: &CpuFeatures,
        width: Width,
    ) -> Result<[Action; 4], PlanError> {
        let Some(entry) = entries.syscall else {
            return Ok([Action::Skip {
                reason: "SYSCALL is off",
            }; 4]);
        };
        if !cpu.syscall {
            return Err(PlanError::NoSyscall);
        }
        let lstar = Lstar::new(entry, width).map_err(|error| PlanError::Address {
            register: Lstar::NAME,
            error,
        })?;
        let cstar = match entries.syscall32 {
            Some(entry) => {
                let cstar = Cstar::new(entry, width).map_err(|error| PlanError::Address {
                    register: Cstar::NAME,
                    error,
                })?;
                write_of(cstar)
            }
            None if guard!("missing-compatibility-entry", cpu.has_syscall_in_compatibility_mode()) => {
                return Err(PlanError::NoCompatibilityEntry);
            }
            None => Action::Skip {
                reason: "unused on this CPU",
            },
        };
        Ok([
            write_of(lstar),
            cstar,
            write_of(Fmask::new(mask)),
            write_of(Star::new(layout)),
        ])
    }

    /// `SYSENTER_ESP`, `SYSENTER_EIP`, `SYSENTER_CS`.
    fn sysenter_actions(
        layout: &SegmentLayout,
        entries: &EntryPoints,
        cpu: &CpuFeatures,
        width: Width,
    ) -> Result<[Action; 3], PlanError> {
        if !cpu.sep {
            return Ok([Action::Skip {
                reason: "no SYSENTER on this CPU",
            }; 3]);
        }
        let off = [
            write_of(SysenterEsp::UNUSED),
            write_of(SysenterEip::UNUSED),
            write_of(SysenterCs::DISABLED),
        ];
        let Some(SysenterEntry { entry, stack }) = entries.sysenter else {
            return Ok(off);
        };
        let esp = SysenterEsp::new(stack, width).map_err(|error| PlanError::Address {
            register: SysenterEsp::NAME,
            error,
        })?;
        let eip = SysenterEip::new(entry, width).map_err(|error| PlanError::Address {
            register: SysenterEip::NAME,
            error,
        })?;
        if guard!("sysenter-on-amd", !cpu.has_sysenter_in_long_mode()) {
            return Ok(off);
        }
        Ok([write_of(esp), write_of(eip), write_of(SysenterCs::new(layout))])
    }

    /// The rows, in the order in which they are written.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().chain([&self.efer])
    }

    /// Whether programs on this CPU may use SYSCALL.
    #[must_use]
    pub const fn has_syscall(&self) -> bool {
        matches!(self.efer.action, Action::Update { value, .. } if value & Efer::bits(&Efer::SYSTEM_CALL_ENABLE) != 0)
    }

    /// Whether programs on this CPU may use SYSENTER.
    #[must_use]
    pub fn has_sysenter(&self) -> bool {
        self.rows()
            .any(|row| row.number == SysenterCs::NUMBER && matches!(row.action, Action::Write { value } if value != 0))
    }

    /// Writes the registers of this CPU and reads them back. EFER comes last, and only if the others agree.
    ///
    /// # Errors
    ///
    /// [`InstallError::ReadBack`]: an emulator or hypervisor dropped a bit, or the plan was made for another CPU.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0, and the plan was made from the features of the CPU behind `msrs`.
    /// 2. The entry points are stubs that expect the layout and the mask of the plan, mapped in every address space.
    /// 3. The CPU's GDT agrees with the layout ([`SegmentLayout::check_gdt`]).
    /// 4. If `msrs` is not this CPU's, the token is used for nothing.
    pub unsafe fn install(&self, msrs: &mut impl Msr) -> Result<Installed, InstallError> {
        for row in &self.rows {
            // SAFETY: the register exists by 1 (rows of others are `Skip`), its value was checked when the plan was
            // made, and 2 and 3 make it right.
            unsafe { row.write(msrs) };
        }
        for row in &self.rows {
            // SAFETY: the register exists by 1.
            unsafe { row.verify(msrs) }?;
        }
        // SAFETY: SCE and NXE exist by 1; all that SYSCALL uses is in place.
        unsafe { self.efer.write(msrs) };
        // SAFETY: EFER exists by 1.
        unsafe { self.efer.verify(msrs) }?;
        // SAFETY: 1 of `assume` is what was just read back, with 2 and 3 of the caller; nothing else writes these
        // registers without a plan.
        Ok(unsafe { Installed::assume() })
    }

    /// Reads every register of the plan, for a table of what was planned and what is there.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0, and the plan was made from the features of the CPU behind `msrs`.
    #[must_use]
    pub unsafe fn read_back(&self, msrs: &mut impl Msr) -> Report {
        let mut found = [None; 9];
        for (row, found) in self.rows().zip(&mut found) {
            if !matches!(row.action, Action::Skip { .. }) {
                // SAFETY: the caller's: a register that the CPU lacks is skipped.
                *found = Some(unsafe { msrs.read(row.number) });
            }
        }
        Report { plan: *self, found }
    }
}

const fn row_of<R: Register>(action: Action) -> Row {
    Row::new(R::NUMBER, R::NAME, action)
}

fn write_of(register: impl Register) -> Action {
    Action::Write { value: register.bits() }
}

impl fmt::Display for SyscallPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, row) in self.rows().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{row}")?;
        }
        Ok(())
    }
}

/// A plan beside what the registers hold. Printed, it is the plan's table with a column more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    plan: SyscallPlan,
    found: [Option<u64>; 9],
}

impl Report {
    /// Each row with the value found; `None` for a register that was skipped.
    pub fn rows(&self) -> impl Iterator<Item = (&Row, Option<u64>)> {
        self.plan.rows().zip(self.found)
    }

    /// Whether every register is as planned.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.rows()
            .all(|(row, found)| found.is_none_or(|found| row.agrees(found)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (row, found)) in self.rows().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{row}")?;
            if let Some(found) = found {
                let verdict = if row.agrees(found) { "found" } else { "differs, found" };
                write!(f, ", {verdict} {found:#018x}")?;
            }
        }
        Ok(())
    }
}
