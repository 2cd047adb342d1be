//! Which sets of stubs a CPU can run.

use core::fmt;

use bitflags::bitflags;

use crate::cpu::CpuFeatures;
use crate::guard::guard;
use crate::kernel::Options;
use crate::stub::StubTable;

bitflags! {
    /// What a set of stubs demands of the CPU.
    ///
    /// | bit | name | demanded by | without it |
    /// |---|---|---|---|
    /// | 0 | `SMAP` | [`Options::SMAP`] | CLAC is #UD |
    /// | 1 | `FSGSBASE` | [`Options::FSGSBASE`] | RDGSBASE is #UD |
    /// | 2 | `PCID` | [`Options::PCID`] | bit 63 of CR3 is #GP |
    /// | 3 | `MD_CLEAR` | [`Options::VERW`] | VERW clears nothing |
    /// | 4 | `IBRS` | [`Options::IBRS`] | `IA32_SPEC_CTRL` is #GP |
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Requirements: u32 {
        /// CLAC.
        const SMAP = 1 << 0;
        /// RDGSBASE and WRGSBASE.
        const FSGSBASE = 1 << 1;
        /// Process-context identifiers.
        const PCID = 1 << 2;
        /// A VERW that overwrites buffers: `MD_CLEAR` (Intel) or `VERW_CLEAR` (AMD).
        const MD_CLEAR = 1 << 3;
        /// `IA32_SPEC_CTRL` with IBRS.
        const IBRS = 1 << 4;
    }
}

impl Requirements {
    /// What stubs with the options `O` demand.
    #[must_use]
    pub const fn of<O: Options>() -> Self {
        const fn when(is_demanded: bool, requirement: Requirements) -> Requirements {
            if is_demanded {
                requirement
            } else {
                Requirements::empty()
            }
        }
        when(O::SMAP, Self::SMAP)
            .union(when(O::FSGSBASE, Self::FSGSBASE))
            .union(when(O::PCID, Self::PCID))
            .union(when(O::VERW, Self::MD_CLEAR))
            .union(when(O::IBRS, Self::IBRS))
    }

    /// What `cpu` can satisfy.
    #[must_use]
    pub fn offered(cpu: &CpuFeatures) -> Self {
        let mut offered = Self::empty();
        offered.set(Self::SMAP, cpu.smap);
        offered.set(Self::FSGSBASE, cpu.fsgsbase);
        offered.set(Self::PCID, cpu.pcid);
        offered.set(Self::MD_CLEAR, cpu.md_clear || cpu.verw_clear);
        offered.set(Self::IBRS, cpu.ibrs);
        offered
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// No set of stubs runs on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoStubSet {
    /// How many sets there were to choose from.
    pub sets: usize,
    /// What the CPU lacks for the last of them.
    pub missing: Requirements,
}

impl fmt::Display for NoStubSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sets, missing } = self;
        write!(
            f,
            "none of {sets} sets of stubs runs on this CPU, wanted {missing} for the last"
        )
    }
}

impl core::error::Error for NoStubSet {}

impl StubTable {
    /// The first of `sets` that `cpu` can run: the best comes first, and last one that demands little.
    ///
    /// A set that runs may still depend on how the CPU is set up, which its [`Options`] say: CR4.FSGSBASE and CR4.PCIDE.
    ///
    /// ```no_run
    /// use entry_core::Kernel;
    /// use entry_core::cpu::CpuFeatures;
    /// use entry_core::kernel::{Baseline, WithSmap};
    /// use entry_core::stub::{NoStubSet, StubTable};
    ///
    /// fn table<K: Kernel>() -> Result<StubTable, NoStubSet> {
    ///     let sets = [StubTable::of::<K, WithSmap>(), StubTable::of::<K, Baseline>()];
    ///     StubTable::select(&sets, &CpuFeatures::detect()).copied()
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NoStubSet`].
    pub fn select<'a>(sets: &'a [Self], cpu: &CpuFeatures) -> Result<&'a Self, NoStubSet> {
        let offered = Requirements::offered(cpu);
        let mut missing = Requirements::empty();
        for set in sets {
            missing = set.requirements.difference(offered);
            if !guard!("stub-requirements", !missing.is_empty()) {
                return Ok(set);
            }
        }
        Err(NoStubSet {
            sets: sets.len(),
            missing,
        })
    }
}
