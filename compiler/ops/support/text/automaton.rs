//! Regular expressions of operators on strings, in the syntax of RE2 ([`re2`]), as dense tables that
//! generated code walks byte by byte.

use super::{lt, not, re2};
use crate::diag::{Result, limits};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, Module, Reg};
use crate::ops::InferCx;
use crate::ops::support::runtime::{self, int};
use crate::tensor::{ConstData, ElemType};
use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::{Anchored, Input, MatchKind};
use std::collections::HashMap;
use std::sync::Arc;

/// An automaton whose start state depends on the preceding byte.
#[derive(Clone, Debug, PartialEq)]
pub struct Automaton {
    /// Column of each byte.
    classes: Vec<u8>,
    /// Number of columns; the last one is the end of the text.
    columns: usize,
    /// Next states, one row per state.
    next: Vec<i32>,
    /// Bit 0: a match ends before the byte that led to this state; bit 1: dead state.
    flags: Vec<u8>,
    /// Start state at the beginning of a text, then after each byte.
    starts: Vec<i32>,
}

impl Automaton {
    /// Compiles a pattern for matches that begin at the start of the search and may end anywhere. Returns the
    /// reason if it cannot be compiled.
    pub fn new(pattern: &str) -> std::result::Result<Automaton, String> {
        let tree = re2::parse(pattern)?;
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            .match_kind(MatchKind::All)
            .starts_for_each_pattern(false)
            .dfa_size_limit(Some(limits::TABLE_BYTES.size()))
            .determinize_size_limit(Some(limits::TABLE_BYTES.size()))
            .minimize(false);
        let config_of_nfa =
            thompson::Config::new().utf8(true).nfa_size_limit(Some(limits::PATTERN_BYTES.size()));
        let nfa =
            thompson::Compiler::new().configure(config_of_nfa).build_from_hir(&tree).map_err(|e| match e
                .size_limit()
            {
                Some(_) => too_large(&limits::PATTERN_BYTES),
                None => reason(&e),
            })?;
        let dfa = dense::Builder::new().configure(config).build_from_nfa(&nfa).map_err(|e| {
            match e.is_size_limit_exceeded() {
                true => too_large(&limits::TABLE_BYTES),
                false => reason(&e),
            }
        })?;
        let mut numbers = HashMap::new();
        let mut order = vec![];
        let mut number = |s, order: &mut Vec<_>| {
            *numbers.entry(s).or_insert_with(|| {
                order.push(s);
                order.len() as i32 - 1
            })
        };
        let mut starts = vec![];
        for before in std::iter::once(None).chain((0..=255u8).map(Some)) {
            let behind = before.map_or(vec![], |b| vec![b]);
            let input = Input::new(&behind).range(behind.len()..).anchored(Anchored::Yes);
            let s = dfa.start_state_forward(&input).map_err(|e| e.to_string())?;
            starts.push(number(s, &mut order));
        }
        let (mut rows, mut flags) = (vec![], vec![]);
        let mut at = 0;
        while let Some(&s) = order.get(at) {
            if dfa.is_quit_state(s) {
                return Err("a boundary of words that are not ASCII".into());
            }
            let mut row: Vec<i32> = (0..=255).map(|b| number(dfa.next_state(s, b), &mut order)).collect();
            row.push(number(dfa.next_eoi_state(s), &mut order));
            rows.push(row);
            flags.push(u8::from(dfa.is_match_state(s)) | u8::from(dfa.is_dead_state(s)) << 1);
            at += 1;
        }
        // Bytes with equal transitions in all states share a column.
        let (mut columns, mut classes): (Vec<Vec<i32>>, Vec<u8>) = (vec![], vec![]);
        for b in 0..256 {
            let column: Vec<i32> = rows.iter().map(|r| r[b]).collect();
            let c = columns.iter().position(|c| *c == column).unwrap_or_else(|| {
                columns.push(column);
                columns.len() - 1
            });
            classes.push(c as u8);
        }
        let n = columns.len() + 1;
        let next = rows
            .iter()
            .enumerate()
            .flat_map(|(s, r)| columns.iter().map(move |c| c[s]).chain([r[256]]))
            .collect();
        Ok(Automaton { classes, columns: n, next, flags, starts })
    }
}

/// The message for a pattern beyond a limit.
fn too_large(limit: &limits::Limit) -> String {
    format!(
        "more than {} {} ({} of `onnxc explain limits`); {}",
        limit.value, limit.bounds, limit.name, limit.help
    )
}

/// Adds the tables of automata to those of the model, and fails beyond the limit.
pub fn spend(cx: &mut InferCx, automata: &[Automaton]) -> Result<()> {
    let bytes = automata.iter().map(|a| 4 * a.next.len() as u64).sum();
    let spent = cx.syms.spend_on_patterns(bytes);
    if limits::TABLE_BYTES.exceeded_by(spent) {
        return limits::TABLE_BYTES
            .error("the regular expressions of the model are too large", spent)
            .at(cx.origin)
            .fail();
    }
    Ok(())
}

