"""What the compat modules share: standing in for a function, calling the original, and the log."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch

from .._call import execute_by_name, request_of
from .._error import Error

_logger = logging.getLogger("sluice.compat")
_WHOLE_CALL = "call"  # the argument of errors that are about no single one


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
        self._log: Counter[Ran] = Counter()

    def stands_for(self, home: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates a stand-in for the function of the same name in the module ``home``."""

        def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
            name = body.__name__

            @functools.wraps(body)
            def stand_in(*args: Any, **kwargs: Any) -> Any:
                try:
                    _decline_gradients(args, kwargs)
                    result, kernel = body(*args, **kwargs)
                except Error as error:
                    return self._call_original(name, error, args, kwargs)
                self._note(Ran(name, kernel, ""))
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

    def log(self) -> dict[Ran, int]:
        """How often what ran, and why not ours, since the start or ``clear_log``. Calls inside
        compiled graphs are not counted.
        """
        return dict(self._log)

    def clear_log(self) -> None:
        """Forgets the log."""
        self._log.clear()

    def _note(self, ran: Ran) -> None:
        if torch.compiler.is_compiling():
            return
        self._log[ran] += 1
        if _logger.isEnabledFor(logging.DEBUG):
            _logger.debug("%s: %s%s", ran.function, ran.kernel, ran.reason and f" ({ran.reason})")

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
        self._note(Ran(name, "original", reason))
        if self._registry is None or not self._registry.dispatches(name):
            return original(*args, **kwargs)
        with self._registry.passing_over(name):
            return original(*args, **kwargs)


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
    if not torch.is_grad_enabled():
        return
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise declined("a gradient is asked for")


def decline_if(reasons: dict[str, bool]) -> None:
    """Leaves the call to the original for the first reason that holds."""
    for reason, holds in reasons.items():
        if holds:
            raise declined(reason)


def decline_unknown(kwargs: dict[str, Any], ignored: Iterable[str] = ()) -> None:
    """Leaves the call to the original where it has keyword arguments that nothing here reads."""
    for name, value in kwargs.items():
        if name not in ignored and value is not None:
            raise declined(f"the keyword argument {name}")


def call(
    phase: str,
    variant: str,
    inputs: Mapping[str, Any],
    settings: Mapping[str, Any],
    **keywords: Any,
) -> tuple[dict[str, Any], str]:
    """Runs a call: its results by name, and the kernel that made them."""
    request = request_of(
        phase, variant, tuple(inputs.items()), tuple(settings.items()), keywords, report=True
    )
    made = execute_by_name(request)
    return made, str(made["ran"])
