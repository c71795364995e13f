//! F(m, r): m adjacent results of a filter with r taps from m + r - 1 products (Toom, Cook; Winograd).
//!
//! Filter and image are polynomials. Their product is determined by its values at 0, at pairs of points p and
//! -p, and at infinity. The values of the transposed problem are U = G g and V = B' d, the results A' (U V).
//! For pairs of points, rows of B' and A' also form pairs, which share their even and odd halves. All
//! fractions are in U; factors of the other two are powers of two or short sums of them.

use super::transform::scaled;
use crate::nest::{Expr, KernelBuilder};
use crate::passes::nest::analysis::shape::{add, sub};

/// Points other than 0 and infinity, each with its negative. More points would lose too much precision.
const PAIRS: [f64; 3] = [1.0, 2.0, 0.5];

/// F(m, r) with one, two or three pairs of points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Form {
    results: usize,
    taps: usize,
}

/// The forms that [`super::transform`] applies in both directions.
pub(super) const SQUARE: Form = Form { results: 4, taps: 3 };
pub(super) const SMALL: Form = Form { results: 2, taps: 3 };

impl Form {
    /// All forms for a filter of `taps` taps that compute several results.
    pub fn all(taps: usize) -> impl Iterator<Item = Form> {
        (1..=PAIRS.len()).filter_map(move |p| {
            (2 * p + 3).checked_sub(taps).filter(|m| *m > 1).map(|results| Form { results, taps })
        })
    }
    /// m, results of a tile.
    pub fn results(self) -> usize {
        self.results
    }
    /// r, taps of the filter.
    pub fn taps(self) -> usize {
        self.taps
    }
    /// Products of a tile, which is also the number of image values that it reads.
    pub fn products(self) -> usize {
        self.results + self.taps - 1
    }
    fn pairs(self) -> &'static [f64] {
        PAIRS.get(..(self.products() - 2) / 2).unwrap_or(&PAIRS)
    }
    /// Coefficients, lowest first, of the product of (z - q * q) over all pairs except `p`.
    fn others(self, p: Option<f64>) -> Vec<f64> {
        self.pairs().iter().filter(|q| Some(**q) != p).fold(vec![1.0], |r, q| {
            let lower = r.iter().map(|c| -q * q * c).chain([0.0]);
            lower.zip([0.0].into_iter().chain(r.iter().copied())).map(|(a, b)| a + b).collect()
        })
    }
    /// G, with a row for each product: powers of its point, divided by the factors that B' omits.
    pub fn filter(self) -> Vec<Vec<f64>> {
        let value = |r: &[f64], z: f64| r.iter().rev().fold(0.0, |sum, c| sum * z + c);
        let row = |p: f64, n: f64| (0..self.taps).map(|t| p.powi(t as i32) / n).collect::<Vec<f64>>();
        let mut out = vec![row(0.0, value(&self.others(None), 0.0))];
        for p in self.pairs() {
            let n = 2.0 * p * p * value(&self.others(Some(*p)), p * p);
            out.extend([row(*p, n), row(-p, n)]);
        }
        out.push((0..self.taps).map(|t| if t + 1 == self.taps { 1.0 } else { 0.0 }).collect());
        out
    }
    /// B' d, for as many elements as products.
    pub fn input(self, kb: &mut KernelBuilder, d: &[Expr]) -> Vec<Expr> {
        let all = self.others(None);
        let mut out = vec![polynomial(kb, &all, d)];
        for p in self.pairs() {
            let r = self.others(Some(*p));
            let (even, odd) =
                (polynomial(kb, &r, d.get(2..).unwrap_or(d)), polynomial(kb, &r, d.get(1..).unwrap_or(d)));
            out.extend([plus(kb, *p, &odd, &even), plus(kb, -p, &odd, &even)]);
        }
        out.push(polynomial(kb, &all, d.get(1..).unwrap_or(d)));
        out
    }
    /// A' v: the results.
    pub fn output(self, kb: &mut KernelBuilder, v: &[Expr]) -> Vec<Expr> {
        let [first, pairs @ .., last] = v else { return vec![] };
        let halves: Vec<[Expr; 2]> =
            pairs.chunks_exact(2).map(|p| [add(kb, &p[0], &p[1]), sub(kb, &p[0], &p[1])]).collect();
        (0..self.results)
            .map(|j| {
                let mut sum = (j == 0).then(|| first.clone());
                for (h, p) in halves.iter().zip(self.pairs()) {
                    let h = &h[j % 2];
                    sum = Some(match sum {
                        Some(s) => plus(kb, p.powi(j as i32), h, &s),
                        // The first point is 1.
                        None => h.clone(),
                    });
                }
                match sum {
                    Some(s) if j + 1 == self.results => add(kb, &s, last),
                    s => s.unwrap_or_else(|| last.clone()),
                }
            })
            .collect()
    }
}

/// c * x + y.
fn plus(kb: &mut KernelBuilder, c: f64, x: &Expr, y: &Expr) -> Expr {
    match c {
        1.0 => add(kb, y, x),
        -1.0 => sub(kb, y, x),
        c => scaled(kb, c as f32, x, y),
    }
}

/// The linear combination of every other element; the last coefficient is 1.
fn polynomial(kb: &mut KernelBuilder, coefficients: &[f64], d: &[Expr]) -> Expr {
    let terms: Vec<(f64, &Expr)> = coefficients.iter().copied().zip(d.iter().step_by(2)).collect();
    let Some((highest, lower)) = terms.split_last() else { return Expr::f32(0.0) };
    lower.iter().rev().fold(highest.1.clone(), |sum, (c, e)| plus(kb, *c, e, &sum))
}
