"""Credentials of pod roles: from the credential agent of EKS or ECS, or from STS for a service account token.

Sources: https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html and
https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlencode, urlsplit
from xml.etree import ElementTree

from windlass.stores.errors import Busy, Denied
from windlass.stores.response import ask
from windlass.stores.s3.signature import Keys
from windlass.stores.store import unix_seconds

SECONDS = 5
"""Socket timeout of a request for credentials."""
MAX_ANSWER_BYTES = 64 << 10
RELATIVE_HOST = "http://169.254.170.2"
AGENTS = frozenset(("169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost"))
"""Non-loopback hosts that may receive a token without TLS."""
PASSING = frozenset(("IDPCommunicationError", "InternalFailure", "ServiceUnavailable", "Throttling"))
"""Error codes of temporary errors of STS."""
SESSION = "windlass"


@dataclass(frozen=True)
class RoleKeys:
    """Temporary credentials."""

    keys: Keys
    expires_at: float
    """Expiry time in Unix seconds."""


Role = Callable[[], RoleKeys]
"""Function that requests credentials. Raises Denied, and Busy if a later call may succeed."""


def of_environment(environ: Mapping[str, str], region: str, what: str) -> Role | None:
    """Returns the role assigned to this pod, searched in the order of the AWS SDKs; None without one. `what` is the
    address named in errors.
    """
    cafile = environ.get("AWS_CA_BUNDLE") or None
    if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return lambda: _of_web_identity(environ, region, cafile, what)
    if environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") or environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        return lambda: _of_container(environ, cafile, what)
    return None


def _of_container(environ: Mapping[str, str], cafile: str | None, what: str) -> RoleKeys:
    relative = environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    address = urlsplit(f"{RELATIVE_HOST}{relative}" if relative else environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"])
    if address.scheme != "https" and not (address.scheme == "http" and is_agent(address.hostname or "")):
        raise Denied(
            f"AWS_CONTAINER_CREDENTIALS_FULL_URI: {address.hostname} is no agent for credentials, "
            f"and is not asked by {address.scheme or 'no scheme'}",
            what,
        )
    headers = {"accept": "application/json"}
    path = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    token = _token_of(path, what) if path else environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN") or ""
    if token:
        headers["authorization"] = token
    status, body = asked("GET", address, headers, b"", cafile, what)
    if status != 200:
        raise failure(f"the agent for credentials at {address.netloc} answered {status}", status, what)
    try:
        found = json.loads(body)
        keys = Keys(found["AccessKeyId"], found["SecretAccessKey"], found["Token"])
        return RoleKeys(keys, unix_seconds(found["Expiration"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Denied(f"the answer of {address.netloc} has no credentials", what) from error


def _of_web_identity(environ: Mapping[str, str], region: str, cafile: str | None, what: str) -> RoleKeys:
    role = environ.get("AWS_ROLE_ARN")
    if not role:
        raise Denied("AWS_WEB_IDENTITY_TOKEN_FILE is set, and AWS_ROLE_ARN is not: it names the role", what)
    domain = f"sts.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
    address = urlsplit(environ.get("AWS_ENDPOINT_URL_STS") or environ.get("AWS_ENDPOINT_URL") or f"https://{domain}")
    if address.scheme not in ("http", "https"):
        raise Denied("AWS_ENDPOINT_URL_STS is no URL: write https://host", what)
    form = urlencode(
        {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": role,
            "RoleSessionName": environ.get("AWS_ROLE_SESSION_NAME") or SESSION,
            "WebIdentityToken": _token_of(environ["AWS_WEB_IDENTITY_TOKEN_FILE"], what),
        }
    )
    headers = {"content-type": "application/x-www-form-urlencoded"}
    status, body = asked("POST", address, headers, form.encode(), cafile, what)
    found = _values(body)
    if status != 200:
        told = f"STS answered {status} {found.get('Code', '')} {found.get('Message', '')}".rstrip()
        passes = 503 if found.get("Code") in PASSING else status
        raise failure(f"{told}; check the trust policy of the role {role}", passes, what)
    try:
        keys = Keys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
        return RoleKeys(keys, unix_seconds(found["Expiration"]))
    except (ValueError, KeyError) as error:
        raise Denied(f"the answer of STS at {address.netloc} has no credentials", what) from error


def _values(body: bytes) -> dict[str, str]:
    """Returns the texts of an XML document by element name; empty if the document is not XML."""
    try:
        return {one.tag.rpartition("}")[2]: one.text or "" for one in ElementTree.fromstring(body).iter()}
    except ElementTree.ParseError:
        return {}


def failure(told: str, status: int, what: str) -> Busy | Denied:
    """Returns the error for a response with this status."""
    return Busy(told, what) if status >= 500 or status == 429 else Denied(told, what)


def is_agent(host: str) -> bool:
    """Whether a token may be sent to the host without TLS."""
    try:
        return host in AGENTS or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token_of(path: str, what: str) -> str:
    """Reads a token file, which the kubelet replaces periodically."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeError) as error:
        raise Denied(f"the token of the pod cannot be read from {path}: {error}", what) from error


def asked(
    method: str, address: SplitResult, headers: Mapping[str, str], body: bytes, cafile: str | None, what: str
) -> tuple[int, bytes]:
    """Sends a request and returns status and body. Uses no proxy and follows no redirect, because the request contains
    a token. Raises Busy, Denied.
    """
    if any(not value.isprintable() for value in headers.values()):
        raise Denied("the token of the pod has control characters", what)
    if address.scheme == "https":
        context = ssl.create_default_context(cafile=cafile)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.netloc, timeout=SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(address.netloc, timeout=SECONDS)
    target = f"{address.path or '/'}{'?' + address.query if address.query else ''}"
    try:
        with ask(connection, method, target, {"host": address.netloc, **headers}, body) as answer:
            return answer.status, answer.read(MAX_ANSWER_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise Denied(f"the certificate of {address.netloc} is not trusted; see AWS_CA_BUNDLE: {error}", what) from error
    except (OSError, http.client.HTTPException) as error:
        raise Busy(f"{address.netloc} does not answer: {error}", what) from error
    finally:
        connection.close()
