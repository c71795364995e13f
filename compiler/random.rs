//! Random inputs that a model takes: sizes that its conditions allow, indices within the tensor that they
//! index, and values that depend on nothing but a seed.

use crate::arrays::Array;
use crate::codegen::interface::{Interface, Kind, Tensor};
use crate::diag::{Error, Result, codes};
use crate::nest::{Buf, Expr, Module, Stmt, visit};
use crate::sym::{Condition, Dim, Sym};
use crate::tensor::ElemType;
use onnxc_runtime::texts;
use std::collections::{BTreeSet, HashMap};

/// Least and greatest value of an input's elements.
pub type Range = (i64, i64);

/// Largest size that is tried for a dimension which a condition asks for.
const MOST: i64 = 4096;

/// How far above its least value a size goes that nothing bounds.
const FEW: i64 = 3;
/// Steps up from the least size of a dimension that [`neighbours`] tries, and how many sets of sizes it
/// makes.
const STEPS: i64 = 3;
const TRIALS: usize = 48;

/// Sizes that were named, by symbol.
pub fn named_sizes(i: &Interface, named: &[(String, i64)]) -> Result<HashMap<Sym, i64>> {
    let mut out = HashMap::new();
    for (name, size) in named {
        let Some(p) = i.dim_params.iter().find(|p| p.name == *name) else {
            let known: Vec<&str> = i.dim_params.iter().map(|p| p.name.as_str()).collect();
            return Error::new(
                codes::DIM_OPTION,
                format!("--size: no dimension \"{name}\" is left to be chosen at run time"),
            )
            .found_expected(
                name.clone(),
                if known.is_empty() { "none: all are fixed".into() } else { known.join(", ") },
            )
            .fail();
        };
        out.insert(p.sym, *size);
    }
    Ok(out)
}

/// Sizes of all dim params: those that are fixed, and of the others the least that the model's conditions
/// allow, as far as a search finds some. What is not found stays 1, and the call says which condition fails.
pub fn sizes(i: &Interface, fixed: &HashMap<Sym, i64>) -> HashMap<Sym, i64> {
    let mut sizes: HashMap<Sym, i64> = i.dim_params.iter().map(|p| (p.sym, p.lo.max(1))).collect();
    sizes.extend(fixed);
    let free: Vec<_> = i.dim_params.iter().filter(|p| !fixed.contains_key(&p.sym)).collect();
    for _ in 0..2 * i.dim_params.len() {
        let before = violated(i, &sizes);
        let Some(c) = before.first() else { break };
        let within: Vec<Sym> = c.dims().into_iter().flat_map(|d| i.syms.expanded(d).syms()).collect();
        let mut best: Option<(usize, i64, Sym)> = None;
        for p in free.iter().filter(|p| within.contains(&p.sym)) {
            for v in p.lo.max(1)..=p.hi.unwrap_or(MOST).min(MOST) {
                let tried: HashMap<Sym, i64> =
                    sizes.iter().map(|(s, n)| (*s, if *s == p.sym { v } else { *n })).collect();
                if holds(i, *c, &i.syms.with_derived(&tried)) {
                    let left = violated(i, &tried).len();
                    if left < before.len() && best.is_none_or(|b| (left, v) < (b.0, b.1)) {
                        best = Some((left, v, p.sym));
                    }
                    break;
                }
            }
        }
        let Some((_, v, s)) = best else { break };
        sizes.insert(s, v);
    }
    sizes
}

/// Other sizes of the open dim params, which the model's conditions allow: a few steps up for one of them,
/// then for two.
pub fn neighbours(
    i: &Interface,
    fixed: &HashMap<Sym, i64>,
    from: &HashMap<Sym, i64>,
) -> Vec<HashMap<Sym, i64>> {
    let open: Vec<_> = i.dim_params.iter().filter(|p| !fixed.contains_key(&p.sym)).collect();
    let raised = |changes: &[(Sym, i64)]| {
        let mut sizes = from.clone();
        for (s, by) in changes {
            if let Some(n) = sizes.get_mut(s) {
                *n += by;
            }
        }
        let allowed =
            open.iter().all(|p| p.hi.is_none_or(|hi| sizes[&p.sym] <= hi)) && violated(i, &sizes).is_empty();
        allowed.then_some(sizes)
    };
    let mut out: Vec<_> = open
        .iter()
        .flat_map(|p| (1..=STEPS).filter_map(|by| raised(&[(p.sym, by)])).collect::<Vec<_>>())
        .collect();
    for (k, p) in open.iter().enumerate() {
        for q in &open[k + 1..] {
            out.extend(
                (1..=STEPS)
                    .flat_map(|a| (1..=STEPS).map(move |b| (a, b)))
                    .filter_map(|(a, b)| raised(&[(p.sym, a), (q.sym, b)])),
            );
        }
    }
    out.truncate(TRIALS);
    out
}

