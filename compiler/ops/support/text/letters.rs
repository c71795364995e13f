//! Upper and lower case of strings by Unicode's mapping, in which one code point may become several. A
//! capital sigma at the end of a word becomes a final sigma.
//!
//! The tables are derived from Rust's standard library. The upper bits of a code point select a page, its
//! lower bits an entry: the number of its mapping (0: unchanged), and properties for the rule of sigmas.

use super::{Sink, code_point, lt, not};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, Module};
use crate::ops::support::runtime::{self, int};
use crate::tensor::{ConstData, ElemType};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// Entries per page.
const PAGE: i64 = 256;
/// There are no letters beyond.
const LETTERS_END: u32 = 0x2_0000;
/// Bits of an entry below its number: cased; ignored between letters.
const CASED: i64 = 1;
const IGNORED: i64 = 2;
const NUMBER: i64 = 4;
const SIGMA: i64 = 0x3a3;

/// Which case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Case {
    Upper,
    Lower,
}

impl Case {
    /// The same mapping at compile time.
    pub fn of(self, s: &str) -> String {
        match self {
            Case::Upper => s.to_uppercase(),
            Case::Lower => s.to_lowercase(),
        }
    }
}

struct Data {
    /// The page of each code point's upper bits; the first page is empty.
    index: Vec<i64>,
    entries: Vec<u16>,
    texts: Vec<String>,
}

static UPPER: LazyLock<Data> = LazyLock::new(|| Data::new(Case::Upper));
static LOWER: LazyLock<Data> = LazyLock::new(|| Data::new(Case::Lower));

impl Data {
    fn new(case: Case) -> Data {
        let mut d = Data {
            index: vec![0; 0x11_0000 / PAGE as usize],
            entries: vec![0; PAGE as usize],
            texts: vec![String::new()],
        };
        let mut numbers: HashMap<String, u16> = HashMap::new();
        for (page, to) in d.index.iter_mut().enumerate() {
            let first = (page * PAGE as usize) as u32;
            let mut list = [0u16; PAGE as usize];
            for (e, c) in list.iter_mut().zip(first..).filter_map(|(e, c)| Some((e, char::from_u32(c)?))) {
                let new = case.of(c.encode_utf8(&mut [0; 4]));
                if !new.chars().eq([c]) {
                    let n = *numbers.entry(new.clone()).or_insert_with(|| {
                        d.texts.push(new);
                        d.texts.len() as u16 - 1
                    });
                    *e = n * NUMBER as u16;
                }
                if case == Case::Lower {
                    *e |= class(c);
                }
            }
            if list != [0; PAGE as usize] {
                *to = (d.entries.len() / PAGE as usize) as i64;
                d.entries.extend(list);
            }
        }
        d
    }
}

/// The properties of a character, derived from std's mapping of a sigma after it.
fn class(c: char) -> u16 {
    if u32::from(c) >= LETTERS_END && !(0xe_0000..0xe_1000).contains(&u32::from(c)) {
        return 0;
    }
    let is_final = |s: String| s.to_lowercase().ends_with('ς');
    let cased = is_final(format!("{c}Σ"));
    let ignored = !cased && is_final(format!("A{c}Σ"));
    u16::from(cased) * CASED as u16 + u16::from(ignored) * IGNORED as u16
}

/// The tables of one case as constants.
pub struct Letters {
    case: Case,
    index: Buf,
    entries: Buf,
    texts: Buf,
}

