//! Temporaries whose elements are all accessed under one other shape get that shape: a matrix of which each
//! row is read as an image becomes an image, whose layout is free.

use crate::nest::visit::{self, Access};
use crate::nest::{Buf, Kernel, Module, Place};
use crate::passes::nest::analysis::shape::{is_plain, relocate};
use crate::passes::nest::analysis::uses::Uses;
use crate::sym::Dim;
use std::collections::HashSet;

/// Dimensions of an image of one, two or three spatial dimensions.
const RANKS: std::ops::RangeInclusive<usize> = 3..=5;

/// Gives temporaries the shape of the images under which they are read.
pub(super) fn run(m: &mut Module) {
    let uses = Uses::new(m);
    let may = |b: &Buf| matches!(m.bufs[*b].place, Place::Temp) && uses.viewed(*b) && !uses.pinned(*b);
    for owner in m.bufs.keys().filter(may).collect::<Vec<_>>() {
        let mut users: Vec<Kernel> = uses.readers(owner).iter().chain(uses.writers(owner)).copied().collect();
        users.sort();
        users.dedup();
        reshape(m, owner, &users);
    }
}

/// Gives a temporary that kernels access the shape of its views, if they have the same, and all accesses have
/// positions in it that need no division.
fn reshape(m: &mut Module, owner: Buf, users: &[Kernel]) -> Option<()> {
    let accessed = |k: &Kernel| {
        let body = &m.kernels[*k].body;
        visit::loads(body).into_iter().chain(visit::stores(body))
    };
    let views: HashSet<Buf> =
        users.iter().flat_map(accessed).filter(|b| *b != owner && m.storage(*b) == owner).collect();
    let dims = m.bufs[*views.iter().next()?].dims.clone();
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