fn violated(i: &Interface, sizes: &HashMap<Sym, i64>) -> Vec<Condition> {
    let all = i.syms.with_derived(sizes);
    i.syms.conditions().iter().copied().filter(|c| !holds(i, *c, &all)).collect()
}

/// True for a condition that holds, or that only run time decides.
fn holds(i: &Interface, c: Condition, sizes: &HashMap<Sym, i64>) -> bool {
    i.syms.holds(c, &|s| sizes.get(&s).copied()) != Some(false)
}

/// For each input of integers what its elements may be, where they index something or decide a size. Values
/// that pass through arithmetic count as they are.
pub fn ranges(m: &Module, sizes: &HashMap<Sym, i64>) -> Vec<Option<Range>> {
    let sizes = m.syms.with_derived(sizes);
    let value = |d: Dim| d.eval(&|s| sizes.get(&s).copied());
    let roots = roots(m);
    let mut out: HashMap<Buf, Range> = HashMap::new();
    let mut bound = |e: &Expr, lo: Option<i64>, hi: Option<i64>| {
        let mut from = BTreeSet::new();
        sources(m, e, &roots, &mut from);
        for b in from {
            let r = out.entry(b).or_insert((i64::MIN, i64::MAX));
            *r = (r.0.max(lo.unwrap_or(i64::MIN)), r.1.min(hi.unwrap_or(i64::MAX)));
        }
    };
    for body in m.kernels.values().map(|k| &*k.body).chain([&m.driver]) {
        visit::walk(body, &mut |s| match s {
            Stmt::With { value: e, extent, .. } => bound(e, Some(0), value(*extent).map(|n| n - 1)),
            Stmt::Define { sym, value: e, lo, hi } => {
                let most = |c: &Condition| {
                    if let Condition::AtMost(a, b) = c {
                        value(*b).filter(|_| a.as_sym() == Some(*sym))
                    } else {
                        None
                    }
                };
                let most = m.syms.conditions().iter().filter_map(most).chain(hi.and_then(value)).min();
                // Without a bound that the model's sizes set, a size would take all memory.
                let few = value(*lo).unwrap_or(0).max(0).saturating_add(FEW);
                bound(e, value(*lo), Some(most.filter(|n| *n < MOST).unwrap_or(few)));
            }
            _ => {}
        });
        visit::walk_exprs(body, &mut |e| {
            if let Expr::With { value: v, extent, .. } = e {
                bound(v, Some(0), value(*extent).map(|n| n - 1));
            }
        });
    }
    let range = |b: &Buf| {
        let (lo, hi) = *out.get(b)?;
        let lo = lo.max(0);
        (lo <= hi).then_some((lo, hi))
    };
    m.inputs.iter().map(|b| range(b).map(|(lo, hi)| (lo, hi.min(greatest(m.bufs[*b].ty))))).collect()
}

fn greatest(ty: ElemType) -> i64 {
    match ty {
        ElemType::I8 => i64::from(i8::MAX),
        ElemType::U8 => i64::from(u8::MAX),
        ElemType::I16 => i64::from(i16::MAX),
        ElemType::U16 => i64::from(u16::MAX),
        ElemType::I32 => i64::from(i32::MAX),
        ElemType::U32 => i64::from(u32::MAX),
        _ => i64::MAX,
    }
}

/// Scratch of integers with the inputs that its elements are made from.
fn roots(m: &Module) -> HashMap<Buf, BTreeSet<Buf>> {
    let mut roots: HashMap<Buf, BTreeSet<Buf>> = HashMap::new();
    for k in visit::calls(&m.driver) {
        visit::walk(&m.kernels[k].body, &mut |s| {
            if let Stmt::Store { buf, value, .. } = s {
                let mut from = BTreeSet::new();
                sources(m, value, &roots, &mut from);
                roots.entry(m.storage(*buf)).or_default().extend(from);
            }
        });
    }
    roots
}

/// Inputs of integers that a value is made from.
fn sources(m: &Module, e: &Expr, roots: &HashMap<Buf, BTreeSet<Buf>>, out: &mut BTreeSet<Buf>) {
    e.walk(&mut |e| {
        if let Expr::Load { buf, .. } = e {
            let b = m.storage(*buf);
            let integers = m.bufs[b].ty.is_int() && m.bufs[b].ty != ElemType::Bool;
            if integers && m.inputs.contains(&b) {
                out.insert(b);
            }
            out.extend(roots.get(&b).into_iter().flatten().filter(|_| integers));
        }
    });
}

/// Members of random sequences, entries of random maps, and sizes of their members that only run time knows.
const MEMBERS: i64 = 4;

