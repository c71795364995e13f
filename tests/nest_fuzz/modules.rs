//! Random modules, written with the builder: maps, index remappings, reductions, rows and contractions in the
//! forms that operators write.

use crate::exprs::{Exprs, Rng};
use onnxc::diag::Origin;
use onnxc::nest::interp;
use onnxc::nest::{BinOp, Buf, Expr, LoopKind, Module, Place, Scalar, UnOp, visit};
use onnxc::sym::Range;
use onnxc::sym::{Dim, Sym, SymTable};
use onnxc::tensor::{ConstData, ElemType as T};
use std::sync::Arc;

/// A buffer that later kernels may read.
#[derive(Clone, Copy)]
pub struct Value {
    pub buf: Buf,
    /// Every correct computation gives these very bits.
    exact: bool,
}

/// A module in the making, with values for its dims and inputs.
pub struct Gen {
    pub r: Rng,
    pub m: Module,
    pub values: Vec<Value>,
    pub params: Vec<(Sym, i64)>,
    pub data: Vec<Vec<u8>>,
    /// Rounding to 8 or 11 bits happened on the way.
    pub coarse: bool,
}

const STORED: &[T] = &[
    T::F32,
    T::F32,
    T::F32,
    T::F32,
    T::F64,
    T::I32,
    T::I64,
    T::U8,
    T::Bool,
    T::F16,
    T::BF16,
    T::I8,
    T::U32,
    T::I16,
];

/// Types of elements that only move.
const MOVED: &[T] = &[T::C64, T::C128];

/// The same steps for the same seed; fewer of them make a beginning of the same module.
pub fn generate(seed: u64, steps: usize) -> Gen {
    let mut syms = SymTable::new();
    let mut r = Rng(seed);
    let mut params = vec![];
    for name in ["N", "K"] {
        let s = syms.param(name);
        syms.set_range(s, Range::new(0, 64));
        let v = if r.chance(3) { 0 } else { r.of(&[1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 19]) };
        params.push((s, v));
    }
    let mut m = Module::new("fuzz", syms);
    m.dim_params = params.iter().map(|p| p.0).collect();
    let mut g = Gen { r, m, values: vec![], params, data: vec![], coarse: false };
    for _ in 0..steps {
        g.step();
    }
    g.finish()
}

/// Elements of a type, the same for the same seed.
pub fn data(seed: u64, ty: T, n: usize) -> Vec<u8> {
    random_bytes(&mut Rng(seed), ty, n, None)
}

fn random_bytes(r: &mut Rng, ty: T, n: usize, limit: Option<i64>) -> Vec<u8> {
    let mut out = vec![];
    if let Some(part) = ty.part() {
        return random_bytes(r, part, 2 * n, None);
    }
    for _ in 0..n {
        let bits = match ty {
            _ if limit.is_some() => r.below(limit.unwrap_or(1).max(1) as usize) as u64,
            T::Bool => r.next() & 1,
            t if t.is_float() => {
                let v = Scalar::from_f64(t.compute(), r.between(-64, 64) as f64 / 32.0);
                interp::to_storage(t, v)
            }
            T::U8 | T::I8 => r.next() & 0xff,
            _ if r.chance(5) => r.next(),
            _ => r.between(-9, 100) as u64,
        };
        out.extend_from_slice(&bits.to_le_bytes()[..ty.bytes().unwrap_or(1) as usize]);
    }
    out
}

