//! The format of weights files, and the objects that a file fits.
//!
//! ```text
//! 0      magic "onnxcwts"
//! 8      u32 version, u32 bytes before the blob
//! 16     u64 bytes of the blob
//! 24     u64 first byte of the index, u64 its bytes
//! 40     u32 number of plans, zeros
//! 64     SHA-256 of each plan, 32 bytes each
//! 1024   the blob
//!        the index: JSON; constants of the blob with their hashes, and what each plan was made from
//! ```
//!
//! Numbers are little-endian. A *plan* is the complete input of code generation except the values in the
//! blob: the placed nests with the offset of each constant. Objects with equal plans have equal code, so an
//! object accepts every file that contains its plan at the object's index. Several models can share a file:
//! each adds its plan and the constants that the file lacks, without moving existing ones.

use super::tile;
use super::weights::{ALIGN, Blob};
use crate::diag::{Error, Origin, Result, codes};
use crate::nest::{Module, print, visit};
use crate::tensor::ConstData;
use bytes::Bytes;
use rayon::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

/// Bytes before the blob.
pub const HEADER: u64 = 1024;
/// Version and sources of this compiler.
pub const COMPILER: &str = env!("ONNXC_SOURCES");
/// The first bytes of a file.
pub const MAGIC: &[u8; 8] = b"onnxcwts";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Offset of the size of the blob.
pub const SIZE_AT: usize = 16;
/// Offset of the first plan.
pub const PLANS_AT: usize = 64;
/// Bytes of the hash of a plan.
pub const PLAN: usize = 32;
/// Most plans of a file.
pub const MOST_PLANS: usize = (HEADER as usize - PLANS_AT) / PLAN;
/// Larger constants of a model are not stored in the index.
const SMALL: u64 = 512;

/// The first sixteen bytes of all files of this version.
pub fn signature() -> [u8; 16] {
    let mut s = [0; 16];
    s[..8].copy_from_slice(MAGIC);
    s[8..12].copy_from_slice(&VERSION.to_le_bytes());
    s[12..].copy_from_slice(&(HEADER as u32).to_le_bytes());
    s
}

/// The bytes before the blob, without an index.
pub fn header(size: u64, plans: &[[u8; PLAN]]) -> [u8; HEADER as usize] {
    let mut h = [0; HEADER as usize];
    h[..16].copy_from_slice(&signature());
    h[SIZE_AT..SIZE_AT + 8].copy_from_slice(&size.to_le_bytes());
    h[24..32].copy_from_slice(&(HEADER + size).to_le_bytes());
    h[40..44].copy_from_slice(&(plans.len() as u32).to_le_bytes());
    for (to, p) in h[PLANS_AT..].chunks_exact_mut(PLAN).zip(plans) {
        to.copy_from_slice(p);
    }
    h
}

/// The hash of the common input of objects with these modules.
pub fn plan(modules: &[Module], weights: &Blob, target: &str, cpu: &str) -> [u8; PLAN] {
    let texts: Vec<String> = modules
        .par_iter()
        .zip(&weights.layouts)
        .map(|(m, layout)| {
            let text = print::plan::plan(m, &|b| layout.offset(b));
            let kernels = visit::calls(&m.driver).into_iter();
            let told = kernels.flat_map(|k| tile::told_by_constants(m, &m.kernels[k].body));
            text + &told.map(|bit| if bit { '1' } else { '0' }).collect::<String>()
        })
        .collect();
    let mut h = Sha256::new();
    for text in [COMPILER, target, cpu].into_iter().chain(texts.iter().map(String::as_str)) {
        h.update((text.len() as u64).to_le_bytes());
        h.update(text);
    }
    h.finalize().into()
}

/// The input of a plan, used to explain why another model has a different plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Prefix of the identifiers.
    pub model: String,
    /// Version and sources of the compiler.
    pub compiler: String,
    /// Flags and their values, as texts.
    pub settings: Vec<(String, String)>,
    /// Constants of the model in the order of the graph.
    pub constants: Vec<Constant>,
}

/// A constant of a model: an initializer or the value of a Constant node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    /// Its name.
    pub name: String,
    /// Type and shape.
    pub ty: String,
    /// Its bytes, if they are few.
    pub value: Option<Vec<u8>>,
}

impl Constant {
    /// From a constant of the graph.
    pub fn new(name: &str, c: &ConstData) -> Constant {
        let dims: Vec<String> = c.dims().iter().map(i64::to_string).collect();
        let value = (c.byte_len() <= SMALL).then(|| c.bytes().to_vec());
        Constant { name: name.to_owned(), ty: format!("{} [{}]", c.elem(), dims.join(", ")), value }
    }
}

