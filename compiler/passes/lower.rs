//! Graph IR -> nest IR: the only module that knows both. Every node emits its kernels. Values with known
//! contents are stored from the expressions over dims that inference found, and only if they are read as
//! tensors.

mod append_buffers;
mod collect;
mod control;
pub mod state;

use crate::diag::{Error, Failure, Result, codes};
use crate::graph::{Def, Graph, Model, Node, Value};
use crate::nest::reach::{self, Need};
use crate::nest::{BinOp, Buf, Expr, LoopKind, Module, Place, Reason, Status, Stmt, Subject, visit};
use crate::ops::bundle::{Bundle, boundary::WORDS};
use crate::ops::{Known, LowerCx, Op};
use crate::sym::{Condition, Dim, Source, Sym, SymKind, SymTable};
use crate::tensor::{ElemType, TensorType, ValueType};
use cranelift_entity::SecondaryMap;
use std::collections::HashSet;

/// Lowers a model with inferred shapes. `heap`: [`Module::heap`].
pub fn lower(model: &Model, name: &str, heap: i64) -> Result<Module> {
    let mut m = Module::new(name, model.syms.clone());
    m.heap = heap;
    let mut cx = Lower { model, m, defined: HashSet::new(), resized: HashSet::new() };
    cx.m.dim_params = model.dim_params.clone();
    let mut f = Frame::new(&model.graph);
    cx.inputs(&mut f)?;
    let outputs = cx.outputs(&mut f)?;
    cx.nodes(&mut f)?;
    for (v, out) in model.graph.outputs.iter().zip(outputs) {
        let have = cx.value(&mut f, *v)?;
        if have != out {
            cx.copy(have, out);
        }
    }
    // Descriptors of parts of the workspace come last, because nothing may be written there afterwards.
    for n in model.graph.order.iter().filter(|n| is_publish(&model.graph, **n)) {
        cx.node(&mut f, *n)?;
    }
    let mut m = cx.m;
    if let Some(t) = m.texts {
        m.kernel("texts", &model.origin.element("memory of strings"), |k| {
            k.store(t.taken, &[Dim::constant(0)], Expr::int(ElemType::I64, 0))
        });
        m.driver.rotate_right(1);
    }
    let conditions = m.syms.conditions().to_vec();
    let mut driver = std::mem::take(&mut m.driver);
    insert_checks(&mut driver, &conditions, &m.syms, &HashSet::new());
    explain(&mut m, &conditions);
    state::share(&mut m, model, &mut driver)?;
    guard_accesses(&mut m, driver);
    Ok(m)
}

/// Inserts checks before calls of kernels for requirements that inference has neither proven nor checked.
fn guard_accesses(m: &mut Module, driver: Vec<Stmt>) {
    m.driver = guard_body(m, driver, vec![], true);
}

/// As [`guard_accesses`], for one body of the driver. `checked`: conditions that hold at its start.
fn guard_body(m: &mut Module, body: Vec<Stmt>, mut checked: Vec<Expr>, top: bool) -> Vec<Stmt> {
    let mut out = vec![];
    for mut s in body {
        for need in needs(m, &s, &checked) {
            let mut made = vec![guard(m, &s, &need)];
            if top && need.unless_empty.is_empty() {
                // Recorded as a condition, in the reduced form that inference uses, so that later code can
                // rely on it.
                let known = m.syms.conditions().len();
                m.syms.require_at_most(need.least, need.most);
                let new = m.syms.conditions()[known..].to_vec();
                made = new.iter().copied().map(check).collect();
                for c in new {
                    note(m, &s, &check(c), c);
                }
            }
            checked.extend(made.iter().filter_map(Stmt::expr).cloned());
            out.extend(made);
        }
        match &s {
            Stmt::Check { cond, .. } => checked.push(cond.clone()),
            Stmt::Define { sym, .. } => checked.retain(|c| !mentions(c, *sym)),
            _ => {}
        }
        let mut again = vec![];
        s.bodies().for_each(|b| {
            visit::walk(b, &mut |s| {
                again.extend(if let Stmt::Define { sym, .. } = s { Some(*sym) } else { None })
            })
        });
        // A loop returns to its start with the sizes that it has redefined.
        checked.retain(|c| !again.iter().any(|s| mentions(c, *s)));
        let begins = match &s {
            Stmt::If { cond, .. } | Stmt::While { cond, .. } => Some(cond.clone()),
            _ => None,
        };
        for (i, b) in s.bodies_mut().enumerate() {
            // The condition holds at the start of the first body.
            let known = checked.iter().chain(begins.iter().filter(|_| i == 0)).cloned().collect();
            *b = guard_body(m, std::mem::take(b), known, false);
        }
        out.push(s);
    }
    out
}

