//! Builder: loop nests through closures, expressions through operators.

use super::form::Form;
use super::*;
use crate::tensor::TensorType;

impl Module {
    /// An empty module at stage Built.
    pub fn new(name: impl Into<String>, syms: SymTable) -> Self {
        Module {
            name: name.into(),
            syms,
            dim_params: vec![],
            bufs: PrimaryMap::new(),
            kernels: PrimaryMap::new(),
            regs: PrimaryMap::new(),
            slots: PrimaryMap::new(),
            workspace: Dim::constant(0),
            heap: HEAP,
            end: None,
            customs: vec![],
            reasons: Reasons::default(),
            math: Math::Default,
            optimize: Optimize::Speed,
            texts: None,
            driver: vec![],
            inputs: vec![],
            outputs: vec![],
            states: vec![],
            stage: Stage::Built,
        }
    }
    /// A new buffer.
    pub fn buf(
        &mut self,
        name: impl Into<String>,
        ty: ElemType,
        dims: impl Into<Vec<Dim>>,
        place: Place,
    ) -> Buf {
        self.bufs.push(BufData { name: name.into(), ty, dims: dims.into(), layout: Layout::RowMajor, place })
    }
    /// A scratch buffer.
    pub fn temp(&mut self, name: impl Into<String>, ty: ElemType, dims: impl Into<Vec<Dim>>) -> Buf {
        self.buf(name, ty, dims, Place::Temp)
    }
    /// The same memory under another shape with as many elements. Views of views point at the first buffer.
    pub fn view(&mut self, of: Buf, dims: impl Into<Vec<Dim>>) -> Buf {
        let base = self.storage(of);
        let (name, ty) = (self.bufs[of].name.clone(), self.bufs[of].ty);
        self.buf(name, ty, dims, Place::View(base))
    }
    /// The buffer itself if it has this shape, else a view: passes take a view for another shape.
    pub fn shaped(&mut self, of: Buf, dims: Vec<Dim>) -> Buf {
        if self.bufs[of].dims == dims { of } else { self.view(of, dims) }
    }
    /// The value of a constant with one element.
    pub fn number(&self, b: Buf) -> Option<Scalar> {
        let Place::Const(c) = &self.bufs[self.storage(b)].place else { return None };
        if c.count() != 1 || c.elem() == ElemType::Str {
            return None;
        }
        let ty = c.elem().compute();
        match c.to_i64s() {
            Some(v) => v.first().map(|v| Scalar::int(ty, *v)),
            None => c.to_f64s().and_then(|v| v.first().map(|v| Scalar::from_f64(ty, *v))),
        }
    }
    /// True for an input, also under the shape with the numbers that the checks at entry establish for its
    /// sizes.
    pub fn is_given(&self, b: Buf) -> bool {
        let base = self.storage(b);
        let (given, seen) = (&self.bufs[base], &self.bufs[b]);
        let same = |(g, s): (&Dim, &Dim)| g == s || g.as_sym().is_some() && s.as_const().is_some();
        matches!(given.place, Place::Input(_))
            && (given.ty, given.dims.len()) == (seen.ty, seen.dims.len())
            && given.dims.iter().zip(&seen.dims).all(same)
    }
    /// The symbol of a buffer's address, if it is accessed through a pointer.
    pub fn pointer(&self, b: Buf) -> Option<Sym> {
        match self.bufs[self.storage(b)].place {
            Place::Pointer(s) => Some(s),
            _ => None,
        }
    }
    /// Element offset of an access in the memory of its buffer.
    pub fn linear(&self, buf: Buf, at: &[Dim]) -> Dim {
        let d = &self.bufs[buf];
        let step = |sum: Dim, i: usize| sum * d.dims[i] + at[i];
        match &d.layout {
            Layout::RowMajor => (0..d.dims.len()).fold(Dim::constant(0), step),
            Layout::Permuted(p) => p.iter().copied().fold(Dim::constant(0), step),
        }
    }
    /// True if a store to one storage may change the other. Buffers that share a slot are never live in the
    /// same kernel, unless they are the same.
    pub fn overlaps(&self, a: Buf, b: Buf) -> bool {
        let slots = (&self.bufs[a].place, &self.bufs[b].place);
        a == b || matches!(slots, (Place::Arena(p), Place::Arena(q)) if p == q)
    }
    /// The same memory as elements of another type. Elements smaller than a byte are packed as in `of`.
    pub fn view_as(&mut self, of: Buf, ty: ElemType, dims: impl Into<Vec<Dim>>) -> Buf {
        let v = self.view(of, dims);
        self.bufs[v].ty = ty;
        v
    }
    /// Bits from one element of a buffer to the next: see rule 7.
    pub fn element_bits(&self, b: Buf) -> u32 {
        let bits = self.bufs[b].ty.bits();
        match self.bufs[self.storage(b)].place {
            Place::Temp | Place::Growable | Place::Foreign | Place::Arena(_) => bits.max(8),
            _ => bits,
        }
    }
    /// True if a buffer holds several elements in a byte.
    pub fn is_packed(&self, b: Buf) -> bool {
        self.element_bits(b) < 8
    }
    /// True if the memory of a buffer holds a constant.
    pub fn is_constant(&self, b: Buf) -> bool {
        matches!(self.bufs[self.storage(b)].place, Place::Const(_))
    }
    /// Bytes of all constants.
    pub fn constant_bytes(&self) -> u64 {
        self.bufs.values().map(|b| if let Place::Const(c) = &b.place { c.byte_len() } else { 0 }).sum()
    }
    /// The data of a constant of known size, in the order of the buffer's subscripts; of a view, all elements
    /// of the view.
    pub fn constant_data(&self, b: Buf) -> Option<&Arc<ConstData>> {
        let owner = &self.bufs[self.storage(b)];
        let Place::Const(data) = &owner.place else { return None };
        let count = self.bufs[b].dims.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?))?;
        let whole = count.unsigned_abs() == data.count();
        (whole && owner.layout == Layout::RowMajor && !self.is_recast(b)).then_some(data)
    }
    /// The same with the shape of the buffer or view.
    pub fn constant_as_read(&self, b: Buf) -> Option<Arc<ConstData>> {
        let data = self.constant_data(b)?;
        if self.storage(b) == b {
            return Some(data.clone());
        }
        let dims: Option<Vec<i64>> = self.bufs[b].dims.iter().map(|d| d.as_const()).collect();
        data.reshaped(dims?).map(Arc::new)
    }
    /// True if statements access elements of less than 32 bits.
    pub fn has_short_elements(&self, body: &[Stmt]) -> bool {
        visit::loads(body).into_iter().chain(visit::stores(body)).any(|b| self.bufs[b].ty.bits() < 32)
    }
    /// True if a view shows its memory as another type than the buffer that owns it has.
    pub fn is_recast(&self, b: Buf) -> bool {
        self.bufs[b].ty != self.bufs[self.storage(b)].ty
    }
    /// The buffer that owns the memory.
    pub fn storage(&self, b: Buf) -> Buf {
        match self.bufs[b].place {
            Place::View(of) => self.storage(of),
            _ => b,
        }
    }
    /// Read-only data.
    pub fn constant(&mut self, name: impl Into<String>, data: Arc<ConstData>) -> Buf {
        let dims: Vec<Dim> = data.dims().iter().map(|&d| Dim::constant(d)).collect();
        self.buf(name, data.elem(), dims, Place::Const(data))
    }
    /// Memory for strings that kernels create.
    pub fn texts(&mut self) -> Texts {
        if let Some(t) = self.texts {
            return t;
        }
        let bytes = self.temp("texts", ElemType::U8, vec![Dim::constant(self.heap)]);
        let taken = self.temp("texts.taken", ElemType::I64, vec![Dim::constant(1)]);
        *self.texts.insert(Texts { bytes, taken })
    }
    /// Type of a buffer.
    pub fn tensor_type(&self, b: Buf) -> TensorType {
        TensorType::new(self.bufs[b].ty, self.bufs[b].dims.clone())
    }
    /// The form of a kernel's nest.
    pub(crate) fn form(&self, k: Kernel) -> &Form {
        self.kernels[k].body.form()
    }
    /// A new register of a compute type.
    pub fn reg(&mut self, ty: ElemType) -> Reg {
        self.regs.push(RegData { ty, whole: None })
    }
    /// Compute type of an expression.
    pub fn type_of(&self, e: &Expr) -> ElemType {
        match e {
            Expr::Const(s) => s.ty,
            Expr::Reg(r) | Expr::Acc { reg: r, .. } | Expr::Horizontal { reg: r, .. } => self.regs[*r].ty,
            Expr::Index(_) | Expr::Address(_) => ElemType::I64,
            Expr::Load { buf, .. } => self.bufs[*buf].ty.compute(),
            Expr::Un(op, a) => op.result(self.type_of(a)),
            Expr::Bin(op, a, _) => op.result(self.type_of(a)),
            Expr::Fma(a, ..) => self.type_of(a),
            Expr::Dot(g, ..) => g.sum(),
            Expr::Select(_, a, _) => self.type_of(a),
            Expr::Cast(t, _) => *t,
            Expr::Text(op, _) => op.signature().1,
            Expr::Let { body, .. } | Expr::With { body, .. } => self.type_of(body),
        }
    }
    /// The body of a kernel.
    pub fn body(&mut self, write: impl FnOnce(&mut KernelBuilder)) -> Vec<Stmt> {
        let mut k = KernelBuilder { m: self, body: vec![] };
        write(&mut k);
        let body = k.body;
        running(self, body)
    }
    /// Adds a kernel and its call at the end of the driver.
    pub fn kernel(&mut self, name: &str, origin: &Origin, write: impl FnOnce(&mut KernelBuilder)) -> Kernel {
        let body = self.body(write);
        let id = self.kernels.push(KernelData {
            name: name.to_owned(),
            origin: origin.clone(),
            work: Dim::constant(0),
            scheduled: false,
            schedules: vec![],
            narrow: false,
            body: body.into(),
        });
        self.driver.push(Stmt::Call(id));
        id
    }
    /// A kernel that stores one expression for every element of `out`: the perfect nest that fuses best.
    pub fn map(
        &mut self,
        out: Buf,
        origin: &Origin,
        value: impl FnOnce(&mut KernelBuilder, &[Dim]) -> Expr,
    ) -> Kernel {
        let dims = self.bufs[out].dims.clone();
        let name = self.bufs[out].name.clone();
        self.kernel(&name, origin, |k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let v = value(k, at);
                k.store(out, at, v);
            });
        })
    }
}

