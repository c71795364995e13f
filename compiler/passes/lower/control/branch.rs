//! Branches of If, with results whose sizes differ.

use super::*;

impl<'a> Lower<'a> {
    pub(super) fn branch(&mut self, f: &mut Frame<'a>, n: Node, tables: &[usize]) -> Result<()> {
        let node = &f.g.nodes[n];
        let Some(cond) = node.inputs.first().copied().flatten() else {
            return Err(Failure::bug("lower", "If without a condition"));
        };
        if let Some(c) = known_truth(&f.g.values[cond].known) {
            let sub = self.graph(f, n, if c { "then_branch" } else { "else_branch" })?;
            let mut inner = self.enter(f, sub)?;
            self.nodes(&mut inner)?;
            for (k, v) in node.outputs.iter().enumerate().filter_map(|(k, v)| Some((k, (*v)?))) {
                if f.uses[v] > 0 {
                    let b = self.value(&mut inner, sub.outputs[k])?;
                    self.result(f, &node.origin, v, b)?;
                }
            }
            return Ok(());
        }
        let cond = self.value(f, cond)?;
        let graphs = [self.graph(f, n, "then_branch")?, self.graph(f, n, "else_branch")?];
        // Captured values must be available before both branches.
        let mut frames = vec![self.enter(f, graphs[0])?, self.enter(f, graphs[1])?];
        // Sizes that differ between the branches are defined by them.
        let mut held: Vec<Option<Held>> = vec![];
        for (k, v) in node.outputs.iter().enumerate() {
            let Some(v) = v.filter(|v| f.uses[*v] > 0 && matches!(f.g.values[*v].known, Known::No)) else {
                held.push(None);
                continue;
            };
            let t = self.tensor(f, v)?.clone();
            let rowless = |x: &TensorType, d: usize| {
                d == 1
                    && tables.contains(&k)
                    && x.dims[0].as_const() == Some(0)
                    && t.dims[1].as_const().is_some()
            };
            let differs = |d: usize| {
                graphs.iter().any(|g| {
                    g.values[g.outputs[k]]
                        .ty
                        .as_ref()
                        .and_then(|x| x.as_tensor())
                        .is_none_or(|x| x.dims[d] != t.dims[d] && !rowless(x, d))
                })
            };
            let varies: Vec<bool> = (0..t.rank()).map(differs).collect();
            let zeros = vec![Dim::constant(0); t.rank()];
            let name = f.g.values[v].name.clone();
            let h = match f.bufs[v] {
                // Known sizes: store directly to the output.
                Some(b) if !varies.contains(&true) => {
                    Held { buf: b, sizes: vec![None; t.rank()], growable: None }
                }
                _ => self.hold(&name, &t, &varies, &zeros),
            };
            // Bounds of the result are bounds of its buffer.
            for (s, d) in h.sizes.iter().zip(&t.dims) {
                if let (Some(s), Some(u)) = (s, self.m.syms.upper(*d)) {
                    self.m.syms.bound_product(&[*s], u);
                }
            }
            held.push(Some(h));
        }
        let mut bodies = vec![];
        for (g, mut inner) in graphs.into_iter().zip(frames.drain(..)) {
            let list = self.body(g, |l| {
                for (h, v) in held.iter().zip(&g.outputs) {
                    if let Some(h) = h.as_ref().filter(|h| h.sizes.iter().all(|s| s.is_none())) {
                        l.aim(&mut inner, *v, h.buf);
                    }
                }
                l.nodes(&mut inner)?;
                let mut done = vec![];
                for (k, (h, v)) in held.iter().zip(&g.outputs).enumerate() {
                    let Some(h) = h else { continue };
                    let b = l.value(&mut inner, *v)?;
                    let b = if tables.contains(&k) { l.with_columns(b, l.m.bufs[h.buf].dims[1]) } else { b };
                    if b != h.buf {
                        let b = if l.resized.contains(&l.m.storage(b)) { l.settled(b) } else { b };
                        done.push((h, Next::Value(b)));
                    }
                }
                l.renew(&done);
                Ok(())
            })?;
            bodies.push(list);
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
}
