"""sluice.ops with JAX arrays on the CPU: eager, under jit, vmap, scan and grad, over several
devices, and through XLA's cache of compiled programs. On a GPU: test_gpu_jax.py.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from conftest import FLOAT32, HALF, ROOT, Case, call, error, inputs_of, refusal
from sluice import ops

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

GLA = Case("gla", ("g",))
GDN = Case("gated_delta_rule", ("g", "beta"), {"qk_l2norm": True})


@pytest.fixture(autouse=True)
def on_cpu():
    """Where there is a GPU too."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def arrays_of(inputs: dict, dtype=None) -> dict:
    return {n: jnp.asarray(x, dtype) for n, x in inputs.items()}


def jitted(case: Case, **keywords):
    """The case's function of its inputs by name, and of further arrays by name."""
    return jax.jit(lambda inputs, **arrays: call(case, inputs, **arrays, **keywords))


def same(x, expected) -> None:
    assert isinstance(x, jax.Array)
    np.testing.assert_array_equal(np.asarray(x), np.asarray(expected))


# ---- results ------------------------------------------------------------------------------------


def test_eager_arrays():
    inputs = inputs_of(GLA)
    o, state = call(GLA, arrays_of(inputs), output_final_state=True)
    expected, final = call(GLA, inputs, output_final_state=True)
    same(o, expected)
    same(state, final)


def test_jit(case):
    inputs = inputs_of(case)
    o, state = jitted(case, output_final_state=True)(arrays_of(inputs))
    wide = {n: x.astype(np.float64) for n, x in inputs.items()}
    o_ref, state_ref = call(case, wide, output_final_state=True, backend="oracle")
    assert error(o, o_ref) < FLOAT32 and error(state, state_ref) < FLOAT32
    expected, final = call(case, inputs, output_final_state=True)
    same(o, expected)
    same(state, final)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision(case, dtype):
    arrays = arrays_of(inputs_of(case), dtype)
    o, state = jitted(case, output_final_state=True)(arrays)
    assert o.dtype == dtype and state.dtype == jnp.float32
    wide = {n: np.asarray(x, np.float64) for n, x in arrays.items()}
    o_ref, state_ref = call(case, wide, output_final_state=True, backend="oracle")
    assert error(o, o_ref) < HALF[case.update] and error(state, state_ref) < HALF[case.update]


@pytest.fixture
def x64():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def test_float64(case, x64):
    inputs = {n: x.astype(np.float64) for n, x in inputs_of(case).items()}
    o, state = jitted(case, output_final_state=True, backend="cpu")(arrays_of(inputs))
    assert o.dtype == state.dtype == jnp.float64
    same(o, call(case, inputs, backend="cpu")[0])


def test_offsets_of_64_bits(x64):
    inputs = inputs_of(GLA, B=1)
    offsets = np.array([0, 30, 70], np.int64)
    o, _ = jitted(GLA)(arrays_of(inputs), cu_seqlens=jnp.asarray(offsets))
    same(o, call(GLA, inputs, cu_seqlens=offsets)[0])


def test_states_are_float64_where_asked_for_without_x64():
    inputs = inputs_of(GLA)
    keywords = {"precision": "float64", "output_final_state": True}
    o, state = jitted(GLA, **keywords)(arrays_of(inputs))
    expected, final = call(GLA, inputs, **keywords)
    same(o, expected)
    assert state.dtype == np.float64
    same(state, final)


def test_a_scale_crosses_exactly():
    inputs = inputs_of(GLA)
    same(jitted(GLA, scale=0.1)(arrays_of(inputs))[0], call(GLA, inputs, scale=0.1)[0])


def test_options_reach_the_library():
    inputs = inputs_of(GLA)
    for options in ({"backend": "oracle"}, {"algorithm": "chunked", "chunk": 32}):
        same(jitted(GLA, **options)(arrays_of(inputs))[0], call(GLA, inputs, **options)[0])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"sluice.Error \(unsupported\) backend"):
        jax.block_until_ready(jitted(GLA, backend="cuda")(arrays_of(inputs)))


