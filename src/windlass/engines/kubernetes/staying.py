"""Plays the next attempt of a run in the pods of the one before, where they have stayed for it (`worker/staying.py`).

It saves what takes seconds: a new object, the scheduler, containers, the code's way into them. Whether pods stay, they
alone know; where not every one of them takes its order, the caller makes new ones and deletes all of these.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from windlass.engines.kubernetes import layout, streams
from windlass.engines.kubernetes.client import Client, Refused
from windlass.engines.kubernetes.pods import Pod, by_place
from windlass.engines.kubernetes.seeing import container_state
from windlass.errors import EngineError
from windlass.worker import staying

SECONDS: Final = 60.0
"""How long pods stay: longer than a keeper needs, and no longer than anybody wants to pay for pods that do nothing."""
MAX_ORDER_BYTES: Final = 16 << 10
"""An order travels in a command line, through servers that bound the length of an address."""
ANSWER_SECONDS: Final = staying.STILL_ENDING_SECONDS + 5.0
SENDERS: Final = 32
FORBIDDEN: Final = 403
SIGNALLING: Final = f"""
import os, sys
folder, attempt, number = sys.argv[1], *map(int, sys.argv[2:])
orders = [name[8:-8] for name in os.listdir(folder) if name.startswith("attempt-")]
if "{staying.NEXT}" not in os.listdir(folder) and all(int(order) <= attempt for order in orders):
    open(os.path.join(folder, "{staying.TOLD}"), "w").close()
    os.kill(1, number)
"""
"""Needs nothing of ours in the pod, which may not have come so far."""
_STAYS: Final = f"""
import os, sys, time
give_up = time.monotonic() + {staying.STILL_ENDING_SECONDS}
while not os.path.exists(sys.argv[1]):
    if time.monotonic() > give_up:
        sys.exit({staying.NOT_HEARD})
    time.sleep({staying.PAUSE_SECONDS})
"""
_PROGRAM: Final = f"{layout.TRAVEL}/windlass/worker/staying.py"
_FILE: Final = "made-for"


def made_for(folder: Path, number: int) -> int:
    """The attempt for which the pods were made that play attempt `number`, whose folder is given."""
    try:
        return int((folder / _FILE).read_text())
    except (OSError, ValueError):
        return number


def is_ordered(folder: Path) -> bool:
    """Whether the pods of an earlier attempt were to play the attempt with this folder."""
    return (folder / _FILE).exists()


def keep_made_for(folder: Path, made: int) -> None:
    """Note for which attempt the pods were made. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / _FILE).write_text(str(made))


def forget_made_for(folder: Path) -> None:
    """The attempt gets pods of its own."""
    (folder / _FILE).unlink(missing_ok=True)


def signalling(python: str, number: signal.Signals, attempt: int) -> list[str]:
    """The command that signals the first process of a pod, and leaves word that it was not the machine that did.

    One that comes late is not to hit the attempt that follows.
    """
    return [python, "-c", SIGNALLING, layout.WORK, str(attempt), str(int(number))]


def without_first(python: str, attempt: int) -> list[str]:
    """The command that tells a pod that the first one of an attempt has done its part."""
    return [python, "-c", "import sys; open(sys.argv[1], 'w').close()", f"{layout.WORK}/{staying.FIRST_ENDED}{attempt}"]


def stays(client: Client, pod: Pod, python: str) -> bool | None:
    """Whether a pod has ended its attempt and stays for another, as it shows itself; None where it cannot be asked.

    Its log says so too, but any process in it can write there. Raises no error.
    """
    words = [python, "-c", _STAYS, f"{layout.WORK}/{staying.STAYS}"]
    try:
        code, _, _ = streams.call(client, pod["metadata"]["name"], layout.container_of(pod), words, ANSWER_SECONDS)
    except Refused as error:
        return True if error.status == FORBIDDEN else None  # what may not be asked is believed
    except EngineError:
        return None
    return {staying.HEARD: True, staying.NOT_HEARD: False}.get(code)


def order(client: Client, run_id: str, made: int, python: str, specs: bytes) -> bool:
    """Have the pods play an attempt, each its node; gives whether all of them do. Raises EngineError."""
    orders = _orders(specs)
    pods = _running(client, run_id, made)
    if pods.keys() != orders.keys() or max(map(len, orders.values())) > MAX_ORDER_BYTES:
        return False

    def send(place: int) -> bool:
        return _call(client, pods[place], [python, "-I", "-S", _PROGRAM, layout.WORK, "order", orders[place]])

    with ThreadPoolExecutor(SENDERS) as pool:
        return all(list(pool.map(send, orders)))


def release(client: Client, run_id: str, made: int, python: str) -> None:
    """End pods that stay though no other attempt follows; where they cannot be told, their time ends them."""
    with contextlib.suppress(EngineError), ThreadPoolExecutor(SENDERS) as pool:
        pods = _running(client, run_id, made).values()
        words = [python, "-I", "-S", _PROGRAM, layout.WORK, "leave"]
        list(pool.map(lambda pod: _call(client, pod, words), pods))


def _orders(specs: bytes) -> Mapping[int, str]:
    """For each place, what its pod is told: its own node alone."""
    whole = json.loads(gzip.decompress(specs))
    return {
        int(place): base64.b64encode(gzip.compress(json.dumps({**whole, "nodes": {place: node}}).encode())).decode()
        for place, node in whole["nodes"].items()
    }


def _running(client: Client, run_id: str, made: int) -> Mapping[int, Pod]:
    selector = f"{layout.selector(run_id)},{layout.ATTEMPT_LABEL}={made}"
    pods = by_place(client.find("v1", "Pod", selector)["items"])
    return {place: pod for place, pod in pods.items() if _is_well(pod)}


def _is_well(pod: Pod) -> bool:
    return container_state(pod)[0] == "running" and "deletionTimestamp" not in pod["metadata"]


def _call(client: Client, pod: Mapping[str, Any], words: Sequence[str]) -> bool:
    """Whether the program in the pod took it."""
    try:
        code, _, _ = streams.call(
            client, pod["metadata"]["name"], layout.container_of(pod), list(words), ANSWER_SECONDS
        )
    except EngineError:
        return False
    return code == staying.HEARD
