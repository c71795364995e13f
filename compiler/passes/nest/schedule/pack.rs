//! Packing at run time: copies a non-constant operand of a contraction to panels that tiles read
//! sequentially.
//!
//! A map whose only purpose is the operand is fused into the packing. If the operand is contiguous along the
//! reduction, blocks as wide as a vector are transposed in registers.

use crate::nest::schedule::{Schedule, tasks};
use crate::nest::{BinOp, Body, Buf, Expr, Kernel, KernelData, LoopKind, Module, Stmt, visit};
use crate::passes::nest::analysis::cost::MOVE;
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::shape::{
    Map, Uses, fresh_regs, instance, is_temp, peel, through_view, wrap,
};
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::contract::Columns;
use crate::passes::nest::schedule::lanes::{self, Vectors};
use crate::passes::nest::schedule::rows;
use crate::passes::nest::schedule::tiles::multiplies_halves;
use crate::passes::nest::schedule::transpose::{LEAST, overlapping, parts};
use crate::sym::{Dim, Sym};
use crate::target::Facts;

/// The panels: `[own ..][panel][reduction ..][nr]`.
pub(crate) struct Shape {
    /// Name of the buffer.
    pub name: String,
    /// Its dims.
    pub dims: Vec<Dim>,
    /// Batch loops that the operand depends on.
    pub own: Vec<(Sym, Dim)>,
    /// The columns.
    pub columns: Columns,
}

impl Shape {
    /// Work of making the panels.
    pub fn work(&self) -> Dim {
        Dim::product(self.dims.iter().copied()) * (1 + 2 * MOVE)
    }
}

/// The contraction whose operand is packed.
pub(crate) struct Site<'a> {
    /// Writers and readers of each buffer.
    pub uses: &'a Uses,
    /// Its kernel.
    pub k: Kernel,
    /// Its vectors.
    pub facts: Facts,
}

/// A packing kernel.
struct Packer<'a> {
    /// The contraction.
    p: &'a Contraction,
    columns: Columns,
    /// The map that computes the operand.
    source: Option<&'a Map>,
    facts: Facts,
    /// The panels, and the subscripts of an element.
    packed: (Buf, Vec<Dim>),
    /// The number of the panel.
    panel: Dim,
    /// Loops over the batch and the panels.
    outer: Vec<(Sym, Dim)>,
    reduction: Vec<(Sym, Dim)>,
    /// Substitutions for the contraction's variables, except for the column.
    of: Vec<(Sym, Dim)>,
}

/// True if panels hold elements in their compute type: if vectors are short, or loads do not convert, 16-bit
/// floats are converted once rather than in each tile of rows, unless the level multiplies them directly.
pub(crate) fn converts(m: &Module, p: &Contraction, facts: Facts) -> bool {
    let ty = m.bufs[p.b.0].ty;
    !multiplies_halves(m, p, facts.caps)
        && (facts.caps.by_lane || facts.caps.by_scalar || !facts.caps.short_floats)
        && ty.is_float()
        && ty.bits() == 16
}

/// Panels that a kernel makes.
pub(crate) struct Panels {
    shape: Shape,
    /// The map that computes the operand, which the packing kernel replaces.
    source: Option<(Kernel, Map)>,
    facts: Facts,
}

impl std::ops::Deref for Panels {
    type Target = Shape;
    fn deref(&self) -> &Shape {
        &self.shape
    }
}

