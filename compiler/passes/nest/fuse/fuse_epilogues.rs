//! fuse_epilogues: an elementwise or permuting kernel that is the only reader of another kernel's result is
//! fused into that kernel's store. Bias, activation, residual and transposition are then computed in
//! registers.
//!
//! The producer moves down to the position of the consumer, so that all operands of the consumer are
//! available.
//!
//! Padding comes last: if the only reader of a result copies it into a padded buffer, the producer stores
//! there directly, and small kernels fill the border. Inputs are copied by a kernel without conditions.

pub mod copies;

use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Kernel, LoopKind, Module, Place, Stmt, visit};
use crate::passes::nest::analysis::form::{self, Contraction, Stored};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::{Map, Uses, cover, instance, is_temp, peel, relocate, wrap};
use crate::passes::nest::analysis::strides::unit_stride_var;
use crate::passes::nest::analysis::uses::Pending;
use crate::sym::{Dim, Sym};
use std::collections::{HashMap, HashSet};

/// Runs the pass until nothing changes.
pub fn run(m: &mut Module) -> Result<()> {
    let mut uses = Uses::new(m);
    let mut pending = Pending::new(&uses, |_| true);
    // In a straight driver, the calls are replaced at the end, all at once: each replacement costs the length
    // of the driver.
    let late = uses.is_straight()
        && !uses.is_repeated()
        && !m.driver.iter().any(|s| matches!(s, Stmt::Define { .. }));
    let mut gone: HashSet<Kernel> = HashSet::new();
    while let Some(c) = pending.pop(&uses) {
        let Some(plan) = candidate(m, &uses, c) else { continue };
        let p = plan.producer;
        let mut bufs: Vec<Buf> = uses.accesses(p).chain(uses.accesses(c)).collect();
        fuse(m, plan, c);
        if late {
            gone.insert(p);
            uses.apply(m, &[c], &[(p, &[])]);
        } else {
            visit::drop_calls(&mut m.driver, &|k| k == p);
            uses.update(m, &[c], &[(p, &[])]);
        }
        bufs.extend(uses.accesses(c));
        // A consumer must be re-examined if readers or writers of its operands change.
        for b in bufs {
            if let [reader] = uses.readers(b) {
                pending.push(*reader);
            }
        }
        pending.push(c);
        pending.push_refused(&uses);
    }
    visit::drop_calls(&mut m.driver, &|k| gone.contains(&k));
    copies::run(m, &mut uses);
    let mut put: HashMap<Kernel, Vec<Stmt>> = HashMap::new();
    for c in uses.order.clone() {
        if let Some(p) = padding(m, &uses, c) {
            let users = p.users.clone();
            let calls = store_inside(m, p, c);
            let sides = visit::calls(&calls);
            if late {
                put.insert(c, calls);
                uses.apply(m, &users, &[(c, &sides)]);
            } else {
                visit::splice_call(&mut m.driver, c, false, calls);
                uses.update(m, &users, &[(c, &sides)]);
            }
        }
    }
    if !put.is_empty() {
        let replaced = |s: Stmt| match &s {
            Stmt::Call(k) => put.remove(k).unwrap_or_else(|| vec![s]),
            _ => vec![s],
        };
        m.driver = std::mem::take(&mut m.driver).into_iter().flat_map(replaced).collect();
    }
    Ok(())
}

struct Plan {
    producer: Kernel,
    /// The producer's result.
    buf: Buf,
    /// For each loop of the consumer: its value at the producer's store.
    subst: HashMap<Sym, Dim>,
    /// Where the consumer's result is stored then.
    to: Vec<Dim>,
}

fn candidate(m: &Module, uses: &Uses, c: Kernel) -> Option<Plan> {
    let map = m.form(c).map()?;
    if map.value.size() > 80 {
        return None;
    }
    let mut found = None;
    for b in visit::loads(&m.kernels[c].body) {
        let t = m.storage(b);
        if !is_temp(m, t) || uses.readers(t) != [c] || uses.pinned(t) {
            continue;
        }
        let [p] = uses.writers(t) else { continue };
        if *p == c || !uses.may_move(m, *p, c) {
            continue;
        }
        if let Some(plan) = plan(m, *p, c, t) {
            // The latest producer moves the shortest distance.
            let at = uses.place(*p);
            if found.as_ref().is_none_or(|(best, _)| *best < at) {
                found = Some((at, plan));
            }
        }
    }
    found.map(|f| f.1)
}

