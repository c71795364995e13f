//! Displacements that differ between the users of a function.
//!
//! Accesses of a block to the same pointer are at a displacement of the form
//! `origin + row * distance + rest`, where users differ in the origin and in the distance. Both are
//! registers, loaded from literals before the innermost loop; a pointer and three multiples of the distance
//! reach most rows:
//!
//! ```text
//! row   0     1      2        3         4        5         6           7         8        9 ..
//!       [p]   [p+s]  [p+2*s]  [p+1*3s]  [p+4*s]  [p+1*5s]  [p+2*3s]    [p5+2*s]  [p+8*s]  [p5+4*s]
//! ```

use super::{Columns, varies};
use crate::codegen::Map;
use crate::codegen::tile::ir::{Class, Func, Line, Literal, Mem, Node, Op, Value};
use crate::codegen::tile::rematerialize::innermost;

/// Rows between two pointers.
const APART: i64 = 5;

/// The most rows: more pointers would need more registers than there are.
const ROWS: i64 = 41;

/// A displacement for each user.
type Column = Vec<i64>;

/// Accesses of a block to the same pointer: their instructions and displacements.
struct Accesses {
    base: Value,
    index: Option<(Value, u8)>,
    all: Vec<(usize, Column)>,
}

/// What displacements consist of, if not of constants.
struct Split {
    origin: Option<Column>,
    distance: Option<Column>,
    /// Row and rest of each access.
    places: Vec<(i64, i32)>,
}

/// Replaces displacements that differ by registers; `None` if they do not have the form.
pub(super) fn pass(users: &[&Func], func: &mut Func, passed: &mut Columns<i64>) -> Option<()> {
    let loops = innermost(&func.blocks);
    let mut loaded: Map<(usize, u32), Value> = Map::default();
    for i in 0..func.blocks.len() {
        let mut splits: Vec<(Accesses, Split)> = vec![];
        for a in accesses(users, i) {
            if a.all.iter().any(|x| varies(&x.1)) {
                let split = split(&a.all)?;
                splits.push((a, split));
            }
        }
        if splits.is_empty() {
            continue;
        }
        let inside = loops.iter().find(|l| (l.0..=l.1).contains(&i));
        let before = match inside {
            Some((head, _)) => Some(func.blocks[*head].preds.iter().copied().find(|p| p < head)?),
            None => None,
        };
        let mut own = Map::default();
        let known = if inside.is_some() { &mut loaded } else { &mut own };
        let mut block = Rewrite { func, passed, before, known, block: i, added: vec![] };
        splits.iter().for_each(|(a, s)| block.accesses(a, s));
        block.finish();
    }
    Some(())
}

/// The accesses of a block, by pointer.
fn accesses(users: &[&Func], block: usize) -> Vec<Accesses> {
    let mut out: Vec<Accesses> = vec![];
    for (k, n) in users[0].blocks[block].nodes.iter().enumerate() {
        let Some(m) = n.mem else { continue };
        let of_user = |f: &&Func| f.blocks[block].nodes[k].mem.map_or(0, |m| i64::from(m.disp));
        let access = (k, users.iter().map(of_user).collect());
        match out.iter_mut().find(|a| (a.base, a.index) == (m.base, m.index)) {
            Some(a) => a.all.push(access),
            None => out.push(Accesses { base: m.base, index: m.index, all: vec![access] }),
        }
    }
    out
}

fn minus(a: &Column, b: &Column) -> Column {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// Splits displacements; `None` if they are not multiples of one distance.
fn split(all: &[(usize, Column)]) -> Option<Split> {
    // Constants need no origin.
    let origin =
        if all.iter().all(|x| varies(&x.1)) { all.iter().map(|x| &x.1).min().cloned() } else { None };
    let offset = |x: &(usize, Column)| origin.as_ref().map_or(x.1.clone(), |o| minus(&x.1, o));
    let offsets: Vec<Column> = all.iter().map(offset).collect();
    let Some(far) = offsets.iter().find(|o| varies(o)) else {
        let places = offsets.iter().map(|o| Some((0, i32::try_from(o[0]).ok()?)));
        return Some(Split { origin, distance: None, places: places.collect::<Option<_>>()? });
    };
    // Rows are recognized by the difference between two users.
    let other = far.iter().position(|x| *x != far[0])?;
    let change = |o: &Column| o[other] - o[0];
    let distance = offsets.iter().filter(|o| change(o) != 0).min_by_key(|o| (change(o).abs(), o[0]))?.clone();
    let place = |o: &Column| {
        let row = change(o) / change(&distance);
        let rest: Column = o.iter().zip(&distance).map(|(o, d)| o - row * d).collect();
        let is_row = (0..ROWS).contains(&row) && !varies(&rest);
        is_row.then_some((row, i32::try_from(rest[0]).ok()?))
    };
    let places = offsets.iter().map(place).collect::<Option<_>>()?;
    Some(Split { origin, distance: Some(distance), places })
}

/// How a pointer reaches a row: the row of the pointer, and the factor of the distance with its scale.
fn reach(row: i64) -> (i64, Option<(i64, u8)>) {
    let scaled = |n: i64| {
        let factor = [1, 3, 5].into_iter().find(|f| [1, 2, 4, 8].iter().any(|scale| f * scale == n))?;
        Some((factor, (n / factor) as u8))
    };
    let near = (0..=row).step_by(APART as usize).find_map(|p| Some((p, scaled(row - p)?)));
    near.map_or((row, None), |(p, scaled)| (p, Some(scaled)))
}

/// Rows at a distance.
struct Rows<'a> {
    /// The address of row 0.
    start: Mem,
    distance: &'a Column,
    /// Pointers to rows 0, 5, 10, .. as far as they exist.
    pointers: Vec<Value>,
}

