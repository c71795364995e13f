//! Convolutions: contractions of images and filters.

use super::{Contraction, Loops, Slide, depends};
use crate::sym::{Dim, Sym};

/// A contraction of `image[n][c][..]` and `filters[k][c][..]`. Each loop is where its name says and nowhere
/// else; what runs over positions of the result depends on the image alone.
pub(crate) struct Convolution<'a> {
    sum: &'a Contraction,
    /// The loop over images; none where there is one.
    pub batch: Option<(Sym, Dim)>,
    /// The loop over filters, the channels of the result.
    pub filters: (Sym, Dim),
    /// The other loops.
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

/// True if the variable is in this subscript and in no other.
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
    /// The same, if it moves by single elements in both loops and begins in the image.
    pub fn unit_window(&self, axis: usize) -> Option<Slide> {
        self.window(axis).filter(|s| s.step == 1 && s.dilation == 1 && s.first >= 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nest::parse::parse;

    /// The form of a convolution whose image and filters are read so, by loops i0 (4), i1 (6), i2 (5) over the
    /// result and c (3), r (3) over the sum.
    fn of(image: &str, filter: &str, check: impl FnOnce(Option<Convolution>)) {
        let text = format!(
            "nest v1 t stage=built\nbuf x : f32[1, 9, 20, 20] input 0\nbuf w : f32[9, 9, 3, 3] input 1\n\
             buf y : f32[4, 6, 5] output 0\nkernel y\n  par i0 in 0..4 {{\n    par i1 in 0..6 {{\n      \
             par i2 in 0..5 {{\n        acc %0 = 0.0 : f32\n        seq i3 in 0..3 {{\n          \
             seq i4 in 0..3 {{\n            %0 = fma(x[{image}], w[{filter}], %0)\n          }}\n        }}\n        \
             y[i0, i1, i2] = %0\n      }}\n    }}\n  }}\ndriver\n  call y\n"
        );
        let m = parse(&text, &|_| None).expect("a module");
        let k = m.kernels.keys().next().expect("a kernel");
        check(Convolution::of(m.form(k).contraction().expect("a contraction")));
    }

    #[test]
    fn loops_stand_where_their_names_say() {
        of("0, i3, i1 * 2 + i4 * 3, i2", "i0, i3, i4, 0", |c| {
            let c = c.expect("a convolution");
            assert!(c.batch.is_none() && c.filters.1.as_const() == Some(4) && c.positions.len() == 2);
            assert_eq!(c.channels().and_then(|c| c.1.as_const()), Some(3));
            let rows = c.window(2).expect("a window");
            assert_eq!((rows.step, rows.dilation, rows.first, rows.taps()), (2, 3, 0, Some(3)));
            // No window of unit steps, and none without a tap.
            assert!(c.unit_window(2).is_none() && c.window(3).is_none());
        });
        of("0, i3, i1 + i4, i2", "i0, i3, i4, 0", |c| assert!(c.expect("one").unit_window(2).is_some()));
    }

    #[test]
    fn groups_and_shared_loops_are_none() {
        // Channels of a group, weights that differ by position, filters that the image knows.
        for (image, filter) in [
            ("0, i0 + i3, i1 + i4, i2", "i0, i3, i4, 0"),
            ("0, i3, i1 + i4, i2", "i0, i3, i4, i2"),
            ("0, i3, i1 + i4, i0", "i0, i3, i4, 0"),
            ("0, i3, i1 + i4, i2", "i0 + 1, i3, i4, 0"),
        ] {
            of(image, filter, |c| assert!(c.is_none(), "{image} by {filter}"));
        }
        // A tap that moves two dimensions is no window.
        of("0, i3, i1 + i4, i2 + i4", "i0, i3, i4, 0", |c| assert!(c.is_none_or(|c| c.window(2).is_none())));
    }
}
