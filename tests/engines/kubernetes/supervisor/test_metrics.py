"""The metrics of a run in its cluster are bounded, written by one supervisor, and read by any machine."""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, refusing, status
from tests.engines.kubernetes.scene import HOLDER, SupervisedScene
from tests.engines.kubernetes.scene import SUPERVISED_RUN as RUN
from tests.helpers.until import until

from windlass.cli.main import main
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.objects import labels, layout
from windlass.engines.kubernetes.supervisor import metrics, runs
from windlass.engines.kubernetes.supervisor.metrics import SERIES, MetricsMirror, metrics_file
from windlass.engines.kubernetes.supervisor.record import DamagedRecord
from windlass.errors import EngineError
from windlass.runs.metrics import parse_metrics, read_metrics
from windlass.runs.store import Store
from windlass.supervise.backend import HeldElsewhere

NAME = layout.metrics_name(RUN)


def batch(values: list[float], start: int = 0, name: str = "loss") -> dict[str, Any]:
    steps = list(range(start, start + len(values)))
    times = [1e9 + step for step in steps]
    return {"rank": 0, "source": "report", "name": name, "steps": steps, "times": times, "values": values}


@pytest.fixture
def scene(server: ObjectServer, tmp_path: Path) -> Iterator[SupervisedScene]:
    with closing(SupervisedScene(server, tmp_path)) as found:
        found.lease(1.0)
        yield found


class Pod:
    """A supervisor's pod: its metrics file, and the mirror of it."""

    def __init__(self, client: Client, folder: Path, holder: str = HOLDER) -> None:
        folder.mkdir(exist_ok=True)
        self.file = metrics_file(folder)
        self.mirror = MetricsMirror(client, RUN, holder, self.file.path)

    def values(self) -> list[tuple[float, ...]]:
        return [series.values for series in read_metrics(self.file.path)]


def stored(client: Client) -> bytes:
    return gzip.decompress(base64.b64decode(client.get("v1", "ConfigMap", NAME)["binaryData"][SERIES]))


def change(client: Client, data: bytes | None) -> None:
    """Replaces the metrics in the cluster, like another user of the namespace."""
    found = client.get("v1", "ConfigMap", NAME)
    binary = {} if data is None else {SERIES: base64.b64encode(data).decode()}
    client.call("PUT", client.path("v1", "ConfigMap", NAME), {**found, "binaryData": binary})


def values_on(scene: SupervisedScene) -> list[tuple[float, ...]]:
    return [series.values for series in scene.engine.metrics(RUN)]


def test_points_are_read_on_any_machine(scene: SupervisedScene, tmp_path: Path) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    assert scene.engine.metrics(RUN) == ()
    pod.file.append(1, 0, 1, [batch([3.0, 2.0])])
    pod.mirror.flush()
    pod.file.append(2, 0, 1, [batch([1.0], start=2)])
    pod.mirror.flush()
    (found,) = scene.engine.metrics(RUN)
    assert (found.values, found.attempts, found.steps) == ((3.0, 2.0, 1.0), (1, 1, 2), (0, 1, 2))


def test_object_belongs_to_the_run_and_is_in_no_list_of_runs(scene: SupervisedScene, tmp_path: Path) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([3.0])])
    pod.mirror.flush()
    meta = scene.client.get("v1", "ConfigMap", NAME)["metadata"]
    assert [owner["name"] for owner in meta["ownerReferences"]] == [RUN]
    assert (meta["labels"][labels.COMPONENT], meta["labels"][layout.RUN_LABEL]) == ("record", RUN)
    assert layout.CODE_LABEL in meta["labels"]


def test_next_supervisor_neither_doubles_nor_loses_a_point(scene: SupervisedScene, tmp_path: Path) -> None:
    first, second = Pod(scene.client, tmp_path / "first"), Pod(scene.client, tmp_path / "second")
    for seq in (1, 2):
        first.file.append(1, 0, seq, [batch([float(seq)], start=seq)])
    first.mirror.flush()
    first.file.append(1, 0, 3, [batch([3.0], start=3)])  # the pod is lost before it writes this point
    with closing(second.mirror):
        second.mirror.begin()
        for seq in (1, 2, 3, 4):  # an adopting supervisor reads all events of the attempt again
            second.file.append(1, 0, seq, [batch([float(seq)], start=seq)])
        assert second.values() == [(1.0, 2.0, 3.0, 4.0)]


