//! The kernels of an attention: scores, softmax and maps over rows of them, values.

use crate::nest::{Buf, Kernel, Module, Stmt, visit};
use crate::passes::nest::analysis::form::{Contraction, Form, Part, ProductKind, Rows, depends};
use crate::passes::nest::analysis::shape::{Uses, is_temp, relocate};
use crate::passes::nest::analysis::strides::stride;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// The kernels of one attention, and the correspondence of their loops.
pub(super) struct Group {
    pub scores: Kernel,
    /// Softmax, then maps over its result.
    pub rows: Vec<Kernel>,
    pub values: Kernel,
    pub qk: Contraction,
    /// Column variables of the two contractions.
    pub columns: (Sym, Sym),
    pub pv: Contraction,
    /// Buffers that become the scratch; the last one may be of bf16.
    pub bufs: Vec<Buf>,
    /// Shape of the scores, with a dim for each loop of the contractions.
    pub dims: Vec<Dim>,
    /// The row's position in it.
    pub row: usize,
    /// Variables of the second contraction for every position except the last.
    pub vars: Vec<Option<Sym>>,
    /// For each kernel except `values`: the substitutions for its variables.
    pub renames: Vec<Vec<(Sym, Dim)>>,
}

/// A dim of the scores over which the contractions have two loops: query heads, several of which share a head
/// of keys and values.
#[derive(Clone, Copy)]
struct Split {
    /// Its position.
    at: usize,
    outer: Dim,
    inner: Dim,
}

impl Split {
    /// The dim that a contraction stores its scores with as two dims, if there is one.
    fn of(p: &Contraction, at: &[Dim], dims: &[Dim]) -> Option<Split> {
        let (i, d) = at.iter().zip(dims).enumerate().find_map(|(i, (s, d))| {
            (s.as_sym().is_none() && s.as_const().is_none()).then_some((i, (*s, *d)))
        })?;
        let pairs = p.loops.iter().flat_map(|x| p.loops.iter().map(move |y| (x, y)));
        pairs
            .filter(|(x, y)| x.0 != y.0 && d.0 == Dim::sym(x.0) * y.1 + y.0 && d.1 == x.1 * y.1)
            .map(|(x, y)| Split { at: i, outer: x.1, inner: y.1 })
            .next()
    }
    /// The shape with this dim replaced by two.
    fn apply(&self, dims: &[Dim]) -> Vec<Dim> {
        let mut out = dims.to_vec();
        out.splice(self.at..=self.at, [self.outer, self.inner]);
        out
    }
    /// True if `position` is one of the two dims in the split shape.
    fn has(&self, position: usize) -> bool {
        position == self.at || position == self.at + 1
    }
}

/// The subscript at each position of the scores, given `vars` of the split shape.
fn joined(vars: &[Option<Sym>], split: Option<Split>) -> Vec<Option<Dim>> {
    let mut out: Vec<Option<Dim>> = vars.iter().map(|v| v.map(Dim::sym)).collect();
    if let Some(s) = split {
        let of = |v: Option<Dim>| v.unwrap_or(Dim::constant(0));
        let one = of(out[s.at]) * s.inner + of(out[s.at + 1]);
        out.splice(s.at..=s.at + 1, [Some(one)]);
    }
    out
}

/// Subscripts of an access in the shape of the scores.
pub(super) fn position(m: &Module, buf: Buf, at: &[Dim], dims: &[Dim]) -> Option<Vec<Dim>> {
    let own = &m.bufs[buf].dims;
    if own == dims {
        return Some(at.to_vec());
    }
    (Dim::product(own.iter().copied()) == Dim::product(dims.iter().copied()))
        .then(|| relocate(m, own, at, dims))
}

/// The loop variable of each position except the last; `None` if a subscript is anything else.
fn row_vars(at: &[Dim], dims: &[Dim], loops: &[(Sym, Dim)]) -> Option<Vec<Option<Sym>>> {
    let mut out = vec![];
    for (i, d) in at.iter().zip(dims).take(dims.len() - 1) {
        match (i.as_sym(), i.as_const()) {
            (Some(s), _) if loops.iter().any(|l| l.0 == s && l.1 == *d) && !out.contains(&Some(s)) => {
                out.push(Some(s))
            }
            (_, Some(0)) if d.as_const() == Some(1) => out.push(None),
            _ => return None,
        }
    }
    Some(out)
}

/// The row variables of the accesses to `bufs` in a body, if all accesses use the same row.
fn rows_accessed(m: &Module, rows: &Rows, bufs: &[Buf], dims: &[Dim]) -> Option<Vec<Option<Sym>>> {
    let mut all: Vec<(Buf, Vec<Dim>)> = vec![];
    visit::accesses(&rows.body(), &mut |buf, at| all.push((buf, at.to_vec())));
    let mut found: Option<Vec<Option<Sym>>> = None;
    for (b, at) in all {
        if !bufs.contains(&m.storage(b)) {
            continue;
        }
        let at = position(m, b, &at, dims)?;
        let vars = row_vars(&at, dims, &rows.loops)?;
        let last = at.last()?;
        if vars.iter().flatten().any(|v| last.contains(*v)) || found.as_ref().is_some_and(|f| *f != vars) {
            return None;
        }
        found = Some(vars);
    }
    // The kernel has no loops over anything but rows.
    found.filter(|f| f.iter().flatten().count() == rows.loops.len())
}

