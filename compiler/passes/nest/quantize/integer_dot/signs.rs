//! Signedness of bytes: which dot products of a level apply to two operands, and the changes that they
//! require.

use crate::nest::{Buf, DotKind, Layout, Module, Place};
use crate::target::Dot;
use crate::tensor::{ConstData, ElemType};

/// How dot products read activations and weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub group: DotKind,
    /// The signedness of the activations is changed.
    pub flips: bool,
    /// Non-constant weights become signed bytes less 128.
    pub lessens: bool,
}

/// Whether all values of a constant of bytes fit in i8, and in u8; `None` if it is no such constant.
fn values(m: &Module, b: Buf) -> Option<(bool, bool)> {
    let Place::Const(c) = &m.bufs[b].place else { return None };
    match c.elem() {
        _ if m.bufs[b].layout != Layout::RowMajor => None,
        ElemType::I8 => Some((true, false)),
        ElemType::U8 => Some((c.bytes().iter().all(|v| *v < 128), true)),
        _ => None,
    }
}

/// True for a constant of bytes whose values fit the signedness of a group on some level.
pub(super) fn are_weights(m: &Module, dot: Dot, b: Buf) -> bool {
    values(m, b).is_some_and(|(signed, _)| signed || dot != Dot::Quads)
}

/// Products of signed bytes whose weights must not contain -128.
fn of_signed(m: &Module, dot: Dot, w: Buf) -> DotKind {
    let least = |c: &ConstData| c.elem() == ElemType::I8 && c.bytes().contains(&0x80);
    let narrow = matches!(&m.bufs[w].place, Place::Const(c) if !least(c));
    if dot == Dot::QuadsInWords && narrow { DotKind::NarrowBytes } else { DotKind::SignedBytes }
}

/// Dot products of activations and constant weights, if the level has any.
pub(super) fn of_constant(m: &Module, dot: Dot, x: Buf, w: Buf) -> Option<Way> {
    let (signed, unsigned) = values(m, w)?;
    let is_unsigned = m.bufs[x].ty == ElemType::U8;
    let way = |group, flips| Some(Way { group, flips, lessens: false });
    match (dot, is_unsigned) {
        (Dot::None, _) => None,
        // Words are extended from unsigned bytes.
        (Dot::Pairs, _) if signed => way(DotKind::WordsByBytes, !is_unsigned),
        (Dot::Pairs, _) => way(DotKind::Words, !is_unsigned),
        (Dot::Quads, _) if !signed => None,
        (Dot::Quads, _) => way(DotKind::Bytes, !is_unsigned),
        (Dot::QuadsOfAnySign, true) if signed => way(DotKind::Bytes, false),
        (_, true) if unsigned => way(DotKind::UnsignedBytes, false),
        (_, true) => way(of_signed(m, dot, w), true),
        (_, false) if signed => way(of_signed(m, dot, w), false),
        (_, false) => way(DotKind::UnsignedBytes, true),
    }
}

/// Dot products of non-constant operands, the second in the role of the weights.
pub(super) fn of_run_time(m: &Module, dot: Dot, x: Buf, w: Buf) -> Option<Way> {
    let is_unsigned = |b: Buf| m.bufs[b].ty == ElemType::U8;
    let (x, w) = (is_unsigned(x), is_unsigned(w));
    let (group, flips, lessens) = match (dot, x, w) {
        (Dot::None, ..) => return None,
        (Dot::Pairs, ..) => (DotKind::Words, !x, false),
        (Dot::Quads, ..) => (DotKind::Bytes, !x, w),
        (_, true, true) => (DotKind::UnsignedBytes, false, false),
        (_, false, false) => (DotKind::SignedBytes, false, false),
        (Dot::QuadsOfAnySign, true, false) => (DotKind::Bytes, false, false),
        (_, true, false) => (DotKind::SignedBytes, true, false),
        (_, false, true) => (DotKind::SignedBytes, false, true),
    };
    Some(Way { group, flips, lessens })
}
