"""A record that was changed by something other than a supervisor is an error of its run, without effect on this
machine.
"""

from __future__ import annotations

import base64
import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objects.test_labels import INSIDE
from tests.engines.kubernetes.objectserver import ObjectServer
from tests.engines.kubernetes.planning.test_plan import planned

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout, pod_assignment
from windlass.engines.kubernetes.objects.namespace import ClusterNamespace
from windlass.engines.kubernetes.objects.pods import INDEX, by_id
from windlass.engines.kubernetes.objects.supervisor_manifests import PLAN_FILE, with_digest
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.reading.discovery import discovery
from windlass.engines.kubernetes.supervisor import record as records
from windlass.engines.kubernetes.supervisor.imported import imported_plan
from windlass.engines.kubernetes.supervisor.record import (
    EVENTS,
    PARTS,
    ClusterRecord,
    DamagedRecord,
    Head,
    head_manifest,
    unpacked,
)
from windlass.engines.kubernetes.supervisor.runs import ClusterSupervised
from windlass.errors import StoreError
from windlass.plan.compose import NO_NODES
from windlass.plan.plan import FORMAT, NO_PLAN, Plan
from windlass.plan.steps import KINDS, ClusterStep, CodeStep, DataClaimStep, ManifestStep, NodeStep, StageStep
from windlass.runs.events import RECORD_VERSION, AttemptStarted, Created, Event, PodsReused
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.worker.protocol import NodeSpec, RankSpec

RANK = RankSpec(0, 0, ("t.py",), {})
RUN = "digits-7f3k2"
PLACE = ClusterNamespace("lab", "team", "/here/config")
BEGUN = Created(RUN, "digits", "lab", "in the pods", user="ann", supervisor="cluster", version=RECORD_VERSION)


@pytest.fixture
def client(server: ObjectServer, client: Client) -> Client:
    server.owner_config_map(RUN)
    owner_config_map = client.get("v1", "ConfigMap", RUN)
    client.create(head_manifest(owner_config_map, Head((BEGUN.event(1, 1.0),), {}, 0, "pod-a")))
    return client


def change_head(client: Client, *lines: Any, parts: str = "0", status: str = "{}") -> None:
    head = client.get("v1", "ConfigMap", layout.record_name(RUN))
    head["data"] = {EVENTS: "".join(f"{line}\n" for line in lines), PARTS: parts}
    head["metadata"]["annotations"][layout.STATUS_ANNOTATION] = status
    client.call("PUT", client.path("v1", "ConfigMap", layout.record_name(RUN)), head)


def line(seq: Any = 1, at: Any = 1.0, kind: Any = "created", data: Any = None) -> str:
    return json.dumps([seq, at, kind, BEGUN.to_json() if data is None else data])


@pytest.mark.parametrize(
    "bad",
    ["nonsense", "[1]", "null", "[" * 100_000, line(seq="1"), line(seq=1 << 70), line(seq=True), line(at="now"),
     line(at=1e300), line(kind=["end"]), line(data=[]), '[1, NaN, "created", {}]'],
)  # fmt: skip
def test_invalid_event_damages_the_record(client: Client, bad: str) -> None:
    change_head(client, bad)
    with pytest.raises(DamagedRecord, match=f"{RUN}-record was changed"):
        ClusterRecord(client, RUN).events()


@pytest.mark.parametrize(
    "changes",
    [{"id": "other-7f3k2"}, {"id": "../../victim"}, {"supervisor": ""}, {"output_dir": "/home/victim/.ssh"}],
    ids=["another", "path", "on-a-machine", "outputs-on-a-machine"],
)
def test_first_event_must_create_this_run(client: Client, changes: dict[str, str]) -> None:
    """The run id names a local folder, which `rm` deletes; and a run without a supervisor in the cluster is supervised
    locally.
    """
    change_head(client, line(data={**BEGUN.to_json(), **changes}))
    with pytest.raises(DamagedRecord):
        ClusterRecord(client, RUN).events()


@pytest.mark.parametrize("parts", ["x", "-1", "1e9", "²", "9" * 4000])
def test_number_of_parts_must_be_a_number(client: Client, parts: str) -> None:
    change_head(client, line(), parts=parts)
    with pytest.raises(DamagedRecord, match="parts"):
        ClusterRecord(client, RUN).events()


