"""Microseconds from an eager decode call with torch tensors to its launch (no test; run it).

    python python/tests/call_overhead.py [cpu|cuda]

Parts: sorting the arguments in Python, crossing into the library with the whole call there, all.
On a GPU the queue is drained between batches, so that the host is what is measured.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch

from sluice import _call, _native, ops


def microseconds(function: Callable[[], object], calls: int = 200, batches: int = 25) -> float:
    """Median over batches."""
    times = []
    for _ in range(batches):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    return statistics.median(times)


def main() -> None:
    """Prints one line per part."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    # On a CPU next to no work, so that it does not hide the overhead.
    dims = (1, 1, 16, 128) if device == "cuda" else (1, 1, 1, 16)
    q, k, v, g = (torch.zeros(dims, device=device) for _ in range(4))
    state = torch.zeros((1, dims[2], dims[3], dims[3]), device=device)
    inputs = (("q", q), ("k", k), ("v", v), ("g", g))
    keywords = {"state": state, "threads": 1}

    def sort() -> _call.Request:
        return _call.request_of("decode", "gla", inputs, (), keywords)

    request = sort()
    number = _call.number_of(request.form)
    library = _native.native().call
    with torch.inference_mode():
        parts = {
            "sorting the arguments": sort,
            "the library's call": lambda: library(
                number, None, None, *request.read, *request.written
            ),
            "all": lambda: ops.gla_step(q, k, v, g, **keywords),
        }
        for name, function in parts.items():
            function()
            print(f"{name:24s} {microseconds(function):6.1f} us")


if __name__ == "__main__":
    main()
