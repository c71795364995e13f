//! Allocated functions -> bytes, by iced-x86.
//!
//! The code is a leaf function of the System V convention on every system: it calls nothing and reaches its
//! literals, which are behind `ret`, relative to the instruction pointer; it needs no relocation.
//! Epilogues have the form that Windows' unwinder knows: nothing but `pop` before `ret`.

use super::registers::{LITERALS, SAVED};
use super::table;
use crate::codegen::Map;
use crate::codegen::debug::rows;
use crate::codegen::tile::ir::{Line, Literal, Node, Number, Op, Width};
use crate::codegen::tile::regalloc::Alloc;
use crate::codegen::tile::{Code, Stub};
use crate::codegen::unwind::Step;
use crate::diag::{Failure, Result};
use cranelift_codegen::binemit::Reloc;
use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, get_gpr64, get_k, get_xmm, get_ymm, get_zmm, qword_ptr, ymmword_ptr,
    zmmword_ptr,
};
use iced_x86::{BlockEncoderOptions, Code as Opcode, IcedError, Instruction, MemoryOperand, Register};
use regalloc2::{Allocation, Block, Edit, InstOrEdit, Output, PReg, RegClass};

/// The state of emission.
pub(super) struct Emit<'a> {
    pub(super) width: Width,
    pub(super) a: CodeAssembler,
    pool: Vec<(CodeLabel, Vec<u32>)>,
    pooled: Map<Vec<u32>, CodeLabel>,
    pub(super) f: &'a Alloc,
    out: &'a Output,
    labels: Vec<CodeLabel>,
    pub(super) used: Vec<usize>,
    pub(super) frame: usize,
    /// Effects on the frame, with the index of the following instruction.
    steps: Vec<(usize, Step)>,
    /// Source lines, with the index of the first instruction.
    rows: Vec<(usize, Line)>,
}

/// Column of the code tables.
pub(super) fn column(w: Width) -> usize {
    match w {
        Width::Avx2 => 0,
        // No machine of this folder has other vectors.
        _ => 1,
    }
}

/// DWARF's number of an integer register.
fn dwarf(register: usize) -> u16 {
    const FIRST: [u16; 8] = [0, 2, 1, 3, 7, 6, 4, 5];
    FIRST.get(register).copied().unwrap_or(register as u16)
}

fn bug(e: IcedError) -> Failure {
    Failure::bug("encoding of a tile", e.to_string())
}

/// The code of an allocated function.
pub(super) fn encode(width: Width, f: &Alloc, out: &Output) -> Result<Code> {
    let mut a = CodeAssembler::new(64).map_err(bug)?;
    a.set_prefer_vex(width == Width::Avx2);
    let is_used = |r: usize| {
        let p = Allocation::reg(PReg::new(r, RegClass::Int));
        out.allocs.contains(&p) || out.edits.iter().any(|(_, Edit::Move { from, to })| *from == p || *to == p)
    };
    let used = SAVED.iter().copied().filter(|r| is_used(*r)).collect();
    let labels = f.blocks.iter().map(|_| a.create_label()).collect();
    let e = Emit {
        width,
        a,
        pool: vec![],
        pooled: Map::default(),
        f,
        out,
        labels,
        used,
        frame: out.num_spillslots * 8,
        steps: vec![],
        rows: vec![],
    };
    e.run().map_err(bug)
}

/// Bytes of an entry of the literals that a stub passes: as much as an instruction reads.
fn entry(w: Width) -> usize {
    if w == Width::Avx2 { 32 } else { 8 }
}

/// Entry `k` of the literals that a stub passes; `each`: one constant for all lanes.
pub(super) fn passed(w: Width, k: u32, each: bool) -> MemoryOperand {
    let (base, none) = (Register::RAX + LITERALS as u32, Register::None);
    MemoryOperand::with_base_displ_size_bcst_seg(base, i64::from(k) * entry(w) as i64, 1, each, none)
}

/// Integer `k` of the literals that a stub passes: they are in front of the others, in descending order.
pub(super) fn passed_integer(k: u32) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RAX + LITERALS as u32, -8 * (i64::from(k) + 1))
}

