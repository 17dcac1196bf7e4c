"""Refused calls: one exception type, the argument by its Python name, nothing written."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from conftest import Case, call, inputs_of, refusal
from sluice import ops

GLA = Case("gla", ("g",))


def test_misspelt_keywords_are_refused_by_name():
    for name, meant in (
        ("output_finalstate", "output_final_state"),
        ("initial_sate", "initial_state"),
        ("cu_seqlen", "cu_seqlens"),
    ):
        refused = refusal(call, GLA, inputs_of(GLA), **{name: True})
        assert (refused.code, refused.argument) == ("surplus", name)
        assert f"did you mean {meant}?" in refused.accepted


def test_another_variants_input_is_refused():
    inputs = inputs_of(GLA)
    refused = refusal(ops.retention, inputs["q"], inputs["k"], inputs["v"], g=inputs["g"])
    assert (refused.code, refused.argument) == ("surplus", "g")


def test_a_missing_gate():
    inputs = inputs_of(Case("kda", ("g", "beta")))
    del inputs["g"]
    refused = refusal(ops.kda, **inputs)
    assert (refused.code, refused.argument) == ("missing", "g")


@pytest.mark.parametrize(
    "change, code, argument",
    [
        ({"k": np.zeros((2, 70, 3, 16), np.float32)}, "shape", "k"),
        ({"g": np.zeros((2, 70, 4), np.float32)}, "shape", "g"),
        ({"v": np.zeros((2, 69, 4, 24), np.float32)}, "shape", "v"),
        ({"k": np.zeros((2, 70, 2, 16), np.int32)}, "dtype", "k"),
        ({"k": np.zeros((2, 70, 2, 16), np.int8)}, "dtype", "k"),
        ({"k": [1.0, 2.0]}, "value", "k"),
        ({"k": 3}, "value", "k"),
        ({"q": "text"}, "value", "q"),
        ({"q": np.zeros((2, 70, 2, 16), object)}, "value", "q"),
        ({"k": np.zeros((2, 70, 2, 16), object)}, "value", "k"),
        ({"k": np.zeros((2, 70, 2, 16), ">f4")}, "value", "k"),
        ({"k": np.broadcast_to(np.array(0, ">f4"), (2, 70, 2, 16))}, "value", "k"),
        ({"out": np.zeros((2, 70, 4, 24), ">f4")}, "value", "out"),
        ({"k": np.ma.masked_array(np.zeros((2, 70, 2, 16), np.float32))}, "value", "k"),
        ({"out": np.ma.masked_array(np.zeros((2, 70, 4, 24), np.float32))}, "value", "out"),
        ({"initial_state": np.zeros((2, 4, 24, 16), np.float32)}, "shape", "initial_state"),
        ({"final_state": np.zeros((2, 4, 24, 16), np.float32)}, "shape", "final_state"),
        ({"initial_state": (np.zeros(1),) * 3}, "value", "initial_state"),
        ({"out": np.zeros((2, 70, 4, 25), np.float32)}, "shape", "out"),
        ({"cu_seqlens": np.array([0, 70])}, "shape", "cu_seqlens"),
        ({"backend": "tpu"}, "unsupported", "backend"),
        ({"precision": "float8"}, "value", "precision"),
        ({"state_layout": "sideways"}, "value", "state_layout"),
        ({"algorithm": "fast"}, "value", "algorithm"),
        ({"chunk": 17}, "value", "chunk"),
        ({"chunk": "many"}, "value", "chunk"),
        ({"backend": "cpu;result=ran"}, "value", "backend"),
        ({"backend": "cpu\n"}, "value", "backend"),
        ({"workspace": np.zeros(256, np.uint8)}, "device", "workspace"),
        ({"batch_invariant": 2}, "value", "batch_invariant"),
        ({"scale": float("nan")}, "value", "scale"),
        ({"q": np.zeros((1,) * 7, np.float32)}, "shape", "q"),
        ({"scale": "abc"}, "value", "scale"),
        ({"scale": [0.5]}, "value", "scale"),
        ({"scale": 10**400}, "value", "scale"),
        ({"stream": "x"}, "value", "stream"),
        ({"output_final_state": "False"}, "value", "output_final_state"),
        ({"output_final_state": np.array([1, 2])}, "value", "output_final_state"),
        ({"chunk": [1]}, "value", "chunk"),
    ],
)
def test_refusals(change, code, argument):
    refused = refusal(call, GLA, {**inputs_of(GLA), **change})
    assert (refused.code, refused.argument) == (code, argument), str(refused)


@pytest.fixture(params=["arrays", "tensors"])
def convert(request):
    """Calls of arrays and of tensors take different ways to the library."""
    if request.param == "arrays":
        return dict
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return lambda inputs: {name: torch.from_numpy(x) for name, x in inputs.items()}


# True, 1 and 1.0 are equal and hash alike, and calls are looked up by their options and settings.
@pytest.mark.parametrize(
    "name, good, bad",
    [
        ("batch_invariant", True, (1, 1.0)),
        ("validate", False, (0, 0.0)),
        ("chunk", 16, (16.0,)),
        ("threads", 1, (True, 1.0)),
    ],
)
def test_what_equals_a_good_option_is_not_one(convert, name, good, bad):
    inputs = convert(inputs_of(GLA, T=6))
    call(GLA, inputs, **{name: good})
    for value in bad:
        refused = refusal(call, GLA, inputs, **{name: value})
        assert (refused.code, refused.argument) == ("value", name)
    call(GLA, inputs, **{name: good})


@pytest.mark.parametrize(
    "op, settings, name, bad",
    [
        ("linear", {"normalize": True}, "normalize", 1.0),
        ("linear", {"normalize": False}, "normalize", 0.0),
        ("delta_rule", {"qk_l2norm": True}, "qk_l2norm", 1.0),
        ("lightning", {"layer_idx": 1, "num_layers": 8}, "layer_idx", True),
    ],
)
def test_what_equals_a_good_setting_is_not_one(convert, op, settings, name, bad):
    gates = ("beta",) if op == "delta_rule" else ()
    inputs = convert(inputs_of(Case(op, gates), T=6))
    call(Case(op, gates, settings), inputs)
    refused = refusal(call, Case(op, gates, {**settings, name: bad}), inputs)
    assert (refused.code, refused.argument) == ("value", name)
    call(Case(op, gates, settings), inputs)


STATE = np.zeros((2, 4, 16, 24), np.float32)
SLOTS = np.array([0, 1])


@pytest.mark.parametrize(
    "given, argument",
    [
        ({"initial_state": STATE, "state": STATE.copy()}, "initial_state"),
        ({"state": STATE, "final_state": STATE.copy()}, "final_state"),
        ({"state": STATE, "slots": SLOTS, "read_slots": SLOTS}, "read_slots"),
        ({"final_state": STATE, "write_slots": SLOTS, "slots": SLOTS}, "write_slots"),
    ],
)
def test_an_argument_given_twice_is_refused(given, argument):
    for keywords in (given, dict(reversed(given.items()))):
        refused = refusal(call, GLA, inputs_of(GLA), **keywords)
        assert (refused.code, refused.argument) == ("surplus", argument)


def test_a_fresh_state_has_no_slots_to_write():
    refused = refusal(
        call, GLA, inputs_of(GLA), write_slots=np.array([0, -1]), output_final_state=True
    )
    assert (refused.code, refused.argument) == ("missing", "final_state")


SCARCE = """
import resource, numpy as np, sluice
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
q = np.broadcast_to(np.zeros((1, 1, 1, 1), np.float32), (1, 1, 1, 2**26))
try:
    sluice.ops.linear(q, q, np.zeros((1, 1, 1, 512), np.float32))
