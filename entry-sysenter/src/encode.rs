//! The machine code this crate generates, one function per instruction.
//!
//! Every byte that is executed because this crate wrote it comes from here. The functions are pure and `const`: they
//! take values and give an array, and say no where an operand has no encoding. Their output is checked against an
//! independent disassembler.
//!
//! Names follow the manuals: mnemonic, then operands, destination first. *Field* is the memory word that holds a stack
//! pointer; *at* is the address that the instruction itself will have.
//!
//! # Source
//!
//! Intel SDM vol. 2A, *Instruction Format*: ModR/M, SIB and the RIP-relative form of ModR/M; AMD APM vol. 3,
//! *Instruction Encoding*.

use crate::error::OutOfReach;
use crate::guard::guard;

/// Bytes of `mov esp, [abs32]`.
pub const MOV_ESP_ABS32: usize = 6;
/// Bytes of `mov rsp, [rip + disp32]`.
pub const MOV_RSP_RIP: usize = 7;
/// Bytes of `mov rsp, [disp32]`.
pub const MOV_RSP_ABS: usize = 8;
/// Bytes of `mov rsp, gs:[disp32]`.
pub const MOV_RSP_GS: usize = 9;
/// Bytes of `jmp rel32`.
pub const JMP_REL32: usize = 5;

/// `mov esp, [field]`, protected mode.
///
/// *8B /r* with mod 00, r/m 101: a 32-bit absolute address. The opcode is the same in 64-bit mode, where it means
/// something else (RIP-relative): these bytes belong in 32-bit code alone.
///
/// ```
/// use entry_sysenter::encode;
/// assert_eq!(encode::mov_esp_abs32(0xc030_1004), [0x8b, 0x25, 0x04, 0x10, 0x30, 0xc0]);
/// ```
#[must_use]
pub const fn mov_esp_abs32(field: u32) -> [u8; MOV_ESP_ABS32] {
    let [a, b, c, d] = field.to_le_bytes();
    [0x8b, 0x25, a, b, c, d]
}

/// `jmp target`, protected mode.
///
/// *E9 cd*. EIP is computed modulo 2^32, so every target can be reached.
#[must_use]
pub const fn jmp_rel32_32(at: u32, target: u32) -> [u8; JMP_REL32] {
    let [a, b, c, d] = target.wrapping_sub(at).wrapping_sub(5).to_le_bytes();
    [0xe9, a, b, c, d]
}

/// `jmp target`, 64-bit mode.
///
/// *E9 cd*: the displacement counts from the end of the instruction, and is sign-extended.
///
/// # Errors
///
/// The target is further than a signed 32-bit displacement.
pub const fn jmp_rel32_64(at: u64, target: u64) -> Result<[u8; JMP_REL32], OutOfReach> {
    match displacement(at.wrapping_add(5), target) {
        Ok([a, b, c, d]) => Ok([0xe9, a, b, c, d]),
        Err(error) => Err(error),
    }
}

/// `mov rsp, [field]`, the address as a displacement from the end of the instruction.
///
/// *REX.W 8B /r* with mod 00, r/m 101.
///
/// # Errors
///
/// The field is further than a signed 32-bit displacement.
pub const fn mov_rsp_rip(at: u64, field: u64) -> Result<[u8; MOV_RSP_RIP], OutOfReach> {
    match displacement(at.wrapping_add(7), field) {
        Ok([a, b, c, d]) => Ok([0x48, 0x8b, 0x25, a, b, c, d]),
        Err(error) => Err(error),
    }
}

/// `mov rsp, [field]`, the address as a sign-extended 32-bit number: the lowest or the highest 2 GiB.
///
/// *REX.W 8B /r* with mod 00, r/m 100 and a SIB byte without base and index.
///
/// # Errors
///
/// Bits 63:31 of the address are not all equal.
pub const fn mov_rsp_abs(field: u64) -> Result<[u8; MOV_RSP_ABS], OutOfReach> {
    match displacement(0, field) {
        Ok([a, b, c, d]) => Ok([0x48, 0x8b, 0x24, 0x25, a, b, c, d]),
        Err(error) => Err(error),
    }
}

/// `mov rsp, gs:[offset]`.
///
/// As [`mov_rsp_abs`], with a GS override. Whose GS base it is, is for the code before it to see to.
#[must_use]
pub const fn mov_rsp_gs(offset: i32) -> [u8; MOV_RSP_GS] {
    let [a, b, c, d] = offset.to_le_bytes();
    [0x65, 0x48, 0x8b, 0x24, 0x25, a, b, c, d]
}

/// `swapgs`.
pub const SWAPGS: [u8; 3] = [0x0f, 0x01, 0xf8];
/// `sysenter`.
pub const SYSENTER: [u8; 2] = [0x0f, 0x34];
/// `syscall`.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `int 0x80`.
pub const INT_80: [u8; 2] = [0xcd, 0x80];
/// `ret`, near.
pub const RET: [u8; 1] = [0xc3];
/// `int3`: what fills a page, so that a stray jump into it stops.
pub const INT3: u8 = 0xcc;
/// `mov rcx, rsp`.
pub const MOV_RCX_RSP: [u8; 3] = [0x48, 0x89, 0xe1];
/// `mov ebp, esp`.
pub const MOV_EBP_ESP: [u8; 2] = [0x89, 0xe5];
/// `mov ebp, ecx`.
pub const MOV_EBP_ECX: [u8; 2] = [0x89, 0xcd];
/// `push ecx`.
pub const PUSH_ECX: [u8; 1] = [0x51];
/// `push edx`.
pub const PUSH_EDX: [u8; 1] = [0x52];
/// `push ebp`.
pub const PUSH_EBP: [u8; 1] = [0x55];
/// `pop ecx`.
pub const POP_ECX: [u8; 1] = [0x59];
/// `pop edx`.
pub const POP_EDX: [u8; 1] = [0x5a];
/// `pop ebp`.
pub const POP_EBP: [u8; 1] = [0x5d];

/// `lea r11, [rip + forward]`: the address `forward` bytes behind this instruction.
#[must_use]
pub const fn lea_r11_rip(forward: u8) -> [u8; 7] {
    [0x4c, 0x8d, 0x1d, forward, 0, 0, 0]
}

/// The distance from `origin` to `target` as the four bytes of an instruction, if it is a signed 32-bit number.
const fn displacement(origin: u64, target: u64) -> Result<[u8; 4], OutOfReach> {
    let [a, b, c, d, e, f, g, h] = target.wrapping_sub(origin).to_le_bytes();
    let sign = if d & 0x80 == 0 { 0 } else { 0xff };
    let is_in_reach = e == sign && f == sign && g == sign && h == sign;
    if guard!("trampoline-out-of-reach", !is_in_reach) {
        return Err(OutOfReach { origin, target });
    }
    Ok([a, b, c, d])
}
