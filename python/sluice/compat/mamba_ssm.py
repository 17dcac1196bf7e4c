"""Mamba-2's two functions of mamba_ssm (2.3), with their signatures and return values.

A call that this library refuses (``seq_idx``, a decay per channel, gradients, …) is left to the
original, and so is one that the original does better (:func:`allow`); :func:`log` says which, and
why. :func:`install` makes an existing program use them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .._call import Operation
from .._error import Error
from ..ops import OPERATIONS
from ._stand_in import Package, Ran, declined

_package = Package("mamba_ssm")
install = _package.install
uninstall = _package.uninstall
allow = _package.allow
log = _package.log
clear_log = _package.clear_log

_MAMBA2 = OPERATIONS["mamba2"]
# The step's tensors have no axis of tokens; dt, A and dt_bias repeat one element for all channels.
_STEP = Operation(
    _MAMBA2.variant,
    _MAMBA2.inputs,
    _MAMBA2.settings,
    views={
        "x": ":token",
        "dt": ":first:token",
        "A": ":first:first",
        "B": ":token",
        "C": ":token",
        "z": ":token",
        "dt_bias": ":first",
        "out": ":token",
    },
)


@_package.stands_for("mamba_ssm.ops.triton.ssd_combined")
def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> tuple[Any, str]:
    """``S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T``, ``o_t = (S_t C_t + D x_t) silu(z_t)``.

    ``x, z [B, T, H, P]``, ``dt [B, T, H]``, ``A [H]``, ``B, C [B, T, G, N]``, states
    ``[B, H, P, N]``. Returns ``out`` or ``(out, final_states)``. ``chunk_size`` is ours to choose.
    """
    if seq_idx is not None:
        raise declined("seq_idx")
    if return_varlen_states:
        raise declined("return_varlen_states")
    if cu_seqlens is not None:
        raise declined("cu_seqlens")
    if len(dt_limit) != 2:
        raise Error("value", "dt_limit", repr(dt_limit), "(least, greatest)")
    o, state, ran = _package.call(
        "prefill",
        _MAMBA2,
        (x, dt, A, B, C, D, z, dt_bias),
        (dt_softplus, float(dt_limit[0]), float(dt_limit[1])),
        {"initial_state": initial_states, "output_final_state": return_final_states},
    )
    return ((o, state) if return_final_states else o), ran


def _varies(tensor: Tensor, dim: int) -> bool:
    """Whether there are elements along the dimension other than one, repeated by its stride."""
    return tensor.stride(dim) != 0 and tensor.shape[dim] != 1


def _misshapen(name: str, tensor: Tensor, accepted: Sequence[int]) -> Error:
    return Error("shape", name, str(list(tensor.shape)), str(list(accepted)))


@_package.stands_for("mamba_ssm.ops.triton.selective_state_update")
def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> tuple[Tensor, str]:
    """One token of :func:`mamba_chunk_scan_combined`; ``state [slots, H, P, N]`` in place.

    ``x, z, dt [B, H, P]``, ``A [H, P, N]``, ``B, C [B, G, N]``, ``D, dt_bias [H, P]``. Mamba-2
    passes one ``dt``, ``A`` and ``dt_bias`` per head, expanded; others are Mamba-1's.
    """
    if state.ndim != 4 or x.ndim != 3:
        raise declined("a state without heads (Mamba-1)")
    if state_batch_indices is not None and state_batch_indices.ndim != 1:
        raise _misshapen("state_batch_indices", state_batch_indices, x.shape[:1])
    # What one element stands for is not the library's to see.
    if dt.shape != x.shape:
        raise _misshapen("dt", dt, x.shape)
    if A.shape != state.shape[1:]:
        raise _misshapen("A", A, state.shape[1:])
    if dt_bias is not None and dt_bias.shape != x.shape[1:]:
        raise _misshapen("dt_bias", dt_bias, x.shape[1:])
    if _varies(dt, -1):
        raise declined("dt per channel (Mamba-1)")
    if _varies(A, -1) or _varies(A, -2):
        raise declined("A per channel (Mamba-1)")
    if dt_bias is not None and _varies(dt_bias, -1):
        raise declined("dt_bias per channel (Mamba-1)")
    B = B if B.ndim == 3 else B.unsqueeze(1)  # one group
    C = C if C.ndim == 3 else C.unsqueeze(1)
    o, _, ran = _package.call(
        "decode",
        _STEP,
        (x, dt, A, B, C, D, z, dt_bias),
        # Unlike the scan, the step has no limits of dt: without softplus it may be negative.
        (dt_softplus, 0.0 if dt_softplus else -math.inf, None),
        {"state": state, "slots": state_batch_indices},
    )
    return o, ran


__all__ = ["Ran", "allow", "clear_log", "install", "log", "uninstall", *sorted(_package.names())]
