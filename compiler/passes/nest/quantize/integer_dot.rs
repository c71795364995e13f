//! integer_dot: integer contractions (see `ops/integer` for their form) by dot products of quads of bytes, of
//! words by such quads, or of pairs of words, on CPU levels that have them.
//!
//! The reduction is divided into groups along one of its loops, the *channel*. The bytes of activations and
//! of weights in a quad have the signedness that the instructions of the level require (`signs`); words hold
//! bytes of either kind.
//!
//! * The weights are constants. They become i32 elements of four bytes or two words each along the channel,
//!   filled up with zeros; from there on they are packed like any others. Where no operand is a constant a
//!   kernel before the contraction makes groups of one (`runtime`), unsigned bytes in quads of signed ones
//!   less 128, for which 128 times the sum of the activations is added again.
//! * Activations stay bytes. Those whose channel is innermost in memory, in whole quads, are read as i32
//!   where they are, through a view. Others a kernel before the contraction puts together (`gather`). For
//!   dot products of words a kernel before the contraction makes words of them (`spread`): each is read for
//!   many columns.
//! * Levels without dot products of bytes multiply words by bytes ([`DotKind::WordsByBytes`]): the weights
//!   are the same quads as on all other levels, so that an object has one copy, and tiles extend them in
//!   registers, once for all rows. Both are pairs of words where vectors run along the activations
//!   (`in_rows`), and where quads would need many zeros (`suits_pairs`).
//! * Levels that multiply matrices of bytes take eights in place of quads, as i64 elements, where there are
//!   several rows and the channel has as many. Both factors of such a product have eight bytes of a row or
//!   column side by side, which panels of eights are; of quads, they would have to be put together for every
//!   product. The other levels of such an object take eights, too, so that it has one copy of the weights:
//!   they make two vectors of quads of two of eights (`isa/aarch64/quads.rs`), which takes an instruction for
//!   each, up to 12 percent of the time of dot products. Levels of an object without matrices take quads.
//! * Activations of the other sign are stored with 128 added, or less 128 (the sign bit flipped): other
//!   readers undo that, and the contraction takes 128 times the sum of the weights from its sum, or adds it.
//!
//! Contractions without columns (depthwise convolutions) become floating-point contractions if these are
//! exact (`as_floats`): their vectors run along channels, so that there are no quads.
//!
//! All results are exact modulo 2^32, like the original sums.
//!
//! The set of contractions is decided once per module (`taken`), by `exact_sums`: it leaves these and the
//! bytes that they read alone, and converts the others to floats.

mod gather;
pub mod operands;
mod runtime;
mod signs;

use crate::diag::Result;
use crate::nest::{BinOp, Buf, DotKind, Expr, Kernel, Layout, Module, Place, Stmt, visit};
use crate::passes::nest::analysis::form::{self, ByteSum, byte_sum};
use crate::passes::nest::analysis::strides::unit_stride_var;
use crate::passes::nest::quantize::exact_sums;
use crate::sym::{Dim, Sym};
use crate::target::{Caps, Dot, Facts, Level};
use crate::tensor::{ConstData, ElemType};
use operands::{Copies, Grouped, columns};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Images of fewer channels are gathered along their rows.
const FEW: i64 = 4;
/// Minimum eights of a reduction for which padding of the last one is negligible.
const FEW_EIGHTS: i64 = 8;
/// The offset of activations of the other signedness.
const FLIP: i64 = 128;

/// A contraction that can use dot products.
struct Plan {
    c: ByteSum,
    g: Grouped,
    /// The signedness of the activations must be changed.
    flips: bool,
    /// The non-constant weights become signed bytes less 128.
    lessens: bool,
}

impl Plan {
    /// True if the activations are read in place.
    fn in_place(&self, m: &Module, scratch: &HashSet<Buf>) -> bool {
        self.g.in_place(m) && (!self.flips || scratch.contains(&m.storage(self.g.x.0)))
    }
}

/// Integer contractions of a module that stay integer on levels with dot products.
pub(crate) struct Taken {
    /// By dot products.
    pub dots: HashSet<Kernel>,
    /// As floating-point contractions that read bytes (`as_floats`), as long as their operands stay bytes:
    /// depthwise convolutions.
    pub windows: HashSet<Kernel>,
}

