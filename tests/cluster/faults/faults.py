"""Faults that are injected into a run on a cluster: the rows of `test_why.py`."""

from __future__ import annotations

from tests.cluster import objects
from tests.cluster.bed.machines import NEVER_READY
from tests.cluster.faults import scene
from tests.cluster.faults.scene import Fault, made, removed

READY = "print('ready', flush=True)\nimport time\n"

FAULTS = (
    # -- no place for it --
    Fault("three GPUs, of which no machine has more than two", "unschedulable",
          ("2 of 2 nodes have too little nvidia.com/gpu (3 each)", "the largest node has 2", "resources.gpus"),
          job={"resources": {"gpus": 3}, "procs_per_node": 1}, phase="queued"),
    Fault("a kind of machine that the cluster does not have", "unschedulable",
          ("p5.48xlarge", "resources.instance", "g4dn.xlarge"), job={"resources": {"instance": "p5.48xlarge"}}),
    Fault("more memory than any machine has", "unschedulable", ("too little memory", "resources.memory"),
          job={"resources": {"memory": "64TiB"}}),
    # -- pods that may not be made --
    Fault("a quota with capacity for one of two pods", "quota-exceeded", ("small", "pods=1"),
          job={"nodes": 2}, before=made(scene.quota(pods="1"))),
    Fault("a quota that requires limits of each pod", "quota-exceeded", ("limits.cpu", "resources:"),
          before=made(scene.quota(limits_cpu="4"))),
    Fault("a policy that does not let the image in", "admission-refused", ("only images of ours",),
          before=scene.make_a_policy),
    Fault("the same by JobSet", "admission-refused", ("only images of ours",),
          job={"kubernetes": {"via": "jobset"}}, before=scene.make_a_policy),
    Fault("a service account that does not exist", "service-account-missing", ("trainer",),
          job={"kubernetes": {"service_account": "trainer"}}),
    Fault("a priority class that does not exist", "priority-missing", ("at-once",), job={"priority": "at-once"}),
    Fault("a limit range that allows less memory", "limit-range", ("memory", "64Mi"),
          job={"resources": {"memory": "1GiB"}}, before=made(scene.limit_range(max={"memory": "64Mi"}))),
    # -- missing objects --
    Fault("a claim that was deleted after the plan was made", "claim-missing", ("data",),
          job={"volumes": [{"claim": "data", "path": "/data"}]}, before=made(objects.claim("data")),
          between=removed("pvc", "data")),
    Fault("a claim of a storage class that does not exist", "claim-unbound", ("golden", "kubectl get storageclass"),
          job={"kubernetes": {"results": {"size": "1GiB", "storage_class": "golden"}}}),
    Fault("a secret that was deleted after the plan was made", "secret-missing", ("hf-token", "kubectl create secret"),
          job={"secrets": ["hf-token"]},
          before=lambda at: at.kubectl("create", "secret", "generic", "hf-token", "--from-literal=A=b"),
          between=removed("secret", "hf-token"), phase="pulling"),
    # -- images --
    Fault("an image that its registry does not have", "image-not-found", ("models/trainer:9",),
          job={"image": "REGISTRY/models/trainer:9"}, phase="pulling"),
    Fault("an image for which the machines have no login", "image-auth", ("private/trainer:9", "pull secret"),
          job={"image": "REGISTRY/private/trainer:9"}),
    Fault("a registry that cannot be reached", "image-unreachable", ("registry.invalid/trainer:1",),
          job={"image": "registry.invalid/trainer:1"}),
    Fault("what is no name of an image", "image-name-invalid", ("Trainer:Latest:1",),
          job={"image": "Trainer:Latest:1"}),
    Fault("an image without the interpreter", "interpreter-missing", ("/opt/nothing/python",),
          job={"python": "/opt/nothing/python"}, ends=True),
    # -- ended from outside --
    Fault("more memory than the pod may have", "oom-killed", ("resources.memory",),
          READY + "held = [b'x' * (1 << 20) for _ in range(4096)]\ntime.sleep(60)\n",
          {"resources": {"memory": "160MiB"}}, ends=True),
    Fault("more files than the pod may have", "evicted", ("ephemeral",),
          READY + "open('large', 'wb').write(b'x' * (64 << 20))\ntime.sleep(600)\n",
          before=made(scene.limit_range(default={"ephemeral-storage": "16Mi"})), ends=True),
    Fault("a pod that a user deletes", "pod-deleted", ("was deleted",), act=scene.delete_a_pod, ends=True),
    Fault("a job that a user deletes", "job-deleted", ("was deleted", "windlass resume"),
          act=scene.delete_the_job, ends=True),
    Fault("a pod that is asked to leave, as for a drain", "drained", ("restarts:",), act=scene.evict_a_pod, ends=True),
    Fault("a pod that is preempted by another", "preempted", ("priority",), job={
        "resources": {"gpus": 1}, "procs_per_node": 1,
    }, act=scene.want_its_machine, ends=True),
    Fault("a deadline that another user has set", "deadline", ("activeDeadlineSeconds",),
          act=scene.set_a_deadline, ends=True),
    Fault("a time limit that comes while no machine fits", "unschedulable", ("nvidia.com/gpu",),
          job={"resources": {"gpus": 3}, "procs_per_node": 1, "timeout": "12s"}, ends=True),
    # -- the script itself --
    Fault("an exception of the script, in one of two pods", "exception", ("ValueError: bad label 11", "train.py:3"),
          "import os, time\nif os.environ['WINDLASS_RANK'] == '1':\n    raise ValueError('bad label 11')\n"
          "time.sleep(600)\n",
          {"nodes": 2, "launcher": "plain"}, ends=True),
    Fault("a module that the image does not have", "module-missing", ("nothing_like_it",), "import nothing_like_it\n",
          ends=True),
    Fault("an exit code of the script's own", "exit-code", ("seven is too few",),
          "import sys\nprint('seven is too few')\nsys.exit(7)\n", ends=True),
)  # fmt: skip

