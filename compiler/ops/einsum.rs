//! Einsum: products of tensors, summed over the letters that are missing in the result.
//!
//! Letters may repeat within an operand (its diagonal). `...` denotes dimensions that broadcast from the
//! right, and the dimensions of a letter broadcast as well. Without `->` the result has the `...` dimensions
//! followed by the letters that occur once, in alphabetical order. Operands are combined pairwise from left
//! to right, each pair as a contraction in the form of `matmul`; letters that occur in one operand only and
//! not in the result are summed first. Versions differ in types.

use super::matmul::product_sum;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;
use std::collections::BTreeMap;

/// A letter, or dimension n of `...`, counted from the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Dots(usize),
    Letter(char),
}

/// Letters before and after `...`, if present.
#[derive(Clone, Debug, PartialEq)]
struct Term {
    before: Vec<char>,
    after: Option<Vec<char>>,
}

/// The equation.
#[derive(Clone, Debug, PartialEq)]
pub struct Einsum {
    inputs: Vec<Term>,
    output: Option<Term>,
}

/// An intermediate operand: its buffer, and the labels of its dimensions.
type Factor = (Buf, Vec<Label>);

impl Term {
    fn parse(text: &str) -> std::result::Result<Term, String> {
        let letters = |s: &str| match s.chars().find(|c| !c.is_ascii_alphabetic()) {
            Some(c) => Err(format!("'{c}' is no letter")),
            None => Ok(s.chars().collect()),
        };
        match text.split_once("...") {
            None => Ok(Term { before: letters(text)?, after: None }),
            Some((a, b)) => Ok(Term { before: letters(a)?, after: Some(letters(b)?) }),
        }
    }
    /// The labels, given the number of dimensions that `...` denotes.
    fn labels(&self, dots: usize) -> Vec<Label> {
        let middle = if self.after.is_some() { dots } else { 0 };
        let letters = |v: &[char]| v.iter().map(|c| Label::Letter(*c)).collect::<Vec<_>>();
        [
            letters(&self.before),
            (0..middle).rev().map(Label::Dots).collect(),
            letters(self.after.as_deref().unwrap_or_default()),
        ]
        .concat()
    }
    fn letters(&self) -> impl Iterator<Item = char> {
        self.before.iter().chain(self.after.iter().flatten()).copied()
    }
}

impl Operator for Einsum {
    const OPS: &'static [&'static str] = &["Einsum"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let text: String =
            a.string_opt("equation").unwrap_or_default().chars().filter(|c| !c.is_whitespace()).collect();
        match Einsum::equation(&text) {
            Ok(e) if e.inputs.len() == a.n_inputs() => Ok(e),
            Ok(e) => a
                .error(format!(
                    "the equation \"{text}\" has {} operands, the node {}",
                    e.inputs.len(),
                    a.n_inputs()
                ))
                .fail(),
            Err(m) => a.error(format!("the equation \"{text}\" can not be read: {m}")).fail(),
        }
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let mut sizes: BTreeMap<Label, Dim> = BTreeMap::new();
        let mut dots = 0;
        for (i, term) in self.inputs.iter().enumerate() {
            let t = cx.tensor(i).clone();
            let own =
                t.rank().checked_sub(term.letters().count()).filter(|n| *n == 0 || term.after.is_some());
            let Some(own) = own else {
                return cx
                    .error(codes::OP_SHAPE, format!("operand {i} of the equation has another rank"))
                    .fail();
            };
            dots = dots.max(own);
            for (l, d) in term.labels(own).into_iter().zip(t.dims) {
                let d = match sizes.get(&l) {
                    Some(old) => cx.broadcast(&[&[*old], &[d]])?.first().copied().unwrap_or(d),
                    None => d,
                };
                sizes.insert(l, d);
            }
        }
        if self.output.as_ref().is_some_and(|t| t.after.is_none()) && dots > 0 {
            return cx
                .error(codes::OP_ATTRIBUTE, "the equation's result lacks the dimensions of \"...\"")
                .fail();
        }
        let dims: Vec<Dim> = self.result(dots).iter().filter_map(|l| sizes.get(l)).copied().collect();
        cx.set(0, cx.tensor(0).elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let y = cx.output(0);
        let mut factors: Vec<Factor> = vec![];
        let mut sizes: BTreeMap<Label, Dim> = BTreeMap::new();
        let mut dots = 0;
        for (i, term) in self.inputs.iter().enumerate() {
            let x = cx.input(i);
            let dims = cx.dims(x);
            let own = dims.len().saturating_sub(term.letters().count());
            dots = dots.max(own);
            let labels = term.labels(own);
            for (l, d) in labels.iter().zip(dims) {
                let wide =
                    sizes.get(l).and_then(|old| cx.m.syms.broadcast(&[&[*old], &[d]]).ok()?.first().copied());
                sizes.insert(*l, wide.unwrap_or(d));
            }
            factors.push((x, labels));
        }
        let result = self.result(dots);
        for (l, d) in result.iter().zip(cx.dims(y)) {
            sizes.insert(*l, d);
        }
        let sum = Sum { sizes, y, result };
        while let Some(f) = sum.step(cx, &mut factors) {
            factors.insert(0, f);
        }
        Ok(())
    }
}

