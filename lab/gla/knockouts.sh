#!/usr/bin/env bash
# What binds the kernel: times it with one part left out at a time. The results are wrong, the times are
# what is asked for. Usage: knockouts.sh [build directory]    BUILD_ONLY=1: no GPU needed
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../build/lab-gla-knockouts}

# name, files under sm90/gla or tile, sed script
knock_out() {
    local name=$1 files=$2 script=$3 file
    local copy=$out/$name/src
    rm -rf "$copy"
    mkdir -p "$copy"
    cp -r "$here/../../src/cuda/tile" "$here/../../src/cuda/sm90" "$copy"
    for file in $files; do
        sed -i "$script" "$copy/$file"
        if [ "$name" != nothing ] && cmp -s "$copy/$file" "$here/../../src/cuda/$file"; then
            echo "knock-out '$name' changes nothing in $file"
            exit 1
        fi
    done
    CUDA_SOURCE=$copy BUILD_ONLY=1 "$here/run.sh" "$out/$name" >/dev/null
}

if [ -z "${RUN_ONLY:-}" ]; then
    knock_out nothing tile/ptx.cuh ''
    knock_out exponentials tile/ptx.cuh 's|asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));|y = x;|'
    # The first chunks stay in shared memory and are read again and again.
    knock_out loads sm90/gla/load.cuh \
        's|^    load_stage(p, s, i, static_cast<int>(opaque(stage)));|    if (i < Config::kStages) load_stage(p, s, i, stage); else s.stage_full[stage].arrive_expect(is_own(i) ? 0 : 2 * Config::kKeyBytes);|'
    knock_out stores sm90/gla/math.cuh 's|^    const int value = task.value_tile .*|& if (p.tokens > 0) return;|'
    knock_out scores sm90/gla/prepare.cuh 's|^            scores.multiply(s.stage\[stage\].q, s.stage\[stage\].k, me.thread);|            for (float\& x : scores.x) x = 0.f;|'
    knock_out scaling sm90/gla/prepare.cuh 's|^            scale_rows(me, stage, me.totals(n, 0, me.block), sums);||'
    # Of the rows that a pair's block gives the other: 16 bytes instead of 16 KB.
    knock_out sending "sm90/gla/load.cuh sm90/gla/pair.cuh" \
        's|Config::kStageBytes - Config::kGateBytes|Config::kValueBytes + 32|; s|, Config::kKeyBytes, s.stage_full|, 16, s.stage_full|'
    knock_out state_update sm90/gla/math.cuh 's|^            add_block(state, advance(v, n \* 2048), advance(k, n \* 2048));||'
fi
[ -n "${BUILD_ONLY:-}" ] && exit
for folder in "$out"/*/; do
    "$folder/check" "$folder" knockout | sed "s/^/without $(basename "$folder"): /"
done
