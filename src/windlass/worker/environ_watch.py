"""Records which variables imports read, so that a process which has imported serves every environment alike in these.

Python code is watched while it imports. Native libraries read variables unseen: those of `NATIVE` count as read. What
code at the start of the interpreter names (`.pth` files, `sitecustomize`) counts too.
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
"""Variables of one rank, or of one run: a module that reads one while it is imported cannot be shared."""
OF_GROUPS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_FR_", "TORCH_NCCL_")
"""Read when a process group is made, which no import does; some differ from run to run."""
PER_TERMINAL = frozenset({
    "PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "WINDOWID", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY",
    "TMUX", "TMUX_PANE", "VSCODE_IPC_HOOK_CLI", "VSCODE_GIT_IPC_HANDLE",
})  # fmt: skip
"""Variables that do not count where an import has copied the whole environment; else no two terminals were alike."""
NATIVE = (
    # the loader, the C library and its memory, the interpreter
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
"""How the names begin that native libraries, or the interpreter before any module of ours, may have read."""
FILTERED = {
    ("tqdm.utils", "envwrap"): ("TQDM_",),
    ("fsspec.config", "set_conf_env"): ("FSSPEC_",),
    ("ctypes.util", "_findLib_gcc"): ("PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_", "CPATH"),
    ("platform", "from_subprocess"): ("PATH",),  # `uname -p`
}
"""Functions that go through all variables, or give all to a child, and how those begin on which they depend."""
_MAPPINGS = ("os", "_collections_abc", "collections.abc", "subprocess", __name__)
_ITERATIONS = (
    *(view.__iter__.__code__ for view in (ItemsView, ValuesView)),
    *(getattr(type(os.environ), name).__code__ for name in ("copy", "__or__", "__ror__")),
    os.get_exec_path.__code__,
)
"""Functions that read values one by one after an iteration, or the start of a child, has been noted."""
NOTED = ("", "")
_QUOTED = re.compile(r"""['"]([A-Z][A-Z0-9_]{2,})['"]""")


def lasting(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that are the same for every rank of a run."""
    return {name: value for name, value in env.items() if not (_is_per_rank(name) or name.startswith(OF_GROUPS))}


class EnvironWatch:
    """What is read of the environment from `open` to `close`."""

    def __init__(self, initial: dict[str, str]) -> None:
        """`initial` is the environment of the process before anything has changed it."""
        self.initial = initial
        self.names: set[str] = set()
        self.prefixes: set[str] = set()
        self.commands: dict[str, str | None] = {}
        """Programs that were looked for in PATH, and where they were found: PATH counts by these alone."""
        self.whole = ""
        """What has read all of it; empty where nothing has."""
        self.of_rank = ""
        """The first variable of one rank that was read."""

    def open(self) -> None:
        """Begin to watch `os.environ`, `os.environb`, `posix.environ`, and child processes, which inherit all of it."""
        posix: Any = sys.modules["posix"]
        self._plain, self._raw, self._execute = type(os.environ), posix.environ, subprocess.Popen._execute_child  # type: ignore[attr-defined]
        self._children, self._num_children = _faults_of_children(), 0
        watched: Any = _watched(self._plain, self)
        os.environ.__class__ = os.environb.__class__ = watched
        posix.environ = _watched_dict(self)(self._raw)
        subprocess.Popen._execute_child = _watched_start(self._execute, self)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Watch no further."""
        plain: Any = self._plain
        os.environ.__class__ = os.environb.__class__ = plain
        sys.modules["posix"].environ = self._raw  # type: ignore[attr-defined]
        subprocess.Popen._execute_child = self._execute  # type: ignore[attr-defined]
        if not self._num_children and _faults_of_children() > self._children:
            self.whole = self.whole or "a child process"  # started by other means

    def differs(self, env: Mapping[str, str]) -> str:
        """The first variable for which imports with `env` might end otherwise; empty where there is none."""
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

    def note(self, key: object) -> None:
        """A variable is read by the caller of the caller."""
        name = os.fsdecode(key) if isinstance(key, (str, bytes)) else ""
        reader, frame = self._reader()
        if not name or reader == NOTED:
            return
        if reader in FILTERED:
            self.prefixes.update(FILTERED[reader])
        elif _is_per_rank(name):
            self.of_rank = self.of_rank or name
        elif name == "PATH" and reader == ("shutil", "which"):
            command = os.fsdecode(frame.f_locals["cmd"])
            self.commands[command] = _which(command, self.initial.get("PATH"))
        else:
            self.names.add(name)

    def note_all(self) -> None:
        """The whole environment is read by the caller of the caller."""
        reader, _ = self._reader(is_noted=False)
        if reader in FILTERED:
            self.prefixes.update(FILTERED[reader])
        else:
            self.whole = self.whole or ".".join(reader)

    def note_child(self, env: object) -> None:
        """A child process is started, which inherits the environment unless it is given another."""
        self._num_children += 1
        if env is None:
            self.note_all()

    def _reader(self, *, is_noted: bool = True) -> tuple[tuple[str, str], Any]:
        """The module and the function that asked, and its frame; `NOTED` where that has been noted in another way."""
        frame: Any = sys._getframe(3)
        while frame.f_back is not None and frame.f_globals.get("__name__") in _MAPPINGS:
            if is_noted and frame.f_code in _ITERATIONS:
                return NOTED, frame
            frame = frame.f_back
        while frame.f_back is not None and frame.f_code.co_name.startswith("<") and frame.f_code.co_name != "<module>":
            frame = frame.f_back  # out of a comprehension, into its function
        return (str(frame.f_globals.get("__name__")), frame.f_code.co_name), frame

    def note_start(self) -> None:
        """Take note of what code has read that ran before this: the lines of `.pth` files, and customizations."""
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
            watch.note(name)
            return super().__getitem__(name)

        def __delitem__(self, name: Any) -> None:
            watch.note(name)  # it fails where there is none
            super().__delitem__(name)

        def __iter__(self) -> Any:
            watch.note_all()
            return super().__iter__()

        def __len__(self) -> Any:
            watch.note_all()
            return super().__len__()

        def __repr__(self) -> Any:
            watch.note_all()
            return super().__repr__()

    return Watched


def _watched_start(execute: Any, watch: EnvironWatch) -> Any:
    def _execute_child(popen: Any, *args: Any) -> Any:
        watch.note_child(args[6])  # `env`, in every version since 3.9
        return execute(popen, *args)

    return _execute_child


def _faults_of_children() -> int:
    """Grows with each child that has run and was collected."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def _watched_dict(watch: EnvironWatch) -> type:
    """A dict that takes each access as one to all of it."""

    def noted(name: str) -> Any:
        def method(self: Any, *args: Any, **more: Any) -> Any:
            watch.note_all()
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
    """The lines of `.pth` files that the interpreter executes when it starts."""
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
