//! Object files. Weights do not pass through Cranelift's data: their section is an untouched anonymous
//! mapping, in place of which the writer streams the actual bytes. Nothing large is ever copied.

use super::assemble::{Assembled, Defined, Unit};
use super::clif;
use super::debug;
use super::meta;
use super::unwind;
use super::weights::{ALIGN, Blob};
use crate::diag::{Error, Failure, Origin, Result, codes};
use cranelift_codegen::binemit::Reloc;
use cranelift_module::{DataId, FuncId, Linkage, Module as _, ModuleReloc, ModuleRelocTarget};
use cranelift_object::{ObjectBuilder, ObjectModule, ObjectProduct, object};
use object::write::{StreamingBuffer, SymbolSection, WritableBuffer};
use object::{SectionKind, SymbolKind, SymbolScope};
use std::io::Write;

/// Larger weights are not embedded: code reaches 2 GiB, and linkers place other sections in between.
const MAX_EMBEDDED: u64 = 1 << 30;

/// Writes the object file of a model.
pub fn write(unit: &Unit, out: &mut dyn Write) -> Result<()> {
    let (product, _, hole) = build(unit, true)?;
    unit.clock.step("write obj", || {
        let mut sink = Sink { out: StreamingBuffer::new(out), hole, weights: unit.weights };
        product.object.emit(&mut sink).map_err(|e| Failure::bug("object", e.to_string()))?;
        let mut out = sink.out;
        out.result().map_err(|e| Failure::Io("the object file".into(), e.to_string()))?;
        out.into_inner().flush().map_err(|e| Failure::Io("the object file".into(), e.to_string()))
    })
}

/// The object, its contents, and the placeholder mapping of the weights. `with_weights`: the weights' symbol
/// is defined in a section of this object; otherwise it is undefined.
pub(super) fn build(
    unit: &Unit,
    with_weights: bool,
) -> Result<(ObjectProduct, Assembled, Option<&'static [u8]>)> {
    if !unit.interface.weights.external && unit.weights.size > MAX_EMBEDDED {
        return Error::new(codes::WEIGHTS_SIZE, "the weights are too large to embed")
            .at(&Origin::file(&unit.interface.model_file))
            .found_expected(
                format!("{} bytes", unit.weights.size),
                format!("at most {MAX_EMBEDDED} bytes in an object"),
            )
            .help("put them into a file of their own: --weights file")
            .fail();
    }
    let isa = unit.target.isa(unit.target.lowest(), true, true)?;
    let bug = |e: cranelift_module::ModuleError| Failure::bug("object", e.to_string());
    let builder = ObjectBuilder::new(
        isa,
        format!("{}.onnxc", unit.interface.name),
        cranelift_module::default_libcall_names(),
    )
    .map_err(bug)?;
    let mut module = ObjectModule::new(builder);
    let mut pages = vec![];
    let ids = unit.clock.step("generate code", || unit.assemble(&mut module, &mut pages))?;
    let meta = meta::build(unit.interface, &ids.checks);
    let id = module
        .declare_data(
            &format!("{}_model", unit.interface.name),
            if unit.interface.hidden { Linkage::Hidden } else { Linkage::Export },
            false,
            false,
        )
        .map_err(bug)?;
    meta.define(&mut module, id, &ids.functions).map_err(bug)?;
    let mut product = module.finish();
    let hole = if with_weights { add_weights(&mut product, &ids, unit)? } else { None };
    {
        let function = |d: &Defined| unwind::Function {
            symbol: product.function_symbol(d.id),
            size: d.size,
            steps: d.steps.clone(),
        };
        let functions: Vec<_> = ids.defined.iter().map(function).collect();
        unwind::add(&mut product.object, &unit.target.triple.architecture, &functions)?;
    }
    if let Some(source) = &unit.debug {
        let function = |d: &Defined| debug::Function {
            symbol: product.function_symbol(d.id),
            size: d.size,
            exported: d.exported,
            rows: d.rows.clone(),
        };
        let functions: Vec<_> = ids.defined.iter().map(function).collect();
        debug::add(&mut product.object, source, &functions)?;
    }
    for (function, r) in pages {
        add_page(&mut product, function, &r)?;
    }
    if unit.target.soft_float() {
        soft_float(&mut product.object, &ids.libm, &unit.interface.target)?;
    }
    Ok((product, ids, hole))
}

