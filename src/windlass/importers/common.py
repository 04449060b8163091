"""Reads the fields common to all kinds of jobs: metadata, restart and run policies, numbers of nodes and ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from windlass.importers.container_command import Start
from windlass.importers.draft import Draft
from windlass.importers.operator_variables import RANKS_OF_A_NODE, OperatorVariables, with_variables
from windlass.importers.pods import Pods, marks
from windlass.importers.source import View

_NNODES: Final = re.compile(r"--nnodes[= ]([1-9][0-9]*)(?![:\w])")
_COUNTED: Final = re.compile(r"nnodes|num[-_](?:machines|nodes)\b")
"""Finds, in a command, a number of nodes that its launcher waits for."""
_GPUS: Final = re.compile(r"/(?:gpu$|mig-)")
"""Finds resources that are GPUs of other vendors, or parts of GPUs."""
RESTARTS: Final = 3
"""Number of restarts in the job file if the imported pods are restarted without limit."""


class Elastic(NamedTuple):
    """The fields of an elastic job that set its initial and maximum number of nodes."""

    at_start: int
    """Initial number of nodes."""
    replicas: View
    """Field of the manifest with the initial number of nodes."""
    most: View
    """Field of the manifest with the maximum number of nodes."""


def metadata(view: View, draft: Draft) -> None:
    """Reads the name, the namespace and the queue of an object."""
    meta = view.at("metadata")
    draft.put_name(meta.at("name"))
    draft.put_name(meta.at("generateName"))
    draft.put_text("kubernetes.namespace", meta.at("namespace"))
    marks(draft, meta)


def run_policy(view: View, draft: Draft, *, of_mpi: bool = False) -> None:
    """Reads the run policy of a Kubeflow kind, under `runPolicy` or, in old versions, in the spec itself."""
    draft.put_seconds("timeout", view.at("activeDeadlineSeconds"))
    if draft.get("restarts") is not None:
        view.at("backoffLimit").report("restarts of pods", "maxRestarts sets the number", is_handled=True)
    else:
        draft.put_restarts(view.at("backoffLimit"))
    draft.put_text("priority", view.at("schedulingPolicy", "priorityClass"))
    policy = view.at("schedulingPolicy")
    if policy.at("queue"):
        policy.at("queue").report(f"queue {policy.at('queue').value} of Volcano", "queue: names a LocalQueue of Kueue")
    if not of_mpi:  # for an MPIJob, this removes only the Launcher
        draft.put_seconds("kubernetes.ttl", view.at("ttlSecondsAfterFinished"))
    view.at("suspend").take_if(False)


def restart_policy(view: View, draft: Draft) -> None:
    """Reads `restartPolicy` of a replica, unless `restarts` is set already."""
    policy, at = view.at("restartPolicy").value, view.at("restartPolicy")
    if at.take_if("Never"):
        return
    if policy in ("OnFailure", "Always", "ExitCode") and draft.get("restarts") is not None:
        at.report("which pods are started again", "restarts: N restarts all ranks up to N times", is_handled=True)
    elif policy in ("OnFailure", "Always", "ExitCode") and draft.put("restarts", {"max": RESTARTS}, at):
        at.report(
            f"{policy}: pods are started again without end", f"restarts: {RESTARTS} is written; set the number you want"
        )


def started(pods: Pods, view: View) -> tuple[Start, View]:
    """Returns the parsed command of the main container, and the field of the manifest that contains the command. Raises
    JobFileError if the container has no command.
    """
    if pods.start is None:
        message = "has neither command nor args: the image's own program is started, which the manifest does not name"
        raise view.refused(message, "write what the image starts as command: of the container, and import it again")
    return pods.start


def put_start(
    draft: Draft,
    started: tuple[Start, View],
    nodes: Any,
    per_node: View,
    named: int | str | None = None,
    *,
    has_group: bool = True,
    given: Sequence[OperatorVariables] = (),
    elastic: Elastic | None = None,
) -> None:
    """Sets the command, `nodes` and `procs_per_node` of the draft, and reports findings on the command.

    `named` is the number of ranks per node that the manifest sets at `per_node`. `has_group` is whether the operator
    sets RANK, WORLD_SIZE and MASTER_ADDR in each pod, as `launcher: pytorch` does; without these variables, the pods
    cannot find each other. `given` is what else the operator sets, for commands that are not replaced. `elastic` is the
    initial number of nodes of a range.
    """
    start, view = started
    if start.by in ("python", "program") and "launcher" not in draft.fields:
        draft.fields["launcher"] = "pytorch" if has_group else "plain"
    if start.by == "python" and draft.get("launcher") == "plain" and nodes not in (None, 1):
        view.remark(
            f"started once in each of {_shown(nodes)} pods, which get neither RANK nor MASTER_ADDR",
            "launcher: plain does the same; without that line the nodes train together, as under torchrun",
        )
    for hint in start.hints:
        view.remark(*hint)
    fields = dict(start.fields)
    said_nodes, procs = fields.pop("nodes", None), fields.pop("procs_per_node", None)
    for name, value in fields.pop("env", {}).items():
        draft.put_env(name, value, view)
    if "command" in fields:
        fields["command"], names = _with_variables(fields["command"], given, named, view)
        named = None if RANKS_OF_A_NODE in names else named  # torchrun starts these ranks
    for name in ("run", "command", "launcher", "python", "setup"):
        if name in fields and (name != "launcher" or "launcher" not in draft.fields):
            draft.fields[name] = fields.pop(name)
    for name, value in fields.items():
        if draft.get(name) is None:
            draft.put(name, value, view)
        elif name == "restarts" and draft.get("restarts") != value:
            most = draft.get("restarts")["max"]
            view.remark(
                f"the launcher restarts {value['max']} times, the manifest {most}", f"restarts: {most} is written"
            )
    if said_nodes is None and (within := _NNODES.search(" ".join(draft.get("command") or ()))) is not None:
        said_nodes = int(within[1])
    nodes = _nodes(nodes, said_nodes, view, elastic)
    least, most = (nodes["min"], nodes["max"]) if isinstance(nodes, dict) else (nodes, nodes)
    is_told = "torchrun" in given or "PET_NNODES" in (draft.get("env") or {}) or _COUNTED.search(start.text)
    if most > 1 and start.by == "torchrun" and (not is_told or "--standalone" in start.text):
        view.remark(
            f"the launcher is started on each of {most} nodes without their number: each node trained separately",
            f"nodes: {_shown(nodes)} is written, and they train together; nodes: 1 trains on one",
        )
    draft.put("nodes", most if least == most else nodes, view)
    draft.put("procs_per_node", _ranks(start, per_node, draft, most, named, given) if procs is None else procs, view)


def _nodes(nodes: Any, said: Any, view: View, elastic: Elastic | None) -> Any:
    """Returns the number or range of nodes from the manifest and the command; 1 if neither sets it."""
    if isinstance(said, int) and isinstance(nodes, dict) and nodes["min"] <= said <= nodes["max"]:
        if nodes["min"] != nodes["max"]:
            (elastic.most if elastic is not None else view).remark(
                f"--nnodes {said} in a manifest for {_shown(nodes)} nodes: torchrun waits for exactly that many",
                f"nodes: {said} is written; {{min: {nodes['min']}, max: {nodes['max']}}} makes the job elastic",
            )
        if elastic is not None and elastic.at_start != said:
            elastic.replicas.remark(f"{elastic.at_start} pods, and --nnodes {said}", "that of torchrun is taken")
        return said
    if said is not None and nodes is not None and said not in (nodes, {"min": nodes, "max": nodes}):
        view.remark(
            f"--nnodes {_shown(said)}, and the manifest makes {_shown(nodes)}", "the manifest's number is taken"
        )
    if isinstance(nodes, dict) and elastic is not None:
        return _begun(nodes, elastic)
    return nodes if nodes is not None else said or 1


def _begun(nodes: dict[str, int], elastic: Elastic) -> dict[str, int]:
    """Limits a range of nodes to the initial number, because a run starts with the maximum of its range."""
    least, most = nodes["min"], nodes["max"]
    begun = max(least, min(elastic.at_start, most))
    if begun != elastic.at_start:
        meaning = f"{elastic.at_start} pods at the start, outside of {_shown(nodes)}"
        elastic.replicas.remark(meaning, f"it begins with {begun} nodes")
    if begun < most:
        elastic.most.remark(
            f"it begins with {begun} nodes, and may be given up to {most}",
            f"{begun} is the most that is written: windlass resume RUN --nodes {most} continues with {most}, and "
            f"nodes: {{min: {least}, max: {most}}} begins with {most}",
        )
    return {"min": least, "max": begun}


def _with_variables(
    command: list[str], given: Sequence[OperatorVariables], named: int | str | None, view: View
) -> tuple[list[str], list[str]]:
    """Returns the command with the operator's variables that it uses set, and their names; reports unsupported ones."""
    command, names, missing = with_variables(command, given, named)
    if names:
        view.remark(
            f"{', '.join(names)}: set by its operator", "the command sets them from Windlass's", is_handled=True
        )
    if missing:
        view.remark(
            f"{', '.join(missing)}: variables that its operator sets, and Windlass does not",
            "each node has WINDLASS_NODE_RANK, WINDLASS_NUM_NODES, WINDLASS_MASTER_ADDR and WINDLASS_HOSTS",
        )
    return command, names


