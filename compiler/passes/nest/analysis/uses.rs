//! Writers and readers of each buffer. Passes that change one kernel after another update one [`Uses`]
//! instead of recomputing it after each change: an update costs the accesses of the changed kernels, a new
//! analysis the whole program.

use crate::maps::{Map, Set};
use crate::nest::{Buf, Kernel, Module, Place, Stmt, visit};
use crate::sym::Sym;
use cranelift_entity::SecondaryMap;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Writers and readers of each buffer (by storage), in driver order.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    /// Kernels in driver order.
    pub order: Vec<Kernel>,
    writers: Map<Buf, Vec<Kernel>>,
    readers: Map<Buf, Vec<Kernel>>,
    /// Buffers that statements of the driver read.
    pinned: Set<Buf>,
    /// Sizes that the driver redefines.
    again: Set<Sym>,
    /// Buffers that others are views of.
    viewed: Set<Buf>,
    /// The driver neither branches nor loops, so that nothing runs twice.
    straight: bool,
    /// A kernel is called more than once.
    repeated: bool,
    /// Position of the call of each kernel in the driver; `None` for kernels that are not called.
    place: SecondaryMap<Kernel, Option<u32>>,
    /// Buffers that each kernel writes and reads.
    accesses: SecondaryMap<Kernel, Accesses>,
    /// Kernels to which [`Uses::may_move`] has refused to move others.
    refused: RefCell<Set<Kernel>>,
}

/// Storage that a kernel writes and reads, without duplicates.
#[derive(Clone, Debug, Default)]
struct Accesses {
    writes: Vec<Buf>,
    reads: Vec<Buf>,
}

impl Accesses {
    fn new(m: &Module, k: Kernel) -> Self {
        let body = &m.kernels[k].body;
        let unique = |list: Vec<Buf>| {
            let mut seen = Set::default();
            list.into_iter().map(|b| m.storage(b)).filter(|b| seen.insert(*b)).collect()
        };
        Accesses { writes: unique(visit::stores(body)), reads: unique(visit::loads(body)) }
    }
}

