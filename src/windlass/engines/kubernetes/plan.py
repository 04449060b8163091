"""Turns a job and the facts of a cluster into a plan: every object, and what each node is asked to do. Pure."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from windlass.code.imports import ahead
from windlass.code.pack import Packed
from windlass.engines.kubernetes import layout, manifests, staying
from windlass.engines.kubernetes.facts import Facts
from windlass.engines.kubernetes.machinenotes import machine_notes, machine_steps, node_price
from windlass.engines.kubernetes.manifests import Shape
from windlass.engines.kubernetes.queuenotes import queue_notes
from windlass.engines.kubernetes.runtimenotes import runtime_notes
from windlass.engines.kubernetes.runtimes import image_and_user, runtime_of
from windlass.engines.kubernetes.waynotes import way_notes
from windlass.engines.kubernetes.ways import WAYS, mpijob
from windlass.engines.kubernetes.ways.base import Manifest
from windlass.engines.kubernetes.ways.runtimes import Runtime
from windlass.plan import arguments
from windlass.plan.launch import torchrun_request
from windlass.plan.placement import Place, job_environment, known_at_start, place, rank_environment
from windlass.plan.plan import Note, Plan, Step
from windlass.plan.policy import policy
from windlass.plan.price import price
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget

IMAGE: Final = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"
PYTHON: Final = "python3"
PIECE_BYTES: Final = 1_000_000
"""An object may hold 1 MiB."""
MAX_PIECES: Final = 8
OUTPUT: Final = f"{layout.RESULTS}/output"
CHECKPOINTS: Final = f"{layout.RESULTS}/checkpoints"


def plan(job: Job, target: KubernetesTarget, facts: Facts, run_id: str, boot: str) -> Plan:
    """The plan of one run on a cluster. `boot` is the program that unpacks the code. What is against it is in notes."""
    num_nodes = job.nodes.max
    procs = max(1, job.resources.gpus) if job.procs_per_node == "auto" else job.procs_per_node
    asked, why = choose(job, target, facts)
    via = asked if asked in WAYS else "job"  # of another there is no more to say than that it is not known
    named = job.kubernetes.runtime if via == "trainjob" else None
    seen = facts.cluster.runtimes if facts.cluster is not None else None
    runtime = runtime_of(named, job.kubernetes.runtime_kind, seen)
    shape = Shape(
        run_id=run_id,
        namespace=job.kubernetes.namespace or target.namespace,
        via=via,
        image=_image(job, target, runtime),
        python=job.python or target.python or PYTHON,
        user=target.user,
        code_digest=facts.code.digest if facts.code is not None else "0" * 64,
        num_pieces=num_pieces(facts),
        procs_per_node=procs,
        pull_secrets=tuple(dict.fromkeys((*target.image_pull_secrets, *job.kubernetes.image_pull_secrets))),
        gpu_label=_gpu_label(job, facts),
        runtime=runtime,
    )
    made = tuple(_objects(shape, job, facts, boot))
    return Plan(
        run_id=run_id,
        name=job.name,
        target=target.name,
        engine="kubernetes",
        output_dir=_output(job, run_id),
        num_nodes=num_nodes,
        procs_per_node=procs,
        policy=policy(job),
        job=job.model_dump(mode="json", exclude_defaults=True),
        steps=(
            Step("cluster", f"{why}: {WAYS[via].api} in namespace {shape.namespace} of context {target.context}", {
                "context": target.context, "namespace": shape.namespace, "via": via, "why": why,
                "kubeconfig": facts.kubeconfig, **(image_and_user(seen, shape.image, shape.user) if runtime else {}),
            }),
            *made,
            *machine_steps(made, facts.cluster, target),
            *_nodes(shape, job, target, facts, num_nodes, procs),
        ),
        notes=(
            *_refusals(job, target, facts, asked),
            *queue_notes(job, facts.cluster),
            *machine_notes(made, facts.cluster),
            *runtime_notes(job, facts.cluster, asked),
            *_warnings(job, target, facts),
            *arguments.left_over(_words(job), _places()),
        ),
        price=price(
            node_price(job, made, facts.cluster, target), target.currency, num_nodes, f"target {target.name}"
        ),
    )  # fmt: skip


def choose(job: Job, target: KubernetesTarget, facts: Facts) -> tuple[str, str]:
    """How the job runs there, and why so."""
    if job.kubernetes.via != "auto":
        return job.kubernetes.via, "kubernetes.via of the job"
    if job.kubernetes.runtime is not None:
        return "trainjob", "kubernetes.runtime of the job"
    if target.via != "auto":
        return target.via, f"via of target {target.name}"
    if job.launcher == "mpi":
        return "mpijob", "launcher: mpi"
    if job.nodes.max > 1 and facts.cluster is not None and WAYS["jobset"].api in facts.cluster.groups:
        if facts.cluster.unfit:
            return "job", f"JobSet is installed and cannot be used ({facts.cluster.unfit})"
        return "jobset", "several nodes, and JobSet is installed"
    return "job", "needs no operator"


def num_pieces(facts: Facts) -> int:
    """Objects that the code fills."""
    return -(-len(facts.code.data) // PIECE_BYTES) if facts.code is not None else 0


def attempt_objects(plan: Plan) -> list[Mapping[str, Any]]:
    """The objects of the first attempt, the one that makes the pods last."""
    return [*plan.requests("attempt-part"), *plan.requests("attempt")]


def numbered(plan: Plan, number: int, num_nodes: int) -> list[Manifest]:
    """The objects of attempt `number` on so many nodes, from a plan alone."""
    way = WAYS[plan.requests("cluster")[0]["via"]]
    found = [_numbered(one, plan.run_id, number) for one in attempt_objects(plan)]
    for one in found:
        way.resize(one, num_nodes)
    return found


# -- steps ------------------------------------------------------------------------------------------------------------


def _objects(shape: Shape, job: Job, facts: Facts, boot: str) -> Iterator[Step]:
    code = facts.code
    size = f"{len(code.data) / 1e6:.2f} MB of {len(code.files)} files" if code is not None else "no code"
    yield Step("object", f"make ConfigMap {shape.run_id}, which owns all others", manifests.anchor(shape, job, boot))
    yield Step(
        "code",
        f"send the code, {size}, in {shape.num_pieces or 'no'} pieces",
        {
            "folder": facts.code_dir,
            "digest": shape.code_digest,
            "bytes": len(code.data) if code is not None else 0,
            **(_travelling(code) if code is not None else {}),
            "pieces": [manifests.piece(shape, job, number) for number in range(shape.num_pieces)],
        },
    )
    yield Step("object", f"make Service {shape.run_id}, by which pods find each other", manifests.service(shape, job))
    if (claim := manifests.claim(shape, job)) is not None:
        kept = "kept" if job.kubernetes.results is not None and job.kubernetes.results.keep else "removed with the run"
        yield Step("claim", f"make PersistentVolumeClaim {shape.run_id}, {kept}", claim)
    *parts, made = manifests.attempt(shape, job, 1, job.nodes.max)
    for part in parts:
        yield Step(
            "attempt-part", f"make {part['kind']} {part['metadata']['name']}, which the next one refers to", part
        )
    yield Step("attempt", f"make {made['kind']} {made['metadata']['name']}, and one more for each restart", made)


def _travelling(code: Packed) -> dict[str, Any]:
    """What a user checks of the code before it leaves this machine."""
    return {
        "unpacked_bytes": code.num_bytes,
        "files": [{"name": name, "bytes": size} for name, size in code.files],
        "left_out": [
            {"source": rule.source, "pattern": rule.pattern, "entries": rule.num_entries} for rule in code.left_out
        ],
        "added": {"files": code.num_added, "bytes": code.added_bytes},
    }


def _numbered(made: Mapping[str, Any], run_id: str, number: int) -> Manifest:
    """The manifest of attempt 1 as that of attempt `number`."""
    first, name = layout.attempt_name(run_id, 1), layout.attempt_name(run_id, number)

    def changed(value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {name: changed(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [changed(one) for one in value]
        if key == layout.ATTEMPT_LABEL:
            return str(number)
        return name if value == first and key == "name" else value

    found: Manifest = changed(made)
    return found


def _nodes(
    shape: Shape, job: Job, target: KubernetesTarget, facts: Facts, num_nodes: int, procs: int
) -> Iterator[Step]:
    common = _environment(shape, job, target, num_nodes, procs)
    for places in place(num_nodes, procs):
        request = {**_node(shape, job, common, places), "warm": ahead(job, facts.script_imports)}
        guest = [shape.python, "-I", "-S", f"{layout.TRAVEL}/windlass/worker/guest.py"]
        if job.launcher == "mpi":
            request["launch"] = mpijob.launch_request(places[0].node, num_nodes, procs, guest)
        elif num_nodes > 1 and job.launcher == "torchrun":
            request["launch"] = torchrun_request(
                python=shape.python,
                guest=guest,
                run_id=shape.run_id,
                node=places[0].node,
                procs_per_node=procs,
                grace_seconds=job.grace,
            )
        yield Step("node", _summary(job, places, request.get("launch", {}).get("name", "")), request)


def _places() -> dict[str, str]:
    """The folders whose names may stand in the words of a job."""
    return {"WINDLASS_OUTPUT_DIR": OUTPUT, "WINDLASS_CHECKPOINT_DIR": CHECKPOINTS}


def _environment(shape: Shape, job: Job, target: KubernetesTarget, num_nodes: int, procs: int) -> dict[str, str]:
    """What every rank gets on top of what the image and the cluster give."""
    env = job_environment(
        run_id=shape.run_id,
        num_nodes=num_nodes,
        procs_per_node=procs,
        max_restarts=job.restarts.max,
        output_dir=OUTPUT,
        checkpoint_dir=CHECKPOINTS,
        data={data.name: data.source for data in job.data},
        checkpoint_every=job.checkpoint.every,
        checkpoint_keep=job.checkpoint.keep,
    )
    env |= {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": layout.TRAVEL}
    if job.resources.cpus is not None:  # ranks must not fight for the cores of their pod
        env["OMP_NUM_THREADS"] = str(max(1, int(job.resources.cpus) // procs))
    if job.resources.gpus:
        env |= {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    return {**env, **target.env, **job.env}


def _node(shape: Shape, job: Job, common: dict[str, str], places: tuple[Place, ...]) -> dict[str, Any]:
    """What one pod is asked to do; the attempt's own facts are added when it starts."""
    words = job.script_argv[1:] if job.script_kind == "program" else job.script_argv
    words = tuple(words) if job.command is not None else tuple(arguments.fill_in(words, common))
    program = [job.script_argv[0]] if job.script_kind == "program" else [
        shape.python, f"{layout.TRAVEL}/windlass/worker/rank.py"
    ]  # fmt: skip
    return {
        "node": places[0].node,
        "host": f"node-{places[0].node}",
        "script": posixpath.join(layout.CODE, job.script_argv[0]),
        "worker_python": shape.python,
        "cwd": layout.CODE,
        "env": common,
        "known_at_start": list(known_at_start(is_python=job.script_kind != "program", taken=set(common))),
        "ranks": [
            {"rank": p.rank, "local_rank": p.local_rank, "argv": [*program, *words], "env": rank_environment(p)}
            for p in places
        ],
        "grace_seconds": job.grace,
        "progress": job.progress,
        "stay_seconds": staying.SECONDS if job.restarts.max else 0.0,
        **arguments.resume_request(job, common, layout.CODE),
    }


