//! Random graphs whose sizes are symbols. What an operator wants of its operands' sizes is made true where
//! that is easy and left to the checks at run time elsewhere; every size that follows from others may turn
//! out 0 or negative.

use crate::exprs::Rng;
use crate::graph::{Graph, Node, Ty, Value};

/// What a size is known to be: equal ones are equal at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Known(i64),
    Named(usize),
}

#[derive(Clone, Debug)]
struct Val {
    name: String,
    ty: Ty,
    dims: Vec<Size>,
    /// Every correct computation gives these very bits, so that comparing and rounding them is sound.
    exact: bool,
    /// Numbers that stay small integers or halves under a few more operations.
    depth: u32,
}

const SYMBOLS: [&str; 3] = ["N", "M", "K"];
/// Sizes that symbols get.
const SIZES: &[i64] = &[0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 16, 17, 24, 31, 33];

struct Gen {
    r: Rng,
    g: Graph,
    values: Vec<Val>,
    fresh: usize,
}

/// A graph with so many calls; the same for the same seed.
pub fn generate(seed: u64, calls: usize) -> Graph {
    let mut g = Gen {
        r: Rng(seed),
        g: Graph { data: seed, ..Graph::default() },
        values: vec![],
        fresh: SYMBOLS.len(),
    };
    for _ in 0..1 + g.r.below(3) {
        let ty = if g.r.chance(80) { Ty::F32 } else { Ty::I64 };
        let rank = g.r.of(&[1, 1, 2, 2, 2, 3, 3, 4]);
        g.input(ty, rank);
    }
    let steps = 1 + g.r.below(8);
    for _ in 0..steps {
        g.step();
    }
    g.finish(calls)
}

