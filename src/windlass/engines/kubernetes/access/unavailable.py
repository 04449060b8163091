"""Separates temporary errors of an API server from those that end a run."""

from __future__ import annotations

from typing import Final, NoReturn

from windlass.engines.kubernetes.access.errors import NotLoggedIn, Refused, Unreachable
from windlass.errors import EngineError
from windlass.supervise.backend import TargetUnavailable

PASSING: Final = (401, 429, 500, 502, 503, 504)
"""Status codes of an API server that is busy, whose webhooks are not ready, or that rejects an expired login."""


def is_passing(error: EngineError) -> bool:
    """Whether the same request may be repeated, since the error is temporary."""
    return not isinstance(error, Refused) or error.status in PASSING


def refuse(error: Refused | Unreachable) -> NoReturn:
    """Raises a temporary error as TargetUnavailable, and any other error unchanged."""
    if not is_passing(error):
        raise error
    raise unavailable(error) from error


def unavailable(error: EngineError, more: str = "") -> TargetUnavailable:
    """Returns the error for a run whose cluster cannot be used now."""
    is_login = isinstance(error, NotLoggedIn) or (isinstance(error, Refused) and error.status == 401)
    kind = "LoginFailed" if is_login else "ClusterUnreachable"
    words = f"cannot {'log in to' if is_login else 'use'} the cluster: {error.message}"
    return TargetUnavailable(kind, "; ".join(part for part in (words, more) if part), error.hint)
