//! Pictures as inputs: decoded, resized to the sizes that a model fixes, and converted to its dimension order
//! and element type.

use super::Array;
use crate::diag::{Error, Failure, Origin, Result, codes};
use crate::tensor::ElemType;
use half::{bf16, f16};
use onnxc_runtime::image::{self, PixelFormat};
use std::path::Path;

/// The axes of a tensor that are the rows, columns and channels of a picture.
struct Layout {
    rows: usize,
    columns: usize,
    channels: usize,
    count: i64,
}

/// The layout of a tensor with these sizes; an open size matches any value.
fn layout(dims: &[Option<i64>]) -> Option<Layout> {
    let first = dims.len().checked_sub(3)?;
    // The batch size must be 1.
    if first > 1 || (first == 1 && dims[0].is_some_and(|n| n != 1)) {
        return None;
    }
    let at = |rows, columns, channels: usize| {
        let count = dims[channels].unwrap_or(3);
        matches!(count, 1 | 3).then_some(Layout { rows, columns, channels, count })
    };
    // A fixed number of channels decides. Otherwise channels come first, as in most models, if possible.
    let fixed = |axis: usize| dims[axis].is_some();
    match (fixed(first), fixed(first + 2)) {
        (false, true) => at(first, first + 1, first + 2),
        (true, true) => at(first + 1, first + 2, first).or_else(|| at(first, first + 1, first + 2)),
        _ => at(first + 1, first + 2, first),
    }
}

/// Reads a picture as an input of this type with these sizes. Pixel values are 0 to 255 in integers and 0 to
/// 1 in floats. A one-dimensional byte tensor receives the undecoded file.
pub fn read(path: &Path, name: &str, ty: ElemType, dims: &[Option<i64>]) -> Result<Array> {
    let bad = |found: String, expected: &str| -> Failure {
        let at = Origin::file(path.display().to_string());
        Error::new(codes::RUN_INPUT, format!("the picture is no input \"{name}\""))
            .at(&at)
            .found_expected(found, expected)
            .into()
    };
    let bytes = std::fs::read(path).map_err(|e| Failure::Io(path.display().to_string(), e.to_string()))?;
    if dims.len() == 1 && ty == ElemType::U8 {
        return Ok(Array { name: name.into(), ty, dims: vec![bytes.len() as i64], data: bytes });
    }
    let shape =
        || dims.iter().map(|d| d.map_or("?".into(), |d| d.to_string())).collect::<Vec<_>>().join(", ");
    let Some(l) = layout(dims) else {
        return Err(bad(
            format!("{ty}[{}]", shape()),
            "one picture: [1, 3, H, W], [1, H, W, 3], [3, H, W], or 1 for 3; or a list of bytes",
        ));
    };
    let format = if l.count == 1 { PixelFormat::Grayscale } else { PixelFormat::Rgb };
    let Some((height, width, pixels)) = image::decode(&bytes, format) else {
        return Err(bad(
            "a file that cannot be decoded".into(),
            "BMP, JPEG, JPEG 2000, PNG, PNM, TIFF or WebP",
        ));
    };
    let (height, width, channels) = (height as usize, width as usize, l.count as usize);
    let rows = dims[l.rows].map_or(height, |d| d.max(0) as usize);
    let columns = dims[l.columns].map_or(width, |d| d.max(0) as usize);
    let down = resize(&pixels, [height, width, channels], rows, true);
    let both = resize(&down, [rows, width, channels], columns, false);
    let mut out_dims = vec![1; dims.len()];
    (out_dims[l.rows], out_dims[l.columns], out_dims[l.channels]) = (rows as i64, columns as i64, l.count);
    let mut values = Vec::with_capacity(both.len());
    if l.channels < l.rows {
        (0..channels).for_each(|c| values.extend(both.iter().skip(c).step_by(channels)));
    } else {
        values = both;
    }
    let data = values.iter().map(|v| element(ty, *v)).collect::<Option<Vec<_>>>();
    let Some(data) = data else { return Err(bad(ty.to_string(), "an integer or a float")) };
    Ok(Array { name: name.into(), ty, dims: out_dims, data: data.concat() })
}

