"""What the tests share: random inputs of every form of every variant, and the error measure."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sluice
from sluice import ops

ROOT = Path(__file__).resolve().parents[2]

# The project's bounds (docs/exactness.md): float32, and 16-bit operands by update.
FLOAT32 = 1e-5
HALF = {"additive": 4e-3, "delta": 5e-3}


@dataclass(frozen=True)
class Case:
    """One form of a variant: the inputs beside q, k and v, and the settings."""

    op: str
    gates: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [self.op, *self.gates, *(f"{k}-{v}" for k, v in self.settings.items())]
        return "-".join(parts)

    @property
    def update(self) -> str:
        return "delta" if "delta" in self.op or self.op == "kda" else "additive"


RAW = ("g_raw", "A_log", "dt_bias", "beta")
CASES = [
    Case("linear"),
    Case("linear", settings={"feature_map": "elu1"}),
    Case("retention"),
    Case("lightning", settings={"layer_idx": 3, "num_layers": 8}),
    Case("simple_gla", ("g",)),
    Case("gla", ("g",)),
    Case("mamba2"),
    Case("mamba2", ("D", "z", "dt_bias"), {"dt_min": 0.5, "dt_max": 2.0}),
    Case("mamba2", ("D2",), {"dt_softplus": True}),
    Case("delta_rule", ("beta",), {"qk_l2norm": True}),
    Case("gated_delta_rule", ("g", "beta"), {"qk_l2norm": True}),
    Case("gated_delta_rule", RAW, {"qk_l2norm": True, "beta": "sigmoid"}),
    Case("kda", ("g", "beta"), {"qk_l2norm": True}),
    Case("kda", RAW, {"qk_l2norm": True, "beta": "2sigmoid"}),
    Case("kda", RAW, {"qk_l2norm": True, "lower_bound": -5.0}),
]


def inputs_of(
    case: Case, B: int = 2, T: int = 70, H: int = 2, HV: int = 4, K: int = 16, V: int = 24
) -> dict[str, np.ndarray]:
    """Random float32 inputs by name."""
    rng = np.random.default_rng(7)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    gate = (B, T, HV, K) if case.op in ("gla", "kda") else (B, T, HV)
    made = {
        "q": normal(B, T, H, K),
        "k": normal(B, T, H, K),
        "v": normal(B, T, HV, V),
        "x": normal(B, T, HV, V),
        "dt": normal(B, T, HV),
        "A": -np.exp(normal(HV)),
        "B": normal(B, T, H, K),
        "C": normal(B, T, H, K),
        "g": -rng.random(gate, dtype=np.float32),
        "g_raw": normal(*gate),
        "A_log": normal(HV) * 0.3,
        "beta": rng.random((B, T, HV), dtype=np.float32),
        "dt_bias": normal(HV, K) if case.op == "kda" else normal(HV),
        "D": normal(HV),
        "z": normal(B, T, HV, V),
    }
    if "D2" in case.gates:
        made["D"] = normal(HV, V)
    base = ("x", "dt", "A", "B", "C") if case.op == "mamba2" else ("q", "k", "v")
    return {name: made[name] for name in (*base, *(g.replace("D2", "D") for g in case.gates))}


def call(case: Case, inputs: dict[str, Any], step: bool = False, **keywords: Any) -> tuple:
    """Calls the case's function of ``sluice.ops``; the setting "beta" is its ``beta_form``."""
    function = getattr(ops, case.op + ("_step" if step else ""))
    settings = {("beta_form" if k == "beta" else k): v for k, v in case.settings.items()}
    return function(**inputs, **settings, **keywords)


def refusal(function: Any, *args: Any, **kwargs: Any) -> sluice.Error:
    """The error that a call raises."""
    with pytest.raises(sluice.Error) as caught:
        function(*args, **kwargs)
    return caught.value


def error(x: Any, reference: Any) -> float:
    """RMS(x - reference) / RMS(reference)."""
    x, reference = np.asarray(x, np.float64), np.asarray(reference, np.float64)
    assert x.shape == reference.shape
    assert np.isfinite(x).all()
    return float(np.sqrt(np.mean((x - reference) ** 2) / max(np.mean(reference**2), 1e-300)))


@pytest.fixture
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton kernels of peers in the smallest of their configurations: tuning compiles dozens."""
    autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    prune = autotuner.prune_configs

    def size(config: Any) -> int:
        tiles = (n for n in config.kwargs.values() if type(n) is int and n > 0)
        return math.prod(tiles) * config.num_stages

    monkeypatch.setattr(
        autotuner, "prune_configs", lambda self, kwargs: [min(prune(self, kwargs), key=size)]
    )


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param
