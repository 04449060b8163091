"""Turns a job and the facts of this machine into a plan: the exact argv, environment and place of every rank. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from windlass.code.imports import ahead
from windlass.engines.local import launch, netns
from windlass.engines.local.facts import Facts
from windlass.errors import PlanError, Problem
from windlass.plan import arguments
from windlass.plan.placement import Place, job_environment, known_at_start, place, rank_environment
from windlass.plan.plan import Note, Plan, Step
from windlass.plan.policy import policy
from windlass.plan.price import price
from windlass.spec.job import Job
from windlass.spec.targets import LocalTarget

NOT_HERE = {
    "image": "ranks run under the interpreter of this machine",
    "queue": "runs start at once",
    "priority": "runs start at once",
}
"""Fields that say where containers come from and how they queue: on this machine there is nothing they could change."""


DEVICES = "CUDA_VISIBLE_DEVICES"
NOTICE_SECONDS = 5.0
"""Between two questions to the machine's metadata, as AWS advises: a notice comes two minutes ahead."""
MAX_RANKS = 4096
"""As many processes as one machine may reasonably be asked for."""


def plan(job: Job, target: LocalTarget, facts: Facts, run_id: str) -> Plan:
    """The plan of one run on this machine. Whatever stands against it is in its notes."""
    num_nodes = job.nodes.max
    procs = _procs_per_node(job, facts, num_nodes)
    if num_nodes * procs > MAX_RANKS:  # said at once: the plan alone would fill the memory
        message = f"{num_nodes * procs} ranks are more than this machine can start"
        raise PlanError([Problem(job.name, "", message, f"ask for at most {MAX_RANKS}")])
    run_dir = f"{facts.home}/runs/{run_id}"
    output_dir = _output_dir(job, facts, run_id, run_dir)
    # The ports of a network of its own are all free.
    kept = {**policy(job), "port": None if job.local.netns else job.local.port}
    if job.launcher == "plain":  # whatever runs there may bind MASTER_PORT in a way that does not bear our holder
        kept["port_is_free"] = True
    common = _environment(job, target, facts, run_id, num_nodes, procs, output_dir, run_dir)
    places = place(num_nodes, procs)
    steps = [Step("folder", f"make {output_dir}", {"path": output_dir, "checkpoints": f"{run_dir}/checkpoints"})]
    network = netns.describe(run_id, facts.home, num_nodes, job.local.rate) if job.local.netns else None
    if network is not None:
        steps.append(Step("network", _network_summary(network), network))
    started_together = (sum(places, ()),) if job.launcher == "mpi" else places  # one mpirun starts all
    for ranks in started_together:
        node = _node(job, facts, common, ranks, procs) | _in_network(network, ranks)
        if launcher := launch.request(job, facts, run_id, ranks, _reached(network, ranks)):
            node["launch"] = launcher
        steps.append(Step("node", _summary(job, ranks), node))
    return Plan(
        run_id=run_id,
        name=job.name,
        target=target.name,
        engine="local",
        output_dir=output_dir,
        num_nodes=num_nodes,
        procs_per_node=procs,
        policy=kept,
        job=job.model_dump(mode="json", exclude_defaults=True),
        steps=tuple(steps),
        notes=(
            *_refusals(job, facts),
            *_warnings(job, target, facts, num_nodes, procs),
            *arguments.left_over(_words(job), common),
        ),
        price=price(target.price_per_hour, target.currency, num_nodes, f"target {target.name}"),
    )


