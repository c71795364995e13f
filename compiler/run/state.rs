//! State in place for `run`, `verify` and `bench`: an input that an output shares its memory with (`--alias`)
//! is given as long as it is, and put at the beginning of a buffer with a capacity; the output is what is in
//! use of that afterwards.

use super::{Runner, bytes_of};
use crate::arrays::Array;
use crate::codegen::interface::Tensor;
use crate::diag::{Error, Failure, Result, codes};
use crate::nest::State;
use crate::sym::{Dim, Sym};
use std::borrow::Cow;
use std::collections::HashMap;

impl Runner {
    /// Lets outputs be the memory of the inputs that they are declared to share it with.
    pub fn in_place(mut self) -> Runner {
        let i = &self.compiled.interface;
        let pairs = i.outputs.iter().enumerate().filter_map(|(o, t)| Some((t.aliases_input? as usize, o)));
        self.code.share(pairs.collect());
        self.given = self.compiled.interface.inputs.clone();
        for s in &self.compiled.interface.states {
            self.given[s.input].dims[s.axis] = s.before;
        }
        self
    }
    /// The states with a dimension that grows, where they are in place.
    fn states(&self) -> &[State] {
        if self.code.is_shared() { &self.compiled.interface.states } else { &[] }
    }
    /// Capacities that nobody has chosen: what a call with these sizes needs.
    pub(super) fn capacities(&self, sizes: &mut HashMap<Sym, i64>) -> Result<()> {
        for s in self.states() {
            let t = &self.compiled.interface.inputs[s.input];
            let Some(capacity) = t.dims[s.axis].as_sym().filter(|c| !sizes.contains_key(c)) else { continue };
            let [before, after] = [s.before, s.after].map(|d| self.eval(d, sizes));
            let Some(n) = after else {
                let name = self.compiled.interface.syms.name(capacity);
                return Error::new(
                    codes::RUN_INPUT,
                    format!(
                        "how long \"{}\" becomes follows from data",
                        self.compiled.interface.outputs[s.output].name
                    ),
                )
                .row("expected", "a capacity of the buffer that it shares with its input")
                .help(format!("--size {name}=POSITIONS, or --dim {name}=POSITIONS"))
                .fail();
            };
            // Several states of one size share a capacity.
            sizes.insert(capacity, n.max(before.unwrap_or(0)));
        }
        Ok(())
    }
    /// True for the name of the capacity of a state.
    pub fn is_capacity(&self, name: &str) -> bool {
        let i = &self.compiled.interface;
        let of = |s: &State| i.inputs[s.input].dims[s.axis].as_sym();
        self.states().iter().filter_map(of).any(|c| i.syms.name(c) == name)
    }
    fn eval(&self, d: Dim, sizes: &HashMap<Sym, i64>) -> Option<i64> {
        d.eval(&|s| sizes.get(&s).copied())
    }
    /// The bytes of the inputs, those of states with room behind what is there.
    pub(super) fn placed<'a>(
        &self,
        data: &[&'a [u8]],
        sizes: &HashMap<Sym, i64>,
    ) -> Result<Vec<Cow<'a, [u8]>>> {
        let mut out: Vec<Cow<'a, [u8]>> = data.iter().map(|b| Cow::Borrowed(*b)).collect();
        for s in self.states() {
            let t = &self.compiled.interface.inputs[s.input];
            let (room, have) = (self.shape(t, sizes)?, self.shape(&self.given[s.input], sizes)?);
            let mut to = vec![0u8; bytes_of(t, &room)?];
            copy_rows(data[s.input], (&have, s.axis), &mut to, &room, t.ty.bits() as usize / 8);
            out[s.input] = Cow::Owned(to);
        }
        Ok(out)
    }
    fn shape(&self, t: &Tensor, sizes: &HashMap<Sym, i64>) -> Result<Vec<i64>> {
        let dims = t.dims.iter().map(|d| self.eval(*d, sizes)).collect::<Option<Vec<_>>>();
        dims.ok_or_else(|| {
            Failure::from(Error::new(codes::RUN_INPUT, format!("\"{}\" has no valid size", t.name)))
        })
    }
    /// What is in use of the outputs; all of it where only data say how much.
    pub(super) fn trimmed(&self, mut outputs: Vec<Array>, sizes: &HashMap<Sym, i64>) -> Vec<Array> {
        for s in self.states() {
            let name = &self.compiled.interface.outputs[s.output].name;
            let (Some(a), Some(used)) =
                (outputs.iter_mut().find(|a| a.name == *name), self.eval(s.after, sizes))
            else {
                continue;
            };
            let mut dims = a.dims.clone();
            if used > dims[s.axis] {
                continue;
            }
            dims[s.axis] = used;
            let element = a.ty.bits() as usize / 8;
            let mut data = vec![0u8; dims.iter().product::<i64>() as usize * element];
            copy_rows(&a.data, (&a.dims, s.axis), &mut data, &dims, element);
            (a.dims, a.data) = (dims, data);
        }
        outputs
    }
    /// The inputs with the shapes that callers of this type give.
    pub(super) fn inputs(&self) -> Vec<&Tensor> {
        if self.code.is_shared() {
            self.given.iter().collect()
        } else {
            self.compiled.interface.inputs.iter().collect()
        }
    }
}

/// Copies what two arrays have in common that differ in the length of one dimension.
fn copy_rows(from: &[u8], (a, axis): (&[i64], usize), to: &mut [u8], b: &[i64], element: usize) {
    let inner = a[axis + 1..].iter().product::<i64>() as usize * element;
    let (x, y) = (a[axis] as usize * inner, b[axis] as usize * inner);
    if x == 0 || y == 0 {
        return;
    }
    for (from, to) in from.chunks_exact(x).zip(to.chunks_exact_mut(y)) {
        let n = x.min(y);
        to[..n].copy_from_slice(&from[..n]);
    }
}
