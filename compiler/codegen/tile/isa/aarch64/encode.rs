//! Emission of allocated functions: frame, moves, branches. The code is a leaf function: it calls nothing and
//! addresses its literals, which follow it, relative to the instruction; it needs no relocation.

use super::code::{Code, Label};
use super::memory::loads_together;
use super::registers::{LITERALS, SAVED, SAVED_VECTORS};
use super::table;
use crate::codegen::debug::rows;
use crate::codegen::tile;
use crate::codegen::tile::ir::{Form, Mem, Node, Number, Op};
use crate::codegen::tile::regalloc::Alloc;
use crate::codegen::unwind::{Step, Steps};
use crate::diag::Result;
use cranelift_codegen::binemit::Reloc;
use regalloc2::{Allocation, Block, Edit, InstOrEdit, Output, PReg, RegClass};

/// The stack pointer, as a base.
const SP: u32 = 31;
/// The scratch register for addresses.
const OWN: u32 = 16;
/// Bytes of a pair of saved 8-byte registers.
const PAIR: u32 = 16;

/// The state of emission.
pub(super) struct Emit<'a> {
    pub(super) code: Code,
    pub(super) f: &'a Alloc,
    out: &'a Output,
    labels: Vec<Label>,
    /// Callee-saved registers in use: integers, vectors.
    saved: [Vec<u32>; 2],
    /// Bytes of spill slots.
    frame: u32,
    /// A register plus a constant that the scratch register currently holds.
    pub(super) far: Option<(u32, i64)>,
    steps: Steps,
    /// Source lines of the code.
    rows: Vec<(u32, u32)>,
}

/// The code of an allocated function.
pub(super) fn encode(f: &Alloc, out: &Output) -> Result<tile::Code> {
    let is_used = |r: &usize, class: RegClass| {
        let p = Allocation::reg(PReg::new(*r, class));
        out.allocs.contains(&p) || out.edits.iter().any(|(_, Edit::Move { from, to })| *from == p || *to == p)
    };
    let ints = SAVED.filter(|r| is_used(r, RegClass::Int)).map(|r| r as u32).collect();
    let vectors = SAVED_VECTORS.filter(|r| is_used(r, RegClass::Float)).map(|r| r as u32).collect();
    let mut code = Code::default();
    let labels = f.blocks.iter().map(|_| code.label()).collect();
    let frame = (out.num_spillslots as u32 * 8).next_multiple_of(16);
    Emit { code, f, out, labels, saved: [ints, vectors], frame, far: None, steps: vec![], rows: vec![] }.run()
}

/// A function that passes literals to another one, which follow its code: vectors, since one load with a
/// displacement then fills all lanes.
pub(super) fn stub(literals: &[Number]) -> tile::Stub {
    let mut words = vec![table::ADR | (16 / 4) << 5 | LITERALS, table::BRANCH, 0, 0];
    literals.iter().for_each(|x| words.extend(x.vector()));
    let bytes = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    tile::Stub { bytes, jump: 4, kind: Reloc::Arm64Call, addend: 0, align: 16 }
}

pub(super) fn number(a: Allocation) -> u32 {
    a.as_reg().map_or(0, |p| p.hw_enc() as u32)
}