impl Gen {
    pub fn size(&mut self) -> Dim {
        if self.r.chance(25) {
            let s = Dim::sym(self.params[self.r.below(2)].0);
            return if self.r.chance(15) {
                s * 2
            } else if self.r.chance(15) {
                s + 1
            } else {
                s
            };
        }
        Dim::constant(self.r.of(&[1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 12, 13, 16, 17]))
    }
    fn shape(&mut self, lo: usize, hi: usize) -> Vec<Dim> {
        let n = lo + self.r.below(hi - lo + 1);
        (0..n).map(|_| self.size()).collect()
    }
    fn eval(&self, d: Dim) -> i64 {
        d.eval(&|s| self.params.iter().find(|p| p.0 == s).map(|p| p.1)).expect("a size of dim params")
    }
    pub fn dims(&self, b: Buf) -> Vec<Dim> {
        self.m.bufs[b].dims.clone()
    }
    fn ty(&self, b: Buf) -> T {
        self.m.bufs[b].ty.compute()
    }
    /// A new input or constant. `limit`: indices below this.
    pub fn source(&mut self, ty: T, dims: &[Dim], limit: Option<Dim>) -> Buf {
        let n: i64 = dims.iter().map(|d| self.eval(*d)).product();
        let limit = limit.map(|d| self.eval(d));
        let data = random_bytes(&mut self.r, ty, n as usize, limit);
        let fixed: Option<Vec<i64>> = dims.iter().map(|d| d.as_const()).collect();
        let name = format!("v{}", self.m.bufs.len());
        let b = match fixed {
            Some(d) if self.r.chance(45) => {
                self.m.constant(name, Arc::new(ConstData::new(ty, d, data).expect("the length fits")))
            }
            _ => {
                self.data.push(data);
                let b = self.m.buf(name, ty, dims, Place::Input(self.m.inputs.len() as u32));
                self.m.inputs.push(b);
                b
            }
        };
        self.values.push(Value { buf: b, exact: true });
        b
    }
    pub fn out(&mut self, ty: T, dims: &[Dim], exact: bool) -> Buf {
        let name = format!("v{}", self.m.bufs.len());
        let b = self.m.temp(name, ty, dims);
        self.coarse |= matches!(ty, T::F16 | T::BF16);
        self.values.push(Value { buf: b, exact: exact && !matches!(ty, T::F16 | T::BF16) });
        b
    }
    pub fn exact(&self, b: Buf) -> bool {
        self.values.iter().any(|v| v.buf == b && v.exact)
    }
    /// Some buffer of at least that rank, an existing one if possible.
    pub fn pick(&mut self, rank: usize, ok: impl Fn(T) -> bool) -> Buf {
        let fit: Vec<Buf> = self
            .values
            .iter()
            .map(|v| v.buf)
            .filter(|b| self.dims(*b).len() >= rank && ok(self.m.bufs[*b].ty))
            .collect();
        if !fit.is_empty() && self.r.chance(80) {
            // The latest ones make chains.
            let back = self.r.below(3.min(fit.len()));
            return fit[fit.len() - 1 - back];
        }
        let types: Vec<T> = STORED.iter().chain(MOVED).copied().filter(|t| ok(*t)).collect();
        let (ty, dims) = (self.r.of(&types), self.shape(rank, 4.max(rank)));
        self.source(ty, &dims, None)
    }
    /// A buffer that broadcasts to `dims`.
    fn operand(&mut self, dims: &[Dim]) -> Buf {
        let one = |d: &Dim| d.as_const() == Some(1);
        let fits = |g: &Gen, b: Buf| {
            let d = g.dims(b);
            !g.ty(b).is_complex()
                && d.len() <= dims.len()
                && d.iter().rev().zip(dims.iter().rev()).all(|(a, b)| a == b || one(a))
        };
        let fit: Vec<Buf> = self.values.iter().map(|v| v.buf).filter(|b| fits(self, *b)).collect();
        if !fit.is_empty() && self.r.chance(65) {
            return self.r.of(&fit);
        }
        let skip = if self.r.chance(40) { self.r.below(dims.len() + 1) } else { 0 };
        let own: Vec<Dim> =
            dims[skip..].iter().map(|d| if self.r.chance(15) { Dim::constant(1) } else { *d }).collect();
        let ty = self.r.of(STORED);
        self.source(ty, &own, None)
    }

    fn step(&mut self) {
        match self.r.below(22) {
            0..=4 => self.map(),
            5..=9 => self.remap(),
            10..=11 => self.reduce(),
            12..=15 => self.matmul(),
            16..=17 => self.conv(),
            18 => self.rows(),
            _ => self.view(),
        }
    }

    // ---- Elementwise ----

