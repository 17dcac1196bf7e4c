#!/usr/bin/env python3
"""Gated linear attention beside its peers, in one process on one GPU.

Sluice, FLA's chunk_gla (its Triton path) and softmax attention (cuDNN's and PyTorch's flash kernel)
take turns on the same tensors; common.py says how they are timed. Prints Markdown tables; --json
writes every number.

    lab/peers/build.sh && python3 lab/peers/gla.py --json gla.json

Needs PyTorch, fla-core and a Hopper GPU; with --only-sluice no fla-core. FLA tunes its kernels on
their first calls, for which it compiles some 200 of them: --compile-jobs processes do that ahead,
side by side. What is tuned is what FLA tunes; how long it takes is printed.
"""

import functools
import sys

import common

TABLE = [(16, 16384), (4, 16384), (1, 16384), (16, 4096), (1, 4096)]  # B, T
CROSSOVER = [(b, t) for b in (16, 4, 1) for t in (8192, 4096, 2048)]
NARROW = [(16, 16384)]
LARGE = [(8, 4096), (1, 4096), (1, 16384)]  # GLA-1.3B's heads


def make_inputs(torch, generator, b, t, heads, keys, values):
    q, k, v, g = (common.normal(torch, generator, b, t, heads, channels)
                  for channels in (keys, keys, values, keys))
    return {"q": q, "k": k, "v": v, "g": common.soft_gates(torch, g)}


def peer_gla():
    from fla.ops.gla import chunk_gla
    return lambda q, k, v, g: chunk_gla(q, k, v, g)[0]


def variant(name, heads, keys, values, table, crossover):
    sizes = f"D{keys}" if keys == values else f"K{keys} V{values}"
    return common.Variant(
        name, common.Peer("FLA chunk_gla", peer_gla),
        functools.partial(make_inputs, heads=heads, keys=keys, values=values), f"H{heads} {sizes}",
        table, crossover, recurrence="gla",
        softmax=(common.Softmax(common.CUDNN, "CUDNN_ATTENTION"),
                 common.Softmax("softmax, flash", "FLASH_ATTENTION")))


VARIANTS = [
    variant("gla", 16, 128, 128, TABLE, CROSSOVER),
    variant("gla_narrow", 32, 64, 64, NARROW, []),
    variant("gla_large", 4, 256, 512, LARGE, []),
]


def main():
    parser = common.make_parser(__doc__.splitlines()[0], VARIANTS)
    return common.compare(VARIANTS, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
