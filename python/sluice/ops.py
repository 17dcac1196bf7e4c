"""Recurrences as functions: a whole-sequence form and a decode form (``*_step``) of every variant.

Arrays may be NumPy's, PyTorch's or JAX's (CPU or CUDA, eager or traced) or CuPy's; results are of
the same kind. JAX arrays are immutable: states are returned, never written.
Letters: ``B`` batch, ``T`` tokens, ``H`` key heads, ``HV`` value heads (a multiple of ``H``; value
head ``h`` uses key head ``h // (HV // H)``), ``K`` key channels, ``V`` value channels, ``N``
sequences (``B``, or those that ``cu_seqlens`` packs).

Every function runs, head by head,

    S_t = D_t S_{t-1} + k_t u_t^T        D_t = diag(exp(g_t)), g_t <= 0 the natural log decay
    o_t = scale * S_t^T q_t              the state after the update of the same step

with ``u_t = v_t`` (additive) or ``u_t = beta_t (v_t - (D_t S_{t-1})^T k_t)`` (delta rules), and
returns ``(o, final_state)``: ``o [B, T, HV, V]`` in the values' dtype, ``final_state`` of
``[N, HV, K, V]`` in float32 (float64 for float64 inputs), or ``None`` where neither
``output_final_state`` nor a place for it was given. Inputs may be float32, float64, bfloat16 or
float16, of any strides. A call that is refused raises ``sluice.Error`` before anything is written.
Gradients are refused.

The keyword arguments that all functions take are those of :class:`CallOptions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from ._call import Operation, run

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = Any
"""A tensor or array that speaks DLPack."""

State = Union[Array, "tuple[Array, Array]"]
"""A state, or ``(state, key_sum)`` of normalised linear attention."""


class CallOptions(TypedDict, total=False):
    """Keyword arguments of every function. All are optional; ``None`` means not given."""

    scale: float
    """Factor of the outputs. Default: ``K ** -0.5``; mamba2: 1."""
    initial_state: State
    """``[N, HV, K, V]`` (``[N, HV, V, K]`` value-first), or a pool ``[slots, HV, ...]`` with
    ``read_slots``. float32, bfloat16, float16 or float64. Default: zero."""
    output_final_state: bool
    """Whether to return a fresh final state. Default: False."""
    final_state: State
    """Where the final state is written: dense, or a pool with ``write_slots``; may be the memory
    of ``initial_state``."""
    state: State
    """Both of the above: a state, or a pool, that is updated in place."""
    cu_seqlens: Array
    """int32 or int64 ``[N + 1]``: offsets of sequences packed along T (then B = 1), from 0 to
    T."""
    read_slots: Array
    """int32 or int64 ``[N]``: the slot each sequence starts from; -1 from zero. In steps also
    ``[N, M]``: column ``accepted[n] - 1`` is read."""
    write_slots: Array
    """int32 or int64 ``[N]``: the slot each sequence ends in; -1 discards. In steps also ``[N,
    T]``: a slot for the state after each token."""
    slots: Array
    """Both of the above."""
    has_initial: Array
    """bool ``[N]``: False starts the sequence from zero whatever the state holds."""
    accepted: Array
    """Steps with ``read_slots [N, M]``: int32 or int64 ``[N]``, how many of the last call's
    tokens were kept."""
    checkpoints: Array
    """Whole sequences: a pool ``[slots, HV, ...]`` for states inside them (prefix caching)."""
    checkpoint_sequences: Array
    """int32 or int64 ``[M]``: whose state."""
    checkpoint_positions: Array
    """int32 or int64 ``[M]``: after how many tokens of that sequence, a multiple of 64."""
    checkpoint_slots: Array
    """int32 or int64 ``[M]``: into which slot; -1 discards."""
    initial_key_sum: Array
    """Normalised linear attention: the sum of keys ``[N, HV, K]``; also the second of a state
    pair."""
    final_key_sum: Array
    """Where that sum is written."""
    out: Array
    """Where ``o`` is written. Default: a fresh array."""
    workspace: Array
    """CUDA: memory for the call's own use. Default: torch's, XLA's or the library's."""
    state_layout: Literal["key-first", "value-first"]
    """Of all states. Default: key-first, ``[N, HV, K, V]``; mamba2: value-first."""
    precision: Literal["auto", "float32", "float64", "bfloat16"]
    """Of the products' operands. Default: auto: float64 where all inputs are; on a GPU bfloat16
    where q, k and v are 16 bits wide; else float32. Sums are float32 or float64."""
    backend: Literal["cuda", "cpu", "oracle"]
    """Default: the environment's SLUICE_BACKEND, else the first that takes the call. "oracle" is
    the float64 time loop straight from the definition."""
    algorithm: Literal["auto", "chunked", "recurrent"]
    """Default: the planner chooses."""
    chunk: int
    """Tokens of a chunk. Default: 0, the planner chooses."""
    threads: int
    """CPU threads; results do not depend on it. Default: 0, all cores."""
    batch_invariant: bool
    """Only plans that do not depend on what else is in the batch. Default: False."""
    validate: bool
    """Also check values (log decays <= 0, no NaN, indices). On a GPU waits for it. Default:
    False."""
    compile: bool
    """Whether a CUDA kernel may be compiled by this call. Default: True."""
    stream: int
    """CUDA stream handle. Default: the framework's current stream. With PyTorch another one is
    accepted where the caller gives ``out`` and every state: results come from the current one."""


# What the functions of a variant take.
_LINEAR = Operation("linear", ("q", "k", "v"), ("normalize", "feature_map"))
_RETENTION = Operation("retention", ("q", "k", "v"))
_LIGHTNING = Operation("lightning", ("q", "k", "v"), ("layer_idx", "num_layers"))
_SIMPLE_GLA = Operation("simple_gla", ("q", "k", "v", "g"))
_GLA = Operation("gla", ("q", "k", "v", "g"))
_MAMBA2 = Operation(
    "mamba2", ("x", "dt", "A", "B", "C", "D", "z", "dt_bias"), ("dt_softplus", "dt_min", "dt_max")
)
_DELTA_RULE = Operation("delta_rule", ("q", "k", "v", "beta"), ("qk_l2norm", "beta"))
_GATED_DELTA_RULE = Operation(
    "gated_delta_rule",
    ("q", "k", "v", "g", "beta", "g_raw", "A_log", "dt_bias"),
    ("qk_l2norm", "beta"),
)
_KDA = Operation(
    "kda",
    ("q", "k", "v", "g", "beta", "g_raw", "A_log", "dt_bias"),
    ("lower_bound", "qk_l2norm", "beta"),
)
OPERATIONS = {
    operation.variant: operation
    for operation in (
        _LINEAR,
        _RETENTION,
        _LIGHTNING,
        _SIMPLE_GLA,
        _GLA,
        _MAMBA2,
        _DELTA_RULE,
        _GATED_DELTA_RULE,
        _KDA,
    )
}


def linear(
    q: Array,
    k: Array,
    v: Array,
    *,
    normalize: bool | None = None,
    feature_map: Literal["identity", "elu1", "relu"] | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Linear attention: no decay.

        S_t = S_{t-1} + k_t v_t^T,  o_t = scale * S_t^T q_t

    Args:
        inputs: ``q, k``: ``[B, T, H, K]``; ``v``: ``[B, T, HV, V]``.
        normalize: divide by ``scale * q_t . n_t + 1e-10``, ``n_t = n_{t-1} + k_t``; states are
            then pairs ``(state, key_sum [N, HV, K])``. Default: False.
        feature_map: on q and k; ``"elu1"`` is ``elu(x) + 1``. Default: identity.
        **call: see :class:`CallOptions`.

    Returns:
        ``(o, final_state)``, see the module.

    Raises:
        sluice.Error: the call is refused; nothing was written.
    """
    return run("prefill", _LINEAR, (q, k, v), (normalize, feature_map), call)


