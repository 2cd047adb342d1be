//! A kernel that leaves SYSCALL and SYSENTER off: INT 0x80 is its one system call, IRET its one way out.
//!
//! Runs on TCG with any CPU model, and on Bochs.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/assembly.rs"]
mod assembly;
#[path = "process/run.rs"]
mod run;

use assembly::program;
use entry_core::address::Width;
use entry_core::cpu::CpuFeatures;
use entry_core::msr::{Cpu, Efer, Register, SysenterCs};
use entry_core::plan::{EntryPoints, SyscallPlan};
use entry_core::rflags::FlagMask;
use entry_core::vector::Vector;
use entry_core::{EntryKind, IrqOff, NoTracking, SegmentLayout, TrapFrame};
use entry_sysret::IretOnly;
use entry_sysret::context::{RunKernel, UserEvent};
use example_os::entry::{LAYOUT, UserRules};
use example_os::harness::Suite;
use example_os::registers::Registers;
use run::{CODE, Machine};

/// The kernel under test.
struct Int80Only;

// SAFETY: 1., 3. and 4. by `entry::install`. 2. By `entry::hand_over`; no process runs, so nobody changes the stacks.
unsafe impl RunKernel for Int80Only {
    type Exit = IretOnly<UserRules>;
    type Tracking = NoTracking;
    type Msrs = Cpu;
    const LAYOUT: SegmentLayout = LAYOUT;

    fn kernel_exception(frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
        panic!("exception in the kernel\n{frame}");
    }

    fn kernel_interrupt(frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
        panic!("the tests leave interrupts off\n{frame}");
    }

    fn paranoid(frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
        panic!("nobody raises one\n{frame}");
    }

    fn nested_paranoid(frame: &TrapFrame) -> ! {
        panic!("nested\n{frame}");
    }
}

impl Suite for Machine<Int80Only> {
    fn set_up() -> Self {
        let mut machine = Self::new();
        let plan = SyscallPlan::new(
            &LAYOUT,
            FlagMask::REQUIRED,
            &EntryPoints::default(),
            &CpuFeatures::detect(),
            Width::Bits48,
        )
        .unwrap();
        assert!(!plan.has_syscall() && !plan.has_sysenter());
        // SAFETY: 1. this is the kernel, and the features are this CPU's. 2. There are no entry points. 3. By `install`. 4. They
        // are this CPU's registers.
        machine.installed = unsafe { plan.install(&mut Cpu) }.unwrap();
        // SAFETY: as above.
        assert!(unsafe { plan.read_back(&mut Cpu) }.agrees());
        machine
    }
}

/// CF, PF, AF, ZF, SF, DF, OF, NT, AC and ID; IF and bit 1.
const FLAGS: u64 = 0x8d5 | 0x400 | 0x4000 | 0x4_0000 | 0x20_0000 | 0x202;

/// The registers of `frame` with a number of its own in each that a program is free to choose.
fn filled(frame: &TrapFrame) -> Registers {
    let mut words = Registers::read(frame);
    for (number, word) in (1..).zip(words.first(Registers::GENERAL + 1)) {
        *word = 0x0101_0101_0101_0101 * number;
    }
    words.with(Registers::RFLAGS, FLAGS)
}

const fn exception(vector: Vector) -> UserEvent {
    UserEvent::Exception { vector, error_code: 0 }
}

example_os::tests! { Machine<Int80Only>;
    fn system_calls_by_int80_come_and_go_with_all_registers(machine) {
        let mut context = machine.load(program!("4:", "int 0x80", "jmp 4b"));
        filled(context.frame()).write(context.frame_mut());
        for _ in 0..100 {
            assert_eq!(machine.run(&mut context), UserEvent::SystemCall);
            let frame = context.frame();
            assert_eq!((frame.entry_kind(), frame.rip()), (Some(EntryKind::Int80), CODE + 2));
            // RCX and R11, too: neither INT nor IRET destroys them.
            assert_eq!(Registers::read(frame), filled(frame));
        }
    }

    fn registers_that_look_like_those_of_syscall_leave_by_iret(machine) {
        let mut context = machine.load(program!("int 0x80", "int3"));
        context.frame_mut().set_rcx(CODE + 2);
        context.frame_mut().set_r11(FLAGS);
        context.frame_mut().set_rflags(FLAGS);
        assert_eq!(machine.run(&mut context), UserEvent::SystemCall);
        assert_eq!((context.frame().rcx(), context.frame().r11()), (context.frame().rip(), context.frame().rflags()));
        assert_eq!(machine.run(&mut context), exception(Vector::BREAKPOINT));
        assert_eq!((context.frame().rcx(), context.frame().r11()), (CODE + 2, FLAGS));
    }

    fn syscall_is_an_invalid_opcode(machine) {
        // SAFETY: 1. this is the kernel. 2. Every CPU in 64-bit mode has it.
        let efer = unsafe { Efer::read(&mut Cpu) };
        assert!(!efer.contains(Efer::SYSTEM_CALL_ENABLE));
        let mut context = machine.load(program!("syscall"));
        assert_eq!(machine.run(&mut context), exception(Vector::INVALID_OPCODE));
        assert_eq!(context.frame().rip(), CODE);
    }

    fn sysenter_is_off(machine) {
        // SAFETY: 1. this is the kernel. 2. Every model here has it.
        assert_eq!(unsafe { SysenterCs::read(&mut Cpu) }, SysenterCs::DISABLED);
        let mut context = machine.load(program!("sysenter"));
        // #GP with a null selector; #UD where there is no such instruction in long mode.
        let event = machine.run(&mut context);
        let wanted = [Vector::GENERAL_PROTECTION, Vector::INVALID_OPCODE].map(exception);
        assert!(wanted.contains(&event), "{event}");
    }
}
