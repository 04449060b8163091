"""Stages a data set in a target's claim before any run, with the same Job that stages data for a run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.access import probe_pods
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.files import require_claim
from windlass.engines.kubernetes.objects import manifests, pod_template
from windlass.engines.kubernetes.objects import transfer_manifests as transfers
from windlass.engines.kubernetes.objects.pod_status import STUCK
from windlass.engines.kubernetes.objects.transfer_manifests import READ
from windlass.engines.kubernetes.reading.diagnose.pod_reasons import explained
from windlass.engines.kubernetes.running.job_transfer import LOOK_SECONDS, JobTransfer
from windlass.errors import EngineError, UsageError
from windlass.runs.clock import Clock
from windlass.runs.events import Entry, Warned
from windlass.runs.phase import Phase
from windlass.runs.record import Status, Times
from windlass.spec.job import Job
from windlass.spec.kubernetes import KubernetesOptions
from windlass.spec.sections import DataClaim
from windlass.supervise.backend import TargetUnavailable

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget
    from windlass.storage.progress import Progress

OnLine = Callable[[str], None]
MAX_SECONDS: Final = 7 * 24 * 3600
"""Deadline of the Job in seconds, at which the cluster ends the Job of a killed command."""
KEPT_SECONDS: Final = 600
"""Seconds for which a finished Job is kept, so that a command can read the result after an outage."""
SET: Final = "data"
"""Name of the single data set in the staging program."""


def stage_set(
    client: Client,
    target: KubernetesTarget,
    wanted: DataClaim,
    source: str,
    progress: Progress,
    on_line: OnLine,
    *,
    keys: Sequence[str] = (),
    service_account: str | None = None,
) -> dict[str, Any]:
    """Stages the data set of a source, and returns the result of the staging program. Reports each reason for waiting
    once.

    The pod reads the store with the target's environment, `keys` (Secrets of the namespace with variables such as
    AWS_ACCESS_KEY_ID) and `service_account` (with a role that may read the store). The Job is always deleted; fetched
    files stay in the claim for the next call. Raises UsageError, EngineError.
    """
    scheme = source.partition("://")[0]
    if scheme not in READ:
        raise UsageError(
            f"{source} is not reached from the pods of a cluster",
            f"windlass data copy {source} s3://BUCKET/PREFIX, and stage that",
        )
    if wanted.size is None:
        require_claim(client, wanted.claim)
    else:
        client.create_if_absent(transfers.claim_of_data(client.namespace, wanted))
    program, job = objects(client.namespace, target, wanted, source, keys, service_account)
    image = job["spec"]["template"]["spec"]["containers"][0]["image"]
    with probe_pods.made(client, MAX_SECONDS, transfers.filled(program)):
        owner = client.get("v1", "ConfigMap", program["metadata"]["name"])
        transfer = JobTransfer(client, manifests.owned(job, owner), lambda made: _created(client, made))
        try:
            return _result(transfer, _Notes(on_line, image), progress, on_line)
        finally:
            transfer.end()


def objects(
    namespace: str,
    target: KubernetesTarget,
    wanted: DataClaim,
    source: str,
    keys: Sequence[str],
    service_account: str | None,
) -> tuple[probe_pods.Manifest, probe_pods.Manifest]:
    """Returns the Job, and the ConfigMap for its program, still empty. Each call uses a new name."""
    name = f"windlass-stage-{secrets.token_hex(3)}"
    job = Job(
        name="data",
        command=["true"],
        secrets=tuple(keys),
        kubernetes=KubernetesOptions(service_account=service_account),
    )
    shape = pod_template.target_shape(target, namespace, name, wanted.claim)
    program, made = transfers.helper_objects(shape, job, [{"name": SET, "source": source}])
    made["spec"] |= {"activeDeadlineSeconds": MAX_SECONDS, "ttlSecondsAfterFinished": KEPT_SECONDS}
    return program, made


def _created(client: Client, made: Mapping[str, Any]) -> dict[str, Any]:
    """Creates the Job; returns the existing one if the response to an earlier request was lost."""
    return client.create_if_absent(made) or client.get("batch/v1", "Job", made["metadata"]["name"])


def _result(transfer: JobTransfer, notes: _Notes, progress: Progress, on_line: OnLine) -> dict[str, Any]:
    clock, said = Clock(), ""
    found: dict[str, Any] = {}
    while not transfer.is_done:
        try:
            for line in transfer.reports(notes, clock):
                if "digest" in line:
                    found = dict(line)
                elif "waits" in line:
                    if (words := f"waits for {line['waits']}, which fetches the same source") != said:
                        on_line(said := words)
                else:
                    progress.is_listing = False
                    progress.num_bytes, progress.bytes_done = line["of"], line["done"]
                    progress.bytes_moved = line["moved"]
        except TargetUnavailable as error:  # the Job continues during the outage
            if error.message != said:
                said = error.message
                on_line(said)
        if not transfer.is_done:
            time.sleep(LOOK_SECONDS)
    if not found:
        raise EngineError("the pod has ended without a result", "windlass data stage again")
    return found


class _Notes:
    """Replaces the recorder of a run: prints warnings about temporary problems, and raises permanent ones."""

    def __init__(self, on_line: OnLine, image: str) -> None:
        self._on_line = on_line
        self._image = image

    status = Status("", "", "", Phase.STAGING, Times(0.0, 0.0), "")
    """Status without attempts, so that warnings name the pods."""

    def note(self, entry: Entry, *, at: float | None = None) -> None:
        """Prints a warning. Raises EngineError for a pod that cannot start."""
        if not isinstance(entry, Warned):
            return
        verdict = explained(entry.message, "the pod", (), 0.0, image=self._image)
        if any(reason in entry.message for reason in STUCK):
            raise EngineError(entry.message, verdict.fix if verdict is not None else "see: kubectl describe pod")
        self._on_line(entry.message + (f"; {verdict.fix}" if verdict is not None else ""))
