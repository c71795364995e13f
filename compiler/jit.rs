//! The same code generator into memory: constant folding, `onnxc run`, `onnxc verify` and `onnxc bench`.

mod bound;

pub use bound::Bound;

use crate::arrays::Array;
use crate::codegen::assemble::Unit;
use crate::codegen::clif::entry;
use crate::codegen::faults::{Check, Checks};
use crate::codegen::frame::{Frame, Word};
use crate::codegen::header::status_text;
use crate::codegen::interface::Interface;
use crate::codegen::weights::Blob;
use crate::codegen::weights_file::{self, HEADER};
use crate::diag::{Error, Failure, Result, codes};
use crate::io_descriptors;
use crate::nest::foreign::DECODE_IMAGE;
use crate::nest::{Kernel, Module};
use crate::sym::{Dim, Sym};
use crate::target::Target;
use crate::tensor::ElemType;
use cranelift_jit::{JITBuilder, JITModule};
use onnxc_runtime::abi::{onnxc_exec, onnxc_fault, onnxc_value};
use onnxc_runtime::pool::{Exec, Pool};
use onnxc_runtime::texts;
use onnxc_runtime::value::{self, Descriptor};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};

/// A compiled model in memory.
pub struct Loaded {
    code: *const u8,
    workspace_for: *const u8,
    weights: Vec<Chunk>,
    kernels: HashMap<Kernel, usize>,
    frame: Frame,
    /// Which inputs and which outputs are strings.
    texts: [Vec<bool>; 2],
    checks: Checks,
    /// Inputs and the outputs whose memory they are: an input's bytes are put there before a call.
    shared: Vec<(usize, usize)>,
    module: Option<JITModule>,
}

/// A call that failed: the status of the interface, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Status of the interface.
    pub status: i32,
    /// What the check says that failed; empty if it is not known.
    pub reason: String,
    /// Bytes of workspace that would have been enough up to where the call ran out of it; else 0.
    pub workspace: u64,
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {}",
            self.status,
            if self.reason.is_empty() { status_text(self.status) } else { self.reason.clone() }
        )
    }
}

impl From<i32> for Stopped {
    fn from(status: i32) -> Stopped {
        Stopped { status, reason: String::new(), workspace: 0 }
    }
}

/// 64 bytes, 64-byte aligned.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Chunk([u8; 64]);

type Call = extern "C" fn(
    *const *const u8,
    *const *mut u8,
    *const i64,
    *const *mut i64,
    *const u8,
    *mut u8,
    *const u8,
) -> i32;
type WorkspaceFor = extern "C" fn(*const i64, *mut u64) -> i32;

/// Interface as the code in memory has it: weights are passed in.
pub fn interface(i: &Interface, weights: &Blob) -> Interface {
    let mut i = i.clone();
    i.weights.external = true;
    i.weights.size = weights.size;
    (i.weights.plan, i.weights.slot) = ([7; weights_file::PLAN], 0);
    i
}

/// What a call reads and writes: `out_dims` has a list, or null, for every output.
struct Buffers<'a> {
    inputs: &'a [*const u8],
    outputs: &'a [*mut u8],
    dims: &'a [i64],
    out_dims: &'a [*mut i64],
}

