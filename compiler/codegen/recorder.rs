//! Sections written by gimli: bytes, and relocations against symbols of the object.

use gimli::LittleEndian;
use gimli::write::{EndianVec, RelocateWriter, Relocation};

/// Bytes of a section, and its relocations.
#[derive(Clone)]
pub(super) struct Recorder {
    pub bytes: EndianVec<LittleEndian>,
    pub relocations: Vec<Relocation>,
}

impl Recorder {
    /// An empty section.
    pub fn new() -> Recorder {
        Recorder { bytes: EndianVec::new(LittleEndian), relocations: vec![] }
    }
}

impl RelocateWriter for Recorder {
    type Writer = EndianVec<LittleEndian>;
    fn writer(&self) -> &Self::Writer {
        &self.bytes
    }
    fn writer_mut(&mut self) -> &mut Self::Writer {
        &mut self.bytes
    }
    fn relocate(&mut self, r: Relocation) {
        self.relocations.push(r);
    }
}
