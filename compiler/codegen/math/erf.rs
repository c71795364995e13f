//! The error function of f32: piecewise if vectors have table lookups, otherwise a polynomial near 0 and the
//! distance from 1 as a power of two.

use super::{Floats, Table, exp2_rough, poly, table};

/// Around n / 4, erf = c0 + t (c1 + t (c2 + ..)), where c0 is a single-precision value that erf happens to be
/// very close to; around 0, t + t (c1 + t (c2 + ..)). c5 comes first.
static ERF_NEAR: [Table; 6] = [
    table([
        0.11108991,
        0.07956803,
        0.0074845813,
        -0.0526901,
        -0.06873108,
        -0.047071278,
        -0.015008039,
        0.0064424435,
        0.0129880095,
        0.010637253,
        0.006133524,
        0.0027752228,
        0.0010283223,
        0.0003189354,
        8.387956e-05,
        0.00043822263,
    ]),
    table([
        0.000257372,
        0.12610303,
        0.18199511,
        0.15010343,
        0.06928262,
        -0.005698289,
        -0.044179406,
        -0.04790699,
        -0.034434527,
        -0.019146167,
        -0.008683146,
        -0.0032941974,
        -0.0010605033,
        -0.00029233296,
        -6.942208e-05,
        8.518271e-05,
    ]),
    table([
        -0.3761395,
        -0.30916658,
        -0.14646517,
        0.026784005,
        0.13836525,
        0.16753484,
        0.13875324,
        0.090158865,
        0.048223834,
        0.02172473,
        0.0083499495,
        0.0027602203,
        0.0007889983,
        0.00019576504,
        4.2280168e-05,
        1.4220983e-05,
    ]),
    table([
        2.2283736e-07,
        -0.2649993,
        -0.43938604,
        -0.4821955,
        -0.41510797,
        -0.29565364,
        -0.17839746,
        -0.09235719,
        -0.04133402,
        -0.016069915,
        -0.005445417,
        -0.001612088,
        -0.00041768124,
        -9.4836425e-05,
        -1.8889734e-05,
        -3.3041986e-06,
    ]),
    table([
        0.12837917,
        1.0600141,
        0.8787826,
        0.6429311,
        0.41510752,
        0.23652112,
        0.11893029,
        0.05277499,
        0.020666983,
        0.007142319,
        0.0021782846,
        0.0005862776,
        0.00013925327,
        2.918912e-05,
        5.399459e-06,
        8.7589547e-07,
    ]),
    table([
        0.0, 0.2763264, 0.5204999, 0.71115565, 0.8427008, 0.92290014, 0.96610516, 0.9866717, 0.9953223,
        0.9985373, 0.999593, 0.9998994, 0.9999779, 0.9999957, 0.9999993, 0.9999999,
    ]),
];

/// By 16 polynomials whose coefficients are looked up lane by lane. Beyond the last piece the result is
/// exactly 1: 1 + erf(x) of a large negative x must be 0, because it is a factor of x in GELU.
fn erf_in_pieces<B: Floats>(b: &mut B, x: B::V) -> B::V {
    let (m, limit, shift) = (b.abs(x), b.num(x, f64::from(3.874_999_8_f32)), b.num(x, 3_145_728.0));
    let m = b.lesser(limit, m);
    // The last bits of the sum are the number of quarters.
    let piece = b.add(m, shift);
    let n = b.sub(piece, shift);
    let t = b.sub(m, n);
    let mut p = b.entry(piece, &ERF_NEAR[0]);
    for table in &ERF_NEAR[1..5] {
        let c = b.entry(piece, table);
        p = b.fma(p, t, c);
    }
    // Around 0, where c0 is 0, t dominates.
    let c = b.entry(piece, &ERF_NEAR[5]);
    let near = b.greater(c, t);
    let r = b.fma(p, t, near);
    b.with_sign(r, x)
}

/// A polynomial near 0, elsewhere 1 - 2^q with a polynomial q.
pub(super) fn erf<B: Floats>(b: &mut B, x: B::V) -> B::V {
    if b.has_tables() {
        return erf_in_pieces(b, x);
    }
    let (m, one, limit) = (b.abs(x), b.num(x, 1.0), b.num(x, 4.0));
    let m = b.lesser(limit, m);
    let z = b.mul(m, m);
    let p = poly::<B, f32>(
        b,
        z,
        &[-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1],
    );
    let near = b.fma(p, m, m);
    let q = poly::<B, f32>(
        b,
        m,
        &[3.095_950_4e-4, -4.645_441_7e-3, 3.304_621_3e-2, -1.518_968_2e-1, -9.171_203_4e-1, -1.628_110_2],
    );
    let q = b.mul(q, m);
    let e = exp2_rough(b, q);
    let far = b.sub(one, e);
    let border = b.num(x, 0.921_875);
    let r = b.if_less(m, border, near, far);
    b.with_sign(r, x)
}
