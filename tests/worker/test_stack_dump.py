"""Stacks of real ranks run by `rank.py`: in Python code, in native code, and waiting for peers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.helpers.until import until

from windlass.diagnose.reading import kept_after_end, main_stack
from windlass.worker import flight_recorder, rank, stack_dump
from windlass.worker.capture import Capture
from windlass.worker.protocol import RankStack
from windlass.worker.ranks import Rank

THREADS = """
import json, os, threading
def works():
    while True:
        json.loads(json.dumps(list(range(50))))
threads = [threading.Thread(target=works, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
read, write = os.pipe()
def trains():
    os.write(1, b"ready\\n")
    {does}
trains()
"""
NATIVE = """
import ctypes, os
read, write = os.pipe()
def trains():
    os.write(1, b"ready\\n")
    ctypes.{library}(None).read(read, ctypes.create_string_buffer(1), 1)
trains()
"""
WAITS = f"""
import importlib.util, sys
def loaded(path):
    spec = importlib.util.spec_from_file_location("ours", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
loaded({flight_recorder.__file__!r}).Flight(sys.argv[1], None).listen(loaded({rank.__file__!r}).write_stacks)
""" + NATIVE.format(library="CDLL")


@contextmanager
def started(folder: Path, script: str) -> Iterator[Rank]:
    """Starts a rank, waits until it has printed that it is ready, and reads its output so far."""
    (folder / "train.py").write_text(script)
    source, sink = os.pipe()
    command = [sys.executable, rank.__file__, str(folder / "train.py"), str(folder / "rank-0")]
    process = subprocess.Popen(command, stdout=sink, stderr=sink)
    os.close(sink)
    one = Rank(0, process.pid, Capture(source, str(folder), 0, None), str(folder / "rank-0.done"))
    try:
        until(lambda: b"ready" in output(one), lambda: output(one).decode())
        yield one
        assert process.poll() is None, "it has died of the question"
    finally:
        process.kill()
        process.wait()
        one.capture.close()


def drain(one: Rank) -> None:
    one.capture.drain(time.time_ns())


def output(one: Rank) -> bytes:
    drain(one)
    return one.capture.last(4096)


def own(text: str) -> str:
    """Returns the text if a thread of the rank has written the stacks, and empty text if the fault handler has."""
    return text if "in write_stacks" in text else ""


def forced(stacks: tuple[RankStack, ...]) -> tuple[RankStack, ...]:
    """Returns the stacks if the fault handler has written them, else nothing."""
    return () if own(stacks[0].stack) else stacks


def functions(text: str) -> list[str]:
    return [frame.name for frame in main_stack(text)]


def test_rank_in_python_code_writes_stacks_of_all_threads(tmp_path: Path) -> None:
    with started(tmp_path, THREADS.format(does="works()")) as one:
        [found] = stack_dump.take_stacks([one], drain)
    assert found.stack.count("(most recent call first)") == 3
    assert own(found.stack)
    assert "trains" in functions(found.stack)


@pytest.mark.parametrize("library", ["CDLL", "PyDLL"], ids=["native code", "native code with the GIL"])
def test_rank_in_native_code_is_dumped_by_the_forced_signal(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_dump, "PATIENCE_SECONDS", 0.2)
    with started(tmp_path, NATIVE.format(library=library)) as one:
        until(lambda: stat(one) == "S", "it does not wait")
        found = until(lambda: stack_dump.take_stacks([one], drain)[0].stack, "no stack")
    assert "write_stacks" not in found
    assert functions(found)[0] == "trains"


@pytest.mark.parametrize("does", ["threads[0].join()", "os.read(read, 1)"])
def test_stacks_of_a_waiting_rank_do_not_read_running_threads(
    does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_dump, "PATIENCE_SECONDS", 0.2)
    with started(tmp_path, THREADS.format(does=does)) as one:
        [found] = until(lambda: forced(stack_dump.take_stacks([one], drain)), "it was not forced")
    assert found.stack.count("(most recent call first)") == 1
    assert "trains" in functions(found.stack)


def test_rank_waiting_for_peers_responds_through_its_second_thread(tmp_path: Path) -> None:
    with started(tmp_path, WAITS) as one:
        found = until(lambda: own(stack_dump.take_stacks([one], drain)[0].stack), "its second thread does not listen")
    assert functions(found)[0] == "trains"


def test_process_name_may_contain_invalid_utf8(tmp_path: Path) -> None:
    named = "import ctypes\nctypes.CDLL(None).prctl(15, b'trains gr\\xc3', 0, 0, 0)\n"
    with started(tmp_path, named + THREADS.format(does="works()")) as one:
        [found] = stack_dump.take_stacks([one], drain)
    assert "trains" in functions(found.stack)


def test_process_without_handlers_is_not_signalled(tmp_path: Path) -> None:
    with started(tmp_path, "import os, sys\nos.execv('/bin/sh', ['sh', '-c', 'echo ready; exec sleep 600'])") as one:
        [found] = stack_dump.take_stacks([one], drain)
    assert found.stack == ""


def stat(one: Rank) -> str:
    return Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[0]


KEPT = """
import os, threading, time
started = threading.Event()
def uploads():
    started.set()
    while True:
        time.sleep(60)
threading.Thread(target=time.sleep, args=(600,), daemon=True, name="prefetch").start()
threading.Thread(target=uploads, name="upload").start()
started.wait()
os.write(1, b"ready\\n")
"""


def test_rank_waiting_for_a_thread_after_its_script_names_the_thread(tmp_path: Path) -> None:
    with started(tmp_path, KEPT) as one:
        [found] = until(lambda: named_threads(stack_dump.take_stacks([one], drain)), "no thread is named")
        kept = kept_after_end(found.stack)
    assert kept is not None
    assert (kept.by, kept.stack[0].name) == ("thread upload", "uploads")


def named_threads(stacks: tuple[RankStack, ...]) -> tuple[RankStack, ...]:
    """Returns the stacks if the script has ended and the names of its threads are listed, else nothing."""
    text = stacks[0].stack
    return stacks if "in _finish" in text and "(daemon): prefetch" in text else ()
