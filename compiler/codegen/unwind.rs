//! Unwind information: the location of the caller's registers at every instruction of every function.
//!
//! Functions describe their prologues and epilogues as [`Step`]s. For Cranelift's functions these come from
//! its records, for ours from the encoders. They are converted to `.eh_frame` in ELF and Mach-O objects, and
//! to `.pdata` and `.xdata` in COFF objects ([`windows`]). Addresses in these tables are relative, so the
//! sections are read-only.

pub mod windows;

use super::recorder::Recorder;
use crate::diag::{Failure, Result};
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::isa::unwind::UnwindInst;
use gimli::write::{Address, CallFrameInstruction as Cfi, CommonInformationEntry, FrameDescriptionEntry};
use gimli::write::{EhFrame, FrameTable, RelocationTarget};
use gimli::{Encoding, Format, Register};
use object::write::{Object, StandardSection, Symbol, SymbolFlags, SymbolId, SymbolSection};
use object::{BinaryFormat, SectionKind, SymbolKind, SymbolScope};
use object::{RelocationEncoding, RelocationFlags, RelocationKind};
use target_lexicon::Architecture;

/// The effect on the frame of the instruction before a position. Registers have DWARF numbers. The CFA is the
/// value of the stack pointer before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The stack pointer is this far below the CFA.
    Stack(u32),
    /// The frame pointer gets the value of the stack pointer. From here on it determines the CFA.
    Frame,
    /// The frame pointer is the caller's again. The stack pointer is this far below the CFA.
    Unframe(u32),
    /// A register of the caller is saved this far below the CFA.
    Save(u16, u32),
    /// A register has the caller's value again.
    Restore(u16),
    /// An epilogue begins.
    Leave,
    /// The epilogue has ended: the code that follows has the frame from before it.
    Resume,
}

/// Steps at offsets of code, in order.
pub type Steps = Vec<(u32, Step)>;

/// Register numbers, and the state at function entry.
struct Machine {
    stack: u16,
    frame: u16,
    /// Location of the return address.
    link: u16,
    /// Bytes that a call pushes.
    pushed: u32,
}

fn machine(a: &Architecture) -> Machine {
    match a {
        Architecture::X86_64 => Machine { stack: 7, frame: 6, link: 16, pushed: 8 },
        Architecture::Aarch64(_) => Machine { stack: 31, frame: 29, link: 30, pushed: 0 },
        _ => Machine { stack: 2, frame: 8, link: 1, pushed: 0 },
    }
}

/// The steps of a function compiled by Cranelift. It records prologues only; epilogues are recognised by
/// their last instructions.
pub fn steps(isa: &dyn TargetIsa, code: &[u8], recorded: &[(u32, UnwindInst)]) -> Result<Steps> {
    let m = machine(&isa.triple().architecture);
    let mut out = vec![];
    let (mut up, mut down, mut framed) = (m.pushed, 0, false);
    for (at, inst) in recorded {
        match inst {
            UnwindInst::PushFrameRegs { offset_upward_to_caller_sp: n } => {
                up = *n;
                let first = match isa.triple().architecture {
                    // The first of three instructions moves the stack pointer.
                    Architecture::Riscv64(_) => {
                        if code.first().is_some_and(|b| b & 3 == 3) {
                            4
                        } else {
                            2
                        }
                    }
                    _ => *at,
                };
                out.push((first, Step::Stack(up)));
                out.push((*at, Step::Save(m.frame, up)));
                if m.pushed == 0 {
                    out.push((*at, Step::Save(m.link, up - 8)));
                }
            }
            UnwindInst::DefineNewFrame { offset_upward_to_caller_sp, offset_downward_to_clobbers } => {
                (up, down) = (*offset_upward_to_caller_sp, *offset_downward_to_clobbers);
                framed = true;
                out.push((*at, Step::Frame));
                // Cranelift does not record this instruction.
                if let (Architecture::X86_64, Some((length, n))) =
                    (&isa.triple().architecture, allocation(code.get(*at as usize..).unwrap_or_default()))
                {
                    out.push((at + length, Step::Stack(up + n)));
                }
            }
            UnwindInst::StackAlloc { size } => {
                up += size;
                out.push((*at, Step::Stack(up)));
                up -= if framed { *size } else { 0 };
            }
            UnwindInst::SaveReg { clobber_offset, reg } => {
                let r = isa
                    .map_regalloc_reg_to_dwarf((*reg).into())
                    .map_err(|e| Failure::bug("unwind", format!("{e:?}")))?;
                out.push((*at, Step::Save(r, up + down - clobber_offset)));
            }
            // Pointer authentication and tail calls, which our settings do not enable.
            UnwindInst::RegStackOffset { .. } | UnwindInst::Aarch64SetPointerAuth { .. } => {}
        }
    }
    if framed {
        epilogues(&isa.triple().architecture, code, up, &mut out);
    }
    Ok(out)
}

