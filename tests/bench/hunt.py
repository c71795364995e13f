"""Times random operators and blocks beside ONNX Runtime and OpenVINO, with sizes as numbers and as symbols, and prints the worst.

    hunt.py ONNXC [--count 200] [--seed 1] [--family NAMES] [--worst 20] [--report FILE] [--keep DIR]
    hunt.py ONNXC --case FAMILY:INDEX [--keep DIR]

A ratio is the better peer's time over ours; outputs are compared with the first peer that runs. See README.md.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
import hunt_cases
from cases import Case
from compare import Worker, compile_ours, difference, read_results

PEERS = ["onnxruntime", "openvino"]
FORMS = ["numbers", "symbols"]


class Pool:
    """A process for each contestant and form. They live through many cases, since their libraries load slowly."""

    def __init__(self, work, contestants):
        self.work, self.contestants = work, contestants
        self.workers = {}

    def ask(self, kind, form, **job):
        key = kind, form
        if key not in self.workers:
            self.workers[key] = Worker(kind, self.work)
        answer = self.workers[key].ask(**job)
        if self.workers[key].p.poll() is not None:
            del self.workers[key]
        return answer

    def end(self):
        for w in self.workers.values():
            w.end()
        self.workers = {}


def run_case(a, pool, family, index, work):
    """One row: both forms of a case, all contestants in turns."""
    b = hunt_cases.draw(family, a.seed, index)
    name = f"{family}_{a.seed}_{index}"
    *models, sizes = b.finish(name)
    row = {"case": f"{family}:{index}", "text": " > ".join(b.text), "sizes": sizes, "times": {}, "differences": {}, "errors": {}}
    feeds = os.path.join(work, "feeds.npz")
    np.savez(feeds, **b.feeds)
    running, reference = [], None
    for form, model in zip(FORMS, models):
        path = os.path.join(a.keep or work, f"{name}.{form}.onnx")
        onnx.save(model, path)
        row.setdefault("paths", {})[form] = path
        case = Case(name, form, path, sizes if form == "symbols" else {}, b.feeds, b.tolerance)
        outputs = {}
        for kind in [*pool.contestants, "onnxc"]:
            job = {"do": "load", "model": path, "feeds": feeds, "results": os.path.join(work, "out.npz"), "threads": 1, "inputs": case.inputs,
                   "outputs": case.dtypes, "dims": {}}
            error = None
            if kind == "onnxc":
                # A library of a name is loaded once in a process.
                library = os.path.join(work, f"{name}.{form}.so")
                error = compile_ours(a.onnxc, path, library, ["--cpu", a.cpu])
                job |= {"library": library, "name": "bench_model", "shapes": case.shapes(outputs) or [[1]]}
            if error is None:
                answer = pool.ask(kind, form, **job)
                error = None if answer["ok"] else answer["error"]
            if error is not None:
                row["errors"][f"{kind} {form}"] = error
                continue
            outputs[kind] = read_results(job["results"])
            if kind == "openvino" and any(f.dtype == np.float64 for f in b.feeds.values()):
                # OpenVINO computes f64 in f32: it gives the shapes only.
                continue
            running.append((kind, form))
            if reference is None:
                reference = outputs[kind]
            elif kind == "onnxc":
                row["differences"][form] = max((difference(g, w, case, k) for k, (g, w) in enumerate(zip(outputs[kind], reference))), default=0.0)
    for _ in range(a.rounds):
        for kind, form in running:
            answer = pool.ask(kind, form, do="time", seconds=a.seconds / a.rounds)
            if answer["ok"]:
                times = row["times"].setdefault(form, {})
                times[kind] = min(times.get(kind, float("inf")), answer["min"])
            else:
                row["errors"][f"{kind} {form}"] = answer["error"]
    for form in FORMS:
        times = row["times"].get(form, {})
        peers = [t for k, t in times.items() if k != "onnxc"]
        if "onnxc" in times and peers:
            row[form] = min(peers) / times["onnxc"]
        so = os.path.join(work, f"{name}.{form}.so")
        if os.path.exists(so):
            os.remove(so)
    ours = [row["times"].get(form, {}).get("onnxc") for form in FORMS]
    if all(ours):
        row["over"] = ours[1] / ours[0]
    return row


def kernels(a, row, form):
    """The kernels that take the most of a case, against the machine's limits."""
    sizes = [x for k, v in row["sizes"].items() for x in ("--size", f"{k}={v}")] if form == "symbols" else []
    r = subprocess.run([a.onnxc, "bench", row["paths"][form], "--per-node", "--json", "--seconds", "0.2", *sizes], capture_output=True, text=True)
    if r.returncode:
        return [r.stderr.strip()[-200:]]
    out = []
    for n in sorted(json.loads(r.stdout)["nodes"], key=lambda n: -n["share"])[:5]:
        amounts = n["amounts"] or {}
        flops, bytes_ = (amounts.get(k, 0.0) / 1e9 for k in ("flops_per_second", "bytes_per_second"))
        if n["share"] >= 0.08:
            out.append(f"{n['min'] * 1e6:9.1f} us  {n['share'] * 100:3.0f} %  {flops:6.1f} GFLOP/s  {bytes_:6.1f} GB/s  {n['op']} {n['kernel']}")
    return out


