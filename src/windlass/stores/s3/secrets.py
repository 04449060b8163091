"""Reads secrets of AWS Secrets Manager as environment variables of a job, with the credentials for S3.

Source: https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_GetSecretValue.html
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from urllib.parse import urlsplit

from windlass.stores.errors import Busy, Denied, Misconfigured, Missing, StoreError
from windlass.stores.retry import repeated
from windlass.stores.s3.credentials import Credentials
from windlass.stores.s3.roles import asked
from windlass.stores.s3.signature import signed

SERVICE = "secretsmanager"
NO_OBJECT = 'it is not of the form {"NAME": "value", …}: each member becomes a variable'


def secret(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a secret. Raises Missing, Denied, Busy, StoreError; error texts contain no secret
    values.
    """
    what = f"secret {name}"
    credentials = Credentials(environ, what)
    region = credentials.region
    domain = f"{SERVICE}.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
    endpoint = environ.get("AWS_ENDPOINT_URL_SECRETS_MANAGER") or environ.get("AWS_ENDPOINT_URL") or f"https://{domain}"
    address = urlsplit(endpoint)
    body = json.dumps({"SecretId": name}).encode()
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"{SERVICE}.GetSecretValue"}
    payload = hashlib.sha256(body).hexdigest()
    headers = signed(credentials.keys(), region, address.netloc, "POST", "/", "", headers, payload, service=SERVICE)
    status, answer = asked("POST", address, headers, body, environ.get("AWS_CA_BUNDLE") or None, what)
    found = _object(answer)
    if status != 200:
        raise _refused(str(found.get("__type", "")).rpartition("#")[2], str(found.get("message", "")), status, what)
    values = _object(str(found.get("SecretString", "")).encode())
    if not values or not all(isinstance(value, str) for value in values.values()):
        raise Misconfigured(NO_OBJECT, what)
    return {str(key): str(value) for key, value in values.items()}


def _refused(code: str, message: str, status: int, what: str) -> StoreError:
    if code == "ResourceNotFoundException":
        return Missing("there is none of that name in this account and region", what)
    if code == "AccessDeniedException" or status in (401, 403):
        return Denied("the role may not read it: grant secretsmanager:GetSecretValue (and kms:Decrypt)", what)
    answered = f"Secrets Manager answered {status} {code} {message}".rstrip()
    if status >= 500 or status == 429 or "Throttling" in code:
        return Busy(answered, what)
    return StoreError(answered, what)


def _object(data: bytes) -> dict[str, object]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def main() -> None:
    """Prints the variables of the secrets named by the arguments as JSON; exits with 1 if one cannot be read."""
    found: dict[str, str] = {}
    try:
        for name in sys.argv[1:]:
            found.update(repeated(partial(secret, name, os.environ)))
    except OSError as error:
        sys.exit(str(error))
    print(json.dumps(found))
