//! The `ax-cpu` crate as published: `run_unchecked` in a loop.
#![no_std]
#![no_main]

use core::arch::global_asm;
use core::fmt;
use core::ptr::NonNull;

use ax_cpu::boot::{GlobalDescriptorTable, TaskStateSegment, TrapStorage, TrapStorageProvider};
use ax_cpu::trap::boot::{BootException, BootTrapHandler};
use ax_cpu::trap::diagnostics::{BacktraceRegisters, TrapDiagnostics};
use ax_cpu::trap::fatal::FatalTrap;
use ax_cpu::user::{ExceptionInfo, ReturnReason, UserContext};
use ax_cpu::{VirtAddr, registers};
use peer_boot::{end, line, mask_interrupt_controllers, measure};
use trait_ffi::impl_extern_trait;

/// What the crate reaches through GS: the TSS, and behind it room for what it keeps of a CPU.
#[repr(C, align(16))]
struct Area {
    tss: TaskStateSegment,
    state: [u8; 152],
}

static mut AREA: Area = Area {
    tss: TaskStateSegment::new(),
    state: [0; 152],
};
static mut GDT: GlobalDescriptorTable = GlobalDescriptorTable::new();
static mut DOUBLE_FAULT_STACK: [u128; 512] = [0; 512];

global_asm!(
    // Distances from the GS base.
    ".globl __CPU_LOCAL_TSS_OFFSET",
    ".set __CPU_LOCAL_TSS_OFFSET, {tss}",
    ".globl __AX_CPU_AREA_ARCH_STATE_OFFSET",
    ".set __AX_CPU_AREA_ARCH_STATE_OFFSET, {state}",
    // Tables of recoverable accesses: this image makes none.
    ".pushsection .rodata.tables, \"a\", @progbits",
    ".balign 4",
    ".globl _ex_table_start, _ex_table_end, _nofault_ex_table_start, _nofault_ex_table_end",
    "_ex_table_start:",
    "_ex_table_end:",
    "_nofault_ex_table_start:",
    "_nofault_ex_table_end:",
    ".popsection",
    tss = const core::mem::offset_of!(Area, tss),
    state = const core::mem::offset_of!(Area, state),
);

struct Image;

#[impl_extern_trait]
// SAFETY: the statics are for this one CPU, which asks once, and nothing else touches them.
unsafe impl TrapStorageProvider for Image {
    fn take() -> TrapStorage {
        let stack = &raw mut DOUBLE_FAULT_STACK;
        TrapStorage {
            // SAFETY: the address of a static is not null.
            tss: unsafe { NonNull::new_unchecked(&raw mut AREA.tss) },
            // SAFETY: as above.
            gdt: unsafe { NonNull::new_unchecked(&raw mut GDT) },
            double_fault_stack_top: VirtAddr::from_usize(stack.wrapping_add(1).addr()),
        }
    }
}

#[impl_extern_trait]
impl TrapDiagnostics for Image {
    fn format_backtrace(_: BacktraceRegisters, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

#[impl_extern_trait]
impl FatalTrap for Image {
    fn terminate(record: fmt::Arguments<'_>) -> ! {
        line(format_args!("[panic] {record}"));
        end(false)
    }
}

#[impl_extern_trait]
impl BootTrapHandler for Image {
    fn handle(exception: &BootException) {
        panic!("exception before the crate's own table: {exception:x?}");
    }
}

const BREAKPOINT: u8 = 3;
const UNDEFINED: u8 = 6;

/// Runs a program until an event that `$serve` does not match, which is returned.
macro_rules! serve {
    ($(#[$doc:meta])* $name:ident: $event:pat => $serve:expr) => {
        $(#[$doc])*
        #[inline(never)]
        fn $name(context: &mut UserContext) -> ReturnReason {
            loop {
                ax_cpu::interrupt::disable_irqs();
                // SAFETY: interrupts are off, and the one address space has the program and its stack.
                match unsafe { context.run_unchecked() } {
                    $event => $serve(context),
                    other => return other,
                }
            }
        }
    };
}

serve! {
    /// The event loop of a kernel that uses the crate: system calls answer 0, anything else ends it.
    serve_calls: ReturnReason::Syscall => |context: &mut UserContext| context.set_retval(0)
}
serve! {
    /// The same for UD2, which is skipped.
    serve_undefined: ReturnReason::Exception(ExceptionInfo { vector: UNDEFINED, .. }) => |context: &mut UserContext| context.rip += 2
}

fn ticks(program: extern "sysv64" fn() -> !, serve: fn(&mut UserContext) -> ReturnReason, rounds: u64) -> u64 {
    let mut context = UserContext::new(
        program as *const () as usize,
        VirtAddr::from_usize(peer_boot::user_stack()),
        0,
    );
    context.regs.r12 = rounds;
    let reason = serve(&mut context);
    assert!(
        matches!(
            reason,
            ReturnReason::Exception(ExceptionInfo { vector: BREAKPOINT, .. })
        ),
        "the program did not come to its end: {reason:x?} {context:x?}"
    );
    assert_eq!(context.regs.r12, 0);
    context.regs.r15 - context.regs.r14
}

#[unsafe(no_mangle)]
extern "C" fn peer_main() -> ! {
    // The crate runs programs with interrupts on.
    mask_interrupt_controllers();
    // SAFETY: the area is this CPU's, and nothing has used GS before.
    unsafe { registers::write_gs_base((&raw mut AREA).addr()) };
    ax_cpu::boot::init_trap();
    measure(None, 10, |rounds| ticks(peer_boot::nops, serve_calls, rounds));
    measure(Some("peer/ax-cpu/null"), 3, |rounds| {
        ticks(peer_boot::system_calls, serve_calls, rounds)
    });
    measure(Some("peer/ax-cpu/int80"), 3, |rounds| {
        ticks(peer_boot::legacy_calls, serve_calls, rounds)
    });
    measure(Some("peer/ax-cpu/undefined"), 2, |rounds| {
        ticks(peer_boot::undefined, serve_undefined, rounds)
    });
    end(true)
}
