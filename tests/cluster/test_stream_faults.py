"""Runs survive cut connections, few file descriptors, and scripts that write to the stream of their pod."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import WINDLASS, Call, home, windlass
from tests.cluster import objects
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.harnesses import harness_on, let_go, opened
from tests.cluster.proxy import Proxy, behind, proxied
from tests.cluster.test_exec_copy import submit, write_targets
from tests.helpers.until import until as until_in_bound

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.access.exec_stream import attach
from windlass.runs.logs import RunLogs
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.supervise.process import supervisor_pid

__all__ = ["home", "windlass"]

PATIENCE_SECONDS = 300.0
NUM_PODS = 70
NUM_LINES = 150_000
MAX_FILES = 256
until = functools.partial(until_in_bound, seconds=PATIENCE_SECONDS)
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    with proxied(cluster) as found:
        yield found


@pytest.fixture
def behind_proxy(cluster: Cluster, proxy: Proxy, tmp_path: Path) -> Cluster:
    """The same cluster, accessed through the proxy."""
    return behind(cluster, proxy, tmp_path / "kubeconfig")


def pods(cluster: Cluster, namespace: str, run: str) -> list[str]:
    return cluster.kubectl("get", "pods", "-n", namespace, "-l", f"windlass.dev/run={run}", "-o", "name").split()


TALKS = """
import time
for at in range(NUM):
    print(f"line {at}", flush=True)
    time.sleep(0.05)
