//! Small programs for tests, in assembly, and the machine that runs them.
//!
//! The test runs on the boot stack, which is the idle thread: a switch away from it comes back when nothing is runnable,
//! so a test sees every process end or wait.

#[path = "assembly.rs"]
mod assembly;

use entry_core::{IrqOff, TrapFrame};
use example_os::entry;
use example_os::entry::compat::map_call_page;
use example_os::harness::Suite;
use example_os::memory::{AddressSpace, Placement, Protection};
use example_os::process::{self, Children, WaitStatus, scheduler};

pub(crate) use assembly::program;

/// Where a program's code lies, below 4 GiB so that 32-bit code can run there too.
pub(crate) const CODE: u64 = 0x40_0000;
/// Where a page of data lies.
pub(crate) const DATA: u64 = 0x50_0000;
/// The end of the stack.
pub(crate) const STACK_TOP: u64 = 0x70_0000;
const STACK_BYTES: u64 = 0x1_0000;
const PAGE: u64 = 4096;

const RW: Protection = Protection::READ.union(Protection::WRITE);
const RX: Protection = Protection::READ.union(Protection::EXECUTE);

/// A CPU that is set up, with interrupts off.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The proof that they are.
    pub(crate) irq: IrqOff,
}

impl Suite for Machine {
    fn set_up() -> Self {
        Self { irq: entry::install() }
    }
}

impl Machine {
    /// Starts a program of one page of code, one of data and a stack; returns its PID.
    pub(crate) fn start(&mut self, code: &[u8]) -> u32 {
        self.start_at(CODE, code, &entry::first_frame(CODE, STACK_TOP))
    }

    /// Starts a program whose code lies at `address`, with `frame`.
    pub(crate) fn start_at(&mut self, address: u64, code: &[u8], frame: &TrapFrame) -> u32 {
        let mut space = AddressSpace::new().unwrap();
        let page = address & !(PAGE - 1);
        space.mmap(page, PAGE, RX, Placement::Fixed).unwrap();
        space.write(address, code).unwrap();
        space.mmap(DATA, PAGE, RW, Placement::Fixed).unwrap();
        space
            .mmap(STACK_TOP - STACK_BYTES, STACK_BYTES, RW, Placement::Fixed)
            .unwrap();
        if frame.cs() == 0x1b {
            // As the loader does for a 32-bit file.
            map_call_page(&mut space).unwrap();
        }
        process::start("test", space, frame, &self.irq).unwrap()
    }

    /// Lets processes run until none can, and says how `pid` ended; `None` if it waits for something.
    pub(crate) fn finish(&mut self, pid: u32) -> Option<WaitStatus> {
        scheduler::schedule(&mut self.irq);
        process::wait(Children::One(pid), false, &mut self.irq)
            .unwrap()
            .map(|(_, status)| status)
    }

    /// Runs a program to its end.
    pub(crate) fn run(&mut self, code: &[u8]) -> WaitStatus {
        let pid = self.start(code);
        self.finish(pid).unwrap()
    }
}
