"""Transient errors are distinguished from errors of the program."""

from __future__ import annotations

import pytest

from windlass.worker.protocol import RankFailure
from windlass.worker.root_cause import first_cause
from windlass.worker.tracebacks import is_peer_error

TRACE = 'Traceback (most recent call last):\n  File "/job/train.py", line 7, in <module>\n    f(timeout=3)\n'


def is_transient(tail: str, exit_code: int = 1) -> bool:
    cause = first_cause([RankFailure(0, exit_code, 9.0, tail)])
    assert cause is not None
    return cause.transient


@pytest.mark.parametrize(
    "line",
    [
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://hub/x",
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests",
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation",
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        "OSError: We couldn't connect to 'https://hub' to load this file",
        "TimeoutError: [Errno 110] Connection timed out",
        "OSError: [Errno 116] Stale file handle: '/data/x'",
        "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 98] Address already in use",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
        "sqlite3.OperationalError: database is locked",
        "subprocess.CalledProcessError: Command 'aws s3 cp' returned non-zero exit status 1.",
        "psycopg2.OperationalError: FATAL:  the database system is starting up",
        "RuntimeError: the tracking server at http://10.0.0.5:5000 did not answer",
    ],
)
def test_temporary_error_is_transient(line: str) -> None:
    assert is_transient(f"{TRACE}{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError",
        "AssertionError: 8 heads of 500 dimensions",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'",
        "RuntimeError: saved by 2 data-parallel ranks, loaded by 1: optimizer shards cannot be rearranged",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "ImportError: cannot import name 'Timeout' from 'tools'",
        "KeyError: 'lr'",
    ],
)
def test_an_error_of_the_program_or_its_files_is_not_transient(line: str) -> None:
    assert not is_transient(f"[Gloo] Rank 0 is connected to 1 peer ranks\n{TRACE}{line}\n")


def test_error_caused_by_a_network_error_is_transient() -> None:
    first = f"{TRACE}ConnectionResetError: [Errno 104] Connection reset by peer\n"
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert is_transient(f"{first}{chained}{TRACE}ValueError: no data\n")


@pytest.mark.parametrize(
    ("words", "is_gone_later"),
    [
        ("curl: (6) Could not resolve host: hub", True),
        ("shard 3 has no labels", False),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --timeout", False),
    ],
)
def test_output_of_a_started_program_decides_whether_its_error_is_transient(words: str, is_gone_later: bool) -> None:
    raised = "subprocess.CalledProcessError: Command '['x']' returned non-zero exit status 2."
    assert is_transient(f"{words}\n{TRACE}{raised}\n") == is_gone_later


def test_program_that_gives_up_after_a_network_error_is_transient() -> None:
    assert is_transient("curl: (6) Could not resolve host: hub\ngiving up\n")
    assert not is_transient("no config\ngiving up\n")


def test_refused_arguments_are_never_transient() -> None:
    assert not is_transient("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --timeout 5\n", 2)


def test_only_the_beginning_of_a_long_error_is_compared_with_slow_patterns() -> None:
    assert is_peer_error("RuntimeError: " + "x" * 2000 + "Connection reset by peer")
    assert not is_peer_error("RuntimeError: " + "x" * 5000 + "Connection reset by peer")


@pytest.mark.parametrize(
    ("tail", "exit_code", "failure", "code"),
    [
        ("", -9, "signal", -9),
        ("train.sh: line 3: 71 Killed python train.py\n", 137, "signal", -9),
        (f"{TRACE}ValueError: bad batch\n", 1, "exception", 1),
        ("no config\n", 3, "exit-code", 3),
        ("process 0 terminated with signal SIGSEGV\n", 1, "signal", -11),
    ],
    ids=["signal", "of-a-shell", "exception", "exit-code", "of-a-child"],
)
def test_root_cause_describes_the_process_reported_by_a_shell_or_launcher(
    tail: str, exit_code: int, failure: str, code: int
) -> None:
    cause = first_cause([RankFailure(0, exit_code, 9.0, tail)])
    assert cause is not None
    assert (cause.exit_code, cause.failure, cause.code) == (exit_code, failure, code)
