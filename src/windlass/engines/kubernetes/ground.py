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

from windlass.engines.keeping.membership import composed
from windlass.engines.keeping.recording import Recording
from windlass.engines.keeping.requests import completed
from windlass.engines.kubernetes import ending, layout, leaving, manifests, marks, staying
from windlass.engines.kubernetes.attempt import Attempt, node_specs
from windlass.engines.kubernetes.client import Client, Refused, Unreachable
from windlass.engines.kubernetes.facts import pack_code, planned_code
from windlass.engines.kubernetes.plan import PIECE_BYTES, attempt_objects, numbered
from windlass.engines.kubernetes.pods import why_over
from windlass.engines.kubernetes.room import Room
from windlass.engines.kubernetes.ways import WAYS
from windlass.engines.kubernetes.ways.base import Manifest
from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.runs.store import Store
from windlass.runs.wish import read_wish

SENDERS: Final = 8
"""Objects that are sent at once."""
AWAY_SECONDS: Final = 300.0
"""How long an API server may be away when the pods of an attempt are to be made."""
BUSY_SECONDS: Final = 20.0
"""How long it may refuse them for a reason that may pass."""
START_PAUSE_SECONDS: Final = 1.0
BEHIND_PAUSE_SECONDS: Final = 0.1
PASSING: Final = (429, 500, 502, 503, 504)
"""Answers of an API server that is busy, or whose webhooks are not there yet."""
END_SECONDS: Final = 5.0
"""How long what makes pods may take to say that it has ended after they have."""
PODS_ARE_WELL: Final = ("failure", "hang")
"""Why attempts end without harm to their pods."""


class ClusterGround:
    """A namespace of a cluster, for one run."""

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        """Raises UsageError for a context that is not there, EngineError for a login that cannot be used."""
        self.plan = plan
        self._run_dir = run_dir
        [cluster] = plan.requests("cluster")
        self.client = Client(cluster["context"], cluster["namespace"], cluster["kubeconfig"])
        self.via = cluster["via"]
        self.room = Room(self.client, plan)

    def close(self) -> None:
        """Give the connections back."""
        self.client.close()

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
        """See `Ground`. In the pods of the attempt before if they stay, else in new ones. Raises EngineError."""
        requests = [completed(request, record) for request in composed(self.plan, members)]

        def make() -> None:
            owner = self.lay()
            self.end_others(number)
            self._make_pods(record, number, requests, owner)

        if not self._go_on(record, folder, number, requests):
            self._patiently(make, record)
        return self.adopt(folder, number, members, wake)

    def _patiently(self, make: Callable[[], None], record: Recording) -> None:
        """Try again while the cluster cannot answer: a run does not fail for an API server that starts again.

        Raises EngineError, at once where somebody waits for the run to stop.
        """
        began, told = time.monotonic(), False
        while True:
            try:
                return make()
            except EngineError as error:
                if time.monotonic() - began > _patience(error) or read_wish(self._run_dir) is not None:
                    raise
                if not told:
                    record.note("warning", {"message": f"waits for the cluster: {error.message}"})
                told = True
            time.sleep(START_PAUSE_SECONDS)

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
        return Attempt(self.client, self.plan, number, composed(self.plan, members), folder, _waker(wake))

    def unplugged(self) -> set[int]:
        """See `Ground`. Of those that are away, the ones for whose pods there is no room."""
        return self.room.missing()

    def clear(self, record: Recording) -> None:
        """See `Ground`. The pods are there until the run is removed, so that `kubectl logs` shows what they said."""
        with contextlib.suppress(EngineError):  # they end by themselves
            self.room.leave()
        well = all(rank.exit_code == 0 for rank in record.status.ranks)
        marks.tell_end(self.client, self.plan.run_id, stopped=record.status.stop_requested, well=well)
        node = self.plan.requests("node")[0]
        status = record.status
        if WAYS[self.via].remakes(self.plan.requests("attempt")[0]) and status.attempts:
            self._end_makers()
        if not status.attempts:  # stopped before its keeper had come to the pods that are made with the run
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
        give_up = time.monotonic() + BUSY_SECONDS
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


def _patience(error: EngineError) -> float:
    """Seconds for which it is worth trying again."""
    if isinstance(error, Refused):
        return BUSY_SECONDS if error.status in PASSING else 0.0
    return AWAY_SECONDS if isinstance(error, Unreachable) else 0.0


def _waker(wake: int) -> Callable[[], None]:
    def wake_up() -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(wake, b".")

    return wake_up
