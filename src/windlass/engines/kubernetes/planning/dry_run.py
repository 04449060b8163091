"""Sends the objects of a plan to the API server as a dry run, and reports those that it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.reading.admission import is_suspended, queue_of
from windlass.engines.kubernetes.reading.preflight.pod_admission import pod_notes
from windlass.engines.kubernetes.reading.preflight.storage import class_missing
from windlass.plan.notes import Note, blocker
from windlass.plan.plan import Plan
from windlass.plan.steps import (
    CheckJobStep,
    ClaimStep,
    ClusterStep,
    DataClaimStep,
    MountClaimStep,
    MountVolumeStep,
    NetworkPolicyStep,
    ObjectStep,
    ReadJobStep,
    StageJobStep,
    SupervisorStep,
    TransferStep,
    UploadJobStep,
)

Manifest: TypeAlias = Mapping[str, Any]
UNFIT: Final = ("unknown field", "cannot create resource")
"""Parts of error messages of the API server for an object with an unknown field, or that the login may not create."""
OF_OBJECTS: Final = ("way-unfit", "cluster-refuses")
"""Codes of notes on refused objects: another workload kind may work, or none."""
MOUNTS_BY_ADMINISTRATOR: Final = (
    "an administrator creates the volumes once, for all runs: windlass plan -o json | jq '.steps[] | "
    'select(.kind == "mount-volume" or .kind == "mount-claim") | .request\' | kubectl apply -f -'
)


def dry_run(plan: Plan) -> list[Note]:
    """Returns the notes of a dry run of the plan's objects; empty if the API server does not answer."""
    cluster = plan.only(ClusterStep)
    client = Client(cluster.context, cluster.namespace, cluster.kubeconfig)
    of_attempt = attempt_objects(plan)
    helpers = [one for one in plan.manifests(SupervisorStep) if one["kind"] == "Job"]
    helpers += plan.manifests(StageJobStep, UploadJobStep, CheckJobStep, ReadJobStep)
    others = plan.manifests(
        ObjectStep, NetworkPolicyStep, ClaimStep, DataClaimStep, MountVolumeStep, MountClaimStep, TransferStep
    )
    objects = [*others, *of_attempt, *helpers]

    def ask(manifest: Manifest) -> Note | None:
        try:
            made = client.create(manifest, dry_run=True)
            if manifest in helpers:
                return suspended_supervisor(made)
            if manifest["kind"] == "PersistentVolumeClaim":
                return class_missing(client, manifest["spec"].get("storageClassName"))
            return ignored(made) if manifest is of_attempt[-1] else None
        except Unreachable:
            return None
        except Refused as error:
            return _refusal(error, manifest, client, of_attempt)

    try:
        with ThreadPoolExecutor(len(objects) + 1) as pool:
            of_pods = pool.submit(pod_notes, client, plan)
            notes = [note for note in pool.map(ask, objects) if note is not None]
            found = of_pods.result()
            if any(note.code == "pod-patch" for note in found):  # The server refuses the owner objects because of it.
                notes = [note for note in notes if note.code not in OF_OBJECTS]
            return list(dict.fromkeys((*notes, *found)))
    finally:
        client.close()


def _refusal(error: Refused, manifest: Manifest, client: Client, of_attempt: list[Manifest]) -> Note | None:
    """Returns the note on an object that the API server refuses; None if the refusal does not affect the run."""
    if error.status == 404 and f'namespaces "{client.namespace}"' in error.message:
        fix = f"{client.kubectl} create namespace {client.namespace}"
        return blocker("namespace-missing", f"the namespace {client.namespace} is not in the cluster", fix)
    if error.status == 409:
        return None  # the object exists: the run is resumed with another number of nodes
    name = manifest["metadata"]["name"]
    if error.status == 403 and manifest["kind"] == "PersistentVolume":
        message = "this login may not create PersistentVolumes, which are cluster-wide"
        return blocker("mount-rights", message, MOUNTS_BY_ADMINISTRATOR)
    what = f"{manifest['kind']} {name}: {error.message}"
    if manifest is of_attempt[-1] and f'"{name}" not found' in error.message:
        return None  # the object refers to another one of the plan, which a dry run does not create
    if manifest in of_attempt and manifest["kind"] != "Job" and _is_unfit(error):
        return blocker(OF_OBJECTS[0], what, "kubernetes: {via: job} needs no operator")
    return blocker(OF_OBJECTS[1], what, error.hint or "change the job")


def _is_unfit(error: Refused) -> bool:
    """Returns whether another workload kind may work: this kind is not served, lacks a field, or the login may not
    create it.
    """
    return error.status == 404 or any(words in error.message for words in UNFIT)


def suspended_supervisor(made: Manifest) -> Note | None:
    """Returns a note if Kueue manages all Jobs here, and suspends those without a queue, such as the supervisor's."""
    if queue_of(made) or not is_suspended(made):
        return None
    return blocker(
        "supervisor-suspended",
        f"the cluster's Kueue suspends Jobs without a queue, such as {made['metadata']['name']}",
        "set supervisor_queue: of the target, or have Kueue's managedJobsNamespaceSelector exclude the namespace",
    )


def ignored(made: Manifest) -> Note | None:
    """Returns a note if Kueue does not manage an object that names a queue, so that the object would start at once."""
    if not queue_of(made) or is_suspended(made):
        return None
    return blocker(
        "queue-ignored",
        f"queue: {queue_of(made)}, and the cluster's Kueue does not manage objects of kind {made['kind']} here: the "
        "run would start at once",
        "another via:, or have integrations.frameworks of Kueue's configuration name it",
    )
