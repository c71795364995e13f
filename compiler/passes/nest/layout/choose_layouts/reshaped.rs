//! Temporaries whose elements are all accessed under one other shape get that shape: a matrix of which each
//! row is read as an image becomes an image, whose layout is free.

use crate::nest::visit::{self, Access};
use crate::nest::{Buf, Kernel, Module, Place};
use crate::passes::nest::analysis::shape::{is_plain, relocate};
use crate::passes::nest::analysis::uses::Uses;
use crate::sym::Dim;
use std::collections::HashMap;

/// Dimensions of an image of one, two or three spatial dimensions.
const RANKS: std::ops::RangeInclusive<usize> = 3..=5;

/// Gives temporaries the shape of the images under which they are read.
pub(super) fn run(m: &mut Module) {
    let uses = Uses::new(m);
    let kernels = visit::calls(&m.driver);
    // The views of each temporary, and the kernels that access it.
    let mut of: HashMap<Buf, (Vec<Buf>, Vec<Kernel>)> = HashMap::new();
    let mut order: Vec<Buf> = vec![];
    for k in kernels {
        let body = &m.kernels[k].body;
        for b in visit::loads(body).into_iter().chain(visit::stores(body)) {
            let owner = m.storage(b);
            let (views, users) = of.entry(owner).or_default();
            if users.last() != Some(&k) {
                users.push(k);
            }
            if owner != b && !views.contains(&b) {
                views.push(b);
                order.extend((views.len() == 1).then_some(owner));
            }
        }
    }
    for owner in order {
        let Some((views, users)) = of.remove(&owner) else { continue };
        if matches!(m.bufs[owner].place, Place::Temp) && !uses.pinned(owner) {
            reshape(m, owner, &views, &users);
        }
    }
}

/// Gives a temporary the shape of its views, if they have the same, and all accesses have positions in it that
/// need no division.
fn reshape(m: &mut Module, owner: Buf, views: &[Buf], users: &[Kernel]) -> Option<()> {
    let dims = m.bufs[*views.first()?].dims.clone();
    let fits = RANKS.contains(&dims.len())
        && dims.len() > m.bufs[owner].dims.len()
        && views.iter().all(|v| m.bufs[*v].dims == dims && !m.is_recast(*v));
    if !fits {
        return None;
    }
    let place = |m: &Module, at: &[Dim]| -> Option<Vec<Dim>> {
        let at = relocate(m, &m.bufs[owner].dims, at, &dims);
        at.iter().all(|d| is_plain(m, *d)).then_some(at)
    };
    let mut plain = true;
    for k in users {
        let body = &m.kernels[*k].body;
        let mut check = |b: Buf, at: &[Dim]| plain &= b != owner || place(m, at).is_some();
        visit::each_load(body, &mut |b, at| check(b, at));
        visit::each_store(body, &mut check);
    }
    if !plain {
        return None;
    }
    let own = m.temp(m.bufs[owner].name.clone(), m.bufs[owner].ty, dims.clone());
    for k in users {
        let body = std::mem::take(&mut m.kernels[*k].body);
        let moved = |b: Buf, at: &[Dim]| -> Option<Access> {
            match b {
                b if b == owner => Some((own, place(m, at)?)),
                b if views.contains(&b) => Some((own, at.to_vec())),
                _ => None,
            }
        };
        let body: Vec<_> = body.into_iter().map(|s| s.map_accesses(&moved)).collect();
        m.kernels[*k].body = body.into();
    }
    Some(())
}
