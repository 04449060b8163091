"""Reads what may not be installed, not be readable, or not be answered in time."""

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
"""How long a cluster may take to answer: a user waits."""
VERSIONS: Final = {
    "karpenter.sh": ("v1", "v1beta1"),
    "kueue.x-k8s.io": ("v1", "v1beta2", "v1beta1"),
}
"""By group, the versions that are read, the newest first; the fields that are used are the same in all."""


def groups_of(apis: Json) -> frozenset[str]:
    """The API groups and versions, as `batch/v1`, in what `/apis` answers."""
    return frozenset(one["groupVersion"] for group in apis["groups"] for one in group["versions"])


def version_of(group: str, served: Collection[str]) -> str:
    """The newest known version among those that a cluster serves: `karpenter.sh/v1`; empty where there is none."""
    return next((name for one in VERSIONS[group] if (name := f"{group}/{one}") in served), "")


def served(client: Client, group: str) -> str:
    """The version of an API group to use; empty where it is not installed. Raises EngineError."""
    found = unless_absent(lambda: client.call("GET", f"/apis/{group}"))
    return version_of(group, {one["groupVersion"] for one in (found or {}).get("versions", ())})


def items(question: Callable[[], Json]) -> list[Any] | None:
    """The objects of a list; None where they may not be listed. Raises EngineError."""
    found = unless_absent(question)
    return None if found is None else list(found["items"])


def unless_absent(question: Callable[[], Json]) -> Json | None:
    """The answer; None where what is asked for is not there, or may not be read. Raises EngineError."""
    try:
        return question()
    except Refused as error:
        if error.status in (403, 404):
            return None
        raise


def at_once(questions: Mapping[K, Callable[[], V]]) -> dict[K, V | WindlassError]:
    """Ask all at the same time: answers and errors. A question without an answer within `ANSWER_SECONDS` is absent, and
    its thread is left behind."""
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
