"""What clusters say of pods that do not run: a table from their words to what that means and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

PULL: Final = r"(?:ErrImagePull|ImagePullBackOff|RegistryUnavailable): .*?"


@dataclass(frozen=True, slots=True)
class Meaning:
    """A kind of refusal. In its texts `{it}` is who says it, and `{1}`, `{2}` … are what the pattern found."""

    code: str
    pattern: str
    """Searched in `Reason: message`, whichever object says it."""
    summary: str
    fix: str


WAITS: Final = (
    # -- pods that may not be made --
    Meaning("quota-exceeded", r"exceeded quota: ([^,]+), requested: (.*?), used: (.*?), limited: (.*)",
            "quota {1} of the namespace is used up: {2} was asked for, of {4} there is in use {3}",
            "wait for other runs to end, ask for less (resources:, nodes:), or have the quota raised"),
    Meaning("quota-exceeded", r"failed quota: ([^:]+): must specify (.*)",
            "quota {1} of the namespace wants to know {2} of every pod",
            "set resources: {{cpus: …, memory: …}} in the job"),
    Meaning("admission-refused", r"violates PodSecurity \"([^\"]+)\": (.*)",
            "the namespace's pod security ({1}) does not let the pods in: {2}",
            "use another namespace, or have the pod security of this one changed"),
    Meaning("service-account-missing", r"serviceaccount \"([^\"]+)\" not found",
            "there is no service account {1} in the namespace",
            "correct kubernetes.service_account in the job, or: kubectl create serviceaccount {1}"),
    Meaning("priority-missing", r"no PriorityClass with name (\S+) was found",
            "there is no priority class {1} in the cluster",
            "correct priority: in the job; there are: kubectl get priorityclass"),
    Meaning("webhook-unreachable", r"failed calling webhook \"([^\"]+)\": (.*)",
            "the cluster cannot ask its webhook {1}, without which it lets nothing in: {2}",
            "see whether that operator's pods run; whoever keeps the cluster can mend it"),
    Meaning("admission-refused", r"admission webhook \"([^\"]+)\" denied the request: (.*)",
            "the cluster's policy {1} refuses the pods: {2}",
            "change the job as that policy wants it"),
    Meaning("admission-refused", r"ValidatingAdmissionPolicy '([^']+)' with binding '[^']+' denied request: (.*)",
            "the cluster's policy {1} refuses the pods: {2}",
            "change the job as that policy wants it"),
    Meaning("limit-range", r"(?:maximum|minimum) (\S+) (?:usage )?per (?:Container|Pod) is (\S+?),? but (.*)",
            "the namespace's limit range refuses the pods: {1} may be {2}, but {3}",
            "change resources: in the job; see: kubectl get limitrange -o yaml"),
    Meaning("rights-missing", r"User \"([^\"]+)\" cannot (.*)",
            "user {1} may not {2}", "have a role with this right bound to it"),
    # -- what they need is not there --
    Meaning("claim-missing", r"persistentvolumeclaims? \"([^\"]+)\" not found",
            "there is no claim {1} in the namespace",
            "correct volumes: or kubernetes.results.claim in the job; there are: kubectl get pvc"),
    Meaning("claim-unbound", r"(?:ProvisioningFailed|FailedBinding): (.*)",
            "a claim that the pods need has no volume: {1}",
            "correct its storage class; there are: kubectl get storageclass"),
    Meaning("claim-unbound", r"unbound immediate PersistentVolumeClaims",
            "a claim that the pods need has no volume yet",
            "see what its storage class waits for: kubectl describe pvc"),
    Meaning("claim-elsewhere", r"volume node affinity conflict|didn't find available persistent volumes to bind",
            "the volume of a claim can only be used on machines where no pod fits",
            "use a claim in the zone of the machines, or one that all zones share (EFS, FSx)"),
    Meaning("secret-missing", r"(?:secrets? \"([^\"]+)\" not found)",
            "there is no secret {1} in the namespace",
            "kubectl create secret generic {1} --from-literal=NAME=value"),
    Meaning("config-missing", r"configmaps? \"([^\"]+)\" not found",
            "there is no config map {1} in the namespace: somebody has deleted it",
            "stop the run and start it again: it brings its own along"),
    # -- images --
    Meaning("image-name-invalid", r"InvalidImageName: .*?\"([^\"]+)\"",
            "{1} is no name of an image", "correct image: in the job"),
    Meaning("image-never-pulled", r"ErrImageNeverPull: .*?\"([^\"]+)\"",
            "image {1} is not on the machine, which is told never to pull it", "bring it there, or change its policy"),
    Meaning("image-rate-limited", PULL + r"(?:toomanyrequests|429 Too Many)",
            "the registry of {image} gives no more for now: too many pulls",
            "copy the image into a registry of your own, and name that in image:"),
    Meaning("image-unreachable", PULL + r"(?:dial tcp|no such host|i/o timeout|connection refused|"
            r"gave HTTP response|certificate|TLS handshake|network is unreachable|EOF)",
            "the machines cannot reach the registry of {image}",
            "see whether it is spelled right, and whether the cluster's machines may go there"),
    Meaning("image-auth", PULL + r"(?:401|403|[Uu]nauthorized|[Ff]orbidden|authorization failed|access denied|"
            r"no basic auth|may require authorization|authentication required)",
            "the registry of {image} wants a login that the machines do not have, or has no such image",
            "see the name; have a pull secret put into the service account, or the machines' role allowed to pull"),
    Meaning("image-not-found", PULL + r"(?:not found|manifest unknown|does not exist|name unknown|404)",
            "there is no image {image}", "correct the name or the tag in image:"),
    Meaning("image-pull-failed", PULL,
            "image {image} cannot be pulled", "read what the machine says of it, below"),
    # -- containers --
    Meaning("interpreter-missing", r"exec: \"([^\"]+)\": (?:executable file not found|stat .*?no such file|"
            r"permission denied)",
            "the image has no program {1}, which is to run the script",
            "set python: to the interpreter's path in the image, or use an image that has Python"),
    Meaning("mount-failed", r"(?:FailedMount|FailedAttachVolume|FailedMapVolume): (.*)",
            "a volume cannot be mounted: {1}",
            "see the claim and its driver: kubectl describe pvc; kubectl get csidrivers"),
    Meaning("container-not-made", r"(?:CreateContainer(?:Config)?Error|RunContainerError|StartError|ContainerCannotRun|"
            r"FailedCreatePodSandBox|FailedCreatePodContainer): (.*)",
            "the machine cannot start the container: {1}",
            "read what it says; if it names nothing of the job, another machine may do: see kubectl get nodes"),
    Meaning("machine-refuses", r"(UnexpectedAdmissionError|NodeAffinity|OutOf\w+|NodePorts|Terminated): (.*)",
            "the machine of {it} has turned it away: {1}: {2}",
            "restarts: {{max: 3, on: [node-loss]}} starts it again; see kubectl describe node"),
    Meaning("admission-refused", r"FailedCreate: (?:Error creating: )?(.*)",
            "the cluster refuses to make the pods: {1}",
            "change the job as it says, or ask whoever keeps the cluster"),
)  # fmt: skip
"""The first that fits is what it means: what names a cause comes before what names an effect."""

ENDS: Final = {
    "OOMKilled": ("oom-killed", "{it} took more memory than it may have, and was killed for it",
                  "more memory (resources.memory:), a smaller batch, or fewer DataLoader workers"),
    "Evicted": ("evicted", "{it} was put out by its machine: {message}",
                "ask for what it needs (resources.memory:, resources.shm:), write large files into a claim "
                "(kubernetes.results:); restarts: {{max: 3, on: [node-loss]}} starts it again"),
    "TerminationByKubelet": ("evicted", "{it} was ended by its machine: {message}",
                             "restarts: {{max: 3, on: [preemption, node-loss]}} starts it again"),
    "PreemptionByScheduler": ("preempted", "{it} had to make room for one of higher priority",
                              "restarts: {{max: 3, on: [preemption, node-loss]}} starts it again when there is room; "
                              "or a higher priority:"),
    "EvictionByEvictionAPI": ("drained", "{it} was asked to leave its machine, as for a drain",
                              "restarts: {{max: 3, on: [preemption, node-loss]}} goes on elsewhere by itself"),
    "DeletionByTaintManager": ("node-lost", "the machine of {it} is gone or unfit for pods",
                               "restarts: {{max: 3, on: [node-loss]}} goes on elsewhere by itself"),
    "DeletionByPodGC": ("node-lost", "the machine of {it} is no longer in the cluster",
                        "restarts: {{max: 3, on: [node-loss]}} goes on elsewhere by itself"),
    "NodeLost": ("node-lost", "the machine of {it} does not answer",
                 "restarts: {{max: 3, on: [node-loss]}} goes on elsewhere by itself"),
    "NodeNotReady": ("node-lost", "the machine of {it} does not answer",
                     "see: kubectl describe node {machine}; windlass stop and windlass resume go on elsewhere, "
                     "restarts: {{max: 3, on: [node-loss]}} does by itself once the cluster gives it up"),
    "Deleted": ("pod-deleted", "{it} was deleted by somebody",
                "see who does that here; restarts: {{max: 3, on: [preemption, node-loss]}} starts it again"),
}  # fmt: skip
"""By the reason of a pod that has ended, or is lost: the code, a sentence and what to do."""


def meaning_of(words: str) -> tuple[Meaning, re.Match[str]] | None:
    """What a cluster's words mean, if that is known."""
    for meaning in WAITS:
        if found := re.search(meaning.pattern, words, re.DOTALL):
            return meaning, found
    return None
