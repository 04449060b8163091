"""An attempt's objects are created again while a webhook lags behind, and not after a real refusal."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, cast

import pytest
from tests.helpers.clock import FakeClock

from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment
from windlass.engines.kubernetes.objects.pods import PodId
from windlass.engines.kubernetes.running import attempt_start
from windlass.engines.kubernetes.running.attempt_start import BEHIND_SECONDS, AttemptStart
from windlass.runs.phase import Phase
from windlass.runs.record import Attempt

MADE = {"kind": "TrainJob", "metadata": {"name": "r-1"}}


def created(monkeypatch: pytest.MonkeyPatch, words: str, times: int) -> int:
    """Returns how often a TrainJob is created if the first `times` requests are refused with these words."""
    asked = [0]
    monkeypatch.setattr(attempt_start, "time", FakeClock())

    def create(_manifest: object) -> None:
        asked[0] += 1
        if asked[0] <= times:
            raise Refused(f'admission webhook "vtrainjob.kb.io" denied the request: {words}', "", status=403)

    start = types.SimpleNamespace(_backend=types.SimpleNamespace(create=create))
    AttemptStart._create_last(cast("Any", start), MADE)
    return asked[0]


@pytest.mark.parametrize(
    "words",
    [
        'TrainingRuntime.trainer.kubeflow.org "r-1" not found',
        "runtime 'r-1' not found",
        "unsupported runtime: TrainingRuntime.trainer.kubeflow.org",
    ],
)
def test_creation_is_retried_while_an_operator_does_not_know_the_runtime(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    assert created(monkeypatch, words, times=3) == 4
    with pytest.raises(Refused):  # with a limit
        created(monkeypatch, words, times=round(BEHIND_SECONDS * 20))


def test_other_refusals_are_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused):
        created(monkeypatch, "no team label", times=1)


@pytest.mark.parametrize(("is_resume", "made_for"), [(False, 1), (True, 2)])
def test_restart_reuses_running_pods_and_resume_does_not(
    monkeypatch: pytest.MonkeyPatch, is_resume: bool, made_for: int
) -> None:
    monkeypatch.setattr(attempt_start, "reuse", types.SimpleNamespace(running=lambda *_: {0: {}}))
    before = Attempt(1, 1, Phase.FAILED, 1.0, 2.0, "failure", members=(0,))
    now = Attempt(2, 1, Phase.STARTING, 3.0, members=(0,), is_resume=is_resume)
    start = types.SimpleNamespace(
        _number=2,
        _members=(0,),
        _new_pods=PodAssignment.new(2, 1),
        _client=None,
        _folder=Path("attempt-2"),
        _plan=types.SimpleNamespace(run_id="r", nodes=types.SimpleNamespace(reuse_wait_seconds=60.0)),
        _record=types.SimpleNamespace(status=types.SimpleNamespace(attempts=(before, now))),
    )
    found: Any = AttemptStart._chosen_pods(cast("Any", start))
    assert found == PodAssignment(2, (PodId(made_for, 0),))
