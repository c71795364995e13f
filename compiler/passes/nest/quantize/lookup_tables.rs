//! lookup_tables: a function of one integer of at most 256 values becomes a lookup in a constant table, where
//! this takes less than the operations of the function.
//!
//! Quantized models compute activations between two quantizations, `q8(sigmoid((q - z) * s))`. The table has
//! what the interpreter computes for each value of `q`.
//!
//! Vectors that permute bytes hold a table of bytes in registers, so that it must have integers in a range of
//! 256 values. Vectors with gathers read a table of words from memory.

use crate::diag::Result;
use crate::nest::bounds::Bounds;
use crate::nest::interp::eval_operation;
use crate::nest::{BinOp, Expr, Layout, Module, Reg, Scalar, Stmt, UnOp, visit};
use crate::passes::nest::quantize::fold_requantize::is_around_results;
use crate::sym::Dim;
use crate::target::Level;
use crate::tensor::{ConstData, ElemType};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum entries of a table.
const MOST: i64 = 256;
/// Cost of an elementary function, in operations such as a sum.
const ELEMENTARY: i64 = 20;
/// Cost of a division or a square root.
const DIVISION: i64 = 6;

/// How a level looks up.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Permutations of bytes in registers.
    Bytes,
    /// Gathers of words.
    Words,
}

impl Kind {
    /// Cost of a lookup. Gathers of eight words take 5 cycles (Skylake) to 12 (Zen 4, Zen 5).
    fn cost(self) -> i64 {
        match self {
            Kind::Bytes => 10,
            Kind::Words => 24,
        }
    }
}

/// The variable part of the operands of an expression.
#[derive(Clone)]
enum Input {
    /// None: it is a constant.
    None,
    /// One integer of few values.
    One(Rc<Expr>),
    /// Anything else.
    Many,
}

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    let caps = level.facts.caps;
    let kind = if caps.permutes_words() {
        Kind::Bytes
    } else if caps.gathers || caps.indexed {
        Kind::Words
    } else {
        return Ok(());
    };
    let mut t = Tables {
        m,
        kind,
        bounds: Bounds::default(),
        inputs: HashMap::new(),
        defined: HashMap::new(),
        whole: HashMap::new(),
    };
    for k in visit::calls(&t.m.driver) {
        let body = std::mem::take(&mut t.m.kernels[k].body);
        t.bounds.learn(t.m, &body);
        t.m.kernels[k].body = t.list(body).into_iter().collect();
    }
    Ok(())
}

struct Tables<'a> {
    m: &'a mut Module,
    kind: Kind,
    bounds: Bounds,
    /// What the registers defined so far depend on, if not on themselves.
    inputs: HashMap<Reg, Input>,
    /// The values of those that depend on one register.
    defined: HashMap<Reg, Expr>,
    /// Registers that hold integers of few values as floats, with their ranges.
    whole: HashMap<Reg, (i64, i64)>,
}

