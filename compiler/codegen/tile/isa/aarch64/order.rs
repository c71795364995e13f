//! Schedules straight-line code: list scheduling in source order, for an in-order core that issues an
//! arithmetic instruction and an access to a vector in each cycle. An instruction whose operands have not
//! arrived lets those behind it pass. The number of live vectors limits how many chains are in progress, so
//! that no more of them are spilled. A schedule that takes no fewer cycles than the given order is discarded:
//! that order is one of a template, or register pressure leaves nothing to overlap.

use super::registers;
use super::select::next_to;
use crate::codegen::tile::ir::{Bin, Block, Class, Func, Mem, Node, Op, Un, Value};
use crate::codegen::tile::isa::stores;
use crate::codegen::tile::live;
use crate::codegen::{Map, Set};
use crate::target::Adjacent;

/// Vector registers that a schedule may occupy; the rest is for copies of the register allocator.
const REGISTERS: usize = 30;
/// Live vectors from which on a schedule begins no further chain: the first number whose schedule fits.
const LIMITS: [usize; 4] = [30, 26, 22, 18];
/// Maximum instructions of a block: scheduling takes time in proportion to those that are ready at once.
pub(super) const MOST: usize = 2048;

/// Cycles until a result may be used.
fn latency(n: &Node) -> usize {
    match n.op {
        _ if n.mem.is_some() && n.op != Op::Address => 4,
        Op::Address
        | Op::Int(_)
        | Op::AddImm(_)
        | Op::Add
        | Op::AndImm(_)
        | Op::ShrImm(_)
        | Op::Lesser
        | Op::Greater => 1,
        Op::Quotient | Op::Bin(Bin::Div, _) | Op::Un(Un::Sqrt, _) => 12,
        _ => 4,
    }
}

/// True for nodes that keep their place: entry, exits, and what is neither arithmetic nor a plain access.
fn is_fixed(n: &Node) -> bool {
    n.def.is_none() && !stores(n) && !matches!(n.op, Op::Prefetch { .. })
}

/// Schedules the blocks of a function for which `wanted` holds.
pub(super) fn blocks(f: &mut Func, wanted: &[bool]) {
    let classes = f.classes.clone();
    let counts = |v: &Value| classes[v.0 as usize] == Class::Vector;
    let live_out = live::at_ends(f, &counts);
    for (i, live_out) in live_out.iter().enumerate() {
        if !wanted[i] || f.blocks[i].nodes.len() > MOST {
            continue;
        }
        let pressure = |b: &Block| live::along(b, live_out.clone(), &counts).0.into_iter().max().unwrap_or(0);
        let nodes = &f.blocks[i].nodes;
        let most = pressure(&f.blocks[i]).max(REGISTERS);
        // Stores that wait for each other, which pairs might, would be missing.
        let fits = |(b, order): &(Block, Vec<usize>)| order.len() == nodes.len() && pressure(b) <= most;
        let mut edges = edges(nodes);
        if !f.in_order {
            edges.extend(stores_in_place(nodes));
        }
        let schedules = LIMITS.iter().map(|limit| List::new(f, i, &edges, (*limit, live_out)).run());
        let new = schedules.map(|order| (reordered(&f.blocks[i], &order), order)).find(fits);
        let given: Vec<usize> = (0..nodes.len()).collect();
        let cycles = |order: &[usize]| cycles(nodes, &edges, order);
        if let Some((new, order)) = new
            && cycles(&order) < cycles(&given)
        {
            f.blocks[i] = new;
        }
    }
}

/// A block with its instructions in another order.
fn reordered(b: &Block, order: &[usize]) -> Block {
    let nodes = order.iter().map(|i| b.nodes[*i].clone()).collect();
    Block { nodes, ..b.clone() }
}

/// Stores wait for everything else before them. Cores that reorder decode a store of two vectors as several
/// operations, and stores one after the other without gaps between groups of them; nothing waits for a store.
fn stores_in_place(nodes: &[Node]) -> Vec<Edge> {
    let all = nodes.iter().enumerate().filter(|(_, n)| stores(n));
    let others = |i: usize| (0..i).filter(|before| !stores(&nodes[*before]));
    all.flat_map(|(i, _)| others(i).map(move |before| (before, i, 0))).collect()
}

/// Index of the unit that executes an instruction: one is for arithmetic, one for memory.
fn place(n: &Node) -> usize {
    usize::from(n.mem.is_some() && n.op != Op::Address)
}

/// Cycles of instructions in an order.
fn cycles(nodes: &[Node], edges: &[Edge], order: &[usize]) -> usize {
    let mut after = vec![vec![]; nodes.len()];
    edges.iter().for_each(|(from, to, cycles)| after[*from].push((*to, *cycles)));
    let mut earliest = vec![0; nodes.len()];
    let (mut cycle, mut free) = (0, [0; 2]);
    for i in order {
        let free = &mut free[place(&nodes[*i])];
        cycle = earliest[*i].max(cycle).max(*free);
        *free = cycle + 1;
        after[*i].iter().for_each(|(to, cycles)| earliest[*to] = earliest[*to].max(cycle + cycles));
    }
    cycle
}

