//! The same code generator into memory: constant folding, `onnxc run` and `onnxc verify`.

use crate::codegen::assemble::Unit;
use crate::codegen::clif::entry;
use crate::codegen::interface::Interface;
use crate::codegen::weights::{Blob, HEADER};
use crate::diag::{Failure, Result};
use crate::nest::Module;
use crate::target::Target;
use cranelift_jit::{JITBuilder, JITModule};

/// A compiled model in memory.
pub struct Loaded {
    code: *const u8,
    workspace_for: *const u8,
    weights: Vec<Chunk>,
    module: Option<JITModule>,
}

/// 64 bytes, 64-byte aligned.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Chunk([u8; 64]);

type Call = extern "C" fn(*const *const u8, *const *mut u8, *const i64, *const *mut i64, *const u8, *mut u8, *const u8) -> i32;
type WorkspaceFor = extern "C" fn(*const i64, *mut u64) -> i32;

/// Interface as the code in memory has it: weights are passed in.
pub fn interface(i: &Interface, weights: &Blob) -> Interface {
    let mut i = i.clone();
    i.weights.external = true;
    i.weights.size = weights.size;
    i.weights.sha256 = [7; 32];
    i
}

impl Loaded {
    /// Compiles a placed module for this process, with everything that this machine has.
    pub fn new(m: &Module, given: &Interface) -> Result<Loaded> {
        let target = Target::host()?;
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
        let mut module = JITModule::new(builder);
        let unit = Unit::new(modules, &interface, &blob, &target, false);
        let ids = unit.assemble(&mut module)?;
        module.finalize_definitions().map_err(bug)?;
        let mut weights = vec![Chunk([0; 64]); ((HEADER + unit.weights.size) / 64 + 1) as usize];
        let mut at = HEADER as usize;
        let flat = bytes_mut(&mut weights);
        flat[..32].copy_from_slice(&interface.weights.sha256);
        unit.weights.stream(&mut |b| {
            flat[at..at + b.len()].copy_from_slice(b);
            at += b.len();
        });
        let code = module.get_finalized_function(ids.functions[&entry::CALL]);
        let workspace_for = module.get_finalized_function(ids.functions[&entry::WORKSPACE_FOR]);
        Ok(Loaded { code, workspace_for, weights, module: Some(module) })
    }
    /// Workspace bytes for dim params, or a status.
    pub fn workspace(&self, dims: &[i64]) -> std::result::Result<u64, i32> {
        let mut bytes = 0u64;
        // SAFETY: the code was generated with this signature; `dims` has an entry for every dim param (checked by
        // the caller against the interface).
        #[allow(unsafe_code)]
        let f: WorkspaceFor = unsafe { std::mem::transmute(self.workspace_for) };
        match f(dims.as_ptr(), &mut bytes) {
            0 => Ok(bytes),
            s => Err(s),
        }
    }
    /// Runs the model once. Inputs and outputs must have the sizes that the interface and `dims` imply.
    pub fn call(&self, inputs: &[&[u8]], outputs: &mut [Vec<u8>], dims: &[i64]) -> std::result::Result<(), i32> {
        let bytes = self.workspace(dims)?;
        let mut workspace = vec![Chunk([0; 64]); (bytes / 64 + 1) as usize];
        self.call_in(inputs, outputs, dims, bytes_mut(&mut workspace))
    }
    fn call_in(&self, inputs: &[&[u8]], outputs: &mut [Vec<u8>], dims: &[i64], workspace: &mut [u8]) -> std::result::Result<(), i32> {
        let i: Vec<*const u8> = inputs.iter().map(|b| b.as_ptr()).collect();
        let o: Vec<*mut u8> = outputs.iter_mut().map(|b| b.as_mut_ptr()).collect();
        // SAFETY: the code was generated with this signature. It reads and writes inside the buffers, whose sizes the
        // caller vouches for, inside the workspace of the size it asked for, and inside the weights.
        #[allow(unsafe_code)]
        let f: Call = unsafe { std::mem::transmute(self.code) };
        match f(i.as_ptr(), o.as_ptr(), dims.as_ptr(), std::ptr::null(), self.weights.as_ptr().cast(), workspace.as_mut_ptr(), std::ptr::null()) {
            0 => Ok(()),
            s => Err(s),
        }
    }
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

fn bytes_mut(v: &mut [Chunk]) -> &mut [u8] {
    // SAFETY: a chunk is 64 plain bytes without padding.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), v.len() * 64)
    }
}

macro_rules! libm {
    ($($name:ident),*) => { &[$((stringify!($name), { extern "C" fn f(x: f64) -> f64 { libm::$name(x) } f as extern "C" fn(f64) -> f64 })),*] };
}
const LIBM1: &[(&str, extern "C" fn(f64) -> f64)] = libm!(exp, log, erf, tanh, expm1, log1p, sin, cos, tan, asin, acos, atan, sinh, cosh, asinh, atanh);
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