def test_numpy_arrays_among_them():
    inputs = inputs_of(GLA, B=1)
    offsets = np.array([0, 30, 70], np.int64)
    mixed = {**arrays_of(inputs), "g": inputs["g"]}
    same(jitted(GLA, cu_seqlens=offsets)(mixed)[0], call(GLA, inputs, cu_seqlens=offsets)[0])


def test_layouts():
    """XLA may lay arrays out as it likes; calls get them row-major."""
    inputs = inputs_of(GLA)
    expected, _ = call(GLA, inputs)

    @jax.jit
    def heads_first(turned):
        o, _ = ops.gla(**{n: x.swapaxes(1, 2) for n, x in turned.items()})
        return o.swapaxes(1, 2)

    turned = arrays_of({n: np.ascontiguousarray(x.swapaxes(1, 2)) for n, x in inputs.items()})
    same(heads_first(turned), expected.swapaxes(1, 2))


def test_empty_calls():
    initial = np.ones((2, 4, 16, 24), np.float32)
    arrays = arrays_of(inputs_of(GLA, T=0))
    o, state = jitted(GLA, initial_state=initial, output_final_state=True)(arrays)
    assert o.shape == (2, 0, 4, 24)
    same(state, initial)


# ---- states, packed sequences -------------------------------------------------------------------


def test_steps_in_a_scan_equal_forward(case):
    """Tokens one by one, the state carried from step to step."""
    T = 9
    inputs = inputs_of(case, T=T)
    per_token = [n for n, x in inputs.items() if x.ndim >= 3 and x.shape[1] == T]
    others = {n: jnp.asarray(x) for n, x in inputs.items() if n not in per_token}
    o_ref, state_ref = call(case, inputs, output_final_state=True)

    @jax.jit
    def decode(tokens, state):
        def step(state, token):
            token = {n: x[:, None] for n, x in token.items()}
            o, state = call(
                case, {**token, **others}, step=True, initial_state=state, output_final_state=True
            )
            return state, o[:, 0]

        return jax.lax.scan(step, state, tokens)

    tokens = {n: jnp.asarray(inputs[n].swapaxes(0, 1)) for n in per_token}
    state, o = decode(tokens, jnp.zeros(state_ref.shape))
    assert error(o.swapaxes(0, 1), o_ref) < FLOAT32 and error(state, state_ref) < FLOAT32


def test_pairs_of_normalised_linear_attention():
    inputs = inputs_of(Case("linear"), T=40)
    parts = [arrays_of({n: x[:, t] for n, x in inputs.items()}) for t in (slice(25), slice(25, 40))]
    run = jax.jit(partial(ops.linear, normalize=True, output_final_state=True))
    o1, state = run(**parts[0])
    o2, (state, key_sum) = run(**parts[1], initial_state=state)
    o_ref, (state_ref, sum_ref) = ops.linear(**inputs, normalize=True, output_final_state=True)
    assert error(jnp.concatenate((o1, o2), 1), o_ref) < FLOAT32
    assert error(state, state_ref) < FLOAT32 and error(key_sum, sum_ref) < FLOAT32


def test_packed_sequences_that_change_from_call_to_call():
    inputs = inputs_of(GLA, B=1, T=100)
    arrays = arrays_of(inputs)
    run = jitted(GLA, output_final_state=True)
    for offsets in ([0, 15, 15, 100], [0, 64, 99, 100], [0, 0, 0, 100]):
        offsets = np.array(offsets, np.int32)
        o, state = run(arrays, cu_seqlens=jnp.asarray(offsets))
        expected, final = call(GLA, inputs, cu_seqlens=offsets, output_final_state=True)
        same(o, expected)
        same(state, final)
    assert run._cache_size() == 1


