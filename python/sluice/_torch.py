"""PyTorch: eager calls go straight to the library; traced ones through ``torch.library``.

The library takes torch's current stream and allocates results and workspace with torch's allocator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from ._arrays import is_nested, nested, refusal_of
from ._call import (
    READ,
    SEPARATOR,
    WRITTEN,
    Request,
    number_of,
    refuse_immutable,
    results_of,
    text_of,
)
from ._error import Error
from ._native import checked, declare, native

PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_differentiated_forward() -> bool:
    return forward_ad._current_level >= 0


def _refuse_gradient(request: Request) -> None:
    backward, forward = torch.is_grad_enabled(), _is_differentiated_forward()
    if not (backward or forward):
        return
    names, tensors = request.form.read + request.form.written, request.read + request.written
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(tensor, torch.Tensor):
            continue
        if backward and tensor.requires_grad:
            raise Error(
                "unsupported",
                name,
                "a tensor that requires grad",
                "calls under torch.no_grad() or torch.inference_mode(), or detached tensors: there "
                "is no backward kernel yet (sluice.compat calls the original function instead)",
            )
        if forward and forward_ad.unpack_dual(tensor).tangent is not None:
            accepted = "one without: there are no derivatives yet"
            raise Error("unsupported", name, "a tensor with a tangent", accepted)


def _refuse_negative(names: tuple[str, ...], tensors: list[Any]) -> None:
    """Views whose memory holds the negative of what they are: parts of conjugated numbers."""
    for name, tensor in zip(names, tensors, strict=True):
        if isinstance(tensor, torch.Tensor) and tensor.is_neg():
            accepted = "a tensor without (torch.resolve_neg)"
            raise Error("unsupported", name, "a tensor with the negative bit", accepted)


def _refuse_nested(names: tuple[str, ...], tensors: list[Any]) -> None:
    for name, tensor in zip(names, tensors, strict=True):
        if is_nested(tensor):
            raise nested(name)


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether somebody other than the device is to see the call."""
    return (
        torch.compiler.is_compiling()
        or type(tensor) not in PLAIN
        or not (tensor.is_cpu or tensor.is_cuda)
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


# Found once: finding them took a twentieth of a call.
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_count_modes = torch._C._len_torch_dispatch_stack
_tracing_state = torch._C._get_tracing_state
_increment_version = torch.autograd.graph.increment_version


def is_direct(tensors: list[Any]) -> bool:
    """Whether run() would neither refuse these tensors, the first of which is PLAIN, nor leave them
    to a tracer. Quicker than asking what is wrong."""
    if _is_compiling() or _count_modes() > 0 or _is_differentiated_forward():
        return False
    if _tracing_state() is not None:
        return False
    has_gradients = _is_grad_enabled()
    for tensor in tensors:
        if type(tensor) not in PLAIN or tensor.is_neg():
            return False
        if has_gradients and tensor.requires_grad:
            return False
    return tensors[0].is_cuda or tensors[0].is_cpu


def refuse_tensors(request: Request) -> None:
    """What run() refuses, of a call whose other arrays are another framework's."""
    _refuse_gradient(request)
    names, tensors = request.form.read + request.form.written, request.read + request.written
    _refuse_nested(names, tensors)
    _refuse_negative(names, tensors)


def note_written(tensors: list[Any]) -> None:
    """For autograd, which may have saved them for a backward pass."""
    for tensor in tensors:  # older versions take one
        _increment_version(tensor)


def run(request: Request) -> list[Any]:
    """The results, in the order of the form's."""
    refuse_immutable(request)
    _refuse_gradient(request)
    form, tensors = request.form, request.read + request.written
    names = form.read + form.written
    _refuse_nested(names, tensors)
    if is_traced(request.read[0]):
        return _run_traced(request)
    _refuse_negative(names, tensors)
    try:
        returned = native().call(number_of(form), request.scale, request.stream, *tensors)
    except Exception as error:
        raise refusal_of(names, tensors, error) from None
    results = results_of(form.results, returned)
    note_written([x for x in request.written if isinstance(x, torch.Tensor)])
    return results


def _run_traced(request: Request) -> list[Any]:
    if request.stream is not None:
        raise Error("unsupported", "stream", "a stream in a traced call", "torch's current stream")
    names = tuple([name for name in request.form.results if name != "ran"])
    form = request.form._replace(results=names)
    if request.written:
        # An operator that writes its arguments may return nothing: the results are written too.
        results = _fake_run(text_of(form), request.scale, request.read)
        form = form._replace(written=form.written + names, results=())
        written = request.written + results
        torch.ops.sluice.run_into(text_of(form), request.scale, request.read, written)
    else:
        results = torch.ops.sluice.run(text_of(form), request.scale, request.read)
    return results if names == request.form.results else [*results, "traced"]


def _run(text: str, scale: float | None, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    returned = checked(native().call(declare(text), scale, None, *inputs))
    return [returned] if isinstance(returned, torch.Tensor) else list(returned)


def _run_into(
    text: str, scale: float | None, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> None:
    checked(native().call(declare(text), scale, None, *inputs, *outputs))


def _fake_run(text: str, scale: float | None, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results' shapes and dtypes, as the library's infer_dims() finds them."""
    items = [item.split("=", 1) for item in text.split(SEPARATOR)]
    value = {key: text for key, text in items if key not in ("tensor", "result")}
    names = [name for key, name in items if key == "tensor"]
    tensor = dict(zip(names, inputs, strict=False))  # those written come after the inputs
    v = tensor["v"] if "v" in tensor else tensor["x"]
    k = tensor["k"] if "k" in tensor else tensor["B"]
    sequences = tensor["cu_seqlens"].shape[0] - 1 if "cu_seqlens" in tensor else v.shape[0]
    default_layout = "value-first" if value["variant"] == "mamba2" else "key-first"
    state = [k.shape[-1], v.shape[-1]]
    if value.get("option.state_layout", default_layout) == "value-first":
        state.reverse()
    precision = value.get("option.precision", "auto")
    dtypes = {x.dtype for name, x in tensor.items() if name not in READ | WRITTEN}
    wide = precision == "float64" or (precision == "auto" and dtypes == {torch.float64})
    dtype = torch.float64 if wide else torch.float32
    heads = v.shape[2]
    made = {
        "out": lambda: v.new_empty(v.shape),
        "final_state": lambda: v.new_empty((sequences, heads, *state), dtype=dtype),
        "final_key_sum": lambda: v.new_empty((sequences, heads, k.shape[-1]), dtype=dtype),
    }
    return [made[name]() for key, name in items if key == "result"]


def _fake_run_into(
    text: str, scale: float | None, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> None:
    return None


def _register() -> torch.library.Library:
    # The library takes any strides, and a kernel may prefer those that the caller chose.
    exact = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    library = torch.library.Library("sluice", "DEF")
    for name, schema, real, fake in (
        ("run", "Tensor[] inputs) -> Tensor[]", _run, _fake_run),
        ("run_into", "Tensor[] inputs, Tensor(a!)[] outputs) -> ()", _run_into, _fake_run_into),
    ):
        library.define(
            f"{name}(str call, float? scale, {schema}", tags=(torch.Tag.pt2_compliant_tag, exact)
        )
        library.impl(name, real, "CPU")
        library.impl(name, real, "CUDA")
        torch.library.register_fake(f"sluice::{name}", fake, lib=library)
    return library


_LIBRARY = _register()
