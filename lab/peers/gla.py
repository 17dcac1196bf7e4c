#!/usr/bin/env python3
"""Gated linear attention beside its peers, in one process on one GPU.

Sluice, FLA's chunk_gla (its Triton path) and softmax attention (cuDNN's and PyTorch's flash kernel)
take turns on the same tensors; CUDA events time them, with the L2 flushed before every run. Prints a
Markdown table; --json writes every number.

    lab/peers/build.sh && python3 lab/peers/gla.py --json peers.json

Needs PyTorch, fla-core and a Hopper GPU. FLA tunes its kernels on their first calls, for which it
compiles some 200 of them: --compile-jobs processes do that ahead, side by side (0: compiled ahead
already, by --compile-share). What is tuned is what FLA tunes; how long it takes is printed.
"""

import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"
os.environ["FLA_CACHE_RESULTS"] = "0"

COPY_BYTES_PER_S = 4.28e12  # docs/devices.md
FLUSH_BYTES = 256 << 20
# B, T, H, D.
TABLE = [(16, 16384, 16, 128), (4, 16384, 16, 128), (1, 16384, 16, 128), (16, 4096, 16, 128),
         (1, 4096, 16, 128)]
CROSSOVER = [(b, t, 16, 128) for b in (16, 4, 1) for t in (8192, 4096, 2048)]
NARROW = [(16, 16384, 32, 64)]
# FLA keeps what it tunes on the first shape of its heads and channels: one that fills the GPU.
TUNED_ON = {(16, 128): (4, 16384, 16, 128), (32, 64): (4, 16384, 32, 64)}


def parse_arguments():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default=here.parent.parent / "build/peers/libsluice_call.so")
    parser.add_argument("--json", help="write every number to this file")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each contestant and shape")
    parser.add_argument("--seconds", type=float, default=3600,
                        help="start no other shape after this time")
    parser.add_argument("--compile-jobs", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--compile-share", nargs=2, type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def make_inputs(torch, shape, generator):
    b, t, h, d = shape
    q, k, v, g = (torch.randn(b, t, h, d, device="cuda", dtype=torch.bfloat16, generator=generator)
                  for _ in range(4))
    for row in range(b):  # row by row: float32 copies of everything would be in the way
        g[row] = torch.nn.functional.logsigmoid(g[row].float()).div_(16)
    return q, k, v, g


# ------------------------------------------------------------------------------ FLA's compilation


def compile_share(index, count):
    """Runs chunk_gla on little data with every count-th configuration, to have it compiled."""
    import torch
    from triton.runtime.autotuner import Autotuner

    prune = Autotuner.prune_configs
    Autotuner.prune_configs = lambda self, kwargs: (
        prune(self, kwargs)[index::count] or prune(self, kwargs)[:1])
    from fla.ops.gla import chunk_gla

    generator = torch.Generator("cuda").manual_seed(0)
    for b, h, d in [(16, 16, 128), (4, 16, 128), (1, 16, 128), (16, 32, 64)]:
        chunk_gla(*make_inputs(torch, (b, 128, h, d), generator))
    torch.cuda.synchronize()


def compile_ahead(jobs):
    start = time.monotonic()
    processes = [subprocess.Popen([sys.executable, __file__, "--compile-share", str(i), str(jobs)])
                 for i in range(jobs)]
    if any([process.wait() for process in processes]):
        sys.exit("FLA's kernels could not be compiled")
    return time.monotonic() - start


# ------------------------------------------------------------------------------------- contestants


class Sluice:
    name = "sluice"

    def __init__(self, library):
        self.library = ctypes.CDLL(str(library))
        for function in (self.library.sluice_gla, self.library.sluice_gla_plan):
            function.restype = ctypes.c_char_p

    def _call(self, function, tensors, *more):
        b, t, h, d = tensors[0].shape
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in tensors]
        sizes = [ctypes.c_int64(n) for n in (b, t, h, d, d)]
        problem = function(*pointers, *sizes, ctypes.c_int(tensors[0].device.index), *more)
        if problem is not None:
            raise RuntimeError(problem.decode())

    def make(self, torch, q, k, v, g):
        o = torch.empty_like(v)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

        def run():
            self._call(self.library.sluice_gla, (q, k, v, g, o), stream)
            return o

        return run

    def plan(self, torch, q, k, v, g):
        kernel, segments = ctypes.create_string_buffer(32), ctypes.c_int()
        workspace = ctypes.c_int64()
        self._call(self.library.sluice_gla_plan, (q, k, v, g, torch.empty_like(v)), kernel,
                   ctypes.byref(segments), ctypes.byref(workspace))
        return {"kernel": kernel.value.decode(), "segments": segments.value,
                "workspace_bytes": workspace.value}