fn reason(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(s) = source {
        text = s.to_string();
        source = s.source();
    }
    text
}

/// The tables of an automaton as constants.
pub struct Tables {
    classes: Buf,
    columns: i64,
    next: Buf,
    flags: Buf,
    starts: Buf,
}

/// The state of a run of an automaton.
struct Run {
    state: Reg,
    at: Reg,
}

impl Tables {
    /// Adds them to a module.
    pub fn new(m: &mut Module, a: &Automaton) -> Tables {
        let mut table = |name: &str, ty, n: usize, bytes: Vec<u8>| {
            m.constant(
                name,
                Arc::new(
                    ConstData::new(ty, vec![n as i64], bytes).unwrap_or_else(|| ConstData::from_i64s(&[])),
                ),
            )
        };
        let words = |v: &[i32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        Tables {
            classes: table("classes", ElemType::U8, a.classes.len(), a.classes.clone()),
            columns: a.columns as i64,
            next: table("next", ElemType::I32, a.next.len(), words(&a.next)),
            flags: table("flags", ElemType::U8, a.flags.len(), a.flags.clone()),
            starts: table("starts", ElemType::I32, a.starts.len(), words(&a.starts)),
        }
    }
    fn look_up(&self, k: &mut KernelBuilder, table: Buf, at: Expr) -> Expr {
        let n = k.m.bufs[table].dims[0];
        let ty = k.m.bufs[table].ty;
        let v = k.with_index(at, n, |k, i| k.load(table, &[i]));
        Expr::cast(ty, ElemType::I64, v)
    }
    fn flag(&self, k: &mut KernelBuilder, state: Expr, bit: i64) -> Expr {
        let f = self.look_up(k, self.flags, state);
        Expr::bin(BinOp::Ne, f.and(int(bit)), int(0))
    }
    /// The state of a run that begins at `from`.
    fn start(&self, k: &mut KernelBuilder, s: &Expr, from: Expr) -> Expr {
        let from = k.let_(from);
        let before =
            Expr::cast(ElemType::U8, ElemType::I64, Expr::text_byte(s.clone(), from.clone() - int(1)))
                + int(1);
        let at = k.let_(Expr::select(runtime::le(from, int(0)), int(0), before));
        self.look_up(k, self.starts, at)
    }
    /// Advances by one byte; `seen` is called for each state reached.
    fn run(
        &self,
        k: &mut KernelBuilder,
        s: &Expr,
        from: Expr,
        mut seen: impl FnMut(&mut KernelBuilder, &Expr, Expr),
    ) -> Run {
        let from = k.let_(from);
        let first = self.start(k, s, from.clone());
        let run = Run { state: k.acc(first), at: k.acc(from) };
        let dead = self.flag(k, Expr::acc(run.state), 2);
        let alive = k.acc(not(dead));
        let more = Expr::acc(alive).and(lt(Expr::acc(run.at), Expr::text_len(s.clone())));
        k.while_(more, |k| {
            let b = Expr::cast(ElemType::U8, ElemType::I64, Expr::text_byte(s.clone(), Expr::acc(run.at)));
            let column = self.look_up(k, self.classes, b);
            let next = self.look_up(k, self.next, Expr::acc(run.state) * int(self.columns) + column);
            let next = k.let_(next);
            k.set(run.state, next.clone());
            seen(k, &next, Expr::acc(run.at));
            let dead = self.flag(k, next, 2);
            k.set(alive, not(dead));
            k.update(BinOp::Add, run.at, int(1));
        });
        run
    }
    /// The state after the end of the text.
    fn end(&self, k: &mut KernelBuilder, run: &Run) -> Expr {
        let next =
            self.look_up(k, self.next, Expr::acc(run.state) * int(self.columns) + int(self.columns - 1));
        k.let_(next)
    }
    /// True if a match from the start ends at the end of the text.
    pub fn matches(&self, k: &mut KernelBuilder, s: &Expr) -> Expr {
        let run = self.run(k, s, int(0), |_, _, _| {});
        let last = self.end(k, &run);
        let whole = runtime::eq(Expr::acc(run.at), Expr::text_len(s.clone()));
        let hit = self.flag(k, last, 1);
        k.let_(Expr::select(whole, hit, Expr::bool(false)))
    }
    /// The end of the longest match that begins at `from`, or -1.
    pub fn longest(&self, k: &mut KernelBuilder, s: &Expr, from: Expr) -> Expr {
        let best = k.acc(int(-1));
        let run = self.run(k, s, from, |k, state, at| {
            let hit = self.flag(k, state.clone(), 1);
            k.set(best, Expr::select(hit, at, Expr::acc(best)));
        });
        let whole = Expr::bin(BinOp::Ge, Expr::acc(run.at), Expr::text_len(s.clone()));
        k.if_(whole, |k| {
            let last = self.end(k, &run);
            let hit = self.flag(k, last, 1);
            k.set(best, Expr::select(hit, Expr::acc(run.at), Expr::acc(best)));
        });
        k.let_(Expr::acc(best))
    }
}
