//! Instruction selection: elements that multiply whole vectors stay lanes of the registers that they were
//! loaded into, products of rows and columns are scheduled so that few loads are live at once, and selects
//! overwrite dead operands.

use super::{bases, groups, near, order};
use crate::codegen::tile::ir::{Bin, Block, Form, Func, Mem, Node, Op, Value};
use crate::codegen::tile::isa::stores;
use crate::codegen::{Map, Set};
use crate::target::Adjacent;

/// Vector registers.
const REGISTERS: usize = 32;
/// Minimum products with a vector that hide the latency of the next load.
const ENOUGH_ROWS: usize = 4;
/// Products with a column that are left when the next ones are taken apart, so that these are ready in time.
const LATE: usize = 4;
/// Products between the load of a row's elements and their first use, where the core reorders: it takes a
/// load and products in one cycle, but not two loads.
const ELEMENTS_AHEAD: usize = 2;
/// Instructions over which a load moves up to its neighbour.
const FAR: usize = 128;

/// True for a multiply-add, one of whose factors may be a broadcast lane.
fn is_product(op: Op) -> bool {
    matches!(op, Op::Fma231 { .. } | Op::Dot(_))
}

/// Definitions and uses of values.
struct Uses {
    /// Number of uses, and the index of the last one.
    uses: Map<Value, (usize, usize)>,
    /// The block of the definition.
    defined: Map<Value, usize>,
}

impl Uses {
    fn of(blocks: &[Block]) -> Uses {
        let mut u = Uses { uses: Map::default(), defined: Map::default() };
        let mut at = 0;
        for (i, b) in blocks.iter().enumerate() {
            u.defined.extend(b.params.iter().map(|p| (*p, i)));
            for n in &b.nodes {
                n.args
                    .iter()
                    .chain(
                        n.mem.iter().flat_map(|m| [Some(&m.base), m.index.as_ref().map(|x| &x.0)]).flatten(),
                    )
                    .for_each(|v| u.note(*v, at));
                u.defined.extend(n.def.map(|d| (d, i)));
                at += 1;
            }
            b.jump_args.iter().for_each(|v| u.note(*v, at));
        }
        u
    }
    fn note(&mut self, v: Value, at: usize) {
        let u = self.uses.entry(v).or_default();
        *u = (u.0 + 1, at);
    }
    /// True if a value of a block has no use after instruction `at`.
    fn dies(&self, v: Value, block: usize, at: usize) -> bool {
        self.uses.get(&v).is_some_and(|u| u.1 == at) && self.defined.get(&v) == Some(&block)
    }
}

/// Selects instruction forms and their order, for in-order or out-of-order cores.
pub(super) fn forms(f: &mut Func) {
    let in_order = f.in_order;
    let zeros = results(&f.blocks, |op| matches!(op, Op::Const(x) if x.is_zero()));
    let loaded = results(&f.blocks, |op| matches!(op, Op::Broadcast(_)));
    for n in f.blocks.iter_mut().flat_map(|b| &mut b.nodes) {
        let starts = |n: &Node| zeros.contains(&n.args[2]) && !n.args.iter().any(|v| loaded.contains(v));
        if let (Op::Fma { neg: false, bits }, true) = (n.op, n.args.len() == 3 && starts(n)) {
            // The first product of a sum.
            n.op = Op::Bin(Bin::Mul, bits);
            n.args.truncate(2);
        }
        if let (Op::Fma { neg, bits }, &[a, b, c]) = (n.op, n.args.as_slice()) {
            (n.op, n.args) = (Op::Fma231 { neg, bits }, vec![c, a, b]);
        }
    }
    let elements = elements(&f.blocks);
    let mut others = vec![];
    for b in f.blocks.iter_mut() {
        let held = hold(b, &elements);
        by_lane(b, &held);
        others.push(!in_columns(b, in_order));
        if others.ends_with(&[true]) && !in_order {
            in_pairs(b);
        }
    }
    if f.adjacent == Adjacent::ApartIfNear {
        bases::blocks(f);
    }
    order::blocks(f, &others);
    if !in_order {
        groups::fill(f);
    }
    let uses = Uses::of(&f.blocks);
    let mut at = 0;
    for (i, b) in f.blocks.iter_mut().enumerate() {
        for n in &mut b.nodes {
            if let Op::Select(bits) = n.op {
                // Prefer to overwrite a dying mask, which usually has no other use.
                let dies = [2, 0, 1].into_iter().find(|k| {
                    n.args.get(*k).is_some_and(|v| {
                        uses.dies(*v, i, at) && n.args.iter().filter(|a| *a == v).count() == 1
                    })
                });
                n.op = Op::SelectInto(bits, dies.unwrap_or(0) as u8);
            }
            at += 1;
        }
    }
}

