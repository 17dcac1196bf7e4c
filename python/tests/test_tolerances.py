"""Which of the peers' functions tensor cores compute within the tolerances of the peers' own tests:
emulated by the CPU's chunked kernel with operands in bfloat16, against the oracle.
"""

from __future__ import annotations

import pytest

from conftest import Case, call, error, inputs_of
from tolerances import FLA

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from sluice.compat._tolerances import TOO_COARSE  # noqa: E402

# What tensor cores have kernels for; all else is computed in float32, token by token.
ON_TENSOR_CORES = {
    "chunk_linear_attn": Case("linear"),
    "chunk_retention": Case("retention"),
    "chunk_lightning_attn": Case("lightning", settings={"layer_idx": 1, "num_layers": 4}),
    "chunk_simple_gla": Case("simple_gla", ("g",)),
    "chunk_gla": Case("gla", ("g",)),
}
TESTED = [(name, dtype) for name in ON_TENSOR_CORES for dtype in FLA[name].dtypes]


@pytest.mark.parametrize("T", [15, 63, 300])
@pytest.mark.parametrize("name, dtype", [t for t in TESTED if "32" not in t[1]])
def test_the_table_of_what_is_too_coarse(name, dtype, T):
    case, kind = ON_TENSOR_CORES[name], getattr(torch, dtype)
    inputs = {
        n: torch.from_numpy(x).to(kind) for n, x in inputs_of(case, T=T, HV=2, K=64, V=64).items()
    }
    common = {"initial_state": torch.ones(2, 2, 64, 64), "output_final_state": True}
    expected = call(case, inputs, **common, backend="oracle", out=torch.empty(2, T, 2, 64))
    made = call(case, inputs, **common, backend="cpu", algorithm="chunked", precision="bfloat16")
    errors = [error(x.float(), reference) for x, reference in zip(made, expected, strict=True)]
    allowed = (FLA[name].o, FLA[name].state)
    meets = all(e < bound for e, bound in zip(errors, allowed, strict=True))
    assert meets == ((name, kind) not in TOO_COARSE), errors
