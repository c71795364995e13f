//! Elementary functions of f32 and f64 are within their bounds, 2 ulp for most, on every CPU level that this
//! machine has: samples of every exponent, dense where functions bend, against double precision and against
//! twice that.

#[path = "math/double.rs"]
mod double;

use onnxc::codegen::interface::Interface;
use onnxc::jit::Loaded;
use onnxc::nest::parse;
use onnxc::options::OptLevel;
use onnxc::pipeline;
use onnxc::target::{LEVELS, Target};

/// A function as nests write it, its value, and the error that is allowed, in units of the last place.
struct Case {
    name: &'static str,
    text: &'static str,
    value: fn(f64) -> f64,
    bound: f64,
}

const fn case(name: &'static str, text: &'static str, value: fn(f64) -> f64, bound: f64) -> Case {
    Case { name, text, value, bound }
}

const CASES: &[Case] = &[
    case("exp", "exp(x[i0])", libm::exp, 2.0),
    case("log", "log(x[i0])", libm::log, 2.0),
    case("erf", "erf(x[i0])", libm::erf, 2.0),
    case("tanh", "tanh(x[i0])", libm::tanh, 2.0),
    case("sigmoid", "sigmoid(x[i0])", |x| 1.0 / (1.0 + libm::exp(-x)), 2.5),
    case("expm1", "expm1(x[i0])", libm::expm1, 2.0),
    case("log1p", "log1p(x[i0])", libm::log1p, 2.0),
    case("x^3", "pow(x[i0], 3.0)", |x| x * x * x, 1.5),
    case("x^0.5", "pow(x[i0], 0.5)", |x| libm::pow(x, 0.5), 0.5),
    case("x^-0.5", "pow(x[i0], -0.5)", |x| libm::pow(x, -0.5), 1.5),
    case("x^1.75", "pow(x[i0], 1.75)", |x| libm::pow(x, 1.75), 1.0),
    case("x^-5", "pow(x[i0], -5.0)", |x| libm::pow(x, -5.0), 1.0),
    case("remainder", "rem(x[i0], 7.25)", |x| libm::fmod(x, 7.25), 0.0),
    case("small remainder", "rem(x[i0], 1e-40)", |x| libm::fmod(x, f64::from(1e-40f32)), 0.0),
    case("sin", "sin(x[i0])", libm::sin, 2.0),
    case("cos", "cos(x[i0])", libm::cos, 2.0),
    case("tan", "tan(x[i0])", libm::tan, 2.0),
    case("asin", "asin(x[i0])", libm::asin, 2.0),
    case("acos", "acos(x[i0])", libm::acos, 2.0),
    case("atan", "atan(x[i0])", libm::atan, 2.0),
    case("sinh", "sinh(x[i0])", libm::sinh, 2.0),
    case("cosh", "cosh(x[i0])", libm::cosh, 2.0),
    case("asinh", "asinh(x[i0])", libm::asinh, 2.0),
    case("acosh", "acosh(x[i0])", |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) }, 2.0),
    case("atanh", "atanh(x[i0])", libm::atanh, 2.0),
    case("sqrt", "sqrt(x[i0])", f64::sqrt, 0.5),
    case("reciprocal", "recip(x[i0])", |x| 1.0 / x, 0.5),
    case("division", "(x[i0] / 3.0)", |x| x / 3.0, 0.5),
];

/// Every exponent, both signs; more of those in which functions are neither their first term nor their limit.
fn samples() -> Vec<f32> {
    // The last three are as close to multiples of pi/2 as floats get.
    let mut v = vec![
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        16_367_173.0 * 72f32.exp2(),
        16_367_173.0 * 73f32.exp2(),
        6_381_956_970_095_103.0 * 2.0,
    ];
    for exponent in 0..255u32 {
        let n = if (107..136).contains(&exponent) { 4096 } else { 64 };
        for i in 0..n {
            // An odd step: low bits of mantissas differ too.
            let mantissa = (i * (0x80_0000 / n) + i * 7919 % (0x80_0000 / n)) & 0x7f_ffff;
            let x = f32::from_bits(exponent << 23 | mantissa);
            v.extend([x, -x]);
        }
    }
    v
}

/// The distance of adjacent f32 values.
fn ulp(value: f64) -> f64 {
    let exponent = value.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
    (exponent - 23.0).exp2()
}

