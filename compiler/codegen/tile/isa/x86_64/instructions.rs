//! Encodes the operations of a block.

use super::encode::{Emit, column, passed, passed_integer};
use super::table::{self, Row};
use crate::codegen::tile::ir::{Bin, Bits, Bytes, Form, Node, Number, Op, Pred, Un, Width};
use iced_x86::code_asm::{dword_ptr, get_k, get_ymm, get_zmm, qword_ptr, word_ptr};
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};
use regalloc2::Allocation;

pub(super) type Encoded<T> = std::result::Result<T, IcedError>;

/// The operands of an operation.
pub(super) struct Places<'a> {
    /// Registers of arguments, memory operand and result.
    r: Vec<Register>,
    /// The result, and its number.
    pub(super) d: Register,
    pub(super) dn: u32,
    /// Arguments, without those of the memory operand.
    args: usize,
    /// The memory operand.
    pub(super) at: MemoryOperand,
    /// The operand that replaces the last argument: a folded load or a literal.
    folded: Option<MemoryOperand>,
    al: &'a [Allocation],
}

impl Places<'_> {
    /// Number of the register of operand `i`.
    pub(super) fn number(&self, i: usize) -> u32 {
        number(self.al[i])
    }
    /// The 16-byte and 32-byte parts of the result.
    pub(super) fn dx(&self) -> Register {
        Register::XMM0 + self.dn
    }
    fn dy(&self) -> Register {
        Register::YMM0 + self.dn
    }
    /// With the last source, number `i`: a folded load, a literal, a spilled value, or a register.
    fn last(&self, code: Code, d: Register, x: Register, i: usize) -> Encoded<Instruction> {
        match self.folded {
            Some(m) => Instruction::with3(code, d, x, m),
            None if self.al[i].is_stack() => Instruction::with3(code, d, x, Emit::slot(self.al[i])),
            None => Instruction::with3(code, d, x, self.r[i]),
        }
    }
}

fn number(a: Allocation) -> u32 {
    a.as_reg().map_or(0, |p| p.hw_enc() as u32)
}

