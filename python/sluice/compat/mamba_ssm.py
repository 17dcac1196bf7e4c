"""Mamba-2's two functions of mamba_ssm (2.3), with their signatures and return values.

A call that this library refuses (``seq_idx``, a decay per channel, gradients, …) is left to the
original, and so is one that the original does better (:func:`allow`); :func:`log` says which, and
why. :func:`install` makes an existing program use them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ._stand_in import Package, Ran, decline_if

_package = Package("mamba_ssm")
install = _package.install
uninstall = _package.uninstall
allow = _package.allow
log = _package.log
clear_log = _package.clear_log


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
    decline_if(
        {
            "seq_idx": seq_idx is not None,
            "return_varlen_states": return_varlen_states,
            "cu_seqlens": cu_seqlens is not None,
        }
    )
    o, state, ran = _package.call(
        "prefill",
        "mamba2",
        {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias},
        {"dt_softplus": dt_softplus, "dt_min": float(dt_limit[0]), "dt_max": float(dt_limit[1])},
        initial_state=initial_states,
        output_final_state=return_final_states,
    )
    return ((o, state) if return_final_states else o), ran


def _is_expanded(tensor: Tensor | None, *dims: int) -> bool:
    """Whether the elements along the dimensions are one element, repeated by its stride."""
    return tensor is None or all(tensor.shape[d] == 1 or tensor.stride(d) == 0 for d in dims)


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
    decline_if({"a state without heads (Mamba-1)": state.ndim != 4 or x.ndim != 3})
    decline_if(
        {
            "dt per channel (Mamba-1)": not _is_expanded(dt, -1),
            "A per channel (Mamba-1)": not _is_expanded(A, -1, -2),
            "dt_bias per channel (Mamba-1)": not _is_expanded(dt_bias, -1),
        }
    )
    inputs = {
        "x": x.unsqueeze(1),
        "dt": dt.select(-1, 0).unsqueeze(1),
        "A": A.select(-1, 0).select(-1, 0),
        "B": (B if B.ndim == 3 else B.unsqueeze(1)).unsqueeze(1),
        "C": (C if C.ndim == 3 else C.unsqueeze(1)).unsqueeze(1),
        "D": D,
        "z": None if z is None else z.unsqueeze(1),
        "dt_bias": None if dt_bias is None else dt_bias.select(-1, 0),
    }
    # Unlike the scan, the step has no limits of dt: without softplus it may be negative.
    settings = {"dt_softplus": dt_softplus, "dt_min": 0.0 if dt_softplus else float("-inf")}
    o, _, ran = _package.call(
        "decode",
        "mamba2",
        inputs,
        settings,
        state=state,
        slots=state_batch_indices,
    )
    return o.squeeze(1), ran


__all__ = ["Ran", "allow", "clear_log", "install", "log", "uninstall", *sorted(_package.names())]
