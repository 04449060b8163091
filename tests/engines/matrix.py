"""Table of the contract: whether each case passed, failed or does not apply in each way, with the reason.

Every run of pytest prints its results and adds them to `.cache/contract.json`. After all ways have been run, `python -m
tests.engines.matrix` writes `docs/reference/contract-matrix.md`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KNOWN = ROOT / ".cache" / "contract.json"
PAGE = ROOT / "docs" / "reference" / "contract-matrix.md"
COLUMNS = (
    "fake",
    "local cold",
    "local warm",
    "kubernetes job, supervised inside",
    *(f"kubernetes {way}" for way in ("job", "jobset", "trainjob", "pytorchjob", "mpijob")),
    "sagemaker-local",
    "sagemaker, emulated",
)
"""Ways that are columns of the page."""
MARKS = {"passed": "✓", "failed": "✗", "error": "✗"}
LEFT_OUT = "–"
Row = dict[str, str]
Cells = dict[str, Row]
"""Results by way and case: a mark, or the reason why the case does not apply."""
HEAD = """<!-- Made by `python -m tests.engines.matrix` from the results of the tests. -->

# The contract of the engines

Every engine passes the same cases, written once (`tests/engines/contract.py`), in every way that it has to run a job:
✓ passed, ✗ failed. Where a case makes no sense for a way, a letter says what the way lacks: see below the table.

The ways on Kubernetes were run on [the test bed](../guides/test-cluster.md), in real pods. `make test`,
`make test-slow`, `make test-cluster` and `make test-operators` print the part of it that they run. The ways on
SageMaker were run in its hosts on this machine, and by an emulated control plane; not in AWS.

CI runs all cases on the fake engine and on this machine (warm). Other ways share supervisor, restarts and record with
these, so CI runs the cases in which they differ (`differs` in `tests/engines/cases/`). Cases with parameters have all
values on the fake engine and on this machine (warm), elsewhere the first. `make nightly` runs everything.
"""


def results(reports: Iterable[Any], outcome: str) -> Iterator[tuple[str, str, str]]:
    """Yields way, case and mark for each report of a contract case."""
    for report in reports:
        path, _, rest = report.nodeid.partition("::")
        owner, _, case = rest.partition("::")
        if (found := _class(path, owner)) is not None and hasattr(contract(), case.partition("[")[0]):
            yield found.way.name, case.removeprefix("test_"), MARKS[outcome]


def left_out(nodeids: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yields way, case and reason for each case that does not apply to the ways of these tests."""
    owners = {tuple(nodeid.split("::")[:2]) for nodeid in nodeids if nodeid.count("::") == 2}
    for path, owner in sorted(owners):
        found = _class(path, owner)
        for name in dir(found) if found is not None else ():
            marks = getattr(getattr(found, name), "pytestmark", ()) if name.startswith("test_") else ()
            lacks = [one for mark in marks if mark.name == "needs" for one in mark.args if one not in found.way.can]
            if lacks:
                yield found.way.name, name.removeprefix("test_"), f"no {lacks[0].value}"


def _class(path: str, owner: str) -> Any:
    """Returns the class of a way, or None if the name is not one."""
    if not path.startswith(("tests/engines/", "tests/cluster/test_contract")) or not owner.startswith("Test"):
        return None
    found = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), owner, None)
    return found if isinstance(found, type) and issubclass(found, contract()) else None


def contract() -> type:
    """Returns all cases. Imported late, because pytest must rewrite the assertions of the modules before their
    import.
    """
    from tests.engines.contract import Contract

    return Contract


def gathered(found: Iterable[tuple[str, str, str]]) -> Cells:
    """Groups results by way and case."""
    cells: Cells = {}
    for way, case, mark in found:
        cells.setdefault(way, {})[case] = mark
    return cells


def table(cells: Cells) -> Iterator[str]:
    """Yields the lines of the printed table: cases × ways."""
    ways, cases = sorted(cells), sorted({case for row in cells.values() for case in row})
    width = max(map(len, cases))
    yield f"{'':{width}}  {'  '.join(ways)}"
    for case in cases:
        marks = (cells[way].get(case, LEFT_OUT) for way in ways)
        shown = ((mark if mark in MARKS.values() else LEFT_OUT, way) for mark, way in zip(marks, ways, strict=True))
        yield f"{case:{width}}  {'  '.join(f'{mark:^{len(way)}}' for mark, way in shown)}".rstrip()


def keep(cells: Cells) -> None:
    """Adds these results to the stored ones."""
    known = read()
    for way, row in cells.items():
        known[way] = {**known.get(way, {}), **row}
    KNOWN.parent.mkdir(exist_ok=True)
    KNOWN.write_text(json.dumps(known, indent=1, sort_keys=True))


def read() -> Cells:
    """Reads the stored results."""
    try:
        found: Cells = json.loads(KNOWN.read_text())
    except (OSError, ValueError):
        return {}
    return found


# -- the page ---------------------------------------------------------------------------------------------------------


def page(cells: Mapping[str, Row]) -> str:
    """Returns the page of the documentation. Parametrized cases are one row, which passes if all values do."""
    merged = {way: _merged(cells.get(way, {})) for way in COLUMNS}
    cases = sorted({case for row in merged.values() for case in row})
    whys = sorted({mark for row in merged.values() for mark in row.values() if mark not in MARKS.values()})
    letters = dict(zip(whys, "abcdefghijklmnopqrstuvwxyz", strict=False))
    lines = [f"| case | {' | '.join(COLUMNS)} |", f"|---|{':-:|' * len(COLUMNS)}"]
    for case in cases:
        marks = (merged[way].get(case, "") for way in COLUMNS)
        lines.append(f"| {case.replace('_', ' ')} | {' | '.join(letters.get(mark, mark) for mark in marks)} |")
    notes = [f"- **{letter}**: this way has {why}" for why, letter in letters.items()]
    return "\n".join([HEAD, *lines, "", *notes, ""])


def _merged(row: Mapping[str, str]) -> Row:
    found: Row = {}
    for case, mark in row.items():
        name = case.partition("[")[0]
        found[name] = mark if found.get(name) != MARKS["failed"] else found[name]
    return found


def main() -> int:
    """Writes the page; returns 1 if a way has not been run."""
    known = read()
    missing = [way for way in COLUMNS if way not in known]
    if missing:
        print(f"not known yet: {', '.join(missing)}; run their tests first", file=sys.stderr)
        return 1
    PAGE.write_text(page(known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
