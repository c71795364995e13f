//! Hand-written models, as onnxc would generate them, through the driver.

#![allow(unsafe_code, reason = "stands in for generated code")]

use onnxc_runtime::abi::{
    self, DIM_COMPUTED as X, onnxc_check_info, onnxc_exec, onnxc_fault, onnxc_model, onnxc_tensor_info,
    onnxc_value,
};
use onnxc_runtime::{Dim, Kind, Map, Model, Pool, Status, Tensor, Value, Workspace};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};

const MAX_N: i64 = 1 << 20;
const NO_MAX: u64 = u64::MAX;

struct Names([*const c_char; 1]);
// SAFETY: constant text.
unsafe impl Sync for Names {}
static PARAMS: Names = Names([c"N".as_ptr()]);

const fn tensor<const R: usize>(
    name: &'static CStr,
    dtype: i32,
    dims: &'static [i64; R],
    max: &'static [i64; R],
    max_bytes: u64,
) -> onnxc_tensor_info {
    onnxc_tensor_info {
        name: name.as_ptr(),
        dims: dims.as_ptr(),
        max_dims: max.as_ptr(),
        max_bytes,
        dtype,
        rank: R as i32,
        aliases_input: -1,
        kind: 0,
    }
}

// Inputs x: f32[N, 2] and limit: f32[]. Outputs y = x + 1: f32[N, 2]; twice: f32[2N], an expression without a
// bound; above: i64[?], rows whose first element exceeds the limit, at most N of them; name: u8[3], constant.
static INPUTS: [onnxc_tensor_info; 2] =
    [tensor(c"x", 1, &[-1, 2], &[MAX_N, 2], 8 << 20), tensor(c"limit", 1, &[], &[], 4)];
