//! Scheduled nests written by hand, for what schedules seldom make: stores that step over elements, branches
//! inside loops, elements that are read for some lanes only, indices from memory.

use crate::modules::data;
use onnxc::nest::Module;
use onnxc::nest::parse::parse;
use onnxc::tensor::ElemType as T;

/// A module, its inputs, and whether it ends with a status.
pub struct Case {
    pub name: String,
    pub m: Module,
    pub data: Vec<Vec<u8>>,
    /// Of the sizes that it has.
    pub sizes: Vec<i64>,
}

fn case(name: String, inputs: &[(T, &str, i64)], outputs: &[(T, &str)], kernel: &str) -> Case {
    of_sizes(name, &[], inputs, outputs, kernel)
}

/// With sizes N, M, .. that only run time knows.
fn of_sizes(
    name: String,
    sizes: &[i64],
    inputs: &[(T, &str, i64)],
    outputs: &[(T, &str)],
    kernel: &str,
) -> Case {
    let mut text = String::from("nest v1 tiles stage=placed\n");
    if !sizes.is_empty() {
        text += &format!("dims {}\n", ["N", "M", "K"][..sizes.len()].join(", "));
    }
    for (i, (t, dims, _)) in inputs.iter().enumerate() {
        text += &format!("buf a{i} : {}[{dims}] input {i}\n", t.short());
    }
    for (i, (t, dims)) in outputs.iter().enumerate() {
        text += &format!("buf y{i} : {}[{dims}] output {i}\n", t.short());
    }
    text += &format!("workspace 0\nkernel k work 100 ;\n{kernel}\ndriver\n  call k\n");
    let m = parse(&text, &|_| None).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    let data = inputs.iter().enumerate().map(|(i, (t, _, n))| data(i as u64 + 3, *t, *n as usize)).collect();
    Case { name, m, data, sizes: sizes.to_vec() }
}

/// Gathers and squares of elements of less than 32 bits: buffers that end with the last element that is read.
fn short_elements(lanes: u32) -> Vec<Case> {
    let mut out = vec![];
    for t in [T::U8, T::I8, T::U16, T::I16, T::F16, T::BF16] {
        let zero = if t.is_float() { "0.0".to_owned() } else { format!("0:{}", t.short()) };
        for n in [1, 2, 5, 16, 19] {
            for step in [2, 3, 7] {
                let l = lanes;
                // The buffer has four bytes or fewer, too.
                let all = step * (n - 1) + 1;
                out.push(case(
                    format!("{t}: elements {step} apart, {n} in vectors of {l}"),
                    &[(t, &format!("2, {all}"), 2 * all)],
                    &[(t, &format!("2, {n}")), (T::F32, &format!("{n}"))],
                    &format!(
                        "  par i0 in 0..2 {{\n    vec({l}) i1 in 0..{n} {{\n      y0[i0, i1] = a0[i0, {step}*i1]\n    }}\n  }}\n  vec({l}) i2 in 0..{n} {{\n    y1[i2] = {}\n  }}",
                        if t.is_float() { format!("a0[1, {step}*i2]") } else { format!("f32(i32(a0[1, {step}*i2]))") }
                    ),
                ));
            }
            for (index, l) in [(T::I64, (lanes / 2).max(4)), (T::I32, lanes)] {
                let mut c = case(
                    format!("{t}: elements at indices of {index}, {n} in vectors of {l}"),
                    &[(t, "4, 11", 44), (index, &format!("{n}"), n)],
                    &[(t, &format!("4, {n}"))],
                    &format!(
                        "  par i0 in 0..4 {{\n    vec({l}) i1 in 0..{n} {{\n      y0[i0, i1] = select((idx(i1) != 2:i64), (with x2 = a1[i1] < 11 in a0[i0, x2]), {zero})\n    }}\n  }}"
                    ),
                );
                c.data[1] = (0..n)
                    .flat_map(|i| {
                        ((10 + i * 7) % 11).to_le_bytes()[..index.bytes().unwrap_or(8) as usize].to_vec()
                    })
                    .collect();
                out.push(c);
            }
        }
        out.push(case(
            format!("{t}: a square, vectors of {lanes}"),
            &[(t, &format!("{lanes}, {lanes}"), i64::from(lanes * lanes))],
            &[(t, &format!("{lanes}, {lanes}"))],
            &format!("  unroll i0 in 0..{lanes} {{\n    vec({lanes}) i1 in 0..{lanes} {{\n      y0[i0, i1] = a0[i1, i0]\n    }}\n  }}"),
        ));
    }
    out
}