def _words(job: Job) -> list[str]:
    return [*(() if job.run is None else job.script_argv), job.checkpoint.find or "", *job.resume_argv]


def _summary(job: Job, places: tuple[Place, ...], launcher: str) -> str:
    ranks = f"rank {places[0].rank}" if len(places) == 1 else f"ranks {places[0].rank}–{places[-1].rank}"
    shown = job.script_argv if job.script_kind == "program" else ("python", *job.script_argv)
    by = {"torchrun": " by an agent of torchrun", "mpirun": " by mpirun", "sshd": " by mpirun"}.get(launcher, "")
    return f"start node {places[0].node}, {ranks}{by}: {shlex.join(shown)}"


def _output(job: Job, run_id: str) -> str:
    results = job.kubernetes.results
    if results is None:
        return f"in the pods of {run_id}, while they are there"
    return f"claim {results.claim or run_id}: windlass/{run_id}/output"


def _image(job: Job, target: KubernetesTarget, runtime: Runtime | None) -> str:
    """The image of the pods; empty where it is that of the runtime on which they stand."""
    return job.image or ("" if runtime is not None else target.image or IMAGE)


def _gpu_label(job: Job, facts: Facts) -> tuple[str, str] | None:
    """The label that machines with the GPU type have: one whose value has the type as a word."""
    if job.resources.gpu_type is None or facts.cluster is None:
        return None
    wanted = job.resources.gpu_type.lower()
    for label, value in facts.cluster.gpu_labels:
        if wanted in (value.lower(), *value.lower().replace("_", "-").split("-")):
            return label, value
    return None