def test_file_of_a_restarted_container_is_newer_than_the_cluster(scene: SupervisedScene, tmp_path: Path) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([1.0])])
    pod.mirror.flush()
    pod.file.append(1, 0, 2, [batch([2.0], start=1)])
    with closing(Pod(scene.client, tmp_path / "pod").mirror) as mirror:
        mirror.begin()
        assert pod.values() == [(1.0, 2.0)]


def test_new_points_are_written_by_a_thread(
    scene: SupervisedScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "LEAST_PAUSE_SECONDS", 0.05)
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([1.0])])
    with closing(pod.mirror):
        pod.mirror.begin()
        until(lambda: values_on(scene) == [(1.0,)])
        scene.server.remove("ConfigMap", NAME)
        pod.file.append(1, 0, 2, [batch([2.0], start=1)])
        until(lambda: NAME in scene.server.names("ConfigMap"))
        assert values_on(scene) == [(1.0, 2.0)]


def test_a_file_without_new_points_is_not_written(scene: SupervisedScene, tmp_path: Path) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    pod.mirror.flush()
    assert NAME not in scene.server.names("ConfigMap")
    pod.file.append(1, 0, 1, [batch([1.0])])
    pod.mirror.flush()
    before = len(scene.server.requests)
    pod.mirror.flush()
    assert len(scene.server.requests) == before


def test_only_the_holder_of_the_lease_writes(scene: SupervisedScene, tmp_path: Path) -> None:
    new, old = Pod(scene.client, tmp_path / "new"), Pod(scene.client, tmp_path / "old", "another_home_1-boot")
    new.file.append(1, 0, 1, [batch([1.0])])
    new.mirror.flush()
    old.file.append(1, 0, 1, [batch([7.0])])
    with pytest.raises(HeldElsewhere):
        old.mirror._write()
    old.mirror.flush()
    assert values_on(scene) == [(1.0,)]


def test_supervisor_that_lost_the_lease_does_not_overwrite_its_successor(
    scene: SupervisedScene, tmp_path: Path
) -> None:
    old, new = Pod(scene.client, tmp_path / "old"), Pod(scene.client, tmp_path / "new", "successor_home_1-boot")
    old.file.append(1, 0, 1, [batch([7.0])])
    old.mirror.flush()
    lease = scene.server.objects["leases", RUN]
    scene.server.put("Lease", RUN, lease["metadata"]["labels"], api=lease["apiVersion"],
                     spec={**lease["spec"], "holderIdentity": "successor_home_1-boot"})  # fmt: skip
    new.file.append(1, 0, 1, [batch([1.0])])
    new.mirror.flush()
    old.file.append(1, 0, 2, [batch([8.0])])
    old.mirror.flush()
    old.mirror.flush()
    assert values_on(scene) == [(1.0,)]


def test_metrics_of_a_removed_run_are_not_written(scene: SupervisedScene, tmp_path: Path) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    scene.server.remove("ConfigMap", RUN)
    pod.file.append(1, 0, 1, [batch([1.0])])
    pod.mirror.flush()
    assert NAME not in scene.server.names("ConfigMap")


def test_refused_points_do_not_end_the_supervisor(scene: SupervisedScene, tmp_path: Path) -> None:
    scene.server.fails = refusing(status(403, "Forbidden", "exceeded quota"), "POST", plural="configmaps")
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([1.0])])
    pod.mirror.flush()
    scene.server.fails = lambda _: None
    pod.mirror.flush()
    assert values_on(scene) == [(1.0,)]


@pytest.mark.slow
@pytest.mark.parametrize(("num_series", "num_points", "chars"), [(3, 20_000, 4), (2000, 30, 4), (2000, 2, 900)])
def test_size_is_bounded(monkeypatch: pytest.MonkeyPatch, num_series: int, num_points: int, chars: int) -> None:
    monkeypatch.setattr(metrics, "MAX_BYTES", 64 << 10)
    monkeypatch.setattr(metrics, "MAX_POINTS", 4_000)
    rng = random.Random(7)
    lines = [
        {"attempt": 1, "node": 0, "seq": 9}
        | batch([rng.random() for _ in range(num_points)], name=rng.randbytes(chars // 2).hex() + str(number))
        for number in range(num_series)
    ]
    data = metrics.packed("".join(f"{json.dumps(line)}\n" for line in lines).encode())
    assert len(data) <= 64 << 10
    text = gzip.decompress(data)
    assert 0 < len(parse_metrics(text.splitlines())) <= num_series
    assert b'"seq":9' in text


# -- on the reading machine -------------------------------------------------------------------------------------------


def test_unchanged_metrics_are_requested_at_most_once_a_second(
    scene: SupervisedScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "REFRESH_SECONDS", 600.0)
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([1.0])])
    pod.mirror.flush()
    assert values_on(scene) == [(1.0,)]
    before = len(scene.server.requests)
    assert [values_on(scene) for _ in range(3)] == [[(1.0,)]] * 3
    assert len(scene.server.requests) == before