class Fla:
    name = "FLA chunk_gla"

    def make(self, torch, q, k, v, g):
        from fla.ops.gla import chunk_gla
        return lambda: chunk_gla(q, k, v, g)[0]


class Softmax:
    def __init__(self, name, backend):
        self.name, self.backend = name, backend

    def make(self, torch, q, k, v, g):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        heads_first = [x.transpose(1, 2) for x in (q, k, v)]  # views
        backend = getattr(SDPBackend, self.backend)

        def run():
            with sdpa_kernel(backend):
                o = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)
            return o.transpose(1, 2)

        return run


# ------------------------------------------------------------------------------------- measurement


class Flush:
    """Writes 256 MB, then reads other 256 MB: nothing of a run is left, nothing to write back."""

    def __init__(self, torch):
        self.written, self.copied, self.read = (
            torch.zeros(FLUSH_BYTES, dtype=torch.uint8, device="cuda") for _ in range(3))

    def __call__(self):
        self.written.fill_(1)
        self.copied.copy_(self.read)


def tune_fla(torch, heads_and_channels):
    """Seconds of FLA's first call, which tunes."""
    from fla.ops.gla import chunk_gla

    generator = torch.Generator("cuda").manual_seed(0)
    inputs = make_inputs(torch, TUNED_ON[heads_and_channels], generator)
    torch.cuda.synchronize()
    start = time.monotonic()
    chunk_gla(*inputs)
    torch.cuda.synchronize()
    return time.monotonic() - start


def rms_ratio(torch, x, reference):
    """RMS(x - reference) / RMS(reference), a batch row at a time."""
    error = size = 0.0
    for row in range(x.shape[0]):
        a, b = x[row].float(), reference[row].float()
        error += (a - b).square().sum(dtype=torch.float64).item()
        size += b.square().sum(dtype=torch.float64).item()
    return math.sqrt(error / size)


def first_call(torch, run):
    """Its output, its time, and how much memory was added at the most while a later call ran."""
    start = time.monotonic()
    run()
    torch.cuda.synchronize()
    seconds = time.monotonic() - start
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    o = run()
    torch.cuda.synchronize()
    return o, seconds, torch.cuda.max_memory_allocated() - before


def time_all(torch, runs, flush, rounds):
    """Milliseconds of each run, all in turns."""
    samples = {name: [] for name in runs}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(rounds):
        for name, run in runs.items():
            flush()
            begin.record()
            run()
            end.record()
            end.synchronize()
            samples[name].append(begin.elapsed_time(end))
    return samples


def measure_shape(torch, shape, contestants, flush, rounds):
    generator = torch.Generator("cuda").manual_seed(1)
    inputs = make_inputs(torch, shape, generator)
    bytes_of = inputs[0].numel() * inputs[0].element_size()
    row = {"B": shape[0], "T": shape[1], "H": shape[2], "D": shape[3],
           "floor_ms": 1e3 * 5 * bytes_of / COPY_BYTES_PER_S, "peers": {}}
    runs, outputs = {}, {}
    for contestant in contestants:
        peer = row["peers"][contestant.name] = {}
        try:
            run = contestant.make(torch, *inputs)
            o, peer["first_call_s"], growth = first_call(torch, run)
        except Exception as problem:  # a peer that refuses a shape does not end the comparison
            peer["refused"] = str(problem).splitlines()[0]
            continue
        tensors = 4 if contestant.name in ("sluice", "FLA chunk_gla") else 3
        if contestant.name == "sluice":
            row["plan"] = contestant.plan(torch, *inputs)
            growth = bytes_of + row["plan"]["workspace_bytes"]
        peer["peak_ratio"] = (tensors * bytes_of + growth) / ((tensors + 1) * bytes_of)
        runs[contestant.name], outputs[contestant.name] = run, o
    for x, reference in (("sluice", "FLA chunk_gla"), ("softmax, flash", "softmax, cuDNN")):
        if x in outputs and reference in outputs:
            row[f"{x} against {reference}"] = rms_ratio(torch, outputs[x], outputs[reference])
    outputs.clear()
    for name, samples in time_all(torch, runs, flush, rounds).items():
        quartiles = statistics.quantiles(samples, n=4)
        row["peers"][name].update(ms=statistics.median(samples), low_ms=quartiles[0],
                                  high_ms=quartiles[2], samples_ms=samples)
    return row


# ------------------------------------------------------------------------------------------ output


def describe_machine(torch):
    import fla
    import triton
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.max.sm",
             "--format=csv,noheader"]
    smi = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {"gpu": torch.cuda.get_device_name(), "driver, SM clock, its maximum": smi,
            "torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
            "cudnn": torch.backends.cudnn.version(), "fla": fla.__version__}