def test_large_number_of_parts_causes_a_limited_number_of_requests(client: Client, server: ObjectServer) -> None:
    change_head(client, line(seq=7), parts="999999999")
    before = len(server.requests)
    ClusterRecord(client, RUN).events()
    assert len(server.requests) - before == 1 + records.MAX_PARTS


def test_size_of_all_parts_together_is_limited(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "UNPACKED_BYTES", 1000)
    text = f"{line(seq=7, kind='x', data={'text': 'x' * 600})}\n"
    for number in (1, 2):
        data = {EVENTS: base64.b64encode(gzip.compress(text.encode())).decode()}
        name = layout.record_name(RUN, number)
        client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "binaryData": data})
    change_head(client, line(seq=9), parts="2")
    with pytest.raises(DamagedRecord, match="too large"):
        ClusterRecord(client, RUN).events()


@pytest.mark.parametrize(
    "status",
    [
        "nonsense",
        "[]",
        "null",
        '{"phase": "no-phase"}',
        '{"phase": "training"}',
        '{"phase": "training", "created_at": "x", "phase_since": 1}',
        '{"phase": "training", "created_at": 1, "phase_since": 1e300}',
        '{"phase": "training", "created_at": 1, "phase_since": 2, "progress": [1]}',
    ],
)
def test_a_damaged_summary_hides_no_run(client: Client, status: str) -> None:
    change_head(client, line(), status=status)
    [seen] = discovery.look(client).runs(time.time())
    assert (seen.id, seen.objects.summary) == (RUN, None)
    assert seen.state("lab").status.id == RUN
    assert ClusterRecord(client, RUN).events()


def test_size_of_decompressed_data_is_limited() -> None:
    def of(data: bytes) -> dict[str, Any]:
        return {"metadata": {"name": "part"}, "binaryData": {EVENTS: base64.b64encode(data).decode()}}

    assert unpacked(of(gzip.compress(b"x" * 999)), EVENTS, 1000) == "x" * 999
    for bad in (gzip.compress(b"x" * 100_000), gzip.compress(b"x")[:-3], b"nonsense", gzip.compress(b"\xff\xff")):
        with pytest.raises(DamagedRecord):
            unpacked(of(bad), EVENTS, 1000)
    with pytest.raises(DamagedRecord, match="is missing"):
        unpacked({"metadata": {"name": "part"}}, EVENTS, 1000)


def test_one_damaged_record_does_not_hide_the_other_runs(client: Client, tmp_path: Path, server: ObjectServer) -> None:
    with Store(tmp_path / "home") as store:
        config = server.kubeconfig(tmp_path)
        place = {"context": "lab", "namespace": "team", "kubeconfig": config, "via": "job"}
        plan = json.dumps(with_request("cluster", **place))
        store.create(RUN, name="d", target="lab", output_dir="/o", plan=plan, time=1.0, supervisor="cluster").close()
        supervised = ClusterSupervised(store)
        change_head(client, line(), line(2, 2.0, "end", {"phase": "training"}))
        [state] = supervised.states([store.status(RUN)])
        assert (state.status.phase, state.status.last_seq) == (Phase.QUEUED, 1)
        assert "cannot end as" in state.stale


def test_record_without_events_is_invalid(tmp_path: Path) -> None:
    with Store(tmp_path) as store, pytest.raises(StoreError, match="has no events"):
        store.copy(RUN, [], "{}")


def test_attempts_with_invalid_folder_names_are_ignored(tmp_path: Path) -> None:
    entries = [
        PodsReused(-1, 1),
        PodsReused(10**300, 1),
        PodsReused(2, 3),
        PodsReused(3, 2, ((2, 0), (4, 0))),
        AttemptStarted(1, 1),
        PodsReused(2, 1),
    ]
    pod_assignment.restore_assignments(tmp_path, [entry.event(seq, 1.0) for seq, entry in enumerate(entries, 1)])
    assert [path.name for path in tmp_path.iterdir()] == ["attempt-2"]


@pytest.mark.parametrize("pods", [[[1]], [[1, 2, 3]], [["1", 0]], [1]])
def test_pods_of_another_shape_are_ignored(tmp_path: Path, pods: list[Any]) -> None:
    event = Event(1, 1.0, PodsReused.kind, {"attempt": 2, "made_for": 1, "pods": pods})
    pod_assignment.restore_assignments(tmp_path, [event])
    assert [path.name for path in tmp_path.iterdir()] == ["attempt-2"]


# -- the plan ---------------------------------------------------------------------------------------------------------


