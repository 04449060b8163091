"""Reads the facts that a plan for a cluster depends on: the code that would travel, and what the cluster has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.code.imports import script_imports
from windlass.code.pack import Packed, pack
from windlass.engines.kubernetes import kueue, scaling
from windlass.engines.kubernetes.client import Client, Refused, Unreachable
from windlass.engines.kubernetes.pools import labels_made
from windlass.engines.kubernetes.rights import LEASES, NEEDED, missing
from windlass.engines.kubernetes.runtimes import Runtimes, runtimes
from windlass.errors import UsageError
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget

if TYPE_CHECKING:
    from windlass.plan.plan import Note, Plan

MAX_BYTES: Final = 64 << 20
"""Code before it is compressed."""
TRAVELLING: Final = ("__init__.py", "worker", "train")
"""What of the package goes with a job, under its own name."""
UNFIT: Final = ("unknown field", "cannot create resource")
"""What an API server says of an object of which its version lacks a part, or which the login may not make."""
WAY_UNFIT: Final = "way-unfit"
GPU_LABELS: Final = (
    "nvidia.com/gpu.product",
    "karpenter.k8s.aws/instance-gpu-name",
    "cloud.google.com/gke-accelerator",
)
"""Where clusters say which GPU a machine has: NVIDIA's own discovery, Karpenter on EKS, GKE."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster has and lets us do."""

    version: str
    """As it tells itself: `v1.34.4`."""
    groups: frozenset[str]
    """The API groups and versions that it serves: `jobset.x-k8s.io/v1alpha2`."""
    missing: tuple[str, ...] = ()
    """Rights that are needed and not had, as `create jobs.batch`."""
    is_fenced: bool = True
    """Whether the login may use Leases, which keep two supervisors of one run apart."""
    unfit: str = ""
    """Why JobSet, though installed, cannot be used: a field that its version lacks, a right that is not had."""
    gpu_labels: tuple[tuple[str, str], ...] = ()
    """Labels of nodes that name a GPU type, each once."""
    secrets: frozenset[str] | None = None
    """Names of the secrets that the job asks for and that are there; None where they may not be looked at."""
    claims: frozenset[str] | None = None
    """Names of the claims that the job asks for and that are there; None where they may not be looked at."""
    queues: tuple[tuple[str, str], ...] | None = None
    """LocalQueues of the namespace, each with why it admits nobody (empty where it does); None where they may not be
    listed, or the job names none."""
    machines: scaling.Machines | None = None
    """What makes machines for it, and those that are there; None where nothing does, or it may not be looked at."""
    runtimes: Runtimes | None = None
    """What is known of the training runtime that the job names; None where it names none."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The world as a plan for a cluster sees it."""

    code_dir: str
    code_dir_found: bool
    script_found: bool
    code: Packed | None
    """What travels; None where there is no folder."""
    code_problem: tuple[str, str] | None
    """Why it cannot be packed, and what to do."""
    cluster: Cluster | None
    """None where it does not answer."""
    kubeconfig: str
    """Path of the file that knows the context, absolute: whoever follows the run later may have another."""
    unreachable: str = ""
    """Why it does not."""
    script_imports: tuple[str, ...] = ()
    """Top-level names of the modules that the script, and what lies beside it, imports."""


def read_facts(job: Job, target: KubernetesTarget, *, base: Path, environ: Mapping[str, str]) -> Facts:
    """What a plan for `job` on `target` depends on. Raises UsageError for a context or login that cannot be used."""
    code_dir = (base / job.code).absolute()
    found = os.path.isdir(code_dir)  # noqa: PTH112 - Path's own raises for too long a name
    kubeconfig = find_kubeconfig(environ)
    with ThreadPoolExecutor(1) as pool:  # one compresses while the other waits for answers
        packing = pool.submit(_pack, code_dir, environ) if found else None
        cluster, unreachable = _look(job, target, kubeconfig)
        code, problem = packing.result() if packing is not None else (None, None)
    return Facts(
        code_dir=str(code_dir),
        code_dir_found=found,
        # A path from the root is one in the image, which nobody can look into from here.
        script_found=job.script_kind != "script"
        or job.script_argv[0].startswith("/")
        or (code_dir / job.script_argv[0]).is_file(),
        code=code,
        code_problem=problem,
        cluster=cluster,
        kubeconfig=kubeconfig,
        unreachable=unreachable,
        script_imports=script_imports(job, code_dir) if found else (),
    )


def pack_code(code_dir: Path, environ: Mapping[str, str]) -> Packed:
    """What travels with a job: its folder, and what of this package its pods need. Raises UsageError."""
    package = Path(__file__).parents[2]
    ours = {f"travel/windlass/{name}": package / name for name in TRAVELLING}
    packed = pack(code_dir, MAX_BYTES, environ, ours)
    _last[:] = [packed]
    return packed


_last: list[Packed] = []
"""What was packed last: a command that plans a run sends what it has planned."""


def planned_code(digest: str) -> Packed | None:
    """The archive with this digest, if it is the one that this process has packed last."""
    return next((packed for packed in _last if packed.digest == digest), None)


def _pack(code_dir: Path, environ: Mapping[str, str]) -> tuple[Packed | None, tuple[str, str] | None]:
    try:
        return pack_code(code_dir, environ), None
    except UsageError as error:
        return None, (error.message, error.hint)