/// Where a kernel stores its result.
struct Stores {
    /// The position.
    at: Vec<Dim>,
    /// The loops around the store.
    loops: Vec<(Sym, Dim)>,
    /// The number of rows, if sequential loops over a row contain the store.
    rows: Option<Dim>,
}

/// Where the kernel stores its result `t`, if it computes each element once, directly inside its parallel
/// loops or in the last loops of a row, and nothing else. Maps are left to the inliner.
fn only_store(m: &Module, p: Kernel, t: Buf) -> Option<Stores> {
    let (mut loops, body) = form::par_loops(&m.kernels[p].body);
    let row = body.last().and_then(form::seq_loops);
    let rows = row.is_some().then(|| Dim::product(loops.iter().map(|l| l.1)));
    let (own, inside) = row.unwrap_or((vec![], body));
    let Stored { before, buf, at, .. } = form::stored(inside)?;
    loops.extend(own);
    let suits = match rows {
        Some(_) => form::is_straight(before) && visit::stores(body).len() == 1,
        None => !before.is_empty(),
    };
    if buf != t || !suits || visit::loads(body).iter().any(|b| m.storage(*b) == t) {
        return None;
    }
    form::digits(m, t, at, &loops).map(|_| Stores { at: at.to_vec(), loops, rows })
}

fn plan(m: &Module, p: Kernel, c: Kernel, t: Buf) -> Option<Plan> {
    let Stores { at, loops, rows } = only_store(m, p, t)?;
    let map = m.form(c).map()?;
    // Storing small types rounds or wraps, which the consumer must observe.
    if m.bufs[t].ty.is_small() {
        return None;
    }
    // Tiles support no indices from memory.
    let looks_up = map.value.any(&mut |e| matches!(e, Expr::With { .. }));
    if let Some(c) = m.form(p).contraction()
        && (looks_up || m.bufs[c.a.0].ty.is_int() && resamples(m, map))
    {
        return None;
    }
    // Vectors of 64-bit elements have half as many lanes, and those of the producer would be halved, too.
    let long = |k: Kernel| lanes64::has(m, &m.kernels[k].body);
    if long(c) && !long(p) {
        return None;
    }
    // All loads of the result must have one position, and that position must be a bijection of the consumer's
    // loops.
    let mut access: Option<(Buf, Vec<Dim>)> = None;
    let mut one = true;
    map.value.walk(&mut |e| {
        if let Expr::Load { buf, at } = e
            && m.storage(*buf) == t
        {
            match &access {
                None => access = Some((*buf, at.clone())),
                Some((b, a)) => one &= b == buf && a == at,
            }
        }
    });
    let (view, index) = access.filter(|a| one && !m.is_recast(a.0))?;
    // The load must cover the view: each loop occurs once.
    cover(m, view, &index, &map.loops)?;
    let position = if view == t { at.clone() } else { relocate(m, &m.bufs[t].dims, &at, &m.bufs[view].dims) };
    let subst: HashMap<Sym, Dim> =
        index.iter().zip(&position).filter_map(|(i, d)| i.as_sym().map(|s| (s, *d))).collect();
    let to: Vec<Dim> =
        map.at.iter().map(|d| m.syms.simplify(d.subst(&mut |s| subst.get(&s).copied()))).collect();
    if let Some(rows) = rows {
        // The loop over the row would wait for the latency of elementary functions.
        let waits = map.value.any(&mut |e| matches!(e, Expr::Un(op, x) if op.is_elementary(m.type_of(x))));
        let along = view == t && runs_along(m, (t, &at), (map.buf, &to), (&loops, rows));
        if waits || looks_up || !along || leaves_image(m, p, map.buf) {
            return None;
        }
    }
    if let Some(c) = m.form(p).contraction() {
        let (from, to) = ((t, at.as_slice()), (map.buf, to.as_slice()));
        if worsens_columns(m, c, from, to) || splits_vectors(m, c, from, to) {
            return None;
        }
    }
    // Conditions of the consumer on its position become conditions in the producer, which are expressions.
    Some(Plan { producer: p, buf: t, subst, to })
}

/// True if a map reads elements at distances that vary along the rows of its result. Vectors of a map permute
/// what they load; tiles of a contraction of integers, whose columns lie along these rows, would not be vectors.
fn resamples(m: &Module, map: &Map) -> bool {
    let Some(row) = unit_stride_var(m, map.buf, &map.at, &map.loops) else { return false };
    map.value.any(&mut |e| matches!(e, Expr::Load { buf, at } if m.linear(*buf, at).linear_in(row).is_none()))
}

