"""Fake engine, to test programs that drive Windlass: every rank is a thread that calls a function.

    from windlass.engines.fake import FakeEngine

    def play(rank):
        rank.print(f"hello from {rank.rank} of {rank.world_size}")
        if rank.rank == 1:
            raise ValueError("loss is nan")

    run = windlass.run(Job(name="digits", run="train.py", nodes=2), on=FakeEngine(store, play))
    assert run.wait(check=False).cause.rank == 1

Supervisor, record, logs, root cause, restarts and stops are those of a real run. Features of a process are not
available: pids, a working folder, an environment in `os.environ` (it is in `rank.env`), and a kill in the middle of a
statement: a signal reaches a rank when it next calls one of `FakeRank`'s methods.
"""

from __future__ import annotations

from windlass.engines.fake.engine import FakeEngine, FakeTarget, plan
from windlass.engines.fake.rank import FakeRank, FakeSignal, Play

__all__ = ["FakeEngine", "FakeRank", "FakeSignal", "FakeTarget", "Play", "plan"]
