//! Softmax within a block of attention, in phases over several rows.
//!
//! The maximum of a row, its exponentials and their sum depend on each other, and every horizontal reduction
//! has a long latency. Each phase therefore processes several rows before the next phase begins, and stores
//! its per-row results in scratch. The last phase divides by the sum. If sums may be reassociated, it is
//! moved into the product with the values, where it applies to a few columns instead of all keys.

use crate::nest::form::{self, Part, Stored};
use crate::nest::{BinOp, Buf, Expr, Math, Module, Reg, Stmt, UnOp, visit};
use crate::sym::Dim;
use crate::tensor::ElemType;
use std::collections::HashMap;

/// Maximum number of values per row that later phases read.
const MOST: usize = 4;
/// Floats of a cache line. Two tasks never share a line.
const LINE: i64 = 16;

/// Exponentials below e^LEAST, about 2^-100, are 0 in attention. The largest exponential of a row is 1, so
/// smaller ones do not change an f32 sum, and their quotients by the row's sum could be subnormal. Products
/// with subnormal numbers take 100 times as long on many CPUs. Additive masks of -100 produce them.
const LEAST: f64 = -69.0;

/// The body of softmax, with exponentials of differences below [`LEAST`] replaced by 0.
pub(super) fn without_subnormals(m: &mut Module, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut maxima = vec![];
    visit::walk(&body, &mut |s| {
        if let Stmt::Set { reg, value: Expr::Bin(BinOp::Max, ..), .. } = s {
            maxima.push(*reg);
        }
    });
    let is_maximum = |e: &Expr| matches!(e, Expr::Acc { reg, .. } if maxima.contains(reg));
    let mut flush = |e: Expr| match e {
        Expr::Un(UnOp::Exp, x)
            if matches!(&*x, Expr::Bin(BinOp::Sub, _, of) if is_maximum(of))
                && m.type_of(&x) == ElemType::F32 =>
        {
            let reg = m.reg(ElemType::F32);
            let below = Expr::bin(BinOp::Lt, Expr::Reg(reg), Expr::num(ElemType::F32, LEAST));
            let exp = Expr::un(UnOp::Exp, Expr::Reg(reg));
            let body = Expr::select(below, Expr::num(ElemType::F32, 0.0), exp);
            Expr::Let { reg, value: x, body: Box::new(body) }
        }
        e => e,
    };
    body.into_iter().map(|s| s.rewrite_exprs(&mut flush)).collect()
}

/// Scratch for the per-row results of a phase.
pub(super) struct Found {
    /// `[piece, value, row]`.
    buf: Buf,
    piece: Dim,
    row: Dim,
}

impl Found {
    /// Allocates scratch for the rows of each piece.
    pub fn new(m: &mut Module, name: String, pieces: Dim, piece: Dim, row: Dim, height: i64) -> Found {
        let rows = (height + LINE - 1) / LINE * LINE;
        Found {
            buf: m.temp(name, ElemType::F32, vec![pieces, Dim::constant(MOST as i64), Dim::constant(rows)]),
            piece,
            row,
        }
    }
    fn at(&self, value: usize) -> Vec<Dim> {
        vec![self.piece, Dim::constant(value as i64), self.row]
    }
}

/// Splits the statements of a row into phases: each phase ends after a reduction and the statements that use
/// only its result. Returns a single phase if the body has no such structure.
pub(super) fn phases(m: &Module, body: Vec<Stmt>, found: &Found) -> Vec<Vec<Stmt>> {
    let Some(rows) = form::rows(&body) else { return vec![body] };
    let mut phases: Vec<Vec<Stmt>> = vec![vec![]];
    let mut ends = false;
    for part in &rows.parts {
        if ends && matches!(part, Part::Each(_) | Part::Once(Stmt::Acc { .. })) {
            phases.push(vec![]);
            ends = false;
        }
        ends |= matches!(part, Part::Each(elements) if elements.reduces());
        if let Some(p) = phases.last_mut() {
            p.push(part.statement());
        }
    }
    link(m, phases, found).unwrap_or(vec![body])
}

