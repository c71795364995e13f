//! Assembler text of an object (`--emit asm`), for GNU's and LLVM's assemblers. It is written from the object
//! itself, section by section, so that assembling it yields the same code and symbols. Code and data are
//! bytes, relocations are expressions, and comments show the instructions.
//!
//! Assemblers derive relocations from expressions and, on aarch64, from the instructions that contain them.
//! RISC-V assemblers have a directive for relocations, which also keeps the symbols that it names.

use super::assemble::Unit;
use super::object::build;
use crate::diag::{Failure, Result};
use object::read::{File, Relocation, RelocationTarget, Section, Symbol};
use object::read::{Object as _, ObjectSection as _, ObjectSymbol as _};
use object::{Architecture, BinaryFormat, RelocationFlags, SectionKind, SymbolKind};
use object::{SymbolScope, elf, macho, pe};
use std::collections::HashMap;
use std::io::Write;

/// The opcode of jumps on aarch64.
const B: u8 = 0b000101;
/// Bytes per line.
const LINE: usize = 16;

/// Writes the text.
pub fn write(unit: &Unit, out: &mut dyn Write) -> Result<()> {
    let (product, made, _) = build(unit, false)?;
    let listings: HashMap<Vec<u8>, String> = made
        .defined
        .iter()
        .map(|d| (product.object.symbol(product.function_symbol(d.id)).name.clone(), d.listing.clone()))
        .collect();
    let weights = made.weights.map(|id| product.object.symbol(product.data_symbol(id)).name.clone());
    let bytes = product.object.write().map_err(|e| bug(e.to_string()))?;
    let file = File::parse(&*bytes).map_err(|e| bug(e.to_string()))?;
    let i = &unit.interface;
    let comment = if file.architecture() == Architecture::Aarch64 { "//" } else { "#" };
    let mut text = Text { file: &file, listings, comment, out: String::new() };
    text.line(&format!("{comment} {} for {}, by onnxc {}", i.name, i.target, env!("CARGO_PKG_VERSION")));
    if matches!(file.architecture(), Architecture::Riscv64) {
        // The code must keep its size: it has no marks for what linkers may relax.
        text.put(".option norelax");
    }
    let named = |x: &Symbol| x.name_bytes().is_ok_and(|n| !n.is_empty() && weights.as_deref() != Some(n));
    for x in file.symbols().filter(|x| x.is_undefined() && named(x)) {
        text.put(&format!("{} {}", if x.is_weak() { ".weak" } else { ".globl" }, quoted(&x)?));
    }
    for s in file.sections() {
        text.section(&s)?;
    }
    let io = |e: std::io::Error| Failure::Io("the assembler text".into(), e.to_string());
    out.write_all(text.out.as_bytes()).map_err(io)?;
    if let Some(name) = weights {
        let name = String::from_utf8_lossy(&name);
        let section = match file.format() {
            BinaryFormat::MachO => ".section __DATA,__const",
            BinaryFormat::Coff => ".section .rdata,\"dr\"",
            _ => ".section .rodata.weights,\"a\",@progbits",
        };
        write!(
            out,
            "\n    {section}\n    .p2align {}\n\"{name}\":\n",
            super::weights::ALIGN.trailing_zeros()
        )
        .map_err(io)?;
        let mut result = Ok(());
        unit.weights.stream(&mut |b| {
            if result.is_ok() {
                result = b.chunks(LINE).try_for_each(|c| writeln!(out, "    .byte {}", hex(c)));
            }
        });
        result.map_err(io)?;
    }
    out.flush().map_err(io)
}

