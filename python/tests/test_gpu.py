"""On a GPU: every variant against the oracle, streams, graphs, compiled calls, FLA itself."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

import sluice
from conftest import HALF, Case, call, error, inputs_of
from sluice import ops

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

GLA = Case("gla", ("g",))
FLOAT32_GPU = 3e-5


def on_gpu(case: Case, dtype: torch.dtype = torch.float32, **dims: int) -> dict:
    inputs = {n: torch.from_numpy(x) for n, x in inputs_of(case, **dims).items()}
    # Parameters and decays stay float32, as layers pass them.
    wide = ("A", "A_log", "dt_bias", "D", "g")
    return {n: x.to("cuda", torch.float32 if n in wide else dtype) for n, x in inputs.items()}


def oracle(case: Case, inputs: dict, **keywords) -> tuple:
    host = {n: x.double().cpu() for n, x in inputs.items()}
    return call(case, host, backend="oracle", **keywords)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("T", [1, 65, 200])
def test_forward(case, dtype, T):
    inputs = on_gpu(case, dtype, T=T, K=64, V=64)
    o, state = call(case, inputs, output_final_state=True)
    o_ref, state_ref = oracle(case, inputs, output_final_state=True)
    bound = FLOAT32_GPU if dtype == torch.float32 else HALF[case.update]
    assert o.is_cuda and o.dtype == dtype and state.dtype == torch.float32
    assert error(o.double().cpu(), o_ref) < bound
    assert error(state.double().cpu(), state_ref) < bound


def test_steps_in_place(case):
    inputs = on_gpu(case, torch.bfloat16, T=1, K=64, V=64)
    shape = (5, 4, 64, 64)
    pool = torch.randn(shape, device="cuda")
    expected = pool.clone()
    slots = torch.tensor([3, -1], device="cuda", dtype=torch.int32)
    o, _ = call(case, inputs, step=True, state=pool, slots=slots)
    o_ref, _ = oracle(case, inputs, step=True, initial_state=expected[[3, 3]].double().cpu())
    assert error(o[0].double().cpu(), o_ref[0]) < HALF[case.update]
    assert not o[1].any()
    untouched = [0, 1, 2, 4]
    torch.testing.assert_close(pool[untouched], expected[untouched], rtol=0, atol=0)


def test_strides_and_dims():
    for K, V in ((60, 64), (96, 100), (128, 128), (192, 256)):
        inputs = on_gpu(GLA, torch.bfloat16, K=K, V=V)
        inputs["v"] = inputs["v"].transpose(1, 2).contiguous().transpose(1, 2)
        try:
            o, _ = call(GLA, inputs)
        except sluice.Error as refused:  # a clear refusal names the limit
            assert refused.code in ("unsupported", "stride") and refused.accepted
            continue
        assert error(o.double().cpu(), oracle(GLA, inputs)[0]) < HALF["additive"]


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
    torch.testing.assert_close(o, expected * 2)


def test_two_streams():
    inputs = on_gpu(GLA, torch.bfloat16, T=2048, K=64, V=64)
    expected, _ = call(GLA, inputs)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = []
    for _ in range(4):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(call(GLA, inputs)[0])
    torch.cuda.synchronize()
    for o in results:
        torch.testing.assert_close(o, expected, rtol=0, atol=0)


def test_graph_replay_with_other_sequences():
    inputs = on_gpu(GLA, torch.bfloat16, B=1, T=256, K=64, V=64)
    offsets = torch.tensor([0, 100, 256], device="cuda", dtype=torch.int32)
    initial = torch.randn(2, 4, 64, 64, device="cuda")
    keywords = {"cu_seqlens": offsets, "initial_state": initial, "output_final_state": True}
    for _ in range(2):  # compiled and loaded before the capture
        call(GLA, inputs, **keywords)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, state = call(GLA, inputs, **keywords)
    for middle in (0, 33, 256):
        offsets.copy_(torch.tensor([0, middle, 256]))
        initial.normal_()
        graph.replay()
        expected = call(GLA, inputs, **keywords)
        torch.testing.assert_close(o, expected[0], rtol=0, atol=0)
        torch.testing.assert_close(state, expected[1], rtol=0, atol=0)


def test_no_synchronisation():
    inputs = on_gpu(GLA, torch.bfloat16, B=1, T=256, K=64, V=64)
    offsets = torch.tensor([0, 100, 256], device="cuda", dtype=torch.int32)
    call(GLA, inputs, cu_seqlens=offsets)
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(GLA, inputs, cu_seqlens=offsets)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled(mode):
    torch._dynamo.reset()
    inputs = on_gpu(GLA, torch.bfloat16, K=64, V=64)

    def model(q, k, v, g):
        return ops.gla(q * 2, k, v, g)[0] + 1

    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for _ in range(3):
        o = compiled(*inputs.values()).clone()
    torch.testing.assert_close(o, model(*inputs.values()), rtol=2e-2, atol=2e-2)


def test_autocast():
    inputs = on_gpu(GLA, torch.bfloat16, K=64, V=64)
    expected, _ = call(GLA, inputs)
    with torch.autocast("cuda", dtype=torch.float16):
        o, _ = call(GLA, inputs)
    torch.testing.assert_close(o, expected, rtol=0, atol=0)


def test_memory_comes_from_torch():
    inputs = on_gpu(GLA, torch.bfloat16, T=4096, K=128, V=128)
    call(GLA, inputs)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(3):
        call(GLA, inputs)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == before  # torch's cache gives, nothing else takes


needs_fla = pytest.mark.skipif(
    importlib.util.find_spec("fla") is None, reason="flash-linear-attention is not installed"
)


@needs_fla
@pytest.mark.parametrize("T", [1, 63, 65, 300])
@pytest.mark.parametrize("D", [64, 100, 128])
@pytest.mark.parametrize("packed", [False, True])
def test_chunk_gla_equals_flas(T, D, packed):
    from sluice.compat import fla

    original = importlib.import_module("fla.ops.gla").chunk_gla
    torch.manual_seed(0)
    B = 1 if packed else 2
    q, k, v = (torch.randn(B, T, 4, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    g = torch.nn.functional.logsigmoid(torch.randn(B, T, 4, D, device="cuda")) / 4
    keywords = {"output_final_state": True}
    if packed:
        keywords["cu_seqlens"] = torch.tensor([0, T // 3, T], device="cuda")
    o_ref, state_ref = original(q, k, v, g, **keywords)
    o, state = fla.chunk_gla(q, k, v, g, **keywords)
    # FLA's own tests allow 0.5 % RMS of the output.
    assert error(o.float().cpu(), o_ref.float().cpu()) < 5e-3
    assert error(state.cpu(), state_ref.cpu()) < 5e-3


@needs_fla
def test_a_gradient_reaches_flas_backward():
    from sluice.compat import fla

    inputs = {
        n: x.requires_grad_() for n, x in on_gpu(GLA, torch.bfloat16, H=4, K=64, V=64).items()
    }
    fla.clear_log()
    fla.chunk_gla(*inputs.values())[0].sum().backward()
    assert inputs["q"].grad is not None
    assert [ran.kernel for ran in fla.log()] == ["original"]
