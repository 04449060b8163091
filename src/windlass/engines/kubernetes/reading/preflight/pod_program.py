"""Program of a probe pod: reports the pod's AWS identity, its access to a bucket, and whether a folder is writable.

The program is packed in a zip file with `windlass.stores.s3`, and needs only Python 3.9 and its standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from windlass.stores.errors import Busy, Denied, Missing, MissingBucket, StoreError
from windlass.stores.s3 import roles
from windlass.stores.s3.bucket import Bucket
from windlass.stores.s3.credentials import Credentials
from windlass.stores.s3.signature import signed

TRIES = 3
PAUSE_SECONDS = 1.0
STS = "Action=GetCallerIdentity&Version=2011-06-15"
DATA = b"windlass doctor"
GIVES_ROLE = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)
Json = dict[str, Any]


def answer(asked: Mapping[str, Any], environ: Mapping[str, str]) -> Json:
    """Returns the results of the requested tests. Keys of a request: `role` (true), `bucket` with `prefix`,
    `folder`.
    """
    found: Json = {"python": ".".join(map(str, sys.version_info[:3]))}
    if asked.get("role"):
        found["role"] = _failing(lambda: role(environ))
    if asked.get("bucket"):
        bucket = Bucket(asked["bucket"], environ)
        found["ladder"] = ladder(bucket, f"{asked['prefix']}{secrets.token_hex(6)}")
    if asked.get("folder"):
        found["folder"] = folder(asked["folder"])
    return found


# -- AWS identity -----------------------------------------------------------------------------------------------------


def role(environ: Mapping[str, str]) -> Json:
    """Returns the ARN that STS reports (GetCallerIdentity), and the source of the credentials. Raises StoreError."""
    by = next((name for name in GIVES_ROLE if environ.get(name)), "")
    if not by and not environ.get("AWS_ACCESS_KEY_ID"):
        return {
            "kind": "none",
            "error": "the pod has no role and no keys: AWS_CONTAINER_CREDENTIALS_FULL_URI and "
            "AWS_WEB_IDENTITY_TOKEN_FILE are not set",
        }
    credentials = Credentials(environ, "STS")
    region = credentials.region
    domain = f"sts.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
    url = environ.get("AWS_ENDPOINT_URL_STS") or environ.get("AWS_ENDPOINT_URL") or f"https://{domain}"
    address = urlsplit(url)
    body = STS.encode()
    headers = signed(
        credentials.keys(),
        region,
        address.netloc,
        "POST",
        address.path or "/",
        "",
        {"content-type": "application/x-www-form-urlencoded"},
        hashlib.sha256(body).hexdigest(),
        service="sts",
    )
    status, text = roles.asked("POST", address, headers, body, environ.get("AWS_CA_BUNDLE") or None, "STS")
    values = {one.tag.rpartition("}")[2]: one.text or "" for one in ElementTree.fromstring(text).iter()}
    if status != 200:
        raise Denied(f"STS answered {status} {values.get('Code', '')} {values.get('Message', '')}", "STS")
    return {"arn": values.get("Arn", ""), "by": by or "AWS_ACCESS_KEY_ID"}


# -- access to a bucket -----------------------------------------------------------------------------------------------


def ladder(bucket: Bucket, key: str) -> list[Json]:
    """Tests list, write, read and delete with an object of this key; returns a result for each, with the error of a
    failed one.

    All operations that are possible are tried, so that one result lists all missing rights.
    """
    prefix = key.rpartition("/")[0] + "/"
    query = {"list-type": "2", "prefix": prefix, "max-keys": "1"}
    rungs = [_rung("list", lambda: bucket.send("GET", "", query))]
    if rungs[0].get("kind") in ("unreachable", "no-bucket", "keys"):
        return rungs
    rungs.append(_rung("write", lambda: bucket.send("PUT", key, body=DATA)))
    if "error" not in rungs[-1]:
        rungs.append(_rung("read", lambda: _read(bucket, key)))
        rungs.append(_rung("delete", lambda: bucket.send("DELETE", key)))
    return rungs


def _read(bucket: Bucket, key: str) -> None:
    if bucket.send("GET", key).body != DATA:
        raise StoreError("the data read differs from the data written", key)


def _rung(name: str, act: Callable[[], object]) -> Json:
    begun = time.monotonic()

    def done() -> Json:
        act()
        return {}

    found = _failing(done)
    return {"rung": name, "seconds": round(time.monotonic() - begun, 3), **found}


def _failing(act: Callable[[], Json]) -> Json:
    """Returns the result of `act`, or its error with a kind; retries while the store is busy."""
    for number in range(TRIES):
        try:
            return act()
        except Busy as error:
            if number == TRIES - 1:
                return {"kind": "unreachable", "error": str(error)}
            time.sleep(PAUSE_SECONDS)
        except StoreError as error:
            return {"kind": _kind(error), "error": str(error)}
        except (ElementTree.ParseError, ValueError) as error:
            return {"kind": "other", "error": f"the answer is not that of AWS: {error}"}
    raise AssertionError("unreachable")


def _kind(error: StoreError) -> str:
    if isinstance(error, MissingBucket):
        return "no-bucket"
    if isinstance(error, Missing):
        return "missing"
    if not isinstance(error, Denied):
        return "other"
    said = str(error)
    wrong = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "InvalidClientTokenId")
    return "denied" if "the store answered 403" in said and not any(word in said for word in wrong) else "keys"


# -- access to a folder -----------------------------------------------------------------------------------------------


def folder(path: str) -> Json:
    """Tests whether a file can be written, read and removed in a folder; returns the time, or the error with the
    folder's owner.
    """
    info, name = Path(path).stat(), Path(path, f".windlass-doctor-{secrets.token_hex(6)}")
    found: Json = {"owner": f"{info.st_uid}:{info.st_gid}", "mode": oct(info.st_mode & 0o7777), "user": os.getuid()}
    step = "write"
    begun = time.monotonic()
    try:
        with name.open("wb") as file:
            file.write(DATA)
            file.flush()
            os.fsync(file.fileno())
        step = "read"
        if name.read_bytes() != DATA:
            raise OSError(5, "the data read differs from the data written")
        step = "delete"
        name.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            name.unlink()
        return {**found, "step": step, "errno": error.errno, "error": error.strerror or str(error)}
    room = os.statvfs(path)
    return {**found, "seconds": round(time.monotonic() - begun, 3), "free_bytes": room.f_bavail * room.f_frsize}


if __name__ == "__main__":
    print(json.dumps(answer(json.loads(sys.argv[1]), os.environ)))