/// Removes loops without iterations that store to empty buffers or contain undefined values, such as
/// positions in an empty tensor.
fn running(m: &Module, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = vec![];
    for mut s in body {
        let never = matches!(&s, Stmt::For { lo, hi, .. } if (*hi - *lo).as_const().is_some_and(|n| n <= 0));
        if never
            && (senseless(m, &s)
                || super::visit::stores(std::slice::from_ref(&s)).iter().all(|b| m.bufs[*b].is_empty()))
        {
            continue;
        }
        let had = s.bodies().any(|b| !b.is_empty());
        s.bodies_mut().for_each(|b| *b = running(m, std::mem::take(b)));
        let left = s.bodies().any(|b| !b.is_empty());
        if matches!(s, Stmt::For { .. }) && had && !left {
            continue;
        }
        out.push(s);
    }
    out
}

/// True if a dim in a statement is undefined, or an access is out of bounds of a buffer of constant size.
fn senseless(m: &Module, s: &Stmt) -> bool {
    let mut found = false;
    s.walk(&mut |s| {
        s.each_dim(&mut |d| found |= d.is_overflow());
        s.accesses(&mut |b, at| {
            let outside = |(x, n): (&Dim, &Dim)| n.as_const().is_some() && !m.syms.in_range(*x, *n);
            found |= at.iter().zip(&m.bufs[b].dims).any(outside);
        });
    });
    found
}

