"""A rank writes at its end what a plain interpreter writes, and ends where that would wait for ever."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

from windlass.worker import rank

LEFT_OPEN = """
import bz2, gzip, io, lzma, os, tempfile, zipfile

files = [
    open("random", "w+b"), tempfile.NamedTemporaryFile(dir=".", prefix="named", delete=False),
    gzip.open("gzip", "wb"), bz2.open("bz2", "wb"), lzma.open("lzma", "wb"), zipfile.ZipFile("zip", "w"),
    gzip.open("text", "wt"), io.BufferedWriter(gzip.open("wrapped", "wb")),
]
for file in files:
    if isinstance(file, zipfile.ZipFile):
        file.writestr("entry", b"x" * 100)
    else:
        file.write("x" * 100 if isinstance(file, io.TextIOWrapper) else b"x" * 100)
"""
FAKE_H5PY = """
import gzip, sys, types

class File:
    mode = "r+"
    def close(self):
        open("closed", "w").close()

h5py = sys.modules["h5py"] = types.ModuleType("h5py")
h5py.File = File
file = File()
"""
BLOCKED = """
import select, subprocess, threading

program = subprocess.Popen(["sleep", "300"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
open("pid", "w").write(str(program.pid))
file = open("result", "w")
file.write("x" * 100)
threading.Thread(target=program.stdin.write, args=(b"x" * (1 << 20),), daemon=True).start()
while select.select([], [program.stdin.fileno()], [], 0)[1]:  # until the pipe is full
    pass
print("done")
"""


def run(folder: Path, script: str, *, seconds: float = 30) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return subprocess.run(
        [sys.executable, rank.__file__, "train.py"],
        cwd=folder,
        env={**os.environ, rank.DONE_VARIABLE: str(folder / "done")},
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds,
        check=True,
    )


def test_files_that_a_script_leaves_open_are_whole(tmp_path: Path) -> None:
    run(tmp_path, LEFT_OPEN)
    data = b"x" * 100
    assert (tmp_path / "random").read_bytes() == data
    assert [path.read_bytes() for path in tmp_path.glob("named*")] == [data]
    assert gzip.decompress((tmp_path / "gzip").read_bytes()) == data
    assert bz2.decompress((tmp_path / "bz2").read_bytes()) == data
    assert lzma.decompress((tmp_path / "lzma").read_bytes()) == data
    with zipfile.ZipFile(tmp_path / "zip") as file:
        assert file.read("entry") == data
    assert gzip.decompress((tmp_path / "text").read_bytes()) == data
    assert gzip.decompress((tmp_path / "wrapped").read_bytes()) == data


def test_hdf5_file_that_a_script_leaves_open_is_closed(tmp_path: Path) -> None:
    run(tmp_path, FAKE_H5PY)
    assert (tmp_path / "closed").exists()


def test_script_ends_while_a_daemon_thread_is_blocked_in_a_write(tmp_path: Path) -> None:
    try:
        ended = run(tmp_path, BLOCKED)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert ended.stdout == "done\n"
    assert (tmp_path / "result").read_text() == "x" * 100
    assert (tmp_path / "done").read_text().startswith("0 ")
