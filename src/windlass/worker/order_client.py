"""Order client of a pod: connects to the run's supervisor, executes its requests, and sends it the node's events.

The order client is a separate process, because a node process must not have threads. `pod.py` starts it, and it ends
with the main process of the pod.

    WINDLASS_SUPERVISOR=HOST:PORT python -I -S order_client.py FOLDER POD ATTEMPT

FOLDER is the folder of `pod_reuse.py`; POD is the pod's name and ATTEMPT the attempt for which the pod was created. The
host name may not resolve at first, and resolves to another address after the supervisor's pod is replaced.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator

if __name__ == "__main__":  # runs as a script, like `pod.py`
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from windlass.worker import order_protocol as protocol
from windlass.worker import pod_reuse
from windlass.worker.event_feed import FeedReader, open_wake

ADDRESS, KEY_FILE = "WINDLASS_SUPERVISOR", "WINDLASS_KEY_FILE"
"""Environment variables for the address of the supervisor (HOST:PORT) and for the file with the run's key."""
DEFAULT_KEY_FILE = "/windlass/key/key"
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 5.0
"""First and longest pause between two attempts to connect, in seconds."""
RECEIVE_BYTES = 64 << 10
MIN_PRINTED_SECONDS, MAX_PRINTED_SECONDS = 0.2, 60.0
"""Minimum and maximum seconds between two reports of how many bytes the ranks have printed."""
FAILED = 1
"""Exit code of a request that raised an error."""
KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
"""TCP keepalive options that detect a peer on a dead node after 30 s."""


class Connection:
    """Connection to the supervisor. Methods raise OSError; they raise ProtocolError if the peer is not the
    supervisor.
    """

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        self._lines = protocol.Lines()
        self._received: Iterator[bytes] = iter(())
        self._feed: FeedReader | None = None
        """Event feed of the attempt that the supervisor has requested."""
        self._is_announced = False
        """Whether a message about the current feed was sent."""
        self._printed_seconds = MAX_PRINTED_SECONDS
        self._printed_at = float("-inf")
        """Monotonic seconds at which the printed bytes were last reported."""

    def authenticate(self, key: bytes, pod: str, attempt: int, role: str = protocol.POD) -> None:
        """Proves to the supervisor that this pod has the run's key, and verifies that the supervisor has it too."""
        self._socket.settimeout(protocol.HANDSHAKE_SECONDS)
        own = protocol.new_nonce()
        more = {} if role == protocol.POD else {"role": role}
        self._send(version=protocol.VERSION, pod=pod, attempt=attempt, nonce=own, **more)
        answer = self.receive()
        nonces = (own, protocol.text(answer, "nonce"))
        expected = protocol.proof(key, protocol.SUPERVISOR, pod, attempt, nonces)
        if not protocol.is_equal(protocol.text(answer, "proof"), expected):
            raise protocol.ProtocolError("the peer does not know the run's key")
        self._send(proof=protocol.proof(key, role, pod, attempt, nonces))

    def serve(self, folder: str, pid: int, wake: int | None) -> None:
        """Executes requests, one at a time, and sends events, until the connection is lost.

        `wake` is the descriptor of the feed's FIFO. Returns when the pod ends and all events were sent.
        """
        self._socket.settimeout(None)
        self._lines.limit = protocol.REQUEST_BYTES
        source, poll = self._socket.fileno(), select.poll()
        for one in (source,) if wake is None else (source, wake):
            poll.register(one, select.POLLIN)
        try:
            while True:
                for line in self._received:
                    self._take(protocol.read(line), folder, pid)
                if self._feed is not None and self._send_feed(self._feed):
                    return
                ready = [one for one, _ in poll.poll(1000 * self._until_due())]
                if wake is not None and wake in ready:
                    os.read(wake, RECEIVE_BYTES)
                if source in ready:
                    self._fill()
        finally:
            if self._feed is not None:
                self._feed.close()

    def _take(self, message: dict[str, object], folder: str, pid: int) -> None:
        if "from" in message:
            if self._feed is not None:
                self._feed.close()
            self._feed = FeedReader(folder, protocol.number(message, "attempt"), protocol.number(message, "from"))
            self._is_announced = False
            every = protocol.number(message, "every") / 1000
            self._printed_seconds = min(max(every, MIN_PRINTED_SECONDS), MAX_PRINTED_SECONDS)
            return
        number, words = protocol.number(message, "id"), message.get("request")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise protocol.ProtocolError("request: expected a list of strings")
        try:
            code = pod_reuse.carry_out(folder, words, pid)
        except Exception:
            code = FAILED
        self._send(id=number, code=code)

    def _until_due(self) -> float:
        """Returns the maximum seconds to wait for events. After a quiet period, the next output is reported at once."""
        left = self._printed_at + self._printed_seconds - time.monotonic()
        return left if left > 0 else self._printed_seconds

    def _send_feed(self, feed: FeedReader) -> bool:
        """Sends new events of the feed. Returns whether the pod has ended and all events were sent."""
        if not feed.exists():
            return False
        while True:
            begin, data = feed.offset, feed.read()
            # sent even without events: the supervisor then need not read the pod's log
            if data or not self._is_announced:
                events = data.decode("latin-1")
                self._send(**{"attempt": feed.attempt, "from": begin, "token": feed.token, "events": events})
                self._is_announced = True
            if not data:
                break
        now = time.monotonic()
        if now - self._printed_at >= self._printed_seconds or feed.has_end:
            printed = feed.printed()
            if printed:
                self._send(attempt=feed.attempt, printed=printed)
                self._printed_at = now
        return feed.has_end

    def _send(self, **message: object) -> None:
        self._socket.sendall(protocol.written(**message))

    def receive(self) -> dict[str, object]:
        """Returns the next message of the supervisor."""
        while (line := next(self._received, None)) is None:
            self._fill()
        return protocol.read(line)

    def _fill(self) -> None:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the supervisor has closed the connection")
        self._received = self._lines.feed(data)


