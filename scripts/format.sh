#!/usr/bin/env bash
# clang-format on every C++ file; --check fails on a difference instead of writing.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run --Werror)
find include src cli tests -name '*.hpp' -o -name '*.cpp' | sort | xargs clang-format "${mode[@]}"
