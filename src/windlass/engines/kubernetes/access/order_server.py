"""Sends requests to pods and receives their events, over the connections that their order clients keep open.

One thread in the supervisor's pod serves all connections. `worker/order_protocol.py` defines the messages.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.objects import layout
from windlass.worker import order_protocol as protocol
from windlass.worker.order_client import keep_alive

MAX_UNAUTHENTICATED: Final = 64
"""Most unauthenticated connections. At the limit, the server closes a connection of the address with the most, or
accepts no more."""
MAX_OF_AN_ADDRESS: Final = 8
"""Unauthenticated connections of one address that the server never closes to admit others, since several pods may share
a proxy's address."""
BACKLOG: Final = 1024
RESERVED_FILES: Final = 64
"""File descriptors that are not used for connections of pods. Logs of pods without a connection are read from time to
time."""
RECEIVE_BYTES: Final = 64 << 10
ACCEPT_PAUSE_SECONDS: Final = 1.0
"""Pause in seconds after an error of `accept`, such as too many open files."""


MAX_PRINTED: Final = 1 << 53
"""Largest valid number of bytes printed by a rank."""


Answers = SimpleQueue[tuple[int, int | None]]


class EventSink(Protocol):
    """Receiver of the events of one attempt of a pod. Its methods are called in the server's thread, and must not
    block.
    """

    @property
    def attempt(self) -> int:
        """Number of the attempt."""

    @property
    def offset(self) -> int:
        """Number of bytes of events received so far."""

    @property
    def printed_seconds(self) -> float:
        """Seconds between two reports on how much ranks have printed."""

    def take(self, token: str, events: bytes) -> None:
        """Receives events that start at `offset`; `events` may be empty. After an OSError or ProtocolError, the pod
        sends the events again.
        """

    def take_printed(self, sizes: Mapping[int, int]) -> None:
        """Receives the number of bytes that each rank has printed. Raises OSError."""

    def disconnected(self) -> None:
        """Reports that the connection was lost."""


class Call:
    """A pending request to a pod. If its connection is lost, the request is sent again."""

    def __init__(self, number: int, pod: str, words: Sequence[str], answers: Answers) -> None:
        """`answers` receives `number` with the exit code, or with None if no answer will arrive."""
        self.number, self.pod, self.words = number, pod, words
        self._answers = answers

    def end(self, code: int | None) -> None:
        """Completes the request with an exit code, or with None if no answer will arrive."""
        self._answers.put((self.number, code))


class _Peer:
    """One connection, which belongs to a pod once it is authenticated."""

    def __init__(self, connection: socket.socket, address: str, deadline: float) -> None:
        self.socket = connection
        self.address = address
        self.deadline = deadline
        self.lines = protocol.Lines()
        self.out = bytearray()
        self.pod = ""
        """Name of the pod, as the peer claims; empty before the peer has sent it."""
        self.expected = ""
        """Proof that the peer must send; empty before the peer has sent its name."""
        self.role = protocol.POD
        """Role that the peer claims; `OUTPUTS` for a connection over which a pod sends its outputs."""
        self.is_authenticated = False
        """Whether the peer has sent the correct proof."""
        self.calls: dict[int, Call] = {}
        """Requests that were sent and have no answer yet, by number."""


