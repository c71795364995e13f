//! Weights of few bits, decoded from the expression that dequantizes them.

use super::WIDTH;
use crate::nest::{BinOp, Buf, Expr, Layout, Module, Place};
use crate::sym::{Dim, Sym};
use crate::tensor::{ConstData, ElemType, SmallFloat, consts::Remap};
use std::sync::Arc;

/// The parts of a dequantizing expression `(element - zero) * scale`.
pub(super) struct Weights {
    /// The elements, their number of bits, and their encoding.
    pub elements: (Arc<ConstData>, u32, Code),
    /// The buffer that holds them.
    pub from: Buf,
    /// Position of element (k, n): offset, and steps along columns and reduction.
    pub at: [i64; 3],
    /// The position is valid after exchanging the elements of each pair
    /// ([`crate::tensor::Words::high_first`]).
    pub high_first: bool,
    pub zero: Zero,
    /// A scale for each block and column.
    pub scale: Option<Table>,
    /// Elements of a block.
    pub block: i64,
    /// Elements of a column.
    pub reduction: i64,
}

/// The encoding of elements.
#[derive(Clone, Copy)]
pub(super) enum Code {
    Unsigned,
    Signed,
    /// A finite number of a small format.
    Float(SmallFloat),
    /// An index into a constant table with an entry for each code.
    Place(Buf),
}

impl Code {
    /// The encoding of a type, or of indices into `table`.
    fn of(ty: ElemType, data: &ConstData, table: Option<Buf>) -> Option<Code> {
        match (ty, table) {
            (ElemType::U2 | ElemType::U4, Some(table)) => Some(Code::Place(table)),
            (_, Some(_)) => None,
            (ElemType::U2 | ElemType::U4 | ElemType::U8, None) => Some(Code::Unsigned),
            (ElemType::I2 | ElemType::I4 | ElemType::I8, None) => Some(Code::Signed),
            _ => {
                let format = SmallFloat::of(ty).filter(|f| matches!(ty.bits(), 4 | 8) && finite(data, *f));
                format.map(Code::Float)
            }
        }
    }
}

/// The terms of `(element - zero) * scale`, without conversions.
struct Terms<'e> {
    element: &'e Expr,
    zero: Option<&'e Expr>,
    scale: Option<&'e Expr>,
}

