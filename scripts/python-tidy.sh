#!/usr/bin/env bash
# clang-tidy on the Python package's C++ files (python/src), which need the headers of apache-tvm-ffi.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh
. scripts/python-steps.sh
ensure_packages
ensure_packages scripts/packages-dev.txt
ensure_packages scripts/packages-python.txt
python_environment
cmake -S python -B build/python-tidy -G Ninja -DPython_EXECUTABLE="$python" \
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null
find python/src -name '*.cpp' | sort |
    xargs -P "$(nproc)" -n 1 clang-tidy -p build/python-tidy --quiet --warnings-as-errors='*'