class OrderServer:
    """Server for requests to pods. One thread owns all connections; the public methods may be called in any thread."""

    def __init__(
        self,
        key: bytes,
        address: tuple[str, int],
        handshake_seconds: float = protocol.HANDSHAKE_SECONDS,
        crashed: Callable[[str, Exception], None] = lambda what, error: None,
    ) -> None:
        """Listens at `address` for pods that have `key`; `crashed` records an internal error. Raises OSError."""
        self._key = key
        self._handshake_seconds = handshake_seconds
        self._crashed = crashed
        self._numbers = itertools.count(1)
        self._peers: dict[str, _Peer] = {}
        """Authenticated connections, by pod."""
        self._unauthenticated: dict[_Peer, None] = {}
        """Connections without a proof yet, oldest first."""
        self._waiting: dict[str, list[Call]] = {}
        """Requests to pods that are not connected, by pod."""
        self._accept_at: float | None = 0.0
        """Time at which to accept connections again; None while accepting is not paused."""
        self._sinks: dict[str, EventSink] = {}
        """Receivers of events, by pod."""
        self._tasks: deque[Callable[[], object]] = deque()
        """Functions that other threads submitted, to be called in the server's thread."""
        self._outputs: dict[str, Callable[[socket.socket], None]] = {}
        """Receivers of connections for outputs, by pod."""
        self._is_open = True
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(
            address, family=family, backlog=BACKLOG, dualstack_ipv6=address[0] == "::" and socket.has_dualstack_ipv6()
        )
        self._listener.setblocking(False)
        self._wake_source, self._wake_target = socket.socketpair()
        self._wake_source.setblocking(False)
        self._wake_target.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_source, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return int(self._listener.getsockname()[1])

    @property
    def pods(self) -> tuple[str, ...]:
        """Names of the connected pods."""
        return tuple(self._peers)

    def call_all(
        self, requests: Sequence[tuple[str, Sequence[str]]], seconds: float
    ) -> Iterator[tuple[int, int | Unreachable]]:
        """Sends requests to pods; yields the number of each request with its exit code, or with an error, as answers
        arrive.

        `seconds` is the time limit of each request, and includes the time until its pod connects. A pod may carry out a
        request more than once, and also after the limit.
        """
        answers: Answers = SimpleQueue()
        calls = {at: Call(at, pod, words, answers) for at, (pod, words) in enumerate(requests)}
        self._submit(lambda: self._begin(*calls.values()))
        give_up = time.monotonic() + seconds
        with contextlib.suppress(Empty):
            while calls and self._is_open:
                number, code = answers.get(timeout=max(0.0, give_up - time.monotonic()))
                if code is not None:
                    del calls[number]
                    yield number, code
        left = list(calls.values())
        self._submit(lambda: self._abandon(*left))
        for call in left:
            yield call.number, self._unreachable(call.pod, seconds)

    def _unreachable(self, pod: str, seconds: float) -> Unreachable:
        if not self._is_open:
            return Unreachable(f"pod {pod} is not connected to the supervisor", "the supervisor is being shut down")
        problem = f"pod {pod} did not answer" if pod in self._peers else f"pod {pod} is not connected to the supervisor"
        return Unreachable(f"{problem} within {seconds:g} s", "is its node healthy?")

    def subscribe(self, pod: str, sink: EventSink) -> None:
        """Requests the events of the sink's attempt from a pod whenever it is connected; replaces the previous sink."""
        self._submit(lambda: self._subscribe(pod, sink))

    def unsubscribe(self, pod: str, sink: EventSink) -> None:
        """Stops passing events to the sink, unless another one has replaced it."""
        self._submit(lambda: self._sinks.pop(pod) if self._sinks.get(pod) is sink else None)

    def expect_outputs(self, pod: str, take: Callable[[socket.socket], None]) -> None:
        """Passes the next connection over which this pod sends its outputs to `take`, which must not block.

        `take` owns the connection and must close it. Further connections for outputs are refused.
        """
        self._submit(lambda: self._outputs.__setitem__(pod, take))

    def refuse_outputs(self, pod: str) -> None:
        """Refuses further outputs of this pod."""
        self._submit(lambda: self._outputs.pop(pod, None))

    def close(self) -> None:
        """Closes all connections; pending requests fail."""
        if self._is_open:
            self._is_open = False
            self._wake()
            self._thread.join()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _submit(self, task: Callable[[], object]) -> None:
        self._tasks.append(task)
        self._wake()

    def _wake(self) -> None:
        # If the socket is full, the thread will wake up anyway; if it is closed, the thread has ended.
        with contextlib.suppress(OSError):
            self._wake_target.send(b"\0")

    def _run(self) -> None:
        try:
            while self._is_open:
                self._turn()
        finally:
            self._is_open = False
            for peer in [*self._peers.values(), *self._unauthenticated]:
                self._drop(peer)
            self._listener.close()
            self._selector.close()
            self._wake_source.close()
            self._wake_target.close()
            for call in itertools.chain(*self._waiting.values()):
                call.end(None)

    def _turn(self) -> None:
        self._pause_or_accept()
        for key, events in self._selector.select(self._due_seconds()):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._wake_source.recv(4096)
            elif key.data == "accept":
                self._accept()
            else:
                self._transfer(key.data, events)
        while self._tasks:
            self._tasks.popleft()()
        now = time.monotonic()
        for peer in [peer for peer in self._unauthenticated if peer.deadline <= now]:
            self._drop(peer)

    def _due_seconds(self) -> float | None:
        moments = [peer.deadline for peer in itertools.islice(self._unauthenticated, 1)]
        if self._accept_at is not None and self._has_capacity():
            moments.append(self._accept_at)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    # -- connections --------------------------------------------------------------------------------------------------

    def _pause_or_accept(self) -> None:
        """Pauses accepting connections while too many are unauthenticated; resumes it when the pause is over."""
        self._close_surplus()
        if not self._has_capacity():
            if self._accept_at is None:
                self._pause(0.0)
        elif self._accept_at is not None and time.monotonic() >= self._accept_at:
            self._accept_at = None
            self._selector.register(self._listener, selectors.EVENT_READ, "accept")

    def _close_surplus(self) -> None:
        """If the limit is reached, closes the oldest unauthenticated connection of the address that has most."""
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            [(address, num)] = Counter(peer.address for peer in self._unauthenticated).most_common(1)
            if num > MAX_OF_AN_ADDRESS:
                self._drop(next(peer for peer in self._unauthenticated if peer.address == address))

    def _has_capacity(self) -> bool:
        """Whether the limits on file descriptors and unauthenticated connections allow one more connection."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        num_open = len(self._peers) + len(self._unauthenticated)
        is_within = soft == resource.RLIM_INFINITY or num_open < soft - RESERVED_FILES
        return is_within and len(self._unauthenticated) < MAX_UNAUTHENTICATED

    def _pause(self, until: float) -> None:
        self._accept_at = until
        self._selector.unregister(self._listener)

    def _accept(self) -> None:
        try:
            connection, (address, *_) = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError:
            self._pause(time.monotonic() + ACCEPT_PAUSE_SECONDS)
            return
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            keep_alive(connection)
        peer = _Peer(connection, address, time.monotonic() + self._handshake_seconds)
        self._unauthenticated[peer] = None
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _transfer(self, peer: _Peer, events: int) -> None:
        """Receives and sends pending data. A peer that violates the protocol is dropped; the thread keeps serving the
        others.
        """
        if peer.socket.fileno() < 0:
            return  # The peer was dropped earlier in this iteration.
        try:
            if events & selectors.EVENT_READ:
                data = peer.socket.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionError
                for line in peer.lines.feed(data):
                    self._process(peer, protocol.read(line))
                    if peer.socket.fileno() < 0:
                        return
            self._flush(peer)
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, protocol.ProtocolError):
            self._drop(peer)
        except Exception as error:
            self._crashed(f"connection of pod {peer.pod}", error)
            self._drop(peer)

    def _process(self, peer: _Peer, message: dict[str, object]) -> None:
        """Processes one message. Raises ProtocolError."""
        if peer.is_authenticated and "attempt" in message:
            self._take(peer, message)
        elif peer.is_authenticated:
            number, code = protocol.number(message, "id"), protocol.number(message, "code")
            if (call := peer.calls.pop(number, None)) is not None:
                call.end(code)
        elif not peer.expected:
            self._challenge(peer, message)
        elif protocol.is_equal(protocol.text(message, "proof"), peer.expected):
            self._hand_over(peer) if peer.role == protocol.OUTPUTS else self._authenticated(peer)
        else:
            raise protocol.ProtocolError("the peer does not know the run's key")

    def _challenge(self, peer: _Peer, message: dict[str, object]) -> None:
        """Proves to a peer that this server is the supervisor's, and requests a proof from the peer. Raises
        ProtocolError.
        """
        if protocol.number(message, "version") != protocol.VERSION:
            raise protocol.ProtocolError("another version")
        peer.pod, attempt = protocol.text(message, "pod"), protocol.number(message, "attempt")
        peer.role = protocol.text({"role": protocol.POD, **message}, "role")
        if peer.role not in (protocol.POD, protocol.OUTPUTS):
            raise protocol.ProtocolError("no role of a pod")
        nonces = (protocol.text(message, "nonce"), protocol.new_nonce())
        peer.expected = protocol.proof(self._key, peer.role, peer.pod, attempt, nonces)
        own = protocol.proof(self._key, protocol.SUPERVISOR, peer.pod, attempt, nonces)
        peer.out += protocol.written(nonce=nonces[1], proof=own)

    def _authenticated(self, peer: _Peer) -> None:
        """Registers the connection of a pod, drops its previous connection, and sends the requests that wait for the
        pod.
        """
        peer.is_authenticated = True
        peer.lines.limit = protocol.EVENTS_BYTES
        del self._unauthenticated[peer]
        if (older := self._peers.pop(peer.pod, None)) is not None:
            self._drop(older)
        self._peers[peer.pod] = peer
        if (sink := self._sinks.get(peer.pod)) is not None:
            sink.disconnected()
            peer.out += _subscription(sink)
        for call in self._waiting.pop(peer.pod, ()):
            self._send(peer, call)

    def _hand_over(self, peer: _Peer) -> None:
        """Hands over a connection for a pod's outputs to its receiver. Raises ProtocolError if no outputs are
        expected.
        """
        if (take := self._outputs.pop(peer.pod, None)) is None:
            raise protocol.ProtocolError("no outputs of this pod are expected")
        self._selector.unregister(peer.socket)
        del self._unauthenticated[peer]
        # The connection no longer belongs to the peer, so that `_drop` does not close it.
        taken = socket.socket(fileno=peer.socket.detach())
        taken.setblocking(True)
        try:
            take(taken)
        except BaseException:
            taken.close()
            raise

    def _drop(self, peer: _Peer) -> None:
        if peer.socket.fileno() >= 0:
            self._selector.unregister(peer.socket)
            peer.socket.close()
        self._unauthenticated.pop(peer, None)
        if self._peers.get(peer.pod) is peer:
            del self._peers[peer.pod]
            if (sink := self._sinks.get(peer.pod)) is not None:
                sink.disconnected()
        self._begin(*peer.calls.values())

    # -- events ---------------------------------------------------------------------------------------------------

    def _subscribe(self, pod: str, sink: EventSink) -> None:
        self._sinks[pod] = sink
        if (peer := self._peers.get(pod)) is not None:
            peer.out += _subscription(sink)
            self._transfer(peer, 0)

    def _take(self, peer: _Peer, message: dict[str, object]) -> None:
        """Passes a pod's report on the subscribed attempt to its sink. Raises OSError, ProtocolError."""
        sink = self._sinks.get(peer.pod)
        if sink is None or sink.attempt != protocol.number(message, "attempt"):
            return  # The pod sent the message before it received the new subscription.
        if "printed" in message:
            sink.take_printed(_sizes(message["printed"]))
            return
        if protocol.number(message, "from") != sink.offset:
            raise protocol.ProtocolError("from: not where the events before have ended")
        try:
            events = protocol.text(message, "events").encode("latin-1")
        except UnicodeEncodeError:
            raise protocol.ProtocolError("events: expected bytes") from None
        sink.take(protocol.text(message, "token"), events)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _begin(self, *calls: Call) -> None:
        for call in calls:
            peer = self._peers.get(call.pod)
            if peer is None:
                self._waiting.setdefault(call.pod, []).append(call)
            else:
                self._send(peer, call)
                self._transfer(peer, 0)

    def _abandon(self, *calls: Call) -> None:
        """Discards requests whose caller no longer waits for their answers."""
        for call in calls:
            if call in (waiting := self._waiting.get(call.pod, [])):
                waiting.remove(call)
            if not waiting:
                self._waiting.pop(call.pod, None)
            if (peer := self._peers.get(call.pod)) is not None:
                peer.calls = {number: one for number, one in peer.calls.items() if one is not call}

    def _send(self, peer: _Peer, call: Call) -> None:
        number = next(self._numbers)
        peer.calls[number] = call
        peer.out += protocol.written(id=number, request=list(call.words))

    def _flush(self, peer: _Peer) -> None:
        """Sends as much data as the connection accepts now. Raises OSError."""
        try:
            while peer.out:
                del peer.out[: peer.socket.send(peer.out)]
        finally:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.out else 0)
            if self._selector.get_key(peer.socket).events != wanted:
                self._selector.modify(peer.socket, wanted, peer)


def _subscription(sink: EventSink) -> bytes:
    every = round(1000 * sink.printed_seconds)
    return protocol.written(**{"attempt": sink.attempt, "from": sink.offset, "every": every})


def _sizes(found: object) -> dict[int, int]:
    """Parses the number of bytes that each rank has printed. Raises ProtocolError."""
    if not isinstance(found, dict):
        raise protocol.ProtocolError("printed: expected an object")
    sizes = {number: protocol.number(found, rank) for rank in found if (number := layout.number_in(rank)) is not None}
    if not all(0 <= size < MAX_PRINTED for size in sizes.values()):
        raise protocol.ProtocolError("printed: not a size")
    return sizes
