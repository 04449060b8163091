"""Formats one run: its state, failures and time accounting, and the commands to type next."""

from __future__ import annotations

import json
import shlex
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from windlass.cli.formatting import (
    Paint,
    bar,
    count,
    duration,
    number,
    ranks_named,
    shortened,
    size,
    spans,
    styled,
    table,
    tilde,
    titled,
    visible,
    width_of,
)
from windlass.cli.style import SPENT_COLOURS, phase_word
from windlass.code.revision import Revision
from windlass.runs import events
from windlass.runs.data import DataDifference
from windlass.runs.ledger import WASTED, Ledger
from windlass.runs.phase import Phase
from windlass.runs.record import REMOVED, RankState
from windlass.runs.start import Origin, Start
from windlass.runs.time_accounting import Spent
from windlass.runs.warnings import NOT_FOUND, RunWarning
from windlass.spec.labels import SERVICE_LABEL
from windlass.views.code_files import ChangedFiles
from windlass.views.run import Run, RunSummary, advance_of

RANK_ROWS: Final = 8
"""Maximum number of ranks shown individually; more are grouped by state."""
TRACEBACK_LINES: Final = 14
VERBOSE_TRACEBACK_LINES: Final = 60
LABEL_WIDTH: Final = 12
PATH_CHARS: Final = 100
DIGEST_CHARS: Final = 16
COMMIT_CHARS: Final = 12
ENDED: Final = {
    "failure": "a rank failed",
    "preemption": "it was preempted",
    "node-loss": "a node was lost",
    "hang": "it hung",
    "resize": "the number of nodes changed",
    "stop": "it was stopped",
    "timeout": "it reached its time limit",
    "upload": "its outputs could not be uploaded",
    "same-step-twice": "the same step failed twice in the same way",
    "same-error-twice": "its start failed twice in the same way",
    "not-admitted": "a run before it did not succeed",
    "resume": "it was resumed",
}
"""Clause that explains why an attempt ended, by reason."""
STARTED: Final = {
    "failure": "after a failure",
    "preemption": "after a preemption",
    "node-loss": "after the loss of a node",
    "hang": "after a hang",
    "resize": "with another number of nodes",
    "resume": "by a resume",
}
"""Words that explain why an attempt was started, by the end of the attempt before."""
BEFORE_RANKS: Final = frozenset({Phase.QUEUED, Phase.PROVISIONING, Phase.PULLING, Phase.STAGING})
"""Phases in which ranks wait for their pods, or for data."""
_QUIET: Final = frozenset({"done", "running", "starting", "not started"})
"""States of a rank that are not failures."""


# -- progress ---------------------------------------------------------------------------------------------------------


def advance_words(run: RunSummary, now: float, rate: float | None = None) -> tuple[list[str], list[str]]:
    """Formats the progress of a run, as `25%`, `100/400` and `30s left`, and its script's metrics, as `loss 0.5`."""
    advance, progress = advance_of(run, now, rate), run.progress
    head = [] if advance.share is None else [f"{advance.share:.0%}"]
    if advance.step is not None:
        head.append(f"{advance.step:,}/{advance.total:,}" if advance.total else f"step {advance.step:,}")
    if advance.left_seconds is not None:
        head.append(f"{duration(advance.left_seconds)} left")
    facts = [f"{name} {number(value)}" for name in ("epoch", "loss") if (value := getattr(progress, name)) is not None]
    facts += [f"{number(advance.rate)} steps/s"] if advance.rate is not None else []
    facts += [f"{number(progress.samples_per_second)} samples/s"] if (progress.samples_per_second or 0) > 0 else []
    return head, facts


def importing_words(run: Run) -> str:
    """Returns text such as `importing torch` while ranks import modules at their start; else empty."""
    is_importing = run.phase is Phase.STARTING and any(rank.pid is not None for rank in run.ranks)
    return f"importing {', '.join(run.imports)}" if is_importing and run.imports else ""


