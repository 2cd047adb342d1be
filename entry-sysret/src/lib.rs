#![doc = include_str!("../README.md")]
#![no_std]
#![warn(
    clippy::alloc_instead_of_core,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::std_instead_of_core,
    clippy::unwrap_used
)]

pub mod context;
pub mod decide;
pub mod exit;
pub mod iret;
pub mod landing;
pub mod refusal;
pub mod rules;
mod stub;
pub mod sysret;

pub use context::{UserContext, UserEvent};
pub use decide::{ExitWords, IretReason, decide, why_iret};
pub use exit::{IretOnly, SysretOrIret};
pub use refusal::Refusal;
pub use rules::{RuleSet, Rules};
