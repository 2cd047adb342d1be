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

pub mod arrival;
pub mod encode;
pub mod error;
mod guard;
pub mod stack;
pub mod stub;
pub mod support;
pub mod sysexit;
pub mod trampoline;
pub mod user_page;