/// The length of `sub rsp, n`, and n, if the code begins with it. This form occurs in prologues only.
fn allocation(code: &[u8]) -> Option<(u32, u32)> {
    match *code {
        [0x48, 0x83, 0xec, n, ..] => Some((4, n.into())),
        [0x48, 0x81, 0xec, a, b, c, d, ..] => Some((7, u32::from_le_bytes([a, b, c, d]))),
        _ => None,
    }
}

/// Finds the ends of epilogues: the frame is released, and `ret` follows. If the pattern occurs inside other
/// instructions or data, no instruction begins at the offsets of its steps.
fn epilogues(a: &Architecture, code: &[u8], up: u32, out: &mut Steps) {
    let m = machine(a);
    let begin = out.last().map_or(0, |s| s.0 as usize);
    let words: &[&[u8]] = match a {
        // pop rbp; ret
        Architecture::X86_64 => &[&[0x5d], &[0xc3]],
        // ldp x29, x30, [sp], #16; ret
        Architecture::Aarch64(_) => &[&0xa8c1_7bfd_u32.to_le_bytes(), &0xd65f_03c0_u32.to_le_bytes()],
        // addi sp, sp, 16; ret, after loads of the return address and of fp
        _ if code.first().is_some_and(|b| b & 3 == 3) => {
            &[&0x0101_0113_u32.to_le_bytes(), &0x0000_8067_u32.to_le_bytes()]
        }
        // The same as compressed instructions.
        _ => &[&0x0141_u16.to_le_bytes(), &0x8082_u16.to_le_bytes()],
    };
    let [give_up, ret] = words else { return };
    let pattern = [*give_up, *ret].concat();
    let mut at = begin;
    while let Some(n) = code.get(at..).and_then(|c| c.windows(pattern.len()).position(|w| w == pattern)) {
        let first = at + n;
        let second = (first + give_up.len()) as u32;
        let end = second + ret.len() as u32;
        if matches!(a, Architecture::Riscv64(_)) {
            out.extend([Step::Leave, Step::Unframe(up), Step::Restore(m.frame)].map(|s| (first as u32, s)));
            out.extend([Step::Stack(0), Step::Restore(m.link)].map(|s| (second, s)));
        } else {
            out.extend([Step::Leave, Step::Unframe(m.pushed), Step::Restore(m.frame)].map(|s| (second, s)));
            if m.pushed == 0 {
                out.push((second, Step::Restore(m.link)));
            }
        }
        out.push((end, Step::Resume));
        at = end as usize;
    }
}

/// A function of an object.
pub struct Function {
    /// Its symbol.
    pub symbol: SymbolId,
    /// Bytes of its code.
    pub size: u32,
    /// Its steps.
    pub steps: Steps,
}

/// Adds the unwind tables of the platform to an object.
pub fn add(o: &mut Object<'_>, architecture: &Architecture, functions: &[Function]) -> Result<()> {
    match o.format() {
        BinaryFormat::Coff => windows::add(o, architecture, functions),
        _ => add_eh_frame(o, architecture, functions),
    }
}

