//! The sizes of a transform, and its roots of unity.

use super::*;

impl Stages {
    /// Sizes and tables.
    pub(super) fn new(cx: &mut LowerCx, t: &Staged) -> Stages {
        let dims = cx.dims(t.x);
        let ty = cx.elem(t.x).compute();
        let rows = dims[0] * dims[2];
        let l = t.length;
        let [m, a, b, rounds, block] = match l.as_const() {
            Some(l) => {
                let [m, a, b, rounds] = constant_sizes(l).map(Dim::constant);
                [m, a, b, rounds, rows.min(m.as_const().map_or(1, |m| (BLOCK / m).max(1)))]
            }
            None => sizes(cx, l, rows),
        };
        let two = Dim::constant(2);
        let table = |cx: &mut LowerCx, name: &str, dims: &[Dim]| cx.temp(name, ty, [&[two], dims].concat());
        let roots = table(cx, "roots", &[m]);
        fill(cx, roots, &|_, at| float(at[0]) / float(m));
        let turns = table(cx, "turns", &[b, a]);
        fill(cx, turns, &|_, at| float(at[0]) * float(at[1]) / float(m));
        let chirp = table(cx, "chirp", &[l]);
        fill(cx, chirp, &|k, at| {
            // The square modulo 2 l is exact up to n = 2^26.
            let (n, period) = (k.let_(float(at[0])), float(l * 2));
            let square = k.let_(n.clone() * n);
            let periods = Expr::un(UnOp::Floor, square.clone() / period.clone());
            let rest = Expr::fma(-periods, period.clone(), square);
            let direct = Expr::cmp_index(BinOp::Eq, rounds, 1);
            Expr::select(direct, Expr::num(ElemType::F64, 0.0), rest / period)
        });
        // The loop over blocks stores it in a branch.
        let spectrum = table(cx, "spectrum", &[m]);
        cx.map(spectrum, |_, _| Expr::num(ty, 0.0));
        let work = cx.temp("work", ty, vec![two, block, two, m]);
        Stages { ty, work, rows, block, m, a, b, rounds, roots, turns, chirp, spectrum }
    }
}

/// Fills a table [part, ..] with the roots of so many turns.
pub(super) fn fill(cx: &mut LowerCx, table: Buf, turns: &dyn Fn(&mut KernelBuilder, &[Dim]) -> Expr) {
    let (dims, ty) = (cx.dims(table)[1..].to_vec(), cx.elem(table));
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &dims, |k, at| {
            let turns = turns(k, at);
            for (part, v) in root(k, turns).into_iter().enumerate() {
                let v = Expr::cast(ElemType::F64, ty, v);
                k.store(table, &[&[Dim::from(part)], at].concat(), v);
            }
        });
    });
}

/// An index as a 64-bit float.
pub(super) fn float(d: Dim) -> Expr {
    Expr::cast(ElemType::I64, ElemType::F64, Expr::index(d))
}

