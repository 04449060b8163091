"""A data set is staged in a claim without a run; the objects, the output, the errors and the cleanup are checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, Request, Response
from tests.engines.kubernetes.planning.test_plan import TARGET

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects.labels import COMPONENT, HELPER, TRANSFER
from windlass.engines.kubernetes.objects.layout import RUN_LABEL
from windlass.engines.kubernetes.running import claim_staging
from windlass.engines.kubernetes.running.claim_staging import objects, stage_set
from windlass.errors import EngineError, UsageError
from windlass.spec.sections import DataClaim
from windlass.storage.progress import Progress

SOURCE = "s3://bucket/digits/"
RESULT = {"name": "data", "digest": "set:ab", "files": 3, "bytes": 1000, "moved": 400}
SIZED = DataClaim(size=1 << 30, storage_class="efs")
KEYS = ("s3-keys",)


class Place:
    """Namespace whose controller creates the pod of each Job at once, in the listed states, one per read."""

    def __init__(self, server: ObjectServer, client: Client) -> None:
        self.server, self.client = server, client
        self.states: list[dict[str, Any]] = []
        self.told: list[str] = []
        self.progress = Progress()
        server.fails = self._before

    def stage(self, wanted: DataClaim = SIZED, source: str = SOURCE) -> dict[str, Any]:
        return stage_set(self.client, TARGET, wanted, source, self.progress, self.told.append, keys=KEYS)

    def _before(self, request: Request) -> Response | None:
        if request.plural.endswith("/log"):
            line = json.dumps({"name": "data", "done": 700, "of": 1000, "moved": 100})
            return Response(200, f"2026-11-23T10:00:00Z {line}\n".encode(), "text/plain")
        jobs = [one for (plural, _), one in self.server.objects.items() if plural == "jobs"]
        if (request.plural, request.verb) == ("pods", "GET") and jobs and self.states:
            meta = jobs[0]["metadata"]
            labels = {HELPER: meta["labels"][HELPER], COMPONENT: TRANSFER}
            state = self.states.pop(0)
            self.server.put(
                "Pod",
                "p1",
                labels,
                metadata={"ownerReferences": [{"uid": meta["uid"]}]},
                spec={"containers": [{"name": "transfer"}], "nodeName": "bed-a"},
                status={"phase": "Running", "containerStatuses": [{"name": "transfer", "state": state}]},
                created="2026-11-22T10:00:00Z",
            )
        return None


def ended(code: int, outcome: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": "Error", "message": json.dumps(outcome)}}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(claim_staging, "LOOK_SECONDS", 0)
    monkeypatch.setattr("windlass.engines.kubernetes.running.job_transfer.LOOK_SECONDS", 0)
    server = ObjectServer()
    client = server.client(tmp_path)
    yield Place(server, client)
    client.close()
    server.close()


def test_staging_reports_progress_and_leaves_only_the_claim(place: Place) -> None:
    place.states = [{"running": {}}, ended(0, {"results": [RESULT]})]
    assert place.stage() == RESULT
    assert (place.progress.bytes_done, place.progress.num_bytes, place.progress.bytes_moved) == (700, 1000, 100)
    assert place.server.names("PersistentVolumeClaim") == ["windlass-data"]
    assert place.server.names("Job") == place.server.names("ConfigMap") == []
    assert place.told == []


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ended(64, {"error": "there is no bucket b", "hint": "see its name"}), "there is no bucket b"),
        ({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "s3-keys" not found'}}, "s3-keys"),
        ({"waiting": {"reason": "ImagePullBackOff", "message": "pull access denied"}}, "pull access denied"),
    ],
    ids=["refused", "no-secret", "no-image"],
)
def test_permanent_staging_error_is_raised_with_a_hint_and_leaves_no_objects(
    place: Place, state: dict[str, Any], words: str
) -> None:
    place.states = [state]
    with pytest.raises(EngineError, match=words) as raised:
        place.stage()
    assert raised.value.hint
    assert place.server.names("Job") == place.server.names("ConfigMap") == []


def test_an_interrupt_deletes_the_job(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        assert len(place.server.names("Job")) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr("windlass.engines.kubernetes.running.claim_staging.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        place.stage()
    assert place.server.names("Job") == place.server.names("ConfigMap") == []


def test_missing_claim_or_unsupported_store_starts_no_job(place: Place) -> None:
    with pytest.raises(UsageError, match="there is no claim sets"):
        place.stage(DataClaim(claim="sets"))
    with pytest.raises(UsageError, match="hf://bucket/digits is not reached"):
        place.stage(source="hf://bucket/digits")
    assert place.server.names("Job") == place.server.names("PersistentVolumeClaim") == []


def test_staging_job_belongs_to_no_run_and_has_the_named_credentials() -> None:
    target = TARGET.model_copy(update={"supervisor_queue": "small", "env": {"AWS_REGION": "eu-central-1", "X": "1"}})
    program, job = objects("team-a", target, SIZED, SOURCE, KEYS, "reader")
    spec = job["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    assert spec["serviceAccountName"] == "reader"
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert (variables["AWS_REGION"], "X" in variables) == ("eu-central-1", False)
    assert json.loads(variables["WINDLASS_TRANSFER"])["sets"] == [{"name": "data", "source": SOURCE}]
    for one in (program, job, job["spec"]["template"]):
        assert RUN_LABEL not in one["metadata"]["labels"], "it is not listed as a run"
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "small"
    assert spec["volumes"][0]["configMap"]["name"] == program["metadata"]["name"]
