//! Element types against the numbers and names of ONNX, and lazy rearrangements of constants against their
//! definition, element by element.

use onnxc::sym::{Dim, SymTable};
use onnxc::tensor::consts::Remap;
use onnxc::tensor::{ConstData, ElemType, TensorType, ValueType, count};
use proptest::prelude::*;
use std::sync::Arc;

/// `TensorProto.DataType`: number, name, bits.
const TYPES: &[(i32, &str, u32)] = &[
    (1, "float", 32),
    (2, "uint8", 8),
    (3, "int8", 8),
    (4, "uint16", 16),
    (5, "int16", 16),
    (6, "int32", 32),
    (7, "int64", 64),
    (8, "string", 128),
    (9, "bool", 8),
    (10, "float16", 16),
    (11, "double", 64),
    (12, "uint32", 32),
    (13, "uint64", 64),
    (14, "complex64", 64),
    (15, "complex128", 128),
    (16, "bfloat16", 16),
    (17, "float8e4m3fn", 8),
    (18, "float8e4m3fnuz", 8),
    (19, "float8e5m2", 8),
    (20, "float8e5m2fnuz", 8),
    (21, "uint4", 4),
    (22, "int4", 4),
    (23, "float4e2m1", 4),
    (24, "float8e8m0", 8),
    (25, "uint2", 2),
    (26, "int2", 2),
    (27, "float6e2m3", 8),
    (28, "float6e3m2", 8),
];

#[test]
fn element_types_are_those_of_onnx() {
    assert_eq!(ElemType::ALL.len(), TYPES.len());
    for (e, (n, name, bits)) in ElemType::ALL.iter().zip(TYPES) {
        assert_eq!((*e as i32, e.onnx_name(), e.bits()), (*n, *name, *bits));
        assert_eq!(e.to_string(), *name);
        assert_eq!(ElemType::from_onnx(*n), Some(*e));
        assert_eq!(ElemType::from_onnx_name(name), Some(*e));
        assert_eq!(ElemType::from_short(e.short()), Some(*e));
    }
    for n in [i32::MIN, -1, 0, 29, i32::MAX] {
        assert_eq!(ElemType::from_onnx(n), None);
    }
    assert_eq!(ElemType::from_onnx_name("FLOAT"), None);
    assert_eq!(ElemType::from_short("float"), None);
}

#[test]
fn classes_of_element_types() {
    for e in ElemType::ALL {
        let name = e.onnx_name();
        assert_eq!(e.is_unsigned_int(), name.starts_with("uint"), "{name}");
        assert_eq!(e.is_signed_int(), name.starts_with("int"), "{name}");
        assert_eq!(e.is_int(), name.contains("int"), "{name}");
        assert_eq!(e.is_float(), name.contains("float") || name == "double", "{name}");
        // Arithmetic keeps the class, has whole bytes, and computes in itself.
        let c = e.compute();
        assert_eq!(
            (c.is_float(), c.is_signed_int(), c.is_unsigned_int()),
            (e.is_float(), e.is_signed_int(), e.is_unsigned_int()),
            "{name}"
        );
        assert_eq!(c.compute(), c);
        assert!(c.bytes().is_some() && c.bits() >= e.bits(), "{name}");
        assert_eq!(e.bytes().map(|b| b * 8).unwrap_or(e.bits()), e.bits());
        assert_eq!(e.bytes().is_none(), e.bits() < 8, "{name}");
    }
}

#[test]
fn sizes_of_packed_data() {
    assert_eq!(ElemType::U4.bytes_for(3), Some(2));
    assert_eq!(ElemType::I2.bytes_for(5), Some(2));
    assert_eq!(ElemType::U2.bytes_for(0), Some(0));
    assert_eq!(ElemType::F64.bytes_for(3), Some(24));
    assert_eq!(ElemType::F64.bytes_for(u64::MAX), None);
    assert_eq!(count(&[]), Some(1));
    assert_eq!(count(&[2, 0, 3]), Some(0));
    assert_eq!(count(&[2, -1]), None);
    assert_eq!(count(&[i64::MAX, 2]), None);
    assert!(ConstData::new(ElemType::U4, vec![3], vec![1u8, 2]).is_some());
    assert!(ConstData::new(ElemType::U4, vec![3], vec![1u8, 2, 3]).is_none());
    assert!(ConstData::new(ElemType::F32, vec![-1], vec![0u8; 4]).is_none());
}

