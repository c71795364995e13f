//! Branches of If: types of results, and facts about the condition.

use super::*;

const BRANCHES: [&str; 2] = ["then_branch", "else_branch"];

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
        self.check_interfaces(subs)?;
        // If the condition is known, only one branch remains, and it runs as part of the enclosing graph.
        if let Some(c) = known_truth(&cond.known) {
            let sub = self.body(subs, BRANCHES[usize::from(!c)])?;
            if let Some(out) = self.run(sub, syms, true, false)? {
                self.outputs = out.into_iter().map(Some).collect();
            }
            return Ok(());
        }
        let mark = syms.len();
        let mut found = vec![];
        for n in BRANCHES {
            let sub = self.body(subs, n)?;
            let scope = syms.open();
            let out = self.attempt(sub, syms, self.outer.once)?;
            sub.conditions = syms.close(scope);
            found.push(out);
        }
        if let Some((invalid, error)) = self.invalid(&found) {
            let valid = 1 - invalid;
            self.findings.push(cannot_run(BRANCHES[invalid], error, self.origin()));
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
            let dims = self.sizes(syms, k, [&t, &e], mark);
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
    /// Rejects branches with inputs, or with other numbers of outputs than the node has.
    fn check_interfaces(&self, subs: &mut [(String, Graph)]) -> Result<()> {
        let wanted = self.outer.names.len();
        let mut counts = vec![];
        for n in BRANCHES {
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
        Ok(())
    }
    /// The sizes of result `k`: those on which the branches agree, and symbols with the bounds of both.
    fn sizes(&self, syms: &mut SymTable, k: usize, [t, e]: [&TensorType; 2], mark: usize) -> Vec<Dim> {
        let size = |d: usize| {
            let (a, b) = (t.dims[d], e.dims[d]);
            if syms.eq(a, b) == Answer::Yes && outside(syms, a, mark) {
                return a;
            }
            let size = self.size(syms, k, d, t.rank());
            let sym = size.as_sym().filter(|s| syms.kind(*s) == SymKind::Runtime);
            if let (Some(sym), Some(a), Some(b)) = (sym, syms.upper(a), syms.upper(b)) {
                syms.bound_product(&[sym], a.max(b));
            }
            size
        };
        (0..t.rank()).map(size).collect()
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
