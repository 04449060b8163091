"""Ranks of an attempt that are silent for too long are detected as hung."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.helpers.clock import FakeClock

from windlass.supervise.hang_detection import ANSWER_SECONDS, Silence


class Logs:
    """Logs of two ranks and a manual clock."""

    def __init__(self, folder: Path, hang_seconds: float | None = 10.0) -> None:
        self.clock = FakeClock()
        self.folder = folder
        self.silence = Silence(folder, [0, 1], hang_seconds, self.clock)

    def after(self, seconds: float, written_by: int | None = None) -> bool:
        self.clock.now += seconds
        if written_by is not None:
            with open(self.folder / f"rank-{written_by}.log", "a") as file:
                file.write("x\n")
        return self.silence.is_hang()


def test_stacks_are_requested_once_per_silence(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    assert [logs.after(4) for _ in range(6)] == [False, False, True, False, False, False]


def test_one_rank_that_prints_is_enough_of_a_sign_of_life(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    assert not any(logs.after(8, written_by=1) for _ in range(5))


def test_the_stacks_themselves_are_no_sign_of_life(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    assert logs.after(11)
    assert not logs.after(ANSWER_SECONDS / 2, written_by=0)
    assert logs.silence.seconds > 11


def test_after_a_sign_of_life_a_new_silence_may_begin(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    assert logs.after(11)
    assert not logs.after(20, written_by=0)
    assert logs.after(11)


def test_a_silence_ends_when_a_rank_wrote_again_and_not_when_its_log_came(tmp_path: Path) -> None:
    """The supervisor's laptop was suspended meanwhile, or its cluster did not answer."""
    logs = Logs(tmp_path)
    began = logs.silence.since
    assert logs.after(11)
    index = struct.pack("<QQ", round((began + 15) * 1e9), 2)
    (tmp_path / "rank-0.idx").write_bytes(index)
    assert not logs.after(3600, written_by=0)
    over = logs.silence.over()
    assert over is not None
    assert (over.at, over.seconds) == (began + 15, 15)


def test_without_a_limit_no_silence_is_too_long(tmp_path: Path) -> None:
    assert not Logs(tmp_path, hang_seconds=None).after(1e6)


def test_the_stacks_of_a_node_that_answers_later_are_no_sign_of_life_either(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    assert logs.after(11)
    assert not logs.after(0.3, written_by=1)
    logs.silence.answered([1])
    assert not logs.after(0.3, written_by=0)
    assert logs.silence.seconds > 11
    logs.silence.answered([0])
    assert not logs.after(1, written_by=0)
    assert logs.silence.seconds < 2
