"""Ranks see everything that the pod options, volumes and patch of a job give their pods, all at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed.cluster import Bed
from tests.cluster.harnesses import OPERATORS, harness_on, opened, pods, set_up

from windlass.diagnose.diagnose import diagnose
from windlass.runs.phase import Phase

pytestmark = pytest.mark.timeout(900)
SCRIPT = r"""
import json, os, pathlib, re, socket, tempfile

def text(path):
    return pathlib.Path(path).read_text().strip()

def writable(folder):
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            return "yes"
    except OSError as error:
        return error.strerror

status = text("/proc/self/status")
print("token", os.environ["API_TOKEN"], flush=True)
print("whole", os.environ["WHOLE_SECRET"], flush=True)
seen = {
    "names": {name: os.environ.get(name) for name in ("COLOUR", "CPU_LIMIT", "POD_LABEL", "NODE_NAME", "OF_JOB")},
    "host": os.environ["HOST_IP"],
    "master": socket.gethostbyname(os.environ["MASTER_ADDR"]),
    "groups": sorted(os.getgroups()),
    "bounding": int(re.search(r"CapBnd:\s*(\w+)", status)[1], 16),
    "writable": {folder: writable(folder) for folder in ("/", "/tmp", ".", "/etc/host-ssl", "/shared")},
    "files": {path: text(path) for path in ("/etc/settings/COLOUR", "/etc/one/colour", "/etc/cert/tls.key")},
    "prepared": text("/shared/prepared"),
    "hosts": socket.gethostbyname("registry.company.example"),
    "devices": sorted(os.listdir("/sys/class/net")),
}
while not pathlib.Path("/shared/mesh").exists():
    pass
print("saw", json.dumps(seen), flush=True)
"""
SECRET = "a-token-of-sixteen"
GROUP = 2000
IPC_LOCK = 1 << 14
DROPPED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def helper(bed: Bed, name: str, program: str, **fields: Any) -> dict[str, Any]:
    """Returns a container that runs a program beside the ranks."""
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    command = [bed.python, "-c", program]
    return {
        "name": name,
        "image": bed.image,
        "command": command,
        "volumeMounts": mounts,
        "securityContext": DROPPED,
        **fields,
    }


def field(path: str) -> dict[str, Any]:
    return {"fieldRef": {"fieldPath": path}}


def patch(bed: Bed) -> dict[str, Any]:
    """Returns the patch of the ranks' pods: what no option has."""
    stays = "import pathlib, time; pathlib.Path('/shared/mesh').touch(); time.sleep(3600)"
    prepares = "import pathlib; pathlib.Path('/shared/prepared').write_text('prepared')"
    env = [
        {"name": "API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "login", "key": "token"}}},
        {"name": "HOST_IP", "valueFrom": field("status.hostIP")},
        {"name": "NODE_NAME", "valueFrom": field("spec.nodeName")},
        {"name": "POD_LABEL", "valueFrom": field("metadata.labels['windlass.dev/job']")},
        {"name": "CPU_LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ]
    node = {"name": "node", "env": env, "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    spec = {
        "runtimeClassName": "company",
        "schedulerName": "default-scheduler",
        "hostNetwork": True,
        "hostAliases": [{"ip": "10.9.8.7", "hostnames": ["registry.company.example"]}],
        "securityContext": {"supplementalGroups": [GROUP]},
        "volumes": [{"name": "shared", "emptyDir": {"sizeLimit": "10Mi"}}],
        "initContainers": [helper(bed, "prepares", prepares), helper(bed, "mesh", stays, restartPolicy="Always")],
        "containers": [node],
    }
    return {"metadata": {"annotations": {"company.example/owner": "ml"}}, "spec": spec}


def job(bed: Bed) -> dict[str, Any]:
    """Returns the fields of the job."""
    huge = json.loads(bed.kubectl("get", "node", "node1", "-o", "json"))["status"]["allocatable"].get(
        "hugepages-2Mi", "0"
    )
    return {
        "nodes": 2,
        "labels": {"team": "ml"},
        "priority": "company-fields",
        "secrets": ["whole"],
        "env": {"OF_JOB": "yes"},
        "resources": {"cpus": 1, "memory": "300MiB"},
        "volumes": [
            {"config_map": "settings", "path": "/etc/settings"},
            {"config_map": "settings", "path": "/etc/one/colour", "sub_path": "COLOUR"},
            {"secret": "cert", "path": "/etc/cert", "read_only": True},
            {"source": {"hostPath": {"path": "/etc/ssl"}}, "path": "/etc/host-ssl", "read_only": True},
        ],
        "kubernetes": {
            "annotations": {"company.example/cost-center": "4711"},
            "node_selector": {"kubernetes.io/os": "linux"},
            "tolerations": ["dedicated=ml:NoSchedule", {"key": "reclaimed", "effect": "NoExecute", "seconds": 30}],
            "affinity": {"apart": "node"},
            # A node without huge pages is asked for none of them.
            "limits": {"ephemeral-storage": "1Gi", **({"hugepages-2Mi": "2Mi"} if huge != "0" else {})},
            "requests": {"cpu": "100m"},
            "capabilities": ["IPC_LOCK"],
            "read_only_root": True,
            "env_from": ["settings"],
            "pod": patch(bed),
        },
    }


@pytest.fixture
def privileged(bed: Bed, namespace: str) -> str:
    """Namespace that admits host network and host paths, with the objects that the job names."""
    bed.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=privileged", "--overwrite")
    of = ("-n", namespace)
    bed.kubectl("create", "configmap", "settings", *of, "--from-literal=COLOUR=blue")
    bed.kubectl("create", "secret", "generic", "login", *of, f"--from-literal=token={SECRET}")
    bed.kubectl("create", "secret", "generic", "whole", *of, f"--from-literal=WHOLE_SECRET={SECRET}-whole")
    bed.kubectl("create", "secret", "generic", "cert", *of, "--from-literal=tls.key=key of the company")
    cluster_wide = [
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "company"}, "handler": "runc"},
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "company-fields"},
            "value": 10,
        },
    ]
    bed.apply(*cluster_wide, namespace=namespace)
    set_up(bed, namespace)
    return namespace