def line(row):
    def t(form, kind):
        v = row["times"].get(form, {}).get(kind)
        return f"{v * 1e6:.4g}" if v else "-"
    ratios = " ".join(f"{row[k]:5.2f}" if k in row else "    -" for k in ("numbers", "symbols", "over"))
    times = " | ".join("/".join(t(form, kind) for kind in ("onnxc", *PEERS)) for form in FORMS)
    wrong = "".join(f" DIFFERS {form} {d:.3g}" for form, d in row["differences"].items() if d > 1.0)
    failed = "".join(f" FAILED {e}: {why}" for e, why in row["errors"].items() if e.startswith("onnxc"))
    sizes = ",".join(f"{k}={v}" for k, v in row["sizes"].items())
    return f"{ratios}  {row['case']:<18} {times} us  {row['text']}  ({sizes}){wrong}{failed}"


def summary(rows):
    out = []
    for key, title in (("numbers", "numbers: best peer / ours"), ("symbols", "symbols: best peer / ours"), ("over", "ours: symbols / numbers")):
        v = np.array(sorted(r[key] for r in rows if key in r))
        if v.size:
            low = key != "over"
            tail = f"5th percentile {np.percentile(v, 5):.2f}, least {v[0]:.2f}, below 1: {(v < 1).sum()}" if low else f"95th percentile {np.percentile(v, 95):.2f}, most {v[-1]:.2f}"
            out.append(f"{title}: {v.size} cases, median {np.median(v):.2f}, {tail}")
    wrong = [r["case"] for r in rows if any(d > 1.0 for d in r["differences"].values())]
    failed = [r["case"] for r in rows if any(e.startswith("onnxc") for e in r["errors"])]
    out.append(f"different results: {' '.join(wrong) or 'none'}; failed: {' '.join(failed) or 'none'}")
    return out


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("onnxc", help="the program")
    p.add_argument("--count", type=int, default=200, help="cases, the families in turn")
    p.add_argument("--first", type=int, default=0, help="number of the first case")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--family", help=f"names separated by commas; default: all of {', '.join(hunt_cases.FAMILIES)}")
    p.add_argument("--case", metavar="FAMILY:INDEX", help="this case alone")
    p.add_argument("--worst", type=int, default=20, help="rows that are printed with their kernels")
    p.add_argument("--report", metavar="FILE", help="all rows as JSON")
    p.add_argument("--keep", metavar="DIR", help="folder that keeps the models")
    p.add_argument("--cpu", default="native", help="CPU level of the code")
    p.add_argument("--contestants", default=",".join(PEERS), help="the peers")
    p.add_argument("--seconds", type=float, default=0.12, help="time for each contestant and form of a case")
    p.add_argument("--rounds", type=int, default=6, help="turns into which that time is cut")
    a = p.parse_args()
    a.families = a.family.split(",") if a.family else list(hunt_cases.FAMILIES)
    unknown = set(a.families) - set(hunt_cases.FAMILIES)
    if unknown:
        p.error(f"unknown family {', '.join(unknown)}")
    return a


def main():
    a = arguments()
    if a.keep:
        os.makedirs(a.keep, exist_ok=True)
    wanted = [(a.families[i % len(a.families)], i) for i in range(a.first, a.first + a.count)]
    if a.case:
        family, index = a.case.split(":")
        wanted = [(family, int(index))]
    rows = []
    with tempfile.TemporaryDirectory() as work:
        pool = Pool(work, a.contestants.split(","))
        for i, (family, index) in enumerate(wanted):
            row = run_case(a, pool, family, index, work)
            rows.append(row)
            print(line(row), flush=True)
            if i % 40 == 39:
                # Libraries stay in a process that loaded them.
                pool.end()
            if a.report:
                with open(a.report, "w") as f:
                    json.dump(rows, f, indent=1)
        pool.end()
        ranked = sorted((min(r.get("numbers", 9e9), r.get("symbols", 9e9), 1 / r.get("over", 1e-9)), k) for k, r in enumerate(rows))
        print("\nworst:")
        for value, k in ranked[:a.worst]:
            row = rows[k]
            print(line(row))
            form = "numbers" if row.get("numbers", 9e9) <= 1.2 * row.get("symbols", 9e9) else "symbols"
            if "onnxc" in row["times"].get(form, {}):
                print("\n".join("    " + l for l in kernels(a, row, form)))
    print("\n" + "\n".join(summary(rows)))
    sys.exit(1 if any(d > 1.0 for r in rows for d in r["differences"].values()) else 0)


if __name__ == "__main__":
    main()
