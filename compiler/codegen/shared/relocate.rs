//! Relocations of an object that are resolved when a shared library is written, for the machines that onnxc
//! supports.

use crate::diag::{Failure, Result};
use object::elf;

/// Bytes of a stub: a jump to an imported function through its GOT entry.
pub const STUB: u64 = 16;

/// The kind of value that a relocation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The symbol's address as data, which depends on where the library is loaded.
    Address,
    /// The symbol itself, or a stub if it is imported.
    Direct,
    /// The symbol's GOT entry.
    Got,
    /// The value of another relocation: the low half of an address on RISC-V.
    Pair,
}

/// The kind of value that a relocation of this type needs.
pub fn need(machine: u16, r_type: u32) -> Result<Need> {
    use elf::*;
    Ok(match (machine, r_type) {
        (EM_X86_64, R_X86_64_64) | (EM_AARCH64, R_AARCH64_ABS64) | (EM_RISCV, R_RISCV_64) => Need::Address,
        (EM_X86_64, R_X86_64_PC32 | R_X86_64_PLT32) => Need::Direct,
        (EM_X86_64, R_X86_64_GOTPCREL | R_X86_64_GOTPCRELX | R_X86_64_REX_GOTPCRELX) => Need::Got,
        (EM_AARCH64, R_AARCH64_CALL26 | R_AARCH64_JUMP26 | R_AARCH64_PREL32) => Need::Direct,
        (EM_AARCH64, R_AARCH64_ADR_PREL_PG_HI21 | R_AARCH64_ADD_ABS_LO12_NC) => Need::Direct,
        (EM_AARCH64, R_AARCH64_ADR_GOT_PAGE | R_AARCH64_LD64_GOT_LO12_NC) => Need::Got,
        (EM_RISCV, R_RISCV_CALL | R_RISCV_CALL_PLT | R_RISCV_PCREL_HI20 | R_RISCV_32_PCREL) => Need::Direct,
        (EM_RISCV, R_RISCV_GOT_HI20) => Need::Got,
        (EM_RISCV, R_RISCV_PCREL_LO12_I) => Need::Pair,
        _ => return Err(Failure::bug("shared", format!("relocation {r_type} of ELF machine {machine}"))),
    })
}

/// The dynamic relocation types that add the load address, and that store a symbol's address.
pub fn dynamic(machine: u16) -> Result<(u32, u32)> {
    match machine {
        elf::EM_X86_64 => Ok((elf::R_X86_64_RELATIVE, elf::R_X86_64_GLOB_DAT)),
        elf::EM_AARCH64 => Ok((elf::R_AARCH64_RELATIVE, elf::R_AARCH64_GLOB_DAT)),
        elf::EM_RISCV => Ok((elf::R_RISCV_RELATIVE, elf::R_RISCV_64)),
        _ => Err(Failure::bug("shared", format!("ELF machine {machine}"))),
    }
}

/// Patches `code` at address `p` with the address `s`. For [`Need::Pair`], `s` is the distance from the
/// corresponding high half.
pub fn apply(machine: u16, r_type: u32, code: &mut [u8], p: u64, s: u64) -> Result<()> {
    use elf::*;
    let distance = s.wrapping_sub(p) as i64;
    let far = || Failure::bug("shared", format!("relocation {r_type} reaches {distance} bytes"));
    match (machine, r_type) {
        (EM_X86_64, _) | (EM_AARCH64, R_AARCH64_PREL32) | (EM_RISCV, R_RISCV_32_PCREL) => {
            let d = i32::try_from(distance).map_err(|_| far())?;
            bytes(code, 0, 4)?.copy_from_slice(&d.to_le_bytes());
        }
        (EM_AARCH64, R_AARCH64_CALL26 | R_AARCH64_JUMP26) => {
            (-(1 << 27)..1 << 27).contains(&distance).then_some(()).ok_or_else(far)?;
            insert(code, 0, 0x03ff_ffff, (distance >> 2) as u32)?;
        }
        (EM_AARCH64, R_AARCH64_ADR_PREL_PG_HI21 | R_AARCH64_ADR_GOT_PAGE) => adrp(code, 0, p, s)?,
        (EM_AARCH64, R_AARCH64_ADD_ABS_LO12_NC) => insert(code, 0, 0xfff << 10, (s as u32 & 0xfff) << 10)?,
        (EM_AARCH64, R_AARCH64_LD64_GOT_LO12_NC) => {
            insert(code, 0, 0xfff << 10, ((s as u32 & 0xfff) >> 3) << 10)?
        }
        (EM_RISCV, R_RISCV_CALL | R_RISCV_CALL_PLT) => {
            high(code, 0, distance).ok_or_else(far)?;
            insert(code, 4, 0xfff << 20, (distance as u32) << 20)?;
        }
        (EM_RISCV, R_RISCV_PCREL_HI20 | R_RISCV_GOT_HI20) => high(code, 0, distance).ok_or_else(far)?,
        (EM_RISCV, R_RISCV_PCREL_LO12_I) => insert(code, 0, 0xfff << 20, (s as u32) << 20)?,
        _ => return Err(Failure::bug("shared", format!("relocation {r_type} of ELF machine {machine}"))),
    }
    Ok(())
}

