"""Finds out, without running it, whether a script saves its results only once its loops have ended."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.code.imports import MAX_BYTES, imports

if TYPE_CHECKING:
    from windlass.spec.job import Job

SAVES: Final = frozenset({
    "torch.save", "np.save", "numpy.save", "np.savez", "numpy.savez", "pickle.dump", "joblib.dump", "model.save",
    "save_file", "save_pretrained", "save_weights", "save_model", "save_checkpoint", "save_state",
})  # fmt: skip
"""Calls that write a model, by the end of their names."""
SAVE_BY_THEMSELVES: Final = frozenset({
    "windlass", "lightning", "pytorch_lightning", "transformers", "accelerate", "deepspeed", "ultralytics", "ignite",
    "composer", "keras", "signal",
})  # fmt: skip
"""Modules with loops or callbacks that save, and that by which a script handles SIGTERM."""
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)


def saves_at_end(job: Job, code_dir: Path) -> str:
    """Where the job's script saves, `train.py:40`, if it does so after its loops alone; else, or if unknown, empty."""
    argv = job.script_argv
    if job.script_kind == "program" or argv[0] == "-m":
        return ""
    path = code_dir / argv[0]
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return ""
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ""  # the interpreter reports the error when the script starts
    if SAVE_BY_THEMSELVES & {name.split(".")[0] for name in imports(tree)}:
        return ""
    line = _only_at_end(tree)
    return f"{path.name}:{line}" if line else ""


def _only_at_end(tree: ast.Module) -> int:
    """The line of the first call that saves, where none is in a loop; 0 where one is, or there is none."""
    in_loops = {id(node) for loop in ast.walk(tree) if isinstance(loop, _LOOPS) for node in ast.walk(loop)}
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    repeated: set[str] = set()
    waiting = [node for node in ast.walk(tree) if id(node) in in_loops]
    while waiting:  # what a loop calls is in the loop
        name = _name(waiting.pop()).rpartition(".")[2]
        if name in functions and name not in repeated:
            repeated.add(name)
            inside = list(ast.walk(functions[name]))
            in_loops |= {id(node) for node in inside}
            waiting += inside
    saves = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _saves(node)]
    if not in_loops or any(id(node) in in_loops for node in saves):
        return 0
    return min((node.lineno for node in saves), default=0)


def _saves(node: ast.Call) -> bool:
    name = _name(node)
    return name in SAVES or name.rpartition(".")[2] in SAVES


def _name(node: ast.AST) -> str:
    """`torch.save` of a call; empty for what calls nothing by name."""
    return (
        ast.unparse(node.func) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) else ""
    )
