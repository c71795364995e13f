//! Running objects on other machines: a C driver that calls every model, linked and started under qemu.

use super::check::compare;
use super::operations;
use super::process::for_wine;
use onnxc::nest::Module;
use onnxc::nest::interp::Outcome;
use onnxc::nest::print::print;
use onnxc::onnx::Source;
use onnxc::options::Options;
use onnxc::pipeline;
use onnxc::sym::Sym;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// A machine that programs run on here: triple, CPU level, cross compiler, emulator and its options.
pub struct Machine {
    pub triple: &'static str,
    pub cpu: &'static str,
    pub cc: &'static str,
    pub qemu: &'static [&'static str],
}

/// A module with everything to call it and what comes out.
pub struct Case {
    pub module: Module,
    pub dims: Vec<(Sym, i64)>,
    pub data: Vec<Vec<u8>>,
    pub want: Outcome,
    pub tolerance: f64,
    /// Operations on special values have a comparison of their own.
    pub table: Option<operations::Table>,
}

impl Case {
    pub fn inputs(&self) -> Vec<&[u8]> {
        self.data.iter().map(Vec::as_slice).collect()
    }
}

/// Links all objects with the driver, runs it once and compares every output; returns what is wrong.
pub fn run(m: &Machine, dir: &Path, objects: &[(&str, &Case, Vec<u8>)]) -> String {
    let names: Vec<&str> = objects.iter().map(|o| o.0).collect();
    let file = |n: &str| dir.join(n);
    let write = |n: &str, b: &[u8]| std::fs::write(file(n), b).expect("a file of the test");
    write("driver.c", driver(&names).as_bytes());
    write("model.h", header().as_bytes());
    let mut given = vec![];
    let word = |given: &mut Vec<u8>, n: usize| given.extend_from_slice(&(n as u64).to_le_bytes());
    for (name, c, bytes) in objects {
        write(&format!("{name}.o"), bytes);
        c.dims.iter().for_each(|d| word(&mut given, d.1 as usize));
        for d in &c.data {
            word(&mut given, d.len());
            given.extend_from_slice(d);
        }
        c.want.outputs.iter().for_each(|o| word(&mut given, o.len()));
    }
    write("in.bin", &given);
    let mut cc = Command::new(m.cc);
    cc.current_dir(dir).args(["-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o", "driver", "driver.c"]);
    let linked =
        cc.args(names.iter().map(|n| format!("{n}.o"))).arg("-lm").output().expect("the compiler starts");
    if !linked.status.success() {
        return format!("linking: {}", String::from_utf8_lossy(&linked.stderr));
    }
    let program = if m.triple.contains("windows") { "./driver.exe" } else { "./driver" };
    let mut emulator = Command::new(m.qemu[0]);
    emulator.current_dir(dir).args(&m.qemu[1..]).arg(program);
    let ran = for_wine(&mut emulator).output().expect("the emulator starts");
    let mut wrong = String::new();
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        // QEMU 7.2 fails an assertion of its own where it translates two conversions of different rounding in
        // a row (riscv64, decode_save_opc); later ones do not. That says nothing about the code.
        if said.contains("decode_save_opc: Assertion") {
            eprintln!(
                "skipped: this {} cannot translate the code, its own assertion fails: {}",
                m.qemu[0],
                said.trim()
            );
            return wrong;
        }
        writeln!(wrong, "the driver ended with {}: {said}", ran.status).expect("a string");
    }
    let got = std::fs::read(file("out.bin")).unwrap_or_default();
    let mut rest = got.as_slice();
    for (name, c, _) in objects {
        let size = c.want.outputs.iter().map(Vec::len).sum::<usize>() + 4;
        let Some((mine, next)) = rest.split_at_checked(size) else {
            writeln!(wrong, "{name}: no results").expect("a string");
            break;
        };
        rest = next;
        let (status, mut bytes) = mine.split_at(4);
        let mut outputs = vec![];
        for o in &c.want.outputs {
            let (a, b) = bytes.split_at(o.len());
            outputs.push(a.to_vec());
            bytes = b;
        }
        let got = Outcome { outputs, dims: c.want.dims.clone() };
        let verdict = match (status, &c.table) {
            ([0, 0, 0, 0], Some(t)) => match operations::differences(t, &c.want, &got) {
                d if d.is_empty() => Ok(()),
                d => Err(d.join("\n")),
            },
            ([0, 0, 0, 0], _) => compare(&c.module, &c.want, &got, c.tolerance),
            ([100, ..], _) => Err("it wrote behind an output".into()),
            ([101, ..], _) => Err("tasks in another order give other bits".into()),
            ([s, ..], _) => Err(format!("status {s}")),
            _ => Ok(()),
        };
        if let Err(e) = verdict {
            let module = if c.table.is_none() { print(&c.module) } else { String::new() };
            writeln!(wrong, "{name}: {e}\n{module}").expect("a string");
        }
    }
    wrong
}

