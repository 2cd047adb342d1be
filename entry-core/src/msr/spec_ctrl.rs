use bitflags::bitflags;

use crate::cpu::CpuFeatures;
use crate::guard::guard;
use crate::msr::{MsrError, Register};

bitflags! {
    /// `IA32_SPEC_CTRL`: speculation control of this logical processor.
    ///
    /// | bit | name | meaning |
    /// |---|---|---|
    /// | 0 | IBRS | indirect branches are not steered by less privileged code |
    /// | 1 | STIBP | nor by the sibling thread |
    /// | 2 | SSBD | loads do not pass older stores |
    /// | 7 | PSFD | no predictive store forwarding |
    /// | 10 | BHI_DIS_S | in the kernel, indirect branches are not predicted from the history of branches in user mode |
    ///
    /// A bit may be set only where CPUID has it, else #GP. Unknown bits are kept.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 4, *Architectural MSRs*; AMD APM vol. 2, *Speculation Control MSRs*.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct SpecCtrl: u64 {
        /// IBRS, bit 0.
        const INDIRECT_BRANCH_RESTRICTED_SPECULATION = 1 << 0;
        /// STIBP, bit 1.
        const SINGLE_THREAD_INDIRECT_BRANCH_PREDICTORS = 1 << 1;
        /// SSBD, bit 2.
        const SPECULATIVE_STORE_BYPASS_DISABLE = 1 << 2;
        /// PSFD, bit 7.
        const PREDICTIVE_STORE_FORWARDING_DISABLE = 1 << 7;
        /// BHI_DIS_S, bit 10.
        const BRANCH_HISTORY_DISABLE_SUPERVISOR = 1 << 10;

        const _ = !0;
    }
}

impl SpecCtrl {
    /// The bits that a CPU has; empty if it lacks the register.
    #[must_use]
    pub fn supported(cpu: &CpuFeatures) -> Self {
        let mut bits = Self::empty();
        bits.set(Self::INDIRECT_BRANCH_RESTRICTED_SPECULATION, cpu.ibrs);
        bits.set(Self::SINGLE_THREAD_INDIRECT_BRANCH_PREDICTORS, cpu.stibp);
        bits.set(Self::SPECULATIVE_STORE_BYPASS_DISABLE, cpu.ssbd);
        bits.set(Self::PREDICTIVE_STORE_FORWARDING_DISABLE, cpu.psfd);
        bits.set(Self::BRANCH_HISTORY_DISABLE_SUPERVISOR, cpu.bhi_ctrl);
        bits
    }

    /// Takes bits that the CPU has.
    ///
    /// # Errors
    ///
    /// [`MsrError::Unsupported`], with the bits that would be #GP.
    pub fn new(flags: Self, cpu: &CpuFeatures) -> Result<Self, MsrError> {
        let unsupported = flags.difference(Self::supported(cpu));
        if guard!("unsupported-bits", !unsupported.is_empty()) {
            return Err(MsrError::Unsupported {
                register: Self::NAME,
                bits: Self::bits(&unsupported),
            });
        }
        Ok(flags)
    }
}

impl Register for SpecCtrl {
    const NUMBER: u32 = 0x48;
    const NAME: &str = "SPEC_CTRL";

    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Self::from_bits_retain(bits)
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        Self::bits(&self)
    }
}
