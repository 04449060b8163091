"""Turns a status into what a person wants to know: where the run is, what broke, where the time went, what next."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from windlass.cli.style import PHASE_COLOURS, SPENT_COLOURS
from windlass.cli.words import Paint, bar, count, duration, number, ranks_named, size, spans, table, tilde, visible
from windlass.runs.ledger import WASTED, Ledger
from windlass.runs.record import DISK_FULL, ROTATED, Attempt, Phase, RankState, Status
from windlass.runs.start import Origin, Start
from windlass.runs.tally import Spent

if TYPE_CHECKING:
    from windlass.actions.current import View

RANK_ROWS: Final = 8
"""A run of more ranks is shown as groups of ranks in the same state."""
TRACEBACK_LINES: Final = 14
NAMED: Final = 8
"""So many runs are named in a note on several."""
LABEL_WIDTH: Final = 10
REASONS: Final = {
    "failure": "a rank failed",
    "preemption": "it was preempted",
    "node-loss": "a node was lost",
    "hang": "it hung",
    "resize": "the number of nodes changed",
    "stop": "it was stopped",
    "timeout": "its time was up",
    "same-step-twice": "the same step failed twice in the same way",
    "resume": "it was resumed",
}
"""Why an attempt ended, as a sentence."""
WHY: Final = {
    "failure": "after a failure",
    "preemption": "after a preemption",
    "node-loss": "after the loss of a node",
    "hang": "after a hang",
    "resize": "with another number of nodes",
    "resume": "by a resume",
}
"""Why an attempt was begun."""
_WHY_DROPPED: Final = {
    DISK_FULL: "were not kept, the disk was full",
    ROTATED: "are missing, the kubelet rotated the log before a supervisor read them",
}
NOT_METRICS: Final = frozenset({"rank", "at", "metrics", "message"})


@dataclass(frozen=True, slots=True)
class Advance:
    """How far a run is, as far as its script said so."""

    share: float | None
    """0 to 1; None where the whole is not known."""
    steps: str
    """`120/400`, `step 120` or empty."""
    facts: tuple[str, ...]
    """`8.4 steps/s`, `1,070 samples/s`, `loss 0.231`."""
    left_seconds: float | None
    """Time to the last step at the present rate."""


def advance_of(status: Status, now: float, rate: float | None = None) -> Advance | None:
    """How far the run is; `rate` is in steps a second as the caller has measured it, for a script that does not say."""
    progress = status.progress
    step, total = _count(progress.get("step")), _count(progress.get("total"))
    share = None
    if step is not None and total:
        share = min(1.0, step / total)
    elif isinstance(percent := progress.get("percent"), int | float):
        share = min(1.0, max(0.0, percent / 100))
    rate = _positive(progress.get("rate")) or rate or _mean_rate(status, step, now)
    facts = []
    if (epoch := progress.get("epoch")) is not None:
        facts.append(f"epoch {number(epoch)}")
    if (loss := progress.get("loss")) is not None:
        facts.append(f"loss {number(loss)}")
    if rate is not None:
        facts.append(f"{number(rate)} steps/s")
    if (samples := _positive(progress.get("samples_per_second"))) is not None:
        facts.append(f"{number(samples)} samples/s")
    left = None
    if not status.phase.is_terminal and rate and step is not None and total and step <= total:
        left = (total - step) / rate
    elif not status.phase.is_terminal:
        left = _positive(progress.get("eta_seconds"))  # the script's own word for it
    steps = ""
    if step is not None:
        steps = f"{step:,}/{total:,}" if total else f"step {step:,}"
    if share is None and not steps and not facts:
        return None
    return Advance(share, steps, tuple(facts), left)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 and value != float("inf") else None


def _mean_rate(status: Status, step: int | None, now: float) -> float | None:
    """Steps a second since training began. A later attempt may have resumed anywhere, so only the first one tells."""
    if not step or len(status.attempts) != 1:
        return None
    until = float(status.progress.get("at", now)) if status.phase is Phase.TRAINING else now
    seconds = status.phases_at(until).get(Phase.TRAINING, 0.0)
    return step / seconds if seconds >= 1.0 else None


# -- parts ------------------------------------------------------------------------------------------------------------


def phase_word(phase: Phase, paint: Paint) -> str:
    """The phase in its colour."""
    return paint(phase.value, PHASE_COLOURS[phase.value], bold=phase.is_terminal)


def elapsed(status: Status, now: float) -> float:
    """Seconds from the run's beginning to its end, or to `now`."""
    return (now if status.ended_at is None else status.ended_at) - status.created_at


