"""`windlass ui` beside TensorBoard and MLflow on the same metrics: memory, time to the first paint, bytes of the page.

    .venv/bin/python bench/ui.py [RUNS] [--smoke]

Each trial starts the server and loads its list of runs with an empty cache in a headless Chromium that already runs.
First paint and the time until the name of a run is visible count from the start of the process. Bytes are those of all
responses until then. Memory is that of all processes of the server after that. MLflow writes a run through its API in a
tenth of a second, so it has fewer.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from common import BIN, fresh_home, in_turn, machine, medians, peers, spread, start, table

from cli import fill
from windlass.runs.event_files import write_event_file
from windlass.runs.metrics import FILE, Series, as_text

MANY = 10_000
MANY_IN_MLFLOW = 500
SMOKE_MANY = 20
POINTS = 20
NAMES = ("loss", "accuracy")
TENSORBOARD, MLFLOW = "tensorboard==2.21.0", "mlflow==3.16.0"
WAIT_SECONDS = 300.0
RUN_NAME = re.compile(r"digits-\d{5}")
COLUMNS = {"paint": "first paint s", "shown": "run shown s", "pss": "PSS MB", "rss": "RSS MB", "bytes": "page kB"}
FILL_MLFLOW = """
import sys, mlflow
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
experiment = client.create_experiment("digits")
for number in range(int(sys.argv[2])):
    run = client.create_run(experiment, run_name=f"digits-{number:05}").info.run_id
    client.log_batch(run, metrics=[
        Metric(name, 1 / (step + 1), 1_790_000_000_000 + step * 1000, step) for name in NAMES for step in range(POINTS)
    ])
    client.set_terminated(run)
print(experiment)
"""


@dataclass(frozen=True)
class Server:
    """How to start a server, and the address of its list of runs."""

    command: list[str]
    page: str
    """Path of the list; empty where the server prints a link."""


def series() -> tuple[Series, ...]:
    """The curves of each run."""
    steps = range(POINTS)
    times = tuple(1_790_000_000.0 + step for step in steps)
    values = tuple(1 / (step + 1) for step in steps)
    return tuple(Series(name, "report", 0, (1,) * POINTS, tuple(map(float, steps)), times, values) for name in NAMES)


def fill_windlass(home: Path, num_runs: int) -> None:
    fill(home, num_runs)
    text = as_text(series(), {(1, 0): 1})
    for number in range(num_runs):
        folder = home / "runs" / f"digits-{number:05}"
        folder.mkdir(parents=True)
        (folder / FILE).write_text(text)


def fill_tensorboard(folder: Path, num_runs: int) -> None:
    first = folder / "digits-00000" / "events.out.tfevents.1790000000.bench"
    for number in range(num_runs):
        path = folder / f"digits-{number:05}" / first.name
        path.parent.mkdir(parents=True)
        if number:
            shutil.copy(first, path)
        else:
            write_event_file(path, series())


def fill_mlflow(python: Path, store: str, num_runs: int) -> str:
    """The number of the experiment with the runs."""
    script = FILL_MLFLOW.replace("NAMES", repr(NAMES)).replace("POINTS", str(POINTS))
    command = [str(python), "-c", script, store, str(num_runs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.split()[-1]


# -- one trial --------------------------------------------------------------------------------------------------------


def trial(server: Server, browser: Any) -> dict[str, float]:
    """Start a server, look at its list of runs, and end it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [word.replace("PORT", port) for word in server.command]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as log:
        began = time.time()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=environ, text=True, start_new_session=True
        )
        assert process.stdout is not None
        try:
            address = f"http://127.0.0.1:{port}{server.page}" if server.page else process.stdout.readline().strip()
            require_answer(int(port), process)
            with page_of(browser) as (page, sizes):
                page.goto(address)
                page.get_by_text(RUN_NAME).filter(visible=True).first.wait_for(timeout=1000 * WAIT_SECONDS)
                shown = time.time() - began
                painted = page.evaluate(
                    "(performance.timeOrigin + performance.getEntriesByName('first-contentful-paint')[0].startTime)/1e3"
                )
                pss, rss = memory_mb(process.pid)
                return {
                    "paint": painted - began,
                    "shown": shown,
                    "pss": pss,
                    "rss": rss,
                    "bytes": sum(sizes) / 1000,
                }
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.communicate()


