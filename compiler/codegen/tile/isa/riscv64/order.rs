//! Schedules products of rows (elements) and columns (loaded): column by column, with all rows each, and
//! every load so early that it has arrived. In-order cores stall on loads, and registers hold two columns and
//! a few elements in addition to the accumulators. Loads of vectors have no displacements: the addresses of
//! several are computed together, since a sum that is ready before older instructions waits for them.

use crate::codegen::tile::ir::{Block, Class, Mem, Node, Op, Value};
use crate::codegen::tile::isa::{node, stores};
use crate::codegen::{Map, Set};
use std::collections::VecDeque;

/// Products between the load of an element and its use.
const AHEAD: usize = 6;
/// The same for a vector, which has a longer latency.
const VECTOR_AHEAD: usize = 12;
/// Maximum live elements.
const ELEMENTS: usize = 16;
/// Allocatable vector registers.
const REGISTERS: usize = 14;
/// Addresses that are computed together: they are registers.
const ADDRESSES: usize = 4;

/// A load, and the indices of its first and last uses.
struct Load {
    node: usize,
    first: usize,
    last: usize,
    vector: bool,
}

/// Schedules the products of a block and their loads, if the block consists of these.
pub(super) fn products(b: &mut Block, elements: &Set<Value>, classes: &mut Vec<Class>) {
    if let Some((before, products, behind)) = ordered(b, elements) {
        b.nodes = [before, with_addresses(products, classes), behind].concat();
    }
}

/// Gives loads of vectors whose address is a sum an operand with that address, computed with those of the
/// next loads: the first ones at the beginning, the others before the first of these loads.
fn with_addresses(products: Vec<Node>, classes: &mut Vec<Class>) -> Vec<Node> {
    let is_sum =
        |n: &&Node| matches!(n.op, Op::Load(_)) && n.mem.is_some_and(|m| m.index.is_none() && m.disp != 0);
    let mut sums: VecDeque<Node> = products.iter().filter(is_sum).cloned().collect();
    let mut made: VecDeque<Value> = VecDeque::new();
    let mut out = vec![];
    for i in 0..products.len() {
        let n = &products[i];
        let sum = is_sum(&n);
        if made.is_empty() && (i == 0 || sum) {
            for of in sums.drain(..sums.len().min(ADDRESSES)) {
                let address = Value::fresh(classes, Class::Int);
                out.push(Node { mem: of.mem, ..node(Op::Address, vec![], Some(address), of.line) });
                made.push_back(address);
            }
        }
        let address = if sum { made.pop_front() } else { None };
        out.push(Node { mem: address.map(|a| Mem::at(a, 0)).or(n.mem), ..n.clone() });
    }
    out
}

/// The element and the vector of a product.
fn factors(n: &Node, elements: &Set<Value>) -> Option<(Value, Value)> {
    match (n.op, n.args.as_slice()) {
        (Op::Fma { .. }, &[x, y, _]) if elements.contains(&x) => Some((x, y)),
        (Op::Fma { .. }, &[x, y, _]) if elements.contains(&y) => Some((y, x)),
        _ => None,
    }
}

/// What comes before products and their loads, these in their new order, and what comes behind.
fn ordered(b: &Block, elements: &Set<Value>) -> Option<(Vec<Node>, Vec<Node>, Vec<Node>)> {
    let is_product = |n: &Node| factors(n, elements).is_some();
    let last = b.nodes.iter().rposition(is_product)?;
    let body = &b.nodes[..=last];
    if body.iter().any(stores) {
        return None;
    }
    // The factors must be loaded separately and for products only.
    let mut loads: Map<Value, usize> = Map::default();
    for (i, n) in body.iter().enumerate() {
        let plain = matches!(n.op, Op::Load(_)) || n.def.is_some_and(|d| elements.contains(&d));
        if let (true, Some(d), true) = (plain, n.def, n.args.is_empty()) {
            loads.insert(d, i);
        }
    }
    let mut columns: Vec<Value> = vec![];
    for n in body.iter().filter(|n| is_product(n)) {
        let (_, v) = factors(n, elements)?;
        if !loads.contains_key(&v) {
            return None;
        }
        if !columns.contains(&v) {
            columns.push(v);
        }
    }
    let rank = |n: &Node| factors(n, elements).and_then(|f| columns.iter().position(|c| *c == f.1));
    let mut products: Vec<&Node> = body.iter().filter(|n| is_product(n)).collect();
    products.sort_by_key(|n| rank(n));
    // The products of an accumulator keep their order.
    let results: Set<Value> = products.iter().filter_map(|n| n.def).collect();
    let mut made: Set<Value> = Set::default();
    for n in &products {
        if n.args.iter().any(|v| results.contains(v) && !made.contains(v)) {
            return None;
        }
        made.extend(n.def);
    }
    let multiplied: Set<Value> = products.iter().filter_map(|n| Some(factors(n, elements)?.0)).collect();
    if multiplied.iter().any(|v| !loads.contains_key(v)) {
        return None;
    }
    let own =
        |n: &Node| is_product(n) || n.def.is_some_and(|d| multiplied.contains(&d) || columns.contains(&d));
    let before: Vec<Node> = body.iter().filter(|n| !own(n)).cloned().collect();
    let waits = |v: &Value| results.contains(v) || columns.contains(v) || multiplied.contains(v);
    if before.iter().any(|n| n.args.iter().any(waits)) {
        return None;
    }
    let sums = products.iter().filter(|n| n.args.last().is_some_and(|c| !results.contains(c))).count();
    let order = emit(&products, uses(&products, &loads, elements), REGISTERS.saturating_sub(sums).max(1));
    let order = order.into_iter().map(|x| match x {
        Emitted::Load(i) => b.nodes[i].clone(),
        Emitted::Product(i) => products[i].clone(),
    });
    Some((before, order.collect(), b.nodes[last + 1..].to_vec()))
}

/// Loads in the order of their first uses.
fn uses(products: &[&Node], loads: &Map<Value, usize>, elements: &Set<Value>) -> Vec<Load> {
    let mut found: Vec<(Value, Load)> = vec![];
    for (i, n) in products.iter().enumerate() {
        let Some((element, vector)) = factors(n, elements) else { continue };
        for (v, vector) in [(vector, true), (element, false)] {
            let Some(node) = loads.get(&v).copied() else { continue };
            match found.iter_mut().find(|l| l.0 == v) {
                Some(l) => l.1.last = i,
                None => found.push((v, Load { node, first: i, last: i, vector })),
            }
        }
    }
    found.into_iter().map(|l| l.1).collect()
}

enum Emitted {
    Load(usize),
    Product(usize),
}

/// Products in order, with each load as early as its latency requires and registers allow.
fn emit(products: &[&Node], loads: Vec<Load>, vectors: usize) -> Vec<Emitted> {
    let mut out = vec![];
    let (mut waiting, mut alive): (Vec<Load>, Vec<Load>) = (loads, vec![]);
    for i in 0..products.len() {
        alive.retain(|l| l.last >= i);
        let mut later = vec![];
        for l in waiting {
            let (ahead, most) = if l.vector { (VECTOR_AHEAD, vectors) } else { (AHEAD, ELEMENTS) };
            let room = alive.iter().filter(|a| a.vector == l.vector).count() < most;
            if l.first == i || l.first <= i + ahead && room {
                out.push(Emitted::Load(l.node));
                alive.push(l);
            } else {
                later.push(l);
            }
        }
        waiting = later;
        out.push(Emitted::Product(i));
    }
    out
}