/// Stores the values that later phases read at the end of each phase; none if a later phase modifies them.
fn link(m: &Module, mut phases: Vec<Vec<Stmt>>, found: &Found) -> Option<Vec<Vec<Stmt>>> {
    let mut waiting: HashMap<Reg, usize> = HashMap::new();
    for i in 0..phases.len() {
        let (mut own, mut known) = (vec![], true);
        visit::walk(&phases[i], &mut |s| match s {
            Stmt::Acc { reg, shape, lanes, .. } => own.push((*reg, shape.is_empty() && *lanes <= 1)),
            Stmt::Let { reg, .. } => own.push((*reg, true)),
            Stmt::Set { reg, .. } => known &= !waiting.contains_key(reg),
            _ => {}
        });
        if !known {
            return None;
        }
        let mut later = vec![];
        for p in &phases[i + 1..] {
            visit::walk_exprs(p, &mut |e| {
                if let Expr::Reg(r) | Expr::Acc { reg: r, .. } | Expr::Horizontal { reg: r, .. } = e
                    && !later.contains(&(*r, matches!(e, Expr::Reg(_))))
                {
                    later.push((*r, matches!(e, Expr::Reg(_))));
                }
            });
        }
        for (r, plain) in later {
            let Some((_, single)) = own.iter().find(|o| o.0 == r) else { continue };
            if !single || m.regs[r].ty != ElemType::F32 || waiting.len() == MOST {
                return None;
            }
            let at = waiting.len();
            waiting.insert(r, at);
            phases[i].push(Stmt::Store {
                buf: found.buf,
                at: found.at(at),
                value: if plain { Expr::Reg(r) } else { Expr::acc(r) },
            });
        }
        if let Some(next) = phases.get_mut(i + 1) {
            let read = |e: Expr| match &e {
                Expr::Reg(r) | Expr::Acc { reg: r, .. } => {
                    waiting.get(r).map_or(e.clone(), |v| Expr::Load { buf: found.buf, at: found.at(*v) })
                }
                _ => e,
            };
            *next = std::mem::take(next).into_iter().map(|s| s.rewrite_exprs(&mut |e| read(e))).collect();
        }
    }
    Some(phases)
}

/// If the last phase only multiplies each score by a per-row factor: removes the phase and returns the
/// factor.
pub(super) fn scale(
    m: &Module,
    phases: &mut Vec<Vec<Stmt>>,
    scratch: Buf,
    keys: Dim,
    found: &Found,
) -> Option<Expr> {
    let last = form::rows(phases.last()?).filter(|_| m.math != Math::Strict)?;
    let [Part::Each(elements)] = last.parts.as_slice() else { return None };
    let Stored { before: [], buf, at, value: Expr::Bin(BinOp::Mul, score, scale) } =
        form::stored(&elements.body)?
    else {
        return None;
    };
    let own = matches!(&**score, Expr::Load { buf: b, at: a } if *b == buf && a == at);
    let of_row = matches!(&**scale, Expr::Load { buf, .. } if *buf == found.buf);
    if buf != scratch || !own || !of_row {
        return None;
    }
    let scale = (**scale).clone();
    phases.pop();
    if !m.syms.is_pos(keys) {
        // Without keys the product is 0, whatever the factor is. The comparison is on 32 bits.
        let number = |s: Stmt| match s {
            Stmt::Store { buf, at, value } if scale == Expr::Load { buf, at: at.clone() } => Stmt::Store {
                buf,
                at,
                value: Expr::select(
                    Expr::cmp_index(BinOp::Gt, keys.min(Dim::constant(1)), 0),
                    value,
                    Expr::num(ElemType::F32, 0.0),
                ),
            },
            s => s,
        };
        phases.iter_mut().for_each(|p| *p = std::mem::take(p).into_iter().map(number).collect());
    }
    Some(scale)
}
