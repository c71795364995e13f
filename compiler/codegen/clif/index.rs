//! Dims and addresses -> integer arithmetic.
//!
//! Cranelift's optimiser is off for tiles, so there is no loop-invariant code motion. Before a loop is
//! entered, [`Emit::hoist`] emits the invariant part of the pointer of every access inside it. One addition
//! per loop level remains inside, and constants go into the displacement of the access.

use super::func::Emit;
use super::series::Element;
use crate::codegen::frame::base_of;
use crate::diag::Result;
use crate::nest::{Buf, LoopKind, Stmt};
use crate::sym::{Atom, Dim, Sym, SymTable, View};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, Value};

impl Emit<'_, '_> {
    /// Substitutes unrolled variables.
    pub fn substituted(&self, d: Dim) -> Dim {
        if self.unrolled.is_empty() || d.as_const().is_some() {
            return d;
        }
        d.subst(&mut |s| self.unrolled.get(&s).copied())
    }
    /// Element offset of an access in its storage.
    pub fn linear(&self, buf: Buf, at: &[Dim]) -> Dim {
        self.substituted(self.m.linear(buf, at))
    }
    /// Substitutes the vector loop's variable at the current lane (or the first one).
    pub fn at_lane(&self, d: Dim) -> Dim {
        match self.lanes {
            Some(l) if d.contains(l.sym) => {
                d.subst(&mut |s| (s == l.sym).then(|| l.base + i64::from(l.lane.unwrap_or(0))))
            }
            _ => d,
        }
    }
    /// The value of a dim.
    pub fn dim(&mut self, d: Dim) -> Result<Value> {
        let d = self.at_lane(self.substituted(d));
        self.emit_dim(d)
    }
    /// The value of a dim without symbols that are to be substituted.
    pub(super) fn emit_dim(&mut self, d: Dim) -> Result<Value> {
        if let Some(c) = d.as_const() {
            return Ok(self.b.ins().iconst(I64, c));
        }
        if let Some(v) = self.scopes.iter().rev().find_map(|s| s.dims.get(&d)) {
            return Ok(*v);
        }
        let View::Sum { terms, constant } = d.view() else { return self.bug("a size overflows") };
        let mut sum: Option<Value> = None;
        for (c, atoms) in terms {
            let mut p: Option<Value> = None;
            for a in atoms {
                let v = self.atom(a)?;
                p = Some(match p {
                    None => v,
                    Some(p) => self.b.ins().imul(p, v),
                });
            }
            let Some(p) = p else { continue };
            let t = self.times(p, *c);
            sum = Some(match sum {
                None => t,
                Some(s) => self.b.ins().iadd(s, t),
            });
        }
        let Some(mut v) = sum else { return self.bug("an empty sum") };
        if constant != 0 {
            v = self.b.ins().iadd_imm_s(v, constant);
        }
        self.remember(d, v);
        Ok(v)
    }
    fn remember(&mut self, d: Dim, v: Value) {
        if let Some(s) = self.scopes.last_mut() {
            s.dims.insert(d, v);
        }
    }
    /// The condition that no sum in this dim exceeds 2^62 in magnitude, so that 64-bit arithmetic yields its
    /// value. It is computed in f64 from the actual values, because a bound from the ranges of the symbols
    /// would reject legal sizes.
    pub fn fits(&mut self, d: Dim) -> Result<Value> {
        let mut peak = self.b.ins().f64const(0.0);
        self.estimate(d, &mut peak)?;
        let limit = self.b.ins().f64const((1i64 << 62) as f64);
        Ok(self.b.ins().fcmp(FloatCC::LessThan, peak, limit))
    }
    /// A dim in f64, up to rounding and 1 for each division. `peak` is raised to the sum of the magnitudes of
    /// the terms, here and in all nested dims.
    fn estimate(&mut self, d: Dim, peak: &mut Value) -> Result<Value> {
        let View::Sum { terms, constant } = d.view() else {
            let Some(c) = d.as_const() else { return self.bug("a size overflows") };
            return Ok(self.b.ins().f64const(c as f64));
        };
        let mut sum = self.b.ins().f64const(constant as f64);
        let mut magnitude = self.b.ins().f64const((constant as f64).abs());
        for (c, atoms) in terms {
            let mut p = self.b.ins().f64const(*c as f64);
            for a in atoms {
                let v = self.estimate_atom(a, peak)?;
                p = self.b.ins().fmul(p, v);
            }
            sum = self.b.ins().fadd(sum, p);
            let size = self.b.ins().fabs(p);
            magnitude = self.b.ins().fadd(magnitude, size);
        }
        *peak = self.b.ins().fmax(*peak, magnitude);
        Ok(sum)
    }
    fn estimate_atom(&mut self, a: &Atom, peak: &mut Value) -> Result<Value> {
        match a {
            Atom::Sym(_) => {
                let v = self.atom(a)?;
                Ok(self.b.ins().fcvt_from_sint(cranelift_codegen::ir::types::F64, v))
            }
            // Divisors are at least 1 here.
            Atom::FloorDiv(x, y) => {
                let (x, y) = (self.estimate(*x, peak)?, self.estimate(*y, peak)?);
                let one = self.b.ins().f64const(1.0);
                let y = self.b.ins().fmax(y, one);
                Ok(self.b.ins().fdiv(x, y))
            }
            Atom::Mod(x, y) => {
                self.estimate(*x, peak)?;
                self.estimate(*y, peak)
            }
            Atom::Min(v) | Atom::Max(v) => {
                let min = matches!(a, Atom::Min(_));
                let mut best = self.b.ins().f64const(if min { f64::INFINITY } else { f64::NEG_INFINITY });
                for d in v {
                    let x = self.estimate(*d, peak)?;
                    best = if min { self.b.ins().fmin(best, x) } else { self.b.ins().fmax(best, x) };
                }
                Ok(best)
            }
        }
    }
    /// v * c.
    pub fn times(&mut self, v: Value, c: i64) -> Value {
        match c {
            1 => v,
            -1 => self.b.ins().ineg(v),
            c if c > 0 && c & (c - 1) == 0 => self.b.ins().ishl_imm_u(v, i64::from(c.trailing_zeros())),
            c => self.b.ins().imul_imm_s(v, c),
        }
    }
    fn atom(&mut self, a: &Atom) -> Result<Value> {
        match a {
            Atom::Sym(s) => match self.vars.get(s) {
                Some(v) => Ok(*v),
                None => self.bug(format!("symbol {} has no value here", self.m.syms.unique_name(*s))),
            },
            Atom::FloorDiv(x, y) => self.divide(*x, *y, true),
            Atom::Mod(x, y) => self.divide(*x, *y, false),
            Atom::Min(v) | Atom::Max(v) => {
                let min = matches!(a, Atom::Min(_));
                let mut best: Option<Value> = None;
                for d in v {
                    let x = self.emit_dim(*d)?;
                    best = Some(match best {
                        None => x,
                        Some(b) if min => self.b.ins().smin(b, x),
                        Some(b) => self.b.ins().smax(b, x),
                    });
                }
                match best {
                    Some(b) => Ok(b),
                    None => self.bug("an empty minimum"),
                }
            }
        }
    }
    /// Floor division or remainder.
    fn divide(&mut self, x: Dim, y: Dim, quotient: bool) -> Result<Value> {
        let key = if quotient { x.floor_div(y) } else { x.modulo(y) };
        if let Some(v) = self.scopes.iter().rev().find_map(|s| s.dims.get(&key)) {
            return Ok(*v);
        }
        let a = self.emit_dim(x)?;
        let nonneg = self.m.syms.is_nonneg(x);
        let v = match y.as_const().filter(|c| *c > 0).map(|c| Divisor::of(&self.m.syms, &[x], c)) {
            Some(by) if quotient => self.quotient(a, by),
            Some(by) => self.remainder(a, by, |e| e.quotient(a, by)),
            _ => {
                let mut d = self.emit_dim(y)?;
                // A check rejects divisors below 1, but a size of an untaken path must not trap either.
                if !(self.checked && self.m.syms.is_pos(y)) {
                    let one = self.b.ins().iconst(I64, 1);
                    d = self.b.ins().smax(d, one);
                }
                let natural = nonneg && self.m.syms.is_nonneg(y);
                match (quotient, natural) {
                    (true, true) => self.b.ins().udiv(a, d),
                    // The quotient is needed, too: the number of a task is both.
                    (false, true) => {
                        let q = self.divide(x, y, true)?;
                        let p = self.b.ins().imul(q, d);
                        self.b.ins().isub(a, p)
                    }
                    (true, false) => self.floor_quotient(a, d),
                    (false, false) => self.wrapped(a, d),
                }
            }
        };
        self.remember(key, v);
        Ok(v)
    }
    /// floor(a / c).
    pub(super) fn quotient(&mut self, a: Value, c: Divisor) -> Value {
        if let Some(shift) = c.shift() {
            return self.b.ins().sshr_imm_u(a, i64::from(shift));
        }
        if c.short {
            // floor(a / c) = (a * m) >> 63 with m = ceil(2^63 / c), exact for a < 2^31 (Granlund,
            // Montgomery).
            let m = (1i128 << 63) / i128::from(c.by) + 1;
            let m = self.b.ins().iconst(I64, m as i64);
            let a2 = self.b.ins().ishl_imm_u(a, 1);
            return self.b.ins().umulhi(a2, m);
        }
        let d = self.b.ins().iconst(I64, c.by);
        if c.natural { self.b.ins().udiv(a, d) } else { self.floor_quotient(a, d) }
    }
    /// The remainder of floor division of a by c. `quotient` gives floor(a / c) if it is required.
    pub(super) fn remainder(
        &mut self,
        a: Value,
        c: Divisor,
        quotient: impl FnOnce(&mut Self) -> Value,
    ) -> Value {
        if c.shift().is_some() {
            return self.b.ins().band_imm_s(a, c.by - 1);
        }
        let q = quotient(self);
        let p = self.times(q, c.by);
        self.b.ins().isub(a, p)
    }
    fn floor_quotient(&mut self, a: Value, d: Value) -> Value {
        let q = self.b.ins().sdiv(a, d);
        let p = self.b.ins().imul(q, d);
        let r = self.b.ins().isub(a, p);
        let sign = self.b.ins().bxor(r, d);
        let differs = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, sign, 0);
        let inexact = self.b.ins().icmp_imm_s(IntCC::NotEqual, r, 0);
        let fix = self.b.ins().band(differs, inexact);
        let fix = self.b.ins().uextend(I64, fix);
        self.b.ins().isub(q, fix)
    }
    /// The remainder of floor division of a by d > 0, of an `a` that is rarely outside 0..d: positions that
    /// wrap around or are reflected at the ends of an axis. Only those outside are divided.
    fn wrapped(&mut self, a: Value, d: Value) -> Value {
        let (outside, join) = (self.b.create_block(), self.b.create_block());
        let r = self.b.append_block_param(join, I64);
        let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, a, d);
        self.b.ins().brif(inside, join, &[a.into()], outside, &[]);
        self.b.seal_block(outside);
        self.b.switch_to_block(outside);
        let q = self.floor_quotient(a, d);
        let p = self.b.ins().imul(q, d);
        let rest = self.b.ins().isub(a, p);
        self.b.ins().jump(join, &[rest.into()]);
        self.b.seal_block(join);
        self.b.switch_to_block(join);
        r
    }
    /// Pointer and displacement of an element.
    pub fn address(&mut self, buf: Buf, linear: Dim) -> Result<(Value, i32)> {
        let linear = self.at_lane(linear);
        let bits = self.m.element_bits(buf);
        if bits < 8 {
            return self.bug("an address of a packed element");
        }
        let size = bits / 8;
        let (rest, c) = linear.split_const();
        let storage = self.m.storage(buf);
        match c.checked_mul(i64::from(size)).and_then(|c| i32::try_from(c).ok()) {
            Some(disp) => Ok((self.pointer(storage, rest, size)?, disp)),
            None => Ok((self.pointer(storage, linear, size)?, 0)),
        }
    }
    /// Loads the bits of an element that shares its byte with others.
    pub fn load_packed(&mut self, buf: Buf, linear: Dim) -> Result<Value> {
        use cranelift_codegen::ir::types::{I8, I32};
        let linear = self.at_lane(linear);
        let (bits, storage) = (self.m.element_bits(buf), self.m.storage(buf));
        let per = i64::from(8 / bits);
        let byte = self.m.syms.simplify(linear.floor_div(per));
        let p = self.pointer(storage, byte, 1)?;
        let flags = self.flags();
        let v = self.b.ins().load(I8, flags, p, 0);
        let v = self.b.ins().uextend(I32, v);
        let within = self.m.syms.simplify(linear.modulo(per) * i64::from(bits));
        let shift = self.emit_dim(within)?;
        let shift = self.b.ins().ireduce(I32, shift);
        let v = self.b.ins().ushr(v, shift);
        let v = self.b.ins().band_imm_s(v, (1 << bits) - 1);
        Ok(self.b.ins().ireduce(I8, v))
    }
    pub fn pointer(&mut self, storage: Buf, linear: Dim, size: u32) -> Result<Value> {
        let key = (storage, linear);
        if let Some(v) = self.scopes.iter().rev().find_map(|s| s.ptrs.get(&key)) {
            return Ok(*v);
        }
        let (base, offset) = if let Some(c) = linear.as_const() {
            let Some((word, at)) = base_of(self.m, self.frame_plan, self.weights, storage) else {
                return self.bug("a buffer without a place");
            };
            (self.words[&word], Err(at + c * i64::from(size)))
        } else {
            // Split off the terms of the innermost variable: the pointer for the rest probably exists
            // already.
            let inner = self.innermost(linear);
            let (own, rest) = match inner.and_then(|s| linear.linear_in(s).map(|(a, b)| (a * s, b))) {
                Some(p) => p,
                None => self.split_nonlinear(linear, inner),
            };
            let base = self.pointer(storage, rest, size)?;
            let d = self.emit_dim(own * i64::from(size))?;
            (base, Ok(d))
        };
        let v = match offset {
            Err(0) => base,
            Err(c) => self.b.ins().iadd_imm_s(base, c),
            Ok(d) => self.b.ins().iadd(base, d),
        };
        if let Some(s) = self.scopes.last_mut() {
            s.ptrs.insert(key, v);
        }
        Ok(v)
    }
    fn innermost(&self, d: Dim) -> Option<Sym> {
        let syms = d.syms();
        let mut best = None;
        let mut depth = -1i64;
        for s in &syms {
            let at = self.scopes.iter().rposition(|sc| sc.syms.contains(s)).map_or(-1, |i| i as i64);
            if best.is_none() || at > depth {
                (best, depth) = (Some(*s), at);
            }
        }
        best
    }
    /// Splits a sum into the terms with the symbol and those without.
    fn split_nonlinear(&self, d: Dim, s: Option<Sym>) -> (Dim, Dim) {
        let View::Sum { terms, constant } = d.view() else { return (d, Dim::constant(0)) };
        let (mut own, mut rest) = (Dim::constant(0), Dim::constant(constant));
        for t in terms {
            let p = term_dim(t);
            if s.is_none_or(|s| p.contains(s)) {
                own = own + p;
            } else {
                rest = rest + p;
            }
        }
        (own, rest)
    }
    /// Emits the loop-invariant part of every address in a loop, before the loop.
    pub fn hoist(&mut self, body: &[Stmt]) -> Result<()> {
        let mut accesses = vec![];
        collect(body, &mut vec![], &mut |buf, at, unrolled| {
            if !self.m.is_packed(buf) {
                accesses.push((buf, self.linear(buf, at), unrolled.to_vec()));
            }
        });
        let mut seen = crate::codegen::Set::default();
        let mut elements = vec![];
        for (buf, linear, unrolled) in accesses {
            if seen.insert((buf, linear)) {
                self.invariants(buf, linear, &unrolled, &mut elements);
            }
        }
        self.series(&elements)?;
        elements.into_iter().try_for_each(|(buf, linear, size)| self.pointer(buf, linear, size).map(drop))
    }
    /// The invariant part of one address inside loops to be unrolled. A variable with a constant factor does
    /// not affect it; the others are replaced by their values.
    fn invariants(&self, buf: Buf, linear: Dim, unrolled: &[Unrolled], to: &mut Vec<Element>) {
        let matters = |u: &&Unrolled| {
            linear.contains(u.0)
                && linear.linear_in(u.0).is_none_or(|(factor, _)| factor.as_const().is_none())
        };
        if let Some((var, values)) = unrolled.iter().find(matters) {
            for i in values.clone() {
                let linear = linear.subst(&mut |s| (s == *var).then(|| Dim::constant(i)));
                self.invariants(buf, linear, unrolled, to);
            }
            return;
        }
        let View::Sum { terms, .. } = linear.view() else { return };
        let outer = terms
            .iter()
            .map(term_dim)
            .filter(|p| p.syms().iter().all(|s| self.vars.contains_key(s)))
            .fold(Dim::constant(0), |sum, p| sum + p);
        if outer.as_const().is_none() {
            to.push((self.m.storage(buf), outer, self.m.element_bits(buf) / 8));
        }
    }
}

