//! Results of the model in the workspace, described by descriptors.

use super::*;

pub fn infer(cx: &mut InferCx, list: &[Boundary]) -> Result<()> {
    let mut at = 0;
    for (k, b) in list.iter().enumerate() {
        let first = at + usize::from(b.form == Form::OptionalSequence);
        at += b.parts();
        let data = cx.tensor(first + 1).clone();
        if data.elem.is_packed() {
            return cx
                .error(
                    codes::OP_FEATURE,
                    format!("an output of several tensors of {} is not supported", data.elem),
                )
                .fail();
        }
        let mut b = Boundary { elem: data.elem, dims: Some(vec![]), ..b.clone() };
        if b.key.is_some() {
            b.key = Some(cx.tensor(first).elem);
        } else {
            let columns = cx.tensor(first).dims[1];
            b.dims = columns.as_const().map(|c| vec![None; (c - HEAD).max(0) as usize]);
        }
        cx.set_type(k, b.ty(), Known::No);
    }
    Ok(())
}

/// The parts of one output.
struct Out {
    form: Form,
    to: Buf,
    flag: Option<Buf>,
    /// The table, or the keys.
    head: Buf,
    data: Buf,
    items: Option<Buf>,
}

/// A buffer in the workspace with the contents of `b`, which nothing else uses.
fn in_workspace(cx: &mut LowerCx, b: Buf) -> Buf {
    let owner = cx.m.storage(b);
    let (dims, ty) = (cx.dims(b), cx.elem(b));
    if cx.m.bufs[owner].place.is_scratch() && !cx.m.is_recast(b) || is_empty(&dims) {
        return b;
    }
    let own = cx.m.temp(format!("{}.own", cx.m.bufs[b].name), ty, dims);
    cx.map(own, |k, at| k.load(b, at));
    own
}

fn is_empty(dims: &[Dim]) -> bool {
    dims.iter().any(|d| d.as_const() == Some(0))
}

/// Writes the descriptors of all outputs that are not tensors.
pub fn lower(cx: &mut LowerCx, list: &[Boundary]) -> Result<()> {
    let mut outs = vec![];
    let mut at = 0;
    for (k, b) in list.iter().enumerate() {
        let first = at + usize::from(b.form == Form::OptionalSequence);
        let flag = (first > at).then(|| cx.input(at));
        at += b.parts();
        let (head, data) = (cx.input(first), cx.input(first + 1));
        let (head, data) = (in_workspace(cx, head), in_workspace(cx, data));
        let count = match b.form {
            Form::Map => None,
            Form::Maps => Some(cx.dims(data)[0]),
            _ => Some(cx.dims(head)[0]),
        };
        let items = count
            .filter(|n| n.as_const() != Some(0))
            .map(|n| cx.temp("items", ElemType::I64, vec![n, Dim::constant(WORDS)]));
        outs.push(Out { form: b.form, to: cx.output(k), flag, head, data, items });
    }
    for (o, b) in outs.iter().zip(list) {
        if let Some(items) = o.items {
            describe_items(cx, o, b, items);
        }
    }
    // All parts must be live until the end, so their addresses are read once more where nothing is written
    // any more.
    let mut ends = vec![];
    for o in &outs {
        let list = [Some(o.head), Some(o.data), o.items].map(|b| b.filter(|b| !is_empty(&cx.dims(*b))));
        ends.push(list.map(|b| b.map_or(Dim::constant(0), |b| again(cx, "address", Expr::Address(b)))));
        for b in list.into_iter().flatten() {
            demand(cx, Expr::bin(BinOp::Ne, Expr::Address(b), int(0)), Status::Null);
        }
    }
    let fields: Vec<[Fields; 2]> = outs
        .iter()
        .map(|o| {
            [
                Fields::new(cx, o.to, Dim::constant(1)),
                Fields::new(cx, o.items.unwrap_or(o.to), o.items.map_or(Dim::constant(1), |b| cx.dims(b)[0])),
            ]
        })
        .collect();
    let sizes: Vec<(Dim, Dim)> = outs.iter().map(|o| (cx.dims(o.head)[0], cx.dims(o.data)[0])).collect();
    cx.kernel(|k| {
        let zero = Dim::constant(0);
        for (n, o) in outs.iter().enumerate() {
            let ([to, items], [head, data, first], (rows, count)) = (&fields[n], ends[n], sizes[n]);
            let dtype = int(i64::from(k.m.bufs[o.data].ty as u8));
            let key = int(if matches!(o.form, Form::Map | Form::Maps) {
                i64::from(k.m.bufs[o.head].ty as u8)
            } else {
                0
            });
            match o.form {
                Form::Map => to.store(
                    k,
                    zero,
                    [int(MAP), dtype, key, int(0)],
                    [ix(rows), int(0), ix(data), ix(head), int(0)],
                ),
                Form::Optional if o.items.is_none() => {
                    to.store(k, zero, [int(NONE), dtype, key, int(0)], std::array::from_fn(|_| int(0)))
                }
                Form::Optional => {
                    let there = Expr::cmp_index(BinOp::Gt, rows, 0);
                    let pick = |v: Expr| Expr::select(there.clone(), v, int(0));
                    let words = [LEN, DIMS, DATA, KEYS, ITEMS].map(|w| pick(items.word(zero, w)));
                    to.store(k, zero, [pick(int(TENSOR)), dtype, key, pick(items.half(zero, RANK))], words);
                }
                _ => {
                    let len = if o.form == Form::Maps { count } else { rows };
                    let there = o.flag.map_or(Expr::bool(true), |f| k.load(f, &[]));
                    let pick = |v: Expr| Expr::select(there.clone(), v, int(0));
                    to.store(
                        k,
                        zero,
                        [pick(int(SEQUENCE)), dtype, key, int(0)],
                        [pick(ix(len)), int(0), int(0), int(0), pick(ix(first))],
                    );
                }
            }
        }
    });
    Ok(())
}

