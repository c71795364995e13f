//! The Rust module of a compiled model, for `include!`: `no_std`, no dependencies, a safe `infer` whose types
//! or checks carry the sizes. Here is also `Dialect`, how the header and the module write dims.

use super::header::{
    MANY, dim_max, fixed_workspace, from_data, from_params, hex, local, plain, plan_at, prefix, storage,
    tensors, type_text, weights_size,
};
use super::interface::{DimParam, Interface, Tensor};
use super::meta::ABI_VERSION;
use super::rust_error::{self, FAULT_TYPES};
use super::rust_value::{STRINGS, VALUE};
use crate::sym::{Atom, Dim, Sym, View};
use crate::tensor::ElemType;
use std::fmt::Write;

/// How a language writes dims.
pub(super) struct Dialect<'a> {
    /// What helper names begin with.
    pub call: &'a str,
    /// A number.
    pub number: &'a dyn Fn(i64) -> String,
    /// A dim param.
    pub param: &'a dyn Fn(&DimParam) -> String,
}

impl Dialect<'_> {
    /// Nested calls of `add`, `mul`, `floordiv`, `floormod`, `min`, `max`, each of which keeps to the
    /// integers or has no value. Dims that follow from data have none either.
    pub fn dim(&self, i: &Interface, d: Dim) -> String {
        match d.view() {
            View::Const(c) => (self.number)(c),
            View::Overflow => self.fold("floordiv", [(self.number)(0), (self.number)(0)]),
            View::Sum { terms, constant } => {
                let rest = if constant == 0 { None } else { Some((self.number)(constant)) };
                self.fold("add", terms.iter().map(|(c, atoms)| self.term(i, *c, atoms)).chain(rest))
            }
        }
    }
    fn term(&self, i: &Interface, c: i64, atoms: &[Atom]) -> String {
        let factor = if c == 1 { None } else { Some((self.number)(c)) };
        self.fold("mul", factor.into_iter().chain(atoms.iter().map(|a| self.atom(i, a))))
    }
    fn atom(&self, i: &Interface, a: &Atom) -> String {
        match a {
            Atom::Sym(s) => self.sym(i, *s),
            Atom::FloorDiv(x, y) => self.fold("floordiv", [self.dim(i, *x), self.dim(i, *y)]),
            Atom::Mod(x, y) => self.fold("floormod", [self.dim(i, *x), self.dim(i, *y)]),
            Atom::Min(v) => self.fold("min", v.iter().map(|d| self.dim(i, *d))),
            Atom::Max(v) => self.fold("max", v.iter().map(|d| self.dim(i, *d))),
        }
    }
    fn sym(&self, i: &Interface, s: Sym) -> String {
        match i.dim_params.iter().find(|p| p.sym == s) {
            Some(p) => (self.param)(p),
            None => self.fold("floordiv", [(self.number)(0), (self.number)(0)]),
        }
    }
    /// A chain of calls, from the left.
    pub fn fold(&self, op: &str, args: impl IntoIterator<Item = String>) -> String {
        args.into_iter()
            .reduce(|a, b| format!("{}{op}({a}, {b})", self.call))
            .unwrap_or_else(|| (self.number)(1))
    }
}

