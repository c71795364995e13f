//! few_bits: contractions with an operand that a map dequantizes from constants of 2, 4 or 8 bits (integers
//! or floats), with scales and zero points per block of the reduction (MatMulNBits, blocked
//! DequantizeLinear), or from codes that index a constant table of floats (MatMulBnb4).
//!
//! The map is never executed: `fold_constants` does not fold it, and this pass moves its expression into the
//! contraction. Elements are packed into 32-bit words, `[panel][word][column]`, by a lazy rearrangement;
//! scales and zero points become `[panel][block][column]`. `tiles::dequantize` emits the loops. Kernels that
//! gather rows of the same weights read the packed words (`gathered`).
//!
//! If the model allows it (`KernelData::narrow`) or `--math fast` is given, the level has dot products of
//! bytes, and `--math strict` is not given, a kernel before the contraction quantizes the activations to
//! 8-bit integers, block by block: `b = round(a / s)` with `s = max |a| / 127` (`activations`). The products
//! are then integer (`tiles::byte_dots`). Contractions with the same operand share the quantized activations.
//! Other contractions are computed in the same way where activations as integers of three bytes are about as
//! exact as floats.

mod activations;
mod gathered;
mod weights;

use crate::diag::Result;
use crate::nest::key::Writer;
use crate::nest::schedule::{Packing, Schedule, tasks};
use crate::nest::{Buf, DotKind, Kernel, Math, Module, Place, visit};
use crate::passes::nest::analysis::copies::{Copies, Emitted};
use crate::passes::nest::analysis::shape::{Map, Uses, instance, through_view};
use crate::passes::nest::fuse::drop_dead_kernels;
use crate::passes::nest::schedule::contract::loops::{collapse_rows, joined};
use crate::passes::nest::schedule::contract::{Parts, Product, depends};
use crate::passes::nest::schedule::tiles::byte_dots::Bytes;
use crate::passes::nest::schedule::tiles::dequantize::{self, Nest};
use crate::sym::{Dim, Sym};
use crate::target::{Dot, Facts, Level};
use crate::tensor::{ConstData, ElemType, Words};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use weights::{Code, Weights, Zero};

/// Columns of a panel. All levels have the same panels and share them.
const WIDTH: i64 = 32;

/// A contraction with packed weights.
struct Found {
    parts: Parts,
    /// The column.
    n: (Sym, i64),
    weights: Weights,
}

/// Readers of the result of a map that dequantizes packed weights, provided that none of them requires all of
/// it as floats.
pub(crate) struct Readers {
    /// Kernels that gather rows of it or move its elements, into which the map should be inlined.
    pub others: Vec<Kernel>,
    /// True if the results of some of these may be packed weights again.
    pub moves: bool,
}

/// The readers of a map's result, if the map should be kept: they are contractions that dequantize the
/// weights themselves, or can do so after inlining into the others.
pub(crate) fn readers(m: &mut Module, uses: &Uses, map: Kernel, made: Buf) -> Option<Readers> {
    let x = m.form(map).map().cloned().filter(|_| !uses.pinned(made))?;
    let all = uses.readers(made).to_vec();
    let some = !all.is_empty();
    let others: Vec<Kernel> = all.into_iter().filter(|r| find(m, *r, &x).is_none()).collect();
    let moves = |r: &Kernel| m.form(*r).map().is_some_and(|x| x.value.loaded().is_some());
    let gathers = |r: &Kernel| m.form(*r).map().is_some() && gathered::gathers(&m.kernels[*r].body);
    let fit = some && others.iter().all(|r| moves(r) || gathers(r));
    fit.then(|| Readers { moves: others.iter().any(moves), others })
}

/// True if a module may use dot products of bytes.
pub fn suit(m: &Module, facts: &Facts) -> bool {
    let small =
        |b: &Buf, bits: u32| m.bufs[*b].ty.is_int() && m.bufs[*b].ty.bits() <= bits && m.is_constant(*b);
    let dequantizes = |k: Kernel, bits: u32| {
        m.form(k).map().is_some_and(|x| {
            visit::loads(&m.kernels[k].body).iter().any(|b| small(b, bits)) && m.bufs[x.buf].ty.is_float()
        })
    };
    (facts.caps.dot.is_of_bytes() || facts.caps.pairs_bytes())
        && visit::calls(&m.driver).iter().any(|k| match m.math {
            Math::Strict => false,
            Math::Fast => dequantizes(*k, 8),
            Math::Default => m.kernels[*k].narrow || activations::suit(facts) && dequantizes(*k, 4),
        })
}

