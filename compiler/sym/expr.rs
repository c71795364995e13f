//! `Dim`: hash-consed canonical expressions, their views and structural operations.

use super::memo::{self, Op};
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{LazyLock, Mutex, PoisonError};

/// A symbol: index into a [`super::SymTable`].
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Sym(pub u32);

/// A canonical integer expression. Copying is free, and structural equality is pointer equality.
#[derive(Copy, Clone)]
pub struct Dim(&'static Interned);

/// A node with what is computed once from its parts: its structural hash, and the size and depth of the
/// expression as a tree.
struct Interned {
    hash: u64,
    size: u32,
    depth: u32,
    node: Node,
}

/// Largest expression, counted in atoms of the expression as a tree, and its deepest nesting. Anything larger
/// is [`View::Overflow`]: shared parts could otherwise double the text (and every walk) with each operation.
pub(super) const MAX_SIZE: u32 = 1 << 14;
pub(super) const MAX_DEPTH: u32 = 96;

/// Coefficient times a sorted product of atoms.
pub type Term = (i64, Vec<Atom>);

/// A factor of a polynomial's products.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Atom {
    /// A symbol.
    Sym(Sym),
    /// Quotient rounded towards minus infinity.
    FloorDiv(Dim, Dim),
    /// Remainder with the divisor's sign.
    Mod(Dim, Dim),
    /// Smallest of at least two.
    Min(Vec<Dim>),
    /// Largest of at least two.
    Max(Vec<Dim>),
}

#[derive(PartialEq, Eq, Hash, Debug)]
pub(super) enum Node {
    Poly { terms: Vec<Term>, constant: i64 },
    Overflow,
}

/// A view of the canonical form.
#[derive(Clone, Copy, Debug)]
pub enum View {
    /// A number.
    Const(i64),
    /// Terms, sorted, at least one, plus a constant.
    Sum {
        /// The terms.
        terms: &'static [Term],
        /// The constant.
        constant: i64,
    },
    /// Poison: a number that does not fit an i64, a division by zero, or an expression beyond the limits of
    /// size or depth.
    Overflow,
}

impl Node {
    /// Size and depth of the tree.
    fn extent(&self) -> (u32, u32) {
        let Node::Poly { terms, .. } = self else { return (1, 0) };
        let join = |(s, d): (u32, u32), e: &Dim| (e.0.size.saturating_add(s), d.max(e.0.depth + 1));
        terms.iter().flat_map(|t| &t.1).fold((1, 0), |w, a| {
            let w = (w.0.saturating_add(1), w.1);
            match a {
                Atom::Sym(_) => w,
                Atom::FloorDiv(x, y) | Atom::Mod(x, y) => join(join(w, x), y),
                Atom::Min(v) | Atom::Max(v) => v.iter().fold(w, join),
            }
        })
    }
}

impl Hash for Interned {
    fn hash<H: Hasher>(&self, h: &mut H) {
        h.write_u64(self.hash);
    }
}

impl PartialEq for Interned {
    fn eq(&self, o: &Self) -> bool {
        self.hash == o.hash && self.node == o.node
    }
}
impl Eq for Interned {}

/// A table of nodes, whose hashes are precomputed and well mixed.
type Shard = Mutex<HashSet<&'static Interned, BuildHasherDefault<Known>>>;
/// Sharded by bits of the hash, so that threads rarely contend. The shard index uses neither the top bits of
/// the hash, which are hashbrown's tags within a table, nor the low bits, which select the bucket.
static INTERNER: LazyLock<[Shard; 64]> = LazyLock::new(|| std::array::from_fn(|_| Shard::default()));

/// Passes on a hash that was computed before.
#[derive(Default)]
struct Known(u64);