/// What dot products do in a module; nothing if no contraction takes them.
pub(crate) fn taken(m: &Module, caps: Caps) -> Taken {
    let mut t = Taken { dots: HashSet::new(), windows: HashSet::new() };
    for (k, c) in contractions(m) {
        if plan(m, k, &c, caps).is_some() {
            t.dots.insert(k);
        } else if window(m, k, &c, caps.dot).is_some() {
            t.windows.insert(k);
        }
    }
    if t.dots.is_empty() {
        t.windows.clear();
    }
    t
}

/// True if a level's dot products apply to the module.
pub fn suit(m: &Module, facts: &Facts) -> bool {
    contractions(m).iter().any(|(k, c)| plan(m, *k, c, facts.caps).is_some())
}

/// Levels with equal variants share a module from `exact_sums` on: those with the same dot products, if these
/// apply at all.
pub fn variant(m: &Module, facts: &Facts) -> u32 {
    match facts.caps.dot {
        Dot::None => 0,
        _ if !suit(m, facts) => 0,
        Dot::Pairs => 1,
        Dot::Quads => 2,
        Dot::QuadsInWords | Dot::QuadsOfOneSign => 3,
        Dot::QuadsOfAnySign => 4,
    }
}

fn contractions(m: &Module) -> Vec<(Kernel, ByteSum)> {
    operands::kernels(m).into_iter().filter_map(|k| Some((k, byte_sum(m, &m.kernels[k].body)?))).collect()
}

fn plan(m: &Module, k: Kernel, c: &ByteSum, caps: Caps) -> Option<Plan> {
    let dot = caps.dot;
    let of = |w: Buf, x: Buf| signs::of_constant(m, dot, x, w);
    let (x, w, way) = match (of(c.a.0, c.b.0), of(c.b.0, c.a.0)) {
        (_, Some(way)) => (&c.a, &c.b, way),
        (Some(way), None) => (&c.b, &c.a, way),
        _ => return runtime::plan(m, k, c, dot),
    };
    let find = |group| Grouped::find(m, k, (c.acc, &c.reduction), (x, w), group);
    let mut quads = find(way.group)?;
    if quads.group == DotKind::WordsByBytes
        && let Some(pairs) = find(DotKind::Words)
        && (in_rows(m, k, x, w) || suits_pairs(m, &pairs))
    {
        quads = pairs;
    }
    let eights = way.group.doubled().filter(|_| caps.eights && has_rows(m, k, x, w));
    let g = eights.and_then(find).filter(|g| fills(m, g, &quads)).unwrap_or(quads);
    Some(Plan { c: c.clone(), g, flips: way.flips, lessens: false })
}

/// True if adjacent results have the same weights: vectors run along the activations.
fn in_rows(m: &Module, k: Kernel, x: &(Buf, Vec<Dim>), w: &(Buf, Vec<Dim>)) -> bool {
    let (loops, inner) = form::par_loops(&m.kernels[k].body);
    let next = form::first_store(inner).and_then(|(buf, at)| unit_stride_var(m, buf, &at, &loops));
    next.is_some_and(|v| form::depends(&x.1, v) && !form::depends(&w.1, v))
}

/// True if quads of words need more zeros than pairs, and those take more time than what else pairs cost:
/// none if they are read in place, single bytes if they are not adjacent, rows of bytes else.
fn suits_pairs(m: &Module, pairs: &Grouped) -> bool {
    let padded = |size: i64| ((pairs.extent + size - 1) / size * size) as f64;
    let most = match (pairs.in_place(m), operands::is_innermost(m, (pairs.x.0, pairs.of_x))) {
        (true, _) => 17.0 / 16.0,
        (false, false) => 5.0 / 4.0,
        (false, true) => 3.0 / 2.0,
    };
    padded(4) > padded(2) * most
}

/// True if several rows of results have the same weights.
fn has_rows(m: &Module, k: Kernel, x: &(Buf, Vec<Dim>), w: &(Buf, Vec<Dim>)) -> bool {
    let own = |l: &(Sym, Dim)| form::depends(&x.1, l.0) && !form::depends(&w.1, l.0);
    form::par_loops(&m.kernels[k].body).0.iter().any(|l| own(l) && l.1.as_const() != Some(1))
}

