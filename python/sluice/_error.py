"""The one exception type of the package."""

from __future__ import annotations


class Error(Exception):
    """A refused call. Raised before anything is written.

    Attributes:
        code: what kind of refusal: ``missing``, ``surplus`` (an argument that nothing asks for, a
            misspelt name, say), ``shape``, ``dtype``, ``device``, ``stride``, ``alias``, ``value``,
            ``unsupported``, ``memory`` or ``file``.
        argument: the name of the refused argument.
        value: the offending value, printed.
        accepted: what would have been accepted.
    """

    def __init__(self, code: str, argument: str, value: str, accepted: str) -> None:
        super().__init__(f"{argument}: got {value}; accepted: {accepted}")
        self.code = code
        self.argument = argument
        self.value = value
        self.accepted = accepted

    def __reduce__(self) -> tuple:
        return Error, (self.code, self.argument, self.value, self.accepted)
