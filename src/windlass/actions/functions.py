"""Creates the job that calls a function of an importable module, and reads the values that the function returned.

Arguments are JSON on the command line of the ranks, and results are JSON in the outputs. This works on any target, and
the record contains arguments and results. Decision 0109 has the reasons.
"""

from __future__ import annotations

import inspect
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from windlass.errors import UsageError
from windlass.train.call import FOLDER

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.spec.job import Job

CALL: Final = "windlass.train.call"
MAX_BYTES: Final = 64 << 10
"""Size limit of the JSON arguments in bytes: Linux allows 128 KiB per command-line argument."""


def function_job(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], fields: Mapping[str, Any]
) -> Job:
    """Returns the job that calls a function in each rank; `fields` are fields of the job. Raises UsageError,
    JobFileError.
    """
    from windlass.spec.job import Job
    from windlass.spec.names import legal_name

    for name in {"run", "command"} & fields.keys():
        raise UsageError(f"{name} is a field of job, and the function is what runs", f"leave {name} out")
    if why := _why_not(function):
        raise UsageError(
            f"a rank could not import this function: it is {why}",
            "define it in a module, such as train.py, and submit it from another file: "
            "from train import fit; windlass.submit(fit)",
        )
    if is_lazy := _is_lazy(function):
        raise UsageError(
            f"{function.__qualname__} is {is_lazy}: a call of it runs nothing",
            "submit a function that runs it, such as one with asyncio.run(…) or list(…)",
        )
    given = _as_json(args, kwargs)
    _require_accepted(function, args, kwargs)
    path = f"{function.__module__}:{function.__qualname__}"
    run = shlex.join(["-m", CALL, path, given])
    known = {"name": legal_name(function.__name__), **({} if (root := _root(function)) is None else {"code": root})}
    return Job(**{**known, **fields, "run": run})


def returned(engine: Engine, run_id: str, rank: int) -> Any:
    """Returns the function's return value in one rank of an ended run. Raises UsageError, EngineError."""
    status = engine.store.status(run_id)
    if rank >= (num_ranks := status.attempts[-1].world_size):
        raise UsageError(f"{run_id} has no rank {rank}", f"its ranks are 0 to {num_ranks - 1}")
    name = f"{FOLDER}/rank-{rank}.json"
    path = Path(status.output_dir, name)
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else _fetched(engine, run_id, name)
        found = json.loads(text)
        attempt = found["attempt"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UsageError(
            f"the result of rank {rank} of {run_id} is not as windlass.submit writes it", f"it is {name} of its output"
        ) from None
    except (OSError, UsageError) as error:
        why = error.message if isinstance(error, UsageError) else str(error.strerror)
        raise UsageError(
            f"rank {rank} of {run_id} has left no result: {why}",
            "only ranks of windlass.submit whose function has returned have one: none after sys.exit(), "
            "os._exit() or exec",
        ) from error
    if attempt != len(status.attempts):
        raise UsageError(f"rank {rank} of {run_id} has no result of attempt {len(status.attempts)}, which was the last")
    if "refused" in found:
        raise UsageError(
            f"rank {rank} of {run_id} returned what JSON does not hold: {found['refused']}",
            "return numbers, text, lists and dicts; write models to WINDLASS_OUTPUT_DIR",
        )
    return found["value"]


def _fetched(engine: Engine, run_id: str, name: str) -> str:
    """Fetches an output file that is not on this machine, and returns its text."""
    from windlass.actions.exec_copy import copied

    with TemporaryDirectory() as folder:
        place = Path(folder, "result.json")
        copied((run_id, f"output/{name}"), None, place, engine.store)
        return place.read_text(encoding="utf-8")


def _why_not(function: object) -> str:
    """Explains why ranks cannot import the function; empty if they can."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not callable(function) or not isinstance(name, str) or not isinstance(module, str):
        return f"a value of type {type(function).__name__}, which has no name in a module"
    if "<lambda>" in name:
        return "a lambda"
    if "<locals>" in name:
        return f"{name.rpartition('.')[2]}, defined inside another function"
    if module in ("__main__", "__mp_main__"):
        return f"{name}, defined in the script or notebook that runs now (__main__)"
    try:
        found: object = reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        found = None
    return "" if found == function else f"{name}, and {module}.{name} is something else"


def _root(function: Callable[..., Any]) -> str | None:
    """Returns the folder from which the function's module is imported; None for an installed module."""
    file = getattr(sys.modules[function.__module__], "__file__", None)
    if file is None or {"site-packages", "dist-packages"} & {*Path(file).parts}:
        return None
    path, words = Path(file).absolute(), function.__module__.split(".")
    root = path.parents[len(words) - (path.stem != "__init__")]
    is_there = (root / Path(*words)).with_suffix(".py") == path or root / Path(*words, "__init__.py") == path
    return str(root) if is_there and not path.is_relative_to(sys.base_prefix) else None


def _is_lazy(function: Callable[..., Any]) -> str:
    """Returns the kind of a function whose call does not run its body, such as a generator; empty for others."""
    kinds = {
        "a coroutine function": inspect.iscoroutinefunction,
        "a generator function": inspect.isgeneratorfunction,
        "an asynchronous generator function": inspect.isasyncgenfunction,
    }
    return next((name for name, is_kind in kinds.items() if is_kind(function)), "")


def _require_accepted(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises UsageError for arguments that the function does not accept."""
    try:
        # Uses the decorator's signature, because a decorator such as hydra.main may change the arguments.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # the signature of some functions in C is unknown
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(
            f"{function.__qualname__} does not take these arguments: {error}", f"it is {function.__name__}{signature}"
        ) from None


def _as_json(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Converts arguments to JSON. Raises UsageError for values that JSON would change."""
    named = {**{str(place): value for place, value in enumerate(args, 1)}, **kwargs}
    for name, value in named.items():
        try:
            is_same = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError):
            is_same = False
        if not is_same:
            raise UsageError(
                f"argument {name} is of type {type(value).__name__}, and JSON does not hold it as it is",
                "pass numbers, text, lists and dicts with text as keys; for anything else, the path of a file",
            )
    # Escapes `$`, so that `$NAME` in an argument is not replaced by a variable of `env`.
    text = json.dumps({"args": list(args), "kwargs": dict(kwargs)}).replace("$", "\\u0024")
    if len(text) > MAX_BYTES:
        raise UsageError(
            f"the arguments take {len(text):,} bytes, and {MAX_BYTES:,} are the most", "pass the path of a file"
        )
    return text
