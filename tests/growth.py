"""Growth: the compiler's time and memory over chains, fans and nestings of 1, 2, 4, .. times as many nodes; and bombs,
small files that are refused with their reason or compiled within the memory that their size allows.

    growth.py ONNXC [--full] [--only WORD]

The figure is the exponent: time ~ n^e from the smallest to the largest model, from the least processor time of several
runs, without what an empty model takes. Processor time does not depend on what else the machine does, and a ratio does
not depend on the machine. Nothing is held against a clock: a bomb is compared with what a chain takes.

The test suite runs small sizes; --full runs thousands of nodes (use a release build: a quarter of an hour).
"""
import math
import os
import resource
import subprocess
import sys
import tempfile

MB = 1 << 20
# Exponents above 1: tables that grow by doubling, n log n, noise.
TIME, MEMORY = 1.35, 1.2
# A bomb may take this many times the processor time of a chain of 300 nodes, and this memory besides 4 times its file.
TIMES, BYTES = 60, 1 << 30

HEAD = '<ir_version: 9, opset_import: ["" : 20, "local" : 1, "com.microsoft" : 1]>\n'


def model(inputs, outputs, lines, constants=""):
    return HEAD + f"m ({inputs}) => ({outputs}) {constants} {{\n" + "\n".join(lines) + "\n}\n"


def floats(dims, names):
    return ", ".join(f"float[{dims}] {n}" for n in names)


# ---- models of n nodes ----


def chain(op, dims="8,16", attrs=""):
    return lambda n: model(f"float[{dims}] v0", f"float[{dims}] v{n}", [f"v{i + 1} = {op}{attrs}(v{i})" for i in range(n)])


def products(dims):
    return lambda n: model(f"float[{dims},16] v0, float[16,16] w", f"float[{dims},16] v{n}", [f"v{i + 1} = MatMul(v{i}, w)" for i in range(n)])


def residual(n):
    lines = [f"a{i} = Relu(v{i}) b{i} = MatMul(a{i}, w) v{i + 1} = Add(v{i}, b{i})" for i in range(n)]
    return model("float[N,16] v0, float[16,16] w", f"float[N,16] v{n}", lines)


def convolutions(n):
    """Residual blocks of convolutions: padded images, layouts, packed weights."""
    lines = [f"a{i} = Conv<pads=[1,1,1,1]>(v{i}, w) r{i} = Relu(a{i}) b{i} = Conv<pads=[1,1,1,1]>(r{i}, u) v{i + 1} = Add(v{i}, b{i})" for i in range(n)]
    weights = lambda k: ", ".join(f"{(i * 37 + k) % 17 / 16 - 0.5}" for i in range(576))
    return model("float[1,8,8,8] v0", f"float[1,8,8,8] v{n}", lines, f"<float[8,8,3,3] w = {{{weights(0)}}}, float[8,8,3,3] u = {{{weights(5)}}}>")


def planes(n):
    """Many convolutions of one image."""
    lines = [f"s{i} = Conv<pads=[1,1,1,1]>(x, w)" for i in range(n)]
    return model("float[1,4,8,8] x, float[8,4,3,3] w", f"float[1,{8 * n},8,8] y", [*lines, f"y = Concat<axis=1>({', '.join(f's{i}' for i in range(n))})"])


def fan(n):
    """Many readers of one value, all of which are results of one."""
    lines = [f"s{i} = {('Sin', 'Exp')[i % 2]}(x)" for i in range(n)]
    return model("float[4] x", f"float[{4 * n}] y", [*lines, f"y = Concat<axis=0>({', '.join(f's{i}' for i in range(n))})"])


def images(n):
    """A concatenation of images whose parts are computed in place."""
    lines = [f"s{i} = Softmax<axis=1>(x)" for i in range(n)]
    return model("float[1,4,4,4] x", f"float[1,{4 * n},4,4] z", [*lines, f"y = Concat<axis=1>({', '.join(f's{i}' for i in range(n))})", "z = Softmax<axis=1>(y)"])


def total(n):
    lines = [f"s{i} = {('Sin', 'Exp')[i % 2]}(x)" for i in range(n)]
    return model("float[4] x", "float[4] y", [*lines, f"y = Sum({', '.join(f's{i}' for i in range(n))})"])


def branches(n):
    """One branch after another."""
    lines = [f"v{i + 1} = If(c) <then_branch = t{i} () => (float[4] p{i}) {{ p{i} = Sin(v{i}) }}, else_branch = e{i} () => (float[4] q{i}) {{ q{i} = Cos(v{i}) }}>" for i in range(n)]
    return model("float[4] v0, bool c", f"float[4] v{n}", lines)


