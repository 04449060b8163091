"""Finds the lines of a job or target that satisfy the API server's refusal of a pod, by words of its message. Pure.

Authors of policies word their messages freely, so this is a table of words and no parser. The message is always shown
as it is; a wrong or missing row costs a hint alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from windlass.engines.kubernetes.objects.labels import SUPERVISOR
from windlass.engines.kubernetes.objects.workloads.base import Manifest

Where = Literal["pods", "job", "target", "top", "do"]
"""Where a line is written: `pods`: below `kubernetes:` of a job, or in a target; `top`: at the top of both; `do`: the
line is no option but an instruction.
"""
_KEY: Final = (
    r"(?!(?:an?|and|are|be|does|for|has|in|is|key|missing|must|name|not|of|on|or|pod|required|set|should|some|the|this|"
    r"to|value|values|with|without)\b)(?P<key>[A-Za-z0-9](?:[\w./-]*\w)?)"
)
_KEYED: Final = (
    r"/metadata/{word}s/(?P<key>[\w./-]*\w)",
    r"""{word}s?(?:\(s\))?:?\s*[\[{{(]*\s*["'`](?P<key>[\w./-]+)["'`]""",
    r"""["'`](?P<key>[\w./-]+)["'`] in object\.metadata\.{word}s""",
    rf"metadata\.{{word}}s\.{_KEY}",
    rf"\b{{word}} {_KEY}",
    rf"\b{_KEY} {{word}}\b",
)
"""Patterns for the key of an annotation or label, the most reliable first: the path of Kyverno, the quotes of
Gatekeeper, expressions of CEL, plain English."""
_LIMITED: Final = re.compile(
    r"must specify|\blimits?\b|\b(?:limits|requests)\.\w|resource requests|(?:maximum|minimum) \S+ usage per"
)
_RESOURCE: Final = re.compile(r"(?i)(?:limits|requests)[./]([a-z][\w./-]*\w)|\b(cpu|memory|ephemeral-storage)\b")
_IN_PATCH: Final = re.compile(r"\b(?:spec|metadata)(?:\.[\w-]+|\[[^\]]*\])+")
_PREFIX: Final = re.compile(r'^.*?pods? "[^"]*" is forbidden: ', re.DOTALL)


class Row(NamedTuple):
    """A row of the table: words of messages, and the line that satisfies them."""

    words: str
    where: Where
    line: str
    """Line to write; `<key>` stands for the group `key` of the words, or for a value that the user knows."""
    own: str = ""
    """Line of a target for Windlass's own pods; empty if the same line holds for them."""


CAUSES: Final = (
    Row(r'serviceaccount "(?P<key>[^"]+)" not found', "do", "kubectl create serviceaccount <key>, or another name"),
    Row(r"no PriorityClass with name (?P<key>[\w.-]+)", "do", "another class than <key>: kubectl get priorityclasses"),
    Row(r'RuntimeClass "(?P<key>[^"]+)" not found', "do", "another class than <key>: kubectl get runtimeclasses"),
    Row(
        "violates PodSecurity",
        "do",
        "leave out what it names, of capabilities:, volumes: and pod: of job and target, or have the namespace enforce "
        "another level",
    ),
)
"""Messages of the API server itself: the first row that matches counts alone."""
READ_ONLY_ROOT: Final = Row("(?i)read-?only ?root|root filesystem", "pods", "read_only_root: true")
PRIORITY: Final = Row(
    "(?i)priority ?class(?:Name)?"
    r"""(?:(?::| ==?| to be| must be| of)\s*["'`]?(?!set\b|one\b|in\b|an?\b|the\b)(?P<key>[a-z0-9][a-z0-9.-]*\w))?""",
    "job",
    "priority: <key>",
    "supervisor_pod: {spec: {priorityClassName: <key>}}",
)
ROWS: Final = (
    READ_ONLY_ROOT,
    PRIORITY,
    Row("(?i)capabilit", "do", "leave out capabilities: of job and target, or name only allowed ones"),
    Row("(?i)runAsNonRoot|runAsUser|run as (?:non-?)?root|disallowed user", "target", "user: …"),
    Row(
        "(?i)seccomp",
        "pods",
        "pod: {spec: {securityContext: {seccompProfile: {type: …}}}}",
        "supervisor_pod: {spec: {securityContext: {seccompProfile: {type: …}}}}",
    ),
    Row("(?i)hostPath", "do", "leave out volumes with hostPath, of volumes: and pod:"),
    Row("(?i)host ?network|hostPort", "do", "leave out hostNetwork and hostPort of pod:"),
    Row("(?i)service ?account", "job", "kubernetes: {service_account: …}", "supervisor: machine"),
    Row(
        r"(?i)registr|image repo|images? (?:is|are|must|from|with)\b|containers?/\d+/image",
        "top",
        "image: …",
        "supervisor_image: …",
    ),
    Row("(?i)toleration", "pods", "tolerations: [KEY=VALUE:NoSchedule]"),
    Row(
        "(?i)node ?selector|node label selector",
        "pods",
        "node_selector: {KEY: VALUE}",
        "supervisor_pod: {spec: {nodeSelector: {KEY: VALUE}}}",
    ),
    Row(
        "(?i)runtime ?class",
        "pods",
        "pod: {spec: {runtimeClassName: …}}",
        "supervisor_pod: {spec: {runtimeClassName: …}}",
    ),
    Row("(?i)scheduler ?name", "pods", "pod: {spec: {schedulerName: …}}", "supervisor_pod: {spec: {schedulerName: …}}"),
)
"""Words of policies: all rows that match count."""
LAST: Final = Row("", "pods", "pod: {…}", "supervisor_pod: {…} or supervisor: machine")


class Fix(NamedTuple):
    """How to satisfy a refusal."""

    text: str
    pod: Manifest | None
    """The pod with what is known to be asked for, for another dry run; None if no field can be added."""
    patch: str = ""
    """Path of the patch of a user that caused the refusal; empty for other causes."""


class Patch(NamedTuple):
    """A patch of pods, or one value of it."""

    name: str
    """Field with the patch, such as `kubernetes.pod`."""
    is_own: bool
    """Whether it is a patch of the pods of Windlass itself."""
    path: str
    """Path in the pod, such as `spec.hostNetwork`; empty for a whole patch."""
    value: Any


@dataclass(frozen=True, slots=True)
class Author:
    """Who has to write a line: the author of a job on a target, or only of the target."""

    target: str
    """Name of the target."""
    has_job: bool
    patches: Sequence[Patch] = ()

    def fix(self, message: str, pod: Manifest, *, is_own: bool) -> Fix:
        """Returns how to satisfy the API server's refusal of a pod; `is_own`: it is a pod of Windlass itself."""
        message = _PREFIX.sub("", message)
        if found := self._patched(message, is_own=is_own):
            path = f"{found[0]}.{found[1]}"
            return Fix(f"correct it, or leave it out: kubectl explain pod.{found[1]}", None, path)
        for row in CAUSES:
            if match := re.search(row.words, message):
                return Fix(self._of_row(row, match, is_own=is_own), None)
        lines: list[str] = []
        trial = pod
        for word in ("annotation", "label"):
            if keys := keys_in(message, word):
                named = ", ".join(f"{key}: …" for key in keys)
                lines.append(self.line("pods" if word == "annotation" else "top", f"{word}s: {{{named}}}"))
                trial = _with_meta(trial, f"{word}s", dict.fromkeys(keys, "x"))
        if _LIMITED.search(message):
            found_names = (one or other.lower() for one, other in _RESOURCE.findall(message))
            names = list(dict.fromkeys(found_names)) or ["cpu", "memory"]
            lines += self._amounts(names, is_own=is_own)
            trial = _with_container(trial, {"resources": _amounts(names)})
        matched = {row: match for row in ROWS if (match := re.search(row.words, message))}
        lines += [self._of_row(row, match, is_own=is_own) for row, match in matched.items()]
        if READ_ONLY_ROOT in matched:
            trial = _with_container(trial, {"securityContext": {"readOnlyRootFilesystem": True}})
        if PRIORITY in matched and (name := matched[PRIORITY]["key"]):
            trial = {**trial, "spec": {**trial["spec"], "priorityClassName": name}}
        if not lines:
            lines = [self._of_row(LAST, None, is_own=is_own)]
        return Fix("; ".join(dict.fromkeys(lines)), None if trial == pod else trial)

    def line(self, where: Where, option: str) -> str:
        """Returns an option with the file to write it into."""
        if where == "do":
            return option
        if where == "job":
            return f"{option} in the job" if self.has_job else f"{option} in each job"
        if where == "target" or not self.has_job:
            return f"{option} in target {self.target}"
        inside = f"kubernetes: {{{option}}} in the job" if where == "pods" else f"{option} in the job"
        return f"{inside}, or {option} in target {self.target}"

    def _of_row(self, row: Row, match: re.Match[str] | None, *, is_own: bool) -> str:
        key = (match and match.groupdict().get("key")) or "…"
        # The priority of a job holds for all pods of its run.
        if is_own and row.own and not (row is PRIORITY and self.has_job):
            return self.line("target", row.own.replace("<key>", key))
        return self.line(row.where, row.line.replace("<key>", key))

    def _amounts(self, names: Sequence[str], *, is_own: bool) -> Iterator[str]:
        if is_own:
            limits = ", ".join(f"{name}: …" for name in names)
            container = f"{{name: {SUPERVISOR}, resources: {{limits: {{{limits}}}}}}}"
            yield self.line("target", f"supervisor_pod: {{spec: {{containers: [{container}]}}}}")
            return
        ours = {"cpu": "cpus: …", "memory": "memory: …"}
        if fields := [text for name, text in ours.items() if name in names]:
            yield self.line("job", f"resources: {{{', '.join(fields)}}}")
        if others := [f"{name}: …" for name in names if name not in ours]:
            yield self.line("pods", f"limits: {{{', '.join(others)}}}")

    def _patched(self, message: str, *, is_own: bool) -> tuple[str, str] | None:
        """Returns the name of the patch that sets a field of an invalid pod, and the path of that field."""
        for path in _IN_PATCH.findall(message):
            bare = re.sub(r"\[[^\]]*\]", "", path)
            for patch in self.patches:
                rest = bare.removeprefix(patch.path).split(".")[1 if patch.path else 0 :]
                if patch.is_own == is_own and bare.startswith(patch.path) and _reaches(patch.value, rest):
                    return patch.name, bare
        return None


def keys_in(message: str, word: str) -> list[str]:
    """Returns the keys of annotations or labels that a message asks for; `KEY` if it names none; `word` is in the
    singular.
    """
    if not re.search(rf"(?i)(?<!node ){word}s?\b(?! selector)", message):
        return []
    for pattern in _KEYED:
        found = re.finditer(pattern.format(word=word), message, re.IGNORECASE)
        if keys := list(dict.fromkeys(match["key"] for match in found)):
            return keys
    return ["KEY"]


def _reaches(value: Any, names: Sequence[str]) -> bool:
    """Whether a patch sets the field at this path, or a value above it."""
    if not names:
        return True
    if isinstance(value, list | tuple):
        return any(_reaches(one, names) for one in value)
    return not isinstance(value, Mapping) or (names[0] in value and _reaches(value[names[0]], names[1:]))


def _amounts(names: Sequence[str]) -> Manifest:
    amounts = {name: "1" if name == "cpu" else "1Gi" for name in names}
    return {"limits": amounts, "requests": amounts}


def _with_meta(pod: Manifest, field: str, more: Mapping[str, str]) -> Manifest:
    meta = pod["metadata"]
    return {**pod, "metadata": {**meta, field: {**more, **meta.get(field, {})}}}


def _with_container(pod: Manifest, fields: Mapping[str, Any]) -> Manifest:
    """Returns the pod whose containers have these fields, as far as they do not set them."""
    containers = [_merged(fields, one) for one in pod["spec"]["containers"]]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Manifest:
    """Returns both mappings in one; values of the second take precedence, at every depth."""
    deep = {name for name in below.keys() & above.keys() if isinstance(above[name], Mapping)}
    return {**below, **above, **{name: _merged(below[name], above[name]) for name in deep}}
