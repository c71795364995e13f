//! Errors of products by Strassen's algorithm, measured against sums in f64.
//!
//! Terms are as large as in the plain sum, but each result is a sum of sums. Rows are scaled, so that errors
//! are of the size of their own row. The bounds are twice what was measured, relative to the root mean square
//! of the results.

use onnxc::arrays::Array;
use onnxc::io_descriptors::Input;
use onnxc::nest::Module;
use onnxc::onnx::Source;
use onnxc::options::{Math, OptLevel, Options};
use onnxc::pipeline::{self, Compiled};
use onnxc::run::Runner;
use onnxc::tensor::ElemType;

/// The depths: of one block, and of several.
const DEPTH: usize = 352;
const DEEP: usize = 1152;
const COLUMNS: usize = 512;

/// p = x t.
const PLAIN: &str = "p = MatMul (x, t)";
/// The same in two products.
const TWO: &str =
    "u = Mul (t, quarter)\n v = Sub (t, u)\n q = MatMul (x, u)\n o = MatMul (x, v)\n p = Add (q, o)";

/// y = p + r; `rows` as in the text of a model.
fn compiled(rows: &str, depth: usize, product: &str, math: Math) -> Compiled {
    let text = format!(
        "<ir_version: 8, opset_import: [\"\" : 17]>
         g (float[{rows}, {depth}] x, float[{rows}, {COLUMNS}] r) => (float[{rows}, {COLUMNS}] y)
         <int64 zero = {{0}}, int64 one = {{1}}, int64 count = {{{}}}, int64 a = {{7919}}, int64 b = {{1001}}, int64 c = {{500}}, float scale = {{512}}, float quarter = {{0.25}}, int64 columns = {{{COLUMNS}}}, int64 pair = {{37}}, float none = {{0}}, float third = {{3}}, int64[2] shape = {{{depth}, {COLUMNS}}}>
         {{
           i = Range (zero, count, one)
           j = Mul (i, a)
           k = Mod (j, b)
           l = Sub (k, c)
           f = Cast <to = 1> (l)
           s = Div (f, scale)
           t = Reshape (s, shape)
           {product}
           y = Add (p, r)
         }}",
        depth * COLUMNS
    );
    let source = Source { name: "product.onnxtxt".into(), bytes: text.into_bytes().into(), folder: None };
    pipeline::compile(
        &source,
        &Options { opt: OptLevel::O2, cpu: Some("x86-64-v4".into()), math, ..Options::default() },
    )
    .expect("compiles")
}

/// The same as in the model.
fn weight(k: usize, n: usize) -> f64 {
    (((k * COLUMNS + n) * 7919 % 1001) as f64 - 500.0) / 512.0
}

/// How many products have sums of rows of their own.
fn sums(c: &Compiled) -> usize {
    let of = |m: &Module| {
        m.bufs
            .values()
            .filter(|b| b.name.ends_with(".v") && b.dims.first().and_then(|d| d.as_const()) == Some(7))
            .count()
    };
    c.modules.iter().map(of).sum()
}

fn is_used(c: &Compiled) -> bool {
    sums(c) > 0
}

fn runs_here() -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
    {
        return true;
    }
    println!("skipped: this machine has no AVX-512");
    false
}

/// Numbers in -1..1 that repeat nowhere.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut x = 0x9e37_79b9_7f4a_7c15 ^ seed;
    (0..count)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 40) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

/// Error of each row, root mean square and largest, relative to the rms of results of rows whose numbers are
/// below 1. `shape`: of the rows.
fn errors(
    runner: &Runner,
    (shape, depth): (&[usize], usize),
    factor: impl Fn(usize) -> f32,
) -> Vec<(f64, f64)> {
    let rows: usize = shape.iter().product();
    let mut x = numbers(rows as u64, rows * depth);
    x.iter_mut().enumerate().for_each(|(i, v)| *v *= factor(i / depth));
    let r = numbers(!(rows as u64), rows * COLUMNS);
    let array = |name: &str, v: &[f32], n: usize| {
        let data = v.iter().flat_map(|v| v.to_le_bytes()).collect();
        let dims = shape.iter().chain([&n]).map(|n| *n as i64).collect();
        Input::Array(Array { name: name.into(), ty: ElemType::F32, dims, data })
    };
    let y = runner.run(&[array("x", &x, depth), array("r", &r, COLUMNS)]).expect("runs").remove(0).to_f64s();
    assert_eq!(y.len(), rows * COLUMNS);
    let w: Vec<f64> = (0..depth * COLUMNS).map(|i| weight(i / COLUMNS, i % COLUMNS)).collect();
    let rms = (depth as f64 / 9.0).sqrt();
    y.chunks_exact(COLUMNS)
        .enumerate()
        .map(|(row, y)| {
            let mut want: Vec<f64> =
                r[row * COLUMNS..(row + 1) * COLUMNS].iter().map(|v| f64::from(*v)).collect();
            for k in 0..depth {
                let x = f64::from(x[row * depth + k]);
                want.iter_mut().zip(&w[k * COLUMNS..]).for_each(|(y, w)| *y += x * w);
            }
            let off = || y.iter().zip(&want).map(|(a, b)| (a - b).abs() / rms);
            ((off().map(|d| d * d).sum::<f64>() / COLUMNS as f64).sqrt(), off().fold(0.0, f64::max))
        })
        .collect()
}

