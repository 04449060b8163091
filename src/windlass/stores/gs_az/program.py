"""Program that accesses gs and az stores for a training script, because obstore does not survive a fork.

`python -I program.py SETTINGS_JSON`, with a socket as standard input. Each descriptor received on the socket is a
connection, and one thread answers its requests in order. The process ends when the socket closes. Python 3.9.

A request is a kind of store, a bucket, the name of a method of `ObstoreStore` and its arguments. `begin`, then one
`piece` per chunk, then `end` write an object, which does not exist before `end`. The response is the method's return
value or its StoreError. Both are pickled: the two processes belong to one user.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from functools import cache
from multiprocessing import reduction
from multiprocessing.connection import Connection as Pipe
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)))

from windlass.stores.errors import Denied, StoreError
from windlass.stores.gs_az import INSTALL
from windlass.stores.gs_az.store import ObstoreStore, Writer

_store = cache(ObstoreStore)


class Connection:
    """One connection, served by one thread."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._writer: Writer | None = None

    def serve(self) -> None:
        """Answers requests until the peer closes the connection."""
        with suppress(OSError, EOFError), self._pipe:
            while True:
                self._pipe.send(self._answer(*self._pipe.recv()))

    def _answer(self, kind: str, bucket: str, do: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return self._done(_store(kind, bucket), do, arguments)
        except ImportError:
            words = f"it is reached by obstore, which {sys.executable} lacks"
            return Denied(words, f"{kind}://{bucket}", INSTALL)
        except StoreError as error:
            self._writer = None
            return error

    def _done(self, store: ObstoreStore, do: str, arguments: tuple[Any, ...]) -> Any:
        if do == "begin":
            self._writer = store.writer(*arguments)
            return None
        if do == "listed":
            return list(store.listed(*arguments))
        if do not in ("piece", "end"):
            return getattr(store, do)(*arguments)
        if self._writer is None:
            raise StoreError("no object was begun", store.address)
        if do == "piece":
            return self._writer.write(*arguments)
        writer, self._writer = self._writer, None
        return writer.close()


def main() -> None:
    """Accepts connections until standard input ends."""
    # Signals to the process group are for the script. This process ends when the script closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.path[:] = json.loads(sys.argv[1])["path"]  # with the script's path, the script's obstore is imported
    control = Pipe(os.dup(0))
    while True:
        try:
            served = Connection(Pipe(reduction.recv_handle(control)))
        except EOFError:
            os._exit(0)  # no process waits for the results of requests in progress
        threading.Thread(target=served.serve, daemon=True).start()


if __name__ == "__main__":
    main()
