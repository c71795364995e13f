//! The text of the nest IR reads back as it was written, and the verifier finds what breaks the rules.
//!
//! With `ONNXC_TEST_MODELS` naming a folder, every model in it is printed, read back and verified after each pass.

use onnxc::nest::{self, Module, Place, parse, print, verify};
use onnxc::options::Options;
use onnxc::pipeline::{self, Stopped};
use onnxc::tensor::ConstData;
use std::collections::HashMap;
use std::sync::Arc;

const GOOD: &str = "\
nest v1 t stage=scheduled
dims N 'batch size'<=8 2<=K<=64
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
";

fn read(text: &str) -> Module {
    parse::parse(text, &|_| None).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[test]
fn text_reads_back() {
    let m = read(GOOD);
    assert_eq!(print::print(&m), GOOD);
    verify::verify(&m).unwrap_or_else(|e| panic!("{e}"));
}

/// One edit each, and a piece of the fault it must give.
#[test]
fn faults_are_found() {
    let edits = [
        ("seq i0 in 0..10", "seq i0 in 0..11", "subscript 0 of \"/a/t.1\" may leave 0..10"),
        ("acc %0[2] x4", "acc %0[2]", "iterations of a par or vec loop set one accumulator"),
        ("acc %0[2] x4", "acc %0[1] x4", "a subscript of an accumulator may leave 0..1"),
        ("vec(4) l2", "vec(1) l2", "a vec(1) loop"),
        ("-inf)", "0:i32)", "found i32, expected f32"),
        ("unroll r1", "seq r1", "not constant after unrolling"),
        ("/a/t.1[i0] = ", "/a/t.1[] = ", "found 0 subscripts, expected 1"),
        ("  call fill\n  call y\n", "  call y\n  call fill\n", "before anything is written there"),
        ("stage=scheduled", "stage=built", "a vec or unroll loop before the kernel is scheduled"),
        ("stage=scheduled", "stage=placed", "has no place"),
        ("  call z\n", "", "is never written"),
        ("y[i0, i3] = 0.0", "x[i0, i3] = 0.0", "read-only"),
    ];
    for (from, to, fault) in edits {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let found = verify::verify(&read(&text)).err().map_or_else(|| "no fault".to_owned(), |e| e.to_string());
        assert!(found.contains(fault), "expected \"{fault}\" after \"{to}\", found {found}");
    }
}

#[test]
fn broken_text_is_refused() {
    for n in (1..GOOD.len()).step_by(7) {
        let _ = parse::parse(&GOOD[..n], &|_| None);
    }
    for (from, to) in [("%1)", "%9)"), ("seq i0", "loop i0"), ("f32[10] temp", "f33[10] temp"), ("call z", "call q"), ("nest v1", "nest v2")] {
        assert!(parse::parse(&GOOD.replacen(from, to, 1), &|_| None).is_err(), "{to}");
    }
}

fn constants(m: &Module) -> HashMap<String, Arc<ConstData>> {
    m.bufs.values().filter_map(|b| if let Place::Const(c) = &b.place { Some((c.short_hash(), c.clone())) } else { None }).collect()
}

#[test]
fn models_read_back_after_each_pass() {
    let Ok(folder) = std::env::var("ONNXC_TEST_MODELS") else { return };
    let mut files: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().filter_map(|e| Some(e.ok()?.path())).filter(|p| p.extension().is_some_and(|e| e == "onnx")).collect();
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
