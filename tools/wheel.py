"""Builds the wheel of this checkout into dist/, and with `--test` runs it in clean environments of several Pythons.

`--test` takes the versions to test (`--test 3.11 3.12`), each of which has to be on this machine; without any, it takes
what it finds of 3.11, 3.12 and 3.13, and names what it does not find.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from readme_renderer import markdown

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".venv/bin/uv"
SMOKE = ROOT / "tools/wheel_smoke.py"
VERSIONS = ("3.11", "3.12", "3.13")
EXTRAS = ("aws", "data", "kubernetes", "services", "ui")  # torch is some GB: it is only resolved


def main(argv: list[str]) -> int:
    """Builds, and tests where that is asked; returns the exit code."""
    wheel = build()
    print(f"wheel: {wheel.relative_to(ROOT)}, {wheel.stat().st_size / 1e6:.1f} MB")
    if "--test" not in argv:
        return 0
    asked = [word for word in argv if word != "--test"]
    found = {version: interpreter(version) for version in asked or VERSIONS}
    for version in (version for version, python in found.items() if python is None):
        print(f"wheel: Python {version} is not on this machine: not tested", file=sys.stderr)
    pythons = [python for python in found.values() if python is not None]
    for python in pythons:
        test(wheel, python)
    return 0 if pythons and (len(pythons) == len(found) or not asked) else 1


def build() -> Path:
    """The wheel, made from the source archive, so that this one is known to be complete. Both are in dist/."""
    run(UV, "build", "--quiet", "--clear", "--out-dir", ROOT / "dist", ROOT)
    (wheel,) = (ROOT / "dist").glob("*.whl")
    listed = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "src/windlass")
    expected = {name.removeprefix("src/") for name in listed.splitlines() if (ROOT / name).exists()}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if expected != packed:
        sys.exit(f"wheel: files are missing or too many: {sorted(expected ^ packed)}")
    if problems := list(problems_on_index(wheel)):
        sys.exit(f"wheel: {'; '.join(problems)}")
    return wheel


def problems_on_index(wheel: Path) -> Iterator[str]:
    """What would be wrong on the page that an index makes of the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        fields, _, text = archive.read(name).decode().partition("\n\n")
    page = markdown.render(text)
    yield from [] if page else ["the README does not render"]
    links = re.findall(r'(?:href|src)="(?!https://|#)([^"]*)"', page or "")
    yield from (f"the README refers to {link}" for link in links)
    yield from re.findall(r"^Project-URL: .*\bexample\b.*", fields, re.MULTILINE)
    if "pip install windlass-train" not in text:
        yield "the README does not say how to install it from there"


def interpreter(version: str) -> Path | None:
    """A Python of that version: one on PATH, one that pyenv or uv installed, or none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    candidates += run(UV, "python", "find", "--quiet", "--managed-python", version, check=False).splitlines()
    return next((Path(python) for python in candidates if python and works(python)), None)


def works(python: str | Path) -> bool:
    """Whether it starts and has SQLite: a shim of pyenv stands for a version that may not be chosen."""
    return subprocess.run([python, "-c", "import sqlite3, ssl"], capture_output=True).returncode == 0


def test(wheel: Path, python: Path) -> None:
    """Installs the wheel alone, runs it, adds the extras and runs it again. Ends the program where something fails."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="windlass-wheel-") as name:
        folder = Path(name)
        installed = folder / "env/bin/python"
        run(UV, "venv", "--quiet", "--python", python, folder / "env")
        install(installed, str(wheel))
        version = run(installed, "-c", "import platform; print(platform.python_version())").strip()
        run(installed, "-I", SMOKE, *expected(), cwd=folder, env=clean(folder))
        install(installed, f"{wheel}[{','.join(EXTRAS)}]")
        run(installed, "-I", SMOKE, *expected(), *EXTRAS, cwd=folder, env=clean(folder))
        install(installed, f"{wheel}[all]", "--dry-run")
    print(f"wheel: Python {version}: core, {', '.join(EXTRAS)} run; all resolves; {time.monotonic() - started:.1f} s")


def expected() -> Iterator[str]:
    """What the smoke test compares: the version of pyproject.toml."""
    yield tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def install(python: Path, what: str, *options: str) -> None:
    """Installs without what a lock file would choose: as a user does."""
    run(UV, "pip", "install", "--quiet", *options, "--python", python, what)


def clean(folder: Path) -> dict[str, str]:
    """An environment that knows neither this checkout nor the records of its user."""
    (folder / "home").mkdir(exist_ok=True)
    path = f"{folder / 'env/bin'}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(folder / "home"), "LANG": "C.UTF-8", "WINDLASS_HOME": str(folder / "records")}


def run(*words: Path | str, check: bool = True, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What a command prints; where it fails and `check` is set, the program ends with its output."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=cwd, env=env)
    if done.returncode and check:
        sys.exit(f"wheel: {' '.join(map(str, words))} failed with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
