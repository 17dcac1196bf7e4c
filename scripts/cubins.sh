#!/usr/bin/env bash
# `make cubins`: compiles the standard set of CUDA kernels into data/cubins. Needs NVRTC or nvcc, no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh
folder=data/cubins

step "packages"
ensure_packages
step "configure (build/cpu)"
configure cpu
step "build the tool"
cmake --build --preset cpu --target sluice_cubins
step "compile kernels"
mkdir -p "$folder"
echo '*' >"$folder/.gitignore" # they are made, not written
build/cpu/bin/cubins "$folder"
