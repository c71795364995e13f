//! Forms: what a nest is. This is the one place that tells them apart by their statements; passes and
//! schedules ask it.
//!
//! ```text
//! contraction          par .. { acc = 0; seq .. { acc += a * b }; lets; store }
//! window               par .. { acc = c; seq .. { acc = op(acc, element) }; lets; store }
//! pooled contraction   par .. { acc = c; seq .. { sum = 0; seq .. { sum += a * b }; lets; acc = op(acc, ..) }; lets; store }
//! row reduction        par .. { loops over the elements of a row, one of which reduces; lets; stores }
//! scan                 par .. { acc; seq { acc = f(acc, element); store } }
//! map                  par .. { store }
//! gather               a map that reads elements at positions from memory
//! ```

use crate::nest::{BinOp, Buf, DotKind, Expr, LoopKind, Module, Reg, Scalar, Stmt, visit};
use crate::passes::nest::analysis::shape::{Loops, Map, as_map, peel, seq_loops};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// What a nest is.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// Sums of products of two operands: MatMul, Conv.
    Contraction(Box<Contraction>),
    /// One element for each step, combined: pooling, reductions.
    Window,
    /// A window of sums of products.
    PooledContraction(Box<PooledContraction>),
    /// Loops over the elements of a row, with a reduction among them: softmax, normalization.
    RowReduction,
    /// One loop that changes an accumulator and stores in each step: CumSum.
    Scan,
    /// One expression for each element.
    Map(Box<Map>),
    /// The same, at positions from memory.
    Gather(Box<Map>),
    /// None of these.
    Other,
}

impl Form {
    /// The form of a nest.
    pub fn of(body: &[Stmt]) -> Form {
        if let Some(map) = as_map(body) {
            let mut gathers = false;
            map.value.walk(&mut |e| gathers |= matches!(e, Expr::With { .. }));
            return if gathers { Form::Gather(Box::new(map)) } else { Form::Map(Box::new(map)) };
        }
        if let Some(c) = any_contraction(body) {
            return Form::Contraction(Box::new(c));
        }
        if let Some(p) = pooled_contraction(body) {
            return Form::PooledContraction(Box::new(p));
        }
        let inside = peel(body).body;
        match () {
            _ if window(body).is_some() => Form::Window,
            _ if is_scan(&inside) => Form::Scan,
            _ if is_row_reduction(&inside) => Form::RowReduction,
            _ => Form::Other,
        }
    }
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Form::Contraction(_) => "contraction",
            Form::Window => "window",
            Form::PooledContraction(_) => "pooled contraction",
            Form::RowReduction => "row reduction",
            Form::Scan => "scan",
            Form::Map(_) => "map",
            Form::Gather(_) => "gather",
            Form::Other => "other",
        }
    }
    /// The map or gather.
    pub fn map(&self) -> Option<&Map> {
        if let Form::Map(map) | Form::Gather(map) = self { Some(map) } else { None }
    }
}

/// Sums of products of two operands, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Contraction {
    /// The `par` nest.
    pub loops: Loops,
    /// The sum.
    pub acc: Reg,
    /// The `seq` nest.
    pub reduction: Loops,
    /// Factors.
    pub a: (Buf, Vec<Dim>),
    /// See `a`.
    pub b: (Buf, Vec<Dim>),
    /// Where B is a sum or a difference of two elements of its buffer: the second one.
    pub with: Option<(BinOp, Vec<Dim>)>,
    /// What each row prefetches while its sum runs: a share of the lines from here on. The last
    /// subscript moves on with the row, by its share.
    pub prefetch: Option<(Buf, Vec<Dim>)>,
    /// What the sum begins with, if not with zero.
    pub start: Option<Expr>,
    /// Lets and the store.
    pub epilogue: Vec<Stmt>,
    /// True if the kernel has nothing else.
    pub whole: bool,
    /// How factors come to the sum.
    pub product: ProductKind,
}

impl Contraction {
    /// True if each step has one element of each operand, and nothing is asked of memory.
    pub fn is_plain(&self) -> bool {
        self.with.is_none() && self.prefetch.is_none()
    }
    /// Where the result goes.
    pub fn store(&self) -> Option<(Buf, Vec<Dim>)> {
        self.epilogue
            .iter()
            .find_map(|s| if let Stmt::Store { buf, at, .. } = s { Some((*buf, at.clone())) } else { None })
    }
    /// True for sums that have to be exact, so that no sums of other factors may take their place: those
    /// known to be whole numbers, and those that are converted to an integer, which shows the smallest error.
    pub fn is_exact(&self, m: &Module) -> bool {
        let mut found = m.regs[self.acc].whole.is_some();
        visit::walk_exprs(
            &self.epilogue,
            &mut |e| found |= matches!(e, Expr::Cast(t, x) if t.is_int() && matches!(&**x, Expr::Acc { reg, .. } if *reg == self.acc)),
        );
        found
    }
}

