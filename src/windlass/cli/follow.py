"""Follows a run until it ends: its logs as they arrive, its state in a live view or as plain lines, and a summary.

On a terminal the logs scroll above a live view. Where output is a pipe or a file, or `NO_COLOR` or `TERM=dumb` is set,
standard output holds the ranks' lines and nothing else, and standard error a line for each change of phase.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Protocol

from windlass.actions import runs
from windlass.actions.current import Sight
from windlass.cli.hands import QUESTION, Hands, Wish
from windlass.cli.logs import write_blocks
from windlass.cli.render import emit, print_status
from windlass.cli.style import PHASE_COLOURS, can_draw
from windlass.cli.words import Paint, count, duration, painter
from windlass.runs.logs import LogBlock, RunLogs
from windlass.runs.record import EXIT_CODES, Event, Phase, Status
from windlass.runs.store import Store

POLL_SECONDS: Final = 0.02
BATCH_BYTES: Final = 256 << 10
"""Logs are written when so much has come together, also while more arrives."""
TICK_SECONDS: Final = 0.25
"""How long a flood of logs may keep the state from being looked at."""
PROGRESS_LINE_SECONDS: Final = 10.0
PACE_SECONDS: Final = 30.0


class View(Protocol):
    """Where a followed run is shown."""

    def logs(self, blocks: list[LogBlock]) -> None:
        """Show what the ranks wrote."""

    def state(self, status: Status, rate: float | None) -> None:
        """Show where the run is; called at every turn."""

    def event(self, event: Event) -> None:
        """Show what has happened."""

    def note(self, text: str) -> None:
        """Say something to the person who watches."""

    def stale(self, why: str) -> None:
        """Show that the state may be old, and why; empty once it is as of now."""

    def ask(self, question: str) -> None:
        """Show a question; empty takes it away."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Pace:
    """Steps a second over the last half minute, for scripts that say steps only."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, progress: Mapping[str, Any]) -> float | None:
        """Take in the newest progress; gives the rate, None while too little is known."""
        step, at = progress.get("step"), progress.get("at")
        if isinstance(step, int) and isinstance(at, int | float):
            if self._seen and step < self._seen[-1][1]:
                self._seen.clear()  # a new epoch or a new attempt
            if not self._seen or step > self._seen[-1][1]:
                self._seen.append((float(at), step))
            while len(self._seen) > 2 and self._seen[0][0] < at - PACE_SECONDS:
                self._seen.popleft()
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began + 0.2 else None


class PlainView:
    """Lines for a pipe, a file or a terminal that cannot move its cursor."""

    def __init__(self, run_id: str, size: str, *, quiet: bool = False, verbose: int = 0) -> None:
        self._run_id = run_id
        self._size = size
        self._quiet = quiet
        self._verbose = verbose
        self._progress_at = time.monotonic()
        self._paint = painter(sys.stderr)

    def logs(self, blocks: list[LogBlock]) -> None:
        """Write the ranks' bytes to standard output."""
        write_blocks(blocks, sys.stdout.buffer)

    def state(self, status: Status, rate: float | None) -> None:
        """A line about the progress every ten seconds."""
        if time.monotonic() - self._progress_at < PROGRESS_LINE_SECONDS or status.phase.is_terminal:
            return
        from windlass.cli.statustext import advance_of

        self._progress_at = time.monotonic()
        advance = advance_of(status, time.time(), rate)
        if advance is not None:
            share = f" ({advance.share:.0%})" if advance.share is not None else ""
            left = (f"{duration(advance.left_seconds)} left",) if advance.left_seconds is not None else ()
            self.note(", ".join(word for word in (f"{advance.steps}{share}".strip(), *advance.facts, *left) if word))

    def event(self, event: Event) -> None:
        """A line for each change of phase, and for what went wrong; all events if asked for."""
        phase = {"created": "queued", "attempt": "starting", "stop": "stopping", "attempt-end": "restarting"}.get(
            event.kind, str(event.data.get("phase")) if event.kind == "phase" else ""
        )
        if self._verbose and event.kind not in ("progress", "created"):
            from windlass.cli.eventtext import event_line

            self.note(event_line(event, event.time, self._paint).split("  ", 1)[1])
        elif event.kind == "attempt":
            self._attempt(event)
        elif event.kind == "attempt-end" and event.data["phase"] != "stopped":
            from windlass.cli.eventtext import sentence

            self._phase(phase, f"({sentence(event)})")
        elif event.kind == "phase" and phase == "training":
            self._phase(phase, f"({self._size})")
        elif phase and event.kind != "created":
            self._phase(phase)
        elif event.kind in ("cause", "warning"):
            from windlass.cli.statustext import cause_headline

            self.note(cause_headline(event.data) if event.kind == "cause" else f"warning: {event.data['message']}")
        elif event.kind not in ("progress", "created"):
            from windlass.cli.eventtext import is_news, sentence

            if is_news(event):
                self.note(sentence(event))

    def _attempt(self, event: Event) -> None:
        from windlass.cli.statustext import WHY

        number, why = event.data["number"], WHY.get(str(event.data.get("reason")), "")
        self._phase("starting", f"({self._size})" + (f", attempt {number} {why}".rstrip() if number > 1 else ""))

    def _phase(self, phase: str, more: str = "") -> None:
        self.note(f"{self._paint(phase, PHASE_COLOURS[phase])} {more}".rstrip())

    def note(self, text: str) -> None:
        """`digits-7f3k2: …` on standard error."""
        if not self._quiet:
            emit([f"{self._run_id}: {text}"], sys.stderr)

    def stale(self, why: str) -> None:
        """A line when it begins, and one when it is over."""
        self.note(why or "the cluster answers again")

    def ask(self, question: str) -> None:
        """The question is a line; nothing takes it away."""
        if question:
            emit([question], sys.stderr)

    def close(self) -> None:
        """Nothing was changed."""