static OUTPUTS: [onnxc_tensor_info; 4] = [
    tensor(c"y", 1, &[-1, 2], &[MAX_N, 2], 8 << 20),
    tensor(c"twice/\u{fc}", 1, &[X], &[X], NO_MAX),
    tensor(c"above", 7, &[X], &[MAX_N], 8 << 20),
    tensor(c"name", 2, &[3], &[3], 3),
];
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
    checks: CHECKS.as_ptr(),
    n_checks: 1,
    reserved: 0,
};
static CHECKS: [onnxc_check_info; 1] = [onnxc_check_info {
    node: c"".as_ptr(),
    op_type: c"".as_ptr(),
    text: c"input \"x\" dimension 0 (N) is %lld: it must be from 0 to 1048576".as_ptr(),
    tensors: [c"x".as_ptr(), null(), null(), null()],
    dims: [0, -1, -1, -1],
    status: 3,
    n_values: 1,
}];

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
unsafe extern "C" fn call(
    i: *const *const c_void,
    o: *const *mut c_void,
    dims: *const i64,
    od: *const *mut i64,
    weights: *const c_void,
    ws: *mut c_void,
    exec: *const onnxc_exec,
) -> i32 {
    // SAFETY: the ABI, which this test is about.
    unsafe {
        if !(0..=MAX_N).contains(&*dims) {
            let exec = exec.as_ref().expect("the driver always passes one");
            exec.fault.write(onnxc_fault {
                check: 0,
                status: 3,
                values: [*dims, 0, 0, 0],
                workspace_size: 0,
            });
            return 3;
        }
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

// State in place: past: f32[C] and present: f32[C] may be one memory; position N takes the value 10 + N. A
// call with N = C fails.
static STATE_IN: [onnxc_tensor_info; 1] = [tensor(c"past", 1, &[-2], &[X], NO_MAX)];
static STATE_OUT: [onnxc_tensor_info; 1] =
    [onnxc_tensor_info { aliases_input: 0, ..tensor(c"present", 1, &[-2], &[X], NO_MAX) }];
struct Two([*const c_char; 2]);
// SAFETY: constant text.
unsafe impl Sync for Two {}
static STATE_PARAMS: Two = Two([c"N".as_ptr(), c"C".as_ptr()]);

unsafe extern "C" fn append(
    i: *const *const c_void,
    o: *const *mut c_void,
    dims: *const i64,
    _: *const *mut i64,
    _: *const c_void,
    _: *mut c_void,
    _: *const onnxc_exec,
) -> i32 {
    // SAFETY: the ABI, with a state of C elements.
    unsafe {
        let (n, c, past, present) =
            (*dims as usize, *dims.add(1) as usize, (*i).cast::<f32>(), (*o).cast::<f32>());
        if n >= c {
            return 4;
        }
        if past != present {
            present.copy_from(past, n);
            *present.add(c - 1) = -1.0;
        }
        *present.add(n) = 10.0 + n as f32;
    }
    0
}

#[test]
fn state_in_place() {
    let raw = onnxc_model {
        inputs: STATE_IN.as_ptr(),
        outputs: STATE_OUT.as_ptr(),
        dim_params: STATE_PARAMS.0.as_ptr(),
        n_inputs: 1,
        n_outputs: 1,
        n_dim_params: 2,
        workspace_for: None,
        call: Some(append),
        checks: null(),
        n_checks: 0,
        ..MODEL
    };
    let m = model(raw).unwrap();
    assert_eq!(m.outputs()[0].aliases_input, Some(0));
    let mut ws = Workspace::default();
    let mut state = vec![Value::from(Tensor::zeros(1, &[4]).unwrap())];
    // A model that copies marks the last element.
    for n in 0..3 {
        state = m.step(&mut state, &[("N", n)], None, &mut ws).unwrap();
    }
    assert_eq!(state[0].as_slice::<f32>(), Some(&[10.0, 11.0, 12.0, 0.0][..]));
    // Somebody else holds it: it is copied and stays.
    let held = state.clone();
    let next = m.step(&mut state, &[("N", 1)], None, &mut ws).unwrap();
    assert_eq!((next[0].as_slice::<f32>(), &state), (Some(&[10.0, 11.0, 0.0, -1.0][..]), &held));
    drop(held);
    // After an error it is there again.
    let e = m.step(&mut state, &[("N", 4)], None, &mut ws).unwrap_err();
    assert_eq!(
        (e.status(), state[0].as_slice::<f32>()),
        (Status::Capacity, Some(&[10.0, 11.0, 12.0, 0.0][..]))
    );
    assert_eq!(m.step(&mut state, &[], None, &mut ws).unwrap_err().status(), Status::Dim);
    assert_eq!(m.step(&mut state, &[("N", 0), ("C", 5)], None, &mut ws).unwrap_err().status(), Status::Dim);
    assert_eq!(m.step(&mut state, &[("M", 0)], None, &mut ws).unwrap_err().status(), Status::Dim);
    let numbers = [1.0f32; 4];
    let lent = m.step(&mut [floats(&[4], &numbers)], &[("N", 2)], None, &mut ws).unwrap();
    assert_eq!(lent[0].as_slice::<f32>(), Some(&[1.0, 1.0, 12.0, -1.0][..]));
}

fn model(raw: onnxc_model) -> Result<Model, Status> {
    // SAFETY: made from `MODEL` in this file, and leaked.
    unsafe { Model::from_raw(Box::leak(Box::new(raw))) }
}

fn floats<'a>(dims: &[i64], data: &'a [f32]) -> Value<'a> {
    Tensor::new(dims, data).unwrap().into()
}

/// Inputs `x` of `n` rows and `limit`.
fn inputs<'a>(x: &'a [f32], limit: &'a [f32; 1]) -> [Value<'a>; 2] {
    [floats(&[x.len() as i64 / 2, 2], x), floats(&[], limit)]
}

fn dims(v: &Value) -> Vec<i64> {
    v.tensor().unwrap().dims().to_vec()
}

