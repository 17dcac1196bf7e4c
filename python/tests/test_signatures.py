"""The compat functions have the peers' signatures: against a record of them, and the record against
the packages where they are installed in the recorded version.

    python python/tests/test_signatures.py      prints the record of the installed packages
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
from sluice.compat import fla, mamba_ssm  # noqa: E402

MODULES = {"flash-linear-attention": fla, "mamba_ssm": mamba_ssm}
RECORD: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "signatures.json").read_text()
)
RECORDED = [(package, name) for package, about in RECORD.items() for name in about["functions"]]


def signature_of(function: Callable[..., Any]) -> str:
    """Names, kinds and defaults; annotations are the peers' business."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


@pytest.mark.parametrize("package", MODULES)
def test_every_function_is_recorded(package):
    assert sorted(RECORD[package]["functions"]) == sorted(MODULES[package]._package.names())


@pytest.mark.parametrize("package, name", RECORDED)
def test_ours_is_the_recorded_one(package, name):
    ours = getattr(MODULES[package], name)
    assert signature_of(ours) == RECORD[package]["functions"][name]


@pytest.mark.parametrize("package, name", RECORDED)
def test_the_record_is_the_peers(package, name):
    version = RECORD[package]["version"]
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if installed != version:
        pytest.skip(f"{package} {installed} is installed, {version} is recorded")
    theirs = MODULES[package]._package._original(name)
    assert signature_of(theirs) == RECORD[package]["functions"][name]


def record_of(package: str) -> dict[str, Any]:
    """The installed package's version and signatures."""
    functions = MODULES[package]._package
    return {
        "version": importlib.metadata.version(package),
        "functions": {name: signature_of(functions._original(name)) for name in functions.names()},
    }


if __name__ == "__main__":
    print(json.dumps({package: record_of(package) for package in MODULES}, indent=2))
