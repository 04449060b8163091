"""Prints runs as reported by their engine: with time accounting if a record exists, else with their pods."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from windlass.actions.listing import Filter
from windlass.cli import statustext
from windlass.cli.formatting import Paint, columns_of, duration, fitting, painter, visible
from windlass.cli.interrupts import Choice, Interrupts
from windlass.cli.render import emit, print_data, print_item
from windlass.cli.statustext import advance_lines, clock_time, exit_words, labelled
from windlass.cli.style import phase_word
from windlass.views.run import recorded_run, summary_of

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.engines.values import RunState
    from windlass.views.cluster_runs import ClusterAnswer, RunOnCluster, RunOnClusterWithPods

POD_ROWS = 16
TICK_SECONDS = 0.25
EVERY = Filter()


def watch_runs(engine: Engine, on: str, form: str, run_id: str = "", wanted: Filter = EVERY) -> int:
    """Prints the runs of a target, then a line for each run that changes, until Ctrl-C or the end of the named run.

    With -o json or yaml, nothing is printed for a named run, because the caller prints how the run ended. Returns the
    exit code.
    """
    from windlass.views.cluster_runs import ClusterAnswer, on_cluster

    shown: dict[str, RunOnCluster] = {}
    trouble: str | None = None
    with engine.watch(run_id) as watch, Interrupts(can_ask=False) as interrupts:
        while interrupts.choice is not Choice.LEAVE:
            if watch.has_changed():
                there = list(watch.runs())
                found = {one.status.id: on_cluster(one) for one in there if wanted.matches(one.status)}
                for run in reversed(list(found.values())):
                    if run != shown.get(run.id) and (form == "table" or not run_id):
                        _print_change(run, form)
                for gone in shown.keys() - {one.status.id for one in there}:
                    print_data({"id": gone, "removed": True}, form, f"{gone}  removed")
                shown = found
                sys.stdout.flush()
                if run_id and all(run.phase.is_terminal for run in found.values()):
                    return 0
            if watch.trouble != trouble:
                if (watch.trouble is None) != (trouble is None):
                    answer = ClusterAnswer(on, watch.trouble, watch.answered_at, len(shown))
                    _print_answer(answer, form, is_one=bool(run_id))
                trouble = watch.trouble
            interrupts.listen(TICK_SECONDS)
    return interrupts.exit_code


def _print_answer(answer: ClusterAnswer, form: str, *, is_one: bool) -> None:
    """Prints whether the cluster responds: on standard output with -o json or yaml, else as text on standard error."""
    if form == "table" or is_one:
        states = "the state of 1 run is" if answer.runs == 1 else f"the states of {answer.runs} runs are"
        since = f"cluster {answer.target} does not answer since {clock_time(answer.as_of)}: {answer.stale}"
        again = f"cluster {answer.target} answers again"
        click.echo(visible(f"{since}; {states} as of then" if answer.stale is not None else again), err=True)
    else:
        print_item(answer, form, "")


def _print_change(run: RunOnCluster, form: str) -> None:
    words = [run.id, phase_word(run.phase, painter(sys.stdout)), f"{run.pods_ready}/{run.pods_total}"]
    words += [f"attempt {run.attempt}"] if run.attempt > 1 else []
    print_item(run, form, "  ".join([*words, visible(run.waits_for)]).rstrip())


def print_state(engine: Engine, state: RunState, form: str, *, verbose: int = 0) -> None:
    """Prints one run."""
    now = time.time()
    if state.is_recorded:
        run = recorded_run(state.status, engine.store, now, state)
        return print_data(run, form, lambda paint: statustext.status_lines(run, now, paint, verbose=verbose))
    from windlass.views.cluster_runs import with_pods

    return print_data(with_pods(state), form, lambda paint: pod_lines(state, with_pods(state), now, paint))


def print_end(engine: Engine, run_id: str, form: str, note: str) -> None:
    """Prints a `note`, and then a short summary of a run that was stopped."""
    now = time.time()
    state = engine.state(run_id, now)
    if form == "table" and note:
        emit([note])
    if not state.is_recorded:
        return print_state(engine, state, form)
    run = recorded_run(state.status, engine.store, now, state)
    return print_data(run, form, lambda paint: statustext.summary_lines(run, now, paint))


def pod_lines(state: RunState, run: RunOnClusterWithPods, now: float, paint: Paint) -> list[str]:
    """Returns the output lines of `windlass status --on` for a run whose pods are known but not its record."""
    age = f"begun {duration(now - run.created_at)} ago"
    head = [paint(run.id, bold=True), phase_word(run.phase, paint), age, f"on {run.target}, started on another machine"]
    lines = ["  ".join(head)]
    if run.waits_for:
        lines += labelled("waits", [paint(visible(run.waits_for), "yellow")], paint)
    if run.attempt > 1:
        lines += labelled("attempt", [str(run.attempt)], paint)
    lines += labelled("progress", advance_lines(summary_of(state.status, now, is_here=False), now), paint)
    lines += labelled("warning", statustext.warning_lines(run.warnings, paint), paint)
    members = "pods" if run.namespace else "hosts"
    lines += labelled(members, [f"{run.pods_ready} of {run.pods_total} ready", *_pod_rows(run, paint)], paint)
    if run.namespace and not run.pods:  # no logs to show: they were deleted with the pods
        return lines
    what = "show the output" if run.phase.is_terminal else "follow the output"
    command = f"windlass logs {'' if run.phase.is_terminal else '-f '}{run.id} --on {run.target}"
    return [*lines, *labelled("next", [f"{paint(command, bold=True)}   {paint(what, dim=True)}"], paint)]


def _pod_rows(run: RunOnClusterWithPods, paint: Paint) -> list[str]:
    if not run.pods:
        return []
    rows = []
    for pod in run.pods[:POD_ROWS]:
        why = ": ".join(part for part in (pod.reason, pod.message) if part)
        ended = exit_words(pod.exit_code) if pod.exit_code else ""
        state = "  ".join(word for word in (pod.state, ended, visible(why)) if word)
        rows.append([str(pod.node), pod.name, pod.machine or "–", state])
    hidden = len(run.pods) - POD_ROWS
    shown = fitting(("NODE", "POD", "MACHINE", "STATE"), rows, [("MACHINE", 0)], paint, columns_of(sys.stdout))
    return [*shown, *([f"and {hidden} more"] if hidden > 0 else [])]