#[test]
fn description() {
    let m = model(MODEL).unwrap();
    assert_eq!((m.name(), m.dim_params()), ("demo", &["N"][..]));
    assert_eq!(m.inputs()[0].dims, [Dim::Param(0), Dim::Fixed(2)]);
    assert_eq!((&m.inputs()[1].dims[..], m.inputs()[1].kind), (&[][..], Kind::Tensor));
    let [y, twice, above, name] = m.outputs() else { panic!() };
    assert_eq!((y.name, y.max_bytes), ("y", Some(8 << 20)));
    assert_eq!(
        (twice.name, &twice.dims[..], &twice.max_dims[..], twice.max_bytes),
        ("twice/\u{fc}", &[Dim::Computed][..], &[None][..], None)
    );
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
        raw.extend(x.iter().flat_map(|v| v.to_ne_bytes()));
        let given = [Tensor::from_bytes(1, &[n as i64, 2], &raw[1..]).unwrap().into(), floats(&[], &[2.5])];
        for exec in [serial, Some(&exec)] {
            let out = m.call_in(&given, exec, &mut ws).unwrap();
            let above: Vec<i64> = (0..n as i64).filter(|r| x[2 * *r as usize] > 2.5).collect();
            assert_eq!(dims(&out[0]), [n as i64, 2]);
            assert_eq!(out[0].as_slice::<f32>().unwrap(), x.iter().map(|v| v + 1.0).collect::<Vec<_>>());
            assert_eq!(dims(&out[1]), [2 * n as i64]);
            assert_eq!(out[1].as_slice::<f32>().unwrap(), (0..2 * n).map(|k| k as f32).collect::<Vec<_>>());
            assert_eq!((dims(&out[2])[0], out[2].as_slice()), (above.len() as i64, Some(&above[..])));
            assert_eq!((&dims(&out[3])[..], out[3].as_slice()), (&[3][..], Some(&b"abc"[..])));
        }
    }
}

/// Without bounds both computed outputs are found one after the other.
#[test]
fn retries() {
    static OPEN: [onnxc_tensor_info; 4] =
        [OUTPUTS[0], OUTPUTS[1], tensor(c"above", 7, &[X], &[X], NO_MAX), OUTPUTS[3]];
    static ROUNDS: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn counted(
        i: *const *const c_void,
        o: *const *mut c_void,
        d: *const i64,
        od: *const *mut i64,
        w: *const c_void,
        ws: *mut c_void,
        e: *const onnxc_exec,
    ) -> i32 {
        ROUNDS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { call(i, o, d, od, w, ws, e) }
    }
    let m = model(onnxc_model { outputs: OPEN.as_ptr(), call: Some(counted), ..MODEL }).unwrap();
    let out = m.call(&inputs(&[1.0, 0.0, 9.0, 0.0], &[0.5]), None).unwrap();
    assert_eq!((dims(&out[2])[0], ROUNDS.load(Ordering::Relaxed)), (2, 3));
}

/// A model that asks for more and more, or for nothing, or returns dims beyond the capacity: an error, no
/// loop.
#[test]
fn insatiable() {
    unsafe extern "C" fn more(
        _: *const *const c_void,
        _: *const *mut c_void,
        _: *const i64,
        od: *const *mut i64,
        _: *const c_void,
        _: *mut c_void,
        _: *const onnxc_exec,
    ) -> i32 {
        // SAFETY: the ABI.
        unsafe { **od.add(1) += 1 };
        4
    }
    unsafe extern "C" fn nothing(
        _: *const *const c_void,
        _: *const *mut c_void,
        _: *const i64,
        _: *const *mut i64,
        _: *const c_void,
        _: *mut c_void,
        _: *const onnxc_exec,
    ) -> i32 {
        4
    }
    unsafe extern "C" fn beyond(
        _: *const *const c_void,
        _: *const *mut c_void,
        _: *const i64,
        od: *const *mut i64,
        _: *const c_void,
        _: *mut c_void,
        _: *const onnxc_exec,
    ) -> i32 {
        // SAFETY: the ABI.
        unsafe { **od.add(1) = 1000 };
        0
    }
    unsafe extern "C" fn huge(
        _: *const *const c_void,
        _: *const *mut c_void,
        _: *const i64,
        od: *const *mut i64,
        _: *const c_void,
        _: *mut c_void,
        _: *const onnxc_exec,
    ) -> i32 {
        // SAFETY: the ABI.
        unsafe { **od.add(1) = 1 << 56 };
        4
    }
    let run = |f| {
        model(onnxc_model { call: Some(f), ..MODEL })
            .unwrap()
            .call(&inputs(&[1.0, 2.0], &[0.0]), None)
            .unwrap_err()
    };
    assert_eq!(
        [run(more), run(nothing), run(beyond), run(huge)],
        [Status::Capacity, Status::Capacity, Status::Abi, Status::Capacity]
    );
}

