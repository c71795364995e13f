#!/usr/bin/env python3
"""What the innermost loops of compiled models cost on CPUs that are not at hand.

    static.py ONNXC [--update] [--table]

Compiles small models for aarch64 and riscv64, finds the loop of each that computes most, counts its instructions and lets llvm-mca say
how many cycles it takes on several CPUs. What it found last time stands in `static.txt` beside this file: instructions have to
be the same, cycles within 3 percent. `--update` writes that file anew, `--table` prints it as Markdown. Accesses are taken to
hit the first-level cache. Needs llvm-mca and llvm-objdump of LLVM 22, whose tables of CPUs the numbers are of; without them it
says so and succeeds.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LLVM = "22"
TARGET = "aarch64-unknown-linux-gnu"
CPUS = ["cortex-a55", "cortex-a72", "neoverse-n1", "neoverse-v1", "neoverse-v2", "apple-m1"]
# f32 multiply-adds a cycle. LLVM's table of the Cortex-A55 says eight; the core has two pipes of 64 bits.
PEAK = {"cortex-a55": 4.0}
RECORDED = pathlib.Path(__file__).with_name("static.txt")
# Constant weights of a shape.
WEIGHTS = "s = Constant <value_ints = [%s]> ()\n  w = ConstantOfShape <value = float[1] {0.5}> (s)\n  "
BYTES = "s = Constant <value_ints = [%s]> ()\n  w = ConstantOfShape <value = %s[1] {3}> (s)\n  "
# Name: inputs and outputs, nodes, opset, CPU level, options.
MODELS = {
    "gemm": ("(float[512,512] a) => (float[512,512] y)", WEIGHTS % "512, 512" + "y = MatMul (a, w)", 17, "generic"),
    "gemm, in order": ("(float[512,512] a) => (float[512,512] y)", WEIGHTS % "512, 512" + "y = MatMul (a, w)", 17, "cortex-a55"),
    "gemm of f16": ("(float16[512,512] a, float16[512,512] b) => (float16[512,512] y)", "y = MatMul (a, b)", 17, "generic"),
    "gemm of f16, --math fast": (
        "(float16[512,512] a, float16[512,512] b) => (float16[512,512] y)", "y = MatMul (a, b)", 17,
        "armv8.2-a+dotprod+fp16", "--math", "fast"),
    "gemm of f64": ("(double[512,512] a, double[512,512] b) => (double[512,512] y)", "y = MatMul (a, b)", 17, "generic"),
    "gemm of int8": ("(int8[512,512] a) => (int32[512,512] y)", BYTES % ("512, 512", "int8") + "y = MatMulInteger (a, w)", 17, "generic"),
    "gemm of int8, sdot": ("(int8[512,512] a) => (int32[512,512] y)", BYTES % ("512, 512", "int8") + "y = MatMulInteger (a, w)", 17, "armv8.2-a+dotprod+fp16"),
    "gemm of int8, in order": ("(int8[512,512] a) => (int32[512,512] y)", BYTES % ("512, 512", "int8") + "y = MatMulInteger (a, w)", 17, "cortex-a55"),
    "gemm of uint8, usmmla": ("(uint8[512,512] a) => (int32[512,512] y)", BYTES % ("512, 512", "int8") + "y = MatMulInteger (a, w)", 17, "armv8.6-a+i8mm+bf16"),
    "gemm, --math fast": ("(float[512,512] a) => (float[512,512] y)", WEIGHTS % "512, 512" + "y = MatMul (a, w)", 17, "armv8.6-a+i8mm+bf16", "--math", "fast"),
    "gemv": ("(float[1,1024] a) => (float[1,4096] y)", WEIGHTS % "1024, 4096" + "y = MatMul (a, w)", 17, "generic"),
    "conv 3x3, step 2": (
        "(float[1,64,56,56] x) => (float[1,128,28,28] y)",
        WEIGHTS % "128, 64, 3, 3" + "y = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)", 17, "generic"),
    "depthwise 3x3": (
        "(float[1,144,56,56] x) => (float[1,144,56,56] y)",
        WEIGHTS % "144, 1, 3, 3" + "y = Conv <group = 144, pads = [1, 1, 1, 1]> (x, w)", 17, "generic"),
    "softmax": ("(float[384,512] x) => (float[384,512] y)", "y = Softmax <axis = -1> (x)", 17, "generic"),
    "layer norm": (
        "(float[128,384] x, float[384] s, float[384] b) => (float[128,384] y)", "y = LayerNormalization (x, s, b)", 17, "generic"),
    "gelu": ("(float[128,1536] x) => (float[128,1536] y)", "y = Gelu (x)", 20, "generic"),
}
# Of these, too, cores that wait for loads have code of their own.
MODELS |= {f"{name}, in order": (*MODELS[name][:3], "cortex-a55", *MODELS[name][4:]) for name in ("gemm of f16, --math fast", "gemv")}
# What is the default where all cores are Apple's.
MODELS |= {f"{name}, apple": (*MODELS[name][:3], "apple-m1", *MODELS[name][4:]) for name in ("gemv", "depthwise 3x3", "layer norm")}
# riscv64: CPUs with the lanes of a vector of the level that is named after them. Each has code of its own.
RISCV_TARGET = "riscv64gc-unknown-linux-gnu"
RISCV_FEATURES = "+m,+f,+d,+v,+zicbop"
RISCV_CPUS = {"sifive-p670": 8, "spacemit-x60": 16, "sifive-x280": 32}
RISCV_MODELS = ["gemm", "gemv", "conv 3x3, step 2", "depthwise 3x3", "softmax", "layer norm", "gelu"]


def run(command, text=None):
    return subprocess.run(command, input=text, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout


def macs(line):
    """Multiply-adds of an instruction."""
    op = line.split()[0]
    if re.fullmatch(r"(s|u|us)mmla", op):
        return 32
    if op in ("sdot", "udot", "usdot", "sudot", "bfmmla"):
        return 16
    if op == "bfdot":
        return 8
    if re.fullmatch(r"[su]m(ul|la)l2?", op):
        return 8
    # The first product of a sum of f16 is a multiplication by a lane.
    if op not in ("fmla", "fmls") and not re.fullmatch(r"fmul v\d+\.8h, v\d+\.8h, v\d+\.h\[\d\]", line):
        return 0
    return 8 if ".8h" in line else 4 if ".4s" in line else 2


def loops(text):
    """Innermost loops of a disassembly: lists of instructions."""
    functions, code = [], []
    for line in text.splitlines():
        if re.match(r"^[0-9a-f]+ <.*>:$", line):
            code = []
            functions.append(code)
        elif m := re.match(r"^\s*([0-9a-f]+):\s+(\S.*)$", line):
            code.append((int(m[1], 16), re.sub(r"\s*(//|<).*$", "", m[2]).strip().replace("\t", " ")))
    found = []
    for code in functions:
        index = {a: i for i, (a, _) in enumerate(code)}
        spans = []
        for i, (a, line) in enumerate(code):
            m = re.match(r"^[bj]\S* (?:\S+, )*0x([0-9a-f]+)$", line)
            if m and int(m[1], 16) <= a and int(m[1], 16) in index:
                spans.append((index[int(m[1], 16)], i))
        for s, e in spans:
            if not any(o != (s, e) and s <= o[0] and o[1] <= e for o in spans):
                found.append([line for _, line in code[s:e + 1]])
    return found


def riscv_macs(line, lanes):
    return lanes if re.match(r"vfn?m(acc|add|sac|sub)\.", line) else 0


def riscv_priced(cpu, body, group=2):
    """Cycles of an iteration on vectors in groups of so many registers."""
    lines = [f"# LLVM-MCA-RISCV-LMUL M{group}", "# LLVM-MCA-RISCV-SEW E32"]
    for line in body:
        line = re.sub(r"0x[0-9a-f]+$", ".Lend", line) if re.match(r"^(b\w+|j) ", line) else line
        # One of the models does not know the hint.
        lines.append(re.sub(r"^prefetch\.r .*\((\w+)\)$", r"ori zero, \1, 0", line))
    out = run([f"llvm-mca-{LLVM}", "-mtriple=riscv64", f"-mcpu={cpu}", "--json", "-iterations=100", "-"], "\n".join(lines + [".Lend:"]) + "\n")
    view = json.loads(out)["CodeRegions"][0]["SummaryView"]
    return view["TotalCycles"] / view["Iterations"]


def riscv_best(cpu):
    """Multiply-adds a cycle of the best product of matrices that was found by hand: of `rows` by one group of registers, eight
    steps written out, every load so early that it has arrived."""
    group, rows = (4, 5) if cpu == "sifive-x280" else (2, 12)
    floats = [f"f{kind}{i}" for kind, n in (("t", 12), ("a", 8), ("s", 12)) for i in range(n)][:2 * rows]
    column = lambda step: f"v{4 + group * (rows + step % 2)}"
    element = lambda step, row: floats[(step * rows + row) % (2 * rows)]
    body = []
    for step in range(8):
        body += ["addi t0, s1, 4", f"vle32.v {column(step + 1)}, (t0)"]
        for row in range(rows):
            body += [f"vfmacc.vf v{4 + group * row}, {element(step, row)}, {column(step)}", f"flw {element(step + 1, row)}, {4 * step}(a{row % 8})"]
    body += [f"addi a{i}, a{i}, 32" for i in range(8)] + ["addi s1, s1, 64", "addi t1, t1, 1", "blt t1, t2, 0x0"]
    # Lanes of a group on this CPU.
    lanes = RISCV_CPUS[cpu] * group // 2
    return 8 * rows * lanes / riscv_priced(cpu, body, group)


def riscv_measure(onnxc, folder, name):
    """The loop of a model for each CPU."""
    signature, nodes, opset, _, *options = MODELS[name]
    model = folder / "m.onnxtxt"
    model.write_text(f'<ir_version: 8, opset_import: ["" : {opset}]>\nm {signature} {{\n  {nodes}\n}}\n')
    found = {}
    for cpu, lanes in RISCV_CPUS.items():
        run([onnxc, str(model), "--target", RISCV_TARGET, "--cpu", cpu, *options, "-o", str(folder / "m.o")])
        text = run([f"llvm-objdump-{LLVM}", "-d", f"--mattr={RISCV_FEATURES}", "--no-show-raw-insn", str(folder / "m.o")])
        vector = lambda body: sum(1 for l in body if re.match(r"v(?!set)", l))
        work = lambda body: sum(riscv_macs(l, lanes) for l in body)
        body = max(loops(text), key=lambda b: (work(b) if name.startswith(("gem", "conv", "depth")) else 0, vector(b)))
        found[cpu] = {"instructions": len(body), "macs": work(body), "cycles": round(riscv_priced(cpu, body), 1)}
    return found


def runs(cpu, body):
    """Whether a CPU has all instructions of a loop: llvm-mca prices those too that it lacks."""
    of = lambda pattern: any(re.match(pattern, line) for line in body)
    if of(r"usdot|sudot|\w*mmla|bf"):
        return cpu in ("neoverse-v1", "neoverse-v2")
    return cpu != "cortex-a72" or not of(r"[su]dot|f\w+ v\d+\.8h")


def priced(cpu, body):
    """Cycles of an iteration."""
    lines = []
    for line in body:
        if re.match(r"^(b|cbn?z|tbn?z)", line) and "0x" in line:
            line = re.sub(r"0x[0-9a-f]+$", ".Lend", line)
        elif re.match(r"^ldr [qds]\d+, (0x|#)", line):
            line = re.sub(r", .*", ", #4", line)
        lines.append(line)
    out = run([f"llvm-mca-{LLVM}", "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+dotprod,+i8mm,+bf16,+fullfp16", "--json", "-iterations=100", "-"], "\n".join(lines + [".Lend:"]) + "\n")
    view = json.loads(out)["CodeRegions"][0]["SummaryView"]
    return view["TotalCycles"] / view["Iterations"]


def peak(cpu):
    if cpu not in PEAK:
        PEAK[cpu] = 96 / min(priced(cpu, [f"fmla v{i}.4s, v30.4s, {last}" for i in range(24)]) for last in ("v31.4s", "v31.s[0]"))
    return PEAK[cpu]


def measure(onnxc, folder, name):
    signature, nodes, opset, level, *options = MODELS[name]
    model = folder / "m.onnxtxt"
    model.write_text(f'<ir_version: 8, opset_import: ["" : {opset}]>\nm {signature} {{\n  {nodes}\n}}\n')
    run([onnxc, str(model), "--target", TARGET, "--cpu", level, *options, "-o", str(folder / "m.o")])
    text = run([f"llvm-objdump-{LLVM}", "-d", "--mattr=+dotprod,+i8mm,+bf16,+fullfp16", "--no-show-raw-insn", str(folder / "m.o")])
    vector = lambda body: sum(1 for l in body if re.search(r"\bv\d+\.", l))
    body = max(loops(text), key=lambda b: (sum(map(macs, b)) if name.startswith(("gem", "conv", "depth")) else 0, vector(b)))
    work = sum(map(macs, body))
    return {"instructions": len(body), "macs": work, "cycles": {c: round(priced(c, body), 1) for c in CPUS if runs(c, body)}}


def table(rows, riscv_rows):
    out = ["| loop | instructions | multiply-adds |" + "".join(f" {c} |" for c in CPUS), "|---|--:|--:|" + "--:|" * len(CPUS)]
    for name, r in rows.items():
        multiplies = r["macs"] > r["instructions"]
        cell = lambda c: " |" if c not in r["cycles"] else f" {r['cycles'][c]} ({100 * r['macs'] / r['cycles'][c] / peak(c):.0f} %) |" if multiplies else f" {r['cycles'][c]} |"
        out.append(f"| {name} | {r['instructions']} | {r['macs']} |" + "".join(map(cell, CPUS)))
    out += ["", "| loop |" + "".join(f" {c} |" for c in RISCV_CPUS), "|---|" + "--:|" * len(RISCV_CPUS)]
    best = {c: riscv_best(c) for c in RISCV_CPUS}
    for name, r in riscv_rows.items():
        share = lambda c: f" ({100 * r[c]['macs'] / r[c]['cycles'] / best[c]:.0f} %)" if r[c]["macs"] > r[c]["instructions"] else ""
        out.append(f"| {name} |" + "".join(f" {r[c]['instructions']}, {r[c]['macs']}, {r[c]['cycles']}{share(c)} |" for c in RISCV_CPUS))
    return "\n".join(out)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("onnxc")
    p.add_argument("--update", action="store_true")
    p.add_argument("--table", action="store_true")
    a = p.parse_args()
    missing = [t for t in (f"llvm-mca-{LLVM}", f"llvm-objdump-{LLVM}") if not shutil.which(t)]
    if missing:
        print(f"skipped: {', '.join(missing)} is not installed (Debian: apt-get install llvm-{LLVM})")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = {name: measure(a.onnxc, pathlib.Path(folder), name) for name in MODELS}
        riscv_rows = {name: riscv_measure(a.onnxc, pathlib.Path(folder), name) for name in RISCV_MODELS}
    if a.table:
        print(table(rows, riscv_rows))
    # The same form: a loop for each CPU.
    rows |= {f"{name}, {c}": r | {"cycles": {c: r["cycles"]}} for name, of in riscv_rows.items() for c, r in of.items()}
    if a.update:
        RECORDED.write_text(json.dumps(rows, indent=1) + "\n")
    recorded, wrong = json.loads(RECORDED.read_text()), 0
    for name, r in rows.items():
        old = recorded.get(name)
        if old is None or (r["instructions"], r["macs"]) != (old["instructions"], old["macs"]):
            print(f"{name}: {r['instructions']} instructions for {r['macs']} multiply-adds, recorded {old and (old['instructions'], old['macs'])}")
            wrong += 1
            continue
        for c in r["cycles"]:
            if c not in old["cycles"] or abs(r["cycles"][c] - old["cycles"][c]) > 0.03 * old["cycles"][c]:
                print(f"{name} on {c}: {r['cycles'][c]} cycles, recorded {old['cycles'].get(c)}")
                wrong += 1
    print(f"{len(rows)} loops, {wrong} differ" + ("; static.py --update records them" if wrong else ""))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
