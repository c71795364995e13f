//! Buffers that are in use at the same time share no memory of the arena (stage Placed).
//!
//! Judged where offsets and sizes are numbers, by the statements of the driver between a buffer's first and
//! last use. Two buffers that only meet within one branch or loop of the driver are left alone: their order
//! inside tells.

use super::accessed;
use crate::nest::{Buf, Module, Place, Stmt};
use std::collections::HashMap;

struct Use {
    buf: Buf,
    /// Bytes: from .. to.
    memory: (i64, i64),
    /// Statements: first and last.
    time: (usize, usize),
}

/// Faults of a placed module.
pub(super) fn check(m: &Module) -> Vec<String> {
    let mut times: HashMap<Buf, (usize, usize)> = HashMap::new();
    for (i, s) in m.driver.iter().enumerate() {
        let mut touch = |b: Buf| {
            let t = times.entry(m.storage(b)).or_insert((i, i));
            t.1 = i;
        };
        s.walk(&mut |s| {
            s.loads().into_iter().chain(s.writes()).for_each(&mut touch);
            if let Stmt::Call(k) = s {
                let (reads, writes) = accessed(&m.kernels[*k].body);
                reads.into_iter().chain(writes).for_each(&mut touch);
            }
        });
    }
    let mut uses: Vec<Use> = times
        .into_iter()
        .filter_map(|(buf, time)| Some(Use { buf, memory: memory(m, buf)?, time }))
        .collect();
    uses.sort_by_key(|u| (u.memory, u.buf));
    let mut faults = vec![];
    for (i, a) in uses.iter().enumerate() {
        for b in uses[i + 1..].iter().take_while(|b| b.memory.0 < a.memory.1) {
            let (first, last) = (a.time.0.max(b.time.0), a.time.1.min(b.time.1));
            let whole = first < last || first == last && m.driver[first].bodies().next().is_none();
            if whole && b.memory.0 < b.memory.1 {
                faults.push(format!(
                    "buffers \"{}\" and \"{}\" share memory and are in use at the same time",
                    m.bufs[a.buf].name, m.bufs[b.buf].name
                ));
            }
        }
    }
    faults
}

/// The bytes of a buffer in the arena.
fn memory(m: &Module, b: Buf) -> Option<(i64, i64)> {
    let Place::Arena(s) = m.bufs[b].place else { return None };
    let at = m.slots[s].offset.as_const()?;
    let count = m.bufs[b].dims.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?))?;
    Some((at, at.checked_add(count.checked_mul(i64::from(m.element_bits(b).div_ceil(8)))?)?))
}
