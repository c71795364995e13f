#!/bin/sh
# onnxc beside ONNX Runtime and OpenVINO on the machine at hand, in one command:
#
#     tests/bench/board.sh [MODEL...]
#
# Makes a Python environment with what compare.py needs, builds onnxc, times the models (as compare.py takes them) or, without any,
# products of matrices, convolutions and about 150 single operators, with one thread and with one for each core, and writes the
# table, the chart and the numbers to bench-results. Made for ARM boards, and works on every machine that has cargo, a C compiler and
# Python 3. A contestant without a package for this machine is left out. CPU=cortex-a55 and the like compiles for that core, SECONDS_EACH
# is the time for each contestant and row.
set -e
cd "$(dirname "$0")/../.."
venv=target/bench-venv
[ -x $venv/bin/python ] || python3 -m venv $venv
contestants=onnxc
while read -r package; do
    $venv/bin/pip install --quiet "$package" || echo "no package for this machine: $package"
done <tests/bench/requirements.txt
for module in onnxruntime openvino; do
    if $venv/bin/python -c "import $module" 2>/dev/null; then contestants=$contestants,$module; fi
done
cargo build --release
cores=$(getconf _NPROCESSORS_ONLN)
threads=1
[ "$cores" -gt 1 ] && threads=1,$cores
compare() {
    $venv/bin/python tests/bench/compare.py target/release/onnxc "$@" --contestants $contestants --threads $threads \
        --seconds "${SECONDS_EACH:-2}" ${CPU:+--cpu "$CPU"} --out bench-results --append
}
if [ $# -gt 0 ]; then
    compare "$@"
else
    compare --micro
    compare --operators
fi
