//! Hand-written models, as onnxc would generate them, through the driver.

#![allow(unsafe_code, reason = "stands in for generated code")]

use onnxc_runtime::abi::{DIM_COMPUTED as X, onnxc_exec, onnxc_model, onnxc_tensor_info};
use onnxc_runtime::{Dim, Model, Pool, Status, Workspace};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};

const MAX_N: i64 = 1 << 20;
const NO_MAX: u64 = u64::MAX;

struct Names([*const c_char; 1]);
// SAFETY: constant text.
unsafe impl Sync for Names {}
static PARAMS: Names = Names([c"N".as_ptr()]);

const fn tensor<const R: usize>(name: &'static CStr, dtype: i32, dims: &'static [i64; R], max: &'static [i64; R], max_bytes: u64) -> onnxc_tensor_info {
    onnxc_tensor_info { name: name.as_ptr(), dims: dims.as_ptr(), max_dims: max.as_ptr(), max_bytes, dtype, rank: R as i32, aliases_input: -1, kind: 0 }
}

// Inputs x: f32[N, 2] and limit: f32[]. Outputs y = x + 1: f32[N, 2]; twice: f32[2N], an expression without a bound;
// above: i64[?], rows whose first element exceeds the limit, at most N of them; name: u8[3], constant.
static INPUTS: [onnxc_tensor_info; 2] = [tensor(c"x", 1, &[-1, 2], &[MAX_N, 2], 8 << 20), tensor(c"limit", 1, &[], &[], 4)];
static OUTPUTS: [onnxc_tensor_info; 4] =
    [tensor(c"y", 1, &[-1, 2], &[MAX_N, 2], 8 << 20), tensor(c"twice/\u{fc}", 1, &[X], &[X], NO_MAX), tensor(c"above", 7, &[X], &[MAX_N], 8 << 20), tensor(c"name", 2, &[3], &[3], 3)];
static MODEL: onnxc_model = onnxc_model {
    abi_version: 1,
    struct_size: size_of::<onnxc_model>() as u32,
    name: c"demo".as_ptr(),
    producer: c"onnxc test".as_ptr(),
    target: c"".as_ptr(),
    cpu_features: c"".as_ptr(),
    model_sha256: [0; 32],
    workspace_size: 4 << 20,
    workspace_align: 64,
    weights_size: 0,
    weights_align: 64,
    inputs: INPUTS.as_ptr(),
    outputs: OUTPUTS.as_ptr(),
    dim_params: PARAMS.0.as_ptr(),
    nodes: null(),
    n_inputs: 2,
    n_outputs: 4,
    n_dim_params: 1,
    n_nodes: 0,
    workspace_for: Some(workspace_for),
    call: Some(call),
};

unsafe extern "C" fn workspace_for(dims: *const i64, bytes: *mut u64) -> i32 {
    // SAFETY: the ABI: one dim param.
    let n = unsafe { *dims };
    if !(0..=MAX_N).contains(&n) {
        return 3;
    }
    // SAFETY: the ABI.
    unsafe { *bytes = 4 * n as u64 };
    0
}

struct Task {
    n: usize,
    x: *const f32,
    y: *mut f32,
}

/// Row `i` of `y`.
unsafe extern "C" fn row(ctx: *mut c_void, i: usize) {
    // SAFETY: `call` passes its task; rows are disjoint.
    unsafe {
        let t = &*ctx.cast::<Task>();
        assert!(i < t.n);
        for k in 0..2 {
            *t.y.add(2 * i + k) = *t.x.add(2 * i + k) + 1.0;
        }
    }
}

/// As generated code would: checks, then arithmetic, everything in the caller's memory.
unsafe extern "C" fn call(i: *const *const c_void, o: *const *mut c_void, dims: *const i64, od: *const *mut i64, weights: *const c_void, ws: *mut c_void, exec: *const onnxc_exec) -> i32 {
    // SAFETY: the ABI, which this test is about.
    unsafe {
        let n = *dims as usize;
        let (x, limit) = ((*i).cast::<f32>(), *(*i.add(1)).cast::<f32>());
        if !x.is_aligned() || !ws.addr().is_multiple_of(64) || !weights.is_null() {
            return 2;
        }
        ws.cast::<u8>().write_bytes(0xAA, 4 * n);
        assert!(*(*od) == n as i64 && *(*od).add(1) == 2 && (*od.add(3)).is_null());
        // One output is reported at a time, as a model would whose later shapes depend on earlier ones.
        let twice = *od.add(1);
        let too_small = *twice < 2 * n as i64;
        *twice = 2 * n as i64;
        if too_small {
            return 4;
        }
        (0..2 * n).for_each(|k| *(*o.add(1)).cast::<f32>().add(k) = k as f32);
        let rows: Vec<i64> = (0..n).filter(|r| *x.add(2 * r) > limit).map(|r| r as i64).collect();
        let above = *od.add(2);
        let too_small = *above < rows.len() as i64;
        *above = rows.len() as i64;
        if too_small {
            return 4;
        }
        (*o.add(2)).cast::<i64>().copy_from(rows.as_ptr(), rows.len());
        (*o.add(3)).cast::<u8>().copy_from(b"abc".as_ptr(), 3);
        let mut t = Task { n, x, y: (*o).cast() };
        let ctx = (&raw mut t).cast();
        match exec.as_ref().and_then(|e| Some((e.user, e.parallel_for?))) {
            Some((user, run)) => run(user, n, row, ctx),
            None => (0..n).for_each(|r| row(ctx, r)),
        }
        0
    }
}

