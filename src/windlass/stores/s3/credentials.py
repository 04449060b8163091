"""Credentials, region and endpoint of S3: from the environment, a pod's role, a profile, or botocore's chain."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from windlass.stores.errors import Busy, NoLogin, StoreError
from windlass.stores.s3 import roles
from windlass.stores.s3.profile import Profile
from windlass.stores.s3.signature import NO_KEYS, Keys

REGION = "us-east-1"
NONE = "no credentials for AWS were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
UNSIGNED = "WINDLASS_UNSIGNED"
"""Environment variable that makes the client send unsigned requests, as for public buckets."""
RENEW_SECONDS = 600
"""Time before expiry at which role credentials are renewed."""
AGAIN_SECONDS = 60
"""Pause after a failed renewal while the old credentials are still valid."""


class Credentials:
    """Source of credentials for requests. Renews credentials before they expire. Safe for threads and forks.

    Methods raise Denied, and Busy if the service that issues role credentials does not answer.
    """

    def __init__(self, environ: Mapping[str, str], what: str, clock: Callable[[], float] = time.time) -> None:
        """`what` is the address named in errors; `clock` returns Unix seconds."""
        key, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
        self._keys = Keys(key, secret, environ.get("AWS_SESSION_TOKEN") or "") if key and secret else None
        if environ.get(UNSIGNED):
            self._keys = NO_KEYS
        self._what = what
        self._found: Any = None
        self._lock = (os.getpid(), threading.Lock())
        self._profile = Profile(environ)
        self.region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or self._profile.region or REGION
        """Region for the first request. The bucket's response may name another region."""
        self.endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or self._profile.endpoint
        """Endpoint URL of a store other than AWS; otherwise empty."""
        self._role = _Role(role, clock) if (role := roles.of_environment(environ, self.region, what)) else None

    def keys(self) -> Keys:
        """Returns the credentials that are valid now."""
        if self._keys is not None:
            return self._keys
        if self._role is not None:
            return self._role.fresh() or self._renewed(self._role)
        if (keys := self._profile.keys) is not None:
            return keys
        with self._own_lock():
            if self._found is None:
                self._found = self._of_botocore()
        with _errors_of_botocore(self._what):
            # For a login or a role, botocore fetches credentials only in this call.
            frozen = self._found.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token or "")

    def _renewed(self, role: _Role) -> Keys:
        with self._own_lock():
            return role.fresh() or role.renewed()

    def _own_lock(self) -> threading.Lock:
        """Returns a lock of this process. After a fork, the parent's lock could be held by a thread that no longer
        exists.
        """
        if self._lock[0] != os.getpid():
            self._lock = (os.getpid(), threading.Lock())
        return self._lock[1]

    def _of_botocore(self) -> Any:
        try:
            from botocore.session import Session
        except ImportError as error:
            raise NoLogin(
                f"{NONE}, or give the pod a role; roles and logins of profiles need boto3: pip install boto3",
                self._what,
            ) from error
        with _errors_of_botocore(self._what):
            found = Session().get_credentials()
        if found is None:
            raise NoLogin(f"{NONE}, or AWS_PROFILE", self._what)
        return found


@contextmanager
def _errors_of_botocore(what: str) -> Iterator[None]:
    """Raises NoLogin for errors of botocore, and Busy for temporary ones."""
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError, SSLError

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code")
        status = 503 if code in roles.PASSING else error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        raise roles.failure(f"credentials for AWS: {error}", status, what) from error
    except BotoCoreError as error:
        passes = isinstance(error, (ConnectionError, HTTPClientError)) and not isinstance(error, SSLError)
        raise (Busy if passes else NoLogin)(f"credentials for AWS: {error}", what) from error
    # botocore does not wrap errors of a token file or of credential_process
    except (OSError, ValueError) as error:
        raise NoLogin(f"credentials for AWS cannot be read: {error}", what) from error


class _Role:
    """Credentials of a role, cached until they expire."""

    def __init__(self, ask: roles.Role, clock: Callable[[], float]) -> None:
        self._ask, self._clock = ask, clock
        self._now: roles.RoleKeys | None = None
        self._renew_at = 0.0

    def fresh(self) -> Keys | None:
        """Returns the cached credentials; None if they should be renewed."""
        found = self._now
        return found.keys if found is not None and self._clock() < self._renew_at else None

    def renewed(self) -> Keys:
        """Renews the credentials; returns the old ones if renewal fails while they are valid. Raises StoreError."""
        try:
            found = self._ask()
        except StoreError:
            if self._now is None or self._clock() >= self._now.expires_at:
                raise
            self._renew_at = self._clock() + AGAIN_SECONDS
            return self._now.keys
        # Short-lived credentials are renewed after half of their validity, so that each is used at least once.
        self._renew_at = max(found.expires_at - RENEW_SECONDS, (self._clock() + found.expires_at) / 2)
        self._now = found
        return found.keys