impl Emit<'_> {
    /// Instructions inside a block.
    pub(super) fn plain(&mut self, n: &Node, al: &[Allocation]) -> Encoded<()> {
        let p = self.places(n, al)?;
        match n.op {
            Op::Args | Op::Fma { .. } | Op::Jump | Op::BranchLess(_) | Op::Ret | Op::RetAny => Ok(()),
            Op::StackArg(_)
            | Op::Int(_)
            | Op::IntLiteral(_)
            | Op::AddImm(_)
            | Op::Add
            | Op::AndImm(_)
            | Op::Lesser
            | Op::Greater
            | Op::Mul
            | Op::Quotient
            | Op::ShrImm(_)
            | Op::MulImm(_) => self.scalar(n.op, &p),
            Op::Address | Op::First(_) | Op::AnyLane => self.scalar(n.op, &p),
            Op::Const(_)
            | Op::Literal(..)
            | Op::Table(_)
            | Op::LaneNumbers(_)
            | Op::SomeLanes(_)
            | Op::Iota(..)
            | Op::FirstLanes(_) => self.constant(n.op, &p),
            Op::Splat(_) | Op::SplatFloat => self.splat(n.op, &p),
            Op::LoadFirst(form, n) => self.load_first(form, n, &p),
            Op::StoreFirst(form, n) => self.store_first(form, n, &p),
            Op::Load(_) | Op::Gather(_) | Op::Prefetch { .. } | Op::Broadcast(_) => self.load(n.op, &p),
            Op::Store(_) | Op::StoreLane(..) | Op::Scatter(_) | Op::StoreScalar(_) => self.store(n.op, &p),
            _ => self.arithmetic(n.op, &p),
        }
    }
    fn places<'a>(&mut self, n: &Node, al: &'a [Allocation]) -> Encoded<Places<'a>> {
        let args = n.args.len();
        let r: Vec<Register> = al.iter().map(|a| self.reg(*a)).collect();
        let (d, dn) = al.last().map_or((Register::None, 0), |a| (self.reg(*a), number(*a)));
        let mem = n.mem.map(|m| {
            let (base, disp, none) = (r[args], i64::from(m.disp), Register::None);
            match m.index {
                Some((_, s)) => MemoryOperand::new(base, r[args + 1], u32::from(s), disp, 1, m.each, none),
                None => MemoryOperand::with_base_displ_size_bcst_seg(base, disp, 1, m.each, none),
            }
        });
        let literal = n.literal.map(|x| self.beside(x)).transpose()?;
        let at = mem.unwrap_or_else(|| MemoryOperand::with_base(Register::None));
        Ok(Places { r, d, dn, args, at, folded: mem.or(literal), al })
    }
    fn wide(&self) -> bool {
        self.width == Width::Avx512
    }
    /// A register half as long as the vectors.
    pub(super) fn half(&self, n: u32) -> Register {
        if self.wide() { Register::YMM0 + n } else { Register::XMM0 + n }
    }
    /// With 64-bit lanes, forms of up to 32 bits fill half a vector.
    pub(super) fn short(&self, form: Form) -> bool {
        self.f.long && form != Form::B64
    }
    /// Integers: addresses, sizes, counts; and numbers of lanes.
    fn scalar(&mut self, op: Op, p: &Places) -> Encoded<()> {
        let c = column(self.width);
        let i = match op {
            Op::StackArg(k) => {
                // Return address, saved registers, frame pointer.
                let (base, above) = if self.frame > 0 {
                    (Register::RBP, 2 + self.used.len())
                } else {
                    (Register::RSP, 1 + self.used.len())
                };
                Instruction::with2(
                    Code::Mov_r64_rm64,
                    p.d,
                    MemoryOperand::with_base_displ(base, 8 * (above as i64 + i64::from(k))),
                )
            }
            Op::Int(0) => Instruction::with2(Code::Xor_r32_rm32, Register::EAX + p.dn, Register::EAX + p.dn),
            Op::Int(x) => match u32::try_from(x) {
                Ok(x) => Instruction::with2(Code::Mov_r32_imm32, Register::EAX + p.dn, x),
                Err(_) => Instruction::with2(Code::Mov_r64_imm64, p.d, x),
            },
            Op::AddImm(k) => {
                Instruction::with2(Code::Lea_r64_m, p.d, MemoryOperand::with_base_displ(p.r[0], i64::from(k)))
            }
            Op::IntLiteral(k) => Instruction::with2(Code::Mov_r64_rm64, p.d, passed_integer(k)),
            Op::Add => match p.folded {
                Some(m) => Instruction::with2(Code::Add_r64_rm64, p.d, m),
                None => Instruction::with2(
                    Code::Lea_r64_m,
                    p.d,
                    MemoryOperand::with_base_index_scale_displ_size(p.r[0], p.r[1], 1, 0, 0),
                ),
            },
            Op::AndImm(k) => Instruction::with2(Code::And_rm64_imm32, p.d, k),
            Op::Lesser | Op::Greater => {
                self.add(Instruction::with2(Code::Cmp_r64_rm64, p.d, p.r[1]))?;
                Instruction::with2(
                    if op == Op::Lesser { Code::Cmovg_r64_rm64 } else { Code::Cmovl_r64_rm64 },
                    p.d,
                    p.r[1],
                )
            }
            Op::Mul => Instruction::with2(Code::Imul_r64_rm64, p.d, p.r[1]),
            // Of rdx and rax.
            Op::Quotient => {
                self.add(Ok(Instruction::with(Code::Cqo)))?;
                Instruction::with1(Code::Idiv_rm64, p.r[1])
            }
            Op::ShrImm(k) => Instruction::with2(Code::Sar_rm64_imm8, p.d, u32::from(k)),
            Op::MulImm(k) => Instruction::with3(Code::Imul_r64_rm64_imm32, p.d, p.r[0], k),
            Op::Address => Instruction::with2(Code::Lea_r64_m, p.d, p.at),
            Op::First(bits) => {
                let x = Register::XMM0 + p.number(0);
                let row: Row = match bits {
                    Bits::B64 => [Code::VEX_Vmovq_rm64_xmm, Code::EVEX_Vmovq_rm64_xmm],
                    Bits::B32 => [Code::VEX_Vmovd_rm32_xmm, Code::EVEX_Vmovd_rm32_xmm],
                };
                if bits == Bits::B32 {
                    self.add(Instruction::with2(row[c], Register::EAX + p.dn, x))?;
                    Instruction::with2(Code::Movsxd_r64_rm32, p.d, Register::EAX + p.dn)
                } else {
                    Instruction::with2(row[c], p.d, x)
                }
            }
            Op::AnyLane if self.wide() => {
                Instruction::with2(Code::VEX_Kmovw_r32_kr, Register::EAX + p.dn, p.r[0])
            }
            Op::AnyLane => Instruction::with2(Code::VEX_Vmovmskps_r32_ymm, Register::EAX + p.dn, p.r[0]),
            _ => return Ok(()),
        };
        self.add(i)
    }
    /// Constants in literals.
    fn constant(&mut self, op: Op, p: &Places) -> Encoded<()> {
        let c = column(self.width);
        let i = match op {
            Op::Const(x) if x.is_zero() => {
                Instruction::with3(table::bin(Bin::Xor, Bits::B32)[c], p.d, p.d, p.d)
            }
            Op::Const(Number::Long(bits)) => {
                let m = qword_ptr(self.literal(vec![bits as u32, (bits >> 32) as u32]));
                return match (get_ymm(p.d), get_zmm(p.d)) {
                    (Some(y), _) => self.a.vbroadcastsd(y, m),
                    (_, Some(z)) => self.a.vbroadcastsd(z, m),
                    _ => Ok(()),
                };
            }
            Op::Const(Number::Word(bits)) => {
                let m = dword_ptr(self.literal(vec![bits]));
                return match (get_ymm(p.d), get_zmm(p.d)) {
                    (Some(y), _) => self.a.vbroadcastss(y, m),
                    (_, Some(z)) => self.a.vbroadcastss(z, m),
                    _ => Ok(()),
                };
            }
            Op::Literal(k, bits) => {
                Instruction::with2(table::broadcast(bits)[c], p.d, passed(self.width, k, false))
            }
            Op::Table(x) => {
                let l = self.literal(x.to_vec());
                return self.whole_literal(p.d, l);
            }
            Op::LaneNumbers(x) => {
                let l =
                    self.literal(x.iter().take(self.width.lanes() as usize).map(|n| u32::from(*n)).collect());
                return self.whole_literal(p.d, l);
            }
            Op::SomeLanes(k) if self.wide() => {
                let l = self.literal(vec![k]);
                return match get_k(p.d) {
                    Some(k) => self.a.kmovw(k, word_ptr(l)),
                    None => Ok(()),
                };
            }
            Op::SomeLanes(k) => {
                let l = self.literal(
                    (0..self.width.lanes()).map(|j| if k >> j & 1 == 1 { u32::MAX } else { 0 }).collect(),
                );
                return self.whole_literal(p.d, l);
            }
            Op::Iota(n, bits) => {
                let l = match bits {
                    Bits::B32 => self.literal((0..self.width.lanes()).map(|i| i * n).collect()),
                    Bits::B64 => self.literal((0..self.width.lanes() / 2).flat_map(|i| [i * n, 0]).collect()),
                };
                return self.whole_literal(p.d, l);
            }
            Op::FirstLanes(k) if self.wide() => {
                let l = self.literal(vec![if k >= 16 { 0xffff } else { (1 << k) - 1 }]);
                return match get_k(p.d) {
                    Some(k) => self.a.kmovw(k, word_ptr(l)),
                    None => Ok(()),
                };
            }
            Op::FirstLanes(k) => {
                let lane = |j: u32| if self.f.long { j / 2 } else { j };
                let l = self.literal(
                    (0..self.width.lanes()).map(|j| if lane(j) < k { u32::MAX } else { 0 }).collect(),
                );
                return self.whole_literal(p.d, l);
            }
            _ => return Ok(()),
        };
        self.add(i)
    }
    /// Broadcasts.
    fn splat(&mut self, op: Op, p: &Places) -> Encoded<()> {
        let c = column(self.width);
        let i = match op {
            Op::Splat(Bits::B64) => {
                if self.wide() {
                    Instruction::with2(Code::EVEX_Vpbroadcastq_zmm_k1z_r64, p.d, p.r[0])
                } else {
                    self.add(Instruction::with2(Code::VEX_Vmovq_xmm_rm64, p.dx(), p.r[0]))?;
                    Instruction::with2(Code::VEX_Vpbroadcastq_ymm_xmmm64, p.d, p.dx())
                }
            }
            Op::Splat(Bits::B32) => {
                let narrow = Register::EAX + p.number(0);
                if self.wide() {
                    Instruction::with2(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, p.d, narrow)
                } else {
                    self.add(Instruction::with2(Code::VEX_Vmovd_xmm_rm32, p.dx(), narrow))?;
                    Instruction::with2(Code::VEX_Vpbroadcastd_ymm_xmmm32, p.d, p.dx())
                }
            }
            Op::SplatFloat => {
                let row: Row = [Code::VEX_Vcvtsi2ss_xmm_xmm_rm64, Code::EVEX_Vcvtsi2ss_xmm_xmm_rm64_er];
                // The other lanes come from a constant without a dependency.
                self.add(Instruction::with3(table::bin(Bin::Xor, Bits::B32)[c], p.d, p.d, p.d))?;
                self.add(Instruction::with3(row[c], p.dx(), p.dx(), p.r[0]))?;
                Instruction::with2(
                    [Code::VEX_Vbroadcastss_ymm_xmm, Code::EVEX_Vbroadcastss_zmm_k1z_xmmm32][c],
                    p.d,
                    p.dx(),
                )
            }
            _ => return Ok(()),
        };
        self.add(i)
    }
    /// Reads from memory, and hints.
    fn load(&mut self, op: Op, p: &Places) -> Encoded<()> {
        let c = column(self.width);
        let i = match op {
            Op::Load(form) => {
                let v = if self.short(form) { self.half(p.dn) } else { p.d };
                let code = table::load(form, self.short(form))[c];
                match p.args {
                    0 => Instruction::with2(code, v, p.at),
                    _ if self.wide() => Instruction::with2(code, v, p.at).map(|mut i| {
                        i.set_op_mask(p.r[0]);
                        i.set_zeroing_masking(true);
                        i
                    }),
                    _ if matches!(form, Form::B32 | Form::B64) => {
                        let mask = if self.short(form) { self.half(p.number(0)) } else { p.r[0] };
                        Instruction::with3(table::masked(form, self.short(form))[0], v, mask, p.at)
                    }
                    // The mask is uniform: load pieces of 32 bits.
                    _ => {
                        let mut mask = Register::XMM0 + p.number(0);
                        let pieces = self.width.lanes() / if self.f.long { 2 } else { 1 } * form.bytes() / 4;
                        if pieces < 4 {
                            let l =
                                self.literal((0..4).map(|i| if i < pieces { u32::MAX } else { 0 }).collect());
                            let some = self.behind(l, false)?;
                            self.add(Instruction::with3(
                                Code::VEX_Vpand_xmm_xmm_xmmm128,
                                p.dx(),
                                mask,
                                some,
                            ))?;
                            mask = p.dx();
                        }
                        self.add(Instruction::with3(table::MASKED_PART, p.dx(), mask, p.at))?;
                        Instruction::with2(code, v, p.dx())
                    }
                }
            }
            Op::Gather(form) => {
                self.add(Instruction::with3(
                    table::bin(crate::codegen::tile::ir::Bin::Xor, Bits::B32)[c],
                    p.d,
                    p.d,
                    p.d,
                ))?;
                let v = if self.short(form) { self.half(p.dn) } else { p.d };
                let scale = if form.bytes() < 4 { 1 } else { form.bytes() };
                let at = MemoryOperand::with_base_index_scale(p.r[p.args], p.r[0], scale);
                let code = table::gather(form, self.f.long)[c];
                if self.wide() {
                    Instruction::with2(code, v, at).map(|mut i| {
                        i.set_op_mask(p.r[1]);
                        i
                    })
                } else {
                    let mask = if self.short(form) { self.half(p.number(1)) } else { p.r[1] };
                    Instruction::with3(code, v, at, mask)
                }
            }
            Op::Prefetch { far } => {
                Instruction::with1(if far { Code::Prefetcht1_m8 } else { Code::Prefetcht0_m8 }, p.at)
            }
            Op::Broadcast(form @ (Form::B32 | Form::B64)) => Instruction::with2(
                table::broadcast(if form == Form::B64 { Bits::B64 } else { Bits::B32 })[c],
                p.d,
                p.at,
            )
            .map(|mut i| {
                if p.args > 0 {
                    i.set_op_mask(p.r[0]);
                    i.set_zeroing_masking(true);
                }
                i
            }),
            Op::Broadcast(form) => {
                let part = if self.wide() { p.dy() } else { p.dx() };
                let row: Row = match form.bytes() {
                    1 => [Code::VEX_Vpbroadcastb_xmm_xmmm8, Code::EVEX_Vpbroadcastb_xmm_k1z_xmmm8],
                    _ => [Code::VEX_Vpbroadcastw_xmm_xmmm16, Code::EVEX_Vpbroadcastw_ymm_k1z_xmmm16],
                };
                let part = if form.bytes() == 1 { p.dx() } else { part };
                self.add(Instruction::with2(row[c], part, p.at))?;
                Instruction::with2(table::load(form, false)[c], p.d, part)
            }
            _ => return Ok(()),
        };
        self.add(i)
    }
    /// Writes to memory.
    fn store(&mut self, op: Op, p: &Places) -> Encoded<()> {
        let c = column(self.width);
        let i = match op {
            Op::Store(form) => {
                let code = table::store(form, self.short(form))[c];
                let v = if self.short(form) { self.half(p.number(0)) } else { p.r[0] };
                match (form, p.args) {
                    (Form::F16, 1) => Instruction::with3(code, p.at, v, 0),
                    (Form::F16, _) => Instruction::with3(code, p.at, v, 0).map(|mut i| {
                        i.set_op_mask(p.r[1]);
                        i
                    }),
                    // The bytes are in the first part of the register.
                    (Form::I8 | Form::U8 | Form::I16 | Form::U16, 1) if !self.wide() => {
                        Instruction::with2(code, p.at, Register::XMM0 + p.number(0))
                    }
                    (_, 1) => Instruction::with2(code, p.at, v),
                    _ if self.wide() => Instruction::with2(code, p.at, v).map(|mut i| {
                        i.set_op_mask(p.r[1]);
                        i
                    }),
                    _ => {
                        let mask = if self.short(form) { self.half(p.number(1)) } else { p.r[1] };
                        Instruction::with3(table::masked(form, self.short(form))[1], p.at, mask, v)
                    }
                }
            }
            Op::StoreLane(form, lane) => {
                let v = Register::XMM0 + p.number(0);
                match table::store_lane(form, lane) {
                    (row, Some(imm)) => Instruction::with3(row[c], p.at, v, imm),
                    (row, None) => Instruction::with2(row[c], p.at, v),
                }
            }
            Op::Scatter(form) => {
                let v = if self.short(form) { self.half(p.number(0)) } else { p.r[0] };
                let at = MemoryOperand::with_base_index_scale(p.r[p.args], p.r[1], form.bytes());
                Instruction::with2(table::scatter(form, self.f.long), at, v).map(|mut i| {
                    i.set_op_mask(p.r[2]);
                    i
                })
            }
            Op::StoreScalar(bits) => {
                let v = Register::XMM0 + p.number(0);
                let code = match bits {
                    Bits::B32 if self.wide() => Code::EVEX_Vmovss_m32_k1_xmm,
                    Bits::B32 => Code::VEX_Vmovss_m32_xmm,
                    Bits::B64 if self.wide() => Code::EVEX_Vmovsd_m64_k1_xmm,
                    Bits::B64 => Code::VEX_Vmovsd_m64_xmm,
                };
                Instruction::with2(code, p.at, v)
            }
            _ => return Ok(()),
        };
        self.add(i)
    }
    /// Operations on vectors and masks.
    fn arithmetic(&mut self, op: Op, p: &Places) -> Encoded<()> {
        let c = column(self.width);
        let i = match op {
            Op::Bin(op, bits) => p.last(table::bin(op, bits)[c], p.d, p.r[0], 1),
            Op::Fma231 { neg, bits } => p.last(table::fma(true, neg, bits)[c], p.d, p.r[1], 2),
            Op::Dot(Bytes::Mixed) => p.last(table::DOT[c], p.d, p.r[1], 2),
            Op::Dot2 => p.last(table::DOT2[c], p.d, p.r[1], 2),
            Op::Permute2 => p.last(table::PERMUTE2[c], p.d, p.r[1], 2),
            Op::PermuteWords2 => p.last(table::PERMUTE_WORDS2[c], p.d, p.r[1], 2),
            Op::Fma213 { neg, bits } => p.last(table::fma(false, neg, bits)[c], p.d, p.r[1], 2),
            Op::Un(Un::Swap(k @ (4 | 8)), _) => {
                let imm = match (self.wide(), k) {
                    (false, _) => 0x01,
                    (true, 4) => 0xB1,
                    _ => 0x4E,
                };
                Instruction::with4(table::BLOCKS[c], p.d, p.r[0], p.r[0], imm)
            }
            Op::Zip { bits, upper } => Instruction::with3(table::zip(bits, upper)[c], p.d, p.r[0], p.r[1]),
            Op::UnzipBlocks { odd } => {
                let imm = table::EVERY_OTHER[c][usize::from(odd)];
                Instruction::with4(table::BLOCKS[c], p.d, p.r[0], p.r[1], imm)
            }
            Op::Un(Un::Narrow(bytes), _) => {
                let l = self.literal(table::narrow(bytes).to_vec());
                let mask = self.behind(l, false)?;
                Instruction::with3(table::SHUFFLE, p.d, p.r[0], mask)
            }
            Op::Un(op @ Un::Brain, bits) => {
                let words = self.half(p.dn);
                self.add(Instruction::with2(table::un(op, bits).0[c], words, p.r[0]))?;
                Instruction::with2(table::WORDS, p.d, words)
            }
            Op::Un(op, bits) => {
                let (from, half) = table::halves(op, bits);
                let to = if matches!(op, Un::Part(_) | Un::Half) {
                    p.dx()
                } else if half {
                    self.half(p.dn)
                } else {
                    p.d
                };
                let x = if from { self.half(p.number(0)) } else { p.r[0] };
                match table::un(op, bits) {
                    (row, Some(imm)) => Instruction::with3(row[c], to, x, imm),
                    (row, None) => Instruction::with2(row[c], to, x),
                }
            }
            Op::Cmp(pred, bits) => Instruction::with4(table::cmp(bits)[c], p.d, p.r[0], p.r[1], pred as u32),
            Op::ICmp(pred, bits) if self.wide() => {
                Instruction::with4(table::icmp(bits)[c], p.d, p.r[0], p.r[1], pred as u32)
            }
            Op::UCmp(pred, bits) => {
                Instruction::with4(table::ucmp(bits)[c], p.d, p.r[0], p.r[1], pred as u32)
            }
            Op::ICmp(Pred::Eq, bits) => Instruction::with3(table::icmp(bits)[c], p.d, p.r[0], p.r[1]),
            Op::ICmp(_, bits) => Instruction::with3(table::igreater(bits), p.d, p.r[1], p.r[0]),
            Op::MaskAnd | Op::MaskOr | Op::MaskXor => {
                let row: Row = match op {
                    Op::MaskAnd => [Code::VEX_Vpand_ymm_ymm_ymmm256, Code::VEX_Kandw_kr_kr_kr],
                    Op::MaskOr => [Code::VEX_Vpor_ymm_ymm_ymmm256, Code::VEX_Korw_kr_kr_kr],
                    _ => [Code::VEX_Vpxor_ymm_ymm_ymmm256, Code::VEX_Kxorw_kr_kr_kr],
                };
                Instruction::with3(row[c], p.d, p.r[0], p.r[1])
            }
            Op::Select(bits) if self.wide() => Instruction::with3(table::blend(bits)[c], p.d, p.r[0], p.r[1])
                .map(|mut i| {
                    i.set_op_mask(p.r[2]);
                    i
                }),
            Op::Select(bits) => Instruction::with4(table::blend(bits)[c], p.d, p.r[0], p.r[1], p.r[2]),
            _ => return Ok(()),
        };
        self.add(i)
    }
}
