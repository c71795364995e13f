//! The order of results that do not depend on each other: an activation behind the sums of a tile is a long
//! chain for each of its vectors, and a core sees no more than a chain or two ahead. Neighbouring chains go
//! abreast.

use super::ir::{Block, Func, Node, Op, Value};
use crate::codegen::{Map, Set};

/// Chains that go abreast. Each has a few values of its own, and sums wait for their turn beside them.
const ABREAST: usize = 4;
/// Operations from which on a chain is long.
const LONG: usize = 12;

/// Orders the blocks of a function.
pub(super) fn chains(f: &mut Func) {
    for b in &mut f.blocks {
        if let Some(nodes) = abreast(b) {
            b.nodes = nodes;
        }
    }
}

fn stores(n: &Node) -> bool {
    matches!(n.op, Op::Store(_) | Op::StoreFirst(..))
}

/// True for what may not change its place among accesses to memory.
fn is_fixed(n: &Node) -> bool {
    n.op.is_memory() && !matches!(n.op, Op::Prefetch { .. }) || n.def.is_none()
}

/// The nodes with runs of long chains abreast, if there are any.
fn abreast(b: &Block) -> Option<Vec<Node>> {
    let ends: Vec<usize> = (0..b.nodes.len()).filter(|i| stores(&b.nodes[*i])).collect();
    if ends.len() < 2 {
        return None;
    }
    let mut o = Order { b, owners: owners(b, &ends), ends, done: vec![false; b.nodes.len()], out: vec![] };
    let (mut k, mut changed) = (0, false);
    while k < o.ends.len() {
        let chains: Vec<Vec<usize>> =
            (k..o.ends.len()).take(ABREAST).map(|k| o.chain(k)).take_while(|c| suits(b, c)).collect();
        if chains.len() > 1 && o.side_by_side(&chains) {
            changed = true;
            k += chains.len();
        } else {
            o.emit((0..=o.ends[k]).collect());
            k += 1;
        }
    }
    o.emit((0..b.nodes.len()).collect());
    changed.then(|| o.out.iter().map(|i| b.nodes[*i].clone()).collect())
}

/// True for a chain that is long and touches no memory before it ends.
fn suits(b: &Block, chain: &[usize]) -> bool {
    let (_, inside) = chain.split_last().unwrap_or((&0, &[]));
    chain.len() >= LONG && inside.iter().all(|i| !is_fixed(&b.nodes[*i]))
}

/// Nodes in their new order, by number.
struct Order<'a> {
    b: &'a Block,
    /// Which store alone needs a node.
    owners: Vec<Option<usize>>,
    /// Stores.
    ends: Vec<usize>,
    done: Vec<bool>,
    out: Vec<usize>,
}

impl Order<'_> {
    /// What a store alone needs, and the store.
    fn chain(&self, k: usize) -> Vec<usize> {
        let end = self.ends[k];
        (0..=end).filter(|i| !self.done[*i] && (*i == end || self.owners[*i] == Some(k))).collect()
    }
    fn emit(&mut self, nodes: Vec<usize>) {
        for i in nodes {
            if !std::mem::replace(&mut self.done[i], true) {
                self.out.push(i);
            }
        }
    }
    /// Emits chains abreast, behind everything else that stands before the last one ends; false if that would
    /// change the order of accesses to memory.
    fn side_by_side(&mut self, chains: &[Vec<usize>]) -> bool {
        let own: Set<usize> = chains.iter().flatten().copied().collect();
        let first = chains.iter().filter_map(|c| c.first()).min().copied().unwrap_or(0);
        let end = chains.last().and_then(|c| c.last()).copied().unwrap_or(0);
        let others: Vec<usize> = (0..=end).filter(|i| !self.done[*i] && !own.contains(i)).collect();
        if others.iter().any(|i| is_fixed(&self.b.nodes[*i]) && *i > first) {
            return false;
        }
        self.emit(others);
        let longest = chains.iter().map(Vec::len).max().unwrap_or(0);
        let steps = (0..longest).flat_map(|i| chains.iter().filter_map(move |c| c[..c.len() - 1].get(i)));
        self.emit(steps.copied().collect());
        // Stores in their order.
        self.emit(chains.iter().filter_map(|c| c.last()).copied().collect());
        true
    }
}

/// The store that alone needs what a node makes, by number; none for what several need or others use.
fn owners(b: &Block, ends: &[usize]) -> Vec<Option<usize>> {
    let mut of: Map<Value, Option<usize>> = Map::default();
    let mut found = vec![None; b.nodes.len()];
    let note = |of: &mut Map<Value, Option<usize>>, v: Value, owner: Option<usize>| {
        let before = of.entry(v).or_insert(owner);
        if *before != owner {
            *before = None;
        }
    };
    b.jump_args.iter().for_each(|v| note(&mut of, *v, None));
    for (i, n) in b.nodes.iter().enumerate().rev() {
        let owner = match ends.iter().position(|e| *e == i) {
            Some(k) => Some(k),
            // A node without a result stays where it is, and so does what it needs.
            None => n.def.and_then(|d| of.get(&d).copied().flatten()),
        };
        found[i] = owner;
        let memory = n.mem.iter().flat_map(|m| [Some(m.base), m.index.map(|x| x.0)]).flatten();
        n.args.iter().copied().chain(memory).for_each(|v| note(&mut of, v, owner));
    }
    found
}
