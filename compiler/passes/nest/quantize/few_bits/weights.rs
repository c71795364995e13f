//! Weights of few bits, as the expression that makes floats of them says it.

use super::WIDTH;
use crate::nest::{BinOp, Buf, Expr, Layout, Module, Place};
use crate::sym::{Dim, Sym};
use crate::tensor::{ConstData, ElemType, SmallFloat, consts::Remap};
use std::sync::Arc;

/// What weights of few bits are, as the map says it: `(element - zero) * scale`.
pub(super) struct Weights {
    /// The elements, their number of bits, and what these stand for.
    pub elements: (Arc<ConstData>, u32, Code),
    /// The buffer that holds them.
    pub from: Buf,
    /// Position of element (k, n): offset, and steps along columns and reduction.
    pub at: [i64; 3],
    pub zero: Zero,
    /// A scale for each block and column.
    pub scale: Option<Table>,
    /// Elements of a block.
    pub block: i64,
    /// Elements of a column.
    pub reduction: i64,
}

/// What the bits of an element stand for.
#[derive(Clone, Copy)]
pub(super) enum Code {
    Unsigned,
    Signed,
    /// A finite number of a small format.
    Float(SmallFloat),
}

pub(super) enum Zero {
    None,
    Number(f32),
    Table(Table),
}

/// Values by block and column: offset, and steps along columns and blocks.
pub(super) struct Table {
    pub data: Arc<ConstData>,
    /// The buffer that holds them, with as many elements.
    pub from: Buf,
    pub at: [i64; 3],
}

impl Weights {
    /// Takes `(element - zero) * scale` apart.
    pub fn of(m: &mut Module, value: &Expr, n: Sym, depth: Sym, elements: i64) -> Option<Weights> {
        use ElemType::{BF16, F8E8M0, F16, F32};
        let is_scale =
            |e: &Expr| e.loaded().is_some_and(|b| matches!(m.bufs[b].ty, F32 | F16 | BF16 | F8E8M0));
        let (centred, scale) = match value {
            Expr::Bin(BinOp::Mul, x, s) if is_scale(s) => (&**x, Some(&**s)),
            Expr::Bin(BinOp::Mul, s, x) if is_scale(s) => (&**x, Some(&**s)),
            x => (x, None),
        };
        let centred = uncast(centred);
        let (element, zero) = match centred {
            Expr::Bin(BinOp::Sub, x, z) => (uncast(x), Some(uncast(z))),
            x => (x, None),
        };
        let Expr::Load { buf, at } = element else { return None };
        let (ty, data) = (m.bufs[*buf].ty, constant(m, *buf)?);
        let code = match ty {
            ElemType::U2 | ElemType::U4 | ElemType::U8 => Code::Unsigned,
            ElemType::I2 | ElemType::I4 | ElemType::I8 => Code::Signed,
            _ => Code::Float(SmallFloat::of(ty).filter(|f| matches!(ty.bits(), 4 | 8) && finite(&data, *f))?),
        };
        let of_element = affine(m, *buf, at, n, depth)?;
        // Tables that hang on blocks: of one length for all of them.
        let tables: Vec<(Buf, Vec<Dim>)> = [scale, zero]
            .into_iter()
            .flatten()
            .filter_map(|e| if let Expr::Load { buf, at } = e { Some((*buf, at.clone())) } else { None })
            .collect();
        let per = i64::from(32 / ty.bits());
        let mut blocks: Vec<i64> = tables
            .iter()
            .flat_map(|t| m.bufs[t.0].dims.clone())
            .filter_map(|d| d.as_const())
            .filter(|d| *d > 0)
            .map(|d| (elements + d - 1) / d)
            .collect();
        blocks.extend((2..20).map(|i| 1 << i));
        blocks.retain(|b| *b < elements && *b % per == 0);
        blocks.sort();
        let whole = std::iter::once(elements);
        let (block, at_block) = whole.chain(blocks.into_iter().rev()).find_map(|b| {
            let all: Option<Vec<[i64; 3]>> =
                tables.iter().map(|(buf, at)| by_block(m, *buf, at, n, depth, elements, b)).collect();
            Some((b, all?))
        })?;
        let table = |m: &Module, e: &Expr| -> Option<Table> {
            let Expr::Load { buf, at } = e else { return None };
            let i = tables.iter().position(|t| t.0 == *buf && t.1 == *at)?;
            Some(Table { data: whole_bytes(m, *buf)?, from: m.storage(*buf), at: at_block[i] })
        };
        let scale = match scale {
            Some(s) => Some(table(m, s)?),
            None => None,
        };
        let zero = match zero {
            None => Zero::None,
            Some(Expr::Const(c)) if c.ty.is_float() => Zero::Number(c.to_f64() as f32),
            Some(Expr::Const(c)) => Zero::Number(c.to_i64() as f32),
            Some(e) => Zero::Table(table(m, e)?),
        };
        let from = m.storage(*buf);
        Some(Weights {
            elements: (data, ty.bits(), code),
            from,
            at: of_element,
            zero,
            scale,
            block,
            reduction: elements,
        })
    }
}

