# Shell functions of the scripts that build the Python package, after scripts/steps.sh.
# shellcheck shell=bash

# python_environment: $python, with the pinned requirements: PYTHON's, or a virtual environment's.
python_environment() {
    step "Python environment"
    python=${PYTHON:-$PWD/build/python/bin/python}
    if [ -z "${PYTHON:-}" ] && [ ! -x "$python" ]; then
        python3 -m venv "$PWD/build/python"
    fi
    "$python" -m pip install --quiet --disable-pip-version-check -r scripts/requirements-python.txt
    "$python" --version
    # A compiler cache is used where there is one.
    if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
}

# python_install: the package, built by the environment's own tools (so that objects are kept between
# builds), without its dependencies, which are there.
python_install() {
    "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
        --force-reinstall .
}