"""


@pytest.mark.nightly
def test_a_run_whose_connections_are_cut_is_followed_to_its_end_and_its_commands_return(
    cluster: Cluster,
    behind_proxy: Cluster,
    proxy: Proxy,
    namespace: str,
    windlass: Call,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("windlass.actions.runs.STOP_SECONDS", 15.0)
    write_targets(behind_proxy, namespace, monkeypatch, behind_proxy.context)
    short, long = (
        submit(windlass, TALKS.replace("NUM", num), "--nodes", "2", "--set", "launcher=plain")
        for num in ("1200", "10**6")
    )
    with Store(home) as store:
        until(lambda: all("line 5\n" in text(store, run) for run in (short, long)))
        proxy.is_cutting = True
        until(lambda: store.status(short).supervision.condition and store.status(long).supervision.condition)
        said = windlass("status", short)
        assert "condition" in said.out
        why = windlass("why", short, "-o", "json").json
        assert why["verdict"] in ("cluster-unreachable", "run-not-followed")
        began = time.monotonic()
        removed = windlass("rm", "--force", long)
        assert (removed.code, "not known whether" in removed.err) == (1, True), removed.err
        assert time.monotonic() - began < 600, "it waits for 15 s, and for an answer that does not come"
        assert store.status(long).phase is Phase.STOPPING
        proxy.is_cutting = False
        until(lambda: store.status(long).phase is Phase.STOPPED)
        assert windlass("rm", "--force", long).code == 0
        until(lambda: store.status(short).phase.is_terminal)
        assert store.status(short).phase is Phase.SUCCEEDED
        assert store.status(short).supervision.condition is None
        for rank in (0, 1):
            lines = [line.text for line in RunLogs(store.run_dir(short)).read(ranks=[rank])]
            assert lines == [f"line {at}" for at in range(1200)]
    until(lambda: pods(cluster, namespace, long) == [])


def text(store: Store, run: str) -> str:
    return "".join(line.text + "\n" for line in RunLogs(store.run_dir(run)).read())


WRITES = '''
import os, sys, time

def stream():
    """Where the process of the pod reports: of its pipes, the one that it only writes to."""
    ways = {}
    for name in os.listdir("/proc/1/fd"):
        link = os.readlink("/proc/1/fd/" + name)
        flags = next(line for line in open("/proc/1/fdinfo/" + name) if line.startswith("flags:"))
        if link.startswith("pipe:"):
            ways.setdefault(link, []).append((int(flags.split()[1], 8) & 3, name))
    found = [ends[0][1] for ends in ways.values() if all(way == 1 for way, _ in ends)]
    return open("/proc/1/fd/" + found[0], "ab", buffering=0)

end = b'[n] {"kind": "end", "at": 1.0, "failures": []}\\n'
print("before", flush=True)
with stream() as out:
    for line in (b"hello\\n", end, b"[a] over\\n" + end, b"[a] 2\\n", b'[n] {"kind": "failing", "at": 1.0}\\n',
                 b'[n] {"kind": "rank", "at": 1.0, "rank": 77}\\n', b'[n] {"a":' * 300 + b"\\n", b"[n] 12\\n",
                 b"\\xff\\xfe[0]\\n", b'[n] {"kind": "count", "at": 1.0, "attempt": 7, "lines": {"0": 99999}}\\n',
                 b'[n] {"kind": "end", "at": "x", "failures": 3}\\n', b"[a] over\\n", b"[0] half a li"):
        out.write(line)
        time.sleep(0.3)
for at in range(60):
    print(f"line {at}", flush=True)
    while at == 30 and not os.path.exists(os.environ["WINDLASS_OUTPUT_DIR"] + "/go"):
        time.sleep(0.1)
sys.exit(int(os.environ["CODE"]))
'''


@pytest.mark.parametrize(("code", "restarts"), [(0, 3), pytest.param(5, 0, marks=pytest.mark.nightly)])
def test_script_that_writes_to_the_stream_of_its_pod_does_not_end_the_run(
    cluster: Cluster, namespace: str, tmp_path: Path, code: int, restarts: int
) -> None:
    (tmp_path / "script.py").write_text(WRITES)
    with opened(harness_on(cluster, namespace, tmp_path / "home", restarts={"max": restarts})) as harness:
        run = harness.start("script.py", base=tmp_path, launcher="plain", env={"CODE": str(code)})
        run.until(lambda run: "line 20\n" in run.text())
        assert run.status.phase is Phase.TRAINING
        assert [one["status"]["phase"] for one in items(cluster, namespace, run.id)] == ["Running"]
        let_go(cluster, namespace, run)
        status = run.wait()
        assert status.phase is (Phase.SUCCEEDED if code == 0 else Phase.FAILED), run.text()
        assert (len(status.attempts), status.dropped) == (1, ())
        lines = [line.text for line in run.lines() if line.text.startswith("line ")]
        # The text after the script's incomplete line continues it: the first line, or a report of the pod itself.
        assert lines in ([f"line {at}" for at in range(first, 60)] for first in (0, 1))
        warned = [str(event.data["message"]) for event in run.events if event.kind == "warning"]
        assert sum("were ignored" in message for message in warned) == 1, warned
        if code:
            assert status.cause is not None
            assert status.cause.exit_code == code


def items(cluster: Cluster, namespace: str, run: str) -> list[dict[str, Any]]:
    found = cluster.kubectl("get", "pods", "-n", namespace, "-l", f"windlass.dev/run={run}", "-o", "json")
    return list(json.loads(found)["items"])


FLOODS = """
import os, time
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.1)

print("ready", flush=True)
wait_for("/tmp/flood")
for at in range(NUM):
    print(f"line {at} {'x' * 80}")
