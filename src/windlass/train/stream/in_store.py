"""Objects below a prefix of a store as the source of a stream."""

from __future__ import annotations

from typing import Any

from windlass.stores.errors import Busy as StoreBusy
from windlass.stores.errors import Changed, Denied, Missing, StoreError
from windlass.stores.s3 import objects
from windlass.stores.store import Store
from windlass.train.stream.errors import Busy, StreamError
from windlass.train.stream.source import OWN, Object, Source, changed, removed


class StoreSource(Source):
    """Objects below a prefix; safe for threads, forks and pickling. Credentials and endpoint are of the environment."""

    def __init__(self, store: Store, prefix: str) -> None:
        """The `prefix` has no slashes at its ends."""
        self._store = store
        self._prefix = f"{prefix}/" if prefix else ""
        self.address = f"{store.address}/{self._prefix}"

    def __reduce__(self) -> Any:
        return StoreSource, (self._store, self._prefix.rstrip("/"))

    def objects(self) -> list[Object]:
        """See `Source`."""
        try:
            found = [one for one in self._store.listed(self._prefix) if isinstance(one, objects.Object)]
        except StoreError as error:
            raise StreamError(str(error)) from error
        names = (Object(one.key[len(self._prefix) :], one.size, one.etag) for one in found if _is_file(one))
        return sorted((one for one in names if not one.name.startswith(f"{OWN}/")), key=lambda one: one.name)

    def read(self, one: Object, start: int, length: int) -> bytes:
        """See `Source`."""
        try:
            return self._store.read_once(objects.Object(self._prefix + one.name, one.size, one.version), start, length)
        except StoreBusy as error:
            raise Busy(str(error)) from error
        except Missing as error:
            raise removed(f"{self.address}{one.name}", one) from error
        except Changed as error:
            raise changed(f"{self.address}{one.name}", one) from error
        except StoreError as error:
            raise StreamError(str(error)) from error

    def read_own(self, name: str) -> bytes | None:
        """See `Source`."""
        try:
            return self._store.get(f"{self._prefix}{OWN}/{name}")
        except (Missing, Denied):
            # Without the right to list a bucket, S3 denies a key that is not there. The listing reports what is wrong.
            return None
        except StoreError as error:
            raise StreamError(str(error)) from error


def _is_file(one: objects.Object) -> bool:
    """An empty object whose key ends with a slash stands for a folder, in the consoles of stores."""
    return not (one.key.endswith("/") and not one.size)
