//! choose_layouts: images between convolutions are stored with channels innermost (NHWC), so that vectors run
//! along output channels whatever stride, dilation or kernel a convolution has. Only temporaries that nobody
//! views under another shape change; operators index logically and notice nothing.

mod apart;
mod channels_first;
mod reshaped;
mod run_time_channels;
mod unflatten;

use crate::diag::Result;
use crate::nest::form::Sampled;
use crate::nest::{Body, Buf, Expr, Kernel, Layout, Module, Place, visit};
use crate::passes::nest::analysis::columns::{LANES, is_depthwise, whole};
use crate::passes::nest::analysis::form;
use crate::passes::nest::analysis::strides::unit_stride_var;
use crate::passes::nest::analysis::uses::Uses;
use crate::passes::nest::schedule::conv_pool;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use apart::{copy_image, transpose_result};
use channels_first::{
    comes_channels_first, comes_from_planes, few_come_channels_first, has_few_channels_each, has_few_columns,
    is_interleaved, reads_rows_of_input, stays_channels_first,
};
use std::collections::{HashMap, HashSet};

/// Minimum channels: they fill half of a vector.
const LEAST: i64 = 8;
/// Channels of an input image that are too few to justify a copy.
pub(crate) const FEW: i64 = 8;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    reshaped::run(m);
    let viewed = viewed_images(m);
    let shared = written_in_parts(m);
    // Images of a run-time number of channels that have channels innermost. Others beside them keep planes.
    let mut split: HashSet<Buf> = HashSet::new();
    for k in visit::calls(&m.driver) {
        attach_channels(m, k, &viewed);
        detach(m, k, &viewed, &shared);
        attach_residuals(m, k);
        detach_window(m, k, &shared);
        let first = m.bufs.len();
        if attach_sampled(m, k, &shared) {
            split.extend(m.bufs.keys().skip(first));
        }
    }
    let kernels = visit::calls(&m.driver);
    let flat: Vec<unflatten::Flat> = kernels.iter().filter_map(|k| unflatten::find(m, *k)).collect();
    let mut viewed: HashSet<Buf> = HashSet::new();
    for k in &kernels {
        let body = &m.kernels[*k].body;
        for b in visit::loads(body).into_iter().chain(visit::stores(body)) {
            if m.storage(b) != b && !flat.iter().any(|f| f.kernel == *k && f.view == b) {
                viewed.insert(m.storage(b));
            }
        }
    }
    let may = |m: &Module, b: Buf| {
        matches!(m.bufs[b].place, Place::Temp)
            && (3..=5).contains(&m.bufs[b].dims.len())
            && (!viewed.contains(&b) || spatial_is_one(m, b))
    };
    let mut chosen: HashSet<Buf> = HashSet::new();
    for k in &kernels {
        let body = &m.kernels[*k].body;
        let samples = sampled(m, body).map(|s| [Some(s.image), is_image(m, s).then_some(s.stored)]);
        let known = |b: &Buf| m.bufs[*b].dims[1].as_const().is_some();
        let samples = samples.into_iter().flatten().flatten().filter(known);
        chosen.extend(body.images().convolved.iter().copied().chain(samples).filter(|b| may(m, *b)));
    }
    follow(m, &kernels, &mut chosen, &may);
    chosen.extend(split);
    let planes: HashSet<Buf> = conv_pool::planes(m, &kernels).into_iter().collect();
    let uses = Uses::new(m);
    chosen.retain(|b| {
        !comes_channels_first(m, &uses, *b)
            && !stays_channels_first(m, &uses, *b)
            && !has_few_channels_each(m, &uses, *b)
            && !planes.contains(b)
    });
    let others = chosen.clone();
    chosen.retain(|b| !is_interleaved(m, &uses, *b, &others));
    // Choosing an image may decide about its neighbours, so iterate.
    while let Some(b) = chosen.iter().copied().find(|b| comes_from_planes(m, &uses, *b, &chosen)) {
        chosen.remove(&b);
    }
    flat.iter().filter(|f| chosen.contains(&f.image)).for_each(|f| unflatten::rewrite(m, f));
    for b in chosen {
        let rank = m.bufs[b].dims.len();
        let mut p = vec![0];
        p.extend(2..rank);
        p.push(1);
        m.bufs[b].layout = Layout::Permuted(p);
    }
    Ok(())
}

