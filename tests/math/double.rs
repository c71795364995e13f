//! Values of elementary functions to more than a hundred bits, to compare f64 with: sums of two floats (T. J.
//! Dekker), and series whose terms have one sign.

use std::f64::consts::{FRAC_1_SQRT_2, LN_2};

/// A number: the sum of two, the second less than half a unit of the first.
#[derive(Clone, Copy, Debug)]
struct Pair(f64, f64);

/// ln 2.
const LN2: Pair = Pair(LN_2, 2.319_046_813_846_299_6e-17);
/// 2 / sqrt pi.
const TWO_BY_ROOT_PI: Pair = Pair(std::f64::consts::FRAC_2_SQRT_PI, 1.533_545_961_316_588e-17);
const ONE: Pair = Pair(1.0, 0.0);

fn sum(a: f64, b: f64) -> Pair {
    let s = a + b;
    let t = s - a;
    Pair(s, (a - (s - t)) + (b - t))
}

fn product(a: f64, b: f64) -> Pair {
    let p = a * b;
    Pair(p, a.mul_add(b, -p))
}

impl Pair {
    fn plus(self, o: Pair) -> Pair {
        let (s, t) = (sum(self.0, o.0), sum(self.1, o.1));
        let s = sum(s.0, s.1 + t.0);
        sum(s.0, s.1 + t.1)
    }
    fn minus(self, o: Pair) -> Pair {
        self.plus(Pair(-o.0, -o.1))
    }
    fn times(self, o: Pair) -> Pair {
        let p = product(self.0, o.0);
        sum(p.0, p.1 + (self.0 * o.1 + self.1 * o.0))
    }
    fn by(self, o: Pair) -> Pair {
        let q = self.0 / o.0;
        let rest = self.minus(o.times(Pair(q, 0.0)));
        let r = rest.0 / o.0;
        let rest = rest.minus(o.times(Pair(r, 0.0)));
        sum(q, r).plus(Pair(rest.0 / o.0, 0.0))
    }
    fn scaled(self, n: i32) -> Pair {
        Pair(libm::ldexp(self.0, n), libm::ldexp(self.1, n))
    }
}

/// A value: a number times a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Value(Pair, i32);

/// Functions that are a x (1 + b x^k) near 0, where all else is below what counts.
fn tiny(x: f64, factor: Pair, b: f64, k: i32) -> Option<Value> {
    (x.abs() < 2f64.powi(-60)).then(|| {
        let (m, e) = libm::frexp(x);
        Value(factor.times(Pair(m, 0.0)).times(sum(1.0, b * x.powi(k))), e)
    })
}

/// e^r - 1 for small r, and e^x as a number and an exponent.
fn expm1_near_0(r: Pair) -> Pair {
    let (mut term, mut all) = (r, r);
    for n in 2..40 {
        term = term.times(r).by(Pair(f64::from(n), 0.0));
        all = all.plus(term);
    }
    all
}

fn exp_of(x: Pair) -> Value {
    let n = (x.0 / LN_2).round();
    let r = x.minus(LN2.times(Pair(n, 0.0)));
    Value(expm1_near_0(r).plus(ONE), n as i32)
}

pub fn exp(x: f64) -> Value {
    exp_of(Pair(x.clamp(-800.0, 800.0), 0.0))
}

pub fn expm1(x: f64) -> Value {
    if let Some(v) = tiny(x, ONE, 0.5, 1) {
        return v;
    }
    Value(expm1_of(x.clamp(-800.0, 800.0)), 0).settled(x)
}

/// For |x| <= 700 or so.
fn expm1_of(x: f64) -> Pair {
    if x.abs() < 0.35 {
        return expm1_near_0(Pair(x, 0.0));
    }
    let e = exp(x.min(700.0));
    e.0.scaled(e.1).minus(ONE)
}

/// ln of a positive number.
fn log_of(x: Pair) -> Pair {
    let (_, mut e) = libm::frexp(x.0);
    let mut m = x.scaled(-e);
    if m.0 < FRAC_1_SQRT_2 {
        (m, e) = (m.scaled(1), e - 1);
    }
    // 2 artanh(f / (2 + f)).
    let f = m.minus(ONE);
    let s = f.by(f.plus(Pair(2.0, 0.0)));
    let z = s.times(s);
    let (mut power, mut all) = (s, s);
    for n in 1..26 {
        power = power.times(z);
        all = all.plus(power.by(Pair(f64::from(2 * n + 1), 0.0)));
    }
    all.scaled(1).plus(LN2.times(Pair(f64::from(e), 0.0)))
}

