//! Shows that the system calls do what Linux's do: checks each one, its errors included.
//!
//! One line a check; the exit status is the number of failed checks. It passes on Linux and on
//! example-os alike, so where it fails on one of them, that kernel differs.
//!
//! A write into a pipe without reader also sends SIGPIPE, which would end the program on Linux.
//! It is set to be ignored first. example-os has no `rt_sigaction` and sends no SIGPIPE yet, so
//! its `ENOSYS` is accepted there; the write itself must answer `EPIPE` on both.
#![no_std]
#![no_main]

mod registers;

use core::arch::asm;
use core::fmt::Debug;

use user::sys::{self, Errno, PAGE_BYTES, PROT_READ, PROT_WRITE};
use user::{Args, control, println};

user::program!(main);

/// In the kernel's half.
const KERNEL: usize = 0xffff_8000_0000_0000;
/// In neither half with 48 address bits.
const NON_CANONICAL: usize = 0x0000_8000_0000_0000;
/// The last page of the user half: nothing is mapped there.
const LAST_USER_PAGE: usize = 0x0000_7fff_ffff_f000;
/// A file descriptor that was never opened.
const NO_FD: i32 = 77;

/// Counts what was checked.
struct Checks {
    passed: i32,
    failed: i32,
}

impl Checks {
    /// Prints one line and counts it.
    fn equal<T: PartialEq + Debug>(&mut self, what: &str, got: T, wanted: T) {
        if got == wanted {
            self.passed += 1;
            println!("init: ok {what}");
        } else {
            self.failed += 1;
            println!("init: FAILED {what}: got {got:?}, wanted {wanted:?}");
        }
    }
}

fn main(_args: Args) -> i32 {
    let kernel = if control::is_example_os() {
        "example-os"
    } else {
        "another kernel"
    };
    println!("init: pid {} on {kernel}", sys::getpid());

    let mut checks = Checks { passed: 0, failed: 0 };
    numbers(&mut checks);
    register_rules(&mut checks);
    memory(&mut checks);
    pipes(&mut checks);
    pointers(&mut checks);
    processes(&mut checks);
    segment_base(&mut checks);
    println!(
        "init: {} checks, {} failed",
        checks.passed + checks.failed,
        checks.failed
    );
    checks.failed
}

/// A call whose arguments name no memory that the program uses.
fn call(number: usize, a: usize, b: usize, c: usize) -> Result<usize, Errno> {
    // SAFETY: 1. and 2. hold: every caller passes unmapped addresses, or none that is written.
    sys::check(unsafe { sys::raw(number, [a, b, c, 0, 0, 0]) })
}

/// The part of a result that says whether and how it failed.
fn outcome<T>(result: Result<T, Errno>) -> Result<(), Errno> {
    result.map(drop)
}

/// Runs `body` in a child and returns the wait status.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    match sys::fork().expect("a child") {
        0 => sys::exit(body()),
        child => sys::wait4(child).expect("the child is ours").1,
    }
}

/// Process numbers, signals, and numbers without a call.
fn numbers(checks: &mut Checks) {
    let pid = sys::getpid();
    checks.equal("getpid is positive", pid > 0, true);
    checks.equal("getpid is constant", sys::getpid(), pid);
    checks.equal("getppid is not getpid", sys::getppid() == pid, false);
    checks.equal("kill with SIGWINCH", sys::kill(pid, sys::SIGWINCH), Ok(()));
    checks.equal("kill with 0", sys::kill(pid, 0), Ok(()));
    checks.equal("kill with 65", sys::kill(pid, 65), Err(Errno::EINVAL));
    checks.equal("kill of nobody", sys::kill(0x3fff_ffff, 0), Err(Errno::ESRCH));
    checks.equal("sched_yield", sys::sched_yield(), Ok(()));
    for number in [4095, 0x7fff_ffff, usize::MAX] {
        checks.equal("no such call", call(number, 0, 0, 0), Err(Errno::ENOSYS));
    }
}

