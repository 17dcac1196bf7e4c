"""Calls whose results a peer's own tests bound more narrowly than this library computes them.

On a GPU, inputs of 16 bits are multiplied by tensor cores, operands and chunk states rounded to
bfloat16 (docs/exactness.md: an error of up to 4e-3 of the output's RMS); float16 inputs lose three
bits by that. Nearly all peers' tests allow as much. What is here is left to the original, unless
the caller allows it (``allow``).
"""

from __future__ import annotations

import torch

TOO_COARSE: dict[tuple[str, torch.dtype], str] = {
    ("chunk_linear_attn", torch.float16): (
        "float16: the original's test allows an error of 1e-3, products of operands rounded to "
        "bfloat16 have 2.4e-3 (allow(coarse=True))"
    ),
}
"""Why, by function and the values' dtype."""
