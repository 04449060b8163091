"""The Python API: `run`, `submit`, `make_plan`, `get`, `list_runs`, and a `Run` to follow, await and stop."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from windlass.actions import runs as actions
from windlass.actions.arguments import path_text, rank_numbers, require, seconds, whole_number, words
from windlass.actions.cost import cost as find_cost
from windlass.actions.feed import LOOK_SECONDS, Feed
from windlass.actions.jobs import ReadyJob, read_job
from windlass.actions.why import why
from windlass.engines import engine_class
from windlass.errors import (
    NoSuchRun,
    RunEnded,
    RunFailed,
    RunNotFinished,
    RunStopped,
    UsageError,
    WindlassError,
)
from windlass.runs.context import Context, here
from windlass.runs.events import Event
from windlass.runs.logs import LogLine, RunLogs
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import NOTE_CHARS, Store

if TYPE_CHECKING:
    from windlass.diagnose.verdict import Diagnosis
    from windlass.engines.base import Engine
    from windlass.plan.plan import Plan
    from windlass.runs.ledger import Cost, Ledger
    from windlass.runs.warnings import RunWarning
    from windlass.spec.job import Job
    from windlass.views.artifacts import CopiedFiles
    from windlass.views.checkpoints import CheckpointView
    from windlass.views.comparison import Comparison

AnyJob: TypeAlias = "Job | str | Path | Mapping[str, Any]"


class Run:
    """Handle of one run, identified by its id. The run is stored in the record, so deleting the handle loses nothing.

    Can be used in any thread, after a fork, and pickled: each call opens the record again. Handles of the same run are
    equal.
    """

    def __init__(self, run_id: str, engine: Engine) -> None:
        self.id = run_id
        self._engine = engine
        self._home = engine.store.home

    def __repr__(self) -> str:
        try:
            with self._opened() as engine:
                return f"<windlass.Run {engine.store.status(self.id).one_line}>"
        except NoSuchRun:
            return f"<windlass.Run {self.id}, removed>"
        except WindlassError:
            return f"<windlass.Run {self.id}, whose record cannot be read>"

    def _repr_html_(self) -> str | None:
        from windlass.views.html import run_table

        with contextlib.suppress(WindlassError), self._opened() as engine:
            return run_table(engine.status(self.id), time.time())
        return None  # the notebook then shows the text form of the run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and (self.id, self._home) == (other.id, other._home)

    def __hash__(self) -> int:
        return hash((self.id, self._home))

    def __reduce__(self) -> tuple[Callable[[str, Path], Run], tuple[str, Path]]:
        return _recorded_run, (self.id, self._home)

    @property
    def status(self) -> Status:
        """Returns the current status. Raises NoSuchRun if the run was removed."""
        with self._opened() as engine:
            return engine.status(self.id)

    @property
    def warnings(self) -> tuple[RunWarning, ...]:
        """Conditions that did not end the run but may spoil its result, such as checkpoints that could not be saved."""
        return self.status.warnings

    @property
    def note(self) -> str:
        """The user's note on the run, as set by `windlass note RUN`; empty without a note. Can be assigned."""
        with self._opened() as engine:
            return engine.note(self.id)

    @note.setter
    def note(self, text: str) -> None:
        require(text, str, "a text as note", "an empty one removes it")
        if len(text) > NOTE_CHARS:
            raise UsageError(f"a note has {NOTE_CHARS:,} characters at most; this one has {len(text):,}")
        with self._opened() as engine:
            engine.write_note(self.id, text.strip())

    @property
    def output_dir(self) -> Path:
        """Folder that the script sees as `WINDLASS_OUTPUT_DIR`."""
        with self._opened() as engine:
            return Path(engine.store.status(self.id).output_dir)

    def events(self, *, follow: bool = True, after: int = 0) -> Feed[Event]:
        """Returns the events of the run after event number `after`; with `follow`, until the run has ended.

        Supports `for`, and `async for`, which does not block the event loop.
        """
        after = whole_number(after, "the number of an event", "leave after out for all events")

        def read(unwanted: threading.Event) -> Iterator[Event]:
            seq = after
            with self._opened() as engine:
                while not unwanted.is_set():
                    # The phase is read before the events: events recorded before a final phase are then not missed.
                    over = not follow or engine.status(self.id).phase.is_terminal
                    for event in engine.events(self.id, follow=False, after=seq):
                        seq = event.seq
                        yield event
                    if over or unwanted.wait(LOOK_SECONDS):
                        return

        return Feed(read)

    def logs(
        self, *, ranks: Collection[int] | None = None, follow: bool = False, tail: int | None = None
    ) -> Feed[LogLine]:
        """Returns the output of the ranks, merged by time; with `follow`, until the run has ended.

        Supports `for`, and `async for`, which does not block the event loop. Iteration raises EngineError if the pods
        of a run on a cluster cannot be read and no logs were copied to this machine yet.
        """
        if ranks is not None:
            ranks = rank_numbers(ranks)
        if tail is not None:
            tail = whole_number(tail, "a number of lines", "leave tail out for all lines")

        def read(unwanted: threading.Event) -> Iterator[LogLine]:
            with self._opened() as engine:
                # Raises NoSuchRun for a removed run, whose missing folder would otherwise yield no lines.
                engine.store.status(self.id)
                with engine.logs(self.id, follow=follow) as (folder, has_all):

                    def is_over() -> bool:
                        return unwanted.is_set() or has_all is None or has_all()

                    yield from RunLogs(folder).read(ranks=ranks, tail=tail, is_over=is_over if follow else None)

        return Feed(read)

    def exec(
        self, command: Sequence[str], *, rank: int | None = None, node: int | None = None, stdin: bytes = b""
    ) -> CompletedProcess[bytes]:
        """Runs a command in the environment and working folder of a rank; returns its exit code and output.

        With `node` instead of `rank`, the command gets the environment shared by all ranks of that node; without
        either, the environment of rank 0. Ctrl-C is passed to the command, and raises KeyboardInterrupt if the command
        ends by it. Raises UsageError if the run has ended or its engine does not support exec, EngineError.
        """
        from windlass.actions.exec_copy import execute

        if isinstance(command, str):
            raise UsageError("the command is one text, not a list of words", f'write ["bash", "-c", {command!r}]')
        command = words(command, "a list of words", 'write for example ["nvidia-smi"]')
        rank, node = _number(rank, "rank"), _number(node, "node")
        require(stdin, bytes | bytearray | memoryview, "bytes as stdin", "write for example text.encode()")
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err, self._opened() as engine:
            given.write(stdin)
            given.seek(0)
            code = execute(self.id, command, engine.store, rank=rank, node=node, stdin=given, stdout=out, stderr=err)
            out.seek(0)
            err.seek(0)
            return CompletedProcess(list(command), code, out.read(), err.read())

    def fetch(self, path: str | Path, local: str | Path, *, node: int | None = None) -> CopiedFiles:
        """Copies a file or folder of the run to this machine.

        `path` is a result (`output/…`, `checkpoints/…`), the code at the start of the run (`code/…`), or an absolute
        path in the pod of `node`. If `local` is an existing folder or ends with a slash, the copy keeps its name inside
        that folder. Raises UsageError, EngineError.
        """
        from windlass.actions.exec_copy import copied

        inside, outside, node = path_text(path, "a path of the run"), _local(local), _number(node, "node")
        is_folder, place = outside.endswith("/"), here().cwd / outside
        with self._opened() as engine:
            return copied((self.id, inside), None, place, engine.store, node=node, into_folder=is_folder)

    def put(self, local: str | Path, path: str | Path, *, node: int | None = None) -> CopiedFiles:
        """Copies a local file or folder into the run. Accepts the same paths as `fetch`, except `code/…`."""
        from windlass.actions.exec_copy import copied

        inside, place = path_text(path, "a path of the run"), here().cwd / _local(local)
        node = _number(node, "node")
        with self._opened() as engine:
            return copied(None, (self.id, inside), place, engine.store, node=node)

    def checkpoints(self) -> tuple[CheckpointView, ...]:
        """Returns the checkpoints that the run saved with `windlass.train.checkpoint`, newest first.

        Checkpoints in the pods of a cluster are listed by a pod. Raises WindlassError.
        """
        from windlass.actions.checkpoints import find_checkpoints
        from windlass.views.checkpoints import CheckpointView
        from windlass.views.serialise import view_of

        with self._opened() as engine:
            return tuple(view_of(CheckpointView, one) for one in find_checkpoints(engine, self.id).found)

    def verify_checkpoints(self, name: str | None = None) -> dict[str, tuple[str, ...]]:
        """Verifies every byte of one checkpoint, or of all finished ones; returns the problems by checkpoint name,
        empty for a verified checkpoint.

        Raises UsageError if the checkpoints are in a cluster, or if `name` does not exist.
        """
        from windlass.actions.checkpoints import find_checkpoints, verify

        with self._opened() as engine:
            found = verify(find_checkpoints(engine, self.id), name)
        return {one: tuple(map(str, problems)) for one, problems in found.items()}

    def wait(self, timeout: float | None = None, *, check: bool = True) -> Status:
        """Blocks until the run has ended, at most `timeout` seconds; returns its last status.

        With `check`, raises RunFailed if the run failed or was lost, RunStopped if it was stopped, and RunNotFinished
        after the timeout.
        """
        if timeout is not None:
            timeout = seconds(timeout)
        with self._opened() as engine:
            status = engine.wait(self.id, timeout)
        if check:
            self._raise_unless_succeeded(status)
        return status

    def result(self, *, rank: int = 0, timeout: float | None = None) -> Any:
        """Blocks until the run has ended, and returns the value that the function of `windlass.submit` returned in a
        rank.

        Raises the errors of `wait`, with the function's exception in the message; UsageError for a run without results,
        or a result that cannot be represented in JSON.
        """
        from windlass.actions.functions import returned

        rank = whole_number(rank, "the number of a rank", "they are counted from 0")
        self.wait(timeout)
        with self._opened() as engine:
            return returned(engine, self.id, rank)

    def results(self, *, timeout: float | None = None) -> list[Any]:
        """Returns the `result` of every rank, in rank order."""
        from windlass.actions.functions import returned

        status = self.wait(timeout)
        with self._opened() as engine:
            return [returned(engine, self.id, rank) for rank in range(status.attempts[-1].world_size)]

    def __await__(self) -> Generator[Any, None, Status]:
        """Supports `await run`: like `wait()`, without blocking the event loop. Cancelling the task does not affect the
        run.
        """
        return self._ended().__await__()

    async def _ended(self) -> Status:
        def read(unwanted: threading.Event) -> Iterator[Status]:
            with self._opened() as engine:
                while not (status := engine.status(self.id)).phase.is_terminal:
                    if unwanted.wait(LOOK_SECONDS):
                        return
            yield status

        feed = Feed(read)
        try:
            async for status in feed:
                self._raise_unless_succeeded(status)
        finally:
            feed.close()  # a cancelled task's traceback keeps this frame alive, so the feed is closed here
        return status

    def _raise_unless_succeeded(self, status: Status) -> None:
        try:
            raise_unless_succeeded(status)
        except RunEnded as error:
            error.run = self
            raise

    def why(self) -> Diagnosis:
        """Returns why the run ended as it did: a verdict with evidence and a fix, and other possible explanations."""
        with self._opened() as engine:
            return why(self.id, engine)

    def ledger(self) -> Ledger:
        """Returns how the run has spent its time so far: seconds per phase, goodput, and steps trained again."""
        from windlass.runs.ledger import fold_ledger

        with self._opened() as engine:
            plan = engine.store.plan(self.id)  # raises NoSuchRun for a removed run
            return fold_ledger(engine.store.events(self.id), time.time(), plan.num_spares)

    def metrics(
        self, *names: str, source: str | None = None, rank: int | None = None, every: bool = False
    ) -> dict[str, list[str | float | int | None]]:
        """Returns the metrics recorded so far as columns of equal length: metric, source, rank, attempt, step, time
        (Unix seconds) and value. `pandas.DataFrame(run.metrics())` and `polars.DataFrame(run.metrics())` accept them.

        `names` are metrics or patterns (`"eval/*"`). If several sources have a metric, the first of report,
        tensorboard, trainer, lightning, csv and log is returned, of the lowest rank; `source` and `rank` select others,
        and `every` returns all. The columns are empty for a run without metrics. Raises NoSuchRun, UsageError for a
        metric, source or rank that the run does not have, EngineError.
        """
        from windlass.actions.metrics import select_series
        from windlass.views.metrics import long_columns

        wanted = words(names, "names of metrics", 'write for example run.metrics("loss")')
        require(source, str | None, "the name of a source", 'write for example source="log"')
        rank = _number(rank, "rank")
        with self._opened() as engine:
            return long_columns(select_series(engine, self.id, wanted, source=source, rank=rank, every=every)[0])

    def cost(self) -> Cost | None:
        """Returns the cost of the run so far, by phase; None if its target has no price."""
        with self._opened() as engine:
            return find_cost(self.id, engine.store, here())[0].cost

    def stop(self, *, now: bool = False) -> Self:
        """Requests a stop of the run: SIGTERM, grace period, SIGKILL. `now` skips the grace period if the target
        supports it.
        """
        with self._opened() as engine:
            engine.stop(self.id, now=now and engine.can_kill(self.id))
        return self

    def resume(
        self,
        *,
        nodes: int | None = None,
        checkpoint: str | int | Path | None = None,
        changes: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
        new_code: bool = False,
    ) -> Self:
        """Continues the ended run from a checkpoint.

        `nodes` sets the number of nodes, and `checkpoint` the name, step or path of the checkpoint. `changes` replaces
        fields of the job, and `arguments` are appended to the script's arguments. The current code of the job's folder
        is used if the run is on this machine, if anything is changed, or with `new_code`; otherwise the code that was
        sent at the start. Raises UsageError if the run is active or has succeeded, for a missing or unverified
        checkpoint, and for fields that locate its results; JobFileError, PlanError, EngineError.
        """
        wanted = None if checkpoint is None else str(checkpoint)
        more = words(arguments, "a list of arguments", 'write for example ["--epochs", "10"]')
        require(changes, Mapping | None, "a mapping of job fields", 'write for example {"restarts": 3}')
        fields = dict(changes or {})
        if nodes is not None and fields.setdefault("nodes", nodes) != nodes:
            raise UsageError(f"two numbers of nodes: {nodes}, and {fields['nodes']!r} in changes", "give one of them")
        with self._opened() as engine:
            actions.resume(self.id, engine, here(), changes=fields, more=more, new_code=new_code, checkpoint=wanted)
        return self

    def rerun(
        self,
        on: str | None = None,
        *,
        changes: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
        after: Sequence[Run | str] = (),
        context: Context | None = None,
    ) -> Run:
        """Starts a new run of the job and returns immediately. Uses the same target unless `on` names another.

        `changes` replaces fields of the job, `arguments` are appended to the script's arguments, and `after` is as for
        `run`. The current code of the job's folder is used. Raises the errors of `run`.
        """
        more = words(arguments, "a list of arguments", 'write for example ["--epochs", "10"]')
        require(changes, Mapping | None, "a mapping of job fields", 'write for example {"restarts": 3}')
        context = _context(context)
        with self._opened() as engine:
            made = actions.rerun_plan(engine, self.id, on, changes or {}, more, context)
            return _started(made, engine.store, context, after)

    def delete(self, *, force: bool = False) -> None:
        """Removes the ended run with its logs and results.

        Raises UsageError while the run is active. Without `force`, also raises UsageError if other runs may still start
        after it, or if its folder holds the only checkpoint of a run that did not succeed.
        """
        with self._opened() as engine:
            if not force:
                actions.require_removable(engine, self.id)
            engine.delete(self.id)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Engine]:
        """Opens the engine with a new connection to the record; SQLite connections must not be used after a fork."""
        with Store(self._home, self._engine.store.machine) as store:
            yield self._engine.reconnected(store)