/// What stays in registers over a system call and over a page fault.
fn register_rules(checks: &mut Checks) {
    // SAFETY: 1. `getppid` takes no arguments.
    let kept = unsafe { registers::over_system_call(sys::GETPPID) };
    checks.equal("registers over getppid", kept, 0);
    // SAFETY: 1. `sched_yield` takes no arguments.
    let kept = unsafe { registers::over_system_call(sys::SCHED_YIELD) };
    checks.equal("registers over sched_yield", kept, 0);
    // SAFETY: 1. no call of that number exists.
    let kept = unsafe { registers::over_system_call(4095) };
    checks.equal("registers over no such call", kept, 0);
    // SAFETY: 1. `getppid` takes no arguments.
    let kept = unsafe { registers::rcx_and_r11(sys::GETPPID) };
    checks.equal("RCX and R11 after getppid", kept, 0);

    let fresh = sys::mmap(0, PAGE_BYTES, PROT_READ).expect("one page");
    // SAFETY: 1. the page was just mapped readable.
    let kept = unsafe { registers::over_page_fault(fresh.addr()) };
    checks.equal("registers over a page fault", kept, 0);
}

/// `mmap`, `munmap` and pages that appear when they are touched.
fn memory(checks: &mut Checks) {
    const PAGES: usize = 16;
    let read_write = PROT_READ | PROT_WRITE;
    let one = sys::mmap(0, PAGES * PAGE_BYTES, read_write).expect("a mapping");
    let two = sys::mmap(0, PAGES * PAGE_BYTES, read_write).expect("a second mapping");
    checks.equal("mmap gives a page's address", one.addr() % PAGE_BYTES, 0);
    checks.equal("mmap gives new addresses", one == two, false);

    let words = PAGES * PAGE_BYTES / 8;
    let word = |base: *mut u8, index: usize| base.cast::<u64>().wrapping_add(index);
    // Volatile, so that every access really is one.
    let read = |base: *mut u8, index: usize| {
        // SAFETY: `index` is below `words`, all mapped readable, and aligned for a u64.
        unsafe { word(base, index).read_volatile() }
    };
    let write = |base: *mut u8, index: usize, value: u64| {
        // SAFETY: `index` is below `words`, all mapped writable, and aligned for a u64.
        unsafe { word(base, index).write_volatile(value) };
    };
    let sum = |base| (0..words).fold(0, |sum: u64, index| sum.wrapping_add(read(base, index)));

    checks.equal("fresh memory reads zero", sum(one), 0);
    for index in 0..words {
        write(one, index, index as u64 + 1);
    }
    let differing = (0..words).filter(|&index| read(one, index) != index as u64 + 1);
    checks.equal("memory reads back what was written", differing.count(), 0);
    checks.equal("zero pages are not shared for writing", sum(two), 0);
    write(two, words - 1, 7);
    checks.equal("a write first fills the rest with zero", sum(two), 7);

    let status = in_child(|| {
        let seen = read(one, 5) == 6 && read(two, 0) == 0;
        write(one, 5, 1000);
        write(two, 0, 1000);
        i32::from(!seen)
    });
    checks.equal("a child sees the memory of its parent", status, 0);
    checks.equal("a child's writes stay its own", (read(one, 5), read(two, 0)), (6, 0));

    // SAFETY: 1. the mapping is `two`'s, which nothing uses from here on.
    let unmapped = unsafe { sys::munmap(two, PAGES * PAGE_BYTES) };
    checks.equal("munmap", unmapped, Ok(()));
    let again = sys::mmap(two.addr(), PAGE_BYTES, read_write);
    checks.equal("mmap takes a free hint", again, Ok(two));
    checks.equal("a mapping in its place reads zero", read(two, 0), 0);
    let beside = sys::mmap(one.addr(), PAGE_BYTES, read_write);
    checks.equal("mmap leaves a used hint alone", beside.is_ok_and(|at| at != one), true);

    let none = sys::mmap(0, 0, PROT_READ);
    checks.equal("mmap of nothing", outcome(none), Err(Errno::EINVAL));
    let huge = sys::mmap(0, 1 << 62, PROT_READ);
    checks.equal("mmap of too much", outcome(huge), Err(Errno::ENOMEM));
    let odd = call(sys::MUNMAP, one.addr() + 1, PAGE_BYTES, 0);
    checks.equal("munmap of half a page", outcome(odd), Err(Errno::EINVAL));
    let nothing = call(sys::MUNMAP, one.addr(), 0, 0);
    checks.equal("munmap of nothing", outcome(nothing), Err(Errno::EINVAL));
    let beyond = call(sys::MUNMAP, KERNEL, PAGE_BYTES, 0);
    checks.equal("munmap of the kernel", outcome(beyond), Err(Errno::EINVAL));
    checks.equal("memory after all that", read(one, 5), 6);
}