/// The text of each relocation and the number of bytes that it covers. `{target}` is the symbol, `{sum}` the
/// symbol plus the addend, `{addend}` the addend; `{d}` and `{n}` are registers of the instruction.
const FORMS: &[(BinaryFormat, Architecture, u32, &str, u64)] = {
    use Architecture::{Aarch64, X86_64};
    use BinaryFormat::{Coff, Elf, MachO};
    &[
        (Elf, X86_64, elf::R_X86_64_64, ".quad {sum}", 8),
        (Elf, X86_64, elf::R_X86_64_32, ".long {sum}", 4),
        (Elf, X86_64, elf::R_X86_64_PC32, ".long {sum}-.", 4),
        (Elf, X86_64, elf::R_X86_64_PLT32, ".long {sum}-.", 4),
        (Elf, X86_64, elf::R_X86_64_GOTPCREL, ".long {target}@GOTPCREL{addend}", 4),
        (Elf, Aarch64, elf::R_AARCH64_ABS64, ".quad {sum}", 8),
        (Elf, Aarch64, elf::R_AARCH64_ABS32, ".word {sum}", 4),
        (Elf, Aarch64, elf::R_AARCH64_PREL32, ".word {sum}-.", 4),
        (Elf, Aarch64, elf::R_AARCH64_CALL26, "{branch} {sum}", 4),
        (Elf, Aarch64, elf::R_AARCH64_ADR_PREL_PG_HI21, "adrp x{d}, {sum}", 4),
        (Elf, Aarch64, elf::R_AARCH64_ADD_ABS_LO12_NC, "add x{d}, x{n}, :lo12:{sum}", 4),
        (Elf, Aarch64, elf::R_AARCH64_ADR_GOT_PAGE, "adrp x{d}, :got:{target}", 4),
        (Elf, Aarch64, elf::R_AARCH64_LD64_GOT_LO12_NC, "ldr x{d}, [x{n}, :got_lo12:{target}]", 4),
        (Coff, X86_64, pe::IMAGE_REL_AMD64_ADDR64 as u32, ".quad {sum}", 8),
        (Coff, X86_64, pe::IMAGE_REL_AMD64_ADDR32NB as u32, ".rva {sum}", 4),
        (Coff, X86_64, pe::IMAGE_REL_AMD64_SECREL as u32, ".secrel32 {sum}", 4),
        (Coff, X86_64, pe::IMAGE_REL_AMD64_REL32 as u32, ".long {sum}-.", 4),
        (Coff, Aarch64, pe::IMAGE_REL_ARM64_ADDR64 as u32, ".quad {sum}", 8),
        (Coff, Aarch64, pe::IMAGE_REL_ARM64_ADDR32NB as u32, ".rva {sum}", 4),
        (Coff, Aarch64, pe::IMAGE_REL_ARM64_SECREL as u32, ".secrel32 {sum}", 4),
        (Coff, Aarch64, pe::IMAGE_REL_ARM64_BRANCH26 as u32, "{branch} {target}", 4),
        (Coff, Aarch64, pe::IMAGE_REL_ARM64_PAGEBASE_REL21 as u32, "adrp x{d}, {target}", 4),
        (Coff, Aarch64, pe::IMAGE_REL_ARM64_PAGEOFFSET_12A as u32, "add x{d}, x{n}, :lo12:{target}", 4),
        (MachO, X86_64, macho::X86_64_RELOC_UNSIGNED as u32, ".quad {sum}", 8),
        (MachO, X86_64, macho::X86_64_RELOC_GOT_LOAD as u32, ".long {target}@GOTPCREL", 4),
        (MachO, X86_64, macho::X86_64_RELOC_GOT as u32, ".long {target}@GOTPCREL", 4),
        (MachO, X86_64, macho::X86_64_RELOC_BRANCH as u32, "{branch} {target}", 5),
        (MachO, X86_64, macho::X86_64_RELOC_SIGNED as u32, ".long {sum}-.", 4),
        (MachO, Aarch64, macho::ARM64_RELOC_UNSIGNED as u32, ".quad {sum}", 8),
        (MachO, Aarch64, macho::ARM64_RELOC_BRANCH26 as u32, "{branch} {target}", 4),
        (MachO, Aarch64, macho::ARM64_RELOC_PAGE21 as u32, "adrp x{d}, {target}@PAGE", 4),
        (MachO, Aarch64, macho::ARM64_RELOC_PAGEOFF12 as u32, "add x{d}, x{n}, {target}@PAGEOFF", 4),
        (MachO, Aarch64, macho::ARM64_RELOC_GOT_LOAD_PAGE21 as u32, "adrp x{d}, {target}@GOTPAGE", 4),
        (
            MachO,
            Aarch64,
            macho::ARM64_RELOC_GOT_LOAD_PAGEOFF12 as u32,
            "ldr x{d}, [x{n}, {target}@GOTPAGEOFF]",
            4,
        ),
    ]
};

