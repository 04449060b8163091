"""Formats each event of a run as one sentence."""

from __future__ import annotations

from typing import Final

from windlass.cli.formatting import Paint, brief, count, duration, in_place, number, ranks_named, size, visible
from windlass.cli.statustext import (
    ENDED,
    STARTED,
    cause_headline,
    collected_words,
    data_words,
    exit_words,
    uploaded_words,
)
from windlass.cli.style import PHASE_COLOURS
from windlass.runs import events
from windlass.runs.events import Entry, Event
from windlass.runs.phase import Phase
from windlass.runs.warnings import not_found_words

_YELLOW: Final = (
    events.HangDetected,
    events.LossNotFinite,
    events.Warned,
    events.PreemptionNotice,
    events.NodeLost,
    events.ConditionChanged,
)
_NOTABLE: Final = (
    events.RootCause,
    events.PreemptionNotice,
    events.QueueChanged,
    events.NodeProvisioning,
    events.NodeLost,
    events.NodeBack,
    events.HangDetected,
    events.HangEnded,
    events.RunResumed,
    events.Warned,
    events.ConditionChanged,
)
_BAD_CHECKPOINTS: Final = frozenset({"refused", "none-verified", "failed", "missing"})
_NOTICES: Final = {
    "terminate": "the instance will be terminated",
    "stop": "the instance will be stopped",
    "rebalance": "the instance is at elevated risk of interruption",
}
_QUEUE_STATES: Final = {
    "waiting": "has not admitted the attempt",
    "requeued": "has requeued the attempt",
    "admitted": "has admitted the attempt",
    "evicted": "has evicted the attempt",
    "finished": "has finished the attempt",
}
_NODE_STATES: Final = {
    "asked": "is requested",
    "launched": "is launched",
    "registered": "has joined the cluster",
    "initialized": "is ready",
    "gone": "is deleted",
    "kept": "still exists; its deletion is no longer watched",
}
_STOP_REASONS: Final = {
    "asked": "requested by the user",
    "SIGTERM": "the machine is shutting down (SIGTERM)",
    "elsewhere": "requested on another machine",
    "removed": "its objects were deleted from the cluster",
    "queue": "an administrator has deactivated its Workload in the queue",
}
_SHUTDOWNS: Final = {
    "failure": "a rank failed, or a node was lost",
    "preemption": "a node is taken away",
    "hang": "its ranks hang",
    "resize": "the number of nodes changes",
    "stop": "a stop was requested",
    "timeout": "the time limit is reached",
    "upload": "its outputs cannot be uploaded",
}
UNSEEN: Final = frozenset({"same-step-twice", "same-error-twice", "not-admitted"})
"""Reasons for the end of a run that no earlier event reports."""
_HANG_REASONS: Final = {
    "timeout": ", time limit reached",
    "stop": ", stop requested",
    "failure": ", a rank reported a timeout",
}


def is_notable(event: Event) -> bool:
    """Whether a command that follows a run prints this event as a separate line."""
    entry = event.entry
    if isinstance(entry, events.CheckpointChanged):
        return entry.action == "restored" or entry.action in _BAD_CHECKPOINTS
    if isinstance(entry, events.ShutdownBegun):
        return entry.reason == "timeout"  # for any other reason, another event has the details
    return isinstance(entry, _NOTABLE)


def notable_text(event: Event) -> str:
    """Returns the event's sentence; for a root cause, without the words "root cause"."""
    return sentence(event).removeprefix("root cause: ")


def colour_of(event: Event) -> str | None:
    """Returns the colour in which an event is shown."""
    match event.entry:
        case events.PhaseEntered(phase) | events.RunEnded(phase) if phase is not None:
            return PHASE_COLOURS[phase]
        case events.RootCause():
            return "red"
        case events.CheckpointChanged(action) if action in _BAD_CHECKPOINTS:
            return "yellow"
        case entry if isinstance(entry, _YELLOW):
            return "yellow"
    return None


def event_line(event: Event, began_at: float, paint: Paint) -> str:
    """Formats an event with the time since the run began: `+12.3s rank 2 ended: exit code 1`."""
    at = f"+{duration(event.time - began_at)}".rjust(8)
    return f"{paint(at, dim=True)}  {paint(sentence(event), colour_of(event))}"


def sentence(event: Event) -> str:
    """Formats an event as a sentence; for an unknown kind of event, lists its fields."""
    anything = ", ".join(f"{name} {value}" for name, value in event.data.items())
    return visible(_sentence(event.entry) or f"{event.kind} {anything}".rstrip())


