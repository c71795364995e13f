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
mod stmt;

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
    /// One item or more, with commas between them.
    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut out = vec![item(self)?];
        while self.eat(",") {
            out.push(item(self)?);
        }
        Ok(out)
    }
    /// What `body` reads where `name` is a variable in `lo..hi`. Its number in the text is made again from
    /// the order of variables: the hint is what is before it. A name that was there before is the same
    /// variable (a fault that `verify` reports).
    fn binding<T>(
        &mut self,
        name: String,
        lo: Dim,
        hi: Dim,
        body: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(Sym, T)> {
        let syms = &mut self.m.syms;
        let hint = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let s = *self.known_vars.entry(name.clone()).or_insert_with(|| syms.loop_var(hint, lo, hi));
        self.vars.push((name, s));
        let done = body(self)?;
        self.vars.pop();
        Ok((s, done))
    }
    /// `i = value < extent`, of `with`.
    fn bound_index(&mut self) -> Result<(String, Expr, Dim)> {
        let name = self.word("an index")?.to_owned();
        self.want("=")?;
        let value = self.expr()?;
        self.want("<")?;
        Ok((name, value, self.dim()?))
    }
    fn accumulator(&mut self) -> Result<Reg> {
        if let Tok::Reg(n) = self.peek()
            && let Some((reg, true)) = self.regs.get(&n).copied()
        {
            self.at += 1;
            return Ok(reg);
        }
        self.fail("an accumulator")
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
