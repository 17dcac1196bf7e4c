"""On a GPU: every variant against the oracle, states and slots, strides, streams, graphs, compiled
calls, autocast, gradients, memory. Beside the peers' own kernels: test_gpu_fla.py and
test_gpu_mamba_ssm.py.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import sluice
from conftest import HALF, ROOT, Case, call, error, inputs_of
from sluice import ops

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

GLA = Case("gla", ("g",))
SIMPLE_GLA = Case("simple_gla", ("g",))
GDN = Case("gated_delta_rule", ("g", "beta"), {"qk_l2norm": True})
FLOAT32_GPU = 3e-5


def on_gpu(case: Case, dtype: torch.dtype = torch.float32, **dims: int) -> dict:
    inputs = {n: torch.from_numpy(x) for n, x in inputs_of(case, **dims).items()}
    # Parameters and decays stay float32, as layers pass them.
    wide = ("A", "A_log", "dt_bias", "D", "g")
    return {n: x.to("cuda", torch.float32 if n in wide else dtype) for n, x in inputs.items()}


def oracle(case: Case, inputs: dict, **keywords) -> tuple:
    host = {n: x.double().cpu() for n, x in inputs.items()}
    return call(case, host, backend="oracle", **keywords)


def error_on_host(x: torch.Tensor, reference: torch.Tensor) -> float:
    return error(x.double().cpu(), reference.double().cpu())


def bound_of(case: Case, dtype: torch.dtype) -> float:
    return FLOAT32_GPU if dtype == torch.float32 else HALF[case.update]


def unchanged(x: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(x, expected, rtol=0, atol=0)


# ---- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("T", [1, 65, 200])
def test_forward(case, dtype, T):
    inputs = on_gpu(case, dtype, T=T, K=64, V=64)
    o, state = call(case, inputs, backend="cuda", output_final_state=True)
    o_ref, state_ref = oracle(case, inputs, output_final_state=True)
    assert o.is_cuda and o.dtype == dtype and state.dtype == torch.float32
    assert error_on_host(o, o_ref) < bound_of(case, dtype)
    assert error_on_host(state, state_ref) < bound_of(case, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_in_place(case, dtype):
    """A pool with an unused row: one slot is updated, all others stay, padding rows give zeros."""
    inputs = on_gpu(case, dtype, T=1, K=64, V=64)
    pool = torch.randn(
        5, 4, 64, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(1)
    )
    before = pool.clone()
    slots = torch.tensor([3, -1], device="cuda", dtype=torch.int32)
    o, _ = call(case, inputs, step=True, backend="cuda", state=pool, slots=slots)
    o_ref, final = oracle(
        case,
        inputs,
        step=True,
        initial_state=before[[3, 3]].double().cpu(),
        output_final_state=True,
    )
    assert error_on_host(o[0], o_ref[0]) < bound_of(case, dtype)
    assert error_on_host(pool[3], final[0]) < bound_of(case, dtype)
    assert not o[1].any()
    others = [0, 1, 2, 4]
    unchanged(pool[others], before[others])


def test_prefill_then_steps(case):
    """The state of a prefill feeds 16 steps; together they are one run over all tokens."""
    inputs = on_gpu(case, torch.float32, T=80, K=64, V=64)
    o_ref, final_ref = oracle(case, inputs, output_final_state=True)
    per_token = [n for n, x in inputs.items() if x.ndim > 2 and x.shape[1] == 80]

    def tokens(begin: int, end: int) -> dict:
        return {n: x[:, begin:end] if n in per_token else x for n, x in inputs.items()}

    _, state = call(case, tokens(0, 64), output_final_state=True)
    outputs = []
    for t in range(64, 80):
        outputs.append(call(case, tokens(t, t + 1), step=True, state=state)[0])
    assert error_on_host(torch.cat(outputs, 1), o_ref[:, 64:]) < FLOAT32_GPU
    assert error_on_host(state, final_ref) < FLOAT32_GPU


@pytest.mark.parametrize("K, V", [(60, 64), (96, 100), (128, 128), (192, 256), (7, 5), (256, 320)])
def test_dims_and_strides(K, V):
    inputs = on_gpu(GLA, torch.bfloat16, K=K, V=V)
    inputs["v"] = inputs["v"].transpose(1, 2).contiguous().transpose(1, 2)
    inputs["q"] = inputs["q"][:, :, :1].expand(-1, -1, 2, -1)
    o, _ = call(GLA, inputs, backend="cuda")
    assert error_on_host(o, oracle(GLA, inputs)[0]) < HALF["additive"]


def test_packed_sequences_equal_single_ones():
    inputs = on_gpu(GLA, torch.bfloat16, B=1, T=300, K=64, V=64)
    offsets = torch.tensor([0, 0, 15, 16, 300], device="cuda")
    o, state = call(GLA, inputs, cu_seqlens=offsets, output_final_state=True)
    assert not state[0].any()
    for n, (begin, end) in enumerate(((0, 15), (15, 16), (16, 300)), 1):
        part = {name: x[:, begin:end] for name, x in inputs.items()}
        o_part, state_part = call(GLA, part, output_final_state=True)
        assert error_on_host(o[:, begin:end], o_part) < HALF["additive"]
        assert error_on_host(state[n], state_part[0]) < HALF["additive"]


def test_calls_of_one_form_with_other_tensors():
    """Plans are kept from call to call, for tensors alike: shapes, strides and alignment differ."""
    shapes = ((1, 200, 64), (2, 70, 64), (2, 70, 128), (1, 200, 64))
    for round in range(2):
        for B, T, K in shapes:
            inputs = on_gpu(GLA, torch.bfloat16, B=B, T=T, K=K, V=64)
            if round == 1:  # one element further: no longer on 16 bytes
                x = inputs["v"]
                apart = torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)[1:].view(x.shape)
                inputs["v"] = apart.copy_(x)
            o, state = call(GLA, inputs, output_final_state=True)
            o_ref, state_ref = oracle(GLA, inputs, output_final_state=True)
            assert error_on_host(o, o_ref) < HALF["additive"]
            assert error_on_host(state, state_ref) < HALF["additive"]


def test_calls_of_one_form_with_other_scales():
    """A scale chooses the kernel here: only one takes negative ones."""
    inputs = on_gpu(SIMPLE_GLA, torch.bfloat16, T=70, K=64, V=64)
    for scale in (0.5, -0.25, None, 0.5, -0.25):
        o, _ = call(SIMPLE_GLA, inputs, scale=scale)
        o_ref, _ = oracle(SIMPLE_GLA, inputs, scale=scale)
        assert error_on_host(o, o_ref) < HALF["additive"]


def test_calls_of_one_form_with_other_strides():
    inputs = on_gpu(GLA, torch.bfloat16, T=70, K=64, V=64)
    apart = {n: torch.stack((x, x * 0), dim=2)[:, :, 0] for n, x in inputs.items()}
    expected, _ = call(GLA, inputs)
    for _ in range(2):
        for given in (inputs, apart, {**inputs, "k": apart["k"]}):
            unchanged(call(GLA, given)[0], expected)


def test_calls_of_one_form_from_threads():
    """Lengths that alternate in every thread, on a stream of its own."""
    inputs = [on_gpu(GLA, torch.bfloat16, T=T, K=64, V=64) for T in (70, 130, 200)]
    expected = [call(GLA, x, output_final_state=True) for x in inputs]
    torch.cuda.synchronize()

    def work(thread: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(200):
                n = (i + thread) % len(inputs)
                o, state = call(GLA, inputs[n], output_final_state=True)
                unchanged(o, expected[n][0])
                unchanged(state, expected[n][1])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_cupy_arrays():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    inputs = on_gpu(GDN, torch.float32, T=70, K=64, V=64)
    arrays = {n: cupy.asarray(x.cpu().numpy()) for n, x in inputs.items()}
    o, state = call(GDN, arrays, output_final_state=True)
    assert isinstance(o, cupy.ndarray)
    o_ref, state_ref = call(GDN, inputs, output_final_state=True)
    unchanged(torch.from_numpy(o.get()), o_ref.cpu())
    unchanged(torch.from_numpy(state.get()), state_ref.cpu())


# ---- streams, graphs, memory --------------------------------------------------------------------


def test_the_current_stream_is_used():
    inputs = on_gpu(GLA, torch.bfloat16, T=512, K=64, V=64)
    expected, _ = call(GLA, inputs)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        doubled = {**inputs, "v": inputs["v"] * 2}  # behind the sleep
        o, _ = call(GLA, doubled)
    side.synchronize()
    unchanged(o, expected * 2)


@pytest.mark.parametrize("kind", [GLA, GDN], ids=str)
def test_two_streams(kind):
    inputs = on_gpu(kind, torch.bfloat16, T=2048, K=64, V=64)
    expected, _ = call(kind, inputs)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = []
    for _ in range(4):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(call(kind, inputs)[0])
    torch.cuda.synchronize()
    for o in results:
        unchanged(o, expected)


@pytest.mark.parametrize("kind", [GLA, GDN], ids=str)
def test_graph_replay_with_other_sequences(kind):
    inputs = on_gpu(kind, torch.bfloat16, B=1, T=256, K=64, V=64)
    offsets = torch.tensor([0, 100, 256], device="cuda", dtype=torch.int32)
    initial = torch.randn(2, 4, 64, 64, device="cuda")
    keywords = {"cu_seqlens": offsets, "initial_state": initial, "output_final_state": True}
    for _ in range(2):  # compiled and loaded before the capture
        call(kind, inputs, **keywords)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, state = call(kind, inputs, **keywords)
    replayed = []
    for middle in (0, 33, 256):
        offsets.copy_(torch.tensor([0, middle, 256]))
        initial.normal_()
        graph.replay()
        expected = call(kind, inputs, **keywords)
        unchanged(o, expected[0])
        unchanged(state, expected[1])
        replayed.append(o.clone())
    assert not torch.equal(replayed[0], replayed[1])  # other sequences, other results


def test_graph_replay_of_steps_with_other_slots():
    inputs = on_gpu(GDN, torch.bfloat16, T=1, K=64, V=64)
    pool = torch.randn(6, 4, 64, 64, device="cuda")
    slots = torch.tensor([1, 4], device="cuda", dtype=torch.int32)
    call(GDN, inputs, step=True, state=pool.clone(), slots=slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, _ = call(GDN, inputs, step=True, state=pool, slots=slots)
    for chosen in ([1, 4], [5, -1], [0, 2]):
        slots.copy_(torch.tensor(chosen, dtype=torch.int32))
        expected_pool = pool.clone()
        expected, _ = call(GDN, inputs, step=True, state=expected_pool, slots=slots)
        graph.replay()
        unchanged(o, expected)
        unchanged(pool, expected_pool)


def test_no_synchronisation():
    inputs = on_gpu(GLA, torch.bfloat16, B=1, T=256, K=64, V=64)
    offsets = torch.tensor([0, 100, 256], device="cuda", dtype=torch.int32)
    call(GLA, inputs, cu_seqlens=offsets)
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(GLA, inputs, cu_seqlens=offsets)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_comes_from_torch():
    """Of the whole device: run it alone there."""
    inputs = on_gpu(GLA, torch.bfloat16, T=4096, K=128, V=128)
    call(GLA, inputs)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(3):
        call(GLA, inputs)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == before  # torch's cache gives, nothing else takes


# ---- torch.compile, autocast, gradients ---------------------------------------------------------


def prefill(q, k, v, g):
    return ops.gla(q * 2, k, v, g)[0] + 1


def decode(q, k, v, g, beta, pool, slots):
    o, _ = ops.gated_delta_rule_step(q, k, v, g, beta, qk_l2norm=True, state=pool, slots=slots)
    return o * 2


@pytest.fixture
def compiled():
    """torch.compile without graph breaks, forgotten afterwards."""
    torch._dynamo.reset()
    yield lambda f, **options: torch.compile(f, fullgraph=True, **options)
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled(compiled, mode):
    inputs = on_gpu(GLA, torch.bfloat16, K=64, V=64)
    function = compiled(prefill, mode=mode)
    for _ in range(3):
        o = function(*inputs.values()).clone()
    torch.testing.assert_close(o, prefill(*inputs.values()))


def test_compiled_with_dynamic_lengths(compiled):
    function = compiled(prefill, dynamic=True)
    for T in (65, 64, 200):
        inputs = on_gpu(GLA, torch.bfloat16, T=T, K=64, V=64)
        torch.testing.assert_close(function(*inputs.values()), prefill(*inputs.values()))


def test_compiled_steps_write_the_pool(compiled):
    inputs = on_gpu(GDN, torch.bfloat16, T=1, K=64, V=64)
    pool, slots = torch.randn(5, 4, 64, 64, device="cuda"), torch.tensor([3, 0], device="cuda")
    expected_pool = pool.clone()
    expected = decode(*inputs.values(), expected_pool, slots)
    torch.testing.assert_close(compiled(decode)(*inputs.values(), pool, slots), expected)
    unchanged(pool, expected_pool)


def test_autocast():
    inputs = on_gpu(GLA, torch.bfloat16, K=64, V=64)
    expected, _ = call(GLA, inputs)
    with torch.autocast("cuda", dtype=torch.float16):
        o, _ = call(GLA, inputs)
    unchanged(o, expected)


def test_a_gradient_is_refused_by_name():
    inputs = on_gpu(GLA, torch.bfloat16, K=64, V=64)
    inputs["v"].requires_grad_()
    with pytest.raises(sluice.Error) as caught:
        call(GLA, inputs)
    assert (caught.value.code, caught.value.argument) == ("unsupported", "v")
    with torch.no_grad():
        assert not call(GLA, inputs)[0].requires_grad


def test_tensors_on_two_devices_are_refused():
    inputs = on_gpu(GLA, torch.bfloat16, K=64, V=64)
    with pytest.raises(sluice.Error) as caught:
        call(GLA, {**inputs, "k": inputs["k"].cpu()})
    assert (caught.value.code, caught.value.argument) == ("device", "k")


@pytest.mark.parametrize(
    "name, options, needs",
    [("hybrid_model.py", ["--alone"], "torch"), ("serve_decode.py", [], "cupy")],
)
def test_example(name, options, needs):
    """On the GPU; what the example itself checks decides."""
    pytest.importorskip(needs, reason=f"{needs} is not installed")
    command = [sys.executable, str(ROOT / "examples" / name), "--device", "cuda", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
