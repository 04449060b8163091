"""Credentials and region of S3: keys of the environment, else botocore's chain of profiles and roles."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from windlass.train.stream.errors import StreamError
from windlass.train.stream.sigv4 import Keys

REGION = "us-east-1"


class Credentials:
    """Where requests get their keys from; botocore renews those that expire."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._keys = _of_environment(environ)
        self._found: Any = None
        self._lock = threading.Lock()
        self.region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or REGION
        """Where the first request goes; the bucket may name another."""

    def keys(self) -> Keys:
        """The keys of now. Raises StreamError where there are none."""
        if self._keys is not None:
            return self._keys
        with self._lock:
            if self._found is None:
                self._found = _of_botocore()
        frozen = self._found.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token or "")


def _of_environment(environ: Mapping[str, str]) -> Keys | None:
    key, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    return Keys(key, secret, environ.get("AWS_SESSION_TOKEN") or "") if key and secret else None


def _of_botocore() -> Any:
    try:
        from botocore.session import Session
    except ImportError as error:
        raise StreamError(
            "no credentials for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, and boto3, which knows "
            "profiles and roles, is not installed: pip install boto3"
        ) from error
    from botocore.exceptions import BotoCoreError

    try:
        found = Session().get_credentials()
    except BotoCoreError as error:
        raise StreamError(f"credentials for S3: {error}") from error
    if found is None:
        raise StreamError("no credentials for S3 were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                          "AWS_PROFILE")  # fmt: skip
    return found