def _number(value: object, what: str) -> int | None:
    return None if value is None else whole_number(value, f"the number of a {what}", "they are counted from 0")


def _local(path: object) -> str:
    """Converts a local path to text. Raises UsageError for an empty path, which would mean the whole working folder."""
    text = path_text(path, "a path of this machine")
    if not text:
        raise UsageError("the path of this machine is empty", "write . for the working folder")
    return text


def _context(given: Context | None) -> Context:
    require(given, Context | None, "a windlass.Context", "leave context out")
    return here() if given is None else given


def _recorded_run(run_id: str, home: Path) -> Run:
    """Unpickles a `Run` from its id. Raises NoSuchRun, StoreError."""
    with Store(home) as store:
        return Run(run_id, actions.engine_for(run_id, store))


def run(
    job: AnyJob, on: str | Engine = "local", *, after: Sequence[Run | str] = (), context: Context | None = None
) -> Run:
    """Starts a job and returns immediately: `windlass.run("job.yaml").wait()`.

    `job` is a `Job`, the path of a job file or script, or a mapping of job fields. Paths in the job are relative to the
    working folder, or to the folder of the job file. `on` names a target, or is an engine with its own planner, such as
    the fake engine for tests. On this machine, the run starts once the runs in `after` have succeeded. Raises
    JobFileError, PlanError, UsageError, EngineError, StoreError.
    """
    from windlass.engines.base import Engine

    context = _context(context)
    if isinstance(on, Engine):
        if after:
            raise UsageError("after is for runs of this machine alone", f"leave it out on engine {on.kind}")
        ready = _ready(job, context)
        status = on.submit(on.plan(ready.job, f"{ready.job.name}-{context.token()}"))
        return Run(status.id, on)
    with context.store() as store:
        return _started(make_plan(job, on, context=context), store, context, after)