#[test]
fn values_read_back() {
    let wide = |e, b: &[u8]| {
        ConstData::new(e, vec![b.len() as i64 / i64::from(ElemType::bytes(e).unwrap_or(1))], b.to_vec())
            .and_then(|c| c.to_i64s())
    };
    assert_eq!(wide(ElemType::I8, &[0xff, 0x7f, 0x80]), Some(vec![-1, 127, -128]));
    assert_eq!(wide(ElemType::U8, &[0xff, 0x80]), Some(vec![255, 128]));
    assert_eq!(wide(ElemType::I16, &[0xfe, 0xff]), Some(vec![-2]));
    assert_eq!(wide(ElemType::U32, &[0xff; 4]), Some(vec![0xffff_ffff]));
    assert_eq!(wide(ElemType::Bool, &[0, 1]), Some(vec![0, 1]));
    assert_eq!(wide(ElemType::F32, &[0; 4]), None);
    assert_eq!(ConstData::from_i64s(&[i64::MIN, 7]).to_i64s(), Some(vec![i64::MIN, 7]));
    assert_eq!(ConstData::f32s(vec![2], &[1.5, -0.25]).to_f64s(), Some(vec![1.5, -0.25]));
    let halves = ConstData::new(ElemType::F16, vec![2], vec![0x00, 0x3c, 0x00, 0xc0]);
    assert_eq!(halves.and_then(|c| c.to_f64s()), Some(vec![1.0, -2.0]));
    let brains = ConstData::new(ElemType::BF16, vec![2], vec![0x80, 0x3f, 0x00, 0xc0]);
    assert_eq!(brains.and_then(|c| c.to_f64s()), Some(vec![1.0, -2.0]));
    assert_eq!(ConstData::from_i64s(&[3]).scalar(), Some(3.0));
    assert_eq!(ConstData::from_i64s(&[3, 3]).scalar(), None);
    assert!(ConstData::from_i64s(&[3, 3]).is_splat() && !ConstData::from_i64s(&[3, 4]).is_splat());
    assert!(ConstData::f32s(vec![0], &[]).is_splat());
}

/// Sizes do not pass for elements where there are none.
#[test]
fn empty_constants_are_no_others() {
    let of = |dims: &[i64], values: &[i64]| ConstData::i64s_shaped(dims.to_vec(), values);
    assert_ne!(of(&[0], &[]).hash(), of(&[], &[0]).hash());
    assert_ne!(of(&[0, 0], &[]).hash(), of(&[0], &[]).hash());
    assert_eq!(of(&[0], &[]).hash(), of(&[0], &[]).hash());
}

