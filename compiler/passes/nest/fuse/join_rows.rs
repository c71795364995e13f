//! join_rows: fuses kernels that compute parts of the same rows (means, deviations, and the map that uses
//! them) into one kernel over rows, in the form in which operators LayerNormalization and Softmax are
//! written. A row then stays in the first-level cache, and its reductions in registers.
//!
//! ```text
//! par r { m[r] = sum x[r, ..] }  par r { v[r] = sum (x[r, ..] - m[r])^2 }
//! par r, i { y[r, i] = f(x[r, i], m[r], v[r]) }
//! ->  par r { m = sum x[r, ..]; v = sum (x[r, ..] - m)^2; seq i { y[r, i] = f(x[r, i], m, v) } }
//! ```
//!
//! Kernels are recognised by their loops and accesses, not by the operators that they originate from.

use crate::diag::Result;
use crate::nest::{Buf, Expr, Kernel, Module, Reg, Stmt, visit};
use crate::passes::nest::analysis::form::{self, Stored};
use crate::passes::nest::analysis::machine::L2;
use crate::passes::nest::analysis::shape::{Uses, instance, is_temp, peel, wrap};
use crate::sym::{Dim, Sym};
use std::collections::HashMap;

/// Row lengths worth fusing. Longer rows leave the first-level cache and are better divided among threads; in
/// shorter ones the horizontal reductions dominate, which separate kernels overlap for several rows.
const LENGTH: std::ops::RangeInclusive<i64> = 256..=8192;
/// Elements that the second-level cache holds between kernels: nothing to gain.
const NEAR: i64 = L2 / 8;
/// Maximum kernels of a group.
const MOST: usize = 8;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    let mut uses = Uses::new(m);
    if !uses.is_straight() {
        return Ok(());
    }
    for k in visit::calls(&m.driver).into_iter().rev() {
        if uses.is_called(k)
            && let Some(group) = group(m, &uses, k)
        {
            let gone = join(m, &uses, k, group);
            let gone: Vec<(Kernel, &[Kernel])> = gone.iter().map(|k| (*k, &[][..])).collect();
            uses.update(m, &[k], &gone);
        }
    }
    Ok(())
}

/// What a kernel computes of each row.
enum Part {
    /// A number.
    Number,
    /// Elements; if they have one reader, it computes them itself.
    Elements,
}

/// A kernel over rows: its loops over rows, then those over elements, and its result.
struct Member {
    rows: Vec<(Sym, Dim)>,
    columns: Vec<(Sym, Dim)>,
    out: Buf,
    part: Part,
}

/// The kernel as a member, if it has `rows` loops over rows.
fn member(m: &Module, k: Kernel, rows: usize) -> Option<Member> {
    let (loops, inside) = form::par_loops(&m.kernels[k].body);
    let Stored { before, buf, at, .. } = form::stored(inside)?;
    let product = m.form(k).contraction().is_some_and(|c| c.a.0 != c.b.0);
    if product || loops.len() < rows || at.len() < loops.len() {
        return None;
    }
    let (own, columns) = loops.split_at(rows);
    // In memory order, rows first.
    let in_order = loops.iter().zip(at).all(|(l, d)| d.as_sym() == Some(l.0))
        && at[loops.len()..].iter().all(|d| d.as_const() == Some(0));
    let whole = loops.iter().zip(&m.bufs[buf].dims).all(|(l, d)| l.1 == *d)
        && m.bufs[buf].dims[loops.len()..].iter().all(|d| d.as_const() == Some(1));
    let part = match (before, columns) {
        ([], [_]) => Part::Elements,
        ([_, ..], []) if form::rows(inside).is_some() => Part::Number,
        _ => return None,
    };
    (in_order && whole).then(|| Member { rows: own.to_vec(), columns: columns.to_vec(), out: buf, part })
}

/// The kernels that can be fused with a map, in driver order; the map is the last.
fn group(m: &Module, uses: &Uses, last: Kernel) -> Option<Vec<(Kernel, Member)>> {
    let map = m.form(last).map()?;
    // The row loops are those of the per-row numbers that the map reads.
    let number = |b: Buf| {
        uses.writers(b).first().and_then(|w| {
            Some(form::par_loops(&m.kernels[*w].body).0.len()).filter(|n| {
                *n > 0
                    && *n < map.loops.len()
                    && matches!(member(m, *w, *n), Some(Member { part: Part::Number, .. }))
            })
        })
    };
    let rows = visit::loads(&m.kernels[last].body).into_iter().filter(|b| is_temp(m, *b)).find_map(number)?;
    let head = member(m, last, rows)?;
    let length = Dim::product(head.columns.iter().map(|c| c.1)).as_const()?;
    let all = Dim::product(map.loops.iter().map(|l| l.1)).as_const();
    if !LENGTH.contains(&length) || all.is_some_and(|n| n < NEAR) {
        return None;
    }
    let mut found = vec![(last, head)];
    loop {
        let before = found.len();
        let inputs: Vec<Buf> = found.iter().flat_map(|f| visit::loads(&m.kernels[f.0].body)).collect();
        for b in inputs {
            let ([w], true) = (uses.writers(b), is_temp(m, b) && !uses.pinned(b)) else { continue };
            if found.iter().any(|f| f.0 == *w) || found.len() == MOST {
                continue;
            }
            let Some(new) = member(m, *w, rows) else { continue };
            let extents = new.rows.iter().zip(&found[0].1.rows).all(|(a, b)| a.1 == b.1);
            let readers = uses
                .readers(b)
                .iter()
                .all(|r| found.iter().any(|f| f.0 == *r && reads_own_row(m, *r, &f.1, b, rows)));
            // A smaller type rounds or wraps, so its elements must be stored.
            let kept = m.bufs[b].ty == m.bufs[b].ty.compute();
            if extents && readers && kept && new.out == b {
                found.push((*w, new));
            }
        }
        if found.len() == before {
            break;
        }
    }
    found.sort_by_key(|f| uses.place(f.0));
    (found.iter().any(|f| matches!(f.1.part, Part::Number)) && found.last().is_some_and(|f| f.0 == last))
        .then_some(found)
}

