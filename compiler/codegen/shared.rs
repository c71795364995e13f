//! Shared libraries for ELF targets, written without a linker: the object's sections at fixed distances, with
//! the remaining relocations for the dynamic linker. Programs load them with dlopen (`--emit shared`).
//!
//! Segments in order: read-only (headers, dynamic tables, constants), code and stubs, data that is read-only
//! after relocation, data, zeros, weights. Addresses are file offsets plus whole pages, one more page for
//! each segment, so the file needs no padding.

mod file;
mod relocate;
mod symbols;

use super::assemble::Unit;
use super::object::build;
use super::unwind;
use crate::diag::{Error, Failure, Origin, Result, codes};
use file::{Chunk, Contents, Image, Segment};
use object::read::elf::{ElfFile64, ElfSection64, ElfSymbol64, FileHeader as _};
use object::read::{Object as _, ObjectSection as _, ObjectSymbol as _};
use object::{LittleEndian as LE, SectionKind, SymbolIndex, elf};
use relocate::{Need, STUB};
use std::collections::BTreeMap;
use std::io::Write;
use symbols::Strings;
use target_lexicon::{BinaryFormat, Environment, OperatingSystem};

type File<'a> = ElfFile64<'a, LE>;

/// Writes the shared library of a model.
pub fn write(unit: &Unit, out: &mut dyn Write) -> Result<()> {
    let triple = &unit.target.triple;
    let at = Origin::file(&unit.interface.model_file);
    if triple.binary_format != BinaryFormat::Elf || triple.operating_system == OperatingSystem::None_ {
        return Error::new(codes::TARGET, "--emit shared writes ELF shared libraries")
            .at(&at)
            .found_expected(
                &unit.interface.target,
                "a target with ELF and a dynamic linker, such as x86_64-unknown-linux-gnu",
            )
            .help("write an object and link it: cc -shared model.o -o libmodel.dylib")
            .fail();
    }
    if unit.interface.hidden {
        return Error::new(codes::OPTION, "--hidden hides all that --emit shared exports")
            .at(&at)
            .help("leave out --hidden")
            .fail();
    }
    let (mut product, ids, _) = build(unit, false)?;
    // The weights are not a section of this object: they are streamed into the library.
    let weights = ids.weights.map(|id| {
        let id = product.data_symbol(id);
        product.object.symbol_mut(id).scope = object::SymbolScope::Unknown;
        product.object.symbol(id).name.clone()
    });
    let bytes = product.object.write().map_err(|e| Failure::bug("shared", e.to_string()))?;
    let file = File::parse(&*bytes).map_err(bug)?;
    let link = Link::new(&file, weights.as_deref())?;
    unit.clock.step("write shared", || {
        let image = link.image(unit)?;
        let io = |e: std::io::Error| Failure::Io("the shared library".into(), e.to_string());
        image.write(out, unit.weights).map_err(io)?;
        out.flush().map_err(io)
    })
}

fn bug(e: object::read::Error) -> Failure {
    Failure::bug("shared", e.to_string())
}

/// The object, and what the library adds to its sections. Symbols and sections are identified by their
/// indices in the object.
struct Link<'a> {
    file: &'a File<'a>,
    machine: u16,
    /// The symbol of the weights.
    weights: Option<usize>,
    /// Symbols with a GOT entry, in order.
    got: Vec<usize>,
    /// Symbols with a stub, in order: imported functions.
    stubs: Vec<usize>,
    /// Number of words that hold addresses.
    addresses: usize,
    relocations: Vec<Relocation>,
    /// Relocations of sections that are not loaded.
    debug: Vec<Relocation>,
}

/// Contents of sections, by index.
type Sections = BTreeMap<usize, Vec<u8>>;

struct Relocation {
    section: usize,
    offset: u64,
    r_type: u32,
    symbol: usize,
    addend: i64,
}

/// Addresses of the object's sections, the weights, the first stub and the first GOT entry.
struct Places {
    sections: BTreeMap<usize, u64>,
    weights: u64,
    stubs: u64,
    got: u64,
}

