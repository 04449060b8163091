"""The Python API offers the operations of the command line: run, follow, await, stop, remove."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.until import until

import windlass
from windlass.engines.fake import FakeEngine, FakeRank
from windlass.runs.context import Context
from windlass.runs.events import Progress
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.worker import process


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context({**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)


def job(*command: str, **fields: object) -> windlass.Job:
    return windlass.Job.model_validate({"name": "words", "command": list(command), **fields})


def test_a_run_is_followed_event_by_event_and_ends_with_its_status(context: Context) -> None:
    run = windlass.run(job("bash", "-c", "echo hello"), context=context)
    kinds = [event.kind for event in run.events()]
    assert kinds[0] == "created"
    assert kinds[-1] == "end"
    assert run.wait().phase is Phase.SUCCEEDED
    assert [line.text for line in run.logs()] == ["hello"]
    assert run.output_dir.is_dir()


def test_a_run_has_its_warnings(context: Context) -> None:
    run = windlass.run(job("bash", "-c", "sleep 60 & echo started"), context=context)
    assert run.wait().phase is Phase.SUCCEEDED
    [warning] = run.warnings
    assert (warning.code, warning.ranks, warning.attempt) == ("processes-outlived", (0,), 1)
    assert "sleep 60 (process " in warning.message


def test_awaiting_a_run_does_not_block_other_tasks(context: Context) -> None:
    async def both() -> tuple[windlass.Status, windlass.Status]:
        first = await asyncio.to_thread(windlass.run, job("sleep", "0.2"), context=context)
        second = windlass.run(job("sleep", "0.2"), context=context)
        return await asyncio.gather(_wait(first), _wait(second))

    async def _wait(run: windlass.Run) -> windlass.Status:
        return await run

    assert {status.phase for status in asyncio.run(both())} == {Phase.SUCCEEDED}


def test_failed_run_raises_its_root_cause_unless_unchecked(context: Context) -> None:
    run = windlass.run(job("bash", "-c", "echo no luck; exit 3", nodes=2), context=context)
    with pytest.raises(windlass.RunFailed, match=r"rank [01]: exit code 3"):
        run.wait()
    assert run.wait(check=False).exit_code == 3


def test_active_run_is_not_finished_and_can_be_stopped_and_removed(context: Context) -> None:
    run = windlass.run(job("sleep", "60"), context=context)
    with pytest.raises(windlass.RunNotFinished):
        run.wait(timeout=0.2)
    with pytest.raises(windlass.UsageError, match="has not ended"):
        run.delete()
    run.stop(now=True)
    with pytest.raises(windlass.RunStopped):
        run.wait()
    run.delete()
    for question in (lambda: run.status, run.ledger, lambda: list(run.logs()), lambda: list(run.events())):
        with pytest.raises(windlass.NoSuchRun):
            question()


def test_run_is_found_by_prefix_and_listed(context: Context) -> None:
    run = windlass.run({"name": "words", "command": ["true"]}, context=context)
    run.wait()
    assert windlass.get(run.id[:7], context=context) == run
    assert {pickle.loads(pickle.dumps(run))} == {run}
    assert [status.id for status in windlass.list_runs(context=context)] == [run.id]


def test_interrupted_start_names_the_active_run(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("windlass.code.snapshot.keep_snapshot", interrupt)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        windlass.run(job("true"), context=context)
    [status] = windlass.list_runs(context=context)
    assert interrupted.value.__notes__ == [f"{status.id} was started: windlass.get('{status.id}')"]
    windlass.get(status.id, context=context).wait()


def test_runs_are_filtered(context: Context) -> None:
    good = windlass.run(job("true", labels={"team": "a"}), context=context)
    good.wait()
    bad = windlass.run({"name": "other", "command": ["false"]}, context=context)
    bad.wait(check=False)

    def listed(**filters: Any) -> list[str]:
        return [status.id for status in windlass.list_runs(context=context, **filters)]

    assert listed() == [bad.id, good.id]
    assert listed(phase="failed") == listed(phase=["failed", "lost"]) == listed(name="oth*") == [bad.id]
    assert listed(label="team=a") == listed(label={"team": "a"}) == listed(label=["team"]) == [good.id]
    assert listed(label="team=b") == listed(target="lab") == listed(phase="queued") == []
    now = time.time()
    assert listed(since=now - 600) == listed(since="10min") == listed(since=timedelta(hours=1)) == [bad.id, good.id]
    assert listed(since=datetime.fromtimestamp(now + 60, tz=UTC)) == []
    assert listed(last=1, target="local") == [bad.id]
    for wrong in ({"phase": "running"}, {"since": "yesterday"}, {"label": 3}, {"name": None}):
        with pytest.raises(windlass.UsageError):
            listed(**wrong)


def test_error_of_a_failed_run_has_the_run_and_its_diagnosis(context: Context) -> None:
    run = windlass.run(job("bash", "-c", "echo no luck; exit 3"), context=context)
    with pytest.raises(windlass.RunFailed) as failed:
        run.wait()
    assert failed.value.run == pickle.loads(pickle.dumps(failed.value)).run == run
    assert failed.value.diagnosis == run.why()
    assert windlass.RunFailed("of another program").diagnosis is None


def test_run_is_rerun_with_changes_and_after_another(context: Context) -> None:
    first = windlass.run(job("true"), context=context)
    again = first.rerun(changes={"env": {"WORD": "again"}, "command": ["bash", "-c", "echo $WORD"]}, after=[first])
    assert again.wait().phase is Phase.SUCCEEDED
    assert [line.text for line in again.logs()] == ["again"]
    with pytest.raises(windlass.NoSuchRun):
        windlass.run(job("true"), after=["nothing"], context=context)
    with pytest.raises(windlass.UsageError, match="after is for runs of this machine alone"):
        windlass.run(job("true"), FakeEngine(context.store(), lambda rank: None), after=[first], context=context)


def test_run_after_a_failed_one_is_stopped_with_the_reason(context: Context) -> None:
    first = windlass.run(job("false"), context=context)
    with pytest.raises(windlass.RunStopped, match=f"was stopped: {first.id}, after which .*, ended as failed"):
        windlass.run(job("true"), after=first.id, context=context).wait()


def test_a_note_is_read_and_written(context: Context) -> None:
    run = windlass.run(job("true"), context=context)
    assert run.note == ""
    run.note = "the rate of the paper"
    assert windlass.get(run.id, context=context).note == run.wait().about.note == "the rate of the paper"
    with pytest.raises(windlass.UsageError, match="4,000 characters at most"):
        run.note = "x" * 5000
    run.note = ""
    assert run.note == ""


def test_notebook_shows_one_line_or_a_table(context: Context) -> None:
    run = windlass.run(job("echo", "<b>"), context=context)
    status = run.wait()
    assert repr(run) == f"<windlass.Run {run.id} succeeded>"
    assert repr(status) == f"<windlass.Status {run.id} succeeded>"
    assert repr(
        dataclasses.replace(status, progress=Progress.from_json({"step": 90, "total": 500, "loss": 0.31234}))
    ) == (f"<windlass.Status {run.id} succeeded, step 90 of 500, loss 0.3123>")
    assert repr(run.why()) == "<windlass.Diagnosis none: the run succeeded; nothing is wrong>"
    assert repr(job("true", nodes=2)) == "Job(name='words', command=('true',), nodes=NodeRange(min=2, max=2))"
    made = windlass.make_plan(job("true", nodes=2), context=context)
    assert repr(made) == f"<windlass.Plan {made.run_id} on local: 2 × 1 ranks, 3 steps>"
    run.note = "<b>"
    assert f"<th>run</th><td>{run.id}</td>" in str(run._repr_html_())
    assert "<th>note</th><td>&lt;b&gt;</td>" in str(run._repr_html_())
    run.delete()
    assert repr(run) == f"<windlass.Run {run.id}, removed>"
    assert run._repr_html_() is None
    for path in context.home.glob("record.db*"):
        path.write_bytes(b"damaged" * 200)
    assert repr(run) == f"<windlass.Run {run.id}, whose record cannot be read>"


def test_a_job_has_a_signature_and_a_docstring_with_all_its_fields() -> None:
    for _ in range(2):  # the first job makes pydantic create a signature of its own
        parameters = inspect.signature(windlass.Job).parameters
        assert list(parameters) == list(windlass.Job.model_fields)
        assert parameters["name"].default is inspect.Parameter.empty
        assert str(parameters["restarts"].annotation).startswith("int | ")
        assert parameters["grace"].default == 30.0
        windlass.Job(name="a", run="train.py")
    text = str(inspect.getdoc(windlass.Job))
    assert all(f"\n    {name}: " in text for name in parameters)
    assert "Number of nodes, or a range `{min: 1, max: 4}`" in text


def test_a_job_file_is_run_by_its_path(context: Context) -> None:
    (context.cwd / "job.yaml").write_text("name: words\ncommand: [pwd]\n")
    run = windlass.run("job.yaml", context=context)
    run.wait()
    assert [line.text for line in run.logs()] == [str(context.cwd)]


def test_invalid_job_type_is_refused(context: Context) -> None:
    with pytest.raises(windlass.UsageError, match="expected a job, found a function"):
        windlass.run(job, context=context)  # type: ignore[arg-type]


def test_invalid_number_of_runs_is_refused(context: Context) -> None:
    with pytest.raises(windlass.UsageError, match="expected a number of runs, found 'words'"):
        windlass.list_runs("words", context=context)  # type: ignore[arg-type]


def test_invalid_target_and_run_types_are_refused(context: Context) -> None:
    for call in (windlass.run, windlass.make_plan):
        with pytest.raises(windlass.UsageError, match="expected the name of a target, found nothing"):
            call(job("true"), None, context=context)  # type: ignore[arg-type]
    with pytest.raises(windlass.UsageError, match="expected the id of a run, found 3"):
        windlass.get(3, context=context)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "given", "says"),
    [
        ("wait", {"timeout": "soon"}, "expected a number of seconds, found 'soon'"),
        ("wait", {"timeout": float("nan")}, "expected a number of seconds, found nan"),
        ("events", {"after": "3"}, "expected the number of an event, found '3'"),
        ("logs", {"ranks": 0}, r"expected a list of ranks, found 0\n  write for example ranks=\[0, 1\]"),
        ("logs", {"ranks": ["0"]}, "expected the number of a rank, found '0'"),
        ("logs", {"tail": -1}, "expected a number of lines, found -1"),
        ("exec", {"command": b"ls"}, r"expected a list of words, found bytes \(b'ls'\)"),
        ("exec", {"command": ["echo", 0.1]}, r"expected a word of a command line, found 0.1\n  write numbers as text"),
        ("exec", {"command": ["echo", "a\0b"]}, "leave out the zero byte"),
        ("exec", {"command": ["cat"], "stdin": "text"}, "expected bytes as stdin, found 'text'"),
        ("exec", {"command": ["cat"], "rank": "0"}, "expected the number of a rank, found '0'"),
        ("fetch", {"path": b"output", "local": "here"}, "expected a path of the run, found bytes"),
        ("fetch", {"path": "output", "local": None}, "expected a path of this machine, found nothing"),
        ("put", {"local": "", "path": "output"}, "the path of this machine is empty"),
        ("put", {"local": ".", "path": "output", "node": "0"}, "expected the number of a node, found '0'"),
        ("resume", {"arguments": "--lr 0.1"}, "expected a list of arguments, found '--lr 0.1'"),
        ("resume", {"nodes": 2, "changes": {"nodes": 3}}, "two numbers of nodes: 2, and 3 in changes"),
        ("resume", {"changes": ["restarts=3"]}, "expected a mapping of job fields, found a list"),
    ],
)
def test_wrong_argument_type_is_refused_with_a_hint(
    context: Context, method: str, given: dict[str, object], says: str
) -> None:
    with Store(context.home) as store:
        run = windlass.run(job("true"), on=FakeEngine(store, lambda rank: None), context=context)
        run.wait()
        with pytest.raises(windlass.UsageError, match=says):
            getattr(run, method)(**given)


def test_invalid_context_type_is_refused() -> None:
    with pytest.raises(windlass.UsageError, match=r"expected a windlass\.Context, found '/tmp'"):
        windlass.get(context="/tmp")  # type: ignore[arg-type]


def test_plan_changes_nothing(context: Context) -> None:
    plan = windlass.make_plan(job("true", nodes=2), context=context)
    assert plan.world_size == 2
    assert list(context.cwd.iterdir()) == []


def test_followed_logs_yield_lines_as_they_arrive(context: Context) -> None:
    run = windlass.run(job("bash", "-c", "echo one; sleep 0.3; echo two"), context=context)
    assert [line.text for line in run.logs(follow=True)] == ["one", "two"]


def test_logs_and_events_do_not_block_other_tasks(context: Context) -> None:
    run = windlass.run(job("bash", "-c", "echo one; until [ -e go ]; do sleep 0.02; done; echo two"), context=context)

    async def lines() -> list[str]:
        found = []
        async for line in run.logs(follow=True):
            found.append(line.text)
            (context.cwd / "go").touch()
        return found

    async def kinds() -> list[str]:
        return [event.kind async for event in run.events()]

    async def both() -> tuple[list[str], list[str]]:
        return await asyncio.gather(lines(), kinds())

    said, happened = asyncio.run(both())
    assert said == ["one", "two"]
    assert (happened[0], happened[-1]) == ("created", "end")


def test_abandoned_feed_ends_its_thread_and_errors_are_raised(context: Context) -> None:
    run = windlass.run(job("bash", "-c", "echo one; sleep 60"), context=context)

    async def first() -> str:
        async for line in run.logs(follow=True):
            return line.text
        return ""

    assert asyncio.run(first()) == "one"
    until(lambda: not [one for one in threading.enumerate() if one.name == "windlass-feed"])
    run.stop(now=True).wait(check=False)
    run.delete()

    async def gone() -> None:
        async for _ in run.events():
            pass

    with pytest.raises(windlass.NoSuchRun):
        asyncio.run(gone())


def test_run_can_be_used_in_another_thread(context: Context) -> None:
    run = windlass.run(job("bash", "-c", "echo one; sleep 60"), context=context)
    with ThreadPoolExecutor(1) as others:
        assert others.submit(next, run.logs(follow=True)).result().text == "one"
        assert others.submit(lambda: run.status.phase.is_terminal).result() is False
        assert others.submit(run.stop, now=True).result() is run
        with pytest.raises(windlass.RunStopped):
            others.submit(run.wait).result()
        assert others.submit(run.why).result().verdict.code == "stopped"
        assert others.submit(run.ledger).result().attempts == 1
        assert others.submit(run.cost).result() is None
        assert others.submit(lambda: run.output_dir).result() == run.output_dir
        others.submit(run.delete, force=True).result()


def test_threads_can_share_one_iterator(context: Context) -> None:
    run = windlass.run(job("true"), context=context)
    run.wait()
    events = run.events()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        assert one.submit(next, events).result().seq == 1
        assert other.submit(next, events).result().seq == 2


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_run_can_be_used_in_a_multiprocessing_process(context: Context, method: str) -> None:
    run = windlass.run(job("true"), context=context)
    run.wait()
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as others:
        assert others.submit(windlass.Run.wait, run).result().id == run.id
        with pytest.raises(windlass.UsageError, match="has succeeded"):
            others.submit(windlass.Run.resume, run).result()
    assert run.status.phase is Phase.SUCCEEDED


def test_a_run_keeps_no_file_open(context: Context) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    runs = [windlass.run(job("true"), context=context) for _ in range(2)]
    for run in runs:
        run.wait()
        assert next(run.logs(), None) is None
        assert [event.kind for event in run.events()][-1] == "end"
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_exited_supervisors_are_reaped(context: Context) -> None:
    def children() -> set[int]:
        return {one.pid for one in process.all_processes() if one.parent == os.getpid()}

    before = children()
    run = windlass.run(job("true"), context=context)
    [supervisor] = children() - before
    until(lambda: run.status.phase.is_terminal and process.stat(supervisor) is None)


def test_ranks_receive_the_stop_of_a_program_that_blocks_signals(context: Context) -> None:
    saves = "trap 'echo saved; exit 7' TERM; echo one; while :; do sleep 0.02; done"
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        run = windlass.run(job("bash", "-c", saves), context=context)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    lines = run.logs(follow=True)
    assert next(lines).text == "one"
    run.stop()
    assert next(lines).text == "saved"
    assert run.wait(check=False).exit_code == 7


def test_run_started_by_a_rank_inherits_no_rank_variables(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_RUN_ID", "outer-7f3k2")
    monkeypatch.setenv("RANK", "1")
    run = windlass.run(job("bash", "-c", "echo ${RANK-none} $WINDLASS_RUN_ID"), context=context)
    run.wait()
    assert [line.text for line in run.logs()] == [f"none {run.id}"]


def test_cancelled_wait_leaves_the_run_active_and_no_thread(context: Context) -> None:
    before = set(threading.enumerate())
    run = windlass.run(job("sleep", "600"), context=context)

    async def impatient() -> None:
        await asyncio.wait_for(run, 0.1)

    with pytest.raises(TimeoutError) as kept:  # the traceback keeps the frames that waited
        asyncio.run(impatient())  # asyncio.run would wait for a thread of its executor
    assert not run.status.phase.is_terminal
    until(lambda: set(threading.enumerate()) <= before)
    assert kept.value.__traceback__ is not None
    run.stop(now=True).wait(check=False)


@pytest.mark.slow
def test_exec_runs_next_to_a_rank_and_files_are_copied_both_ways(context: Context, tmp_path: Path) -> None:
    waits = 'until [ -e "$WINDLASS_OUTPUT_DIR/go" ]; do sleep 0.02; done'
    run = windlass.run(job("bash", "-c", waits, nodes=2), context=context)
    until(lambda: all(rank.pid is not None for rank in run.status.ranks) and run.status.ranks)

    async def asked() -> tuple[int, bytes]:
        done = await asyncio.to_thread(
            run.exec, ["bash", "-c", "cat; echo $WINDLASS_RANK; exit 3"], rank=1, stdin=b"in "
        )
        return done.returncode, done.stdout

    assert asyncio.run(asked()) == (3, b"in 1\n")
    for wrong, says in (("echo hi", "one text, not a list of words"), ([], "the command is empty")):
        with pytest.raises(windlass.UsageError, match=says):
            run.exec(wrong)
    assert run.checkpoints() == ()
    assert run.verify_checkpoints() == {}
    (tmp_path / "go").write_text("now")
    assert run.put(tmp_path / "go", "output").files == 1
    run.wait()
    assert run.fetch(Path("output", "go"), tmp_path / "back").bytes == 3
    assert (tmp_path / "back").read_text() == "now"
    with pytest.raises(windlass.UsageError, match="does not exist"):
        run.put(tmp_path / "nothing", "output")
    with pytest.raises(windlass.UsageError, match="may not lead upwards"):
        run.fetch("../../record.db", tmp_path / "record.db")
    with pytest.raises(windlass.UsageError, match="none of its results"):
        run.put(tmp_path / "go", "lock")
    with pytest.raises(windlass.UsageError, match="has ended"):
        run.exec(["true"])


def test_program_with_a_removed_working_folder_uses_no_other(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = windlass.run(job("true"), context=context)
    run.wait()
    monkeypatch.setenv("PWD", str(tmp_path))  # PWD as set by the shell that started the program
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(windlass.PlanError, match=r"/gone is not an existing folder"):
        windlass.make_plan(job("true")).require_runnable()
    with pytest.raises(windlass.UsageError, match=r"gone/words\.csv does not exist"):
        run.put("words.csv", "output")
    with pytest.raises(windlass.EngineError, match="gone: there is no such folder"):
        run.fetch("output", "here")


def test_interrupt_during_exec_ends_the_command(context: Context) -> None:
    run = windlass.run(job("sleep", "60"), context=context)
    until(lambda: any(rank.pid is not None for rank in run.status.ranks))
    signals = ["kill -INT $PPID; exec sleep 60", "trap 'exit 5' INT; kill -INT $PPID; while :; do sleep 0.02; done"]
    with pytest.raises(KeyboardInterrupt):
        run.exec(["bash", "-c", signals[0]])
    assert run.exec(["bash", "-c", signals[1]]).returncode == 5
    run.stop(now=True)


def test_exception_in_a_signal_handler_during_exec_ends_the_command(context: Context, tmp_path: Path) -> None:
    def give_up(*_: object) -> None:
        raise TimeoutError

    run = windlass.run(job("sleep", "60"), context=context)
    until(lambda: any(rank.pid is not None for rank in run.status.ranks))
    old = signal.signal(signal.SIGUSR1, give_up)
    try:
        with pytest.raises(TimeoutError):
            run.exec(["bash", "-c", f"echo $$ > {tmp_path}/pid; kill -USR1 $PPID; exec sleep 60"])
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert process.stat(int((tmp_path / "pid").read_text())) is None
    run.stop(now=True)


def test_fake_engine_supports_the_same_calls(context: Context) -> None:
    def play(rank: FakeRank) -> int:
        rank.print(f"rank {rank.rank}")
        return 0

    with Store(context.home) as store:
        run = windlass.run(job("anything", nodes=3), on=FakeEngine(store, play), context=context)
        assert run.wait().phase is Phase.SUCCEEDED
        assert sorted(line.text for line in run.logs()) == ["rank 0", "rank 1", "rank 2"]
        with ThreadPoolExecutor(1) as others:
            assert others.submit(lambda: run.status.phase).result() is Phase.SUCCEEDED
    assert windlass.get(context=context).status.phase is Phase.SUCCEEDED


def test_public_names_are_pinned() -> None:
    assert sorted(windlass.__all__) == [
        "Attempt", "CheckpointView", "Comparison", "Context", "CopiedFiles", "Cost", "Diagnosis", "EngineError",
        "Event", "Job", "JobFileError", "Ledger", "LogLine", "NoSuchRun", "Note", "Phase", "Plan", "PlanError",
        "Problem", "RankState", "Run", "RunEnded", "RunFailed", "RunNotFinished", "RunStopped", "Spent", "Status",
        "Step", "StoreError", "UsageError", "Verdict", "WindlassError", "compare", "get", "list_runs", "make_plan",
        "run", "submit",
    ]  # fmt: skip
    assert all(getattr(windlass, name) is not None for name in windlass.__all__)
    assert set(windlass.__all__) <= set(dir(windlass))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = windlass.nonsense


def test_importing_windlass_loads_no_submodules() -> None:
    code = "import sys, windlass; print([name for name in sys.modules if name.startswith('windlass.')])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
