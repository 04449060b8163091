"""Opens a data set in an object store or a folder as a map-style dataset; nothing is imported before it is used."""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from typing import Any

    from windlass.train.stream.dataset import Stream

__all__ = ["stream"]


def stream(
    name: str | os.PathLike[str],
    *,
    transform: Callable[[dict[str, Any]], Any] | None = None,
    format: str | None = None,
    group: bool = True,
    columns: Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> Stream[Any]:
    """A data set as a map-style dataset, whose samples are read when they are asked for.

    A sample is a dict of `__key__` and bytes by field, grouped as WebDataset does: `0001.jpg` and `0001.cls` are the
    fields `jpg` and `cls` of `0001`, as files and as members of tar shards. Of Parquet it is a row, as a dict of values
    by column.

    Args:
        name: of a data set of the job (`data:`), an address such as `s3://bucket/prefix`, or a path with a slash.
        transform: called with each sample, in the process that reads it; its result is the sample.
        format: `files`, `tar` or `parquet`. Default: by the names of the files.
        group: whether files of one stem are one sample; else each file is.
        columns: of Parquet, those that are read. Default: all.
        cache: folder in which this node keeps what it has read, for all processes and runs. Default:
            `~/.cache/windlass/stream`, or below `$XDG_CACHE_HOME`.
        cache_bytes: the most that this folder may take. Default: half of the space there. 0 keeps no samples.

    Raises:
        StreamError: the source is not there, has no samples, or cannot be read. It is a RuntimeError.
    """
    from windlass.train.stream.dataset import open_stream

    return open_stream(
        name, transform=transform, format=format, group=group, columns=columns, cache=cache, cache_bytes=cache_bytes
    )
