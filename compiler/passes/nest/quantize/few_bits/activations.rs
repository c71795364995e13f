//! Activations quantized to 8-bit integers, with one scale per block.

use crate::nest::{BinOp, Buf, DotKind, Expr, Kernel, LoopKind, Module, Stmt, UnOp, visit};
use crate::passes::nest::analysis::shape::Uses;
use crate::passes::nest::schedule::contract::Parts;
use crate::passes::nest::schedule::tiles::byte_dots::Bytes;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Maximum elements of a block.
pub(super) const LONGEST: i64 = 256;
/// The largest integer.
const MOST: f32 = 127.0;

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
    let bytes = m.temp(format!("{name}.bytes"), ElemType::I8, dims(blocks * padded));
    let scale = m.temp(format!("{name}.scales"), ElemType::F32, dims(blocks));
    let sum = m.temp(
        format!("{name}.sums"),
        if number.is_some() { ElemType::I32 } else { ElemType::F32 },
        dims(blocks),
    );
    let quads = m.view_as(bytes, ElemType::I32, dims(blocks * padded / 4));
    let (float, int) = (ElemType::F32, ElemType::I32);
    let origin = m.kernels[k].origin.clone();
    let label = format!("{}.bytes", m.kernels[k].name);
    m.kernel(&label, &origin, |k| {
        k.nest(LoopKind::Par, &dims(blocks), |k, at| {
            let Some((b, row)) = at.split_last() else { return };
            let element = |k: &mut crate::nest::KernelBuilder, r: Dim| {
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
            let step = k.let_(Expr::acc(most) / Expr::f32(MOST));
            let some = Expr::bin(BinOp::Gt, Expr::acc(most), Expr::f32(0.0));
            let factor = k.let_(Expr::select(some, Expr::f32(MOST) / Expr::acc(most), Expr::f32(0.0)));
            let here = |last: Dim| row.iter().copied().chain([last]).collect::<Vec<_>>();
            k.store(scale, &here(*b), step);
            let total = k.acc(Expr::int(int, 0));
            k.nest(LoopKind::Seq, &[Dim::constant(padded)], |k, r| {
                let v = Expr::un(UnOp::Round, element(k, r[0]) * factor.clone());
                let q = k.let_(Expr::cast(float, int, v));
                k.store(bytes, &here(*b * padded + r[0]), Expr::cast(int, ElemType::I8, q.clone()));
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
