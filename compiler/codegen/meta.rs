//! `<m>_model`: the versioned metadata of the interface (abi/README.md, rule 10), one relocated data object.

use super::clif::entry;
use super::faults::{Check, Checks, VALUES};
use super::interface::{Interface, Tensor};
use crate::sym::Dim;
use cranelift_module::{DataDescription, DataId, FuncId, Module, ModuleResult};
use std::collections::HashMap;

/// Version of the generated interface.
pub const ABI_VERSION: u32 = 1;
/// The code of an output dim that is an expression or depends on data.
const UNKNOWN: i64 = i64::MIN;

enum Pointer {
    Here(usize),
    Function(u32),
}

/// The bytes and pointers of the data object.
#[derive(Default)]
pub struct Meta {
    bytes: Vec<u8>,
    pointers: Vec<(usize, Pointer)>,
    /// Write position in the model struct itself, which comes first.
    cursor: usize,
}

/// Size of `onnxc_model` in bytes with 64-bit pointers.
const MODEL_SIZE: usize = 8 + 4 * 8 + 32 + 4 * 8 + 4 * 8 + 4 * 4 + 2 * 8 + 2 * 8;

/// Size of `onnxc_check_info` in bytes with 64-bit pointers.
const CHECK_SIZE: usize = (3 + VALUES) * 8 + VALUES * 4 + 2 * 4;

/// Size of `onnxc_value` in bytes with 64-bit pointers.
pub const VALUE_SIZE: u64 = 56;

/// Lays out the metadata.
pub fn build(i: &Interface, checks: &Checks) -> Meta {
    let mut m = Meta { bytes: vec![0; MODEL_SIZE], ..Meta::default() };
    let text: Vec<usize> = [&i.name, &i.producer, &i.target, &i.cpu].map(|s| m.string(s)).to_vec();
    let inputs = m.tensors(i, &i.inputs);
    let outputs = m.tensors(i, &i.outputs);
    let names: Vec<usize> = i.dim_params.iter().map(|d| m.string(&d.name)).collect();
    let params = m.pointers(&names);
    let nodes = m.nodes(i);
    let table = m.checks(checks.list());
    m.u32(ABI_VERSION);
    m.u32(MODEL_SIZE as u32);
    for t in text {
        m.pointer(Pointer::Here(t));
    }
    m.put(&i.model_sha256);
    m.u64(i.workspace_max.unwrap_or(u64::MAX));
    m.u64(64);
    m.u64(if i.weights.external { super::header::weights_size(i) } else { 0 });
    m.u64(64);
    for p in [inputs, outputs, params, nodes] {
        m.pointer(Pointer::Here(p));
    }
    for n in [i.inputs.len(), i.outputs.len(), i.dim_params.len(), i.nodes.len()] {
        m.u32(n as u32);
    }
    m.pointer(Pointer::Function(entry::WORKSPACE_FOR));
    m.pointer(Pointer::Function(entry::CALL));
    m.pointer(Pointer::Here(table));
    m.u32(checks.list().len() as u32);
    m.u32(0);
    debug_assert_eq!(m.cursor, MODEL_SIZE);
    m
}

