"""Messages between a pod and its run's supervisor: lines of JSON, after each has proved that it knows the run's key.

    pod → supervisor   {"version": 1, "pod": NAME, "attempt": N, "nonce": HEX}
    supervisor → pod   {"nonce": HEX, "proof": HEX}
    pod → supervisor   {"proof": HEX}
    supervisor → pod   {"id": 1, "request": ["signal", "2", "15"]}     a request of `pod_reuse.carry_out`
    pod → supervisor   {"id": 1, "code": 0}                            its exit code
    supervisor → pod   {"attempt": 2, "from": 0, "every": 5000}        send the events of attempt 2 from byte 0 on
    pod → supervisor   {"attempt": 2, "from": 0, "token": HEX, "events": "…"}   these, see `event_feed.py`
    pod → supervisor   {"attempt": 2, "printed": {"0": 4096}}          each 5000 ms, how many bytes ranks have printed

A pod sends its outputs over a connection of its own, with another role:

    pod → supervisor   {"version": 1, "pod": NAME, "attempt": N, "nonce": HEX, "role": "outputs"}
    …                                                                  the proofs, of that role
    supervisor → pod   {"go": true}                                    it takes them now
    pod → supervisor                                                   the stream of `outputs.py`
    supervisor → pod   {"kept": HEX}                                   the digest of what it has kept

A proof is an HMAC-SHA256 over role, pod, attempt and both nonces: it holds for one connection and one direction.
The messages themselves are neither encrypted nor signed: they are as safe as the cluster's network.

A pod keeps a process for this, so it imports little: `hmac` and `hashlib` load OpenSSL, which takes 4 MB.
"""

from __future__ import annotations

import json
import os
from _operator import _compare_digest  # what `hmac.compare_digest` is where there is no OpenSSL
from collections.abc import Iterator

from windlass.worker.event_feed import CHUNK_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256 as _sha256
else:
    try:
        from _sha2 import sha256 as _sha256  # the interpreter's own, from Python 3.12 on
    except ImportError:
        try:
            from _sha256 import sha256 as _sha256  # and before
        except ImportError:
            from hashlib import sha256 as _sha256  # an interpreter that was built without it

VERSION = 1
POD, SUPERVISOR, OUTPUTS = "pod", "supervisor", "outputs"
"""The roles: a proof of one is none of the other."""
KEY_BYTES = 32
NONCE_BYTES = 32
HANDSHAKE_SECONDS = 5.0
"""How long a peer may take to prove that it knows the key."""
HANDSHAKE_BYTES = 4 << 10
"""The longest line of a peer that has not proved it, and of an answer."""
MAX_ORDER_BYTES = 4 << 20
"""The longest order, in the base64 of a request."""
REQUEST_BYTES = MAX_ORDER_BYTES + HANDSHAKE_BYTES
"""The longest line of a request."""
EVENTS_BYTES = 6 * CHUNK_BYTES + HANDSHAKE_BYTES
"""The longest line of a pod that has proved it: JSON writes a byte as up to six characters."""
_BLOCK_BYTES = 64
"""Of SHA-256 (RFC 2104 names it B)."""


class ProtocolError(ValueError):
    """A peer that has sent something else than it must, or a key that is none."""


class Lines:
    """Splits what is received into lines."""

    def __init__(self, limit: int = HANDSHAKE_BYTES) -> None:
        self.limit = limit
        """The most bytes of a line."""
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete by now. Raises ProtocolError for one that is too long."""
        begin = len(self._held)  # what was held has no newline
        self._held += data
        while (end := self._held.find(b"\n", begin)) >= 0:
            line, begin = bytes(self._held[:end]), 0
            del self._held[: end + 1]
            if len(line) > self.limit:
                break
            yield line
        if end >= 0 or len(self._held) > self.limit:
            raise ProtocolError("a line is too long")


def read_key(path: str) -> bytes:
    """The run's key in a file. Raises OSError, ProtocolError."""
    with open(path, "rb") as file:
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise ProtocolError(f"the key in {path} does not have {KEY_BYTES} bytes")
    return key


def new_nonce() -> str:
    """What makes the proofs of a connection its own."""
    return os.urandom(NONCE_BYTES).hex()


def proof(key: bytes, role: str, pod: str, attempt: int, nonces: tuple[str, str]) -> str:
    """What only a peer in this role that knows the key can send; `nonces` are the pod's and the supervisor's."""
    return hmac_sha256(key, json.dumps(["windlass", VERSION, role, pod, attempt, *nonces]).encode())


def is_equal(given: str, expected: str) -> bool:
    """Compare proofs in a time that does not depend on where they differ."""
    return _compare_digest(given.encode("utf-8", "replace"), expected.encode())


def hmac_sha256(key: bytes, message: bytes) -> str:
    """RFC 2104, for a key that is no longer than a block."""
    block = key.ljust(_BLOCK_BYTES, b"\0")
    inner = _sha256(bytes(byte ^ 0x36 for byte in block) + message).digest()
    return _sha256(bytes(byte ^ 0x5C for byte in block) + inner).hexdigest()


def written(**fields: object) -> bytes:
    """A message as it is sent."""
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def read(line: bytes) -> dict[str, object]:
    """The message in a line. Raises ProtocolError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError("a line is no JSON") from None
    if not isinstance(message, dict):
        raise ProtocolError("a line is no JSON object")
    return message


def text(message: dict[str, object], name: str) -> str:
    """A field of a message. Raises ProtocolError."""
    value = message.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"{name}: expected a string")
    return value


def number(message: dict[str, object], name: str) -> int:
    """A field of a message. Raises ProtocolError."""
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProtocolError(f"{name}: expected an integer")
    return value
