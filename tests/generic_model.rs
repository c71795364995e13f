//! The generic driver of `onnxc-runtime` on objects that onnxc wrote: every kind of input and output, by way
//! of the metadata of a shared library that is loaded while the test runs.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use onnxc_runtime::abi::onnxc_model;
use onnxc_runtime::{Kind, Map, Model, Pool, Status, Tensor, Value, Workspace};
use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

unsafe extern "C" {
    fn dlopen(path: *const c_char, mode: i32) -> *mut c_void;
    fn dlsym(library: *mut c_void, symbol: *const c_char) -> *const c_void;
}

/// Compiles a model of the cases, links it into a library and loads it for good; nothing where there is no C
/// compiler.
fn load(case: &str) -> Option<Model> {
    load_from("cases/ops", case, &[])
}

fn load_from(folder: &str, case: &str, options: &[&str]) -> Option<Model> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("generic_model");
    std::fs::create_dir_all(&dir).expect("a folder");
    let (object, library) = (dir.join(case).with_extension("o"), dir.join(case).with_extension("so"));
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder).join(case).with_extension("onnxtxt");
    let out = Command::new(env!("CARGO_BIN_EXE_onnxc"))
        .arg(source)
        .args(["--cpu", "native", "--name", case, "-o"])
        .arg(&object)
        .args(options)
        .output()
        .expect("onnxc runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let Ok(out) = Command::new(&cc).arg("-shared").arg("-o").arg(&library).arg(&object).arg("-lm").output()
    else {
        println!("skipped: there is no {cc} here");
        return None;
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = |s: String| CString::new(s).expect("no NUL");
    // SAFETY: the library has nothing that runs when it is loaded.
    let handle = unsafe { dlopen(text(library.display().to_string()).as_ptr(), 2) };
    assert!(!handle.is_null(), "{} does not load", library.display());
    // SAFETY: the handle is a loaded library's.
    let model = unsafe { dlsym(handle, text(format!("{case}_model")).as_ptr()) };
    // SAFETY: onnxc wrote the object, and the library stays.
    Some(
        unsafe { Model::from_raw(model.cast::<onnxc_model>().as_ref().expect("a model")) }.expect("metadata"),
    )
}

fn floats<'a>(dims: &[i64], data: &'a [f32]) -> Tensor<'a> {
    Tensor::new(dims, data).expect("as many as the dims tell")
}

fn int(i: &i64) -> Value<'_> {
    Tensor::new(&[], std::slice::from_ref(i)).expect("one").into()
}

#[test]
fn sequences() {
    let Some(m) = load("sequence") else { return };
    assert_eq!(
        m.inputs().iter().map(|t| t.kind).collect::<Vec<_>>(),
        [Kind::Sequence, Kind::Tensor, Kind::Tensor]
    );
    let (a, b, x) = ([1.0f32, 2.0, 3.0], [4.0f32, 5.0, 6.0, 7.0, 8.0, 9.0], [0.5f32, 0.25, 0.125]);
    let s: Value = vec![floats(&[1, 3], &a), floats(&[2, 3], &b)].into();
    let pool = Pool::new(2);
    let exec = pool.exec();
    let mut workspace = Workspace::default();
    for exec in [None, Some(&exec)] {
        let out =
            m.call_in(&[s.clone(), floats(&[1, 3], &x).into(), int(&1)], exec, &mut workspace).expect("runs");
        let [member, more, fewer, length, all] = &out[..] else { panic!("{} outputs", out.len()) };
        assert_eq!(*member, Value::from(floats(&[2, 3], &b)));
        assert_eq!(*more, vec![floats(&[1, 3], &a), floats(&[1, 3], &x), floats(&[2, 3], &b)].into());
        assert_eq!(*fewer, s);
        assert_eq!(length.as_slice(), Some(&[3i64][..]));
        assert_eq!(all.as_slice::<f32>().map(<[f32]>::len), Some(12));
    }
    // Of another type, with other sizes, without what is asked for, of another kind.
    let wrong = Tensor::new(&[1, 3], &[1i32, 2, 3]).expect("three");
    for (s, status) in [
        (vec![wrong].into(), Status::Value),
        (vec![floats(&[3, 1], &a)].into(), Status::Value),
        (Vec::<Tensor>::new().into(), Status::Index),
        (Value::None, Status::Value),
    ] {
        assert_eq!(
            m.call(&[s, floats(&[1, 3], &x).into(), int(&1)], None).expect_err("a senseless value"),
            status
        );
    }
}

