//! TfIdfVectorizer: the frequency of each n-gram of a pool in a row of strings or integers.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html>. One version.
//!
//! The pool is compiled to a trie: a node per n-gram prefix, and edges by item. Generated code maps every
//! element to the number of its item and walks the trie from each position, first over adjacent items, then
//! with one item skipped between each two, and so on. Single items are counted once. Weight n belongs to
//! n-gram n of the pool, for which `ngram_indexes` gives the column of the result.

use super::support::runtime::{self, int};
use super::support::text::{Dictionary, lt};
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::collections::HashMap;
use std::sync::Arc;

/// The attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct TfIdf {
    mode: Mode,
    /// Minimum and maximum number of items of an n-gram.
    sizes: (i64, i64),
    /// Most items skipped between two.
    skips: i64,
    counts: Vec<i64>,
    columns: Vec<i64>,
    pool: Pool,
    weights: Vec<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Tf,
    Idf,
    TfIdf,
}

#[derive(Clone, Debug, PartialEq)]
enum Pool {
    Ints(Vec<i64>),
    Strings(Vec<String>),
}

/// The trie: edges with their target nodes, and for each node the column of the n-gram that ends there.
struct Tree {
    /// Node times items + 1, plus the item's number + 1.
    edges: Vec<i64>,
    nodes: Vec<i64>,
    columns: Vec<i64>,
    /// Number of distinct items.
    items: i64,
}

impl Operator for TfIdf {
    const OPS: &'static [&'static str] = &["TfIdfVectorizer"];
    fn elements(_op: &str) -> Elements {
        Elements::Strings
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        let mode = a.choice("mode", "", &[("TF", Mode::Tf), ("IDF", Mode::Idf), ("TFIDF", Mode::TfIdf)]);
        let sizes = (a.int_required("min_gram_length"), a.int_required("max_gram_length"));
        let skips = a.int_required("max_skip_count");
        if sizes.0 < 1 || sizes.1 < sizes.0 || skips < 0 {
            return a
                .error(format!("n-grams of {} to {} items with {skips} left out", sizes.0, sizes.1))
                .fail();
        }
        let (ints, strings) = (
            a.ints_opt("pool_int64s").filter(|v| !v.is_empty()),
            a.strings_opt("pool_strings").filter(|v| !v.is_empty()),
        );
        let pool = match (ints, strings) {
            (Some(v), None) => Pool::Ints(v),
            (None, Some(v)) => Pool::Strings(v),
            _ => return a.error("TfIdfVectorizer needs either pool_int64s or pool_strings").fail(),
        };
        let (counts, columns) = (a.ints("ngram_counts"), a.ints("ngram_indexes"));
        let op = TfIdf { mode, sizes, skips, counts, columns, pool, weights: a.floats("weights") };
        match op.fault() {
            Some(e) => a.error(e).fail(),
            None => Ok(op),
        }
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        cx.require(t.rank() <= 2, codes::OP_SHAPE, "TfIdfVectorizer takes a row, or a matrix of rows")?;
        cx.require(
            (t.elem == ElemType::Str) == matches!(self.pool, Pool::Strings(_)),
            codes::OP_TYPE,
            "the pool has another type than the input",
        )?;
        let rows = if t.rank() == 2 { vec![t.dims[0]] } else { vec![] };
        cx.set(0, ElemType::F32, [rows, vec![Dim::constant(self.width())]].concat());
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, out) = (cx.input(0), cx.output(0));
        let dims = cx.dims(x);
        let (rows, length) = match dims[..] {
            [b, c] => (b, c),
            [c] => (Dim::constant(1), c),
            _ => (Dim::constant(1), Dim::constant(1)),
        };
        let width = Dim::constant(self.width());
        let (x, y) = (cx.m.view(x, vec![rows, length]), cx.m.view(out, vec![rows, width]));
        let Some(tree) = self.tree() else { return cx.bug("n-grams") };
        let numbers = self.numbers(cx, x, &[rows, length]);
        let found = cx.temp("found", ElemType::I32, vec![rows, width]);
        self.count(cx, &tree, numbers, found, [rows, length, width]);
        let weights = self
            .column_weights()
            .map(|w| cx.m.constant("weights", Arc::new(ConstData::f32s(vec![w.len() as i64], &w))));
        cx.map(y, |k, at| {
            let n = k.load(found, at);
            let some = |n: Expr| Expr::bin(BinOp::Gt, n, Expr::int(ElemType::I32, 0));
            let as_float = |n: Expr| Expr::cast(ElemType::I32, ElemType::F32, n);
            let weight = |k: &mut KernelBuilder| weights.map_or(Expr::f32(1.0), |w| k.load(w, &[at[1]]));
            match self.mode {
                Mode::Tf => as_float(n),
                Mode::Idf => {
                    let w = weight(k);
                    Expr::select(some(n), w, Expr::f32(0.0))
                }
                Mode::TfIdf => {
                    let w = weight(k);
                    as_float(n) * w
                }
            }
        });
        Ok(())
    }
}

