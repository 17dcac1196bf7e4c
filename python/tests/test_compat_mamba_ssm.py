"""sluice.compat.mamba_ssm on the CPU, against the recurrence spelled out."""

from __future__ import annotations

import importlib.util

import pytest

import sluice
from conftest import FLOAT32, error

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from sluice.compat import mamba_ssm  # noqa: E402

HAS_MAMBA = importlib.util.find_spec("mamba_ssm") is not None
B, T, H, P, G, N = 2, 21, 4, 8, 2, 16


def make() -> dict:
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int):
        return torch.randn(*shape, generator=generator)

    return {
        "x": normal(B, T, H, P),
        "dt": normal(B, T, H),
        "A": -normal(H).exp(),
        "B": normal(B, T, G, N),
        "C": normal(B, T, G, N),
        "D": normal(H, P),
        "z": normal(B, T, H, P),
        "dt_bias": normal(H),
        "h0": normal(B, H, P, N),
    }


def loop(x: dict, state, softplus: bool, limit: tuple[float, float]):
    """The recurrence in float64, one token at a time."""
    x = {name: value.double() for name, value in x.items()}
    state = state.double().clone()
    outputs = []
    for t in range(T):
        dt = x["dt"][:, t] + x["dt_bias"]
        dt = (torch.nn.functional.softplus(dt) if softplus else dt).clamp(*limit)
        b, c = (x[name][:, t].repeat_interleave(H // G, 1) for name in ("B", "C"))
        state *= torch.exp(dt * x["A"])[..., None, None]
        state += torch.einsum("bh,bhp,bhn->bhpn", dt, x["x"][:, t], b)
        o = torch.einsum("bhpn,bhn->bhp", state, c) + x["D"] * x["x"][:, t]
        outputs.append(o * torch.nn.functional.silu(x["z"][:, t]))
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize(
    "softplus, limit",
    [(True, (0.0, float("inf"))), (True, (0.3, 0.9)), (False, (0.0, float("inf")))],
)
def test_chunk_scan(softplus, limit):
    x = make()
    arguments = [x[n] for n in ("x", "dt", "A", "B", "C")]
    keywords = {
        "D": x["D"],
        "z": x["z"],
        "dt_bias": x["dt_bias"],
        "initial_states": x["h0"],
        "dt_softplus": softplus,
        "dt_limit": limit,
    }
    o_ref, state_ref = loop(x, x["h0"], softplus, limit)
    o, state = mamba_ssm.mamba_chunk_scan_combined(
        *arguments, 256, **keywords, return_final_states=True
    )
    assert error(o, o_ref) < FLOAT32 and error(state, state_ref) < FLOAT32
    assert state.shape == (B, H, P, N)
    alone = mamba_ssm.mamba_chunk_scan_combined(*arguments, 256, **keywords)
    torch.testing.assert_close(alone, o, rtol=0, atol=0)


@pytest.mark.parametrize("indexed", [False, True])
def test_state_update(indexed):
    x = make()
    o_ref, state_ref = loop(x, x["h0"], True, (0.0, float("inf")))
    slots = torch.tensor([5, 1], dtype=torch.int32)
    pool = torch.ones(7, H, P, N)
    pool[slots.long()] = x["h0"]
    state = pool if indexed else x["h0"].clone()
    outputs = []
    for t in range(T):
        outputs.append(
            mamba_ssm.selective_state_update(
                state,
                x["x"][:, t],
                x["dt"][:, t, :, None].expand(B, H, P),
                x["A"][:, None, None].expand(H, P, N),
                x["B"][:, t],
                x["C"][:, t],
                x["D"],
                z=x["z"][:, t],
                dt_bias=x["dt_bias"][:, None].expand(H, P),
                dt_softplus=True,
                state_batch_indices=slots if indexed else None,
            )
        )
    assert error(torch.stack(outputs, 1), o_ref) < FLOAT32
    assert error(state[slots.long()] if indexed else state, state_ref) < FLOAT32
    if indexed:
        assert (pool[[0, 2, 3, 4, 6]] == 1).all()


@pytest.mark.skipif(HAS_MAMBA, reason="mamba_ssm would be called")
def test_refusals_name_the_reason():
    x = make()
    arguments = [x[n] for n in ("x", "dt", "A", "B", "C")]
    with pytest.raises(sluice.Error, match="seq_idx"):
        mamba_ssm.mamba_chunk_scan_combined(*arguments, 256, seq_idx=torch.zeros(B, T))
    with pytest.raises(sluice.Error, match="Mamba-1"):
        mamba_ssm.selective_state_update(
            x["h0"],
            x["x"][:, 0],
            torch.rand(B, H, P),
            x["A"][:, None, None].expand(H, P, N),
            x["B"][:, 0],
            x["C"][:, 0],
        )


def test_the_scan_returns_what_the_peers_does():
    x = make()
    arguments = [x[n] for n in ("x", "dt", "A", "B", "C")]
    alone = mamba_ssm.mamba_chunk_scan_combined(*arguments, chunk_size=256)
    assert isinstance(alone, torch.Tensor) and alone.shape == (B, T, H, P)
    half = [a.bfloat16() for a in arguments]
    pair = mamba_ssm.mamba_chunk_scan_combined(*half, chunk_size=256, return_final_states=True)
    assert isinstance(pair, tuple) and len(pair) == 2
    o, state = pair
    assert (o.dtype, o.shape) == (torch.bfloat16, (B, T, H, P))
    assert (state.dtype, state.shape) == (torch.float32, (B, H, P, N))


def one_token(x: dict, t: int = 0) -> list:
    """The step's leading arguments after the state, as Mamba-2 layers expand them."""
    return [
        x["x"][:, t],
        x["dt"][:, t, :, None].expand(B, H, P),
        x["A"][:, None, None].expand(H, P, N),
        x["B"][:, t],
        x["C"][:, t],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_step_returns_what_the_peers_does(dtype):
    x = {name: value.to(dtype) for name, value in make().items()}
    state = x["h0"]
    before = state.clone()
    o = mamba_ssm.selective_state_update(state, *one_token(x))
    assert (o.dtype, o.shape) == (dtype, (B, H, P))
    assert not torch.equal(state, before)  # in place


def test_the_step_does_not_limit_dt():
    """Without softplus dt may be negative; the peer's step, unlike its scan, leaves it so."""
    x = make()
    assert (x["dt"][:, 0] < 0).any()
    state, dt = x["h0"].clone(), x["dt"][:, 0]
    o = mamba_ssm.selective_state_update(state, *one_token(x))
    b, c = (x[name][:, 0].repeat_interleave(H // G, 1) for name in ("B", "C"))
    expected = x["h0"] * torch.exp(dt * x["A"])[..., None, None]
    expected = expected + torch.einsum("bh,bhp,bhn->bhpn", dt, x["x"][:, 0], b)
    assert error(state, expected) < FLOAT32
    assert error(o, torch.einsum("bhpn,bhn->bhp", expected, c)) < FLOAT32


@pytest.mark.parametrize("given", [{}, {"z": True}, {"D": True, "dt_bias": True}])
def test_the_step_compiled_is_the_step(given):
    """Inside a compiled graph PyTorch takes the views that the library itself takes elsewhere."""
    x = make()
    keywords = {
        "z": x["z"][:, 0],
        "D": x["D"],
        "dt_bias": x["dt_bias"][:, None].expand(H, P),
    }
    keywords = {name: keywords[name] for name in given} | {"dt_softplus": True}
    torch._dynamo.reset()

    def step(state, *tensors):
        return mamba_ssm.selective_state_update(state, *tensors, **keywords)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    states = [x["h0"].clone() for _ in range(2)]
    outputs = [f(state, *one_token(x)) for f, state in zip((step, compiled), states, strict=True)]
    assert outputs[0].shape == (B, H, P)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=0)
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)


def test_the_step_takes_one_group_without_its_axis():
    x = make()
    for name in ("B", "C"):
        x[name] = x[name][:, :, :1]
    with_axis = one_token(x)
    without = with_axis[:3] + [y.squeeze(1) for y in with_axis[3:]]
    states = [x["h0"].clone() for _ in range(2)]
    outputs = [
        mamba_ssm.selective_state_update(state, *tensors)
        for state, tensors in zip(states, (with_axis, without), strict=True)
    ]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=0)
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)


@pytest.mark.skipif(HAS_MAMBA, reason="mamba_ssm would be called")
@pytest.mark.parametrize(
    "place, change, argument",
    [
        (0, lambda x: x[:, :, :5], "dt"),
        (1, lambda dt: dt[:1], "dt"),
        (1, lambda dt: dt[..., :1].expand(-1, -1, 99), "dt"),
        (1, lambda dt: dt[0, 0, 0], "dt"),
        (2, lambda A: A[:, :1, :1].expand(-1, 99, 7), "A"),
        (1, lambda dt: dt[..., :0], "dt"),
        (2, lambda A: A[:2], "A"),
        (3, lambda b: b[:, :, :3], "C"),
        (3, lambda b: b[None, None, None], "B"),
    ],
)
def test_the_step_refuses_shapes_by_the_tensors_name(place, change, argument):
    """Before anything is written, also where the library is what takes the views."""
    x = make()
    tensors = one_token(x)
    tensors[place] = change(tensors[place])
    before = x["h0"].clone()
    with pytest.raises(sluice.Error) as caught:
        mamba_ssm.selective_state_update(x["h0"], *tensors, x["D"])
    assert (caught.value.code, caught.value.argument) == ("shape", argument)
    assert torch.equal(x["h0"], before)


@pytest.mark.skipif(HAS_MAMBA, reason="mamba_ssm would be called")
@pytest.mark.parametrize(
    "keywords, reason",
    [
        ({"return_varlen_states": True}, "return_varlen_states"),
        ({"cu_seqlens": torch.tensor([0, T])}, "cu_seqlens"),
    ],
)
def test_what_the_scan_leaves_to_the_original(keywords, reason):
    x = make()
    arguments = [x[n] for n in ("x", "dt", "A", "B", "C")]
    with pytest.raises(sluice.Error, match=reason):
        mamba_ssm.mamba_chunk_scan_combined(*arguments, 256, **keywords)
