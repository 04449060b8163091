"""Opens a bucket of Google or a container of Azure. Python 3.9."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

CLIENT = {"connect_timeout": "10s", "read_timeout": "20s", "timeout": "300s", "allow_http": True}
ONCE: dict[str, Any] = {"max_retries": 1, "retry_timeout": timedelta(seconds=30)}
"""Of one request inside obstore, for a caller who repeats it."""
PATIENT: dict[str, Any] = {"max_retries": 8, "retry_timeout": timedelta(seconds=60)}
"""Of what is not gone on with where it broke off: a list, a file that is written as a stream."""


def open_store(kind: str, bucket: str, retries: dict[str, Any]) -> Any:
    """The store of obstore, with the credentials of the environment. Raises ImportError, and what obstore raises."""
    from obstore.store import AzureStore, GCSStore

    options: Any = {"client_options": CLIENT, "retry_config": retries}
    return (GCSStore if kind == "gs" else AzureStore)(bucket, **options)


def version_of(about: Any) -> str:
    """The ETag of an object, as in requests: lists of Azure leave out its quotes."""
    tag = about["e_tag"]
    if not tag:
        return str(about.get("last_modified", ""))
    return str(tag) if tag.endswith('"') else f'"{tag}"'
