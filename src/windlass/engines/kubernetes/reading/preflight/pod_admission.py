"""Dry run of a run's pods, since LimitRanges, quotas and webhooks reject pods, and not their owner objects."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.find_pod_specs import pod_templates, running_containers
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.quantity import quantity_text
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.reading.preflight.capacity import waiting
from windlass.engines.kubernetes.reading.preflight.pod_needs import node_notes, read_nodes, reference_notes
from windlass.engines.kubernetes.reading.preflight.refusals import Author, Patch
from windlass.plan.notes import Note, blocker
from windlass.plan.plan import Plan
from windlass.plan.steps import (
    AttemptPartStep,
    AttemptStep,
    CheckJobStep,
    ManifestStep,
    NodePoolsStep,
    PodPatchStep,
    ReadJobStep,
    StageJobStep,
    SupervisorStep,
    UploadJobStep,
)
from windlass.spec.quantities import amount

REFUSALS: Final = (400, 403, 422)
NOT_TRIED: Final = ("cannot create resource", "does not support dry run")
"""Parts of API server errors for which a dry run is not possible: missing rights, or a webhook without support."""
EXCEEDED: Final = re.compile(r"exceeded quota: ([^,]+), requested: (.*?), used: .*?, limited: (.*)")
COUNTED_TWICE: Final = ("cpu", "memory", "ephemeral-storage")
"""Resources whose requests quotas also count under their plain names."""
MAX_TRIES: Final = 8
"""Maximum number of dry runs of one pod: a server reports one refusal at a time."""
RANKS: Final = "the pods of the run"
SUPERVISOR: Final = "the supervisor's pod"
Json = Mapping[str, Any]


class Pods(NamedTuple):
    """A group of identical pods."""

    what: str
    pod: Manifest
    most: int
    least: int
    """Smallest number of these pods with which the run continues; `most` is the largest number at once."""
    is_own: bool = True
    """Whether they are pods of Windlass itself, which have other options than ranks."""


class Finding(NamedTuple):
    """A note on pods."""

    note: Note
    is_own: bool
    """Whether it is about pods of Windlass itself."""


def run_pods(plan: Plan) -> Iterator[Pods]:
    """Yields the pods of a run: the training pods, if the plan contains their complete template, and the other pods."""
    least, most = plan.policy.min_nodes, plan.num_nodes + plan.num_spares
    for owner in plan.manifests(AttemptPartStep, AttemptStep):
        for template in pod_templates(owner):
            yield Pods(RANKS, pod_from(owner, template), most, least, is_own=False)
            break  # the pods of an MPIJob's Launcher and Workers are identical
    if least < plan.num_nodes:
        idle = waiting(attempt_objects(plan), layout.capacity_name(plan.run_id), 1)
        pod = pod_from(idle, idle["spec"]["template"])
        yield Pods("the pods that reserve capacity", pod, 0, 0, is_own=False)
    for owner in plan.manifests(SupervisorStep):
        if owner["kind"] == "Job":
            yield Pods(SUPERVISOR, pod_from(owner, owner["spec"]["template"]), 1, 1)
    # A quota need not admit these pods together with the training pods: staging and upload pods run before and after
    # them, and the pod that checks a store is optional.
    for owner in plan.manifests(StageJobStep, UploadJobStep, CheckJobStep, ReadJobStep):
        yield Pods(f"the pod of Job {owner['metadata']['name']}", pod_from(owner, owner["spec"]["template"]), 0, 0)


def pod_notes(client: Client, plan: Plan) -> list[Note]:
    """Returns notes on what prevents the API server from admitting the pods of a run, and nodes from running them."""
    author = Author(plan.target, has_job=True, patches=[_patch(one) for one in plan.every(PodPatchStep)])
    nodes = [] if plan.first(NodePoolsStep) is not None else read_nodes(client)
    made = {(one.manifest["kind"], one.manifest["metadata"]["name"]) for one in plan.every(ManifestStep)}
    found = findings(client, list(run_pods(plan)), author, nodes, plan.run_id, made)
    return [one.note for one in found]


def _patch(step: PodPatchStep) -> Patch:
    is_own = step.pods != "ranks"
    where = "kubernetes." if step.origin == "job" else f"target {step.origin}: "
    return Patch(f"{where}{'supervisor_pod' if is_own else 'pod'}", is_own, step.path, json.loads(step.value))


def findings(
    client: Client,
    pods: Sequence[Pods],
    author: Author,
    nodes: Sequence[Json],
    run_id: str,
    made: Collection[tuple[str, str]] = (),
) -> list[Finding]:
    """Returns notes on what prevents the API server from admitting these pods, these nodes from running them, and on
    objects that they refer to, other than those of the run and those in `made` (kind and name).
    """
    with ThreadPoolExecutor(len(pods) + 1) as pool:
        asked = pool.submit(_quotas, client)
        tried = list(pool.map(lambda one: _tried(client, one, author), pods))
        quotas = asked.result()
    admitted = [one._replace(pod=pod) for one, (pod, _) in zip(pods, tried, strict=True)]
    by_quota = [Finding(note, False) for note in quota_notes(quotas, admitted)]
    refused = _grouped([(one, text) for one, (_, texts) in zip(pods, tried, strict=True) for text in texts])
    found = [one for one in refused if not (by_quota and one.note.code.startswith("quota"))]
    for sent, now in zip(pods, admitted, strict=True):
        spec = now.pod["spec"]
        notes = (
            *_sidecar_notes(sent, now.pod),
            *node_notes(now.what, spec, nodes, author),
            *reference_notes(client, now.what, sent.pod["spec"], run_id, made),
        )
        found += [Finding(note, sent.is_own) for note in notes]
    return [*by_quota, *found]


class _Refusal(NamedTuple):
    """A refusal of a pod, without the name of the pod."""

    code: str
    message: str
    fix: str
    blocks: bool = True


def _tried(client: Client, one: Pods, author: Author) -> tuple[Manifest, list[_Refusal]]:
    """Returns the pod as the API server would store it (the pod as sent if it is refused), and all refusals.

    The server reports one refusal at a time. The next dry run has the fields that the last refusal asked for.
    """
    pod, refusals = one.pod, list[_Refusal]()
    answer = try_pod(client, pod)
    stored = answer if isinstance(answer, dict) else pod
    while isinstance(answer, Refused) and len(refusals) < MAX_TRIES:
        if exceeded := EXCEEDED.search(answer.message):
            # Amounts that were added for the trial say nothing about the pod.
            refusals += [] if refusals else [_exceeded(one.what, *exceeded.groups())]
            break
        fix = author.fix(answer.message, pod, is_own=one.is_own)
        text = f"{fix.patch}: {answer.message}" if fix.patch else answer.message
        made = _Refusal("pod-patch" if fix.patch else "pods-refused", text, fix.text)
        if any(made.fix == before.fix for before in refusals):
            break
        refusals.append(made)
        if fix.pod is None:
            break
        pod = fix.pod
        answer = try_pod(client, pod)
    return stored, refusals


def _grouped(refusals: Iterable[tuple[Pods, _Refusal]]) -> Iterator[Finding]:
    """Yields one note for all pods that are refused for the same reason."""
    groups: dict[tuple[str, str], list[tuple[Pods, _Refusal]]] = {}
    for one, made in refusals:
        groups.setdefault((made.code, made.fix if made.blocks else made.message), []).append((one, made))
    for group in groups.values():
        made = group[0][1]
        names = ", ".join(dict.fromkeys(one.what for one, _ in group))
        text = made.message if made.code.startswith("quota") else f"{names}: {made.message}"
        yield Finding(Note(made.code, text, made.fix, blocks=made.blocks), any(one.is_own for one, _ in group))


def _sidecar_notes(sent: Pods, answer: Json) -> Iterator[Note]:
    """Yields a note on containers that the cluster injects and that do not end with the training container. Pure."""
    ours = {one["name"] for one in sent.pod["spec"]["containers"]}
    if added := [one["name"] for one in answer["spec"]["containers"] if one["name"] not in ours]:
        what = f"{sent.what}: the cluster adds {', '.join(added)}, which does not end with the training container"
        fix = "the pods are deleted at the end of the run, with their logs; a native sidecar, or none, keeps them"
        yield Note("sidecar-added", what, fix)


def quota_notes(quotas: Iterable[Json], pods: Iterable[Pods]) -> Iterator[Note]:
    """Yields notes on quotas that do not admit all of these pods; ignores quotas with scopes. Pure."""
    pods = list(pods)
    most, least = _sum((one.pod, one.most) for one in pods), _sum((one.pod, one.least) for one in pods)
    for quota in quotas:
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue
        name, status = quota["metadata"]["name"], quota.get("status", {})
        hard, used = status.get("hard", {}), status.get("used", {})
        never = [_lack(key, least[key], hard[key]) for key in hard if least[key] > amount(hard[key])]
        if never:
            yield blocker(
                "quota-too-small",
                f"quota {name} never admits the run: {'; '.join(never)}",
                "request less, or have the quota raised",
            )
            continue
        left = {key: max(0.0, amount(hard[key]) - amount(used.get(key, "0"))) for key in hard}
        if short := [_lack(key, most[key], left[key]) for key in hard if most[key] > left[key]]:
            yield Note(
                "quota-full",
                f"quota {name} does not admit all pods of the run now: {'; '.join(short)}",
                "the run waits until others end",
            )


def pod_from(owner: Json, template: Json) -> Manifest:
    """Returns a pod as the controller of the owner object would create it."""
    meta = owner["metadata"]
    named = {**template["metadata"], "name": f"{meta['name']}-0", "namespace": meta["namespace"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": named,
        "spec": {"restartPolicy": "Never", **template["spec"]},
    }


def try_pod(client: Client, pod: Manifest) -> dict[str, Any] | Refused | None:
    """Returns the pod as the API server would store it, or the server's refusal; None if a dry run is not possible."""
    try:
        return client.create(pod, dry_run=True)
    except Unreachable:
        return None
    except Refused as error:
        is_known = error.status in REFUSALS and not any(words in error.message for words in NOT_TRIED)
        return error if is_known else None


