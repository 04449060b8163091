"""Messages between a pod and its run's supervisor: lines of JSON, after both have proved that they know the run's key.

    pod → supervisor   {"version": 1, "pod": NAME, "attempt": N, "nonce": HEX}
    supervisor → pod   {"nonce": HEX, "proof": HEX}
    pod → supervisor   {"proof": HEX}
    supervisor → pod   {"id": 1, "request": ["signal", "2", "15"]}     a request of `pod_reuse.carry_out`
    pod → supervisor   {"id": 1, "code": 0}                            its exit code
    supervisor → pod   {"attempt": 2, "from": 0, "every": 5000}        send the events of attempt 2 from byte 0 on
    pod → supervisor   {"attempt": 2, "from": 0, "token": HEX, "events": "…"}   the events, see `event_feed.py`
    pod → supervisor   {"attempt": 2, "printed": {"0": 4096}}          bytes printed by each rank, every 5000 ms

A pod sends its outputs over a separate connection, with another role:

    pod → supervisor   {"version": 1, "pod": NAME, "attempt": N, "nonce": HEX, "role": "outputs"}
    …                                                                  the proofs for this role
    supervisor → pod   {"go": true}                                    the supervisor is ready to receive
    pod → supervisor                                                   the stream of `outputs.py`
    supervisor → pod   {"kept": HEX}                                   the digest of the stored outputs

A proof is an HMAC-SHA256 over role, pod, attempt and both nonces: it is valid for one connection and one direction. The
messages themselves are neither encrypted nor signed: they are as safe as the cluster's network.

`hmac` and `hashlib` are not used because they load OpenSSL (4 MB), and every pod runs a process for this protocol.
"""

from __future__ import annotations

import json
import os
from _operator import _compare_digest  # the function behind `hmac.compare_digest`, without OpenSSL
from collections.abc import Iterator

from windlass.worker.event_feed import CHUNK_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256 as _sha256
else:
    try:
        from _sha2 import sha256 as _sha256  # `_sha2` is part of the interpreter since Python 3.12
    except ImportError:
        try:
            from _sha256 import sha256 as _sha256  # `_sha256` is part of older interpreters
        except ImportError:
            from hashlib import sha256 as _sha256  # the interpreter was built without either module

VERSION = 1
POD, SUPERVISOR, OUTPUTS = "pod", "supervisor", "outputs"
"""Roles of a peer. A proof is only valid for one role."""
KEY_BYTES = 32
NONCE_BYTES = 32
HANDSHAKE_SECONDS = 5.0
"""Seconds within which a peer must prove that it has the key."""
HANDSHAKE_BYTES = 4 << 10
"""Maximum bytes of a line from an unauthenticated peer, and of a response."""
MAX_ORDER_BYTES = 4 << 20
"""Maximum size of an order, the specs of a pod's next attempt, in a request, in bytes of base64."""
REQUEST_BYTES = MAX_ORDER_BYTES + HANDSHAKE_BYTES
"""Maximum bytes of a request line."""
EVENTS_BYTES = 6 * CHUNK_BYTES + HANDSHAKE_BYTES
"""Maximum bytes of a line from an authenticated pod. JSON may encode one byte of an event as six characters."""
_BLOCK_BYTES = 64
"""Block size of SHA-256 in bytes, called B in RFC 2104."""


class ProtocolError(ValueError):
    """The peer sent an invalid message, or a key file is invalid."""


class Lines:
    """Splits received data into lines."""

    def __init__(self, limit: int = HANDSHAKE_BYTES) -> None:
        self.limit = limit
        """Maximum bytes of a line."""
        self._partial = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Adds data, and yields the lines that are now complete. Raises ProtocolError if a line is too long."""
        begin = len(self._partial)  # the incomplete line contains no newline
        self._partial += data
        while (end := self._partial.find(b"\n", begin)) >= 0:
            line, begin = bytes(self._partial[:end]), 0
            del self._partial[: end + 1]
            if len(line) > self.limit:
                break
            yield line
        if end >= 0 or len(self._partial) > self.limit:
            raise ProtocolError("a line is too long")


def read_key(path: str) -> bytes:
    """Reads the run's key from a file. Raises OSError, ProtocolError."""
    with open(path, "rb") as file:
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise ProtocolError(f"the key in {path} does not have {KEY_BYTES} bytes")
    return key


def new_nonce() -> str:
    """Returns a random nonce, which makes the proofs valid for one connection only."""
    return os.urandom(NONCE_BYTES).hex()


def proof(key: bytes, role: str, pod: str, attempt: int, nonces: tuple[str, str]) -> str:
    """Returns the proof that a peer in this role has the key. `nonces` are those of the pod and the supervisor."""
    return hmac_sha256(key, json.dumps(["windlass", VERSION, role, pod, attempt, *nonces]).encode())


def is_equal(given: str, expected: str) -> bool:
    """Compares proofs in constant time."""
    return _compare_digest(given.encode("utf-8", "replace"), expected.encode())


def hmac_sha256(key: bytes, message: bytes) -> str:
    """Returns the HMAC-SHA256 (RFC 2104) of a message in hex. The key must not be longer than a block."""
    block = key.ljust(_BLOCK_BYTES, b"\0")
    inner = _sha256(bytes(byte ^ 0x36 for byte in block) + message).digest()
    return _sha256(bytes(byte ^ 0x5C for byte in block) + inner).hexdigest()


def written(**fields: object) -> bytes:
    """Encodes a message as a line of JSON."""
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def read(line: bytes) -> dict[str, object]:
    """Decodes the message in a line. Raises ProtocolError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError("a line is not JSON") from None
    if not isinstance(message, dict):
        raise ProtocolError("a line is not a JSON object")
    return message


def text(message: dict[str, object], name: str) -> str:
    """Returns a string field of a message. Raises ProtocolError."""
    value = message.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"{name}: expected a string")
    return value


def number(message: dict[str, object], name: str) -> int:
    """Returns an integer field of a message. Raises ProtocolError."""
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProtocolError(f"{name}: expected an integer")
    return value
