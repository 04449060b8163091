"""Deletes the Kubernetes objects that own AWS resources through their controllers: services, then claims, then nodes.

Terraform does not manage the load balancers, volumes and instances that controllers create: they would outlive the
cluster, and their network interfaces would block the deletion of its VPC. Only the controller may remove a finalizer:
if it were removed by hand, the object would disappear while its AWS resource keeps billing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from windlass.clusters import holdings as held
from windlass.clusters.components.resources import Ref, Resources
from windlass.clusters.holdings import STAGES, Holding, Stage
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.runs.clock import Clock

STAGE_SECONDS: Final = 600.0
"""Time limit of each of the three stages: a load balancer takes minutes, and a node terminates its pods first."""
POLL_SECONDS: Final = 2.0
RETAINED: Final = "its reclaim policy is Retain"
AFTER: Final = {"TargetGroupBinding": ("Service", "Ingress", "Gateway"), "EC2NodeClass": ("NodePool", "NodeClaim")}
"""For each kind, other kinds that must be gone first, because they use its objects or delete them."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of `drain`."""

    drained: tuple[Holding, ...] = ()
    """Removed objects, in order of removal."""
    left: tuple[Holding, ...] = ()
    """Objects that their controllers did not remove, each with its finalizer and whether the controller runs, or with
    the reason why the deletion was refused."""
    kept: tuple[Holding, ...] = ()
    """Claims and volumes with reclaim policy Retain: they were not deleted, and their EBS volumes bill."""


@dataclass(frozen=True, slots=True)
class DrainStep:
    """Progress of the drain."""

    stage: Stage
    what: str
    """`delete`, `wait` (with the number of remaining objects), `gone` or `left`."""
    detail: str


Progress = Callable[[DrainStep], None]


def holdings(client: Client) -> tuple[Holding, ...]:
    """Returns everything that `drain` would remove or keep, in order. Reads only. Raises Refused, Unreachable."""
    resources = Resources(client)
    return tuple(one for stage in STAGES for one in held.of_stage(resources, stage))


def active(client: Client) -> tuple[str, ...]:
    """Returns the pods of active runs. `drain` does not check for them. Raises Refused, Unreachable."""
    return held.running(Resources(client))


def drain(
    client: Client,
    progress: Progress,
    *,
    timeout_seconds: float = STAGE_SECONDS,
    clock: Clock | None = None,
) -> Drained:
    """Deletes the objects that own AWS resources, and waits until their controllers have finished.

    `timeout_seconds` limits each of the three stages. Objects that remain after it are returned with the reason, and
    the next stage starts regardless. Can be interrupted at any point and repeated. Raises Refused if a list request is
    denied, Unreachable if the cluster stops responding.
    """
    return _Drain(Resources(client), progress, timeout_seconds, clock or Clock()).run()


class _Drain:
    def __init__(self, resources: Resources, progress: Progress, timeout_seconds: float, clock: Clock) -> None:
        self._resources = resources
        self._progress = progress
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._seen: dict[Ref, Holding] = {}
        self._requested: set[Ref] = set()
        self._refusals: dict[Ref, str] = {}
        """Reason for the last refused deletion, by object."""
        self._forbidden: set[Ref] = set()
        """Objects that the login may not delete; the drain does not wait for them."""
        self._last = ""

    def run(self) -> Drained:
        for stage in STAGES:
            self._stage(stage)
        # Objects left over by one stage may be gone after a later one: a claim is released once its pod's node is gone.
        last = [one for stage in STAGES for one in held.of_stage(self._resources, stage)]
        kept = [replace(one, why=RETAINED) for one in last if one.is_retained]
        there = {one.ref.kind for one in last}
        left = [replace(one, why=self._why(one.ref, there)) for one in last if not one.is_retained]
        gone = [one for ref, one in self._seen.items() if ref not in {other.ref for other in last}]
        for one in left:
            self._say(one.stage, "left", str(one))
        return Drained(tuple(gone), tuple(left), tuple(kept))

    def _stage(self, stage: Stage) -> None:
        give_up = self._clock.monotonic() + self._timeout_seconds
        while True:
            found = [one for one in held.of_stage(self._resources, stage) if not one.is_retained]
            there = {one.ref for one in found}
            for ref in [ref for ref in self._requested if self._seen[ref].stage == stage and ref not in there]:
                self._requested.discard(ref)
                self._say(stage, "gone", str(self._seen[ref]))
            self._seen |= {one.ref: one for one in found if one.ref not in self._seen}
            self._request(found)
            if not found or there <= self._forbidden or self._clock.monotonic() >= give_up:
                return
            self._say(stage, "wait", f"{len(found)} left: {', '.join(str(one.ref) for one in found[:5])}")
            self._clock.wait(POLL_SECONDS)

    def _request(self, found: Sequence[Holding]) -> None:
        """Requests the deletion of each object once, as soon as the kinds listed for it in `AFTER` are gone."""
        kinds = {one.ref.kind for one in found}
        for one in found:
            is_late = not kinds.isdisjoint(AFTER.get(one.ref.kind, ()))
            is_done = one.ref in self._requested or one.ref in self._forbidden
            if not is_done and not is_late and self._may_delete(one.ref):
                self._say(one.stage, "delete", str(one))
                try:
                    self._resources.delete(one.ref)
                except Refused as error:
                    self._refusals[one.ref] = error.message
                    self._forbidden |= {one.ref} if error.status == 403 else set()
                else:
                    self._refusals.pop(one.ref, None)
                    self._requested.add(one.ref)

    def _may_delete(self, ref: Ref) -> bool:
        """Whether deleting a volume also deletes its storage: only if its provisioner has a finalizer on the volume.

        Without the finalizer, deleting it would only remove the Kubernetes object.
        """
        if ref.kind != "PersistentVolume":
            return True
        volume = self._resources.get(ref)
        return volume is not None and held.EXTERNAL_PROVISIONER in (volume["metadata"].get("finalizers") or ())

    def _why(self, ref: Ref, there: Collection[str]) -> str:
        if refusal := self._refusals.get(ref):
            return f"its deletion was refused: {refusal}"
        if before := [kind for kind in AFTER.get(ref.kind, ()) if kind in there]:
            return f"it is deleted once each {' and '.join(before)} is gone"
        return held.why_left(self._resources, ref) or "gone since"

    def _say(self, stage: Stage, what: str, detail: str) -> None:
        """Reports a step; a wait is reported again only if its text changes."""
        if what != "wait" or detail != self._last:
            self._last = detail if what == "wait" else self._last
            self._progress(DrainStep(stage, what, detail))
