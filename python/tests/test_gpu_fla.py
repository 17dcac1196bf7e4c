"""Beside flash-linear-attention on a GPU: the shapes and tolerances of its own tests (odd lengths
and channels, groups of heads, masked gates, packed sequences), what install() does to its functions
and layers, gradients, torch.compile.

The reference is what its tests take: the recurrent form, token by token in float32.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field
from typing import Any

import pytest

from conftest import HALF as BOUNDS
from conftest import error
from tolerances import FLA

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
if importlib.util.find_spec("fla") is None:
    pytest.skip("flash-linear-attention is not installed", allow_module_level=True)
from torch.nn import functional  # noqa: E402

from sluice.compat import fla as ours  # noqa: E402

HALF, FLOAT = torch.float16, torch.float32


pytestmark = pytest.mark.usefixtures("untuned")


@pytest.fixture(autouse=True)
def forget():
    """Kernels are judged however slow they are."""
    ours.clear_log()
    ours.allow(slow=True)
    yield
    ours.allow(coarse=False, slow=False)
    ours.uninstall()


def theirs(name: str):
    """FLA's own function, also while ours is installed."""
    return ours._package._original(name)


@dataclass(frozen=True)
class Case:
    """A call: ``T`` tokens, or sequences packed at ``offsets``."""

    function: str
    B: int
    T: int
    H: int
    K: int
    HV: int = 0  # 0: H
    V: int = 0  # 0: K
    offsets: tuple[int, ...] = ()
    dtype: torch.dtype = HALF
    gate: float = 1  # divides the log decays
    masked: float = 0  # share of log decays that are 0
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        heads = f"H{self.H}" + (f"of{self.HV}" if self.HV else "")
        dims = f"K{self.K}" + (f"V{self.V}" if self.V else "")
        packed = f"-packed{len(self.offsets) - 1}" if self.offsets else ""
        extra = "".join(f"-{name}" for name in self.options)
        gate = f"-gate{self.gate}-mask{self.masked}"
        return f"{self.function}-B{self.B}T{self.T}{heads}{dims}{packed}{gate}{extra}"


def packed(function: str, offsets: tuple[int, ...], H: int, K: int, **rest: Any) -> Case:
    return Case(function, 1, offsets[-1], H, K, offsets=offsets, **rest)


LONG = (0, 15, 100, 300, 1200, 2000)
NORM = {"use_qk_l2norm_in_kernel": True}
VALUE_FIRST = {"state_v_first": True}
RAW_BETA = {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}