    fn map(&mut self) {
        let base = self.pick(1, |t| !t.is_complex());
        let dims = self.dims(base);
        let mut operands = vec![base];
        for _ in 0..self.r.below(3) {
            let b = self.operand(&dims);
            operands.push(b);
        }
        let ty = self.r.of(STORED);
        let mut made = None;
        let depth = 1 + self.r.below(3);
        let loads: Vec<(Buf, T, bool)> = operands.iter().map(|b| (*b, self.ty(*b), self.exact(*b))).collect();
        // The type of the buffer has to wait for the exactness of the expression.
        let b = self.out(ty, &dims, true);
        let mut r = Rng(self.r.next());
        self.m.map(b, &Origin::default(), |k, at| {
            let mut e = Exprs { r: &mut r, k, at, loads: &loads };
            let (v, exact) = e.of_type(ty.compute(), depth, !ty.compute().is_float());
            made = Some(exact);
            v
        });
        if let Some(v) = self.values.last_mut() {
            v.exact &= made == Some(true);
        }
    }

    // ---- Index remappings ----

    fn remap(&mut self) {
        let moved = self.r.chance(12);
        let x = self.pick(1, |t| t.is_complex() == moved);
        let (from, ty) = (self.dims(x), self.m.bufs[x].ty);
        let exact = self.exact(x);
        let rank = from.len();
        let axis = self.r.below(rank);
        let zero = Dim::constant(0);
        let kind = self.r.below(9);
        let o = Origin::default();
        match kind {
            // Transpose.
            0 | 1 => {
                let mut p: Vec<usize> = (0..rank).collect();
                for i in (1..rank).rev() {
                    p.swap(i, self.r.below(i + 1));
                }
                let dims: Vec<Dim> = p.iter().map(|i| from[*i]).collect();
                let y = self.out(ty, &dims, exact);
                self.m.map(y, &o, |k, at| {
                    let mut src = vec![zero; rank];
                    p.iter().zip(at).for_each(|(i, d)| src[*i] = *d);
                    k.load(x, &src)
                });
            }
            // Slice with a step, forwards or backwards.
            2 => {
                let n = from[axis];
                let Some(c) = n.as_const().filter(|c| *c > 1) else { return };
                let step = self.r.between(1, 3.min(c - 1).max(1));
                let start = self.r.between(0, c - 1);
                let back = self.r.chance(30);
                let count = if back { start / step + 1 } else { (c - start + step - 1) / step };
                let mut dims = from.clone();
                dims[axis] = Dim::constant(count);
                let y = self.out(ty, &dims, exact);
                self.m.map(y, &o, |k, at| {
                    let mut src = at.to_vec();
                    src[axis] =
                        if back { Dim::constant(start) - at[axis] * step } else { at[axis] * step + start };
                    k.load(x, &src)
                });
            }
            // Expand: a new dimension in front, ones become more.
            3 => {
                let n = self.size();
                let mut dims = from.clone();
                dims.iter_mut().for_each(|d| {
                    if d.as_const() == Some(1) {
                        *d = n
                    }
                });
                dims.insert(0, n);
                if self.r.chance(50) && dims.len() > 4 {
                    return;
                }
                let y = self.out(ty, &dims, exact);
                self.m.map(y, &o, |k, at| k.load_broadcast(x, at));
            }
            // Padding: a guarded load, the fill elsewhere.
            4 | 5 => {
                let (before, after) = (self.r.between(0, 3), self.r.between(0, 3));
                let mut dims = from.clone();
                dims[axis] = dims[axis] + before + after;
                let fill = self.r.between(0, 1) as f64;
                let y = self.out(ty, &dims, exact);
                self.m.map(y, &o, |k, at| {
                    let mut src = at.to_vec();
                    src[axis] = at[axis] - before;
                    let inside = Expr::cmp_index(BinOp::Ge, src[axis], 0).and(Expr::cmp_index(
                        BinOp::Lt,
                        src[axis],
                        from[axis],
                    ));
                    let fill = if ty.is_complex() { k.zero(ty) } else { Expr::num(ty.compute(), fill) };
                    Expr::select(inside, k.load(x, &src), fill)
                });
            }
            // Nearest neighbour and depth-to-space: divisions in subscripts.
            6 => {
                let f = self.r.between(2, 3);
                let mut dims = from.clone();
                dims[axis] = dims[axis] * f;
                let y = self.out(ty, &dims, exact);
                self.m.map(y, &o, |k, at| {
                    let mut src = at.to_vec();
                    src[axis] = at[axis].floor_div(f);
                    k.load(x, &src)
                });
            }
            // Gather.
            7 => {
                let n = from[axis];
                if self.eval(n) == 0 {
                    return;
                }
                let count = self.size();
                let i = self.source(T::I64, &[count], Some(n));
                self.values.pop();
                let mut dims = from.clone();
                dims[axis] = count;
                let y = self.out(ty, &dims, exact);
                self.m.map(y, &o, |k, at| {
                    let pos = k.load(i, &[at[axis]]);
                    k.with_index(pos, n, |k, j| {
                        let mut src = at.to_vec();
                        src[axis] = j;
                        k.load(x, &src)
                    })
                });
            }
            // Concat: two kernels write one buffer, or one selects.
            _ => {
                let z = self.source(ty, &from, None);
                let n = from[axis];
                let mut dims = from.clone();
                dims[axis] = n * 2;
                let y = self.out(ty, &dims, exact);
                if self.r.chance(50) {
                    for (part, base) in [(x, zero), (z, n)] {
                        self.m.kernel("concat", &o, |k| {
                            k.nest(LoopKind::Par, &from, |k, at| {
                                let mut to = at.to_vec();
                                to[axis] = to[axis] + base;
                                let v = k.load(part, at);
                                k.store(y, &to, v);
                            })
                        });
                    }
                } else {
                    self.m.map(y, &o, |k, at| {
                        let mut second = at.to_vec();
                        second[axis] = at[axis] - n;
                        Expr::select(
                            Expr::cmp_index(BinOp::Lt, at[axis], n),
                            k.load(x, at),
                            k.load(z, &second),
                        )
                    });
                }
            }
        }
    }
    /// The same memory under another shape.
    fn view(&mut self) {
        let x = self.pick(2, |_| true);
        self.view_of(x);
    }
    /// Two dimensions become one, or one two.
    pub fn view_of(&mut self, x: Buf) -> Buf {
        let from = self.dims(x);
        let i = self.r.below(from.len() - 1);
        let mut dims = from.clone();
        let factor = from[i].as_const().and_then(|c| [2, 3, 4].into_iter().find(|f| c > *f && c % f == 0));
        match factor {
            Some(f) if self.r.chance(50) => {
                drop(dims.splice(i..i + 1, [from[i].floor_div(f), Dim::constant(f)]))
            }
            _ => drop(dims.splice(i..i + 2, [from[i] * from[i + 1]])),
        }
        if self.r.chance(30) {
            dims.insert(self.r.below(dims.len() + 1), Dim::constant(1));
        }
        let v = self.m.view(x, dims);
        let exact = self.exact(x);
        self.values.push(Value { buf: v, exact });
        v
    }

