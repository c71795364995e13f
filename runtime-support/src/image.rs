//! Decodes images for models with ImageDecoder: the only external function that objects of such models call.
//! The decoders require the feature `image`.
//!
//! BMP, JPEG, JPEG 2000, PNG, PNM, TIFF and WebP, recognised by their signatures. Every image is converted to
//! 8-bit red, green and blue: grey is replicated, transparency is dropped, wider samples are rounded.
//! Orientation and colour profiles are not applied. Grey is computed as in ITU-R 601, with Pillow's
//! fixed-point arithmetic. JPEG pixels may differ by two from libjpeg-turbo's, whose rounding of upsampled
//! colours alternates.

#[cfg(feature = "image")]
mod decode;

#[cfg(feature = "image")]
pub use decode::{decode, onnxc_decode_image};

/// The channels of a pixel. The numbers are those of the C interface.
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
