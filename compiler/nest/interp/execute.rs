//! Running compiled statements and expressions.

use super::code::{Cell, Ix, LaneIx, Node, Op};
use super::scalar::{bin_f32, f32_of};
use super::*;

impl State<'_> {
    #[inline]
    pub(super) fn index(&self, x: &Ix) -> Res<i64> {
        match x.eval(&self.vars) {
            Some(v) => Ok(v),
            None => msg("an index expression overflows or divides by zero"),
        }
    }
    #[inline]
    pub(super) fn cell(&self, c: &Cell) -> Res<usize> {
        match c {
            Cell::Fixed(i) => Ok(*i),
            Cell::Lane(i, slot) => Ok(i + self.lanes[*slot] as usize),
            Cell::At(c) => {
                let mut flat = 0;
                for (n, x) in &c.at {
                    let i = self.index(x)?;
                    if !(0..i64::from(*n)).contains(&i) {
                        return msg(format!("accumulator subscript {i} of {n}"));
                    }
                    flat = flat * *n as usize + i as usize;
                }
                let lane = match &c.lane {
                    LaneIx::Slot(s) => i64::from(self.lanes[*s]),
                    LaneIx::At(x) => self.index(x)?,
                };
                if !(0..c.lanes as i64).contains(&lane) {
                    return msg(format!("lane {lane} of {}", c.lanes));
                }
                Ok(c.base + flat * c.lanes + lane as usize)
            }
        }
    }
    pub(super) fn block(&mut self, ops: &[Op], kernels: &[Option<Vec<Op>>]) -> Res<()> {
        for op in ops {
            match op {
                Op::For { var, lo, hi, lane, body } => {
                    let (lo, hi) = (self.index(lo)?, self.index(hi)?);
                    for i in lo..hi {
                        self.vars[*var] = i;
                        if let Some((slot, n)) = lane {
                            self.lanes[*slot] = (i.wrapping_sub(lo) as u64 % u64::from(*n)) as u32;
                        }
                        self.block(body, kernels)?;
                    }
                }
                Op::Let(r, e) => self.regs[*r] = self.eval(e)?,
                Op::LetLane(base, slot, e) => {
                    let v = self.eval(e)?;
                    self.cells[base + self.lanes[*slot] as usize] = v;
                }
                Op::Acc { base, count, lane, init } => {
                    let v = self.eval(init)?;
                    let cells = &mut self.cells[*base..base + count];
                    match lane {
                        Some((slot, n)) => {
                            cells.iter_mut().skip(self.lanes[*slot] as usize).step_by(*n).for_each(|c| *c = v)
                        }
                        None => cells.fill(v),
                    }
                }
                Op::Set { cell, value, sweep: None } => {
                    let v = self.eval(value)?;
                    let i = self.cell(cell)?;
                    self.cells[i] = v;
                }
                Op::Set { cell, value, sweep: Some((slot, n)) } => {
                    for l in 0..*n {
                        self.lanes[*slot] = l;
                        let v = self.eval(value)?;
                        let i = self.cell(cell)?;
                        self.cells[i] = v;
                    }
                }
                Op::Store(a, e) => {
                    let v = self.eval(e)?;
                    self.store(a, v)?;
                }
                Op::StorePair(a, e) => {
                    let v = self.eval(e)?;
                    self.store_pair(a, v)?;
                }
                Op::StoreText(a, e) => {
                    let v = self.eval(e)?;
                    self.store_text(a, v)?;
                }
                Op::If(c, then, els) => {
                    let c = self.eval(c)?;
                    self.block(if c != 0 { then } else { els }, kernels)?;
                }
                Op::While(c, body) => {
                    while self.eval(c)? != 0 {
                        self.block(body, kernels)?;
                    }
                }
                Op::With(s, v, extent, body) => {
                    let v = self.eval(v)? as i64;
                    if v < 0 || v >= self.index(extent)? {
                        return leave(Status::Index);
                    }
                    let outer = std::mem::replace(&mut self.vars[*s], v);
                    self.block(body, kernels)?;
                    self.vars[*s] = outer;
                }
                Op::Define { sym, value, lo, hi, stale } => {
                    let v = self.eval(value)? as i64;
                    let hi = hi.as_ref().map(|x| self.index(x)).transpose()?;
                    if v < self.index(lo)? || hi.is_some_and(|h| v > h) {
                        return leave(Status::Dim);
                    }
                    (self.vars[*sym], self.set[*sym]) = (v, true);
                    stale.iter().for_each(|b| self.shapes[*b] = None);
                }
                Op::Nothing => {}
                Op::Check(c, status) => {
                    if self.eval(c)? == 0 {
                        return leave(*status);
                    }
                }
                Op::Foreign(f) => self.foreign(f)?,
                Op::Call(k) => {
                    let Some(body) = &kernels[*k] else { return msg("a kernel without code") };
                    self.block(body, kernels)
                        .map_err(|e| in_kernel(&self.m.kernels[Kernel::from_u32(*k as u32)].name, e))?;
                }
            }
        }
        Ok(())
    }
    pub(super) fn eval(&mut self, e: &Node) -> Res<u64> {
        Ok(match e {
            Node::Const(c) => *c,
            Node::Reg(r) => self.regs[*r],
            Node::Acc(c) => self.cells[self.cell(c)?],
            Node::Load(a) => return self.load(a),
            Node::LoadPair(a) => return self.load_pair(a),
            Node::LoadText(a) => return self.load_text(a),
            Node::Text(op, v) => return self.text_op(*op, v),
            Node::CompareText(op, p) => {
                let (a, b) = (self.eval(&p.0)?, self.eval(&p.1)?);
                u64::from(self.compare_texts(*op, a, b)?)
            }
            Node::Bin32(op, p) => {
                let (a, b) = (f32_of(self.eval(&p.0)?), f32_of(self.eval(&p.1)?));
                match bin_f32(*op, a, b) {
                    Some(v) => u64::from(v.to_bits()),
                    None => return msg(format!("{op:?} of floats")),
                }
            }
            Node::Fma(single, p) => {
                let (a, b, c) = (self.eval(&p.0)?, self.eval(&p.1)?, self.eval(&p.2)?);
                if *single {
                    u64::from(f32_of(a).mul_add(f32_of(b), f32_of(c)).to_bits())
                } else {
                    f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits()
                }
            }
            Node::Dot(g, p) => {
                let (a, b, c) = (self.eval(&p.0)?, self.eval(&p.1)?, self.eval(&p.2)?);
                dot(*g, a, b, c as u32).into()
            }
            Node::Index(x) => self.index(x)? as u64,
            Node::Compare32(op, p) => {
                let (a, b) = (f32_of(self.eval(&p.0)?), f32_of(self.eval(&p.1)?));
                u64::from(op.holds(a, b))
            }
            Node::Un(op, ty, a) => {
                let bits = self.eval(a)?;
                eval_unop(*op, Scalar { ty: *ty, bits }).bits
            }
            Node::Bin(op, ty, p) => {
                let (a, b) = (self.eval(&p.0)?, self.eval(&p.1)?);
                self.binary(*op, *ty, a, b)?
            }
            Node::Select(p) => {
                let c = self.eval(&p.0)?;
                return self.eval(if c != 0 { &p.1 } else { &p.2 });
            }
            Node::Cast(from, to, a) => {
                let bits = self.eval(a)?;
                eval_cast(*to, Scalar { ty: *from, bits }).bits
            }
            Node::Let(r, p) => {
                let v = self.eval(&p.0)?;
                let outer = std::mem::replace(&mut self.regs[*r], v);
                let v = self.eval(&p.1)?;
                self.regs[*r] = outer;
                v
            }
            Node::With(s, extent, p) => {
                let v = self.eval(&p.0)? as i64;
                if v < 0 || v >= self.index(extent)? {
                    return leave(Status::Index);
                }
                let outer = std::mem::replace(&mut self.vars[*s], v);
                let v = self.eval(&p.1)?;
                self.vars[*s] = outer;
                v
            }
            Node::Horizontal { op, ty, cell, lanes } => {
                let i = self.cell(cell)?;
                let mut v = self.cells[i..i + lanes].to_vec();
                // Halves onto each other while there are two.
                while v.len() > 1 {
                    let keep = if v.len().is_multiple_of(2) { v.len() / 2 } else { 1 };
                    for (k, x) in v.split_off(keep).into_iter().enumerate() {
                        v[k % keep] = self.binary(*op, *ty, v[k % keep], x)?;
                    }
                }
                v.first().copied().unwrap_or(0)
            }
        })
    }
    fn binary(&self, op: BinOp, ty: ElemType, a: u64, b: u64) -> Res<u64> {
        match eval_binop(op, Scalar { ty, bits: a }, Scalar { ty, bits: b }) {
            Some(v) => Ok(v.bits),
            None if matches!(op, BinOp::Div | BinOp::Rem | BinOp::Mod) && b == 0 => leave(Status::Value),
            None => msg(format!("{op:?} of {}", ty.short())),
        }
    }
}