    // ---- Reductions ----

    fn reduce(&mut self) {
        let x = self.pick(1, |t| t != T::Bool && !t.is_complex());
        let from = self.dims(x);
        let ty = self.ty(x);
        let reduced: Vec<bool> = from.iter().map(|_| self.r.chance(50)).collect();
        let (outer, inner): (Vec<_>, Vec<_>) = from.iter().copied().zip(&reduced).partition(|(_, r)| !**r);
        let (outer, inner): (Vec<Dim>, Vec<Dim>) =
            (outer.iter().map(|d| d.0).collect(), inner.iter().map(|d| d.0).collect());
        let kind = self.r.below(5);
        let exact = self.exact(x) && (kind < 2 || !ty.is_float());
        let arg = kind == 4 && self.exact(x) && inner.len() == 1 && self.eval(inner[0]) > 0;
        let stored = if arg {
            T::I64
        } else if self.r.chance(80) {
            self.m.bufs[x].ty
        } else {
            ty
        };
        let y = self.out(stored, &outer, exact);
        let scale = self.r.chance(30);
        self.m.kernel("reduce", &Origin::default(), |k| {
            k.nest(LoopKind::Par, &outer, |k, o| {
                let at = |r: &[Dim]| -> Vec<Dim> {
                    let (mut o, mut r) = (o.iter(), r.iter());
                    reduced
                        .iter()
                        .map(|red| *if *red { r.next() } else { o.next() }.expect("as many"))
                        .collect()
                };
                if arg {
                    let best = k.load(x, &at(&[Dim::constant(0)]));
                    let (best, pos) = (k.acc(best), k.acc(Expr::int(T::I64, 0)));
                    k.nest(LoopKind::Seq, &inner, |k, r| {
                        let v = k.load(x, &at(r));
                        let v = k.let_(v);
                        let better = k.let_(Expr::bin(BinOp::Gt, v.clone(), Expr::acc(best)));
                        k.set(pos, Expr::select(better.clone(), Expr::index(r[0]), Expr::acc(pos)));
                        k.set(best, Expr::select(better, v, Expr::acc(best)));
                    });
                    k.store(y, o, Expr::acc(pos));
                    return;
                }
                let (op, init) = match kind {
                    0 => (BinOp::Max, Scalar::lowest(ty)),
                    1 => (BinOp::Min, Scalar::highest(ty)),
                    _ => (BinOp::Add, Scalar::int(ty, 0)),
                };
                let acc = k.acc(init.into());
                k.nest(LoopKind::Seq, &inner, |k, r| {
                    let v = k.load(x, &at(r));
                    let v = if kind == 3 { k.shared(v, |_, v| v.clone() * v) } else { v };
                    k.update(op, acc, v);
                });
                let v = Expr::acc(acc);
                k.store(y, o, if scale && ty.is_float() && kind > 1 { v * Expr::num(ty, 0.125) } else { v });
            });
        });
    }
    /// Softmax or normalization of the last dimensions.
    fn rows(&mut self) {
        let x = self.pick(1, |t| t.is_float());
        let (from, ty) = (self.dims(x), self.ty(x));
        let axis = self.r.below(from.len());
        let mut outer = from.clone();
        let row = [outer.remove(axis)];
        let stored = if self.r.chance(75) { ty } else { self.m.bufs[x].ty };
        let y = self.out(stored, &from, false);
        let softmax = self.r.chance(60);
        let through_y = stored == ty;
        self.m.kernel("rows", &Origin::default(), |k| {
            k.nest(LoopKind::Par, &outer, |k, o| {
                let at = |r: &[Dim]| -> Vec<Dim> {
                    o[..axis].iter().chain(r).chain(&o[axis..]).copied().collect()
                };
                let top = k.acc(if softmax { Scalar::lowest(ty).into() } else { Expr::num(ty, 0.0) });
                k.nest(LoopKind::Seq, &row, |k, r| {
                    let v = k.load(x, &at(r));
                    k.update(if softmax { BinOp::Max } else { BinOp::Add }, top, v);
                });
                let count = Expr::cast(T::I64, ty, Expr::index(row[0]));
                let top = if softmax { Expr::acc(top) } else { k.let_(Expr::acc(top) / count.clone()) };
                let sum = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &row, |k, r| {
                    let d = k.load(x, &at(r)) - top.clone();
                    if softmax && through_y {
                        let v = k.let_(Expr::un(UnOp::Exp, d));
                        k.store(y, &at(r), v.clone());
                        k.update(BinOp::Add, sum, v);
                    } else if softmax {
                        k.update(BinOp::Add, sum, Expr::un(UnOp::Exp, d));
                    } else {
                        let v = k.shared(d, |_, d| d.clone() * d);
                        k.update(BinOp::Add, sum, v);
                    }
                });
                let scale = if softmax {
                    Expr::num(ty, 1.0) / Expr::acc(sum)
                } else {
                    Expr::num(ty, 1.0) / Expr::un(UnOp::Sqrt, Expr::acc(sum) / count + Expr::num(ty, 0.25))
                };
                let scale = k.let_(scale);
                k.nest(LoopKind::Seq, &row, |k, r| {
                    let v = match (softmax, through_y) {
                        (true, true) => k.load(y, &at(r)),
                        (true, false) => Expr::un(UnOp::Exp, k.load(x, &at(r)) - top.clone()),
                        _ => k.load(x, &at(r)) - top.clone(),
                    };
                    k.store(y, &at(r), v * scale.clone());
                });
            });
        });
    }

    /// What nobody reads is an output, and some of the rest.
    fn finish(mut self) -> Gen {
        let mut read = vec![];
        for k in self.m.kernels.values() {
            read.extend(visit::loads(&k.body).into_iter().map(|b| self.m.storage(b)));
        }
        let temps: Vec<Buf> =
            self.m.bufs.keys().filter(|b| matches!(self.m.bufs[*b].place, Place::Temp)).collect();
        for b in temps {
            if !read.contains(&b) || self.r.chance(15) {
                self.m.bufs[b].place = Place::Output(self.m.outputs.len() as u32);
                self.m.outputs.push(b);
            }
        }
        self
    }
}
