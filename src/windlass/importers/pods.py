"""Reads pod templates: command, resources, variables, mounts and node affinity of the training container."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.importers.container_command import Start, assumed_torchrun, names_a_program, start_of
from windlass.importers.documents import Documents
from windlass.importers.draft import Draft
from windlass.importers.field_hints import hints
from windlass.importers.operator_variables import RANKS_OF_A_NODE, VALUES
from windlass.importers.pod_fields import container_fields, pod_annotations, pod_fields
from windlass.importers.scheduling import GPU, scheduling
from windlass.importers.shell import SHELLS, expanded, macros
from windlass.importers.source import View
from windlass.importers.storage import SHM, block_device, init_container, mounted
from windlass.spec.labels import is_reserved
from windlass.spec.names import CONTRACT_ENV
from windlass.spec.pod_patch import OWN_VARIABLES, ROOT
from windlass.spec.quantities import cores, exact, size, whole

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
GROUP: Final = ("MASTER_ADDR", "RANK", "WORLD_SIZE")
OF_TORCH: Final = (*GROUP, "MASTER_PORT", *VALUES["torchrun"], RANKS_OF_A_NODE)
"""Variables that the training operator sets in the pods of a PyTorchJob."""
_SHEBANG: Final = re.compile(rf"#!\S*(?:/|env ){'(?:' + '|'.join(SHELLS) + ')'}\b")
_ACCELERATOR: Final = re.compile(r"/(?:gpu|tpu|neuron\w*|gaudi|mig-.*|gcu|npu)$|^habana\.ai/")
"""Device resources for computation, which must not be dropped silently."""
_OF_CONTROLLERS: Final = ("controller-uid", "job-name")
"""Unprefixed labels that controllers set to find their pods."""
_OVERCOMMITTED: Final = ("cpu", "memory", "ephemeral-storage")
"""Resources that may be requested without a limit."""
_MARKS: Final = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
"""A label or annotation in the downward API."""
_FIELD_OF: Final = {"labels": "labels", "annotations": "kubernetes.annotations"}


@dataclass
class Pods:
    """Reads the pod templates of a job and keeps the state that they share."""

    draft: Draft
    beside: Documents
    volumes: dict[str, View] = field(default_factory=dict)
    """Volumes of the template by name; a patch adds further ones."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of the main container whose values are known."""
    unknown: set[str] = field(default_factory=set)
    """Variables of the main container whose values only the cluster has."""
    of_secrets: dict[str, Any] = field(default_factory=dict)
    """Variables of the main container that are keys of `secrets:`, with their original source."""
    start: tuple[Start, View] | None = None
    """The parsed command of the main container and its field; None until a command was found."""
    of_operator: tuple[str, ...] = ()
    """Variables that the job's operator sets in each container, which a command may use as $(WORLD_SIZE)."""
    container: View | None = None
    """The main container; None until it was found."""
    words: list[View] = field(default_factory=list)
    """Fields with the command of the main container: `command` and `args`."""
    command_words: list[str] = field(default_factory=list)
    """The command without arguments; a TrainJob may replace the arguments."""
    has_probes: bool = True
    """Whether the probes of the main container check the training program."""
    has_group: bool = False
    """Whether the container itself sets a variable of torch's process group: MASTER_ADDR, RANK or WORLD_SIZE."""

    # -- the template -------------------------------------------------------------------------------------------------

    def read(self, template: View, names: tuple[str, ...] = (), *, is_patch: bool = False) -> None:
        """Reads a pod template; `names` are usual names of the training container."""
        marks(self.draft, template.at("metadata"))
        spec = template.at("spec")
        for volume in spec.at("volumes").each():
            name = volume.at("name").value
            if isinstance(name, str) and isinstance(volume.value, dict):
                self.volumes[name] = volume
        container = main_container(spec.at("containers"), names, is_patch=is_patch)
        if container is not None:
            for other in spec.at("containers").each():
                if other.path != container.path:
                    other.report(
                        f"container {other.at('name').value} runs next to the ranks in each pod",
                        "a pod of a run has one container: write it into initContainers of kubernetes.pod, with "
                        "restartPolicy: Always",
                    )
            self._container(container, spec)
        self._mounts(container.at("volumeMounts").each() if container is not None else [], spec)
        scheduling(self.draft, template, str(self.beside.job.view.at("metadata", "name").value))
        pod_fields(self.draft, spec)
        self._life(spec)

    def _life(self, spec: View) -> None:
        draft = self.draft
        spec.at("restartPolicy").take_if("Never")
        for secret in spec.at("imagePullSecrets").each():
            if (login := secret.text("name")) is not None:
                draft.add("kubernetes.image_pull_secrets", login, secret.at("name"))
        draft.put_seconds("grace", spec.at("terminationGracePeriodSeconds"))
        if draft.get("timeout") is None:
            draft.put_seconds("timeout", spec.at("activeDeadlineSeconds"))
        else:
            spec.whole("activeDeadlineSeconds")
        for name in ("serviceAccount", "serviceAccountName"):
            if (account := spec.text(name)) is not None and account != "default":
                draft.put("kubernetes.service_account", account, spec.at(name))
        draft.put_text("priority", spec.at("priorityClassName"))

    # -- the container ------------------------------------------------------------------------------------------------

    def _container(self, view: View, spec: View) -> None:
        self.container = view
        view.text("name")
        if (image := view.text("image")) is not None:
            self.draft.put("image", image, view.at("image"))
        self.amounts(view.at("resources"))
        self.variables(view)
        self.command(view)
        for device in view.at("volumeDevices").each():
            block_device(self.draft, self.volumes, device)
        container_fields(self.draft, view, spec, has_probes=self.has_probes)

    def _mounts(self, mounts: list[View], spec: View) -> None:
        """Reads the mounts of the training container, and the containers that run before it."""
        inits = spec.at("initContainers").each()
        of_inits = [str(mount.at("name").value) for init in inits for mount in init.at("volumeMounts").each()]
        names = [str(mount.at("name").value) for mount in mounts]
        # A claim is one storage, however many volumes name it.
        again = [name for name in names if names.count(name) > 1 and not self._is_claim(name)]
        for mount in mounts:
            mounted(self.draft, self.volumes, mount, {*of_inits, *again})
        for name in {*names, *of_inits} & self.volumes.keys():
            self._files(self.volumes[name].at("configMap"))
        at_shm = [mount.at("name").value for mount in mounts if str(mount.at("mountPath").value).rstrip("/") == SHM]
        for init in inits:
            init_container(self.draft, self.volumes, init, at_shm)

    def _files(self, config: View) -> None:
        """Reads the ConfigMap of a volume, if it is in the same file."""
        values = self._config(config.at("name").value) if config.path not in config.source.reported else config.at("-")
        if values:
            values.remark("files that the pods mount", "kubectl apply the ConfigMap before the first run")
        for _, value in values.items() if values else ():
            value.take()

    def _is_claim(self, name: str) -> bool:
        return name in self.volumes and bool(self.volumes[name].at("persistentVolumeClaim"))

    def command(self, view: View) -> None:
        """Reads `command`, `args` and `workingDir` of a container."""
        command, args = view.texts("command"), view.texts("args")
        folder = view.text("workingDir")
        if not command and not args:
            if folder is not None:
                view.at("workingDir").report("the folder that the program starts in", "give paths from the root")
            return
        words, at = [*command, *args], view.at("command" if command else "args")
        is_torchrun = not command and assumed_torchrun(args)
        if not command and not is_torchrun and not names_a_program(args):
            message = f"{args[0][:40]!r} is an argument of the image's own program, which the manifest does not name"
            hint = "write what the image starts as command: of the container, and import it again"
            raise view.at("args").refused(message, hint)
        self.command_words = command
        self.words = [part for part in (view.at("command"), view.at("args")) if part]
        words = ["torchrun", *args] if is_torchrun else self._with_scripts(view, words)
        start = start_of(words, self.env, folder, unknown={*self.of_operator, *self.unknown} - self.env.keys())
        self.start = start, at
        if is_torchrun:
            start.report(
                "arguments of the image's own program, which is taken for torchrun",
                "if it is another, write it as run: or command:",
            )
        elif not command:
            start.report(
                "the image's own entry point starts these words; it is not in the manifest",
                "if it does more than start them, write what it does as command:",
            )

    def _with_scripts(self, view: View, words: list[str]) -> list[str]:
        """Returns the words, with a shell script from a ConfigMap replaced by its text."""
        for path, config, text in self._files_of_configs(view, " ".join(words)):
            is_shell, script = words[0].rpartition("/")[2] in SHELLS, words[words[0] != path :]
            if script[:1] == [path] and isinstance(text.value, str) and (is_shell or _SHEBANG.match(text.value)):
                if len(self._config(config.at("name").value).items()) == 1:  # otherwise the pods mount its other files
                    config.report("a script, which is in the command", "nothing to do", is_handled=True)
                start = [words[0] if is_shell else "bash", "-c", text.take()]
                return [*start, *(script if script[1:] else ())]
        return words

    def _files_of_configs(self, view: View, text: str) -> Iterator[tuple[str, View, View]]:
        """Yields the ConfigMap files that a text names: path, volume, and content if it is known."""
        for mount in view.at("volumeMounts").each():
            volume, folder = self.volumes.get(str(mount.at("name").value)), mount.at("mountPath").value
            if volume is None or not volume.at("configMap") or not isinstance(folder, str):
                continue
            if folder.startswith(f"{ROOT}/"):  # a manifest written by `windlass plan`, which lists its files
                continue
            config, part = volume.at("configMap"), mount.at("subPath").value
            key_of = {str(item.at("path").value): str(item.at("key").value) for item in config.at("items").each()}
            file = re.escape(folder.rstrip("/")) + ("" if part else r"/([\w./-]+)")
            for found in re.finditer(rf"(?<![\w./-]){file}(?![\w/-])", text):
                name = str(part or found[1])
                yield found[0], config, self._config(config.at("name").value).at(key_of.get(name, name))

    def amounts(self, view: View) -> None:
        """Reads `limits`, `requests` and `claims` of devices."""
        for name in dict.fromkeys(name for part in ("limits", "requests") for name, _ in view.at(part).items()):
            limit, request = view.at("limits", name), view.at("requests", name)
            if not limit and name in _OVERCOMMITTED:
                self.draft.put_entry("kubernetes.requests", name, request.value, request)
                continue
            self._amount(name, limit if limit else request)
            if limit and request and exact(request.scalar()) != exact(limit.scalar()):
                self.draft.put_entry("kubernetes.requests", name, request.value, request)
        if view.at("claims"):
            self.draft.put_container({"resources": {"claims": view.at("claims").value}}, view.at("claims"))

    def _amount(self, name: str, view: View) -> None:
        given = view.value if isinstance(view.value, str | int | float) and not isinstance(view.value, bool) else None
        field_name, value = {
            GPU: ("resources.gpus", whole(given)),
            "cpu": ("resources.cpus", cores(given)),
            "memory": ("resources.memory", size(given)),
        }.get(name, ("", None))
        if _ACCELERATOR.search(name) and whole(given) is None:
            raise view.refused(f"is {'empty' if given is None else given}, and not a whole number", "write the number")
        if field_name and value is not None:
            self.draft.put(field_name, value, view)
        elif "/" in name and whole(given) is None:
            view.report(f"{given} of a device, and not a whole number", "write the number")
        else:
            self.draft.put_entry("kubernetes.limits", name, view.value, view)

    # -- variables ----------------------------------------------------------------------------------------------------

    def variables(self, view: View) -> None:
        """Reads `env` and `envFrom` of a container."""
        for source in view.at("envFrom").each():
            self._env_from(source)
        for entry in view.at("env").each():
            name = entry.text("name")
            if name is None:
                continue
            self.has_group |= name in GROUP
            if entry.at("valueFrom") and (name in CONTRACT_ENV or name.startswith("WINDLASS_")):
                entry.report(f"{name}, which Windlass sets for each rank", "nothing to do", is_handled=True)
                continue
            if entry.at("valueFrom"):
                self.unknown.add(name)
                self._value_from(name, entry.at("valueFrom"))
                continue
            value = entry.at("value").value
            if isinstance(value, str) and not self.unknown.isdisjoint(macros([value])):
                self._patched(name, {"value": expanded(value, self.env)}, entry)
            elif isinstance(value, str | int | float) and not isinstance(value, bool):
                self._variable(name, expanded(str(value), self.env), entry)
            elif value is None:
                self._variable(name, "", entry)

    def _patched(self, name: str, fields: dict[str, Any], view: View) -> None:
        """Adds a variable whose value only the cluster has to the patch of the ranks' pods."""
        self.unknown.add(name)
        for used in self.of_secrets.keys() & {*macros([str(fields.get("value"))])}:  # expanded from `env` alone
            self.draft.put_container({"env": [{"name": used, "valueFrom": self.of_secrets[used]}]}, view)
        if name in OWN_VARIABLES:
            view.report(f"{name} of the container, which Windlass sets", f"write its value: env: {{{name}: …}}")
        else:
            self.draft.put_container({"env": [{"name": name, **fields}]}, view)

    def _variable(self, name: str, value: str, view: View) -> None:
        if self.draft.put_env(name, value, view):
            if written := re.search(r"\$\{?[A-Za-z_]\w*\}?", value):
                view.remark(
                    f"{written[0]} in it is kept unchanged: Kubernetes expands only $(NAME)",
                    "write the whole value",
                )
            self.env[name] = value
            self.unknown.discard(name)

    def _value_from(self, name: str, view: View) -> None:
        secret, config = view.at("secretKeyRef"), view.at("configMapKeyRef")
        value = self._config(config.at("name").value).at(config.at("key").value or "")
        marks = _MARKS.fullmatch(str(view.at("fieldRef", "fieldPath").value))
        if (
            secret.at("key").value == name
            and isinstance(secret.at("name").value, str)
            and not secret.at("optional").value
        ):
            self.of_secrets[name] = view.value
            for part in ("key", "optional"):
                secret.at(part).take()
            self.draft.add("secrets", secret.at("name").value, secret.at("name"))
        elif config and isinstance(value.value, str):
            config.take()
            self._variable(name, value.take(), view)
        elif marks and marks[2] not in (self.draft.get(_FIELD_OF[marks[1]]) or {}):
            view.report(
                f"{name} is {view.at('fieldRef', 'fieldPath').value} of the pod, which pods of a run do not have",
                "ranks have RANK, NODE_RANK and MASTER_ADDR",
            )
        elif isinstance(
            reference := view.at("resourceFieldRef").value, dict
        ):  # of this container, of another name here
            fields = {key: one for key, one in reference.items() if key != "containerName"}
            self._patched(name, {"valueFrom": {"resourceFieldRef": fields}}, view)
        else:
            self._patched(name, {"valueFrom": view.value}, view)

    def _env_from(self, view: View) -> None:
        prefix = view.at("prefix").value
        secret, config = view.at("secretRef"), view.at("configMapRef")
        name = (secret or config).at("name").value
        values = self._config(config.at("name").value)
        if prefix:
            view.report(
                f"variables of {name}, with {prefix} before their names", "rename its keys, or write them in env:"
            )
        elif secret and isinstance(name, str) and self.draft.add("secrets", name, secret.at("name")):
            _optional(secret)
        elif values:
            config.text("name")
            config.at("optional").take()
            for key, value in values.items():
                if isinstance(value.value, str):
                    self._variable(key, value.value, value)
        elif self.draft.add("kubernetes.env_from", name, config.at("name")):
            _optional(config)

    def _config(self, name: object) -> View:
        """Returns the values of a ConfigMap; an absent view if the file does not contain it."""
        document = self.beside.called("ConfigMap", name) if name is not None else None
        return document.view.at("data") if document is not None else View(self.beside.job, (), None)


