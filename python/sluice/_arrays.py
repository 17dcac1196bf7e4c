"""Arrays of other frameworks than PyTorch: how each lends its memory and makes an output.

PyTorch needs none of this: its tensors cross with their allocator and their current stream.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from ._error import Error

_BFLOAT16 = "bfloat16"
JAX = ("jax", "jaxlib")  # where its types are


class Framework(Protocol):
    """What a call needs of an array framework."""

    def lend(self, name: str, array: Any, written: bool) -> tuple[Any, str]:
        """The object that crosses, and the name it is declared under."""

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """A fresh array whose memory crosses."""

    def finish(self, array: Any, like: Any) -> Any:
        """The array that the caller gets, from one that ``empty`` made."""

    def stream(self, like: Any) -> int | None:
        """The current stream's handle where ``like`` is on a GPU."""


def is_nested(array: Any) -> bool:
    return getattr(array, "is_nested", False) is True


def nested(name: str) -> Error:
    accepted = "a dense one: packed sequences are dense, with cu_seqlens"
    return Error("unsupported", name, "a nested tensor", accepted)


def _unlent(name: str, array: Any, why: Exception) -> Error:
    if is_nested(array):
        return nested(name)
    kind = type(array)
    reason = next(iter(str(why).splitlines()), type(why).__name__)  # a C++ stack may follow
    value = f"a {kind.__module__}.{kind.__qualname__} whose memory is not lent ({reason})"
    return Error("value", name, value, "a dense array of numbers, whose memory DLPack lends")


def refusal_of(names: Sequence[str], arrays: Sequence[Any], error: Exception) -> Exception:
    """What to raise where a call failed before the library had it: sparse, nested and deleted
    arrays and those of no number, for example, are not lent, and their frameworks do not say which
    argument it was."""
    import tvm_ffi

    for name, array in zip(names, arrays, strict=True):
        try:
            tvm_ffi.convert(array)
        except Exception as why:
            return _unlent(name, array, why)
    return error


def _read_only(name: str, array: Any) -> Any:
    """A read-only array's memory: only DLPack's versioned form lends it."""
    import tvm_ffi

    try:
        return tvm_ffi.from_dlpack(array.__dlpack__(max_version=(1, 0)))
    except TypeError:
        raise Error("value", name, "a read-only array", "a writable one (or NumPy 2.1)") from None
    except BufferError as why:
        raise _unlent(name, array, why) from None


def module_of(kind: type) -> str:
    """The package that a type comes from."""
    return kind.__module__.partition(".")[0]


def is_masked(array: Any) -> bool:
    """Whether it is NumPy's kind whose memory holds what a mask may hide."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(array, masked.MaskedArray)


def is_traced_by_jax(array: Any) -> bool:
    """Whether there is no memory behind it yet."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.core.Tracer)


class _NumPy:
    def __init__(self) -> None:
        import numpy

        self._numpy = numpy

    def lend(self, name: str, array: Any, written: bool) -> tuple[Any, str]:
        if not isinstance(array, self._numpy.ndarray):
            return array, name
        # DLPack knows bfloat16 but NumPy's exporter does not: the bits cross, the name says what
        # they are.
        declared = name
        if array.dtype.name == _BFLOAT16:
            array, declared = array.view("uint16"), f"{name}:{_BFLOAT16}"
        if array.flags.writeable:
            return array, declared
        if written:
            raise Error("value", name, "a read-only array", "an array that can be written")
        return _read_only(name, array), declared

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        if dtype == _BFLOAT16:
            import ml_dtypes

            return self._numpy.empty(shape, ml_dtypes.bfloat16)
        return self._numpy.empty(shape, dtype)

    def finish(self, array: Any, like: Any) -> Any:
        return array

    def stream(self, like: Any) -> int | None:
        return None


class _CuPy:
    def __init__(self) -> None:
        import cupy

        self._cupy = cupy

    def lend(self, name: str, array: Any, written: bool) -> tuple[Any, str]:
        return array, name

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        with self._cupy.cuda.Device(like.device.id):
            return self._cupy.empty(shape, dtype)

    def finish(self, array: Any, like: Any) -> Any:
        return array

    def stream(self, like: Any) -> int | None:
        return self._cupy.cuda.get_current_stream(like.device.id).ptr


class _Jax(_NumPy):
    """Eager JAX arrays in CPU memory (others: _jax.py): NumPy makes the results."""

    def finish(self, array: Any, like: Any) -> Any:
        import jax

        return jax.device_put(array, like.device if like.committed else None)


_BY_MODULE: dict[str, type[Framework]] = {
    "numpy": _NumPy,
    "cupy": _CuPy,
    "jax": _Jax,
    "jaxlib": _Jax,
}


@functools.cache
def framework_of(kind: type) -> Framework | None:
    """The framework of an array type."""
    made = _BY_MODULE.get(module_of(kind))
    return None if made is None else made()
