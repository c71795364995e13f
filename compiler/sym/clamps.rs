//! Positions clamped to the edges of an image, reflected at them or repeated: where in a row they are linear.

use super::{Atom, Dim, Sym, View};

/// The steps of a loop in which the minima, maxima and remainders of some expressions have no effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inside {
    /// The first one.
    pub first: Dim,
    /// Behind the last one; it may be less than the first.
    pub end: Dim,
}

impl Dim {
    /// Replaces minima and maxima by the operand that grows with the loop variable `c`, where no other one
    /// does, and remainders by their dividend less whole divisors. Narrows `inside` to the steps in which
    /// both are equal, for every value of `l` in `0..n`.
    pub fn unclamped(self, c: Sym, (l, n): (Sym, i64), inside: &mut Inside) -> Dim {
        let View::Sum { terms, constant } = self.view() else { return self };
        if !self.contains(c) {
            return self;
        }
        let mut sum = Dim::constant(constant);
        for (k, atoms) in terms {
            let factors = atoms.iter().map(|a| a.unclamped(c, (l, n), inside));
            sum = sum + Dim::product(factors.chain([Dim::constant(*k)]));
        }
        sum
    }
}

impl Inside {
    /// Narrows the steps to those in which `d` is not negative. `None` if it neither grows nor falls with
    /// `c`.
    pub fn nonneg(&mut self, d: Dim, c: Sym) -> Option<()> {
        self.from(d, c, (c, 1)).or_else(|| self.until(-d, c, (c, 1)))
    }
    /// Narrows the steps to those in which `d` is not positive. `None` if it does not grow with `c`.
    fn until(&mut self, d: Dim, c: Sym, lanes: (Sym, i64)) -> Option<()> {
        let (step, shared, (_, most)) = extremes(d, c, lanes)?;
        self.end = self.end.min((-shared - most).floor_div(step) + 1);
        Some(())
    }
    /// Narrows the steps to those in which `d` is not negative. `None` if it does not grow with `c`.
    fn from(&mut self, d: Dim, c: Sym, lanes: (Sym, i64)) -> Option<()> {
        let (step, shared, (least, _)) = extremes(d, c, lanes)?;
        self.first = self.first.max((-shared - least).ceil_div(step));
        Some(())
    }
}

impl Atom {
    fn unclamped(&self, c: Sym, lanes: (Sym, i64), inside: &mut Inside) -> Dim {
        let mut within = *inside;
        let plain = match self {
            Atom::Min(v) | Atom::Max(v) => self.growing(v, c, lanes, &mut within),
            Atom::Mod(x, y) if !y.contains(c) && !y.contains(lanes.0) => {
                dividend(*x, *y, c, lanes, &mut within)
            }
            _ => None,
        };
        let Some(plain) = plain else { return Dim::atom(self.clone()) };
        *inside = within;
        plain
    }
    /// The operand of a minimum or maximum that grows with `c`.
    fn growing(&self, operands: &[Dim], c: Sym, lanes: (Sym, i64), inside: &mut Inside) -> Option<Dim> {
        let operands: Vec<Dim> = operands.iter().map(|d| d.unclamped(c, lanes, inside)).collect();
        let grows = |d: &Dim| extremes(*d, c, lanes).is_some();
        let (growing, others): (Vec<Dim>, Vec<Dim>) = operands.into_iter().partition(grows);
        let [growing] = growing[..] else { return None };
        for other in others {
            match self {
                Atom::Min(_) => inside.until(growing - other, c, lanes)?,
                _ => inside.from(growing - other, c, lanes)?,
            }
        }
        Some(growing)
    }
}

/// The remainder of `x` by `y` as a difference: in the first whole period if the beginning of `x` is known,
/// else where `x` itself is the remainder.
fn dividend(x: Dim, y: Dim, c: Sym, lanes: (Sym, i64), inside: &mut Inside) -> Option<Dim> {
    let x = x.unclamped(c, lanes, inside);
    let Some((_, shared, (least, _))) = extremes(x, c, lanes) else {
        return falling_dividend(x, y, c, lanes, inside);
    };
    let period = (shared + least).ceil_div(y).as_const().unwrap_or(0);
    let rest = x - y * period;
    inside.from(rest, c, lanes)?;
    inside.until(rest - y + 1, c, lanes)?;
    Some(rest)
}

/// The same for an `x` that falls: in the period of its beginning, if that is known to be negative or not.
fn falling_dividend(x: Dim, y: Dim, c: Sym, lanes: (Sym, i64), inside: &mut Inside) -> Option<Dim> {
    let (_, shared, (least, _)) = extremes(-x, c, lanes)?;
    let below = (shared + least).as_const().is_some_and(|d| d > 0);
    let rest = if below { x + y } else { x };
    inside.until(-rest, c, lanes)?;
    inside.from(y - 1 - rest, c, lanes)?;
    Some(rest)
}

