//! Text of the nest IR. Deterministic: symbols, registers and buffers are numbered in print order, terms of
//! dims follow that order too, constants appear as type, shape and hash. `parse` reads it back (constants by
//! their hash, from a table).
//!
//! ```text
//! nest v1 <name> stage=<stage>
//! dims N S
//! buf x : f32[N, 784] input 0
//! kernel gemm ; Gemm "fc1"
//!   par i0 in 0..N {
//!     acc %0 = 0.0 : f32
//!     seq i1 in 0..784 {
//!       %0 = fma(x[i0, i1], w[i1], %0)
//!     }
//!     y[i0] = %0
//!   }
//! driver
//!   call gemm
//! ```

mod expr;
pub mod plan;

use super::*;
use crate::sym::text::{display_with, quote};
pub use expr::infix;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// The whole module.
pub fn print(m: &Module) -> String {
    let mut p = Printer::new(m);
    p.module();
    p.out
}

/// Where everything is in a text: lines are counted from 1.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// Heads of kernels.
    pub kernels: HashMap<Kernel, u32>,
    /// First lines of statements, by their addresses.
    pub statements: HashMap<usize, u32>,
    /// The driver.
    pub driver: u32,
}

impl Lines {
    /// The lines of a copy of statements.
    pub fn of_copy(&self, from: &[Stmt], copy: &[Stmt]) -> Lines {
        let (mut lines, mut places) = (vec![], vec![]);
        visit::walk(from, &mut |s| lines.push(self.of(s)));
        visit::walk(copy, &mut |s| places.push(std::ptr::from_ref(s).addr()));
        let statements = places.into_iter().zip(lines).filter_map(|(p, l)| Some((p, l?))).collect();
        Lines { kernels: self.kernels.clone(), statements, driver: self.driver }
    }
    /// The line of a statement of the module itself, not of a copy.
    pub fn of(&self, s: &Stmt) -> Option<u32> {
        self.statements.get(&std::ptr::from_ref(s).addr()).copied()
    }
}

/// Lines of the whole module's text behind so many others, and where it ends.
pub fn lines(m: &Module, behind: u32) -> (Lines, u32) {
    let mut p = Printer::new(m);
    (p.row, p.lines) = (behind, Some(Lines::default()));
    p.module();
    (p.lines.unwrap_or_default(), p.row)
}

/// First lines of statements, by address: what a fault is about, with the numbers that the whole body prints
/// with.
pub(super) fn heads(m: &Module, body: &[Stmt]) -> HashMap<usize, String> {
    let mut p = Printer::new(m);
    p.heads = Some(HashMap::new());
    p.block(body);
    p.heads.unwrap_or_default()
}

struct Printer<'a> {
    m: &'a Module,
    out: String,
    /// Sizes: texts, and the symbols they are sorted as.
    sizes: HashMap<Sym, (Sym, String)>,
    syms: HashMap<Sym, (Sym, String)>,
    regs: HashMap<Reg, usize>,
    bufs: HashMap<Buf, String>,
    names: HashSet<String>,
    kernels: HashMap<Kernel, String>,
    kernel_names: HashSet<String>,
    heads: Option<HashMap<usize, String>>,
    lines: Option<Lines>,
    /// Lines so far.
    row: u32,
    /// Where constants lie, for the text of a plan.
    offsets: plan::Offsets<'a>,
    indent: usize,
}

/// Loop variables are sorted behind sizes.
const FIRST_LOOP: u32 = 1 << 30;

