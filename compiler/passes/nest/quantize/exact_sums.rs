//! exact_sums: integer contractions (see `ops/integer` for their form) whose accumulators stay below 2^24 are
//! computed in f32.
//!
//! Every partial sum of integers up to 2^24 in magnitude is exact in f32, in any order: the result is
//! bit-identical, and the contraction uses the register tiles of floats. Its accumulator is marked
//! (`RegData::whole`), so that passes that replace sums of products by other algorithms leave it alone. The
//! bound is computed from the weights: the sum of their magnitudes for each result, times the largest
//! magnitude of the other operand's type. If it is exceeded, the reduction is divided into parts, separate
//! kernels compute the partial sums, and these are added as integers.
//!
//! 8-bit integers in scratch become floats, too: all of them are exact, the conversions between operators
//! cancel, and the remaining ones have vector forms. Buffers that must stay bytes (inputs, buffers that the
//! driver reads, views of other types) are converted by a kernel before the contraction. Contractions beyond
//! the bound stay integer.
//!
//! On levels with integer dot products, contractions that can use these stay integer (`integer_dot::taken`),
//! and scratch stays bytes except for buffers that only other contractions read.

use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Kernel, Layout, LoopKind, Module, Place, Reg, Scalar, Stmt, visit};
use crate::passes::nest::analysis::form::{ByteSum, byte_sum, first_store, par_loops};
use crate::passes::nest::quantize::integer_dot::operands::{self, Copies};
use crate::passes::nest::quantize::integer_dot::{self, Taken};
use crate::sym::{Dim, Sym};
use crate::target::{Dot, Level};
use crate::tensor::{ConstData, ElemType};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Name of the pass.
pub const NAME: &str = "exact_sums";
/// Integers up to this magnitude are exact in f32.
pub(crate) const EXACT: i64 = 1 << 24;
/// Maximum number of parts that justifies their partial results.
const MOST_PARTS: i64 = 8;

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    let kernels = visit::calls(&m.driver);
    let dot = level.facts.caps.dot;
    let taken = (dot != Dot::None).then(|| integer_dot::taken(m, level.facts.caps));
    // The kernels are read as they were before the types change.
    let all: Vec<(Kernel, ByteSum)> = operands::kernels(m)
        .into_iter()
        .filter_map(|k| Some((k, byte_sum(m, &m.kernels[k].body)?)))
        .collect();
    let floats = as_floats_from_now_on(m, &all, taken.as_ref());
    let types: HashMap<Buf, ElemType> =
        m.bufs.keys().filter(|b| floats.contains(&m.storage(*b))).map(|b| (b, m.bufs[b].ty)).collect();
    let keeps = |k: &Kernel, c: &ByteSum| match &taken {
        Some(t) => {
            t.dots.contains(k) || t.windows.contains(k) && !c.operands().iter().any(|b| types.contains_key(b))
        }
        None => false,
    };
    let exact: Vec<(Kernel, ByteSum, i64)> = all
        .into_iter()
        .filter(|(k, c)| !keeps(k, c))
        .filter_map(|(k, c)| c.parts(m).map(|parts| (k, c, parts)))
        .collect();
    if exact.is_empty() {
        return Ok(());
    }
    for b in types.keys() {
        m.bufs[*b].ty = ElemType::F32;
    }
    let mut made = Floats::default();
    for (k, c, parts) in &exact {
        as_floats(m, *k, c, *parts, &mut made);
    }
    for k in kernels {
        let body = std::mem::take(&mut m.kernels[k].body);
        m.kernels[k].body = body
            .into_iter()
            .map(|s| {
                s.rewrite_exprs(&mut |e| simplify(m, &types, e)).rewrite(&mut |s| match s {
                    Stmt::Store { buf, at, value } if types.contains_key(&buf) => {
                        Stmt::Store { buf, at, value: as_float(&types, value) }
                    }
                    s => s,
                })
            })
            .collect();
    }
    Ok(())
}

