"""Exported objects train without Windlass: they are complete, have no owners, and wait for no supervisor."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
from typing import Any

import pytest
from ruamel.yaml import YAML
from tests.engines.kubernetes.planning.test_plan import CLUSTER, planned, with_code

from windlass.cli.manifesttext import head_lines
from windlass.code.pack import Packed
from windlass.engines.exported import Manifests
from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec, pod_specs
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.runtimes import Patching
from windlass.engines.kubernetes.planning.export import PIECE_BYTES, manifests
from windlass.engines.kubernetes.planning.runtimes import Runtimes
from windlass.engines.kubernetes.reading.preflight.rights import Rights
from windlass.importers.convert import import_text
from windlass.plan.steps import SupervisorStep
from windlass.spec.yamlwriter import block_lines

DATA = bytes(range(256)) * 2000
SMALL = with_code(packed=Packed(DATA, hashlib.sha256(DATA).hexdigest(), (("train.py", 900),)))
ANNOTATION_BYTES = 262_144
"""Maximum size of an object's annotations in bytes; `kubectl apply` stores the whole object in one."""


def made(**fields: Any) -> Manifests:
    return manifests(planned(SMALL, **fields), DATA, 1_800_000_000.0)


def named(found: Manifests, kind: str) -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in found.objects if one["kind"] == kind}


def test_exported_objects_for_a_runtime_have_only_fields_of_a_trainjob() -> None:
    facts = dataclasses.replace(SMALL, cluster=dataclasses.replace(CLUSTER, runtimes=Runtimes((), None, Patching())))
    plan = planned(facts, kubernetes={"runtime": "torch-distributed"}, timeout=60)
    found = manifests(plan, DATA, 1_800_000_000.0)
    made = found.objects[-1]
    spec = pod_spec([made])
    assert (made["kind"], "activeDeadlineSeconds" in spec) == ("TrainJob", False)
    assert [note.code for note in found.notes] == ["written-timeout"]
    assert not any(kind.startswith("trainingruntimes") for kind in found.kinds)
    [code] = [one for one in spec["volumes"] if one["name"] == "windlass-code"]
    there = named(found, "ConfigMap")
    assert {one["configMap"]["name"] for one in code["projected"]["sources"]} <= there.keys()
    assert len(code["projected"]["sources"]) == -(-len(DATA) // PIECE_BYTES)


@pytest.mark.parametrize("via", ["job", "jobset", "trainjob"])
def test_exported_objects_do_not_depend_on_the_place_of_the_supervisor(via: str) -> None:
    inside = dataclasses.replace(SMALL, cluster=dataclasses.replace(CLUSTER, rights=Rights(has_account=True)))
    plans = [planned(facts, nodes=2, kubernetes={"via": via}) for facts in (SMALL, inside)]
    assert [bool(plan.manifests(SupervisorStep)) for plan in plans] == [False, True]
    outside, found = [manifests(plan, DATA, 1_800_000_000.0) for plan in plans]
    assert found.objects[-1] == outside.objects[-1]
    assert list(pod_specs(found.objects)) == list(pod_specs(outside.objects))


def node_specs(found: Manifests) -> dict[str, Any]:
    [config] = [one for one in found.objects if "nodes.json.gz" in one.get("binaryData", {})]
    asked: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(config["binaryData"]["nodes.json.gz"])))
    return asked


