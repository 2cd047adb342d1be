use crate::msr::register;

register! {
    /// `IA32_TSC_AUX`: what RDTSCP and RDPID return beside the time, by convention the number of the CPU.
    ///
    /// | bits | meaning |
    /// |---|---|
    /// | 31:0 | the kernel's value |
    /// | 63:32 | reserved |
    ///
    /// It exists where CPUID has RDTSCP or RDPID, and is not set on a CPU that has just started.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3B, *`IA32_TSC_AUX` Register and RDTSCP Support*; AMD APM vol. 3, *RDTSCP*.
    TscAux, 0xc000_0103, "TSC_AUX"
}

impl TscAux {
    /// The image for a value.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value as u64)
    }
}