/// True if the consumer stores along the row as the producer does, and threads have rows to share: the
/// consumer alone may have more tasks.
fn runs_along(
    m: &Module,
    (t, at): (Buf, &[Dim]),
    (result, to): (Buf, &[Dim]),
    (loops, rows): (&[(Sym, Dim)], Dim),
) -> bool {
    const ROWS: i64 = 4;
    let row = unit_stride_var(m, t, at, loops);
    row.is_some() && row == unit_stride_var(m, result, to, loops) && rows.as_const().is_none_or(|n| n >= ROWS)
}

/// True if rows of an image between kernels, which may get channels innermost, would be stored to an output
/// with channels first: a map between the two orders transposes in registers.
fn leaves_image(m: &Module, p: Kernel, to: Buf) -> bool {
    let image = |b: Buf| matches!(m.bufs[m.storage(b)].place, Place::Temp) && m.bufs[b].dims.len() >= 3;
    matches!(m.bufs[m.storage(to)].place, Place::Output(_))
        && visit::loads(&m.kernels[p].body).into_iter().any(image)
}

/// True if a contraction stores its result `from` along a known number of columns, and with the consumer in
/// its store, `to`, along a run-time number (whose panels are padded and repacked), or along so few that
/// vectors are mostly empty. The consumer is then fused with its reader, or stays.
fn worsens_columns(m: &Module, c: &Contraction, from: (Buf, &[Dim]), to: (Buf, &[Dim])) -> bool {
    const LANES: i64 = 16;
    let Contraction { loops, reduction, .. } = c;
    let extent = |s: Option<Sym>| s.and_then(|s| loops.iter().find(|l| l.0 == s)).map(|l| l.1.as_const());
    let [before, after] = [from, to].map(|(buf, at)| unit_stride_var(m, buf, at, loops));
    let padded = |n: i64| (n + LANES - 1) / LANES * LANES;
    match (extent(before), extent(after)) {
        (Some(Some(_)), Some(None)) => is_temp(m, m.storage(to.0)),
        // Operands of matrix products can be swapped (`schedule/contract.rs`), those of convolutions cannot.
        // Weights in the place of rows are read in place, in pieces of a row of a tile: with one vector of
        // columns, there are few products for each.
        (Some(Some(b)), Some(Some(a))) => {
            let weights = before != after && (m.is_constant(c.a.0) || m.is_constant(c.b.0));
            let few = weights && padded(a) <= LANES;
            reduction.len() == 1 && (few || 3 * a * padded(b) < 2 * b * padded(a))
        }
        _ => false,
    }
}

/// True if the consumer splits the columns of a contraction into pieces that are not whole vectors (heads of
/// 20 elements), which a tile would store element by element.
fn splits_vectors(m: &Module, c: &Contraction, from: (Buf, &[Dim]), to: (Buf, &[Dim])) -> bool {
    const LANES: i64 = 16;
    let Some(column) = unit_stride_var(m, from.0, from.1, &c.loops) else { return false };
    let linear = m.linear(to.0, to.1);
    if linear.linear_in(column).is_some() {
        return false;
    }
    let mut whole = true;
    linear
        .divisions(&mut |x, y| whole &= !x.contains(column) || y.as_const().is_some_and(|y| y % LANES == 0));
    !whole
}

/// Fuses the consumer into the producer; the caller removes the consumer's call.
fn fuse(m: &mut Module, plan: Plan, c: Kernel) {
    let Some(map) = m.form(c).map().cloned() else { return };
    let producer = peel(&m.kernels[plan.producer].body);
    let subst = |s: Sym| plan.subst.get(&s).copied();
    let value = instance(m, &map.value, &subst);
    let body = stored_through(m, producer.body, (plan.buf, map.buf, &plan.to), &value);
    let loops = producer.loops;
    m.kernels[c].body = wrap(&loops, body).into();
    let name = m.kernels[plan.producer].name.clone();
    m.kernels[c].name = name;
    m.kernels[c].origin = m.kernels[plan.producer].origin.clone();
    m.kernels[c].narrow = m.kernels[plan.producer].narrow;
}

