//! Interleaves independent chains of operations: the activation after the accumulation of a tile is a long
//! dependency chain for each vector, and the reorder window of a core covers one or two of these. Adjacent
//! chains are interleaved.

use super::ir::{Block, Class, Form, Func, Mem, Node, Op, Value};
use crate::codegen::{Map, Set};

/// Maximum number of interleaved chains. Each has a few live values in addition to the accumulators that
/// wait, none of which may be spilled.
const ABREAST: usize = 4;
/// Vector registers for the constants of chains.
const CONSTANTS: usize = 3;
/// Minimum operations of a long chain.
const LONG: usize = 12;

/// Reorders the blocks of a function.
pub(super) fn chains(f: &mut Func) {
    let constants: Set<Value> =
        f.blocks.iter().flat_map(|b| &b.nodes).filter(|n| n.op.is_constant()).filter_map(|n| n.def).collect();
    let is_vector = |v: Value| f.classes[v.0 as usize] == Class::Vector && !constants.contains(&v);
    let registers = f.width.registers() - CONSTANTS;
    let ordered: Vec<Option<Ordered>> = f
        .blocks
        .iter()
        .map(|b| abreast(b, &Room { is_vector: &is_vector, registers, halves: f.long }))
        .collect();
    for (i, o) in ordered.into_iter().enumerate() {
        if let Some(o) = o {
            f.blocks[i].nodes = o.nodes;
            put_aside(f, i, &o.aside);
        }
    }
}

/// The limits on interleaving.
struct Room<'a> {
    is_vector: &'a dyn Fn(Value) -> bool,
    /// Vector registers for chains and for values that wait.
    registers: usize,
    /// Lanes have 64 bits.
    halves: bool,
}

/// The nodes of a block in their new order.
struct Ordered {
    nodes: Vec<Node>,
    aside: Vec<Group>,
}

/// Interleaved chains: the index of the first node, and the accumulators with the locations of their results.
/// Accumulators of all groups except the first are stored there temporarily.
struct Group {
    at: usize,
    sums: Vec<(Value, Mem)>,
}

/// Stores the accumulators of all groups except the first to the locations of their results, and reloads them
/// before their group.
fn put_aside(f: &mut Func, block: usize, groups: &[Group]) {
    let Some((first, rest)) = groups.split_first() else { return };
    let mut out = vec![];
    let mut now: Map<Value, Value> = Map::default();
    for (i, mut n) in std::mem::take(&mut f.blocks[block].nodes).into_iter().enumerate() {
        let node = |op, mem, args, def| Node { op, args, mem: Some(mem), literal: None, def, line: n.line };
        if i == first.at {
            let waiting = rest.iter().flat_map(|g| &g.sums);
            out.extend(waiting.map(|(v, mem)| node(Op::Store(Form::B32), *mem, vec![*v], None)));
        }
        for (v, mem) in rest.iter().filter(|g| g.at == i).flat_map(|g| &g.sums) {
            let loaded = Value::fresh(&mut f.classes, Class::Vector);
            out.push(node(Op::Load(Form::B32), *mem, vec![], Some(loaded)));
            now.insert(*v, loaded);
        }
        n.args.iter_mut().for_each(|v| *v = now.get(v).copied().unwrap_or(*v));
        out.push(n);
    }
    f.blocks[block].nodes = out;
}

fn stores(n: &Node) -> bool {
    matches!(n.op, Op::Store(_) | Op::StoreFirst(..))
}

/// True for nodes that may not be reordered among memory accesses.
fn is_fixed(n: &Node) -> bool {
    n.op.is_memory() && !matches!(n.op, Op::Prefetch { .. }) || n.def.is_none()
}

/// The nodes with long chains interleaved, if there are any.
fn abreast(b: &Block, room: &Room) -> Option<Ordered> {
    let ends: Vec<usize> = (0..b.nodes.len()).filter(|i| stores(&b.nodes[*i])).collect();
    if ends.len() < 2 {
        return None;
    }
    let mut o = Order { b, owners: owners(b, &ends), ends, done: vec![false; b.nodes.len()], out: vec![] };
    let (mut k, mut changed, mut aside) = (0, false, vec![]);
    while k < o.ends.len() {
        let mut chains: Vec<Vec<usize>> =
            (k..o.ends.len()).map(|k| o.chain(k)).take_while(|c| suits(b, c)).collect();
        let sums = if aside.is_empty() { o.may_wait_in_memory(&chains, room) } else { None };
        if let Some(sums) = sums {
            for (chains, sums) in chains.chunks(ABREAST).zip(sums.chunks(ABREAST)) {
                let own: Set<usize> = chains.iter().flatten().copied().collect();
                let end = chains.iter().filter_map(|c| c.last()).max().copied().unwrap_or(0);
                o.emit((0..=end).filter(|i| !own.contains(i)).collect());
                aside.push(Group { at: o.out.len(), sums: sums.to_vec() });
                o.side_by_side(chains);
            }
            (changed, k) = (true, k + chains.len());
            continue;
        }
        chains.truncate(ABREAST);
        while chains.len() > 1 && o.registers(&chains, room) > room.registers {
            chains.pop();
        }
        if chains.len() > 1 && o.side_by_side(&chains) {
            changed = true;
            k += chains.len();
        } else {
            o.emit((0..=o.ends[k]).collect());
            k += 1;
        }
    }
    o.emit((0..b.nodes.len()).collect());
    let nodes = o.out.iter().map(|i| b.nodes[*i].clone()).collect();
    changed.then_some(Ordered { nodes, aside })
}

