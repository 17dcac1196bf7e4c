"""PyTorch: eager, compiled, exported; the operators' fakes against the library."""

from __future__ import annotations

import numpy as np
import pytest

import sluice
from conftest import FLOAT32, Case, call, error, inputs_of
from sluice import ops
from sluice._call import request_of, run_reporting, taken_apart, text_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

GLA = Case("gla", ("g",))


def tensors_of(case: Case, **dims: int) -> dict:
    return {name: torch.from_numpy(x) for name, x in inputs_of(case, **dims).items()}


def test_tensors_give_what_arrays_give(case):
    o, state = call(case, tensors_of(case), output_final_state=True)
    o_ref, state_ref = call(case, inputs_of(case), output_final_state=True)
    assert isinstance(o, torch.Tensor) and isinstance(state, torch.Tensor)
    np.testing.assert_array_equal(o.numpy(), o_ref)
    np.testing.assert_array_equal(state.numpy(), state_ref)


def test_bfloat16_tensors():
    inputs = {name: x.bfloat16() for name, x in tensors_of(GLA).items()}
    o, state = call(GLA, inputs, output_final_state=True)
    wide = {name: x.double().numpy() for name, x in inputs.items()}
    assert o.dtype == torch.bfloat16 and state.dtype == torch.float32
    assert error(o.float(), call(GLA, wide, backend="oracle")[0]) < 4e-3


def test_calls_that_differ_in_one_argument():
    """Each call is looked up among those before it, by all that its arguments say."""
    mamba = Case("mamba2", ("D", "z", "dt_bias"))
    variations = [
        (GLA, {}),
        (GLA, {"scale": 0.5}),
        (GLA, {"scale": -0.5}),
        (GLA, {"output_final_state": True}),
        (GLA, {"output_final_state": True, "state_layout": "value-first"}),
        (GLA, {"initial_state": np.ones((2, 4, 16, 24), np.float32)}),
        (GLA, {"state": np.ones((2, 4, 16, 24), np.float32)}),
        (GLA, {"final_state": np.ones((2, 4, 16, 24), np.float32)}),
        (GLA, {"backend": "oracle"}),
        (GLA, {"out": np.ones((2, 6, 4, 24), np.float32)}),
        (mamba, {}),
        (mamba, {"dt_softplus": False}),
        (mamba, {"dt_min": 0.5}),
        (mamba, {"dt_max": 0.5}),
        (mamba, {"D": None}),
        (mamba, {"z": None}),
        (mamba, {"dt_bias": None}),
    ]

    def run(case: Case, given: dict, convert) -> list:
        arguments = {**inputs_of(case, T=6), **given}
        result = call(
            case,
            {
                n: convert(x.copy()) if isinstance(x, np.ndarray) else x
                for n, x in arguments.items()
            },
        )
        return [None if x is None else np.asarray(x) for x in result]

    for _ in range(2):
        results = [run(case, given, torch.from_numpy) for case, given in variations]
        for (case, given), (o, state) in zip(variations, results, strict=True):
            o_ref, state_ref = run(case, given, lambda x: x)
            np.testing.assert_array_equal(o, o_ref, err_msg=str(given))
            assert (state is None) == (state_ref is None), given
            if state is not None:
                np.testing.assert_array_equal(state, state_ref, err_msg=str(given))


@pytest.mark.parametrize(
    "convert", [dict, lambda x: {n: torch.from_numpy(a) for n, a in x.items()}]
)
@pytest.mark.parametrize("given", [False, True])
def test_what_ran_is_reported(convert, given):
    """Also as a call's only result, where the output is given."""
    arrays = convert({**inputs_of(GLA, T=6), "out": np.empty((2, 6, 4, 24), np.float32)})
    out = arrays.pop("out")
    operation = ops.OPERATIONS["gla"]
    values, keywords = tuple(arrays.values()), {"out": out} if given else {}
    o, state, ran = run_reporting("prefill", operation, values, (), keywords)
    assert ran.split()[0] == "cpu" and ran.split()[2] == "float32" and state is None
    assert (o is out) == given
    np.testing.assert_array_equal(np.asarray(o), np.asarray(ops.gla(*values)[0]))


