//! The weights blob: every constant that generated code reads, once for all CPU levels, 64-byte aligned, in
//! table order.

use crate::nest::{Buf, Module, Place, visit};
use crate::tensor::ConstData;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

/// Alignment of the blob and of each constant.
pub const ALIGN: u64 = 64;

/// A weights file begins with the SHA-256 of the blob, padded to this many bytes; the blob follows.
pub const HEADER: u64 = 64;

/// Hashing gigabytes would cost more than it saves: constants up to this size are shared if their contents
/// are equal, larger ones if they are made the same way from equal data.
const HASHED: u64 = 1 << 16;

/// The constants of one or several modules.
#[derive(Clone, Debug, Default)]
pub struct Blob {
    /// Constants in order, with their offsets.
    pub parts: Vec<(u64, Arc<ConstData>)>,
    /// Where each module finds its constants, in the order of the modules.
    pub layouts: Vec<Layout>,
    /// Bytes.
    pub size: u64,
}

/// Where each constant of a module lies.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    offsets: HashMap<Buf, i64>,
}

impl Layout {
    /// Byte offset of a constant buffer.
    pub fn offset(&self, b: Buf) -> Option<i64> {
        self.offsets.get(&b).copied()
    }
}

impl Blob {
    /// Lays out the constants that the kernels of the drivers read.
    pub fn new(modules: &[Module]) -> Blob {
        let mut blob = Blob::default();
        let mut shared = Shared::default();
        for m in modules {
            let mut layout = Layout::default();
            visit::walk(&m.driver, &mut |s| {
                let read = match s {
                    crate::nest::Stmt::Call(k) => visit::loads(&m.kernels[*k].body),
                    s => s.loads(),
                };
                for b in read {
                    let b = m.storage(b);
                    if let Place::Const(c) = &m.bufs[b].place {
                        layout.offsets.entry(b).or_insert_with(|| blob.place(c, &mut shared) as i64);
                    }
                }
            });
            blob.layouts.push(layout);
        }
        blob
    }
    /// Offset of a constant, which is put at the end unless it is there already.
    fn place(&mut self, c: &Arc<ConstData>, shared: &mut Shared) -> u64 {
        if let Some(at) = shared.find(c) {
            return at;
        }
        let at = self.size;
        self.parts.push((at, c.clone()));
        self.size = (at + c.byte_len()).next_multiple_of(ALIGN);
        shared.insert(c, at);
        at
    }
    /// Hands the whole blob to `sink` in pieces of bounded size.
    pub fn stream(&self, sink: &mut dyn FnMut(&[u8])) {
        let mut at = 0u64;
        for (offset, c) in &self.parts {
            sink(&[0u8; ALIGN as usize][..(offset - at) as usize]);
            c.stream(sink);
            at = offset + c.byte_len();
        }
        sink(&[0u8; ALIGN as usize][..(self.size - at) as usize]);
    }
    /// SHA-256 of the blob.
    pub fn sha256(&self) -> [u8; 32] {
        let mut h = Sha256::new();
        self.stream(&mut |b| h.update(b));
        h.finalize().into()
    }
}

/// What is in the blob already.
#[derive(Default)]
struct Shared {
    by_ptr: HashMap<*const ConstData, u64>,
    by_hash: HashMap<[u8; 32], u64>,
    large: HashMap<u64, Vec<(Arc<ConstData>, u64)>>,
}

impl Shared {
    fn find(&self, c: &Arc<ConstData>) -> Option<u64> {
        let like = || match c.byte_len() {
            n if n <= HASHED => self.by_hash.get(&c.hash()).copied(),
            n => self.large.get(&n)?.iter().find(|(known, _)| known.same_origin(c)).map(|(_, at)| *at),
        };
        self.by_ptr.get(&Arc::as_ptr(c)).copied().or_else(like)
    }
    fn insert(&mut self, c: &Arc<ConstData>, at: u64) {
        self.by_ptr.insert(Arc::as_ptr(c), at);
        match c.byte_len() {
            n if n <= HASHED => drop(self.by_hash.insert(c.hash(), at)),
            n => self.large.entry(n).or_default().push((c.clone(), at)),
        }
    }
}
