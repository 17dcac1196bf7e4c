# Shell functions for the scripts beside this file: numbered steps with elapsed time, and packages.
# shellcheck shell=bash

started=$SECONDS
step_number=0

# step "what happens now"
step() {
    step_number=$((step_number + 1))
    printf '\n[%3ds] %d. %s\n' $((SECONDS - started)) "$step_number" "$1"
}

# ensure_packages [LIST]: installs what LIST (scripts/packages.txt) names (as root), or says how and
# exits 2.
ensure_packages() {
    local list=${1:-scripts/packages.txt} missing=() package
    while read -r package; do
        case $package in '' | '#'*) continue ;; esac
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done <"$list"
    if [ ${#missing[@]} -eq 0 ]; then
        echo "all packages of $list are there"
        return
    fi
    if ! command -v apt-get >/dev/null; then
        echo "Missing: ${missing[*]} (names of Debian 12 packages). Please install their equivalents."
        exit 2
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "Missing packages. Please run:"
        echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
        exit 2
    fi
    echo "installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# configure PRESET [cmake arguments]: quiet unless it fails.
configure() {
    local preset=$1 log
    shift
    log=$(mktemp)
    if ! cmake --preset "$preset" "$@" >"$log" 2>&1; then
        cat "$log"
        exit 1
    fi
    rm -f "$log"
}

# ensure_cuda_tools: puts what scripts/cuda-tools.txt names under build/cuda-tools, and it first in the
# order in which kernels' compilers are looked for. Where it cannot be had, those of the machine serve,
# and tests that find none say so and are skipped; with SLUICE_REQUIRE_CUDA_TOOLS=1 that is an error,
# here and in the tests.
ensure_cuda_tools() {
    local list=scripts/cuda-tools.txt folder=$PWD/build/cuda-tools
    if ! cmp -s "$list" "$folder/installed.txt"; then
        python3 -m pip --version >/dev/null 2>&1 || (ensure_packages scripts/packages-test.txt) || true
        echo "installing into build/cuda-tools: $(grep -v '^#' "$list" | xargs)"
        rm -rf "$folder"
        mkdir -p "$folder"
        if ! python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
            --only-binary=:all: --target "$folder" --requirement "$list" >"$folder/log" 2>&1; then
            echo "not to be had: $(grep -v '^WARNING' "$folder/log" | tail -n 1)"
            [ "${SLUICE_REQUIRE_CUDA_TOOLS:-0}" != 1 ] || exit 1
            return 0
        fi
        cp "$list" "$folder/installed.txt"
    fi
    export CUDA_HOME=$folder/nvidia/cu13
    export SLUICE_NVRTC=$CUDA_HOME/lib PATH=$CUDA_HOME/bin:$PATH
    echo "nvcc, NVRTC and nvdisasm: $(grep -v '^#' "$list" | xargs)"
}

# compile_cubins: the standard set of CUDA kernels into data/cubins.
compile_cubins() {
    mkdir -p data/cubins
    echo '*' >data/cubins/.gitignore # they are made, not written
    configure cpu
    cmake --build --preset cpu --target sluice_cubins
    build/cpu/bin/cubins data/cubins
}