/// Runs the pass. The contractions that it rewrites are scheduled.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    let facts = level.facts;
    if facts.lanes == 1 || WIDTH % i64::from(facts.lanes) != 0 {
        return Ok(());
    }
    let uses = Uses::new(m);
    let mut found = vec![];
    let calls: HashSet<Kernel> = visit::calls(&m.driver).into_iter().collect();
    for k in visit::calls(&m.driver) {
        let Some(p) = m.form(k).contraction() else { continue };
        let made = m.storage(p.b.0);
        let [w] = uses.writers(made) else { continue };
        let (w, Some(map)) = (*w, m.form(*w).map().cloned()) else { continue };
        if !calls.contains(&w) || uses.pinned(made) {
            continue;
        }
        if let Some(f) = find(m, k, &map) {
            found.push((k, f));
        }
    }
    let mut columns: HashMap<Buf, i64> = HashMap::new();
    for (_, f) in &found {
        *columns.entry(f.parts.a.0).or_default() += f.n.1;
    }
    let mut pass = Pass {
        facts,
        uses: &uses,
        columns,
        made: activations::Made::default(),
        packed: vec![],
        copies: Copies::default(),
    };
    let mut any = false;
    for (k, f) in found {
        any |= pass.rewrite(m, k, f).is_some();
    }
    if any {
        // The maps that dequantized the weights may have no readers left.
        drop_dead_kernels::run(m)?;
    }
    gathered::share(m, &pass.packed);
    Ok(())
}

/// The contraction with weights that `map` dequantizes, if `k` is one.
fn find(m: &mut Module, k: Kernel, map: &Map) -> Option<Found> {
    let mut p = m.form(k).contraction()?.clone();
    let made = m.storage(p.b.0);
    if map.buf != made
        || m.storage(p.a.0) == made
        || !matches!(m.bufs[made].place, Place::Temp)
        || p.product != Product::Fma
        || p.reduction.len() != 1
        || m.is_recast(p.b.0)
    {
        return None;
    }
    // Nothing else in the kernel may read them.
    if visit::loads(&p.epilogue).iter().any(|b| m.storage(*b) == made) {
        return None;
    }
    let (n, columns) = one_column(m, &mut p)?;
    let (depth, elements) = (p.reduction[0].0, p.reduction[0].1.as_const()?);
    if depends(&p.a.1, n) || columns < 1 || elements < 1 {
        return None;
    }
    // Row loops are fused where memory is contiguous across them.
    let mut rows: Vec<(Sym, Dim)> = p.loops.iter().copied().filter(|l| l.0 != n).collect();
    collapse_rows(m, &mut p, &mut rows, n);
    if rows.iter().any(|r| !depends(&p.a.1, r.0)) {
        return None;
    }
    p.loops = rows.into_iter().chain([(n, Dim::constant(columns))]).collect();
    // The map's expression at the element that the contraction reads.
    let at = through_view(m, p.b.0, &p.b.1, made);
    let mut of: Vec<(Sym, Dim)> = vec![];
    for (to, from) in map.at.iter().zip(&at) {
        match (to.as_sym(), to.as_const()) {
            (Some(s), _) if map.loops.iter().any(|l| l.0 == s) && of.iter().all(|o| o.0 != s) => {
                of.push((s, *from))
            }
            (_, Some(0)) => {}
            _ => return None,
        }
    }
    if of.len() != map.loops.len() {
        return None;
    }
    let value = instance(m, &map.value, &|s| of.iter().find(|o| o.0 == s).map(|o| o.1));
    let weights = Weights::of(m, &value, (n, columns), (depth, elements))?;
    Some(Found { parts: p, n: (n, columns), weights })
}

