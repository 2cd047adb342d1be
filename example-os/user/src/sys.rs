//! System calls with Linux's numbers, registers and error numbers.
//!
//! RAX holds the number, RDI, RSI, RDX, R10, R8 and R9 the arguments; RAX returns the result, or
//! an error number from -4095 to -1. RCX and R11 are destroyed, every other register is kept.

use core::arch::asm;
use core::fmt;

/// `read` by number, for callers of [`raw`].
pub const READ: usize = 0;
/// `write` by number.
pub const WRITE: usize = 1;
/// `close` by number.
pub const CLOSE: usize = 3;
/// `mmap` by number.
pub const MMAP: usize = 9;
/// `munmap` by number.
pub const MUNMAP: usize = 11;
/// `rt_sigaction` by number.
pub const RT_SIGACTION: usize = 13;
/// `pipe` by number.
pub const PIPE: usize = 22;
/// `sched_yield` by number.
pub const SCHED_YIELD: usize = 24;
/// `madvise` by number.
pub const MADVISE: usize = 28;
/// `getpid` by number.
pub const GETPID: usize = 39;
/// `fork` by number.
pub const FORK: usize = 57;
/// `wait4` by number.
pub const WAIT4: usize = 61;
/// `kill` by number.
pub const KILL: usize = 62;
/// `getppid` by number.
pub const GETPPID: usize = 110;
/// `sched_setscheduler` by number.
pub const SCHED_SETSCHEDULER: usize = 144;
/// `arch_prctl` by number.
pub const ARCH_PRCTL: usize = 158;
/// `sched_setaffinity` by number.
pub const SCHED_SETAFFINITY: usize = 203;
/// `exit_group` by number.
pub const EXIT_GROUP: usize = 231;

/// Protection bit: pages may be read.
pub const PROT_READ: usize = 1;
/// Protection bit: pages may be written.
pub const PROT_WRITE: usize = 2;
/// Mapping bit: changes stay in this process.
pub const MAP_PRIVATE: usize = 2;
/// Mapping bit: memory of zeros, no file.
pub const MAP_ANONYMOUS: usize = 0x20;

/// Signal that cannot be caught: ends the process.
pub const SIGKILL: i32 = 9;
/// Signal for a write into a pipe without reader.
pub const SIGPIPE: i32 = 13;
/// Signal for a changed window size; ignored by default.
pub const SIGWINCH: i32 = 28;

/// `arch_prctl` operation that sets GS.base.
pub const ARCH_SET_GS: usize = 0x1001;
/// `arch_prctl` operation that sets FS.base.
pub const ARCH_SET_FS: usize = 0x1002;
/// `arch_prctl` operation that stores FS.base at the address in the second argument.
pub const ARCH_GET_FS: usize = 0x1003;

/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub usize);

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Self = Self(1);
    /// No such process.
    pub const ESRCH: Self = Self(3);
    /// Bad file descriptor.
    pub const EBADF: Self = Self(9);
    /// No child process.
    pub const ECHILD: Self = Self(10);
    /// Out of memory.
    pub const ENOMEM: Self = Self(12);
    /// Bad address.
    pub const EFAULT: Self = Self(14);
    /// Invalid argument.
    pub const EINVAL: Self = Self(22);
    /// Pipe without reader.
    pub const EPIPE: Self = Self(32);
    /// No such system call.
    pub const ENOSYS: Self = Self(38);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::EPERM => "EPERM",
            Self::ESRCH => "ESRCH",
            Self::EBADF => "EBADF",
            Self::ECHILD => "ECHILD",
            Self::ENOMEM => "ENOMEM",
            Self::EFAULT => "EFAULT",
            Self::EINVAL => "EINVAL",
            Self::EPIPE => "EPIPE",
            Self::ENOSYS => "ENOSYS",
            Self(number) => return write!(f, "errno {number}"),
        };
        f.write_str(name)
    }
}