impl Loaded {
    /// Compiles a placed module for this process, with everything that the machine has.
    pub fn new(m: &Module, given: &Interface) -> Result<Loaded> {
        Loaded::for_target(m, given, &Target::host()?)
    }
    /// Compiles a placed module for this process and a target with one CPU level, which this machine must
    /// have.
    pub fn for_target(m: &Module, given: &Interface, target: &Target) -> Result<Loaded> {
        let modules = std::slice::from_ref(m);
        let blob = Blob::new(modules);
        let interface = interface(given, &blob);
        let bug = |e: cranelift_module::ModuleError| Failure::bug("jit", e.to_string());
        let isa = target.isa(target.lowest(), true, false)?;
        let mut builder = JITBuilder::with_isa(isa, cranelift_module::default_libcall_names());
        builder.symbol("acosh", acosh as *const u8);
        for (name, f) in LIBM1 {
            builder.symbol(*name, *f as *const u8);
        }
        for (name, f) in LIBM2 {
            builder.symbol(*name, *f as *const u8);
        }
        builder.symbol(DECODE_IMAGE, decode_image as *const u8);
        for c in &m.customs {
            let Some((name, at)) = interface.symbols.iter().find(|(name, _)| *name == c.symbol) else {
                return Error::new(
                    codes::OPTION,
                    "no library with the functions of custom operators is given",
                )
                .at(&c.origin)
                .found_expected(c.symbol.clone(), "a function that this process can call")
                .help("name a shared library that has it: --custom-library FILE")
                .fail();
            };
            builder.symbol(*name, std::ptr::with_exposed_provenance(*at));
        }
        let mut module = JITModule::new(builder);
        let unit = Unit::new(modules, &interface, &blob, target, false);
        let ids = unit.assemble(&mut module, &mut vec![])?;
        module.finalize_definitions().map_err(bug)?;
        let mut weights = vec![Chunk([0; 64]); ((HEADER + unit.weights.size) / 64 + 1) as usize];
        let mut at = HEADER as usize;
        let flat = bytes_mut(&mut weights);
        flat[..at].copy_from_slice(&weights_file::header(interface.weights.size, &[interface.weights.plan]));
        unit.weights.stream(&mut |b| {
            flat[at..at + b.len()].copy_from_slice(b);
            at += b.len();
        });
        let code = module.get_finalized_function(ids.functions[&entry::CALL]);
        let workspace_for = module.get_finalized_function(ids.functions[&entry::WORKSPACE_FOR]);
        let kernels = m
            .kernels
            .keys()
            .filter_map(|k| {
                Some((k, module.get_finalized_function(*ids.functions.get(&k.as_u32())?) as usize))
            })
            .collect();
        let texts =
            [&m.inputs, &m.outputs].map(|list| list.iter().map(|b| m.bufs[*b].ty == ElemType::Str).collect());
        Ok(Loaded {
            code,
            workspace_for,
            weights,
            kernels,
            frame: Frame::new(m),
            texts,
            checks: ids.checks,
            shared: vec![],
            module: Some(module),
        })
    }
    /// Lets inputs be the memory of outputs, which must be as large: `(input, output)`.
    pub fn share(&mut self, pairs: Vec<(usize, usize)>) {
        self.shared = pairs;
    }
    /// True if an input is the memory of an output.
    pub fn is_shared(&self) -> bool {
        !self.shared.is_empty()
    }
    /// Workspace bytes for dim params, or a status.
    pub fn workspace(&self, dims: &[i64]) -> std::result::Result<u64, Stopped> {
        let mut bytes = 0u64;
        // SAFETY: the code was generated with this signature; `dims` has an entry for every dim param
        // (checked by the caller against the interface).
        #[allow(unsafe_code)]
        let f: WorkspaceFor = unsafe { std::mem::transmute(self.workspace_for) };
        match f(dims.as_ptr(), &mut bytes) {
            0 => Ok(bytes),
            s => {
                // A call checks the dims before it looks at anything else.
                let (inputs, outputs) = (
                    vec![std::ptr::null(); self.texts[0].len()],
                    vec![std::ptr::null_mut(); self.texts[1].len()],
                );
                let lists = vec![std::ptr::null_mut(); outputs.len()];
                Err(self
                    .call_with(
                        &Buffers { inputs: &inputs, outputs: &outputs, dims, out_dims: &lists },
                        (std::ptr::null_mut(), 0),
                        None,
                    )
                    .err()
                    .filter(|e| e.status == s)
                    .unwrap_or_else(|| s.into()))
            }
        }
    }
    /// Runs the model once. Inputs and outputs must have the sizes that the interface and `dims` imply.
    pub fn call(
        &self,
        inputs: &[&[u8]],
        outputs: &mut [Vec<u8>],
        dims: &[i64],
    ) -> std::result::Result<(), Stopped> {
        let mut sizes = vec![vec![]; outputs.len()];
        self.call_sized(inputs, outputs, dims, &mut sizes)
    }
    /// The same where outputs may be described (`onnxc_value`): what they describe, as arrays with these
    /// names.
    pub fn call_named(
        &self,
        inputs: &[&[u8]],
        outputs: &mut [Vec<u8>],
        dims: &[i64],
        sizes: &mut [Vec<i64>],
        names: &[Option<&str>],
    ) -> std::result::Result<Vec<Vec<Array>>, Stopped> {
        let mut workspace = vec![];
        self.call_in(inputs, outputs, dims, sizes, &mut workspace)?;
        let read = |(bytes, name): (&Vec<u8>, &Option<&str>)| {
            let Some(name) = name else { return Ok(vec![]) };
            // SAFETY: the call has ended well and filled these bytes, which are such a struct; what it points
            // to lies in the workspace, which is still there.
            #[allow(unsafe_code)]
            let value =
                unsafe { value::read(&std::ptr::read_unaligned(bytes.as_ptr().cast::<onnxc_value>())) };
            Ok(io_descriptors::arrays(name, &value.map_err(|s| Stopped::from(s.code()))?))
        };
        outputs.iter().zip(names).map(read).collect()
    }
    /// The same where sizes of outputs follow from data. `sizes` has a list for every output, empty where its
    /// sizes are known: what there is room for; afterwards, the sizes it has or needs. Strings come and go in
    /// the form of [`texts`].
    pub fn call_sized(
        &self,
        inputs: &[&[u8]],
        outputs: &mut [Vec<u8>],
        dims: &[i64],
        sizes: &mut [Vec<i64>],
    ) -> std::result::Result<(), Stopped> {
        self.call_in(inputs, outputs, dims, sizes, &mut vec![])
    }
    fn call_in(
        &self,
        inputs: &[&[u8]],
        outputs: &mut [Vec<u8>],
        dims: &[i64],
        sizes: &mut [Vec<i64>],
        memory: &mut Vec<Chunk>,
    ) -> std::result::Result<(), Stopped> {
        let mut bytes = self.workspace(dims)?;
        let list = |s: &mut Vec<i64>| if s.is_empty() { std::ptr::null_mut() } else { s.as_mut_ptr() };
        let rooms = sizes.to_vec();
        let out_dims: Vec<*mut i64> = sizes.iter_mut().map(list).collect();
        let elements = self.elements(inputs);
        let mut i: Vec<*const u8> = inputs
            .iter()
            .zip(&elements)
            .map(|(b, e)| e.as_ref().map_or(b.as_ptr(), |e| e.as_ptr()))
            .collect();
        for (from, to) in &self.shared {
            let n = inputs[*from].len().min(outputs[*to].len());
            outputs[*to][..n].copy_from_slice(&inputs[*from][..n]);
        }
        let o: Vec<*mut u8> = outputs.iter_mut().map(|b| b.as_mut_ptr()).collect();
        for (from, to) in &self.shared {
            i[*from] = o[*to];
        }
        loop {
            *memory = room(bytes)?;
            let buffers = Buffers { inputs: &i, outputs: &o, dims, out_dims: &out_dims };
            match self.call_with(&buffers, (memory.as_mut_ptr().cast(), bytes), None) {
                Err(e) if e.workspace > bytes => {
                    // What comes behind will need more, too.
                    bytes = e.workspace.max(bytes.saturating_mul(2));
                    for (list, room) in sizes.iter_mut().zip(&rooms) {
                        list.copy_from_slice(room);
                    }
                }
                r => break r?,
            }
        }
        for ((out, list), _) in outputs.iter_mut().zip(sizes.iter()).zip(&self.texts[1]).filter(|x| *x.1) {
            let room = out.len() / texts::SIZE;
            let n = if list.is_empty() {
                room
            } else {
                crate::tensor::count(list).map_or(0, |n| n as usize).min(room)
            };
            let written = texts::read_elements(out, n);
            // SAFETY: the call has ended well, so its elements show what inputs, weights and workspace hold;
            // all are there.
            #[allow(unsafe_code)]
            let encoded = unsafe { texts::encode_elements(&written) };
            *out = encoded;
        }
        Ok(())
    }
    /// Runs the model once on memory of the caller's, as C does: for tests that place buffers themselves.
    /// `out_dims` has a list, or null, for every output.
    ///
    /// # Safety
    /// What [`Loaded::call_sized`] and [`Loaded::workspace`] tell holds for what the pointers lead to; that
    /// of a `const` pointer is only read.
    #[allow(unsafe_code)]
    pub unsafe fn call_at(
        &self,
        inputs: &[*const u8],
        outputs: &[*mut u8],
        dims: *const i64,
        out_dims: &[*mut i64],
        workspace: *mut u8,
    ) -> std::result::Result<(), i32> {
        // SAFETY: the code was generated with this signature; the caller vouches for the memory.
        let f: Call = unsafe { std::mem::transmute(self.code) };
        match f(
            inputs.as_ptr(),
            outputs.as_ptr(),
            dims,
            out_dims.as_ptr(),
            self.weights.as_ptr().cast(),
            workspace,
            std::ptr::null(),
        ) {
            0 => Ok(()),
            s => Err(s),
        }
    }
    /// Elements with addresses, of the inputs that are strings.
    fn elements(&self, inputs: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        inputs.iter().zip(&self.texts[0]).map(|(b, text)| text.then(|| addressed(b, b.as_ptr()))).collect()
    }
    /// `workspace`: where it is, and how many bytes it has (0: as many as the model asked for).
    fn call_with(
        &self,
        buffers: &Buffers,
        workspace: (*mut u8, u64),
        exec: Option<&Exec<'_>>,
    ) -> std::result::Result<(), Stopped> {
        let mut fault = onnxc_fault::NONE;
        let exec = onnxc_exec {
            workspace_size: workspace.1,
            fault: &raw mut fault,
            ..exec.map_or(onnxc_exec::NONE, |e| *e.as_raw())
        };
        match self.enter(buffers, workspace.0, &raw const exec) {
            0 => Ok(()),
            s => Err(self.stopped(s, &fault)),
        }
    }
    fn enter(&self, b: &Buffers, workspace: *mut u8, exec: *const onnxc_exec) -> i32 {
        // SAFETY: the code was generated with this signature. It reads and writes inside the buffers, whose
        // sizes the caller vouches for, inside the workspace of the size it asked for or was told, and inside
        // the weights.
        #[allow(unsafe_code)]
        let f: Call = unsafe { std::mem::transmute(self.code) };
        f(
            b.inputs.as_ptr(),
            b.outputs.as_ptr(),
            b.dims.as_ptr(),
            b.out_dims.as_ptr(),
            self.weights.as_ptr().cast(),
            workspace,
            exec.cast(),
        )
    }
    fn stopped(&self, status: i32, fault: &onnxc_fault) -> Stopped {
        let check = self.checks.list().get(fault.check as usize);
        let text = |c: &Check| {
            if c.text.is_empty() { status_text(status).replace('%', "%%") } else { c.text.clone() }
        };
        let reason = check.map_or(String::new(), |c| {
            onnxc_runtime::fault::sentence(&c.node, &c.op, &text(c), &fault.values)
        });
        Stopped { status, reason, workspace: fault.workspace_size }
    }
}

