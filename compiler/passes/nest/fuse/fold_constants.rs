//! fold_constants: kernels that read only constants are evaluated at compile time; their results become
//! constants.
//!
//! Weights of few bits that contractions read packed stay packed (`quantize::few_bits`); kernels that gather
//! rows of them dequantize only these rows. Large pure rearrangements are left to the inliner, which turns
//! them into packing without a copy, unless their readers are folded or run in a loop; readers that can be
//! folded alone (sums of weights) read what the rearrangement reads. Kernels that write parts of a buffer
//! (Concat of slices of weights) are folded together.

use crate::codegen::interface::Interface;
use crate::diag::{Result, limits};
use crate::jit::Loaded;
use crate::nest::{Buf, Expr, Kernel, Module, Place, Stmt, visit};
use crate::passes::nest::analysis::shape::{Uses, as_map};
use crate::passes::nest::fuse::{drop_dead_kernels, inline_producers};
use crate::passes::nest::quantize::few_bits;
use crate::tensor::{ConstData, ElemType, SmallFloat};
use std::collections::HashSet;
use std::sync::Arc;

/// Maximum size of a result worth storing.
const MAX_BYTES: i64 = 64 << 20;
/// Rearrangements of at least this size are not folded.
const LAZY_BYTES: i64 = 1 << 16;
/// Weights of few bits of at least this size, as floats, are not unpacked.
const UNPACKED_BYTES: i64 = 1 << 13;

/// Runs the pass. Whether weights of few bits stay packed can only be decided once they are constants:
/// readers of some that are computed here are deferred to a second round. Levels without `vectors` unpack
/// them.
pub fn run(m: &mut Module, vectors: bool) -> Result<()> {
    inline_rearrangements(m);
    if round(m, vectors, true)? {
        round(m, vectors, false)?;
    }
    Ok(())
}

/// Inlines large rearrangements of constants into those of their readers that can be folded then.
fn inline_rearrangements(m: &mut Module) {
    let uses = Uses::new(m);
    let large = rearrangements(m, &uses);
    if large.is_empty() {
        return;
    }
    let (all, able) = (foldable(m, &uses, &HashSet::new()), foldable(m, &uses, &large));
    let open: Vec<Kernel> = all.iter().copied().filter(|k| !able.contains(k) && !large.contains(k)).collect();
    for k in uses.order.iter().rev().filter(|k| large.contains(k) && all.contains(k) && !able.contains(k)) {
        let reads = |r: &Kernel| {
            let loads = visit::loads(&m.kernels[*r].body);
            loads.iter().any(|b| uses.writes(*k).contains(&m.storage(*b)))
        };
        let readers: Vec<Kernel> = open.iter().copied().filter(reads).collect();
        inline_producers::into(m, *k, &readers);
    }
}

/// Kernels that rearrange many elements and are folded only for readers that are. Readers in a loop would
/// pack the result in each iteration.
fn rearrangements(m: &Module, uses: &Uses) -> HashSet<Kernel> {
    let mut repeated: HashSet<Kernel> = HashSet::new();
    visit::walk(&m.driver, &mut |s| {
        if let Stmt::While { body, .. } = s {
            repeated.extend(visit::calls(body));
        }
    });
    let once =
        |k: &Kernel| uses.writes(*k).iter().all(|b| !uses.readers(*b).iter().any(|r| repeated.contains(r)));
    uses.order.iter().copied().filter(|k| lazy(m, &m.kernels[*k].body) && once(k)).collect()
}

/// The remaining budget of folding: steps of the interpreter, and bytes of constants.
struct Budget {
    steps: f64,
    bytes: f64,
}

impl Budget {
    /// The budget of a module, by the number of elements of its constants.
    fn of(m: &Module) -> Budget {
        let count = |p: &Place| if let Place::Const(c) = p { i64::try_from(c.count()).ok() } else { None };
        let stored = m.bufs.values().filter_map(|d| count(&d.place)).fold(0, i64::saturating_add) as f64;
        Budget {
            steps: limits::FOLDED_STEPS.value as f64 + 64.0 * stored,
            bytes: limits::FOLDED_BYTES.value as f64 + 8.0 * stored,
        }
    }
    /// Subtracts from the budget; false if it does not suffice.
    fn take(&mut self, steps: f64, bytes: f64) -> bool {
        let enough = steps <= self.steps && bytes <= self.bytes;
        if enough {
            (self.steps, self.bytes) = (self.steps - steps, self.bytes - bytes);
        }
        enough
    }
}

