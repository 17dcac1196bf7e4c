"""From keyword arguments to a call of the library.

What a call's tensors do not say (variant, settings, options, which tensors there are) is declared
to the library once per form, as text, and is a number from then on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ._arrays import (
    JAX,
    framework_of,
    is_masked,
    is_traced_by_jax,
    module_of,
    refusal_of,
)
from ._error import Error
from ._native import checked, declare, native, what_ran

# Keyword arguments by what they are.
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
# Those that stand for two arguments each.
_TWICE = {"state": ("initial_state", "final_state"), "slots": ("read_slots", "write_slots")}
TENSORS = READ | WRITTEN | set(_TWICE)
KEYWORDS = TENSORS | OPTIONS | {"scale", "output_final_state", "stream"}

# Of a declaration's items. All of it is one line: torch.compile writes it into comments of code.
SEPARATOR = ";"

# The last result of a call that is to say what ran: the library is asked afterwards.
_RAN = "ran"

# A flag that is set, as the library reads a setting's text.
_TRUE = ("true", "1")

# A normalised state comes as (state, key sum).
_KEY_SUM = {"initial_state": "initial_key_sum", "final_state": "final_key_sum"}


class Operation:
    """The names of what a variant takes, in the order in which its functions pass them on.

    ``views``: of inputs and results that do not come as the variant has them, how they are to be
    taken, as their declared names end (python/src/declared_call.hpp): without a view of PyTorch's
    each.
    """

    # No tuple: calls are looked up by it, which is quickest by identity.
    def __init__(
        self,
        variant: str,
        inputs: tuple[str, ...],
        settings: tuple[str, ...] = (),
        views: Mapping[str, str] | None = None,
    ) -> None:
        self.variant, self.inputs, self.settings = variant, inputs, settings
        self.views = views or {}

    def declared_name(self, name: str) -> str:
        """The name that the library knows a tensor or result by."""
        return name + self.views.get(name, "")


class Form(NamedTuple):
    """All of a call but its tensors, scale and stream: what is declared."""

    phase: str
    variant: str
    # Values as text: True, 1 and 1.0 are equal, and not the same argument.
    settings: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str], ...]
    read: tuple[str, ...]
    written: tuple[str, ...]
    results: tuple[str, ...]


class Request(NamedTuple):
    """A call, taken apart and sorted."""

    form: Form
    read: list[Any]
    written: list[Any]
    scale: float | None
    stream: int | None


def _with_text(name: str, value: Any) -> tuple[str, str]:
    """A setting or option as it is declared."""
    text = f"{value}"  # str() of a number that varies is nothing that torch.compile traces
    if text in ("True", "False"):  # Python's or NumPy's
        text = text.lower()
    if SEPARATOR in text or not text.isprintable():
        raise Error("value", name, repr(text), f"printable, without {SEPARATOR}")
    return name, text


def text_of(form: Form) -> str:
    """The declaration of a form (python/src/declared_call.hpp)."""
    items = [f"phase={form.phase}", f"variant={form.variant}"]
    items += [f"setting.{name}={value}" for name, value in form.settings]
    items += [f"option.{name}={value}" for name, value in form.options]
    items += [f"tensor={name}" for name in form.read + form.written]
    items += [f"result={name}" for name in form.results if name != _RAN]
    return SEPARATOR.join(items)


@functools.cache
def number_of(form: Form) -> int:
    """The number that a form is declared under."""
    return declare(text_of(form))


def _apart(count: int, returned: Any) -> list[Any]:
    """What the library's call returned, as a list of that many results."""
    if count < 2:
        return [returned] if count else []
    item = native().item
    return [item(returned, i) for i in range(count)]


def results_of(names: tuple[str, ...], returned: Any) -> list[Any]:
    """A form's results, from what the library's call just returned."""
    returned = checked(returned)
    if _RAN in names:
        return [*_apart(len(names) - 1, returned), what_ran()]
    return _apart(len(names), returned)


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


def _number_from(kind: type, name: str, value: Any, accepted: str) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise Error("value", name, repr(value), accepted) from None


