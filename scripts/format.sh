#!/usr/bin/env bash
# clang-format on every C++ file; --check fails on a difference instead of writing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh
ensure_packages scripts/packages-dev.txt
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run --Werror)
find include src cli tests examples tools python/src -name '*.hpp' -o -name '*.cpp' | sort |
    xargs clang-format "${mode[@]}"
