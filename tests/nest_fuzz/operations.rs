//! Operations and conversions on special values: zeros of both signs, infinities, NaN, subnormals, ends of
//! ranges.

use crate::check::values;
use onnxc::diag::Origin;
use onnxc::nest::interp::Outcome;
use onnxc::nest::{BinOp, Buf, Expr, Module, Place, Scalar, UnOp};
use onnxc::sym::{Dim, SymTable};
use onnxc::tensor::ElemType as T;

/// Results that are exact: zeros must have the right sign.
const EXACT: &[UnOp] = &[
    UnOp::Neg,
    UnOp::Abs,
    UnOp::Sign,
    UnOp::Floor,
    UnOp::Ceil,
    UnOp::Trunc,
    UnOp::Round,
    UnOp::Sqrt,
    UnOp::Recip,
    UnOp::IsNan,
    UnOp::IsInf,
];
const ROUNDED: &[UnOp] = &[
    UnOp::Exp,
    UnOp::Log,
    UnOp::Erf,
    UnOp::Tanh,
    UnOp::Sigmoid,
    UnOp::Sin,
    UnOp::Cos,
    UnOp::Tan,
    UnOp::Asin,
    UnOp::Acos,
    UnOp::Atan,
    UnOp::Sinh,
    UnOp::Cosh,
    UnOp::Asinh,
    UnOp::Acosh,
    UnOp::Atanh,
    UnOp::Expm1,
    UnOp::Log1p,
];
const BINARY: &[BinOp] = &[
    BinOp::Add,
    BinOp::Sub,
    BinOp::Mul,
    BinOp::Min,
    BinOp::Max,
    BinOp::Eq,
    BinOp::Ne,
    BinOp::Lt,
    BinOp::Le,
    BinOp::Gt,
    BinOp::Ge,
    BinOp::Div,
    BinOp::Rem,
    BinOp::Mod,
];
const FLOATS: &[T] = &[T::F32, T::F64];
const INTEGERS: &[T] = &[T::I8, T::U8, T::I16, T::U16, T::I32, T::U32, T::I64, T::U64];
const STORED: &[T] =
    &[T::F16, T::BF16, T::F8E4M3FN, T::F8E4M3FNUZ, T::F8E5M2, T::F8E5M2FNUZ, T::F8E8M0, T::F6E2M3, T::F6E3M2];

fn special(ty: T) -> Vec<Scalar> {
    let mut v: Vec<f64> = vec![
        0.0, 1.0, 0.25, 0.5, 0.75, 1.5, 2.5, 3.5, 0.3, 0.9999, 1.0001, 7.0, 20.0, 87.5, 88.5, 100.0, 104.0,
        127.5, 128.0, 255.0, 256.0, 440.0, 449.0, 65504.0, 65519.9, 65520.0, 1e-3, 1e-8, 6e-8, 2e-5,
    ];
    v.extend([
        8388607.5,
        8388608.0,
        16777217.0,
        2147483647.0,
        2147483648.0,
        4294967296.0,
        9.3e18,
        1.9e19,
        6e37,
        3e38,
        1e-38,
        1e-40,
        1.5e-45,
        4.9e-324,
        1e300,
        f64::INFINITY,
    ]);
    let all = v.iter().flat_map(|x| [*x, -*x]).chain([f64::NAN]);
    match ty {
        t if t.is_float() => all.map(|x| Scalar::from_f64(t, x)).collect(),
        t => {
            let (lo, hi) = (Scalar::lowest(t).to_i64(), Scalar::highest(t).to_i64());
            [0, 1, 2, 3, 7, 100, lo, hi, lo.wrapping_add(1), hi.wrapping_sub(1), hi / 2, -1, -2, -7, 85]
                .iter()
                .map(|x| Scalar::int(t, *x))
                .collect()
        }
    }
}

fn bytes(ty: T, v: &[Scalar]) -> Vec<u8> {
    v.iter().flat_map(|s| s.bits.to_le_bytes()[..ty.bytes().unwrap_or(1) as usize].to_vec()).collect()
}

/// A module with one map for each expression; what they are called.
pub struct Table {
    pub m: Module,
    names: Vec<(String, bool)>,
    pub data: Vec<Vec<u8>>,
    n: usize,
}

impl Table {
    fn new(n: usize) -> Self {
        Table { m: Module::new("table", SymTable::new()), names: vec![], data: vec![], n }
    }
    fn input(&mut self, ty: T, v: &[Scalar]) -> Buf {
        self.data.push(bytes(ty, v));
        let b = self.m.buf("x", ty, [Dim::from(self.n)], Place::Input(self.m.inputs.len() as u32));
        self.m.inputs.push(b);
        b
    }
    fn row(&mut self, name: String, ty: T, exact: bool, value: impl FnOnce(&[Dim]) -> Expr) {
        let b = self.m.buf(name.clone(), ty, [Dim::from(self.n)], Place::Output(self.m.outputs.len() as u32));
        self.m.outputs.push(b);
        self.m.map(b, &Origin::default(), |_, at| value(at));
        self.names.push((name, exact));
    }
}

