"""See, follow, end and remove runs on a cluster that another machine started: what `--on` does for the commands.

A run of which this machine has the record is that of every other command; all that is said here is about the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from windlass.actions import runs
from windlass.actions.clusters import connect
from windlass.actions.edge import Edge
from windlass.actions.targets import find_target
from windlass.errors import NoSuchRun, UsageError, WindlassError
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.diagnose.observations import PodSeen
    from windlass.engines.kubernetes.client import Client
    from windlass.engines.kubernetes.elsewhere import Seen


@dataclass(frozen=True, slots=True)
class There:
    """A run on a cluster, and whether this machine keeps it."""

    seen: Seen
    target: str
    is_ours: bool
    pods: tuple[PodSeen, ...] = ()
    """Those of its newest attempt; only where one run is looked at."""

    def to_json(self, *, whole: bool = False) -> dict[str, Any]:
        """As `ps --on` prints it, or with its pods as `status --on` does."""
        pods = {"pods": [asdict(pod) for pod in self.pods]} if whole else {}
        kept = "here" if self.is_ours else "elsewhere"
        return {**asdict(self.seen), "phase": self.seen.phase.value, "target": self.target, "kept": kept, **pods}


@contextlib.contextmanager
def connected(on: str, edge: Edge) -> Iterator[Client]:
    """A client for the target called `on`. Raises UsageError for one that is no cluster."""
    from windlass.spec.targets import KubernetesTarget

    target = find_target(on, edge)
    if not isinstance(target, KubernetesTarget):
        raise UsageError(f"target {on} is of kind {target.kind}", "--on names a cluster; what this machine knows of is "
                         "shown without it")  # fmt: skip
    with contextlib.closing(connect(target, edge)) as client:
        yield client


def there(on: str, store: Store, edge: Edge, *, everywhere: bool = False) -> list[There]:
    """Runs in the target's namespace, or all of its cluster, the newest first. Raises UsageError, EngineError."""
    from windlass.engines.kubernetes import elsewhere

    with connected(on, edge) as client:
        found = elsewhere.everywhere(client, edge.now()) if everywhere else elsewhere.look(client).runs(edge.now())
    return known(found, on, store)


def known(found: list[Seen], on: str, store: Store) -> list[There]:
    """The same, with what the record says of those that this machine keeps: it knows more than their objects show."""
    return [_known(seen, on, store) for seen in found]


def _known(seen: Seen, on: str, store: Store) -> There:
    try:
        status = store.status(seen.id)
    except NoSuchRun:
        return There(seen, on, is_ours=False)
    if not status.phase.is_terminal:
        with contextlib.suppress(WindlassError):  # one that cannot be looked at now must not hide the others
            status = runs.status(seen.id, store)
    return There(replace(seen, phase=status.phase, waits_for=status.waits_for or ""), on, is_ours=True)


def find(run: str | None, on: str, store: Store, edge: Edge) -> tuple[str, bool]:
    """The id of the run on the target that `run` stands for, and whether this machine keeps it.

    The newest there without one. Raises NoSuchRun, UsageError, EngineError.
    """
    from windlass.engines.kubernetes import elsewhere

    with connected(on, edge) as client:
        run_id = elsewhere.find(client, run, on)
    try:
        store.status(run_id)
    except NoSuchRun:
        return run_id, False
    return run_id, True


def one(run_id: str, on: str, edge: Edge) -> There:
    """A run that another machine keeps, with its pods. Raises NoSuchRun, UsageError, EngineError."""
    from windlass.engines.kubernetes import elsewhere

    with connected(on, edge) as client:
        seen = elsewhere.one(client, run_id)
        return There(seen, on, is_ours=False, pods=elsewhere.pods(client, seen))
