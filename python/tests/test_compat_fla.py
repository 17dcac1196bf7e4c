"""sluice.compat.fla on the CPU against the oracle; installation into a stand-in for FLA. With FLA:
test_fla_itself.py.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types

import pytest

import sluice
from conftest import FLOAT32, error
from sluice import ops

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from sluice.compat import _stand_in, fla  # noqa: E402
from sluice.compat._tolerances import TOO_COARSE  # noqa: E402

HAS_FLA = importlib.util.find_spec("fla") is not None

B, T, H, HV, K, V = 2, 67, 2, 4, 16, 24
FUNCTIONS = sorted(fla._package.names())


@pytest.fixture(autouse=True)
def forget():
    fla.clear_log()
    yield
    fla.allow(coarse=False, slow=False)
    fla.uninstall()


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
        "raw": normal(B, T, heads, K),
        "A_log": normal(heads) * 0.3,
        "dt_bias": normal(heads * K),
        "h0": normal(B, heads, K, V),
    }


def agree(result: tuple, expected: tuple) -> None:
    o, state = result
    o_ref, state_ref = expected
    assert error(o, o_ref) < FLOAT32
    assert state.dtype == torch.float32
    assert error(state, state_ref) < FLOAT32


def test_the_peers_functions_are_all_here():
    wanted = {
        "chunk_gla",
        "fused_recurrent_gla",
        "chunk_simple_gla",
        "fused_recurrent_simple_gla",
        "chunk_retention",
        "fused_recurrent_retention",
        "chunk_lightning_attn",
        "chunk_linear_attn",
        "chunk_delta_rule",
        "chunk_gated_delta_rule",
        "fused_recurrent_gated_delta_rule",
        "chunk_kda",
        "fused_recurrent_kda",
    }
    assert wanted <= set(FUNCTIONS)


def test_without_final_state():
    x = make(H)
    o, state = fla.chunk_gla(x["q"], x["k"], x["v"], x["gk"])
    assert state is None and o.shape == (B, T, H, V)


@pytest.mark.parametrize("name", ["chunk_gla", "fused_recurrent_gla"])
@pytest.mark.parametrize("first", [False, True])
def test_gla(name, first):
    x = make(H)
    h0 = x["h0"].transpose(2, 3).contiguous() if first else x["h0"]
    result = getattr(fla, name)(
        x["q"],
        x["k"],
        x["v"],
        x["gk"],
        scale=0.3,
        initial_state=h0,
        output_final_state=True,
        state_v_first=first,
    )
    agree(
        result,
        ops.gla(
            x["q"],
            x["k"],
            x["v"],
            x["gk"],
            scale=0.3,
            initial_state=h0,
            output_final_state=True,
            backend="oracle",
            state_layout="value-first" if first else None,
        ),
    )


def test_the_older_name_of_state_v_first():
    x = make(H)
    arguments = (x["q"], x["k"], x["v"], x["gk"])
    common = {"initial_state": x["h0"].transpose(2, 3), "output_final_state": True}
    older = fla.fused_recurrent_gla(*arguments, **common, transpose_state_layout=True)
    torch.testing.assert_close(
        older, fla.fused_recurrent_gla(*arguments, **common, state_v_first=True), rtol=0, atol=0
    )


@pytest.mark.parametrize("name", ["chunk_simple_gla", "fused_recurrent_simple_gla"])
def test_simple_gla(name):
    x = make(H)
    common = {"initial_state": x["h0"], "output_final_state": True}
    function = getattr(fla, name)
    agree(
        function(x["q"], x["k"], x["v"], x["g"], **common),
        ops.simple_gla(x["q"], x["k"], x["v"], x["g"], **common, backend="oracle"),
    )
    gamma = torch.tensor([-0.1, -0.7])
    agree(
        function(x["q"], x["k"], x["v"], g_gamma=gamma, **common),
        ops.simple_gla(
            x["q"], x["k"], x["v"], gamma.expand(B, T, H).contiguous(), **common, backend="oracle"
        ),
    )
    agree(
        function(x["q"], x["k"], x["v"], **common),
        ops.linear(x["q"], x["k"], x["v"], **common, backend="oracle"),
    )


@pytest.mark.parametrize("prefix", ["chunk", "fused_recurrent"])
def test_retention_and_lightning(prefix):
    x = make(H)
    common = {"initial_state": x["h0"], "output_final_state": True}
    agree(
        getattr(fla, f"{prefix}_retention")(x["q"], x["k"], x["v"], **common),
        ops.retention(x["q"], x["k"], x["v"], **common, backend="oracle"),
    )
    agree(
        getattr(fla, f"{prefix}_lightning_attn")(x["q"], x["k"], x["v"], 3, 8, **common),
        ops.lightning(
            x["q"], x["k"], x["v"], layer_idx=3, num_layers=8, **common, backend="oracle"
        ),
    )


@pytest.mark.parametrize("prefix", ["chunk", "fused_recurrent"])
def test_linear_attention_and_its_pairs(prefix):
    x = make(H)
    function = getattr(fla, f"{prefix}_linear_attn")
    q, k = x["q"].exp(), x["k"].exp()
    agree(
        function(q, k, x["v"], normalize=False, output_final_state=True),
        ops.linear(q, k, x["v"], output_final_state=True, backend="oracle"),
    )
    # The definition, spelled out: kv and k sums over time.
    kv = torch.einsum("bthk,bthv->bthkv", k.double(), x["v"].double()).cumsum(1)
    z = k.double().cumsum(1)
    scale = K**-0.5
    numerator = torch.einsum("bthk,bthkv->bthv", q.double() * scale, kv)
    expected = numerator / ((q.double() * scale * z).sum(-1, keepdim=True) + 1e-10)
    o, (state, z_state) = function(q, k, x["v"], normalize=True, output_final_state=True)
    assert error(o, expected) < FLOAT32
    assert error(state, kv[:, -1]) < FLOAT32 and error(z_state, z[:, -1:]) < FLOAT32
    o, (state, z_state) = function(q[:, :40], k[:, :40], x["v"][:, :40], normalize=True)
    assert state is None and z_state.shape == (B, 1, H, K)
    _, pair = function(
        q[:, :40], k[:, :40], x["v"][:, :40], normalize=True, output_final_state=True
    )
    o, _ = function(q[:, 40:], k[:, 40:], x["v"][:, 40:], normalize=True, initial_state=pair)
    assert error(o, expected[:, 40:]) < FLOAT32


@pytest.mark.parametrize("prefix", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("norm", [False, True])
def test_delta_rule(prefix, norm):
    x = make(H)
    common = {"initial_state": x["h0"], "output_final_state": True}
    agree(
        getattr(fla, f"{prefix}_delta_rule")(
            x["q"], x["k"], x["v"], x["beta"], use_qk_l2norm_in_kernel=norm, **common
        ),
        ops.delta_rule(
            x["q"], x["k"], x["v"], x["beta"], qk_l2norm=norm, **common, backend="oracle"
        ),
    )


BETAS = [
    ({}, None),
    ({"use_beta_sigmoid_in_kernel": True}, "sigmoid"),
    ({"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}, "2sigmoid"),
]


@pytest.mark.parametrize("prefix", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("beta, form", BETAS)
def test_gated_delta_rule(prefix, beta, form):
    x = make()
    function = getattr(fla, f"{prefix}_gated_delta_rule")
    common = {"initial_state": x["h0"], "output_final_state": True}
    theirs = {"beta": x["beta"], **beta, **common, "use_qk_l2norm_in_kernel": True}
    ours = {"beta": x["beta"], "beta_form": form, "qk_l2norm": True, **common, "backend": "oracle"}
    q, k, v = x["q"], x["k"], x["v"]
    agree(function(q, k, v, g=x["g"], **theirs), ops.gated_delta_rule(q, k, v, x["g"], **ours))
    raw, bias = x["raw"][..., 0].contiguous(), x["dt_bias"][:HV].contiguous()
    agree(
        function(q, k, v, g=raw, use_gate_in_kernel=True, A_log=x["A_log"], dt_bias=bias, **theirs),
        ops.gated_delta_rule(q, k, v, g_raw=raw, A_log=x["A_log"], dt_bias=bias, **ours),
    )


def test_fused_gated_delta_rule_with_a_gate_per_channel():
    x = make()
    agree(
        fla.fused_recurrent_gated_delta_rule(
            x["q"], x["k"], x["v"], gk=x["gk"], beta=x["beta"], output_final_state=True
        ),
        ops.kda(
            x["q"], x["k"], x["v"], x["gk"], x["beta"], output_final_state=True, backend="oracle"
        ),
    )


@pytest.mark.parametrize("prefix", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("beta, form", BETAS)
@pytest.mark.parametrize("bound", [None, -5.0])
def test_kda(prefix, beta, form, bound):
    x = make()
    function = getattr(fla, f"{prefix}_kda")
    h0 = x["h0"].transpose(2, 3).contiguous()
    theirs = {
        "initial_state": h0,
        "output_final_state": True,
        "state_v_first": True,
        "use_qk_l2norm_in_kernel": True,
        **beta,
    }
    ours = {
        "initial_state": h0,
        "output_final_state": True,
        "state_layout": "value-first",
        "qk_l2norm": True,
        "beta_form": form,
        "backend": "oracle",
    }
    q, k, v = x["q"], x["k"], x["v"]
    agree(
        function(q, k, v, x["gk"], x["beta"], **theirs),
        ops.kda(q, k, v, x["gk"], x["beta"], **ours),
    )
    agree(
        function(
            q,
            k,
            v,
            x["raw"],
            x["beta"],
            use_gate_in_kernel=True,
            A_log=x["A_log"],
            dt_bias=x["dt_bias"],
            lower_bound=bound,
            **theirs,
        ),
        ops.kda(
            q,
            k,
            v,
            beta=x["beta"],
            g_raw=x["raw"],
            A_log=x["A_log"],
            dt_bias=x["dt_bias"],
            lower_bound=bound,
            **ours,
        ),
    )
    if bound is not None:  # the peers' short form, a rate of 1
        agree(
            function(
                q, k, v, x["raw"], x["beta"], use_gate_in_kernel=True, lower_bound=bound, **theirs
            ),
            ops.kda(
                q,
                k,
                v,
                beta=x["beta"],
                g_raw=x["raw"],
                A_log=torch.zeros(HV),
                lower_bound=bound,
                **ours,
            ),
        )


def test_packed_sequences():
    x = make(H)
    flat = {n: x[n].reshape(1, B * T, *x[n].shape[2:]) for n in ("q", "k", "v", "gk")}
    offsets = torch.tensor([0, 20, 20, B * T])
    agree(
        fla.chunk_gla(*flat.values(), output_final_state=True, cu_seqlens=offsets),
        ops.gla(*flat.values(), output_final_state=True, cu_seqlens=offsets, backend="oracle"),
    )


def test_the_log_says_what_ran():
    x = make(H)
    for _ in range(2):
        fla.chunk_gla(x["q"], x["k"], x["v"], x["gk"])
    [(ran, count)] = fla.log().items()
    assert (ran.function, ran.reason, count) == ("chunk_gla", "", 2)
    assert ran.kernel.split()[0] == "cpu" and ran.kernel.split()[2] == "float32"
    fla.clear_log()
    assert not fla.log()


REFUSED = [
    ("fused_recurrent_gla", {"gv": True}, "gv"),
    ("fused_recurrent_gla", {"reverse": True}, "reverse"),
    ("chunk_gated_delta_rule", {"cp_context": object()}, "context parallelism"),
    ("chunk_gated_delta_rule", {"head_first": True}, "head_first"),
    ("chunk_gated_delta_rule", {"chunk_size": 7}, "chunk_size"),
    ("chunk_kda", {"head_first": True}, "head_first"),
    ("chunk_kda", {"chunk_size": 16}, "chunk_size"),
    ("chunk_kda", {"safe_gate": True, "use_gate_in_kernel": True}, "safe_gate"),
    ("chunk_kda", {"return_intermediate_states": True}, "return_intermediate_states"),
    ("chunk_retention", {"surprise": 1}, "surprise"),
    ("fused_recurrent_gla", {"state_v_first": True, "transpose_state_layout": False}, "older name"),
]


def arguments_of(name: str) -> list:
    x = make(H)
    arguments = [x["q"], x["k"], x["v"]]
    if "retention" not in name:
        arguments.append(x["gk"] if "gla" in name or "kda" in name else x["g"])
    if "delta" in name or "kda" in name:
        arguments.append(x["beta"])
    return arguments


@pytest.mark.skipif(HAS_FLA, reason="FLA would be called")
@pytest.mark.parametrize("name, extra, reason", REFUSED)
def test_refusals_without_an_original(name, extra, reason):
    with pytest.raises(sluice.Error, match=reason):
        getattr(fla, name)(*arguments_of(name), **extra)


@pytest.fixture
def fake_fla(monkeypatch):
    """A package "fla" whose functions only say that they were called."""
    for module in [m for m in sys.modules if m.partition(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, module)
    homes = fla._package._homes
    modules = {}
    for home in ["fla", "fla.ops", *sorted(set(homes.values()))]:
        modules[home] = types.ModuleType(home)
        modules[home].__path__ = []
        modules[home].__spec__ = importlib.machinery.ModuleSpec(home, None)
        monkeypatch.setitem(sys.modules, home, modules[home])
    for name, home in homes.items():
        setattr(modules[home], name, lambda *args, _name=name, **kwargs: (_name, "theirs"))
    user = types.ModuleType("a_program_with_fla")
    user.renamed = modules["fla.ops.gla"].chunk_gla
    monkeypatch.setitem(sys.modules, user.__name__, user)
    monkeypatch.setattr(fla._package, "_originals", {})
    is_installed = _stand_in._is_installed
    is_installed.cache_clear()
    yield user
    is_installed.cache_clear()


@pytest.mark.parametrize("name, extra, reason", REFUSED)
def test_refused_calls_go_to_the_original(fake_fla, name, extra, reason):
    assert getattr(fla, name)(*arguments_of(name), **extra) == (name, "theirs")
    [(ran, _)] = fla.log().items()
    assert (ran.function, ran.kernel) == (name, "original")
    assert reason in ran.reason


def test_gradients_go_to_the_original(fake_fla):
    x = make(H)
    x["k"].requires_grad_()
    assert fla.chunk_gla(x["q"], x["k"], x["v"], x["gk"])[1] == "theirs"
    with torch.no_grad():
        assert fla.chunk_gla(x["q"], x["k"], x["v"], x["gk"])[1] is None


def test_what_the_library_refuses_goes_to_the_original(fake_fla):
    x = make(H)
    assert fla.chunk_gla(x["q"], x["k"], x["v"], x["gk"].to(torch.complex64))[1] == "theirs"
    [(ran, _)] = fla.log().items()
    assert ran.reason.startswith("g: got")


def test_the_log_is_bounded(fake_fla, caplog):
    """A reason for every shape: the first ones are kept, all calls are counted."""
    x, calls = make(H), 2 * _stand_in.MOST_REASONS

    def refused(function, count):
        for t in range(1, count + 1):
            function(x["q"], x["k"], x["v"], torch.zeros(B, t, H, K + 1))

    with caplog.at_level("DEBUG", "sluice.compat"):
        for _ in range(2):  # the second time all first reasons are known
            refused(fla.chunk_gla, calls)
    assert len({record.getMessage() for record in caplog.records}) == calls
    refused(fla.fused_recurrent_gla, 1)  # of a function of its own
    assert fla.chunk_gla(x["q"], x["k"], x["v"], x["gk"])[1] is None
    log = fla.log()
    assert len(log) == _stand_in.MOST_REASONS + 1 + 1 + 1
    first, *_ = log
    assert first.reason.startswith("g: got float32 [2, 1, 2, 17]") and log[first] == 2
    others = log[_stand_in.Ran("chunk_gla", "original", _stand_in.OTHER_REASONS)]
    assert others == 2 * (calls - _stand_in.MOST_REASONS)
    assert log[_stand_in.Ran("chunk_gla", "cpu chunked float32", "")] == 1
    fla.clear_log()
    refused(fla.chunk_gla, 1)
    assert list(fla.log()) == [first]  # not among the others


def test_the_log_tells_kernels_apart():
    x = make(H)
    gates = {"chunk_gla": x["gk"], "chunk_simple_gla": x["g"]}
    for name, gate in gates.items():
        for tokens in (1, T, T):
            getattr(fla, name)(*(y[:, :tokens] for y in (x["q"], x["k"], x["v"], gate)))
    assert fla.log() == {
        (name, f"cpu {kernel} float32", ""): count
        for name in gates
        for kernel, count in (("recurrent", 1), ("chunked", 2))
    }


def on_a_gpu(dtype):
    """A tensor as on a GPU, without one: only its description."""
    return torch.empty(1, 65, 2, 64, dtype=dtype, device="cuda")


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name, dtype", TOO_COARSE, ids=str)
def test_what_is_too_coarse_for_the_originals_test_goes_to_it(fake_fla, name, dtype, normalize):
    with FakeTensorMode():
        x = on_a_gpu(dtype)
        arguments = {"q": x, "k": x, "v": x, "normalize": normalize}
        assert getattr(fla, name)(**arguments) == (name, "theirs")
        [ran] = fla.log()
        assert (ran.kernel, ran.reason) == ("original", TOO_COARSE[name, dtype])
        assert "1e-3" in ran.reason and "allow(coarse=True)" in ran.reason
        fla.allow(coarse=True)
        assert getattr(fla, name)(**arguments)[0].shape == x.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_linear_attention_runs_here(fake_fla, dtype):
    """Other dtypes, the form that is computed in float32, and the CPU, which always does that."""
    with FakeTensorMode():
        x = on_a_gpu(dtype)
        if dtype != torch.float16:
            assert fla.chunk_linear_attn(x, x, x, normalize=False)[0].shape == x.shape
            assert fla.chunk_linear_attn(x, x, x)[0].shape == x.shape
        assert fla.fused_recurrent_linear_attn(x, x, x)[0].shape == x.shape
    assert {ran.kernel for ran in fla.log()} == {"traced"}
    x = make(H)
    q, k, v = (x[n].to(dtype) for n in "qkv")
    o, _ = fla.chunk_linear_attn(q, k, v, normalize=False)
    expected, _ = ops.linear(q, k, v, backend="oracle", out=torch.empty(v.shape))
    assert error(o.float(), expected) < (4e-3 if dtype == torch.bfloat16 else 1e-3)


@pytest.mark.parametrize(
    "device, tokens, allowed, left",
    [
        ("cuda", 65, False, True),
        ("cuda", 64, False, False),
        ("cuda", 65, True, False),
        ("cpu", 65, False, False),
    ],
)
def test_what_may_be_too_slow_here(fake_fla, monkeypatch, device, tokens, allowed, left):
    monkeypatch.setattr(_stand_in, "is_traced", lambda x: False)
    x = types.SimpleNamespace(is_cuda=device == "cuda", shape=(1, tokens, 2, 64))
    fla.allow(slow=allowed)
    assert fla._package._leaves_slow(x) == left


def test_nothing_is_too_slow_without_an_original_or_while_tracing(fake_fla, monkeypatch):
    with FakeTensorMode():
        assert not fla._package._leaves_slow(on_a_gpu(torch.half))
    monkeypatch.setattr(_stand_in, "is_traced", lambda x: False)
    monkeypatch.setattr(_stand_in, "_is_installed", lambda package: False)
    x = types.SimpleNamespace(is_cuda=True, shape=(1, 65, 2, 64))
    assert not fla._package._leaves_slow(x)


def test_what_is_too_slow_here_goes_to_the_original(fake_fla, monkeypatch):
    """Whole sequences that no tensor-core kernel takes; steps are never asked."""
    run, asked = _stand_in.run_reporting, []

    def without_tensor_cores(phase, operation, tensors, settings, keywords):
        asked.append(keywords.get("algorithm"))
        if keywords.get("algorithm") == "chunked":
            raise sluice.Error("unsupported", "backend", "none", "cuda: gla: K = 60")
        return run(phase, operation, tensors, settings, keywords)

    monkeypatch.setattr(_stand_in, "run_reporting", without_tensor_cores)
    monkeypatch.setattr(_stand_in.Package, "_leaves_slow", lambda self, x: True)
    x = make(H)
    arguments = (x["q"], x["k"], x["v"], x["gk"])
    assert fla.chunk_gla(*arguments)[1] == "theirs"
    [ran] = fla.log()
    assert ran.kernel == "original" and ran.reason.endswith("(allow(slow=True)): cuda: gla: K = 60")
    assert fla.fused_recurrent_gla(*arguments)[1] is None
    assert asked == ["chunked", None]
    # Other refusals keep their own reason.
    monkeypatch.setattr(_stand_in, "run_reporting", run)
    assert fla.chunk_gla(*arguments[:3], x["g"])[1] == "theirs"
    assert any(ran.reason.startswith("g: got") for ran in fla.log())


def test_install_and_uninstall(fake_fla):
    original = fake_fla.renamed
    assert sorted(fla.install()) == FUNCTIONS
    assert fake_fla.renamed is fla.chunk_gla
    assert importlib.import_module("fla.ops.kda").chunk_kda is fla.chunk_kda
    x = make(H)
    assert fake_fla.renamed(x["q"], x["k"], x["v"], x["gk"])[0].shape == (B, T, H, V)
    # A refusal still finds the original, not itself.
    assert fake_fla.renamed(x["q"], x["k"], x["v"], "no gate") == ("chunk_gla", "theirs")
    fla.uninstall()
    assert fake_fla.renamed is original


def test_install_only_some(fake_fla):
    assert fla.install(["chunk_kda"]) == ["chunk_kda"]
    assert fake_fla.renamed is not fla.chunk_gla


@pytest.mark.skipif(HAS_FLA, reason="FLA is installed")
def test_install_without_fla():
    with pytest.raises(sluice.Error, match="fla"):
        fla.install()


def test_compiled():
    x = make(H)
    torch._dynamo.reset()
    function = torch.compile(
        lambda q, k, v, g: fla.chunk_gla(q, k, v, g, output_final_state=True),
        fullgraph=True,
        backend="aot_eager",
    )
    arguments = (x["q"], x["k"], x["v"], x["gk"])
    expected = fla.chunk_gla(*arguments, output_final_state=True)
    torch.testing.assert_close(function(*arguments), expected)
