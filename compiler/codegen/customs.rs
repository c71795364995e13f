//! Data for custom operators: one relocated data object with the names and attributes of all their nodes. The
//! entry function adds the operands of a call (`clif/custom.rs`).

use super::meta::Meta;
use crate::nest::foreign::{Attribute, Custom};
use cranelift_module::{DataId, Module, ModuleResult};
use std::collections::HashMap;

/// Size of `onnxc_attribute` in bytes with 64-bit pointers.
const ATTRIBUTE_SIZE: usize = 48;

/// Offsets of a node's data in the data object.
#[derive(Clone, Copy, Debug)]
pub struct Texts {
    /// Its operator.
    pub op: u32,
    /// Its name.
    pub node: u32,
    /// Its attributes.
    pub attributes: u32,
}

/// The data object.
pub struct Table {
    data: Meta,
    /// One per node, in order.
    pub texts: Vec<Texts>,
}

/// The name of a node in messages and for its function: its own, or else that of its first result.
pub fn name(c: &Custom) -> &str {
    if c.origin.name.is_empty() { &c.origin.output } else { &c.origin.name }
}

/// Lays out the data object.
pub fn table(list: &[Custom]) -> Table {
    let mut data = Meta::default();
    let texts = list
        .iter()
        .map(|c| {
            let (op, node) = (data.string(&c.origin.op), data.string(name(c)));
            let rows: Vec<[usize; 2]> =
                c.attributes.iter().map(|(n, a)| [data.string(n), values(&mut data, a)]).collect();
            let at = data.zeros(ATTRIBUTE_SIZE * rows.len());
            for (k, ([name, values], (_, a))) in rows.into_iter().zip(&c.attributes).enumerate() {
                let row = at + ATTRIBUTE_SIZE * k;
                data.point(row, name);
                data.write(row + 8, &a.kind().to_le_bytes());
                let (slot, len) = match a {
                    Attribute::Float(_) => (24, 1),
                    Attribute::Floats(v) => (24, v.len()),
                    Attribute::Int(_) => (32, 1),
                    Attribute::Ints(v) => (32, v.len()),
                    Attribute::String(_) => (40, 1),
                    Attribute::Strings(v) => (40, v.len()),
                };
                data.write(row + 16, &(len as u64).to_le_bytes());
                data.point(row + slot, values);
            }
            Texts { op: op as u32, node: node as u32, attributes: at as u32 }
        })
        .collect();
    Table { data, texts }
}

/// The values of an attribute as C arrays.
fn values(data: &mut Meta, a: &Attribute) -> usize {
    let mut numbers = |bytes: Vec<u8>| {
        // An empty array has an address as well.
        let at = data.zeros(bytes.len().max(8));
        data.write(at, &bytes);
        at
    };
    match a {
        Attribute::Float(v) => numbers(v.to_le_bytes().to_vec()),
        Attribute::Floats(v) => numbers(v.iter().flat_map(|v| v.to_le_bytes()).collect()),
        Attribute::Int(v) => numbers(v.to_le_bytes().to_vec()),
        Attribute::Ints(v) => numbers(v.iter().flat_map(|v| v.to_le_bytes()).collect()),
        Attribute::String(v) => strings(data, std::slice::from_ref(v)),
        Attribute::Strings(v) => strings(data, v),
    }
}

fn strings(data: &mut Meta, list: &[Vec<u8>]) -> usize {
    let bytes: Vec<usize> = list
        .iter()
        .map(|s| {
            let at = data.zeros(s.len() + 1);
            data.write(at, s);
            at
        })
        .collect();
    let at = data.zeros(16 * list.len().max(1));
    for (k, (s, b)) in list.iter().zip(bytes).enumerate() {
        data.point(at + 16 * k, b);
        data.write(at + 16 * k + 8, &(s.len() as u64).to_le_bytes());
    }
    at
}

impl Table {
    /// Defines the data object.
    pub fn define(self, module: &mut dyn Module, id: DataId) -> ModuleResult<()> {
        self.data.define(module, id, &HashMap::new())
    }
}
