r"""The process of a pod: plays one node of an attempt, and tells on its own output all that a node tells in files.

A pod shares no folder with whoever keeps the run; what it has is its log, which every cluster carries. One line of it:

    [3] epoch 2 loss 0.41          a line that rank 3 has written
    [3]+ 45%|####5                 a piece of one: the line goes on in the next piece of rank 3
    [3]r 45%|####5\r.              one, or a piece, with a carriage return at its end, and a full stop to keep it
    [n] {"kind": "end", …}         what the node says, see `node.py`
    [w] waiting for digits-0 …     what this process and its launcher say
    [a] 2                          from here on it is attempt 2; `[a] over`: the last one is told, and the pod stays

so `kubectl logs` is readable, and the keeper makes of it the same files that a node on its own machine writes.

Any process of the container may write to this output too. So each event of the node carries a token (`k`) that this
process makes up before any rank starts. And as a node of the cluster may rotate a log away before it is read, an event
`count` says now and then how many lines were written so far, by tag.

Where ranks have failed, the pod may stay for the next attempt (`staying.py`): then this process begins anew. Where it
starts the ranks itself, it imports what they will while it waits, and forks them.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

if __name__ == "__main__":  # as `python -I -S …/worker/pod.py`, from the folder that has travelled
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from windlass.worker import forksafe, resume, staying, warm
from windlass.worker.hosted import HostedNode
from windlass.worker.likeness import Likeness
from windlass.worker.node import NODE_TAG, Node
from windlass.worker.start import ColdStart, Start, WarmStart

PIECE_BYTES = 8 << 10
"""Container runtimes cut lines at 16 KiB, and the API puts a time into the middle of a line that was cut."""
POD = "w"
"""The tag of what is neither a rank nor the node; see above."""
ATTEMPT = "a"
"""The tag of what parts one attempt from the next."""
COUNT = "count"
"""The kind of the event that says how many lines were written."""
COUNT_BYTES = 64 << 10
"""How much is written between two of them: a thousandth of what is written, and 160 in a file of a usual log."""
TOKEN_BYTES = 8
NAME_SECONDS = 600.0
"""How long the name of the first pod may take to be known: until it has an address, which may wait for an image."""
NAME_PAUSE_SECONDS = 0.2
SAY_SECONDS = 5.0
QUOTED_BYTES = 64 << 10
FLOOD_BYTES = 4 << 20
"""What may come at once."""
FLOOD_BYTES_A_SECOND = 1 << 20
STAMP_BYTES = 45
"""What a container runtime puts before each line in its file."""
PADDING = "." * 4000
"""Room for the command lines of ranks that are forked."""


class Outlet:
    """Writes tagged lines to the output of the pod, and no faster than they are surely read.

    A node of the cluster rotates the log of a container (by default at 10 MiB, which it looks for each 10 seconds), and
    whoever follows it and is two rotations behind loses what is between. So a flood waits: ranks that print more than
    some 12,000 lines a second are held up by their pipes.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.attempt = 0
        self.token = ""
        """What marks the events of this attempt's node; empty before there is one."""
        self.lines: dict[str, int] = {}
        """How many ends of lines were written, by tag: since the container began, whichever program it runs by now."""
        self._num_uncounted = 0
        """Bytes since that was last said."""
        self._room = float(FLOOD_BYTES)
        self._looked_at = time.monotonic()

    def put(self, tag: str, data: bytes) -> None:
        """Write what `tag` has said: whole lines, and a piece where the last one has no end yet."""
        if tag == NODE_TAG and self.token and data.endswith(b"}\n"):  # an event: the last field of it is ours
            data = data[:-2] + b', "k": "%s"}\n' % self.token.encode()
        out = bytearray()
        num_lines = 0
        for line in io.BytesIO(data):  # by newlines alone: what a carriage return ends goes on
            for at in range(0, len(line), PIECE_BYTES):
                piece = line[at : at + PIECE_BYTES]
                is_end = piece.endswith(b"\n")
                piece = piece[:-1] if is_end else piece
                # Container runtimes drop a carriage return at the end of a line.
                marks, guard = (b"r", b".") if piece.endswith(b"\r") else (b"", b"")
                out += b"[%s]%s%s %s%s\n" % (tag.encode(), b"" if is_end else b"+", marks, piece, guard)
                num_lines += is_end
        self._write(out)
        self.lines[tag] = self.lines.get(tag, 0) + num_lines
        self._num_uncounted += len(out)
        if self._num_uncounted >= COUNT_BYTES:
            self.count()

    def count(self) -> None:
        """Say how many lines were written before this one."""
        self._num_uncounted = 0  # first: this is written by `put` too
        event = {"kind": COUNT, "at": time.time(), "attempt": self.attempt, "lines": self.lines}
        self.put(NODE_TAG, json.dumps(event).encode() + b"\n")

    def say(self, text: str) -> None:
        """Write a line of this process's own."""
        self.put(POD, text.encode(errors="replace") + b"\n")

    def _write(self, data: bytes | bytearray) -> None:
        now = time.monotonic()
        self._room = min(FLOOD_BYTES, self._room + (now - self._looked_at) * FLOOD_BYTES_A_SECOND)
        self._looked_at = now
        self._room -= len(data) + data.count(b"\n") * STAMP_BYTES
        if self._room < 0:
            time.sleep(-self._room / FLOOD_BYTES_A_SECOND)
        left = memoryview(data)
        while left:
            left = left[os.write(self.descriptor, left) :]