/// The stub at address `p`, which jumps to the address in the GOT entry at `got`.
pub fn stub(machine: u16, p: u64, got: u64) -> Result<[u8; STUB as usize]> {
    let distance = got.wrapping_sub(p) as i64;
    let mut code = [0; STUB as usize];
    let words: &[u32] = match machine {
        elf::EM_X86_64 => {
            // jmp *d(%rip), then int3
            code.fill(0xcc);
            let d = i32::try_from(distance - 6).map_err(|_| Failure::bug("shared", "a GOT beyond 2 GiB"))?;
            code[..2].copy_from_slice(&[0xff, 0x25]);
            code[2..6].copy_from_slice(&d.to_le_bytes());
            return Ok(code);
        }
        // adrp x16, got; ldr x16, [x16, got]; br x16; nop
        elf::EM_AARCH64 => &[0x9000_0010, 0xf940_0210, 0xd61f_0200, 0xd503_201f],
        // auipc t3, got; ld t3, got(t3); jr t3; nop
        elf::EM_RISCV => &[0x0000_0e17, 0x000e_3e03, 0x000e_0067, 0x0000_0013],
        _ => return Err(Failure::bug("shared", format!("ELF machine {machine}"))),
    };
    code.chunks_exact_mut(4).zip(words).for_each(|(c, w)| c.copy_from_slice(&w.to_le_bytes()));
    if machine == elf::EM_AARCH64 {
        adrp(&mut code, 0, p, got)?;
        insert(&mut code, 4, 0xfff << 10, ((got as u32 & 0xfff) >> 3) << 10)?;
    } else {
        high(&mut code, 0, distance).ok_or_else(|| Failure::bug("shared", "a GOT beyond 2 GiB"))?;
        insert(&mut code, 4, 0xfff << 20, (distance as u32) << 20)?;
    }
    Ok(code)
}

/// The high half of a distance in `auipc`; the low half is signed.
fn high(code: &mut [u8], at: usize, distance: i64) -> Option<()> {
    let d = i32::try_from(distance.checked_add(0x800)?).ok()?;
    insert(code, at, 0xffff_f000, d as u32).ok()
}

/// The distance in pages in `adrp`.
fn adrp(code: &mut [u8], at: usize, p: u64, s: u64) -> Result<()> {
    let pages = ((s >> 12) as i64) - ((p >> 12) as i64);
    if !(-(1 << 20)..1 << 20).contains(&pages) {
        return Err(Failure::bug("shared", format!("an address {pages} pages away")));
    }
    insert(code, at, 3 << 29, ((pages & 3) as u32) << 29)?;
    insert(code, at, 0x7_ffff << 5, ((pages >> 2) as u32) << 5)
}

fn insert(code: &mut [u8], at: usize, mask: u32, value: u32) -> Result<()> {
    let b = bytes(code, at, 4)?;
    let word = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    b.copy_from_slice(&((word & !mask) | (value & mask)).to_le_bytes());
    Ok(())
}

fn bytes(code: &mut [u8], at: usize, len: usize) -> Result<&mut [u8]> {
    code.get_mut(at..at + len).ok_or_else(|| Failure::bug("shared", "a relocation behind its section"))
}
