//! Buffers that are live at the same time share no memory of the arena (stage Placed).
//!
//! This is checked if offsets and sizes are numbers, by the statements of the driver between the first and
//! last use of a buffer. Two buffers whose live ranges only overlap within one branch or loop of the driver
//! are not checked, since the order inside decides.

use super::accessed;
use crate::nest::{Buf, Module, Place, Stmt};
use crate::sym::{Dim, Sym};
use std::collections::HashMap;

/// Live ranges of buffers.
pub(super) struct Lives<'a> {
    m: &'a Module,
    /// First and last statement of the driver.
    times: Vec<(Buf, (usize, usize))>,
}

/// Bytes of a buffer.
struct Use {
    buf: Buf,
    from: i64,
    to: i64,
    time: (usize, usize),
}

impl<'a> Lives<'a> {
    /// For all buffers in the arena of a placed module; empty for earlier stages.
    pub fn new(m: &'a Module) -> Self {
        let mut times: HashMap<Buf, (usize, usize)> = HashMap::new();
        for (i, s) in m.driver.iter().enumerate() {
            let mut touch = |b: Buf| {
                let owner = m.storage(b);
                if matches!(m.bufs[owner].place, Place::Arena(_)) {
                    times.entry(owner).or_insert((i, i)).1 = i;
                }
            };
            s.walk(&mut |s| {
                s.loads().into_iter().chain(s.writes()).for_each(&mut touch);
                if let Stmt::Call(k) = s {
                    let (reads, writes) = accessed(&m.kernels[*k].body);
                    reads.into_iter().chain(writes).for_each(&mut touch);
                }
            });
        }
        Lives { m, times: times.into_iter().collect() }
    }
    /// The faults, given values of the symbols. Buffers whose location is not determined have none.
    pub fn faults(&self, value: &dyn Fn(Sym) -> Option<i64>) -> Vec<String> {
        let m = self.m;
        let mut faults = vec![];
        let mut uses: Vec<Use> = vec![];
        for (buf, time) in &self.times {
            let Some((from, to, end)) = self.memory(*buf, value) else { continue };
            if to > end {
                faults.push(format!(
                    "buffer \"{}\": {from}..{to} is beyond its slot, which ends at {end}",
                    m.bufs[*buf].name
                ));
            }
            uses.push(Use { buf: *buf, from, to, time: *time });
        }
        uses.sort_by_key(|u| (u.from, u.to, u.buf));
        for (i, a) in uses.iter().enumerate() {
            for b in uses[i + 1..].iter().take_while(|b| b.from < a.to).filter(|b| b.from < b.to) {
                let (first, last) = (a.time.0.max(b.time.0), a.time.1.min(b.time.1));
                if first < last || first == last && m.driver[first].bodies().next().is_none() {
                    faults.push(format!(
                        "buffers \"{}\" and \"{}\" share memory and are in use at the same time",
                        m.bufs[a.buf].name, m.bufs[b.buf].name
                    ));
                }
            }
        }
        faults.sort();
        faults
    }
    /// The bytes of a buffer in the arena: start, end, and the end of its slot (or of the workspace, if
    /// smaller).
    fn memory(&self, b: Buf, value: &dyn Fn(Sym) -> Option<i64>) -> Option<(i64, i64, i64)> {
        let m = self.m;
        let number = |d: Dim| d.as_const().or_else(|| d.eval(value));
        let Place::Arena(s) = m.bufs[b].place else { return None };
        let (at, size) = (number(m.slots[s].offset)?, number(m.slots[s].size)?);
        let count = m.bufs[b].dims.iter().try_fold(1i64, |n, d| n.checked_mul(number(*d)?))?;
        let to = at.checked_add(count.checked_mul(i64::from(m.element_bits(b).div_ceil(8)))?)?;
        Some((at, to, at.checked_add(size)?.min(number(m.workspace)?)))
    }
}