def main(argv: list[str]) -> int:
    """`FOLDER NODES`: play the node of this pod, whose spec is in the file NODES; 0 if all its ranks succeeded.

    `FOLDER stay STATE`: wait for an order first; `STATE` is a descriptor of what `_become` has written. FOLDER is for
    files of the attempt; beside it is where orders come in.
    """
    outlet = Outlet(os.dup(1))
    signal.signal(signal.SIGTERM, _leave)
    try:
        folder, nodes = argv[:2]
        if nodes != "stay":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # one that came while we were not there yet
            return _play(folder, nodes, outlet, ColdStart())
        with open(int(argv[2])) as file:
            return _stay(folder, json.load(file), outlet)
    except Exception:
        outlet.say(traceback.format_exc().rstrip())
        return 1


def _leave(_number: int, _frame: object) -> None:
    """The first process of a container ignores what it does not hear."""
    raise SystemExit(128 + signal.SIGTERM)


def make_folders(env: Mapping[str, str]) -> None:
    """Make the folders of output and checkpoints. Raises OSError for that of output.

    A network file system may fail for a while to look at the folder of checkpoints: the ranks repeat that themselves,
    and name what stays.
    """
    os.makedirs(env["WINDLASS_OUTPUT_DIR"], exist_ok=True)
    try:
        os.makedirs(env["WINDLASS_CHECKPOINT_DIR"], exist_ok=True)
    except OSError as error:
        print(f"the folder of checkpoints cannot be made: {error}", file=sys.stderr, flush=True)


def _play(folder: str, nodes: str, outlet: Outlet, start: Start) -> int:
    """Play one attempt; gives the exit code, unless the pod is to stay for another one."""
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt before
    spec = _spec(folder, nodes, _place())
    outlet.attempt, outlet.token = int(spec["env"].get("WINDLASS_ATTEMPT", 0)), os.urandom(TOKEN_BYTES).hex()
    words = os.path.join(folder, f"node-{spec['node']}.out")
    with open(words, "wb", buffering=0) as file:  # what a launcher prints, and what breaks
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    make_folders(spec["env"])
    _wait_for_name(spec["env"], os.path.dirname(folder), outlet)
    for peer in spec.get("launch", {}).get("peers", ()):
        _wait_for_port(peer, spec["launch"]["port"], outlet)
    spec = _gone_on(spec)
    node = (HostedNode if "launch" in spec else Node)(spec, None, start, outlet.put)
    code = node.run()
    with open(words, "rb") as said:
        said.seek(max(0, os.fstat(said.fileno()).st_size - QUOTED_BYTES))
        outlet.put(POD, said.read())
    outlet.count()
    staying.block()
    goes_away = not staying.forget_told(os.path.dirname(folder)) and node.ended_by == "stop"
    if code and not goes_away and spec.get("stay_seconds"):
        outlet.put(ATTEMPT, b"over\n")
        _become(folder, spec, code, outlet)
    return code


def _become(folder: str, spec: dict[str, Any], code: int, outlet: Outlet) -> None:
    """Begin this process anew, with nothing of the attempt that is over, as one that stays for the next."""
    modules = [] if "launch" in spec else spec.get("warm", [])
    env = {**os.environ, **spec["env"]} if modules else dict(os.environ)
    state = {
        "code": code,
        "seconds": spec["stay_seconds"],
        "modules": modules,
        "env": dict(os.environ),
        "warm_env": env,
        "lines": outlet.lines,
    }
    file = os.memfd_create("state")
    os.write(file, json.dumps(state).encode())
    os.lseek(file, 0, os.SEEK_SET)
    os.set_inheritable(file, True)
    for descriptor in (1, 2):
        os.dup2(outlet.descriptor, descriptor)
    words = [os.path.abspath(__file__), folder, "stay", str(file)]
    # An interpreter that is to import ahead has to find what those of the ranks find, and room for their names.
    options = [*words, PADDING] if modules else ["-I", "-S", *words]
    os.execve(sys.executable, [sys.executable, *options], forksafe.lasting(env) if modules else env)


