//! Dot products of eight bytes where the machine multiplies no matrices: two dot products of quads each.
//!
//! Panels of eights are those of levels that do ([`Func::in_quads`]). Two vectors of them, of four columns,
//! become one of the first quads and one of the second quads of these columns (UZP1, UZP2), once for all
//! products of a block. Elements of rows are loaded as two quads, so that four neighbours are lanes of one
//! register.

use super::elements;
use crate::codegen::tile::ir::{Block, Class, Factors, Form, Func, Line, Mem, Node, Op, Value};
use crate::codegen::tile::isa::node;
use crate::codegen::{Map, Set};

/// Two vectors of quads: the first ones of all lanes' eights, and the second ones.
type Quads = [Value; 2];

/// Bytes of a quad.
const QUAD: i32 = 4;

/// Makes dot products of quads of those of eights in a function.
pub(super) fn products(f: &mut Func) {
    let own = elements(&f.blocks, Form::B64, &|n, i| i == 1 && is_product(n));
    let mut own: Vec<Value> = own.into_iter().collect();
    own.sort_unstable();
    let classes = &mut f.classes;
    let loaded =
        own.into_iter().map(|e| (e, [(); 2].map(|()| Value::fresh(classes, Class::Vector)))).collect();
    for b in &mut f.blocks {
        Rewrite { loaded: &loaded, classes: &mut f.classes, turned: Map::default(), out: vec![] }.block(b);
    }
}

fn is_product(n: &Node) -> bool {
    matches!(n.op, Op::Dot8 { of: Factors::Bytes(_), .. })
}

fn is_load(n: &Node) -> bool {
    matches!(n.op, Op::Load(_)) && n.args.is_empty()
}

/// How many instructions the products of a row are, from the first one on, with what they load. No sum is in
/// two.
fn row(nodes: &[Node]) -> usize {
    let element = |n: &Node| n.args.get(1).copied().filter(|_| is_product(n));
    let own = element(&nodes[0]);
    let mut sums: Set<Value> = Set::default();
    let mut together = |n: &Node| {
        let other = n.args.first().is_some_and(|c| !sums.contains(c));
        sums.extend(n.def.filter(|_| is_product(n)));
        is_load(n) || matches!(n.op, Op::Prefetch { .. }) || element(n) == own && other
    };
    let all = nodes.iter().take_while(|n| together(n)).count();
    nodes[..all].iter().rposition(is_product).map_or(1, |last| last + 1)
}

/// A block that is being rewritten.
struct Rewrite<'a> {
    /// Elements of rows that are loaded as quads.
    loaded: &'a Map<Value, Quads>,
    classes: &'a mut Vec<Class>,
    /// Pairs of vectors of eights that have been taken apart.
    turned: Map<[Value; 2], Quads>,
    out: Vec<Node>,
}

impl Rewrite<'_> {
    fn block(mut self, b: &mut Block) {
        let nodes = std::mem::take(&mut b.nodes);
        let mut i = 0;
        while let Some(n) = nodes.get(i) {
            let len = if is_product(n) { row(&nodes[i..]) } else { 1 };
            if is_product(n) {
                self.row(&nodes[i..i + len])
            } else {
                self.node(n)
            }
            i += len;
        }
        b.nodes = self.out;
    }
    /// The products of a row. All columns are loaded before the first is taken apart, and all sums have their
    /// first quads before one has its second: cores that wait for results wait once.
    fn row(&mut self, row: &[Node]) {
        self.out.extend(row.iter().filter(|n| !is_product(n)).cloned());
        let mut second = vec![];
        for n in row {
            let (Op::Dot8 { of: Factors::Bytes(bytes), .. }, &[sum, element, a, b], Some(def)) =
                (n.op, n.args.as_slice(), n.def)
            else {
                continue;
            };
            let loaded = self.loaded.get(&element).copied();
            let rows = loaded.unwrap_or_else(|| self.quads([element; 2], n.line));
            let columns = self.quads([a, b], n.line);
            let between = Value::fresh(self.classes, Class::Vector);
            second.push((Op::Dot(bytes), vec![between, rows[1], columns[1]], def, n.line));
            self.push(Op::Dot(bytes), vec![sum, rows[0], columns[0]], between, n.line);
        }
        for (op, args, def, line) in second {
            self.push(op, args, def, line);
        }
    }
    fn node(&mut self, n: &Node) {
        match (n.op, n.args.as_slice(), n.def, n.mem) {
            (Op::Broadcast(Form::B64), [], Some(def), Some(m)) if let Some(quads) = self.loaded.get(&def) => {
                for (quad, disp) in quads.iter().copied().zip([0, QUAD]) {
                    let mem = Some(Mem { disp: m.disp.wrapping_add(disp), ..m });
                    self.out.push(Node { op: Op::Broadcast(Form::B32), def: Some(quad), mem, ..n.clone() });
                }
            }
            _ => self.out.push(n.clone()),
        }
    }
    /// The quads of two vectors of eights.
    fn quads(&mut self, of: [Value; 2], line: Line) -> Quads {
        if let Some(q) = self.turned.get(&of) {
            return *q;
        }
        let q = [false, true].map(|odd| {
            let def = Value::fresh(self.classes, Class::Vector);
            self.push(Op::Unzip { odd }, of.to_vec(), def, line);
            def
        });
        self.turned.insert(of, q);
        q
    }
    fn push(&mut self, op: Op, args: Vec<Value>, def: Value, line: Line) {
        self.out.push(node(op, args, Some(def), line));
    }
}
