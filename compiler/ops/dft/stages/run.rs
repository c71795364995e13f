//! The loop of the driver over the stages of a block of rows, and their kernels.

use super::*;

impl Stages {
    /// Emits the loop over the stages of `rows`; returns the half of the buffer that has the result.
    pub(super) fn run(&self, cx: &mut LowerCx, rows: &Rows) -> Dim {
        // Phase, size of the vectors, remaining factor of the phase's length, half that is read.
        let state = cx.temp("stage", ElemType::I64, vec![Dim::constant(4)]);
        let field = |i: i64| Expr::Load { buf: state, at: vec![i.into()] };
        cx.kernel(|k| {
            for (i, v) in (0i64..).zip([0.into(), self.b, self.a, 0.into()]) {
                k.store(state, &[i.into()], Expr::index(v));
            }
        });
        let body = nested(cx, |cx| {
            let mut number = |hint: &str, i: i64| again(cx, hint, field(i));
            let (phase, width) = (number("phase", 0), number("width", 1));
            let (rest, half) = (number("rest", 2), number("half", 3));
            let at = Stage { s: self, half, count: rows.count };
            let four = nested(cx, |cx| at.radix_4(cx, width, rest.floor_div(4)));
            let two = nested(cx, |cx| at.radix_2(cx, width));
            let transposed = nested(cx, |cx| at.transpose(cx));
            let convolved = nested(cx, |cx| at.multiply(cx));
            let even = Expr::cmp_index(BinOp::Eq, phase.modulo(2), 0);
            let end = vec![Stmt::If { cond: even, then: transposed, els: convolved }];
            let last = vec![Stmt::If { cond: Expr::cmp_index(BinOp::Eq, rest, 2), then: two, els: end }];
            cx.m.driver.push(Stmt::If { cond: Expr::cmp_index(BinOp::Le, 4, rest), then: four, els: last });
            cx.kernel(|k| {
                let done = k.let_(Expr::cmp_index(BinOp::Lt, rest, 2));
                let radix = k.let_(Expr::select(Expr::cmp_index(BinOp::Eq, rest, 2), int(2), int(4)));
                let odd = k.let_(Expr::cmp_index(BinOp::Eq, phase.modulo(2), 1));
                let of = |a: Dim, b: Dim| Expr::select(odd.clone(), Expr::index(a), Expr::index(b));
                let next = [
                    Expr::index(phase) + runtime::one_if(done.clone()),
                    Expr::select(done.clone(), of(self.b, self.a), Expr::index(width) * radix.clone()),
                    Expr::select(done, of(self.a, self.b), Expr::index(rest) / radix),
                    int(1) - Expr::index(half),
                ];
                let next = next.map(|v| k.let_(v));
                for (i, v) in (0i64..).zip(next) {
                    k.store(state, &[i.into()], v);
                }
            });
        });
        let last = eq(field(0), Expr::index(rows.rounds * 2 - 1)).and(le(field(2), int(1)));
        let cond = eq(Expr::select(last, int(1), int(0)), int(0));
        cx.m.driver.push(Stmt::While { cond, body });
        again(cx, "half", field(3))
    }
}

/// The kernels of one stage, which read from `half`.
struct Stage<'a> {
    s: &'a Stages,
    half: Dim,
    /// Number of rows.
    count: Dim,
}

impl Stage<'_> {
    /// A kernel that stores what `values` returns for each of `sizes`: positions and elements of a row, which
    /// `values` gets with the loop variables.
    fn kernel(
        &self,
        cx: &mut LowerCx,
        sizes: [Dim; 2],
        values: impl Fn(&mut KernelBuilder, Dim, &[Dim]) -> Vec<(Dim, Pair)>,
    ) {
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[self.count, sizes[0], sizes[1]], |k, at| {
                let values = values(k, at[0], &at[1..]);
                for (position, v) in values {
                    for (part, v) in v.into_iter().enumerate() {
                        let half = Dim::constant(1) - self.half;
                        k.store(self.s.work, &[half, at[0], part.into(), position], v);
                    }
                }
            });
        });
    }
    fn read(&self, k: &mut KernelBuilder, row: Dim, position: Dim) -> Pair {
        [0, 1].map(|p: i64| {
            let v = k.load(self.s.work, &[self.half, row, p.into(), position]);
            k.let_(v)
        })
    }
    /// Combines `width` elements at each of four positions, `quarter` vectors apart.
    fn radix_4(&self, cx: &mut LowerCx, width: Dim, quarter: Dim) {
        self.kernel(cx, [quarter, width], |k, row, at| {
            let (p, u) = (at[0], at[1]);
            let [a, b, c, d] = [0, 1, 2, 3].map(|i: i64| self.read(k, row, u + width * (p + quarter * i)));
            let sum = |k: &mut KernelBuilder, x: &Pair, y: &Pair| -> Pair {
                [0, 1].map(|i: usize| k.let_(x[i].clone() + y[i].clone()))
            };
            let difference = |k: &mut KernelBuilder, x: &Pair, y: &Pair| -> Pair {
                [0, 1].map(|i: usize| k.let_(x[i].clone() - y[i].clone()))
            };
            let (even, odd) = (sum(k, &a, &c), sum(k, &b, &d));
            let (apart, other) = (difference(k, &a, &c), difference(k, &b, &d));
            // other * i
            let other: Pair = [k.let_(-other[1].clone()), other[0].clone()];
            let results = [
                sum(k, &even, &odd),
                difference(k, &apart, &other),
                difference(k, &even, &odd),
                sum(k, &apart, &other),
            ];
            let mut out = vec![];
            for (j, v) in (0i64..).zip(results) {
                let v = if j == 0 { v } else { times(&v, &self.s.pair(k, self.s.roots, &[p * width * j])) };
                out.push((u + width * (p * 4 + j), v));
            }
            out
        });
    }
    /// The last stage of a phase whose length is no power of four.
    fn radix_2(&self, cx: &mut LowerCx, width: Dim) {
        self.kernel(cx, [1.into(), width], |k, row, at| {
            let u = at[1];
            let (a, b) = (self.read(k, row, u), self.read(k, row, u + width));
            let sum = [0, 1].map(|i: usize| a[i].clone() + b[i].clone());
            let difference = [0, 1].map(|i: usize| a[i].clone() - b[i].clone());
            vec![(u, sum), (u + width, difference)]
        });
    }
    /// Between the phases: columns of `a` points become columns of `b` points.
    fn transpose(&self, cx: &mut LowerCx) {
        self.kernel(cx, [self.s.b, self.s.a], |k, row, at| {
            let (n, f) = (at[0], at[1]);
            let v = self.read(k, row, n + self.s.b * f);
            let w = self.s.pair(k, self.s.turns, &[n, f]);
            vec![(f + self.s.a * n, times(&v, &w))]
        });
    }
    /// Between the transforms of a convolution: the conjugate of the product with the chirp's spectrum.
    fn multiply(&self, cx: &mut LowerCx) {
        self.kernel(cx, [1.into(), self.s.m], |k, row, at| {
            let (v, w) = (self.read(k, row, at[1]), self.s.pair(k, self.s.spectrum, &at[1..]));
            let [re, im] = times(&v, &w);
            vec![(at[1], [re, -im])]
        });
    }
}
