"""Messages of the API server, of quotas and of policy engines are converted to the line that satisfies them."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.engines.kubernetes.reading.preflight.refusals import Author, Patch, keys_in

POD: dict[str, Any] = {"metadata": {"annotations": {}}, "spec": {"containers": [{"name": "node"}]}}
WITH_JOB, WITHOUT = Author("lab", has_job=True), Author("lab", has_job=False)
KYVERNO = (
    'admission webhook "validate.kyverno.svc-fail" denied the request: \n\nresource Pod/team/digits-7f3k2-1-0 was '
    "blocked due to the following policies \n\n"
)
GATEKEEPER = 'admission webhook "validation.gatekeeper.sh" denied the request: '
FORBIDDEN = 'pods "digits-7f3k2-1-0" is forbidden: '
VAP = f"{FORBIDDEN}ValidatingAdmissionPolicy 'company' with binding 'company' denied request: "
SECURITY = f'{FORBIDDEN}violates PodSecurity "restricted:latest": '

MESSAGES = [
    (f"{KYVERNO}require-labels:\n  check-for-labels: 'validation error: The label `team` is required. rule "
     "check-for-labels failed at path /metadata/labels/team/'",
     "labels: {team: …} in the job, or labels: {team: …} in target lab"),
    (f"{KYVERNO}costs:\n  annotated: 'validation error: cost center. rule annotated failed at path "
     "/metadata/annotations/example.com/cost-center/'",
     "kubernetes: {annotations: {example.com/cost-center: …}} in the job, or annotations: "
     "{example.com/cost-center: …} in target lab"),
    (f"{KYVERNO}require-ro-rootfs:\n  validate: 'validation error: Root filesystem must be read-only. rule validate "
     "failed at path /spec/containers/0/securityContext/readOnlyRootFilesystem/'",
     "kubernetes: {read_only_root: true} in the job, or read_only_root: true in target lab"),
    (f"{KYVERNO}require-requests-limits:\n  validate-resources: 'validation error: CPU and memory resource requests "
     "and memory limits are required. rule validate-resources failed at path /spec/containers/0/resources/limits/'",
     "resources: {cpus: …, memory: …} in the job"),
    (f'{GATEKEEPER}[must-have-owner] you must provide labels: {{"owner"}}',
     "labels: {owner: …} in the job, or labels: {owner: …} in target lab"),
    (f'{GATEKEEPER}[costs] you must provide annotation(s): {{"cost-center", "team"}}',
     "kubernetes: {annotations: {cost-center: …}} in the job, or annotations: {cost-center: …} in target lab"),
    (f"{GATEKEEPER}[limits] container <node> has no memory limit", "resources: {memory: …} in the job"),
    (f"{GATEKEEPER}[ro] only read-only root filesystem container is allowed: node",
     "kubernetes: {read_only_root: true} in the job, or read_only_root: true in target lab"),
    (f'{GATEKEEPER}[repos] container <node> has an invalid image repo <pytorch>, allowed repos are ["reg.example/"]',
     "image: … in the job, or image: … in target lab"),
    (f"{GATEKEEPER}[users] Container node is attempting to run as disallowed user 1000. Allowed runAsUser: {{}}",
     "user: … in target lab"),
    (f"{GATEKEEPER}[net] The specified hostNetwork and hostPort are not allowed, pod: x",
     "leave out hostNetwork and hostPort of pod:"),
    (f"{VAP}the annotation cost-center is required",
     "kubernetes: {annotations: {cost-center: …}} in the job, or annotations: {cost-center: …} in target lab"),
    (f"{VAP}failed expression: has(object.metadata.labels) && 'team' in object.metadata.labels",
     "labels: {team: …} in the job, or labels: {team: …} in target lab"),
    (f"{VAP}failed expression: object.spec.containers.all(c, c.securityContext.readOnlyRootFilesystem == true)",
     "kubernetes: {read_only_root: true} in the job, or read_only_root: true in target lab"),
    (f"{VAP}pods need a priorityClassName", "priority: … in the job"),
    (f"{VAP}priorityClassName must be set", "priority: … in the job"),
    (f"{VAP}pods must set spec.priorityClassName: company-batch", "priority: company-batch in the job"),
    (f"{VAP}failed expression: object.spec.priorityClassName == 'batch'", "priority: batch in the job"),
    (f"{VAP}pods must tolerate nothing: tolerations are not allowed",
     "kubernetes: {tolerations: [KEY=VALUE:NoSchedule]} in the job, or tolerations: [KEY=VALUE:NoSchedule] in target "
     "lab"),
    (f"{VAP}spec.seccompProfile must be Localhost",
     "kubernetes: {pod: {spec: {securityContext: {seccompProfile: {type: …}}}}} in the job, or pod: {spec: "
     "{securityContext: {seccompProfile: {type: …}}}} in target lab"),
    (f'{SECURITY}unrestricted capabilities (container "node" must not include "IPC_LOCK" in '
     'securityContext.capabilities.add), restricted volume types (volume "r" uses restricted volume type "hostPath")',
     "leave out what it names, of capabilities:, volumes: and pod: of job and target, or have the namespace enforce "
     "another level"),
    (f"{FORBIDDEN}failed quota: q: must specify limits.cpu for: node; limits.memory for: node",
     "resources: {cpus: …, memory: …} in the job"),
    (f"{FORBIDDEN}failed quota: q: must specify limits.ephemeral-storage for: node",
     "kubernetes: {limits: {ephemeral-storage: …}} in the job, or limits: {ephemeral-storage: …} in target lab"),
    (f"{FORBIDDEN}maximum memory usage per Container is 1Gi, but limit is 2Gi", "resources: {memory: …} in the job"),
    (f"{FORBIDDEN}no PriorityClass with name high was found", "another class than high: kubectl get priorityclasses"),
    (f'{FORBIDDEN}pod rejected: RuntimeClass "gvisor" not found',
     "another class than gvisor: kubectl get runtimeclasses"),
    (f'{FORBIDDEN}error looking up service account team/trains: serviceaccount "trains" not found',
     "kubectl create serviceaccount trains, or another name"),
    (f"{FORBIDDEN}the moon is full", "kubernetes: {pod: {…}} in the job, or pod: {…} in target lab"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "line"), MESSAGES, ids=[line for _, line in MESSAGES])
def test_refusal_names_the_line_that_satisfies_it(message: str, line: str) -> None:
    assert WITH_JOB.fix(f"the cluster refused: {message}", POD, is_own=False).text == line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (f"{VAP}the annotation cost-center is required", "annotations: {cost-center: …} in target lab"),
        (f"{VAP}pods must set spec.priorityClassName: batch",
         "supervisor_pod: {spec: {priorityClassName: batch}} in target lab"),
        (f"{VAP}pods need a priorityClassName",
         "supervisor_pod: {spec: {priorityClassName: …}} in target lab"),
        (f"{FORBIDDEN}failed quota: q: must specify limits.ephemeral-storage for: supervisor",
         "supervisor_pod: {spec: {containers: [{name: supervisor, resources: {limits: {ephemeral-storage: …}}}]}} in "
         "target lab"),
        (f'{GATEKEEPER}[repos] container <node> has an invalid image repo <pytorch>',
         "supervisor_image: … in target lab"),
        (f"{FORBIDDEN}the moon is full", "supervisor_pod: {…} or supervisor: machine in target lab"),
    ],
)  # fmt: skip
def test_lines_for_pods_of_windlass_itself_are_those_of_the_target(message: str, line: str) -> None:
    assert WITHOUT.fix(message, POD, is_own=True).text == line
    assert "in the job" not in WITHOUT.fix(message, POD, is_own=False).text


def test_priority_of_a_job_holds_for_its_supervisor() -> None:
    assert WITH_JOB.fix(f"{VAP}priorityClassName is missing", POD, is_own=True).text == "priority: … in the job"


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        ("a label is required", ["KEY"]),
        ("required label missing", ["KEY"]),
        ("the team label must be set", ["team"]),
        ("metadata.labels.team is required", ["team"]),
        ("no node label matches", []),
        ("pod has no annotations", []),
    ],
)
def test_key_is_the_one_that_the_message_names(message: str, keys: list[str]) -> None:
    assert keys_in(message, "label") == keys


def test_trial_pod_has_what_the_refusal_asks_for_and_keeps_what_it_has() -> None:
    message = f"{VAP}the annotation cost-center is required, and readOnlyRootFilesystem"
    pod = WITH_JOB.fix(message, POD, is_own=False).pod
    assert pod == {
        "metadata": {"annotations": {"cost-center": "x"}},
        "spec": {"containers": [{"name": "node", "securityContext": {"readOnlyRootFilesystem": True}}]},
    }
    assert WITH_JOB.fix(f"{VAP}annotation cost-center is required", pod, is_own=False).pod is None
    assert WITH_JOB.fix("a priorityClassName is needed", POD, is_own=False).pod is None
    named = WITH_JOB.fix("set priorityClassName: batch", POD, is_own=False).pod
    assert named is not None
    assert named["spec"]["priorityClassName"] == "batch"


PATCHES = (
    Patch("kubernetes.pod", False, "spec.hostNetwrk", True),
    Patch("kubernetes.pod", False, "spec.containers", [{"name": "node", "volumeMounts": [{"name": "rdma"}]}]),
    Patch("target lab: supervisor_pod", True, "", {"spec": {"securityContext": {"runAsUser": "root"}}}),
)


@pytest.mark.parametrize(
    ("message", "is_own", "path"),
    [
        ('Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.hostNetwrk"',
         False, "kubernetes.pod.spec.hostNetwrk"),
        ('Pod "x-0" is invalid: spec.containers[0].volumeMounts[9].name: Not found: "rdma"', False,
         "kubernetes.pod.spec.containers.volumeMounts.name"),
        ("json: cannot unmarshal string into Go struct field PodSecurityContext.spec.securityContext.runAsUser of type "
         "int64", True, "target lab: supervisor_pod.spec.securityContext.runAsUser"),
        ("json: cannot unmarshal string into Go struct field PodSecurityContext.spec.securityContext.runAsUser of type "
         "int64", False, ""),
        ('Pod "x-0" is invalid: spec.containers[0].image: Required value', False, ""),
    ],
)  # fmt: skip
def test_invalid_field_that_a_patch_sets_is_named_by_its_path(message: str, is_own: bool, path: str) -> None:
    fix = Author("lab", has_job=True, patches=PATCHES).fix(message, POD, is_own=is_own)
    assert fix.patch == path
    assert ("kubectl explain pod.spec" in fix.text) == bool(path)