/// The statements with the consumer's `value`, stored at `to`, in place of the store to `buf`.
fn stored_through(
    m: &mut Module,
    stmts: Vec<Stmt>,
    (buf, result, to): (Buf, Buf, &[Dim]),
    value: &Expr,
) -> Vec<Stmt> {
    let mut body = vec![];
    for s in stmts {
        match s {
            Stmt::Store { buf: b, value: v, .. } if b == buf => {
                let read =
                    |m: &Module, e: &Expr| matches!(e, Expr::Load { buf: b, .. } if m.storage(*b) == buf);
                let mut loads = 0;
                value.walk(&mut |e| loads += usize::from(read(m, e)));
                let ty = m.type_of(&v);
                // For 16-bit results the consumer reads the unrounded value in the compute type.
                debug_assert_eq!(m.bufs[buf].ty.compute(), ty);
                let simple = matches!(v, Expr::Acc { .. } | Expr::Reg(_));
                let stand_in = if loads > 1 && !simple {
                    let reg = m.reg(ty);
                    body.push(Stmt::Let { reg, value: v });
                    Expr::Reg(reg)
                } else {
                    v
                };
                let value = value.clone().rewrite(&mut |e| if read(m, &e) { stand_in.clone() } else { e });
                body.push(Stmt::Store { buf: result, at: to.to_vec(), value });
            }
            Stmt::For { kind, var, lo, hi, body: inner } if visit::stores(&inner).contains(&buf) => {
                let inner = stored_through(m, inner, (buf, result, to), value);
                body.push(Stmt::For { kind, var, lo, hi, body: inner });
            }
            s => body.push(s),
        }
    }
    body
}

struct Padding {
    /// Writers and other readers of the inner image; empty if it is copied.
    users: Vec<Kernel>,
    inner: Buf,
    /// Subscripts of the copy's load, in terms of its loops over the padded buffer.
    read: Vec<Dim>,
    loops: Vec<Option<Sym>>,
    padded: Buf,
    fill: Expr,
    /// For each dimension: pad before, size inside, pad after.
    dims: Vec<(i64, Dim, Dim)>,
}

/// The kernel as a copy of an image, or of a part of it, into the middle of a padded buffer: either another
/// kernel's whole result, which that kernel then stores there, or a copy that loses its conditions.
fn padding(m: &Module, uses: &Uses, c: Kernel) -> Option<Padding> {
    let map = m.form(c).map()?;
    let cover = map.cover(m)?;
    let Expr::Select(cond, inside, fill) = &map.value else { return None };
    let (Expr::Load { buf: t, at }, Expr::Const(_)) = (&**inside, &**fill) else { return None };
    let users = users(m, uses, c, (*t, map.buf))?;
    let own = is_temp(m, map.buf) && uses.writers(map.buf) == [c] && m.bufs[*t].ty == m.bufs[map.buf].ty;
    if !own || !copies::sized_before(m, map.buf, &users) {
        return None;
    }
    let dims = inside_dims(m, map.buf, cond, &cover)?;
    // The whole result, at the same positions.
    let whole = at.len() == cover.len()
        && at
            .iter()
            .zip(&cover)
            .zip(dims.iter().zip(&m.bufs[*t].dims))
            .all(|((i, s), (d, n))| d.1 == *n && *i == s.map_or(Dim::constant(0), Dim::sym) - d.0);
    if !whole && !users.is_empty() {
        return None;
    }
    Some(Padding {
        users,
        inner: *t,
        read: at.clone(),
        loops: cover,
        padded: map.buf,
        fill: (**fill).clone(),
        dims,
    })
}

/// The kernels that use the padded buffer in place of image `t`, of which kernel `c` stores a padded copy;
/// none if the image is copied. `None` where kernel `c` stays as it is.
fn users(m: &Module, uses: &Uses, c: Kernel, (t, padded): (Buf, Buf)) -> Option<Vec<Kernel>> {
    let rank = m.bufs[t].dims.len();
    let alone = |p: Kernel| p != c && uses.readers(t) == [c] && !uses.pinned(t) && uses.may_move(m, p, c);
    match (uses.writers(t), &m.bufs[t].place) {
        ([p], Place::Temp) if alone(*p) => {
            let whole = match m.form(*p).map() {
                // Kernels that only move elements are inlined into the copy (inline_producers).
                Some(map) => {
                    !matches!(map.value, Expr::Load { .. }) && map.buf == t && map.cover(m).is_some()
                }
                None => only_store(m, *p, t).is_some(),
            };
            Some(if whole { vec![*p] } else { vec![] })
        }
        // Parts of a concatenation, or images with other readers.
        ([_, ..], Place::Temp) if rank >= 4 && copies::may_use_part(m, uses, t, padded) => {
            Some(copies::users(uses, t, c))
        }
        ([_, ..], Place::Temp) if rank >= 3 => Some(vec![]),
        ([], Place::View(_)) if rank >= 3 && !m.is_recast(t) => Some(vec![]),
        ([], Place::Input(_)) => Some(vec![]),
        _ => None,
    }
}

