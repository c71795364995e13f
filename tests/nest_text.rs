//! The text of the nest IR reads back as it was written, and the verifier finds what breaks the rules.
//!
//! With `ONNXC_TEST_MODELS` naming a folder, every model in it is printed, read back and verified after each
//! pass.

use onnxc::nest::verify::Limits;
use onnxc::nest::{
    self, BinOp, Buf, BufData, DotKind, Expr, Kernel, Layout, Module, Place, Scalar, SlotData, Stage, Stmt,
    TextOp, parse, print, verify,
};
use onnxc::options::Options;
use onnxc::pipeline::{self, Stopped};
use onnxc::sym::{Dim, Sym, SymKind};
use onnxc::tensor::{ConstData, ElemType};
use std::collections::HashMap;
use std::sync::Arc;

const GOOD: &str = "\
nest v1 t stage=scheduled
dims N 'batch size'<=8 2<=K<=64
custom '[\"f\",[\"a.Op\",\"it\\u0027s\",\"o\"],[true,false,true],[true],[[\"k\",[1,[1065353216]]],[\"s\",[8,[[97],[]]]],[\"l\",[7,[-1]]]]]'
buf x : f32[N, 10] input 0
buf ids : i64['batch size'] input 1
buf y : f32[N, 10] output 0
buf z : f16['batch size', 10] output 1
buf /a/t.1 : f32[10] temp
kernel fill work 10 ; Relu \"act 1\"
  seq i0 in 0..10 {
    /a/t.1[i0] = select((idx(i0) < 5:i64), 1.5, -inf)
  }
kernel y ; MatMul (node 3)
  par i0 in 0..N {
    acc %0[2] x4 = 0.0 : f32
    prefetch x[i0 + 1, 0]
    unroll r1 in 0..2 {
      vec(4) l2 in 0..4 {
        %0[r1] = fma(x[i0, 4*r1 + l2], /a/t.1[4*r1 + l2], %0[r1])
      }
    }
    let %1 = (lanes_add(%0[0]) * %0[1].3)
    seq i3 in 0..10 {
      if ((idx(i3) >= 2:i64) == true) {
        y[i0, i3] = (let %2 = exp(%1) in (%2 / max(%2, f32(idx(mod(i3, 4))))))
      }
      else {
        y[i0, i3] = 0.0
      }
    }
  }
kernel z ; shape value \"q\"
  par i0 in 0..'batch size' {
    seq i1 in 0..10 {
      z[i0, i1] = (with x2 = ids[i0] < N in x[x2, i1])
    }
  }
driver
  check (idx(N) <= idx('batch size')) else dim
  call fill
  call y
  call z
  foreign custom 0 x, ids to /a/t.1
";

