"""The tolerances of flash-linear-attention's own tests, function by function."""

from __future__ import annotations

from typing import NamedTuple


class Tolerance(NamedTuple):
    """Of the output and of the final state: RMS relative to the reference's."""

    o: float
    state: float
    dtypes: tuple[str, ...]
    """Those that its tests take."""


_HALF, _ALL = ("float16",), ("float32", "float16", "bfloat16")
_WIDE = ("float32", "float16")

# The narrowest of the function's tests (retention and the delta rule: of packed sequences).
FLA = {
    "chunk_linear_attn": Tolerance(1e-3, 1e-3, _HALF),
    "fused_recurrent_linear_attn": Tolerance(1e-3, 1e-3, _WIDE),
    "chunk_retention": Tolerance(4e-3, 5e-3, _HALF),
    "fused_recurrent_retention": Tolerance(5e-3, 5e-3, _HALF),
    "chunk_lightning_attn": Tolerance(5e-3, 5e-3, _HALF),
    "chunk_simple_gla": Tolerance(4e-3, 5e-3, _HALF),
    "fused_recurrent_simple_gla": Tolerance(5e-3, 5e-3, _WIDE),
    "chunk_gla": Tolerance(4e-3, 5e-3, ("float16", "bfloat16")),
    "fused_recurrent_gla": Tolerance(5e-3, 5e-3, _WIDE),
    "chunk_delta_rule": Tolerance(5e-3, 5e-3, ("float16", "bfloat16")),
    "chunk_gated_delta_rule": Tolerance(5e-3, 5e-3, _WIDE),
    "fused_recurrent_gated_delta_rule": Tolerance(2e-3, 2e-3, _WIDE),
    "chunk_kda": Tolerance(5e-3, 5e-3, _ALL),
    "fused_recurrent_kda": Tolerance(2e-3, 2e-3, _WIDE),
}
