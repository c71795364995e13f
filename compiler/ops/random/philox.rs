//! Philox 4x32-10 as expressions: the counter-based generator of Salmon et al., "Parallel Random Numbers: As
//! Easy as 1, 2, 3" (2011). Also the Mersenne Twister of NumPy, for masks that are known at compile time.

use crate::nest::{BinOp, Expr, KernelBuilder, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;

const ROUNDS: usize = 10;
const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The random stream of one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    key: [u32; 2],
    node: u32,
}

fn word(v: u64) -> Expr {
    Expr::int(ElemType::U64, v as i64)
}

fn low(e: Expr) -> Expr {
    e.and(word(0xFFFF_FFFF))
}

fn high(e: Expr) -> Expr {
    Expr::bin(BinOp::Shr, e, word(32))
}

fn xor(a: Expr, b: Expr) -> Expr {
    Expr::bin(BinOp::Xor, a, b)
}

impl Stream {
    /// The stream of the node whose result has this name.
    pub fn new(seed: Option<f32>, name: &str) -> Stream {
        // FNV-1a
        let node = name.bytes().fold(0x811C_9DC5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
        Stream { key: [seed.map_or(0, f32::to_bits), u32::from(seed.is_some())], node }
    }
    /// `body` applied to the first two words for counter `i`, as 64-bit integers.
    fn words(
        self,
        k: &mut KernelBuilder,
        i: Dim,
        body: impl FnOnce(&mut KernelBuilder, Expr, Expr) -> Expr,
    ) -> Expr {
        let i = Expr::cast(ElemType::I64, ElemType::U64, Expr::index(i));
        k.shared(i, |k, i| {
            let counter = [low(i.clone()), high(i), word(u64::from(self.node)), word(0)];
            self.round(k, 0, counter, Box::new(body))
        })
    }
    #[allow(clippy::type_complexity)]
    fn round<'a>(
        self,
        k: &mut KernelBuilder,
        n: usize,
        c: [Expr; 4],
        body: Box<dyn FnOnce(&mut KernelBuilder, Expr, Expr) -> Expr + 'a>,
    ) -> Expr {
        if n == ROUNDS {
            let [a, b, ..] = c;
            return k.shared(a, |k, a| k.shared(b, |k, b| body(k, a, b)));
        }
        let [c0, c1, c2, c3] = c;
        let key = [0, 1].map(|j| word(u64::from(self.key[j].wrapping_add(WEYL[j].wrapping_mul(n as u32)))));
        k.shared(c0 * word(MULTIPLIERS[0]), |k, p| {
            k.shared(c2 * word(MULTIPLIERS[1]), |k, q| {
                let [k0, k1] = key;
                let next =
                    [xor(xor(high(q.clone()), c1), k0), low(q), xor(xor(high(p.clone()), c3), k1), low(p)];
                // Values of the next round are used once or twice. They are bound to registers, so that
                // expressions do not double.
                let [a, b, c, d] = next;
                k.shared(a, |k, a| {
                    k.shared(b, |k, b| {
                        k.shared(c, |k, c| k.shared(d, |k, d| self.round(k, n + 1, [a, b, c, d], body)))
                    })
                })
            })
        })
    }
    /// A number in [0, 1) with as many bits as the type has.
    pub fn uniform(self, k: &mut KernelBuilder, i: Dim, ty: ElemType) -> Expr {
        self.words(k, i, |_, a, b| fraction(a, b, ty))
    }
    /// A number of the standard normal distribution by the Box-Muller transform.
    pub fn normal(self, k: &mut KernelBuilder, i: Dim, ty: ElemType) -> Expr {
        self.words(k, i, |k, a, b| {
            // 1 - u is in (0, 1].
            let radius = Expr::num(ty, 1.0) - half_fraction(a, ty);
            let angle = half_fraction(b, ty) * Expr::num(ty, 2.0 * std::f64::consts::PI);
            let radius = Expr::un(UnOp::Sqrt, Expr::un(UnOp::Log, radius) * Expr::num(ty, -2.0));
            k.shared(radius, |_, r| r * Expr::un(UnOp::Cos, angle))
        })
    }
}

/// A fraction with 53 bits of two words, or 24 bits of the first.
fn fraction(a: Expr, b: Expr, ty: ElemType) -> Expr {
    if ty != ElemType::F64 {
        return half_fraction(a, ty);
    }
    let bits = Expr::bin(BinOp::Shl, Expr::bin(BinOp::Shr, a, word(5)), word(26));
    let bits = Expr::bin(BinOp::Or, bits, Expr::bin(BinOp::Shr, b, word(6)));
    Expr::cast(ElemType::U64, ty, bits) * Expr::num(ty, 1.0 / (1u64 << 53) as f64)
}

/// A fraction with 32 bits of a word (24 if the type has no more).
fn half_fraction(a: Expr, ty: ElemType) -> Expr {
    let (bits, scale) = if ty == ElemType::F64 { (a, 32) } else { (Expr::bin(BinOp::Shr, a, word(8)), 24) };
    Expr::cast(ElemType::U64, ty, bits) * Expr::num(ty, 1.0 / (1u64 << scale) as f64)
}

/// `n` numbers of `numpy.random.RandomState(seed).uniform()`: the Mersenne Twister MT19937, 53 bits from two
/// words.
pub fn numpy_uniform(seed: u32, n: usize) -> Vec<f64> {
    const N: usize = 624;
    const M: usize = 397;
    let mut state = [0u32; N];
    let mut s = seed;
    for (i, w) in state.iter_mut().enumerate() {
        *w = s;
        s = 1_812_433_253_u32.wrapping_mul(s ^ (s >> 30)).wrapping_add(i as u32 + 1);
    }
    let mut at = N;
    let mut next = || {
        if at == N {
            for i in 0..N {
                let y = (state[i] & 0x8000_0000) | (state[(i + 1) % N] & 0x7FFF_FFFF);
                state[i] = state[(i + M) % N] ^ (y >> 1) ^ if y & 1 == 1 { 0x9908_B0DF } else { 0 };
            }
            at = 0;
        }
        let mut y = state[at];
        at += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9D2C_5680;
        y ^= (y << 15) & 0xEFC6_0000;
        y ^ (y >> 18)
    };
    (0..n)
        .map(|_| {
            let (a, b) = (next() >> 5, next() >> 6);
            (f64::from(a) * 67_108_864.0 + f64::from(b)) / 9_007_199_254_740_992.0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_twister_is_that_of_numpy() {
        let v = super::numpy_uniform(0, 3);
        assert_eq!(v, [0.548_813_503_927_324_8, 0.715_189_366_372_419_5, 0.602_763_376_071_643_9]);
    }
}