/// Results of the operations that a function accepts.
fn results(blocks: &[Block], of: impl Fn(Op) -> bool) -> Set<Value> {
    blocks.iter().flat_map(|b| &b.nodes).filter(|n| of(n.op)).filter_map(|n| n.def).collect()
}

/// Broadcast loads whose uses are all products of the same block with one such factor.
fn elements(blocks: &[Block]) -> Set<Value> {
    let mut found: Map<Value, usize> = Map::default();
    for (i, b) in blocks.iter().enumerate() {
        for n in &b.nodes {
            if let (Op::Broadcast(Form::B32 | Form::B64 | Form::F16), Some(d), []) =
                (n.op, n.def, n.args.as_slice())
            {
                found.insert(d, i);
            }
        }
    }
    for (i, b) in blocks.iter().enumerate() {
        for n in &b.nodes {
            match (n.op, n.args.as_slice()) {
                (op, &[c, x, y]) if is_product(op) => {
                    found.remove(&c);
                    for v in [x, y] {
                        if found.get(&v).is_some_and(|own| *own != i) {
                            found.remove(&v);
                        }
                    }
                    if found.contains_key(&x) && found.contains_key(&y) {
                        found.remove(&x);
                    }
                }
                (_, args) => args.iter().for_each(|v| {
                    found.remove(v);
                }),
            }
        }
        b.jump_args.iter().for_each(|v| {
            found.remove(v);
        });
    }
    found.into_keys().collect()
}

/// Base and index of an access.
type Place = (Value, Option<(Value, u8)>);

/// The lane of a register that holds an element.
type Held = Map<Value, (Value, u8)>;

/// Accesses of one form to one base without a store between them: displacements and instruction indices.
type Run = (Form, Option<Place>, Vec<(i32, usize)>);

/// Lanes of a register for elements of a form.
fn lanes_of(form: Form) -> usize {
    (16 / form.lane_bytes()) as usize
}

/// Elements that one load has.
struct Group {
    /// Displacement of the first lane.
    first: i32,
    /// Number of lanes.
    count: usize,
    /// Instructions, and the lane of each.
    elements: Vec<(usize, u8)>,
    /// Lanes of a register.
    lanes: usize,
}

impl Group {
    /// True if all lanes of the register are elements.
    fn is_full(&self) -> bool {
        self.elements.len() >= self.lanes
    }
}

/// The elements of a run that share loads.
fn groups_of((form, _, mut list): Run) -> Vec<Group> {
    let lanes = lanes_of(form);
    list.sort_unstable();
    let places: Vec<i32> = list.iter().map(|x| x.0).collect();
    let counts: &[usize] = if lanes == 4 { &[4, 2] } else { &[2] };
    near::windows(&places, form.bytes() as i32, counts)
        .into_iter()
        .filter(|w| w.elements.len() > 1)
        .map(|w| Group {
            first: w.first,
            count: w.count,
            elements: w.elements.iter().map(|(i, lane)| (list[*i].1, *lane)).collect(),
            lanes,
        })
        .collect()
}

