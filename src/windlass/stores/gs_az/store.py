"""A Google bucket or Azure container as a store, by obstore, in processes that do not fork. Python 3.9."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from windlass.compat import override
from windlass.stores.errors import Busy, Changed, NoAnswer
from windlass.stores.gs_az.failure import store_error
from windlass.stores.part_sizes import STREAM_PART_BYTES
from windlass.stores.store import Body, Object, Page, Store

CLIENT = {"connect_timeout": "10s", "read_timeout": "20s", "timeout": "300s", "allow_http": True}
ONCE: dict[str, Any] = {"max_retries": 1, "retry_timeout": timedelta(seconds=30)}
"""Retry settings of obstore for requests that the caller repeats."""
PATIENT: dict[str, Any] = {"max_retries": 8, "retry_timeout": timedelta(seconds=60)}
"""Retry settings of obstore for objects written as a stream, which cannot be resumed."""
BATCH = 1000
PIECE_BYTES = 1 << 20
"""Minimum size in bytes of the pieces that `stream` yields."""
AT_ONCE = 4
"""Parts of one object that are uploaded concurrently."""


class ObstoreStore(Store):
    """Store accessed by obstore. Credentials and endpoint come from the environment."""

    def __init__(self, kind: str, bucket: str) -> None:
        """Raises StoreError, and ImportError without obstore."""
        self.address = f"{kind}://{bucket}"
        self._kind, self._bucket = kind, bucket
        self._has_answered = False
        """Whether the store has answered at least once, so that its address must be right."""
        with self._errors():
            self._once, self._patient = _opened(kind, bucket, ONCE), _opened(kind, bucket, PATIENT)
        self._has_answered = False

    @override
    def pages(self, prefix: str, delimiter: str = "", after: str = "") -> Iterator[Page]:
        import obstore

        batches: Iterator[Any] | None = None
        below, last, is_over = prefix.rstrip("/") or None, after, False

        def page() -> Page | None:
            nonlocal batches, last, is_over
            if is_over:
                return None
            with self._errors():
                if delimiter:
                    found: Any = obstore.list_with_delimiter(self._once, below)
                    is_over = True
                    return [*_objects(found["objects"], prefix), *(f"{one}/" for one in found["common_prefixes"])]
                try:
                    # The asynchronous stream is not used: its threads abort a process that exits after an error.
                    batches = batches or iter(obstore.list(self._once, below, offset=last or None, chunk_size=BATCH))
                    batch: Any = next(batches, None)
                except BaseException:
                    batches = None  # the next call resumes after the last key
                    raise
            is_over = not batch
            last = batch[-1]["path"] if batch else last
            return None if is_over else list(_objects(batch, prefix))

        return iter(page, None)

    @override
    def head_once(self, key: str) -> Object:
        import obstore

        with self._errors(key):
            return _object(obstore.head(self._once, key))

    @override
    def read_once(self, one: Object, start: int, length: int) -> bytes:
        with self._errors(one.key):
            answer = self._get(one, start, length)
            data = bytes(answer.bytes())
        if len(data) != length:
            raise Changed(f"{length} bytes were asked for, {len(data)} came", f"{self.address}/{one.key}")
        return data

    @override
    def stream(self, one: Object, start: int, length: int) -> Iterator[Body]:
        with self._errors(one.key):
            answer = self._get(one, start, length)
            pieces = answer.stream(min_chunk_size=PIECE_BYTES) if length > PIECE_BYTES else (answer.bytes(),)
            for piece in pieces:
                yield memoryview(piece)

    def _get(self, one: Object, start: int, length: int) -> Any:
        import obstore

        options: Any = {"if_match": one.version} if one.version.startswith('"') else {}
        if length < one.size:
            options["range"] = (start, start + length)
        answer = obstore.get(self._once, one.key, options=options)
        if options.get("if_match", "") not in ("", _object(answer.meta).version):
            raise Changed("it was written meanwhile", f"{self.address}/{one.key}")
        return answer

    @override
    def get_once(self, key: str) -> bytes:
        import obstore

        with self._errors(key):
            return bytes(obstore.get(self._once, key).bytes())

    @override
    def put_once(self, key: str, body: Body, is_new: bool = False) -> str:
        import obstore

        with self._errors(key):
            mode: Any = "create" if is_new else "overwrite"
            return _version(obstore.put(self._once, key, body, mode=mode, use_multipart=False))

    @override
    def write_parts(self, key: str, parts: Iterable[Body], part_bytes: int = STREAM_PART_BYTES) -> str:
        """Writes an object of any size; `parts` may have any sizes."""
        writer = self.writer(key, part_bytes)
        for piece in parts:
            writer.write(piece)
        return writer.close()

    def writer(self, key: str, part_bytes: int = STREAM_PART_BYTES) -> Writer:
        """Creates a writer for an object, which does not exist until the writer is closed."""
        return Writer(self, key, part_bytes)

    @override
    def remove_once(self, key: str) -> None:
        import obstore

        with self._errors(key):
            try:
                obstore.delete(self._once, key)
            except FileNotFoundError:
                return

    @contextmanager
    def _errors(self, key: str = "") -> Iterator[None]:
        from obstore import exceptions

        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            found = store_error(error, self._kind, self._bucket, key)
            if isinstance(found, NoAnswer) and self._has_answered:
                found = Busy(str(found.strerror), str(found.filename), found.hint)
            self._has_answered |= not isinstance(found, NoAnswer)
            raise found from error
        self._has_answered = True


class Writer:
    """Writer of one object, piece by piece, in parts that obstore uploads. Its methods raise StoreError."""

    def __init__(self, store: ObstoreStore, key: str, part_bytes: int) -> None:
        import obstore

        self._store, self._key = store, key
        with store._errors(key):
            self._writer = obstore.open_writer(store._patient, key, buffer_size=part_bytes, max_concurrency=AT_ONCE)

    def write(self, piece: Body) -> None:
        """Appends bytes to the object."""
        with self._store._errors(self._key):
            self._writer.write(piece)

    def close(self) -> str:
        """Completes the object and returns its version."""
        with self._store._errors(self._key):
            self._writer.close()
        return self._store.head_once(self._key).version


def _opened(kind: str, bucket: str, retries: dict[str, Any]) -> Any:
    from obstore.store import AzureStore, GCSStore

    options: Any = {"client_options": CLIENT, "retry_config": retries}
    return (GCSStore if kind == "gs" else AzureStore)(bucket, **options)


def _objects(found: Any, prefix: str) -> Iterator[Object]:
    return (_object(one) for one in found if one["path"].startswith(prefix))


def _object(about: Any) -> Object:
    changed = about["last_modified"]
    return Object(about["path"], about["size"], _version(about), f"{changed:%Y-%m-%dT%H:%M:%S}" if changed else "")


def _version(about: Any) -> str:
    """Returns the ETag in quotes, as requests need it; Azure listings omit the quotes."""
    tag = about["e_tag"]
    if not tag:
        return str(about.get("last_modified", ""))
    return str(tag) if tag.endswith('"') else f'"{tag}"'