/// Scratch that becomes floating-point: all of it, or on levels with dot products the buffers that only
/// floating-point contractions read.
fn as_floats_from_now_on(m: &Module, all: &[(Kernel, ByteSum)], taken: Option<&Taken>) -> HashSet<Buf> {
    let candidates = scratch(m);
    let Some(t) = taken.filter(|t| !t.dots.is_empty()) else { return candidates };
    let read = |which: &dyn Fn(&Kernel, &ByteSum) -> bool| -> HashSet<Buf> {
        all.iter()
            .filter(|(k, c)| which(k, c))
            .flat_map(|(_, c)| c.operands())
            .map(|b| m.storage(b))
            .collect()
    };
    let bytes = read(&|k, _| t.dots.contains(k));
    let wanted = read(&|k, c| !t.dots.contains(k) && !t.windows.contains(k) && c.parts(m).is_some());
    candidates.into_iter().filter(|b| wanted.contains(b) && !bytes.contains(b)).collect()
}

/// Converts the contractions to exact sums with copies of their operands as floats; nothing else changes.
pub(crate) fn copied(m: &mut Module, contractions: &[(Kernel, ByteSum)]) {
    let mut made = Floats::default();
    for (k, c) in contractions {
        if let Some(parts) = c.parts(m) {
            as_floats(m, *k, c, parts, &mut made);
        }
    }
}

/// Operands as floats.
#[derive(Default)]
struct Floats {
    constants: HashMap<Buf, Buf>,
    copies: Copies,
}

impl Floats {
    /// A buffer with the values of `b` for contraction `k`: `b` itself if it holds floats.
    fn of(&mut self, m: &mut Module, k: Kernel, b: Buf) -> Option<Buf> {
        if m.bufs[b].ty == ElemType::F32 {
            return Some(b);
        }
        let own = m.storage(b) == b && m.bufs[b].layout == Layout::RowMajor;
        let (Place::Const(data), true) = (&m.bufs[b].place, own) else {
            return Some(self.copies.get(m, k, (b, 0), |m| copy(m, k, b)));
        };
        if let Some(f) = self.constants.get(&b) {
            return Some(*f);
        }
        let values: Vec<f32> = data.to_i64s()?.into_iter().map(|v| v as f32).collect();
        let data = Arc::new(ConstData::f32s(data.dims().to_vec(), &values));
        let name = m.bufs[b].name.clone();
        let f = m.constant(name, data);
        self.constants.insert(b, f);
        Some(f)
    }
}

/// A kernel before `k` that converts bytes to floats.
fn copy(m: &mut Module, k: Kernel, b: Buf) -> (Kernel, Buf) {
    let (name, dims, layout) =
        (format!("{}.f32", m.bufs[b].name), m.bufs[b].dims.clone(), m.bufs[b].layout.clone());
    let out = m.temp(name, ElemType::F32, dims);
    m.bufs[out].layout = layout;
    let origin = m.kernels[k].origin.clone();
    let id = m.map(out, &origin, |kb, at| crate::passes::nest::analysis::form::extended(kb.load(b, at)));
    operands::before(m, k, id, "f32");
    (id, out)
}

/// Temporaries of 8-bit integers that kernels access element by element.
pub(crate) fn scratch(m: &Module) -> HashSet<Buf> {
    let mut out: HashSet<Buf> = m
        .bufs
        .keys()
        .filter(|b| {
            matches!(m.bufs[*b].place, Place::Temp) && matches!(m.bufs[*b].ty, ElemType::U8 | ElemType::I8)
        })
        .collect();
    for b in m.bufs.keys().filter(|b| m.is_recast(*b)) {
        out.remove(&m.storage(b));
    }
    for s in m.driver.iter().filter(|s| !matches!(s, Stmt::Call(_))) {
        let mut driver = vec![];
        visit::walk(std::slice::from_ref(s), &mut |s| driver.extend(s.writes().into_iter().chain(s.loads())));
        for b in driver {
            out.remove(&m.storage(b));
        }
    }
    out
}

/// The largest magnitude of an 8-bit type.
fn magnitude(t: ElemType) -> i64 {
    if t == ElemType::U8 { 255 } else { 128 }
}