CASES = [
    Case("chunk_gla", 1, 63, 1, 64),
    Case("chunk_gla", 2, 1024, 4, 60),
    Case("chunk_gla", 2, 1024, 8, 128, gate=0.1),
    Case("chunk_gla", 2, 1024, 8, 128, gate=10),
    Case("chunk_gla", 4, 2048, 8, 64),
    Case("chunk_gla", 1, 128, 4, 256),
    Case("chunk_gla", 2, 1024, 4, 128, options=VALUE_FIRST),
    packed("chunk_gla", (0, 15), 4, 64),
    packed("chunk_gla", (0, 0, 16), 4, 64),
    packed("chunk_gla", (0, 256, 500, 1000), 4, 64),
    packed("chunk_gla", LONG, 4, 100),
    Case("fused_recurrent_gla", 2, 1024, 4, 60, dtype=FLOAT),
    *(Case("chunk_simple_gla", 2, T, 2, 64) for T in (1, 15, 63, 300)),
    *(Case("chunk_simple_gla", 2, 300, 2, K, gate=0.1) for K in (32, 100, 256)),
    packed("chunk_simple_gla", (0, 47, 286), 2, 100),
    Case("fused_recurrent_simple_gla", 2, 63, 2, 64, dtype=FLOAT),
    *(Case("chunk_retention", 2, 300, 2, K, V=V) for K, V in ((64, 64), (32, 64), (100, 200))),
    packed("chunk_retention", (0, 100, 286), 2, 100, V=100),
    Case("chunk_lightning_attn", 2, 300, 2, 64, options={"layer_idx": 3, "num_layers": 8}),
    packed("chunk_lightning_attn", (0, 47, 286), 2, 64, options={"layer_idx": 0, "num_layers": 8}),
    *(Case("fused_recurrent_linear_attn", 2, T, 2, 64) for T in (1, 128)),
    *(Case("chunk_delta_rule", 2, T, 3, K) for T, K in ((56, 60), (211, 110), (400, 200))),
    packed("chunk_delta_rule", (0, 15, 100, 300, 1203, 2000), 2, 64),
    Case("chunk_gated_delta_rule", 2, 75, 4, 64, gate=0.01),
    Case("chunk_gated_delta_rule", 2, 500, 3, 60),
    Case("chunk_gated_delta_rule", 2, 1000, 3, 64, masked=0.5),
    Case("chunk_gated_delta_rule", 3, 1024, 4, 100, gate=0.1),
    Case("chunk_gated_delta_rule", 4, 1024, 4, 128, masked=1, options=NORM),
    Case("chunk_gated_delta_rule", 2, 512, 2, 64, HV=8, gate=0.1, options=NORM),
    Case("chunk_gated_delta_rule", 2, 1024, 4, 128, HV=8, options=RAW_BETA),
    packed("chunk_gated_delta_rule", (0, 256, 500, 1000), 4, 64, options=VALUE_FIRST),
    Case("fused_recurrent_gated_delta_rule", 2, 1000, 2, 128, HV=8, gate=0.1, dtype=FLOAT),
    Case("chunk_kda", 1, 63, 1, 64),
    Case("chunk_kda", 2, 500, 3, 60),
    Case("chunk_kda", 2, 1000, 3, 64, masked=0.5),
    Case("chunk_kda", 3, 1024, 4, 100, gate=0.1, options=NORM),
    Case("chunk_kda", 2, 1024, 4, 128, options=RAW_BETA),
    packed("chunk_kda", (0, 15), 4, 60),
    packed("chunk_kda", (0, 256, 500, 1000), 4, 128, masked=0.5, options=VALUE_FIRST),
    Case("fused_recurrent_kda", 2, 512, 3, 60, dtype=FLOAT),
]
LINEAR = [
    Case("chunk_linear_attn", B, T, 2, K, options={"normalize": False})
    for B, T, K in ((1, 63, 64), (2, 128, 32), (2, 128, 128), (2, 1000, 64))
]


def inputs_of(case: Case) -> dict[str, Any]:
    """Keyword arguments, drawn as FLA's tests draw them."""
    generator = torch.Generator("cuda").manual_seed(42)
    B, T, H, K = case.B, case.T, case.H, case.K
    HV, V = case.HV or H, case.V or K
    delta = "delta" in case.function or "kda" in case.function
    gated = "gated" in case.function or "kda" in case.function or case.function.endswith("_gla")
    per_channel = "kda" in case.function or case.function.endswith("k_gla")
    per_channel |= case.function == "fused_recurrent_gla"

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, device="cuda", generator=generator)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    draw = uniform if gated and "simple" not in case.function else normal
    made = {"q": draw(B, T, H, K), "k": draw(B, T, H, K), "v": draw(B, T, HV, V)}
    if delta and "use_qk_l2norm_in_kernel" not in case.options:
        made.update({n: functional.normalize(made[n], dim=-1) for n in ("q", "k")})
    made = {name: x.to(case.dtype) for name, x in made.items()}
    if gated:
        shape = (B, T, HV, K) if per_channel else (B, T, HV)
        g = functional.logsigmoid(uniform(*shape)) / case.gate
        name = "gk" if case.function == "fused_recurrent_gla" else "g"
        made[name] = g * (uniform(*shape) > case.masked)
    if delta:
        made["beta"] = normal(B, T, HV) if case.options is RAW_BETA else uniform(B, T, HV).sigmoid()
    sequences = len(case.offsets) - 1 if case.offsets else B
    state = (V, K) if case.options is VALUE_FIRST else (K, V)
    made["initial_state"] = normal(sequences, HV, *state)
    if case.offsets:
        made["cu_seqlens"] = torch.tensor(case.offsets, device="cuda")
    return {**made, "output_final_state": True, **case.options}


