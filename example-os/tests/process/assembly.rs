//! Programs in assembly, as bytes.

/// Assembles a program; its value is the code. Labels from 4 up are free.
macro_rules! program {
    ($($line:literal),+ $(; $name:ident = $value:expr)* $(,)?) => {{
        let start: *const u8;
        let end: *const u8;
        // SAFETY: the code is put aside, not executed; two addresses are computed.
        unsafe {
            core::arch::asm!(
                ".pushsection .rodata.programs, \"a\", @progbits",
                "2:",
                $($line,)+
                "3:",
                ".popsection",
                "lea {start}, [rip + 2b]",
                "lea {end}, [rip + 3b]",
                start = out(reg) start,
                end = out(reg) end,
                $($name = const $value,)*
                options(nomem, nostack, preserves_flags),
            );
        }
        // SAFETY: both labels are in one section, and what lies between is never written.
        unsafe { core::slice::from_raw_parts(start, end.addr() - start.addr()) }
    }};
}

pub(crate) use program;
