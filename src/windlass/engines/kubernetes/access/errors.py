"""Errors of requests to the API server: refused requests, and a server that does not respond."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from typing import Any, Final

from windlass.engines.kubernetes.objects.kinds import PLURALS
from windlass.errors import EngineError, LoginFailed

Json = Mapping[str, Any]

_OF_ADMISSION: Final = re.compile(r'^admission webhook |\bdenied request: |is forbidden: (?!user ")', re.IGNORECASE)
"""Matches messages of 403 responses that are unrelated to RBAC: from a webhook, a ValidatingAdmissionPolicy, a quota or
Pod Security."""
_SOURCE_OF_SSL: Final = re.compile(r"_ssl\.c:\d+: | ?\(_ssl\.c:\d+\)")
"""Matches the position in the C source of Python's ssl module that its error messages include."""


class Refused(EngineError):
    """The API server refused a request; `status` and `reason` are from its response."""

    def __init__(self, message: str, hint: str, *, status: int, reason: str = "", details: Json | None = None) -> None:
        super().__init__(message, hint)
        self.status = status
        self.reason = reason
        self.details = details or {}

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the server asks for a retry because it was too busy; None for other refusals."""
        seconds = self.details.get("retryAfterSeconds")
        return float(seconds) if self.status == 429 and isinstance(seconds, int) and seconds > 0 else None

    def is_absent(self, name: str, kind: str) -> bool:
        """Whether the API server itself reports that this object does not exist; `kind` must be in PLURALS.

        A 404 status alone is not sufficient: proxies and load balancers return 404 as well, and so does the server for
        a resource type that is not installed.
        """
        reported = (self.details.get("name"), str(self.details.get("kind", "")).lower())
        is_it = reported in ((name, PLURALS[kind]), (name, kind.lower()))
        return self.status == 404 and self.reason == "NotFound" and is_it


class Unreachable(EngineError):
    """The API server did not respond; it may respond next time."""


class Silent(Unreachable):
    """No data arrived within the caller's time limit on an open connection; a followed log may just have
    nothing new.
    """


class Broken(Unreachable):
    """The connection was cut, or the response is invalid; a retry may succeed at once."""


class NotLoggedIn(Unreachable, LoginFailed):
    """No login is available now: its plugin fails, or the server rejects the credentials. A retry may succeed."""


def refused(status: int, answer: Json, kubectl: str, namespace: str) -> Refused:
    """Returns the error for a refused request, with the API server's message and a hint."""
    hints = {
        401: f"the login has expired or is invalid: {kubectl} get pods",
        403: f"ask for the right: windlass check --on TARGET lists what is needed in namespace {namespace}",
        404: f"see: {kubectl} -n {namespace} get all",
    }
    message = str(answer.get("message") or f"HTTP {status}")
    if status == 403 and _OF_ADMISSION.search(message):
        hints[403] = "change the job or the target as the message requires, or ask an administrator of the cluster"
    details = found if isinstance(found := answer.get("details"), dict) else None
    return Refused(
        f"the cluster refused: {message}",
        hints.get(status, ""),
        status=status,
        reason=str(answer.get("reason", "")),
        details=details,
    )


def words_of(error: BaseException) -> str:
    """Returns the reason of a network error, in one line."""
    if isinstance(error, http.client.IncompleteRead):
        return "the connection was cut in the middle of a response"
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
        return "its response is not HTTP"
    words = getattr(error, "verify_message", "") or getattr(error, "strerror", None) or str(error)
    return " ".join(_SOURCE_OF_SSL.sub("", str(words)).split()) or type(error).__name__
