"""Recorded AWS responses for finders, for objects that no emulator supports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finders import FINDERS
from windlass.clusters.audit.report import FoundObject
from windlass.clusters.audit.scope import Scope
from windlass.clusters.aws import AwsError

T = TypeVar("T")
R = TypeVar("R")


class Recorded(FinderCalls):
    """Responses by `CLIENT.operation`: a list for a listing, a dictionary for a single call, an exception to raise."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers

    def _answer(self, service: str, operation: str) -> Any:
        answer = self._answers.get(f"{service}.{operation}", [])
        if isinstance(answer, AwsError):
            raise answer
        return answer

    def items(self, service: str, operation: str, key: str, **parameters: Any) -> Iterator[Any]:
        """Yields the items; those of a job without a status are in progress."""
        wanted = parameters.get("StatusEquals")
        for one in self._answer(service, operation):
            status = next((one[key] for key in one if key.endswith("JobStatus")), "InProgress")
            if wanted in (None, status):
                yield one

    def get(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        return dict(self._answer(service, operation) or {})

    def tags(self, service: str, operation: str, key: str, **parameters: Any) -> dict[str, str]:
        return dict(self._answer(service, operation) or {})

    def each(self, items: Iterable[T], inspect: Callable[[T], Iterable[R]]) -> Iterator[R]:
        for item in items:
            yield from inspect(item)


def found(kind: str, scope: Scope, answers: Mapping[str, Any], service: str = "") -> list[FoundObject]:
    """Returns the objects that the finder of a kind finds in recorded responses."""
    [finder] = [one for one in FINDERS if one.kind == kind and service in ("", one.service)]
    return list(finder.find(Recorded(answers), scope))
