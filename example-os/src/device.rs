//! The few devices that the kernel drives.

pub mod apic;
pub mod exit;
pub mod pic;
pub mod serial;