impl Made {
    fn json(&self) -> Value {
        let constant = |c: &Constant| {
            json!({ "name": c.name, "type": c.ty,
            "value": c.value.as_deref().map(super::header::hex) })
        };
        json!({
            "model": self.model,
            "compiler": self.compiler,
            "settings": self.settings.iter().map(|(k, v)| json!([k, v])).collect::<Vec<_>>(),
            "constants": self.constants.iter().map(constant).collect::<Vec<_>>(),
        })
    }
    fn read(v: &Value) -> Option<Made> {
        let text = |v: &Value| v.as_str().map(str::to_owned);
        let constant = |v: &Value| {
            let value = match &v["value"] {
                Value::Null => None,
                digits => Some(unhex(digits.as_str()?)?),
            };
            Some(Constant { name: text(&v["name"])?, ty: text(&v["type"])?, value })
        };
        let list = |v: &'_ Value| v.as_array().cloned();
        Some(Made {
            model: text(&v["model"])?,
            compiler: text(&v["compiler"])?,
            settings: list(&v["settings"])?
                .iter()
                .map(|s| Some((text(&s[0])?, text(&s[1])?)))
                .collect::<Option<_>>()?,
            constants: list(&v["constants"])?.iter().map(constant).collect::<Option<_>>()?,
        })
    }
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.as_bytes().chunks(2).map(byte).collect()
}

/// A constant in a file.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    offset: u64,
    bytes: u64,
    sha256: String,
}

/// A weights file that has been read.
#[derive(Debug)]
pub struct WeightsFile {
    bytes: Bytes,
    size: u64,
    plans: Vec<[u8; PLAN]>,
    made: Vec<Made>,
    entries: Vec<Entry>,
    /// Indices of the entries by size and hash. A constant is hashed only if an entry has its size.
    index: HashMap<u64, HashMap<String, Vec<usize>>>,
}

impl WeightsFile {
    /// Checks that a file of this name is complete.
    pub fn new(bytes: Bytes, name: &str) -> Result<WeightsFile> {
        WeightsFile::read(bytes).map_err(|(found, expected)| {
            Error::new(codes::WEIGHTS_FILE, "this is no weights file that onnxc reads")
                .at(&Origin::file(name))
                .found_expected(found, expected)
                .help("write it again: onnxc MODEL --weights file")
                .into()
        })
    }
    fn read(bytes: Bytes) -> std::result::Result<WeightsFile, (String, String)> {
        let len = bytes.len() as u64;
        let head = bytes.get(..HEADER as usize).filter(|h| h.starts_with(MAGIC));
        let Some(head) = head else {
            return Err((
                format!("{len} bytes"),
                format!("{HEADER} bytes that begin with \"onnxcwts\", and more"),
            ));
        };
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|k| head[at + k]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|k| head[at + k]));
        if head[..16] != signature() {
            return Err((format!("version {}", u32_at(8)), format!("version {VERSION}")));
        }
        let (size, index_at, index_len) = (u64_at(SIZE_AT), u64_at(24), u64_at(32));
        let end = index_at.checked_add(index_len);
        if HEADER.checked_add(size) != Some(index_at)
            || end.is_none_or(|e| e > len)
            || !size.is_multiple_of(ALIGN)
        {
            return Err((
                format!("{len} bytes"),
                "all that the head of the file tells: it may be cut short".into(),
            ));
        }
        let count = u32_at(40) as usize;
        let plans: Vec<[u8; PLAN]> =
            head[PLANS_AT..].chunks_exact(PLAN).take(count).map(|p| std::array::from_fn(|k| p[k])).collect();
        let parsed = serde_json::from_slice::<Value>(&bytes[index_at as usize..][..index_len as usize]).ok();
        let parts = parsed.and_then(|v| {
            let made: Vec<Made> = v["plans"].as_array()?.iter().map(Made::read).collect::<Option<_>>()?;
            let entries: Vec<Entry> =
                v["parts"].as_array()?.iter().map(|p| Entry::read(p, size)).collect::<Option<_>>()?;
            (made.len() == count && plans.len() == count && count > 0).then_some((made, entries))
        });
        let Some((made, entries)) = parts else {
            return Err(("an index that does not fit the file".into(), "the index that onnxc wrote".into()));
        };
        let mut index: HashMap<u64, HashMap<String, Vec<usize>>> = HashMap::new();
        for (i, e) in entries.iter().enumerate() {
            index.entry(e.bytes).or_default().entry(e.sha256.clone()).or_default().push(i);
        }
        Ok(WeightsFile { bytes, size, plans, made, entries, index })
    }
    /// Bytes of the blob.
    pub fn size(&self) -> u64 {
        self.size
    }
    /// The blob.
    pub fn blob(&self) -> &[u8] {
        &self.bytes[HEADER as usize..][..self.size as usize]
    }
    /// Plans of the objects that it fits.
    pub fn plans(&self) -> &[[u8; PLAN]] {
        &self.plans
    }
    /// The index of a plan; for a new plan, the next free one.
    pub fn slot(&self, plan: &[u8; PLAN]) -> u32 {
        self.plans.iter().position(|p| p == plan).unwrap_or(self.plans.len()) as u32
    }
    /// The inputs of the plans.
    pub fn made(&self) -> &[Made] {
        &self.made
    }
    /// The offset of a constant with these bytes, preferably one of the same name. A constant whose elements
    /// are all equal requires the same name: the zeros of two biases are equal only until they are trained.
    pub fn find(&self, name: &str, c: &ConstData) -> Option<u64> {
        let known = self.index.get(&c.byte_len())?.get(&digest(c))?;
        let found = || known.iter().map(|i| &self.entries[*i]);
        let named = found().find(|e| e.name == name);
        let any = || found().next().filter(|_| !c.is_splat());
        named.or_else(any).filter(|e| self.holds(e, c)).map(|e| e.offset)
    }
    /// True if the blob contains the bytes; the index may be wrong.
    fn holds(&self, e: &Entry, c: &ConstData) -> bool {
        let (mut rest, mut same) = (&self.blob()[e.offset as usize..], true);
        c.stream(&mut |piece| {
            same &= rest.starts_with(piece);
            rest = rest.get(piece.len()..).unwrap_or(&[]);
        });
        same
    }
}

