"""Realistic manifests become equivalent jobs: those of the reference systems, and twenty others."""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.importers.shapes import FILES, MANIFESTS, fields, form_of, imported, job_of, left_of

from windlass.actions.init import check
from windlass.actions.jobs import ReadyJob
from windlass.errors import JobFileError
from windlass.importers.convert import Imported, import_text
from windlass.importers.documents import JOBS, split
from windlass.runs.context import Context
from windlass.spec.parse import parse_job
from windlass.spec.targets import LocalTarget

GIBI = 1 << 30
FOREIGN = Path(__file__).parents[1] / "foreign" / "jobfiles"
KINDS = ("emptyDir", "hostPath", "nfs", "configMap", "secret")


def name_of(path: Path) -> str:
    return path.stem


ALIASED = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: aliased}
spec:
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: pytorch
              image: example/torch:1
              command: [torchrun, /app/train.py]
              env: &env
                - {name: LR, value: "0.1"}
              resources: {limits: {nvidia.com/gpu: 2}}
    Worker: {<<: *replica, replicas: 3}
"""


def test_aliases_and_merged_mappings_are_expanded() -> None:
    made = import_text(ALIASED, "file.yaml")
    assert (made.job.nodes.max, made.job.resources.gpus, dict(made.job.env)) == (4, 2, {"LR": "0.1"})
    assert not made.actionable


# -- the shapes of the reference systems ------------------------------------------------------------------------------


def test_elastic_yolo_job_keeps_its_range_restarts_and_claim() -> None:
    assert job_of("s0-yolov5") == {
        "name": "yolov5-training",
        "run": "/workspace/yolov5/train.py --data=/workspace/train/datasets/head.yaml --epochs=20 --batch=48 "
        "--weights=yolov5s.pt --project=/workspace/train/datasets/runs --name=heads",
        "nodes": {"min": 1, "max": 2},
        "resources": {"gpus": 1},
        "image": "example/yolov5:1",
        "env": {"LOGLEVEL": "DEBUG"},
        "restarts": {"max": 100},
        "volumes": [{"claim": "efs-claim", "path": "/workspace/train/datasets"}],
        "kubernetes": {"namespace": "elastic-job"},
    }
    assert set(left_of("s0-yolov5")) == {"PersistentVolumeClaim/efs-claim", "PersistentVolume/efs-pv"}


def test_elasticjob_with_options_only_is_assumed_to_start_torchrun() -> None:
    job = job_of("s0-elasticjob")
    assert (job["run"], job["nodes"]) == ("/workspace/main.py --arch=resnet18 --epochs=1", {"min": 1, "max": 2})


def test_hard_coded_ranks_of_master_and_worker_make_one_job_of_two_nodes() -> None:
    assert job_of("s1-mnist") == {
        "name": "pytorchjob-distributed-training",
        "run": "distributed-train.py",
        "nodes": 2,
        "procs_per_node": 2,
        "image": "example/mnist:latest",
        "env": {"GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"},
        "restarts": {"max": 3},
        "grace": 600.0,
        "kubernetes": {"namespace": "default", "annotations": {"sidecar.istio.io/inject": "false"}},
    }
    assert not any("another" in meaning for meaning in left_of("s1-mnist").values())


def test_oldest_mpijob_version_becomes_an_mpi_job() -> None:
    job = job_of("s2-horovod")
    assert (job["launcher"], job["nodes"], job.get("procs_per_node", 1)) == ("mpi", 2, 1)
    assert job["run"].startswith("cifar10-tf1-horovod-k8s.py --epochs=10 ")
    assert job["env"] == {
        "HDF5_USE_FILE_LOCKING": "FALSE",
        "OMPI_MCA_btl_tcp_if_exclude": "lo",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "^openib",
        "NCCL_DEBUG": "INFO",
    }
    assert job["volumes"] == [{"claim": "fsx-claim", "path": "/training-data"}]


def test_master_and_workers_that_start_python_have_one_rank_per_node() -> None:
    job = job_of("s3-notebook")
    assert (job["nodes"], job.get("procs_per_node", 1), job["launcher"]) == (3, 1, "pytorch")
    assert job["run"] == "/home/jovyan/train/cifar10-distributed-gpu-final.py --epochs 10 --backend gloo"
    assert job["resources"] == {"cpus": 1.0, "memory": 2 * GIBI}


def test_mask_rcnn_job_keeps_slots_volumes_and_nodes() -> None:
    job = job_of("s4-maskrcnn")
    assert (job["launcher"], job["nodes"], job["procs_per_node"]) == ("mpi", 2, 8)
    assert job["resources"] == {"gpus": 8, "instance": "p3.16xlarge"}
    assert job["volumes"] == [
        {"claim": "pv-fsx", "path": "/fsx"},
        {"source": {"hostPath": {"path": "/ebs"}}, "path": "/ebs"},
    ]
    assert job["env"]["HOROVOD_AUTOTUNE"] == "1"


def test_code_cloned_by_a_chart_is_cloned_in_setup_once_per_node() -> None:
    job = job_of("s4-elastic")
    assert job["run"] == "/efs/home/repo/train.py --epochs 3"
    assert job["setup"] == (
        "(git clone https://example.com/repo.git -b main /efs/home/repo) || true\n"
        "(cd /efs/home/repo && pip install -r requirements.txt) || true\n"
    )
    assert (job["nodes"], job["restarts"]["max"], job["procs_per_node"]) == (2, 10, 4)


# -- others -----------------------------------------------------------------------------------------------------------


def test_trainjob_is_read_with_queue_secret_and_deadline() -> None:
    assert job_of("h01") == {
        "name": "llama",
        "run": "train.py --lr 1e-4",
        "nodes": 2,
        "procs_per_node": 4,
        "resources": {"gpus": 4, "cpus": 16.0, "memory": 64 * GIBI},
        "image": "example/llama:1.2",
        "env": {"NCCL_DEBUG": "WARN"},
        "secrets": ["hf"],
        "labels": {"team": "nlp"},
        "timeout": 7200.0,
        "queue": "user-queue",
        "kubernetes": {"namespace": "team-a"},
    }


def test_trainjob_is_merged_with_the_runtime_of_its_file_and_its_patches() -> None:
    job = job_of("h02")
    assert (job["name"], job["run"], job["image"]) == ("bert", "/opt/bert/train.py --epochs 2", "example/torch:2.9")
    assert (job["nodes"], job["procs_per_node"], job["restarts"]) == (3, "auto", {"max": 2})
    assert job["resources"] == {"gpus": 1, "instance": "g5.xlarge"}
    assert job["volumes"] == [{"claim": "corpus", "path": "/data"}]
    assert job["kubernetes"] == {"service_account": "trainer", "tolerations": [{"key": "nvidia.com/gpu"}]}
    assert "TrainingRuntime/team-torch: spec.template.spec.replicatedJobs[0]" in left_of("h02")


def test_missing_runtime_is_requested() -> None:
    assert "kubectl get ClusterTrainingRuntime torchtune" in left_of("h03")["spec.runtimeRef"]
    assert (job_of("h03")["grace"], job_of("h03")["priority"]) == (120.0, "high")


def test_jobset_has_the_nodes_of_all_replicas_and_its_shell_command_is_parsed() -> None:
    job = job_of("h04")
    assert (job["nodes"], job["procs_per_node"], job["run"]) == (4, 2, "/app/train.py --batch 64")
    assert job["resources"] == {"gpus": 2, "gpu_type": "nvidia-tesla-t4", "shm": 8 * GIBI}
    assert job["env"] == {"NCCL_IB_DISABLE": "1"}
    name = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    assert job["kubernetes"] == {
        "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        "pod": {"spec": {"containers": [{"name": "node", "env": [name]}]}},
        "service_account": "vision",
        "ttl": 600.0,
    }


def test_training_job_of_a_jobset_is_imported_and_the_others_are_reported() -> None:
    assert (job_of("h05")["run"], job_of("h05")["nodes"]) == ("/app/work.py", 4)
    assert "spec.replicatedJobs[0]" in left_of("h05")


def test_plain_job_keeps_the_quoting_of_its_words() -> None:
    job = job_of("h06")
    assert job["run"] == """train.py --name 'two words' --quote 'it'"'"'s'"""
    assert (job["resources"], job["restarts"], job["timeout"]) == ({"cpus": 2.0, "memory": 10**9}, {"max": 2}, 3600.0)
    assert job["kubernetes"] == {
        "limits": {"ephemeral-storage": "10Gi"},
        "requests": {"cpu": "500m"},
        "image_pull_secrets": ["regcred"],
        "ttl": 100.0,
    }


def test_indexed_job_has_a_node_per_index_and_shell_variables_are_expanded() -> None:
    job = job_of("h07")
    assert (job["nodes"], job["procs_per_node"], job["run"]) == (4, 8, '/train/main.py --data "$DATA"')
    assert job["kubernetes"]["pod"]["spec"]["hostNetwork"] is True
    assert "vpc.amazonaws.com/efa" in job["kubernetes"]["limits"]


def test_sequential_pods_are_reported() -> None:
    assert job_of("h08")["nodes"] == 2
    assert "spec.completions" in left_of("h08")


def test_volumes_of_every_kind_are_kept_and_other_containers_are_reported() -> None:
    job, where = job_of("h09"), "spec.template.spec"
    assert job["volumes"] == [
        {"source": {"emptyDir": {}}, "path": "/scratch"},
        {"source": {"hostPath": {"path": "/mnt/disk", "type": "Directory"}}, "path": "/host", "read_only": True},
        {"source": {"nfs": {"server": "10.0.0.1", "path": "/exports"}}, "path": "/nfs"},
        {"config_map": "conf", "path": "/conf"},
        {"secret": "creds", "path": "/creds"},
        {"claim": "work", "path": "/work", "sub_path": "ada", "read_only": True},
    ]
    assert set(left_of("h09")) == {
        f"{where}.containers[0]",
        f"{where}.containers[1].command",
        f"{where}.containers[1].volumeMounts[6]",
        f"{where}.volumes[6]",
        "ConfigMap/conf: data",
    }
    pod = job["kubernetes"]["pod"]["spec"]
    assert [one["name"] for one in pod["initContainers"]] == ["fetch"]
    assert pod["containers"][0].keys() == {"name", "livenessProbe", "lifecycle", "securityContext"}


def test_variables_are_expanded_as_in_the_cluster_and_unknown_ones_are_reported() -> None:
    job = job_of("h10")
    assert job["run"] == """/app/train.py "--lr=${LR}" "--out=${BASE}/runs" '--cost=$(5)'"""
    assert job["env"] == {
        "mode": "fast",
        "LEVEL": "1.10",
        "LR": "0.1",
        "BASE": "/efs",
        "FULL": "/efs/data",
        "EMPTY": "",
        "MODE": "fast",
    }
    assert job["secrets"] == ["tokens"]
    assert job["kubernetes"]["env_from"] == ["elsewhere"]
    [patch] = job["kubernetes"]["pod"]["spec"]["containers"]
    assert {one["name"]: next(iter(one["valueFrom"])) for one in patch["env"]} == {
        "OTHER": "configMapKeyRef",
        "WANDB": "secretKeyRef",
        "POD_IP": "fieldRef",
        "CPUS": "resourceFieldRef",
    }
    container = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]"
    lost = left_of("h10")
    assert {one for one in lost if one.startswith(container)} == {f"{container}.envFrom[3]", f"{container}.env[5]"}


def test_required_node_labels_become_fields_and_other_rules_a_patch() -> None:
    job = job_of("h11")
    assert job["resources"] == {"gpus": 8, "instance": "p4d.24xlarge"}
    assert (job["procs_per_node"], job["priority"]) == (8, "urgent")
    zones = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a", "us-east-1b"]}
    pod = job["kubernetes"].pop("pod")["spec"]
    assert job["kubernetes"] == {
        "tolerations": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}],
        "lost_after": 45.0,
    }
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    rules = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]
    assert pod == {
        "affinity": {
            "nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": [zones]}]}},
            "podAntiAffinity": {required: rules},
        },
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "schedulerName": "volcano",
        "runtimeClassName": "nvidia",
    }


def test_differing_pods_are_reported_and_rank_0_is_used() -> None:
    job = job_of("h12")
    assert (job["nodes"], job["run"], job["image"]) == (4, "/app/train.py --rank0", "example/torch:1")
    [path] = [path for path in FILES if path.stem.startswith("h12")]
    said = [one.meaning for one in imported(path).actionable]
    assert [re.findall(r"another (\S+) than", one) for one in said] == [
        ["env.ONLY"],
        ["image"],
        ["resources.cpus"],
        ["run"],
    ]


@pytest.mark.parametrize(
    ("name", "run", "nodes", "procs"),
    [
        ("h13", "scripts/bench.py --model=resnet50", 2, 1),
        ("h14", "./prog input.dat", 2, 2),
    ],
)
def test_mpijobs_of_all_versions_have_their_workers_and_slots(name: str, run: str, nodes: int, procs: int) -> None:
    job = job_of(name)
    assert (job["launcher"], job["run"], job["nodes"], job.get("procs_per_node", 1)) == ("mpi", run, nodes, procs)


def test_total_gpus_of_all_workers_are_reported_with_the_fields_to_set() -> None:
    assert "nodes: sets the number of nodes" in left_of("h15")["spec.gpus"]
    assert "spec.gpusPerNode" in left_of("h15")


def test_fields_added_by_a_cluster_need_no_action() -> None:
    assert left_of("h16") == {}
    assert job_of("h16") == {
        "name": "seen",
        "run": "/app/train.py",
        "procs_per_node": 2,
        "image": "example/a:1",
        "kubernetes": {"namespace": "team-b"},
    }


def test_shell_only_scripts_run_in_a_shell_in_their_folder() -> None:
    words = job_of("h17")["command"]
    assert words[:4] == ["sh", "-c", 'cd /repo && exec "$0" "$@"', "/bin/bash"]


def test_invalid_name_is_made_valid_and_unknown_fields_are_reported() -> None:
    job = job_of("h18")
    assert (job["name"], job["nodes"], job["procs_per_node"]) == (
        "an-elastic-job-with-a-very-long-name-bey",
        {"min": 2, "max": 4},
        4,
    )
    assert "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].unknownField" in left_of("h18")


def test_node_placement_and_priority_are_kept() -> None:
    job = job_of("h19")
    assert (job["priority"], job["queue"], job["grace"], job["timeout"]) == ("windlass-test-high", "q1", 5.0, 60.0)
    assert job["kubernetes"] == {
        "namespace": "team-c",
        "service_account": "builder",
        "node_selector": {"disk": "ssd"},
    }
    assert job["resources"] == {"cpus": 1.5, "memory": 512 << 20, "instance": "g4dn.xlarge"}


def test_values_of_wrong_types_are_reported() -> None:
    assert job_of("h20") == {"name": "types", "run": "/app/train.py 5", "launcher": "plain", "image": "example/a:1"}
    assert len(left_of("h20")) == 8


def test_skypilot_task_sets_resources_data_and_command() -> None:
    job = job_of("sky")
    assert job.pop("command")[-1].endswith("exec python3 -u main.py --model $MODEL")
    assert job.pop("setup").endswith("pip install -r requirements.txt")
    assert job == {
        "name": "mingpt",
        "launcher": "pytorch",
        "nodes": 2,
        "procs_per_node": 8,
        "resources": {"gpus": 8, "gpu_type": "H100", "cpus": 16.0, "memory": 64 * GIBI},
        "image": "example/torch:1",
        "env": {"MODEL": "gpt2", "VERSION": "1.10"},
        "secrets": ["hf-token", "wandb"],
        "data": [
            {"name": "corpus", "source": "s3://bucket/corpus"},
            {"name": "ckpt", "source": "s3://bucket/ckpt", "via": "mount", "write": True},
        ],
        "restarts": {"max": 3},
        "volumes": [{"claim": "team-claim", "path": "/mnt/shared"}],
    }
    assert {"secrets.HF_TOKEN", "secrets.WANDB", "file_mounts.~/.netrc", "envs.RUN_NAME"} <= set(left_of("sky"))


def test_torchx_appdef_is_imported_by_its_role() -> None:
    assert job_of("torchx") == {
        "name": "compute-world-size",
        "run": "main.py --lr 0.1",
        "nodes": {"min": 1, "max": 2},
        "procs_per_node": 8,
        "resources": {"gpus": 8, "cpus": 32.0, "memory": 128 * GIBI, "instance": "p4d.24xlarge"},
        "image": "example/torchx:0.7",
        "env": {"LOGLEVEL": "INFO", "TORCHX_TRACKING_EXPERIMENT_NAME": "default"},
        "restarts": {"max": 4},
        "volumes": [{"claim": "team-claim", "path": "/data"}],
        "kubernetes": {"limits": {"vpc.amazonaws.com/efa": "4"}},
    }


# -- of all -----------------------------------------------------------------------------------------------------------


def test_manifests_cover_every_supported_kind_and_version() -> None:
    texts = [path.read_text() for path in (*MANIFESTS, *FOREIGN.glob("*job-*.yaml"))]
    for kind, versions in JOBS.items():
        for version in versions:
            assert any(re.search(rf"apiVersion: {version}\s+kind: {kind}$", text, re.MULTILINE) for text in texts), (
                kind,
                version,
            )
    assert len([path for path in MANIFESTS if path.stem[0] == "h"]) == 20


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_job_file_parses_to_the_job_and_names_its_origin(path: Path) -> None:
    made = imported(path)
    assert parse_job(made.text) == made.job
    assert made.text.startswith(f"# Imported from {path.name}: ")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_local_plan_is_made_or_reports_what_is_missing(path: Path, tmp_path: Path) -> None:
    context = Context({"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, tmp_path)
    plan = check(ReadyJob(imported(path).job, tmp_path, path.name), LocalTarget(name="local"), context)
    assert all(note.code and note.message and note.fix for note in plan.notes if note.blocks)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_unmapped_fields_have_a_line_a_meaning_and_advice(path: Path) -> None:
    lines = path.read_text().splitlines()
    for one in imported(path).unmapped:
        assert one.field
        assert one.meaning
        assert one.instead
        last = re.split(r"[.:/]| ", re.sub(r"\[\d+\]$", "", one.field))[-1]
        assert 1 <= one.line <= len(lines)
        if not re.search(r"\d\]$", one.field) and "/" not in one.field and not is_absent(path, one.field):
            assert last in lines[one.line - 1], one


def is_absent(path: Path, field: str) -> bool:
    """Whether a note is about a missing field, which is reported at its expected position."""
    return re.split(r"[.:]", field)[-1].split("[")[0] + ":" not in path.read_text().replace('"', "")


@pytest.mark.slow
def test_no_secret_value_is_in_the_job_file_or_the_list() -> None:
    for path in FILES:
        made = imported(path)
        for text in (made.text, repr(made.unmapped)):
            assert "neverinanylist" not in text
            assert "abcdefgh12345" not in text


# -- nothing is lost silently -----------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict | list) and value:
        for step, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(below, (*path, step))
    elif value not in (None, {}, []):
        yield path


def with_another(document: Any, path: tuple[str | int, ...], value: int | None = None) -> Any:
    """Returns the document with another value of the same type, or with `value`, at a path."""
    found = copy.deepcopy(document)
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    had = inner[path[-1]]
    if value is not None:
        inner[path[-1]] = value
    elif isinstance(had, str):
        word = (
            f"{had}-another" if had.endswith("sh") else f"another-{had}"
        )  # a shell in another folder is still a shell
        inner[path[-1]] = str(int(had) * 2 or 1) if had.isdecimal() else word
    else:
        inner[path[-1]] = not had if isinstance(had, bool) else had + 7
    return found


def spelled(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def outcome(path: Path, documents: list[Any]) -> Any:
    text = "\n---\n".join(map(json.dumps, documents))
    try:
        made = import_text(text, path.name, form=form_of(path))
    except JobFileError as error:
        return str(error)
    return fields(made), [(one.field, one.meaning, one.instead) for one in made.unmapped], made.target


ODD: tuple[Any, ...] = (None, 3, -1, "x", "", True, [], {}, [[]], {"a": {"b": 1}}, ["x", 1, None], 1.5, "$(A) `b` \n|")


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_value_of_a_field_is_read_reported_or_refused(path: Path) -> None:
    chance = random.Random(path.stem)
    documents = [source.value for source in split(path.read_text(), path.name)]
    places = [
        (at, leaf[:length])
        for at, document in enumerate(documents)
        for leaf in leaves(document)
        for length in range(1, len(leaf) + 1)
    ]
    odd: Iterator[Any] = itertools.cycle(ODD)
    for at, place in chance.sample(places, min(16, len(places))):
        changed = copy.deepcopy(documents)
        inner = changed[at]
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = next(odd)
        found = outcome(path, changed)
        assert isinstance(found, str | tuple)


def test_unknown_field_is_reported_with_its_line(tmp_path: Path) -> None:
    text = (
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  brandNew: {deep: [1, {x: y}]}\n"
        "  backoffLimit: 0\n"
        "  template: {spec: {restartPolicy: Never, containers: [{name: a, image: b, command: [/bin/true]}]}}\n"
    )
    made: Imported = import_text(text, "job.yaml")
    assert [one.field for one in made.unmapped] == ["spec.brandNew.deep[0]", "spec.brandNew.deep[1].x"]
    assert {one.line for one in made.unmapped} == {5}
