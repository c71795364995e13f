//! Schedules products of rows (elements) and columns (loaded): column by column, with all rows each, and
//! every load so early that it has arrived. In-order cores stall on loads, and registers hold two columns and
//! a few elements in addition to the accumulators.

use crate::codegen::tile::ir::{Block, Node, Op, Value};
use crate::codegen::tile::isa::stores;
use crate::codegen::{Map, Set};

/// Products between the load of an element and its use.
const AHEAD: usize = 6;
/// The same for a vector, which has a longer latency.
const VECTOR_AHEAD: usize = 12;
/// Maximum live elements.
const ELEMENTS: usize = 16;
/// Allocatable vector registers.
const REGISTERS: usize = 14;

/// A load, and the indices of its first and last uses.
struct Load {
    node: usize,
    first: usize,
    last: usize,
    vector: bool,
}

/// Schedules the products of a block and their loads, if the block consists of these.
pub(super) fn products(b: &mut Block, elements: &Set<Value>) {
    if let Some(nodes) = ordered(b, elements) {
        b.nodes = nodes;
    }
}

/// The element and the vector of a product.
fn factors(n: &Node, elements: &Set<Value>) -> Option<(Value, Value)> {
    match (n.op, n.args.as_slice()) {
        (Op::Fma { .. }, &[x, y, _]) if elements.contains(&x) => Some((x, y)),
        (Op::Fma { .. }, &[x, y, _]) if elements.contains(&y) => Some((y, x)),
        _ => None,
    }
}

fn ordered(b: &Block, elements: &Set<Value>) -> Option<Vec<Node>> {
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
    let mut out: Vec<Node> = body.iter().filter(|n| !own(n)).cloned().collect();
    let waits = |v: &Value| results.contains(v) || columns.contains(v) || multiplied.contains(v);
    if out.iter().any(|n| n.args.iter().any(waits)) {
        return None;
    }
    let sums = products.iter().filter(|n| n.args.last().is_some_and(|c| !results.contains(c))).count();
    let order = emit(&products, uses(&products, &loads, elements), REGISTERS.saturating_sub(sums).max(1));
    out.extend(order.into_iter().map(|x| match x {
        Emitted::Load(i) => b.nodes[i].clone(),
        Emitted::Product(i) => products[i].clone(),
    }));
    out.extend(b.nodes[last + 1..].iter().cloned());
    Some(out)
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
