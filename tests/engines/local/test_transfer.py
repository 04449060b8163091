"""How the end of a process that moves files is told."""

from __future__ import annotations

import types
from typing import cast

import pytest
from tests.helpers.until import until

from windlass.engines.local.transfer import ProcessTransfer
from windlass.errors import EngineError
from windlass.supervise.clock import Clock
from windlass.supervise.transfers import Notes


@pytest.mark.parametrize(
    ("script", "words"),
    [("kill -9 $$", "killed (SIGKILL): by hand, or by the kernel for want of memory"), ("exit 3", "exit code 3")],
)
def test_a_process_that_dies_is_told_of_in_words(script: str, words: str) -> None:
    transfer = ProcessTransfer(["sh", "-c", script], "process that stages the data")
    clock = cast("Clock", types.SimpleNamespace(wake=lambda: None))
    with pytest.raises(EngineError) as told:
        until(lambda: list(transfer.reports(cast("Notes", None), clock)))
    assert told.value.message == f"the process that stages the data ended: {words}"
