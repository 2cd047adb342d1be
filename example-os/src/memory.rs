//! Physical and virtual memory.
//!
//! | module | what it owns |
//! |---|---|
//! | [`layout`] | the map of the address space |
//! | [`frame`] | free page frames |
//! | [`table`] | page-table entries and the walk |
//! | [`kernel`] | the kernel's own tables: image, direct map, stacks, devices |
//! | [`kernel_stack`] | kernel stacks with a guard page |
//! | [`area`], [`space`] | a process's mappings: what was asked for, and the tables that follow from it |
//! | [`user`] | copies from and to user memory |

pub mod area;
pub mod frame;
pub mod kernel;
pub mod kernel_stack;
pub mod layout;
pub mod space;
pub mod table;
pub mod user;

pub use area::{MapError, Placement, Protection};
pub use frame::{Frame, OutOfMemory};
pub use kernel::{activate_kernel, kernel_cr3};
pub use kernel_stack::KernelStack;
pub use layout::{DIRECT_MAP, KERNEL_BASE, PAGE_SIZE, USER_LIMIT};
pub use space::{AddressSpace, FaultError, Mapping};
