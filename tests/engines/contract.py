"""What every engine promises, in every way of running a job: written once, passed by all.

A new way is a class in the engine's test file:

    class TestWarm(Contract):
        way = Way("local warm", connect, plan, can)

What the ranks of these runs do stands in `behaviours.py`, a script to real engines and a function to the fake one;
what only files can do, in `scripts/`. A case that makes no sense for a way is marked by what it `needs`, and shown as
such in the table at the end of the tests.
"""

from __future__ import annotations

from tests.engines.cases.exits import Exits
from tests.engines.cases.interpreter import Interpreter
from tests.engines.cases.life import Life
from tests.engines.cases.logs import Logs
from tests.engines.cases.placement import Placement
from tests.engines.cases.resume import Resume


class Contract(Placement, Exits, Logs, Life, Resume, Interpreter):
    """All cases."""
