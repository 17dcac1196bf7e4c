#!/usr/bin/env python3
"""Gated linear attention beside its peers, in one process on one GPU.

Sluice, FLA's chunk_gla (its Triton path) and softmax attention (cuDNN's and PyTorch's flash kernel)
take turns on the same tensors; CUDA events time them, with the L2 flushed before every run. Prints
a Markdown table; --json writes every number.

    lab/peers/build.sh && python3 lab/peers/gla.py --json peers.json

Needs PyTorch, fla-core and a Hopper GPU. FLA tunes its kernels on their first calls, for which it
compiles some 200 of them: --compile-jobs processes do that ahead, side by side (0: compiled ahead
already, by --compile-share). What is tuned is what FLA tunes; how long it takes is printed.
"""

import json
import sys
import time
from pathlib import Path

import common

# B, T, H, D.
TABLE = [(16, 16384, 16, 128), (4, 16384, 16, 128), (1, 16384, 16, 128), (16, 4096, 16, 128),
         (1, 4096, 16, 128)]
CROSSOVER = [(b, t, 16, 128) for b in (16, 4, 1) for t in (8192, 4096, 2048)]
NARROW = [(16, 16384, 32, 64)]
# FLA keeps what it tunes on the first shape of its heads and channels: one that fills the GPU.
TUNED_ON = {(16, 128): (4, 16384, 16, 128), (32, 64): (4, 16384, 32, 64)}
FLA = "FLA chunk_gla"
FLASH = "softmax, flash"


def make_inputs(torch, shape, generator):
    b, t, h, d = shape
    q, k, v, g = (torch.randn(b, t, h, d, device="cuda", dtype=torch.bfloat16, generator=generator)
                  for _ in range(4))
    for row in range(b):  # row by row: float32 copies of everything would be in the way
        g[row] = torch.nn.functional.logsigmoid(g[row].float()).div_(16)
    return {"q": q, "k": k, "v": v, "g": g}


class Fla:
    name = FLA

    def make(self, torch, inputs):
        from fla.ops.gla import chunk_gla
        operands = list(inputs.values())
        return lambda: chunk_gla(*operands)[0], operands


def compile_share(index, count):
    """Runs chunk_gla on little data with every count-th configuration, to have it compiled."""
    import torch

    common.keep_share(index, count)
    generator = torch.Generator("cuda").manual_seed(0)
    for b, h, d in [(16, 16, 128), (4, 16, 128), (1, 16, 128), (16, 32, 64)]:
        run, _ = Fla().make(torch, make_inputs(torch, (b, 128, h, d), generator))
        run()
    torch.cuda.synchronize()


def compile_ahead(jobs):
    seconds, failed = common.run_side_by_side(
        [("--compile-share", i, jobs) for i in range(jobs)])
    if failed:
        sys.exit("FLA's kernels could not be compiled")
    return seconds


def tune_fla(torch, heads_and_channels):
    """Seconds of FLA's first call, which tunes."""
    generator = torch.Generator("cuda").manual_seed(0)
    run, _ = Fla().make(torch, make_inputs(torch, TUNED_ON[heads_and_channels], generator))
    torch.cuda.synchronize()
    start = time.monotonic()
    run()
    torch.cuda.synchronize()
    return time.monotonic() - start


def measure_shape(torch, shape, contestants, flush, rounds):
    inputs = make_inputs(torch, shape, torch.Generator("cuda").manual_seed(1))
    row = {**dict(zip("BTHD", shape)), "floor_ms": common.floor_ms(inputs, inputs["v"])}
    return common.measure_shape(torch, row, inputs, contestants,
                                [(common.SLUICE, FLA), (FLASH, common.CUDNN)], flush, rounds)


def main():
    arguments = common.make_parser(__doc__.splitlines()[0]).parse_args()
    if arguments.compile_share:
        return compile_share(*arguments.compile_share)
    start = time.monotonic()
    compile_s = compile_ahead(arguments.compile_jobs) if arguments.compile_jobs else 0
    import fla
    import torch

    contestants = [common.Sluice(arguments.library, "gla"), Fla(),
                   common.Softmax(common.CUDNN, "CUDNN_ATTENTION"),
                   common.Softmax(FLASH, "FLASH_ATTENTION")]
    names = [contestant.name for contestant in contestants]
    flush, rows, left_out, tuning_s = common.Flush(torch), [], [], {}
    for shape in dict.fromkeys(TABLE + CROSSOVER + NARROW):
        if time.monotonic() - start > arguments.seconds:
            left_out.append(shape)
            continue
        if shape[2:] not in tuning_s:
            tuning_s[shape[2:]] = tune_fla(torch, shape[2:])
        rows.append(measure_shape(torch, shape, contestants, flush, arguments.rounds))
        common.report_progress(time.monotonic() - start, shape, rows[-1])
        torch.cuda.empty_cache()
    rows.sort(key=lambda row: (row["D"] != 128, -row["B"], -row["T"]))
    machine = {**common.describe_machine(torch), "fla": fla.__version__}
    if arguments.compile_jobs:
        machine["FLA's kernels compiled ahead, s"] = round(compile_s, 1)
    machine["FLA's first call after that (it tunes), s"] = ", ".join(
        f"H{h} D{d} {seconds:.1f}" for (h, d), seconds in tuning_s.items())
    if arguments.json:
        document = {"machine": machine, "rounds": arguments.rounds, "rows": rows}
        Path(arguments.json).write_text(json.dumps(document, indent=1))
    print("\n".join(f"- {key}: {value}" for key, value in machine.items()))
    print(f"\n{common.markdown(rows, 'BTHD', names, FLA, 'FLA')}\n")
    for name in names[2:]:
        print("\n".join(common.crossovers([row for row in rows if row["D"] == 128], name)))
    for row in rows:
        print(f"- first call at B{row['B']} T{row['T']} H{row['H']} D{row['D']}, s: "
              f"{common.first_calls(row)}")
    for shape in left_out:
        print(f"- not measured for lack of time: {shape}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
