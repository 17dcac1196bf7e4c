"""What the scripts of this folder share: contestants, the way they are timed, and the tables.

Everybody takes turns on the same tensors, in one process on one GPU, and everybody's time on the
GPU and on the host are two numbers (class Stopwatch says how, and why). The linear-attention
functions come one after the other, and before every run the GPU rests, for softmax attention of
some milliseconds draws so much power that the SM clock is lower for whoever comes next. Each
contestant's SM clock is measured around each of its runs.
"""

import argparse
import ctypes
import dataclasses
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"  # FLA's Triton path
os.environ["FLA_CACHE_RESULTS"] = "0"

COPY_BYTES_PER_S = 4.28e12  # docs/devices.md
FLUSH_BYTES = 256 << 20
SLUICE = "sluice"
CUDNN = "softmax, cuDNN"
# Peers keep what they tune on the first shape: one that fills the GPU.
TUNED_ON = (4, 16384)  # B, T
# Triton compiles anew where a size stops being a multiple of 16, the number of chunks for one: 16
# chunks of mamba_ssm's.
COMPILED_TOKENS = 4096
HOST_CALLS = 9
# The GPU spins this many times as long as a call takes on the host.
SPIN_PER_CALL = 3
LEAST_SPIN_MS = 0.5
SPIN_CYCLES_PER_MS = 1.98e6  # the highest SM clock of an H200: no spin is shorter than asked
# The GPU rests this many times as long as it ran.
REST_PER_RUN = 3
MOST_REST_S = 0.1


# --------------------------------------------------------------------------------------- arguments


