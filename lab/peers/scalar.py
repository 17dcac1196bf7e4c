#!/usr/bin/env python3
"""Recurrences with a scalar, constant or no decay beside their peers, in one process on one GPU.

Sluice, the peer (FLA's chunk_* and mamba_ssm's mamba_chunk_scan_combined, all Triton) and cuDNN's
causal softmax attention with as many heads and value channels take turns on the same tensors;
common.py says how they are timed. Prints Markdown tables; --json writes every number.

    lab/peers/build.sh && python3 lab/peers/scalar.py --json scalar.json

Needs PyTorch, fla-core, einops, mamba_ssm and a Hopper GPU; with --only-sluice no peers. Of
mamba_ssm only Triton modules are used; with --mamba-source they are read from an unpacked source
distribution, whose compiled parts need not exist. What is not installed is shown as refused.

Triton's kernels are tuned on their first calls, for which some 200 of them are compiled:
--compile-jobs processes do that ahead, side by side. What is tuned is what the peers tune; how
long it takes is printed.
"""

import math
import sys
import types
from pathlib import Path

import common

HEADS, CHANNELS = 16, 128
MAMBA_HEADS, MAMBA_CHANNELS, MAMBA_STATE, MAMBA_GROUPS = 64, 64, 128, 1
MAMBA_CHUNK = 256  # mamba_ssm's default for a layer
TABLE = [(16, 16384), (1, 16384), (1, 4096)]  # B, T
MAMBA_TABLE = [(4, 16384), (1, 16384), (1, 4096)]
CROSSOVER = [(4, 16384)] + [(b, t) for b in (16, 4, 1) for t in (8192, 4096, 2048)]
MAMBA_CROSSOVER = [(b, t) for b in (4, 1) for t in (8192, 2048)]


# ------------------------------------------------------------------------------------------ inputs


def attention_inputs(torch, generator, b, t):
    return {x: common.normal(torch, generator, b, t, HEADS, CHANNELS) for x in "qkv"}


def gated_inputs(torch, generator, b, t):
    inputs = attention_inputs(torch, generator, b, t)
    g = common.normal(torch, generator, b, t, HEADS)
    return {**inputs, "g": common.soft_gates(torch, g)}


def mamba_inputs(torch, generator, b, t):
    """As a layer starts out: time steps around 0.001 to 0.1, rates 1 to 16."""
    def uniform(low, high):
        x = torch.rand(MAMBA_HEADS, device=generator.device, generator=generator)
        return low + (high - low) * x

    step = uniform(math.log(1e-3), math.log(1e-1)).exp()
    return {"x": common.normal(torch, generator, b, t, MAMBA_HEADS, MAMBA_CHANNELS),
            "dt": common.normal(torch, generator, b, t, MAMBA_HEADS),
            "A": -uniform(1, 16),
            "B": common.normal(torch, generator, b, t, MAMBA_GROUPS, MAMBA_STATE),
            "C": common.normal(torch, generator, b, t, MAMBA_GROUPS, MAMBA_STATE),
            "dt_bias": step.expm1().log(),  # softplus gives `step`
            "D": uniform(0, 2)}


def mamba_operands(torch, inputs):
    """Softmax attention's q, k, v for as many heads and value channels."""
    x = inputs["x"]
    return [torch.randn_like(x), torch.randn_like(x), x]


# ------------------------------------------------------------------------------------------- peers


def peer_simple_gla():
    from fla.ops.simple_gla import chunk_simple_gla
    return lambda q, k, v, g: chunk_simple_gla(q, k, v, g)[0]


def peer_lightning():
    from fla.ops.lightning_attn import chunk_lightning_attn
    return lambda q, k, v: chunk_lightning_attn(q, k, v, layer_idx=0, num_layers=1)[0]


def peer_retention():
    from fla.ops.retention import chunk_retention
    return lambda q, k, v: chunk_retention(q, k, v)[0]


def peer_linear():
    from fla.ops.linear_attn import chunk_linear_attn
    return lambda q, k, v: chunk_linear_attn(q, k, v, normalize=False)[0]


def peer_mamba2():
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    def run(x, dt, A, B, C, dt_bias, D):
        return mamba_chunk_scan_combined(x, dt, A, B, C, MAMBA_CHUNK, D=D, dt_bias=dt_bias,
                                         dt_softplus=True)

    return run


def find_mamba(source):
    """Makes mamba_ssm the package in `source` without running its __init__, which imports the
    compiled parts."""
    package = types.ModuleType("mamba_ssm")
    package.__path__ = [str(Path(source) / "mamba_ssm")]
    package.__version__ = Path(source).resolve().name
    sys.modules["mamba_ssm"] = package


# ---------------------------------------------------------------------------------------- variants


def variant(name, peer, function, make_inputs, crossover=()):
    return common.Variant(name, common.Peer(peer, function), make_inputs, f"H{HEADS} D{CHANNELS}",
                          TABLE, list(crossover))


VARIANTS = [
    common.Variant("mamba2", common.Peer("mamba_ssm", peer_mamba2), mamba_inputs,
                   f"H{MAMBA_HEADS} P{MAMBA_CHANNELS} N{MAMBA_STATE} G{MAMBA_GROUPS}",
                   MAMBA_TABLE, MAMBA_CROSSOVER, like="x",
                   softmax=(common.Softmax(common.CUDNN, "CUDNN_ATTENTION", mamba_operands),)),
    variant("simple_gla", "FLA chunk_simple_gla", peer_simple_gla, gated_inputs, CROSSOVER),
    variant("lightning", "FLA chunk_lightning_attn", peer_lightning, attention_inputs),
    variant("retention", "FLA chunk_retention", peer_retention, attention_inputs),
    variant("linear", "FLA chunk_linear_attn", peer_linear, attention_inputs),
]


def main():
    parser = common.make_parser(__doc__.splitlines()[0], VARIANTS)
    parser.add_argument("--mamba-source", help="folder of an unpacked mamba_ssm, not installed")
    arguments = parser.parse_args()
    if arguments.mamba_source:
        find_mamba(arguments.mamba_source)
    return common.compare(VARIANTS, arguments)


if __name__ == "__main__":
    sys.exit(main())