def advance_lines(
    run: RunSummary, now: float, rate: float | None = None, *, width: int = 0, colour: str | None = None
) -> list[str]:
    """Formats the progress on one or two lines, with a bar; the first line fills `width` columns if that is set."""
    head, facts = advance_words(run, now, rate)
    if (share := advance_of(run, now).share) is not None:
        beside = width_of("  ".join(["", f"{head[0]:>4}", *head[1:]]))
        drawn = bar(share, width - beside) if width > beside else bar(share)
        head = [f"{styled(drawn, colour) if colour else drawn} {head[0]:>4}", *head[1:]]
    return [line for line in ("  ".join(head), "  ".join(facts)) if line]


# -- time -------------------------------------------------------------------------------------------------------------


def _shares(ledger: Ledger) -> list[tuple[Spent, float, float]]:
    """Returns each activity that took time, with its seconds and its share of the total."""
    return [(spent, seconds, seconds / (ledger.wall_seconds or 1.0)) for spent, seconds in ledger.seconds.items()]


def time_line(ledger: Ledger) -> str:
    """Formats the time accounting on one line: `starting 2.1s (17%), training 9.8s (80%)`; without shares below
    0.5 %.
    """
    shares = _shares(ledger)
    shown = [part for part in shares if part[2] >= 0.005 or part[0] in WASTED] or shares
    return ", ".join(f"{spent} {duration(seconds)} ({share:.0%})" for spent, seconds, share in shown)


def spent_row(spent: Spent, cells: Sequence[str], share: float, paint: Paint) -> list[str]:
    """Formats a table row with a bar for one activity that took time or money."""
    return [paint(spent, SPENT_COLOURS[spent], bold=spent in WASTED), *cells, bar(share, 20).rstrip("░")]


def time_rows(ledger: Ledger, paint: Paint) -> list[str]:
    """Formats the time accounting with bars; for a run with restarts or wasted time also its goodput."""
    lines = table(
        [
            spent_row(spent, [duration(seconds), f"{share:4.0%}"], share, paint)
            for spent, seconds, share in _shares(ledger)
        ]
    )
    if ledger.attempts <= 1 and not ledger.wasted_seconds:
        return lines
    words = [f"goodput {ledger.goodput:.0%}", count(ledger.attempts, "attempt")]
    words += [f"{count(ledger.steps_redone, 'step')} redone"] if ledger.steps_redone else []
    words += [f"steps redone by {count(ledger.unknown_starts, 'restart')} not known"] if ledger.unknown_starts else []
    return [*lines, paint("  ".join(words), dim=True)]


# -- ranks and causes -------------------------------------------------------------------------------------------------