#[test]
fn optionals() {
    let Some(m) = load("optional") else { return };
    assert_eq!(m.inputs()[0].kind, Kind::OptionalTensor);
    assert_eq!(m.inputs()[1].kind, Kind::OptionalSequence);
    let a = floats(&[2], &[1.0, 2.0]);
    let out = m
        .call(
            &[
                Some(a.clone()).into(),
                Some(vec![floats(&[0], &[]), floats(&[1], &[3.0])]).into(),
                a.clone().into(),
            ],
            None,
        )
        .expect("runs");
    assert_eq!(out[0].tensor().and_then(Tensor::to_bools), Some(vec![true]));
    assert_eq!(out[5], vec![floats(&[0], &[]), floats(&[1], &[3.0])].into());
    assert_eq!((&out[6], &out[7]), (&a.clone().into(), &Value::None));
    assert_eq!(m.call(&[Value::None, Value::None, a.into()], None).expect_err("no element"), Status::Value);
}

#[test]
fn maps() {
    let Some(m) = load("cast_map") else { return };
    assert_eq!(m.inputs()[0].kind, Kind::Map { key: 7 });
    let map = |keys: &'static [i64], values: &'static [f32]| {
        Map::new(Tensor::new(&[2], keys).expect("two"), floats(&[2], values)).expect("lists")
    };
    let out = m.call(&[map(&[3, 4], &[1.5, 2.5]).into()], None).expect("runs");
    assert_eq!(out[0], floats(&[1, 2], &[1.5, 2.5]).into());
    assert_eq!(out[1], floats(&[1, 5], &[0.0, 0.0, 0.0, 1.5, 2.5]).into());
}

#[test]
fn strings() {
    let Some(m) = load("sequence_strings") else { return };
    assert_eq!(m.outputs()[2].kind, Kind::Maps { key: 8 });
    let text = |list: &[&str]| Tensor::strings(&[list.len() as i64], list).expect("a list");
    let s: Value = vec![text(&["a", ""]), text(&["äö"])].into();
    let out = m
        .call(&[s, text(&["long enough", "x"]).into(), floats(&[2, 2], &[0.5, 0.25, 1.0, 0.0]).into()], None)
        .expect("runs");
    assert_eq!(out[0], vec![text(&["a", ""]), text(&["äö"]), text(&["long enough", "x"])].into());
    assert_eq!(out[1].tensor().and_then(Tensor::to_strings), Some(vec!["a", "", "äö", "long enough", "x"]));
    let rows: Vec<&Map> = out[2].items().expect("a sequence").iter().filter_map(Value::map).collect();
    assert_eq!(rows[1].keys().to_strings(), Some(vec!["no", "yes"]));
    assert_eq!(rows[1].values().as_slice(), Some(&[1.0f32, 0.0][..]));
}

#[test]
fn errors_have_names_and_workspaces_grow() {
    let Some(m) = load_from("faults", "pick", &["--dim", "N<=32", "--heap", "1K"]) else { return };
    let zeros = [0.0f32; 256];
    let call = |n: i64, k: i64, y: i64, last: i64, count: i64| {
        let x = floats(&[n, k], &zeros[..(n * k) as usize]);
        let list = [0, last];
        let i = Tensor::new(&[2], &list).expect("two");
        m.call(&[x.into(), floats(&[y], &zeros[..y as usize]).into(), i.into(), int(&count)], None)
    };
    let says = |r: Result<Vec<Value>, onnxc_runtime::Error>, text: &str| {
        assert_eq!(r.expect_err("a failed call").to_string(), text)
    };
    says(call(40, 3, 3, 1, 10), "bad dimension: input \"x\" dimension 0 (N) is 40: it must be from 0 to 32");
    says(
        call(2, 3, 4, 1, 10),
        "bad dimension: Add \"s\": input \"x\" dimension 1 (K) is 3, input \"y\" dimension 0 (M) is 4: they must be equal, or one of them 1",
    );
    says(call(2, 3, 3, 7, 10), "index out of range: Gather \"z\": index out of range");
    says(m.call(&[], None), "null pointer: 0 inputs are given, and the model has 4");
    let out = call(2, 3, 3, 1, 1000).expect("more than --heap gives");
    assert_eq!(out[1].as_slice(), Some(&[49_999_916_666_700i64][..]));
}
