//! State in place (`--alias present=past`): an output that begins with an input, such as a key-value cache,
//! may share its memory. A step then stores only the new part and copies nothing.
//!
//! Both tensors are declared with a capacity, a separate dimension, in place of the size that grows. The
//! caller passes the number of valid positions (`past`) and the capacity (`past_capacity`). The driver copies
//! the input only if a call passes two different addresses, so a caller may also keep them separate.
//!
//! The two buffers may be treated as different memory because of these properties. The copy is the first
//! access to the output. It writes the elements of the input to their own positions. Either nothing else
//! reads the input, or all other stores to the output follow the input's elements.
//!
//! A state that a step replaces (the state of a recurrence, or a cache that drops its oldest positions) has a
//! constant shape. It is computed in scratch memory and copied as the last action of the driver. The copy is
//! in a separate body, so that no pass fuses it with the computation of the state.

use crate::diag::{Error, Findings, Result, codes};
use crate::graph::Model;
use crate::nest::form::Map;
use crate::nest::{
    BinOp, Buf, BufData, Expr, Kernel, LoopKind, Module, Place, Reason, State, Status, Stmt, Subject, visit,
};
use crate::sym::text::DimOption;
use crate::sym::{Answer, Condition, Dim, Source, SymKind};
use crate::tensor::ElemType;
use std::collections::HashMap;

/// Suffix of the names of capacity dimensions.
pub const SUFFIX: &str = "_capacity";

/// The texts in `name` that the stars of `pattern` match, each the shortest possible.
fn captured<'a>(pattern: &str, name: &'a str) -> Option<Vec<&'a str>> {
    let (head, rest) = match pattern.split_once('*') {
        Some((head, rest)) => (head, rest),
        None => return (pattern == name).then(Vec::new),
    };
    let mut name = name.strip_prefix(head)?;
    let mut out = vec![];
    let parts: Vec<&str> = rest.split('*').collect();
    for (k, p) in parts.iter().enumerate() {
        let at = if k + 1 == parts.len() {
            name.len().checked_sub(p.len()).filter(|_| name.ends_with(p))?
        } else {
            name.find(p)?
        };
        out.push(&name[..at]);
        name = &name[at + p.len()..];
    }
    Some(out)
}

/// Pairs of an output and an input that share memory, by number. A star in the name of an input is replaced
/// by the text that the star in the name of the output matches.
pub fn choose(model: &Model, pairs: &[(String, String)], findings: &mut Findings) -> Vec<(usize, usize)> {
    let g = &model.graph;
    let inputs: Vec<&str> = g.inputs.iter().map(|v| g.values[*v].name.as_str()).collect();
    let list = |names: &[&str]| {
        if names.is_empty() { "none: the model has none".to_owned() } else { names.join(", ") }
    };
    let outputs: Vec<&str> = g.output_names.iter().map(String::as_str).collect();
    let mut out: Vec<(usize, usize)> = vec![];
    for (to, from) in pairs {
        let option = format!("--alias {to}={from}");
        let error = |title: String| Error::new(codes::OPTION, title).at(&model.origin);
        let stars = |p: &str| p.matches('*').count();
        if stars(to) != stars(from) {
            let e = error(format!(
                "{option}: the names of the output and of the input have different numbers of stars"
            ));
            findings.push(e.found_expected(
                format!("{} and {}", stars(to), stars(from)),
                "a star of the input for each star of the output, such as 'present.*=past.*'",
            ));
            continue;
        }
        let found: Vec<_> =
            outputs.iter().enumerate().filter_map(|(o, n)| Some((o, captured(to, n)?))).collect();
        if found.is_empty() {
            findings.push(
                error(format!("{option}: the model has no output \"{to}\""))
                    .found_expected(to.clone(), format!("one of {}", list(&outputs))),
            );
        }
        for (o, texts) in found {
            let mut parts = from.split('*');
            let mut name = parts.next().unwrap_or_default().to_owned();
            parts.zip(&texts).for_each(|(p, t)| name = format!("{name}{t}{p}"));
            let Some(i) = inputs.iter().position(|n| *n == name) else {
                findings.push(
                    error(format!("{option}: the model has no input \"{name}\""))
                        .row("output", outputs[o])
                        .found_expected(name, format!("one of {}", list(&inputs))),
                );
                continue;
            };
            if let Some((p, q)) = out.iter().find(|(p, q)| *p == o || *q == i) {
                let e =
                    error(format!("{option}: an output and an input share memory with one tensor at most"));
                findings.push(e.found_expected(
                    format!("{}={} and {}={}", outputs[o], inputs[i], outputs[*p], inputs[*q]),
                    "each name once",
                ));
                continue;
            }
            out.push((o, i));
        }
    }
    out
}

