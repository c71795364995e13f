//! The sources and weights of an output element along one axis.
//!
//! The formulas are written once over [`Num`] and evaluated in two ways. If all sizes are known, they are
//! evaluated as numbers, and the result is a table or an index expression. Otherwise they become expressions
//! of the generated code.
//!
//! Coordinates are computed in float32, operation by operation, as in ONNX Runtime and the reference
//! implementation ([`Single`]). A network that was trained or exported with them depends on which of two
//! sources a coordinate between them selects, and on weights with the rounding errors of large coordinates.
//! If sizes are known only at run time, scales p / q of small numbers are exact, so that weights repeat.
//!
//! An element has `taps` sources at `first .. first + taps`, clamped to the input (which repeats its edge).
//! With x the source coordinate, base = ceil(x) - 1 and ratio = x - base in (0, 1], source base + i has the
//! weight f((i - ratio) * s), where s is the scale if antialiasing shrinks and 1 otherwise.

use crate::nest::{BinOp, Expr, UnOp};
use crate::tensor::ElemType;
use std::ops::{Add, Div, Mul, Sub};

/// The numbers that the formulas are evaluated with.
pub trait Num:
    Clone + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// A constant.
    fn of(v: f64) -> Self;
    /// Floor.
    fn down(self) -> Self;
    /// Ceiling.
    fn up(self) -> Self;
    /// Absolute value.
    fn size(self) -> Self;
    /// Maximum.
    fn larger(self, b: Self) -> Self;
    /// `if self <= limit { then } else { els }`.
    fn at_most(self, limit: f64, then: Self, els: Self) -> Self;
    /// Rounds to the nearest float32.
    fn single(self) -> Self;
}

impl Num for f64 {
    fn of(v: f64) -> f64 {
        v
    }
    fn down(self) -> f64 {
        self.floor()
    }
    fn up(self) -> f64 {
        self.ceil()
    }
    fn size(self) -> f64 {
        self.abs()
    }
    fn larger(self, b: f64) -> f64 {
        self.max(b)
    }
    fn at_most(self, limit: f64, then: f64, els: f64) -> f64 {
        if self <= limit { then } else { els }
    }
    fn single(self) -> f64 {
        f64::from(self as f32)
    }
}

impl Num for Expr {
    fn of(v: f64) -> Expr {
        Expr::num(ElemType::F64, v)
    }
    fn down(self) -> Expr {
        Expr::un(UnOp::Floor, self)
    }
    fn up(self) -> Expr {
        Expr::un(UnOp::Ceil, self)
    }
    fn size(self) -> Expr {
        Expr::un(UnOp::Abs, self)
    }
    fn larger(self, b: Expr) -> Expr {
        self.max(b)
    }
    fn at_most(self, limit: f64, then: Expr, els: Expr) -> Expr {
        Expr::select(Expr::bin(BinOp::Le, self, Expr::of(limit)), then, els)
    }
    fn single(self) -> Expr {
        Expr::cast(ElemType::F32, ElemType::F64, Expr::cast(ElemType::F64, ElemType::F32, self))
    }
}

/// A number whose operations round to float32.
#[derive(Clone, Debug)]
pub struct Single<N>(N);

impl<N: Num> Add for Single<N> {
    type Output = Self;
    fn add(self, b: Self) -> Self {
        Single((self.0 + b.0).single())
    }
}

impl<N: Num> Sub for Single<N> {
    type Output = Self;
    fn sub(self, b: Self) -> Self {
        Single((self.0 - b.0).single())
    }
}

impl<N: Num> Mul for Single<N> {
    type Output = Self;
    fn mul(self, b: Self) -> Self {
        Single((self.0 * b.0).single())
    }
}

impl<N: Num> Div for Single<N> {
    type Output = Self;
    fn div(self, b: Self) -> Self {
        Single((self.0 / b.0).single())
    }
}

impl<N: Num> Num for Single<N> {
    fn of(v: f64) -> Self {
        Single(N::of(v.single()))
    }
    fn down(self) -> Self {
        Single(self.0.down())
    }
    fn up(self) -> Self {
        Single(self.0.up())
    }
    fn size(self) -> Self {
        Single(self.0.size())
    }
    fn larger(self, b: Self) -> Self {
        Single(self.0.larger(b.0))
    }
    fn at_most(self, limit: f64, then: Self, els: Self) -> Self {
        Single(self.0.at_most(limit, then.0, els.0))
    }
    fn single(self) -> Self {
        self
    }
}

/// `coordinate_transformation_mode`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Transform {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    /// The coordinates of a region of the input ([`Sizes::region`]).
    Crop,
    /// `tf_half_pixel_for_nn`, of version 11 only: (y + 0.5) / scale.
    HalfPixelForNearest,
}

/// `nearest_mode`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Nearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

/// The weighting of sources.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Filter {
    Nearest(Nearest),
    Linear,
    /// Cubic, with its coefficient a.
    Cubic(f64),
}

