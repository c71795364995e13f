//! Windows along one dimension of what a nest reads.

use super::Loops;
use crate::sym::{Dim, Sym};

/// A subscript `step * i + dilation * tap + first` of a loop around the nest and one of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slide {
    /// The loop around, `i`, and its extent.
    pub along: (Sym, Dim),
    /// Elements from one iteration to the next, at least one.
    pub step: i64,
    /// The loop of the window and its extent; none where it has a single element here.
    pub tap: Option<(Sym, Dim)>,
    /// Elements from one tap to the next, at least one.
    pub dilation: i64,
    /// The first element.
    pub first: i64,
}

impl Slide {
    /// The subscript as such a window, if it is one of a nest with these loops and taps.
    pub fn of(at: Dim, loops: &Loops, taps: &Loops) -> Option<Slide> {
        let only = |list: &Loops| {
            let mut found = list.iter().filter(|l| at.contains(l.0));
            found.next().copied().filter(|_| found.next().is_none())
        };
        let (along, tap) = (only(loops)?, only(taps));
        let (step, rest) = at.linear_in(along.0)?;
        let (dilation, rest) = tap.map_or(Some((Dim::constant(1), rest)), |t| rest.linear_in(t.0))?;
        let positive = |d: Dim| d.as_const().filter(|n| *n > 0);
        Some(Slide {
            along,
            tap,
            step: positive(step)?,
            dilation: positive(dilation)?,
            first: rest.as_const()?,
        })
    }
    /// The same, if it moves by single elements in both loops.
    pub fn unit(at: Dim, loops: &Loops, taps: &Loops) -> Option<Slide> {
        Slide::of(at, loops, taps).filter(|s| s.step == 1 && s.dilation == 1)
    }
    /// How many taps there are, if that is known.
    pub fn taps(&self) -> Option<i64> {
        self.tap.map_or(Some(1), |t| t.1.as_const())
    }
}
