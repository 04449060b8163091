"""Reads scripts that make a training job by the SDK of SageMaker, as syntax: nothing of them is run.

Version 2 has classes as `PyTorch(...)`, whose method `fit` starts the job; version 3 has `ModelTrainer(...)` and
`train`. The arguments of these calls become a document as `{"PyTorch": {...}, "fit": {...}}`. Literals, names that are
assigned once, and calls of the SDK's own configuration classes have values; the rest is an `Expression`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final

from windlass.errors import JobFileError, Problem
from windlass.importers.source import Source
from windlass.spec.places import Path

ESTIMATORS: Final = ("PyTorch", "HuggingFace", "Estimator", "TensorFlow")
TRAINER: Final = "ModelTrainer"
CONFIGS: Final = (
    "Compute", "SourceCode", "StoppingCondition", "InputData", "TrainingInput", "OutputDataConfig", "Networking",
    "CheckpointConfig", "Torchrun", "MPI", "Tag", "S3DataSource", "ResourceConfig", "InstanceGroup", "Channel",
    "DataSource", "RetryStrategy",
)  # fmt: skip
"""Classes whose arguments are values; `ResourceConfig` and others are those of the API."""
STARTS: Final = ("fit", "train")
POSITIONS: Final = {"TrainingInput": ("s3_data",), "fit": ("inputs",), "train": ("input_data_config",)}
WRAPPED: Final = ("Torchrun", "MPI")
"""Those of CONFIGS that say something by their name alone."""
MAX_VALUES: Final = 10_000
"""Of one script: names that stand for lists of names could make any number."""


class Expression(str):
    """What stands where a value would have to be computed; not what it is made of, which may be secret."""

    __slots__ = ()


def is_script(where: str) -> bool:
    """Whether a file is Python, by its name."""
    return where.endswith(".py")


def script(text: str, where: str) -> Source:
    """The call that makes the job, as a document. Raises JobFileError where there is none, or several."""
    try:
        return _read(ast.parse(text), where)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        message = f"cannot be read as Python: {error}"
        raise JobFileError([Problem(f"{where}:{line}", "", message, "check the file")]) from error


def _read(tree: ast.Module, where: str) -> Source:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if name_of(call) in (*ESTIMATORS, TRAINER)]
    if len(made) != 1:
        lines = ", ".join(f"line {call.lineno}" for call in made)
        found = f"makes {len(made)} training jobs ({lines})" if made else "makes no training job"
        hint = f"leave one call of {', '.join(ESTIMATORS)} or {TRAINER} in the file"
        raise JobFileError([Problem(where, "", found, hint)])
    reader = _Reader(tree, where)
    document = {name_of(made[0]): reader.arguments(made[0], (name_of(made[0]),))}
    reader.lines[(name_of(made[0]),)] = made[0].lineno
    for call in calls:
        if name_of(call) in STARTS and isinstance(call.func, ast.Attribute) and name_of(call) not in document:
            document[name_of(call)] = reader.arguments(call, (name_of(call),))
    reader.lines[()] = made[0].lineno
    return Source(document, where, (), reader.lines)


def name_of(call: ast.Call) -> str:
    """The last name of what is called: `PyTorch` of `sagemaker.pytorch.PyTorch(...)`."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


class _Reader:
    """Values of expressions, and the lines at which they are."""

    def __init__(self, tree: ast.Module, where: str) -> None:
        self._where = where
        self.lines: dict[Path, int] = {}
        self._names = dict(_assigned(tree))
        self._open: set[str] = set()
        """Names whose values are being read: a name may stand for itself."""

    def arguments(self, call: ast.Call, path: Path) -> dict[str, Any]:
        """The named arguments of a call, and those by position whose names are known."""
        found = {}
        known = POSITIONS.get(name_of(call), ())
        given: list[tuple[str, ast.expr]] = [
            (known[at] if at < len(known) else f"argument {at + 1}", value) for at, value in enumerate(call.args)
        ]
        given += [(one.arg or f"**{ast.unparse(one.value)[:60]}", one.value) for one in call.keywords]
        for name, value in given:
            found[name] = self._value(value, (*path, name))
        return found

    def _value(self, node: ast.expr, path: Path) -> Any:
        if len(self.lines) >= MAX_VALUES:
            raise JobFileError(
                [Problem(self._where, "", f"has more than {MAX_VALUES} values", "is this the right file?")]
            )
        self.lines[path] = node.lineno
        if isinstance(node, ast.Dict):
            return {str(name): self._value(one, (*path, str(name))) for name, one in self._entries(node)}
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(one, (*path, at)) for at, one in enumerate(node.elts)]
        if isinstance(node, ast.Call) and name_of(node) in CONFIGS:
            name = name_of(node)
            return {name: self.arguments(node, (*path, name))} if name in WRAPPED else self.arguments(node, path)
        if isinstance(node, ast.Name) and node.id in self._names and node.id not in self._open:
            self._open.add(node.id)
            try:
                return self._value(self._names[node.id], path)
            finally:
                self._open.discard(node.id)
        return self._literal(node)

    def _entries(self, node: ast.Dict) -> Iterator[tuple[Any, ast.expr]]:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                yield f"**{ast.unparse(value)[:60]}", value
            else:
                yield self._literal(key), value

    def _literal(self, node: ast.expr) -> Any:
        try:
            found = ast.literal_eval(node)
        except (ValueError, TypeError):
            return Expression(_shown(node))
        return found if isinstance(found, str | int | float | bool | None) else Expression(_shown(node))


def _shown(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return f"{name_of(node)}(…)"
    return ast.unparse(node)[:60] if isinstance(node, ast.Name | ast.Attribute) else "an expression"


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that are assigned once in the whole file, and what to."""
    stores = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Name) and stores.count(target.id) == 1 and isinstance(node, ast.Assign):
                yield target.id, node.value