/// Adds `.eh_frame`.
fn add_eh_frame(o: &mut Object<'_>, architecture: &Architecture, functions: &[Function]) -> Result<()> {
    let bug = |e: String| Failure::bug("unwind", e);
    let m = machine(architecture);
    let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 1 };
    // Code alignment: instructions of aarch64 have four bytes, others any number of bytes or of halfwords.
    let align = if matches!(architecture, Architecture::Aarch64(_)) { 4 } else { 1 };
    let mut cie = CommonInformationEntry::new(encoding, align, -8, Register(m.link));
    // Apple's linkers require 8-byte distances that are differences of two symbols.
    let macho = o.format() == BinaryFormat::MachO;
    let size = if macho { gimli::DW_EH_PE_absptr } else { gimli::DW_EH_PE_sdata4 };
    cie.fde_address_encoding = gimli::DwEhPe(gimli::DW_EH_PE_pcrel.0 | size.0);
    cie.add_instruction(Cfi::Cfa(Register(m.stack), m.pushed as i32));
    if m.pushed > 0 {
        cie.add_instruction(Cfi::Offset(Register(m.link), -(m.pushed as i32)));
    }
    let mut table = FrameTable::default();
    let cie = table.add_cie(cie);
    for (i, f) in functions.iter().enumerate() {
        let mut fde = FrameDescriptionEntry::new(Address::Symbol { symbol: i, addend: 0 }, f.size);
        let (mut framed, mut outside) = (false, false);
        for (at, step) in useful(&f.steps, f.size) {
            let i = match *step {
                Step::Stack(_) if framed => continue,
                Step::Stack(n) => Cfi::CfaOffset(n as i32),
                Step::Frame => Cfi::CfaRegister(Register(m.frame)),
                Step::Unframe(n) => Cfi::Cfa(Register(m.stack), n as i32),
                Step::Save(r, n) => Cfi::Offset(Register(r), -(n as i32)),
                Step::Restore(r) => Cfi::Restore(Register(r)),
                Step::Leave => Cfi::RememberState,
                Step::Resume => Cfi::RestoreState,
            };
            match step {
                Step::Frame => framed = true,
                Step::Unframe(_) => framed = false,
                Step::Leave => outside = framed,
                Step::Resume => framed = outside,
                _ => {}
            }
            fde.add_instruction(*at, i);
        }
        table.add_fde(cie, fde);
    }
    let mut w = EhFrame(Recorder::new());
    table.write_eh_frame(&mut w).map_err(|e| bug(e.to_string()))?;
    let section = match o.format() {
        // Most tools do not treat x86-64's own section type as data.
        BinaryFormat::Elf => o.add_section(vec![], b".eh_frame".to_vec(), SectionKind::ReadOnlyData),
        _ => o.section_id(StandardSection::EhFrame),
    };
    let offset = o.append_section_data(section, w.0.bytes.slice(), 8);
    // On Mach-O distances begin at a local symbol, because section symbols are not written for every machine.
    let start = macho.then(|| {
        o.add_symbol(Symbol {
            name: b"eh_frame".to_vec(),
            value: offset,
            size: 0,
            kind: SymbolKind::Data,
            scope: SymbolScope::Compilation,
            weak: false,
            section: SymbolSection::Section(section),
            flags: SymbolFlags::None,
        })
    });
    for r in w.0.relocations {
        let RelocationTarget::Symbol(i) = r.target else {
            return Err(bug("a relocation without a symbol".into()));
        };
        let at = offset + r.offset as u64;
        let kind = if macho { RelocationKind::Absolute } else { RelocationKind::Relative };
        let flags =
            RelocationFlags::Generic { kind, encoding: RelocationEncoding::Generic, size: r.size * 8 };
        let (symbol, addend) = match start {
            Some(_) => (functions[i].symbol, r.addend - at as i64),
            None => within_object(o, functions[i].symbol, r.addend)?,
        };
        let relocation = object::write::Relocation { offset: at, symbol, addend, flags };
        o.add_relocation_with_subtractor(section, relocation, start).map_err(|e| bug(e.to_string()))?;
    }
    Ok(())
}

/// A symbol and an addend for an address that cannot be preempted: in a shared library, another library may
/// define an exported function.
fn within_object(o: &mut Object<'_>, symbol: SymbolId, addend: i64) -> Result<(SymbolId, i64)> {
    let s = o.symbol(symbol);
    if s.scope == SymbolScope::Compilation {
        return Ok((symbol, addend));
    }
    let Some(section) = s.section.id() else {
        return Err(Failure::bug("unwind", "a function without a section"));
    };
    let addend = addend + s.value as i64;
    Ok((o.section_symbol(section), addend))
}

/// The steps that have an effect: all but the end of the last epilogue, if no code follows it.
fn useful(steps: &[(u32, Step)], size: u32) -> impl Iterator<Item = &(u32, Step)> {
    let last = steps.iter().rposition(|s| s.1 == Step::Leave);
    let ends = steps.last().is_some_and(|s| s.1 == Step::Resume && s.0 >= size);
    let idle = steps.iter().all(|s| matches!(s.1, Step::Leave | Step::Resume));
    steps
        .iter()
        .enumerate()
        .filter(move |(i, s)| !idle && s.0 < size && !(ends && Some(*i) == last))
        .map(|(_, s)| s)
}

/// Offset of the function's address in an entry of `.eh_frame`, after its length and CIE.
pub const ADDRESS_AT: u64 = 8;

/// Bytes of the search table for a number of functions.
pub fn index_size(functions: usize) -> usize {
    12 + 8 * functions
}

/// `.eh_frame_hdr` at address `at`: the address of `.eh_frame`, and each function with its entry.
pub fn index(at: u64, eh_frame: u64, mut functions: Vec<(u64, u64)>) -> Result<Vec<u8>> {
    let distance = |to: u64, from: u64| -> Result<[u8; 4]> {
        let d = i32::try_from(to.wrapping_sub(from) as i64)
            .map_err(|_| Failure::bug("unwind", "a function beyond 2 GiB"))?;
        Ok(d.to_le_bytes())
    };
    functions.sort_unstable();
    // Version, then the encodings of address, count and table: PC-relative, a number, relative to the
    // section.
    let mut out = vec![1, 0x1b, 0x03, 0x3b];
    out.extend(distance(eh_frame, at + 4)?);
    out.extend((functions.len() as u32).to_le_bytes());
    for (function, entry) in functions {
        out.extend(distance(function, at)?);
        out.extend(distance(entry, at)?);
    }
    Ok(out)
}