impl ByteSum {
    /// The number of equal parts of the outermost reduction loop for which each partial sum is exact; `None`
    /// if there is none.
    fn parts(&self, m: &Module) -> Option<i64> {
        let outer = self.reduction[0].1.as_const();
        (1..=MOST_PARTS).find(|n| (*n == 1 || outer.is_some_and(|e| e % n == 0)) && self.is_exact(m, *n))
    }
    fn is_exact(&self, m: &Module, parts: i64) -> bool {
        let terms = self.reduction.iter().try_fold(1i64, |n, d| n.checked_mul(m.syms.range(d.1).hi?));
        let (ma, mb) = (magnitude(m.bufs[self.a.0].ty), magnitude(m.bufs[self.b.0].ty));
        let by_types = terms.and_then(|n| n.checked_mul(ma * mb)).map(|n| n / parts);
        let by_weights =
            |w: &(Buf, Vec<Dim>), other: i64| self.weight_sum(m, w, parts).and_then(|s| s.checked_mul(other));
        [by_types, by_weights(&self.b, ma), by_weights(&self.a, mb)].into_iter().flatten().any(|s| s <= EXACT)
    }
    /// The largest magnitude of a sum, given constant weights `w` and an operand of magnitudes up to `other`.
    pub(crate) fn bound(&self, m: &Module, w: &(Buf, Vec<Dim>), other: i64) -> Option<i64> {
        self.weight_sum(m, w, 1)?.checked_mul(other)
    }
    /// The buffers of the two factors.
    fn operands(&self) -> [Buf; 2] {
        [self.a.0, self.b.0]
    }
    /// The maximum over all results of the sum of magnitudes of a constant operand, for one part of the
    /// reduction.
    fn weight_sum(&self, m: &Module, (buf, at): &(Buf, Vec<Dim>), parts: i64) -> Option<i64> {
        let (Place::Const(c), Layout::RowMajor) = (&m.bufs[*buf].place, &m.bufs[*buf].layout) else {
            return None;
        };
        // Dimensions that the reduction runs over are summed completely, which is an upper bound.
        let summed: Vec<bool> = at.iter().map(|d| self.reduction.iter().any(|s| d.contains(s.0))).collect();
        let dims = c.dims();
        // Parts divide the dimension of the outermost loop.
        let divided = at.iter().position(|d| d.as_sym() == Some(self.reduction[0].0));
        let size = match (parts, divided) {
            (1, _) => i64::MAX,
            (n, Some(d)) => dims[d] / n,
            _ => return None,
        };
        let mut sums: HashMap<i64, i64> = HashMap::new();
        for (i, v) in c.to_i64s()?.into_iter().enumerate() {
            let (mut rest, mut key, mut step) = (i, 0i64, 1i64);
            for (d, n) in dims.iter().enumerate().rev() {
                let n = *n as usize;
                let own = if summed[d] {
                    (Some(d) == divided && parts > 1).then(|| ((rest % n) as i64 / size, parts))
                } else {
                    Some(((rest % n) as i64, n as i64))
                };
                if let Some((i, n)) = own {
                    key += i * step;
                    step *= n;
                }
                rest /= n;
            }
            *sums.entry(key).or_default() += v.abs();
        }
        // The reduction may access an element repeatedly only if a dimension has a compound subscript.
        let once = self.reduction.iter().all(|(s, _)| at.iter().any(|d| d.as_sym() == Some(*s)));
        once.then(|| sums.into_values().max().unwrap_or(0))
    }
}

/// The contraction with floating-point operands; the epilogue converts the accumulator to an integer.
fn as_floats(m: &mut Module, k: Kernel, c: &ByteSum, parts: i64, made: &mut Floats) {
    let (Some(a), Some(b)) = (made.of(m, k, c.a.0), made.of(m, k, c.b.0)) else { return };
    let product = Product { a: (a, c.a.1.clone()), b: (b, c.b.1.clone()) };
    let (outer, extent) = c.reduction[0];
    let size = if parts == 1 { extent } else { extent.floor_div(parts) };
    // Each part except the last has a buffer with the shape of the result.
    let sums: Vec<(Buf, Vec<Dim>)> =
        (0..parts - 1).filter_map(|i| partial(m, k, c, &product, (size * i, size))).collect();
    if parts > 1 {
        m.syms.set_loop_range(outer, Dim::constant(0), size);
    }
    let sum = m.reg(ElemType::F32);
    m.regs[sum].whole = Some(EXACT);
    let value = product.value(sum, &|s| (s == outer && parts > 1).then(|| size * (parts - 1) + outer));
    let as_int = |e: Expr| Expr::cast(ElemType::F32, ElemType::I32, e);
    let total =
        sums.iter().fold(as_int(Expr::acc(sum)), |t, (buf, at)| t + Expr::Load { buf: *buf, at: at.clone() });
    let with = Rewrite { old: c.acc, new: sum, outer, size, value, total };
    let body = std::mem::take(&mut m.kernels[k].body);
    m.kernels[k].body = body.into_iter().map(|s| with.apply(s)).collect();
}

