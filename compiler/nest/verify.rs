//! The verifier: the rules of the module head, checked. A fault is a bug of the pass that ran before.
//!
//! Buffers, places and the driver's order are checked here; the body of one kernel (or of the driver) in
//! `check`, stores of parallel iterations in `races`, scratch of an iteration in `private`, memory that is
//! shared over time in `arena`. `sizes` follows the module with small numbers in place of symbols.

mod arena;
mod private;
mod races;
mod sizes;

use super::check::{Body, Fault};
use super::facts::Facts;
use super::*;
use crate::diag::{Failure, Result};
use crate::sym::{Answer, SymKind};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

/// How many faults a report lists.
const MAX_FAULTS: usize = 20;

/// Properties of a CPU level that the rules refer to.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Number of 32-bit lanes of a vector; 1 without vectors.
    pub lanes: u32,
    /// Dot products.
    pub groups: Vec<DotKind>,
}

/// Checks a module; fails with a bug that lists the faults, each with its kernel and statement.
pub fn verify(m: &Module) -> Result<()> {
    verify_for(m, None)
}

/// Verifies a module for a CPU level.
pub fn verify_for(m: &Module, limits: Option<&Limits>) -> Result<()> {
    let mut v = Verifier {
        m,
        limits,
        faults: vec![],
        checked: HashMap::new(),
        params: m.dim_params.iter().copied().collect(),
        sizes: HashSet::new(),
        written: HashSet::new(),
    };
    debug_assert!(m.kernels.values().all(|k| k.body.knows_itself()), "a body is not what it was taken for");
    v.buffers();
    v.signature();
    v.kernels();
    v.order(&m.driver);
    if m.stage == Stage::Placed {
        v.faults.extend(arena::Lives::new(m).faults(&|_| None));
    }
    if m.stage != Stage::Built {
        v.small_sizes();
    }
    // An output without elements need not be written.
    for b in m
        .outputs
        .iter()
        .filter(|b| !v.written.contains(*b) && m.bufs[**b].dims.iter().all(|d| d.as_const() != Some(0)))
    {
        v.faults.push(format!("output \"{}\" is never written", m.bufs[*b].name));
    }
    if v.faults.is_empty() { Ok(()) } else { Err(Failure::bug("verify nest", report(v.faults))) }
}

fn report(mut faults: Vec<String>) -> String {
    let more = faults.len().saturating_sub(MAX_FAULTS);
    faults.truncate(MAX_FAULTS);
    if more > 0 {
        faults.push(format!("{more} more faults are not shown"));
    }
    faults.join("\n")
}

/// What the driver must know about a kernel.
struct Uses {
    /// Symbols of the dims in it that the kernel does not define itself.
    free: HashSet<Sym>,
    reads: Vec<Buf>,
    writes: Vec<Buf>,
}

struct Verifier<'a> {
    m: &'a Module,
    limits: Option<&'a Limits>,
    faults: Vec<String>,
    checked: HashMap<Kernel, Uses>,
    params: HashSet<Sym>,
    /// Run-time symbols defined so far.
    sizes: HashSet<Sym>,
    /// Buffers (that own their memory) written so far.
    written: HashSet<Buf>,
}

