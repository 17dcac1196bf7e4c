#!/usr/bin/env bash
# `make gpu-test`: every test that uses a GPU, then a selection of small ones under compute-sanitizer.
#
#   scripts/gpu-test.sh                      configure, build, test
#   scripts/gpu-test.sh --no-build FOLDER    the test programs of FOLDER, built elsewhere (with
#                                            SLUICE_NATIVE=OFF); shared libraries beside them are used
#
#   SLUICE_SANITIZERS   tools to run; default "memcheck racecheck initcheck synccheck", "" for none
#   SLUICE_TEST_FILTER  GoogleTest filter of the first part; default tests/gpu.filter
#   SLUICE_TEST_SHARDS  processes that share a program's tests; default half the cores, at most 8
#
# Exits 0 when everything passed, 1 on a failure or a finding, 2 where it cannot run.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh

filter=${SLUICE_TEST_FILTER:-$(cat tests/gpu.filter)}
sanitizers=${SLUICE_SANITIZERS-memcheck racecheck initcheck synccheck}
# Under a sanitizer a kernel runs up to a hundred times longer: small cases of what differs most.
cores=$(nproc)
shards=${SLUICE_TEST_SHARDS:-$((cores > 16 ? 8 : (cores + 1) / 2))}
small="*cuda_gla:*cuda_kda:*cuda_mamba2_all:*cuda_user_rwkv7:*cuda_linear_normalized"
small+=":*cuda_TokenAndChannelCounts:*cuda_GatesOfEveryKindAndType:*cuda_TensorsOfEveryTypeAndLayout"
small+=":*cuda_NormalizedOutputs"
all_logs=$(mktemp -d)
trap 'rm -rf "$all_logs"' EXIT

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

# run_program PROGRAM FILTER [COMMAND...]: in shards side by side, for a first run is mostly the
# compilation of kernels. Prints a line, why tests were skipped, and the logs of failures.
run_program() {
    local program=$1 select=$2 name tests shard status=0 shards_of=() skipped log logs
    shift 2
    name=$(basename "$program")
    tests=$(count_tests "$program" "$select")
    logs=$(mktemp -d -p "$all_logs")
    [ "$tests" -gt 0 ] || status=1
    for ((shard = 0; shard < shards && shard < tests; shard++)); do
        GTEST_TOTAL_SHARDS=$((shards < tests ? shards : tests)) GTEST_SHARD_INDEX=$shard \
            "$@" "$program" --gtest_filter="$select" --gtest_brief=1 >"$logs/$shard" 2>&1 &
        shards_of+=($!)
    done
    for shard in "${!shards_of[@]}"; do
        wait "${shards_of[$shard]}" || { status=1; mv "$logs/$shard" "$logs/$shard.failed"; }
    done
    skipped=$(cat "$logs"/* | sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' | awk '{n += $1} END {print n + 0}')
    printf '  %-24s %4d tests, %d skipped: %s\n' "$name" "$tests" "$skipped" \
        "$([ $status -eq 0 ] && echo passed || echo FAILED)"
    cat "$logs"/* | grep -A1 ': Skipped$' | grep -v -e '^--' -e ': Skipped$' | sort | uniq -c || true
    ! grep -h -m1 '^no CUDA device' "$logs"/* || cannot "The library cannot use this machine's GPU."
    for log in "$logs"/*.failed; do
        [ ! -e "$log" ] || tail -n 60 "$log"
    done
    cat "$logs"/* | grep 'SUMMARY' | sort | uniq -c || true  # of a sanitizer
    return $status
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

step "tests that use the GPU ($filter)"
ran=0
for program in $programs; do
    tests=$(count_tests "$program" "$filter")
    [ "$tests" -gt 0 ] || continue
    ran=$((ran + tests))
    run_program "$program" "$filter" || failures=$((failures + 1))
done
[ "$ran" -gt 0 ] || cannot "No test of $folder matches $filter"

# Under a sanitizer mostly one processor works, and a group of cases is one test: all of them side by
# side, each one's report after the last has ended.
sanitize() {
    local tool=$1 program=$2
    export SLUICE_RACECHECK=""
    [ "$tool" != racecheck ] || SLUICE_RACECHECK=1
    case $(basename "$program") in
        test_conformance) export SLUICE_TEST_LONGEST=130 ;;
        *) export SLUICE_TEST_LONGEST=200 ;;  # their gates' cases
    esac
    run_program "$program" "$small" "$sanitizer" --tool "$tool" --error-exitcode 1 --target-processes all
}

if [ -n "$sanitizers" ]; then
    step "compute-sanitizer: $sanitizers"
    jobs=()
    for tool in $sanitizers; do
        for program in "$folder"/test_{conformance,gated_chunks,scalar_chunks}; do
            sanitize "$tool" "$program" >"$all_logs/$tool.$(basename "$program")" 2>&1 &
            jobs+=("$!")
        done
    done
    for job in "${jobs[@]}"; do wait "$job" || failures=$((failures + 1)); done
    for tool in $sanitizers; do
        echo "$tool"
        cat "$all_logs/$tool".*
    done
fi

step "$([ $failures -eq 0 ] && echo 'everything passed' || echo "$failures failures")"
[ $failures -eq 0 ]
