"""Follows a run until it ends: its logs as they arrive, its state in a live view or as plain lines, and a summary.

On a terminal, logs scroll above a live view. If output is a pipe or a file, or `NO_COLOR` or `TERM=dumb` is set,
standard output contains only the ranks' lines, and standard error a line for each change of phase.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from windlass.cli.formatting import Paint, count, painter, size, size_of_attempt, visible
from windlass.cli.interrupts import QUESTION, Choice, Interrupts
from windlass.cli.logs import write_blocks
from windlass.cli.render import emit, print_data
from windlass.cli.style import PHASE_COLOURS, can_draw
from windlass.engines.base import Engine
from windlass.errors import EngineError
from windlass.runs import events
from windlass.runs.events import Event, Progress
from windlass.runs.logs import LogBlock, RunLogs
from windlass.runs.phase import EXIT_CODES, Phase
from windlass.runs.record import SUPERVISOR_ABSENT, Status
from windlass.views.run import Run, recorded_run, run_viewer

if TYPE_CHECKING:
    from windlass.cli.live import LiveView

POLL_SECONDS: Final = 0.02
BATCH_BYTES: Final = 256 << 10
"""Bytes of collected log lines after which they are written, even while more arrive."""
TICK_SECONDS: Final = 0.25
"""Maximum seconds between two reads of the run's state while many log lines arrive."""
LOGS_SECONDS: Final = 10.0
"""Maximum seconds to wait for the last lines of a run in a cluster after its end."""
PROGRESS_LINE_SECONDS: Final = 10.0
IMPORT_SECONDS: Final = 1.0
"""Minimum duration in seconds of a reported import; ranks forked from a warm process import almost nothing."""
PACE_SECONDS: Final = 30.0


class OutputLost(Exception):
    """Raised when standard output cannot be written any more: the pipe is closed, or the disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.why = "" if isinstance(error, BrokenPipeError) else f"standard output: {error.strerror or error}"
        """Message for the user; empty if the reader has closed the pipe."""


class Pace:
    """Computes steps per second over the last half minute, for scripts that report only steps."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, progress: Progress) -> float | None:
        """Adds the newest progress; returns the rate, or None if there are too few values."""
        step, at = progress.step, progress.at
        if step is not None and at is not None:
            if self._seen and step < self._seen[-1][1]:
                self._seen.clear()  # the step counter restarts with a new epoch or attempt
            if not self._seen or step > self._seen[-1][1]:
                self._seen.append((at, step))
            while len(self._seen) > 2 and self._seen[0][0] < at - PACE_SECONDS:
                self._seen.popleft()
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began + 0.2 else None


