"""A serving loop around a gated-delta-rule layer: prefill, continuous batching with a state pool,
prefix states, and speculative decoding. Every step is checked against whole-sequence runs.

    python examples/serve_decode.py                 on the CPU
    python examples/serve_decode.py --device cuda   on a GPU, with CuPy's arrays

The calls are those that serving engines' linear-attention layers make:

    prefill   packed tokens, cu_seqlens, one slot per sequence, a has-initial-state mask
    prefix    states at chunk boundaries into slots of their own, shared by later requests
    decode    one token per sequence; rows that pad the batch have slot -1
    verify    several draft tokens per sequence, a slot for the state after each; the next call
              reads the slot of the last accepted token (2-D indices and accepted counts)
"""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from sluice import ops

H, HV, K, V = 2, 4, 32, 32
CHUNK = 64  # prefix states lie at multiples of it
DRAFTS = 3  # tokens that a verify call takes per sequence
NAMES = ("q", "k", "v", "g", "beta")

Array = Any  # NumPy's or CuPy's
Tokens = dict[str, Array]


class Layer:
    """One recurrent layer and its pool of states. Slot 0 up are handed out; -1 means none."""

    def __init__(self, slots: int, xp: ModuleType) -> None:
        self.xp = xp  # NumPy or CuPy
        self.pool = xp.zeros((slots, HV, K, V), np.float32)
        self._free = list(range(slots))

    def indices(self, slots: list[int]) -> Array:
        """As the calls take them."""
        return self.xp.array(slots, np.int32)

    def join(self, parts: list[Tokens], axis: int) -> Tokens:
        """Tokens packed along time (1), or as the rows of a batch (0)."""
        return {n: self.xp.concatenate([part[n] for part in parts], axis) for n in NAMES}

    def take(self) -> int:
        """A free slot."""
        return self._free.pop(0)

    def give_back(self, slot: int) -> None:
        """Frees a slot."""
        self._free.append(slot)

    def prefill(
        self,
        parts: list[Tokens],
        read: list[int],
        write: list[int],
        prefix: list[tuple[int, int, int]],
    ) -> Array:
        """Packed sequences. ``prefix``: (sequence, tokens, slot) of states to keep."""
        lengths = [part["q"].shape[1] for part in parts]
        kept = {}
        if prefix:
            sequences, positions, slots = (self.indices(list(x)) for x in zip(*prefix, strict=True))
            kept = {
                "checkpoints": self.pool,
                "checkpoint_sequences": sequences,
                "checkpoint_positions": positions,
                "checkpoint_slots": slots,
            }
        o, _ = ops.gated_delta_rule(
            **self.join(parts, 1),
            qk_l2norm=True,
            cu_seqlens=self.indices([0, *np.cumsum(lengths)]),
            state=self.pool,
            read_slots=self.indices([max(slot, 0) for slot in read]),
            has_initial=self.xp.array([slot >= 0 for slot in read]),
            write_slots=self.indices(write),
            **kept,
        )
        return o

    def decode(self, batch: list[Tokens | None], slots: list[int]) -> Array:
        """One token per row; rows that are ``None`` pad the batch."""
        some = next(row for row in batch if row is not None)
        rows = [row if row is not None else some for row in batch]
        o, _ = ops.gated_delta_rule_step(
            **self.join(rows, 0), qk_l2norm=True, state=self.pool, slots=self.indices(slots)
        )
        return o

    def verify(self, batch: list[Tokens], slots: Array, accepted: Array) -> Array:
        """Draft tokens ``[N, DRAFTS]``: from the state of the call before's last accepted draft, a
        state after each draft. ``slots [N, 2, DRAFTS]``: read and written.
        """
        o, _ = ops.gated_delta_rule_step(
            **self.join(batch, 0),
            qk_l2norm=True,
            state=self.pool,
            read_slots=slots[:, 0].copy(),
            accepted=accepted,
            write_slots=slots[:, 1].copy(),
        )
        return o


@dataclass
class Request:
    """A request: its tokens so far (for the check), its slot, its outputs."""

    tokens: list[Tokens]
    slot: int
    outputs: list[Array] = field(default_factory=list)


class Source:
    """Random tokens."""

    def __init__(self, xp: ModuleType) -> None:
        self._xp = xp
        self.rng = np.random.default_rng(0)

    def tokens(self, count: int) -> Tokens:
        """q, k, v, log decay and write strength of ``count`` tokens."""

        def normal(*shape: int) -> np.ndarray:
            return self.rng.standard_normal(shape).astype(np.float32)

        made = {
            "q": normal(1, count, H, K),
            "k": normal(1, count, H, K),
            "v": normal(1, count, HV, V),
            "g": -self.rng.random((1, count, HV), dtype=np.float32),
            "beta": self.rng.random((1, count, HV), dtype=np.float32),
        }
        return {name: self._xp.asarray(x) for name, x in made.items()}


