"""Determines, without running it, whether a script saves its results only after its loops."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.code.imports import imports, parsed_files

if TYPE_CHECKING:
    from windlass.spec.job import Job

SAVES: Final = frozenset({
    "torch.save", "np.save", "numpy.save", "np.savez", "numpy.savez", "pickle.dump", "joblib.dump", "model.save",
    "save_file", "save_pretrained", "save_weights", "save_model", "save_checkpoint", "save_state",
})  # fmt: skip
"""Calls that save a model, by the end of their names."""
SAVE_BY_THEMSELVES: Final = frozenset({
    "windlass", "lightning", "pytorch_lightning", "transformers", "accelerate", "deepspeed", "ultralytics", "ignite",
    "composer", "keras", "signal",
})  # fmt: skip
"""Modules whose training loops or callbacks save; and `signal`, because the script may save on SIGTERM."""
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)


def saves_at_end(job: Job, code_dir: Path) -> str:
    """Returns the line at which the script saves, `train.py:40`, if it saves only after its loops; otherwise empty."""
    path, tree = next(parsed_files(job, code_dir), (code_dir, ast.Module([], [])))
    if SAVE_BY_THEMSELVES & {name.split(".")[0] for name in imports(tree)}:
        return ""
    line = _only_at_end(tree)
    return f"{path.name}:{line}" if line else ""


def _only_at_end(tree: ast.Module) -> int:
    """Returns the line of the first saving call if no saving call is in a loop; else 0."""
    in_loops = {id(node) for loop in ast.walk(tree) if isinstance(loop, _LOOPS) for node in ast.walk(loop)}
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    repeated: set[str] = set()
    waiting = [node for node in ast.walk(tree) if id(node) in in_loops]
    while waiting:  # a function that a loop calls counts as part of the loop
        for name in (_names(waiting.pop()) & functions.keys()) - repeated:
            repeated.add(name)
            inside = list(ast.walk(functions[name]))
            in_loops |= {id(node) for node in inside}
            waiting += inside
    saves = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and SAVES & _names(node)]
    if not in_loops or any(id(node) in in_loops for node in saves):
        return 0
    return min((node.lineno for node in saves), default=0)


def _names(node: ast.AST) -> set[str]:
    """Returns the full and the last name of a called function: `torch.save` and `save`; empty for other nodes."""
    match node:
        case ast.Call(func=ast.Name() | ast.Attribute() as function):
            name = ast.unparse(function)
            return {name, name.rpartition(".")[2]}
    return set()