/// Sizes of one axis.
#[derive(Clone, Debug)]
pub struct Sizes<N> {
    /// Size of the input.
    pub input: N,
    /// Size of the output.
    pub output: N,
    /// Output over input, before rounding.
    pub scale: N,
    /// For `Crop`: start and end of the region as fractions of the input.
    pub region: (N, N),
}

impl<N: Num> Sizes<N> {
    /// The input coordinate of output element `y`, computed in float32 throughout.
    pub fn source_single(&self, mode: Transform, y: N) -> N {
        let single = |v: &N| Single(v.clone().single());
        let sizes = Sizes {
            input: single(&self.input),
            output: single(&self.output),
            scale: single(&self.scale),
            region: (single(&self.region.0), single(&self.region.1)),
        };
        sizes.source(mode, single(&y)).0
    }
    /// The input coordinate of output element `y`.
    pub fn source(&self, mode: Transform, y: N) -> N {
        let (n, width) = (self.input.clone(), self.scale.clone() * self.input.clone());
        let (one, half) = (N::of(1.0), N::of(0.5));
        // `then` if the output has one element.
        let single = |then: N, els: N| (width.clone() - N::of(1.0)).size().at_most(0.0, then, els);
        let centred = |y: N| (y + half.clone()) / self.scale.clone() - half.clone();
        match mode {
            Transform::HalfPixel => centred(y),
            Transform::PytorchHalfPixel => single(N::of(-0.5), centred(y)),
            Transform::HalfPixelForNearest => (y + half) / self.scale.clone(),
            Transform::HalfPixelSymmetric => {
                let centre = n / N::of(2.0);
                let offset = centre * (one - self.output.clone() / width);
                offset + centred(y)
            }
            Transform::AlignCorners => single(N::of(0.0), y * (n - one.clone()) / (width.clone() - one)),
            Transform::Asymmetric => y / self.scale.clone(),
            Transform::Crop => {
                let (from, to) = self.region.clone();
                let span = (to - from.clone()) * (n.clone() - one.clone());
                let x = single(span.clone() / N::of(2.0), y * span / (width.clone() - one.clone()));
                x + from * (n - one)
            }
        }
    }
}

impl Filter {
    /// The element nearest to coordinate `x`, before clamping.
    pub fn nearest<N: Num>(mode: Nearest, x: N) -> N {
        match mode {
            Nearest::Floor => x.down(),
            Nearest::Ceil => x.up(),
            Nearest::RoundPreferFloor => (x - N::of(0.5)).up(),
            Nearest::RoundPreferCeil => (x + N::of(0.5)).down(),
        }
    }
    /// The support of the filter to one side at scale 1; it has twice as many taps.
    pub fn reach(self) -> i64 {
        match self {
            Filter::Nearest(_) => 0,
            Filter::Linear => 1,
            Filter::Cubic(_) => 2,
        }
    }
    /// The weight at a distance.
    pub fn weight<N: Num>(self, distance: N) -> N {
        let (d, one) = (distance.size(), N::of(1.0));
        match self {
            Filter::Nearest(_) => one,
            Filter::Linear => (one - d).larger(N::of(0.0)),
            Filter::Cubic(a) => {
                let near = ((d.clone() * N::of(a + 2.0) - N::of(a + 3.0)) * d.clone()) * d.clone() + one;
                let far = ((d.clone() * N::of(a) - N::of(5.0 * a)) * d.clone() + N::of(8.0 * a)) * d.clone()
                    - N::of(4.0 * a);
                d.clone().at_most(1.0, near, d.at_most(2.0, far, N::of(0.0)))
            }
        }
    }
}

/// One axis in numbers: for each output element its first source (not clamped), its weights, and whether the
/// coordinate is outside (for `Crop`).
#[derive(Debug)]
pub struct Table {
    /// First source of each element.
    pub first: Vec<i64>,
    /// `taps` weights per element; none for nearest.
    pub weights: Vec<f64>,
    /// True for coordinates outside the input.
    pub outside: Vec<bool>,
}

/// The parameters of [`table`].
pub struct Rule {
    /// The coordinate transformation.
    pub mode: Transform,
    /// The weighting.
    pub filter: Filter,
    /// The scale of the filter, at most 1.
    pub shrink: f64,
    /// Sources per element.
    pub taps: i64,
    /// Weights are divided by their sum.
    pub normalize: bool,
    /// Only sources inside the input count (`exclude_outside`).
    pub inside: bool,
    /// Coordinates are not rounded to float32.
    pub exact: bool,
}

