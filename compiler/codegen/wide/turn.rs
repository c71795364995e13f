//! Columns of a matrix as vectors: where lanes step over elements while an unrolled loop around them takes neighbours,
//! the rows are loaded as vectors and turned in registers, lane against row.

use super::ir::{Bin, Form, Pred, Un, Value};
use super::tile::{Fit, Translate};
use crate::nest::{Buf, Expr, LoopKind, Stmt};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

impl Translate<'_> {
    /// Loads what the body of an unrolled loop with as many iterations as lanes, `for var in lo..`, reads in columns;
    /// `load_form` finds it in `turned`.
    pub(super) fn turn_columns(&mut self, var: Sym, lo: Dim, body: &[Stmt]) -> Fit<()> {
        let lanes = self.b.width().lanes();
        let [Stmt::For { kind: LoopKind::Vec(n), var: lane, lo: start, hi, body }] = body else { return Ok(()) };
        if *n != lanes || start.as_const() != Some(0) || hi.as_const() != Some(i64::from(lanes)) {
            return Ok(());
        }
        let [Stmt::Store { value, .. }] = body.as_slice() else { return Ok(()) };
        let mut loads: Vec<(Buf, &[Dim])> = vec![];
        value.walk(&mut |e| {
            if let Expr::Load { buf, at } = e {
                loads.push((*buf, at));
            }
        });
        for (buf, at) in loads {
            let step = |t: &Self, s: Sym| t.substituted(t.m.linear(buf, at)).linear_in(s).and_then(|x| x.0.as_const());
            let along = step(self, *lane);
            if matches!(along, None | Some(0 | 1)) || step(self, var) != Some(1) || self.m.bufs[buf].ty != ElemType::F32 {
                continue;
            }
            // Element [lo, 0] is in range, and its neighbours along both loops are.
            let mut rows: Vec<Value> = vec![];
            for r in 0..lanes {
                let mut a = self.with(*lane, Dim::from(r), |t| t.with(var, lo, |t| t.access(buf, at)))?;
                a.lane = 1;
                rows.push(self.load_form(&a, Form::Whole)?);
            }
            self.turn(&mut rows);
            for (i, v) in rows.into_iter().enumerate() {
                let at0 = self.with(*lane, Dim::constant(0), |t| t.with(var, lo + i as i64, |t| t.access(buf, at)))?;
                let key = self.column_key(&at0, along.unwrap_or(0))?;
                self.turned.insert(key, v);
            }
        }
        Ok(())
    }
    /// Lane i of vector k becomes lane k of vector i: pairs of blocks change places, of half the size each time.
    fn turn(&mut self, v: &mut [Value]) {
        let lanes = v.len();
        let iota = self.b.iota();
        let mut k = lanes / 2;
        while k > 0 {
            let (bit, zero) = (self.b.bits(k as u32), self.b.bits(0));
            let bit = self.b.bin(Bin::And, iota, bit);
            let upper = self.b.icmp(Pred::Ne, bit, zero);
            for i in (0..lanes).filter(|i| i & k == 0) {
                let (a, b) = (v[i], v[i | k]);
                let (sa, sb) = (self.b.un(Un::Swap(k as u8), a), self.b.un(Un::Swap(k as u8), b));
                v[i] = self.b.select(upper, sb, a);
                v[i | k] = self.b.select(upper, b, sa);
            }
            k /= 2;
        }
    }
}
