"""An imported job has the pods of its original: each field of these, with the same meaning, or a reason why not.

The manifests `company-*.yaml` have every kind of field that the pods of a company's cluster need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tests.engines.kubernetes.planning.test_plan import FACTS, TARGET, blockers
from tests.importers.shapes import FOLDER, imported
from tests.importers.test_every_leaf import REFUSED, WALKED, form_of

from windlass.engines.kubernetes.objects.find_pod_specs import pod_templates
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.planning.plan import plan
from windlass.importers.convert import Imported, import_text
from windlass.importers.documents import split
from windlass.spec.job import Job
from windlass.spec.pod_patch import MERGE_KEYS, OWN_VOLUMES
from windlass.spec.quantities import exact

NAMES: Final = ("pytorchjob", "mpijob", "trainjob")
FIELDS: Final = {
    "annotations": r"metadata\.annotations\.",
    "tolerations": r"spec\.tolerations\.",
    "node selector": r"spec\.nodes\.node\.kubernetes\.io/instance-type",
    "required node affinity": r"spec\.nodes\.topology",
    "preferred node affinity": r"spec\.affinity\.nodeAffinity\.preferred",
    "pod affinity": r"spec\.affinity\.podAffinity\.",
    "pod anti-affinity": r"spec\.affinity\.podAntiAffinity\.",
    "topology spread": r"spec\.topologySpreadConstraints\.",
    "network devices": r"container\.resources\.limits\.(vpc\.amazonaws\.com/efa|rdma/hca)",
    "hugepages": r"container\.resources\.limits\.hugepages",
    "ephemeral storage": r"container\.resources\.limits\.ephemeral-storage",
    "GPUs": r"container\.resources\.limits\.(nvidia|amd)\.com/",
    "requests apart from limits": r"container\.resources\.requests\.cpu",
    "groups": r"spec\.securityContext\.(fsGroup|supplementalGroups)",
    "capabilities": r"container\.securityContext\.capabilities\.IPC_LOCK",
    "read-only root": r"container\.securityContext\.readOnlyRootFilesystem",
    "volumes of every kind": r"container\.mounts\./(corpus|etc/ssl/corp|dev/infiniband|scratch|bucket|home|cache)\.",
    "read-only and part of a volume": r"container\.mounts\./corpus\.(readOnly|subPath)",
    "environment from a ConfigMap": r"container\.envFrom\.configMapRef\.nccl",
    "one key of a Secret or ConfigMap": r"container\.env\.(HF_TOKEN|STAGE)\.",
    "downward API": r"container\.env\.(POD_IP|CPUS)\.",
    "scheduler and runtime class": r"spec\.(schedulerName|runtimeClassName)",
    "network and memory of the host": r"spec\.(hostNetwork|hostIPC)",
    "names": r"spec\.(dnsPolicy|dnsConfig|hostAliases)",
    "image pull policy": r"container\.imagePullPolicy",
    "init containers and sidecars": r"spec\.initContainers\.(fetch|metrics)\.",
    "lifecycle": r"container\.lifecycle\.",
    "priority class": r"spec\.priorityClassName",
}
"""Kinds of fields that each of the manifests has."""
DIFFERENT: Final = {
    r"container\.(name|command|args)": "the worker starts the ranks",
    r"container\.ports\.(23456|2222|29500)": "the port of an operator",
}
"""Fields of an original that pods of a run lack or have with another value, with the reason."""
OF_SSHD: Final = {r"container\.(livenessProbe|readinessProbe)": "checks the ssh server, by which no rank is started"}


def original(path: Path) -> dict[str, Any]:
    """Returns the pod template of an original's workers, as its operator makes it."""
    job, *others = (source.value for source in split(path.read_text(), path.name))
    spec = job["spec"]
    if "trainer" not in spec:
        replicas = next(value for name, value in spec.items() if name.endswith("ReplicaSpecs"))
        return dict(replicas["Worker"]["template"])
    trainer = spec["trainer"]
    template = others[0]["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    own = {"env": trainer["env"], "resources": trainer["resourcesPerNode"], "command": trainer["command"]}
    template = merged(template, {"spec": {"containers": [{"name": "node", **own}]}})
    patch = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    patch = patch["template"]["spec"]["template"]
    tolerations = [*template["spec"]["tolerations"], *patch["spec"].pop("tolerations")]
    return merged(merged(template, patch), {"spec": {"tolerations": tolerations}})


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a pod template with a patch, as the operator merges them."""
    found = dict(base)
    for name, value in patch.items():
        if name in MERGE_KEYS:
            items = {one[MERGE_KEYS[name]]: one for one in found.get(name, ())}
            items |= {key: merged(items.get(key, {}), one) for one in value for key in [one[MERGE_KEYS[name]]]}
            found[name] = list(items.values())
        else:
            found[name] = merged(found.get(name, {}), value) if isinstance(value, dict) else value
    return found


def planned(made: Imported, via: str = "auto") -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Returns the blocking problems of the plan of an imported job, and the pod templates of its first attempt."""
    options = made.job.kubernetes.model_copy(update={"via": via})
    found = plan(made.job.model_copy(update={"kubernetes": options}), TARGET, FACTS, "run-7f3k2", "boot")
    return blockers(found), [dict(one) for owner in attempt_objects(found) for one in pod_templates(owner)]


def fields(template: Mapping[str, Any], job: Job | None = None) -> dict[str, Any]:
    """Returns the fields of a pod by path, independently of the order and the names of its volumes; `job` is the job
    that the pod belongs to, for the variables that its ranks get.
    """
    spec = {**template["spec"]}
    sources = {one["name"]: {k: v for k, v in one.items() if k != "name"} for one in spec.pop("volumes")}
    [container] = spec.pop("containers")
    inits = {one["name"]: with_mounts(one, sources) for one in spec.pop("initContainers")}
    own = with_mounts(container, sources)
    env = {one["name"]: one.get("valueFrom", one.get("value", "")) for one in own.pop("env")}
    if job is not None:
        env |= job.env
    own["env"] = env
    own["envFrom"] = [{kind: one[kind]["name"]} for one in own.pop("envFrom") for kind in one]
    added = own["securityContext"].pop("capabilities")
    own["securityContext"]["capabilities"] = dict.fromkeys(added.get("add", ()), True)
    own["ports"] = {one["containerPort"]: one for one in own.get("ports", ())}
    return dict(
        leaves(
            {
                "metadata": template["metadata"],
                "spec": {**placed(spec), "initContainers": inits},
                "container": own,
            }
        )
    )


def with_mounts(container: Mapping[str, Any], sources: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a container with its mounts by path, and their volumes in them."""
    found = {**container, "securityContext": {**container.get("securityContext", {})}}
    mounts: dict[str, Any] = {}
    for one in found.pop("volumeMounts", ()):
        source = sources[one["name"]]
        claim = source.get("persistentVolumeClaim", {})
        is_read_only = one.get("readOnly") or claim.get("readOnly")
        more = {k: v for k, v in one.items() if k not in ("name", "mountPath", "readOnly")}
        claims = {"persistentVolumeClaim": {"claimName": claim["claimName"]}} if claim else source
        mounts[one["mountPath"]] = {**more, "source": claims, **({"readOnly": True} if is_read_only else {})}
    return {**found, "mounts": mounts}


def placed(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns a pod spec with the rules of its placement by what they demand."""
    nodes = {key: [value] for key, value in spec.pop("nodeSelector", {}).items()}
    affinity = {kind: dict(rules) for kind, rules in spec.pop("affinity").items()}
    [term] = affinity["nodeAffinity"].pop("requiredDuringSchedulingIgnoredDuringExecution")["nodeSelectorTerms"]
    nodes |= {rule["key"]: rule["values"] for rule in term["matchExpressions"]}
    tolerations = {}
    for one in spec.pop("tolerations"):
        key = f"{one.get('key')}={one.get('value', '')}:{one.get('effect', '')}"
        tolerations[key] = {"seconds": one.get("tolerationSeconds", "")}
    spreads = {one["topologyKey"]: of_ranks(one) for one in spec.pop("topologySpreadConstraints")}
    return {
        **spec,
        "nodes": nodes,
        "affinity": of_ranks(affinity),
        "tolerations": tolerations,
        "topologySpreadConstraints": spreads,
    }


def of_ranks(value: Any) -> Any:
    """Returns rules between pods; selectors of the pods of the same job or run are `ranks`."""
    if isinstance(value, list):
        return [of_ranks(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {name: of_ranks(one) for name, one in value.items() if name != "matchLabelKeys"}
    if re.search(r"(job|jobset)-name'|windlass\.dev/(run|attempt)'", str(value.get("labelSelector", ""))):
        found["labelSelector"] = "ranks"
    return found


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from leaves(below, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list) and value and path.endswith("envFrom"):
        for one in value:
            yield from ((f"{path}.{kind}.{name}", True) for kind, name in one.items())
    else:
        is_quantity = re.search(r"resources\.(limits|requests)\.|sizeLimit$", path)
        yield path, exact(value) if is_quantity else value


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any], known: Mapping[str, str]) -> list[str]:
    """Returns the fields of an original that ours lack or have with another value, except the `known` ones."""
    found = {name: value for name, value in theirs.items() if name not in ours or ours[name] != value}
    unknown = [name for name in found if not any(re.match(pattern, name) for pattern in known)]
    return [f"{name}: {found[name]!r} is {ours.get(name)!r}" for name in unknown]


def reasons(name: str) -> dict[str, str]:
    """Returns the known differences of the manifest of this name."""
    return DIFFERENT | (OF_SSHD if name == "mpijob" else {})


@pytest.mark.parametrize(
    ("name", "via"), [(name, via) for name in NAMES for via in WORKLOADS if (name == "mpijob") == (via == "mpijob")]
)
def test_pods_of_an_imported_job_have_every_field_of_the_original(name: str, via: str) -> None:
    path = FOLDER / f"company-{name}.yaml"
    made = imported(path)
    problems, templates = planned(made, via)
    assert "pod-patch" not in problems
    assert templates
    for template in templates:
        assert differences(fields(original(path)), fields(template, made.job), reasons(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_manifests_have_every_kind_of_field(name: str) -> None:
    theirs = fields(original(FOLDER / f"company-{name}.yaml"))
    assert [kind for kind, field in FIELDS.items() if not any(re.match(field, one) for one in theirs)] == []
    assert len(FIELDS) >= 27


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WALKED if name not in REFUSED])
def test_plan_refuses_no_patch_of_an_import(name: str) -> None:
    made = import_text(WALKED[name], "file.yaml", form=form_of(name))
    via = "job" if made.job.launcher != "mpi" else "mpijob"
    problems, templates = planned(made, via)
    assert "pod-patch" not in problems
    for template in templates:
        [container] = template["spec"]["containers"]
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(set(paths)) == len(paths)
        names = [volume["name"] for volume in template["spec"]["volumes"]]
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(names)
        assert len(set(names)) == len(names)


def test_names_of_volumes_are_known_to_importers() -> None:
    text = (
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {template: {spec: {containers: [{name: a, image: "
    )
    made = import_text(f"{text}b/c:1, command: [python, /a.py]}}]}}}}}}\n", "job.yaml")
    _, [template] = planned(made, "job")
    assert [one["name"] for one in template["spec"]["volumes"] if not OWN_VOLUMES.fullmatch(one["name"])] == []
