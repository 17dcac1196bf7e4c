"""FLA's backend registry (``fla.backends``, since 0.6): where FLA dispatches a function, ours runs
as one of its backends, before the others.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


def _backends() -> ModuleType | None:
    try:
        return importlib.import_module("fla.backends")
    except ImportError:
        return None


def _is_dispatched(function: Any, backends: ModuleType) -> bool:
    """Whether a wrapper of the registry is around the function; FLA can be told to make none."""
    while function is not None:
        if getattr(function, "__globals__", None) is vars(backends):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


class FlaRegistry:
    """Our functions as backends of FLA's. FLA has no way to take a backend away: uninstalled ones
    say that they are not enabled.
    """

    def __init__(self) -> None:
        self._registered: set[tuple[ModuleType, str]] = set()
        self._enabled: set[str] = set()
        self._passed_over = threading.local()

    def add(self, name: str, original: Callable[..., Any], ours: Callable[..., Any]) -> bool:
        """Makes ``ours`` the first choice; False where FLA does not dispatch the function."""
        backends = _backends()
        if backends is None or not _is_dispatched(original, backends):
            return False
        if (backends, name) not in self._registered:
            backend = self._backend(backends.BaseBackend, name, ours)
            try:
                backends.register(original)(backend)
            except KeyError:  # dispatched by the name of its operation, its module's
                operation = original.__module__.removeprefix("fla.ops.").rpartition(".")[0]
                backends.register(operation)(backend)
            self._registered.add((backends, name))
        self._enabled.add(name)
        return True

    def clear(self) -> None:
        """Leaves every function to FLA."""
        self._enabled.clear()

    def dispatches(self, name: str) -> bool:
        """Whether FLA hands us the function's calls."""
        return name in self._enabled

    @contextlib.contextmanager
    def passing_over(self, name: str) -> Iterator[None]:
        """Meanwhile, on this thread, FLA chooses for ``name`` among its other backends."""
        others: frozenset[str] = getattr(self._passed_over, "names", frozenset())
        self._passed_over.names = others | {name}
        try:
            yield
        finally:
            self._passed_over.names = others

    def _is_enabled(self, name: str) -> bool:
        return name in self._enabled and name not in getattr(self._passed_over, "names", ())

    def _backend(self, base: type, name: str, ours: Callable[..., Any]) -> type:
        registry = self

        class SluiceBackend(base):  # type: ignore[misc]
            backend_type = "sluice"
            priority = 0

            def is_enabled(self) -> bool:
                return registry._is_enabled(name)

        # An operation's backend serves the functions that it has methods for.
        setattr(SluiceBackend, name, staticmethod(ours))
        return SluiceBackend