/// Exact arithmetic on sizes in the generated module.
const SIZE: &str = r"/// Exact arithmetic on sizes: no value on overflow and on division by zero.
#[allow(dead_code)]
mod size {
    pub fn add(a: Option<i64>, b: Option<i64>) -> Option<i64> { a?.checked_add(b?) }
    pub fn mul(a: Option<i64>, b: Option<i64>) -> Option<i64> { a?.checked_mul(b?) }
    pub fn floordiv(a: Option<i64>, b: Option<i64>) -> Option<i64> {
        let (a, b) = (a?, b?);
        let q = a.checked_div(b)?;
        Some(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
    }
    pub fn floormod(a: Option<i64>, b: Option<i64>) -> Option<i64> {
        let (a, b) = (a?, b?);
        let r = a.checked_rem(b)?;
        Some(if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
    }
    pub fn min(a: Option<i64>, b: Option<i64>) -> Option<i64> { Some(a?.min(b?)) }
    pub fn max(a: Option<i64>, b: Option<i64>) -> Option<i64> { Some(a?.max(b?)) }
    /// As an index type.
    pub fn index(n: Option<i64>, text: &'static str) -> Result<usize, super::Error> {
        n.and_then(|n| usize::try_from(n).ok()).ok_or(super::Error::local(super::Status::Dim, text, n.unwrap_or(-1), 0))
    }
}
";

/// What functions of custom operators are called with.
const CUSTOM: &str = include_str!("rust_custom.rs.txt");
/// What a call is told beside its arguments.
const EXEC: &str = include_str!("rust_exec.rs.txt");

/// Workspace of a fixed size.
const FIXED_WORKSPACE: &str = "
/// Scratch memory for one call at a time. `const fn new` so that it can be a `static`; no allocation.
#[repr(C, align(64))]
pub struct Workspace(core::mem::MaybeUninit<[u8; WORKSPACE_SIZE]>);
impl Workspace {
    /// Contents are undefined, before a call as well as after it.
    pub const fn new() -> Self { Workspace(core::mem::MaybeUninit::uninit()) }
}
impl Default for Workspace { fn default() -> Self { Self::new() } }
";

/// Workspace of a size that depends on dims.
const SLICE_WORKSPACE: &str = "
/// 64 aligned bytes that a [`Workspace`] is made of.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Block([core::mem::MaybeUninit<u8>; 64]);
impl Block {
    /// Contents are undefined.
    pub const fn new() -> Self { Block([core::mem::MaybeUninit::uninit(); 64]) }
    /// How many blocks hold that many bytes.
    pub const fn count(bytes: usize) -> usize { bytes.div_ceil(64) }
}
impl Default for Block { fn default() -> Self { Self::new() } }

/// Scratch memory of the caller for one call at a time, which is checked to be large enough.
pub struct Workspace<'a>(&'a mut [Block]);
impl<'a> Workspace<'a> {
    /// [`Block::count`] tells how many blocks a size takes. Where values whose size follows from data need
    /// more, the error tells how much: `Error::workspace_size`.
    pub const fn new(blocks: &'a mut [Block]) -> Self { Workspace(blocks) }
    /// The aligned part of any memory: up to 126 bytes at its ends are not used.
    pub fn from_bytes(bytes: &'a mut [core::mem::MaybeUninit<u8>]) -> Self {
        // SAFETY: a block is 64 bytes of any contents, initialised or not.
        Workspace(unsafe { bytes.align_to_mut::<Block>() }.1)
    }
    /// Its bytes.
    pub const fn size(&self) -> usize { core::mem::size_of_val::<[Block]>(self.0) }
}
";

/// Elements of tensors of strings.
const STR: &str = "
/// A string in memory that someone else owns: an element of a tensor of strings.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Str<'a> {
    data: *const u8,
    #[cfg(target_pointer_width = \"32\")]
    padding: u32,
    len: i64,
    of: core::marker::PhantomData<&'a str>,
}
impl<'a> Str<'a> {
    /// No bytes: what elements of outputs may be before a call.
    pub const EMPTY: Self = Str::new(\"\");
    /// Shows a string.
    pub const fn new(s: &'a str) -> Self {
        Str {
            data: s.as_ptr(),
            #[cfg(target_pointer_width = \"32\")]
            padding: 0,
            len: s.len() as i64,
            of: core::marker::PhantomData,
        }
    }
    /// The string.
    pub const fn as_str(self) -> &'a str {
        // SAFETY: address and length are those of a string, or were written by the model, which cuts and
        // joins strings between code points only.
        unsafe { core::str::from_utf8_unchecked(core::slice::from_raw_parts(self.data, self.len as usize)) }
    }
}
impl<'a> From<&'a str> for Str<'a> { fn from(s: &'a str) -> Self { Str::new(s) } }
impl Default for Str<'_> { fn default() -> Self { Str::EMPTY } }
impl PartialEq for Str<'_> { fn eq(&self, o: &Self) -> bool { self.as_str() == o.as_str() } }
impl core::fmt::Debug for Str<'_> { fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { self.as_str().fmt(f) } }
impl core::fmt::Display for Str<'_> { fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { f.write_str(self.as_str()) } }
// SAFETY: it is a shared reference to a string.
unsafe impl Send for Str<'_> {}
// SAFETY: as above.
unsafe impl Sync for Str<'_> {}
";

fn number(v: i64) -> String {
    format!("Some({v})")
}

/// One argument of `infer`: name, type in `extern "C"`, type in Rust, expression handed over.
struct Arg {
    name: String,
    c: String,
    rust: String,
    pass: String,
}

impl Arg {
    /// True for an input that is the memory of an output, which stands for both.
    fn is_shared(&self) -> bool {
        self.rust.is_empty()
    }
}

