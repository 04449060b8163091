"""A restore repeats reads that fail in the file system; tested with a clock that only sleeping advances."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from tests.helpers.clock import FakeClock

from windlass.train.checkpoint.retry import Retry, seconds_of


def failing_until(clock: FakeClock, end: float, number: int = errno.ESTALE) -> Callable[[], str]:
    def read() -> str:
        if clock.now < end:
            raise OSError(number, "does not matter", "/ck/manifest.json")
        return "content"

    return read


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_read_that_fails_temporarily_succeeds(
    clock: FakeClock, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Retry(60).call(failing_until(clock, 15, number), "/ck") == "content"
    assert 15 <= clock.now <= 20
    assert clock.waits == sorted(clock.waits), "pauses grow"
    assert max(clock.waits) <= 5
    [line] = capsys.readouterr().err.splitlines()
    assert "/ck/manifest.json" in line
    assert errno.errorcode[number] in line


def test_last_error_is_raised_after_the_time_limit(clock: FakeClock) -> None:
    with pytest.raises(OSError, match="does not matter") as raised:
        Retry(60).call(failing_until(clock, 1000), "/ck")
    assert raised.value.errno == errno.ESTALE
    assert clock.now == pytest.approx(60)


def test_all_reads_of_a_restore_share_one_time_limit(clock: FakeClock) -> None:
    retry = Retry(60)
    retry.call(failing_until(clock, 40), "/ck")
    healthy_until = clock.now + 500
    clock.now = healthy_until
    with pytest.raises(OSError, match="does not matter"):
        retry.call(failing_until(clock, 10_000), "/ck")
    assert clock.now - healthy_until < 25, "time in which nothing failed is not counted, the rest is"


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EEXIST, errno.ENOTDIR])
def test_missing_file_is_not_retried(clock: FakeClock, number: int) -> None:
    with pytest.raises(OSError, match="does not matter"):
        Retry(60).call(failing_until(clock, 1, number), "/ck")
    assert clock.waits == []


def test_stopping_process_does_not_wait_for_a_disk(clock: FakeClock) -> None:
    with pytest.raises(OSError, match="does not matter"):
        Retry(60, gives_up=lambda: clock.now > 2).call(failing_until(clock, 1000), "/ck")
    assert clock.now < 8


@pytest.mark.parametrize(("text", "seconds"), [("", 60.0), ("0", 0.0), ("2.5", 2.5)])
def test_time_limit_is_a_setting(text: str, seconds: float) -> None:
    assert seconds_of({"WINDLASS_CHECKPOINT_RETRY_SECONDS": text}) == seconds


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "soon"])
def test_invalid_time_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="takes a number of seconds"):
        seconds_of({"WINDLASS_CHECKPOINT_RETRY_SECONDS": text})