/// The column loop and its extent. If the result has two loops for it (heads and their elements) whose
/// combination B subscripts, they are fused.
fn one_column(m: &mut Module, p: &mut Parts) -> Option<(Sym, i64)> {
    let of_b: Vec<(Sym, Dim)> = p.loops.iter().copied().filter(|l| depends(&p.b.1, l.0)).collect();
    match of_b[..] {
        [n] => Some((n.0, n.1.as_const()?)),
        [a, b] => {
            let zero = Dim::constant(0);
            let runs = |outer: (Sym, Dim), inner: (Sym, Dim)| {
                let extent = inner.1.as_const().filter(|e| e % WIDTH == 0)?;
                let steps = |d: &Dim| {
                    let (x, rest) = d.linear_in(outer.0)?;
                    let (y, _) = rest.linear_in(inner.0)?;
                    Some(x == y * extent)
                };
                p.b.1.iter().all(|d| steps(d) == Some(true)).then_some((
                    outer,
                    inner,
                    extent * outer.1.as_const()?,
                ))
            };
            let (outer, inner, columns) = runs(a, b).or_else(|| runs(b, a))?;
            if depends(&p.a.1, outer.0) || depends(&p.a.1, inner.0) {
                return None;
            }
            let at: Vec<Dim> = p.b.1.clone();
            let (n, extent) = joined(m, p, outer, inner);
            let put = |s: Sym| if s == outer.0 { Some(zero) } else { (s == inner.0).then(|| Dim::sym(n)) };
            p.b.1 = at.iter().map(|d| d.subst(&mut |s| put(s))).collect();
            p.loops.retain(|l| l.0 != outer.0 && l.0 != inner.0);
            p.loops.push((n, extent));
            Some((n, columns))
        }
        _ => None,
    }
}

/// The pass over a module, with the results that several contractions share.
struct Pass<'a> {
    facts: Facts,
    uses: &'a Uses,
    /// Columns of all contractions with the same activations.
    columns: HashMap<Buf, i64>,
    /// Activations quantized so far.
    made: activations::Made,
    /// Constants packed so far.
    packed: Vec<gathered::Packed>,
    /// Bodies emitted so far.
    copies: Copies<Dim>,
}