class Follower:
    """One run that is being followed."""

    def __init__(
        self,
        run_id: str,
        store: Store,
        view: View,
        hands: Hands,
        *,
        show_logs: bool,
        since_seq: int = 0,
        since: float | None = None,
    ) -> None:
        """Show events with numbers above `since_seq`, and logs written after `since` (Unix seconds)."""
        self._run_id = run_id
        self._store = store
        self._engine = runs.engine_for(run_id, store)
        self._view = view
        self._hands = hands
        self._show_logs = show_logs
        self._seq = since_seq
        self._since_ns = None if since is None else int(since * 1e9)
        self._pace = Pace()
        self._sight = Sight(store)
        self._stale = ""
        self._pending: list[LogBlock] = []
        self._looked_at = 0.0
        self._held: Event | None = None
        self.status: Status = self._engine.status(run_id)

    def run(self) -> Status:
        """Follow until the run has ended or the person leaves; gives the last status seen. Raises BrokenPipeError."""
        if not self._show_logs:
            while not self._is_over():
                pass
            return self.status
        logs = RunLogs(self._store.run_dir(self._run_id))
        pending_bytes = 0
        # The sleeping is done in `_is_over`, after what was read has been written.
        for block in logs.follow_batches(is_over=self._is_over, since_ns=self._since_ns, poll_seconds=0):
            self._pending.append(block)
            pending_bytes = pending_bytes + len(block.data) if len(self._pending) > 1 else len(block.data)
            if pending_bytes >= BATCH_BYTES:
                self._flush()
                if time.monotonic() - self._looked_at >= TICK_SECONDS:
                    self._look(0.0)
                    if self._hands.wish is Wish.LEAVE:
                        return self.status
        self._flush()
        return self.status

    def _is_over(self) -> bool:
        self._flush()
        # The first look does not wait: a run that has ended already is shown at once.
        return self._look(POLL_SECONDS if self._looked_at else 0.0)

    def _flush(self) -> None:
        if self._pending:
            self._view.logs(self._pending)
            self._pending.clear()

    def _look(self, wait_seconds: float) -> bool:
        """Hear the person, look at the run, show it; gives whether following is over."""
        if self._hands.listen(wait_seconds):
            self._obey(self._hands.wish)
        self.status = self._engine.status(self._run_id)
        if self.status.last_seq > self._seq:
            for event in self._store.events(self._run_id, self._seq):
                self._seq = event.seq
                self._show(event)
        if (stale := self._sight.look(self.status)) != self._stale:
            self._stale = stale
            self._view.stale(stale)
        self._view.state(self.status, self._pace.note(self.status.progress))
        self._looked_at = time.monotonic()
        return self.status.phase.is_terminal or self._hands.wish is Wish.LEAVE

    def _show(self, event: Event) -> None:
        """Show an event; a cause waits for what follows it, since the end of the run has its own words for it."""
        held, self._held = self._held, None
        if event.kind == "cause":
            self._held = event
            return
        if held is not None and event.kind != "end":
            self._view.event(held)
        self._view.event(event)

    def _obey(self, wish: Wish) -> None:
        self._view.ask(QUESTION if wish is Wish.ASK else "")
        if wish in (Wish.STOP, Wish.KILL):
            self._engine.stop(self._run_id, now=wish is Wish.KILL)
            self._view.note("killing" if wish is Wish.KILL else "stopping; Ctrl-C once more kills without grace")