/// A step of the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ProductKind {
    /// Of floats.
    Fma,
    /// Of floats of 64 bits.
    Double,
    /// Of bytes as floats, and floats.
    Extended,
    /// Of groups; of bytes, the unsigned ones are those of B if `swapped`.
    Dot {
        /// What a group is.
        group: DotKind,
        /// A and B have changed places.
        swapped: bool,
    },
    /// Of single bytes, extended: what `exact_sums` and `integer_dot` rewrite, or nobody.
    Bytes,
}

impl ProductKind {
    /// Type of the sum.
    pub fn ty(self) -> ElemType {
        match self {
            ProductKind::Fma | ProductKind::Extended => ElemType::F32,
            ProductKind::Double => ElemType::F64,
            ProductKind::Dot { group, .. } => group.sum(),
            ProductKind::Bytes => ElemType::I32,
        }
    }
    /// Columns of panels come in multiples of this on every level: lanes of the longest vectors.
    pub fn unit(self) -> i64 {
        if self == ProductKind::Double { 8 } else { 16 }
    }
    /// The sum with one more product.
    pub fn step(self, a: Expr, b: Expr, sum: Expr) -> Expr {
        match self {
            ProductKind::Fma | ProductKind::Double => Expr::fma(a, b, sum),
            ProductKind::Extended => Expr::fma(extended(a), b, sum),
            ProductKind::Dot { group, swapped: false } => Expr::dot(group, a, b, sum),
            ProductKind::Dot { group, swapped: true } => Expr::dot(group, b, a, sum),
            ProductKind::Bytes => {
                Expr::cast(ElemType::I8, ElemType::I32, a) * Expr::cast(ElemType::I8, ElemType::I32, b) + sum
            }
        }
    }
    /// The step of a sum of this type.
    fn of(ty: ElemType, e: &Expr) -> Option<(ProductKind, [&Expr; 3])> {
        let byte = |e: &Expr| matches!(e, Expr::Cast(ElemType::I32, _));
        Some(match e {
            Expr::Fma(a, b, c) => match &**a {
                Expr::Cast(ElemType::F32, x) if byte(x) => match &**x {
                    Expr::Cast(_, a) => (ProductKind::Extended, [a, b, c]),
                    _ => return None,
                },
                _ if ty == ElemType::F64 => (ProductKind::Double, [a, b, c]),
                _ => (ProductKind::Fma, [a, b, c]),
            },
            Expr::Dot(group, a, b, c) => (ProductKind::Dot { group: *group, swapped: false }, [a, b, c]),
            Expr::Bin(BinOp::Add, p, c) => match &**p {
                Expr::Bin(BinOp::Mul, a, b) if byte(a) && byte(b) => match (&**a, &**b) {
                    (Expr::Cast(_, a), Expr::Cast(_, b)) => (ProductKind::Bytes, [a, b, c]),
                    _ => return None,
                },
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// A byte as the float of its value.
pub(crate) fn extended(byte: Expr) -> Expr {
    Expr::Cast(ElemType::F32, Box::new(Expr::Cast(ElemType::I32, Box::new(byte))))
}

/// A contraction as operators write it: one element of each operand in a step, and nothing asked of memory.
pub(crate) fn contraction(body: &[Stmt]) -> Option<Contraction> {
    any_contraction(body).filter(Contraction::is_plain)
}

/// True for such a nest.
pub(crate) fn is_contraction(body: &[Stmt]) -> bool {
    contraction(body).is_some()
}

/// The reads of a contraction's operands.
pub(crate) fn operands(body: &[Stmt]) -> Option<(Buf, Vec<Dim>, Buf, Vec<Dim>)> {
    let p = contraction(body)?;
    Some((p.a.0, p.a.1, p.b.0, p.b.1))
}

/// True if a subscript depends on a loop.
pub(crate) fn depends(at: &[Dim], s: Sym) -> bool {
    at.iter().any(|d| d.contains(s))
}

/// One accumulator that a nest of sequential loops changes, and what follows it.
struct Sum<'a> {
    init: Scalar,
    acc: Reg,
    steps: Loops,
    /// What stands in the innermost loop.
    step: &'a [Stmt],
    tail: &'a [Stmt],
}

/// `acc = c; seq .. { .. }; lets; stores`.
fn sum(body: &[Stmt]) -> Option<Sum<'_>> {
    let [Stmt::Acc { reg, lanes: 1, shape, init: Expr::Const(init) }, inner, tail @ ..] = body else {
        return None;
    };
    let (steps, step) = seq_loops(inner)?;
    let straight = tail.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. }));
    (shape.is_empty() && straight && !tail.is_empty()).then_some(Sum {
        init: *init,
        acc: *reg,
        steps,
        step,
        tail,
    })
}

