"""Logs of a run that is not followed contain each line of each attempt, in any order of the pods' answers."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, Request, Response
from tests.engines.kubernetes.reading.logs.test_tail import begin, stream
from tests.helpers.until import until

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.running.log_fetch import LogReader
from windlass.worker.protocol import NodeSpec, RankSpec, pack

RUN = "case-7f3k2"
SPEC = NodeSpec(
    node=0,
    script="work.py",
    worker_python="python3",
    cwd="/",
    env={},
    grace_seconds=1.0,
    ranks=(RankSpec(rank=0, local_rank=0, env={}, argv=()),),
)


class Cluster:
    """Cluster with a pod that served attempts 1 and 2 and waited for another, and its replacement for attempt 3."""

    def __init__(self, last: int) -> None:
        """The log of the pod of attempt `last` is sent after the other one was read."""
        self.last = last
        self.is_read = threading.Event()
        self.texts = {
            1: stream(
                begin("t1"),
                ("0", b"first\n"),
                ("a", b"over t1\n"),
                ("a", b"2\n"),
                begin("t2"),
                ("0", b"second\n"),
                ("a", b"over t2\n"),
            ),
            3: stream(begin("t3"), ("0", b"third\n")),
        }

    def find(self, _api: str, kind: str, _selector: str) -> dict[str, Any]:
        return {"items": [(self.pod if kind == "Pod" else self.config)(made) for made in self.texts]}

    @staticmethod
    def config(made: int) -> dict[str, Any]:
        specs = base64.b64encode(pack(made, {0: SPEC})).decode()
        return {"metadata": {"labels": {layout.ATTEMPT_LABEL: str(made)}}, "binaryData": {layout.NODES_FILE: specs}}

    def logs(self, name: str, **_options: object) -> Iterator[bytes]:
        made = int(name)
        assert made != self.last or self.is_read.wait(30)
        yield from self.texts[made]
        if made != self.last:
            self.is_read.set()

    @staticmethod
    def pod(made: int) -> dict[str, Any]:
        meta = {
            "name": str(made),
            "labels": {layout.RUN_LABEL: RUN, layout.ATTEMPT_LABEL: str(made)},
            "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        }
        state = {"name": "node", "state": {"terminated": {"exitCode": 1}}}
        spec = {"containers": [{"name": "node"}]}
        return {"metadata": meta, "spec": spec, "status": {"phase": "Failed", "containerStatuses": [state]}}


@pytest.mark.parametrize("last", [1, 3])
def test_waiting_pod_does_not_receive_lines_of_its_replacement(tmp_path: Path, last: int) -> None:
    client: Any = Cluster(last)
    assert LogReader(client, RUN, tmp_path).read()
    said = {number: (tmp_path / f"attempt-{number}" / "rank-0.log").read_bytes() for number in (1, 2, 3)}
    assert said == {1: b"first\n", 2: b"second\n", 3: b"third\n"}


@pytest.fixture
def server(server: ObjectServer) -> ObjectServer:
    """API server with a run that trains in one pod."""
    server.owner_config_map(RUN)
    server.pod(RUN, "Running")
    put_job(server)
    labels = {layout.RUN_LABEL: RUN, layout.ATTEMPT_LABEL: "1"}
    server.put("ConfigMap", f"{RUN}-1", labels, binaryData=Cluster.config(1)["binaryData"])
    return server


def put_job(server: ObjectServer, **spec: bool) -> None:
    labels = {layout.RUN_LABEL: RUN, layout.ATTEMPT_LABEL: "1"}
    server.put("Job", f"{RUN}-1", labels, api="batch/v1", row=("Running", "0/1"), spec=spec)


def test_closing_a_log_reader_deletes_no_suspended_owner_object(server: ObjectServer, tmp_path: Path) -> None:
    with closing(server.client(tmp_path)) as client:
        with closing(LogReader(client, RUN, tmp_path / "logs")) as reader:
            reader.follow()
            [attempt] = until(lambda: list(reader._attempts.values()))
            until(lambda: attempt.pods.are_made)
            put_job(server, suspend=True)
            server.remove("Pod", f"{RUN}-1-0-abcde")
            until(lambda: attempt.pods.owner.eviction)
        assert server.names("Job") == [f"{RUN}-1"]


def test_an_attempt_that_begins_while_its_reader_is_closed_is_not_followed(
    server: ObjectServer, tmp_path: Path
) -> None:
    with closing(server.client(tmp_path)) as client:
        reader, is_closed = LogReader(client, RUN, tmp_path / "logs"), threading.Event()

        def close(request: Request) -> Response | None:
            if (request.plural, request.name) == ("jobs", f"{RUN}-1") and not is_closed.is_set():
                reader.close()
                is_closed.set()
            return None

        def is_watched() -> bool:
            server.pod(RUN, "Running")  # a watch ends with the next event
            return any(thread.name == f"pods of {RUN}-1" for thread in threading.enumerate())

        server.fails = close
        reader.follow()
        until(reader.is_over)
        until(lambda: not is_watched())
