//! Memory for buffers with a run-time size that has no upper bound: it is allocated at the end of the
//! workspace, whose size the caller passes. If it does not suffice, the call returns `E_CAPACITY`.
//!
//! Two stacks grow towards each other. A buffer is allocated on the lower one when the driver has defined its
//! sizes, and freed when the body that defined them ends. If an inner body *redefines* a size (a loop-carried
//! value, the result of a branch), its buffer gets new memory at that point: all buffers of the inner body
//! are dead by then, except for the source of the new contents. That one is on the upper stack, where nothing
//! moves. Buffers that get new memory at one point are consecutive there, wherever their sizes were first
//! defined. A growable buffer (`passes/lower/append_buffers`) keeps its memory while no buffer of its group
//! changes its size: such buffers are below the others.
//!
//! The pass adds driver statements for this: `low`, `top` and the addresses are run-time sizes like others.

use crate::nest::{BinOp, Buf, Expr, Module, Place, Reason, Slot, SlotData, Status, Stmt, Subject};
use crate::passes::nest::memory::place_memory;
use crate::passes::nest::memory::place_memory::lifetimes::Lifetimes;
use crate::sym::{Answer, Dim, Sym, SymKind};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A buffer, or several that reuse the same memory one after the other.
struct Piece {
    bufs: Vec<Buf>,
    last: usize,
    size: Dim,
    top: bool,
    place: Sym,
}

/// Buffers whose sizes become known at the same point.
struct Group {
    scope: usize,
    /// The top of the lower stack before the first of them, for sizes that are redefined.
    base: Option<Sym>,
    bufs: Vec<Buf>,
    pieces: Vec<Piece>,
}

struct Late {
    syms: BTreeSet<Sym>,
    group: Option<usize>,
    top: bool,
}

struct Planner<'a> {
    m: &'a mut Module,
    l: &'a Lifetimes,
    low: Sym,
    top: Sym,
    order: Vec<Buf>,
    late: HashMap<Buf, Late>,
    /// Sizes that are redefined.
    mutable: HashSet<Sym>,
    groups: Vec<Group>,
    /// Bodies in order: the groups that they redefine, and whether they use the stacks.
    scopes: Vec<ScopeUse>,
    next: usize,
    at_scope: usize,
}

#[derive(Clone, Default)]
struct ScopeUse {
    again: bool,
    low: bool,
    top: bool,
}

/// Allocates `late` after `end`; returns the size of the workspace.
pub fn place(m: &mut Module, l: &Lifetimes, late: &[Buf], end: Dim) -> Dim {
    if late.is_empty() {
        return end;
    }
    let all = end + m.heap;
    let (low, top) = (m.syms.fresh(SymKind::Runtime, "low"), m.syms.fresh(SymKind::Runtime, "top"));
    let mut count: HashMap<Sym, usize> = HashMap::new();
    crate::nest::visit::walk(&m.driver, &mut |s| {
        if let Stmt::Define { sym, .. } = s {
            *count.entry(*sym).or_default() += 1;
        }
    });
    let mutable = count.into_iter().filter(|c| c.1 > 1).map(|c| c.0).collect();
    let sizes = |b: &Buf| {
        let syms = m.bufs[*b]
            .dims
            .iter()
            .flat_map(|d| d.syms())
            .filter(|s| m.syms.kind(*s) == SymKind::Runtime)
            .collect();
        (*b, Late { syms, group: None, top: false })
    };
    let late_map = late.iter().map(sizes).collect();
    let mut driver = std::mem::take(&mut m.driver);
    let mut p = Planner {
        m,
        l,
        low,
        top,
        order: late.to_vec(),
        late: late_map,
        mutable,
        groups: vec![],
        scopes: vec![ScopeUse::default()],
        next: 0,
        at_scope: 0,
    };
    p.find(&driver, 0, &mut HashSet::new());
    p.pieces();
    p.at_scope = 0;
    driver = p.insert(driver, 0, &mut HashSet::new());
    let first = driver.iter().position(|s| !matches!(s, Stmt::Check { .. })).unwrap_or(driver.len());
    let last = p.m.syms.fresh(SymKind::Runtime, "end");
    driver.splice(first..first, [set(low, end), set(last, all), set(top, last)]);
    p.m.driver = driver;
    m.end = Some(last);
    all
}

