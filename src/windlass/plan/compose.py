"""Composes node specs: numbers the ranks of an attempt over its members, and merges their environments. Pure.

`plan/environment.py` defines the names and values of the variables: Windlass's own for all ranks, and the variables of
torchrun, TensorFlow or JAX as the job's launcher requires.

Precedence of variables: a later source overrides the earlier sources.

1. the environment that the worker is started in: the shell's on this machine, the image's and pod's on a cluster
2. the attempt: `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_RESTART_COUNT`, `WINDLASS_ATTEMPT`, `WINDLASS_HOSTS`
3. the size of the group: `WORLD_SIZE`, `LOCAL_WORLD_SIZE`, `GROUP_WORLD_SIZE`, `WINDLASS_WORLD_SIZE`, …
4. the contract: `WINDLASS_RUN_ID`, folders, checkpoint settings, the other variables of torchrun
5. the engine's defaults: threads, buffering, interfaces; its `PYTHONPATH` is appended to that of 7 or 6, and
   if neither sets one, to that of 1
6. `env` of the target
7. `env` of the job
8. the node's own GPUs (`CUDA_VISIBLE_DEVICES`), which the engine omits if 1, 6 or 7 sets them
9. `WINDLASS_RESUME_FROM`, if the user has requested a checkpoint
10. the rank: `RANK`, `LOCAL_RANK`, `ROLE_RANK`, `NODE_RANK`, `GROUP_RANK`, `WINDLASS_RANK`, `TF_CONFIG`, …

A user therefore cannot override 9 and 10. Finally, the worker adds variables that are known only on the node: where the
rank's status is posted and where its exit is recorded. Ranks of an external launcher also inherit the launcher's
variables (`OMPI_…`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from windlass.plan import environment
from windlass.plan.arguments import fill_in
from windlass.worker.protocol import (
    EMPTY,
    CollectSpec,
    Environment,
    HeartbeatSpec,
    LauncherSpec,
    NetworkSpec,
    NodeSpec,
    NoticeSpec,
    RankSpec,
    ResumeSpec,
)
from windlass.worker.values import StrictValue


class NodeTemplate(StrictValue):
    """Node settings that are the same in all attempts of a run; `compose` creates the node specs of an attempt from
    them.
    """

    run_id: str
    num_nodes: int
    procs_per_node: int
    script: str
    worker_python: str
    cwd: str
    argv: tuple[str, ...]
    """Command line of every rank; see `argv_by_rank`."""
    contract: Environment
    """Variables that the script may rely on and that are the same in all attempts: run id, folders, checkpoint
    settings."""
    defaults: Environment
    """Variables of the engine, which the user can override."""
    target_env: Environment
    job_env: Environment
    grace_seconds: float
    node_env: Mapping[str, Environment] = EMPTY
    """Variables that differ between nodes, by node number: each node's share of the machine's GPUs."""
    known_at_start: tuple[str, ...] = ()
    progress: str | None = None
    warm: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    """Slow libraries that the script imports; displayed while the ranks start."""
    reuse_wait_seconds: float = 0.0
    outputs_max: int = 0
    setup: str = ""
    """Setup script of the job, which runs once on each machine before the ranks."""
    resume: ResumeSpec | None = None
    collect: CollectSpec | None = None
    notices: NoticeSpec | None = None
    networks: tuple[NetworkSpec, ...] = ()
    """Network of each node, if nodes have separate networks."""
    launchers: tuple[LauncherSpec, ...] = ()
    """External launcher for each place of an attempt; all further places use the last launcher."""
    launcher: str = "torchrun"
    """Launcher of the job, which determines the variables with which ranks find each other."""
    argv_by_rank: bool = False
    """Whether `argv` contains numbers of the rank or sizes of the group, such as `$WINDLASS_RANK`, which `compose`
    inserts."""
    one_worker: bool = False
    """Whether one worker starts the ranks of all nodes, as mpirun does on one machine."""

    @property
    def common(self) -> Environment:
        """Variables with the same values for all ranks in all attempts."""
        env = {**self.contract, **self.defaults, **self.target_env, **self.job_env}
        parts, chosen = self.defaults.get("PYTHONPATH"), env.get("PYTHONPATH")
        if parts and chosen and chosen != parts:  # the user's PYTHONPATH precedes the engine's
            env["PYTHONPATH"] = f"{chosen}:{parts}"
        return env


NO_NODES: Final = NodeTemplate("", 0, 1, "", "", "", (), {}, {}, {}, {}, 0.0)
"""Template of a plan that starts no node."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Addresses and ports with which the ranks of an attempt find each other."""

    master_addr: str
    master_port: int
    addresses: tuple[str, ...]
    """Addresses of the attempt's nodes, in order of their places."""
    rank_ports: tuple[int, ...] = ()
    """Listening port of each rank, if the launcher needs such ports; see `plan/environment.py`."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """Values that an attempt takes over from earlier attempts, or from a request of the user."""

    resume_from: str | None = None
    """Checkpoint that the user has requested."""
    asked_at: float = 0.0
    """Time of the user's request in Unix seconds."""
    known_notices: tuple[tuple[str, str], ...] = ()
    """Action and time of each preemption notice that the run has already handled."""


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """Values that are known when an attempt starts."""

    number: int
    """Number of the attempt, from 1."""
    folder: str
    """Folder for files of the attempt's nodes."""
    rendezvous: Rendezvous
    since: float = 0.0
    """Start of the run in Unix seconds."""
    reserved_port: int | None = None
    """Master port, if the supervisor has reserved a port for the ranks."""
    continuation: Continuation = field(default_factory=Continuation)