/// True if eights pad the reduction little more than quads, and copy nothing that quads read in place.
fn fills(m: &Module, eights: &Grouped, quads: &Grouped) -> bool {
    let whole = eights.extent % eights.group.size() == 0;
    let few = eights.extent < FEW_EIGHTS * eights.group.size();
    (whole || !few) && (eights.in_place(m) || !quads.in_place(m))
}

/// Runs the pass. Accumulators of contractions that become floating-point get their range
/// ([`crate::nest::RegData::whole`]).
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    let dot = level.facts.caps.dot;
    if dot == Dot::None {
        return Ok(());
    }
    let mut plans: Vec<(Kernel, Plan)> = vec![];
    let mut windows: Vec<(Kernel, ByteSum)> = vec![];
    // Contractions that intermediate passes have changed too much.
    let mut others: Vec<(Kernel, ByteSum)> = vec![];
    for (k, c) in contractions(m) {
        match plan(m, k, &c, level.facts.caps) {
            Some(p) => plans.push((k, p)),
            None if window(m, k, &c, dot).is_some() => windows.push((k, c)),
            None => others.push((k, c)),
        }
    }
    exact_sums::copied(m, &others);
    let scratch = exact_sums::scratch(m);
    // Operands that are read in place. If readers require different signedness, those that require the other
    // one read copies.
    let here = |p: &Plan| p.in_place(m, &scratch);
    let as_it_is: HashSet<Buf> =
        plans.iter().filter(|(_, p)| !p.flips && here(p)).map(|(_, p)| m.storage(p.g.x.0)).collect();
    let in_place: Vec<bool> =
        plans.iter().map(|(_, p)| here(p) && !(p.flips && as_it_is.contains(&m.storage(p.g.x.0)))).collect();
    let flipped: HashSet<Buf> = plans
        .iter()
        .zip(&in_place)
        .filter(|((_, p), here)| **here && p.flips)
        .map(|((_, p), _)| m.storage(p.g.x.0))
        .collect();
    // The types of the activations before their signedness is changed.
    let unsigned: Vec<bool> = plans.iter().map(|(_, p)| m.bufs[p.g.x.0].ty == ElemType::U8).collect();
    images_of_few_channels(m, &plans, &in_place);
    // Copies in groups, of the same and of the other signedness.
    let mut copies: HashMap<(DotKind, bool), Copies> = HashMap::new();
    let mut made = [(); 2].map(|()| Copies::default());
    for (((k, p), here), unsigned) in plans.iter().zip(&in_place).zip(&unsigned) {
        let x = (p.g.x.0, p.g.of_x);
        let mut copy = |m: &mut Module, group: DotKind, x, make: &dyn Fn(&mut Module) -> (Kernel, Buf)| {
            copies.entry((group, p.flips)).or_default().get(m, *k, x, make)
        };
        let groups = match (here, p.g.group) {
            (true, DotKind::Words) => copy(m, DotKind::Words, x, &|m| pairs(m, *k, p)),
            (true, DotKind::WordsByBytes) => copy(m, DotKind::WordsByBytes, x, &|m| {
                let quads = DotKind::Bytes.view(m, x);
                spread(m, *k, quads)
            }),
            (true, _) => p.g.view(m, x.0),
            (false, DotKind::WordsByBytes) => {
                let quads = copy(m, DotKind::Bytes, x, &|m| gather::gather(m, *k, p, DotKind::Bytes));
                copy(m, DotKind::WordsByBytes, (quads, x.1), &|m| spread(m, *k, quads))
            }
            (false, group) => copy(m, group, x, &|m| gather::gather(m, *k, p, group)),
        };
        contract(m, *k, p, groups, *unsigned, &mut made[usize::from(p.lessens)]);
    }
    flip(m, &flipped);
    for (k, c) in windows {
        let flipped = |b: Buf| flipped.contains(&m.storage(b));
        let (a, b) = (flipped(c.a.0), flipped(c.b.0));
        as_floats(m, k, &c, (a, b), dot);
    }
    Ok(())
}

