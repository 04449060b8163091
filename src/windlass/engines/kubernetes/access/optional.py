"""Requests for resources that may not be installed, may not be readable, or may not be returned in time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.errors import WindlassError

K = TypeVar("K")
V = TypeVar("V")

Json = Mapping[str, Any]
ANSWER_SECONDS: Final = 3.0
"""Seconds that a cluster may take to respond while a user waits."""
VERSIONS: Final = {
    "karpenter.sh": ("v1", "v1beta1"),
    "kueue.x-k8s.io": ("v1", "v1beta2", "v1beta1"),
}
"""Supported versions of each API group, newest first; the fields that Windlass uses are the same in all of them."""


def groups_of(apis: Json) -> frozenset[str]:
    """Returns the API groups with versions, such as `batch/v1`, in a response of `/apis`."""
    return frozenset(one["groupVersion"] for group in apis["groups"] for one in group["versions"])


def version_of(group: str, served: Collection[str]) -> str:
    """Returns the newest supported version that a cluster serves, such as `karpenter.sh/v1`; empty if it serves
    none.
    """
    return next((name for one in VERSIONS[group] if (name := f"{group}/{one}") in served), "")


def served(client: Client, group: str) -> str:
    """Returns the version of an API group to use; empty if the group is not installed. Raises EngineError."""
    found = unless_absent(lambda: client.call("GET", f"/apis/{group}"))
    return version_of(group, {one["groupVersion"] for one in (found or {}).get("versions", ())})


def items(question: Callable[[], Json]) -> list[Any] | None:
    """Returns the objects of a list, or None if the user may not list them. Raises EngineError."""
    found = unless_absent(question)
    return None if found is None else list(found["items"])


def unless_absent(question: Callable[[], Json]) -> Json | None:
    """Returns the response, or None if the object does not exist or the user may not read it. Raises EngineError."""
    try:
        return question()
    except Refused as error:
        if error.status in (403, 404):
            return None
        raise


def at_once(questions: Mapping[K, Callable[[], V]]) -> dict[K, V | WindlassError]:
    """Calls all functions in parallel; returns their results or errors by key.

    A call without a result within `ANSWER_SECONDS` is missing in the result, and its thread is abandoned.
    """
    came: queue.SimpleQueue[tuple[K, V | WindlassError]] = queue.SimpleQueue()

    def ask(name: K, question: Callable[[], V]) -> None:
        try:
            came.put((name, question()))
        except WindlassError as error:
            came.put((name, error))

    for name, question in questions.items():
        threading.Thread(target=ask, args=(name, question), name=f"question: {name}", daemon=True).start()
    answers: dict[K, V | WindlassError] = {}
    give_up = time.monotonic() + ANSWER_SECONDS
    while len(answers) < len(questions):
        try:
            name, answer = came.get(timeout=max(0.0, give_up - time.monotonic()))
        except queue.Empty:
            break
        answers[name] = answer
    return answers
