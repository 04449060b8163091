"""Emulations, on loopback, of what gives a pod the keys of its role: STS, and the agent of EKS Pod Identity or ECS.

Neither can be had outside of AWS. Requests and answers have the form of AWS' references, which `roles.py` names.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

KEYS = ("ASIAEMULATED", "emulated+secret/key", "emulated-session-token==")
STS_ANSWER = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <AssumeRoleWithWebIdentityResult>
    <SubjectFromWebIdentityToken>system:serviceaccount:train:digits</SubjectFromWebIdentityToken>
    <AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>A:s</AssumedRoleId></AssumedRoleUser>
    <Credentials><SessionToken>{2}</SessionToken><SecretAccessKey>{1}</SecretAccessKey>
      <Expiration>{3}</Expiration><AccessKeyId>{0}</AccessKeyId></Credentials>
  </AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""
STS_ERROR = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <Error><Type>Sender</Type><Code>{}</Code><Message>words of STS</Message></Error></ErrorResponse>"""


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    authorization: str
    form: dict[str, str]


@dataclass
class EmulatedRoles:
    """Gives keys that are numbered, until a time, or refuses."""

    address: str = ""
    expires_at: float = 2e9
    """Unix seconds."""
    status: int = 200
    error: str = ""
    given: tuple[str, str, str] | None = None
    """Keys that are given instead of the numbered ones."""
    asked: list[Asked] = field(default_factory=list)

    def keys(self) -> tuple[str, str, str]:
        """Those that were given last."""
        return self.given or (f"{KEYS[0]}{len(self.asked)}", KEYS[1], KEYS[2])

    def answer(self, method: str) -> bytes:
        if self.error:
            return STS_ERROR.format(self.error).encode()
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.expires_at))
        key, secret, token = self.keys()
        if method == "POST":
            return STS_ANSWER.format(key, secret, token, until).encode()
        found = {"AccessKeyId": key, "SecretAccessKey": secret, "Token": token, "Expiration": until, "AccountId": "1"}
        return json.dumps(found).encode()


@contextmanager
def emulated_roles() -> Iterator[EmulatedRoles]:
    """Both services at one address; they end with the block."""
    roles = EmulatedRoles()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            roles.asked.append(Asked(self.command, self.path, self.headers.get("Authorization", ""), form))
            data = roles.answer(self.command)
            self.send_response(roles.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815 - the name that the library calls

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        roles.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield roles
        finally:
            server.shutdown()
            thread.join()
