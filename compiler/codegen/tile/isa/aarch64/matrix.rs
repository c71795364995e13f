//! Matrix products of bytes (FEAT_I8MM) and of bf16 (FEAT_BF16). Dot products of eight bytes, which the IR
//! expresses for one row of the result at a time, become instructions that multiply two rows by two columns.
//!
//! Accumulators of two rows with the same columns are *paired*: of the accumulators `a` and `b` of four
//! columns each, one register has columns 0 and 1 of both, another one columns 2 and 3. Pairs are passed
//! through block parameters, so that loops carry them in this form. For other uses, and for initial values,
//! two instructions convert between pairs and accumulators. A row without a partner is paired with itself;
//! half of each product is then unused, which gives the throughput of quads.
//!
//! Nests express eights rather than quads in a column order that suits these instructions: the layout of
//! packed operands then follows from their element type, every other reader of a nest understands it, and
//! only this file deals with paired rows.

use crate::codegen::tile::ir::Bits::{B32, B64};
use crate::codegen::tile::ir::{Block, Class, Form, Func, Line, Mem, Node, Op, Value};
use crate::codegen::tile::isa::{node, remove_unused};
use crate::codegen::{Map, Set};

/// Accumulators of two rows, in the order of the pair.
type Pair = (Value, Value);

/// Accumulators of a block that depend on each other: indices of the instructions.
struct Chain {
    nodes: Vec<usize>,
    /// Their initial value.
    root: Value,
}

/// Two chains of a block that form a pair, or one paired with itself.
struct Rows {
    a: Chain,
    b: Option<Chain>,
}

/// The paired accumulators.
#[derive(Default)]
struct Pairs {
    /// The pair of each accumulator, and whether its registers have columns of two rows in sequence
    /// (`swapped`, of [`Op::MatrixDot`]).
    of: Map<Value, (Pair, bool)>,
    /// The two registers of each pair.
    halves: Map<Pair, Pair>,
}

/// Replaces the dot products of eights in a function by matrix products.
pub(super) fn products(f: &mut Func) {
    let is_one = |n: &Node| matches!(n.op, Op::Dot8 { .. });
    if !f.blocks.iter().flat_map(|b| &b.nodes).any(is_one) {
        return;
    }
    let mut pairs = Pairs::default();
    let mut rows: Vec<Vec<Rows>> = vec![];
    for i in 0..f.blocks.len() {
        rows.push(pairs.of_block(&f.blocks, i));
    }
    let all: Set<Pair> = pairs.of.values().map(|p| p.0).collect();
    let mut all: Vec<Pair> = all.into_iter().collect();
    all.sort_unstable();
    for p in all {
        let halves =
            (Value::fresh(&mut f.classes, Class::Vector), Value::fresh(&mut f.classes, Class::Vector));
        pairs.halves.insert(p, halves);
    }
    let constants: Map<Value, Op> = f
        .blocks
        .iter()
        .flat_map(|b| &b.nodes)
        .filter_map(|n| Some((n.def?, n.op)).filter(|n| n.1.is_constant()))
        .collect();
    let params: Vec<Vec<Value>> = f.blocks.iter().map(|b| b.params.clone()).collect();
    for (b, rows) in f.blocks.iter_mut().zip(&rows) {
        let to = b.succs.first().map_or(&[][..], |s| &params[*s]);
        Rewrite {
            pairs: &pairs,
            constants: &constants,
            classes: &mut f.classes,
            sums: Map::default(),
            made: Map::default(),
            out: vec![],
            line: Line::default(),
        }
        .block(b, rows, to);
    }
    // Loads of row elements that paired loads replaced.
    remove_unused(&mut f.blocks, |n| n.op == Op::Broadcast(Form::B64));
}

/// The chains of a block in order.
fn chains(b: &Block) -> Vec<Chain> {
    let mut chains: Vec<Chain> = vec![];
    let mut ends: Map<Value, usize> = Map::default();
    for (i, n) in b.nodes.iter().enumerate() {
        let (Op::Dot8 { .. }, Some(d), Some(c)) = (n.op, n.def, n.args.first()) else { continue };
        let k = ends.remove(c).unwrap_or_else(|| {
            chains.push(Chain { nodes: vec![], root: *c });
            chains.len() - 1
        });
        chains[k].nodes.push(i);
        ends.insert(d, k);
    }
    chains
}

