"""Rules of the source: imports without circles, names of engines, clocks, sizes of classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions and methods of Windlass."""
    for path in Path(windlass.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def test_clock_is_one_argument() -> None:
    """A function that reads the time and waits takes a `Clock`, not a callable for each."""
    several = []
    for path, function in functions():
        given = [*function.args.args, *function.args.kwonlyargs]
        callables = [one.arg for one in given if one.annotation and "Callable" in ast.unparse(one.annotation)]
        if len({"clock", "cpu_clock", "monotonic", "now", "pause", "sleep", "wait"} & set(callables)) > 1:
            several.append(f"{path.name}:{function.lineno}: {function.name}")
    assert not several


def test_class_with_a_constructor_has_at_most_20_attributes() -> None:
    """Attributes that belong together are a value of their own."""
    large = []
    for path in Path(windlass.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(getattr(one, "name", "") == "__init__" for one in node.body):
                stored = [one for one in ast.walk(node) if isinstance(one, ast.Attribute)]
                own = {
                    one.attr for one in stored if isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "self"
                }
                large += [f"{path.name}: {node.name} has {len(own)}"] if len(own) > 20 else []
    assert not large