def test_steps_in_place():
    inputs = tensors_of(GLA, T=1)
    pool = torch.randn(5, 4, 16, 24, generator=torch.Generator().manual_seed(0))
    expected = pool.clone()
    slots = torch.tensor([3, 0])
    o, returned = call(GLA, inputs, step=True, state=pool, slots=slots)
    o_ref, final = call(
        GLA, inputs, step=True, initial_state=expected[slots], output_final_state=True
    )
    expected[slots] = final
    assert returned is pool
    torch.testing.assert_close(o, o_ref, rtol=0, atol=0)
    torch.testing.assert_close(pool, expected, rtol=0, atol=0)


def test_results_live_in_torchs_memory():
    o, _ = call(GLA, tensors_of(GLA))
    assert o.is_contiguous() and o.untyped_storage().nbytes() == o.numel() * 4
    o.resize_(1)  # only memory of torch's allocator can


def test_a_gradient_is_refused_by_name():
    inputs = tensors_of(GLA)
    inputs["k"].requires_grad_()
    with pytest.raises(sluice.Error) as caught:
        call(GLA, inputs)
    assert (caught.value.code, caught.value.argument) == ("unsupported", "k")
    with torch.no_grad():
        o, _ = call(GLA, inputs)
    assert not o.requires_grad


def test_a_tangent_is_refused_by_name():
    forward_ad = torch.autograd.forward_ad
    inputs = tensors_of(GLA)
    with forward_ad.dual_level():
        call(GLA, inputs)
        inputs["v"] = forward_ad.make_dual(inputs["v"], inputs["v"])
        with torch.no_grad(), pytest.raises(sluice.Error, match="v: got a tensor with a tangent"):
            call(GLA, inputs)


@pytest.mark.parametrize("name", ["k", "out"])
def test_memory_that_holds_the_negative_is_refused_by_name(name):
    """As parts of conjugated numbers do."""
    inputs = tensors_of(GLA)
    like = inputs["v" if name == "out" else name]
    negative = torch.complex(like, like).conj().imag
    assert negative.is_neg()
    with pytest.raises(sluice.Error, match=f"{name}: got a tensor with the negative bit"):
        call(GLA, {**inputs, name: negative})
    if name != "out":
        o, _ = call(GLA, {**inputs, name: negative.resolve_neg()})
        expected, _ = call(GLA, {**inputs, name: -like})
        assert torch.equal(o, expected)


UNLENT = {
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.flatten(1).to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
    "jagged": lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
}


@pytest.mark.parametrize("name", ["q", "k", "out"])
@pytest.mark.parametrize("kind", UNLENT)
def test_memory_that_is_not_dense_is_refused_by_name(kind, name):
    inputs = tensors_of(GLA)
    value = UNLENT[kind](inputs["v" if name == "out" else name])
    with pytest.raises(sluice.Error, match=f"^{name}: got .*; accepted: .*dense") as caught:
        call(GLA, {**inputs, name: value})
    assert "\n" not in str(caught.value)


def test_vmap_is_refused_by_name():
    inputs = tensors_of(GLA)
    with pytest.raises(sluice.Error, match="^k: got .*not lent"):
        torch.func.vmap(lambda k: call(GLA, {**inputs, "k": k})[0])(inputs["k"][None])


def test_tensors_among_other_arrays_are_refused_alike():
    arrays = inputs_of(GLA)
    k = torch.tensor(arrays["k"])
    for value, what in ((torch._neg_view(-k), "negative bit"), (k.requires_grad_(), "grad")):
        with pytest.raises(sluice.Error, match=f"^k: got a tensor .*{what}"):
            call(GLA, {**arrays, "k": value})