impl Pass<'_> {
    /// Packs the weights of contraction `k` into words and emits its loops; `None` if they cannot be packed.
    fn rewrite(&mut self, m: &mut Module, k: Kernel, f: Found) -> Option<()> {
        let (w, (n, columns)) = (&f.weights, f.n);
        let (source, bits, _) = &w.elements;
        let signed = w.is_signed();
        let code = self.code(m, w);
        let [offset, column, depth] = w.at;
        let words = Words {
            bits: *bits,
            columns,
            elements: w.reduction,
            width: WIDTH,
            offset,
            column,
            depth,
            flip: signed,
            high_first: w.high_first,
        };
        let data = ConstData::words(source.clone(), words)?;
        let blocks = (w.reduction + w.block - 1) / w.block;
        let packed = |t: &weights::Table| t.packed(columns, blocks).map(Arc::new);
        let scale = match &w.scale {
            Some(t) => Some(packed(t)?),
            None => None,
        };
        let zero = match &w.zero {
            Zero::Table(t) => Some(packed(t)?),
            _ => None,
        };
        let name = m.bufs[f.parts.b.0].name.clone();
        let words = m.constant(format!("{name}.words"), Arc::new(data));
        let scale = scale.map(|s| {
            let powers = s.elem() == ElemType::U8;
            let buf = m.constant(format!("{name}.scales"), s);
            if powers { dequantize::Scale::Power(buf) } else { dequantize::Scale::Float(buf) }
        });
        let by = if signed { (1 << (bits - 1)) as f32 } else { 0.0 };
        let zero = match (zero, &w.zero) {
            (Some(z), _) => Some(dequantize::Zero::Table(m.constant(format!("{name}.zeros"), z), by)),
            (None, Zero::Number(v)) => Some(dequantize::Zero::Number(*v + by)),
            (None, _) if signed => Some(dequantize::Zero::Number(by)),
            _ => None,
        };
        let mut rows: Vec<(Sym, Dim)> = f.parts.loops.iter().copied().filter(|l| l.0 != n).collect();
        let bytes = match code {
            dequantize::Code::Integer => self.activations(m, k, &f, &rows, &zero),
            _ => None,
        };
        if !w.high_first {
            let kind = gathered::Kind::Words { to: words, bits: i64::from(*bits), flip: signed };
            self.note(Some(w.from), w.at, (columns, w.reduction), kind);
        }
        if let (Some(t), Some(dequantize::Scale::Float(to))) = (&w.scale, scale) {
            self.note(t.from, t.at, (columns, blocks), gathered::Kind::Table { to });
        }
        if let (Zero::Table(t), Some(dequantize::Zero::Table(to, _))) = (&w.zero, &zero) {
            self.note(t.from, t.at, (columns, blocks), gathered::Kind::Table { to: *to });
        }
        let row = rows.pop();
        let nest = Nest {
            n,
            columns,
            width: WIDTH,
            row,
            outer: rows,
            words,
            bits: i64::from(*bits),
            code,
            scale,
            zero,
            block: w.block,
            reduction: w.reduction,
            bytes,
        };
        let mut key = Writer::new(m);
        key.contraction(&f.parts);
        nest.key(&mut key);
        let (body, work) = self.copies.emit(m, k, key.finish(), |m| {
            let (body, facts) = dequantize::emit(m, k, &f.parts, &nest, self.facts);
            Emitted { body, facts, alone: true }
        });
        m.kernels[k].body = body.into();
        m.kernels[k].work = work;
        self.describe(m, k, &nest);
        Some(())
    }
    /// How tiles decode the elements.
    fn code(&self, m: &mut Module, w: &Weights) -> dequantize::Code {
        match w.elements {
            // A permutation is cheaper than the arithmetic of a small format.
            (_, 4, Code::Float(f)) if self.facts.caps.shuffles.are_computed() => {
                let all: Vec<f32> = (0..16).map(|c| f.decode(c)).collect();
                let all = Arc::new(ConstData::f32s(vec![16], &all));
                dequantize::Code::Place(m.constant("values", all))
            }
            (_, _, Code::Float(f)) => dequantize::Code::Float(f),
            (_, _, Code::Place(values)) => dequantize::Code::Place(values),
            (_, _, Code::Signed | Code::Unsigned) => dequantize::Code::Integer,
        }
    }
    /// The activations as 8-bit integers, if the model allows it and the level has dot products for them.
    fn activations(
        &mut self,
        m: &mut Module,
        k: Kernel,
        f: &Found,
        rows: &[(Sym, Dim)],
        zero: &Option<dequantize::Zero>,
    ) -> Option<Bytes> {
        let w = &f.weights;
        let narrow = match m.math {
            Math::Strict => return None,
            Math::Fast => true,
            Math::Default => m.kernels[k].narrow,
        };
        let number = match zero {
            None => Some(0),
            Some(dequantize::Zero::Number(v)) if v.fract() == 0.0 && v.abs() <= 255.0 => Some(*v as i64),
            Some(_) => None,
        };
        let form = if narrow {
            // Unsigned weights by signed activations.
            let group = match self.facts.caps.dot {
                dot if dot.mixes_signs() => DotKind::Bytes,
                Dot::QuadsOfOneSign if w.elements.1 < 8 => DotKind::SignedBytes,
                Dot::Pairs if self.facts.caps.pairs_bytes() => DotKind::PairedBytes,
                _ => return None,
            };
            activations::Form::narrow(w, number, group)?
        } else {
            let columns = self.columns.get(&f.parts.a.0).copied().unwrap_or(f.n.1);
            activations::Form::exact(w, number, (&self.facts, columns))?
        };
        self.made.of(m, k, &f.parts, rows, form, self.uses)
    }
    /// Records a packed constant whose rows are columns of the product, so that gathers can read it.
    fn note(
        &mut self,
        from: Option<Buf>,
        [offset, row, step]: [i64; 3],
        (columns, elements): (i64, i64),
        kind: gathered::Kind,
    ) {
        if let Some(from) = from
            && offset == 0
            && (step == 1 || elements == 1)
            && row >= elements
        {
            self.packed.push(gathered::Packed { from, row, columns, elements, kind });
        }
    }
    /// Records the schedule of a contraction.
    fn describe(&self, m: &mut Module, k: Kernel, nest: &Nest) {
        let bytes = if let Place::Const(c) = &m.bufs[nest.words].place { c.byte_len() } else { 0 };
        let panels = Packing::Constant { columns: WIDTH, bytes };
        m.kernels[k].schedules = vec![Schedule {
            form: "contraction",
            packing: vec![("words of B", panels)],
            tasks: tasks(&m.kernels[k].body),
            ..Schedule::new("tiles of few bits").vectors(
                i64::from(self.facts.lanes),
                "columns",
                Dim::constant(nest.columns),
            )
        }];
        m.kernels[k].scheduled = true;
    }
}
