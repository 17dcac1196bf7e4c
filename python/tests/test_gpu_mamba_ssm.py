"""Beside mamba_ssm's Triton kernels on a GPU: the scan and the step, in the shapes and within the
tolerances of its own tests.
"""

from __future__ import annotations

import importlib

import pytest

from conftest import error

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("mamba_ssm.ops.triton.ssd_combined", reason="mamba_ssm is not installed")
from sluice.compat import mamba_ssm as ours  # noqa: E402

P = 64
# rtol and atol of its tests of the step, with heads: without and with indices of states.
TOLERANCES = {
    torch.float32: ((3e-4, 1e-3), (3e-4, 1e-3)),
    torch.float16: ((5e-3, 3e-2), (5e-3, 3e-2)),
    torch.bfloat16: ((1e-2, 1e-1), (1e-1, 1e-1)),
}


pytestmark = pytest.mark.usefixtures("untuned")


@pytest.fixture(autouse=True)
def forget():
    """Kernels are judged however slow they are."""
    ours.clear_log()
    ours.allow(slow=True)
    yield
    ours.allow(slow=False)
    ours.uninstall()


def ran_here() -> bool:
    return all(ran.kernel.startswith("cuda") and not ran.reason for ran in ours.log())


@pytest.fixture
def normal():
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype = torch.float32):
        return torch.randn(*shape, device="cuda", generator=generator).to(dtype)

    return draw


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("groups, N, has_z", [(1, 64, False), (2, 16, True), (4, 128, True)])
def test_the_step(normal, dtype, indexed, groups, N, has_z):
    B, H = 2, 32
    slots = torch.tensor([17, 3], device="cuda", dtype=torch.int32) if indexed else None
    state = normal(20 if indexed else B, H, P, N, dtype=dtype)
    x, dt = normal(B, H, P, dtype=dtype), normal(B, H, dtype=dtype)
    A = -normal(H).sigmoid() - 1
    keywords = {
        "D": normal(H)[:, None].expand(H, P),
        "z": normal(B, H, P, dtype=dtype) if has_z else None,
        "dt_bias": (normal(H).sigmoid() - 4)[:, None].expand(H, P),
        "dt_softplus": True,
        "state_batch_indices": slots,
    }
    arguments = (
        x,
        dt[..., None].expand(B, H, P),
        A[:, None, None].expand(H, P, N),
        normal(B, groups, N),
        normal(B, groups, N),
    )
    expected_state = state.clone()
    theirs = ours._package._original("selective_state_update")
    expected = theirs(expected_state, *arguments, **keywords)
    o = ours.selective_state_update(state, *arguments, **keywords)
    assert ran_here()
    rtol, atol = TOLERANCES[dtype][indexed]
    torch.testing.assert_close(o, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(state, expected_state, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("T, groups, N, has_z", [(63, 1, 128, False), (300, 2, 64, True)])
def test_the_scan(normal, dtype, T, groups, N, has_z):
    B, H = 2, 8
    arguments = (
        normal(B, T, H, P, dtype=dtype),
        normal(B, T, H, dtype=dtype),
        -normal(H).exp(),
        normal(B, T, groups, N, dtype=dtype),
        normal(B, T, groups, N, dtype=dtype),
    )
    keywords = {
        "D": normal(H),
        "z": normal(B, T, H, P, dtype=dtype) if has_z else None,
        "dt_bias": normal(H) - 4,
        "initial_states": normal(B, H, P, N, dtype=dtype),
        "dt_softplus": True,
        "return_final_states": True,
    }
    theirs = ours._package._original("mamba_chunk_scan_combined")
    expected, expected_state = theirs(*arguments, 128, **keywords)
    o, state = ours.mamba_chunk_scan_combined(*arguments, 128, **keywords)
    assert ran_here()
    # Its tests compare such results at 1e-2; RMS here, relative to the reference's.
    assert error(o.float().cpu(), expected.float().cpu()) < 1e-2
    assert error(state.cpu(), expected_state.float().cpu()) < 1e-2


def test_installed(normal):
    module = importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
    original = module.mamba_chunk_scan_combined
    arguments = (normal(1, 70, 2, P), normal(1, 70, 2), -normal(2).exp())
    arguments += (normal(1, 70, 1, 64), normal(1, 70, 1, 64))
    ours.install()
    module.mamba_chunk_scan_combined(*arguments, 64)
    assert ran_here() and len(ours.log()) == 1
    assert ours.install() and module.mamba_chunk_scan_combined is ours.mamba_chunk_scan_combined
    ours.clear_log()
    ours.allow(slow=False)  # float32 has no tensor-core kernel
    module.mamba_chunk_scan_combined(*arguments, 64)
    [ran] = ours.log()
    assert ran.kernel == "original" and "tensor-core" in ran.reason
    # What only the original does: tokens of several sequences, marked.
    ours.clear_log()
    module.mamba_chunk_scan_combined(
        *arguments, 64, seq_idx=torch.zeros(1, 70, device="cuda", dtype=torch.int32)
    )
    [ran] = ours.log()
    assert (ran.kernel, ran.reason) == ("original", "seq_idx")
    ours.uninstall()
    assert module.mamba_chunk_scan_combined is original
