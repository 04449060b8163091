"""Signs requests to S3 by AWS Signature Version 4.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

EMPTY = hashlib.sha256(b"").hexdigest()
_SAFE = "-_.~"


@dataclass(frozen=True)
class Keys:
    """Credentials of S3. `repr` omits the secrets, because it may appear in logs."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)
    """Session token of temporary credentials; empty for permanent keys."""


NO_KEYS = Keys("", "")
"""Keys for unsigned requests."""


def path_of(key: str) -> str:
    """Returns the URL path of a key, percent-encoded."""
    return quote(key, safe=f"/{_SAFE}")


def query_of(values: Mapping[str, str]) -> str:
    """Returns the canonical query string."""
    return "&".join(f"{quote(name, safe=_SAFE)}={quote(values[name], safe=_SAFE)}" for name in sorted(values))


def signed(
    keys: Keys,
    region: str,
    host: str,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    payload: str = EMPTY,
    now: float | None = None,
    service: str = "s3",
) -> dict[str, str]:
    """Returns the headers of a request with lower-case names, signed unless there are no keys.

    `path` and `query` are encoded, `payload` is the SHA-256 of the body, and `now` is in Unix seconds.
    """
    if keys == NO_KEYS:
        return {"host": host, **headers}
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    day = stamp[:8]
    found = {"host": host, "x-amz-content-sha256": payload, "x-amz-date": stamp, **headers}
    if keys.token:
        found["x-amz-security-token"] = keys.token
    names = sorted(found)
    listed = ";".join(names)
    canonical = "\n".join([method, path, query, *(f"{name}:{found[name]}" for name in names), "", listed, payload])
    scope = f"{day}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signature = hmac.digest(_key(keys.secret_key, day, region, service), text.encode(), "sha256").hex()
    credential = f"{keys.access_key}/{scope}"
    found["authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={listed}, Signature={signature}"
    return found


@functools.lru_cache(maxsize=4)
def _key(secret: str, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
