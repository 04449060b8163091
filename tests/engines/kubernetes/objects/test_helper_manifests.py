"""Each pod of Windlass itself, of a run or of a command, has the options of its target."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.engines.kubernetes.planning.test_plan import CLUSTER, FACTS, TARGET, planned

from windlass.engines.kubernetes.objects import labels, layout
from windlass.engines.kubernetes.objects.helper_manifests import helper_job, mounted, sleeping
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.pod_template import target_shape
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.reading.preflight import network
from windlass.engines.kubernetes.reading.preflight.capacity import waiting
from windlass.engines.kubernetes.reading.preflight.rights import Rights
from windlass.engines.kubernetes.running import claim_staging
from windlass.plan.plan import Plan
from windlass.plan.steps import CheckJobStep, ManifestStep, ReadJobStep, StageJobStep, SupervisorStep, UploadJobStep
from windlass.spec.sections import DataClaim
from windlass.spec.targets import KubernetesTarget

INSIDE = dataclasses.replace(FACTS, cluster=dataclasses.replace(CLUSTER, rights=Rights(has_account=True)))
OPTIONS: dict[str, Any] = {
    "annotations": {"cost-center": "4711"},
    "tolerations": ["dedicated=training:NoSchedule"],
    "supervisor_pod": {"spec": {"runtimeClassName": "gvisor"}},
}
COMPANY = KubernetesTarget(
    **{**TARGET.model_dump(exclude_defaults=True), "name": "lab", "labels": {"team": "vision"}, **OPTIONS},
    image_pull_secrets=("login",),
    supervisor_queue="small",
    user=2000,
)
STEPS: tuple[type[ManifestStep], ...] = (SupervisorStep, StageJobStep, UploadJobStep, CheckJobStep, ReadJobStep)


def of_run(**fields: Any) -> Plan:
    return planned(
        INSIDE,
        COMPANY,
        data=[{"name": "digits", "source": "s3://bucket/digits/"}],
        outputs="s3://bucket/out/",
        priority="high",
        kubernetes={"data": {"claim": "sets"}, "results": {"claim": "kept"}, **fields},
    )


def staging() -> Manifest:
    return claim_staging.objects("team-a", COMPANY, DataClaim(), "s3://bucket/digits/", (), None)[1]


def of_claim() -> Manifest:
    pod = mounted(sleeping("image", "python3", 60), {"persistentVolumeClaim": {"claimName": "c"}}, "/claim")
    return helper_job(target_shape(COMPANY, "team-a", "windlass-claim-1"), "copy", pod, 60)


OF_RUN = [one for one in of_run().manifests(*STEPS) if one["kind"] == "Job"]
OF_COMMANDS = [staging(), of_claim(), network.objects(COMPANY, "windlass-net-1")[-1]]
IDS = [*(str(one["metadata"]["name"]) for one in OF_RUN), "staging", "claim", "network"]


@pytest.mark.parametrize("job", [*OF_RUN, *OF_COMMANDS], ids=IDS)
def test_each_pod_of_windlass_itself_has_the_options_of_its_target(job: Manifest) -> None:
    template, meta = job["spec"]["template"], job["metadata"]
    assert (meta["labels"]["team"], template["metadata"]["labels"]["team"]) == ("vision", "vision")
    assert meta["annotations"]["cost-center"] == template["metadata"]["annotations"]["cost-center"] == "4711"
    assert meta["labels"][layout.QUEUE_LABEL] == "small"
    spec = template["spec"]
    wanted = {"key": "dedicated", "value": "training", "effect": "NoSchedule", "operator": "Equal"}
    assert wanted in spec["tolerations"]
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["imagePullSecrets"] == [{"name": "login"}]
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (2000, True)
    [container] = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_own_pods_of_a_run_have_its_priority() -> None:
    assert len(OF_RUN) == 5
    assert {job["spec"]["template"]["spec"]["priorityClassName"] for job in OF_RUN} == {"high"}
    assert all("priorityClassName" not in job["spec"]["template"]["spec"] for job in OF_COMMANDS)


def test_idle_pods_of_a_capacity_probe_have_all_fields_of_ranks_that_decide_their_admission() -> None:
    patch = {"spec": {"schedulerName": "volcano", "initContainers": [{"name": "s", "image": "s"}]}}
    kubernetes: dict[str, Any] = {"pod": patch, "read_only_root": True, "affinity": {"apart": "node"}}
    made = attempt_objects(planned(INSIDE, COMPANY, nodes={"min": 1, "max": 3}, kubernetes=kubernetes))
    job = waiting(made, "r-1-capacity", 2)
    template = job["spec"]["template"]
    assert job["metadata"]["annotations"] == template["metadata"]["annotations"] | {"cost-center": "4711"}
    assert (template["metadata"]["labels"]["team"], template["spec"]["schedulerName"]) == ("vision", "volcano")
    assert template["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert not {"volumes", "initContainers", "subdomain"} & set(template["spec"])
    [of_ranks, of_probes] = template["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert of_ranks["topologyKey"] == of_probes["topologyKey"] == "kubernetes.io/hostname"
    assert of_probes["labelSelector"] == {"matchLabels": {labels.HELPER: "r-1-capacity"}}


def test_patch_that_conflicts_with_a_helper_pod_alone_is_refused_by_the_plan() -> None:
    volumes = [{"name": "program", "emptyDir": {}}]
    [note] = [note for note in of_run(supervisor_pod={"spec": {"volumes": volumes}}).notes if note.code == "pod-patch"]
    assert note.message.startswith("kubernetes.supervisor_pod.spec.volumes[0]: changes or removes an item")