/// A contraction, also where B is a sum of two elements or the sum prefetches: what passes make.
fn any_contraction(body: &[Stmt]) -> Option<Contraction> {
    let nest = peel(body);
    let Sum { init, acc, steps, step, tail } = sum(&nest.body)?;
    let (ask, r, value) = match step {
        [Stmt::Set { reg, value, .. }] => (None, reg, value),
        [Stmt::Prefetch { buf, at }, Stmt::Set { reg, value, .. }] => (Some((*buf, at.clone())), reg, value),
        _ => return None,
    };
    let (product, [a, b, c]) = ProductKind::of(init.ty, value)?;
    let (b, second) = match b {
        Expr::Bin(op @ (BinOp::Add | BinOp::Sub), x, y) if product == ProductKind::Fma => {
            (&**x, Some((*op, &**y)))
        }
        b => (b, None),
    };
    let (Expr::Load { buf: ba, at: ia }, Expr::Load { buf: bb, at: ib }, Expr::Acc { reg: rc, .. }) =
        (a, b, c)
    else {
        return None;
    };
    let with = match second {
        None => None,
        Some((op, Expr::Load { buf, at })) if buf == bb => Some((op, at.clone())),
        _ => return None,
    };
    let stores = tail.iter().filter(|s| matches!(s, Stmt::Store { .. })).count();
    if init.bits != 0 || init.ty != product.ty() || *r != acc || *rc != acc || stores != 1 {
        return None;
    }
    let (a, b, tail) = ((*ba, ia.clone()), (*bb, ib.clone()), tail.to_vec());
    Some(Contraction {
        loops: nest.loops,
        acc,
        reduction: steps,
        a,
        b,
        with,
        prefetch: ask,
        start: None,
        epilogue: tail,
        whole: true,
        product,
    })
}

/// A sum of products of two bytes each, as integers, whatever follows it.
#[derive(Clone, Debug)]
pub(crate) struct ByteSum {
    /// The sum.
    pub acc: Reg,
    /// Factors.
    pub a: (Buf, Vec<Dim>),
    /// See `a`.
    pub b: (Buf, Vec<Dim>),
    /// The `seq` nest.
    pub reduction: Loops,
}

/// The sum of bytes that a nest begins with, if nothing else changes it.
pub(crate) fn byte_sum(m: &Module, body: &[Stmt]) -> Option<ByteSum> {
    let nest = peel(body);
    let [Stmt::Acc { reg, lanes: 1, shape, init: Expr::Const(zero) }, inner, ..] = nest.body.as_slice()
    else {
        return None;
    };
    if !shape.is_empty() || zero.bits != 0 || zero.ty != ElemType::I32 {
        return None;
    }
    let (depth, step) = seq_loops(inner)?;
    let [Stmt::Set { reg: r, value: Expr::Bin(BinOp::Add, product, sum), .. }] = step else { return None };
    let (Expr::Bin(BinOp::Mul, a, b), Expr::Acc { reg: old, .. }) = (&**product, &**sum) else { return None };
    let operand = |e: &Expr| match e {
        Expr::Cast(ElemType::I32, x) => match &**x {
            Expr::Load { buf, at } if matches!(m.bufs[*buf].ty, ElemType::U8 | ElemType::I8) => {
                Some((*buf, at.clone()))
            }
            _ => None,
        },
        _ => None,
    };
    let mut sets = 0;
    visit::walk(&nest.body, &mut |s| sets += usize::from(matches!(s, Stmt::Set { reg: x, .. } if x == reg)));
    let alone = r == reg && old == reg && sets == 1;
    Some(ByteSum { acc: *reg, a: operand(a)?, b: operand(b)?, reduction: depth }).filter(|_| alone)
}

/// One element in each step, combined with what is there; or its product with another one, added.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// The `par` nest.
    pub loops: Loops,
    /// The accumulator.
    pub acc: Reg,
    /// What it begins with.
    pub init: Scalar,
    /// The `seq` nest.
    pub taps: Loops,
    /// What combines it with an element.
    pub op: BinOp,
    /// The element.
    pub read: (Buf, Vec<Dim>),
    /// What it is multiplied by.
    pub weight: Option<(Buf, Vec<Dim>)>,
    /// Lets and stores.
    pub epilogue: Vec<Stmt>,
}

