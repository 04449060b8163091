"""Profile of the AWS CLI: reads region, S3 endpoint and keys from its files, without botocore.

Source: https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping

from windlass.stores.errors import Denied
from windlass.stores.s3.signature import Keys

CHAINED = frozenset(("role_arn", "credential_process", "sso_session", "sso_start_url"))
"""Settings of profiles whose credentials only botocore can obtain, such as an assumed role."""


class Profile:
    """One profile; empty if the files do not contain it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Reads the profile that the environment names, else the default profile. Raises Denied if a file is
        damaged.
        """
        self.name = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
        config = _read(environ.get("AWS_CONFIG_FILE") or "~/.aws/config", environ)
        secret = _read(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials", environ)
        self._values = {**config.get("default" if self.name == "default" else f"profile {self.name}", {})}
        self._values.update(config.get(f"profile {self.name}", {}) if self.name == "default" else {})
        self._services = config.get(f"services {self._values.get('services', '')}", {})
        self._secret = {**self._values, **secret.get(self.name, {})}

    @property
    def region(self) -> str:
        """Region; empty if the profile sets none."""
        return self._values.get("region", "")

    @property
    def endpoint(self) -> str:
        """Endpoint of S3; empty if the profile sets none."""
        return _nested(self._services.get("s3", "")).get("endpoint_url") or self._values.get("endpoint_url", "")

    @property
    def keys(self) -> Keys | None:
        """Static keys of the profile; None if it has none or refers to another source."""
        key, secret = self._secret.get("aws_access_key_id"), self._secret.get("aws_secret_access_key")
        if not key or not secret or not CHAINED.isdisjoint(self._secret):
            return None
        return Keys(key, secret, self._secret.get("aws_session_token", ""))


def _read(path: str, environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Reads the sections of a file; an absent file has none."""
    if path.startswith("~/"):
        path = f"{environ.get('HOME') or os.path.expanduser('~')}{path[1:]}"
    parser = configparser.RawConfigParser(default_section="", strict=False, delimiters=("=",))
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeError) as error:
        raise Denied(f"it cannot be read: {' '.join(str(error).split())}", path) from error
    return {name.replace('"', ""): dict(parser.items(name)) for name in parser.sections()}


def _nested(text: str) -> dict[str, str]:
    """Parses a nested setting: `s3 =`, followed by indented lines such as `endpoint_url = …`."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