def _started(made: Plan, store: Store, context: Context, after: Sequence[Run | str]) -> Run:
    """Submits a plan; returns the started run."""
    if isinstance(after, str | Run):
        after = (after,)
    made.require_runnable()
    named = [one.id if isinstance(one, Run) else path_text(one, "the id of a run") for one in after]
    made = actions.after_runs(made, named, store, context)
    engine = engine_class(made.engine).connect(store)
    try:
        return Run(actions.submit(engine, made, context).id, engine)
    except KeyboardInterrupt as interrupt:  # `submit` has undone an incomplete submission
        with contextlib.suppress(NoSuchRun):
            interrupt.add_note(f"{store.status(made.run_id).id} was started: windlass.get({made.run_id!r})")
        raise


def submit(
    function: Callable[..., Any],
    /,
    *args: Any,
    job: Mapping[str, Any] | None = None,
    on: str | Engine = "local",
    after: Sequence[Run | str] = (),
    context: Context | None = None,
    **kwargs: Any,
) -> Run:
    """Calls a function of an importable module in every rank of a new run, and returns immediately. `run.result()`
    returns the value of rank 0.

    `job` contains fields of the job, such as `{"nodes": 2}`; `on`, `after` and `context` are as for `run`. By default,
    the job has the name of the function, and its code is the folder from which the module is imported. Arguments and
    results are recorded as JSON, so they must contain no secrets and no tensors. Raises UsageError for a lambda, a
    nested function or one of `__main__`, and for arguments that cannot be represented in JSON; also the errors of
    `run`.
    """
    from windlass.actions.functions import function_job

    require(job, Mapping | None, "a mapping of job fields", 'write for example job={"nodes": 2}')
    return run(function_job(function, args, kwargs, job or {}), on, after=after, context=context)


