//! Allocated functions -> bytes, by iced-x86.
//!
//! The code is a leaf function of the System V convention on every system: it has no unwind information, calls nothing
//! and reaches its literals, which stand behind `ret`, relative to the instruction pointer; it needs no relocation.

use super::registers::SAVED;
use super::table::{self, Row};
use crate::codegen::Map;
use crate::codegen::tile::ir::{Bin, Bits, Form, Node, Number, Op, Pred, Un, Width};
use crate::codegen::tile::regalloc::Alloc;
use crate::diag::{Failure, Result};
use iced_x86::code_asm::{CodeAssembler, CodeLabel, dword_ptr, get_gpr64, get_k, get_xmm, get_ymm, get_zmm, qword_ptr, word_ptr, ymmword_ptr, zmmword_ptr};
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};
use regalloc2::{Allocation, Block, Edit, InstOrEdit, Output, PReg, RegClass};

struct Emit<'a> {
    width: Width,
    a: CodeAssembler,
    pool: Vec<(CodeLabel, Vec<u32>)>,
    pooled: Map<Vec<u32>, CodeLabel>,
    f: &'a Alloc,
    out: &'a Output,
    labels: Vec<CodeLabel>,
    used: Vec<usize>,
    frame: usize,
}

/// Column of the code tables.
pub(super) fn column(w: Width) -> usize {
    match w {
        Width::Avx2 => 0,
        Width::Avx512 => 1,
    }
}

fn bug(e: IcedError) -> Failure {
    Failure::bug("encoding of a tile", e.to_string())
}

/// The bytes of an allocated function.
pub(super) fn encode(width: Width, f: &Alloc, out: &Output) -> Result<Vec<u8>> {
    let mut a = CodeAssembler::new(64).map_err(bug)?;
    a.set_prefer_vex(width == Width::Avx2);
    let is_used = |r: usize| {
        let p = Allocation::reg(PReg::new(r, RegClass::Int));
        out.allocs.contains(&p) || out.edits.iter().any(|(_, Edit::Move { from, to })| *from == p || *to == p)
    };
    let used = SAVED.iter().copied().filter(|r| is_used(*r)).collect();
    let labels = f.blocks.iter().map(|_| a.create_label()).collect();
    let e = Emit { width, a, pool: vec![], pooled: Map::default(), f, out, labels, used, frame: out.num_spillslots * 8 };
    e.run().map_err(bug)
}