fn mentions(cond: &Expr, s: Sym) -> bool {
    cond.any(&mut |e| matches!(e, Expr::Index(d) if d.contains(s)))
}

/// The check of a requirement of a statement.
fn guard(m: &mut Module, s: &Stmt, need: &Need) -> Stmt {
    let made = Stmt::Check { cond: need.expr(), status: Status::Dim };
    note(m, s, &made, Condition::AtMost(need.least, need.most));
    made
}

/// Records the reason of a check that was inserted for a statement.
fn note(m: &mut Module, s: &Stmt, made: &Stmt, c: Condition) {
    let Stmt::Check { cond, .. } = made else { return };
    let mut source = Source::default();
    let mut bufs = s.loads();
    if let Stmt::Call(k) = s {
        let data = &m.kernels[*k];
        source.node = data.origin.name.clone();
        source.op = data.origin.op.clone();
        bufs = visit::loads(&data.body).into_iter().chain(visit::stores(&data.body)).collect();
    }
    source.tensors = bufs.iter().map(|b| (m.bufs[*b].name.clone(), m.bufs[*b].dims.clone())).collect();
    let (rule, dims) = rule(c);
    m.reasons.check(
        cond,
        Reason { source: source.into(), rule: rule.into(), subjects: dims.map(Subject::Size).to_vec() },
    );
}

fn needs(m: &Module, s: &Stmt, checked: &[Expr]) -> Vec<Need> {
    match s {
        Stmt::Call(k) => reach::needs(m, *k, checked),
        s => reach::needs_of(m, s, checked),
    }
}

fn is_publish(g: &Graph, n: Node) -> bool {
    matches!(g.nodes[n].op, Op::Bundle(Bundle::Publish(_)))
}

fn is_tensor(g: &Graph, v: Value) -> bool {
    g.values[v].ty.as_ref().is_none_or(|t| t.as_tensor().is_some())
}

/// Inserts the checks of conditions that inference could not prove, each as soon as its sizes are known: at
/// the start, or after the statements that define the last of them. `known` are the sizes defined before this
/// body.
fn insert_checks(body: &mut Vec<Stmt>, conditions: &[Condition], syms: &SymTable, known: &HashSet<Sym>) {
    let open = |c: &Condition, known: &HashSet<Sym>| {
        c.dims()
            .into_iter()
            .flat_map(|d| d.syms())
            .any(|s| syms.kind(s) == SymKind::Runtime && !known.contains(&s))
    };
    let mut known = known.clone();
    let (mut pending, now): (Vec<Condition>, Vec<Condition>) =
        conditions.iter().partition(|c| open(c, &known));
    let mut out: Vec<Stmt> = now.into_iter().map(check).collect();
    let mut rest = std::mem::take(body).into_iter().peekable();
    while let Some(s) = rest.next() {
        let defines = match &s {
            Stmt::Define { sym, .. } => known.insert(*sym),
            _ => false,
        };
        out.push(s);
        // Consecutive definitions of sizes are kept together.
        if (defines || !pending.is_empty()) && !matches!(rest.peek(), Some(Stmt::Define { .. })) {
            let (later, now): (Vec<Condition>, Vec<Condition>) =
                pending.into_iter().partition(|c| open(c, &known));
            out.extend(now.into_iter().map(check));
            pending = later;
        }
    }
    *body = out;
}

fn check(c: Condition) -> Stmt {
    let cond = match c {
        Condition::Equal(a, b) => Expr::cmp_index(BinOp::Eq, a, b),
        Condition::AtMost(a, b) => Expr::cmp_index(BinOp::Le, a, b),
        Condition::Broadcast(a, b) => {
            let one = |d: Dim| Expr::cmp_index(BinOp::Eq, d, 1);
            Expr::bin(BinOp::Or, Expr::cmp_index(BinOp::Eq, a, b), Expr::bin(BinOp::Or, one(a), one(b)))
        }
    };
    Stmt::Check { cond, status: Status::Dim }
}