#[test]
fn arguments_are_checked() {
    let m = model(MODEL).unwrap();
    let (x, limit) = (floats(&[1, 2], &[1.0, 2.0]), floats(&[], &[0.0]));
    assert_eq!(m.dims_of(&[x.clone(), limit.clone()]).unwrap(), [1]);
    for (inputs, status) in [
        (vec![x.clone()], Status::Null),
        (vec![x.clone(), x.clone()], Status::Dim),
        (vec![floats(&[2, 1], &[1.0, 2.0]), limit.clone()], Status::Dim),
        (vec![floats(&[2], &[1.0, 2.0]), limit.clone()], Status::Dim),
        (vec![Tensor::new(&[1, 2], &[1i32, 2]).unwrap().into(), limit.clone()], Status::Value),
        (vec![Value::None, limit.clone()], Status::Value),
        (vec![vec![x.clone()].into(), limit], Status::Value),
    ] {
        assert_eq!(m.call(&inputs, None).unwrap_err(), status, "{inputs:?}");
    }
    assert_eq!(m.workspace_for(&[5]).unwrap(), 20);
    for dims in [&[][..], &[1, 1], &[-1], &[MAX_N + 1], &[i64::MAX]] {
        assert_eq!(m.workspace_for(dims).unwrap_err(), Status::Dim);
    }
    // The model's own check: its fault, and its text with the value.
    let e = m.workspace_for(&[MAX_N + 1]).unwrap_err();
    assert_eq!(
        e.to_string(),
        "bad dimension: input \"x\" dimension 0 (N) is 1048577: it must be from 0 to 1048576"
    );
    assert_eq!(e.fault().map(|f| (f.check, f.values[0])), Some((0, MAX_N + 1)));
    // Metadata of a compiler without checks: the status alone, and no call to learn more.
    unsafe extern "C" fn never(
        _: *const *const c_void,
        _: *const *mut c_void,
        _: *const i64,
        _: *const *mut i64,
        _: *const c_void,
        _: *mut c_void,
        _: *const onnxc_exec,
    ) -> i32 {
        std::process::abort()
    }
    let old = model(onnxc_model { struct_size: 168, call: Some(never), checks: null(), ..MODEL }).unwrap();
    assert_eq!(old.workspace_for(&[MAX_N + 1]).unwrap_err().to_string(), "bad dimension");
}