impl TfIdf {
    /// Number of columns of the result.
    fn width(&self) -> i64 {
        self.columns.iter().max().map_or(0, |m| m + 1)
    }
    /// The weight of each column.
    fn column_weights(&self) -> Option<Vec<f32>> {
        let mut out = vec![0.0; self.width() as usize];
        self.columns.iter().zip(&self.weights).for_each(|(c, w)| out[*c as usize] = *w);
        (!self.weights.is_empty()).then_some(out)
    }
    fn pool_size(&self) -> i64 {
        match &self.pool {
            Pool::Ints(v) => v.len() as i64,
            Pool::Strings(v) => v.len() as i64,
        }
    }
    /// The error in the attributes, if any.
    fn fault(&self) -> Option<String> {
        let ends = self.counts.iter().skip(1).copied().chain([self.pool_size()]);
        if self.counts.is_empty() || self.counts.iter().zip(ends).any(|(a, z)| *a < 0 || *a > z) {
            return Some(format!(
                "ngram_counts {:?} do not divide a pool of {} items",
                self.counts,
                self.pool_size()
            ));
        }
        if self.counts.len() < self.sizes.1 as usize {
            return Some(format!(
                "ngram_counts has {} entries, max_gram_length is {}",
                self.counts.len(),
                self.sizes.1
            ));
        }
        if self.columns.is_empty() || self.columns.iter().any(|c| !(0..1 << 31).contains(c)) {
            return Some("ngram_indexes must hold columns".into());
        }
        if !self.weights.is_empty() && self.weights.len() != self.columns.len() {
            return Some(format!("{} weights for {} n-grams", self.weights.len(), self.columns.len()));
        }
        let mut of_column: HashMap<i64, f32> = HashMap::new();
        if self.columns.iter().zip(&self.weights).any(|(c, w)| *of_column.entry(*c).or_insert(*w) != *w) {
            return Some("n-grams of one column have several weights".into());
        }
        if self.tree().is_none() {
            return Some("the pool has more n-grams than ngram_indexes".into());
        }
        None
    }
    /// The number of each item of the pool among the distinct ones.
    fn items(&self) -> (Vec<i64>, i64) {
        fn number<T: std::hash::Hash + Eq>(v: &[T]) -> (Vec<i64>, i64) {
            let mut seen: HashMap<&T, i64> = HashMap::new();
            let list = v
                .iter()
                .map(|x| {
                    let n = seen.len() as i64;
                    *seen.entry(x).or_insert(n)
                })
                .collect();
            (list, seen.len() as i64)
        }
        match &self.pool {
            Pool::Ints(v) => number(v),
            Pool::Strings(v) => number(v),
        }
    }
    fn tree(&self) -> Option<Tree> {
        let (pool, items) = self.items();
        let mut t = Tree { edges: vec![], nodes: vec![], columns: vec![-1], items };
        let mut known: HashMap<i64, i64> = HashMap::new();
        let mut gram = 0usize;
        for (i, from) in self.counts.iter().enumerate() {
            let (size, to) = (i + 1, self.counts.get(i + 1).copied().unwrap_or(pool.len() as i64));
            let part = pool.get(*from as usize..to as usize)?;
            if !(self.sizes.0..=self.sizes.1).contains(&(size as i64)) {
                gram += part.len() / size;
                continue;
            }
            for items_of in part.chunks_exact(size) {
                let mut node = 0;
                for item in items_of {
                    let key = node * (items + 1) + item + 1;
                    node = *known.entry(key).or_insert_with(|| {
                        t.edges.push(key);
                        t.columns.push(-1);
                        t.nodes.push(t.columns.len() as i64 - 1);
                        t.columns.len() as i64 - 1
                    });
                }
                t.columns[node as usize] = *self.columns.get(gram)?;
                gram += 1;
            }
        }
        Some(t)
    }
    /// The item's number + 1 for each element; 0 for items that are not in the pool.
    fn numbers(&self, cx: &mut LowerCx, x: Buf, dims: &[Dim]) -> Buf {
        let numbers = cx.temp("items", ElemType::I64, dims.to_vec());
        let ty = cx.elem(x);
        let (_, n) = self.items();
        // Keys in the order of their numbers.
        fn different<T: Clone + PartialEq + std::hash::Hash + Eq>(v: &[T], n: i64) -> Vec<T> {
            let mut seen = std::collections::HashSet::new();
            let mut out = Vec::with_capacity(n as usize);
            v.iter().filter(|x| seen.insert((*x).clone())).for_each(|x| out.push(x.clone()));
            out
        }
        let keys = match &self.pool {
            Pool::Ints(v) => Dictionary::of_ints(cx.m, &different(v, n)),
            Pool::Strings(v) => Dictionary::of_strings(cx.m, &different(v, n)),
        };
        cx.kernel(|k| {
            k.nest(LoopKind::Par, dims, |k, at| {
                let v = k.load(x, at);
                let v = if ty == ElemType::Str { v } else { Expr::cast(ty, ElemType::I64, v) };
                let i = keys.find(k, v);
                k.store(numbers, at, i + int(1));
            });
        });
        numbers
    }
    fn count(&self, cx: &mut LowerCx, t: &Tree, numbers: Buf, found: Buf, [rows, length, width]: [Dim; 3]) {
        let table =
            |cx: &mut LowerCx, name: &str, v: &[i64]| cx.m.constant(name, Arc::new(ConstData::from_i64s(v)));
        let edges = Dictionary::of_ints(cx.m, &t.edges);
        let (nodes, columns) = (
            table(cx, "nodes", if t.nodes.is_empty() { &[0] } else { &t.nodes }),
            table(cx, "columns", &t.columns),
        );
        let (first, rest) = (self.sizes.0, self.sizes.0.max(2));
        let distances = if rest > self.sizes.1 { 1 } else { self.skips + 1 };
        let look_up = |k: &mut KernelBuilder, b: Buf, at: Expr| {
            let n = k.m.bufs[b].dims[0];
            k.with_index(at, n, |k, i| k.load(b, &[i]))
        };
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[rows], |k, row| {
                k.nest(LoopKind::Seq, &[width], |k, c| {
                    k.store(found, &[row[0], c[0]], Expr::int(ElemType::I32, 0))
                });
                k.range(LoopKind::Seq, "skip", 0, distances, |k, skip| {
                    let step = k.let_(Expr::index(skip + 1));
                    // Single items count in the first round only.
                    let least =
                        k.let_(Expr::select(Expr::cmp_index(BinOp::Eq, skip, 0), int(first), int(rest)));
                    k.nest(LoopKind::Seq, &[length], |k, from| {
                        let last = Expr::index(from[0]) + step.clone() * (least.clone() - int(1));
                        let (node, size, at) = (k.acc(int(0)), k.acc(int(1)), k.acc(Expr::index(from[0])));
                        let go = k.acc(lt(last, Expr::index(length)));
                        let inside = runtime::le(Expr::acc(size), int(self.sizes.1))
                            .and(lt(Expr::acc(at), Expr::index(length)));
                        k.while_(Expr::acc(go).and(inside), |k| {
                            let item =
                                k.with_index(Expr::acc(at), length, |k, i| k.load(numbers, &[row[0], i]));
                            let edge = edges.find(k, Expr::acc(node) * int(t.items + 1) + item);
                            let known = k.let_(runtime::le(int(0), edge.clone()));
                            k.set(go, known.clone());
                            k.if_(known, |k| {
                                let next = look_up(k, nodes, edge);
                                let next = k.let_(next);
                                k.set(node, next.clone());
                                let column = look_up(k, columns, next);
                                let column = k.let_(column);
                                let counts = runtime::le(int(0), column.clone())
                                    .and(runtime::le(least, Expr::acc(size)));
                                k.if_(counts, |k| {
                                    k.at_index(column, width, |k, c| {
                                        let n = k.load(found, &[row[0], c]);
                                        k.store(found, &[row[0], c], n + Expr::int(ElemType::I32, 1));
                                    });
                                });
                                k.update(BinOp::Add, size, int(1));
                                k.update(BinOp::Add, at, step);
                            });
                        });
                    });
                });
            });
        });
    }
}
