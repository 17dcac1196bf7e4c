#!/usr/bin/env bash
# `make python-test`: builds the Python package into a virtual environment and tests it there.
# PYTHON=/path/to/python tests in that environment instead, with the frameworks that it has (PyTorch,
# flash-linear-attention, JAX, …); tests of others are skipped, with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh
. scripts/python-steps.sh

step "packages"
ensure_packages
ensure_packages scripts/packages-python.txt
python_environment
step "build and install"
python_install
step "style"
"$python" -m ruff format --check --quiet python examples
"$python" -m ruff check --quiet python examples
"$python" -m mypy --no-error-summary python/sluice
step "test"
"$python" -m pytest
