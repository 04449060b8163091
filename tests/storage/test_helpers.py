"""Helper processes of a copy lose no small file and copy none twice, whatever ends them or the copy."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.machine import lives
from tests.helpers.until import until
from tests.storage.sent import Sent, Started
from tests.storage.test_copy import contents, folder, refusals

from windlass.errors import StorageError
from windlass.storage import manifest as manifests
from windlass.storage.copy import Copy
from windlass.storage.digest import combined
from windlass.storage.helpers import FILES_ON_ONE_CORE, MAX_HELPERS, Helpers, number_here
from windlass.storage.journal import Journal
from windlass.storage.manifest import File, Manifest
from windlass.storage.progress import Copied
from windlass.storage.window import Window

NUM_FILES = 600


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    for number in range(NUM_FILES):
        (path / f"f{number % 7}").mkdir(parents=True, exist_ok=True)
        (path / f"f{number % 7}" / f"{number}.bin").write_bytes(f"{number} ".encode() * (1 + number % 50))
    return path


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    path = tmp_path / "marks"
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[Helpers]:
    """Collects all helpers of the test."""
    made: list[Helpers] = []

    def make(*args: Any) -> Helpers:
        made.append(Started(*args))
        return made[-1]

    monkeypatch.setattr("windlass.storage.copy.Helpers", make)
    return made


def copied(source: Sent, to: Path, number: int = 2, window: Window | None = None) -> Copied:
    with Journal(to / ".windlass" / "journal.jsonl") as journal:
        return asyncio.run(Copy(source, folder(to), journal, window=window, num_helpers=lambda _num: number).run())


def readers(marks: Path) -> Counter[int]:
    """Returns how many files each process has read."""
    return Counter(int(line.split()[0]) for line in (marks / "reads").read_text().splitlines())


def test_helpers_move_all_small_files_and_end_with_copy(
    source: Path, marks: Path, tmp_path: Path, started: list[Helpers]
) -> None:
    done = copied(Sent(source, {}, marks), tmp_path / "to")
    assert (done.num_copied, done.refused) == (NUM_FILES, ())
    assert contents(tmp_path / "to") == contents(source)
    found = readers(marks)
    assert sum(found.values()) == NUM_FILES
    assert set(found) == {process.pid for process in started[0]._processes}
    assert not any(map(lives, found))
    assert done.digest == copied(Sent(source, {}, marks), tmp_path / "again", 0).digest
    assert os.getpid() in readers(marks)


def test_a_file_for_which_the_store_was_busy_is_moved_again_with_fewer_requests(
    source: Path, marks: Path, tmp_path: Path
) -> None:
    window = Window()
    window.size = 16
    busy = {f"f{number % 7}/{number}.bin": "busy once" for number in range(0, NUM_FILES, 50)}
    done = copied(Sent(source, busy, marks), tmp_path / "to", window=window)
    assert (done.num_copied, done.refused) == (NUM_FILES, ())
    assert contents(tmp_path / "to") == contents(source)
    assert window.size < 16


def test_files_that_fail_are_named_and_the_others_are_moved(source: Path, marks: Path, tmp_path: Path) -> None:
    done = copied(Sent(source, {"f1/1.bin": "changed", "f2/2.bin": "refused"}, marks), tmp_path / "to")
    assert refusals(done) == {
        "f1/1.bin": "f1/1.bin was changed while it was copied",
        "f2/2.bin": "Input/output error",
    }
    assert done.num_copied == NUM_FILES - 2


def test_a_file_that_its_source_says_is_damaged_is_not_written(source: Path, marks: Path, tmp_path: Path) -> None:
    wrong = File(
        "f1/1.bin",
        (source / "f1/1.bin").stat().st_size,
        combined([bytes(32)]),
        "",
        folder(source).version_of("f1/1.bin"),
    )
    manifest = source / manifests.IN_FOLDER
    manifest.parent.mkdir(exist_ok=True)
    manifest.write_bytes(Manifest.of([wrong]).to_bytes())
    done = copied(Sent(source, {}, marks), tmp_path / "to")
    assert refusals(done)["f1/1.bin"].startswith("damaged at its source")
    assert not (tmp_path / "to/f1/1.bin").exists()


def test_full_disk_ends_copy_and_helpers(source: Path, marks: Path, tmp_path: Path, started: list[Helpers]) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        copied(Sent(source, {"f1/1.bin": "no space"}, marks), tmp_path / "to")
    assert raised.group_contains(StorageError, match="No space left on device")
    assert not any(lives(process.pid) for process in started[0]._processes)


@pytest.mark.parametrize(("act", "left"), [("die once", 1), ("die", 0)])
def test_the_files_of_one_that_is_killed_are_moved_by_the_others_and_where_none_is_left_by_the_copy(
    source: Path, marks: Path, tmp_path: Path, started: list[Helpers], act: str, left: int
) -> None:
    every = {f"f{number % 7}/{number}.bin": act for number in (range(NUM_FILES) if act == "die" else [1])}
    # One helper has threads for half of 64 requests; with more requests the copy could support the remaining helper.
    window = Window(most=32)
    window.size = 32
    done = copied(Sent(source, every, marks), tmp_path / "to", window=window)
    assert (done.num_copied, done.refused) == (NUM_FILES, ())
    assert contents(tmp_path / "to") == contents(source)
    found = readers(marks)
    assert len([process for process in started[0]._processes if process.pid in found]) >= left
    assert (os.getpid() in found) == (act == "die")


@pytest.mark.parametrize("made", [0, 1])
def test_where_no_more_processes_may_be_made_the_copy_does_all_by_itself(
    source: Path, marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: int
) -> None:
    plain, processes = subprocess.Popen, list[subprocess.Popen[bytes]]()

    def limited(*args: Any, **named: Any) -> subprocess.Popen[bytes]:
        if len(processes) == made:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        processes.append(plain(*args, **named))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", limited)
    done = copied(Sent(source, {}, marks), tmp_path / "to")
    assert (done.num_copied, done.refused) == (NUM_FILES, ())
    assert set(readers(marks)) == {os.getpid()}
    assert not any(lives(process.pid) for process in processes)


SCRIPT = """
import asyncio, sys
from pathlib import Path
from tests.storage.sent import Sent, Started
from tests.storage.test_copy import folder
from windlass.storage import copy
from windlass.storage.journal import Journal
copy.Helpers = Started
source, to, marks, act = sys.argv[1:]
with Journal(Path(to) / ".windlass" / "journal.jsonl") as journal:
    of = Sent(Path(source), {"f3/325.bin": act} if act else {}, Path(marks))
    done = asyncio.run(copy.Copy(of, folder(Path(to)), journal, num_helpers=lambda _num: 2).run())
