"""One attempt of a run on a cluster: an object that makes pods, and of each pod the files that its node has told.

To whoever keeps the run it is what an attempt on one's own machine is: nodes that say things, live, and are signalled.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from windlass.engines.keeping.told import Told
from windlass.engines.kubernetes import layout, staying, streams
from windlass.engines.kubernetes.arrivals import Arrivals
from windlass.engines.kubernetes.background import PAUSES
from windlass.engines.kubernetes.client import Client, Refused, Unreachable
from windlass.engines.kubernetes.follower import Connections, Follower, raise_file_limit
from windlass.engines.kubernetes.intake import Intake
from windlass.engines.kubernetes.marks import Ear
from windlass.engines.kubernetes.mirror import last_line_at
from windlass.engines.kubernetes.plan import attempt_objects
from windlass.engines.kubernetes.pods import PodWatch, has_ended, is_alive, why_it_ended
from windlass.engines.kubernetes.seeing import claims_of, container_state
from windlass.engines.kubernetes.troubles import Troubles
from windlass.engines.kubernetes.turns import Turn
from windlass.engines.kubernetes.ways import WAYS
from windlass.errors import EngineError
from windlass.plan.launch import fill_in
from windlass.plan.placement import attempt_environment
from windlass.plan.plan import Plan
from windlass.plan.pods import pod_spec

ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL)
"""Signals after which a node is to end, soon or at once."""
AGAIN_SECONDS: Final = 5.0
"""Between two signals of one kind to one node."""
SENDERS: Final = 16
"""Signals that are sent at once."""
DEADLINE: Final = "DeadlineExceeded"
"""Status reason of a pod that ran for as long as its deadline allowed."""
SEND_SECONDS: Final = 10.0
"""How long a command in a pod may take to signal it."""
REASON_SECONDS: Final = 5.0
"""How long a pod that was taken away may take to be shown as ended, and why: it says so only then."""


class PodNode(Told):
    """One node, which a pod plays."""

    def __init__(self, number: int, place: int, ranks: tuple[int, ...], folder: Path, attempt: Attempt) -> None:
        super().__init__(number, ranks, folder)
        self.place = place
        self.attempt = attempt
        self.is_taken_away = False
        """Whether its pod was ended, and not by us."""
        self.is_explained = False
        """Whether it was told what the cluster says of a pod that has ended."""
        self._over_at: float | None = None
        self._claim: list[dict[str, Any]] | None = None
        """How its ranks failed, as its log says; believed once its pod has ended like that, or stays."""
        self._is_asking = False
        """Whether its pod is being asked whether it stays."""
        self._is_unanswered = False
        """Whether that was asked in vain."""
        self._is_sending = False
        self._num_ignored = 0
        self._sent: dict[signal.Signals, float] = {}
        """When each signal was last sent: whoever ends a node says so at every turn."""
        self._told_at = float("-inf")
        of = (folder, number, ranks, attempt.number, attempt.made_for)
        self.log = Follower(
            f"log of node {number}", attempt.client, attempt.pods, place, lambda: Intake(*of), attempt.connections,
            attempt.wake,
        )  # fmt: skip

    @property
    def all_read(self) -> bool:
        """Whether all that its pod has written of this attempt is in our files."""
        return self.log.is_done

    def news(self) -> Iterator[dict[str, Any]]:
        """What it has said since the last call, after what is seen of its pod."""
        intake, all_read = self.log.intake, self.all_read
        if intake is not None and not all_read:
            with contextlib.suppress(OSError):  # a full disk, or closed meanwhile: who reads the log sees to it
                intake.flush()  # the last lines of many that came at once
            self._ask_whether_it_stays(intake)
        yield from self.attempt.client.health.news()
        pod = self.attempt.pods.pod(self.place)
        # Not only its container: what a machine has to say of a pod comes with the end of the pod.
        phase = "" if pod is None else pod.get("status", {}).get("phase")
        ended = pod is None or phase in ("Succeeded", "Failed") or self.attempt.pods.is_gone(self.place)
        yield from self.attempt.troubles.of_pod(self.place, self.number)
        self.is_explained = ended
        if self.place == 0:
            yield from self.attempt.troubles.of_objects()
        yield from self.attempt.turn.news()
        if pod is not None and not self.attempt.is_seen_alive and is_alive(pod):
            self.attempt.is_seen_alive = True
            yield {"kind": "alive", "at": time.time()}
        for event in super().news():
            if event["kind"] == "notice" and event.get("source") == "sigterm" and signal.SIGTERM not in self._sent:
                self.is_taken_away = True
            if event["kind"] == "notice":  # the machine goes, or somebody elsewhere has asked for the end
                with contextlib.suppress(EngineError):
                    self.attempt.ear.listen()
            yield event
        yield from self._ignored()
        if all_read or self.attempt.pods.is_lost(self.place):
            yield from self._believe()
        if self.attempt.is_taken_back:
            yield from self.attempt.notices()
            self._end_unheard()
        if self.pid is None and self.attempt.has_first_done and time.monotonic() - self._told_at >= AGAIN_SECONDS:
            self._told_at = time.monotonic()
            self.attempt.submit(self._begin_without_first)

    def take_end(self, failures: list[dict[str, Any]]) -> None:
        """See `Told`. Any process of the pod could have written it: how the pod ends decides whether it is believed."""
        self._claim = failures

    def _believe(self) -> Iterator[dict[str, Any]]:
        """Once all is read: the node has ended as its log says, if its pod has ended so too, or stays.

        Its exit code is 0 if all its ranks have succeeded. Where the two differ, the pod's own status holds; a node
        that ended in another way than its log says is one that died without a word.
        """
        if self.ended:
            return
        code, claim = self._exit_code(), self._claim
        if claim is not None and (code is None or (code == 0) is not bool(claim)):
            self.ended, self.failures = True, claim
        elif code == 0 and self.pid is not None:
            self.ended, self.failures = True, []
            lacks = "says something else" if claim else "lacks its end"
            message = f"node {self.number} has succeeded, as its pod's status says, though its log {lacks}"
            yield {"kind": "warning", "message": message, "at": time.time()}

    def _exit_code(self) -> int | None:
        """How the container of its pod has ended; None where it has not, or that is not known."""
        pod = self.attempt.pods.pod(self.place)
        state, data = container_state(pod) if pod is not None else ("waiting", {})
        code = data.get("exitCode") if state == "terminated" else None
        return code if isinstance(code, int) else None

    def _ask_whether_it_stays(self, intake: Intake) -> None:
        """Where its log says that the attempt is over and the pod stays, have the pod itself show that."""
        if not intake.is_told or self._is_asking:
            return
        pod = self.attempt.pods.pod(self.place)
        if not self.attempt.asks_pods:
            self.log.finish()
        elif pod is not None and container_state(pod)[0] == "running":  # one that has ended says so by its status
            self._is_asking = True
            self.attempt.submit(self._ask_pod, intake, pod)

    def _ask_pod(self, intake: Intake, pod: Mapping[str, Any]) -> None:
        try:
            stays = staying.stays(self.attempt.client, pod, self.attempt.python)
            if stays:
                self.log.finish()
            elif stays is None:
                self._is_unanswered = True
                time.sleep(PAUSES[-2])
            else:
                self._claim = None
                intake.retract()
        except OSError:
            pass  # a full disk: asked again
        finally:
            self._is_asking = False
            self.attempt.wake()

    def _ignored(self) -> Iterator[dict[str, Any]]:
        """That lines of its log look like events of the node, and are none; once."""
        before, self._num_ignored = self._num_ignored, self.num_ignored
        if self._num_ignored and not before:
            message = (
                f"node {self.number}: lines of its pod's log that look like Windlass's own are not, and were ignored: "
                "a process writes to the output of the pod's first process"
            )
            yield {"kind": "warning", "message": message, "at": time.time()}

    def _end_unheard(self) -> None:
        """Its pod was taken back before anything in it could say a last word: that is no lost machine."""
        if self.ended or not self.all_read:
            return
        self.ended = True
        self.failures = [
            {"rank": rank, "exit_code": -signal.SIGTERM, "at": time.time(), "tail": self.last_words(),
             "traceback_at": None, "ended_by_us": True}
            for rank in self.ranks
        ]  # fmt: skip

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it: why a pod was taken away, the cluster says a moment after its end."""
        if not super().over:
            return False
        self._over_at = self._over_at or time.monotonic()
        is_late = time.monotonic() - self._over_at > REASON_SECONDS
        return is_late or self.is_explained or not self.is_taken_away

    def lives(self) -> bool:
        """Whether more may come of it."""
        return not self.all_read and not self.attempt.pods.is_lost(self.place)

    @property
    def exit_code(self) -> int:
        """How its container ended, which died without a word."""
        return self._exit_code() or -signal.SIGKILL

    def last_words(self) -> str:
        """Why its pod ended, and what the process in it has said of its own."""
        pod = self.attempt.pods.pod(self.place)
        why = why_it_ended(pod) if pod is not None else self.attempt.pods.is_over or "its pod was never made"
        return "\n".join(text for text in (super().last_words(), why) if text)

    def send(self, number: signal.Signals) -> None:
        """Signal the node, without waiting for it; a pod that cannot be reached is deleted where it is to end."""
        intake = self.log.intake
        awaits_answer = self._claim is not None and intake is not None and intake.is_told and not self._is_unanswered
        if super().over or awaits_answer:  # a pod that is about to stay must not be ended as one that does not end
            return
        now = time.monotonic()
        if now - self._sent.get(number, float("-inf")) >= AGAIN_SECONDS and not self._is_sending:
            self._sent[number] = now
            self._is_sending = True  # a cluster that does not answer must not let them pile up
            self.attempt.submit(self._send_now, number)

    def sweep(self) -> None:
        """Nothing outlives a pod."""

    def _send_now(self, number: signal.Signals) -> None:
        try:
            self._send(number)
        finally:
            self._is_sending = False

    def _send(self, number: signal.Signals) -> None:
        pod = self.attempt.pods.pod(self.place)
        if pod is not None and has_ended(pod):
            return  # to delete it would be to delete its log, which may not have been read
        client = self.attempt.client
        name = "" if pod is None else pod["metadata"]["name"]
        try:
            if pod is not None and number is not signal.SIGKILL and container_state(pod)[0] == "running":
                words = staying.signalling(self.attempt.python, number, self.attempt.number)
                streams.call(client, name, layout.container_of(pod), words, SEND_SECONDS)
                return
        except EngineError:
            pass
        if number in ENDING:
            grace = None if number is signal.SIGTERM else 0
            self.attempt.troubles.ours.add(self.place)
            for _ in PAUSES:
                try:
                    if pod is None:
                        self.attempt.pods.end()
                    else:
                        client.delete("v1", "Pod", name, grace=grace)
                    return
                except Unreachable:
                    time.sleep(1.0)
                except Refused:
                    return

    def _begin_without_first(self) -> None:
        """Tell a pod that waits for the name of the first one that it will not be known any more."""
        pod = self.attempt.pods.pod(self.place)
        if pod is not None and container_state(pod)[0] == "running":
            words = staying.without_first(self.attempt.python, self.attempt.number)
            with contextlib.suppress(EngineError):  # it is told again
                streams.call(
                    self.attempt.client, pod["metadata"]["name"], layout.container_of(pod), words, SEND_SECONDS
                )