impl Panels {
    /// Panels of operand B of contraction `k`.
    pub fn new(m: &Module, site: &Site, p: &Contraction, shape: Shape) -> Panels {
        // A view with another element type does not show the values of the map.
        let source = if p.whole && !m.is_recast(p.b.0) { producer(m, site, p.b.0) } else { None };
        Panels { shape, source, facts: site.facts }
    }
    /// Adds the kernel directly before contraction `k`, which the driver calls.
    pub fn apply(self, m: &mut Module, k: Kernel, p: &Contraction) -> Buf {
        let Panels { shape: s, source, facts } = self;
        let Columns { extent, nr, .. } = s.columns;
        let zero = Dim::constant(0);
        let ty = m.bufs[p.b.0].ty;
        let ty = if converts(m, p, facts) { ty.compute() } else { ty };
        let packed = m.temp(s.name.clone(), ty, s.dims.clone());
        let (mut outer, mut of) = (vec![], vec![]);
        for (var, hi) in &s.own {
            let v = m.syms.loop_var("i", zero, *hi);
            outer.push((v, *hi));
            of.push((*var, v.into()));
        }
        let panels = extent.ceil_div(nr);
        let panel = m.syms.loop_var("p", zero, panels);
        outer.push((panel, panels));
        let mut l = Packer {
            p,
            columns: s.columns,
            source: source.as_ref().map(|s| &s.1),
            facts,
            packed: (packed, outer.iter().map(|x| Dim::sym(x.0)).collect()),
            panel: panel.into(),
            outer,
            reduction: vec![],
            of,
        };
        l.add_reduction(m);
        let work = s.work();
        let (name, origin) = (format!("{}.pack", m.kernels[k].name), m.kernels[k].origin.clone());
        let id = m.kernels.push(KernelData {
            name,
            origin,
            work,
            scheduled: true,
            schedules: vec![],
            narrow: false,
            body: Body::default(),
        });
        let body = match l.transposed(m) {
            Some(body) => {
                let depth = l.reduction.iter().try_fold(1, |n: i64, (_, hi)| n.checked_mul(hi.as_const()?));
                let panel = depth.and_then(|d| d.checked_mul(nr));
                let body = rows::share_of_size(m, l.outer.clone(), body, panel);
                let squares = Schedule::new("panels transposed in registers").vectors(
                    i64::from(facts.lanes),
                    "columns",
                    extent,
                );
                m.kernels[id].schedules.push(Schedule { tasks: tasks(&body), ..squares });
                body
            }
            None => l.plain(m, id),
        };
        m.kernels[id].body = body.into();
        if let Some((gone, _)) = source {
            visit::drop_calls(&mut m.driver, &|x| x == gone);
        }
        visit::splice_call(&mut m.driver, k, true, vec![Stmt::Call(id)]);
        packed
    }
    /// True if [`Panels::one`] can make them.
    pub fn come_alone(&self, m: &mut Module, p: &Contraction) -> bool {
        !converts(m, p, self.facts) && self.one(m, p, Dim::constant(0), (p.b.0, vec![])).is_some()
    }
    /// Statements that pack panel `panel` into `place` of a buffer directly before its use. `None` if blocks
    /// are not transposed in registers, or a map computes the operand.
    pub fn one(
        &self,
        m: &mut Module,
        p: &Contraction,
        panel: Dim,
        place: (Buf, Vec<Dim>),
    ) -> Option<Vec<Stmt>> {
        if self.source.is_some() || m.bufs[place.0].ty != m.bufs[p.b.0].ty {
            return None;
        }
        let (columns, facts) = (self.shape.columns, self.facts);
        let (outer, reduction, of) = (vec![], vec![], vec![]);
        let mut l = Packer { p, columns, source: None, facts, packed: place, panel, outer, reduction, of };
        l.add_reduction(m);
        l.transposed(m)
    }
}

