//! Errors of convolutions by Winograd's transform, in two dimensions (3x3) and along one (5x5), measured
//! against sums in f64.
//!
//! The direct sum in f32 is off by about 1e-7 times the square root of the number of terms; the transform
//! multiplies that by a small number. The bounds here are twice what was measured, relative to the root mean
//! square of the result.

use onnxc::arrays::Array;
use onnxc::onnx::Source;
use onnxc::options::{OptLevel, Options};
use onnxc::pipeline;
use onnxc::run::Runner;
use onnxc::tensor::ElemType;
use std::fmt::Write;

/// Numbers in -1..1 that repeat nowhere.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

/// A convolution of `c` channels into `out` on `images` of `side` x `side`.
#[derive(Clone, Copy)]
struct Layer {
    images: usize,
    c: usize,
    out: usize,
    side: usize,
    taps: usize,
    /// Whether weights are transformed while the model runs.
    fresh: bool,
}

/// Root mean square and largest error, relative to the result's rms.
fn errors(cpu: &str, l: Layer) -> (f64, f64) {
    let Layer { images, c, out, side, taps, fresh } = l;
    let mut n = Numbers(0x9e37_79b9_7f4a_7c15 ^ c as u64);
    let w: Vec<f32> = (0..out * c * taps * taps).map(|_| n.next()).collect();
    let x: Vec<f32> = (0..images * c * side * side).map(|_| n.next()).collect();
    let mut list = String::new();
    for v in &w {
        let _ = write!(list, "{}{v:?}", if list.is_empty() { "" } else { ", " });
    }
    // The 1x1 convolution around it makes the image a temporary with channels innermost; its weights are 1.
    let mut eye = String::new();
    for i in 0..out * out {
        let _ = write!(eye, "{}{}", if i == 0 { "" } else { ", " }, u8::from(i % (out + 1) == 0));
    }
    let pad = taps / 2;
    let text = format!(
        "<ir_version: 8, opset_import: [\"\" : 17]>\nconv (float[N, {c}, {side}, {side}] x) => (float[N, {out}, {side}, {side}] y)\n<float[{out}, {c}, {taps}, {taps}] w = {{{list}}}, float[{out}, {out}, 1, 1] e = {{{eye}}}>\n{{\n t = Conv <pads = [{pad}, {pad}, {pad}, {pad}]> (x, w)\n y = Conv (t, e)\n}}\n"
    );
    let source = Source { name: "conv.onnxtxt".into(), bytes: text.into_bytes().into(), folder: None };
    let options = Options { opt: OptLevel::O2, cpu: Some(cpu.into()), ..Options::default() };
    let compiled = pipeline::compile(&source, &options).expect("compiles");
    let used = compiled.modules.iter().all(|m| m.bufs.values().any(|b| b.name.ends_with(".winograd")));
    assert!(used, "the transform is not used");
    let names = |end: &str| compiled.modules.iter().all(|m| m.bufs.values().any(|b| b.name.ends_with(end)));
    assert_eq!(names(".u"), fresh, "where weights are transformed");
    let runner = Runner::new(compiled).expect("loads");
    let data = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    let input = Array {
        name: "x".into(),
        ty: ElemType::F32,
        dims: vec![images as i64, c as i64, side as i64, side as i64],
        data,
    };
    let y = runner.run(&[onnxc::io_descriptors::Input::Array(input)]).expect("runs").remove(0).to_f64s();
    let (mut sum, mut off, mut most) = (0.0f64, 0.0f64, 0.0f64);
    // Of many output channels, some are compared.
    let step = out.div_ceil(64);
    for (i, y) in y.chunks_exact(out * side * side).enumerate() {
        let x = &x[i * c * side * side..];
        for (at, y) in y.iter().enumerate() {
            let (k, oy, ox) = (at / (side * side), at / side % side, at % side);
            if k % step != 0 {
                continue;
            }
            let mut want = 0.0f64;
            for ci in 0..c {
                for ky in 0..taps {
                    for kx in 0..taps {
                        let (iy, ix) = (oy + ky, ox + kx);
                        if (pad..side + pad).contains(&iy) && (pad..side + pad).contains(&ix) {
                            want += f64::from(w[((k * c + ci) * taps + ky) * taps + kx])
                                * f64::from(x[(ci * side + iy - pad) * side + ix - pad]);
                        }
                    }
                }
            }
            let d = y - want;
            sum += want * want;
            off += d * d;
            most = most.max(d.abs());
        }
    }
    let count = (images * out.div_ceil(step) * side * side) as f64;
    let rms = (sum / count).sqrt();
    ((off / count).sqrt() / rms, most / rms)
}

#[test]
fn errors_stay_within_their_bounds() {
    let layer = |images, c, out, side| Layer { images, c, out, side, taps: 3, fresh: false };
    // Transformed weights that are too large to be stored. Groups of several images: the last one has fewer.
    let fresh = |images, c, out, side| Layer { fresh: true, ..layer(images, c, out, side) };
    // Along one dimension: six rows of results with three taps, four with five.
    let line = |images, c, out, side, taps| Layer { taps, ..layer(images, c, out, side) };
    let cases = [
        (layer(1, 16, 16, 14), 2e-6, 2.5e-5),
        (layer(1, 64, 16, 20), 4e-6, 6e-5),
        (layer(1, 256, 16, 13), 7e-6, 8e-5),
        (layer(3, 128, 64, 7), 7e-6, 8e-5),
        (fresh(5, 352, 352, 14), 9e-6, 1e-4),
        (fresh(3, 352, 352, 7), 9e-6, 1e-4),
        (line(2, 8, 32, 18, 3), 1.1e-6, 1.3e-5),
        (line(2, 6, 16, 10, 5), 1.1e-6, 8e-6),
        (line(1, 32, 32, 21, 5), 2.2e-6, 1.6e-5),
    ];
    let mut levels = vec!["native"];
    #[cfg(target_arch = "x86_64")]
    {
        levels.push("x86-64-v2");
        levels.extend(
            (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some("x86-64-v3"),
        );
    }
    for cpu in levels {
        for (l, rms_bound, most_bound) in cases {
            let ((rms, most), Layer { c, taps, .. }) = (errors(cpu, l), l);
            println!("{cpu}, {c} channels, {taps} taps: {rms:.2e} rms, {most:.2e} at most");
            assert!(
                rms < rms_bound && most < most_bound,
                "{cpu}, {c} channels, {taps} taps: rms {rms:.2e}, most {most:.2e}"
            );
        }
    }
}

/// Sums of integers as floats have to be exact, which the transform is not.
#[test]
fn sums_of_integers_are_left_alone() {
    let text = "<ir_version: 8, opset_import: [\"\" : 17]>\nconv (uint8[1, 64, 28, 28] x) => (int32[1, 64, 28, 28] y)\n<int64[4] shape = {64, 64, 3, 3}>\n{\n w = ConstantOfShape <value = int8[1] {77}> (shape)\n y = ConvInteger <pads = [1, 1, 1, 1]> (x, w)\n}\n";
    for target in ["aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"] {
        let source = Source { name: "conv.onnxtxt".into(), bytes: text.as_bytes().into(), folder: None };
        let compiled = pipeline::compile(
            &source,
            &Options { opt: OptLevel::O2, target: Some(target.into()), ..Options::default() },
        )
        .expect("compiles");
        assert!(
            compiled.modules.iter().all(|m| !m.bufs.values().any(|b| b.name.ends_with(".winograd"))),
            "{target}"
        );
    }
}
