//! Functions that generated code calls and does not contain. Only models whose operators need one have the
//! undefined symbol; crate `onnxc-runtime` provides it.

use super::Buf;
use onnxc_runtime::image::PixelFormat;

/// A call of such a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The function.
    pub function: Function,
    /// What it reads.
    pub from: Buf,
    /// What it writes.
    pub to: Buf,
}

/// The functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Bytes of an encoded image -> height, width and channels (i64); 0, 0 and channels if nothing can decode
    /// it.
    ImageShape(PixelFormat),
    /// The same -> its pixels, as many as the buffer has dimensions for.
    ImagePixels(PixelFormat),
}

/// What [`Function::ImageShape`] and [`Function::ImagePixels`] call:
/// `int32_t onnxc_decode_image(const uint8_t *encoded, int64_t size, int32_t pixel_format, int64_t shape[3],
/// uint8_t *pixels)`.
pub const DECODE_IMAGE: &str = "onnxc_decode_image";

impl Function {
    const ALL: [Function; 6] = [
        Function::ImageShape(PixelFormat::Rgb),
        Function::ImageShape(PixelFormat::Bgr),
        Function::ImageShape(PixelFormat::Grayscale),
        Function::ImagePixels(PixelFormat::Rgb),
        Function::ImagePixels(PixelFormat::Bgr),
        Function::ImagePixels(PixelFormat::Grayscale),
    ];
    /// Name in the nest IR.
    pub fn name(self) -> &'static str {
        match self {
            Function::ImageShape(PixelFormat::Rgb) => "image_shape_rgb",
            Function::ImageShape(PixelFormat::Bgr) => "image_shape_bgr",
            Function::ImageShape(PixelFormat::Grayscale) => "image_shape_grayscale",
            Function::ImagePixels(PixelFormat::Rgb) => "image_pixels_rgb",
            Function::ImagePixels(PixelFormat::Bgr) => "image_pixels_bgr",
            Function::ImagePixels(PixelFormat::Grayscale) => "image_pixels_grayscale",
        }
    }
    /// From the name.
    pub fn from_name(name: &str) -> Option<Self> {
        Function::ALL.into_iter().find(|f| f.name() == name)
    }
    /// What it does, for the interpreter: what it stores for `from` into a buffer of these dimensions.
    pub fn run(self, from: &[u8], dims: &[i64]) -> Option<Vec<u8>> {
        match self {
            Function::ImageShape(f) => {
                let (h, w, _) = decode(from, f)?;
                Some(
                    [i64::from(h), i64::from(w), f.channels() as i64]
                        .iter()
                        .flat_map(|n| n.to_le_bytes())
                        .collect(),
                )
            }
            Function::ImagePixels(f) => {
                let (h, w, pixels) = decode(from, f)?;
                (dims == [i64::from(h), i64::from(w), f.channels() as i64]).then_some(pixels)
            }
        }
    }
}

/// What is no image has no pixels.
#[cfg(feature = "image")]
fn decode(from: &[u8], f: PixelFormat) -> Option<(u32, u32, Vec<u8>)> {
    Some(onnxc_runtime::image::decode(from, f).unwrap_or_default())
}

/// Without decoders nothing can be computed.
#[cfg(not(feature = "image"))]
fn decode(_: &[u8], _: PixelFormat) -> Option<(u32, u32, Vec<u8>)> {
    None
}