impl Emit<'_> {
    fn reg(&self, a: Allocation) -> Register {
        match a.as_reg() {
            Some(p) => match p.class() {
                RegClass::Int => Register::RAX + p.hw_enc() as u32,
                RegClass::Float => (if self.width == Width::Avx2 { Register::YMM0 } else { Register::ZMM0 }) + p.hw_enc() as u32,
                RegClass::Vector => Register::K0 + p.hw_enc() as u32,
            },
            None => Register::None,
        }
    }
    fn slot(a: Allocation) -> MemoryOperand {
        MemoryOperand::with_base_displ(Register::RSP, a.as_stack().map_or(0, |s| s.index() as i64 * 8))
    }
    fn add(&mut self, i: std::result::Result<Instruction, IcedError>) -> std::result::Result<(), IcedError> {
        self.a.add_instruction(i?)
    }
    /// A literal behind the code.
    fn literal(&mut self, data: Vec<u32>) -> CodeLabel {
        if let Some(l) = self.pooled.get(&data) {
            return *l;
        }
        let l = self.a.create_label();
        self.pool.push((l, data.clone()));
        self.pooled.insert(data, l);
        l
    }
    fn edit(&mut self, e: &Edit) -> std::result::Result<(), IcedError> {
        let Edit::Move { from, to } = *e;
        let class = from.as_reg().or(to.as_reg()).map_or(RegClass::Int, |r| r.class());
        let c = column(self.width);
        let (load, store) = match class {
            RegClass::Int => (Code::Mov_r64_rm64, Code::Mov_rm64_r64),
            RegClass::Float => (table::MOVE[c], table::MOVE_OUT[c]),
            RegClass::Vector => (Code::VEX_Kmovw_kr_km16, Code::VEX_Kmovw_m16_kr),
        };
        let i = match (from.is_stack(), to.is_stack()) {
            (true, _) => Instruction::with2(load, self.reg(to), Self::slot(from)),
            (false, true) => Instruction::with2(store, Self::slot(to), self.reg(from)),
            (false, false) => Instruction::with2(load, self.reg(to), self.reg(from)),
        };
        self.add(i)
    }
    fn gpr(&self, number: usize) -> iced_x86::code_asm::AsmRegister64 {
        get_gpr64(Register::RAX + number as u32).unwrap_or(iced_x86::code_asm::rax)
    }
    /// True if a block is nothing but a jump, so that branches may go to where it goes.
    fn is_empty(&self, b: usize) -> bool {
        let mut it = self.out.block_insts_and_edits(self.f, Block::new(b));
        matches!((it.next(), it.next()), (Some(InstOrEdit::Inst(i)), None) if self.f.nodes[i.index()].op == Op::Jump)
    }
    fn target(&self, mut b: usize) -> usize {
        while self.is_empty(b) {
            b = self.f.blocks[b].succs[0];
        }
        b
    }
    fn run(mut self) -> std::result::Result<Vec<u8>, IcedError> {
        let f = self.f;
        for r in self.used.clone() {
            let r = self.gpr(r);
            self.a.push(r)?;
        }
        let (rsp, rbp) = (self.gpr(4), self.gpr(5));
        if self.frame > 0 {
            self.a.push(rbp)?;
            self.a.mov(rbp, rsp)?;
            self.a.sub(rsp, self.frame as i32)?;
            self.a.and(rsp, -64)?;
        }
        // Empty blocks have no code: the next block that has some.
        let code: Vec<usize> = (0..f.blocks.len()).filter(|b| !self.is_empty(*b)).collect();
        let mut entered = vec![false; f.blocks.len()];
        for b in &code {
            for s in &f.blocks[*b].succs {
                entered[self.target(*s)] = true;
            }
        }
        for (n, b) in code.iter().enumerate() {
            let next = code.get(n + 1).copied();
            if entered[*b] {
                let mut l = self.labels[*b];
                // Two labels may not stand at one instruction: every block here has code of its own.
                self.a.set_label(&mut l)?;
                self.labels[*b] = l;
            }
            for x in self.out.block_insts_and_edits(f, Block::new(*b)) {
                match x {
                    InstOrEdit::Edit(e) => self.edit(e)?,
                    InstOrEdit::Inst(i) => self.inst(*b, next, &f.nodes[i.index()], self.out.inst_allocs(i))?,
                }
            }
        }
        for (mut l, data) in std::mem::take(&mut self.pool) {
            self.a.set_label(&mut l)?;
            self.a.dd(&data)?;
        }
        self.a.assemble(0)
    }
    fn inst(&mut self, b: usize, next: Option<usize>, n: &Node, al: &[Allocation]) -> std::result::Result<(), IcedError> {
        match n.op {
            Op::Jump => {
                let t = self.target(self.f.blocks[b].succs[0]);
                if next != Some(t) { self.a.jmp(self.labels[t]) } else { Ok(()) }
            }
            Op::BranchLess(imm) => {
                let x = get_gpr64(self.reg(al[0])).unwrap_or(iced_x86::code_asm::rax);
                match imm {
                    Some(k) => self.a.cmp(x, k)?,
                    None => {
                        let y = get_gpr64(self.reg(al[1])).unwrap_or(iced_x86::code_asm::rax);
                        self.a.cmp(x, y)?;
                    }
                }
                let (less, not) = (self.target(self.f.blocks[b].succs[0]), self.target(self.f.blocks[b].succs[1]));
                if next == Some(less) {
                    return self.a.jge(self.labels[not]);
                }
                self.a.jl(self.labels[less])?;
                if next != Some(not) { self.a.jmp(self.labels[not]) } else { Ok(()) }
            }
            Op::Ret | Op::RetAny => {
                if n.op == Op::RetAny {
                    self.any(self.reg(al[0]))?;
                }
                let (rsp, rbp) = (self.gpr(4), self.gpr(5));
                if self.frame > 0 {
                    self.a.mov(rsp, rbp)?;
                    self.a.pop(rbp)?;
                }
                for r in self.used.clone().into_iter().rev() {
                    let r = self.gpr(r);
                    self.a.pop(r)?;
                }
                self.a.vzeroupper()?;
                self.a.ret()
            }
            _ => self.plain(n, al),
        }
    }
    /// Whether a mask has any lane, in eax.
    fn any(&mut self, mask: Register) -> std::result::Result<(), IcedError> {
        use iced_x86::code_asm::eax;
        match (get_k(mask), get_ymm(mask)) {
            (Some(k), _) => self.a.kmovw(eax, k),
            (_, Some(y)) => self.a.vmovmskps(eax, y),
            _ => Ok(()),
        }
    }
    /// Instructions inside a block.
    fn plain(&mut self, n: &Node, al: &[Allocation]) -> std::result::Result<(), IcedError> {
        let c = column(self.width);
        let wide = self.width == Width::Avx512;
        let na = n.args.len();
        let hw = |a: Allocation| a.as_reg().map_or(0, |p| p.hw_enc() as u32);
        let (d, dn) = al.last().map_or((Register::None, 0), |a| (self.reg(*a), hw(*a)));
        let r: Vec<Register> = al.iter().map(|a| self.reg(*a)).collect();
        let mem = n.mem.map(|m| match m.index {
            Some((_, s)) => MemoryOperand::with_base_index_scale_displ_size(r[na], r[na + 1], u32::from(s), i64::from(m.disp), 1),
            None => MemoryOperand::with_base_displ(r[na], i64::from(m.disp)),
        });
        let at = mem.unwrap_or_else(|| MemoryOperand::with_base(Register::None));
        let literal = n.literal.map(|x| self.beside(x)).transpose()?;
        // The last source: a folded load, a literal, a spilled value, or a register.
        let last = |code: Code, d: Register, x: Register, i: usize| match mem.or(literal) {
            Some(m) => Instruction::with3(code, d, x, m),
            None if al[i].is_stack() => Instruction::with3(code, d, x, Self::slot(al[i])),
            None => Instruction::with3(code, d, x, r[i]),
        };
        // The same register 16, 32 bytes long, and half as long as the vectors.
        let (dx, dy) = (Register::XMM0 + dn, Register::YMM0 + dn);
        let half_of = |n: u32| if wide { Register::YMM0 + n } else { Register::XMM0 + n };
        let long = self.f.long;
        // Forms of 32 bits and less fill half a vector beside lanes of 64.
        let short = |form: Form| long && form != Form::Double;
        let i = match n.op {
            Op::Args => return Ok(()),
            Op::StackArg(k) => {
                // Return address, saved registers, frame pointer.
                let (base, above) = if self.frame > 0 { (Register::RBP, 2 + self.used.len()) } else { (Register::RSP, 1 + self.used.len()) };
                Instruction::with2(Code::Mov_r64_rm64, d, MemoryOperand::with_base_displ(base, 8 * (above as i64 + i64::from(k))))
            }
            Op::Int(0) => Instruction::with2(Code::Xor_r32_rm32, Register::EAX + dn, Register::EAX + dn),
            Op::Int(x) => match u32::try_from(x) {
                Ok(x) => Instruction::with2(Code::Mov_r32_imm32, Register::EAX + dn, x),
                Err(_) => Instruction::with2(Code::Mov_r64_imm64, d, x),
            },
            Op::AddImm(k) => Instruction::with2(Code::Lea_r64_m, d, MemoryOperand::with_base_displ(r[0], i64::from(k))),
            Op::Add => Instruction::with2(Code::Lea_r64_m, d, MemoryOperand::with_base_index_scale_displ_size(r[0], r[1], 1, 0, 0)),
            Op::AndImm(k) => Instruction::with2(Code::And_rm64_imm32, d, k),
            Op::Lesser | Op::Greater => {
                self.add(Instruction::with2(Code::Cmp_r64_rm64, d, r[1]))?;
                Instruction::with2(if n.op == Op::Lesser { Code::Cmovg_r64_rm64 } else { Code::Cmovl_r64_rm64 }, d, r[1])
            }
            Op::MulImm(k) => Instruction::with3(Code::Imul_r64_rm64_imm32, d, r[0], k),
            Op::Address => Instruction::with2(Code::Lea_r64_m, d, at),
            Op::First(bits) => {
                let x = Register::XMM0 + hw(al[0]);
                let row: Row = match bits {
                    Bits::B64 => [Code::VEX_Vmovq_rm64_xmm, Code::EVEX_Vmovq_rm64_xmm],
                    Bits::B32 => [Code::VEX_Vmovd_rm32_xmm, Code::EVEX_Vmovd_rm32_xmm],
                };
                if bits == Bits::B32 {
                    self.add(Instruction::with2(row[c], Register::EAX + dn, x))?;
                    Instruction::with2(Code::Movsxd_r64_rm32, d, Register::EAX + dn)
                } else {
                    Instruction::with2(row[c], d, x)
                }
            }
            Op::Const(x) if x.is_zero() => Instruction::with3(table::bin(Bin::Xor, Bits::B32)[c], d, d, d),
            Op::Const(Number::Long(bits)) => {
                let m = qword_ptr(self.literal(vec![bits as u32, (bits >> 32) as u32]));
                return match (get_ymm(d), get_zmm(d)) {
                    (Some(y), _) => self.a.vbroadcastsd(y, m),
                    (_, Some(z)) => self.a.vbroadcastsd(z, m),
                    _ => Ok(()),
                };
            }
            Op::Const(Number::Word(bits)) => {
                let m = dword_ptr(self.literal(vec![bits]));
                return match (get_ymm(d), get_zmm(d)) {
                    (Some(y), _) => self.a.vbroadcastss(y, m),
                    (_, Some(z)) => self.a.vbroadcastss(z, m),
                    _ => Ok(()),
                };
            }
            Op::Table(x) => {
                let l = self.literal(x.to_vec());
                return self.whole_literal(d, l);
            }
            Op::LaneNumbers(x) => {
                let l = self.literal(x.iter().take(self.width.lanes() as usize).map(|n| u32::from(*n)).collect());
                return self.whole_literal(d, l);
            }
            Op::SomeLanes(k) if wide => {
                let l = self.literal(vec![u32::from(k)]);
                return match get_k(d) {
                    Some(k) => self.a.kmovw(k, word_ptr(l)),
                    None => Ok(()),
                };
            }
            Op::SomeLanes(k) => {
                let l = self.literal((0..self.width.lanes()).map(|j| if k >> j & 1 == 1 { u32::MAX } else { 0 }).collect());
                return self.whole_literal(d, l);
            }
            Op::Iota(n, bits) => {
                let l = match bits {
                    Bits::B32 => self.literal((0..self.width.lanes()).map(|i| i * n).collect()),
                    Bits::B64 => self.literal((0..self.width.lanes() / 2).flat_map(|i| [i * n, 0]).collect()),
                };
                return self.whole_literal(d, l);
            }
            Op::FirstLanes(k) if wide => {
                let l = self.literal(vec![if k >= 16 { 0xffff } else { (1 << k) - 1 }]);
                return match get_k(d) {
                    Some(k) => self.a.kmovw(k, word_ptr(l)),
                    None => Ok(()),
                };
            }
            Op::FirstLanes(k) => {
                let lane = |j: u32| if long { j / 2 } else { j };
                let l = self.literal((0..self.width.lanes()).map(|j| if lane(j) < k { u32::MAX } else { 0 }).collect());
                return self.whole_literal(d, l);
            }
            Op::Splat(Bits::B64) => {
                if wide {
                    Instruction::with2(Code::EVEX_Vpbroadcastq_zmm_k1z_r64, d, r[0])
                } else {
                    self.add(Instruction::with2(Code::VEX_Vmovq_xmm_rm64, dx, r[0]))?;
                    Instruction::with2(Code::VEX_Vpbroadcastq_ymm_xmmm64, d, dx)
                }
            }
            Op::Splat(Bits::B32) => {
                let narrow = Register::EAX + hw(al[0]);
                if wide {
                    Instruction::with2(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, d, narrow)
                } else {
                    self.add(Instruction::with2(Code::VEX_Vmovd_xmm_rm32, dx, narrow))?;
                    Instruction::with2(Code::VEX_Vpbroadcastd_ymm_xmmm32, d, dx)
                }
            }
            Op::SplatFloat => {
                let row: Row = [Code::VEX_Vcvtsi2ss_xmm_xmm_rm64, Code::EVEX_Vcvtsi2ss_xmm_xmm_rm64_er];
                // The other lanes come from a number that nobody waits for.
                self.add(Instruction::with3(table::bin(Bin::Xor, Bits::B32)[c], d, d, d))?;
                self.add(Instruction::with3(row[c], dx, dx, r[0]))?;
                Instruction::with2([Code::VEX_Vbroadcastss_ymm_xmm, Code::EVEX_Vbroadcastss_zmm_k1z_xmmm32][c], d, dx)
            }
            Op::Load(form) => {
                let v = if short(form) { half_of(dn) } else { d };
                let code = table::load(form, short(form))[c];
                match na {
                    0 => Instruction::with2(code, v, at),
                    _ if wide => Instruction::with2(code, v, at).map(|mut i| {
                        i.set_op_mask(r[0]);
                        i.set_zeroing_masking(true);
                        i
                    }),
                    _ if matches!(form, Form::Whole | Form::Double) => {
                        let mask = if short(form) { half_of(hw(al[0])) } else { r[0] };
                        Instruction::with3(table::masked(form, short(form))[0], v, mask, at)
                    }
                    // All lanes of the mask are alike: pieces of 32 bits, as many as the elements take.
                    _ => {
                        let mut mask = Register::XMM0 + hw(al[0]);
                        let pieces = self.width.lanes() / if long { 2 } else { 1 } * form.bytes() / 4;
                        if pieces < 4 {
                            let l = self.literal((0..4).map(|i| if i < pieces { u32::MAX } else { 0 }).collect());
                            let some = self.behind(l, false)?;
                            self.add(Instruction::with3(Code::VEX_Vpand_xmm_xmm_xmmm128, dx, mask, some))?;
                            mask = dx;
                        }
                        self.add(Instruction::with3(table::MASKED_PART, dx, mask, at))?;
                        Instruction::with2(code, v, dx)
                    }
                }
            }
            Op::Gather(form) => {
                self.add(Instruction::with3(table::bin(crate::codegen::tile::ir::Bin::Xor, Bits::B32)[c], d, d, d))?;
                let v = if short(form) { half_of(dn) } else { d };
                let scale = if form.bytes() < 4 { 1 } else { form.bytes() };
                let at = MemoryOperand::with_base_index_scale(r[na], r[0], scale);
                let code = table::gather(form, long)[c];
                if wide {
                    Instruction::with2(code, v, at).map(|mut i| {
                        i.set_op_mask(r[1]);
                        i
                    })
                } else {
                    let mask = if short(form) { half_of(hw(al[1])) } else { r[1] };
                    Instruction::with3(code, v, at, mask)
                }
            }
            Op::Prefetch { far } => Instruction::with1(if far { Code::Prefetcht1_m8 } else { Code::Prefetcht0_m8 }, at),
            Op::Broadcast(form @ (Form::Whole | Form::Double)) => Instruction::with2(table::broadcast(if form == Form::Double { Bits::B64 } else { Bits::B32 })[c], d, at).map(|mut i| {
                if na > 0 {
                    i.set_op_mask(r[0]);
                    i.set_zeroing_masking(true);
                }
                i
            }),
            Op::Broadcast(form) => {
                let part = if wide { dy } else { dx };
                let row: Row = match form.bytes() {
                    1 => [Code::VEX_Vpbroadcastb_xmm_xmmm8, Code::EVEX_Vpbroadcastb_xmm_k1z_xmmm8],
                    _ => [Code::VEX_Vpbroadcastw_xmm_xmmm16, Code::EVEX_Vpbroadcastw_ymm_k1z_xmmm16],
                };
                let part = if form.bytes() == 1 { dx } else { part };
                self.add(Instruction::with2(row[c], part, at))?;
                Instruction::with2(table::load(form, false)[c], d, part)
            }
            Op::Store(form) => {
                let code = table::store(form, short(form))[c];
                let v = if short(form) { half_of(hw(al[0])) } else { r[0] };
                match (form, na) {
                    (Form::F16, 1) => Instruction::with3(code, at, v, 0),
                    (Form::F16, _) => Instruction::with3(code, at, v, 0).map(|mut i| {
                        i.set_op_mask(r[1]);
                        i
                    }),
                    // The bytes stand in the first part of the register.
                    (Form::I8 | Form::U8 | Form::I16 | Form::U16, 1) if !wide => Instruction::with2(code, at, Register::XMM0 + hw(al[0])),
                    (_, 1) => Instruction::with2(code, at, v),
                    _ if wide => Instruction::with2(code, at, v).map(|mut i| {
                        i.set_op_mask(r[1]);
                        i
                    }),
                    _ => {
                        let mask = if short(form) { half_of(hw(al[1])) } else { r[1] };
                        Instruction::with3(table::masked(form, short(form))[1], at, mask, v)
                    }
                }
            }
            Op::StoreLane(form, lane) => {
                let v = Register::XMM0 + hw(al[0]);
                match table::store_lane(form, lane) {
                    (row, Some(imm)) => Instruction::with3(row[c], at, v, imm),
                    (row, None) => Instruction::with2(row[c], at, v),
                }
            }
            Op::Scatter(form) => {
                let v = if short(form) { half_of(hw(al[0])) } else { r[0] };
                let at = MemoryOperand::with_base_index_scale(r[na], r[1], form.bytes());
                Instruction::with2(table::scatter(form, long), at, v).map(|mut i| {
                    i.set_op_mask(r[2]);
                    i
                })
            }
            Op::AnyLane if wide => Instruction::with2(Code::VEX_Kmovw_r32_kr, Register::EAX + dn, r[0]),
            Op::AnyLane => Instruction::with2(Code::VEX_Vmovmskps_r32_ymm, Register::EAX + dn, r[0]),
            Op::StoreScalar(bits) => {
                let v = Register::XMM0 + hw(al[0]);
                let code = match bits {
                    Bits::B32 if wide => Code::EVEX_Vmovss_m32_k1_xmm,
                    Bits::B32 => Code::VEX_Vmovss_m32_xmm,
                    Bits::B64 if wide => Code::EVEX_Vmovsd_m64_k1_xmm,
                    Bits::B64 => Code::VEX_Vmovsd_m64_xmm,
                };
                Instruction::with2(code, at, v)
            }
            Op::Bin(op, bits) => last(table::bin(op, bits)[c], d, r[0], 1),
            Op::Fma231 { neg, bits } => last(table::fma(true, neg, bits)[c], d, r[1], 2),
            Op::Dot => last(table::DOT[c], d, r[1], 2),
            Op::Dot2 => last(table::DOT2[c], d, r[1], 2),
            Op::Fma213 { neg, bits } => last(table::fma(false, neg, bits)[c], d, r[1], 2),
            Op::Un(Un::Swap(k @ (4 | 8)), _) => {
                let imm = match (wide, k) {
                    (false, _) => 0x01,
                    (true, 4) => 0xB1,
                    _ => 0x4E,
                };
                Instruction::with4(table::SWAP_HALVES[c], d, r[0], r[0], imm)
            }
            Op::Un(Un::Narrow(bytes), _) => {
                let l = self.literal(table::narrow(bytes).to_vec());
                let mask = self.behind(l, false)?;
                Instruction::with3(table::SHUFFLE, d, r[0], mask)
            }
            Op::Un(op, bits) => {
                let (from, to) = table::halves(op, bits);
                let d = if matches!(op, Un::Part(_)) {
                    dx
                } else if to {
                    half_of(dn)
                } else {
                    d
                };
                let x = if from { half_of(hw(al[0])) } else { r[0] };
                match table::un(op, bits) {
                    (row, Some(imm)) => Instruction::with3(row[c], d, x, imm),
                    (row, None) => Instruction::with2(row[c], d, x),
                }
            }
            Op::Cmp(p, bits) => Instruction::with4(table::cmp(bits)[c], d, r[0], r[1], p as u32),
            Op::ICmp(p, bits) if wide => Instruction::with4(table::icmp(bits)[c], d, r[0], r[1], p as u32),
            Op::ICmp(Pred::Eq, bits) => Instruction::with3(table::icmp(bits)[c], d, r[0], r[1]),
            Op::ICmp(_, bits) => Instruction::with3(table::igreater(bits), d, r[1], r[0]),
            Op::MaskAnd | Op::MaskOr | Op::MaskXor => {
                let row: Row = match n.op {
                    Op::MaskAnd => [Code::VEX_Vpand_ymm_ymm_ymmm256, Code::VEX_Kandw_kr_kr_kr],
                    Op::MaskOr => [Code::VEX_Vpor_ymm_ymm_ymmm256, Code::VEX_Korw_kr_kr_kr],
                    _ => [Code::VEX_Vpxor_ymm_ymm_ymmm256, Code::VEX_Kxorw_kr_kr_kr],
                };
                Instruction::with3(row[c], d, r[0], r[1])
            }
            Op::Select(bits) if wide => Instruction::with3(table::blend(bits)[c], d, r[0], r[1]).map(|mut i| {
                i.set_op_mask(r[2]);
                i
            }),
            Op::Select(bits) => Instruction::with4(table::blend(bits)[c], d, r[0], r[1], r[2]),
            Op::Fma { .. } | Op::Jump | Op::BranchLess(_) | Op::Ret | Op::RetAny => return Ok(()),
        };
        self.add(i)
    }
    /// A number in all lanes as a memory operand.
    fn beside(&mut self, x: Number) -> std::result::Result<MemoryOperand, IcedError> {
        let wide = self.width == Width::Avx512;
        let words = match x {
            Number::Word(x) => vec![x],
            Number::Long(x) => vec![x as u32, (x >> 32) as u32],
        };
        let n = if wide { 1 } else { self.width.lanes() as usize / words.len() };
        let l = self.literal(words.repeat(n));
        self.behind(l, wide)
    }
    /// A literal as a memory operand, one number for all lanes or all of them.
    fn behind(&mut self, l: CodeLabel, each: bool) -> std::result::Result<MemoryOperand, IcedError> {
        // What stands for the label until the code is put together.
        let mut probe = CodeAssembler::new(64)?;
        probe.lea(iced_x86::code_asm::rax, qword_ptr(l))?;
        let place = probe.instructions().first().map_or(0, Instruction::memory_displacement64);
        Ok(MemoryOperand::with_base_displ_size_bcst_seg(Register::RIP, place as i64, 1, each, Register::None))
    }
    fn whole_literal(&mut self, d: Register, l: CodeLabel) -> std::result::Result<(), IcedError> {
        match (get_ymm(d), get_zmm(d), get_xmm(d)) {
            (Some(y), ..) => self.a.vmovups(y, ymmword_ptr(l)),
            (_, Some(z), _) => self.a.vmovups(z, zmmword_ptr(l)),
            (_, _, Some(x)) => self.a.vmovq(x, qword_ptr(l)),
            _ => Ok(()),
        }
    }
}
