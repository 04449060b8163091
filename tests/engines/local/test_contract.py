"""The contract on this machine. A way is a class."""

from __future__ import annotations

import pytest
from tests.engines.cases.setup import StoppedSetup
from tests.engines.contract import Contract
from tests.engines.harness import Aspect, Can, Harness, Way
from tests.engines.local.planning import plan_local, starts

from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.warm_pool import WarmPool


@pytest.mark.slow
class TestCold(Contract):
    way = Way(
        "local cold",
        LocalEngine,
        plan_local,
        frozenset(Can),
        {"start": "cold"},
        differs_in=frozenset({Aspect.START, Aspect.ENDS, Aspect.SIGNALS, Aspect.OUTPUT}),
    )

    def test_ranks_were_started_cold(self, harness: Harness) -> None:
        assert starts(harness) == {"cold"}


class TestWarm(Contract):
    way = Way(
        "local warm",
        LocalEngine,
        plan_local,
        frozenset(Can),
        {"warm": ["json"]},
        {"warm": ["torch"]},
        clean_up=lambda home: WarmPool(home).stop(),
        has_every_value=True,
    )

    def test_ranks_were_forked(self, harness: Harness) -> None:
        assert starts(harness) == {"warm"}


class TestSetup(StoppedSetup):
    way = TestWarm.way