@pytest.mark.parametrize("via", ["job", *(pytest.param(one, marks=pytest.mark.operators) for one in OPERATORS)])
def test_ranks_see_every_field_of_their_pods(
    bed: Bed, privileged: str, operator: Callable[[str], None], tmp_path: Path, via: str
) -> None:
    if via in OPERATORS:
        operator(OPERATORS[via])
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "script.py").write_text(SCRIPT)
    fields = job(bed)
    fields["kubernetes"] |= {"via": via}
    fields["launcher"] = "mpi" if via == "mpijob" else "torchrun"
    with opened(harness_on(bed, privileged, tmp_path / "home")) as harness:
        run = harness.start("script.py", base=tmp_path / "code", **fields)
        assert run.wait().phase is Phase.SUCCEEDED, f"{run.text()}\n{diagnose(harness.engine.observe(run.id))}"
        said = run.text()
        assert SECRET not in said
        assert said.count("token ***") == said.count("whole ***") == 2
        seen = [json.loads(line.partition("saw ")[2]) for line in said.splitlines() if line.startswith("saw ")]
        for one in seen:
            require(one)
        assert len(seen) == 2
        found = pods(bed, privileged, run, 1)
        assert len({pod["spec"]["nodeName"] for pod in found}) == 2
        for pod in found:
            admitted(pod)


@pytest.mark.nightly
@pytest.mark.parametrize(("user", "has"), [(0, True), (1000, False)])
def test_capabilities_have_an_effect_for_root_alone(
    bed: Bed, privileged: str, tmp_path: Path, user: int, has: bool
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "script.py").write_text("print(open('/proc/self/status').read())")
    context = {"runAsUser": user, "runAsNonRoot": user != 0}
    fields = {"capabilities": ["IPC_LOCK"], "pod": {"spec": {"securityContext": context}}}
    with opened(harness_on(bed, privileged, tmp_path / "home")) as harness:
        run = harness.start("script.py", base=tmp_path / "code", launcher="plain", kubernetes=fields)
        assert run.wait().phase is Phase.SUCCEEDED, run.text()
        [effective] = re.findall(r"CapEff:\s*(\w+)", run.text())
        assert bool(int(effective, 16) & IPC_LOCK) is has


def require(seen: dict[str, Any]) -> None:
    """Requires that a rank sees the values of the job."""
    names = seen["names"]
    assert names.pop("NODE_NAME") in ("node1", "node2")
    assert names == {"COLOUR": "blue", "CPU_LIMIT": "1", "POD_LABEL": "case", "OF_JOB": "yes"}
    assert GROUP in seen["groups"]
    assert seen["bounding"] & IPC_LOCK
    no = "Read-only file system"
    assert seen["writable"] == {"/": no, "/tmp": "yes", ".": "yes", "/etc/host-ssl": no, "/shared": "yes"}
    files = {"/etc/settings/COLOUR": "blue", "/etc/one/colour": "blue", "/etc/cert/tls.key": "key of the company"}
    assert seen["files"] == files
    assert (seen["prepared"], seen["hosts"]) == ("prepared", "10.9.8.7")
    assert "cni1" in seen["devices"], "the bridge of the node, and no interface of a pod"


def admitted(pod: dict[str, Any]) -> None:
    """Requires that a pod has the fields that its ranks cannot see."""
    meta, spec = pod["metadata"], pod["spec"]
    [node] = [one for one in spec["containers"] if one["name"] in ("node", "pytorch")]
    assert meta["labels"]["team"] == "ml"
    owner = {"company.example/cost-center": "4711", "company.example/owner": "ml"}
    assert owner.items() <= meta["annotations"].items()
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    tolerated = {(one.get("key"), one.get("value"), one.get("tolerationSeconds")) for one in spec["tolerations"]}
    assert {("dedicated", "ml", None), ("reclaimed", None, 30)} <= tolerated
    assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("company-fields", "company")
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert node["resources"]["limits"]["ephemeral-storage"] == "1Gi"
    assert (node["resources"]["limits"]["cpu"], node["resources"]["requests"]["cpu"]) == ("1", "100m")
    assert [one["name"] for one in spec["initContainers"]][-2:] == ["prepares", "mesh"]