/// Lets the pairs of [`Model::aliases`] share memory. `driver` is the future `m.driver`.
pub(super) fn share(m: &mut Module, model: &Model, driver: &mut Vec<Stmt>) -> Result<()> {
    let mut capacities: HashMap<Dim, Dim> = HashMap::new();
    let mut late = model.late_dims.clone();
    for (o, i) in &model.aliases {
        let pair = Pair { to: m.outputs[*o], from: m.inputs[*i] };
        let axis = pair.axis(m, model)?;
        let Some(copy) = pair.copy(m, model, driver, axis)? else {
            pair.stage(m, driver, *o);
            continue;
        };
        let mut checks = vec![];
        if let Some(a) = axis {
            let (used, old) = (m.bufs[pair.to].dims[a], m.syms.resolve(m.bufs[pair.from].dims[a]));
            let capacity = match capacities.get(&old) {
                Some(c) => *c,
                None => {
                    let c = capacity(m, &mut late, &name_of(m, old, pair.from));
                    capacities.insert(old, c);
                    c
                }
            };
            checks = pair.within(m, a, [old, used], capacity);
            m.states.push(State { output: *o, input: *i, axis: a, before: old, after: used });
            for b in [pair.to, pair.from] {
                m.bufs[b].dims[a] = capacity;
            }
        }
        let run_time = checks
            .iter()
            .any(|c| c.dims().iter().flat_map(|d| d.syms()).any(|s| m.syms.kind(s) == SymKind::Runtime));
        let differ = Expr::bin(BinOp::Ne, Expr::Address(pair.to), Expr::Address(pair.from));
        let Some(at) = driver.iter().position(|s| *s == Stmt::Call(copy)) else { continue };
        driver[at] = Stmt::If { cond: differ, then: vec![Stmt::Call(copy)], els: vec![] };
        let at = if run_time { at } else { 0 };
        driver.splice(at..at, checks);
    }
    match late.into_iter().next() {
        None => Ok(()),
        Some((name, _)) => {
            let have: Vec<&str> =
                capacities.values().filter_map(|d| d.as_sym()).map(|s| m.syms.name(s)).collect();
            Error::new(codes::DIM_OPTION, format!("--dim: the model has no dimension \"{name}\""))
                .at(&model.origin)
                .found_expected(name, have.join(", "))
                .fail()
        }
    }
}

/// The name from which the capacity dimension's name is derived: the growing size, or the input.
fn name_of(m: &Module, old: Dim, from: Buf) -> String {
    match old.as_sym() {
        Some(s) => m.syms.name(s).to_owned(),
        None => m.bufs[from].name.clone(),
    }
}

fn capacity(m: &mut Module, late: &mut Vec<(String, DimOption)>, name: &str) -> Dim {
    let s = m.syms.fresh(SymKind::Param, &format!("{name}{SUFFIX}"));
    let name = m.syms.name(s).to_owned();
    for (_, what) in late.extract_if(.., |(n, _)| *n == name) {
        match what {
            DimOption::Bind(v) => m.syms.bind(s, v),
            DimOption::Within(r) => m.syms.set_range(s, r),
        }
    }
    if m.syms.bound_value(s).is_none() {
        m.dim_params.push(s);
    }
    m.syms.resolve(Dim::sym(s))
}

struct Pair {
    to: Buf,
    from: Buf,
}

