//! Functions that differ in constants only, such as the scales and limits of quantized layers, share their
//! code: it reads these constants from literals that each of them passes ([`Op::Literal`]).

use super::Stub;
use super::ir::{Func, Node, Number, Op};
use super::isa::{self, Machine};
use crate::codegen::Map;

/// A function to compile.
pub struct Merged {
    /// It, with literals if it has several users.
    pub func: Func,
    /// The functions that it stands for, by index. If there are several, each needs a stub.
    pub users: Vec<(usize, Option<Stub>)>,
}

/// Merges functions. The results are in the order of their first users.
pub fn merge(all: &[&Func]) -> Vec<Merged> {
    let mut groups: Vec<Vec<usize>> = vec![];
    let mut of: Map<Func, usize> = Map::default();
    for (i, f) in all.iter().enumerate() {
        let mut key = (*f).clone();
        constants(&mut key).for_each(|n| n.op = Op::Const(erased(n.op)));
        let group = *of.entry(key).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(g) => g.push(i),
            None => groups.push(vec![i]),
        }
    }
    let alone = |i: usize| Merged { func: all[i].clone(), users: vec![(i, None)] };
    let mut out: Vec<Merged> = vec![];
    for g in groups {
        match shared(all, &g) {
            Some(merged) => out.push(merged),
            None => out.extend(g.into_iter().map(alone)),
        }
    }
    out.sort_by_key(|m| m.users.first().map(|u| u.0));
    out
}

/// The code that a group shares, if it is smaller than theirs.
fn shared(all: &[&Func], group: &[usize]) -> Option<Merged> {
    let mut func = all[*group.first()?].clone();
    let machine = isa::machine(func.width);
    let numbers: Vec<Vec<Number>> = group.iter().map(|i| of(all[*i])).collect();
    // A literal for all constants that are equal in each of the functions.
    let mut columns: Vec<Vec<Number>> = vec![];
    let mut slots: Map<Vec<Number>, u32> = Map::default();
    for (k, n) in constants(&mut func).enumerate() {
        let column: Vec<Number> = numbers.iter().map(|x| x[k]).collect();
        if column.iter().any(|x| *x != column[0]) {
            let slot = *slots.entry(column.clone()).or_insert(columns.len() as u32);
            n.op = Op::Literal(slot, column[0].bits());
            if slot as usize == columns.len() {
                columns.push(column);
            }
        }
    }
    let users = group.iter().enumerate();
    let users = users.map(|(u, i)| (*i, stub(machine, &columns, u))).collect::<Vec<_>>();
    let stubs: usize = users.iter().map(|(_, s)| s.as_ref().map_or(0, |s| s.bytes.len())).sum();
    let code = machine.instruction() * func.blocks.iter().map(|b| b.nodes.len()).sum::<usize>();
    let pays = users.iter().all(|u| u.1.is_some()) && stubs < (group.len() - 1) * code;
    pays.then_some(Merged { func, users })
}

/// The stub of a user.
fn stub(machine: &dyn Machine, columns: &[Vec<Number>], user: usize) -> Option<Stub> {
    machine.stub(&columns.iter().map(|c| c[user]).collect::<Vec<_>>())
}

/// The nodes that define constants.
fn constants(f: &mut Func) -> impl Iterator<Item = &mut Node> {
    f.blocks.iter_mut().flat_map(|b| &mut b.nodes).filter(|n| matches!(n.op, Op::Const(_)))
}

/// The constants, in order.
fn of(f: &Func) -> Vec<Number> {
    let nodes = f.blocks.iter().flat_map(|b| &b.nodes);
    nodes.filter_map(|n| if let Op::Const(x) = n.op { Some(x) } else { None }).collect()
}

/// A number of the same kind.
fn erased(op: Op) -> Number {
    match op {
        Op::Const(Number::Long(_)) => Number::Long(0),
        _ => Number::Word(0),
    }
}