class Attempt:
    """All nodes of one attempt."""

    def __init__(
        self,
        client: Client,
        plan: Plan,
        number: int,
        requests: Sequence[Mapping[str, Any]],
        folder: Path,
        wake: Callable[[], None],
        *,
        asks_pods: bool = True,
    ) -> None:
        """`asks_pods`: whether a pod whose log says that it stays is asked for that; see `PodNode`."""
        raise_file_limit()
        self.client = client
        self.run_id = plan.run_id
        self.number = number
        self.made_for = staying.made_for(folder, number)
        self.folder = folder
        self.python = requests[0]["worker_python"]
        self.refusals: list[str] = []
        self.asks_pods = asks_pods
        self.wake = wake
        self.connections = Connections(len(requests))
        self.senders = ThreadPoolExecutor(SENDERS, thread_name_prefix="signals")
        made = plan.requests("attempt")[0]
        self.ear = Ear(client, plan.run_id, folder.parent)
        owner = (made["apiVersion"], made["kind"])
        self.nodes: tuple[PodNode, ...] = ()
        self.pods = PodWatch(client, plan.run_id, self.made_for, owner, self._pods_changed, self.ear.listen)
        claims = claims_of([*plan.requests("attempt-part"), made])
        name = layout.attempt_name(plan.run_id, self.made_for)
        self.turn = Turn(client, made, name, self.made_for, self.pods)
        arrivals = Arrivals(client, pod_spec(attempt_objects(plan)))
        self.troubles = Troubles(
            client, plan.run_id, self.made_for, self.pods, claims, len(requests), self.turn, arrivals, self.wake
        )
        self._is_noticed = False
        self.is_seen_alive = False
        """Whether this supervisor has seen a pod of it run."""
        self.nodes = tuple(
            PodNode(request["node"], place, tuple(rank["rank"] for rank in request["ranks"]), folder, self)
            for place, request in enumerate(requests)
        )

    def _pods_changed(self) -> None:
        for node in self.nodes:
            node.log.look()
        self.wake()

    def submit(self, work: Callable[..., None], *of: object) -> None:
        """Have something done that waits for the cluster; an error of it is recorded."""

        def guarded() -> None:
            try:
                work(*of)
            except Exception as error:
                self.client.health.crashed(f"attempt {self.number}", error)

        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self.senders.submit(guarded)

    @property
    def over(self) -> bool:
        """Whether all nodes have ended."""
        return all(node.over for node in self.nodes)

    @property
    def has_first_done(self) -> bool:
        """Whether the first node has done its part; those that have not begun wait for its name in vain."""
        return self.nodes[0].ended and not self.nodes[0].failures

    @property
    def is_taken_back(self) -> bool:
        """See `keeping.ground.Attempt`: whether a queue has suspended what makes the pods."""
        return self.pods.taken_back is not None

    @property
    def is_past_deadline(self) -> bool:
        """See `keeping.ground.Attempt`: whether a kubelet ended a pod for its `activeDeadlineSeconds`."""
        found = (self.pods.pod(node.place) for node in self.nodes)
        return any(pod is not None and pod.get("status", {}).get("reason") == DEADLINE for pod in found)

    def notices(self) -> Iterator[dict[str, Any]]:
        """That all pods are taken back, once."""
        if not self._is_noticed:
            self._is_noticed = True
            yield {"kind": "notice", "source": "queue", "action": "evict", "at": time.time()}

    def live_nodes(self) -> list[PodNode]:
        """Nodes that have not ended."""
        return [node for node in self.nodes if not node.over]

    def send(self, number: signal.Signals) -> None:
        """Signal every live node."""
        for node in self.live_nodes():
            node.send(number)

    def kill(self) -> None:
        """End every pod without grace."""
        self.send(signal.SIGKILL)

    def failures(self) -> list[dict[str, Any]]:
        """Of all nodes, what `blame` needs."""
        return [failure for node in self.nodes for failure in node.failures]

    def last_sign_of_life(self) -> float:
        """When any of its pods last wrote a line, in unix seconds; 0 where none has.

        Not when its files were written: after a take-up that is when what the pods wrote long before was read.
        """
        return max((last_line_at(path) for path in self.folder.glob("node-*.cursor")), default=0.0)

    def close(self) -> None:
        """Read and watch no more. What was suspended is deleted: it is not to come to life beside the next attempt."""
        if self.is_taken_back:
            with contextlib.suppress(EngineError):
                self.pods.end()
        self.pods.close()
        self.troubles.close()
        for node in self.nodes:
            node.log.close()
        self.senders.shutdown(wait=False)


