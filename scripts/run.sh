#!/usr/bin/env bash
# `make run`: from a clone to measured numbers.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh
sluice=build/cpu/bin/sluice
golden=tests/data/golden
mkdir -p report

cat <<'TXT'
Sluice: recurrent-state ("linear") attention. This will
  1. install missing packages   2. configure   3. build the library and the command
  4. verify golden files        5. run a tensor file      6. measure against softmax attention
  7. write a report
on the CPU and, where there is a Hopper GPU with a driver, on that too.
Four minutes or so the first time on two cores, more with packages to install; then half a minute.
TXT

step "packages"
ensure_packages

step "configure (build/cpu)"
configure cpu

step "build the library and the command 'sluice'"
cmake --build --preset cpu --target sluice_cli

step "verify: recompute $(find "$golden" -name '*.safetensors' | wc -l) golden files of public references"
"$sluice" verify "$golden"/*.safetensors

records=(report/records.json)
# A GPU is used if it computes the same files; one whose kernels cannot be compiled here (exit status 2:
# neither NVRTC nor nvcc nor `make cubins`) is left out, one that computes them wrongly is an error.
device=cpu
gpus=$("$sluice" info | grep -c '^cuda:.* usable$' || true)
if [ "$gpus" -gt 0 ]; then
    echo
    status=0
    "$sluice" verify --device cuda "$golden"/*.safetensors || status=$?
    case $status in
        0) device=cuda ;;
        2) echo "The GPU is left out: see the message above, and docs/cuda-engine.md." ;;
        *) exit "$status" ;;
    esac
fi

step "run: one tensor file through gated linear attention, on $device"
"$sluice" run --device $device --op gla "$golden/gla_mild.safetensors" -o report/gla_mild.out.safetensors

step "bench: recurrences against softmax attention, prefill, on this machine"
"$sluice" bench --op gla,simple_gla,mamba2,gated_delta_rule,softmax -B 1 -T 64,128,256,512,1024,2048,4096 \
    -H 4 -K 128 -V 128 --dtype float32 --max-seconds 1 --output report/records.json
if [ $device = cuda ]; then
    echo
    "$sluice" bench --device cuda --op gla,simple_gla,mamba2,gated_delta_rule -B 1,16 -T 1024,4096,16384 \
        -H 16 -K 128 -V 128 --dtype bfloat16 --max-seconds 1 --output report/gpu.json
    records+=(report/gpu.json)
fi

step "report"
"$sluice" report "${records[@]}" -o report/report.md
"$sluice" report "${records[@]}" -o report/report.html

cat <<TXT

[$(printf '%3d' $((SECONDS - started)))s] Done: report/report.md and report/report.html.

What the numbers mean. Each row is the median time of one call on this machine. "floor" is the least
time that this machine's measured memory and matrix-product rates allow for the same work; the
fraction says how much of it was reached. Recurrences grow linearly with T and softmax attention
quadratically: the report says where the lines cross, and what the floor of the same shape is on an
H200. Against FLA and softmax attention on a GPU: lab/peers, docs/peers.md.

Next:
  $sluice info                      what this machine can do, and every variant
  $sluice bench --help              your shapes, a real model's shapes, decode
  make test                         every test
TXT