def test_copy_is_shown_while_the_cluster_does_not_answer(scene: SupervisedScene, tmp_path: Path) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([1.0])])
    pod.mirror.flush()
    assert values_on(scene) == [(1.0,)]
    scene.server.stop()
    assert values_on(scene) == [(1.0,)]
    (scene.store.run_dir(RUN) / "metrics.jsonl").unlink()
    with pytest.raises(EngineError):
        scene.engine.metrics(RUN)


def test_command_shows_as_of_when_the_copy_is(
    scene: SupervisedScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([0.25])])
    pod.mirror.flush()
    monkeypatch.setenv("WINDLASS_HOME", str(scene.store.home))
    for is_up in (True, False):
        if not is_up:
            scene.server.stop()
        with pytest.raises(SystemExit):
            main(["metrics", RUN])
        shown = capfd.readouterr()
        assert "0.25" in shown.out
        assert ("cluster lab" in shown.err and "the metrics are as of" in shown.err) is not is_up


def test_metrics_of_an_expired_run_stay_on_this_machine(scene: SupervisedScene, tmp_path: Path) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([1.0])])
    pod.mirror.flush()
    assert values_on(scene) == [(1.0,)]
    for name in (RUN, layout.record_name(RUN), NAME):
        scene.server.remove("ConfigMap", name)
    assert values_on(scene) == [(1.0,)]
    assert [one.values for one in KubernetesEngine(scene.store).metrics(RUN)] == [(1.0,)]


@pytest.mark.parametrize(
    "data",
    [None, b"nonsense", gzip.compress(b"x" * 64)[:-3], gzip.compress(b"x" * (17 << 20)), gzip.compress(b"\xff\xff")],
    ids=["missing", "no-gzip", "cut", "bomb", "no-text"],
)
def test_damaged_metrics_are_an_error_until_the_supervisor_writes_again(
    scene: SupervisedScene, tmp_path: Path, data: bytes | None
) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([1.0])])
    pod.mirror.flush()
    change(scene.client, data)
    with pytest.raises(DamagedRecord, match=f"{NAME} was changed"):
        scene.engine.metrics(RUN)
    with closing(Pod(scene.client, tmp_path / "next").mirror) as mirror:
        mirror.begin()  # a new supervisor supervises the run nevertheless
    pod.file.append(1, 0, 2, [batch([2.0], start=1)])
    pod.mirror.flush()  # the API server refuses: the object was changed
    pod.mirror.flush()
    assert values_on(scene) == [(1.0, 2.0)]


def test_lines_of_another_user_are_copied_only_if_they_are_series(scene: SupervisedScene, tmp_path: Path) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([1.0])])
    pod.mirror.flush()
    bad = [
        b"[" * 100_000,
        b'{"attempt": 1}',
        json.dumps({"more": "x", "attempt": 1, "node": 0, "seq": 1, **batch([5.0])}).encode(),
    ]
    change(scene.client, gzip.compress(b"\n".join(bad)))
    assert values_on(scene) == [(5.0,)]
    text = (scene.store.run_dir(RUN) / "metrics.jsonl").read_text()
    assert "more" not in text
    assert "[[" not in text


def test_a_home_without_the_record_shows_the_same(scene: SupervisedScene, tmp_path: Path) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([1.0, 0.5])])
    pod.mirror.flush()
    with Store(tmp_path / "other") as store:
        store.copy(RUN, scene.events, scene.store.plan(RUN).to_text())
        assert KubernetesEngine(store).metrics(RUN) == scene.engine.metrics(RUN)


def test_stored_text_is_that_of_the_file(scene: SupervisedScene, tmp_path: Path) -> None:
    pod = Pod(scene.client, tmp_path / "pod")
    pod.file.append(1, 0, 1, [batch([0.1, 0.2])])
    pod.mirror.flush()
    assert parse_metrics(stored(scene.client).splitlines()) == read_metrics(pod.file.path)
