"""Makes and removes the objects of a run in a cluster. Every step may be repeated: what is there already is left."""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from windlass.engines.keeping.ground import NotNow
from windlass.engines.keeping.membership import composed
from windlass.engines.keeping.recording import Recording
from windlass.engines.keeping.requests import completed
from windlass.engines.kubernetes import ending, layout, leaving, manifests, marks, staying
from windlass.engines.kubernetes.attempt import Attempt, node_specs
from windlass.engines.kubernetes.client import Client, NotLoggedIn, Refused, Unreachable
from windlass.engines.kubernetes.facts import pack_code, planned_code
from windlass.engines.kubernetes.lease import Lease, holder_of
from windlass.engines.kubernetes.plan import PIECE_BYTES, attempt_objects, numbered
from windlass.engines.kubernetes.pods import why_over
from windlass.engines.kubernetes.room import Room
from windlass.engines.kubernetes.ways import WAYS
from windlass.engines.kubernetes.ways.base import Manifest
from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.runs.store import Store

SENDERS: Final = 8
"""Objects that are sent at once."""
BEHIND_SECONDS: Final = 20.0
"""How long an operator may not know yet of an object that another one refers to."""
CLEAN_SECONDS: Final = 20.0
"""How long the cluster may keep a supervisor from cleaning up after the end of its run; `resume` waits for longer."""
START_PAUSE_SECONDS: Final = 1.0
BEHIND_PAUSE_SECONDS: Final = 0.1
PASSING: Final = (401, 429, 500, 502, 503, 504)
"""Answers of an API server that is busy, whose webhooks are not there yet, or for which a login has expired."""
STARTED: Final = "started"
"""File in the folder of an attempt whose objects were all made."""
UNFINISHED: Final = "cleanup-pending"
"""File in the folder of a run that has ended and may have left something to do in the cluster."""
END_SECONDS: Final = 5.0
"""How long what makes pods may take to say that it has ended after they have."""
PODS_ARE_WELL: Final = ("failure", "hang")
"""Why attempts end without harm to their pods."""