/// Resizes one dimension of a picture. Each new pixel is a weighted mean of the pixels that it covers, with a
/// triangle filter as wide as the pixel distance, as in Pillow's bilinear filter.
fn resize<T: Copy + Into<f32>>(pixels: &[T], [h, w, c]: [usize; 3], to: usize, rows: bool) -> Vec<f32> {
    let from = if rows { h } else { w };
    let (scale, (new_h, new_w)) = (from as f32 / to.max(1) as f32, if rows { (to, w) } else { (h, to) });
    let mut out = vec![0f32; new_h * new_w * c];
    for i in 0..to {
        let (centre, reach) = ((i as f32 + 0.5) * scale, scale.max(1.0));
        let low = (centre - reach).floor().max(0.0) as usize;
        let high = ((centre + reach).ceil() as usize).min(from);
        let weight = |k: usize| (1.0 - ((k as f32 + 0.5 - centre) / reach).abs()).max(0.0);
        let sum: f32 = (low..high).map(weight).sum();
        for k in low..high {
            let part = weight(k) / sum;
            for j in 0..(if rows { w } else { h }) {
                let (a, b) = if rows { (k * w + j, i * w + j) } else { (j * w + k, j * to + i) };
                for x in 0..c {
                    out[b * c + x] += part * pixels[a * c + x].into();
                }
            }
        }
    }
    out
}

fn element(ty: ElemType, v: f32) -> Option<Vec<u8>> {
    let whole = v.round().clamp(0.0, 255.0);
    Some(match ty {
        ElemType::U8 => vec![whole as u8],
        ElemType::I8 => vec![(whole - 128.0) as i8 as u8],
        ElemType::I32 => (whole as i32).to_le_bytes().to_vec(),
        ElemType::I64 => (whole as i64).to_le_bytes().to_vec(),
        ElemType::F32 => (v / 255.0).to_le_bytes().to_vec(),
        ElemType::F64 => f64::from(v / 255.0).to_le_bytes().to_vec(),
        ElemType::F16 => f16::from_f32(v / 255.0).to_le_bytes().to_vec(),
        ElemType::BF16 => bf16::from_f32(v / 255.0).to_le_bytes().to_vec(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts() {
        let find = |d: &[i64]| {
            layout(&d.iter().map(|d| (*d >= 0).then_some(*d)).collect::<Vec<_>>())
                .map(|l| (l.channels, l.count))
        };
        assert_eq!(find(&[1, 3, 224, 224]), Some((1, 3)));
        assert_eq!(find(&[-1, 224, 224, 3]), Some((3, 3)));
        assert_eq!(find(&[-1, -1, -1, 3]), Some((3, 3)));
        assert_eq!(find(&[-1, -1, -1, -1]), Some((1, 3)));
        assert_eq!(find(&[1, 28, 28]), Some((0, 1)));
        assert_eq!(find(&[2, 3, 8, 8]), None);
        assert_eq!(find(&[8, 8]), None);
    }

    #[test]
    fn resizing_keeps_means_and_edges() {
        // Two columns of 0 and 100: half as many, and twice as many.
        let p = [0u8, 100, 0, 100];
        assert_eq!(resize(&p, [2, 2, 1], 1, false), [50.0, 50.0]);
        assert_eq!(resize(&p, [2, 2, 1], 1, true), [0.0, 100.0]);
        assert_eq!(resize(&p, [2, 2, 1], 4, false)[..4], [0.0, 25.0, 75.0, 100.0]);
        assert_eq!(resize(&p, [2, 2, 1], 2, true), [0.0, 100.0, 0.0, 100.0]);
    }
}
