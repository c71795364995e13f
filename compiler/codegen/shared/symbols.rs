//! Symbol tables of a library, and their strings.

use super::file::{self, Chunk, Image, Segment};
use super::{Link, bug};
use crate::diag::Result;
use object::read::{Object as _, ObjectSymbol as _};
use object::{SymbolKind, elf};
use std::collections::BTreeMap;

impl Link<'_> {
    /// A symbol of the library.
    pub(super) fn file_symbol(
        &self,
        i: usize,
        name: u32,
        binding: u8,
        image: &Image,
        sections: &BTreeMap<usize, usize>,
    ) -> Result<file::Symbol> {
        let s = self.symbol(i)?;
        let chunk = s.section_index().and_then(|x| sections.get(&x.0));
        let kind = match s.kind() {
            SymbolKind::Text => elf::STT_FUNC,
            SymbolKind::Data => elf::STT_OBJECT,
            _ => elf::STT_NOTYPE,
        };
        Ok(file::Symbol {
            name,
            info: binding << 4 | kind,
            section: chunk.map_or(0, |c| image.section_number(*c)),
            value: chunk.map_or(0, |c| image.chunks[*c].addr + s.address()),
            size: s.size(),
        })
    }
    /// Names of kernels for profilers and debuggers: sections that are not loaded.
    pub(super) fn local_symbols(&self, image: &mut Image, sections: &BTreeMap<usize, usize>) -> Result<()> {
        let (mut strings, mut list) = (Strings::default(), vec![]);
        for s in self
            .file
            .symbols()
            .filter(|s| s.is_definition() && matches!(s.kind(), SymbolKind::Text | SymbolKind::Data))
        {
            let name = strings.add(s.name_bytes().map_err(bug)?);
            list.push(self.file_symbol(s.index().0, name, elf::STB_LOCAL, image, sections)?);
        }
        let count = list.len() as u32 + 1;
        let bytes = file::symbols(list);
        let symtab = image.push(Chunk::table(".symtab", elf::SHT_SYMTAB, Segment::None, bytes.len(), 24));
        image.fill(symtab, &bytes);
        let strtab =
            image.push(Chunk::table(".strtab", elf::SHT_STRTAB, Segment::None, strings.bytes.len(), 0));
        image.fill(strtab, &strings.bytes);
        (image.chunks[symtab].link, image.chunks[symtab].info) = (strtab, count);
        Ok(())
    }
}

/// NUL-terminated strings; the first one is empty.
pub(super) struct Strings {
    pub bytes: Vec<u8>,
}

impl Default for Strings {
    fn default() -> Strings {
        Strings { bytes: vec![0] }
    }
}

impl Strings {
    pub fn add(&mut self, text: &[u8]) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend(text);
        self.bytes.push(0);
        at
    }
}
