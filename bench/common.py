"""What all benchmarks share: commands timed as whole processes, in turn, and a table with ratios to the peer.

Each benchmark is called as `.venv/bin/python bench/NAME.py [RUNS] [--smoke]`. With `--smoke` it runs once, at its
smallest sizes and without peers that have to be installed, and fails unless it prints figures; CI does that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"
CACHE = ROOT / ".cache"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one whole process took."""

    wall_seconds: float
    cpu_seconds: float
    peak_mb: float
    """Largest resident size of the process itself, in MiB."""


def measure(command: Sequence[str | Path], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end, its output thrown away. Raises RuntimeError with its errors if it fails.

    It may keep its byte code, as an installed program does, also where the environment says otherwise.
    """
    words = [str(word) for word in command]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    spawn = [str(BIN / "python"), "-I", "-S", str(ROOT / "bench" / "spawn.py"), *words]
    answer = subprocess.run(spawn, cwd=cwd, env={**environ, **(env or {})}, capture_output=True, text=True, check=True)
    code, wall, cpu, peak = answer.stdout.split()
    if int(code):
        raise RuntimeError(f"{words} ended with {code}: {answer.stderr}")
    return Cost(float(wall), float(cpu), float(peak))


def in_turn(trials: Mapping[str, Callable[[], object]], runs: int) -> dict[str, list[object]]:
    """Run every trial `runs` times, A B C A B C …, so that a slow minute slows all; the first is not counted.

    Without `runs`, which is enough for a smoke test, it is the only one and counts.
    """
    results: dict[str, list[object]] = {name: [] for name in trials}
    for number in range(runs + 1):
        for name, trial in trials.items():
            result = trial()
            if number or not runs:
                results[name].append(result)
    return results


def medians(runs: int) -> str:
    """What the figures of `in_turn` are, for a title."""
    return f"medians of {runs} (least–greatest)" if runs else "one trial"


def spread(values: Sequence[float]) -> str:
    """Median with the least and the greatest: `0.12 (0.11–0.15)`."""
    return f"{median(values):.3g} ({min(values):.3g}–{max(values):.3g})"


def start(main: Callable[[int, bool], None], runs: int) -> None:
    """Call `main` with the number of runs and whether this is a smoke test, as the command line says."""
    text = main.__globals__["__doc__"]
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="?", type=int, default=runs, metavar="RUNS", help=f"trials of each ({runs})")
    add_smoke(parser)
    given = parser.parse_args()
    main(1 if given.smoke else given.runs, given.smoke)
    if given.smoke:
        require_figures()


def add_smoke(parser: argparse.ArgumentParser) -> None:
    """Add `--smoke` to a command line that has more options than `start` knows."""
    parser.add_argument("--smoke", action="store_true", help="once, at the smallest sizes; checks that figures come")


def require_figures() -> None:
    """Exit with 1 if no table was printed, or one with a row without a figure: the end of a smoke test."""
    if not (_PRINTED and all(any(letter.isdigit() for letter in row) for row in _PRINTED)):
        sys.exit("smoke test: a figure is missing")


_PRINTED: list[str] = []
"""The rows of all tables so far, without their first column."""


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under a title, columns aligned."""
    _PRINTED.extend(" ".join(map(str, row[1:])) for row in rows)
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def report(results: Mapping[str, Sequence[object]], *, peer: str, title: str, figure: str) -> None:
    """Print the seconds of each way that `in_turn` gave, and their ratio to those of `peer`, where that was run too."""
    times = {way: [found for found in trials if isinstance(found, float)] for way, trials in results.items()}
    base = median(times[peer]) if times.get(peer) else None
    rows = [[way, spread(found), f"{median(found) / base:.3f}" if base else ""] for way, found in times.items()]
    table(title, ["way", figure, f"÷ {peer.split()[0]}"], rows)


def report_columns(
    results: Mapping[str, Sequence[object]], *, peer: str, title: str, columns: Mapping[str, str]
) -> None:
    """As `report`, where a trial gives several figures as a dict; `columns` has the title of each that is shown."""
    found = {way: [one for one in trials if isinstance(one, dict)] for way, trials in results.items()}
    header, rows = ["way"], [[way] for way in found]
    for key, column in columns.items():
        header += [column, "÷"]
        base = median([one[key] for one in found[peer]]) if peer in found else float("nan")
        for row, trials in zip(rows, found.values(), strict=True):
            values = [one[key] for one in trials]
            row += [spread(values), f"{median(values) / base:.3f}"]
    table(title, header, rows)


@contextmanager
def fresh_home() -> Iterator[Path]:
    """A WINDLASS_HOME of its own, set for the time of the block; its warm processes are ended with it."""
    with (
        tempfile.TemporaryDirectory(prefix="windlass-bench-", ignore_cleanup_errors=True) as home,
        mock.patch.dict(os.environ, WINDLASS_HOME=home),
    ):
        try:
            yield Path(home)
        finally:
            from windlass.engines.local.warm_pool import WarmPool

            WarmPool(Path(home)).stop()


def peers(*packages: str, env: str = "bench-env") -> Path:
    """The `bin` folder of an environment that has these packages, made once; it sees this project's torch."""
    folder = CACHE / env
    stamp = folder / "packages.json"
    wanted = sorted(packages)
    have = json.loads(stamp.read_text()) if stamp.is_file() else []
    if not set(wanted) <= set(have):
        uv = BIN / "uv"
        if not (folder / "bin" / "python").exists():
            subprocess.run([uv, "venv", "-q", "--python", BIN / "python", folder], check=True)
            site = next((folder / "lib").glob("python3.*/site-packages"))
            (site / "project.pth").write_text(
                str(next((ROOT / ".venv" / "lib").glob("python3.*/site-packages"))) + "\n"
            )
        subprocess.run(
            [uv, "pip", "install", "-q", "--compile-bytecode", "--python", folder / "bin" / "python", *wanted],
            check=True,
        )
        stamp.write_text(json.dumps(sorted({*have, *wanted})))
    return folder / "bin"


def machine() -> str:
    """One line on where the figures are from."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {sys.version.split()[0]}, load {load:.1f}"
