#!/usr/bin/env bash
# `make bench`: the CPU tables of docs/kernels/cpu.md on this machine and, where there is a Hopper GPU,
# the GPU's. Idle, please.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh
sluice=build/cpu/bin/sluice
mkdir -p report

step "build"
ensure_packages
configure cpu
cmake --build --preset cpu --target sluice_cli

step "chunked against the time loop, with the machine's matrix-product rate (B1 T4096 H4 K=V=128)"
for op in gla simple_gla kda gated_delta_rule; do
    "$sluice" bench --op "$op" -B 1 -T 4096 -H 4 -K 128 -V 128 --dtype float32 \
        --algorithm chunked,recurrent --output "report/speed_$op.json"
done

step "every variant against softmax attention"
"$sluice" bench --op all,softmax -B 1 -T 64,256,1024,4096,8192 -H 4 -K 128 -V 128 \
    --dtype float32 --max-seconds 3 --output report/crossover.json

step "decode, 32 sequences"
"$sluice" bench --op all --phase decode -B 32 -H 4 -K 128 -V 128 --dtype float32 \
    --output report/decode.json

step "report/crossover.md"
"$sluice" report report/crossover.json -o report/crossover.md

gpus=$("$sluice" info | grep -c '^cuda:.* usable$' || true)
if [ "$gpus" -gt 0 ]; then
    step "GPU: gated linear attention, by shape and by gates"
    for gates in mild usual spiky; do
        "$sluice" bench --device cuda --op gla --gates "$gates" -B 1,4,16 -T 2048,4096,8192,16384 \
            -H 16 -K 128 -V 128 --dtype bfloat16 --output "report/gpu_gla_$gates.json"
    done
    "$sluice" bench --device cuda --op gla -B 16 -T 16384 -H 32 -K 64 -V 64 --dtype bfloat16 \
        --output report/gpu_gla_narrow.json

    step "GPU: every variant, prefill and decode"
    "$sluice" bench --device cuda --op all -B 4 -T 4096 -H 16 -K 128 -V 128 --dtype bfloat16 \
        --output report/gpu_prefill.json
    "$sluice" bench --device cuda --op all --phase decode -B 256 -H 32 -K 128 -V 128 \
        --dtype bfloat16 --output report/gpu_decode.json
fi
