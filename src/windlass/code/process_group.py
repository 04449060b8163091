"""Finds the first unconditional use of torchrun's variables in a script, without running it.

A script that tests for the variables first (`if int(os.environ.get("RANK", -1)) != -1`) also runs as a single process
without them. Therefore only a use that every run of the script reaches is reported, also inside called functions.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from windlass.code.imports import parsed_files

if TYPE_CHECKING:
    from windlass.spec.job import Job

_CALLS: Final = {"init_process_group", "init_device_mesh", "deepspeed.initialize", "deepspeed.init_distributed"}
_BY_ARGUMENTS: Final = {"init_method", "store", "rank", "world_size"}
"""Keyword arguments of `init_process_group` that replace torchrun's variables."""
_VARIABLES: Final[set[object]] = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_LEAVES: Final = (ast.Return, ast.Break, ast.Continue)
"""Statements that skip the rest of a body without ending the script."""
_CONDITIONAL: Final = (ast.If, ast.IfExp, ast.BoolOp, ast.Lambda, ast.While, ast.For, ast.AsyncFor, ast.Match)
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_Body = tuple[Path, Sequence[ast.stmt]]
"""The statements of a function or of a file, with the path of the file."""


class Need(NamedTuple):
    """A line of the script that needs torchrun's variables."""

    what: str
    """Kind of use: `calls init_process_group` or `reads os.environ['RANK']`."""
    file: str
    line: int


def needs_variables(job: Job, code_dir: Path) -> Need | None:
    """Returns the first line that needs torchrun's variables whenever the job's Python script runs; None if no line
    does.
    """
    functions: dict[str, list[_Body]] = defaultdict(list)
    first: _Body | None = None
    for path, tree in parsed_files(job, code_dir):
        first = first or (path, tree.body)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions[node.name].append((path, node.body))
            elif isinstance(node, ast.ClassDef):
                functions[node.name] += [
                    (path, one.body) for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"
                ]
    try:
        return None if first is None else _first_need(*first, functions, set())
    except RecursionError:
        return None


def _first_need(path: Path, body: Sequence[ast.stmt], functions: dict[str, list[_Body]], seen: set[str]) -> Need | None:
    for node in _always(body):
        if (what := _need(node)) is not None:
            return Need(what, path.name, getattr(node, "lineno", 0))
        called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if called in functions and called not in seen and len(functions[called]) == 1:
            (other,) = functions[called]
            seen.add(called)
            if (found := _first_need(*other, functions, seen)) is not None:
                return found
    return None


def _need(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if not {name, last} & _CALLS:
            return None
        given = {one.arg for one in node.keywords}
        return None if len(node.args) > 1 or None in given or given & _BY_ARGUMENTS else f"calls {last}"
    if not (
        isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant)
    ):
        return None
    is_one = node.slice.value in _VARIABLES and ast.unparse(node.value).endswith("environ")
    return f"reads os.environ['{node.slice.value!s}']" if is_one else None


def _always(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yields the syntax nodes that are always evaluated when the body runs, in order."""
    for statement in body:
        if isinstance(statement, _DEFINITIONS):
            continue
        if isinstance(statement, ast.If):
            if ast.unparse(statement.test) in ("__name__ == '__main__'", "'__main__' == __name__"):
                yield from _always(statement.body)
                continue
            yield from _reached(statement.test)
        elif isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                yield from _reached(item.context_expr)
            yield from _always(statement.body)
        elif isinstance(statement, ast.Try) and not statement.handlers:
            yield from _always(statement.body)
        elif isinstance(statement, ast.For):
            yield from _reached(statement.iter)
        elif not isinstance(statement, (ast.Try, *_CONDITIONAL)):
            yield from _reached(statement)
        if isinstance(statement, ast.If | ast.Try) and any(isinstance(one, _LEAVES) for one in ast.walk(statement)):
            return  # the branch may skip the following statements
        if isinstance(statement, ast.Return | ast.Raise):
            return


def _reached(node: ast.AST) -> Iterator[ast.AST]:
    """Yields a syntax node and the nodes below it that are always evaluated, in the order of evaluation: arguments
    before their call.
    """
    if not isinstance(node, _CONDITIONAL):
        for child in ast.iter_child_nodes(node):
            yield from _reached(child)
        yield node
