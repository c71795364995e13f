//! Trip counts, increments and other integers that differ between the users of a function.

use super::{Columns, varies};
use crate::codegen::tile::ir::{Func, Literal, Op};

/// The number of an operation that may differ.
fn number(op: Op) -> Option<i64> {
    match op {
        Op::Int(x) => Some(x),
        Op::AddImm(x) => Some(x.into()),
        Op::BranchLess(x) => x.map(i64::from),
        _ => None,
    }
}

/// The operation with another number.
pub(super) fn erased(op: Op) -> Op {
    match op {
        Op::Int(_) => Op::Int(0),
        Op::AddImm(_) => Op::AddImm(0),
        Op::BranchLess(Some(_)) => Op::BranchLess(Some(0)),
        op => op,
    }
}

/// Replaces the integers that differ by literals. Additions and comparisons read them from memory, which
/// costs no register.
pub(super) fn pass(users: &[&Func], func: &mut Func, passed: &mut Columns<i64>) {
    for (i, b) in func.blocks.iter_mut().enumerate() {
        for (k, n) in b.nodes.iter_mut().enumerate() {
            let column: Option<Vec<i64>> = users.iter().map(|f| number(f.blocks[i].nodes[k].op)).collect();
            let Some(column) = column.filter(|c| varies(c)) else { continue };
            let literal = passed.number(column);
            (n.op, n.literal) = match n.op {
                Op::AddImm(_) => (Op::Add, Some(Literal::Integer(literal))),
                Op::BranchLess(_) => (Op::BranchLess(None), Some(Literal::Integer(literal))),
                _ => (Op::IntLiteral(literal), None),
            };
        }
    }
}
