//! Branches of If: types of results, and facts about the condition.

use super::*;

impl Cx<'_> {
    pub(super) fn branch(
        &mut self,
        tables: &[usize],
        subs: &mut [(String, Graph)],
        syms: &mut SymTable,
    ) -> Result<()> {
        let Some(cond) = self.operand(0).cloned() else {
            return self.fail(codes::OP_ARITY, "the condition is missing");
        };
        if tensor(&cond).is_none_or(|t| t.count().as_const() != Some(1)) {
            return self.fail(codes::OP_SHAPE, "the condition of If must be one truth value");
        }
        let names = ["then_branch", "else_branch"];
        let wanted = self.outer.names.len();
        let mut counts = vec![];
        for n in names {
            let sub = self.body(subs, n)?;
            let (inputs, outputs) = (sub.inputs.len(), sub.outputs.len());
            counts.push(outputs);
            let wrong = |what: &str, found: usize, expected: String| {
                let e = Error::new(codes::GRAPH_INVALID, format!("{n} of If has the wrong number of {what}"))
                    .at(self.origin());
                e.found_expected(format!("{found} {what}"), expected)
                    .help(
                        "branches see the values around \
                    them: they take no inputs, and give what the node gives",
                    )
                    .fail()
            };
            if inputs > 0 {
                return wrong("inputs", inputs, "none".into());
            }
            if outputs < wanted {
                return wrong("outputs", outputs, format!("{wanted}, as the node has"));
            }
        }
        if counts[0] != counts[1] {
            let e = Error::new(codes::GRAPH_INVALID, "the branches of If have different numbers of outputs")
                .at(self.origin());
            let found = format!("{} in then_branch, {} in else_branch", counts[0], counts[1]);
            return e
                .found_expected(found, "the same number in both")
                .help("add the missing outputs to one branch, or remove them from the other")
                .fail();
        }
        // If the condition is known, only one branch remains, and it runs as part of the enclosing graph.
        if let Some(c) = known_truth(&cond.known) {
            let sub = self.body(subs, names[usize::from(!c)])?;
            if let Some(out) = self.run(sub, syms, true, false)? {
                self.outputs = out.into_iter().map(Some).collect();
            }
            return Ok(());
        }
        let mark = syms.len();
        let mut found = vec![];
        for n in names {
            let sub = self.body(subs, n)?;
            let scope = syms.open();
            let out = self.attempt(sub, syms, self.outer.once)?;
            sub.conditions = syms.close(scope);
            found.push(out);
        }
        if let Some((invalid, error)) = self.invalid(&found) {
            let valid = 1 - invalid;
            self.findings.push(cannot_run(names[invalid], error, self.origin()));
            self.only = Some(valid == 0);
            return Ok(());
        }
        found.iter().for_each(|(local, _)| self.report(local));
        let [(_, Some(a)), (_, Some(b))] = &found[..] else { return Ok(()) };
        for (k, (x, y)) in a.iter().zip(b).enumerate() {
            let (ValueType::Tensor(t), ValueType::Tensor(e)) = (&x.0, &y.0) else {
                return self
                    .fail(codes::OP_FEATURE, "If with results that are no tensors is not supported yet");
            };
            if self.g.nodes[self.n].outputs.get(k).copied().flatten().is_none() {
                self.outputs.push(None);
                continue;
            }
            if t.elem != e.elem {
                let title = format!("result {k} has another element type in each branch");
                let e = Error::new(codes::OP_TYPE, title)
                    .at(self.origin())
                    .row("then_branch", t.display(syms))
                    .row("else_branch", e.display(syms));
                return e.help("convert one of them with Cast").fail();
            }
            if t.rank() != e.rank() {
                if !self.outer.once {
                    return uneven(&self.g.nodes[self.n], k)
                        .found_expected(t.display(syms), e.display(syms))
                        .fail();
                }
                self.uneven.push(k);
                self.outputs.push(None);
                continue;
            }
            let (t, e) = if tables.contains(&k) {
                (columns_of(t, e), columns_of(e, t))
            } else {
                (t.clone(), e.clone())
            };
            let mut dims = vec![];
            for d in 0..t.rank() {
                let same = syms.eq(t.dims[d], e.dims[d]) == Answer::Yes && outside(syms, t.dims[d], mark);
                if same {
                    dims.push(t.dims[d]);
                    continue;
                }
                let s = self.size(syms, k, d, t.rank());
                if let (Some(sym), Some(u), Some(v)) = (
                    s.as_sym().filter(|s| syms.kind(*s) == SymKind::Runtime),
                    syms.upper(t.dims[d]),
                    syms.upper(e.dims[d]),
                ) {
                    syms.bound_product(&[sym], u.max(v));
                }
                dims.push(s);
            }
            let known = match (&x.1, &y.1) {
                (Known::Dims(p), Known::Dims(q)) if p == q && p.iter().all(|d| outside(syms, *d, mark)) => {
                    x.1.clone()
                }
                _ => Known::No,
            };
            self.outputs.push(Some((ValueType::Tensor(TensorType::new(t.elem, dims)), known)));
        }
        Ok(())
    }
    /// The only branch whose shapes do not fit its operators or their attributes, with the first error about
    /// it. A call that selects it fails, as it does where shapes are known at run time only.
    fn invalid<'e>(&self, found: &'e [(Findings, Types)]) -> Option<(usize, &'e Error)> {
        let wrong: Vec<usize> = (0..found.len()).filter(|i| found[*i].0.has_errors()).collect();
        let [one] = wrong[..] else { return None };
        let errors = found[one].0.errors();
        let fails = |e: &Error| matches!(e.code, codes::OP_SHAPE | codes::OP_ATTRIBUTE);
        (self.outer.once && errors.iter().all(fails)).then_some((one, errors.first()?))
    }
}

/// The warning about a branch that is left out.
fn cannot_run(name: &str, error: &Error, origin: &Origin) -> Error {
    let title = format!("{name} of If cannot run, and is left out: {}", error.title);
    let mut e = Error::warning(codes::OP_SHAPE, title).at(&error.origin);
    e.rows.clone_from(&error.rows);
    e.note(format!("{}: calls whose condition selects this branch fail", origin.short()))
}
