#!/usr/bin/env bash
# Builds libsluice_call.so, what the scripts beside it call, and beside it, in cubins/, the kernels
# that ship compiled (make cubins). Needs no GPU, and nvcc for the kernels alone.
# Usage: build.sh [build directory]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
out=$(realpath -m "${1:-$root/build/peers}")
cmake -S "$root" -B "$out" -DSLUICE_NATIVE=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DSLUICE_TESTS=OFF -DSLUICE_CLI=OFF -DSLUICE_EXAMPLES=OFF -DSLUICE_CUBINS="$out/cubins" >/dev/null
cmake --build "$out" --target sluice sluice_cubins --parallel "$(nproc)"
"${CXX:-g++}" -std=c++20 -O2 -fPIC -shared -fvisibility=hidden -I "$root/include" \
    -Wl,--exclude-libs,ALL,--strip-all -o "$out/libsluice_call.so" "$here/call.cpp" \
    "$out/src/libsluice.a" -lfmt -lgomp -ldl
"$out/bin/cubins" "$out/cubins" ||
    echo "$0: kernels that are not in $out/cubins will be compiled by their first call" >&2