def _ranks(
    start: Start, view: View, draft: Draft, nodes: int, named: int | str | None, given: Sequence[OperatorVariables]
) -> int | str:
    """Returns the ranks per node if the command sets none: the number in the manifest, else torchrun's default.

    torchrun's default is one rank, unless an operator sets PET_NPROC_PER_NODE.
    """
    if start.ranks is not None and start.ranks != nodes * (named or 1):
        if start.ranks % nodes:
            view.remark(
                f"mpirun starts {start.ranks} ranks on {nodes} nodes, which do not divide",
                f"procs_per_node: {named or 1} is written: set the number of ranks per node",
            )
            return named or 1
        each = start.ranks // nodes
        if named is not None:
            view.remark(
                f"{named} ranks on each node, and mpirun starts {start.ranks}",
                f"procs_per_node: {each} on each of {nodes} nodes is written",
            )
        return each
    if start.by in ("python", "program") and named not in (None, 1):
        view.remark(
            f"{named} ranks on each node, of which the command starts one",
            "procs_per_node: 1 is written; set more with a launcher such as torchrun",
        )
        return 1
    return named or (automatic(view, draft) if start.by == "torchrun" and "torchrun" in given else 1)


def ranks_named(view: View, draft: Draft) -> int | str | None:
    """Returns the ranks per node of a Kubeflow kind: a number, also as text, or `auto`, `gpu` or `cpu`."""
    said = view.scalar()
    if said is None:
        return None
    if isinstance(said, int) or (isinstance(said, str) and said.isdecimal()):
        return int(said)
    if said in ("auto", "gpu"):
        return automatic(view, draft)
    if said == "cpu" and draft.get("resources.cpus"):
        return max(1, int(draft.get("resources.cpus")))
    view.report(f"ranks of a node by {said}", "procs_per_node: N sets the number")
    return None