# -- notes ------------------------------------------------------------------------------------------------------------


def _blocker(code: str, message: str, fix: str) -> Note:
    return Note(code, message, fix, blocks=True)


def _refusals(job: Job, target: KubernetesTarget, facts: Facts, via: str) -> Iterator[Note]:
    """What the cluster, or this version, cannot do for the job."""
    if not facts.code_dir_found:
        yield _blocker("code-missing", f"the folder {facts.code_dir} is not there", "set code: to the script's folder")
    elif not facts.script_found:
        yield _blocker("script-missing", f"{job.script_argv[0]} is not in {facts.code_dir}", "check run: and code:")
    if facts.code_problem is not None:
        yield _blocker("code-unpacked", *facts.code_problem)
    elif facts.code is not None and num_pieces(facts) > MAX_PIECES:
        largest = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in facts.code.largest)
        yield _blocker(
            "code-too-large",
            f"the code is {len(facts.code.data) / 1e6:.1f} MB compressed, and {MAX_PIECES * PIECE_BYTES / 1e6:.0f} MB "
            "travel in objects of the cluster",
            f"largest: {largest}; name what is no code in .windlassignore, or put it into the image",
        )
    yield from way_notes(job, facts.cluster, via)
    if "/" in (job.python or "") and not (job.python or "").startswith("/"):
        yield _blocker("python-relative", f"python: {job.python} is a path on this machine",
                       "give the interpreter's path in the image, or leave it out")  # fmt: skip
    for data in job.data:
        if not data.source.startswith("/"):
            yield _blocker("data-remote", f"data {data.name}: {data.source} is not brought to a cluster yet",
                           "mount it by volumes: and give its path there as source:")  # fmt: skip
    if job.outputs is not None:
        yield _blocker("outputs", "outputs: a cluster keeps results in a claim",
                       "write kubernetes: {results: {size: 20GiB}} instead")  # fmt: skip
    yield from _cluster_refusals(job, target, facts)


