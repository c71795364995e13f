//! Arithmetic of eight f16. Where a function allows it ([`Func::halves`]), what is computed of f16 only and
//! stored as f16 needs no f32 in between: two vectors of four f32, next to each other in memory, become one
//! of eight f16, and so does whatever they are computed of. Each operation then rounds to f16. A single sum
//! has the same result in either way.

use crate::codegen::tile::ir::Bits::B32;
use crate::codegen::tile::ir::{Bin, Block, Class, Form, Func, Mem, Node, Number, Op, Un, Value};
use crate::codegen::tile::isa::{node, remove_unused, stores};
use crate::codegen::{Map, Set};

/// Bytes of four elements.
const FOUR: i32 = 8;

/// Replaces pairs of vectors.
pub(super) fn pairs(f: &mut Func) {
    let constants: Map<Value, Number> = f.blocks.iter().flat_map(|b| &b.nodes).filter_map(constant).collect();
    let mut changed = false;
    for b in 0..f.blocks.len() {
        let mut eights = Eights::new(&f.blocks[b], &constants, &mut f.classes);
        let pairs = eights.stores();
        if !pairs.is_empty() {
            f.blocks[b].nodes = eights.nodes(pairs);
            changed = true;
        }
    }
    if changed {
        let may_go = |n: &Node| {
            matches!(n.op, Op::Load(_) | Op::Un(..) | Op::Bin(..) | Op::BinHalves(_) | Op::Const(_))
        };
        remove_unused(&mut f.blocks, may_go);
    }
}

fn constant(n: &Node) -> Option<(Value, Number)> {
    match n.op {
        Op::Const(x) => Some((n.def?, x)),
        _ => None,
    }
}

/// A constant of f32 in lanes of f16, if it is one.
fn halved(x: Number) -> Option<Number> {
    let Number::Word(word) = x else { return None };
    let half = half::f16::from_f32(f32::from_bits(word));
    let bits = u32::from(half.to_bits());
    (half.to_f32().to_bits() == word).then_some(Number::Word(bits << 16 | bits))
}

/// Two stores that become one.
struct Pair {
    first: usize,
    second: usize,
    value: Value,
    at: Mem,
}

/// The vectors of a block.
struct Eights<'a> {
    nodes: &'a [Node],
    constants: &'a Map<Value, Number>,
    classes: &'a mut Vec<Class>,
    made: Map<Value, usize>,
    /// What pairs of vectors become.
    known: Map<(Value, Value), Option<Value>>,
    /// Instructions that precede one of the block's.
    added: Map<usize, Vec<Node>>,
}

