"""What goes to and comes from driver.c. The head of driver.c tells the format."""
import pathlib
import struct
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import abi

NONE, TENSOR, SEQUENCE, MAP = range(4)
# Types that numpy does not have are exchanged as unsigned integers of the same bits.
RAW = {16: "uint16", **{t: "uint8" for t in (17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28)}}
VERDICTS = {-1: "signal", -2: "disturbed", -3: "negative", -4: "absurd", -5: "too large", -6: "unknown status", -7: "different", -8: "misuse"}
TOO_LARGE = -5


def number(v):
    return struct.pack("<q", v)


def text(s):
    return number(len(s)) + s


def elements(a, dtype):
    """Elements of an array of ONNX's element type `dtype`."""
    a = np.asarray(a)
    if dtype == abi.STRING:
        parts = [s if isinstance(s, bytes) else str(s).encode() for s in a.astype(object).reshape(-1)]
        return number(len(parts)) + b"".join(text(s) for s in parts)
    if dtype in RAW:
        a = a.view(RAW[dtype])
    a = a.astype(abi.DTYPES[dtype], copy=False)
    a = abi.pack(a, abi.PACKED[dtype]) if dtype in abi.PACKED else np.ascontiguousarray(a)
    return text(a.tobytes())


def value(v, dtype, key_dtype):
    """None, an array, a list or a dict."""
    if v is None:
        return number(NONE)
    if isinstance(v, (list, tuple)):
        return number(SEQUENCE) + number(len(v)) + b"".join(value(x, dtype, key_dtype) for x in v)
    if isinstance(v, dict):
        keys, values = (np.array(list(x), dtype=object if t == abi.STRING else None) for x, t in ((v.keys(), key_dtype), (v.values(), dtype)))
        return number(MAP) + number(key_dtype) + number(dtype) + number(len(v)) + elements(keys, key_dtype) + elements(values, dtype)
    a = np.asarray(v)
    return number(TENSOR) + number(dtype) + number(a.ndim) + b"".join(number(d) for d in a.shape) + elements(a, dtype)


def element_types(t):
    """(dtype, key dtype) of what a type holds, however deep."""
    kind = t.WhichOneof("value")
    if kind == "tensor_type":
        return t.tensor_type.elem_type, 0
    if kind == "map_type":
        return element_types(t.map_type.value_type)[0], t.map_type.key_type
    return element_types(getattr(t, kind).elem_type)


def request(inputs, feeds, wanted):
    """A call. `inputs` are value infos, `feeds` has a value for each name, and `wanted` asks for the outputs."""
    out = [number(int(wanted)), number(len(inputs))]
    for i in inputs:
        out.append(text(i.name.encode()))
        v = feeds[i.name]
        dtype, key_dtype = element_types(i.type)
        if i.type.HasField("tensor_type"):
            a = np.asarray(v)
            out += [number(a.ndim), *[number(d) for d in a.shape], elements(a, dtype)]
        else:
            out.append(value(v, dtype, key_dtype))
    return b"".join(out)


class Reply:
    """What the driver says about one request."""

    def __init__(self, data, at):
        """Raises struct.error where the data end."""
        self.data, self.at = data, at
        self.verdict = self.number()
        self.note = self.take(self.number()).decode(errors="replace")
        self.calls = self.number()
        n = self.number()
        if self.at + n > len(data):
            raise struct.error("the reply ends early")
        self.begin, self.end = self.at, self.at + n

    def take(self, n):
        if self.at + n > len(self.data):
            raise struct.error("the reply ends early")
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self):
        return struct.unpack("<q", self.take(8))[0]

    def elements(self, dtype, n):
        if dtype == abi.STRING:
            assert self.number() == n
            return np.array([self.take(self.number()).decode() for _ in range(n)] + [None], dtype=object)[:n]
        raw = np.frombuffer(self.take(self.number()), np.uint8)
        return abi.unpack(raw, abi.PACKED[dtype], (n,)) if dtype in abi.PACKED else raw.view(abi.DTYPES[dtype])

    def tensor(self):
        dtype = self.number()
        shape = [self.number() for _ in range(self.number())]
        return dtype, self.elements(dtype, int(np.prod(shape, dtype=np.int64))).reshape(shape)

    def value(self):
        kind = self.number()
        if kind == NONE:
            return None
        if kind == TENSOR:
            return self.tensor()[1]
        if kind == SEQUENCE:
            return [self.value() for _ in range(self.number())]
        key_dtype, dtype, n = self.number(), self.number(), self.number()
        keys = self.elements(key_dtype, n)
        return dict(zip(keys.tolist(), self.elements(dtype, n).tolist()))

    def outputs(self, infos):
        """(dtype or None, array or value) of each output."""
        self.at = self.begin
        return [self.tensor() if o.type.HasField("tensor_type") else (None, self.value()) for o in infos]


def replies(data):
    out, at = [], 0
    while at < len(data):
        try:
            out.append(Reply(data, at))
        except struct.error:
            break
        at = out[-1].end
    return out