def _sentence(entry: Entry) -> str:
    match entry:
        case events.Created():
            return f"{entry.id} begins on {entry.target}; results are kept {in_place(entry.output_dir)}"
        case events.PhaseEntered(phase):
            return f"now {phase}" if phase is not None else ""
        case events.AttemptStarted():
            where = f" on {count(len(entry.nodes), 'node')}" if entry.nodes else ""
            why = f" {STARTED[entry.reason]}" if entry.reason in STARTED else ""
            return f"attempt {entry.number} starts {count(entry.world_size, 'rank')}{where}{why}"
        case events.AttemptEnded():
            return _attempt_ended(entry)
        case events.NetworkCreated():
            addresses = ", ".join(f"{node.host} {node.address}" for node in entry.nodes)
            rate = f", {entry.rate} each way" if entry.rate else ""
            return f"network created: {addresses} on {entry.interface}{rate}"
        case events.DataStaged(moved=moved):
            return f"data {data_words(entry)}" + (f"; {size(moved)} fetched" if moved else "; nothing to fetch")
        case events.OutputsUploaded(moved=moved):
            return f"outputs: {uploaded_words(entry)}" + (
                f"; {size(moved)} uploaded" if moved else "; nothing to upload"
            )
        case events.Notified(secret, error):
            told = f"was not told of the end: {error}" if error else "was told of the end"
            return f"the webhook of {secret} {told}"
        case events.OutputsCollected():
            return f"outputs collected: {collected_words(entry)}"
        case events.CollectionBegan(node, 0):
            return f"node {node} looks for the files that outputs.collect names"
        case events.CollectionBegan(node, files):
            return f"node {node} copies {count(files, 'file')} to the output: {size(entry.bytes)}"
        case events.CodeFiles(node):
            copied = f"{count(entry.copied, 'file')} copied to the output, " if entry.copied else ""
            left = f"{entry.left:,} not copied" if entry.left or copied else "none"
            return f"new or changed files of the code folder of node {node}: {copied}{left}"
        case events.NodeStarted(node, pid):
            return f"node {node} started" + (f" (process {pid})" if pid is not None else "")
        case events.RankChanged(rank, pid, None):
            return f"rank {rank} started" + (f" (process {pid})" if pid is not None else "")
        case events.RankChanged(rank, _, code):
            return f"rank {rank} ended: {exit_words(code)}" if code else f"rank {rank} is done"
        case events.Progress():
            return _progress(entry)
        case events.RootCause():
            return f"root cause: {cause_headline(entry)}"
        case events.CheckpointChanged():
            return _checkpoint(entry)
        case events.FirstStep(step):
            return f"first step reported: {number(step)}"
        case events.LossNotFinite():
            return _loss(entry)
        case events.CaughtUp(step):
            return f"caught up with step {number(step)}: all lost steps are trained again"
        case events.HangDetected():
            ranks = ranks_named([rank.rank for rank in entry.ranks])
            why = _HANG_REASONS.get(entry.reason, "")
            return f"no output for {duration(entry.seconds)}{why}: recorded the stacks of {ranks} (windlass why)"
        case events.HangEnded(seconds):
            return f"output again, after {duration(seconds)} without"
        case events.PreemptionNotice():
            return _notice(entry)
        case events.QueueChanged(is_of_machine=True):
            return f"the run waits for {entry.waits_for}"
        case events.QueueChanged():
            reasons = [part for part in (entry.reason, entry.message) if part and entry.state != "admitted"]
            text = f"{entry.queue_name} {_QUEUE_STATES.get(entry.state, entry.state)}"
            return ": ".join([text, *reasons]) + (f"; for {entry.by}" if entry.by else "")
        case events.NodeProvisioning():
            return _node(entry)
        case events.ShutdownBegun(reason):
            return f"the supervisor ends the attempt: {_SHUTDOWNS.get(reason, reason)}"
        case events.NodeLost(node, why):
            return f"node {node} is lost: {why}".rstrip(": ")
        case events.NodeNotStarted(node, why):
            return f"node {node} had not started: {why}".rstrip(": ")
        case events.NodeBack(node):
            return f"node {node} takes part in the next attempt"
        case events.NodeObserved(node):
            return f"node {node} is running"
        case events.PodsReused(attempt, made_for, pods):
            num_new = sum(of == attempt for of, _ in pods)
            new = f", {num_new} of {len(pods)} pods {'is' if num_new == 1 else 'are'} new" if num_new else ""
            return f"attempt {attempt} runs in the pods of attempt {made_for}{new}" if made_for != attempt else ""
        case events.RunResumed():
            nodes = f" on {count(entry.nodes, 'node')}" if entry.nodes is not None else ""
            return f"the run is resumed{nodes}" + (f" from {entry.from_}" if entry.from_ else "")
        case events.StopRequested():
            reason = _STOP_REASONS.get(entry.reason, entry.reason)
            return f"stop: {reason}{', without a grace period' if entry.now else ''}"
        case events.SupervisorRestarted(crash):
            return "supervisor restarted" + (f": it crashed: {crash}" if crash is not None else "")
        case events.ConditionChanged(kind, message, fix=fix):
            return f"{message}; {fix}" if fix else message or ("the run is supervised again" if kind is None else kind)
        case events.Warned(message):
            return f"warning: {message}"
        case events.RunEnding(phase, nodes=nodes) if nodes:
            return f"the ranks have ended; the run ends as {phase} once its outputs are collected"
        case events.RunEnding(phase):
            return f"the ranks have ended; the run ends as {phase} once its outputs are uploaded"
        case events.RunEnded(phase, code):
            why = f": {ENDED[entry.reason]}" if entry.reason in UNSEEN else ""
            return f"ended: {phase}" + (f" ({exit_words(code)})" if code else "") + why
    return ""


