"""The process that reads and writes stores for a training script: obstore does not survive the forks of one.

`python -I program.py SETTINGS_JSON`, with a socket as standard input: each descriptor that comes by it is a connection,
on which a thread answers requests one after the other. The process ends with the socket. Python 3.9.

A message is a header in JSON and a payload. Each request has a `store`, which is a kind and a bucket, and a `key`.

| request | payload | answer, payload |
|---|---|---|
| `list`: delimiter; the key is a prefix | | messages of `objects` and `prefixes`, all but the last with `more` |
| `head` | | `object` |
| `read`: start, length, version; all of it without a length | | `object`, its bytes |
| `put`; only where there is none | content | |
| `begin`, then each `piece`, then `end` | a piece | |
| `remove` | | |

A file that was begun and not ended is not there. What fails is answered by `failure`: kind, words and hint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from multiprocessing import reduction
from multiprocessing.connection import Connection as Pipe
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)))

from windlass.stores.gs_az import INSTALL
from windlass.stores.gs_az.failure import Failure, Kind, failure_of
from windlass.stores.gs_az.opening import ONCE, PATIENT, open_store, version_of

LIST_BATCH = 1000
PART_BYTES = 16 << 20
AT_ONCE = 4
"""Parts of one file."""


def send(to: Pipe, header: dict[str, Any], payload: Any = b"") -> None:
    """Raises OSError."""
    to.send_bytes(json.dumps(header).encode())
    to.send_bytes(payload)


def receive(source: Pipe) -> tuple[dict[str, Any], bytes]:
    """A header and its payload. Raises EOFError where the other process has ended, OSError."""
    return json.loads(source.recv_bytes()), source.recv_bytes()


@cache
def _store(kind: str, bucket: str, is_patient: bool) -> Any:
    return open_store(kind, bucket, PATIENT if is_patient else ONCE)


class Connection:
    """Answers the requests of one thread."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._writer: Any = None

    def serve(self) -> None:
        """Until the other end closes."""
        with suppress(OSError, EOFError), self._pipe:
            while True:
                asked, payload = receive(self._pipe)
                for header, data in self._answers(asked, payload):
                    send(self._pipe, header, data)

    def _answers(self, asked: dict[str, Any], payload: bytes) -> Iterator[tuple[dict[str, Any], Any]]:
        kind, bucket = asked["store"]
        try:
            yield from getattr(self, f"_{asked['do']}")(asked, payload)
            return
        except ImportError:
            found = Failure(Kind.DENIED, f"it is reached by obstore, which {sys.executable} lacks", INSTALL)
        except Exception as error:
            self._writer = None
            found = failure_of(error, kind, bucket)
        yield {"failure": [found.kind.value, found.words, found.hint]}, b""

    def _list(self, asked: dict[str, Any], _: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        import obstore

        store, prefix = _store(*asked["store"], True), asked["key"]
        if asked["delimiter"]:
            found: Any = obstore.list_with_delimiter(store, prefix.rstrip("/") or None)
            prefixes = [f"{one}/" for one in found["common_prefixes"]]
            yield {"objects": _rows(found["objects"], prefix), "prefixes": prefixes}, b""
            return
        for batch in obstore.list(store, prefix.rstrip("/") or None, chunk_size=LIST_BATCH):
            yield {"objects": _rows(batch, prefix), "prefixes": [], "more": True}, b""
        yield {"objects": [], "prefixes": []}, b""

    def _head(self, asked: dict[str, Any], _: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        import obstore

        yield {"object": _row(obstore.head(_store(*asked["store"], False), asked["key"]))}, b""

    def _read(self, asked: dict[str, Any], _: bytes) -> Iterator[tuple[dict[str, Any], Any]]:
        import obstore

        options: Any = {"if_match": asked["version"]} if asked["version"].startswith('"') else {}
        if asked["length"] is not None:
            options["range"] = (asked["start"], asked["start"] + asked["length"])
        answer = obstore.get(_store(*asked["store"], False), asked["key"], options=options)
        about = _row(answer.meta)
        yield {"object": about}, memoryview(answer.bytes())

    def _put(self, asked: dict[str, Any], payload: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        import obstore

        store = _store(*asked["store"], False)
        obstore.put(store, asked["key"], payload, mode="create", use_multipart=False)
        yield {}, b""

    def _begin(self, asked: dict[str, Any], _: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        import obstore

        store = _store(*asked["store"], True)
        self._writer = obstore.open_writer(store, asked["key"], buffer_size=PART_BYTES, max_concurrency=AT_ONCE)
        yield {}, b""

    def _piece(self, _: dict[str, Any], payload: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        self._writer.write(payload)
        yield {}, b""

    def _end(self, _: dict[str, Any], __: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        self._writer.close()
        self._writer = None
        yield {}, b""

    def _remove(self, asked: dict[str, Any], _: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        import obstore

        with suppress(FileNotFoundError):
            obstore.delete(_store(*asked["store"], False), asked["key"])
        yield {}, b""


def _rows(found: Any, prefix: str) -> list[list[Any]]:
    return [_row(one) for one in found if one["path"].startswith(prefix)]


def _row(about: Any) -> list[Any]:
    """Key, size, version and time of an object."""
    changed = about["last_modified"]
    return [about["path"], about["size"], version_of(about), changed.timestamp() if changed else 0.0]


def main() -> None:
    """Serve until standard input ends."""
    # The script has its signals; this process ends with it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.path[:] = json.loads(sys.argv[1])["path"]  # obstore is where the script would find it
    control = Pipe(os.dup(0))
    while True:
        try:
            served = Connection(Pipe(reduction.recv_handle(control)))
        except EOFError:
            os._exit(0)  # what is under way is for a process that is gone
        threading.Thread(target=served.serve, daemon=True).start()


if __name__ == "__main__":
    main()
