"""sluice.ops with NumPy arrays: the CPU back end against the oracle, states, layouts, dtypes."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sluice
from conftest import CASES, FLOAT32, HALF, ROOT, Case, call, error, inputs_of
from sluice import ops


def oracle(case: Case, inputs: dict, **keywords) -> tuple:
    wide = {name: x.astype(np.float64) for name, x in inputs.items()}
    return call(case, wide, backend="oracle", **keywords)


def test_every_variant_of_the_library_is_here():
    for name, settings in sluice.variants().items():
        ours = {s for c in CASES if c.op == name for s in c.settings}
        assert hasattr(ops, name) and hasattr(ops, f"{name}_step")
        parameters = set(inspect.signature(getattr(ops, name)).parameters)
        wanted = {("beta_form" if s == "beta" else s) for s in settings if s}
        assert wanted <= parameters
        assert ours <= set(settings)
    assert {c.op for c in CASES} == set(sluice.variants())


def test_forward_equals_oracle(case):
    inputs = inputs_of(case)
    o, state = call(case, inputs, output_final_state=True)
    o_ref, state_ref = oracle(case, inputs, output_final_state=True)
    assert isinstance(o, np.ndarray) and o.dtype == np.float32 and state.dtype == np.float32
    assert o_ref.dtype == np.float64 and state_ref.dtype == np.float64
    assert error(o, o_ref) < FLOAT32
    assert error(state, state_ref) < FLOAT32


def test_every_setting_and_optional_input_matters(case):
    inputs = inputs_of(case)
    o, _ = call(case, inputs)
    for setting in case.settings:
        others = {n: x for n, x in case.settings.items() if n != setting}
        # Where the default would not do: what else the setting may be.
        others |= {k: v for k, v in {"dt_softplus": False, "num_layers": 9}.items() if k == setting}
        assert not np.array_equal(call(Case(case.op, case.gates, others), inputs)[0], o), setting
    for optional in {"D", "z", "dt_bias"} & set(inputs):
        without = {n: x for n, x in inputs.items() if n != optional}
        assert not np.array_equal(call(case, without)[0], o), optional


def test_no_state_is_returned_unless_asked_for(case):
    assert call(case, inputs_of(case, T=3))[1] is None


def test_steps_equal_forward(case):
    T = 9
    inputs = inputs_of(case, T=T)
    o_ref, state_ref = oracle(case, inputs, output_final_state=True)
    state = np.zeros(state_ref.shape, np.float32)
    outputs = []
    for t in range(T):
        token = {
            n: (x[:, t : t + 1] if x.ndim >= 3 and x.shape[1] == T else x)
            for n, x in inputs.items()
        }
        o, returned = call(case, token, step=True, state=state)
        assert returned is state
        outputs.append(o)
    assert error(np.concatenate(outputs, 1), o_ref) < FLOAT32
    assert error(state, state_ref) < FLOAT32


def test_a_split_through_the_state(case):
    inputs = inputs_of(case, T=130)
    o_ref, state_ref = oracle(case, inputs, output_final_state=True)

    def part(begin: int, end: int) -> dict:
        return {
            n: (x[:, begin:end] if x.ndim >= 3 and x.shape[1] == 130 else x)
            for n, x in inputs.items()
        }

    first, state = call(case, part(0, 64), output_final_state=True)
    second, state = call(case, part(64, 130), initial_state=state, output_final_state=True)
    assert error(np.concatenate((first, second), 1), o_ref) < FLOAT32
    assert error(state, state_ref) < FLOAT32


def test_value_first_states_are_transposed(case):
    inputs = inputs_of(case)
    _, key_first = call(case, inputs, output_final_state=True, state_layout="key-first")
    _, value_first = call(case, inputs, output_final_state=True, state_layout="value-first")
    assert key_first.shape == (2, 4, 16, 24)
    np.testing.assert_array_equal(key_first, value_first.swapaxes(2, 3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(case, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="bfloat16 arrays need ml_dtypes").bfloat16
    inputs = {name: x.astype(dtype) for name, x in inputs_of(case).items()}
    o, state = call(case, inputs, output_final_state=True)
    o_ref, state_ref = oracle(case, inputs, output_final_state=True)
    assert o.dtype == np.dtype(dtype) and state.dtype == np.float32
    assert error(o.astype(np.float32), o_ref) < HALF[case.update]
    assert error(state, state_ref) < HALF[case.update]


def test_float64(case):
    inputs = {name: x.astype(np.float64) for name, x in inputs_of(case).items()}
    o, state = call(case, inputs, output_final_state=True, backend="cpu")
    o_ref, state_ref = oracle(case, inputs, output_final_state=True)
    assert o.dtype == np.float64 and state.dtype == np.float64
    assert error(o, o_ref) < 1e-12
    assert error(state, state_ref) < 1e-12


GLA = Case("gla", ("g",))


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_packed_sequences_equal_their_own_runs(index):
    inputs = inputs_of(GLA, B=1, T=100)
    offsets = np.array([0, 15, 15, 79, 100], index)
    initial = np.random.default_rng(1).standard_normal((4, 4, 16, 24)).astype(np.float32)
    o, state = call(GLA, inputs, cu_seqlens=offsets, initial_state=initial, output_final_state=True)
    for n in range(4):
        own = {name: x[:, offsets[n] : offsets[n + 1]] for name, x in inputs.items()}
        o_n, state_n = call(GLA, own, initial_state=initial[n : n + 1], output_final_state=True)
        np.testing.assert_array_equal(o[:, offsets[n] : offsets[n + 1]], o_n)
        np.testing.assert_array_equal(state[n : n + 1], state_n)
    np.testing.assert_array_equal(state[1], initial[1])


def test_pools_slots_and_masks():
    inputs = inputs_of(GLA, B=3, T=5)
    rng = np.random.default_rng(2)
    pool = rng.standard_normal((6, 4, 16, 24)).astype(np.float32)
    before = pool.copy()
    read, write = np.array([4, -1, 2], np.int32), np.array([0, 5, -1], np.int32)
    mask = np.array([True, True, False])
    o, returned = call(
        GLA, inputs, state=pool, read_slots=read, write_slots=write, has_initial=mask
    )
    assert returned is pool
    dense = np.stack([before[4], np.zeros_like(before[0]), np.zeros_like(before[0])])
    o_ref, final = call(GLA, inputs, initial_state=dense, output_final_state=True)
    np.testing.assert_array_equal(o, o_ref)
    np.testing.assert_array_equal(pool[0], final[0])
    np.testing.assert_array_equal(pool[5], final[1])
    np.testing.assert_array_equal(pool[1:5], before[1:5])


def test_speculative_steps():
    """A state after each token, and the next call starts from the last accepted one."""
    T = 3
    inputs = inputs_of(GLA, B=2, T=T)
    pool = np.zeros((8, 4, 16, 24), np.float32)
    slots = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    call(GLA, inputs, step=True, final_state=pool, write_slots=slots)
    again = inputs_of(GLA, B=2, T=1)
    o, _ = call(
        GLA,
        again,
        step=True,
        initial_state=pool,
        read_slots=slots,
        accepted=np.array([2, 1], np.int32),
    )
    kept = np.stack([pool[2], pool[4]])
    np.testing.assert_array_equal(o, call(GLA, again, step=True, initial_state=kept)[0])


def test_padding_rows_of_a_step():
    inputs = inputs_of(GLA, B=2, T=1)
    pool = np.ones((3, 4, 16, 24), np.float32)
    o, _ = call(GLA, inputs, step=True, state=pool, slots=np.array([1, -1], np.int32))
    assert not o[1].any() and o[0].any()
    np.testing.assert_array_equal(pool[[0, 2]], np.ones_like(pool[[0, 2]]))


def test_checkpoints_are_states_inside():
    inputs = inputs_of(GLA, B=1, T=200)
    pool = np.zeros((3, 4, 16, 24), np.float32)
    call(
        GLA,
        inputs,
        checkpoints=pool,
        checkpoint_sequences=np.array([0, 0]),
        checkpoint_positions=np.array([64, 128]),
        checkpoint_slots=np.array([2, 0]),
    )
    for position, slot in ((64, 2), (128, 0)):
        head = {name: x[:, :position] for name, x in inputs.items()}
        assert error(pool[slot], call(GLA, head, output_final_state=True)[1][0]) < FLOAT32
    assert not pool[1].any()


def test_normalised_linear_attention_continues_through_its_key_sum():
    case = Case("linear", settings={"feature_map": "elu1"})
    inputs = inputs_of(case, T=40)
    o_ref, (state_ref, sum_ref) = call(
        case, inputs, normalize=True, output_final_state=True, backend="oracle"
    )
    first = {n: x[:, :25] for n, x in inputs.items()}
    second = {n: x[:, 25:] for n, x in inputs.items()}
    o1, state = call(case, first, normalize=True, output_final_state=True)
    o2, state = call(case, second, normalize=True, initial_state=state, output_final_state=True)
    assert error(np.concatenate((o1, o2), 1), o_ref) < FLOAT32
    assert error(state[0], state_ref) < FLOAT32 and error(state[1], sum_ref) < FLOAT32
    assert state[1].shape == (2, 4, 16)


@pytest.mark.parametrize("value", [True, np.True_, 1, "true"])
def test_every_way_to_normalise_returns_the_key_sum(value):
    case = Case("linear", settings={"normalize": value})
    _, (state, key_sum) = call(case, inputs_of(case, T=4), output_final_state=True)
    assert state.shape == (2, 4, 16, 24) and key_sum.shape == (2, 4, 16)


def test_out_is_written_and_returned():
    inputs = inputs_of(GLA)
    out = np.full((2, 70, 4, 24), np.nan, np.float16)
    o, _ = call(GLA, inputs, out=out)
    assert o is out
    assert error(out.astype(np.float32), call(GLA, inputs)[0]) < 1e-3


def test_strided_inputs():
    inputs = inputs_of(GLA)
    expected, _ = call(GLA, inputs)
    turned = {n: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for n, x in inputs.items()}
    turned["v"] = np.repeat(inputs["v"], 2, axis=3)[..., ::2]
    turned["q"] = np.ascontiguousarray(inputs["q"][:, ::-1])[:, ::-1]
    np.testing.assert_array_equal(call(GLA, turned)[0], expected)
    per_head = np.broadcast_to(inputs["g"][:, :1, :, :1], inputs["g"].shape)
    dense = call(GLA, {**inputs, "g": per_head.copy()})[0]
    np.testing.assert_array_equal(call(GLA, {**inputs, "g": per_head})[0], dense)


def test_read_only_inputs():
    inputs = inputs_of(GLA)
    expected, _ = call(GLA, inputs)
    for x in inputs.values():
        x.flags.writeable = False
    np.testing.assert_array_equal(call(GLA, inputs)[0], expected)


def test_empty_calls():
    inputs = inputs_of(GLA, T=0)
    initial = np.ones((2, 4, 16, 24), np.float32)
    o, state = call(GLA, inputs, initial_state=initial, output_final_state=True)
    assert o.shape == (2, 0, 4, 24)
    np.testing.assert_array_equal(state, initial)


def test_options_reach_the_library():
    inputs = inputs_of(GLA)
    o, _ = call(GLA, inputs, algorithm="chunked", chunk=64)
    assert error(call(GLA, inputs, scale=0.5)[0], o * (0.5 / 0.25)) < FLOAT32
    for options in (
        {"algorithm": "recurrent"},
        {"algorithm": "chunked", "chunk": 32},
        {"algorithm": "chunked", "chunk": 64, "precision": "float64"},
        {"backend": "oracle"},
    ):
        other, _ = call(GLA, inputs, **options)
        assert error(other, o) < FLOAT32
        assert not np.array_equal(other, o)  # another order of sums
    same = {"algorithm": "chunked", "chunk": 64, "batch_invariant": True}
    one, two = (call(GLA, inputs, **same, threads=threads)[0] for threads in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_read_only_outputs_are_refused():
    out = np.zeros((2, 70, 4, 24), np.float32)
    out.flags.writeable = False
    with pytest.raises(sluice.Error, match="out: got a read-only array"):
        call(GLA, inputs_of(GLA), out=out)


def test_calls_from_threads():
    """New forms and known ones, at the same time."""
    inputs = [inputs_of(c, T=33) for c in CASES]
    expected = [call(c, x)[0] for c, x in zip(CASES, inputs, strict=True)]

    def one(i: int) -> None:
        n = i % len(CASES)
        o, _ = call(CASES[n], inputs[n], threads=1 + i % 3, output_final_state=i % 2 == 0)
        np.testing.assert_array_equal(o, expected[n])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(8 * len(CASES))))


def test_the_readme_of_the_package_is_there():
    assert (ROOT / "docs/python.md").is_file()