def milliseconds(peer):
    return f"{peer['ms']:.3f}" if "ms" in peer else "refused"


def times(row, name):
    """How many times as long as Sluice a peer takes."""
    peers = row["peers"]
    if "ms" not in peers[name] or "ms" not in peers["sluice"]:
        return "-"
    return f"{peers[name]['ms'] / peers['sluice']['ms']:.2f}"


def markdown(rows, names):
    head = ["B", "T", "H", "D", "floor", "kernel, segments", *names,
            *(f"{name} / sluice" for name in names[1:]), "of floor",
            *(f"memory, {name}" for name in names), "RMS to FLA"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        peers, plan = row["peers"], row.get("plan", {"kernel": "-", "segments": "-"})
        share = row["floor_ms"] / peers["sluice"]["ms"] if "ms" in peers["sluice"] else 0
        error = row.get("sluice against FLA chunk_gla")
        cells = [row["B"], row["T"], row["H"], row["D"], f"{row['floor_ms']:.3f}",
                 f"{plan['kernel']}, {plan['segments']}", *(milliseconds(peers[n]) for n in names),
                 *(times(row, n) for n in names[1:]), f"{100 * share:.0f} %",
                 *(f"{peers[n].get('peak_ratio', 0):.2f}" for n in names),
                 "-" if error is None else f"{error:.1e}"]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def crossovers(rows, peer):
    """Where Sluice becomes the faster one, straight between lengths on logarithmic axes."""
    for b in sorted({row["B"] for row in rows}):
        curve = sorted((row["T"], math.log(row["peers"]["sluice"]["ms"] / row["peers"][peer]["ms"]))
                       for row in rows if row["B"] == b and row["D"] == 128
                       and "ms" in row["peers"]["sluice"] and "ms" in row["peers"][peer])
        if not curve:
            continue
        text = "no crossover: " + ("slower" if curve[-1][1] > 0 else "faster") + \
            f" at every T from {curve[0][0]} to {curve[-1][0]}"
        for (t0, lag0), (t1, lag1) in zip(curve, curve[1:]):
            if lag0 > 0 >= lag1:
                text = f"faster from about T = {t0 * (t1 / t0) ** (lag0 / (lag0 - lag1)):.0f} on"
        yield f"- B{b} against {peer}: {text}"


def main():
    arguments = parse_arguments()
    if arguments.compile_share:
        return compile_share(*arguments.compile_share)
    start = time.monotonic()
    compile_s = compile_ahead(arguments.compile_jobs) if arguments.compile_jobs else 0
    import torch

    contestants = [Sluice(arguments.library), Fla(),
                   Softmax("softmax, cuDNN", "CUDNN_ATTENTION"),
                   Softmax("softmax, flash", "FLASH_ATTENTION")]
    names = [contestant.name for contestant in contestants]
    flush, rows, left_out, tuning_s = Flush(torch), [], [], {}
    for shape in dict.fromkeys(TABLE + CROSSOVER + NARROW):
        if time.monotonic() - start > arguments.seconds:
            left_out.append(shape)
            continue
        if shape[2:] not in tuning_s:
            tuning_s[shape[2:]] = tune_fla(torch, shape[2:])
        rows.append(measure_shape(torch, shape, contestants, flush, arguments.rounds))
        print(f"[{time.monotonic() - start:4.0f} s] {shape}: " +
              ", ".join(milliseconds(rows[-1]["peers"][name]) for name in names),
              file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    rows.sort(key=lambda row: (row["D"] != 128, -row["B"], -row["T"]))
    machine = describe_machine(torch)
    if arguments.compile_jobs:
        machine["FLA's kernels compiled ahead, s"] = round(compile_s, 1)
    machine["FLA's first call after that (it tunes), s"] = ", ".join(
        f"H{h} D{d} {seconds:.1f}" for (h, d), seconds in tuning_s.items())
    if arguments.json:
        document = {"machine": machine, "rounds": arguments.rounds, "rows": rows}
        Path(arguments.json).write_text(json.dumps(document, indent=1))
    print("\n".join(f"- {key}: {value}" for key, value in machine.items()))
    print(f"\n{markdown(rows, names)}\n")
    for name in names[2:]:
        print("\n".join(crossovers(rows, name)))
    for row in rows:
        calls = ", ".join(f"{name} {peer['first_call_s']:.2f}" for name, peer in
                          row["peers"].items() if "first_call_s" in peer)
        print(f"- first call at B{row['B']} T{row['T']} H{row['H']} D{row['D']}, s: {calls}")
    for shape in left_out:
        print(f"- not measured for lack of time: {shape}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
