"""The recipes of the page on experiment trackers, run as the page shows them. Rank 0 is killed midway."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import sqlite3
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.machine import Machine, kill
from tests.helpers.until import until

from windlass.runs.metrics import FILE, read_metrics
from windlass.runs.store import Store

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "experiment-trackers.md"
ENVIRONMENT = ROOT / ".cache" / "trackers-env" / "bin"
STEPS = list(range(10, 601, 10))
"""The steps that the script of the page logs."""
SECONDS = 400.0
"""Bound of a run of two attempts: each imports torch and the tracker, for a minute on busy cores."""

pytestmark = [pytest.mark.nightly, pytest.mark.slow]


def files(heading: str) -> dict[str, str]:
    """Contents by file name of the blocks with a title below a heading of the page."""
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', section, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Installs the libraries of the recipes; skips the tests where that is impossible, as without a network."""
    made = subprocess.run(["bash", "tools/trackers-env.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"tools/trackers-env.sh: {made.stderr.strip().splitlines()[-1]}")


def run_with_a_kill(machine: Machine, heading: str) -> tuple[str, Path, int]:
    """Runs the recipe below `heading`, and kills rank 0 some steps after the first checkpoint.

    Returns the id of the run, its output folder and the step with which its second attempt begins.
    """
    for name, text in {**files("The script of all recipes"), **files(heading)}.items():
        machine.write(name, text)
    words = ["run", "job.yaml", "--set", f"python={ENVIRONMENT / 'python'}", "--detach", "-o", "json"]
    started = machine.windlass(*words)
    assert started.returncode == 0, started.stderr
    run = str(json.loads(started.stdout)["id"])
    with Store(machine.home) as store:

        def values(kind: str, key: str) -> list[Any]:
            return [event.data[key] for event in store.events(run) if event.kind == kind and event.data.get(key)]

        until(lambda: max(values("progress", "step"), default=0) >= 260, "no progress", SECONDS)
        assert kill(values("rank", "pid")[0], signal.SIGKILL)
        until(lambda: machine.status(run)["ended_at"], "not ended", SECONDS)
        [begin] = {event.data["step"] for event in store.events(run) if event.data.get("action") == "restored"}
    status = machine.status(run)
    assert (status["phase"], len(status["attempts"])) == ("succeeded", 2)
    return run, Path(status["output_dir"]), begin


def assert_repeated_steps_are_there_twice(steps: list[int], begin: int) -> None:
    """Fails if a step is missing, or if any but those from the checkpoint `begin` to the kill is there twice."""
    assert sorted(set(steps)) == STEPS
    twice = sorted(step for step, times in Counter(steps).items() if times > 1)
    assert twice == [step for step in STEPS if begin < step <= max(twice, default=0)]


def of_database(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


@pytest.mark.timeout(1200)
def test_mlflow_has_one_run_which_a_script_copies(machine: Machine, tmp_path: Path) -> None:
    run, output, begin = run_with_a_kill(machine, "MLflow")
    database = output / "mlflow.db"
    assert of_database(database, "select name, status from runs") == [(run, "FINISHED")]
    steps = [step for (step,) in of_database(database, "select step from metrics where key = 'loss'")]
    assert_repeated_steps_are_there_twice(steps, begin)

    words = ["copy_runs.py", f"sqlite:///{database}", f"sqlite:///{tmp_path}/other.db"]
    subprocess.run([str(ENVIRONMENT / "python"), *words], cwd=machine.folder, check=True, capture_output=True)
    assert of_database(tmp_path / "other.db", "select name, status from runs") == [(run, "FINISHED")]
    copied = of_database(tmp_path / "other.db", "select step from metrics where key = 'loss'")
    assert sorted(copied) == sorted((step,) for step in steps)


@pytest.mark.timeout(1200)
def test_trackio_has_one_run(machine: Machine) -> None:
    run, output, begin = run_with_a_kill(machine, "trackio")
    rows = of_database(output / "trackio" / "digits.db", "select run_name, run_id, step from metrics")
    assert {row[0] for row in rows} == {run}
    assert len({row[1] for row in rows}) == 1
    assert_repeated_steps_are_there_twice([row[2] for row in rows], begin)


READ_EVENTS = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
found.Reload()
print(*(event.step for event in found.Scalars("loss")))
"""


@pytest.mark.timeout(1200)
def test_tensorboard_shows_each_step_once(machine: Machine) -> None:
    run, output, _ = run_with_a_kill(machine, "TensorBoard")
    curves = read_metrics(machine.home / "runs" / run / FILE)
    assert {step for one in curves if (one.source, one.name) == ("tensorboard", "loss") for step in one.steps} == set(
        STEPS
    )
    assert len(list(output.glob("events.out.tfevents.*"))) == 2
    read = [str(ENVIRONMENT / "python"), "-c", READ_EVENTS, str(output)]
    shown = subprocess.run(read, check=True, capture_output=True, text=True).stdout
    assert [int(step) for step in shown.split()] == STEPS


@contextmanager
def tracking_server() -> Iterator[tuple[str, dict[str, dict[int, Any]]]]:
    """Serves what `wandb sync` uses of W&B's protocol; yields the address, and history lines by run and offset."""
    lines: dict[str, dict[int, Any]] = {}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing."""

        def do_PUT(self) -> None:
            self._body()
            self._reply({})

        def do_POST(self) -> None:
            body = self._body()
            if self.path == "/graphql":
                asked = json.loads(body)
                self._reply({"data": answer(asked["query"], asked.get("variables") or {})})
                return
            if not self.path.endswith("/file_stream"):  # telemetry of the library
                self._reply({})
                return
            asked = json.loads(body)
            part = asked.get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
            numbered = enumerate(map(json.loads, part["content"]), start=part["offset"])
            lines.setdefault(self.path.split("/")[-2], {}).update(numbered)
            self._reply({})

        def _body(self) -> bytes:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw

        def _reply(self, document: object) -> None:
            data = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def answer(query: str, variables: dict[str, Any]) -> dict[str, Any]:
        run = str(variables.get("name"))
        project = {"id": "p", "name": "digits", "entity": {"id": "e", "name": "team"}}
        counts = {"historyLineCount": len(lines.get(run, {})), "eventsLineCount": 0, "logLineCount": 0}
        bucket = {"id": "r", "name": run, "displayName": run, "config": "{}", "project": project, "tags": [], **counts}
        newest = json.dumps(lines[run][max(lines[run])]) if lines.get(run) else "{}"
        tails = {"historyTail": json.dumps([newest]), "eventsTail": "[]", "summaryMetrics": newest, "wandbConfig": "{}"}
        if "RunResumeStatus" in query:
            return {"model": {**project, "bucket": {**bucket, **tails} if run in lines else None}}
        if "UpsertBucket" in query:
            return {"upsertBucket": {"inserted": run not in lines, "bucket": bucket}}
        if "CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{address}/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        return {}

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield address, lines
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sync(machine: Machine, address: str, output: Path) -> None:
    """Uploads what a run has logged offline, with the command of the page."""
    folders = sorted((output / "wandb").glob("offline-run-*"))
    environ = {**machine.environ, "WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40}
    command = [str(ENVIRONMENT / "wandb"), "sync", *map(str, folders)]
    cwd = machine.folder
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(1200)
def test_wandb_uploads_the_attempts_as_one_run(machine: Machine) -> None:
    run, output, begin = run_with_a_kill(machine, "W&B")
    assert len(list((output / "wandb").glob("offline-run-*"))) == 2
    with tracking_server() as (address, lines):
        sync(machine, address, output)
    assert list(lines) == [run]
    assert sorted(lines[run]) == list(range(len(lines[run]))), "an attempt was written over another one"
    assert_repeated_steps_are_there_twice([line["_step"] for line in lines[run].values()], begin)


UNCHANGED = """
import os
import wandb
with wandb.init() as run:
    if os.environ["RANK"] == "0":
        run.log({"loss": 1.0})
"""


@pytest.mark.timeout(600)
def test_a_shell_passes_folder_and_id_to_an_unchanged_script(machine: Machine) -> None:
    machine.write("job.yaml", files("Variables of a tracker")["job.yaml"])
    machine.write("train.py", UNCHANGED)
    environ = {**machine.environ, "PATH": f"{ENVIRONMENT}{os.pathsep}{os.environ['PATH']}"}
    command = [str(ROOT / ".venv" / "bin" / "windlass"), "run", "job.yaml", "-o", "json"]
    done = subprocess.run(command, cwd=machine.folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    status = machine.status()
    [folder] = (Path(status["output_dir"]) / "wandb").glob("offline-run-*")
    assert folder.name.endswith(f"-{status['id']}")
