//! The decoders, and the function of the C interface.
#![allow(unsafe_code, reason = "the C interface takes pointers")]

use super::PixelFormat;
use hayro_jpeg2000::{ColorSpace, DecodeSettings, DecoderContext, Image};
use std::cell::RefCell;

/// Maximum pixels of a JPEG 2000 image: its decoder allocates memory for the size in the header before
/// reading any data. Other decoders have a limit of their own.
const MOST: u64 = 1 << 26;

/// Signatures of a JPEG 2000 file and of a bare codestream.
const JPEG_2000: [&[u8]; 2] = [b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"];

/// Height, width and pixels of an encoded image, row by row; `None` if it cannot be decoded.
pub fn decode(encoded: &[u8], format: PixelFormat) -> Option<(u32, u32, Vec<u8>)> {
    // A panic of a decoder means invalid data. It must not unwind into generated code.
    std::panic::catch_unwind(|| pixels(encoded, format)).ok().flatten()
}

fn pixels(encoded: &[u8], format: PixelFormat) -> Option<(u32, u32, Vec<u8>)> {
    let (height, width, rgb) = if JPEG_2000.iter().any(|m| encoded.starts_with(m)) {
        jpeg_2000(encoded)?
    } else {
        let image = image::load_from_memory(encoded).ok()?.into_rgb8();
        (image.height(), image.width(), image.into_raw())
    };
    let pixels = match format {
        PixelFormat::Rgb => rgb,
        PixelFormat::Bgr => rgb.chunks_exact(3).flat_map(|p| [p[2], p[1], p[0]]).collect(),
        PixelFormat::Grayscale => rgb.chunks_exact(3).map(grey).collect(),
    };
    Some((height, width, pixels))
}

fn grey(p: &[u8]) -> u8 {
    let sum: u32 = p.iter().zip([19595, 38470, 7471]).map(|(c, w)| u32::from(*c) * w).sum();
    ((sum + 0x8000) >> 16) as u8
}

fn jpeg_2000(encoded: &[u8]) -> Option<(u32, u32, Vec<u8>)> {
    let image = Image::new(encoded, &DecodeSettings::default()).ok()?;
    if u64::from(image.width()) * u64::from(image.height()) > MOST {
        return None;
    }
    let mut context = DecoderContext::default();
    let data = image.decode(&mut context).ok()?.data_u8();
    let (height, width) = (image.height(), image.width());
    let pixels = (height as usize).checked_mul(width as usize).filter(|n| *n > 0)?;
    let channels = data.len() / pixels;
    let rgb = match (image.color_space(), channels) {
        (ColorSpace::CMYK, _) => return None,
        (_, 1 | 2) => data.chunks_exact(channels).flat_map(|p| [p[0]; 3]).collect(),
        (_, 3..) => data.chunks_exact(channels).flat_map(|p| [p[0], p[1], p[2]]).collect(),
        _ => return None,
    };
    Some((height, width, rgb))
}

/// A cached decoding: address and size of the data, format, height, width and pixels.
type Decoded = (usize, usize, PixelFormat, u32, u32, Vec<u8>);

thread_local! {
    /// Pixels are requested directly after the sizes, which are only known after decoding, since only its
    /// success is certain.
    static LAST: RefCell<Option<Decoded>> = const { RefCell::new(None) };
}

/// What generated code calls; `include/onnxc_runtime.h` describes it.
///
/// # Safety
///
/// `encoded` leads to `size` bytes, `shape` to three numbers. If `pixels` is not null, `shape` holds the
/// sizes of the image, as the call before told them for the same data, and `pixels` leads to as many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_decode_image(
    encoded: *const u8,
    size: i64,
    pixel_format: i32,
    shape: *mut i64,
    pixels: *mut u8,
) -> i32 {
    let (Some(format), Ok(size)) = (PixelFormat::from_number(pixel_format), usize::try_from(size)) else {
        return 1;
    };
    if encoded.is_null() || shape.is_null() {
        return 1;
    }
    // SAFETY: as the caller promises.
    let (data, shape) =
        unsafe { (std::slice::from_raw_parts(encoded, size), &mut *shape.cast::<[i64; 3]>()) };
    let key = (encoded as usize, size, format);
    let found = LAST.take().filter(|d| !pixels.is_null() && (d.0, d.1, d.2) == key);
    let decoded = || decode(data, format).map(|(h, w, p)| (key.0, key.1, key.2, h, w, p));
    let (_, _, _, h, w, bytes) = found.or_else(decoded).unwrap_or((key.0, key.1, key.2, 0, 0, vec![]));
    let sizes = [i64::from(h), i64::from(w), format.channels() as i64];
    if pixels.is_null() {
        *shape = sizes;
        LAST.set(Some((key.0, key.1, key.2, h, w, bytes)));
        return 0;
    }
    if sizes != *shape || bytes.len() as i64 != sizes.iter().product::<i64>() {
        return 1;
    }
    // SAFETY: `pixels` leads to as many bytes as `shape` says, and that is what was decoded.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pixels, bytes.len()) };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pixels, red and white.
    const PPM: &[u8] = b"P6 2 1 255\n\xff\0\0\xff\xff\xff";

    #[test]
    fn formats() {
        assert_eq!(decode(PPM, PixelFormat::Rgb), Some((1, 2, vec![255, 0, 0, 255, 255, 255])));
        assert_eq!(decode(PPM, PixelFormat::Bgr), Some((1, 2, vec![0, 0, 255, 255, 255, 255])));
        assert_eq!(decode(PPM, PixelFormat::Grayscale), Some((1, 2, vec![76, 255])));
        assert_eq!(decode(&PPM[..8], PixelFormat::Rgb), None);
    }

    #[test]
    fn sizes_then_pixels() {
        let (mut shape, mut pixels) = ([0i64; 3], vec![0u8; 6]);
        for (data, want) in [(PPM, [1, 2, 3]), (&PPM[..8], [0, 0, 3])] {
            // SAFETY: the pointers lead to what the function asks for.
            let status = unsafe {
                onnxc_decode_image(
                    data.as_ptr(),
                    data.len() as i64,
                    0,
                    shape.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            };
            assert_eq!((status, shape), (0, want));
            // SAFETY: there is room for six bytes, more than either image has.
            let status = unsafe {
                onnxc_decode_image(
                    data.as_ptr(),
                    data.len() as i64,
                    0,
                    shape.as_mut_ptr(),
                    pixels.as_mut_ptr(),
                )
            };
            assert_eq!(status, 0);
        }
        assert_eq!(pixels, [255, 0, 0, 255, 255, 255]);
        shape[0] = 7;
        // SAFETY: nothing is written, the sizes do not fit.
        let status = unsafe {
            onnxc_decode_image(PPM.as_ptr(), PPM.len() as i64, 0, shape.as_mut_ptr(), pixels.as_mut_ptr())
        };
        assert_eq!(status, 1);
    }
}
