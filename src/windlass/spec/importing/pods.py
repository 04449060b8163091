"""Reads the template of a pod into a job: what each node starts, has and mounts, and which machines it may go to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.spec.importing.documents import Documents
from windlass.spec.importing.draft import Draft
from windlass.spec.importing.quantities import cores, size, whole
from windlass.spec.importing.shell import expanded
from windlass.spec.importing.source import View
from windlass.spec.importing.words import Start, assumed_torchrun, start_of

GPU: Final = "nvidia.com/gpu"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
INSTANCE_LABELS: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
GPU_LABELS: Final = (
    "nvidia.com/gpu.product",
    "karpenter.k8s.aws/instance-gpu-name",
    "cloud.google.com/gke-accelerator",
)
"""Where clusters say which GPU a machine has: NVIDIA's own discovery, Karpenter on EKS, GKE."""
SILENT: Final = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
SHM: Final = "/dev/shm"
DEVICES: Final = {
    "vpc.amazonaws.com/efa": "run it as it is where EFA is needed: a job file asks for no network devices yet",
    "ephemeral-storage": "pods have what their machine has; give large files a claim in volumes:",
}


@dataclass
class Pods:
    """What all templates of a job have in common while they are read."""

    draft: Draft
    beside: Documents
    volumes: dict[str, View] = field(default_factory=dict)
    """The volumes of the template that is read, by name; those of a patch are added."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of the main container whose values are known."""
    unknown: set[str] = field(default_factory=set)
    """Variables of it that have a value in the cluster alone."""
    start: Start | None = None
    """What the main container starts; None until a command was found."""
    start_view: View | None = None
    """Where that command stands."""
    command_words: list[str] = field(default_factory=list)
    """The command without its arguments, which others may replace."""

    # -- the template -------------------------------------------------------------------------------------------------

    def read(self, template: View, names: tuple[str, ...] = (), *, is_patch: bool = False) -> None:
        """Read a pod template; `names` are those of the container that trains."""
        labels = template.at("metadata", "labels")
        queue(self.draft, labels)
        self.read_spec(template.at("spec"), names, is_patch=is_patch)

    def read_spec(self, spec: View, names: tuple[str, ...] = (), *, is_patch: bool = False) -> None:
        """Read the spec of a pod, or a patch of one."""
        for volume in spec.at("volumes").each():
            name = volume.at("name").value
            if isinstance(name, str):
                self.volumes[name] = volume
        container = _main(spec.at("containers"), names, is_patch=is_patch)
        if container is not None:
            for other in spec.at("containers").each():
                if other.path != container.path:
                    other.leave(
                        f"container {other.at('name').value} runs beside the ranks in each pod",
                        "a node is one container here: run it on its own, or start it in the script",
                    )
            self._container(container)
        for init in spec.at("initContainers").each():
            init.leave(
                f"container {init.at('name').value} runs in each pod before the ranks",
                "do it in the image or at the start of the script",
            )
        self._places(spec)
        self._life(spec)

    def _life(self, spec: View) -> None:
        draft = self.draft
        restart = spec.at("restartPolicy")
        if restart.value == "Never":
            restart.take()
        else:
            restart.leave("a container is started again in its pod", "restarts: 3 starts all ranks again", is_ours=True)
        for name, usual in (("dnsPolicy", "ClusterFirst"), ("schedulerName", "default-scheduler")):
            if spec.at(name).value == usual:
                spec.at(name).leave("what every pod has", "nothing to do", is_ours=True)
        for secret in spec.at("imagePullSecrets").each():
            if (login := secret.text("name")) is not None:
                draft.add("kubernetes.image_pull_secrets", login, secret)
        if (seconds := spec.whole("terminationGracePeriodSeconds")) is not None:
            draft.put("grace", float(seconds), spec.at("terminationGracePeriodSeconds"))
        if (seconds := spec.whole("activeDeadlineSeconds")) is not None and draft.get("timeout") is None:
            draft.put("timeout", float(seconds), spec.at("activeDeadlineSeconds"))
        for name in ("serviceAccount", "serviceAccountName"):
            if (account := spec.text(name)) is not None and account != "default":
                draft.put("kubernetes.service_account", account, spec.at(name))
        if (priority := spec.text("priorityClassName")) is not None:
            draft.put("priority", priority, spec.at("priorityClassName"))
        if spec.at("automountServiceAccountToken").value is False:
            spec.at("automountServiceAccountToken").take()

    def _places(self, spec: View) -> None:
        """Which machines."""
        for label, view in spec.at("nodeSelector").items():
            self._label(label, view)
        terms = spec.at(
            "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"
        )
        if len(terms.each()) == 1:
            for rule in terms.at(0, "matchExpressions").each():
                values = rule.at("values").value
                one = isinstance(values, list) and len(values) == 1 and rule.at("operator").value == "In"
                if one and isinstance(rule.at("key").value, str):
                    label = str(rule.at("key").take())
                    rule.text("operator")
                    self._label(label, rule.at("values", 0))
        for toleration in spec.at("tolerations").each():
            self._toleration(toleration)

    def _label(self, label: str, view: View) -> None:
        field = (
            "resources.instance" if label in INSTANCE_LABELS else "resources.gpu_type" if label in GPU_LABELS else ""
        )
        if field == "resources.gpu_type" and not self.draft.get("resources.gpus"):
            field = ""
        value = view.value
        if not isinstance(value, str):
            view.leave(f"only machines with a label {label}", "kubernetes: {node_labels: {LABEL: VALUE}}")
        elif field and self.draft.put(field, value, view):
            view.take()
        elif not field:
            had = self.draft.get("kubernetes.node_labels") or {}
            if self.draft.put("kubernetes.node_labels", {**had, label: value}, view):
                view.take()

    def _toleration(self, view: View) -> None:
        key, seconds = view.at("key").value, view.at("tolerationSeconds").value
        if key == GPU and self.draft.get("resources.gpus"):
            view.leave("pods may go to machines with GPUs", "they may, where gpus: are asked for", is_ours=True)
        elif key in SILENT and isinstance(seconds, int) and not isinstance(seconds, bool):
            if self.draft.put("kubernetes.lost_after", float(seconds), view):
                view.leave("how long pods stay on a machine that is silent", "lost_after: says it", is_ours=True)
        else:
            view.leave(
                f"pods may go to machines that keep others away by {key or 'any taint'}",
                "GPU machines are tolerated where gpus: are asked for; take the taint off for others",
            )

    # -- the container ------------------------------------------------------------------------------------------------

    def _container(self, view: View) -> None:
        view.text("name")
        if (image := view.text("image")) is not None:
            self.draft.put("image", image, view.at("image"))
            self._pull(view.at("imagePullPolicy"), image)
        self.amounts(view.at("resources"))
        self.variables(view)
        for mount in view.at("volumeMounts").each():
            self._mount(mount)
        self.command(view)

    def _pull(self, view: View, image: str) -> None:
        """When the image is fetched: a cluster has its own rule, which is mostly what is written."""
        is_newest = image.endswith(":latest") or ":" not in image.rpartition("/")[2]
        if view.value == ("Always" if is_newest else "IfNotPresent"):
            view.leave("when the image is fetched", "a cluster does the same for such an image", is_ours=True)

    def command(self, view: View) -> None:
        """Read `command`, `args` and `workingDir` of a container."""
        command, args = view.texts("command"), view.texts("args")
        folder = view.text("workingDir")
        if not command and not args:
            if folder is not None:
                view.at("workingDir").leave("the folder that the program starts in", "give paths from the root")
            return
        words, at = [*command, *args], view.at("command" if command else "args")
        is_torchrun = not command and assumed_torchrun(args)
        self.command_words = command
        words = ["torchrun", *args] if is_torchrun else words
        self.start = start_of(words, self.env, folder, unknown=self.unknown)
        self.start_view = at
        if is_torchrun:
            self.start.leave(
                "arguments of the image's own program, which is taken for torchrun",
                "if it is another, write it as run: or command:",
            )
        elif not command:
            self.start.leave(
                "the image's own entry point starts these words; it is not in the manifest",
                "if it does more than start them, write what it does as command:",
            )

    def amounts(self, view: View) -> None:
        """Read `limits` and `requests`."""
        for name in dict.fromkeys(name for part in ("limits", "requests") for name, _ in view.at(part).items()):
            limit, request = view.at("limits", name), view.at("requests", name)
            said = limit if limit else request
            self._amount(name, said)
            if limit and request:
                if request.value == limit.value:
                    request.take()
                else:
                    request.leave(
                        f"asks for {request.value}, and may use {limit.value}",
                        "what is asked for is granted and not more: the limit is taken",
                        is_ours=True,
                    )

    def _amount(self, name: str, view: View) -> None:
        given = view.value if isinstance(view.value, str | int | float) and not isinstance(view.value, bool) else None
        field_name, value = {
            GPU: ("resources.gpus", whole(given)),
            "cpu": ("resources.cpus", cores(given)),
            "memory": ("resources.memory", size(given)),
        }.get(name, ("", None))
        if value is None:
            view.leave(f"{name} for each pod", DEVICES.get(name, "a job file asks for gpus, cpus and memory"))
        elif self.draft.put(field_name, value, view):
            view.take()

    # -- variables ----------------------------------------------------------------------------------------------------

    def variables(self, view: View) -> None:
        """Read `env` and `envFrom` of a container."""
        for source in view.at("envFrom").each():
            self._env_from(source)
        for entry in view.at("env").each():
            name = entry.text("name")
            if name is None:
                continue
            if entry.at("valueFrom"):
                self.unknown.add(name)
                self._value_from(name, entry.at("valueFrom"))
                continue
            value = entry.at("value").value
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                self._variable(name, expanded(str(value), self.env), entry)
            elif value is None:
                self._variable(name, "", entry)

    def _variable(self, name: str, value: str, view: View) -> None:
        if self.draft.put_env(name, value, view):
            view.take()
            self.env[name] = value
            self.unknown.discard(name)

    def _value_from(self, name: str, view: View) -> None:
        secret, config = view.at("secretKeyRef"), view.at("configMapKeyRef")
        if secret:
            held, key = secret.text("name"), secret.text("key")
            secret.flag("optional")
            if held is not None and self.draft.add("secrets", held, view) and key != name:
                view.leave(
                    f"{name} is key {key} of secret {held}; each key of a secret becomes a variable of its own name",
                    f"add a key {name} to the secret, or let the script read {key}",
                )
        elif config and (value := self._from_config(config.text("name"), config.text("key"))) is not None:
            config.flag("optional")
            self._variable(name, value, view)
        elif config:
            view.leave(
                f"{name} is a key of a ConfigMap that is not in this file", f"write its value: env: {{{name}: …}}"
            )
        elif view.at("fieldRef"):
            path = view.at("fieldRef", "fieldPath").value
            view.leave(
                f"{name} is {path} of the pod",
                "ranks have RANK, NODE_RANK, MASTER_ADDR; socket.gethostname() is the pod",
            )
        else:
            view.leave(f"{name} is known only in the cluster", f"write its value: env: {{{name}: …}}")

    def _env_from(self, view: View) -> None:
        prefix = view.at("prefix").value
        secret, config = view.at("secretRef"), view.at("configMapRef")
        name = (secret or config).at("name").value
        document = self.beside.called("ConfigMap", name) if config and isinstance(name, str) else None
        if prefix:
            view.leave(
                f"variables of {name}, with {prefix} before their names", "rename its keys, or write them in env:"
            )
        elif secret and isinstance(name, str) and self.draft.add("secrets", name, view):
            secret.text("name")
            secret.flag("optional")
        elif document is not None:
            config.text("name")
            config.flag("optional")
            for key, value in document.view.at("data").items():
                if isinstance(value.value, str):
                    self._variable(key, value.value, value)
        else:
            view.leave(f"all values of ConfigMap {name} as variables", "write them in env:")

    def _from_config(self, name: str | None, key: str | None) -> str | None:
        document = self.beside.called("ConfigMap", name) if name is not None else None
        value = document.view.at("data", key) if document is not None and key is not None else None
        if value is None or not isinstance(value.value, str):
            return None
        return str(value.take())

    # -- storage ------------------------------------------------------------------------------------------------------

    def _mount(self, mount: View) -> None:
        name, path = mount.text("name"), mount.at("mountPath").value
        volume = self.volumes.get(name) if name is not None else None
        if volume is None or not isinstance(path, str):
            mount.leave(f"volume {name}, which is not in the template", "volumes: [{claim: NAME, path: /data}]")
            return
        volume.text("name")
        claim = volume.at("persistentVolumeClaim")
        if claim:
            self._claim(claim, mount, path)
        elif volume.at("emptyDir").value is not None:
            self._scratch(volume.at("emptyDir"), mount, path)
        elif volume.at("hostPath"):
            self._host(volume.at("hostPath"), mount, path)
        else:
            kind = next((key for key in volume.value if key != "name"), "nothing")
            self._other(kind, volume.at(kind), mount, path)

    def _claim(self, claim: View, mount: View, path: str) -> None:
        name = claim.text("claimName")
        if name is not None and self.draft.add("volumes", {"claim": name, "path": path.rstrip("/") or path}, mount):
            mount.text("mountPath")
        for view in (claim.at("readOnly"), mount.at("readOnly")):
            if view.value is True:
                view.leave(
                    "mounted only to read", "it may be written to here; the storage's own rights hold", is_ours=True
                )
            elif view:
                view.take()
        if mount.at("subPath"):
            mount.at("subPath").leave(
                f"only the folder {mount.at('subPath').value} of claim {name}",
                "the whole claim is mounted: put the folder into the paths of the script",
            )

    def _scratch(self, empty: View, mount: View, path: str) -> None:
        mount.leave("where that was mounted", "see its volume", is_ours=True)
        if path.rstrip("/") == SHM:
            if empty.at("medium").value == "Memory":
                empty.at("medium").take()
            limit = size(empty.at("sizeLimit").value)
            if limit is not None and self.draft.put("resources.shm", limit, empty.at("sizeLimit")):
                empty.at("sizeLimit").take()
            return
        empty.source.leave(
            empty.path,
            f"an empty folder of the pod at {path}",
            "pods have a folder of their own to write in: $HOME, and /tmp where the image lets them",
        )

    def _host(self, host: View, mount: View, path: str) -> None:
        if path.rstrip("/") == SHM:
            host.leave(
                "shared memory of the machine itself",
                "each node has its own: resources: {shm: 8GiB} says how much",
                is_ours=True,
            )
        else:
            host.leave(
                f"the folder {host.at('path').value} of the machine, at {path}",
                "put the data into a claim: volumes: [{claim: NAME, path: /data}]",
            )
        mount.leave("where that was mounted", "see its volume", is_ours=True)

    def _other(self, kind: str, view: View, mount: View, path: str) -> None:
        words = {
            "configMap": ("files of a ConfigMap", "put them into the folder of the job file: it travels with the job"),
            "secret": ("files of a secret", "secrets: [NAME] makes each key a variable"),
            "nfs": ("a folder of an NFS server", "make a claim for it: volumes: [{claim: NAME, path: /data}]"),
            "csi": ("storage of a driver", "make a claim for it: volumes: [{claim: NAME, path: /data}]"),
            "ephemeral": (
                "storage that is made for each pod",
                "kubernetes: {results: {size: 20GiB}} makes one claim for the run",
            ),
            "projected": ("files from several sources", "put them into the folder of the job file, or secrets:"),
            "downwardAPI": ("what the cluster knows of the pod", "ranks have RANK, NODE_RANK and MASTER_ADDR"),
        }.get(kind, (f"a volume of kind {kind}", "volumes: [{claim: NAME, path: /data}] mounts a claim"))
        view.leave(f"{words[0]}, at {path}", words[1])
        mount.leave("where that was mounted", "see its volume", is_ours=True)


def queue(draft: Draft, labels: View) -> None:
    """Take the queue that a label names."""
    if isinstance(labels.value, dict) and (name := labels.text(QUEUE_LABEL)) is not None:
        draft.put("queue", name, labels.at(QUEUE_LABEL))


def _main(containers: View, names: tuple[str, ...], *, is_patch: bool) -> View | None:
    """The container that trains: the one of a known name, else the first that has GPUs, else the first."""
    found = containers.each()
    for container in found:
        if container.at("name").value in names:
            return container
    if is_patch or not found:
        return None
    having = [container for container in found if GPU in _limits(container)]
    return (having or found)[0]


def _limits(container: View) -> Mapping[str, Any]:
    limits = container.at("resources", "limits").value
    return limits if isinstance(limits, dict) else {}
