"""Gated linear attention in a few lines: prefill, then decode in place, then check both.

python examples/quickstart.py
"""

import numpy as np

import sluice

rng = np.random.default_rng(0)
B, T, H, K, V = 2, 200, 4, 64, 64


def normal(*shape: int) -> np.ndarray:
    """Random float32 numbers. PyTorch tensors (CPU or CUDA) work the same way."""
    return rng.standard_normal(shape).astype(np.float32)


q, k, v = normal(B, T, H, K), normal(B, T, H, K), normal(B, T, H, V)
g = -rng.random((B, T, H, K), dtype=np.float32)  # log decay, <= 0

# Prefill: 199 tokens, and the state after them.
o, state = sluice.ops.gla(q[:, :-1], k[:, :-1], v[:, :-1], g[:, :-1], output_final_state=True)

# Decode: the last token. The state is updated in place.
last, _ = sluice.ops.gla_step(q[:, -1:], k[:, -1:], v[:, -1:], g[:, -1:], state=state)

# All 200 tokens at once, by the float64 definition.
expected, final = sluice.ops.gla(q, k, v, g, output_final_state=True, backend="oracle")


def error(x: np.ndarray, reference: np.ndarray) -> float:
    """RMS(x - reference) / RMS(reference)."""
    return float(np.sqrt(np.mean((x - reference) ** 2) / np.mean(reference**2)))


print(f"o {o.shape}, state {state.shape}")
print(f"error of prefill {error(o, expected[:, :-1]):.1e}")
print(f"error of decode  {error(last, expected[:, -1:]):.1e}")
print(f"error of state   {error(state, final):.1e}")

# A refused call names the argument, what it got and what would do.
try:
    sluice.ops.gla(q, k, v, g[:, :, :1])
except sluice.Error as refused:
    print(f"refused: {refused}")
