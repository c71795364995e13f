//! infer_shapes for Scan.

use super::*;

impl Cx<'_> {
    pub(super) fn scan(&mut self, s: &Scan, subs: &mut [(String, Graph)], syms: &mut SymTable) -> Result<()> {
        let sub = self.body(subs, "body")?;
        let all = self.outer.operands.len();
        let n = all - s.n_scanned;
        if sub.inputs.len() != all || sub.outputs.len() < n || sub.outputs.len() < self.outer.names.len() {
            let found = format!("{} inputs and {} outputs", sub.inputs.len(), sub.outputs.len());
            return self.body_counts(
                "Scan",
                found,
                format!(
                    "{all} inputs and at least {} outputs, as the node has",
                    self.outer.names.len().max(n)
                ),
            );
        }
        let scans = sub.outputs.len() - n;
        if [s.output_axes.len(), s.output_reversed.len()].iter().any(|k| *k != 0 && *k != scans) {
            return self.fail(
                codes::OP_ATTRIBUTE,
                format!("there are {scans} scan outputs: axes and directions must be as many"),
            );
        }
        let mut types = self.carried_types(0, all)?;
        self.declared_inputs(sub, 0, &types.iter().map(|t| t.elem).collect::<Vec<_>>())?;
        let mut count: Option<Dim> = None;
        for (j, t) in types[n..].iter().enumerate() {
            let axis = axis(s.input_axes.get(j).copied().unwrap_or(0), t.rank()).ok_or_else(|| {
                Error::new(codes::OP_ATTRIBUTE, "an axis of a scanned input is out of range")
                    .at(self.origin())
            })?;
            let d = t.dims[axis];
            match count {
                None => count = Some(d),
                Some(c) if syms.eq(c, d) == Answer::No => {
                    return self.fail(codes::OP_SHAPE, "the scanned inputs differ in length");
                }
                Some(c) if syms.eq(c, d) == Answer::Unknown => syms.equate(c, d),
                Some(_) => {}
            }
            let mut dims = t.dims.clone();
            dims.remove(axis);
            let v = sub.inputs[n + j];
            sub.values[v].ty = Some(ValueType::Tensor(TensorType::new(t.elem, dims)));
        }
        let Some(count) = count else { return self.fail(codes::OP_ARITY, "Scan scans nothing") };
        let mark = syms.len();
        let values = Carried { first_in: 0, first_out: 0, types: &mut types[..n], tables: &[] };
        let Some((out, varies)) = self.settle(sub, syms, values)? else { return Ok(()) };
        self.carried(syms, 0, &types[..n], &varies);
        for (j, (ty, _)) in out.iter().enumerate().skip(n) {
            let ValueType::Tensor(t) = ty else {
                return self.fail(codes::OP_FEATURE, "a scan output that is no tensor is not supported");
            };
            let rank = t.rank() + 1;
            let Some(at) = axis(s.output_axes.get(j - n).copied().unwrap_or(0), rank) else {
                return self.fail(codes::OP_ATTRIBUTE, "an axis of a scan output is out of range");
            };
            let mut dims = vec![];
            for (d, x) in t.dims.iter().enumerate() {
                let place = d + usize::from(d >= at);
                dims.push(if outside(syms, *x, mark) { *x } else { self.size(syms, j, place, rank) });
            }
            if dims != t.dims && at != 0 {
                return self.fail(
                    codes::OP_FEATURE,
                    "a scan output of sizes that only the body knows is only supported along axis 0",
                );
            }
            dims.insert(at, count);
            self.outputs.push(Some((ValueType::Tensor(TensorType::new(t.elem, dims)), Known::No)));
        }
        Ok(())
    }
}