impl Tables<'_> {
    /// Rewrites statements that run once per result; reduction loops do not change.
    fn list(&mut self, body: impl IntoIterator<Item = Stmt>) -> Vec<Stmt> {
        let mut out = vec![];
        for s in body {
            let s = match s {
                Stmt::For { kind, var, lo, hi, body } if is_around_results(kind, &body) => {
                    Stmt::For { kind, var, lo, hi, body: self.list(body) }
                }
                Stmt::Let { reg, value } => {
                    let (value, input) = self.rewrite(value);
                    let value = match self.define(reg, &value, &input) {
                        Some((own, of, value)) => {
                            out.push(Stmt::Let { reg: own, value: of });
                            self.finish(value, &Input::One(Rc::new(Expr::Reg(own))))
                        }
                        None => self.finish(value, &input),
                    };
                    Stmt::Let { reg, value }
                }
                Stmt::Store { buf, at, value } => {
                    let (value, input) = self.rewrite(value);
                    Stmt::Store { buf, at, value: self.finish(value, &input) }
                }
                s => s,
            };
            out.push(s);
        }
        out
    }
    /// Notes what a register depends on. If this is an integer that has no register: a new one for it, the
    /// integer, and the value in terms of the new register.
    fn define(&mut self, reg: Reg, value: &Expr, input: &Input) -> Option<(Reg, Expr, Expr)> {
        let of = match input {
            Input::One(of) if **of == *value => return None,
            Input::One(of) if !matches!(**of, Expr::Reg(_)) => of,
            Input::Many => return None,
            input => {
                self.inputs.insert(reg, input.clone());
                self.defined.insert(reg, value.clone());
                return None;
            }
        };
        let (lo, hi) = self.range(of)?;
        if matches!(value, Expr::Cast(ElemType::F32, x) if **x == **of) {
            self.whole.insert(reg, (lo, hi));
            return None;
        }
        let own = self.m.reg(self.m.type_of(of));
        self.bounds.regs.insert(own, (lo as f64, hi as f64));
        let value = named(value, of, own);
        self.inputs.insert(reg, Input::One(Rc::new(Expr::Reg(own))));
        self.defined.insert(reg, value.clone());
        Some((own, (**of).clone(), value))
    }
    /// An expression, and what it depends on. Parts that depend on one integer are finished where the whole
    /// depends on more.
    fn rewrite(&mut self, e: Expr) -> (Expr, Input) {
        match e {
            Expr::Let { reg, value, body } => self.rewrite_let(reg, *value, *body),
            Expr::Reg(r) => (Expr::Reg(r), self.inputs.get(&r).cloned().unwrap_or_else(|| self.own(&e))),
            Expr::Un(..) | Expr::Bin(..) | Expr::Fma(..) | Expr::Select(..) | Expr::Cast(..) => {
                let mut inputs: Vec<Input> = vec![];
                let e = e.map_children(&mut |c| {
                    let (c, input) = self.rewrite(c);
                    inputs.push(input);
                    c
                });
                let joined = inputs.iter().cloned().reduce(join).unwrap_or(Input::Many);
                if !matches!(joined, Input::Many) {
                    return (e, joined);
                }
                let mut inputs = inputs.iter();
                let e = e.map_children(&mut |c| match inputs.next() {
                    Some(input) => self.finish(c, input),
                    None => c,
                });
                let input = self.own(&e);
                (e, input)
            }
            e => {
                let input = if self.number(&e).is_some() { Input::None } else { self.own(&e) };
                (e, input)
            }
        }
    }
    fn rewrite_let(&mut self, reg: Reg, value: Expr, body: Expr) -> (Expr, Input) {
        let made = |reg, value, body| Expr::Let { reg, value: Box::new(value), body: Box::new(body) };
        let (value, of_value) = self.rewrite(value);
        let defined = self.define(reg, &value, &of_value);
        let own = Expr::Reg(defined.as_ref().map_or(reg, |d| d.0));
        let (body, of_body) = self.rewrite(body);
        let outside = match &of_body {
            Input::One(of) if **of == own => of_value.clone(),
            Input::One(of) if of.any(&mut |e| *e == own || *e == Expr::Reg(reg)) => Input::Many,
            of_body => of_body.clone(),
        };
        let joined = join(of_value.clone(), outside);
        if !matches!(joined, Input::Many) {
            return (made(reg, value, body), joined);
        }
        let body = self.finish(body, &of_body);
        let e = match defined.filter(|_| body.any(&mut |e| *e == own)) {
            Some((first, of, value)) => {
                let value = self.finish(value, &Input::One(Rc::new(own)));
                made(first, of, made(reg, value, body))
            }
            None => made(reg, self.finish(value, &of_value), body),
        };
        let input = self.own(&e);
        (e, input)
    }
    /// What an expression depends on if it is not computed from constants and one integer.
    fn own(&self, e: &Expr) -> Input {
        if self.range(e).is_some() { Input::One(Rc::new(e.clone())) } else { Input::Many }
    }
    /// The least and the greatest value of an integer of few values, which may be a float.
    fn range(&self, e: &Expr) -> Option<(i64, i64)> {
        if let Expr::Reg(r) = e
            && let Some(range) = self.whole.get(r)
        {
            return Some(*range);
        }
        // The range of a sum would be derived from all of its terms again, for each of its parts.
        let bounded = match e {
            Expr::Bin(op, ..) => matches!(op, BinOp::Min | BinOp::Max | BinOp::And),
            Expr::Reg(_) | Expr::Cast(..) | Expr::Let { .. } => true,
            _ => false,
        };
        if !bounded || self.m.type_of(e) != ElemType::I32 {
            return None;
        }
        let (lo, hi) = self.bounds.of(self.m, e)?;
        let (lo, hi) = (lo as i64, hi as i64);
        (hi.checked_sub(lo)? < MOST).then_some((lo, hi))
    }
    /// The value of a constant.
    fn number(&self, e: &Expr) -> Option<Scalar> {
        match e {
            Expr::Const(c) => Some(*c),
            Expr::Load { buf, .. } => {
                let plain = !self.m.is_recast(*buf) && self.m.bufs[*buf].layout == Layout::RowMajor;
                self.m.number(*buf).filter(|v| plain && v.ty == self.m.type_of(e))
            }
            _ => None,
        }
    }
    /// Replaces the largest parts of an expression that are worth a table.
    fn finish(&mut self, e: Expr, input: &Input) -> Expr {
        let Input::One(of) = input else { return e };
        let Some(range) = self.range(of).filter(|_| e != **of && self.is_worth(&e)) else { return e };
        let (reg, of_reg) = match **of {
            Expr::Reg(r) => (r, e.clone()),
            _ => {
                let reg = self.m.reg(self.m.type_of(of));
                (reg, named(&e, of, reg))
            }
        };
        let mut any = false;
        let looked_up = self.parts(of_reg, (reg, range), &mut any);
        match **of {
            _ if !any => e,
            Expr::Reg(_) => looked_up,
            _ => Expr::Let { reg, value: Box::new((**of).clone()), body: Box::new(looked_up) },
        }
    }
    /// Replaces the largest parts of a function of a register that are worth a table; sets `any` if there are
    /// some.
    fn parts(&mut self, e: Expr, of: (Reg, (i64, i64)), any: &mut bool) -> Expr {
        if !self.is_worth(&e) {
            return e;
        }
        match self.lookup(&e, of) {
            Some(lookup) => {
                *any = true;
                lookup
            }
            None => e.map_children(&mut |c| self.parts(c, of, any)),
        }
    }
    fn is_worth(&self, e: &Expr) -> bool {
        self.cost(e) > self.kind.cost()
    }
    /// Operations of an expression.
    fn cost(&self, e: &Expr) -> i64 {
        let mut sum = 0;
        e.walk(&mut |e| {
            let constant = e.children().all(|c| matches!(c, Expr::Const(_)));
            sum += match e {
                _ if constant => 0,
                Expr::Un(op, x) if op.is_elementary(self.m.type_of(x)) => ELEMENTARY,
                Expr::Un(UnOp::Sqrt | UnOp::Recip, _)
                | Expr::Bin(BinOp::Div | BinOp::Rem | BinOp::Mod, ..) => DIVISION,
                Expr::Bin(BinOp::Pow, ..) => 2 * ELEMENTARY,
                Expr::Un(..) | Expr::Bin(..) | Expr::Fma(..) | Expr::Select(..) | Expr::Cast(..) => 1,
                _ => 0,
            }
        });
        sum
    }
    /// A lookup that equals `e` for all values of the register.
    fn lookup(&mut self, e: &Expr, (reg, (lo, hi)): (Reg, (i64, i64))) -> Option<Expr> {
        let (ty, of) = (self.m.type_of(e), self.m.regs[reg].ty);
        let suits = match self.kind {
            Kind::Bytes => ty.is_int() && ty != ElemType::Bool,
            Kind::Words => ty == ElemType::F32 || ty == ElemType::I32,
        };
        if !suits {
            return None;
        }
        let value = |v| self.eval(e, &mut HashMap::from([(reg, Scalar::from_f64(of, v as f64))]));
        let values = (lo..=hi).map(value).collect::<Option<Vec<_>>>()?;
        let index = Expr::cast(of, ElemType::I32, Expr::Reg(reg));
        let index = if lo == 0 { index } else { index - Expr::int(ElemType::I32, lo) };
        if self.kind == Kind::Words {
            let words = values.iter().flat_map(|v| (v.bits as u32).to_le_bytes()).collect();
            return self.entry(ty, words, index);
        }
        let values: Vec<i64> = values.iter().map(|v| v.to_i64()).collect();
        let least = *values.iter().min()?;
        let mut bytes = values.iter().map(|v| u8::try_from(v - least).ok()).collect::<Option<Vec<_>>>()?;
        bytes.resize(MOST as usize, 0);
        let entry = Expr::cast(ElemType::U8, ElemType::I32, self.entry(ElemType::U8, bytes, index)?);
        let value = if least == 0 { entry } else { entry + Expr::int(ElemType::I32, least) };
        Some(Expr::cast(ElemType::I32, ty, value))
    }
    /// The entry of a new table.
    fn entry(&mut self, ty: ElemType, bytes: Vec<u8>, index: Expr) -> Option<Expr> {
        let count = bytes.len() as i64 / i64::from(ty.bytes()?);
        let table = self.m.constant("lookup_table", Arc::new(ConstData::new(ty, vec![count], bytes)?));
        let extent = Dim::constant(count);
        let sym = self.m.syms.loop_var("x", Dim::constant(0), extent);
        let body = Box::new(Expr::Load { buf: table, at: vec![sym.into()] });
        Some(Expr::With { sym, value: Box::new(index), extent, body })
    }
    /// The value of an expression of known registers.
    fn eval(&self, e: &Expr, known: &mut HashMap<Reg, Scalar>) -> Option<Scalar> {
        match e {
            Expr::Reg(r) => match known.get(r) {
                Some(v) => Some(*v),
                None => {
                    let v = self.eval(self.defined.get(r)?, known)?;
                    known.insert(*r, v);
                    Some(v)
                }
            },
            Expr::Let { reg, value, body } => {
                let v = self.eval(value, known)?;
                known.insert(*reg, v);
                self.eval(body, known)
            }
            Expr::Const(_) | Expr::Load { .. } => self.number(e),
            e => eval_operation(e, &mut |e| self.eval(e, known)),
        }
    }
}

/// An expression in terms of a register that holds a part of it.
fn named(e: &Expr, part: &Expr, reg: Reg) -> Expr {
    e.clone().rewrite(&mut |e| if e == *part { Expr::Reg(reg) } else { e })
}

/// What an operation depends on.
fn join(a: Input, b: Input) -> Input {
    match (a, b) {
        (Input::None, x) | (x, Input::None) => x,
        (Input::One(a), Input::One(b)) if Rc::ptr_eq(&a, &b) || a == b => Input::One(a),
        _ => Input::Many,
    }
}
