"""Fake engine for testing programs that use Windlass: every rank is a thread that calls a function.

    from windlass.engines.fake import FakeEngine

    def play(rank):
        rank.print(f"hello from {rank.rank} of {rank.world_size}")
        if rank.rank == 1:
            raise ValueError("loss is nan")

    run = windlass.run(Job(name="digits", run="train.py", nodes=2), on=FakeEngine(store, play))
    assert run.wait(check=False).cause.rank == 1

Supervisor, record, logs, root cause, restarts and stops work as in a real run. Properties of processes are missing:
there are no pids and no working folder, the environment is in `rank.env` and not in `os.environ`, and a signal takes
effect only when the rank next calls a method of `FakeRank`, not in the middle of a statement.
"""

from __future__ import annotations

from windlass.engines.fake.engine import FakeEngine, FakeTarget, plan
from windlass.engines.fake.rank import FakeRank, FakeSignal, Play

__all__ = ["FakeEngine", "FakeRank", "FakeSignal", "FakeTarget", "Play", "plan"]
