//! What a SYSENTER stub finds when its first instruction runs, as types.
//!
//! SYSENTER itself sets RIP, RSP, CS and SS, and clears IF, VM and RF. Whether RSP is then a thread's kernel stack, and whose
//! GS base is in force, depends on what was put into `IA32_SYSENTER_ESP` and on what runs before the stub. A stub is
//! compiled for one [`Arrival`]; its address carries that type ([`EntryAddress`]), and so do the trampolines and stack
//! strategies that may lead to it. A pair that doesn't fit doesn't compile.
//!
//! | type | RSP | GS base | comes from |
//! |---|---|---|---|
//! | [`Ready`] | the thread's kernel stack | user's | an MSR written at each switch; RIP-relative or absolute trampoline |
//! | [`ReadySwapped`] | the thread's kernel stack | kernel's | a trampoline that begins with SWAPGS |
//! | [`AtOffset`] | a small stack, with the field at a fixed distance | user's | the MSR points in front of the TSS |
//! | [`OnEntryStack`] | a small stack | user's | the stub loads the stack from the per-CPU header |

use core::fmt;
use core::marker::PhantomData;

use entry_core::PerCpuHeader;

/// One row of the [module's table](self).
pub trait Arrival: sealed::Sealed + 'static {
    /// Whether the stub has to execute SWAPGS.
    const STUB_SWAPS: bool;
    /// Where the stub finds the thread's stack pointer.
    const LOAD: Load;
}

/// Where a stub loads RSP from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Nowhere: RSP is right.
    Nothing,
    /// The word this many bytes above RSP.
    FromStack(i32),
    /// [`PerCpuHeader::KERNEL_STACK`], once GS base is the kernel's.
    FromHeader,
}

impl Load {
    /// Whether it is [`Load::FromStack`], for an `.if` of the assembler.
    pub(crate) const fn is_from_stack(self) -> usize {
        matches!(self, Self::FromStack(_)) as usize
    }

    /// Whether it is [`Load::FromHeader`], for an `.if` of the assembler.
    pub(crate) const fn is_from_header(self) -> usize {
        matches!(self, Self::FromHeader) as usize
    }

    /// The displacement of the load.
    pub(crate) const fn offset(self) -> i32 {
        match self {
            Self::Nothing => 0,
            Self::FromStack(offset) => offset,
            Self::FromHeader => HEADER_OFFSET,
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "an offset in a structure of one cache line"
)]
const HEADER_OFFSET: i32 = PerCpuHeader::KERNEL_STACK as i32;

/// RSP is the thread's kernel stack, GS base the user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready;

/// RSP is the thread's kernel stack, GS base the kernel's: the stub must not swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadySwapped;

/// RSP is a small stack, and the word `OFFSET` bytes above it is the thread's stack pointer. GS base is the user's.
///
/// With the stack in front of a TSS, `OFFSET` is 4, the place of RSP0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtOffset<const OFFSET: i32>;

/// RSP is a small stack; the thread's stack pointer is in the per-CPU header. GS base is the user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnEntryStack;

impl Arrival for Ready {
    const STUB_SWAPS: bool = true;
    const LOAD: Load = Load::Nothing;
}

impl Arrival for ReadySwapped {
    const STUB_SWAPS: bool = false;
    const LOAD: Load = Load::Nothing;
}

impl<const OFFSET: i32> Arrival for AtOffset<OFFSET> {
    const STUB_SWAPS: bool = true;
    const LOAD: Load = Load::FromStack(OFFSET);
}

impl Arrival for OnEntryStack {
    const STUB_SWAPS: bool = true;
    const LOAD: Load = Load::FromHeader;
}

mod sealed {
    #[expect(unnameable_types, reason = "sealed: the stubs obey exactly these types")]
    pub trait Sealed {}
    impl Sealed for super::Ready {}
    impl Sealed for super::ReadySwapped {}
    impl<const OFFSET: i32> Sealed for super::AtOffset<OFFSET> {}
    impl Sealed for super::OnEntryStack {}
}

/// The address of kernel code that is made for an [`Arrival`].
///
/// The stubs of this crate give theirs: [`crate::stub`].
pub struct EntryAddress<A: Arrival> {
    address: u64,
    arrival: PhantomData<A>,
}

impl<A: Arrival> EntryAddress<A> {
    /// States what is at an address.
    ///
    /// # Safety
    ///
    /// 1. The address is that of kernel code which may be entered at CPL 0 with every register and flag but RIP, RSP,
    ///    CS, SS, IF, VM and RF as user code left it.
    /// 2. That code executes SWAPGS and loads RSP as `A` says, and relies on nothing that `A` does not say.
    #[must_use]
    pub const unsafe fn new(address: u64) -> Self {
        Self {
            address,
            arrival: PhantomData,
        }
    }

    /// The address.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.address
    }
}

// By hand, since a derive would ask for the same of `A`.
impl<A: Arrival> Clone for EntryAddress<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Arrival> Copy for EntryAddress<A> {}

impl<A: Arrival> PartialEq for EntryAddress<A> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<A: Arrival> Eq for EntryAddress<A> {}

impl<A: Arrival> fmt::Debug for EntryAddress<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gs = if A::STUB_SWAPS { "user" } else { "kernel" };
        write!(f, "EntryAddress({:#x}, {gs} GS, load {:?})", self.address, A::LOAD)
    }
}
