"""Keeps the outputs of an ended run in its supervisor's pod until a user's machine fetches them.

Once the outputs are fetched, the machine creates a marker (`markers.py`), and the pod ends. Without a marker, the pod
ends after `HELD_SECONDS`. The outputs are on the disk of the pod's node, and are lost with the pod or the node.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.files import PodFiles
from windlass.engines.kubernetes.objects import labels, layout
from windlass.engines.kubernetes.objects.package import AGAIN
from windlass.engines.kubernetes.objects.supervisor_manifests import HOME
from windlass.engines.kubernetes.reading import supervisor_status
from windlass.engines.kubernetes.running import markers
from windlass.engines.kubernetes.running.collection import FOLDER, Allowance, fetch_verified, move_to_outputs
from windlass.errors import EngineError, UsageError
from windlass.runs.clock import Clock
from windlass.runs.events import OutputsCollected, Warned, entries
from windlass.runs.record import CLUSTER, Status
from windlass.runs.store import OUTPUT, OUTPUT_DIGEST, locked
from windlass.supervise.recorder import Recorder
from windlass.worker.protocol import OUTPUTS_INCOMPLETE

HELD_SECONDS: Final = 24 * 3600
"""Seconds for which a supervisor's pod keeps outputs that no machine fetches."""
LISTEN_SECONDS: Final = 60
"""Duration in seconds of one watch for the marker of fetched outputs."""
PAUSE_SECONDS: Final = 5.0
LOST: Final = "the outputs were lost with the supervisor's pod"


def is_fetched(run_dir: Path, collected: OutputsCollected) -> bool:
    """Returns whether the run's folder contains all of these outputs."""
    with contextlib.suppress(OSError):
        return (run_dir / OUTPUT_DIGEST).read_text() == collected.digest
    return False


# -- in the supervisor's pod ------------------------------------------------------------------------------------------


def keep_until_fetched(client: Client, run_id: str, run_dir: Path, clock: Clock) -> None:
    """Waits until the outputs in the run's folder are fetched or older than HELD_SECONDS; returns at once without
    outputs.
    """
    try:
        give_up = (run_dir / OUTPUT_DIGEST).stat().st_mtime + HELD_SECONDS
    except FileNotFoundError:
        return
    while clock.time() < give_up:
        try:
            if _is_over(client, run_id):
                return
            _await_marker(client, run_id)
        except EngineError:  # the API server is unreachable: the pod keeps the outputs and tries again
            clock.wait(PAUSE_SECONDS)


def end_at_sigterm() -> None:
    """Makes SIGTERM end this process; without a handler, the first process of a container ignores SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(AGAIN))


def note_loss(record: Recorder, run_dir: Path, client: Client) -> None:
    """Records, once, that collected outputs were lost with an earlier supervisor's pod: they are neither in this pod
    nor marked as fetched. Raises EngineError.
    """
    collected = record.status.files.collected
    if collected is None or is_fetched(run_dir, collected) or _is_over(client, record.status.id):
        return
    message = f"{LOST}: a claim keeps them: kubernetes: {{results: {{size: 20GiB}}}}"
    if message not in [warned.message for warned in entries(record.writer.events(), Warned)]:
        record.note(Warned(message, OUTPUTS_INCOMPLETE))


def _is_over(client: Client, run_id: str) -> bool:
    """Returns whether the pod may end: the outputs are marked as fetched, or the run was removed."""
    return _marker(client, run_id) is not None or markers.find_owner(client, run_id) is None


def _await_marker(client: Client, run_id: str) -> None:
    selector = f"{layout.selector(run_id)},{layout.MARKER_LABEL}={layout.FETCHED_MARKER}"
    found = client.find("v1", "ConfigMap", selector)
    if not found["items"]:
        for event in client.watch("v1", "ConfigMap", selector, found["metadata"]["resourceVersion"], LISTEN_SECONDS):
            if event["type"] != "BOOKMARK":
                return


def _marker(client: Client, run_id: str) -> Mapping[str, Any] | None:
    return client.get_if_exists("v1", "ConfigMap", layout.marker_name(run_id, layout.FETCHED_MARKER))


# -- on a user's machine ----------------------------------------------------------------------------------------------


def is_due(status: Status, run_dir: Path) -> bool:
    """Returns whether this machine must still fetch the outputs of an ended run from the cluster."""
    is_held = status.supervision.supervisor == CLUSTER and status.phase.is_terminal
    return is_held and status.files.collected is not None and not is_fetched(run_dir, status.files.collected)


def fetch(client: Client, status: Status, run_dir: Path, host: str, *, is_patient: bool) -> bool:
    """Copies the outputs from the supervisor's pod to the run's folder; returns False while another process copies
    them.

    With `is_patient`, waits for the other process. Raises UsageError if the pod no longer has the outputs, EngineError,
    OSError.
    """
    with locked(run_dir / "output.lock", is_patient=is_patient) as is_held:
        if not is_held:
            return False
        collected = status.files.collected
        assert collected is not None  # the caller has checked this with `is_due`
        if not is_fetched(run_dir, collected):
            pod = _pod(client, status.id)
            work = run_dir / FOLDER
            shutil.rmtree(work, ignore_errors=True)
            expected = {"files": collected.files, "bytes": collected.bytes, "sha256": collected.digest}
            files = PodFiles(client, [_python(pod), "-I", "-S"], f"windlass cp {status.id}:output .")
            try:
                path = f"{HOME}/runs/{status.id}/{OUTPUT}"
                fetch_verified(files, pod, path, work, expected, Allowance(collected.bytes))
                move_to_outputs(work, run_dir, collected.digest)
            finally:
                shutil.rmtree(work, ignore_errors=True)
        owner_config_map = client.get("v1", "ConfigMap", status.id)
        markers.put(client, owner_config_map, layout.FETCHED_MARKER, by=host)
        return True


def _pod(client: Client, run_id: str) -> Mapping[str, Any]:
    """Returns the running supervisor's pod, which has the outputs of a run. Raises UsageError if no pod has them,
    EngineError while the supervisor restarts.
    """
    pods = client.find("v1", "Pod", supervisor_status.selector(run_id))["items"]
    for found in pods:
        if supervisor_status.is_running(found):  # annotated with its container, since the pod may have sidecars
            notes = {**(found["metadata"].get("annotations") or {}), layout.CONTAINER_ANNOTATION: labels.SUPERVISOR}
            return {**found, "metadata": {**found["metadata"], "annotations": notes}}
    if any(map(supervisor_status.is_restarting, pods)):
        raise EngineError(
            f"the supervisor of {run_id}, whose pod has the outputs, is being restarted", "try again later"
        )
    marker = _marker(client, run_id)
    if marker is not None:
        by = str((marker.get("data") or {}).get("by", "")) or "another machine"
        raise UsageError(
            f"the outputs of {run_id} were fetched by {by}",
            "copy them from there; for the next run: outputs: s3://…, or kubernetes: {results: {size: 20GiB}}",
        )
    raise UsageError(
        f"the outputs of {run_id} are no longer in the cluster: its supervisor's pod has ended",
        f"it holds them for {HELD_SECONDS // 3600} h; for the next run: kubernetes: {{results: {{size: 20GiB}}}}",
    )


def _python(pod: Mapping[str, Any]) -> str:
    [container] = [one for one in pod["spec"]["containers"] if one["name"] == labels.SUPERVISOR]
    return str(container["command"][0])