/// Images that maps connect to chosen images are chosen, too.
fn follow(m: &Module, kernels: &[Kernel], chosen: &mut HashSet<Buf>, may: &dyn Fn(&Module, Buf) -> bool) {
    let mut groups: Vec<Vec<Buf>> = vec![];
    let mut of: HashMap<Buf, Vec<usize>> = HashMap::new();
    for k in kernels {
        let body = &m.kernels[*k].body;
        let Some(map) = body.form().map() else { continue };
        let mut group = vec![map.buf];
        map.value.each_load(&mut |b, at| {
            if aligned(at, &map.at) {
                group.push(b);
            }
        });
        group.retain(|b| may(m, *b));
        group.iter().for_each(|b| of.entry(*b).or_default().push(groups.len()));
        groups.push(group);
    }
    let mut pending: Vec<Buf> = chosen.iter().copied().collect();
    while let Some(b) = pending.pop() {
        for i in of.remove(&b).unwrap_or_default() {
            pending.extend(std::mem::take(&mut groups[i]).into_iter().filter(|b| chosen.insert(*b)));
        }
    }
}

/// Temporaries that kernels access under another shape: they keep ONNX's memory order.
fn viewed_images(m: &Module) -> HashSet<Buf> {
    let kernels = visit::calls(&m.driver);
    let bodies = kernels.iter().map(|k| &m.kernels[*k].body);
    let accesses = bodies.flat_map(|body| visit::loads(body).into_iter().chain(visit::stores(body)));
    accesses
        .filter(|b| m.storage(*b) != *b)
        .map(|b| m.storage(b))
        .filter(|b| matches!(m.bufs[*b].place, Place::Temp))
        .collect()
}

/// Buffers that several kernels store to.
fn written_in_parts(m: &Module) -> HashSet<Buf> {
    let uses = Uses::new(m);
    m.bufs.keys().filter(|b| uses.writers(*b).len() > 1).collect()
}

/// True for an output image of enough channels, or of a run-time number of them, which has channels first.
fn leaves_channels_first(m: &Module, b: Buf) -> bool {
    let d = &m.bufs[b];
    matches!(d.place, Place::Output(_))
        && (3..=5).contains(&d.dims.len())
        && d.dims[1].as_const().is_none_or(|c| c >= LEAST)
}

/// True for a temporary of enough channels that is read under another shape.
fn viewed_channels_first(m: &Module, b: Buf, viewed: &HashSet<Buf>) -> bool {
    viewed.contains(&b)
        && (3..=5).contains(&m.bufs[b].dims.len())
        && m.bufs[b].dims[1].as_const().is_some_and(|c| c >= LEAST)
        && !spatial_is_one(m, b)
}

/// The result of a convolution that is an output with channels first, or is read under another shape, is
/// stored with channels innermost in a buffer of its own, and a map transposes it: vectors then run along
/// channels, which tiles could otherwise only store element by element, or are fuller.
fn detach(m: &mut Module, k: Kernel, viewed: &HashSet<Buf>, shared: &HashSet<Buf>) {
    let body = &m.kernels[k].body;
    let Some(c) = body.form().contraction() else { return };
    let ((a, from), (w, at_w)) = (&c.a, &c.b);
    let (a, w) = (*a, *w);
    let Some((out, at)) = c.store() else { return };
    let taps = c.reduction.len() > 1;
    // The phases of a strided result are never contiguous.
    let positions: Vec<(Sym, Dim)> = c.loops.iter().copied().filter(|l| form::depends(from, l.0)).collect();
    let apart = unit_stride_var(m, out, &at, &positions).is_none();
    let images = &body.images().convolved;
    let planes = leaves_channels_first(m, out)
        || viewed_channels_first(m, out, viewed)
        || taps && few_leave_channels_first(m, a, out);
    if !planes
        || a == w
        || at_w.len() != from.len()
        || !images.contains(&out)
        || !images.contains(&a)
        || visit::loads(body).contains(&out)
    {
        return;
    }
    if reads_rows_of_input(m, c) || has_few_columns(m, c) && stays_channels_first(m, &Uses::new(m), a) {
        return;
    }
    // Image and result of a depthwise convolution have the same innermost dimension.
    let depthwise = is_depthwise(&c.loops, from, at_w);
    if depthwise && comes_channels_first(m, &Uses::new(m), a) {
        return;
    }
    if taps || apart || depthwise || is_ragged(m, a, out, w) {
        transpose_result(m, k, out, viewed, shared);
    }
}