/// Loads the elements of a block: near ones together if registers allow, else separately.
fn hold(b: &mut Block, elements: &Set<Value>) -> Held {
    let mut held = Held::default();
    // The accumulators of the block reduce the registers for loads.
    let sums: Set<Value> = b.nodes.iter().filter(|n| is_product(n.op)).filter_map(|n| n.def).collect();
    let sums = b
        .nodes
        .iter()
        .filter(|n| is_product(n.op) && n.args.first().is_some_and(|c| !sums.contains(c)))
        .count();
    let place = |n: &Node| n.mem.map(|m| (m.base, m.index));
    // Runs of accesses without a store between them, by base.
    let mut runs: Vec<Run> = vec![];
    let mut from = 0;
    for (i, n) in b.nodes.iter().enumerate() {
        match (n.op, n.def, n.mem) {
            (Op::Broadcast(form), Some(d), Some(m)) if elements.contains(&d) => {
                match runs[from..].iter_mut().find(|r| r.0 == form && r.1 == place(n)) {
                    Some(r) => r.2.push((m.disp, i)),
                    None => runs.push((form, place(n), vec![(m.disp, i)])),
                }
            }
            (Op::Store(_) | Op::StoreFirst(..) | Op::StoreLane(..) | Op::StoreScalar(_), ..) => {
                from = runs.len()
            }
            _ => {}
        }
    }
    let mut groups: Vec<Group> = runs.into_iter().flat_map(groups_of).collect();
    // Two registers for the other factors.
    if sums + groups.len() + 2 > REGISTERS {
        groups.retain(Group::is_full);
    }
    if sums + groups.len() + 2 > REGISTERS {
        groups.clear();
    }
    let mut gone: Set<usize> = Set::default();
    for g in groups {
        let Some(first) = g.elements.iter().map(|e| e.0).min() else { continue };
        let (Some(holder), Some(place)) = (b.nodes[first].def, b.nodes[first].mem) else { continue };
        for (i, lane) in &g.elements {
            if let Some(d) = b.nodes[*i].def {
                held.insert(d, (holder, *lane));
            }
            if *i != first {
                gone.insert(*i);
            }
        }
        if let Op::Broadcast(form) = b.nodes[first].op {
            let whole = g.count == lanes_of(form);
            b.nodes[first].op = if whole { Op::Load(form) } else { Op::LoadFirst(form, g.count as u8) };
            b.nodes[first].mem = Some(Mem { disp: g.first, ..place });
        }
    }
    for n in &mut b.nodes {
        if let (Op::Broadcast(form), Some(d)) = (n.op, n.def)
            && elements.contains(&d)
            && !held.contains_key(&d)
        {
            n.op = Op::LoadFirst(form, 1);
            held.insert(d, (d, 0));
        }
    }
    let mut i = 0;
    b.nodes.retain(|_| {
        i += 1;
        !gone.contains(&(i - 1))
    });
    held
}

/// Replaces element factors by lanes.
fn by_lane(b: &mut Block, held: &Held) {
    for n in &mut b.nodes {
        if let (true, &[c, x, y]) = (is_product(n.op), n.args.as_slice()) {
            let swapped = !held.contains_key(&y);
            let (vector, element) = if swapped { (y, x) } else { (x, y) };
            let Some((holder, lane)) = held.get(&element).copied() else { continue };
            n.op = match n.op {
                Op::Fma231 { neg, bits } => Op::FmaLane { neg, bits, lane },
                Op::Dot(bytes) => Op::DotLane { bytes, swapped, lane },
                op => op,
            };
            n.args = vec![c, vector, holder];
        }
    }
}

/// Vectors of columns that instructions of a block load, or make of two that they load.
struct Columns {
    /// Numbers of the instructions: loads, and what takes them apart.
    made: Map<Value, (usize, Option<[usize; 2]>)>,
}

