"""Dry run of a run's pods, since LimitRanges, quotas and webhooks reject pods, and not their owner objects."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.pod_spec import pod_templates
from windlass.engines.kubernetes.objects.quantity import quantity_text
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.reading.preflight.capacity import waiting
from windlass.plan.notes import Note, blocker
from windlass.plan.plan import Plan
from windlass.plan.steps import (
    AttemptPartStep,
    AttemptStep,
    CheckJobStep,
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
MUST_SPECIFY: Final = "must specify"
"""Part of the API server's error for a pod that does not specify a resource with a quota."""
COUNTED_TWICE: Final = ("cpu", "memory", "ephemeral-storage")
"""Resources whose requests quotas also count under their plain names."""
SUPERVISOR: Final = "the supervisor's pod"
WAY_OUT: Final = "supervisor: machine in target {target} supervises runs from the machine that starts them"
"""Fix if the cluster rejects the pod of a supervisor."""
Json = Mapping[str, Any]


class Pods(NamedTuple):
    """A group of identical pods of a run."""

    what: str
    pod: Manifest
    most: int
    least: int
    """Smallest number of these pods with which the run continues; `most` is the largest number at once."""


def run_pods(plan: Plan) -> Iterator[Pods]:
    """Yields the pods of a run: the training pods, if the plan contains their complete template, and the other pods."""
    least, most = plan.policy.min_nodes, plan.num_nodes + plan.num_spares
    for owner in plan.manifests(AttemptPartStep, AttemptStep):
        for template in pod_templates(owner):
            yield Pods("the pods of the run", pod_from(owner, template), most, least)
            break  # the pods of an MPIJob's Launcher and Workers are identical
    if least < plan.num_nodes:
        idle = waiting(attempt_objects(plan), layout.capacity_name(plan.run_id), 1)
        yield Pods("the pods that reserve capacity", pod_from(idle, idle["spec"]["template"]), 0, 0)
    for owner in plan.manifests(SupervisorStep):
        if owner["kind"] == "Job":
            yield Pods(SUPERVISOR, pod_from(owner, owner["spec"]["template"]), 1, 1)
    # A quota need not admit these pods together with the training pods: staging and upload pods run before and after
    # them, and the pod that checks a store is optional.
    for owner in plan.manifests(StageJobStep, UploadJobStep, CheckJobStep, ReadJobStep):
        yield Pods(f"the pod of Job {owner['metadata']['name']}", pod_from(owner, owner["spec"]["template"]), 0, 0)


def pod_notes(client: Client, plan: Plan) -> list[Note]:
    """Returns notes on what prevents the API server from admitting the pods of a run; empty if a dry run is not
    possible.
    """
    pods = list(run_pods(plan))
    with ThreadPoolExecutor(len(pods) + 1) as pool:
        asked = pool.submit(_quotas, client)
        answers = list(pool.map(lambda one: try_pod(client, one.pod), pods))
        quotas = asked.result()
    admitted = [
        one._replace(pod=answer) if isinstance(answer, dict) else one for one, answer in zip(pods, answers, strict=True)
    ]
    by_quota = list(quota_notes(quotas, admitted))
    refusals = [
        refusal(one.what, answer, plan.target)
        for one, answer in zip(pods, answers, strict=True)
        if isinstance(answer, Refused)
    ]
    added = [note for one, answer in zip(pods, answers, strict=True) for note in _sidecar_notes(one, answer)]
    return [*added, *by_quota, *(note for note in refusals if not (by_quota and note.code.startswith("quota")))]


def _sidecar_notes(sent: Pods, answer: object) -> Iterator[Note]:
    """Yields a note on containers that the cluster injects and that do not end with the training container. Pure."""
    if isinstance(answer, dict):
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


def refusal(what: str, error: Refused, target: str) -> Note:
    """Returns a note that explains the API server's refusal of a pod."""
    exceeded = EXCEEDED.search(error.message)
    if exceeded is None:
        fix = "set resources: {cpus: …, memory: …}" if MUST_SPECIFY in error.message else "change the job or the target"
        fix = WAY_OUT.format(target=target) if what == SUPERVISOR else fix
        return blocker("pods-refused", f"{what}: {error.message}", fix)
    quota, requested, limited = exceeded.groups()
    asked, hard = _amounts(requested), _amounts(limited)
    amounts = f"{requested} requested, {limited} allowed"
    if any(asked[key] > hard.get(key, asked[key]) for key in asked):
        return blocker(
            "quota-too-small", f"quota {quota} never admits {what}: {amounts}", "request less, or have the quota raised"
        )
    return Note("quota-full", f"quota {quota} does not admit {what} now: {amounts}", "the run waits until others end")


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
        for container in pod["spec"]["containers"]:
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
