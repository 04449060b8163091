"""A separate process stages data sets before the first attempt, whichever process is killed meanwhile."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import Can, Case, Harness, Run, Way
from tests.engines.local.planning import plan_local
from tests.helpers.until import until
from tests.servers.http_files import file_host

from windlass.engines.local.engine import LocalEngine
from windlass.runs.phase import Phase
from windlass.storage.address import Address
from windlass.storage.cache import staging_lock
from windlass.supervise.process import supervisor_pid

SCRIPT = """
import os, pathlib
folder = pathlib.Path(os.environ["WINDLASS_DATA_DIGITS"])
print("read", *(f"{one.name}={one.read_text()}" for one in sorted(folder.iterdir())))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "one").write_text("1")
    (folder / "two").write_text("2")
    return folder


@pytest.fixture
def job(tmp_path: Path, source: Path) -> dict[str, Any]:
    (tmp_path / "read.py").write_text(SCRIPT)
    return {"base": tmp_path, "data": [{"name": "digits", "source": f"file://{source}"}]}


def locked(harness: Harness, source: Path) -> AbstractContextManager[None]:
    """Keeps other processes from fetching the data set in the meantime."""
    return held(staging_lock(harness.home / "data", Address("folder", "", str(source))))


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keeps other processes from locking the file in the meantime."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def processes_of(module: str, harness: Harness) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if module.encode() in words and str(harness.home).encode() in words:
                found.append(int(folder.name))
    return found


def kill_supervisor(run: Run) -> None:
    pid = supervisor_pid(run.harness.store.run_dir(run.id))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


class TestStaging(Case):
    way = Way("local", LocalEngine, plan_local, frozenset(Can), {"start": "cold"})

    @pytest.mark.slow
    def test_ranks_read_staged_data_and_second_run_uses_cache(self, harness: Harness, job: dict[str, Any]) -> None:
        runs = [harness.start("read.py", **job) for _ in range(2)]
        assert [run.wait().phase for run in runs] == [Phase.SUCCEEDED] * 2, runs[0].text()
        assert {run.text().strip() for run in runs} == {"read one=1 two=2"}
        staged = [dict(event.data) for run in runs for event in run.events if event.kind == "data"]
        assert {(one["name"], one["files"], one["bytes"]) for one in staged} == {("digits", 2, 2)}
        assert len({one["digest"] for one in staged}) == 1
        assert sorted(one["moved"] for one in staged) == [0, 2]
        assert runs[0].status.files.data[0].digest == staged[0]["digest"]

    @pytest.mark.slow
    def test_file_of_http_server_is_staged_once_for_two_runs(self, harness: Harness, job: dict[str, Any]) -> None:
        with file_host({"d/one": b"1"}) as host:
            data = [{"name": "digits", "source": f"{host.address}/d/one"}]
            runs = [harness.start("read.py", **{**job, "data": data}) for _ in range(2)]
            assert [run.wait().phase for run in runs] == [Phase.SUCCEEDED] * 2, runs[0].text()
        assert {run.text().strip() for run in runs} == {"read one=1"}
        assert sorted(run.status.files.data[0].moved for run in runs) == [0, 1]

    def test_run_that_waits_for_another_staging_process_names_it(
        self, harness: Harness, job: dict[str, Any], source: Path
    ) -> None:
        with locked(harness, source):
            run = harness.start("read.py", **job).until(lambda run: bool(run.status.progress.waits_for))
            message = f"data digits waits for another process, which fetches file://{source}"
            assert run.status.progress.message == message
            assert (run.verdict.code, run.verdict.summary) == ("data-locked", message)
        assert run.wait().phase is Phase.SUCCEEDED

    @pytest.mark.slow
    def test_missing_source_fails_run_which_can_be_resumed_later(
        self, harness: Harness, job: dict[str, Any], source: Path
    ) -> None:
        plan = harness.plan("read.py", **job)
        source.rename(source.with_name("away"))
        harness.engine.submit(plan)
        run = Run(harness, plan.run_id)
        status = run.wait()
        assert (status.phase, status.exit_code) == (Phase.FAILED, 127)
        assert status.cause is not None
        assert f"{source}: there is no such folder" in status.cause.summary
        assert run.verdict.code == "data-not-staged"
        source.with_name("away").rename(source)
        harness.engine.resume(run.id)
        assert run.wait().phase is Phase.SUCCEEDED

    def test_stop_ends_staging_process(self, harness: Harness, job: dict[str, Any], source: Path) -> None:
        with locked(harness, source):
            run = harness.start("read.py", **job)
            run.until(lambda run: run.status.phase is Phase.STAGING)
            until(lambda: processes_of("windlass.storage.staging", harness))
            harness.engine.stop(run.id)
            assert run.wait().phase is Phase.STOPPED
        assert processes_of("windlass.storage.staging", harness) == []

    @pytest.mark.slow
    def test_supervisor_killed_during_transfer_is_replaced(
        self, harness: Harness, job: dict[str, Any], source: Path
    ) -> None:
        with locked(harness, source):
            run = harness.start("read.py", **job)
            [old] = until(lambda: processes_of("windlass.storage.staging", harness))
            kill_supervisor(run)
            until(lambda: old not in processes_of("windlass.storage.staging", harness))
        assert run.wait().phase is Phase.SUCCEEDED
        assert [event.kind for event in run.events if event.kind in ("adopted", "data")] == ["adopted", "data"]