IN_QUEUE = {"queue": "narrow", "resources": {"cpus": 0.8}}
QUEUED = (
    Fault("a queue that was deleted after the plan was made", "queue-misconfigured",
          ("LocalQueue narrow", "the namespace has no LocalQueue"), job=IN_QUEUE, before=scene.queue(),
          between=removed("localqueue", "narrow"), operator="kueue", phase="queued"),
    Fault("a queue whose quota another job has", "queue-quota",
          ("too little cpu", "number 1 of 1", "Job other has 800m cpu", "800m is reserved"),
          job=IN_QUEUE, before=scene.queue_in_use, operator="kueue", phase="queued"),
    Fault("more than a queue can ever have", "queue-too-large", ("can ever provide: 1600m cpu", "maximum capacity (1)"),
          job={**IN_QUEUE, "nodes": 2}, before=scene.queue(), operator="kueue", phase="queued"),
    Fault("a queue that is stopped", "queue-stopped", ("stopPolicy",), job=IN_QUEUE,
          before=scene.queue(stopPolicy="Hold"), operator="kueue", phase="queued"),
    Fault("a queue that refers to a missing AdmissionCheck", "queue-misconfigured", ("AdmissionCheck",), job=IN_QUEUE,
          before=scene.queue(admissionChecksStrategy={"admissionChecks": [{"name": "budget"}]}), operator="kueue"),
    Fault("a queue whose flavor lacks the instance type of the job", "queue-no-flavor", ("resources.instance",),
          job={**IN_QUEUE, "resources": {"cpus": 0.8, "instance": "g4dn.xlarge"}},
          before=scene.queue(node_selector={"node.kubernetes.io/instance-type": "p5.48xlarge"}), operator="kueue"),
    Fault("a queue whose flavor no machine has", "unschedulable", ("requested labels",), job=IN_QUEUE,
          before=scene.queue(node_selector={"pool": "no-node-has-it"}), operator="kueue", phase="queued"),
    Fault("a run that a user deactivates while it waits", "queue-deactivated", ("kubectl patch workload",),
          job=IN_QUEUE, before=scene.queue_in_use, act=scene.deactivate_it, operator="kueue"),
    Fault("a job of higher priority in the same queue", "queue-preempted", ("Job urgent", "higher priority:"),
          job=IN_QUEUE, before=scene.queue(preemption={"withinClusterQueue": "LowerPriority"}),
          act=scene.want_its_quota, operator="kueue", ends=True),
    Fault("a queue that is drained while the run trains", "queue-drained", ("was stopped",), job=IN_QUEUE,
          before=scene.queue(), act=scene.stop_its_queue, operator="kueue", ends=True),
)  # fmt: skip