def _cluster_refusals(job: Job, target: KubernetesTarget, facts: Facts) -> Iterator[Note]:
    cluster = facts.cluster
    if cluster is None:
        yield _blocker("cluster-unreachable", facts.unreachable, "is it the right context, and is it up?")
        return
    if cluster.missing:
        yield _blocker("rights-missing", f"this login may not {', '.join(cluster.missing)}",
                       f"windlass check --on {target.name} --role prints the role that grants these")  # fmt: skip
    for name in job.secrets:
        if cluster.secrets is not None and name not in cluster.secrets:
            yield _blocker("secret-missing", f"secret {name} is not in the namespace",
                           f"kubectl create secret generic {name} --from-literal=NAME=value")  # fmt: skip
    results = job.kubernetes.results
    wanted = [volume.claim for volume in job.volumes]
    wanted += [results.claim] if results is not None and results.claim is not None else []
    for claim in wanted:
        if cluster.claims is not None and claim not in cluster.claims:
            yield _blocker("claim-missing", f"the claim {claim} is not in the namespace", "see: kubectl get pvc")
    is_unknown = job.resources.gpu_type is not None and _gpu_label(job, facts) is None
    if is_unknown and cluster.gpu_labels and cluster.machines is None:  # else one may come
        had = ", ".join(sorted({value for _, value in cluster.gpu_labels}))
        yield _blocker(
            "gpu-type-missing", f"no machine has a GPU of type {job.resources.gpu_type}", f"there are: {had}"
        )


def _warnings(job: Job, target: KubernetesTarget, facts: Facts) -> Iterator[Note]:
    if job.kubernetes.results is None:
        yield Note(
            "results-lost",
            "outputs and checkpoints go with the pods: nothing says where to keep them",
            "write kubernetes: {results: {size: 20GiB}} or {claim: NAME}",
        )
    if not job.image and not target.image and job.kubernetes.runtime is None:
        yield Note("image-default", f"no image is named: {IMAGE} is used", "set image:, in the job or the target")
    if job.resources.gpu_type is not None and facts.cluster is not None and not facts.cluster.gpu_labels:
        yield Note("gpu-type-unknown", f"no node says which GPU it has: {job.resources.gpu_type} is not asked for",
                   "set resources.instance")  # fmt: skip
    if facts.cluster is not None and not facts.cluster.is_fenced:
        yield Note("leases-missing", "this login may not use Leases: two supervisors of this run, on machines that "
                   "share its records, are not kept apart", f"windlass check --on {target.name} --role")  # fmt: skip
    if job.local != type(job.local)():
        yield Note("local-unused", "local: has no meaning on a cluster", "it is kept for other targets")
