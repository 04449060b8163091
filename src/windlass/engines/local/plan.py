"""Plans a run on this machine from the job and the facts of the machine. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from windlass.code.imports import modules_to_preload, slow_modules
from windlass.engines import netns
from windlass.engines.local import launchers
from windlass.engines.local.facts import Facts
from windlass.engines.sources import own_folders
from windlass.engines.travel import import_folder
from windlass.errors import PlanError, Problem
from windlass.plan import arguments
from windlass.plan.compose import NodeTemplate
from windlass.plan.environment import SERVICE_DIR, contract, known_at_start, secret_variable
from windlass.plan.notes import Note, blocker, lone_ranks, time_limit
from windlass.plan.plan import Plan, Policy
from windlass.plan.price import price
from windlass.plan.steps import FolderStep, NetworkStep, QueueStep, StageStep, Step, UploadStep, node_steps
from windlass.runs.private import service_folder
from windlass.spec.labels import SERVICE_LABEL
from windlass.storage.address import HTTP, STORES
from windlass.stores.gs_az import INSTALL
from windlass.worker import masking
from windlass.worker.devices import VISIBLE, num_visible
from windlass.worker.protocol import CollectSpec, NoticeSpec

if TYPE_CHECKING:
    from windlass.spec.job import Job
    from windlass.spec.sections import Data
    from windlass.spec.targets import LocalTarget

NOT_HERE = {
    "image": "ranks run under the interpreter of this machine",
    "queue": "a target has one queue here, of its slots",
}
"""Fields without effect on this machine, each with the reason."""
PRIORITIES: Final = {"low": -1, "normal": 0, "high": 1}
"""Named priorities, with their numbers; jobs may also give whole numbers."""


WITHOUT_EXTRA: Final = ("file", "s3", *HTTP)
"""Address schemes that work without the extra `data`."""
KNOWN_STORES: Final = "supported are s3://, gs://, az://, file:// and folder paths"
FROM_ROOT: Final = "write file:///PATH"
NOTICE_SECONDS = 5.0
"""Seconds between two polls of the instance metadata, as AWS recommends; AWS gives notices two minutes in advance."""
REHEARSED_RANKS = 4
"""Maximum ranks per core of a multi-node job that counts as a rehearsal, and gets no warning about speed."""
OLDEST_PYTHON: Final = (3, 9)
"""Oldest Python version of a script's interpreter in which the node worker can run."""
MAX_RANKS = 4096
"""Maximum number of ranks of a plan for one machine."""


def plan(job: Job, target: LocalTarget, facts: Facts, run_id: str) -> Plan:
    """Returns the plan of one run on this machine. Problems are listed in its notes."""
    num_nodes = job.nodes.max
    procs = _procs_per_node(job, target, facts, num_nodes)
    if num_nodes * procs > MAX_RANKS:  # building a plan of this size could exhaust the memory
        message = f"{num_nodes * procs} ranks are more than this machine can start"
        raise PlanError([Problem(job.name, "", message, f"ask for at most {MAX_RANKS}")])
    run_dir = f"{facts.home}/runs/{run_id}"
    output_dir = f"{run_dir}/output" if facts.outputs_dir is None else str(PurePosixPath(facts.outputs_dir) / run_id)
    steps: list[Step] = [FolderStep(f"make {output_dir}", output_dir, f"{run_dir}/checkpoints", facts.base)]
    steps += _queue(job, target, facts, num_nodes, procs)
    steps += _stagings(job, facts, run_dir)
    steps += _upload(job, facts, run_id, output_dir)
    network = netns.describe(run_id, facts.home, num_nodes, job.local.rate) if job.local.netns else None
    if network is not None:
        steps.append(network)
    nodes = _nodes(job, target, facts, run_id, num_nodes, procs, output_dir, run_dir, network)
    return Plan(
        run_id=run_id,
        name=job.name,
        target=target.name,
        engine="local",
        output_dir=output_dir,
        num_nodes=num_nodes,
        procs_per_node=procs,
        # The policy has no port for separate networks, in which all ports are free.
        policy=Policy.of_job(job).replace(port=None if job.local.netns else job.local.port),
        job=job.model_dump(mode="json", exclude_defaults=True),
        steps=(*steps, *node_steps(nodes, job)),
        notes=(
            *_refusals(job, facts),
            *_queue_notes(job, target, num_nodes, procs),
            *_warnings(job, target, facts, num_nodes, procs),
            *arguments.left_over(job, nodes.common),
            *arguments.hidden_launchers(job),
        ),
        price=price(target.price_per_hour, target.currency, num_nodes, f"target {target.name}"),
        nodes=nodes,
    )


