//! What a kernel allows in a frame that leaves for user mode: selectors, the end of user space, policies.
//!
//! [`RuleSet`] is a plain value that tests can vary; [`Rules`] gives it to an exit as a constant, so that the tests on the
//! way out compare with immediates.

use entry_core::address::{UserLimit, Width};
use entry_core::segment::SegmentLayout;

use crate::decide::guard;

/// The rules of an exit, as a constant.
///
/// ```
/// use entry_core::address::{UserLimit, Width};
/// use entry_core::segment::SegmentLayout;
/// use entry_sysret::{RuleSet, Rules};
///
/// struct MyRules;
///
/// impl Rules for MyRules {
///     const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
/// }
/// ```
pub trait Rules: 'static {
    /// The rules.
    const RULES: RuleSet;
}

/// What a frame may hold when it leaves for user mode.
///
/// | rule | default | changed by |
/// |---|---|---|
/// | CS | the layout's 64-bit user code | [`RuleSet::with_code32`] allows the 32-bit one too |
/// | SS | the layout's user data | – |
/// | RIP in 64-bit code | below the limit | – |
/// | RIP in 32-bit code | below 4 GiB | – |
/// | IOPL | 0 | [`RuleSet::with_io_privilege`] |
/// | IF | 1 | [`RuleSet::with_io_privilege`], for frames with IOPL 3 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleSet {
    pub(crate) code64: u64,
    /// 0, which is no user selector, if the layout has none.
    pub(crate) layout_code32: u64,
    /// 0 until allowed.
    pub(crate) code32: u64,
    pub(crate) data: u64,
    pub(crate) kernel_data: u16,
    pub(crate) limit: UserLimit,
    pub(crate) width: Width,
    pub(crate) allows_io_privilege: bool,
    pub(crate) sysret_loads_ss: bool,
}

impl RuleSet {
    /// Rules for the selectors of `layout`, 64-bit user code below `limit`, and nothing that is dangerous.
    ///
    /// `width` is that of the paging mode in use. A limit above the highest one for it is lowered to that, so that whatever is
    /// let through is canonical there. With a `width` that is wider than the mode, nothing here is right: see the conditions
    /// of [`Kernel`](entry_core::Kernel).
    #[must_use]
    pub const fn new(layout: &SegmentLayout, limit: UserLimit, width: Width) -> Self {
        Self {
            code64: layout.user_code64().bits() as u64,
            layout_code32: match layout.user_code32() {
                Some(selector) => selector.bits() as u64,
                None => 0,
            },
            code32: 0,
            data: layout.user_data().bits() as u64,
            kernel_data: layout.kernel_data().bits(),
            limit: limit.within(width),
            width,
            allows_io_privilege: false,
            sysret_loads_ss: false,
        }
    }

    /// Allows 32-bit user code: frames whose CS is the layout's 32-bit code selector. Without effect if it has none.
    ///
    /// SYSRET on AMD CPUs keeps the attributes that SS has in the kernel, and those may be of a null segment
    /// ([`IretReason::NullStackSegment`](crate::IretReason::NullStackSegment)). So while 32-bit code exists, the exit
    /// loads SS with the kernel's data segment before SYSRET, and a frame made by an exception or interrupt leaves by IRET
    /// even where RCX and R11 are dead.
    #[must_use]
    pub const fn with_code32(self) -> Self {
        Self {
            code32: self.layout_code32,
            ..self
        }
    }

    /// States that SYSRET loads all of SS: the CPU is Intel's, or the kernel loads SS with a selector that isn't null
    /// after each entry through the IDT and each switch of threads. The exit then leaves SS alone.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSRET—Return From Fast System Call*; AMD APM vol. 3, *SYSRET*.
    #[must_use]
    pub const fn with_sysret_loading_ss(self) -> Self {
        Self {
            sysret_loads_ss: true,
            ..self
        }
    }

    /// Allows IOPL above 0, and IF = 0 in frames with IOPL 3, whose program could execute CLI itself. Such a program can
    /// stop the CPU.
    #[must_use]
    pub const fn with_io_privilege(self) -> Self {
        Self {
            allows_io_privilege: true,
            ..self
        }
    }

    /// The 64-bit user code selector, with RPL 3.
    #[must_use]
    pub const fn code64(&self) -> u64 {
        self.code64
    }

    /// The 32-bit user code selector, with RPL 3, if 32-bit code is allowed.
    #[must_use]
    pub const fn code32(&self) -> Option<u64> {
        if self.allows_code32() { Some(self.code32) } else { None }
    }

    /// Whether the exit has to load SS before SYSRET.
    pub(crate) const fn exit_loads_ss(&self) -> bool {
        guard!("sysret-stack-segment", self.allows_code32() && !self.sysret_loads_ss)
    }

    pub(crate) const fn allows_code32(&self) -> bool {
        self.code32 != 0
    }

    /// The user data selector, with RPL 3.
    #[must_use]
    pub const fn data(&self) -> u64 {
        self.data
    }

    /// The end of user space.
    #[must_use]
    pub const fn limit(&self) -> UserLimit {
        self.limit
    }
}
