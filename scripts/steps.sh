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
