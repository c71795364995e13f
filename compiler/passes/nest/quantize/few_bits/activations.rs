//! Activations as integers with one scale per block: of 8 bits where the model allows it, else of three
//! bytes, which represent a block about as exactly as floats do ([`Form::exact`]).

use super::weights::Weights;
use crate::nest::{
    BinOp, Buf, DotKind, Expr, Kernel, KernelBuilder, LoopKind, Module, Reg, Stmt, UnOp, visit,
};
use crate::passes::nest::analysis::shape::Uses;
use crate::passes::nest::schedule::contract::Parts;
use crate::passes::nest::schedule::tiles::byte_dots::Bytes;
use crate::sym::{Dim, Sym};
use crate::target::Facts;
use crate::tensor::ElemType;

/// Maximum elements of a block.
pub(super) const LONGEST: i64 = 256;
/// Elements of a block of integers of several bytes.
const SHORT: i64 = 32;
/// Bytes of these integers, each from -128 to 127.
const DIGITS: i64 = 3;
/// The largest of them, with a margin for the rounding of the quotient, and the least that is exact enough.
const MOST: i64 = 127 * 0x1_01_01 - 16;
const LEAST: i64 = 1 << 21;
/// Columns whose products repay the conversion to three bytes: 1,024 x 128 takes 0.92 to 1.1 times as long as
/// with floats for 1 to 64 rows, 1,024 x 64 1.3 times, 1,024 x 512 0.9 times.
const COLUMNS: i64 = 128;
/// The least divisor of a block: its reciprocal times [`MOST`] is finite.
const LEAST_SCALE: f32 = 1e-30;

/// The form of activations that a contraction requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub block: i64,
    pub reduction: i64,
    /// Elements per word of weights, to which activations are padded.
    pub per: i64,
    /// The zero point of the weights, if it is a single number.
    pub number: Option<i64>,
    /// Dot products of weights and activations.
    pub group: DotKind,
    /// Bytes of an integer, the highest first: its digits to base 256.
    pub digits: i64,
    /// The largest integer.
    pub most: i64,
}

impl Form {
    /// Integers of 8 bits.
    pub fn narrow(w: &Weights, number: Option<i64>, group: DotKind) -> Option<Form> {
        let form = Form {
            block: w.block,
            reduction: w.reduction,
            per: i64::from(32 / w.elements.1),
            number,
            group,
            digits: 1,
            most: 127,
        };
        (w.block <= LONGEST).then_some(form)
    }
    /// Integers of three bytes. The sum of their products with the weights of a block, less the zero point,
    /// is exact in 32 bits. `columns`: those of all contractions with these activations.
    pub fn exact(w: &Weights, number: Option<i64>, (facts, columns): (&Facts, i64)) -> Option<Form> {
        let (bits, zero) = (w.elements.1, number?);
        let largest = zero.abs().max(((1 << bits) - 1 - zero).abs());
        let most = MOST.min(i64::from(i32::MAX) / (SHORT * largest));
        let fits = w.block % SHORT == 0 && w.reduction % w.block == 0 && most >= LEAST;
        (suit(facts) && fits && columns >= COLUMNS).then_some(Form {
            block: SHORT,
            reduction: w.reduction,
            per: i64::from(32 / bits),
            number,
            group: DotKind::Bytes,
            digits: DIGITS,
            most,
        })
    }
}

/// True if products with integers of three bytes are faster than with floats: three dot products of bytes
/// take the place of four multiply-adds. What they cost beside is measured on cores with 512-bit vectors
/// only.
pub(super) fn suit(facts: &Facts) -> bool {
    facts.caps.bits == 512 && facts.caps.dot.mixes_signs()
}

/// Identifies activations: a buffer, the element in terms of numbered variables, the extents of the rows, the
/// form.
type Key = (Buf, Vec<Dim>, Vec<Dim>, Form);

/// Activations quantized so far.
#[derive(Default)]
pub(super) struct Made {
    vars: Vec<Sym>,
    list: Vec<(Key, Buffers)>,
}

/// Buffers of [`Bytes`].
#[derive(Clone, Copy)]
struct Buffers {
    quads: Buf,
    scale: Buf,
    sum: Buf,
}

impl Made {
    /// The quantized activations of contraction `k` with rows `rows`, computed by a kernel before it.
    pub(super) fn of(
        &mut self,
        m: &mut Module,
        k: Kernel,
        p: &Parts,
        rows: &[(Sym, Dim)],
        form: Form,
        uses: &Uses,
    ) -> Option<Bytes> {
        let (a, at) = (p.a.0, &p.a.1);
        if m.bufs[a].ty.compute() != ElemType::F32 {
            return None;
        }
        while self.vars.len() <= rows.len() {
            self.vars.push(m.syms.loop_var("k", Dim::constant(0), Dim::constant(1)));
        }
        let known = |s: Sym| {
            rows.iter()
                .map(|r| r.0)
                .chain([p.reduction[0].0])
                .position(|x| x == s)
                .map(|i| Dim::sym(self.vars[i]))
        };
        let key = (
            a,
            at.iter().map(|d| d.subst(&mut |s| known(s))).collect::<Vec<_>>(),
            rows.iter().map(|r| r.1).collect::<Vec<_>>(),
            form,
        );
        // The results of a kernel called once, directly in the driver, remain valid after it.
        let stays = m.driver.contains(&Stmt::Call(k))
            && uses.writers(m.storage(a)).iter().all(|w| m.driver.contains(&Stmt::Call(*w)));
        let found = self.list.iter().find(|x| stays && x.0 == key).map(|x| x.1);
        let made = match found {
            Some(x) => x,
            None => {
                let x = make(m, k, p, rows, form)?;
                if stays {
                    self.list.push((key, x));
                }
                x
            }
        };
        Some(Bytes {
            quads: made.quads,
            scale: made.scale,
            sum: made.sum,
            centred: form.number.is_some(),
            group: form.group,
            digits: form.digits,
            block: form.block,
        })
    }
}

