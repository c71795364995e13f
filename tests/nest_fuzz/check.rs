//! Comparison of results, shared by the tests of random nests.

use onnxc::nest::Module;
use onnxc::nest::interp::{self, Outcome};
use onnxc::tensor::ElemType;

/// Elements as floats; of complex numbers both parts.
pub fn values(ty: ElemType, bytes: &[u8]) -> Vec<f64> {
    let ty = ty.part().unwrap_or(ty);
    let n = ty.bytes().unwrap_or(1) as usize;
    bytes
        .chunks_exact(n)
        .map(|c| {
            let mut w = [0u8; 8];
            w[..n].copy_from_slice(c);
            interp::from_storage(ty, u64::from_le_bytes(w)).to_f64()
        })
        .collect()
}

/// Floats within `tolerance` of the largest magnitude (at least 1), all else exactly.
pub fn compare(m: &Module, want: &Outcome, got: &Outcome, tolerance: f64) -> Result<(), String> {
    if want.dims != got.dims {
        return Err(format!("output dims {:?}, expected {:?}", got.dims, want.dims));
    }
    for ((b, x), y) in m.outputs.iter().zip(&want.outputs).zip(&got.outputs) {
        let d = &m.bufs[*b];
        if x == y {
            continue;
        }
        let tolerance = match d.ty {
            ElemType::F16 => tolerance.max(2e-3),
            ElemType::BF16 => tolerance.max(2e-2),
            t if t.is_float() || t.is_complex() => tolerance,
            _ => 0.0,
        };
        let (xs, ys) = (values(d.ty, x), values(d.ty, y));
        let top = xs.iter().filter(|v| v.is_finite()).fold(1.0f64, |m, v| m.max(v.abs()));
        let same = |x: f64, y: f64| x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= tolerance * top;
        let wrong: Vec<usize> = (0..xs.len().min(ys.len())).filter(|i| !same(xs[*i], ys[*i])).collect();
        if let Some(i) = wrong.first() {
            return Err(format!(
                "output {}: {} of {} elements differ; element {i} is {}, expected {}",
                d.name,
                wrong.len(),
                xs.len(),
                ys[*i],
                xs[*i]
            ));
        }
        if tolerance == 0.0 && xs.iter().zip(&ys).all(|(a, b)| a == b) {
            return Err(format!("output {}: the bytes differ, the values do not", d.name));
        }
    }
    Ok(())
}
