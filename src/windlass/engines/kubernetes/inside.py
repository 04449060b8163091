"""Reaches into the pods of a run: commands in them, and files from them and to them.

Files are those of a running pod; of a run whose pods are gone they are those that its claim has, which a pod made for
that mounts.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from windlass.engines.kubernetes import helpers, layout, streams
from windlass.engines.kubernetes.client import Client, Refused
from windlass.engines.kubernetes.plan import attempt_objects
from windlass.engines.kubernetes.pods import by_place
from windlass.engines.kubernetes.seeing import container_state
from windlass.engines.kubernetes.streams import Input, Output, Stream
from windlass.errors import EngineError, UsageError
from windlass.plan.plan import Plan
from windlass.plan.pods import pod_spec
from windlass.runs.record import Status
from windlass.worker import checkpointlist, tarpipe

Told = Callable[[int], None]

HELPER_SECONDS: Final = 3600
"""How long a pod that was made to copy may live at most."""
START_SECONDS: Final = 300.0
SILENCE_SECONDS: Final = 120.0
"""How long nothing may come or go while files are copied."""
PROGRAM: Final = f"{layout.TRAVEL}/windlass/worker/inside.py"


def connect(plan: Plan) -> Client:
    """A client for where the run is. Raises UsageError, EngineError."""
    [cluster] = plan.requests("cluster")
    return Client(cluster["context"], cluster["namespace"], cluster["kubeconfig"])


def execute(
    plan: Plan, status: Status, rank: int | None, node: int, command: Sequence[str],
    stdin: IO[bytes] | None, stdout: IO[bytes], stderr: IO[bytes],
) -> int:  # fmt: skip
    """Run a command in the pod of a node, as one of its ranks or as none; gives its exit code. Raises EngineError."""
    python = plan.requests("node")[0]["worker_python"]
    spec = f"{layout.WORK}/attempt/node-{node}.json"
    words = [python, "-I", "-S", PROGRAM, spec, "-" if rank is None else str(rank), "0", *command]
    with contextlib.closing(connect(plan)) as client:
        pod = _pods(client, status).get(node)
        if pod is None or container_state(pod)[0] != "running":
            how = "is not there yet" if pod is None else f"is {container_state(pod)[0]}"
            raise EngineError(f"the pod of node {node} {how}", f"windlass status {status.id}")
        stream = Stream(client, pod["metadata"]["name"], layout.container_of(pod), words, stdin=stdin is not None)
        with contextlib.closing(stream):
            return streams.attach(stream, stdin, stdout, stderr)


def fetch(plan: Plan, status: Status, node: int, path: str, local: Path, told: Told) -> tarpipe.Received:
    """Copy what is at `path` of a node to this machine. Raises EngineError, UsageError, OSError."""
    with contextlib.closing(connect(plan)) as client, _pod(client, plan, status, node, path) as pod:
        stream = _stream(client, pod, _program(plan, "send", path))
        with contextlib.closing(stream):
            output = Output(stream)
            try:
                found = tarpipe.receive(output, str(local), Path(path).name, told)
                _rest(output)  # the end of the archive was read: whatever becomes of the connection now, it is whole
            except tarfile.TarError as error:
                _rest(output)
                raise _failed(output, path, str(error)) from error
            if stream.exit_code:
                raise _failed(output, path, f"exit code {stream.exit_code}")
            return found


def listing(plan: Plan, status: Status, folder: str) -> Mapping[str, Any]:
    """What a folder of checkpoints holds, as `worker/checkpointlist.py` gives it. Raises EngineError, UsageError.

    It is read in a running pod, or in one made for that which mounts the run's claim.
    """
    node = next(iter(status.attempts[-1].members), 0) if status.attempts else 0
    python = plan.requests("node")[0]["worker_python"]
    words = [python, "-I", "-S", "-c", Path(checkpointlist.__file__).read_text(), folder]
    with contextlib.closing(connect(plan)) as client, _pod(client, plan, status, node, folder) as pod:
        name = pod["metadata"]["name"]
        code, answer, complaint = streams.call(client, name, layout.container_of(pod), words, SILENCE_SECONDS)
    found = _whole(answer)
    if code or found is None:
        said = complaint.decode("utf-8", "replace").strip().splitlines()
        raise EngineError(f"{folder} of {status.id} cannot be read: {said[-1] if said else f'exit code {code}'}",
                          f"windlass exec {status.id} -- ls {folder}")  # fmt: skip
    return found


def put(plan: Plan, status: Status, node: int, local: Path, path: str, told: Told) -> Mapping[str, Any]:
    """Copy what is at `local` of this machine to `path` of a node. Raises EngineError, UsageError, OSError."""
    name = local.resolve().name
    with contextlib.closing(connect(plan)) as client, _pod(client, plan, status, node, path) as pod:
        command = _program(plan, "receive", path, name)
        stream = _stream(client, pod, command, stdin=True)
        with contextlib.closing(stream):
            output = Output(stream)
            broken: list[Exception] = []

            def feed() -> None:
                try:
                    tarpipe.send(str(local), _Counted(stream, output, told))  # type: ignore[arg-type]
                    stream.end_input()
                except _NotWanted:
                    stream.end_input()
                except (EngineError, OSError) as error:
                    broken.append(error)
                    stream.close()

            # Beside the reading: who takes no more has said why, and would not be heard by one who only sends.
            feeder = threading.Thread(target=feed, name="sender", daemon=True)
            feeder.start()
            answer, error = _rest(output)
            if stream.exit_code:
                raise _failed(output, path, f"exit code {stream.exit_code}")
            found = _whole(answer)
            if found is None:
                why = broken[0] if broken else error or "what receives has not said that it is there"
                raise _failed(output, path, str(why)) from error
            return found


def _rest(output: Output) -> tuple[bytes, EngineError | None]:
    """All that is still to come, and what the connection broke of, if it did.

    The word of how a command ended comes last, and a connection may be closed before it.
    """
    pieces: list[bytes] = []
    try:
        pieces.extend(iter(output.read, b""))
    except EngineError as error:
        return b"".join(pieces), error
    return b"".join(pieces), None


def _whole(answer: bytes) -> Mapping[str, Any] | None:
    """What the receiver tells when all is in its place; None where it has not said it."""
    try:
        found: Mapping[str, Any] = json.loads(answer)
    except ValueError:
        return None
    return found


class _NotWanted(Exception):
    """Who was to receive has complained."""


class _Counted(Input):
    """Tells how much was sent, and stops where nobody wants it."""

    def __init__(self, stream: Stream, answer: Output, told: Told) -> None:
        super().__init__(stream)
        self._answer = answer
        self._told = told
        self._bytes = 0

    def write(self, data: bytes) -> int:
        """Send it all. Raises Unreachable, _NotWanted."""
        for at in range(0, len(data), streams.CHUNK_BYTES):
            if self._answer.complaint:
                raise _NotWanted
            super().write(data[at : at + streams.CHUNK_BYTES])
        self._bytes += len(data)
        self._told(self._bytes)
        return len(data)


def _failed(output: Output, path: str, otherwise: str) -> EngineError:
    said = output.complaint.decode("utf-8", "replace").strip().splitlines()
    return EngineError(f"{path} cannot be copied: {said[-1] if said else otherwise}", "paths that do not begin "
                       "with / are relative to the results: RUN:output/model.pt")  # fmt: skip


def _program(plan: Plan, *words: str) -> list[str]:
    """The program that sends and receives, as text: not every pod has our folder."""
    python = plan.requests("node")[0]["worker_python"]
    return [python, "-I", "-S", "-c", Path(tarpipe.__file__).read_text(), *words]


def _stream(client: Client, pod: Mapping[str, Any], words: list[str], *, stdin: bool = False) -> Stream:
    """What a program in a pod takes and gives."""
    name, container = pod["metadata"]["name"], layout.container_of(pod)
    return Stream(client, name, container, words, stdin=stdin, silence_seconds=SILENCE_SECONDS)


# -- which pod --------------------------------------------------------------------------------------------------------


def _pods(client: Client, status: Status) -> dict[int, Mapping[str, Any]]:
    """The newest pods, by the number of the node; the newest attempt may be in those of one before."""
    if not status.attempts:
        return {}
    newest = status.attempts[-1]
    every = client.find("v1", "Pod", layout.selector(status.id))["items"]
    made_for = max((_made_for(pod) for pod in every), default=0)
    found = [pod for pod in every if _made_for(pod) == made_for]
    pods = by_place(found)
    members = newest.members or tuple(range(len(pods)))
    return {members[place]: pod for place, pod in pods.items() if place < len(members)}


def _made_for(pod: Mapping[str, Any]) -> int:
    return int(pod["metadata"]["labels"].get(layout.ATTEMPT_LABEL, 0))


@contextlib.contextmanager
def _pod(client: Client, plan: Plan, status: Status, node: int, path: str) -> Iterator[Mapping[str, Any]]:
    """A running pod that has what is at `path`; made for it where none is left."""
    there = {} if status.phase.is_terminal else _pods(client, status)  # the API is late to tell that they have ended
    pods = {number: pod for number, pod in there.items() if container_state(pod)[0] == "running"}
    kept = _claim(plan) if _is_result(path) else None
    if node in pods or (kept is not None and pods):
        yield pods.get(node) or next(iter(pods.values()))
        return
    if kept is None:
        if _is_result(path):
            raise UsageError(f"the pods of {status.id} do not run, and its results were kept nowhere else",
                             "write kubernetes: {results: {size: 20GiB}} into the job for the next run")  # fmt: skip
        raise UsageError(f"the pod of node {node} of {status.id} does not run, and {path} was in it",
                         "results are reached by relative paths: RUN:output")  # fmt: skip
    _require_claim(client, status, kept)
    name = f"{status.id}-cp-{secrets.token_hex(3)}"
    with helpers.made(client, _helper(plan, name, kept, client.namespace)):
        [pod] = helpers.running(client, name, 1, START_SECONDS, lambda _text: None)
        yield pod


def _require_claim(client: Client, status: Status, kept: Mapping[str, Any]) -> None:
    """Raise UsageError where the claim is gone: a pod that mounts it would wait for it for ever."""
    claim = kept["volume"]["persistentVolumeClaim"]["claimName"]
    with contextlib.suppress(Refused):
        try:
            client.get("v1", "PersistentVolumeClaim", claim)
        except Refused as error:
            if error.status != 404:
                raise
            raise UsageError(f"claim {claim} of {status.id} is gone, and its results with it",
                             "see: kubectl get pvc") from error  # fmt: skip


def _is_result(path: str) -> bool:
    return path == layout.RESULTS or path.startswith(f"{layout.RESULTS}/")


def _claim(plan: Plan) -> Mapping[str, Any] | None:
    """The volume of the results and how it is mounted, if they are in a claim."""
    spec = _spec(plan)
    [mount] = [one for one in spec["containers"][0]["volumeMounts"] if one["mountPath"] == layout.RESULTS]
    [volume] = [one for one in spec["volumes"] if one["name"] == mount["name"]]
    return {"volume": volume, "mount": mount} if "persistentVolumeClaim" in volume else None


def _spec(plan: Plan) -> Mapping[str, Any]:
    """What the pods of the run are."""
    return pod_spec(attempt_objects(plan))


def _helper(plan: Plan, name: str, kept: Mapping[str, Any], namespace: str) -> helpers.Manifest:
    """A pod that has the results of the run, and waits."""
    spec = _spec(plan)
    python = plan.requests("node")[0]["worker_python"]
    wait = [python, "-I", "-S", "-c", f"import time; time.sleep({HELPER_SECONDS})"]
    # Of pods that are a runtime's, what is not put over it stands in no manifest of ours.
    [cluster] = plan.requests("cluster")
    image = spec["containers"][0].get("image") or cluster["image"]
    user = spec.get("securityContext", {}).get("runAsUser") or cluster["user"]
    made = helpers.pod_spec(image, user, wait)
    made["containers"][0]["volumeMounts"] = [kept["mount"]]
    made["volumes"] = [kept["volume"]]
    return helpers.job(name, HELPER_SECONDS, 1, made, namespace=namespace)