def make_plan(job: AnyJob, on: str = "local", *, context: Context | None = None) -> Plan:
    """Returns the plan of `run` without changing anything. Raises JobFileError, UsageError."""
    context = _context(context)
    require(on, str, "the name of a target", "windlass targets lists them")
    return actions.make_plan(_ready(job, context), on, context)


def get(run_id: str | None = None, *, context: Context | None = None) -> Run:
    """Returns a run by id, unique prefix of an id, or job name (its newest run). Default: the newest run.

    Raises NoSuchRun.
    """
    require(run_id, str | None, "the id of a run", "windlass ps lists them")
    with _context(context).store() as store:
        engine, found = actions.find(run_id, store)
        return Run(found, engine)


def compare(*runs: Run | str, context: Context | None = None) -> Comparison:
    """Compares up to 200 runs: a summary of each metric, and in what their arguments, settings, code, data and
    environment differ.

    Each run is a `Run`, or an id, unique prefix or job name as for `get`. Raises NoSuchRun, UsageError, EngineError.
    """
    from windlass.actions.metrics import compare as compare_runs

    context = _context(context)
    named = [one.id if isinstance(one, Run) else path_text(one, "the id of a run") for one in runs]
    with context.store() as store:
        return compare_runs([actions.find(one, store) for one in named], context.now())


