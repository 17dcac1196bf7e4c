"""The compiled library: loaded on first use, so that ``import sluice`` costs nothing."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ._error import Error

# Of an error's text, between its fields (python/src/bindings.cpp).
_SEPARATOR = "\x1f"
_ERROR = "error" + _SEPARATOR

_FUNCTIONS = (
    "_declare",
    "_call",
    "_item",
    "_latest_kernel",
    "_kernel_name",
    "_outputs",
    "_variants",
    "_cuda_device_count",
    "_traced_outputs",
    "_xla_handler",
)


def _library_path() -> Path:
    """The library that the wheel carries, or the one that SLUICE_PYTHON_LIBRARY names."""
    override = os.environ.get("SLUICE_PYTHON_LIBRARY")
    return Path(override) if override else Path(__file__).parent / "_lib" / "libsluice_python.so"


@functools.cache
def native() -> SimpleNamespace:
    """The library's functions, by their names without the underscore."""
    import tvm_ffi

    tvm_ffi.load_module(_library_path())
    return SimpleNamespace(
        **{name.lstrip("_"): tvm_ffi.get_global_func(f"sluice.{name}") for name in _FUNCTIONS}
    )


def checked(returned: Any) -> Any:
    """What a function returned, unless it is the text of an error: raises that."""
    if isinstance(returned, str) and returned.startswith(_ERROR):
        raise Error(*returned.split(_SEPARATOR, 4)[1:])
    return returned


@functools.cache
def declare(text: str) -> int:
    """The number of the call that ``text`` declares (python/src/declared_call.hpp)."""
    return checked(native().declare(text))


@functools.cache
def _kernel_name(number: int) -> str:
    return str(native().kernel_name(number))


def what_ran() -> str:
    """Back end, kernel and precision of this thread's latest call."""
    return _kernel_name(native().latest_kernel())
