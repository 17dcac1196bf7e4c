#!/usr/bin/env bash
# Builds libsluice_call.so, what the scripts beside it call. Needs no GPU and no CUDA.
# Usage: build.sh [build directory]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
out=${1:-$root/build/peers}
cmake -S "$root" -B "$out" -DSLUICE_NATIVE=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DSLUICE_TESTS=OFF -DSLUICE_CLI=OFF -DSLUICE_EXAMPLES=OFF >/dev/null
cmake --build "$out" --target sluice --parallel "$(nproc)"
"${CXX:-g++}" -std=c++20 -O2 -fPIC -shared -fvisibility=hidden -I "$root/include" \
    -Wl,--exclude-libs,ALL -o "$out/libsluice_call.so" "$here/call.cpp" "$out/src/libsluice.a" \
    -lfmt -lgomp -ldl
