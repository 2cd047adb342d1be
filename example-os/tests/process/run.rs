//! User mode as a call, for a kernel `K`: [`UserContext::run`] in one address space, without processes.

use core::marker::PhantomData;

use entry_core::kernel::{Baseline, WithSmap};
use entry_core::plan::Installed;
use entry_core::{Exit, IrqOff};
use entry_sysret::Rules;
use entry_sysret::context::{Events, RunKernel, RunStack, UserContext, UserEvent};
use entry_sysret::iret::{CodeSize, program_start};
use example_os::boot;
use example_os::entry::{self, UserRules};
use example_os::memory::{AddressSpace, PAGE_SIZE, Placement, Protection};

/// Where the code of all programs lies.
pub(crate) const CODE: u64 = 0x40_0000;
/// Where their page of data lies, which is their stack, too.
pub(crate) const DATA: u64 = 0x50_0000;

static RUN_STACK: RunStack<16384> = RunStack::new();

/// The CPU and the address space of all programs.
pub(crate) struct Machine<K> {
    /// `None` while a program runs.
    pub(crate) irq: Option<IrqOff>,
    pub(crate) installed: Installed,
    pub(crate) space: AddressSpace,
    kernel: PhantomData<K>,
}

impl<K: RunKernel + 'static> Machine<K> {
    /// Sets the CPU up. To be called once.
    pub(crate) fn new() -> Self {
        let irq = entry::install();
        // SAFETY: 1. this image starts no process. 2. The stack is this CPU's alone.
        let installed = unsafe { entry::hand_over::<Events<K>>(RUN_STACK.top(), &irq) };
        let mut space = AddressSpace::new().unwrap();
        let executable = Protection::READ.union(Protection::EXECUTE);
        space.mmap(CODE, PAGE_SIZE, executable, Placement::Fixed).unwrap();
        let writable = Protection::READ.union(Protection::WRITE);
        space.mmap(DATA, PAGE_SIZE, writable, Placement::Fixed).unwrap();
        // SAFETY: the kernel is mapped in every space, and this one lives as long as the tests.
        unsafe { space.activate() };
        Self {
            irq: Some(irq),
            installed,
            space,
            kernel: PhantomData,
        }
    }

    /// A context that begins with `code`.
    pub(crate) fn load(&mut self, code: &[u8]) -> UserContext {
        self.space.write(CODE, code).unwrap();
        let frame = program_start(&UserRules::RULES, CodeSize::Bits64, CODE, DATA + PAGE_SIZE).unwrap();
        UserContext::new(frame)
    }

    pub(crate) fn run(&mut self, context: &mut UserContext) -> UserEvent<<K::Exit as Exit>::Refusal> {
        let irq = self.irq.take().unwrap();
        let (event, irq) = if boot::cpu::features().smap {
            // SAFETY: 1. `new`, which has chosen the same options. 2. The space is the programs' own. 3. The kernel leaves
            // them alone since `new`. 4. Tests run on the boot stack.
            unsafe { context.run::<K, WithSmap>(irq, &self.installed) }
        } else {
            // SAFETY: as above.
            unsafe { context.run::<K, Baseline>(irq, &self.installed) }
        };
        self.irq = Some(irq);
        event
    }
}
