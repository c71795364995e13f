"""Compiles real networks ahead of time, links them, calls them through the C interface and compares with saved outputs.

    models.py ONNXC SUITE_DIR TOOLS_DIR WORK_DIR [--bench] [--keep] [NAME ...]

SUITE_DIR/NAME holds stripped.onnx, io.json and expected.npz; TOOLS_DIR holds inflate.py and make_inputs.py.
WORK_DIR gets the model, its object and its library, which go before the next model comes: together they take 6 GB.
--keep leaves them there, for another run.
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import abi

DEFAULT = """mlp_tiny mnist_cnn functions_mlp espcn unet resnet50 mobilenet_v2 efficientnet_b0 vit_b_16 vit_tiny_patch16_224
minilm bert_base whisper_tiny_encoder gpt2 distil_encoder_decoder lstm_tagger gru_kws depthwise_audio resnet18_fp16 resnet18_qdq_int8
mobilenet_v2_qdq_int8 vad_loop ssdlite320_mobilenet_v3 gbdt text_tfidf rf_iris wav2vec2_small segformer_b0 convnext_tiny deeplabv3_mobilenet fasterrcnn_mobilenet""".split()


def best(f, seconds=1.0, least=3):
    t = 1e9
    end = time.perf_counter() + seconds
    n = 0
    while n < least or time.perf_counter() < end:
        a = time.perf_counter()
        f()
        t = min(t, time.perf_counter() - a)
        n += 1
    return t


def arrays(outputs):
    """The outputs as io.json lists them: a sequence of maps is the keys of the first and a matrix of values."""
    for out in outputs:
        if isinstance(out, list):
            yield np.array(list(out[0]))
            yield np.array([[m[k] for k in out[0]] for m in out])
        else:
            yield out


def ort_session(path):
    import onnxruntime as ort
    o = ort.SessionOptions()
    o.intra_op_num_threads = 1
    o.log_severity_level = 3
    return ort.InferenceSession(path, o, providers=["CPUExecutionProvider"])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("onnxc")
    p.add_argument("suite")
    p.add_argument("tools")
    p.add_argument("work")
    p.add_argument("--bench", action="store_true")
    p.add_argument("--keep", action="store_true")
    p.add_argument("--seconds", type=float, default=1.0)
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    sys.path.insert(0, a.tools)
    import make_inputs
    os.makedirs(a.work, exist_ok=True)
    bad = 0
    done = None
    for name in [*(a.names or DEFAULT), None]:
        if done and not a.keep:
            for end in (".onnx", ".o", ".h", ".so"):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(done + end)
        if not name:
            break
        d = os.path.join(a.suite, name)
        done = path = os.path.join(a.work, name)
        io = json.load(open(os.path.join(d, "io.json")))
        expected = np.load(os.path.join(d, "expected.npz"))
        if not os.path.exists(path + ".onnx"):
            subprocess.run([sys.executable, os.path.join(a.tools, "inflate.py"), os.path.join(d, "stripped.onnx"), path + ".onnx"], check=True, stdout=subprocess.DEVNULL)
        start = time.perf_counter()
        r = subprocess.run([a.onnxc, path + ".onnx", "-o", path + ".o"], capture_output=True, text=True)
        took = time.perf_counter() - start
        if r.returncode:
            print(f"{name}: FAILED to compile\n{r.stderr[:2000]}")
            bad += 1
            continue
        abi.link([path + ".o"], path + ".so")
        model = abi.Model(path + ".so", name)
        session = ort_session(path + ".onnx") if a.bench else None
        for b in io["bindings"]:
            feeds = make_inputs.make_binding(b)
            try:
                run, outs = model.prepare(feeds, [o["shape"] for o in b["outputs"]])
                run()
            except (RuntimeError, AssertionError) as e:
                print(f"{name}/{b['name']}: FAILED {e}")
                bad += 1
                continue
            worst = 0.0
            ok = True
            for o, got in zip(b["outputs"], arrays(outs)):
                want = expected[o["key"]]
                if list(got.shape) != list(o["shape"]):
                    print(f"{name}/{b['name']}: shape {got.shape}, expected {o['shape']}")
                    ok = False
                    continue
                have = got.reshape(-1)[:: o["stride"]][: want.size]
                if have.dtype == object:
                    ok &= have.tolist() == want.reshape(-1).astype(object).tolist()
                    continue
                have, want = have.astype(np.float64), want.astype(np.float64)
                err = np.abs(have - want).max() / max(o.get("absmax") or 1.0, 1e-30) if want.size else 0.0
                tol = o.get("suggested_tol_over_absmax") or 0.0  # Integers are exact.
                ok &= bool(np.isfinite(have).all() and err <= tol)
                worst = max(worst, err / tol if tol else float(err > 0))
            note = ""
            if a.bench:
                f = {k: v for k, v in feeds.items()}
                ours = theirs = 1e9
                for _ in range(3):
                    ours = min(ours, best(run, a.seconds / 3, 1))
                    theirs = min(theirs, best(lambda: session.run(None, f), a.seconds / 3, 1))
                note = f"  {ours * 1e3:9.3f} ms, onnxruntime {theirs * 1e3:9.3f} ms, ratio {theirs / ours:5.2f}"
            print(f"{name}/{b['name']}: {'ok' if ok else 'WRONG'}  error/tolerance {worst:.3f}{note}  (compiled in {took:.2f} s)", flush=True)
            bad += not ok
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