def _stay(folder: str, state: dict[str, Any], outlet: Outlet) -> int:
    """Wait for an order and play what it says; where none comes, end as the attempt before has."""
    likeness: list[Likeness] = []
    outlet.lines = state["lines"]

    def import_ahead() -> None:
        found, why_unsafe = warm.import_ahead(state["modules"])
        likeness.extend([] if why_unsafe else [found])

    base = os.path.dirname(folder)
    path = staying.wait(base, state["seconds"], import_ahead if state["modules"] else None)
    os.environ.clear()
    os.environ.update(state["env"])
    if path is None:
        return int(state["code"])
    with gzip.open(path) as file:
        number = json.load(file)["attempt"]
    nodes = os.path.join(base, f"attempt-{number}.json.gz")
    os.rename(path, nodes)
    staying.forget_told(base)
    outlet.put(ATTEMPT, b"%d\n" % number)
    signal.signal(signal.SIGTERM, _leave)
    return _play(folder, nodes, outlet, _start(likeness, nodes, state))


def _start(likeness: list[Likeness], nodes: str, state: dict[str, Any]) -> Start:
    """By forks where they are as good as new interpreters for what the attempt asks."""
    if not likeness:
        return ColdStart()
    spec = _asked(nodes, _place())
    other = forksafe.lasting({**os.environ, **spec["env"]}) != forksafe.lasting(state["warm_env"])
    if other or forksafe.why_unsafe() or forksafe.shadowed(spec["script"]):
        return ColdStart()
    return WarmStart(likeness[0])


def _place() -> str:
    """Which of the attempt's pods this one is, as its maker has said."""
    index = os.environ.get("JOB_COMPLETION_INDEX")
    if index:
        return index
    first = os.environ.get("WINDLASS_FIRST_PLACE", "0")  # an operator may count each of several kinds of pods from 0
    number = os.environ.get("WINDLASS_POD_NAME", "").rpartition("-worker-")[2]
    return str(int(first) + (int(number) if number.isdigit() else 0))


def _asked(nodes: str, place: str) -> dict[str, Any]:
    """What the node at this place of the attempt was asked for."""
    with gzip.open(nodes) as file:
        asked = json.load(file)
    spec = {**asked["common"], **asked["nodes"][place]}
    return {**spec, "env": {**asked["common"]["env"], **asked["nodes"][place]["env"]}}


def _spec(folder: str, nodes: str, place: str) -> dict[str, Any]:
    """The same, with the files of the node in `folder`."""
    spec = _asked(nodes, place)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"node-{spec['node']}")
    spec |= {"folder": folder, "path": path + ".json", "events": path + ".events"}
    if "launch" in spec:
        # What a launcher of several nodes is given is the same in each of their pods.
        spec["launch"] = {**spec["launch"], "guest_of": os.path.join(folder, "node.json")}
        os.symlink(f"node-{spec['node']}.sock", os.path.join(folder, "node.sock"))
    with open(spec["path"], "w") as file:
        json.dump(spec, file)
    return spec


def _wait_for_name(env: Mapping[str, str], base: str, outlet: Outlet) -> None:
    """Wait until the first pod's name is known, which is made when the pod has an address. Raises OSError.

    Its name goes with its end. Where it had not to meet the others and was quicker than they, nobody is waited for.
    """
    first_ended = os.path.join(base, staying.FIRST_ENDED + env["WINDLASS_ATTEMPT"])

    def look() -> None:
        if not os.path.exists(first_ended):
            socket.getaddrinfo(env["MASTER_ADDR"], None)

    _wait(look, f"the name {env['MASTER_ADDR']}", "is not known", outlet)


def _wait_for_port(name: str, port: int, outlet: Outlet) -> None:
    """Wait until another pod lets the launcher of this one in. Raises OSError."""

    def look() -> None:
        socket.create_connection((name, port), SAY_SECONDS).close()

    _wait(look, f"port {port} of {name}", "is closed", outlet)


def _wait(look: Callable[[], object], what: str, trouble: str, outlet: Outlet) -> None:
    """Wait until `look` raises no OSError any more, and say so; raises OSError when it is too late."""
    begun = said = time.monotonic()
    while True:
        try:
            look()
            return
        except OSError as error:
            now = time.monotonic()
            if now - begun > NAME_SECONDS:
                raise OSError(f"{what} {trouble} after {NAME_SECONDS:.0f} s: {error.strerror}") from error
            if now - said > SAY_SECONDS:
                said = now
                outlet.say(f"waiting for {what}, {now - begun:.0f} s by now: {error.strerror}")
        time.sleep(NAME_PAUSE_SECONDS)


def _gone_on(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec with what makes a script go on that saves for itself: found by each pod, in the folder all share."""
    changed, found = resume.go_on([spec], spec.get("since", 0.0), int(spec["env"].get("WINDLASS_ATTEMPT", 1)))
    is_first = spec["ranks"][0]["rank"] == 0
    return {**changed[0], "found": found if is_first else []}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