impl Letters {
    /// Adds them to a module.
    pub fn new(m: &mut Module, case: Case) -> Letters {
        let d = if case == Case::Upper { &*UPPER } else { &*LOWER };
        let pages: Vec<u8> = d.index.iter().map(|p| *p as u8).collect();
        let entries: Vec<u8> = d.entries.iter().flat_map(|e| e.to_le_bytes()).collect();
        let data = |t, n: usize, b: Vec<u8>| {
            Arc::new(ConstData::new(t, vec![n as i64], b).unwrap_or_else(|| ConstData::from_i64s(&[])))
        };
        Letters {
            case,
            index: m.constant("pages", data(ElemType::U8, pages.len(), pages)),
            entries: m.constant("letters", data(ElemType::U16, d.entries.len(), entries)),
            texts: super::list(m, "cases", &d.texts),
        }
    }
    /// The entry of a code point, as i64.
    fn entry(&self, k: &mut KernelBuilder, point: Expr) -> Expr {
        let (pages, all) = (k.m.bufs[self.index].dims[0], k.m.bufs[self.entries].dims[0]);
        let page = k.with_index(point.clone() / int(PAGE), pages, |k, p| k.load(self.index, &[p]));
        let at = Expr::cast(ElemType::U8, ElemType::I64, page) * int(PAGE) + point.and(int(PAGE - 1));
        let e = k.with_index(at, all, |k, i| k.load(self.entries, &[i]));
        k.let_(Expr::cast(ElemType::U16, ElemType::I64, e))
    }
    /// Passes the bytes of `s` in its case to the sink.
    pub fn write(&self, k: &mut KernelBuilder, s: Expr, sink: &Sink) {
        let s = k.let_(s);
        let (i, after_letter) = (k.acc(int(0)), k.acc(Expr::bool(false)));
        k.while_(lt(Expr::acc(i), Expr::text_len(s.clone())), |k| {
            let b = Expr::text_byte(s.clone(), Expr::acc(i));
            let b = k.let_(b);
            let ascii = k.let_(lt(b.clone(), Expr::int(ElemType::U8, 0x80)));
            k.if_(ascii.clone(), |k| self.ascii(k, b, after_letter, sink, i));
            k.if_(not(ascii), |k| self.other(k, &s, after_letter, sink, i));
        });
    }
    fn ascii(
        &self,
        k: &mut KernelBuilder,
        b: Expr,
        after_letter: crate::nest::Reg,
        sink: &Sink,
        i: crate::nest::Reg,
    ) {
        let byte = |v: u8| Expr::int(ElemType::U8, i64::from(v));
        let within =
            |lo: u8, hi: u8| Expr::bin(BinOp::Ge, b.clone(), byte(lo)).and(runtime::le(b.clone(), byte(hi)));
        let (upper, lower) = (k.let_(within(b'A', b'Z')), k.let_(within(b'a', b'z')));
        let flip = if self.case == Case::Upper { lower.clone() } else { upper.clone() };
        sink.byte(k, Expr::bin(BinOp::Xor, b.clone(), Expr::select(flip, byte(0x20), byte(0))));
        if self.case == Case::Lower {
            let at = |v: u8| runtime::eq(b.clone(), byte(v));
            let ignored = b"'.:^`".iter().map(|c| at(*c)).reduce(runtime::or).unwrap_or(Expr::bool(false));
            let letter = runtime::or(upper, lower);
            k.set(after_letter, Expr::select(ignored, Expr::acc(after_letter), letter));
        }
        k.update(BinOp::Add, i, int(1));
    }
    fn other(
        &self,
        k: &mut KernelBuilder,
        s: &Expr,
        after_letter: crate::nest::Reg,
        sink: &Sink,
        i: crate::nest::Reg,
    ) {
        let (point, n) = code_point(k, s, Expr::acc(i));
        let entry = self.entry(k, point.clone());
        let number = k.let_(entry.clone() / int(NUMBER));
        let texts = k.m.bufs[self.texts].dims[0];
        let mapped = k.with_index(number.clone(), texts, |k, p| k.load(self.texts, &[p]));
        let own = Expr::text_part(s.clone(), Expr::acc(i), n.clone());
        let mut new = Expr::select(runtime::eq(number, int(0)), own, mapped);
        if self.case == Case::Lower {
            let ends = k.acc(Expr::bool(false));
            k.if_(runtime::eq(point, int(SIGMA)).and(Expr::acc(after_letter)), |k| {
                k.set(ends, Expr::bool(true));
                // The next code point that is not ignored decides.
                let j = k.acc(Expr::acc(i) + n.clone());
                k.while_(lt(Expr::acc(j), Expr::text_len(s.clone())), |k| {
                    let (point, n) = code_point(k, s, Expr::acc(j));
                    let e = self.entry(k, point);
                    let has = |bit: i64| Expr::bin(BinOp::Ne, e.clone().and(int(bit)), int(0));
                    k.set(ends, Expr::select(has(CASED), Expr::bool(false), Expr::acc(ends)));
                    k.set(j, Expr::select(has(IGNORED), Expr::acc(j) + n, Expr::text_len(s.clone())));
                });
            });
            let last = super::constant(k.m, "final", "ς");
            new = Expr::select(Expr::acc(ends), last, new);
            let has = |bit: i64| Expr::bin(BinOp::Ne, entry.clone().and(int(bit)), int(0));
            let letter = Expr::select(has(IGNORED), Expr::acc(after_letter), has(CASED));
            sink.text(k, new);
            k.set(after_letter, letter);
        } else {
            sink.text(k, new);
        }
        k.update(BinOp::Add, i, n);
    }
}