impl Packer<'_> {
    fn add_reduction(&mut self, m: &mut Module) {
        for (var, hi) in &self.p.reduction {
            let v = m.syms.loop_var("k", Dim::constant(0), *hi);
            self.reduction.push((v, *hi));
            self.of.push((*var, v.into()));
        }
    }
    /// The kernel for any operand: a map over the panels.
    fn plain(&self, m: &mut Module, id: Kernel) -> Vec<Stmt> {
        let Columns { extent, nr, .. } = self.columns;
        let caps = self.facts.caps;
        let lane = m.syms.loop_var("l", Dim::constant(0), Dim::constant(nr));
        let col = Dim::sym(self.outer.last().map_or(lane, |p| p.0)) * nr + lane;
        let v = self.element(m, &self.of, col);
        let inside = extent.modulo(nr).as_const() == Some(0);
        let several = extent.floor_div(nr).as_const() != Some(0);
        let ty = m.bufs[self.p.b.0].ty;
        let nothing = Expr::num(ty.compute(), 0.0);
        let masks = ty.bits() >= 32 || !caps.lacks_short_masks();
        let inner: Vec<(Sym, Dim)> =
            self.reduction.iter().copied().chain([(lane, Dim::constant(nr))]).collect();
        let (packed, outer) = &self.packed;
        let at: Vec<Dim> = outer.iter().copied().chain(inner.iter().map(|l| Dim::sym(l.0))).collect();
        let panel = |value: Expr| wrap(&inner, vec![Stmt::Store { buf: *packed, at: at.clone(), value }]);
        let cut = |v| panel(Expr::select(Expr::cmp_index(BinOp::Lt, col, extent), v, nothing));
        let body = match self.outer.last() {
            _ if inside => panel(v),
            // All panels except the last have all columns. Their loads are whole vectors; the select of a
            // contiguous load is a masked load, where elements of this size have masks.
            Some(p) if extent.as_const().is_none() || several && !(masks && self.is_contiguous(m)) => {
                let cond = Expr::cmp_index(BinOp::Lt, p.0, extent.floor_div(nr));
                let then = panel(v.clone());
                let apart = extent.as_const().is_none() && !self.is_contiguous(m);
                let els = if apart {
                    self.last_panel(m, (lane, extent - Dim::sym(p.0) * nr), &then)
                } else {
                    fresh_regs(m, &cut(v))
                };
                vec![Stmt::If { cond, then, els }]
            }
            _ => cut(v),
        };
        let body = wrap(&self.outer, body);
        lanes::schedule(m, id, &body, Vectors { lanes: i64::from(caps.bits / 32), registers: 16, caps })
    }
    /// The last panel, which has `left` columns: zeros, and vectors of that length. `all`: the loops over its
    /// elements, the innermost one over `lane`.
    fn last_panel(&self, m: &mut Module, (lane, left): (Sym, Dim), all: &[Stmt]) -> Vec<Stmt> {
        let zero = Expr::num(m.bufs[self.packed.0].ty.compute(), 0.0);
        let mut part = |columns: Dim, value: Option<Expr>| {
            let l = m.syms.loop_var("l", Dim::constant(0), columns);
            let mut nest = peel(all);
            nest.loops.iter_mut().filter(|v| v.0 == lane).for_each(|v| *v = (l, columns));
            let stored = |s: Stmt| match (s.subst(&|s| (s == lane).then(|| l.into())), &value) {
                (Stmt::Store { buf, at, .. }, Some(v)) => Stmt::Store { buf, at, value: v.clone() },
                (s, _) => s,
            };
            let part: Vec<Stmt> = wrap(&nest.loops, nest.body.into_iter().map(stored).collect());
            fresh_regs(m, &part)
        };
        [part(self.columns.nr.into(), Some(zero)), part(left, None)].concat()
    }
    /// True if the operand is contiguous along the columns.
    fn is_contiguous(&self, m: &Module) -> bool {
        let (buf, at) = &self.p.b;
        stride(m, *buf, at, self.columns.n) == Some(1)
    }
    /// An element of the operand, after substitution for the contraction's variables.
    fn element(&self, m: &mut Module, of: &[(Sym, Dim)], col: Dim) -> Expr {
        let (buf, at) = &self.p.b;
        let put = |v: Sym| {
            if v == self.columns.n { Some(col) } else { of.iter().find(|x| x.0 == v).map(|x| x.1) }
        };
        let at: Vec<Dim> = at.iter().map(|d| d.subst(&mut |v| put(v))).collect();
        let cover = self.source.and_then(|map| map.cover(m));
        let (Some(map), Some(cover)) = (self.source, cover) else { return Expr::Load { buf: *buf, at } };
        let at = through_view(m, *buf, &at, map.buf);
        instance(m, &map.value, &|v| cover.iter().zip(&at).find(|(c, _)| **c == Some(v)).map(|(_, d)| *d))
    }
    /// A panel of an operand that is contiguous along the reduction.
    fn transposed(&self, m: &mut Module) -> Option<Vec<Stmt>> {
        let Packer { columns: Columns { extent, nr, .. }, facts, panel, .. } = *self;
        let [(k, depth)] = self.reduction[..] else { return None };
        let (zero, width) = (Dim::constant(0), i64::from(facts.lanes));
        if !facts.caps.shuffles.are_known()
            || nr % width != 0
            || depth.as_const().is_some_and(|d| d < width.min(LEAST))
        {
            return None;
        }
        // One load is contiguous along the reduction; the others are uniform, or contiguous along the
        // columns.
        let probe = m.syms.loop_var("l", zero, extent);
        let (mut across, mut other) = (0, false);
        self.element(m, &self.of, probe.into()).walk(&mut |e| {
            if let Expr::Load { buf, at } = e {
                let apart = m.linear(*buf, at).linear_in(probe).map(|s| s.0.as_const());
                match (apart, stride(m, *buf, at, k)) {
                    (Some(Some(0 | 1)), Some(_)) => {}
                    (Some(_), Some(1)) => across += 1,
                    _ => other = true,
                }
            }
        });
        if across != 1 || other {
            return None;
        }
        let squares = Dim::constant(nr / width);
        let square = m.syms.loop_var("c", zero, squares);
        let first = panel * nr + Dim::sym(square) * width;
        let block = Block { packer: self, k, depth, at: Dim::sym(square) * width, first, width };
        let whole = block.rows(m, width);
        let body = if extent.modulo(nr).as_const() == Some(0) {
            whole
        } else {
            let part = block.last_columns(m);
            let nothing = block.zeros(m, 0);
            let rest =
                vec![Stmt::If { cond: Expr::cmp_index(BinOp::Lt, first, extent), then: part, els: nothing }];
            vec![Stmt::If { cond: Expr::cmp_index(BinOp::Le, first + width, extent), then: whole, els: rest }]
        };
        Some(vec![Stmt::seq(square, squares, body)])
    }
}