struct Product {
    a: (Buf, Vec<Dim>),
    b: (Buf, Vec<Dim>),
}

impl Product {
    fn value(&self, sum: Reg, at: &dyn Fn(Sym) -> Option<Dim>) -> Expr {
        let load = |x: &(Buf, Vec<Dim>)| Expr::Load {
            buf: x.0,
            at: x.1.iter().map(|d| d.subst(&mut |s| at(s))).collect(),
        };
        Expr::fma(load(&self.a), load(&self.b), Expr::acc(sum))
    }
}

/// A kernel before `k` that computes a partial sum of `size` terms from `from` on; returns its buffer, and
/// the position of each result there.
fn partial(
    m: &mut Module,
    k: Kernel,
    c: &ByteSum,
    product: &Product,
    (from, size): (Dim, Dim),
) -> Option<(Buf, Vec<Dim>)> {
    let (loops, inside) = par_loops(&m.kernels[k].body);
    let (result, at) = first_store(inside)?;
    let (name, origin) = (m.kernels[k].name.clone(), m.kernels[k].origin.clone());
    let dims = m.bufs[result].dims.clone();
    let out = m.temp(format!("{name}.part"), ElemType::I32, dims);
    let extents: Vec<Dim> = loops.iter().map(|l| l.1).collect();
    let depth: Vec<Dim> = [size].into_iter().chain(c.reduction[1..].iter().map(|d| d.1)).collect();
    let id = m.kernel(&name, &origin, |kb| {
        kb.nest(LoopKind::Par, &extents, |kb, ix| {
            let outside = |s: Sym| loops.iter().position(|l| l.0 == s).map(|i| ix[i]);
            let acc = kb.acc(Expr::f32(0.0));
            kb.m.regs[acc].whole = Some(EXACT);
            kb.nest(LoopKind::Seq, &depth, |kb, r| {
                let inside = |s: Sym| {
                    c.reduction.iter().position(|d| d.0 == s).map(|i| if i == 0 { r[0] + from } else { r[i] })
                };
                let v = product.value(acc, &|s| outside(s).or_else(|| inside(s)));
                kb.set(acc, v);
            });
            let to: Vec<Dim> = at.iter().map(|d| d.subst(&mut |s| outside(s))).collect();
            kb.store(out, &to, Expr::cast(ElemType::F32, ElemType::I32, Expr::acc(acc)));
        });
    });
    m.kernels[id].name = format!("{name}.part");
    // The call was appended to the driver.
    let call = m.driver.pop()?;
    visit::splice_call(&mut m.driver, k, true, vec![call]).then_some((out, at))
}

/// A rewrite of the accumulator.
pub(crate) struct Rewrite {
    pub old: Reg,
    pub new: Reg,
    /// The outermost reduction loop and its new bound.
    pub outer: Sym,
    pub size: Dim,
    /// The value added in a step, and the expression that replaces the accumulator in the epilogue.
    pub value: Expr,
    pub total: Expr,
}

impl Rewrite {
    pub fn apply(&self, s: Stmt) -> Stmt {
        match s {
            Stmt::Acc { reg, .. } if reg == self.old => {
                Stmt::Acc { reg: self.new, lanes: 1, shape: vec![], init: Scalar::f32(0.0).into() }
            }
            Stmt::Set { reg, .. } if reg == self.old => {
                Stmt::Set { reg: self.new, at: vec![], value: self.value.clone() }
            }
            Stmt::For { kind, var, lo, hi, body } => {
                let hi = if var == self.outer { self.size } else { hi };
                Stmt::For { kind, var, lo, hi, body: body.into_iter().map(|s| self.apply(s)).collect() }
            }
            s => s.rewrite_exprs(&mut |e| match e {
                Expr::Acc { reg, .. } if reg == self.old => self.total.clone(),
                e => e,
            }),
        }
    }
}