#[test]
fn identity_of_constants() {
    let a = ConstData::f32s(vec![2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let b = ConstData::f32s(vec![4], &[1.0, 2.0, 3.0, 4.0]);
    assert_ne!(a, b);
    assert_eq!(b.reshaped(vec![2, 2]).as_ref(), Some(&a));
    assert_eq!(b.reshaped(vec![3]), None);
    assert_eq!(a.short_hash().len(), 8);
    let flat = Remap { dims: vec![4], offset: vec![0, 0], coeff: vec![vec![0], vec![1]] };
    // Runs off the row: two values, then nothing.
    let lazy = ConstData::remap(Arc::new(a), flat);
    assert_eq!(lazy.and_then(|c| c.to_f64s()), Some(vec![1.0, 2.0, 0.0, 0.0]));
    let s = |v: &[&str]| ConstData::strings(vec![v.len() as i64], v.iter().map(|s| bytes(s)).collect());
    assert_ne!(s(&["ab", "c"]), s(&["a", "bc"]));
    assert_eq!(s(&["ab", "c"]), s(&["ab", "c"]));
}

fn bytes(s: &str) -> bytes::Bytes {
    s.as_bytes().to_vec().into()
}

#[test]
fn types_display() {
    let mut t = SymTable::new();
    let n = Dim::sym(t.param("N"));
    let tensor = TensorType::new(ElemType::F32, vec![n, Dim::constant(3)]);
    assert_eq!(tensor.count(), n * 3);
    let v = ValueType::Map(
        ElemType::I64,
        Box::new(ValueType::Sequence(Box::new(ValueType::Optional(Box::new(ValueType::Tensor(tensor)))))),
    );
    assert_eq!(v.display(&t), "map(int64, seq(optional(float[N, 3])))");
    assert!(v.as_tensor().is_none());
}

#[test]
fn broken_rearrangements_are_refused() {
    let src = || Arc::new(ConstData::from_i64s(&[1, 2, 3]));
    let map = |dims: &[i64], offset: &[i64], coeff: &[&[i64]]| {
        ConstData::remap(
            src(),
            Remap {
                dims: dims.to_vec(),
                offset: offset.to_vec(),
                coeff: coeff.iter().map(|c| c.to_vec()).collect(),
            },
        )
    };
    assert!(map(&[3], &[0], &[&[1]]).is_some());
    assert!(map(&[3], &[], &[&[1]]).is_none());
    assert!(map(&[3], &[0], &[]).is_none());
    let packed = ConstData::new(ElemType::U4, vec![2], vec![0x21u8]).expect("two nibbles");
    assert!(
        ConstData::remap(Arc::new(packed), Remap { dims: vec![2], offset: vec![0], coeff: vec![vec![1]] })
            .is_none()
    );
    // Subscripts far outside are zeros.
    for far in [-(1 << 40), 1 << 40] {
        assert_eq!(map(&[2], &[far], &[&[1]]).and_then(|c| c.to_i64s()), Some(vec![0, 0]), "offset {far}");
        assert_eq!(
            map(&[2], &[1], &[&[far]]).and_then(|c| c.to_i64s()),
            Some(vec![2, 0]),
            "coefficient {far}"
        );
        assert_eq!(
            map(&[2, 1], &[1], &[&[far, 1]]).and_then(|c| c.to_i64s()),
            Some(vec![2, 0]),
            "outer coefficient {far}"
        );
    }
}

/// A source shape and a rearrangement of it.
fn remap() -> impl Strategy<Value = (Vec<i64>, Remap)> {
    let src = prop::collection::vec(0i64..5, 0..4);
    let dims = prop::collection::vec(0i64..6, 0..4);
    (src, dims).prop_flat_map(|(src, dims)| {
        let (s, r) = (src.len(), dims.len());
        let coeff = prop::collection::vec(
            prop_oneof![4 => Just(0i64), 4 => Just(1), 2 => Just(-1), 1 => Just(2), 1 => -3i64..4],
            r,
        );
        (Just(src), Just(dims), prop::collection::vec(-3i64..4, s), prop::collection::vec(coeff, s))
            .prop_map(|(src, dims, offset, coeff)| (src, Remap { dims, offset, coeff }))
    })
}

/// By the definition.
fn naive(src: &[i64], data: &[u8], size: usize, m: &Remap) -> Vec<u8> {
    let n = count(&m.dims).expect("small") as i64;
    let mut out = vec![];
    for flat in 0..n {
        let (mut left, mut o) = (flat, vec![0; m.dims.len()]);
        for (i, d) in o.iter_mut().zip(&m.dims).rev() {
            *i = left % d;
            left /= d;
        }
        let s: Vec<i64> = (0..src.len())
            .map(|d| m.offset[d] + m.coeff[d].iter().zip(&o).map(|(c, i)| c * i).sum::<i64>())
            .collect();
        if s.iter().zip(src).all(|(i, n)| (0..*n).contains(i)) {
            let at = s.iter().zip(src).fold(0, |a, (i, n)| a * n + i) as usize * size;
            out.extend_from_slice(&data[at..at + size]);
        } else {
            out.extend(std::iter::repeat_n(0, size));
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rearrangements_are_their_definition((src, m) in remap(), elem in proptest::sample::select(&[ElemType::U8, ElemType::F16, ElemType::F32, ElemType::I64, ElemType::C128][..])) {
        let size = elem.bytes().expect("whole bytes") as usize;
        let n = count(&src).expect("small") as usize * size;
        let data: Vec<u8> = (0..n).map(|i| (i % 251) as u8 + 1).collect();
        let want = naive(&src, &data, size, &m);
        let base = Arc::new(ConstData::new(elem, src, data).expect("length fits"));
        let lazy = ConstData::remap(base, m.clone()).expect("ranks fit");
        prop_assert_eq!(lazy.byte_len(), want.len() as u64);
        prop_assert_eq!(lazy.bytes().to_vec(), want.clone());
        let mut streamed = vec![];
        lazy.stream(&mut |b| streamed.extend_from_slice(b));
        prop_assert_eq!(&streamed, &want);
        // What the bytes are counts, not where they come from.
        let dense = ConstData::new(elem, m.dims.clone(), want).expect("length fits");
        prop_assert_eq!(dense.hash(), lazy.hash());
        prop_assert_eq!(&dense, &lazy);
    }
    #[test]
    fn rearrangements_nest((src, m) in remap(), perm in any::<u64>()) {
        let n = count(&src).expect("small") as i64;
        let base = Arc::new(ConstData::i64s_shaped(src.clone(), &(1..=n).collect::<Vec<_>>()));
        let mid = ConstData::remap(base, m.clone()).expect("ranks fit");
        // The axes of the result, permuted.
        let r = m.dims.len();
        let mut order: Vec<usize> = (0..r).collect();
        if r > 0 {
            order.rotate_left((perm % r as u64) as usize);
        }
        let p = Remap {
            dims: order.iter().map(|&k| m.dims[k]).collect(),
            offset: vec![0; r],
            coeff: (0..r).map(|d| order.iter().map(|&k| i64::from(k == d)).collect()).collect(),
        };
        let want = naive(&m.dims, &mid.bytes(), 8, &p);
        let out = ConstData::remap(Arc::new(mid), p).expect("ranks fit");
        prop_assert_eq!(out.bytes().to_vec(), want);
    }
}

#[test]
fn large_rearrangements_come_in_pieces() {
    let n = 1500;
    let base = Arc::new(ConstData::i64s_shaped(vec![n, n], &(0..n * n).collect::<Vec<_>>()));
    let t = ConstData::remap(
        base,
        Remap { dims: vec![n, n], offset: vec![0, 0], coeff: vec![vec![0, 1], vec![1, 0]] },
    )
    .expect("ranks fit");
    let (mut total, mut largest) = (0, 0);
    t.stream(&mut |b| {
        total += b.len();
        largest = largest.max(b.len());
    });
    assert_eq!(total as u64, t.byte_len());
    assert!(largest <= 2 << 20, "{largest}");
    let v = t.to_i64s().expect("integers");
    assert_eq!(v[1], n);
    assert_eq!(v[(n * n - 2) as usize], n * n - 1 - n);
}
