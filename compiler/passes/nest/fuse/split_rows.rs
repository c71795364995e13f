//! split_rows: if a single map reads the result of a normalization of long rows, the normalization keeps only
//! the per-row values (mean, deviation), and the map computes the elements: the normalized image is neither
//! stored nor loaded.
//!
//! ```text
//! par r { s = sum x[r, ..]; f = g(s); seq i { v[r, i] = e(x[r, i], f) } }  par c, i { y[..] = h(v[c, i]) }
//! ->  par r { s = ..; f[r] = g(s) }  par c, i { y[..] = h(e(x[c, i], f[c])) }
//! ```
//!
//! The map may access the rows under another shape, in which several of its rows form one row (the channels
//! of a group). Then each of them has a copy of the values, so that vectors can run along them.

use crate::diag::Result;
use crate::nest::{Buf, Expr, Kernel, Layout, Module, Place, Scalar, Stmt, visit};
use crate::passes::nest::analysis::form::{self, Form, Part, Stored};
use crate::passes::nest::analysis::shape::{Uses, is_temp, wrap};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Elements of a row that stays in the first-level cache until it is stored: nothing to gain.
const LONG: i64 = 4096;

/// Maximum elements of a constant that is examined.
const SMALL: u64 = 1 << 16;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    let mut uses = Uses::new(m);
    for k in visit::calls(&m.driver) {
        if let Some(row) = row(m, &uses, k) {
            split(m, k, &row);
            uses.update(m, &[k, row.reader], &[]);
        }
    }
    Ok(())
}

/// A row kernel and its only reader.
struct Row {
    loops: Vec<(Sym, Dim)>,
    /// The statements before the loop over elements.
    before: Vec<Stmt>,
    /// The loops over a row.
    vars: Vec<Sym>,
    out: Buf,
    at: Vec<Dim>,
    value: Expr,
    reader: Kernel,
    /// The result as the reader accesses it, and its subscripts.
    view: Buf,
    read_at: Vec<Dim>,
    /// Dimensions before that of the rows.
    lead: usize,
    /// Rows of the reader per row.
    parts: i64,
}

fn row(m: &Module, uses: &Uses, k: Kernel) -> Option<Row> {
    let Form::RowReduction(of) = m.form(k) else { return None };
    let (Part::Each(elements), before) = of.parts.split_last()? else { return None };
    let Stored { before: [], buf: out, at, value } = form::stored(&elements.body)? else { return None };
    let (inner, data) = (&elements.loops, &m.bufs[out]);
    let before: Vec<Stmt> = before.iter().map(Part::statement).collect();
    let sums = of.elements().count() > 1 && visit::stores(&before).is_empty();
    let outer = at.len().checked_sub(inner.len()).filter(|n| *n > 0)?;
    let whole = at[outer..]
        .iter()
        .zip(&data.dims[outer..])
        .zip(inner)
        .all(|((a, d), l)| a.as_sym() == Some(l.0) && *d == l.1);
    let length = Dim::product(inner.iter().map(|l| l.1));
    let plain = length.as_const().is_none_or(|n| n >= LONG)
        && at[..outer].iter().all(|d| {
            d.as_const() == Some(0) || d.as_sym().is_some_and(|s| of.loops.iter().any(|l| l.0 == s))
        });
    let own = is_temp(m, out)
        && data.ty == ElemType::F32
        && data.layout == Layout::RowMajor
        && uses.writers(out) == [k]
        && !uses.pinned(out);
    let [reader] = *uses.readers(out) else { return None };
    if !sums || !whole || !plain || !own || !uses.may_move(m, k, reader) {
        return None;
    }
    let map = m.form(reader).map()?;
    let mut loads = vec![];
    map.value.walk(&mut |e| {
        if let Expr::Load { buf, at } = e
            && m.storage(*buf) == out
        {
            loads.push((*buf, at.clone()));
        }
    });
    let [(view, read_at)] = <[_; 1]>::try_from(loads).ok()?;
    let (dims, seen, lead) = (&data.dims, &m.bufs[view].dims, outer - 1);
    let (own_rows, rows) = (dims[lead], *seen.get(lead)?);
    let parts = match (own_rows.as_const(), rows.as_const()) {
        (Some(a), Some(b)) if a > 0 && b % a == 0 => b / a,
        _ if own_rows == rows => 1,
        _ => return None,
    };
    let same = seen[..lead] == dims[..lead]
        && m.syms.simplify(Dim::product(seen[lead + 1..].iter().copied()) * parts) == m.syms.simplify(length);
    same.then(|| Row {
        loops: of.loops.clone(),
        before,
        vars: inner.iter().map(|l| l.0).collect(),
        out,
        at: at.to_vec(),
        value: value.clone(),
        reader,
        view,
        read_at,
        lead,
        parts,
    })
}