class PlainView:
    """Prints a run as lines, for a pipe, a file or a terminal that cannot move its cursor."""

    def __init__(
        self,
        run_id: str,
        make_run: Callable[[Status], Run],
        world_size: int,
        procs_per_node: int,
        *,
        quiet: bool = False,
        verbose: int = 0,
    ) -> None:
        self._run_id = run_id
        self._make_run = make_run
        self._size = f"({size_of_attempt(world_size, procs_per_node)})"
        """Size of the newest attempt: an elastic run may have fewer nodes than planned."""
        self._procs_per_node = procs_per_node
        self._quiet = quiet
        self._verbose = verbose
        self._progress_at = time.monotonic()
        self._is_import_known = False
        self._paint = painter(sys.stderr)

    def logs(self, blocks: list[LogBlock]) -> None:
        """Writes the ranks' bytes to standard output. Raises OutputLost."""
        try:
            write_blocks(blocks, sys.stdout.buffer)
        except OSError as error:
            raise OutputLost(error) from error

    def state(self, status: Status, rate: float | None) -> None:
        """Prints a progress line every ten seconds, and a line about slow imports."""
        if not self._is_import_known and status.phase is Phase.STARTING:
            self._show_import(status)
        if time.monotonic() - self._progress_at < PROGRESS_LINE_SECONDS or status.phase.is_terminal:
            return
        from windlass.cli.statustext import advance_words

        self._progress_at = time.monotonic()
        head, facts = advance_words(self._make_run(status), time.time(), rate)
        if head or facts:
            self.note(", ".join([*head, *facts]))

    def _show_import(self, status: Status) -> None:
        from windlass.cli.statustext import importing_words

        if time.time() - status.times.phase_since > IMPORT_SECONDS and (
            words := importing_words(self._make_run(status))
        ):
            self._is_import_known = True
            self.note(f"{self._paint(Phase.STARTING, PHASE_COLOURS[Phase.STARTING])}: {words}")

    def event(self, event: Event) -> None:
        """Prints a line for each change of phase and each important event; with `verbose` for every event."""
        from windlass.cli import eventtext
        from windlass.cli.statustext import STARTED

        match event.entry:
            case events.Progress() | events.Created():
                return
            case _ if self._verbose:
                self.note(eventtext.event_line(event, event.time, self._paint).split("  ", 1)[1])
            case events.AttemptStarted(number, world_size, reason=reason):
                self._size = f"({size_of_attempt(world_size, self._procs_per_node)})"
                attempt = f", attempt {number} {STARTED.get(reason or '', '')}".rstrip() if number > 1 else ""
                self._phase(Phase.STARTING, self._size + attempt)
            case events.AttemptEnded(phase):
                self._phase(Phase.RESTARTING, "" if phase is Phase.STOPPED else f"({eventtext.sentence(event)})")
            case events.PhaseEntered(phase) if phase is not None:
                self._phase(phase, self._size if phase is Phase.TRAINING else "")
            case events.StopRequested():
                self._phase(Phase.STOPPING)
            case _ if eventtext.is_notable(event):
                self.note(eventtext.notable_text(event))

    def _phase(self, phase: Phase, more: str = "") -> None:
        self.note(f"{self._paint(phase, PHASE_COLOURS[phase])} {more}".rstrip())

    def note(self, text: str) -> None:
        """Prints `digits-7f3k2: …` on standard error."""
        if not self._quiet:
            emit([f"{self._run_id}: {text}"], sys.stderr)

    def stale(self, why: str) -> None:
        """Prints a line when the state becomes stale, and when it is current again."""
        self.note(why or "the cluster answers again")

    def ask(self, question: str) -> None:
        """Prints the question as a line, which is not removed."""
        if question:
            emit([question], sys.stderr)

    def close(self) -> None:
        """Does nothing, because plain lines leave no terminal state to restore."""