fn read(text: &str) -> Module {
    parse::parse(text, &|_| None).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[test]
fn text_reads_back() {
    let m = read(GOOD);
    assert_eq!(print::print(&m), GOOD);
    verify::verify(&m).unwrap_or_else(|e| panic!("{e}"));
    let m = read(TASKS);
    assert_eq!(print::print(&m), TASKS);
    verify::verify(&m).unwrap_or_else(|e| panic!("{e}"));
}

/// Edits of the text, and a piece of the fault that each must give.
const EDITS: &[(&str, &str, &str)] = &[
    ("foreign custom 0 x, ids", "foreign custom 0 x", "custom operator 0 has other operands"),
    ("foreign custom 0", "foreign custom 1", "custom operator 1 has other operands"),
    ("seq i0 in 0..10", "seq i0 in 0..11", "subscript 0 of \"/a/t.1\" may leave 0..10"),
    ("acc %0[2] x4", "acc %0[2]", "iterations of a par or vec loop set one accumulator"),
    ("acc %0[2] x4", "acc %0[1] x4", "a subscript of an accumulator may leave 0..1"),
    ("acc %0[2] x4", "acc %0[0] x4", "an accumulator has no elements"),
    ("vec(4) l2", "vec(1) l2", "a vec(1) loop"),
    ("unroll r1 in 0..2", "vec(4) r1 in 0..4", "a vec loop inside a vec loop"),
    ("unroll r1 in 0..2", "unroll r1 in 0..N", "the bounds of an unroll loop are not constant"),
    ("-inf)", "0:i32)", "found i32, expected f32"),
    ("unroll r1", "seq r1", "a subscript of an accumulator is not constant after unrolling"),
    ("/a/t.1[i0] = ", "/a/t.1[] = ", "\"/a/t.1\": found 0 subscripts, expected 1"),
    ("prefetch x[i0 + 1, 0]", "prefetch x[i0 + 1]", "\"x\": found 1 subscripts, expected 2"),
    ("%0[1].3)", "%0[1].4)", "a lane may leave 0..4"),
    ("%0[1].3)", "%0[1])", "an accumulator of 4 lanes is used as a whole outside a vec(4) loop"),
    ("fma(x[i0, 4*r1 + l2]", "fma(idx(i0)", "fma of i64, f32 and f32"),
    ("f32(idx(mod", "f16(idx(mod", "cast to f16, which is no compute type"),
    ("with x2 = ids[i0] < N", "with x2 = x[0, 0] < N", "an index of type f32"),
    ("exp(%1)", "exp(idx(i3))", "Exp of i64"),
    ("buf z : f16", "buf z : u4", "a store to \"z\", whose elements are packed"),
    ("  let %1 = (", "  let %1 = 0.0\n    let %1 = (", "a register has two definitions"),
    ("z[i0, i1] = ", "z[0, i1] = ", " store to one element of \"z\""),
    (
        "  call fill\n  call y\n",
        "  call y\n  call fill\n",
        "kernel y reads \"/a/t.1\" before anything is written there",
    ),
    (
        "  call fill\n",
        "  check (/a/t.1[0] < 0.0) else dim\n  call fill\n",
        "the driver reads \"/a/t.1\" before anything is written there",
    ),
    ("stage=scheduled", "stage=built", "a vec or unroll loop before the kernel is scheduled"),
    ("stage=scheduled", "stage=built", "an accumulator has lanes before the kernel is scheduled"),
    ("stage=scheduled", "stage=placed", "buffer \"/a/t.1\" has no place"),
    ("  call z\n", "", "output \"z\" is never written"),
    ("y[i0, i3] = 0.0", "x[i0, i3] = 0.0", "writes \"x\", which is read-only"),
];

/// Changes that no text can say, or that the parser does not let through.
type Change = fn(&mut Module);
const CHANGES: &[(Change, &str)] = &[
    (
        |m| edit(m, "fill", |m, body| with_for(body, |var, _, _, _| *var = m.dim_params[0])),
        "has two definitions, or is no loop variable",
    ),
    (
        |m| edit(m, "fill", |m, body| with_for(body, |var, _, _, _| *var = m.syms.fresh(SymKind::Loop, "f"))),
        "the loop variable has no range",
    ),
    (
        |m| edit(m, "fill", |_, body| with_for(body, |_, _, hi, _| *hi = Dim::constant(12))),
        "the table says that the loop variable is in 0..10",
    ),
    (
        |m| {
            edit(m, "fill", |m, body| {
                push(
                    body,
                    Stmt::Prefetch {
                        buf: buf(m, "/a/t.1"),
                        at: vec![Dim::constant(i64::MAX) * Dim::sym(m.dim_params[0]) * i64::MAX],
                    },
                )
            })
        },
        "an index has no 64-bit value",
    ),
    (
        |m| {
            let var = m.syms.loop_var("o", Dim::constant(0), Dim::constant(4));
            edit(m, "fill", |m, body| {
                push(body, Stmt::Prefetch { buf: buf(m, "/a/t.1"), at: vec![Dim::sym(var)] })
            });
        },
        "is used outside its loop",
    ),
    (|m| edit(m, "fill", |m, body| push(body, define(m.dim_params[0]))), "a size is defined inside a kernel"),
    (|m| edit(m, "fill", |m, body| push(body, Stmt::Call(kernel(m, "y")))), "a kernel calls a kernel"),
    (
        |m| edit(m, "y", |_, body| with_for(body, |_, _, _, inner| inner.swap(0, 2))),
        "an accumulator is used outside its scope",
    ),
    (
        |m| {
            edit(m, "y", |m, body| {
                with_for(body, |_, _, _, inner| {
                    let Stmt::Acc { reg, .. } = inner[0] else { panic!("an accumulator") };
                    inner.push(store(m, Expr::Acc { reg, at: vec![], lane: Some(Dim::constant(0)) }));
                })
            })
        },
        "accumulator: found 0 subscripts, expected 1",
    ),
    (
        |m| {
            edit(m, "y", |m, body| {
                with_for(body, |_, _, _, inner| {
                    let Stmt::Acc { reg, .. } = inner[0] else { panic!("an accumulator") };
                    inner
                        .push(store(m, Expr::Horizontal { op: BinOp::Sub, reg, at: vec![Dim::constant(0)] }));
                })
            })
        },
        "lanes combine by an operation that has an order",
    ),
    (
        |m| {
            let reg = m.reg(ElemType::F32);
            edit(m, "fill", |m, body| push(body, store(m, Expr::Reg(reg))));
        },
        "a register is used outside its scope",
    ),
    (
        |m| {
            edit(m, "fill", |m, body| {
                push(body, store(m, Expr::Const(Scalar { ty: ElemType::F32, bits: 1 << 40 })))
            })
        },
        "are no constant of type f32",
    ),
    (
        |m| {
            edit(m, "fill", |m, body| {
                push(body, store(m, Expr::Cast(ElemType::F32, Box::new(Expr::Address(buf(m, "x"))))))
            })
        },
        "an address in a kernel",
    ),
    (
        |m| edit(m, "fill", |m, body| push(body, store(m, Expr::Text(TextOp::Of(buf(m, "x")), vec![])))),
        "is shown as a text: found f32, expected u8",
    ),
    (
        |m| edit(m, "fill", |m, body| push(body, store(m, Expr::Text(TextOp::Len, vec![Expr::f32(0.0)])))),
        "Len of f32",
    ),
    (
        |m| {
            edit(m, "z", |_, body| {
                *body = std::mem::take(body)
                    .into_iter()
                    .map(|s| {
                        s.map_exprs(&mut |e| {
                            e.rewrite(&mut |e| match e {
                                Expr::With { sym, value, body, .. } => {
                                    Expr::With { sym, value, extent: Dim::constant(3), body }
                                }
                                e => e,
                            })
                        })
                    })
                    .collect();
            })
        },
        "the table does not say that",
    ),
    (|m| m.dim_params.clear(), "which is not defined"),
    (|m| m.driver.insert(0, define(m.dim_params[0])), "is no run-time size"),
    (
        |m| {
            let b = buf(m, "/a/t.1");
            m.bufs[b].dims[0] = Dim::sym(m.syms.loop_var("o", Dim::constant(0), Dim::constant(4)));
        },
        "its shape depends on the loop variable",
    ),
    (
        |m| {
            let b = buf(m, "/a/t.1");
            m.bufs[b].dims[0] = Dim::constant(i64::MAX) * Dim::sym(m.dim_params[0]) * i64::MAX;
        },
        "a dimension has no 64-bit value",
    ),
    (
        |m| place(m, "/a/t.1", |d| d.layout = Layout::Permuted(vec![1])),
        "is no permutation of its 1 dimensions",
    ),
    (|m| place(m, "x", |d| d.place = Place::Input(1)), "is not input 1 of the signature"),
    (|m| place(m, "y", |d| d.place = Place::Output(1)), "is not output 1 of the signature"),
    (|m| place(m, "x", |d| d.place = Place::Temp), "is not in the caller's memory"),
    (|m| place(m, "y", |d| d.place = Place::Temp), "is not in the caller's memory"),
    (
        |m| place(m, "x", |d| d.layout = Layout::Permuted(vec![1, 0])),
        "belongs to the caller and is not row-major",
    ),
    (
        |m| place(m, "/a/t.1", |d| d.place = Place::Const(Arc::new(ConstData::f32s(vec![3], &[0.0; 3])))),
        "found 3 elements of type f32, expected 10 of type f32",
    ),
    (
        |m| {
            let s = m.dim_params[0];
            place(m, "/a/t.1", |d| d.place = Place::Pointer(s));
        },
        "begins at no run-time symbol, or is not row-major",
    ),
    (
        |m| {
            place(m, "/a/t.1", |d| {
                (d.place, d.layout) = (Place::Foreign, Layout::Permuted(vec![0]));
            });
        },
        "is handed to a function, and is not row-major",
    ),
    (|m| view(m, 9, Layout::RowMajor, false), "found 9 elements, expected the 10"),
    (
        |m| view(m, 10, Layout::Permuted(vec![1, 0]), false),
        "both must be row-major, or differ in the innermost dimension only",
    ),
    (|m| view(m, 10, Layout::RowMajor, true), "is a view of the view"),
    (|m| slot(m, Stage::Scheduled, 64), "has a slot before memory is placed"),
    (|m| slot(m, Stage::Placed, 32), "of 40 bytes does not fit its slot of 32 bytes at 0"),
];

fn kernel(m: &Module, name: &str) -> Kernel {
    m.kernels.iter().find(|k| k.1.name == name).expect("a kernel").0
}

fn buf(m: &Module, name: &str) -> Buf {
    m.bufs.iter().find(|b| b.1.name == name).expect("a buffer").0
}

fn edit(m: &mut Module, name: &str, f: impl FnOnce(&mut Module, &mut Vec<Stmt>)) {
    let k = kernel(m, name);
    let mut body = std::mem::take(&mut m.kernels[k].body);
    f(m, &mut body);
    m.kernels[k].body = body;
}

fn with_for(body: &mut [Stmt], f: impl FnOnce(&mut Sym, &mut Dim, &mut Dim, &mut Vec<Stmt>)) {
    let Some(Stmt::For { var, lo, hi, body, .. }) = body.first_mut() else { panic!("a loop") };
    f(var, lo, hi, body);
}

fn push(body: &mut [Stmt], s: Stmt) {
    with_for(body, |_, _, _, inner| inner.push(s));
}

fn define(sym: Sym) -> Stmt {
    Stmt::Define { sym, value: Expr::int(ElemType::I64, 1), lo: Dim::constant(0), hi: None }
}

fn store(m: &Module, value: Expr) -> Stmt {
    Stmt::Store { buf: buf(m, "/a/t.1"), at: vec![Dim::constant(0)], value }
}

fn place(m: &mut Module, name: &str, f: impl FnOnce(&mut BufData)) {
    let b = buf(m, name);
    f(&mut m.bufs[b]);
}

/// Kernel `fill` writes to a view of so many elements.
fn view(m: &mut Module, n: i64, layout: Layout, twice: bool) {
    let of = buf(m, "/a/t.1");
    let dims = if layout == Layout::RowMajor {
        vec![Dim::constant(n)]
    } else {
        vec![Dim::constant(2), Dim::constant(n / 2)]
    };
    let mut make = |name: &str, of: Buf| {
        m.bufs.push(BufData {
            name: name.into(),
            ty: ElemType::F32,
            dims: dims.clone(),
            layout: layout.clone(),
            place: Place::View(of),
        })
    };
    let mut v = make("v", of);
    if twice {
        v = make("w", v);
    }
    let at = vec![Dim::constant(0); m.bufs[v].dims.len()];
    edit(m, "fill", |_, body| push(body, Stmt::Store { buf: v, at, value: Expr::f32(0.0) }));
}

fn slot(m: &mut Module, stage: Stage, size: i64) {
    let s = m.slots.push(SlotData { offset: Dim::constant(0), size: Dim::constant(size) });
    place(m, "/a/t.1", |d| d.place = Place::Arena(s));
    m.stage = stage;
}

/// Two buffers in one place, one still to be read when the other is written.
const SHARED: &str = "\
nest v1 t stage=placed
buf x : f32[16] input 0
buf y : f32[16] output 0
buf a : f32[16] at 0 size 64
buf b : f32[16] at 0 size 64
workspace 64
kernel a ; Exp (node 0)
  par i0 in 0..16 {
    a[i0] = exp(x[i0])
  }
kernel b ; Neg (node 1)
  par i0 in 0..16 {
    b[i0] = neg(x[i0])
  }
kernel y ; Add (node 2)
  par i0 in 0..16 {
    y[i0] = (a[i0] + b[i0])
  }
driver
  call a
  call b
  call y
";

/// Scratch of an iteration, and a tile.
const TASKS: &str = "\
nest v1 t stage=scheduled
buf x : f32[8, 16] input 0
buf y : f32[8, 16] output 0
buf own : f32[8, 16] temp
kernel y ; Exp (node 0)
  par s0 in 0..8 {
    private q1 of s0 {
      vec(4) i2 in 0..16 {
        own[q1, i2] = exp(x[s0, i2])
      }
      tile {
        acc %0 x4 = 0.0 : f32
        vec(4) k3 in 0..16 {
          %0 = (%0 + own[q1, k3])
        }
        let %1 = lanes_add(%0)
        vec(4) j4 in 0..16 {
          y[s0, j4] = (own[q1, j4] / %1)
        }
      }
    }
  }
driver
  call y
";

/// Edits of that text, and a piece of the fault that each must give.
const TASK_EDITS: &[(&str, &str, &str)] = &[
    ("private q1 of s0", "private q1 of 0", "private scratch is not of the iteration around it"),
    ("par s0", "seq s0", "private scratch inside other statements than the par loop of the kernel"),
    ("own[q1, i2] =", "y[s0, i2] =", "private \"own\" is read before the iteration writes it"),
    ("x[s0, i2]", "x[q1, i2]", "private \"x\" is no scratch of its own, or not row-major"),
    ("own[q1, k3]", "own[q1, q1]", "the name of private scratch is more than a first subscript"),
    ("own[q1, k3]", "own[s0, k3]", "another part of private \"own\""),
    (
        "driver\n  call y\n",
        "kernel z ; Neg (node 1)\n  par i0 in 0..8 {\n    y[i0, 0] = own[i0, 0]\n  }\ndriver\n  call y\n  call z\n",
        "\"own\" is private to kernel y",
    ),
    ("stage=scheduled", "stage=built", "a tile before the kernel is scheduled"),
    ("tile {", "tile {\n      }\n      tile {", "a tile without a vec loop"),
    (
        "let %1 = lanes_add(%0)",
        "let %1 = lanes_add(%0)\n        while false {\n        }",
        "a statement in a tile that is no loop, value, accumulator, branch or store",
    ),
    (
        "= (own[q1, j4] / %1)\n        }\n      }",
        "= (own[q1, j4] / 2.0)\n        }\n      }\n      x[s0, 0] = %1",
        "outside its scope",
    ),
];

/// The last vector of a row ends where the row does, which is right for rows of four elements and more.
const LAST_VECTOR: &str = "\
nest v1 t stage=scheduled
dims N
buf x : f32[N] input 0
buf y : f32[N] output 0
kernel y ; Relu (node 0)
  seq i0 in 0..floordiv(N + 3, 4) {
    vec(4) l1 in 0..4 {
      y[min(4*i0, N - 4) + l1] = max(x[min(4*i0, N - 4) + l1], 0.0)
    }
  }
driver
  call y
";

/// What the verifier says of a module.
fn faults(m: &Module, limits: Option<&Limits>) -> String {
    verify::verify_for(m, limits).err().map_or_else(|| "no fault".to_owned(), |e| e.to_string())
}

/// Each broken rule with the fault that must be found.
fn broken() -> Vec<(String, String)> {
    let mut out = vec![];
    for (from, to, fault) in EDITS {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        out.push((faults(&read(&text), None), (*fault).to_owned()));
    }
    for (from, to, fault) in TASK_EDITS {
        let text = TASKS.replacen(from, to, 1);
        assert_ne!(text, TASKS, "{from}");
        out.push((faults(&read(&text), None), (*fault).to_owned()));
    }
    for (change, fault) in CHANGES {
        let mut m = read(GOOD);
        change(&mut m);
        out.push((faults(&m, None), (*fault).to_owned()));
    }
    let level = Limits { lanes: 16, groups: vec![] };
    out.push((faults(&read(GOOD), Some(&level)), "a vec(4) loop on a level with vectors of 16 lanes".into()));
    let mut m = read(GOOD);
    edit(&mut m, "fill", |m, body| {
        let zero = || Box::new(Expr::int(ElemType::I32, 0));
        push(
            body,
            store(m, Expr::Cast(ElemType::F32, Box::new(Expr::Dot(DotKind::Bytes, zero(), zero(), zero())))),
        );
    });
    out.push((
        faults(&m, Some(&Limits { lanes: 4, groups: vec![DotKind::Words] })),
        "dot4 on a level that does not have it".into(),
    ));
    let mut m = read(GOOD);
    edit(&mut m, "fill", |m, body| (0..25).for_each(|_| push(body, Stmt::Call(kernel(m, "y")))));
    out.push((faults(&m, None), "5 more faults are not shown".into()));
    out.push((
        faults(&read(SHARED), None),
        "buffers \"a\" and \"b\" share memory and are in use at the same time".into(),
    ));
    out.push((
        faults(&read(&SHARED.replacen("workspace 64", "workspace 32", 1)), None),
        "buffer \"a\": 0..64 is beyond its slot, which ends at 32".into(),
    ));
    out.extend(broken_at_small_sizes());
    out
}

/// Faults that no proof over symbols finds, since the module is right for some sizes.
fn broken_at_small_sizes() -> Vec<(String, String)> {
    let grown = SHARED
        .replace("stage=placed", "stage=placed\ndims N")
        .replace("f32[16]", "f32[N]")
        .replace("0..16", "0..N")
        .replace("buf b : f32[N] at 0 size 64", "buf b : f32[N] at 64 size 4*N")
        .replace("size 64", "size 4*N")
        .replace("workspace 64", "workspace 4*N + 64");
    vec![
        (faults(&read(LAST_VECTOR), None), "with N = 1: subscript 0 of \"x\" is -3, outside 0..1".into()),
        (faults(&read(&grown), None), "with N = 17: buffers \"a\" and \"b\" share memory".into()),
    ]
}

#[test]
fn faults_are_found() {
    let wrong: Vec<String> = broken()
        .into_iter()
        .filter(|(found, fault)| !found.contains(fault))
        .map(|(found, fault)| format!("expected \"{fault}\", found {found}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        faults(
            &read(&SHARED.replacen("buf b : f32[16] at 0", "buf b : f32[16] at 64", 1).replacen(
                "workspace 64",
                "workspace 128",
                1
            )),
            None
        ),
        "no fault"
    );
    let guarded = LAST_VECTOR.replace("dims N", "dims 4<=N");
    assert_eq!(faults(&read(&guarded), None), "no fault");
    assert_eq!(faults(&read(GOOD), Some(&Limits { lanes: 4, groups: vec![] })), "no fault");
}

/// Every text that the verifier can say is one that a test above brings about.
#[test]
fn every_fault_has_a_test() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("compiler/nest");
    let found: Vec<String> = broken().into_iter().map(|b| b.0).collect();
    let mut missing = vec![];
    for f in [
        "check.rs",
        "verify.rs",
        "verify/races.rs",
        "verify/arena.rs",
        "verify/private.rs",
        "verify/sizes.rs",
    ] {
        let text = std::fs::read_to_string(dir.join(f)).expect("the verifier");
        for line in text.lines().filter(|l| {
            l.contains("fault(") || l.contains("let text = format!") || l.contains("faults.push(")
        }) {
            let Some(literal) = line
                .split_once('"')
                .map(|(_, r)| r.replace("\\\"", "\u{1}"))
                .and_then(|r| r.split_once('"').map(|(l, _)| l.replace('\u{1}', "\"")))
            else {
                continue;
            };
            let mut pieces: Vec<&str> =
                literal.split(['{', '}']).step_by(2).map(str::trim).filter(|p| p.len() > 4).collect();
            pieces.sort_by_key(|p| std::cmp::Reverse(p.len()));
            if let Some(longest) = pieces.first()
                && !found.iter().any(|x| x.contains(longest))
            {
                missing.push(format!("{f}: {literal}"));
            }
        }
    }
    assert!(missing.is_empty(), "no test brings about:\n{}", missing.join("\n"));
}

