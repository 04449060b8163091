"""Nodes with separate networks are killed, cut off and readmitted: every sample is trained once in each epoch."""

from __future__ import annotations

import collections
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.samples import counted, notes_in
from tests.helpers.until import passed, until

from windlass.engines import netns
from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.facts import read_facts
from windlass.engines.local.plan import plan
from windlass.engines.local.warm_pool import WarmPool
from windlass.runs.events import Event
from windlass.runs.logs import RunLogs
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import Store
from windlass.spec.job import Job
from windlass.spec.targets import LocalTarget
from windlass.worker import process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
NUM_SAMPLES = 101
PATIENCE_SECONDS = 200.0
BACK_SECONDS = 10
"""Seconds that a lost node stays away, longer than a busy machine takes to restart the other nodes."""

if os.geteuid() != 0 or shutil.which("ip", path=netns.search_path(os.environ.get("PATH"))) is None:
    pytest.skip("networks are made by root, with iproute2", allow_module_level=True)


class Run:
    """An elastic run of three nodes with separate networks."""

    def __init__(self, home: Path, **fields: Any) -> None:
        self.store = Store(home)
        self.engine = LocalEngine(self.store)
        local = {"netns": True, "back_after": BACK_SECONDS, **fields.pop("local", {})}
        job = Job(
            **{
                "name": "elastic",
                "run": "train.py",
                "nodes": {"min": 1, "max": 3},
                "warm": ["torch"],
                "local": local,
                "checkpoint": {"every": "10 steps"},
                "restarts": {"max": 5},
                "grace": 10,
                "python": sys.executable,
                **fields,
            }
        )
        facts = read_facts(job, base=HERE, home=home, environ=os.environ)
        # A unique id: networks are found by the id of their run, whichever home has its record.
        made = plan(job, LocalTarget(name="local"), facts, f"elastic-{uuid.uuid4().hex[:8]}")
        self.id = made.run_id
        self.looked_at = 0
        """Number of the last attempt that was observed training."""
        self.engine.submit(made)

    @property
    def status(self) -> Status:
        return self.engine.status(self.id)

    @property
    def output(self) -> Path:
        return Path(self.status.output_dir)

    def events(self, kind: str) -> list[Event]:
        return [event for event in self.store.events(self.id) if event.kind == kind]

    def text(self) -> str:
        return "\n".join(
            f"[{line.attempt}.{line.rank}] {line.text}" for line in RunLogs(self.store.run_dir(self.id)).read()
        )

    def until(self, happened: Callable[[], object], what: str) -> None:
        def said() -> str:
            events = self.store.events(self.id)[-12:]
            return f"it did not happen: {what}; {self.status.phase}\n{events}\n{self.text()[-3000:]}"

        def happened_or_over() -> bool:
            if happened():
                return True
            assert not self.status.phase.is_terminal, said()
            return False

        until(happened_or_over, said, PATIENCE_SECONDS)

    def until_trained(self, nodes: list[int], steps: int = 12) -> None:
        """Waits until a new attempt of these nodes has completed some steps and saved a checkpoint.

        The attempt may be over by then: after a checkpoint, a node that was away is readmitted.
        """

        def trained() -> bool:
            begun = self.events("attempt")
            for number in range(self.looked_at + 1, len(begun) + 1):
                after = begun[number].seq if number < len(begun) else sys.maxsize
                saved = [e for e in self.events("checkpoint") if begun[number - 1].seq < e.seq < after]
                if (
                    begun[number - 1].data["members"] == nodes
                    and len(self.seen(number)) >= steps
                    and any(event.data["action"] == "saved" for event in saved)
                ):
                    self.looked_at = number
                    return True
            return False

        self.until(trained, f"nodes {nodes} train")

    def kill_node(self, node: int) -> None:
        """Kills a node's worker and all of its processes, as if its machine had lost power."""
        told = [event for event in self.events("node") if event.data["node"] == node][-1]
        process.kill_session(told.data["pid"])

    def finish(self) -> Status:
        (self.output / "enough").touch()
        status = self.engine.wait(self.id, PATIENCE_SECONDS)
        assert status.phase is Phase.SUCCEEDED, f"{status}\n{self.text()[-3000:]}"
        return status

    def seen(self, attempt: int) -> list[dict[str, Any]]:
        """Returns the steps that the ranks of an attempt recorded."""
        return notes_in(self.output.glob(f"seen-{attempt}-*.jsonl"))

    def counted(self) -> dict[int, collections.Counter[int]]:
        """Returns how many times each sample was trained, by epoch."""
        return counted(note for attempt in self.status.attempts for note in self.seen(attempt.number))

    def close(self) -> None:
        if not self.status.phase.is_terminal:
            self.engine.stop(self.id, now=True)
            self.engine.wait(self.id, PATIENCE_SECONDS)
        self.store.close()
        WarmPool(self.store.home).stop()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "home")
    yield run
    run.close()