/// The bits of a dot product and a sum.
fn dot(g: DotKind, a: u64, b: u64, c: u32) -> u32 {
    // Of two shorter ones, the lower one first.
    let halves = match g {
        DotKind::LongHalves => Some(DotKind::Halves),
        DotKind::LongNarrowBytes => Some(DotKind::NarrowBytes),
        _ => None,
    };
    if let Some(half) = halves {
        let sum = dot(half, a & u64::from(u32::MAX), b & u64::from(u32::MAX), c);
        return dot(half, a >> 32, b >> 32, sum);
    }
    if let Some((first, second)) = g.signs() {
        let byte = |x: u8, signed: bool| if signed { i32::from(x as i8) } else { i32::from(x) };
        let parts = a.to_le_bytes().into_iter().zip(b.to_le_bytes()).take(g.size() as usize);
        let mut products = parts.map(|(x, y)| byte(x, first) * byte(y, second));
        if g == DotKind::NarrowBytes {
            let [p, q, r, s] = std::array::from_fn(|_| products.next().unwrap_or(0));
            return [p + r, q + s].iter().fold(c as i32, |c, x| c.wrapping_add(i32::from(*x as i16))) as u32;
        }
        return products.fold(c as i32, i32::wrapping_add) as u32;
    }
    if g == DotKind::WordsByBytes {
        let word = |i: u32| i32::from((a >> (16 * i)) as i16);
        let byte = |i: u32| i32::from((b >> (8 * i)) as i8);
        let products = [(0, 0), (1, 2), (2, 1), (3, 3)].map(|(w, b)| word(w) * byte(b));
        return products.into_iter().fold(c as i32, i32::wrapping_add) as u32;
    }
    let (a, b) = (a as u32, b as u32);
    match g {
        DotKind::PairedBytes => {
            let (a, b) = (a.to_le_bytes().map(i32::from), b.to_le_bytes().map(|x| i32::from(x as i8)));
            let pair = |i: usize| (a[i] * b[i] + a[i + 1] * b[i + 1]).clamp(i16::MIN.into(), i16::MAX.into());
            let half = |i: usize, c: u32| u32::from((c as u16).wrapping_add(pair(i) as u16));
            half(0, c) | half(2, c >> 16) << 16
        }
        DotKind::Words => {
            let part = |x: u32, upper: bool| i32::from((if upper { x >> 16 } else { x }) as i16);
            let products = [false, true].map(|u| part(a, u) * part(b, u));
            products.into_iter().fold(c as i32, i32::wrapping_add) as u32
        }
        _ => {
            let half = |x: u32, upper: bool| f32::from_bits(if upper { x & 0xffff_0000 } else { x << 16 });
            let sum = half(a, true).mul_add(half(b, true), f32::from_bits(c));
            half(a, false).mul_add(half(b, false), sum).to_bits()
        }
    }
}
