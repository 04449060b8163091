"""One watch per kind reports all runs of a namespace, in spite of dropped connections and expired resource versions."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import WINDLASS, home, windlass
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.test_exec_copy import targets
from tests.helpers.until import until

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout, manifests
from windlass.engines.kubernetes.reading.informer import Watched
from windlass.engines.values import RunState

__all__ = ["home", "targets", "windlass"]

WAIT_SECONDS = 600


def owner_config_map(run_id: str, namespace: str) -> dict[str, Any]:
    labels = {layout.MANAGED_LABEL: "windlass", layout.RUN_LABEL: run_id, layout.JOB_LABEL: "digits"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": run_id, "namespace": namespace, "labels": labels},
    }


def suspended(run_id: str, owner: dict[str, Any]) -> dict[str, Any]:
    """Returns a suspended Job of two pods, which no controller creates."""
    labels = {**owner["metadata"]["labels"], layout.ATTEMPT_LABEL: "1"}
    pod = {"restartPolicy": "Never", "containers": [{"name": "node", "image": "none"}]}
    made = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{run_id}-1", "namespace": owner["metadata"]["namespace"], "labels": labels},
        "spec": {"suspend": True, "completions": 2, "parallelism": 2, "template": {"spec": pod}},
    }
    return manifests.owned(made, owner)


def seen_once(watched: Watched, is_so: Callable[[list[RunState]], bool]) -> list[RunState]:
    """Returns the observed runs as soon as they satisfy `is_so`."""
    until(lambda: is_so(watched.runs()), lambda: str(watched.runs()), WAIT_SECONDS)
    return watched.runs()


def ids(found: list[RunState]) -> set[str]:
    return {seen.status.id for seen in found}


@pytest.fixture
def client(lone_bed: Bed, lone_namespace: str) -> Iterator[Client]:
    with closing(Client(lone_bed.context, lone_namespace, lone_bed.kubeconfig)) as client:
        yield client


@pytest.mark.timeout(600)
def test_watch_of_all_runs_survives_a_restart_of_the_api_server(lone_bed: Bed, client: Client) -> None:
    many = {f"digits-{number:05}" for number in range(20)}
    for run_id in many:
        client.create(owner_config_map(run_id, client.namespace))
    before = set(threading.enumerate())  # threads of other tests may end meanwhile
    with closing(Watched(client)) as watched:
        assert ids(watched.runs()) == many
        assert len(set(threading.enumerate()) - before) == 4, "one watch of each kind and the questions beside them"
        owner = client.create(owner_config_map("later-7f3k2", client.namespace))
        client.create(suspended("later-7f3k2", owner))
        found = seen_once(watched, lambda found: any(seen.status.waits_for == "Suspended" for seen in found))
        [later] = [seen for seen in found if seen.status.id == "later-7f3k2"]
        assert later.placement is not None
        assert (later.status.phase, later.placement.pods_total, later.placement.attempt) == ("queued", 2, 1)

        lone_bed.kill_api_server()
        seen_once(watched, lambda _: watched.trouble is not None)
        assert len(watched.runs()) == 21, "what was known still is"
        lone_bed.start_api_server()
        client.create(owner_config_map("after-7f3k2", client.namespace))
        client.delete("v1", "ConfigMap", "digits-00003")
        seen_once(watched, lambda found: ids(found) == (many | {"later-7f3k2", "after-7f3k2"}) - {"digits-00003"})
        seen_once(watched, lambda _: watched.trouble is None)


@pytest.mark.timeout(600)
def test_expired_resource_version_is_listed_again(client: Client) -> None:
    client.create(owner_config_map("digits-7f3k2", client.namespace))
    with closing(Forgetful(client)) as watched:
        client.create(owner_config_map("later-7f3k2", client.namespace))
        seen_once(watched, lambda found: len(found) == 2)


class Forgetful(Watched):
    """Informer that starts with an expired resource version, like after hours without a connection."""

    def _watch(self, table: Any) -> None:
        if not hasattr(self, "_forgot"):
            self._forgot = True
            self._lists.versions.update(dict.fromkeys(self._lists.versions, "1"))
        super()._watch(table)


def test_ps_watch_prints_a_line_for_each_change(cluster: Cluster, namespace: str, targets: None) -> None:
    with closing(Client(cluster.context, namespace, cluster.kubeconfig)) as client:
        client.create(owner_config_map("digits-7f3k2", namespace))
        words = [*WINDLASS, "ps", "--on", "bed", "--watch"]
        with Path("out").open("w") as out, subprocess.Popen(words, stdout=out) as command:
            wait_for(lambda: "digits-7f3k2  queued  0/0" in Path("out").read_text())
            client.create(suspended("digits-7f3k2", client.get("v1", "ConfigMap", "digits-7f3k2")))
            wait_for(lambda: "digits-7f3k2  queued  0/2  Suspended" in Path("out").read_text())
            client.delete("v1", "ConfigMap", "digits-7f3k2")
            wait_for(lambda: "digits-7f3k2  removed" in Path("out").read_text())
            command.send_signal(signal.SIGINT)
            assert command.wait(WAIT_SECONDS) == 130


def wait_for(is_so: Callable[[], bool]) -> None:
    until(is_so, Path("out").read_text, WAIT_SECONDS)