fn split(m: &mut Module, k: Kernel, row: &Row) {
    if !fits(m, row, &row.value) {
        return;
    }
    let mut kept = vec![];
    let dims = m.bufs[row.view].dims.clone();
    let element = element(m, row, row.value.clone(), &row.read_at, &mut kept);
    let part = m.syms.loop_var("p", Dim::constant(0), Dim::constant(row.parts));
    let mut stores = vec![];
    for (i, (buf, value)) in kept.into_iter().enumerate() {
        m.bufs[buf].dims = dims[..=row.lead].to_vec();
        m.bufs[buf].name = format!("{}.row{}", m.bufs[row.out].name, i + 1);
        let mut at = row.at[..=row.lead].to_vec();
        at[row.lead] =
            at[row.lead] * row.parts + if row.parts > 1 { Dim::sym(part) } else { Dim::constant(0) };
        stores.push(Stmt::Store { buf, at, value });
    }
    let stores = if row.parts > 1 { vec![Stmt::seq(part, row.parts, stores)] } else { stores };
    m.kernels[k].body = wrap(&row.loops, row.before.iter().cloned().chain(stores).collect()).into();
    let body = std::mem::take(&mut m.kernels[row.reader].body);
    let put = |s: Stmt| {
        s.rewrite_exprs(&mut |e| match e {
            Expr::Load { buf, .. } if buf == row.view => element.clone(),
            e => e,
        })
    };
    m.kernels[row.reader].body = body.into_iter().map(put).collect();
}

/// True for expressions that depend on the row only.
fn is_of_row(row: &Row, e: &Expr) -> bool {
    let mut own = true;
    let along = |d: &Dim| row.vars.iter().any(|v| d.contains(*v));
    e.walk(&mut |e| match e {
        Expr::Load { at, .. } => own &= !at.iter().any(along),
        Expr::Index(d) => own &= !along(d),
        _ => {}
    });
    own
}

/// True if an element is a few operations on floats of its row and on elements at its own position.
fn fits(m: &Module, row: &Row, e: &Expr) -> bool {
    let mut simple = m.type_of(e) == ElemType::F32;
    e.walk(&mut |e| simple &= !matches!(e, Expr::Let { .. } | Expr::With { .. } | Expr::Text(..)));
    if !simple || is_of_row(row, e) {
        return simple;
    }
    match e {
        Expr::Load { buf, at } => {
            m.bufs[*buf].dims == m.bufs[row.out].dims && *at == row.at && m.bufs[*buf].ty == ElemType::F32
        }
        Expr::Un(_, a) => fits(m, row, a),
        Expr::Bin(_, a, b) => fits(m, row, a) && fits(m, row, b),
        Expr::Fma(a, b, c) => fits(m, row, a) && fits(m, row, b) && fits(m, row, c),
        _ => false,
    }
}

/// The value of an element at the position of the reader; subexpressions that depend on the row only are
/// stored in buffers, one each.
fn element(m: &mut Module, row: &Row, e: Expr, at: &[Dim], kept: &mut Vec<(Buf, Expr)>) -> Expr {
    if is_of_row(row, &e) {
        if let Some(c) = number(m, &e) {
            return Expr::Const(c);
        }
        let buf = m.temp("row", ElemType::F32, vec![]);
        kept.push((buf, e));
        return Expr::Load { buf, at: at[..=row.lead].to_vec() };
    }
    let mut of = |m: &mut Module, e: Box<Expr>| Box::new(element(m, row, *e, at, kept));
    let e = match e {
        Expr::Load { buf, .. } => {
            let (from, dims) = (m.storage(buf), m.bufs[row.view].dims.clone());
            let buf = if m.bufs[buf].dims == dims {
                buf
            } else if m.bufs[from].dims == dims && m.bufs[from].ty == ElemType::F32 {
                from
            } else {
                m.view(buf, dims)
            };
            Expr::Load { buf, at: at.to_vec() }
        }
        Expr::Un(op, a) => Expr::Un(op, of(m, a)),
        Expr::Bin(op, a, b) => Expr::Bin(op, of(m, a), of(m, b)),
        Expr::Fma(a, b, c) => Expr::Fma(of(m, a), of(m, b), of(m, c)),
        e => e,
    };
    crate::passes::nest::fuse::inline_producers::without_ones(e)
}

/// The value of a constant expression, or of a load from a constant whose elements are all equal.
fn number(m: &Module, e: &Expr) -> Option<Scalar> {
    match e {
        Expr::Const(c) => Some(*c),
        Expr::Load { buf, .. } => {
            let Place::Const(c) = &m.bufs[m.storage(*buf)].place else { return None };
            let all = c.to_f64s().filter(|_| c.elem() == ElemType::F32 && c.count() <= SMALL)?;
            let first = *all.first()?;
            all.iter().all(|x| x.to_bits() == first.to_bits()).then(|| Scalar::f32(first as f32))
        }
        _ => None,
    }
}