/// True if a member accesses only its own row of a buffer.
fn reads_own_row(m: &Module, k: Kernel, member: &Member, b: Buf, rows: usize) -> bool {
    let mut own = true;
    visit::walk_exprs(&m.kernels[k].body, &mut |e| {
        if let Expr::Load { buf, at } = e
            && m.storage(*buf) == b
        {
            own &= *buf == b
                && at.len() >= rows
                && at.iter().zip(&member.rows).all(|(d, r)| d.as_sym() == Some(r.0));
        }
    });
    own
}

/// True if a buffer is read by a single load of a single member.
fn read_once(m: &Module, uses: &Uses, group: &[(Kernel, Member)], b: Buf) -> bool {
    let [reader] = uses.readers(b) else { return false };
    let mut loads = 0;
    visit::walk_exprs(&m.kernels[*reader].body, &mut |e| {
        loads += usize::from(matches!(e, Expr::Load { buf, .. } if *buf == b))
    });
    loads == 1 && group.iter().any(|g| g.0 == *reader)
}

/// What a fused kernel has computed of its row.
#[derive(Default)]
struct Computed {
    numbers: HashMap<Buf, Reg>,
    /// Elements with one reader, which computes them: their loops, and the value.
    elements: HashMap<Buf, (Vec<Sym>, Expr)>,
}

impl Computed {
    /// An expression, or the value that it loads. Subscripts begin with those of `rows` loops over rows.
    fn value(&self, m: &mut Module, e: Expr, rows: usize) -> Expr {
        let Expr::Load { buf, at } = &e else { return e };
        if let Some(r) = self.numbers.get(buf) {
            return Expr::Reg(*r);
        }
        let Some((columns, value)) = self.elements.get(buf) else { return e };
        let column = |s: Sym| columns.iter().position(|c| *c == s);
        instance(m, value, &|s| column(s).and_then(|i| at.get(rows + i).copied()))
    }
}

/// Fuses a group into one kernel; returns the removed kernels.
fn join(m: &mut Module, uses: &Uses, last: Kernel, group: Vec<(Kernel, Member)>) -> Vec<Kernel> {
    let Some(rows) = group.last().map(|g| g.1.rows.clone()) else { return vec![] };
    let mut body: Vec<Stmt> = vec![];
    let mut computed = Computed::default();
    for (k, member) in &group {
        let to = |s: Sym| {
            member.rows.iter().position(|r| r.0 == s).and_then(|i| rows.get(i)).map(|r| Dim::sym(r.0))
        };
        let inside = peel(&m.kernels[*k].body).body;
        let inside: Vec<Stmt> = inside
            .into_iter()
            .map(|s| s.subst(&|s| to(s)).rewrite_exprs(&mut |e| computed.value(m, e, rows.len())))
            .collect();
        let value = inside.last().and_then(Stmt::expr).cloned();
        match (&member.part, value) {
            (Part::Number, Some(value)) => {
                let reg = m.reg(m.bufs[member.out].ty.compute());
                computed.numbers.insert(member.out, reg);
                body.extend(inside.into_iter().filter(|s| !matches!(s, Stmt::Store { .. })));
                body.push(Stmt::Let { reg, value });
            }
            (Part::Elements, Some(value)) if *k != last && read_once(m, uses, &group, member.out) => {
                let columns = member.columns.iter().map(|c| c.0).collect();
                computed.elements.insert(member.out, (columns, value));
            }
            _ => body.extend(
                member.columns.iter().rev().fold(inside, |body, (var, hi)| vec![Stmt::seq(*var, *hi, body)]),
            ),
        }
    }
    m.kernels[last].body = wrap(&rows, body).into();
    let gone: Vec<Kernel> = group.iter().map(|g| g.0).filter(|k| *k != last).collect();
    visit::drop_calls(&mut m.driver, &|k| gone.contains(&k));
    gone
}
