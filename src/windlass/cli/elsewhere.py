"""Shows runs on a cluster that another machine started, which have no record here: what `--on` adds to commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from windlass.cli.hands import Hands, Wish
from windlass.cli.render import emit, print_data
from windlass.cli.statustext import advance_lines, clock_time, exit_words, labelled, phase_word
from windlass.cli.words import Paint, duration, painter, table, visible
from windlass.runs.record import Status

if TYPE_CHECKING:
    from windlass.actions.edge import Edge
    from windlass.actions.elsewhere import There
    from windlass.runs.store import Store

POD_ROWS = 16
TICK_SECONDS = 0.25


def print_list(found: Sequence[There], on: str, form: str, *, quiet: bool, everywhere: bool) -> None:
    """Print the runs on a cluster."""
    if form != "table":
        print_data([one.to_json() for one in found], form, "")
    elif quiet:
        print_data((), form, [one.seen.id for one in found])
    elif not found:
        click.echo(f"No run on {on}. Start one: windlass run train.py --on {on}", err=True)
    else:
        emit(list_lines(found, time.time(), painter(sys.stdout), everywhere=everywhere))


def list_lines(found: Sequence[There], now: float, paint: Paint, *, everywhere: bool = False) -> list[str]:
    """What `windlass ps --on` shows."""
    titles = ["ID", "NAME", *(["NAMESPACE"] if everywhere else []), "PHASE", "PODS", "ATTEMPT", "AGE", "KEPT"]
    waits = any(one.seen.waits_for for one in found)
    rows = [[paint(title, dim=True) for title in (*titles, *(["WAITS FOR"] if waits else []))]]
    for one in found:
        seen = one.seen
        rows.append([
            seen.id,
            seen.name,
            *([seen.namespace] if everywhere else []),
            phase_word(seen.phase, paint),
            f"{seen.pods_ready}/{seen.pods_total}",
            str(seen.attempt or "–"),
            duration(now - seen.created_at),
            "here" if one.is_ours else paint("elsewhere", dim=True),
            *([visible(seen.waits_for)] if waits else []),
        ])  # fmt: skip
    return table(rows)


def watch(on: str, store: Store, edge: Edge, form: str, *, run_id: str = "") -> int:
    """Print what is there, then a line for each run that changes, until Ctrl-C or the end of the one that is named.

    Of one for a program, nothing is printed before its end, which is for the caller to print.
    All runs together need one connection for each kind of object. Gives the exit code.
    """
    from windlass.actions import elsewhere

    shown: dict[str, There] = {}
    trouble: str | None = None
    with elsewhere.watched(on, edge, run_id) as board, Hands(can_ask=False) as hands:
        while hands.wish is not Wish.LEAVE:
            if board.has_changed():
                found = {one.seen.id: one for one in elsewhere.known(board.runs(), on, store)}
                for there in reversed(list(found.values())):
                    if there != shown.get(there.seen.id) and (form == "table" or not run_id):
                        _print_change(there, form)
                for gone in shown.keys() - found.keys():
                    print_data({"id": gone, "removed": True}, form, f"{gone}  removed")
                shown = found
                sys.stdout.flush()
                if run_id and all(one.seen.phase.is_terminal for one in found.values()):
                    return 0
            if board.trouble != trouble:
                if (board.trouble is None) != (trouble is None):
                    _print_away(on, board.trouble, board.answered_at, len(shown), form, to_one=bool(run_id))
                trouble = board.trouble
            hands.listen(TICK_SECONDS)
    return hands.exit_code


def _print_away(on: str, trouble: str | None, as_of: float, num_runs: int, form: str, *, to_one: bool) -> None:
    """That the cluster does not answer, or answers again; for a program on standard output, where it prints lines."""
    since = f"cluster {on} does not answer since {clock_time(as_of)}: {trouble}"
    of = "the state of 1 run is" if num_runs == 1 else f"the states of {num_runs} runs are"
    said = f"cluster {on} answers again" if trouble is None else f"{since}; {of} as of then"
    if form == "table" or to_one:
        click.echo(visible(said), err=True)
    else:
        data = {"target": on, "stale": trouble, "as_of": as_of, "runs": num_runs}
        print_data([data] if form == "yaml" else data, form, "")


def _print_change(there: There, form: str) -> None:
    seen = there.seen
    words = [seen.id, phase_word(seen.phase, painter(sys.stdout)), f"{seen.pods_ready}/{seen.pods_total}"]
    words += [f"attempt {seen.attempt}"] if seen.attempt > 1 else []
    data = [there.to_json()] if form == "yaml" else there.to_json()
    print_data(data, form, "  ".join([*words, visible(seen.waits_for)]).rstrip())


def print_one(found: There, form: str) -> None:
    """Print one run that another machine keeps."""
    lines = status_lines(found, time.time(), painter(sys.stdout)) if form == "table" else ()
    print_data(found.to_json(whole=True), form, lines)


def status_lines(found: There, now: float, paint: Paint) -> list[str]:
    """What `windlass status --on` shows of it: what its objects tell, for the record is elsewhere."""
    seen = found.seen
    head = [paint(seen.id, bold=True), phase_word(seen.phase, paint), f"begun {duration(now - seen.created_at)} ago"]
    lines = ["  ".join([*head, f"on {found.target}, kept elsewhere"])]
    if seen.waits_for:
        lines += labelled("waits", [paint(visible(seen.waits_for), "yellow")], paint)
    if seen.attempt > 1:
        lines += labelled("attempt", [str(seen.attempt)], paint)
    lines += labelled("progress", advance_lines(_as_status(found), now), paint)
    lines += labelled("pods", [f"{seen.pods_ready} of {seen.pods_total} ready", *_pod_rows(found, paint)], paint)
    if not found.pods:  # nobody has kept what they said
        return lines
    what = "what the ranks said" if seen.phase.is_terminal else "what the ranks say"
    command = f"windlass logs {'' if seen.phase.is_terminal else '-f '}{seen.id} --on {found.target}"
    return [*lines, *labelled("next", [f"{paint(command, bold=True)}   {paint(what, dim=True)}"], paint)]


def _as_status(found: There) -> Status:
    """As much of a status as says how far a run is."""
    seen = found.seen
    return Status(seen.id, seen.name, found.target, seen.phase, seen.created_at, seen.created_at, "",
                  progress=found.progress)  # fmt: skip


def _pod_rows(found: There, paint: Paint) -> list[str]:
    if not found.pods:
        return []
    rows = [[paint(title, dim=True) for title in ("NODE", "POD", "MACHINE", "STATE")]]
    for pod in found.pods[:POD_ROWS]:
        why = ": ".join(part for part in (pod.reason, pod.message) if part)
        ended = exit_words(pod.exit_code) if pod.exit_code else ""
        said = "  ".join(word for word in (pod.state, ended, visible(why)) if word)
        rows.append([str(pod.node), pod.name, pod.machine or "–", said])
    hidden = len(found.pods) - POD_ROWS
    return [*table(rows), *([f"and {hidden} more"] if hidden > 0 else [])]


def stop(run_id: str, on: str, edge: Edge, *, now: bool, wait: bool, form: str) -> int:
    """`windlass stop RUN --on TARGET`."""
    from windlass.actions import elsewhere
    from windlass.cli.run import say_stopping

    begun: list[float] = []

    def told(grace_seconds: float) -> None:
        begun.append(grace_seconds)
        if wait and form == "table":
            say_stopping(run_id, grace_seconds)

    found = elsewhere.stop(run_id, on, edge, now=now, wait=wait, told=told)
    if form == "table" and not begun:
        click.echo("it had ended already:")
    print_one(found, form)
    return 0
