//! Positions clamped to the edges of an image: where in a row no clamp has an effect.

use super::{Atom, Dim, Sym, View};

/// The steps of a loop in which the minima and maxima of some expressions have no effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inside {
    /// The first one.
    pub first: Dim,
    /// Behind the last one; it may be less than the first.
    pub end: Dim,
}

impl Dim {
    /// Replaces minima and maxima by the operand that grows with the loop variable `c`, where no other one
    /// does. Narrows `inside` to the steps in which both are equal, for every value of `l` in `0..n`.
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

impl Atom {
    fn unclamped(&self, c: Sym, lanes: (Sym, i64), inside: &mut Inside) -> Dim {
        let same = Dim::atom(self.clone());
        let (Atom::Min(v) | Atom::Max(v)) = self else { return same };
        let (moving, limits): (Vec<Dim>, Vec<Dim>) = v.iter().copied().partition(|d| d.contains(c));
        let [moving] = moving[..] else { return same };
        let mut within = *inside;
        let moving = moving.unclamped(c, lanes, &mut within);
        let Some((step, shared, (least, most))) = extremes(moving, c, lanes) else { return same };
        if limits.iter().any(|d| d.contains(lanes.0)) {
            return same;
        }
        for limit in limits {
            match self {
                Atom::Min(_) => within.end = within.end.min((limit - shared - most).floor_div(step) + 1),
                _ => within.first = within.first.max((limit - shared - least).ceil_div(step)),
            }
        }
        *inside = within;
        moving
    }
}

/// An expression as `step * c + shared` and a part that depends on `l` only: the step, which is positive, the
/// shared part, and the least and the largest value of the rest.
fn extremes(d: Dim, c: Sym, (l, n): (Sym, i64)) -> Option<(i64, Dim, (i64, i64))> {
    let (step, rest) = d.linear_in(c)?;
    let shared = rest.subst(&mut |s| (s == l).then(|| Dim::constant(0)));
    let own = rest - shared;
    let at = |i: i64| own.eval(&|s| (s == l).then_some(i));
    let values: Vec<i64> = (0..n).map(at).collect::<Option<_>>()?;
    let (least, most) = (values.iter().min()?, values.iter().max()?);
    Some((step.as_const().filter(|s| *s > 0)?, shared, (*least, *most)))
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
        // The limit moves, or the position does not grow.
        for d in [at.min(Dim::sym(c) * 9), (Dim::sym(w) - c).max(0), at.min(Dim::sym(l) * 3)] {
            let mut inside = Inside { first: Dim::constant(0), end: Dim::constant(4) };
            assert_eq!(d.unclamped(c, (l, 16), &mut inside), d);
            assert_eq!(inside, Inside { first: Dim::constant(0), end: Dim::constant(4) });
        }
    }
}
