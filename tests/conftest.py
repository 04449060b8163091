"""What all tests share: readable failures in shared cases, and the table of the contract."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.engines import matrix
from tests.faults.machine import Machine, machine_in

from windlass.engines.ahead import SWITCH

# A busy machine is slow, not wrong: examples have no time limit of their own.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# In the background of a script, or under nohup, these are ignored, and so they would be by all that the tests start.
for number, action in (
    (signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL)
):  # fmt: skip
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, action)

# A home of its own for each test would be as many processes with all imports; those who mean them begin them.
os.environ[SWITCH] = "0"

for module in ("placement", "exits", "logs", "life", "interpreter", "mpi"):
    pytest.register_assert_rewrite(f"tests.engines.cases.{module}")
pytest.register_assert_rewrite("tests.engines.lab")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Commands in a home of their own, with nothing left running after the test."""
    with machine_in(tmp_path) as made:
        yield made


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*abilities): a case of the contract for ways that can do this")
    config.addinivalue_line("markers", "essential: a case of the contract that variants of a way run too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of the contract that make no sense for a way, or are not essential for a variant of one."""
    left_out = [item for item in items if _lacks(item) or _is_repeated(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _lacks(item: pytest.Item) -> bool:
    way = getattr(getattr(item, "cls", None), "way", None)
    return way is not None and any(set(marker.args) - way.can for marker in item.iter_markers("needs"))


def _is_repeated(item: pytest.Item) -> bool:
    """Whether a case of the contract says nothing new of a variant; `CONTRACT=whole` runs these too."""
    way = getattr(getattr(item, "cls", None), "way", None)
    if way is None or not way.is_variant or os.environ.get("CONTRACT") == "whole":
        return False
    name = getattr(item, "originalname", item.name)
    return hasattr(matrix.contract(), name) and item.get_closest_marker("essential") is None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Cases × ways: passed, failed, or – where a case makes no sense for a way (`Can` in tests/engines/lab.py)."""
    stats = {outcome: terminalreporter.stats.get(outcome, []) for outcome in matrix.MARKS}
    found = [one for outcome, reports in stats.items() for one in matrix.results(reports, outcome)]
    if not found:
        return
    nodeids = [report.nodeid for reports in stats.values() for report in reports]
    matrix.keep(matrix.gathered([*matrix.left_out(nodeids), *found]))
    terminalreporter.section("contract: cases × ways")
    for line in matrix.table(matrix.gathered(found)):
        terminalreporter.write_line(line)
