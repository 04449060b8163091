"""Reads of the environment by imports, in every possible way, and which environments count as equal."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tqdm.utils import envwrap

from windlass.worker.environ_watch import FILTERED, EnvironWatch

INITIAL = {"PATH": "/usr/bin:/bin", "ONE": "1", "TWO": "2", "TERM": "vt100"}


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> EnvironWatch:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in INITIAL.items():
        monkeypatch.setenv(name, value)
    return EnvironWatch(dict(INITIAL))


def seen(watch: EnvironWatch, reads: Callable[[], Any]) -> Any:
    watch.open()
    try:
        return reads()
    finally:
        watch.close()


ONE: dict[str, Callable[[], Any]] = {
    "[]": lambda: os.environ["ONE"],
    "get": lambda: os.environ.get("ONE"),
    "getenv": lambda: os.getenv("ONE"),
    "in": lambda: "ONE" in os.environ,
    "setdefault": lambda: os.environ.setdefault("ONE", "x"),
    "pop": lambda: os.environ.pop("ONE", None),
    "environb": lambda: os.environb[b"ONE"],
    "getenvb": lambda: os.getenvb(b"ONE"),
    "expandvars": lambda: os.path.expandvars("$ONE"),
}


@pytest.mark.parametrize("how", ONE)
def test_a_read_of_one_variable_counts(watch: EnvironWatch, how: str) -> None:
    seen(watch, ONE[how])
    assert watch.names == {"ONE"} or how == "expandvars"
    assert watch.differs(INITIAL) == ""
    assert watch.differs({**INITIAL, "ONE": "other"}) == "ONE"
    assert watch.differs({name: value for name, value in INITIAL.items() if name != "ONE"}) == "ONE"


def test_a_read_of_a_variable_that_is_not_set_counts(watch: EnvironWatch) -> None:
    assert seen(watch, lambda: os.environ.get("THREE")) is None
    assert watch.differs({**INITIAL, "THREE": ""}) == "THREE"


def test_variable_that_is_not_read_does_not_count(watch: EnvironWatch) -> None:
    seen(watch, lambda: os.environ.update(WRITTEN="1"))
    assert watch.differs({**INITIAL, "ONE": "other", "WANDB_NAME": "x", "PATH": "/other", "WRITTEN": "2"}) == ""


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "OMP_PROC_BIND", "TORCH_LOGS", "LC_ALL", "HOME", "PYTHONPATH"])
def test_variables_of_native_libraries_always_count(watch: EnvironWatch, name: str) -> None:
    assert watch.differs({**INITIAL, name: "x"}) == name


def test_variables_of_ranks_and_of_process_groups_do_not_count(watch: EnvironWatch) -> None:
    of_run = {
        "RANK": "1",
        "WINDLASS_RUN_ID": "x",
        "NCCL_SOCKET_IFNAME": "lo",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/run",
    }
    assert watch.differs({**INITIAL, **of_run}) == ""
    seen(watch, lambda: os.environ.get("RANK"))
    assert watch.rank_variable == "RANK"


ALL: dict[str, Callable[[], Any]] = {
    "iteration": lambda: [name for name in os.environ if name.startswith("X")],
    "items": lambda: dict(os.environ.items()),
    "values": lambda: list(os.environ.values()),
    "copy": lambda: os.environ.copy(),
    "dict": lambda: dict(os.environ),
    "union": lambda: os.environ | {},
    "len": lambda: len(os.environ),
    "repr": lambda: repr(os.environ),
    "environb": lambda: dict(os.environb),
    "posix": lambda: sys.modules["posix"].environ.get(b"ONE"),
    "posix copy": lambda: sys.modules["posix"].environ.copy(),
    "a child": lambda: subprocess.run(["/bin/true"], check=True),
}


@pytest.mark.parametrize("how", ALL)
def test_a_read_of_the_whole_environment_makes_each_variable_count(watch: EnvironWatch, how: str) -> None:
    seen(watch, ALL[how])
    assert watch.whole.startswith("tests.worker.test_environ_watch.")
    assert watch.differs({**INITIAL, "WANDB_NAME": "x"}) == "WANDB_NAME"
    if how not in ("dict", "environb"):
        assert watch.differs({**INITIAL, "TERM": "other"}) == "", "else no two terminals would be alike"


def test_child_with_a_given_environment_reads_nothing(watch: EnvironWatch) -> None:
    """ctypes starts ldconfig this way when torch is imported."""
    seen(watch, lambda: subprocess.run(["/bin/true"], check=True, env={"LC_ALL": "C"}))
    assert watch.whole == ""


def test_child_not_started_by_subprocess_reads_all_variables(watch: EnvironWatch) -> None:
    seen(watch, lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0))
    assert watch.whole == "a child process"


def test_path_counts_only_by_the_result_of_a_program_search(watch: EnvironWatch, tmp_path: Path) -> None:
    """torch searches for nvcc: another PATH without nvcc makes no difference."""
    import shutil

    seen(watch, lambda: shutil.which("nvcc"))
    assert watch.differs({**INITIAL, "PATH": str(tmp_path)}) == ""
    (tmp_path / "nvcc").touch(mode=0o755)
    assert watch.differs({**INITIAL, "PATH": str(tmp_path)}) == "PATH"


def test_known_functions_read_only_variables_with_their_prefix(watch: EnvironWatch) -> None:
    code = "import os\ndef envwrap():\n    return {k: v for k, v in os.environ.items() if k.startswith('TQDM_')}\n"
    library: dict[str, Any] = {"__name__": "tqdm.utils"}
    exec(code, library)
    seen(watch, library["envwrap"])
    assert (watch.whole, watch.names) == ("", set())
    assert watch.differs({**INITIAL, "ONE": "other"}) == ""
    assert watch.differs({**INITIAL, "TQDM_DISABLE": "1"}) == "TQDM_DISABLE"


def test_known_functions_have_not_changed() -> None:
    """A function that reads more of the environment in a new version must be removed from the table."""
    source = inspect.getsource(envwrap)
    assert source.count("os.environ") == 1
    assert "os.environ.items() if k.startswith(prefix)" in source
    assert FILTERED["tqdm.utils", "envwrap"] == ("TQDM_",)


def test_variables_in_pth_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    (folder / "a.pth").write_text("/a/path\nimport os; os.environ.get('AT_START')\n")
    (started := EnvironWatch({})).record_start_code()
    assert "AT_START" in started.names
    (folder / "b.pth").write_text("import os; all = dict(os.environ)\n")
    folder.rename(tmp_path / "dist-packages")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "dist-packages")])
    (started := EnvironWatch({})).record_start_code()
    assert started.whole == "b.pth"


def test_close_restores_the_environment_objects(watch: EnvironWatch) -> None:
    before = [type(os.environ), type(os.environb), sys.modules["posix"].environ, subprocess.Popen._execute_child]  # type: ignore[attr-defined]
    seen(watch, lambda: None)
    after = [type(os.environ), type(os.environb), sys.modules["posix"].environ, subprocess.Popen._execute_child]  # type: ignore[attr-defined]
    assert all(one is other for one, other in zip(before, after, strict=True))