/// A contraction without columns as a floating-point contraction.
struct Window<'a> {
    /// The image, and whether it is the second factor.
    x: &'a (Buf, Vec<Dim>),
    second: bool,
    w: &'a (Buf, Vec<Dim>),
}

/// A contraction without columns (a depthwise convolution), if every partial sum is exact in floats.
fn window<'a>(m: &Module, k: Kernel, c: &'a ByteSum, dot: Dot) -> Option<Window<'a>> {
    if columns(m, k, &c.a.1, &c.b.1) && columns(m, k, &c.b.1, &c.a.1) {
        return None;
    }
    let weights = |b: Buf| signs::are_weights(m, dot, b);
    let second = !weights(c.b.0);
    let (x, w) = if second { (&c.b, &c.a) } else { (&c.a, &c.b) };
    if !weights(w.0) || matches!(m.bufs[x.0].place, Place::Const(_)) {
        return None;
    }
    // The bytes may be offset by 128.
    c.bound(m, w, 255).filter(|s| *s <= exact_sums::EXACT)?;
    Some(Window { x, second, w })
}

/// Converts a window to a floating-point contraction: multiply-add is a single vector instruction. Bytes of
/// the image are converted when they are loaded; `flipped`: operands stored with the other signedness.
fn as_floats(m: &mut Module, k: Kernel, c: &ByteSum, flipped: (bool, bool), dot: Dot) -> Option<()> {
    let Window { x, second, w } = window(m, k, c, dot)?;
    let most = c.bound(m, w, if m.bufs[x.0].ty == ElemType::U8 { 255 } else { FLIP })?;
    let flipped = if second { flipped.1 } else { flipped.0 };
    let Place::Const(data) = &m.bufs[w.0].place else { return None };
    let values: Vec<f32> = data.to_i64s()?.into_iter().map(|v| v as f32).collect();
    let (data, name) = (ConstData::f32s(data.dims().to_vec(), &values), m.bufs[w.0].name.clone());
    let sums = flipped.then(|| depth_sums(m, c, w)).flatten();
    if flipped && sums.is_none() {
        return None;
    }
    let floats = m.constant(name, Arc::new(data));
    let sum = m.reg(ElemType::F32);
    m.regs[sum].whole = Some(most);
    let value = Expr::fma(
        form::extended(Expr::Load { buf: x.0, at: x.1.clone() }),
        Expr::Load { buf: floats, at: w.1.clone() },
        Expr::acc(sum),
    );
    let total = Expr::Cast(ElemType::I32, Box::new(Expr::acc(sum)));
    let total = match sums {
        // Undo the offset: signed bytes have 128 added, unsigned ones subtracted.
        Some(sums) if m.bufs[x.0].ty == ElemType::U8 => total - sums,
        Some(sums) => total + sums,
        None => total,
    };
    let body = std::mem::take(&mut m.kernels[k].body);
    let with = exact_sums::Rewrite {
        old: c.acc,
        new: sum,
        outer: c.reduction[0].0,
        size: c.reduction[0].1,
        value,
        total,
    };
    m.kernels[k].body = body.into_iter().map(|s| with.apply(s)).collect();
    Some(())
}

/// Gathers images of few channels along their rows.
fn images_of_few_channels(m: &mut Module, plans: &[(Kernel, Plan)], in_place: &[bool]) {
    let here: HashSet<Buf> =
        plans.iter().zip(in_place).filter(|x| *x.1).map(|x| m.storage(x.0.1.g.x.0)).collect();
    let gathered: Vec<&Plan> =
        plans.iter().zip(in_place).filter(|x| !*x.1 && x.0.1.g.extent < FEW).map(|x| &x.0.1).collect();
    if gathered.is_empty() {
        return;
    }
    for b in m.bufs.keys().collect::<Vec<_>>() {
        let d = &m.bufs[b];
        let innermost = if let Layout::Permuted(order) = &d.layout { order.last() } else { None };
        let few = innermost.and_then(|c| d.dims[*c].as_const()).is_some_and(|n| n < FEW);
        if few && !here.contains(&b) && matches!(d.ty, ElemType::U8 | ElemType::I8) {
            m.bufs[b].layout = Layout::RowMajor;
        }
    }
}