/// The descriptors of the members of a sequence, or of the maps.
fn describe_items(cx: &mut LowerCx, o: &Out, b: &Boundary, items: Buf) {
    let start = |cx: &mut LowerCx, b: Buf| {
        if is_empty(&cx.dims(b)) { Dim::constant(0) } else { again(cx, "address", Expr::Address(b)) }
    };
    let (head, data) = (start(cx, o.head), start(cx, o.data));
    let count = cx.dims(items)[0];
    let fields = Fields::new(cx, items, count);
    let ty = cx.elem(o.data);
    let width = i64::from(ty.bytes().unwrap_or(1));
    let dtype = int(i64::from(ty as u8));
    if b.form == Form::Maps {
        let (n, key) = (cx.dims(o.head)[0], cx.elem(o.head) as u8);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[count], |k, at| {
                let from = if data.as_const().is_some() { int(0) } else { ix(data) + ix(at[0] * n * width) };
                fields.store(
                    k,
                    at[0],
                    [int(MAP), dtype.clone(), int(i64::from(key)), int(0)],
                    [ix(n), int(0), from, ix(head), int(0)],
                );
            });
        });
        return;
    }
    let table = o.head;
    let columns = cx.dims(table)[1];
    cx.kernel(|k| {
        k.range(LoopKind::Seq, "m", 0, count, |k, m| {
            let (place, rank) =
                (k.load(table, &[m, Dim::constant(0)]), k.load(table, &[m, Dim::constant(1)]));
            let rank = k.let_(rank);
            let n = k.acc(int(1));
            k.range(LoopKind::Seq, "d", 0, columns - HEAD, |k, d| {
                let v = Expr::select(
                    Expr::bin(BinOp::Lt, ix(d), rank.clone()),
                    k.load(table, &[m, d + HEAD]),
                    int(1),
                );
                k.set(n, Expr::acc(n) * v);
            });
            let dims = ix(head + (m * columns + HEAD) * 8);
            let from = if data.as_const().is_some() { int(0) } else { ix(data) + place * int(width) };
            fields.store(
                k,
                m,
                [int(TENSOR), dtype.clone(), int(0), rank],
                [Expr::acc(n), dims, from, int(0), int(0)],
            );
        });
    });
}