impl Pair {
    fn option(&self, m: &Module) -> String {
        format!("--alias {}={}", m.bufs[self.to].name, m.bufs[self.from].name)
    }
    fn error(&self, m: &Module, model: &Model, why: &str) -> Error {
        let help = "leave this pair out of --alias: the call copies it";
        Error::new(codes::OPTION, format!("{}: {why}", self.option(m))).at(&model.origin).help(help)
    }
    /// The growing dimension; `None` if both shapes are equal.
    fn axis(&self, m: &Module, model: &Model) -> Result<Option<usize>> {
        let (to, from) = (&m.bufs[self.to], &m.bufs[self.from]);
        let equal =
            |a: Dim, b: Dim| a == b || m.syms.le(a, b) == Answer::Yes && m.syms.le(b, a) == Answer::Yes;
        let differ: Vec<usize> =
            (0..to.dims.len().min(from.dims.len())).filter(|k| !equal(to.dims[*k], from.dims[*k])).collect();
        if to.ty == from.ty && to.dims.len() == from.dims.len() && differ.len() < 2 && !to.ty.is_packed() {
            return Ok(differ.first().copied());
        }
        let text =
            |b: &crate::nest::BufData| crate::tensor::TensorType::new(b.ty, b.dims.clone()).display(&m.syms);
        let found = format!("{} and {}", text(to), text(from));
        self.error(m, model, "the types do not fit")
            .found_expected(
                found,
                "one element type of at least a byte, and shapes that differ in one dimension at most",
            )
            .fail()
    }
    /// The kernel that copies the input to the beginning of the output, if the conditions in the module
    /// comment hold. `None` for a state that a step replaces.
    fn copy(
        &self,
        m: &Module,
        model: &Model,
        driver: &[Stmt],
        axis: Option<usize>,
    ) -> Result<Option<Kernel>> {
        let is = |b: Buf, of: Buf| m.storage(b) == of;
        let calls = visit::calls(driver);
        let touches = |k: Kernel, b: Buf, list: &dyn Fn(&[Stmt]) -> Vec<Buf>| {
            list(&m.kernels[k].body).into_iter().any(|x| is(x, b))
        };
        let stores = |k: Kernel| touches(k, self.to, &|b| visit::stores(b).into_iter().collect());
        let loads = |k: Kernel, b: Buf| touches(k, b, &|l| visit::loads(l).into_iter().collect());
        let expected = "a node that keeps the input as it is and appends: Attention, GroupQueryAttention, \
            MultiHeadAttention, Concat with the input first";
        let copies = |k: Kernel| driver.contains(&Stmt::Call(k)) && self.is_copy(m, k);
        let Some(first) = calls.iter().copied().find(|k| stores(*k) || loads(*k, self.to)) else {
            return self
                .error(m, model, "no node computes the output")
                .found_expected("an output without a node", expected)
                .fail();
        };
        let by = |k: Kernel| m.kernels[k].origin.short();
        if !copies(first) && axis.is_none() {
            return Ok(None);
        }
        if !copies(first) {
            return self
                .error(m, model, "the output does not begin with the input")
                .row("node", by(first))
                .found_expected("an output that is computed from it", expected)
                .fail();
        }
        let others = || calls.iter().copied().filter(|k| *k != first);
        // Subscripts of a view do not determine those of the whole buffer.
        let views = m.bufs.iter().any(|(b, d)| {
            matches!(d.place, Place::View(of) if of == self.to || of == self.from)
                && others().any(|k| {
                    visit::loads(&m.kernels[k].body).contains(&b)
                        || visit::stores(&m.kernels[k].body).contains(&b)
                })
        });
        if views && axis.is_some() {
            return self
                .error(m, model, "the memory is used under another shape, and has gaps with a capacity")
                .found_expected("a Reshape of the output or the input", expected)
                .fail();
        }
        let reader = others()
            .find(|k| loads(*k, self.from))
            .map(by)
            .or_else(|| self.in_driver(m, driver).then(|| "the driver".to_owned()));
        let Some(reader) = reader else { return Ok(Some(first)) };
        let behind =
            |at: &[Dim]| axis.is_some_and(|a| m.syms.le(m.bufs[self.from].dims[a], at[a]) == Answer::Yes);
        let mut kept = true;
        for k in others() {
            visit::walk(&m.kernels[k].body, &mut |s| {
                if let Stmt::Store { buf, at, .. } = s {
                    kept &= !is(*buf, self.to) || behind(at)
                }
            });
        }
        if kept {
            return Ok(Some(first));
        }
        if axis.is_none() {
            return Ok(None);
        }
        self.error(m, model, "the input is read after it may be overwritten")
            .row("node", reader)
            .found_expected("a second reader of the input", expected)
            .fail()
    }
    /// Computes output `o` in scratch and copies it at the end.
    fn stage(&self, m: &mut Module, driver: &mut Vec<Stmt>, o: usize) {
        let BufData { name, ty, dims, place, .. } = m.bufs[self.to].clone();
        let out = m.buf(name.clone(), ty, dims.clone(), place);
        (m.bufs[self.to].name, m.bufs[self.to].place) = (format!("{name}.next"), Place::Temp);
        m.outputs[o] = out;
        let writer = visit::calls(driver)
            .into_iter()
            .find(|k| visit::stores(&m.kernels[*k].body).iter().any(|b| m.storage(*b) == self.to));
        let origin = writer.map(|k| m.kernels[k].origin.clone()).unwrap_or_default();
        let scratch = self.to;
        m.kernel(&format!("{name}.copy"), &origin, |k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let v = k.load(scratch, at);
                k.store(out, at, v);
            });
        });
        let Some(call) = m.driver.pop() else { return };
        let always = Expr::bin(BinOp::Ne, Expr::Address(out), Expr::int(ElemType::I64, 0));
        driver.push(Stmt::If { cond: always, then: vec![call], els: vec![] });
    }
    /// True if statements of the driver read the input.
    fn in_driver(&self, m: &Module, driver: &[Stmt]) -> bool {
        visit::any(driver, &mut |s| s.loads().into_iter().any(|b| m.storage(b) == self.from))
    }
    /// True if a kernel stores every element of the input unchanged under its own subscripts.
    fn is_copy(&self, m: &Module, k: Kernel) -> bool {
        let Some(Map { loops, buf, at, value: Expr::Load { buf: from, at: same } }) = m.form(k).map() else {
            return false;
        };
        let all = |(d, n): (&Dim, &Dim)| match d.as_sym() {
            Some(s) => loops.contains(&(s, *n)),
            None => d.as_const() == Some(0) && n.as_const() == Some(1),
        };
        *buf == self.to && *from == self.from && at == same && at.iter().zip(&m.bufs[self.from].dims).all(all)
    }
    /// Requires that both sizes fit the capacity, which passes may rely on.
    fn within(&self, m: &mut Module, axis: usize, sizes: [Dim; 2], capacity: Dim) -> Vec<Stmt> {
        let known = m.syms.conditions().len();
        // The larger one first: its condition usually implies the other.
        sizes.into_iter().rev().for_each(|n| m.syms.require_at_most(n, capacity));
        let new = m.syms.conditions()[known..].to_vec();
        let name = m.bufs[self.to].name.replace(['{', '}'], "");
        let check = |c: Condition| {
            let made = super::check(c);
            let Stmt::Check { cond, .. } = made else { return made };
            let rule =
                format!("{name:?} takes {{0}} positions along dimension {axis}, and the capacity is {{1}}");
            m.reasons.check(
                &cond,
                Reason {
                    source: Source::default().into(),
                    rule,
                    subjects: c.dims().map(Subject::Value).to_vec(),
                },
            );
            Stmt::Check { cond, status: Status::Capacity }
        };
        new.into_iter().map(check).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::captured;

    #[test]
    fn stars() {
        for (pattern, name, is) in [
            ("present.*", "present.0.key", Some(vec!["0.key"])),
            ("a*b*c", "aXbYc", Some(vec!["X", "Y"])),
            ("h", "h", Some(vec![])),
            ("h", "hn", None),
            ("a*b", "ab", Some(vec![""])),
            ("ab*b", "ab", None),
        ] {
            assert_eq!(captured(pattern, name), is, "{pattern} {name}");
        }
    }
}