/// True if a row kernel may store its result in the memory of its operand: every element of the operand is
/// read for the last time before or when the element of the result is stored.
fn may_overwrite(m: &Module, rows: &Rows, from: Buf, to: Buf, dims: &[Dim]) -> bool {
    let mut written = false;
    for part in &rows.parts {
        let elements = match part {
            Part::Each(elements) => elements,
            Part::Once(s) => {
                let touches = s.loads().iter().any(|b| [from, to].contains(&m.storage(*b)));
                if touches || matches!(s, Stmt::Store { .. }) {
                    return false;
                }
                continue;
            }
        };
        let ([(var, hi)], body) = (elements.loops.as_slice(), &elements.body) else { return false };
        let stores = visit::stores(body).iter().any(|b| m.storage(*b) == to);
        let reads = visit::loads(body).iter().any(|b| m.storage(*b) == from);
        if written && reads || Some(hi) != dims.last() {
            return false;
        }
        written |= stores;
        // In a loop over a modified row, each iteration must access its own element only.
        let mut own = true;
        let mut check = |b: Buf, at: &[Dim]| {
            if [from, to].contains(&m.storage(b)) {
                own &= position(m, b, at, dims).and_then(|p| p.last().copied()).and_then(|d| d.as_sym())
                    == Some(*var);
            }
        };
        visit::accesses(body, &mut check);
        if !own {
            return false;
        }
    }
    written
}

/// Softmax, and maps over its result.
struct Chain {
    rows: Vec<Kernel>,
    /// The buffers that they write, in order after the scores.
    bufs: Vec<Buf>,
    /// The variables of each of these at each position of the row.
    vars: Vec<Vec<Option<Sym>>>,
    /// The reader of the last result that is not a map.
    values: Kernel,
}

/// True for a buffer that may become scratch of the attention.
fn is_scratch(m: &Module, b: Buf) -> bool {
    is_temp(m, b) && m.bufs[b].ty == ElemType::F32
}

/// The contraction that produces the operand read only by kernel `k`, and its result.
fn scores_of(m: &Module, uses: &Uses, k: Kernel) -> Option<(Kernel, Buf)> {
    let read = visit::loads(&m.kernels[k].body).into_iter().map(|b| m.storage(b));
    let mut made = read.filter_map(|b| match uses.writers(b) {
        [w] if *w != k && is_scratch(m, b) && uses.readers(b) == [k] => Some((*w, b)),
        _ => None,
    });
    made.find(|(w, _)| m.form(*w).contraction().is_some())
}

/// The softmax `k` of the scores `from`, and the maps that follow it. Each of them accesses the scores row by
/// row.
fn chain(m: &Module, uses: &Uses, k: Kernel, from: Buf, dims: &[Dim]) -> Option<Chain> {
    let body = &m.kernels[k].body;
    let (Form::RowReduction(sm), [to]) = (body.form(), &visit::stores(body)[..]) else { return None };
    let mut bufs = vec![from, m.storage(*to)];
    if dims.len() < 2 || !may_overwrite(m, sm, from, bufs[1], dims) {
        return None;
    }
    let (mut rows, mut vars) = (vec![k], vec![rows_accessed(m, sm, &bufs, dims)?]);
    loop {
        let last = *bufs.last()?;
        let others: Vec<Kernel> = uses.readers(last).iter().copied().filter(|r| !rows.contains(r)).collect();
        let is_rounded = is_temp(m, last) && m.bufs[last].ty == ElemType::BF16;
        let ([next], [_], true) = (others.as_slice(), uses.writers(last), is_rounded || is_scratch(m, last))
        else {
            return None;
        };
        let Some(map) = m.form(*next).map().filter(|_| !is_rounded) else {
            return Some(Chain { rows, bufs, vars, values: *next });
        };
        let (along, to) = (Rows::of_map(map)?, m.storage(map.buf));
        if bufs.contains(&to) || rows.len() > 3 || !may_overwrite(m, &along, last, to, dims) {
            return None;
        }
        bufs.push(to);
        vars.push(rows_accessed(m, &along, &bufs, dims)?);
        rows.push(*next);
    }
}

/// Elements per reduction step of a floating-point contraction: one, or a group of bf16.
pub(super) fn part(p: &Contraction) -> Option<i64> {
    match p.product {
        ProductKind::Fma => Some(1),
        ProductKind::Dot { group, .. } if group.sum() == ElemType::F32 => Some(group.size()),
        _ => None,
    }
}