impl Pairs {
    /// Pairs the accumulators of a block, and those passed to it.
    fn of_block(&mut self, blocks: &[Block], i: usize) -> Vec<Rows> {
        let b = &blocks[i];
        let mut left = chains(b);
        let mut rows = vec![];
        while !left.is_empty() {
            let a = left.remove(0);
            let fits: Vec<usize> = (0..left.len()).filter(|k| can_pair(b, &a, &left[*k])).collect();
            // The partner in a previous block.
            let known = self.of.get(&a.root).map(|p| p.0);
            let again = fits.iter().find(|k| known == Some((a.root, left[**k].root)));
            let other = again.or(fits.first()).copied().map(|k| left.remove(k));
            let swapped = matches!(b.nodes[a.nodes[0]].op, Op::Dot8 { swapped: true, .. });
            let second = other.as_ref().unwrap_or(&a);
            for (x, y) in a.nodes.iter().zip(&second.nodes) {
                if let (Some(x), Some(y)) = (b.nodes[*x].def, b.nodes[*y].def) {
                    self.of.insert(x, ((x, y), swapped));
                    self.of.insert(y, ((x, y), swapped));
                }
            }
            let roots = (a.root, second.root);
            rows.push(Rows { a, b: other });
            self.hand_over(blocks, roots, swapped);
        }
        rows
    }
    /// Pairs two block parameters, and transitively the values that they are passed to.
    fn hand_over(&mut self, blocks: &[Block], first: Pair, swapped: bool) {
        let mut left = vec![first];
        while let Some((x, y)) = left.pop() {
            if self.of.contains_key(&x) || self.of.contains_key(&y) {
                continue;
            }
            let at = |b: &Block, v: Value| b.params.iter().position(|p| *p == v);
            let Some((block, i, j)) = blocks.iter().find_map(|b| Some((b, at(b, x)?, at(b, y)?))) else {
                continue;
            };
            self.of.insert(x, ((x, y), swapped));
            self.of.insert(y, ((x, y), swapped));
            for p in &block.preds {
                let handed = &blocks[*p].jump_args;
                left.extend(handed.get(i).copied().zip(handed.get(j).copied()));
            }
        }
    }
    /// The registers of a pair.
    fn get(&self, pair: Pair, swapped: bool) -> Option<Pair> {
        let known = self.of.get(&pair.0) == Some(&(pair, swapped));
        self.halves.get(&pair).copied().filter(|_| known)
    }
}

/// True if two chains multiply the same columns, and no accumulator of either is read before both are
/// complete.
fn can_pair(b: &Block, x: &Chain, y: &Chain) -> bool {
    let alike = x.nodes.len() == y.nodes.len()
        && x.nodes.iter().zip(&y.nodes).all(|(i, j)| {
            let (m, n) = (&b.nodes[*i], &b.nodes[*j]);
            m.op == n.op && m.args.get(2..) == n.args.get(2..)
        });
    let own: Set<usize> = x.nodes.iter().chain(&y.nodes).copied().collect();
    let sums: Set<Value> = own.iter().filter_map(|i| b.nodes[*i].def).collect();
    let last = own.iter().max().copied().unwrap_or(0);
    let read = |i: usize| !own.contains(&i) && b.nodes[i].values().any(|v| sums.contains(&v));
    alike && !(0..last).any(read) && !sums.contains(&x.root) && !sums.contains(&y.root)
}

/// A block being rewritten.
struct Rewrite<'a> {
    pairs: &'a Pairs,
    constants: &'a Map<Value, Op>,
    classes: &'a mut Vec<Class>,
    /// Accumulators extracted from pairs.
    sums: Map<Value, Value>,
    /// Elements of two rows in one register.
    made: Map<Pair, Value>,
    out: Vec<Node>,
    line: Line,
}

