"""Processes are signalled and ended, even next to processes of another user, such as those started by `sudo`."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.users import OTHER, as_other_user

from windlass.worker import fork_safety, process

SESSION = f"""
import os, signal
is_other, tell = os.pipe()
child = os.fork()
if not child:
    os.setuid({OTHER})
    os.write(tell, b".")
    signal.pause()
os.read(is_other, 1)
print("begun", flush=True)
os.waitpid(child, 0)
print("child ended", flush=True)
signal.pause()
"""
"""A session with a process of root and one of another user."""
PARENT = f"""
import os, signal
from windlass.worker import process
child = os.fork()
if not child:
    os.close(1)
    signal.pause()
os.setuid({OTHER})
process.end_descendants(patience_seconds=3600)
print(child)
"""
"""A user's process whose child belongs to root."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


def test_a_process_of_another_user_is_not_signalled() -> None:
    def call() -> None:
        assert not process.send(os.getppid(), 0)

    assert as_other_user(call) == ""


def test_own_processes_of_a_session_are_killed_despite_another_users_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SESSION], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == "begun\n"
        try:
            assert as_other_user(lambda: process.kill_session(leader.pid)) == ""
            assert leader.stdout.readline() == "child ended\n"
        finally:
            process.kill_session(leader.pid)


def test_children_of_another_user_are_not_waited_for() -> None:
    # In a new session, so that the test can end remaining processes.
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        child = parent.stdout.readline().strip()
        process.kill_session(parent.pid)
    assert child.isdigit()


def test_mapped_files_may_have_invalid_utf8_names(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"shared\xff")
    path.write_bytes(b"data")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4):
        assert process.mapped("shared") == [str(path)]
        assert str(path) in fork_safety._shared_memory()


@pytest.mark.skipif(sys.platform != "linux", reason="the name of a process is read from /proc")
def test_renaming_a_process_survives_garbage_collection() -> None:
    program = (
        "import ctypes, gc\n"
        "from windlass.worker import process\n"
        "prctl = process._prctl\n"
        "def late(*values):\n"
        "    gc.collect()\n"
        "    others = [ctypes.create_string_buffer(b'another') for _ in range(100)]\n"
        "    prctl(*values)\n"
        "process._prctl = late\n"
        "process.rename(['/bin/trainer', 'a'])\n"
        "print(open('/proc/self/comm').read(), end='')\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"trainer\n"