/// The contraction of kernel `k` (weights times values, with `weights` as its first operand), and its loops
/// along the rows of the scores and along its columns.
fn values_of(
    m: &Module,
    k: Kernel,
    weights: Buf,
    dims: &[Dim],
) -> Option<(Contraction, Vec<Option<Sym>>, Sym)> {
    let mut pv = m.form(k).contraction()?.clone();
    let part = part(&pv)?;
    if m.storage(pv.b.0) == weights {
        std::mem::swap(&mut pv.a, &mut pv.b);
    }
    let [(depth, keys)] = pv.reduction[..] else { return None };
    if m.storage(pv.a.0) != weights || m.storage(pv.b.0) == weights || dims.last() != Some(&(keys * part)) {
        return None;
    }
    let steps: Vec<Dim> = dims[..dims.len() - 1].iter().copied().chain([keys]).collect();
    let at = position(m, pv.a.0, &pv.a.1, &steps)?;
    let vars = row_vars(&at, &steps, &pv.loops)?;
    let (out, out_at) = pv.store()?;
    let rest: Vec<Sym> = pv.loops.iter().map(|l| l.0).filter(|s| !vars.contains(&Some(*s))).collect();
    let ([n], true) = (&rest[..], at.last()?.as_sym() == Some(depth)) else { return None };
    let n = *n;
    let columns = depends(&pv.b.1, n) && stride(m, out, &out_at, n) == Some(1);
    // A constant operand is excluded: it would be read again for every block.
    (columns && !m.is_constant(pv.b.0)).then_some((pv, vars, n))
}

/// The contraction of queries and keys that is stored to `to`, with its loops.
fn scores(m: &Module, k: Kernel, to: Buf, dims: &[Dim]) -> Option<(Contraction, Vec<Option<Sym>>, Sym)> {
    let (mut qk, at) = stored_scores(m, k, to, dims)?;
    let vars = row_vars(&at, dims, &qk.loops)?;
    let of_keys = |s: &Sym| qk.loops.iter().any(|l| l.0 == *s && Some(&l.1) == dims.last());
    let n = at.last()?.as_sym().filter(of_keys)?;
    if qk.loops.len() != vars.iter().flatten().count() + 1 || vars.contains(&Some(n)) {
        return None;
    }
    if depends(&qk.a.1, n) {
        std::mem::swap(&mut qk.a, &mut qk.b);
    }
    qk.is_only_of_b(n).then_some((qk, vars, n))
}

/// The contraction of kernel `k`, and where it stores to `to` in the shape `dims`.
fn stored_scores(m: &Module, k: Kernel, to: Buf, dims: &[Dim]) -> Option<(Contraction, Vec<Dim>)> {
    let qk = m.form(k).contraction().filter(|p| part(p).is_some())?.clone();
    if m.is_constant(qk.a.0) || m.is_constant(qk.b.0) {
        return None;
    }
    let (out, at) = qk.store().filter(|(out, _)| m.storage(*out) == to)?;
    let at = position(m, out, &at, dims)?;
    Some((qk, at))
}

/// The attention whose softmax is `k`.
pub(super) fn group(m: &Module, uses: &Uses, k: Kernel) -> Option<Group> {
    let (first, from) = scores_of(m, uses, k)?;
    let shape = m.bufs[from].dims.clone();
    let Chain { rows, bufs, vars: own, values } = chain(m, uses, k, from, &shape)?;
    let (stored, at) = stored_scores(m, first, from, &shape)?;
    let split = Split::of(&stored, &at, &shape);
    let dims = split.map_or_else(|| shape.clone(), |s| s.apply(&shape));
    let (pv, vars, n2) = values_of(m, values, *bufs.last()?, &dims)?;
    let (qk, vars1, n1) = scores(m, first, from, &dims)?;
    // Keys and values must not depend on the row loop. The loop over heads that share keys is excluded, since
    // it is short.
    let row = (0..dims.len() - 1).rev().find(|i| match (vars1[*i], vars[*i]) {
        (Some(a), Some(b)) => {
            let shared = split.is_some_and(|s| s.has(*i));
            !shared && qk.is_only_of_a(a) && !depends(&pv.b.1, b)
        }
        _ => false,
    })?;
    let of_scores = vars1.into_iter().zip(&vars).filter_map(|(from, to)| Some((from?, Dim::sym((*to)?))));
    let mut renames = vec![of_scores.collect()];
    let to = joined(&vars, split);
    renames.extend(
        own.into_iter()
            .map(|r| r.into_iter().zip(&to).filter_map(|(from, to)| Some((from?, (*to)?))).collect()),
    );
    // All calls are at the top level of the driver, so that the first ones may move down to the last.
    let called = |k: &Kernel| m.driver.iter().any(|s| matches!(s, Stmt::Call(x) if x == k));
    let top = called(&first) && called(&values) && rows.iter().all(called);
    let columns = (n1, n2);
    top.then_some(Group { scores: first, rows, values, qk, columns, pv, bufs, dims, row, vars, renames })
}
