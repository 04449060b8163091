"""Threads of a pool return results in order, end with the pool, and do not delay the exit of the process."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from tests.helpers.until import until

from windlass.train.stream.pool import Pool


def test_results_are_in_the_order_of_their_calls() -> None:
    barrier = threading.Barrier(3)

    def work(number: int) -> int:
        barrier.wait(60)  # requires three threads to work at once
        return number

    assert Pool(3).run(work, [(number,) for number in range(9)]) == list(range(9))


def test_no_calls_have_no_results() -> None:
    assert Pool(1).run(int, []) == []


def test_error_is_raised_and_skips_the_rest_of_its_batch() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 1:
            raise ValueError("number 1")
        done.append(number)

    pool = Pool(1)
    with pytest.raises(ValueError, match="number 1"):
        pool.run(work, [(number,) for number in range(9)])
    assert pool.run(len, [([],)]) == [0], "the pool goes on"
    assert done == [0]


def test_threads_end_with_their_pool() -> None:
    pool = Pool(4)
    idents = set(pool.run(threading.get_ident, [()] * 99))
    del pool
    until(lambda: not idents & {one.ident for one in threading.enumerate()}, "its threads are alive")


def test_process_can_exit_while_a_request_waits() -> None:
    program = (
        "import threading; from windlass.train.stream.pool import Pool\n"
        "pool, begun = Pool(1), threading.Event()\n"
        "pool.submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "begun.wait()"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
