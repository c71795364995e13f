//! Affine rearrangements of constant data, evaluated piece by piece.

use super::ConstData;

/// An affine rearrangement: element `o` of the result is source element `s` with
/// `s[d] = offset[d] + sum_k coeff[d][k] * o[k]`, or zero where `s` is outside the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remap {
    /// Shape of the result.
    pub dims: Vec<i64>,
    /// One offset per source dimension.
    pub offset: Vec<i64>,
    /// For each source dimension, one coefficient per result dimension.
    pub coeff: Vec<Vec<i64>>,
}

impl Remap {
    /// Writes the elements of the result to `sink` in pieces.
    pub(super) fn write(&self, src: &ConstData, sink: &mut dyn FnMut(&[u8])) {
        let esize = src.elem.bytes().unwrap_or(1) as usize;
        let data = src.bytes();
        let rank = self.dims.len();
        if self.dims.contains(&0) {
            return;
        }
        let mut strides = vec![1i64; src.dims.len()];
        for d in (0..src.dims.len().saturating_sub(1)).rev() {
            // The sizes of an empty source may overflow, but nothing is read from it.
            strides[d] = strides[d + 1].wrapping_mul(src.dims[d + 1]);
        }
        let inner = self.dims.last().copied().unwrap_or(1);
        let step: Vec<i64> = self.coeff.iter().map(|c| c.last().copied().unwrap_or(0)).collect();
        let linear_step: i64 = step.iter().zip(&strides).map(|(a, b)| a * b).sum();
        let mut o = vec![0i64; rank.saturating_sub(1)];
        let mut buf = vec![];
        loop {
            // The range of the innermost index in which every source subscript is inside.
            let (mut lo, mut hi) = (0i64, inner);
            let mut start = 0i64;
            for d in 0..src.dims.len() {
                let base = self.offset[d] + self.coeff[d].iter().zip(&o).map(|(c, i)| c * i).sum::<i64>();
                start += base * strides[d];
                let (n, s) = (src.dims[d], step[d]);
                match s {
                    0 if (0..n).contains(&base) => {}
                    0 => hi = 0,
                    s if s > 0 => {
                        lo = lo.max((-base).div_euclid(s) + i64::from((-base).rem_euclid(s) != 0));
                        hi = hi.min((n - 1 - base).div_euclid(s) + 1);
                    }
                    s => {
                        lo = lo.max(
                            (base - n + 1).div_euclid(-s) + i64::from((base - n + 1).rem_euclid(-s) != 0),
                        );
                        hi = hi.min(base.div_euclid(-s) + 1);
                    }
                }
            }
            let hi = hi.max(lo.min(inner)).min(inner);
            let lo = lo.min(hi);
            buf.resize(buf.len() + lo as usize * esize, 0);
            if linear_step == 1 && lo < hi {
                let a = (start + lo) as usize * esize;
                buf.extend_from_slice(&data[a..a + (hi - lo) as usize * esize]);
            } else {
                let from = (start + lo * linear_step, linear_step, (hi - lo) as usize);
                match esize {
                    1 => pick::<1>(&data, from, &mut buf),
                    2 => pick::<2>(&data, from, &mut buf),
                    4 => pick::<4>(&data, from, &mut buf),
                    8 => pick::<8>(&data, from, &mut buf),
                    _ => pick::<16>(&data, from, &mut buf),
                }
            }
            buf.resize(buf.len() + (inner - hi) as usize * esize, 0);
            if buf.len() >= 1 << 20 {
                sink(&buf);
                buf.clear();
            }
            let mut d = o.len();
            loop {
                if d == 0 {
                    if !buf.is_empty() {
                        sink(&buf);
                    }
                    return;
                }
                d -= 1;
                o[d] += 1;
                if o[d] < self.dims[d] {
                    break;
                }
                o[d] = 0;
            }
        }
    }
}

/// Appends `count` elements of `N` bytes, beginning with number `first`, each `step` behind the one before.
fn pick<const N: usize>(data: &[u8], (first, step, count): (i64, i64, usize), to: &mut Vec<u8>) {
    let (data, _) = data.as_chunks::<N>();
    let at = to.len();
    to.resize(at + count * N, 0);
    for (i, to) in (0..).zip(to[at..].as_chunks_mut::<N>().0) {
        *to = data[(first + i * step) as usize];
    }
}