/// A block whose displacements are replaced.
struct Rewrite<'a> {
    func: &'a mut Func,
    passed: &'a mut Columns<i64>,
    block: usize,
    /// The block before the innermost loop around it.
    before: Option<usize>,
    /// Registers with literals: by that block, if there is one, and the literal.
    known: &'a mut Map<(usize, u32), Value>,
    /// Instructions to add, with the instruction that they precede.
    added: Vec<(usize, Node)>,
}

impl Rewrite<'_> {
    /// Adds an instruction that computes an integer, before the loop if there is one and `early` is true.
    fn add(&mut self, at: usize, early: bool, n: Node) -> Value {
        let v = Value::fresh(&mut self.func.classes, Class::Int);
        let n = Node { def: Some(v), line: self.func.blocks[self.block].nodes[at].line, ..n };
        match self.before.filter(|_| early) {
            Some(before) => {
                let nodes = &mut self.func.blocks[before].nodes;
                nodes.insert(nodes.len() - 1, n);
            }
            None => self.added.push((at, n)),
        }
        v
    }
    /// A register with a literal.
    fn literal(&mut self, at: usize, column: Column) -> Value {
        let k = self.passed.number(column);
        let key = (self.before.unwrap_or(self.block), k);
        if let Some(v) = self.known.get(&key) {
            // Accesses to another pointer may need it earlier.
            if let Some(load) = self.added.iter_mut().find(|a| a.1.def == Some(*v)) {
                load.0 = load.0.min(at);
            }
            return *v;
        }
        let v = self.add(at, true, integer(Op::IntLiteral(k), &[]));
        self.known.insert(key, v);
        v
    }
    /// True if the loop around the block does not define a value.
    fn is_invariant(&self, v: Value) -> bool {
        let Some(before) = self.before else { return false };
        let inside = &self.func.blocks[before + 1..=self.block];
        !inside.iter().any(|b| b.params.contains(&v) || b.nodes.iter().any(|n| n.def == Some(v)))
    }
    /// Replaces the displacements of accesses to a pointer.
    fn accesses(&mut self, a: &Accesses, s: &Split) {
        let Some(first) = a.all.first().map(|x| x.0) else { return };
        let mut start = Mem { index: a.index, ..Mem::at(a.base, 0) };
        if let Some(origin) = &s.origin {
            if s.distance.is_none() && start.index.is_none() {
                start.index = Some((self.literal(first, origin.clone()), 1));
            } else {
                let k = self.passed.number(origin.clone());
                let sum = Node { literal: Some(Literal::Integer(k)), ..integer(Op::Add, &[a.base]) };
                start.base = self.add(first, self.is_invariant(a.base), sum);
            }
        }
        let mut rows = s.distance.as_ref().map(|distance| Rows { start, distance, pointers: vec![] });
        for ((at, _), (row, rest)) in a.all.iter().zip(&s.places) {
            let to = match &mut rows {
                Some(rows) if *row != 0 => self.row(*at, *row, rows),
                _ => start,
            };
            if let Some(m) = &mut self.func.blocks[self.block].nodes[*at].mem {
                *m = Mem { disp: *rest, each: m.each, ..to };
            }
        }
    }
    /// The address of a row.
    fn row(&mut self, at: usize, row: i64, rows: &mut Rows) -> Mem {
        let times = |n: i64| rows.distance.iter().map(|d| d * n).collect::<Column>();
        let (from, scaled) = reach(row);
        if rows.pointers.is_empty() {
            rows.pointers.push(match rows.start.index {
                None => rows.start.base,
                Some(_) => self.add(at, false, Node { mem: Some(rows.start), ..integer(Op::Address, &[]) }),
            });
        }
        while rows.pointers.len() as i64 * APART <= from {
            let step = self.literal(at, times(APART));
            let last = rows.pointers[rows.pointers.len() - 1];
            rows.pointers.push(self.add(at, false, integer(Op::Add, &[last, step])));
        }
        let index = scaled.map(|(factor, scale)| (self.literal(at, times(factor)), scale));
        Mem { index, ..Mem::at(rows.pointers[(from / APART) as usize], 0) }
    }
    /// Adds the instructions.
    fn finish(self) {
        let mut added = self.added;
        added.sort_by_key(|a| a.0);
        let mut added = added.into_iter().peekable();
        let nodes = &mut self.func.blocks[self.block].nodes;
        let mut out = Vec::with_capacity(nodes.len() + added.len());
        for (i, n) in std::mem::take(nodes).into_iter().enumerate() {
            while let Some((_, n)) = added.next_if(|a| a.0 <= i) {
                out.push(n);
            }
            out.push(n);
        }
        *nodes = out;
    }
}

/// An instruction on integers, without its result.
fn integer(op: Op, args: &[Value]) -> Node {
    Node { op, args: args.to_vec(), mem: None, literal: None, def: None, line: Line::default() }
}
