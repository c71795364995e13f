//! Emission of allocated functions: frame, moves, branches, the vector type. The code is a leaf function: it
//! calls nothing and addresses its literals, which follow it, relative to the instruction; it needs no
//! relocation.

use super::code::{Code, Label};
use super::registers::SAVED;
use super::table::{self, Width};
use crate::codegen::debug::rows;
use crate::codegen::tile;
use crate::codegen::tile::ir::{Bits, Form, Node, Op};
use crate::codegen::tile::regalloc::Alloc;
use crate::codegen::unwind::{Step, Steps};
use crate::diag::Result;
use regalloc2::{Allocation, Block, Edit, InstOrEdit, Output, PReg, RegClass};

/// The stack pointer, as a base.
const SP: u32 = 2;
/// The return address.
const LINK: u32 = 1;
/// The register of the result.
const RESULT: u32 = 10;
/// The scratch registers for integers.
pub(super) const OWN: u32 = 30;
pub(super) const SECOND: u32 = 31;
/// The longest vector length that instructions can encode.
const SHORT_LENGTH: u32 = 31;

/// The state of emission.
pub(super) struct Emit<'a> {
    pub(super) code: Code,
    pub(super) f: &'a Alloc,
    out: &'a Output,
    labels: Vec<Label>,
    /// Saved integer registers.
    saved: Vec<u32>,
    /// Bytes of spill slots.
    frame: u32,
    /// The element width of the current vector type. Between blocks it is that of the function.
    kind: Width,
    steps: Steps,
    /// Source lines of the code.
    rows: Vec<(u32, u32)>,
}

/// The code of an allocated function.
pub(super) fn encode(f: &Alloc, out: &Output) -> Result<tile::Code> {
    let is_used = |r: &usize| {
        let p = Allocation::reg(PReg::new(*r, RegClass::Int));
        out.allocs.contains(&p) || out.edits.iter().any(|(_, Edit::Move { from, to })| *from == p || *to == p)
    };
    let saved = SAVED.into_iter().filter(is_used).map(|r| r as u32).collect();
    let mut code = Code::default();
    let labels = f.blocks.iter().map(|_| code.label()).collect();
    let frame = (out.num_spillslots as u32 * 8).next_multiple_of(16);
    let kind = main(f);
    Emit { code, f, out, labels, saved, frame, kind, steps: vec![], rows: vec![] }.run()
}

/// The elements of a function.
fn main(f: &Alloc) -> Width {
    Width::of(if f.long { Bits::B64 } else { Bits::B32 })
}

/// The number of a register; groups of two have those of their first one.
pub(super) fn number(a: Allocation) -> u32 {
    a.as_reg().map_or(0, |p| match p.class() {
        RegClass::Float => 2 * p.hw_enc() as u32,
        _ => p.hw_enc() as u32,
    })
}

