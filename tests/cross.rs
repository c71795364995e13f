//! Other targets: objects for every architecture and format hold what they should; code for aarch64, riscv64
//! and every level of x86-64 computes what this machine computes (under qemu, where it and a cross compiler
//! are installed); and an object with several levels runs the best one.
//!
//! ```text
//! ONNXC_CROSS_SEEDS=60..2000   other random modules under qemu
//! ```

#[path = "nest_fuzz/check.rs"]
mod check;
#[path = "nest_fuzz/contractions.rs"]
mod contractions;
#[path = "nest_fuzz/exprs.rs"]
mod exprs;
#[path = "cross/machine.rs"]
mod machine;
#[path = "nest_fuzz/modules.rs"]
mod modules;
#[path = "nest_fuzz/operations.rs"]
mod operations;
#[path = "support/process.rs"]
mod process;

use machine::{Case, Machine, run};
use modules::{Gen, generate};
use object::{Architecture, BinaryFormat, Object, ObjectSection, ObjectSymbol, SectionKind};
use onnxc::codegen::assemble::Unit;
use onnxc::codegen::interface::Interface;
use onnxc::codegen::weights::Blob;
use onnxc::jit::Loaded;
use onnxc::nest::Module;
use onnxc::nest::interp::{self, Outcome};
use onnxc::nest::print::print;
use onnxc::onnx::Source;
use onnxc::options::{OptLevel, Options};
use onnxc::pipeline::{self, Stopped};
use onnxc::sym::{Dim, Sym};
use onnxc::target::{Level, Target};
use process::found;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Functions of libm that generated code may call.
const LIBM: &[&str] = &[
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "pow", "atan2",
    "fmod",
];

