"""Table of verdicts on what a cluster reports about pods: the meaning, and how to fix it."""

from __future__ import annotations

import re
from typing import Final

from windlass.diagnose.verdict import Advice, Verdict
from windlass.engines.kubernetes.reading.eviction import KARPENTER

_PULL: Final = r"(?:ErrImagePull|ImagePullBackOff|RegistryUnavailable): .*?"


MESSAGES: Final = (
    # -- pods that may not be created --
    (r"exceeded quota: ([^,]+), requested: (.*?), used: (.*?), limited: (.*)",
     Advice("quota-exceeded", "quota {1} of the namespace is used up: {2} was requested, {3} of {4} is in use",
            "wait for other runs to end, request less (resources:, nodes:), or have the quota raised")),
    (r"failed quota: ([^:]+): must specify (.*)",
     Advice("quota-exceeded", "quota {1} of the namespace requires {2} of every pod",
            "set resources: {{cpus: …, memory: …}} in the job")),
    (r"violates PodSecurity \"([^\"]+)\": (.*)",
     Advice("admission-refused", "the namespace's pod security ({1}) refuses the pods: {2}",
            "use another namespace, or have the pod security of this one changed")),
    (r"serviceaccount \"([^\"]+)\" not found",
     Advice("service-account-missing", "there is no service account {1} in the namespace",
            "correct kubernetes.service_account in the job, or: kubectl create serviceaccount {1}")),
    (r"no PriorityClass with name (\S+) was found",
     Advice("priority-missing", "there is no priority class {1} in the cluster",
            "correct priority: in the job; list them with: kubectl get priorityclass")),
    (r"failed calling webhook \"([^\"]+)\": (.*)",
     Advice("webhook-unreachable", "the cluster cannot reach its webhook {1}, and admits nothing without it: {2}",
            "see whether that operator's pods run; a cluster administrator can fix it")),
    (r"(?:admission webhook \"([^\"]+)\" denied the request|"
     r"ValidatingAdmissionPolicy '([^']+)' with binding '[^']+' denied request): (.*)",
     Advice("admission-refused", "the cluster's policy {1}{2} refuses the pods: {3}",
            "change the job as that policy requires")),
    (r"(?:maximum|minimum) (\S+) (?:usage )?per (?:Container|Pod) is (\S+?),? but (.*)",
     Advice("limit-range", "the namespace's limit range refuses the pods: {1} may be {2}, but {3}",
            "change resources: in the job; see: kubectl get limitrange -o yaml")),
    (r"User \"([^\"]+)\" cannot (.*)",
     Advice("rights-missing", "user {1} may not {2}", "have a role with this right bound to it")),
    # -- missing objects --
    (r"persistentvolumeclaims? \"([^\"]+)\" not found",
     Advice("claim-missing", "there is no claim {1} in the namespace",
            "correct volumes: or kubernetes.results.claim in the job; list them with: kubectl get pvc")),
    (r"(?:ProvisioningFailed|FailedBinding): (.*)",
     Advice("claim-unbound", "a claim that the pods need has no volume: {1}",
            "correct its storage class; list them with: kubectl get storageclass")),
    (r"unbound immediate PersistentVolumeClaims",
     Advice("claim-unbound", "a claim that the pods need has no volume yet",
            "see what its storage class waits for: kubectl describe pvc")),
    (r"volume node affinity conflict|didn't find available persistent volumes to bind",
     Advice("claim-elsewhere", "the volume of a claim can only be used on nodes where no pod fits",
            "use a claim in the zone of the nodes, or one that all zones share (EFS, FSx)")),
    (r"secrets? \"([^\"]+)\" not found",
     Advice("secret-missing", "there is no secret {1} in the namespace",
            "kubectl create secret generic {1} --from-literal=NAME=value")),
    (r"configmaps? \"([^\"]+)\" not found",
     Advice("config-missing", "there is no config map {1} in the namespace: it was deleted",
            "stop the run and start it again: it creates its own")),
    # -- images --
    (r"InvalidImageName: .*?\"([^\"]+)\"",
     Advice("image-name-invalid", "{1} is not a valid image name", "correct image: in the job")),
    (r"ErrImageNeverPull: .*?\"([^\"]+)\"",
     Advice("image-never-pulled", "image {1} is not on the node, and its pull policy is Never",
            "load it onto the node, or change its policy")),
    (_PULL + r"(?:toomanyrequests|429 Too Many)",
     Advice("image-rate-limited", "the registry of {image} refuses more pulls for now: too many requests",
            "copy the image into a registry of your own, and name that in image:")),
    (_PULL + r"(?:dial tcp|no such host|i/o timeout|connection refused|gave HTTP response|certificate|TLS handshake|"
     r"network is unreachable|EOF)",
     Advice("image-unreachable", "the nodes cannot reach the registry of {image}",
            "check its spelling, and whether the cluster's nodes may connect to it")),
    (_PULL + r"(?:401|403|[Uu]nauthorized|[Ff]orbidden|authorization failed|access denied|no basic auth|"
     r"may require authorization|authentication required)",
     Advice("image-auth", "the registry of {image} requires a login that the nodes do not have, or has no such image",
            "check the name; have a pull secret put into the service account, or the nodes' role allowed to pull")),
    (_PULL + r"(?:not found|manifest unknown|does not exist|name unknown|404)",
     Advice("image-not-found", "there is no image {image}", "correct the name or the tag in image:")),
    (_PULL, Advice("image-pull-failed", "image {image} cannot be pulled", "read the node's message, below")),
    # -- containers --
    (r"exec: \"([^\"]+)\": (?:executable file not found|stat .*?no such file|permission denied)",
     Advice("interpreter-missing", "the image has no program {1} to run the script",
            "set python: to the interpreter's path in the image, or use an image that has Python")),
    (r"(?:FailedMount|FailedAttachVolume|FailedMapVolume): (.*)",
     Advice("mount-failed", "a volume cannot be mounted: {1}",
            "see the claim and its driver: kubectl describe pvc; kubectl get csidrivers")),
    (r"(?:CreateContainer(?:Config)?Error|RunContainerError|StartError|ContainerCannotRun|FailedCreatePodSandBox|"
     r"FailedCreatePodContainer): (.*)",
     Advice("container-not-made", "the node cannot start the container: {1}",
            "read its message; if it is unrelated to the job, another node may work: see kubectl get nodes")),
    (r"(UnexpectedAdmissionError|NodeAffinity|OutOf\w+|NodePorts|Terminated): (.*)",
     Advice("machine-refuses", "the node of {it} has rejected it: {1}: {2}",
            "restarts: {{max: 3, on: [node-loss]}} starts it again; see kubectl describe node")),
    (r"FailedCreate: (?:Error creating: )?(.*)",
     Advice("admission-refused", "the cluster refuses to create the pods: {1}",
            "change the job as the message requires, or ask a cluster administrator")),
)  # fmt: skip
"""Patterns for `Reason: message` of any object, with verdicts; the first match counts."""
_IS_GENERAL: Final = re.compile(r"^(?:FailedCreate|\(\?:FailedMount|unbound|\(\?:CreateContainer)")
"""Patterns that match any message with the same reason. Their verdicts have a lower score than verdicts on a specific
cause."""

