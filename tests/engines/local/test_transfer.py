"""How the end of a process that moves files is told."""

from __future__ import annotations

from typing import cast

import pytest
from tests.helpers.until import until

from windlass.engines.local.transfer import ProcessTransfer
from windlass.errors import EngineError
from windlass.supervise.clock import Clock
from windlass.supervise.transfers import Notes


class Woken:
    """A clock that notes that it was woken."""

    is_woken = False

    def wake(self) -> None:
        self.is_woken = True


@pytest.mark.parametrize(
    ("script", "words"),
    [("kill -9 $$", "killed (SIGKILL): by hand, or by the kernel for want of memory"), ("exit 3", "exit code 3")],
)
def test_a_process_that_dies_is_told_of_in_words(script: str, words: str) -> None:
    transfer, clock = ProcessTransfer(["sh", "-c", script], "process that stages the data"), Woken()
    assert list(transfer.reports(cast("Notes", None), cast("Clock", clock))) == []
    until(lambda: clock.is_woken)
    with pytest.raises(EngineError) as told:
        list(transfer.reports(cast("Notes", None), cast("Clock", clock)))
    assert told.value.message == f"the process that stages the data ended: {words}"
