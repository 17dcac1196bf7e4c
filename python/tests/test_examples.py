"""The examples run, and their own checks hold."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conftest import ROOT


@pytest.mark.parametrize(
    "name, lines", [("quickstart.py", 5), ("serve_decode.py", 10), ("hybrid_model.py", 8)]
)
def test_example(name, lines):
    if name == "hybrid_model.py":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == lines
