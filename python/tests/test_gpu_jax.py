"""sluice.ops with JAX arrays on a GPU: every variant against the oracle, eager and under jit;
states, packed sequences, the order of XLA's work, memory, refusals.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from conftest import HALF, Case, call, error, inputs_of, refusal
from sluice import ops

# Others use the GPU too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax", reason="JAX is not installed")
if jax.default_backend() != "gpu":
    pytest.skip("JAX has no CUDA device here", allow_module_level=True)
jnp = jax.numpy

GLA = Case("gla", ("g",))
GDN = Case("gated_delta_rule", ("g", "beta"), {"qk_l2norm": True})
FLOAT32_GPU = 3e-5
# Parameters and decays stay float32, as layers pass them.
WIDE = ("A", "A_log", "dt_bias", "D", "g")


def on_gpu(case: Case, dtype=jnp.float32, **dims: int) -> dict:
    inputs = inputs_of(case, **dims)
    return {n: jnp.asarray(x, jnp.float32 if n in WIDE else dtype) for n, x in inputs.items()}


def on_host(arrays: dict) -> dict:
    return {n: np.asarray(x, np.float64) for n, x in arrays.items()}


def oracle(case: Case, arrays: dict, **keywords) -> tuple:
    return call(case, on_host(arrays), backend="oracle", **keywords)


def bound_of(case: Case, dtype) -> float:
    return FLOAT32_GPU if dtype == jnp.float32 else HALF[case.update]


def jitted(case: Case, **keywords):
    return jax.jit(lambda inputs, **arrays: call(case, inputs, **arrays, **keywords))


def same(x, expected) -> None:
    np.testing.assert_array_equal(np.asarray(x), np.asarray(expected))


# ---- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("T", [1, 65, 200])
def test_forward(case, dtype, T):
    arrays = on_gpu(case, dtype, T=T, K=64, V=64)
    o, state = call(case, arrays, backend="cuda", output_final_state=True)
    assert o.devices() == state.devices() == arrays["k" if "k" in arrays else "B"].devices()
    assert o.dtype == dtype and state.dtype == jnp.float32
    o_ref, state_ref = oracle(case, arrays, output_final_state=True)
    assert error(o, o_ref) < bound_of(case, dtype)
    assert error(state, state_ref) < bound_of(case, dtype)
    o_jit, state_jit = jitted(case, output_final_state=True)(arrays)
    same(o_jit, o)
    same(state_jit, state)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_prefill_then_steps(case, dtype):
    """The state of a prefill feeds a scan of 16 steps; together they are one run over all."""
    arrays = on_gpu(case, dtype, T=80, K=64, V=64)
    per_token = [n for n, x in arrays.items() if x.ndim > 2 and x.shape[1] == 80]
    others = {n: x for n, x in arrays.items() if n not in per_token}
    o_ref, state_ref = oracle(case, arrays, output_final_state=True)

    @jax.jit
    def run(tokens):
        head = {n: x[:, :64] for n, x in tokens.items()}
        o, state = call(case, {**head, **others}, output_final_state=True)

        def step(state, token):
            token = {n: x[:, None] for n, x in token.items()}
            o, state = call(
                case, {**token, **others}, step=True, initial_state=state, output_final_state=True
            )
            return state, o[:, 0]

        tail = {n: x[:, 64:].swapaxes(0, 1) for n, x in tokens.items()}
        state, steps = jax.lax.scan(step, state, tail)
        return jnp.concatenate((o, steps.swapaxes(0, 1)), 1), state

    o, state = run({n: arrays[n] for n in per_token})
    assert error(o, o_ref) < bound_of(case, dtype)
    assert error(state, state_ref) < bound_of(case, dtype)


def test_pairs_of_normalised_linear_attention():
    arrays = on_gpu(Case("linear"), T=80, K=64, V=64)
    keywords = {"normalize": True, "feature_map": "elu1", "output_final_state": True}
    run = jax.jit(partial(ops.linear, **keywords))
    o1, state = run(**{n: x[:, :50] for n, x in arrays.items()})
    o2, (state, key_sum) = run(**{n: x[:, 50:] for n, x in arrays.items()}, initial_state=state)
    o_ref, (state_ref, sum_ref) = ops.linear(**on_host(arrays), **keywords, backend="oracle")
    assert error(jnp.concatenate((o1, o2), 1), o_ref) < FLOAT32_GPU
    assert error(state, state_ref) < FLOAT32_GPU and error(key_sum, sum_ref) < FLOAT32_GPU


@pytest.mark.parametrize("kind", [GLA, GDN], ids=str)
def test_packed_sequences_that_change_from_call_to_call(kind):
    arrays = on_gpu(kind, jnp.bfloat16, B=1, T=300, K=64, V=64)
    initial = jax.random.normal(jax.random.key(1), (3, 4, 64, 64))
    run = jitted(kind, output_final_state=True)
    for offsets in ([0, 15, 15, 300], [0, 100, 299, 300], [0, 0, 0, 300]):
        given = {"cu_seqlens": jnp.array(offsets), "initial_state": initial}
        o, state = run(arrays, **given)
        host = {"cu_seqlens": np.array(offsets), "initial_state": np.asarray(initial, np.float64)}
        o_ref, state_ref = oracle(kind, arrays, output_final_state=True, **host)
        assert error(o, o_ref) < HALF[kind.update] and error(state, state_ref) < HALF[kind.update]
        same(call(kind, arrays, output_final_state=True, **given)[0], o)
    assert run._cache_size() == 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_long_sequences(dtype):
    """Parts of a sequence that run at the same time meet in the workspace."""
    T = 16384 if dtype == jnp.bfloat16 else 2048
    arrays = on_gpu(GLA, dtype, B=1, T=T, H=16, HV=16, K=128, V=128)
    arrays["g"] = arrays["g"] * 0.01  # what the first part knows reaches the last one
    o, state = jitted(GLA, output_final_state=True)(arrays)
    same(call(GLA, arrays)[0], o)
    two = {n: x[:, :, 14:] for n, x in arrays.items()}
    o_ref, state_ref = oracle(GLA, two, output_final_state=True)
    assert error(o[:, :, 14:], o_ref) < bound_of(GLA, dtype)
    assert error(state[:, 14:], state_ref) < bound_of(GLA, dtype)


def test_vmap_is_one_call_after_the_other():
    arrays = on_gpu(GLA, jnp.bfloat16, B=6, K=64, V=64)
    apart = {n: x.reshape(3, 2, *x.shape[1:]) for n, x in arrays.items()}
    o = jax.jit(jax.vmap(lambda arrays: call(GLA, arrays)[0]))(apart)
    for i in range(3):
        same(o[i], call(GLA, {n: x[i] for n, x in apart.items()})[0])


# ---- the order of XLA's work, memory ------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("kind", [GLA, GDN], ids=str)
def test_calls_between_computations(kind, wrap):
    """Inputs come from products that take long, results go into others; two chains at once. Memory
    that is handed out again is full of NaN: a kernel that runs early or late would meet it."""
    arrays = on_gpu(kind, jnp.bfloat16, T=512, K=64, V=64)
    mix = jax.random.orthogonal(jax.random.key(2), 512).astype(jnp.float32)

    @jax.jit
    def before(v):
        x = v.astype(jnp.float32)
        for _ in range(20):
            x = jnp.einsum("st,bthc->bshc", mix, x)
        return x.astype(v.dtype)

    after = jax.jit(lambda o: jnp.einsum("st,bthc->bshc", mix, o.astype(jnp.float32)))
    poison = jax.jit(lambda i: jnp.full((2, 512, 4, 64), jnp.nan, jnp.bfloat16) * i)
    run = wrap(lambda arrays: call(kind, arrays, output_final_state=True))

    def chain(v, wait):
        o, state = run({**arrays, "v": wait(before(v))})
        return wait(after(wait(o))), wait(state)

    starts = (arrays["v"], arrays["v"] * 2)
    expected = [chain(v, jax.block_until_ready) for v in starts]
    results = []
    for i in range(40):
        for v in starts:
            results.append(chain(v, lambda x: x))
            poison(i).delete()
    for i, (o, state) in enumerate(results):
        same(o, expected[i % 2][0])
        same(state, expected[i % 2][1])


def test_nobody_waits():
    """Calls come back while what their inputs wait for is still running."""
    arrays = on_gpu(GLA, jnp.bfloat16, B=1, T=4096, K=64, V=64)
    offsets = jnp.array([0, 1000, 4096])
    run = jitted(GLA, output_final_state=True)
    x = jnp.ones((8192, 8192))
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, x: x @ x / 8192, x))
    behind = jax.jit(lambda x, y: x + (y[0, 0] * 0).astype(x.dtype))

    def queue() -> tuple:
        y = slow(x)
        later = {**arrays, "v": behind(arrays["v"], y)}
        o, _ = run(later, cu_seqlens=behind(offsets, y))
        eager, _ = call(GLA, later, cu_seqlens=offsets)
        return y, o, eager

    jax.block_until_ready(queue())  # compiled
    y, o, eager = queue()
    assert not y.is_ready()
    same(o, eager)


FLIGHT = """
import jax, numpy as np
from conftest import Case, call, inputs_of
jnp = jax.numpy
case = Case("gla", ("g",))
inputs = inputs_of(case, B=1, T=16384, H=2, HV=2, K=128, V=128)
arrays = {n: jnp.asarray(x, jnp.float32 if n == "g" else jnp.bfloat16) for n, x in inputs.items()}