#[test]
fn broken_text_is_refused() {
    for n in (1..GOOD.len()).step_by(7) {
        let _ = parse::parse(&GOOD[..n], &|_| None);
    }
    for (from, to) in [
        ("%1)", "%9)"),
        ("seq i0", "loop i0"),
        ("f32[10] temp", "f33[10] temp"),
        ("call z", "call q"),
        ("foreign custom 0 x", "foreign custom x"),
        ("[true,false,true]", "[true,false,2]"),
        ("[7,[-1]]", "[5,[-1]]"),
        ("nest v1", "nest v2"),
    ] {
        assert!(parse::parse(&GOOD.replacen(from, to, 1), &|_| None).is_err(), "{to}");
    }
}

fn constants(m: &Module) -> HashMap<String, Arc<ConstData>> {
    m.bufs
        .values()
        .filter_map(|b| if let Place::Const(c) = &b.place { Some((c.short_hash(), c.clone())) } else { None })
        .collect()
}

#[test]
fn models_read_back_after_each_pass() {
    let Ok(folder) = std::env::var("ONNXC_TEST_MODELS") else { return };
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "onnx"))
        .collect();
    files.sort();
    let mut faults = vec![];
    for f in &files {
        for pass in ["lower"].into_iter().chain(pipeline::NEST_PASSES.iter().map(|p| p.name)) {
            let source = onnxc::onnx::open(f).unwrap_or_else(|e| panic!("{e}"));
            let options = Options { stop_after: Some(pass.into()), ..Options::default() };
            let m = match pipeline::run(&source, &options) {
                Ok(Stopped::Nest(m)) => m,
                Ok(_) => panic!("no nests after {pass}"),
                Err(e) => panic!("{}: {e}", f.display()),
            };
            let start = std::time::Instant::now();
            let found = verify::verify(&m);
            println!("{} {pass}: verified in {:?}", f.display(), start.elapsed());
            if let Err(e) = found {
                faults.push(format!("{} after {pass}: {e}", f.display()));
            }
            let text = nest::print::print(&m);
            let table = constants(&m);
            let start = std::time::Instant::now();
            match parse::parse(&text, &|h| table.get(h).cloned()) {
                Ok(back) => {
                    println!("{} {pass}: parsed in {:?}", f.display(), start.elapsed());
                    let again = print::print(&back);
                    if let Some((a, b)) = text.lines().zip(again.lines()).find(|(a, b)| a != b) {
                        faults.push(format!("{} after {pass}: text differs\n  {a}\n  {b}", f.display()));
                    }
                    if text.len() != again.len() {
                        faults.push(format!("{} after {pass}: text has another length", f.display()));
                    }
                }
                Err(e) => faults.push(format!("{} after {pass}: {e}", f.display())),
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
