//! Branches of If, with results whose sizes differ.

use super::*;
use crate::graph::ValueData;

impl<'a> Lower<'a> {
    pub(super) fn branch(&mut self, f: &mut Frame<'a>, n: Node, tables: &[usize]) -> Result<()> {
        let node = &f.g.nodes[n];
        let Some(cond) = node.inputs.first().copied().flatten() else {
            return Err(Failure::bug("lower", "If without a condition"));
        };
        if let Some(c) = known_truth(&f.g.values[cond].known) {
            return self.only_branch(f, n, if c { "then_branch" } else { "else_branch" });
        }
        let cond = self.value(f, cond)?;
        let graphs = [self.graph(f, n, "then_branch")?, self.graph(f, n, "else_branch")?];
        // Captured values must be available before both branches.
        let frames = [self.enter(f, graphs[0])?, self.enter(f, graphs[1])?];
        // Sizes that differ between the branches are defined by them.
        let mut held: Vec<Option<Held>> = vec![];
        for (k, v) in node.outputs.iter().enumerate() {
            held.push(match v.filter(|v| f.uses[*v] > 0 && matches!(f.g.values[*v].known, Known::No)) {
                Some(v) => {
                    let results = graphs.map(|g| &g.values[g.outputs[k]]);
                    Some(self.hold_result(f, v, results, tables.contains(&k))?)
                }
                None => None,
            });
        }
        let mut bodies = vec![];
        for (g, inner) in graphs.into_iter().zip(frames) {
            bodies.push(self.body(g, |l| l.branch_body(g, inner, &held, tables))?);
        }
        let (els, then) = (bodies.pop().unwrap_or_default(), bodies.pop().unwrap_or_default());
        let cond = scalar(self, cond);
        self.m.driver.push(Stmt::If { cond, then, els });
        for (v, h) in node.outputs.iter().zip(held) {
            if let (Some(v), Some(h)) = (v, h) {
                self.result(f, &node.origin, *v, h.buf)?;
            }
        }
        Ok(())
    }
    /// The branch that a known condition selects.
    fn only_branch(&mut self, f: &mut Frame<'a>, n: Node, name: &str) -> Result<()> {
        let (node, sub) = (&f.g.nodes[n], self.graph(f, n, name)?);
        let mut inner = self.enter(f, sub)?;
        self.nodes(&mut inner)?;
        for (v, of_sub) in node.outputs.iter().zip(&sub.outputs) {
            if let Some(v) = v.filter(|v| f.uses[*v] > 0) {
                let b = self.value(&mut inner, *of_sub)?;
                self.result(f, &node.origin, v, b)?;
            }
        }
        Ok(())
    }
    /// Where both branches store result `v`; `results`: theirs.
    fn hold_result(
        &mut self,
        f: &Frame<'a>,
        v: Value,
        results: [&ValueData; 2],
        is_table: bool,
    ) -> Result<Held> {
        let t = self.tensor(f, v)?;
        // A table without rows may have any number of columns.
        let rowless = |x: &TensorType, d: usize| {
            d == 1 && is_table && x.dims[0].as_const() == Some(0) && t.dims[1].as_const().is_some()
        };
        let types = results.map(|r| r.ty.as_ref().and_then(|x| x.as_tensor()));
        let differs =
            |d: usize| types.iter().any(|x| x.is_none_or(|x| x.dims[d] != t.dims[d] && !rowless(x, d)));
        let varies: Vec<bool> = (0..t.rank()).map(differs).collect();
        let h = match f.bufs[v] {
            // Known sizes: store directly to the output.
            Some(b) if !varies.contains(&true) => {
                Held { buf: b, sizes: vec![None; t.rank()], growable: None }
            }
            _ => self.hold(&f.g.values[v].name, &t, &varies, &vec![Dim::constant(0); t.rank()]),
        };
        // Bounds of the result are bounds of its buffer.
        for (s, d) in h.sizes.iter().zip(&t.dims) {
            if let (Some(s), Some(u)) = (s, self.m.syms.upper(*d)) {
                self.m.syms.bound_product(&[*s], u);
            }
        }
        Ok(h)
    }
    /// The nodes of a branch, and its results in the buffers that hold them.
    fn branch_body(
        &mut self,
        g: &Graph,
        mut inner: Frame<'a>,
        held: &[Option<Held>],
        tables: &[usize],
    ) -> Result<()> {
        for (h, v) in held.iter().zip(&g.outputs) {
            if let Some(h) = h.as_ref().filter(|h| h.sizes.iter().all(|s| s.is_none())) {
                self.aim(&mut inner, *v, h.buf);
            }
        }
        self.nodes(&mut inner)?;
        let mut done = vec![];
        for (k, (h, v)) in held.iter().zip(&g.outputs).enumerate() {
            let Some(h) = h else { continue };
            let mut b = self.value(&mut inner, *v)?;
            if tables.contains(&k) {
                b = self.with_columns(b, self.m.bufs[h.buf].dims[1]);
            }
            if b == h.buf {
                continue;
            }
            if self.resized.contains(&self.m.storage(b)) {
                b = self.settled(b);
            }
            done.push((h, Next::Value(b)));
        }
        self.renew(&done);
        Ok(())
    }
}