/// Zeroed memory of so many bytes at least.
fn room(bytes: u64) -> std::result::Result<Vec<Chunk>, Stopped> {
    let chunks = bytes / 64 + 1;
    let mut v: Vec<Chunk> = vec![];
    let reserved = usize::try_from(chunks).ok().is_some_and(|n| v.try_reserve_exact(n).is_ok());
    if !reserved {
        return Err(Stopped {
            status: 4,
            reason: format!("there is no memory for a workspace of {bytes} bytes"),
            workspace: 0,
        });
    }
    v.resize(chunks as usize, Chunk([0; 64]));
    Ok(v)
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Some(m) = self.module.take() {
            // SAFETY: the function pointers live in `self` and die with it.
            #[allow(unsafe_code)]
            unsafe {
                m.free_memory();
            }
        }
    }
}

/// The elements of encoded strings whose bytes lie at `base`.
fn addressed(data: &[u8], base: *const u8) -> Vec<u8> {
    // The first element's bytes are behind the last element.
    let n = texts::place(data, 0).map_or(0, |(at, _)| at / texts::SIZE);
    texts::addressed(data, n, base).unwrap_or_default()
}

fn bytes_mut(v: &mut [Chunk]) -> &mut [u8] {
    // SAFETY: a chunk is 64 plain bytes without padding.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), v.len() * 64)
    }
}