/// Indices of a row whose length run time knows: neighbours that rise from lane to lane, and others.
fn neighbours(lanes: u32) -> Vec<Case> {
    let mut out = vec![];
    let l = (lanes / 2).max(4);
    for t in [T::F32, T::F64, T::I64] {
        for (n, size) in [(19, 1), (5, 2), (16, 5), (19, 8), (40, 9), (16, 17), (40, 33)] {
            let limited = "min(max((a1[i1] + idx(-1)), 0:i64), idx(N - 1))";
            for (index, apart, value) in [
                ("rising", 2, limited),
                ("falling", -2, limited),
                ("far", 21, limited),
                ("any", 21, "a1[i1]"),
            ] {
                let mut c = of_sizes(
                    format!("{t}: {index} indices below {size}, {n} in vectors of {l}"),
                    &[size],
                    &[(t, "4, N", 4 * size), (T::I64, &format!("{n}"), n)],
                    &[(t, &format!("4, {n}"))],
                    &format!(
                        "  par i0 in 0..4 {{\n    vec({l}) i1 in 0..{n} {{\n      y0[i0, i1] = (with x2 = {value} < N in a0[i0, x2])\n    }}\n  }}"
                    ),
                );
                let at =
                    |i: i64| if apart == 21 { i * 21 % size } else { (size * (2 - apart) / 4) + i / apart };
                c.data[1] = (0..n).flat_map(|i| at(i).to_le_bytes()).collect();
                out.push(c);
            }
        }
    }
    out
}

/// Positions compared with integers of 64 bits that lanes share, among them those that no position comes near and those
/// whose sums wrap; and with words, whose sums with positions do not.
fn shared_integers(lanes: u32) -> Vec<Case> {
    let mut out = vec![];
    for n in [1, 16, 40] {
        for op in ["<=", "<", ">=", "==", "!="] {
            let mut c = case(
                format!("positions {op} integers, {n} in vectors of {lanes}"),
                &[(T::I64, "6", 6), (T::F32, &format!("6, {n}"), 6 * n), (T::I32, "6", 6)],
                &[(T::F32, &format!("6, {n}")), (T::F32, &format!("6, {n}")), (T::F32, &format!("6, {n}"))],
                &format!(
                    "  par i0 in 0..6 {{\n    vec({lanes}) i1 in 0..{n} {{\n      y0[i0, i1] = (let %0 = a0[i0] in select((idx(2*i1 + 1) {op} (%0 + idx(i0))), a1[i0, i1], 0.0))\n      y1[i0, i1] = select(((a0[i0] - idx(3)) {op} idx(i1)), a1[i0, i1], 0.0)\n      y2[i0, i1] = select((((i64(a2[i0]) + idx(i1)) - 5:i64) {op} (idx(4*i0) - i64(a2[2]))), a1[i0, i1], 0.0)\n    }}\n  }}"
                ),
            );
            let words = [i32::MIN, -1, 7, 1 << 30, i32::MAX, 21];
            c.data[2] = words.iter().flat_map(|v: &i32| v.to_le_bytes()).collect();
            let values = [i64::MIN, -1, 7, 1 << 33, i64::MAX - 1, 21];
            c.data[0] = values.iter().flat_map(|v: &i64| v.to_le_bytes()).collect();
            out.push(c);
        }
    }
    out
}