impl Hasher for Known {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The structural hash of a node: multiply and rotate, a word at a time. The same in every process.
#[derive(Default)]
struct Structural(u64);

impl Structural {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Structural {
    fn finish(&self) -> u64 {
        // splitmix64: every bit of the sum reaches every bit of the hash.
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.add(u64::from(*b)));
    }
    fn write_u32(&mut self, v: u32) {
        self.add(u64::from(v));
    }
    fn write_u64(&mut self, v: u64) {
        self.add(v);
    }
    fn write_usize(&mut self, v: usize) {
        self.add(v as u64);
    }
    fn write_i64(&mut self, v: i64) {
        self.add(v as u64);
    }
    fn write_isize(&mut self, v: isize) {
        self.add(v as u64);
    }
}

impl Dim {
    pub(super) fn intern(node: Node) -> Dim {
        let (size, depth) = node.extent();
        if size > MAX_SIZE || depth > MAX_DEPTH {
            return Dim::overflow();
        }
        let mut h = Structural::default();
        node.hash(&mut h);
        let node = Interned { hash: h.finish(), size, depth, node };
        let shard = &INTERNER[(node.hash >> 40) as usize % INTERNER.len()];
        let mut set = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = set.get(&node) {
            return Dim(n);
        }
        let n: &'static Interned = Box::leak(Box::new(node));
        set.insert(n);
        Dim(n)
    }
    /// A number.
    pub fn constant(v: i64) -> Dim {
        static SMALL: LazyLock<Vec<Dim>> = LazyLock::new(|| {
            (-64..1025).map(|v| Dim::intern(Node::Poly { terms: vec![], constant: v })).collect()
        });
        match v.checked_add(64).and_then(|i| usize::try_from(i).ok()).and_then(|i| SMALL.get(i)) {
            Some(d) => *d,
            None => Dim::intern(Node::Poly { terms: vec![], constant: v }),
        }
    }
    /// A symbol.
    pub fn sym(s: Sym) -> Dim {
        Dim::atom(Atom::Sym(s))
    }
    /// An atom.
    pub fn atom(a: Atom) -> Dim {
        Dim::intern(Node::Poly { terms: vec![(1, vec![a])], constant: 0 })
    }
    pub(super) fn overflow() -> Dim {
        static OVERFLOW: LazyLock<Dim> = LazyLock::new(|| Dim::intern(Node::Overflow));
        *OVERFLOW
    }
    /// Atoms of the expression as a tree.
    pub fn size(self) -> u32 {
        self.0.size
    }
    /// A hash that is the same for equal expressions in every process.
    pub(super) fn structural_hash(self) -> u64 {
        self.0.hash
    }
    /// The canonical form.
    pub fn view(self) -> View {
        match &self.0.node {
            Node::Overflow => View::Overflow,
            Node::Poly { terms, constant } if terms.is_empty() => View::Const(*constant),
            Node::Poly { terms, constant } => View::Sum { terms, constant: *constant },
        }
    }
    /// The number, if it is one.
    pub fn as_const(self) -> Option<i64> {
        match self.view() {
            View::Const(c) => Some(c),
            _ => None,
        }
    }
    /// The symbol, if it is just one.
    pub fn as_sym(self) -> Option<Sym> {
        match self.view() {
            View::Sum { terms: [(1, atoms)], constant: 0 } => match atoms.as_slice() {
                [Atom::Sym(s)] => Some(*s),
                _ => None,
            },
            _ => None,
        }
    }
    /// True for poison.
    pub fn is_overflow(self) -> bool {
        matches!(self.view(), View::Overflow)
    }
    /// The sum of the magnitudes of all coefficients and the constant, rounded: those of a sum or product of
    /// dims are at most the sum or product of theirs. Infinite for poison.
    pub fn magnitude(self) -> f64 {
        match self.view() {
            View::Overflow => f64::INFINITY,
            View::Const(c) => c.unsigned_abs() as f64,
            View::Sum { terms, constant } => {
                terms.iter().map(|t| t.0.unsigned_abs() as f64).sum::<f64>() + constant.unsigned_abs() as f64
            }
        }
    }
    /// The product of all items.
    pub fn product(it: impl IntoIterator<Item = Dim>) -> Dim {
        it.into_iter().fold(Dim::constant(1), |a, b| a * b)
    }
    /// The sum of all items.
    pub fn sum(it: impl IntoIterator<Item = Dim>) -> Dim {
        it.into_iter().fold(Dim::constant(0), |a, b| a + b)
    }
    /// The expression without its constant term, and the constant term.
    pub fn split_const(self) -> (Dim, i64) {
        match self.view() {
            View::Sum { constant: 0, .. } => (self, 0),
            View::Sum { terms, constant } => (
                memo::dim(Op::SplitConst, self, self, || {
                    Dim::intern(Node::Poly { terms: terms.to_vec(), constant: 0 })
                }),
                constant,
            ),
            View::Const(c) => (Dim::constant(0), c),
            View::Overflow => (self, 0),
        }
    }
    fn each_sym(self, f: &mut dyn FnMut(Sym)) {
        if let View::Sum { terms, .. } = self.view() {
            for a in terms.iter().flat_map(|(_, p)| p) {
                match a {
                    Atom::Sym(s) => f(*s),
                    Atom::FloorDiv(x, y) | Atom::Mod(x, y) => {
                        x.each_sym(f);
                        y.each_sym(f);
                    }
                    Atom::Min(v) | Atom::Max(v) => v.iter().for_each(|d| d.each_sym(f)),
                }
            }
        }
    }
    /// All symbols in it.
    pub fn syms(self) -> BTreeSet<Sym> {
        let mut out = BTreeSet::new();
        self.each_sym(&mut |s| {
            out.insert(s);
        });
        out
    }
    /// Calls `f` with the operands of each quotient and remainder in it, outer ones first.
    pub fn divisions(self, f: &mut dyn FnMut(Dim, Dim)) {
        let View::Sum { terms, .. } = self.view() else { return };
        for a in terms.iter().flat_map(|t| &t.1) {
            match a {
                Atom::Sym(_) => {}
                Atom::FloorDiv(x, y) | Atom::Mod(x, y) => {
                    f(*x, *y);
                    x.divisions(f);
                    y.divisions(f);
                }
                Atom::Min(v) | Atom::Max(v) => v.iter().for_each(|d| d.divisions(f)),
            }
        }
    }
    /// True if the symbol is in it.
    pub fn contains(self, s: Sym) -> bool {
        let View::Sum { terms, .. } = self.view() else { return false };
        terms.iter().flat_map(|(_, p)| p).any(|a| matches!(a, Atom::Sym(t) if *t == s) || a.hides(s))
    }
    /// Replaces symbols; `None` keeps one.
    pub fn subst(self, f: &mut dyn FnMut(Sym) -> Option<Dim>) -> Dim {
        let View::Sum { terms, constant } = self.view() else { return self };
        // Terms in which nothing is replaced stay as they are; numbers are folded into the coefficient.
        let mut plain: Vec<Term> = Vec::with_capacity(terms.len());
        let (mut sum, mut changed) = (Dim::constant(0), false);
        for (c, atoms) in terms {
            let (mut coefficient, mut left, mut product) = (*c, Vec::with_capacity(atoms.len()), None::<Dim>);
            for a in atoms {
                match a.subst(f).map(|d| (d, d.as_const())) {
                    None => left.push(a.clone()),
                    Some((_, Some(k))) => match coefficient.checked_mul(k) {
                        Some(k) => coefficient = k,
                        None => return Dim::overflow(),
                    },
                    Some((d, None)) => product = Some(product.map_or(d, |p| p * d)),
                }
            }
            changed |= left.len() != atoms.len();
            match product {
                None => plain.push((coefficient, left)),
                Some(p) => sum = sum + Dim::from_terms(vec![(coefficient, left)], 0) * p,
            }
        }
        if changed { Dim::from_terms(plain, constant) + sum } else { self }
    }
    /// The value under an assignment; `None` if a symbol has none, on overflow, or dividing by zero.
    pub fn eval(self, f: &dyn Fn(Sym) -> Option<i64>) -> Option<i64> {
        match self.view() {
            View::Const(c) => Some(c),
            View::Overflow => None,
            View::Sum { terms, constant } => terms.iter().try_fold(constant, |sum, (c, atoms)| {
                let p = atoms.iter().try_fold(*c, |p, a| p.checked_mul(a.eval(f)?))?;
                sum.checked_add(p)
            }),
        }
    }
    /// `(a, b)` with `self = a * s + b`, where neither contains `s`; `None` if it is not linear in `s`.
    pub fn linear_in(self, s: Sym) -> Option<(Dim, Dim)> {
        let View::Sum { terms, constant } = self.view() else { return Some((Dim::constant(0), self)) };
        memo::pair(Op::Linear(s), self, self, || Dim::linear_terms(terms, constant, s))
    }
    fn linear_terms(terms: &[Term], constant: i64, s: Sym) -> Option<(Dim, Dim)> {
        let (mut coeff, mut rest) = (vec![], vec![]);
        for (c, atoms) in terms {
            let n = atoms.iter().filter(|a| **a == Atom::Sym(s)).count();
            if atoms.iter().any(|a| a.hides(s)) || n > 1 {
                return None;
            }
            if n == 1 {
                coeff.push((*c, atoms.iter().filter(|a| **a != Atom::Sym(s)).cloned().collect()));
            } else {
                rest.push((*c, atoms.clone()));
            }
        }
        Some((Dim::from_terms(coeff, 0), Dim::from_terms(rest, constant)))
    }
}

impl Atom {
    /// True if the symbol occurs inside this atom's operands.
    fn hides(&self, s: Sym) -> bool {
        match self {
            Atom::Sym(_) => false,
            Atom::FloorDiv(a, b) | Atom::Mod(a, b) => a.contains(s) || b.contains(s),
            Atom::Min(v) | Atom::Max(v) => v.iter().any(|d| d.contains(s)),
        }
    }
    /// The atom with symbols inside its operands replaced; `None` if nothing changes.
    fn subst(&self, f: &mut dyn FnMut(Sym) -> Option<Dim>) -> Option<Dim> {
        let two = |a: Dim, b: Dim, f: &mut dyn FnMut(Sym) -> Option<Dim>| {
            let (x, y) = (a.subst(f), b.subst(f));
            (x != a || y != b).then_some((x, y))
        };
        let many = |v: &[Dim], f: &mut dyn FnMut(Sym) -> Option<Dim>| {
            let new: Vec<Dim> = v.iter().map(|d| d.subst(f)).collect();
            (new != v).then_some(new)
        };
        match self {
            Atom::Sym(s) => f(*s),
            Atom::FloorDiv(a, b) => two(*a, *b, f).map(|(a, b)| a.floor_div(b)),
            Atom::Mod(a, b) => two(*a, *b, f).map(|(a, b)| a.modulo(b)),
            Atom::Min(v) => many(v, f)?.into_iter().reduce(|a, b| a.min(b)),
            Atom::Max(v) => many(v, f)?.into_iter().reduce(|a, b| a.max(b)),
        }
    }
    fn eval(&self, f: &dyn Fn(Sym) -> Option<i64>) -> Option<i64> {
        match self {
            Atom::Sym(s) => f(*s),
            Atom::FloorDiv(a, b) => floor_div_i64(a.eval(f)?, b.eval(f)?),
            Atom::Mod(a, b) => floor_mod_i64(a.eval(f)?, b.eval(f)?),
            Atom::Min(v) => v.iter().map(|d| d.eval(f)).collect::<Option<Vec<_>>>()?.into_iter().min(),
            Atom::Max(v) => v.iter().map(|d| d.eval(f)).collect::<Option<Vec<_>>>()?.into_iter().max(),
        }
    }
}

/// Quotient rounded towards minus infinity.
pub(super) fn floor_div_i64(a: i64, b: i64) -> Option<i64> {
    let q = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
}

/// Remainder with the divisor's sign.
pub(super) fn floor_mod_i64(a: i64, b: i64) -> Option<i64> {
    if b == -1 {
        // i64::MIN % -1 overflows in hardware, but is 0.
        return Some(0);
    }
    let r = a.checked_rem(b)?;
    Some(if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
}

impl PartialEq for Dim {
    fn eq(&self, o: &Dim) -> bool {
        std::ptr::eq(self.0, o.0)
    }
}
impl Eq for Dim {}
impl Hash for Dim {
    fn hash<H: Hasher>(&self, h: &mut H) {
        h.write_u64(self.0.hash);
    }
}
impl PartialOrd for Dim {
    fn partial_cmp(&self, o: &Dim) -> Option<Ordering> {
        Some(self.cmp(o))
    }
}
impl Ord for Dim {
    fn cmp(&self, o: &Dim) -> Ordering {
        if self == o {
            return Ordering::Equal;
        }
        match (&self.0.node, &o.0.node) {
            (Node::Overflow, _) => Ordering::Greater,
            (_, Node::Overflow) => Ordering::Less,
            (Node::Poly { terms: a, constant: c }, Node::Poly { terms: b, constant: d }) => {
                a.cmp(b).then(c.cmp(d))
            }
        }
    }
}
impl std::fmt::Debug for Dim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&super::text::display_with(*self, &|s| format!("s{}", s.0)))
    }
}
impl Default for Dim {
    fn default() -> Self {
        Dim::constant(0)
    }
}
impl From<Sym> for Dim {
    fn from(s: Sym) -> Dim {
        Dim::sym(s)
    }
}
macro_rules! from_int {
    ($($t:ty),*) => {$(impl From<$t> for Dim {
        fn from(v: $t) -> Dim { i64::try_from(v).map_or_else(|_| Dim::overflow(), Dim::constant) }
    })*};
}
from_int!(i32, i64, i128, u32, u64, usize);