impl Rewrite<'_> {
    fn push(&mut self, op: Op, args: &[Value], mem: Option<Mem>) -> Value {
        let def = Value::fresh(self.classes, Class::Vector);
        self.out.push(Node { op, args: args.to_vec(), mem, literal: None, def: Some(def), line: self.line });
        def
    }
    /// A value as other instructions use it.
    fn plain(&mut self, v: Value) -> Value {
        let Some((pair, swapped)) = self.pairs.of.get(&v).copied() else { return v };
        let (Some((p, q)), false) = (self.pairs.halves.get(&pair).copied(), self.sums.contains_key(&v))
        else {
            return self.sums.get(&v).copied().unwrap_or(v);
        };
        let second = v != pair.0;
        let op = if swapped { Op::Unzip { odd: second } } else { Op::Zip { bits: B64, upper: second } };
        let sum = self.push(op, &[p, q], None);
        self.sums.insert(v, sum);
        sum
    }
    /// The registers of a pair of accumulators.
    fn paired(&mut self, (a, b): Pair, swapped: bool) -> Pair {
        if let Some(halves) = self.pairs.get((a, b), swapped) {
            return halves;
        }
        // Uniform lanes.
        if let (Some(x), Some(y)) = (self.constants.get(&a), self.constants.get(&b))
            && x == y
        {
            return (a, a);
        }
        let (a, b) = (self.plain(a), self.plain(b));
        let bits = if swapped { B32 } else { B64 };
        [false, true].map(|upper| self.push(Op::Zip { bits, upper }, &[a, b], None)).into()
    }
    fn block(mut self, b: &mut Block, rows: &[Rows], to: &[Value]) {
        let nodes = std::mem::take(&mut b.nodes);
        // The positions at which both accumulators of a step are available.
        let mut steps: Map<usize, (usize, usize)> = Map::default();
        let mut own: Set<usize> = Set::default();
        for r in rows {
            let second = r.b.as_ref().unwrap_or(&r.a);
            for (i, j) in r.a.nodes.iter().zip(&second.nodes) {
                steps.insert(*i.max(j), (*i, *j));
                own.extend([*i, *j]);
            }
        }
        let together = neighbours(&nodes, &steps);
        for (i, n) in nodes.iter().enumerate() {
            self.line = n.line;
            if i + 1 == nodes.len() {
                self.hand_over(b, to);
            }
            match steps.get(&i) {
                Some((x, y)) => self.step(&nodes[*x], &nodes[*y], &together),
                None if own.contains(&i) => {}
                None => {
                    let mut n = n.clone();
                    for v in &mut n.args {
                        *v = self.plain(*v);
                    }
                    self.out.push(n);
                }
            }
        }
        b.params = b.params.iter().flat_map(|p| self.slots(*p)).collect();
        b.nodes = self.out;
    }
    /// The replacement of a parameter: a pair for the first accumulator of a pair, nothing for the second.
    fn slots(&self, p: Value) -> Vec<Value> {
        match self.pairs.of.get(&p) {
            None => vec![p],
            Some((pair, _)) if pair.0 != p => vec![],
            Some((pair, _)) => self.pairs.halves.get(pair).map_or(vec![], |(p, q)| vec![*p, *q]),
        }
    }
    /// The arguments that a block passes to its successor with parameters `to`.
    fn hand_over(&mut self, b: &mut Block, to: &[Value]) {
        let old = std::mem::take(&mut b.jump_args);
        let given = |v: Value| to.iter().position(|p| *p == v).and_then(|i| old.get(i)).copied();
        for (p, v) in to.iter().zip(&old) {
            match self.pairs.of.get(p).copied() {
                None => {
                    let v = self.plain(*v);
                    b.jump_args.push(v);
                }
                Some((pair, _)) if pair.0 != *p => {}
                Some((pair, swapped)) => {
                    if let (Some(x), Some(y)) = (given(pair.0), given(pair.1)) {
                        let (p, q) = self.paired((x, y), swapped);
                        b.jump_args.extend([p, q]);
                    }
                }
            }
        }
    }
    /// One step of the accumulators of two rows.
    fn step(&mut self, x: &Node, y: &Node, together: &Map<Pair, Place>) {
        let (Op::Dot8 { of, swapped }, &[a, of_a, first, second], &[b, of_b, ..]) =
            (x.op, x.args.as_slice(), y.args.as_slice())
        else {
            return;
        };
        let Some((p, q)) = x.def.zip(y.def).and_then(|d| self.pairs.halves.get(&d).copied()) else { return };
        let sums = self.paired((a, b), swapped);
        let rows = self.rows((of_a, of_b), together);
        for (def, sum, columns) in [(p, sums.0, first), (q, sums.1, second)] {
            let op = Op::MatrixDot { of, swapped };
            let args = vec![sum, columns, rows];
            self.out.push(node(op, args, Some(def), self.line));
        }
    }
    /// Eight bytes of each of two rows.
    fn rows(&mut self, of: Pair, together: &Map<Pair, Place>) -> Value {
        if of.0 == of.1 {
            return of.0;
        }
        if let Some(v) = self.made.get(&of) {
            return *v;
        }
        let lower = Op::Zip { bits: B64, upper: false };
        let Some(p) = together.get(&of) else {
            let v = self.push(lower, &[of.0, of.1], None);
            self.made.insert(of, v);
            return v;
        };
        let a = self.push(Op::Load(Form::B32), &[], Some(p.at.0));
        let b = self.push(Op::Load(Form::B32), &[], Some(p.at.1));
        for (upper, of) in [(false, p.first), (true, p.second)] {
            let v = self.push(Op::Zip { bits: B64, upper }, &[a, b], None);
            self.made.insert(of, v);
        }
        self.made.get(&of).copied().unwrap_or(a)
    }
}

