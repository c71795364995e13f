//! The subjects of the driver's checks: the node, the tensors and the rule in the message of a failing call
//! (abi/README.md, rule 4). Reasons are stored separately from statements and are found by the checked
//! condition, so that passes that move statements need not maintain them. A check without a reason is
//! reported for the kernel that computed its operands.

use super::{Expr, Stmt};
use crate::sym::{Dim, Source, Sym};
use std::collections::HashMap;
use std::sync::Arc;

/// The subject of a check.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// The node, and tensors whose dimensions the message may name.
    pub source: Arc<Source>,
    /// The message: `{k}` is replaced by `subjects[k]` with its value. If empty, the text of the status.
    pub rule: String,
    /// Sizes that the message shows.
    pub subjects: Vec<Subject>,
}

/// A size in a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Subject {
    /// A size, named by the first tensor of the source that has it, and its value.
    Size(Dim),
    /// The bare value.
    Value(Dim),
}

/// The reasons of a module.
#[derive(Clone, Debug, Default)]
pub struct Reasons {
    checks: HashMap<Vec<Dim>, Vec<(Expr, Reason)>>,
    sizes: HashMap<Sym, Reason>,
}

impl Reasons {
    /// Records why `cond` is checked. The first reason stays.
    pub fn check(&mut self, cond: &Expr, reason: Reason) {
        let list = self.checks.entry(key(cond)).or_default();
        if !list.iter().any(|(c, _)| c == cond) {
            list.push((cond.clone(), reason));
        }
    }
    /// Records what a run-time size belongs to. The first reason stays.
    pub fn size(&mut self, sym: Sym, reason: Reason) {
        self.sizes.entry(sym).or_insert(reason);
    }
    /// Records the source of the statements that have no reason yet, with those inside them.
    pub fn claim(&mut self, list: &[Stmt], source: &dyn Fn() -> Arc<Source>) {
        super::visit::walk(list, &mut |s| match s {
            Stmt::Check { cond, .. } if self.of_check(cond).is_none() => {
                self.check(cond, Reason { source: source(), rule: String::new(), subjects: vec![] })
            }
            Stmt::Define { sym, .. } if self.of_size(*sym).is_none() => {
                self.size(*sym, Reason { source: source(), rule: String::new(), subjects: vec![] })
            }
            _ => {}
        });
    }
    /// The reason of a check, if recorded.
    pub fn of_check(&self, cond: &Expr) -> Option<&Reason> {
        self.checks.get(&key(cond))?.iter().find(|(c, _)| c == cond).map(|(_, r)| r)
    }
    /// The reason of a run-time size, if recorded.
    pub fn of_size(&self, sym: Sym) -> Option<&Reason> {
        self.sizes.get(&sym)
    }
}

fn key(cond: &Expr) -> Vec<Dim> {
    Stmt::Check { cond: cond.clone(), status: super::Status::Dim }.dims()
}
