"""From keyword arguments to a call of the library.

What a call's tensors do not say (variant, settings, options, which tensors there are) is declared
to the library once per form, as text, and is a number from then on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ._arrays import framework_of
from ._error import Error
from ._native import checked, declare, native

# Keyword arguments by what they are. `state` and `slots` stand for two arguments each.
READ = frozenset(
    (
        "initial_state",
        "initial_key_sum",
        "cu_seqlens",
        "read_slots",
        "write_slots",
        "has_initial",
        "accepted",
        "checkpoint_sequences",
        "checkpoint_positions",
        "checkpoint_slots",
    )
)
WRITTEN = frozenset(("out", "final_state", "final_key_sum", "checkpoints", "workspace"))
OPTIONS = frozenset(
    (
        "state_layout",
        "precision",
        "backend",
        "algorithm",
        "chunk",
        "threads",
        "batch_invariant",
        "validate",
        "compile",
    )
)
_TWICE = {"state": ("initial_state", "final_state"), "slots": ("read_slots", "write_slots")}
TENSORS = READ | WRITTEN | set(_TWICE)
KEYWORDS = TENSORS | OPTIONS | {"scale", "output_final_state", "stream"}

# A normalised state comes as (state, key sum).
_KEY_SUM = {"initial_state": "initial_key_sum", "final_state": "final_key_sum"}


class Form(NamedTuple):
    """All of a call but its tensors, scale and stream: what is declared."""

    phase: str
    variant: str
    settings: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]
    read: tuple[str, ...]
    written: tuple[str, ...]
    results: tuple[str, ...]


class Request(NamedTuple):
    """A call, taken apart."""

    form: Form
    read: list[Any]
    written: list[Any]
    scale: float | None
    stream: int | None


def _line(key: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if "\n" in text:
        raise Error("value", key.partition(".")[2], repr(text), "one line")
    return f"{key}={text}"


def text_of(form: Form) -> str:
    """The declaration of a form (python/src/declared_call.hpp)."""
    lines = [f"phase={form.phase}", f"variant={form.variant}"]
    lines += [_line(f"setting.{name}", value) for name, value in form.settings]
    lines += [_line(f"option.{name}", value) for name, value in form.options]
    lines += [f"tensor={name}" for name in form.read + form.written]
    lines += [f"result={name}" for name in form.results]
    return "\n".join(lines)


@functools.cache
def number_of(form: Form) -> int:
    """The number that a form is declared under."""
    return declare(text_of(form))


def results_of(form: Form, returned: Any) -> list[Any]:
    """What the library's call returned, as a list in the order of ``form.results``."""
    returned = checked(returned)
    count = len(form.results)
    if count < 2:
        return [returned] if count else []
    return [returned[i] for i in range(count)]


