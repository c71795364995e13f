//! Dot products of bytes where the machine has no instruction for them: products of 16 bits, whose pairs are added
//! to the sum (SMULL, SADALP).
//!
//! Of each group of four bytes the two factors have the first two in the lower half of a register, and the last two
//! in the upper half (TBL): a product of the lower halves then has the two products of a lane side by side, as one
//! of the upper halves has the other two. Both are exact, and so is what adds their pairs to sums of 32 bits. A
//! vector is rearranged once for all products of a block, so that this takes four instructions for sixteen products,
//! which are as many as four of floats make. Panels are those of levels that have dot products.

use crate::codegen::math::Table;
use crate::codegen::tile::ir::{Block, Bytes, Class, Form, Func, Line, Mem, Node, Op, Value};
use crate::codegen::{Map, Set};

/// Where the bytes of a rearranged vector come from.
static PARTS: Table = bytes([0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]);
/// The same of a group in the first lane that stands for all.
static PARTS_OF_FIRST: Table = bytes([0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3]);
/// Dot products whose products are made before their sums: cores that wait find something to do.
const ABREAST: usize = 2;

const fn bytes(b: [u8; 16]) -> Table {
    let mut t = [0; 16];
    let mut i = 0;
    while i < 16 {
        t[i / 4] |= (b[i] as u32) << (8 * (i % 4));
        i += 1;
    }
    t
}

/// Puts the dot products of bytes of a function together.
pub(super) fn products(f: &mut Func) {
    let is_one = |n: &Node| matches!(n.op, Op::Dot(_));
    if !f.blocks.iter().flat_map(|b| &b.nodes).any(is_one) {
        return;
    }
    let firsts = elements(&f.blocks);
    let mut table = |t: &'static Table| {
        let def = fresh(&mut f.classes);
        let line = Line::default();
        let node = Node { op: Op::Table(t), args: vec![], mem: None, literal: None, def: Some(def), line };
        // The first instruction receives the arguments.
        f.blocks[0].nodes.insert(1, node);
        def
    };
    let tables = [table(&PARTS), table(&PARTS_OF_FIRST)];
    for b in &mut f.blocks {
        let nodes = std::mem::take(&mut b.nodes);
        let mut r = Rewrite {
            tables,
            firsts: &firsts,
            classes: &mut f.classes,
            parts: Map::default(),
            waiting: vec![],
            out: vec![],
        };
        nodes.into_iter().for_each(|n| r.node(n));
        b.nodes = r.out;
    }
}

fn fresh(classes: &mut Vec<Class>) -> Value {
    classes.push(Class::Vector);
    Value(classes.len() as u32 - 1)
}

/// Groups of memory in all lanes that nothing but dot products reads: one lane is enough.
fn elements(blocks: &[Block]) -> Set<Value> {
    let nodes = || blocks.iter().flat_map(|b| &b.nodes);
    let whole = |n: &&Node| n.op == Op::Broadcast(Form::B32) && n.args.is_empty();
    let mut found: Set<Value> = nodes().filter(whole).filter_map(|n| n.def).collect();
    for n in nodes() {
        let read = if let Op::Dot(_) = n.op { &n.args[..1] } else { &n.args[..] };
        read.iter().for_each(|v| {
            found.remove(v);
        });
    }
    blocks.iter().flat_map(|b| &b.jump_args).for_each(|v| {
        found.remove(v);
    });
    found
}

/// A dot product whose sum has not been made: the sum before, the products, the sum, signs, line.
type Waiting = (Value, [Value; 2], Value, Bytes, Line);

/// A block that is being rewritten.
struct Rewrite<'a> {
    tables: [Value; 2],
    firsts: &'a Set<Value>,
    classes: &'a mut Vec<Class>,
    /// Vectors that have been rearranged.
    parts: Map<Value, Value>,
    waiting: Vec<Waiting>,
    out: Vec<Node>,
}

impl Rewrite<'_> {
    fn push(&mut self, op: Op, args: Vec<Value>, line: Line) -> Value {
        let def = fresh(self.classes);
        self.out.push(Node { op, args, mem: None, literal: None, def: Some(def), line });
        def
    }
    fn node(&mut self, mut n: Node) {
        let reads = |v: &Value| -> bool {
            let of = |m: &Mem| m.base == *v || m.index.is_some_and(|i| i.0 == *v);
            n.args.contains(v) || n.mem.as_ref().is_some_and(of)
        };
        let leaves = matches!(n.op, Op::Jump | Op::BranchLess(_) | Op::Ret | Op::RetAny);
        if leaves || self.waiting.iter().any(|w| reads(&w.2)) {
            self.sums();
        }
        match (n.op, n.args.as_slice(), n.def) {
            (Op::Dot(bytes), &[c, x, y], Some(def)) => {
                if self.waiting.len() == ABREAST {
                    self.sums();
                }
                let args = vec![self.parts(x, n.line), self.parts(y, n.line)];
                let products = [false, true]
                    .map(|upper| self.push(Op::MulBytes { bytes, upper }, args.clone(), n.line));
                self.waiting.push((c, products, def, bytes, n.line));
            }
            _ => {
                if n.def.is_some_and(|d| self.firsts.contains(&d)) {
                    n.op = Op::LoadFirst(Form::B32, 1);
                }
                self.out.push(n);
            }
        }
    }
    /// A factor with its halves apart.
    fn parts(&mut self, v: Value, line: Line) -> Value {
        if let Some(p) = self.parts.get(&v) {
            return *p;
        }
        let table = self.tables[usize::from(self.firsts.contains(&v))];
        let p = self.push(Op::BytesFrom, vec![v, table], line);
        self.parts.insert(v, p);
        p
    }
    /// The sums of what waits, one product of each after the other.
    fn sums(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let mut first = vec![];
        for (c, [low, _], _, bytes, line) in &waiting {
            first.push(self.push(Op::AddPairs(*bytes), vec![*c, *low], *line));
        }
        for ((_, [_, high], def, bytes, line), sum) in waiting.into_iter().zip(first) {
            let args = vec![sum, high];
            self.out.push(Node { op: Op::AddPairs(bytes), args, mem: None, literal: None, def: Some(def), line });
        }
    }
}
