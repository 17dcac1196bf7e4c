#!/usr/bin/env python3
"""Recurrences with a scalar, constant or no decay beside their peers, in one process on one GPU.

Sluice, the peer (FLA's chunk_* and mamba_ssm's mamba_chunk_scan_combined, all Triton) and cuDNN's
causal softmax attention with as many heads and value channels take turns on the same tensors; CUDA
events time them, with the L2 flushed before every run. Prints Markdown tables; --json writes every
number.

    lab/peers/build.sh && python3 lab/peers/scalar.py --json scalar.json

Needs PyTorch, fla-core, einops, mamba_ssm and a Hopper GPU. Of mamba_ssm only Triton modules are
used; with --mamba-source they are read from an unpacked source distribution, whose compiled parts
need not exist. What is not installed is shown as refused.

Triton's kernels are tuned on their first calls, for which some 200 of them are compiled:
--compile-jobs processes do that ahead, side by side, and others compile Sluice's (0: nothing is
compiled ahead). What is tuned is what the peers tune; how long it takes is printed.
"""

import dataclasses
import json
import math
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import common

HEADS, CHANNELS = 16, 128
MAMBA_HEADS, MAMBA_CHANNELS, MAMBA_STATE, MAMBA_GROUPS = 64, 64, 128, 1
MAMBA_CHUNK = 256  # mamba_ssm's default for a layer
TABLE = [(16, 16384), (1, 16384), (1, 4096)]  # B, T
MAMBA_TABLE = [(4, 16384), (1, 16384), (1, 4096)]
CROSSOVER = [(4, 16384)] + [(b, t) for b in (16, 4, 1) for t in (8192, 4096, 2048)]
MAMBA_CROSSOVER = [(b, t) for b in (4, 1) for t in (8192, 2048)]
# Peers keep what they tune on the first shape: one that fills the GPU.
TUNED_ON = (4, 16384)
# Triton compiles anew where a size stops being a multiple of 16: the number of mamba_ssm's chunks.
COMPILED_TOKENS = 16 * MAMBA_CHUNK


# ------------------------------------------------------------------------------------------ inputs


def normal(torch, generator, *shape):
    return torch.randn(*shape, device=generator.device, dtype=torch.bfloat16, generator=generator)


def attention_inputs(torch, generator, b, t):
    return {x: normal(torch, generator, b, t, HEADS, CHANNELS) for x in "qkv"}


def gated_inputs(torch, generator, b, t):
    inputs = attention_inputs(torch, generator, b, t)
    g = normal(torch, generator, b, t, HEADS).float()
    return {**inputs, "g": (torch.nn.functional.logsigmoid(g) / 16).bfloat16()}


