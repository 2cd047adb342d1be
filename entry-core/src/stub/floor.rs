//! The least that SYSCALL and SYSRET can be, for comparison.

use crate::guard::stop;
use crate::percpu::PerCpuHeader;

/// Switches GS and the stack, puts zero into RAX, and goes back. **For measuring only**: it tests nothing, so it has the
/// SYSRET fault, and it tells nobody that user mode was left.
///
/// **Reached by**: SYSCALL at CPL 3 in 64-bit mode, through IA32_LSTAR.
///
/// | register | in | out |
/// |---|---|---|
/// | RAX | number | 0 |
/// | others | user's | user's |
///
/// # Safety
///
/// 1. It is reached by SYSCALL alone, on a CPU that was set up as [`Kernel`](crate::kernel::Kernel) demands.
/// 2. The program that runs doesn't execute SYSCALL in the last bytes of the lower canonical half, nor with TF set.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub unsafe extern "sysv64" fn syscall_floor() -> ! {
    core::arch::naked_asm!(
        "swapgs",
        "mov gs:[{scratch}], rsp",
        "mov rsp, gs:[{stack}]",
        "xor eax, eax",
        "mov rsp, gs:[{scratch}]",
        "swapgs",
        "sysretq",
        stop!(),
        scratch = const PerCpuHeader::SCRATCH_RSP,
        stack = const PerCpuHeader::KERNEL_STACK,
    )
}