# Name, model of n nodes, smallest n of the suite, smallest n of --full; the largest is eight times as large.
GROWTH = [
    ("chain of Relu", chain("Relu"), 250, 2500),
    ("chain of Softmax", chain("Softmax", attrs="<axis=-1>"), 60, 500),
    ("chain of Transpose", chain("Transpose", "A,A"), 100, 1000),
    ("chain of MatMul", products("16"), 50, 400),
    ("chain of MatMul, symbolic rows", products("N"), 40, 300),
    ("residual blocks, symbolic rows", residual, 20, 120),
    ("residual convolutions", convolutions, 20, 200),
    ("fan of convolutions", planes, 20, 100),
    ("fan and Concat", fan, 60, 500),
    ("Concat of images", images, 10, 100),
    ("fan and Sum", total, 60, 1000),
    ("branches one after another", branches, 40, 300),
]

# ---- bombs ----


def doubling(levels, dead=False):
    body = "y = Neg(x) d = local.f%d(x)" if dead else "y = local.f%d(x)"
    text = model("float[2] x", "float[2] y", [body % levels])
    text += '<domain: "local", opset_import: ["" : 20]>\nf0 (a) => (b) { b = Neg(a) }\n'
    for i in range(1, levels + 1):
        text += f'<domain: "local", opset_import: ["" : 20, "local" : 1]>\nf{i} (a) => (b) {{ t = local.f{i - 1}(a) b = local.f{i - 1}(t) }}\n'
    return text


def nested_loops(depth):
    def body(d, v):
        if d == 0:
            return f"o0 = Sin({v})"
        inner = f"co{d} = Identity(ci{d}) {body(d - 1, f'l{d}')} q{d} = Identity(o{d - 1})"
        return f"o{d} = Loop(n, c, {v}) <body = b{d} (int64 i{d}, bool ci{d}, float[2] l{d}) => (bool co{d}, float[2] q{d}) {{ {inner} }}>"

    return model("float[2] x, int64 n, bool c", "float[2] y", [body(depth, "x"), f"y = Identity(o{depth})"])


def nested_branches(depth):
    def body(d):
        if d == 0:
            return "o0 = Sin(x)"
        return f"o{d} = If(c) <then_branch = t{d} () => (float[2] q{d}) {{ {body(d - 1)} q{d} = Neg(o{d - 1}) }}, else_branch = e{d} () => (float[2] z{d}) {{ z{d} = Cos(x) }}>"

    return model("float[2] x, bool c", "float[2] y", [body(depth), f"y = Identity(o{depth})"])


def ranks_of_branches(n):
    """Every branch has results of two ranks: what uses them moves into both."""
    lines = [f"r{i} = If(c{i}) <then_branch = t{i} () => (float[2] p{i}) {{ p{i} = Sin(x) }}, else_branch = e{i} () => (float[1,2] q{i}) {{ q{i} = Unsqueeze(x, ax) }}>" for i in range(n)]
    lines.append(f"y = Sum(z, {', '.join(f'r{i}' for i in range(n))})")
    return model("float[2] x, float[1,2] z, " + ", ".join(f"bool c{i}" for i in range(n)), "float[1,2] y", lines, "<int64[1] ax = {0}>")


def named(n, reverse=False):
    return ",".join(f"d{i}" for i in (reversed(range(n)) if reverse else range(n)))


def transposed(n):
    return model(f"float[{named(n)}] x", f"float[{named(n, True)}] y", ["y = Transpose(x)"])


def reduced(n):
    return model(f"float[{named(n)}] x", "float y", ["y = ReduceSum<keepdims=0>(x)"])


def polynomial(n):
    return model(f'float[N] a, float["{"*".join(["N"] * n)}"] x', "float[M] y", ["y = Neg(x)"])


def pattern(p):
    return model("string[N] x", "bool[N] y", [f'y = RegexFullMatch<pattern="{p}">(x)'])


def tokens(attr):
    return model("string[N] x", "string[N,K] y", [f'y = com.microsoft.Tokenizer<mark=0, pad_value="", mincharnum=1, {attr}>(x)'])


def separators(n, length):
    # Pseudo-random letters.
    letter = lambda i, j: "abcd"[(i * 7919 + j * j * 31 + i * j) % 4]
    return tokens("separators=[%s]" % ", ".join('"%s"' % "".join(letter(i, j) for j in range(length)) for i in range(n)))


def parameters(n):
    return model(floats(4, (f"x{i}" for i in range(n))), f"float[{4 * n}] y", [f"y = Concat<axis=0>({', '.join(f'x{i}' for i in range(n))})"])


def folded(n):
    """Constants that double."""
    return model("float[2] x", "float[2] y", ["c0 = Constant<value_floats = [1.0, 2.0]>()", *[f"c{i + 1} = Concat<axis=0>(c{i}, c{i})" for i in range(n)], f"s = ReduceSum<keepdims=0>(c{n})", "y = Add(x, s)"])