@pytest.mark.parametrize("change", [{"chunk": [1]}, {"validate": np.array(16)}, {"backend": {}}])
def test_options_that_do_not_hash_are_refused_by_name(change):
    with pytest.raises(sluice.Error, match=f"^{next(iter(change))}: got"):
        call(GLA, tensors_of(GLA), **change)


@pytest.mark.parametrize("others", [{}, {"has_initial": np.array([True, False])}])
def test_autograd_sees_what_a_call_writes(others):
    inputs = tensors_of(GLA)
    w, state = torch.tensor(2.0, requires_grad=True), torch.ones(2, 4, 16, 24)
    y = (w * state).sum()
    call(GLA, inputs, state=state, **others)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_an_output_that_requires_grad_is_refused():
    out = torch.zeros_like(tensors_of(GLA)["v"], requires_grad=True)
    with pytest.raises(sluice.Error, match="^out: got a tensor that requires grad"):
        call(GLA, tensors_of(GLA), out=out)
    with torch.no_grad():
        call(GLA, tensors_of(GLA), out=out)


def test_a_trace_records_the_call():
    def f(q, k, v, g):
        return ops.gla(q, k, v, g)[0] + v

    inputs = tensors_of(GLA)
    traced = torch.jit.trace(f, tuple(inputs.values()))
    others = [x.flip(1) for x in inputs.values()]
    torch.testing.assert_close(traced(*others), f(*others), rtol=0, atol=0)


def test_masked_arrays_among_tensors_are_refused():
    inputs = tensors_of(GLA)
    masked = np.ma.masked_array(inputs["k"].numpy())
    with pytest.raises(sluice.Error, match="^k: got a masked array"):
        call(GLA, {**inputs, "k": masked})


def test_mixed_devices_and_types_are_refused():
    inputs = tensors_of(GLA)
    with pytest.raises(sluice.Error) as caught:
        call(GLA, {**inputs, "k": inputs["k"].to(torch.complex64)})
    assert (caught.value.code, caught.value.argument) == ("dtype", "k")