/// True for a long chain that does not access memory before its end.
fn suits(b: &Block, chain: &[usize]) -> bool {
    let (_, inside) = chain.split_last().unwrap_or((&0, &[]));
    chain.len() >= LONG && inside.iter().all(|i| !is_fixed(&b.nodes[*i]))
}

/// Nodes in their new order, by index.
struct Order<'a> {
    b: &'a Block,
    /// The only store that depends on a node.
    owners: Vec<Option<usize>>,
    /// Stores.
    ends: Vec<usize>,
    done: Vec<bool>,
    out: Vec<usize>,
}

impl Order<'_> {
    /// The nodes on which only one store depends, and the store.
    fn chain(&self, k: usize) -> Vec<usize> {
        let end = self.ends[k];
        (0..=end).filter(|i| !self.done[*i] && (*i == end || self.owners[*i] == Some(k))).collect()
    }
    /// Vectors that are live while chains are interleaved: those that wait, and those of each chain.
    fn registers(&self, chains: &[Vec<usize>], room: &Room) -> usize {
        let own: Set<usize> = chains.iter().flatten().copied().collect();
        let nodes = &self.b.nodes;
        let later = |i: &usize| !self.done[*i] && !own.contains(i);
        let made_later: Set<Value> = (0..nodes.len()).filter(later).filter_map(|i| nodes[i].def).collect();
        let used = (0..nodes.len()).filter(later).flat_map(|i| &nodes[i].args).chain(&self.b.jump_args);
        let waits: Set<Value> =
            used.copied().filter(|v| (room.is_vector)(*v) && !made_later.contains(v)).collect();
        let most = chains.iter().map(|c| self.of_chain(c, &waits, room)).max().unwrap_or(0);
        waits.len() + chains.len() * most
    }
    /// Vectors that are live within one chain, in addition to those that wait.
    fn of_chain(&self, chain: &[usize], waits: &Set<Value>, room: &Room) -> usize {
        let (mut live, mut most) = (Set::<Value>::default(), 0);
        for n in chain.iter().rev().map(|i| &self.b.nodes[*i]) {
            if let Some(d) = n.def {
                live.remove(&d);
            }
            live.extend(n.args.iter().copied().filter(|v| (room.is_vector)(*v) && !waits.contains(v)));
            most = most.max(live.len());
        }
        most
    }
    /// The accumulators of chains that can wait in memory at the locations of their results, because
    /// registers do not suffice; none if anything else accesses memory before the last chain ends.
    fn may_wait_in_memory(&self, chains: &[Vec<usize>], room: &Room) -> Option<Vec<(Value, Mem)>> {
        let first = chains.get(..ABREAST)?;
        if chains.len() == ABREAST || room.halves || self.registers(first, room) <= room.registers {
            return None;
        }
        let nodes = &self.b.nodes;
        let (from, to) = (*chains.first()?.first()?, *chains.last()?.last()?);
        let ends: Set<usize> = chains.iter().filter_map(|c| c.last()).copied().collect();
        if (from..=to).any(|i| !self.done[i] && is_fixed(&nodes[i]) && !ends.contains(&i)) {
            return None;
        }
        let sums: Vec<(Value, Mem)> = chains.iter().map(|c| self.sum(c, room)).collect::<Option<_>>()?;
        let made_inside: Set<Value> = nodes[from..=to].iter().filter_map(|n| n.def).collect();
        if sums.iter().any(|s| made_inside.contains(&s.0)) {
            return None;
        }
        // Results must not overlap.
        let place = |m: &Mem| (m.base, m.index);
        let mut at: Vec<i32> = sums.iter().map(|s| s.1.disp).collect();
        at.sort_unstable();
        let apart = at.windows(2).all(|w| w[1] - w[0] >= 16);
        let same = sums.iter().all(|s| place(&s.1) == place(&sums[0].1));
        (apart && same).then_some(sums)
    }
    /// The vector that a chain begins with, and the location of its result, a vector of the same size.
    fn sum(&self, chain: &[usize], room: &Room) -> Option<(Value, Mem)> {
        let nodes = &self.b.nodes;
        let end = &nodes[*chain.last()?];
        let made: Set<Value> = chain.iter().filter_map(|i| nodes[*i].def).collect();
        let mut from = chain.iter().flat_map(|i| &nodes[*i].args).filter(|v| !made.contains(v));
        let sum = *from.clone().find(|v| (room.is_vector)(**v))?;
        let alone = from.all(|v| *v == sum || !(room.is_vector)(*v));
        (alone && end.op == Op::Store(Form::B32) && end.args.len() == 1).then_some((sum, end.mem?))
    }
    fn emit(&mut self, nodes: Vec<usize>) {
        for i in nodes {
            if !std::mem::replace(&mut self.done[i], true) {
                self.out.push(i);
            }
        }
    }
    /// Emits interleaved chains, after all other nodes before the end of the last one; false if that would
    /// reorder memory accesses.
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
        // Stores keep their order.
        self.emit(chains.iter().filter_map(|c| c.last()).copied().collect());
        true
    }
}

/// The only store that depends on each node, by index; none if several stores or other nodes do.
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
            // A node without a result does not move, nor do its operands.
            None => n.def.and_then(|d| of.get(&d).copied().flatten()),
        };
        found[i] = owner;
        n.values().for_each(|v| note(&mut of, v, owner));
    }
    found
}
