"""Installs the core of this checkout into a new environment and measures it: packages, megabytes, start-up.

Sizes of packages are those of their files; the total is given with the byte code that pip compiles, too. Ends with 1
where the core is heavier than promised.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import Distribution, distributions
from pathlib import Path

MAX_PACKAGES = 12
MAX_MB = 30
ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".venv/bin/uv"


def main() -> int:
    """Prints the table and the verdict; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="windlass-size-") as folder:
        install(Path(folder))
        packages = measure(Path(folder))
        compiled = byte_code(Path(folder))
        start_up = fastest_start(Path(folder))
    for name, size in sorted(packages.items(), key=lambda item: -item[1]):
        print(f"{size / 1e6:8.2f} MB  {name}")
    total = sum(packages.values()) / 1e6
    print(f"{total:8.2f} MB  {len(packages)} packages, without byte code (at most {MAX_PACKAGES}, {MAX_MB} MB)")
    print(f"{total + compiled / 1e6:8.2f} MB  with byte code, as pip installs it")
    print(f"{start_up:8.2f} s   windlass --version, fastest of 5 after the first")
    if len(packages) > MAX_PACKAGES or total > MAX_MB:
        print("size: the core is heavier than promised", file=sys.stderr)
        return 1
    return 0


def install(environment: Path, package: Path | str = ROOT) -> None:
    """Makes the environment: by default this checkout, not editable, no extras, in the versions of the lock file."""
    run(UV, "venv", "--quiet", "--clear", "--python", ROOT / ".venv/bin/python", environment)
    words = ["pip", "install", "--quiet", "--no-compile-bytecode", "--link-mode", "copy"]
    python = environment / "bin/python"
    run(UV, *words, "--constraints", ROOT / "requirements.lock", "--python", python, package)


def measure(environment: Path) -> dict[str, int]:
    """Bytes of each installed distribution, by the files that it lists."""
    folders = [str(folder) for folder in environment.glob("lib/python*/site-packages")]
    return {found.name: bytes_of(found) for found in distributions(path=folders)}


def byte_code(environment: Path) -> int:
    """Bytes of what pip compiles at an installation: all modules."""
    (folder,) = environment.glob("lib/python*/site-packages")
    run(environment / "bin/python", "-m", "compileall", "-qq", folder)
    return sum(path.stat().st_size for path in folder.rglob("*.pyc"))


def bytes_of(distribution: Distribution) -> int:
    """Size of a distribution's files, links not followed."""
    paths = {Path(str(distribution.locate_file(file))) for file in distribution.files or []}
    return sum(path.lstat().st_size for path in paths if path.exists())


def fastest_start(environment: Path) -> float:
    """Seconds of `windlass --version`; the first call, which compiles byte code, does not count."""
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        run(environment / "bin/windlass", "--version")
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def run(*words: Path | str) -> None:
    """Runs a command quietly; what it says is shown only where it fails."""
    # An interpreter told to write no byte code would compile at each start, which no installed copy does.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"size: {' '.join(map(str, words))} failed with {done.returncode}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
