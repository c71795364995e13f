//! Decodes images for models with ImageDecoder: the one function that objects of such models call and do not
//! have themselves. The decoders are behind the feature `image`.
//!
//! BMP, JPEG, JPEG 2000, PNG, PNM, TIFF and WebP, told apart by how the data begin. Every image becomes red,
//! green and blue of 8 bits: grey is repeated, transparency is dropped, wider samples are rounded.
//! Orientation and colour profiles are not applied. Grey is ITU-R 601's, in the fixed point that Pillow has.
//! Pixels of JPEG may be two steps apart from libjpeg-turbo's, whose rounding of upsampled colours
//! alternates.

#[cfg(feature = "image")]
mod decode;

#[cfg(feature = "image")]
pub use decode::{decode, onnxc_decode_image};

/// What the channels of a pixel are. The numbers are those of the C interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum PixelFormat {
    /// Red, green, blue.
    Rgb = 0,
    /// Blue, green, red.
    Bgr = 1,
    /// One channel.
    Grayscale = 2,
}

impl PixelFormat {
    /// Channels of a pixel.
    pub fn channels(self) -> usize {
        if self == PixelFormat::Grayscale { 1 } else { 3 }
    }
    #[cfg(feature = "image")]
    fn from_number(n: i32) -> Option<Self> {
        [PixelFormat::Rgb, PixelFormat::Bgr, PixelFormat::Grayscale].into_iter().find(|f| *f as i32 == n)
    }
}
