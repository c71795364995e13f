//! Functions that differ in numbers only share their code: it reads these numbers from literals that each of
//! them passes.
//!
//! They are constants in lanes ([`Op::Literal`]), such as the scales and limits of quantized layers, and, on
//! machines with [`Op::IntLiteral`], trip counts, increments of pointers ([`integers`]) and displacements
//! ([`addresses`]), by which layers of different sizes differ.

mod addresses;
mod integers;

use super::Stub;
use super::ir::{Block, Class, Func, Node, Number, Op, Value};
use super::isa::{self, Machine};
use super::live::pressure;
use super::rematerialize::innermost;
use crate::codegen::{Map, Set};
use std::hash::Hash;

/// Bytes that sharing must save where it changes addresses and loops.
const WORTH: usize = 256;

/// Integer registers that innermost loops leave free: register allocation does not find a place for as many
/// values as there are registers.
const SPARE: usize = 2;

/// A function to compile.
pub struct Merged {
    /// It, with literals if it has several users.
    pub func: Func,
    /// The functions that it stands for, by index. If there are several, each needs a stub.
    pub users: Vec<(usize, Option<Stub>)>,
}

/// Numbers that users pass: a column has the number of each of them.
struct Columns<T> {
    all: Vec<Vec<T>>,
    known: Map<Vec<T>, u32>,
}

impl<T: Copy + Eq + Hash> Columns<T> {
    fn new() -> Self {
        Columns { all: vec![], known: Map::default() }
    }
    /// The number of a column.
    fn number(&mut self, column: Vec<T>) -> u32 {
        *self.known.entry(column).or_insert_with_key(|column| {
            self.all.push(column.clone());
            self.all.len() as u32 - 1
        })
    }
    fn of_user(&self, user: usize) -> Vec<T> {
        self.all.iter().map(|column| column[user]).collect()
    }
}

/// True if a column has different numbers.
fn varies<T: PartialEq>(column: &[T]) -> bool {
    column.iter().any(|x| *x != column[0])
}

/// Merges functions. The results are in the order of their first users.
pub fn merge(all: &[&Func]) -> Vec<Merged> {
    let mut out: Vec<Merged> = vec![];
    let every: Vec<usize> = (0..all.len()).collect();
    for like in groups(all, &every, &without_numbers) {
        if let Some(merged) = shared(all, &like) {
            out.push(merged);
            continue;
        }
        for group in groups(all, &like, &without_constants) {
            let alone = |i: &usize| Merged { func: all[*i].clone(), users: vec![(*i, None)] };
            match shared(all, &group) {
                Some(merged) => out.push(merged),
                None => out.extend(group.iter().map(alone)),
            }
        }
    }
    out.sort_by_key(|m| m.users.first().map(|u| u.0));
    out
}

/// Groups of the functions `of` that are equal without what `erase` removes.
fn groups(all: &[&Func], of: &[usize], erase: &dyn Fn(&mut Func)) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = vec![];
    let mut known: Map<Func, usize> = Map::default();
    for i in of {
        let mut key = all[*i].clone();
        erase(&mut key);
        let group = *known.entry(key).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(g) => g.push(*i),
            None => groups.push(vec![*i]),
        }
    }
    groups
}

fn without_constants(f: &mut Func) {
    constants(f).for_each(|n| n.op = Op::Const(erased(n.op)));
}

fn without_numbers(f: &mut Func) {
    without_constants(f);
    if isa::machine(f.width).has_op(Op::IntLiteral(0)) {
        f.blocks.iter_mut().flat_map(|b| &mut b.nodes).for_each(|n| {
            n.op = integers::erased(n.op);
            n.mem.iter_mut().for_each(|m| m.disp = 0);
        });
    }
}

/// The code that a group shares, if it is smaller than theirs and not slower.
fn shared(all: &[&Func], group: &[usize]) -> Option<Merged> {
    if group.len() < 2 {
        return None;
    }
    let of_users: Vec<&Func> = group.iter().map(|i| all[*i]).collect();
    let mut func = (*of_users.first()?).clone();
    let machine = isa::machine(func.width);
    let (mut numbers, mut integers) = (Columns::new(), Columns::new());
    pass_constants(&of_users, &mut func, &mut numbers);
    integers::pass(&of_users, &mut func, &mut integers);
    addresses::pass(&of_users, &mut func, &mut integers)?;
    let users = group.iter().enumerate();
    let users = users.map(|(u, i)| (*i, machine.stub(&numbers.of_user(u), &integers.of_user(u))));
    let users = users.collect::<Vec<_>>();
    let stubs: usize = users.iter().map(|(_, s)| s.as_ref().map_or(0, |s| s.bytes.len())).sum();
    let size = |f: &Func| machine.instruction() * f.blocks.iter().map(|b| b.nodes.len()).sum::<usize>();
    let before: usize = of_users.iter().map(|f| size(f)).sum();
    let worth = if integers.all.is_empty() { 0 } else { WORTH };
    let pays = users.iter().all(|u| u.1.is_some()) && size(&func) + stubs + worth < before;
    (pays && fits(of_users[0], &func, machine)).then_some(Merged { func, users })
}

/// Replaces constants that differ between users by literals: one for all constants that are equal in each of
/// them.
fn pass_constants(users: &[&Func], func: &mut Func, passed: &mut Columns<Number>) {
    let numbers: Vec<Vec<Number>> = users.iter().map(|f| of(f)).collect();
    for (k, n) in constants(func).enumerate() {
        let column: Vec<Number> = numbers.iter().map(|x| x[k]).collect();
        if varies(&column) {
            let bits = column[0].bits();
            n.op = Op::Literal(passed.number(column), bits);
        }
    }
}

/// True if the integers that innermost loops of shared code use are in registers, or were not before. Values
/// that only live through a loop do not matter: they are in memory meanwhile.
fn fits(before: &Func, func: &Func, machine: &dyn Machine) -> bool {
    let env = machine.env(func);
    let class = machine.class(Class::Int) as usize;
    let sets = [&env.preferred_regs_by_class[class], &env.non_preferred_regs_by_class[class]];
    let registers: usize = sets.iter().map(|s| s.len() as usize).sum();
    innermost(&func.blocks).into_iter().all(|(head, latch)| {
        let most = |f: &Func| {
            let used = used(&f.blocks[head..=latch]);
            pressure(f, Class::Int, &|v| !used.contains(v))[head..=latch].iter().max().copied().unwrap_or(0)
        };
        most(func) <= registers.saturating_sub(SPARE).max(most(before))
    })
}

/// The values that blocks use or define.
fn used(blocks: &[Block]) -> Set<Value> {
    let of_node = |n: &Node| n.values().chain(n.def).collect::<Vec<_>>();
    let of_block = |b: &Block| [b.params.clone(), b.jump_args.clone()].concat();
    blocks.iter().flat_map(|b| b.nodes.iter().flat_map(of_node).chain(of_block(b))).collect()
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

#[cfg(test)]
mod tests;