/// Computes the table for the output elements `0..n`.
pub fn table(sizes: &Sizes<f64>, n: usize, rule: &Rule) -> Table {
    let mut t = Table { first: Vec::with_capacity(n), weights: vec![], outside: Vec::with_capacity(n) };
    let last = sizes.input - 1.0;
    for y in 0..n {
        let exactly = sizes.source(rule.mode, y as f64);
        let x = if rule.exact { exactly } else { sizes.source_single(rule.mode, y as f64) };
        t.outside.push(x < 0.0 || x > last);
        if let Filter::Nearest(m) = rule.filter {
            t.first.push(Filter::nearest(m, x) as i64);
            continue;
        }
        // Close to an integer, rounding may select other sources with nearly the same result. The exact
        // coordinate keeps the sources on a line.
        let x = if x.ceil() == exactly.ceil() { x } else { exactly };
        let base = x.ceil() - 1.0;
        let start = 1.0 - (rule.taps / 2) as f64;
        t.first.push((base + start) as i64);
        let mut w: Vec<f64> = (0..rule.taps)
            .map(|i| {
                let i = start + i as f64;
                let out = base + i < 0.0 || base + i > last;
                if rule.inside && out { 0.0 } else { rule.filter.weight((i - (x - base)) * rule.shrink) }
            })
            .collect();
        if rule.normalize {
            let sum: f64 = w.iter().sum();
            let sum = if sum == 0.0 { 1.0 } else { sum };
            w.iter_mut().for_each(|w| *w /= sum);
        }
        t.weights.append(&mut w);
    }
    t
}

/// (a, b, c) with `v[o] == floor((a * o + b) / c)` for every o, if such small numbers exist.
pub fn line(v: &[i64]) -> Option<(i64, i64, i64)> {
    let (first, last) = (*v.first()?, *v.last()?);
    let run = v.len() as i64 - 1;
    if run == 0 {
        return Some((0, first, 1));
    }
    let slope = |c: i64, d: i64| -> Option<(i64, i64, i64)> {
        let a = ((last - first) * c + d).div_euclid(run);
        let (mut low, mut high) = (i64::MIN, i64::MAX);
        for (o, v) in v.iter().enumerate() {
            let at = v.checked_mul(c)?.checked_sub(a.checked_mul(o as i64)?)?;
            (low, high) = (low.max(at), high.min(at + c - 1));
            if low > high {
                return None;
            }
        }
        Some((a, low, c))
    };
    // The true slope is within one step of (last - first) / run.
    (1..=512).find_map(|c| [0, run / 2, run - 1, c].into_iter().find_map(|d| slope(c, d)))
}

/// The line of [`line`] through a period: `v[o]` for the outputs `0..p` of a scale p / q, which continue with
/// `v[o + p] == v[o] + q`.
pub fn periodic_line(v: &[i64], (p, q): (i64, i64)) -> Option<(i64, i64, i64)> {
    let rest = || v.iter().zip(0..).map(|(v, o)| v * p - q * o);
    let (low, high) = (rest().max()?, rest().min()? + p - 1);
    (low <= high).then_some((q, low, p))
}

/// p / q with small terms that is exactly this value.
pub fn ratio(v: f64) -> Option<(i64, i64)> {
    (1..=64)
        .map(|q| (v * q as f64, q))
        .find(|(p, _)| p.fract() == 0.0 && *p >= 1.0 && *p <= 64.0)
        .map(|(p, q)| (p as i64, q))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_round_to_float32() {
        // 213 / 160: the quotient of output element 424 differs from the exact one in float32.
        let sizes = Sizes { input: 320.0, output: 426.0, scale: 426.0 / 320.0, region: (0.0, 1.0) };
        let exact = sizes.source(Transform::HalfPixel, 424.0);
        let single = sizes.source_single(Transform::HalfPixel, 424.0);
        let expected = (424.0f32 + 0.5) / (426.0f32 / 320.0) - 0.5;
        assert_eq!(single, f64::from(expected));
        assert!(single != exact && (single - exact).abs() < 1e-4);
    }

    #[test]
    fn periods_are_lines() {
        for (p, q) in [(2, 1), (3, 2), (1, 2), (5, 3), (64, 63), (7, 4)] {
            let scale = p as f64 / q as f64;
            let v: Vec<i64> =
                (0..10 * p).map(|o| ((o as f64 + 0.5) / scale - 0.5_f64).ceil() as i64 - 1).collect();
            let (a, b, c) = periodic_line(&v[..p as usize], (p, q)).expect("a line");
            assert!(v.iter().zip(0..).all(|(v, o)| (a * o + b).div_euclid(c) == *v));
        }
    }

    #[test]
    fn lines_are_exact() {
        for (n, scale) in [(40, 2.0), (33, 1.5), (17, 0.4), (100, 3.7)] {
            let v: Vec<i64> =
                (0..n).map(|o| ((f64::from(o) + 0.5) / scale - 0.5_f64).ceil() as i64 - 1).collect();
            let (a, b, c) = line(&v).expect("a line");
            assert!(v.iter().enumerate().all(|(o, v)| (a * o as i64 + b).div_euclid(c) == *v));
        }
    }
}