def mamba_inputs(torch, generator, b, t):
    """As a layer starts out: time steps around 0.001 to 0.1, rates 1 to 16."""
    def uniform(low, high):
        x = torch.rand(MAMBA_HEADS, device=generator.device, generator=generator)
        return low + (high - low) * x

    step = uniform(math.log(1e-3), math.log(1e-1)).exp()
    return {"x": normal(torch, generator, b, t, MAMBA_HEADS, MAMBA_CHANNELS),
            "dt": normal(torch, generator, b, t, MAMBA_HEADS),
            "A": -uniform(1, 16),
            "B": normal(torch, generator, b, t, MAMBA_GROUPS, MAMBA_STATE),
            "C": normal(torch, generator, b, t, MAMBA_GROUPS, MAMBA_STATE),
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


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    function: Callable  # imports it

    def make(self, torch, inputs):
        function = self.function()
        return lambda: function(**inputs), list(inputs.values())


# ---------------------------------------------------------------------------------------- variants


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str  # Sluice's
    peer: Peer
    make_inputs: Callable
    table: list
    crossover: list = dataclasses.field(default_factory=list)
    sizes: str = f"H{HEADS} D{CHANNELS}"
    like: str = "v"  # the input of the output's shape
    softmax: common.Softmax = common.Softmax(common.CUDNN, "CUDNN_ATTENTION")

    @property
    def shapes(self):
        return list(dict.fromkeys(self.table + self.crossover))

    def contestants(self, library):
        return [common.Sluice(library, self.name, self.like), self.peer, self.softmax]

    def inputs(self, torch, shape, seed=0):
        return self.make_inputs(torch, torch.Generator("cuda").manual_seed(seed), *shape)


VARIANTS = [
    Variant("mamba2", Peer("mamba_ssm", peer_mamba2), mamba_inputs,
            MAMBA_TABLE, MAMBA_CROSSOVER,
            f"H{MAMBA_HEADS} P{MAMBA_CHANNELS} N{MAMBA_STATE} G{MAMBA_GROUPS}", "x",
            common.Softmax(common.CUDNN, "CUDNN_ATTENTION", mamba_operands)),
    Variant("simple_gla", Peer("FLA chunk_simple_gla", peer_simple_gla), gated_inputs, TABLE,
            CROSSOVER),
    Variant("lightning", Peer("FLA chunk_lightning_attn", peer_lightning), attention_inputs, TABLE),
    Variant("retention", Peer("FLA chunk_retention", peer_retention), attention_inputs, TABLE),
    Variant("linear", Peer("FLA chunk_linear_attn", peer_linear), attention_inputs, TABLE),
]
# The peers that compile kernels of their own: chunk_retention runs chunk_lightning_attn's.
COMPILED = [variant for variant in VARIANTS if variant.name != "retention"]


# ------------------------------------------------------------------------------------- compilation


def compile_share(index, count):
    """Runs the peers on little data with every count-th configuration, to have it compiled."""
    import torch

    common.keep_share(index, count)
    for variant in COMPILED:
        batches = dict.fromkeys(b for b, _ in [TUNED_ON, *variant.shapes])
        try:
            for b in batches:
                run, _ = variant.peer.make(torch, variant.inputs(torch, (b, COMPILED_TOKENS)))
                run()
        except Exception as problem:  # the comparison will say so too
            print(f"{variant.peer.name}: {common.reason(problem)}", file=sys.stderr)
    torch.cuda.synchronize()


def prepare_sluice(library, name):
    """Compiles what Sluice launches for all shapes of a variant."""
    import torch

    variant = next(variant for variant in VARIANTS if variant.name == name)
    for shape in variant.shapes:
        call, _ = common.Sluice(library, name, variant.like).make(
            torch, variant.inputs(torch, shape))
        call.prepare()


def compile_ahead(arguments):
    jobs = arguments.compile_jobs
    source = ["--mamba-source", arguments.mamba_source] if arguments.mamba_source else []
    return common.run_side_by_side(
        [("--library", arguments.library, "--prepare", variant.name) for variant in COMPILED] +
        [("--compile-share", i, jobs, *source) for i in range(jobs)])


def tune(torch, variant):
    """Seconds of the peer's first call, which tunes."""
    inputs = variant.inputs(torch, TUNED_ON)
    torch.cuda.synchronize()
    start = time.monotonic()
    try:
        run, _ = variant.peer.make(torch, inputs)
        run()
        torch.cuda.synchronize()
    except Exception as problem:  # the comparison will say so too
        print(f"{variant.peer.name}: {common.reason(problem)}", file=sys.stderr)
    return time.monotonic() - start


# ------------------------------------------------------------------------------------- measurement


def work_list():
    """(variant, shape): the table of every variant, then the crossovers."""
    tables = [(variant, shape) for variant in VARIANTS for shape in variant.table]
    everything = [(variant, shape) for variant in VARIANTS for shape in variant.shapes]
    return tables + [item for item in everything if item not in tables]


def measure(torch, variant, shape, arguments, flush):
    inputs = variant.inputs(torch, shape, seed=1)
    row = {"variant": variant.name, "sizes": variant.sizes, **dict(zip("BT", shape)),
           "floor_ms": common.floor_ms(inputs, inputs[variant.like])}
    return common.measure_shape(torch, row, inputs, variant.contestants(arguments.library),
                                [(common.SLUICE, variant.peer.name)], flush, arguments.rounds)


def save(path, document):
    if path:
        Path(path).write_text(json.dumps(document, indent=1))


def print_variant(variant, rows):
    names = [common.SLUICE, variant.peer.name, common.CUDNN]
    rows = sorted(rows, key=lambda row: (-row["B"], -row["T"]))
    print(f"\n{variant.name}, {variant.sizes}\n")
    print(common.markdown(rows, "BT", names, variant.peer.name, "peer") + "\n")
    if variant.crossover:
        for name in names[1:]:
            print("\n".join(common.crossovers(rows, name)))
    for row in rows:
        print(f"- first call at B{row['B']} T{row['T']}, s: {common.first_calls(row)}")
        for name, peer in row["peers"].items():
            if "refused" in peer:
                print(f"- {name} at B{row['B']} T{row['T']}: {peer['refused']}")


def parse_arguments():
    parser = common.make_parser(__doc__.splitlines()[0])
    parser.add_argument("--mamba-source", help="folder of an unpacked mamba_ssm, not installed")
    parser.add_argument("--prepare", help="compile Sluice's kernels for this variant, no more",
                        choices=[variant.name for variant in VARIANTS])
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if arguments.mamba_source:
        find_mamba(arguments.mamba_source)
    if arguments.compile_share:
        return compile_share(*arguments.compile_share)
    if arguments.prepare:
        return prepare_sluice(arguments.library, arguments.prepare)
    start = time.monotonic()
    compile_s, failed = compile_ahead(arguments) if arguments.compile_jobs else (0, 0)
    if failed:  # kernels are compiled when they are needed, then
        print(f"{failed} processes that compile failed", file=sys.stderr)
    import torch

    machine, rows, left_out, tuning_s = {}, [], [], {}
    document = {"machine": machine, "rounds": arguments.rounds, "rows": rows}
    flush = common.Flush(torch)
    for variant, shape in work_list():
        what = f"{variant.name} B{shape[0]} T{shape[1]}"
        if time.monotonic() - start > arguments.seconds:
            left_out.append(f"{what}: lack of time")
            continue
        try:
            if variant.name not in tuning_s:
                tuning_s[variant.name] = tune(torch, variant)
            rows.append(measure(torch, variant, shape, arguments, flush))
            torch.cuda.empty_cache()
        except Exception as problem:  # what was measured is kept
            left_out.append(f"{what}: {common.reason(problem)}")
            continue
        common.report_progress(time.monotonic() - start, what, rows[-1])
        save(arguments.json, document)
    machine |= common.describe_machine(torch)  # the clock under load
    for name in ("fla", "mamba_ssm"):
        machine[name] = getattr(sys.modules.get(name), "__version__", "not installed")
    if arguments.compile_jobs:
        machine["kernels compiled ahead, s"] = round(compile_s, 1)
    machine["peer's first call after that (it tunes), s"] = ", ".join(
        f"{name} {seconds:.1f}" for name, seconds in tuning_s.items())
    save(arguments.json, document)
    print("\n".join(f"- {key}: {value}" for key, value in machine.items()))
    for variant in VARIANTS:
        print_variant(variant, [row for row in rows if row["variant"] == variant.name])
    for what in left_out:
        print(f"- not measured: {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
