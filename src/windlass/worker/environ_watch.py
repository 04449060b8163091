"""Records which environment variables imports read. These variables decide which environments the importing process can
serve.

Only reads by Python code can be observed. The variables in `NATIVE`, which native libraries may read, count as read, as
do variables named in start-up code of the interpreter (`.pth` files, `sitecustomize`).
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any

from windlass.worker.process import read_text

PER_RANK = frozenset({
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES",
})  # fmt: skip
PER_RANK_PREFIXES = ("WINDLASS_", "TORCHELASTIC_", "KUBEFLOW_TRAINER_")
"""Prefixes of variables of one rank or run. A process that reads such a variable at import cannot be shared by
ranks."""
OF_GROUPS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_FR_", "TORCH_NCCL_")
"""Prefixes of variables that are read when a process group is created, and never at import. Some differ between
runs."""
PER_TERMINAL = frozenset({
    "PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "WINDOWID", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY",
    "TMUX", "TMUX_PANE", "VSCODE_IPC_HOOK_CLI", "VSCODE_GIT_IPC_HANDLE",
})  # fmt: skip
"""Variables that do not count if an import reads the whole environment, because they differ between terminals."""
NATIVE = (
    # dynamic loader, C library, memory allocators, interpreter
    "LD_", "GLIBC_", "MALLOC_", "TCMALLOC_", "JEMALLOC_", "MIMALLOC_", "PYTHON", "LC_", "LANG", "LOCPATH", "NLSPATH",
    "TZ", "HOME", "TMPDIR", "OPENSSL_", "SSL_",
    # threads and linear algebra
    "OMP_", "GOMP_", "KMP_", "LIBOMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_", "DNNL_",
    "ONEDNN_", "RAYON_", "TBB_",
    # accelerators and communication
    "CUDA_", "CUDNN_", "CUBLAS", "NVIDIA_", "NCCL_", "GLOO_", "UCX_", "HIP_", "HSA_", "ROCM_", "ROCR_", "MIOPEN_",
    "NEURON_",
    # frameworks
    "TORCH", "PYTORCH_", "ATEN_", "C10_", "KINETO_", "TRITON_", "TF_", "XLA_", "JAX_", "ARROW_", "RUST_", "SETUPTOOLS_",
)  # fmt: skip
"""Prefixes of variables that native libraries may read, or the interpreter before it loads Windlass."""
FILTERED = {
    ("tqdm.utils", "envwrap"): ("TQDM_",),
    ("fsspec.config", "set_conf_env"): ("FSSPEC_",),
    ("ctypes.util", "_findLib_gcc"): ("PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_", "CPATH"),
    ("platform", "from_subprocess"): ("PATH",),  # runs `uname -p`
}
"""Functions that read all variables or pass all to a child process, with prefixes of those that affect their result."""
_MAPPINGS = ("os", "_collections_abc", "collections.abc", "subprocess", __name__)
_ITERATIONS = (
    *(view.__iter__.__code__ for view in (ItemsView, ValuesView)),
    *(getattr(type(os.environ), name).__code__ for name in ("copy", "__or__", "__ror__")),
    os.get_exec_path.__code__,
)
"""Code whose reads of single variables are ignored: a read of all variables, or the start of a child, is already
recorded."""
RECORDED = ("", "")
_QUOTED = re.compile(r"""['"]([A-Z][A-Z0-9_]{2,})['"]""")


