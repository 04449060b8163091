"""Reads the node template out of a plan of format 1, whose steps hold one merged spec per node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from windlass.plan.template import NO_NODES, NodeTemplate
from windlass.worker.protocol import NodeSpec

GROUP: Final = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
_NOT_OF_FAKE: Final = {"script": "", "worker_python": "", "cwd": "", "grace_seconds": 0.0}
"""What the specs of the fake engine did not have."""
OF_A_RANK: Final = ("RANK", "LOCAL_RANK", "ROLE_RANK", "NODE_RANK", "GROUP_RANK")


def template_of(plan: Mapping[str, Any]) -> NodeTemplate:
    """The template that gives the nodes of a run from an earlier version the same specs. Raises ShapeError."""
    requests = [step["request"] for step in plan["steps"] if step["kind"] == "node"]
    specs = [NodeSpec.from_json({**_NOT_OF_FAKE, **request}) for request in requests]
    if not specs:
        return NO_NODES
    num_nodes, procs, first = plan["num_nodes"], plan["procs_per_node"], specs[0]
    one_worker = len(specs) != num_nodes
    common = {name: value for name, value in first.env.items() if all(one.env.get(name) == value for one in specs)}
    sizes = dict(zip(GROUP, map(str, (num_nodes * procs, procs, num_nodes, num_nodes * procs)), strict=True))
    networks = [spec.network for spec in specs if spec.network is not None]
    if one_worker and first.launch is not None and first.launch.networks:
        networks = list(first.launch.networks.values())
    if one_worker:  # which starts the ranks of all nodes
        own = {str(rank.rank // procs): _without(rank.env, OF_A_RANK) for rank in first.ranks}
    else:
        own = {str(spec.node): _without(spec.env, common) for spec in specs}
    # Most fields have the same names and values in a template and in the specs made of it.
    template = {
        **{field: getattr(first, field) for field in NodeTemplate.fields() if hasattr(first, field)},
        "run_id": plan["run_id"],
        "num_nodes": num_nodes,
        "procs_per_node": procs,
        "argv": first.ranks[0].argv,
        "contract": {},
        "defaults": {},
        "target_env": {},
        # Sizes that differ from the planned ones were set by the job.
        "job_env": {name: value for name, value in common.items() if sizes.get(name) != value},
        "node_env": {node: env for node, env in own.items() if env},
        "networks": tuple(networks),
        "launchers": tuple(spec.launch for spec in specs if spec.launch is not None),
        "one_worker": one_worker,
    }
    return NodeTemplate(**template)


def _without(env: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}
