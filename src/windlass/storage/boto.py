"""What obstore has not of S3, by boto3: credentials and region, exact listings, checksums, and uploads in parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from xml.etree import ElementTree

from windlass.errors import StorageError
from windlass.storage.address import Address
from windlass.storage.listing import Page, parse
from windlass.storage.multipart import NoUpload, Stored, StoredPart, Uploads
from windlass.storage.place import Fatal, Throttled, system_errors

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
URL_SECONDS: Final = 900
"""For which the URL of a page is valid."""


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


def page_of(client: Any, bucket: str, prefix: str, token: str) -> Page:
    """One page of a listing: boto3 takes several times as long to read it. Raises StorageError."""
    from botocore.awsrequest import AWSRequest
    from botocore.exceptions import ConnectionError, HTTPClientError

    asked = {
        "Bucket": bucket,
        "Prefix": prefix,
        "EncodingType": "url",
        **({"ContinuationToken": token} if token else {}),
    }
    where = f"s3://{bucket}/{prefix}"
    with said(where):
        url = client.generate_presigned_url("list_objects_v2", Params=asked, ExpiresIn=URL_SECONDS)
        try:
            # The client's own session has the certificates and proxies that are configured.
            answer = client._endpoint.http_session.send(AWSRequest("GET", url).prepare())
            body = answer.content
        except (ConnectionError, HTTPClientError) as error:  # its words have the URL, which is signed
            words = f"{where}: {client.meta.endpoint_url} does not answer ({type(error).__name__})"
            raise Throttled(words, "check the network, and the endpoint") from None
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise Throttled(f"{where}: the listing was cut off, or is none") from error
    if answer.status_code != 200:
        raise _refusal(where, answer.status_code, root)
    try:
        return parse(root, prefix)
    except (KeyError, ValueError) as error:
        raise StorageError(f"{where}: the listing is not that of S3: {error}") from error


def _refusal(where: str, status: int, root: ElementTree.Element) -> StorageError:
    code = root.findtext("Code") or str(status)
    words = f"{where}: {root.findtext('Message') or code}"
    if status >= 500 or code in PASSING:
        return Throttled(words)
    if status in (401, 403):
        return Fatal(words, "check the credentials, and what they may do")
    return StorageError(words)


class BotoUploads(Uploads):
    """Uploads of one object by a client of boto3."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        super().__init__(bucket, key)
        self._client, self._of = client, {"Bucket": bucket, "Key": key}

    def create(self) -> str:
        """See `Uploads`."""
        with self._said():
            return str(self._client.create_multipart_upload(**self._of, ChecksumAlgorithm="SHA256")["UploadId"])

    def send(self, upload: str, number: int, body: bytes, checksum: str) -> str:
        """See `Uploads`."""
        with self._said():
            made = self._client.upload_part(
                **self._of, UploadId=upload, PartNumber=number, Body=body, ChecksumSHA256=checksum
            )
        return str(made["ETag"])

    def parts(self, upload: str) -> list[StoredPart]:
        """See `Uploads`."""
        with self._said():
            pages = self._client.get_paginator("list_parts").paginate(**self._of, UploadId=upload)
            return [
                StoredPart(one["PartNumber"], one["ETag"], one["Size"], one.get("ChecksumSHA256", ""))
                for page in pages
                for one in page.get("Parts", ())
            ]

    def complete(self, upload: str, parts: list[StoredPart]) -> str:
        """See `Uploads`."""
        of = [{"PartNumber": one.number, "ETag": one.etag, "ChecksumSHA256": one.checksum} for one in parts]
        with self._said():
            made = self._client.complete_multipart_upload(**self._of, UploadId=upload, MultipartUpload={"Parts": of})
        return str(made["ETag"])

    def end(self, upload: str) -> None:
        """See `Uploads`."""
        with self._said():
            self._client.abort_multipart_upload(**self._of, UploadId=upload)

    def stored(self) -> Stored:
        """See `Uploads`."""
        with self._said():
            found = self._client.head_object(**self._of, ChecksumMode="ENABLED")
        return Stored(found["ETag"], found["ContentLength"], str(found.get("ChecksumSHA256", "")))

    @contextmanager
    def _said(self) -> Iterator[None]:
        from botocore.exceptions import ClientError

        try:
            with said(self.key):
                yield
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and cause.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                raise NoUpload(error.message) from error
            raise


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
