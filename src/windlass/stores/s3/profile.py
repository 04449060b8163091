"""Profile of the AWS CLI: region, endpoint of S3 and keys from its files, without botocore.

Source: https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping

from windlass.stores.errors import Denied
from windlass.stores.s3.signature import Keys

CHAINED = frozenset(("role_arn", "credential_process", "sso_session", "sso_start_url"))
"""Settings by which a profile has other keys than those that are written in it: botocore asks for them."""


class Profile:
    """One profile, which is empty where the files do not have it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """The profile that the environment names, else the default one. Raises Denied where a file is damaged."""
        self.name = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
        config = _read(environ.get("AWS_CONFIG_FILE") or "~/.aws/config", environ)
        secret = _read(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials", environ)
        self._values = {**config.get("default" if self.name == "default" else f"profile {self.name}", {})}
        self._values.update(config.get(f"profile {self.name}", {}) if self.name == "default" else {})
        self._services = config.get(f"services {self._values.get('services', '')}", {})
        self._secret = {**self._values, **secret.get(self.name, {})}

    @property
    def region(self) -> str:
        """Empty where it has none."""
        return self._values.get("region", "")

    @property
    def endpoint(self) -> str:
        """That of S3; empty where it has none."""
        return _nested(self._services.get("s3", "")).get("endpoint_url") or self._values.get("endpoint_url", "")

    @property
    def keys(self) -> Keys | None:
        """The keys that are written in it; None where it has none, or has them from elsewhere."""
        key, secret = self._secret.get("aws_access_key_id"), self._secret.get("aws_secret_access_key")
        if not key or not secret or not CHAINED.isdisjoint(self._secret):
            return None
        return Keys(key, secret, self._secret.get("aws_session_token", ""))


def _read(path: str, environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The sections of a file; none where it is not there."""
    if path.startswith("~/"):
        path = f"{environ.get('HOME') or os.path.expanduser('~')}{path[1:]}"
    parser = configparser.RawConfigParser(default_section="", strict=False, delimiters=("=",))
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeError) as error:
        raise Denied(f"it cannot be read: {' '.join(str(error).split())}", path) from error
    return {name.replace('"', ""): dict(parser.items(name)) for name in parser.sections()}


def _nested(text: str) -> dict[str, str]:
    """The lines of a value that has several: `s3 =`, and below it `endpoint_url = …`."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
