"""Sluice: recurrent-state ("linear") attention for NumPy, PyTorch, CuPy and JAX arrays.

    import sluice

    o, state = sluice.ops.gla(q, k, v, g, output_final_state=True)      # prefill
    o, _ = sluice.ops.gla_step(q1, k1, v1, g1, state=state)             # decode, in place

``sluice.compat.fla`` and ``sluice.compat.mamba_ssm`` have the functions of those packages.
"""

from . import ops
from ._error import Error

__version__ = "0.1.0"


def variants() -> dict[str, dict[str, str]]:
    """The recurrences by name: their settings and what each means; under ``""`` a summary."""
    from ._native import native

    table = {}
    for name, summary, *settings in native().variants():
        pairs = [str(text) for text in settings]
        table[str(name)] = {"": str(summary), **dict(zip(pairs[::2], pairs[1::2], strict=True))}
    return table


__all__ = ["Error", "ops", "variants"]