/// A kernel before `k` that extends bytes, stored as quads, to words in the order of
/// [`DotKind::WordsByBytes`].
fn spread(m: &mut Module, k: Kernel, quads: Buf) -> (Kernel, Buf) {
    let d = &m.bufs[quads];
    let (name, dims, layout) = (format!("{}.words", d.name), d.dims.clone(), d.layout.clone());
    let out = m.temp(name, ElemType::I64, dims);
    m.bufs[out].layout = layout;
    let origin = m.kernels[k].origin.clone();
    let id = m.map(out, &origin, |kb, at| {
        let number = |v: i64| Expr::int(ElemType::I64, v);
        let quad = kb.m.reg(ElemType::I64);
        let words = |e: Expr| Expr::bin(BinOp::And, e, number(0x00ff_00ff));
        let odd = words(Expr::bin(BinOp::Shr, Expr::Reg(quad), number(8)));
        Expr::Let {
            reg: quad,
            value: Box::new(Expr::Cast(ElemType::I64, Box::new(kb.load(quads, at)))),
            body: Box::new(Expr::bin(
                BinOp::Or,
                words(Expr::Reg(quad)),
                Expr::bin(BinOp::Shl, odd, number(32)),
            )),
        }
    });
    operands::before(m, k, id, "words");
    (id, out)
}

/// A kernel before `k` that extends bytes, stored as pairs, to words.
fn pairs(m: &mut Module, k: Kernel, p: &Plan) -> (Kernel, Buf) {
    let x = p.g.x.0;
    let (name, layout) = (format!("{}.{}", m.bufs[x].name, suffix(p.g.group)), m.bufs[x].layout.clone());
    let mut dims = m.bufs[x].dims.clone();
    dims[p.g.of_x] = dims[p.g.of_x].floor_div(p.g.group.size());
    let pairs = m.view_as(x, ElemType::U16, dims.clone());
    let out = m.temp(name, ElemType::I32, dims);
    m.bufs[pairs].layout = layout.clone();
    m.bufs[out].layout = layout;
    let origin = m.kernels[k].origin.clone();
    let id = m.map(out, &origin, |kb, at| {
        let (pair, value) =
            (kb.m.reg(ElemType::I32), Expr::Cast(ElemType::I32, Box::new(kb.load(pairs, at))));
        let apart = Expr::bin(
            BinOp::Or,
            Expr::Reg(pair),
            Expr::bin(BinOp::Shl, Expr::Reg(pair), Expr::int(ElemType::I32, 8)),
        );
        Expr::Let {
            reg: pair,
            value: Box::new(value),
            body: Box::new(Expr::bin(BinOp::And, apart, Expr::int(ElemType::I32, 0x00ff_00ff))),
        }
    });
    operands::before(m, k, id, suffix(p.g.group));
    (id, out)
}

/// Suffix of the names of grouped copies.
fn suffix(group: DotKind) -> &'static str {
    if group.is_bytes() { "quads" } else { "pairs" }
}

/// Rewrites the contraction to dot products of groups. `unsigned`: the original signedness of the
/// activations.
fn contract(m: &mut Module, k: Kernel, p: &Plan, groups: Buf, unsigned: bool, made: &mut Copies) {
    let constant = matches!(m.bufs[p.g.w.0].place, Place::Const(_));
    let sums = match (p.flips, constant) {
        (true, true) => depth_sums(m, &p.c, &p.g.w),
        (true, false) => Some(runtime::depth_sums(m, k, &p.c, &p.g.w)),
        _ => None,
    };
    let w = if constant {
        weights_in_groups(m, p)
    } else {
        Some(made.get(m, k, (p.g.w.0, p.g.of_w), |m| runtime::groups(m, k, p)))
    };
    let Some(w) = w.filter(|_| !p.flips || sums.is_some()) else { return };
    let mut total = Expr::acc(p.c.acc);
    if let Some(sums) = sums {
        total = if unsigned { total + sums } else { total - sums };
    }
    if p.lessens {
        total = total + runtime::depth_sums(m, k, &p.c, &p.g.x);
    }
    p.g.rewrite(m, k, (groups, w), &total);
}

