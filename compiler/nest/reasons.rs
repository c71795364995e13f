//! What the driver's checks are about: the node, the tensors and the rule that a message names when a call
//! fails (abi/README.md, rule 4). Reasons are beside the statements, found by what they check, so that
//! passes which move statements need not know of them. A check without a reason is reported by the kernel
//! that computed what it reads.

use super::{Expr, Stmt};
use crate::sym::{Dim, Source, Sym};
use std::collections::HashMap;
use std::sync::Arc;

/// What a check is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// The node, and tensors whose dimensions the message may name.
    pub source: Arc<Source>,
    /// The message: `{k}` stands for `subjects[k]` with its value. Empty: what the status says.
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
    /// The reason of a check.
    pub fn of_check(&self, cond: &Expr) -> Option<&Reason> {
        self.checks.get(&key(cond))?.iter().find(|(c, _)| c == cond).map(|(_, r)| r)
    }
    /// What a run-time size belongs to.
    pub fn of_size(&self, sym: Sym) -> Option<&Reason> {
        self.sizes.get(&sym)
    }
}

fn key(cond: &Expr) -> Vec<Dim> {
    Stmt::Check { cond: cond.clone(), status: super::Status::Dim }.dims()
}