fn bug(e: String) -> Failure {
    Failure::bug("assembler text", e)
}

/// The operands of a `.byte` directive.
fn hex(bytes: &[u8]) -> String {
    let digit = |n: u8| char::from_digit(n.into(), 16).unwrap_or('0');
    let mut out = String::with_capacity(6 * bytes.len());
    for b in bytes {
        out.push_str(if out.is_empty() { "0x" } else { ", 0x" });
        out.extend([digit(b >> 4), digit(b & 15)]);
    }
    out
}

struct Text<'a> {
    file: &'a File<'a>,
    /// Instructions of functions, by symbol.
    listings: HashMap<Vec<u8>, String>,
    /// The text that begins a comment.
    comment: &'static str,
    out: String,
}

impl Text<'_> {
    fn line(&mut self, line: &str) {
        self.out += line;
        self.out.push('\n');
    }
    fn put(&mut self, directive: &str) {
        self.line(&format!("    {directive}"));
    }
    /// Writes a section with its symbols.
    fn section(&mut self, s: &Section) -> Result<()> {
        let read = |e: object::read::Error| bug(e.to_string());
        let name = s.name().map_err(read)?;
        if name == ".note.GNU-stack" {
            self.put(&self.heading(s, name)?);
            return Ok(());
        }
        // Tables that the assembler generates.
        if s.size() == 0 || name.starts_with(".rela") || matches!(name, ".symtab" | ".strtab" | ".shstrtab") {
            return Ok(());
        }
        let zeros = s.kind() == SectionKind::UninitializedData;
        self.line("");
        let mut symbols: Vec<Symbol> = self
            .file
            .symbols()
            .filter(|x| x.section_index() == Some(s.index()) && x.kind() != SymbolKind::Section)
            .filter(|x| x.name().is_ok_and(|n| !n.is_empty()))
            .collect();
        symbols.sort_by_key(|x| (x.address(), x.index().0));
        let align = s.align().max(1).trailing_zeros();
        if zeros && self.file.format() == BinaryFormat::MachO {
            // One directive defines both the section and the symbol.
            for (k, x) in symbols.iter().enumerate() {
                let end = symbols.get(k + 1).map_or(s.address() + s.size(), |x| x.address());
                let size = end - x.address();
                let segment = s.segment_name().ok().flatten().unwrap_or("__DATA");
                self.put(&format!(".zerofill {segment},{name},{},{size},{align}", quoted(x)?));
            }
            return Ok(());
        }
        self.put(&self.heading(s, name)?);
        self.put(&format!(".p2align {align}"));
        if self.file.format() == BinaryFormat::MachO {
            self.line(&format!("Lsection{}:", s.index().0));
        }
        let mut relocations: Vec<(u64, Relocation)> = s.relocations().collect();
        relocations.sort_by_key(|r| r.0);
        let data = if zeros { &[][..] } else { s.data().map_err(read)? };
        let (mut at, mut next, mut r) = (0, 0, 0);
        let base = s.address();
        while at < s.size() || next < symbols.len() {
            while let Some(x) = symbols.get(next).filter(|x| x.address() - base == at) {
                self.symbol(x)?;
                next += 1;
            }
            let end = symbols.get(next).map_or(s.size(), |x| x.address() - base);
            if zeros {
                self.put(&format!(".zero {}", end - at));
                at = end;
                continue;
            }
            while at < end {
                let here = relocations[r..].iter().take_while(|x| x.0 - self.opcode(&x.1) == at).count();
                if here > 0 {
                    let list: Vec<&Relocation> = relocations[r..r + here].iter().map(|x| &x.1).collect();
                    let size = self.relocated(&list, &data[at as usize..], s)?;
                    (at, r) = (at + size, r + here);
                    continue;
                }
                let stop = relocations.get(r).map_or(end, |x| (x.0 - self.opcode(&x.1)).min(end));
                for c in data[at as usize..stop as usize].chunks(LINE) {
                    self.put(&format!(".byte {}", hex(c)));
                }
                at = stop;
            }
        }
        Ok(())
    }
    /// The directive that begins a section.
    fn heading(&self, s: &Section, name: &str) -> Result<String> {
        let text = s.kind() == SectionKind::Text;
        let data = matches!(s.kind(), SectionKind::Data | SectionKind::UninitializedData);
        Ok(match self.file.format() {
            BinaryFormat::MachO => {
                let segment = s.segment_name().ok().flatten().unwrap_or("__TEXT");
                let kind = match (s.kind(), name) {
                    (SectionKind::Text, _) => ",regular,pure_instructions",
                    (_, "__eh_frame") => ",coalesced,no_toc+strip_static_syms+live_support",
                    (_, n) if n.starts_with("__debug") => ",regular,debug",
                    _ => "",
                };
                format!(".section {segment},{name}{kind}")
            }
            BinaryFormat::Coff => {
                let flags = match s.kind() {
                    SectionKind::Text => "xr",
                    SectionKind::UninitializedData => "bw",
                    SectionKind::Data => "dw",
                    _ => "dr",
                };
                format!(".section {name},\"{flags}\"")
            }
            _ => {
                let relocated = name.starts_with(".data.rel.ro");
                let flags = match s.kind() {
                    // No object needs an executable stack.
                    _ if name.starts_with(".debug_") || name.starts_with(".note") => "",
                    _ if text => "ax",
                    _ if data || relocated => "aw",
                    _ => "a",
                };
                let kind = if s.kind() == SectionKind::UninitializedData { "nobits" } else { "progbits" };
                format!(".section {name},\"{flags}\",@{kind}")
            }
        })
    }
    /// Writes a symbol's definition and type.
    fn symbol(&mut self, x: &Symbol) -> Result<()> {
        let name = quoted(x)?;
        let elf = self.file.format() == BinaryFormat::Elf;
        let comment = self.comment;
        let listing = x.name_bytes().ok().and_then(|n| self.listings.remove(n)).unwrap_or_default();
        self.out.extend(listing.lines().map(|l| format!("    {comment} {}\n", l.trim_end())));
        if x.is_global() {
            self.put(&format!(".globl {name}"));
            match (self.file.format(), x.scope()) {
                (BinaryFormat::Elf, SymbolScope::Linkage) => self.put(&format!(".hidden {name}")),
                (BinaryFormat::MachO, SymbolScope::Linkage) => self.put(&format!(".private_extern {name}")),
                _ => {}
            }
        }
        if elf && matches!(x.kind(), SymbolKind::Text | SymbolKind::Data) {
            let kind = if x.kind() == SymbolKind::Text { "function" } else { "object" };
            self.put(&format!(".type {name},@{kind}"));
            self.put(&format!(".size {name},{}", x.size()));
        }
        self.line(&format!("{name}:"));
        Ok(())
    }
    /// Number of bytes before a relocation that are written together with it: the opcode of a call, because
    /// Mach-O assemblers for x86-64 make a branch relocation only from a whole instruction.
    fn opcode(&self, r: &Relocation) -> u64 {
        let branch =
            RelocationFlags::MachO { r_type: macho::X86_64_RELOC_BRANCH, r_pcrel: true, r_length: 2 };
        u64::from(self.file.architecture() == Architecture::X86_64 && r.flags() == branch)
    }
    /// Writes the bytes at a place with relocations, and returns their number.
    fn relocated(&mut self, list: &[&Relocation], bytes: &[u8], s: &Section) -> Result<u64> {
        let targets = list.iter().map(|r| self.target(r)).collect::<Result<Vec<_>>>()?;
        let unknown = || bug(format!("relocation {:?} in {:?}", list[0].flags(), s.name()));
        let (r, target) = (list[0], &targets[0]);
        let (format, kind) = match r.flags() {
            RelocationFlags::Elf { r_type } => (BinaryFormat::Elf, r_type),
            RelocationFlags::Coff { typ } => (BinaryFormat::Coff, u32::from(typ)),
            RelocationFlags::MachO { r_type, .. } => (BinaryFormat::MachO, u32::from(r_type)),
            _ => return Err(unknown()),
        };
        let machine = self.file.architecture();
        if !matches!(machine, Architecture::X86_64 | Architecture::Aarch64) {
            for (r, target) in list.iter().zip(&targets) {
                let RelocationFlags::Elf { r_type } = r.flags() else { return Err(unknown()) };
                let kind = riscv_name(r_type).ok_or_else(unknown)?;
                let addend = if r.addend() == 0 { String::new() } else { format!("{:+}", r.addend()) };
                self.put(&format!(".reloc ., {kind}, {target}{addend}"));
            }
            let size = bytes.len().min(if r.size() == 64 { 8 } else { 4 });
            self.put(&format!(".byte {}", hex(&bytes[..size])));
            return Ok(size as u64);
        }
        let long = || bytes[..8].try_into().map(i64::from_le_bytes).map_err(|_| unknown());
        if format == BinaryFormat::MachO && list.len() == 2 {
            // A difference: the first relocation is the subtrahend.
            self.put(&format!(".quad {}-{target}{:+}", targets[1], long()?));
            return Ok(8);
        }
        let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let implicit = match r.size() {
            _ if !r.has_implicit_addend() => 0,
            64 => long()?,
            32 => i64::from(word as i32),
            _ => 0,
        };
        let addend = r.addend() + implicit;
        let sum = if addend == 0 { target.clone() } else { format!("{target}{addend:+}") };
        let row = FORMS.iter().find(|row| (row.0, row.1, row.2) == (format, machine, kind));
        let (.., form, size) = row.ok_or_else(unknown)?;
        let branch = match (machine, bytes[0], bytes[3] >> 2) {
            (Architecture::Aarch64, _, opcode) => {
                if opcode == B {
                    "b"
                } else {
                    "bl"
                }
            }
            (_, 0xe8, _) => "call",
            _ => "jmp",
        };
        let text = form
            .replace("{d}", &(word & 31).to_string())
            .replace("{n}", &(word >> 5 & 31).to_string())
            .replace("{branch}", branch)
            .replace("{addend}", &format!("{:+}", r.addend()))
            .replace("{target}", target)
            .replace("{sum}", &sum);
        self.put(&text);
        Ok(*size)
    }
    /// The name of a relocation's target.
    fn target(&self, r: &Relocation) -> Result<String> {
        let read = |e: object::read::Error| bug(e.to_string());
        match r.target() {
            RelocationTarget::Symbol(i) => {
                let x = self.file.symbol_by_index(i).map_err(read)?;
                match (x.kind(), x.section_index()) {
                    (SymbolKind::Section, Some(s)) => {
                        let name =
                            self.file.section_by_index(s).map_err(read)?.name().map_err(read)?.to_owned();
                        Ok(name)
                    }
                    _ => quoted(&x),
                }
            }
            // The relocation's value is an address that includes the section's.
            RelocationTarget::Section(i) => {
                let begin = self.file.section_by_index(i).map_err(read)?.address();
                Ok(format!("Lsection{}-{begin}", i.0))
            }
            t => Err(bug(format!("relocation to {t:?}"))),
        }
    }
}

fn quoted(x: &Symbol) -> Result<String> {
    x.name().map(|n| format!("\"{n}\"")).map_err(|e| bug(e.to_string()))
}

/// The name of a RISC-V relocation, for the directive.
fn riscv_name(r_type: u32) -> Option<&'static str> {
    Some(match r_type {
        elf::R_RISCV_64 => "R_RISCV_64",
        elf::R_RISCV_32 => "R_RISCV_32",
        elf::R_RISCV_32_PCREL => "R_RISCV_32_PCREL",
        elf::R_RISCV_CALL_PLT => "R_RISCV_CALL_PLT",
        elf::R_RISCV_GOT_HI20 => "R_RISCV_GOT_HI20",
        elf::R_RISCV_PCREL_HI20 => "R_RISCV_PCREL_HI20",
        elf::R_RISCV_PCREL_LO12_I => "R_RISCV_PCREL_LO12_I",
        _ => return None,
    })
}