def find_kubeconfig(environ: Mapping[str, str]) -> str:
    """The kubeconfig files of this user, as kubectl finds them: paths, joined as in `$KUBECONFIG`."""
    named = environ.get("KUBECONFIG") or f"{environ.get('HOME', '/')}/.kube/config"
    return os.pathsep.join(os.path.abspath(path) for path in named.split(os.pathsep) if path)  # noqa: PTH100


def _look(job: Job, target: KubernetesTarget, kubeconfig: str) -> tuple[Cluster | None, str]:
    client = Client(target.context, job.kubernetes.namespace or target.namespace, kubeconfig)
    try:
        return read_cluster(job, client), ""
    except Unreachable as error:
        return None, error.message
    finally:
        client.close()


def read_cluster(job: Job, client: Client) -> Cluster:
    """What the cluster has that matters to this job, asked all at once. Raises Refused (401), Unreachable."""
    asked = list(job.secrets)
    claims = [volume.claim for volume in job.volumes]
    results = job.kubernetes.results
    if results is not None and results.claim is not None:
        claims.append(results.claim)
    with ThreadPoolExecutor(8) as pool:
        version = pool.submit(client.call, "GET", "/version")
        groups = pool.submit(client.call, "GET", "/apis")
        rights = pool.submit(missing, client, (*NEEDED, *LEASES))
        nodes = pool.submit(_gpu_labels, client) if job.resources.gpu_type else None
        secrets = pool.submit(_there, client, "Secret", asked)
        found = pool.submit(_there, client, "PersistentVolumeClaim", claims)
        queues = pool.submit(kueue.queues, client) if job.queue is not None else None
        machines = pool.submit(scaling.machines, client)
        named = job.kubernetes.runtime
        standing = pool.submit(runtimes, client, named, job.kubernetes.runtime_kind) if named is not None else None
        return Cluster(
            version=str(version.result()["gitVersion"]),
            groups=frozenset(one["groupVersion"] for group in groups.result()["groups"] for one in group["versions"]),
            missing=tuple(str(right) for right in rights.result() if right not in LEASES),
            is_fenced=not any(right in LEASES for right in rights.result()),
            gpu_labels=_with_pools(nodes.result(), machines.result()) if nodes is not None else (),
            secrets=secrets.result(),
            claims=found.result(),
            queues=queues.result() if queues is not None else None,
            machines=machines.result(),
            runtimes=standing.result() if standing is not None else None,
        )


def _gpu_labels(client: Client) -> tuple[tuple[str, str], ...]:
    try:
        nodes = client.find("v1", "Node")["items"]
    except Refused:
        return ()
    labels = (node["metadata"].get("labels", {}) for node in nodes)
    return tuple(sorted({(name, found[name]) for found in labels for name in GPU_LABELS if name in found}))


def _with_pools(labels: tuple[tuple[str, str], ...], machines: scaling.Machines | None) -> tuple[tuple[str, str], ...]:
    """The same, with those of machines that do not exist yet."""
    return tuple(sorted({*labels, *labels_made(machines.pools if machines is not None else (), GPU_LABELS)}))


def _there(client: Client, kind: str, names: list[str]) -> frozenset[str] | None:
    """Which of these objects are there; None where they may not be looked at."""
    found = set()
    for name in names:
        try:
            client.get("v1", kind, name)
            found.add(name)
        except Refused as error:
            if error.status == 403:
                return None
            if error.status != 404:
                raise
    return frozenset(found)


def boot_program() -> str:
    """The text of the program that unpacks the code in a pod."""
    return (Path(__file__).parents[2] / "worker" / "boot.py").read_text()


def _is_unfit(error: Refused) -> bool:
    """Whether another way may do: the kind is not served, its version lacks a field, or the login may not make it."""
    return error.status == 404 or any(words in error.message for words in UNFIT)


def dry_run(plan: Plan) -> list[Note]:
    """What the API server says of the objects of a plan, without making them. Empty where it does not answer."""
    from windlass.engines.kubernetes.queuenotes import ignored
    from windlass.plan.plan import Note

    [cluster] = plan.requests("cluster")
    client = Client(cluster["context"], cluster["namespace"], cluster["kubeconfig"])
    of_attempt = [*plan.requests("attempt-part"), *plan.requests("attempt")]
    objects = [*plan.requests("object"), *plan.requests("claim"), *of_attempt]

    def ask(manifest: Mapping[str, Any]) -> Note | None:
        try:
            made = client.create(manifest, dry_run=True)
            return ignored(made) if manifest is of_attempt[-1] else None
        except Unreachable:
            return None
        except Refused as error:
            if error.status == 404 and f'namespaces "{client.namespace}"' in error.message:
                fix = f"kubectl --context {client.context} create namespace {client.namespace}"
                return Note(
                    "namespace-missing", f"the namespace {client.namespace} is not in the cluster", fix, blocks=True
                )
            name = manifest["metadata"]["name"]
            what = f"{manifest['kind']} {name}"
            if manifest is of_attempt[-1] and f'"{name}" not found' in error.message:
                return None  # what it refers to is made before it, and is not there yet
            if manifest in of_attempt and manifest["kind"] != "Job" and _is_unfit(error):
                return Note(
                    WAY_UNFIT, f"{what}: {error.message}", "kubernetes: {via: job} needs no operator", blocks=True
                )
            return Note("cluster-refuses", f"{what}: {error.message}", error.hint or "change the job", blocks=True)

    try:
        with ThreadPoolExecutor(len(objects)) as pool:
            return list(dict.fromkeys(note for note in pool.map(ask, objects) if note is not None))
    finally:
        client.close()
