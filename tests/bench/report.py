"""Tables and charts of compare.py's rows, written by hand: no plotting package."""
import json
import math
import os
from html import escape

PEERS = ["onnxruntime", "openvino"]
SHOWN = {"onnxc": "onnxc", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
NAMES = ["results.json", "results.md", "results.svg"]


def key(row):
    return row["model"], row["binding"], row["threads"]


def best_peer(row):
    """The fastest peer that ran and agreed."""
    times = [(e["min"], k) for k in PEERS if "min" in (e := row["contestants"].get(k, {})) and e.get("difference", 0.0) <= 1.0]
    return min(times, default=None)


def ratio(row):
    """Best peer's time by ours; none unless both are right."""
    ours, peer = row["contestants"].get("onnxc", {}), best_peer(row)
    if peer is None or "min" not in ours or ours.get("difference", 0.0) > 1.0:
        return None
    return peer[0] / ours["min"]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def cell(e):
    if not e:
        return "-"
    if "error" in e:
        return "failed"
    text = milliseconds(e["min"]) if "min" in e else "-"
    d = e.get("difference", 0.0)
    return text if d <= 1.0 else f"{text} (differs, {d:.2g} x tolerance)"


def milliseconds(s):
    ms = s * 1e3
    return f"{ms:.1f}" if ms >= 100 else f"{ms:.2f}" if ms >= 10 else f"{ms:.3f}" if ms >= 1 else f"{ms:.4f}" if ms >= 0.01 else f"{ms:.6f}"


def percent_of_peak(row, e):
    peak = (row.get("peak") or {}).get("flops")
    return f"{row['flops'] / e['min'] / peak * 100:.0f} %" if peak and row.get("flops") and "min" in e else "-"


def line(row):
    cells = "  ".join(f"{SHOWN[k]} {cell(e)}" for k, e in row["contestants"].items())
    r = ratio(row)
    notes = "".join(f"\n    {SHOWN[k]}: {e['error']}" for k, e in row["contestants"].items() if "error" in e)
    return f"{row['model']}/{row['binding']}/{row['threads']}: {cells}" + (f"  ratio {r:.2f}" if r else "") + notes


def markdown(rows, contestants, machine):
    """The table. Milliseconds are the least of many calls."""
    peak = any((r.get("peak") or {}).get("flops") and r.get("flops") for r in rows)
    head = ["model", "binding", "threads"] + [f"{SHOWN[c]} ms" for c in contestants]
    if "onnxc" in contestants:
        head += ["best peer / onnxc"]
    if peak:
        head += [f"{SHOWN[c]} % of FMA peak" for c in contestants]
    out = [f"{machine['cpu']}, {machine['cpus']} CPUs; least time of one call.", "", "| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    for r in rows:
        cells = [r["model"], r["binding"], str(r["threads"])] + [cell(r["contestants"].get(c)) for c in contestants]
        if "onnxc" in contestants:
            cells += [f"{x:.2f}" if (x := ratio(r)) else "-"]
        if peak:
            cells += [percent_of_peak(r, r["contestants"].get(c, {})) for c in contestants]
        out.append("| " + " | ".join(cells) + " |")
    out.append("")
    for t in sorted({r["threads"] for r in rows}):
        values = [x for r in rows if r["threads"] == t and (x := ratio(r))]
        if values:
            out.append(f"{t} thread{'s' if t > 1 else ''}: geometric mean {geometric_mean(values):.2f} over {len(values)} rows, least {min(values):.2f}.")
    shared = [key(r) for r in rows if any(e.get("foreign", 0.0) > 0.3 for e in r["contestants"].values())]
    if shared:
        out.append(f"\nIn {len(shared)} of {len(rows)} rows other processes used more than 0.3 CPUs even in the quietest round of a contestant: " +
                   ", ".join("/".join(map(str, k)) for k in shared) + ".")
    failed = [f"* {SHOWN[k]}, {r['model']}/{r['binding']}, {r['threads']} threads: {' '.join(e['error'].split())}" for r in rows for k, e in r["contestants"].items() if "error" in e]
    return "\n".join(out + ([""] + failed if failed else [])) + "\n"


def svg(rows):
    """Bars of best peer / onnxc on a logarithmic axis: from the line at 1.0 to the right where onnxc is ahead."""
    bars = [(r, x) for r in rows if (x := ratio(r))]
    left, width, step, top = 250, 560, 22, 58
    far = max([abs(math.log2(x)) for _, x in bars] + [1.0])
    far = math.ceil(far)
    middle, unit = left + width / 2, width / 2 / far
    height = top + step * len(bars) + 30
    color = {t: c for t, c in zip(sorted({r["threads"] for r in rows}), ["#2b6cb0", "#d97706", "#2f855a", "#805ad5"] * 4)}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 70}" height="{height}" viewBox="0 0 {left + width + 70} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="18" font-size="14" font-weight="bold">Time of the best peer / time of onnxc</text>']
    x = left
    for t, c in color.items():
        out.append(f'<rect x="{x}" y="26" width="11" height="11" fill="{c}"/><text x="{x + 15}" y="36">{t} thread{"s" if t > 1 else ""}</text>')
        x += 90
    for p in range(-far, far + 1):
        x = middle + p * unit
        out.append(f'<line x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{height - 22}" stroke="{"#222" if p == 0 else "#ddd"}" stroke-width="{1.5 if p == 0 else 1}"/>')
        out.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#444">{2.0**p:g}</text>')
    last = None
    for i, (r, v) in enumerate(bars):
        y, w = top + i * step, math.log2(v) * unit
        label = f"{r['model']}/{r['binding']}"
        if label != last:
            out.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(label[:38])}</text>')
        last = label
        title = f"{label}, {r['threads']} threads: {v:.2f} ({SHOWN[best_peer(r)[1]]})"
        out.append(f'<rect x="{min(middle, middle + w):.1f}" y="{y + 2}" width="{max(abs(w), 0.5):.1f}" height="{step - 6}" fill="{color[r["threads"]]}"><title>{escape(title)}</title></rect>')
        anchor = "start" if w >= 0 else "end"
        out.append(f'<text x="{middle + w + (5 if w >= 0 else -5):.1f}" y="{y + 14}" text-anchor="{anchor}">{v:.2f}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def write(folder, rows, a, machine, append):
    """results.json, results.md and results.svg; with `append` the rows of earlier runs stay unless measured again."""
    os.makedirs(folder, exist_ok=True)
    data, table, chart = (os.path.join(folder, n) for n in NAMES)
    if append and os.path.exists(data):
        with open(data) as f:
            old = json.load(f)["rows"]
        new = {key(r): r for r in rows}
        rows = [new.pop(key(r), r) for r in old] + list(new.values())
    contestants = [c for c in SHOWN if any(c in r["contestants"] for r in rows)]
    with open(data, "w") as f:
        json.dump({"machine": machine, "rows": rows}, f, indent=1)
    with open(table, "w") as f:
        f.write(markdown(rows, contestants, machine))
    with open(chart, "w") as f:
        f.write(svg(rows))
