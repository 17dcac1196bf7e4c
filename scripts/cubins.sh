#!/usr/bin/env bash
# `make cubins`: compiles the standard set of CUDA kernels into data/cubins, by the nvcc of
# scripts/cuda-tools.txt, which tests judge; where it cannot be had, by the machine's. Needs no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh

step "packages"
ensure_packages
ensure_cuda_tools
step "compile kernels (data/cubins)"
compile_cubins
