"""What the compat modules share: standing in for a function, calling the original, and the log."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch

from .._call import Operation, run_reporting
from .._error import Error
from .._torch import is_traced
from ._tolerances import TOO_COARSE

_logger = logging.getLogger("sluice.compat")
_WHOLE_CALL = "call"  # the argument of errors that are about no single one
_FEW_TOKENS = 64
_TOKEN_BY_TOKEN = f"over {_FEW_TOKENS} tokens without a tensor-core kernel (allow(slow=True))"
# Of a function, in the log: reasons name shapes, of which a program may have any number.
MOST_REASONS = 64
OTHER_REASONS = f"other reasons than the first {MOST_REASONS}: the logger sluice.compat has them"

# Found once, as in _torch.
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled


class Ran(NamedTuple):
    """What ran for calls of a function."""

    function: str
    kernel: str
    """Back end, kernel and precision, or "original"."""
    reason: str
    """Why the original ran; empty otherwise."""


class Registry(Protocol):
    """Where a package itself hands a function's calls to backends."""

    def add(self, name: str, original: Callable[..., Any], ours: Callable[..., Any]) -> bool:
        """Makes ``ours`` the first choice; False where the package does not choose."""

    def clear(self) -> None:
        """Leaves every function to the package."""

    def dispatches(self, name: str) -> bool:
        """Whether the package hands us the function's calls."""

    def passing_over(self, name: str) -> AbstractContextManager[None]:
        """Meanwhile ours is no choice."""