/// Makes system call `number` and returns RAX as the kernel left it.
///
/// # Safety
/// 1. The call writes only to memory that `args` names and that the caller may change.
/// 2. The call unmaps no memory that is still used, and maps none over it.
#[must_use]
pub unsafe fn raw(number: usize, args: [usize; 6]) -> usize {
    let result;
    // SAFETY: SYSCALL destroys RAX, RCX and R11, all declared; memory effects are 1. and 2.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Splits what [`raw`] returned into value and error number.
///
/// # Errors
/// The error number, where `result` is one.
pub const fn check(result: usize) -> Result<usize, Errno> {
    if result > usize::MAX - 4095 {
        Err(Errno(result.wrapping_neg()))
    } else {
        Ok(result)
    }
}

/// An `int` argument as it stands in a register.
#[must_use]
pub const fn int(value: i32) -> usize {
    (value as isize).cast_unsigned()
}

/// The low 32 bits of a result, as Linux's `int`.
const fn to_int(value: usize) -> i32 {
    let bytes = value.to_le_bytes();
    i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Writes bytes and returns how many were taken.
///
/// # Errors
/// `EBADF`, `EPIPE`.
pub fn write(fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
    let args = [int(fd), bytes.as_ptr().expose_provenance(), bytes.len(), 0, 0, 0];
    // SAFETY: 1. and 2. hold since `write` only reads `bytes`.
    check(unsafe { raw(WRITE, args) })
}

/// Reads bytes and returns how many came; 0 is the end.
///
/// # Errors
/// `EBADF`.
pub fn read(fd: i32, bytes: &mut [u8]) -> Result<usize, Errno> {
    let args = [int(fd), bytes.as_mut_ptr().expose_provenance(), bytes.len(), 0, 0, 0];
    // SAFETY: 1. `read` writes to `bytes`, which is borrowed for it; 2. it maps nothing.
    check(unsafe { raw(READ, args) })
}

/// Closes a file descriptor.
///
/// # Errors
/// `EBADF`.
pub fn close(fd: i32) -> Result<(), Errno> {
    // SAFETY: 1. and 2. hold since `close` touches no memory.
    check(unsafe { raw(CLOSE, [int(fd), 0, 0, 0, 0, 0]) }).map(drop)
}

/// Makes a pipe: its read end and its write end.
///
/// # Errors
/// `EMFILE` and `ENFILE`, when there are too many.
pub fn pipe() -> Result<[i32; 2], Errno> {
    let mut ends = [0; 2];
    let args = [ends.as_mut_ptr().expose_provenance(), 0, 0, 0, 0, 0];
    // SAFETY: 1. `pipe` writes two ints to `ends`; 2. it maps nothing.
    check(unsafe { raw(PIPE, args) })?;
    Ok(ends)
}

/// Maps `length` bytes of private zeros, at `hint` if that is free, and returns their address.
///
/// # Errors
/// `EINVAL` for a length of 0, `ENOMEM` for one that does not fit.
pub fn mmap(hint: usize, length: usize, protection: usize) -> Result<*mut u8, Errno> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let args = [hint, length, protection, flags, usize::MAX, 0];
    // SAFETY: 1. nothing is written; 2. without MAP_FIXED the kernel only takes free addresses.
    let address = check(unsafe { raw(MMAP, args) })?;
    Ok(core::ptr::with_exposed_provenance_mut(address))
}

/// Unmaps `length` bytes from `address` on.
///
/// # Errors
/// `EINVAL` for an address that is not a page's first, or for a length of 0.
///
/// # Safety
/// 1. The range came from [`mmap`] and nothing uses it any more.
pub unsafe fn munmap(address: *mut u8, length: usize) -> Result<(), Errno> {
    let args = [address.expose_provenance(), length, 0, 0, 0, 0];
    // SAFETY: 1. nothing is written; 2. is this function's own 1.
    check(unsafe { raw(MUNMAP, args) }).map(drop)
}

/// This process's number.
#[must_use]
pub fn getpid() -> i32 {
    // SAFETY: 1. and 2. hold since `getpid` touches no memory.
    to_int(unsafe { raw(GETPID, [0; 6]) })
}

/// The parent's number, 0 when there is none.
#[must_use]
pub fn getppid() -> i32 {
    // SAFETY: 1. and 2. hold since `getppid` touches no memory.
    to_int(unsafe { raw(GETPPID, [0; 6]) })
}

/// Sends a signal; signal 0 only asks whether the process exists.
///
/// # Errors
/// `ESRCH`, `EINVAL`.
pub fn kill(pid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: 1. and 2. hold: no program here installs a handler that could run.
    check(unsafe { raw(KILL, [int(pid), int(signal), 0, 0, 0, 0]) }).map(drop)
}

/// Lets another process run.
///
/// # Errors
/// None that either kernel documents.
pub fn sched_yield() -> Result<(), Errno> {
    // SAFETY: 1. and 2. hold since `sched_yield` touches no memory.
    check(unsafe { raw(SCHED_YIELD, [0; 6]) }).map(drop)
}

/// Doubles the process: returns 0 in the child and the child's number in the parent.
///
/// # Errors
/// `EAGAIN`, `ENOMEM`.
pub fn fork() -> Result<i32, Errno> {
    // SAFETY: 1. and 2. hold: memory is copied, and there is no second thread that could miss it.
    check(unsafe { raw(FORK, [0; 6]) }).map(to_int)
}

/// Waits for child `pid`, or for any when it is -1: returns its number and its wait status.
///
/// # Errors
/// `ECHILD`.
pub fn wait4(pid: i32) -> Result<(i32, i32), Errno> {
    let mut status: i32 = 0;
    let address = (&raw mut status).expose_provenance();
    // SAFETY: 1. `wait4` writes one int to `status`; 2. it maps nothing.
    let child = check(unsafe { raw(WAIT4, [int(pid), address, 0, 0, 0, 0]) })?;
    Ok((to_int(child), status))
}

/// Ends the process; the parent sees the low 8 bits.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: 1. and 2. hold since nothing runs in this process afterwards.
        let _ = unsafe { raw(EXIT_GROUP, [int(status), 0, 0, 0, 0, 0]) };
    }
}