/// Text of the Rust module.
pub fn rust_module(i: &Interface) -> String {
    let r = Rust { i, dynamic: !i.dim_params.is_empty(), dims: local(i, "dims"), values: local(i, "values") };
    let mut o = format!(
        "// {}.rs - generated by {} (ABI {ABI_VERSION}) from {}; include!() it in a module\n",
        i.name,
        plain(&i.producer),
        plain(&i.model_file)
    );
    r.sys(&mut o);
    r.constants(&mut o);
    o.push_str(EXEC);
    if !i.customs.is_empty() {
        o.push_str(CUSTOM);
    }
    o.push_str(if r.fixed() { FIXED_WORKSPACE } else { SLICE_WORKSPACE });
    let is_str = |t: &Tensor| {
        t.ty == ElemType::Str || t.described.as_ref().is_some_and(|d| d.key == Some(ElemType::Str))
    };
    let strings = tensors(i).any(|(_, t)| is_str(t));
    if strings {
        o.push_str(STR);
    }
    rust_error::error(&mut o, &i.name);
    if r.dynamic || tensors(i).any(|(_, t)| from_data(i, t)) {
        o.push_str(SIZE);
    }
    if r.dynamic {
        r.dims(&mut o);
    }
    let described = tensors(i).any(|(_, t)| t.described.is_some());
    if described {
        o.push_str(VALUE);
        if strings {
            o.push_str(STRINGS);
        }
    }
    r.infer(&mut o);
    if i.inputs.len() + i.outputs.len() > MANY && !described {
        r.structs(&mut o);
    }
    o.lines()
        .map(|l| format!("{}{l}\n", if may_be_unused(l) { "#[allow(dead_code)] " } else { "" }))
        .collect()
}

/// True for the lines that begin items of which an application may use only some.
fn may_be_unused(line: &str) -> bool {
    line.starts_with("pub ") || line.starts_with("impl") && !line.contains(" for ")
}

struct Rust<'a> {
    i: &'a Interface,
    /// It has dim params.
    dynamic: bool,
    /// Names of the argument with the dims and of their checked values.
    dims: String,
    values: String,
}