impl Einsum {
    fn equation(text: &str) -> std::result::Result<Einsum, String> {
        let (left, right) = match text.split_once("->") {
            Some((l, r)) => (l, Some(r)),
            None => (text, None),
        };
        let inputs: Vec<Term> = left.split(',').map(Term::parse).collect::<std::result::Result<_, _>>()?;
        let output = right.map(Term::parse).transpose()?;
        if let Some(o) = &output {
            let letters: Vec<char> = o.letters().collect();
            for (i, c) in letters.iter().enumerate() {
                if letters[..i].contains(c) || !inputs.iter().any(|t| t.letters().any(|x| x == *c)) {
                    return Err(format!("the result's '{c}' must be there once, and in an operand"));
                }
            }
        }
        Ok(Einsum { inputs, output })
    }
    /// Labels of the result.
    fn result(&self, dots: usize) -> Vec<Label> {
        if let Some(t) = &self.output {
            return t.labels(dots);
        }
        let mut count: BTreeMap<char, usize> = BTreeMap::new();
        self.inputs.iter().flat_map(|t| t.letters()).for_each(|c| *count.entry(c).or_default() += 1);
        (0..dots)
            .rev()
            .map(Label::Dots)
            .chain(count.into_iter().filter(|c| c.1 == 1).map(|c| Label::Letter(c.0)))
            .collect()
    }
}

struct Sum {
    sizes: BTreeMap<Label, Dim>,
    y: Buf,
    result: Vec<Label>,
}

impl Sum {
    /// Combines the first two factors, or reduces a single one; `None` when the result has been written.
    fn step(&self, cx: &mut LowerCx, factors: &mut Vec<Factor>) -> Option<Factor> {
        // Labels of a single factor are summed first, except for the last factor, whose sum is the result.
        if factors.len() > 1 {
            for i in 0..factors.len() {
                let others = |l: &Label| {
                    self.result.contains(l)
                        || factors.iter().enumerate().any(|(j, f)| j != i && f.1.contains(l))
                };
                let keep: Vec<Label> = distinct(&factors[i].1).into_iter().filter(others).collect();
                if keep.len() < distinct(&factors[i].1).len() {
                    let f = factors.remove(i);
                    factors.insert(i, self.join(cx, &[f], Some(keep)));
                }
            }
        }
        let n = factors.len().min(2);
        let pair: Vec<Factor> = factors.drain(..n).collect();
        if factors.is_empty() {
            self.join(cx, &pair, None);
            return None;
        }
        let keep = distinct(&pair.iter().flat_map(|f| f.1.clone()).collect::<Vec<_>>());
        let keep = keep
            .into_iter()
            .filter(|l| self.result.contains(l) || factors.iter().any(|f| f.1.contains(l)))
            .collect();
        Some(self.join(cx, &pair, Some(keep)))
    }
    /// The product of one or two factors, summed over labels that are not in `keep` (default: the result's
    /// labels).
    fn join(&self, cx: &mut LowerCx, factors: &[Factor], keep: Option<Vec<Label>>) -> Factor {
        let ty = cx.elem(self.y).compute();
        let size = |l: &Label| self.sizes.get(l).copied().unwrap_or(Dim::constant(1));
        let (out, labels) = match keep {
            None => (self.y, self.result.clone()),
            Some(keep) => {
                let dims: Vec<Dim> = keep.iter().map(size).collect();
                (cx.temp("product", ty, dims), keep)
            }
        };
        let all = distinct(&factors.iter().flat_map(|f| f.1.clone()).collect::<Vec<_>>());
        let summed: Vec<Label> = all.into_iter().filter(|l| !labels.contains(l)).collect();
        let dims: Vec<Dim> = labels.iter().map(size).collect();
        let depth: Vec<Dim> = summed.iter().map(size).collect();
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let load = |k: &KernelBuilder, f: &Factor, r: &[Dim]| {
                    let position = |l: &Label| match (
                        labels.iter().position(|x| x == l),
                        summed.iter().position(|x| x == l),
                    ) {
                        (Some(i), _) => at[i],
                        (None, Some(i)) => r[i],
                        (None, None) => Dim::constant(0),
                    };
                    let ix: Vec<Dim> =
                        f.1.iter()
                            .zip(&k.m.bufs[f.0].dims)
                            .map(|(l, d)| k.broadcast_index(*d, position(l)))
                            .collect();
                    k.load(f.0, &ix)
                };
                if depth.is_empty() {
                    let v = factors
                        .iter()
                        .map(|f| load(k, f, &[]))
                        .reduce(|a, b| a * b)
                        .unwrap_or(Expr::num(ty, 0.0));
                    return k.store(out, at, v);
                }
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &depth, |k, r| match factors {
                    [a, b] => {
                        let v = product_sum(ty, load(k, a, r), load(k, b, r), Expr::acc(acc));
                        k.set(acc, v);
                    }
                    _ => {
                        let v = factors.first().map_or(Expr::num(ty, 0.0), |f| load(k, f, r));
                        k.update(BinOp::Add, acc, v);
                    }
                });
                k.store(out, at, Expr::acc(acc));
            });
        });
        (out, labels)
    }
}

/// The distinct labels in order.
fn distinct(labels: &[Label]) -> Vec<Label> {
    let mut out: Vec<Label> = vec![];
    labels.iter().for_each(|l| {
        if !out.contains(l) {
            out.push(*l);
        }
    });
    out
}