/// Pipes: data, ends, and descriptors that are none.
fn pipes(checks: &mut Checks) {
    let [from, to] = sys::pipe().expect("a pipe");
    let mut buffer = [0; 8];
    checks.equal("write to a pipe", sys::write(to, b"abcdef"), Ok(6));
    checks.equal("read of less", sys::read(from, &mut buffer[..2]), Ok(2));
    checks.equal("read of the rest", sys::read(from, &mut buffer[2..]), Ok(4));
    checks.equal("what was read", buffer, *b"abcdef\0\0");
    checks.equal("write of nothing", sys::write(to, b""), Ok(0));

    let wrong_end = sys::read(to, &mut buffer);
    checks.equal("read of a write end", wrong_end, Err(Errno::EBADF));
    checks.equal("write to a read end", sys::write(from, b"x"), Err(Errno::EBADF));
    checks.equal("read of no file", sys::read(NO_FD, &mut buffer), Err(Errno::EBADF));
    checks.equal("write to no file", sys::write(NO_FD, b"x"), Err(Errno::EBADF));
    checks.equal("write to file -1", sys::write(-1, b"x"), Err(Errno::EBADF));
    checks.equal("close of no file", sys::close(NO_FD), Err(Errno::EBADF));

    sys::write(to, b"last").expect("there is room");
    checks.equal("close", sys::close(to), Ok(()));
    checks.equal("close twice", sys::close(to), Err(Errno::EBADF));
    checks.equal("data outlives the write end", sys::read(from, &mut buffer), Ok(4));
    checks.equal("end of file", sys::read(from, &mut buffer), Ok(0));
    checks.equal("end of file again", sys::read(from, &mut buffer), Ok(0));
    sys::close(from).expect("it is open");

    ignore_sigpipe(checks);
    let [from, to] = sys::pipe().expect("a second pipe");
    sys::close(from).expect("it is open");
    checks.equal("write without reader", sys::write(to, b"x"), Err(Errno::EPIPE));
    sys::close(to).expect("it is open");

    more_than_fits(checks);
}

/// Keeps SIGPIPE from ending the program.
fn ignore_sigpipe(checks: &mut Checks) {
    // struct sigaction: handler, flags, restorer, mask. Handler 1 ignores.
    let ignore = [1_u64, 0, 0, 0];
    let address = ignore.as_ptr().expose_provenance();
    let args = [sys::int(sys::SIGPIPE), address, 0, 8, 0, 0];
    // SAFETY: 1. with a null third argument nothing is written; 2. nothing is mapped.
    let answer = sys::check(unsafe { sys::raw(sys::RT_SIGACTION, args) });
    let fine = matches!(answer, Ok(0) | Err(Errno::ENOSYS));
    checks.equal("SIGPIPE is ignored or unknown", fine, true);
}

/// A child writes more than a pipe holds, so both ends must wait for each other.
fn more_than_fits(checks: &mut Checks) {
    const CHUNKS: usize = 200;
    let [from, to] = sys::pipe().expect("a pipe");
    let child = sys::fork().expect("a child");
    if child == 0 {
        let mut chunk = [0; 1000];
        for (value, byte) in (0_u8..250).cycle().zip(&mut chunk) {
            *byte = value;
        }
        let whole = (0..CHUNKS).all(|_| sys::write(to, &chunk) == Ok(chunk.len()));
        sys::exit(i32::from(!whole));
    }
    sys::close(to).expect("it is open");
    let (mut bytes, mut wrong) = (0, 0);
    let mut buffer = [0; 777];
    while let Ok(count @ 1..) = sys::read(from, &mut buffer) {
        for &byte in &buffer[..count] {
            wrong += usize::from(usize::from(byte) != bytes % 250);
            bytes += 1;
        }
    }
    let status = sys::wait4(child).expect("the child is ours").1;
    checks.equal("a long stream is whole", (bytes, wrong, status), (CHUNKS * 1000, 0, 0));
    sys::close(from).expect("it is open");
}

