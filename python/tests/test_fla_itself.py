"""sluice.compat.fla and flash-linear-attention on the CPU: installation into it, by patching and
through its registry of backends, and its plain loops. Its kernels: test_gpu_fla.py.
"""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from conftest import FLOAT32, error

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if importlib.util.find_spec("fla") is None:
    pytest.skip("flash-linear-attention is not installed", allow_module_level=True)
from sluice.compat import fla as ours  # noqa: E402

DISPATCHED = ["chunk_kda", "chunk_gated_delta_rule", "fused_recurrent_simple_gla"]
B, T, H, HV, K, V = 2, 37, 2, 4, 16, 24


@pytest.fixture(autouse=True)
def forget():
    ours.clear_log()
    yield
    ours.uninstall()


def theirs(name: str):
    return getattr(importlib.import_module(ours._package._homes[name]), name)


def make(heads: int = HV) -> dict:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int):
        return torch.randn(*shape, generator=generator)

    return {
        "q": normal(B, T, H, K),
        "k": torch.nn.functional.normalize(normal(B, T, H, K), dim=-1),
        "v": normal(B, T, heads, V),
        "g": -torch.rand(B, T, heads, generator=generator),
        "gk": -torch.rand(B, T, heads, K, generator=generator),
        "beta": torch.rand(B, T, heads, generator=generator),
        "h0": normal(B, heads, K, V),
    }


def arguments_of(name: str) -> tuple:
    x = make(HV if "gated" in name or "kda" in name else H)
    gates = {
        "chunk_gla": ("gk",),
        "chunk_kda": ("gk", "beta"),
        "chunk_gated_delta_rule": ("g", "beta"),
        "fused_recurrent_simple_gla": ("g",),
    }
    return tuple(x[n] for n in ("q", "k", "v", *gates[name]))


# ---- installation -------------------------------------------------------------------------------


def test_patched_where_fla_does_not_dispatch():
    layer = importlib.import_module("fla.layers.gla")
    original = layer.chunk_gla
    ours.install()
    assert layer.chunk_gla is ours.chunk_gla
    ours.uninstall()
    assert layer.chunk_gla is original


@pytest.mark.parametrize("name", DISPATCHED)
def test_a_backend_where_fla_dispatches(name):
    original = theirs(name)
    ours.install()
    assert theirs(name) is original  # nothing is patched
    o, _ = original(*arguments_of(name))
    [(ran, count)] = ours.log().items()
    assert (ran.function, ran.reason, count) == (name, "", 1)
    torch.testing.assert_close(o, getattr(ours, name)(*arguments_of(name))[0], rtol=0, atol=0)


@pytest.fixture
def another_backend():
    """A backend of FLA's for chunk_kda, behind ours, which says that it was called."""
    backends = importlib.import_module("fla.backends")
    enabled = True

    class Another(backends.BaseBackend):
        backend_type = "another"

        def is_enabled(self):
            return enabled

        def chunk_kda(self, *args, **kwargs):
            return "another"

    backends.register(theirs("chunk_kda"))(Another)
    yield
    enabled = False


def test_what_we_refuse_goes_to_flas_next_backend(another_backend):
    arguments = arguments_of("chunk_kda")
    ours.install()
    assert theirs("chunk_kda")(*arguments, return_intermediate_states=True) == "another"
    assert ours.chunk_kda(*arguments, return_intermediate_states=True) == "another"
    [(ran, count)] = ours.log().items()
    assert (ran.function, ran.kernel, count) == ("chunk_kda", "original", 2)
    assert "return_intermediate_states" in ran.reason
    # The next call is ours again.
    assert theirs("chunk_kda")(*arguments)[1] is None


def test_after_uninstalling_flas_backends_choose(another_backend):
    arguments = arguments_of("chunk_kda")
    assert theirs("chunk_kda")(*arguments) == "another"
    ours.install(["chunk_kda"])
    assert theirs("chunk_kda")(*arguments)[0].shape == (B, T, HV, V)
    ours.uninstall()
    assert theirs("chunk_kda")(*arguments) == "another"


def test_only_the_named_functions_are_installed(another_backend):
    ours.install(["chunk_gated_delta_rule"])
    assert theirs("chunk_kda")(*arguments_of("chunk_kda")) == "another"
    theirs("chunk_gated_delta_rule")(*arguments_of("chunk_gated_delta_rule"))
    assert [ran.function for ran in ours.log()] == ["chunk_gated_delta_rule"]


