"""The model server beside FastAPI by hand and LitServe with the same model: requests a second, p99, start.

    .venv/bin/python bench/serve.py [RUNS] [--smoke]

The model is a product of a 10 × 64 matrix with the 64 numbers of a JSON body, so that the servers are measured. Each
trial starts a server, and counts the start until the first answer of the model. Then 1 and then 16 connections that are
kept open each send the next request after the answer to the last one. The servers have one worker, and uvicorn with
httptools and uvloop; one row has ours with pure Python packages, from its zip file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from common import ROOT, in_turn, machine, medians, peers, spread, start, table

PEERS = ("litserve==0.2.19", "fastapi==0.165.0", "uvicorn[standard]==0.54.0")
SECONDS = 4.0
SMOKE_SECONDS = 0.3
CONNECTIONS = 16
WAIT_SECONDS = 300.0
BODY = b"[" + b", ".join(b"%.2f" % (number / 64) for number in range(64)) + b"]"
COLUMNS = {"one": "req/s, 1 client", "many": "req/s, 16", "p99": "p99 ms, 16", "start": "start s"}
IS_RATE = ("one", "many")
MODEL = """
import numpy
matrix = numpy.random.default_rng(0).normal(size=(10, 64))

def predict(data):
    return (matrix @ numpy.asarray(data)).tolist()
"""
FASTAPI = """
import sys
import uvicorn
from fastapi import Body, FastAPI
from predict import predict

app = FastAPI()

@app.post("/invocations")
def invocations(data: list[float] = Body()):
    return predict(data)

uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
"""
LITSERVE = """
import sys
import litserve

class API(litserve.LitAPI):
    def setup(self, device):
        from predict import predict
        self.model = predict

    def decode_request(self, request):
        return request

    def predict(self, data):
        return self.model(data)

    def encode_response(self, output):
        return output

if __name__ == "__main__":
    server = litserve.LitServer(API(api_path="/invocations"), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
"""


@dataclass(frozen=True)
class Way:
    """How to start a server; PORT is replaced."""

    command: list[str]
    path: str
    """Value of PYTHONPATH."""


def trial(way: Way, folder: Path, seconds: float) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"PYTHONPATH": way.path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [word.replace("PORT", str(port)) for word in way.command]
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environ, start_new_session=True)
        try:
            started = wait_for_answer(port, process) - began
            one, _ = asyncio.run(load(port, 1, seconds))
            many, latencies = asyncio.run(load(port, CONNECTIONS, seconds))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {"one": one, "many": many, "p99": 1000 * quantiles(latencies, n=100)[98], "start": started}


def request(port: int) -> bytes:
    head = f"POST /invocations HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


def wait_for_answer(port: int, process: subprocess.Popen[bytes]) -> float:
    """Returns the time of the first answer of the model."""
    give_up = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < give_up and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(request(port))
                if connection.recv(65536).startswith(b"HTTP/1.1 200"):
                    return time.perf_counter()
        except OSError:
            pass
        time.sleep(0.005)
    raise RuntimeError(f"process {process.pid} does not answer on port {port}")


async def load(port: int, connections: int, seconds: float) -> tuple[float, list[float]]:
    """Returns the requests a second, and the seconds of each request."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    sent = request(port)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < end:
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
            latencies.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return len(latencies) / seconds, latencies


def ways(folder: Path, smoke: bool) -> dict[str, Way]:
    """Writes the servers' files."""
    from windlass.serving.pack import archive

    (folder / "predict.py").write_text(MODEL)
    (folder / "with_fastapi.py").write_text(FASTAPI)
    (folder / "with_litserve.py").write_text(LITSERVE)
    (folder / "server.zip").write_bytes(archive())
    ours = ["-m", "windlass.serving", str(folder), "--port=PORT"]
    pure = Way([sys.executable, *ours], str(folder / "server.zip"))
    if smoke:
        return {"windlass, zip file": pure}
    python = str(peers(*PEERS, env="serve-env") / "python")
    return {
        "windlass": Way([python, *ours], str(ROOT / "src")),
        "windlass, zip file": pure,
        "FastAPI": Way([python, "with_fastapi.py", "PORT"], ""),
        "LitServe": Way([python, "with_litserve.py", "PORT"], ""),
    }


def report_to_best(results: Mapping[str, list[Any]], runs: int) -> None:
    """Prints each figure with its ratio to that of the better peer."""
    rows = []
    for way, trials in results.items():
        row = [way]
        for key in COLUMNS:
            others = [median([one[key] for one in some]) for name, some in results.items() if "windlass" not in name]
            best = (max if key in IS_RATE else min)(others, default=float("nan"))
            values = [one[key] for one in trials]
            row += [spread(values), f"{median(values) / best:.2f}"]
        rows.append(row)
    header = ["server", *(word for column in COLUMNS.values() for word in (column, "÷ best"))]
    table(f"A model behind HTTP, {medians(runs)} ({machine()})", header, rows)


def main(runs: int, smoke: bool) -> None:
    """Prints requests a second, p99 and start of each server."""
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        seconds = SMOKE_SECONDS if smoke else SECONDS
        trials: dict[str, Callable[[], object]] = {
            title: partial(trial, way, Path(name), seconds) for title, way in ways(Path(name), smoke).items()
        }
        report_to_best(in_turn(trials, 0 if smoke else runs), 0 if smoke else runs)


if __name__ == "__main__":
    start(main, runs=3)
