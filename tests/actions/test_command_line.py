from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.actions.command_line import caller_of, find_python
from windlass.actions.jobs import read_job
from windlass.errors import JobFileError
from windlass.runs.context import Context
from windlass.spec.text_file import read_text
from windlass.spec.wrappers import PythonEnvironment


def made(folder: Path) -> str:
    """Creates an interpreter in an environment in this folder."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    return str(python)


def test_project_environment_is_found_from_subfolders(tmp_path: Path) -> None:
    made(tmp_path / ".venv")
    (tmp_path / "src").mkdir()
    uv = PythonEnvironment("uv run")
    assert find_python(uv, Context({}, tmp_path)) == ".venv/bin/python"
    assert find_python(uv, Context({}, tmp_path / "src")) == str(tmp_path / ".venv/bin/python")
    (tmp_path / "src" / "pyproject.toml").write_text("")
    assert find_python(uv, Context({}, tmp_path / "src")) is None
    assert find_python(PythonEnvironment("uv run", path=".."), Context({}, tmp_path / "src")) is not None


def test_project_environment_takes_precedence_over_the_active_one(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    context = Context({"VIRTUAL_ENV": str(tmp_path / "active")}, tmp_path)
    made(tmp_path / "active")
    assert find_python(PythonEnvironment("poetry run"), context) == "active/bin/python"
    made(tmp_path / ".venv")
    assert find_python(PythonEnvironment("poetry run"), context) == ".venv/bin/python"


def test_conda_environments_are_found_by_name_path_and_list(tmp_path: Path) -> None:
    root, other, listed = (tmp_path / name for name in ("conda", "other", "far/listed"))
    pythons = {
        name: made(folder)
        for name, folder in {"base": root, "mine": root / "envs/mine", "other": other, "listed": listed}.items()
    }
    (tmp_path / "home/.conda").mkdir(parents=True)
    (tmp_path / "home/.conda/environments.txt").write_text(f"{root}\n{listed}\n")
    (tmp_path / "cwd").mkdir()
    environ = {"CONDA_EXE": str(root / "bin/conda"), "CONDA_PREFIX": str(other), "HOME": str(tmp_path / "home")}
    context = Context(environ, tmp_path / "cwd")
    for name, python in (("base", "base"), ("mine", "mine"), ("listed", "listed"), ("", "other"), ("none", "")):
        assert find_python(PythonEnvironment("conda run", name), context) == pythons.get(python), name
    assert find_python(PythonEnvironment("conda run", path=str(other)), context) == pythons["other"]


def test_accelerate_settings_are_found_in_the_hugging_face_folder(tmp_path: Path) -> None:
    for name, environ in (("a", {"HF_HOME": "hf"}), ("b", {"XDG_CACHE_HOME": ""}), ("c", {"HOME": ""})):
        home = tmp_path / name
        folder = {"a": home, "b": home / "huggingface", "c": home / ".cache/huggingface"}[name] / "accelerate"
        folder.mkdir(parents=True)
        (folder / "default_config.yaml").write_text("")
        context = Context(dict.fromkeys(environ, str(home)), tmp_path)
        assert caller_of(context, read_text).accelerate_defaults == str(folder / "default_config.yaml")
    assert caller_of(Context({"HOME": os.devnull}, tmp_path), read_text).accelerate_defaults is None


def test_command_line_is_read_with_its_files_and_remarks(tmp_path: Path) -> None:
    made(tmp_path / ".venv")
    (tmp_path / "two.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    words = ["uv", "run", "accelerate", "launch", "--config_file", "two.yaml", "--tee", "3", "train.py"]
    ready = read_job(None, words, {"nodes": 2}, Context({}, tmp_path), rest_given=True)
    assert (ready.job.procs_per_node, ready.job.nodes.max, ready.job.python) == (2, 2, ".venv/bin/python")
    assert [remark.code for remark in ready.remarks] == ["environment-as-it-is", "option-dropped"]
    with pytest.raises(JobFileError, match=r"none\.yaml: cannot be read"):
        read_job(
            None,
            ["accelerate", "launch", "--config_file", "none.yaml", "a.py"],
            {},
            Context({}, tmp_path),
            rest_given=True,
        )


def test_bare_python_is_resolved_by_the_path_on_this_machine_only(tmp_path: Path) -> None:
    ready = read_job(None, ["python", "train.py"], {}, Context({}, tmp_path), rest_given=True)
    assert (ready.job.python, ready.local_job.python) == (None, "python")
    made(tmp_path)
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.write_text("#!/bin/sh\n")
    torchrun.chmod(0o700)
    ready = read_job(None, ["torchrun", "a.py"], {}, Context({"PATH": str(torchrun.parent)}, tmp_path), rest_given=True)
    assert ready.local_job.python == str(tmp_path / "bin" / "python")
    ready = read_job(None, ["torchrun", "a.py"], {}, Context({"PATH": ""}, tmp_path), rest_given=True)
    assert ready.local_job.python is None
    given = read_job(None, ["python", "train.py"], {"python": "/mine"}, Context({}, tmp_path), rest_given=True)
    assert given.local_job.python == "/mine"