impl<'a> Printer<'a> {
    fn new(m: &'a Module) -> Self {
        Printer {
            m,
            out: String::new(),
            sizes: sizes(m),
            syms: HashMap::new(),
            regs: HashMap::new(),
            bufs: HashMap::new(),
            names: HashSet::new(),
            kernels: HashMap::new(),
            kernel_names: HashSet::new(),
            heads: None,
            lines: None,
            row: 0,
            offsets: None,
            indent: 0,
        }
    }
    fn line(&mut self, text: &str) {
        for _ in 0..self.indent {
            self.out.push_str("  ");
        }
        self.out.push_str(text);
        self.out.push('\n');
        self.row += 1;
    }
    fn module(&mut self) {
        let m = self.m;
        let name = if self.offsets.is_some() { "plan" } else { m.name.as_str() };
        self.line(&format!("nest v1 {name} stage={}", format!("{:?}", m.stage).to_lowercase()));
        if !m.dim_params.is_empty() {
            let list: Vec<String> = m
                .dim_params
                .iter()
                .map(|s| {
                    let r = m.syms.declared_range(*s);
                    let lo = r.lo.filter(|l| *l != 0).map_or(String::new(), |l| format!("{l}<="));
                    let hi = r.hi.map_or(String::new(), |h| format!("<={h}"));
                    format!("{lo}{}{hi}", self.sizes[s].1)
                })
                .collect();
            self.line(&format!("dims {}", list.join(" ")));
        }
        for (s, d) in m.syms.derived() {
            let text = self.dim(*d);
            self.line(&format!("let {} = {text}", self.sizes[s].1));
        }
        for c in &m.customs {
            self.line(&format!("custom '{}'", c.text()));
        }
        // Buffers in order of use: inputs, outputs, then as the kernels meet them.
        let mut order: Vec<Buf> = m.inputs.iter().chain(&m.outputs).copied().collect();
        let mut kernels = vec![];
        for k in visit::calls(&m.driver) {
            if !kernels.contains(&k) {
                kernels.push(k);
            }
        }
        for k in &kernels {
            let body = &m.kernels[*k].body;
            for b in visit::loads(body).into_iter().chain(visit::stores(body)) {
                order.push(m.storage(b));
                order.push(b);
            }
        }
        visit::walk(&m.driver, &mut |s| {
            order.extend(s.loads().into_iter().chain(s.writes()).flat_map(|b| [m.storage(b), b]))
        });
        let mut seen = HashSet::new();
        for b in order.into_iter().filter(|b| seen.insert(*b)) {
            self.buf(b);
        }
        if m.stage == Stage::Placed {
            let w = self.dim(m.workspace);
            self.line(&format!("workspace {w}"));
        }
        for k in kernels {
            self.kernel(k);
        }
        self.line("driver");
        if let Some(l) = &mut self.lines {
            l.driver = self.row;
        }
        self.syms.clear();
        self.regs.clear();
        self.indent += 1;
        self.block(&m.driver);
        self.indent -= 1;
    }
    fn name(&mut self, b: Buf) -> String {
        if let Some(n) = self.bufs.get(&b) {
            return n.clone();
        }
        let n = match self.offsets {
            Some(_) => format!("b{}", self.bufs.len()),
            None => unique(&self.m.bufs[b].name, &mut self.names),
        };
        self.bufs.insert(b, n.clone());
        n
    }
    fn kernel_name(&mut self, k: Kernel) -> String {
        if let Some(n) = self.kernels.get(&k) {
            return n.clone();
        }
        let n = match self.offsets {
            Some(_) => format!("k{}", self.kernels.len()),
            None => unique(&self.m.kernels[k].name, &mut self.kernel_names),
        };
        self.kernels.insert(k, n.clone());
        n
    }
    fn buf(&mut self, b: Buf) {
        let d = self.m.bufs[b].clone();
        let name = self.name(b);
        let dims: Vec<String> = d.dims.iter().map(|x| self.dim(*x)).collect();
        let layout = match &d.layout {
            Layout::RowMajor => String::new(),
            Layout::Permuted(p) => {
                format!(" order({})", p.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
            }
        };
        let place = match &d.place {
            Place::Input(i) => format!("input {i}"),
            Place::Output(i) => format!("output {i}"),
            Place::Const(c) => match self.offsets {
                Some(offset) => format!("const {:?}", offset(b)),
                None => format!("const #{}", c.short_hash()),
            },
            Place::Temp => "temp".into(),
            Place::Growable => "growable".into(),
            Place::Foreign => "foreign".into(),
            Place::Pointer(s) => format!("pointer {}", self.dim((*s).into())),
            Place::View(of) => format!("view {}", self.name(*of)),
            Place::Arena(s) => {
                let (o, n) = (self.m.slots[*s].offset, self.m.slots[*s].size);
                format!("at {} size {}", self.dim(o), self.dim(n))
            }
        };
        self.line(&format!("buf {name} : {}[{}]{layout} {place}", d.ty.short(), dims.join(", ")));
    }
    fn kernel(&mut self, k: Kernel) {
        let d = &self.m.kernels[k];
        let work =
            if d.work == Dim::constant(0) { String::new() } else { format!(" work {}", self.dim(d.work)) };
        let origin = d.origin.short().replace(char::is_control, " ");
        let scheduled = if d.scheduled && self.m.stage == Stage::Built { " scheduled" } else { "" };
        let narrow = if d.narrow { " narrow" } else { "" };
        let origin = if self.offsets.is_some() { String::new() } else { origin };
        let head = format!("kernel {}{work}{scheduled}{narrow} ; {origin}", self.kernel_name(k));
        self.line(head.trim_end());
        if let Some(l) = &mut self.lines {
            l.kernels.insert(k, self.row);
        }
        self.indent += 1;
        self.syms.clear();
        self.regs.clear();
        self.block(&d.body);
        self.indent -= 1;
    }
    fn entry(&mut self, s: Sym) -> &(Sym, String) {
        if self.m.syms.kind(s) != crate::sym::SymKind::Loop
            && let Some(e) = self.sizes.get(&s)
        {
            return e;
        }
        let n = self.syms.len();
        let (hint, sizes) = (self.m.syms.name(s), &self.sizes);
        self.syms.entry(s).or_insert_with(|| {
            let mut name = format!("{hint}{n}");
            while sizes.values().any(|t| t.1 == name) {
                name = format!("{}_{n}", name.trim_end_matches(|c: char| c.is_ascii_digit()));
            }
            (Sym(FIRST_LOOP + n as u32), name)
        })
    }
    fn sym(&mut self, s: Sym) -> String {
        self.entry(s).1.clone()
    }
    fn dim(&mut self, d: Dim) -> String {
        let mut texts = HashMap::new();
        let mut moved = HashMap::new();
        for s in d.syms() {
            let (to, text) = self.entry(s).clone();
            texts.insert(to, text);
            moved.insert(s, to);
        }
        let d = d.subst(&mut |s| moved.get(&s).map(|t| Dim::sym(*t)));
        display_with(d, &|s| texts.get(&s).cloned().unwrap_or_default())
    }
    fn reg(&mut self, r: Reg) -> String {
        let n = self.regs.len();
        format!("%{}", self.regs.entry(r).or_insert(n))
    }
    fn at(&mut self, at: &[Dim]) -> String {
        if at.is_empty() {
            String::new()
        } else {
            format!("[{}]", at.iter().map(|d| self.dim(*d)).collect::<Vec<_>>().join(", "))
        }
    }
    fn block(&mut self, body: &[Stmt]) {
        for s in body {
            self.stmt(s);
        }
    }
    fn nested(&mut self, head: &str, body: &[Stmt]) {
        self.line(&format!("{head} {{"));
        self.indent += 1;
        self.block(body);
        self.indent -= 1;
        self.line("}");
    }
    fn stmt(&mut self, s: &Stmt) {
        let start = self.out.len();
        if let Some(l) = &mut self.lines {
            l.statements.insert(std::ptr::from_ref(s).addr(), self.row + 1);
        }
        self.write(s);
        if let Some(h) = &mut self.heads {
            h.insert(
                std::ptr::from_ref(s).addr(),
                self.out[start..].lines().next().unwrap_or_default().trim().to_owned(),
            );
        }
    }
    fn write(&mut self, s: &Stmt) {
        match s {
            Stmt::For { kind, var, lo, hi, body } => {
                if *kind == LoopKind::Private {
                    let head = format!("private {} of {}", self.sym(*var), self.dim(*lo));
                    return self.nested(&head, body);
                }
                let kind = match kind {
                    LoopKind::Private => "private".into(),
                    LoopKind::Seq => "seq".into(),
                    LoopKind::Par => "par".into(),
                    LoopKind::Vec(n) => format!("vec({n})"),
                    LoopKind::Unroll => "unroll".into(),
                };
                let head = format!("{kind} {} in {}..{}", self.sym(*var), self.dim(*lo), self.dim(*hi));
                self.nested(&head, body);
            }
            Stmt::Let { reg, value } => {
                let t = format!("let {} = {}", self.reg(*reg), self.expr(value));
                self.line(&t);
            }
            Stmt::Acc { reg, lanes, shape, init } => {
                let shape = if shape.is_empty() {
                    String::new()
                } else {
                    format!("[{}]", shape.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))
                };
                let lanes = if *lanes == 1 { String::new() } else { format!(" x{lanes}") };
                let whole = self.m.regs[*reg].whole.map_or(String::new(), |most| format!(" whole <= {most}"));
                let t = format!(
                    "acc {}{shape}{lanes} = {} : {}{whole}",
                    self.reg(*reg),
                    self.expr(init),
                    self.m.regs[*reg].ty.short()
                );
                self.line(&t);
            }
            Stmt::Set { reg, at, value } => {
                let t = format!("{}{} = {}", self.reg(*reg), self.at(at), self.expr(value));
                self.line(&t);
            }
            Stmt::Store { buf, at, value } => {
                let t = format!(
                    "{}{} = {}",
                    self.name(*buf),
                    format_args!("[{}]", at.iter().map(|d| self.dim(*d)).collect::<Vec<_>>().join(", ")),
                    self.expr(value)
                );
                self.line(&t);
            }
            Stmt::Prefetch { buf, at } => {
                let list: Vec<String> = at.iter().map(|d| self.dim(*d)).collect();
                let t = format!("prefetch {}[{}]", self.name(*buf), list.join(", "));
                self.line(&t);
            }
            Stmt::Tile { body } => self.nested("tile", body),
            Stmt::If { cond, then, els } => {
                let head = format!("if {}", self.expr(cond));
                self.nested(&head, then);
                if !els.is_empty() {
                    self.nested("else", els);
                }
            }
            Stmt::While { cond, body } => {
                let head = format!("while {}", self.expr(cond));
                self.nested(&head, body);
            }
            Stmt::With { sym, value, extent, body } => {
                let value = self.expr(value);
                let extent = self.dim(*extent);
                let head = format!("with {} = {value} < {extent}", self.sym(*sym));
                self.nested(&head, body);
            }
            Stmt::Define { sym, value, lo, hi } => {
                let hi = hi.map_or(String::new(), |h| self.dim(h));
                let t =
                    format!("define {} = {} in {}..={hi}", self.sym(*sym), self.expr(value), self.dim(*lo));
                self.line(&t);
            }
            Stmt::Check { cond, status } => {
                let t = format!("check {} else {}", self.expr(cond), format!("{status:?}").to_lowercase());
                self.line(&t);
            }
            Stmt::Foreign(f) => {
                let number = match f.function {
                    foreign::Function::Custom(n) => format!(" {n}"),
                    _ => String::new(),
                };
                let mut names =
                    |list: &[Buf]| list.iter().map(|b| self.name(*b)).collect::<Vec<_>>().join(", ");
                let (from, to) = (names(&f.from), names(&f.to));
                let t = format!("foreign {}{number} {from} to {to}", f.function.name());
                self.line(&t);
            }
            Stmt::Call(k) => {
                let t = format!("call {}", self.kernel_name(*k));
                self.line(&t);
            }
        }
    }
}

