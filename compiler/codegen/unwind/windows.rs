//! `.pdata` and `.xdata` of COFF objects: the prologue operations that Windows' unwinder undoes, the last one
//! first.
//!
//! The unwinder recognises x86-64 epilogues by their instructions (`pop`, `ret`) and aarch64 epilogues by
//! their recorded positions. A function without a frame has no entry.

use super::{Function, Step, Steps};
use crate::diag::{Failure, Result};
use object::write::{Object, Relocation, SectionId, SymbolId};
use object::{RelocationEncoding, RelocationFlags, RelocationKind, SectionKind};
use target_lexicon::Architecture;

/// Adds both sections.
pub fn add(o: &mut Object<'_>, architecture: &Architecture, functions: &[Function]) -> Result<()> {
    let bug = |e: &str| Failure::bug("unwind", e.to_owned());
    let data =
        |o: &mut Object<'_>, name: &[u8]| o.add_section(vec![], name.to_vec(), SectionKind::ReadOnlyData);
    let (mut pdata, mut xdata) = (None, None);
    for f in functions {
        let prologue = prologue(&f.steps);
        if prologue.is_empty() {
            continue;
        }
        let info = match architecture {
            Architecture::X86_64 => x86_64(prologue),
            Architecture::Aarch64(_) => aarch64(f, prologue),
            _ => None,
        };
        let info = info.ok_or_else(|| bug("a prologue that Windows has no codes for"))?;
        let xdata = *xdata.get_or_insert_with(|| data(o, b".xdata"));
        let pdata = *pdata.get_or_insert_with(|| data(o, b".pdata"));
        let (at, information) = (o.append_section_data(xdata, &info, 4), o.section_symbol(xdata));
        address(o, pdata, f.symbol, 0)?;
        if *architecture == Architecture::X86_64 {
            address(o, pdata, f.symbol, f.size.into())?;
        }
        address(o, pdata, information, at)?;
    }
    Ok(())
}

/// Appends an address relative to the image.
fn address(o: &mut Object<'_>, section: SectionId, symbol: SymbolId, addend: u64) -> Result<()> {
    let offset = o.append_section_data(section, &[0; 4], 4);
    let flags = RelocationFlags::Generic {
        kind: RelocationKind::ImageOffset,
        encoding: RelocationEncoding::Generic,
        size: 32,
    };
    o.add_relocation(section, Relocation { offset, symbol, addend: addend as i64, flags })
        .map_err(|e| Failure::bug("unwind", e.to_string()))
}

/// The steps before the first epilogue.
fn prologue(steps: &Steps) -> &[(u32, Step)] {
    let mut depth = 0;
    let end = steps.iter().position(|(_, s)| match s {
        Step::Stack(n) => std::mem::replace(&mut depth, *n) > *n,
        Step::Frame | Step::Save(..) => false,
        Step::Unframe(_) | Step::Restore(_) | Step::Leave | Step::Resume => true,
    });
    &steps[..end.unwrap_or(steps.len())]
}

/// Windows' register number of rbp.
const RBP: u8 = 5;
/// The operation `UWOP_SET_FPREG`.
const SET_FPREG: u8 = 3;
/// Greatest offset of the frame pointer from the base of the saved registers, in bytes: four bits.
const MOST_BASE: u32 = 240;

/// `UNWIND_INFO` of x86-64.
fn x86_64(steps: &[(u32, Step)]) -> Option<Vec<u8>> {
    const NUMBERS: [u8; 16] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];
    let depth_of = |steps: &[(u32, Step)]| {
        steps
            .iter()
            .rev()
            .find_map(|(_, s)| if let Step::Stack(n) = s { Some(*n) } else { None })
            .unwrap_or(8)
    };
    let whole = depth_of(steps);
    // Code that aligns the stack pointer ends its prologue with the frame pointer.
    let framed = matches!(steps.last(), Some((_, Step::Frame)));
    // The distance that the stack pointer moves after the frame pointer is set, if saved registers are
    // addressed by it. Then they are also found in Cranelift's epilogues, which first move the stack pointer
    // back.
    let frame = steps.iter().position(|s| s.1 == Step::Frame);
    let base =
        frame.map(|i| whole - depth_of(&steps[..i])).filter(|n| !framed && n % 16 == 0 && *n <= MOST_BASE);
    // Each operation as slots of two bytes.
    let mut codes: Vec<Vec<u8>> = vec![];
    let (mut skip, mut based) = (false, false);
    for (i, (at, step)) in steps.iter().enumerate() {
        let at = u8::try_from(*at).ok()?;
        match *step {
            Step::Stack(n) => {
                let size = n - depth_of(&steps[..i]);
                match steps.get(i + 1) {
                    Some((_, Step::Save(r, m))) if *m == n && size == 8 => {
                        codes.push(vec![at, NUMBERS.get(usize::from(*r))? << 4]);
                        skip = true;
                    }
                    _ if size <= 128 => codes.push(vec![at, ((size / 8 - 1) as u8) << 4 | 2]),
                    _ if size / 8 <= 0xffff => {
                        codes.push([&[at, 1][..], &((size / 8) as u16).to_le_bytes()].concat())
                    }
                    _ => codes.push([&[at, 0x11][..], &size.to_le_bytes()].concat()),
                }
                if base == Some(size) && frame.is_some_and(|f| f < i) {
                    codes.push(vec![at, SET_FPREG]);
                    based = true;
                }
            }
            Step::Save(..) if std::mem::take(&mut skip) => {}
            Step::Save(r, n) => {
                let offset = whole.checked_sub(n)?;
                let (number, operation, unit) = match r {
                    0..16 => (NUMBERS[usize::from(r)], 4, 8),
                    _ => (u8::try_from(r - 17).ok()?, 8, 16),
                };
                codes.push(match u16::try_from(offset / unit) {
                    Ok(k) => [&[at, number << 4 | operation][..], &k.to_le_bytes()].concat(),
                    Err(_) => [&[at, number << 4 | (operation + 1)][..], &offset.to_le_bytes()].concat(),
                });
            }
            Step::Frame if framed => codes.push(vec![at, SET_FPREG]),
            _ => {}
        }
    }
    let size = steps.last().map_or(0, |s| s.0 as u8);
    let slots: Vec<u8> = codes.into_iter().rev().flatten().collect();
    // rbp, and its distance in units of 16 bytes.
    let register = match base {
        Some(n) if based => RBP | (n as u8 / 16) << 4,
        _ if framed => RBP,
        _ => 0,
    };
    let mut out = vec![1, size, u8::try_from(slots.len() / 2).ok()?, register];
    out.extend(slots);
    out.resize(out.len().next_multiple_of(4), 0);
    Some(out)
}

