"""Reads the template of a pod into a job: what each node starts, has and mounts, and which machines it may go to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.spec.importing.documents import Documents
from windlass.spec.importing.draft import Draft
from windlass.spec.importing.places import GPU, machines
from windlass.spec.importing.quantities import cores, size, whole
from windlass.spec.importing.shell import expanded
from windlass.spec.importing.source import View
from windlass.spec.importing.storage import mounted
from windlass.spec.importing.words import Start, assumed_torchrun, start_of

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
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
        machines(self.draft, spec)
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

    # -- the container ------------------------------------------------------------------------------------------------

    def _container(self, view: View) -> None:
        view.text("name")
        if (image := view.text("image")) is not None:
            self.draft.put("image", image, view.at("image"))
            self._pull(view.at("imagePullPolicy"), image)
        self.amounts(view.at("resources"))
        self.variables(view)
        for mount in view.at("volumeMounts").each():
            mounted(self.draft, self.volumes, mount)
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