/// The nest as a window, also where it is a contraction.
pub(crate) fn window(body: &[Stmt]) -> Option<Window> {
    let nest = peel(body);
    let Sum { init, acc, steps, step, tail } = sum(&nest.body)?;
    let [Stmt::Set { reg, value, .. }] = step else { return None };
    let (op, old, read, weight) = match value {
        Expr::Bin(op @ (BinOp::Max | BinOp::Min | BinOp::Add), old, read) => (*op, old, read, None),
        Expr::Fma(read, weight, old) => match &**weight {
            Expr::Load { buf, at } => (BinOp::Add, old, read, Some((*buf, at.clone()))),
            _ => return None,
        },
        _ => return None,
    };
    let (Expr::Acc { reg: old, .. }, Expr::Load { buf, at }) = (&**old, &**read) else { return None };
    let read = (*buf, at.clone());
    let tail = tail.to_vec();
    (*reg == acc && *old == acc).then_some(Window {
        loops: nest.loops,
        acc,
        init,
        taps: steps,
        op,
        read,
        weight,
        epilogue: tail,
    })
}

/// A window of sums of products, as `fuse_conv_pool` makes it.
#[derive(Clone, Debug)]
pub(crate) struct PooledContraction {
    /// The `par` nest.
    pub loops: Loops,
    /// The pooled value, and what it begins with.
    pub pooled: (Reg, Expr),
    /// The loops over the window.
    pub window: Loops,
    /// The sum of products.
    pub sum: Reg,
    /// Its loops.
    pub reduction: Loops,
    /// The step of the sum.
    pub step: Expr,
    /// The image.
    pub a: (Buf, Vec<Dim>),
    /// The weights.
    pub w: (Buf, Vec<Dim>),
    /// What follows a sum, up to the step of the pooling.
    pub then: Vec<Stmt>,
    /// Lets and stores.
    pub epilogue: Vec<Stmt>,
}

/// The nest as a pooled contraction.
pub(crate) fn pooled_contraction(body: &[Stmt]) -> Option<PooledContraction> {
    let nest = peel(body);
    let [Stmt::Acc { reg, lanes: 1, init, .. }, window @ Stmt::For { .. }, tail @ ..] = nest.body.as_slice()
    else {
        return None;
    };
    let (window, inside) = seq_loops(window)?;
    let [Stmt::Acc { reg: sum, lanes: 1, .. }, depth @ Stmt::For { .. }, then @ ..] = inside else {
        return None;
    };
    let (depth, step) = seq_loops(depth)?;
    let [Stmt::Set { value: step @ Expr::Fma(a, w, _), .. }] = step else { return None };
    let (Expr::Load { buf: a, at: at_a }, Expr::Load { buf: w, at: at_w }) = (&**a, &**w) else {
        return None;
    };
    let sets = then.iter().filter(|s| matches!(s, Stmt::Set { reg: r, .. } if r == reg)).count();
    let straight = then.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Set { .. }))
        && tail.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. }));
    (sets == 1 && straight && !tail.is_empty()).then(|| PooledContraction {
        loops: nest.loops.clone(),
        pooled: (*reg, init.clone()),
        window,
        sum: *sum,
        reduction: depth,
        step: step.clone(),
        a: (*a, at_a.clone()),
        w: (*w, at_w.clone()),
        then: then.to_vec(),
        epilogue: tail.to_vec(),
    })
}

/// True for a loop over elements, whose body is straight, with such a statement among them.
fn is_straight_loop(s: &Stmt, has: &[fn(&Stmt) -> bool]) -> bool {
    let Stmt::For { kind: LoopKind::Seq, body, .. } = s else { return false };
    let straight = body.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Set { .. } | Stmt::Store { .. }));
    straight && has.iter().all(|f| body.iter().any(f))
}

/// Accumulators and one sequential loop of straight statements, which changes some of them and stores.
pub(crate) fn is_scan(body: &[Stmt]) -> bool {
    let changes_and_stores: [fn(&Stmt) -> bool; 2] =
        [|s| matches!(s, Stmt::Set { .. }), |s| matches!(s, Stmt::Store { .. })];
    let scans = body.iter().filter(|s| is_straight_loop(s, &changes_and_stores)).count();
    scans == 1
        && body.iter().all(|s| matches!(s, Stmt::Acc { lanes: 1, .. } | Stmt::For { .. }))
        && loops(body) == 1
}

/// Loops over the elements of a row one after the other, with a reduction among them, and values in between.
fn is_row_reduction(body: &[Stmt]) -> bool {
    let straight = |s: &Stmt| {
        matches!(s, Stmt::Acc { lanes: 1, .. } | Stmt::Let { .. } | Stmt::Set { .. } | Stmt::Store { .. })
    };
    let reduces: [fn(&Stmt) -> bool; 1] = [|s| matches!(s, Stmt::Set { .. })];
    body.iter().all(|s| straight(s) || is_straight_loop(s, &[]))
        && body.iter().any(|s| is_straight_loop(s, &reduces))
}

fn loops(body: &[Stmt]) -> usize {
    body.iter().filter(|s| matches!(s, Stmt::For { .. })).count()
}