@pytest.mark.parametrize("via", sorted(WORKLOADS))
def test_exported_objects_contain_all_mounts_and_the_complete_code(via: str) -> None:
    found = made(nodes=2, kubernetes={"via": via, "results": {"size": "1GiB"}})
    configs, claims = named(found, "ConfigMap"), named(found, "PersistentVolumeClaim")
    specs = list(pod_specs(found.objects))
    assert len(specs) == (2 if via == "mpijob" else 1)
    for spec in specs:
        mounted = []
        for volume in spec["volumes"]:
            if "configMap" in volume:
                assert volume["configMap"]["name"] in configs
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
            mounted += [one["configMap"] for one in volume.get("projected", {}).get("sources", ())]
        mounted.sort(key=lambda one: str(one["items"][0]["path"]))  # in the order in which the pod joins the pieces
        code = b"".join(base64.b64decode(configs[one["name"]]["binaryData"]["piece"]) for one in mounted)
        assert code == DATA
        assert len(mounted) == -(-len(DATA) // PIECE_BYTES) > 1


def test_objects_can_be_applied_in_their_order_and_by_kubectl() -> None:
    found = made(nodes=2, kubernetes={"via": "jobset"})
    assert found.objects[-1]["kind"] == "JobSet"
    for one in found.objects:
        assert "ownerReferences" not in one["metadata"]
        assert one["metadata"]["labels"]["windlass.dev/run"] == found.run_id
        assert len(json.dumps(one)) < ANNOTATION_BYTES
    largest = max(len(json.dumps(one)) for one in found.objects)
    assert largest > PIECE_BYTES


def test_pods_wait_for_no_next_attempt_and_end_in_time() -> None:
    found = made(restarts=3, timeout="1h", nodes={"min": 1, "max": 2}, kubernetes={"via": "job"})
    nodes = node_specs(found)["nodes"]
    assert ["reuse_wait_seconds" in nodes[place] for place in ("0", "1")] == [False, False]
    assert pod_spec(found.objects)["activeDeadlineSeconds"] == 3600
    assert [note.code for note in found.notes] == ["written-restarts", "written-nodes", "written-timeout"]
    assert made(kubernetes={"via": "job"}).notes == ()
    assert "activeDeadlineSeconds" not in pod_spec(made().objects)


def test_exported_run_is_marked_as_having_no_further_attempt() -> None:
    [mark] = [one for one in made().objects if "windlass.dev/marker" in one["metadata"]["labels"]]
    assert (mark["metadata"]["name"], mark["metadata"]["labels"]["windlass.dev/marker"]) == ("digits-7f3k2-end", "end")


def test_export_does_not_change_the_plan() -> None:
    plan = planned(SMALL, nodes=2, timeout="1h")
    before = plan.to_text()
    manifests(plan, DATA, 0.0)
    assert plan.to_text() == before


def test_exported_yaml_parses_to_the_same_objects_in_yaml_1_1() -> None:
    odd: dict[str, Any] = {
        word: word for word in ("on", "y", "n", "1", "0x1", "12:30:00", "0644", "null", "1e3", "~", "")
    }
    texts = ("a\n  b\n\nc\n", "a\n\n", " a\nb\n", "a\tb\n", "%x", "a #b", "a: b", "- a", "ü\n", "\n", "'", "x\r\n")
    odd |= {f"text {at}": text for at, text in enumerate(texts)}
    odd |= {"list": [[], {}, [1, [2, {"a": [3]}]], {"a": {"b": 1}, "c": None}, True, 1.5], "map": {}}
    objects = (*made(nodes=2, kubernetes={"via": "jobset"}).objects, odd)
    text = "\n".join(line for one in objects for line in ("---", *block_lines(one))) + "\n"
    for version in ("1.1", "1.2"):
        yaml = YAML(typ="safe", pure=True)
        yaml.version = version
        assert [one for one in yaml.load_all(text) if one] == json.loads(json.dumps(objects))


def test_header_has_the_commands_to_create_and_delete_the_objects() -> None:
    lines = head_lines(made(restarts=1, nodes=2, kubernetes={"via": "trainjob"}), "digits")
    assert all(line.startswith("# ") for line in lines)
    assert (
        "#   kubectl delete -n team-a trainjobs.trainer.kubeflow.org,trainingruntimes.trainer.kubeflow.org,services,"
        "configmaps,networkpolicies -l windlass.dev/run=digits-7f3k2" in lines
    )
    assert any("restarts: 1" in line for line in lines)


@pytest.mark.parametrize("via", ["job", "jobset"])
def test_exported_objects_can_be_imported_again(via: str) -> None:
    found = made(
        nodes=3,
        resources={"gpus": 2, "cpus": 4, "memory": "8GiB", "shm": "1GiB", "instance": "g5.xlarge"},
        queue="team",
        priority="high",
        timeout="1h",
        secrets=["hf"],
        volumes=[{"claim": "data", "path": "/data"}],
        kubernetes={
            "via": via,
            "service_account": "trainer",
            "node_selector": {"disk": "ssd"},
            "ttl": "10min",
            "image_pull_secrets": ["login"],
            "lost_after": "45s",
        },
    )
    back = import_text("\n".join(line for one in found.objects for line in ("---", *block_lines(one))), "run.yaml").job
    assert (back.image, back.nodes.max, back.queue, back.priority, back.timeout) == (
        "localhost/base:1",
        3,
        "team",
        "high",
        3600.0,
    )
    assert back.resources.model_dump(exclude_none=True) == {
        "gpus": 2,
        "cpus": 4.0,
        "memory": 8 << 30,
        "shm": 1 << 30,
        "instance": "g5.xlarge",
    }
    assert back.secrets == ("hf",)
    assert [volume.model_dump(exclude_defaults=True) for volume in back.volumes] == [{"claim": "data", "path": "/data"}]
    assert back.kubernetes.model_dump(exclude_defaults=True) == {
        "namespace": "team-a",
        "service_account": "trainer",
        "node_selector": {"disk": "ssd"},
        "ttl": 600.0,
        "image_pull_secrets": ("login",),
        "lost_after": 45.0,
        "pod": {"spec": {"securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}}},
    }