def _is_set(name: str, value: Any) -> bool:
    try:
        if value in (True, False):  # Python's or NumPy's
            return bool(value)
    except (TypeError, ValueError, RuntimeError):  # an array
        pass
    raise Error("value", name, repr(value), "True or False")


# All of a call but its tensors, scale and stream, as its arguments come: quick to make and to look
# up. Phase, operation, which inputs are given (a bit each, the last one's lowest), settings, their
# types and whether to report what ran; then the names of other tensors, (option, value, type), and
# "output_final_state".
Key = tuple[Any, ...]
_WANTS_STATE = "output_final_state"


def taken_apart(
    phase: str,
    operation: Operation,
    inputs: Sequence[Any],
    settings: tuple[Any, ...],
    keywords: Mapping[str, Any],
    report: bool,
) -> tuple[Key, list[Any], float | None, int | None]:
    """The arguments of a call as its key and the rest. ``None`` means not given."""
    tensors, given = [], 0
    for tensor in inputs:
        given += given
        if tensor is not None:
            given += 1
            tensors.append(tensor)
    if not tensors:
        accepted = f"the inputs of {operation.variant}"
        raise Error("missing", operation.inputs[0], "nothing", accepted)
    types = settings and tuple(map(type, settings))
    key: list[Any] = [phase, operation, given, settings, types, report]
    scale = stream = None
    for keyword, value in keywords.items():
        if value is None:
            continue
        if keyword in TENSORS:
            if type(value) is tuple:
                for twin in _TWICE.get(keyword, (keyword,)):
                    for name, tensor in _pairs_apart(twin, value):
                        key.append(name)
                        tensors.append(tensor)
            else:
                key.append(keyword)
                tensors.append(value)
        elif keyword in OPTIONS:
            key.append((keyword, value, type(value)))
        elif keyword == "scale":
            scale = _number_from(float, keyword, value, "a number")
        elif keyword == _WANTS_STATE:
            if value is True or _is_set(keyword, value):
                key.append(_WANTS_STATE)
        elif keyword == "stream":
            stream = _number_from(int, keyword, value, "a stream's handle, a whole number")
        else:
            _refuse_keyword(keyword, operation.variant, value)
    return tuple(key), tensors, scale, stream


def _names_in(key: Key) -> tuple[str, ...]:
    """The tensors' names, one a tensor."""
    _, operation, given, _, _, _, *items = key
    inputs = [name for i, name in enumerate(reversed(operation.inputs)) if given >> i & 1]
    others = [item for item in items if type(item) is str and item != _WANTS_STATE]
    return tuple(inputs[::-1] + others)