/// A list of instructions to schedule, in units of one or two: pairs are accesses to adjacent vectors, which
/// one instruction performs.
struct List<'a> {
    f: &'a Func,
    b: &'a Block,
    /// Instructions of each unit.
    units: Vec<Vec<usize>>,
    /// Units that wait for a unit, and the cycles that they do.
    after: Vec<Vec<(usize, usize)>>,
    /// Number of units that each waits for.
    waits: Vec<usize>,
    /// Uses of vectors that are left; those that are live at the end have one more.
    uses: Map<Value, usize>,
    /// Live vectors, and their limit.
    live: usize,
    limit: usize,
}

impl<'a> List<'a> {
    fn new(f: &'a Func, block: usize, edges: &[Edge], (limit, live_out): (usize, &[bool])) -> List<'a> {
        let b = &f.blocks[block];
        let units = units(&b.nodes, f.adjacent);
        let mut unit_of = vec![0; b.nodes.len()];
        for (u, nodes) in units.iter().enumerate() {
            nodes.iter().for_each(|n| unit_of[*n] = u);
        }
        let mut after = vec![vec![]; units.len()];
        let mut waits = vec![0; units.len()];
        for (from, to, cycles) in edges {
            let (from, to) = (unit_of[*from], unit_of[*to]);
            if from != to {
                after[from].push((to, *cycles));
                waits[to] += 1;
            }
        }
        let mut list = List { f, b, units, after, waits, uses: Map::default(), live: 0, limit };
        list.count(live_out);
        list
    }
    fn is_vector(&self, v: &Value) -> bool {
        self.f.classes[v.0 as usize] != Class::Int
    }
    /// Counts uses and live vectors at the entry.
    fn count(&mut self, live_out: &[bool]) {
        let mut uses: Map<Value, usize> = Map::default();
        let outs = (0..live_out.len()).filter(|i| live_out[*i]).map(|i| Value(i as u32));
        let args = self.b.nodes.iter().flat_map(|n| n.args.iter().copied());
        for v in args.chain(self.b.jump_args.iter().copied()).chain(outs).filter(|v| self.is_vector(v)) {
            *uses.entry(v).or_default() += 1;
        }
        let made: Set<Value> = self.b.nodes.iter().filter_map(|n| n.def).collect();
        self.live = uses.keys().filter(|v| !made.contains(v)).count();
        self.uses = uses;
    }
    /// The change of the number of live vectors by a unit.
    fn change(&self, u: usize) -> i64 {
        let nodes = || self.units[u].iter().map(|n| &self.b.nodes[*n]);
        let made = nodes().filter_map(|n| n.def).filter(|d| self.is_vector(d)).count() as i64;
        let mut ends: Vec<(Value, usize)> = vec![];
        for v in nodes().flat_map(|n| &n.args).filter(|v| self.is_vector(v)) {
            match ends.iter_mut().find(|e| e.0 == *v) {
                Some(e) => e.1 += 1,
                None => ends.push((*v, 1)),
            }
        }
        made - ends.iter().filter(|(v, n)| self.uses.get(v) == Some(n)).count() as i64
    }
    fn emit(&mut self, u: usize, out: &mut Vec<usize>) {
        self.live = (self.live as i64 + self.change(u)).max(0) as usize;
        for v in self.units[u].iter().flat_map(|n| &self.b.nodes[*n].args) {
            if let Some(k) = self.uses.get_mut(v) {
                *k -= 1;
            }
        }
        out.extend_from_slice(&self.units[u]);
    }
    fn place(&self, u: usize) -> usize {
        place(&self.b.nodes[self.units[u][0]])
    }
    /// The first of `ready` units that can begin in this cycle. If registers suffice for none of them, the
    /// first one; `None` if time has to pass.
    fn next(&self, ready: &[usize], can_begin: impl Fn(usize) -> bool) -> Option<usize> {
        let fits = |u: &usize| self.live < self.limit || self.change(*u) <= 0;
        let first = |units: &mut dyn Iterator<Item = usize>| units.min_by_key(|u| self.units[*u][0]);
        let mut fitting = ready.iter().copied().filter(fits).peekable();
        if fitting.peek().is_none() {
            return first(&mut ready.iter().copied());
        }
        first(&mut fitting.filter(|u| can_begin(*u)))
    }
    /// The instructions in their new order.
    fn run(mut self) -> Vec<usize> {
        let mut earliest = vec![0; self.units.len()];
        let mut ready: Vec<usize> = (0..self.units.len()).filter(|u| self.waits[*u] == 0).collect();
        let mut out = Vec::with_capacity(self.b.nodes.len());
        let (mut cycle, mut free) = (0, [0; 2]);
        while !ready.is_empty() {
            let can_begin = |u: usize| earliest[u].max(free[self.place(u)]) <= cycle;
            let Some(u) = self.next(&ready, can_begin) else {
                cycle += 1;
                continue;
            };
            free[self.place(u)] = cycle + self.units[u].len();
            ready.retain(|x| *x != u);
            self.emit(u, &mut out);
            for (to, cycles) in std::mem::take(&mut self.after[u]) {
                earliest[to] = earliest[to].max(cycle + cycles);
                self.waits[to] -= 1;
                if self.waits[to] == 0 {
                    ready.push(to);
                }
            }
        }
        out
    }
}

/// Units: pairs of loads that follow each other, if loads can be paired, pairs of stores, single
/// instructions.
fn units(nodes: &[Node], adjacent: Adjacent) -> Vec<Vec<usize>> {
    let mut partner: Map<usize, usize> = Map::default();
    for i in 0..nodes.len() {
        if !partner.contains_key(&i)
            && (stores(&nodes[i]) || adjacent != Adjacent::Apart)
            && let Some(j) = second(nodes, i).filter(|j| !partner.contains_key(j))
        {
            partner.insert(i, j);
            partner.insert(j, i);
        }
    }
    let unit = |i: usize| match partner.get(&i) {
        Some(j) if *j < i => None,
        Some(j) => Some(vec![i, *j]),
        None => Some(vec![i]),
    };
    (0..nodes.len()).filter_map(unit).collect()
}

/// The second access of the pair that begins with node `i`. A store may move down to its neighbour.
fn second(nodes: &[Node], i: usize) -> Option<usize> {
    let last = if stores(&nodes[i]) { nodes.len() } else { nodes.len().min(i + 2) };
    for j in i + 1..last {
        if nodes[i].op == nodes[j].op && is_pair(&nodes[i], &nodes[j]) {
            return Some(j);
        }
        let lost = overwrites(&nodes[j]).and_then(|k| nodes[j].args.get(k));
        if is_fixed(&nodes[j]) || conflict(&nodes[i], &nodes[j]) || lost.is_some_and(|v| reads(&nodes[i], *v))
        {
            return None;
        }
    }
    None
}

/// True for whole vectors next to each other.
fn is_pair(a: &Node, b: &Node) -> bool {
    let whole = matches!(a.op, Op::Load(_) | Op::Store(_)) && a.args.len() == b.args.len();
    whole && matches!((a.mem, b.mem), (Some(a), Some(b)) if next_to(&a, &b))
}

/// Bytes that an access may touch, from its displacement on: an upper bound.
const BYTES: i64 = 16;

/// True for two accesses, one of which is a store, that may touch the same bytes.
fn conflict(a: &Node, b: &Node) -> bool {
    let (Some(x), Some(y)) = (a.mem, b.mem) else { return false };
    let prefetch = |n: &Node| matches!(n.op, Op::Prefetch { .. } | Op::Address);
    if !stores(a) && !stores(b) || prefetch(a) || prefetch(b) {
        return false;
    }
    let place = |m: &Mem| (m.base, m.index);
    place(&x) != place(&y) || (i64::from(x.disp) - i64::from(y.disp)).abs() < BYTES
}

/// True if an instruction reads a value.
fn reads(n: &Node, v: Value) -> bool {
    n.values().any(|x| x == v)
}

/// The argument that a result takes the place of: pointers and counters are added to in place, too.
fn overwrites(n: &Node) -> Option<usize> {
    if matches!(n.op, Op::AddImm(_)) { Some(0) } else { registers::overwrites(n.op) }
}

/// An instruction, one that waits for it, and the cycles that it does.
type Edge = (usize, usize, usize);

/// What waits for what, and the cycles.
pub(super) fn edges(nodes: &[Node]) -> Vec<Edge> {
    let mut out = vec![];
    let mut made: Map<Value, usize> = Map::default();
    let mut used: Map<Value, Vec<usize>> = Map::default();
    let (mut fixed, mut accesses): (Option<usize>, Vec<usize>) = (None, vec![]);
    for (i, n) in nodes.iter().enumerate() {
        let over = overwrites(n);
        for (k, v) in n.values().enumerate() {
            if let Some(d) = made.get(&v) {
                out.push((*d, i, latency(&nodes[*d])));
            }
            let users = used.entry(v).or_default();
            // Whoever overwrites a value comes behind its other users, and before those behind it.
            for u in users.iter().filter(|u| **u != i) {
                let first = overwrites(&nodes[*u]).is_some_and(|k| nodes[*u].args.get(k) == Some(&v));
                if over == Some(k) || first {
                    out.push((*u, i, 0));
                }
            }
            users.push(i);
        }
        if n.mem.is_some() {
            out.extend(accesses.iter().filter(|a| conflict(&nodes[**a], n)).map(|a| (*a, i, 1)));
            accesses.push(i);
        }
        if is_fixed(n) {
            out.extend((fixed.map_or(0, |f| f + 1)..i).map(|before| (before, i, 0)));
            fixed = Some(i);
        } else if let Some(f) = fixed {
            out.push((f, i, 0));
        }
        made.extend(n.def.map(|d| (d, i)));
    }
    out
}
