"""What fields of foreign documents are for, and what to do where a job file has no such field."""

from __future__ import annotations

from typing import Final

from windlass.spec.problems import Path

Words = tuple[str, str, bool]
"""What it was for, what to do instead, and whether there is nothing to do."""


def _ours(meaning: str, instead: str = "nothing to do") -> Words:
    return meaning, instead, True


def _lost(meaning: str, instead: str) -> Words:
    return meaning, instead, False


_CLUSTER_KEEPS: Final = _ours("what the cluster has noted of this object")
_MEANINGS: Final[dict[str, Words]] = {
    # of any object
    **dict.fromkeys(("apiVersion", "kind"), _ours("what kind of object it is")),
    **dict.fromkeys(
        (
            "status",
            "creationTimestamp",
            "uid",
            "resourceVersion",
            "generation",
            "managedFields",
            "selfLink",
            "ownerReferences",
            "finalizers",
        ),
        _CLUSTER_KEEPS,
    ),
    "labels": _lost("names by which others find the objects", "runs have labels of their own: windlass.dev/run"),
    "annotations": _lost(
        "notes to programs of the cluster", "have the cluster's administrator set them for the namespace"
    ),
    "kubectl.kubernetes.io/last-applied-configuration": _CLUSTER_KEEPS,
    "sidecar.istio.io/inject": _lost(
        "whether Istio puts a proxy beside the ranks", "leave injection off for the namespace: ranks talk directly"
    ),
    # of pods
    "hostNetwork": _lost(
        "pods use the network of their machine", "run without it; NCCL and gloo find the pods' own network"
    ),
    "hostPID": _lost("pods see the processes of their machine", "not needed for training"),
    "hostIPC": _lost("pods share memory with their machine", "resources: {shm: 8GiB} gives each node its own"),
    "shareProcessNamespace": _lost("containers of a pod see each other", "a node is one container here"),
    "dnsPolicy": _lost("how names are looked up", "the cluster's own way is used"),
    "dnsConfig": _lost("where names are looked up", "the cluster's own way is used"),
    "hostAliases": _lost("names in /etc/hosts", "use the addresses in env:"),
    "hostname": _ours("the pod's name", "pods get names of their own"),
    "subdomain": _ours("the domain of pod names", "a run makes its own headless Service"),
    "setHostnameAsFQDN": _ours("the form of host names"),
    "enableServiceLinks": _ours("variables for Services", "pods get none"),
    "schedulerName": _lost("another scheduler places the pods", "the cluster's default scheduler places them"),
    "runtimeClassName": _lost("another container runtime", "have it set for the machines or the namespace"),
    **dict.fromkeys(
        (
            "batch.kubernetes.io/controller-uid",
            "controller-uid",
            "batch.kubernetes.io/job-name",
            "job-name",
            "trainer.kubeflow.org/framework",
            "trainer.kubeflow.org/trainjob-ancestor-step",
        ),
        _ours("how a controller finds its pods"),
    ),
    "imagePullSecrets": _lost(
        "logins for the image's registry", "attach them to the service account: kubernetes: {service_account: NAME}"
    ),
    "securityContext": _lost(
        "the user and the rights of processes", "pods run as user: of the target, 1000, without any rights of root"
    ),
    "affinity": _lost(
        "which machines the pods prefer or avoid", "resources: {instance: TYPE} or gpu_type: chooses machines"
    ),
    "nodeName": _lost("the machine itself", "resources: {instance: TYPE} chooses a kind of machine"),
    "nodeSelector": _lost(
        "which machines the pods may go to", "resources: {instance: TYPE} or gpu_type: chooses machines"
    ),
    "tolerations": _lost(
        "machines that keep others away", "GPU machines are tolerated where gpus: are asked for; others are not"
    ),
    "topologySpreadConstraints": _ours("how pods are spread", "nodes are spread over machines where there is room"),
    "schedulingGates": _lost(
        "pods wait until somebody opens the gate", "queue: names a queue of Kueue that admits the run"
    ),
    "preemptionPolicy": _lost("whether the pods may push others out", "priority: names a class, which says it too"),
    "priority": _lost("the number of a priority class", "priority: NAME names the class"),
    "overhead": _lost("what the container runtime needs itself", "the runtime class says it"),
    "readinessGates": _lost("conditions of readiness", "ranks meet before pods are ready"),
    "resourceClaims": _lost("devices that are claimed", "resources: {gpus: N} asks for GPUs as nvidia.com/gpu"),
    "os": _ours("the kind of machine", "images are for Linux"),
    "automountServiceAccountToken": _lost(
        "whether a token of the service account is in the pod", "no token is mounted"
    ),
    "initContainers": _lost("runs in each pod before the ranks", "do it in the image or in the script"),
    "ephemeralContainers": _lost("a container to look into a pod", "windlass exec RUN -- bash"),
    "volumes": _lost("storage that nothing mounts", "volumes: [{claim: NAME, path: /data}] mounts a claim"),
    # of containers
    "imagePullPolicy": _lost(
        "when the image is fetched again", "the cluster's default holds: name the image by digest or a new tag"
    ),
    "ports": _ours("ports that are named", "all ports of a pod are its own"),
    "livenessProbe": _lost("restarts a container that does not answer", "hang: 30min watches the ranks instead"),
    "readinessProbe": _ours("says when a pod may be talked to", "ranks meet by themselves"),
    "startupProbe": _ours("says when a container has started"),
    "lifecycle": _lost(
        "commands at the start and the end of a container", "ranks get SIGTERM and grace: seconds to save"
    ),
    "tty": _ours("a terminal", "windlass exec --help"),
    "stdin": _ours("an open standard input"),
    "stdinOnce": _ours("an open standard input"),
    "terminationMessagePath": _ours("where last words stand", "windlass why reads those of all ranks"),
    "terminationMessagePolicy": _ours("what last words are", "windlass why reads those of all ranks"),
    "resizePolicy": _ours("what a change of resources needs"),
    "volumeDevices": _lost("disks without a file system", "mount them as a claim with a file system"),
    "workingDir": _lost(
        "the folder that the program starts in", "ranks start in the folder of the code; use paths from the root"
    ),
    "envFrom": _lost("variables from a ConfigMap or Secret", "secrets: [NAME], or the values in env:"),
    "env": _lost("a variable", "write it in env:"),
    # of jobs
    "suspend": _lost("the job waits until somebody lets it go on", "queue: names a queue of Kueue that admits the run"),
    "managedBy": _ours("which controller acts", "Windlass keeps its own runs"),
    "cleanPodPolicy": _ours("which pods are deleted at the end", "pods stay, ended, until windlass rm"),
    "ttlSecondsAfterFinished": _lost("when the object is deleted after its end", "windlass rm RUN removes it"),
    "podFailurePolicy": _lost(
        "which exit codes are worth a restart", "restarts: {on: [failure, preemption]} names causes"
    ),
    "backoffLimitPerIndex": _lost("restarts of each pod by itself", "restarts: starts all ranks again together"),
    "maxFailedIndexes": _lost("how many pods may fail", "a job fails with its first rank, or is started again"),
    "successPolicy": _lost("which pods decide that the job is done", "a job succeeds when all its ranks have"),
    "podReplacementPolicy": _ours("when a new pod is made", "an attempt begins when the one before has ended"),
    "manualSelector": _ours("how its pods are found"),
    "selector": _ours("how its pods are found", "labels of the run find them"),
    "failurePolicy": _lost("what follows which failure", "restarts: {max: 3, on: [failure]}"),
    "startupPolicy": _ours("in which order jobs start", "all nodes start together"),
    "network": _ours("how pods get names", "a run makes its own headless Service"),
    "coordinator": _ours("which pod leads", "node 0 does"),
    "dependsOn": _lost("a job waits for another", "run one after the other"),
    "volumeClaimPolicies": _lost(
        "claims that are made for each pod", "kubernetes: {results: {size: 20GiB}} makes one for the run"
    ),
    # of Kubeflow's kinds
    "schedulingPolicy": _lost(
        "all pods start together, by a gang scheduler", "queue: names a queue of Kueue, which admits all or none"
    ),
    "podGroupPolicy": _lost(
        "all pods start together, by a gang scheduler", "queue: names a queue of Kueue, which admits all or none"
    ),
    "metrics": _lost("grows and shrinks with a load", "an elastic job has as many nodes as there is room for"),
    "sshAuthMountPath": _ours("where ssh keys are", "Windlass starts the ranks without ssh keys of yours"),
    "mpiImplementation": _lost("which MPI starts the ranks", "launcher: mpi starts them by Open MPI"),
    "launcherCreationPolicy": _ours("when mpirun begins", "it begins when all nodes are there"),
    "runLauncherAsWorker": _ours("where mpirun is", "node 0 starts it, and has ranks too"),
    "launcherOnMaster": _ours("where mpirun is", "node 0 starts it, and has ranks too"),
    "mainContainer": _ours("which container counts"),
    "initializer": _lost(
        "brings data or a model before training", "data: [{name: …, source: s3://…}], or a claim in volumes:"
    ),
    "standalone": _ours("one machine alone", "nodes: 1 says it"),
    **dict.fromkeys(
        ("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "rdzvEndpoint"),
        _ours("how nodes find each other", "Windlass does that itself"),
    ),
}
_ELSE: Final = _lost("a job file has no such field", "windlass schema prints the fields that it has")


_EACH: Final = frozenset(("labels", "annotations", "matchLabels"))
"""Mappings of which each entry is a thing of its own."""


def is_one_thing(path: Path) -> bool:
    """Whether one sentence says what all below this path is for."""
    known = next((step for step in reversed(path) if step in _MEANINGS), None)
    return known is not None and known not in _EACH


def meaning_of(path: Path) -> Words:
    """The words about a field that nobody has read, by the nearest name in its path that is known."""
    for step in reversed(path):
        if isinstance(step, str) and step in _MEANINGS:
            return _MEANINGS[step]
    return _ELSE