/// Writes the body of one kernel.
pub struct KernelBuilder<'m> {
    /// The module, for types, symbols and buffers.
    pub m: &'m mut Module,
    body: Vec<Stmt>,
}

impl Stmt {
    /// A sequential loop from 0.
    pub fn seq(var: Sym, hi: impl Into<Dim>, body: Vec<Stmt>) -> Stmt {
        Stmt::from_zero(LoopKind::Seq, var, hi.into(), body)
    }
    /// A parallel loop from 0.
    pub fn par(var: Sym, hi: impl Into<Dim>, body: Vec<Stmt>) -> Stmt {
        Stmt::from_zero(LoopKind::Par, var, hi.into(), body)
    }
    /// A parallel loop from 0 whose iterations have private scratch (rule 12), with `own` as its first
    /// subscript.
    pub fn par_private(var: Sym, hi: impl Into<Dim>, own: Sym, body: Vec<Stmt>) -> Stmt {
        let lo = Dim::sym(var);
        Stmt::par(var, hi, vec![Stmt::For { kind: LoopKind::Private, var: own, lo, hi: lo + 1, body }])
    }
    /// An unrolled loop from 0.
    pub fn unroll(var: Sym, hi: impl Into<Dim>, body: Vec<Stmt>) -> Stmt {
        Stmt::from_zero(LoopKind::Unroll, var, hi.into(), body)
    }
    /// A loop from 0 in vectors of the given number of lanes.
    pub fn vector(lanes: i64, var: Sym, hi: impl Into<Dim>, body: Vec<Stmt>) -> Stmt {
        Stmt::from_zero(LoopKind::Vec(lanes as u32), var, hi.into(), body)
    }
    fn from_zero(kind: LoopKind, var: Sym, hi: Dim, body: Vec<Stmt>) -> Stmt {
        Stmt::For { kind, var, lo: Dim::constant(0), hi, body }
    }
}

