"""The probe program is run again in its pod if the connection breaks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.helpers.clock import FakeClock

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.reading.preflight import probes


class Pod:
    """Pod that answers after its connection broke a number of times."""

    def __init__(self, breaks: int, lasts: float = 0.0) -> None:
        self.breaks, self.lasts = breaks, lasts
        self.clock, self.asked = FakeClock(), 0

    def answer(self, *_: object) -> dict[str, Any]:
        self.asked += 1
        self.clock.now += self.lasts
        if self.asked <= self.breaks:
            raise Unreachable("the connection was closed", "")
        return {"folder": "/claim"}


def ask(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(probes, "_answer", pod.answer)
    client: Any = object.__new__(Client)
    return dict(probes.ask(client, {}, "python3", {}, pod.clock))


def test_probe_is_retried_after_a_broken_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(pod := Pod(breaks=3), monkeypatch) == {"folder": "/claim"}
    assert (pod.asked, pod.clock.waits) == (4, [probes.AGAIN_SECONDS] * 3)


@pytest.mark.parametrize(("lasts", "asked"), [(0.0, 16), (probes.ASK_SECONDS, 1)], ids=["at once", "by silence"])
def test_probe_without_an_answer_is_given_up(monkeypatch: pytest.MonkeyPatch, lasts: float, asked: int) -> None:
    pod = Pod(breaks=1000, lasts=lasts)
    with pytest.raises(Unreachable):
        ask(pod, monkeypatch)
    assert pod.asked == asked
