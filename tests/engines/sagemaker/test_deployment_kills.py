"""A deploy or undeploy that is killed leaves one endpoint at most, which the next one or its end removes."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engines.sagemaker.hosted import HOUR, World, fields, hosted

from windlass.engines.deployments import DeploymentPhase
from windlass.errors import UsageError

SEED, POINTS = 20_261_129, 10
COMMAND = """
import json, pathlib, sys
from windlass.engines.deployments import DeploymentRequest
from windlass.engines.sagemaker.deployments import SageMakerDeployments
from windlass.runs.clock import Clock
from windlass.spec.targets import SageMakerTarget

class QuickClock(Clock):
    def wait(self, seconds):
        super().wait(seconds / 100)

verb, target, model, home, ends_at = json.loads(sys.argv[1])
deployments = SageMakerDeployments(SageMakerTarget(**target), pathlib.Path(home), clock=QuickClock())
request = DeploymentRequest(
    "digits", pathlib.Path(model), ends_at, "ada", run_id="digits-7f3k2", instance="ml.m5.large"
)
if verb == "undeploy":
    deployments.undeploy("digits", print)
else:
    print(deployments.deploy(deployments.plan(request), print).phase)
"""

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]  # a minute or two


POLLS = 3
"""Polls of a deploy that find its endpoint Creating. A time would let the number of calls depend on the machine."""
NEVER = 1e9
OnCall = Callable[[int], None]


def elsewhere(verb: str, world: World, on_call: OnCall) -> subprocess.CompletedProcess[str]:
    """Runs a command in another process; `on_call` gets its process id before and after each call is carried out."""
    given = [verb, fields(), str(world.model), str(world.folder / "home"), world.hosting.time() + 8 * HOUR]
    world.hosting.creating_seconds = NEVER
    polls = 0

    def called(operation: str) -> None:
        nonlocal polls
        polls += operation == "DescribeEndpoint" and bool(world.hosting.endpoints)
        if polls > POLLS:
            world.hosting.creating_seconds = 0.0
        on_call(running.pid)

    words = [sys.executable, "-c", COMMAND, json.dumps(given)]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    world.plane.on_call, world.plane.on_answer = called, lambda operation: on_call(running.pid)
    said, _ = running.communicate(timeout=120)
    world.plane.on_call = world.plane.on_answer = lambda operation: None
    world.hosting.creating_seconds = 60.0
    return subprocess.CompletedProcess((), running.returncode, said)


def kill_at(moment: int) -> OnCall:
    """Returns a function that kills the process at its call number `moment`."""
    calls = itertools.count(1)

    def kill(pid: int) -> None:
        if next(calls) == moment:
            os.kill(pid, signal.SIGKILL)

    return kill


def moments_of(verb: str, world: World) -> list[int]:
    """Runs a command undisturbed and returns the calls at which the next ones are killed."""
    seen: list[int] = []
    whole = elsewhere(verb, world, seen.append)
    assert whole.returncode == 0, whole.stdout
    return sorted(random.Random(SEED).sample(range(1, len(seen)), min(POINTS, len(seen) - 1)))


def test_deploy_killed_at_any_call_leaves_one_endpoint_at_most(tmp_path: Path) -> None:
    with hosted(tmp_path) as world:
        for point, moment in enumerate(moments_of("deploy", world)):
            world.reset()
            killed = elsewhere("deploy", world, kill_at(moment))
            assert killed.returncode == -signal.SIGKILL, (moment, killed.stdout)
            assert len(world.hosting.created) <= 1
            if point % 3 == 0:  # the next deploy goes on
                assert world.deploy().phase is DeploymentPhase.READY
                assert world.hosting.created == ["windlass-digits"]
            if point % 3 == 2:  # this machine stays off
                world.hosting.advance(33 * HOUR)
            elif world.objects():
                world.undeploy()
            else:
                with pytest.raises(UsageError):
                    world.undeploy()
            assert world.objects() == [], moment


def test_undeploy_killed_at_any_call_is_completed_by_the_next_one_or_by_the_schedules(tmp_path: Path) -> None:
    with hosted(tmp_path) as world:
        world.deploy()
        for point, moment in enumerate(moments_of("undeploy", world)):
            world.reset()
            world.deploy()
            killed = elsewhere("undeploy", world, kill_at(moment))
            assert killed.returncode == -signal.SIGKILL, (moment, killed.stdout)
            if point % 2:  # this machine stays off
                world.hosting.advance(33 * HOUR)
            elif world.objects():
                world.undeploy()
            assert world.objects() == [], moment
