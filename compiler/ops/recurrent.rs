//! RNN, GRU, LSTM.
//!
//! | versions | |
//! |---|---|
//! | 1 (GRU: 1, 3) | `output_sequence`, which has no effect: an output without a name is not computed |
//! | 3 (GRU) | `linear_before_reset` |
//! | 7 | |
//! | 14, 22 | `layout` |
//!
//! A step beyond a sequence's length keeps the state and gives zeros; a length beyond the longest sequence
//! means all steps. The names of activations are case-insensitive. `activation_alpha` and `activation_beta`
//! are consumed in the order of the activations that have such a parameter.

mod activation;
mod cell;

use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::sym::Dim;
use activation::Activation;

/// Which cell.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Kind {
    Rnn,
    /// `linear_before_reset`: the reset gate is applied after the product with the recurrence weights.
    Gru {
        linear_before_reset: bool,
    },
    /// `input_forget`: the forget gate is one minus the input gate.
    Lstm {
        input_forget: bool,
    },
}

impl Kind {
    /// Number of gates, each with separate rows in the weights.
    fn gates(self) -> i64 {
        match self {
            Kind::Rnn => 1,
            Kind::Gru { .. } => 3,
            Kind::Lstm { .. } => 4,
        }
    }
    /// Default names of the activations.
    fn defaults(self) -> &'static [&'static str] {
        match self {
            Kind::Rnn => &["Tanh"],
            Kind::Gru { .. } => &["Sigmoid", "Tanh"],
            Kind::Lstm { .. } => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// One pass over the sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Direction {
    /// From the last step to the first.
    pub reverse: bool,
    /// f, g, h of the specification.
    activations: Vec<Activation>,
}

/// The operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// Which cell.
    pub kind: Kind,
    /// One, or two if bidirectional.
    pub directions: Vec<Direction>,
    /// The inputs of activations are clipped to this magnitude.
    pub clip: Option<f32>,
    /// Size of the state, if the attribute gives it.
    pub hidden: Option<i64>,
    /// `layout = 1`: the batch is the first dimension.
    pub batch_first: bool,
}

impl Operator for Recurrent {
    const OPS: &'static [&'static str] = &["RNN", "GRU", "LSTM"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        a.ignore("output_sequence");
        let kind = match a.op() {
            "RNN" => Kind::Rnn,
            "GRU" => Kind::Gru { linear_before_reset: a.flag("linear_before_reset", false) },
            _ => Kind::Lstm { input_forget: a.flag("input_forget", false) },
        };
        let ways: [(&str, &[bool]); 3] =
            [("forward", &[false]), ("reverse", &[true]), ("bidirectional", &[false, true])];
        let reverse = a.choice("direction", "forward", &ways);
        let all = activation::parse(a, kind.defaults(), reverse.len())?;
        let directions = reverse
            .iter()
            .zip(all.chunks(kind.defaults().len()))
            .map(|(reverse, list)| Direction { reverse: *reverse, activations: list.to_vec() })
            .collect();
        let hidden = a.int_opt("hidden_size");
        a.require(hidden.is_none_or(|h| h >= 1), "attribute \"hidden_size\" must be positive")?;
        Ok(Recurrent {
            kind,
            directions,
            clip: a.float_opt("clip").filter(|c| *c > 0.0),
            hidden,
            batch_first: a.flag("layout", false),
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (x, w, r) = (cx.tensor(0).clone(), cx.tensor(1).clone(), cx.tensor(2).clone());
        cx.require(
            x.rank() == 3 && w.rank() == 3 && r.rank() == 3,
            codes::OP_SHAPE,
            "input, weights and recurrence weights must have rank 3",
        )?;
        let directions = Dim::from(self.directions.len());
        let hidden = self.hidden.map_or(r.dims[2], Dim::constant);
        let (steps, batch) = if self.batch_first { (x.dims[1], x.dims[0]) } else { (x.dims[0], x.dims[1]) };
        let rows = hidden * self.kind.gates();
        let states = self.states(directions, batch, hidden);
        // The first three inputs are required, the others optional.
        let wants: [(&[Dim], &str); 8] = [
            (&x.dims, ""),
            (
                &[directions, rows, x.dims[2]],
                "the weights must be [directions, gates * hidden size, input size]",
            ),
            (
                &[directions, rows, hidden],
                "the recurrence weights must be [directions, gates * hidden size, hidden size]",
            ),
            (&[directions, rows * 2], "the bias must be [directions, 2 * gates * hidden size]"),
            (&[batch], "there must be one length for each sequence of the batch"),
            (
                &states,
                "the initial state must be [directions, batch, hidden size], with layout = 1 [batch, \
                    directions, hidden size]",
            ),
            (
                &states,
                "the initial cell state must be [directions, batch, hidden size], with layout = 1 [batch, \
                    directions, hidden size]",
            ),
            (&[directions, hidden * 3], "the peepholes must be [directions, 3 * hidden size]"),
        ];
        for (i, (want, what)) in wants.into_iter().enumerate().skip(1) {
            let Some(t) = cx.tensor_opt(i).cloned() else { continue };
            if t.rank() != want.len() {
                return cx.error(codes::OP_SHAPE, what).fail();
            }
            for (a, b) in t.dims.into_iter().zip(want) {
                cx.require_eq(a, *b, what);
            }
        }
        let all = if self.batch_first {
            vec![batch, steps, directions, hidden]
        } else {
            vec![steps, directions, batch, hidden]
        };
        cx.set(0, x.elem, all);
        cx.set(1, x.elem, states.clone());
        if let Kind::Lstm { .. } = self.kind {
            cx.set(2, x.elem, states);
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        for (d, direction) in self.directions.iter().enumerate() {
            cell::lower(cx, self, d, direction);
        }
        Ok(())
    }
}

impl Recurrent {
    /// The shape of a state over all directions, or the position of an element in it.
    fn states(&self, direction: Dim, batch: Dim, hidden: Dim) -> Vec<Dim> {
        if self.batch_first { vec![batch, direction, hidden] } else { vec![direction, batch, hidden] }
    }
    /// The position of a step in the input, the projection, and so on.
    fn step(&self, time: Dim, batch: Dim, last: Dim) -> [Dim; 3] {
        if self.batch_first { [batch, time, last] } else { [time, batch, last] }
    }
}
