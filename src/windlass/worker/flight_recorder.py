"""Reads torch's flight recorder in a rank, and writes the last collectives to a JSON file when they hang or fail.

A rank that waits in a collective runs native code and cannot respond, so a second thread waits for requests: it opens a
FIFO for reading, which blocks until the node opens the FIFO for writing. The thread is started with the script's first
process group, because a fork would lose an earlier thread.

| file | content |
|---|---|
| `rank-N.ask` | the FIFO; opening it for writing and closing it is a request; `s` also requests the stacks |
| `rank-N.work.json` | the response to `w`: `waits`, whether the script waits for other ranks |
| `rank-N.flight.json` | `at`, `why` (`asked`, `failed`, `ended`), and for each process group its last collectives |

The recorder is part of torch: since 2.5 for NCCL, in newer versions also for gloo. Without a recorder nothing is
written. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, Callable  # noqa: UP035 - ranks may run on Python 3.9

ASK, RESPONSE, STATE, STACKS, WORK = ".ask", ".flight.json", ".work.json", b"s", b"w"
MAX_CALLS = 32
"""Maximum number of collectives written for each process group, the newest."""
MAX_GROUPS = 16
"""Maximum number of process groups that are written, the last used ones."""
MAX_SIZES = 8
"""Maximum number of shapes written for one collective. Coalesced collectives have many."""


class Flight:
    """Writes the recorded collectives of this rank to a file."""

    def __init__(self, base: str, module: Any) -> None:
        """`base` is the prefix of the rank's files, `…/rank-N`; `module` is torch.distributed.distributed_c10d."""
        self.base = base
        self.module = module
        self.pid = os.getpid()
        self.thread = 0
        """Id of the thread that created the first process group."""

    def listen(self, write_stacks: Callable[[], object]) -> None:
        """Starts the thread that responds to requests. Raises OSError if the FIFO cannot be created."""
        import _thread  # `threading` would show the thread to the script

        self.thread = _thread.get_ident()
        try:
            os.mkfifo(self.base + ASK, 0o600)
        except FileExistsError:
            pass
        _thread.start_new_thread(self._answer, (write_stacks,))

    def _answer(self, write_stacks: Callable[[], object]) -> None:
        try:
            # The script's own threads must handle signals.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            while True:
                asked = os.open(self.base + ASK, os.O_RDONLY | os.O_CLOEXEC)
                words = b""
                while data := os.read(asked, 64):
                    words += data
                os.close(asked)
                if STACKS in words:
                    write_stacks()
                if WORK in words:
                    self._put("work", STATE, {"waits": self._waits()})
                else:
                    self.write("asked")
        except BaseException:
            return  # errors must not disturb the rank

    def write(self, why: str, failed_in: str = "") -> None:
        """Writes the file with the collectives. If this fails, the file is missing and the rank continues."""
        try:
            if os.getpid() != self.pid:
                return  # a forked child of the script, which must not write
            found = self._ended() if why == "ended" else self._groups(failed_in)
            if found:
                data = {"at": time.time(), "why": why, "failed_in": failed_in, "groups": found}
                # separate temporary names, because two threads may write at the same time
                self._put(f"flight.{why}", RESPONSE, data)
        except BaseException:
            return

    def _put(self, part: str, kind: str, data: dict[str, Any]) -> None:
        text, path = json.dumps(data), f"{self.base}.{part}"
        with open(path, "w") as file:
            file.write(text)
        os.replace(path, self.base + kind)

    def _waits(self) -> bool:
        """Whether the script is executing a collective, or has started a collective that has not finished."""
        frame = sys._current_frames().get(self.thread)
        # walks frames of torch, up to the first frame of the script
        while frame is not None and "/torch/" in (file := frame.f_code.co_filename):
            if "/torch/distributed/checkpoint/" not in file and "/torch/distributed/" in file:
                return True
            if frame.f_code.co_name == "_engine_run_backward":
                return True
            frame = frame.f_back
        return any(call["state"] != "ended" for group in self._groups("") for call in group["calls"])

    def _ended(self) -> list[dict[str, Any]]:
        """Returns the number of collectives of each group without their details, for a rank that ended successfully.
        Takes 0.1 ms.
        """
        status = json.loads(self._recorder("_dump_fr_trace_json")(includeCollectives=False)).get("pg_status", {})
        return [{"id": int(number), "enqueued": _enqueued(line), "calls": []} for number, line in status.items()]

    def _groups(self, failed_in: str) -> list[dict[str, Any]]:
        world: Any = getattr(self.module, "_world", None)
        ranks = {str(world.pg_names[group]): sorted(of) for group, of in _pairs(world, "pg_group_ranks")}
        backends = {str(pair[0]) for _, pair in _pairs(world, "pg_map")}
        found: list[dict[str, Any]] = []
        for dump in self._dumps(backends):
            found += condense(json.loads(dump), ranks)
        if failed_in:
            _mark_failed(found)
        return newest(found)

    def _dumps(self, backends: set[str]) -> list[bytes]:
        """Returns the dumps of all recorders: one for NCCL and, in newer torch, one for each backend."""
        dumps = []
        common, nccl = self._recorder("_dump_fr_trace_json"), self._recorder("_dump_nccl_trace_json")
        if common is not None:
            dumps.append(common())
        for backend in sorted(backends):
            for part in backend.split(","):  # a backend may be `cpu:gloo,cuda:nccl`
                name = part.rpartition(":")[2]
                if name == "nccl" and nccl is not None:
                    dumps.append(nccl())
                if name not in ("gloo", "undefined") and common is not None:
                    try:
                        dumps.append(common(backend=name))
                    except (TypeError, RuntimeError):
                        pass  # an older recorder without the argument, or a backend without a recorder
        return dumps

    def _recorder(self, name: str) -> Any:
        return getattr(sys.modules.get("torch._C._distributed_c10d"), name, None)