/// True if no code of `data` is infinite or no number.
fn finite(data: &ConstData, f: SmallFloat) -> bool {
    let special = |b: u8| if f.uz { b == f.nan } else { b & 0x7f >= f.over };
    !f.has_specials() || !data.bytes().iter().any(|b| special(*b))
}

/// Without conversions that keep the values of small integers.
fn uncast(mut e: &Expr) -> &Expr {
    while let Expr::Cast(ElemType::F32 | ElemType::I32, x) = e {
        e = x;
    }
    e
}

/// The data of a constant in row-major order.
fn constant(m: &Module, b: Buf) -> Option<Arc<ConstData>> {
    let s = m.storage(b);
    match &m.bufs[s].place {
        Place::Const(c) if m.bufs[s].layout == Layout::RowMajor && m.bufs[b].layout == Layout::RowMajor => {
            Some(c.clone())
        }
        _ => None,
    }
}

/// The same with a byte or more for each element, as [`Table`] wants it; powers of two as their codes.
fn whole_bytes(m: &Module, b: Buf) -> Option<Arc<ConstData>> {
    let (data, ty) = (constant(m, b)?, m.bufs[b].ty);
    if ty == ElemType::F8E8M0 {
        let (bytes, count) = (data.bytes(), i64::try_from(data.byte_len()).ok()?);
        let plain = !bytes.iter().any(|b| matches!(b, 0 | 255));
        return plain.then(|| ConstData::new(ElemType::U8, vec![count], bytes)).flatten().map(Arc::new);
    }
    if !matches!(
        ty,
        ElemType::F32
            | ElemType::F16
            | ElemType::BF16
            | ElemType::U8
            | ElemType::I8
            | ElemType::U4
            | ElemType::I4
            | ElemType::U2
            | ElemType::I2
    ) {
        return None;
    }
    let count = data.byte_len() * 8 / u64::from(ty.bits());
    let seen = if data.elem() == ty {
        data
    } else {
        Arc::new(ConstData::new(ty, vec![i64::try_from(count).ok()?], data.bytes())?)
    };
    if !ty.is_packed() {
        return Some(seen);
    }
    let bytes: Vec<u8> = seen.to_i64s()?.into_iter().map(|v| v as u8).collect();
    ConstData::new(ty.compute(), vec![bytes.len() as i64], bytes).map(Arc::new)
}

/// Position of an element as offset + a * column + b * reduction.
fn affine(m: &Module, buf: Buf, at: &[Dim], n: Sym, depth: Sym) -> Option<[i64; 3]> {
    linear(m.syms.simplify(m.linear(buf, at)), n, depth)
}

fn linear(d: Dim, n: Sym, depth: Sym) -> Option<[i64; 3]> {
    let (column, rest) = d.linear_in(n)?;
    let (step, offset) = rest.linear_in(depth)?;
    let found = [offset.as_const()?, column.as_const()?, step.as_const()?];
    found.iter().all(|v| *v >= 0).then_some(found)
}

/// The same for what is one for each block of elements; the last step is from block to block.
fn by_block(
    m: &mut Module,
    buf: Buf,
    at: &[Dim],
    n: Sym,
    depth: Sym,
    elements: i64,
    block: i64,
) -> Option<[i64; 3]> {
    let d = m.syms.simplify(m.linear(buf, at));
    let zero = Dim::constant(0);
    let b = m.syms.loop_var("b", zero, Dim::constant((elements + block - 1) / block));
    let i = m.syms.loop_var("i", zero, Dim::constant(block));
    let within = Dim::sym(b) * block + i;
    let d = m.syms.simplify(
        d.subst(&mut |s| (s == depth).then_some(if block == elements { Dim::sym(i) } else { within })),
    );
    if d.contains(i) { None } else { linear(d, n, b) }
}

impl Table {
    /// `[panel][block][column]`.
    pub fn packed(&self, columns: i64, blocks: i64) -> Option<ConstData> {
        let count = i64::try_from(self.data.count()).ok()?;
        let flat = Arc::new(self.data.reshaped(vec![count])?);
        let [offset, column, block] = self.at;
        let dims = vec![(columns + WIDTH - 1) / WIDTH, blocks, WIDTH];
        ConstData::remap(
            flat,
            Remap { dims, offset: vec![offset], coeff: vec![vec![column * WIDTH, block, column]] },
        )
    }
}
