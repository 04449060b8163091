"""Ends and removes a run by its objects alone, whoever keeps it. Its pods get the grace that they were made with.

First comes a mark on the run: its keeper, which sees pods being taken away, then knows that somebody has asked for it.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from windlass.engines.kubernetes import elsewhere, layout, marks
from windlass.engines.kubernetes.client import Client, Refused
from windlass.engines.kubernetes.elsewhere import Seen
from windlass.engines.kubernetes.manifests import END_SECONDS
from windlass.engines.kubernetes.pods import has_ended
from windlass.engines.kubernetes.ways import MAKERS
from windlass.engines.kubernetes.ways.job import BATCH
from windlass.errors import NoSuchRun
from windlass.runs.record import Phase

POLL_SECONDS: Final = 0.5
LATE_SECONDS: Final = 60.0
"""How much longer than its grace a pod is waited for: of one whose machine is lost, nobody says that it ended."""
FINAL: Final = (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED)
"""Phases that no keeper goes on from; what is `lost` may only wait for its keeper."""


def grace_seconds(client: Client, run_id: str) -> float:
    """How long the ranks of a run have to leave; 0 where nothing of it runs. Raises Refused, Unreachable."""
    pods = client.find("v1", "Pod", layout.selector(run_id))["items"]
    given = [pod["spec"].get("terminationGracePeriodSeconds", 0) for pod in pods]
    return float(max(0, max(given, default=0) - END_SECONDS))


def stop(client: Client, run_id: str, *, now: bool) -> None:
    """Have a run end; `now` leaves out the grace period. Raises NoSuchRun, Refused, Unreachable."""
    marks.put(client, _anchor(client, run_id), marks.STOP, now=now)
    delete_makers(client, run_id)
    if now:
        for pod in client.find("v1", "Pod", layout.selector(run_id))["items"]:
            client.delete("v1", "Pod", pod["metadata"]["name"], grace=0)


def wait(client: Client, run_id: str, seconds: float) -> Seen:
    """Wait until the pods of a run that is to end have ended, so many seconds and some more; gives how it is then.

    Raises NoSuchRun, Refused, Unreachable.
    """
    give_up = time.monotonic() + seconds + END_SECONDS + LATE_SECONDS
    while True:
        seen = elsewhere.one(client, run_id)
        if seen.phase in FINAL or time.monotonic() > give_up:
            return seen
        time.sleep(POLL_SECONDS)


def remove(client: Client, run_id: str) -> None:
    """Delete all that was made for a run, but a claim that is to be kept. Raises Refused, Unreachable."""
    client.delete("v1", "ConfigMap", run_id)  # it owns all others
    delete_makers(client, run_id)  # at once, and not when somebody collects what has no owner
    for name in live_pods(client, run_id):  # what made them may have gone without them
        client.delete("v1", "Pod", name)


def live_pods(client: Client, run_id: str) -> list[str]:
    """The names of the pods of a run that have not ended. Raises Refused, Unreachable."""
    pods = client.find("v1", "Pod", layout.selector(run_id))["items"]
    return [str(pod["metadata"]["name"]) for pod in pods if not has_ended(pod)]


def end_leftovers(client: Client, run_id: str, *, now: bool) -> list[str]:
    """End the pods of a run that has ended by its record; gives their names. Raises Refused, Unreachable."""
    found = live_pods(client, run_id)
    if found:
        with contextlib.suppress(NoSuchRun):  # its anchor is gone: the pods alone are left
            stop(client, run_id, now=now)
        for name in found:
            client.delete("v1", "Pod", name, grace=0 if now else None)
    return found


def delete_makers(client: Client, run_id: str) -> None:
    """Delete what makes the pods of a run, and with it the pods. Raises Refused, Unreachable."""
    for api, kind in MAKERS:
        for one in _found(client, api, kind, run_id):
            client.delete(api, kind, one["metadata"]["name"])


def claim_of(client: Client, run_id: str) -> str | None:
    """The claim that goes with a run; None where there is none, or it stays. Raises Unreachable."""
    with contextlib.suppress(Refused):
        claim = client.get("v1", "PersistentVolumeClaim", run_id)
        owners = claim["metadata"].get("ownerReferences", ())
        return run_id if any(owner["name"] == run_id for owner in owners) else None
    return None


def _found(client: Client, api: str, kind: str, run_id: str) -> list[dict[str, Any]]:
    try:
        return list(client.find(api, kind, layout.selector(run_id))["items"])
    except Refused as error:
        if api != BATCH and error.status in (403, 404):  # not installed, or not ours to make
            return []
        raise


def _anchor(client: Client, run_id: str) -> dict[str, Any]:
    try:
        return client.get("v1", "ConfigMap", run_id)
    except Refused as error:
        if error.status == 404:
            raise NoSuchRun(f"{run_id} is no longer there", "its objects were deleted") from error
        raise
