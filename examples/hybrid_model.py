"""A small hybrid language model with random weights, prefill and decode: Mamba-2, Gated DeltaNet,
GLA and one softmax layer. The recurrences run by Sluice, by the peers' functions where they can
run, and by a float64 time loop, on the same tokens; the logits are compared.

    python examples/hybrid_model.py                 on the CPU
    python examples/hybrid_model.py --device cuda   bfloat16; beside flash-linear-attention (and
                                                    mamba_ssm) where they are installed, unless
                                                    --alone: tuning their kernels takes a while

The layers are those of the papers without their short convolutions.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import sluice.compat.fla
import sluice.compat.mamba_ssm

VOCABULARY, WIDTH, HEADS, KEYS, VALUES = 256, 256, 8, 64, 64
GROUPS = 2  # of Mamba-2's B and C
BATCH, PROMPT, STEPS = 2, 200, 64

# Of the logits, relative to their RMS: what rounding leaves after six layers.
BOUND = {torch.float32: 1e-4, torch.bfloat16: 1.5e-2}

State = Any
Result = tuple[Tensor, State]


# ---- three ways to run the recurrences ----------------------------------------------------------


class Functions:
    """The peers' functions, or Sluice's of the same names: whole sequences and single tokens."""

    def __init__(
        self, fla: ModuleType, mamba: Callable[..., Any], step: Callable[..., Any]
    ) -> None:
        self._fla, self._scan, self._step = fla, mamba, step

    def gla(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: State) -> Result:
        """Gated linear attention."""
        keywords = {"initial_state": state, "output_final_state": True}
        if q.shape[1] == 1:
            return self._fla.fused_recurrent_gla(q, k, v, gk=g, **keywords)
        return self._fla.chunk_gla(q, k, v, g, **keywords)

    def gated_delta_rule(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: State
    ) -> Result:
        """Gated DeltaNet."""
        keywords = {
            "initial_state": state,
            "output_final_state": True,
            "use_qk_l2norm_in_kernel": True,
        }
        if q.shape[1] == 1:
            function = self._fla.fused_recurrent_gated_delta_rule
        else:
            function = self._fla.chunk_gated_delta_rule
        return function(q, k, v, g=g, beta=beta, **keywords)

    def mamba2(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        dt_bias: Tensor,
        state: State,
    ) -> Result:
        """Mamba-2; the step updates its state in place."""
        if x.shape[1] == 1:
            channels = x.shape[2:]
            o = self._step(
                state,
                x[:, 0],
                dt[:, 0, :, None].expand(-1, *channels),
                A[:, None, None].expand(*channels, B.shape[-1]),
                B[:, 0],
                C[:, 0],
                D=D[:, None].expand(channels),
                dt_bias=dt_bias[:, None].expand(channels),
                dt_softplus=True,
            )
            return o[:, None], state
        return self._scan(
            x,
            dt,
            A,
            B,
            C,
            chunk_size=256,
            D=D,
            dt_bias=dt_bias,
            initial_states=state,
            dt_softplus=True,
            return_final_states=True,
        )


class FlaAlone(Functions):
    """Without mamba_ssm: Mamba-2 as FLA's simple GLA, which it is."""

    def __init__(self, fla: ModuleType) -> None:
        super().__init__(fla, self.mamba2, self.mamba2)

    def mamba2(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        dt_bias: Tensor,
        state: State,
    ) -> Result:
        """The time step goes into values and decays."""
        time = functional.softplus(dt.float() + dt_bias)
        q, k = (y.repeat_interleave(x.shape[2] // y.shape[2], 2) for y in (C, B))
        name = "fused_recurrent_simple_gla" if x.shape[1] == 1 else "chunk_simple_gla"
        o, state = getattr(self._fla, name)(
            q,
            k,
            x * time[..., None].to(x.dtype),
            time * A,
            scale=1.0,
            initial_state=state,
            output_final_state=True,
        )
        return o + D[:, None].to(x.dtype) * x, state


class TimeLoop:
    """The definitions, token by token in float64."""

    def gla(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: State) -> Result:
        """``S = diag(exp(g)) S + k v^T``."""
        return self._run(q, k, v, g, None, q.shape[-1] ** -0.5, state)

    def gated_delta_rule(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: State
    ) -> Result:
        """``S = exp(g) S + k u^T``, ``u = beta (v - exp(g) S^T k)``, unit q and k."""
        q, k = (x.double() / (x.double().square().sum(-1, True) + 1e-6).sqrt() for x in (q, k))
        return self._run(q, k, v, g[..., None], beta, q.shape[-1] ** -0.5, state)

    def mamba2(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        dt_bias: Tensor,
        state: State,
    ) -> Result:
        """``S = exp(dt A) S + B (dt x)^T``, output ``S^T C + D x``."""
        time = functional.softplus(dt.double() + dt_bias.double())
        values = x.double() * time[..., None]
        decay = (time * A.double())[..., None]
        q, k = (y.repeat_interleave(x.shape[2] // y.shape[2], 2) for y in (C, B))
        o, state = self._run(q, k, values, decay, None, 1.0, state)
        return (o + D.double()[:, None] * x.double()).to(x.dtype), state

    def _run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor | None,
        scale: float,
        state: State,
    ) -> Result:
        out_dtype, length = v.dtype, v.shape[1]
        q, k, v, decay = q.double() * scale, k.double(), v.double(), g.double().exp()
        if state is None:
            state = v.new_zeros(*k.shape[::2], k.shape[-1], v.shape[-1])
        outputs = []
        for t in range(length):
            state = decay[:, t, :, :, None] * state
            written = v[:, t]
            if beta is not None:
                known = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
                written = beta.double()[:, t, :, None] * (written - known)
            state = state + k[:, t, :, :, None] * written[:, :, None]
            outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
        return torch.stack(outputs, 1).to(out_dtype), state


Recurrences = Functions | TimeLoop


# ---- the model ----------------------------------------------------------------------------------


class Mixer(nn.Module):
    """What the layers share: a projection in, one out, and heads."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.into = nn.Linear(WIDTH, sum(sizes), bias=False)
        self.out = nn.Linear(HEADS * VALUES, WIDTH, bias=False)

    def parts(self, x: Tensor) -> list[Tensor]:
        """The projection's parts, ``[B, T, size]`` each."""
        return list(self.into(x).split(self.sizes, -1))

    def back(self, o: Tensor) -> Tensor:
        """``[B, T, HEADS, VALUES]`` to the model's width."""
        return self.out(functional.rms_norm(o, o.shape[-1:]).flatten(2))


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    """``[B, T, count * size]`` as ``[B, T, count, size]``."""
    return x.unflatten(-1, (count, -1))


class Mamba2(Mixer):
    """A scalar decay per head from the time step; B and C shared by groups of heads."""

    def __init__(self) -> None:
        super().__init__(HEADS * VALUES, HEADS, GROUPS * KEYS, GROUPS * KEYS)
        self.A_log = nn.Parameter(torch.linspace(0, 2, HEADS))
        self.D = nn.Parameter(torch.ones(HEADS))
        self.dt_bias = nn.Parameter(torch.linspace(-4, -1, HEADS))

    def forward(self, x: Tensor, run: Recurrences, state: State) -> Result:
        """``(output, state)``."""
        values, dt, B, C = self.parts(x)
        A = -self.A_log.float().exp()
        B, C = heads(B, GROUPS), heads(C, GROUPS)
        dt_bias, D = self.dt_bias.float(), self.D.float()
        o, state = run.mamba2(heads(values), dt, A, B, C, D, dt_bias, state)
        return self.back(o), state


class GatedDeltaNet(Mixer):
    """A scalar decay per head, and the delta rule's update."""

    def __init__(self) -> None:
        super().__init__(HEADS * KEYS, HEADS * KEYS, HEADS * VALUES, HEADS, HEADS)

    def forward(self, x: Tensor, run: Recurrences, state: State) -> Result:
        """``(output, state)``."""
        q, k, v, a, b = self.parts(x)
        g, beta = functional.logsigmoid(a.float()), b.sigmoid()
        o, state = run.gated_delta_rule(heads(q), heads(k), heads(v), g, beta, state)
        return self.back(o), state


class GatedLinearAttention(Mixer):
    """A decay per key channel."""

    def __init__(self) -> None:
        super().__init__(HEADS * KEYS, HEADS * KEYS, HEADS * VALUES, HEADS * KEYS)

    def forward(self, x: Tensor, run: Recurrences, state: State) -> Result:
        """``(output, state)``."""
        q, k, v, a = self.parts(x)
        g = heads(functional.logsigmoid(a.float()) / 16)
        o, state = run.gla(heads(q), heads(k), heads(v), g, state)
        return self.back(o), state


class Softmax(Mixer):
    """Causal attention; its state is all keys and values so far."""

    def __init__(self) -> None:
        super().__init__(HEADS * KEYS, HEADS * KEYS, HEADS * VALUES)

    def forward(self, x: Tensor, run: Recurrences, state: State) -> Result:
        """``(output, (keys, values))``."""
        q, k, v = (heads(part).transpose(1, 2) for part in self.parts(x))
        if state is not None:
            k, v = torch.cat([state[0], k], 2), torch.cat([state[1], v], 2)
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=state is None)
        return self.back(o.transpose(1, 2)), (k, v)


class Hybrid(nn.Module):
    """Embedding, mixers with residuals, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        kinds = (Mamba2, GatedDeltaNet, GatedLinearAttention, Softmax, Mamba2, GatedDeltaNet)
        self.mixers = nn.ModuleList(kind() for kind in kinds)

    def forward(self, tokens: Tensor, run: Recurrences, states: list[State]) -> Tensor:
        """Logits ``[B, T, VOCABULARY]``; ``states``, one per mixer, are replaced."""
        weight = self.embedding.weight
        x = self.embedding(tokens).float()
        for i, mixer in enumerate(self.mixers):
            o, states[i] = mixer(
                functional.rms_norm(x, x.shape[-1:]).to(weight.dtype), run, states[i]
            )
            x = x + o
        return functional.linear(functional.rms_norm(x, x.shape[-1:]), weight.float())


# ---- the comparison -----------------------------------------------------------------------------


@dataclass
class Logits:
    """Of the prompt, ``[B, PROMPT, …]``, and of the tokens decoded after it, ``[B, STEPS, …]``."""

    prefill: Tensor
    decode: Tensor


def logits_of(model: Hybrid, run: Recurrences, tokens: Tensor) -> Logits:
    """The prompt at once, then one token per call."""
    states: list[State] = [None] * len(model.mixers)
    prefill = model(tokens[:, :PROMPT], run, states)
    decode = [model(tokens[:, t : t + 1], run, states) for t in range(PROMPT, tokens.shape[1])]
    return Logits(prefill, torch.cat(decode, 1))


def error(x: Tensor, reference: Tensor) -> float:
    """RMS(x - reference) / RMS(reference)."""
    x, reference = x.double(), reference.double()
    return float((x - reference).square().mean().sqrt() / reference.square().mean().sqrt())


def sluice_functions() -> Functions:
    """Sluice's functions of the peers' names, also where the peers' are quicker."""
    sluice.compat.fla.allow(slow=True)
    sluice.compat.mamba_ssm.allow(slow=True)
    mamba = sluice.compat.mamba_ssm
    return Functions(
        sluice.compat.fla, mamba.mamba_chunk_scan_combined, mamba.selective_state_update
    )


def peers_functions() -> dict[str, Functions]:
    """The peers' own functions, where they are installed; their kernels need a GPU."""
    if importlib.util.find_spec("fla") is None:
        return {}
    fla = importlib.import_module("fla.ops")
    if importlib.util.find_spec("mamba_ssm") is None:
        return {"FLA": FlaAlone(fla)}
    triton = "mamba_ssm.ops.triton"
    scan = importlib.import_module(f"{triton}.ssd_combined").mamba_chunk_scan_combined
    step = importlib.import_module(f"{triton}.selective_state_update").selective_state_update
    return {"FLA and mamba_ssm": Functions(fla, scan, step)}


def main() -> None:
    """Compares logits; fails where they differ by more than rounding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    torch.manual_seed(0)
    model = Hybrid().to(device, dtype)
    tokens = torch.randint(VOCABULARY, (BATCH, PROMPT + STEPS), device=device)
    contestants: dict[str, Recurrences] = {"Sluice": sluice_functions()}
    if device.type == "cuda" and not arguments.alone:
        contestants.update(peers_functions())

    with torch.inference_mode():
        expected = logits_of(model, TimeLoop(), tokens)
        results = {name: logits_of(model, run, tokens) for name, run in contestants.items()}
    print(f"{PROMPT} tokens of prompt, {STEPS} decoded; {device}, {str(dtype).partition('.')[2]}")
    for name, got in results.items():
        prefill = error(got.prefill, expected.prefill)
        decode = error(got.decode, expected.decode)
        same = (got.decode.argmax(-1) == expected.decode.argmax(-1)).double().mean()
        print(
            f"{name}: logits' error {prefill:.1e} in prefill, {decode:.1e} in decoding, "
            f"{100 * float(same):.0f} % the same next tokens"
        )
    for log in (sluice.compat.fla.log(), sluice.compat.mamba_ssm.log()):
        for ran, count in log.items():
            why = f": {ran.reason}" if ran.reason else ""
            print(f"  {ran.function} x {count}: {ran.kernel}{why}")

    ours = results["Sluice"]
    assert error(ours.prefill, expected.prefill) < BOUND[dtype]
    assert error(ours.decode, expected.decode) < BOUND[dtype]


if __name__ == "__main__":
    main()
