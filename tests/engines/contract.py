"""The contract of engines: test cases that every engine must pass, in every way of running jobs.

A new way is a class in the tests of its engine:

    class TestWarm(Contract):
        way = Way("local warm", connect, plan, can)

The ranks of these runs execute functions of `behaviours.py`, which is a script for real engines. Behaviour that needs a
file is in `scripts/`. `needs` marks cases that do not apply to every way; the table after the tests shows them as such.
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
