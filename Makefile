# Thin: every target is a script or a CMake preset.
.DEFAULT_GOAL := help
.PHONY: help run test asan-test gpu-test bench cubins python-test wheel tidy format format-check clean

help:
	@echo 'make run           build, verify, measure and report (installs what is missing, as root)'
	@echo 'make test          build and run every test'
	@echo 'make asan-test     the same under address and undefined-behaviour sanitizers'
	@echo 'make gpu-test      the tests that use a GPU, and compute-sanitizer (a Hopper GPU)'
	@echo 'make bench         the measured tables of docs/kernels/cpu.md on this machine'
	@echo 'make cubins        compile the standard CUDA kernels ahead (nvcc from PyPI; no GPU needed)'
	@echo 'make python-test   build the Python package in a virtual environment and test it there'
	@echo 'make wheel         the same package as a wheel, kernels compiled, in build/wheels'
	@echo 'make tidy          clang-tidy on every file'
	@echo 'make format        clang-format in place; format-check only looks'

run:
	@scripts/run.sh

test:
	@scripts/test.sh cpu

asan-test:
	@scripts/test.sh asan

gpu-test:
	@scripts/gpu-test.sh

bench:
	@scripts/bench.sh

cubins:
	@scripts/cubins.sh

python-test:
	@scripts/python-test.sh

wheel:
	@scripts/wheel.sh

tidy:
	@scripts/tidy.sh
	@scripts/python-tidy.sh

format:
	@scripts/format.sh

format-check:
	@scripts/format.sh --check

clean:
	rm -rf build report