/// An input as arrays ([`crate::io_descriptors`]) of values that depend on nothing but the seed: a tensor
/// ([`tensor`]), the element of an optional, a sequence of four members, a map with four entries.
pub fn arrays(t: &Tensor, sizes: &HashMap<Sym, i64>, range: Option<Range>, seed: u64) -> Result<Vec<Array>> {
    let Some(d) = &t.described else { return Ok(vec![tensor(t, sizes, range, seed)?]) };
    let list = vec![MEMBERS];
    let member =
        || d.dims.as_ref().map_or(list.clone(), |dims| dims.iter().map(|n| n.unwrap_or(MEMBERS)).collect());
    Ok(match d.kind {
        Kind::Map | Kind::Maps => {
            let keys: Vec<String> = (0..MEMBERS).map(|k| format!("k{k}")).collect();
            let data = if d.key == Some(ElemType::Str) {
                texts::encode(&keys)
            } else {
                (0..MEMBERS).flat_map(i64::to_le_bytes).collect()
            };
            let keys = Array {
                name: format!("{}.keys", t.name),
                ty: d.key.unwrap_or(ElemType::I64),
                dims: list.clone(),
                data,
            };
            vec![keys, random(format!("{}.values", t.name), t.ty, list, None, seed)?]
        }
        Kind::Tensor => vec![random(format!("{}.0", t.name), t.ty, member(), None, seed)?],
        Kind::Sequence => (0..MEMBERS)
            .map(|k| random(format!("{}.{k}", t.name), t.ty, member(), None, seed.wrapping_add(k as u64)))
            .collect::<Result<_>>()?,
    })
}

/// A tensor of values that depend on nothing but the seed: floats and parts of complex numbers between -1 and
/// 1, integers in `range`, else 0 or 1, strings of a few lower-case words.
pub fn tensor(t: &Tensor, sizes: &HashMap<Sym, i64>, range: Option<Range>, seed: u64) -> Result<Array> {
    let dims: Option<Vec<i64>> =
        t.dims.iter().map(|d| d.eval(&|s| sizes.get(&s).copied()).filter(|v| *v >= 0)).collect();
    match dims.filter(|_| t.described.is_none()) {
        Some(dims) => random(t.name.clone(), t.ty, dims, range, seed),
        None => Error::new(
            codes::RUN_INPUT,
            format!("input \"{}\" can not be filled with random numbers", t.name),
        )
        .found_expected(t.ty.to_string(), "a tensor with sizes that are not negative")
        .fail(),
    }
}

fn random(name: String, ty: ElemType, dims: Vec<i64>, range: Option<Range>, seed: u64) -> Result<Array> {
    let Some(n) = crate::tensor::count(&dims).filter(|n| ty.bytes_for(*n).is_some()) else {
        return Error::new(
            codes::RUN_INPUT,
            format!("input \"{name}\" can not be filled with random numbers"),
        )
        .found_expected(format!("{ty}{dims:?}"), "sizes that fit in memory")
        .fail();
    };
    let Some(width) = ty.bytes() else {
        // Packed elements: zeros.
        return Ok(Array { name, ty, dims, data: vec![0; ty.bytes_for(n).unwrap_or(0) as usize] });
    };
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    if ty == ElemType::Str {
        let mut word = || {
            let r = next();
            (0..1 + r % 6).map(|i| char::from(b'a' + (r >> (8 + 5 * i)) as u8 % 26)).collect::<String>()
        };
        let list: Vec<String> = (0..n).map(|_| [word(), word(), word()].join(" ")).collect();
        return Ok(Array { name, ty, dims, data: texts::encode(&list) });
    }
    let mut data = vec![];
    for _ in 0..n {
        let r = next();
        let between = |bits: u64| bits as f32 / 16_777_216.0 * 2.0 - 1.0;
        let (unit, second) = (between(r >> 40), |r: u64| between(r & 0xff_ffff));
        match ty {
            ElemType::F32 => data.extend(unit.to_le_bytes()),
            ElemType::F64 => data.extend(f64::from(unit).to_le_bytes()),
            ElemType::C64 => data.extend([unit, second(r)].iter().flat_map(|v| v.to_le_bytes())),
            ElemType::C128 => data.extend([unit, second(r)].iter().flat_map(|v| f64::from(*v).to_le_bytes())),
            ElemType::F16 => data.extend(half::f16::from_f32(unit).to_le_bytes()),
            ElemType::BF16 => data.extend(half::bf16::from_f32(unit).to_le_bytes()),
            _ => {
                let (lo, count) = range
                    .filter(|_| ty != ElemType::Bool)
                    .map_or((0, 2), |(lo, hi)| (lo, hi.abs_diff(lo).saturating_add(1)));
                let v = lo.wrapping_add(((r >> 16) % count) as i64);
                data.extend(&v.to_le_bytes().repeat(2)[..width as usize]);
            }
        }
    }
    Ok(Array { name, ty, dims, data })
}