impl<'e> Terms<'e> {
    fn of(m: &Module, value: &'e Expr) -> Terms<'e> {
        use ElemType::{BF16, F8E8M0, F16, F32};
        let is_scale =
            |e: &Expr| e.loaded().is_some_and(|b| matches!(m.bufs[b].ty, F32 | F16 | BF16 | F8E8M0));
        let (centred, scale) = match value {
            Expr::Bin(BinOp::Mul, x, s) if is_scale(s) => (&**x, Some(&**s)),
            Expr::Bin(BinOp::Mul, s, x) if is_scale(s) => (&**x, Some(&**s)),
            x => (x, None),
        };
        match uncast(centred) {
            Expr::Bin(BinOp::Sub, x, z) => Terms { element: uncast(x), zero: Some(uncast(z)), scale },
            element => Terms { element, zero: None, scale },
        }
    }
}

pub(super) enum Zero {
    None,
    Number(f32),
    Table(Table),
}

/// Values by block and column: offset, and steps along columns and blocks.
pub(super) struct Table {
    pub data: Arc<ConstData>,
    /// The buffer that holds them, with as many elements; `None` if `data` repeats some of them.
    pub from: Option<Buf>,
    pub at: [i64; 3],
}

impl Weights {
    /// True for signed integers.
    pub fn is_signed(&self) -> bool {
        matches!(self.elements.2, Code::Signed)
    }
    /// Decomposes `(element - zero) * scale`.
    pub fn of(
        m: &mut Module,
        value: &Expr,
        (n, columns): (Sym, i64),
        (depth, elements): (Sym, i64),
    ) -> Option<Weights> {
        let Terms { element, zero, scale } = Terms::of(m, value);
        let (buf, at, values) = coded(m, element)?;
        let (ty, data) = (m.bufs[buf].ty, constant(m, buf)?);
        let code = Code::of(ty, &data, values)?;
        let d = m.syms.simplify(m.linear(buf, at));
        let (of_element, high_first) = match linear(d, n, depth) {
            Some(found) => (found, false),
            None if ty.bits() == 4 => (exchanged(m, d, n, depth)?, true),
            None => return None,
        };
        // Tables indexed by block: all with the same block length.
        let load = |e: &Expr| if let Expr::Load { buf, at } = e { Some((*buf, at.clone())) } else { None };
        let tables: Vec<(Buf, Vec<Dim>)> = [scale, zero].into_iter().flatten().filter_map(load).collect();
        let (block, at_block) = block_lengths(m, &tables, elements, ty).into_iter().find_map(|b| {
            let by_block = |t: &(Buf, Vec<Dim>)| by_block(m, (t.0, &t.1), (n, depth), (elements, b));
            Some((b, tables.iter().map(by_block).collect::<Option<Vec<ByBlock>>>()?))
        })?;
        let table = |m: &Module, e: &Expr| -> Option<Table> {
            let Expr::Load { buf, at } = e else { return None };
            let i = tables.iter().position(|t| t.0 == *buf && t.1 == *at)?;
            let blocks = (elements + block - 1) / block;
            Table::of(m, *buf, at_block.get(i)?, (n, columns), blocks)
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
        let from = m.storage(buf);
        Some(Weights {
            elements: (data, ty.bits(), code),
            from,
            at: of_element,
            high_first,
            zero,
            scale,
            block,
            reduction: elements,
        })
    }
}

/// Possible lengths of the blocks of a column of `elements` packed ones, the longest first.
fn block_lengths(m: &Module, tables: &[(Buf, Vec<Dim>)], elements: i64, ty: ElemType) -> Vec<i64> {
    let per_word = i64::from(32 / ty.bits());
    let extents = tables.iter().flat_map(|t| &m.bufs[t.0].dims).filter_map(|d| d.as_const());
    let of_tables = extents.filter(|d| *d > 0).map(|d| (elements + d - 1) / d);
    let mut lengths: Vec<i64> = of_tables.chain((2..20).map(|i| 1 << i)).collect();
    lengths.retain(|b| *b < elements && *b % per_word == 0);
    lengths.sort();
    lengths.push(elements);
    lengths.reverse();
    lengths
}

/// The packed element that an expression reads, and the constant table that it indexes, if it does.
fn coded<'e>(m: &Module, e: &'e Expr) -> Option<(Buf, &'e [Dim], Option<Buf>)> {
    let (sym, mut code, extent, body) = match e {
        Expr::Load { buf, at } => return Some((*buf, at, None)),
        Expr::With { sym, value, extent, body } => (*sym, &**value, extent.as_const()?, &**body),
        _ => return None,
    };
    while let Expr::Cast(ElemType::I64 | ElemType::I32, x) = code {
        code = x;
    }
    let (Expr::Load { buf, at }, Expr::Load { buf: values, at: place }) = (code, body) else { return None };
    let all = m.bufs[*buf].ty.bits() <= 4 && extent == 1 << m.bufs[*buf].ty.bits();
    let plain = m.bufs[*values].ty == ElemType::F32 && m.linear(*values, place) == Dim::sym(sym);
    let fits = constant(m, *values)?.count() == extent as u64;
    (all && plain && fits).then_some((*buf, at, Some(*values)))
}

/// True if no code of `data` is infinite or NaN.
fn finite(data: &ConstData, f: SmallFloat) -> bool {
    let special = |b: u8| if f.uz { b == f.nan } else { b & 0x7f >= f.over };
    !f.has_specials() || !data.bytes().iter().any(|b| special(*b))
}

/// Strips conversions that preserve small integers.
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

/// The constant with at least a byte per element, as [`Table`] requires it; powers of two as their codes.
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

/// `linear` of a position whose lowest bit is inverted.
fn exchanged(m: &Module, d: Dim, n: Sym, depth: Sym) -> Option<[i64; 3]> {
    let at = |column: i64, element: i64| {
        let of = |s: Sym| [(n, column), (depth, element)].into_iter().find(|x| x.0 == s).map(|x| x.1);
        Some(d.eval(&of)? ^ 1)
    };
    let offset = at(0, 0)?;
    let [column, step] = [at(1, 0)? - offset, at(0, 1)? - offset];
    let i = Dim::constant(offset) + Dim::sym(n) * column + Dim::sym(depth) * step;
    let turned = i.floor_div(2) * 2 + 1 - i.modulo(2);
    let same = m.syms.simplify(turned - d).as_const() == Some(0);
    (same && [offset, column, step].iter().all(|v| *v >= 0)).then_some([offset, column, step])
}

/// Position of an element as offset + a * column + b * reduction.
fn linear(d: Dim, n: Sym, depth: Sym) -> Option<[i64; 3]> {
    let (column, rest) = d.linear_in(n)?;
    let (step, offset) = rest.linear_in(depth)?;
    let found = [offset.as_const()?, column.as_const()?, step.as_const()?];
    found.iter().all(|v| *v >= 0).then_some(found)
}

/// The position of a value that is constant per block, in terms of the column and the block.
struct ByBlock {
    position: Dim,
    block: Sym,
}

/// That position, provided that all elements of a block have the same.
fn by_block(
    m: &mut Module,
    (buf, at): (Buf, &[Dim]),
    (n, depth): (Sym, Sym),
    (elements, block): (i64, i64),
) -> Option<ByBlock> {
    let d = m.syms.simplify(m.linear(buf, at));
    let zero = Dim::constant(0);
    let b = m.syms.loop_var("b", zero, Dim::constant((elements + block - 1) / block));
    let i = m.syms.loop_var("i", zero, Dim::constant(block));
    let within = Dim::sym(b) * block + i;
    let position = m.syms.simplify(
        d.subst(&mut |s| (s == depth).then_some(if block == elements { Dim::sym(i) } else { within })),
    );
    let known = |s: Sym| (s == n || s == b).then_some(0);
    (!position.contains(i) && position.eval(&known).is_some()).then_some(ByBlock { position, block: b })
}

impl Table {
    /// The values of a constant at such positions. Positions that are not linear are evaluated here.
    fn of(m: &Module, buf: Buf, at: &ByBlock, (n, columns): (Sym, i64), blocks: i64) -> Option<Table> {
        let data = whole_bytes(m, buf)?;
        if let Some(at) = linear(at.position, n, at.block) {
            return Some(Table { data, from: Some(m.storage(buf)), at });
        }
        let bytes = data.bytes();
        let size = data.elem().bytes()? as usize;
        let mut out = Vec::with_capacity((columns * blocks) as usize * size);
        for (column, block) in (0..columns).flat_map(|c| (0..blocks).map(move |b| (c, b))) {
            let of = |s: Sym| [(n, column), (at.block, block)].into_iter().find(|x| x.0 == s).map(|x| x.1);
            let first = usize::try_from(at.position.eval(&of)?).ok()?.checked_mul(size)?;
            out.extend_from_slice(bytes.get(first..first + size)?);
        }
        let data = Arc::new(ConstData::new(data.elem(), vec![columns * blocks], out)?);
        Some(Table { data, from: None, at: [0, blocks, 1] })
    }
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