/// The error of a result, in units of the last place.
fn error(got: f32, value: f64) -> f64 {
    if value.is_nan() || got.is_nan() {
        return if value.is_nan() == got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let (most, step) = (f64::from(f32::MAX), ulp(f64::from(f32::MAX)));
    // Beyond the largest number infinity is one step further.
    let bounded = |x: f64| x.clamp(-most - step, most + step);
    (bounded(f64::from(got)) - bounded(value)).abs() / ulp(bounded(value).abs().min(most))
}

/// What code computes of elements of a type.
fn run(target: &Target, ty: &str, text: &str, bytes: &[u8], n: usize) -> Vec<u8> {
    let module = format!(
        "nest v1 t stage=built\ndims N\nbuf x : {ty}[N] input 0\nbuf y : {ty}[N] output 0\nkernel y work N ; Exp (node 0)\n  par i0 in 0..N {{\n    y[i0] = {text}\n  }}\ndriver\n  call y\n"
    );
    let mut m = parse::parse(&module, &|_| None).expect("a module");
    pipeline::finish(&mut m, target, OptLevel::O2).expect("passes");
    let loaded = Loaded::for_target(&m, &Interface::of_module(&m), target).expect("code");
    let mut out = vec![vec![0; bytes.len()]];
    loaded.call(&[bytes], &mut out, &[n as i64]).expect("status 0");
    out.remove(0)
}

fn results(target: &Target, text: &str, x: &[f32]) -> Vec<f32> {
    let bytes: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    run(target, "f32", text, &bytes, x.len())
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

/// The levels that this machine runs.
fn targets() -> Vec<Target> {
    let host = Target::host().expect("this machine");
    let levels = LEVELS
        .iter()
        .filter(|k| k.arch == std::env::consts::ARCH)
        .map(|k| Target::new(None, Some(k.name)).expect("a level"));
    let mut targets: Vec<Target> = levels.filter(|t| t.lowest().runs_on(host.lowest())).collect();
    if targets.is_empty() {
        targets.push(host);
    }
    targets
}

#[test]
fn functions_are_within_their_bounds() {
    let targets = targets();
    let x = samples();
    let mut wrong = vec![];
    for target in &targets {
        for c in CASES {
            let got = results(target, c.text, &x);
            let worst = x
                .iter()
                .zip(&got)
                .map(|(x, y)| (error(*y, (c.value)(f64::from(*x))), *x, *y))
                .max_by(|a, b| a.0.total_cmp(&b.0));
            let Some((e, x, y)) = worst else { continue };
            let line = format!(
                "{:12} {:10} {e:.3} ulp at {x:e}: {y:e}, not {:e}",
                target.cpu(),
                c.name,
                (c.value)(f64::from(x))
            );
            println!("{line}");
            // The reference is rounded too.
            if e > c.bound + 1e-6 {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A function of f64 as nests write it, and its value.
struct Double {
    text: &'static str,
    value: fn(f64) -> double::Value,
    /// Of zeros, infinities and what is out of its domain.
    limit: fn(f64) -> f64,
}

const DOUBLES: &[Double] = &[
    Double { text: "exp(x[i0])", value: double::exp, limit: libm::exp },
    Double { text: "expm1(x[i0])", value: double::expm1, limit: libm::expm1 },
    Double { text: "log(x[i0])", value: double::log, limit: libm::log },
    Double { text: "log1p(x[i0])", value: double::log1p, limit: libm::log1p },
    Double { text: "tanh(x[i0])", value: double::tanh, limit: libm::tanh },
    Double { text: "sigmoid(x[i0])", value: double::sigmoid, limit: |x| 1.0 / (1.0 + libm::exp(-x)) },
    Double { text: "erf(x[i0])", value: double::erf, limit: libm::erf },
    Double { text: "pow(x[i0], 3.0)", value: double::cube, limit: |x| x * x * x },
    Double { text: "pow(x[i0], -0.5)", value: double::inverse_root, limit: |x| libm::pow(x, -0.5) },
];

/// Every exponent, both signs; more of those in which functions are neither their first term nor their limit;
/// where the argument of a power of two is cut, and where that is too large or too small for a number.
fn double_samples() -> Vec<f64> {
    let mut v = vec![0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -1.0];
    for exponent in 0..2047u64 {
        let n = if (1015..1030).contains(&exponent) { 400 } else { 4 };
        for i in 0..n {
            let mantissa = (i * ((1 << 52) / n)
                + (i + exponent).wrapping_mul(0x9e37_79b9_7f4a_7c15) % ((1 << 52) / n))
                & ((1 << 52) - 1);
            let x = f64::from_bits(exponent << 52 | mantissa);
            v.extend([x, -x]);
        }
    }
    for n in -1080..=1030 {
        let x = (f64::from(n) + 0.5) * std::f64::consts::LN_2;
        v.extend([x.next_down(), x, x.next_up()]);
    }
    v.extend((0..800).map(|i| -746.0 + f64::from(i) * 0.05));
    v.extend((0..200).map(|i| 709.0 + f64::from(i) * 0.007));
    for i in 0..400 {
        let near = 1.0 + f64::from(i) * 1e-3;
        v.extend([
            near,
            1.0 / near,
            -near,
            1.0 - f64::from(i) * 2f64.powi(-53),
            0.625 + f64::from(i - 200) * 1e-4,
        ]);
    }
    v
}

#[test]
fn functions_of_double_precision_are_within_their_bounds() {
    const BOUND: f64 = 2.0;
    let x = double_samples();
    let bytes: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    let targets = targets();
    let mut wrong = vec![];
    for f in DOUBLES {
        let value = |x: f64| {
            let limit = (f.limit)(x);
            // What overflows or vanishes has a value still.
            let has_value = x.is_finite() && x != 0.0 && !limit.is_nan() && limit != f64::NEG_INFINITY;
            if has_value { Ok((f.value)(x)) } else { Err(limit) }
        };
        let values: Vec<Result<double::Value, f64>> = x.iter().map(|x| value(*x)).collect();
        for target in &targets {
            let got = run(target, "f64", f.text, &bytes, x.len());
            let got: Vec<f64> = got.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
            let error = |v: &Result<double::Value, f64>, y: f64| match v {
                Ok(v) => v.error(y),
                Err(limit) if *limit == y || limit.is_nan() && y.is_nan() => 0.0,
                Err(_) => f64::INFINITY,
            };
            let worst =
                (0..x.len()).map(|i| (error(&values[i], got[i]), i)).max_by(|a, b| a.0.total_cmp(&b.0));
            let Some((e, i)) = worst else { continue };
            let want = values[i].map_or_else(|limit| limit, double::Value::rounded);
            let line = format!(
                "{:15} {:14} {e:.3} ulp at {:e}: {:e}, not {want:e}",
                target.cpu(),
                f.text,
                x[i],
                got[i]
            );
            println!("{line}");
            if e > BOUND {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
