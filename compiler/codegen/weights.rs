//! The weights blob: every constant that generated code reads, once for all CPU levels, 64-byte aligned, in
//! table order. `weights_file` describes the file format for weights in a separate file.

use super::weights_file::WeightsFile;
use crate::nest::{Buf, Module, Place, visit};
use crate::tensor::ConstData;
use std::collections::HashMap;
use std::sync::Arc;

/// Alignment of the blob and of each constant.
pub const ALIGN: u64 = 64;

/// Largest constant that is shared by content hash. Larger ones are shared if they are derived in the same
/// way from equal data, because hashing gigabytes would cost more than it saves.
const HASHED: u64 = 1 << 16;

/// The constants of one or several modules.
#[derive(Clone, Debug, Default)]
pub struct Blob {
    /// A weights file whose blob is the prefix of this one.
    pub base: Option<Arc<WeightsFile>>,
    /// Constants in order, after those of the base.
    pub parts: Vec<Part>,
    /// Offsets of each module's constants, in the order of the modules.
    pub layouts: Vec<Layout>,
    /// Bytes.
    pub size: u64,
}

/// A constant of the blob.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its first byte.
    pub offset: u64,
    /// Name of its buffer.
    pub name: String,
    /// Its contents.
    pub data: Arc<ConstData>,
}

/// Offsets of a module's constants.
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
        Blob::default().filled(modules, Shared::default())
    }
    /// As [`Blob::new`], for a file whose values may change later: sharing must not depend on initial values
    /// that happen to be equal, such as the zeros of new biases. Constants of the base are not repeated.
    pub fn for_file(modules: &[Module], base: Option<Arc<WeightsFile>>) -> Blob {
        let blob = Blob { size: base.as_ref().map_or(0, |b| b.size()), base, ..Blob::default() };
        blob.filled(modules, Shared { by_name: true, ..Shared::default() })
    }
    fn filled(mut self, modules: &[Module], mut shared: Shared) -> Blob {
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
                        let place = || self.place(&m.bufs[b].name, c, &mut shared) as i64;
                        layout.offsets.entry(b).or_insert_with(place);
                    }
                }
            });
            self.layouts.push(layout);
        }
        self
    }
    /// Offset of a constant, which is appended unless it is already present.
    fn place(&mut self, name: &str, c: &Arc<ConstData>, shared: &mut Shared) -> u64 {
        if let Some(at) = shared.find(name, c) {
            return at;
        }
        if let Some(at) = self.base.as_ref().and_then(|b| b.find(name, c)) {
            shared.insert(name, c, at);
            return at;
        }
        let at = self.size;
        self.parts.push(Part { offset: at, name: name.to_owned(), data: c.clone() });
        self.size = (at + c.byte_len()).next_multiple_of(ALIGN);
        shared.insert(name, c, at);
        at
    }
    /// Passes the whole blob to `sink` in pieces of bounded size.
    pub fn stream(&self, sink: &mut dyn FnMut(&[u8])) {
        let mut at = 0u64;
        if let Some(base) = &self.base {
            base.blob().chunks(1 << 20).for_each(&mut *sink);
            at = base.size();
        }
        for part in &self.parts {
            sink(&[0u8; ALIGN as usize][..(part.offset - at) as usize]);
            part.data.stream(sink);
            at = part.offset + part.data.byte_len();
        }
        sink(&[0u8; ALIGN as usize][..(self.size - at) as usize]);
    }
}

/// Constants that are already in the blob.
#[derive(Default)]
struct Shared {
    /// True if small constants are shared only under one name, which is the case of one constant on two CPU
    /// levels. Large constants with equal elements need the same name, too; equality of other large ones is
    /// no coincidence.
    by_name: bool,
    by_ptr: HashMap<*const ConstData, u64>,
    by_hash: HashMap<([u8; 32], String), u64>,
    large: HashMap<u64, Vec<Large>>,
}

/// A large constant, with its name and offset.
type Large = (Arc<ConstData>, String, u64);

impl Shared {
    /// The part of the key that small constants have besides the hash.
    fn name(&self, name: &str) -> String {
        if self.by_name { name.to_owned() } else { String::new() }
    }
    fn find(&self, name: &str, c: &Arc<ConstData>) -> Option<u64> {
        let same = |(known, called, _): &&Large| {
            known.same_origin(c) && (!self.by_name || called == name || !c.is_splat())
        };
        let like = || match c.byte_len() {
            n if n <= HASHED => self.by_hash.get(&(c.hash(), self.name(name))).copied(),
            n => self.large.get(&n)?.iter().find(same).map(|(_, _, at)| *at),
        };
        self.by_ptr.get(&Arc::as_ptr(c)).copied().or_else(like)
    }
    fn insert(&mut self, name: &str, c: &Arc<ConstData>, at: u64) {
        self.by_ptr.insert(Arc::as_ptr(c), at);
        match c.byte_len() {
            n if n <= HASHED => drop(self.by_hash.insert((c.hash(), self.name(name)), at)),
            n => self.large.entry(n).or_default().push((c.clone(), name.to_owned(), at)),
        }
    }
}
