"""Program of a pod that stages data sets, uploads outputs or checks a destination, by the standard library alone.

`WINDLASS_TRANSFER` is one of

    {"kind": "stage", "root": FOLDER, "sets": [{"name": NAME, "source": ADDRESS, "link": PATH or none}]}
    {"kind": "upload", "state": FOLDER, "name": NAME, "source": FOLDER, "destination": ADDRESS}
    {"kind": "check", "destination": ADDRESS, "pause_seconds": NUMBER}
    {"kind": "list", "root": FOLDER, "namespace": NAME}
    {"kind": "remove", "root": FOLDER, "namespace": NAME, "which": SOURCE | DIGEST, "gone": [RUN]}

All paths are paths in the pod. A check asks a refusing store once more after a pause. `state` is a folder of the volume
with the state of uploads, which the next pod resumes. `gone` are runs of the namespace that no longer exist; see
`volume.py`. The lines on standard output are those of `staging.py` and `upload.py`. The outcome is also written to the
file that `WINDLASS_TRANSFER_RESULT` names, in at most `RESULT_BYTES`: `{"results": [LINE]}` or `{"error": …, "hint":
…}`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from windlass.errors import MissingExtra, UsageError, WindlassError
from windlass.storage import child, volume
from windlass.storage.cache import DataCache
from windlass.storage.place import Throttled
from windlass.storage.reach import refusal
from windlass.storage.staging import staged
from windlass.storage.upload import uploaded

REFUSED: Final = 64
"""Exit code for a Windlass error that a retry in another pod would not fix."""
INTERRUPTED: Final = os.EX_TEMPFAIL
"""Exit code if the store was busy or did not answer. The Job then creates another pod after its back-off."""
TERMINATED: Final = 128 + signal.SIGTERM
RESULT_FILE: Final = "/dev/termination-log"
RESULT_BYTES: Final = 4096
"""Maximum size of the termination message that the kubelet keeps."""
NAMED: Final = 5
"""Maximum number of refused files that the outcome lists by name."""
NAME_BYTES: Final = 300
ERROR_BYTES, HINT_BYTES = 2800, 1000
UMASK: Final = 0o002
"""Umask of the program. Pods with the same `fsGroup` and any user id write to the volume, and all may read. Files are
protected by the permission to mount the volume, not by their modes."""
Line: TypeAlias = Mapping[str, Any]


def main(environ: Mapping[str, str] | None = None) -> int:
    """Performs the transfer described by the environment. Returns the exit code."""
    environ = os.environ if environ is None else environ
    # As process 1 of a container, this program would ignore SIGTERM without a handler. Another pod resumes the
    # transfer.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))
    os.umask(UMASK)
    results: list[Line] = []

    def work() -> None:
        for line in transfer(environ.get("WINDLASS_TRANSFER", "")):
            child.say(line)
            results.append(line)

    error = child.attempted(work)
    if isinstance(error, MissingExtra):
        error = UsageError(
            f"{error.message.partition(' needs ')[0]} is reached by obstore, which this image lacks",
            f"{error.hint} in it, or name one that has it: supervisor_image: of the target",
        )
    if error is not None:
        child.say({"error": error.message, "hint": error.hint})
    outcome = bounded_results(results) if error is None else bounded_error(error)
    try:
        Path(environ.get("WINDLASS_TRANSFER_RESULT") or RESULT_FILE).write_bytes(outcome)
    except OSError as problem:  # the printed result lines contain the outcome too
        print(f"the outcome cannot be written: {problem}", file=sys.stderr)
    return 0 if error is None else INTERRUPTED if isinstance(error, Throttled) else REFUSED


def transfer(text: str) -> Iterator[Line]:
    """Performs a transfer and yields one line per part. Raises StorageError, UsageError, MissingExtra."""
    try:
        asked = json.loads(text)
        work = KINDS[asked["kind"]](asked)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"WINDLASS_TRANSFER is no transfer that this version knows: {error!r}") from error
    yield from work()


Work: TypeAlias = Callable[[], Iterable[Line]]


def _stage(asked: Any) -> Work:
    root, sets = Path(asked["root"]), [(one["name"], one["source"], one.get("link", "")) for one in asked["sets"]]
    return lambda: staged(DataCache(root, None), sets)


def _upload(asked: Any) -> Work:
    words = [str(asked[name]) for name in ("state", "name", "source", "destination")]
    return lambda: [uploaded(*words)]


def _check(asked: Any) -> Work:
    where, pause = str(asked["destination"]), float(asked["pause_seconds"])

    def ask() -> Iterator[Line]:
        if refusal(where, Path(os.sep)) is not None:
            time.sleep(pause)
            if (refused := refusal(where, Path(os.sep))) is not None:
                raise refused
        yield {"checked": where}

    return ask


def _list(asked: Any) -> Work:
    root, namespace = Path(asked["root"]), str(asked["namespace"])
    return lambda: [
        {
            "sets": [volume.described(one) for one in DataCache(root, None).sets()],
            "runs": volume.linked_runs(root, namespace),
        }
    ]


def _remove(asked: Any) -> Work:
    root, which = Path(asked["root"]), str(asked["which"])
    readers = partial(volume.readers, root, str(asked["namespace"]), frozenset(asked["gone"]))
    return lambda: [{"removed": volume.described(DataCache(root, None).remove(which, readers))}]


KINDS: Final = {"stage": _stage, "upload": _upload, "check": _check, "list": _list, "remove": _remove}


def bounded_results(results: Sequence[Line]) -> bytes:
    """Returns the lines as an outcome of at most `RESULT_BYTES`. Only some refused files are listed; `num_refused`
    counts all.

    If the outcome is still too large, the last lines are omitted and `left_out` counts them.
    """
    for num_named in range(NAMED, -1, -1):
        found = [_shortened(line, num_named) for line in results]
        if len(data := _encoded({"results": found})) <= RESULT_BYTES:
            return data
    while len(data := _encoded({"results": found, "left_out": len(results) - len(found)})) > RESULT_BYTES:
        found.pop()
    return data


def _shortened(line: Line, num_named: int) -> Line:
    if "refused" not in line:
        return line
    refused = line["refused"]
    return {**line, "refused": [_cut(one, NAME_BYTES) for one in refused[:num_named]], "num_refused": len(refused)}


def bounded_error(error: WindlassError) -> bytes:
    """Returns an error as an outcome of at most `RESULT_BYTES`."""
    return _encoded({"error": _cut(error.message, ERROR_BYTES), "hint": _cut(error.hint, HINT_BYTES)})


def _cut(text: str, num_bytes: int) -> str:
    """Truncates a text to this number of bytes in JSON."""
    while len(json.dumps(text)) > num_bytes:
        text = f"{text[: len(text) * 7 // 8 - 1]}…"
    return text


def _encoded(outcome: Mapping[str, Any]) -> bytes:
    return json.dumps(outcome).encode()


if __name__ == "__main__":
    sys.exit(main())