fn load(buf: Buf, at: &[Dim]) -> Expr {
    Expr::Load { buf, at: at.to_vec() }
}

/// All tables.
pub fn tables() -> Vec<Table> {
    let mut out = vec![];
    for ty in FLOATS.iter().chain(INTEGERS).copied() {
        let v = special(ty);
        let mut t = Table::new(v.len());
        let x = t.input(ty, &v);
        let unary: Vec<(UnOp, bool)> = match ty.is_float() {
            true => EXACT.iter().map(|o| (*o, true)).chain(ROUNDED.iter().map(|o| (*o, false))).collect(),
            false if ty.is_signed_int() => {
                [UnOp::Neg, UnOp::Abs, UnOp::Sign, UnOp::BitNot].map(|o| (o, true)).to_vec()
            }
            false => [UnOp::Sign, UnOp::BitNot].map(|o| (o, true)).to_vec(),
        };
        for (op, exact) in unary {
            let to = if matches!(op, UnOp::IsNan | UnOp::IsInf) { T::Bool } else { ty };
            t.row(format!("{op:?} of {ty}"), to, exact, |at| Expr::un(op, load(x, at)));
        }
        for to in FLOATS.iter().chain(INTEGERS).copied().chain([T::Bool]).filter(|to| *to != ty) {
            t.row(format!("cast of {ty} to {to}"), to, true, |at| Expr::Cast(to, Box::new(load(x, at))));
        }
        if ty == T::F32 {
            for to in STORED {
                t.row(format!("store of {ty} as {to}"), *to, true, |at| load(x, at));
            }
        }
        out.push(t);
        // All pairs; integers are not divided by zero.
        let pairs = |zero: bool| -> (Vec<Scalar>, Vec<Scalar>) {
            v.iter()
                .flat_map(|a| v.iter().map(move |b| (*a, *b)))
                .filter(|(_, b)| zero || b.bits != 0)
                .unzip()
        };
        let (a, b) = pairs(ty.is_float());
        let mut t = Table::new(a.len());
        let (a, b) = (t.input(ty, &a), t.input(ty, &b));
        let bits = [BinOp::And, BinOp::Or, BinOp::Xor];
        for op in BINARY.iter().chain(if ty.is_float() { &[][..] } else { &bits }).copied() {
            let to = if op.is_comparison() { T::Bool } else { ty };
            // Which of two zeros is the smaller one is not said.
            t.row(format!("{op:?} of {ty}"), to, !matches!(op, BinOp::Min | BinOp::Max), |at| {
                Expr::bin(op, load(a, at), load(b, at))
            });
        }
        if ty.is_float() {
            t.row(format!("Pow of {ty}"), ty, false, |at| Expr::bin(BinOp::Pow, load(a, at), load(b, at)));
            t.row(format!("Atan2 of {ty}"), ty, false, |at| {
                Expr::bin(BinOp::Atan2, load(a, at), load(b, at))
            });
        }
        out.push(t);
    }
    // Every code of the small floats is read.
    for ty in STORED.iter().copied() {
        let n = 1usize << ty.bits();
        let mut t = Table::new(n);
        let v: Vec<Scalar> = (0..n as u64).map(|bits| Scalar { ty, bits }).collect();
        let x = t.input(ty, &v);
        t.row(format!("load of {ty}"), T::F32, true, |at| load(x, at));
        out.push(t);
    }
    out
}

/// The differences.
pub fn differences(t: &Table, want: &Outcome, got: &Outcome) -> Vec<String> {
    let mut wrong = vec![];
    for (k, (name, exact)) in t.names.iter().enumerate() {
        let ty = t.m.bufs[t.m.outputs[k]].ty;
        let (xs, ys) = (values(ty, &want.outputs[k]), values(ty, &got.outputs[k]));
        let bad: Vec<usize> = (0..t.n).filter(|i| !same(xs[*i], ys[*i], *exact, ty)).collect();
        if let Some(i) = bad.first() {
            let at: Vec<f64> =
                t.m.inputs.iter().zip(&t.data).map(|(b, d)| values(t.m.bufs[*b].ty, d)[*i]).collect();
            wrong.push(format!(
                "{name}: {} of {} differ; of {at:?} it is {:?}, expected {:?}",
                bad.len(),
                t.n,
                ys[*i],
                xs[*i]
            ));
        }
    }
    wrong
}

fn same(want: f64, got: f64, exact: bool, ty: T) -> bool {
    if want.is_nan() || got.is_nan() {
        return want.is_nan() == got.is_nan();
    }
    if exact {
        return want.to_bits() == got.to_bits();
    }
    // Four units in the last place of f32; subnormals may be lost.
    let (relative, absolute) = if ty == T::F64 { (1e-13, 1e-320) } else { (5e-7, 1e-43) };
    want == got || (want - got).abs() <= relative * want.abs() + absolute
}