pub fn log(x: f64) -> Value {
    let (m, e) = libm::frexp(x);
    // Only where the exponents cancel does a number near 1 keep what it has.
    let v = if (0.5..2.0).contains(&x) {
        log_of(Pair(x, 0.0))
    } else {
        log_of(Pair(m, 0.0)).plus(LN2.times(Pair(f64::from(e), 0.0)))
    };
    Value(v, 0)
}

pub fn log1p(x: f64) -> Value {
    tiny(x, ONE, -0.5, 1).unwrap_or_else(|| Value(log_of(sum(1.0, x)), 0))
}

pub fn tanh(x: f64) -> Value {
    if let Some(v) = tiny(x, ONE, -1.0 / 3.0, 2) {
        return v;
    }
    let t = expm1_of(2.0 * x.clamp(-100.0, 100.0));
    Value(t.by(t.plus(Pair(2.0, 0.0))), 0)
}

pub fn sigmoid(x: f64) -> Value {
    if x < -60.0 {
        // e^x (1 - e^x).
        let e = exp(x);
        return Value(e.0.times(ONE.minus(e.0.scaled(e.1))), e.1);
    }
    let e = exp(-x.min(700.0));
    Value(ONE.by(ONE.plus(e.0.scaled(e.1))), 0)
}

pub fn erf(x: f64) -> Value {
    if let Some(v) = tiny(x, TWO_BY_ROOT_PI, -1.0 / 3.0, 2) {
        return v;
    }
    if x.abs() > 7.0 {
        return Value(Pair(x.signum(), 0.0), 0);
    }
    // 2 / sqrt pi x e^(-x^2) (1 + 2 x^2 / 3 + (2 x^2)^2 / 15 + ..)
    let square = product(x, x);
    let (mut term, mut all) = (ONE, ONE);
    for n in 1..400 {
        term = term.times(square.scaled(1)).by(Pair(f64::from(2 * n + 1), 0.0));
        all = all.plus(term);
        if term.0 < 1e-36 * all.0 {
            break;
        }
    }
    let e = exp_of(Pair(-square.0, -square.1));
    Value(e.0.scaled(e.1).times(all).times(TWO_BY_ROOT_PI).times(Pair(x, 0.0)), 0)
}

pub fn cube(x: f64) -> Value {
    let (m, e) = libm::frexp(x);
    Value(product(m, m).times(Pair(m, 0.0)), 3 * e)
}

/// 1 / sqrt x.
pub fn inverse_root(x: f64) -> Value {
    let (mut m, mut e) = libm::frexp(x);
    if e % 2 != 0 {
        (m, e) = (2.0 * m, e - 1);
    }
    // A step of Newton's for the root.
    let y = 1.0 / m.sqrt();
    let rest = ONE.minus(product(y, y).times(Pair(m, 0.0)));
    Value(sum(y, 0.5 * y * rest.0), -e / 2)
}

impl Value {
    /// Where e^x is too large for a number, it is all that counts.
    fn settled(self, x: f64) -> Value {
        if x > 650.0 { exp(x) } else { self }
    }
    /// As a float, to show it.
    pub fn rounded(self) -> f64 {
        libm::ldexp(self.0.0, self.1)
    }
    /// How far a float is from the value, in units of the last place. Beyond the largest number infinity is
    /// one step further.
    pub fn error(self, got: f64) -> f64 {
        let Value(v, e) = self;
        if got.is_nan() || v.0.is_nan() {
            return if got.is_nan() == v.0.is_nan() { 0.0 } else { f64::INFINITY };
        }
        let limit = libm::ldexp(1.0, 1024 - e);
        let clamped = |x: f64| x.clamp(-limit, limit);
        let got = if got.is_infinite() { got.signum() * limit } else { libm::ldexp(got, -e) };
        let (v, beyond) = if v.0.abs() >= limit { (Pair(clamped(v.0), 0.0), 1) } else { (v, 0) };
        // frexp's mantissas are in [1/2, 1).
        let unit = (libm::frexp(v.0).1 - 53 - beyond).max(-1074 - e);
        let d = sum(got, -v.0);
        libm::ldexp((d.0 + (d.1 - v.1)).abs(), -unit)
    }
}