print(done.num_copied)
"""


@pytest.mark.slow
@pytest.mark.parametrize("act", ["SIGKILL", "SIGINT"])
def test_files_moved_by_helpers_are_not_moved_again_after_kill(
    source: Path, marks: Path, tmp_path: Path, act: str
) -> None:
    to = tmp_path / "to"
    command = [sys.executable, "-c", SCRIPT, str(source), str(to), str(marks)]
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"}
    killed = subprocess.run([*command, act], env=env, capture_output=True, text=True, check=False, timeout=240)
    assert killed.returncode == -signal.Signals[act], killed.stderr
    until(lambda: not any(map(lives, readers(marks))), "a helper has outlived the copy")
    before = len((to / ".windlass" / "journal.jsonl").read_text().splitlines())
    again = subprocess.run([*command, ""], env=env, capture_output=True, text=True, check=True, timeout=240)
    assert contents(to) == contents(source)
    assert before > 0
    num_reads = sum(readers(marks).values())
    assert num_reads - len(contents(source)) <= 64, "more is read again than one file of each thread"
    assert 0 < int(again.stdout) < len(contents(source))


def test_odd_entries_of_the_path_are_left_out(
    source: Path, marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, None, 5, "a\0b", Path("x")])
    copied(Sent(source, {}, marks), tmp_path / "to")
    assert os.getpid() not in readers(marks)


def test_helpers_that_cannot_import_the_package_end_silently(
    source: Path, marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not (Path(one) / "windlass").is_dir()])
    assert copied(Sent(source, {}, marks), tmp_path / "to").num_copied == NUM_FILES
    assert set(readers(marks)) == {os.getpid()}
    assert capfd.readouterr().err == ""


def test_unexpected_error_of_helper_is_raised_by_copy(source: Path, marks: Path, tmp_path: Path) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        copied(Sent(source, {"f1/1.bin": "bug"}, marks), tmp_path / "to")
    assert raised.group_contains(ZeroDivisionError)


def test_low_task_limit_disables_helpers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(4))
    for text, expected in (("max", 4), ("100000", 4), ("512", 0)):
        (tmp_path / "pids.max").write_text(f"{text}\n")
        monkeypatch.setattr("windlass.storage.helpers.PIDS_MAX", tmp_path / "pids.max")
        monkeypatch.setattr("resource.getrlimit", lambda _kind: (-1, -1))
        assert number_here(10**6) == expected
        monkeypatch.setattr("resource.getrlimit", lambda _kind: (100, 100))
        assert number_here(10**6) == 0


def test_few_files_or_few_cores_disable_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _kind: (-1, -1))
    monkeypatch.setattr("windlass.storage.helpers.PIDS_MAX", Path("/nowhere"))
    for cores, expected in ((1, 0), (2, 2), (4, 4), (64, MAX_HELPERS)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, cores=cores: range(cores))
        assert number_here(FILES_ON_ONE_CORE // cores - 1) == 0
        assert number_here(FILES_ON_ONE_CORE // cores) == expected
    monkeypatch.setattr(sys, "executable", "")
    assert number_here(10**6) == 0, "an embedded interpreter cannot be started again"
