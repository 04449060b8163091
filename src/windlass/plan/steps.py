"""The steps of a plan that start its nodes, with each node's spec as far as it is known before an attempt. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from windlass.plan.compose import compose
from windlass.plan.plan import Step
from windlass.plan.template import NodeTemplate
from windlass.worker.protocol import NodeSpec

if TYPE_CHECKING:
    from windlass.spec.job import Job


def node_steps(template: NodeTemplate, job: Job) -> Iterator[Step]:
    """One step per worker."""
    shown = shlex.join(job.script_argv if job.script_kind == "program" else ("python", *job.script_argv))
    for spec in compose(template):
        # Readers of `-o json` find these in every node, also where they are empty.
        shown_always: dict[str, Any] = {"host": f"node-{spec.node}", "warm": [], "known_at_start": [], "progress": None}
        yield Step("node", f"start {_place(template, spec)}: {shown}", {**shown_always, **spec.to_json()})


def upload_times(job: Job) -> tuple[dict[str, str], str]:
    """When outputs are uploaded: what the request of the step `upload` has of it, and the same in words."""
    if job.outputs.at == "checkpoint":
        return {"at": "checkpoint"}, "after each checkpoint and after the last attempt"
    return {}, "after the last attempt"


def _place(template: NodeTemplate, spec: NodeSpec) -> str:
    ranks = [rank.rank for rank in spec.ranks]
    nodes = (
        f"nodes 0–{template.num_nodes - 1}" if template.one_worker and template.num_nodes > 1 else f"node {spec.node}"
    )
    numbers = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}–{ranks[-1]}"
    return f"{nodes}, {numbers}{' by mpirun' if spec.launch is not None else ''}"
