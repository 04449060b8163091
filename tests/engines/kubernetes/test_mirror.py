"""A pod's log becomes the files of a node: no line is lost, none comes twice, whatever happens to reader and stream."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from windlass.engines.kubernetes.mirror import Mirror
from windlass.runs.logs import RunLogs
from windlass.worker.pod import PIECE_BYTES, Outlet


def stream(*told: tuple[str, bytes], same_time: int = 3) -> list[bytes]:
    """The log as the API gives it: of each few lines the time is the same."""
    read, write = os.pipe()
    outlet = Outlet(write)
    lines: list[bytes] = []
    for tag, data in told:
        outlet.put(tag, data)
        got = b""
        while not got.endswith(b"\n"):
            got += os.read(read, 1 << 20)
        lines += got[:-1].split(b"\n")
    os.close(read)
    os.close(write)
    return [
        b"2026-11-21T10:00:%02d.%09dZ %s" % (at // same_time // 10, at // same_time % 10 * 1000 + 7, line)
        for at, line in enumerate(lines)
    ]


def attempt(tmp_path: Path) -> Path:
    return tmp_path / "attempt-1"


def test_each_rank_gets_what_it_wrote_byte_for_byte(tmp_path: Path) -> None:
    told = [("0", b"epoch 1\n45%|##"), ("1", b"\x00\xff not text\n"), ("0", b"##|\r100%\nlast without an end")]
    mirror = Mirror(attempt(tmp_path), 0, [0, 1])
    mirror.take(stream(*told))
    mirror.close()
    assert (attempt(tmp_path) / "rank-0.log").read_bytes() == b"epoch 1\n45%|####|\r100%\nlast without an end"
    assert (attempt(tmp_path) / "rank-1.log").read_bytes() == b"\x00\xff not text\n"


def test_a_line_longer_than_a_container_runtime_keeps_whole_is_whole_again(tmp_path: Path) -> None:
    text = b"x" * (5 * PIECE_BYTES + 17) + b"\n"
    lines = stream(("0", text))
    assert max(map(len, lines)) < 16 << 10
    mirror = Mirror(attempt(tmp_path), 0, [0])
    mirror.take(lines)
    mirror.close()
    assert (attempt(tmp_path) / "rank-0.log").read_bytes() == text


def test_the_merged_log_is_in_the_order_of_the_lines_times(tmp_path: Path) -> None:
    told = [(str(at % 2), b"line %d\n" % at) for at in range(20)]
    mirror = Mirror(attempt(tmp_path), 0, [0, 1])
    mirror.take(stream(*told, same_time=1))
    mirror.close()
    assert [line.text for line in RunLogs(tmp_path).read()] == [f"line {at}" for at in range(20)]


def test_what_is_of_nobody_goes_to_the_words_of_the_node(tmp_path: Path) -> None:
    mirror = Mirror(attempt(tmp_path), 2, [4])
    mirror.take([b"2026-11-21T10:00:00.1Z entrypoint: starting", b"2026-11-21T10:00:00.2+00:00 [w] waiting"])
    mirror.close()
    assert (attempt(tmp_path) / "node-2.out").read_text() == "entrypoint: starting\nwaiting\n"


@pytest.mark.parametrize("seed", range(20))
def test_reconnects_and_crashes_change_nothing(tmp_path: Path, seed: int) -> None:
    """The API gives a log again from the second of the last line on; a reader may die between any two writes."""
    chance = random.Random(seed)
    told = [(chance.choice("01n"), b"%d %s\n" % (at, b"x" * chance.randrange(40))) for at in range(200)]
    lines = stream(*told, same_time=chance.randrange(1, 9))
    mirror = Mirror(attempt(tmp_path), 0, [0, 1])
    done = 0
    while done < len(lines):
        since = mirror.begin()
        start = 0 if since is None else next(at for at, line in enumerate(lines) if line[:19] >= since[:19].encode())
        stop = chance.randrange(max(start, done), len(lines)) + 1
        mirror.take(lines[start:stop])
        done = max(done, stop)
        if chance.random() < 0.5:  # dies: of what it wrote after the cursor, some is on the disk
            mirror.close()
            for name in ("rank-0.log", "node-0.events"):
                with open(attempt(tmp_path) / name, "ab") as file:
                    file.write(b"torn")
            mirror = Mirror(attempt(tmp_path), 0, [0, 1])
    mirror.close()
    for tag, name in (("0", "rank-0.log"), ("1", "rank-1.log"), ("n", "node-0.events")):
        assert (attempt(tmp_path) / name).read_bytes() == b"".join(data for who, data in told if who == tag)


@pytest.mark.parametrize("seed", range(10))
def test_attempts_in_one_pod_are_told_apart(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    told = [
        ("0", b"first\n"), ("a", b"over\n"), ("a", b"2\n"), ("0", b"second\n"), ("n", b"{}\n"), ("a", b"over\n"),
        ("a", b"4\n"), ("0", b"fourth\n"),
    ]  # fmt: skip
    lines = stream(*told, same_time=chance.randrange(1, 9))
    found = {}
    for number in (1, 2, 4):
        folder = tmp_path / f"attempt-{number}"
        mirror = Mirror(folder, 0, [0], number, 1)
        done = 0
        while done < len(lines):
            since = mirror.begin()
            start = (
                0 if since is None else next(at for at, line in enumerate(lines) if line[:19] >= since[:19].encode())
            )
            done = chance.randrange(max(start, done), len(lines)) + 1
            mirror.take(lines[start:done])
            if chance.random() < 0.5:
                mirror.close()
                mirror = Mirror(folder, 0, [0], number, 1)
                done = 0 if mirror.since is None else done
        found[number] = (folder / "rank-0.log").read_text(), mirror.is_told
        mirror.close()
    assert found == {1: ("first\n", True), 2: ("second\n", True), 4: ("fourth\n", False)}