/// For each dimension of a padded buffer: the padding before the range in which a condition on positions
/// holds, the size of that range, and the padding after it.
fn inside_dims(m: &Module, padded: Buf, cond: &Expr, cover: &[Option<Sym>]) -> Option<Vec<(i64, Dim, Dim)>> {
    let outer = &m.bufs[padded].dims;
    let mut found: Vec<(i64, Option<Dim>)> = vec![(0, None); cover.len()];
    // The dimension that a position runs along, and its offset.
    let along = |i: &Dim| {
        let (rest, from) = i.split_const();
        let k = cover.iter().position(|s| s.is_some() && *s == rest.as_sym())?;
        Some((k, -from))
    };
    let mut pending = vec![cond];
    while let Some(e) = pending.pop() {
        match e {
            Expr::Const(s) if s.bits != 0 => {}
            Expr::Bin(BinOp::And, a, b) => pending.extend([&**a, &**b]),
            Expr::Bin(op @ (BinOp::Ge | BinOp::Lt), a, b) => {
                let (Expr::Index(i), Expr::Index(n)) = (&**a, &**b) else { return None };
                let (k, before) = along(i)?;
                let lower = *op == BinOp::Ge;
                if before < 0 || lower && n.as_const() != Some(0) || !lower && found[k].1.is_some() {
                    return None;
                }
                found[k].0 = before;
                if !lower {
                    found[k].1 = Some(*n);
                }
            }
            _ => return None,
        }
    }
    let dims = found.into_iter().zip(outer).map(|((before, size), outer)| {
        let size = size.unwrap_or(*outer - before);
        let after = m.syms.simplify(*outer - size - before);
        // An image that is cropped to nothing leaves fewer rows than its pads have.
        (m.syms.is_nonneg(after) && m.syms.is_nonneg(size)).then_some((before, size, after))
    });
    dims.collect()
}

/// Performs the rewrite; returns the calls that replace the copy's: one kernel per side of the border.
fn store_inside(m: &mut Module, p: Padding, c: Kernel) -> Vec<Stmt> {
    let before: Vec<Dim> = p.dims.iter().map(|d| Dim::constant(d.0)).collect();
    copies::move_accesses(m, &p.users, (p.inner, p.padded), &before);
    let (name, origin) = (m.kernels[c].name.clone(), m.kernels[c].origin.clone());
    let mut calls = vec![];
    if p.users.is_empty() {
        let inside: Vec<Dim> = p.dims.iter().map(|d| d.1).collect();
        m.kernel(&name, &origin, |kb| {
            kb.nest(LoopKind::Par, &inside, |kb, ix| {
                let at: Vec<Dim> = ix.iter().zip(&p.dims).map(|(i, d)| *i + d.0).collect();
                let from: Vec<Dim> = p
                    .read
                    .iter()
                    .map(|d| d.subst(&mut |s| p.loops.iter().position(|l| *l == Some(s)).map(|k| at[k])))
                    .collect();
                let value = kb.load(p.inner, &from);
                kb.store(p.padded, &at, value);
            });
        });
        calls.extend(m.driver.pop());
    }
    for (k, (before, size, after)) in p.dims.iter().enumerate() {
        for (start, n) in [(Dim::constant(0), Dim::constant(*before)), (*size + *before, *after)] {
            if n.as_const() == Some(0) {
                continue;
            }
            // Sides do not overlap: earlier dimensions are restricted to the inside, later ones are complete.
            let part = |j: usize, d: &(i64, Dim, Dim)| match j.cmp(&k) {
                std::cmp::Ordering::Less => (Dim::constant(d.0), d.1),
                std::cmp::Ordering::Equal => (start, n),
                std::cmp::Ordering::Greater => (Dim::constant(0), d.1 + d.0 + d.2),
            };
            let parts: Vec<(Dim, Dim)> = p.dims.iter().enumerate().map(|(j, d)| part(j, d)).collect();
            let extents: Vec<Dim> = parts.iter().map(|x| x.1).collect();
            let id = m.kernel(&name, &origin, |kb| {
                kb.nest(LoopKind::Par, &extents, |kb, ix| {
                    let at: Vec<Dim> = ix.iter().zip(&parts).map(|(i, x)| *i + x.0).collect();
                    kb.store(p.padded, &at, p.fill.clone());
                });
            });
            calls.extend(m.driver.pop());
            m.kernels[id].name = format!("{name}.halo{}", calls.len() - usize::from(p.users.is_empty()));
        }
    }
    calls
}
