"""Draws the pictures of README and docs from real runs: pages of `windlass ui`, and the top of `status` and `why`.

The runs are made on this machine, in a home of their own: three of example 01 with different learning rates, one of
example 08 of which a rank is killed, and one that fails. Needs Debian's chromium: `bash tools/apt.sh browser`.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.text import Text
from tools.picture import SVG, THEME

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
WINDLASS = ROOT / ".venv" / "bin" / "windlass"
MAX_BYTES = 150_000
SIZE = (1200, 900)
WIDTH = 100
LIVE_SECONDS = 40.0
"""Time that the resumed run has to fill its curves and the map of its step times."""
WAIT_SECONDS = 300.0
RATES = ("0.03", "0.01", "0.001")
FAILING = """
import math, os, time
from windlass.train import report
for step in range(1, 81):
    loss = 2 * math.exp(-step / 30)
    report(step=step, total=400, loss=loss)
    time.sleep(0.02)
if os.environ["RANK"] == "1":
    raise FloatingPointError(f"loss is nan at step {step}")
time.sleep(30)
"""


@dataclass(frozen=True)
class Studio:
    """A home for the runs, and a folder for their scripts."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """The environment of commands: the record of this user, and the user's name, are not in the pictures."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WINDLASS_", "XDG_"))}
        return {
            **kept,
            "HOME": str(self.folder),
            "USER": "ann",
            "LOGNAME": "ann",
            "WINDLASS_HOME": str(self.folder / "home"),
        }

    def windlass(self, *words: str, **environ: str) -> str:
        """Returns what `windlass WORDS` prints."""
        done = subprocess.run(
            [str(WINDLASS), *words], cwd=self.folder, env={**self.environ, **environ}, capture_output=True, text=True
        )
        return done.stdout

    def run(self, *words: str) -> str:
        """Starts a run, and returns its id."""
        found = json.loads(self.windlass("run", "--detach", "-o", "json", *words))
        return str(found["id"])

    def status(self, run: str) -> dict[str, Any]:
        """Returns the status of a run."""
        return dict(json.loads(self.windlass("status", run, "-o", "json")))

    def await_step(self, run: str, step: int, attempt: int = 1) -> None:
        """Waits until an attempt of a run has reached a step, or the run has ended."""
        give_up = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < give_up:
            status = self.status(run)
            is_there = len(status["attempts"]) >= attempt and ((status["progress"] or {}).get("step") or 0) >= step
            if is_there or status["ended_at"] is not None:
                return
            time.sleep(0.2)
        raise SystemExit(f"pictures: {run} did not reach step {step}")

    def await_end(self, run: str) -> None:
        """Waits until a run has ended."""
        self.await_step(run, sys.maxsize)


def make_runs(studio: Studio) -> tuple[list[str], str, str]:
    """Returns the ids of the runs to compare, of the run that trains after a restart, and of the failed one."""
    for example in ("01-digits", "08-resumable-digits"):
        shutil.copytree(ROOT / "examples" / example, studio.folder / example)
    (studio.folder / "finetune.py").write_text(FAILING)
    compared = []
    for rate in RATES:
        job = (
            "01-digits/job.yaml",
            "--nodes",
            "1",
            "-l",
            "sweep=rates",
            "--set",
            f"run=train.py --epochs 8 --learning-rate {rate}",
        )
        compared.append(studio.run(*job))
        studio.await_end(compared[-1])
    failed = studio.run("finetune.py", "--name", "finetune", "--procs-per-node", "2", "-l", "team=speech")
    studio.await_end(failed)
    run = "train.py --epochs 2000"
    resumed = studio.run("08-resumable-digits/job.yaml", "--restarts", "3", "--set", f"run={run}", "-l", "team=vision")
    studio.await_step(resumed, 400)
    os.kill(next(one["pid"] for one in studio.status(resumed)["ranks"] if one["rank"] == 1), signal.SIGKILL)
    studio.await_step(resumed, 400, attempt=2)
    time.sleep(LIVE_SECONDS)
    return compared, resumed, failed


# -- pages ------------------------------------------------------------------------------------------------------------


@contextmanager
def page_of(studio: Studio) -> Iterator[tuple[Page, str]]:
    """Yields a page with a session, and the address of the server."""
    from playwright.sync_api import sync_playwright

    command = [str(WINDLASS), "ui", "--no-open", "--port", "0"]
    options: dict[str, Any] = {"cwd": studio.folder, "env": studio.environ, "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options) as server:
        assert server.stdout is not None
        try:
            link = server.stdout.readline().strip()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
                page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
                page.set_default_timeout(1000 * WAIT_SECONDS)
                page.goto(link)
                page.wait_for_url(lambda url: "/start" not in url)
                parts = urlsplit(link)
                yield page, f"{parts.scheme}://{parts.netloc}"
                browser.close()
        finally:
            server.send_signal(signal.SIGINT)


def take_pages(studio: Studio, compared: list[str], resumed: str) -> None:
    """Takes the pictures of the pages."""
    with page_of(studio) as (page, address):

        def take(name: str, path: str, shown: str, scheme: str = "light", height: int = SIZE[1]) -> None:
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
            page.set_viewport_size({"width": SIZE[0], "height": height})
            page.goto(f"{address}{path}")
            page.locator(shown).first.wait_for()
            page.screenshot(path=IMAGES / f"{name}.png")

        chart = ".u-wrap canvas"
        take("page-runs", "/", "tr[data-run]", height=520)
        take("page-run-light", f"/runs/{resumed}", chart, height=1150)
        take("page-run-dark", f"/runs/{resumed}", chart, "dark", height=1150)
        query = "&".join(f"run={run}" for run in compared)
        take("page-compare", f"/compare?{query}", chart, height=820)


# -- terminals --------------------------------------------------------------------------------------------------------


def take_terminal(studio: Studio, name: str, command: str, run: str, max_lines: int) -> None:
    """Draws the first lines of a command's output."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "dim"), (f"windlass {command} {run}", "bold")))
    printed = studio.windlass(command, run, FORCE_COLOR="1", COLUMNS=str(WIDTH)).replace(str(studio.folder), "~")
    for line in printed.splitlines()[:max_lines]:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis", crop=True)
    svg = console.export_svg(title="windlass", theme=THEME, code_format=SVG, unique_id=name)
    (IMAGES / f"{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def main() -> int:
    """Makes the runs and all pictures; returns the exit code."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="windlass-pictures-", ignore_cleanup_errors=True) as folder:
        studio = Studio(Path(folder))
        try:
            compared, resumed, failed = make_runs(studio)
            take_terminal(studio, "status", "status", resumed, 24)
            take_terminal(studio, "why", "why", failed, 24)
            take_pages(studio, compared, resumed)
        finally:
            studio.windlass("stop", "--now", "--label", "team=vision")
            studio.windlass("warm", "stop")
    made = [*IMAGES.glob("page-*.png"), IMAGES / "status.svg", IMAGES / "why.svg"]
    large = [path.name for path in made if path.stat().st_size > MAX_BYTES]
    for path in made:
        print(f"pictures: {path.relative_to(ROOT)}, {path.stat().st_size // 1000} kB")
    if large:
        print(f"pictures: larger than {MAX_BYTES // 1000} kB: {', '.join(large)}", file=sys.stderr)
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