def assert_exact(run: Run) -> None:
    """Asserts that each sample counts once in every epoch, and that steps have no gaps."""
    epochs = run.counted()
    assert len(epochs) > 0
    for epoch, counter in epochs.items():
        wrong = {sample: counter[sample] for sample in range(NUM_SAMPLES) if counter[sample] != 1}
        assert not wrong, f"epoch {epoch}: {wrong}"


def test_node_that_is_cut_off_is_detected_and_readmitted_once_reachable(run: Run) -> None:
    run.until_trained([0, 1, 2])
    netns.cut(run.id, 1)
    run.until_trained([0, 2])
    passed(BACK_SECONDS + 1)
    assert run.events("attempt")[-1].data["members"] == [0, 2]
    netns.restore(run.id, 1)
    run.until_trained([0, 1, 2])
    run.finish()
    assert_exact(run)
    assert "reach" in run.events("lost-node")[0].data["why"]


def test_node_of_rendezvous_may_be_killed(run: Run) -> None:
    run.until_trained([0, 1, 2])
    run.kill_node(0)
    run.until_trained([1, 2])
    run.until_trained([0, 1, 2])
    run.finish()
    assert_exact(run)


@pytest.mark.nightly
def test_node_of_rendezvous_may_be_cut_off(run: Run) -> None:
    run.until_trained([0, 1, 2])
    netns.cut(run.id, 0)
    run.until_trained([1, 2])
    run.finish()
    assert_exact(run)


def test_killed_node_is_readmitted_and_uses_no_restart(tmp_path: Path) -> None:
    run = Run(tmp_path / "home", restarts={"max": 0})
    try:
        run.until_trained([0, 1, 2])
        run.kill_node(2)
        run.until_trained([0, 1])
        run.until_trained([0, 1, 2])
        status = run.finish()
        assert_exact(run)
        reasons = [event.data["reason"] for event in run.events("attempt")]
        assert reasons == ["first", "node-loss", "resize"]
        assert [event.data["node"] for event in run.events("lost-node")] == [2]
        assert [event.data["node"] for event in run.events("node-back")] == [2]
        assert status.attempts[1].world_size == 2
    finally:
        run.close()


@pytest.mark.nightly
def test_a_run_of_fixed_size_waits_for_a_node_that_is_cut_off(tmp_path: Path) -> None:
    run = Run(tmp_path / "home", nodes=2)
    try:
        run.until_trained([0, 1])
        netns.cut(run.id, 1)
        run.until(lambda: run.status.phase is Phase.RESTARTING, "the cut is noticed")
        passed(1)
        assert len(run.status.attempts) == 1
        netns.restore(run.id, 1)
        run.until(lambda: len(run.status.attempts) == 2, "both nodes are there")
        run.finish()
        assert_exact(run)
    finally:
        run.close()


@pytest.mark.nightly
def test_script_without_checkpoints_is_not_interrupted_to_grow(tmp_path: Path) -> None:
    run = Run(tmp_path / "home", checkpoint={"every": "1000000 steps"})
    try:
        run.until(lambda: len(run.status.attempts) == 1 and len(run.seen(1)) > 6, "training")
        run.kill_node(2)
        run.until(lambda: len(run.status.attempts) == 2 and len(run.seen(2)) > 6, "two nodes train")
        passed(BACK_SECONDS + 2)
        assert len(run.status.attempts) == 2
        run.finish()
    finally:
        run.close()
