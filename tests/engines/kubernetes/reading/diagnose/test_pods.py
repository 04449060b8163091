"""Rules on pods give verdicts for messages as real clusters write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.faults.faults import table

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.observations import NodeSeen, Observations, RankSeen
from windlass.diagnose.verdict import Verdict
from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec
from windlass.engines.kubernetes.objects.observations import ClusterNode, ClusterStatus, ObjectReport
from windlass.engines.kubernetes.objects.pod_status import PodStatus
from windlass.engines.kubernetes.reading.diagnose.pod_reasons import ENDS, MESSAGES
from windlass.engines.kubernetes.reading.diagnose.rules import rules_on
from windlass.plan.plan import NO_PLAN
from windlass.runs.events import Event
from windlass.runs.phase import Phase
from windlass.runs.record import fold
from windlass.spec.quantities import amount

POD: dict[str, Any] = {
    "containers": [
        {
            "name": "node",
            "image": "ours/trainer:1",
            "resources": {"requests": {"nvidia.com/gpu": "3"}, "limits": {"nvidia.com/gpu": "3", "memory": "160Mi"}},
        }
    ],
    "nodeSelector": {"node.kubernetes.io/instance-type": "p5.48xlarge"},
}
PULL = 'Back-off pulling image "ours/trainer:1": ErrImagePull: failed to pull and unpack image "ours/trainer:1": '


def why(
    cluster: ClusterStatus,
    phase: Phase = Phase.QUEUED,
    *,
    more: Sequence[tuple[str, dict[str, Any]]] = (),
    cause: dict[str, Any] | None = None,
    reason: str = "failure",
    exit_code: int = 1,
    tail: str = "",
    nodes: Sequence[NodeSeen] = (),
    policy: dict[str, Any] | None = None,
) -> Verdict:
    """Returns the verdict on a run with two nodes of one rank each."""
    told: list[tuple[str, dict[str, Any]]] = [
        ("created", {"id": "r-1", "name": "r", "target": "bed", "output_dir": "/out"}),
        ("attempt", {"number": 1, "world_size": 2, "nodes": [[0], [1]], "members": [0, 1]}),
        *more,
        *([("cause", cause)] if cause else []),
        ("end", {"phase": phase.value, "exit_code": exit_code, "reason": reason})
        if phase.is_terminal
        else ("phase", {"phase": phase.value}),
    ]
    events = [Event(number, 100.0 + number, kind, data) for number, (kind, data) in enumerate(told, 1)]
    status = fold(events)
    ranks = [
        RankSeen(state.rank, state.node, state.exit_code, tail=tail if state.rank == 0 else "")
        for state in status.ranks
    ]
    return diagnose(
        Observations(
            status,
            replace(NO_PLAN, policy=NO_PLAN.policy.replace(**policy or {})),
            events,
            ranks,
            nodes,
            rules=rules_on(replace(cluster, pod_spec=POD)),
        )
    ).verdict


def waiting(reason: str, message: str, *said: ObjectReport, state: str = "pulling") -> ClusterStatus:
    return ClusterStatus((PodStatus(0, "r-1-0-x", state, reason, message), PodStatus(1, "r-1-1-y", "running")), said)


def job_says(message: str, reason: str = "FailedCreate") -> ClusterStatus:
    return ClusterStatus((PodStatus(0), PodStatus(1)), (ObjectReport("Job", "r-1", reason, message),))


BEGUN = (("rank", {"rank": 0, "pid": 7}), ("rank", {"rank": 1, "pid": 7}))
"""Events after which both ranks run."""


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        ('Error creating: pods "r-1-0-x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, '
         "limited: pods=4", "quota-exceeded", "quota small"),
        ('Error creating: pods "r-1-0-x" is forbidden: failed quota: small: must specify limits.cpu for: node',
         "quota-exceeded", "limits.cpu"),
        ('Error creating: pods "r-1-0-x" is forbidden: violates PodSecurity "restricted:latest": runAsUser=0 (pod '
         "must not set runAsUser=0)", "admission-refused", "restricted:latest"),
        ('Error creating: pods "r-1-0-x" is forbidden: error looking up service account ns/trainer: serviceaccount '
         '"trainer" not found', "service-account-missing", "trainer"),
        ('Error creating: pods "r-1-0-x" is forbidden: no PriorityClass with name at-once was found',
         "priority-missing", "at-once"),
        ('Error creating: pods "r-1-0-x" is forbidden: maximum memory usage per Container is 64Mi, but limit is 1Gi',
         "limit-range", "64Mi"),
        ('Error creating: Internal error occurred: failed calling webhook "vjobset.kb.io": failed to call webhook: '
         "connection refused", "webhook-unreachable", "vjobset.kb.io"),
        ('Error creating: admission webhook "policy.io" denied the request: no team label', "admission-refused",
         "no team label"),
        ("Error creating: ValidatingAdmissionPolicy 'images' with binding 'images' denied request: only ours",
         "admission-refused", "only ours"),
        ("Error creating: something unknown", "admission-refused", "something unknown"),
    ],
)  # fmt: skip
def test_uncreated_pods_are_explained_by_owner_object_events(message: str, code: str, words: str) -> None:
    verdict = why(job_says(message))
    assert verdict.code == code
    assert words in verdict.summary
    assert message in verdict.evidence[0]
    assert verdict.fix


@pytest.mark.parametrize(
    ("reason", "message", "code"),
    [
        ("ImagePullBackOff", PULL + 'failed to resolve reference "ours/trainer:1": ours/trainer:1: not found',
         "image-not-found"),
        ("ErrImagePull", PULL + "pull access denied, repository does not exist or may require authorization: server "
         "message: insufficient_scope: authorization failed", "image-auth"),
        ("ErrImagePull", PULL + "unexpected status from HEAD request to https://r/v2: 401 Unauthorized", "image-auth"),
        ("ErrImagePull", PULL + "failed to do request: Head: dial tcp: lookup r: no such host", "image-unreachable"),
        ("ErrImagePull", PULL + "429 Too Many Requests - toomanyrequests: You have reached your rate limit",
         "image-rate-limited"),
        ("ErrImagePull", PULL + "something else", "image-pull-failed"),
        ("InvalidImageName", 'Failed to apply default image tag "T:L:1": invalid reference format',
         "image-name-invalid"),
        ("CreateContainerConfigError", 'secret "hf-token" not found', "secret-missing"),
        ("CreateContainerConfigError", 'configmap "settings" not found', "config-missing"),
        ("CreateContainerError", "context deadline exceeded", "container-not-made"),
        ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates", "pods-waiting"),
        ("ContainerCreating", "", "pods-waiting"),
    ],
)  # fmt: skip
def test_unstarted_pods_are_explained_by_kubelet_messages(reason: str, message: str, code: str) -> None:
    assert why(waiting(reason, message), Phase.PULLING).code == code


def test_failed_mount_is_explained_by_its_event() -> None:
    said = ObjectReport("Pod", "r-1-0-x", "FailedMount", 'MountVolume.SetUp failed for "data": rpc error: timed out')
    verdict = why(waiting("ContainerCreating", "", said), Phase.PULLING)
    assert (verdict.code, "rpc error" in verdict.summary) == ("mount-failed", True)


@pytest.mark.parametrize(
    ("said", "words", "fix"),
    [
        (
            "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: none",
            "2 of 2 nodes have too little nvidia.com/gpu (3 each)",
            "the largest node has 2 nvidia.com/gpu: ask for no more (resources.gpus)",
        ),
        (
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            "p5.48xlarge",
            "resources.instance",
        ),
        (
            "0/2 nodes are available: 1 node(s) had untolerated taint {gpu: true}, 1 node(s) were unschedulable.",
            "have an untolerated taint {gpu: true}; 1 of 2 nodes are cordoned",
            "kubectl uncordon",
        ),
        ("no nodes available to schedule pods", "the cluster has no nodes", "kubectl get nodes"),
    ],
)
def test_unschedulable_pod_has_a_fix_with_what_would_fit(said: str, words: str, fix: str) -> None:
    machines = (ClusterNode("a", allocatable={"nvidia.com/gpu": "2"}), ClusterNode("b"))
    verdict = why(ClusterStatus((PodStatus(0, "r-1-0-x", "queued", "Unschedulable", said),), nodes=machines))
    assert verdict.code == "unschedulable"
    assert words in verdict.summary
    assert fix in verdict.fix


def test_busy_nodes_of_sufficient_size_are_waited_for() -> None:
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    machines = (ClusterNode("a", allocatable={"nvidia.com/gpu": "8"}),)
    verdict = why(ClusterStatus((PodStatus(0, "x", "queued", "Unschedulable", said),), nodes=machines))
    assert "the run starts when they are free" in verdict.fix


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ('0/2 nodes are available: persistentvolumeclaim "data" not found.', "claim-missing"),
        ("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "claim-unbound"),
        ("0/2 nodes are available: 2 node(s) had volume node affinity conflict.", "claim-elsewhere"),
    ],
)
def test_unbound_claims_are_not_reported_as_missing_capacity(message: str, code: str) -> None:
    assert why(waiting("Unschedulable", message, state="queued")).code == code


def test_event_of_a_claim_overrides_the_scheduler_message() -> None:
    said = ObjectReport("PersistentVolumeClaim", "r-1", "ProvisioningFailed", 'storageclass "golden" not found')
    unbound = "pod has unbound immediate PersistentVolumeClaims"
    assert "golden" in why(waiting("Unschedulable", unbound, said, state="queued")).summary


def test_pod_requests_are_found_for_every_workload_kind() -> None:
    inner = {"template": {"spec": {"template": {"spec": POD}}}}
    made: list[dict[str, Any]] = [
        {"replicatedJobs": [inner]},
        {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": {"spec": POD}}}},
    ]
    for spec in made:
        found = pod_spec([{"kind": "X", "metadata": {"name": "r-1"}, "spec": spec}])
        assert ClusterStatus(pod_spec=found).container["image"] == "ours/trainer:1"
    parts: list[dict[str, Any]] = [{"spec": {"template": {"spec": made[0]}}}, {"spec": {"runtimeRef": {"name": "r-1"}}}]
    assert pod_spec(parts)["containers"][0]["image"] == "ours/trainer:1"


def test_missing_reports_are_not_taken_for_success() -> None:
    assert why(ClusterStatus((PodStatus(0), PodStatus(1)))).code == "pods-not-made"
    assert why(ClusterStatus((PodStatus(0, "x", "queued"),))).code == "not-scheduled"
    assert why(ClusterStatus((PodStatus(0),), is_suspended=True)).code == "queue-waits"
    assert why(ClusterStatus((), unreachable="no answer"), Phase.TRAINING, more=BEGUN).code == "cluster-unreachable"


def test_training_run_has_no_verdict() -> None:
    running = (PodStatus(0, "x", "running"), PodStatus(1, "y", "running"))
    assert why(ClusterStatus(running), Phase.TRAINING, more=BEGUN).code == "none"


def test_past_problems_of_a_training_run_are_not_reported() -> None:
    said = (ObjectReport("Job", "r-1", "FailedCreate", "Error creating: exceeded quota: small"),)
    running = (PodStatus(0, "x", "running"), PodStatus(1, "y", "running"))
    assert why(ClusterStatus(running, said), Phase.TRAINING, more=BEGUN).code == "none"


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("OOMKilled", "oom-killed"),
        ("Evicted", "evicted"),
        ("PreemptionByScheduler", "preempted"),
        ("EvictionByEvictionAPI", "drained"),
        ("DeletionByTaintManager", "node-lost"),
        ("Deleted", "pod-deleted"),
    ],
)
def test_lost_node_is_explained_by_the_end_of_its_pod(reason: str, code: str) -> None:
    pods = (
        PodStatus(0, "x", "ended", "Error", exit_code=1),
        PodStatus(1, "y", "ended", reason, "its words", "machine-b"),
    )
    cause = {"rank": 1, "summary": "died", "exit_code": -9, "node_lost": 1}
    verdict = why(ClusterStatus(pods), Phase.FAILED, more=BEGUN, cause=cause)
    assert (verdict.code, verdict.rank) == (code, 1)
    assert any("machine-b" in line for line in verdict.evidence)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Drifted", "(drift)"),
        ("Forceful Termination", "its node was deleted"),
        ("Underutilized", "(consolidation)"),
        ("a reason of a later version", "by Karpenter: a reason of a later version"),
    ],
)
def test_an_eviction_by_karpenter_is_named_with_its_reason(reason: str, words: str) -> None:
    pods = (PodStatus(0, "x", "ended", "EvictionByEvictionAPI", f"by Karpenter: {reason}", "n1", 143),)
    cause = {"rank": 0, "summary": "died", "exit_code": -15, "node_lost": 0}
    verdict = why(ClusterStatus(pods), Phase.STOPPED, more=BEGUN, cause=cause, reason="preemption")
    assert (verdict.code, words in verdict.summary) == ("drained", True)
    assert verdict.summary.startswith("pod x was evicted by Karpenter: ")


@pytest.mark.parametrize(
    ("policy", "left", "words"),
    [
        ({"max_restarts": 0, "restart_on": ["node-loss"]}, 0, "restarts: {max: 3, on: [node-loss]} does so"),
        ({"max_restarts": 2, "restart_on": ["failure"]}, 2, "restarts: {max: 3, on: [node-loss]} does so"),
        ({"max_restarts": 2, "restart_on": ["node-loss"]}, 1, "restarts: of the job (1 left) does so"),
        ({"max_restarts": 2, "restart_on": ["node-loss"]}, 0, "a larger restarts: max: (the 2 are used up) does so"),
    ],
)
def test_fix_does_not_advise_restarts_that_the_job_has(policy: dict[str, Any], left: int, words: str) -> None:
    pods = (PodStatus(0, "x", "running", "NodeNotReady", "", "n1"), PodStatus(1, "y", "running"))
    before = ("attempt-end", {"phase": "failed", "reason": "node-loss", "restarts_left": left})
    again = ("attempt", {"number": 2, "world_size": 2, "nodes": [[0], [1]], "members": [0, 1]})
    verdict = why(ClusterStatus(pods), Phase.TRAINING, more=(*BEGUN, before, again, *BEGUN), policy=policy)
    assert verdict.code == "node-lost"
    assert words in verdict.fix


def test_failed_script_is_the_cause_despite_later_pod_events() -> None:
    pods = (PodStatus(0, "x", "ended", "Error", exit_code=1), PodStatus(1, "y", "ended", "Deleted"))
    trace = 'Traceback (most recent call last):\n  File "/job/train.py", line 3, in <module>\nValueError: no\n'
    cause = {"rank": 0, "summary": "ValueError: no", "exit_code": 1, "traceback": trace}
    ended = ("rank", {"rank": 0, "exit_code": 1})
    assert why(ClusterStatus(pods), Phase.FAILED, more=(*BEGUN, ended), cause=cause, tail=trace).code == "exception"


def test_killed_rank_of_an_oom_killed_pod_is_out_of_memory() -> None:
    pods = (PodStatus(0, "x", "ended", "OOMKilled", exit_code=137), PodStatus(1, "y", "ended"))
    verdict = why(ClusterStatus(pods), Phase.FAILED, more=BEGUN, cause={"rank": 0, "summary": "", "exit_code": -9})
    assert verdict.code == "oom-killed"
    assert "memory limit of each pod: 160Mi" in verdict.evidence


def test_deleted_job_takes_precedence_over_its_pods() -> None:
    pods = (PodStatus(0, "x", "ended", "Deleted"), PodStatus(1, "y", "ended", "Deleted"))
    gone = (ObjectReport("Job", "r-1", "Deleted", "Job r-1 was deleted"),)
    assert why(ClusterStatus(pods, gone), Phase.STOPPED, more=BEGUN, reason="preemption").code == "job-deleted"
    late = (ObjectReport("Job", "r-1", "DeadlineExceeded", "Job was active longer than specified deadline"),)
    assert why(ClusterStatus(pods, late), Phase.STOPPED, more=BEGUN, reason="preemption").code == "deadline"


def test_user_stop_explains_deleted_pods() -> None:
    pods = (PodStatus(0, "x", "ended", "Deleted"), PodStatus(1, "y", "ended", "Deleted"))
    asked = ("stop", {"now": False, "reason": None})
    assert why(ClusterStatus(pods), Phase.STOPPED, more=(*BEGUN, asked), reason="stop").code == "stopped"


def test_time_limit_reached_while_pods_wait_is_explained_by_their_reason() -> None:
    cluster = waiting("Unschedulable", "0/2 nodes are available: 2 Insufficient cpu.", state="queued")
    cause = {"summary": "the time limit of 5 s was reached"}
    assert why(cluster, Phase.FAILED, cause=cause, exit_code=124, reason="timeout").code == "unschedulable"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "unschedulable"),
        ("ValueError: no such file: weights.bin", "exception"),
    ],
)
def test_rendezvous_timeout_is_explained_by_the_waiting_pod(error: str, code: str) -> None:
    cluster = ClusterStatus(
        (
            PodStatus(0, "r-1-0-x", "ended", "Error", exit_code=1),
            PodStatus(1, "r-2-1-y", "queued", "Unschedulable", "0/2 nodes are available: 2 Insufficient cpu."),
        )
    )
    tail = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    run()\n{error}\n'
    failed = (("rank", {"rank": 0, "pid": 7}), ("rank", {"rank": 0, "exit_code": 1}))
    cause = {"rank": 0, "summary": error, "exit_code": 1, "traceback": tail}
    assert why(cluster, Phase.FAILED, more=failed, cause=cause, tail=tail).code == code


def test_lost_node_explains_lost_connections_of_peers() -> None:
    tail = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer [10.0.0.1]:4\n"
    pods = (PodStatus(0, "x", "ended", "Error", exit_code=1), PodStatus(1, "y", "running", "NodeNotReady", "", "b"))
    ended = ("rank", {"rank": 0, "exit_code": 1})
    cause = {"rank": 0, "summary": "RuntimeError: Connection closed by peer", "exit_code": 1, "traceback": tail}
    verdict = why(ClusterStatus(pods), Phase.FAILED, more=(*BEGUN, ended), cause=cause, tail=tail)
    assert verdict.code == "node-lost"


def test_unresolved_name_is_a_dns_problem_once_all_pods_run() -> None:
    running = (PodStatus(0, "x", "running"), PodStatus(1, "y", "running"))
    words = NodeSeen(1, "waiting for the name r-1-0.r, 25 s so far: Name or service not known")
    verdict = why(ClusterStatus(running), Phase.STARTING, nodes=[words])
    assert verdict.code == "name-unknown"
    queued = (PodStatus(0, "x", "queued", "Unschedulable", "0/2 nodes are available: 2 Insufficient cpu."), running[1])
    assert why(ClusterStatus(queued), Phase.QUEUED, nodes=[words]).code == "unschedulable"


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        (
            "could not start: the cluster refused: Internal error occurred: failed calling webhook "
            '"vjobset.kb.io": dial',
            "webhook-unreachable",
        ),
        (
            "could not start: the cluster refused: jobs is forbidden: exceeded quota: q, requested: c=1, used: c=1, "
            "limited: c=1",
            "quota-exceeded",
        ),
        ("could not start: https://10.0.0.1 does not answer: refused", "cluster-unreachable"),
        ("could not start: the cluster refused: no", "admission-refused"),
    ],
)
def test_objects_refused_at_start_have_their_own_verdict(summary: str, code: str) -> None:
    assert why(ClusterStatus(), Phase.FAILED, cause={"summary": summary}, exit_code=127).code == code


def test_quantities_are_parsed_to_numbers() -> None:
    assert [amount(text) for text in ("2", "500m", "16Gi", "?")] == [2.0, 0.5, 16 * 2.0**30, 0.0]


DOCS = Path(__file__).parents[5] / "docs"
PAGE = DOCS / "concepts" / "why.md"


def test_docs_page_lists_every_cluster_verdict() -> None:
    codes = {advice.code for _, advice in MESSAGES} | {advice.code for advice in ENDS.values()}
    assert sorted(code for code in codes if f"`{code}`" not in PAGE.read_text()) == []


def test_docs_page_shows_the_injected_faults() -> None:
    page = (DOCS / "reference" / "tested-verdicts.md").read_text()
    assert table() in page, f"put this into docs/reference/tested-verdicts.md:\n{table()}"


def test_crashing_supervisor_is_reported_with_its_last_log_lines() -> None:
    message = "no supervisor is running: pod r-1-supervisor-x has crashed (exit code 1); no pod trains"
    condition = {"type": "SupervisorAbsent", "message": message, "log": ["Traceback", "KeyError: 'x'"]}
    found = why(waiting("ContainerCreating", ""), more=[("condition", condition)])
    assert (found.code, found.summary, found.evidence) == (
        "supervisor-absent",
        message,
        ("Traceback", "KeyError: 'x'"),
    )
    assert "supervisor: machine in target bed" in found.fix
