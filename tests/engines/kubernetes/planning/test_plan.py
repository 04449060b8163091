"""The plan for a cluster is pure: it contains everything that a run requests, and refuses what is impossible."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from windlass.cli.plantext import plan_lines
from windlass.code.pack import Packed
from windlass.code.selection import ExcludedEntries
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec as find_pod_spec
from windlass.engines.kubernetes.objects.find_pod_specs import pod_templates
from windlass.engines.kubernetes.objects.manifests import MAX_PIECES, PIECE_BYTES
from windlass.engines.kubernetes.objects.planned import attempt_objects, numbered
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.planning.facts import Cluster, Facts
from windlass.engines.kubernetes.planning.plan import plan
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.rbac import Right
from windlass.engines.kubernetes.reading.preflight.rights import Rights
from windlass.engines.travel import CodeFacts
from windlass.errors import JobFileError
from windlass.plan.plan import Plan
from windlass.plan.steps import (
    Added,
    AttemptStep,
    ClaimStep,
    ClusterStep,
    CodeStep,
    IgnoredFiles,
    NetworkPolicyStep,
    NodeStep,
    ObjectStep,
    SentFile,
    SupervisorStep,
    TransferStep,
)
from windlass.services.service import ServiceKind, ServiceRequest, job_of
from windlass.spec.job import Job
from windlass.spec.labels import job_labels
from windlass.spec.targets import KubernetesTarget
from windlass.views.schema import schema_of

TARGET = KubernetesTarget(name="lab", context="lab", namespace="team-a", image="localhost/base:1")
CLUSTER = Cluster("v1.34.4", frozenset(way.api for way in WORKLOADS.values()), secrets=frozenset(), claims=frozenset())
FILES = (("data/a/vocab.json", 20480), ("data/labels.txt", 1024), ("evil\x1b[2J.py", 5), ("train.py", 900))
EXCLUDED = tuple(ExcludedEntries(f".gitignore:{line}", f"*.{line}", 30 - line) for line in range(1, 11))
CODE = Packed(b"x" * (PIECE_BYTES + 1), "ab" * 32, FILES, EXCLUDED, 41, 51200)
FACTS = Facts(CodeFacts("/home/ada/job", True, True, CODE), CLUSTER, "/home/ada/.kube/config")


def with_code(**changes: Any) -> Facts:
    return dataclasses.replace(FACTS, code=dataclasses.replace(FACTS.code, **changes))


def with_cluster(**changes: Any) -> Facts:
    return dataclasses.replace(FACTS, cluster=dataclasses.replace(CLUSTER, **changes))


LARGE = with_code(packed=dataclasses.replace(CODE, data=b"x" * (MAX_PIECES * PIECE_BYTES + 1)))


def planned(facts: Facts = FACTS, target: KubernetesTarget = TARGET, **fields: Any) -> Plan:
    job = Job(**{"name": "digits", "run": "train.py --epochs 5", **fields})
    return plan(job, target, facts, "digits-7f3k2", "boot")


def pod_spec(made: Plan) -> dict[str, Any]:
    return dict(find_pod_spec(attempt_objects(made)))


def blockers(made: Plan) -> dict[str, str]:
    return {note.code: note.message for note in made.notes if note.blocks}


def test_the_same_inputs_give_the_same_plan_byte_for_byte() -> None:
    assert planned(nodes=2).to_text() == planned(nodes=2).to_text()
    assert Plan.from_json(json.loads(planned(nodes=2).to_text())) == planned(nodes=2)


def test_all_objects_have_the_label_of_their_run() -> None:
    made = planned(nodes=2, kubernetes={"results": {"size": "1GiB"}})
    objects = [*made.manifests(ObjectStep), *made.manifests(ClaimStep), *made.manifests(AttemptStep)]
    objects += made.only(CodeStep).pieces
    assert {one["metadata"]["labels"][layout.RUN_LABEL] for one in objects} == {"digits-7f3k2"}
    assert {one["metadata"]["namespace"] for one in objects} == {"team-a"}
    assert pod_spec(made)["containers"][0]["image"] == "localhost/base:1"


def test_names_fit_into_labels() -> None:
    made = plan(Job(name="a" * 40, run="train.py", nodes=2), TARGET, FACTS, "a" * 40 + "-7f3k2", "boot")
    for way in WORKLOADS.values():
        host = way.host(layout.attempt_name(made.run_id, 999), made.run_id, 9999)
        assert max(map(len, host.split("."))) <= 63
    assert max(len(piece["metadata"]["name"]) for piece in made.only(CodeStep).pieces) <= 63


def test_pods_meet_the_restricted_security_standard() -> None:
    spec = pod_spec(planned())
    assert spec["securityContext"] | {"fsGroup": 0} == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 0,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert (spec["automountServiceAccountToken"], spec["restartPolicy"]) == (False, "Never")


def test_resource_requests_equal_limits() -> None:
    made = planned(resources={"gpus": 4, "cpus": 7.5, "memory": "16GiB", "shm": "2GiB", "instance": "g4dn.xlarge"})
    spec = pod_spec(made)
    amounts = {"cpu": "7500m", "memory": str(16 << 30), "nvidia.com/gpu": "4"}
    assert spec["containers"][0]["resources"] == {"requests": amounts, "limits": amounts}
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "g4dn.xlarge"}
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(2 << 30)}} in spec["volumes"]
    assert made.procs_per_node == 1


def test_a_claim_is_one_volume_and_a_volume_at_tmp_replaces_that_of_a_read_only_root() -> None:
    claims = [{"claim": "team", "path": "/data", "sub_path": "a"}, {"claim": "team", "path": "/results"}]
    scratch = {"source": {"emptyDir": {"sizeLimit": "1Gi"}}, "path": "/tmp"}
    spec = pod_spec(planned(volumes=[*claims, scratch], kubernetes={"read_only_root": True}))
    mounts = {one["mountPath"]: one["name"] for one in spec["containers"][0]["volumeMounts"]}
    assert mounts["/data"] == mounts["/results"]
    assert len(mounts) == len(spec["containers"][0]["volumeMounts"])
    [tmp] = [one for one in spec["volumes"] if one["name"] == mounts["/tmp"]]
    assert tmp["emptyDir"] == {"sizeLimit": "1Gi"}
    assert [one for one in spec["volumes"] if "persistentVolumeClaim" in one] == [
        {"name": mounts["/data"], "persistentVolumeClaim": {"claimName": "team"}}
    ]


def test_number_of_ranks_defaults_to_the_gpus_of_a_node() -> None:
    assert planned(procs_per_node="auto", resources={"gpus": 4}).procs_per_node == 4


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({"nodes": 2}, True),
        ({"nodes": 2, "launcher": "plain"}, False),
        ({"nodes": 2, "env": {"ACCELERATE_USE_CPU": "true"}}, False),
        ({"nodes": 2, "resources": {"gpus": 1}}, False),
        ({"nodes": 2, "kubernetes": {"runtime": "torch-distributed"}}, False),
        ({}, False),
    ],
)
def test_ranks_of_accelerate_that_would_train_alone_on_a_cpu_are_noted(fields: dict[str, Any], warned: bool) -> None:
    made = planned(with_code(imports=("accelerate", "torch")), **fields)
    assert ("accelerate-alone" in {note.code for note in made.notes}) == warned


def test_script_with_an_absolute_path_is_in_the_image() -> None:
    node = planned(run="/opt/train.py").every(NodeStep)[0].spec
    assert (node.script, node.ranks[0].argv[-1]) == ("/opt/train.py", "/opt/train.py")
    assert planned().every(NodeStep)[0].spec.script == f"{layout.CODE}/train.py"


def test_gpu_type_selects_the_label_of_nodes() -> None:
    labels = (("nvidia.com/gpu.product", "NVIDIA-A10G"), ("nvidia.com/gpu.product", "Tesla-T4"))
    facts = with_cluster(gpu_labels=labels)
    made = planned(facts, resources={"gpus": 1, "gpu_type": "T4"})
    assert pod_spec(made)["nodeSelector"] == {"nvidia.com/gpu.product": "Tesla-T4"}
    assert blockers(planned(facts, resources={"gpus": 1, "gpu_type": "H100"})) == {
        "gpu-type-missing": "no node has a GPU of type H100"
    }


@pytest.mark.parametrize(
    ("job", "target", "via"),
    [
        ({}, {}, "job"),
        ({}, {"via": "jobset"}, "jobset"),
        ({"kubernetes": {"via": "job"}}, {"via": "jobset"}, "job"),
    ],
)
def test_workload_kind_comes_from_the_job_or_the_target_or_is_a_job(
    job: dict[str, Any], target: dict[str, Any], via: str
) -> None:
    made = planned(FACTS, TARGET.model_copy(update=target), nodes=2, **job)
    assert made.only(ClusterStep).via == via
    assert made.manifests(AttemptStep)[0]["kind"] == {"job": "Job", "jobset": "JobSet"}[via]
    assert not blockers(made)


def test_workload_kind_that_the_cluster_does_not_serve_is_refused() -> None:
    facts = with_cluster(groups=frozenset({"batch/v1"}))
    assert "jobset-missing" in blockers(planned(facts, kubernetes={"via": "jobset"}))
    assert "mpijob-missing" in blockers(planned(facts, launcher="mpi"))
    old = dataclasses.replace(CLUSTER, groups=frozenset({"batch/v1", "kubeflow.org/v1"}))
    assert "mpijob-old" in blockers(planned(dataclasses.replace(FACTS, cluster=old), launcher="mpi"))


def test_launcher_mpi_and_mpijob_go_together() -> None:
    assert blockers(planned(launcher="mpi", nodes=2)) == {}
    assert "mpi" in blockers(planned(launcher="mpi", kubernetes={"via": "job"}))
    assert "mpi" in blockers(planned(kubernetes={"via": "mpijob"}))


def test_mpirun_of_one_node_asks_for_no_hosts() -> None:
    """The operator's host list names the pod itself, by a name that the cluster may not resolve yet."""
    [alone] = planned(launcher="mpi").every(NodeStep)
    first = planned(launcher="mpi", nodes=2).every(NodeStep)[0]
    assert [dict(one.spec.launch.env) for one in (alone, first) if one.spec.launch is not None] == [
        {"OMPI_MCA_orte_default_hostfile": "none", "PRTE_MCA_prte_default_hostfile": "none"},
        {"PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile"},
    ]