/// The message of a failed capacity check: `{0}` bytes are required, `{1}` are left.
fn reason(m: &Module, bufs: &[Buf], size: Dim, left: Dim) -> Reason {
    let name = bufs.first().map_or("", |b| m.bufs[*b].name.as_str());
    let rule =
        format!("\"{}\" takes {{0}} bytes, and the workspace has {{1}} left", name.replace(['{', '}'], "_"));
    Reason { source: Arc::default(), rule, subjects: vec![Subject::Value(size), Subject::Value(left)] }
}

fn set(sym: Sym, value: impl Into<Dim>) -> Stmt {
    Stmt::Define { sym, value: Expr::Index(value.into()), lo: Dim::constant(0), hi: None }
}

/// The sizes of one kind (defined once, or redefined) that consecutive statements from `i` on define.
fn run(body: &[Stmt], i: usize, mutable: &HashSet<Sym>) -> Vec<Sym> {
    let mut out: Vec<Sym> = vec![];
    for s in &body[i..] {
        match s {
            Stmt::Define { sym, .. }
                if out.first().is_none_or(|f| mutable.contains(f) == mutable.contains(sym)) =>
            {
                out.push(*sym)
            }
            _ => break,
        }
    }
    out
}

impl Planner<'_> {
    /// Buffers whose size becomes known, or changes, once `run` is defined.
    fn due(&self, run: &[Sym], known: &HashSet<Sym>) -> Vec<Buf> {
        let due = |b: &&Buf| {
            self.late.get(*b).is_some_and(|x| {
                x.syms.iter().any(|s| run.contains(s)) && x.syms.iter().all(|s| known.contains(s))
            })
        };
        self.order.iter().filter(due).copied().collect()
    }
    /// Finds the groups, and the buffers that belong on the upper stack. Numbers statements as `Lifetimes`
    /// does.
    fn find(&mut self, body: &[Stmt], scope: usize, known: &mut HashSet<Sym>) {
        let mut i = 0;
        while i < body.len() {
            let syms = run(body, i, &self.mutable);
            if syms.is_empty() {
                let s = &body[i];
                self.next += 1;
                for b in s.bodies() {
                    let inner = self.scopes.len();
                    self.scopes.push(ScopeUse::default());
                    self.find(b, inner, &mut known.clone());
                    self.next += 1;
                }
                i += 1;
                continue;
            }
            known.extend(syms.iter().copied());
            self.next += syms.len();
            i += syms.len();
            let due = self.due(&syms, known);
            let fresh: Vec<Buf> = due.iter().copied().filter(|b| self.late[b].group.is_none()).collect();
            if !fresh.is_empty() {
                let again = self.mutable.contains(&syms[0]);
                let base = again.then(|| self.m.syms.fresh(SymKind::Runtime, "base"));
                fresh.iter().for_each(|b| {
                    if let Some(x) = self.late.get_mut(b) {
                        x.group = Some(self.groups.len());
                    }
                });
                self.scopes[scope].low = true;
                self.groups.push(Group { scope, base, bufs: fresh.clone(), pieces: vec![] });
            }
            if due.len() > fresh.len() {
                self.scopes[scope].again = true;
                // A buffer that is live across this point belongs on the upper stack if it lies after the
                // redefined group.
                let first = due.iter().filter_map(|b| self.late[b].group).min();
                for (b, x) in &mut self.late {
                    let Some((index, g)) = x.group.map(|g| (g, &self.groups[g])) else { continue };
                    if Some(index) > first && g.base.is_none() && self.l.span(*b).last >= self.next {
                        x.top = true;
                        self.scopes[g.scope].top = true;
                    }
                }
            }
        }
    }
    /// Lets buffers of one group share memory if their live ranges are disjoint and one provably fits.
    fn pieces(&mut self) {
        for g in 0..self.groups.len() {
            let mut pieces: Vec<Piece> = vec![];
            let mut bufs = self.groups[g].bufs.clone();
            // Growable buffers keep their address while none of them grows, since all redefined buffers
            // follow them.
            bufs.sort_by_key(|b| (!matches!(self.m.bufs[*b].place, Place::Growable), self.l.span(*b).first));
            for b in bufs {
                let (span, size, top) = (self.l.span(b), place_memory::bytes(self.m, b), self.late[&b].top);
                let share = self.groups[g].base.is_none();
                let fits = |p: &&mut Piece| {
                    share
                        && p.top == top
                        && p.last < span.first
                        && self.m.syms.le(size, p.size) == Answer::Yes
                };
                match pieces.iter_mut().find(fits) {
                    Some(p) => {
                        p.last = span.last;
                        p.bufs.push(b);
                    }
                    None => {
                        let place = self.m.syms.fresh(SymKind::Runtime, "at");
                        pieces.push(Piece { bufs: vec![b], last: span.last, size, top, place });
                    }
                }
            }
            for p in &pieces {
                let slot: Slot = self.m.slots.push(SlotData { offset: p.place.into(), size: p.size });
                p.bufs.iter().for_each(|b| self.m.bufs[*b].place = Place::Arena(slot));
            }
            self.groups[g].pieces = pieces;
        }
    }
    /// Statements that allocate a group.
    fn take(&mut self, g: usize, again: bool) -> Vec<Stmt> {
        let mut out = vec![];
        let (low, top) = (Dim::sym(self.low), Dim::sym(self.top));
        for p in &self.groups[g].pieces {
            let why = reason(self.m, &p.bufs, p.size, top - low);
            self.m.reasons.check(&Expr::cmp_index(BinOp::Le, low + p.size, top), why);
        }
        let group = &self.groups[g];
        if let Some(base) = group.base {
            out.push(if again { set(self.low, base) } else { set(base, low) });
        }
        for p in &group.pieces {
            out.push(Stmt::Check {
                cond: Expr::cmp_index(BinOp::Le, low + p.size, top),
                status: Status::Capacity,
            });
            if p.top {
                out.extend([set(self.top, top - p.size), set(p.place, top)]);
            } else {
                out.extend([set(p.place, low), set(self.low, low + p.size)]);
            }
        }
        out
    }
    fn insert(&mut self, body: Vec<Stmt>, scope: usize, known: &mut HashSet<Sym>) -> Vec<Stmt> {
        let used = self.scopes[scope].clone();
        let mut out = vec![];
        let mut after = vec![];
        if scope != 0 && used.low && !used.again {
            let saved = self.m.syms.fresh(SymKind::Runtime, "mark");
            out.push(set(saved, self.low));
            after.push(set(self.low, saved));
        }
        if scope != 0 && used.top {
            let saved = self.m.syms.fresh(SymKind::Runtime, "mark");
            out.push(set(saved, self.top));
            after.push(set(self.top, saved));
        }
        let mut i = 0;
        while i < body.len() {
            let syms = run(&body, i, &self.mutable);
            if syms.is_empty() {
                let mut s = body[i].clone();
                for b in s.bodies_mut() {
                    self.at_scope += 1;
                    let (inner, list) = (self.at_scope, std::mem::take(b));
                    *b = self.insert(list, inner, &mut known.clone());
                }
                out.push(s);
                i += 1;
                continue;
            }
            known.extend(syms.iter().copied());
            out.extend_from_slice(&body[i..i + syms.len()]);
            i += syms.len();
            let due = self.due(&syms, known);
            let mut groups: Vec<usize> = due.iter().filter_map(|b| self.late[b].group).collect();
            groups.sort_unstable();
            groups.dedup();
            // The first redefined group frees itself and all groups after it; the others follow it.
            let mut gives_back = true;
            for g in groups {
                let again = self.groups[g].scope != scope;
                out.extend(self.take(g, again && std::mem::replace(&mut gives_back, false)));
            }
        }
        out.extend(after);
        out
    }
}