def test_pools_are_read_through_slots():
    inputs = inputs_of(GLA, B=3, T=5)
    pool = np.random.default_rng(2).standard_normal((6, 4, 16, 24)).astype(np.float32)
    slots, mask = np.array([4, -1, 2], np.int32), np.array([True, True, False])
    given = {"initial_state": pool, "read_slots": slots, "has_initial": mask}
    o, state = jitted(GLA, output_final_state=True)(arrays_of(inputs), **arrays_of(given))
    expected, final = call(GLA, inputs, output_final_state=True, **given)
    same(o, expected)
    same(state, final)


# ---- shapes, refusals ---------------------------------------------------------------------------


@pytest.mark.parametrize("state_layout", ["key-first", "value-first"])
@pytest.mark.parametrize("packed", [False, True])
def test_shapes_are_known_before_anything_runs(case, state_layout, packed):
    inputs = inputs_of(case, B=1 if packed else 2)
    keywords = {"output_final_state": True, "state_layout": state_layout}
    given = {"cu_seqlens": np.array([0, 3, 5, 70], np.int32)} if packed else {}
    shapes = jax.eval_shape(jitted(case, **keywords), arrays_of(inputs), **arrays_of(given))
    results = call(case, inputs, **keywords, **given)
    assert [(x.shape, x.dtype) for x in shapes] == [(x.shape, x.dtype) for x in results]


@pytest.mark.parametrize(
    "change, code, argument",
    [
        ({"k": np.zeros((2, 70, 3, 16), np.float32)}, "shape", "k"),
        ({"g": np.zeros((2, 70, 4), np.float32)}, "shape", "g"),
        ({"k": np.zeros((2, 70, 2, 16), np.int32)}, "dtype", "k"),
        ({"k": np.zeros((2, 70, 2, 16), np.uint8)}, "dtype", "k"),
        ({"k": 3}, "value", "k"),
        ({"k": [1.0, 2.0]}, "value", "k"),
        ({"q": np.zeros((1,) * 7, np.float32)}, "shape", "q"),
        ({"initial_state": np.zeros((2, 4, 24, 16), np.float32)}, "shape", "initial_state"),
        ({"initial_state": np.zeros((2, 4, 16, 24), np.int32)}, "dtype", "initial_state"),
        ({"cu_seqlens": np.array([0, 70])}, "shape", "cu_seqlens"),
        ({"read_slots": np.array([0, 1])}, "missing", "initial_state"),
        ({"backend": "tpu"}, "unsupported", "backend"),
        ({"chunk": 17}, "value", "chunk"),
        ({"scale": float("nan")}, "value", "scale"),
        ({"state": np.zeros((2, 4, 16, 24), np.float32)}, "value", "state"),
        ({"final_state": np.zeros((2, 4, 16, 24), np.float32)}, "value", "final_state"),
        ({"out": np.zeros((2, 70, 4, 24), np.float32)}, "value", "out"),
        ({"workspace": np.zeros(256, np.uint8)}, "value", "workspace"),
        ({"stream": 0}, "unsupported", "stream"),
    ],
)
def test_refusals_before_anything_runs(change, code, argument):
    """Tracing alone raises them."""

    def trace(arrays):
        return call(GLA, {**arrays, **change})

    if "q" in change:
        change = {"q": jnp.asarray(change["q"])}
    refused = refusal(jax.eval_shape, trace, arrays_of(inputs_of(GLA)))
    assert (refused.code, refused.argument) == (code, argument), str(refused)


@pytest.mark.parametrize(
    "keyword, shape",
    [
        ("out", (2, 70, 4, 24)),
        ("final_state", (2, 4, 16, 24)),
        ("state", (2, 4, 16, 24)),
        ("workspace", (256,)),
    ],
)
def test_arrays_are_not_written(keyword, shape):
    array = jnp.zeros(shape)
    for inputs in (arrays_of(inputs_of(GLA)), inputs_of(GLA)):
        refused = refusal(call, GLA, inputs, **{keyword: array})
        assert (refused.code, refused.value) == ("value", "a JAX array")
        assert refused.argument in (keyword, f"final_{keyword}")
    assert not array.any()


