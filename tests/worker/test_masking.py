"""Values of secrets in the output of ranks are masked, wherever reads split them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.diagnose.test_launchers import table

from windlass.worker.capture import Capture
from windlass.worker.masking import FOLDER, VARIABLES, Mask, masked, secret_values
from windlass.worker.ranks import Rank

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 1, in main\n    x()\n'
VALUES = (b"-----BEGIN KEY-----\nabcdef\n", b"my-s3cr3t-token-2", b"hunter2-hunter2", b"s3cr3t-token", b"hunter2-")


@given(
    st.lists(
        st.sampled_from([*VALUES, b"h", b"hunter2", b"\n", b"-----", b"step 7\n", b"s3cr3t-toke", b"s", b"my-", b"n-2"])
    ),
    st.lists(st.integers(1, 12)),
)
def test_split_stream_is_masked_like_the_whole(parts: list[bytes], sizes: list[int]) -> None:
    text = left = b"".join(parts)
    mask, found = Mask(VALUES), b""
    for size in sizes:
        found += mask.feed(left[:size])
        left = left[size:]
        assert not any(value in found for value in VALUES)
    found += mask.feed(left) + mask.end()
    assert found == masked(text, VALUES)


@pytest.mark.parametrize("at", range(17))
@pytest.mark.parametrize("part", [b"abcdefgh", b"456789-1"])
def test_value_containing_another_value_is_masked_completely(part: bytes, at: int) -> None:
    mask = Mask((whole := b"abcdefgh456789-12", part))
    assert mask.feed(whole[:at]) + mask.feed(whole[at:]) + mask.end() == b"***"


def test_overlapping_values_are_both_masked() -> None:
    assert masked(b"a 12345678abcdefgh b", (b"678abcdefgh", b"12345678")) == b"a *** b"


def test_only_possible_beginnings_of_values_are_kept_back() -> None:
    mask = Mask((b"hunter2-hunter2",))
    assert mask.feed(b"step 1\nstep 2 hun") == b"step 1\nstep 2 "
    assert mask.feed(b"dred") == b"hundred"
    assert mask.feed(b"at the end: hunter2") == b"at the end: "
    assert mask.end() == b"hunter2"


def test_values_come_from_named_variables_and_mounted_secrets(tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "PIN", "..data"):
        (tmp_path / name).touch()
    environ = {
        VARIABLES: "SLACK_URL,NOT_SET",
        FOLDER: str(tmp_path),
        "SLACK_URL": "https://hooks/é",
        "HF_TOKEN": "hf-123456\n",
        "PIN": "1234567",
        "PATH": "/usr/bin:/bin",
    }
    assert secret_values(environ) == ("https://hooks/é".encode(), b"hf-123456")
    assert secret_values({"HF_TOKEN": "hf-123456"}) == ()
    assert secret_values({FOLDER: str(tmp_path / "gone")}) == ()


def test_error_file_of_a_rank_is_masked(tmp_path: Path) -> None:
    """Scripts with torchelastic's `@record` write their exception to an error file."""
    error = f"{TRACE}ValueError: hunter2-hunter2 is no token\n"
    record = {"message": {"message": "", "extraInfo": {"py_callstack": error}}}
    (tmp_path / "error.json").write_text(json.dumps(record))
    source, target = os.pipe()
    capture = Capture(source, str(tmp_path), 0, None, secrets=(b"hunter2-hunter2",))
    os.write(target, table(0, "see above", error_file=str(tmp_path / "error.json")).encode())
    os.close(target)
    assert not capture.drain(time.time_ns())
    rank = Rank(0, 1, capture, str(tmp_path / "rank-0.done"))
    rank.exit_code = 1
    tail = rank.failure().tail
    assert "ValueError: *** is no token" in tail
    assert "hunter2" not in tail
    capture.close()


def test_output_of_imported_modules_is_masked(tmp_path: Path) -> None:
    program = (
        "import sys; from windlass.worker import pod, pod_log\n"
        "env = {'TOKEN': 'Beautiful is better', 'WINDLASS_SECRET_VARIABLES': 'TOKEN'}\n"
        "pod._import_ahead(sys.argv[1], {'modules': ['this'], 'env': env}, pod_log.PodLog(int(sys.argv[2])))"
    )
    with (tmp_path / "log").open("wb") as log:
        words = [sys.executable, "-c", program, str(tmp_path), str(log.fileno())]
        subprocess.run(words, check=True, pass_fds=[log.fileno()])
    assert "[w] *** than ugly.\n" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("end", ["eof", "close"])
def test_log_tail_and_echo_are_masked_and_complete(tmp_path: Path, end: str) -> None:
    source, target = os.pipe()
    echoed: list[tuple[str, bytes]] = []
    capture = Capture(source, str(tmp_path), 3, None, lambda *one: echoed.append(one), secrets=(b"hunter2-hunter2",))
    for text in (b"Traceback (most recent call last):\nValueError: hunter2-", b"hunter2 is wrong\nlast hunter2"):
        os.write(target, text)
        assert capture.drain(time.time_ns())
    if end == "eof":
        os.close(target)
        assert not capture.drain(time.time_ns())
    capture.close()
    if end == "close":
        os.close(target)
    shown = b"Traceback (most recent call last):\nValueError: *** is wrong\nlast hunter2"
    assert (tmp_path / "rank-3.log").read_bytes() == shown
    assert b"".join(data for _, data in echoed) == shown
    assert {tag for tag, _ in echoed} == {"3"}
    assert capture.traceback == shown.decode()
    assert capture.tail == shown.decode()
    assert int.from_bytes((tmp_path / "rank-3.idx").read_bytes()[-8:], "little") == len(shown)


def test_output_without_secrets_is_unchanged_wherever_it_is_cut() -> None:
    mask = Mask(())
    assert [mask.feed(b"half a li"), mask.feed(b"ne\n"), mask.end()] == [b"half a li", b"ne\n", b""]