def time_shares(ledger: Ledger) -> list[tuple[Spent, float, float]]:
    """What time was spent on, seconds and share of the wall clock, in the order in which a run goes through them."""
    total = ledger.wall_seconds or 1.0
    return [(spent, seconds, seconds / total) for spent, seconds in ledger.seconds.items()]


def time_line(ledger: Ledger) -> str:
    """Where the time went, in one line: `starting 2.1s (17 %), training 9.8s (80 %)`; crumbs are left out."""
    shares = time_shares(ledger)
    shown = [part for part in shares if part[2] >= 0.005 or part[0] in WASTED] or shares
    return ", ".join(f"{spent.value} {duration(seconds)} ({share:.0%})" for spent, seconds, share in shown)


def time_rows(ledger: Ledger, paint: Paint) -> list[str]:
    """Where the time went as a table with bars; below it what that is worth, once something has befallen the run."""
    rows = [
        [paint(spent.value, SPENT_COLOURS[spent.value], bold=spent in WASTED), duration(seconds), f"{share:4.0%}",
         bar(share, 20).rstrip("░")]
        for spent, seconds, share in time_shares(ledger)
    ]  # fmt: skip
    if ledger.attempts <= 1 and not ledger.wasted_seconds:
        return table(rows)
    words = [f"goodput {ledger.goodput:.0%}", count(ledger.attempts, "attempt")]
    if ledger.steps_redone:
        words.append(f"{count(ledger.steps_redone, 'step')} redone")
    if ledger.unknown_starts:
        words.append(f"steps redone by {count(ledger.unknown_starts, 'restart')} not known")
    return [*table(rows), paint("  ".join(words), dim=True)]


def rank_word(state: RankState, *, over: bool = False) -> str:
    """What a rank is doing, or how it ended; where the run is `over`, a rank whose end was not observed is gone."""
    if state.exit_code is not None:
        return "done" if state.exit_code == 0 else exit_words(state.exit_code)
    if over:
        return "not started" if state.pid is None else "gone"
    return "starting" if state.pid is None else "alive"