/// Pointers that the kernel must refuse, and some that it must not.
fn pointers(checks: &mut Checks) {
    let [from, to] = sys::pipe().expect("a pipe");
    let [from_fd, to_fd] = [sys::int(from), sys::int(to)];
    // There is data to be read, so that only the address can be at fault.
    sys::write(to, &[b'd'; 64]).expect("there is room");
    for (address, length, write, read, make) in [
        (0, 1, "write from 0", "read to 0", "pipe to 0"),
        (16, 1, "write from 16", "read to 16", "pipe to 16"),
        (
            KERNEL,
            1,
            "write from the kernel",
            "read to the kernel",
            "pipe to the kernel",
        ),
        (
            NON_CANONICAL,
            1,
            "write from neither half",
            "read to neither half",
            "pipe to neither half",
        ),
        (
            usize::MAX,
            1,
            "write from the last byte",
            "read to the last byte",
            "pipe to the last byte",
        ),
        (
            LAST_USER_PAGE,
            2 * PAGE_BYTES,
            "write across the halves",
            "read across the halves",
            "pipe to an unmapped page",
        ),
        (
            usize::MAX - 4095,
            2 * PAGE_BYTES,
            "write across the end",
            "read across the end",
            "pipe to the end",
        ),
    ] {
        let written = call(sys::WRITE, to_fd, address, length);
        checks.equal(write, written, Err(Errno::EFAULT));
        let got = call(sys::READ, from_fd, address, length);
        checks.equal(read, got, Err(Errno::EFAULT));
        let made = call(sys::PIPE, address, 0, 0);
        checks.equal(make, made, Err(Errno::EFAULT));
    }

    let fixed = sys::mmap(0, PAGE_BYTES, PROT_READ).expect("a page");
    let got = call(sys::READ, from_fd, fixed.addr(), 1);
    checks.equal("read to a read-only page", got, Err(Errno::EFAULT));
    #[expect(clippy::fn_to_numeric_cast_any, reason = "an address of code is what is wanted")]
    let code = pointers as fn(&mut Checks) as usize;
    checks.equal("read to code", call(sys::READ, from_fd, code, 1), Err(Errno::EFAULT));

    // Pages that nobody has touched yet are as good as any other.
    let [from, to] = sys::pipe().expect("a pipe");
    let fresh = sys::mmap(0, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE).expect("two pages");
    let across = fresh.wrapping_add(PAGE_BYTES - 4);
    // SAFETY: these 8 bytes are mapped, and no other reference to them exists.
    let bytes = unsafe { core::slice::from_raw_parts_mut(across, 8) };
    checks.equal("write from untouched pages", sys::write(to, bytes), Ok(8));
    let mut zeros = [1; 8];
    checks.equal("its bytes arrive", sys::read(from, &mut zeros), Ok(8));
    checks.equal("its bytes are zero", zeros, [0; 8]);

    let fresh = sys::mmap(0, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE).expect("two pages");
    let across = fresh.wrapping_add(PAGE_BYTES - 4);
    // SAFETY: these 8 bytes are mapped, and no other reference to them exists.
    let bytes = unsafe { core::slice::from_raw_parts_mut(across, 8) };
    sys::write(to, b"12345678").expect("there is room");
    checks.equal("read to untouched pages", sys::read(from, bytes), Ok(8));
    checks.equal("its bytes are there", &*bytes, b"12345678");
}

