//! The first lanes of vectors of bytes and 16-bit elements, for which AVX2 has no masks: pieces of a power of
//! two of bytes, at most four.

use super::encode::{Emit, column};
use super::instructions::{Encoded, Places};
use super::table;
use crate::codegen::tile::ir::Form;
use iced_x86::{Code, Instruction, MemoryOperand, Register};

/// The bytes of a piece, and what loads it as the first one, loads it behind others, stores it as the first
/// one, and stores it from behind others.
const PIECES: [(u32, Code, Code, Code, Code); 4] = [
    (8, Code::VEX_Vmovq_xmm_xmmm64, Code::INVALID, Code::VEX_Vmovq_xmmm64_xmm, Code::INVALID),
    (
        4,
        Code::VEX_Vmovd_xmm_rm32,
        Code::VEX_Vpinsrd_xmm_xmm_rm32_imm8,
        Code::VEX_Vmovd_rm32_xmm,
        Code::VEX_Vpextrd_rm32_xmm_imm8,
    ),
    (
        2,
        Code::INVALID,
        Code::VEX_Vpinsrw_xmm_xmm_r32m16_imm8,
        Code::INVALID,
        Code::VEX_Vpextrw_r32m16_xmm_imm8,
    ),
    (1, Code::INVALID, Code::VEX_Vpinsrb_xmm_xmm_r32m8_imm8, Code::INVALID, Code::VEX_Vpextrb_r32m8_xmm_imm8),
];

fn behind(mut at: MemoryOperand, bytes: u32) -> MemoryOperand {
    at.displacement += i64::from(bytes);
    at
}

impl Emit<'_> {
    /// Loads `n` elements, converts them as a load of a vector does; the other lanes are 0.
    pub(super) fn load_first(&mut self, form: Form, n: u8, p: &Places) -> Encoded<()> {
        let (bytes, x) = (u32::from(n) * form.bytes(), p.dx());
        let mut done = 0;
        for (size, first, next, ..) in PIECES {
            if bytes & size == 0 {
                continue;
            }
            let at = behind(p.at, done);
            if done == 0 && first != Code::INVALID {
                self.add(Instruction::with2(first, x, at))?;
            } else {
                if done == 0 {
                    self.add(Instruction::with3(Code::VEX_Vpxor_xmm_xmm_xmmm128, x, x, x))?;
                }
                self.add(Instruction::with4(next, x, x, at, done / size))?;
            }
            done += size;
        }
        let d = if self.short(form) { self.half(p.dn) } else { p.d };
        self.add(Instruction::with2(table::load(form, self.short(form))[column(self.width)], d, x))
    }
    /// Stores the first `n` elements of those in the first part of a register.
    pub(super) fn store_first(&mut self, form: Form, n: u8, p: &Places) -> Encoded<()> {
        let (bytes, x) = (u32::from(n) * form.bytes(), Register::XMM0 + p.number(0));
        let mut done = 0;
        for (size, _, _, first, next) in PIECES {
            if bytes & size == 0 {
                continue;
            }
            let at = behind(p.at, done);
            self.add(if done == 0 && first != Code::INVALID {
                Instruction::with2(first, at, x)
            } else {
                Instruction::with3(next, at, x, done / size)
            })?;
            done += size;
        }
        Ok(())
    }
}