def exit_words(code: int) -> str:
    """`exit code 3`, `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    import signal

    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def ranks_line(ranks: Sequence[RankState], *, over: bool = False) -> str:
    """`4 of 4 alive`, `3 of 4 done, 1 exit code 1`."""
    words = Counter(rank_word(state, over=over) for state in ranks)
    first = "alive" if words["alive"] or words["starting"] else "done"
    rest = [
        f"{many:,} {word}"
        if word in ("done", "alive", "starting", "gone", "not started")
        else f"{many:,} ended by {word}"
        for word, many in words.items()
        if word != first
    ]
    return ", ".join([f"{words[first]:,} of {len(ranks):,} {first}", *rest])


def rank_rows(
    ranks: Sequence[RankState], paint: Paint, victims: Sequence[int], first: int | None, *, over: bool = False
) -> list[str]:
    """A table of the ranks, those of a large run in groups of the same state."""

    def word(state: RankState) -> str:
        text = rank_word(state, over=over)
        colour = None if text in ("done", "alive", "starting", "not started") else "red"
        note = (
            "  ← first cause" if state.rank == first else paint("  victim", dim=True) if state.rank in victims else ""
        )
        return paint(text, colour) + note

    if len(ranks) <= RANK_ROWS:
        head = [paint(title, dim=True) for title in ("RANK", "NODE", "PID", "STATE")]
        return table([head, *([str(s.rank), str(s.node), str(s.pid or "–"), word(s)] for s in ranks)])
    groups: dict[str, list[RankState]] = {}
    for state in ranks:
        groups.setdefault(word(state), []).append(state)
    head = [paint(title, dim=True) for title in ("RANKS", "NODES", "COUNT", "STATE")]
    rows = [
        [spans(s.rank for s in group), spans(s.node for s in group), f"{len(group):,}", text]
        for text, group in groups.items()
    ]
    return table([head, *rows])


def cause_headline(cause: Mapping[str, Any]) -> str:
    """The first cause in one line: `rank 2 failed first (exit code 1): RuntimeError: boom`."""
    summary = visible(str(cause.get("summary", "")).strip())
    if "rank" not in cause:
        return summary
    code = cause.get("exit_code")
    how = f" ({exit_words(code)})" if isinstance(code, int) and exit_words(code) not in summary else ""
    return f"rank {cause['rank']} failed first{how}: {summary}"


def cause_lines(cause: Mapping[str, Any], paint: Paint, num_lines: int = TRACEBACK_LINES) -> list[str]:
    """The first cause with its traceback's end and its victims."""
    lines = [paint(cause_headline(cause), "red", bold=True)]
    if (node := cause.get("node_lost")) is not None:
        lines.append(f"  node {node} was lost with all its ranks")
    trace = [visible(line) for line in str(cause.get("traceback") or "").splitlines()]
    if len(trace) > num_lines:
        cut = len(trace) - num_lines + 1
        trace = [
            trace[0],
            f"  … {count(cut, 'line')} more: windlass logs --rank {cause.get('rank')}",
            *trace[cut + 1 :],
        ]
    lines += [paint(f"  │ {line}", dim=True) for line in trace]
    if victims := cause.get("victims"):
        verb = "is a victim" if len(victims) == 1 else "are victims"
        lines.append(f"  {ranks_named(victims)} {verb}: read the first cause first")
    return lines


def output_words(output_dir: str) -> str:
    """Where the results are, and whether any are there."""
    shown = tilde(output_dir)
    if not output_dir.startswith("/"):
        return shown
    try:
        with os.scandir(output_dir) as entries:
            many = sum(1 for _ in entries)
    except OSError:
        return f"{shown} (not there yet)"
    return f"{shown} ({count(many, 'entry').replace('entrys', 'entries') if many else 'empty'})"


def next_words(status: Status) -> tuple[str, str]:
    """A command worth typing next, and what it gives."""
    cause = status.cause or {}
    if not status.phase.is_terminal:
        return f"windlass logs -f {status.id}", "what the ranks say"
    if status.phase is Phase.SUCCEEDED:
        return f"windlass logs {status.id}", "what the ranks said"
    if "rank" in cause:
        return f"windlass logs {status.id} --rank {cause['rank']} --tail 50", "its last words"
    return f"windlass events {status.id}", "what happened, one by one"


def start_words(start: Start) -> str:
    """Where an attempt went on: `from step 120`, `resumed by the script at step 7,000`, `start step not known`."""
    if start.origin is Origin.BEGINNING:
        return "from the beginning"
    if start.origin is Origin.UNKNOWN:
        return "start step not known"
    where = f"step {start.step:,}" if start.step is not None else ""
    if start.origin is Origin.CHECKPOINT:
        return f"from {where or 'a checkpoint'}"
    where = where or (f"epoch {number(start.epoch)}" if start.epoch is not None else "")
    return "resumed by the script" + (f" at {where}" if where else "")


def attempt_words(status: Status, plan: Mapping[str, Any], start: Start | None = None) -> str:
    """`3 after a hang, from step 120, 1 restart left`; empty for a first attempt without restarts.

    `start` is where the newest attempt went on, as its ledger knows it.
    """
    most = int(plan.get("policy", {}).get("max_restarts", 0))
    if len(status.attempts) <= 1 and not most:
        return ""
    words = [attempt_word(status)]
    if start is not None:
        words.append(start_words(start))
    elif len(status.attempts) > 1 and (restored := status.attempts[-1].restored_step) is not None:
        words.append(f"from step {restored:,}")
    left = most if status.restarts_left is None else status.restarts_left
    return ", ".join([*words, f"{count(left, 'restart')} left"])


