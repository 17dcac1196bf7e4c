"""Importing costs little and pulls no framework in."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_cold_import_is_fast_and_brings_no_framework():
    code = (
        "import time; t = time.perf_counter(); import sluice; t = time.perf_counter() - t\n"
        "import sys; print(t, *[m for m in ('torch', 'numpy', 'tvm_ffi') if m in sys.modules])"
    )
    seconds, *frameworks = min(run(code).split() for _ in range(3))
    assert not frameworks
    assert float(seconds) <= 0.3


def test_public_names():
    import sluice

    assert set(sluice.__all__) <= set(dir(sluice))
    assert set(sluice.ops.__all__) <= set(dir(sluice.ops))
    for name in sluice.variants():
        assert getattr(sluice.ops, name).__doc__ and getattr(sluice.ops, f"{name}_step").__doc__