impl Meta {
    fn put(&mut self, b: &[u8]) {
        self.bytes[self.cursor..self.cursor + b.len()].copy_from_slice(b);
        self.cursor += b.len();
    }
    fn u32(&mut self, v: u32) {
        self.put(&v.to_le_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.put(&v.to_le_bytes());
    }
    fn pointer(&mut self, p: Pointer) {
        self.pointers.push((self.cursor, p));
        self.cursor += 8;
    }
    fn align(&mut self) -> usize {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self.bytes.len()
    }
    pub(super) fn string(&mut self, s: &str) -> usize {
        let at = self.bytes.len();
        self.bytes.extend(s.bytes().filter(|b| *b != 0));
        self.bytes.push(0);
        at
    }
    /// Appends `n` zeros, aligned to 8.
    pub(super) fn zeros(&mut self, n: usize) -> usize {
        let at = self.align();
        self.bytes.resize(at + n, 0);
        at
    }
    /// Overwrites bytes.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
    /// Makes the eight bytes at `at` a pointer to offset `to`.
    pub(super) fn point(&mut self, at: usize, to: usize) {
        self.pointers.push((at, Pointer::Here(to)));
    }
    fn i64s(&mut self, v: &[i64]) -> usize {
        let at = self.align();
        v.iter().for_each(|x| self.bytes.extend(x.to_le_bytes()));
        at
    }
    fn pointers(&mut self, targets: &[usize]) -> usize {
        let at = self.align();
        self.bytes.resize(at + 8 * targets.len(), 0);
        for (k, t) in targets.iter().enumerate() {
            self.pointers.push((at + 8 * k, Pointer::Here(*t)));
        }
        at
    }
    fn tensors(&mut self, i: &Interface, list: &[Tensor]) -> usize {
        let parts: Vec<(usize, usize, usize)> = list
            .iter()
            .map(|t| {
                let dims: Vec<i64> = t.dims.iter().map(|d| dim_code(i, *d)).collect();
                let max: Vec<i64> = t.max_dims.iter().map(|d| d.unwrap_or(UNKNOWN)).collect();
                (self.string(&t.name), self.i64s(&dims), self.i64s(&max))
            })
            .collect();
        let at = self.align();
        self.bytes.resize(at + 48 * list.len(), 0);
        let saved = self.cursor;
        for (k, (t, (name, dims, max))) in list.iter().zip(parts).enumerate() {
            self.cursor = at + 48 * k;
            for p in [name, dims, max] {
                self.pointer(Pointer::Here(p));
            }
            self.u64(if t.described.is_some() {
                VALUE_SIZE
            } else {
                t.max_len().and_then(|n| t.ty.bytes_for(n)).unwrap_or(u64::MAX)
            });
            self.u32(t.ty as u32);
            self.u32(t.dims.len() as u32);
            self.u32(t.aliases_input.unwrap_or(u32::MAX));
            self.u32(t.described.as_ref().map_or(0, |d| d.code()));
        }
        self.cursor = saved;
        at
    }
    fn nodes(&mut self, i: &Interface) -> usize {
        let parts: Vec<(usize, usize)> =
            i.nodes.iter().map(|o| (self.string(&o.name), self.string(&o.op))).collect();
        let at = self.align();
        self.bytes.resize(at + 24 * parts.len(), 0);
        for (k, (name, op)) in parts.into_iter().enumerate() {
            self.pointers.push((at + 24 * k, Pointer::Here(name)));
            self.pointers.push((at + 24 * k + 8, Pointer::Here(op)));
            let tap =
                i.outputs.iter().position(|t| t.name == i.nodes[k].output).map_or(u32::MAX, |t| t as u32);
            self.bytes[at + 24 * k + 16..at + 24 * k + 20].copy_from_slice(&tap.to_le_bytes());
        }
        at
    }
    fn checks(&mut self, list: &[Check]) -> usize {
        // Names occur in many rows.
        let mut known: HashMap<String, usize> = HashMap::new();
        let mut text = |m: &mut Meta, s: &str| *known.entry(s.to_owned()).or_insert_with(|| m.string(s));
        let parts: Vec<(Vec<usize>, Vec<usize>)> = list
            .iter()
            .map(|c| {
                let texts = [&c.node, &c.op, &c.text].map(|s| text(self, s)).to_vec();
                (texts, c.values.iter().map(|v| text(self, &v.tensor)).collect())
            })
            .collect();
        let at = self.align();
        self.bytes.resize(at + CHECK_SIZE * list.len(), 0);
        let saved = self.cursor;
        for (k, (c, (texts, tensors))) in list.iter().zip(parts).enumerate() {
            self.cursor = at + CHECK_SIZE * k;
            texts.into_iter().for_each(|t| self.pointer(Pointer::Here(t)));
            for (j, t) in (0..VALUES).zip(tensors.into_iter().map(Some).chain(std::iter::repeat(None))) {
                match t.filter(|_| c.values.get(j).is_some_and(|v| !v.tensor.is_empty())) {
                    Some(t) => self.pointer(Pointer::Here(t)),
                    None => self.cursor += 8,
                }
            }
            (0..VALUES).for_each(|j| self.u32(c.values.get(j).and_then(|v| v.dim).unwrap_or(u32::MAX)));
            self.u32(c.status.map_or(0, |s| s as u32));
            self.u32(c.values.len() as u32);
        }
        self.cursor = saved;
        at
    }
    /// Defines the data object.
    pub fn define(
        mut self,
        module: &mut dyn Module,
        id: DataId,
        functions: &HashMap<u32, FuncId>,
    ) -> ModuleResult<()> {
        self.align();
        let mut d = DataDescription::new();
        let me = module.declare_data_in_data(id, &mut d);
        for (at, p) in &self.pointers {
            match p {
                Pointer::Here(t) => d.write_data_addr(*at as u32, me, *t as i64),
                Pointer::Function(n) => {
                    if let Some(f) = functions.get(n) {
                        let r = module.declare_func_in_data(*f, &mut d);
                        d.write_function_addr(*at as u32, r);
                    }
                }
            }
        }
        d.set_align(16);
        d.define(self.bytes.into_boxed_slice());
        module.define_data(id, &d)
    }
}

/// A number, `-1 - k` for dim param k, or [`UNKNOWN`].
fn dim_code(i: &Interface, d: Dim) -> i64 {
    match (d.as_const(), d.as_sym()) {
        (Some(c), _) => c,
        (_, Some(s)) => i.dim_params.iter().position(|p| p.sym == s).map_or(UNKNOWN, |k| -1 - k as i64),
        _ => UNKNOWN,
    }
}