def a_plan() -> dict[str, Any]:
    meta = {"name": RUN, "namespace": "team"}
    cluster = {"context": "theirs", "namespace": "team", "kubeconfig": "/theirs", "via": "job"}
    pod = {"kind": "Job", "metadata": {**meta, "name": f"{RUN}-1"}}
    steps = {
        "cluster": cluster,
        "object": {"kind": "ConfigMap", "metadata": meta},
        "attempt": pod,
        "code": {"folder": "/theirs/code", "digest": "d", "pieces": []},
    }
    return {
        "run_id": RUN,
        "name": "digits",
        "target": "lab",
        "engine": "kubernetes",
        "output_dir": "in the pods",
        "num_nodes": 1,
        "procs_per_node": 1,
        "policy": NO_PLAN.policy.to_json(),
        "job": {},
        "notes": [],
        "price": None,
        "format": FORMAT,
        "nodes": NO_NODES.to_json(),
        "revision": None,
        "steps": [{"kind": kind, "summary": "", "request": request} for kind, request in steps.items()],
    }


def with_request(step_kind: str, **changes: Any) -> dict[str, Any]:
    plan = a_plan()
    for step in plan["steps"]:
        if step["kind"] == step_kind:
            step["request"] |= changes
    return plan


def with_step(kind: str, **request: Any) -> dict[str, Any]:
    plan = a_plan()
    plan["steps"].append({"kind": kind, "summary": "", "request": request})
    return plan


def imported(plan: Any, created_with: Any, place: ClusterNamespace = PLACE) -> Plan:
    """Returns the imported plan of a ConfigMap, if the supervisor's Job was created with another plan."""
    packed = base64.b64encode(gzip.compress(json.dumps(plan).encode())).decode()
    contents = {"metadata": {"name": f"{RUN}-supervisor"}, "binaryData": {PLAN_FILE: packed}}
    return imported_plan(contents, with_digest({"metadata": {}}, json.dumps(created_with)), RUN, place)


def test_plan_of_another_machine_can_be_used_on_this_one() -> None:
    plan = imported(a_plan(), a_plan())
    cluster, code = plan.only(ClusterStep), plan.only(CodeStep)
    assert (cluster.context, cluster.namespace, cluster.kubeconfig) == PLACE
    assert code.is_imported
    assert code.folder == layout.CODE, "no folder of this machine"


def test_imported_plan_omits_programs_and_files_of_the_other_machine() -> None:
    spec = NodeSpec(0, "t.py", "/home/ann/evil", "/windlass/code", {"PYTHONPATH": "/home/ann"}, (RANK,), 1.0)
    plan = with_request("code", left_out=[{"source": "/home/ann/.gitignore:1", "pattern": "x", "entries": 1}])
    stage = {"name": "digits", "source": "s3://b/digits", "link": "/windlass/data/digits", "python": "/home/ann/evil"}
    more = {"node": spec.to_json(), "stage": stage, "mount-volume": {"kind": "PersistentVolume"}}
    plan["steps"] += [{"kind": kind, "summary": "", "request": request} for kind, request in more.items()]
    found = imported(plan, plan)
    assert [step.kind for step in found.steps] == ["cluster", "object", "attempt", "code", "node", "stage"]
    assert found.only(NodeStep).spec == NodeSpec(0, "", "", spec.cwd, spec.env, spec.ranks, 0.0)
    assert (found.only(CodeStep).left_out, found.only(StageStep).python) == ((), "")
    assert Plan.from_json(json.loads(found.to_text())) == found


OF_THEIR_MACHINE = {
    "cluster": {"context", "kubeconfig"},
    "code": {"folder", "address", "files", "left_out", "added", "unpacked_bytes", "is_imported"},
    "stage": {"python"},
    "upload": {"python"},
}
"""Fields that commands on other machines do not need."""


def test_each_field_of_a_step_is_shared_or_listed_as_local() -> None:
    for kind, step in KINDS.items():
        if step.shared is not None:
            own = step.fields().keys() - {"summary", *step.shared}
            assert (kind, own) == (kind, OF_THEIR_MACHINE.get(kind, set()))


