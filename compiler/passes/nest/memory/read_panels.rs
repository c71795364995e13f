//! read_panels: a tensor that is both gathered from by rows and multiplied (a tied embedding) is stored once,
//! as the packed panels of the product. Adjacent elements of a row are then a cache line apart, which is
//! negligible for a few gathered rows. Kernels that read the whole tensor keep a copy of their own, unless
//! the object is optimised for size.

use crate::diag::Result;
use crate::nest::{Buf, Expr, Kernel, Layout, Module, Place, Stmt, visit};
use crate::sym::{Dim, Sym};
use crate::tensor::ConstData;
use crate::tensor::consts::Remap;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Smaller constants may be stored twice.
const LEAST: u64 = 64 << 10;

/// Rewrites the kernels that gather rows.
pub fn run(m: &mut Module) -> Result<()> {
    let kernels: BTreeSet<Kernel> = visit::calls(&m.driver).into_iter().collect();
    let mut readers: BTreeMap<Buf, Vec<Kernel>> = BTreeMap::new();
    for k in &kernels {
        let owners: BTreeSet<Buf> = visit::loads(&m.kernels[*k].body).iter().map(|b| m.storage(*b)).collect();
        for b in owners {
            if matches!(&m.bufs[b].place, Place::Const(c) if c.byte_len() >= LEAST) {
                readers.entry(b).or_default().push(*k);
            }
        }
    }
    // The driver reads constants in their original order.
    visit::walk(&m.driver, &mut |s| s.loads().iter().for_each(|b| drop(readers.remove(&m.storage(*b)))));
    let mut panels: Vec<(Buf, Arc<ConstData>, Remap)> = vec![];
    for b in readers.keys() {
        if let (Place::Const(c), Layout::RowMajor) = (&m.bufs[*b].place, &m.bufs[*b].layout)
            && let Some((root, map)) = origin(c)
        {
            panels.push((*b, root, map));
        }
    }
    for (b, kernels) in &readers {
        let Place::Const(c) = &m.bufs[*b].place else { continue };
        if m.bufs[*b].layout != Layout::RowMajor || !kernels.iter().all(|k| looks_up(m, *k, *b)) {
            continue;
        }
        let found = panels.iter().find_map(|(p, root, map)| {
            // A weights file may provide other values: elements that are equal now may then differ.
            let alike = || root.dims() == c.dims() && root.same_origin(c) && !c.is_splat();
            let same = p != b && (Arc::ptr_eq(root, c) || alike());
            if !same || root.dims() != c.dims() || m.bufs[*p].ty != m.bufs[*b].ty {
                return None;
            }
            Some((*p, Inverse::of(map, c.dims())?))
        });
        let Some((to, inverse)) = found else { continue };
        for k in kernels {
            let body = std::mem::take(&mut m.kernels[*k].body);
            let redirect = &mut |e: Expr| match e {
                Expr::Load { buf, at } if buf == *b => Expr::Load { buf: to, at: inverse.at(&at) },
                e => e,
            };
            m.kernels[*k].body = body.into_iter().map(|s| s.rewrite_exprs(redirect)).collect();
        }
    }
    Ok(())
}

/// True if a kernel reads a constant only at indices loaded from memory; for objects optimised for size, if
/// it reads no view of it.
fn looks_up(m: &Module, k: Kernel, c: Buf) -> bool {
    let body = m.kernels[k].body.as_slice();
    let mut read: HashSet<Sym> = HashSet::new();
    visit::walk(body, &mut |s| {
        if let Stmt::With { sym, .. } = s {
            read.insert(*sym);
        }
    });
    visit::walk_exprs(body, &mut |e| {
        if let Expr::With { sym, .. } = e {
            read.insert(*sym);
        }
    });
    let mut all = true;
    visit::accesses(body, &mut |b, at| {
        if m.storage(b) == c {
            let picked = at.iter().any(|d| d.syms().iter().any(|s| read.contains(s)));
            all &= b == c && (picked || !m.optimize.may_grow());
        }
    });
    visit::walk(body, &mut |s| all &= !matches!(s, Stmt::Prefetch { buf, .. } if m.storage(*buf) == c));
    all
}

/// The source of a rearranged constant, and the rearrangement.
fn origin(c: &ConstData) -> Option<(Arc<ConstData>, Remap)> {
    let (src, map) = c.remapped()?;
    let Some((root, inner)) = origin(src) else { return Some((src.clone(), map.clone())) };
    // The rearrangement must not pad: the source has no zeros to read there.
    let inside = |(i, n): (usize, &i64)| {
        let row = map.coeff[i].iter().zip(&map.dims).map(|(c, n)| c * (n - 1));
        let (lo, hi) = row.fold((map.offset[i], map.offset[i]), |(lo, hi), x| (lo + x.min(0), hi + x.max(0)));
        lo >= 0 && hi < *n
    };
    if !src.dims().iter().enumerate().all(inside) {
        return None;
    }
    let offset = inner
        .coeff
        .iter()
        .zip(&inner.offset)
        .map(|(row, o)| o + row.iter().zip(&map.offset).map(|(c, x)| c * x).sum::<i64>())
        .collect();
    let through = |row: &Vec<i64>| {
        (0..map.dims.len()).map(|j| row.iter().zip(&map.coeff).map(|(c, r)| c * r[j]).sum()).collect()
    };
    let coeff = inner.coeff.iter().map(through).collect();
    Some((root, Remap { dims: map.dims.clone(), offset, coeff }))
}

/// The inverse of a rearrangement: the subscripts of a source element.
struct Inverse(Vec<Part>);

/// A subscript.
enum Part {
    /// 0.
    First,
    /// (subscript of the source minus an offset) / divisor.
    Quotient(usize, i64, i64),
    /// The rest of that division.
    Rest(usize, i64, i64),
}

impl Inverse {
    /// `None` unless every element of the source has a single, computable position.
    fn of(map: &Remap, source: &[i64]) -> Option<Inverse> {
        let mut parts: Vec<Option<Part>> =
            map.dims.iter().map(|n| (*n == 1).then_some(Part::First)).collect();
        for (i, (row, offset)) in map.coeff.iter().zip(&map.offset).enumerate() {
            let used: Vec<usize> = (0..row.len()).filter(|j| row[*j] != 0 && map.dims[*j] != 1).collect();
            let mut set = |j: usize, p: Part| parts[j].replace(p).is_none().then_some(());
            let last = source[i] - 1 - offset;
            if *offset > 0 {
                return None;
            }
            match used.as_slice() {
                [] if source[i] == 1 => {}
                [j] if row[*j] == 1 && last < map.dims[*j] => set(*j, Part::Quotient(i, *offset, 1))?,
                [a, b] => {
                    let (outer, inner) = if row[*a] > row[*b] { (*a, *b) } else { (*b, *a) };
                    let (by, outside) = (row[outer], last / map.dims[inner] >= map.dims[outer]);
                    if row[inner] != 1 || by != map.dims[inner] || outside {
                        return None;
                    }
                    set(outer, Part::Quotient(i, *offset, by))?;
                    set(inner, Part::Rest(i, *offset, by))?;
                }
                _ => return None,
            }
        }
        parts.into_iter().collect::<Option<_>>().map(Inverse)
    }
    fn at(&self, at: &[Dim]) -> Vec<Dim> {
        let part = |p: &Part| match p {
            Part::First => Dim::constant(0),
            Part::Quotient(i, offset, by) => (at[*i] - *offset).floor_div(*by),
            Part::Rest(i, offset, by) => (at[*i] - *offset).modulo(*by),
        };
        self.0.iter().map(part).collect()
    }
}
