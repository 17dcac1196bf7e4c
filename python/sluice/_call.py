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

# Of a declaration's items. All of it is one line: torch.compile writes it into comments of code.
SEPARATOR = ";"

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


def _item(key: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if SEPARATOR in text or not text.isprintable():
        raise Error("value", key.partition(".")[2], repr(text), f"printable, without {SEPARATOR}")
    return f"{key}={text}"


def text_of(form: Form) -> str:
    """The declaration of a form (python/src/declared_call.hpp)."""
    items = [f"phase={form.phase}", f"variant={form.variant}"]
    items += [_item(f"setting.{name}", value) for name, value in form.settings]
    items += [_item(f"option.{name}", value) for name, value in form.options]
    items += [f"tensor={name}" for name in form.read + form.written]
    items += [f"result={name}" for name in form.results]
    return SEPARATOR.join(items)


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


def _pairs_apart(name: str, value: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """A tuple that is given for a state: a state and its key sum."""
    if name not in _KEY_SUM:
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
                pairs = _pairs_apart(twin, given) if type(given) is tuple else ((twin, given),)
                for name, value in pairs:
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


def execute(request: Request) -> list[Any]:
    """Runs a call. Its results, then the arrays of the caller's that it wrote."""
    kind = type(request.read[0])
    if kind not in _runners:
        _runners[kind] = _runner_of(kind)
    return _runners[kind](request) + request.written


def execute_by_name(request: Request) -> dict[str, Any]:
    """The same, by name."""
    form = request.form
    return dict(zip(form.results + form.written, execute(request), strict=True))


@functools.cache
def _places(form: Form) -> tuple[int, int | None, int | None]:
    """Where output, final state and key sum are in what execute() returns."""
    names = form.results + form.written
    state, key_sum = (
        names.index(name) if name in names else None for name in ("final_state", "final_key_sum")
    )
    return names.index("out"), state, key_sum


def run(
    phase: str,
    variant: str,
    inputs: tuple[tuple[str, Any], ...],
    settings: tuple[tuple[str, Any], ...],
    keywords: Mapping[str, object],
) -> tuple[Any, Any]:
    """``(o, final_state)``; ``final_state`` is ``None`` where nobody asked for it."""
    request = request_of(phase, variant, inputs, settings, keywords)
    made = execute(request)
    out, state, key_sum = _places(request.form)
    if state is None:
        return made[out], None
    return made[out], made[state] if key_sum is None else (made[state], made[key_sum])
