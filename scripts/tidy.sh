#!/usr/bin/env bash
# clang-tidy on every C++ file of the library, the command, the examples and the tools; on headers,
# include/ among them, through the files that include them.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/steps.sh
ensure_packages scripts/packages.txt
ensure_packages scripts/packages-dev.txt
configure tidy
find src cli examples tools -name '*.cpp' | sort |
    xargs -P "$(nproc)" -n 4 clang-tidy -p build/tidy --quiet --warnings-as-errors='*'
