//! Maps `<m>.weights`, the side file of models whose weights are not embedded. Mapped, not read: pages come
//! in when they are used, and processes that run the same model share them.

use memmap2::{MmapOptions, MmapRaw};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

/// A mapped weights file, read-only. Generated code compares its head with the model (`ONNXC_E_WEIGHTS`).
/// The file may be larger than the model needs: it has an index, and other models may share it.
///
/// The file must not be written to or cut short while it is mapped. Rust code never sees the bytes, only
/// their address.
#[derive(Debug)]
pub struct Weights(MmapRaw);

/// Why a weights file was refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be opened or mapped.
    Io(io::Error),
    /// It has less bytes than the model declares.
    Size {
        /// `weights_size` of the model.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// It cannot be mapped at the alignment that the model declares.
    Align {
        /// `weights_align` of the model.
        expected: u64,
    },
}

impl fmt::Display for WeightsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightsError::Io(e) => write!(f, "cannot map the weights file: {e}"),
            WeightsError::Size { expected, found } => {
                write!(f, "the weights file has {found} bytes, the model expects at least {expected}")
            }
            WeightsError::Align { expected } => {
                write!(f, "the weights file cannot be mapped at a multiple of {expected} bytes")
            }
        }
    }
}

impl std::error::Error for WeightsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WeightsError::Io(e) => Some(e),
            _ => None,
        }
    }
}

impl From<io::Error> for WeightsError {
    fn from(e: io::Error) -> WeightsError {
        WeightsError::Io(e)
    }
}

impl Weights {
    /// Maps the first `size` bytes of a file, aligned to `align`: `weights_size` and `weights_align` of the
    /// model (`<M>_WEIGHTS_SIZE`, `<M>_WEIGHTS_ALIGN` in the header).
    pub fn open(path: impl AsRef<Path>, size: u64, align: u64) -> Result<Weights, WeightsError> {
        let file = File::open(path)?;
        let found = file.metadata()?.len();
        let len = usize::try_from(size)
            .ok()
            .filter(|_| found >= size)
            .ok_or(WeightsError::Size { expected: size, found })?;
        let w = Weights(MmapOptions::new().len(len).map_raw_read_only(&file)?);
        if w.is_aligned(align) { Ok(w) } else { Err(WeightsError::Align { expected: align }) }
    }
    /// True if the address is a multiple of `align`.
    pub fn is_aligned(&self, align: u64) -> bool {
        (self.as_ptr().addr() as u64).is_multiple_of(align.max(1))
    }
    /// The address for generated code.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }
    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// True for an empty file.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked() {
        let path = std::env::temp_dir().join(format!("onnxc-runtime-sizes-{}.weights", std::process::id()));
        std::fs::write(&path, vec![9u8; 1000]).unwrap();
        for size in [999, 1000] {
            let w = Weights::open(&path, size, 64).unwrap();
            assert!(w.len() as u64 == size && w.is_aligned(64) && !w.is_empty());
        }
        for size in [1001, u64::MAX] {
            let e = Weights::open(&path, size, 64).unwrap_err();
            assert!(matches!(e, WeightsError::Size { expected, found: 1000 } if expected == size), "{e}");
        }
        assert!(matches!(Weights::open(&path, 1000, 1 << 62), Err(WeightsError::Align { .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Weights::open(&path, 1000, 64), Err(WeightsError::Io(_))));
    }
}