wait_for("/tmp/end")
print("done", flush=True)
""".replace("NUM", str(NUM_LINES))
HEAD_BYTES = 200


def test_lines_that_were_rotated_away_while_no_supervisor_lived_are_counted(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(FLOODS)
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        run = harness.start("script.py", base=tmp_path, launcher="plain")
        run.until(lambda run: "ready\n" in run.text())
        supervisor = supervisor_pid(run.dir)
        assert supervisor is not None
        os.kill(supervisor, signal.SIGKILL)
        [pod] = pods(cluster, namespace, run.id)

        def head() -> str:
            return cluster.kubectl("logs", "-n", namespace, pod, f"--limit-bytes={HEAD_BYTES}")

        def touch(path: str) -> None:
            cluster.kubectl("exec", "-n", namespace, pod, "--", "touch", path)

        first = head()
        touch("/tmp/flood")
        until(lambda: head() != first)  # the kubelet has rotated the log, which it checks every 10 s
        touch("/tmp/end")
        until(lambda: [one["status"]["phase"] for one in items(cluster, namespace, run.id)] == ["Succeeded"])
        status = run.wait()
        assert status.phase is Phase.SUCCEEDED
        lines = [line.text for line in run.lines()]
        assert "done" in lines[-2:]  # the count of missing lines may follow it
        there = sum(line.startswith("line ") for line in lines)
        assert there < NUM_LINES
        [said] = [line for line in lines if line.startswith("[windlass] ")]
        num_missing = int(said.split()[1].replace(",", ""))
        assert abs(num_missing + there - NUM_LINES) <= 1, "of one line, a part may be there"
        assert sum(one.lines for one in status.dropped) >= num_missing


WAITS = """
import os, time
print("ready", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.5)
"""


@pytest.mark.nightly  # the many pods take the processors from tests in parallel
@pytest.mark.slow
def test_seventy_pods_are_followed_by_a_supervisor_that_may_open_few_files(
    cluster: Cluster, namespace: str, windlass: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_targets(cluster, namespace, monkeypatch, cluster.context)
    Path("code").mkdir()
    Path("code/wait.py").write_text(WAITS)
    Path("job.yaml").write_text(
        json.dumps(
            {
                "name": "wide",
                "run": "wait.py",
                "code": "code",
                "launcher": "plain",
                "nodes": NUM_PODS,
                "resources": {"cpus": 0.01, "memory": "64MiB"},
                "kubernetes": {"via": "job"},
            }
        )
    )
    begun = subprocess.run(
        [*WINDLASS, "run", "--on", "bed", "-d", "-q"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_FILES, MAX_FILES)),
    )
    assert begun.returncode == 0, begun.stderr
    run = begun.stdout.strip()
    with Store(home) as store:
        run_dir = store.run_dir(run)
        until(lambda: text(store, run).count("ready\n") == NUM_PODS, seconds=900)
        supervisor = supervisor_pid(run_dir)
        assert supervisor is not None
        process = Path(f"/proc/{supervisor}")
        assert f"Max open files            {MAX_FILES}" in (process / "limits").read_text()
        num_files, num_threads = (len(list((process / kind).iterdir())) for kind in ("fd", "task"))
        memory = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
        (home / "figures").write_text(f"{num_files} files, {memory}, {num_threads} threads for {NUM_PODS} pods")
        assert num_files < NUM_PODS * 1.5 + 40
        status = store.status(run)
        assert (status.phase, status.supervision.condition) == (Phase.TRAINING, None)
        assert windlass("stop", run, "--now").code == 0
        assert store.status(run).phase is Phase.STOPPED
        assert (run_dir / "supervisor.log").read_text() == ""
    until(lambda: all(one["status"]["phase"] != "Running" for one in items(cluster, namespace, run)))


@pytest.mark.nightly
@pytest.mark.parametrize("has_input", [False, True])
def test_a_command_whose_node_dies_has_no_exit_code(lone_bed: Bed, lone_namespace: str, has_input: bool) -> None:
    """The API server reports success if the input can be closed."""
    sleeps = objects.pod(
        lone_bed, "p", "import time; time.sleep(600)", nodeSelector={"kubernetes.io/hostname": "node2"}
    )
    lone_bed.apply(sleeps, namespace=lone_namespace)
    lone_bed.kubectl("wait", "-n", lone_namespace, "--for=condition=ready", "pod/p", "--timeout=500s")
    pod = json.loads(lone_bed.kubectl("get", "pod", "p", "-n", lone_namespace, "-o", "json"))

    class Kills(io.BytesIO):
        """Output of a command whose node is killed at the first write."""

        def write(self, data: Any) -> int:
            lone_bed.kill_node("node2")
            return super().write(data)

    words = [lone_bed.python, "-c", "import sys, time; print('runs', flush=True); time.sleep(600); sys.exit(7)"]
    stdin = io.BytesIO(b"in") if has_input else None
    client = Client(lone_bed.context, lone_namespace, lone_bed.kubeconfig)
    try:
        with contextlib.closing(client), pytest.raises(Unreachable):
            attach(client, pod, [lone_bed.python], words, stdin, Kills(), io.BytesIO())
    finally:
        lone_bed.start_node("node2")
        lone_bed.wait_for_node("node2", ready=True)