/// The buffers, and the kernel that fills them directly before `k`.
fn make(m: &mut Module, k: Kernel, p: &Parts, rows: &[(Sym, Dim)], form: Form) -> Option<Buffers> {
    let Form { block, reduction: depth, per, number, .. } = form;
    let blocks = (depth + block - 1) / block;
    let padded = (block + per - 1) / per * per;
    let name = m.bufs[p.a.0].name.clone();
    let extents: Vec<Dim> = rows.iter().map(|r| r.1).collect();
    let dims = |last: i64| extents.iter().copied().chain([Dim::constant(last)]).collect::<Vec<_>>();
    let size = blocks * form.digits * padded;
    let bytes = m.temp(format!("{name}.bytes"), ElemType::I8, dims(size));
    let scale = m.temp(format!("{name}.scales"), ElemType::F32, dims(blocks));
    let sum = m.temp(
        format!("{name}.sums"),
        if number.is_some() { ElemType::I32 } else { ElemType::F32 },
        dims(blocks),
    );
    let quads = m.view_as(bytes, ElemType::I32, dims(size / 4));
    let (float, int) = (ElemType::F32, ElemType::I32);
    let origin = m.kernels[k].origin.clone();
    let label = format!("{}.bytes", m.kernels[k].name);
    m.kernel(&label, &origin, |k| {
        k.nest(LoopKind::Par, &dims(blocks), |k, at| {
            let Some((b, row)) = at.split_last() else { return };
            let element = |k: &mut KernelBuilder, r: Dim| {
                let e = *b * block + r;
                let of = |s: Sym| {
                    if s == p.reduction[0].0 {
                        Some(e)
                    } else {
                        rows.iter().position(|x| x.0 == s).map(|i| row[i])
                    }
                };
                let at: Vec<Dim> = p.a.1.iter().map(|d| d.subst(&mut |s| of(s))).collect();
                let v = k.load(p.a.0, &at);
                if blocks * padded == depth {
                    v
                } else {
                    Expr::select(Expr::cmp_index(BinOp::Lt, e, depth), v, Expr::f32(0.0))
                }
            };
            let most = k.acc(Expr::f32(0.0));
            k.nest(LoopKind::Seq, &[Dim::constant(padded)], |k, r| {
                let v = element(k, r[0]);
                k.update(BinOp::Max, most, Expr::un(UnOp::Abs, v));
            });
            let (step, factor) = form.scales(k, most);
            let here = |last: Dim| row.iter().copied().chain([last]).collect::<Vec<_>>();
            k.store(scale, &here(*b), step);
            let total = k.acc(Expr::int(int, 0));
            k.nest(LoopKind::Seq, &[Dim::constant(padded)], |k, r| {
                let v = Expr::un(UnOp::Round, element(k, r[0]) * factor.clone());
                let q = k.let_(Expr::cast(float, int, v));
                let mut rest = q.clone();
                for digit in (0..form.digits).rev() {
                    let next = (digit > 0).then(|| {
                        let half = rest.clone() + Expr::int(int, 128);
                        k.let_(Expr::bin(BinOp::Shr, half, Expr::int(int, 8)))
                    });
                    let above = next.clone().map(|n| Expr::bin(BinOp::Shl, n, Expr::int(int, 8)));
                    let byte = above.map_or(rest.clone(), |a| rest.clone() - a);
                    let at = here((*b * form.digits + digit) * padded + r[0]);
                    k.store(bytes, &at, Expr::cast(int, ElemType::I8, byte));
                    rest = next.unwrap_or(rest);
                }
                k.update(BinOp::Add, total, q);
            });
            let value = match number {
                Some(z) => Expr::acc(total) * Expr::int(int, -z),
                None => Expr::cast(int, float, Expr::acc(total)),
            };
            k.store(sum, &here(*b), value);
        });
    });
    let Some(Stmt::Call(made)) = m.driver.pop() else { return None };
    visit::splice_call(&mut m.driver, k, true, vec![Stmt::Call(made)]).then_some(Buffers {
        quads,
        scale,
        sum,
    })
}

impl Form {
    /// The scale of a block whose largest magnitude is `most`, and its reciprocal.
    fn scales(&self, k: &mut KernelBuilder, most: Reg) -> (Expr, Expr) {
        let (of, top) = (Expr::acc(most), Expr::f32(self.most as f32));
        if self.digits == 1 {
            let step = k.let_(of.clone() / top.clone());
            let some = Expr::bin(BinOp::Gt, of.clone(), Expr::f32(0.0));
            return (step, k.let_(Expr::select(some, top / of, Expr::f32(0.0))));
        }
        let finite = Expr::bin(BinOp::Lt, of.clone(), Expr::f32(f32::INFINITY));
        let least = k.let_(of.max(Expr::f32(LEAST_SCALE)));
        // All results of a row that is not finite are NaN.
        let step = k.let_(Expr::select(finite, least.clone() / top.clone(), Expr::f32(f32::NAN)));
        (step, k.let_(top / least))
    }
}