impl Columns {
    /// Nothing where there are stores, which loads may not pass.
    fn of(nodes: &[Node]) -> Option<Columns> {
        let mut made: Map<Value, (usize, Option<[usize; 2]>)> = Map::default();
        for (i, n) in nodes.iter().enumerate() {
            match (n.op, n.def, n.args.as_slice()) {
                (Op::Load(_), Some(d), []) => {
                    made.insert(d, (i, None));
                }
                (Op::Unzip { .. }, Some(d), [x, y]) => {
                    if let (Some((x, None)), Some((y, None))) = (made.get(x), made.get(y)) {
                        made.insert(d, (i, Some([*x, *y])));
                    }
                }
                (Op::Store(_) | Op::StoreFirst(..) | Op::StoreLane(..) | Op::StoreScalar(_), ..) => {
                    return None;
                }
                _ => {}
            }
        }
        Some(Columns { made })
    }
    /// The instructions that make a vector.
    fn nodes(&self, v: Value) -> impl Iterator<Item = usize> {
        let (own, of) = self.made.get(&v).copied().unzip();
        of.flatten().into_iter().flatten().chain(own)
    }
    /// True for a vector that is made of two.
    fn is_made(&self, v: Value) -> bool {
        self.made.get(&v).is_some_and(|m| m.1.is_some())
    }
    /// True for two of the same vectors, and if `pairs` for neighbours in memory.
    fn together(&self, nodes: &[Node], (a, b): (Value, Value), pairs: bool) -> bool {
        match (self.made.get(&a), self.made.get(&b)) {
            (Some((a, None)), Some((b, None))) => {
                pairs && matches!((nodes[*a].mem, nodes[*b].mem), (Some(a), Some(b)) if next_to(&a, &b))
            }
            (Some((_, Some(a))), Some((_, Some(b)))) => a == b,
            _ => false,
        }
    }
}

/// The vector of columns that a product multiplies by an element, its last argument.
fn column(product: &Node) -> Option<&Value> {
    product.args.iter().nth_back(1)
}

