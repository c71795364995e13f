//! pair_chains: sequential kernels that are independent of each other run in parallel.
//!
//! ```text
//! par d in 0..2 { if d == 0 { chain } else { chain } }
//! ```
//!
//! A recurrence is a chain of steps, each too small for several threads. Independent chains (the two
//! directions of a bidirectional layer) become one kernel, whose iterations are one chain each. On one thread
//! they run in sequence, as before.

use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Kernel, Module, Stmt, visit};
use crate::passes::nest::analysis::cost;
use crate::passes::nest::analysis::form::Form;
use crate::passes::nest::analysis::shape::wrap;
use crate::sym::Dim;
use std::collections::{HashMap, HashSet};

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    let kernels = visit::calls(&m.driver);
    let mut gone: HashSet<Kernel> = HashSet::new();
    for k in kernels {
        if gone.contains(&k) || !is_chain(m, k) {
            continue;
        }
        let Some(group) = group(m, k).filter(|g| g.len() > 1) else { continue };
        join(m, &group);
        gone.extend(group);
    }
    Ok(())
}

fn is_chain(m: &Module, k: Kernel) -> bool {
    matches!(m.form(k), Form::Chain)
}

/// The chain `first` and those that follow it in the same straight part of the driver, provided that they
/// depend neither on each other nor on the calls between them: all can run at the position of the last one.
fn group(m: &Module, first: Kernel) -> Option<Vec<Kernel>> {
    let calls = straight(&m.driver, first)?;
    let (mut group, mut between) = (vec![first], vec![]);
    for k in calls {
        let apart = |of: &[Kernel]| of.iter().all(|o| independent(m, *o, k));
        if is_chain(m, k)
            && apart(&group)
            && group.iter().all(|g| between.iter().all(|b| independent(m, *g, *b)))
        {
            group.push(k);
        } else {
            between.push(k);
        }
        if !group.iter().all(|g| between.iter().all(|b| independent(m, *g, *b))) {
            break;
        }
    }
    Some(group)
}

/// The kernels of the calls directly following a call.
fn straight(body: &[Stmt], k: Kernel) -> Option<Vec<Kernel>> {
    match body.iter().position(|s| matches!(s, Stmt::Call(x) if *x == k)) {
        Some(i) => Some(
            body[i + 1..].iter().map_while(|s| if let Stmt::Call(k) = s { Some(*k) } else { None }).collect(),
        ),
        None => body.iter().flat_map(Stmt::bodies).find_map(|b| straight(b, k)),
    }
}

/// True if neither kernel writes a buffer that the other one reads or writes.
fn independent(m: &Module, a: Kernel, b: Kernel) -> bool {
    let bufs = |list: Vec<Buf>| -> HashSet<Buf> { list.into_iter().map(|b| m.storage(b)).collect() };
    let of = |k: Kernel| (bufs(visit::loads(&m.kernels[k].body)), bufs(visit::stores(&m.kernels[k].body)));
    let ((ra, wa), (rb, wb)) = (of(a), of(b));
    wa.is_disjoint(&rb) && wb.is_disjoint(&ra) && wa.intersection(&wb).all(|x| parts(m, a, b, *x))
}

/// True if the kernels write disjoint parts of a buffer: in some dimension their constant subscripts differ.
fn parts(m: &Module, a: Kernel, b: Kernel, buf: Buf) -> bool {
    let stores = |k: Kernel| {
        let mut all: Vec<Option<Vec<Option<i64>>>> = vec![];
        visit::each_store(&m.kernels[k].body, &mut |b, at| {
            if m.storage(b) == buf {
                all.push((b == buf).then(|| at.iter().map(|d| d.as_const()).collect()));
            }
        });
        all.into_iter().collect::<Option<Vec<_>>>()
    };
    let (Some(a), Some(b)) = (stores(a), stores(b)) else { return false };
    let at = |x: &[Option<i64>], i: usize| x.get(i).copied().flatten();
    let differ = |x: &[_], y: &[_], i: usize| at(x, i).zip(at(y, i)).is_some_and(|(x, y)| x != y);
    (0..m.bufs[buf].dims.len()).any(|i| a.iter().all(|x| b.iter().all(|y| differ(x, y, i))))
}

/// Fuses the kernels at the position of the last one.
fn join(m: &mut Module, group: &[Kernel]) {
    let Some((last, others)) = group.split_last() else { return };
    let count = Dim::from(group.len());
    // Most of the work is reductions of products at half their usual speed: each step reads all weights again
    // and depends on the previous one.
    let turns = group
        .iter()
        .filter_map(|k| cost::trip_count(&m.kernels[*k].body, &mut HashMap::new()))
        .fold(Dim::constant(0), |n, t| n + t);
    let work = (turns * 2).floor_div(4);
    let d = m.syms.loop_var("d", Dim::constant(0), count);
    let mut body: Vec<Stmt> = std::mem::take(&mut m.kernels[*last].body).into_iter().collect();
    for (i, k) in others.iter().enumerate().rev() {
        let then = std::mem::take(&mut m.kernels[*k].body).into_iter().collect();
        body = vec![Stmt::If { cond: Expr::cmp_index(BinOp::Eq, d, i as i64), then, els: body }];
    }
    m.kernels[*last].body = wrap(&[(d, count)], body).into();
    m.kernels[*last].work = work;
    visit::drop_calls(&mut m.driver, &|k| others.contains(&k));
}