@pytest.mark.parametrize(
    ("facts", "fields", "code"),
    [
        (with_code(is_there=False), {}, "code-missing"),
        (with_code(has_script=False), {}, "script-missing"),
        (with_code(packed=None, problem=("the code is 99 MB", "ignore")), {}, "code-unpacked"),
        (LARGE, {}, "code-too-large"),
        (dataclasses.replace(FACTS, cluster=None, unreachable="does not answer"), {}, "cluster-unreachable"),
        (with_cluster(rights=Rights((Right("batch", "jobs", "create"),))), {}, "rights-missing"),
        (FACTS, {"secrets": ["hf-token"]}, "secret-missing"),
        (FACTS, {"volumes": [{"claim": "results", "path": "/results"}]}, "claim-missing"),
        (FACTS, {"kubernetes": {"results": {"claim": "results"}}}, "claim-missing"),
        (FACTS, {"launcher": "mpi", "kubernetes": {"via": "jobset"}}, "mpi"),
        (FACTS, {"python": ".venv/bin/python"}, "python-relative"),
    ],
)
def test_impossible_jobs_are_refused_in_the_plan(facts: Facts, fields: dict[str, Any], code: str) -> None:
    assert set(blockers(planned(facts, **fields))) == {code}


def test_a_streamed_source_is_read_by_the_pods() -> None:
    made = planned(data=[{"name": "digits", "source": "s3://bucket/digits/", "via": "stream"}])
    assert not blockers(made)
    assert made.nodes.contract["WINDLASS_DATA_DIGITS"] == "s3://bucket/digits/"