/// True for a kernel that may be folded if everything that it reads is constant.
fn is_candidate(m: &Module, uses: &Uses, top: &HashSet<Kernel>, k: Kernel) -> bool {
    let body = &m.kernels[k].body;
    let own = |b: &Buf| {
        let writers = uses.writers(*b);
        // Parts of a concatenation. Branches may write different contents.
        let parts =
            || !uses.is_repeated() && writers.iter().all(|w| top.contains(w)) && !extends(m, body, *b);
        (writers.len() == 1 || !writers.is_empty() && parts())
            && matches!(m.bufs[*b].place, Place::Temp)
            && !m.bufs[*b].ty.is_packed()
            && bytes(m, *b).is_some_and(|n| n <= MAX_BYTES)
    };
    visit::stores(body).iter().all(own) && !visit::has_texts(m, body) && !has_symbols(m, body)
}

/// Kernels that may be folded: they read constants and results of each other, and no other kernel writes
/// their results. Kernels in `lazy` are folded only for readers that are.
fn foldable(m: &Module, uses: &Uses, lazy: &HashSet<Kernel>) -> HashSet<Kernel> {
    let top: HashSet<Kernel> =
        m.driver.iter().filter_map(|s| if let Stmt::Call(k) = s { Some(*k) } else { None }).collect();
    let mut able: HashSet<Kernel> =
        uses.order.iter().copied().filter(|k| is_candidate(m, uses, &top, *k)).collect();
    loop {
        let before = able.len();
        for k in &uses.order {
            let known = |b: &Buf| {
                let writers = uses.writers(*b);
                let complete =
                    || writers.contains(k) || writers.iter().all(|w| uses.place(*w) < uses.place(*k));
                matches!(m.bufs[*b].place, Place::Const(_))
                    || !writers.is_empty() && writers.iter().all(|w| able.contains(w)) && complete()
            };
            let alone = |b: &Buf| uses.writers(*b).iter().all(|w| able.contains(w));
            let wanted = |b: &Buf| {
                let readers = uses.readers(*b);
                !lazy.contains(k)
                    || !uses.pinned(*b) && !readers.is_empty() && readers.iter().all(|r| able.contains(r))
            };
            let stays =
                uses.reads(*k).iter().all(known) && uses.writes(*k).iter().all(|b| alone(b) && wanted(b));
            if !stays {
                able.remove(k);
            }
        }
        if able.len() == before {
            return able;
        }
    }
}

/// Kernels to fold.
#[derive(Default)]
struct Selected {
    kernels: Vec<Kernel>,
    /// Their results.
    constant: HashSet<Buf>,
    /// Maps that dequantize weights of few bits, and the kernels into which they are inlined instead.
    inlined: Vec<(Kernel, Vec<Kernel>)>,
    /// True if some are deferred.
    waits: bool,
}

/// Selects among the foldable kernels, as far as the budget goes.
fn select(m: &mut Module, uses: &Uses, able: &HashSet<Kernel>, vectors: bool, wait: bool) -> Selected {
    let mut s = Selected::default();
    let mut budget = Budget::of(m);
    for k in uses.order.iter().copied().filter(|k| able.contains(k)) {
        let body = &m.kernels[k].body;
        let stores = visit::stores(body);
        let known = |b: &Buf| {
            let b = m.storage(*b);
            matches!(m.bufs[b].place, Place::Const(_)) || s.constant.contains(&b) || stores.contains(&b)
        };
        if !visit::loads(body).iter().all(known) {
            continue;
        }
        if let [made] = stores[..]
            && vectors
            && extends(m, body, made)
            && bytes(m, made).is_none_or(|n| n >= UNPACKED_BYTES)
        {
            let computed = visit::loads(body).iter().any(|b| s.constant.contains(&m.storage(*b)));
            s.waits |= wait && computed;
            if wait && computed {
                continue;
            }
            if let Some(r) = few_bits::readers(m, uses, k, made) {
                s.waits |= r.moves;
                s.inlined.push((k, r.others));
                continue;
            }
        }
        let made = stores.iter().filter_map(|b| bytes(m, *b)).sum::<i64>() as f64;
        if budget.take(steps(m, &m.kernels[k].body), made) {
            s.constant.extend(stores);
            s.kernels.push(k);
        }
    }
    s
}

/// Folds all eligible kernels; true if some were deferred.
fn round(m: &mut Module, vectors: bool, wait: bool) -> Result<bool> {
    let uses = Uses::new(m);
    let mut able = foldable(m, &uses, &rearrangements(m, &uses));
    let Selected { kernels, constant, inlined, waits } = loop {
        let s = select(m, &uses, &able, vectors, wait);
        // A buffer is folded with all kernels that write it.
        let taken: HashSet<Kernel> = s.kernels.iter().copied().collect();
        let partly = |b: &Buf| !uses.writers(*b).iter().all(|w| taken.contains(w));
        let refused: HashSet<Kernel> =
            s.constant.iter().filter(|b| partly(b)).flat_map(|b| uses.writers(*b)).copied().collect();
        if refused.is_empty() {
            break s;
        }
        able.retain(|k| !refused.contains(k));
    };
    // Maps that dequantize weights of few bits are inlined into the kernels that read single rows of them.
    inlined.iter().for_each(|(k, readers)| inline_producers::into(m, *k, readers));
    if !inlined.is_empty() {
        drop_dead_kernels::run(m)?;
    }
    let folded = kernels.is_empty() || evaluate(m, &uses, &kernels, &constant)?;
    Ok(folded && waits)
}

