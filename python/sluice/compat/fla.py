"""The recurrent-attention functions of flash-linear-attention (0.6).

Signatures, layouts and return values are theirs: ``q, k [B, T, H, K]``, ``v [B, T, HV, V]``, states
``[N, HV, K, V]`` (``[N, HV, V, K]`` with ``state_v_first``), the final state float32 or ``None``.
A call that this library refuses (value-channel gates, reverse scans, gradients, context
parallelism, …) is left to the original, and so is one that the original does better
(:func:`allow`); :func:`log` says which, and why. Without flash-linear-attention a refused call
raises ``sluice.Error``.

:func:`install` makes an existing program use these functions, :func:`uninstall` undoes it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._call import Operation
from .._error import Error
from ..ops import OPERATIONS
from ._fla_registry import FlaRegistry
from ._stand_in import Package, Ran, decline_unknown, declined

Result = tuple[tuple[Tensor, Any], str]

_package = Package("fla", FlaRegistry())
install = _package.install
uninstall = _package.uninstall
allow = _package.allow
log = _package.log
clear_log = _package.clear_log

_LINEAR = OPERATIONS["linear"]
_RETENTION = OPERATIONS["retention"]
_LIGHTNING = OPERATIONS["lightning"]
_SIMPLE_GLA = OPERATIONS["simple_gla"]
_GLA = OPERATIONS["gla"]
_DELTA_RULE = OPERATIONS["delta_rule"]
_GATED_DELTA_RULE = OPERATIONS["gated_delta_rule"]
_KDA = OPERATIONS["kda"]


def _final_like(initial_state: Any) -> Tensor | None:
    """The final state's memory, where that is plain: two results of the library's cost a call more
    than one. In a compiled graph it would be copied."""
    if not isinstance(initial_state, Tensor) or initial_state.dtype is not torch.float32:
        return None
    if torch.compiler.is_compiling():
        return None
    return torch.empty_like(initial_state, memory_format=torch.contiguous_format)


def _run(
    phase: str,
    operation: Operation,
    inputs: tuple[Tensor | None, ...],
    settings: tuple[Any, ...],
    *,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    state_v_first: bool = False,
) -> Result:
    keywords = {
        "scale": scale,
        "initial_state": initial_state,
        "output_final_state": output_final_state,
        "final_state": _final_like(initial_state) if output_final_state else None,
        "cu_seqlens": cu_seqlens,
        "state_layout": "value-first" if state_v_first else "key-first",
    }
    o, state, ran = _package.call(phase, operation, inputs, settings, keywords)
    # float64 where all inputs are.
    return (o, state if state is None or state.dtype is torch.float32 else state.float()), ran


def _layout(kwargs: dict[str, Any], state_v_first: bool) -> bool:
    """``state_v_first``, also under its older name; the original refuses both at once."""
    older = kwargs.pop("transpose_state_layout", None)
    if older is not None and state_v_first:
        raise declined("both state_v_first and its older name")
    return bool(older or state_v_first)


def _beta_form(use_sigmoid: bool, allow_negative: bool) -> str:
    if not use_sigmoid:
        if allow_negative:
            raise declined("allow_neg_eigval without use_beta_sigmoid_in_kernel")
        return "given"
    return "2sigmoid" if allow_negative else "sigmoid"


def _linear(
    phase: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    initial_state: Any,
    output_final_state: bool,
    normalize: bool,
    cu_seqlens: Tensor | None,
) -> Result:
    """Normalised, states are pairs ``(state, z [N, 1, H, K])`` and ``z`` always comes back."""
    if not normalize:
        return _run(
            phase,
            _LINEAR,
            (q, k, v),
            (None, None),
            scale=scale,
            initial_state=initial_state,
            output_final_state=output_final_state,
            cu_seqlens=cu_seqlens,
        )
    state, z = initial_state if isinstance(initial_state, tuple) else (initial_state, None)
    if state is not None and z is None:
        z = state.new_zeros((state.shape[0], 1, *state.shape[1:3]))
    keywords = {
        "scale": scale,
        "initial_state": state,
        "initial_key_sum": None if z is None else z.squeeze(1),
        "output_final_state": True,
        "cu_seqlens": cu_seqlens,
    }
    o, (final, key_sum), ran = _package.call(phase, _LINEAR, (q, k, v), (True, None), keywords)
    return (o, (final.float() if output_final_state else None, key_sum.unsqueeze(1))), ran


@_package.stands_for("fla.ops.linear_attn")
def chunk_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    normalize: bool = True,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """``S_t = S_{t-1} + k_t v_t^T``; normalised by ``scale q_t . sum(k) + 1e-10``.

    In float16 on a GPU the original runs: :func:`allow`.
    """
    _package.decline_coarse("chunk_linear_attn", v)
    return _linear(
        "prefill", q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens
    )


@_package.stands_for("fla.ops.linear_attn")
def fused_recurrent_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    reverse: bool = False,
    normalize: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """:func:`chunk_linear_attn`, for few tokens."""
    if reverse:
        raise declined("reverse")
    return _linear(
        "decode", q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens
    )


@_package.stands_for("fla.ops.retention")
def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """``S_t = (1 - 2^(-5 - h)) S_{t-1} + k_t v_t^T``."""
    decline_unknown(kwargs, ("chunk_size",))
    return _run(
        "prefill",
        _RETENTION,
        (q, k, v),
        (),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


@_package.stands_for("fla.ops.retention")
def fused_recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """:func:`chunk_retention`, for few tokens."""
    if reverse:
        raise declined("reverse")
    value_first = _layout(kwargs, state_v_first)
    decline_unknown(kwargs)
    return _run(
        "decode",
        _RETENTION,
        (q, k, v),
        (),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=value_first,
    )


@_package.stands_for("fla.ops.lightning_attn")
def chunk_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """``S_t = exp(-(8 / H) (1 - layer_idx / num_layers) h) S_{t-1} + k_t v_t^T``."""
    decline_unknown(kwargs, ("chunk_size",))
    return _run(
        "prefill",
        _LIGHTNING,
        (q, k, v),
        (layer_idx, num_layers),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


@_package.stands_for("fla.ops.lightning_attn")
def fused_recurrent_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """:func:`chunk_lightning_attn`, for few tokens."""
    if reverse:
        raise declined("reverse")
    return _run(
        "decode",
        _LIGHTNING,
        (q, k, v),
        (layer_idx, num_layers),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


def _decline_chunk(kwargs: dict[str, Any], sizes: tuple[int, ...]) -> None:
    """The chunk is ours to choose, but for sizes that the original refuses."""
    size = kwargs.pop("chunk_size", None)
    if size is not None and size not in sizes:
        raise declined("chunk_size")


def _simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, g_gamma: Tensor | None
) -> tuple[Operation, tuple[Tensor, ...], tuple[Any, ...]]:
    """The operation, its inputs and settings."""
    if g is not None and g_gamma is not None:
        raise declined("both g and g_gamma")
    if g_gamma is not None:
        if g_gamma.shape != v.shape[2:3]:
            raise Error("shape", "g_gamma", str(list(g_gamma.shape)), f"[H] = {list(v.shape[2:3])}")
        g = g_gamma.expand(*v.shape[:3])
    if g is None:
        return _LINEAR, (q, k, v), (None, None)
    return _SIMPLE_GLA, (q, k, v, g), ()


@_package.stands_for("fla.ops.simple_gla")
def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """``S_t = exp(g_t) S_{t-1} + k_t v_t^T``, ``g [B, T, H]`` or ``g_gamma [H]``."""
    value_first = _layout(kwargs, state_v_first)
    decline_unknown(kwargs, ("chunk_size",))
    operation, inputs, settings = _simple_gla(q, k, v, g, g_gamma)
    return _run(
        "prefill",
        operation,
        inputs,
        settings,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=value_first,
    )


@_package.stands_for("fla.ops.simple_gla")
def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """:func:`chunk_simple_gla`, for few tokens."""
    if reverse:
        raise declined("reverse")
    value_first = _layout(kwargs, state_v_first)
    decline_unknown(kwargs)
    operation, inputs, settings = _simple_gla(q, k, v, g, g_gamma)
    return _run(
        "decode",
        operation,
        inputs,
        settings,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=value_first,
    )


@_package.stands_for("fla.ops.gla")
def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> Result:
    """``S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T``, ``g [B, T, H, K]``."""
    return _run(
        "prefill",
        _GLA,
        (q, k, v, g),
        (),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=state_v_first,
    )


@_package.stands_for("fla.ops.gla")
def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """:func:`chunk_gla`, for few tokens."""
    if gv is not None:
        raise declined("gv, a gate on value channels")
    if reverse:
        raise declined("reverse")
    value_first = _layout(kwargs, state_v_first)
    decline_unknown(kwargs)
    without_gate = gk is None
    return _run(
        "decode",
        _LINEAR if without_gate else _GLA,
        (q, k, v) if without_gate else (q, k, v, gk),
        (None, None) if without_gate else (),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=value_first,
    )


@_package.stands_for("fla.ops.delta_rule")
def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """``S_t = S_{t-1} + k_t u_t^T``, ``u_t = beta_t (v_t - S_{t-1}^T k_t)``."""
    decline_unknown(kwargs, ("chunk_size",))
    return _run(
        "prefill",
        _DELTA_RULE,
        (q, k, v, beta),
        (use_qk_l2norm_in_kernel, None),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


@_package.stands_for("fla.ops.delta_rule")
def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """:func:`chunk_delta_rule`, for few tokens."""
    beta = _beta(beta, v)
    return _run(
        "decode",
        _DELTA_RULE,
        (q, k, v, beta),
        (use_qk_l2norm_in_kernel, None),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


def _beta(beta: Tensor | None, v: Tensor) -> Tensor:
    """One per token and head; 1 where none is given."""
    if beta is None:
        return torch.ones_like(v[..., 0])
    if beta.ndim == v.ndim:
        raise declined("beta per value channel")
    return beta


@_package.stands_for("fla.ops.gated_delta_rule")
def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
    **kwargs: Any,
) -> Result:
    """``S_t = exp(g_t) S_{t-1} + k_t u_t^T``, ``u_t = beta_t (v_t - exp(g_t) S_{t-1}^T k_t)``.

    With ``use_gate_in_kernel``: ``g_t = -exp(A_log) softplus(g_t + dt_bias)``.
    """
    if cp_context is not None:
        raise declined("context parallelism")
    value_first = _layout(kwargs, state_v_first)
    raw = kwargs.pop("use_gate_in_kernel", False)
    A_log, dt_bias = kwargs.pop("A_log", None), kwargs.pop("dt_bias", None)
    _decline_chunk(kwargs, (16, 32, 64))
    decline_unknown(kwargs)
    return _run(
        "prefill",
        _GATED_DELTA_RULE,
        _gated_inputs(q, k, v, g, beta, raw, A_log, dt_bias),
        (use_qk_l2norm_in_kernel, _beta_form(use_beta_sigmoid_in_kernel, allow_neg_eigval)),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=value_first,
    )


def _gated_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    raw: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """The inputs of gated delta rules, whose gate ``g`` is raw or not."""
    if raw:
        return q, k, v, None, beta, g, A_log, dt_bias
    return q, k, v, g, beta, None, None, None


@_package.stands_for("fla.ops.gated_delta_rule")
def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """The same, for few tokens; ``gk [B, T, HV, K]`` is a gate per key channel."""
    if gv is not None:
        raise declined("gv, a gate on value channels")
    if g is not None and gk is not None:
        raise declined("both g and gk")
    if use_gate_in_kernel and g is None:
        raise declined("use_gate_in_kernel without g")
    value_first = _layout(kwargs, state_v_first)
    decline_unknown(kwargs)
    settings: tuple[Any, ...] = (
        use_qk_l2norm_in_kernel,
        _beta_form(use_beta_sigmoid_in_kernel, allow_neg_eigval),
    )
    beta = _beta(beta, v)
    operation = _GATED_DELTA_RULE
    inputs = _gated_inputs(q, k, v, g, beta, use_gate_in_kernel, A_log, dt_bias)
    if g is None and gk is None:
        operation, inputs = _DELTA_RULE, (q, k, v, beta)
    elif g is None:
        operation, inputs, settings = _KDA, _gated_inputs(q, k, v, gk, beta), (None, *settings)
    return _run(
        "decode",
        operation,
        inputs,
        settings,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=value_first,
    )


def _kda_rate(
    v: Tensor, raw: bool, A_log: Tensor | None, lower_bound: float | None
) -> tuple[Tensor | None, float | None]:
    """``A_log`` and ``lower_bound`` of the gate, raw or not, as the peers take them."""
    if not raw:
        return A_log, None
    if lower_bound is not None and A_log is None:  # a rate of 1
        A_log = v.new_zeros(v.shape[2], dtype=torch.float32)
    return A_log, lower_bound


@_package.stands_for("fla.ops.kda")
def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: Any = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    **kwargs: Any,
) -> Result:
    """``S_t = D_t S_{t-1} + k_t u_t^T``, ``u_t = beta_t (v_t - (D_t S_{t-1})^T k_t)``.

    With ``use_gate_in_kernel``: ``g_t = -exp(A_log) softplus(g_t + dt_bias)``, or
    ``lower_bound sigmoid(exp(A_log) (g_t + dt_bias))``.
    """
    if return_intermediate_states:
        raise declined("return_intermediate_states")
    if cp_context is not None:
        raise declined("context parallelism")
    value_first = _layout(kwargs, state_v_first)
    A_log, dt_bias = kwargs.pop("A_log", None), kwargs.pop("dt_bias", None)
    _decline_chunk(kwargs, (32, 64))
    decline_unknown(kwargs, ("chunk_indices",))
    if safe_gate and use_gate_in_kernel and lower_bound is None:
        raise declined("safe_gate without lower_bound")
    beta_form = _beta_form(use_beta_sigmoid_in_kernel, allow_neg_eigval)
    A_log, lower_bound = _kda_rate(v, use_gate_in_kernel, A_log, lower_bound)
    return _run(
        "prefill",
        _KDA,
        _gated_inputs(q, k, v, g, beta, use_gate_in_kernel, A_log, dt_bias),
        (lower_bound, use_qk_l2norm_in_kernel, beta_form),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=value_first,
    )


@_package.stands_for("fla.ops.kda")
def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """:func:`chunk_kda`, for few tokens."""
    value_first = _layout(kwargs, state_v_first)
    decline_unknown(kwargs)
    beta_form = _beta_form(use_beta_sigmoid_in_kernel, allow_neg_eigval)
    A_log, lower_bound = _kda_rate(v, use_gate_in_kernel, A_log, lower_bound)
    return _run(
        "decode",
        _KDA,
        _gated_inputs(q, k, v, g, _beta(beta, v), use_gate_in_kernel, A_log, dt_bias),
        (lower_bound, use_qk_l2norm_in_kernel, beta_form),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=value_first,
    )


__all__ = [
    "Ran",
    "allow",
    "clear_log",
    "install",
    "log",
    "uninstall",
    *sorted(_package.names()),
]