def automatic(view: View, draft: Draft) -> int | str:
    """Returns one rank per GPU of a node; without GPUs, one per core if the number of cores is known."""
    if draft.get("resources.gpus"):
        return "auto"
    for name, count in (draft.get("kubernetes.limits") or {}).items():
        if _GPUS.search(name):
            return int(count)
    cpus = draft.get("resources.cpus")
    if cpus and cpus >= 1:
        view.remark(
            f"without GPUs, a rank for each of {int(cpus)} cores", f"procs_per_node: {int(cpus)}", is_handled=True
        )
        return int(cpus)
    view.remark(
        "without GPUs, a rank for each core of the machine", "procs_per_node: 1 is written; set the number you want"
    )
    return 1


def compare(first: Mapping[str, Any], other: Mapping[str, Any], view: View) -> None:
    """Reports the fields in which the pods of another replica differ, because all nodes of a Windlass job are equal."""
    for name in sorted({*first, *other}):
        mine, theirs = first.get(name), other.get(name)
        if mine == theirs:
            continue
        parts = [name]
        if isinstance(mine, dict | None) and isinstance(theirs, dict | None):
            mine, theirs = mine or {}, theirs or {}
            parts = [f"{name}.{key}" for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key)]
        view.remark(
            f"these pods have another {', '.join(parts)} than those of rank 0",
            "all nodes of a job are alike: rank 0's is taken",
        )


def _shown(nodes: Any) -> str:
    return f"{nodes['min']}:{nodes['max']}" if isinstance(nodes, dict) else str(nodes)