def test_autocast_leaves_the_inputs_as_they_are():
    inputs = tensors_of(GLA)
    expected, _ = call(GLA, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, _ = call(GLA, inputs)
    assert o.dtype == torch.float32
    torch.testing.assert_close(o, expected, rtol=0, atol=0)


def model(q, k, v, g):
    o, state = ops.gla(q * 2, k, v, g, output_final_state=True)
    return o + 1, state


def decoder(q, k, v, g, pool, slots):
    o, _ = ops.gla_step(q, k, v, g, state=pool, slots=slots)
    return o * 2


@pytest.fixture
def compiled():
    """torch.compile without graph breaks, forgotten afterwards."""
    torch._dynamo.reset()
    yield lambda f, **options: torch.compile(f, fullgraph=True, **options)
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compile_without_graph_breaks(compiled, backend):
    inputs = tuple(tensors_of(GLA).values())
    for result, expected in zip(
        compiled(model, backend=backend)(*inputs), model(*inputs), strict=True
    ):
        torch.testing.assert_close(result, expected)


def test_compile_with_options_that_vary(compiled):
    inputs = tuple(tensors_of(GLA).values())
    function = compiled(lambda chunk, *x: ops.gla(*x, chunk=chunk)[0], backend="aot_eager")
    for chunk in (16, 32, 64):
        expected = ops.gla(*inputs, chunk=chunk)[0]
        torch.testing.assert_close(function(chunk, *inputs), expected, rtol=0, atol=0)


def test_compile_with_dynamic_lengths(compiled):
    function = compiled(model, backend="aot_eager", dynamic=True)
    for T in (5, 64, 65):
        inputs = tuple(tensors_of(GLA, T=T).values())
        torch.testing.assert_close(function(*inputs)[0], model(*inputs)[0])


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiled_steps_write_the_pool(compiled, backend):
    inputs = tuple(tensors_of(GLA, T=1).values())
    pool, slots = torch.randn(5, 4, 16, 24), torch.tensor([3, 0])
    expected_pool = pool.clone()
    expected = decoder(*inputs, expected_pool, slots)
    result = compiled(decoder, backend=backend)(*inputs, pool, slots)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(pool, expected_pool, rtol=0, atol=0)


def test_export():
    class Module(torch.nn.Module):
        def forward(self, q, k, v, g):
            return model(q, k, v, g)

    inputs = tuple(tensors_of(GLA).values())
    program = torch.export.export(Module(), inputs)
    assert any("sluice" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(*inputs)[0], model(*inputs)[0])


@pytest.mark.parametrize("layout", [None, "key-first", "value-first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("packed", [False, True])
def test_fakes_say_what_the_library_makes(case, layout, dtype, packed):
    """Shapes, dtypes and strides of the fake implementations, against the library's own."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    inputs = {n: x.to(dtype) for n, x in tensors_of(case, B=1 if packed else 2, T=6).items()}
    keywords = {"output_final_state": True, "state_layout": layout}
    if packed:
        keywords["cu_seqlens"] = torch.tensor([0, 2, 2, 6])
    if case.op == "linear":
        keywords["normalize"] = True
    real = call(case, inputs, **keywords)
    with FakeTensorMode() as mode:
        fakes = {n: mode.from_tensor(x) for n, x in inputs.items()}
        if packed:
            keywords["cu_seqlens"] = mode.from_tensor(keywords["cu_seqlens"])
        fake = call(case, fakes, **keywords)
    flat = torch.utils._pytree.tree_leaves
    assert len(flat(fake)) == len(flat(real))
    for made, expected in zip(flat(fake), flat(real), strict=True):
        assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
        assert made.stride() == expected.stride() and made.device == expected.device


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_fakes_know_the_precision(precision):
    inputs = tensors_of(GLA, T=3)
    real = call(GLA, inputs, output_final_state=True, precision=precision)[1]
    meta = {n: x.to("meta") for n, x in inputs.items()}
    fake = call(GLA, meta, output_final_state=True, precision=precision)[1]
    assert (fake.shape, fake.dtype) == (real.shape, real.dtype)


def request(case: Case, phase: str = "prefill", T: int = 4, **keywords):
    """A call as the package's own parts pass it on."""
    inputs = tensors_of(case, T=T)
    operation = ops.OPERATIONS[case.op]
    values = [inputs.get(name) for name in operation.inputs]
    settings = tuple(case.settings.get(name) for name in operation.settings)
    return request_of(*taken_apart(phase, operation, values, settings, keywords, False))


def test_the_operators_pass_torchs_own_checks():
    made = request(GLA, output_final_state=True)
    torch.library.opcheck(torch.ops.sluice.run.default, (text_of(made.form), None, made.read))
    state = torch.zeros(2, 4, 16, 24)
    made = request(GLA, "decode", state=state, out=torch.empty(2, 4, 4, 24))
    # A state in place is both read and written, which the checks' copies would part.
    torch.library.opcheck(
        torch.ops.sluice.run_into.default,
        (text_of(made.form), None, [*made.read[:-1], state.clone()], made.written),
    )


def test_a_declaration_is_one_line(case):
    """torch.compile writes it into comments of the code that it generates."""
    assert text_of(request(case, output_final_state=True).form).isprintable()


def test_errors_cross_the_operators(compiled):
    inputs = tensors_of(GLA)
    inputs["g"] = inputs["g"][:, :5]
    with pytest.raises(sluice.Error) as caught:
        compiled(model, backend="aot_eager")(*inputs.values())
    assert (caught.value.code, caught.value.argument) == ("shape", "g")


def test_refused_while_tracing_with_a_stream(compiled):
    inputs = {n: x.to("meta") for n, x in tensors_of(GLA).items()}
    with pytest.raises(sluice.Error, match="stream"):
        call(GLA, inputs, stream=1)


def test_float32_bound_holds_for_tensors():
    inputs = tensors_of(GLA, T=300)
    wide = {name: x.double().numpy() for name, x in inputs.items()}
    assert error(call(GLA, inputs)[0], call(GLA, wide, backend="oracle")[0]) < FLOAT32