/// A function that passes literals to another one, which follow its code.
pub(super) fn stub(w: Width, literals: &[Number], integers: &[i64]) -> Stub {
    let size = entry(w);
    let align = if literals.is_empty() { 8 } else { size };
    let first = (12 + 8 * integers.len()).next_multiple_of(align);
    // lea r11, [rip + literals]; jmp
    let mut bytes = vec![0x4c, 0x8d, 0x1d];
    bytes.extend((first as u32 - 7).to_le_bytes());
    bytes.push(0xe9);
    bytes.resize(first - 8 * integers.len(), 0);
    integers.iter().rev().for_each(|x| bytes.extend(x.to_le_bytes()));
    for x in literals {
        let x: Vec<u8> = x.vector().iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.extend(x.iter().cycle().take(size));
    }
    Stub { bytes, jump: 8, kind: Reloc::X86CallPCRel4, addend: -4, align: align.max(16) as u64 }
}

impl Emit<'_> {
    pub(super) fn reg(&self, a: Allocation) -> Register {
        match a.as_reg() {
            Some(p) => match p.class() {
                RegClass::Int => Register::RAX + p.hw_enc() as u32,
                RegClass::Float => {
                    (if self.width == Width::Avx2 { Register::YMM0 } else { Register::ZMM0 })
                        + p.hw_enc() as u32
                }
                RegClass::Vector => Register::K0 + p.hw_enc() as u32,
            },
            None => Register::None,
        }
    }
    pub(super) fn slot(a: Allocation) -> MemoryOperand {
        MemoryOperand::with_base_displ(Register::RSP, a.as_stack().map_or(0, |s| s.index() as i64 * 8))
    }
    pub(super) fn add(
        &mut self,
        i: std::result::Result<Instruction, IcedError>,
    ) -> std::result::Result<(), IcedError> {
        self.a.add_instruction(i?)
    }
    /// A literal after the code.
    pub(super) fn literal(&mut self, data: Vec<u32>) -> CodeLabel {
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
            RegClass::Int => (Opcode::Mov_r64_rm64, Opcode::Mov_rm64_r64),
            RegClass::Float => (table::MOVE[c], table::MOVE_OUT[c]),
            RegClass::Vector => (Opcode::VEX_Kmovw_kr_km16, Opcode::VEX_Kmovw_m16_kr),
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
    /// Records the effect of the last instruction on the frame.
    fn step(&mut self, s: Step) {
        self.steps.push((self.a.instructions().len(), s));
    }
    fn run(mut self) -> std::result::Result<Code, IcedError> {
        let f = self.f;
        let mut depth = 8;
        for n in self.used.clone() {
            let r = self.gpr(n);
            self.a.push(r)?;
            depth += 8;
            self.step(Step::Stack(depth));
            self.step(Step::Save(dwarf(n), depth));
        }
        let (rsp, rbp) = (self.gpr(4), self.gpr(5));
        if self.frame > 0 {
            self.a.push(rbp)?;
            self.step(Step::Stack(depth + 8));
            self.step(Step::Save(dwarf(5), depth + 8));
            self.a.mov(rbp, rsp)?;
            self.step(Step::Frame);
            self.a.sub(rsp, self.frame as i32)?;
            self.a.and(rsp, -64)?;
        }
        // Empty blocks have no code; branches go to the next block that has some.
        let code: Vec<usize> = (0..f.blocks.len()).filter(|b| !f.is_empty(self.out, *b)).collect();
        let mut entered = vec![false; f.blocks.len()];
        for b in &code {
            for s in &f.blocks[*b].succs {
                entered[f.target(self.out, *s)] = true;
            }
        }
        for (n, b) in code.iter().enumerate() {
            let next = code.get(n + 1).copied();
            if entered[*b] {
                let mut l = self.labels[*b];
                // An instruction can have one label only: every block here has code of its own.
                self.a.set_label(&mut l)?;
                self.labels[*b] = l;
            }
            for x in self.out.block_insts_and_edits(f, Block::new(*b)) {
                match x {
                    InstOrEdit::Edit(e) => self.edit(e)?,
                    InstOrEdit::Inst(i) => {
                        let n = &f.nodes[i.index()];
                        self.rows.push((self.a.instructions().len(), n.line));
                        self.inst(*b, next, n, self.out.inst_allocs(i))?
                    }
                }
            }
        }
        for (mut l, data) in std::mem::take(&mut self.pool) {
            self.a.set_label(&mut l)?;
            self.a.dd(&data)?;
        }
        let code = self.a.assemble_options(0, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
        // The encoder does not rewrite instructions, so indices are stable.
        let offset = |i: usize| code.inner.new_instruction_offsets.get(i).copied().unwrap_or(u32::MAX);
        let steps = self.steps.iter().map(|(i, s)| (offset(*i), *s)).collect();
        let rows = rows(0, self.rows.iter().map(|(i, l)| (offset(*i), l.0)));
        // The return address, saved registers; a frame is aligned.
        let frame = if self.frame > 0 { 8 + self.frame + 63 } else { 0 };
        let stack = (8 + 8 * self.used.len() + frame) as u32;
        Ok(Code { bytes: code.inner.code_buffer, steps, rows, stack })
    }
    fn inst(
        &mut self,
        b: usize,
        next: Option<usize>,
        n: &Node,
        al: &[Allocation],
    ) -> std::result::Result<(), IcedError> {
        match n.op {
            Op::Jump => {
                let t = self.f.target(self.out, self.f.blocks[b].succs[0]);
                if next != Some(t) { self.a.jmp(self.labels[t]) } else { Ok(()) }
            }
            Op::BranchLess(imm) => {
                let x = get_gpr64(self.reg(al[0])).unwrap_or(iced_x86::code_asm::rax);
                match (imm, n.literal) {
                    (Some(k), _) => self.a.cmp(x, k)?,
                    (None, Some(than)) => {
                        let than = self.beside(than)?;
                        self.add(Instruction::with2(Opcode::Cmp_r64_rm64, self.reg(al[0]), than))?;
                    }
                    (None, None) => {
                        let y = get_gpr64(self.reg(al[1])).unwrap_or(iced_x86::code_asm::rax);
                        self.a.cmp(x, y)?;
                    }
                }
                let (less, not) = (
                    self.f.target(self.out, self.f.blocks[b].succs[0]),
                    self.f.target(self.out, self.f.blocks[b].succs[1]),
                );
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
                let mut depth = 8 + 8 * self.used.len() as u32;
                self.a.vzeroupper()?;
                self.step(Step::Leave);
                if self.frame > 0 {
                    self.a.mov(rsp, rbp)?;
                    self.a.pop(rbp)?;
                    self.step(Step::Unframe(depth));
                    self.step(Step::Restore(dwarf(5)));
                }
                for n in self.used.clone().into_iter().rev() {
                    let r = self.gpr(n);
                    self.a.pop(r)?;
                    depth -= 8;
                    self.step(Step::Stack(depth));
                    self.step(Step::Restore(dwarf(n)));
                }
                self.a.ret()?;
                self.step(Step::Resume);
                Ok(())
            }
            _ => self.plain(n, al),
        }
    }
    /// Tests in eax whether a mask is not empty.
    fn any(&mut self, mask: Register) -> std::result::Result<(), IcedError> {
        use iced_x86::code_asm::eax;
        match (get_k(mask), get_ymm(mask)) {
            (Some(k), _) => self.a.kmovw(eax, k),
            (_, Some(y)) => self.a.vmovmskps(eax, y),
            _ => Ok(()),
        }
    }
    /// A broadcast constant, or an integer that is passed, as a memory operand.
    pub(super) fn beside(&mut self, x: Literal) -> std::result::Result<MemoryOperand, IcedError> {
        let wide = self.width == Width::Avx512;
        let words = match x {
            Literal::Word(x) => vec![x],
            Literal::Long(x) => vec![x as u32, (x >> 32) as u32],
            Literal::Passed(k, _) => return Ok(passed(self.width, k, wide)),
            Literal::Integer(k) => return Ok(passed_integer(k)),
        };
        let n = if wide { 1 } else { self.width.lanes() as usize / words.len() };
        let l = self.literal(words.repeat(n));
        self.behind(l, wide)
    }
    /// A literal as a memory operand: one constant for all lanes, or one per lane.
    pub(super) fn behind(
        &mut self,
        l: CodeLabel,
        each: bool,
    ) -> std::result::Result<MemoryOperand, IcedError> {
        // Replaced by the label when the code is assembled.
        let mut probe = CodeAssembler::new(64)?;
        probe.lea(iced_x86::code_asm::rax, qword_ptr(l))?;
        let place = probe.instructions().first().map_or(0, Instruction::memory_displacement64);
        Ok(MemoryOperand::with_base_displ_size_bcst_seg(Register::RIP, place as i64, 1, each, Register::None))
    }
    pub(super) fn whole_literal(&mut self, d: Register, l: CodeLabel) -> std::result::Result<(), IcedError> {
        match (get_ymm(d), get_zmm(d), get_xmm(d)) {
            (Some(y), ..) => self.a.vmovups(y, ymmword_ptr(l)),
            (_, Some(z), _) => self.a.vmovups(z, zmmword_ptr(l)),
            (_, _, Some(x)) => self.a.vmovq(x, qword_ptr(l)),
            _ => Ok(()),
        }
    }
}
