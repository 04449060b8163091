"""Observations are collected from the record and the logs of a run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.observe import observe
from windlass.plan.plan import NO_PLAN
from windlass.runs.events import entry_of
from windlass.runs.store import Store

REPORT = '::windlass {"step": 119, "loss": 0.02}\n'


def with_log(store: Store, text: str) -> Path:
    """Creates a run whose rank 0 printed this text."""
    with contextlib.closing(
        store.create("a-1", name="a", target="local", output_dir="/o", plan=NO_PLAN.to_text(), time=100.0)
    ) as writer:
        writer.append(entry_of("attempt", {"number": 1, "world_size": 1, "nodes": [[0]]}))
    folder = store.run_dir("a-1") / "attempt-1"
    folder.mkdir()
    (folder / "rank-0.log").write_text(text)
    return folder / "rank-0.log"


@pytest.mark.parametrize(
    ("log", "shown", "has_written"),
    [
        (f"{REPORT}reads rows\n{REPORT}", "reads rows\n", True),
        (f"50%|###  |{REPORT}no room\n", "50%|###  |\nno room\n", True),
        (REPORT * 3, "", True),
        ("", "", False),
    ],
)
def test_reports_of_progress_are_no_output_of_a_rank_and_a_sign_of_it(
    tmp_path: Path, log: str, shown: str, has_written: bool
) -> None:
    with Store(tmp_path) as store:
        os.utime(with_log(store, log), (200.0, 200.0))
        [rank] = observe(store, store.status("a-1")).ranks
    assert (rank.tail, rank.last_output_at) == (shown, 200.0 if has_written else None)


@pytest.mark.parametrize(("after", "last_output_at"), [("", 120.0), ("step 2\n", 200.0), (REPORT, 200.0)])
def test_the_stacks_that_we_requested_are_no_output_of_a_rank(
    tmp_path: Path, after: str, last_output_at: float
) -> None:
    stack = 'Thread 0x1 (most recent call first):\n  File "train.py", line 9 in <module>\nthread 0x1: MainThread\n'
    ranks = [{"rank": 0, "state": "S", "stack": stack}]
    with Store(tmp_path) as store:
        # the time at which a pod's log was fetched
        os.utime(with_log(store, f"step 1\n{stack}{after}"), (200.0, 200.0))
        writer = store.writer("a-1")
        assert writer is not None
        with contextlib.closing(writer):
            hang = {"node": 0, "reason": "silence", "since": 120.0, "seconds": 20.0, "ranks": ranks}
            writer.append(entry_of("hang", hang))
        [rank] = observe(store, store.status("a-1")).ranks
    assert rank.last_output_at == last_output_at


def test_of_a_run_elsewhere_no_file_but_those_of_its_code_is_read_here(tmp_path: Path) -> None:
    """A traceback is output of a pod, and may name any file."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("train()\n")
    (tmp_path / "secret.py").write_text("my secret\n")
    files = ("/pod/code/train.py", f"{tmp_path}/secret.py", "/pod/code/../secret.py", "/pod/codes/train.py")
    frames = "".join(f'  File "{file}", line 1, in main\n    x\n' for file in files)
    with Store(tmp_path / "home") as store:
        with_log(store, f"Traceback (most recent call last):\n{frames}ValueError: bad\n")
        seen = observe(store, store.status("a-1"), moved=("/pod/code", str(tmp_path / "code")))
    assert seen.sources == {"/pod/code/train.py:1": "train()"}


USAGE = "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: fit\n"
CAUSE = {"rank": 0, "exit_code": 2, "summary": f"exit code 2; its last line: {USAGE.splitlines()[-1]}"}
END = ("end", {"phase": "failed", "exit_code": 124, "reason": "timeout"})


def cut(store: Store, *between: tuple[str, dict[str, object]]) -> tuple[str, str, list[str]]:
    """Returns the verdict on a run whose first attempt refused its arguments and whose second ended at its time
    limit.
    """
    with_log(store, USAGE)
    store.run_dir("a-1").joinpath("attempt-2").mkdir()
    told: list[tuple[str, dict[str, object]]] = [
        ("rank", {"rank": 0, "pid": 7}),
        ("cause", CAUSE),
        ("attempt-end", {"reason": "failure", "restarts_left": 1}),
        ("attempt", {"number": 2, "world_size": 1, "nodes": [[0]]}),
        ("rank", {"rank": 0, "pid": 8}),
        *between,
        ("cause", {"summary": "the timeout of 9 s was reached"}),
        END,
    ]
    with contextlib.closing(store.writer("a-1") or pytest.fail("held")) as writer:
        for number, (kind, data) in enumerate(told):
            writer.append(entry_of(kind, data), at=101.0 + number)
    found = diagnose(observe(store, store.status("a-1"))).verdict
    return found.code, found.summary, list(found.evidence)


def test_a_time_limit_does_not_hide_why_the_attempts_before_it_failed(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        code, _, evidence = cut(store)
    assert code == "wrong-arguments"
    assert evidence[-1].startswith("attempt 1 failed at the start; the time limit of 0 s ended attempt 2 before")


def test_a_time_limit_that_ends_a_training_is_the_cause_and_names_the_failures_before(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        code, summary, evidence = cut(store, ("progress", {"step": 3}))
    assert code == "never-printed"
    assert summary.endswith("no rank of attempt 2 had printed a single line")
    assert f"attempt 1 failed: {CAUSE['summary']}" in evidence