def _procs_per_node(job: Job, facts: Facts, num_nodes: int) -> int:
    if job.procs_per_node != "auto":
        return job.procs_per_node
    return max(1, job.resources.gpus or len(facts.gpus) // num_nodes)


def _output_dir(job: Job, facts: Facts, run_id: str, run_dir: str) -> str:
    if job.outputs is None or "://" in job.outputs:
        return f"{run_dir}/output"
    return str(PurePosixPath(facts.code_dir) / job.outputs / run_id)


def _environment(
    job: Job, target: LocalTarget, facts: Facts, run_id: str, num_nodes: int, procs: int, output_dir: str, run_dir: str
) -> dict[str, str]:
    """What every rank gets on top of the environment that the command was called in."""
    env = job_environment(
        run_id=run_id,
        num_nodes=num_nodes,
        procs_per_node=procs,
        max_restarts=job.restarts.max,
        output_dir=output_dir,
        checkpoint_dir=f"{run_dir}/checkpoints",
        data={data.name: str(PurePosixPath(facts.code_dir) / data.source) for data in job.data},
        checkpoint_every=job.checkpoint.every,
        checkpoint_keep=job.checkpoint.keep,
    )
    defaults = {
        # Ranks must not fight for cores: torchrun gives each one thread; we share the cores out.
        "OMP_NUM_THREADS": str(max(1, facts.num_cpus // (num_nodes * procs))),
        # A line is to be seen when it is printed, and a crash in native code is to say where.
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        # gloo asks the resolver for this host's name, which on laptops often answers with an address of no use.
        "GLOO_SOCKET_IFNAME": "lo",
        # The last collectives of a rank, for `why`. A dump of 2000 holds the interpreter for a tenth of a second.
        "TORCH_FR_BUFFER_SIZE": "2000" if facts.gpus else "256",
    }
    if facts.gpus:  # which collectives were begun and not ended, written when NCCL's watchdog gives up
        defaults |= {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{run_dir}/nccl-trace-rank-",
        }
    env |= {name: value for name, value in defaults.items() if name not in facts.environ}
    if job.local.netns:  # whatever the device of this machine is called
        env |= {"GLOO_SOCKET_IFNAME": netns.INTERFACE, "NCCL_SOCKET_IFNAME": netns.INTERFACE}
        env |= {"MASTER_PORT": str(job.local.port)} if job.local.port else {}
    if not facts.python_is_ours:
        env["PYTHONPATH"] = f"{facts.home}/travel"
    return {**env, **target.env, **job.env}


def _node(job: Job, facts: Facts, common: dict[str, str], places: tuple[Place, ...], procs: int) -> dict[str, Any]:
    """The request that a node's worker is sent; the attempt's own facts are added when it starts."""
    chosen = {*facts.environ, *common}
    devices = {p.node: _devices(facts, p.node, procs, job.nodes.max, chosen) for p in places}
    words = _arguments(job, common)
    shared = devices[places[0].node] if len(devices) == 1 else {}
    return {
        "node": places[0].node,
        "host": f"node-{places[0].node}",
        "warm": _warm_modules(job, facts),
        "script": f"{facts.code_dir}/{job.script_argv[0]}",
        "worker_python": facts.own_python if job.script_kind == "program" else facts.python,
        "cwd": facts.code_dir,
        "env": {**common, **shared},
        "known_at_start": list(known_at_start(is_python=job.script_kind != "program", taken=chosen)),
        "ranks": [
            {
                "rank": p.rank,
                "local_rank": p.local_rank,
                "argv": [*_program(job, facts), *words],
                "env": rank_environment(p) | ({} if shared else devices[p.node]),
            }
            for p in places
        ],
        "grace_seconds": job.grace,
        "progress": job.progress,
        **arguments.resume_request(job, common, facts.code_dir),
        **_notices(facts, places),
    }


def _notices(facts: Facts, places: tuple[Place, ...]) -> dict[str, Any]:
    """Whom to ask whether this machine is to go away: once for all nodes that it plays."""
    if facts.metadata_endpoint is None or places[0].node != 0:
        return {}
    return {"notices": {"endpoint": facts.metadata_endpoint, "poll_seconds": NOTICE_SECONDS}}


def _in_network(network: Mapping[str, Any] | None, places: tuple[Place, ...]) -> dict[str, Any]:
    """What a node's request says more where it has a network of its own."""
    return {} if network is None else {"network": netns.node_request(network, places[0].node)}


def _reached(network: Mapping[str, Any] | None, places: tuple[Place, ...]) -> dict[str, Any]:
    """The requests of the networks, by host, where one node starts ranks in several."""
    nodes = sorted({place.node for place in places})
    if network is None or len(nodes) == 1:
        return {}
    return {f"node-{node}": netns.node_request(network, node) for node in nodes}


def _network_summary(network: Mapping[str, Any]) -> str:
    addresses = [node["address"] for node in network["nodes"]]
    span = addresses[0] if len(addresses) == 1 else f"{addresses[0]}–{addresses[-1]}"
    rate = f"{network['rate']} each way" if network["rate"] else "no rate"
    return f"make a network with no way out: {span} on {network['interface']}, {rate}"


def _warm_modules(job: Job, facts: Facts) -> list[str]:
    """What a warm process for this job has imported; empty where the ranks are to start cold."""
    return [] if job.local.start == "cold" else ahead(job, facts.script_imports)


def _program(job: Job, facts: Facts) -> list[str]:
    if job.script_kind == "program":
        return [facts.program or job.script_argv[0]]
    return [facts.python, f"{facts.package_root}/windlass/worker/rank.py"]


def _arguments(job: Job, common: Mapping[str, str]) -> list[str]:
    """What the program is given: the words of `run`, with the folders filled in, or those of `command` as they are."""
    words = job.script_argv[1:] if job.script_kind == "program" else job.script_argv
    return list(words) if job.command is not None else arguments.fill_in(words, common)


def _words(job: Job) -> list[str]:
    """All words of the job in which names are filled in."""
    return [*(() if job.run is None else job.script_argv), job.checkpoint.find or "", *job.resume_argv]


def _devices(facts: Facts, node: int, procs: int, num_nodes: int, chosen: Container[str]) -> dict[str, str]:
    """Each node sees the GPUs of its own ranks, so that `LOCAL_RANK` numbers them as on a machine of its own.

    Not where the user has `chosen` them, or where there are too few: then `_warnings` says what that means.
    """
    if num_nodes == 1 or len(facts.gpus) < num_nodes * procs or DEVICES in chosen:
        return {}
    return {DEVICES: ",".join(str(gpu) for gpu in range(node * procs, (node + 1) * procs))}


def _summary(job: Job, places: tuple[Place, ...]) -> str:
    ranks = f"rank {places[0].rank}" if len(places) == 1 else f"ranks {places[0].rank}–{places[-1].rank}"
    shown = job.script_argv if job.script_kind == "program" else ("python", *job.script_argv)
    nodes = sorted({place.node for place in places})
    which = f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {nodes[0]}–{nodes[-1]}"
    by = {"mpi": " by mpirun", "torchrun": " by an agent of torchrun"}
    launcher = by.get("mpi" if job.launcher == "mpi" else job.local.agent, "")
    return f"start {which}, {ranks}{launcher}: {shlex.join(shown)}"


def _refusals(job: Job, facts: Facts) -> Iterator[Note]:
    """What this machine cannot do for the job: the run would be wrong, so it is not begun."""
    if not facts.code_dir_found:
        yield _blocker("code-missing", f"the folder {facts.code_dir} is not there", "set code: to the script's folder")
    elif not facts.script_found:
        script = job.script_argv[0]
        yield _blocker("script-missing", f"{script} is not in {facts.code_dir}", "check run: and code:")
    elif job.script_kind == "program" and facts.program is None:
        yield _blocker("program-missing", f"{job.script_argv[0]} was not found", "give its path, or install it")
    if not facts.python_found and job.script_kind != "program":
        yield _blocker(
            "python-missing", f"no interpreter at {facts.python}", "set python: to one that has your packages"
        )
    if job.launcher == "mpi" and facts.launchers.get("mpirun") is None:
        yield _blocker("mpirun-missing", "launcher: mpi, and no mpirun is on the PATH",
                       "install Open MPI (Debian: apt-get install openmpi-bin)")  # fmt: skip
    elif job.launcher == "mpi" and not facts.is_open_mpi:
        yield _blocker("mpirun-other", f"{facts.launchers['mpirun']} is not Open MPI's",
                       "put Open MPI's mpirun first on the PATH (Debian: apt-get install openmpi-bin)")  # fmt: skip
    if job.local.agent == "torchrun" and facts.python_found and not facts.has_torch:
        yield _blocker("torch-missing", f"local.agent: torchrun, and {facts.python} has no torch",
                       "install torch there, set python: to one that has it, or leave local.agent out")  # fmt: skip
    if job.local.netns:
        yield from _network_refusals(job, facts)
    for data in job.data:
        if "://" in data.source:
            yield _blocker("data-remote", f"data {data.name}: local reads folders only", "copy it here first")
    if job.outputs and "://" in job.outputs:
        yield _blocker("outputs-remote", f"outputs: local cannot write {job.outputs}", "give a folder; targets of kind "
                       "kubernetes and sagemaker write to object storage")  # fmt: skip
    if job.volumes:
        yield _blocker("volumes", "volumes: claims exist on Kubernetes only", "use data: and outputs: here")
    for name in job.secrets:
        variable = name.upper().replace("-", "_")
        if variable not in facts.environ:
            yield _blocker(
                "secret-missing", f"secret {name}: {variable} is not set", f"export {variable} and run again"
            )


def _network_refusals(job: Job, facts: Facts) -> Iterator[Note]:
    """What keeps the nodes from having networks of their own."""
    if facts.missing_network_tools:
        tools = " and ".join(sorted(facts.missing_network_tools))
        yield _blocker("netns-tools", f"local.netns: {tools} not found", "install iproute2 (Debian: apt-get install "
                       "iproute2)")  # fmt: skip
    if facts.missing_capabilities:
        rights = " and ".join(sorted(facts.missing_capabilities))
        yield _blocker("netns-rights", f"local.netns makes networks, which needs root (here without {rights})",
                       "run it by sudo, or leave local.netns out")  # fmt: skip
    if job.nodes.max > netns.MAX_NODES:
        yield _blocker("netns-nodes", f"local.netns: {job.nodes.max} nodes, and a bridge joins {netns.MAX_NODES}",
                       "fewer nodes")  # fmt: skip


def _warnings(job: Job, target: LocalTarget, facts: Facts, num_nodes: int, procs: int) -> Iterator[Note]:
    """What is worth knowing before the run."""
    ranks = num_nodes * procs
    if ranks > facts.num_cpus:
        yield Note("ranks-exceed-cores", f"{ranks} ranks share {facts.num_cpus} cores", "fewer ranks run faster here")
    asked = job.resources.gpus * num_nodes
    if asked > len(facts.gpus):
        found = f"this machine has {len(facts.gpus) or 'none'}"
        yield Note(
            "gpus-missing", f"{asked} GPUs were asked for, {found}", "the script must run on the CPU to run here"
        )
    if num_nodes > 1 and facts.gpus and DEVICES in {*facts.environ, *target.env, *job.env}:
        yield Note("gpus-shared", f"{DEVICES} is set: all {num_nodes} nodes see the GPUs that it names, so LOCAL_RANK "
                   "0 of each is on the same one", "leave it out: each node then sees GPUs of its own")  # fmt: skip
    elif num_nodes > 1 and 0 < len(facts.gpus) < ranks:
        had = "1 GPU" if len(facts.gpus) == 1 else f"{len(facts.gpus)} GPUs"
        yield Note("gpus-shared", f"{ranks} ranks and {had}: all {num_nodes} nodes see the same ones, so LOCAL_RANK 0 "
                   "of each is on the same one", "use gloo, for NCCL takes no two ranks on a GPU")  # fmt: skip
    if job.local.port in facts.busy_ports and not job.local.netns:
        yield Note("port-busy", f"port {job.local.port} is in use", "leave local.port out: a free one is reserved",
                   blocks=True)  # fmt: skip
    for name in sorted(facts.missing_data):
        yield Note("data-missing", f"data {name}: its source is not there", "check source:", blocks=True)
    if job.nodes.is_elastic and job.launcher == "mpi":
        asked_range = f"{job.nodes.min}–{job.nodes.max} nodes were asked for"
        yield Note("elastic-fixed", f"{asked_range}: mpirun starts {num_nodes} and ends with the first that is lost",
                   "launcher: torchrun goes on with fewer")  # fmt: skip
    if job.restarts.max == 0 and job.restarts.on != type(job.restarts)().on:
        causes = ", ".join(job.restarts.on)
        yield Note("restarts-none", f"restarts.on names {causes}, but restarts.max is 0: none is made", "add max: 3")
    for name, why in NOT_HERE.items():
        if getattr(job, name) is not None:
            yield Note(
                f"{name}-unused", f"{name}: has no meaning on this machine: {why}", "it is kept for other targets"
            )


def _blocker(code: str, message: str, fix: str) -> Note:
    return Note(code, message, fix, blocks=True)