/// Evaluates kernels, and replaces the results that other kernels read by constants; false if a run-time
/// check fails in one of them.
fn evaluate(m: &mut Module, uses: &Uses, kernels: &[Kernel], constant: &HashSet<Buf>) -> Result<bool> {
    // Results that other kernels read must be kept; the others are intermediate.
    let inside: HashSet<_> = kernels.iter().copied().collect();
    let mut keep: Vec<Buf> = constant
        .iter()
        .copied()
        .filter(|b| uses.pinned(*b) || uses.readers(*b).iter().any(|r| !inside.contains(r)))
        .collect();
    keep.sort();
    let mut sub = Module::new("fold", m.syms.clone());
    sub.bufs = m.bufs.clone();
    sub.regs = m.regs.clone();
    sub.kernels = m.kernels.clone();
    sub.driver = kernels.iter().map(|k| Stmt::Call(*k)).collect();
    for (i, b) in keep.iter().enumerate() {
        sub.bufs[*b].place = Place::Output(i as u32);
        sub.outputs.push(*b);
    }
    drop_dead_kernels::run(&mut sub)?;
    crate::passes::nest::memory::place_memory::run(&mut sub)?;
    let mut out: Vec<Vec<u8>> = keep.iter().map(|b| vec![0u8; bytes(m, *b).unwrap_or(0) as usize]).collect();
    let loaded = Loaded::new(&sub, &Interface::of_module(&sub))?;
    if loaded.call(&[], &mut out, &[]).is_err() {
        // An index out of range, for example: the run-time check remains.
        return Ok(false);
    }
    for (b, data) in keep.iter().zip(out) {
        let dims = m.bufs[*b].dims.iter().filter_map(|d| d.as_const()).collect();
        if let Some(c) = ConstData::new(m.bufs[*b].ty, dims, data) {
            m.bufs[*b].place = Place::Const(Arc::new(c));
        }
    }
    visit::drop_calls(&mut m.driver, &|k| inside.contains(&k));
    Ok(true)
}

/// True for a map that converts smaller integers to floats.
fn extends(m: &Module, body: &[Stmt], made: Buf) -> bool {
    let small = |b: &Buf| {
        matches!(
            m.bufs[*b].ty,
            ElemType::U8 | ElemType::I8 | ElemType::U4 | ElemType::I4 | ElemType::U2 | ElemType::I2
        ) || SmallFloat::of(m.bufs[*b].ty).is_some()
    };
    m.bufs[made].ty.is_float() && visit::loads(body).iter().any(small) && as_map(body).is_some()
}

fn bytes(m: &Module, b: Buf) -> Option<i64> {
    let n = m.bufs[b].dims.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?))?;
    m.bufs[b].ty.bytes_for(n as u64).and_then(|n| i64::try_from(n).ok())
}

/// Number of operations of a body. A loop whose bounds depend on other loops counts with its largest trip
/// count, a data-dependent loop with a thousand.
fn steps(m: &Module, body: &[Stmt]) -> f64 {
    let of = |s: &Stmt| {
        let inside: f64 = s.bodies().map(|b| steps(m, b)).sum();
        let times = match s {
            Stmt::For { lo, hi, .. } => {
                (*hi - *lo).as_const().or_else(|| m.syms.range(*hi - *lo).hi).unwrap_or(1000).max(0) as f64
            }
            Stmt::While { .. } => 1000.0,
            _ => 1.0,
        };
        times * inside + s.expr().map_or(0, Expr::size) as f64
    };
    body.iter().map(of).sum()
}

/// True if the body depends on run-time sizes.
fn has_symbols(m: &Module, body: &[Stmt]) -> bool {
    let mut hit = false;
    visit::walk(body, &mut |s| {
        s.clone().map_dims(&mut |d| {
            hit |= d.syms().iter().any(|s| m.syms.kind(*s) != crate::sym::SymKind::Loop);
            d
        });
    });
    hit
}

fn lazy(m: &Module, body: &[Stmt]) -> bool {
    as_map(body).is_some_and(|map| {
        matches!(map.value, Expr::Load { .. })
            && map.cover(m).is_some()
            && bytes(m, map.buf).is_none_or(|n| n >= LAZY_BYTES)
    })
}