/// An expression as `step * c + shared` and a part that depends on `l` only: the step, which is positive, the
/// shared part, and the least and the largest value of the rest.
fn extremes(d: Dim, c: Sym, (l, n): (Sym, i64)) -> Option<(i64, Dim, (i64, i64))> {
    let (step, rest) = d.linear_in(c)?;
    let step = step.as_const().filter(|s| *s > 0)?;
    let shared = rest.subst(&mut |s| (s == l).then(|| Dim::constant(0)));
    let own = rest - shared;
    let at = |i: i64| own.eval(&|s| (s == l).then_some(i));
    let values: Vec<i64> = (0..n).map(at).collect::<Option<_>>()?;
    let (least, most) = (values.iter().min()?, values.iter().max()?);
    Some((step, shared, (*least, *most)))
}

#[cfg(test)]
mod tests {
    use super::super::SymTable;
    use super::*;

    #[test]
    fn clamps_have_no_effect_inside() {
        let mut syms = SymTable::new();
        let (w, c, l) = (syms.param("w"), syms.param("c"), syms.param("l"));
        let at = Dim::sym(c) * 8 + (Dim::sym(l) + 1).floor_div(2) - 1;
        let clamped = Dim::sym(w) * 3 + at.max(0).min(Dim::sym(w) - 1);
        for width in 1..40 {
            let mut inside = Inside { first: Dim::constant(0), end: Dim::constant(4) };
            let plain = clamped.unclamped(c, (l, 16), &mut inside);
            assert_eq!(plain, Dim::sym(w) * 3 + at);
            let value = |d: Dim, i: i64, lane: i64| {
                d.eval(&|s| {
                    Some(if s == w {
                        width
                    } else if s == c {
                        i
                    } else {
                        lane
                    })
                })
                .unwrap_or(-1)
            };
            for i in 0..4 {
                let none = (0..16).all(|lane| value(clamped, i, lane) == value(plain, i, lane));
                let within = (value(inside.first, 0, 0)..value(inside.end, 0, 0)).contains(&i);
                assert_eq!(none, within, "{width} {i}");
            }
        }
        // The limit moves faster, or the position does not grow.
        for d in [at.min(Dim::sym(c) * 9), (Dim::sym(w) - c).max(0)] {
            let mut inside = Inside { first: Dim::constant(0), end: Dim::constant(4) };
            assert_eq!(d.unclamped(c, (l, 16), &mut inside), d);
            assert_eq!(inside, Inside { first: Dim::constant(0), end: Dim::constant(4) });
        }
    }

    #[test]
    fn reflected_and_repeated_positions_are_linear_inside() {
        let mut syms = SymTable::new();
        let (w, c) = (syms.param("w"), syms.param("c"));
        let (width, p) = (Dim::sym(w), Dim::sym(c) - 3);
        let period = (width * 2 - 2).max(1);
        let at = p.modulo(period);
        let (reflected, repeated) = (at.min(period - at).min(width - 1).max(0), p.modulo(width));
        for (d, plain) in [(reflected, p), (repeated, p), ((p + 10).modulo(5), p)] {
            let mut inside = Inside { first: Dim::constant(0), end: width + 6 };
            assert_eq!(d.unclamped(c, (c, 1), &mut inside), plain);
            for width in 1..9 {
                let value = |d: Dim, i: i64| d.eval(&|s| Some(if s == w { width } else { i })).unwrap_or(-9);
                let steps = value(inside.first, 0)..value(inside.end, 0);
                assert!(steps.clone().all(|i| value(d, i) == value(plain, i)), "{width}");
                let size = if d == reflected || d == repeated { width } else { 5 };
                assert!(steps.clone().count() as i64 >= size.min(width + 3), "{width} {steps:?}");
            }
        }
    }

    #[test]
    fn reflected_positions_are_linear_outside() {
        let mut syms = SymTable::new();
        let (w, c) = (syms.param("w"), syms.param("c"));
        let width = Dim::sym(w);
        let period = (width * 2 - 2).max(1);
        let reflected = |p: Dim| {
            let at = p.modulo(period);
            at.min(period - at).min(width - 1).max(0)
        };
        // Backwards from the first element, and from the last of seven behind the row.
        let (before, behind) = (-Dim::sym(c) - 1, width + 6 - c);
        for (p, plain) in [(before, -before), (behind, period - behind)] {
            let d = reflected(p);
            for width in 2..20 {
                let mut inside = Inside { first: Dim::constant(0), end: Dim::constant(7) };
                assert_eq!(d.unclamped(c, (c, 1), &mut inside), plain);
                let value = |d: Dim, i: i64| d.eval(&|s| Some(if s == w { width } else { i })).unwrap_or(-9);
                let steps = value(inside.first, 0)..value(inside.end, 0);
                assert!(steps.clone().all(|i| value(d, i) == value(plain, i)), "{width} {steps:?}");
                assert!(steps.clone().count() as i64 >= 7.min(width - 2), "{width} {steps:?}");
            }
        }
    }
}
