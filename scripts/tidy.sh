#!/usr/bin/env bash
# clang-tidy on every C++ file of the library and the command.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh
configure tidy
find src cli -name '*.cpp' | sort |
    xargs -P "$(nproc)" -n 4 clang-tidy -p build/tidy --quiet --warnings-as-errors='*'