def test_a_folder_of_this_machine_cannot_be_streamed_to_pods() -> None:
    assert set(blockers(planned(data=[{"name": "digits", "source": "digits", "via": "stream"}]))) == {"data-remote"}


def test_unreadable_secrets_are_not_checked() -> None:
    facts = with_cluster(secrets=None)
    made = planned(facts, secrets=["hf-token"])
    assert not blockers(made)
    assert pod_spec(made)["containers"][0]["envFrom"] == [{"secretRef": {"name": "hf-token"}}]


def test_the_worker_finds_the_names_of_the_variables_that_secrets_have() -> None:
    """The worker masks the values of secrets, which are in its environment and in no file."""
    spec = pod_spec(planned(secrets=["hf-token", "keys"]))
    [node] = spec["containers"]
    [folder] = [one["value"] for one in node["env"] if one["name"] == "WINDLASS_SECRET_FOLDER"]
    [mount] = [one for one in node["volumeMounts"] if one["mountPath"] == folder]
    [volume] = [one for one in spec["volumes"] if one["name"] == mount["name"]]
    named = [{"secret": {"name": name, "optional": True}} for name in ("hf-token", "keys")]
    assert volume["projected"] == {"sources": named, "defaultMode": 0o400}
    assert "secrets" not in {one["name"] for one in pod_spec(planned())["volumes"]}