def test_eager_calls_may_write_numpy_arrays():
    inputs = inputs_of(GLA)
    out = np.zeros((2, 70, 4, 24), np.float32)
    assert call(GLA, arrays_of(inputs), out=out)[0] is not None
    np.testing.assert_array_equal(out, call(GLA, inputs)[0])


@pytest.mark.parametrize("name", ["q", "k"])
def test_deleted_arrays_are_refused_by_name(name):
    inputs = arrays_of(inputs_of(GLA))
    inputs[name].delete()
    refused = refusal(call, GLA, inputs)
    assert (refused.code, refused.argument) == ("value", name)
    assert "deleted" in refused.value


def test_values_are_refused_when_they_are_seen():
    """Under jit by XLA, with the library's words."""
    inputs = arrays_of(inputs_of(GLA, B=1))
    offsets = jnp.array([0, 50, 40, 70])
    assert refusal(call, GLA, inputs, cu_seqlens=offsets).argument == "cu_seqlens"
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"sluice.Error \(value\) cu_seqlens: got"):
        jax.block_until_ready(jitted(GLA)(inputs, cu_seqlens=offsets))
    inputs["g"] = inputs["g"].at[0, 3, 1, 2].set(0.5)
    assert refusal(call, GLA, inputs, validate=True).argument == "g"
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"sluice.Error \(value\) g: got"):
        jax.block_until_ready(jitted(GLA, validate=True)(inputs))


# ---- transformations ----------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_gradient_is_refused_by_name(wrap):
    arrays = arrays_of(inputs_of(GLA))

    def loss(v, g):
        return wrap(ops.gla)(arrays["q"], arrays["k"], v, g)[0].sum()

    v, g = arrays["v"], arrays["g"]
    refused = refusal(jax.grad(loss), v, g)
    assert (refused.code, refused.argument) == ("unsupported", "v")
    assert refusal(jax.grad(loss, argnums=1), v, g).argument == "g"
    assert refusal(jax.jvp, loss, (v, g), (v, g)).code == "unsupported"
    assert refusal(jax.jit(jax.value_and_grad(loss)), v, g).code == "unsupported"


def test_gradients_past_a_call():
    arrays = arrays_of(inputs_of(GLA))

    def loss(w):
        o, _ = ops.gla(**jax.lax.stop_gradient({**arrays, "v": arrays["v"] * w}))
        return (o * w).sum()

    gradient = jax.jit(jax.grad(loss))(2.0)
    np.testing.assert_allclose(gradient, 2 * call(GLA, arrays)[0].sum(), rtol=1e-4)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_vmap_is_one_call_after_the_other(wrap):
    inputs = inputs_of(GLA, B=6)
    arrays = {n: jnp.asarray(x.reshape(3, 2, *x.shape[1:])) for n, x in inputs.items()}
    shared = {"k": arrays.pop("k")[0]}
    over = wrap(jax.vmap(lambda arrays: call(GLA, {**arrays, **shared})[0]))
    o = over(arrays)
    for i in range(3):
        own = {n: x[i] for n, x in arrays.items()}
        same(o[i], call(GLA, {**own, **shared})[0])


def test_calls_from_threads():
    # The default device is a thread's own.
    host = jax.devices("cpu")[0]
    inputs = [jax.device_put(inputs_of(GLA, T=T), host) for T in (9, 33, 70)]
    expected = [call(GLA, x)[0] for x in inputs]
    run = jitted(GLA)

    def one(i: int) -> None:
        same(run(inputs[i % 3])[0], expected[i % 3])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(300)))


def test_memory_stays_bounded():
    arrays = arrays_of(inputs_of(GLA, T=1))
    run = jitted(GLA, scale=0.5, output_final_state=True)

    def many(count: int) -> int:
        for _ in range(count):
            o, _ = run(arrays)
        o.block_until_ready()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = many(5000)
    assert many(20000) - before < 2048  # KiB: a tenth of a KiB a call