impl Gen {
    fn input(&mut self, ty: Ty, rank: usize) -> Val {
        let dims: Vec<Size> = (0..rank)
            .map(|_| {
                if self.r.chance(65) {
                    Size::Named(self.r.below(SYMBOLS.len()))
                } else {
                    Size::Known(self.r.of(&[1, 2, 3, 4, 6, 8]))
                }
            })
            .collect();
        self.input_of(ty, dims)
    }
    fn input_of(&mut self, ty: Ty, dims: Vec<Size>) -> Val {
        let name = format!("x{}", self.g.inputs.len());
        let text = |d: &Size| match d {
            Size::Known(n) => n.to_string(),
            Size::Named(k) => SYMBOLS.get(*k).map_or(format!("u{k}"), |s| (*s).to_owned()),
        };
        self.g.inputs.push(Value { name: name.clone(), ty, dims: dims.iter().map(text).collect() });
        let v = Val { name, ty, dims, exact: true, depth: 0 };
        self.values.push(v.clone());
        v
    }
    fn unknown(&mut self) -> Size {
        self.fresh += 1;
        Size::Named(self.fresh)
    }
    fn constant(&mut self, ty: Ty, dims: Vec<i64>, data: Vec<String>) -> String {
        let name = format!("c{}", self.g.constants.len());
        self.g.constants.push((
            Value { name: name.clone(), ty, dims: dims.iter().map(i64::to_string).collect() },
            data.join(", "),
        ));
        name
    }
    fn ints(&mut self, list: &[i64]) -> String {
        self.constant(Ty::I64, vec![list.len() as i64], list.iter().map(i64::to_string).collect())
    }
    fn int(&mut self, v: i64) -> String {
        self.constant(Ty::I64, vec![], vec![v.to_string()])
    }
    /// Halves.
    fn numbers(&mut self, ty: Ty, dims: Vec<i64>) -> String {
        let n: i64 = dims.iter().product();
        let data = (0..n)
            .map(|_| {
                if ty == Ty::F32 {
                    format!("{:.1}", self.r.between(-4, 4) as f64 / 2.0)
                } else {
                    self.r.between(-3, 3).to_string()
                }
            })
            .collect();
        self.constant(ty, dims, data)
    }
    fn add(
        &mut self,
        op: &'static str,
        attrs: impl Into<String>,
        ins: &[&str],
        outs: Vec<(Ty, Vec<Size>, bool, u32)>,
    ) -> Vec<Val> {
        let mut names = vec![];
        for (ty, dims, exact, depth) in outs {
            let name = format!("v{}", self.g.results.len());
            self.g.results.push(Value {
                name: name.clone(),
                ty,
                dims: dims.iter().map(|_| String::new()).collect(),
            });
            self.values.push(Val { name: name.clone(), ty, dims, exact, depth });
            names.push(name);
        }
        self.g.nodes.push(Node {
            outs: names.clone(),
            op,
            attrs: attrs.into(),
            ins: ins.iter().map(|s| (*s).to_owned()).collect(),
        });
        self.values[self.values.len() - names.len()..].to_vec()
    }
    fn one(
        &mut self,
        op: &'static str,
        attrs: impl Into<String>,
        ins: &[&str],
        ty: Ty,
        dims: Vec<Size>,
        like: (bool, u32),
    ) -> Val {
        self.add(op, attrs, ins, vec![(ty, dims, like.0, like.1)]).remove(0)
    }
    /// A value, mostly one of the last.
    fn pick(&mut self) -> Val {
        let n = self.values.len();
        let k = if self.r.chance(60) { n - 1 - self.r.below(n.min(3)) } else { self.r.below(n) };
        self.values[k].clone()
    }
    fn pick_if(&mut self, f: impl Fn(&Val) -> bool) -> Option<Val> {
        let fit: Vec<Val> = self.values.iter().filter(|v| f(v)).cloned().collect();
        if fit.is_empty() { None } else { Some(fit[self.r.below(fit.len())].clone()) }
    }
    /// int64[1]: a size of a value, maybe changed.
    fn size_of(&mut self, v: &Val, axis: usize) -> Val {
        let s = self.one(
            "Shape",
            format!("start = {axis}, end = {}", axis + 1),
            &[&v.name.clone()],
            Ty::I64,
            vec![Size::Known(1)],
            (true, 0),
        );
        if self.r.chance(35) {
            return s;
        }
        let op = self.r.of(&["Sub", "Sub", "Add", "Div", "Mul", "Min", "Max", "Mod"]);
        let c = if matches!(op, "Div" | "Mod") { self.r.between(1, 4) } else { self.r.between(0, 5) };
        let c = self.ints(&[c]);
        self.one(op, "", &[&s.name, &c], Ty::I64, vec![Size::Known(1)], (true, 0))
    }
    /// The same as a scalar.
    fn scalar_size_of(&mut self, v: &Val, axis: usize) -> Val {
        let s = self.size_of(v, axis);
        self.one("Squeeze", "", &[&s.name], Ty::I64, vec![], (true, 0))
    }
    fn any_axis(&mut self, v: &Val) -> Option<usize> {
        (!v.dims.is_empty()).then(|| self.r.below(v.dims.len()))
    }
    fn step(&mut self) {
        let v = self.pick();
        let like = (v.exact, v.depth);
        match self.r.below(36) {
            0..=2 => self.unary(&v),
            3..=6 => self.binary(&v),
            7 | 8 => self.concat(&v),
            9 | 10 => self.split(&v),
            11..=13 => self.slice(&v),
            14 => self.pad(&v),
            15..=18 => self.reshape(&v),
            19 => {
                let mut p: Vec<usize> = (0..v.dims.len()).collect();
                for i in (1..p.len()).rev() {
                    p.swap(i, self.r.below(i + 1));
                }
                let dims = p.iter().map(|i| v.dims[*i]).collect();
                if !p.is_empty() {
                    self.one(
                        "Transpose",
                        format!("perm = [{}]", p.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
                        &[&v.name],
                        v.ty,
                        dims,
                        like,
                    );
                }
            }
            20 => {
                let axis = self.r.below(v.dims.len() + 1);
                let mut dims = v.dims.clone();
                dims.insert(axis, Size::Known(1));
                let a = self.ints(&[axis as i64]);
                self.one("Unsqueeze", "", &[&v.name, &a], v.ty, dims, like);
            }
            21 | 22 => self.grow(&v),
            23 => self.window(&v),
            24 => self.matmul(&v),
            25 | 26 => self.reduce(&v),
            27 | 28 => self.rows(&v),
            29 | 30 => self.gather(&v),
            31 | 32 => self.make(&v),
            33 => self.select(&v),
            34 => self.branch(&v),
            _ => self.repeat(&v),
        }
    }
    fn unary(&mut self, v: &Val) {
        let (n, d) = (&v.name.clone(), v.dims.clone());
        match v.ty {
            Ty::Bool => drop(self.one("Not", "", &[n], Ty::Bool, d, (v.exact, 0))),
            Ty::I64 => {
                let op = self.r.of(&["Neg", "Abs", "Sign"]);
                self.one(op, "", &[n], Ty::I64, d, (true, v.depth));
            }
            Ty::F32 if self.r.chance(50) => {
                let op = self.r.of(&["Neg", "Abs", "Relu"]);
                self.one(op, "", &[n], Ty::F32, d, (v.exact, v.depth));
            }
            Ty::F32 => {
                let op = self.r.of(&["Sigmoid", "Tanh", "Sin", "Erf", "Softsign", "HardSigmoid"]);
                self.one(op, "", &[n], Ty::F32, d, (false, 0));
            }
        }
    }
    fn binary(&mut self, v: &Val) {
        if v.ty == Ty::Bool {
            return;
        }
        let other = match self.r.below(4) {
            // Anything: sizes are left to the checks.
            0 => self.pick_if(|w| w.ty == v.ty),
            1 => self.pick_if(|w| w.ty == v.ty && w.dims == v.dims),
            _ => None,
        };
        let other = other.unwrap_or_else(|| {
            let dims = match v.dims.last() {
                Some(Size::Known(n)) if self.r.chance(50) => vec![*n],
                _ if self.r.chance(50) => vec![],
                _ => vec![1],
            };
            let name = self.numbers(v.ty, dims.clone());
            Val { name, ty: v.ty, dims: dims.into_iter().map(Size::Known).collect(), exact: true, depth: 0 }
        });
        let rank = v.dims.len().max(other.dims.len());
        let at = |w: &Val, k: usize| {
            (k + w.dims.len())
                .checked_sub(rank)
                .and_then(|k| w.dims.get(k))
                .copied()
                .unwrap_or(Size::Known(1))
        };
        let mut dims = vec![];
        for k in 0..rank {
            let (a, b) = (at(v, k), at(&other, k));
            dims.push(match (a, b) {
                (Size::Known(1), x) | (x, Size::Known(1)) => x,
                _ if a == b => a,
                (Size::Known(_), Size::Known(_)) => return,
                (Size::Known(x), _) | (_, Size::Known(x)) => Size::Known(x),
                _ => self.unknown(),
            });
        }
        let exact = v.exact && other.exact;
        let depth = v.depth + other.depth;
        if exact && self.r.chance(15) {
            let op = self.r.of(&["Less", "GreaterOrEqual", "Equal"]);
            self.one(op, "", &[&v.name, &other.name], Ty::Bool, dims, (true, 0));
            return;
        }
        let mul = depth < 2 || v.ty == Ty::I64;
        let op = if mul {
            self.r.of(&["Add", "Sub", "Mul", "Max", "Min"])
        } else {
            self.r.of(&["Add", "Sub", "Max", "Min"])
        };
        let pair = if self.r.chance(50) {
            [v.name.as_str(), other.name.as_str()]
        } else {
            [other.name.as_str(), v.name.as_str()]
        };
        self.one(op, "", &pair, v.ty, dims, (exact, depth + u32::from(op == "Mul")));
    }
    fn concat(&mut self, v: &Val) {
        let Some(axis) = self.any_axis(v) else { return };
        let Some(w) = self.pick_if(|w| w.ty == v.ty && w.dims.len() == v.dims.len()) else { return };
        if v.dims
            .iter()
            .zip(&w.dims)
            .enumerate()
            .any(|(k, (a, b))| k != axis && matches!((a, b), (Size::Known(x), Size::Known(y)) if x != y))
        {
            return;
        }
        let mut dims = v.dims.clone();
        dims[axis] = self.unknown();
        self.one(
            "Concat",
            format!("axis = {axis}"),
            &[&v.name, &w.name],
            v.ty,
            dims,
            (v.exact && w.exact, v.depth.max(w.depth)),
        );
    }
    fn split(&mut self, v: &Val) {
        let Some(axis) = self.any_axis(v) else { return };
        let part = |g: &mut Gen| {
            let mut dims = v.dims.clone();
            dims[axis] = g.unknown();
            (v.ty, dims, v.exact, v.depth)
        };
        if self.r.chance(50) {
            let n = 2 + self.r.below(3);
            let outs = (0..n).map(|_| part(self)).collect();
            self.add("Split", format!("axis = {axis}, num_outputs = {n}"), &[&v.name], outs);
            return;
        }
        let all = self.one(
            "Shape",
            format!("start = {axis}, end = {}", axis + 1),
            &[&v.name],
            Ty::I64,
            vec![Size::Known(1)],
            (true, 0),
        );
        let c = self.r.between(0, 4);
        let c = self.ints(&[c]);
        let rest = self.one("Sub", "", &[&all.name, &c], Ty::I64, vec![Size::Known(1)], (true, 0));
        let order = if self.r.chance(50) {
            [rest.name.as_str(), c.as_str()]
        } else {
            [c.as_str(), rest.name.as_str()]
        };
        let sizes = self.one("Concat", "axis = 0", &order, Ty::I64, vec![Size::Known(2)], (true, 0));
        let outs = vec![part(self), part(self)];
        self.add("Split", format!("axis = {axis}"), &[&v.name, &sizes.name], outs);
    }
    fn slice(&mut self, v: &Val) {
        let Some(axis) = self.any_axis(v) else { return };
        let step = self.r.of(&[1, 1, 1, 2, 3, -1, -2]);
        let bound = |g: &mut Gen| {
            if g.r.chance(35) {
                g.size_of(v, axis).name
            } else {
                let b = g.r.of(&[0, 1, 2, 3, 5, -1, -2, -4, 100, i64::MAX, i64::MIN]);
                g.ints(&[b])
            }
        };
        let (start, end) = (bound(self), bound(self));
        let (axes, steps) = (self.ints(&[axis as i64]), self.ints(&[step]));
        let mut dims = v.dims.clone();
        dims[axis] = self.unknown();
        self.one("Slice", "", &[&v.name, &start, &end, &axes, &steps], v.ty, dims, (v.exact, v.depth));
    }
    fn pad(&mut self, v: &Val) {
        if v.dims.is_empty() || v.ty == Ty::Bool {
            return;
        }
        let n = v.dims.len();
        let mode = self.r.of(&["constant", "constant", "edge", "reflect", "wrap"]);
        let pads: Vec<i64> = (0..2 * n)
            .map(|_| {
                if self.r.chance(50) { 0 } else { self.r.between(if mode == "constant" { -2 } else { 0 }, 3) }
            })
            .collect();
        let dims = v
            .dims
            .iter()
            .enumerate()
            .map(|(k, d)| if pads[k] == 0 && pads[k + n] == 0 { *d } else { self.unknown() })
            .collect();
        let p = self.ints(&pads);
        self.one("Pad", format!("mode = \"{mode}\""), &[&v.name, &p], v.ty, dims, (v.exact, v.depth));
    }
    fn reshape(&mut self, v: &Val) {
        let like = (v.exact, v.depth);
        if self.r.chance(15) {
            let axis = self.r.below(v.dims.len() + 1);
            let dims = vec![self.unknown(), self.unknown()];
            self.one("Flatten", format!("axis = {axis}"), &[&v.name], v.ty, dims, like);
            return;
        }
        if self.r.chance(55) {
            let n = 1 + self.r.below(3);
            let mut rest = false;
            let list: Vec<i64> = (0..n)
                .map(|k| match self.r.below(3) {
                    0 if !rest => {
                        rest = true;
                        -1
                    }
                    1 if k < v.dims.len() => 0,
                    _ => self.r.of(&[1, 1, 2, 3, 4]),
                })
                .collect();
            let dims = list.iter().enumerate().map(|(k, d)| match d {
                -1 => self.unknown(),
                0 => v.dims[k],
                n => Size::Known(*n),
            });
            let dims = dims.collect();
            let s = self.ints(&list);
            self.one("Reshape", "", &[&v.name, &s], v.ty, dims, like);
            return;
        }
        // A shape of sizes of the value and a rest.
        let mut parts = vec![];
        for _ in 0..1 + self.r.below(2) {
            let part = match self.any_axis(v) {
                Some(a) => self.size_of(v, a).name,
                None => self.ints(&[1]),
            };
            parts.push(part);
        }
        let last = if self.r.chance(70) { -1 } else { self.r.between(1, 3) };
        parts.push(self.ints(&[last]));
        let refs: Vec<&str> = parts.iter().map(String::as_str).collect();
        let shape =
            self.one("Concat", "axis = 0", &refs, Ty::I64, vec![Size::Known(parts.len() as i64)], (true, 0));
        let dims = parts.iter().map(|_| self.unknown()).collect();
        self.one("Reshape", "", &[&v.name, &shape.name], v.ty, dims, like);
    }
    fn grow(&mut self, v: &Val) {
        let like = (v.exact, v.depth);
        let Some(axis) = self.any_axis(v) else { return };
        if self.r.chance(50) {
            let n: Vec<i64> = v.dims.iter().map(|_| self.r.of(&[1, 1, 1, 2, 3, 0])).collect();
            let dims =
                v.dims.iter().zip(&n).map(|(d, n)| if *n == 1 { *d } else { self.unknown() }).collect();
            let n = self.ints(&n);
            self.one("Tile", "", &[&v.name, &n], v.ty, dims, like);
            return;
        }
        let source = self.pick();
        let size = match self.any_axis(&source) {
            Some(a) => self.size_of(&source, a).name,
            None => self.ints(&[2]),
        };
        let ones = self.ints(&vec![1; v.dims.len()]);
        let shape = self.one(
            "Concat",
            "axis = 0",
            &[&size, &ones],
            Ty::I64,
            vec![Size::Known(1 + v.dims.len() as i64)],
            (true, 0),
        );
        let mut dims = v.dims.clone();
        let n = self.unknown();
        dims.insert(0, n);
        let _ = axis;
        self.one("Expand", "", &[&v.name, &shape.name], v.ty, dims, like);
    }
    /// Pooling, convolution, resizing of an image.
    fn window(&mut self, v: &Val) {
        let image = if v.dims.len() >= 3 && v.ty == Ty::F32 && matches!(v.dims[1], Size::Known(1..)) {
            v.clone()
        } else {
            let n = Size::Named(self.r.below(SYMBOLS.len()));
            let spatial: Vec<Size> =
                (0..1 + self.r.below(2)).map(|_| Size::Named(self.r.below(SYMBOLS.len()))).collect();
            let c = self.r.of(&[1, 2, 4]);
            self.input_of(Ty::F32, [vec![n, Size::Known(c)], spatial].concat())
        };
        let k = image.dims.len() - 2;
        let mut dims = image.dims.clone();
        dims.iter_mut().skip(2).for_each(|d| *d = self.unknown());
        let list = |v: &[i64]| v.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let kernel: Vec<i64> = (0..k).map(|_| self.r.between(1, 3)).collect();
        let strides: Vec<i64> = (0..k).map(|_| self.r.between(1, 3)).collect();
        let pads: Vec<i64> = (0..2 * k).map(|i| self.r.between(0, kernel[i % k] - 1)).collect();
        let mut attrs = format!("kernel_shape = [{}], strides = [{}]", list(&kernel), list(&strides));
        match self.r.below(4) {
            0 => attrs += ", auto_pad = \"SAME_UPPER\"",
            1 => attrs += ", auto_pad = \"VALID\"",
            _ => attrs += &format!(", pads = [{}]", list(&pads)),
        }
        match self.r.below(5) {
            0 | 1 => {
                let op = self.r.of(&["MaxPool", "AveragePool"]);
                if self.r.chance(40) && !attrs.contains("auto_pad") {
                    attrs += ", ceil_mode = 1";
                }
                self.one(op, attrs, &[&image.name], Ty::F32, dims, (false, 0));
            }
            2 => {
                let op = self.r.of(&["GlobalAveragePool", "GlobalMaxPool"]);
                dims.iter_mut().skip(2).for_each(|d| *d = Size::Known(1));
                self.one(op, "", &[&image.name], Ty::F32, dims, (false, 0));
            }
            _ => {
                let Size::Known(c) = image.dims[1] else { return };
                if !(1..=16).contains(&c) {
                    return;
                }
                let out = self.r.of(&[1, 3, 4, 8]);
                let w = self.numbers(Ty::F32, [vec![out, c], kernel].concat());
                dims[1] = Size::Known(out);
                let op = if self.r.chance(75) { "Conv" } else { "ConvTranspose" };
                if op == "ConvTranspose" {
                    let Some(c) = self.g.constants.iter_mut().find(|x| x.0.name == w) else { return };
                    c.0.dims.swap(0, 1);
                }
                self.one(op, attrs, &[&image.name, &w], Ty::F32, dims, (false, 0));
            }
        }
    }
    fn matmul(&mut self, v: &Val) {
        let (Ty::F32, Some(last)) = (v.ty, v.dims.last().copied()) else { return };
        let mut dims = v.dims.clone();
        if let Size::Known(n @ 1..=16) = last {
            let out = self.r.of(&[1, 3, 8, 16, 20]);
            let w = self.numbers(Ty::F32, vec![n, out]);
            if let Some(d) = dims.last_mut() {
                *d = Size::Known(out);
            }
            self.one("MatMul", "", &[&v.name, &w], Ty::F32, dims, (false, 0));
        } else if v.dims.len() >= 2 {
            let n = v.dims.len();
            let mut p: Vec<usize> = (0..n).collect();
            p.swap(n - 1, n - 2);
            let mut back = v.dims.clone();
            back.swap(n - 1, n - 2);
            let t = self.one(
                "Transpose",
                format!("perm = [{}]", p.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
                &[&v.name],
                Ty::F32,
                back,
                (v.exact, v.depth),
            );
            dims[n - 1] = v.dims[n - 2];
            self.one("MatMul", "", &[&v.name, &t.name], Ty::F32, dims, (false, 0));
        }
    }
    fn reduce(&mut self, v: &Val) {
        let Some(axis) = self.any_axis(v) else { return };
        if v.ty == Ty::Bool {
            return;
        }
        let keep = self.r.chance(50);
        let mut dims = v.dims.clone();
        if keep {
            dims[axis] = Size::Known(1);
        } else {
            dims.remove(axis);
        }
        if v.exact && self.r.chance(20) {
            self.one(
                "ArgMax",
                format!("axis = {axis}, keepdims = {}", i32::from(keep)),
                &[&v.name],
                Ty::I64,
                dims,
                (true, 0),
            );
            return;
        }
        let a = self.ints(&[axis as i64]);
        if v.ty == Ty::I64 || self.r.chance(40) {
            let op = if v.ty == Ty::I64 {
                "ReduceSum"
            } else {
                self.r.of(&["ReduceSum", "ReduceMean", "ReduceL2"])
            };
            self.one(
                op,
                format!("keepdims = {}", i32::from(keep)),
                &[&v.name, &a],
                v.ty,
                dims,
                (v.ty == Ty::I64, 0),
            );
        } else {
            let op = self.r.of(&["ReduceMax", "ReduceMin"]);
            self.one(
                op,
                format!("keepdims = {}", i32::from(keep)),
                &[&v.name, &a],
                v.ty,
                dims,
                (v.exact, v.depth),
            );
        }
    }
    fn rows(&mut self, v: &Val) {
        let Some(axis) = self.any_axis(v) else { return };
        if v.ty != Ty::F32 {
            return;
        }
        let dims = v.dims.clone();
        match self.r.below(4) {
            0 | 1 => {
                let op = self.r.of(&["Softmax", "LogSoftmax"]);
                self.one(op, format!("axis = {axis}"), &[&v.name], Ty::F32, dims, (false, 0));
            }
            2 => {
                let a = self.int(axis as i64);
                let attrs = format!("exclusive = {}, reverse = {}", self.r.below(2), self.r.below(2));
                self.one("CumSum", attrs, &[&v.name, &a], Ty::F32, dims, (false, 0));
            }
            _ => {
                let Some(Size::Known(n)) = v.dims.last().copied() else { return };
                let w = self.numbers(Ty::F32, vec![n]);
                self.one("LayerNormalization", "axis = -1", &[&v.name, &w], Ty::F32, dims, (false, 0));
            }
        }
    }
    fn gather(&mut self, v: &Val) {
        let Some(axis) = self.any_axis(v) else { return };
        let like = (v.exact, v.depth);
        let mut dims = v.dims.clone();
        match self.r.below(5) {
            0 | 1 => {
                let n = self.r.between(1, 3);
                let list: Vec<i64> = (0..n).map(|_| self.r.of(&[0, 0, 1, -1, -1, 2])).collect();
                let i = self.ints(&list);
                dims[axis] = Size::Known(n);
                self.one("Gather", format!("axis = {axis}"), &[&v.name, &i], v.ty, dims, like);
            }
            2 => {
                let n = Size::Named(self.r.below(SYMBOLS.len()));
                let i = self.input_of(Ty::I64, vec![n]);
                dims[axis] = n;
                self.one("Gather", format!("axis = {axis}"), &[&v.name, &i.name], v.ty, dims, like);
            }
            3 => {
                let i = self.input_of(
                    Ty::I64,
                    v.dims
                        .iter()
                        .map(|d| {
                            if matches!(d, Size::Named(k) if *k >= SYMBOLS.len()) {
                                Size::Known(1)
                            } else {
                                *d
                            }
                        })
                        .collect(),
                );
                dims.clone_from(&i.dims);
                self.one("GatherElements", format!("axis = {axis}"), &[&v.name, &i.name], v.ty, dims, like);
            }
            _ if v.exact && v.ty == Ty::F32 => {
                let k = if self.r.chance(50) {
                    self.size_of(v, axis).name
                } else {
                    let k = self.r.between(0, 3);
                    self.ints(&[k])
                };
                dims[axis] = self.unknown();
                self.add(
                    "TopK",
                    format!("axis = {axis}"),
                    &[&v.name, &k],
                    vec![(Ty::F32, dims.clone(), true, v.depth), (Ty::I64, dims, true, 0)],
                );
            }
            _ => {}
        }
    }
    /// Values of sizes.
    fn make(&mut self, v: &Val) {
        let Some(axis) = self.any_axis(v) else { return };
        match self.r.below(4) {
            0 => {
                let n = self.size_of(v, axis);
                let d = self.unknown();
                self.one(
                    "ConstantOfShape",
                    "value = float[1] {0.5}",
                    &[&n.name],
                    Ty::F32,
                    vec![d],
                    (true, 0),
                );
            }
            1 => {
                let (a, b) = (self.scalar_size_of(v, axis), self.scalar_size_of(v, axis));
                let step = self.r.of(&[1, 1, 2, -1]);
                let step = self.int(step);
                let zero = self.int(0);
                let from = if self.r.chance(60) { zero.as_str() } else { b.name.as_str() };
                let d = self.unknown();
                self.one("Range", "", &[from, &a.name, &step], Ty::I64, vec![d], (true, 0));
            }
            2 if v.exact => {
                let (rank, d) = (Size::Known(v.dims.len() as i64), self.unknown());
                self.one("NonZero", "", &[&v.name], Ty::I64, vec![rank, d], (true, 0));
            }
            _ => {
                let n = Size::Known(v.dims.len() as i64);
                self.one("Shape", "", &[&v.name], Ty::I64, vec![n], (true, 0));
            }
        }
    }
    fn select(&mut self, v: &Val) {
        let Some(c) = self.pick_if(|w| w.ty == Ty::Bool && w.dims.len() <= v.dims.len()) else {
            if v.exact && v.ty == Ty::F32 {
                let zero = self.numbers(Ty::F32, vec![]);
                self.one("Less", "", &[&v.name, &zero], Ty::Bool, v.dims.clone(), (true, 0));
            }
            return;
        };
        if self.r.chance(40) && c.dims.len() == 1 && !v.dims.is_empty() {
            let mut dims = v.dims.clone();
            dims[0] = self.unknown();
            self.one("Compress", "axis = 0", &[&v.name, &c.name], v.ty, dims, (v.exact, v.depth));
            return;
        }
        let other = self.numbers(v.ty, vec![1]);
        if v.ty != Ty::Bool {
            let dims = v.dims.iter().map(|_| self.unknown()).collect();
            self.one("Where", "", &[&c.name, &v.name, &other], v.ty, dims, (v.exact, v.depth));
        }
    }
    /// A branch on a size; its results differ in their sizes.
    fn branch(&mut self, v: &Val) {
        let Some(axis) = self.any_axis(v) else { return };
        if v.ty == Ty::Bool {
            return;
        }
        let (n, c) = (self.scalar_size_of(v, axis), self.r.between(0, 6));
        let c = self.int(c);
        let cond = self.one("Less", "", &[&n.name, &c], Ty::Bool, vec![], (true, 0));
        let ty = if v.ty == Ty::F32 { "float" } else { "int64" };
        let id = self.g.nodes.len();
        let rank: Vec<String> = (0..v.dims.len()).map(|k| format!("b{id}_{k}")).collect();
        let rank = rank.join(", ");
        let twice = if self.r.chance(50) {
            format!("e{id} = Concat <axis = {axis}> ({0}, {0})", v.name)
        } else {
            format!("e{id} = Neg ({})", v.name)
        };
        let attrs = format!(
            "then_branch = yes{id} () => ({ty}[{rank}] t{id}) {{ t{id} = Abs ({}) }}, else_branch = no{id} () => ({ty}[{rank}] e{id}) {{ {twice} }}",
            v.name
        );
        let mut dims = v.dims.clone();
        dims[axis] = self.unknown();
        self.one("If", attrs, &[&cond.name], v.ty, dims, (v.exact, v.depth));
    }
    /// A loop as often as a size says.
    fn repeat(&mut self, v: &Val) {
        let Some(axis) = self.any_axis(v) else { return };
        if v.ty == Ty::Bool {
            return;
        }
        let n = self.scalar_size_of(v, axis);
        let ty = if v.ty == Ty::F32 { "float" } else { "int64" };
        let id = self.g.nodes.len();
        let rank: Vec<String> = (0..v.dims.len()).map(|k| format!("l{id}_{k}")).collect();
        let rank = rank.join(", ");
        let rank_out = rank.replace(&format!("l{id}"), &format!("r{id}"));
        let (grows, body) = match self.r.below(3) {
            0 if v.dims.len() == 1 => (true, format!("b{id} = Concat <axis = 0> (a{id}, {})", v.name)),
            1 => (false, format!("b{id} = Max (a{id}, {})", v.name)),
            _ => (false, format!("b{id} = Neg (a{id})")),
        };
        let collects = self.r.chance(40);
        let (decl, copy) = if collects {
            (format!(", {ty}[{}] s{id}", rank_out.replace('r', "q")), format!("s{id} = Abs (a{id})"))
        } else {
            (String::new(), String::new())
        };
        let attrs = format!(
            "body = body{id} (int64 i{id}, bool on{id}, {ty}[{rank}] a{id}) => (bool go{id}, {ty}[{rank_out}] b{id}{decl}) {{ go{id} = Identity (on{id}) {body} {copy} }}"
        );
        let four = self.int(4);
        let times = self.one("Min", "", &[&n.name, &four], Ty::I64, vec![], (true, 0));
        let mut dims = v.dims.clone();
        if grows {
            dims[0] = self.unknown();
        }
        let mut outs = vec![(v.ty, dims, v.exact, v.depth)];
        // Rows of different sizes cannot be collected.
        if collects && !grows {
            let count = self.unknown();
            outs.push((v.ty, [vec![count], v.dims.clone()].concat(), v.exact, v.depth));
        } else if collects {
            return;
        }
        self.add("Loop", attrs, &[&times.name, "", &v.name], outs);
    }
    fn finish(mut self, calls: usize) -> Graph {
        let made: Vec<Val> = self.values.iter().filter(|v| v.name.starts_with('v')).cloned().collect();
        if made.is_empty() {
            let v = self.values[0].clone();
            if v.ty == Ty::Bool {
                self.one("Not", "", &[&v.name], Ty::Bool, v.dims, (true, 0));
            } else {
                self.one("Abs", "", &[&v.name], v.ty, v.dims, (true, 0));
            }
        }
        let made: Vec<Val> = self.values.iter().filter(|v| v.name.starts_with('v')).cloned().collect();
        let mut outputs = vec![made[made.len() - 1].clone()];
        for v in &made[..made.len() - 1] {
            if self.r.chance(20) && outputs.len() < 3 {
                outputs.push(v.clone());
            }
        }
        self.g.outputs = outputs
            .iter()
            .map(|v| Value {
                name: v.name.clone(),
                ty: v.ty,
                dims: v.dims.iter().map(|_| String::new()).collect(),
            })
            .collect();
        self.g.prune();
        let mut used: Vec<String> =
            self.g.inputs.iter().flat_map(|v| v.dims.clone()).filter(|d| d.parse::<i64>().is_err()).collect();
        used.sort();
        used.dedup();
        for k in 0..calls {
            let all = self.r.of(SIZES);
            self.g.sizes.push(
                used.iter().map(|n| (n.clone(), if k % 4 == 0 { all } else { self.r.of(SIZES) })).collect(),
            );
        }
        self.g
    }
}
