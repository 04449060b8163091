"""`python -m windlass.train.call MODULE:FUNCTION JSON`: calls a function in a rank and writes its result as JSON.

`windlass.submit` starts ranks with this program. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from functools import reduce
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER = "windlass-result"
"""Folder in the output directory with one result file for each rank whose function has returned."""


def main(argv: Sequence[str]) -> None:
    """Calls the function with the arguments `{"args": […], "kwargs": {…}}` and writes its result."""
    module, _, name = argv[0].partition(":")
    given = json.loads(argv[1])
    function = reduce(getattr, name.split("."), importlib.import_module(module))
    env = dict(os.environ)  # the environment of this process is copied because the function may change it
    value = function(*given["args"], **given["kwargs"])  # type: ignore[operator]
    if hasattr(value, "__await__") or hasattr(value, "__next__") or hasattr(value, "__anext__"):
        raise TypeError(f"{argv[0]} returned a {type(value).__name__}, which was never run")
    write(value, argv[0], env)


def write(value: object, name: str, env: Mapping[str, str]) -> None:
    """Writes a function's result, or the reason why it cannot be encoded as JSON, to the file that the submitter reads.

    A result that cannot be encoded does not fail the rank, because its training has succeeded.
    """
    found = {"attempt": int(env["WINDLASS_ATTEMPT"])}
    try:
        text = json.dumps({**found, "value": value}, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        text = json.dumps({**found, "refused": str(error)})
        print(f"{name} returned a value that JSON cannot encode ({error}): run.result() will raise", file=sys.stderr)
    path = Path(env["WINDLASS_OUTPUT_DIR"], FOLDER, f"rank-{env['WINDLASS_RANK']}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _plain(value: object) -> object:
    """Converts a NumPy or torch scalar to a number, and a path to text. Raises TypeError for other values."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a value of type {type(value).__name__}")


if __name__ == "__main__":
    main(sys.argv[1:])
