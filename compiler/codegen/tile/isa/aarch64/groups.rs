//! Orders instructions by the groups in which a core decodes them. A core of three operations a cycle, as
//! LLVM has the Neoverse N1, begins a load of two vectors or a store with a new group only, and a load whose
//! displacement is in elements where two operations are left. Arithmetic from behind an access that has to
//! wait fills the group. Accesses are never moved up, and nothing is that would need another register. Wider
//! cores reorder either way.

use super::memory::{is_near, loads_together};
use super::order::{self, MOST};
use super::registers;
use super::select::next_to;
use crate::codegen::Set;
use crate::codegen::tile::ir::{Bin, Block, Class, Form, Func, Node, Op, Un, Value};
use crate::codegen::tile::isa::{stores, uses};
use crate::target::Adjacent;

/// Operations of a group.
const GROUP: usize = 3;
/// Instructions behind one that waits, among which others are looked for.
const AHEAD: usize = 12;
/// Iterations of a loop after which the beginnings of groups repeat.
const TURNS: usize = 6;

/// Reorders the blocks of a function.
pub(super) fn fill(f: &mut Func) {
    let uses = uses(&f.blocks);
    for i in 0..f.blocks.len() {
        let b = &f.blocks[i];
        if b.nodes.len() > MOST || !b.nodes.iter().any(|n| n.mem.is_some()) {
            continue;
        }
        let repeats = b.succs.iter().any(|s| *s == i || f.blocks[*s].succs == [i]);
        let units =
            Units::of(b, f.adjacent, |v| f.classes[v.0 as usize] != Class::Int && uses.get(&v) == Some(&1));
        let given: Vec<usize> = (0..units.parts.len()).collect();
        let cycles = |order: &[usize]| units.cycles(order, repeats);
        let starts = if repeats { 1..=GROUP } else { GROUP..=GROUP };
        let best = starts.map(|left| units.filled(left)).min_by_key(|order| cycles(order));
        if let Some(best) = best.filter(|order| cycles(order) < cycles(&given)) {
            let order = best.iter().flat_map(|u| &units.parts[*u].nodes);
            f.blocks[i].nodes = order.map(|n| f.blocks[i].nodes[*n].clone()).collect();
        }
    }
}

/// One instruction, or two accesses that are performed by one.
struct Part {
    nodes: Vec<usize>,
    /// Operations of each machine instruction.
    operations: Vec<usize>,
    /// May move up: arithmetic of one operation after which no more registers are live.
    moves: bool,
    /// Parts that wait for it, and the number of those that it waits for.
    after: Vec<usize>,
    waits: usize,
}

/// The instructions of a block.
struct Units {
    parts: Vec<Part>,
}

