"""Credentials and region of S3: keys of the environment, else botocore's chain of profiles and roles."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from windlass.train.s3.errors import Denied
from windlass.train.s3.signature import Keys

REGION = "us-east-1"
NONE = "no credentials for S3 were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


class Credentials:
    """Where requests get their keys from; botocore renews those that expire. Its methods raise Denied."""

    def __init__(self, environ: Mapping[str, str], what: str) -> None:
        """`what` is the address that errors name."""
        key, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
        self._keys = Keys(key, secret, environ.get("AWS_SESSION_TOKEN") or "") if key and secret else None
        self._what = what
        self._found: Any = None
        self._lock = threading.Lock()
        self.region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or REGION
        """Where the first request goes; the bucket may name another."""

    def keys(self) -> Keys:
        """The keys of now."""
        if self._keys is not None:
            return self._keys
        with self._lock:
            if self._found is None:
                self._found = self._of_botocore()
        frozen = self._found.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token or "")

    def _of_botocore(self) -> Any:
        try:
            from botocore.exceptions import BotoCoreError
            from botocore.session import Session
        except ImportError as error:
            raise Denied(f"{NONE}; profiles and roles need boto3: pip install boto3", self._what) from error
        try:
            found = Session().get_credentials()
        except BotoCoreError as error:
            raise Denied(f"credentials for S3: {error}", self._what) from error
        if found is None:
            raise Denied(f"{NONE}, or AWS_PROFILE", self._what)
        return found