@pytest.mark.parametrize("via", WORKLOADS)
def test_imported_plan_has_all_shared_fields(via: str) -> None:
    more: dict[str, Any] = {"launcher": "mpi"} if via == "mpijob" else {}
    data = [{"name": "digits", "source": "s3://b/digits"}]
    where = {"via": via, "results": {"size": "1GiB"}, "data": {"claim": "sets", "size": "1GiB"}}
    plan = planned(INSIDE, nodes=2, data=data, outputs="s3://b/out", queue="team", kubernetes=where, **more)
    assert {"stage", "stage-job", "upload", "transfer", "supervisor"} <= {step.kind for step in plan.steps}
    found = imported(plan.to_json(), plan.to_json(), ClusterNamespace("lab", "team-a", "/here/config"))
    was = [step for step in plan.steps if not isinstance(step, DataClaimStep)]
    assert [step.kind for step in found.steps] == [step.kind for step in was]
    for one, before in zip(found.steps, was, strict=True):
        if isinstance(one, ManifestStep):
            assert one == before
        elif not isinstance(one, NodeStep):
            assert [getattr(one, name) for name in one.shared or ()] == [
                getattr(before, name) for name in one.shared or ()
            ]
    assert (found.policy, found.nodes) == (plan.policy, plan.nodes)


def test_plan_changed_after_the_submission_is_refused() -> None:
    """The user in question may change ConfigMaps, and may not create pods."""
    plan = with_request("attempt", spec={"template": {"spec": {"hostNetwork": True}}})
    with pytest.raises(DamagedRecord, match=f"Job {RUN}-supervisor was created with another one"):
        imported(plan, a_plan())


@pytest.mark.parametrize(
    "plan",
    [[], {**a_plan(), "run_id": "other-7f3k2"}, {**a_plan(), "engine": "local"}, {**a_plan(), "steps": []},
     {**a_plan(), "steps": 7}, {**a_plan(), "job": []}, {**a_plan(), "num_nodes": "1"}, {**a_plan(), "more": 1},
     {**a_plan(), "price": "5 USD"}, {**a_plan(), "output_dir": "/home/victim"}, {**a_plan(), "num_nodes": 10**300},
     {**a_plan(), "num_nodes": -1}, {**a_plan(), "nodes": NO_NODES.replace(num_nodes=1 << 40).to_json()},
     {**a_plan(), "policy": {**NO_PLAN.policy.to_json(), "min_nodes": "x"}}, {**a_plan(), "num_spares": "1"},
     {**a_plan(), "policy": {**NO_PLAN.policy.to_json(), "hook": "/home/ann/evil"}}, {**a_plan(), "num_spares": -1},
     {**a_plan(), "job": {"checkpoint": 7}}, with_step("folder", path="/home/victim", checkpoints="/home/victim"),
     with_step("service", engine="sagemaker", base="/home/victim"), with_step("unknown"), with_step("node", evil="x"),
     with_request("cluster", credentials="/home/victim/.aws"), with_request("code", files=[{"name": "a"}]),
     {**a_plan(), "nodes": {**NO_NODES.to_json(), "hook": "/home/ann/evil"}},
     with_request("code", bytes=[1]), with_request("cluster", expires_seconds="never"),
     with_request("cluster", namespace="kube-system"), with_request("cluster", via="x"),
     with_request("object", kind="RoleBinding"),
     with_request("object", metadata={"name": RUN, "namespace": "kube-system"}),
     with_request("attempt", metadata={"name": "other-7f3k2-1", "namespace": "team"}),
     with_request("object", metadata={"name": f"{RUN}-other", "namespace": "team"}),
     with_request("code", pieces=[{"kind": "Secret"}])],
)  # fmt: skip
def test_plan_that_names_objects_of_others_is_refused(plan: Any) -> None:
    """Commands act on the plan with the permissions of their user, on this machine and in the cluster."""
    with pytest.raises(DamagedRecord, match=f"the plan in ConfigMap {RUN}-supervisor was changed") as found:
        imported(plan, plan)
    assert PLAN_FILE not in found.value.message


# -- labels and annotations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["abc", "", "-1", "²", "9" * 60, "7" * 5000])
def test_invalid_numbers_in_labels_do_not_break_lists(text: str) -> None:
    """Users who may create pods in the namespace may set any label and annotation."""
    annotated = [{INDEX: text}, {layout.FIRST_PLACE_ANNOTATION: text}]
    pods = [
        {"metadata": {"name": "a", "labels": {layout.ATTEMPT_LABEL: text}, "annotations": one}} for one in annotated
    ]
    assert by_id(pods) == {}
    assert layout.attempt_of(pods[0]) == 0
