"""Finds a Python interpreter that has the Jupyter packages, or creates an environment with them by uv."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.resources
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from windlass.errors import EngineError, MissingExtra
from windlass.services.service import ServiceKind

PACKAGES: Final[Mapping[ServiceKind, tuple[str, ...]]] = {
    ServiceKind.TENSORBOARD: ("jupyter-server", "jupyter-server-proxy", "tensorboard", "setuptools"),
    ServiceKind.NOTEBOOK: (
        "jupyterlab", "ipykernel", "jupyter-server", "jupyter-server-proxy", "tensorboard", "setuptools",
    ),
}  # fmt: skip
"""Packages of each kind of service. TensorBoard imports `pkg_resources`, which is a part of setuptools."""
MODULES: Final = {"setuptools": "pkg_resources"}
"""Packages whose module has another name than the package."""
PINS: Final = {
    "jupyterlab": "==4.6.6", "jupyter-server-proxy": ">=4,<5", "tensorboard": "==2.21.0", "setuptools": "<81",
}  # fmt: skip
LOCK: Final = "jupyter.lock"
"""Versions and digests of all packages, as requirements of pip."""
DONE: Final = "complete"
"""File that marks an environment as completely installed."""
PROBE: Final = (
    "import importlib.util, json, sys; "
    "print(json.dumps([all(map(importlib.util.find_spec, sys.argv[1:])), '%d.%d' % sys.version_info[:2]]))"
)


@dataclass(frozen=True, slots=True)
class JupyterPython:
    """An interpreter that runs the program of a service."""

    python: str
    kernel: tuple[str, ...] | None = None
    """Command of the notebooks' kernel, which runs the script's interpreter; None if both are the same."""


def modules_of(kind: ServiceKind) -> list[str]:
    """Returns the modules that the program of a service imports."""
    return [MODULES.get(name, name.replace("-", "_")) for name in PACKAGES[kind]]


def requirements(kind: ServiceKind) -> list[str]:
    """Returns the requirements of a service, for pip."""
    return [f"{name}{PINS.get(name, '')}" for name in PACKAGES[kind]]


def find_jupyter(kind: ServiceKind, python: str, home: Path, on_line: Callable[[str], None]) -> JupyterPython:
    """Returns the script's interpreter `python` if it has the packages, or the one of an environment in `home`, which
    is made on first use. Raises EngineError, MissingExtra.
    """
    try:
        done = subprocess.run([python, "-c", PROBE, *modules_of(kind)], capture_output=True, text=True, check=True)
        has_all, version = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise EngineError(f"{python} cannot be run ({error})", "set python: to one that has your packages") from error
    if has_all:
        return JupyterPython(python)
    folder = make_environment(kind, python, version, home, on_line)
    # The script's packages come first: the environment only adds those that the script's interpreter lacks.
    site = folder / "lib" / f"python{version}" / "site-packages"
    code = (
        f"import sys; sys.path.append({str(site)!r}); from ipykernel.kernelapp import launch_new_instance as run; run()"
    )
    return JupyterPython(str(folder / "bin" / "python"), (python, "-c", code, "-f", "{connection_file}"))


def make_environment(kind: ServiceKind, python: str, version: str, home: Path, on_line: Callable[[str], None]) -> Path:
    """Returns the folder with the environment for a kind of service and a version of Python.

    One process at a time creates it; an interrupted installation is repeated from the start. Raises EngineError, and
    MissingExtra without uv.
    """
    lock = importlib.resources.files("windlass.services").joinpath(LOCK)
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    folder = home / "environments" / f"{kind}-{version}-{digest}"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as held, importlib.resources.as_file(lock) as constraints:
        fcntl.flock(held, fcntl.LOCK_EX)
        if (folder / DONE).exists():
            return folder
        uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
        if uv is None:
            fix = f"pip install uv; or in the environment of the script: pip install {shlex.join(requirements(kind))}"
            raise MissingExtra(f"{python} lacks packages of {kind}, and uv, which installs them, is missing", fix)
        on_line(f"{python} lacks packages of {kind}: installing them in {folder}, once")
        shutil.rmtree(folder, ignore_errors=True)
        install = ["pip", "install", "--python", str(folder / "bin" / "python"), "--constraint", str(constraints)]
        for words in (["venv", "--python", python, str(folder)], [*install, *PACKAGES[kind]]):
            done = subprocess.run(
                [uv, "--quiet", *words], cwd=folder.parent, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise EngineError(
                    f"uv could not install the packages of {kind}: {done.stderr.strip()}", "is PyPI reachable?"
                )
        (folder / DONE).touch()
        return folder


def image_setup(kind: ServiceKind, python: str, *, installs: bool) -> str:
    """Returns the script that runs in a pod before the program: it checks that the image has the packages, and
    otherwise installs them (`installs`) or fails with the line to add to the image.
    """
    wanted = shlex.join(requirements(kind))
    check = f'{python} -c "import {", ".join(modules_of(kind))}" 2>/dev/null && exit 0\n'
    if installs:
        return f'{check}{python} -m pip install --quiet --target "$HOME/windlass-jupyter" {wanted}\n'
    fix = f"the image lacks packages of {kind}: add RUN pip install {wanted} to it, or start the service with --install"
    return f"{check}echo {shlex.quote(fix)} >&2\nexit 1\n"