/// Rewrites loads of converted buffers and the conversions around them. Operands come first: `e` has been
/// rewritten inside.
fn simplify(m: &Module, types: &HashMap<Buf, ElemType>, e: Expr) -> Expr {
    match e {
        // Contractions rewritten above read floats already; all other loads still have the previous type.
        Expr::Load { buf, at } => match types.get(&buf) {
            Some(t) => Expr::cast(ElemType::F32, *t, Expr::Load { buf, at }),
            None => Expr::Load { buf, at },
        },
        // The loads of a contraction are floats: their conversion was inserted above.
        Expr::Fma(a, b, c) => Expr::Fma(Box::new(bare(types, *a)), Box::new(bare(types, *b)), c),
        Expr::Cast(to @ (ElemType::F32 | ElemType::I32), x) => match m.type_of(&x) {
            ElemType::U8 | ElemType::I8 => from_float(to, as_float(types, *x)),
            ElemType::I32 if to == ElemType::F32 => match *x {
                Expr::Cast(ElemType::I32, y) if is_stored(types, &y) => *y,
                x => Expr::Cast(to, Box::new(x)),
            },
            _ => Expr::Cast(to, x),
        },
        e => e,
    }
}

/// Removes a conversion to the previous type.
fn bare(types: &HashMap<Buf, ElemType>, e: Expr) -> Expr {
    match e {
        Expr::Cast(_, x) if is_stored(types, &x) => *x,
        e => e,
    }
}

fn is_stored(types: &HashMap<Buf, ElemType>, e: &Expr) -> bool {
    matches!(e, Expr::Load { buf, .. } if types.contains_key(buf))
}

/// Converts a float that holds an integer to type `to`.
fn from_float(to: ElemType, x: Expr) -> Expr {
    match x {
        x if to == ElemType::F32 => x,
        Expr::Cast(ElemType::F32, y) if matches!(*y, Expr::Cast(ElemType::I32, _)) => *y,
        // An 8-bit integer of another origin.
        Expr::Cast(ElemType::F32, y) => Expr::Cast(to, y),
        x => Expr::Cast(to, Box::new(x)),
    }
}

/// Converts an 8-bit integer to the float of its value.
fn as_float(types: &HashMap<Buf, ElemType>, e: Expr) -> Expr {
    let both = |a: Box<Expr>| Box::new(as_float(types, *a));
    match e {
        Expr::Const(s) => Expr::f32(s.to_i64() as f32),
        Expr::Select(c, a, b) => Expr::Select(c, both(a), both(b)),
        Expr::Bin(op @ (BinOp::Min | BinOp::Max), a, b) => Expr::Bin(op, both(a), both(b)),
        Expr::Let { reg, value, body } => Expr::Let { reg, value, body: both(body) },
        Expr::With { sym, value, extent, body } => Expr::With { sym, value, extent, body: both(body) },
        Expr::Cast(_, x) if is_stored(types, &x) => *x,
        // The value is clamped, so 32 bits hold it as well, and have vector forms. NaN becomes 0 either way.
        Expr::Cast(t, x) if clamped(&x, t) => {
            Expr::cast(ElemType::I32, ElemType::F32, Expr::cast(ElemType::F32, ElemType::I32, *x))
        }
        e => Expr::Cast(ElemType::F32, Box::new(e)),
    }
}

/// True for `min(max(x, lo), hi)` of a float within the range of a type.
pub(crate) fn clamped(e: &Expr, t: ElemType) -> bool {
    let Expr::Bin(BinOp::Min, x, hi) = e else { return false };
    let (Expr::Bin(BinOp::Max, _, lo), Expr::Const(hi)) = (&**x, &**hi) else { return false };
    let Expr::Const(lo) = &**lo else { return false };
    hi.ty == ElemType::F32
        && lo.to_f64() >= Scalar::lowest(t).to_f64()
        && hi.to_f64() <= Scalar::highest(t).to_f64()
}
