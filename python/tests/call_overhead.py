"""Microseconds from an eager call with torch tensors to its launch (no test; run it).

    python python/tests/call_overhead.py [cpu|cuda]

Parts of a call: taking the arguments apart in Python, crossing into the library with the whole call
there (with and without a fresh output), all. On a GPU the queue is drained between batches, so that
the host is what is measured; the peers' functions, as ``sluice.compat`` has them, and two calls of
PyTorch's own are beside it. On a CPU the work itself is in it: next to none.
"""

from __future__ import annotations

import functools
import statistics
import sys
import timeit
from collections.abc import Callable

import torch

from sluice import _call, _native, ops
from sluice.compat import fla, mamba_ssm

CALLS, BATCHES = 200, 40


def report(name: str, function: Callable[[], object], wait: Callable[[], object]) -> None:
    """Prints the median over batches."""
    timer, times = timeit.Timer(function, setup=wait), []
    for _ in range(BATCHES):
        times.append(timer.timeit(CALLS) / CALLS * 1e6)
    print(f"{name:54s} {statistics.median(times):6.2f} us")


def measure(function: Callable[..., object], inputs: dict, state, wait) -> None:
    """Prints one line per part of a call that updates the state in place."""
    name = function.__name__
    phase = "decode" if name.endswith("_step") else "prefill"
    operation = _call.Operation(name.removesuffix("_step"), tuple(inputs))
    values, keywords = tuple(inputs.values()), {"state": state, "threads": 1}

    def taken_apart(more: dict) -> tuple:
        return _call.taken_apart(phase, operation, values, (), {**keywords, **more}, False)

    def library_call(more: dict) -> Callable[[], object]:
        key, tensors, _, _ = taken_apart(more)
        number, library = _call.declared(key)[0], _native.native().call
        return lambda: library(number, None, None, *tensors)

    report(f"{name}: taking the arguments apart", lambda: taken_apart({}), wait)
    report(f"{name}: the library's call", library_call({}), wait)
    given = {"out": torch.empty_like(inputs["v" if "v" in inputs else "x"])}
    report(f"{name}: the same, output given", library_call(given), wait)
    report(f"{name}: all", lambda: function(*values, **keywords), wait)
    report(f"{name}: all, output given", lambda: function(*values, **keywords, **given), wait)


def measure_compat(zeros: Callable[..., torch.Tensor], H: int, K: int, wait) -> None:
    """Prints one line per function of the peers'; the step updates its state in place."""
    q, k, v, g = (zeros(1, 64, H, K) for _ in range(4))
    report("fla.chunk_gla: all", lambda: fla.chunk_gla(q, k, v, g), wait)
    q1, k1, v1, g1 = (x[:, :1] for x in (q, k, v, g))
    beta = zeros(1, 1, H)
    states = {
        "initial_state": zeros(1, H, K, K, dtype=torch.float32),
        "output_final_state": True,
    }
    for step, gates in (
        (fla.fused_recurrent_gla, {"gk": g1}),
        (fla.fused_recurrent_simple_gla, {"g": beta}),
        (fla.fused_recurrent_gated_delta_rule, {"g": beta, "beta": beta}),
        (fla.fused_recurrent_kda, {"g": g1, "beta": beta}),
    ):
        call = functools.partial(step, q1, k1, v1, **gates, **states)
        report(f"fla.{step.__name__}, with states: all", call, wait)
    x, dt, pair = zeros(1, 64, H, 64), zeros(1, 64, H), [zeros(1, 64, 1, K) for _ in range(2)]
    A, bias = (zeros(H, dtype=torch.float32) for _ in range(2))
    scan = mamba_ssm.mamba_chunk_scan_combined
    keywords = {"D": bias, "dt_bias": bias, "dt_softplus": True}
    report("mamba_chunk_scan_combined: all", lambda: scan(x, dt, A, *pair, 64, **keywords), wait)
    channels = bias[:, None].expand(H, 64)
    one = (x[:, 0], dt[:, 0, :, None].expand(1, H, 64), A[:, None, None].expand(H, 64, K))
    one += tuple(y[:, 0] for y in pair)
    of_step = {"D": channels, "dt_bias": channels, "dt_softplus": True}
    state = zeros(1, H, 64, K, dtype=torch.float32)
    update = mamba_ssm.selective_state_update
    report("selective_state_update: all", lambda: update(state, *one, **of_step), wait)


def main() -> None:
    """A decode step of one token, and prefills of one chunk."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    on_gpu = device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    print(torch.cuda.get_device_name() if on_gpu else "CPU", "torch", torch.__version__)
    H, K = (16, 128) if on_gpu else (1, 16)
    dtype = torch.bfloat16 if on_gpu else torch.float32

    def zeros(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.zeros(shape, device=device, dtype=dtype)

    with torch.inference_mode():
        for function, T in ((ops.gla_step, 1), (ops.gla, 64), (ops.simple_gla, 64)):
            inputs = {name: zeros(1, T, H, K) for name in "qkv"}
            inputs["g"] = zeros(1, T, H) if function is ops.simple_gla else zeros(1, T, H, K)
            measure(function, inputs, zeros(1, H, K, K, dtype=torch.float32), wait)
        A, D, dt_bias = (zeros(H, dtype=torch.float32) for _ in range(3))
        B, C = (zeros(1, 64, 1, K) for _ in range(2))
        inputs = {"x": zeros(1, 64, H, 64), "dt": zeros(1, 64, H), "A": A, "B": B, "C": C}
        inputs |= {"D": D, "z": None, "dt_bias": dt_bias}
        measure(ops.mamba2, inputs, zeros(1, H, 64, K, dtype=torch.float32), wait)
        measure_compat(zeros, H, K, wait)
        x, o = zeros(1, 64, H, K), zeros(1, 64, H, K)
        report("torch.empty_like", lambda: torch.empty_like(x), wait)
        report("torch.add(out=)", lambda: torch.add(x, x, out=o), wait)


if __name__ == "__main__":
    main()
