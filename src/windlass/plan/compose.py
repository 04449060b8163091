"""Composes node specs: numbers the ranks of an attempt over its members, and merges their environments. Pure.

This is the only place that does either, for every engine. `plan/environment.py` has the
names and values: Windlass's own for all ranks, and those of torchrun, TensorFlow or JAX by the job's launcher.

Precedence of variables, a later source overriding the earlier ones:

1. the environment that the worker is started in: the shell's on this machine, the image's and pod's on a cluster
2. the attempt: `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_RESTART_COUNT`, `WINDLASS_ATTEMPT`, `WINDLASS_HOSTS`
3. the size of the group: `WORLD_SIZE`, `LOCAL_WORLD_SIZE`, `GROUP_WORLD_SIZE`, `WINDLASS_WORLD_SIZE`, …
4. the contract: `WINDLASS_RUN_ID`, folders, checkpoint settings, the other variables of torchrun
5. the engine's defaults: threads, buffering, interfaces; its `PYTHONPATH` is put behind that of 7 or 6, and
   where neither has one, behind that of 1
6. `env` of the target
7. `env` of the job
8. the node's own GPUs (`CUDA_VISIBLE_DEVICES`), which the engine leaves out where 1, 6 or 7 has chosen
9. `WINDLASS_RESUME_FROM`, where the user has asked for a checkpoint
10. the rank: `RANK`, `LOCAL_RANK`, `ROLE_RANK`, `NODE_RANK`, `GROUP_RANK`, `WINDLASS_RANK`, `TF_CONFIG`, …

So a user cannot override 9 and 10. The worker adds what only it knows, above all of these: where the rank's status is
posted and its exit is marked. An external launcher's children have its variables (`OMPI_…`) beside 1.
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
    """What the nodes of all attempts of a run have in common, from which `compose` makes the specs of one attempt."""

    run_id: str
    num_nodes: int
    procs_per_node: int
    script: str
    worker_python: str
    cwd: str
    argv: tuple[str, ...]
    """The command line of every rank; see `argv_by_rank`."""
    contract: Environment
    """What the job's script is promised and no attempt changes: run id, folders, checkpoint settings."""
    defaults: Environment
    """What the engine sets, unless the user does."""
    target_env: Environment
    job_env: Environment
    grace_seconds: float
    node_env: Mapping[str, Environment] = EMPTY
    """By number, what one node has of its own: its share of the machine's GPUs."""
    known_at_start: tuple[str, ...] = ()
    progress: str | None = None
    warm: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    """Libraries that take long to import, and that the script imports; shown while its ranks start."""
    reuse_wait_seconds: float = 0.0
    outputs_max: int = 0
    setup: str = ""
    """The job's script that runs once on a machine before the ranks."""
    resume: ResumeSpec | None = None
    collect: CollectSpec | None = None
    notices: NoticeSpec | None = None
    networks: tuple[NetworkSpec, ...] = ()
    """The network of each node, where nodes have networks of their own."""
    launchers: tuple[LauncherSpec, ...] = ()
    """The external launcher of each place of an attempt; where there are fewer, the last one is that of the rest."""
    launcher: str = "torchrun"
    """The job's: which variables ranks get to find each other."""
    argv_by_rank: bool = False
    """Whether `argv` names numbers of the rank or of the group, as `$WINDLASS_RANK`, which `compose` fills in."""
    one_worker: bool = False
    """Whether one worker starts the ranks of all nodes: mpirun does, on one machine."""

    @property
    def common(self) -> Environment:
        """The variables that all ranks of all attempts have alike."""
        env = {**self.contract, **self.defaults, **self.target_env, **self.job_env}
        parts, chosen = self.defaults.get("PYTHONPATH"), env.get("PYTHONPATH")
        if parts and chosen and chosen != parts:  # that of the user comes first
            env["PYTHONPATH"] = f"{chosen}:{parts}"
        return env


NO_NODES: Final = NodeTemplate("", 0, 1, "", "", "", (), {}, {}, {}, {}, 0.0)
"""Of a plan that starts no node."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one attempt meet."""

    master_addr: str
    master_port: int
    addresses: tuple[str, ...]
    """By which the members reach each other, in their order."""
    rank_ports: tuple[int, ...] = ()
    """A port for each rank to listen on, where the launcher needs them: see `plan/environment.py`."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """What earlier attempts, and the user, determine of an attempt."""

    resume_from: str | None = None
    """The checkpoint that the user has asked for."""
    asked_at: float = 0.0
    """When, in unix seconds."""
    known_notices: tuple[tuple[str, str], ...] = ()
    """Action and time of the preemption notices that the run has acted on."""


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """What is known of an attempt when it starts."""

    number: int
    """From 1."""
    folder: str
    """Where its nodes keep their files."""
    rendezvous: Rendezvous
    since: float = 0.0
    """When the run began, in unix seconds."""
    reserved_port: int | None = None
    """The master port, where the supervisor holds it for the ranks."""
    continuation: Continuation = field(default_factory=Continuation)


def compose(
    template: NodeTemplate, members: Sequence[int] | None = None, attempt: AttemptFacts | None = None
) -> list[NodeSpec]:
    """The specs of the nodes that take part in an attempt, by place; all nodes unless `members` are given.

    A node keeps its number for as long as the run lives; ranks are numbered over the members, as torch's elastic agents
    number them. Without `attempt` the specs are as a plan shows them: without what only an attempt knows.
    """
    members = range(template.num_nodes) if members is None else members
    ranks = _ranks(template, members, None if attempt is None else attempt.rendezvous)
    specs = [_node(template, members, place, own, attempt) for place, own in enumerate(ranks)]
    if template.notices is not None:  # once for the machine that all nodes share
        known = attempt.continuation.known_notices if attempt is not None else ()
        specs[0] = specs[0].replace(notices=template.notices.replace(known=known))
    return specs


def ranks_by_node(num_nodes: int, procs_per_node: int) -> list[list[int]]:
    """The ranks of each node, by place: consecutive within a node."""
    return [list(range(place * procs_per_node, (place + 1) * procs_per_node)) for place in range(num_nodes)]


def _ranks(template: NodeTemplate, members: Sequence[int], meet: Rendezvous | None) -> list[tuple[RankSpec, ...]]:
    """The ranks that each worker starts."""
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
    """How a node tells the other members that it can be reached, where their networks may be cut."""
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
