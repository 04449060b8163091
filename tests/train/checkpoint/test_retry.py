"""A restore repeats reads that fail in the file system; tested with a clock that only sleeping advances."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from windlass.train.checkpoint.retry import Retry, seconds_of


@dataclass
class Clock:
    now: float = 0.0
    pauses: list[float] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def retry(self, seconds: float, gives_up: Callable[[], bool] = lambda: False) -> Retry:
        return Retry(seconds, clock=lambda: self.now, sleep=self.sleep, log=self.logged.append, gives_up=gives_up)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def failing_until(clock: Clock, end: float, number: int = errno.ESTALE) -> Callable[[], str]:
    def read() -> str:
        if clock.now < end:
            raise OSError(number, "does not matter", "/ck/manifest.json")
        return "content"

    return read


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_a_read_that_fails_for_a_while_succeeds(clock: Clock, number: int) -> None:
    assert clock.retry(60).call(failing_until(clock, 15, number), "/ck") == "content"
    assert 15 <= clock.now <= 20
    assert clock.pauses == sorted(clock.pauses), "pauses grow"
    assert max(clock.pauses) <= 5
    assert len(clock.logged) == 1
    assert "/ck/manifest.json" in clock.logged[0]
    assert errno.errorcode[number] in clock.logged[0]


def test_the_last_error_is_raised_once_the_time_is_up(clock: Clock) -> None:
    with pytest.raises(OSError, match="does not matter") as raised:
        clock.retry(60).call(failing_until(clock, 1000), "/ck")
    assert raised.value.errno == errno.ESTALE
    assert clock.now == pytest.approx(60)


def test_all_reads_of_a_restore_share_the_time(clock: Clock) -> None:
    retry = clock.retry(60)
    retry.call(failing_until(clock, 40), "/ck")
    healthy_until = clock.now + 500
    clock.now = healthy_until
    with pytest.raises(OSError, match="does not matter"):
        retry.call(failing_until(clock, 10_000), "/ck")
    assert clock.now - healthy_until < 25, "time in which nothing failed is not counted, the rest is"


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EEXIST, errno.ENOTDIR])
def test_a_file_that_is_not_there_or_no_folder_is_no_error_to_repeat(clock: Clock, number: int) -> None:
    with pytest.raises(OSError, match="does not matter"):
        clock.retry(60).call(failing_until(clock, 1, number), "/ck")
    assert clock.pauses == []


def test_a_process_that_is_to_stop_does_not_wait_for_a_disk(clock: Clock) -> None:
    with pytest.raises(OSError, match="does not matter"):
        clock.retry(60, gives_up=lambda: clock.now > 2).call(failing_until(clock, 1000), "/ck")
    assert clock.now < 8


@pytest.mark.parametrize(("text", "seconds"), [("", 60.0), ("0", 0.0), ("2.5", 2.5)])
def test_the_time_is_a_setting(text: str, seconds: float) -> None:
    assert seconds_of({"WINDLASS_CHECKPOINT_RETRY_SECONDS": text}) == seconds


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "soon"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="takes a number of seconds"):
        seconds_of({"WINDLASS_CHECKPOINT_RETRY_SECONDS": text})