def lasting(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that have the same value in all ranks of a run."""
    return {name: value for name, value in env.items() if not (_is_per_rank(name) or name.startswith(OF_GROUPS))}


class EnvironWatch:
    """Records reads of the environment between `open` and `close`."""

    def __init__(self, initial: dict[str, str]) -> None:
        """`initial` is the environment with which the process was started."""
        self.initial = initial
        self.names: set[str] = set()
        self.prefixes: set[str] = set()
        self.commands: dict[str, str | None] = {}
        """Paths of programs that imports searched in PATH, by name. A different PATH only matters if these paths
        differ."""
        self.whole = ""
        """Function that read the whole environment; empty if none did."""
        self.rank_variable = ""
        """First variable of a single rank that was read; empty if none was."""

    def open(self) -> None:
        """Starts observing `os.environ`, `os.environb`, `posix.environ`, and the start of child processes, which
        inherit all variables.
        """
        posix: Any = sys.modules["posix"]
        self._plain, self._raw, self._execute = type(os.environ), posix.environ, subprocess.Popen._execute_child  # type: ignore[attr-defined]
        self._children, self._num_children = _faults_of_children(), 0
        watched: Any = _watched(self._plain, self)
        os.environ.__class__ = os.environb.__class__ = watched
        posix.environ = _watched_dict(self)(self._raw)
        subprocess.Popen._execute_child = _watched_start(self._execute, self)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Stops observing the environment."""
        plain: Any = self._plain
        os.environ.__class__ = os.environb.__class__ = plain
        sys.modules["posix"].environ = self._raw  # type: ignore[attr-defined]
        subprocess.Popen._execute_child = self._execute  # type: ignore[attr-defined]
        if not self._num_children and _faults_of_children() > self._children:
            self.whole = self.whole or "a child process"  # a child was started without subprocess

    def differs(self, env: Mapping[str, str]) -> str:
        """Returns the first variable with which imports under `env` could have another result; empty if there
        is none.
        """
        mine, other = lasting(self.initial), lasting(env)
        for name in sorted({*mine, *other}):
            if mine.get(name) != other.get(name) and self._counts(name):
                return name
        mine_path, path = mine.get("PATH"), other.get("PATH")
        if mine_path != path and any(_which(name, path) != found for name, found in self.commands.items()):
            return "PATH"
        return ""

    def _counts(self, name: str) -> bool:
        if name in self.names or name.startswith((*NATIVE, *self.prefixes)):
            return True
        return bool(self.whole) and name not in PER_TERMINAL

    # -- reads --------------------------------------------------------------------------------------------------------

    def record(self, key: object) -> None:
        """Records a read of one variable by the caller's caller."""
        name = os.fsdecode(key) if isinstance(key, (str, bytes)) else ""
        reader, frame = self._reader()
        if not name or reader == RECORDED:
            return
        if reader in FILTERED:
            self.prefixes.update(FILTERED[reader])
        elif _is_per_rank(name):
            self.rank_variable = self.rank_variable or name
        elif name == "PATH" and reader == ("shutil", "which"):
            command = os.fsdecode(frame.f_locals["cmd"])
            self.commands[command] = _which(command, self.initial.get("PATH"))
        else:
            self.names.add(name)

    def record_all(self) -> None:
        """Records a read of the whole environment by the caller's caller."""
        reader, _ = self._reader(is_recorded=False)
        if reader in FILTERED:
            self.prefixes.update(FILTERED[reader])
        else:
            self.whole = self.whole or ".".join(reader)

    def record_child(self, env: object) -> None:
        """Records the start of a child process. The child inherits the whole environment unless `env` is given."""
        self._num_children += 1
        if env is None:
            self.record_all()

    def _reader(self, *, is_recorded: bool = True) -> tuple[tuple[str, str], Any]:
        """Returns module and function of the reader, and its frame. Returns `RECORDED` if another method already
        recorded the read.
        """
        frame: Any = sys._getframe(3)
        while frame.f_back is not None and frame.f_globals.get("__name__") in _MAPPINGS:
            if is_recorded and frame.f_code in _ITERATIONS:
                return RECORDED, frame
            frame = frame.f_back
        while frame.f_back is not None and frame.f_code.co_name.startswith("<") and frame.f_code.co_name != "<module>":
            frame = frame.f_back  # skips the frame of a comprehension
        return (str(frame.f_globals.get("__name__")), frame.f_code.co_name), frame

    def record_start_code(self) -> None:
        """Records variables that start-up code may have read: lines of `.pth` files, `sitecustomize` and
        `usercustomize`.
        """
        texts = list(_start_lines())
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and path.endswith(".py") and _is_of_start(name, path):
                texts.append((name, read_text(path)))
        for where, text in texts:
            if "environ" in text or "getenv" in text:
                names = _QUOTED.findall(text)
                self.names.update(names)
                if not names:
                    self.whole = self.whole or where


def _watched(plain: type, watch: EnvironWatch) -> type:
    class Watched(plain):  # type: ignore[misc]
        def __getitem__(self, name: Any) -> Any:
            watch.record(name)
            return super().__getitem__(name)

        def __delitem__(self, name: Any) -> None:
            watch.record(name)  # counts as a read, because deleting a missing variable raises KeyError
            super().__delitem__(name)

        def __iter__(self) -> Any:
            watch.record_all()
            return super().__iter__()

        def __len__(self) -> Any:
            watch.record_all()
            return super().__len__()

        def __repr__(self) -> Any:
            watch.record_all()
            return super().__repr__()

    return Watched


def _watched_start(execute: Any, watch: EnvironWatch) -> Any:
    def _execute_child(popen: Any, *args: Any) -> Any:
        watch.record_child(args[6])  # `args[6]` is `env` in every Python version from 3.9 on
        return execute(popen, *args)

    return _execute_child


def _faults_of_children() -> int:
    """Returns a counter that grows with each child process that has ended and was waited for."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def _watched_dict(watch: EnvironWatch) -> type:
    """Creates a dict type in which every access is recorded as a read of the whole environment."""

    def noted(name: str) -> Any:
        def method(self: Any, *args: Any, **more: Any) -> Any:
            watch.record_all()
            return getattr(dict, name)(self, *args, **more)

        return method

    names = ("__getitem__", "__iter__", "__len__", "__contains__", "__repr__", "get", "keys", "items", "values", "copy")
    return type("environ", (dict,), {name: noted(name) for name in names})


def _is_per_rank(name: str) -> bool:
    return name in PER_RANK or name.startswith(PER_RANK_PREFIXES)


def _which(command: str, path: str | None) -> str | None:
    import shutil

    return shutil.which(command, path=path or os.defpath)


def _is_of_start(name: str, path: str) -> bool:
    if name.split(".")[0] in ("windlass", "__main__"):
        return False
    return name in ("sitecustomize", "usercustomize") or "site-packages" in path or "dist-packages" in path


def _start_lines() -> Iterator[tuple[str, str]]:
    """Yields the lines of `.pth` files that the interpreter executes at start-up, each with the name of its file."""
    for folder in sys.path:
        if os.path.basename(folder) not in ("site-packages", "dist-packages"):
            continue
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".pth"))
        except OSError:
            continue
        for name in names:
            for line in read_text(os.path.join(folder, name)).splitlines():
                if line.startswith(("import ", "import\t")):
                    yield name, line
