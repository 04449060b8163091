"""Listing of a bucket of S3 by the exact keys of its objects, page by page.

obstore ends a listing at the first key that is no path to it, such as `a//b`, and hides the slash at the end of a key
that stands for a folder. boto3 takes several times as long to read a page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from windlass.errors import StorageError
from windlass.storage.multipart import PASSING, said
from windlass.storage.place import Entry, Fatal, Throttled
from windlass.storage.retry import repeated

URL_SECONDS: Final = 900
"""For which the URL of a page is valid."""


@dataclass(frozen=True)
class Page:
    """Some objects, and where the next ones are."""

    entries: list[Entry]
    token: str
    """Empty for the last page."""


async def pages(client: Any, bucket: str, prefix: str) -> AsyncIterator[list[Entry]]:
    """The objects whose keys begin with `prefix`, named by what follows it. Raises StorageError."""
    token = ""
    while True:
        ask = partial(_page, client, {"Bucket": bucket, "Prefix": prefix}, token)
        page = await repeated(partial(asyncio.to_thread, ask))
        yield page.entries
        if not (token := page.token):
            return


def _page(client: Any, of: dict[str, str], token: str) -> Page:
    """Ask for one page. Raises StorageError."""
    from botocore.awsrequest import AWSRequest
    from botocore.exceptions import ConnectionError, HTTPClientError

    asked = {**of, "EncodingType": "url", **({"ContinuationToken": token} if token else {})}
    where = f"s3://{of['Bucket']}/{of['Prefix']}"
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
        return parse(root, of["Prefix"])
    except (KeyError, ValueError) as error:
        raise StorageError(f"{where}: the listing is not that of S3: {error}") from error


def parse(root: ElementTree.Element, prefix: str) -> Page:
    """Read a `ListBucketResult`. Raises KeyError and ValueError where it is none."""
    space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
    is_encoded = root.findtext(f"{space}EncodingType") == "url"
    entries = list(_entries(root, space, prefix, is_encoded))
    if root.findtext(f"{space}IsTruncated") != "true":
        return Page(entries, "")
    token = root.findtext(f"{space}NextContinuationToken")
    if not token:
        raise ValueError("it goes on, and does not say where")
    return Page(entries, token)


def _entries(root: ElementTree.Element, space: str, prefix: str, is_encoded: bool) -> Iterator[Entry]:
    for one in root.iterfind(f"{space}Contents"):
        found = {child.tag: child.text or "" for child in one}
        key, size = found[f"{space}Key"], int(found[f"{space}Size"])
        if is_encoded:
            key = unquote_plus(key)
        # An empty object whose key ends with a slash stands for a folder, in the consoles of stores.
        if key.startswith(prefix) and not (key.endswith("/") and not size):
            yield Entry(key[len(prefix) :], size, found.get(f"{space}ETag") or found[f"{space}LastModified"])


def _refusal(where: str, status: int, root: ElementTree.Element) -> StorageError:
    code = root.findtext("Code") or str(status)
    words = f"{where}: {root.findtext('Message') or code}"
    if status >= 500 or code in PASSING:
        return Throttled(words)
    if status in (401, 403):
        return Fatal(words, "check the credentials, and what they may do")
    return StorageError(words)