def reference(case: Case, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """FLA's recurrent form; linear attention's from float32, as its test does."""
    inputs = dict(inputs)
    if case.function == "chunk_gla":
        inputs["gk"] = inputs.pop("g")
    if case.function.endswith("linear_attn"):
        inputs.update({name: inputs[name].float() for name in ("q", "k", "v")})
    return theirs(case.function.replace("chunk", "fused_recurrent"))(**inputs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_flas(case):
    inputs = inputs_of(case)
    o, state = getattr(ours, case.function)(**inputs)
    [ran] = ours.log()
    assert ran.kernel.startswith("cuda") and not ran.reason
    o_ref, state_ref = reference(case, inputs)
    assert (o.dtype, state.dtype) == (case.dtype, torch.float32)
    assert error(o.float().cpu(), o_ref.float().cpu()) < FLA[case.function].o
    assert error(state.cpu(), state_ref.float().cpu()) < FLA[case.function].state


@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_linear_attention_that_flas_test_bounds_too_narrowly(case):
    """FLA's function runs, within its test's tolerance; where allowed ours, within our bound."""
    inputs = inputs_of(case)
    expected = reference(case, inputs)
    for allowed, bounds in ((False, FLA[case.function][:2]), (True, (BOUNDS["additive"], 5e-3))):
        ours.clear_log()
        ours.allow(coarse=allowed)
        made = getattr(ours, case.function)(**inputs)
        [ran] = ours.log()
        assert ran.kernel.startswith("cuda" if allowed else "original")
        for x, x_ref, bound in zip(made, expected, bounds, strict=True):
            assert error(x.float().cpu(), x_ref.float().cpu()) < bound


def test_equals_flas_normalised():
    case = Case("chunk_linear_attn", 2, 128, 2, 64)
    generator = torch.Generator("cuda").manual_seed(42)
    q, k, v = (
        torch.rand(case.B, case.T, case.H, case.K, device="cuda", generator=generator).bfloat16()
        for _ in range(3)
    )
    common = {"normalize": True, "output_final_state": True}
    o, (state, z) = ours.chunk_linear_attn(q, k, v, **common)
    o_ref, (state_ref, z_ref) = theirs("fused_recurrent_linear_attn")(
        q.float(), k.float(), v.float(), **common
    )
    assert error(o.float().cpu(), o_ref.cpu()) < 4e-3
    assert error(state.cpu(), state_ref.cpu()) < 5e-3
    assert z.shape == z_ref.shape and error(z.cpu(), z_ref.cpu()) < 1e-3


@pytest.mark.parametrize("name", ["chunk_gla", "chunk_simple_gla"])
def test_equals_flas_chunked_form(name):
    inputs = inputs_of(Case(name, 2, 300, 4, 64))
    o, state = getattr(ours, name)(**inputs)
    o_ref, state_ref = theirs(name)(**inputs)
    assert error(o.float().cpu(), o_ref.float().cpu()) < 5e-3
    assert error(state.cpu(), state_ref.cpu()) < 5e-3


# ---- installed into FLA -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chunk_kda", "chunk_gated_delta_rule", "chunk_gla"])
def test_installed(name):
    """By FLA's registry where it dispatches, else in its modules; and taken out again."""
    home = importlib.import_module(ours._package._homes[name])
    original = getattr(home, name)
    inputs = inputs_of(Case(name, 2, 75, 4, 64))
    expected = getattr(ours, name)(**inputs)[0]
    ours.clear_log()
    ours.install()
    o, _ = getattr(home, name)(**inputs)
    torch.testing.assert_close(o, expected, rtol=0, atol=0)
    [(ran, count)] = ours.log().items()
    assert (ran.function, ran.reason, count) == (name, "", 1) and ran.kernel.startswith("cuda")
    ours.uninstall()
    assert getattr(home, name) is original


def test_a_refused_call_runs_flas_kernel_and_says_why():
    inputs = inputs_of(Case("fused_recurrent_gla", 1, 16, 2, 64, dtype=FLOAT))
    function = importlib.import_module("fla.ops.gla").fused_recurrent_gla
    expected = function(**inputs, reverse=True)[0]
    ours.install()
    installed = importlib.import_module("fla.ops.gla").fused_recurrent_gla
    torch.testing.assert_close(installed(**inputs, reverse=True)[0], expected)
    [ran] = ours.log()
    assert (ran.function, ran.kernel, ran.reason) == ("fused_recurrent_gla", "original", "reverse")


def test_what_would_go_token_by_token_runs_flas_kernel():
    """Tensor cores take operands of 16 bits; up to 64 tokens nothing is slow."""
    ours.allow(slow=False)
    for case, kernel in (
        (Case("chunk_gla", 1, 65, 2, 64), "cuda gla"),
        (Case("chunk_gla", 1, 64, 2, 64, dtype=FLOAT), "cuda recurrent"),
        (Case("chunk_gla", 1, 65, 2, 64, dtype=FLOAT), "original"),
        (Case("fused_recurrent_gla", 1, 65, 2, 64, dtype=FLOAT), "cuda recurrent"),
    ):
        ours.clear_log()
        inputs = inputs_of(case)
        o, state = getattr(ours, case.function)(**inputs)
        [ran] = ours.log()
        assert ran.kernel.startswith(kernel)
        assert ("tensor-core" in ran.reason and "precision" in ran.reason) == (kernel == "original")
        o_ref, state_ref = reference(case, inputs)
        assert error(o.float().cpu(), o_ref.float().cpu()) < FLA[case.function].o
        assert error(state.cpu(), state_ref.cpu()) < FLA[case.function].state


@pytest.mark.parametrize("length", [48, 100])
def test_a_layer_with_a_padding_mask(length):
    """FLA's GLA layer, recurrent up to 64 tokens and chunked beyond, unpads masked batches."""
    layers = importlib.import_module("fla.layers.gla")
    torch.manual_seed(0)
    layer = layers.GatedLinearAttention(hidden_size=256, num_heads=4, layer_idx=0)
    layer = layer.to("cuda", torch.bfloat16).eval()
    x = torch.randn(3, length, 256, device="cuda", dtype=torch.bfloat16)
    mask = torch.ones(3, length, device="cuda", dtype=torch.long)
    mask[1, : length // 3] = 0
    with torch.no_grad():
        expected = layer(x, attention_mask=mask)[0]
        ours.install()
        o = layer(x, attention_mask=mask)[0]
    [ran] = ours.log()
    assert ran.kernel.startswith("cuda") and not ran.reason
    kept = mask.bool()
    assert error(o[kept].float().cpu(), expected[kept].float().cpu()) < 1e-2


def test_a_gradient_reaches_flas_backward():
    inputs = inputs_of(Case("chunk_gla", 1, 70, 2, 64))
    inputs["q"].requires_grad_()
    ours.chunk_gla(**inputs)[0].sum().backward()
    assert inputs["q"].grad is not None and inputs["q"].grad.isfinite().all()
    [ran] = ours.log()
    assert (ran.kernel, ran.reason) == ("original", "a gradient is asked for")


def test_compiled_without_graph_breaks():
    inputs = inputs_of(Case("chunk_gla", 2, 100, 4, 64))
    arguments = [inputs[n] for n in ("q", "k", "v", "g")]
    torch._dynamo.reset()
    function = torch.compile(lambda q, k, v, g: ours.chunk_gla(q * 2, k, v, g)[0], fullgraph=True)
    expected = ours.chunk_gla(arguments[0] * 2, *arguments[1:])[0]
    torch.testing.assert_close(function(*arguments), expected)
    torch._dynamo.reset()


def test_autocast_leaves_the_inputs_as_they_are():
    inputs = inputs_of(Case("chunk_gla", 2, 100, 4, 64))
    expected = ours.chunk_gla(**inputs)[0]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        o = ours.chunk_gla(**inputs)[0]
    torch.testing.assert_close(o, expected, rtol=0, atol=0)