def _procs_per_node(job: Job, target: LocalTarget, facts: Facts, num_nodes: int) -> int:
    if job.procs_per_node != "auto":
        return job.procs_per_node
    return max(1, job.resources.gpus or _num_gpus(job, target, facts) // num_nodes)


def _num_gpus(job: Job, target: LocalTarget, facts: Facts) -> int:
    """Returns the number of GPUs that are visible to the ranks by CUDA_VISIBLE_DEVICES, counted like torchrun."""
    chosen = {**target.env, **job.env}.get(VISIBLE)
    visible = facts.num_visible_gpus if chosen is None else num_visible(chosen)
    return len(facts.gpus) if visible is None else min(visible, len(facts.gpus))


def _queue(job: Job, target: LocalTarget, facts: Facts, num_nodes: int, procs: int) -> list[QueueStep]:
    """Returns the step that waits for slots of the target before the first attempt. Services take no slots."""
    if target.slots is None or SERVICE_LABEL in job.labels:
        return []
    takes, priority = num_nodes * (job.resources.gpus or procs), _priority(job)
    # Slots are GPUs, unless a variable already selects the GPUs of the ranks.
    is_gpu = target.slots <= len(facts.gpus) and VISIBLE not in {*facts.environ, *target.env, *job.env}
    summary = f"wait for {takes} of {target.slots} slots of {target.name}"
    return [QueueStep(summary, takes, target.slots, priority or 0, is_gpu)]


def _priority(job: Job) -> int | None:
    """Returns the job's priority in a queue of this machine; None if the name exists only on clusters."""
    name = job.priority or "normal"
    return PRIORITIES.get(name, int(name) if name.isascii() and name.isdigit() else None)


def _queue_notes(job: Job, target: LocalTarget, num_nodes: int, procs: int) -> Iterator[Note]:
    """Yields notes about problems with the slots or the priority of a job."""
    if SERVICE_LABEL in job.labels:
        return
    if target.slots is None:
        if job.priority is not None:
            yield Note(
                "priority-unused",
                "priority: has no meaning on this machine: runs start at once",
                f"slots: of target {target.name} in targets.yaml makes them wait",
            )
        return
    takes = num_nodes * (job.resources.gpus or procs)
    if takes > target.slots:
        what = "GPUs" if job.resources.gpus else "ranks"
        yield blocker(
            "slots-exceeded",
            f"{takes} {what} take {takes} slots, and target {target.name} has {target.slots}",
            "request fewer, or raise slots: in targets.yaml",
        )
    if _priority(job) is None:
        yield Note(
            "priority-unknown",
            f"priority: {job.priority} counts as normal on this machine",
            f"known here are {', '.join(PRIORITIES)} and whole numbers",
        )


def _stagings(job: Job, facts: Facts, run_dir: str) -> list[StageStep]:
    return [
        StageStep(
            f"stage {data.source} as ${data.env_name}",
            name=data.name,
            source=data.source,
            link=_data_path(data, facts, run_dir),
            python=facts.own_python,
        )
        for data in job.data
        if data.is_staged
    ]


def _upload(job: Job, facts: Facts, run_id: str, output_dir: str) -> list[UploadStep]:
    if job.outputs.to is None or not job.outputs.scheme:
        return []
    return [UploadStep.of_job(job, output_dir, f"{job.outputs.to.rstrip('/')}/{run_id}/", facts.own_python)]


def _data_path(data: Data, facts: Facts, run_dir: str) -> str:
    """Returns the path or address at which ranks read a data set."""
    if data.is_staged:
        return f"{run_dir}/data/{data.name}"
    return facts.data_paths.get(data.name, data.source)


def _nodes(
    job: Job,
    target: LocalTarget,
    facts: Facts,
    run_id: str,
    num_nodes: int,
    procs: int,
    output_dir: str,
    run_dir: str,
    network: NetworkStep | None,
) -> NodeTemplate:
    promised = contract(
        run_id=run_id,
        launcher=job.launcher,
        max_restarts=job.restarts.max,
        output_dir=output_dir,
        checkpoint_dir=job.checkpoint.location(run_id, f"{run_dir}/checkpoints"),
        data={data.name: _data_path(data, facts, run_dir) for data in job.data},
        checkpoint_every=job.checkpoint.every,
        checkpoint_keep=job.checkpoint.keep,
    )
    if SERVICE_LABEL in job.labels:
        promised[SERVICE_DIR] = str(service_folder(facts.home, run_id))
    defaults = _defaults(job, facts, num_nodes * procs, run_dir)
    common = {**promised, **defaults, **target.env, **job.env}
    chosen = {*facts.environ, *common}
    networks = netns.node_specs(network) if network is not None else ()
    is_program = job.script_kind == "program"
    notices = NoticeSpec(facts.metadata_endpoint, NOTICE_SECONDS) if facts.metadata_endpoint is not None else None
    return NodeTemplate(
        run_id=run_id,
        num_nodes=num_nodes,
        procs_per_node=procs,
        script=f"{facts.code_dir}/{job.script_argv[0]}",
        worker_python=facts.own_python if is_program else facts.python,
        cwd=facts.code_dir,
        argv=(*_program(job, facts), *arguments.script_arguments(job, common)),
        argv_by_rank=arguments.differ_by_rank(job),
        contract=promised,
        defaults=defaults,
        target_env=target.env,
        job_env=job.env,
        grace_seconds=job.grace,
        node_env={} if VISIBLE in chosen else _devices(facts, num_nodes, procs),
        known_at_start=known_at_start(job.launcher, is_python=not is_program, taken=chosen),
        progress=job.progress,
        setup=job.setup or "",
        warm=tuple(modules_to_preload(job, facts.script_imports)),
        imports=slow_modules(facts.script_imports),
        # the folders of Windlass in the code folder are skipped
        collect=CollectSpec(job.outputs.collect, own_folders(facts.home, output_dir), is_shared=True),
        resume=arguments.resume_spec(job, common, facts.code_dir),
        notices=notices,
        networks=networks,
        launchers=launchers.launcher(job, facts, num_nodes, procs, networks),
        launcher=job.launcher,
        one_worker=job.launcher == "mpi",
    )


def _defaults(job: Job, facts: Facts, num_ranks: int, run_dir: str) -> dict[str, str]:
    """Returns variables that are added to the inherited environment of ranks unless the user sets them."""
    defaults = {
        # The ranks share the cores. torchrun would give each rank a single thread.
        "OMP_NUM_THREADS": str(max(1, facts.num_cpus // num_ranks)),
        # Output appears line by line, and a crash in native code prints a traceback.
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        # By default gloo resolves the host name, which on laptops often yields an unreachable address.
        "GLOO_SOCKET_IFNAME": "lo",
        # Number of collectives that each rank records for `why`. Dumping 2000 blocks the interpreter for 0.1 s.
        "TORCH_FR_BUFFER_SIZE": "2000" if facts.gpus else "256",
    }
    if facts.gpus:  # NCCL's watchdog dumps unfinished collectives on a timeout
        defaults |= {
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_DUMP_TEMP_FILE": f"{run_dir}/nccl-trace-rank-",
        }
    env = {name: value for name, value in defaults.items() if name not in facts.environ}
    if job.local.netns:  # in separate networks, all nodes use one interface name
        env |= {"GLOO_SOCKET_IFNAME": netns.INTERFACE, "NCCL_SOCKET_IFNAME": netns.INTERFACE}
        env |= {"MASTER_PORT": str(job.local.port)} if job.local.port else {}
    if job.secrets:
        env[masking.VARIABLES] = ",".join(map(secret_variable, job.secrets))
    if not facts.python_is_ours:
        env["PYTHONPATH"] = import_folder(facts.home, facts.package_root)
    return env


def _program(job: Job, facts: Facts) -> list[str]:
    if job.script_kind == "program":
        return [facts.program or job.script_argv[0]]
    return [facts.python, f"{facts.package_root}/windlass/worker/rank.py"]


def _devices(facts: Facts, num_nodes: int, procs: int) -> dict[str, dict[str, str]]:
    """Returns variables that show each node only the GPUs of its ranks, so that `LOCAL_RANK` is the GPU index.

    Empty if there are fewer GPUs than ranks, which `_warnings` reports.
    """
    if num_nodes == 1 or len(facts.gpus) < num_nodes * procs:
        return {}
    return {
        str(node): {VISIBLE: ",".join(str(gpu) for gpu in range(node * procs, (node + 1) * procs))}
        for node in range(num_nodes)
    }


def _refusals(job: Job, facts: Facts) -> Iterator[Note]:
    """Yields blockers for unsupported fields and for missing programs."""
    if not facts.code_dir_found:
        yield blocker("code-missing", f"{facts.code_dir} is not an existing folder", "set code: to the script's folder")
    elif not facts.script_found and not job.setup:  # `setup` may still create a missing script
        script = job.script_argv[0]
        yield blocker("script-missing", f"{script} is not in {facts.code_dir}", "check run: and code:")
    elif job.script_kind == "program" and facts.program is None and not job.setup:
        program = job.script_argv[0]
        if facts.is_program_file:
            yield blocker("program-not-executable", f"{program} is not executable", f"chmod +x {shlex.quote(program)}")
        else:
            yield blocker("program-missing", f"{program} was not found", "give its path, or install it")
    if job.script_kind != "program" and not job.setup:  # `setup` may still create a missing interpreter
        yield from _interpreter_refusals(facts)
    if job.launcher == "mpi" and facts.launchers.get("mpirun") is None:
        yield blocker(
            "mpirun-missing",
            "launcher: mpi, and no mpirun is on the PATH",
            "install Open MPI (Debian: apt-get install openmpi-bin)",
        )
    elif job.launcher == "mpi" and not facts.is_open_mpi:
        yield blocker(
            "mpirun-other",
            f"{facts.launchers['mpirun']} is not Open MPI's",
            "put Open MPI's mpirun first on the PATH (Debian: apt-get install openmpi-bin)",
        )
    if not facts.has_obstore and facts.python_found and not job.setup:
        address = next(job.obstore_addresses())
        yield blocker(
            "obstore-missing",
            f"ranks reach {address} by obstore, which {facts.python} lacks",
            f"{INSTALL} there, or set python: to one that has it",
        )
    if job.local.netns:
        yield from _network_refusals(job, facts)
    yield from _data_refusals(job, facts)
    yield from _outputs_refusals(job, facts)
    if job.volumes:
        yield blocker("volumes", "volumes: exist on Kubernetes only", "use data: and outputs: here")
    for name in job.secrets:
        variable = secret_variable(name)
        if variable not in facts.environ:
            yield blocker("secret-missing", f"secret {name}: {variable} is not set", f"export {variable} and run again")
    if job.notify is not None and (variable := secret_variable(job.notify)) not in facts.environ:
        yield Note(
            "notify-missing",
            f"notify: {variable} is not set, so no notification is sent at the end",
            f"export {variable} with the address of the webhook",
        )


def _data_refusals(job: Job, facts: Facts) -> Iterator[Note]:
    """Yields blockers for data sets that cannot be staged or streamed on this machine."""
    for data in job.data:
        if not data.is_remote or data.is_streamed:
            continue
        if data.scheme not in (*STORES, *HTTP, "file"):
            known = f"{KNOWN_STORES}, https:// and http://"
            yield blocker("data-unknown", f"data {data.name}: {data.scheme}:// is no known kind of store", known)
        elif not _is_absolute(data.source):
            yield blocker("data-unknown", f"data {data.name}: {data.source} has no path from the root", FROM_ROOT)
        elif data.via != "copy":
            yield blocker(
                "data-via",
                f"data {data.name}: via: {data.via} does not exist on this machine",
                "leave it out: the set is copied to the cache of this machine; or: via: stream",
            )
        elif data.scheme not in WITHOUT_EXTRA and not facts.has_data_extra:
            yield blocker("data-extra", f"data {data.name}: {data.source} needs the extra `data`", INSTALL)


def _is_absolute(address: str) -> bool:
    """Whether paths in the address are absolute: True unless it is a `file://` URL with a relative path."""
    return not address.startswith("file://") or address.startswith("file:///")


def _outputs_refusals(job: Job, facts: Facts) -> Iterator[Note]:
    """Yields blockers for destinations to which outputs cannot be uploaded from this machine."""
    scheme = job.outputs.scheme
    if scheme and scheme not in (*STORES, "file"):
        yield blocker("outputs-unknown", f"outputs: {scheme}:// is no known kind of store", KNOWN_STORES)
    elif job.outputs.to and not _is_absolute(job.outputs.to):
        yield blocker("outputs-unknown", f"outputs: {job.outputs.to} has no path from the root", FROM_ROOT)
    elif scheme and scheme not in WITHOUT_EXTRA and not facts.has_data_extra:
        yield blocker("data-extra", f"outputs: {job.outputs.to} needs the extra `data`", INSTALL)
    elif facts.bad_outputs is not None:
        problem, hint = facts.bad_outputs
        yield blocker("outputs-store" if scheme else "outputs-folder", f"outputs: {problem}", hint)


def _interpreter_refusals(facts: Facts) -> Iterator[Note]:
    version = facts.python_version
    if not facts.python_found:
        yield blocker(
            "python-missing", f"no interpreter at {facts.python}", "set python: to one that has your packages"
        )
    elif version is not None and version < OLDEST_PYTHON:
        found = f"{facts.python} is Python {version[0]}.{version[1]}, and ranks need Python 3.9 or newer"
        yield blocker("python-too-old", found, "set python: to a newer one that has your packages")
    if ":" in facts.home and not facts.python_is_ours:
        found = f"{facts.python} imports nothing from below {facts.home}: a colon parts the folders of PYTHONPATH"
        yield blocker("home-colon", found, "set WINDLASS_HOME to a folder without a colon in its path")


def _network_refusals(job: Job, facts: Facts) -> Iterator[Note]:
    """Yields blockers for nodes with separate networks."""
    if facts.missing_network_tools:
        tools = " and ".join(sorted(facts.missing_network_tools))
        yield blocker(
            "netns-tools", f"local.netns: {tools} not found", "install iproute2 (Debian: apt-get install iproute2)"
        )
    if facts.missing_capabilities:
        rights = " and ".join(sorted(facts.missing_capabilities))
        yield blocker(
            "netns-rights",
            f"local.netns makes networks, which needs root (here without {rights})",
            "run it by sudo, or leave local.netns out",
        )
    if job.nodes.max > netns.MAX_NODES:
        yield blocker(
            "netns-nodes", f"local.netns: {job.nodes.max} nodes, and a bridge joins {netns.MAX_NODES}", "fewer nodes"
        )


def _warnings(job: Job, target: LocalTarget, facts: Facts, num_nodes: int, procs: int) -> Iterator[Note]:
    ranks = num_nodes * procs
    if procs > facts.num_cpus or ranks > REHEARSED_RANKS * facts.num_cpus:
        yield Note("ranks-exceed-cores", f"{ranks} ranks share {facts.num_cpus} cores", "fewer ranks run faster here")
    asked = job.resources.gpus * num_nodes
    if asked > len(facts.gpus):
        found = f"this machine has {len(facts.gpus) or 'none'}"
        yield Note("gpus-missing", f"GPUs requested: {asked}; {found}", "the script must run on the CPU to run here")
    if num_nodes > 1 and facts.gpus and VISIBLE in {*facts.environ, *target.env, *job.env}:
        yield Note(
            "gpus-shared",
            f"{VISIBLE} is set: all {num_nodes} nodes see the GPUs that it names, so LOCAL_RANK "
            "0 of each is on the same one",
            "leave it out: each node then sees only its own GPUs",
        )
    elif num_nodes > 1 and 0 < len(facts.gpus) < ranks:
        had = "1 GPU" if len(facts.gpus) == 1 else f"{len(facts.gpus)} GPUs"
        yield Note(
            "gpus-shared",
            f"{ranks} ranks and {had}: all {num_nodes} nodes see the same ones, so LOCAL_RANK 0 "
            "of each is on the same one",
            "use gloo: NCCL does not support two ranks on one GPU",
        )
    if job.local.port in facts.busy_ports and not job.local.netns:
        yield blocker("port-busy", f"port {job.local.port} is in use", "leave local.port out: a free one is reserved")
    for name, problem in facts.bad_data.items():
        yield blocker("data-missing", f"data {name}: {problem}", "check source:")
    no_gpus, env = "" if facts.gpus else "no GPU is here", {*facts.environ, *target.env, *job.env}
    yield from lone_ranks(job, ranks, facts.script_imports, env, no_gpus=no_gpus)
    yield from time_limit(job, facts.saves_at_end)
    if job.nodes.is_elastic and job.launcher == "mpi":
        asked_range = f"{job.nodes.min}–{job.nodes.max} nodes were requested"
        yield Note(
            "elastic-fixed",
            f"{asked_range}: mpirun starts {num_nodes} and ends with the first that is lost",
            "launcher: torchrun continues with fewer",
        )
    if job.restarts.max == 0 and job.restarts.on != type(job.restarts)().on:
        causes = ", ".join(job.restarts.on)
        yield Note("restarts-none", f"restarts.on names {causes}, but restarts.max is 0: none is made", "add max: 3")
    for name, default in (("via", "auto"), ("runtime", None)):
        if getattr(job.kubernetes, name) != default:
            yield Note(
                f"{name}-unused",
                f"kubernetes.{name} has no meaning on this machine: no object of a cluster is made",
                "it is kept for other targets",
            )
    for name, why in NOT_HERE.items():
        if getattr(job, name) is not None:
            yield Note(
                f"{name}-unused", f"{name}: has no meaning on this machine: {why}", "it is kept for other targets"
            )
