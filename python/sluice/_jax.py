"""JAX: calls become calls of XLA's programs (``jax.ffi``), eager and traced ones alike.

XLA makes the results and the workspace and says on which stream; what a call is crosses as text,
which means the same in every process, as XLA's caches of compiled programs need. Eager arrays in
CPU memory need none of this: they go the way of NumPy's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy

from ._arrays import is_traced_by_jax
from ._call import Form, Request, number_of, refuse_written, run_arrays, text_of
from ._error import Error
from ._native import checked, native

_TARGET = "sluice"

# How an error reads that XLA reports (python/src/xla_call.cpp).
_REPORTED = re.compile(r"sluice\.Error \((\w+)\) (.+?): got (.*?); accepted: (.*)")


def _register() -> None:
    for platform in ("cpu", "CUDA"):
        handler = jax.ffi.pycapsule(native().xla_handler(platform == "CUDA"))
        jax.ffi.register_ffi_target(_TARGET, handler, platform=platform)


_register()


def _refuse_gradient(names: tuple[str, ...], primals: Any, tangents: Any) -> Any:
    zero = jax.custom_derivatives.SymbolicZero
    varied = [n for n, x in zip(names, tangents, strict=True) if not isinstance(x, zero)]
    raise Error(
        "unsupported",
        varied[0] if varied else names[0],
        "an array that is differentiated",
        "jax.lax.stop_gradient(...): there is no backward kernel yet",
    )


# A program's memory is its cache entry's: 1.5 MB of the host for each form, shape and scale.
@functools.lru_cache(maxsize=128)
def _function(form: Form, scale: float | None, gpu: int | None) -> Callable[..., list[Any]]:
    """What runs calls of a form. Where the GPU is known, its refusals are found ahead too."""
    number = number_of(form)
    attributes: dict[str, Any] = {
        "call": text_of(form._replace(written=form.results, results=())),
    }
    if scale is not None:
        attributes["scale"] = numpy.float64(scale)

    def call(*arrays: Any) -> list[Any]:
        tensors = [text for x in arrays for text in (str(x.dtype), tuple(x.shape))]
        described = checked(native().traced_outputs(number, scale, gpu, *tensors))
        results = [
            jax.ShapeDtypeStruct(tuple(described[i + 2]), str(described[i + 1]))
            for i in range(0, len(described), 3)
        ]
        # One call after the other under vmap.
        run = jax.ffi.ffi_call(_TARGET, results, vmap_method="sequential")
        return list(run(*arrays, **attributes))

    call.__name__ = f"{_TARGET}_{form.variant}"
    differentiable = jax.custom_jvp(call)
    differentiable.defjvp(
        functools.partial(_refuse_gradient, form.read),
        symbolic_zeros=True,
    )
    return jax.jit(differentiable)


def _refuse_deleted(request: Request) -> None:
    for name, array in zip(request.form.read, request.read, strict=True):
        if isinstance(array, jax.Array) and not is_traced_by_jax(array) and array.is_deleted():
            raise Error("value", name, "a deleted array", "one that has its memory")


def _are_on_one_cpu(arrays: list[Any]) -> bool:
    """Whether NumPy can see them."""
    devices = set().union(*(x.devices() for x in arrays if isinstance(x, jax.Array)))
    return len(devices) == 1 and devices.pop().platform == "cpu"


def _listed(devices: set[Any]) -> str:
    return ", ".join(sorted(map(str, devices)))


def _gpu_of(request: Request) -> int | None:
    """The GPU that an eager call's arrays are on, if it is one. JAX moves those that nobody put
    anywhere (committed) to the others."""
    arrays = [
        (name, array)
        for name, array in zip(request.form.read, request.read, strict=True)
        if isinstance(array, jax.Array)
    ]
    fixed = [(name, array) for name, array in arrays if array.committed]
    devices = (fixed or arrays)[0][1].devices()
    for name, array in fixed:
        if array.devices() != devices:
            where = f"{_listed(devices)}, as the other arrays"
            raise Error("device", name, _listed(array.devices()), where)
    device = next(iter(devices))
    if device.platform not in ("cpu", "gpu"):
        raise Error("device", arrays[0][0], str(device), "memory of the CPU or of a CUDA device")
    return device.local_hardware_id if device.platform == "gpu" and len(devices) == 1 else None


def _run_eager(request: Request) -> list[Any]:
    """An error that only shows when the call runs is the library's here, and not XLA's."""
    try:
        results = _function(request.form, request.scale, _gpu_of(request))(*request.read)
        if ("validate", "true") in request.form.options:
            jax.block_until_ready(results)
        return results
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # the latter on jit's quick path
        reported = _REPORTED.search(str(error))
        if reported is None:
            raise
        raise Error(*reported.groups()) from None


def run(request: Request) -> list[Any]:
    """The results, in the order of the form's."""
    _refuse_deleted(request)
    traced = any(map(is_traced_by_jax, request.read))
    if not traced and _are_on_one_cpu(request.read):
        return run_arrays(request)
    nothing = "nothing: JAX arrays are immutable, results are returned"
    refuse_written(request, lambda array: True, nothing)
    if request.stream is not None:
        raise Error("unsupported", "stream", "a stream with JAX arrays", "XLA's own stream")
    for name, array in zip(request.form.read, request.read, strict=True):
        if not isinstance(array, (jax.Array, numpy.ndarray)):
            raise Error("value", name, type(array).__name__, "a JAX or NumPy array")
    if traced:
        return _function(request.form, request.scale, None)(*request.read)
    return _run_eager(request)
