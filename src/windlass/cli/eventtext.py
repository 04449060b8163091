"""Turns an event of a run into a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from windlass.cli.statustext import REASONS, WHY, cause_headline, exit_words, missing_words
from windlass.cli.style import PHASE_COLOURS
from windlass.cli.words import Paint, brief, count, duration, in_place, number, ranks_named, size, visible
from windlass.runs.record import Event, machine_name

Data = Mapping[str, Any]

_YELLOW: Final = frozenset({"hang", "loss", "warning", "notice", "lost-node"})
NEWS: Final = frozenset({"notice", "queue", "machine", "lost-node", "node-back", "hang", "hang-end", "resume"})
"""Kinds of events that everybody who follows a run is told of."""
NEWS_OF_CHECKPOINTS: Final = frozenset({"restored", "refused", "none-verified", "failed", "missing"})
"""What of checkpoints is news; that one was saved stands in the status."""


def is_news(event: Event) -> bool:
    """Whether whoever follows a run should see this event as a line."""
    if event.kind == "checkpoint":
        return event.data.get("action") in NEWS_OF_CHECKPOINTS
    return event.kind in NEWS


def sentence(event: Event) -> str:
    """An event in words."""
    say = _SENTENCES.get(event.kind)
    return visible(say(event.data) if say is not None else f"{event.kind} {_anything(event.data)}".rstrip())


def event_line(event: Event, began_at: float, paint: Paint) -> str:
    """`+12.3s  rank 2 ended: exit code 1`; the time is since the run began."""
    colour = PHASE_COLOURS.get(str(event.data.get("phase"))) if event.kind in ("phase", "end") else None
    if event.kind in _YELLOW or event.data.get("action") in ("refused", "none-verified", "failed", "missing"):
        colour = "yellow"
    elif event.kind == "cause":
        colour = "red"
    return f"{paint(f'+{duration(event.time - began_at)}'.rjust(8), dim=True)}  {paint(sentence(event), colour)}"


def _created(data: Data) -> str:
    return f"{data['id']} begins on {data['target']}; results are kept {in_place(data['output_dir'])}"


def _attempt(data: Data) -> str:
    nodes = data.get("nodes", ())
    where = f" on {count(len(nodes), 'node')}" if nodes else ""
    why = f" {WHY[data['reason']]}" if data.get("reason") in WHY else ""
    return f"attempt {data['number']} starts {count(data['world_size'], 'rank')}{where}{why}"


def _attempt_end(data: Data) -> str:
    """`the attempt failed: a rank failed, after step 57; another one follows in 2.0s; 2 restarts left`."""
    words = [f"the attempt {'was ' if data['phase'] in ('preempted', 'stopped') else ''}{data['phase']}"]
    if (reason := str(data.get("reason", ""))) in REASONS and reason not in ("preemption", "stop"):
        words[0] += f": {REASONS[reason]}"
    if data.get("step") is not None:
        words[0] += f", at step {number(data['step'])}"
    if data["phase"] != "stopped":
        wait = data.get("wait_seconds")
        words.append("another one follows" + (f" after {duration(wait)} of back-off" if wait else ""))
    if data.get("restarts_left") is not None:
        words.append(f"{count(data['restarts_left'], 'restart')} left")
    return "; ".join(words)


def _checkpoint(data: Data) -> str:
    action, name = data.get("action"), data.get("name")
    step = f"step {number(data['step'])}" if data.get("step") is not None else "an unknown step"
    called = f" ({name})" if name else ""
    if action == "saved":
        held = f", training was held for {brief(data['blocked_seconds'])}" if "blocked_seconds" in data else ""
        took = f" in {brief(data['seconds'])}" if "seconds" in data else ""
        bulk = f": {size(data['bytes'])}{took}{held}" if "bytes" in data else ""
        return f"checkpoint of {step} saved{called}{bulk}"
    if action == "missing":
        return f"warning: {missing_words(data)}"
    if action == "restored" and data.get("source") == "log":
        return f"the script resumed by itself: {data.get('line', '')}"
    if action == "restored":
        return (
            f"goes on from {step}{called}" if data.get("step") is not None else f"goes on from {name or 'a checkpoint'}"
        )
    why = f": {data['reason']}" if data.get("reason") else ""
    if action == "none-verified":
        return f"training begins at step 0: no checkpoint is verified{why}"
    said = {"refused": f"checkpoint {name or step} refused", "failed": f"checkpoint of {step} could not be saved"}
    return f"{said.get(str(action), f'checkpoint of {step} {action}')}{why}"


def _adopted(data: Data) -> str:
    why = f"it crashed: {data['crash']}" if "crash" in data else "the one before it was gone"
    return f"the run has a new keeper: {why}"


def _loss(data: Data) -> str:
    """`the loss of rank 0 is nan at step 61; the last finite one was 0.25, at step 60`."""
    at = f" at step {number(data['step'])}" if "step" in data else ""
    last = data.get("last")
    if not last:
        return f"the loss of rank {data['rank']} is {data['loss']}{at}"
    where = f", at step {number(last['step'])}" if "step" in last else ""
    before = f"the last finite one was {number(last['loss'])}{where}"
    return f"the loss of rank {data['rank']} is {data['loss']}{at}; {before}"


def _notice(data: Data) -> str:
    if data.get("source") == "sigterm":
        return "notice: a node was sent SIGTERM from outside"
    if data.get("source") == "queue":
        return "notice: the queue takes all pods back"
    at = f" at {data['time']}" if data.get("time") else ""
    said = {"terminate": "the machine will be taken away", "stop": "the machine will be stopped",
            "rebalance": "the machine is likely to be taken away"}  # fmt: skip
    return f"notice: {said.get(str(data.get('action')), data.get('action'))}{at}"


def _queue(data: Data) -> str:
    """`queue team-a lets the attempt wait: WaitingForQuota: insufficient unused quota for cpu …`."""
    said = {"waiting": "lets the attempt wait", "requeued": "lets the attempt wait again", "admitted": "has admitted "
            "the attempt", "evicted": "has evicted the attempt", "finished": "is done with the attempt"}  # fmt: skip
    who = f"queue {data['queue']}" if data.get("queue") else "a queue of the cluster"
    why = [data[name] for name in ("reason", "message") if data.get(name) and data["state"] != "admitted"]
    by = f"; for {data['by']}" if data.get("by") else ""
    return ": ".join([f"{who} {said.get(data['state'], data['state'])}", *why]) + by


def _machine(data: Data) -> str:
    """`machine g5.12xlarge (spot, bed-a) of gpus is registered: gpus-7x2kq: NodeNotReady`."""
    said = {"asked": "is asked for", "launched": "is launched", "registered": "is in the cluster",
            "initialized": "is ready", "gone": "is gone", "kept": "is still there, and is not looked at any "
            "more"}  # fmt: skip
    name = data.get("machine") or (data["name"] if data.get("instance_type") else "")
    words = [f"{machine_name(data)} {said.get(data['state'], data['state'])}"]
    words += [str(part) for part in (name, data.get("reason"), data.get("message")) if part]
    last = "; it was the last that was made for the run" if data.get("left") == 0 and data["state"] == "gone" else ""
    return ": ".join(words) + last


def _resume(data: Data) -> str:
    nodes = f" on {count(data['nodes'], 'node')}" if isinstance(data.get("nodes"), int) else ""
    return f"the run is resumed{nodes}" + (f" from {data['from']}" if data.get("from") else "")


def _node(data: Data) -> str:
    return f"node {data['node']} is up (process {data['pid']})" if "pid" in data else f"node {data['node']} is up"


def _network(data: Data) -> str:
    addresses = ", ".join(f"{node['host']} {node['address']}" for node in data["nodes"])
    rate = f", {data['rate']} each way" if data.get("rate") else ""
    return f"each node has a network of its own: {addresses} on {data['interface']}{rate}"


def _rank(data: Data) -> str:
    if "exit_code" not in data:
        return f"rank {data['rank']} is alive (process {data['pid']})"
    code = data["exit_code"]
    return f"rank {data['rank']} ended: {exit_words(code)}" if code else f"rank {data['rank']} is done"


def _progress(data: Data) -> str:
    words = []
    if "step" in data:
        words.append(f"step {number(data['step'])}" + (f" of {number(data['total'])}" if data.get("total") else ""))
    words += [f"{name} {number(data[name])}" for name in ("epoch", "loss") if name in data]
    if "samples_per_second" in data:
        words.append(f"{number(data['samples_per_second'])} samples/s")
    return ", ".join(words) or _anything(data)


def _hang(data: Data) -> str:
    said = {"timeout": "time is up", "stop": "to be stopped", "failure": "a rank gave up"}.get(data["reason"], "")
    ranks = ranks_named([rank["rank"] for rank in data["ranks"]])
    return f"no output for {duration(data['seconds'])}{said and f', {said}'}: stacks of {ranks} taken (windlass why)"


def _stop(data: Data) -> str:
    who = {"asked": "asked by a person", "SIGTERM": "asked by the machine (SIGTERM)",
           "elsewhere": "asked on another machine", "removed": "removed from the cluster"}  # fmt: skip
    reason = who.get(str(data.get("reason")), str(data.get("reason", "")))
    return f"stop: {reason}{', without grace' if data.get('now') else ''}"


def _end(data: Data) -> str:
    code = data.get("exit_code")
    why = ": the same step failed twice in the same way" if data.get("reason") == "same-step-twice" else ""
    return f"ended: {data['phase']}" + (f" ({exit_words(code)})" if code else "") + why


def _anything(data: Data) -> str:
    return ", ".join(f"{name} {value}" for name, value in data.items())


_SENTENCES: Final[Mapping[str, Callable[[Data], str]]] = {
    "created": _created,
    "phase": lambda data: f"now {data['phase']}",
    "attempt": _attempt,
    "network": _network,
    "node": _node,
    "rank": _rank,
    "progress": _progress,
    "cause": lambda data: f"first cause: {cause_headline(data)}",
    "attempt-end": _attempt_end,
    "checkpoint": _checkpoint,
    "first-step": lambda data: f"first step that was reported: {number(data['step'])}",
    "loss": _loss,
    "caught-up": lambda data: f"step {number(data['step'])} is reached again: what was lost is made up for",
    "hang": _hang,
    "hang-end": lambda data: f"output again, after {duration(data['seconds'])} without",
    "notice": _notice,
    "queue": _queue,
    "machine": _machine,
    "lost-node": lambda data: f"node {data['node']} is lost: {data.get('why', '')}".rstrip(": "),
    "not-started": lambda data: f"node {data['node']} had not started: {data.get('why', '')}".rstrip(": "),
    "node-back": lambda data: f"node {data['node']} is back",
    "resume": _resume,
    "stop": _stop,
    "adopted": _adopted,
    "condition": lambda data: data.get("message") or "the run is supervised again",
    "observed": lambda data: f"node {data['node']} is seen to run",
    "warning": lambda data: f"warning: {data.get('message', '')}",
    "end": _end,
}