/// True for an output image of few channels computed from an image with channels innermost.
fn few_leave_channels_first(m: &Module, image: Buf, out: Buf) -> bool {
    let (from, to) = (&m.bufs[image], &m.bufs[out]);
    let few = matches!(to.place, Place::Output(_))
        && to.dims.len() == 4
        && to.dims[1].as_const().is_some_and(|c| (2..LEAST).contains(&c));
    if !few || !matches!(from.place, Place::Temp) || from.dims[1].as_const().is_none_or(|c| c <= LEAST) {
        return false;
    }
    // At most a few outputs of a model reach this point.
    let uses = Uses::new(m);
    !comes_channels_first(m, &uses, image) && !stays_channels_first(m, &uses, image)
}

/// True for a 1x1 convolution that is slower with vectors along planes, the last of which may be nearly
/// empty, than with vectors along channels and a transposed result. Whole vectors of an image in planes are
/// read in place; images that a kernel computes have channels innermost.
fn is_ragged(m: &Module, image: Buf, out: Buf, weights: Buf) -> bool {
    // Costs in reduction steps: of packing an image element, if a row is packed and if it is every second
    // element of one, and of transposing a result element.
    const PACK: i64 = 5;
    const PACK_STRIDED: i64 = 10;
    const TRANSPOSE_COST: i64 = 8;
    let rows = m.bufs[image].dims[2..] != m.bufs[out].dims[2..];
    let known = |b: Buf| m.bufs[b].dims.iter().map(|d| d.as_const()).collect::<Option<Vec<i64>>>();
    let Some(w) = known(weights) else { return false };
    let depth: i64 = w[1..].iter().product();
    // All groups of channels are packed.
    let Some(packed) = m.bufs[image].dims[1].as_const() else { return false };
    let pack = packed * if rows { PACK_STRIDED } else { PACK };
    // Each group has vectors of its own along its output channels. Packing strided rows for a group is slower
    // still.
    let groups = if rows { 1 } else { (packed / w[1].max(1)).max(1) };
    let lanes = |n: i64| groups * whole(n / groups);
    let copied = rows || matches!(m.bufs[image].place, Place::Temp);
    let (Some(_), Some(to)) = (known(image), known(out)) else {
        // Planes of run-time size are decided by their elements. Those of an input are read in place, unless
        // the stride skips elements: then each short row ends with a partial vector, and half of the lanes
        // are used.
        const ROW: i64 = LANES;
        let channels = m.bufs[out].dims[1].as_const().filter(|_| copied);
        let wasted = if rows { LANES } else { 0 };
        return channels.is_some_and(|n| {
            n * depth * (ROW + wasted) / ROW + pack > lanes(n) * depth + n * TRANSPOSE_COST
        });
    };
    let (plane, channels) = (to[2..].iter().product::<i64>(), to[1]);
    // A plane is one row of columns, unless the image has a larger one.
    let row = if rows { to[to.len() - 1] } else { plane };
    let along_planes = plane / row * whole(row) * channels * depth + plane * pack;
    let along_channels = plane * lanes(channels) * depth + plane * channels * TRANSPOSE_COST;
    (copied || row % LANES != 0) && along_planes > along_channels
}

