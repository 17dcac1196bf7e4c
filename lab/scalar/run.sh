#!/usr/bin/env bash
# Compiles the kernel's configurations and the program beside this file, then runs it.
# Usage: run.sh [build directory]    BUILD_ONLY=1: no GPU needed; CHECK_ONLY=1: no timing
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
src=$here/../../src/cuda
out=${1:-$here/../../build/lab-scalar}
mkdir -p "$out"
arch="-gencode arch=compute_90a,code=sm_90a"

# name: keys, heads, tiles, gate, skip, gated, stages, input, scores shared; the first launch's
# heads, tiles, stages
while read -r name keys heads tiles gate skip gated stages input shared first; do
    for only in false true; do
        file=$name
        scores=$shared  # of the first launch's kernels there is one
        [ $only = false ] || {
            file=${name}_state scores=false skip=kNone gated=false
            read -r heads tiles stages <<<"$first"
        }
        # shellcheck disable=SC2086
        nvcc -std=c++20 -O3 -lineinfo $arch -I "$src" -cubin -o "$out/$file.cubin" -Xptxas -v \
            -DSLUICE_KEYS="$keys" -DSLUICE_HEADS="$heads" -DSLUICE_TILES="$tiles" \
            -DSLUICE_GATE="$gate" -DSLUICE_SKIP="$skip" -DSLUICE_GATED="$gated" \
            -DSLUICE_STATE_ONLY=$only -DSLUICE_STAGES="$stages" -DSLUICE_INPUT="$input" \
            -DSLUICE_SHARED_SCORES="$scores" -DSLUICE_NORMALIZED=false \
            "$here/kernel.cu" 2>&1 |
            grep -E 'error|warning|spill|C75' | sed "s/^/$file: /"
    done
done <"$here/configurations.txt"
cp "$here/configurations.txt" "$out"
# shellcheck disable=SC2086
nvcc -std=c++20 -O2 $arch -I "$src" -o "$out/check" "$here/check.cu" -lcuda -cudart static
! command -v cuobjdump >/dev/null || "$here/../operands.py" "$out"/*.cubin
[ -n "${BUILD_ONLY:-}" ] || "$out/check" "$out" ${CHECK_ONLY:+check}