impl<'a> Eights<'a> {
    fn new(b: &'a Block, constants: &'a Map<Value, Number>, classes: &'a mut Vec<Class>) -> Eights<'a> {
        let made = b.nodes.iter().enumerate().filter_map(|(i, n)| Some((n.def?, i))).collect();
        Eights { nodes: &b.nodes, constants, classes, made, known: Map::default(), added: Map::default() }
    }
    /// Pairs of stores whose values are computed of f16 only.
    fn stores(&mut self) -> Vec<Pair> {
        let all: Vec<usize> = (0..self.nodes.len()).filter(|i| self.is_store(*i)).collect();
        let mut found: Vec<Pair> = vec![];
        let mut taken: Set<usize> = Set::default();
        for i in &all {
            let next = |j: &usize| !taken.contains(j) && self.follows(*i, *j) && self.may_join(*i, *j);
            let Some(j) = all.iter().copied().find(next).filter(|_| !taken.contains(i)) else { continue };
            let values = (self.narrowed(*i), self.narrowed(j));
            if let ((Some(x), Some(y)), Some(at)) = (values, self.nodes[*i].mem)
                && let Some(value) = self.eight(x, y)
            {
                taken.extend([*i, j]);
                found.push(Pair { first: (*i).min(j), second: (*i).max(j), value, at });
            }
        }
        found
    }
    fn is_store(&self, i: usize) -> bool {
        self.nodes[i].op == Op::Store(Form::F16) && self.nodes[i].args.len() == 1
    }
    /// True if the memory of access `j` begins at the end of that of `i`.
    fn follows(&self, i: usize, j: usize) -> bool {
        let (Some(a), Some(b)) = (self.nodes[i].mem, self.nodes[j].mem) else { return false };
        a.base == b.base && a.index == b.index && b.disp.wrapping_sub(a.disp) == FOUR
    }
    /// True if the first of two stores may take the place of the second one: only such stores to the same
    /// base are in between, and loads from other bases.
    fn may_join(&self, i: usize, j: usize) -> bool {
        let base = self.nodes[i].mem.map(|m| m.base);
        self.nodes[i.min(j)..i.max(j)].iter().all(|n| match n.mem {
            Some(m) if stores(n) => Some(m.base) == base && n.op == Op::Store(Form::F16),
            Some(_) => {
                n.op.is_memory() && !matches!(n.op, Op::Load(_) | Op::LoadFirst(..) | Op::Broadcast(_))
            }
            None => true,
        })
    }
    /// What a store narrows to f16.
    fn narrowed(&self, store: usize) -> Option<Value> {
        let n = self.node(*self.nodes[store].args.first()?)?;
        (n.op == Op::Un(Un::Half, B32)).then(|| n.args.first().copied()).flatten()
    }
    fn node(&self, v: Value) -> Option<&'a Node> {
        self.made.get(&v).map(|i| &self.nodes[*i])
    }
    /// Eight f16 in place of two vectors.
    fn eight(&mut self, x: Value, y: Value) -> Option<Value> {
        if let Some(known) = self.known.get(&(x, y)) {
            return *known;
        }
        let made = self.make(x, y);
        self.known.insert((x, y), made);
        made
    }
    fn make(&mut self, x: Value, y: Value) -> Option<Value> {
        if let (Some(a), Some(b)) = (self.constants.get(&x), self.constants.get(&y)) {
            let number = halved(*a).filter(|_| a == b)?;
            return Some(self.add(0, Op::Const(number), vec![], None));
        }
        let (i, j) = (*self.made.get(&x)?, *self.made.get(&y)?);
        let (a, b) = (&self.nodes[i], &self.nodes[j]);
        match (a.op, b.op) {
            (Op::Un(Un::Whole { upper: false }, B32), Op::Un(Un::Whole { upper: true }, B32)) => {
                a.args.first().copied().filter(|v| b.args.first() == Some(v))
            }
            (Op::Load(Form::F16), Op::Load(Form::F16)) if a.args.is_empty() && b.args.is_empty() => {
                let between = &self.nodes[i.min(j)..i.max(j)];
                let both = self.follows(i, j) && !between.iter().any(stores);
                both.then(|| self.add(i.max(j), Op::Load(Form::B32), vec![], a.mem))
            }
            (Op::Bin(op @ (Bin::Add | Bin::Sub | Bin::Least | Bin::Most), B32), Op::Bin(other, B32))
                if op == other
                    && a.mem.is_none()
                    && b.mem.is_none()
                    && a.literal.is_none()
                    && b.literal.is_none() =>
            {
                let pairs = a.args.iter().zip(&b.args);
                let args: Option<Vec<Value>> = pairs.map(|(x, y)| self.eight(*x, *y)).collect();
                Some(self.add(i.max(j), Op::BinHalves(op), args?, None))
            }
            _ => None,
        }
    }
    /// Adds an instruction in front of another one.
    fn add(&mut self, at: usize, op: Op, args: Vec<Value>, mem: Option<Mem>) -> Value {
        let def = Value::fresh(self.classes, Class::Vector);
        let line = self.nodes[at].line;
        self.added.entry(at).or_default().push(Node { mem, ..node(op, args, Some(def), line) });
        def
    }
    /// The instructions with pairs of stores replaced.
    fn nodes(mut self, pairs: Vec<Pair>) -> Vec<Node> {
        let mut gone: Set<usize> = Set::default();
        for p in pairs {
            let line = self.nodes[p.second].line;
            let store = Node { mem: Some(p.at), ..node(Op::Store(Form::B32), vec![p.value], None, line) };
            self.added.entry(p.second).or_default().push(store);
            gone.extend([p.first, p.second]);
        }
        let mut out = vec![];
        for (i, n) in self.nodes.iter().enumerate() {
            out.extend(self.added.remove(&i).unwrap_or_default());
            if !gone.contains(&i) {
                out.push(n.clone());
            }
        }
        out
    }
}