def fields_of(pods: Pods) -> dict[str, Any]:
    """Returns the fields of a template without `nodes` and `restarts`, which the manifest sets outside the template."""
    fields = {**pods.draft.fields, **(pods.start[0].fields if pods.start is not None else {})}
    return {name: value for name, value in fields.items() if name not in ("nodes", "restarts")}


def _optional(view: View) -> None:
    """Reads whether a Secret or ConfigMap is optional, which those of a job cannot be."""
    if not view.at("optional").take_if(False):
        name = view.at("name").value
        view.at("optional").report(f"the pods start without {name} too", f"make {name}, or take it out of the job")


def marks(draft: Draft, view: View) -> None:
    """Reads the labels and annotations in the metadata of an object or its pods."""
    labels(draft, view.at("labels"))
    pod_annotations(draft, view.at("annotations"))


def labels(draft: Draft, view: View) -> None:
    """Reads labels: the queue label, and labels that a job may set."""
    for key, value in view.items():
        had = (draft.get("labels") or {}).get(key, value.value)
        if key == QUEUE_LABEL:
            draft.put_text("queue", value)
        elif key in hints("field") and ("/" in key or key in _OF_CONTROLLERS):
            value.report(*hints("field")[key])
        elif is_reserved(key):
            value.report(
                "a label of Kubernetes' own programs", "queue: and priority: set the labels for Kueue; leave others out"
            )
        elif had != value.value:
            value.report(f"another value of this label than {had}", "a run has one: change it under labels:")
        else:
            draft.put("labels", {**(draft.get("labels") or {}), key: value.value}, value)


def main_container(containers: View, names: tuple[str, ...], *, is_patch: bool = False) -> View | None:
    """Returns the training container: the one with a known name, else the first with GPUs, else the first."""
    found = containers.each()
    known = next((container for container in found if container.at("name").value in names), None)
    if known is not None or is_patch or not found:
        return known
    return next((container for container in found if container.at("resources", "limits", GPU)), found[0])