/// Columns of a panel, as many as a vector has lanes, of an operand that is contiguous along the reduction.
struct Block<'a> {
    packer: &'a Packer<'a>,
    /// The loop of the reduction, and its extent.
    k: Sym,
    depth: Dim,
    /// The first column, in the panel and in the operand.
    at: Dim,
    first: Dim,
    width: i64,
}

impl Block<'_> {
    /// A row of the panel from column `from` of the block on, `columns` of them.
    fn store(
        &self,
        m: &mut Module,
        k: Dim,
        (from, columns): (i64, i64),
        value: &dyn Fn(&mut Module, Dim) -> Expr,
    ) -> Stmt {
        let (packed, outer) = &self.packer.packed;
        let lane = m.syms.loop_var("l", Dim::constant(0), Dim::constant(columns));
        let at: Vec<Dim> = outer.iter().copied().chain([k, self.at + from + lane]).collect();
        let value = value(m, self.first + from + lane);
        Stmt::vector(self.width, lane, columns, vec![Stmt::Store { buf: *packed, at, value }])
    }
    /// The operand's element in row `k`.
    fn element(&self, m: &mut Module, k: Dim, col: Dim) -> Expr {
        let of = &self.packer.of;
        let of: Vec<(Sym, Dim)> =
            of.iter().map(|(v, d)| (*v, if *d == Dim::sym(self.k) { k } else { *d })).collect();
        self.packer.element(m, &of, col)
    }
    fn zero(&self, m: &Module) -> Expr {
        Expr::num(m.bufs[self.packer.p.b.0].ty.compute(), 0.0)
    }
    /// Zeros in all rows from column `from` on.
    fn zeros(&self, m: &mut Module, from: i64) -> Vec<Stmt> {
        let zero = self.zero(m);
        self.each_row(m, Dim::constant(0), &|m, k| {
            self.store(m, k, (from, self.width - from), &|_, _| zero.clone())
        })
    }
    /// A loop over all rows from `lo` on.
    fn each_row(&self, m: &mut Module, lo: Dim, row: &dyn Fn(&mut Module, Dim) -> Stmt) -> Vec<Stmt> {
        let v = m.syms.loop_var("k", lo, self.depth);
        let body = vec![row(m, v.into())];
        vec![Stmt::For { kind: LoopKind::Seq, var: v, lo, hi: self.depth, body }]
    }
    /// `rows` rows from `first` on, transposed in registers.
    fn square(&self, m: &mut Module, first: Dim, rows: i64, columns: i64) -> Stmt {
        let u = m.syms.loop_var("u", Dim::constant(0), Dim::constant(rows));
        let at = first + u;
        let body = self.store(m, at, (0, columns), &|m, col| self.element(m, at, col));
        Stmt::unroll(u, rows, vec![body])
    }
    /// All rows of the first `columns` columns. The last square of a known number of rows overlaps the one
    /// before it.
    fn rows(&self, m: &mut Module, columns: i64) -> Vec<Stmt> {
        let (zero, width) = (Dim::constant(0), self.width);
        let blocks = self.depth.floor_div(width);
        let mut out = vec![];
        if blocks.as_const() != Some(0) {
            let b = m.syms.loop_var("k", zero, blocks);
            let body = self.square(m, Dim::sym(b) * width, width, columns);
            out.push(Stmt::seq(b, blocks, vec![body]));
        }
        match (self.depth.as_const(), self.depth.modulo(width).as_const()) {
            (_, Some(0)) => {}
            (Some(d), _) => {
                out.push(self.square(m, Dim::constant((d - width).max(0)), d.min(width), columns));
            }
            (None, _) => out.extend(self.each_row(m, blocks * width, &|m, k| {
                self.store(m, k, (0, columns), &|m, col| self.element(m, k, col))
            })),
        }
        out
    }
    /// The last columns, fewer than a block has, and zeros after them.
    fn last_columns(&self, m: &mut Module) -> Vec<Stmt> {
        let extent = self.packer.columns.extent;
        if let Some(columns) = extent.modulo(self.width).as_const() {
            let mut out = self.zeros(m, columns);
            out.extend(self.rows(m, columns));
            return out;
        }
        // After another block of the panel: the block of the last columns overlaps it.
        let mut then = self.zeros(m, 0);
        then.extend(self.from(extent - self.width).rows(m, self.width));
        let els = self.few_columns(m, extent);
        vec![Stmt::If { cond: Expr::cmp_index(BinOp::Ge, self.at, self.width), then, els }]
    }
    /// The same columns as a block that begins at column `first` of the operand.
    fn from(&self, first: Dim) -> Block<'_> {
        Block { at: self.at + first - self.first, first, ..*self }
    }
    /// All columns up to `extent`, fewer than a block has: parts of squares, the second of which overlaps the
    /// first; columns narrower than these one by one. Zeros after them.
    fn few_columns(&self, m: &mut Module, extent: Dim) -> Vec<Stmt> {
        let (zero, left) = (Dim::constant(0), extent - self.first);
        let l = m.syms.loop_var("l", zero, left);
        let column = self.from(self.first + l);
        let one = column.each_row(m, zero, &|m, k| {
            let (packed, outer) = &self.packer.packed;
            let at = outer.iter().copied().chain([k, column.at]).collect();
            Stmt::Store { buf: *packed, at, value: column.element(m, k, column.first) }
        });
        let mut body = vec![Stmt::seq(l, left, one)];
        let may_grow = m.optimize.may_grow();
        for n in parts(self.width).rev().filter(|_| may_grow) {
            let (p, count, first) = overlapping(m, (self.first, extent), n);
            let then = vec![Stmt::seq(p, count, self.from(first).rows(m, n))];
            body = vec![Stmt::If { cond: Expr::cmp_index(BinOp::Ge, left, n), then, els: body }];
        }
        let mut out = self.zeros(m, 0);
        out.extend(body);
        out
    }
}

/// The map that computes an operand only for this contraction.
fn producer(m: &Module, &Site { uses, k, .. }: &Site, b: Buf) -> Option<(Kernel, Map)> {
    let t = m.storage(b);
    if !is_temp(m, t) {
        return None;
    }
    let ([w], [r]) = (uses.writers(t), uses.readers(t)) else { return None };
    let map = m.form(*w).map()?.clone();
    // The other operand or the epilogue may read the same buffer (X times X).
    let mut loads = 0;
    visit::walk_exprs(&m.kernels[k].body, &mut |e| {
        loads += usize::from(matches!(e, Expr::Load { buf, .. } if m.storage(*buf) == t));
    });
    if loads != 1 {
        return None;
    }
    // Both calls must be at the driver's top level: inside loops, the map's operands may change before the
    // contraction runs.
    let top = |k: Kernel| m.driver.iter().any(|s| matches!(s, Stmt::Call(x) if *x == k));
    // Values that are rounded when stored must be rounded.
    let exact = m.bufs[t].ty == m.bufs[t].ty.compute();
    (*r == k
        && *w != k
        && map.buf == t
        && exact
        && map.cover(m).is_some()
        && (uses.is_straight() || top(*w) && top(k)))
    .then_some((*w, map))
}
