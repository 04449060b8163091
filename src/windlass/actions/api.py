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

AnyJob: TypeAlias = "Job | str | Path | Mapping[str, Any]"


class Run:
    """One run, by its id. It lives in the record: losing this object loses nothing.

    It may be used in any thread and in a forked process, and pickled: each call opens the record for itself. Objects
    of the same run are equal.
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
        return None  # a notebook then shows the text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and (self.id, self._home) == (other.id, other._home)

    def __hash__(self) -> int:
        return hash((self.id, self._home))

    def __reduce__(self) -> tuple[Callable[[str, Path], Run], tuple[str, Path]]:
        return _recorded_run, (self.id, self._home)

    @property
    def status(self) -> Status:
        """Where the run is now. Raises NoSuchRun once it was removed."""
        with self._opened() as engine:
            return engine.status(self.id)

    @property
    def warnings(self) -> tuple[RunWarning, ...]:
        """What did not end the run and may spoil its result, such as checkpoints that could not be saved."""
        return self.status.warnings

    @property
    def note(self) -> str:
        """What its user wants to remember of it, as `windlass note RUN`; empty for nothing. May be set."""
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
        """The folder that the script knows as `WINDLASS_OUTPUT_DIR`."""
        with self._opened() as engine:
            return Path(engine.store.status(self.id).output_dir)

    def events(self, *, follow: bool = True, after: int = 0) -> Feed[Event]:
        """What happened, from event number `after` + 1 on; with `follow` until the run has ended.

        For `for`, and for `async for`, which lets other tasks go on.
        """
        after = whole_number(after, "the number of an event", "leave after out for all events")

        def read(unwanted: threading.Event) -> Iterator[Event]:
            seq = after
            with self._opened() as engine:
                while not unwanted.is_set():
                    over = not follow or engine.status(self.id).phase.is_terminal  # before the events are read
                    for event in engine.events(self.id, follow=False, after=seq):
                        seq = event.seq
                        yield event
                    if over or unwanted.wait(LOOK_SECONDS):
                        return

        return Feed(read)

    def logs(
        self, *, ranks: Collection[int] | None = None, follow: bool = False, tail: int | None = None
    ) -> Feed[LogLine]:
        """What the ranks wrote, merged in the order of time; with `follow` until the run has ended.

        For `for`, and for `async for`, which lets other tasks go on. Iterating raises EngineError for a run in a
        cluster whose pods cannot be read, where nothing of them is here yet.
        """
        if ranks is not None:
            ranks = rank_numbers(ranks)
        if tail is not None:
            tail = whole_number(tail, "a number of lines", "leave tail out for all lines")

        def read(unwanted: threading.Event) -> Iterator[LogLine]:
            with self._opened() as engine:
                engine.store.status(self.id)  # raises NoSuchRun: without a folder there are no lines, and no error
                with engine.logs(self.id, follow=follow) as (folder, has_all):

                    def is_over() -> bool:
                        return unwanted.is_set() or has_all is None or has_all()

                    yield from RunLogs(folder).read(ranks=ranks, tail=tail, is_over=is_over if follow else None)

        return Feed(read)

    def exec(
        self, command: Sequence[str], *, rank: int | None = None, node: int | None = None, stdin: bytes = b""
    ) -> CompletedProcess[bytes]:
        """Run a command where a rank of the live run is, in its environment and folder; give its code and output.

        With `node` instead of `rank`, in what all ranks of that node have alike; with neither, as rank 0. Ctrl-C is the
        command's, and raises KeyboardInterrupt where it ends the command. Raises UsageError where the run has ended or
        its engine lets no command in, EngineError.
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
        """Copy a file or folder of the run to this machine: of its results (`output/…`, `checkpoints/…`), of the code
        that it began with (`code/…`), or at an absolute path of a pod, that of `node`.

        Into a folder that is there, or a `local` that ends in a slash, it is copied under its own name. Raises
        UsageError, EngineError.
        """
        from windlass.actions.exec_copy import copied

        inside, outside, node = path_text(path, "a path of the run"), _local(local), _number(node, "node")
        is_folder, place = outside.endswith("/"), here().cwd / outside
        with self._opened() as engine:
            return copied((self.id, inside), None, place, engine.store, node=node, into_folder=is_folder)

    def put(self, local: str | Path, path: str | Path, *, node: int | None = None) -> CopiedFiles:
        """Copy a file or folder of this machine into the run; the same paths as for `fetch`, but `code/…`."""
        from windlass.actions.exec_copy import copied

        inside, place = path_text(path, "a path of the run"), here().cwd / _local(local)
        node = _number(node, "node")
        with self._opened() as engine:
            return copied(None, (self.id, inside), place, engine.store, node=node)

    def checkpoints(self) -> tuple[CheckpointView, ...]:
        """The checkpoints that the run has saved by `windlass.train.checkpoint`, newest first.

        Those in the pods of a cluster are listed there. Raises WindlassError.
        """
        from windlass.actions.checkpoints import look
        from windlass.views.checkpoints import CheckpointView
        from windlass.views.serialise import view_of

        with self._opened() as engine:
            return tuple(view_of(CheckpointView, one) for one in look(engine, self.id).found)

    def verify_checkpoints(self, name: str | None = None) -> dict[str, tuple[str, ...]]:
        """What is wrong with each finished checkpoint, or with one: by name, nothing where every byte is as saved.

        Raises UsageError where they are in a cluster or none has this name.
        """
        from windlass.actions.checkpoints import look, verify

        with self._opened() as engine:
            found = verify(look(engine, self.id), name)
        return {one: tuple(map(str, problems)) for one, problems in found.items()}

    def wait(self, timeout: float | None = None, *, check: bool = True) -> Status:
        """Block until the run has ended, at most `timeout` seconds; give its last status.

        With `check`, raises RunFailed if it failed or was lost, RunStopped if it was stopped, and RunNotFinished if
        the time was too short.
        """
        if timeout is not None:
            timeout = seconds(timeout)
        with self._opened() as engine:
            status = engine.wait(self.id, timeout)
        if check:
            self._raise_unless_succeeded(status)
        return status

    def result(self, *, rank: int = 0, timeout: float | None = None) -> Any:
        """Block until the run has ended, and give what the function of `windlass.submit` returned in a rank.

        Raises as `wait`, with the exception of the function in the message; UsageError for a run without results, or a
        result that JSON does not hold.
        """
        from windlass.actions.functions import returned

        rank = whole_number(rank, "the number of a rank", "they are counted from 0")
        self.wait(timeout)
        with self._opened() as engine:
            return returned(engine, self.id, rank)

    def results(self, *, timeout: float | None = None) -> list[Any]:
        """The `result` of every rank, in rank order."""
        from windlass.actions.functions import returned

        status = self.wait(timeout)
        with self._opened() as engine:
            return [returned(engine, self.id, rank) for rank in range(status.attempts[-1].world_size)]

    def __await__(self) -> Generator[Any, None, Status]:
        """`await run`: as `wait()`, while other tasks go on. A task that is cancelled leaves the run as it is."""
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
            feed.close()  # the traceback of a cancellation keeps the frame, and with it the feed, until it is collected
        return status

    def _raise_unless_succeeded(self, status: Status) -> None:
        try:
            raise_unless_succeeded(status)
        except RunEnded as error:
            error.run = self
            raise

    def why(self) -> Diagnosis:
        """Why the run ended as it did: a verdict with evidence and a fix, and what else speaks for something."""
        with self._opened() as engine:
            return why(self.id, engine)

    def ledger(self) -> Ledger:
        """Where the run's time went until now: seconds of each phase, goodput, steps that were trained again."""
        from windlass.runs.ledger import fold_ledger

        with self._opened() as engine:
            plan = engine.store.plan(self.id)  # raises NoSuchRun
            return fold_ledger(engine.store.events(self.id), time.time(), plan.num_spares)

    def cost(self) -> Cost | None:
        """What the run has cost until now, by phase; None where its target has no price."""
        with self._opened() as engine:
            return find_cost(self.id, engine.store, here())[0].cost

    def stop(self, *, now: bool = False) -> Self:
        """Ask the run to end: SIGTERM, its grace period, SIGKILL; `now` leaves out the grace, where the target can."""
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
        """Go on with the ended run, on so many `nodes` and from this `checkpoint` (its name, step or path) if they are
        given.

        `changes` are fields of its job, each in place of the old value, and `arguments` are added to those of its
        script. The code is what its folder has now where the run is on this machine, something is changed or `new_code`
        is set, else that which was sent.
        Raises UsageError if it goes on or has succeeded, where there is no such checkpoint or it is not verified, and
        for fields by which its results are found; JobFileError, PlanError, EngineError.
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
        """Start a new run of the job, on its target unless another is named, and return at once.

        `changes` are fields of the job, each in place of the old value, `arguments` are added to those of its script,
        and `after` is as for `run`. The code is what its folder has now. Raises as `run`.
        """
        more = words(arguments, "a list of arguments", 'write for example ["--epochs", "10"]')
        require(changes, Mapping | None, "a mapping of job fields", 'write for example {"restarts": 3}')
        context = _context(context)
        with self._opened() as engine:
            made = actions.rerun_plan(engine, self.id, on, changes or {}, more, context)
            return _started(made, engine.store, context, after)

    def delete(self, *, force: bool = False) -> None:
        """Remove the ended run with its logs and results.

        Raises UsageError while it goes on, and without `force` while others may still start after it or where its
        folder holds the only checkpoint of a run that did not succeed.
        """
        with self._opened() as engine:
            if not force:
                actions.require_removable(engine, self.id)
            engine.delete(self.id)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Engine]:
        """The engine with a record of its own: a forked process must not use a SQLite connection of its parent."""
        with Store(self._home, self._engine.store.machine) as store:
            yield self._engine.reconnected(store)


def _number(value: object, what: str) -> int | None:
    return None if value is None else whole_number(value, f"the number of a {what}", "they are counted from 0")


def _local(path: object) -> str:
    """The path of this machine as text, which is not empty: that would be the whole working folder."""
    text = path_text(path, "a path of this machine")
    if not text:
        raise UsageError("the path of this machine is empty", "write . for the working folder")
    return text


def _context(given: Context | None) -> Context:
    require(given, Context | None, "a windlass.Context", "leave context out")
    return here() if given is None else given


def _recorded_run(run_id: str, home: Path) -> Run:
    """A run as `pickle` makes it anew. Raises NoSuchRun, StoreError."""
    with Store(home) as store:
        return Run(run_id, actions.engine_for(run_id, store))


def run(
    job: AnyJob, on: str | Engine = "local", *, after: Sequence[Run | str] = (), context: Context | None = None
) -> Run:
    """Start a job and return at once: `windlass.run("job.yaml").wait()`.

    `job` is a `Job`, the path of a job file or script, or a mapping of job fields; its paths are relative to the
    working folder (to the file's own for a job file). `on` names a target, or is an engine with its own planner: the
    fake engine, in the tests of your own programs. On this machine the run starts once those of `after` have succeeded.
    Raises JobFileError, PlanError, UsageError, EngineError, StoreError.
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
    """Submits a plan; returns its run."""
    if isinstance(after, str | Run):
        after = (after,)
    made.require_runnable()
    named = [one.id if isinstance(one, Run) else path_text(one, "the id of a run") for one in after]
    made = actions.after_runs(made, named, store, context)
    engine = engine_class(made.engine).connect(store)
    try:
        return Run(actions.submit(engine, made, context).id, engine)
    except KeyboardInterrupt as interrupt:  # what was not submitted yet is undone by now
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
    """Call a function of an importable module in every rank of a new run, and return at once: `run.result()` gives what
    rank 0 returned.

    `job` are fields of the job, such as `{"nodes": 2}`; the others are as for `run`. The name of the job is that of the
    function and its code the folder from which the module is imported, unless `job` has others. Arguments and results
    are JSON, and are recorded: no secrets, and no tensors. Raises UsageError for a lambda, for a function of another
    one or of `__main__`, and for arguments that JSON does not hold; and as `run`.
    """
    from windlass.actions.functions import function_job

    require(job, Mapping | None, "a mapping of job fields", 'write for example job={"nodes": 2}')
    return run(function_job(function, args, kwargs, job or {}), on, after=after, context=context)


def make_plan(job: AnyJob, on: str = "local", *, context: Context | None = None) -> Plan:
    """What `run` would do, touching nothing. Raises JobFileError, UsageError."""
    context = _context(context)
    require(on, str, "the name of a target", "windlass targets lists them")
    return actions.make_plan(_ready(job, context), on, context)


def get(run_id: str | None = None, *, context: Context | None = None) -> Run:
    """The run of an id, of a unique prefix of one, or of a job name (its newest run). Default: the newest run.

    Raises NoSuchRun.
    """
    require(run_id, str | None, "the id of a run", "windlass ps lists them")
    with _context(context).store() as store:
        engine, found = actions.find(run_id, store)
        return Run(found, engine)


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
    """All runs, newest first; the unfinished ones and the `last` newest if a number is given.

    The others filter, as `windlass ps` does, and `last` then bounds what they leave: `phase` is one or several, `label`
    `"team=vision"`, `"team"`, several of them or a mapping, `name` that of the job or a pattern (`"digits*"`), and
    `since` a moment in Unix seconds or as a datetime, or an age (`"12h"` or a timedelta). Raises UsageError.
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
    """Raise what a status amounts to: RunFailed, RunStopped or RunNotFinished; nothing for a success."""
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