impl Rust<'_> {
    /// True if a workspace has a size that nobody needs to choose.
    fn fixed(&self) -> bool {
        fixed_workspace(self.i).is_some() && self.i.heap == 0
    }
    /// Length of the array that holds a tensor of fixed size.
    fn array(&self, t: &Tensor) -> String {
        format!(
            "[{}; {}_{}]",
            self.element(t),
            prefix(self.i, t),
            if t.ty.bytes().is_some() { "LEN" } else { "SIZE" }
        )
    }
    /// True if outputs borrow from inputs, weights and workspace: strings, and values of several tensors.
    fn lends(&self) -> bool {
        self.i.outputs.iter().any(|t| t.ty == ElemType::Str || t.described.is_some())
    }
    /// An element; strings live as long as what they may lie in.
    fn element(&self, t: &Tensor) -> String {
        let lifetime = if self.lends() { "'s" } else { "'_" };
        storage(t.ty).1.replace("'_", lifetime)
    }
    fn out_dims(&self, t: &Tensor) -> String {
        local(self.i, &format!("{}_dims", t.ident))
    }
    /// Arguments after the dims.
    fn args(&self) -> Vec<Arg> {
        let i = self.i;
        let mut v = vec![];
        for (what, t) in tensors(i) {
            // One borrow for both, the output's; the pointer has the name of the input.
            let inputs = || i.outputs.iter().filter_map(|o| Some((o, &i.inputs[o.aliases_input? as usize])));
            if what == "input" && inputs().any(|(_, x)| std::ptr::eq(x, t)) {
                v.push(Arg {
                    name: t.ident.clone(),
                    c: format!("*const {}", storage(t.ty).1),
                    rust: String::new(),
                    pass: t.ident.clone(),
                });
                continue;
            }
            let ((pointer, reference, method), elem) = (
                if what == "input" { ("*const", "&", "as_ptr") } else { ("*mut", "&mut ", "as_mut_ptr") },
                storage(t.ty).1,
            );
            if t.described.is_some() {
                let (c, rust) = if what == "input" {
                    ("*const super::Value<'_>", if self.lends() { "&Value<'s>" } else { "&Value<'_>" })
                } else {
                    ("*mut super::Value<'_>", "&mut Value<'s>")
                };
                v.push(Arg { name: t.ident.clone(), c: c.into(), rust: rust.into(), pass: t.ident.clone() });
                continue;
            }
            let body = if t.len().is_some() { self.array(t) } else { format!("[{}]", self.element(t)) };
            let elem = elem.replace("Str", "super::Str");
            let pass = inputs()
                .find(|(o, _)| std::ptr::eq(*o, t))
                .map_or_else(|| format!("{}.{method}()", t.ident), |(_, x)| x.ident.clone());
            v.push(Arg {
                name: t.ident.clone(),
                c: format!("{pointer} {elem}"),
                rust: format!("{reference}{body}"),
                pass,
            });
        }
        for t in i.outputs.iter().filter(|t| from_data(i, t)) {
            let name = self.out_dims(t);
            v.push(Arg {
                c: "*mut i64".into(),
                rust: format!("&mut [i64; {}]", t.dims.len()),
                pass: format!("{name}.as_mut_ptr()"),
                name,
            });
        }
        if i.weights.external {
            v.push(Arg {
                name: "weights".into(),
                c: "*const core::ffi::c_void".into(),
                rust: if self.lends() { "&'s [u8]".into() } else { "&[u8]".into() },
                pass: "weights.as_ptr().cast()".into(),
            });
        }
        let rust = if self.fixed() { "&mut Workspace" } else { "&mut Workspace<'_>" };
        let rust = if self.lends() { rust.replace("&mut", "&'s mut") } else { rust.to_owned() };
        v.push(Arg {
            name: "workspace".into(),
            c: "*mut core::ffi::c_void".into(),
            rust,
            pass: "workspace.0.as_mut_ptr().cast()".into(),
        });
        v
    }
    fn sys(&self, o: &mut String) {
        let (i, m) = (self.i, &self.i.name);
        o.push_str(
            "#[allow(non_upper_case_globals, non_snake_case, dead_code)]
mod sys {
    pub type ParallelFor = unsafe extern \"C\" fn(*mut core::ffi::c_void, usize, unsafe extern \"C\" fn(*mut core::ffi::c_void, usize), *mut core::ffi::c_void);
    pub type OnNode = unsafe extern \"C\" fn(*mut core::ffi::c_void, u32, i32) -> i32;
    #[repr(C)] pub struct Exec { pub struct_size: usize, pub user: *mut core::ffi::c_void, pub parallel_for: Option<ParallelFor>,
        pub max_tasks: usize, pub on_node: Option<OnNode>, pub workspace_size: u64, pub fault: *mut Fault }\n",
        );
        o.push_str(FAULT_TYPES);
        o.push_str("    unsafe extern \"C\" {\n");
        let dims: Vec<String> = i.dim_params.iter().map(|p| format!("{}: i64", p.ident)).collect();
        let all: Vec<String> =
            dims.iter().cloned().chain(self.args().iter().map(|a| format!("{}: {}", a.name, a.c))).collect();
        let all = all.join(", ");
        let exec = local(i, "exec");
        let _ = writeln!(
            o,
            "        pub static {m}_model: Model;\n        pub fn {m}_infer({all}) -> i32;\n        pub fn {m}_infer_exec({all}, {exec}: *const Exec) -> i32;"
        );
        if self.dynamic {
            let _ = writeln!(
                o,
                "        pub fn {m}_workspace_size({}, {}: *mut u64) -> i32;",
                dims.join(", "),
                local(i, "bytes")
            );
        }
        o.push_str("    }\n}\n");
    }
    fn constants(&self, o: &mut String) {
        let i = self.i;
        for p in &i.dim_params {
            let d = p.ident.to_ascii_uppercase();
            let _ = writeln!(
                o,
                "/// Smallest dimension `{0}`.\npub const {d}_MIN: usize = {1};\n/// Largest dimension `{0}`.\npub const {d}_MAX: usize = {2};",
                plain(&p.name),
                p.lo.max(0),
                dim_max(p)
            );
        }
        for (what, t) in tensors(i).filter(|(_, t)| t.described.is_none()) {
            let p = prefix(i, t);
            let about = format!("{what} `\"{}\"`: {}", plain(&t.name), code(&type_text(i, t)));
            let fixed: Option<Vec<i64>> = t.dims.iter().map(|d| d.as_const()).collect();
            let most: Option<Vec<i64>> = t.max_dims.iter().map(|d| d.filter(|d| *d >= 0)).collect();
            let (bound, text, dims, len) = if t.len().is_some() {
                ("", "", fixed, t.len())
            } else {
                ("MAX_", "Upper bound: ", most, t.max_len())
            };
            if let Some(d) = dims {
                let list = d.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
                let _ = writeln!(
                    o,
                    "/// {text}{about}\npub const {p}_{bound}DIMS: [usize; {}] = [{list}];",
                    d.len()
                );
            }
            if let Some(n) = len {
                let _ = writeln!(
                    o,
                    "/// {text}elements of {what} `\"{}\"`\npub const {p}_{bound}LEN: usize = {n};",
                    plain(&t.name)
                );
            }
            if let Some(n) = len.and_then(|n| t.ty.bytes_for(n)).filter(|_| t.ty.bytes().is_none()) {
                let _ = writeln!(
                    o,
                    "/// {text}bytes of {what} `\"{}\"`, several elements in each\npub const {p}_{bound}SIZE: usize = {n};",
                    plain(&t.name)
                );
            }
        }
        if i.trace {
            let list: String = i
                .nodes
                .iter()
                .map(|n| format!("    ({:?}, {:?}),\n", plain(&n.name), plain(&n.op)))
                .collect();
            let _ = writeln!(
                o,
                "/// Name and operator of each node, by the number that [`Exec::on_node`] gets.\npub const NODES: &[(&str, &str)] = &[\n{list}];"
            );
        }
        let _ = match (fixed_workspace(i), i.workspace_max) {
            (Some(n), _) => writeln!(
                o,
                "/// Bytes of [`Workspace`]{}.\npub const WORKSPACE_SIZE: usize = {n};",
                if self.fixed() { "" } else { " for a start" }
            ),
            (None, Some(n)) => writeln!(
                o,
                "/// Upper bound of [`workspace_size`].\npub const WORKSPACE_MAX_SIZE: usize = {n};"
            ),
            (None, None) => Ok(()),
        };
        if i.weights.external {
            let _ = writeln!(
                o,
                "/// Bytes of the file `{}` that a call may read, from its beginning.\npub const WEIGHTS_SIZE: usize = {};",
                plain(&i.weights.file),
                weights_size(i)
            );
            let _ = writeln!(
                o,
                "/// Alignment of the weights in memory.\npub const WEIGHTS_ALIGN: usize = {};",
                i.weights.align.max(1)
            );
            let _ = writeln!(
                o,
                "/// The plan of the object: 32 bytes of the weights file at {}. A file with the same plan and other\n/// values fits, too: `onnxc weights MODEL --fits {}`.\npub const WEIGHTS_PLAN: &str =\n    \"{}\";",
                plan_at(i),
                plain(&i.weights.file),
                hex(&i.weights.plan)
            );
        }
    }
    /// `Dims`, its sizes, and `workspace_size`.
    fn dims(&self, o: &mut String) {
        let i = self.i;
        let n = i.dim_params.len();
        o.push_str("\n/// Sizes that the caller chooses.\n#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\npub struct Dims {\n");
        for p in &i.dim_params {
            let _ = writeln!(
                o,
                "    /// Dimension `{}`: {} to {}.\n    pub {}: usize,",
                plain(&p.name),
                p.lo,
                dim_max(p),
                p.ident
            );
        }
        let _ = writeln!(o, "}}\nimpl Dims {{\n    fn values(&self) -> Result<[i64; {n}], Error> {{");
        for p in &i.dim_params {
            let text =
                format!("dimension {} is %lld: it must be from {} to {}", named(&p.name), p.lo, dim_max(p));
            let _ = writeln!(
                o,
                "        if !i64::try_from(self.{0}).is_ok_and(|n| ({1}..={2}).contains(&n)) {{ return Err(Error::local(Status::Dim, {text:?}, self.{0} as i64, 0)); }}",
                p.ident,
                p.lo,
                dim_max(p)
            );
        }
        let list: Vec<String> = i.dim_params.iter().map(|p| format!("self.{} as i64", p.ident)).collect();
        let _ = writeln!(o, "        Ok([{}])\n    }}", list.join(", "));
        let param = |p: &DimParam| {
            format!("Some(v[{}])", i.dim_params.iter().position(|q| q.sym == p.sym).unwrap_or(0))
        };
        let d = Dialect { call: "size::", number: &number, param: &param };
        for (what, t) in tensors(i).filter(|(_, t)| from_params(i, t)) {
            let (x, rank) = (&t.ident, t.dims.len());
            let used = t.dims.iter().any(|d| d.as_const().is_none());
            let _ =
                writeln!(o, "    /// Dims of {what} `\"{}\"`: {}.", plain(&t.name), code(&type_text(i, t)));
            let _ = writeln!(
                o,
                "    pub fn {x}_dims(&self) -> Result<[usize; {rank}], Error> {{\n        let {} = self.values()?;",
                if used { "v" } else { "_" }
            );
            let text = |k: usize| {
                format!(
                    "{what} {} dimension {k} would be %lld: it must not be negative or too large",
                    named(&t.name)
                )
            };
            let list: Vec<String> = t
                .dims
                .iter()
                .enumerate()
                .map(|(k, e)| format!("size::index({}, {:?})?", d.dim(i, *e), text(k)))
                .collect();
            let _ = writeln!(o, "        Ok([{}])\n    }}", list.join(", "));
            let (note, count) = match t.ty.bytes() {
                Some(_) => ("Elements", "Some(n)".to_owned()),
                None => (
                    "Bytes",
                    format!(
                        "size::floordiv(size::add(size::mul(Some(n), Some({})), Some(7)), Some(8))",
                        t.ty.bits()
                    ),
                ),
            };
            let large = format!("{what} {} would be too large", named(&t.name));
            let _ =
                writeln!(o, "    /// {note} of {what} `\"{}\"`: the length of its slice.", plain(&t.name));
            let _ = writeln!(
                o,
                "    pub fn {x}_len(&self) -> Result<usize, Error> {{\n        let n = self.{x}_dims()?.iter().try_fold(1i64, |n, d| n.checked_mul(*d as i64)).ok_or(Error::local(Status::Dim, {large:?}, 0, 0))?;\n        size::index({count}, {large:?})\n    }}"
            );
        }
        o.push_str("}\n");
        let list: Vec<String> = (0..n).map(|k| format!("v[{k}]")).collect();
        let _ = writeln!(
            o,
            "/// Bytes of workspace that [`infer`] needs for these dims.\npub fn workspace_size(dims: &Dims) -> Result<usize, Error> {{\n    let v = dims.values()?;\n    let mut bytes = 0u64;"
        );
        let _ = writeln!(
            o,
            "    // SAFETY: the pointer is to a live `u64`; all else are numbers.\n    let rc = unsafe {{ sys::{}_workspace_size({}, &mut bytes) }};",
            i.name,
            list.join(", ")
        );
        let nulls: Vec<String> = self
            .args()
            .iter()
            .map(|a| {
                if a.c.starts_with("*const") {
                    "core::ptr::null()".into()
                } else {
                    "core::ptr::null_mut()".into()
                }
            })
            .collect();
        let _ = writeln!(
            o,
            "    if rc != 0 {{\n        let mut fault = NO_FAULT;\n        let exec = exec(0, &mut fault, &mut Exec::default());\n        // SAFETY: the sizes are checked before any memory is read or written, and these fail.\n        let rc = unsafe {{ sys::{}_infer_exec({}, {}, &exec) }};\n        status(rc, &fault)?;\n    }}\n    usize::try_from(bytes).map_err(|_| Error::local(Status::Capacity, \"the workspace would be too large\", 0, 0))\n}}",
            i.name,
            list.join(", "),
            nulls.join(", ")
        );
    }
    fn infer(&self, o: &mut String) {
        let (i, values) = (self.i, &self.values);
        let args = self.args();
        o.push_str(if tensors(i).all(|(_, t)| t.len().is_some()) {
            "\n/// Runs the model once. The array types carry the lengths, so a wrong size does not compile.\n"
        } else {
            "\n/// Runs the model once. An input must have the length that the dims imply; an output may be longer, its rest is not touched.\n"
        });
        for t in i.outputs.iter().filter(|t| from_data(i, t)) {
            let _ = writeln!(
                o,
                "/// `{0}`: the dims that `{1}` has room for; then its dims, also with [`Status::Capacity`].",
                self.out_dims(t),
                t.ident
            );
        }
        if i.weights.external {
            let _ = writeln!(
                o,
                "/// `weights`: contents of the file `{}`, aligned to [`WEIGHTS_ALIGN`], such as a mapping.",
                plain(&i.weights.file)
            );
        }
        for t in &i.outputs {
            if let Some(x) = t.aliases_input.map(|k| &i.inputs[k as usize]) {
                let _ = writeln!(
                    o,
                    "/// `{}`: holds input `\"{}\"`; what is there stays, and what is new is stored behind it.",
                    t.ident,
                    plain(&x.name)
                );
            }
        }
        let mut params: Vec<String> =
            args.iter().filter(|a| !a.is_shared()).map(|a| format!("{}: {}", a.name, a.rust)).collect();
        let mut given: Vec<String> = args.iter().map(|a| a.pass.clone()).collect();
        if self.dynamic {
            params.insert(0, format!("{}: &Dims", self.dims));
            given.splice(0..0, (0..i.dim_params.len()).map(|k| format!("{values}[{k}]")));
        }
        if params.len() > 7 {
            o.push_str("#[allow(clippy::too_many_arguments)]\n");
        }
        for (what, t) in tensors(i).filter(|(_, t)| t.described.is_some()) {
            let _ = writeln!(o, "/// `{}`: {what} `\"{}\"`, `{}`.", t.ident, plain(&t.name), type_text(i, t));
        }
        if i.outputs.iter().any(|t| t.described.is_some()) {
            o.push_str(
                "/// What a result of type [`Value`] shows lies in the workspace, which it borrows.\n",
            );
        }
        if i.outputs.iter().any(|t| t.ty == ElemType::Str) {
            o.push_str(
                "/// Strings of outputs lie in inputs, in weights or in the workspace, which they borrow.\n",
            );
        }
        let lifetimes = if self.lends() { "<'s>" } else { "" };
        let (fault, exec) = (local(i, "fault"), local(i, "exec"));
        let mut names: Vec<String> = args.iter().filter(|a| !a.is_shared()).map(|a| a.name.clone()).collect();
        if self.dynamic {
            names.insert(0, self.dims.clone());
        }
        let _ = writeln!(
            o,
            "pub fn infer{lifetimes}({}) -> Result<(), Error> {{\n    infer_exec({}, &mut Exec::default())\n}}",
            params.join(", "),
            names.join(", ")
        );
        params.push(format!("{exec}: &mut Exec<'_>"));
        o.push_str("/// [`infer`] with threads of the application, and telling it of nodes.\n");
        if params.len() > 7 {
            o.push_str("#[allow(clippy::too_many_arguments)]\n");
        }
        let _ = writeln!(o, "pub fn infer_exec{lifetimes}({}) -> Result<(), Error> {{", params.join(", "));
        if self.dynamic {
            let _ = writeln!(o, "    let {values} = {}.values()?;", self.dims);
        }
        for (what, t) in tensors(i)
            .filter(|(_, t)| t.len().is_none() && !args.iter().any(|a| a.is_shared() && a.name == t.ident))
        {
            let x = &t.ident;
            let _ = match (what, from_data(i, t)) {
                ("input", false) => {
                    let text = format!("input {} has the length %lld: these sizes take %lld", named(&t.name));
                    writeln!(
                        o,
                        "    if {x}.len() != {0}.{x}_len()? {{ return Err(Error::local(Status::Dim, {text:?}, {x}.len() as i64, {0}.{x}_len()? as i64)); }}",
                        self.dims
                    )
                }
                ("output", false) => {
                    let text =
                        format!("output {} has the length %lld: these sizes take %lld", named(&t.name));
                    writeln!(
                        o,
                        "    if {x}.len() < {0}.{x}_len()? {{ return Err(Error::local(Status::Capacity, {text:?}, {x}.len() as i64, {0}.{x}_len()? as i64)); }}",
                        self.dims
                    )
                }
                _ => {
                    let count = if t.ty.bytes().is_some() {
                        "n".to_owned()
                    } else {
                        format!(
                            "size::floordiv(size::add(size::mul(n, Some({})), Some(7)), Some(8))",
                            t.ty.bits()
                        )
                    };
                    let large = format!("the capacity of output {} is negative or too large", named(&t.name));
                    let text =
                        format!("output {} has the length %lld: its capacity takes %lld", named(&t.name));
                    writeln!(
                        o,
                        "    {{\n        let n = {}.iter().try_fold(1i64, |n, d| if *d < 0 {{ None }} else {{ n.checked_mul(*d) }});\n        let n = size::index({count}, {large:?})?;\n        if {x}.len() < n {{ return Err(Error::local(Status::Capacity, {text:?}, {x}.len() as i64, n as i64)); }}\n    }}",
                        self.out_dims(t)
                    )
                }
            };
        }
        if i.weights.external {
            let text = format!("the weights have %lld bytes: those of {} have %lld", named(&i.weights.file));
            let _ = writeln!(
                o,
                "    if weights.len() < WEIGHTS_SIZE {{ return Err(Error::local(Status::Weights, {text:?}, weights.len() as i64, WEIGHTS_SIZE as i64)); }}"
            );
        }
        let size = if self.fixed() { "WORKSPACE_SIZE" } else { "workspace.size()" };
        let _ = writeln!(
            o,
            "    let mut {fault} = NO_FAULT;\n    let {exec} = self::exec({size}, &mut {fault}, {exec});"
        );
        for (t, k) in i.outputs.iter().filter_map(|t| Some((t, t.aliases_input?))) {
            let _ = writeln!(o, "    let {} = {}.as_mut_ptr();", i.inputs[k as usize].ident, t.ident);
        }
        o.push_str("    // SAFETY: lengths and alignment are fixed by the types or checked above and by the call; the borrows exclude overlap.\n");
        given.push(format!("&{exec}"));
        let _ = writeln!(
            o,
            "    self::status(unsafe {{ self::sys::{}_infer_exec({}) }}, &{fault})\n}}",
            i.name,
            given.join(", ")
        );
    }
    /// `Inputs`, `Outputs` and `infer_io`.
    fn structs(&self, o: &mut String) {
        let i = self.i;
        let args = self.args();
        let (inputs, rest) = args.split_at(i.inputs.len());
        let (outputs, rest) =
            rest.split_at(i.outputs.len() + i.outputs.iter().filter(|t| from_data(i, t)).count());
        let lends = |list: &[Arg]| self.lends() && list.iter().any(|a| a.rust.contains("Str<"));
        for (name, what, list) in [("Inputs", "inputs", inputs), ("Outputs", "outputs", outputs)] {
            let lifetimes = if list.iter().all(Arg::is_shared) {
                ""
            } else if lends(list) {
                "<'a, 's>"
            } else {
                "<'a>"
            };
            let _ = writeln!(o, "\n/// The {what} of [`infer_io`].\npub struct {name}{lifetimes} {{");
            for a in list.iter().filter(|a| !a.is_shared()) {
                let about =
                    tensors(i).find(|(_, t)| t.ident == a.name).map_or("Dims.".into(), |(what, t)| {
                        format!(
                            "{} `\"{}\"`: {}.",
                            if what == "input" { "Input" } else { "Output" },
                            plain(&t.name),
                            code(&type_text(i, t))
                        )
                    });
                let _ = writeln!(
                    o,
                    "    /// {about}\n    pub {}: {},",
                    a.name,
                    a.rust.replacen('&', "&'a ", 1).replace("'_", "'a")
                );
            }
            o.push_str("}\n");
        }
        let of = |list: &[Arg]| {
            if list.iter().all(Arg::is_shared) {
                ""
            } else if lends(list) {
                "<'_, 's>"
            } else {
                "<'_>"
            }
        };
        let mut params =
            vec![format!("inputs: &Inputs{}", of(inputs)), format!("outputs: &mut Outputs{}", of(outputs))];
        let mut given: Vec<String> = inputs
            .iter()
            .filter(|a| !a.is_shared())
            .map(|a| format!("inputs.{}", a.name))
            .chain(outputs.iter().map(|a| format!("outputs.{}", a.name)))
            .collect();
        if self.dynamic {
            params.insert(0, "dims: &Dims".into());
            given.insert(0, "dims".into());
        }
        params.extend(rest.iter().map(|a| format!("{}: {}", a.name, a.rust)));
        given.extend(rest.iter().map(|a| a.name.clone()));
        let unused = if inputs.iter().all(Arg::is_shared) {
            "    let _ = inputs;\n"
        } else if outputs.is_empty() {
            "    let _ = outputs;\n"
        } else {
            ""
        };
        let _ = writeln!(
            o,
            "/// [`infer`] with the tensors in structs.\npub fn infer_io{}({}) -> Result<(), Error> {{\n{unused}    infer({})\n}}",
            if self.lends() { "<'s>" } else { "" },
            params.join(", "),
            given.join(", ")
        );
    }
}

/// The dims of `float32 [N, 3]` as a code span.
fn code(text: &str) -> String {
    text.split_once(' ').map_or(text.to_owned(), |(ty, dims)| format!("{ty} `{dims}`"))
}

/// Words with an underscore as code spans, the first word with a capital otherwise.
pub(super) fn sentence(text: &str) -> String {
    let mut words: Vec<String> =
        text.split(' ').map(|w| if w.contains('_') { format!("`{w}`") } else { w.to_owned() }).collect();
    if let Some(c) = words[0].get_mut(..1) {
        c.make_ascii_uppercase();
    }
    words.join(" ")
}

/// A name of the model in the text of a message.
fn named(name: &str) -> String {
    super::faults::quoted(&plain(name))
}