/// Two adjacent elements of two rows, each pair loaded at once.
#[derive(Clone, Copy)]
struct Place {
    at: (Mem, Mem),
    first: Pair,
    second: Pair,
}

/// Elements of rows that are adjacent to others in the same block, if no store precedes the last product.
fn neighbours(nodes: &[Node], steps: &Map<usize, (usize, usize)>) -> Map<Pair, Place> {
    let last = steps.keys().max().copied().unwrap_or(0);
    let mut loads: Map<Value, Mem> = Map::default();
    for n in &nodes[..last] {
        match (n.op, n.def, n.mem) {
            (Op::Broadcast(Form::B64), Some(d), Some(m)) if n.args.is_empty() => {
                loads.insert(d, m);
            }
            (Op::Store(_) | Op::StoreFirst(..) | Op::StoreLane(..) | Op::StoreScalar(_), ..) => {
                return Map::default();
            }
            _ => {}
        }
    }
    let mut at: Vec<usize> = steps.keys().copied().collect();
    at.sort_unstable();
    let mut found: Vec<(Pair, Mem, Mem)> = vec![];
    for (i, j) in at.iter().filter_map(|i| steps.get(i)) {
        if let (Some(x), Some(y)) = (nodes[*i].args.get(1), nodes[*j].args.get(1))
            && let (Some(m), Some(n)) = (loads.get(x), loads.get(y))
            && x != y
            && !found.iter().any(|f| f.0 == (*x, *y))
        {
            found.push(((*x, *y), *m, *n));
        }
    }
    let next =
        |a: &Mem, b: &Mem| a.base == b.base && a.index == b.index && b.disp.checked_sub(a.disp) == Some(8);
    let mut places = Map::default();
    // In ascending order, so that single elements remain at the ends only.
    found.sort_by_key(|f| f.1.disp);
    for (i, (first, m, n)) in found.iter().enumerate() {
        if places.contains_key(first) {
            continue;
        }
        let other =
            found[i + 1..].iter().find(|f| next(m, &f.1) && next(n, &f.2) && !places.contains_key(&f.0));
        if let Some((second, ..)) = other {
            let p = Place { at: (*m, *n), first: *first, second: *second };
            places.insert(*first, p);
            places.insert(*second, p);
        }
    }
    places
}
