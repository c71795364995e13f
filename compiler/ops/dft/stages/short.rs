//! Short transforms of a length that only run time knows: contractions with a matrix of weights that is computed
//! before them.

use super::*;

impl Dft {
    /// Transforms of at most [`SHORT`] elements. The extents say so: they bound the matrix.
    pub(super) fn by_matrix(&self, cx: &mut LowerCx, t: &Staged) {
        let (dims, mut out, l) = (cx.dims(t.x), cx.dims(t.y), t.length);
        let ty = cx.elem(t.x).compute();
        // Cosine and negative sine of each multiple of 2 pi / length.
        let roots = cx.temp("roots", ty, vec![Dim::constant(2), l]);
        tables::fill(cx, roots, &|_, at| tables::float(at[0]) / tables::float(l));
        let few = |d: Dim| d.min(Dim::constant(SHORT));
        out[1] = few(out[1]);
        let used = few(t.used);
        let weights = cx.temp("weights", ty, vec![used, dims[3], out[1], out[3]]);
        cx.map(weights, |k, at| {
            let turns = (at[0] * at[2]).modulo(l);
            let root = [0, 1].map(|p: i64| k.load(roots, &[p.into(), turns]));
            self.weight(root, [at[1], at[3]], at[0], l, ty)
        });
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, at| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[used, dims[3]], |k, r| {
                    let v = k.load(t.x, &[at[0], r[0], at[2], r[1]]);
                    let w = k.load(weights, &[r[0], r[1], at[1], at[3]]);
                    k.set(acc, product_sum(ty, v, w, Expr::acc(acc)));
                });
                k.store(t.y, at, Expr::acc(acc));
            });
        });
    }
    /// The weight of part `from` of element `n` in part `to` of a frequency, given the root of their angle.
    fn weight(&self, [cos, sin]: Pair, [from, to]: [Dim; 2], n: Dim, length: Dim, ty: ElemType) -> Expr {
        let (forward, backward) = if self.inverse { (-sin.clone(), sin) } else { (sin.clone(), -sin) };
        let same = Expr::cmp_index(BinOp::Eq, from, to);
        let v =
            Expr::select(same, cos, Expr::select(Expr::cmp_index(BinOp::Lt, from, to), forward, backward));
        if !self.inverse {
            return v;
        }
        let v = v / Expr::cast(ElemType::I64, ty, Expr::index(length));
        if !self.onesided {
            return v;
        }
        // Elements of half a spectrum count twice, except the first, and that in the middle.
        let once = runtime::or(Expr::cmp_index(BinOp::Eq, n, 0), Expr::cmp_index(BinOp::Eq, n * 2, length));
        v * Expr::select(once, Expr::num(ty, 1.0), Expr::num(ty, 2.0))
    }
}