/// A positive constant, and properties of the numbers that it divides.
#[derive(Clone, Copy)]
pub(super) struct Divisor {
    by: i64,
    /// No dividend is negative.
    natural: bool,
    /// No dividend is negative, and all are less than 2^31.
    short: bool,
}

impl Divisor {
    pub(super) fn of(syms: &SymTable, numbers: &[Dim], by: i64) -> Divisor {
        let natural = numbers.iter().all(|d| syms.is_nonneg(*d));
        let short = natural && numbers.iter().all(|d| syms.range(*d).hi.is_some_and(|h| h < 1 << 31));
        Divisor { by, natural, short }
    }
    /// The shift amount, if the divisor is a power of two.
    pub(super) fn shift(self) -> Option<u32> {
        (self.by & (self.by - 1) == 0).then(|| self.by.trailing_zeros())
    }
}

/// A loop to be unrolled, and its iterations.
type Unrolled = (Sym, std::ops::Range<i64>);

/// A term of a sum.
pub(super) fn term_dim((factor, atoms): &(i64, Vec<Atom>)) -> Dim {
    atoms.iter().fold(Dim::constant(*factor), |p, a| p * atom_dim(a))
}

fn atom_dim(a: &Atom) -> Dim {
    match a {
        Atom::Sym(s) => Dim::sym(*s),
        Atom::FloorDiv(x, y) => x.floor_div(*y),
        Atom::Mod(x, y) => x.modulo(*y),
        Atom::Min(v) => v.iter().copied().reduce(Dim::min).unwrap_or_default(),
        Atom::Max(v) => v.iter().copied().reduce(Dim::max).unwrap_or_default(),
    }
}

/// Visits every access in a body, with the enclosing loops that are to be unrolled.
fn collect(body: &[Stmt], around: &mut Vec<Unrolled>, f: &mut impl FnMut(Buf, &[Dim], &[Unrolled])) {
    for s in body {
        s.accesses(&mut |buf, at| f(buf, at, around));
        let unrolled = match s {
            Stmt::For { kind: LoopKind::Unroll, var, lo, hi, .. } => {
                lo.as_const().zip(hi.as_const()).map(|(a, z)| (*var, a..z))
            }
            _ => None,
        };
        let depth = around.len();
        around.extend(unrolled);
        s.bodies().for_each(|b| collect(b, around, f));
        around.truncate(depth);
    }
}