/// A header: the driver needs its common part.
fn header() -> String {
    let text =
        "<ir_version: 8, opset_import: [\"\" : 17]>\nunused (float[1] x) => (float[1] y) { y = Relu (x) }";
    let source =
        Source { name: "unused.onnxtxt".into(), bytes: text.as_bytes().to_vec().into(), folder: None };
    let compiled = pipeline::compile(&source, &Options { name: Some("unused".into()), ..Options::default() })
        .expect("the model compiles");
    onnxc::emit::to_text(&compiled, onnxc::emit::find("header").expect("headers are emitted"))
        .expect("a header")
}

/// Calls each model twice, the second time with its tasks in reverse order.
fn driver(names: &[&str]) -> String {
    let mut s =
        String::from("#include \"model.h\"\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    names.iter().for_each(|n| s += &format!("extern const onnxc_model {n}_model;\n"));
    s += "static const onnxc_model *const all[] = {\n";
    names.iter().for_each(|n| s += &format!("  &{n}_model,\n"));
    s + DRIVER
}

const DRIVER: &str = r#"};
enum { GUARD = 64 };
static FILE *in, *out;
static uint64_t word(void) {
  uint64_t v = 0;
  if (fread(&v, 8, 1, in) != 1) exit(2);
  return v;
}
static void reversed(void *user, size_t n, onnxc_task_fn fn, void *task) {
  (void)user;
  while (n-- > 0) fn(task, n);
}
int main(void) {
  onnxc_exec exec = {0};
  exec.struct_size = sizeof exec;
  exec.parallel_for = reversed;
  in = fopen("in.bin", "rb");
  out = fopen("out.bin", "wb");
  if (!in || !out) return 3;
  for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
    const onnxc_model *m = all[k];
    int64_t dims[8];
    void *inputs[64];
    unsigned char *first[64], *second[64];
    size_t bytes[64];
    uint64_t size = 0;
    int32_t status;
    if (m->abi_version != 1 || m->struct_size != sizeof *m) return 4;
    if (m->n_dim_params > 8 || m->n_inputs > 64 || m->n_outputs > 64) return 5;
    for (uint32_t i = 0; i < m->n_dim_params; i++) dims[i] = (int64_t)word();
    for (uint32_t i = 0; i < m->n_inputs; i++) {
      size_t n = word();
      inputs[i] = malloc(n + 1);
      if (fread(inputs[i], 1, n, in) != n) return 6;
    }
    for (uint32_t i = 0; i < m->n_outputs; i++) {
      bytes[i] = word();
      memset(first[i] = malloc(bytes[i] + GUARD), 0xab, bytes[i] + GUARD);
      memset(second[i] = malloc(bytes[i] + GUARD), 0xab, bytes[i] + GUARD);
    }
    status = m->workspace_for(dims, &size);
    if (status == 0) {
      char *memory = malloc(size + 64);
      void *space = memory + (64 - (uintptr_t)memory % 64);
      memset(space, 0xff, size);
      status = m->call((const void *const *)inputs, (void *const *)first, dims, NULL, NULL, space, NULL);
      if (status == 0) status = m->call((const void *const *)inputs, (void *const *)second, dims, NULL, NULL, space, &exec);
      free(memory);
    }
    for (uint32_t i = 0; i < m->n_outputs && status == 0; i++) {
      for (int g = 0; g < GUARD; g++)
        if (first[i][bytes[i] + g] != 0xab) status = 100;
      if (memcmp(first[i], second[i], bytes[i]) != 0) status = 101;
    }
    fwrite(&status, 4, 1, out);
    for (uint32_t i = 0; i < m->n_outputs; i++) {
      fwrite(first[i], 1, bytes[i], out);
      free(first[i]);
      free(second[i]);
    }
    for (uint32_t i = 0; i < m->n_inputs; i++) free(inputs[i]);
    fflush(out);
  }
  return fclose(out);
}
"#;