/// Orders products of rows, which are held as elements, and columns, which are loaded: column after column,
/// all rows with each, so that no more than two columns are alive. False for other blocks, and if the rows
/// are too few to hide the loads of a core that waits for them: the scheduler then orders the block.
fn in_columns(b: &mut Block, in_order: bool) -> bool {
    let is_product = |n: &Node| {
        matches!(
            n.op,
            Op::FmaLane { .. }
                | Op::FmaHalves { .. }
                | Op::MulHalves { .. }
                | Op::DotLane { .. }
                | Op::MatrixDot { .. }
        )
    };
    let Some(last) = b.nodes.iter().rposition(is_product) else { return false };
    let products: Vec<&Node> = b.nodes.iter().filter(|n| is_product(n)).collect();
    let results: Set<Value> = products.iter().filter_map(|n| n.def).collect();
    let Some(loads) = Columns::of(&b.nodes[..last]) else { return false };
    // Columns in order of first use, two at once, which one instruction loads, or which are made of the same
    // vectors. Cores that wait for a load take one after the other, where there are rows enough to hide it.
    let mut columns: Vec<Value> = vec![];
    for n in &products {
        let Some(v) = column(n) else { return false };
        if !loads.made.contains_key(v) {
            return false;
        }
        if !columns.contains(v) {
            columns.push(*v);
        }
    }
    let pairs = !in_order || products.len() < ENOUGH_ROWS * columns.len();
    let mut groups: Vec<Vec<Value>> = vec![];
    for v in &columns {
        match groups.iter_mut().find(|p| p.len() == 1 && loads.together(&b.nodes, (p[0], *v), pairs)) {
            Some(p) => p.push(*v),
            None => groups.push(vec![*v]),
        }
    }
    let rank = |v: &Value| groups.iter().position(|p| p.contains(v)).unwrap_or(0);
    let mut ordered: Vec<(usize, &Node)> =
        products.iter().filter_map(|n| Some((rank(column(n)?), *n))).collect();
    // Of those that are taken apart, all rows with one before the other: a sum is in both.
    let other = |n: &Node| {
        let half = |v: &&Value| loads.is_made(**v) && groups.iter().any(|g| g.get(1) == Some(*v));
        column(n).as_ref().is_some_and(half)
    };
    ordered.sort_by_key(|p| (p.0, other(p.1)));
    // Each sum in its order.
    let mut made: Set<Value> = Set::default();
    for (_, n) in &ordered {
        if n.args.iter().any(|v| results.contains(v) && !made.contains(v)) {
            return false;
        }
        made.extend(n.def);
    }
    // What is neither a product nor a column comes before, and must not wait for products.
    let own: Set<Value> =
        columns.iter().flat_map(|v| loads.nodes(*v)).filter_map(|i| b.nodes[i].def).collect();
    let is_column = |n: &Node| n.def.is_some_and(|d| own.contains(&d));
    let before: Vec<Node> =
        b.nodes[..last].iter().filter(|n| !is_product(n) && !is_column(n)).cloned().collect();
    if before.iter().any(|n| n.args.iter().any(|v| results.contains(v) || own.contains(v))) {
        return false;
    }
    // What loads a group, and what takes apart what is loaded.
    let load = |g: usize, apart: bool| {
        let mut all: Vec<usize> = groups.get(g).into_iter().flatten().flat_map(|v| loads.nodes(*v)).collect();
        all.sort_unstable();
        all.dedup();
        let nodes = all.into_iter().map(|i| b.nodes[i].clone());
        nodes.filter(move |n| matches!(n.op, Op::Unzip { .. }) == apart)
    };
    // Elements are loaded for the first column that they multiply.
    let held: Set<Value> = products.iter().filter_map(|n| n.args.last().copied()).collect();
    let is_element = |n: &Node| {
        matches!(n.op, Op::Load(_) | Op::LoadFirst(..)) && n.def.is_some_and(|d| held.contains(&d))
    };
    let (elements, mut out): (Vec<Node>, Vec<Node>) = before.into_iter().partition(is_element);
    let mut elements: Map<Value, Node> = elements.into_iter().filter_map(|n| Some((n.def?, n))).collect();
    // Of single ones and of those that are taken apart, the next arrives while this one is used.
    let ahead = !pairs || columns.iter().any(|v| loads.is_made(*v));
    if ahead {
        out.extend(load(0, false));
    }
    let (mut at, mut late) = (usize::MAX, 0);
    for (i, (rank, n)) in ordered.iter().enumerate() {
        let rest = ordered[i..].iter().take_while(|o| o.0 == *rank).count();
        let early = if in_order { rest } else { rest.min(ELEMENTS_AHEAD + 1) };
        for (_, n) in &ordered[i..i + early] {
            out.extend(n.args.last().and_then(|v| elements.remove(v)));
        }
        if *rank != at {
            if i == 0 {
                out.extend(load(0, true));
            }
            out.extend(load(if ahead { rank + 1 } else { *rank }, false));
            (at, late) = (*rank, rest.min(LATE));
        }
        if rest == late {
            out.extend(load(rank + 1, true));
        }
        out.push((*n).clone());
    }
    out.extend(b.nodes[last + 1..].iter().cloned());
    b.nodes = out;
    !(in_order && pairs)
}

/// Moves loads of adjacent vectors together, so that one instruction performs both.
fn in_pairs(b: &mut Block) {
    let whole = |n: &Node| match (n.op, n.mem) {
        (Op::Load(form @ (Form::B32 | Form::B64)), Some(m)) if n.args.is_empty() => Some((form, m)),
        _ => None,
    };
    let mut i = 0;
    while i + 1 < b.nodes.len() {
        if let Some((form, m)) = whole(&b.nodes[i]) {
            let rest = &b.nodes[i + 1..];
            let other = rest.iter().take_while(|n| !stores(n)).position(|n| {
                whole(n).is_some_and(|(f, o)| {
                    f == form && o.base == m.base && o.index == m.index && o.disp.wrapping_sub(m.disp) == 16
                })
            });
            // Limited by register pressure.
            if let Some(k) = other.filter(|k| *k < FAR) {
                let n = b.nodes.remove(i + 1 + k);
                b.nodes.insert(i + 1, n);
                i += 1;
            }
        }
        i += 1;
    }
}

/// True for adjacent vectors.
pub(super) fn next_to(a: &Mem, b: &Mem) -> bool {
    a.base == b.base && a.index == b.index && matches!(a.disp.wrapping_sub(b.disp), 16 | -16)
}
