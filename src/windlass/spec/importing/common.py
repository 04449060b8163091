"""What all kinds of jobs have in common: names, policies, and putting nodes and ranks together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from windlass.errors import JobFileError, Problem
from windlass.spec.importing.draft import Draft
from windlass.spec.importing.pods import Pods, queue
from windlass.spec.importing.source import View
from windlass.spec.importing.words import Start

RESTARTS: Final = 3
"""Written where a system starts pods again without end, which a job file does not."""
NO_WORDS: Final = "write what the image starts as command: of the container, and import it again"


def metadata(view: View, draft: Draft) -> None:
    """Take the name, the namespace and the queue of an object."""
    meta = view.at("metadata")
    if (name := meta.text("name")) is not None:
        draft.name(name, meta.at("name"))
    if (stem := meta.text("generateName")) is not None and name is None:
        draft.name(stem.rstrip("-"), meta.at("generateName"))
    if (namespace := meta.text("namespace")) is not None:
        draft.put("kubernetes.namespace", namespace, meta.at("namespace"))
    queue(draft, meta.at("labels"))


def run_policy(view: View, draft: Draft, *, of_mpi: bool = False) -> None:
    """Take what Kubeflow's kinds say of a run as a whole, under `runPolicy` or, in old versions, in the spec itself."""
    if (seconds := view.whole("activeDeadlineSeconds")) is not None:
        draft.put("timeout", float(seconds), view.at("activeDeadlineSeconds"))
    if draft.get("restarts") is not None:
        view.at("backoffLimit").leave("restarts of pods", "maxRestarts says how many", is_ours=True)
    elif (limit := view.whole("backoffLimit")) is not None:
        draft.put("restarts", {"max": limit}, view.at("backoffLimit"))
    if (name := view.text("schedulingPolicy", "priorityClass")) is not None:
        draft.put("priority", name, view.at("schedulingPolicy", "priorityClass"))
    policy = view.at("schedulingPolicy")
    if policy.at("queue"):
        policy.at("queue").leave(f"queue {policy.at('queue').value} of Volcano", "queue: names a LocalQueue of Kueue")
    if of_mpi:
        view.at("ttlSecondsAfterFinished").leave("when the Launcher is removed", "windlass rm RUN removes all of a run")
    elif (seconds := view.whole("ttlSecondsAfterFinished")) is not None:
        draft.put("kubernetes.ttl", float(seconds), view.at("ttlSecondsAfterFinished"))
    if view.at("suspend").value is False:
        view.at("suspend").take()


def restart_policy(view: View, draft: Draft) -> None:
    """Take `restartPolicy` of a replica, where no number of restarts is said elsewhere."""
    policy, at = view.at("restartPolicy").value, view.at("restartPolicy")
    if policy == "Never":
        at.take()
    elif policy in ("OnFailure", "Always", "ExitCode") and draft.get("restarts") is not None:
        at.leave("which pods are started again", "restarts: starts all ranks again, so many times", is_ours=True)
    elif policy in ("OnFailure", "Always", "ExitCode") and draft.put("restarts", {"max": RESTARTS}, at):
        at.leave(
            f"{policy}: pods are started again without end", f"restarts: {RESTARTS} is written; say how many you want"
        )


def started(pods: Pods, view: View, where: str) -> Start:
    """What the ranks are, and words about what of it is left behind. Raises JobFileError where nothing says so."""
    if pods.start is None or pods.start_view is None:
        field = view.source.spelled(view.path)
        message = "has neither command nor args: the image's own program is started, which the manifest does not name"
        raise JobFileError([Problem(f"{where}:{view.source.line(view.path)}", field, message, NO_WORDS)])
    for meaning, instead, is_ours in pods.start.left:
        pods.start_view.remark(meaning, instead, is_ours=is_ours)
    return pods.start


def put_start(draft: Draft, start: Start, view: View, nodes: Any, procs: Any) -> None:
    """Put what is started into the job, on so many nodes with so many ranks each."""
    fields = dict(start.fields)
    said_nodes, said_procs = fields.pop("nodes", None), fields.pop("procs_per_node", None)
    for name, value in fields.pop("env", {}).items():
        draft.put_env(name, value, view)
    for name in ("run", "command", "launcher", "python"):
        if name in fields:
            draft.fields[name] = fields.pop(name)
    for name, value in fields.items():
        if draft.get(name) is None:
            draft.put(name, value, view)
    if said_nodes is not None and nodes is not None and said_nodes != nodes and said_nodes != _at_most(nodes):
        view.remark(
            f"--nnodes {_shown(said_nodes)}, and the manifest makes {_shown(nodes)}", "the manifest's number is taken"
        )
    draft.put("nodes", _short(nodes if nodes is not None else said_nodes or 1), view)
    draft.put("procs_per_node", said_procs if said_procs is not None else procs, view)


def ranks_named(view: View, draft: Draft) -> int | str | None:
    """How many ranks a node has, as Kubeflow says it: a number or `auto`, `gpu` or `cpu`, also as text."""
    said = view.scalar()
    if said is None:
        return None
    if isinstance(said, int) or (isinstance(said, str) and said.isdecimal()):
        return int(said)
    if said in ("auto", "gpu"):
        return automatic(view, draft)
    if said == "cpu" and draft.get("resources.cpus"):
        return max(1, int(draft.get("resources.cpus")))
    view.leave(f"ranks of a node by {said}", "procs_per_node: N says how many")
    return None


def automatic(view: View, draft: Draft) -> int | str:
    """As many ranks as a node has GPUs, and on a machine without any as many as it has cores, where they are known."""
    if draft.get("resources.gpus"):
        return "auto"
    cpus = draft.get("resources.cpus")
    if cpus and cpus >= 1:
        view.remark(f"without GPUs, a rank for each of {int(cpus)} cores", f"procs_per_node: {int(cpus)}", is_ours=True)
        return int(cpus)
    view.remark(
        "without GPUs, a rank for each core of the machine", "procs_per_node: 1 is written; say how many you want"
    )
    return 1


def compare(first: Mapping[str, Any], other: Mapping[str, Any], view: View) -> None:
    """Say where the pods of another replica differ: all nodes of a job are alike."""
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


def _short(nodes: Any) -> Any:
    return nodes["min"] if isinstance(nodes, dict) and nodes["min"] == nodes["max"] else nodes


def _at_most(nodes: Any) -> Any:
    return {"min": nodes, "max": nodes} if isinstance(nodes, int) else nodes


def _shown(nodes: Any) -> str:
    return f"{nodes['min']}:{nodes['max']}" if isinstance(nodes, dict) else str(nodes)
