//! NonZero, Compress, Unique: the number of elements of the result depends on the data. They are counted
//! first, then the driver defines the size, then the result is filled.
//!
//! | operator | versions |
//! |---|---|
//! | NonZero | 9, 13: a scalar gives a matrix without rows |
//! | Compress | 9, 11: negative axes too |
//! | Unique | 11 |

use super::support::{radix, runtime};
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Reg, Stmt, UnOp};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::ElemType;
use runtime::{eq, int, one_if};

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum NonzeroUnique {
    NonZero,
    /// `None`: the input is flattened.
    Compress(Option<i64>),
    Unique {
        axis: Option<i64>,
        sorted: bool,
    },
}

impl Operator for NonzeroUnique {
    const OPS: &'static [&'static str] = &["NonZero", "Compress", "Unique"];
    fn elements(op: &str) -> Elements {
        if op == "Compress" { Elements::Any } else { Elements::Strings }
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "NonZero" => NonzeroUnique::NonZero,
            "Compress" => NonzeroUnique::Compress(a.int_opt("axis")),
            _ => NonzeroUnique::Unique { axis: a.int_opt("axis"), sorted: a.flag("sorted", true) },
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        // Sizes of the result along an axis, or flattened; bounded by the size of the input.
        let part = |cx: &mut InferCx, axis: Option<i64>| -> Result<Vec<Dim>> {
            let Some(axis) = axis else { return Ok(cx.sizes(0, 1, Some(t.count()))) };
            let axis = cx.axis(axis, t.rank())?;
            let mut dims = t.dims.clone();
            dims[axis] = cx.size(0, axis, t.rank());
            cx.bound(&[dims[axis]], t.dims[axis]);
            Ok(dims)
        };
        match self {
            NonzeroUnique::NonZero => {
                let n = cx.size(0, 1, 2);
                cx.bound(&[n], t.count());
                cx.set(0, ElemType::I64, vec![Dim::from(t.rank()), n]);
            }
            NonzeroUnique::Compress(axis) => {
                if cx.tensor(1).rank() != 1 {
                    return cx.error(crate::diag::codes::OP_SHAPE, "the condition must have rank 1").fail();
                }
                let dims = part(cx, *axis)?;
                cx.set(0, t.elem, dims);
            }
            NonzeroUnique::Unique { axis, .. } => {
                let dims = part(cx, *axis)?;
                let at = axis.map_or(Ok(0), |a| cx.axis(a, t.rank()))?;
                let (count, all) = (dims[at], axis.map_or(t.count(), |_| t.dims[at]));
                cx.set(0, t.elem, dims);
                for (k, n) in [(1, count), (2, all), (3, count)] {
                    cx.set(k, ElemType::I64, vec![n]);
                }
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        match self {
            NonzeroUnique::NonZero => non_zero(cx),
            NonzeroUnique::Compress(axis) => compress(cx, *axis),
            NonzeroUnique::Unique { axis, sorted } => return unique(cx, *axis, *sorted),
        }
        Ok(())
    }
}

/// The single number that a small kernel computed.
fn first(list: Buf) -> Expr {
    Expr::Load { buf: list, at: vec![Dim::constant(0)] }
}

/// True for elements that are not 0, false or an empty string.
fn is_set(k: &KernelBuilder, x: Buf, at: &[Dim]) -> Expr {
    if k.m.bufs[x].ty == ElemType::Str {
        return Expr::bin(BinOp::Gt, Expr::text_len(k.load(x, at)), int(0));
    }
    Expr::bin(BinOp::Ne, k.load(x, at), Expr::int(k.m.bufs[x].ty.compute(), 0))
}

/// One in how many elements is set where branches on them are worth it. A position is otherwise stored for
/// every element, and overwritten unless the element is set: a branch that is predicted wrongly takes as long
/// as about 20 stores.
const SPARSE: i64 = 16;

fn non_zero(cx: &mut LowerCx) {
    let (x, y) = (cx.input(0), cx.output(0));
    let (dims, n) = (cx.dims(x), cx.dims(y)[1]);
    let found = cx.compute(1, |k, out| {
        let count = k.acc(int(0));
        k.nest(LoopKind::Seq, &dims, |k, at| {
            let hit = is_set(k, x, at);
            k.update(BinOp::Add, count, one_if(hit));
        });
        k.store(out, &[Dim::constant(0)], Expr::acc(count));
    });
    cx.define(n, first(found));
    cx.kernel(|k| {
        let next = k.acc(int(0));
        let place = |k: &mut KernelBuilder, at: &[Dim]| {
            k.at_index(Expr::acc(next), n, |k, p| {
                for (d, i) in at.iter().enumerate() {
                    k.store(y, &[Dim::from(d), p], Expr::index(*i));
                }
            });
        };
        let sparse = |k: &mut KernelBuilder| {
            k.nest(LoopKind::Seq, &dims, |k, at| {
                let hit = is_set(k, x, at);
                k.if_(hit, |k| {
                    place(k, at);
                    k.update(BinOp::Add, next, int(1));
                });
            });
        };
        let dense = |k: &mut KernelBuilder| {
            k.nest(LoopKind::Seq, &dims, |k, at| {
                k.if_(Expr::bin(BinOp::Lt, Expr::acc(next), Expr::index(n)), |k| {
                    place(k, at);
                    let hit = is_set(k, x, at);
                    k.update(BinOp::Add, next, one_if(hit));
                });
            });
        };
        let (then, els) = (k.block(sparse), k.block(dense));
        let all = Dim::product(dims.iter().copied());
        k.push(Stmt::If { cond: Expr::cmp_index(BinOp::Lt, n * SPARSE, all), then, els });
    });
}

/// The first input and the axis along which it is taken apart: without an axis, all elements as a row.
fn along(cx: &mut LowerCx, axis: Option<i64>) -> (Buf, usize) {
    let x = cx.input(0);
    let dims = cx.dims(x);
    match axis {
        Some(a) => (x, from_end(a, dims.len() as i64) as usize),
        None => (cx.m.view(x, vec![Dim::product(dims)]), 0),
    }
}

fn compress(cx: &mut LowerCx, axis: Option<i64>) {
    let (cond, y) = (cx.input(1), cx.output(0));
    let (x, axis) = along(cx, axis);
    let n = cx.dims(x)[axis];
    // A longer condition is truncated.
    let given = cx.dims(cond)[0].min(n);
    let count = cx.dims(y)[axis];
    let found = cx.compute(1, |k, out| {
        let sum = k.acc(int(0));
        k.range(LoopKind::Seq, "i", 0, given, |k, i| {
            let c = k.load(cond, &[i]);
            k.update(BinOp::Add, sum, one_if(c));
        });
        k.store(out, &[Dim::constant(0)], Expr::acc(sum));
    });
    cx.define(count, first(found));
    let chosen = cx.temp("chosen", ElemType::I64, vec![count]);
    cx.kernel(|k| {
        let next = k.acc(int(0));
        k.range(LoopKind::Seq, "i", 0, given, |k, i| {
            // A position is overwritten unless the element is chosen: see `SPARSE`.
            k.if_(Expr::bin(BinOp::Lt, Expr::acc(next), Expr::index(count)), |k| {
                k.at_index(Expr::acc(next), count, |k, p| k.store(chosen, &[p], Expr::index(i)));
                let c = k.load(cond, &[i]);
                k.update(BinOp::Add, next, one_if(c));
            });
        });
    });
    cx.map(y, |k, at| {
        let from = k.load(chosen, &[at[axis]]);
        k.with_index(from, n, |k, i| {
            let mut at = at.to_vec();
            at[axis] = i;
            k.load(x, &at)
        })
    });
}

/// The operands of Unique's comparisons: slices of the input along an axis.
struct Slices {
    x: Buf,
    axis: usize,
    n: Dim,
    /// Shape of one slice.
    rest: Vec<Dim>,
}

impl Slices {
    fn at(&self, i: Dim, rest: &[Dim]) -> Vec<Dim> {
        let mut at = rest.to_vec();
        at.insert(self.axis, i);
        at
    }
    /// An accumulator that is -1, 0 or 1 if slice `a` is smaller than, equal to or larger than slice `b`.
    fn compare(&self, k: &mut KernelBuilder, a: Dim, b: Dim) -> Reg {
        let order = k.acc(int(0));
        k.nest(LoopKind::Seq, &self.rest, |k, r| {
            let (x, y) = (k.load(self.x, &self.at(a, r)), k.load(self.x, &self.at(b, r)));
            let (x, y) = (k.let_(x), k.let_(y));
            let sign = Expr::select(
                Expr::bin(BinOp::Lt, x.clone(), y.clone()),
                int(-1),
                one_if(Expr::bin(BinOp::Gt, x.clone(), y.clone())),
            );
            let sign = if k.m.type_of(&x).is_float() {
                // As in numpy, all NaNs are equal, and larger than all other values.
                let (x, y) = (k.let_(Expr::un(UnOp::IsNan, x)), k.let_(Expr::un(UnOp::IsNan, y)));
                Expr::select(runtime::or(x.clone(), y.clone()), one_if(x) - one_if(y), sign)
            } else {
                sign
            };
            k.set(order, Expr::select(eq(Expr::acc(order), int(0)), sign, Expr::acc(order)));
        });
        order
    }
}

fn unique(cx: &mut LowerCx, axis: Option<i64>, sorted: bool) -> Result<()> {
    let (x, axis) = along(cx, axis);
    let mut rest = cx.dims(x);
    let n = rest.remove(axis);
    let s = Slices { x, axis, n, rest };
    // Slices of one number are sorted by digits, unless they are known to be few.
    let ty = cx.elem(x).compute();
    let single =
        s.rest.iter().all(|d| d.as_const() == Some(1)) && n.as_const().is_none_or(|n| n >= radix::LEAST);
    let order = match radix::digits(ty) {
        Some(digits) if single => {
            radix::sort(cx, n, ty, digits, |k, i| k.load(x, &s.at(i, &vec![Dim::constant(0); s.rest.len()])))
        }
        _ => sort(cx, &s),
    };
    // Groups of equal slices: the group of each slice, the size of each group, and its first slice.
    let (group, counts, firsts) = (
        cx.temp("group", ElemType::I64, vec![n]),
        cx.temp("count", ElemType::I64, vec![n]),
        cx.temp("first", ElemType::I64, vec![n]),
    );
    let found = cx.compute(1, |k, out| {
        let (groups, before) = (k.acc(int(0)), k.acc(int(0)));
        k.range(LoopKind::Seq, "i", 0, n, |k, i| {
            let e = k.load(order, &[i]);
            k.at_index(e, n, |k, e| {
                let new = k.acc(Expr::bool(true));
                k.if_(Expr::cmp_index(BinOp::Gt, i, 0), |k| {
                    k.at_index(Expr::acc(before), n, |k, b| {
                        let c = s.compare(k, b, e);
                        k.set(new, Expr::bin(BinOp::Ne, Expr::acc(c), int(0)));
                    });
                });
                k.if_(Expr::acc(new), |k| {
                    k.at_index(Expr::acc(groups), n, |k, g| {
                        k.store(firsts, &[g], Expr::index(e));
                        k.store(counts, &[g], int(0));
                    });
                    k.update(BinOp::Add, groups, int(1));
                });
                k.at_index(Expr::acc(groups) - int(1), n, |k, g| {
                    k.store(group, &[e], Expr::index(g));
                    let c = k.load(counts, &[g]);
                    k.store(counts, &[g], c + int(1));
                });
                k.set(before, Expr::index(e));
            });
        });
        k.store(out, &[Dim::constant(0)], Expr::acc(groups));
    });
    let shown = (0..4).find_map(|i| Some((i, cx.output_opt(i)?)).filter(|o| o.0 != 2));
    let count = match shown {
        Some((0, y)) => cx.dims(y)[axis],
        Some((_, y)) => cx.dims(y)[0],
        None => cx.number("groups", first(found), Some(0), None),
    };
    if shown.is_some() {
        cx.define(count, first(found));
    }
    // The position of each group in the result: sorted, or by first appearance.
    let place = cx.temp("place", ElemType::I64, vec![n]);
    let at_place = cx.temp("at", ElemType::I64, vec![n]);
    cx.kernel(|k| {
        if sorted {
            k.range(LoopKind::Seq, "i", 0, n, |k, i| {
                k.store(place, &[i], Expr::index(i));
                k.store(at_place, &[i], Expr::index(i));
            });
            return;
        }
        let next = k.acc(int(0));
        k.range(LoopKind::Seq, "i", 0, n, |k, i| {
            let g = k.load(group, &[i]);
            k.at_index(g, n, |k, g| {
                let head = k.load(firsts, &[g]);
                k.if_(eq(head, Expr::index(i)), |k| {
                    k.at_index(Expr::acc(next), n, |k, p| {
                        k.store(place, &[g], Expr::index(p));
                        k.store(at_place, &[p], Expr::index(g));
                    });
                    k.update(BinOp::Add, next, int(1));
                });
            });
        });
    });
    // An element of a list in the order of the result.
    let ordered = |k: &mut KernelBuilder, list: Buf, at: Dim| {
        let g = k.load(at_place, &[at]);
        k.with_index(g, n, |k, g| k.load(list, &[g]))
    };
    if let Some(y) = cx.output_opt(0) {
        cx.map(y, |k, at| {
            let e = ordered(k, firsts, at[axis]);
            k.with_index(e, n, |k, e| {
                let mut at = at.to_vec();
                at[axis] = e;
                k.load(x, &at)
            })
        });
    }
    for (i, list) in [(1, firsts), (3, counts)] {
        if let Some(y) = cx.output_opt(i) {
            cx.map(y, |k, at| ordered(k, list, at[0]));
        }
    }
    if let Some(y) = cx.output_opt(2) {
        cx.map(y, |k, at| {
            let g = k.load(group, at);
            k.with_index(g, n, |k, g| k.load(place, &[g]))
        });
    }
    Ok(())
}

/// Indices of the slices in ascending order by a stable, iterative merge sort.
fn sort(cx: &mut LowerCx, s: &Slices) -> Buf {
    let n = s.n;
    let (a, b) = (cx.temp("order", ElemType::I64, vec![n]), cx.temp("merged", ElemType::I64, vec![n]));
    cx.kernel(|k| {
        k.range(LoopKind::Seq, "i", 0, n, |k, i| k.store(a, &[i], Expr::index(i)));
        let width = k.acc(int(1));
        let size = Expr::index(n);
        k.while_(Expr::bin(BinOp::Lt, Expr::acc(width), size.clone()), |k| {
            let start = k.acc(int(0));
            k.while_(Expr::bin(BinOp::Lt, Expr::acc(start), size.clone()), |k| {
                let mid = k.let_((Expr::acc(start) + Expr::acc(width)).min(size.clone()));
                let end = k.let_((Expr::acc(start) + Expr::acc(width) + Expr::acc(width)).min(size.clone()));
                let (i, j, to) = (k.acc(Expr::acc(start)), k.acc(mid.clone()), k.acc(Expr::acc(start)));
                k.while_(Expr::bin(BinOp::Lt, Expr::acc(to), end.clone()), |k| {
                    // Taken from the left part, unless it is exhausted or its next element is larger.
                    let left = k.acc(Expr::bin(BinOp::Lt, Expr::acc(i), mid.clone()));
                    let both = Expr::acc(left).and(Expr::bin(BinOp::Lt, Expr::acc(j), end.clone()));
                    k.if_(both, |k| {
                        k.at_index(Expr::acc(i), n, |k, p| {
                            k.at_index(Expr::acc(j), n, |k, q| {
                                let (l, r) = (k.load(a, &[p]), k.load(a, &[q]));
                                k.at_index(l, n, |k, l| {
                                    k.at_index(r, n, |k, r| {
                                        let c = s.compare(k, l, r);
                                        k.set(
                                            left,
                                            Expr::un(UnOp::Not, Expr::bin(BinOp::Gt, Expr::acc(c), int(0))),
                                        );
                                    });
                                });
                            });
                        });
                    });
                    let from = k.let_(Expr::select(Expr::acc(left), Expr::acc(i), Expr::acc(j)));
                    k.at_index(from, n, |k, p| {
                        k.at_index(Expr::acc(to), n, |k, q| {
                            let v = k.load(a, &[p]);
                            k.store(b, &[q], v);
                        });
                    });
                    k.set(i, Expr::acc(i) + one_if(Expr::acc(left)));
                    k.set(j, Expr::acc(j) + one_if(Expr::un(UnOp::Not, Expr::acc(left))));
                    k.update(BinOp::Add, to, int(1));
                });
                k.set(start, end);
            });
            k.range(LoopKind::Seq, "i", 0, n, |k, i| {
                let v = k.load(b, &[i]);
                k.store(a, &[i], v);
            });
            k.set(width, Expr::acc(width) + Expr::acc(width));
        });
    });
    a
}
