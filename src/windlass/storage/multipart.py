"""Uploads to S3 in parts that another process can go on with, and what else only S3's own API tells, by boto3."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from windlass.errors import StorageError
from windlass.storage.address import Address
from windlass.storage.digest import Parts, combined, from_s3, to_s3
from windlass.storage.files import write_whole
from windlass.storage.place import Buffer, PartialFile, Throttled, joined, system_errors

PASSING: Final = {
    "SlowDown",
    "Throttling",
    "RequestTimeout",
    "InternalError",
    "ServiceUnavailable",
    "503",
    "500",
    "502",
}
"""Codes of errors that pass."""
CONNECTIONS: Final = 32


def open_s3(address: Address, options: Any) -> tuple[Any, Any]:
    """A client of boto3 and a store of obstore for a bucket, by boto3's chain of credentials, endpoint and region.

    Raises StorageError, ImportError.
    """
    import boto3
    from botocore.config import Config
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Store

    retries = {"mode": "standard", "max_attempts": 3}
    when = "when_required"
    config = Config(
        retries=retries, max_pool_connections=CONNECTIONS, connect_timeout=10, read_timeout=20,
        request_checksum_calculation=when, response_checksum_validation=when, signature_version="s3v4",
        s3={"payload_signing_enabled": False},  # the SHA-256 of each part is signed, and S3 verifies it
    )  # fmt: skip
    session = boto3.Session()
    with said(str(address)):
        if session.get_credentials() is None:
            raise StorageError(f"{address}: no credentials for S3 were found", "aws configure, or AWS_PROFILE")
        client = session.client("s3", config=config, region_name=session.region_name or "us-east-1")
        region = _region(client, address)
        if region != client.meta.region_name:
            client = session.client("s3", config=config, region_name=region)
    endpoint = client.meta.endpoint_url
    is_aws = ".amazonaws.com" in endpoint
    where = {} if is_aws else {"endpoint": endpoint, "virtual_hosted_style_request": False}
    store = S3Store(
        address.bucket, region=region, checksum_algorithm="SHA256",
        credential_provider=Boto3CredentialProvider(session), **where, **options,
    )  # fmt: skip
    return client, store


def _region(client: Any, address: Address) -> str:
    """The region of a bucket. Raises StorageError where there is none of that name."""
    from botocore.exceptions import ClientError

    try:
        answer = client.head_bucket(Bucket=address.bucket)["ResponseMetadata"]
    except ClientError as error:
        answer = error.response["ResponseMetadata"]
        if answer["HTTPStatusCode"] == 404:
            raise StorageError(f"{address}: there is no bucket {address.bucket}") from error
        if answer["HTTPStatusCode"] >= 500:
            raise
    return str(answer["HTTPHeaders"].get("x-amz-bucket-region") or client.meta.region_name)


def checksum_of(client: Any, bucket: str, key: str) -> str:
    """The `ChecksumSHA256` that S3 keeps of an object; empty where it keeps none. Raises StorageError."""
    with said(key):
        return str(client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED").get("ChecksumSHA256", ""))


class S3Upload(PartialFile):
    """One multipart upload. S3 verifies the SHA-256 of each part when it comes, and lists what it has."""

    def __init__(self, client: Any, bucket: str, key: str, parts: Parts, source: str, state: Path) -> None:
        """Go on with the upload that `state` has of this source, or begin one. Raises StorageError."""
        self._client, self._of = client, {"Bucket": bucket, "Key": key}
        self._parts = parts
        self._note = state / f"{hashlib.sha256(f'{bucket}/{key}'.encode()).hexdigest()[:40]}.upload"
        self._etags: dict[int, str] = {}
        self._head = {"bucket": bucket, "key": key, "size": parts.size, "source": source}
        self._completed = ""
        """ETag of the object, where an earlier copy has completed the upload."""
        with said(key):
            self._id, self.done = self._known()
            if not self._id:
                self._id = client.create_multipart_upload(**self._of, ChecksumAlgorithm="SHA256")["UploadId"]
                state.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._write_note()

    def write(self, number: int, pieces: Iterable[Buffer]) -> bytes:
        """See `PartialFile`."""
        body = bytes(joined(pieces))
        digest = hashlib.sha256(body).digest()
        with said(self._of["Key"]):
            made = self._client.upload_part(
                **self._of, UploadId=self._id, PartNumber=number + 1, Body=body, ChecksumSHA256=to_s3(digest)
            )
        self._etags[number] = made["ETag"]
        return digest

    async def finish(self, digests: list[bytes]) -> str:
        """See `PartialFile`."""
        if self._completed:
            return self._completed
        parts = [
            {"PartNumber": number + 1, "ETag": self._etags[number], "ChecksumSHA256": to_s3(digest)}
            for number, digest in enumerate(digests)
        ]

        def complete() -> str:
            with said(self._of["Key"]):
                self._write_note(digests=[digest.hex() for digest in digests])
                try:
                    made = self._client.complete_multipart_upload(
                        **self._of, UploadId=self._id, MultipartUpload={"Parts": parts}
                    )
                except self._client.exceptions.NoSuchUpload:
                    # It was completed, and the answer was lost.
                    if etag := self._etag_of(combined(digests)):
                        return etag
                    raise
            return str(made["ETag"])

        return await asyncio.to_thread(complete)

    def forget(self) -> None:
        """See `PartialFile`."""
        self._note.unlink(missing_ok=True)

    async def discard(self) -> None:
        """See `PartialFile`."""
        with said(self._of["Key"]):
            await asyncio.to_thread(self._client.abort_multipart_upload, **self._of, UploadId=self._id)
        self._note.unlink(missing_ok=True)

    def _write_note(self, **more: object) -> None:
        write_whole(self._note, json.dumps({**self._head, "upload": self._id, **more}).encode())

    def _known(self) -> tuple[str, dict[int, bytes]]:
        """The upload that was begun of the same source, and its parts; another one of this key is ended."""
        try:
            found = json.loads(self._note.read_bytes())
            upload, digests = str(found.pop("upload", "")), [bytes.fromhex(one) for one in found.pop("digests", ())]
        except (OSError, ValueError, TypeError, AttributeError):
            return "", {}
        if found != self._head:
            with suppress(Exception):  # a rule of the bucket may end it
                self._client.abort_multipart_upload(**self._of, UploadId=upload)
        elif self._is_there(upload):
            self._id = upload
            return upload, dict(self._listed())
        elif len(digests) == len(self._parts) and (etag := self._etag_of(combined(digests))):
            self._completed = etag
            return upload, dict(enumerate(digests))
        return "", {}

    def _etag_of(self, digest: str) -> str:
        """The ETag of the object, if S3 has its digest and it is this one; else empty."""
        from botocore.exceptions import ClientError

        try:
            found = self._client.head_object(**self._of, ChecksumMode="ENABLED")
        except ClientError:
            return ""
        is_same = found["ContentLength"] == self._parts.size and from_s3(found.get("ChecksumSHA256", "")) == digest
        return str(found["ETag"]) if is_same else ""

    def _is_there(self, upload: str) -> bool:
        from botocore.exceptions import ClientError

        try:
            self._client.list_parts(**self._of, UploadId=upload, MaxParts=1)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                raise
            return False
        return True

    def _listed(self) -> Iterator[tuple[int, bytes]]:
        from base64 import b64decode

        for page in self._client.get_paginator("list_parts").paginate(**self._of, UploadId=self._id):
            for part in page.get("Parts", ()):
                number, checksum = part["PartNumber"] - 1, part.get("ChecksumSHA256", "")
                if number < len(self._parts) and part["Size"] == self._parts.span(number)[1] and checksum:
                    self._etags[number] = part["ETag"]
                    yield number, b64decode(checksum)


@contextmanager
def said(what: str) -> Iterator[None]:
    """Errors of boto3 and of the system as ours."""
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

    try:
        with system_errors(what):
            yield
    except ClientError as error:
        told = error.response.get("Error", {})
        kind = Throttled if told.get("Code") in PASSING else StorageError
        raise kind(f"{what}: {told.get('Message') or told.get('Code')}") from error
    except (ConnectionError, HTTPClientError) as error:
        raise Throttled(f"{what}: {error}") from error
    except BotoCoreError as error:
        raise StorageError(f"{what}: {error}") from error