macro_rules! libm {
    ($($name:ident),*) => {
        &[$((stringify!($name), {
            extern "C" fn f(x: f64) -> f64 {
                libm::$name(x)
            }
            f as extern "C" fn(f64) -> f64
        })),*]
    };
}
const LIBM1: &[(&str, extern "C" fn(f64) -> f64)] =
    libm!(exp, log, erf, tanh, expm1, log1p, sin, cos, tan, asin, acos, atan, sinh, cosh, asinh, atanh);
/// libm leaves values below 1 undefined.
extern "C" fn acosh(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}
extern "C" fn pow(x: f64, y: f64) -> f64 {
    libm::pow(x, y)
}
extern "C" fn atan2(x: f64, y: f64) -> f64 {
    libm::atan2(x, y)
}
extern "C" fn fmod(x: f64, y: f64) -> f64 {
    libm::fmod(x, y)
}
const LIBM2: &[(&str, extern "C" fn(f64, f64) -> f64)] = &[("pow", pow), ("atan2", atan2), ("fmod", fmod)];

#[cfg(feature = "image")]
use onnxc_runtime::image::onnxc_decode_image as decode_image;

/// Without decoders calls of models with ImageDecoder fail.
#[cfg(not(feature = "image"))]
extern "C" fn decode_image(_: *const u8, _: i64, _: i32, _: *mut i64, _: *mut u8) -> i32 {
    1
}