def names_among(known):
    """A parser of names with commas between them."""
    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def parse_shapes(text):
    """[(4, 16384), (1, 4096)] of "4x16384,1x4096"."""
    try:
        return [(int(b), int(t)) for b, t in (shape.split("x") for shape in text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 4x16384,1x4096 (BxT)") from None


def make_parser(description, variants):
    root = Path(__file__).resolve().parents[2]
    names = [variant.name for variant in variants]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--library", default=root / "build/peers/libsluice_call.so")
    parser.add_argument("--json", help="write every number to this file")
    parser.add_argument("--variants", type=names_among(names), default=names,
                        metavar="NAME,...", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--shapes", type=parse_shapes, metavar="BxT,...",
                        help="instead of the tables' shapes")
    parser.add_argument("--only-sluice", action="store_true",
                        help="no peers: none is imported, compiled or tuned")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each contestant and shape")
    parser.add_argument("--seconds", type=float, default=3600,
                        help="start no other shape after this time")
    parser.add_argument("--compile-jobs", type=int, default=min(12, os.cpu_count() or 1),
                        help="processes that compile peers' kernels ahead; 0: none is")
    parser.add_argument("--compile-share", nargs=2, type=int, help=argparse.SUPPRESS)
    return parser


def reason(problem):
    """The first line of an exception."""
    return str(problem).strip().partition("\n")[0] or type(problem).__name__


# --------------------------------------------------------------------------- compilation of Triton


def keep_share(index, count):
    """This process's autotuners compile every count-th configuration, and run each once."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.errors import OutOfResources

    prune, run = Autotuner.prune_configs, Autotuner.run

    def keep(self, kwargs):
        configs = prune(self, kwargs)
        return configs[index::count] or configs[:1]

    def run_once(call, quantiles):
        call()
        return [0.0] * len(quantiles)

    def try_run(self, *args, **kwargs):
        self.cache.clear()  # a batch of another size may need kernels of its own
        try:
            return run(self, *args, **kwargs)
        except OutOfResources:  # no configuration of this share fits; nobody reads the results
            return None

    Autotuner.prune_configs, Autotuner.run = keep, try_run
    Autotuner.do_bench = staticmethod(run_once)


def compile_share(variants, index, count):
    """Runs the peers on little data with every count-th configuration, to have it compiled."""
    import torch

    keep_share(index, count)
    for variant in variants:
        try:
            for b in dict.fromkeys(b for b, _ in [TUNED_ON, *variant.shapes]):
                run, _ = variant.peer.make(torch, variant.inputs(torch, (b, COMPILED_TOKENS)))
                run()
        except Exception as problem:  # the comparison will say so too
            print(f"{variant.peer.name}: {reason(problem)}", file=sys.stderr)
    torch.cuda.synchronize()


def compile_ahead(jobs):
    """Seconds that this program took to compile all shares, side by side."""
    start = time.monotonic()
    processes = [subprocess.Popen([sys.executable, *sys.argv, "--compile-share", str(i), str(jobs)])
                 for i in range(jobs)]
    failed = sum(process.wait() != 0 for process in processes)
    if failed:  # kernels are compiled when they are needed, then
        print(f"{failed} processes that compile failed", file=sys.stderr)
    return time.monotonic() - start


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
        print(f"{variant.peer.name}: {reason(problem)}", file=sys.stderr)
    return time.monotonic() - start


# ------------------------------------------------------------------------------------- contestants
#
# make(torch, inputs) gives what runs, and the tensors that it reads. What runs is called as a user
# calls it; Sluice through ctypes, with its output allocated before.


class Tensor(ctypes.Structure):
    """SluiceTensor of call.cpp."""

    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("data", ctypes.c_void_p),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("rank", ctypes.c_int)]

    @classmethod
    def of(cls, name, x):
        assert x.is_contiguous(), name
        dtype = str(x.dtype).removeprefix("torch.")
        shape = (ctypes.c_int64 * x.dim())(*x.shape)
        return cls(name.encode(), dtype.encode(), x.data_ptr(), shape, x.dim())


class Call:
    """Sluice on fixed tensors: a call runs it and gives the output."""

    def __init__(self, library, variant, inputs, o, stream=None):
        self.library, self.tensors, self.o = library, inputs, o
        self.handle = ctypes.c_void_p()
        structures = (Tensor * len(inputs))(*(Tensor.of(name, x) for name, x in inputs.items()))
        gpu = o.device.index if o.device.type == "cuda" else -1
        self._do(library.sluice_call_new, variant.encode(), structures, len(inputs),
                 ctypes.byref(Tensor.of("o", o)), gpu, ctypes.c_void_p(stream),
                 ctypes.byref(self.handle))

    def __del__(self):
        self.library.sluice_call_delete(self.handle)

    @staticmethod
    def _do(function, *arguments):
        problem = function(*arguments)
        if problem is not None:
            raise RuntimeError(problem.decode())

    def __call__(self):
        self._do(self.library.sluice_call_run, self.handle)
        return self.o

    def prepare(self):
        self._do(self.library.sluice_call_prepare, self.handle)

    def plan(self):
        kernel, segments = ctypes.create_string_buffer(32), ctypes.c_int()
        workspace = ctypes.c_int64()
        self._do(self.library.sluice_call_plan, self.handle, kernel, ctypes.byref(segments),
                 ctypes.byref(workspace))
        return {"kernel": kernel.value.decode(), "segments": segments.value,
                "workspace_bytes": workspace.value}


class Sluice:
    """A variant; its output has the shape of the input called `like`."""

    name = SLUICE

    def __init__(self, library, variant, like="v"):
        self.library, self.variant, self.like = ctypes.CDLL(str(library)), variant, like
        for action in ("new", "run", "prepare", "plan"):
            getattr(self.library, f"sluice_call_{action}").restype = ctypes.c_char_p

    def make(self, torch, inputs):
        o = torch.empty_like(inputs[self.like])
        stream = torch.cuda.current_stream().cuda_stream if o.is_cuda else None
        return Call(self.library, self.variant, inputs, o, stream), list(inputs.values())


def attention_operands(torch, inputs):
    return [inputs[name] for name in ("q", "k", "v")]


class Softmax:
    """Causal softmax attention by one of PyTorch's back ends; `operands`: its q, k, v."""

    def __init__(self, name, backend, operands=attention_operands):
        self.name, self.backend, self.operands = name, backend, operands

    def make(self, torch, inputs):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        operands = self.operands(torch, inputs)
        heads_first = [operand.transpose(1, 2) for operand in operands]  # views
        backend = getattr(SDPBackend, self.backend)

        def run():
            with sdpa_kernel(backend):
                o = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)
            return o.transpose(1, 2)

        return run, operands


@dataclasses.dataclass(frozen=True)
class Peer:
    """A function of the inputs; `function` imports it."""

    name: str
    function: Callable

    def make(self, torch, inputs):
        function = self.function()
        return lambda: function(**inputs), list(inputs.values())


# ---------------------------------------------------------------------------------------- variants


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    peer: Peer
    make_inputs: Callable  # of torch, a generator, B and T
    sizes: str
    table: list  # B, T
    crossover: list = dataclasses.field(default_factory=list)
    recurrence: str = ""  # Sluice's name, where it is another
    like: str = "v"  # the input of the output's shape
    softmax: tuple = (Softmax(CUDNN, "CUDNN_ATTENTION"),)

    @property
    def shapes(self):
        return list(dict.fromkeys(self.table + self.crossover))

    @property
    def compared(self):
        """Pairs of contestants whose outputs are compared."""
        return [(SLUICE, self.peer.name),
                *((other.name, self.softmax[0].name) for other in self.softmax[1:])]

    def contestants(self, library):
        return [Sluice(library, self.recurrence or self.name, self.like), self.peer, *self.softmax]

    def inputs(self, torch, shape, seed=0):
        return self.make_inputs(torch, torch.Generator("cuda").manual_seed(seed), *shape)


def normal(torch, generator, *shape):
    return torch.randn(*shape, device=generator.device, dtype=torch.bfloat16, generator=generator)


def soft_gates(torch, x):
    """logsigmoid(x) / 16, of float32."""
    return (torch.nn.functional.logsigmoid(x.float()) / 16).bfloat16()


# ------------------------------------------------------------------------------------- measurement


class Flush:
    """Writes 256 MB, then copies other 256 MB: nothing of a run is left in the L2."""

    def __init__(self, torch):
        self.written, self.copied, self.read = (
            torch.zeros(FLUSH_BYTES, dtype=torch.uint8, device="cuda") for _ in range(3))

    def __call__(self):
        self.written.fill_(1)
        self.copied.copy_(self.read)


def bytes_of(tensors):
    return sum(x.numel() * x.element_size() for x in tensors)


def floor_ms(inputs, like):
    """The least time for the inputs and an output as large as `like`."""
    return 1e3 * bytes_of([*inputs.values(), like]) / COPY_BYTES_PER_S


def rms_ratio(torch, x, reference):
    """RMS(x - reference) / RMS(reference), a batch row at a time."""
    error = size = 0.0
    for row in range(x.shape[0]):
        a, b = x[row].float(), reference[row].float()
        error += (a - b).square().sum(dtype=torch.float64).item()
        size += b.square().sum(dtype=torch.float64).item()
    return math.sqrt(error / size) if size else math.inf


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


@dataclasses.dataclass(frozen=True)
class Sample:
    ms: float
    mhz: tuple  # SM clock before and after
    queued: bool  # all of the run was in the queue before its first event fired


class Stopwatch:
    """The time of runs on the GPU, and of the calls on the host.

    Between two events lies the host's time too, wherever the host is slower than what the GPU still
    has to do: a call that launches several kernels on little data is measured as its launches. So
    the GPU first spins until all of the run is in the queue (`queued` says whether it was), after
    the flush, and what the events time is the GPU alone. The host's time is measured apart.

    The spins are of known cycles: timed themselves, they give the SM clock before and after a run.
    """

    def __init__(self, torch):
        self.torch, self.flush = torch, Flush(torch)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        self.event_ms = 0.0  # between events around next to nothing
        self.event_ms = statistics.median(
            self.time(lambda: torch.cuda._sleep(0), LEAST_SPIN_MS).ms for _ in range(HOST_CALLS))

    def host_us(self, run):
        """Microseconds until a call returns, of calls one after the other, as layers make them."""
        self.torch.cuda.synchronize()
        samples = []
        for _ in range(HOST_CALLS):
            start = time.perf_counter()
            run()
            samples.append(time.perf_counter() - start)
        self.torch.cuda.synchronize()
        return 1e6 * statistics.median(samples)

    def time(self, run, spin_ms):
        cycles, cycles_after = (int(ms * SPIN_CYCLES_PER_MS) for ms in (spin_ms, LEAST_SPIN_MS))
        flushed, begin, end, after = self.events
        self.flush()
        flushed.record()
        self.torch.cuda._sleep(cycles)
        begin.record()
        run()
        end.record()
        queued = not begin.query()
        self.torch.cuda._sleep(cycles_after)
        after.record()
        after.synchronize()
        return Sample(begin.elapsed_time(end), (self._mhz(cycles, flushed, begin),
                                                self._mhz(cycles_after, end, after)), queued)

    def _mhz(self, cycles, begin, end):
        return cycles / (begin.elapsed_time(end) - self.event_ms) / 1e3


def time_all(runs, stopwatch, rounds):
    """Each run's microseconds on the host and samples, all in turns: linear attention is the first
    two, and each of them comes after softmax attention every other time."""
    host_us = {name: stopwatch.host_us(run) for name, run in runs.items()}
    samples = {name: [] for name in runs}
    names = list(runs)
    orders = [names, names[1::-1] + names[2:]]
    rest_s = MOST_REST_S
    for turn in range(rounds):
        for name in orders[turn % 2]:
            spin_ms = max(LEAST_SPIN_MS, 1e-3 * SPIN_PER_CALL * host_us[name])
            time.sleep(rest_s)
            sample = stopwatch.time(runs[name], spin_ms)
            if not sample.queued:  # the host was slower than usual
                sample = stopwatch.time(runs[name], 2 * spin_ms)
            samples[name].append(sample)
            rest_s = min(MOST_REST_S, 1e-3 * REST_PER_RUN * sample.ms)
    return host_us, samples


def summary(host_us, samples):
    ms, mhz = [sample.ms for sample in samples], [x for sample in samples for x in sample.mhz]
    quartiles = statistics.quantiles(ms, n=4)
    return {"ms": statistics.median(ms), "low_ms": quartiles[0], "high_ms": quartiles[2],
            "host_us": host_us, "mhz": statistics.median(mhz), "least_mhz": min(mhz),
            "queued": sum(sample.queued for sample in samples),
            "samples": [dataclasses.asdict(sample) for sample in samples]}


def measure(torch, variant, shape, contestants, stopwatch, rounds):
    inputs = variant.inputs(torch, shape, seed=1)
    row = {"variant": variant.name, "sizes": variant.sizes, "B": shape[0], "T": shape[1],
           "floor_ms": floor_ms(inputs, inputs[variant.like]), "peers": {}}
    runs, outputs = {}, {}
    for contestant in contestants:
        peer = row["peers"][contestant.name] = {}
        try:
            run, operands = contestant.make(torch, inputs)
            o, peer["first_call_s"], growth = first_call(torch, run)
        except Exception as problem:  # a peer that refuses a shape does not end the comparison
            peer["refused"] = reason(problem)
            continue
        if isinstance(run, Call):  # its workspace is not from PyTorch's memory
            row["plan"] = run.plan()
            growth = bytes_of([o]) + row["plan"]["workspace_bytes"]
        peer["peak_ratio"] = (bytes_of(operands) + growth) / bytes_of([*operands, o])
        runs[contestant.name], outputs[contestant.name] = run, o
    for x, reference in variant.compared:
        if x in outputs and reference in outputs:
            row[f"{x} against {reference}"] = rms_ratio(torch, outputs[x], outputs[reference])
    outputs.clear()
    host_us, samples = time_all(runs, stopwatch, rounds)
    for name in runs:
        row["peers"][name] |= summary(host_us[name], samples[name])
    return row


# ------------------------------------------------------------------------------------------ output


def describe_machine(torch, library):
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"]
    smi = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    packages = {name: sys.modules[name].__version__ for name in ("triton", "fla", "mamba_ssm")
                if name in sys.modules}
    return {"gpu": torch.cuda.get_device_name(), "driver, highest SM clock": smi,
            "torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), **packages,
            "kernels that came compiled": len([*Path(library).parent.glob("cubins/*.cubin")])}


def milliseconds(peer):
    """At most that, where the host could not keep ahead of the GPU."""
    if "ms" not in peer:
        return "refused"
    return f"{'' if peer['queued'] == len(peer['samples']) else '≤ '}{peer['ms']:.3f}"


def microseconds(peer):
    return f"{peer['host_us']:.0f}" if "ms" in peer else "-"


def report_progress(seconds, what, row):
    print(f"[{seconds:4.0f} s] {what}: " +
          ", ".join(f"{milliseconds(peer)} (host {microseconds(peer)} us)"
                    for peer in row["peers"].values()),
          file=sys.stderr, flush=True)


def times(row, name):
    """How many times as long as Sluice a peer takes."""
    peers = row["peers"]
    if "ms" not in peers[name] or "ms" not in peers[SLUICE]:
        return "-"
    return f"{peers[name]['ms'] / peers[SLUICE]['ms']:.2f}"


def markdown(rows, names):
    """A table of everybody in `names`: Sluice, whose output is compared with the next one's, and
    the others. ms are the GPU's."""
    head = ["B", "T", "floor", "kernel, segments", *(f"{name}, ms" for name in names),
            *(f"{name}, host us" for name in names),
            *(f"{name} / {SLUICE}" for name in names[1:]), "of floor",
            *(f"memory, {name}" for name in names), *(f"RMS to {name}" for name in names[1:2])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        peers, plan = row["peers"], row.get("plan", {"kernel": "-", "segments": "-"})
        share = row["floor_ms"] / peers[SLUICE]["ms"] if "ms" in peers[SLUICE] else 0
        errors = (row.get(f"{SLUICE} against {name}") for name in names[1:2])
        cells = [row["B"], row["T"], f"{row['floor_ms']:.3f}",
                 f"{plan['kernel']}, {plan['segments']}", *(milliseconds(peers[n]) for n in names),
                 *(microseconds(peers[n]) for n in names), *(times(row, n) for n in names[1:]),
                 f"{100 * share:.0f} %", *(f"{peers[n].get('peak_ratio', 0):.2f}" for n in names),
                 *("-" if error is None else f"{error:.1e}" for error in errors)]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def crossovers(rows, peer):
    """Where Sluice becomes the faster one, straight between lengths on logarithmic axes."""
    for b in sorted({row["B"] for row in rows}):
        curve = sorted((row["T"], math.log(row["peers"][SLUICE]["ms"] / row["peers"][peer]["ms"]))
                       for row in rows if row["B"] == b and "ms" in row["peers"][SLUICE]
                       and "ms" in row["peers"][peer])
        if not curve:
            continue
        text = "no crossover: " + ("slower" if curve[-1][1] > 0 else "faster") + \
            f" at every T from {curve[0][0]} to {curve[-1][0]}"
        for (t0, lag0), (t1, lag1) in itertools.pairwise(curve):
            if lag0 > 0 >= lag1:
                text = f"faster from about T = {t0 * (t1 / t0) ** (lag0 / (lag0 - lag1)):.0f} on"
        yield f"- B{b} against {peer}: {text}"


def remarks(row):
    """What a shape's row of the table does not say."""
    what = f"B{row['B']} T{row['T']}"
    peers = {name: peer for name, peer in row["peers"].items() if "ms" in peer}
    yield f"- {what}: SM clock, MHz, median and least: " + ", ".join(
        f"{name} {peer['mhz']:.0f} {peer['least_mhz']:.0f}" for name, peer in peers.items())
    yield f"- {what}: first call, s: " + ", ".join(
        f"{name} {peer['first_call_s']:.2f}" for name, peer in peers.items())
    for name, peer in row["peers"].items():
        if "refused" in peer:
            yield f"- {what}: {name}: {peer['refused']}"


def print_variant(variant, rows):
    rows = sorted(rows, key=lambda row: (-row["B"], -row["T"]))
    print(f"\n{variant.name}, {variant.sizes}\n")
    if not rows:
        return
    names = list(rows[0]["peers"])
    print(markdown(rows, names) + "\n")
    if variant.crossover:
        for name in names[1:]:
            print("\n".join(crossovers(rows, name)))
    for row in rows:
        print("\n".join(remarks(row)))


def save(path, document):
    if path:
        Path(path).write_text(json.dumps(document, indent=1))


# ----------------------------------------------------------------------------------- the comparison


def chosen(variants, arguments):
    """The variants and shapes that the arguments leave."""
    kept = [variant for variant in variants if variant.name in arguments.variants]
    if arguments.shapes:
        kept = [dataclasses.replace(variant, table=arguments.shapes, crossover=[])
                for variant in kept]
    return kept


def work_list(variants):
    """(variant, shape): the table of every variant, then the crossovers."""
    tables = [(variant, shape) for variant in variants for shape in variant.table]
    everything = [(variant, shape) for variant in variants for shape in variant.shapes]
    return tables + [item for item in everything if item not in tables]


def compare(variants, arguments):
    """Measures and prints; this program's exit status."""
    variants, with_peers = chosen(variants, arguments), not arguments.only_sluice
    if arguments.compile_share:
        return compile_share(variants, *arguments.compile_share)
    start = time.monotonic()
    compile_s = compile_ahead(arguments.compile_jobs) if with_peers else 0
    import torch

    machine, rows, left_out, tuning_s = {}, [], [], {}
    document = {"machine": machine, "rounds": arguments.rounds, "rows": rows}
    stopwatch = Stopwatch(torch)
    for variant, shape in work_list(variants):
        what = f"{variant.name} B{shape[0]} T{shape[1]}"
        if time.monotonic() - start > arguments.seconds:
            left_out.append(f"{what}: lack of time")
            continue
        try:
            if with_peers and variant.name not in tuning_s:
                tuning_s[variant.name] = tune(torch, variant)
            contestants = variant.contestants(arguments.library)
            rows.append(measure(torch, variant, shape, contestants if with_peers else
                                contestants[:1], stopwatch, arguments.rounds))
            torch.cuda.empty_cache()
        except Exception as problem:  # what was measured is kept
            left_out.append(f"{what}: {reason(problem)}")
            continue
        report_progress(time.monotonic() - start, what, rows[-1])
        save(arguments.json, document)
    machine |= describe_machine(torch, arguments.library)
    if with_peers:
        machine["peers' kernels compiled ahead, s"] = round(compile_s, 1)
        machine["peer's first call after that (it tunes), s"] = ", ".join(
            f"{name} {seconds:.1f}" for name, seconds in tuning_s.items())
    save(arguments.json, document)
    print("\n".join(f"- {key}: {value}" for key, value in machine.items()))
    for variant in variants:
        print_variant(variant, [row for row in rows if row["variant"] == variant.name])
    for what in left_out:
        print(f"- not measured: {what}")
    return 0