impl Uses {
    /// Analyses every called kernel.
    pub fn new(m: &Module) -> Uses {
        let mut u = Uses { straight: true, ..Uses::default() };
        let mut defined = Set::default();
        visit::walk(&m.driver, &mut |s| {
            if let Stmt::Call(k) = s {
                u.repeated |= u.place[*k].is_some();
                if u.place[*k].is_none() {
                    u.place[*k] = Some(u.order.len() as u32);
                    u.accesses[*k] = Accesses::new(m, *k);
                }
                u.order.push(*k);
                let add = |t: &mut Map<Buf, Vec<Kernel>>, b: Buf| {
                    let v = t.entry(b).or_default();
                    if v.last() != Some(k) {
                        v.push(*k);
                    }
                };
                u.accesses[*k].writes.iter().for_each(|b| add(&mut u.writers, *b));
                u.accesses[*k].reads.iter().for_each(|b| add(&mut u.readers, *b));
            }
            u.pinned.extend(s.loads().into_iter().chain(s.writes()).map(|b| m.storage(b)));
            u.straight &= s.bodies().next().is_none();
            if let Stmt::Define { sym, .. } = s
                && !defined.insert(*sym)
            {
                u.again.insert(*sym);
            }
        });
        u.straight &= u.again.is_empty();
        let views = m.bufs.values().filter_map(|d| match d.place {
            Place::View(of) => Some(of),
            _ => None,
        });
        u.viewed = views.collect();
        u
    }
    /// Updates the analysis after a change: `changed` kernels have new bodies, and `replaced` calls were
    /// replaced by others. The driver and the bodies must be changed already, and nothing else in the driver.
    pub fn update(&mut self, m: &Module, changed: &[Kernel], replaced: &[(Kernel, &[Kernel])]) {
        if self.repeated {
            *self = Uses::new(m);
            return;
        }
        self.apply(m, changed, replaced);
        debug_assert!(self.agrees(m), "uses were not kept up to date");
    }
    /// The same if the driver is changed later. No kernel may be called twice.
    pub fn apply(&mut self, m: &Module, changed: &[Kernel], replaced: &[(Kernel, &[Kernel])]) {
        let mut touched = changed.to_vec();
        for (k, by) in replaced {
            let Some(at) = self.place[*k] else { continue };
            self.order.splice(at as usize..at as usize + 1, by.iter().copied());
            self.place[*k] = None;
            for (i, k) in self.order.iter().enumerate().skip(at as usize) {
                self.place[*k] = Some(i as u32);
            }
            touched.push(*k);
            touched.extend(*by);
        }
        touched.sort_unstable();
        touched.dedup();
        for k in &touched {
            let old = std::mem::take(&mut self.accesses[*k]);
            for (table, bufs) in [(&mut self.writers, old.writes), (&mut self.readers, old.reads)] {
                for b in bufs {
                    if let Some(list) = table.get_mut(&b) {
                        list.retain(|x| x != k);
                    }
                }
            }
        }
        for k in touched.into_iter().filter(|k| self.place[*k].is_some()) {
            let (new, place) = (Accesses::new(m, k), &self.place);
            for (table, bufs) in [(&mut self.writers, &new.writes), (&mut self.readers, &new.reads)] {
                for b in bufs {
                    let list = table.entry(*b).or_default();
                    list.insert(list.partition_point(|x| place[*x] < place[k]), k);
                }
            }
            self.accesses[k] = new;
        }
    }
    /// True if a new analysis gives the same result. For small programs only: it costs the whole program.
    fn agrees(&self, m: &Module) -> bool {
        if self.order.len() > 64 {
            return true;
        }
        let new = Uses::new(m);
        let filled = |t: &Map<Buf, Vec<Kernel>>| -> Map<Buf, Vec<Kernel>> {
            t.iter().filter(|x| !x.1.is_empty()).map(|(b, v)| (*b, v.clone())).collect()
        };
        new.order == self.order
            && filled(&new.writers) == filled(&self.writers)
            && filled(&new.readers) == filled(&self.readers)
            && new.pinned == self.pinned
            && new.straight == self.straight
    }
    /// True if the driver neither branches nor loops, and redefines nothing.
    pub fn is_straight(&self) -> bool {
        self.straight
    }
    /// True if the driver calls a kernel more than once.
    pub fn is_repeated(&self) -> bool {
        self.repeated
    }
    /// True if the driver calls the kernel.
    pub fn is_called(&self, k: Kernel) -> bool {
        self.place[k].is_some()
    }
    /// Position of the first call of a kernel among all calls.
    pub fn place(&self, k: Kernel) -> Option<u32> {
        self.place[k]
    }
    /// True if a statement of the driver reads the buffer, which must then exist.
    pub fn pinned(&self, b: Buf) -> bool {
        self.pinned.contains(&b)
    }
    /// True if another buffer was a view of this one when the analysis was computed.
    pub fn viewed(&self, b: Buf) -> bool {
        self.viewed.contains(&b)
    }
    /// True if the computation of kernel `from` may run at the call of kernel `to`: both calls are in one
    /// body of the driver, and no statement between them changes what `from` reads.
    pub fn may_move(&self, m: &Module, from: Kernel, to: Kernel) -> bool {
        let may = self.straight || self.passes(m, from, to);
        if !may {
            self.refused.borrow_mut().insert(to);
        }
        may
    }
    fn passes(&self, m: &Module, from: Kernel, to: Kernel) -> bool {
        if self.repeated && self.order.iter().filter(|k| **k == from || **k == to).count() != 2 {
            return false;
        }
        let Some(between) = between(&m.driver, from, to) else { return false };
        let body = &m.kernels[from].body;
        let reads: Set<Buf> = visit::loads(body).into_iter().map(|b| m.storage(b)).collect();
        let mut syms = Set::default();
        visit::walk(body, &mut |s| syms.extend(s.dims().into_iter().flat_map(|d| d.syms())));
        for b in visit::loads(body).into_iter().chain(visit::stores(body)) {
            syms.extend(
                m.bufs[b]
                    .dims
                    .iter()
                    .chain(&m.bufs[m.storage(b)].dims)
                    .flat_map(|d| d.syms())
                    .chain(m.pointer(b)),
            );
        }
        // The contents of a resized buffer are lost when an enclosing body redefines its size.
        let sized_again = |b: &Buf| m.bufs[*b].dims.iter().any(|d| self.again.iter().any(|s| d.contains(*s)));
        let passing = reads.iter().any(sized_again);
        // Nor may `to` overwrite the buffers that `from` reads.
        let mut free = !visit::stores(&m.kernels[to].body).into_iter().any(|b| reads.contains(&m.storage(b)));
        visit::walk(between, &mut |s| match s {
            Stmt::Define { sym, .. } => free &= !(syms.contains(sym) || passing && self.again.contains(sym)),
            Stmt::Call(k) => {
                free &= !visit::stores(&m.kernels[*k].body).into_iter().any(|b| reads.contains(&m.storage(b)))
            }
            s => free &= !s.writes().into_iter().any(|b| reads.contains(&m.storage(b))),
        });
        free
    }
    /// Kernels that write a buffer.
    pub fn writers(&self, b: Buf) -> &[Kernel] {
        self.writers.get(&b).map_or(&[], |v| v)
    }
    /// Kernels that read a buffer or a view of it.
    pub fn readers(&self, b: Buf) -> &[Kernel] {
        self.readers.get(&b).map_or(&[], |v| v)
    }
    /// Storage that a kernel writes.
    pub fn writes(&self, k: Kernel) -> &[Buf] {
        &self.accesses[k].writes
    }
    /// Storage that a kernel reads.
    pub fn reads(&self, k: Kernel) -> &[Buf] {
        &self.accesses[k].reads
    }
    /// Storage that a kernel writes, then storage that it reads.
    pub fn accesses(&self, k: Kernel) -> impl Iterator<Item = Buf> {
        self.writes(k).iter().chain(self.reads(k)).copied()
    }
}