/// Small models of different kinds: name, text.
const MODELS: &[(&str, &str)] = &[
    // The same code with other literals, of tiles and of kernels.
    (
        "literals",
        r#"<ir_version: 8, opset_import: ["" : 17]>
literals (float[4, 64] a, float[4, 64] b, float[4, 64] c) => (float[4, 64] x, float[4, 64] y, float[4, 64] z)
{
  x1 = HardSigmoid <alpha = 0.31, beta = 0.41> (a)
  y1 = HardSigmoid <alpha = 0.71, beta = 0.21> (b)
  z1 = HardSigmoid <alpha = 0.91, beta = 0.22> (c)
  x2 = Selu <alpha = 1.6, gamma = 1.1> (x1)
  y2 = Selu <alpha = 1.6, gamma = 1.2> (y1)
  z2 = Selu <alpha = 1.6, gamma = 1.3> (z1)
  x3 = LeakyRelu <alpha = 0.15> (x2)
  y3 = LeakyRelu <alpha = 0.16> (y2)
  z3 = LeakyRelu <alpha = 0.17> (z2)
  x = HardSigmoid <alpha = 0.26, beta = 0.11> (x3)
  y = HardSigmoid <alpha = 0.52, beta = 0.12> (y3)
  z = HardSigmoid <alpha = 0.76, beta = 0.13> (z3)
}"#,
    ),
    (
        "mlp",
        r#"<ir_version: 8, opset_import: ["" : 17]>
mlp (float[N, 20] x, float[20, 13] w) => (float[N, 13] y, int64[N] top)
<float[13] b = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>
{
  h = Gemm <alpha = 0.5> (x, w, b)
  r = Relu (h)
  y = Softmax <axis = 1> (r)
  top = ArgMax <axis = 1, keepdims = 0> (h)
}"#,
    ),
    (
        "cnn",
        r#"<ir_version: 8, opset_import: ["" : 17]>
cnn (float[N, 8, 7, 7] x, float[8, 8, 3, 3] w, float[8, 1, 3, 3] d) => (float[N, 8, 7, 7] y, float[N, 8, 3, 3] m, float[N, 8, 1, 1] g)
<float[8] scale = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] bias = {0, 1, 0, 1, 0, 1, 0, 1}, float[8] mean = {0, 0, 0, 0, 1, 1, 1, 1}, float[8] var = {1, 1, 1, 1, 4, 4, 4, 4}>
{
  c = Conv <pads = [1, 1, 1, 1]> (x, w)
  n = BatchNormalization (c, scale, bias, mean, var)
  e = Conv <pads = [1, 1, 1, 1], group = 8> (n, d)
  a = Add (e, x)
  y = Sigmoid (a)
  m = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (a)
  g = GlobalAveragePool (a)
}"#,
    ),
    (
        "gelu",
        r#"<ir_version: 8, opset_import: ["" : 17]>
gelu (float[N, S, 16] x, float[16, 24] w) => (float[N, 24, S] y)
{
  r = Constant <value_float = 1.4142135> ()
  one = Constant <value_float = 1.0> ()
  h = MatMul (x, w)
  d = Div (h, r)
  e = Erf (d)
  a = Add (e, one)
  m = Mul (h, a)
  y = Transpose <perm = [0, 2, 1]> (m)
}"#,
    ),
    (
        "half",
        r#"<ir_version: 8, opset_import: ["" : 17]>
half (float16[N, 8] x, float16[8, 8] w, bfloat16[N, 4] z) => (float16[N, 8] y, float[N, 4] u)
{
  h = MatMul (x, w)
  y = Tanh (h)
  u = Cast <to = 1> (z)
}"#,
    ),
    // Conversions to f16 and back: subnormal, normal and infinite numbers, and NaN.
    (
        "halves",
        r#"<ir_version: 8, opset_import: ["" : 17]>
halves (float[N, 48] x, float16[N, 21] h) => (float16[N, 48] a, float16[N, 48] b, float[N, 21] c, float16[N, 21] d)
<float from = {-30}, float to = {18}, float one = {1}, float two = {2}>
{
  k = Range (from, to, one)
  scales = Pow (two, k)
  m = Mul (x, scales)
  a = Cast <to = 10> (m)
  s = Sqrt (m)
  b = Cast <to = 10> (s)
  c = Cast <to = 1> (h)
  d = Add (h, h)
}"#,
    ),
    (
        "numbers",
        r#"<ir_version: 8, opset_import: ["" : 17]>
numbers (double[N, 5] x, int32[N, 5] i, uint8[N, 5] u, bool[N, 5] c) => (double[N, 5] y, int32[N, 5] j, int64[N, 5] k, uint8[N, 5] v, bool[N, 5] d)
{
  e = Exp (x)
  s = Sin (e)
  y = Sqrt (e)
  f = Floor (s)
  t = Cast <to = 6> (x)
  m = Mul (t, i)
  j = Where (c, m, i)
  k = Cast <to = 7> (i)
  v = Add (u, u)
  l = Less (i, m)
  d = Xor (l, c)
}"#,
    ),
    // Lanes in another order: squares transposed in registers, and loads in steps, repeated and reversed, of elements
    // of 8 to 64 bits.
    (
        "permutations",
        r#"<ir_version: 8, opset_import: ["" : 18]>
permutations (float[N, 9, 6, 10] x, uint8[N, 7, 13] u, int64[N, 5, 6] l, float[N, 21, 17] m) => (float[N, 6, 10, 9] a, float[N, 9, 6, 5] b, float[N, 9, 6, 10] c, float[N, 9, 12, 20] d, float[N, 9, 9, 15] e, uint8[N, 13, 7] f, uint8[N, 7, 5] g, int64[N, 6, 5] h, float[N, 9, 6, 3] i, float[N, 9, 3, 5] j, float[N, 3, 17] k, float[N, 6, 90] o, float[N, 9, 12, 20] p)
<int64[1] first = {0}, int64[1] last = {-1}, int64[1] ends = {-100}, int64[1] many = {100}, int64[1] axis = {3}, int64[1] rows = {2}, int64[1] two = {2}, int64[1] three = {3}, int64[1] four = {4}, int64[3] shape = {0, 6, -1}, float[4] twice = {1, 1, 2, 2}, float[4] half = {1, 1, 1.5, 1.5}, int64 zero = {0}, int64 one = {1}, int64 count = {63}, int64[2] matrix = {21, 3}>
{
  a = Transpose <perm = [0, 2, 3, 1]> (x)
  b = Slice (x, first, many, axis, two)
  c = Slice (x, last, ends, axis, last)
  d = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , twice)
  e = Resize <mode = "linear"> (x, , half)
  f = Transpose <perm = [0, 2, 1]> (u)
  g = Slice (u, first, many, rows, three)
  h = Transpose <perm = [0, 2, 1]> (l)
  i = Slice (x, first, many, axis, four)
  j = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
  numbers = Range (zero, count, one)
  floats = Cast <to = 1> (numbers)
  w = Reshape (floats, matrix)
  t = Transpose <perm = [0, 2, 1]> (m)
  tw = MatMul (t, w)
  k = Transpose <perm = [0, 2, 1]> (tw)
  n = Transpose <perm = [0, 2, 1, 3]> (x)
  o = Reshape (n, shape)
  p = Resize <mode = "cubic"> (x, , twice)
}"#,
    ),
    // Dot products of bytes of every pair of signs, of constants and others; activations that two contractions
    // read as signed and as unsigned bytes; groups that end within four; a depthwise one beside them.
    (
        "bytes",
        r#"<ir_version: 8, opset_import: ["" : 17]>
bytes (uint8[N, 30] u, int8[N, 30] s, uint8[30, 21] p, int8[30, 21] q, uint8[2, 8, 9, 7] i, int8[2, 3, 9, 7] j) => (int32[N, 20] a, int32[N, 20] b, int32[N, 20] c, int32[N, 20] d, int32[N, 21] e, int32[N, 21] f, int32[N, 21] g, int32[N, 21] h, int32[2, 12, 9, 7] k, int32[2, 12, 7, 5] l, int32[N, 20] o, uint8[2, 8, 9, 7] r, int32[2, 8, 9, 7] t, int32[2, 16, 9, 7] v)
<int64 zero = {0}, int64 one = {1}, int64 many = {1152}, int64 odd = {251}, int64 half = {125}, int64[2] matrix = {30, 20}, int64[4] image = {12, 8, 3, 3}, int64[4] few = {12, 3, 3, 3}, int64[1] from = {0}, int64[1] of_matrix = {600}, int64[1] of_image = {864}, int64[1] of_few = {324}, int64[1] of_depth = {72}, int64[4] depth = {8, 1, 3, 3}, int64[4] sixteen = {16, 8, 3, 3}, int64[1] of_sixteen = {1152}, float scale = {0.05}, uint8 point = {3}, uint8 other = {130}, float[8] scales = {0.01, 0.02, 0.01, 0.02, 0.01, 0.02, 0.01, 0.02}>
{
  numbers = Range (zero, many, one)
  squares = Mul (numbers, numbers)
  rest = Mod (squares, odd)
  unsigned = Cast <to = 2> (rest)
  less = Sub (rest, half)
  signed = Cast <to = 3> (less)
  u0 = Slice (unsigned, from, of_matrix)
  wu = Reshape (u0, matrix)
  s0 = Slice (signed, from, of_matrix)
  ws = Reshape (s0, matrix)
  a = MatMulInteger (u, ws)
  b = MatMulInteger (s, ws)
  c = MatMulInteger (u, wu)
  d = MatMulInteger (s, wu)
  e = MatMulInteger (u, q)
  f = MatMulInteger (s, q)
  g = MatMulInteger (u, p)
  h = MatMulInteger (s, p)
  i0 = Slice (signed, from, of_image)
  wi = Reshape (i0, image)
  k = ConvInteger <pads = [1, 1, 1, 1]> (i, wi)
  j0 = Slice (unsigned, from, of_few)
  wj = Reshape (j0, few)
  l = ConvInteger (j, wj)
  o = MatMulInteger (u, ws, point)
  x = DequantizeLinear (i, scale, point)
  y = Relu (x)
  z = QuantizeLinear (y, scale, other)
  r = Identity (z)
  d0 = Slice (signed, from, of_depth)
  wd = Reshape (d0, depth)
  t = ConvInteger <group = 8, pads = [1, 1, 1, 1]> (z, wd, other)
  both0 = Slice (signed, from, of_sixteen)
  both = Reshape (both0, sixteen)
  v1 = ConvInteger <pads = [1, 1, 1, 1]> (z, both, other)
  n0 = Slice (unsigned, from, of_sixteen)
  n1 = Reshape (n0, sixteen)
  v2 = ConvInteger <pads = [1, 1, 1, 1]> (z, n1, other)
  v = Add (v1, v2)
}"#,
    ),
    (
        "complex",
        r#"<ir_version: 8, opset_import: ["" : 18]>
complex (complex64[N, 5] x, complex128[N, 5] z, bool[N, 5] c) => (complex64[5, N] t, complex128[N, 7] p, complex128[N, 5] w, complex128[N, 5] s, complex64[N, 10] r)
<complex128[1] one = {1, -0.5}, int64[4] pads = {0, 1, 0, 1}, int64[1, 1] at = {1}, complex128[1, 5] new = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, float[2] scales = {1, 2}>
{
  t = Transpose (x)
  p = Pad (z, pads)
  w = Where (c, z, one)
  s = ScatterND <reduction = "mul"> (z, at, new)
  r = Resize <mode = "linear"> (x, , scales)
}"#,
    ),
];

