"""What the scripts of this folder share: contestants, the way they are timed, and the tables.

Everybody takes turns on the same tensors, in one process on one GPU; CUDA events time them, with
the L2 flushed before every run.
"""

import argparse
import ctypes
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"  # FLA's Triton path
os.environ["FLA_CACHE_RESULTS"] = "0"

COPY_BYTES_PER_S = 4.28e12  # docs/devices.md
FLUSH_BYTES = 256 << 20
SLUICE = "sluice"
CUDNN = "softmax, cuDNN"


def make_parser(description):
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--library", default=root / "build/peers/libsluice_call.so")
    parser.add_argument("--json", help="write every number to this file")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each contestant and shape")
    parser.add_argument("--seconds", type=float, default=3600,
                        help="start no other shape after this time")
    parser.add_argument("--compile-jobs", type=int, default=min(12, os.cpu_count() or 1))
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


def run_side_by_side(commands):
    """Runs this program once with each list of arguments; the seconds, and how many failed."""
    start = time.monotonic()
    processes = [subprocess.Popen([sys.executable, sys.argv[0], *map(str, command)])
                 for command in commands]
    failed = sum(process.wait() != 0 for process in processes)
    return time.monotonic() - start, failed


# ------------------------------------------------------------------------------------- contestants
#
# make(torch, inputs) gives what runs, and the tensors that it reads.


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


class Softmax:
    """Causal softmax attention by one of PyTorch's back ends; `operands`: its q, k, v."""

    def __init__(self, name, backend,
                 operands=lambda torch, inputs: [inputs[x] for x in ("q", "k", "v")]):
        self.name, self.backend, self.operands = name, backend, operands

    def make(self, torch, inputs):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        operands = self.operands(torch, inputs)
        heads_first = [x.transpose(1, 2) for x in operands]  # views
        backend = getattr(SDPBackend, self.backend)

        def run():
            with sdpa_kernel(backend):
                o = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)
            return o.transpose(1, 2)

        return run, operands


# ------------------------------------------------------------------------------------- measurement


class Flush:
    """Writes 256 MB, then reads other 256 MB: nothing of a run is left, nothing to write back."""

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


def measure_shape(torch, row, inputs, contestants, compared, flush, rounds):
    """Adds to `row` what was measured. `compared`: pairs of names whose outputs are compared."""
    row["peers"] = {}
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
    for x, reference in compared:
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
    import triton
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.max.sm",
             "--format=csv,noheader"]
    smi = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {"gpu": torch.cuda.get_device_name(), "driver, SM clock, its maximum": smi,
            "torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
            "cudnn": torch.backends.cudnn.version()}


def milliseconds(peer):
    return f"{peer['ms']:.3f}" if "ms" in peer else "refused"


def report_progress(seconds, what, row):
    print(f"[{seconds:4.0f} s] {what}: " +
          ", ".join(milliseconds(peer) for peer in row["peers"].values()),
          file=sys.stderr, flush=True)


def times(row, name):
    """How many times as long as Sluice a peer takes."""
    peers = row["peers"]
    if "ms" not in peers[name] or "ms" not in peers[SLUICE]:
        return "-"
    return f"{peers[name]['ms'] / peers[SLUICE]['ms']:.2f}"


def markdown(rows, sizes, names, reference, label):
    """A table: the columns `sizes` of the rows, then everybody in `names`, Sluice first; `label`
    heads the errors against the peer `reference`."""
    head = [*sizes, "floor", "kernel, segments", *names,
            *(f"{name} / {SLUICE}" for name in names[1:]), "of floor",
            *(f"memory, {name}" for name in names), f"RMS to {label}"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        peers, plan = row["peers"], row.get("plan", {"kernel": "-", "segments": "-"})
        share = row["floor_ms"] / peers[SLUICE]["ms"] if "ms" in peers[SLUICE] else 0
        error = row.get(f"{SLUICE} against {reference}")
        cells = [*(row[size] for size in sizes), f"{row['floor_ms']:.3f}",
                 f"{plan['kernel']}, {plan['segments']}", *(milliseconds(peers[n]) for n in names),
                 *(times(row, n) for n in names[1:]), f"{100 * share:.0f} %",
                 *(f"{peers[n].get('peak_ratio', 0):.2f}" for n in names),
                 "-" if error is None else f"{error:.1e}"]
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
        for (t0, lag0), (t1, lag1) in zip(curve, curve[1:]):
            if lag0 > 0 >= lag1:
                text = f"faster from about T = {t0 * (t1 / t0) ** (lag0 / (lag0 - lag1)):.0f} on"
        yield f"- B{b} against {peer}: {text}"


def first_calls(row):
    """The seconds that first calls took."""
    return ", ".join(f"{name} {peer['first_call_s']:.2f}" for name, peer in row["peers"].items()
                     if "first_call_s" in peer)