/// The cosine and the negative sine of 2 pi `turns`, in 64-bit floats, for -1 <= `turns` <= 1 and within two
/// units of the last place of 1. Unlike the functions of any angle, they have vectors on every level.
fn root(k: &mut KernelBuilder, turns: Expr) -> Pair {
    let number = |v: f64| Expr::num(ElemType::F64, v);
    let quarters = k.let_(turns * number(4.0));
    let whole = k.let_(Expr::un(UnOp::Round, quarters.clone()));
    let angle = k.let_((quarters - whole.clone()) * number(PI / 2.0));
    let square = k.let_(angle.clone() * angle.clone());
    // Taylor series up to the angle's 15th and 16th power; the angle is at most pi / 4.
    let series = |least: i32, terms: i32| {
        let factor =
            |i: i32| (0..i).fold(1.0, |f, j| -f / f64::from((least + 2 * j + 1) * (least + 2 * j + 2)));
        let last = number(factor(terms - 1));
        (0..terms - 1).rev().fold(last, |sum, i| Expr::fma(sum, square.clone(), number(factor(i))))
    };
    let (cos, sin) = (series(0, 9), angle * series(1, 8));
    let (cos, sin) = (k.let_(cos), k.let_(sin));
    // The quadrant, modulo 4.
    let quadrant = k.let_(whole.clone() - number(4.0) * Expr::un(UnOp::Floor, whole * number(0.25)));
    let is = |v: f64| eq(quadrant.clone(), number(v));
    let odd = k.let_(runtime::or(is(1.0), is(3.0)));
    let (re, im) = (Expr::select(odd.clone(), sin.clone(), cos.clone()), Expr::select(odd, cos, sin));
    let (re, im) = (k.let_(re), k.let_(im));
    [
        Expr::select(runtime::or(is(1.0), is(2.0)), -re.clone(), re),
        Expr::select(runtime::or(is(0.0), is(1.0)), -im.clone(), im),
    ]
}

/// m, a, b and rounds of a known length.
pub(super) fn constant_sizes(l: i64) -> [i64; 4] {
    let l = l.max(1);
    let direct = l.count_ones() == 1;
    let bits = if direct { l.ilog2() } else { (2 * l - 1).ilog2() + 1 };
    [1 << bits, 1 << bits.div_ceil(2), 1 << (bits / 2), if direct { 1 } else { 2 }]
}

/// m, a, b, rounds and rows of a block for a length known at run time.
fn sizes(cx: &mut LowerCx, l: Dim, rows: Dim) -> [Dim; 5] {
    let list = cx.compute(5, |k, list| {
        // The smallest power of two that is not below the length, and then not below 2 l - 1.
        let (a, b) = (k.acc(int(1)), k.acc(int(1)));
        let m = |a, b| Expr::acc(a) * Expr::acc(b);
        let lt = |x: Expr, y: Expr| Expr::bin(BinOp::Lt, x, y);
        let grow = |k: &mut KernelBuilder, least: Expr| {
            k.while_(lt(m(a, b), least), |k| {
                let even = k.let_(eq(Expr::acc(a), Expr::acc(b)));
                k.set(b, Expr::acc(b) * Expr::select(even.clone(), int(1), int(2)));
                k.set(a, Expr::acc(a) * Expr::select(even, int(2), int(1)));
            });
        };
        grow(k, Expr::index(l));
        let direct = k.let_(eq(m(a, b), Expr::index(l)));
        grow(k, Expr::select(direct.clone(), int(0), Expr::index(l * 2 - 1)));
        let rounds = Expr::select(direct, int(1), int(2));
        let block = (int(BLOCK) / m(a, b)).max(int(1)).min(Expr::index(rows));
        for (i, v) in (0i64..).zip([m(a, b), Expr::acc(a), Expr::acc(b), block, rounds]) {
            k.store(list, &[i.into()], v);
        }
    });
    let load = |i: usize| Expr::Load { buf: list, at: vec![Dim::from(i)] };
    let syms = &mut cx.m.syms;
    let [m, a, b, block] = ["m", "a", "b", "block"].map(|hint| {
        let s = syms.fresh(SymKind::Runtime, hint);
        syms.set_range(s, Range::new(0, 4 * MAX_SIZE));
        s
    });
    // 1 for a length of 0, of which there are no results.
    let most = l * 4 + 1;
    for list in [&[m][..], &[a], &[b], &[a, b]] {
        syms.bound_product(list, most);
    }
    syms.bound_product(&[block, m], (rows * most).min(most + BLOCK));
    let sizes = [m, a, b, block].map(Dim::from);
    for (i, d) in sizes.into_iter().enumerate() {
        cx.define(d, load(i));
    }
    let [m, a, b, block] = sizes;
    [m, a, b, cx.number("rounds", load(4), Some(1), Some(2)), block]
}