def _quotas(client: Client) -> list[dict[str, Any]]:
    try:
        return list(client.find("v1", "ResourceQuota")["items"])
    except (Refused, Unreachable):
        return []


def _exceeded(what: str, quota: str, requested: str, limited: str) -> _Refusal:
    """Returns the refusal of a pod by a quota: for ever, or until other pods end."""
    asked, hard = _amounts(requested), _amounts(limited)
    amounts = f"{requested} requested, {limited} allowed"
    if any(asked[key] > hard.get(key, asked[key]) for key in asked):
        fix = "request less, or have the quota raised"
        return _Refusal("quota-too-small", f"quota {quota} never admits {what}: {amounts}", fix)
    message = f"quota {quota} does not admit {what} now: {amounts}"
    return _Refusal("quota-full", message, "the run waits until others end", blocks=False)


def _amounts(text: str) -> dict[str, float]:
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): amount(value) for name, _, value in pairs}


def _sum(pods: Iterable[tuple[Json, int]]) -> collections.Counter[str]:
    """Returns the total usage of these pods in the given numbers, by the resource names of quotas; values may be
    fractions.
    """
    total: collections.Counter[str] = collections.Counter()
    for pod, number in pods:
        total.update(dict.fromkeys(("pods", "count/pods"), number))
        overhead = {"resources": {"limits": pod["spec"].get("overhead", {})}}  # of the pod's runtime class
        for container in (*running_containers(pod["spec"]), overhead):
            resources = container.get("resources", {})
            limits = resources.get("limits", {})
            for name, value in {**limits, **resources.get("requests", {})}.items():
                for key in (f"requests.{name}", *((name,) if name in COUNTED_TWICE else ())):
                    total[key] += number * amount(value)  # type: ignore[assignment]
            for name, value in limits.items():
                total[f"limits.{name}"] += number * amount(value)  # type: ignore[assignment]
    return total


def _lack(name: str, needed: float, there: float | str) -> str:
    bare = name.removeprefix("requests.").removeprefix("limits.")
    return f"{quantity_text(bare, needed)} {name} needed, {quantity_text(bare, amount(there))} there"