def exit_words(code: int) -> str:
    """Formats an exit code: `exit code 3`, `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def rank_word(state: RankState, phase: Phase) -> str:
    """Returns the state of a rank in this phase, or how it ended; `gone` if the end was not observed."""
    if state.exit_code is not None:
        return "done" if state.exit_code == 0 else exit_words(state.exit_code)
    if state.pid is None:
        return "not started" if phase.is_terminal or phase in BEFORE_RANKS else "starting"
    return "gone" if phase.is_terminal else "running"


def ranks_line(ranks: Sequence[RankState], phase: Phase = Phase.TRAINING) -> str:
    """Summarizes ranks: `4 of 4 running`, `3 of 4 done, 1 failed with exit code 1`."""
    words = Counter(rank_word(state, phase) for state in ranks)
    first = "running" if words["running"] or words["starting"] or phase in BEFORE_RANKS else "done"
    rest = [
        f"{many:,} {word}" if word in _QUIET or word == "gone" else f"{many:,} failed with {word}"
        for word, many in words.items()
        if word != first
    ]
    return ", ".join([f"{words[first]:,} of {len(ranks):,} {first}", *rest])


def has_failed_ranks(ranks: Sequence[RankState]) -> bool:
    """Whether any rank ended with an error."""
    return any(rank_word(state, Phase.TRAINING) not in _QUIET for state in ranks)


def rank_rows(
    ranks: Sequence[RankState], paint: Paint, cause: events.RootCause | None, phase: Phase = Phase.TRAINING
) -> list[str]:
    """Formats a table of the ranks; in a large run, ranks with the same state share a row."""

    def word(state: RankState) -> str:
        text = rank_word(state, phase)
        note = ""
        if cause is not None:
            note = "  ← root cause" if state.rank == cause.rank else ""
            note = note or (paint("  failed as a result", dim=True) if state.rank in cause.victims else "")
        return paint(text, None if text in _QUIET else "red") + note

    if len(ranks) <= RANK_ROWS:
        titles = ("RANK", "NODE", "PID", "STATE")
        rows = [[str(one.rank), str(one.node), str(one.pid or "–"), word(one)] for one in ranks]
    else:
        groups: dict[str, list[RankState]] = {}
        for state in ranks:
            groups.setdefault(word(state), []).append(state)
        titles = ("RANKS", "NODES", "COUNT", "STATE")
        rows = [
            [spans(one.rank for one in group), spans(one.node for one in group), f"{len(group):,}", text]
            for text, group in groups.items()
        ]
    return titled(titles, rows, paint)


def cause_headline(cause: events.RootCause) -> str:
    """Formats the root cause on one line: `rank 2 failed first (exit code 1): RuntimeError: boom`."""
    summary = shortened(visible(cause.summary.strip()))
    if cause.rank is None:
        return summary
    code = cause.exit_code
    how = f" ({exit_words(code)})" if code is not None and exit_words(code) not in summary else ""
    return f"rank {cause.rank} failed first{how}: {summary}"


def cause_lines(cause: events.RootCause, paint: Paint, *, verbose: int = 0) -> list[str]:
    """Formats the root cause with the end of the traceback, and the ranks that failed as a result."""
    lines = [paint(cause_headline(cause), "red", bold=True)]
    if cause.node_lost is not None:
        how = "with all its ranks" if cause.rank is not None else "before a rank was started"
        lines.append(f"  node {cause.node_lost} was lost {how}")
    # Lines of carets are left out: under a wrapped line of code, they mark the wrong place.
    trace = [visible(line) for line in cause.traceback.splitlines() if line.strip(" ^~") or not line]
    num_lines = VERBOSE_TRACEBACK_LINES if verbose else TRACEBACK_LINES
    if len(trace) > num_lines:
        cut = len(trace) - num_lines + 1
        more = f"  … {count(cut, 'line')} more: windlass logs --rank {cause.rank}"
        trace = [trace[0], more, *trace[cut + 1 :]]
    lines += [paint(f"  │ {line if verbose else shortened(line)}", dim=True) for line in trace]
    if cause.victims:
        because = "it" if cause.rank is None else f"rank {cause.rank}"
        lines.append(f"  {ranks_named(cause.victims)} failed because {because} failed")
    return lines


# -- attempts and checkpoints -----------------------------------------------------------------------------------------


def start_words(start: Start) -> str:
    """Formats where an attempt continued: `from step 120`, `resumed by the script at step 7,000`, `start step not
    known`.
    """
    where = f"step {start.step:,}" if start.step is not None else ""
    match start.origin:
        case Origin.BEGINNING:
            return "from the beginning"
        case Origin.UNKNOWN:
            return "start step not known"
        case Origin.CHECKPOINT:
            return f"from {where or 'a checkpoint'}"
    where = where or (f"epoch {number(start.epoch)}" if start.epoch is not None else "")
    return "resumed by the script" + (f" at {where}" if where else "")


def attempt_words(run: Run) -> str:
    """Formats the newest attempt: `3 after a hang, from step 120, 1 restart left`; empty for a first attempt without
    restarts.
    """
    if len(run.attempts) <= 1 and not run.max_restarts:
        return ""
    words = [attempt_word(run)]
    if run.ledger.start is not None:
        words.append(start_words(run.ledger.start))
    left = run.max_restarts if run.restarts_left is None else run.restarts_left
    return ", ".join([*words, f"{count(left, 'restart')} left"])


def attempt_word(run: RunSummary) -> str:
    """Formats the newest attempt with the reason for its start: `3 after a hang`."""
    if len(run.attempts) < 2:
        return str(len(run.attempts))
    before, newest = run.attempts[-2:]
    why = STARTED.get("resume" if newest.is_resume else before.reason or "", "")
    return f"{len(run.attempts)} {why}".rstrip()


def remaining_words(run: Run, now: float) -> str:
    """Formats what to resume from: the newest checkpoint, else a file that the script may have saved itself."""
    if run.checkpoint is not None:
        return checkpoint_words(run, now)
    if (save := run.own_save) is not None:
        what = f"{visible(save.path)}, {duration(now - save.at)} ago, {size(save.bytes)}"
        files = run.changed_files
        is_deleted = files is not None and not files.is_kept and save.path in [one.path for one in files.largest]
        return (
            f"none reported; newest saved state: {what}, {'deleted with its machine' if is_deleted else 'not verified'}"
        )
    if run.checkpoint_find is not None:
        return f"saved by the script: {visible(run.checkpoint_find)}"
    return "none reported"


def checkpoint_words(run: RunSummary, now: float) -> str:
    """Formats the newest checkpoint: `step 120, 12s ago, 4.1 MiB (step-00000120-a2f3c1)`; empty without a
    checkpoint.
    """
    saved = run.checkpoint
    if saved is None:
        return ""
    words = [f"step {saved.step or 0:,}"]
    words += [f"{duration(now - saved.at)} ago"] if saved.at is not None else []
    words += [size(saved.bytes)] if saved.bytes is not None else []
    words += [f"not verified: {visible(saved.refused)}"] if saved.refused else []
    return ", ".join(words) + (f" ({visible(saved.name)})" if saved.name else "")


def warning_lines(warnings: Sequence[RunWarning], paint: Paint) -> list[str]:
    """Formats each warning as a sentence with the affected ranks and attempt, and the suggested fix."""
    lines = []
    for one in warnings:
        where = [ranks_named(one.ranks)] if one.ranks else []
        where += [f"attempt {one.attempt}"] if one.attempt > 1 else []
        lines.append(paint(visible(one.message) + (f" ({', '.join(where)})" if where else ""), "yellow"))
        lines += [f"  fix: {visible(one.fix)}"] if one.fix else []
    return lines


# -- whole views ------------------------------------------------------------------------------------------------------


def labelled(
    label: str, lines: str | Sequence[str], paint: Paint, colour: str | None = None, width: int = LABEL_WIDTH
) -> list[str]:
    """Formats lines with a label of `width` columns before the first line; returns nothing for empty text."""
    shown = [lines] if isinstance(lines, str) else lines
    return [
        paint(("" if place else label).ljust(width), dim=True) + paint(line, colour)
        for place, line in enumerate(shown)
        if line
    ]


def clock_time(at: float) -> str:
    """Formats a time in the time zone of this machine: `14:03:22`, with the date if it is not today."""
    same_day = time.localtime(at)[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", time.localtime(at))


def data_words(staged: events.DataStaged) -> str:
    """Formats a staged data set: `digits: 42 files, 17.9 MB of s3://bucket/digits/, set:5f2c8a…`."""
    what = f"{count(staged.files, 'file')}, {size(staged.bytes)} of {staged.source}, {staged.digest[:DIGEST_CHARS]}…"
    return f"{staged.name}: {visible(what)}"


def uploaded_words(uploaded: events.OutputsUploaded) -> str:
    """Formats uploaded outputs: `3 files, 17.9 MB in s3://bucket/runs/digits-7/, set:5f2c8a…`."""
    what = f"{count(uploaded.files, 'file')}, {size(uploaded.bytes)} in {uploaded.destination}"
    return visible(f"{what}, {uploaded.digest[:DIGEST_CHARS]}…")


def collected_words(collected: events.OutputsCollected) -> str:
    """Formats collected outputs: `3 files, 17.9 MB of node 0`."""
    of = f"node {collected.nodes[0]}" if len(collected.nodes) == 1 else count(len(collected.nodes), "node")
    return f"{count(collected.files, 'file')}, {size(collected.bytes)} of {of}"


def code_words(run: Run) -> list[str]:
    """Returns the commit of the code, and why the code was not kept with the run."""
    commit = [revision_words(run.revision)] if run.revision is not None else []
    return [*commit, *([f"not kept with the run: {visible(run.code_not_kept)}"] if run.code_not_kept else [])]


def revision_words(revision: Revision) -> str:
    """Formats the commit: `3f2a1b9c04de (main), 2 files changed since`."""
    commit = revision.commit[:COMMIT_CHARS] or "no commit yet"
    branch = f" ({visible(revision.branch)})" if revision.branch else ""
    return commit + branch + (f", {count(revision.changed, 'file')} changed since" if revision.changed else "")


def difference_words(one: DataDifference) -> str:
    """Formats a data set that changed: `digits is not what digits-7 has read: set:5f2c8a… then`."""
    return visible(f"{one.name} is not what {one.run} has read, which was {one.digest[:DIGEST_CHARS]}…")


def status_lines(run: Run, now: float, paint: Paint, *, verbose: int = 0) -> list[str]:
    """Returns the output lines of `windlass status`."""
    over, span = run.phase.is_terminal, duration(run.elapsed(now))
    head = [
        paint(run.id, bold=True),
        phase_word(run.phase, paint),
        f"for {span}" if over else f"{span} so far",
        f"on {run.target}",
        *([exit_words(run.exit_code)] if run.exit_code else []),
    ]
    lines = ["  ".join(head)]

    def add(label: str, text: str | Sequence[str], colour: str | None = None) -> None:
        lines.extend(labelled(label, text, paint, colour))

    if run.stale and run.as_of is not None:
        add("as of", f"{clock_time(run.as_of)}, {duration(now - run.as_of)} ago: {visible(run.stale)}", "yellow")
    if not run.is_here and run.host:
        add("host", visible(run.host) + ("" if over else ": shown as recorded; commands there update it"), "yellow")
    if run.supervisor:
        add("supervisor", "in the cluster" + (f"; started by {visible(run.user)}" if run.user else ""))
    if run.disk_full:
        add("disk", "full: the ends of runs are recorded, everything else once there is space", "yellow")
    add("labels", visible("  ".join(f"{key}={value}" for key, value in run.labels.items())))
    add("note", [visible(line) for line in run.note.splitlines()])
    add("code", code_words(run))
    add("attempt", attempt_words(run))
    if (condition := run.condition) is not None:
        since = f" (for {duration(max(0.0, now - condition.since))})" if condition.since is not None else ""
        add("condition", visible(condition.message) + since, "yellow")
        add("its log", [visible(line) for line in condition.log])
        add("fix", visible(condition.fix))
    add("waits for", visible(run.waits_for or ""), "yellow")
    if not over and (unobserved := run.ledger.seconds.get(Spent.UNOBSERVED)):
        add("note", f"no supervisor for {duration(unobserved)}; reading what the nodes reported meanwhile", "yellow")
    add("progress", advance_lines(run, now) or importing_words(run))
    add("checkpoint", remaining_words(run, now) if run.checkpoint or run.own_save else "")
    add("warning", warning_lines(run.warnings, paint))
    add("metrics", "  ".join(f"{visible(str(name))} {number(one)}" for name, one in run.progress.metrics.items()))
    add("message", visible(run.progress.message))
    add("ranks", _rank_lines(run, paint, verbose=verbose))
    add("data", [data_words(one) for one in run.data])
    add("note", [difference_words(one) for one in run.data_differences], "yellow")
    add("network", _network_lines(run, paint))
    add("time", time_rows(run.ledger, paint))
    add("output", output_words(run.output_dir, run.collected, run.id, is_over=run.phase.is_terminal))
    add("uploaded", uploaded_words(run.outputs) if run.outputs is not None else "")
    add("files", changed_files_lines(run.changed_files))
    if run.cause is not None:
        is_last = over or run.phase is Phase.UPLOADING
        add("cause" if is_last else "restarted", cause_lines(run.cause, paint, verbose=verbose))
    add("next", _next_lines(run, paint, is_explained=False))
    return lines


def summary_lines(
    run: Run, now: float, paint: Paint, why: Sequence[str] = (), *, verdict: str = "", verbose: int = 0
) -> list[str]:
    """Returns the summary at the end of `windlass run`: how and why the run ended, its time accounting and its results.

    `why` contains the lines of a diagnosis, which replace the root cause reported by the worker; `verdict` is the code
    of the diagnosis.
    """
    warnings = [one for one in run.warnings if one.code != verdict]
    lines = [f"{paint(run.id, bold=True)} {phase_word(run.phase, paint)} after {duration(run.elapsed(now))}", *why]
    if not why and run.cause is not None and run.phase is not Phase.STOPPED:
        lines += [f"  {line}" for line in cause_lines(run.cause, paint, verbose=verbose)]
    is_stopped = run.phase is Phase.STOPPED and bool(run.attempts)
    keeps = is_stopped or (run.phase is not Phase.SUCCEEDED and bool(run.checkpoint or run.own_save))
    for label, text, colour in (
        ("time", time_line(run.ledger), None),
        ("output", output_words(run.output_dir, run.collected, run.id, is_over=run.phase.is_terminal), None),
        ("uploaded", uploaded_words(run.outputs) if run.outputs is not None else "", None),
        ("files", changed_files_lines(run.changed_files), None),
        ("checkpoint", remaining_words(run, now) if keeps else "", None),
        ("warning", warning_lines(warnings, paint), None),
        ("next", _next_lines(run, paint), None),
    ):
        lines += [f"  {line}" for line in labelled(label, text, paint, colour)]
    return lines


def output_words(
    output_dir: str, collected: events.OutputsCollected | None = None, run_id: str = "RUN", *, is_over: bool = False
) -> str:
    """Formats the location of the results, or that there are none."""
    shown = tilde(output_dir)
    if not output_dir.startswith("/"):
        if collected is None:
            return "no outputs were fetched from the pods" if is_over and shown.startswith("in the pods") else shown
        return f"{collected_words(collected)}, not on this machine: windlass cp {run_id}:output ."
    try:
        many = sum(1 for _ in Path(output_dir).iterdir())
    except OSError:
        return f"{shown} (does not exist yet)"
    return f"{shown} ({count(many, 'entry', 'entries') if many else 'empty'})"


def changed_files_lines(found: ChangedFiles | None) -> list[str]:
    """Formats files of the code folder: copied ones, ones that would be lost, and how to keep the latter."""
    lines = []
    if found is not None and found.copied:
        of_nodes = f" of {count(found.copied_nodes, 'node')}" if found.copied_nodes > 1 else ""
        lines.append(f"{count(found.copied, 'file')}{of_nodes}, {size(found.copied_bytes)} copied to the output")
    if found is None or not found.left:
        return lines
    more = "at least " if found.is_cut else ""
    what = f"{more}{count(found.left, 'new or changed file')}, {size(found.left_bytes)}"
    lines.append(f"{visible(tilde(found.folder))}: {what}")
    lines += table([[f"  {_end_of(visible(one.path))}", size(one.bytes)] for one in found.largest])
    hidden = found.left - len(found.largest)
    lines += [f"  and {more}{hidden:,} more"] if hidden > 0 else []
    lines += ["  The list is incomplete: it took more than 2 s."] if found.is_cut else []
    if found.is_kept:
        lines.append("They changed while this run trained, and another run may overwrite them.")
    else:
        lines.append("That folder was deleted with the machines of this run.")
    if not found.patterns:  # if the job has patterns, a warning explains why no file was copied
        return lines
    patterns = json.dumps([*found.wanted, *found.patterns], ensure_ascii=False)
    one = shlex.quote(f"outputs.collect={patterns}")
    lines.append(f"To keep them with each run: outputs: {{collect: {patterns}}}")
    return [*lines, f"Without a job file: --set {one}"]


def _end_of(path: str) -> str:
    """Shortens a long path to its end, so that no row of the table wraps."""
    return path if len(path) <= PATH_CHARS else f"…{path[1 - PATH_CHARS :]}"


def _rank_lines(run: Run, paint: Paint, *, verbose: int) -> list[str]:
    if not run.ranks:
        return []
    is_over = run.phase.is_terminal
    if is_over and not verbose and len({rank_word(state, run.phase) for state in run.ranks}) == 1:
        return [ranks_line(run.ranks, run.phase)]
    return rank_rows(run.ranks, paint, run.cause, run.phase)


def _network_lines(run: Run, paint: Paint) -> list[str]:
    """Formats the address of each node that has a network namespace, and the command to enter an existing namespace."""
    nodes = run.network.nodes if run.network is not None else ()
    rows = [
        [
            node.host,
            node.address,
            *([] if run.phase.is_terminal else [paint(f"ip netns exec {node.namespace} …", dim=True)]),
        ]
        for node in nodes[:RANK_ROWS]
    ]
    hidden = len(nodes) - len(rows)
    return [*table(rows), *([f"and {hidden} more"] if hidden else [])]


def _next_lines(run: Run, paint: Paint, *, is_explained: bool = True) -> list[str]:
    """Returns commands that the user may type next, each with its effect; `windlass why` only if no verdict is
    shown.
    """
    cause, saved = run.cause, run.checkpoint
    pairs: list[tuple[str, str]] = []
    if not is_explained and (run.waits_for or run.phase in (Phase.FAILED, Phase.LOST)):
        pairs = [(f"windlass why {run.id}", "explain it: cause, evidence, fix")]
    if not run.phase.is_terminal:
        pairs.append((f"windlass logs -f {run.id}", "follow the output"))
    elif run.phase is Phase.SUCCEEDED:
        pairs.append((f"windlass logs {run.id}", "show the output"))
    elif cause is not None and cause.rank is not None:
        pairs.append((f"windlass logs {run.id} --rank {cause.rank} --tail 50", "show its last log lines"))
    elif not pairs:
        pairs.append((f"windlass events {run.id}", "show the events"))
    is_removed = run.condition is not None and run.condition.type == REMOVED
    if is_removed:
        pairs.append((f"windlass rm {run.id}", "remove the record of this machine"))
    is_service = SERVICE_LABEL in run.labels
    if is_service and not run.phase.is_terminal:
        pairs.append((f"windlass close {run.id}", f"end the {visible(run.labels[SERVICE_LABEL])}"))
    # The credentials of a service are made for one start.
    is_resumable = run.phase.is_terminal and run.phase is not Phase.SUCCEEDED and not is_removed and not is_service
    saves = saved is not None or run.checkpoint_find is not None
    if run.outputs_left:
        pairs.append((f"windlass resume {run.id}", "store its outputs, start no rank"))
    elif is_resumable and (run.phase is not Phase.FAILED or saves or not run.attempts):
        step = None if saved is None or saved.refused else saved.step
        gives = "start again" if step is None else f"continue from step {step:,}"
        if saved is None and run.checkpoint_find is not None and not any(one.code == NOT_FOUND for one in run.warnings):
            gives = f"continue from the newest verified {visible(run.checkpoint_find)}, if there is one"
        pairs.append((f"windlass resume {run.id}", gives))
    return table([[paint(command, bold=True), paint(gives, dim=True)] for command, gives in pairs], gap=3)
