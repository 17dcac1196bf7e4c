#!/usr/bin/env bash
# `make test`: builds everything and runs every test; lists what was skipped, and why. The CUDA
# kernels are compiled by an nvcc and an NVRTC from PyPI, where there is a network.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh
preset=${1:-cpu}

step "packages"
ensure_packages
ensure_cuda_tools
step "configure (build/$preset)"
configure "$preset"
step "build"
cmake --build --preset "$preset"
step "test"
status=0
ctest --test-dir "build/$preset" -j "$(nproc)" --output-on-failure --progress \
    --output-junit junit.xml || status=$?

# The skipped, with the reasons that the tests printed; then the line that counts.
python=$(command -v python3 || true)
if [ -n "$python" ]; then
    "$python" scripts/summarize_junit.py "build/$preset/junit.xml"
fi
exit "$status"
