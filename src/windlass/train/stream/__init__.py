"""Opens a data set in an object store or a folder as a map-style dataset. Modules are imported on first use."""

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
    """Opens a data set as a map-style dataset whose samples are read on access.

    A sample is a dict of `__key__` and bytes by field, grouped as in WebDataset: `0001.jpg` and `0001.cls` are the
    fields `jpg` and `cls` of sample `0001`, whether they are files or members of tar shards. A sample of a Parquet file
    is a row, as a dict of values by column.

    Args:
        name: name of a data set of the job (`data:`), an address such as `s3://bucket/prefix`, or a path with a slash.
        transform: called with each sample, in the process that reads it; its result replaces the sample.
        format: `files`, `tar` or `parquet`. Default: derived from the file names.
        group: whether files with the same stem form one sample; otherwise each file is a sample.
        columns: columns to read from Parquet files. Default: all.
        cache: folder in which this node caches the data it has read, shared by all processes and runs. Default:
            `~/.cache/windlass/stream`, or below `$XDG_CACHE_HOME`.
        cache_bytes: maximum size of this folder. Default: half of the available space. With 0, no samples are cached.

    Raises:
        StreamError: the source does not exist, has no samples, or cannot be read. It is a RuntimeError.
    """
    from windlass.train.stream.dataset import open_stream

    return open_stream(
        name, transform=transform, format=format, group=group, columns=columns, cache=cache, cache_bytes=cache_bytes
    )
