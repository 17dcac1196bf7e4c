"""Microseconds from an eager call with torch tensors to its launch (no test; run it).

    python python/tests/call_overhead.py [cpu|cuda]

Parts of a call: sorting the arguments in Python, crossing into the library with the whole call
there (with and without a fresh output), all. On a GPU the queue is drained between batches, so that
the host is what is measured; two calls of PyTorch's own are beside it. On a CPU the work itself is
in it: next to none.
"""

from __future__ import annotations

import statistics
import sys
import timeit
from collections.abc import Callable

import torch

from sluice import _call, _native, ops

CALLS, BATCHES = 200, 40


def report(name: str, function: Callable[[], object], wait: Callable[[], object]) -> None:
    """Prints the median over batches."""
    timer, times = timeit.Timer(function, setup=wait), []
    for _ in range(BATCHES):
        times.append(timer.timeit(CALLS) / CALLS * 1e6)
    print(f"{name:36s} {statistics.median(times):6.2f} us")


def measure(phase: str, operation: Callable[..., object], inputs: dict, state, wait) -> None:
    """Prints one line per part of a call that updates the state in place."""
    pairs, keywords = tuple(inputs.items()), {"state": state, "threads": 1}

    def sort() -> _call.Request:
        return _call.request_of(phase, "gla", pairs, (), keywords)

    def library_call(more: dict) -> Callable[[], object]:
        request = _call.request_of(phase, "gla", pairs, (), {**keywords, **more})
        number, library = _call.number_of(request.form), _native.native().call
        tensors = request.read + request.written
        return lambda: library(number, None, None, *tensors)

    report(f"{phase}: sorting the arguments", sort, wait)
    report(f"{phase}: the library's call", library_call({}), wait)
    given = {"out": torch.empty_like(inputs["v"])}
    report(f"{phase}: the same, output given", library_call(given), wait)
    report(f"{phase}: all", lambda: operation(*inputs.values(), **keywords), wait)


def main() -> None:
    """A decode step of one token, and a prefill of one chunk."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    on_gpu = device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    print(torch.cuda.get_device_name() if on_gpu else "CPU", "torch", torch.__version__)
    H, K = (16, 128) if on_gpu else (1, 16)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    with torch.inference_mode():
        for phase, operation, T in (("decode", ops.gla_step, 1), ("prefill", ops.gla, 64)):
            tensors = (torch.zeros(1, T, H, K, device=device, dtype=dtype) for _ in range(4))
            inputs = dict(zip("qkvg", tensors, strict=True))
            state = torch.zeros(1, H, K, K, device=device)
            measure(phase, operation, inputs, state, wait)
        x, o = inputs["v"], torch.empty_like(inputs["v"])
        report("torch.empty_like", lambda: torch.empty_like(x), wait)
        report("torch.add(out=)", lambda: torch.add(x, x, out=o), wait)


if __name__ == "__main__":
    main()