except sluice.Error as error:
    print(error.code)
"""


def test_memory_that_is_not_there_is_our_error():
    run = [sys.executable, "-c", SCARCE]
    assert subprocess.run(run, check=True, capture_output=True, text=True).stdout == "memory\n"


FORK = """
import os, numpy as np, sluice
x = np.ones((2, 70, 4, 16), np.float32)
expected = sluice.ops.linear(x, x, x, threads=2)[0]
child = os.fork()
if child == 0:
    for options in ({}, {"threads": 2}, {"backend": "oracle"}):
        sluice.ops.linear(x, x, x, **options)
    os._exit(int(not np.array_equal(sluice.ops.linear(x, x, x)[0], expected)))
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_can_call():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


def test_settings_are_checked():
    kda = Case("kda", ("g_raw", "A_log", "dt_bias", "beta"), {"lower_bound": -9.0})
    assert refusal(call, kda, inputs_of(kda)).argument == "lower_bound"
    lightning = Case("lightning", settings={"layer_idx": 9, "num_layers": 3})
    assert refusal(call, lightning, inputs_of(lightning)).argument == "layer_idx"


def test_values_are_checked_when_asked():
    inputs = inputs_of(GLA)
    inputs["g"][0, 3, 1, 2] = 0.5
    call(GLA, inputs)
    refused = refusal(call, GLA, inputs, validate=True)
    assert (refused.code, refused.argument) == ("value", "g")


def test_bad_offsets_and_slots_are_refused():
    inputs = inputs_of(GLA, B=1)
    for offsets in ([0, 50, 40, 70], [1, 70], [0, 71]):
        assert refusal(call, GLA, inputs, cu_seqlens=np.array(offsets)).argument == "cu_seqlens"
    pool = np.zeros((2, 4, 16, 24), np.float32)
    refused = refusal(call, GLA, inputs, state=pool, slots=np.array([2]))
    assert refused.argument == "read_slots"


def test_nothing_is_written_by_a_refused_call():
    inputs = inputs_of(GLA)
    out = np.full((2, 70, 4, 24), 7, np.float32)
    refusal(call, GLA, inputs, out=out, initial_state=np.zeros((1, 1), np.float32))
    assert (out == 7).all()


def test_outputs_may_not_overlap_inputs():
    inputs = inputs_of(GLA, HV=2, V=16)
    assert refusal(call, GLA, inputs, out=inputs["v"]).code == "alias"


def test_an_error_says_it_all_and_pickles():
    refused = refusal(call, GLA, {**inputs_of(GLA), "g": np.zeros((2, 70, 4), np.float32)})
    assert str(refused) == f"g: got {refused.value}; accepted: {refused.accepted}"
    again = pickle.loads(pickle.dumps(refused))
    assert vars(again) == vars(refused) and str(again) == str(refused)