def on_host(x: Array) -> np.ndarray:
    """A NumPy array of the same elements."""
    return x if isinstance(x, np.ndarray) else x.get()


def check(request: Request, what: str) -> None:
    """The request's outputs against one run over all of its tokens."""
    whole = {n: np.concatenate([on_host(t[n]) for t in request.tokens], 1) for n in NAMES}
    expected, _ = ops.gated_delta_rule(**whole, qk_l2norm=True, backend="oracle")
    got = np.concatenate([on_host(o) for o in request.outputs], 1)
    error = float(np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)))
    print(f"{what:48s} {got.shape[1]:4d} tokens, error {error:.1e}")
    assert error < 1e-5


def admit(layer: Layer, source: Source, lengths: list[int]) -> list[Request]:
    """Prefills new requests in one packed call."""
    requests = [Request([source.tokens(length)], layer.take()) for length in lengths]
    parts = [request.tokens[0] for request in requests]
    o = layer.prefill(parts, [-1] * len(parts), [request.slot for request in requests], [])
    ends = np.cumsum(lengths).tolist()
    for request, part in zip(requests, layer.xp.split(o, ends[:-1], 1), strict=True):
        request.outputs.append(part)
    return requests


def continuous_batching(layer: Layer, source: Source) -> None:
    """Requests come and go; the batch keeps its size, with padding rows where nobody is."""
    size = 4
    running: list[Request | None] = [*admit(layer, source, [70, 5, 131]), None]
    for step in range(12):
        if step == 4 and (leaving := running[1]) is not None:
            check(leaving, "decoded, then left the batch")
            layer.give_back(leaving.slot)
            running[1] = None
        if step == 6:
            running[1], running[3] = admit(layer, source, [33, 64])
        batch: list[Tokens | None] = [None if r is None else source.tokens(1) for r in running]
        slots = [-1 if r is None else r.slot for r in running]
        o = layer.decode(batch, slots)
        for row in range(size):
            request, token = running[row], batch[row]
            if request is None or token is None:
                assert not o[row].any()
                continue
            request.tokens.append(token)
            request.outputs.append(o[row : row + 1])
    for request in running:
        if request is not None:
            check(request, "decoded in a changing batch")
            layer.give_back(request.slot)


def shared_prefix(layer: Layer, source: Source) -> None:
    """A prompt's states at chunk boundaries; two requests start from one of them."""
    prompt, kept = source.tokens(2 * CHUNK + 10), [layer.take(), layer.take()]
    first = Request([prompt], layer.take())
    first.outputs.append(
        layer.prefill([prompt], [-1], [first.slot], [(0, CHUNK, kept[0]), (0, 2 * CHUNK, kept[1])])
    )
    check(first, "prompt, states kept at 64 and 128")
    for length in (20, 90):
        head = {name: x[:, : 2 * CHUNK] for name, x in prompt.items()}
        later = Request(
            [head, source.tokens(length)], layer.take(), [first.outputs[0][:, : 2 * CHUNK]]
        )
        later.outputs.append(layer.prefill([later.tokens[1]], [kept[1]], [later.slot], []))
        check(later, "continues from the prefix of 128 tokens")
        layer.give_back(later.slot)
    for slot in (*kept, first.slot):
        layer.give_back(slot)


def speculation(layer: Layer, source: Source) -> None:
    """Drafts are verified together; some are kept, and the next call goes on from there."""
    requests = admit(layer, source, [40, 66])
    # Two sets of slots per request, read and written in turn.
    taken = [[[layer.take() for _ in range(DRAFTS)] for _ in range(2)] for _ in requests]
    for request, (read, _) in zip(requests, taken, strict=True):
        layer.pool[read[0]] = layer.pool[request.slot]
    slots, accepted = layer.xp.array(taken, np.int32), layer.indices([1] * len(requests))
    for _ in range(5):
        drafts = [source.tokens(DRAFTS) for _ in requests]
        o = layer.verify(drafts, slots, accepted)
        counts = source.rng.integers(1, DRAFTS + 1, len(requests)).tolist()
        accepted = layer.indices(counts)
        for row, (request, kept) in enumerate(zip(requests, counts, strict=True)):
            request.tokens.append({name: x[:, :kept] for name, x in drafts[row].items()})
            request.outputs.append(o[row : row + 1, :kept])
        slots = slots[:, ::-1].copy()
    for request in requests:
        check(request, f"speculated, up to {DRAFTS} tokens a call")


def main() -> None:
    """Runs the three scenes on one layer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    xp = np if parser.parse_args().device == "cpu" else importlib.import_module("cupy")
    source, layer = Source(xp), Layer(slots=32, xp=xp)
    continuous_batching(layer, source)
    shared_prefix(layer, source)
    speculation(layer, source)


if __name__ == "__main__":
    main()