def compose(
    template: NodeTemplate, members: Sequence[int] | None = None, attempt: AttemptFacts | None = None
) -> list[NodeSpec]:
    """Returns the specs of the nodes in an attempt, by place; all nodes unless `members` are given.

    Node numbers are constant for the whole run. Ranks are numbered over the members, as in torch's elastic agents.
    Without `attempt`, returns the specs that a plan displays, without values that only an attempt has.
    """
    members = range(template.num_nodes) if members is None else members
    ranks = _ranks(template, members, None if attempt is None else attempt.rendezvous)
    specs = [_node(template, members, place, own, attempt) for place, own in enumerate(ranks)]
    if template.notices is not None:  # only the first node watches for notices, because all nodes share a machine
        known = attempt.continuation.known_notices if attempt is not None else ()
        specs[0] = specs[0].replace(notices=template.notices.replace(known=known))
    return specs


def ranks_by_node(num_nodes: int, procs_per_node: int) -> list[list[int]]:
    """Returns the ranks of each node by place; ranks are consecutive within a node."""
    return [list(range(place * procs_per_node, (place + 1) * procs_per_node)) for place in range(num_nodes)]


def _ranks(template: NodeTemplate, members: Sequence[int], meet: Rendezvous | None) -> list[tuple[RankSpec, ...]]:
    """Returns the ranks that each worker starts."""
    if not members or template.procs_per_node < 1:
        raise ValueError(f"an attempt has at least one rank, not {len(members)} × {template.procs_per_node}")
    ranks = []
    numbers = ranks_by_node(len(members), template.procs_per_node)
    sizes = environment.of_group(template.launcher, len(members), template.procs_per_node)
    for place, node in enumerate(members):
        own = template.node_env.get(str(node), {}) if template.one_worker else {}
        found = []
        for local, rank in enumerate(numbers[place]):
            env = environment.of_rank(template.launcher, rank, local, place)
            if meet is not None:
                env |= environment.of_rank_in_attempt(
                    template.launcher, rank, template.procs_per_node, meet.addresses, meet.rank_ports
                )
            argv = tuple(fill_in(template.argv, {**sizes, **env})) if template.argv_by_rank else template.argv
            found.append(RankSpec(rank, local, argv, {**own, **env}))
        ranks.append(tuple(found))
    return [sum(ranks, ())] if template.one_worker else ranks


def _node(
    template: NodeTemplate,
    members: Sequence[int],
    place: int,
    ranks: tuple[RankSpec, ...],
    attempt: AttemptFacts | None,
) -> NodeSpec:
    node = members[place]
    env = {
        **(_attempt_environment(template, attempt) if attempt is not None else {}),
        **environment.of_group(template.launcher, len(members), template.procs_per_node),
        **template.common,
        **(template.node_env.get(str(node), {}) if not template.one_worker else {}),
        **(_resume_environment(attempt) if attempt is not None else {}),
    }
    network = template.networks[node] if template.networks else None
    launchers = template.launchers
    launch = launchers[min(place, len(launchers) - 1)] if launchers else None
    resume = template.resume
    if attempt is not None:
        if launch is not None and launch.port is not None:
            launch = launch.replace(peers=attempt.rendezvous.addresses[1:])
        asked = attempt.continuation
        if resume is not None and asked.resume_from is not None:
            resume = resume.replace(named=asked.resume_from, named_at=asked.asked_at)
    return NodeSpec(
        node=node,
        script=template.script,
        worker_python=template.worker_python,
        cwd=template.cwd,
        env=env,
        ranks=ranks,
        grace_seconds=template.grace_seconds,
        warm=template.warm,
        known_at_start=template.known_at_start,
        progress=template.progress,
        reuse_wait_seconds=template.reuse_wait_seconds,
        outputs_max=template.outputs_max,
        setup=template.setup,
        resume=resume,
        collect=template.collect,
        heartbeat=_heartbeat(template, members, node, attempt),
        network=network,
        launch=launch,
        folder="" if attempt is None else attempt.folder,
        since=0.0 if attempt is None else attempt.since,
        attempt=1 if attempt is None else attempt.number,
        world_size=len(members) * template.procs_per_node,
        reserved_port=None if attempt is None else attempt.reserved_port,
    )


def _heartbeat(
    template: NodeTemplate, members: Sequence[int], node: int, attempt: AttemptFacts | None
) -> HeartbeatSpec | None:
    """Returns the heartbeat with which a node shows other nodes that it is reachable; None without node networks."""
    if attempt is None or not template.networks or template.one_worker or len(members) < 2:
        return None
    addresses = {other: template.networks[other].hosts[template.networks[other].host] for other in members}
    peers = {str(other): address for other, address in addresses.items() if other != node}
    return HeartbeatSpec(f"{template.run_id}.{attempt.number}", node, addresses[node], peers)


def _attempt_environment(template: NodeTemplate, attempt: AttemptFacts) -> dict[str, str]:
    meet = attempt.rendezvous
    return environment.of_attempt(template.launcher, attempt.number, meet.master_addr, meet.master_port, meet.addresses)


def _resume_environment(attempt: AttemptFacts) -> dict[str, str]:
    asked = attempt.continuation.resume_from
    return {} if asked is None else {environment.RESUME_VARIABLE: asked}