impl Emit<'_> {
    /// Bytes of the saved registers, in pairs.
    fn kept(&self) -> u32 {
        self.saved.iter().map(|s| s.len().div_ceil(2) as u32 * PAIR).sum()
    }
    /// Records the effect of the last instruction on the frame.
    fn step(&mut self, s: Step) {
        self.steps.push((self.code.len() * 4, s));
    }
    /// Stores or loads the saved registers.
    fn keep(&mut self, store: bool) {
        let kept = self.kept();
        let mut at = 0;
        for (class, [pair, one]) in [
            if store {
                [table::STORE_PAIR_INT, table::int_access(8, true)[0]]
            } else {
                [table::LOAD_PAIR_INT, table::int_access(8, false)[0]]
            },
            if store {
                [table::STORE_PAIR_HALVES, table::vector_access(8, true)[0]]
            } else {
                [table::LOAD_PAIR_HALVES, table::vector_access(8, false)[0]]
            },
        ]
        .into_iter()
        .enumerate()
        {
            for p in self.saved[class].clone().chunks(2) {
                match p {
                    [a, b] => self.code.push(pair | (at / 8) << 15 | b << 10 | SP << 5 | a),
                    [a] => self.code.push(one | (at / 8) << 10 | SP << 5 | a),
                    _ => {}
                }
                // The DWARF number of d8 is 72.
                let first = if class == 0 { 0 } else { 64 };
                for (i, r) in p.iter().enumerate().filter(|_| store) {
                    self.step(Step::Save(first + *r as u16, kept - at - 8 * i as u32));
                }
                at += PAIR;
            }
        }
    }
    /// The location of a stack parameter.
    pub(super) fn stack_param(&self, k: u32) -> (u32, i64) {
        (SP, i64::from(self.frame + self.kept() + 8 * k))
    }
    fn edit(&mut self, e: &Edit) {
        let Edit::Move { from, to } = *e;
        self.far = None;
        let class = from.as_reg().or(to.as_reg()).map_or(RegClass::Int, |r| r.class());
        let int = class == RegClass::Int;
        let slot = |a: Allocation| a.as_stack().map_or(0, |s| s.index() as i64 * 8);
        let bytes = if int { 8 } else { 16 };
        match (from.is_stack(), to.is_stack()) {
            (false, false) if int => self.code.three(table::ORR_INT, number(to), 31, number(from)),
            (false, false) => self.code.three(table::ORR, number(to), number(from), number(from)),
            (true, _) => self.access(
                if int { table::int_access(8, false) } else { table::vector_access(16, false) },
                bytes,
                number(to),
                (SP, slot(from)),
            ),
            (false, true) => self.access(
                if int { table::int_access(8, true) } else { table::vector_access(16, true) },
                bytes,
                number(from),
                (SP, slot(to)),
            ),
        }
    }
    fn run(mut self) -> Result<tile::Code> {
        let kept = i64::from(self.kept());
        if kept > 0 {
            self.code.add(SP, SP, -kept);
            self.step(Step::Stack(self.kept()));
            self.keep(true);
        }
        self.code.add(SP, SP, -i64::from(self.frame));
        if self.frame > 0 {
            self.step(Step::Stack(self.kept() + self.frame));
        }
        let f = self.f;
        // Empty blocks have no code; branches go to the next block that has some.
        let blocks: Vec<usize> = (0..f.blocks.len()).filter(|b| !f.is_empty(self.out, *b)).collect();
        for (n, b) in blocks.iter().enumerate() {
            let next = blocks.get(n + 1).copied();
            self.code.bind(self.labels[*b]);
            self.far = None;
            let all: Vec<InstOrEdit> = self.out.block_insts_and_edits(f, Block::new(*b)).collect();
            let mut i = 0;
            while let Some(x) = all.get(i) {
                if let InstOrEdit::Inst(x) = x {
                    self.rows.push((self.code.len() * 4, f.nodes[x.index()].line.0));
                }
                if let (InstOrEdit::Inst(x), Some(InstOrEdit::Inst(y))) = (x, all.get(i + 1))
                    && self.pair(
                        (&f.nodes[x.index()], self.out.inst_allocs(*x)),
                        (&f.nodes[y.index()], self.out.inst_allocs(*y)),
                    )
                {
                    i += 2;
                    continue;
                }
                match x {
                    InstOrEdit::Edit(e) => self.edit(e),
                    InstOrEdit::Inst(x) => {
                        self.inst(*b, next, &f.nodes[x.index()], self.out.inst_allocs(*x))?
                    }
                }
                i += 1;
            }
        }
        let stack = self.frame + self.kept();
        Ok(tile::Code {
            bytes: self.code.finish()?,
            steps: self.steps,
            rows: rows(0, self.rows.into_iter()),
            stack,
        })
    }
    /// Merges two accesses to adjacent vectors into one instruction; false if that is not possible.
    fn pair(&mut self, x: (&Node, &[Allocation]), y: (&Node, &[Allocation])) -> bool {
        let whole = |n: &Node| match n.op {
            Op::Load(Form::B32) if !self.f.long => n.mem.map(|m| (m, false)),
            Op::Store(Form::B32) if !self.f.long => n.mem.map(|m| (m, true)),
            Op::Load(Form::B64) => n.mem.map(|m| (m, false)),
            Op::Store(Form::B64) => n.mem.map(|m| (m, true)),
            _ => None,
        };
        let (Some((a, store)), Some((b, same))) = (whole(x.0), whole(y.0)) else { return false };
        // Register order: base, then result of a load; value, then base of a store.
        let (value, base) = if store { (0, 1) } else { (1, 0) };
        let registers = |al: &[Allocation]| Some((number(*al.get(value)?), number(*al.get(base)?)));
        let (Some((ra, base_a)), Some((rb, base_b))) = (registers(x.1), registers(y.1)) else { return false };
        let plain = |m: &Mem| m.index.is_none() && m.disp % 16 == 0;
        if store != same || base_a != base_b || !plain(&a) || !plain(&b) || ra == rb && !store {
            return false;
        }
        let (first, one, two) = match b.disp.wrapping_sub(a.disp) {
            16 => (a.disp, ra, rb),
            -16 => (b.disp, rb, ra),
            _ => return false,
        };
        if !store && !loads_together(self.f.adjacent, [first, first.wrapping_add(16)]) {
            return false;
        }
        let word = if store { table::STORE_PAIR } else { table::LOAD_PAIR };
        let (base, disp) = self.near(base_a, i64::from(first));
        self.code.push(word | ((disp / 16) as u32 & 0x7f) << 15 | two << 10 | base << 5 | one);
        true
    }
    /// Base and displacement of a pair, whose range is 1024 bytes in both directions. Out of range, the
    /// scratch register holds an address that the following pairs can use, too.
    fn near(&mut self, base: u32, disp: i64) -> (u32, i64) {
        const REACH: i64 = 1024;
        const MOST: i64 = 0xfff;
        let reaches = |d: i64| d % 16 == 0 && (-REACH..REACH).contains(&d);
        let before = self.far.filter(|f| f.0 == base);
        if reaches(disp) {
            return (base, disp);
        }
        if let Some((_, far)) = before.filter(|f| reaches(disp - f.1)) {
            return (OWN, disp - far);
        }
        let old = before.map(|(_, old)| old).filter(|_| disp + REACH > MOST);
        let from_old = |far: i64| old.is_some_and(|old| (far - old).abs() <= MOST);
        // One addition of 12 bits reaches these, or of 12 bits further up.
        let high = (disp + REACH - 1) & !MOST;
        let nearest = old.map(|old| if disp > old { old + (MOST & !15) } else { old - (MOST & !15) });
        let candidates =
            [from_old(disp + REACH).then_some(disp + REACH), Some(high).filter(|h| *h > 0), nearest];
        let far = candidates.into_iter().flatten().find(|far| reaches(disp - far)).unwrap_or(disp + REACH);
        match old {
            Some(old) if from_old(far) => self.code.add(OWN, OWN, far - old),
            _ => self.code.add(OWN, base, far),
        }
        self.far = Some((base, far));
        (OWN, disp - far)
    }
    fn inst(&mut self, b: usize, next: Option<usize>, n: &Node, al: &[Allocation]) -> Result<()> {
        let succ = |k: usize| self.f.target(self.out, self.f.blocks[b].succs[k]);
        match n.op {
            Op::Jump => {
                let t = succ(0);
                if next != Some(t) {
                    self.code.jump(self.labels[t]);
                }
            }
            Op::BranchLess(imm) => {
                let (less, not) = (succ(0), succ(1));
                let x = number(al[0]);
                match imm {
                    Some(k @ 0..=4095) => self.code.two(table::CMP_IMM | (k as u32) << 10, 0, x),
                    Some(k @ -4095..0) => self.code.two(table::CMN_IMM | k.unsigned_abs() << 10, 0, x),
                    Some(k) => {
                        self.code.int(16, i64::from(k));
                        self.code.three(table::CMP, 0, x, 16);
                    }
                    None => self.code.three(table::CMP, 0, x, number(al[1])),
                }
                if next == Some(less) {
                    self.code.jump_if(table::GE, self.labels[not]);
                } else {
                    self.code.jump_if(table::LT, self.labels[less]);
                    if next != Some(not) {
                        self.code.jump(self.labels[not]);
                    }
                }
            }
            Op::Ret | Op::RetAny => {
                if n.op == Op::RetAny {
                    self.any(0, number(al[0]));
                }
                let framed = self.frame + self.kept() > 0;
                if framed {
                    self.step(Step::Leave);
                    self.code.add(SP, SP, i64::from(self.frame));
                    self.step(Step::Stack(self.kept()));
                }
                if self.kept() > 0 {
                    self.keep(false);
                    self.code.add(SP, SP, i64::from(self.kept()));
                    self.step(Step::Stack(0));
                    for (first, class) in [(0, 0), (64, 1)] {
                        for r in self.saved[class].clone() {
                            self.step(Step::Restore(first + r as u16));
                        }
                    }
                }
                self.code.push(table::RET | 30 << 5);
                if framed {
                    self.step(Step::Resume);
                }
            }
            _ => self.plain(n, al)?,
        }
        Ok(())
    }
}
