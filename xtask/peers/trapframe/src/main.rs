//! The `trapframe` crate as published: `run` in a loop.
#![no_std]
#![no_main]

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};

use peer_boot::{end, measure};
use trapframe::{GeneralRegs, TrapFrame, UserContext};

/// Gives memory and never takes it back: the crate allocates its tables once.
struct Bump(AtomicUsize);

const HEAP_BYTES: usize = 256 << 10;

#[repr(C, align(4096))]
struct Heap([u8; HEAP_BYTES]);

static mut HEAP: Heap = Heap([0; HEAP_BYTES]);

// SAFETY: pieces do not overlap, as the position only grows, and lie in HEAP, which nothing else uses.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let from = self.0.load(Ordering::Relaxed).next_multiple_of(layout.align());
        self.0.store(from + layout.size(), Ordering::Relaxed);
        if from + layout.size() > HEAP_BYTES {
            return core::ptr::null_mut();
        }
        (&raw mut HEAP).cast::<u8>().wrapping_add(from)
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Bump = Bump(AtomicUsize::new(0));

/// What the crate calls for traps of the kernel's own.
#[unsafe(no_mangle)]
extern "sysv64" fn trap_handler(frame: &mut TrapFrame) {
    panic!("trap in ring 0: {frame:x?}");
}

const SYSTEM_CALL: usize = 0x100;
const UNDEFINED: usize = 6;

/// The event loop of a kernel that uses the crate: system calls answer 0, anything else ends it.
#[inline(never)]
fn serve_calls(context: &mut UserContext) {
    loop {
        context.run();
        match context.trap_num {
            SYSTEM_CALL => context.set_syscall_ret(0),
            _ => break,
        }
    }
}

/// The same for UD2, which is skipped.
#[inline(never)]
fn serve_undefined(context: &mut UserContext) {
    loop {
        context.run();
        match context.trap_num {
            UNDEFINED => context.general.rip += 2,
            _ => break,
        }
    }
}

fn ticks(program: extern "sysv64" fn() -> !, serve: fn(&mut UserContext), rounds: u64) -> u64 {
    let mut context = UserContext {
        general: GeneralRegs {
            rip: program as *const () as usize,
            rsp: peer_boot::user_stack(),
            r12: rounds as usize,
            rflags: 2,
            ..Default::default()
        },
        ..Default::default()
    };
    serve(&mut context);
    assert_eq!(context.trap_num, 3, "the program did not come to its end: {context:x?}");
    assert_eq!(context.general.r12, 0);
    (context.general.r15 - context.general.r14) as u64
}

#[unsafe(no_mangle)]
extern "C" fn peer_main() -> ! {
    // SAFETY: once, at boot, with interrupts off.
    unsafe { trapframe::init() };
    measure(None, 10, |rounds| ticks(peer_boot::nops, serve_calls, rounds));
    measure(Some("peer/trapframe/null"), 3, |rounds| {
        ticks(peer_boot::system_calls, serve_calls, rounds)
    });
    measure(Some("peer/trapframe/undefined"), 2, |rounds| {
        ticks(peer_boot::undefined, serve_undefined, rounds)
    });
    end(true)
}