/// The message of a failed condition, and the sizes that it shows.
fn rule(c: Condition) -> (&'static str, [Dim; 2]) {
    let number = |d: Dim| d.as_const();
    match c {
        Condition::Equal(a, b) if number(a).is_some() => ("{0}: it must be {1}", [b, a]),
        Condition::Equal(a, b) if number(b).is_some() => ("{0}: it must be {1}", [a, b]),
        Condition::Equal(a, b) => ("{0}, {1}: they must be equal", [a, b]),
        Condition::Broadcast(a, b) if number(a).is_some() => ("{0}: it must be {1} or 1", [b, a]),
        Condition::Broadcast(a, b) if number(b).is_some() => ("{0}: it must be {1} or 1", [a, b]),
        Condition::Broadcast(a, b) => ("{0}, {1}: they must be equal, or one of them 1", [a, b]),
        Condition::AtMost(a, b) if number(a) == Some(0) => ("{0}: it must not be negative", [b, a]),
        Condition::AtMost(a, b) if number(a).is_some() => ("{0}: it must be at least {1}", [b, a]),
        Condition::AtMost(a, b) if number(b).is_some() => ("{0}: it must be at most {1}", [a, b]),
        Condition::AtMost(a, b) => ("{0}, {1}: the first must not be larger than the second", [a, b]),
    }
}

/// Records the reasons of the checks of conditions.
fn explain(m: &mut Module, conditions: &[Condition]) {
    for c in conditions {
        let Stmt::Check { cond, .. } = check(*c) else { continue };
        let (rule, dims) = rule(*c);
        let reason = Reason {
            source: m.syms.source(*c).cloned().unwrap_or_default(),
            rule: rule.into(),
            subjects: dims.map(Subject::Size).to_vec(),
        };
        m.reasons.check(&cond, reason);
    }
}

struct Lower<'a> {
    model: &'a Model,
    m: Module,
    /// Run-time sizes that have been defined in the driver.
    defined: HashSet<Sym>,
    /// Buffers whose sizes are redefined in bodies. They are placed after those of the enclosing bodies, and
    /// may be overwritten when these redefine their sizes.
    resized: HashSet<Buf>,
}

/// State of lowering one graph.
struct Frame<'a> {
    g: &'a Graph,
    bufs: SecondaryMap<Value, Option<Buf>>,
    uses: SecondaryMap<Value, u32>,
}

impl<'a> Frame<'a> {
    fn new(g: &'a Graph) -> Self {
        Frame { g, bufs: SecondaryMap::new(), uses: g.use_counts() }
    }
}