impl Units {
    /// `dies`: whether a vector has one use only.
    fn of(b: &Block, adjacent: Adjacent, dies: impl Fn(Value) -> bool) -> Units {
        let mut parts: Vec<Part> = vec![];
        let mut part_of = vec![];
        let mut i = 0;
        while i < b.nodes.len() {
            let n = &b.nodes[i];
            let both = b.nodes.get(i + 1).is_some_and(|o| is_pair(n, o, adjacent));
            let nodes: Vec<usize> = (i..=i + usize::from(both)).collect();
            let operations = if both { vec![if stores(n) { 6 } else { 3 }] } else { operations(n) };
            let frees = registers::overwrites(n.op).is_some() || n.args.iter().any(|v| dies(*v));
            let moves =
                n.mem.is_none() && n.def.is_some() && !n.args.is_empty() && operations == [1] && frees;
            part_of.extend(nodes.iter().map(|_| parts.len()));
            i += nodes.len();
            parts.push(Part { nodes, operations, moves, after: vec![], waits: 0 });
        }
        let edges: Set<(usize, usize)> =
            order::edges(&b.nodes).into_iter().map(|(from, to, _)| (part_of[from], part_of[to])).collect();
        for (from, to) in edges.into_iter().filter(|e| e.0 != e.1) {
            parts[from].after.push(to);
            parts[to].waits += 1;
        }
        Units { parts }
    }
    /// Cycles in which an order is decoded; of a loop, those of several iterations.
    fn cycles(&self, order: &[usize], repeats: bool) -> usize {
        let mut g = Groups { cycles: 0, left: GROUP };
        for _ in 0..if repeats { TURNS } else { 1 } {
            order.iter().for_each(|u| g.take(&self.parts[*u]));
        }
        g.cycles * GROUP + GROUP - g.left
    }
    /// The order in which groups are filled; the first one has room for `left` operations.
    fn filled(&self, left: usize) -> Vec<usize> {
        let mut waits: Vec<usize> = self.parts.iter().map(|p| p.waits).collect();
        let mut done = vec![false; self.parts.len()];
        let mut g = Groups { cycles: 0, left };
        let mut out = vec![];
        let mut next = 0;
        while next < self.parts.len() {
            if done[next] {
                next += 1;
                continue;
            }
            let other = || {
                let behind = (next + 1..self.parts.len()).filter(|u| !done[*u]).take(AHEAD);
                behind.into_iter().find(|u| self.parts[*u].moves && waits[*u] == 0)
            };
            let u = if g.fits(&self.parts[next]) { next } else { other().unwrap_or(next) };
            done[u] = true;
            self.parts[u].after.iter().for_each(|a| waits[*a] -= 1);
            g.take(&self.parts[u]);
            out.push(u);
        }
        out
    }
}

/// Groups that are being decoded.
struct Groups {
    cycles: usize,
    /// Operations for which the current one has room.
    left: usize,
}

impl Groups {
    /// True if the first instruction of a part begins in the current group; none has passed if this is full.
    fn fits(&self, p: &Part) -> bool {
        self.left == GROUP || p.operations.first().is_none_or(|n| (*n).min(GROUP) <= self.left)
    }
    fn take(&mut self, p: &Part) {
        for n in &p.operations {
            if (*n).min(GROUP) > self.left {
                self.next();
            }
            let mut n = *n;
            while n > self.left {
                n -= self.left;
                self.next();
            }
            self.left -= n;
            if self.left == 0 {
                self.next();
            }
        }
    }
    fn next(&mut self) {
        (self.cycles, self.left) = (self.cycles + 1, GROUP);
    }
}

/// True for accesses that one instruction performs.
fn is_pair(a: &Node, b: &Node, adjacent: Adjacent) -> bool {
    let whole = matches!(a.op, Op::Load(Form::B32 | Form::B64) | Op::Store(Form::B32 | Form::B64));
    let (Some(x), Some(y)) = (a.mem, b.mem) else { return false };
    let one = stores(a) || loads_together(adjacent, [x.disp, y.disp]);
    whole && one && a.op == b.op && x.index.is_none() && next_to(&x, &y)
}

/// Operations of the machine instructions that an instruction becomes.
fn operations(n: &Node) -> Vec<usize> {
    let widened = |form: Form| match form {
        Form::F16 => vec![2],
        Form::I8 | Form::U8 => vec![1, 1],
        Form::I16 | Form::U16 => vec![1],
        Form::B32 | Form::B64 | Form::NearU8 => vec![],
    };
    let load = if n.mem.is_some_and(|m| is_near(m.disp.into())) { 1 } else { 2 };
    match n.op {
        Op::Args => vec![],
        Op::Load(form) | Op::LoadFirst(form, _) => [vec![load], widened(form)].concat(),
        Op::Broadcast(Form::B32 | Form::B64) => vec![2],
        Op::Broadcast(form) => [vec![load], widened(form), vec![1]].concat(),
        Op::Store(_) | Op::StoreFirst(..) | Op::StoreLane(..) | Op::StoreScalar(_) => vec![4],
        Op::Un(Un::Half | Un::Whole { .. }, _) => vec![2],
        Op::Bin(Bin::Min | Bin::Max | Bin::Shr | Bin::Sar, _) | Op::BranchLess(_) => vec![1, 1],
        _ => vec![1],
    }
}