/// The statements between two calls of one body of the driver.
fn between(body: &[Stmt], from: Kernel, to: Kernel) -> Option<&[Stmt]> {
    let at = |k: Kernel| body.iter().position(|s| matches!(s, Stmt::Call(x) if *x == k));
    match (at(from), at(to)) {
        (Some(a), Some(b)) if a < b => Some(&body[a + 1..b]),
        (None, None) => body.iter().flat_map(Stmt::bodies).find_map(|b| between(b, from, to)),
        _ => None,
    }
}

/// Worklist of kernels in driver order. A pass that restarts after each change would re-examine kernels whose
/// surroundings are unchanged; this list re-adds only kernels that depend on the change.
#[derive(Debug)]
pub struct Pending {
    /// (position when the list was made, kernel): removing calls does not change the order of the others.
    queue: BTreeSet<(u32, Kernel)>,
    place: SecondaryMap<Kernel, Option<u32>>,
}

impl Pending {
    /// All called kernels that pass the filter.
    pub fn new(uses: &Uses, filter: impl Fn(Kernel) -> bool) -> Pending {
        uses.refused.borrow_mut().clear();
        let mut p = Pending { queue: BTreeSet::new(), place: SecondaryMap::new() };
        for k in uses.order.iter().copied().filter(|k| filter(*k)) {
            p.place[k] = uses.place[k];
            p.push(k);
        }
        p
    }
    /// Removes and returns the next kernel that is still called.
    pub fn pop(&mut self, uses: &Uses) -> Option<Kernel> {
        std::iter::from_fn(|| self.queue.pop_first()).map(|x| x.1).find(|k| uses.is_called(*k))
    }
    /// Adds a kernel again, if the list was made with it.
    pub fn push(&mut self, k: Kernel) {
        if let Some(at) = self.place[k] {
            self.queue.insert((at, k));
        }
    }
    /// Adds the kernels to which a move was refused: it may be possible after a change.
    pub fn push_refused(&mut self, uses: &Uses) {
        for k in uses.refused.borrow_mut().drain() {
            self.push(k);
        }
    }
}
