"""The field's own vectors (tests/data/golden), through Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import sluice
from conftest import FLOAT32, ROOT, error
from sluice import ops

FILES = sorted((ROOT / "tests/data/golden").glob("*.safetensors"))
DTYPES = {"BF16": np.uint16, "F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32}
VECTORS = 2e-6  # how closely the vectors agree with a float64 time loop


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    body = memoryview(data)[8 + size :]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(body[begin:end], DTYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":  # the upper half of a float32
            values = (values.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values.reshape(entry["shape"])
    return tensors, metadata


def test_there_are_vectors_of_every_variant():
    assert {read(path)[1]["op"] for path in FILES} == set(sluice.variants())


@pytest.mark.parametrize("backend, bound", [("cpu", FLOAT32), ("oracle", VECTORS)])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path, backend, bound):
    tensors, metadata = read(path)
    o_ref, state_ref = tensors.pop("o"), tensors.pop("final_state", None)
    if "g_raw" in tensors:
        tensors.pop("g", None)  # both forms of one gate are stored
    settings = {
        name: metadata[name] for name in sluice.variants()[metadata["op"]] if name in metadata
    }
    settings["beta_form"] = settings.pop("beta", None)
    if settings.get("normalize") is not None:
        settings["normalize"] = settings["normalize"].lower() == "true"
    if settings["beta_form"] is None:
        del settings["beta_form"]
    function = getattr(ops, metadata["op"])
    o, state = function(
        **tensors,
        **settings,
        scale=float(metadata["scale"]) if "scale" in metadata else None,
        output_final_state=True,
        backend=backend,
    )
    assert error(o, o_ref) < bound
    if state_ref is not None:
        assert error(state[0] if isinstance(state, tuple) else state, state_ref) < bound
