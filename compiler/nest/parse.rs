//! Reads the text that `print` writes: `print(parse(print(m))) == print(m)`.
//!
//! Lines matter only at the top (`nest`, `dims`, `buf`, `workspace`, `kernel`, `driver`); inside bodies
//! statements tell themselves apart by their first words. Constants come from a table by the hash that is
//! for them.

use super::*;
use crate::diag::{Error, Result, codes};
use crate::sym::{Range, SymKind};
use std::collections::HashMap;

mod expr;
mod lex;
mod module;

pub use expr::{BINARY, UNARY};
use lex::{Tok, Token};

/// Finds a constant by its short hash.
pub type Consts<'a> = &'a dyn Fn(&str) -> Option<Arc<ConstData>>;

/// Reads a module.
pub fn parse(text: &str, consts: Consts<'_>) -> Result<Module> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let (name, stage) = match head.as_slice() {
        ["nest", "v1", name, stage] => (*name, *stage),
        _ => {
            return Error::new(codes::TEXT_SYNTAX, "this is no nest text")
                .found_expected(head.join(" "), "nest v1 <name> stage=<stage>")
                .fail();
        }
    };
    let mut m = Module::new(name, SymTable::new());
    m.stage = match stage {
        "stage=built" => Stage::Built,
        "stage=scheduled" => Stage::Scheduled,
        "stage=placed" => Stage::Placed,
        other => {
            return Error::new(codes::TEXT_SYNTAX, "unknown stage")
                .found_expected(other, "stage=built, stage=scheduled or stage=placed")
                .fail();
        }
    };
    let tokens = lex::tokens(text.split_once('\n').map_or("", |x| x.1))?;
    let mut p = Parser {
        tokens,
        at: 0,
        depth: 0,
        m,
        consts,
        bufs: HashMap::new(),
        slots: HashMap::new(),
        kernels: HashMap::new(),
        sizes: HashMap::new(),
        vars: vec![],
        known_vars: HashMap::new(),
        regs: HashMap::new(),
    };
    p.defines();
    p.module()?;
    Ok(p.m)
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    depth: u32,
    m: Module,
    consts: Consts<'a>,
    bufs: HashMap<String, Buf>,
    slots: HashMap<(Dim, Dim), Slot>,
    kernels: HashMap<String, Kernel>,
    sizes: HashMap<String, Sym>,
    /// Loop variables in scope, innermost last.
    vars: Vec<(String, Sym)>,
    /// All loop variables of this body.
    known_vars: HashMap<String, Sym>,
    /// Registers of this body; true for accumulators.
    regs: HashMap<u32, (Reg, bool)>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Tok<'a> {
        self.tokens.get(self.at).map_or(Tok::End, |t| t.tok)
    }
    fn second(&self) -> Tok<'a> {
        self.tokens.get(self.at + 1).map_or(Tok::End, |t| t.tok)
    }
    fn next(&mut self) -> Tok<'a> {
        let t = self.peek();
        self.at += 1;
        t
    }
    fn fail<T>(&self, expected: &str) -> Result<T> {
        // The header is line 1.
        let line = self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line + 1);
        Error::new(codes::TEXT_SYNTAX, format!("nest text, line {line}: unexpected text"))
            .found_expected(self.peek().text(), expected)
            .fail()
    }
    fn eat(&mut self, p: &str) -> bool {
        let hit = matches!(self.peek(), Tok::Punct(x) | Tok::Word(x) if x == p);
        self.at += usize::from(hit);
        hit
    }
    fn want(&mut self, p: &str) -> Result<()> {
        if self.eat(p) { Ok(()) } else { self.fail(p) }
    }
    fn word(&mut self, what: &str) -> Result<&'a str> {
        match self.peek() {
            Tok::Word(w) => {
                self.at += 1;
                Ok(w)
            }
            _ => self.fail(what),
        }
    }
    fn number<T: std::str::FromStr>(&mut self) -> Result<T> {
        match self.peek() {
            Tok::Num(n) => match n.parse() {
                Ok(v) => {
                    self.at += 1;
                    Ok(v)
                }
                Err(_) => self.fail("a number in range"),
            },
            _ => self.fail("a number"),
        }
    }
    fn ty(&mut self) -> Result<ElemType> {
        let t = match self.peek() {
            Tok::Word(w) => ElemType::from_short(w),
            _ => None,
        };
        match t {
            Some(t) => {
                self.at += 1;
                Ok(t)
            }
            None => self.fail("an element type"),
        }
    }
    /// Statements up to what cannot start one.
    fn stmts(&mut self) -> Result<Vec<Stmt>> {
        self.depth += 1;
        if self.depth > 200 {
            return self.fail("less deeply nested text");
        }
        let mut out = vec![];
        loop {
            let done = match self.peek() {
                Tok::Word("kernel" | "driver") => self.second() != Tok::Punct("["),
                Tok::Word(_) | Tok::Reg(_) => false,
                _ => true,
            };
            if done {
                self.depth -= 1;
                return Ok(out);
            }
            out.push(self.stmt()?);
        }
    }
    fn block(&mut self) -> Result<Vec<Stmt>> {
        self.want("{")?;
        let body = self.stmts()?;
        self.want("}")?;
        Ok(body)
    }
    fn stmt(&mut self) -> Result<Stmt> {
        if let Tok::Reg(n) = self.peek() {
            self.at += 1;
            let Some((reg, true)) = self.regs.get(&n).copied() else {
                self.at -= 1;
                return self.fail("an accumulator");
            };
            let at = self.subscripts()?;
            self.want("=")?;
            return Ok(Stmt::Set { reg, at, value: self.expr()? });
        }
        if self.second() == Tok::Punct("[") {
            let buf = self.buf_named()?;
            let at = self.dims()?;
            self.want("=")?;
            return Ok(Stmt::Store { buf, at, value: self.expr()? });
        }
        match self.word("a statement")? {
            "seq" => self.for_loop(LoopKind::Seq),
            "par" => self.for_loop(LoopKind::Par),
            "unroll" => self.for_loop(LoopKind::Unroll),
            "private" => {
                let name = self.word("a variable")?.to_owned();
                self.want("of")?;
                let lo = self.dim()?;
                self.loop_over(LoopKind::Private, name, lo, lo + 1)
            }
            "vec" => {
                self.want("(")?;
                let n = self.number()?;
                self.want(")")?;
                self.for_loop(LoopKind::Vec(n))
            }
            "let" => {
                let n = self.reg_number()?;
                self.want("=")?;
                let value = self.expr()?;
                let ty = self.m.type_of(&value);
                Ok(Stmt::Let { reg: self.define(n, ty, false), value })
            }
            "acc" => self.acc(),
            "prefetch" => {
                let buf = self.buf_named()?;
                Ok(Stmt::Prefetch { buf, at: self.dims()? })
            }
            "tile" => Ok(Stmt::Tile { body: self.block()? }),
            "if" => {
                let cond = self.expr()?;
                let then = self.block()?;
                let els = if self.peek() == Tok::Word("else") && self.second() == Tok::Punct("{") {
                    self.at += 1;
                    self.block()?
                } else {
                    vec![]
                };
                Ok(Stmt::If { cond, then, els })
            }
            "while" => Ok(Stmt::While { cond: self.expr()?, body: self.block()? }),
            "with" => {
                let name = self.word("an index")?.to_owned();
                self.want("=")?;
                let value = self.expr()?;
                self.want("<")?;
                let extent = self.dim()?;
                let sym = self.open_var(name, Dim::constant(0), extent);
                let body = self.block()?;
                self.vars.pop();
                Ok(Stmt::With { sym, value, extent, body })
            }
            "define" => {
                let (Tok::Word(n) | Tok::Quoted(n)) = self.next() else {
                    return self.fail("the name of a size");
                };
                let Some(sym) = self.sizes.get(n).copied() else { return self.fail("the name of a size") };
                self.want("=")?;
                let value = self.expr()?;
                self.want("in")?;
                let lo = self.dim()?;
                self.want("..")?;
                self.want("=")?;
                let line = |p: &Self, at: usize| p.tokens.get(at).map(|t| t.line);
                let hi =
                    if line(self, self.at) == line(self, self.at - 1) { Some(self.dim()?) } else { None };
                Ok(Stmt::Define { sym, value, lo, hi })
            }
            "check" => {
                let cond = self.expr()?;
                self.want("else")?;
                let w = self.word("a status")?;
                match STATUS.iter().find(|s| format!("{s:?}").to_lowercase() == w) {
                    Some(status) => {
                        self.condition(&cond, *status);
                        Ok(Stmt::Check { cond, status: *status })
                    }
                    None => self.fail("a status"),
                }
            }
            "foreign" => {
                let function = if self.eat("custom") {
                    foreign::Function::Custom(self.number()?)
                } else {
                    match foreign::Function::from_name(self.word("the name of a function")?) {
                        Some(f) => f,
                        None => return self.fail("the name of a function"),
                    }
                };
                let mut from = vec![];
                while !self.eat("to") {
                    from.push(self.buf_named()?);
                    self.eat(",");
                }
                let mut to = vec![self.buf_named()?];
                while self.eat(",") {
                    to.push(self.buf_named()?);
                }
                Ok(Stmt::Foreign(Foreign { function, from, to }))
            }
            "call" => {
                let n = self.word("the name of a kernel")?;
                match self.kernels.get(n) {
                    Some(k) => Ok(Stmt::Call(*k)),
                    None => self.fail("the name of a kernel"),
                }
            }
            _ => {
                self.at -= 1;
                self.fail("a statement")
            }
        }
    }
    fn for_loop(&mut self, kind: LoopKind) -> Result<Stmt> {
        let name = self.word("a loop variable")?.to_owned();
        self.want("in")?;
        let lo = self.dim()?;
        self.want("..")?;
        let hi = self.dim()?;
        self.loop_over(kind, name, lo, hi)
    }
    fn loop_over(&mut self, kind: LoopKind, name: String, lo: Dim, hi: Dim) -> Result<Stmt> {
        let var = self.open_var(name, lo, hi);
        let body = self.block()?;
        self.vars.pop();
        Ok(Stmt::For { kind, var, lo, hi, body })
    }
    /// The printed number is made again from the order of variables: the hint is what is before. A name
    /// that was there before is the same variable (a fault that `verify` reports).
    fn open_var(&mut self, name: String, lo: Dim, hi: Dim) -> Sym {
        let syms = &mut self.m.syms;
        let hint = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let s = *self.known_vars.entry(name.clone()).or_insert_with(|| syms.loop_var(hint, lo, hi));
        self.vars.push((name, s));
        s
    }
    fn reg_number(&mut self) -> Result<u32> {
        match self.peek() {
            Tok::Reg(n) => {
                self.at += 1;
                Ok(n)
            }
            _ => self.fail("a register"),
        }
    }
    /// The register of that number; another definition of it is the same register.
    fn define(&mut self, n: u32, ty: ElemType, acc: bool) -> Reg {
        match self.regs.get(&n) {
            Some((r, a)) if *a == acc && self.m.regs[*r].ty == ty => *r,
            _ => {
                let r = self.m.reg(ty);
                self.regs.insert(n, (r, acc));
                r
            }
        }
    }
    fn acc(&mut self) -> Result<Stmt> {
        let n = self.reg_number()?;
        let mut shape = vec![];
        if self.eat("[") {
            while !self.eat("]") {
                shape.push(self.number()?);
                self.eat(",");
            }
        }
        let lanes = match self.peek() {
            Tok::Word(w) => match w.strip_prefix('x').and_then(|l| l.parse().ok()) {
                Some(l) => {
                    self.at += 1;
                    l
                }
                None => return self.fail("lanes, as in x4"),
            },
            _ => 1,
        };
        self.want("=")?;
        let init = self.expr()?;
        self.want(":")?;
        let ty = self.ty()?;
        let reg = self.define(n, ty, true);
        if self.peek() == Tok::Word("whole") && self.second() == Tok::Punct("<=") {
            self.at += 2;
            self.m.regs[reg].whole = Some(self.number()?);
        }
        Ok(Stmt::Acc { reg, lanes, shape, init })
    }
    /// What the driver checks first is known to later proofs, as it was when the module was made.
    fn condition(&mut self, cond: &Expr, status: Status) {
        if status != Status::Dim || self.depth > 1 {
            return;
        }
        if let Expr::Bin(op, a, b) = cond
            && let (Expr::Index(a), Expr::Index(b)) = (&**a, &**b)
        {
            match op {
                BinOp::Eq => self.m.syms.equate(*a, *b),
                BinOp::Le => self.m.syms.require_at_most(*a, *b),
                _ => {}
            }
        }
    }
}

/// Statuses that a check may leave with.
pub const STATUS: &[Status] = &[
    Status::Null,
    Status::Align,
    Status::Dim,
    Status::Capacity,
    Status::Index,
    Status::Value,
    Status::Weights,
    Status::Cancelled,
    Status::Abi,
    Status::Cpu,
];

/// From [`crate::diag::Origin::short`].
fn origin(text: &str) -> Origin {
    let plain = |s: &str| !s.is_empty() && !s.contains([' ', '"']);
    if let Some((op, name)) = text.split_once(" \"").and_then(|(op, n)| Some((op, n.strip_suffix('"')?)))
        && plain(op)
        && !name.is_empty()
    {
        return Origin { op: op.into(), name: name.into(), ..Origin::default() };
    }
    if let Some((op, n)) =
        text.split_once(" (node ").and_then(|(op, n)| Some((op, n.strip_suffix(')')?.parse().ok()?)))
        && plain(op)
    {
        return Origin { op: op.into(), node: Some(n), ..Origin::default() };
    }
    Origin::default().element(text)
}
