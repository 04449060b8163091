"""Copies the outputs of a run's pods to the supervisor, before the pods end.

A supervisor on a user's machine reads the output folder of each pod by exec; to a supervisor in the cluster, each pod
sends its folder over a separate connection (`worker/outputs.py`). The folders are merged. If several nodes have a file
with the same path, the first node's file is kept. Files are moved to their final place once all are received and
verified; an interrupted collection is repeated.

While the API server does not answer, the collection waits; the pods last observed running are kept alive, and are asked
for their outputs. While this machine's disk is full, it waits too, for at most an hour.
"""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import json
import os
import shutil
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from socket import socket
from typing import Any, Final, TypeVar

from windlass.code.unpack import move_into
from windlass.engines.kubernetes.access import exec_stream
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import ConnectionControl, PodControl, Request
from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.access.files import PodFiles, last_line, parsed
from windlass.engines.kubernetes.access.unavailable import is_passing, unavailable
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_status import container_state, ends_at
from windlass.engines.kubernetes.objects.pods import Pod, PodId, by_id, selector
from windlass.engines.kubernetes.running.reuse import ANSWER_SECONDS
from windlass.errors import EngineError
from windlass.runs.events import OutputsCollected, Warned
from windlass.runs.store import OUTPUT, OUTPUT_DIGEST
from windlass.storage.files import sync, write_whole
from windlass.supervise.backend import TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.worker import order_protocol, outputs, pod_reuse, tarpipe
from windlass.worker.output_size import MAX_FILES, entries, measure
from windlass.worker.protocol import OUTPUTS_INCOMPLETE
from windlass.worker.reserve import FULL_ERRORS