#[test]
fn errors_stay_within_their_bounds() {
    if !runs_here() {
        return;
    }
    // Sizes known now, odd ones, several groups; and those that only run time knows, too few for it among
    // them.
    let run_time = Runner::new(compiled("N", DEPTH, PLAIN, Math::Default)).expect("loads");
    // Weights of 16 bits: none of them is rounded.
    let halves = Runner::new(compiled(
        "N",
        DEPTH,
        "h = Cast <to = 10> (t)\n w = Cast <to = 1> (h)\n p = MatMul (x, w)",
        Math::Default,
    ))
    .expect("loads");
    let deep = Runner::new(compiled("N", DEEP, PLAIN, Math::Default)).expect("loads");
    // Two products of the same rows make their sums once.
    let two = compiled("N", DEPTH, TWO, Math::Default);
    assert_eq!(sums(&two), 1);
    let two = Runner::new(two).expect("loads");
    for rows in [47, 48, 49, 97, 128, 216, 333] {
        let c = compiled(&rows.to_string(), DEPTH, PLAIN, Math::Default);
        assert_eq!(is_used(&c), rows >= 48, "{rows} rows");
        let known = Runner::new(c).expect("loads");
        for (what, runner, depth) in [
            ("known", &known, DEPTH),
            ("run time", &run_time, DEPTH),
            ("halves", &halves, DEPTH),
            ("two", &two, DEPTH),
            ("deep", &deep, DEEP),
        ] {
            let off = errors(runner, (&[rows], depth), |_| 1.0);
            let (rms, most) = off.iter().fold((0.0f64, 0.0f64), |a, b| (a.0.max(b.0), a.1.max(b.1)));
            println!("{rows} rows, {what}: {rms:.2e} rms, {most:.2e} at most");
            let bounds = if depth == DEEP { (1.8e-6, 1.2e-5) } else { (1.6e-6, 1e-5) };
            assert!(rms < bounds.0 && most < bounds.1, "{rows} rows, {what}: rms {rms:.2e}, most {most:.2e}");
        }
    }
}

/// Groups of rows in tiles of two heights, whatever number of images run time says.
#[test]
fn images_are_whole_tiles() {
    if !runs_here() {
        return;
    }
    let c = compiled("N, 98", DEPTH, PLAIN, Math::Default);
    assert!(is_used(&c));
    let runner = Runner::new(c).expect("loads");
    for images in [1, 2, 3, 5] {
        let off = errors(&runner, (&[images, 98], DEPTH), |_| 1.0);
        let (rms, most) = off.iter().fold((0.0f64, 0.0f64), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        assert!(rms < 1.6e-6 && most < 1e-5, "{images} images: rms {rms:.2e}, most {most:.2e}");
    }
}

/// A row 10000 times as large as others, or as small, and one of zeros have errors of their own size, and so
/// have their neighbours.
#[test]
fn rows_of_all_magnitudes_keep_their_precision() {
    if !runs_here() {
        return;
    }
    let runner = Runner::new(compiled("N", DEPTH, PLAIN, Math::Default)).expect("loads");
    let factor = |row: usize| match row {
        36 => 1e4,
        41 => 1e-4,
        50 | 100 => 0.0,
        _ => 1.0,
    };
    let off = errors(&runner, (&[101], DEPTH), factor);
    for (row, (rms, most)) in off.iter().enumerate() {
        // A number is added to each result, whose magnitude is 1.
        assert!(*rms < 1.6e-6 * f64::from(factor(row).max(0.02)), "row {row}: {rms:.2e}");
        assert!(factor(row) != 0.0 || *most == 0.0, "row {row}: {most:.2e}");
    }
}

/// What is not finite stays in its row.
#[test]
fn rows_that_are_not_finite_reach_no_other() {
    if !runs_here() {
        return;
    }
    let runner = Runner::new(compiled("N", DEPTH, PLAIN, Math::Default)).expect("loads");
    let odd = [(12, f32::NAN), (31, f32::INFINITY), (100, f32::NEG_INFINITY)];
    let off = errors(&runner, (&[101], DEPTH), |row| odd.iter().find(|o| o.0 == row).map_or(1.0, |o| o.1));
    for (row, (rms, _)) in off.iter().enumerate() {
        let finite = odd.iter().all(|o| o.0 != row);
        assert!(if finite { *rms < 1.6e-6 } else { rms.is_nan() }, "row {row}: {rms:.2e}");
    }
}

/// Columns of very different magnitude are not added to each other.
#[test]
fn weights_of_many_magnitudes_keep_the_plain_product() {
    let scaled = |columns: &str| {
        let product = format!(
            "n1 = Range (zero, columns, one)\n n2 = Mod (n1, pair)\n n3 = Cast <to = 1> (n2)\n n4 = Pow (n3, {columns})\n w = Mul (t, n4)\n p = MatMul (x, w)"
        );
        is_used(&compiled("128", DEPTH, &product, Math::Default))
    };
    // Powers of the numbers 0 to 36: no power is one, the third reaches from 0 to 46656.
    assert!(scaled("none"));
    assert!(!scaled("third"));
}

#[test]
fn strict_math_and_sums_of_integers_do_without() {
    assert!(is_used(&compiled("128", DEPTH, PLAIN, Math::Default)));
    assert!(!is_used(&compiled("128", DEPTH, PLAIN, Math::Strict)));
    let text = "<ir_version: 8, opset_import: [\"\" : 17]>\ng (uint8[128, 512] x) => (int32[128, 512] y)\n<int64[2] shape = {512, 512}>\n{\n w = ConstantOfShape <value = int8[1] {77}> (shape)\n y = MatMulInteger (x, w)\n}\n";
    for cpu in ["x86-64-v4", "x86-64-v3"] {
        let source = Source { name: "product.onnxtxt".into(), bytes: text.as_bytes().into(), folder: None };
        let c = pipeline::compile(
            &source,
            &Options { opt: OptLevel::O2, cpu: Some(cpu.into()), ..Options::default() },
        )
        .expect("compiles");
        assert!(!is_used(&c), "{cpu}");
    }
}
