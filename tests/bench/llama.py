"""llama.cpp as a contestant of llm.py: a model of given sizes with random Q4_0 weights, in a process of its own.

    llama.py FOLDER

It needs the packages llama-cpp-python, built from its source distribution so that the code is for this machine
(`CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python`), and gguf. Jobs are JSON lines on
standard input, answers JSON lines on standard output, as in worker.py:

    {"do": "load", "sizes": {..}, "threads": N, "positions": N}    makes the model (once for equal sizes) and a context
    {"do": "phase", "tokens": N, "past": N}                        fills the caches
    {"do": "time", "seconds": S}                                   seconds of each call
"""
import ctypes as ct
import functools
import hashlib
import json
import os
import sys

import numpy as np

from worker import python_samples, serve


def write_model(path, s):
    """A decoder of Qwen2's architecture: layers, hidden, heads, kv_heads, head, ffn, vocabulary."""
    import gguf
    rng, w = np.random.default_rng(1), gguf.GGUFWriter(path, "qwen2")
    w.add_block_count(s["layers"])
    w.add_context_length(1 << 15)
    w.add_embedding_length(s["hidden"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_key_length(s["head"])
    w.add_value_length(s["head"])
    w.add_rope_freq_base(1e6)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_vocab_size(s["vocabulary"])
    w.add_tokenizer_model("none")

    def vector(name, n, mean, std):
        w.add_tensor(name, (mean + std * rng.standard_normal(n)).astype(np.float32))

    def matrix(name, rows, depth):
        # Blocks of 32: an f16 scale and 16 bytes.
        blocks = np.empty((rows, depth // 32, 18), np.uint8)
        blocks[..., 2:] = rng.integers(0, 256, (rows, depth // 32, 16), dtype=np.uint8)
        scale = (rng.uniform(0.75, 1.25, (rows, depth // 32, 1)) * 0.7 / 4.6 / np.sqrt(depth)).astype(np.float16)
        blocks[..., :2] = scale.view(np.uint8)
        w.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    q, kv = s["heads"] * s["head"], s["kv_heads"] * s["head"]
    matrix("token_embd.weight", s["vocabulary"], s["hidden"])
    for i in range(s["layers"]):
        b = f"blk.{i}."
        for n in ("attn_norm", "ffn_norm"):
            vector(b + n + ".weight", s["hidden"], 1, 0.1)
        for n, rows in (("q", q), ("k", kv), ("v", kv)):
            matrix(f"{b}attn_{n}.weight", rows, s["hidden"])
            vector(f"{b}attn_{n}.bias", rows, 0, 0.1)
        matrix(b + "attn_output.weight", s["hidden"], q)
        matrix(b + "ffn_gate.weight", s["ffn"], s["hidden"])
        matrix(b + "ffn_up.weight", s["ffn"], s["hidden"])
        matrix(b + "ffn_down.weight", s["hidden"], s["ffn"])
    vector("output_norm.weight", s["hidden"], 1, 0.1)
    matrix("output.weight", s["vocabulary"], s["hidden"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Llama:
    """A context: caches of f16, as they are by default."""

    def __init__(self, work):
        import llama_cpp
        self.c, self.work, self.model, self.context, self.of = llama_cpp, work, None, None, None
        self.silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.silent, ct.c_void_p(0))
        llama_cpp.llama_backend_init()

    def load(self, sizes, threads, positions):
        c = self.c
        if self.context:
            c.llama_free(self.context)
            self.context = None
        if sizes != self.of:
            if self.model:
                c.llama_model_free(self.model)
            name = hashlib.sha256(json.dumps(sizes, sort_keys=True).encode()).hexdigest()[:16]
            path = os.path.join(self.work, name + ".gguf")
            if not os.path.exists(path):
                write_model(path + ".part", sizes)
                os.replace(path + ".part", path)
            self.model, self.of = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params()), sizes
            if not self.model:
                raise RuntimeError("llama.cpp does not load the model")
        p = c.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch = positions, 512, 512, threads, threads
        self.context = c.llama_init_from_model(self.model, p)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context")
        self.memory, self.vocabulary = c.llama_get_memory(self.context), sizes["vocabulary"]

    def batch(self, first, n):
        """Tokens at `n` positions, of each of which the logits are wanted, as ONNX models give them."""
        b, rng = self.c.llama_batch_init(n, 0, 1), np.random.default_rng(first)
        b.n_tokens = n
        for i in range(n):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = int(rng.integers(self.vocabulary)), first + i, 1, 0, 1
        return b

    def decode(self, b):
        status = self.c.llama_decode(self.context, b)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def phase(self, tokens, past):
        self.c.llama_memory_clear(self.memory, True)
        for first in range(0, past, 512):
            b = self.batch(first, min(512, past - first))
            self.decode(b)
            self.c.llama_batch_free(b)
        self.step, self.past = self.batch(past, tokens), past
        self.call()

    def call(self):
        self.decode(self.step)
        self.c.llama_get_logits(self.context)
        self.c.llama_memory_seq_rm(self.memory, 0, self.past, -1)


def do(llama, job):
    # Made by a job, so that the answer says which package is missing.
    llama = llama()
    if job["do"] == "load":
        llama.load(job["sizes"], job["threads"], job["positions"])
    elif job["do"] == "phase":
        llama.phase(job["tokens"], job["past"])
    else:
        return {"samples": list(python_samples(llama.call, job["seconds"]))}
    return {}


def main():
    serve(lambda: functools.cache(lambda: Llama(sys.argv[1])), do)


if __name__ == "__main__":
    main()