def attempt_word(status: Status) -> str:
    """`3 after a hang`: the newest attempt, and why it was begun."""
    number = str(len(status.attempts))
    if len(status.attempts) < 2 or (reason := _begun_by(*status.attempts[-2:])) is None:
        return number
    return f"{number} {WHY.get(reason, '')}".rstrip()


def _begun_by(before: Attempt, newest: Attempt) -> str | None:
    """Why the attempt after `before` was begun: one that had ended its run was followed by a resume alone."""
    ended_run = before.reason in ("stop", "timeout", "same-step-twice")
    return "resume" if newest.is_resume or ended_run else before.reason


def saved_words(status: Status, now: float) -> str:
    """`step 120, 12s ago, 4.1 MiB (step-00000120-a2f3c1)`: the newest checkpoint."""
    data = status.checkpoint or {}
    at = data.get("at")
    words = [f"step {data.get('step', 0):,}"]
    if isinstance(at, int | float):
        words.append(f"{duration(now - at)} ago")
    if isinstance(data.get("bytes"), int):
        words.append(size(data["bytes"]))
    if data.get("refused"):
        words.append(f"not used: {visible(str(data['refused']))}")
    return ", ".join(words) + (f" ({visible(str(data['name']))})" if data.get("name") else "")


def missing_words(data: Mapping[str, Any]) -> str:
    """`nothing matches checkpoint-* in /results/checkpoints; there are chkpt-100, chkpt-200 and 3 more`."""
    near, entries = [str(name) for name in data.get("near", ())], int(data.get("entries", 0))
    rest = f" and {entries - len(near)} more" if entries > len(near) else ""
    there = f"there {'is' if entries == 1 else 'are'} {', '.join(near)}{rest}" if near else "there is nothing in it"
    if data.get("older"):
        there = f"{count(data['older'], 'match').replace('matchs', 'matches')} there, but older than this run"
    where = "a restart begins at step 0" if data.get("at_end") else "training begins at step 0"
    return visible(f"nothing matches {data.get('find')} in {tilde(str(data.get('folder', '')))}: {there}; {where}")


def left_words(status: Status) -> str:
    """What a run that did not succeed has left to go on from."""
    if status.checkpoint is None:
        return "no checkpoint that the script has told of"
    if status.checkpoint.get("refused"):
        return "no verified checkpoint"
    return f"a checkpoint of step {status.checkpoint.get('step', 0):,}"


def dropped_words(status: Status) -> str:
    """`incomplete: 1.2 MiB (300 lines) of ranks 0–3 were not kept, the disk was full`; empty for complete logs."""
    parts = []
    for why, words in _WHY_DROPPED.items():
        dropped = [one for one in status.dropped if one.why == why]
        if dropped:
            lines = count(sum(one.num_lines for one in dropped), "line")
            num_bytes = sum(one.num_bytes for one in dropped)
            amount = f"{size(num_bytes)} ({lines})" if num_bytes else lines
            parts.append(f"{amount} of {ranks_named(sorted({one.rank for one in dropped}))} {words}")
    return f"incomplete: {'; '.join(parts)}" if parts else ""


def resume_words(status: Status) -> tuple[str, str] | None:
    """How to go on with a run that has ended without success, and what that does."""
    if not status.phase.is_terminal or status.phase is Phase.SUCCEEDED:
        return None
    step = (status.checkpoint or {}).get("step") if not (status.checkpoint or {}).get("refused") else None
    return f"windlass resume {status.id}", "starts it again" if step is None else f"goes on from step {step:,}"


# -- whole views ------------------------------------------------------------------------------------------------------


def labelled(label: str, lines: Sequence[str], paint: Paint) -> list[str]:
    """Lines behind a label."""
    return [
        (paint(label.ljust(LABEL_WIDTH), dim=True) if place == 0 else " " * LABEL_WIDTH) + line
        for place, line in enumerate(lines)
    ]