def follow(
    run_id: str,
    store: Store,
    *,
    form: str,
    quiet: bool,
    verbose: int = 0,
    since_seq: int = 0,
    since: float | None = None,
) -> int:
    """Show a run until it ends, from event `since_seq` and time `since` on; gives the exit code of the command.

    | how it ends | code |
    |---|---|
    | the run succeeded, failed or was lost, was stopped | 0, 100, 103 |
    | the person chose to detach | 0 |
    | Ctrl-C (SIGINT) where nobody can be asked: the run goes on | 130 |
    | SIGTERM, or the reader of standard output is gone: the run goes on | 101 |
    """
    if form != "table":
        return _follow_silently(run_id, store, form)
    live = can_draw(sys.stdout, sys.stderr)
    hint = "Ctrl-C: detach or stop"
    stream = sys.stdout if live else sys.stderr
    try:
        # The hands come first: drawing takes a moment to load, and a Ctrl-C in it is a question too.
        with (
            Hands(can_ask=_can_ask()) as hands,
            contextlib.closing(_view(run_id, store, live=live, hint=hint, verbose=verbose)) as view,
        ):
            status = Follower(run_id, store, view, hands, show_logs=not quiet, since_seq=since_seq, since=since).run()
    except BrokenPipeError:
        # Whoever read our output has seen enough, and nobody said that the run is to end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        emit([_goes_on(run_id)], sys.stderr)
        return 101
    if not status.phase.is_terminal:
        emit([_goes_on(run_id)], stream)
        return hands.exit_code
    from windlass.cli.statustext import summary_lines

    paint = painter(stream)
    ledger, why = runs.ledger(run_id, store), explain(status, store, paint)
    emit(summary_lines(status, ledger, time.time(), paint, why, verbose=verbose), stream)
    return EXIT_CODES[status.phase]


def explain(status: Status, store: Store, paint: Paint) -> list[str]:
    """Why the run failed, as `windlass why` says it; nothing for any other end, or where a traceback says it all."""
    if status.phase not in (Phase.FAILED, Phase.LOST):
        return []
    from windlass.actions.why import why
    from windlass.cli.whytext import verdict_lines

    diagnosis = why(status.id, store)[1]
    return [] if diagnosis.verdict.code in ("exception", "unknown") else verdict_lines(diagnosis, paint)


def watch(run_id: str, store: Store, *, form: str) -> tuple[Status, int]:
    """Show the state of a run, without its logs, until it ends or Ctrl-C; gives the last status and an exit code."""
    quiet = form != "table"
    live = not quiet and can_draw(sys.stdout, sys.stderr)
    view = _view(run_id, store, live=live, hint="Ctrl-C: leave", quiet=quiet)
    seen = store.status(run_id).last_seq
    with contextlib.closing(view), Hands(can_ask=False) as hands:
        status = Follower(run_id, store, view, hands, show_logs=False, since_seq=seen).run()
    return status, 0 if status.phase.is_terminal else hands.exit_code


def _follow_silently(run_id: str, store: Store, form: str) -> int:
    """For a program: nothing but the last status, as JSON or YAML."""
    view = _view(run_id, store, live=False, quiet=True)
    with Hands(can_ask=False) as hands:
        status = Follower(run_id, store, view, hands, show_logs=False).run()
    print_status(status, store.plan(run_id), runs.ledger(run_id, store), form)
    return EXIT_CODES[status.phase] if status.phase.is_terminal else hands.exit_code


def _view(run_id: str, store: Store, *, live: bool, hint: str = "", quiet: bool = False, verbose: int = 0) -> View:
    plan = store.plan(run_id)
    if live:
        from windlass.cli.live import LiveView

        return LiveView(sys.stdout, plan, runs.ledgers(run_id, store), hint)
    size = f"{count(plan['num_nodes'], 'node')} × {count(plan['procs_per_node'], 'rank')}"
    return PlainView(run_id, size, quiet=quiet, verbose=verbose)


def _can_ask() -> bool:
    """Whether somebody sees a question and can answer it."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def _goes_on(run_id: str) -> str:
    return f"{run_id} goes on. Watch it: windlass logs -f {run_id}   End it: windlass stop {run_id}"
