"""Composes node specs: numbers the ranks of an attempt over its members, and merges their environments. Pure.

This is the only place that does either, for every engine. Names and values are those of torchrun
(torch/distributed/elastic/agent/server/local_elastic_agent.py), plus `NODE_RANK` and Windlass's own: a script that runs
under torchrun finds here what it finds there.

Precedence of variables, a later source overriding the earlier ones:

1. the environment that the worker is started in: the shell's on this machine, the image's and pod's on a cluster
2. the attempt: `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_RESTART_COUNT`, `WINDLASS_ATTEMPT`
3. the size of the group: `WORLD_SIZE`, `LOCAL_WORLD_SIZE`, `GROUP_WORLD_SIZE`, `ROLE_WORLD_SIZE`
4. the contract: `WINDLASS_RUN_ID`, folders, checkpoint settings, the other variables of torchrun
5. the engine's defaults: threads, buffering, interfaces
6. `env` of the target
7. `env` of the job
8. the node's own GPUs (`CUDA_VISIBLE_DEVICES`), which the engine leaves out where 1, 6 or 7 has chosen
9. `WINDLASS_RESUME_FROM`, where the user has asked for a checkpoint
10. the rank: `RANK`, `LOCAL_RANK`, `ROLE_RANK`, `NODE_RANK`, `GROUP_RANK`

So a user cannot override 9 and 10. The worker adds what only it knows, above all of these: where the rank's status is
posted and its exit is marked. An external launcher's children have its variables (`OMPI_…`) beside 1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import Final

from windlass.plan.template import NodeTemplate
from windlass.worker.protocol import HeartbeatSpec, LauncherSpec, NodeSpec, RankSpec

RESUME_VARIABLE: Final = "WINDLASS_RESUME_FROM"
"""Names the checkpoint that the user has asked for; `train/checkpoint` reads it."""
STATUS_VARIABLES: Final = ("KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN")
"""Where the libraries of a Python rank may post its progress; see `worker/statusserver.py`."""
STATUS_VARIABLES_OF_USERS: Final = (
    *STATUS_VARIABLES,
    "KUBEFLOW_TRAINER_SERVER_CA_CERT",
    "DISABLE_KUBEFLOW_INTEGRATION",
)
"""A user who has set one of these has decided where progress is posted, or that it is not."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one attempt meet."""

    master_addr: str
    master_port: int
    launcher_port: int
    """Where the agents of torchrun meet, on the same host."""
    addresses: tuple[str, ...]
    """By which the members reach each other, in their order."""


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
    held_port: int | None = None
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
    ranks = _ranks(template, members)
    specs = [_node(template, members, place, own, attempt) for place, own in enumerate(ranks)]
    if template.notices is not None:  # once for the machine that all nodes share
        known = attempt.continuation.known_notices if attempt is not None else ()
        specs[0] = specs[0].replace(notices=template.notices.replace(known=known))
    return specs


def ranks_by_node(num_nodes: int, procs_per_node: int) -> list[list[int]]:
    """The ranks of each node, by place: consecutive within a node."""
    return [list(range(place * procs_per_node, (place + 1) * procs_per_node)) for place in range(num_nodes)]


def _ranks(template: NodeTemplate, members: Sequence[int]) -> list[tuple[RankSpec, ...]]:
    """The ranks that each worker starts."""
    if not members or template.procs_per_node < 1:
        raise ValueError(f"an attempt has at least one rank, not {len(members)} × {template.procs_per_node}")
    ranks = []
    numbers = ranks_by_node(len(members), template.procs_per_node)
    for place, node in enumerate(members):
        own = template.node_env.get(str(node), {}) if template.one_worker else {}
        ranks.append(
            tuple(
                RankSpec(rank, local, template.argv, {**own, **rank_environment(rank, local, place)})
                for local, rank in enumerate(numbers[place])
            )
        )
    return [sum(ranks, ())] if template.one_worker else ranks


