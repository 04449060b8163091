"""Keeps the lists of runs of all targets current in background threads, so that no page waits for a target."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from windlass.actions.runs import connect
from windlass.actions.targets import DEFAULT, named_targets
from windlass.engines import TARGETS, engine_class
from windlass.engines.values import RunState
from windlass.errors import WindlassError
from windlass.runs.context import Context
from windlass.runs.metrics import FILE
from windlass.views.pages import TargetState
from windlass.web.files import state_of

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.engines.base import Engine
    from windlass.runs.store import Store
    from windlass.spec.targets import Target
    from windlass.web.site import Records

LOCAL_SECONDS: Final = 2.0
"""Seconds between two checks of the supervisors on this machine."""
REMOTE_SECONDS: Final = 10.0
"""Seconds between two requests to a remote target."""
UNUSED_SECONDS: Final = 60.0
"""Seconds after the last page request at which polling of the targets stops."""
KNOWN_SECONDS: Final = 5.0
"""Seconds for which the content of the targets files is cached."""
LATE_SECONDS: Final = 30.0
"""Seconds without a response after which the state of a target counts as outdated."""


@dataclass(frozen=True, slots=True)
class KnownTarget:
    """A target in the targets files."""

    name: str
    kind: str
    place: str
    file: str | None
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """The last response of a target."""

    runs: tuple[RunState, ...] = ()
    as_of: float | None = None
    """Unix seconds of the response; None before the first one."""
    asked_at: float | None = None
    """Unix seconds at which the pending request was sent; None without a pending request."""
    trouble: str = ""
    """Why the last request failed; empty if it succeeded."""


class TargetPoller:
    """Requests the runs of each target while pages are open, in one thread per target."""

    def __init__(
        self,
        context: Context,
        records: Records,
        on_change: Callable[[set[str]], None] = lambda runs: None,
        connect: Callable[[str, Store, Context], Engine] = connect,
    ) -> None:
        """`on_change` is called in a thread with the ids of runs whose metrics here have changed, and with an empty set
        after each response that differs from the last one; `connect` returns the engine of a target.
        """
        self._context = context
        self._records = records
        self._on_change = on_change
        self._connect = connect
        self._seen: dict[str, Seen] = {}
        self._late: set[str] = set()
        self._used_at = 0.0
        self._viewed: dict[str, tuple[str, float]] = {}
        """Target of each run whose metrics are shown, and when they were last requested."""
        self._not_copied: dict[str, str] = {}
        """Why the metrics of a run could not be copied; empty if they were. Without an entry, it was not tried yet."""
        self._known: tuple[float, list[KnownTarget]] = (-math.inf, [])
        self._has_use, self._ended = threading.Event(), threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Makes the threads end. They are daemons, so a thread that waits for a target does not delay the exit."""
        self._ended.set()
        self._has_use.set()

    def stay(self) -> None:
        """Asks the targets that are asked already for another `UNUSED_SECONDS`, without reading any file.

        Reports a change if another target has become late.
        """
        self._used_at = time.monotonic()
        self._has_use.set()
        late = {name for name, seen in list(self._seen.items()) if self._trouble(seen) and not seen.trouble}
        if late != self._late:
            self._late = late
            self._on_change(set())

    def use(self) -> None:
        """Asks the targets from now on, for `UNUSED_SECONDS`. Returns at once."""
        self.stay()
        for known in self.known():
            name = known.name if known.kind in TARGETS else DEFAULT
            with self._lock:
                if name not in self._threads and not self._ended.is_set():
                    thread = threading.Thread(target=self._poll, args=(name,), name=f"windlass-{name}", daemon=True)
                    self._threads[name] = thread
                    thread.start()

    def known(self) -> list[KnownTarget]:
        """Returns the targets of the targets files, read every few seconds; only `local` if one cannot be read."""
        read_at, known = self._known
        if time.monotonic() - read_at > KNOWN_SECONDS:
            try:
                known = [_known(name, *found) for name, found in named_targets(self._context).items()]
            except WindlassError:
                known = [KnownTarget(DEFAULT, DEFAULT, "this machine", None, {})]
            self._known = (time.monotonic(), known)
        return known

    def view(self, run_id: str, target: str) -> str:
        """Copies new metrics of a run from its target from now on, for `UNUSED_SECONDS`. Returns at once.

        Returns why metrics of the run may be missing on this machine; empty if none are.
        """
        self._viewed[run_id] = (target, time.monotonic())
        self.use()
        why, as_of = self.stale(target)
        is_local = not why and as_of is None
        return why or ("" if is_local else self._not_copied.get(run_id, f"they are not copied from {target} yet"))

    def seen(self, name: str) -> Seen:
        """Returns the last response of a target, without a new request."""
        return self._seen.get(name, Seen())

    def state(self, known: KnownTarget) -> TargetState:
        """Returns how current the runs of a target are."""
        if known.kind not in TARGETS:
            return TargetState(known.name, known.kind, known.place, self._context.now(), "")
        seen = self.seen(known.name)
        return TargetState(known.name, known.kind, known.place, seen.as_of, self._trouble(seen))

    def stale(self, target: str) -> tuple[str, float | None]:
        """Returns why recorded runs of a target may be outdated, or "", and when it last responded."""
        known = next((one for one in self.known() if one.name == target), None)
        if known is None:
            return f"{target} is in no targets file here, and is not asked", None
        if known.kind not in TARGETS:
            return "", None
        seen = self.seen(target)
        return self._trouble(seen) or ("" if seen.as_of is not None else f"{target} has not answered yet"), seen.as_of

    def others(self, recorded: set[str]) -> list[RunState]:
        """Returns the runs of remote targets without a record on this machine."""
        return [one for seen in list(self._seen.values()) for one in seen.runs if one.status.id not in recorded]

    def _trouble(self, seen: Seen) -> str:
        if not seen.trouble and seen.asked_at is not None and self._context.now() - seen.asked_at > LATE_SECONDS:
            return f"no response for {self._context.now() - seen.asked_at:.0f} s"
        return seen.trouble

    def _poll(self, name: str) -> None:
        """Body of the thread of one target; `local` stands for all supervisors on this machine."""
        while not self._ended.is_set():
            if time.monotonic() - self._used_at > UNUSED_SECONDS:
                self._has_use.clear()
                self._has_use.wait()
                continue
            try:
                with self._records.open() as store:
                    self._ask(name, store, functools.cache(lambda kind: engine_class(kind).connect(store)))
            except Exception as error:  # any failure of a target must leave the pages of the others usable
                text = error.message if isinstance(error, WindlassError) else f"{type(error).__name__}: {error}"
                self._take(name, replace(self.seen(name), asked_at=None, trouble=text))
                self._ended.wait(LOCAL_SECONDS if name == DEFAULT else REMOTE_SECONDS)

    def _ask(self, name: str, store: Store, engine_of_kind: Callable[[str], Engine]) -> None:
        """Asks a target until it fails, or is not used any more. Engines are kept: they know what they have copied."""
        while not self._ended.is_set() and time.monotonic() - self._used_at <= UNUSED_SECONDS:
            if name == DEFAULT:
                self._check_local(store, engine_of_kind)
            else:
                self._seen[name] = replace(self.seen(name), asked_at=self._context.now())
                found = tuple(self._connect(name, store, self._context).list())
                self._refresh_recorded(name, store, engine_of_kind)
                self._take(name, Seen(found, self._context.now()))
            self._ended.wait(LOCAL_SECONDS if name == DEFAULT else REMOTE_SECONDS)

    def _check_local(self, store: Store, engine_of_kind: Callable[[str], Engine]) -> None:
        """Notices supervisors that have died, as `windlass ps` does; the record then has the new status."""
        for status in store.statuses(unfinished=True):
            with contextlib.suppress(WindlassError):
                kind = store.engine_of(status.id)
                if not engine_class(kind).is_remote:
                    engine_of_kind(kind).status(status.id)

    def _take(self, name: str, seen: Seen) -> None:
        before = self.seen(name)
        self._seen[name] = seen
        if _shown(seen) != _shown(before):
            self._on_change(set())

    def _refresh_recorded(self, name: str, store: Store, engine_of_kind: Callable[[str], Engine]) -> None:
        """Copies the newest state of the unfinished runs of a target to the records on this machine."""
        by_kind: dict[str, list[Any]] = {}
        for status in store.statuses(unfinished=True):
            if status.target == name:
                by_kind.setdefault(store.engine_of(status.id), []).append(status)
        for kind, some in by_kind.items():
            engine_of_kind(kind).statuses(some)
        for run_id, (target, at) in list(self._viewed.items()):
            if time.monotonic() - at > UNUSED_SECONDS:
                self._viewed.pop(run_id, None)
            elif target == name:
                self._copy_metrics(run_id, store, engine_of_kind)

    def _copy_metrics(self, run_id: str, store: Store, engine_of_kind: Callable[[str], Engine]) -> None:
        path = store.run_dir(run_id) / FILE
        before = self._not_copied.get(run_id), state_of(path)
        try:
            engine_of_kind(store.engine_of(run_id)).metrics(run_id)
            why = ""
        except (WindlassError, OSError) as error:
            why = error.message if isinstance(error, WindlassError) else str(error)
        self._not_copied[run_id] = why
        if (why, state_of(path)) != before:
            self._on_change({run_id})


def _shown(seen: Seen) -> tuple[Any, ...]:
    return seen.trouble, [(one.status.id, one.status.phase, one.status.last_seq) for one in seen.runs]


def _known(name: str, target: Target, path: Path | None) -> KnownTarget:
    words = [str(getattr(target, field)) for field in ("context", "namespace", "region") if getattr(target, field, "")]
    settings = target.model_dump(mode="json", exclude_defaults=True, exclude={"name", "kind"})
    place = " ".join(words) or "this machine"
    return KnownTarget(name, target.kind, place, None if path is None else str(path), settings)
