"""Builds the wheel (PEP 517): the program and the package beside it. There is no extension module, so this is a zip archive
with a few lines of metadata, and needs no other package and no network.

The program is built with cargo. ONNXC_PROGRAM names one that is there already: then Rust is not needed.
"""
import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import sysconfig
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
EXE = "onnxc.exe" if os.name == "nt" else "onnxc"


def _version():
    with open(os.path.join(ROOT, "Cargo.toml"), encoding="utf-8") as f:
        return re.search(r'^version = "(.*)"', f.read(), re.M).group(1)


def _tag():
    name = sysconfig.get_platform()
    if name.endswith("universal2"):
        # The program is for one architecture.
        name = name.replace("universal2", platform.machine())
    return f"py3-none-{re.sub('[-.]', '_', name)}"


def _metadata():
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
        text = f.read()
    return "\n".join([
        "Metadata-Version: 2.1",
        "Name: onnxc",
        f"Version: {_version()}",
        "Summary: Ahead-of-time compiler from ONNX models to native code",
        "License: MIT OR Apache-2.0",
        "Requires-Python: >=3.9",
        "Requires-Dist: numpy>=1.22",
        "Provides-Extra: test",
        'Requires-Dist: pytest; extra == "test"',
        "Description-Content-Type: text/markdown",
        "",
        text,
    ])


def _program():
    program = os.environ.get("ONNXC_PROGRAM")
    if program:
        return program
    target = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")))
    command = ["cargo", "build", "--release", "--locked", "--bin", "onnxc", "--target-dir", target]
    try:
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    except FileNotFoundError:
        raise SystemExit("cargo is not there: install Rust (https://rustup.rs), or name a program with ONNXC_PROGRAM") from None
    return os.path.join(target, "release", EXE)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517."""
    base = f"onnxc-{_version()}"
    files = []
    for name in sorted(os.listdir(os.path.join(HERE, "onnxc"))):
        if name.endswith(".py"):
            files.append((f"onnxc/{name}", os.path.join(HERE, "onnxc", name), 0o644))
    files.append((f"{base}.data/scripts/{EXE}", _program(), 0o755))
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        files.append((f"{base}.dist-info/licenses/{name}", os.path.join(ROOT, name), 0o644))
    texts = {
        f"{base}.dist-info/METADATA": _metadata(),
        f"{base}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: onnxc\nRoot-Is-Purelib: false\nTag: {_tag()}\n",
    }
    record = []
    wheel = f"{base}-{_tag()}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED, compresslevel=6) as z:
        def add(name, data, mode=0o644):
            # The same contents give the same wheel.
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = (0o100000 | mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(info, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        for name, path, mode in files:
            with open(path, "rb") as f:
                add(name, f.read(), mode)
        for name, text in texts.items():
            add(name, text.encode())
        z.writestr(zipfile.ZipInfo(f"{base}.dist-info/RECORD", (1980, 1, 1, 0, 0, 0)),
                   "".join(record) + f"{base}.dist-info/RECORD,,\n")
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    """The sources are the repository's: there is no archive of their Python part alone."""
    raise RuntimeError("build a wheel from the repository: pip wheel ./python")