impl Entry {
    fn read(v: &Value, size: u64) -> Option<Entry> {
        let e = Entry {
            name: v["name"].as_str()?.to_owned(),
            offset: v["offset"].as_u64()?,
            bytes: v["bytes"].as_u64()?,
            sha256: v["sha256"].as_str()?.to_owned(),
        };
        let fits =
            e.offset.is_multiple_of(ALIGN) && e.offset.checked_add(e.bytes).is_some_and(|end| end <= size);
        fits.then_some(e)
    }
    fn json(&self) -> Value {
        json!({ "name": self.name, "offset": self.offset, "bytes": self.bytes, "sha256": self.sha256 })
    }
}

/// SHA-256 of a constant's bytes.
fn digest(c: &ConstData) -> String {
    let mut h = Sha256::new();
    c.stream(&mut |b| h.update(b));
    super::header::hex(&h.finalize())
}

/// Writes a file with the blob, the plans of its base, and this plan.
pub fn write(weights: &Blob, plan: &[u8; PLAN], made: &Made, out: &mut dyn Write) -> std::io::Result<()> {
    let base = weights.base.as_deref();
    let mut plans = base.map_or(vec![], |b| b.plans.clone());
    let mut all: Vec<Value> = base.map_or(vec![], |b| b.made.iter().map(Made::json).collect());
    let slot = base.map_or(0, |b| b.slot(plan)) as usize;
    match all.get_mut(slot) {
        Some(known) => *known = made.json(),
        None => {
            plans.push(*plan);
            all.push(made.json());
        }
    }
    let mut entries: Vec<Value> = base.map_or(vec![], |b| b.entries.iter().map(Entry::json).collect());
    entries.par_extend(weights.parts.par_iter().map(|p| {
        let (bytes, sha256) = (p.data.byte_len(), digest(&p.data));
        Entry { name: p.name.clone(), offset: p.offset, bytes, sha256 }.json()
    }));
    let index = json!({ "plans": all, "parts": entries }).to_string();
    let mut head = header(weights.size, &plans);
    head[32..40].copy_from_slice(&(index.len() as u64).to_le_bytes());
    out.write_all(&head)?;
    let mut result = Ok(());
    weights.stream(&mut |b| {
        if result.is_ok() {
            result = out.write_all(b);
        }
    });
    result?;
    out.write_all(index.as_bytes())?;
    out.flush()
}

/// The file that a model is to share, if it has room for another plan.
pub fn base(bytes: Bytes, name: &str) -> Result<Arc<WeightsFile>> {
    let file = WeightsFile::new(bytes, name)?;
    if file.plans.len() > MOST_PLANS - 1 {
        return Error::new(codes::WEIGHTS_FILE, "the weights file is shared by too many models")
            .at(&Origin::file(name))
            .found_expected(format!("{} models", file.plans.len()), format!("less than {MOST_PLANS}"))
            .help("write another file: onnxc MODEL --weights file")
            .fail();
    }
    Ok(Arc::new(file))
}