class ClusterGround:
    """A namespace of a cluster, for one run."""

    outlives_supervisor = True

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        """Raises UsageError for a context that is not there, EngineError for a login that cannot be used."""
        self.plan = plan
        self._run_dir = run_dir
        [cluster] = plan.requests("cluster")
        self.client = Client(cluster["context"], cluster["namespace"], cluster["kubeconfig"])
        self.via = cluster["via"]
        self.room = Room(self.client, plan)
        self.lease = Lease(self.client, plan.run_id, holder_of(run_dir.parent.parent))
        self._is_kept_alive = False
        self._attempt: Attempt | None = None
        self._waker: Callable[[], None] = lambda: None

    def close(self) -> None:
        """Give the connections back."""
        self.client.close()

    # -- who acts -----------------------------------------------------------------------------------------------------

    def hold(self) -> bool:
        """See `Ground`: by the run's Lease, which is renewed from then on. Raises NotNow, HeldElsewhere."""
        try:
            if not self.lease.ensure():
                return False
        except (Refused, Unreachable) as error:
            raise _not_now(error) from error
        if not self._is_kept_alive:
            self._is_kept_alive = True
            self.lease.keep(lambda: self._waker())
        return True

    @property
    def is_lost_to_another(self) -> bool:
        """See `Ground`."""
        return bool(self.lease.lost_to)

    def trouble(self) -> NotNow | None:
        """See `Ground`: what its background threads fail with, once that has lasted."""
        failing = self.client.health.failing()
        if failing is None:
            return None
        what, error = failing
        if isinstance(error, Refused | Unreachable):
            return _not_now(error, "the pods train on")
        return NotNow("NotObserved", f"{what}: {error.message}; the pods train on", error.hint)

    def lives(self) -> bool:
        """See `Ground`: whether any pod of the run has not ended."""
        try:
            return bool(ending.live_pods(self.client, self.plan.run_id))
        except EngineError:
            return True

    # -- what all attempts share --------------------------------------------------------------------------------------

    def lay(self) -> Mapping[str, Any]:
        """Make what all attempts of the run share, and give the object that owns it. Raises EngineError, UsageError."""
        anchor, *others = self.plan.requests("object")
        owner = self._make(anchor)
        code = self.plan.requests("code")[0]
        pieces = self._pieces(code) if self._is_missing(code["pieces"]) else []
        claims = [self._claim(claim, owner) for claim in self.plan.requests("claim")]
        wanted = [*(manifests.owned(one, owner) for one in (*others, *pieces)), *claims]
        with ThreadPoolExecutor(SENDERS) as pool:
            list(pool.map(self._make, wanted))
        return owner

    def remove(self) -> None:
        """Delete all that the run has made, but a claim that is to be kept. Raises EngineError."""
        ending.remove(self.client, self.plan.run_id)
        for claim in self.plan.requests("claim"):
            if not self._is_kept():
                self.client.delete("v1", "PersistentVolumeClaim", claim["metadata"]["name"])

    def _claim(self, claim: Mapping[str, Any], owner: Mapping[str, Any]) -> Mapping[str, Any]:
        return claim if self._is_kept() else manifests.owned(dict(claim), owner)

    def _is_kept(self) -> bool:
        return bool(self.plan.job.get("kubernetes", {}).get("results", {}).get("keep", False))

    def _is_missing(self, pieces: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the code, or a part of it, is not in the cluster yet: the last piece is sent with the others."""
        found = self.client.find("v1", "ConfigMap", layout.selector(self.plan.run_id), limit="500")
        there = {one["metadata"]["name"] for one in found["items"]}
        return any(piece["metadata"]["name"] not in there for piece in pieces)

    def _pieces(self, code: Mapping[str, Any]) -> list[Manifest]:
        """The pieces with what they hold. Raises EngineError where the folder is not what it was when planned."""
        packed = planned_code(code["digest"]) or pack_code(Path(code["folder"]), os.environ)
        if packed.digest != code["digest"]:
            raise EngineError(f"the code in {code['folder']} has changed since the plan was made", "make it again")
        return [
            {**piece, "binaryData": {"piece": base64.b64encode(packed.data[at : at + PIECE_BYTES]).decode()}}
            for piece, at in zip(code["pieces"], range(0, len(packed.data), PIECE_BYTES), strict=True)
        ]

    # -- attempts -----------------------------------------------------------------------------------------------------

    def begin(self, record: Recording, owner: Mapping[str, Any]) -> None:
        """Make the pods of the first attempt, if all nodes take part: with a range, the room decides. As `start`."""
        if self.plan.policy.get("min_nodes", self.plan.num_nodes) == self.plan.num_nodes:
            requests = composed(self.plan, range(self.plan.num_nodes))
            self._make_pods(record, 1, [completed(request, record) for request in requests], owner)

    def start(self, record: Recording, folder: Path, number: int, members: Sequence[int], wake: int) -> Attempt:
        """See `Ground`. In the pods of the attempt before if they stay, else in new ones. Raises as it says."""
        requests = [completed(request, record) for request in composed(self.plan, members)]

        try:
            if not self.hold():
                raise NotNow("HolderUnknown", "another supervisor may still hold the run: its Lease has not expired")
            if not self._go_on(record, folder, number, requests):
                owner = self.lay()
                self.end_others(number)
                self._make_pods(record, number, requests, owner)
        except (Refused, Unreachable) as error:
            if isinstance(error, Refused) and error.status not in PASSING:
                raise
            raise _not_now(error) from error
        with contextlib.suppress(OSError):  # a full disk: what is there already is then asked for again
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / STARTED).touch()
        return self.adopt(folder, number, members, wake)

    def is_started(self, folder: Path) -> bool:
        """See `Ground`. Records of older versions know it by the files that the nodes of an attempt have."""
        return (folder / STARTED).exists() or staying.is_ordered(folder) or any(folder.glob("node-*"))

    def _go_on(self, record: Recording, folder: Path, number: int, requests: Sequence[Mapping[str, Any]]) -> bool:
        """Play the attempt in the pods of the one before; False where they do not stay."""
        if number == 1 or not requests[0].get("stay_seconds"):
            return False
        before, now = record.status.attempts[-2:]
        if before.members != now.members or before.reason not in PODS_ARE_WELL:
            return False
        made = staying.made_for(folder.with_name(f"attempt-{number - 1}"), number - 1)
        asked = node_specs(self.plan, number, requests, self.via, record.status.created_at, made)
        staying.keep_made_for(folder, made)  # first: whoever takes the run up is to find the pods
        with contextlib.suppress(EngineError):
            if staying.order(self.client, self.plan.run_id, made, requests[0]["worker_python"], asked):
                return True
        staying.forget_made_for(folder)
        return False

    def _make_pods(
        self, record: Recording, number: int, requests: Sequence[Mapping[str, Any]], owner: Mapping[str, Any]
    ) -> None:
        """Have the objects made of which the pods of an attempt come. Raises EngineError."""
        asked = node_specs(self.plan, number, requests, self.via, record.status.created_at)
        *parts, made = numbered(self.plan, number, len(requests))
        if (limit := self.plan.policy["timeout_seconds"]) is not None:
            left = limit - record.status.limited_seconds(time.time())
            manifests.bounded([*parts, made], manifests.deadline_seconds(left, self.plan.policy["grace_seconds"]))
        spec = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**made["metadata"], "name": layout.attempt_name(self.plan.run_id, number)},
            "binaryData": {layout.NODES_FILE: base64.b64encode(asked).decode()},
        }
        for one in (spec, *parts):
            self._make(manifests.owned(one, owner))
        self._make_last(manifests.owned(made, owner))

    def adopt(self, folder: Path, number: int, members: Sequence[int], wake: int) -> Attempt:
        """See `Ground`."""
        self.room.begin(members)
        self._waker = _waker(wake)
        self._attempt = Attempt(self.client, self.plan, number, composed(self.plan, members), folder, self._waker)
        return self._attempt

    def unplugged(self) -> set[int]:
        """See `Ground`. Of those that are away, the ones for whose pods there is no room."""
        return self.room.missing()

    def clear(self, record: Recording) -> None:
        """See `Ground`. A run that is still to be cleaned up in its cluster is marked by a file on this machine."""
        with contextlib.suppress(OSError):
            (self._run_dir / UNFINISHED).touch()

    def finish(self, record: Recording, *, is_patient: bool = True) -> None:
        """See `Ground`. What could not be done, the next command that looks tries again."""
        give_up, marker = time.monotonic() + (CLEAN_SECONDS if is_patient else 0.0), self._run_dir / UNFINISHED
        while True:
            try:
                self._clean_up(record)
            except EngineError as error:
                is_final = isinstance(error, Refused) and error.status not in PASSING
                if is_final or time.monotonic() > give_up:
                    self._tell_unfinished(record, error)
                    with contextlib.suppress(OSError):
                        marker.unlink() if is_final else marker.touch()
                    return
                time.sleep(START_PAUSE_SECONDS)
                continue
            with contextlib.suppress(OSError):
                marker.unlink(missing_ok=True)
            self.lease.release()
            return

    def _tell_unfinished(self, record: Recording, error: EngineError) -> None:
        message = f"could not clean up in the cluster after the end of the run: {error.message}; {self.by_hand}"
        told = [event.data.get("message") for event in record.writer.events() if event.kind == "warning"]
        if message not in told:
            record.note("warning", {"message": message})

    @property
    def by_hand(self) -> str:
        """How to remove all that the run has in the cluster."""
        way = WAYS[self.via]
        kinds = ",".join(dict.fromkeys((way.plural, "jobs", "pods", "services", "configmaps", "leases")))
        where = f"--context {self.client.context} -n {self.client.namespace}"
        return f"to remove all of it: kubectl {where} delete {kinds} -l {layout.selector(self.plan.run_id)}"

    def _clean_up(self, record: Recording) -> None:
        """Pods stay until the run is removed, so that `kubectl logs` shows what they said. Raises EngineError."""
        self.room.leave()
        well = all(rank.exit_code == 0 for rank in record.status.ranks)
        marks.tell_end(self.client, self.plan.run_id, stopped=record.status.stop_requested, well=well)
        node = self.plan.requests("node")[0]
        status = record.status
        if WAYS[self.via].remakes(self.plan.requests("attempt")[0]) and status.attempts:
            self._end_makers()
        folder = self._run_dir / f"attempt-{len(status.attempts)}"
        if not status.attempts or not self.is_started(folder):  # of what was made with the run nothing is to begin
            self._delete_attempts()
        elif node.get("stay_seconds") and any(rank.exit_code != 0 for rank in status.ranks):
            number = status.attempts[-1].number
            made = staying.made_for(self._run_dir / f"attempt-{number}", number)
            staying.release(self.client, self.plan.run_id, made, node["worker_python"])

    def see_off(self, store: Store) -> None:
        """See `Ground`. The machines that were made for the run."""
        leaving.see_off(store, self.plan.run_id, self.client)

    def end_others(self, number: int) -> None:
        """Delete what is left of the attempts before: no pod of them may train on. Raises EngineError."""
        self.room.leave()
        self._delete_attempts(f"{layout.ATTEMPT_LABEL}!={number}")

    def _delete_attempts(self, which: str = "") -> None:
        selector = ",".join(part for part in (layout.selector(self.plan.run_id), which) if part)
        for made in reversed(attempt_objects(self.plan)):  # what makes pods before what it refers to
            for one in self.client.find(made["apiVersion"], made["kind"], selector)["items"]:
                self.client.delete(made["apiVersion"], made["kind"], one["metadata"]["name"])

    def _make_last(self, manifest: Mapping[str, Any]) -> None:
        """Make the object that refers to the others; an operator may be a moment behind, and not know these yet."""
        give_up = time.monotonic() + BEHIND_SECONDS
        while True:
            try:
                self._make(manifest)
                return
            except Refused as error:
                is_behind = f'"{manifest["metadata"]["name"]}" not found' in error.message
                if not is_behind or time.monotonic() > give_up:
                    raise
            time.sleep(BEHIND_PAUSE_SECONDS)

    def _end_makers(self) -> None:
        """See that no more pods come: what has ended by itself stays, so that `kubectl logs` shows what they said."""
        way, give_up = WAYS[self.via], time.monotonic() + END_SECONDS
        while True:
            found = self.client.find(way.api, way.kind, layout.selector(self.plan.run_id))["items"]
            going = [one["metadata"]["name"] for one in found if not why_over(one)]
            if not going:
                return
            if time.monotonic() > give_up:
                for name in going:
                    self.client.delete(way.api, way.kind, name)
                return
            time.sleep(START_PAUSE_SECONDS)

    def _make(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object, or give the one that is there and is ours. Raises EngineError."""
        try:
            return self.client.create(manifest)
        except Refused as error:
            if error.status != 409:
                raise
        there = self.client.get(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"])
        if there["metadata"].get("labels", {}).get(layout.RUN_LABEL) != self.plan.run_id:
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            raise EngineError(f"{name} is there already, and is not of this run", "remove it, or run again")
        return there


def _not_now(error: EngineError, more: str = "") -> NotNow:
    """The condition of a run whose cluster cannot be used now."""
    is_login = isinstance(error, NotLoggedIn) or (isinstance(error, Refused) and error.status == 401)
    kind = "LoginFailed" if is_login else "ClusterUnreachable"
    words = f"cannot log in to the cluster: {error.message}" if is_login else f"cannot use the cluster: {error.message}"
    return NotNow(kind, "; ".join(part for part in (words, more) if part), error.hint)


def _waker(wake: int) -> Callable[[], None]:
    def wake_up() -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(wake, b".")

    return wake_up
