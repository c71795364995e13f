//! Debug information (`-g`): DWARF 4 that maps functions and instructions to lines of a text of the model.
//! The text is either the graph, where a kernel has the line of its node, or the nests, where every statement
//! has a line.
//!
//! Code generators record [`Rows`]. The object gets `.debug_info` with a subprogram per function and
//! `.debug_line`. Mach-O objects have the same in the segment `__DWARF`, COFF objects in the form that
//! MinGW's compilers write.

use super::recorder::Recorder;
use crate::diag::{Failure, Result};
use crate::nest::print::Lines;
use gimli::write::{
    Address, AttributeValue, Dwarf, LineProgram, LineString, Range, RangeList, RelocationTarget, Sections,
    Unit, UnitEntryId,
};
use gimli::{Encoding, Format, LineEncoding};
use object::write::{Object, SymbolId};
use object::{BinaryFormat, RelocationEncoding, RelocationFlags, RelocationKind, SectionKind};

/// Code offsets with their source lines, in order. A line applies up to the next offset.
pub type Rows = Vec<(u32, u32)>;

/// The rows of a function, one for each change of the line. The code begins at line `first`. Line 0 means the
/// line of the preceding instruction, or no line.
pub fn rows(first: u32, all: impl Iterator<Item = (u32, u32)>) -> Rows {
    let mut out: Rows = vec![];
    for (at, line) in std::iter::once((0, first)).chain(all).filter(|r| r.1 != 0) {
        match out.last_mut() {
            Some(last) if last.1 == line => {}
            // The preceding instruction has no code.
            Some(last) if last.0 == at && at > 0 => last.1 = line,
            Some(last) if last.0 == at => {}
            _ => out.push((at, line)),
        }
    }
    out
}

/// The source text of debug information, with the line of each item.
pub struct Source {
    /// The folder of the text, absolute.
    pub folder: String,
    /// Its file name.
    pub file: String,
    /// Line tables, one per CPU level.
    pub lines: Vec<Lines>,
}

/// A function of an object.
pub struct Function {
    /// Its symbol.
    pub symbol: SymbolId,
    /// Bytes of its code.
    pub size: u32,
    /// True if the symbol is exported.
    pub exported: bool,
    /// Its lines.
    pub rows: Rows,
}

fn bug(e: impl ToString) -> Failure {
    Failure::bug("debug information", e.to_string())
}

/// Adds the sections to an object.
pub fn add(o: &mut Object<'_>, source: &Source, functions: &[Function]) -> Result<()> {
    let mut sections = Sections::new(Recorder::new());
    describe(o, source, functions)?.write(&mut sections).map_err(bug)?;
    let mut made = vec![];
    sections.for_each(|id, recorder| {
        if !recorder.bytes.slice().is_empty() {
            made.push((id, recorder.bytes.slice().to_vec(), recorder.relocations.clone()));
        }
        Ok::<_, Failure>(())
    })?;
    let format = o.format();
    let ids: Vec<_> = made
        .iter()
        .map(|(id, ..)| {
            let (segment, name) = match format {
                BinaryFormat::MachO => ("__DWARF", id.name().replacen('.', "__", 1)),
                _ => ("", id.name().to_owned()),
            };
            (*id, o.add_section(segment.into(), name.into_bytes(), SectionKind::Debug))
        })
        .collect();
    for ((_, mut bytes, relocations), (_, section)) in made.into_iter().zip(&ids) {
        let mut list = vec![];
        for r in relocations {
            let (symbol, kind, addend) = match r.target {
                RelocationTarget::Symbol(f) if format == BinaryFormat::MachO => {
                    // Mach-O tools accept only addresses relative to sections.
                    let s = o.symbol(functions[f].symbol);
                    let (value, text) = (s.value as i64, s.section.id().ok_or_else(|| bug("no section"))?);
                    (o.section_symbol(text), RelocationKind::Absolute, r.addend + value)
                }
                RelocationTarget::Symbol(f) => (functions[f].symbol, RelocationKind::Absolute, r.addend),
                RelocationTarget::Section(id) => {
                    // Mach-O tools read these tables in place, so the offsets are final.
                    if format == BinaryFormat::MachO {
                        bytes[r.offset..][..r.size as usize]
                            .copy_from_slice(&r.addend.to_le_bytes()[..r.size as usize]);
                        continue;
                    }
                    let target = ids.iter().find(|(x, _)| *x == id).ok_or_else(|| bug(id.name()))?.1;
                    let coff = format == BinaryFormat::Coff;
                    let kind = if coff { RelocationKind::SectionOffset } else { RelocationKind::Absolute };
                    (o.section_symbol(target), kind, r.addend)
                }
            };
            let flags =
                RelocationFlags::Generic { kind, encoding: RelocationEncoding::Generic, size: r.size * 8 };
            list.push(object::write::Relocation { offset: r.offset as u64, symbol, addend, flags });
        }
        o.set_section_data(*section, bytes, 1);
        for r in list {
            o.add_relocation(*section, r).map_err(bug)?;
        }
    }
    Ok(())
}

