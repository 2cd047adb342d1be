//! From the first instruction to the program's own function, and out again by a panic.

use core::ffi::{CStr, c_char};

use crate::{println, sys};

/// Makes `$main`, a `fn(Args) -> i32`, the program: its result is the exit status.
///
/// Emits `_start`, which both kernels enter with RSP pointing at `argc`; the address of `argv[0]`
/// follows, then the others, then a null pointer.
///
/// # Source
/// System V ABI, AMD64 supplement, *Process Initialization*.
#[macro_export]
macro_rules! program {
    ($main:path) => {
        /// The file's entry point.
        ///
        /// # Safety
        /// 1. Only the kernel enters here, with RSP at `argc`.
        // The linker looks for exactly this name, and one program has one entry point.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "sysv64" fn _start() -> ! {
            core::arch::naked_asm!(
                // The outermost frame is marked by a null frame pointer.
                "xor ebp, ebp",
                "mov rdi, rsp",
                // The ABI wants RSP 16-byte aligned before CALL.
                "and rsp, -16",
                "call {enter}",
                "ud2",
                enter = sym _enter,
            )
        }

        /// Gives the arguments to the program.
        ///
        /// # Safety
        /// 1. `stack` points at `argc` as the kernel laid it out.
        unsafe extern "sysv64" fn _enter(stack: *const usize) -> ! {
            // SAFETY: 1. is this function's own 1.
            unsafe { $crate::start(stack, $main) }
        }
    };
}

/// Runs `main` and exits with its result.
///
/// # Safety
/// 1. `stack` points at `argc`, `argv` follows, and both stay as they are until the program ends.
pub unsafe fn start(stack: *const usize, main: fn(Args) -> i32) -> ! {
    // SAFETY: `stack` points at `argc` by 1.
    let count = unsafe { stack.read() };
    let first = stack.wrapping_add(1).cast::<*const c_char>();
    sys::exit(main(Args { count, first }))
}

/// The program's arguments; number 0 is its name.
#[derive(Clone, Copy, Debug)]
pub struct Args {
    count: usize,
    first: *const *const c_char,
}

impl Args {
    /// How many there are, the program's name included.
    #[must_use]
    pub const fn count(self) -> usize {
        self.count
    }

    /// Argument `index`, or `None` past the last; one that is not UTF-8 reads as `"?"`.
    #[must_use]
    pub fn get(self, index: usize) -> Option<&'static str> {
        if index >= self.count {
            return None;
        }
        let place = self.first.wrapping_add(index);
        // SAFETY: `start` got `count` pointers from the kernel (its 1.), and `index` is below it.
        let text = unsafe { place.read() };
        // SAFETY: each is the address of a string that ends in a zero byte and is never changed.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_str().unwrap_or("?"))
    }

    /// Argument `index` as a number, `default` where there is none.
    ///
    /// An argument that is no number ends the program with status 2.
    #[must_use]
    pub fn number(self, index: usize, default: usize) -> usize {
        self.get(index).map_or(default, parse)
    }

    /// All arguments in order.
    pub fn iter(self) -> impl Iterator<Item = &'static str> {
        (0..self.count).filter_map(move |index| self.get(index))
    }
}

fn parse(text: &str) -> usize {
    text.parse().unwrap_or_else(|_| {
        println!("`{text}` is not a number: give a decimal number, such as 16");
        sys::exit(2)
    })
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    println!("{info}");
    sys::exit(101)
}