def node_specs(
    plan: Plan, number: int, requests: Iterable[Mapping[str, Any]], via: str, since: float, made_for: int = 0
) -> bytes:
    """What the pods of an attempt are asked to do, compressed: all nodes in one object, by place.

    `made_for` is the attempt for which the pods were made, where that is another.
    """
    requests, pods = list(requests), made_for or number
    master = _master(plan.run_id, pods, via, len(requests))
    env = attempt_environment(number, master, layout.MASTER_PORT)
    nodes = {}
    for place, request in enumerate(requests):
        spec = {**request, "folder": f"{layout.WORK}/attempt", "since": since, "env": {**env, **request["env"]}}
        if "launch" in spec:
            if "port" in spec["launch"]:
                peers = [_host(plan.run_id, pods, via, other) for other in range(1, len(requests))]
                spec["launch"] = {**spec["launch"], "peers": peers}
            spec["launch"] = fill_in(spec, layout.RENDEZVOUS_PORT, _host(plan.run_id, pods, via, place))
        nodes[str(place)] = spec
    first = nodes["0"]["env"]
    common = {name: value for name, value in first.items() if all(n["env"].get(name) == value for n in nodes.values())}
    for spec in nodes.values():
        spec["env"] = {name: value for name, value in spec["env"].items() if name not in common}
    whole = {"attempt": number, "common": {"env": common}, "nodes": nodes}
    return gzip.compress(json.dumps(whole).encode(), mtime=0)


def _host(run_id: str, attempt: int, via: str, place: int) -> str:
    """The name by which the pods of an attempt find one of them."""
    return WAYS[via].host(layout.attempt_name(run_id, attempt), run_id, place)


def _master(run_id: str, attempt: int, via: str, num_nodes: int) -> str:
    """Where the ranks of an attempt meet: on the first pod, whose name nobody needs who is alone."""
    return _host(run_id, attempt, via, 0) if num_nodes > 1 else "127.0.0.1"
