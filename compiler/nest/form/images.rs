//! Images: buffers with channels in the second dimension, as far as subscripts show it.

use super::{Contraction, Form, depends, par_loops, seq_vars};
use crate::nest::{Buf, Expr, Stmt, visit};
use crate::sym::{Dim, Sym};

/// The images that a nest accesses.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Images {
    /// Buffers that a convolution or pooling accesses as images.
    pub convolved: Vec<Buf>,
    /// The image that it reads at computed positions.
    pub sampled: Option<Sampled>,
}

/// An image that a nest reads at computed positions, channel by channel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampled {
    /// The image.
    pub image: Buf,
    /// The only buffer that is stored to.
    pub stored: Buf,
    /// It has the channels of the image, in the same dimension.
    pub channels: bool,
    /// Its last dimension varies in all stores.
    pub runs: bool,
    /// A result is one element of the image, whose column depends only on that of the result: all rows of all
    /// planes read the same columns.
    pub by_rows: bool,
}

impl Images {
    /// The images of a nest with the given form.
    pub fn of(body: &[Stmt], form: &Form) -> Images {
        Images { convolved: convolved(body, form.contraction()), sampled: sampled(body, form) }
    }
}

/// Every load of the body.
fn loads(body: &[Stmt]) -> Vec<(Buf, Vec<Dim>)> {
    let mut out = vec![];
    visit::each_load(body, &mut |buf, at| out.push((buf, at.to_vec())));
    out
}

/// The contiguous elements of a position, wherever it is, are channels.
fn sampled(body: &[Stmt], form: &Form) -> Option<Sampled> {
    // Bound symbols with their values.
    let mut bound: Vec<(Sym, &Expr)> = vec![];
    let mut stores: Vec<(Buf, Vec<Dim>)> = vec![];
    visit::walk(body, &mut |s| match s {
        Stmt::With { sym, value, .. } => bound.push((*sym, value)),
        Stmt::Store { buf, at, .. } => stores.push((*buf, at.clone())),
        _ => {}
    });
    visit::walk_exprs(body, &mut |e| {
        if let Expr::With { sym, value, .. } = e {
            bound.push((*sym, value));
        }
    });
    let stored = stores.first()?.0;
    if bound.is_empty() || stores.iter().any(|s| s.0 != stored) {
        return None;
    }
    let reads: Vec<(Buf, Vec<Dim>)> = loads(body).into_iter().filter(|a| a.0 != stored).collect();
    let positions =
        |at: &[Dim]| at.len() >= 3 && at[2..].iter().all(|d| bound.iter().any(|b| d.contains(b.0)));
    let read = |(buf, at): &(Buf, Vec<Dim>)| {
        Some((*buf, at[1].as_sym().filter(|s| !bound.iter().any(|b| b.0 == *s))?))
    };
    let found: Vec<(Buf, Sym)> = reads.iter().filter(|r| positions(&r.1)).map(read).collect::<Option<_>>()?;
    let (image, channel) = *found.first()?;
    // All other loads are independent of the channel.
    let serves = |(b, at): &(Buf, Vec<Dim>)| *b == image || !depends(at, channel);
    if found.iter().any(|f| *f != (image, channel)) || !reads.iter().all(serves) {
        return None;
    }
    let has_channels = |at: &[Dim]| (3..=5).contains(&at.len()) && at[1].as_sym() == Some(channel);
    let varies = |at: &[Dim]| at.last().is_some_and(|d| !d.syms().is_empty());
    let last = |at: &[Dim]| at.last().and_then(|d| d.as_sym());
    let (loops, _) = par_loops(body);
    let of_column = |(_, at): &(Buf, Vec<Dim>)| {
        let value = bound.iter().find(|b| last(at) == Some(b.0)).map(|b| b.1);
        let column = stores.first().and_then(|s| last(&s.1));
        column.zip(value).is_some_and(|(column, value)| is_of(value, column, &loops))
    };
    let mut positions = reads.iter().filter(|r| r.0 == image);
    Some(Sampled {
        image,
        stored,
        channels: form.map().is_some_and(|map| has_channels(&map.at)),
        runs: stores.iter().all(|s| varies(&s.1)),
        by_rows: positions.next().is_some_and(of_column) && positions.next().is_none(),
    })
}