def test_objects_of_attempts_differ_in_number_and_size_only() -> None:
    sizes = {
        "job": '"completions": 2, "parallelism": 2',
        "jobset": '"completions": 2, "parallelism": 2',
        "trainjob": '"numNodes": 2',
        "pytorchjob": '"replicas": 2',
    }
    for via, size in sizes.items():
        made = planned(nodes=4, kubernetes={"via": via})
        first, third = numbered(made, 1, 4), numbered(made, 3, 2)
        assert first == attempt_objects(made)
        assert {one["metadata"]["name"] for one in third} == {"digits-7f3k2-3"}
        text = json.dumps(third)
        assert size in text
        assert '"windlass.dev/attempt": "1"' not in text
        assert "digits-7f3k2-1" not in text


def test_results_are_written_to_a_separate_folder_per_run() -> None:
    mounts = {
        one["name"]: one
        for one in pod_spec(planned(kubernetes={"results": {"claim": "c"}}))["containers"][0]["volumeMounts"]
    }
    assert mounts["results"]["subPath"] == "windlass/digits-7f3k2"
    assert lost(kubernetes={"results": {"claim": "c"}}) == {}


def lost(**fields: Any) -> dict[str, str]:
    """Returns the notes on what is deleted with the pods of a job."""
    return {note.code: note.message for note in planned(**fields).notes if note.code.endswith("-lost")}


def test_outputs_without_a_claim_are_fetched_up_to_a_limit() -> None:
    made = planned()
    [step] = [step for step in made.steps if step.kind == "collect"]
    assert "outputs of up to 1GiB from the pods to runs/digits-7f3k2/output after the last attempt" in step.summary
    assert (step.request["max_bytes"], made.nodes.outputs_max) == (1 << 30, 1 << 30)
    assert lost() == {"checkpoints-lost": "checkpoints are deleted with the pods: no results claim is set"}
    assert planned(kubernetes={"outputs_max": "2GiB"}).nodes.outputs_max == 2 << 30


@pytest.mark.parametrize(
    "fields",
    [{"kubernetes": {"outputs_max": 0}}, {"kubernetes": {"via": "pytorchjob"}}, {"launcher": "mpi", "nodes": 2}],
)
def test_plan_warns_of_outputs_that_are_deleted_with_the_pods(fields: dict[str, Any]) -> None:
    made = planned(**fields)
    assert (made.nodes.outputs_max, [step for step in made.steps if step.kind == "collect"]) == (0, [])
    [(code, message)] = lost(**fields).items()
    assert (code, message.startswith("outputs and checkpoints are deleted with the pods")) == ("results-lost", True)


def test_results_claim_and_outputs_max_exclude_each_other() -> None:
    with pytest.raises(JobFileError, match="is given together with results"):
        planned(kubernetes={"results": {"claim": "c"}, "outputs_max": "1GiB"})


def test_checkpoints_in_a_store_need_no_claim() -> None:
    made = planned(checkpoint={"folder": "s3://bucket/saved/"})
    assert made.nodes.contract["WINDLASS_CHECKPOINT_DIR"] == "s3://bucket/saved/digits-7f3k2"
    assert not [note for note in made.notes if note.code.endswith("-lost")]
    stays = planned(checkpoint={"folder": "s3://bucket/saved/"}, kubernetes={"outputs_max": 0})
    assert any(note.message.startswith("outputs are deleted") for note in stays.notes)
    assert any("checkpoints below s3://bucket/saved/" in line for line in plan_lines(made, plain))


def plain(text: str, *_: Any, **__: Any) -> str:
    return text


def test_plan_shows_the_transferred_code_and_its_size() -> None:
    lines = [line.strip() for line in plan_lines(planned(), plain)]
    assert "from      /home/ada/job" in lines
    assert "size      4 files, 22 KiB, and 41 files of Windlass, 50 KiB: 977 KiB compressed" in lines
    assert any(line.startswith("largest   data/a/vocab.json (20 KiB), data/labels.txt (1.0 KiB)") for line in lines)
    assert "folders   data/ (21 KiB)" in lines
    assert "left out  29 by .gitignore:1 *.1" in lines
    assert "2 rules more" in lines
    assert "files" not in " ".join(lines[lines.index("2 rules more") :]).split("Service")[0]