def list_runs(
    last: int | None = None,
    *,
    phase: str | Collection[str] = (),
    label: str | Mapping[str, str] | Collection[str] = (),
    name: str = "",
    target: str = "",
    since: float | str | timedelta | datetime = 0.0,
    context: Context | None = None,
) -> list[Status]:
    """Returns all runs, newest first; with `last`, the active runs and the `last` newest.

    The other parameters are filters, as in `windlass ps`, and `last` then limits the filtered list. `phase` is one
    phase or several. `label` is `"team=vision"`, `"team"`, several of these, or a mapping. `name` is a job name or a
    pattern (`"digits*"`). `since` is a time in Unix seconds or a datetime, or an age (`"12h"` or a timedelta). Raises
    UsageError.
    """
    from windlass.actions.listing import Filter, labels_in

    if last is not None:
        last = whole_number(last, "a number of runs", "leave last out for all runs")
    context = _context(context)
    labels = (
        [f"{key}={value}" for key, value in label.items()] if isinstance(label, Mapping) else _texts(label, "label")
    )
    wanted = Filter(
        path_text(name, "the name of a job"),
        frozenset(map(_phase, _texts(phase, "phase"))),
        labels_in(tuple(labels)),
        path_text(target, "a target"),
        _moment(since, context.now()),
    )
    with context.store() as store:
        found = actions.statuses(store, last=None if wanted else last)
    return [one for one in found if wanted.matches(one)][: last if wanted else None]