impl KernelBuilder<'_> {
    /// The statements that `f` writes, as a separate list.
    pub fn block(&mut self, f: impl FnOnce(&mut Self)) -> Vec<Stmt> {
        let outer = std::mem::take(&mut self.body);
        f(self);
        std::mem::replace(&mut self.body, outer)
    }
    /// Adds a statement.
    pub fn push(&mut self, s: Stmt) {
        self.body.push(s);
    }
    /// Private scratch for the statements inside (rule 12); the closure receives its first subscript.
    /// `iteration`: the variable of the surrounding `par` loop.
    pub fn private(&mut self, iteration: Dim, f: impl FnOnce(&mut Self, Dim)) {
        self.range(LoopKind::Private, "q", iteration, iteration + 1, f);
    }
    /// One loop over `lo..hi`; the closure gets the loop variable.
    pub fn range(
        &mut self,
        kind: LoopKind,
        hint: &str,
        lo: impl Into<Dim>,
        hi: impl Into<Dim>,
        f: impl FnOnce(&mut Self, Dim),
    ) {
        let (lo, hi) = (lo.into(), hi.into());
        let var = self.m.syms.loop_var(hint, lo, hi);
        let body = self.block(|k| f(k, var.into()));
        self.push(Stmt::For { kind, var, lo, hi, body });
    }
    /// Loops over `0..dims[i]`, outermost first. Dimensions of size 1 get no loop and index 0.
    pub fn nest(&mut self, kind: LoopKind, dims: &[Dim], f: impl FnOnce(&mut Self, &[Dim])) {
        let mut at = vec![];
        let mut open = vec![];
        for d in dims {
            if d.as_const() == Some(1) {
                at.push(Dim::constant(0));
            } else {
                let var = self.m.syms.loop_var("i", Dim::constant(0), *d);
                at.push(var.into());
                open.push((var, *d));
            }
        }
        let mut body = self.block(|k| f(k, &at));
        for (var, hi) in open.into_iter().rev() {
            body = vec![Stmt::For { kind, var, lo: Dim::constant(0), hi, body }];
        }
        self.body.append(&mut body);
    }
    /// A scalar accumulator that starts at `init`; read it with [`Expr::acc`].
    pub fn acc(&mut self, init: Expr) -> Reg {
        let ty = self.m.type_of(&init);
        let reg = self.m.reg(ty);
        self.push(Stmt::Acc { reg, lanes: 1, shape: vec![], init });
        reg
    }
    /// Writes a scalar accumulator.
    pub fn set(&mut self, reg: Reg, value: Expr) {
        self.push(Stmt::Set { reg, at: vec![], value });
    }
    /// `reg = reg op value`.
    pub fn update(&mut self, op: BinOp, reg: Reg, value: Expr) {
        self.set(reg, Expr::bin(op, Expr::acc(reg), value));
    }
    /// Names a value used several times; the result is the register.
    pub fn let_(&mut self, value: Expr) -> Expr {
        if matches!(value, Expr::Const(_) | Expr::Reg(_)) {
            return value;
        }
        let ty = self.m.type_of(&value);
        let reg = self.m.reg(ty);
        self.push(Stmt::Let { reg, value });
        Expr::Reg(reg)
    }
    /// Like [`KernelBuilder::let_`], but inside the expression that `body` makes, so that it can be fused.
    pub fn shared(&mut self, value: Expr, body: impl FnOnce(&mut Self, Expr) -> Expr) -> Expr {
        if matches!(value, Expr::Const(_) | Expr::Reg(_) | Expr::Index(_)) {
            return body(self, value);
        }
        let ty = self.m.type_of(&value);
        let reg = self.m.reg(ty);
        let body = body(self, Expr::Reg(reg));
        Expr::Let { reg, value: Box::new(value), body: Box::new(body) }
    }
    /// Uses an integer value as an index: `0 <= value < extent` is checked at run time.
    pub fn with_index(
        &mut self,
        value: Expr,
        extent: Dim,
        body: impl FnOnce(&mut Self, Dim) -> Expr,
    ) -> Expr {
        let sym = self.m.syms.loop_var("x", Dim::constant(0), extent);
        let body = body(self, sym.into());
        Expr::With { sym, value: Box::new(value), extent, body: Box::new(body) }
    }
    /// The same for statements.
    pub fn at_index(&mut self, value: Expr, extent: Dim, body: impl FnOnce(&mut Self, Dim)) {
        let sym = self.m.syms.loop_var("x", Dim::constant(0), extent);
        let body = self.block(|k| body(k, sym.into()));
        self.push(Stmt::With { sym, value, extent, body });
    }
    /// Writes one element.
    pub fn store(&mut self, buf: Buf, at: &[Dim], value: Expr) {
        self.push(Stmt::Store { buf, at: at.to_vec(), value });
    }
    /// Reads one element. A load from a constant with one element is a number. A load from an empty buffer is
    /// 0, since it is never executed and no subscript would be in range.
    pub fn load(&self, buf: Buf, at: &[Dim]) -> Expr {
        let d = &self.m.bufs[buf];
        if d.ty != ElemType::Str && d.is_empty() {
            return Expr::num(d.ty.compute(), 0.0);
        }
        match self.m.number(buf) {
            Some(s) => s.into(),
            None => Expr::Load { buf, at: at.to_vec() },
        }
    }
    /// Zero of a compute type; the empty string.
    pub fn zero(&mut self, ty: ElemType) -> Expr {
        let (name, data) = match ty {
            ElemType::Str => ("empty", ConstData::strings(vec![1], vec![Default::default()])),
            t if t.is_complex() => ("zero", ConstData::new(t, vec![1], vec![0; t.bits() as usize / 8])),
            t => return Expr::num(t, 0.0),
        };
        let buf = self.m.constant(name, Arc::new(data.unwrap_or_else(|| ConstData::from_i64s(&[]))));
        Expr::Load { buf, at: vec![Dim::constant(0)] }
    }
    /// Reads `buf` under numpy broadcasting against an index of at least its rank.
    pub fn load_broadcast(&self, buf: Buf, at: &[Dim]) -> Expr {
        let dims = &self.m.bufs[buf].dims;
        let skip = at.len() - dims.len();
        let at: Vec<Dim> = dims.iter().zip(&at[skip..]).map(|(d, i)| self.broadcast_index(*d, *i)).collect();
        self.load(buf, &at)
    }
    /// Index of a dim that loops over another one under broadcasting: `i`, or 0 where the dim is 1.
    pub fn broadcast_index(&self, dim: Dim, i: Dim) -> Dim {
        match dim.as_const() {
            Some(1) => Dim::constant(0),
            Some(_) => i,
            None if self.m.syms.in_range(i, dim) => i,
            None => i * crate::sym::broadcast::stride_factor(dim),
        }
    }
    /// `while cond { body }`.
    pub fn while_(&mut self, cond: Expr, body: impl FnOnce(&mut Self)) {
        let body = self.block(body);
        self.push(Stmt::While { cond, body });
    }
    /// `if cond { then }`.
    pub fn if_(&mut self, cond: Expr, then: impl FnOnce(&mut Self)) {
        let then = self.block(then);
        self.push(Stmt::If { cond, then, els: vec![] });
    }
}