# Name, model, codes of which one is told, or None for a model that compiles; whether the test suite runs it.
LIMIT = ["E0210"]
BOMBS = [
    ("functions that double, 8 levels", lambda: doubling(8), None, True),
    ("functions that double, 40 levels", lambda: doubling(40), LIMIT, True),
    ("dead functions that double", lambda: doubling(40, True), LIMIT, True),
    ("nested Ifs", lambda: nested_branches(40), None, True),
    ("nested Loops, 6", lambda: nested_loops(6), None, True),
    ("nested Loops, 30", lambda: nested_loops(30), None, True),
    ("results of two ranks, 4", lambda: ranks_of_branches(4), None, True),
    ("results of two ranks, 24", lambda: ranks_of_branches(24), LIMIT, True),
    ("Transpose of 32 names", lambda: transposed(32), None, True),
    ("Transpose of 256 names", lambda: transposed(256), LIMIT, True),
    ("ReduceSum of 32 names", lambda: reduced(32), None, True),
    ("ReduceSum of 40 names", lambda: reduced(40), LIMIT, True),
    ("a name of 40 kB", lambda: polynomial(20000), None, True),
    ("2000 dimensions of 1", lambda: model(f"float[{','.join('1' * 2000)}] x", "float[1] y", ["y = Neg(x)"]), LIMIT, True),
    ("repeated repetition", lambda: pattern("((a{100}){100}){100}"), ["E0106", *LIMIT], False),
    ("a pattern of 2^19 states", lambda: pattern("(a|b)*a(a|b){18}"), ["E0106", *LIMIT], False),
    ("tokens of 2^19 states", lambda: tokens('tokenexp="(a|b)*a(a|b){18}"'), ["E0106", *LIMIT], False),
    ("32 separators", lambda: separators(32, 20), None, True),
    ("1000 separators", lambda: separators(1000, 1000), LIMIT, True),
    ("900 inputs", lambda: parameters(900), None, False),
    ("4000 inputs", lambda: parameters(4000), LIMIT, True),
    ("Sum of 10,000", lambda: total(10000), None, False),
    ("constants that double", lambda: folded(40), None, True),
    ("20,000 Neg", lambda: chain("Neg")(20000), None, False),
]


def main():
    args = sys.argv[1:]
    exe, full = args[0], "--full" in args
    only = args[args.index("--only") + 1] if "--only" in args else ""
    faults = []
    with tempfile.TemporaryDirectory() as work:
        path, out = os.path.join(work, "m.onnxtxt"), os.path.join(work, "m.o")

        def once(text, seconds=resource.RLIM_INFINITY):
            """Status, processor time, peak memory in bytes, messages. The kernel ends what takes far too much."""
            with open(path, "w") as f:
                f.write(text)

            def guard():
                resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

            with tempfile.TemporaryFile("w+") as err:
                p = subprocess.Popen([exe, path, "-o", out, "--name", "m"], stdout=subprocess.DEVNULL, stderr=err, preexec_fn=guard)
                _, status, used = os.wait4(p.pid, 0)
                p.returncode = os.waitstatus_to_exitcode(status)
                err.seek(0)
                return p.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, err.read()

        def least(text, runs=3):
            results = [once(text) for _ in range(runs)]
            for code, *_, err in results:
                assert code == 0, err[-2000:]
            return min(r[1] for r in results), min(r[2] for r in results)

        empty = least(chain("Relu")(1))
        for name, make, small, large in GROWTH:
            if only not in name:
                continue
            first = large if full else small
            sizes = [first * k for k in ((1, 2, 4, 8) if full else (1, 8))]
            points = [least(make(n), 1 if full else 3) for n in sizes]
            step = math.log(sizes[-1] / sizes[0])
            time, memory = (math.log(max(b - e, 1e-9) / max(a - e, 1e-9)) / step for a, b, e in zip(points[0], points[-1], empty))
            print(f"{name:34} n^{time:.2f} time, n^{memory:.2f} memory   " + ", ".join(f"{n}: {t:.2f} s {m / MB:.0f} MB" for n, (t, m) in zip(sizes, points)), flush=True)
            # Less than an empty model's memory is nothing that grows.
            grows = points[-1][1] > 2 * empty[1]
            if time > TIME or grows and memory > MEMORY:
                faults.append(f"{name}: n^{time:.2f} time, n^{memory:.2f} memory")
        unit = least(chain("Softmax", attrs="<axis=-1>")(300))[0]
        for name, make, codes, quick in BOMBS:
            if not (full or quick) or only not in name:
                continue
            text = make()
            most = TIMES * unit * max(1, len(text) / MB)
            code, time, memory, err = once(text, math.ceil(most) + 1)
            told = [c for c in codes or [] if f"error[{c}]" in err]
            fine = (code == 0 if codes is None else code == 1 and told) and time <= most and memory <= BYTES + 4 * len(text)
            print(f"{name:34} {'compiled' if code == 0 else ' '.join(told) or f'status {code}'}, {time / unit:.1f} chains, {memory / MB:.0f} MB", flush=True)
            if not fine:
                faults.append(f"{name}: status {code}, {time / unit:.1f} chains of 300, {memory / MB:.0f} MB\n{err[-1500:]}")
    if faults:
        sys.exit("\n".join(["", *faults]))


main()