def _texts(value: str | Collection[str], what: str) -> list[str]:
    return words([value] if isinstance(value, str) else value, f"a {what}, or a list", f"write for example {what}=[…]")


def _phase(text: str) -> Phase:
    try:
        return Phase(text)
    except ValueError:
        raise UsageError(f"no phase is called '{text}'", f"known are {', '.join(Phase)}") from None


def _moment(since: float | str | timedelta | datetime, now: float) -> float:
    """Converts `since` to Unix seconds. Raises UsageError."""
    from windlass.spec.units import parse_duration

    if isinstance(since, datetime):
        return since.timestamp()
    if isinstance(since, timedelta):
        return now - since.total_seconds()
    if not isinstance(since, str):
        return seconds(since)
    try:
        return now - parse_duration(since)
    except ValueError as error:
        raise UsageError(f"since: {error}", "write it as '12h' or '2d', or give a datetime") from error


def raise_unless_succeeded(status: Status) -> None:
    """Raises the exception for a status: RunFailed, RunStopped or RunNotFinished; none for success."""
    if status.phase is Phase.SUCCEEDED:
        return
    if not status.phase.is_terminal:
        raise RunNotFinished(f"{status.id} is still {status.phase}", f"windlass status {status.id}")
    if status.phase is Phase.STOPPED:
        why = f": {status.cause.summary}" if status.cause is not None and not status.attempts else ""
        raise RunStopped(f"{status.id} was stopped{why}")
    cause = status.cause
    rank = f"rank {cause.rank}: " if cause is not None and cause.rank is not None else ""
    summary = cause.summary if cause is not None else ""
    raise RunFailed(f"{status.id} {status.phase}: {rank}{summary}", f"windlass logs {status.id}")


def _ready(job: Any, context: Context) -> ReadyJob:
    from windlass.spec.job import Job
    from windlass.spec.parse import job_from_mapping

    if isinstance(job, Job):
        return ReadyJob(job, context.cwd, "job")
    if isinstance(job, Mapping):
        return ReadyJob(job_from_mapping(job), context.cwd, "job")
    hint = "give a windlass.Job, the path of a job file or script, or a mapping of job fields"
    require(job, str | Path, "a job", hint)
    return read_job(str(job), (), {}, context)
