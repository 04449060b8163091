"""What all tests share: readable failures in shared cases, and the table of the contract."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.engines import matrix
from tests.helpers.machine import Machine, machine_in
from tests.helpers.nightly import DRAWS_ALIKE, IS_NIGHTLY

# Where the environment says that no byte code is written, each process of pytest would rewrite and compile all modules
# of the tests, a quarter of a minute each time. What tests start obeys the environment.
sys.dont_write_bytecode = False

# While tests are collected hardly anything becomes garbage.
gc.disable()

# A busy machine is slow, not wrong: examples have no time limit of their own.
settings.register_profile(
    "patient",
    deadline=None,
    max_examples=60,
    derandomize=DRAWS_ALIKE,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")

# In the background of a script, or under nohup, these are ignored, and so they would be by all that the tests start.
for number, action in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, action)

for module in ("placement", "exits", "logs", "life", "interpreter", "mpi"):
    pytest.register_assert_rewrite(f"tests.engines.cases.{module}")
pytest.register_assert_rewrite("tests.engines.harness")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Commands in a home of their own, with nothing left running after the test."""
    with machine_in(tmp_path) as made:
        yield made


@contextlib.contextmanager
def _without_its_name() -> Iterator[None]:
    """Hides the test's name, so that processes of two tests have equal environments and may share a warm process."""
    name = os.environ.pop("PYTEST_CURRENT_TEST", None)
    try:
        yield
    finally:
        if name is not None:
            os.environ["PYTEST_CURRENT_TEST"] = name


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, object, object]:
    with _without_its_name():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    with _without_its_name():
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*abilities): a case of the contract for ways that can do this")
    config.addinivalue_line("markers", "differs(*aspects): a case for variants that differ in these")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of the contract that make no sense for a way, and, but at night, what is `nightly`."""
    left_out = {item for item in items if _lacks(item) or (not IS_NIGHTLY and _is_nightly(item))}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Collects garbage again, but never looks through the thousands of tests: they last until the end."""
    gc.freeze()
    gc.enable()


def _lacks(item: pytest.Item) -> bool:
    way = getattr(getattr(item, "cls", None), "way", None)
    return way is not None and any(set(marker.args) - way.can for marker in item.iter_markers("needs"))


def _is_nightly(item: pytest.Item) -> bool:
    """Whether this is marked `nightly`, or a case of the contract that says nothing new of its way."""
    way = getattr(getattr(item, "cls", None), "way", None)
    if item.get_closest_marker("nightly") is not None:
        return True
    if way is None or not hasattr(matrix.contract(), getattr(item, "originalname", item.name)):
        return False
    aspects = {aspect for marker in item.iter_markers("differs") for aspect in marker.args}
    is_said = bool(aspects & way.differs_in) if aspects else way.is_whole
    return not is_said or not (way.has_every_value or _is_first(item))


def _is_first(item: pytest.Item) -> bool:
    """Whether this is a case without parameters, or with the first value of each."""
    call = getattr(item, "callspec", None)
    return call is None or not any(call.indices.values())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Cases × ways: passed, failed, or – where a case makes no sense for a way (`Can` in tests/engines/harness.py)."""
    stats = {outcome: terminalreporter.stats.get(outcome, []) for outcome in matrix.MARKS}
    found = [one for outcome, reports in stats.items() for one in matrix.results(reports, outcome)]
    if not found:
        return
    nodeids = [report.nodeid for reports in stats.values() for report in reports]
    matrix.keep(matrix.gathered([*matrix.left_out(nodeids), *found]))
    terminalreporter.section("contract: cases × ways")
    for line in matrix.table(matrix.gathered(found)):
        terminalreporter.write_line(line)
