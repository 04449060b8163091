"""Brings what the pods of a run say into files on this machine, by the run's objects alone, whoever keeps it.

What the nodes of an attempt are asked for lies in the cluster beside its pods: the code that reads them is a keeper's.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from windlass.engines.kubernetes import background, elsewhere, layout, staying
from windlass.engines.kubernetes.attempt import Attempt
from windlass.engines.kubernetes.client import Client, Refused
from windlass.engines.kubernetes.intake import Intake
from windlass.engines.kubernetes.pods import Pod, by_place, has_ended
from windlass.engines.kubernetes.seeing import container_state
from windlass.engines.kubernetes.ways import MAKERS
from windlass.errors import NoSuchRun
from windlass.plan.plan import Plan, Step

READERS: Final = 16
"""Logs that are read at once."""
TURN_SECONDS: Final = 1.0
"""How often a run that is followed is asked for another attempt, and whether it has ended."""
Request = Mapping[str, Any]


class Reader:
    """The logs of one run in a folder, laid out as in the record: those of the attempts whose pods are there."""

    def __init__(self, client: Client, run_id: str, folder: Path) -> None:
        self._client = client
        self._run_id = run_id
        self._folder = folder
        self._attempts: dict[int, Attempt] = {}
        self._over = threading.Event()
        self._closed = threading.Event()

    def read(self) -> bool:
        """Read what was said until now; gives whether there was any pod to read of. Raises EngineError, OSError."""
        pods = self._client.find("v1", "Pod", layout.selector(self._run_id))["items"]
        wanted = []
        for made in sorted({_made_for(pod) for pod in pods}):
            requests = self._requests(made)
            for place, pod in by_place([pod for pod in pods if _made_for(pod) == made]).items():
                if place < len(requests) and (container_state(pod)[0] != "waiting" or has_ended(pod)):
                    wanted.append((made, requests[place], pod))
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(lambda one: self._read(*one), wanted))
        return bool(wanted)

    def follow(self) -> None:
        """Go on with what is said from now on, in a thread, also of attempts to come; nothing is read twice."""
        threading.Thread(target=self._run, name=f"logs of {self._run_id}", daemon=True).start()

    def is_over(self) -> bool:
        """Whether the run has ended, and all that it said is in the folder."""
        return self._over.is_set()

    def close(self) -> None:
        """Read no more."""
        self._closed.set()
        for attempt in self._attempts.values():
            attempt.close()

    # -- one attempt --------------------------------------------------------------------------------------------------

    def _read(self, made: int, request: Request, pod: Pod) -> None:
        """What a pod has said until now, of all attempts that it has played."""
        number = made
        while self._read_attempt(number, made, request, pod):
            number += 1

    def _read_attempt(self, number: int, made: int, request: Request, pod: Pod) -> bool:
        """What it has said of one; gives whether it has said more of another. A log that is kept no more is none."""
        intake = Intake(self._attempt_dir(number), request["node"], _ranks(request), number, made)
        with contextlib.suppress(Refused):
            since = intake.begin()
            name, container = pod["metadata"]["name"], layout.container_of(pod)
            for line in self._client.logs(name, container=container, follow=False, since=since):
                intake.put(line)
                if intake.is_told:
                    break
            intake.flush()
        return intake.is_told

    def _begin(self, number: int, made: int) -> None:
        """Follow an attempt in the pods made for it, or for one before, if their maker is there. Raises EngineError."""
        maker = self._maker(made)
        if maker is None:
            return
        folder = self._attempt_dir(number)
        if number == made:
            staying.forget_made_for(folder)
        else:
            staying.keep_made_for(folder, made)
        requests = self._requests(made)
        plan = Plan(
            run_id=self._run_id, name="", target="", engine="kubernetes", output_dir="", num_nodes=len(requests),
            procs_per_node=len(_ranks(requests[0])), policy={}, job={}, steps=(Step("attempt", "", maker),),
        )  # fmt: skip
        if number in self._attempts:  # it was begun in pods of which not all have stayed
            self._attempts[number].close()
        self._attempts[number] = Attempt(self._client, plan, number, requests, folder, lambda: None, asks_pods=False)

    def _has_more(self, attempt: Attempt) -> bool:
        """Whether the pods of an attempt, of which all was read, have played another one."""
        return any(Intake(attempt.folder, node.number, node.ranks, attempt.number).is_told for node in attempt.nodes)

    def _attempt_dir(self, number: int) -> Path:
        return self._folder / f"attempt-{number}"

    def _requests(self, number: int) -> Sequence[Request]:
        """What the nodes of an attempt were asked for, by place. Raises EngineError."""
        name = layout.attempt_name(self._run_id, number)
        whole = json.loads(gzip.decompress(base64.b64decode(
            self._client.get("v1", "ConfigMap", name)["binaryData"][layout.NODES_FILE]
        )))  # fmt: skip
        return [whole["nodes"][str(place)] for place in range(len(whole["nodes"]))]

    def _maker(self, number: int) -> dict[str, Any] | None:
        for api, kind in MAKERS:
            try:
                found = self._client.get(api, kind, layout.attempt_name(self._run_id, number))
                return {**found, "apiVersion": api, "kind": kind}
            except Refused as error:
                if error.status not in (403, 404):
                    raise
        return None

    # -- all that come ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        background.run(f"logs of {self._run_id}", self._paced_turn, self._closed, self._client.health)
        self._over.set()

    def _paced_turn(self) -> bool:
        return self._turn() or self._closed.wait(TURN_SECONDS)

    def _turn(self) -> bool:
        """Begin what is new; gives whether nothing more will come."""
        try:
            phase = elsewhere.one(self._client, self._run_id).phase  # asked first: nothing begins after its end
        except NoSuchRun:
            return True
        for number in self._numbers():
            if number > max((attempt.made_for for attempt in self._attempts.values()), default=0):
                self._begin(number, number)
        if any(node.lives() for attempt in self._attempts.values() for node in attempt.nodes):
            return False
        newest = self._attempts.get(max(self._attempts, default=0))
        if newest is not None and self._has_more(newest):
            self._begin(newest.number + 1, newest.made_for)
            return False
        return phase.is_terminal

    def _numbers(self) -> list[int]:
        """The attempts for which pods were made."""
        selector = f"{layout.selector(self._run_id)},{layout.ATTEMPT_LABEL}"
        found = self._client.find("v1", "ConfigMap", selector)["items"]
        return sorted(_made_for(one) for one in found)


def _made_for(one: Mapping[str, Any]) -> int:
    return int(one["metadata"]["labels"][layout.ATTEMPT_LABEL])


def _ranks(request: Request) -> tuple[int, ...]:
    return tuple(rank["rank"] for rank in request["ranks"])