/// Marks a RISC-V object as ABI lp64. Its own functions do not pass floats to each other's callers; functions
/// of libm would expect them in registers that this ABI does not use.
fn soft_float(o: &mut object::write::Object<'_>, imports: &[&str], target: &str) -> Result<()> {
    if let Some(f) = imports.iter().find(|n| clif::is_math(n)) {
        return Error::new(
            codes::TARGET,
            format!(
                "the model needs {f} of libm, which the ABI \
            of \"{target}\" calls without floating-point registers"
            ),
        )
        .found_expected(target, "riscv64gc-unknown-none-elf, if the program can have the ABI lp64d")
        .fail();
    }
    if let object::FileFlags::Elf { e_flags, .. } = &mut o.flags {
        *e_flags &= !object::elf::EF_RISCV_FLOAT_ABI;
    }
    Ok(())
}

/// Adds a page or page offset relocation on arm64 Windows, which cranelift-object lacks.
fn add_page(product: &mut ObjectProduct, function: FuncId, r: &ModuleReloc) -> Result<()> {
    let bug = |what: String| Failure::bug("object", what);
    let typ = match r.kind {
        Reloc::Aarch64AdrPrelPgHi21 => object::pe::IMAGE_REL_ARM64_PAGEBASE_REL21,
        Reloc::Aarch64AddAbsLo12Nc => object::pe::IMAGE_REL_ARM64_PAGEOFFSET_12A,
        k => return Err(bug(format!("relocation {k:?} in COFF"))),
    };
    let symbol = match r.name {
        ModuleRelocTarget::User { namespace: 0, index } => product.function_symbol(FuncId::from_u32(index)),
        ModuleRelocTarget::User { namespace: 1, index } => product.data_symbol(DataId::from_u32(index)),
        _ => return Err(bug(format!("a relocation that names {:?}", r.name))),
    };
    let at = product.object.symbol(product.function_symbol(function));
    let Some(section) = at.section.id() else { return Err(bug("a function without a section".into())) };
    let offset = at.value + u64::from(r.offset);
    let flags = object::write::RelocationFlags::Coff { typ };
    product
        .object
        .add_relocation(section, object::write::Relocation { offset, symbol, addend: r.addend, flags })
        .map_err(|e| bug(e.to_string()))
}

/// Gives the weights' symbol a section whose contents are an untouched mapping.
fn add_weights(product: &mut ObjectProduct, ids: &Assembled, unit: &Unit) -> Result<Option<&'static [u8]>> {
    let Some(data) = ids.weights else { return Ok(None) };
    let size = unit.weights.size;
    let map = memmap2::MmapOptions::new()
        .len(size as usize)
        .map_anon()
        .map_err(|e| Failure::Io("address space for the weights".into(), e.to_string()))?;
    let hole: &'static [u8] = Box::leak(Box::new(map));
    let symbol = product.data_symbol(data);
    let o = &mut product.object;
    let segment = o.segment_name(object::write::StandardSegment::Data).to_vec();
    let (segment, name): (Vec<u8>, Vec<u8>) = match o.format() {
        object::BinaryFormat::MachO => (segment, b"__const".to_vec()),
        object::BinaryFormat::Coff => (vec![], b".rdata".to_vec()),
        _ => (vec![], b".rodata.weights".to_vec()),
    };
    let section = o.add_section(segment, name, SectionKind::ReadOnlyData);
    o.set_section_data(section, hole, ALIGN);
    let s = o.symbol_mut(symbol);
    s.section = SymbolSection::Section(section);
    s.value = 0;
    s.size = size;
    s.kind = SymbolKind::Data;
    s.scope = SymbolScope::Compilation;
    Ok(Some(hole))
}

/// Writes to `out`, replacing the placeholder mapping with the weights.
struct Sink<'a, W: Write> {
    out: StreamingBuffer<W>,
    hole: Option<&'static [u8]>,
    weights: &'a Blob,
}

impl<W: Write> WritableBuffer for Sink<'_, W> {
    fn len(&self) -> usize {
        self.out.len()
    }
    fn reserve(&mut self, size: usize) -> std::result::Result<(), ()> {
        self.out.reserve(size)
    }
    fn resize(&mut self, new_len: usize) {
        self.out.resize(new_len);
    }
    fn write_bytes(&mut self, val: &[u8]) {
        match self.hole {
            Some(h) if std::ptr::eq(h.as_ptr(), val.as_ptr()) && h.len() == val.len() => {
                let out = &mut self.out;
                self.weights.stream(&mut |b| out.write_bytes(b));
            }
            _ => self.out.write_bytes(val),
        }
    }
}
