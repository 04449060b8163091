"""Runs an installed Windlass as a newcomer does, without torch: `tools/wheel.py` starts this in a clean environment.

    python -I wheel_smoke.py VERSION [EXTRA …]

Standard library only. The folder it runs in is written to.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

# What a module may lack, by the extra that would bring it.
OPTIONAL = {
    "torch": ("torch", "numpy", "pyarrow"),
    "kubernetes": ("websocket",),
    "data": ("obstore", "boto3", "botocore"),
    "aws": ("boto3", "botocore"),
    "services": ("cryptography", "h11", "uvicorn"),
    "ui": ("jinja2", "starlette", "uvicorn"),
}
DATA = ("clusters/eks/*.tf", "clusters/eks/names.json", "pricing/data/*.csv", "importers/field_hints.txt", "py.typed",
        "web/templates/*.html", "web/static/*.js", "web/static/*.css")  # fmt: skip
SCRIPT = 'import os\nprint("rank", os.environ["WINDLASS_RANK"], "of", os.environ["WINDLASS_WORLD_SIZE"])\n'


def main(argv: list[str]) -> int:
    """Ends with 1 and one sentence at the first thing that is not so."""
    version, *extras = argv
    import windlass

    package = Path(windlass.__file__).parent
    says(sys.prefix in str(package), f"windlass is imported from {package}")
    says(
        importlib.metadata.version("windlass-train") == version == windlass.__version__, f"the version is not {version}"
    )
    for pattern in DATA:
        says(any(package.glob(pattern)), f"no {pattern} in the package")
    modules_import(extras)
    commands_run(version)
    return 0


def modules_import(extras: list[str]) -> None:
    """Imports every module; those of an extra that is not installed may say that they lack it."""
    optional = {name for extra, names in OPTIONAL.items() if extra not in extras for name in names}
    optional -= {name for name in optional if importlib.util.find_spec(name)}
    for found in pkgutil.walk_packages(importlib.import_module("windlass").__path__, "windlass."):
        if found.name.endswith(".__main__"):
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            says((error.name or "").partition(".")[0] in optional, f"{found.name}: {error}")


def commands_run(version: str) -> None:
    """The first commands of a newcomer, in this folder."""
    Path("train.py").write_text(SCRIPT)
    Path("broken.py").write_text("raise SystemExit('no data')\n")
    Path("job.yaml").unlink(missing_ok=True)
    says(version in windlass("--version"), "windlass --version")
    windlass("init", "train.py")
    says("2 ranks" in windlass("plan", "--procs-per-node", "2"), "plan does not name the ranks")
    lines = sorted(windlass("run", "--procs-per-node", "2").splitlines())
    says(lines == ["[0] rank 0 of 2", "[1] rank 1 of 2"], f"the ranks printed {lines}")
    says(sorted(windlass("logs").splitlines()) == lines, "logs are not what the ranks printed")
    says("nothing is wrong" in windlass("why"), "why of a run that succeeded")
    windlass("run", "broken.py", code=100)
    says("no data" in windlass("why"), "why of a run that failed")
    for shell in ("bash", "zsh", "fish"):
        says("_WINDLASS_COMPLETE" in windlass("completion", shell), f"completion {shell}")
    says("--procs-per-node" in complete("windlass run --procs"), "completion of an option")


def windlass(*words: str, code: int = 0, **variables: str) -> str:
    """What a command prints on standard output."""
    command = [str(Path(sys.prefix) / "bin/windlass"), *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    says(done.returncode == code, f"{' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def complete(line: str) -> str:
    """What the shell would offer after a line."""
    count = str(len(line.split()) - 1)
    return windlass(_WINDLASS_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=count)


def says(is_so: bool, problem: str) -> None:
    """Ends the test where something is not so."""
    if not is_so:
        sys.exit(problem)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