impl<'a> Lower<'a> {
    /// The type of a tensor. Sizes are numbers where the checks at entry establish them.
    fn tensor(&self, f: &Frame, v: Value) -> Result<TensorType> {
        let t = self.declared(f, v)?;
        let dims: Vec<Dim> = t.dims.iter().map(|d| self.model.syms.established(*d)).collect();
        Ok(TensorType::new(t.elem, dims))
    }
    fn declared<'f>(&self, f: &Frame<'f>, v: Value) -> Result<&'f TensorType> {
        let d = &f.g.values[v];
        match &d.ty {
            Some(ValueType::Tensor(t)) => Ok(t),
            Some(t) => {
                Error::new(codes::OP_FEATURE, format!("\"{}\" has a type that is not supported yet", d.name))
                    .at(&self.model.origin)
                    .found_expected(t.display(&self.model.syms), "a tensor")
                    .fail()
            }
            None => Err(Failure::bug("lower", format!("\"{}\" has no type", d.name))),
        }
    }
    /// The memory of an input or output: the tensor, or the words of a descriptor.
    fn border(&self, f: &Frame, v: Value) -> Result<TensorType> {
        if is_tensor(f.g, v) {
            self.tensor(f, v)
        } else {
            Ok(TensorType::new(ElemType::I64, vec![Dim::constant(WORDS)]))
        }
    }
    fn inputs(&mut self, f: &mut Frame) -> Result<()> {
        for (i, v) in f.g.inputs.iter().enumerate() {
            let t = self.border(f, *v)?;
            // Callers give the sizes that the model declares.
            let given = if is_tensor(f.g, *v) { self.declared(f, *v)?.dims.clone() } else { t.dims.clone() };
            let b = self.m.buf(f.g.values[*v].name.clone(), t.elem, given, Place::Input(i as u32));
            f.bufs[*v] = Some(self.m.shaped(b, t.dims));
            self.m.inputs.push(b);
        }
        Ok(())
    }
    /// Creates the output buffers. A node that computes an output writes directly to its first buffer.
    fn outputs(&mut self, f: &mut Frame) -> Result<Vec<Buf>> {
        let g = f.g;
        let mut out = vec![];
        for (i, v) in g.outputs.iter().enumerate() {
            let t = self.border(f, *v)?;
            let b = self.m.buf(g.output_names[i].clone(), t.elem, t.dims, Place::Output(i as u32));
            self.m.outputs.push(b);
            if is_tensor(g, *v) {
                self.aim(f, *v, b);
            } else {
                f.bufs[*v] = Some(b);
            }
            out.push(b);
        }
        Ok(out)
    }
    /// Lets a node compute `v` directly into `b`, unless the value already has a buffer or is packed. A
    /// packed value is computed with one byte per element and packed by a separate kernel.
    fn aim(&self, f: &mut Frame, v: Value, b: Buf) {
        if !self.m.bufs[b].ty.is_packed()
            && matches!(f.g.values[v].def, Def::Node(..))
            && f.bufs[v].is_none()
            && matches!(f.g.values[v].known, Known::No)
        {
            f.bufs[v] = Some(b);
        }
    }
    /// The buffer of a value, which is created now if the value is constant or known.
    fn value(&mut self, f: &mut Frame, v: Value) -> Result<Buf> {
        if let Some(b) = f.bufs[v] {
            return Ok(b);
        }
        let d = &f.g.values[v];
        let b = match (&d.def, &d.known) {
            (Def::Const(c), _) | (_, Known::Const(c)) => {
                self.tensor(f, v)?;
                self.m.constant(d.name.clone(), c.clone())
            }
            (_, Known::Dims(list)) => {
                let t = self.tensor(f, v)?;
                let b = self.m.temp(d.name.clone(), t.elem, t.dims);
                self.store_dims(b, list);
                b
            }
            _ => return Err(Failure::bug("lower", format!("\"{}\" is used before it is computed", d.name))),
        };
        f.bufs[v] = Some(b);
        Ok(b)
    }
    fn store_dims(&mut self, b: Buf, list: &[Dim]) {
        let (name, ty) = (self.m.bufs[b].name.clone(), self.m.bufs[b].ty.compute());
        let shape: Vec<usize> = self.m.bufs[b]
            .dims
            .iter()
            .map(|d| d.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(1))
            .collect();
        self.m.kernel(&name, &self.model.origin.element(format!("shape value \"{name}\"")), |k| {
            for (i, d) in list.iter().enumerate() {
                let strides = (0..shape.len()).map(|d| shape[d + 1..].iter().product::<usize>());
                let at: Vec<Dim> = strides.zip(&shape).map(|(s, n)| Dim::from(i / s % n)).collect();
                k.store(b, &at, Expr::cast(ElemType::I64, ty, Expr::index(*d)));
            }
        });
    }
    /// Packs several elements into each byte: one iteration writes a whole byte.
    fn pack(&mut self, from: Buf, to: Buf) {
        let (ty, n) = (self.m.bufs[to].ty, self.m.bufs[to].count());
        let per = i64::from(8 / ty.bits());
        let codes = self.m.view_as(from, if ty.bits() == 4 { ElemType::U4 } else { ElemType::U2 }, vec![n]);
        let bytes = self.m.view_as(to, ElemType::U8, vec![n.ceil_div(per)]);
        let origin = self.model.origin.element(format!("output \"{}\"", self.m.bufs[to].name));
        self.m.map(bytes, &origin, |k, at| {
            let part = |j: i64| {
                let i = at[0] * per + j;
                let v = Expr::cast(ElemType::U8, ElemType::I32, k.load(codes, &[i]));
                let v = if j == 0 || n.modulo(per).as_const() == Some(0) {
                    v
                } else {
                    Expr::select(Expr::cmp_index(BinOp::Lt, i, n), v, Expr::int(ElemType::I32, 0))
                };
                v * Expr::int(ElemType::I32, 1 << (j * i64::from(ty.bits())))
            };
            // A constant size of less than a byte omits the missing elements.
            let used = n.as_const().map_or(per, |n| n.clamp(1, per));
            let sum = (1..used).fold(part(0), |s, j| s + part(j));
            Expr::cast(ElemType::I32, ElemType::U8, sum)
        });
    }
    fn copy(&mut self, from: Buf, to: Buf) {
        if self.m.is_packed(to) {
            return self.pack(from, to);
        }
        // Bits that a BitCast interprets as floats must be unchanged, even in NaN.
        if self.m.is_recast(from)
            && let Some(word) =
                [ElemType::U8, ElemType::U16].into_iter().find(|w| w.bits() == self.m.bufs[to].ty.bits())
        {
            let n = vec![self.m.bufs[to].count()];
            let (name, origin) = (self.m.bufs[to].name.clone(), self.model.origin.clone());
            let (from, to) = (self.m.view_as(from, word, n.clone()), self.m.view_as(to, word, n));
            self.m.map(to, &origin.element(format!("output \"{name}\"")), |k, at| k.load(from, at));
            return;
        }
        let dims = self.m.bufs[to].dims.clone();
        let name = self.m.bufs[to].name.clone();
        self.m.kernel(&name, &self.model.origin.element(format!("output \"{name}\"")), |k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let v = k.load(from, at);
                k.store(to, at, v);
            });
        });
    }
    fn nodes(&mut self, f: &mut Frame<'a>) -> Result<()> {
        for n in f.g.order.iter().filter(|n| !is_publish(f.g, **n)) {
            self.node(f, *n)?;
        }
        Ok(())
    }
    fn node(&mut self, f: &mut Frame<'a>, n: Node) -> Result<()> {
        let g = f.g;
        let node = &g.nodes[n];
        let wanted = |f: &Frame, v: &Value| f.uses[*v] > 0;
        if node.outputs.iter().flatten().all(|v| !wanted(f, v) || !matches!(g.values[*v].known, Known::No)) {
            return Ok(());
        }
        let first = self.m.driver.len();
        if let Op::Control(c) = &node.op {
            self.control(f, n, c)?;
            self.claim(first, g, n);
            return Ok(());
        }
        let mut inputs = vec![];
        let mut known = vec![];
        for v in &node.inputs {
            let k = match v.map(|v| &g.values[v].known) {
                Some(Known::Dims(d)) => {
                    Known::Dims(d.iter().map(|d| self.model.syms.established(*d)).collect())
                }
                k => k.cloned().unwrap_or_default(),
            };
            inputs.push(match v {
                Some(v) => Some(self.value(f, *v)?),
                None => None,
            });
            known.push(k);
        }
        let mut outputs = vec![];
        for v in &node.outputs {
            outputs.push(match v {
                Some(v) if wanted(f, v) => Some(match f.bufs[*v] {
                    Some(b) => b,
                    None => {
                        let t = self.tensor(f, *v)?;
                        self.m.temp(g.values[*v].name.clone(), t.elem, t.dims)
                    }
                }),
                _ => None,
            });
        }
        let mut cx = LowerCx {
            m: &mut self.m,
            origin: &node.origin,
            since: node.schema.since,
            inputs: &inputs,
            known: &known,
            defined: &mut self.defined,
            outputs,
        };
        node.op.lower(&mut cx)?;
        let done = cx.outputs;
        self.claim(first, g, n);
        for (v, b) in node.outputs.iter().zip(done) {
            if let (Some(v), Some(b)) = (v, b) {
                f.bufs[*v] = Some(b);
            }
        }
        Ok(())
    }
    /// Attributes the checks in the statements from `first` on to this node.
    fn claim(&mut self, first: usize, g: &Graph, n: Node) {
        let source =
            || Source { node: g.called(n), op: g.nodes[n].origin.op.clone(), tensors: vec![] }.into();
        self.m.reasons.claim(self.m.driver.get(first..).unwrap_or_default(), &source);
    }
}
