//! Sequences of different lengths packed without padding, attention over them, and position biases.

use super::{Contrib, Outputs};
use crate::diag::Result;
use crate::graph::Value;
use crate::ops::AttrValue;
use crate::tensor::ElemType;

impl Contrib<'_> {
    pub(super) fn restore_padding(&mut self) -> Value {
        let x = self.x(0);
        let offsets = self.x(1);
        self.restored(x, offsets)
    }
    pub(super) fn packed_self_attention(&mut self) -> Result<Value> {
        let (w, bias, offsets, ends) = (self.x(1), self.x(2), self.x(3), self.x(4));
        let v = self.op("MatMul", &[self.x(0), w]);
        let v = self.op("Add", &[v, bias]);
        let total = self.make.dims(w)?.last().and_then(|d| d.as_const());
        let sizes = match (self.node.ints("qkv_hidden_sizes"), total) {
            (Some(v), _) if v.len() == 3 => v,
            (_, Some(n)) if n % 3 == 0 => vec![n / 3; 3],
            _ => return self.refuse("hidden sizes that only run time knows"),
        };
        let sizes = self.make.ints(&sizes);
        let parts = self.make.node("Split", vec![("axis", AttrValue::Int(1))], vec![Some(v), Some(sizes)], 3);
        let y = self.packed_attention([parts[0], parts[1], parts[2]], None, offsets, ends, self.given(5));
        Ok(y)
    }
    pub(super) fn packed_multi_head_attention(&mut self) -> Value {
        let x = self.x(0);
        let (offsets, ends) = (self.x(4), self.x(5));
        let parts = match (self.given(1), self.given(2)) {
            (Some(k), Some(v)) => [x, k, v],
            _ => {
                // [tokens, heads, 3, size]
                let (rows, rest) = (self.make.ints(&[0]), self.make.ints(&[-1]));
                let shape = self.concat(&[rows, rest]);
                let mut parts = vec![];
                for i in 0..3 {
                    let i = self.make.integer(i);
                    let v = self.make.with("Gather", vec![("axis", AttrValue::Int(2))], &[x, i]);
                    parts.push(self.op("Reshape", &[v, shape]));
                }
                [parts[0], parts[1], parts[2]]
            }
        };
        self.packed_attention(parts, self.given(3), offsets, ends, self.given(6))
    }
    /// Moves the rows of tokens to their positions in [batch, length, ..]; other positions are 0.
    fn restored(&mut self, x: Value, offsets: Value) -> Value {
        // x may be a new value without a type, but it has the type of the operand.
        let elem = self.make.elem(self.x(0));
        let rows = self.make.sizes(x, 0, 1);
        let (from, width, frame) =
            (self.make.ints(&[0]), self.make.sizes(x, 1, 2), self.op("Shape", &[offsets]));
        let places = self.places(offsets, from, rows);
        let (count, zero) = (
            self.make.with("ReduceProd", vec![("keepdims", AttrValue::Int(1))], &[frame]),
            self.make.number(elem, 0.0),
        );
        let size = self.concat(&[count, width]);
        let none = self.op("Expand", &[zero, size]);
        let places = self.axes_of(places, "Unsqueeze", &[1]);
        let v = self.op("ScatterND", &[none, places, x]);
        let shape = self.concat(&[frame, width]);
        self.op("Reshape", &[v, shape])
    }
    /// The first `rows` offsets, one per token.
    fn places(&mut self, offsets: Value, from: Value, rows: Value) -> Value {
        let all = self.make.ints(&[-1]);
        let flat = self.op("Reshape", &[offsets, all]);
        let first = self.op("Slice", &[flat, from, rows]);
        self.make.cast(first, ElemType::I32, ElemType::I64)
    }
    fn packed_attention(
        &mut self,
        parts: [Value; 3],
        bias: Option<Value>,
        offsets: Value,
        ends: Value,
        attention_bias: Option<Value>,
    ) -> Value {
        let (zero, one, end) = (self.make.ints(&[0]), self.make.ints(&[1]), self.make.ints(&[i64::MAX]));
        let last = self.make.ints(&[-1]);
        // The number of tokens of each sequence.
        let (upper, lower) = (self.op("Slice", &[ends, one, end]), self.op("Slice", &[ends, zero, last]));
        let lengths = self.op("Sub", &[upper, lower]);
        let mut inputs = vec![];
        for v in parts {
            inputs.push(Some(self.restored(v, offsets)));
        }
        inputs.extend([bias, Some(lengths), attention_bias]);
        let attrs = self.kept(&["num_heads", "scale", "mask_filter_value"]);
        let y = self.make.contrib("MultiHeadAttention", attrs, inputs, 1)[0];
        let (width, rows) = (self.make.sizes(y, 2, 3), self.make.sizes(parts[0], 0, 1));
        let places = self.places(offsets, zero, rows);
        let shape = self.concat(&[last, width]);
        let y = self.op("Reshape", &[y, shape]);
        self.op("Gather", &[y, places])
    }
    pub(super) fn remove_padding(&mut self) -> Outputs {
        let x = self.x(0);
        let counts = self.x(1);
        let (zero, one) = (self.make.integer(0), self.make.integer(1));
        let (all, length) = (self.make.ints(&[-1]), self.make.sizes(x, 1, 2));
        let none = self.make.ints(&[]);
        let scalar = self.op("Reshape", &[length, none]);
        let places = self.op("Range", &[zero, scalar, one]);
        let wide = self.make.cast(counts, ElemType::I32, ElemType::I64);
        let column = self.axes_of(wide, "Unsqueeze", &[1]);
        let real = self.op("Less", &[places, column]);
        let flat = self.op("Reshape", &[real, all]);
        let mut lists = vec![];
        let padding = self.op("Not", &[flat]);
        for which in [flat, padding] {
            let i = self.op("NonZero", &[which]);
            lists.push(self.op("Reshape", &[i, all]));
        }
        let (frame, width) = (self.make.sizes(x, 0, 2), self.make.sizes(x, 2, 3));
        let rows = self.concat(&[all, width]);
        let v = self.op("Reshape", &[x, rows]);
        let v = self.op("Gather", &[v, lists[0]]);
        let offsets = self.concat(&lists);
        let offsets = self.op("Reshape", &[offsets, frame]);
        let axis = self.make.integer(0);
        let sums = self.op("CumSum", &[wide, axis]);
        let nothing = self.make.ints(&[0]);
        let sums = self.concat(&[nothing, sums]);
        let most = self.op("ReduceMax", &[wide]);
        let mut results = vec![Some(v)];
        for v in [offsets, sums, most] {
            results.push(Some(self.make.cast(v, ElemType::I64, ElemType::I32)));
        }
        results
    }
    /// A bias for each bucket of distances, as in T5: near distances have a bucket each, far ones share
    /// logarithmic buckets. The table's first dimension is the heads.
    pub(super) fn relative_bias(&mut self) -> Result<Value> {
        let table = self.x(0);
        let dims = self.make.dims(table)?;
        let Some(&[Some(buckets), Some(heads)]) =
            Some(dims.iter().map(|d| d.as_const()).collect::<Vec<_>>()).as_deref()
        else {
            return self.refuse("a table of sizes that only run time knows");
        };
        let both = self.int("is_bidirectional", 0) != 0;
        let half = if both { buckets / 2 } else { buckets };
        let (exact, most) = (half / 2, self.int("max_distance", 128));
        if exact < 1 || most <= exact {
            return self.refuse("a distance that is no larger than the number of buckets");
        }
        let (zero, one, none) = (self.make.integer(0), self.make.integer(1), self.make.ints(&[]));
        let mut ranges = vec![];
        for i in [1, 2] {
            let n = self.x(i);
            let n = self.op("Reshape", &[n, none]);
            ranges.push(self.op("Range", &[zero, n, one]));
        }
        let rows = self.axes_of(ranges[0], "Unsqueeze", &[1]);
        let distance = self.op("Sub", &[ranges[1], rows]);
        let size = if both {
            self.op("Abs", &[distance])
        } else {
            let back = self.op("Neg", &[distance]);
            self.op("Max", &[back, zero])
        };
        let f = |s: &mut Self, v: f64| s.make.number(ElemType::F32, v);
        let near = self.make.integer(exact);
        let small = self.op("Less", &[size, near]);
        // Clamped to the first far distance, because the logarithm is used only from there on.
        let far = self.op("Max", &[size, near]);
        let far = self.make.cast(far, ElemType::I64, ElemType::F32);
        let (start, span, steps) = (
            f(self, exact as f64),
            f(self, f64::from((most as f32 / exact as f32).ln())),
            f(self, (half - exact) as f64),
        );
        let far = self.op("Div", &[far, start]);
        let far = self.op("Log", &[far]);
        let far = self.op("Div", &[far, span]);
        let far = self.op("Mul", &[far, steps]);
        let far = self.op("Add", &[far, start]);
        let far = self.make.cast(far, ElemType::F32, ElemType::I64);
        let last = self.make.integer(half - 1);
        let far = self.op("Min", &[far, last]);
        let mut bucket = self.op("Where", &[small, size, far]);
        if both {
            let (ahead, more) = (self.op("Greater", &[distance, zero]), self.make.integer(half));
            let more = self.op("Where", &[ahead, more, zero]);
            bucket = self.op("Add", &[bucket, more]);
        }
        let turned = self.make.ints(&[heads, buckets]);
        let table = self.op("Reshape", &[table, turned]);
        let v = self.make.with("Gather", vec![("axis", AttrValue::Int(1))], &[table, bucket]);
        Ok(self.axes_of(v, "Unsqueeze", &[0]))
    }
    pub(super) fn gated_bias(&mut self) -> Value {
        let x = self.x(0);
        let (bias, relative, weight, own, eco) = (self.x(1), self.x(2), self.x(3), self.x(4), self.x(5));
        let heads = self.int("num_heads", 1);
        let x = match self.given(6) {
            Some(offsets) => self.restored(x, offsets),
            None => x,
        };
        let v = self.op("Add", &[x, bias]);
        let split = self.make.ints(&[0, 0, heads, -1]);
        let v = self.op("Reshape", &[v, split]);
        let v = self.permuted(v, vec![0, 2, 1, 3]);
        let v = self.op("MatMul", &[v, weight]);
        let v = self.op("Add", &[v, own]);
        let pairs = self.make.ints(&[0, 0, 0, 2, -1]);
        let v = self.op("Reshape", &[v, pairs]);
        let axes = self.make.ints(&[-1]);
        let v = self.make.with("ReduceSum", vec![("keepdims", AttrValue::Int(0))], &[v, axes]);
        let v = self.op("Sigmoid", &[v]);
        let gates = self.make.node(
            "Split",
            vec![("axis", AttrValue::Int(-1)), ("num_outputs", AttrValue::Int(2))],
            vec![Some(v)],
            2,
        );
        let elem = self.make.elem(relative);
        let (one, two) = (self.make.number(elem, 1.0), self.make.number(elem, 2.0));
        let v = self.op("Mul", &[gates[1], eco]);
        let v = self.op("Sub", &[v, one]);
        let v = self.op("Mul", &[gates[0], v]);
        let v = self.op("Add", &[v, two]);
        self.op("Mul", &[v, relative])
    }
}
