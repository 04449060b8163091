"""Tombstones of a run in its cluster, for machines without its record: a stop was requested, the run has ended. A
tombstone is a ConfigMap that the run's anchor owns, created with rights that a run needs anyway. The supervisor, on
whichever machine, takes `stop` for a stop request of its own user; `end` means that no other attempt follows.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Final

from windlass.engines.kubernetes.access.absence import ABSENT_SECONDS, Absence
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import labels, layout, manifests
from windlass.runs.stop_request import ELSEWHERE, REMOVED, StopRequest, read_stop_request, write_stop_request

AGAIN_SECONDS: Final = 0.5


def put(client: Client, anchor: dict[str, Any], mark: str, *, now: bool = False, **said: str) -> None:
    """Create a tombstone for the run of this anchor; an existing one is kept. Raises EngineError.

    `now` requests a stop without the ranks' grace period. `said` is further data of the tombstone.
    """
    meta = anchor["metadata"]
    name, how = layout.mark_name(meta["name"], mark), {layout.HOW_LABEL: said["how"]} if "how" in said else {}
    its = labels.like(meta["labels"], labels.RECORD, **{layout.MARK_LABEL: mark, **how})
    data = {**({"now": "true"} if now else {}), **said}
    made = manifests.owned(manifests.core("ConfigMap", name, meta["namespace"], its, data=data), anchor)
    if client.create_if_absent(made) is None and now:
        client.delete("v1", "ConfigMap", name)
        client.create(made)


def asked(client: Client, run_id: str) -> StopRequest | None:
    """The stop request of another machine: a tombstone, or the removal of the run's anchor.

    Raises EngineError.
    """
    found = client.get_if_exists("v1", "ConfigMap", layout.mark_name(run_id, layout.STOP_MARK))
    if found is not None:
        return StopRequest(now=found.get("data", {}).get("now") == "true", reason=ELSEWHERE)
    anchor = _anchor(client, run_id)
    is_gone = anchor is None or "deletionTimestamp" in anchor["metadata"]
    return StopRequest(now=True, reason=REMOVED) if is_gone else None


def stop_selector(run_id: str) -> str:
    """Selects the tombstone of a stop request."""
    return f"{layout.selector(run_id)},{layout.MARK_LABEL}={layout.STOP_MARK}"


def tell_end(client: Client, run_id: str, *, stopped: bool, well: bool) -> None:
    """Mark that no other attempt follows, whether a stop was requested, and whether the run succeeded.

    Pods that are created later read it, and do not train (`boot.py`). Raises EngineError.
    """
    anchor = client.get_if_exists("v1", "ConfigMap", run_id)
    if anchor is None or "deletionTimestamp" in anchor["metadata"]:
        return  # the run was removed
    put(client, anchor, layout.END_MARK, how="well" if well else "badly")
    if stopped:
        put(client, anchor, layout.STOP_MARK)


def forget(client: Client, run_id: str) -> None:
    """Remove the marks of a run that is resumed. Raises EngineError."""
    for mark in (layout.STOP_MARK, layout.END_MARK, layout.FETCHED_MARK):
        client.delete("v1", "ConfigMap", layout.mark_name(run_id, mark))


def _anchor(client: Client, run_id: str) -> dict[str, Any] | None:
    """The anchor; None once it is known to be removed (`Absence`), which takes `ABSENT_SECONDS`."""
    absence = Absence()
    while (found := client.get_if_exists("v1", "ConfigMap", run_id)) is None:
        if absence.is_confirmed(is_absent=True):
            return None
        time.sleep(ABSENT_SECONDS)
    return found


class Ear:
    """Reads the stop requests of other machines, and writes them where the supervisor reads those of its own user."""

    def __init__(self, client: Client, run_id: str, run_dir: Path) -> None:
        self._client = client
        self._run_id = run_id
        self._run_dir = run_dir
        self._listened_at = float("-inf")

    def listen(self) -> None:
        """Ask the cluster, unless that was just done. Raises EngineError."""
        now = time.monotonic()
        if now - self._listened_at < AGAIN_SECONDS:
            return
        wish = asked(self._client, self._run_id)
        self._listened_at = now
        # A stronger request of this machine takes precedence.
        if wish is not None and (wish.now or read_stop_request(self._run_dir) is None):
            with contextlib.suppress(OSError):  # a full disk: written at the next turn
                write_stop_request(self._run_dir, wish)