impl Verifier<'_> {
    fn fault(&mut self, text: impl Into<String>) {
        self.faults.push(text.into());
    }
    fn buffers(&mut self) {
        let m = self.m;
        for b in self.used_buffers() {
            let d = &m.bufs[b];
            let name = &d.name;
            for s in d.dims.iter().flat_map(|x| x.syms()) {
                if m.syms.kind(s) == SymKind::Loop {
                    self.fault(format!(
                        "buffer \"{name}\": its shape depends on the loop variable {}",
                        m.syms.unique_name(s)
                    ));
                }
            }
            if d.dims.iter().any(|x| x.is_overflow()) {
                self.fault(format!("buffer \"{name}\": a dimension has no 64-bit value"));
            }
            if let Layout::Permuted(p) = &d.layout {
                let mut sorted = p.clone();
                sorted.sort_unstable();
                if sorted != (0..d.dims.len()).collect::<Vec<_>>() {
                    self.fault(format!(
                        "buffer \"{name}\": order {p:?} is no permutation of its {} dimensions",
                        d.dims.len()
                    ));
                }
            }
            self.place(b);
        }
    }
    /// Buffers of the signature and of called kernels, with the owners of their memory.
    fn used_buffers(&self) -> Vec<Buf> {
        let m = self.m;
        let mut seen = HashSet::new();
        let mut out: Vec<Buf> = vec![];
        let mut add = |b: Buf| {
            for b in [b, m.storage(b)] {
                if seen.insert(b) {
                    out.push(b);
                }
            }
        };
        m.inputs.iter().chain(&m.outputs).for_each(|b| add(*b));
        visit::walk(&m.driver, &mut |s| s.loads().into_iter().chain(s.writes()).for_each(&mut add));
        for k in called(m) {
            let body = &m.kernels[k].body;
            visit::walk(body, &mut |s| {
                if let Stmt::Store { buf, .. } = s {
                    add(*buf);
                }
            });
            visit::loads(body).into_iter().for_each(&mut add);
        }
        out
    }
    fn place(&mut self, b: Buf) {
        let m = self.m;
        let d = &m.bufs[b];
        let (name, plain) = (&d.name, d.layout == Layout::RowMajor);
        let fault = match &d.place {
            Place::Input(i) if m.inputs.get(*i as usize) != Some(&b) => {
                Some(format!("buffer \"{name}\" is not input {i} of the signature"))
            }
            Place::Output(i) if m.outputs.get(*i as usize) != Some(&b) => {
                Some(format!("buffer \"{name}\" is not output {i} of the signature"))
            }
            Place::Input(_) | Place::Output(_) => {
                (!plain).then(|| format!("buffer \"{name}\" belongs to the caller and is not row-major"))
            }
            Place::Const(c) => self.constant(b, c),
            place if place.is_scratch() && m.stage == Stage::Placed => {
                Some(format!("buffer \"{name}\" has no place"))
            }
            Place::Foreign => {
                (!plain).then(|| format!("buffer \"{name}\" is handed to a function, and is not row-major"))
            }
            Place::Temp | Place::Growable => None,
            Place::Pointer(s) => (m.syms.kind(*s) != SymKind::Runtime || !plain)
                .then(|| format!("buffer \"{name}\" begins at no run-time symbol, or is not row-major")),
            Place::View(of) => return self.view(b, *of),
            Place::Arena(s) => self.slot(b, *s),
        };
        fault.into_iter().for_each(|f| self.fault(f));
        if matches!(d.place, Place::Arena(_)) && m.stage != Stage::Placed {
            self.fault(format!("buffer \"{name}\" has a slot before memory is placed"));
        }
    }
    /// The fault of a constant: its data must have the type and the size of the buffer.
    fn constant(&self, b: Buf, c: &ConstData) -> Option<String> {
        let (m, d) = (self.m, &self.m.bufs[b]);
        let count = d.count();
        let fits = c.elem() == d.ty && count.as_const() == i64::try_from(c.count()).ok();
        (!fits).then(|| {
            format!(
                "constant \"{}\": found {} elements of type {}, expected {} of type {}",
                d.name,
                c.count(),
                c.elem().short(),
                count.display(&m.syms),
                d.ty.short()
            )
        })
    }
    /// A view must cover all of a buffer that is not a view.
    fn view(&mut self, b: Buf, of: Buf) {
        let m = self.m;
        let (d, base) = (&m.bufs[b], &m.bufs[of]);
        let name = &d.name;
        if !(row_major(base) && row_major(d) || in_order_of(d, base)) {
            self.fault(format!(
                "view \"{name}\" of \"{}\": both must be row-major, or differ in the innermost dimension only",
                base.name
            ));
        }
        if matches!(base.place, Place::View(_)) {
            self.fault(format!("view \"{name}\" is a view of the view \"{}\"", base.name));
        }
        let bytes = |n: Dim, x: Buf| (n * i64::from(m.element_bits(x))).ceil_div(8);
        let (found, expected) = (bytes(d.count(), b), bytes(base.count(), of));
        // Sizes that are equal only under a condition of the driver cannot be proven equal here.
        let certain = found.as_const().is_some() && expected.as_const().is_some();
        if m.syms.eq(found, expected) == Answer::No && certain {
            self.fault(format!(
                "view \"{name}\": found {} elements, expected the {} of \"{}\"",
                d.count().display(&m.syms),
                base.count().display(&m.syms),
                base.name
            ));
        }
    }
    /// The fault of a buffer's slot: it must be aligned, and large enough.
    fn slot(&self, b: Buf, s: Slot) -> Option<String> {
        let (m, d, slot) = (self.m, &self.m.bufs[b], &self.m.slots[s]);
        let bytes = d.count() * i64::from(m.element_bits(b).div_ceil(8));
        let facts = Facts::new(&m.syms);
        let fits = facts.le(bytes, slot.size) || facts.le(m.syms.simplify(bytes), slot.size);
        // The bound of a run-time size holds even if a later check requires another value.
        let bounded = || m.syms.upper(bytes).is_some_and(|most| facts.le(most, slot.size));
        let open =
            !fits && bytes.as_const().is_none() && (m.syms.le(bytes, slot.size) != Answer::No || bounded());
        let aligned = m.syms.divides(Dim::constant(64), slot.offset) != Answer::No;
        (!(fits || open) || !aligned).then(|| {
            let [n, at, size] = [bytes, slot.offset, slot.size].map(|d| d.display(&m.syms).to_string());
            format!("buffer \"{}\" of {n} bytes does not fit its slot of {size} bytes at {at}", d.name)
        })
    }
    fn signature(&mut self) {
        let m = self.m;
        for b in &m.inputs {
            if !matches!(m.bufs[*b].place, Place::Input(_)) {
                self.fault(format!("input \"{}\" is not in the caller's memory", m.bufs[*b].name));
            }
        }
        for b in &m.outputs {
            if !matches!(m.bufs[*b].place, Place::Output(_)) {
                self.fault(format!("output \"{}\" is not in the caller's memory", m.bufs[*b].name));
            }
        }
        for b in &m.inputs {
            self.known(
                &m.bufs[*b].dims.iter().flat_map(|d| d.syms()).collect(),
                &format!("buffer \"{}\"", m.bufs[*b].name),
                true,
            );
        }
    }
    fn kernels(&mut self) {
        let (m, limits) = (self.m, self.limits);
        let bodies: Vec<_> = called(m)
            .into_par_iter()
            .map(|k| {
                let mut body = Body::new(m, Some(k), limits);
                body.block(&m.kernels[k].body);
                let (free, mut faults) = body.finish();
                races::check(m, &m.kernels[k].body, &mut faults);
                let private = private::check(m, &m.kernels[k].body, &mut faults);
                (k, (free, faults), private)
            })
            .collect();
        let mut owners = HashMap::new();
        for (k, _, private) in &bodies {
            private.iter().for_each(|b| _ = owners.insert(*b, *k));
        }
        for (k, (mut free, faults), _) in bodies {
            let d = &m.kernels[k];
            let (reads, writes) = accessed(&d.body);
            for b in reads.iter().chain(&writes) {
                if let Some(owner) = owners.get(&m.storage(*b)).filter(|owner| **owner != k) {
                    let (name, owner) = (&m.bufs[*b].name, &m.kernels[*owner].name);
                    self.fault(format!("kernel {}: \"{name}\" is private to kernel {owner}", d.name));
                }
                free.extend(m.bufs[*b].dims.iter().flat_map(|d| d.syms()).chain(m.pointer(*b)));
            }
            self.checked.insert(k, Uses { free, reads, writes });
            self.place_faults(&format!("kernel {}", d.name), &d.body, faults);
        }
        let mut driver = Body::new(m, None, limits);
        driver.block(&m.driver);
        let (_, faults) = driver.finish();
        self.place_faults("driver", &m.driver, faults);
    }
    /// Tests with small numbers what no proof over symbols decides.
    fn small_sizes(&mut self) {
        let m = self.m;
        let mut found = sizes::check(m);
        self.faults.append(&mut found.buffers);
        for (kernel, fault) in found.statements {
            match kernel {
                Some(k) => self.place_faults(
                    &format!("kernel {}", m.kernels[k].name),
                    &m.kernels[k].body,
                    vec![fault],
                ),
                None => self.place_faults("driver", &m.driver, vec![fault]),
            }
        }
    }
    fn place_faults(&mut self, whose: &str, body: &[Stmt], faults: Vec<Fault>) {
        if faults.is_empty() {
            return;
        }
        let heads = print::heads(self.m, body);
        for f in faults {
            let head = heads.get(&f.stmt).map_or("", String::as_str);
            self.fault(format!("{whose}: {}\n    {head}", f.text));
        }
    }
    /// The operands of a kernel must be defined when it is called.
    fn order(&mut self, body: &[Stmt]) {
        let m = self.m;
        for s in body {
            match s {
                Stmt::Call(k) => {
                    let Some(u) = self.checked.remove(k) else { continue };
                    let who = format!("kernel {}", m.kernels[*k].name);
                    self.known(&u.free, &who, false);
                    for b in &u.reads {
                        let owner = m.storage(*b);
                        let empty = m.bufs[owner].dims.iter().any(|d| d.as_const() == Some(0));
                        let ready = empty
                            || is_given(m, owner)
                            || self.written.contains(&owner)
                            || u.writes.iter().any(|w| m.storage(*w) == owner);
                        if !ready {
                            self.fault(format!(
                                "{who} reads \"{}\" before anything is written there",
                                m.bufs[*b].name
                            ));
                        }
                    }
                    for b in &u.writes {
                        let owner = m.storage(*b);
                        if is_given(m, owner) {
                            self.fault(format!("{who} writes \"{}\", which is read-only", m.bufs[*b].name));
                        }
                        self.written.insert(owner);
                    }
                    self.checked.insert(*k, u);
                }
                Stmt::Foreign(f) => {
                    self.statement(s);
                    self.custom(f);
                    for b in &f.to {
                        self.known(
                            &m.bufs[*b].dims.iter().flat_map(|d| d.syms()).collect(),
                            "a call of a function",
                            false,
                        );
                        self.written.insert(m.storage(*b));
                    }
                }
                Stmt::Define { sym, .. } => {
                    if m.syms.kind(*sym) != SymKind::Runtime {
                        self.fault(format!("driver: {} is no run-time size", m.syms.unique_name(*sym)));
                    }
                    self.statement(s);
                    self.sizes.insert(*sym);
                }
                s => {
                    self.statement(s);
                    for b in s.bodies() {
                        // Definitions of a body end with it.
                        let outer = self.sizes.clone();
                        self.order(b);
                        self.sizes = outer;
                    }
                }
            }
        }
    }
    /// The operands of the statement itself must be defined.
    fn statement(&mut self, s: &Stmt) {
        let m = self.m;
        let mut free: HashSet<Sym> = s.dims().into_iter().flat_map(|d| d.syms()).collect();
        for b in s.loads() {
            free.extend(m.bufs[b].dims.iter().flat_map(|d| d.syms()).chain(m.pointer(b)));
            let owner = m.storage(b);
            // The address of an output is known before it has contents.
            let mut contents = !matches!(m.bufs[owner].place, Place::Output(_));
            s.expr()
                .iter()
                .for_each(|e| e.walk(&mut |e| contents |= matches!(e, Expr::Load { buf, .. } if *buf == b)));
            if contents && !is_given(m, owner) && !self.written.contains(&owner) {
                self.fault(format!(
                    "the driver reads \"{}\" before anything is written there",
                    m.bufs[b].name
                ));
            }
        }
        self.known(&free, "a statement of the driver", false);
    }
    /// Operands of a custom operator are those that it names.
    fn custom(&mut self, f: &Foreign) {
        let foreign::Function::Custom(n) = f.function else { return };
        let count = |mask: &[bool]| mask.iter().filter(|given| **given).count();
        let fits = self.m.customs.get(n as usize).is_some_and(|c| {
            (count(&c.inputs), count(&c.outputs)) == (f.from.len(), f.to.len()) && !f.to.is_empty()
        });
        if !fits {
            self.fault(format!("custom operator {n} has other operands"));
        }
    }
    /// Dims in use must depend on parameters and on sizes defined so far.
    fn known(&mut self, free: &HashSet<Sym>, who: &str, early: bool) {
        let m = self.m;
        let mut missing: Vec<Sym> = free
            .iter()
            .copied()
            .filter(|s| match m.syms.kind(*s) {
                SymKind::Param | SymKind::Unnamed => {
                    !self.params.contains(s) && m.syms.bound_value(*s).is_none()
                }
                SymKind::Runtime => !early && !self.sizes.contains(s),
                SymKind::Loop | SymKind::Derived => false,
            })
            .collect();
        missing.sort_unstable();
        for s in missing {
            self.fault(format!("{who} depends on {}, which is not defined", m.syms.unique_name(s)));
        }
    }
}