impl Emit<'_> {
    /// Bytes of the saved registers.
    fn kept(&self) -> u32 {
        (8 * self.saved.len() as u32).next_multiple_of(16)
    }
    /// Records the effect of the last instruction on the frame.
    fn step(&mut self, s: Step) {
        self.steps.push((self.code.len() * 4, s));
    }
    /// Offset of a stack parameter.
    pub(super) fn stack_param(&self, k: u32) -> (u32, i64) {
        (SP, i64::from(self.frame + self.kept() + 8 * k))
    }
    /// Sets the element width of the vector type, if it is another one.
    pub(super) fn want(&mut self, w: Width) {
        if self.kind != w {
            self.kind = w;
            self.code.push(table::set_type(table::vector_type(w, self.f.long)));
        }
    }
    /// Sets length and type of vectors, at the entry.
    fn set_length(&mut self) {
        let lanes = self.f.width.lanes() / if self.f.long { 2 } else { 1 };
        let kind = table::vector_type(self.kind, self.f.long);
        if lanes <= SHORT_LENGTH {
            self.code.push(table::VSETIVLI | kind << 20 | lanes << 15);
        } else {
            self.code.int(OWN, i64::from(lanes));
            self.code.push(table::VSETVLI | kind << 20 | OWN << 15);
        }
    }
    fn edit(&mut self, e: &Edit) {
        let Edit::Move { from, to } = *e;
        let class = from.as_reg().or(to.as_reg()).map_or(RegClass::Int, |r| r.class());
        let slot = |a: Allocation| a.as_stack().map_or(0, |s| s.index() as i64 * 8);
        if !from.is_stack() && !to.is_stack() {
            let (d, n) = (number(to), number(from));
            return match class {
                RegClass::Int => self.code.short(table::ADDI, d, n, 0),
                RegClass::Float => self.code.vector(table::MOVE_TWO, d, n, 0),
                RegClass::Vector => self.code.vector(table::MOVE_ONE, d, n, 0),
            };
        }
        let store = to.is_stack();
        let (place, register) = if store { (slot(to), number(from)) } else { (slot(from), number(to)) };
        match class {
            RegClass::Int if store => self.access_int(table::SD, true, register, (SP, place)),
            RegClass::Int => self.access_int(table::LD, false, register, (SP, place)),
            class => {
                // As many bytes as the lanes have, for any type.
                let word = match class {
                    RegClass::Vector => table::mask_access(store),
                    _ => table::vector_access(main(self.f), false, store),
                };
                let base = self.address((SP, place));
                self.code.two(word, register, base);
            }
        }
    }
    fn run(mut self) -> Result<tile::Code> {
        let (kept, frame) = (self.kept(), self.frame);
        if kept > 0 {
            self.code.add(SP, SP, -i64::from(kept));
            self.step(Step::Stack(kept));
            for (i, r) in self.saved.clone().into_iter().enumerate() {
                self.code.store(table::SD, r, SP, 8 * i as i64);
                self.step(Step::Save(r as u16, kept - 8 * i as u32));
            }
        }
        self.code.add(SP, SP, -i64::from(frame));
        if frame > 0 {
            self.step(Step::Stack(kept + frame));
        }
        self.set_length();
        let f = self.f;
        // Empty blocks have no code; branches go to the next block that has some.
        let blocks: Vec<usize> = (0..f.blocks.len()).filter(|b| !f.is_empty(self.out, *b)).collect();
        for (n, b) in blocks.iter().enumerate() {
            let next = blocks.get(n + 1).copied();
            self.code.bind(self.labels[*b]);
            for x in self.out.block_insts_and_edits(f, Block::new(*b)) {
                match x {
                    InstOrEdit::Edit(e) => self.edit(e),
                    InstOrEdit::Inst(x) => {
                        let n = &f.nodes[x.index()];
                        self.rows.push((self.code.len() * 4, n.line.0));
                        self.inst(*b, next, n, self.out.inst_allocs(x))?;
                    }
                }
            }
        }
        Ok(tile::Code {
            bytes: self.code.finish()?,
            steps: self.steps,
            rows: rows(0, self.rows.into_iter()),
            stack: frame + kept,
        })
    }
    fn inst(&mut self, b: usize, next: Option<usize>, n: &Node, al: &[Allocation]) -> Result<()> {
        if matches!(n.op, Op::Jump | Op::BranchLess(_)) {
            self.want(main(self.f));
        }
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
                let y = match imm {
                    Some(0) => 0,
                    Some(k) => {
                        self.code.int(OWN, i64::from(k));
                        OWN
                    }
                    None => number(al[1]),
                };
                if next == Some(less) {
                    self.code.branch(table::BGE, x, y, self.labels[not]);
                } else {
                    self.code.branch(table::BLT, x, y, self.labels[less]);
                    if next != Some(not) {
                        self.code.jump(self.labels[not]);
                    }
                }
            }
            Op::Ret | Op::RetAny => {
                if n.op == Op::RetAny {
                    self.code.vector(table::COUNT, RESULT, number(al[0]), 0);
                }
                self.leave();
            }
            _ => self.plain(n, al)?,
        }
        Ok(())
    }
    fn leave(&mut self) {
        let (kept, frame) = (self.kept(), self.frame);
        let framed = frame + kept > 0;
        if framed {
            self.step(Step::Leave);
            self.code.add(SP, SP, i64::from(frame));
            self.step(Step::Stack(kept));
        }
        if kept > 0 {
            for (i, r) in self.saved.clone().into_iter().enumerate() {
                self.code.short(table::LD, r, SP, 8 * i as i64);
            }
            self.code.add(SP, SP, i64::from(kept));
            self.step(Step::Stack(0));
            for r in self.saved.clone() {
                self.step(Step::Restore(r as u16));
            }
        }
        self.code.two(table::JALR, 0, LINK);
        if framed {
            self.step(Step::Resume);
        }
        // The next block has other predecessors.
        self.kind = main(self.f);
    }
    /// Loads or stores an integer register.
    pub(super) fn access_int(&mut self, word: u32, store: bool, register: u32, (base, disp): (u32, i64)) {
        let (base, disp) =
            if super::code::is_short(disp) { (base, disp) } else { (self.address((base, disp)), 0) };
        if store {
            self.code.store(word, register, base, disp);
        } else {
            self.code.short(word, register, base, disp);
        }
    }
    /// An address in a register.
    pub(super) fn address(&mut self, (base, disp): (u32, i64)) -> u32 {
        if disp == 0 {
            return base;
        }
        self.code.add(OWN, base, disp);
        OWN
    }
    /// The width of whole lanes, and the access of a form.
    pub(super) fn lanes_of(form: Form) -> Width {
        Width::of(form.lane())
    }
}