class Follower:
    """Follows one run: reads its logs, events and status, and passes them to a view."""

    def __init__(
        self,
        run_id: str,
        engine: Engine,
        view: PlainView | LiveView,
        interrupts: Interrupts,
        *,
        show_logs: bool,
        since_seq: int = 0,
        since: float | None = None,
    ) -> None:
        """Shows events with numbers above `since_seq`, and logs written after `since` (Unix seconds)."""
        self._run_id = run_id
        self._engine = engine
        self._store = engine.store
        self._view = view
        self._interrupts = interrupts
        self._show_logs = show_logs
        self._seq = since_seq
        self._since_ns = None if since is None else int(since * 1e9)
        self._pace = Pace()
        self._staleness = engine.staleness()
        self._stale = ""
        self._absences: set[str] = set()
        """Reports about the missing supervisor that were already shown; cleared once a supervisor is running."""
        self._pending: list[LogBlock] = []
        self._looked_at = 0.0
        self._over_at = float("inf")
        """Monotonic seconds at which the end of the run was first observed."""
        self._held: Event | None = None
        self.status: Status = self._engine.status(run_id)

    def run(self) -> Status:
        """Follows the run until it ends or the user detaches; returns the last status. Raises OutputLost."""
        if not self._show_logs:
            while not self._is_over():
                pass
            return self.status
        with contextlib.ExitStack() as stack:
            try:
                folder, has_all = stack.enter_context(self._engine.logs(self._run_id, follow=True))
            except EngineError as error:  # without a response of the cluster, only the state is followed
                self._view.note(f"its logs cannot be read: {error.message}; windlass logs -f {self._run_id}")
                folder, has_all = self._store.run_dir(self._run_id), None
            self._write_logs(RunLogs(folder), has_all or (lambda: True))
        return self.status

    def _write_logs(self, logs: RunLogs, has_all: Callable[[], bool]) -> None:
        """Writes logs until following ends, and then until `has_all` is true or the time limit has passed."""

        def is_over() -> bool:
            if not self._is_over():
                return False
            is_late = time.monotonic() - self._over_at > LOGS_SECONDS
            return self._interrupts.choice is Choice.LEAVE or is_late or has_all()

        pending_bytes = 0
        # `poll_seconds` is 0 because `_is_over` sleeps after it has written the logs.
        for block in logs.read_batches(is_over=is_over, since_ns=self._since_ns, poll_seconds=0):
            self._pending.append(block)
            pending_bytes = pending_bytes + len(block.data) if len(self._pending) > 1 else len(block.data)
            if pending_bytes >= BATCH_BYTES:
                self._flush()
                if time.monotonic() - self._looked_at >= TICK_SECONDS:
                    self._look(0.0)
                    if self._interrupts.choice is Choice.LEAVE:
                        return
        self._flush()

    def _is_over(self) -> bool:
        self._flush()
        # The first call does not wait, so that a run that has ended already is shown at once.
        is_over = self._look(POLL_SECONDS if self._looked_at else 0.0)
        self._over_at = min(self._over_at, self._looked_at) if is_over else float("inf")
        return is_over

    def _flush(self) -> None:
        if self._pending:
            self._view.logs(self._pending)
            self._pending.clear()

    def _look(self, wait_seconds: float) -> bool:
        """Reads the user's keys, and reads and shows the run's state; returns whether following is over."""
        if self._interrupts.listen(wait_seconds):
            self._obey(self._interrupts.choice)
        self.status = self._engine.status(self._run_id)
        if self.status.last_seq > self._seq:
            for event in self._store.events(self._run_id, self._seq):
                self._seq = event.seq
                self._show(event)
        if (stale := self._staleness(self.status)) != self._stale:
            self._stale = stale
            self._view.stale(stale)
        self._note_absence()
        self._view.state(self.status, self._pace.note(self.status.progress))
        self._looked_at = time.monotonic()
        return self.status.phase.is_terminal or self._interrupts.choice is Choice.LEAVE

    def _note_absence(self) -> None:
        """Prints a line when the cluster reports that the run's supervisor is not running, and for each new reason."""
        condition = self.status.supervision.condition
        absence = condition.message if condition is not None and condition.type == SUPERVISOR_ABSENT else ""
        if not absence:
            self._absences.clear()
        elif absence not in self._absences:
            self._absences.add(absence)
            self._view.note(f"{visible(absence)}; windlass why {self._run_id}")

    def _show(self, event: Event) -> None:
        """Shows an event. A root cause is delayed until the next event, because the final summary shows it."""
        held, self._held = self._held, None
        if event.kind == events.RootCause.kind:
            self._held = event
            return
        if held is not None and event.kind != events.RunEnded.kind:
            self._view.event(held)
        self._view.event(event)

    def _obey(self, choice: Choice) -> None:
        self._view.ask(QUESTION if choice is Choice.ASK else "")
        if choice in (Choice.STOP, Choice.KILL):
            can_kill = self._engine.can_kill(self._run_id)
            is_killing = can_kill and choice is Choice.KILL
            self._engine.stop(self._run_id, now=is_killing)
            more = "; Ctrl-C again kills without a grace period" if can_kill else ""
            self._view.note("killing" if is_killing else f"stopping{more}")