_RESTARTED: Final = "restarts: {{max: 3, on: [node-loss]}} restarts it on another node"
KARPENTER_REASONS: Final = {
    "Drifted": "its node no longer matches its NodePool or NodeClass (drift), and is replaced",
    "Underutilized": "its node was underused, and the pods fit on fewer or cheaper nodes (consolidation)",
    "Empty": "its node had nothing else to run (consolidation)",
    "Forceful Termination": "its node was deleted: by a user, at its expireAfter, or reclaimed by the cloud provider",
}
"""Explanations of Karpenter's reasons for an eviction."""
_LOST: Final = "the node of {it} is no longer in the cluster"
ENDS: Final = {
    "OOMKilled": Advice(
        "oom-killed", "{it} exceeded its memory limit and was killed",
        "more memory (resources.memory:), a smaller batch, or fewer DataLoader workers"),
    "Evicted": Advice(
        "evicted", "{it} was evicted by its node: {message}",
        "request what it needs (resources.memory:, resources.shm:), write large files into a claim "
        f"(kubernetes.results:); {_RESTARTED}"),
    "TerminationByKubelet": Advice(
        "evicted", "{it} was ended by its node: {message}",
        "restarts: {{max: 3, on: [preemption, node-loss]}} starts it again"),
    "PreemptionByScheduler": Advice(
        "preempted", "{it} was preempted by a pod of higher priority",
        "restarts: {{max: 3, on: [preemption, node-loss]}} starts it again when there is capacity; or a higher "
        "priority:"),
    "EvictionByEvictionAPI": Advice(
        "drained", "{it} was evicted from its node, as for a drain",
        "restarts: {{max: 3, on: [preemption, node-loss]}} restarts it on another node"),
    KARPENTER: Advice(
        "drained", "{it} was evicted {message}",
        "restarts: {{max: 3, on: [preemption]}} restarts it on another node, and a planned eviction uses up none of "
        "them; kubectl get nodepool -o yaml shows when nodes are replaced"),
    "DeletionByTaintManager": Advice("node-lost", "the node of {it} is gone or unfit for pods", _RESTARTED),
    "DeletionByPodGC": Advice("node-lost", _LOST, _RESTARTED),
    "NodeLost": Advice("node-lost", "the node of {it} does not answer", _RESTARTED),
    "NodeNotReady": Advice(
        "node-lost", "the node of {it} does not answer",
        "see: kubectl describe node {machine}; windlass stop and windlass resume move it to another node, restarts: "
        "{{max: 3, on: [node-loss]}} does so once the cluster declares it lost"),
    "Deleted": Advice(
        "pod-deleted", "{it} was deleted by another user or program",
        "find out what deletes pods there; restarts: {{max: 3, on: [preemption, node-loss]}} starts it again"),
}  # fmt: skip
"""Verdicts by the reason for which a pod has ended or is lost."""


def explained(message: str, it: str, evidence: tuple[str, ...], score: float, *, image: str = "") -> Verdict | None:
    """Returns the verdict on a message (`Reason: message`) about the object `it`; None if no pattern matches."""
    for pattern, advice in MESSAGES:
        if found := re.search(pattern, message, re.DOTALL):
            less = 3.0 if _IS_GENERAL.match(pattern) else 0.0
            return advice.verdict(
                evidence, *found.groups(), score=score - less, it=it, image=image or "the job's image"
            )
    return None