def _attempt_ended(entry: events.AttemptEnded) -> str:
    """Formats the end of an attempt: `the attempt failed: it hung, at step 57; another one follows after 2.0s of
    back-off; 2 restarts left`.
    """
    was = "was " if entry.phase in (Phase.PREEMPTED, Phase.STOPPED) else ""
    words = [f"the attempt {was}{entry.phase or 'ended'}"]
    if entry.reason in ENDED and entry.reason not in ("preemption", "stop"):
        words[0] += f": {ENDED[entry.reason]}"
    if entry.step is not None:
        words[0] += f", at step {number(entry.step)}"
    if entry.phase is not Phase.STOPPED:
        wait = f" after {duration(entry.wait_seconds)} of back-off" if entry.wait_seconds else ""
        words.append(f"another one follows{wait}")
    if entry.restarts_left is not None:
        words.append(f"{count(entry.restarts_left, 'restart')} left")
    return "; ".join(words)


def _progress(entry: events.Progress) -> str:
    words = []
    if entry.step is not None:
        words.append(f"step {number(entry.step)}" + (f" of {number(entry.total)}" if entry.total else ""))
    words += [f"{name} {number(value)}" for name in ("epoch", "loss") if (value := getattr(entry, name)) is not None]
    if entry.samples_per_second is not None:
        words.append(f"{number(entry.samples_per_second)} samples/s")
    return ", ".join(words)


def _checkpoint(entry: events.CheckpointChanged) -> str:
    step = f"step {number(entry.step)}" if entry.step is not None else "an unknown step"
    called = f" ({entry.name})" if entry.name else ""
    why = f": {entry.reason}" if entry.reason else ""
    match entry.action:
        case "saved" if entry.bytes is not None:
            took = f" in {brief(entry.seconds)}" if entry.seconds is not None else ""
            paused = (
                f", training paused for {brief(entry.blocked_seconds)}" if entry.blocked_seconds is not None else ""
            )
            return f"checkpoint of {step} saved{called}: {size(entry.bytes)}{took}{paused}"
        case "saved":
            return f"checkpoint of {step} saved{called}"
        case "missing":
            return f"warning: {not_found_words(entry)}"
        case "restored" if entry.source == "log":
            return f"the script resumed by itself: {entry.line}"
        case "restored":
            where = f"{step}{called}" if entry.step is not None else entry.name or "a checkpoint"
            is_given = entry.source == "found"
            return f"the script is given {where} to continue from" if is_given else f"continues from {where}"
        case "none-verified":
            return f"training begins at step 0: no checkpoint is verified{why}"
        case "refused":
            return f"checkpoint {entry.name or step} refused{why}"
        case "failed":
            return f"checkpoint of {step} could not be saved{why}"
    return f"checkpoint of {step} {entry.action}{why}"


def _loss(entry: events.LossNotFinite) -> str:
    """Formats a loss that is not finite: `the loss of rank 0 is nan at step 61; the last finite one was 0.25, at step
    60`.
    """
    at = f" at step {number(entry.step)}" if entry.step is not None else ""
    text = f"the loss of rank {entry.rank} is {entry.loss}{at}"
    if entry.last is None or entry.last.loss is None:
        return text
    where = f", at step {number(entry.last.step)}" if entry.last.step is not None else ""
    return f"{text}; the last finite one was {number(entry.last.loss)}{where}"


def _notice(entry: events.PreemptionNotice) -> str:
    if entry.source == "sigterm":
        return "preemption notice: a node received SIGTERM"
    if entry.source == "queue":
        return "preemption notice: the queue evicts all pods"
    at = f" at {entry.time}" if entry.time else ""
    return f"preemption notice: {_NOTICES.get(entry.action, entry.action)}{at}"


def _node(entry: events.NodeProvisioning) -> str:
    """Formats node provisioning: `node g5.12xlarge (spot, us-east-1a) of gpus has joined the cluster: gpus-7x2kq:
    NodeNotReady`.
    """
    name = entry.machine or (entry.name if entry.instance_type else "")
    words = [f"{entry.title} {_NODE_STATES.get(entry.state, entry.state)}"]
    words += [part for part in (name, entry.reason, entry.message) if part]
    is_last = entry.left == 0 and entry.state == "gone"
    return ": ".join(words) + ("; it was the last one provisioned for the run" if is_last else "")
