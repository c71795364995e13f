//! Convolutions: contractions of images and filters.

use super::{Contraction, Loops, Slide, depends};
use crate::sym::{Dim, Sym};

/// A contraction of `image[n][c][..]` and `filters[k][c][..]`. Each loop occurs only in the subscripts that
/// its name implies; loops over positions of the result occur in the image only.
pub(crate) struct Convolution<'a> {
    sum: &'a Contraction,
    /// The loop over images; `None` for a single image.
    pub batch: Option<(Sym, Dim)>,
    /// The loop over filters, the channels of the result.
    pub filters: (Sym, Dim),
    /// The loops over positions of the result.
    pub positions: Vec<(Sym, Dim)>,
}

/// The loop of a subscript that is one of `loops` or 0.
pub(crate) fn loop_or_zero(loops: &Loops, at: Dim) -> Option<Option<(Sym, Dim)>> {
    match (at.as_sym(), at.as_const()) {
        (Some(s), _) => loops.iter().find(|l| l.0 == s).map(|l| Some(*l)),
        (_, Some(0)) => Some(None),
        _ => None,
    }
}

/// True if the variable occurs in this subscript and in no other.
fn stands_in(at: &[Dim], own: usize, s: Sym) -> bool {
    at.iter().enumerate().all(|(i, d)| d.contains(s) == (i == own))
}

impl Convolution<'_> {
    /// The contraction as a convolution, if it is one.
    pub fn of(sum: &Contraction) -> Option<Convolution<'_>> {
        let (image, weights) = (&sum.a.1, &sum.b.1);
        let ([n, c, ..], [k, depth, ..]) = (image.as_slice(), weights.as_slice()) else { return None };
        let batch = loop_or_zero(&sum.loops, *n)?;
        let filters = loop_or_zero(&sum.loops, *k)??;
        let is_position = |l: &&(Sym, Dim)| l.0 != filters.0 && batch.is_none_or(|n| n.0 != l.0);
        let positions: Vec<(Sym, Dim)> = sum.loops.iter().filter(is_position).copied().collect();
        let fits = image.len() == weights.len()
            && c == depth
            && !depends(image, filters.0)
            && stands_in(weights, 0, filters.0)
            && batch.is_none_or(|n| stands_in(image, 0, n.0) && !depends(weights, n.0))
            && !positions.iter().any(|l| depends(weights, l.0) || c.contains(l.0));
        fits.then_some(Convolution { sum, batch, filters, positions })
    }
    /// The loop over channels of the image.
    pub fn channels(&self) -> Option<(Sym, Dim)> {
        loop_or_zero(&self.sum.reduction, self.sum.a.1[1])?
    }
    /// The window along a dimension of image and filters.
    pub fn window(&self, axis: usize) -> Option<Slide> {
        let (image, weights) = (&self.sum.a.1, &self.sum.b.1);
        let slide = Slide::of(*image.get(axis)?, &self.sum.loops, &self.sum.reduction)?;
        let tap = slide.tap?.0;
        let own = stands_in(image, axis, slide.along.0)
            && stands_in(image, axis, tap)
            && stands_in(weights, axis, tap)
            && weights[axis].as_sym() == Some(tap);
        own.then_some(slide)
    }
    /// The same, if stride and dilation are one and the window begins inside the image.
    pub fn unit_window(&self, axis: usize) -> Option<Slide> {
        self.window(axis).filter(|s| s.step == 1 && s.dilation == 1 && s.first >= 0)
    }
}
