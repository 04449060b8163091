"""What the process of a pod does before its node begins."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.worker import pod, staying

ENV = {"MASTER_ADDR": "first.of.nobody.invalid", "WINDLASS_ATTEMPT": "2"}


@pytest.fixture
def outlet() -> Iterator[pod.Outlet]:
    """One that nobody reads."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    yield pod.Outlet(descriptor)
    os.close(descriptor)


def waiting(folder: Path, outlet: pod.Outlet) -> threading.Thread:
    """A pod that waits for the first one's name."""
    thread = threading.Thread(target=pod._wait_for_name, args=(ENV, str(folder), outlet), daemon=True)
    thread.start()
    return thread


def test_a_pod_waits_no_longer_for_the_name_of_one_that_has_done_its_part(tmp_path: Path, outlet: pod.Outlet) -> None:
    thread = waiting(tmp_path, outlet)
    time.sleep(0.5)
    assert thread.is_alive()
    (tmp_path / f"{staying.FIRST_ENDED}2").touch()
    thread.join(20)
    assert not thread.is_alive()


def test_the_end_of_the_first_pod_counts_for_its_own_attempt(
    tmp_path: Path, outlet: pod.Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod, "NAME_SECONDS", 1.0)
    (tmp_path / f"{staying.FIRST_ENDED}1").touch()
    with pytest.raises(OSError, match=r"the name first\.of\.nobody\.invalid is not known after 1 s"):
        pod._wait_for_name(ENV, str(tmp_path), outlet)
