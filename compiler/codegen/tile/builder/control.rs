//! Loops and branches, and their carried values.

use super::{Builder, Count, Loop};
use crate::codegen::tile::ir::{Block, Class, Op, Value, Width};

impl Builder {
    /// Opens a region that runs only if a mask is not empty; see [`Builder::open_if_positive`].
    pub(in crate::codegen::tile) fn open_if_any(&mut self, mask: Value) -> usize {
        // Lanes that do not exist may be set.
        let mask = if self.width() == Width::Avx512 && self.lanes() == 16 {
            mask
        } else {
            let all = self.all_lanes(true);
            self.masks(Op::MaskAnd, mask, all)
        };
        let any = self.value(Op::AnyLane, &[mask], None, Class::Int);
        self.open_if_positive(any)
    }
    /// The result of `make` if a mask is not empty, else zeros.
    pub(in crate::codegen::tile) fn only_if(
        &mut self,
        mask: Value,
        make: impl FnOnce(&mut Builder) -> Value,
    ) -> Value {
        let zero = if self.f.long { self.bits64(0) } else { self.bits(0) };
        let opened = self.open_if_any(mask);
        let v = make(self);
        let merged = self.close_if(opened, &[zero], &[v]);
        merged.first().copied().unwrap_or(v)
    }
    fn new_block(&mut self) -> usize {
        self.made.clear();
        self.counted.clear();
        self.f.blocks.push(Block::default());
        self.f.blocks.len() - 1
    }
    fn edge(&mut self, from: usize, to: usize) {
        self.f.blocks[from].succs.push(to);
        self.f.blocks[to].preds.push(from);
    }
    fn current(&self) -> usize {
        self.f.blocks.len() - 1
    }
    fn branch_less(&mut self, a: Value, b: Count) -> usize {
        match b {
            Count::Fixed(n) if i32::try_from(n).is_ok() => {
                self.push(Op::BranchLess(Some(n as i32)), &[a], None, None)
            }
            Count::Fixed(n) => {
                let n = self.int(n);
                self.push(Op::BranchLess(None), &[a, n], None, None)
            }
            Count::Run(n) => self.push(Op::BranchLess(None), &[a, n], None, None),
        };
        self.current()
    }
    /// Opens `for i in (0..end).step_by(step)` with carried values. With `guard` the loop may have no
    /// iteration; without, the caller guarantees `end > 0`.
    pub fn open_loop(&mut self, end: Count, guard: bool, carried: &[Value]) -> Loop {
        let zero = self.int(0);
        let first: Vec<Value> = std::iter::once(zero).chain(carried.iter().copied()).collect();
        let around = if guard {
            let before = self.branch_less(zero, end);
            let enter = self.new_block();
            self.edge(before, enter);
            Some((before, carried.to_vec()))
        } else {
            None
        };
        let enter = self.current();
        self.push(Op::Jump, &[], None, None);
        self.f.blocks[enter].jump_args = first;
        let head = self.new_block();
        self.edge(enter, head);
        let i = self.fresh(Class::Int);
        let inside: Vec<Value> = carried.iter().map(|v| self.fresh(self.class(*v))).collect();
        self.f.blocks[head].params = std::iter::once(i).chain(inside.iter().copied()).collect();
        Loop { i, inside, head, end, around }
    }
    /// Closes a loop, given its carried values after an iteration; returns them after the loop.
    pub fn close_loop(&mut self, l: Loop, step: i64, after: &[Value]) -> Vec<Value> {
        let mut after = after.to_vec();
        self.hoist(l.head, &mut after);
        let next = self.add_imm(l.i, step);
        let tail = self.branch_less(next, l.end);
        let latch = self.new_block();
        self.push(Op::Jump, &[], None, None);
        self.f.blocks[latch].jump_args = std::iter::once(next).chain(after.iter().copied()).collect();
        self.edge(tail, latch);
        self.edge(latch, l.head);
        let out = self.new_block();
        self.edge(tail, out);
        match l.around {
            None => after,
            Some((before, carried)) => self.join(before, out, &carried, &after),
        }
    }
    /// Opens a region that runs only if `n > 0`; the result is passed to [`Builder::close_if`].
    pub fn open_if_positive(&mut self, n: Value) -> usize {
        let zero = self.int(0);
        let before = self.branch_less(zero, Count::Run(n));
        let inside = self.new_block();
        self.edge(before, inside);
        before
    }
    /// Closes a region; returns `through` if it ran, else `around`.
    pub fn close_if(&mut self, opened: usize, around: &[Value], through: &[Value]) -> Vec<Value> {
        let out = self.current();
        self.join(opened, out, around, through)
    }
    /// Joins `out` and the edge around it (the second successor of `before`) in a new block.
    fn join(&mut self, before: usize, out: usize, around: &[Value], through: &[Value]) -> Vec<Value> {
        self.push(Op::Jump, &[], None, None);
        self.f.blocks[out].jump_args = through.to_vec();
        let way = self.new_block();
        self.edge(before, way);
        self.push(Op::Jump, &[], None, None);
        self.f.blocks[way].jump_args = around.to_vec();
        let exit = self.new_block();
        self.edge(out, exit);
        self.edge(way, exit);
        let merged: Vec<Value> = around.iter().map(|v| self.fresh(self.class(*v))).collect();
        self.f.blocks[exit].params = merged.clone();
        merged
    }
}
