"""The cache of a node keeps its limit even after kills, and evicts nothing that is in use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.train.stream import cache as caches
from windlass.train.stream.cache import Cache
from windlass.train.stream.errors import StreamError


def on_disk(folder: Path) -> int:
    found = 0
    for one in folder.rglob("blocks/*"):
        with contextlib.suppress(FileNotFoundError):  # the file was renamed meanwhile
            found += one.stat().st_size
    return found


def test_cached_block_is_read_by_ranges(tmp_path: Path) -> None:
    found = Cache(tmp_path).set("a")
    assert found.get("block", 0, 3) is None
    assert found.put("block", b"abcdef")
    assert found.get("block", 2, 3) == b"cde"
    assert found.get("block", 4, 3) is None, "of a block that is too short"
    assert Cache(tmp_path).set("a").get("block", 0, 6) == b"abcdef"
    assert Cache(tmp_path).set("b").get("block", 0, 6) is None


def test_limit_is_kept_without_evicting_used_blocks(tmp_path: Path) -> None:
    found = Cache(tmp_path, 1000).set("a")
    assert [found.put(f"{number}", bytes(300)) for number in range(4)] == [True, True, True, False]
    assert found.get("0", 0, 300) is not None
    assert on_disk(tmp_path) == 900
    assert found.is_full


def test_unused_sets_are_evicted_in_order_of_last_use(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new")):
        one = Cache(tmp_path, 1000).set(name)
        assert one.put("block", bytes(400))
        os.utime(one.folder / "used", (number + 1, number + 1))
        del one
    in_use = Cache(tmp_path, 1000).set("in use")
    assert in_use.put("block", bytes(100))
    os.utime(in_use.folder / "used", (0, 0))
    found = Cache(tmp_path, 1000).set("next")
    assert found.put("block", bytes(400))
    assert in_use.get("block", 0, 100) is not None
    assert Cache(tmp_path).set("old").get("block", 0, 400) is None
    assert Cache(tmp_path).set("new").get("block", 0, 400) is not None


def test_block_of_a_killed_process_is_written_by_another(tmp_path: Path) -> None:
    found = Cache(tmp_path, 1000).set("a")
    program = (
        "import os, signal, sys; from pathlib import Path; from windlass.train.stream import cache\n"
        "cache.os.pwrite = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "cache.Cache(Path(sys.argv[1]), 1000).set('a').put('block', bytes(800))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode < 0
    assert found.get("block", 0, 800) is None
    assert found.put("block", b"x" * 900), "what the other had taken counts once"
    assert found.get("block", 0, 900) == b"x" * 900
    assert found.cache.usage() == on_disk(tmp_path) == 900


def test_count_that_is_too_high_is_corrected_before_a_block_is_refused(tmp_path: Path) -> None:
    found = Cache(tmp_path, 1000).set("a")
    (tmp_path / "usage").write_text("999")
    assert found.put("block", bytes(900))
    (tmp_path / "usage").write_text("no number")
    assert not found.put("other", bytes(200))


def test_block_is_renamed_while_no_other_process_counts(tmp_path: Path) -> None:
    """A count lists the folder and then stats each file; a file renamed in between would be missed."""
    program = (
        "import fcntl, os, sys; from pathlib import Path; from windlass.train.stream.cache import Cache\n"
        "def hook(event, arguments):\n"
        "    if event == 'os.rename':\n"
        "        with open(Path(sys.argv[1]) / 'usage') as count:\n"
        "            try:\n"
        "                fcntl.flock(count, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "            except BlockingIOError:\n"
        "                print('locked')\n"
        "sys.addaudithook(hook)\n"
        "print(Cache(Path(sys.argv[1]), 1000).set('a').put('block', bytes(800)))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["locked", "True"]


def test_blocks_written_before_a_reboot_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Cache(tmp_path, 1000).set("a")
    assert found.put("block", bytes(900))
    monkeypatch.setattr(caches, "BOOT_ID", tmp_path / "boot")
    (tmp_path / "boot").write_text("another")
    assert Cache(tmp_path, 1000).set("a").get("block", 0, 900) is not None, "in use: it was written since"
    del found
    again = Cache(tmp_path, 1000).set("a")
    assert again.get("block", 0, 900) is None
    assert again.put("block", bytes(900))


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StreamError, match="cache="):
        Cache(tmp_path / "file" / "cache")


@pytest.mark.slow
def test_concurrent_writers_keep_the_common_limit(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from windlass.train.stream.cache import Cache\n"
        "found = Cache(Path(sys.argv[1]), 1_000_000).set(sys.argv[2])\n"
        "sys.stdin.read()\n"
        "print(sum(found.put(f'{sys.argv[3]}{number}', bytes(9_000 + number)) for number in range(200)))"
    )
    in_use = [Cache(tmp_path).set(name) for name in "ab"]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), name, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, name in enumerate("aabb")
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    most = 0
    while any(child.poll() is None for child in children):
        most = max(most, on_disk(tmp_path))
    # Walking a folder is not atomic: for each of the four processes it may count a removed file and its replacement.
    assert most <= 1_000_000 + len(children) * 10_000
    kept = 0
    for child in children:
        assert child.stdout is not None
        with child.stdout as said:
            kept += int(said.read())
    assert kept == len(list(tmp_path.rglob("blocks/*"))) >= 90
    assert 980_000 < on_disk(tmp_path) <= 1_000_000
    assert all(one.folder.exists() for one in in_use)