def condense(dump: dict[str, Any], ranks: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Returns the process groups in a recorder's dump, each with its newest collectives. `ranks` maps group names to
    ranks.

    The dump has the format of FlightRecorder.hpp, version 2, as JSON or unpickled.
    """
    groups: dict[int, dict[str, Any]] = {}
    status = {int(number): line for number, line in (dump.get("pg_status") or {}).items()}
    for entry in dump.get("entries") or ():
        number = int(entry["pg_id"])
        name, about = (*entry["process_group"], "")[:2]
        group = groups.setdefault(number, {"id": number, "name": str(name), "about": str(about), "calls": []})
        group["calls"].append(_call(entry))
    for number, group in groups.items():
        group["calls"] = sorted(group["calls"], key=lambda call: call["at"])[-MAX_CALLS:]
        group["ranks"] = ranks.get(group["name"], [])
        seen = [call["number"] for call in group["calls"] if not call["is_p2p"]]
        group["enqueued"] = max([_enqueued(status.get(number, {})), *seen])
    return newest(list(groups.values()))


def newest(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the groups that were used last."""
    used = [group for group in groups if group["calls"]]
    return sorted(used, key=lambda group: -group["calls"][-1]["at"])[:MAX_GROUPS]


def _call(entry: dict[str, Any]) -> dict[str, Any]:
    is_p2p = bool(entry.get("is_p2p"))
    # gloo's recorder has no state but `scheduled`, and removes an entry when its collective has ended.
    ended = entry.get("state") == "completed" or bool(entry.get("retired"))
    return {
        "number": int(entry["p2p_seq_id" if is_p2p else "collective_seq_id"]),
        "op": str(entry["profiling_name"]).rpartition(":")[2],
        "sizes": [list(size) for size in entry.get("input_sizes") or ()][:MAX_SIZES],
        "types": [str(name) for name in entry.get("input_dtypes") or ()][:MAX_SIZES],
        "is_p2p": is_p2p,
        "state": "ended" if ended else str(entry.get("state")),
        "at": int(entry.get("time_created_ns", 0)) / 1e9,
    }


def _enqueued(status: dict[str, Any]) -> int:
    """Returns the number of the last collective of a process group, counted from 1; −1 if unknown."""
    return int(status.get("last_enqueued_collective", -1))


def _mark_failed(groups: list[dict[str, Any]]) -> None:
    """Marks the newest collective as failed.

    The newest collective is the failed one, because its exception ended the script. gloo's recorder itself does not
    keep failed collectives.
    """
    calls = [call for group in groups for call in group["calls"]]
    if calls:
        max(calls, key=lambda call: call["at"])["state"] = "failed"


def _pairs(world: Any, name: str) -> list[tuple[Any, Any]]:
    return list((getattr(world, name, None) or {}).items())