/// All levels that objects for aarch64 have.
const ALL_ARM: &str = "armv8-a,armv8.2-a+dotprod+fp16,armv8.6-a+i8mm+bf16";
const ALL_RISCV: &str = "rv64gc,rv64gcv,rv64gcv_zvl256b,rv64gcv_zvl512b";
/// All levels that objects for x86-64 have.
const ALL: &str = "x86-64-v2,x86-64-v3,x86-64-v3-vnni,x86-64-v4,x86-64-v4-vnni,x86-64-v4-bf16";
/// No emulator.
const HERE: &[&str] = &["env"];
/// Programs for Windows on this machine.
const WINE: &[&str] = &["wine"];

const fn x86_64(cpu: &'static str, qemu: &'static [&'static str]) -> Machine {
    Machine { triple: "x86_64-unknown-linux-gnu", cpu, cc: "x86_64-linux-gnu-gcc", qemu }
}

const fn windows(cpu: &'static str) -> Machine {
    Machine { triple: "x86_64-pc-windows-gnu", cpu, cc: "x86_64-w64-mingw32-gcc", qemu: WINE }
}

const fn aarch64(cpu: &'static str, qemu: &'static [&'static str]) -> Machine {
    Machine { triple: "aarch64-unknown-linux-gnu", cpu, cc: "aarch64-linux-gnu-gcc", qemu }
}

const fn riscv64(cpu: &'static str, qemu: &'static [&'static str]) -> Machine {
    Machine { triple: "riscv64gc-unknown-linux-gnu", cpu, cc: "riscv64-linux-gnu-gcc", qemu }
}

const RVV128: &[&str] = &["qemu-riscv64", "-cpu", "rv64,v=true,vlen=128,elen=64,vext_spec=v1.0"];
const RVV256: &[&str] = &["qemu-riscv64", "-cpu", "rv64,v=true,vlen=256,elen=64,vext_spec=v1.0"];
const RVV512: &[&str] = &["qemu-riscv64", "-cpu", "rv64,v=true,vlen=512,elen=64,vext_spec=v1.0"];

const MACHINES: &[Machine] = &[
    // An x86-64 with SSE 3 at most, and one without AVX: levels must not use more than they say.
    x86_64("x86-64", &["qemu-x86_64", "-cpu", "qemu64"]),
    x86_64("x86-64-v2", &["qemu-x86_64", "-cpu", "Nehalem"]),
    // Code for several levels on machines of two of them.
    x86_64(ALL, &["qemu-x86_64", "-cpu", "Nehalem"]),
    x86_64(ALL, &["qemu-x86_64", "-cpu", "Haswell"]),
    // Each level on this machine, and all of them.
    x86_64("x86-64-v2", HERE),
    x86_64("x86-64-v3", HERE),
    x86_64("x86-64-v3-vnni", HERE),
    x86_64("x86-64-v4", HERE),
    x86_64("x86-64-v4-vnni", HERE),
    x86_64("x86-64-v4-bf16", HERE),
    x86_64(ALL, HERE),
    // Windows' calling convention and object format.
    windows("x86-64-v2"),
    windows(ALL),
    // Each level of aarch64 on a machine that has no more, and all of them.
    aarch64("armv8-a", &["qemu-aarch64", "-cpu", "cortex-a72"]),
    aarch64("cortex-a53", &["qemu-aarch64", "-cpu", "cortex-a53"]),
    aarch64("armv8.2-a+dotprod+fp16", &["qemu-aarch64", "-cpu", "neoverse-n1"]),
    aarch64("armv8.6-a+i8mm+bf16", &["qemu-aarch64", "-cpu", "max"]),
    aarch64(ALL_ARM, &["qemu-aarch64", "-cpu", "max"]),
    // Vectors as long as the code uses, and longer ones; none at all.
    riscv64("rv64gcv", RVV128),
    riscv64("rv64gcv", RVV512),
    riscv64("rv64gcv_zvl256b", RVV256),
    riscv64("rv64gcv_zvl512b", RVV512),
    riscv64("rv64gc", &["qemu-riscv64"]),
    riscv64(ALL_RISCV, RVV256),
    riscv64(ALL_RISCV, &["qemu-riscv64"]),
];

/// A model as nests, with inputs made up and the results of this machine.
fn text_case(name: &str, text: &str) -> Case {
    let source =
        Source { name: format!("{name}.onnxtxt"), bytes: text.as_bytes().to_vec().into(), folder: None };
    let module =
        match pipeline::run(&source, &Options { stop_after: Some("lower".into()), ..Options::default() }) {
            Ok(Stopped::Nest(m)) => *m,
            Ok(_) => panic!("{name}: the pipeline did not stop"),
            Err(e) => panic!("{name}: {e}"),
        };
    let dims: Vec<(Sym, i64)> =
        module.dim_params.iter().enumerate().map(|(i, s)| (*s, 3 + 2 * i as i64)).collect();
    let size = |b| {
        module.bufs[b]
            .dims
            .iter()
            .map(|d| d.eval(&|s| dims.iter().find(|p| p.0 == s).map(|p| p.1)).expect("a size"))
            .product::<i64>() as usize
    };
    let data = module
        .inputs
        .iter()
        .map(|b| modules::data(size(*b) as u64 + 1, module.bufs[*b].ty, size(*b)))
        .collect();
    let want = Outcome {
        outputs: module
            .outputs
            .iter()
            .map(|b| vec![0; size(*b) * module.bufs[*b].ty.bytes().unwrap_or(1) as usize])
            .collect(),
        dims: vec![],
    };
    let mut c = Case { module, dims, data, want, tolerance: 1e-4, table: None };
    c.want.dims = c.module.outputs.iter().map(|_| vec![]).collect();
    let mut host = c.module.clone();
    pipeline::finish(&mut host, &Target::host().expect("this machine"), OptLevel::O2).expect("passes");
    let code = Loaded::new(&host, &Interface::of_module(&host)).expect("code for this machine");
    let mut out = std::mem::take(&mut c.want.outputs);
    let values: Vec<i64> = c.dims.iter().map(|d| d.1).collect();
    assert_eq!(code.call(&c.inputs(), &mut out, &values), Ok(()), "{name}");
    c.want.outputs = out;
    c
}

/// Random nests; their meaning is the interpreter's.
fn random_case(seed: u64) -> Case {
    let Gen { m: module, params: dims, data, coarse, .. } = generate(seed, 1 + seed as usize % 6);
    let inputs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let want = interp::run(&module, &dims, &inputs)
        .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", print(&module)));
    Case { want, module, dims, data, tolerance: if coarse { 5e-2 } else { 1e-4 }, table: None }
}

/// Operations on special values.
fn table_case(t: operations::Table) -> Case {
    let inputs: Vec<&[u8]> = t.data.iter().map(Vec::as_slice).collect();
    let want = interp::run(&t.m, &[], &inputs).unwrap_or_else(|e| panic!("{e}\n{}", print(&t.m)));
    Case { module: t.m.clone(), dims: vec![], data: t.data.clone(), want, tolerance: 0.0, table: Some(t) }
}

/// The object of a module for a target.
fn object_of(m: &Module, name: &str, target: &Target, opt: OptLevel) -> Result<Vec<u8>, String> {
    // The code generator panics where a target has no lowering: that should name the model.
    std::panic::catch_unwind(|| object_unguarded(m, name, target, opt))
        .unwrap_or_else(|_| Err("panic in the code generator".into()))
}

fn object_unguarded(m: &Module, name: &str, target: &Target, opt: OptLevel) -> Result<Vec<u8>, String> {
    let mut m = m.clone();
    m.name = name.to_owned();
    object(&pipeline::finish_all(&m, target, opt).map_err(|e| e.to_string())?, target)
}

/// The object of one module for each level.
fn object(modules: &[Module], target: &Target) -> Result<Vec<u8>, String> {
    let weights = Blob::new(modules);
    let mut i = Interface::of_module(&modules[0]);
    i.workspace = pipeline::workspace(modules);
    (i.weights.size, i.weights.align) = (weights.size, 64);
    let mut out = vec![];
    onnxc::codegen::object::write(&Unit::new(modules, &i, &weights, target, true), &mut out)
        .map_err(|e| e.to_string())?;
    Ok(out)
}

fn target(triple: &str, cpu: Option<&str>) -> Target {
    Target::new(Some(triple), cpu).unwrap_or_else(|e| panic!("{triple}: {e}"))
}

// ---- Objects ----

#[test]
fn objects_have_the_right_format_and_symbols() {
    use Architecture::{Aarch64, Riscv64, X86_64};
    use BinaryFormat::{Coff, Elf, MachO};
    let targets = [
        ("x86_64-unknown-linux-gnu", "x86-64", Elf, X86_64),
        ("x86_64-unknown-linux-gnu", "x86-64-v2", Elf, X86_64),
        ("x86_64-unknown-linux-gnu", "x86-64-v3", Elf, X86_64),
        ("x86_64-unknown-linux-gnu", ALL, Elf, X86_64),
        ("x86_64-unknown-linux-musl", "x86-64-v3", Elf, X86_64),
        ("aarch64-unknown-linux-gnu", "armv8-a", Elf, Aarch64),
        ("aarch64-unknown-linux-gnu", ALL_ARM, Elf, Aarch64),
        ("aarch64-linux-android", ALL_ARM, Elf, Aarch64),
        ("riscv64gc-unknown-linux-gnu", "rv64gc", Elf, Riscv64),
        ("riscv64gc-unknown-linux-gnu", "rv64gcv", Elf, Riscv64),
        ("riscv64gc-unknown-linux-gnu", ALL_RISCV, Elf, Riscv64),
        ("x86_64-apple-darwin", "x86-64-v3", MachO, X86_64),
        ("x86_64-apple-darwin", ALL, MachO, X86_64),
        ("aarch64-apple-darwin", "apple-m1", MachO, Aarch64),
        ("x86_64-pc-windows-msvc", "x86-64-v3", Coff, X86_64),
        ("x86_64-pc-windows-msvc", ALL, Coff, X86_64),
        ("x86_64-pc-windows-gnu", "x86-64-v3", Coff, X86_64),
        ("x86_64-pc-windows-gnu", ALL, Coff, X86_64),
        ("aarch64-pc-windows-msvc", "armv8-a", Coff, Aarch64),
        ("aarch64-pc-windows-msvc", ALL_ARM, Coff, Aarch64),
        ("aarch64-unknown-uefi", "armv8-a", Coff, Aarch64),
        ("x86_64-unknown-uefi", "x86-64-v2", Coff, X86_64),
        ("x86_64-unknown-none", "x86-64", Elf, X86_64),
        ("aarch64-unknown-none", "armv8-a", Elf, Aarch64),
        ("aarch64-unknown-none", ALL_ARM, Elf, Aarch64),
    ];
    let cases: Vec<(&str, Case)> = MODELS.iter().map(|(n, t)| (*n, text_case(n, t))).collect();
    let mut wrong = String::new();
    for (triple, cpu, format, architecture) in targets {
        let t = target(triple, Some(cpu));
        for (name, c) in &cases {
            match object_of(&c.module, name, &t, OptLevel::O2) {
                Err(e) => writeln!(
                    wrong,
                    "{name} for {triple} {cpu}: {}",
                    e.lines().take(4).collect::<Vec<_>>().join(" ")
                )
                .expect("a string"),
                Ok(bytes) => problems(&bytes, name, format, architecture, t.asks())
                    .into_iter()
                    .for_each(|p| writeln!(wrong, "{name} for {triple} {cpu}: {p}").expect("a string")),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn problems(
    bytes: &[u8],
    name: &str,
    format: BinaryFormat,
    architecture: Architecture,
    asks: bool,
) -> Vec<String> {
    let file = match object::File::parse(bytes) {
        Ok(f) => f,
        Err(e) => return vec![format!("the object does not parse: {e}")],
    };
    let mut out = vec![];
    if (file.format(), file.architecture()) != (format, architecture) {
        out.push(format!(
            "found {:?} {:?}, expected {format:?} {architecture:?}",
            file.format(),
            file.architecture()
        ));
    }
    // Mach-O puts an underscore in front of C names.
    let plain = |s: &str| {
        if format == BinaryFormat::MachO { s.strip_prefix('_').unwrap_or(s).to_owned() } else { s.to_owned() }
    };
    let mut exported = vec![];
    for s in file.symbols() {
        let n = plain(s.name().unwrap_or_default());
        if s.is_undefined() && !n.is_empty() {
            // What tells the CPU apart: a program on ELF need not have it.
            let asked = asks
                && architecture == Architecture::Aarch64
                && match format {
                    BinaryFormat::Coff => n == "IsProcessorFeaturePresent",
                    _ => n == "getauxval" && s.is_weak(),
                };
            let known = matches!(n.as_str(), "memcpy" | "memmove" | "memset");
            if !known && !asked && !LIBM.contains(&n.as_str()) {
                out.push(format!("undefined symbol {n}"));
            }
        } else if s.is_global() && s.is_definition() {
            exported.push(n);
        }
    }
    for suffix in ["_infer", "_infer_exec", "_model"] {
        if !exported.contains(&format!("{name}{suffix}")) {
            out.push(format!("{name}{suffix} is not exported"));
        }
    }
    // No other symbol may collide with the user's names.
    out.extend(
        exported.iter().filter(|e| !e.starts_with(&format!("{name}_"))).map(|e| format!("{e} is exported")),
    );
    // Only the cached CPU level is writable.
    let read_only = |s: &object::Section| {
        matches!(
            s.kind(),
            SectionKind::Text | SectionKind::ReadOnlyData | SectionKind::Metadata | SectionKind::Other
        ) || s.name() == Ok(".data.rel.ro")
    };
    let writable: u64 = file.sections().filter(|s| !read_only(s)).map(|s| s.size()).sum();
    if writable != if asks { 4 } else { 0 } {
        out.push(format!("{writable} bytes are writable"));
    }
    let word = file.symbols().find(|s| s.name().is_ok_and(|n| plain(n) == format!("{name}.cpu")));
    if word.is_some() != asks || word.is_some_and(|s| s.is_global() || s.is_undefined()) {
        out.push("the word for the CPU's level is not as it should be".into());
    }
    if !file.sections().any(|s| s.size() > 0) {
        out.push("no section has contents".into());
    }
    out
}

// ---- Running ----

#[test]
fn aarch64_computes_the_same() {
    on_machines("aarch64");
}

#[test]
fn x86_64_levels_compute_the_same() {
    on_machines("x86_64-unknown-linux");
}

#[test]
fn windows_computes_the_same() {
    on_machines("x86_64-pc-windows");
}

#[test]
fn riscv64_computes_the_same() {
    on_machines("riscv64");
}

/// True if this machine is an x86-64 with Linux that has a level.
fn runs_here(l: &Level) -> bool {
    cfg!(all(target_arch = "x86_64", target_os = "linux"))
        && l.runs_on(Target::host().expect("this machine").lowest())
}

/// An object in which each level computes something else, so that results identify the level that ran.
#[test]
fn the_best_level_runs() {
    const EMULATED: [(&[&str], &str); 2] = [
        (&["qemu-x86_64", "-cpu", "Nehalem"], "x86-64-v2"),
        (&["qemu-x86_64", "-cpu", "Haswell"], "x86-64-v3"),
    ];
    let triple = "x86_64-unknown-linux-gnu";
    // Of dot products at 256 and at 512 bits a CPU may have either.
    for list in [ALL, "x86-64-v2,x86-64-v3,x86-64-v3-vnni", "x86-64-v3-vnni,x86-64-v4"] {
        let t = target(triple, Some(list));
        let here = t.levels.iter().rfind(|l| runs_here(l)).map(|l| l.name.as_str());
        let mut on: Vec<(&'static [&'static str], &str)> = here.iter().map(|l| (HERE, *l)).collect();
        if t.lowest().name == "x86-64-v2" {
            on.extend(EMULATED);
        }
        runs_on(&t, list, "x86_64-linux-gnu-gcc", &on);
    }
}

#[test]
fn the_best_level_of_aarch64_runs() {
    let (dot, best) = ("armv8.2-a+dotprod+fp16", "armv8.6-a+i8mm+bf16");
    let t = target("aarch64-unknown-linux-gnu", Some(ALL_ARM));
    let on: [(&'static [&'static str], &str); 4] = [
        (&["qemu-aarch64", "-cpu", "cortex-a53"], "armv8-a"),
        (&["qemu-aarch64", "-cpu", "cortex-a72"], "armv8-a"),
        (&["qemu-aarch64", "-cpu", "neoverse-n1"], dot),
        (&["qemu-aarch64", "-cpu", "max"], best),
    ];
    runs_on(&t, ALL_ARM, "aarch64-linux-gnu-gcc", &on);
    // The names of CPUs are levels, too.
    let list = "armv8-a,neoverse-n1";
    let t = target("aarch64-unknown-linux-gnu", Some(list));
    runs_on(
        &t,
        list,
        "aarch64-linux-gnu-gcc",
        &[
            (&["qemu-aarch64", "-cpu", "cortex-a72"], "armv8-a"),
            (&["qemu-aarch64", "-cpu", "max"], "neoverse-n1"),
        ],
    );
}

/// Levels of riscv64 by the system call, where the emulator has it; without it, and on CPUs without vectors,
/// the first one runs and nothing ends with an illegal instruction.
#[test]
fn the_best_level_of_riscv64_runs() {
    let version = std::process::Command::new("qemu-riscv64").arg("--version").output();
    let version = version.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let major = version.split("version ").nth(1).and_then(|v| v.split('.').next()?.parse::<u32>().ok());
    // Since 8.2.
    let asks = major.is_some_and(|v| v >= 9);
    let level = |name: &'static str| if asks { name } else { "rv64gc" };
    let t = target("riscv64gc-unknown-linux-gnu", Some(ALL_RISCV));
    let on: [(&'static [&'static str], &str); 4] = [
        (&["qemu-riscv64", "-cpu", "rv64,v=false"], "rv64gc"),
        (RVV128, level("rv64gcv")),
        (RVV256, level("rv64gcv_zvl256b")),
        (RVV512, level("rv64gcv_zvl512b")),
    ];
    runs_on(&t, ALL_RISCV, "riscv64-linux-gnu-gcc", &on);
}

/// An object of all levels of `t`, run on each of the machines: that level should have run.
fn runs_on(t: &Target, list: &'static str, cc: &'static str, on: &[(&'static [&'static str], &str)]) {
    let (cases, bytes) = levels_apart(t);
    let triple = match cc.split('-').next() {
        Some("aarch64") => "aarch64-unknown-linux-gnu",
        Some("riscv64") => "riscv64gc-unknown-linux-gnu",
        _ => "x86_64-unknown-linux-gnu",
    };
    for (qemu, level) in on {
        let m = Machine { triple, cpu: list, cc, qemu };
        let (true, true, Some(level)) =
            (found(m.cc), found(qemu[0]), t.levels.iter().position(|l| l.name == *level))
        else {
            eprintln!("skipped: {qemu:?}");
            continue;
        };
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cross-pick-{cc}"));
        std::fs::create_dir_all(&dir).expect("a folder for objects");
        let wrong = run(&m, &dir, &[("pick", &cases[level], bytes.clone())]);
        assert!(wrong.is_empty(), "of {list} under {qemu:?} not {} has run:\n{wrong}", t.levels[level].name);
    }
}

/// What each level computes, and an object of all.
fn levels_apart(t: &Target) -> (Vec<Case>, Vec<u8>) {
    // Without optimisation they need workspaces of different sizes too.
    let value = |level: usize| match level {
        1 => "a = Neg (x)\n  v = Neg (a)",
        2 => {
            "c = Concat <axis = 0> (x, x, x)\n  s = Constant <value_ints = [0]> ()\n  n = Shape (x)\n  v = Slice (c, s, n)"
        }
        _ => "v = Identity (x)",
    };
    let model = |level: usize| {
        format!(
            "<ir_version: 8, opset_import: [\"\" : 17]>\npick (float[N] x) => (float[N] y) {{\n  r = Constant <value_float = {level}.0> ()\n  {}\n  y = Add (v, r)\n}}",
            value(level)
        )
    };
    let cases: Vec<Case> = (0..t.levels.len()).map(|level| text_case("pick", &model(level))).collect();
    let modules: Vec<Module> = t
        .levels
        .iter()
        .zip(&cases)
        .flat_map(|(l, c)| {
            pipeline::finish_all(&c.module, &target(&t.triple.to_string(), Some(&l.name)), OptLevel::O0)
                .expect("passes")
        })
        .collect();
    let size = |d: Dim, n| d.eval(&|_| Some(n)).expect("a size");
    for n in [1, 15, 16, 100] {
        let most = modules.iter().map(|m| size(m.workspace, n)).max();
        assert_eq!(Some(size(pipeline::workspace(&modules), n)), most);
    }
    if let [first, second, third, ..] = modules.as_slice() {
        assert!(
            size(second.workspace, 1) != size(first.workspace, 1)
                && size(second.workspace, 100) != size(third.workspace, 100)
        );
    }
    (cases, object(&modules, t).expect("an object"))
}

fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("ONNXC_CROSS_SEEDS").unwrap_or_default();
    text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?)).unwrap_or(0..48)
}