def require_answer(port: int, process: subprocess.Popen[str]) -> None:
    """Wait until the server accepts connections."""
    give_up = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < give_up and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise RuntimeError(f"process {process.pid} does not answer on port {port}")


@contextlib.contextmanager
def page_of(browser: Any) -> Iterator[tuple[Any, list[float]]]:
    """A page with an empty cache, and the sizes of what it loads."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.set_default_timeout(1000 * WAIT_SECONDS)
        sizes: list[float] = []
        session = context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
        yield page, sizes
    finally:
        context.close()


def memory_mb(session: int) -> tuple[float, float]:
    """Proportional and resident memory of all processes of a session, in MiB."""
    pss = rss = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) != session:
                continue
            text = (entry / "smaps_rollup").read_text()
        except OSError:
            continue
        pss += sum(map(int, re.findall(r"^Pss: +(\d+)", text, re.MULTILINE)))
        rss += sum(map(int, re.findall(r"^Rss: +(\d+)", text, re.MULTILINE)))
    return pss / 1024, rss / 1024


# -- all of them ------------------------------------------------------------------------------------------------------


def servers_of_peers(folder: Path, sizes: Mapping[str, int]) -> dict[str, Server]:
    env = peers(TENSORBOARD, MLFLOW, env="ui-env")
    found = {}
    for name, num_runs in sizes.items():
        logs = folder / f"tensorboard-{num_runs}"
        fill_tensorboard(logs, num_runs)
        command = [str(env / "tensorboard"), "--logdir", str(logs), "--port", "PORT", "--load_fast", "auto"]
        found[f"TensorBoard, {name}"] = Server(command, "/#timeseries")
    for name, num_runs in sizes.items():
        num_runs = min(num_runs, MANY_IN_MLFLOW)
        store = f"sqlite:///{folder}/mlflow-{num_runs}.db"
        experiment = fill_mlflow(env / "python", store, num_runs)
        command = [str(env / "mlflow"), "ui", "--backend-store-uri", store, "--port", "PORT"]
        title = name if num_runs < MANY_IN_MLFLOW else f"{num_runs:,} runs"
        found[f"MLflow, {title}"] = Server(command, f"/#/experiments/{experiment}/runs")
    return found


def report_to_better(results: Mapping[str, Iterable[Any]], runs: int) -> None:
    """Print each figure of windlass beside the smaller one of the two peers, of one run and of many."""
    found = {way: list(trials) for way, trials in results.items()}
    rows = []
    for way, trials in found.items():
        is_one = way.endswith(" 1 run")
        row = [way]
        for key in COLUMNS:
            values = [one[key] for one in trials]
            others = [
                median([one[key] for one in some])
                for other, some in found.items()
                if not other.startswith("windlass") and other.endswith(" 1 run") == is_one
            ]
            row += [spread(values), f"{median(values) / min(others):.2f}" if others else ""]
        rows.append(row)
    header = ["server", *(word for column in COLUMNS.values() for word in (column, "÷ better"))]
    table(f"The list of runs in a browser, {medians(runs)} ({machine()})", header, rows)


def main(runs: int, smoke: bool) -> None:
    """Print memory, times and bytes of each server with one run and with many."""
    from playwright.sync_api import sync_playwright

    many = SMOKE_MANY if smoke else MANY
    sizes = {"1 run": 1, f"{many:,} runs": many}
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name, sync_playwright() as playwright:
        found = {} if smoke else servers_of_peers(Path(name), sizes)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        with fresh_home() as home:
            for size, num_runs in sizes.items():
                own = home / str(num_runs)
                fill_windlass(own, num_runs)
                command = ["env", f"WINDLASS_HOME={own}", str(BIN / "windlass"), "ui", "--no-open", "--port", "PORT"]
                found[f"windlass, {size}"] = Server(command, "")
            trials: dict[str, Callable[[], object]] = {
                way: partial(trial, server, browser) for way, server in found.items()
            }
            results = in_turn(trials, 0 if smoke else runs)
        browser.close()
    report_to_better(results, 0 if smoke else runs)


if __name__ == "__main__":
    start(main, runs=3)
