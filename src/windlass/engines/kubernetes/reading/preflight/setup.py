"""Creates, updates and removes the supervisors' service account and its Role in a namespace."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from windlass.engines.checks import ObjectChange
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.connect import connect
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.optional import groups_of
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.kinds import PLURALS
from windlass.engines.kubernetes.objects.object_reports import why_over
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.engines.kubernetes.reading.discovery.object_lists import summaries
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.rights import missing
from windlass.errors import EngineError, UsageError
from windlass.runs.phase import Phase

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

T = TypeVar("T")

OURS: Final = f"{layout.MANAGED_LABEL}=windlass"
GRANTING: Final = "attempting to grant RBAC permissions"
"""Part of the API server's error for a user who creates a Role with rights that the user lacks."""


def objects(target: KubernetesTarget, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the objects of the setup for the API groups of the cluster. Raises UsageError, EngineError."""
    with connect(target, environ) as client:
        return _objects(client)


def create(target: KubernetesTarget, environ: Mapping[str, str]) -> list[ObjectChange]:
    """Creates the objects of the setup, and updates those that differ. Raises UsageError, EngineError."""
    with connect(target, environ) as client:
        ask = _Asking(client, target.name)
        wanted = _objects(client)
        # All objects are read first: if one belongs to another tool, none is created.
        there = [ask.find(one) for one in wanted]
        return [ask.ensure(one, found) for one, found in zip(wanted, there, strict=True)]


def remove(target: KubernetesTarget, environ: Mapping[str, str]) -> list[ObjectChange]:
    """Deletes the objects of the setup. Raises UsageError while a supervisor uses them, EngineError."""
    with connect(target, environ) as client:
        ask = _Asking(client, target.name)
        if runs := ask.supervised():
            raise _in_use(runs, summaries(client), target.name)
        # The account is deleted first, so that no new run uses it.
        made = list(reversed(rbac.supervisor_objects(client.namespace, ())))
        there = [ask.find(one) for one in made]
        return [ask.delete(one, found) for one, found in zip(made, there, strict=True)]


def _objects(client: Client) -> list[dict[str, Any]]:
    return rbac.supervisor_objects(client.namespace, groups_of(client.call("GET", "/apis")))


class _Asking:
    """Requests for the objects of the setup. The error of a forbidden request names the right that the user lacks."""

    def __init__(self, client: Client, target: str) -> None:
        self._client = client
        self._target = target

    def find(self, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the existing object, or None. Raises UsageError if the object does not belong to Windlass."""
        api, kind, name = _id(wanted)
        found = self._do("get", wanted, lambda: self._client.get_if_exists(api, kind, name))
        if found is not None and found["metadata"].get("labels", {}).get(layout.MANAGED_LABEL) != "windlass":
            raise UsageError(
                f"{kind} {name} in namespace {self._client.namespace} was not created by Windlass",
                f"rename or delete it, or give it the label {OURS}",
            )
        return found

    def ensure(self, wanted: dict[str, Any], found: dict[str, Any] | None) -> ObjectChange:
        """Creates an object, or updates an existing one that differs."""
        api, kind, name = _id(wanted)
        if found is None:
            if self._do("create", wanted, lambda: self._client.create_if_absent(wanted)) is None:
                return self.ensure(wanted, self.find(wanted))  # another command has created the object meanwhile
            return ObjectChange(kind, name, "created")
        # Fields of other tools are kept, such as annotations or the account's image pull secrets.
        changed = {**found, **{field: value for field, value in wanted.items() if field != "metadata"}}
        if notes := wanted["metadata"].get("annotations"):
            meta = found["metadata"]
            changed["metadata"] = {**meta, "annotations": {**meta.get("annotations", {}), **notes}}
        if changed == found:
            return ObjectChange(kind, name, "kept")
        self._do("update", wanted, lambda: self._client.call("PUT", self._client.path(api, kind, name), changed))
        return ObjectChange(kind, name, "changed")

    def delete(self, made: Mapping[str, Any], found: Mapping[str, Any] | None) -> ObjectChange:
        api, kind, name = _id(made)
        if found is None:
            return ObjectChange(kind, name, "absent")
        self._do("delete", made, lambda: self._client.delete(api, kind, name))
        return ObjectChange(kind, name, "removed")

    def supervised(self) -> list[str]:
        """Returns the ids of runs whose supervisor in the cluster has not ended."""
        jobs = self._do("list", {"apiVersion": BATCH, "kind": "Job"}, lambda: self._client.find(BATCH, "Job", OURS))
        return sorted(
            str(job["metadata"]["labels"].get(layout.RUN_LABEL, job["metadata"]["name"]))
            for job in jobs["items"]
            if job["spec"]["template"]["spec"].get("serviceAccountName") == layout.SUPERVISOR_ACCOUNT
            and not why_over(job)
        )

    def _do(self, verb: str, about: Mapping[str, Any], act: Callable[[], T]) -> T:
        try:
            return act()
        except Refused as error:
            if error.is_absent(self._client.namespace, "Namespace"):
                raise self._client.no_namespace() from error
            if error.status != 403:
                raise
            hint = (
                "the platform team can create these objects from the output of: "
                f"windlass target setup {self._target} -o manifest"
            )
            raise EngineError(self._forbidden(verb, about, error), hint) from error

    def _forbidden(self, verb: str, about: Mapping[str, Any], error: Refused) -> str:
        where = f"in namespace {self._client.namespace}"
        if GRANTING not in error.message:
            right = rbac.Right(rbac.group_of(about["apiVersion"]), PLURALS[about["kind"]], verb)
            return f"this login may not {right} {where}"
        rights = [
            rbac.Right(group, resource, granted)
            for rule in about.get("rules", ())
            for group, resource, granted in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
        ]
        lacking = ", ".join(map(str, missing(self._client, rights))) or "some of its rights"
        return f"this login may not grant what it lacks itself {where}: {lacking}"


def _in_use(runs: Sequence[str], summaries: Mapping[str, Mapping[str, Any]], target: str) -> UsageError:
    """Returns the error for an account in use by these runs; the summaries of their records show which have ended."""
    ended = {run for run, summary in summaries.items() if summary and Phase(summary["phase"]).is_terminal}
    if unfinished := [run for run in runs if run not in ended]:
        fix = f"wait until they end, or stop them: windlass stop {unfinished[0]} --on {target}"
        return UsageError(
            f"unfinished runs use service account {layout.SUPERVISOR_ACCOUNT}: {', '.join(unfinished)}", fix
        )
    return UsageError(
        f"supervisors of ended runs use service account {layout.SUPERVISOR_ACCOUNT}, and hold outputs until a machine "
        f"has fetched them: {', '.join(runs)}",
        f"windlass cp {runs[0]}:output . --on {target} fetches them; windlass rm {runs[0]} --on {target} removes them",
    )


def _id(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return one["apiVersion"], one["kind"], one["metadata"]["name"]