fn calls_libm(object: &[u8]) -> bool {
    let file = object::File::parse(object).expect("an object");
    file.symbols().any(|s| s.is_undefined() && s.name().is_ok_and(|n| LIBM.contains(&n)))
}

fn on_machines(architecture: &str) {
    let mut cases: Vec<(String, Case)> =
        MODELS.iter().map(|(n, t)| ((*n).to_owned(), text_case(n, t))).collect();
    cases.extend(
        operations::tables().into_iter().enumerate().map(|(i, t)| (format!("table{i}"), table_case(t))),
    );
    cases.extend(seeds().map(|s| (format!("seed{s}"), random_case(s))));
    for (i, m) in MACHINES.iter().enumerate().filter(|(_, m)| m.triple.starts_with(architecture)) {
        let t = target(m.triple, Some(m.cpu));
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cross-{i}"));
        std::fs::create_dir_all(&dir).expect("a folder for objects");
        let mut wrong = String::new();
        let mut objects = vec![];
        for (name, c) in &cases {
            match object_of(&c.module, name, &t, OptLevel::O2) {
                // MinGW's functions of doubles are off by 1e-12 for large arguments.
                Ok(bytes) if m.qemu == WINE && calls_libm(&bytes) => {}
                Ok(bytes) => objects.push((name.as_str(), c, bytes)),
                Err(e) => writeln!(
                    wrong,
                    "{name}: {}\n{}",
                    e.lines().take(4).collect::<Vec<_>>().join(" "),
                    print(&c.module)
                )
                .expect("a string"),
            }
        }
        if (m.qemu == HERE || m.qemu == WINE) && !runs_here(t.lowest()) {
            eprintln!("skipped: this machine has no {}; its code was compiled, not run", m.cpu);
        } else if found(m.cc) && found(m.qemu[0]) {
            wrong += &run(m, &dir, &objects);
        } else {
            eprintln!(
                "skipped: {} or {} is not installed; code for {} {} was compiled, not run",
                m.cc, m.qemu[0], m.triple, m.cpu
            );
        }
        assert!(wrong.is_empty(), "{} {} under {:?}:\n{wrong}", m.triple, m.cpu, m.qemu);
    }
}