def connect(address: str) -> socket.socket:
    """Connects to HOST:PORT. Resolves the name anew in each call. Raises OSError, ValueError."""
    host, _, port = address.rpartition(":")
    # Bytes, because Python would import the IDNA codec for a string.
    where = host.strip("[]").encode(), int(port)
    found = socket.create_connection(where, protocol.HANDSHAKE_SECONDS)  # type: ignore[arg-type]
    keep_alive(found)
    return found


def keep_alive(connection: socket.socket) -> None:
    """Enables keepalive, so that the kernel closes a connection whose peer no longer responds. Raises OSError."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def run(folder: str, pod: str, attempt: int, pid: int) -> None:
    """Executes the supervisor's requests until the pod ends; `pid` is the main process of the pod."""
    pause, wake = PAUSE_SECONDS, open_wake(folder)
    while True:
        try:
            key = protocol.read_key(os.environ.get(KEY_FILE, DEFAULT_KEY_FILE))
            with connect(os.environ[ADDRESS]) as found:
                connection = Connection(found)
                connection.authenticate(key, pod, attempt)
                pause = PAUSE_SECONDS
                connection.serve(folder, pid, wake)
                return
        except (OSError, ValueError):
            # The supervisor is not running yet, or is being replaced.
            pass
        # The pause is random, because 1,000 pods may lose their supervisor at the same moment.
        time.sleep(pause * (0.5 + os.urandom(1)[0] / 512))
        pause = min(MAX_PAUSE_SECONDS, 2 * pause)


def main(argv: list[str]) -> None:
    """Runs the order client with the arguments `FOLDER POD ATTEMPT`."""
    folder, pod, attempt = argv
    # Stop signals are ignored, because requests may arrive while ranks save a last checkpoint.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the processes that send outputs
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    run(folder, pod, int(attempt), os.getppid())


if __name__ == "__main__":
    main(sys.argv[1:])
