"""A pod keeps its outputs until the supervisor has fetched them, if there are any and they are not too large."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.helpers.until import until
from tests.worker.pod_process import Pod

from windlass.worker import output_size, outputs, pod_reuse

KIB = 1 << 10


def test_a_pod_with_outputs_waits_after_a_success_until_it_is_released(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(pod := Pod(tmp_path, "writes100", reuse_wait_seconds=0.0, outputs_max=KIB))
    pod.wait_for("[a] over")
    assert '"outputs": 100' in pod.text()
    pod.process.terminate()  # like the kubelet at the start of the grace period
    assert pod.tell("hold") == pod_reuse.TAKEN
    assert pod.process.poll() is None
    (tmp_path / pod_reuse.RELEASED).touch()  # like `leave`, which would signal process 1
    pod.process.terminate()
    assert pod.wait() == 0


def test_deleted_pod_accepts_no_further_attempt(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(pod := Pod(tmp_path, "writes100", reuse_wait_seconds=0.0, outputs_max=KIB))
    pod.wait_for("[a] over")
    pod.process.terminate()
    until((tmp_path / pod_reuse.LEAVING).exists)
    assert pod.order(2, "ends") == pod_reuse.NOT_TAKEN
    assert pod.process.poll() is None, "its outputs can still be collected"
    assert pod_reuse.leave(str(tmp_path), pod.process.pid) == pod_reuse.TAKEN
    assert pod.wait() == 0
    assert "[0] attempt 2" not in pod.text()


@pytest.mark.parametrize(("how", "outputs_max"), [("ends", KIB), ("writes100", 0)])
def test_a_pod_without_outputs_to_fetch_ends_at_once(
    tmp_path: Path, pods: list[Pod], how: str, outputs_max: int
) -> None:
    pods.append(pod := Pod(tmp_path, how, reuse_wait_seconds=0.0, outputs_max=outputs_max))
    assert pod.wait() == 0
    assert "[a] over" not in pod.text()
    assert '"outputs"' not in pod.text()


def test_a_pod_that_failed_without_outputs_waits_for_those_of_other_nodes(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(pod := Pod(tmp_path, "fails", reuse_wait_seconds=0.0, outputs_max=KIB, world_size=2))
    pod.wait_for("[a] over")  # the Job controller deletes the other pods once this one ends
    assert pod.process.poll() is None
    assert pod.tell("leave") == pod_reuse.TAKEN
    pod.process.terminate()
    assert pod.wait() == 1


def test_a_pod_whose_outputs_are_too_large_ends_and_reports_that(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(pod := Pod(tmp_path, "writes1025", reuse_wait_seconds=0.0, outputs_max=KIB))
    assert pod.wait() == 0
    assert "[a] over" not in pod.text()
    assert "1,025 bytes in 1 files, and at most 1,024" in pod.text()


def test_hold_request_extends_the_wait_of_the_pod(tmp_path: Path) -> None:
    looks: list[int] = []

    def is_leaving() -> bool:
        looks.append(1)
        return len(looks) > 5

    assert pod_reuse.wait(str(tmp_path), 0.0, is_leaving) is None
    assert len(looks) < 5, "its time is over at once"
    looks.clear()
    assert pod_reuse.carry_out(str(tmp_path), ["hold"]) == pod_reuse.TAKEN
    assert pod_reuse.wait(str(tmp_path), 0.0, is_leaving) is None
    assert len(looks) > 5, "it has waited until it was told to leave"
    (tmp_path / pod_reuse.WAIT_UNTIL).write_text(str(time.monotonic() - 1))
    looks.clear()
    pod_reuse.wait(str(tmp_path), 0.0, is_leaving)
    assert len(looks) < 5, "a request does not hold for ever"


def test_a_pod_that_does_not_wait_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_reuse, "STILL_ENDING_SECONDS", 0.0)
    words = ["push-outputs", "pod-0", "1", str(tmp_path)]
    assert pod_reuse.carry_out(str(tmp_path), words) == pod_reuse.NOT_TAKEN
    assert not (tmp_path / "outputs.lock").exists()


def test_links_count_by_their_own_size(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 5000)
    (folder := tmp_path / "out" / "deep").mkdir(parents=True)
    (folder / "file").write_bytes(b"x" * 10)
    (folder / "link").symlink_to("file")
    (tmp_path / "out" / "folder").symlink_to("deep")
    (tmp_path / "out" / "away").symlink_to(tmp_path / "large")
    os.mkfifo(folder / "pipe")
    found = output_size.measure(str(tmp_path / "out"))
    assert (found.files, found.is_within(KIB)) == (4, True)
    assert found.bytes < 500
    assert not output_size.measure(str(tmp_path / "out" / "deep" / "nothing")).is_within(KIB)


def test_too_many_files_are_not_fetched() -> None:
    size = output_size.Size()
    size.files = output_size.MAX_FILES
    assert size.is_within(0)
    size.files += 1
    assert not size.is_within(KIB)


def test_digests_are_equal_only_for_equal_names_contents_and_links(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "a").write_bytes(b"a")
        (folder / "link").symlink_to("deep/a")
    (one / "away").symlink_to("/etc/passwd")  # receivers do not create such links
    (one / "empty").mkdir()
    found = outputs.digest(str(one))
    assert (found, found["files"], found["bytes"]) == (outputs.digest(str(other)), 2, 1)
    (other / "link").unlink()
    (other / "link").symlink_to("deep")
    assert outputs.digest(str(other))["sha256"] != found["sha256"]
    shown = subprocess.run([sys.executable, "-I", "-S", outputs.__file__, "digest", str(one)], capture_output=True)
    assert json.loads(shown.stdout) == found
