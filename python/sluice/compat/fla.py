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

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ._fla_registry import FlaRegistry
from ._stand_in import Package, Ran, decline_if, decline_unknown

Result = tuple[tuple[Tensor, Any], str]

_package = Package("fla", FlaRegistry())
install = _package.install
uninstall = _package.uninstall
allow = _package.allow
log = _package.log
clear_log = _package.clear_log


def _run(
    phase: str,
    variant: str,
    inputs: Mapping[str, Tensor | None],
    settings: dict[str, Any],
    *,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    state_v_first: bool = False,
) -> Result:
    o, state, ran = _package.call(
        phase,
        variant,
        inputs,
        settings,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_layout="value-first" if state_v_first else "key-first",
    )
    return (o, None if state is None else state.float()), ran


def _layout(kwargs: dict[str, Any], state_v_first: bool) -> bool:
    """``state_v_first``, also under its older name; the original refuses both at once."""
    older = kwargs.pop("transpose_state_layout", None)
    decline_if({"both state_v_first and its older name": state_v_first and older is not None})
    return bool(older or state_v_first)


def _beta_form(use_sigmoid: bool, allow_negative: bool) -> str:
    if not use_sigmoid:
        decline_if({"allow_neg_eigval without use_beta_sigmoid_in_kernel": allow_negative})
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
    inputs = {"q": q, "k": k, "v": v}
    if not normalize:
        return _run(
            phase,
            "linear",
            inputs,
            {},
            scale=scale,
            initial_state=initial_state,
            output_final_state=output_final_state,
            cu_seqlens=cu_seqlens,
        )
    state, z = initial_state if isinstance(initial_state, tuple) else (initial_state, None)
    if state is not None and z is None:
        z = state.new_zeros((state.shape[0], 1, *state.shape[1:3]))
    o, (final, key_sum), ran = _package.call(
        phase,
        "linear",
        inputs,
        {"normalize": True},
        scale=scale,
        initial_state=state,
        initial_key_sum=None if z is None else z.squeeze(1),
        output_final_state=True,
        cu_seqlens=cu_seqlens,
    )
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
    decline_if({"reverse": reverse})
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
        "retention",
        {"q": q, "k": k, "v": v},
        {},
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
    decline_if({"reverse": reverse})
    value_first = _layout(kwargs, state_v_first)
    decline_unknown(kwargs)
    return _run(
        "decode",
        "retention",
        {"q": q, "k": k, "v": v},
        {},
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
    settings = {"layer_idx": layer_idx, "num_layers": num_layers}
    return _run(
        "prefill",
        "lightning",
        {"q": q, "k": k, "v": v},
        settings,
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
    decline_if({"reverse": reverse})
    settings = {"layer_idx": layer_idx, "num_layers": num_layers}
    return _run(
        "decode",
        "lightning",
        {"q": q, "k": k, "v": v},
        settings,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


def _simple_gla(
    phase: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    g_gamma: Tensor | None,
    **rest: Any,
) -> Result:
    decline_if({"both g and g_gamma": g is not None and g_gamma is not None})
    inputs = {"q": q, "k": k, "v": v}
    if g_gamma is not None:
        g = g_gamma.expand(*v.shape[:3])
    if g is None:
        return _run(phase, "linear", inputs, {}, **rest)
    return _run(phase, "simple_gla", {**inputs, "g": g}, {}, **rest)


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
    return _simple_gla(
        "prefill",
        q,
        k,
        v,
        g,
        g_gamma,
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
    decline_if({"reverse": reverse})
    value_first = _layout(kwargs, state_v_first)
    decline_unknown(kwargs)
    return _simple_gla(
        "decode",
        q,
        k,
        v,
        g,
        g_gamma,
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
        "gla",
        {"q": q, "k": k, "v": v, "g": g},
        {},
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
    decline_if({"gv, a gate on value channels": gv is not None, "reverse": reverse})
    value_first = _layout(kwargs, state_v_first)
    decline_unknown(kwargs)
    inputs = {"q": q, "k": k, "v": v, "g": gk}
    return _run(
        "decode",
        "linear" if gk is None else "gla",
        inputs,
        {},
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
        "delta_rule",
        {"q": q, "k": k, "v": v, "beta": beta},
        {"qk_l2norm": use_qk_l2norm_in_kernel},
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
        "delta_rule",
        {"q": q, "k": k, "v": v, "beta": beta},
        {"qk_l2norm": use_qk_l2norm_in_kernel},
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


def _beta(beta: Tensor | None, v: Tensor) -> Tensor:
    """One per token and head; 1 where none is given."""
    if beta is None:
        return torch.ones_like(v[..., 0])
    decline_if({"beta per value channel": beta.ndim == v.ndim})
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
    decline_if({"context parallelism": cp_context is not None})
    value_first = _layout(kwargs, state_v_first)
    raw = kwargs.pop("use_gate_in_kernel", False)
    gate = _raw_gate(raw, g, kwargs.pop("A_log", None), kwargs.pop("dt_bias", None))
    decline_unknown(kwargs, ("chunk_size", "head_first"))
    settings = {
        "qk_l2norm": use_qk_l2norm_in_kernel,
        "beta": _beta_form(use_beta_sigmoid_in_kernel, allow_neg_eigval),
    }
    return _run(
        "prefill",
        "gated_delta_rule",
        {"q": q, "k": k, "v": v, **gate, "beta": beta},
        settings,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=value_first,
    )


def _raw_gate(
    raw: bool, g: Tensor | None, A_log: Tensor | None, dt_bias: Tensor | None
) -> Mapping[str, Tensor | None]:
    return {"g_raw": g, "A_log": A_log, "dt_bias": dt_bias} if raw else {"g": g}


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
    decline_if(
        {
            "gv, a gate on value channels": gv is not None,
            "both g and gk": g is not None and gk is not None,
            "use_gate_in_kernel without g": use_gate_in_kernel and g is None,
        }
    )
    value_first = _layout(kwargs, state_v_first)
    decline_unknown(kwargs)
    settings = {
        "qk_l2norm": use_qk_l2norm_in_kernel,
        "beta": _beta_form(use_beta_sigmoid_in_kernel, allow_neg_eigval),
    }
    variant = "gated_delta_rule"
    gate = _raw_gate(use_gate_in_kernel, g, A_log, dt_bias)
    if g is None:
        variant, gate = ("delta_rule", {}) if gk is None else ("kda", {"g": gk})
    inputs = {"q": q, "k": k, "v": v, **gate, "beta": _beta(beta, v)}
    return _run(
        "decode",
        variant,
        inputs,
        settings,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=value_first,
    )


def _kda(
    phase: str,
    inputs: dict[str, Tensor],
    raw: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    settings: dict[str, Any],
    **rest: Any,
) -> Result:
    if raw and lower_bound is not None:
        settings = {**settings, "lower_bound": lower_bound}
        if A_log is None:  # the peers' short form: a rate of 1
            A_log = inputs["v"].new_zeros(inputs["v"].shape[2], dtype=torch.float32)
    gate = _raw_gate(raw, inputs["g"], A_log, dt_bias)
    others = {name: x for name, x in inputs.items() if name != "g"}
    return _run(phase, "kda", {**others, **gate}, settings, **rest)


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
    decline_if(
        {
            "return_intermediate_states": return_intermediate_states,
            "context parallelism": cp_context is not None,
        }
    )
    value_first = _layout(kwargs, state_v_first)
    A_log, dt_bias = kwargs.pop("A_log", None), kwargs.pop("dt_bias", None)
    decline_unknown(kwargs, ("chunk_size", "head_first", "chunk_indices"))
    settings = {
        "qk_l2norm": use_qk_l2norm_in_kernel,
        "beta": _beta_form(use_beta_sigmoid_in_kernel, allow_neg_eigval),
    }
    return _kda(
        "prefill",
        {"q": q, "k": k, "v": v, "g": g, "beta": beta},
        use_gate_in_kernel,
        A_log,
        dt_bias,
        lower_bound,
        settings,
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
    settings = {
        "qk_l2norm": use_qk_l2norm_in_kernel,
        "beta": _beta_form(use_beta_sigmoid_in_kernel, allow_neg_eigval),
    }
    inputs = {"q": q, "k": k, "v": v, "g": g, "beta": _beta(beta, v)}
    return _kda(
        "decode",
        inputs,
        use_gate_in_kernel,
        A_log,
        dt_bias,
        lower_bound,
        settings,
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
