//! The code that the interpreter executes: trees of statements and expressions with numbered slots for
//! symbols, registers and accumulators.

use super::*;

/// An index expression with numbered symbols.
pub(super) enum Ix {
    Const(i64),
    Sym(usize),
    /// `c + sum(k * sym)`.
    Affine(i64, Box<[(i64, usize)]>),
    Poly(i64, Box<[(i64, Box<[Factor]>)]>),
    Overflow,
}

pub(super) enum Factor {
    Sym(usize),
    Div(Ix, Ix),
    Mod(Ix, Ix),
    Min(Box<[Ix]>),
    Max(Box<[Ix]>),
}

impl Ix {
    /// `None` on overflow and division by zero.
    #[inline]
    pub(super) fn eval(&self, vars: &[i64]) -> Option<i64> {
        match self {
            Ix::Const(c) => Some(*c),
            Ix::Sym(s) => vars.get(*s).copied(),
            Ix::Affine(c, terms) => {
                let mut sum = *c;
                for (k, s) in terms {
                    sum = sum.checked_add(k.checked_mul(*vars.get(*s)?)?)?;
                }
                Some(sum)
            }
            Ix::Poly(c, terms) => {
                let mut sum = *c;
                for (k, factors) in terms {
                    let mut p = *k;
                    for f in factors {
                        p = p.checked_mul(f.eval(vars)?)?;
                    }
                    sum = sum.checked_add(p)?;
                }
                Some(sum)
            }
            Ix::Overflow => None,
        }
    }
}

impl Factor {
    pub(super) fn eval(&self, vars: &[i64]) -> Option<i64> {
        match self {
            Factor::Sym(s) => vars.get(*s).copied(),
            Factor::Div(a, b) => {
                let (a, b) = (a.eval(vars)?, b.eval(vars)?);
                let q = a.checked_div(b)?;
                Some(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
            }
            Factor::Mod(a, b) => {
                let (a, b) = (a.eval(vars)?, b.eval(vars)?);
                let r = a.checked_rem(b)?;
                Some(if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
            }
            Factor::Min(v) => v.iter().try_fold(i64::MAX, |m, x| Some(m.min(x.eval(vars)?))),
            Factor::Max(v) => v.iter().try_fold(i64::MIN, |m, x| Some(m.max(x.eval(vars)?))),
        }
    }
}

pub(super) struct Access {
    pub(super) buf: usize,
    pub(super) ty: ElemType,
    /// From one element to the next.
    pub(super) bits: u32,
    pub(super) at: Box<[Ix]>,
}

/// Where an accumulator's value is.
pub(super) enum Cell {
    Fixed(usize),
    /// Plus the current lane in a lane slot.
    Lane(usize, usize),
    At(Box<CellAt>),
}

pub(super) struct CellAt {
    pub(super) base: usize,
    pub(super) lanes: usize,
    /// Extents and subscripts.
    pub(super) at: Vec<(u32, Ix)>,
    pub(super) lane: LaneIx,
}

pub(super) enum LaneIx {
    Slot(usize),
    At(Ix),
}

/// An expression; values are bits as in [`Scalar`].
pub(super) enum Node {
    Const(u64),
    Reg(usize),
    Acc(Cell),
    Horizontal { op: BinOp, ty: ElemType, cell: Cell, lanes: usize },
    Index(Ix),
    Load(Box<Access>),
    Un(UnOp, ElemType, Box<Node>),
    Bin32(BinOp, Box<(Node, Node)>),
    Compare32(BinOp, Box<(Node, Node)>),
    Bin(BinOp, ElemType, Box<(Node, Node)>),
    Fma(bool, Box<(Node, Node, Node)>),
    Dot(DotKind, Box<(Node, Node, Node)>),
    Select(Box<(Node, Node, Node)>),
    Cast(ElemType, ElemType, Box<Node>),
    LoadPair(Box<Access>),
    LoadText(Box<Access>),
    Text(TextOp, Vec<Node>),
    CompareText(BinOp, Box<(Node, Node)>),
    Let(usize, Box<(Node, Node)>),
    With(usize, Ix, Box<(Node, Node)>),
}

pub(super) enum Op {
    /// `lane`: slot and number of lanes of a `vec` loop.
    For {
        var: usize,
        lo: Ix,
        hi: Ix,
        lane: Option<(usize, u32)>,
        body: Vec<Op>,
    },
    Let(usize, Node),
    /// A register of a `vec` loop: first cell, lane slot.
    LetLane(usize, usize, Node),
    /// Accumulators begin. `lane`: slot and number of lanes of the `vec` loop around, where each iteration
    /// has its own.
    Acc {
        base: usize,
        count: usize,
        lane: Option<(usize, usize)>,
        init: Node,
    },
    /// `sweep`: outside `vec` loops all lanes are set, each from its own values.
    Set {
        cell: Cell,
        value: Node,
        sweep: Option<(usize, u32)>,
    },
    Store(Access, Node),
    StorePair(Access, Node),
    StoreText(Access, Node),
    If(Node, Vec<Op>, Vec<Op>),
    While(Node, Vec<Op>),
    With(usize, Node, Ix, Vec<Op>),
    /// `stale`: buffers whose shape depends on the symbol.
    Define {
        sym: usize,
        value: Node,
        lo: Ix,
        hi: Option<Ix>,
        stale: Vec<usize>,
    },
    Check(Node, Status),
    /// A hint.
    Nothing,
    Call(usize),
    Foreign(Foreign),
}