def test_verbose_plan_lists_transferred_files_and_exclusion_rules() -> None:
    lines = [line.strip() for line in plan_lines(planned(), plain, verbose=1)]
    assert "files     data/a/vocab.json (20 KiB)" in lines
    assert "train.py (900 B)" in lines
    assert "20 by .gitignore:10 *.10" in lines


def test_file_names_cannot_contain_terminal_escapes() -> None:
    assert "\x1b" not in "\n".join(plan_lines(planned(), plain, verbose=1))


def test_transferred_code_in_plan_json_matches_the_schema() -> None:
    for facts in (FACTS, with_code(packed=None)):
        jsonschema.validate(json.loads(planned(facts).to_text()), schema_of("plan"))
    code = planned().only(CodeStep)
    assert code.files[1] == SentFile("data/labels.txt", 1024)
    assert code.left_out[0] == IgnoredFiles(".gitignore:1", "*.1", 29)
    assert (code.unpacked_bytes, code.added) == (22409, Added(41, 51200))
    wrong = json.loads(planned().to_text())
    del next(step for step in wrong["steps"] if step["kind"] == "code")["request"]["digest"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema_of("plan"))


def policies(made: Plan) -> dict[str, Any]:
    return {one["metadata"]["name"]: one["spec"] for one in made.manifests(NetworkPolicyStep)}


