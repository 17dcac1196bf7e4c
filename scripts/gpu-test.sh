#!/usr/bin/env bash
# `make gpu-test`: every test that uses a GPU, and a selection of small ones under compute-sanitizer.
#
#   scripts/gpu-test.sh                      configure, build, test
#   scripts/gpu-test.sh --no-build FOLDER    the test programs of FOLDER, built elsewhere (with
#                                            SLUICE_NATIVE=OFF); shared libraries beside them are used
#
#   SLUICE_SANITIZERS   tools to run; default "memcheck racecheck initcheck synccheck", "" for none
#   SLUICE_TEST_FILTER  GoogleTest filter of the first part; default tests/gpu.filter
#   SLUICE_TEST_JOBS    processes at a time; default as many as processors, at most 16
#
# Exits 0 when everything passed, 1 on a failure or a finding, 2 where it cannot run.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh

filter=${SLUICE_TEST_FILTER:-$(cat tests/gpu.filter)}
sanitizers=${SLUICE_SANITIZERS-memcheck racecheck initcheck synccheck}
cores=$(nproc)
jobs_at_a_time=${SLUICE_TEST_JOBS:-$((cores > 16 ? 16 : cores))}
# What measures runs alone: it is not to share the GPU and its memory.
measuring="test_bench test_bench_rows test_device_memory test_host_time test_limits test_measured_device"
# Under a sanitizer a kernel runs up to a hundred times longer: small cases of what differs most.
judged="test_conformance test_gated_chunks test_scalar_chunks"
small="*cuda_gla:*cuda_kda:*cuda_mamba2_all:*cuda_user_rwkv7:*cuda_linear_normalized"
small+=":*cuda_TokenAndChannelCounts:*cuda_GatesOfEveryKindAndType:*cuda_TensorsOfEveryTypeAndLayout"
small+=":*cuda_NormalizedOutputs"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

cannot() {
    echo "$1"
    exit 2
}

find_gpu() {
    local list
    list=$(nvidia-smi --query-gpu=index,name,compute_cap --format=csv,noheader 2>/dev/null) ||
        cannot "No GPU: nvidia-smi is not there, or finds none. Needed: compute capability 9.0 (H100, H200)."
    grep -q ', 9\.0$' <<<"$list" || cannot "No Hopper GPU (compute capability 9.0) among: $list"
    grep ', 9\.0$' <<<"$list"
}

find_sanitizer() {
    [ -n "$sanitizers" ] || return 0
    sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
    [ -x "$sanitizer" ] || cannot 'No compute-sanitizer (part of the CUDA toolkit). Without it: SLUICE_SANITIZERS=""'
}

build() {
    step "packages"
    ensure_packages scripts/packages.txt
    step "configure (build/cpu)"
    configure cpu
    step "build"
    cmake --build --preset cpu
    folder=build/cpu/tests
}

# How many tests of $1 (a program) $2 (a filter) selects.
count_tests() {
    "$1" --gtest_list_tests --gtest_filter="$2" 2>/dev/null | grep -c '^  ' || true
}

# start LABEL PROGRAM FILTER [COMMAND...]: the tests in processes of a few each, as soon as there is
# room, for a first run is mostly the compilation of kernels and the oracle on the CPU.
start() {
    local label=$1 program=$2 select=$3 tests shard count log
    shift 3
    tests=$(count_tests "$program" "$select")
    count=$((tests < jobs_at_a_time ? tests : jobs_at_a_time))
    mkdir -p "$logs/$label"
    echo "$tests" >"$logs/$label.tests"
    for ((shard = 0; shard < count; shard++)); do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs_at_a_time" ]; do wait -n || true; done
        log=$logs/$label/$shard
        {
            GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$shard \
                "$@" "$program" --gtest_filter="$select" --gtest_brief=1 >"$log" 2>&1 || mv "$log" "$log.failed"
        } &
    done
}

# report LABEL NAME: a line, why tests were skipped, and the logs of failures. Fails if a test failed, or
# none ran.
report() {
    local label=$1 name=$2 tests skipped status=passed log
    tests=$(cat "$logs/$label.tests")
    ! compgen -G "$logs/$label/*.failed" >/dev/null && [ "$tests" -gt 0 ] || status=FAILED
    skipped=$(cat "$logs/$label"/* | sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' | awk '{n += $1} END {print n + 0}')
    printf '  %-24s %4d tests, %d skipped: %s\n' "$name" "$tests" "$skipped" "$status"
    cat "$logs/$label"/* | grep -A1 ': Skipped$' | grep -v -e '^--' -e ': Skipped$' | sort | uniq -c || true
    ! grep -hs -m1 '^no CUDA device' "$logs/$label"/* || cannot "The library cannot use this machine's GPU."
    for log in "$logs/$label"/*.failed; do
        [ ! -e "$log" ] || tail -n 60 "$log"
    done
    cat "$logs/$label"/* | grep 'SUMMARY' | sort | uniq -c || true # of a sanitizer
    [ $status = passed ]
}

# The environment in which a sanitizer's tool judges a program: its longest sequences, of gates' cases.
sanitizer_environment() {
    local tool=$1 program=$2
    echo "SLUICE_TEST_LONGEST=$([ "$program" = test_conformance ] && echo 130 || echo 200)"
    [ "$tool" != racecheck ] || echo SLUICE_RACECHECK=1
}

failures=0
step "GPU"
find_gpu
find_sanitizer
if [ "${1:-}" = --no-build ]; then
    folder=${2:?a folder of test programs}
    export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
    build
fi
programs=$(find "$folder" -maxdepth 1 -type f -name 'test_*' -perm -u+x | sort)
[ -n "$programs" ] || cannot "No test programs in $folder"

selected=()
for program in $programs; do
    [ "$(count_tests "$program" "$filter")" -eq 0 ] || selected+=("$(basename "$program")")
done
[ ${#selected[@]} -gt 0 ] || cannot "No test of $folder matches $filter"
is_measuring() { [[ " $measuring " == *" $1 "* ]]; }

step "tests that use the GPU ($filter): those that measure, one program after the other"
for program in "${selected[@]}"; do
    is_measuring "$program" || continue
    start "$program" "$folder/$program" "$filter"
    wait
    report "$program" "$program" || failures=$((failures + 1))
done

step "compute-sanitizer (${sanitizers:-none}), which takes longest, and all other tests"
for tool in $sanitizers; do
    for program in $judged; do
        mapfile -t variables < <(sanitizer_environment "$tool" "$program")
        start "$tool.$program" "$folder/$program" "$small" env "${variables[@]}" \
            "$sanitizer" --tool "$tool" --error-exitcode 1 --target-processes all
    done
done
for program in "${selected[@]}"; do
    is_measuring "$program" || start "$program" "$folder/$program" "$filter"
done
wait
for program in "${selected[@]}"; do
    is_measuring "$program" || report "$program" "$program" || failures=$((failures + 1))
done
for tool in $sanitizers; do
    echo "$tool"
    for program in $judged; do
        report "$tool.$program" "$program" || failures=$((failures + 1))
    done
done

step "$([ $failures -eq 0 ] && echo 'everything passed' || echo "$failures failures")"
[ $failures -eq 0 ]