def advance_lines(status: Status, now: float, rate: float | None = None) -> list[str]:
    """How far the run is, on one or two lines; none where the script said nothing."""
    advance = advance_of(status, now, rate)
    if advance is None:
        return []
    head = []
    if advance.share is not None:
        head.append(f"{bar(advance.share)} {advance.share:4.0%}")
    if advance.steps:
        head.append(advance.steps)
    if advance.left_seconds is not None:
        head.append(f"{duration(advance.left_seconds)} left")
    return [line for line in ("  ".join(head), "  ".join(advance.facts)) if line]


def network_of(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """The network that a recorded plan makes: interface, rate, and each node's host, address and namespace."""
    for step in plan.get("steps", ()):
        if step["kind"] == "network":
            return {name: step["request"][name] for name in ("interface", "rate", "nodes")}
    return None


def network_lines(plan: Mapping[str, Any], phase: Phase, paint: Paint) -> list[str]:
    """The address of each node that has a network of its own, and while it is there, the namespace to enter."""
    network = network_of(plan)
    if network is None:
        return []
    rows = []
    for node in network["nodes"][:RANK_ROWS]:
        enter = [] if phase.is_terminal else [paint(f"ip netns exec {node['namespace']} …", dim=True)]
        rows.append([node["host"], node["address"], *enter])
    hidden = len(network["nodes"]) - len(rows)
    return [*table(rows), *([f"and {hidden} more"] if hidden else [])]


def condition_words(status: Status, now: float) -> str:
    """What keeps a run from being supervised, and for how long."""
    condition = status.condition or {}
    return f"{condition['message']} (for {duration(max(0.0, now - condition['since']))})"


def status_lines(
    status: Status,
    plan: Mapping[str, Any],
    ledger: Ledger,
    now: float,
    paint: Paint,
    *,
    verbose: int = 0,
    rate: float | None = None,
    host: str = "",
    is_full: bool = False,
) -> list[str]:
    """Everything that `windlass status` shows.

    `plan` is the recorded plan's JSON, `host` a machine other than this that keeps the run, `is_full` whether the disk
    under the record is full.
    """
    went_on = "for" if status.phase.is_terminal else "so far"
    span = duration(elapsed(status, now))
    when = f"{went_on} {span}" if went_on == "for" else f"{span} {went_on}"
    head = [paint(status.id, bold=True), phase_word(status.phase, paint), when, f"on {status.target}"]
    if status.exit_code:
        head.append(exit_words(status.exit_code))
    lines = ["  ".join(head)]
    if host:
        asks = "" if status.phase.is_terminal else ": shown as recorded; only commands there check it"
        lines += labelled("host", [paint(visible(host), "yellow") + asks], paint)
    if is_full:
        words = "the disk under the record is full: ends of runs are recorded, all else once there is space"
        lines += labelled("disk", [paint(words, "yellow")], paint)
    if words := attempt_words(status, plan, ledger.start):
        lines += labelled("attempt", [words], paint)
    if status.condition:
        lines += labelled("condition", [paint(visible(condition_words(status, now)), "yellow")], paint)
    if status.waits_for:
        lines += labelled("waits", [paint(visible(status.waits_for), "yellow")], paint)
    if not status.phase.is_terminal and (unobserved := ledger.seconds.get(Spent.UNOBSERVED)):
        words = f"no supervisor for {duration(unobserved)} until now; what the nodes did meanwhile is being read"
        lines += labelled("note", [paint(words, "yellow")], paint)
    lines += labelled("progress", advance_lines(status, now, rate), paint)
    if status.checkpoint is not None:
        lines += labelled("saved", [saved_words(status, now)], paint)
    if status.checkpoint_missing is not None:
        lines += labelled("warning", [paint(missing_words(status.checkpoint_missing), "yellow")], paint)
    if (metrics := status.progress.get("metrics")) and isinstance(metrics, Mapping):
        lines += labelled("metrics", ["  ".join(f"{k} {number(v)}" for k, v in metrics.items())], paint)
    if message := status.progress.get("message"):
        lines += labelled("message", [visible(str(message))], paint)
    cause = status.cause or {}
    if status.ranks:
        over = status.phase.is_terminal
        shown = [ranks_line(status.ranks, over=over)]
        if verbose or len({rank_word(state, over=over) for state in status.ranks}) > 1 or not over:
            shown = rank_rows(status.ranks, paint, cause.get("victims", ()), cause.get("rank"), over=over)
        lines += labelled("ranks", shown, paint)
    lines += labelled("network", network_lines(plan, status.phase, paint), paint)
    lines += labelled("time", time_rows(ledger, paint), paint)
    lines += labelled("output", [output_words(status.output_dir)], paint)
    if words := dropped_words(status):
        lines += labelled("log", [paint(words, "yellow")], paint)
    if status.cause is not None:
        label = "cause" if status.phase.is_terminal else "before"
        lines += labelled(label, cause_lines(status.cause, paint, 60 if verbose else TRACEBACK_LINES), paint)
    return lines + labelled("next", _next_lines(status, paint), paint)


def stale_lines(stale: str, as_of: float, now: float, paint: Paint) -> list[str]:
    """Of a status that may not be as of now, why, and how old it is."""
    return labelled("as of", [paint(f"{clock_time(as_of)}, {duration(now - as_of)} ago: {visible(stale)}", "yellow")],
                    paint)  # fmt: skip


def stale_notes(views: Sequence[View]) -> list[str]:
    """Below a list of runs, a line for each reason for which states of some may be old."""
    notes = []
    for stale in dict.fromkeys(view.stale for view in views if view.stale):
        found = [view for view in views if view.stale == stale]
        names = ", ".join(view.status.id for view in found[:NAMED]) + (" …" if len(found) > NAMED else "")
        of = "state of 1 run is" if len(found) == 1 else f"states of {len(found)} runs are"
        notes.append(f"{visible(stale)}: the {of} as of {clock_time(min(view.as_of for view in found))} ({names})")
    return notes


def clock_time(at: float) -> str:
    """`14:03:22`, of an earlier day with the date, in the time zone of this machine."""
    same_day = time.localtime(at)[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", time.localtime(at))


def _next_lines(status: Status, paint: Paint) -> list[str]:
    """What to type next: to look, and where that is of use, to go on."""
    pairs = [next_words(status)]
    if (resume := resume_words(status)) and (status.phase is not Phase.FAILED or status.checkpoint is not None):
        pairs.append(resume)
    return table([[paint(command, bold=True), paint(gives, dim=True)] for command, gives in pairs], gap=3)


def summary_lines(
    status: Status, ledger: Ledger, now: float, paint: Paint, why: Sequence[str] = (), *, verbose: int = 0
) -> list[str]:
    """The last words of `windlass run`: how it ended, why, where the time went and where the results are.

    `why` is what a diagnosis says, in place of the first cause as the worker saw it.
    """
    how = phase_word(status.phase, paint)
    lines = [f"{paint(status.id, bold=True)} {how} after {duration(elapsed(status, now))}"]
    if why:
        lines += why
    elif status.cause is not None and status.phase is not Phase.STOPPED:
        lines += [f"  {line}" for line in cause_lines(status.cause, paint, 60 if verbose else TRACEBACK_LINES)]
    parts = [("time", [time_line(ledger)]), ("output", [output_words(status.output_dir)])]
    if words := dropped_words(status):
        parts.append(("log", [paint(words, "yellow")]))
    if status.phase is Phase.STOPPED or (status.phase is not Phase.SUCCEEDED and status.checkpoint is not None):
        parts.append(("left", [left_words(status)]))
    if status.checkpoint_missing is not None:
        parts.append(("warning", [paint(missing_words(status.checkpoint_missing), "yellow")]))
    parts.append(("next", _next_lines(status, paint)))
    return [*lines, *(f"  {line}" for label, texts in parts for line in labelled(label, texts, paint))]
