//! `g_idx` of MatMulNBits, where it is constant: the rows of the weights in an order in which those of a
//! group follow each other, in blocks of one size. GPTQ's act_order gives every block as many rows as it has;
//! where groups are uneven, blocks are smaller and the last one of a group is filled up with rows that the
//! input is 0 for.

use crate::nest::{BinOp, Buf, Expr, Place};
use crate::ops::LowerCx;
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// Rows of the smallest block.
const LEAST: i64 = 8;
/// Bytes of a scale in the object.
const SCALE: i64 = 4;

/// An order of the rows, and the blocks in it.
pub(super) struct Groups {
    /// Numbers of rows; `None` fills a block up.
    rows: Vec<Option<i64>>,
    /// Rows of a block.
    pub block: i64,
    /// The group of each block.
    of: Vec<i64>,
}

impl Groups {
    /// The order for constant groups, `count` of `block` rows each at most; the blocks are those for which
    /// weights and scales take the fewest bytes.
    pub fn of(cx: &LowerCx, groups: Buf, (count, block): (i64, i64), bits: i64) -> Option<Groups> {
        let groups = constant(cx, groups)?.to_i64s()?;
        let mut members = vec![vec![]; usize::try_from(count).ok()?];
        for (row, g) in groups.iter().enumerate() {
            members.get_mut(usize::try_from(*g).ok()?)?.push(row as i64);
        }
        let blocks = |size: i64| members.iter().map(move |m| (m.len() as i64 + size - 1) / size);
        let bytes = |size: &i64| blocks(*size).sum::<i64>() * (size * bits / 8 + SCALE);
        let least = LEAST.max(32 / bits);
        let sizes = std::iter::successors(Some(block), |b| Some(b / 2)).take_while(|b| *b >= least);
        let block = sizes.min_by_key(bytes).unwrap_or(block);
        let (mut rows, mut of) = (vec![], vec![]);
        for (g, (own, blocks)) in members.iter().zip(blocks(block)).enumerate() {
            of.extend((0..blocks).map(|_| g as i64));
            rows.extend(own.iter().copied().map(Some));
            rows.resize(of.len() * block as usize, None);
        }
        while let Some(None) = rows.last() {
            rows.pop();
        }
        Some(Groups { rows, block, of })
    }
    /// Rows, those that fill blocks up among them.
    pub fn depth(&self) -> i64 {
        self.rows.len() as i64
    }
    /// True if the rows and their blocks are in this order as they are.
    pub fn is_plain(&self) -> bool {
        let in_order = |i: usize, at: i64| at == i as i64;
        self.rows.iter().enumerate().all(|(i, r)| r.is_some_and(|r| in_order(i, r)))
            && self.of.iter().enumerate().all(|(i, g)| in_order(i, *g))
    }
    /// Constant elements of `bits` bits, each column in `row` bytes, in this order.
    pub fn weights(&self, cx: &mut LowerCx, b: Buf, (bits, row): (i64, i64)) -> Option<Buf> {
        let places: Vec<Option<i64>> = self.rows.clone();
        let padded = self.of.len() as i64 * self.block;
        self.fields(cx, b, (bits, row), (&places, padded * bits / 8))
    }
    /// The same of what is packed with an element for each group: one for each block.
    pub fn codes(&self, cx: &mut LowerCx, b: Buf, (bits, row): (i64, i64)) -> Option<Buf> {
        let places: Vec<Option<i64>> = self.of.iter().copied().map(Some).collect();
        self.fields(cx, b, (bits, row), (&places, (places.len() as i64 * bits + 7) / 8))
    }
    fn fields(
        &self,
        cx: &mut LowerCx,
        b: Buf,
        (bits, row): (i64, i64),
        (places, bytes): (&[Option<i64>], i64),
    ) -> Option<Buf> {
        let from = constant(cx, b)?.bytes();
        let (per, bits) = ((8 / bits) as usize, bits as usize);
        let mask = ((1u16 << bits) - 1) as u8;
        let mut all = Vec::with_capacity(from.len());
        for from in from.chunks_exact(usize::try_from(row).ok()?) {
            let mut to = vec![0u8; usize::try_from(bytes).ok()?];
            for (i, r) in places.iter().enumerate().filter_map(|(i, r)| Some((i, (*r)? as usize))) {
                let field = from.get(r / per)? >> (r % per * bits) & mask;
                *to.get_mut(i / per)? |= field << (i % per * bits);
            }
            all.extend_from_slice(&to);
        }
        added(cx, b, ElemType::U8, vec![all.len() as i64 / bytes.max(1), bytes], all)
    }
    /// A constant with an element for each of `count` groups in each column: one for each block.
    pub fn table(&self, cx: &mut LowerCx, b: Buf, count: i64) -> Option<Buf> {
        let data = constant(cx, b)?;
        let (from, size) = (data.bytes(), data.elem().bytes()? as usize);
        let mut all = Vec::with_capacity(from.len());
        for from in from.chunks_exact(usize::try_from(count).ok()? * size) {
            for g in &self.of {
                let first = *g as usize * size;
                all.extend_from_slice(from.get(first..first + size)?);
            }
        }
        let blocks = self.of.len() as i64;
        let columns = all.len() as i64 / (blocks * size as i64).max(1);
        added(cx, b, data.elem(), vec![columns, blocks], all)
    }
    /// `a` with the elements of its last dimension in this order, and 0 where there is none.
    pub fn ordered(&self, cx: &mut LowerCx, a: Buf) -> Option<Buf> {
        let bytes: Vec<u8> = self.rows.iter().flat_map(|r| r.unwrap_or(-1).to_le_bytes()).collect();
        let places = ConstData::new(ElemType::I64, vec![self.depth()], bytes)?;
        let places = cx.m.constant("order", Arc::new(places));
        let (mut dims, elem, name) = (cx.dims(a), cx.elem(a), format!("{}.ordered", cx.m.bufs[a].name));
        let last = dims.last_mut()?;
        let depth = std::mem::replace(last, Dim::constant(self.depth()));
        let (out, filled) = (cx.temp(&name, elem, dims), self.rows.contains(&None));
        cx.map(out, |k, at| {
            let Some((last, row)) = at.split_last() else { return k.load(a, at) };
            let place = k.load(places, &[*last]);
            let v = k.with_index(place.clone(), depth, |k, r| {
                let at: Vec<Dim> = row.iter().copied().chain([r]).collect();
                k.load(a, &at)
            });
            if !filled {
                return v;
            }
            let none = Expr::bin(BinOp::Lt, place, Expr::int(ElemType::I64, 0));
            Expr::select(none, Expr::num(elem.compute(), 0.0), v)
        });
        Some(out)
    }
}

fn constant(cx: &LowerCx, b: Buf) -> Option<Arc<ConstData>> {
    match &cx.m.bufs[cx.m.storage(b)].place {
        Place::Const(c) => Some(c.clone()),
        _ => None,
    }
}

fn added(cx: &mut LowerCx, like: Buf, elem: ElemType, dims: Vec<i64>, data: Vec<u8>) -> Option<Buf> {
    let name = format!("{}.ordered", cx.m.bufs[like].name);
    Some(cx.m.constant(name, Arc::new(ConstData::new(elem, dims, data)?)))
}
