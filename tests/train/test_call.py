"""A rank calls a function and writes its result for the submitting program."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy
import pytest

from windlass.train.call import FOLDER, main, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {"OUTPUT_DIR": str(tmp_path), "RANK": "3", "ATTEMPT": "2"}.items():
        monkeypatch.setenv(f"WINDLASS_{name}", value)
    return tmp_path


def written(folder: Path) -> dict[str, Any]:
    [path] = (folder / FOLDER).iterdir()
    assert path.name == "rank-3.json"
    return dict(json.loads(path.read_text()))


def test_a_function_is_called_with_its_arguments(folder: Path) -> None:
    main(["os.path:join", '{"args": ["a", "b"], "kwargs": {}}'])
    assert written(folder) == {"attempt": 2, "value": "a/b"}


def test_numpy_scalars_and_paths_are_written_as_plain_values(folder: Path) -> None:
    write(
        {"loss": numpy.float32(0.5), "steps": numpy.int64(3), "one": numpy.array(2), "path": Path("/a")},
        "a:f",
        os.environ,
    )
    assert written(folder)["value"] == {"loss": 0.5, "steps": 3, "one": 2, "path": "/a"}


def test_result_that_json_cannot_encode_does_not_fail_the_rank(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write([numpy.zeros(3)], "a:f", os.environ)
    assert written(folder) == {"attempt": 2, "refused": "a value of type ndarray"}
    assert "a:f returned a value that JSON cannot encode" in capsys.readouterr().err


def test_coroutine_or_generator_result_fails_the_rank(folder: Path) -> None:
    with pytest.raises(TypeError, match="builtins:iter returned a list_iterator, which was never run"):
        main(["builtins:iter", '{"args": [[1]], "kwargs": {}}'])
    assert not (folder / FOLDER).exists()
