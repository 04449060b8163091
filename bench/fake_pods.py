"""Connections of many pods to their supervisor, by the real order client, in a few processes beside that supervisor.

Runs in the supervisor's pod, which has the code and the run's key: `python -I -S -c THIS RUN NUM`. It
prints a line of JSON for each line that it reads: what the supervisor takes now.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, "/windlass/supervisor/windlass.zip")

from windlass.worker import order_client
from windlass.worker import order_protocol as protocol
from windlass.worker.event_feed import FeedWriter, open_wake
from windlass.worker.protocol import NodeEvent, NodeStarted, OutputBegan, ProgressMade, RankChanged

FOLDER = "/windlass/home/fake"
PORT = 29300
PRINT_SECONDS = 5.0
PODS_A_PROCESS = 150
"""A pod takes five descriptors, and a container may have 1,024."""
AT_ONCE = threading.Semaphore(16)
"""Connections that a process makes at once: it has no more CPU time than one pod."""


class Pod:
    """One pod, whose ranks print now and then."""

    def __init__(self, run: str, place: int) -> None:
        self.name, self.place = f"{run}-1-{place}-x{place:04}", place
        self.folder = f"{FOLDER}/{place}"
        self.token = f"{place:016x}"
        Path(self.folder).mkdir(parents=True)
        self.wake = open_wake(self.folder)
        self.feed = FeedWriter(self.folder, 1, self.token)
        now = time.time()
        for event in (NodeStarted(now, 7, 1, "boot", "cold"), RankChanged(now, place, pid=8), OutputBegan(now)):
            self.tell(event)

    def tell(self, event: NodeEvent) -> None:
        self.feed.add(json.dumps({**event.to_json(), "k": self.token}).encode() + b"\n")

    def connect(self, key: bytes) -> None:
        """The order client, for ever."""
        while True:
            try:
                with AT_ONCE:
                    peer = socket.create_connection(("127.0.0.1", PORT))
                    connection = order_client.Connection(peer)
                    connection.authenticate(key, self.name, 1)
                with peer:
                    connection.serve(self.folder, 0, self.wake)
            except (OSError, ValueError):
                pass  # the supervisor is being replaced
            time.sleep(1)


def supervisor() -> dict[str, float]:
    """What the first process of this container takes."""
    with open("/proc/1/status") as file:
        status = dict(line.split(":", 1) for line in file)
    with open("/proc/1/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return {
        "rss_mb": int(status["VmRSS"].split()[0]) / 1024,
        "peak_mb": int(status["VmHWM"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "files": len(list(Path("/proc/1/fd").iterdir())),
        "cpu_seconds": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    }


def wait_until_it_listens() -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", PORT)).close()
            return
        except OSError:
            time.sleep(0.1)


def connect(run: str, places: range, key: bytes, parent: int) -> None:
    """The pods at these places, whose ranks print now and then, for as long as the first process lives."""
    pods = [Pod(run, place) for place in places]
    for pod in pods:
        threading.Thread(target=pod.connect, args=(key,), daemon=True).start()
    step = 0
    while os.getppid() == parent:
        step += 1
        for pod in pods:
            pod.feed.count(str(pod.place), 80)
        if not pods[0].place:
            pods[0].tell(ProgressMade(time.time(), {"step": step, "loss": 1.0 / step}))
        time.sleep(PRINT_SECONDS)


def main() -> None:
    run, num = sys.argv[1], int(sys.argv[2])
    key = protocol.read_key("/windlass/key/key")
    wait_until_it_listens()
    sys.stdin.readline()
    print(json.dumps(supervisor()), flush=True)
    sys.stdin.readline()
    parent = os.getpid()
    for first in range(0, num, PODS_A_PROCESS):
        if not os.fork():
            connect(run, range(first, min(num, first + PODS_A_PROCESS)), key, parent)
            os._exit(0)
    for _ in sys.stdin:
        print(json.dumps(supervisor()), flush=True)


if __name__ == "__main__":
    main()