/// One compilation unit. Symbols of addresses are indices of functions.
fn describe(o: &Object<'_>, source: &Source, functions: &[Function]) -> Result<Dwarf> {
    let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };
    let string = |s: &str| LineString::String(s.as_bytes().to_vec());
    let mut lines = LineProgram::new(
        encoding,
        LineEncoding::default(),
        string(&source.folder),
        None,
        string(&source.file),
        None,
    );
    let file = lines.add_file(string(&source.file), lines.default_directory(), None);
    let begin = |f: usize| Address::Symbol { symbol: f, addend: 0 };
    let described = || functions.iter().enumerate().filter(|(_, f)| !f.rows.is_empty());
    for (i, f) in described() {
        lines.begin_sequence(Some(begin(i)));
        for (at, line) in &f.rows {
            let row = lines.row();
            (row.address_offset, row.file, row.line) = (u64::from(*at), file, u64::from(*line));
            lines.generate_row();
        }
        lines.end_sequence(u64::from(f.size));
    }
    let mut unit = Unit::new(encoding, lines);
    let ranges = described().map(|(i, f)| Range::StartLength { begin: begin(i), length: u64::from(f.size) });
    let ranges = unit.ranges.add(RangeList(ranges.collect()));
    let text = |s: &str| AttributeValue::String(s.as_bytes().to_vec());
    let root = unit.root();
    let set = |unit: &mut Unit, e: UnitEntryId, name, value| unit.get_mut(e).set(name, value);
    set(&mut unit, root, gimli::DW_AT_producer, text(concat!("onnxc ", env!("CARGO_PKG_VERSION"))));
    // There is no language code for nests; debuggers derive the syntax of expressions from this one.
    set(&mut unit, root, gimli::DW_AT_language, AttributeValue::Language(gimli::DW_LANG_C99));
    set(&mut unit, root, gimli::DW_AT_name, text(&source.file));
    set(&mut unit, root, gimli::DW_AT_comp_dir, text(&source.folder));
    set(&mut unit, root, gimli::DW_AT_low_pc, AttributeValue::Address(Address::Constant(0)));
    set(&mut unit, root, gimli::DW_AT_ranges, AttributeValue::RangeListRef(ranges));
    for (i, f) in described() {
        let e = unit.add(root, gimli::DW_TAG_subprogram);
        let name = o.symbol(f.symbol).name.clone();
        set(&mut unit, e, gimli::DW_AT_name, AttributeValue::String(name));
        set(&mut unit, e, gimli::DW_AT_low_pc, AttributeValue::Address(begin(i)));
        set(&mut unit, e, gimli::DW_AT_high_pc, AttributeValue::Udata(u64::from(f.size)));
        set(&mut unit, e, gimli::DW_AT_decl_file, AttributeValue::FileIndex(Some(file)));
        set(&mut unit, e, gimli::DW_AT_decl_line, AttributeValue::Udata(u64::from(f.rows[0].1)));
        if f.exported {
            set(&mut unit, e, gimli::DW_AT_external, AttributeValue::Flag(true));
        }
    }
    let mut dwarf = Dwarf::new();
    dwarf.units.add(unit);
    Ok(dwarf)
}
