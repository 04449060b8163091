"""Groups files into samples like WebDataset: `0001.jpg` and `0001.cls` are the fields `jpg` and `cls` of `0001`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from windlass.train.stream.errors import StreamError
from windlass.train.stream.index import Member

WHOLE = "data"
"""Field name of a file without an extension."""


def key_and_field(name: str) -> tuple[str, str]:
    """Splits a name at the first dot: `a/0001.seg.png` → (`a/0001`, `seg.png`)."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    if not stem or not extension:
        return name, WHOLE
    return f"{folder}{slash}{stem}", extension.lower()


def key_and_last_extension(name: str) -> tuple[str, str]:
    """Returns the whole name as key, for samples of one file: `a/0001.seg.png` → (`a/0001.seg.png`, `png`)."""
    stem, _, extension = name.rpartition("/")[2].rpartition(".")
    return name, extension.lower() if stem and extension else WHOLE


def grouped(files: Iterable[tuple[str, int, int, int]], where: str, group: bool) -> Iterator[tuple[str, list[Member]]]:
    """Yields the samples formed by consecutive files, each given as (name, object, offset, size).

    Raises StreamError if a sample would have two fields with the same name.
    """
    last, members = None, list[Member]()
    for name, number, offset, size in files:
        key, field = key_and_field(name) if group else key_and_last_extension(name)
        if members and key != last:
            yield str(last), members
            members = []
        if any(one.field == field for one in members):
            raise StreamError(f"{where}: the sample {key} has two files {field}: rename one, or give group=False")
        last = key
        members.append(Member(number, offset, size, field))
    if members:
        yield str(last), members
