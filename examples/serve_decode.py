"""A serving loop around a gated-delta-rule layer: prefill, continuous batching with a state pool,
prefix states, and speculative decoding. Every step is checked against whole-sequence runs.

    python examples/serve_decode.py

The calls are those that serving engines' linear-attention layers make:

    prefill   packed tokens, cu_seqlens, one slot per sequence, a has-initial-state mask
    prefix    states at chunk boundaries into slots of their own, shared by later requests
    decode    one token per sequence; rows that pad the batch have slot -1
    verify    several draft tokens per sequence, a slot for the state after each; the next call
              reads the slot of the last accepted token (2-D indices and accepted counts)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sluice import ops

H, HV, K, V = 2, 4, 32, 32
CHUNK = 64  # prefix states lie at multiples of it
DRAFTS = 3  # tokens that a verify call takes per sequence
NAMES = ("q", "k", "v", "g", "beta")

Tokens = dict[str, np.ndarray]


class Layer:
    """One recurrent layer and its pool of states. Slot 0 up are handed out; -1 means none."""

    def __init__(self, slots: int) -> None:
        self.pool = np.zeros((slots, HV, K, V), np.float32)
        self._free = list(range(slots))

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
    ) -> np.ndarray:
        """Packed sequences. ``prefix``: (sequence, tokens, slot) of states to keep."""
        packed = {name: np.concatenate([part[name] for part in parts], 1) for name in NAMES}
        lengths = [part["q"].shape[1] for part in parts]
        offsets = np.cumsum([0, *lengths], dtype=np.int32)
        kept = np.array(prefix, np.int32).reshape(-1, 3)
        o, _ = ops.gated_delta_rule(
            **packed,
            qk_l2norm=True,
            cu_seqlens=offsets,
            state=self.pool,
            read_slots=np.array([max(slot, 0) for slot in read], np.int32),
            has_initial=np.array([slot >= 0 for slot in read]),
            write_slots=np.array(write, np.int32),
            checkpoints=self.pool if prefix else None,
            checkpoint_sequences=kept[:, 0].copy() if prefix else None,
            checkpoint_positions=kept[:, 1].copy() if prefix else None,
            checkpoint_slots=kept[:, 2].copy() if prefix else None,
        )
        return o

    def decode(self, batch: list[Tokens | None], slots: list[int]) -> np.ndarray:
        """One token per row; rows that are ``None`` pad the batch."""
        some = next(row for row in batch if row is not None)
        rows = [row if row is not None else some for row in batch]
        tokens = {name: np.concatenate([row[name] for row in rows]) for name in NAMES}
        indices = np.array(slots, np.int32)
        o, _ = ops.gated_delta_rule_step(**tokens, qk_l2norm=True, state=self.pool, slots=indices)
        return o

    def verify(self, batch: list[Tokens], slots: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        """Draft tokens ``[N, DRAFTS]``: from the state of the call before's last accepted draft, a
        state after each draft. ``slots [N, 2, DRAFTS]``: read and written.
        """
        tokens = {name: np.concatenate([row[name] for row in batch]) for name in NAMES}
        o, _ = ops.gated_delta_rule_step(
            **tokens,
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
    outputs: list[np.ndarray] = field(default_factory=list)


def tokens(rng: np.random.Generator, count: int) -> Tokens:
    """Random q, k, v, log decay and write strength of ``count`` tokens."""

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "q": normal(1, count, H, K),
        "k": normal(1, count, H, K),
        "v": normal(1, count, HV, V),
        "g": -rng.random((1, count, HV), dtype=np.float32),
        "beta": rng.random((1, count, HV), dtype=np.float32),
    }


def check(request: Request, what: str) -> None:
    """The request's outputs against one run over all of its tokens."""
    whole = {name: np.concatenate([t[name] for t in request.tokens], 1) for name in NAMES}
    expected, _ = ops.gated_delta_rule(**whole, qk_l2norm=True, backend="oracle")
    got = np.concatenate(request.outputs, 1)
    error = float(np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)))
    print(f"{what:48s} {got.shape[1]:4d} tokens, error {error:.1e}")
    assert error < 1e-5