/// Texts of sizes, and their order: parameters in signature order, then run-time sizes as the driver defines
/// them, so that a module that was read back prints the same.
fn sizes(m: &Module) -> HashMap<Sym, (Sym, String)> {
    let mut order = m.dim_params.clone();
    order.extend(m.syms.derived().iter().map(|d| d.0));
    visit::walk(&m.driver, &mut |s| {
        if let Stmt::Define { sym, .. } = s {
            order.push(*sym);
        }
    });
    order.extend(m.syms.iter().filter(|s| m.syms.kind(*s) != crate::sym::SymKind::Loop));
    let mut out = HashMap::new();
    let mut names = HashSet::new();
    for s in order {
        let n = out.len() as u32;
        out.entry(s).or_insert_with(|| {
            // The grammar has no escapes inside quotes, and `..` is between bounds.
            let base = m.syms.name(s).replace(|c: char| c == '\'' || c.is_control(), "_");
            let mut name = base.clone();
            let mut i = 1;
            while !names.insert(name.clone()) {
                i += 1;
                name = format!("{base}_{i}");
            }
            let dots = name.contains("..") || name.ends_with('.');
            (Sym(n), if dots { format!("'{name}'") } else { quote(&name) })
        });
    }
    out
}

/// A name that the grammar can read, told apart from those before.
fn unique(name: &str, taken: &mut HashSet<String>) -> String {
    let base: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/') { c } else { '_' })
        .collect();
    let base = base.replace("..", "__");
    let base = if base.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        || (base.starts_with('/') && base.len() > 1)
    {
        base
    } else {
        format!("t{base}")
    };
    let mut n = base.clone();
    let mut i = 1;
    while !taken.insert(n.clone()) {
        i += 1;
        n = format!("{base}.{i}");
    }
    n
}
