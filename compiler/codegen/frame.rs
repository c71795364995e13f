//! The frame: an array of 64-bit words through which kernels access buffers and sizes. The entry function
//! builds it on its stack; kernels only read it.
//!
//! Code that several kernels share reads a separate frame with a word for each of its buffers
//! ([`Frame::of_kernel`]). Each of these kernels fills one from the module's frame and calls the code with
//! it.

use super::Set;
use crate::nest::{Buf, Module, Place, Slot, Stmt, visit};
use crate::sym::{Dim, Sym, SymKind};
use std::collections::{BTreeSet, HashMap};

/// The contents of a word of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// Pointer to the workspace.
    Workspace,
    /// Pointer to the weights blob.
    Weights,
    /// Pointer to the caller's input.
    Input(u32),
    /// Pointer to the caller's output.
    Output(u32),
    /// Value of a dim param, a derived size, a run-time size or an address.
    Sym(Sym),
    /// Pointer to an arena slot whose offset is not constant.
    Slot(Slot),
    /// Pointer to a buffer that owns its memory, in the frame of shared code.
    Start(Buf),
    /// A literal that differs between the kernels that share code.
    Literal(usize),
}

/// The layout of a frame.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The words in order.
    pub words: Vec<Word>,
    index: HashMap<Word, u32>,
}

impl Frame {
    /// Plans the frame of a placed module.
    pub fn new(m: &Module) -> Frame {
        let mut f = Frame::default();
        f.add(Word::Workspace);
        f.add(Word::Weights);
        (0..m.inputs.len()).for_each(|i| f.add(Word::Input(i as u32)));
        (0..m.outputs.len()).for_each(|i| f.add(Word::Output(i as u32)));
        m.dim_params.iter().for_each(|s| f.add(Word::Sym(*s)));
        m.syms.derived().iter().for_each(|(s, _)| f.add(Word::Sym(*s)));
        visit::walk(&m.driver, &mut |s| {
            if let Stmt::Define { sym, .. } = s {
                f.add(Word::Sym(*sym));
            }
        });
        for (slot, d) in m.slots.iter() {
            if d.offset.as_const().is_none() {
                f.add(Word::Slot(slot));
            }
        }
        f
    }
    /// The frame of shared code, planned from the body of one of its kernels: the buffers in order of first
    /// use, then the symbols and literals.
    pub fn of_kernel(m: &Module, body: &[Stmt], literals: usize) -> Frame {
        let mut f = Frame::default();
        buffers(body).for_each(|b| f.add(Word::Start(m.storage(b))));
        symbols(m, body).into_iter().for_each(|s| f.add(Word::Sym(s)));
        (0..literals).for_each(|i| f.add(Word::Literal(i)));
        f
    }
    fn add(&mut self, w: Word) {
        if !self.index.contains_key(&w) {
            self.index.insert(w, self.words.len() as u32);
            self.words.push(w);
        }
    }
    /// Byte offset of a word.
    pub fn offset(&self, w: Word) -> Option<i32> {
        self.index.get(&w).map(|i| *i as i32 * 8)
    }
    /// Size in bytes.
    pub fn size(&self) -> u32 {
        self.words.len() as u32 * 8
    }
}

/// Buffers that a body loads from and stores to, in order of first use; a buffer may occur twice.
pub fn buffers(body: &[Stmt]) -> impl Iterator<Item = Buf> {
    visit::loads(body).into_iter().chain(visit::stores(body))
}

/// Symbols with values in the frame on which a body and the sizes of its buffers depend, including those that
/// own the memory of a view: an access through a view may be checked against them.
pub fn symbols(m: &Module, body: &[Stmt]) -> BTreeSet<Sym> {
    let (mut syms, mut seen) = (BTreeSet::new(), Set::<Dim>::default());
    let mut add = |d: Dim| {
        if seen.insert(d) {
            syms.extend(d.syms());
        }
    };
    visit::walk(body, &mut |s| s.each_dim(&mut add));
    let sizes = |b: Buf| [b, m.storage(b)].into_iter().flat_map(|b| &m.bufs[b].dims);
    buffers(body).flat_map(sizes).for_each(|d| add(*d));
    syms.retain(|s| is_frame_sym(m, *s));
    syms
}

/// The start of a buffer: a word of the frame plus an offset in bytes.
pub fn base_of(m: &Module, frame: &Frame, weights: &super::weights::Layout, b: Buf) -> Option<(Word, i64)> {
    let b = m.storage(b);
    if frame.offset(Word::Start(b)).is_some() {
        return Some((Word::Start(b), 0));
    }
    match &m.bufs[b].place {
        Place::Input(i) => Some((Word::Input(*i), 0)),
        Place::Output(i) => Some((Word::Output(*i), 0)),
        Place::Pointer(s) => frame.offset(Word::Sym(*s)).map(|_| (Word::Sym(*s), 0)),
        Place::Const(_) => weights.offset(b).map(|o| (Word::Weights, o)),
        Place::Arena(s) => match m.slots[*s].offset.as_const() {
            Some(o) => Some((Word::Workspace, o)),
            None => frame.offset(Word::Slot(*s)).map(|_| (Word::Slot(*s), 0)),
        },
        Place::Temp | Place::Growable | Place::Foreign | Place::View(_) => None,
    }
}

/// True for symbols whose values are in the frame.
pub fn is_frame_sym(m: &Module, s: Sym) -> bool {
    m.syms.kind(s) != SymKind::Loop
}
