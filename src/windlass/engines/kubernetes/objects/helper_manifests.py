"""Builds the Jobs of helper pods, such as those that check a cluster or read a claim. Pure.

All pods of Windlass itself have the options of their target, see `manifests.own_job`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.objects import labels as named
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.manifests import own_job
from windlass.engines.kubernetes.objects.pod_template import GPU_TOLERATION, TMP, Shape
from windlass.engines.kubernetes.objects.workloads.base import Manifest

if TYPE_CHECKING:
    from windlass.spec.job import Job

COPY_SECONDS: Final = 3600
"""Maximum lifetime of a pod that reads or writes a claim, in seconds."""


def helper_pod(image: str, command: list[str]) -> Manifest:
    """Returns the spec of a pod that runs a program, and ends at once when deleted."""
    container = {
        "name": "node",
        "image": image,
        "command": command,
        "env": [{"name": "HOME", "value": TMP}],
        "volumeMounts": [],
        # A namespace with a quota rejects pods without requests and limits.
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "tolerations": [GPU_TOLERATION],  # The cluster may have only GPU nodes.
        "containers": [container],
        "volumes": [],
    }


def mounted(pod: Manifest, source: Mapping[str, Any], path: str, **fields: Any) -> Manifest:
    """Returns the spec of a helper pod with one more volume, mounted at `path` with these fields of a mount."""
    [container] = pod["containers"]
    name = f"files-{len(pod['volumes'])}"
    mounts = [*container["volumeMounts"], {"name": name, "mountPath": path, **fields}]
    container = {**container, "volumeMounts": mounts}
    return {**pod, "containers": [container], "volumes": [*pod["volumes"], {"name": name, **source}]}


def sleeping(image: str, python: str, seconds: int) -> Manifest:
    """Returns the spec of a helper pod that waits for commands by exec."""
    return helper_pod(image, [python, "-I", "-S", "-c", f"import time; time.sleep({seconds})"])


def helper_job(shape: Shape, component: str, pod: Manifest, seconds: int, num_pods: int = 1) -> Manifest:
    """Returns a Job of a command, with the name `shape.run_id`. Raises PatchRefused."""
    its = {**shape.labels, **named.of_helper(shape.run_id, component)}
    return bounded_job(own_job(shape, None, shape.run_id, its, pod, 0), seconds, num_pods)


def read_job(shape: Shape, job: Job, claim: str) -> Manifest:
    """Returns the Job of the pod that mounts the claim of the results after the run. Raises PatchRefused."""
    waits = sleeping(shape.image or shape.supervisor_image, shape.python, COPY_SECONDS)
    source = {"persistentVolumeClaim": {"claimName": claim}}
    pod = mounted(waits, source, layout.RESULTS, subPath=f"windlass/{shape.run_id}")
    name = f"{shape.run_id}-cp"
    run = named.of_run(shape.run_id, job.name, shape.submitter, named.RUN)
    its = {**shape.labels, **job.labels, **named.of_helper(name, "copy", run)}
    return bounded_job(own_job(shape, job, name, its, pod, 0), COPY_SECONDS, 1)


def bounded_job(job: Manifest, seconds: int, num_pods: int) -> Manifest:
    """Returns a Job with this number of pods, which the cluster ends after `seconds`, and then removes."""
    limits = {"activeDeadlineSeconds": seconds, "ttlSecondsAfterFinished": 60}
    indexed = {"completionMode": "Indexed", "completions": num_pods, "parallelism": num_pods, "backoffLimit": 0}
    return {**job, "spec": {**job["spec"], **indexed, **limits}}
