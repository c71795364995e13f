//! Text of the nest IR. Deterministic: symbols, registers and buffers are numbered in print order, constants appear as
//! type, shape and hash. `parse` reads it back (constants by their hash, from a table).
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

use super::*;
use crate::sym::text::{display_with, quote};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// The whole module.
pub fn print(m: &Module) -> String {
    let mut p = Printer::new(m);
    p.module();
    p.out
}

/// One kernel with the buffers it touches.
pub fn print_kernel(m: &Module, k: Kernel) -> String {
    let mut p = Printer::new(m);
    p.kernel(k);
    p.out
}

struct Printer<'a> {
    m: &'a Module,
    out: String,
    syms: HashMap<Sym, String>,
    regs: HashMap<Reg, usize>,
    bufs: HashMap<Buf, String>,
    names: HashSet<String>,
    indent: usize,
}

impl<'a> Printer<'a> {
    fn new(m: &'a Module) -> Self {
        Printer { m, out: String::new(), syms: HashMap::new(), regs: HashMap::new(), bufs: HashMap::new(), names: HashSet::new(), indent: 0 }
    }
    fn line(&mut self, text: &str) {
        for _ in 0..self.indent {
            self.out.push_str("  ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }
    fn module(&mut self) {
        let m = self.m;
        self.line(&format!("nest v1 {} stage={}", m.name, format!("{:?}", m.stage).to_lowercase()));
        if !m.dim_params.is_empty() {
            let list: Vec<String> = m
                .dim_params
                .iter()
                .map(|s| {
                    let r = m.syms.declared_range(*s);
                    let hi = r.hi.map_or(String::new(), |h| format!("<={h}"));
                    format!("{}{hi}", quote(m.syms.name(*s)))
                })
                .collect();
            self.line(&format!("dims {}", list.join(" ")));
        }
        // Buffers in order of use: inputs, outputs, then as the kernels meet them.
        let mut order: Vec<Buf> = m.inputs.iter().chain(&m.outputs).copied().collect();
        let mut kernels = vec![];
        visit::walk(&m.driver, &mut |s| {
            if let Stmt::Call(k) = s {
                kernels.push(*k);
            }
        });
        for k in &kernels {
            let body = &m.kernels[*k].body;
            for b in visit::loads(body).into_iter().chain(visit::stores(body)) {
                order.push(m.storage(b));
                order.push(b);
            }
        }
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
        self.indent += 1;
        self.block(&m.driver.clone());
        self.indent -= 1;
    }
    fn name(&mut self, b: Buf) -> String {
        if let Some(n) = self.bufs.get(&b) {
            return n.clone();
        }
        let base: String = self.m.bufs[b].name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/') { c } else { '_' }).collect();
        let base = if base.is_empty() || base.starts_with(|c: char| c.is_ascii_digit()) { format!("t{base}") } else { base };
        let mut n = base.clone();
        let mut i = 1;
        while !self.names.insert(n.clone()) {
            i += 1;
            n = format!("{base}.{i}");
        }
        self.bufs.insert(b, n.clone());
        n
    }
    fn buf(&mut self, b: Buf) {
        let d = self.m.bufs[b].clone();
        let name = self.name(b);
        let dims: Vec<String> = d.dims.iter().map(|x| self.dim(*x)).collect();
        let layout = match &d.layout {
            Layout::RowMajor => String::new(),
            Layout::Permuted(p) => format!(" order({})", p.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
        };
        let place = match &d.place {
            Place::Input(i) => format!("input {i}"),
            Place::Output(i) => format!("output {i}"),
            Place::Const(c) => format!("const #{}", c.short_hash()),
            Place::Temp => "temp".into(),
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
        let work = if d.work == Dim::constant(0) { String::new() } else { format!(" work {}", self.dim(d.work)) };
        self.line(&format!("kernel {}{work} ; {}", d.name, d.origin.short()));
        self.indent += 1;
        self.syms.clear();
        self.regs.clear();
        self.block(&d.body);
        self.indent -= 1;
    }
    fn sym(&mut self, s: Sym) -> String {
        if self.m.syms.kind(s) != crate::sym::SymKind::Loop {
            return quote(self.m.syms.name(s));
        }
        let n = self.syms.len();
        let hint = self.m.syms.name(s);
        self.syms.entry(s).or_insert_with(|| format!("{hint}{n}")).clone()
    }
    fn dim(&mut self, d: Dim) -> String {
        let table: HashMap<Sym, String> = d.syms().into_iter().map(|s| (s, self.sym(s))).collect();
        display_with(d, &|s| table.get(&s).cloned().unwrap_or_default())
    }
    fn reg(&mut self, r: Reg) -> String {
        let n = self.regs.len();
        format!("%{}", self.regs.entry(r).or_insert(n))
    }
    fn at(&mut self, at: &[Dim]) -> String {
        if at.is_empty() { String::new() } else { format!("[{}]", at.iter().map(|d| self.dim(*d)).collect::<Vec<_>>().join(", ")) }
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
        match s {
            Stmt::For { kind, var, lo, hi, body } => {
                let kind = match kind {
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
                let shape = if shape.is_empty() { String::new() } else { format!("[{}]", shape.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")) };
                let lanes = if *lanes == 1 { String::new() } else { format!(" x{lanes}") };
                let t = format!("acc {}{shape}{lanes} = {} : {}", self.reg(*reg), self.expr(init), self.m.regs[*reg].ty.short());
                self.line(&t);
            }
            Stmt::Set { reg, at, value } => {
                let t = format!("{}{} = {}", self.reg(*reg), self.at(at), self.expr(value));
                self.line(&t);
            }
            Stmt::Store { buf, at, value } => {
                let t = format!("{}{} = {}", self.name(*buf), format_args!("[{}]", at.iter().map(|d| self.dim(*d)).collect::<Vec<_>>().join(", ")), self.expr(value));
                self.line(&t);
            }
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
            Stmt::Define { sym, value, lo, hi } => {
                let hi = hi.map_or(String::new(), |h| self.dim(h));
                let t = format!("define {} = {} in {}..={hi}", self.sym(*sym), self.expr(value), self.dim(*lo));
                self.line(&t);
            }
            Stmt::Check { cond, status } => {
                let t = format!("check {} else {}", self.expr(cond), format!("{status:?}").to_lowercase());
                self.line(&t);
            }
            Stmt::Call(k) => {
                let t = format!("call {}", self.m.kernels[*k].name);
                self.line(&t);
            }
        }
    }
    fn expr(&mut self, e: &Expr) -> String {
        match e {
            Expr::Const(s) => scalar(*s),
            Expr::Reg(r) => self.reg(*r),
            Expr::Acc { reg, at, lane } => {
                let lane = lane.map_or(String::new(), |l| format!(".{}", self.dim(l)));
                format!("{}{}{lane}", self.reg(*reg), self.at(at))
            }
            Expr::Horizontal { op, reg, at } => format!("lanes_{}({}{})", bin_name(*op), self.reg(*reg), self.at(at)),
            Expr::Index(d) => format!("idx({})", self.dim(*d)),
            Expr::Load { buf, at } => {
                let list: Vec<String> = at.iter().map(|d| self.dim(*d)).collect();
                format!("{}[{}]", self.name(*buf), list.join(", "))
            }
            Expr::Un(UnOp::Bits(t), a) => format!("bits_{}({})", t.short(), self.expr(a)),
            Expr::Un(op, a) => format!("{}({})", format!("{op:?}").to_lowercase(), self.expr(a)),
            Expr::Bin(op, a, b) => {
                let (a, b) = (self.expr(a), self.expr(b));
                match infix(*op) {
                    Some(i) => format!("({a} {i} {b})"),
                    None => format!("{}({a}, {b})", bin_name(*op)),
                }
            }
            Expr::Fma(a, b, c) => format!("fma({}, {}, {})", self.expr(a), self.expr(b), self.expr(c)),
            Expr::Select(a, b, c) => format!("select({}, {}, {})", self.expr(a), self.expr(b), self.expr(c)),
            Expr::Cast(t, a) => format!("{}({})", t.short(), self.expr(a)),
            Expr::Let { reg, value, body } => {
                let v = self.expr(value);
                format!("(let {} = {v} in {})", self.reg(*reg), self.expr(body))
            }
            Expr::With { sym, value, extent, body } => {
                let v = self.expr(value);
                let n = self.dim(*extent);
                format!("(with {} = {v} < {n} in {})", self.sym(*sym), self.expr(body))
            }
        }
    }
}

/// Operators that print between their operands.
pub(super) fn infix(op: BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::Add => "+",
        BinOp::Sub => "-",
        BinOp::Mul => "*",
        BinOp::Div => "/",
        BinOp::Eq => "==",
        BinOp::Ne => "!=",
        BinOp::Lt => "<",
        BinOp::Le => "<=",
        BinOp::Gt => ">",
        BinOp::Ge => ">=",
        _ => return None,
    })
}

/// Name of an operation.
pub(super) fn bin_name(op: BinOp) -> String {
    format!("{op:?}").to_lowercase()
}

/// Shortest text that reads back as the same value.
fn scalar(s: Scalar) -> String {
    let mut t = String::new();
    let _ = match s.ty {
        ElemType::F32 => write!(t, "{:?}", f32::from_bits(s.bits as u32)),
        ElemType::F64 => write!(t, "{:?}:f64", s.to_f64()),
        ElemType::Bool => write!(t, "{}", s.bits != 0),
        ElemType::I64 => write!(t, "{}:i64", s.to_i64()),
        ElemType::U64 => write!(t, "{}:u64", s.bits),
        ty => write!(t, "{}:{}", s.to_i64(), ty.short()),
    };
    t
}