def test_patched_where_dispatch_is_switched_off(monkeypatch):
    """FLA_DISABLE_BACKEND_DISPATCH=1: FLA makes no wrappers, and ours finds none."""
    original = theirs("chunk_kda")
    bare = original
    while hasattr(bare, "__wrapped__"):
        bare = bare.__wrapped__
    module = importlib.import_module("fla.ops.kda")
    monkeypatch.setattr(module, "chunk_kda", bare)
    monkeypatch.setattr(ours._package, "_originals", {})
    ours.install(["chunk_kda"])
    assert module.chunk_kda is ours.chunk_kda
    ours.uninstall()
    assert module.chunk_kda is bare


# ---- FLA's own loops ----------------------------------------------------------------------------


def agree(result: tuple, expected: tuple) -> None:
    for x, reference in zip(result, expected, strict=True):
        assert error(x, reference) < FLOAT32


@pytest.mark.parametrize("prefix", ["chunk", "fused_recurrent"])
def test_gla(prefix):
    loop = importlib.import_module("fla.ops.gla.naive").naive_recurrent_gla
    x = make(H)
    arguments = (x["q"], x["k"], x["v"], x["gk"])
    common = {"initial_state": x["h0"], "output_final_state": True}
    agree(getattr(ours, f"{prefix}_gla")(*arguments, **common), loop(*arguments, **common))


@pytest.mark.parametrize("prefix", ["chunk", "fused_recurrent"])
def test_simple_gla(prefix):
    loop = importlib.import_module("fla.ops.simple_gla.naive").naive_recurrent_simple_gla
    x = make(H)
    arguments = (x["q"], x["k"], x["v"], x["g"])
    common = {"scale": 0.1, "initial_state": x["h0"], "output_final_state": True}
    agree(getattr(ours, f"{prefix}_simple_gla")(*arguments, **common), loop(*arguments, **common))


@pytest.mark.parametrize("prefix", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("normalize", [False, True])
def test_linear_attention(prefix, normalize):
    loop = importlib.import_module("fla.ops.linear_attn.naive").naive_recurrent_linear_attn
    x = make(H)
    arguments = (x["q"].exp(), x["k"].exp(), x["v"])
    start = (x["h0"], x["k"].exp()[:, :1]) if normalize else x["h0"]
    common = {"initial_state": start, "output_final_state": True, "normalize": normalize}
    o, state = getattr(ours, f"{prefix}_linear_attn")(*arguments, **common)
    o_ref, state_ref = loop(*arguments, **common)
    agree((o, *state), (o_ref, *state_ref)) if normalize else agree((o, state), (o_ref, state_ref))


def test_retention():
    """FLA's loop is the quadratic form, heads before tokens."""
    loop = importlib.import_module("fla.ops.retention.naive").naive_retention
    x = make(H)
    arguments = (x["q"], x["k"], x["v"])
    expected = loop(*(a.transpose(1, 2) for a in arguments)).transpose(1, 2)
    assert error(ours.chunk_retention(*arguments)[0], expected) < FLOAT32


@pytest.mark.parametrize("prefix", ["chunk", "fused_recurrent"])
def test_delta_rule(prefix):
    loop = importlib.import_module("fla.ops.delta_rule.naive").delta_rule_recurrence
    x = make(H)
    arguments = (x["q"], x["k"], x["v"], x["beta"])
    o_ref, state_ref = loop(*(a.transpose(1, 2) for a in arguments), initial_state=x["h0"])
    result = getattr(ours, f"{prefix}_delta_rule")(
        *arguments, initial_state=x["h0"], output_final_state=True
    )
    agree(result, (o_ref.transpose(1, 2), state_ref))


@pytest.mark.parametrize("prefix", ["chunk", "fused_recurrent"])
def test_gated_delta_rule(prefix):
    loop = importlib.import_module("fla.ops.gated_delta_rule.naive")
    x = make(HV)
    common = {"initial_state": x["h0"], "output_final_state": True}
    result = getattr(ours, f"{prefix}_gated_delta_rule")(
        x["q"], x["k"], x["v"], g=x["g"], beta=x["beta"], **common
    )
    per_head = (x[n].repeat_interleave(HV // H, 2) for n in ("q", "k"))
    agree(
        result,
        loop.naive_recurrent_gated_delta_rule(*per_head, x["v"], x["beta"], x["g"], **common),
    )


@pytest.mark.parametrize("prefix", ["chunk", "fused_recurrent"])
def test_kda(prefix):
    loop = importlib.import_module("fla.ops.kda.naive").naive_recurrent_kda
    x = make(HV)
    arguments = (x["q"], x["k"], x["v"], x["gk"], x["beta"])
    common = {"initial_state": x["h0"], "output_final_state": True}
    agree(getattr(ours, f"{prefix}_kda")(*arguments, **common), loop(*arguments, **common))