/// `fork`, `wait4` and signals that end a child.
fn processes(checks: &mut Checks) {
    let alone = sys::wait4(-1);
    checks.equal("wait4 without children", outcome(alone), Err(Errno::ECHILD));
    checks.equal("exit status of a child", in_child(|| 7), 7 << 8);
    checks.equal("exit keeps 8 bits", in_child(|| 0x1234), 0x34 << 8);

    let parent = sys::getpid();
    let status = in_child(|| i32::from(sys::getppid() != parent || sys::getpid() == parent));
    checks.equal("a child knows its parent", status, 0);

    let child = sys::fork().expect("a child");
    if child == 0 {
        loop {
            // The wait ends with the process.
            let _ = sys::sched_yield();
        }
    }
    checks.equal("kill with SIGWINCH of a child", sys::kill(child, sys::SIGWINCH), Ok(()));
    checks.equal("kill with SIGKILL of a child", sys::kill(child, sys::SIGKILL), Ok(()));
    checks.equal("wait4 for the killed", sys::wait4(child), Ok((child, sys::SIGKILL)));
    checks.equal("kill of the dead", sys::kill(child, 0), Err(Errno::ESRCH));

    let [from, to] = sys::pipe().expect("a pipe");
    let child = sys::fork().expect("a child");
    if child == 0 {
        // Nothing is ever written, and the child itself holds the write end.
        let _ = sys::read(from, &mut [0]);
        sys::exit(0);
    }
    for _ in 0..4 {
        sys::sched_yield().expect("it cannot fail");
    }
    checks.equal(
        "kill with SIGKILL of a child that waits",
        sys::kill(child, sys::SIGKILL),
        Ok(()),
    );
    checks.equal("wait4 for that child", sys::wait4(child), Ok((child, sys::SIGKILL)));
    sys::close(to).expect("it is open");
    checks.equal("its end of the pipe is closed", sys::read(from, &mut [0]), Ok(0));
    sys::close(from).expect("it is open");
    let yields = (0..100).filter(|_| sys::sched_yield().is_ok()).count();
    checks.equal("sched_yield after its end", yields, 100);

    let fault = in_child(|| {
        // SAFETY: UD2 faults without another effect, and the process ends.
        unsafe { asm!("ud2") };
        0
    });
    // Linux sets bit 7 when it wrote a core file.
    checks.equal("a child that runs UD2 gets SIGILL", fault & 0x7f, 4);
    let fault = in_child(|| {
        // SAFETY: the read faults, and the process ends.
        unsafe { asm!("mov rax, [{at}]", at = in(reg) KERNEL, out("rax") _) };
        0
    });
    checks.equal("a child that reads the kernel gets SIGSEGV", fault & 0x7f, 11);
}

/// `arch_prctl`: the base of FS, over system calls and switches.
fn segment_base(checks: &mut Checks) {
    static MINE: u64 = 0x1122_3344_5566_7788;
    static OTHER: u64 = 0x99aa_bbcc_ddee_ff00;
    let address = |word: &'static u64| core::ptr::from_ref(word).expose_provenance();
    let set = |word| call(sys::ARCH_PRCTL, sys::ARCH_SET_FS, address(word), 0);
    let load = || {
        let value: u64;
        // SAFETY: every caller has set FS.base to a static u64 before.
        unsafe { asm!("mov {}, fs:[0]", out(reg) value, options(nostack, readonly)) };
        value
    };

    checks.equal("ARCH_SET_FS", set(&MINE), Ok(0));
    checks.equal("a load through FS", load(), MINE);
    let mut base = 0_usize;
    let store = (&raw mut base).expose_provenance();
    let args = [sys::ARCH_GET_FS, store, 0, 0, 0, 0];
    // SAFETY: 1. ARCH_GET_FS writes 8 bytes to `base`; 2. nothing is mapped.
    let got = sys::check(unsafe { sys::raw(sys::ARCH_PRCTL, args) });
    checks.equal("ARCH_GET_FS", (got, base), (Ok(0), address(&MINE)));

    let status = in_child(|| {
        let inherited = load() == MINE;
        let changed = set(&OTHER) == Ok(0) && sys::sched_yield().is_ok() && load() == OTHER;
        i32::from(!(inherited && changed))
    });
    checks.equal("FS of a child is its own", status, 0);
    checks.equal("FS outlives the switches", load(), MINE);

    let refused = call(sys::ARCH_PRCTL, sys::ARCH_SET_FS, NON_CANONICAL, 0);
    checks.equal("ARCH_SET_FS to neither half", refused, Err(Errno::EPERM));
    let refused = call(sys::ARCH_PRCTL, sys::ARCH_SET_FS, KERNEL, 0);
    checks.equal("ARCH_SET_FS to the kernel", refused, Err(Errno::EPERM));
    let refused = call(sys::ARCH_PRCTL, sys::ARCH_GET_FS, KERNEL, 0);
    checks.equal("ARCH_GET_FS to the kernel", refused, Err(Errno::EFAULT));
    let refused = call(sys::ARCH_PRCTL, 0x7777, 0, 0);
    checks.equal("arch_prctl of no operation", refused, Err(Errno::EINVAL));
    checks.equal("FS after all that", load(), MINE);
}
