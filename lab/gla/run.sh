#!/usr/bin/env bash
# Compiles the kernel's configurations and the program beside this file, then runs it.
# Usage: run.sh [build directory]    BUILD_ONLY=1: no GPU needed; CHECK_ONLY=1: no timing;
# CUDA_SOURCE: another copy of src/cuda
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
src=${CUDA_SOURCE:-$here/../../src/cuda}
out=${1:-$here/../../build/lab-gla}
mkdir -p "$out"
arch="-gencode arch=compute_90a,code=sm_90a"

# name: keys, key parts, math groups, stages, teams, state only, registers of prepare and math, a load role,
# paired
while read -r name keys parts math stages teams only prepare_registers math_registers load_role paired; do
    # shellcheck disable=SC2086
    nvcc -std=c++20 -O3 -lineinfo $arch -I "$src" -cubin -o "$out/$name.cubin" -Xptxas -v \
        -DSLUICE_KEYS="$keys" -DSLUICE_KEY_PARTS="$parts" -DSLUICE_MATH_GROUPS="$math" -DSLUICE_STAGES="$stages" \
        -DSLUICE_TEAMS="$teams" -DSLUICE_STATE_ONLY="$only" -DSLUICE_LOAD_ROLE="$load_role" \
        -DSLUICE_PAIRED="$paired" \
        -DSLUICE_PREPARE_REGISTERS="$prepare_registers" -DSLUICE_MATH_REGISTERS="$math_registers" \
        -DSLUICE_INPUT=kBFloat16 -DSLUICE_GATE=kBFloat16 "$here/kernel.cu" 2>&1 |
        grep -E 'error|spill|C75' | sed "s/^/$name: /"
done <"$here/configurations.txt"
# shellcheck disable=SC2086
nvcc -std=c++20 -O2 $arch -I "$src" -o "$out/check" "$here/check.cu" -lcuda -cudart static
! command -v cuobjdump >/dev/null || "$here/../operands.py" "$out"/*.cubin
[ -n "${BUILD_ONLY:-}" ] || "$out/check" "$out" ${CHECK_ONLY:+check}