/// The same for pooling of an image with channels innermost.
fn detach_window(m: &mut Module, k: Kernel, shared: &HashSet<Buf>) {
    let body = &m.kernels[k].body;
    let [out] = visit::stores(body)[..] else { return };
    let planes = leaves_channels_first(m, out) && !spatial_is_one(m, out);
    let images = &body.images().convolved;
    if planes
        && body.form().contraction().is_none()
        && !visit::loads(body).contains(&out)
        && images.contains(&out)
        && images.iter().any(|b| matches!(m.bufs[*b].place, Place::Temp))
        && !few_come_channels_first(m, images)
    {
        transpose_result(m, k, out, &HashSet::new(), shared);
    }
}

/// Stores an image that is read at computed positions, and the result, with channels innermost: all channels
/// of a position are contiguous, so vectors run along them for any positions. True if the kernel has a version
/// that stores neither.
fn attach_sampled(m: &mut Module, k: Kernel, shared: &HashSet<Buf>) -> bool {
    let Some(s) = sampled(m, &m.kernels[k].body) else { return false };
    let (image, stored, turned) = (s.image, s.stored, is_image(m, s));
    let count = |b: Buf| m.bufs[b].count().as_const();
    // Rows of planes that share their columns are read in place, unless both are transposed anyway.
    if s.by_rows && m.is_given(image) && matches!(m.bufs[stored].place, Place::Output(_)) {
        return false;
    }
    // The transposition of the image must be worth it.
    if count(image).zip(count(stored)).is_some_and(|(i, o)| i > o.saturating_mul(4)) {
        return false;
    }
    let channels = m.bufs[image].dims[1];
    let split = channels.as_const().is_none();
    if split && !run_time_channels::split(m, k, channels) {
        return false;
    }
    if split || m.is_given(image) {
        copy_image(m, k, image);
    }
    if turned && (split || matches!(m.bufs[stored].place, Place::Output(_))) {
        transpose_result(m, k, stored, &HashSet::new(), shared);
    }
    split
}

/// Depthwise convolutions and windows over images of run-time sizes read a copy of an image that is an input
/// with channels first, or is accessed under another shape: vectors then run along channels.
fn attach_channels(m: &mut Module, k: Kernel, viewed: &HashSet<Buf>) {
    let body = &m.kernels[k].body;
    let [out] = visit::stores(body)[..] else { return };
    let (loops, _) = form::par_loops(body);
    let unknown = |b: Buf| m.bufs[b].dims[2..].iter().any(|d| d.as_const().is_none());
    let image = match (body.form().contraction(), body.form().window()) {
        (Some(c), _) => (c.a.0 != c.b.0 && is_depthwise(&loops, &c.a.1, &c.b.1)).then_some(c.a.0),
        // The window slides, and each result has its own.
        (None, Some(w)) => (w.weight.is_none()
            && w.taps.len() >= 2
            && w.read.1.iter().skip(2).all(|d| loops.iter().any(|l| d.contains(l.0)))
            && m.bufs[w.read.0].dims.len() == 4
            && unknown(w.read.0)
            && overlaps(&w, &loops)
            && !reads_neighbours(&w, &loops))
        .then_some(w.read.0),
        _ => None,
    };
    let Some(image) = image.filter(|b| {
        (m.storage(*b) == *b || m.is_given(*b))
            && (3..=5).contains(&m.bufs[*b].dims.len())
            && m.bufs[*b].ty == ElemType::F32
    }) else {
        return;
    };
    let kept = m.is_given(image) || viewed_channels_first(m, image, viewed);
    let fits = kept
        && !spatial_is_one(m, image)
        && !spatial_is_one_of(&m.bufs[out].dims)
        && m.storage(out) != image
        && body.images().convolved.contains(&image);
    if fits && m.bufs[image].dims[1].as_const().is_some_and(|c| c > FEW) {
        copy_image(m, k, image);
    }
}

