"""`windlass.submit` runs a function of an importable module, and returns its result."""

from __future__ import annotations

import functools
import importlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import windlass
from windlass.actions.functions import function_job
from windlass.code.imports import script_imports
from windlass.runs.context import Context
from windlass.train.call import FOLDER

MODULE = """
import os
import numpy

class Trainer:
    @staticmethod
    def fit(): ...

def fit(rate, *, text=""):
    if rate < 0:
        raise ValueError(f"no rate of {rate}")
    return {"rank": int(os.environ["WINDLASS_RANK"]), "rate": rate, "text": text}

def model():
    return numpy.zeros(3)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "code" / "pkg").mkdir(parents=True)
    (tmp_path / "code" / "pkg" / "__init__.py").touch()
    (tmp_path / "code" / "pkg" / "training.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "code")
    yield importlib.import_module("pkg.training")
    for name in ("pkg", "pkg.training"):
        del sys.modules[name]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context({**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)


def test_results_of_all_ranks_are_returned(module: ModuleType, context: Context) -> None:
    text = "$HOME ~ 'x' \n `ls` é"
    run = windlass.submit(module.fit, 0.5, text=text, job={"nodes": 2}, context=context)
    assert run.result() == {"rank": 0, "rate": 0.5, "text": text}
    assert run.results() == [{"rank": rank, "rate": 0.5, "text": text} for rank in (0, 1)]
    with pytest.raises(windlass.UsageError, match=r"fit-.* has no rank 2"):
        run.result(rank=2)
    path = run.output_dir / FOLDER / "rank-1.json"
    for text in ('{"attem', "[]", "{}", "\udcff"):
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(
            windlass.UsageError, match=r"the result of rank 1 of fit-.* is not as windlass.submit writes"
        ):
            run.result(rank=1)
    path.write_text(json.dumps({"attempt": 7, "value": 1}))
    with pytest.raises(windlass.UsageError, match="has no result of attempt 1, which was the last"):
        run.results()


def test_exception_of_the_function_is_in_the_error_of_the_run(module: ModuleType, context: Context) -> None:
    run = windlass.submit(module.fit, -1, context=context)
    with pytest.raises(windlass.RunFailed, match="ValueError: no rate of -1") as failed:
        run.result()
    assert failed.value.run == run
    assert failed.value.diagnosis is not None
    assert failed.value.diagnosis.verdict.code == "exception"


def test_result_that_is_not_json_is_refused_and_the_run_succeeds(module: ModuleType, context: Context) -> None:
    run = windlass.submit(module.model, context=context)
    assert run.wait().phase == "succeeded"
    with pytest.raises(windlass.UsageError, match="a value of type ndarray"):
        run.result()


def test_the_job_has_the_name_of_the_function_and_the_folder_of_its_package(module: ModuleType, tmp_path: Path) -> None:
    job = function_job(module.fit, (1,), {}, {"nodes": 3})
    assert (job.name, job.code, job.nodes.max) == ("fit", str(tmp_path / "code"), 3)
    assert shlex.split(str(job.run))[:3] == ["-m", "windlass.train.call", "pkg.training:fit"]
    assert script_imports(job, tmp_path / "code") == ("numpy", "os")
    assert function_job(module.Trainer.fit, (), {}, {"name": "other", "code": "."}).name == "other"


def test_code_folder_of_an_installed_function_is_the_working_folder() -> None:
    assert function_job(pytest.approx, (1,), {}, {}).code == "."
    assert function_job(json.dumps, (1,), {}, {}).code == "."


def in_main() -> None: ...


in_main.__module__ = "__main__"


def renamed() -> None: ...


renamed.__qualname__ = "gone"


def maker() -> Callable[[], None]:
    def made() -> None: ...

    return made


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: 1, "a lambda"),
        (maker(), "made, defined inside another function"),
        (functools.partial(maker), "a value of type partial, which has no name in a module"),
        (3, "a value of type int"),
        (renamed, f"gone, and {__name__}.gone is something else"),
        (in_main, "in_main, defined in the script or notebook that runs now (__main__)"),
    ],
)
def test_function_that_ranks_cannot_import_is_refused(function: Any, why: str) -> None:
    with pytest.raises(windlass.UsageError) as refused:
        function_job(function, (), {}, {})
    assert refused.value.message.startswith(f"a rank could not import this function: it is {why}")
    assert "define it in a module" in refused.value.hint


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("function", [coroutine, generator])
def test_generator_and_coroutine_functions_are_refused(function: Any) -> None:
    with pytest.raises(windlass.UsageError, match=f"{function.__name__} is a {function.__name__} function"):
        function_job(function, (), {}, {})


def filled(function: Callable[[int], int]) -> Callable[[], int]:
    @functools.wraps(function)
    def called() -> int:
        return function(1)

    return called


@filled
def decorated(value: int) -> int:
    return value


def test_arguments_that_do_not_match_the_signature_are_refused(module: ModuleType) -> None:
    with pytest.raises(windlass.UsageError, match="fit does not take these arguments: missing a required argument"):
        function_job(module.fit, (), {"text": "a"}, {})
    assert function_job(decorated, (), {}, {}).name == "decorated", "its decorator gives it the argument"


@pytest.mark.parametrize("value", [(1, 2), {1: "a"}, {"a": object()}, float("nan"), b"bytes", Path("a")])
def test_arguments_that_json_would_change_are_refused(value: Any) -> None:
    with pytest.raises(windlass.UsageError, match=f"argument 2 is of type {type(value).__name__}"):
        function_job(json.dumps, (1, value), {}, {})
    with pytest.raises(windlass.UsageError, match=f"argument data is of type {type(value).__name__}"):
        function_job(json.dumps, (), {"data": value}, {})


def test_arguments_that_are_too_long_for_a_command_line_are_refused() -> None:
    with pytest.raises(windlass.UsageError, match="65,536 are the most"):
        function_job(json.dumps, ("x" * 70_000,), {}, {})


def test_an_argument_that_looks_like_a_secret_is_refused(context: Context) -> None:
    with pytest.raises(windlass.JobFileError, match="holds what looks like a secret"):
        windlass.submit(json.dumps, "ghp_" + "a" * 36, context=context)


def test_job_fields_that_run_something_else_are_refused() -> None:
    with pytest.raises(windlass.UsageError, match="run is a field of job"):
        function_job(json.dumps, (), {}, {"run": "train.py"})