@pytest.mark.parametrize("name", ["out", "final_state"])
def test_nobody_writes_an_array_of_jaxs(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    inputs = {n: torch.from_numpy(x) for n, x in inputs_of(GLA).items()}
    shape = (2, 4, 16, 24) if name == "final_state" else inputs["v"].shape
    zeros = jnp.zeros(shape)
    error = refusal(call, GLA, inputs, **{name: zeros})
    assert (error.argument, error.value) == (name, "a JAX array")
    assert not zeros.any()


def test_traced_values_after_arrays_of_numpys():
    inputs = inputs_of(GLA)
    expected, _ = call(GLA, inputs)
    o = jax.jit(lambda v: call(GLA, {**inputs, "v": v})[0])(inputs["v"])
    same(o, expected)


# ---- processes, devices, XLA's interface --------------------------------------------------------


def run_python(code: str, **environment: str) -> str:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_other_arrays_need_no_jax():
    code = """
import sys, sluice, numpy as np
sluice.ops.retention(*np.ones((3, 1, 2, 1, 4), np.float32))
print("jax" in sys.modules)
"""
    assert run_python(code).split() == ["False"]


def test_programs_that_another_process_compiled(tmp_path):
    """What a call is has another number in another process; the compiled program is the same."""
    code = """
import jax, numpy as np
from conftest import Case, call, inputs_of
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
for op in {others}:
    call(Case(op), inputs_of(Case(op)))
case = Case("gla", ("g",))
inputs = inputs_of(case)
o, _ = jax.jit(lambda x: call(case, x, scale=0.3))(jax.tree.map(jax.numpy.asarray, inputs))
print(np.array_equal(o, call(case, inputs, scale=0.3)[0]))
print(hits.count("/jax/compilation_cache/cache_hits") > 0)
"""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    assert run_python(code.replace("{others}", "()"), **cache).split() == ["True", "False"]
    others = "('retention', 'linear')"
    assert run_python(code.replace("{others}", others), **cache).split() == ["True", "True"]


def test_several_devices():
    code = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from conftest import Case, call, inputs_of
case = Case("gla", ("g",))
inputs = inputs_of(case)
expected = call(case, inputs)[0]
second = jax.devices()[1]
there = {n: jax.device_put(x, second) for n, x in inputs.items()}
run = jax.jit(lambda x: call(case, x)[0])
for o in (call(case, there)[0], run(there)):
    print(o.devices() == {second} and np.array_equal(o, expected))
mesh = jax.make_mesh((2,), ("batch",))
apart = {n: jax.device_put(x, NamedSharding(mesh, P("batch"))) for n, x in inputs.items()}
over = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=P("batch"), out_specs=P("batch")))
for o in (call(case, apart)[0], run(apart), over(apart)):
    print(len(o.devices()) == 2 and np.array_equal(o, expected))
"""
    flags = "--xla_force_host_platform_device_count=2"
    assert run_python(code, XLA_FLAGS=flags).split() == ["True"] * 5


def test_errors_stay_ours_call_after_call():
    """Of eager calls through XLA, as on a GPU: a second device of the CPU."""
    code = """
import jax, numpy as np, sluice
q = np.ones((1, 4, 1, 8), np.float32)
k = jax.device_put(q * np.nan, jax.devices()[1])
for _ in range(20):
    try:
        sluice.ops.linear(jax.numpy.asarray(q), k, q, validate=True)
    except Exception as error:
        print(type(error) is sluice.Error and error.argument == "k")
"""
    flags = "--xla_force_host_platform_device_count=2"
    assert run_python(code, XLA_FLAGS=flags).split() == ["True"] * 20


def test_the_abi_is_that_of_jaxlibs_header():
    compiler = shutil.which("g++")
    header = Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h"
    source = ROOT / "python/src/xla_abi.hpp"
    if compiler is None or not header.is_file() or not source.is_file():
        pytest.skip("no compiler, no header of jaxlib or no sources here")
    check = Path(__file__).parent / "xla_abi.cpp"
    include = [f"-I{source.parent}", f"-I{jax.ffi.include_dir()}"]
    command = [compiler, "-std=c++20", "-fsyntax-only", *include, str(check)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
