//! The body of a kernel, with what it is.

use super::Stmt;
use super::form::Form;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

/// Statements of a kernel. Their form is found out when it is first asked for, and kept until they may change:
/// whoever takes them to be changed makes it be found out again.
#[derive(Clone, Default)]
pub struct Body {
    stmts: Vec<Stmt>,
    form: OnceLock<Box<Form>>,
}

impl Body {
    /// What the nest is.
    pub(crate) fn form(&self) -> &Form {
        self.form.get_or_init(|| Box::new(Form::of(&self.stmts)))
    }
    /// True unless a form is kept that is not the one of the statements.
    pub(crate) fn knows_itself(&self) -> bool {
        self.form.get().is_none_or(|form| **form == Form::of(&self.stmts))
    }
}

impl Deref for Body {
    type Target = Vec<Stmt>;
    fn deref(&self) -> &Vec<Stmt> {
        &self.stmts
    }
}

impl DerefMut for Body {
    fn deref_mut(&mut self) -> &mut Vec<Stmt> {
        self.form.take();
        &mut self.stmts
    }
}

impl From<Vec<Stmt>> for Body {
    fn from(stmts: Vec<Stmt>) -> Body {
        Body { stmts, form: OnceLock::new() }
    }
}

impl FromIterator<Stmt> for Body {
    fn from_iter<I: IntoIterator<Item = Stmt>>(stmts: I) -> Body {
        stmts.into_iter().collect::<Vec<_>>().into()
    }
}

impl IntoIterator for Body {
    type Item = Stmt;
    type IntoIter = std::vec::IntoIter<Stmt>;
    fn into_iter(self) -> Self::IntoIter {
        self.stmts.into_iter()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stmts.fmt(f)
    }
}