fn model(raw: onnxc_model) -> Result<Model, Status> {
    // SAFETY: made from `MODEL` in this file, and leaked.
    unsafe { Model::from_raw(Box::leak(Box::new(raw))) }
}

fn bytes(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

fn f32s(b: &[u8]) -> Vec<f32> {
    b.as_chunks().0.iter().map(|c| f32::from_ne_bytes(*c)).collect()
}

#[test]
fn description() {
    let m = model(MODEL).unwrap();
    assert_eq!((m.name(), m.dim_params()), ("demo", &["N"][..]));
    assert_eq!(m.inputs()[0].dims, [Dim::Param(0), Dim::Fixed(2)]);
    assert_eq!(m.inputs()[1].dims, []);
    let [y, twice, above, name] = m.outputs() else { panic!() };
    assert_eq!((y.name, y.max_bytes), ("y", Some(8 << 20)));
    assert_eq!((twice.name, &twice.dims[..], &twice.max_dims[..], twice.max_bytes), ("twice/\u{fc}", &[Dim::Computed][..], &[None][..], None));
    assert_eq!((above.dtype, &above.max_dims[..]), (7, &[Some(MAX_N)][..]));
    assert_eq!((&name.dims[..], name.aliases_input), (&[Dim::Fixed(3)][..], None));
}

#[test]
fn runs() {
    let m = model(MODEL).unwrap();
    let (serial, pool) = (None, Pool::new(3));
    let exec = pool.exec();
    let mut ws = Workspace::default();
    for n in [0usize, 1, 5, 1000] {
        let x: Vec<f32> = (0..2 * n).map(|k| (k % 7) as f32).collect();
        // At an odd address: the driver must align it.
        let mut raw = vec![0u8; 1];
        raw.extend(bytes(&x));
        let limit = bytes(&[2.5]);
        for exec in [serial, Some(&exec)] {
            let out = m.call_in(&[&raw[1..], &limit], &[n as i64], exec, &mut ws).unwrap();
            let above: Vec<u8> = (0..n as i64).filter(|r| x[2 * *r as usize] > 2.5).flat_map(i64::to_ne_bytes).collect();
            assert_eq!(out[0].dims, [n as i64, 2]);
            assert_eq!(f32s(&out[0].data), x.iter().map(|v| v + 1.0).collect::<Vec<_>>());
            assert_eq!(out[1].dims, [2 * n as i64]);
            assert_eq!(f32s(&out[1].data), (0..2 * n).map(|k| k as f32).collect::<Vec<_>>());
            assert_eq!((out[2].dims[0], &*out[2].data), (above.len() as i64 / 8, &above[..]));
            assert_eq!((&out[3].dims[..], &*out[3].data), (&[3][..], &b"abc"[..]));
        }
    }
}

/// Without bounds both computed outputs are found one after the other.
#[test]
fn retries() {
    static OPEN: [onnxc_tensor_info; 4] = [OUTPUTS[0], OUTPUTS[1], tensor(c"above", 7, &[X], &[X], NO_MAX), OUTPUTS[3]];
    static ROUNDS: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn counted(i: *const *const c_void, o: *const *mut c_void, d: *const i64, od: *const *mut i64, w: *const c_void, ws: *mut c_void, e: *const onnxc_exec) -> i32 {
        ROUNDS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { call(i, o, d, od, w, ws, e) }
    }
    let m = model(onnxc_model { outputs: OPEN.as_ptr(), call: Some(counted), ..MODEL }).unwrap();
    let out = m.call(&[&bytes(&[1.0, 0.0, 9.0, 0.0]), &bytes(&[0.5])], &[2], None).unwrap();
    assert_eq!((out[2].dims[0], ROUNDS.load(Ordering::Relaxed)), (2, 3));
}

/// A model that asks for more and more, or for nothing, or returns dims beyond the capacity: an error, no loop.
#[test]
fn insatiable() {
    unsafe extern "C" fn more(_: *const *const c_void, _: *const *mut c_void, _: *const i64, od: *const *mut i64, _: *const c_void, _: *mut c_void, _: *const onnxc_exec) -> i32 {
        // SAFETY: the ABI.
        unsafe { **od.add(1) += 1 };
        4
    }
    unsafe extern "C" fn nothing(_: *const *const c_void, _: *const *mut c_void, _: *const i64, _: *const *mut i64, _: *const c_void, _: *mut c_void, _: *const onnxc_exec) -> i32 {
        4
    }
    unsafe extern "C" fn beyond(_: *const *const c_void, _: *const *mut c_void, _: *const i64, od: *const *mut i64, _: *const c_void, _: *mut c_void, _: *const onnxc_exec) -> i32 {
        // SAFETY: the ABI.
        unsafe { **od.add(1) = 1000 };
        0
    }
    unsafe extern "C" fn huge(_: *const *const c_void, _: *const *mut c_void, _: *const i64, od: *const *mut i64, _: *const c_void, _: *mut c_void, _: *const onnxc_exec) -> i32 {
        // SAFETY: the ABI.
        unsafe { **od.add(1) = 1 << 56 };
        4
    }
    let (x, limit) = (bytes(&[1.0, 2.0]), bytes(&[0.0]));
    let run = |f| model(onnxc_model { call: Some(f), ..MODEL }).unwrap().call(&[&x, &limit], &[1], None).unwrap_err();
    assert_eq!([run(more), run(nothing), run(beyond), run(huge)], [Status::Capacity, Status::Capacity, Status::Abi, Status::Capacity]);
}

#[test]
fn arguments_are_checked() {
    let m = model(MODEL).unwrap();
    let (x, limit) = (bytes(&[1.0, 2.0]), bytes(&[0.0]));
    for (inputs, dims, status) in [
        (&[&x[..]][..], &[1][..], Status::Null),
        (&[&x, &limit], &[], Status::Dim),
        (&[&x, &limit], &[1, 1], Status::Dim),
        (&[&x, &limit], &[2], Status::Dim),
        (&[&x, &limit], &[-1], Status::Dim),
        (&[&x, &limit], &[MAX_N + 1], Status::Dim),
        (&[&x, &limit], &[i64::MAX], Status::Dim),
        (&[&x, &x], &[1], Status::Dim),
    ] {
        assert_eq!(m.call(inputs, dims, None).unwrap_err(), status, "{dims:?}");
    }
}

#[test]
fn dims_from_shapes() {
    let m = model(MODEL).unwrap();
    assert_eq!(m.dims_of(&[&[5, 2], &[]]), Ok(vec![5]));
    for bad in [&[&[5, 3][..], &[]][..], &[&[5, 2]], &[&[5], &[]], &[&[-5, 2], &[]], &[&[5, 2], &[1]]] {
        assert_eq!(m.dims_of(bad), Err(Status::Dim));
    }
    assert_eq!(m.workspace_for(&[5]), Ok(20));
    assert_eq!(m.workspace_for(&[MAX_N + 1]), Err(Status::Dim));
}

#[test]
fn bad_metadata() {
    static PARAM_9: [onnxc_tensor_info; 2] = [tensor(c"x", 1, &[-10, 2], &[1, 2], 8), INPUTS[1]];
    static COMPUTED: [onnxc_tensor_info; 2] = [tensor(c"x", 1, &[X, 2], &[1, 2], 8), INPUTS[1]];
    for raw in [
        onnxc_model { abi_version: 2, ..MODEL },
        onnxc_model { struct_size: 8, ..MODEL },
        onnxc_model { name: null(), ..MODEL },
        onnxc_model { inputs: null(), ..MODEL },
        onnxc_model { dim_params: null(), ..MODEL },
        onnxc_model { workspace_align: 48, ..MODEL },
        onnxc_model { call: None, ..MODEL },
        onnxc_model { inputs: PARAM_9.as_ptr(), ..MODEL },
        onnxc_model { inputs: COMPUTED.as_ptr(), ..MODEL },
    ] {
        assert_eq!(model(raw).unwrap_err(), Status::Abi, "{raw:?}");
    }
    // A larger struct of a later compiler and a missing `workspace_for` are fine.
    let m = model(onnxc_model { struct_size: 4096, workspace_for: None, ..MODEL }).unwrap();
    assert_eq!(m.workspace_for(&[1]), Ok(4 << 20));
}

#[test]
fn weights_in_a_file() {
    unsafe extern "C" fn first_byte(_: *const *const c_void, o: *const *mut c_void, _: *const i64, od: *const *mut i64, w: *const c_void, _: *mut c_void, _: *const onnxc_exec) -> i32 {
        // SAFETY: the ABI.
        unsafe {
            (**od.add(1), **od.add(2)) = (0, 0);
            *(*o.add(3)).cast::<u8>() = *w.cast::<u8>();
        }
        0
    }
    let raw = onnxc_model { weights_size: 128, call: Some(first_byte), ..MODEL };
    let m = model(raw).unwrap();
    let (x, limit) = (bytes(&[1.0, 2.0]), bytes(&[0.0]));
    assert!(m.needs_weights());
    assert_eq!(m.call(&[&x, &limit], &[1], None).unwrap_err(), Status::Null);
    let path = std::env::temp_dir().join(format!("onnxc-runtime-{}.weights", std::process::id()));
    std::fs::write(&path, [42u8; 128]).unwrap();
    let other = model(onnxc_model { weights_size: 64, ..raw }).unwrap();
    assert_eq!(other.with_weights(m.open_weights(&path).unwrap()).unwrap_err(), Status::Weights);
    let w = m.open_weights(&path).unwrap();
    let m = m.with_weights(w).unwrap();
    assert!(!m.needs_weights());
    assert_eq!(m.clone().call(&[&x, &limit], &[1], None).unwrap()[3].data[0], 42);
    std::fs::remove_file(&path).unwrap();
}