def test_network_policies_admit_only_pods_of_the_same_run() -> None:
    cluster = dataclasses.replace(CLUSTER, rights=Rights(has_account=True))
    made = policies(planned(dataclasses.replace(FACTS, cluster=cluster), nodes=2))
    run, of_attempts = {"windlass.dev/run": "digits-7f3k2"}, [{"key": "windlass.dev/attempt", "operator": "Exists"}]
    pods = {"matchLabels": run, "matchExpressions": of_attempts}
    assert made["digits-7f3k2"] == {
        "podSelector": pods,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": run}}]}],
    }
    assert made["digits-7f3k2-supervisor"] == {
        "podSelector": {"matchLabels": {**run, "app.kubernetes.io/component": "supervisor"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": pods}], "ports": [{"protocol": "TCP", "port": 29300}]}],
    }
    assert list(policies(planned())) == ["digits-7f3k2"], "there is no supervisor in the cluster"


def test_pod_of_a_service_mounts_its_credentials_from_the_secret_of_the_run() -> None:
    request = ServiceRequest(ServiceKind.NOTEBOOK, "notebook", Path(), {"command": ["true"]})
    inside = with_cluster(rights=Rights(has_account=True))
    made = plan(job_of(request), TARGET, inside, "notebook-7f3k2", "boot")
    spec = pod_spec(made)
    [volume] = [one for one in spec["volumes"] if one["name"] == "service"]
    [mount] = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "service"]
    [secret] = [one["metadata"]["name"] for one in made.manifests(SupervisorStep) if one["kind"] == "Secret"]
    assert volume["secret"] == {"secretName": secret, "defaultMode": 0o440}
    assert (mount["mountPath"], mount["readOnly"]) == (made.nodes.contract["WINDLASS_SERVICE_DIR"], True)
    assert spec["activeDeadlineSeconds"] > 8 * 3600
    [owner] = [one for one in made.manifests(ObjectStep) if one["kind"] == "ConfigMap"]
    assert job_labels(owner["metadata"]["labels"])["windlass.dev/service"] == "notebook"
    assert "service" not in [one["name"] for one in pod_spec(planned(inside))["volumes"]]


def test_service_without_a_supervisor_in_the_cluster_is_refused() -> None:
    request = ServiceRequest(ServiceKind.NOTEBOOK, "notebook", Path(), {"command": ["true"]})
    made = plan(job_of(request), TARGET, FACTS, "notebook-7f3k2", "boot")
    assert "ends by its supervisor" in blockers(made)["service-unsupervised"]


def test_missing_permission_for_network_policies_is_noted_unless_disabled() -> None:
    facts = with_cluster(rights=Rights(rbac.POLICIES))
    made = planned(facts)
    assert (policies(made), blockers(made)) == ({}, {})
    assert "network-open" in {note.code for note in made.notes}
    unwanted = planned(facts, TARGET.model_copy(update={"network_policy": False}))
    assert policies(planned(target=TARGET.model_copy(update={"network_policy": False}))) == {}
    assert "network-open" not in {note.code for note in unwanted.notes}


@pytest.mark.parametrize(
    ("resources", "limit"),
    [({}, 8 << 30), ({"memory": "16GiB"}, 16 << 30), ({"memory": "16GiB", "shm": "2GiB"}, 2 << 30)],
)
def test_shared_memory_has_a_size_limit(resources: dict[str, str], limit: int) -> None:
    volumes = {volume["name"]: volume for volume in pod_spec(planned(resources=resources))["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": str(limit)}


def test_job_without_resource_requests_is_warned_of() -> None:
    def codes(**resources: Any) -> set[str]:
        return {note.code for note in planned(resources=resources).notes}

    assert "requests-missing" in codes() & codes(gpus=1)
    assert "requests-missing" not in codes(cpus=1) | codes(memory="1GiB")


def test_pods_have_annotations_with_job_and_run() -> None:
    target = TARGET.model_copy(update={"env": {"MODE": "fast", "HF_HOME": "/cache"}})
    made = planned(target=target, run="train.py --name 'a b'", env={"MODE": "exact"}, nodes=2)
    [template] = pod_templates(made.manifests(AttemptStep)[0])
    notes = template["metadata"]["annotations"]
    assert notes["windlass.dev/command"] == "train.py --name 'a b'"
    assert json.loads(notes["windlass.dev/env"]) == {"HF_HOME": "/cache", "MODE": "exact"}
    assert notes["windlass.dev/code-digest"] == "ab" * 32


def test_code_too_large_for_objects_is_stored_in_the_targets_store() -> None:
    stored = TARGET.model_copy(update={"storage": "s3://bucket/windlass/"})
    made = planned(LARGE, stored, env={"AWS_ENDPOINT_URL": "http://minio:9000", "NCCL_DEBUG": "INFO"})
    assert not blockers(made)
    code = made.only(CodeStep)
    source = f"s3://bucket/windlass/code/{CODE.digest}.tar.gz"
    assert (code.source, code.pieces) == (source, ())
    spec = pod_spec(made)
    variables = {one["name"]: one["value"] for one in spec["containers"][0]["env"]}
    assert variables["WINDLASS_CODE_SOURCE"] == source
    assert (variables["AWS_ENDPOINT_URL"], variables.get("NCCL_DEBUG")) == ("http://minio:9000", None)
    mounts = {one["name"]: one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
    assert (mounts.get("program"), mounts.get("code")) == ("/windlass/transfer", None)
    assert len(made.manifests(TransferStep)) == 1
    assert "WINDLASS_CODE_SOURCE" not in planned(FACTS, stored).to_text(), "what objects can carry they do"


def test_the_plan_names_the_queue_in_which_each_attempt_waits() -> None:
    def made(**fields: Any) -> str:
        [step] = [one for one in planned(**fields).steps if one.kind == "attempt"]
        return step.summary

    assert made(queue="team-a", priority="high").endswith(
        "for each restart; each waits in queue team-a at priority high"
    )
    assert made(queue="team-a").endswith("in queue team-a")
    assert made().endswith("for each restart")


def test_ranks_in_the_network_of_their_nodes_get_no_network_policy() -> None:
    plan = planned(kubernetes={"pod": {"spec": {"hostNetwork": True}}}, nodes=2)
    assert plan.manifests(NetworkPolicyStep) == []
    assert "network-open" in [note.code for note in plan.notes]
    assert len(planned(nodes=2).manifests(NetworkPolicyStep)) == 1


def test_pods_in_the_network_of_their_nodes_have_to_be_apart() -> None:
    fields: dict[str, Any] = {"pod": {"spec": {"hostNetwork": True}}}
    assert "host-ports" in [note.code for note in planned(kubernetes=fields, nodes=2).notes]
    assert "host-ports" not in [note.code for note in planned(kubernetes=fields).notes]
    apart = {**fields, "affinity": {"apart": "node"}}
    assert "host-ports" not in [note.code for note in planned(kubernetes=apart, nodes=2).notes]


def test_capabilities_without_effect_are_named() -> None:
    fields: dict[str, Any] = {"capabilities": ["IPC_LOCK"]}
    assert "capabilities" in [note.code for note in planned(kubernetes=fields).notes]
    for user in (0, None):
        patch = {"spec": {"securityContext": {"runAsUser": user, "runAsNonRoot": False}}}
        assert "capabilities" not in [note.code for note in planned(kubernetes={**fields, "pod": patch}).notes]
