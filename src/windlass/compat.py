"""Names of newer Python versions, for every version and package that Windlass supports. Python 3.9."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import override
else:
    Method = TypeVar("Method")

    def override(method: Method) -> Method:
        """Returns the method; type checkers report a method that overrides none (PEP 698)."""
        return method


__all__ = ["override"]