def _node(
    template: NodeTemplate, members: Sequence[int], place: int, ranks: tuple[RankSpec, ...],
    attempt: AttemptFacts | None,
) -> NodeSpec:  # fmt: skip
    node = members[place]
    env = {
        **(attempt_environment(attempt) if attempt is not None else {}),
        **group_environment(len(members), template.procs_per_node),
        **template.common,
        **(template.node_env.get(str(node), {}) if not template.one_worker else {}),
        **(_resume_environment(attempt) if attempt is not None else {}),
    }
    network = template.networks[node] if template.networks else None
    launch = template.launchers[min(place, len(template.launchers) - 1)] if template.launchers else None
    resume = template.resume
    if attempt is not None:
        launch = None if launch is None else _filled(launch, node, place, env, attempt)
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
        stay_seconds=template.stay_seconds,
        outputs_max=template.outputs_max,
        resume=resume,
        heartbeat=_heartbeat(template, members, node, attempt),
        network=network,
        launch=launch,
        folder="" if attempt is None else attempt.folder,
        since=0.0 if attempt is None else attempt.since,
        attempt=1 if attempt is None else attempt.number,
        world_size=len(members) * template.procs_per_node,
        held_port=None if attempt is None else attempt.held_port,
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


def _filled(launch: LauncherSpec, node: int, place: int, env: Mapping[str, str], attempt: AttemptFacts) -> LauncherSpec:
    """The launcher with the facts of the attempt in place of their names."""
    values = {
        "MASTER_ADDR": env["MASTER_ADDR"],
        "RENDEZVOUS_PORT": str(attempt.rendezvous.launcher_port),
        "NUM_NODES": env["GROUP_WORLD_SIZE"],
        "NODE": str(node),
        "IS_HOST": "true" if place == 0 else "false",
        "NODE_ADDR": attempt.rendezvous.addresses[place],
        "ATTEMPT": env["WINDLASS_ATTEMPT"],
        "ATTEMPT_DIR": attempt.folder,
    }
    peers = attempt.rendezvous.addresses[1:] if launch.port is not None else ()
    return launch.replace(argv=tuple(Template(word).safe_substitute(values) for word in launch.argv), peers=peers)


# -- variables --------------------------------------------------------------------------------------------------------


def contract(
    *, run_id: str, max_restarts: int, output_dir: str, checkpoint_dir: str, data: Mapping[str, str],
    checkpoint_every: float | str | None = None, checkpoint_keep: int | None = None,
) -> dict[str, str]:  # fmt: skip
    """What a script is promised and no attempt changes. `data` maps the names of data sets to their folders.

    `checkpoint_every` is a number of seconds, or `20 steps`; None where the script decides.
    """
    every = f"{checkpoint_every:.12g}" if isinstance(checkpoint_every, int | float) else checkpoint_every
    return {
        "ROLE_NAME": "default",
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "WINDLASS_RUN_ID": run_id,
        "WINDLASS_OUTPUT_DIR": output_dir,
        "WINDLASS_CHECKPOINT_DIR": checkpoint_dir,
        **({} if checkpoint_keep is None else {"WINDLASS_CHECKPOINT_KEEP": str(checkpoint_keep)}),
        **({} if every is None else {"WINDLASS_CHECKPOINT_EVERY": every}),
        **{data_variable(name): folder for name, folder in data.items()},
    }


def attempt_environment(attempt: AttemptFacts) -> dict[str, str]:
    """What is known only when an attempt starts."""
    return {
        "MASTER_ADDR": attempt.rendezvous.master_addr,
        "MASTER_PORT": str(attempt.rendezvous.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt.number - 1),
        "WINDLASS_ATTEMPT": str(attempt.number),
    }


def group_environment(num_nodes: int, procs_per_node: int) -> dict[str, str]:
    """How many ranks there are: it changes when an elastic job continues on fewer nodes, or more."""
    world_size = str(num_nodes * procs_per_node)
    return {
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": str(procs_per_node),
        "GROUP_WORLD_SIZE": str(num_nodes),
        "ROLE_WORLD_SIZE": world_size,
    }


def rank_environment(rank: int, local_rank: int, place: int) -> dict[str, str]:
    """What is one rank's own; `place` is that of its node among the members."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "ROLE_RANK": str(rank),
        "NODE_RANK": str(place),
        "GROUP_RANK": str(place),
    }


def _resume_environment(attempt: AttemptFacts) -> dict[str, str]:
    asked = attempt.continuation.resume_from
    return {} if asked is None else {RESUME_VARIABLE: asked}


def known_at_start(*, is_python: bool, taken: Collection[str]) -> tuple[str, ...]:
    """Names of the variables that an attempt sets. `taken` are those that the user has set already."""
    of_attempt = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "WINDLASS_ATTEMPT")
    posts = is_python and not any(name in taken for name in STATUS_VARIABLES_OF_USERS)
    return (*of_attempt, *(STATUS_VARIABLES if posts else ()))


def data_variable(name: str) -> str:
    """The variable that holds a data set's folder: `coco-2017` → `WINDLASS_DATA_COCO_2017`."""
    return "WINDLASS_DATA_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