FOLDER: Final = "collecting"
"""Subfolder of the run's folder for files received so far."""
MERGED: Final = "merged"
"""Subfolder of FOLDER for the merged files."""
MERGED_NOTE: Final = "merged.json"
"""File in FOLDER that exists once MERGED is complete: the result of the collection, and the pods it is from."""
TRIES: Final = 6
"""Number of tries for a pod that fails while the API server answers; with `PAUSES_SECONDS`, about a minute."""
PAUSES_SECONDS: Final = (2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between tries; the last value is repeated."""
UNANSWERED_SECONDS: Final = 5.0
"""Seconds between tries while the API server does not answer."""
FULL_SECONDS: Final = 3600.0
"""Seconds for which the collection waits for space on a full disk, and keeps the pods that have outputs."""
MAX_REFUSALS: Final = 60
"""Number of refused pod lists after which the collection fails; fewer refusals may be temporary, for example by a
proxy."""
HOLD_SECONDS: Final = 15.0
"""Seconds between two requests that keep a pod with unread outputs alive; each request lasts for
`pod_reuse.OUTPUTS_SECONDS`."""
CONNECT_SECONDS: Final = 30.0
"""Seconds that a pod may take to connect, which includes the start of an interpreter."""
NAMED: Final = 5
"""Maximum number of files named in a warning."""
HEADER_BYTES: Final = 4096
"""Maximum bytes per file that a stream contains in addition to the file's content."""
KEEP: Final = "a claim keeps them: kubernetes: {results: {size: 20GiB}}"


T = TypeVar("T")


class OutputsSkipped(EngineError):
    """The outputs of a pod cannot be collected, and a retry would fail too."""


Fetch = Callable[[Pod, Path, int], list[str]]
"""Copies a pod's outputs, up to a number of bytes, to a new path; returns the skipped entries with reasons. Raises
EngineError, OutputsSkipped, OSError."""


@dataclass(slots=True)
class Collected:
    """Result of a collection."""

    nodes: list[int] = field(default_factory=list)
    size: Mapping[str, Any] = field(default_factory=dict)
    """`files`, `bytes` and `sha256` of all outputs together; empty if none were collected."""
    warnings: list[str] = field(default_factory=list)


def _merged_before(work: Path, of: list[list[int]]) -> Collected | None:
    """Returns the result of a collection from these pods that was interrupted once their outputs were merged."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        note = json.loads((work / MERGED_NOTE).read_bytes())
        if note.pop("of", None) == of:
            return Collected(**note)
    return None


class OutputsCollection:
    """Collects the outputs of one run in a background thread."""

    def __init__(
        self, client: Client, control: PodControl, fetch: Fetch, plan_id: str, run_dir: Path, max_bytes: int
    ) -> None:
        """`max_bytes` limits the outputs of all pods together."""
        self._client = client
        self._control = control
        self._fetch = fetch
        self._run_id = plan_id
        self._run_dir = run_dir
        self._max_bytes = max_bytes
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._found = Collected()
        self._waits_for: TargetUnavailable | None = None
        """What the collection waits for: the API server, or free space on this machine's disk; None if for neither."""
        self._full_since: float | None = None
        """Since when this machine's disk is full, in monotonic seconds; None if files can be written."""
        self._num_refused = 0
        """Number of pod lists that were refused."""

    def turn(
        self, record: Recorder, ids: Mapping[int, PodId], seen: Mapping[int, Pod], wake: Callable[[], None]
    ) -> bool:
        """Starts or continues the collection; returns whether it is over. `ids` has the pod of each node, `seen` the
        pods that ran when last observed.

        Raises only TargetUnavailable, while the collection waits for the API server or for free space on the disk.
        """
        if self._thread is None:
            work = (dict(ids), dict(seen), wake)
            self._thread = threading.Thread(target=self._run, args=work, name="outputs", daemon=True)
            self._thread.start()
        if self._thread.is_alive():
            if (waits_for := self._waits_for) is not None:
                raise waits_for
            return False
        if self._found.warnings:
            record.note(Warned("; ".join(self._found.warnings), OUTPUTS_INCOMPLETE))
        if self._found.nodes:
            size = self._found.size
            record.note(OutputsCollected(tuple(self._found.nodes), size["sha256"], size["files"], size["bytes"]))
        return True

    def end(self) -> None:
        """Ends the collection before its next try."""
        self._closed.set()

    # -- background thread --------------------------------------------------------------------------------------------

    def _run(self, ids: dict[int, PodId], remaining: dict[int, Pod], wake: Callable[[], None]) -> None:
        holder = threading.Thread(target=self._keep_alive, args=(remaining,), name="hold", daemon=True)
        holder.start()
        try:
            self._collect(ids, remaining)
        except (EngineError, OSError) as error:
            self._found = Collected(warnings=[f"the outputs could not be fetched: {_words(error)}; {KEEP}"])
        except Exception as error:
            self._found = Collected(warnings=[f"the outputs could not be fetched: internal error: {error!r}"])
        finally:
            self._closed.set()
            holder.join()
            wake()

    def _collect(self, ids: dict[int, PodId], remaining: dict[int, Pod]) -> None:
        """Collects the outputs. `remaining` has the pods with unread outputs, as last observed. Raises EngineError,
        OSError.
        """
        work = self._run_dir / FOLDER
        of = [[node, one.made_for, one.index] for node, one in sorted(ids.items())]
        found = _merged_before(work, of)
        if found is None:
            self._receive(ids, remaining, work)
            found = self._found
            if found.nodes:
                # A supervisor that continues after a kill need not ask the pods again, which may have ended.
                self._with_space(lambda: sync(work))
                note = json.dumps({"of": of, **asdict(found)}).encode()
                self._with_space(lambda: write_whole(work / MERGED_NOTE, note))
        self._found = found
        if found.nodes:
            self._with_space(lambda: move_to_outputs(work / MERGED, self._run_dir, found.size["sha256"]))
        shutil.rmtree(work, ignore_errors=True)

    def _receive(self, ids: dict[int, PodId], remaining: dict[int, Pod], work: Path) -> None:
        """Receives the outputs of the pods into the folder `work`, and merges them. Raises EngineError, OSError."""
        found = self._found
        shutil.rmtree(work, ignore_errors=True)
        self._with_space(lambda: work.mkdir(mode=0o700, parents=True))
        parts, lost, failures = dict[int, Path](), dict[int, str](), Counter[int]()
        pauses = itertools.chain(PAUSES_SECONDS, itertools.repeat(PAUSES_SECONDS[-1]))
        while waiting := {node: ids[node] for node in sorted(ids) if node not in parts and node not in lost}:
            is_answered = self._look(waiting, remaining, lost)
            for node, pod in sorted(remaining.items()):
                budget = self._max_bytes - sum(measure(str(part)).bytes for part in parts.values())
                part = work / f"node-{node}"
                try:
                    skipped = self._fetched(pod, part, budget)
                except (EngineError, OSError) as error:
                    if self._is_to_wait_for_space(error):
                        shutil.rmtree(part, ignore_errors=True)  # the record is on the same disk
                        continue
                    failures[node] += is_answered
                    if isinstance(error, OutputsSkipped) or failures[node] == TRIES:
                        lost[node] = _words(error)
                        del remaining[node]
                    continue
                parts[node] = part
                self._full_since = None
                found.warnings += skipped_words(node, skipped)
                del remaining[node]
                # a pod that is being deleted is released now, since it receives no later request to end
                if "deletionTimestamp" in pod["metadata"]:
                    sync(work)
                    list(self._control.call_all([(pod, Request.leave())], ANSWER_SECONDS))
            if (remaining or not is_answered) and self._closed.wait(
                next(pauses) if is_answered else UNANSWERED_SECONDS
            ):
                raise EngineError("the collection was ended", "")
        for why in dict.fromkeys(lost.values()):
            found.warnings += lost_words([node for node in sorted(lost) if lost[node] == why], why)
        if parts:
            merged = work / MERGED
            found.warnings += conflict_words(self._with_space(lambda: merge(parts, merged)))
            found.size = outputs.digest(str(merged))
            found.nodes = sorted(parts)

    def _look(self, waiting: Mapping[int, PodId], remaining: dict[int, Pod], lost: dict[int, str]) -> bool:
        """Updates which pods still have outputs; returns whether the API server has answered. Raises Refused.

        While the API server does not answer, a pod counts as lost only after its deadline, at which the kubelet ends
        it.
        """
        try:
            pods = by_id(self._client.find("v1", "Pod", selector(self._run_id, waiting.values()))["items"])
        except EngineError as error:
            self._num_refused += not is_passing(error)
            if self._num_refused == MAX_REFUSALS:
                raise
            self._waits_for = unavailable(error, "the pods keep the outputs")
            for node in [node for node, pod in remaining.items() if time.time() + self._client.ahead > ends_at(pod)]:
                lost[node] = "the API server did not answer until the deadline of the pod"
                del remaining[node]
            return False
        self._waits_for = self._waits_for if self._full_since is not None else None
        for node, one in waiting.items():
            # Pods that are being deleted are included, since they wait for the collection during their grace period.
            if one in pods and container_state(pods[one])[0] == "running":
                remaining[node] = pods[one]
            else:
                remaining.pop(node, None)
                lost[node] = "the pod has ended"
        return True

    def _is_to_wait_for_space(self, error: Exception) -> bool:
        """Returns whether to try again after this error, because this machine's disk is full."""
        if not isinstance(error, OSError) or error.errno not in FULL_ERRORS:
            return False
        now = time.monotonic()
        self._full_since = now if self._full_since is None else self._full_since
        words = f"the outputs cannot be written: {error}; they are fetched once there is space"
        self._waits_for = TargetUnavailable("NotObserved", words)
        return now - self._full_since < FULL_SECONDS

    def _with_space(self, step: Callable[[], T]) -> T:
        """Returns the result of a step, which is repeated while the disk is full. Raises EngineError, OSError."""
        while True:
            try:
                found = step()
            except OSError as error:
                if not self._is_to_wait_for_space(error):
                    raise
                if self._closed.wait(PAUSES_SECONDS[-1]):
                    raise EngineError("the collection was ended", "") from error
            else:
                self._full_since = self._waits_for = None
                return found

    def _fetched(self, pod: Pod, part: Path, max_bytes: int) -> list[str]:
        shutil.rmtree(part, ignore_errors=True)
        return self._fetch(pod, part, max_bytes)

    def _keep_alive(self, remaining: Mapping[int, Pod]) -> None:
        while not self._closed.wait(HOLD_SECONDS):
            list(self._control.call_all([(pod, Request.hold()) for pod in list(remaining.values())], ANSWER_SECONDS))


# -- fetching from a pod ----------------------------------------------------------------------------------------------


class ExecFetch:
    """Fetches outputs with commands in the pods, for a supervisor outside the cluster."""

    def __init__(self, client: Client, python: str) -> None:
        """`python` is the path of the interpreter in the pods."""
        self._client = client
        self._python = [python, "-I", "-S"]
        self._files = PodFiles(client, self._python, KEEP)

    def __call__(self, pod: Pod, into: Path, max_bytes: int) -> list[str]:
        """Copies the outputs of a pod to the folder `into`; returns the skipped entries. Raises EngineError,
        OutputsSkipped.
        """
        words = [*self._python, f"{layout.TRAVEL}/windlass/worker/outputs.py", "digest", layout.OUTPUT]
        code, answer, complaint = exec_stream.call(self._client, pod, words, outputs.SILENCE_SECONDS)
        expected = parsed(answer)
        if code or expected is None:
            raise EngineError(last_line(complaint, f"exit code {code}"))
        if expected["bytes"] > max_bytes:
            raise OutputsSkipped(_too_many(expected["bytes"], max_bytes))
        return fetch_verified(self._files, pod, layout.OUTPUT, into, expected, Allowance(max_bytes))


class PushFetch:
    """Receives outputs over connections from the pods, for a supervisor in the cluster."""

    def __init__(self, control: ConnectionControl) -> None:
        self._control = control

    def __call__(self, pod: Pod, into: Path, max_bytes: int) -> list[str]:
        """Copies the outputs of a pod to the folder `into`; returns the skipped entries. Raises EngineError,
        OutputsSkipped.
        """
        name, server = pod["metadata"]["name"], self._control.events
        connections: SimpleQueue[socket] = SimpleQueue()
        server.expect_outputs(name, connections.put)
        try:
            request = Request.push_outputs(name, layout.attempt_of(pod), layout.OUTPUT)
            [(_, answer)] = self._control.call_all([(pod, request)], ANSWER_SECONDS)
            if isinstance(answer, EngineError):
                raise answer
            if answer == pod_reuse.NOT_TAKEN:
                raise OutputsSkipped("the pod does not keep them")
            with connections.get(timeout=CONNECT_SECONDS) as connection:
                return receive(connection, into, max_bytes)
        except Empty:
            raise Unreachable(
                f"pod {name} has not connected within {CONNECT_SECONDS:g} s", "is its node healthy?"
            ) from None
        finally:
            server.refuse_outputs(name)
            with contextlib.suppress(Empty):
                while True:
                    connections.get_nowait().close()


def receive(connection: socket, into: Path, max_bytes: int) -> list[str]:
    """Receives a pod's outputs over a connection, and confirms them; returns the skipped entries. Raises EngineError,
    OSError.
    """
    connection.settimeout(outputs.SILENCE_SECONDS)
    connection.sendall(order_protocol.written(go=True))
    allowance = Allowance(max_bytes)
    most = max_bytes + MAX_FILES * HEADER_BYTES + tarpipe.BUFFER_BYTES  # maximum length of a stream, with its padding
    with contextlib.closing(outputs.PieceReader(connection, most)) as reader:
        try:
            found = tarpipe.receive(reader, str(into), "", allowance)
            digest = reader.verify()
        except (tarfile.TarError, outputs.PushError) as error:
            raise EngineError(f"the data from the pod is incomplete: {error}") from error
    connection.sendall(order_protocol.written(kept=digest))
    return found.left_out


def fetch_verified(
    files: PodFiles, pod: Pod, path: str, into: Path, expected: Mapping[str, Any], on_progress: Callable[[int], None]
) -> list[str]:
    """Copies a pod's folder, and compares its digest with `expected`; returns the skipped entries.

    Raises OSError, and EngineError, also if the digests differ.
    """
    found = files.fetch(pod, path, into, on_progress)
    here = outputs.digest(str(into))
    if any(here[name] != expected[name] for name in here):
        raise EngineError(
            f"{path} differs from the original in pod {pod['metadata']['name']}: "
            f"{here['files']} of {expected['files']} files",
            "did a process still write it?",
        )
    return found.left_out


class Allowance:
    """Limit on the bytes and files of a transfer, called with the bytes so far after each file. Raises OutputsSkipped
    above the limit.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._files = 0

    def __call__(self, num_bytes: int) -> None:
        """Counts one more file, and checks `num_bytes`, the bytes so far."""
        self._files += 1
        if num_bytes > self._max_bytes or self._files > MAX_FILES:
            raise OutputsSkipped(_too_many(num_bytes, self._max_bytes))


# -- merging the files of nodes ---------------------------------------------------------------------------------------


def merge(parts: Mapping[int, Path], into: Path) -> list[str]:
    """Moves the files of all nodes into one folder; returns the files that differ from another node's file with the
    same path.

    Raises OSError, after which the call may be repeated.
    """
    into.mkdir(mode=0o700, exist_ok=True)
    conflicts = []
    for node, part in sorted(parts.items()):
        for path in entries(str(part)) if part.is_dir() else ():
            source, target = part / path, into / path
            if os.path.lexists(target) or not _is_free(into, path):
                if not _is_same(source, target):
                    conflicts.append(f"{path} of node {node}")
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
    return conflicts


def move_to_outputs(source: Path, run_dir: Path, digest: str) -> None:
    """Moves the files of a folder to the outputs of a run, and marks the outputs as complete, durably: their other copy
    may be removed afterwards. Raises OSError.
    """
    move_into(source, run_dir / OUTPUT)
    sync(run_dir)
    write_whole(run_dir / OUTPUT_DIGEST, digest.encode())
    sync(run_dir)


def _is_free(into: Path, path: str) -> bool:
    """Returns whether all existing parents of a path are folders, and not links."""
    parents = [into / one for one in Path(path).parents]
    return all(one.is_dir() and not one.is_symlink() for one in parents if os.path.lexists(one))


def _is_same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    return other.is_file() and filecmp.cmp(one, other, shallow=False)


# -- warnings ---------------------------------------------------------------------------------------------------------


def lost_words(nodes: Sequence[int], why: str) -> list[str]:
    """Returns the warning that these nodes' outputs are lost; empty without nodes."""
    if not nodes:
        return []
    shown = ", ".join(map(str, nodes[:NAMED])) + (f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else "")
    return [f"the outputs of node{'s' if len(nodes) > 1 else ''} {shown} are lost: {why}; {KEEP}"]


def conflict_words(conflicts: Sequence[str]) -> list[str]:
    """Returns the warning that several nodes wrote the same files; empty without conflicts."""
    if not conflicts:
        return []
    return [f"other nodes have written the same files, and those of the first node are kept: {_listed(conflicts)}"]


def skipped_words(node: int, skipped: Sequence[str]) -> list[str]:
    """Returns the warning that outputs of a node were skipped; empty if none were."""
    return [f"skipped outputs of node {node}: {_listed(skipped)}"] if skipped else []


def _listed(names: Sequence[str]) -> str:
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(name.removeprefix(f"{tarpipe.ROOT}/") for name in names[:NAMED]) + more


def _too_many(num_bytes: int, max_bytes: int) -> str:
    return (
        f"{num_bytes:,} bytes, and {max_bytes:,} in {MAX_FILES:,} files are left of kubernetes.outputs_max, which "
        "counts for all nodes together"
    )


def _words(error: Exception) -> str:
    return error.message if isinstance(error, EngineError) else str(error)
