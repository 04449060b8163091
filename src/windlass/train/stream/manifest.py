"""Reads the manifest that `windlass data copy` writes next to a data set: its objects, with their digests."""

from __future__ import annotations

import hashlib
import json
import re
from json.encoder import encode_basestring_ascii

from windlass.train.stream.errors import StreamError
from windlass.train.stream.source import Object, Source

NAME = "manifest.jsonl"
_DIGEST = re.compile(r"sha256(-\d{1,5})?:[0-9a-f]{64}")


def listed(source: Source) -> list[Object]:
    """Returns all objects of a source by name, from its manifest or else its listing. Raises StreamError."""
    data = source.read_own(NAME)
    if data is None:
        return source.objects()
    try:
        return _objects(data)
    except (ValueError, KeyError, TypeError) as error:
        raise StreamError(f"{source.address}: its manifest is damaged ({error}): copy the data again") from error


def _objects(data: bytes) -> list[Object]:
    """Parses a manifest and verifies its digest. Raises ValueError, KeyError, TypeError."""
    header, *lines = [json.loads(line) for line in data.splitlines()]
    if header.get("windlass") != "manifest" or header.get("version") != 1:
        raise ValueError(f"its header is {str(header)[:80]}")
    found = sorted((_object(line) for line in lines), key=lambda one: one.name)
    whole = hashlib.sha256()
    for one in found:
        whole.update(f'[{encode_basestring_ascii(one.name)}, {one.size}, "{one.digest}"]\n'.encode())
    if header.get("digest") != f"set:{whole.hexdigest()}" or header.get("files") != len(found):
        raise ValueError("its digest does not match its lines")
    return found


def _object(line: dict[str, object]) -> Object:
    name, size, digest = line["name"], line["size"], line["digest"]
    if not isinstance(name, str) or not isinstance(size, int) or size < 0 or not isinstance(digest, str):
        raise ValueError("a line does not describe a file")
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{name} has the digest {digest[:80]!r}")
    return Object(name, size, str(line.get("version", "")), digest)