def _refuse_keyword(name: str, variant: str, value: Any) -> None:
    import difflib

    close = difflib.get_close_matches(name, sorted(KEYWORDS), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    accepted = f"{hint}besides the inputs of {variant}: {', '.join(sorted(KEYWORDS))}"
    raise Error("surplus", name, type(value).__name__, accepted)


def _pairs_apart(name: str, value: Any) -> list[tuple[str, Any]]:
    """A state argument as it crosses: a pair is a state and its key sum."""
    if type(value) is not tuple or name not in _KEY_SUM:
        return [(name, value)]
    if len(value) != 2:
        raise Error("value", name, f"{len(value)} arrays", "an array, or (state, key_sum)")
    return [(name, value[0]), (_KEY_SUM[name], value[1])]


def request_of(
    phase: str,
    variant: str,
    inputs: tuple[tuple[str, Any], ...],
    settings: tuple[tuple[str, Any], ...],
    keywords: Mapping[str, Any],
    report: bool = False,
) -> Request:
    """Sorts the arguments of a call. ``None`` means not given."""
    read_names, read, written_names, written, options = [], [], [], [], []
    for name, value in inputs:
        if value is not None:
            read_names.append(name)
            read.append(value)
    scale = stream = None
    wants_state = False
    for keyword, given in keywords.items():
        if given is None:
            continue
        if keyword in OPTIONS:
            options.append((keyword, given))
        elif keyword in TENSORS:
            for twin in _TWICE.get(keyword, (keyword,)):
                for name, value in _pairs_apart(twin, given):
                    if name in WRITTEN:
                        written_names.append(name)
                        written.append(value)
                    else:
                        read_names.append(name)
                        read.append(value)
        elif keyword == "scale":
            scale = float(given)
        elif keyword == "output_final_state":
            wants_state = bool(given)
        elif keyword == "stream":
            stream = int(given)
        else:
            _refuse_keyword(keyword, variant, given)
    if not read:
        raise Error("missing", inputs[0][0], "nothing", f"the inputs of {variant}")

    chosen = tuple([pair for pair in settings if pair[1] is not None])
    results = [] if "out" in written_names else ["out"]
    if wants_state and "final_state" not in written_names:
        results.append("final_state")
        if ("normalize", True) in chosen:
            results.append("final_key_sum")
    if report:
        results.append("ran")
    form = Form(
        phase,
        variant,
        chosen,
        tuple(options),
        tuple(read_names),
        tuple(written_names),
        tuple(results),
    )
    return Request(form, read, written, scale, stream)


def _run_arrays(request: Request) -> list[Any]:
    """Arrays of other frameworks: the library says what to allocate, then runs into it."""
    form = request.form
    like = request.read[0]
    kind: type = type(like)
    framework = framework_of(kind)
    read = [framework.lend(n, x, False) for n, x in zip(form.read, request.read, strict=True)]
    written = [
        framework.lend(n, x, True) for n, x in zip(form.written, request.written, strict=True)
    ]
    arrays = [array for array, _ in read + written]
    lent = form._replace(read=tuple(n for _, n in read), written=tuple(n for _, n in written))
    described = checked(native().outputs(number_of(lent), *arrays))
    results, names = [], []
    for i in range(0, len(described), 3):
        name, dtype, shape = described[i], str(described[i + 1]), tuple(described[i + 2])
        result = framework.empty(shape, dtype, like)
        array, declared = framework.lend(name, result, True)
        results.append(result)
        arrays.append(array)
        names.append(declared)
    report = tuple(name for name in form.results if name == "ran")
    lent = lent._replace(written=lent.written + tuple(names), results=report)
    stream = framework.stream(like) if request.stream is None else request.stream
    returned = native().call(number_of(lent), request.scale, stream, *arrays)
    return [framework.finish(result) for result in results] + results_of(lent, returned)


_runners: dict[type, Callable[[Request], list[Any]]] = {}


def _runner_of(kind: type) -> Callable[[Request], list[Any]]:
    """What runs calls whose arrays are of this type. Imports no framework that is not in use."""
    if any(base.__module__ == "torch" for base in kind.__mro__):
        from . import _torch

        return _torch.run
    return _run_arrays


def execute(request: Request) -> dict[str, Any]:
    """Runs a call. The results and the arrays written, by name."""
    kind = type(request.read[0])
    if kind not in _runners:
        _runners[kind] = _runner_of(kind)
    form = request.form
    made = dict(zip(form.results, _runners[kind](request), strict=True))
    if form.written:
        made.update(zip(form.written, request.written, strict=True))
    return made


def run(
    phase: str,
    variant: str,
    inputs: tuple[tuple[str, Any], ...],
    settings: tuple[tuple[str, Any], ...],
    keywords: Mapping[str, object],
) -> tuple[Any, Any]:
    """``(o, final_state)``; ``final_state`` is ``None`` where nobody asked for it."""
    made = execute(request_of(phase, variant, inputs, settings, keywords))
    state, key_sum = made.get("final_state"), made.get("final_key_sum")
    return made["out"], state if key_sum is None else (state, key_sum)
