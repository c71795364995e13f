//! Columns of a matrix as vectors: if lanes are strided while an unrolled loop around them is contiguous,
//! rows are loaded as vectors and transposed in registers.

use super::expr::{NO_TYPE, form, is_long};
use super::{Fit, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Bits, Form, Op, Pred, Value, Width};
use crate::nest::{Buf, LoopKind, Stmt, visit};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Minimum iterations and elements; fewer are loaded one by one.
pub(super) const LEAST: i64 = 4;

impl Translate<'_> {
    /// Loads and transposes the columns that the body of an unrolled loop of `count` iterations, `for var in
    /// lo..`, reads; iteration `turning` finds them in `transposed`. Loops may have fewer iterations than
    /// vectors have lanes, and vectors fewer elements.
    pub(super) fn transpose_columns(&mut self, (var, lo, count): (Sym, Dim, i64), body: &[Stmt]) -> Fit<()> {
        let lanes = self.b.lanes();
        let [Stmt::For { kind: LoopKind::Vec(n), var: lane, lo: start, hi, body }] = body else {
            return Ok(());
        };
        let square = LEAST.min(i64::from(lanes))..=i64::from(lanes);
        let Some(used) = hi.as_const().filter(|n| square.contains(n)) else { return Ok(()) };
        if *n != lanes || start.as_const() != Some(0) || !square.contains(&count) {
            return Ok(());
        }
        let straight = |s: &Stmt| matches!(s, Stmt::Store { .. } | Stmt::Set { .. } | Stmt::Let { .. });
        if !body.iter().all(straight) {
            return Ok(());
        }
        let mut loads: Vec<(Buf, &[Dim])> = vec![];
        visit::each_load(body, &mut |buf, at| loads.push((buf, at)));
        // Several statements may read what one of them stored.
        let stored = if body.len() > 1 { visit::stores(body) } else { vec![] };
        let m = self.m;
        loads.retain(|(buf, _)| !stored.iter().any(|s| m.overlaps(m.storage(*s), m.storage(*buf))));
        // Integers and f32, whose registers have the memory format, and f16, which loads extend.
        let long = self.b.is_long();
        let turns = |t: ElemType| {
            (t.compute() == t || t == ElemType::F16)
                && form(t).is_some()
                && t != ElemType::Bool
                && is_long(t) == long
        };
        let mut done: Vec<(Buf, &[Dim], Vec<Value>)> = vec![];
        for (buf, at) in loads {
            let step = |t: &Self, s: Sym| t.substituted(t.linear(buf, at)).linear_in(s).map(|x| x.0);
            let (Some(across), Some(along)) = (step(self, *lane), step(self, var)) else { continue };
            if matches!(across.as_const(), Some(0 | 1))
                || along.as_const() != Some(1)
                || !turns(self.m.bufs[buf].ty)
                || !self.loads_part(buf, count)
                || self.is_inner(across)
            {
                continue;
            }
            let rows = match done.iter().find(|d| d.0 == buf && d.1 == at) {
                Some(d) => d.2.clone(),
                None => {
                    let mut rows = self.rows(buf, at, (var, lo, count), (*lane, used), across)?;
                    self.transpose(&mut rows, count as usize);
                    done.push((buf, at, rows.clone()));
                    rows
                }
            };
            self.transposed.insert((buf, at.as_ptr() as usize), rows);
        }
        Ok(())
    }
    /// True if vectors of `count` elements of a buffer can be loaded.
    fn loads_part(&self, buf: Buf, count: i64) -> bool {
        let whole = count == i64::from(self.b.lanes());
        whole || self.b.width() == Width::Avx512 || form(self.m.bufs[buf].ty) == Some(Form::B32)
    }
    /// A vector of `count` elements along the unrolled loop for each active lane. Element [lo, 0] and its
    /// neighbours along both loops are in range.
    fn rows(
        &mut self,
        buf: Buf,
        at: &[Dim],
        (var, lo, count): (Sym, Dim, i64),
        (lane, used): (Sym, i64),
        across: Dim,
    ) -> Fit<Vec<Value>> {
        let lanes = i64::from(self.b.lanes());
        let form = form(self.m.bufs[buf].ty).ok_or(NO_TYPE)?;
        let first = |t: &mut Self, r: Dim| {
            let mut a = t.with(lane, r, |t| t.with(var, lo, |t| t.access(buf, at)))?;
            (a.lane, a.step) = (Some(1), Dim::constant(1));
            Ok(a)
        };
        let mask = (count < lanes).then(|| self.b.first_lanes(Count::Fixed(count)));
        let mut rows: Vec<Value> = if across.as_const().is_some() {
            self.mask = mask;
            let rows = (0..used)
                .map(|r| first(self, Dim::from(r)).and_then(|a| self.load_form(&a, form)))
                .collect::<Fit<_>>();
            self.mask = None;
            rows?
        } else {
            // Rows at a run-time distance.
            let a = first(self, Dim::constant(0))?;
            let Count::Run(step) = self.count(across * i64::from(form.bytes()))? else {
                return Err("a distance that is no register");
            };
            let mut mem = self.mem(&a)?;
            let mut rows = vec![];
            for r in 0..used {
                if r > 0 {
                    mem.base = self.b.add(mem.base, step);
                }
                rows.push(self.b.load(form, mem, mask));
            }
            rows
        };
        if rows.len() < lanes as usize {
            rows.resize(lanes as usize, self.zeros());
        }
        Ok(rows)
    }
    /// The value of a load that a loop has transposed.
    pub(super) fn transposed(&self, buf: Buf, at: &[Dim]) -> Option<Value> {
        self.transposed.get(&(buf, at.as_ptr() as usize))?.get(self.turning).copied()
    }
    /// Transposes: lane i of vector k becomes lane k of vector i, for the first `count` lanes.
    pub(super) fn transpose(&mut self, v: &mut [Value], count: usize) {
        let bits = self.b.index_bits();
        if self.b.has(Op::Zip { bits, upper: false }) {
            self.interleave(v, count, bits);
        } else {
            self.exchange(v, bits);
        }
    }
    /// Transposes by instructions that read two vectors: first squares of 128 bits by interleaving lanes,
    /// then these squares as blocks. Rows that leave half of their blocks empty share a vector.
    fn interleave(&mut self, v: &mut [Value], count: usize, bits: Bits) {
        let side = if bits == Bits::B64 { 2 } else { 4 };
        let mut rows = self.joined_rows(v, side, count.div_ceil(side));
        for square in rows.chunks_mut(side) {
            if let [p, q, r, s] = *square {
                let ([p, q], [r, s]) = (self.zip(Bits::B32, p, q), self.zip(Bits::B32, r, s));
                square.copy_from_slice(&[p, r, q, s]);
            }
            for pair in square.chunks_mut(2) {
                pair.copy_from_slice(&self.zip(Bits::B64, pair[0], pair[1]));
            }
        }
        for i in 0..side {
            let column = rows.iter().copied().skip(i).step_by(side).collect();
            let blocks = self.transpose_blocks(column, count.saturating_sub(i).div_ceil(side));
            blocks.into_iter().enumerate().for_each(|(k, x)| v[k * side + i] = x);
        }
    }
    /// As many rows in each vector as have space, if each row uses its first `used` blocks of 128 bits only:
    /// rows k, k + `side` and so on in vector k of every `side` vectors.
    fn joined_rows(&mut self, v: &[Value], side: usize, used: usize) -> Vec<Value> {
        let pairs = v.chunks(2 * side).flat_map(|rows| (0..side).map(|k| (rows[k], rows[k + side])));
        match (used, v.len() / side) {
            (1, 2 | 4) => {
                // The two rows are in the blocks with even indices, which the next step reads.
                let op = Op::UnzipBlocks { odd: false };
                let joined: Vec<_> = pairs.map(|(x, y)| self.shuffle(op, x, y)).collect();
                self.joined_rows(&joined, side, used)
            }
            (2, 4) => {
                let halves = std::array::from_fn(|i| (i % 8 + i / 8 * 16) as u8);
                let (halves, zeros) = (self.b.lane_numbers(halves), self.zeros());
                let join =
                    |(x, y)| if (x, y) == (zeros, zeros) { x } else { self.b.permuted(halves, x, Some(y)) };
                pairs.map(join).collect()
            }
            _ => v.to_vec(),
        }
    }
    fn zip(&mut self, bits: Bits, x: Value, y: Value) -> [Value; 2] {
        [false, true].map(|upper| self.shuffle(Op::Zip { bits, upper }, x, y))
    }
    /// The first `count` results of transposing as many vectors as they have blocks of 128 bits.
    fn transpose_blocks(&mut self, v: Vec<Value>, count: usize) -> Vec<Value> {
        if v.len() < 2 || count == 0 {
            return v.into_iter().take(count).collect();
        }
        let [even, odd] = [(false, count.div_ceil(2)), (true, count / 2)].map(|(odd, count)| {
            let op = Op::UnzipBlocks { odd };
            let half =
                if count > 0 { v.chunks(2).map(|p| self.shuffle(op, p[0], p[1])).collect() } else { vec![] };
            self.transpose_blocks(half, count)
        });
        let mut odd = odd.into_iter();
        even.into_iter().flat_map(|x| [Some(x), odd.next()]).flatten().collect()
    }
    /// Lanes of two vectors in another order; of vectors of zeros, zeros.
    fn shuffle(&mut self, op: Op, x: Value, y: Value) -> Value {
        if x == y && x == self.zeros() {
            return x;
        }
        self.b.shuffle(op, x, y)
    }
    pub(super) fn zeros(&mut self) -> Value {
        if self.b.is_long() { self.b.bits64(0) } else { self.b.bits(0) }
    }
    /// Transposes by exchanging blocks pairwise, with half the size in each step.
    fn exchange(&mut self, v: &mut [Value], bits: Bits) {
        let lanes = v.len();
        let iota = self.b.iota();
        let mut k = lanes / 2;
        while k > 0 {
            let bit = if bits == Bits::B64 { self.b.bits64(k as u64) } else { self.b.bits(k as u32) };
            let (bit, zero) = (self.b.bin_of(Bin::And, iota, bit, bits), self.zeros());
            let upper = self.b.icmp(Pred::Ne, bit, zero, bits);
            for i in (0..lanes).filter(|i| i & k == 0) {
                let (a, b) = (v[i], v[i | k]);
                let [sa, sb] = [a, b].map(|v| self.b.swap_lanes(k as u8, v, bits));
                v[i] = self.b.select(upper, sb, a, bits);
                v[i | k] = self.b.select(upper, b, sa, bits);
            }
            k /= 2;
        }
    }
}