/// A sequence, an optional, a map and strings, handed back as the caller described them.
#[test]
fn descriptors() {
    const fn described(name: &'static CStr, dtype: i32, kind: i32) -> onnxc_tensor_info {
        onnxc_tensor_info { kind, ..tensor(name, dtype, &[], &[], NO_MAX) }
    }
    static VALUES: [onnxc_tensor_info; 5] = [
        described(c"list", 1, abi::ONNXC_SEQUENCE),
        described(c"maybe", 7, abi::ONNXC_TENSOR | abi::ONNXC_OPTIONAL),
        described(c"both", 7, abi::ONNXC_SEQUENCE | abi::ONNXC_OPTIONAL),
        described(c"map", 1, abi::ONNXC_MAP | 8 << 8),
        tensor(c"text", 8, &[2], &[2], 32),
    ];
    unsafe extern "C" fn echo(
        i: *const *const c_void,
        o: *const *mut c_void,
        _: *const i64,
        _: *const *mut i64,
        _: *const c_void,
        _: *mut c_void,
        _: *const onnxc_exec,
    ) -> i32 {
        // SAFETY: the ABI.
        unsafe {
            (0..4).for_each(|k| *(*o.add(k)).cast::<onnxc_value>() = *(*i.add(k)).cast::<onnxc_value>());
            (*o.add(4)).cast::<abi::onnxc_str>().copy_from((*i.add(4)).cast(), 2);
        }
        0
    }
    let raw = onnxc_model {
        inputs: VALUES.as_ptr(),
        outputs: VALUES.as_ptr(),
        n_inputs: 5,
        n_outputs: 5,
        n_dim_params: 0,
        workspace_for: None,
        call: Some(echo),
        ..MODEL
    };
    let m = model(raw).unwrap();
    let kinds: Vec<Kind> = m.inputs().iter().map(|t| t.kind).collect();
    assert_eq!(
        kinds,
        [Kind::Sequence, Kind::OptionalTensor, Kind::OptionalSequence, Kind::Map { key: 8 }, Kind::Tensor]
    );
    let map = |keys: &[&str], values: &'static [f32]| {
        Map::new(
            Tensor::strings(&[keys.len() as i64], keys).unwrap(),
            Tensor::new(&[values.len() as i64], values).unwrap(),
        )
        .unwrap()
    };
    let given: [Value; 5] = [
        vec![Tensor::new(&[2], &[1.0f32, 2.0]).unwrap(), Tensor::new(&[], &[3.0f32]).unwrap()].into(),
        None::<Tensor>.into(),
        Some(vec![Tensor::new(&[1], &[7i64]).unwrap()]).into(),
        map(&["a", "longer"], &[0.5, 0.25]).into(),
        Tensor::strings(&[2], &["", "x"]).unwrap().into(),
    ];
    assert_eq!(m.call(&given, None).unwrap(), given);
    // Results are inputs again.
    let again = m.call(&m.call(&given, None).unwrap(), None).unwrap();
    assert_eq!(again[3].map().unwrap().keys().to_strings(), Some(vec!["a", "longer"]));
    assert_eq!(again[0].items().unwrap()[1].as_slice::<f32>(), Some(&[3.0][..]));
    for (k, wrong) in [
        Value::None,
        Value::None,
        Tensor::new(&[], &[1i64]).unwrap().into(),
        Value::None,
        vec![Value::None].into(),
    ]
    .into_iter()
    .enumerate()
    {
        let mut list = given.clone();
        list[k] = wrong;
        assert_eq!(m.call(&list, None).err().map(|e| e.status()), (k != 1).then_some(Status::Value), "{k}");
    }
    static ODD: [onnxc_tensor_info; 1] = [described(c"odd", 1, 9)];
    assert_eq!(model(onnxc_model { inputs: ODD.as_ptr(), n_inputs: 1, ..raw }).unwrap_err(), Status::Abi);
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
    assert_eq!(m.workspace_for(&[1]).unwrap(), 4 << 20);
}

#[test]
fn weights_in_a_file() {
    unsafe extern "C" fn first_byte(
        _: *const *const c_void,
        o: *const *mut c_void,
        _: *const i64,
        od: *const *mut i64,
        w: *const c_void,
        _: *mut c_void,
        _: *const onnxc_exec,
    ) -> i32 {
        // SAFETY: the ABI.
        unsafe {
            (**od.add(1), **od.add(2)) = (0, 0);
            *(*o.add(3)).cast::<u8>() = *w.cast::<u8>();
        }
        0
    }
    let raw = onnxc_model { weights_size: 128, call: Some(first_byte), ..MODEL };
    let m = model(raw).unwrap();
    let given = inputs(&[1.0, 2.0], &[0.0]);
    assert!(m.needs_weights());
    assert_eq!(m.call(&given, None).unwrap_err(), Status::Null);
    let path = std::env::temp_dir().join(format!("onnxc-runtime-{}.weights", std::process::id()));
    std::fs::write(&path, [42u8; 128]).unwrap();
    // A file that several models share is longer than one of them asks for.
    let larger = model(onnxc_model { weights_size: 192, ..raw }).unwrap();
    assert_eq!(larger.with_weights(m.open_weights(&path).unwrap()).unwrap_err(), Status::Weights);
    let smaller = model(onnxc_model { weights_size: 64, ..raw }).unwrap();
    assert!(smaller.with_weights(m.open_weights(&path).unwrap()).is_ok());
    let w = m.open_weights(&path).unwrap();
    let m = m.with_weights(w).unwrap();
    assert!(!m.needs_weights());
    assert_eq!(m.clone().call(&given, None).unwrap()[3].as_slice::<u8>().unwrap()[0], 42);
    std::fs::remove_file(&path).unwrap();
}