FOUR_GPUS = {"resources": {"gpus": 4}, "procs_per_node": 1}
VISION = {"key": "team", "value": "vision", "effect": "NoSchedule"}
SCALED = (
    Fault("a type of machine that no NodePool makes", "instance-type-missing",
          ("p5.48xlarge", "NodePools list g5.12xlarge", "resources.instance"),
          job={"resources": {"instance": "p5.48xlarge", "gpus": 4}, "procs_per_node": 1},
          before=scene.pool("g5.12xlarge"), phase="queued"),
    Fault("more GPUs than any type that a NodePool makes has", "machines-too-small",
          ("16 nvidia.com/gpu", "resources.gpus"), job={"resources": {"gpus": 16}, "procs_per_node": 1},
          before=scene.pool("g5.12xlarge", "p4d.24xlarge"), phase="queued"),
    Fault("a NodePool that has reached its limit", "pool-limit",
          ("NodePool gpus", "0 of 2 nvidia.com/gpu in use", "spec.limits"), job=FOUR_GPUS,
          before=scene.pool("g5.12xlarge", limits={"nvidia.com/gpu": "2"}), phase="queued"),
    Fault("a cloud that has no machine of the type left", "no-capacity",
          ("no capacity is left of p4d.24xlarge", "g5.12xlarge may fit too"),
          job={"resources": {"instance": "p4d.24xlarge", "gpus": 4}, "procs_per_node": 1},
          before=scene.pool("g5.12xlarge", "p4d.24xlarge", sold_out="p4d.24xlarge")),
    Fault("a NodePool whose machines have a taint", "taint-not-tolerated", ("team=vision:NoSchedule", "NodePool gpus"),
          job=FOUR_GPUS, before=scene.pool("g5.12xlarge", taints=[VISION]), phase="queued"),
    Fault("a label that machines of no NodePool have", "machines-of-other-kind", ("team", "vision"),
          job={**FOUR_GPUS, "kubernetes": {"node_selector": {"team": "vision"}}}, before=scene.pool("g5.12xlarge"),
          phase="queued"),
    Fault("a NodePool whose NodeClass does not exist", "pool-not-ready", ("NodePool gpus", "kubectl describe nodepool"),
          job=FOUR_GPUS, before=scene.pool("g5.12xlarge", without_class=True), phase="queued"),
    Fault("a machine that comes and never gets ready", "machine-not-ready", ("g5.12xlarge", "kubectl describe node"),
          job=FOUR_GPUS, before=scene.pool("g5.12xlarge", labels={NEVER_READY: "true"}), phase="provisioning"),
    Fault("a machine that is launched and never joins the cluster", "machine-not-registered",
          ("g5.12xlarge", "kubectl describe nodeclaim"), job=FOUR_GPUS,
          before=scene.pool("g5.12xlarge", delay="20m"), phase="provisioning"),
    Fault("a time limit that comes while no machine can be made", "machines-too-small", ("16 nvidia.com/gpu",),
          job={"resources": {"gpus": 16}, "procs_per_node": 1, "timeout": "20s"},
          before=scene.pool("g5.12xlarge"), ends=True),
)  # fmt: skip

BREAKING = (
    Fault("a cluster without a scheduler", "not-scheduled", ("scheduler",),
          before=scene.stopped_program("kube-scheduler"), breaks=True, phase="queued"),
    Fault("a cluster without controllers", "pods-not-made", ("controllers",),
          before=scene.stopped_program("kube-controller-manager"), breaks=True),
    Fault("a cluster without name service", "name-unknown", ("kube-dns",), job={"nodes": 2, "launcher": "plain"},
          before=scene.stopped_program("coredns"), breaks=True),
    Fault("JobSet's webhook does not answer", "webhook-unreachable", ("jobset",),
          job={"kubernetes": {"via": "jobset"}}, between=scene.stopped_program("jobset"), breaks=True),
    Fault("an API server that answers nothing", "cluster-unreachable", (), act=scene.silent_api, breaks=True),
    Fault("an API server that is gone", "cluster-unreachable", (), act=scene.dead_api, breaks=True),
    Fault("a machine whose power is cut", "node-lost", ("does not answer",), job={"nodes": 2, "launcher": "plain"},
          act=scene.power_cut, breaks=True),
)  # fmt: skip

HEALTHY = (
    Fault("a run that succeeds", "none", script="print('ready')\n", ends=True),
    Fault("a run that continues", "none", act=lambda at: at.wait_for_line()),
)


def table() -> str:
    """Returns the rows as a table of the documentation."""
    rows = [f"| {row.name} | `{row.verdict}` |" for row in (*FAULTS, *QUEUED, *SCALED, *BREAKING)]
    return "\n".join(["| what is wrong | verdict |", "|---|---|", *rows])