/// All of them, for a level whose vectors have so many lanes of 32 bits.
pub fn cases(lanes: u32) -> Vec<Case> {
    let mut out = vec![];
    let each = |t: T| if t.bits() == 64 { (lanes / 2).max(4) } else { lanes };
    for t in [T::F32, T::F64, T::I64, T::I32, T::U8, T::I16, T::BF16, T::Bool] {
        let l = each(t);
        for n in [1, 3, 7, 8, 15, 16, 21, 40] {
            let rows = 3;
            out.push(case(
                format!("{t}: {n} elements stored across, vectors of {l}"),
                &[(t, &format!("{rows}, {n}"), rows * n)],
                &[(t, &format!("{n}, {rows}"))],
                &format!("  par i0 in 0..{rows} {{\n    vec({l}) i1 in 0..{n} {{\n      y0[i1, i0] = a0[i0, i1]\n    }}\n  }}"),
            ));
        }
    }
    for (t, zero) in [(T::F32, "0.0"), (T::F64, "0.0:f64"), (T::I64, "0:i64"), (T::I32, "0:i32")] {
        let (l, name) = (each(t), t.short());
        out.push(case(
            format!("{t}: a branch in a loop, vectors of {l}"),
            &[(t, &format!("9, {l}"), 9 * i64::from(l)), (t, "9", 9)],
            &[(t, &format!("{l}"))],
            &format!(
                "  acc %0 x{l} = {zero} : {name}\n  seq i0 in 0..9 {{\n    if (a1[i0] > {zero}) {{\n      vec({l}) i1 in 0..{l} {{\n        %0 = (%0 + a0[i0, i1])\n      }}\n    }}\n    else {{\n      vec({l}) i2 in 0..{l} {{\n        %0 = (%0 - a0[i0, i2])\n      }}\n    }}\n  }}\n  vec({l}) i3 in 0..{l} {{\n    y0[i3] = %0\n  }}"
            ),
        ));
        out.push(case(
            format!("{t}: the lane of each row, vectors of {l}"),
            &[(t, &format!("{l}"), i64::from(l)), (t, &format!("{l}, 3"), 3 * i64::from(l))],
            &[(t, &format!("{l}, 3"))],
            &format!(
                "  acc %0 x{l} = {zero} : {name}\n  vec({l}) i0 in 0..{l} {{\n    %0 = a0[i0]\n  }}\n  unroll i1 in 0..{l} {{\n    vec({l}) i2 in 0..3 {{\n      y0[i1, i2] = (a1[i1, i2] - %0.(i1))\n    }}\n  }}"
            ),
        ));
        for n in [5, 16, 19] {
            out.push(case(
                format!("{t}: one element for some lanes, {n} in vectors of {l}"),
                &[(t, &format!("{n}"), n), (t, "2", 2)],
                &[(t, &format!("2, {n}"))],
                &format!("  par i0 in 0..2 {{\n    vec({l}) i1 in 0..{n} {{\n      y0[i0, i1] = select((a0[i1] > {zero}), a1[i0], {zero})\n    }}\n  }}"),
            ));
            out.push(case(
                format!("{t}: every third element, {n} in vectors of {l}"),
                &[(t, &format!("{}", 3 * n), 3 * n)],
                &[(t, &format!("{n}"))],
                &format!("  vec({l}) i0 in 0..{n} {{\n    y0[i0] = a0[3*i0]\n  }}"),
            ));
            for bad in [false, true] {
                let long = (lanes / 2).max(4);
                let mut c = case(
                    format!(
                        "{t}: elements at indices{}, {n} in vectors of {long}",
                        if bad { " out of range" } else { "" }
                    ),
                    &[(t, "4, 11", 44), (T::I64, &format!("{n}"), n)],
                    &[(t, &format!("4, {n}"))],
                    &format!(
                        "  par i0 in 0..4 {{\n    vec({long}) i1 in 0..{n} {{\n      y0[i0, i1] = (with x2 = a1[i1] < 11 in a0[i0, x2])\n    }}\n  }}"
                    ),
                );
                let index = |i: i64| if bad && i + 1 == n { 11 } else { (i * 7) % 11 };
                c.data[1] = (0..n).flat_map(|i| index(i).to_le_bytes()).collect();
                out.push(c);
            }
        }
    }
    out.extend(short_elements(lanes));
    out.extend(neighbours(lanes));
    out.extend(shared_integers(lanes));
    // Sizes that may be anything, as numbers and beside indices; elements whose distance they do not tell.
    for n in [1, 5, 16, 33, 70] {
        let l = lanes;
        out.push(of_sizes(
            format!("sums by a size, {n} in vectors of {l}"),
            &[n],
            &[(T::F32, "3, N", 3 * n)],
            &[(T::F32, "3")],
            &format!(
                "  par i0 in 0..3 {{\n    acc %0 x{l} = 0.0 : f32\n    acc %1 = 0.0 : f32\n    vec({l}) i1 in 0..N {{\n      %0 = (%0 + a0[i0, i1])\n    }}\n    %1 = (lanes_add(%0) / f32(idx(2*N + 3)))\n    y0[i0] = %1\n  }}"
            ),
        ));
        for (op, t) in
            [("<", T::F32), ("<=", T::I32), (">", T::F32), (">=", T::I32), ("==", T::F32), ("!=", T::F32)]
        {
            let zero = if t == T::F32 { "0.0" } else { "0:i32" };
            out.push(of_sizes(
                format!("an index {op} a size, {n} in vectors of {l}"),
                &[n],
                &[(t, "N, 96", n * 96)],
                &[(t, "N, 3, 96")],
                &format!(
                    "  par i0 in 0..N {{\n    seq i1 in 0..3 {{\n      vec({l}) i2 in 0..96 {{\n        y0[i0, i1, i2] = select((idx(i2 + 7*i1) {op} idx(N - i0 + 4)), a0[i0, i2], {zero})\n      }}\n    }}\n  }}"
                ),
            ));
        }
        out.push(of_sizes(
            format!("columns of rows that run time counts, {n} in vectors of {l}"),
            &[n],
            &[(T::F32, "N, 40, 5", n * 200)],
            &[(T::F32, "N, 5, 40")],
            &format!("  par i0 in 0..N {{\n    par i1 in 0..5 {{\n      vec({l}) i2 in 0..40 {{\n        y0[i0, i1, i2] = a0[i0, i2, i1]\n      }}\n    }}\n  }}"),
        ));
    }
    out
}