/// The groups of sections, each in its own segment, in this order.
const GROUPS: [(SectionKind, Segment); 5] = [
    (SectionKind::ReadOnlyData, Segment::ReadOnly),
    (SectionKind::Text, Segment::Code),
    (SectionKind::ReadOnlyDataWithRel, Segment::Relocated),
    (SectionKind::Data, Segment::Data),
    (SectionKind::UninitializedData, Segment::Zeros),
];

/// The group of a section. Data with relocations is in `.data.rel.ro`, which the reader classifies as data.
fn group(s: &ElfSection64<'_, '_, LE>) -> SectionKind {
    match s.kind() {
        SectionKind::ReadOnlyString => SectionKind::ReadOnlyData,
        SectionKind::Data if s.name().is_ok_and(|n| n.starts_with(".data.rel.ro")) => {
            SectionKind::ReadOnlyDataWithRel
        }
        k => k,
    }
}

/// True for a section of debug information.
fn is_debug(s: &ElfSection64<'_, '_, LE>) -> bool {
    s.name().is_ok_and(|n| n.starts_with(".debug_"))
}

impl<'a> Link<'a> {
    /// Collects the GOT entries, stubs and relocations that are needed.
    fn new(file: &'a File<'a>, weights: Option<&[u8]>) -> Result<Link<'a>> {
        let named = |s: &ElfSymbol64<'_, '_, LE>| s.name_bytes().is_ok_and(|n| Some(n) == weights);
        let mut link = Link {
            file,
            machine: file.elf_header().e_machine(LE),
            weights: file.symbols().find(named).map(|s| s.index().0),
            got: vec![],
            stubs: vec![],
            addresses: 0,
            relocations: vec![],
            debug: vec![],
        };
        for s in file.sections() {
            for (offset, r) in s.relocations() {
                let (object::RelocationFlags::Elf { r_type }, object::RelocationTarget::Symbol(symbol)) =
                    (r.flags(), r.target())
                else {
                    return Err(Failure::bug("shared", format!("relocation {r:?}")));
                };
                let r =
                    Relocation { section: s.index().0, offset, r_type, symbol: symbol.0, addend: r.addend() };
                if is_debug(&s) { &mut link.debug } else { &mut link.relocations }.push(r);
            }
        }
        for r in &link.relocations {
            match relocate::need(link.machine, r.r_type)? {
                Need::Address => link.addresses += 1,
                Need::Got => link.got.push(r.symbol),
                Need::Direct if link.is_import(r.symbol)? => {
                    link.got.push(r.symbol);
                    link.stubs.push(r.symbol);
                }
                Need::Direct | Need::Pair => {}
            }
        }
        for list in [&mut link.got, &mut link.stubs] {
            list.sort_unstable();
            list.dedup();
        }
        Ok(link)
    }
    fn symbol(&self, i: usize) -> Result<ElfSymbol64<'a, 'a, LE>> {
        self.file.symbol_by_index(SymbolIndex(i)).map_err(bug)
    }
    fn is_import(&self, i: usize) -> Result<bool> {
        Ok(self.symbol(i)?.is_undefined() && self.weights != Some(i))
    }
    /// The whole library.
    fn image(&self, unit: &Unit) -> Result<Image> {
        let mut image = Image::new(self.machine, self.file.elf_header().e_flags(LE));
        let imports: Vec<usize> = self
            .file
            .symbols()
            .map(|s| s.index().0)
            .filter(|i| *i != 0 && self.is_import(*i).unwrap_or(false))
            .collect();
        let exports: Vec<usize> =
            self.file.symbols().filter(|s| s.is_global() && s.is_definition()).map(|s| s.index().0).collect();
        let mut strings = Strings::default();
        let needed: Vec<u32> = self.needed(unit, &imports)?.into_iter().map(|n| strings.add(n)).collect();
        let dynamic: Vec<usize> = imports.iter().chain(&exports).copied().collect();
        let names = dynamic
            .iter()
            .map(|i| Ok(strings.add(self.symbol(*i)?.name_bytes().map_err(bug)?)))
            .collect::<Result<Vec<_>>>()?;
        // Sizes first: every chunk has an address before any contents are written.
        let table =
            |name, sh_type, size: usize, entry| Chunk::table(name, sh_type, Segment::ReadOnly, size, entry);
        let hash = image.push(table(".hash", elf::SHT_HASH, 4 * (3 + 2 * dynamic.len() + 1), 4));
        let dynsym = image.push(table(".dynsym", elf::SHT_DYNSYM, 24 * (dynamic.len() + 1), 24));
        let dynstr = image.push(table(".dynstr", elf::SHT_STRTAB, strings.bytes.len(), 0));
        let rela = image.push(table(".rela.dyn", elf::SHT_RELA, 24 * (self.addresses + self.got.len()), 24));
        let unwind = self.unwind_section();
        let frames = self.relocations.iter().filter(|r| Some(r.section) == unwind).count();
        let frame_index =
            image.push(table(".eh_frame_hdr", elf::SHT_PROGBITS, unwind::index_size(frames), 0));
        let mut sections = BTreeMap::new();
        let (mut stubs, mut tables) = (0, (0, 0));
        for (kind, segment) in GROUPS {
            for s in self.file.sections().filter(|s| group(s) == kind) {
                let name = s.name().map_err(bug)?;
                let mut chunk = Chunk::table(name, elf::SHT_PROGBITS, segment, s.size() as usize, 0);
                chunk.align = s.align().max(1);
                sections.insert(s.index().0, image.push(chunk));
            }
            let table = |name, sh_type, size, entry| Chunk::table(name, sh_type, segment, size, entry);
            match kind {
                SectionKind::Text => {
                    stubs =
                        image.push(table(".plt", elf::SHT_PROGBITS, self.stubs.len() * STUB as usize, STUB))
                }
                SectionKind::ReadOnlyDataWithRel => {
                    let dynamic =
                        image.push(table(".dynamic", elf::SHT_DYNAMIC, 16 * (needed.len() + 9), 16));
                    tables = (dynamic, image.push(table(".got", elf::SHT_PROGBITS, 8 * self.got.len(), 8)));
                }
                _ => {}
            }
        }
        let (dynamic_table, got) = tables;
        let size = if self.weights.is_some() { unit.weights.size as usize } else { 0 };
        let weights = image.push(Chunk {
            align: super::weights::ALIGN,
            ..Chunk::table(".rodata.weights", elf::SHT_PROGBITS, Segment::Weights, size, 0)
        });
        image.lay_out();
        let places = Places {
            sections: sections.iter().map(|(i, c)| (*i, image.chunks[*c].addr)).collect(),
            weights: image.chunks[weights].addr,
            stubs: image.chunks[stubs].addr,
            got: image.chunks[got].addr,
        };
        let (mut contents, words) = self.contents(&places)?;
        for (i, c) in &sections {
            if let Some(bytes) = contents.remove(i) {
                image.chunks[*c].contents = Contents::Bytes(bytes);
            }
        }
        if size > 0 {
            image.chunks[weights].contents = Contents::Weights;
        }
        if let Some(section) = unwind {
            let index = self.frame_index(section, image.chunks[frame_index].addr, &places)?;
            image.fill(frame_index, &index);
        }
        image.fill(stubs, &self.stub_code(&places)?);
        image.fill(rela, &self.dynamic_relocations(&places, &words, &imports)?);
        image.fill(dynstr, &strings.bytes);
        let symbols = dynamic.iter().zip(&names).map(|(i, n)| {
            let weak = self.symbol(*i)?.is_weak();
            self.file_symbol(*i, *n, if weak { elf::STB_WEAK } else { elf::STB_GLOBAL }, &image, &sections)
        });
        image.fill(dynsym, &file::symbols(symbols.collect::<Result<Vec<_>>>()?));
        let hashes = dynamic
            .iter()
            .map(|i| Ok(elf::hash(self.symbol(*i)?.name_bytes().map_err(bug)?)))
            .collect::<Result<Vec<_>>>()?;
        image.fill(hash, &file::hash_table(&hashes));
        (image.chunks[dynsym].link, image.chunks[dynsym].info) = (dynstr, 1);
        for c in [hash, rela] {
            image.chunks[c].link = dynsym;
        }
        image.chunks[dynamic_table].link = dynstr;
        let at = |c: usize| image.chunks[c].addr;
        let len = |c: usize| image.chunks[c].size as u64;
        let mut entries: Vec<(i64, u64)> = needed.iter().map(|n| (elf::DT_NEEDED, u64::from(*n))).collect();
        entries.extend([
            (elf::DT_HASH, at(hash)),
            (elf::DT_STRTAB, at(dynstr)),
            (elf::DT_SYMTAB, at(dynsym)),
            (elf::DT_STRSZ, len(dynstr)),
            (elf::DT_SYMENT, 24),
            (elf::DT_RELA, at(rela)),
            (elf::DT_RELASZ, len(rela)),
            (elf::DT_RELAENT, 24),
            (elf::DT_NULL, 0),
        ]);
        let words: Vec<u8> = entries
            .iter()
            .flat_map(|(tag, value)| [*tag as u64, *value])
            .flat_map(u64::to_le_bytes)
            .collect();
        image.fill(dynamic_table, &words);
        self.local_symbols(&mut image, &sections)?;
        self.debug_sections(&mut image, &places)?;
        Ok(image)
    }
    /// Adds debug information with the addresses of the library.
    fn debug_sections(&self, image: &mut Image, places: &Places) -> Result<()> {
        for s in self.file.sections().filter(is_debug) {
            let mut bytes = s.data().map_err(bug)?.to_vec();
            for r in self.debug.iter().filter(|r| r.section == s.index().0) {
                let target = self.symbol(r.symbol)?;
                let of =
                    target.section_index().map(|i| self.file.section_by_index(i)).transpose().map_err(bug)?;
                // Offsets into DWARF tables have four bytes, addresses eight.
                let (value, size) = match of {
                    Some(of) if is_debug(&of) => (r.addend as u64, 4),
                    _ => (self.address(r.symbol, places)?.wrapping_add_signed(r.addend), 8),
                };
                match bytes.get_mut(r.offset as usize..).and_then(|b| b.get_mut(..size)) {
                    Some(b) => b.copy_from_slice(&value.to_le_bytes()[..size]),
                    None => return Err(Failure::bug("shared", "a relocation behind its section")),
                }
            }
            let name = s.name().map_err(bug)?;
            let chunk = image.push(Chunk::table(name, elf::SHT_PROGBITS, Segment::None, bytes.len(), 0));
            image.fill(chunk, &bytes);
        }
        Ok(())
    }
    /// Libraries that define the imported functions. With other C libraries, such as musl, the functions are
    /// found in the program that loads this one.
    fn needed(&self, unit: &Unit, imports: &[usize]) -> Result<Vec<&'static [u8]>> {
        let (c, m): (&[u8], &[u8]) = match unit.target.triple.environment {
            Environment::Gnu => (b"libc.so.6", b"libm.so.6"),
            Environment::Android => (b"libc.so", b"libm.so"),
            _ => return Ok(vec![]),
        };
        let (mut memory, mut math) = (false, false);
        for i in imports {
            let name = self.symbol(*i)?.name().map_err(bug)?;
            memory |= name.starts_with("mem");
            // A weak function needs no library.
            let weak = self.symbol(*i)?.is_weak();
            math |= !name.starts_with("mem") && !name.starts_with("onnxc_") && !weak;
        }
        Ok([memory.then_some(c), math.then_some(m)].into_iter().flatten().collect())
    }
    /// The address of a defined symbol.
    fn address(&self, i: usize, places: &Places) -> Result<u64> {
        if self.weights == Some(i) {
            return Ok(places.weights);
        }
        let s = self.symbol(i)?;
        let section = s.section_index().and_then(|x| places.sections.get(&x.0));
        section
            .map(|a| a + s.address())
            .ok_or_else(|| Failure::bug("shared", format!("\"{}\" is not defined", s.name().unwrap_or("?"))))
    }
    fn got_entry(&self, i: usize, places: &Places) -> u64 {
        places.got + 8 * self.got.partition_point(|x| *x < i) as u64
    }
    /// The sections with all relocations applied, and the words that hold addresses, each with its value.
    fn contents(&self, places: &Places) -> Result<(Sections, Vec<(u64, u64)>)> {
        let mut contents = BTreeMap::new();
        for s in self.file.sections().filter(|s| {
            places.sections.contains_key(&s.index().0) && s.kind() != SectionKind::UninitializedData
        }) {
            contents.insert(s.index().0, s.data().map_err(bug)?.to_vec());
        }
        let (mut words, mut late) = (vec![], vec![]);
        // Distances in high-half relocations, for the corresponding low halves.
        let mut halves: BTreeMap<u64, u64> = BTreeMap::new();
        for r in &self.relocations {
            let Some(section) = places.sections.get(&r.section) else { continue };
            let p = section + r.offset;
            let target = match relocate::need(self.machine, r.r_type)? {
                Need::Address => {
                    words.push((p, self.address(r.symbol, places)?.wrapping_add_signed(r.addend)));
                    continue;
                }
                Need::Pair => {
                    late.push((r, p));
                    continue;
                }
                Need::Got => self.got_entry(r.symbol, places),
                Need::Direct => match self.stubs.binary_search(&r.symbol) {
                    Ok(k) => places.stubs + STUB * k as u64,
                    Err(_) => self.address(r.symbol, places)?,
                },
            };
            let target = target.wrapping_add_signed(r.addend);
            halves.insert(p, target.wrapping_sub(p));
            self.patch(&mut contents, r, p, target)?;
        }
        for (r, p) in late {
            let distance = halves.get(&self.address(r.symbol, places)?).copied();
            self.patch(
                &mut contents,
                r,
                p,
                distance.ok_or_else(|| Failure::bug("shared", "half an address"))?,
            )?;
        }
        Ok((contents, words))
    }
    fn patch(&self, contents: &mut Sections, r: &Relocation, p: u64, target: u64) -> Result<()> {
        let code = contents.get_mut(&r.section).and_then(|c| c.get_mut(r.offset as usize..));
        let code = code.ok_or_else(|| Failure::bug("shared", "a relocation behind its section"))?;
        relocate::apply(self.machine, r.r_type, code, p, target)
    }
    /// The section `.eh_frame`.
    fn unwind_section(&self) -> Option<usize> {
        self.file.section_by_name(".eh_frame").map(|s| s.index().0)
    }
    /// The search table of `.eh_frame`, placed at address `at`. Each relocation there is of a function's
    /// address.
    fn frame_index(&self, section: usize, at: u64, places: &Places) -> Result<Vec<u8>> {
        let Some(begin) = places.sections.get(&section) else {
            return Err(Failure::bug("shared", "the unwind information has no place"));
        };
        let frames = self
            .relocations
            .iter()
            .filter(|r| r.section == section)
            .map(|r| {
                let function = self.address(r.symbol, places)?.wrapping_add_signed(r.addend);
                Ok((function, begin + r.offset - unwind::ADDRESS_AT))
            })
            .collect::<Result<Vec<_>>>()?;
        unwind::index(at, *begin, frames)
    }
    fn stub_code(&self, places: &Places) -> Result<Vec<u8>> {
        let mut out = vec![];
        for (k, i) in self.stubs.iter().enumerate() {
            out.extend(relocate::stub(
                self.machine,
                places.stubs + STUB * k as u64,
                self.got_entry(*i, places),
            )?);
        }
        Ok(out)
    }
    fn dynamic_relocations(
        &self,
        places: &Places,
        words: &[(u64, u64)],
        imports: &[usize],
    ) -> Result<Vec<u8>> {
        let (relative, by_symbol) = relocate::dynamic(self.machine)?;
        let mut out = vec![];
        let mut push = |at: u64, symbol: usize, r_type: u32, addend: u64| {
            out.extend(
                [at, (symbol as u64) << 32 | u64::from(r_type), addend]
                    .into_iter()
                    .flat_map(u64::to_le_bytes),
            );
        };
        words.iter().for_each(|(at, address)| push(*at, 0, relative, *address));
        for i in &self.got {
            let at = self.got_entry(*i, places);
            match imports.iter().position(|x| x == i) {
                // Imports are the first dynamic symbols, after the null symbol.
                Some(k) => push(at, k + 1, by_symbol, 0),
                None => push(at, 0, relative, self.address(*i, places)?),
            }
        }
        Ok(out)
    }
}
