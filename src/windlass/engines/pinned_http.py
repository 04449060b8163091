"""Sends one HTTP request to a model server, whose TLS certificate is known byte for byte."""

from __future__ import annotations

import hmac
import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from windlass.engines.deployments import ModelResponse
from windlass.errors import EngineError

MAX_RESPONSE_BYTES: Final = 64 << 20
"""Maximum size of an answer."""
LAST_REQUEST: Final = "windlass_last_request_timestamp_seconds"
"""Metric of the model server with the time of the last request in Unix seconds; 0 before the first one."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """How a model server is recognised, and how it recognises its clients."""

    certificate: bytes
    """Certificate of the server in PEM."""
    token: str = field(repr=False)


def send(
    stream: socket.socket,
    access: ServerAccess,
    method: str,
    path: str,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    timeout: float,
) -> ModelResponse:
    """Sends one request over a connected stream, and closes the stream.

    Nothing is sent, not even the token, to a server with another certificate. `timeout` is that of each wait in
    seconds. Raises EngineError.
    """
    stream.settimeout(timeout)
    try:
        with stream, _pinned(stream, access.certificate) as secure:
            connection = http.client.HTTPConnection("localhost", timeout=timeout)
            connection.sock = secure
            sent = {**(headers or {}), "authorization": f"Bearer {access.token}", "connection": "close"}
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            found = response.read(MAX_RESPONSE_BYTES + 1)
    except TimeoutError as error:
        raise EngineError(f"the server did not answer within {timeout:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"the server cannot be reached ({error})") from error
    except ValueError as error:  # another program has changed the Secret
        raise EngineError(
            f"the certificate or the token of the server is damaged ({error})", "remove it, and deploy the model again"
        ) from error
    if len(found) > MAX_RESPONSE_BYTES:
        raise EngineError(f"the answer is larger than {MAX_RESPONSE_BYTES >> 20} MiB")
    return ModelResponse(response.status, response.headers.get("content-type", ""), found)


def client_tls() -> ssl.SSLContext:
    """Returns the TLS settings of a client that compares the server's certificate byte for byte before it sends
    anything, which is stricter than checks of authorities and host names.
    """
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    return found


def _pinned(stream: socket.socket, certificate: bytes) -> ssl.SSLSocket:
    """Starts TLS. Raises EngineError if the server has another certificate, ValueError if `certificate` is no PEM."""
    expected = ssl.PEM_cert_to_DER_cert(certificate.decode())
    secure = client_tls().wrap_socket(stream)
    found = secure.getpeercert(binary_form=True) or b""
    if not hmac.compare_digest(found, expected):
        secure.close()
        raise EngineError(
            "another server answers: its certificate is not that of the deployment", "deploy the model again"
        )
    return secure


def last_request_of(metrics: ModelResponse) -> float | None:
    """Returns the time of the last request in Unix seconds from the metrics of a server; None if there was none."""
    if metrics.status != 200:
        return None
    for line in metrics.body.decode(errors="replace").splitlines():
        name, _, value = line.partition(" ")
        if name == LAST_REQUEST:
            try:
                return float(value) or None
            except ValueError:
                return None
    return None
