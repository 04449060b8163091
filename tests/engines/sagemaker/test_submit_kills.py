"""A submit that is killed at any of ten points leaves one training job, or none and no run that waits for one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.harness import Harness
from tests.engines.sagemaker.emulated import emulated
from tests.engines.sagemaker.planning import BUCKET, ROLE
from tests.fakeaws.control_plane import REGION, ControlPlane

from windlass.runs.phase import Phase

WINDLASS = Path(sys.executable).with_name("windlass")
SEED, POINTS = 20_261_124, 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Harness, ControlPlane, Path]]:
    folder = tmp_path_factory.mktemp("kills")
    with emulated(folder) as (harness, plane):
        target = {
            "kind": "sagemaker",
            "region": REGION,
            "role": ROLE,
            "storage": f"s3://{BUCKET}/kills",
            "image": "images/train:1",
            "instance": "ml.m5.xlarge",
            "python": sys.executable,
        }
        (folder / "job").mkdir()
        (folder / "job" / "targets.yaml").write_text(json.dumps({"aws": target}))
        (folder / "job" / "train.py").write_text("print('trained')\n")
        yield harness, plane, folder / "job"


def submit(harness: Harness, folder: Path) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "WINDLASS_HOME": str(harness.home)}
    words = [str(WINDLASS), "run", "train.py", "--on", "aws", "--detach", "-q"]
    return subprocess.Popen(words, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_command_killed_at_any_moment_creates_at_most_one_job(
    world: tuple[Harness, ControlPlane, Path],
) -> None:
    harness, plane, folder = world
    began = time.monotonic()
    done = submit(harness, folder)
    said = done.communicate()
    seconds = time.monotonic() - began
    assert done.returncode == 0, said
    [whole] = harness.store.statuses()
    assert harness.engine.wait(whole.id, 120).phase is Phase.SUCCEEDED
    chosen = random.Random(SEED)
    for point in range(POINTS):
        known = {one.id for one in harness.store.statuses()}
        jobs = set(plane.jobs())
        command = submit(harness, folder)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # The point that the command has reached varies from run to run; the assertions hold at every point.
            command.wait(seconds * (point + chosen.random()) / POINTS)
        command.send_signal(signal.SIGKILL)
        command.communicate()
        new = [one.id for one in harness.store.statuses() if one.id not in known]
        assert len(new) <= 1
        for run_id in new:  # the next command continues from the record
            phase = harness.engine.wait(run_id, 120).phase
            assert phase.is_terminal, (point, phase)
            created = sorted(set(plane.jobs()) - jobs)
            if phase is Phase.SUCCEEDED:
                assert created == [f"{run_id}-1"], point
            else:  # the command was killed before its supervisor started, and the record shows that
                assert (phase, created) == (Phase.LOST, []), (point, harness.store.events(run_id))
        if not new:
            assert set(plane.jobs()) == jobs, point