/// True for a value that depends on one of the loops, and on nothing that is computed in them.
fn is_of(value: &Expr, only: Sym, loops: &[(Sym, Dim)]) -> bool {
    let mut on: Vec<Sym> = vec![];
    value.each_dim(&mut |d| on.extend(loops.iter().map(|l| l.0).filter(|s| d.contains(*s))));
    let computed = value.any(&mut |e| matches!(e, Expr::Reg(_) | Expr::Acc { .. }));
    !computed && !on.is_empty() && on.iter().all(|s| *s == only)
}

fn convolved(body: &[Stmt], single: Option<&Contraction>) -> Vec<Buf> {
    let (loops, inside) = par_loops(body);
    let seq = seq_vars(inside);
    if seq.is_empty() {
        return vec![];
    }
    let reduces = |d: &Dim| seq.iter().any(|s| d.contains(*s));
    let moves = |d: &Dim| loops.iter().any(|l| d.contains(l.0));
    // A window slides: a spatial subscript has both a loop and a reduction variable. Or all spatial dims are
    // reduced. Weights do not depend on the position of a window (heads of attention are in both operands).
    let slides =
        |d: &Dim| loops.iter().any(|l| d.contains(l.0) && !single.is_some_and(|c| depends(&c.b.1, l.0)));
    let window = |at: &[Dim]| at.len() >= 3 && at[2..].iter().any(|d| reduces(d) && slides(d));
    // (One dimension, with or without others of one element, is a normalized row: it stays innermost.)
    let global = |at: &[Dim]| {
        at.len() >= 4
            && !reduces(&at[1])
            && !reduces(&at[0])
            && at[2..].iter().all(|d| reduces(d) && !moves(d) || d.as_const() == Some(0))
            && at[2..].iter().filter(|d| reduces(d)).count() != 1
    };
    // 1x1: the channel is reduced, the rest only moves. The group of a channel is that of its weights.
    let of_group = |d: &Dim| {
        single.is_some_and(|c| {
            let group = |l: &(Sym, Dim)| !d.contains(l.0) || c.b.1.first().is_some_and(|k| k.contains(l.0));
            let kernel = c.b.1.iter().skip(2);
            c.b.1.len() >= 3 && kernel.clone().all(|k| k.as_const() == Some(0)) && loops.iter().all(group)
        })
    };
    let pointwise = |at: &[Dim]| {
        at.len() >= 3
            && reduces(&at[1])
            && (!moves(&at[1]) || of_group(&at[1]))
            && at[2..].iter().all(|d| !reduces(d))
    };
    let weights = |b: Buf| single.is_some_and(|c| c.b.0 == b);
    let loads = loads(body);
    let read: Vec<&(Buf, Vec<Dim>)> = loads
        .iter()
        .filter(|(b, at)| {
            !weights(*b) && (window(at) || if single.is_some() { pointwise(at) } else { global(at) })
        })
        .collect();
    if read.is_empty() {
        return vec![];
    }
    // Channels that the kernel preserves (depthwise convolutions, groups, pooling), and those that it
    // computes.
    let kept = |s: Sym| read.iter().any(|(_, at)| at[1].contains(s));
    let made = |s: Sym| single.is_some_and(|c| c.is_only_of_b(s));
    let channels: Vec<Sym> = loops.iter().map(|l| l.0).filter(|s| kept(*s) || made(*s)).collect();
    // The phase of a transposed convolution is in the same subscript as its position.
    let has =
        |d: &Dim| channels.iter().any(|c| d.contains(*c)) && d.syms().iter().all(|s| channels.contains(s));
    // A result that is not an image (its channels are in another dimension) keeps its layout.
    let mut moved: Vec<Buf> = vec![];
    visit::each_store(inside, &mut |buf, at| {
        if at.len() >= 3 && at[2..].iter().any(has) {
            moved.push(buf);
        }
    });
    // Residuals and scales in the epilogue.
    let beside = |(b, at): &&(Buf, Vec<Dim>)| {
        at.len() >= 3 && !at.iter().any(reduces) && !at[2..].iter().any(has) && !weights(*b)
    };
    let stored = visit::stores(body).into_iter().filter(|b| !moved.contains(b));
    let read = read.iter().map(|x| x.0);
    read.chain(stored).chain(loads.iter().filter(beside).map(|x| x.0)).collect()
}
