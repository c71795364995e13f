//! Aligned memory. A `Vec<u8>` guarantees no alignment; generated code requires 64 bytes for workspaces and
//! element alignment for tensors.

#![allow(unsafe_code, reason = "allocates with a given alignment")]

use crate::abi::Status;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every buffer: a cache line, which exceeds the alignment of every element type.
pub const ALIGN: usize = 64;

/// Uninitialised memory. A layout of size 0 is not allocated.
#[derive(Debug)]
struct Raw {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Raw` owns its memory and touches nothing else.
unsafe impl Send for Raw {}
// SAFETY: a shared `Raw` hands out nothing but addresses and, in `Buffer`, shared bytes.
unsafe impl Sync for Raw {}

impl Raw {
    fn new(bytes: usize, align: usize, zeroed: bool) -> Result<Raw, Status> {
        let layout = Layout::from_size_align(bytes, 1).map_err(|_| Status::Capacity)?;
        let layout = layout.align_to(align).map_err(|_| Status::Align)?;
        if bytes == 0 {
            return Ok(Raw { ptr: layout.dangling_ptr(), layout });
        }
        // SAFETY: the size is not 0.
        let ptr = unsafe { if zeroed { alloc_zeroed(layout) } else { alloc(layout) } };
        Ok(Raw { ptr: NonNull::new(ptr).ok_or(Status::Capacity)?, layout })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if self.layout.size() != 0 {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
        }
    }
}

/// Bytes with alignment [`ALIGN`], initially zero.
#[derive(Debug)]
pub struct Buffer {
    raw: Raw,
    /// At most the size of `raw`.
    len: usize,
}

impl Buffer {
    /// Zeroed bytes, or [`Status::Capacity`] if allocation fails.
    pub fn new(bytes: usize) -> Result<Buffer, Status> {
        Ok(Buffer { raw: Raw::new(bytes, ALIGN, true)?, len: bytes })
    }
    /// An aligned copy.
    pub fn copy_of(bytes: &[u8]) -> Result<Buffer, Status> {
        let mut b = Buffer::new(bytes.len())?;
        b.copy_from_slice(bytes);
        Ok(b)
    }
    /// Drops all bytes after the first `bytes`.
    pub fn truncate(&mut self, bytes: usize) {
        self.len = self.len.min(bytes);
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `raw` has at least `len` bytes, initialised since `new`, and lives as long as the borrow.
        unsafe { std::slice::from_raw_parts(self.raw.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.raw.ptr.as_ptr(), self.len) }
    }
}

/// Scratch memory for one call at a time: aligned, with undefined contents, which Rust code never reads.
#[derive(Debug)]
pub struct Workspace(Raw);

impl Workspace {
    /// `bytes` aligned to `align` (a power of two; at least [`ALIGN`] is used).
    pub fn new(bytes: usize, align: usize) -> Result<Workspace, Status> {
        Raw::new(bytes, align.max(ALIGN), false).map(Workspace)
    }
    /// Grows, losing the contents, unless size and alignment suffice already.
    pub fn reserve(&mut self, bytes: usize, align: usize) -> Result<(), Status> {
        if self.len() < bytes || self.0.layout.align() < align {
            let bytes = bytes.max(self.len());
            // Free the old memory before allocating the new.
            *self = Workspace::default();
            *self = Workspace::new(bytes, align)?;
        }
        Ok(())
    }
    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.layout.size()
    }
    /// True if the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The address; not null and aligned even if empty.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.ptr.as_ptr()
    }
}

impl Default for Workspace {
    /// An empty workspace, to grow by [`Workspace::reserve`].
    fn default() -> Workspace {
        Workspace(Raw { ptr: Layout::new::<Line>().dangling_ptr(), layout: Layout::new::<Line>() })
    }
}

/// Size 0, alignment [`ALIGN`].
#[repr(align(64))]
struct Line;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_zeroed() {
        for n in [0, 1, 63, 64, 65, 100_000] {
            let mut b = Buffer::new(n).unwrap();
            assert!(b.as_ptr().addr().is_multiple_of(ALIGN) && b.len() == n && b.iter().all(|x| *x == 0));
            b.fill(7);
            b.truncate(n / 2);
            assert_eq!(*b, vec![7; n / 2]);
        }
        assert_eq!(*Buffer::copy_of(&[1, 2, 3]).unwrap(), [1, 2, 3]);
    }

    #[test]
    fn workspace_grows() {
        let mut w = Workspace::default();
        assert!(w.is_empty() && !w.as_mut_ptr().is_null());
        for (n, align) in [(0, 64), (10, 64), (5, 4096), (100_000, 1)] {
            w.reserve(n, align).unwrap();
            assert!(w.len() >= n && w.as_mut_ptr().addr().is_multiple_of(align.max(ALIGN)));
        }
        assert_eq!(w.len(), 100_000);
    }

    #[test]
    fn too_much_is_an_error() {
        assert_eq!(Buffer::new(usize::MAX).unwrap_err(), Status::Capacity);
        assert_eq!(Buffer::new(isize::MAX as usize - 64).unwrap_err(), Status::Capacity);
        assert_eq!(Workspace::new(8, 65).unwrap_err(), Status::Align);
    }
}