def _refuse_twice(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            pairs = [pair for pair, twins in _TWICE.items() if name in twins]
            given = f"two arrays ({', '.join([name, *pairs])})"
            raise Error("surplus", name, given, "one")


def _form_of(key: Key) -> Form:
    phase, operation, _, settings, _, report, *items = key
    names = [twin for name in _names_in(key) for twin in _TWICE.get(name, (name,))]
    _refuse_twice(names)
    if "write_slots" in names and "final_state" not in names and _WANTS_STATE in items:
        accepted = "the states that write_slots names slots of: a fresh one has none"
        raise Error("missing", "final_state", "nothing", accepted)
    read = tuple([name for name in names if name not in WRITTEN])
    written = tuple([name for name in names if name in WRITTEN])
    pairs = zip(operation.settings, settings, strict=True)
    chosen = tuple([_with_text(*pair) for pair in pairs if pair[1] is not None])
    options = tuple([_with_text(*item[:2]) for item in items if type(item) is tuple])
    results = [] if "out" in written else ["out"]
    if _WANTS_STATE in items and "final_state" not in written:
        results.append("final_state")
        if dict(chosen).get("normalize", "").lower() in _TRUE:
            results.append("final_key_sum")
    if report:
        results.append(_RAN)
    return Form(phase, operation.variant, chosen, options, read, written, tuple(results))


def _view(tensor: Any, how: str) -> Any:
    """A tensor of PyTorch's as the library would take it."""
    for step in how.split(":")[1:]:
        tensor = tensor.unsqueeze(1) if step == "token" else tensor.select(-1, 0)
    return tensor


def request_of(key: Key, tensors: list[Any], scale: float | None, stream: int | None) -> Request:
    """What ``taken_apart`` returned, sorted, and as the variant has it."""
    read: list[Any] = []
    written: list[Any] = []
    views = key[1].views
    for name, tensor in zip(_names_in(key), tensors, strict=True):
        value = _view(tensor, views[name]) if name in views else tensor
        for twin in _TWICE.get(name, (name,)):
            (written if twin in WRITTEN else read).append(value)
    return Request(_form_of(key), read, written, scale, stream)


def _is_jaxs(array: Any) -> bool:
    return module_of(type(array)) in JAX


def refuse_written(request: Request, is_refused: Callable[[Any], bool], accepted: str) -> None:
    """Refuses a call that would write such an array, by the argument's name."""
    for name, array in zip(request.form.written, request.written, strict=True):
        if is_refused(array):
            in_place = name == "final_state" and any(array is x for x in request.read)
            given = "a JAX array" if _is_jaxs(array) else type(array).__name__
            raise Error("value", "state" if in_place else name, given, accepted)


def refuse_immutable(request: Request) -> None:
    """No JAX array is written, whatever the call's other arrays are."""
    refuse_written(request, _is_jaxs, "an array that can be written: JAX arrays are immutable")


def run_arrays(request: Request) -> list[Any]:
    """Arrays of other frameworks: the library says what to allocate, then runs into it."""
    form = request.form
    if any(map(is_traced_by_jax, request.read)):
        return _jax_runner()(request)
    refuse_immutable(request)
    torch = sys.modules.get("torch")
    if torch is not None and any(
        isinstance(x, torch.Tensor) for x in request.read + request.written
    ):
        from . import _torch

        _torch.refuse_tensors(request)
    like = request.read[0]
    kind: type = type(like)
    framework = framework_of(kind)
    if framework is None:
        given = f"{kind.__module__}.{kind.__qualname__}"
        raise Error("value", form.read[0], given, "an array of NumPy, PyTorch, CuPy or JAX")
    read = [framework.lend(n, x, False) for n, x in zip(form.read, request.read, strict=True)]
    written = [
        framework.lend(n, x, True) for n, x in zip(form.written, request.written, strict=True)
    ]
    arrays = [array for array, _ in read + written]
    lent = form._replace(read=tuple(n for _, n in read), written=tuple(n for _, n in written))
    try:
        described = native().outputs(number_of(lent), *arrays)
    except Exception as error:
        raise refusal_of(form.read + form.written, arrays, error) from None
    described = checked(described)
    results, names = [], []
    for i in range(0, len(described), 3):
        name, dtype, shape = described[i], str(described[i + 1]), tuple(described[i + 2])
        result = framework.empty(shape, dtype, like)
        array, declared = framework.lend(name, result, True)
        results.append(result)
        arrays.append(array)
        names.append(declared)
    report = tuple(name for name in form.results if name == _RAN)
    lent = lent._replace(written=lent.written + tuple(names), results=report)
    stream = framework.stream(like) if request.stream is None else request.stream
    returned = native().call(number_of(lent), request.scale, stream, *arrays)
    return [framework.finish(x, like) for x in results] + results_of(report, returned)


def _jax_runner() -> Callable[[Request], list[Any]]:
    from . import _jax

    return _jax.run


_runners: dict[type, Callable[[Request], list[Any]]] = {}


class Direct(NamedTuple):
    """Of array types that cross as they are."""

    # Whether a call that has these may go straight to the library: nobody else is to see it.
    accepts: Callable[[list[Any]], bool]
    # Tells their framework of those that the library has written.
    note_written: Callable[[list[Any]], None]


_direct: dict[type, Direct] = {}


def _runner_of(kind: type) -> Callable[[Request], list[Any]]:
    """What runs calls whose arrays are of this type. Imports no framework that is not in use."""
    if any(base.__module__ == "torch" for base in kind.__mro__):
        from . import _torch

        if kind in _torch.PLAIN:
            _direct[kind] = Direct(_torch.is_direct, _torch.note_written)
        return _torch.run
    if module_of(kind) in JAX:
        return _jax_runner()
    return run_arrays


def execute(request: Request) -> list[Any]:
    """Runs a call. Its results, then the arrays of the caller's that it wrote."""
    for name, array in zip(
        request.form.read + request.form.written, request.read + request.written, strict=True
    ):
        if is_masked(array):
            raise Error("value", name, "a masked array", "one without a mask (filled())")
    kind = type(request.read[0])
    if kind not in _runners:
        _runners[kind] = _runner_of(kind)
    return _runners[kind](request) + request.written


class Places(NamedTuple):
    """Where a call's results are among its results and then its tensors."""

    out: int
    final_state: int | None
    final_key_sum: int | None
    ran: int | None


def _places(names: tuple[str, ...]) -> Places:
    others = (names.index(name) if name in names else None for name in Places._fields[1:])
    return Places(names.index("out"), *others)


class Declared(NamedTuple):
    """A call whose tensors cross in the order of its key, each once."""

    number: int
    results: int  # that cross
    places: Places  # in all results and then the tensors
    written: tuple[int, ...]  # which of the tensors


@functools.cache
def declared(key: Key) -> Declared:
    form, names = _form_of(key), _names_in(key)
    name_of = key[1].declared_name
    read, results = tuple(map(name_of, names)), tuple(map(name_of, form.results))
    number = number_of(form._replace(read=read, written=(), results=results))
    places = _places(form.results + tuple("final_state" if n == "state" else n for n in names))
    written = tuple(i for i, n in enumerate(names) if n in WRITTEN or n == "state")
    return Declared(number, len(results) - (places.ran is not None), places, written)


def _known(key: Key) -> Declared | None:
    try:
        return declared(key)
    except TypeError:  # an option that does not hash, a list, say: as text it is refused, or taken
        return None


def _made(
    phase: str,
    operation: Operation,
    inputs: Sequence[Any],
    settings: tuple[Any, ...],
    keywords: Mapping[str, object],
    report: bool,
) -> tuple[list[Any], Places]:
    """Runs a call."""
    key, tensors, scale, stream = taken_apart(phase, operation, inputs, settings, keywords, report)
    direct = _direct.get(type(tensors[0]))
    known = _known(key) if direct is not None and direct.accepts(tensors) else None
    if direct is not None and known is not None:
        number, count, places, written = known
        try:
            returned = native().call(number, scale, stream, *tensors)
        except Exception as error:
            raise refusal_of(_names_in(key), tensors, error) from None
        returned = checked(returned)
        if written:
            direct.note_written([tensors[i] for i in written])
        made = [returned] if count == 1 else _apart(count, returned)
        if places.ran is not None:
            made.append(what_ran())
        return made + tensors, places
    request = request_of(key, tensors, scale, stream)
    made, places = execute(request), _places(request.form.results + request.form.written)
    if "out" in operation.views:
        made[places.out] = made[places.out].squeeze(1)
    return made, places


def run(
    phase: str,
    operation: Operation,
    inputs: Sequence[Any],
    settings: tuple[Any, ...],
    keywords: Mapping[str, object],
) -> tuple[Any, Any]:
    """``(o, final_state)``; ``final_state`` is ``None`` where nobody asked for it."""
    made, (out, state, key_sum, _) = _made(phase, operation, inputs, settings, keywords, False)
    if state is None:
        return made[out], None
    return made[out], made[state] if key_sum is None else (made[state], made[key_sum])


def run_reporting(
    phase: str,
    operation: Operation,
    inputs: Sequence[Any],
    settings: tuple[Any, ...],
    keywords: Mapping[str, object],
) -> tuple[Any, Any, str]:
    """The same, and what ran: back end, kernel and precision."""
    made, (out, state, key_sum, ran) = _made(phase, operation, inputs, settings, keywords, True)
    assert ran is not None  # it was asked for
    final = None if state is None else made[state]
    return made[out], final if key_sum is None else (final, made[key_sum]), made[ran]
