//! The few devices that the kernel drives.

pub mod apic;
pub mod console;
pub mod exit;
pub mod pic;
pub mod screen;
pub mod serial;
