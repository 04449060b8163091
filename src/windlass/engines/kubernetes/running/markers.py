"""Markers of a run in its cluster, for machines without the run's record: stop requested, run ended, outputs fetched.

A marker is a ConfigMap that the run's owner ConfigMap owns; creating one needs no additional right. The supervisor
treats the marker `stop` like a stop request of its own user; the marker `end` states that no attempt follows.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Final

from windlass.engines.kubernetes.access.absence import ABSENT_SECONDS, Absence
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import labels, layout, manifests
from windlass.runs.stop_request import ELSEWHERE, REMOVED, StopRequest, read_stop_request, write_stop_request

AGAIN_SECONDS: Final = 0.5


def put(client: Client, owner_config_map: dict[str, Any], marker: str, *, now: bool = False, **said: str) -> None:
    """Creates a marker for the run of this owner ConfigMap; an existing marker is kept. Raises EngineError.

    `now` requests a stop without grace period, and replaces an existing marker. `said` is additional data of the
    marker.
    """
    meta = owner_config_map["metadata"]
    name, how = layout.marker_name(meta["name"], marker), {layout.HOW_LABEL: said["how"]} if "how" in said else {}
    its = labels.like(meta["labels"], labels.RECORD, **{layout.MARKER_LABEL: marker, **how})
    data = {**({"now": "true"} if now else {}), **said}
    made = manifests.owned(manifests.core("ConfigMap", name, meta["namespace"], its, data=data), owner_config_map)
    if client.create_if_absent(made) is None and now:
        try:
            client.update("v1", "ConfigMap", name, lambda found: {**found, "data": data})
        except Refused as error:
            if error.status != 403:  # runs that a machine supervises do not need the right to update ConfigMaps
                raise
            client.delete("v1", "ConfigMap", name)
            client.create(made)


def requested_stop(client: Client, run_id: str) -> StopRequest | None:
    """Returns the stop request of another machine: a marker, or the deletion of the run's owner ConfigMap; else None.
    Raises EngineError.
    """
    found = client.get_if_exists("v1", "ConfigMap", layout.marker_name(run_id, layout.STOP_MARKER))
    if found is not None:
        return StopRequest(now=found.get("data", {}).get("now") == "true", reason=ELSEWHERE)
    owner_config_map = find_owner(client, run_id)
    is_gone = owner_config_map is None or "deletionTimestamp" in owner_config_map["metadata"]
    return StopRequest(now=True, reason=REMOVED) if is_gone else None


def stop_selector(run_id: str) -> str:
    """Returns the label selector of a run's stop marker."""
    return f"{layout.selector(run_id)},{layout.MARKER_LABEL}={layout.STOP_MARKER}"


def put_end(client: Client, run_id: str, *, stopped: bool, well: bool) -> None:
    """Records that no attempt follows, whether a stop was requested, and whether the run succeeded.

    Pods that are created later read this marker, and do not train (`boot.py`). Raises EngineError.
    """
    owner_config_map = client.get_if_exists("v1", "ConfigMap", run_id)
    if owner_config_map is None or "deletionTimestamp" in owner_config_map["metadata"]:
        return  # a removed run gets no marker
    put(client, owner_config_map, layout.END_MARKER, how="well" if well else "badly")
    if stopped:
        put(client, owner_config_map, layout.STOP_MARKER)


def forget(client: Client, run_id: str) -> None:
    """Removes the markers of a run that is resumed. Raises EngineError."""
    for marker in (layout.STOP_MARKER, layout.END_MARKER, layout.FETCHED_MARKER):
        client.delete("v1", "ConfigMap", layout.marker_name(run_id, marker))


def find_owner(client: Client, run_id: str) -> dict[str, Any] | None:
    """Returns the owner ConfigMap of a run, or None after two reads, `ABSENT_SECONDS` apart, did not find it. Raises
    EngineError.
    """
    absence = Absence()
    while (found := client.get_if_exists("v1", "ConfigMap", run_id)) is None:
        if absence.is_confirmed(is_absent=True):
            return None
        time.sleep(ABSENT_SECONDS)
    return found


class StopRequestRelay:
    """Copies stop requests of other machines to the run's folder, where the supervisor reads its user's requests."""

    def __init__(self, client: Client, run_id: str, run_dir: Path) -> None:
        self._client = client
        self._run_id = run_id
        self._run_dir = run_dir
        self._relayed_at = float("-inf")

    def relay(self) -> None:
        """Copies the cluster's stop request to the run's folder; reads it at most once in `AGAIN_SECONDS`. Raises
        EngineError.
        """
        now = time.monotonic()
        if now - self._relayed_at < AGAIN_SECONDS:
            return
        request = requested_stop(self._client, self._run_id)
        self._relayed_at = now
        # An existing local request is replaced only by an immediate stop.
        if request is not None and (request.now or read_stop_request(self._run_dir) is None):
            with contextlib.suppress(OSError):  # The disk may be full; the next call tries again.
                write_stop_request(self._run_dir, request)