/// The weights as i32 of four bytes or two words.
fn weights_in_groups(m: &mut Module, p: &Plan) -> Option<Buf> {
    let Place::Const(c) = &m.bufs[p.g.w.0].place else { return None };
    let name = m.bufs[p.g.w.0].name.clone();
    if p.g.group != DotKind::Words {
        let bytes = c.codes()?;
        return p.g.weights(m, name, &bytes, 1);
    }
    let words: Vec<u8> = c.to_i64s()?.into_iter().flat_map(|v| (v as i16).to_le_bytes()).collect();
    p.g.weights(m, name, &words, 2)
}

/// 128 times the sum of the weights over the reduction, for each result.
fn depth_sums(m: &mut Module, c: &ByteSum, w: &(Buf, Vec<Dim>)) -> Option<Expr> {
    let Place::Const(data) = &m.bufs[w.0].place else { return None };
    let (dims, name) = (data.dims().to_vec(), m.bufs[w.0].name.clone());
    let deep: Vec<bool> = w.1.iter().map(|d| c.reduction.iter().any(|v| d.contains(v.0))).collect();
    let own: Vec<i64> = dims.iter().zip(&deep).filter(|x| !x.1).map(|x| *x.0).collect();
    let mut sums = vec![0i32; own.iter().product::<i64>() as usize];
    for (i, v) in data.to_i64s()?.into_iter().enumerate() {
        let (mut rest, mut at, mut step) = (i, 0, 1);
        for (d, deep) in dims.iter().zip(&deep).rev() {
            if !deep {
                at += rest % *d as usize * step;
                step *= *d as usize;
            }
            rest /= *d as usize;
        }
        sums[at] = sums[at].wrapping_add((FLIP * v) as i32);
    }
    let sums: Vec<u8> = sums.into_iter().flat_map(i32::to_le_bytes).collect();
    let buf = m.constant(format!("{name}.sums"), Arc::new(ConstData::new(ElemType::I32, own, sums)?));
    let at = w.1.iter().zip(&deep).filter(|x| !x.1).map(|x| *x.0).collect();
    Some(Expr::Load { buf, at })
}

/// Inverts the sign bit of stored bytes: signed ones become unsigned with 128 added, unsigned ones signed
/// with 128 subtracted.
fn flip(m: &mut Module, flipped: &HashSet<Buf>) {
    // The previous types.
    let which: HashMap<Buf, ElemType> = m
        .bufs
        .keys()
        .filter(|b| flipped.contains(&m.storage(*b)))
        .filter_map(|b| Some((b, m.bufs[b].ty)).filter(|x| matches!(x.1, ElemType::I8 | ElemType::U8)))
        .collect();
    let other = |t: ElemType| if t == ElemType::I8 { ElemType::U8 } else { ElemType::I8 };
    for (b, ty) in &which {
        m.bufs[*b].ty = other(*ty);
    }
    let offset = || Expr::int(ElemType::I32, FLIP);
    let wide = |e: Expr| Expr::Cast(ElemType::I32, Box::new(e));
    for k in visit::calls(&m.driver) {
        let body = std::mem::take(&mut m.kernels[k].body);
        m.kernels[k].body = body
            .into_iter()
            .map(|s| {
                let s = s.rewrite_exprs(&mut |e| match e {
                    Expr::Load { buf, at } if let Some(ty) = which.get(&buf) => {
                        let v = wide(Expr::Load { buf, at });
                        let v = if *ty == ElemType::I8 { v - offset() } else { v + offset() };
                        Expr::Cast(*ty, Box::new(v))
                    }
                    e => e,
                });
                s.rewrite(&mut |s| match s {
                    Stmt::Store { buf, at, value } => {
                        let value = match which.get(&buf) {
                            Some(ElemType::I8) => Expr::Cast(ElemType::U8, Box::new(wide(value) + offset())),
                            Some(_) => Expr::Cast(ElemType::I8, Box::new(wide(value) - offset())),
                            None => value,
                        };
                        Stmt::Store { buf, at, value }
                    }
                    s => s,
                })
            })
            .collect();
    }
}
