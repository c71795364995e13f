//! The weights blob: every constant that generated code reads, once, 64-byte aligned, in table order.

use crate::nest::{Buf, Module, Place, visit};
use crate::tensor::ConstData;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

/// Alignment of the blob and of each constant.
pub const ALIGN: u64 = 64;

/// A weights file begins with the SHA-256 of the blob, padded to this many bytes; the blob follows.
pub const HEADER: u64 = 64;

/// Where each constant lies.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Constants in order, with their offsets.
    pub parts: Vec<(u64, Arc<ConstData>)>,
    offsets: HashMap<Buf, i64>,
    /// Bytes of the blob.
    pub size: u64,
}

impl Layout {
    /// Lays out the constants that the kernels of the driver read.
    pub fn new(m: &Module) -> Layout {
        let mut l = Layout::default();
        let mut by_ptr: HashMap<*const ConstData, u64> = HashMap::new();
        let mut by_hash: HashMap<[u8; 32], u64> = HashMap::new();
        visit::walk(&m.driver, &mut |s| {
            let crate::nest::Stmt::Call(k) = s else { return };
            for b in visit::loads(&m.kernels[*k].body) {
                let b = m.storage(b);
                let Place::Const(c) = &m.bufs[b].place else { continue };
                if l.offsets.contains_key(&b) {
                    continue;
                }
                // Hashing gigabytes would cost more than it saves: large constants are shared only if they are one.
                let small = c.byte_len() <= 1 << 16;
                let known = by_ptr.get(&Arc::as_ptr(c)).copied().or_else(|| if small { by_hash.get(&c.hash()).copied() } else { None });
                let at = known.unwrap_or_else(|| {
                    let at = l.size;
                    l.parts.push((at, c.clone()));
                    l.size = (at + c.byte_len()).next_multiple_of(ALIGN);
                    at
                });
                by_ptr.insert(Arc::as_ptr(c), at);
                if small {
                    by_hash.insert(c.hash(), at);
                }
                l.offsets.insert(b, at as i64);
            }
        });
        l
    }
    /// Byte offset of a constant buffer.
    pub fn offset(&self, b: Buf) -> Option<i64> {
        self.offsets.get(&b).copied()
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