def linear_step(
    q: Array,
    k: Array,
    v: Array,
    *,
    normalize: bool | None = None,
    feature_map: Literal["identity", "elu1", "relu"] | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Decode with :func:`linear`: one or a few tokens per sequence, states through slots.

    The same arguments and mathematics. A sequence whose read and write slots are both -1 is
    padding: its output is zero and nothing else is touched.
    """
    return run("decode", _LINEAR, (q, k, v), (normalize, feature_map), call)


def retention(
    q: Array,
    k: Array,
    v: Array,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Retention (RetNet): one constant decay per head.

        S_t = exp(g_h) S_{t-1} + k_t v_t^T,  g_h = log(1 - 2^(-5 - h))

    Args:
        inputs: ``q, k``: ``[B, T, H, K]``; ``v``: ``[B, T, HV, V]``.
        **call: see :class:`CallOptions`.

    Returns:
        ``(o, final_state)``, see the module.

    Raises:
        sluice.Error: the call is refused; nothing was written.
    """
    return run("prefill", _RETENTION, (q, k, v), (), call)


def retention_step(
    q: Array,
    k: Array,
    v: Array,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Decode with :func:`retention`: one or a few tokens per sequence, states through slots.

    The same arguments and mathematics. A sequence whose read and write slots are both -1 is
    padding: its output is zero and nothing else is touched.
    """
    return run("decode", _RETENTION, (q, k, v), (), call)


def lightning(
    q: Array,
    k: Array,
    v: Array,
    *,
    layer_idx: int | None = None,
    num_layers: int | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Lightning attention (MiniMax): a constant decay per head, weaker in later layers.

        S_t = exp(g_h) S_{t-1} + k_t v_t^T,  g_h = -(8 / HV) (1 - layer_idx / num_layers) h

    Args:
        inputs: ``q, k``: ``[B, T, H, K]``; ``v``: ``[B, T, HV, V]``.
        layer_idx: index of the layer, from 0. Default: 0.
        num_layers: number of layers. Default: 1.
        **call: see :class:`CallOptions`.

    Returns:
        ``(o, final_state)``, see the module.

    Raises:
        sluice.Error: the call is refused; nothing was written.
    """
    return run("prefill", _LIGHTNING, (q, k, v), (layer_idx, num_layers), call)


def lightning_step(
    q: Array,
    k: Array,
    v: Array,
    *,
    layer_idx: int | None = None,
    num_layers: int | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Decode with :func:`lightning`: one or a few tokens per sequence, states through slots.

    The same arguments and mathematics. A sequence whose read and write slots are both -1 is
    padding: its output is zero and nothing else is touched.
    """
    return run("decode", _LIGHTNING, (q, k, v), (layer_idx, num_layers), call)


def simple_gla(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Simple gated linear attention: one decay per token and head.

        S_t = exp(g_t) S_{t-1} + k_t v_t^T

    Args:
        inputs: ``q, k``: ``[B, T, H, K]``; ``v``: ``[B, T, HV, V]``.
            ``g``: ``[B, T, HV]``, log decay, natural log, <= 0.
        **call: see :class:`CallOptions`.

    Returns:
        ``(o, final_state)``, see the module.

    Raises:
        sluice.Error: the call is refused; nothing was written.
    """
    return run("prefill", _SIMPLE_GLA, (q, k, v, g), (), call)


def simple_gla_step(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Decode with :func:`simple_gla`: one or a few tokens per sequence, states through slots.

    The same arguments and mathematics. A sequence whose read and write slots are both -1 is
    padding: its output is zero and nothing else is touched.
    """
    return run("decode", _SIMPLE_GLA, (q, k, v, g), (), call)


def gla(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Gated linear attention: one decay per token, head and key channel.

        S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T

    Args:
        inputs: ``q, k``: ``[B, T, H, K]``; ``v``: ``[B, T, HV, V]``.
            ``g``: ``[B, T, HV, K]``, log decay, natural log, <= 0.
        **call: see :class:`CallOptions`.

    Returns:
        ``(o, final_state)``, see the module.

    Raises:
        sluice.Error: the call is refused; nothing was written.
    """
    return run("prefill", _GLA, (q, k, v, g), (), call)


def gla_step(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Decode with :func:`gla`: one or a few tokens per sequence, states through slots.

    The same arguments and mathematics. A sequence whose read and write slots are both -1 is
    padding: its output is zero and nothing else is touched.
    """
    return run("decode", _GLA, (q, k, v, g), (), call)


def mamba2(
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    z: Array | None = None,
    dt_bias: Array | None = None,
    *,
    dt_softplus: bool | None = None,
    dt_min: float | None = None,
    dt_max: float | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Mamba-2 (SSD): scalar decay, grouped keys and queries, optional skip and gate.

        dt'_t = clamp(softplus(dt_t + dt_bias)),  S_t = exp(dt'_t A) S_{t-1} + dt'_t x_t B_t^T
        o_t = (S_t C_t + D x_t) * silu(z_t)

    Args:
        inputs: ``x, z``: ``[B, T, HV, V]``; ``dt``: ``[B, T, HV]``; ``A``: ``[HV]``, < 0;
            ``B, C``: ``[B, T, H, K]``, one per group of heads.
            ``D``: ``[HV]`` or ``[HV, V]``; ``dt_bias``: ``[HV]``.
            States are ``[N, HV, V, K]`` unless ``state_layout`` says otherwise; ``scale`` is 1.
        dt_softplus: softplus on ``dt + dt_bias``. Default: True.
        dt_min: lower limit of the time step. Default: 0.
        dt_max: upper limit of the time step. Default: inf.
        **call: see :class:`CallOptions`.

    Returns:
        ``(o, final_state)``, see the module.

    Raises:
        sluice.Error: the call is refused; nothing was written.
    """
    return run(
        "prefill", _MAMBA2, (x, dt, A, B, C, D, z, dt_bias), (dt_softplus, dt_min, dt_max), call
    )


def mamba2_step(
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    z: Array | None = None,
    dt_bias: Array | None = None,
    *,
    dt_softplus: bool | None = None,
    dt_min: float | None = None,
    dt_max: float | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Decode with :func:`mamba2`: one or a few tokens per sequence, states through slots.

    The same arguments and mathematics. A sequence whose read and write slots are both -1 is
    padding: its output is zero and nothing else is touched.
    """
    return run(
        "decode", _MAMBA2, (x, dt, A, B, C, D, z, dt_bias), (dt_softplus, dt_min, dt_max), call
    )


def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    *,
    qk_l2norm: bool | None = None,
    beta_form: Literal["given", "sigmoid", "2sigmoid"] | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """The delta rule (DeltaNet): no decay, the old value under k is replaced.

        S_t = S_{t-1} + k_t u_t^T,  u_t = beta_t (v_t - S_{t-1}^T k_t)

    Args:
        inputs: ``q, k``: ``[B, T, H, K]``; ``v``: ``[B, T, HV, V]``.
            ``beta``: ``[B, T, HV]``, write strength.
        qk_l2norm: q and k are divided by ``sqrt(sum x^2 + 1e-6)``. Default: False.
        beta_form: beta as given, its sigmoid, or twice that. Default: given.
        **call: see :class:`CallOptions`.

    Returns:
        ``(o, final_state)``, see the module.

    Raises:
        sluice.Error: the call is refused; nothing was written.
    """
    return run("prefill", _DELTA_RULE, (q, k, v, beta), (qk_l2norm, beta_form), call)


def delta_rule_step(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    *,
    qk_l2norm: bool | None = None,
    beta_form: Literal["given", "sigmoid", "2sigmoid"] | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Decode with :func:`delta_rule`: one or a few tokens per sequence, states through slots.

    The same arguments and mathematics. A sequence whose read and write slots are both -1 is
    padding: its output is zero and nothing else is touched.
    """
    return run("decode", _DELTA_RULE, (q, k, v, beta), (qk_l2norm, beta_form), call)


def gated_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    beta: Array | None = None,
    *,
    g_raw: Array | None = None,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    qk_l2norm: bool | None = None,
    beta_form: Literal["given", "sigmoid", "2sigmoid"] | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """The gated delta rule (Gated DeltaNet): scalar decay, delta update.

        S_t = exp(g_t) S_{t-1} + k_t u_t^T,  u_t = beta_t (v_t - exp(g_t) S_{t-1}^T k_t)
        from a raw gate: g_t = -exp(A_log) softplus(g_raw_t + dt_bias)

    Args:
        inputs: ``q, k``: ``[B, T, H, K]``; ``v``: ``[B, T, HV, V]``.
            ``g``: ``[B, T, HV]``, log decay, natural log, <= 0; or ``g_raw``:
            ``[B, T, HV]`` with ``A_log``: ``[HV]`` and, if there is one, ``dt_bias``: ``[HV]``.
            ``beta``: ``[B, T, HV]``, write strength.
        qk_l2norm: q and k are divided by ``sqrt(sum x^2 + 1e-6)``. Default: False.
        beta_form: beta as given, its sigmoid, or twice that. Default: given.
        **call: see :class:`CallOptions`.

    Returns:
        ``(o, final_state)``, see the module.

    Raises:
        sluice.Error: the call is refused; nothing was written.
    """
    return run(
        "prefill",
        _GATED_DELTA_RULE,
        (q, k, v, g, beta, g_raw, A_log, dt_bias),
        (qk_l2norm, beta_form),
        call,
    )


def gated_delta_rule_step(
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    beta: Array | None = None,
    *,
    g_raw: Array | None = None,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    qk_l2norm: bool | None = None,
    beta_form: Literal["given", "sigmoid", "2sigmoid"] | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Decode with :func:`gated_delta_rule`: one or a few tokens per sequence, states through slots.

    The same arguments and mathematics. A sequence whose read and write slots are both -1 is
    padding: its output is zero and nothing else is touched.
    """
    return run(
        "decode",
        _GATED_DELTA_RULE,
        (q, k, v, g, beta, g_raw, A_log, dt_bias),
        (qk_l2norm, beta_form),
        call,
    )


def kda(
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    beta: Array | None = None,
    *,
    g_raw: Array | None = None,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    lower_bound: float | None = None,
    qk_l2norm: bool | None = None,
    beta_form: Literal["given", "sigmoid", "2sigmoid"] | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Kimi delta attention: a decay per key channel, delta update.

        S_t = D_t S_{t-1} + k_t u_t^T,  u_t = beta_t (v_t - (D_t S_{t-1})^T k_t)
        from a raw gate: g_t = -exp(A_log) softplus(g_raw_t + dt_bias), or with a lower bound
        g_t = lower_bound * sigmoid(exp(A_log) (g_raw_t + dt_bias))

    Args:
        inputs: ``q, k``: ``[B, T, H, K]``; ``v``: ``[B, T, HV, V]``.
            ``g``: ``[B, T, HV, K]``, log decay, natural log, <= 0; or ``g_raw``:
            ``[B, T, HV, K]`` with ``A_log``: ``[HV]`` and, if there is one, ``dt_bias``:
            ``[HV, K]`` or ``[HV * K]``.
            ``beta``: ``[B, T, HV]``, write strength.
        lower_bound: the raw gate's bound, in [-5, 0). Default: none.
        qk_l2norm: q and k are divided by ``sqrt(sum x^2 + 1e-6)``. Default: False.
        beta_form: beta as given, its sigmoid, or twice that. Default: given.
        **call: see :class:`CallOptions`.

    Returns:
        ``(o, final_state)``, see the module.

    Raises:
        sluice.Error: the call is refused; nothing was written.
    """
    return run(
        "prefill",
        _KDA,
        (q, k, v, g, beta, g_raw, A_log, dt_bias),
        (lower_bound, qk_l2norm, beta_form),
        call,
    )


def kda_step(
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    beta: Array | None = None,
    *,
    g_raw: Array | None = None,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    lower_bound: float | None = None,
    qk_l2norm: bool | None = None,
    beta_form: Literal["given", "sigmoid", "2sigmoid"] | None = None,
    **call: Unpack[CallOptions],
) -> tuple[Array, State | None]:
    """Decode with :func:`kda`: one or a few tokens per sequence, states through slots.

    The same arguments and mathematics. A sequence whose read and write slots are both -1 is
    padding: its output is zero and nothing else is touched.
    """
    return run(
        "decode",
        _KDA,
        (q, k, v, g, beta, g_raw, A_log, dt_bias),
        (lower_bound, qk_l2norm, beta_form),
        call,
    )


__all__ = [
    "Array",
    "CallOptions",
    "State",
    "linear",
    "linear_step",
    "retention",
    "retention_step",
    "lightning",
    "lightning_step",
    "simple_gla",
    "simple_gla_step",
    "gla",
    "gla_step",
    "mamba2",
    "mamba2_step",
    "delta_rule",
    "delta_rule_step",
    "gated_delta_rule",
    "gated_delta_rule_step",
    "kda",
    "kda_step",
]
