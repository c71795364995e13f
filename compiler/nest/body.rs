//! The body of a kernel, with its form.

use super::Stmt;
use super::form::{Form, Images};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

/// Statements of a kernel. Their form is computed on first use and cached; mutable access drops the cache.
#[derive(Clone, Default)]
pub struct Body {
    stmts: Vec<Stmt>,
    form: OnceLock<Box<Form>>,
    images: OnceLock<Box<Images>>,
}

impl Body {
    /// The form of the nest.
    pub(crate) fn form(&self) -> &Form {
        self.form.get_or_init(|| Box::new(Form::of(&self.stmts)))
    }
    /// The buffers that it accesses as images.
    pub(crate) fn images(&self) -> &Images {
        self.images.get_or_init(|| Box::new(Images::of(&self.stmts, self.form())))
    }
    /// True unless a cached form differs from the form of the statements.
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
        self.images.take();
        &mut self.stmts
    }
}

impl From<Vec<Stmt>> for Body {
    fn from(stmts: Vec<Stmt>) -> Body {
        Body { stmts, ..Body::default() }
    }
}

impl From<Body> for Vec<Stmt> {
    fn from(body: Body) -> Vec<Stmt> {
        body.stmts
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

#[cfg(test)]
mod tests {
    use crate::diag::Origin;
    use crate::nest::{Expr, Module, UnOp};
    use crate::sym::{Dim, SymTable};
    use crate::tensor::ElemType;

    #[test]
    fn changed_statements_lose_their_form() {
        let mut m = Module::new("m", SymTable::default());
        let (x, y) = (m.temp("x", ElemType::F32, vec![Dim::constant(8)]), vec![Dim::constant(8)]);
        let y = m.temp("y", ElemType::F32, y);
        let k = m.map(y, &Origin::default(), |kb, at| kb.load(x, at));
        let loaded = |m: &Module| m.form(k).map().is_some_and(|map| matches!(map.value, Expr::Load { .. }));
        assert!(loaded(&m));
        // A copy keeps what is known,
        let copy = m.kernels[k].body.clone();
        assert!(copy.form.get().is_some() && copy.knows_itself());
        // who only reads leaves it,
        assert!(m.kernels[k].body.len() == 1 && m.kernels[k].body.form.get().is_some());
        // and who may change it does not.
        for s in m.kernels[k].body.iter_mut() {
            *s = s.clone().map_exprs(&mut |e| Expr::un(UnOp::Neg, e));
        }
        assert!(m.kernels[k].body.form.get().is_none() && !loaded(&m));
        m.kernels[k].body.clear();
        assert_eq!(m.form(k).name(), "other");
    }
}