/// True if adjacent windows overlap. Disjoint windows read each element once, which is cheaper than a copy.
fn overlaps(w: &form::Window, loops: &[(Sym, Dim)]) -> bool {
    w.read.1.iter().any(|d| {
        let step = loops.iter().find_map(|l| d.linear_in(l.0)?.0.as_const().filter(|c| *c != 0));
        let reach: Option<i64> =
            w.taps.iter().map(|t| Some(d.linear_in(t.0)?.0.as_const()? * (t.1.as_const()? - 1))).sum();
        step.is_none_or(|s| reach.is_none_or(|r| r >= s)) && w.taps.iter().any(|t| d.contains(t.0))
    })
}

/// True for windows of a few elements with stride one along rows: reading them in place, in vectors along the
/// row, is cheaper than copying the image.
fn reads_neighbours(w: &form::Window, loops: &[(Sym, Dim)]) -> bool {
    const FEW_TAPS: i64 = 9;
    let along = |d: &Dim| loops.iter().find_map(|l| d.linear_in(l.0)?.0.as_const().filter(|c| *c != 0));
    w.read.1.last().and_then(along) == Some(1)
        && Dim::product(w.taps.iter().map(|t| t.1)).as_const().is_some_and(|n| n <= FEW_TAPS)
}

/// A contraction that stores channels innermost reads a copy of a residual that is an input with channels
/// first.
fn attach_residuals(m: &mut Module, k: Kernel) {
    let Some(p) = m.form(k).contraction().cloned() else { return };
    let Some((out, at)) = p.store() else { return };
    if unit_stride_var(m, out, &at, &p.loops).is_none_or(|c| form::depends(&p.a.1, c)) || m.is_given(p.a.0) {
        return;
    }
    let mut found: Vec<Buf> = vec![];
    for s in &p.epilogue {
        if let Some(e) = s.expr() {
            e.walk(&mut |e| match e {
                Expr::Load { buf, at }
                    if at.len() == 4
                        && m.is_given(*buf)
                        && at[2..].iter().any(|d| d.as_const().is_none())
                        && !found.contains(buf) =>
                {
                    found.push(*buf)
                }
                _ => {}
            });
        }
    }
    for b in found {
        let unknown = m.bufs[b].dims[2..].iter().any(|d| d.as_const().is_none());
        if unknown
            && m.bufs[b].dims[1].as_const().is_some_and(|c| c >= LEAST)
            && m.bufs[b].ty == ElemType::F32
            && b != p.a.0
            && b != p.b.0
        {
            copy_image(m, k, b);
        }
    }
}

/// An image of enough channels that a kernel reads at computed positions, and the result: either an image
/// with the same channels, or a buffer along whose vectors the channels run already.
fn sampled<'a>(m: &Module, body: &'a Body) -> Option<&'a Sampled> {
    let s = body.images().sampled.as_ref()?;
    let (from, to) = (&m.bufs[s.image], &m.bufs[s.stored]);
    ((3..=5).contains(&from.dims.len())
        && (m.is_given(s.image) || matches!(from.place, Place::Temp))
        && m.storage(s.stored) != s.image
        && m.syms.range(from.dims[1]).hi.is_none_or(|c| c > FEW)
        && (is_image(m, s) || s.runs && to.layout == Layout::RowMajor))
        .then_some(s)
}

/// True if the result is an image with the same channels.
fn is_image(m: &Module, s: &Sampled) -> bool {
    s.channels && m.bufs[s.stored].ty == m.bufs[s.image].ty
}

/// The memory of [N, C, 1, 1] is the same in both layouts.
fn spatial_is_one(m: &Module, b: Buf) -> bool {
    spatial_is_one_of(&m.bufs[b].dims)
}

fn spatial_is_one_of(dims: &[Dim]) -> bool {
    dims.iter().skip(2).all(|d| d.as_const() == Some(1))
}

/// True if equal variables occur in equal dimensions.
fn aligned(a: &[Dim], b: &[Dim]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(x, y)| x.syms().is_subset(&y.syms()) || y.syms().is_subset(&x.syms()))
}