def layer(v, _):
    return call(case, {**arrays, "v": v})[0] + 1, None

run = jax.jit(lambda v: jax.lax.scan(layer, v, length=3)[0])
results = [run(arrays["v"])]
poison = np.full({bytes} // 4, np.nan, np.float32)
for _ in range(40):
    results.append(run(arrays["v"]))
    jax.device_put(poison)
expected = arrays["v"]
for _ in range(3):
    expected = jax.block_until_ready(layer(expected, None))[0]
print(bool(jnp.isfinite(expected).all()), all(bool((x == expected).all()) for x in results))
"""


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
        {"XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT": "1"},
        {
            "XLA_FLAGS": "--xla_gpu_graph_min_graph_size=1 "
            "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL,WHILE"
        },
    ],
    ids=["default", "platform-allocator", "tfrt", "graphs"],
)
def test_workspaces_of_calls_in_flight(environment):
    """They are given back before the kernels are done, and what comes next is behind them: other
    calls, copies from the host. XLA in other configurations; graphs from the first call on."""
    done = subprocess.run(
        [sys.executable, "-c", FLIGHT.replace("{bytes}", "4227072")],  # a workspace's size
        env={**os.environ, **environment},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]


def test_the_workspace_is_xlas_memory():
    """One piece of memory more than the result, given back by the call."""
    (device,) = jax.devices()[:1]

    def taken(T: int) -> tuple[int, int]:
        arrays = on_gpu(GLA, jnp.bfloat16, B=1, T=T, H=2, HV=2, K=128, V=128)
        run = jitted(GLA)
        for _ in range(2):
            jax.block_until_ready(run(arrays))
        before = device.memory_stats()
        o, _ = jax.block_until_ready(run(arrays))
        stats = device.memory_stats()
        assert stats["bytes_in_use"] - before["bytes_in_use"] < o.nbytes + 1024
        return stats["num_allocs"] - before["num_allocs"]

    assert taken(16384) == taken(64) + 1


def test_memory_stays_bounded():
    arrays = on_gpu(GLA, jnp.bfloat16, B=1, T=4096, K=64, V=64)
    (device,) = jax.devices()[:1]
    for run in (jitted(GLA, output_final_state=True), partial(call, GLA)):
        jax.block_until_ready(run(arrays))
        before = device.memory_stats()["bytes_in_use"]
        for _ in range(1000):
            result = run(arrays)
        jax.block_until_ready(result)
        del result
        assert device.memory_stats()["bytes_in_use"] <= before


# ---- refusals -----------------------------------------------------------------------------------


def test_refusals():
    arrays = on_gpu(GLA, jnp.bfloat16, K=64, V=64)
    host = jax.devices("cpu")[0]
    pool = jnp.zeros((2, 4, 64, 64))
    for change, code, argument in (
        ({"k": arrays["k"][:, :, :, :32]}, "shape", "k"),
        ({"backend": "cpu"}, "unsupported", "backend"),
        ({"initial_state": pool[:1]}, "shape", "initial_state"),
        ({"state": pool}, "value", "state"),
        ({"out": jnp.zeros((2, 70, 4, 64))}, "value", "out"),
        ({"stream": 0}, "unsupported", "stream"),
        ({"validate": True, "g": arrays["g"] + 1}, "value", "g"),
    ):
        refused = refusal(call, GLA, {**arrays, **change})
        assert (refused.code, refused.argument) == (code, argument), str(refused)
    here = {n: jax.device_put(x, x.device) for n, x in arrays.items()}
    refused = refusal(call, GLA, {**here, "k": jax.device_put(arrays["k"], host)})
    assert (refused.code, refused.argument) == ("device", "k")
    assert not pool.any()


def test_a_gradient_is_refused_by_name():
    arrays = on_gpu(GLA, jnp.bfloat16, K=64, V=64)

    def loss(v):
        return call(GLA, {**arrays, "v": v})[0].astype(jnp.float32).sum()

    refused = refusal(jax.grad(loss), arrays["v"])
    assert (refused.code, refused.argument) == ("unsupported", "v")


def test_arrays_in_cpu_memory_run_there():
    host = jax.devices("cpu")[0]
    inputs = inputs_of(GLA)
    arrays = {n: jax.device_put(x, host) for n, x in inputs.items()}
    for run in (partial(call, GLA), jitted(GLA)):
        o, _ = run(arrays)
        assert o.devices() == {host}
        same(o, call(GLA, inputs)[0])


def test_results_are_on_the_inputs_gpu():
    if len(jax.devices()) < 2:
        pytest.skip("one GPU")
    arrays = on_gpu(GDN, jnp.bfloat16, K=64, V=64)
    expected, _ = call(GDN, arrays)
    second = jax.devices()[1]
    there = {n: jax.device_put(x, second) for n, x in arrays.items()}
    for run in (partial(call, GDN), jitted(GDN)):
        o, _ = run(there)
        assert o.devices() == {second}
        same(o, expected)
