#!/usr/bin/env bash
# `make wheel`: a wheel in build/wheels that any Python 3.10 and later runs, on the C library of this machine
# or a newer one. The CUDA kernels go in compiled (make cubins).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh
. scripts/python-steps.sh

step "packages"
ensure_packages
ensure_packages scripts/packages-python.txt
ensure_cuda_tools
step "compile kernels (data/cubins)"
compile_cubins
python_environment
step "build"
built=build/python-wheel
rm -rf "$built"
"$python" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w "$built" .
step "repair (libraries that other machines lack go in)"
wheels=build/wheels
# libtvm_ffi.so is the package apache-tvm-ffi's, loaded before ours.
PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --exclude libtvm_ffi.so -w "$wheels" "$built"/*.whl
ls -l "$wheels"