def admit(layer: Layer, rng: np.random.Generator, lengths: list[int]) -> list[Request]:
    """Prefills new requests in one packed call."""
    requests = [Request([tokens(rng, length)], layer.take()) for length in lengths]
    parts = [request.tokens[0] for request in requests]
    o = layer.prefill(parts, [-1] * len(parts), [request.slot for request in requests], [])
    for request, part in zip(requests, np.split(o, np.cumsum(lengths)[:-1], 1), strict=True):
        request.outputs.append(part)
    return requests


def continuous_batching(layer: Layer, rng: np.random.Generator) -> None:
    """Requests come and go; the batch keeps its size, with padding rows where nobody is."""
    size = 4
    running: list[Request | None] = [*admit(layer, rng, [70, 5, 131]), None]
    for step in range(12):
        if step == 4 and (leaving := running[1]) is not None:
            check(leaving, "decoded, then left the batch")
            layer.give_back(leaving.slot)
            running[1] = None
        if step == 6:
            running[1], running[3] = admit(layer, rng, [33, 64])
        batch: list[Tokens | None] = [None if r is None else tokens(rng, 1) for r in running]
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


def shared_prefix(layer: Layer, rng: np.random.Generator) -> None:
    """A prompt's states at chunk boundaries; two requests start from one of them."""
    prompt, kept = tokens(rng, 2 * CHUNK + 10), [layer.take(), layer.take()]
    first = Request([prompt], layer.take())
    first.outputs.append(
        layer.prefill([prompt], [-1], [first.slot], [(0, CHUNK, kept[0]), (0, 2 * CHUNK, kept[1])])
    )
    check(first, "prompt, states kept at 64 and 128")
    for length in (20, 90):
        head = {name: x[:, : 2 * CHUNK] for name, x in prompt.items()}
        later = Request(
            [head, tokens(rng, length)], layer.take(), [first.outputs[0][:, : 2 * CHUNK]]
        )
        later.outputs.append(layer.prefill([later.tokens[1]], [kept[1]], [later.slot], []))
        check(later, "continues from the prefix of 128 tokens")
        layer.give_back(later.slot)
    for slot in (*kept, first.slot):
        layer.give_back(slot)


def speculation(layer: Layer, rng: np.random.Generator) -> None:
    """Drafts are verified together; some are kept, and the next call goes on from there."""
    requests = admit(layer, rng, [40, 66])
    # Two sets of slots per request, read and written in turn.
    slots = np.array(
        [[[layer.take() for _ in range(DRAFTS)] for _ in range(2)] for _ in requests], np.int32
    )
    for request, own in zip(requests, slots, strict=True):
        layer.pool[own[0, 0]] = layer.pool[request.slot]
    accepted = np.ones(len(requests), np.int32)
    for _ in range(5):
        drafts = [tokens(rng, DRAFTS) for _ in requests]
        o = layer.verify(drafts, slots, accepted)
        accepted = rng.integers(1, DRAFTS + 1, len(requests)).astype(np.int32)
        for row, request in enumerate(requests):
            kept = int(accepted[row])
            request.tokens.append({name: x[:, :kept] for name, x in drafts[row].items()})
            request.outputs.append(o[row : row + 1, :kept])
        slots = slots[:, ::-1].copy()
    for request in requests:
        check(request, f"speculated, up to {DRAFTS} tokens a call")


def main() -> None:
    """Runs the three scenes on one layer."""
    rng = np.random.default_rng(0)
    layer = Layer(slots=32)
    continuous_batching(layer, rng)
    shared_prefix(layer, rng)
    speculation(layer, rng)


if __name__ == "__main__":
    main()