/// Unwind codes of aarch64: `end`, `end_c`, `set_fp`.
const END: u8 = 0xe4;
const END_OF_PROLOGUE: u8 = 0xe5;
const SET_FRAME: u8 = 0xe1;

/// Unwind information of aarch64.
fn aarch64(f: &Function, steps: &[(u32, Step)]) -> Option<Vec<u8>> {
    let framed = steps.iter().any(|s| s.1 == Step::Frame);
    let saves: Vec<(u32, u16, u32)> = steps
        .iter()
        .filter_map(|(at, s)| match *s {
            Step::Save(r, n) if !matches!(r, 29 | 30) => Some((*at, r, n)),
            _ => None,
        })
        .collect();
    // In prologue order.
    let mut codes: Vec<Vec<u8>> = vec![];
    let mut depth = 0;
    if framed {
        // stp x29, x30, [sp, #-16]!; mov x29, sp
        codes.extend([vec![0x81], vec![SET_FRAME]]);
        depth = 16;
    }
    if let Some(lowest) = saves.iter().map(|s| s.2).max() {
        let size = lowest.next_multiple_of(16) - depth;
        depth += size;
        codes.push(allocate(size)?);
        let mut left = &saves[..];
        while let Some((first, rest)) = left.split_first() {
            let pair = rest.first().filter(|s| s.0 == first.0 && s.1 == first.1 + 1 && s.2 + 8 == first.2);
            let offset = depth.checked_sub(first.2)? / 8;
            codes.push(save(first.1, offset, pair.is_some())?);
            left = if pair.is_some() { &rest[1..] } else { rest };
        }
    }
    if !framed {
        let whole =
            steps.iter().filter_map(|s| if let Step::Stack(n) = s.1 { Some(n) } else { None }).max()?;
        if whole > depth {
            codes.push(allocate(whole - depth)?);
        }
    }
    // Each operation corresponds to one instruction. Otherwise the prologue is described as complete at
    // entry.
    let exact = steps.last().is_some_and(|s| s.0 as usize == 4 * codes.len());
    let mut bytes = if exact { vec![] } else { vec![END_OF_PROLOGUE] };
    codes.iter().rev().for_each(|c| bytes.extend(c));
    bytes.push(END);
    // The last operations match the last instructions of an epilogue.
    let begin = if framed { bytes.len() as u32 - 2 } else { 0 };
    let epilogues: Vec<u32> = f
        .steps
        .iter()
        .filter(|s| s.1 == Step::Leave && (framed || exact))
        .map(|s| ((s.0 - if framed { 4 } else { 0 }) / 4) | (begin << 22))
        .collect();
    bytes.resize(bytes.len().next_multiple_of(4), 0xe3);
    let words = bytes.len() as u32 / 4;
    let length = f.size.div_ceil(4);
    if length >= 1 << 18 || epilogues.len() > 0xffff || words > 0xff {
        return None;
    }
    let count = epilogues.len() as u32;
    let mut out = match (count, words) {
        (..32, ..32) => vec![length | count << 22 | words << 27],
        _ => vec![length, count | words << 16],
    };
    out.extend(epilogues);
    Some(out.into_iter().flat_map(u32::to_le_bytes).chain(bytes).collect())
}

/// sub sp, sp, #size
fn allocate(size: u32) -> Option<Vec<u8>> {
    let n = size / 16;
    match n {
        ..32 => Some(vec![n as u8]),
        32..0x800 => Some(vec![0xc0 | (n >> 8) as u8, n as u8]),
        0x800..0x100_0000 => Some(vec![0xe0, (n >> 16) as u8, (n >> 8) as u8, n as u8]),
        _ => None,
    }
}

/// str or stp of callee-saved registers, offset in words.
fn save(register: u16, offset: u32, pair: bool) -> Option<Vec<u8>> {
    let (first, word) = match (register, pair) {
        (19..29, true) => (19, 0xc800),
        (19..29, false) => (19, 0xd000),
        (72..80, true) => (72, 0xd800),
        (72..80, false) => (72, 0xdc00),
        _ => return None,
    };
    if offset >= 64 {
        return None;
    }
    Some((word | (register - first) << 6 | offset as u16).to_be_bytes().to_vec())
}