def follow(
    run_id: str,
    engine: Engine,
    *,
    form: str,
    quiet: bool,
    verbose: int = 0,
    since_seq: int = 0,
    since: float | None = None,
) -> int:
    """Follows a run until it ends, from event `since_seq` and time `since` on; returns the exit code of the command.

    | how it ends | code |
    |---|---|
    | the run succeeded, failed or was lost, was stopped | 0, 100, 103 |
    | the user detached | 0 |
    | Ctrl-C (SIGINT) without a terminal for the question: the run continues | 130 |
    | SIGTERM, or standard output cannot be written any more: the run continues | 101 |
    """
    if form != "table":  # with -o json or yaml, only the last state is printed
        code = watch(run_id, engine, form=form)
        run = recorded_run(engine.status(run_id), engine.store, time.time())
        print_data(run, form, "")
        return EXIT_CODES[run.phase] if run.phase.is_terminal else code
    live = can_draw(sys.stdout, sys.stderr)
    stream = sys.stdout if live else sys.stderr
    make_run = run_viewer(run_id, engine.store)
    try:
        # Signal handlers are installed first, so that Ctrl-C asks even while the drawing module is loaded.
        with (
            Interrupts(can_ask=sys.stdin.isatty() and sys.stderr.isatty()) as interrupts,
            contextlib.closing(
                _view(run_id, engine, make_run, live=live, hint="Ctrl-C: detach or stop", verbose=verbose)
            ) as view,
        ):
            status = Follower(
                run_id, engine, view, interrupts, show_logs=not quiet, since_seq=since_seq, since=since
            ).run()
    except (BrokenPipeError, OutputLost) as lost:  # output is lost, but the run continues
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        why = getattr(lost, "why", "")
        emit([*([f"{run_id}: {why}"] if why else []), *in_background(run_id)], sys.stderr)
        return 101
    if not status.phase.is_terminal:
        emit(in_background(run_id), stream)
        return interrupts.exit_code
    from windlass.cli.statustext import summary_lines

    paint = painter(stream)
    run, (verdict, why) = recorded_run(status, engine.store, time.time()), explain(status, engine, paint)
    emit(summary_lines(run, time.time(), paint, why, verdict=verdict, verbose=verbose), stream)
    many, num_bytes = engine.kept_warm()
    if many and not quiet:
        kept = count(many, "warm process", "warm processes")
        emit([f"{kept} kept, {size(num_bytes)}; windlass warm stop"], sys.stderr)
    return EXIT_CODES[status.phase]


def explain(status: Status, engine: Engine, paint: Paint) -> tuple[str, list[str]]:
    """Returns the verdict's code and lines for a run that failed, was lost, or was stopped without a request.

    Both are empty for other ends, and if the traceback is sufficient.
    """
    is_explained = status.phase is Phase.STOPPED and status.supervision.stop_requested
    if is_explained or status.phase not in (Phase.FAILED, Phase.LOST, Phase.STOPPED):
        return "", []
    from windlass.actions.why import why
    from windlass.cli.whytext import verdict_lines
    from windlass.diagnose.rules.restarts import SAME_ERROR

    found = why(status.id, engine)
    verdict = found.verdict
    is_told = verdict.code in ("exception", "unknown") and SAME_ERROR not in verdict.evidence
    return ("", []) if is_told else (verdict.code, verdict_lines(found, paint))


def watch(run_id: str, engine: Engine, *, form: str) -> int:
    """Shows the state of a run, without its logs, until it ends or Ctrl-C; returns an exit code."""
    quiet = form != "table"
    live = not quiet and can_draw(sys.stdout, sys.stderr)
    view = _view(run_id, engine, run_viewer(run_id, engine.store), live=live, hint="Ctrl-C: leave", quiet=quiet)
    seen = engine.status(run_id).last_seq
    with contextlib.closing(view), Interrupts(can_ask=False) as interrupts:
        status = Follower(run_id, engine, view, interrupts, show_logs=False, since_seq=seen).run()
    return 0 if status.phase.is_terminal else interrupts.exit_code


def _view(
    run_id: str,
    engine: Engine,
    make_run: Callable[[Status], Run],
    *,
    live: bool,
    hint: str,
    quiet: bool = False,
    verbose: int = 0,
) -> PlainView | LiveView:
    if live:
        from windlass.cli.live import LiveView

        return LiveView(sys.stdout, make_run, hint)
    plan = engine.store.plan(run_id)
    attempts, procs = engine.status(run_id).attempts, plan.procs_per_node
    world_size = attempts[-1].world_size if attempts else plan.world_size
    return PlainView(run_id, make_run, world_size, procs, quiet=quiet, verbose=verbose)


def in_background(run_id: str) -> list[str]:
    """Returns the message that the run continues in the background, and how to follow and stop it."""
    return [
        f"{run_id} runs in the background; follow it: windlass logs -f {run_id}",
        f"  stop it: windlass stop {run_id}",
    ]