/// True for existing read-only memory.
fn is_given(m: &Module, owner: Buf) -> bool {
    matches!(m.bufs[owner].place, Place::Const(_) | Place::Input(_) | Place::Pointer(_))
}

/// True if the physical order is the logical one; dimensions of size 1 do not matter.
fn row_major(d: &BufData) -> bool {
    match &d.layout {
        Layout::RowMajor => true,
        Layout::Permuted(p) => {
            p.iter().filter(|i| d.dims.get(**i).and_then(|x| x.as_const()) != Some(1)).is_sorted()
        }
    }
}

/// True if a view has the memory order and the shape of its base, except for the innermost dimension.
fn in_order_of(d: &BufData, base: &BufData) -> bool {
    let Layout::Permuted(p) = &d.layout else { return false };
    let same = |i: &usize| d.dims.get(*i).is_some_and(|n| base.dims.get(*i) == Some(n));
    d.layout == base.layout
        && d.dims.len() == base.dims.len()
        && p.split_last().is_some_and(|(_, outer)| outer.iter().all(same))
}

/// Kernels in the order of their first calls.
fn called(m: &Module) -> Vec<Kernel> {
    let mut seen = HashSet::new();
    let mut out = vec![];
    visit::walk(&m.driver, &mut |s| {
        if let Stmt::Call(k) = s
            && seen.insert(*k)
        {
            out.push(*k);
        }
    });
    out
}

fn accessed(body: &[Stmt]) -> (Vec<Buf>, Vec<Buf>) {
    (visit::loads(body), visit::stores(body))
}
