"""See, follow, end and remove runs on a cluster that another machine started: what `--on` does for the commands.

A run of which this machine has the record is that of every other command; all that is said here is about the others.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.actions import runs
from windlass.actions.clusters import connect
from windlass.actions.current import old
from windlass.actions.edge import Edge
from windlass.actions.targets import find_target
from windlass.errors import EngineError, NoSuchRun, UsageError, WindlassError
from windlass.runs.record import Phase, Status
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.diagnose.observations import PodSeen
    from windlass.engines.kubernetes.client import Client
    from windlass.engines.kubernetes.elsewhere import Seen
    from windlass.engines.kubernetes.watched import Watched


@dataclass(frozen=True, slots=True)
class There:
    """A run on a cluster, and whether this machine keeps it."""

    seen: Seen
    target: str
    is_ours: bool
    pods: tuple[PodSeen, ...] = ()
    """Those of its newest attempt; only where one run is looked at."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """What its first node has last told of it; likewise."""

    def to_json(self, *, whole: bool = False) -> dict[str, Any]:
        """As `ps --on` prints it, or with its pods as `status --on` does."""
        more = {"pods": [asdict(pod) for pod in self.pods], "progress": dict(self.progress)} if whole else {}
        kept = "here" if self.is_ours else "elsewhere"
        return {**asdict(self.seen), "phase": self.seen.phase.value, "target": self.target, "kept": kept, **more}


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
    from windlass.engines.kubernetes.client import Unreachable

    with connected(on, edge) as client:
        try:
            found = elsewhere.everywhere(client, edge.now()) if everywhere else elsewhere.look(client).runs(edge.now())
        except Unreachable as error:
            num_here = sum(status.target == on for status in store.statuses(unfinished=True))
            raise EngineError(
                f"cluster {on} does not answer: {error.message}",
                f"windlass ps shows the last known states of the unfinished runs that this machine started there "
                f"({num_here})" if num_here else error.hint,
            ) from error  # fmt: skip
    return known(found, on, store)


@contextlib.contextmanager
def watched(on: str, edge: Edge, run_id: str = "") -> Iterator[Watched]:
    """The runs in the target's namespace, or one, kept up to date by one watch of each kind. Raises as `there`."""
    from windlass.engines.kubernetes.watched import Watched

    with connected(on, edge) as client:
        watching = Watched(client, run_id)
        try:
            yield watching
        finally:
            watching.close()


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
    status = _true(status, seen, store)
    return There(replace(seen, phase=status.phase, waits_for=status.waits_for or ""), on, is_ours=True)


def _true(status: Status, seen: Seen, store: Store) -> Status:
    """The recorded status, with what was seen now where the record may be old."""
    from windlass.engines.kubernetes.snapshot import merged

    found = old(status, store, time.time())
    return status if found is None else merged(status, seen, found[1])[0]


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
        pods = elsewhere.pods(client, seen)
        return There(seen, on, is_ours=False, pods=pods, progress=elsewhere.progress(client, pods))


@contextlib.contextmanager
def logs(run_id: str, on: str, edge: Edge, *, follow: bool = False) -> Iterator[tuple[Path, Callable[[], bool] | None]]:
    """The logs of a run that another machine keeps, in a folder for a while, with `follow` filled on and on.

    Beside it, what tells whether all has come; None without `follow`. Raises UsageError, EngineError.
    """
    from windlass.engines.kubernetes.reading import Reader

    with tempfile.TemporaryDirectory(prefix="windlass-logs-") as folder, connected(on, edge) as client:
        reader = Reader(client, run_id, Path(folder))
        try:
            if not reader.read() and not follow:
                raise EngineError(f"{run_id} has no pod that anything could be read of",
                                  "the logs of runs whose pods are gone are where the run was started")  # fmt: skip
            if follow:
                reader.follow()
            yield Path(folder), reader.is_over if follow else None
        finally:
            reader.close()


def stop(
    run_id: str, on: str, edge: Edge, *, now: bool = False, wait: bool = True,
    told: Callable[[float], None] = lambda _grace: None,
) -> There:  # fmt: skip
    """End a run that another machine keeps; its keeper takes it for a wish. `told` gets the ranks' grace in seconds.

    One that has ended stays as it is. Raises NoSuchRun, UsageError, EngineError.
    """
    from windlass.engines.kubernetes import elsewhere, ending

    with connected(on, edge) as client:
        seen = elsewhere.one(client, run_id)
        if seen.phase not in ending.FINAL:
            grace = 0.0 if now else ending.grace_seconds(client, run_id)
            ending.stop(client, run_id, now=now)
            told(grace)
            seen = ending.wait(client, run_id, grace) if wait else elsewhere.one(client, run_id)
        return There(seen, on, is_ours=False, pods=elsewhere.pods(client, seen))


def require_removable(run_id: str, on: str, edge: Edge) -> None:
    """Raise UsageError for a run that goes on, or with which what it could be resumed from would go."""
    from windlass.engines.kubernetes import elsewhere, ending

    with connected(on, edge) as client:
        seen = elsewhere.one(client, run_id)
        claim = None if seen.phase is Phase.SUCCEEDED else ending.claim_of(client, run_id)
    if not seen.phase.is_terminal:
        raise UsageError(
            f"{run_id} has not ended: it is {seen.phase}", f"windlass stop {run_id} --on {on}, then remove it"
        )
    if claim is not None:
        raise UsageError(f"{run_id} has ended as {seen.phase}; with it would go claim {claim}, and what was saved in "
                         "it", f"windlass rm --force {run_id} --on {on}")  # fmt: skip


def remove(run_id: str, on: str, edge: Edge, *, force: bool = False) -> None:
    """Remove all that was made for a run there; its record is that of another machine.

    With `force`, one that goes on is stopped first, without grace. Raises NoSuchRun, UsageError, EngineError.
    """
    from windlass.engines.kubernetes import ending

    if force:
        stop(run_id, on, edge, now=True)
    with connected(on, edge) as client:
        ending.remove(client, run_id)
