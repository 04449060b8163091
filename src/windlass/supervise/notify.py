"""Sends the end of a run to a webhook, whose address is secret and appears in no record, log or message."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final

from windlass.compat import override
from windlass.errors import NoSuchRun
from windlass.plan.environment import secret_variable
from windlass.plan.plan import Policy
from windlass.runs.clock import Clock
from windlass.runs.events import Notified, RunEnded
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import RunWriter, Store

TIMEOUT_SECONDS: Final = 5.0
PAUSES: Final = (1.0, 3.0)
"""Seconds before the second and the third try."""
CAUSE_CHARS: Final = 1000


@dataclass(frozen=True, slots=True)
class Webhook:
    """Webhook that is notified of the end of a run."""

    secret: str
    """Name of the secret."""
    address: str
    """Address, the value of the secret; empty if the secret is missing."""


def webhook_of(policy: Policy, environ: Mapping[str, str]) -> Webhook | None:
    """Returns the webhook of a plan's policy; None if it names none."""
    secret = policy.notify
    return Webhook(secret, environ.get(secret_variable(secret), "")) if secret else None


def message(status: Status) -> dict[str, Any]:
    """Returns the message: a sentence for Slack (`text`) and Discord (`content`), and the run as data for programs."""
    cause = status.cause
    why = f": {cause.summary[:CAUSE_CHARS]}" if cause is not None and status.phase is not Phase.SUCCEEDED else ""
    seconds = (status.times.ended_at or status.times.created_at) - status.times.created_at
    text = f"{status.id} {status.phase} after {seconds:.0f} s on {status.target}{why}"
    run = {
        "id": status.id,
        "name": status.name,
        "target": status.target,
        "phase": status.phase,
        "user": status.about.user,
        "exit_code": status.exit_code,
        "created_at": status.times.created_at,
        "ended_at": status.times.ended_at,
        "attempts": len(status.attempts),
        "labels": dict(status.about.labels),
        "cause": cause.summary if cause is not None else None,
    }
    return {"text": text, "content": text, "run": run}


def notify_end(store: Store, run_id: str, webhook: Webhook, clock: Clock) -> None:
    """Sends the end of a run and records the result. No lock is held while sending, so that the run may be resumed or
    removed.

    Raises StoreError.
    """
    notified = send(webhook, store.status(run_id), clock)
    with contextlib.suppress(NoSuchRun):
        store.status(run_id)  # `status` raises for a removed run, whose folder `writer` would create again
        if (writer := store.writer(run_id)) is not None:
            with contextlib.closing(writer):
                if writer.status.phase.is_terminal:
                    writer.note(notified)


def notify_once(writer: RunWriter, webhook: Webhook | None, clock: Clock) -> None:
    """Sends the end of a run to its webhook, unless a previous supervisor did, and records the result. The message may
    be sent twice if a supervisor dies between sending and recording. Raises StoreError.
    """
    last = [event.kind for event in writer.events() if event.kind in (RunEnded.kind, Notified.kind)][-1:]
    if webhook is not None and last != [Notified.kind]:
        writer.note(send(webhook, writer.status, clock))


def send(webhook: Webhook, status: Status, clock: Clock) -> Notified:
    """Sends the end of a run. Returns the event to record. Failures do not affect the run.

    If the server is busy or cannot be reached, retries with pauses by `clock`.
    """
    variable = secret_variable(webhook.secret)
    if not webhook.address:
        return Notified(webhook.secret, f"{variable} is not set where the run is supervised")
    if not webhook.address.lower().startswith(("http://", "https://")):
        return Notified(webhook.secret, f"{variable} holds no address that begins with https:// or http://")
    body = json.dumps(message(status)).encode()
    error = ""
    for pause in (0.0, *PAUSES):
        clock.wait(pause)
        error, is_final = _post(webhook.address, body)
        if is_final:
            break
    return Notified(webhook.secret, error)


def _post(address: str, body: bytes) -> tuple[str, bool]:
    """Sends one request. Returns the error without the address, empty for success, and whether retrying is useless."""
    headers = {"Content-Type": "application/json", "User-Agent": "windlass"}
    try:
        request = urllib.request.Request(address, data=body, headers=headers, method="POST")
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_SECONDS):
            return "", True
    except urllib.error.HTTPError as error:
        error.close()
        return f"it answered {error.code}", error.code < 500 and error.code != 429
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        return f"it could not be reached ({getattr(reason, 'strerror', None) or type(reason).__name__})", False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Reports redirects instead of following them, because another host must not receive the message."""

    @override
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Returns None, so that the redirect becomes an HTTPError."""
