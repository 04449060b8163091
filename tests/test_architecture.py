"""No modules of Windlass import each other in a circle, imports inside functions included."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp
import pytest

import windlass
from windlass.engines import ENGINES


def cycles(graph: grimp.ImportGraph) -> list[list[str]]:
    """The strongly connected components of more than one module, each sorted."""
    reached: dict[str, set[str]] = {}
    for module in graph.modules:
        found: set[str] = set()
        waiting = [module]
        while waiting:
            new = graph.find_modules_directly_imported_by(waiting.pop()) - found
            found |= new
            waiting += new
        reached[module] = found
    together = {frozenset(one for one in reached[module] if module in reached[one]) for module in reached}
    return sorted(sorted(component) for component in together if component)


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = cycles(grimp.build_graph("windlass", exclude_type_checking_imports=True, cache_dir=None))
    assert not found, "\n".join(", ".join(component) for component in found)


def test_a_circle_is_found() -> None:
    graph = grimp.ImportGraph()
    for one, other in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")):
        graph.add_import(importer=one, imported=other)
    assert cycles(graph) == [["a", "b", "c"]]


def test_the_formatter_is_overruled_in_few_tables_alone() -> None:
    """Tables of words and rules, which the formatter would give a line for each value."""
    sources = (Path(windlass.__file__).parent).rglob("*.py")
    overruled = sum(source.read_text().count("# fmt: skip") for source in sources)
    assert overruled < 100


@pytest.mark.parametrize("package", ["actions", "cli", "diagnose", "plan", "runs", "storage", "supervise", "views"])
def test_no_module_outside_engines_compares_with_the_name_of_an_engine(package: str) -> None:
    """A comparison with the name of one engine would leave out the engines of other packages."""
    named = []
    for path in (Path(windlass.__file__).parent / package).rglob("*.py"):
        compared = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Compare)]
        constants = [one for node in compared for one in ast.walk(node) if isinstance(one, ast.Constant)]
        named += [f"{path.name}:{one.lineno}: {one.value}" for one in constants if one.value in ENGINES]
    assert not named