class Package:
    """The functions of one package that this library stands in for."""

    def __init__(self, name: str, registry: Registry | None = None) -> None:
        self._name = name
        self._registry = registry
        self._homes: dict[str, str] = {}
        self._ours: dict[str, Callable[..., Any]] = {}
        self._originals: dict[str, Callable[..., Any]] = {}
        self._log: Counter[tuple[str, str, str]] = Counter()  # Ran's fields: quicker to make
        self._reasons: dict[str, set[str]] = {}
        self._allows_coarse = False
        self._allows_slow = False

    def stands_for(self, home: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates a stand-in for the function of the same name in the module ``home``."""

        def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
            name = body.__name__

            @functools.wraps(body)
            def stand_in(*args: Any, **kwargs: Any) -> Any:
                try:
                    if _is_grad_enabled():
                        _decline_gradients(args, kwargs)
                    result, kernel = body(*args, **kwargs)
                except Error as error:
                    return self._call_original(name, error, args, kwargs)
                self._note(name, kernel)
                return result

            self._homes[name] = home
            self._ours[name] = stand_in
            return stand_in

        return decorate

    def names(self) -> list[str]:
        """The functions that this library stands in for."""
        return list(self._ours)

    def install(self, names: Iterable[str] | None = None) -> list[str]:
        """Makes a program that uses the package use these functions: through the package's
        registry of backends where it has one for the function, else by replacing the function
        wherever a loaded module holds it. Returns their names. ``names``: only these.
        """
        done = []
        for name in self._ours if names is None else names:
            original = self._original(name)
            if original is not None:
                ours = self._ours[name]
                if self._registry is None or not self._registry.add(name, original, ours):
                    _replace(original, ours)
                done.append(name)
        if not done:
            raise Error("missing", self._name, "no such package", f"{self._name}, installed")
        return done

    def uninstall(self) -> None:
        """Puts the originals back."""
        if self._registry is not None:
            self._registry.clear()
        for name, original in self._originals.items():
            _replace(self._ours[name], original)

    def allow(self, *, coarse: bool | None = None, slow: bool | None = None) -> None:
        """Which calls on a GPU run here although the original does them better; at first none.
        ``None`` leaves it as it is.

        Args:
            coarse: those whose products, of operands rounded to bfloat16, miss the tolerance of the
                package's own tests.
            slow: those of more than 64 tokens that have no tensor-core kernel here and would go
                token by token. (Without the package they do.)
        """
        self._allows_coarse = self._allows_coarse if coarse is None else coarse
        self._allows_slow = self._allows_slow if slow is None else slow

    def decline_coarse(self, name: str, values: torch.Tensor) -> None:
        """Leaves a call that is too coarse to the original."""
        reason = TOO_COARSE.get((name, values.dtype))
        if reason is not None and values.is_cuda and not self._allows_coarse:
            raise declined(reason)

    def call(
        self,
        phase: str,
        operation: Operation,
        inputs: tuple[Any, ...],
        settings: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> tuple[Any, Any, str]:
        """Runs a call: its output, its final state (normalised: with the key sum) and what ran."""
        if phase == "decode" or not self._leaves_slow(inputs[0]):
            return run_reporting(phase, operation, inputs, settings, keywords)
        # On a GPU only kernels with tensor cores are chunked: where there is none, it is refused.
        keywords = {**keywords, "algorithm": "chunked"}
        try:
            return run_reporting(phase, operation, inputs, settings, keywords)
        except Error as error:
            if error.argument != "backend":
                raise
            raise declined(f"{_TOKEN_BY_TOKEN}: {error.accepted}") from None

    def _leaves_slow(self, x: Any) -> bool:
        """Whether the original is to run the call if this library would go token by token."""
        return (
            x.is_cuda
            and x.shape[1] > _FEW_TOKENS
            and not self._allows_slow
            and not is_traced(x)  # there it would be an error
            and _is_installed(self._name)
        )

    def log(self) -> dict[Ran, int]:
        """How often what ran, and why not ours, since the start or ``clear_log``. Calls inside
        compiled graphs are not counted. Of a function it has the first 64 reasons why the original
        ran; calls for others are counted together.
        """
        return {Ran(*key): count for key, count in self._log.items()}

    def clear_log(self) -> None:
        """Forgets the log."""
        self._log.clear()
        self._reasons.clear()

    def _note(self, name: str, kernel: str, reason: str = "") -> None:
        if _is_compiling():
            return
        self._log[name, kernel, reason and self._reason_in_log(name, reason)] += 1
        if _logger.isEnabledFor(logging.DEBUG):
            _logger.debug("%s: %s%s", name, kernel, reason and f" ({reason})")

    def _reason_in_log(self, name: str, reason: str) -> str:
        known = self._reasons.setdefault(name, set())
        if reason not in known:
            if len(known) == MOST_REASONS:
                return OTHER_REASONS
            known.add(reason)
        return reason

    def _original(self, name: str) -> Callable[..., Any] | None:
        if name not in self._originals:
            try:
                found = getattr(importlib.import_module(self._homes[name]), name, None)
            except ImportError:
                found = None
            if found is None:
                return None
            self._originals[name] = found
        return self._originals[name]

    def _call_original(
        self, name: str, error: Error, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        original = self._original(name)
        if original is None:
            raise error
        reason = error.value if error.argument == _WHOLE_CALL else str(error)
        self._note(name, "original", reason)
        if self._registry is None or not self._registry.dispatches(name):
            return original(*args, **kwargs)
        with self._registry.passing_over(name):
            return original(*args, **kwargs)


@functools.cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _replace(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for module in list(sys.modules.values()):
        # Without getattr(): modules that load lazily would.
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old and not _is_ours(module):
                setattr(module, name, new)


def _is_ours(module: Any) -> bool:
    return str(getattr(module, "__name__", "")).partition(".")[0] == __name__.partition(".")[0]


def declined(reason: str) -> Error:
    """A call that only the original takes."""
    return Error("unsupported", _WHOLE_CALL, reason, "what this library computes, or the original")


def _decline_gradients(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise declined("a gradient is asked for")


def decline_unknown(kwargs: dict[str, Any], ignored: Iterable[str] = ()) -> None:
    """Leaves the call to the original where it has keyword arguments that nothing here reads."""
    for name, value in kwargs.items():
        if name not in ignored and value is not None:
            raise declined(f"the keyword argument {name}")
