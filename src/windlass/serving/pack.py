"""Builds a zip file with the model server and its dependencies, for images with only Python and the model's packages.

With the file on PYTHONPATH, `python -m windlass.serving` runs on Python 3.10 and later: all modules are pure Python.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("click", "h11", "typing_extensions", "uvicorn")
"""uvicorn and its dependencies. It needs typing_extensions only on Python 3.10."""
INIT = '''"""Windlass's model server; other modules of Windlass come from an installation, if there is one."""
__path__ = __import__("pkgutil").extend_path(__path__, __name__)
'''
EPOCH = (1980, 1, 1, 0, 0, 0)
"""Modification time of all entries, so that equal files give an equal archive."""


def archive() -> bytes:
    """Returns the zip file. Equal versions give equal bytes. Raises ModuleNotFoundError if a package is missing."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as found:
        for name, content in sorted(_files()):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            found.writestr(entry, content)
    return stream.getvalue()


def _files() -> Iterator[tuple[str, bytes]]:
    yield "windlass/__init__.py", INIT.encode()
    for package in ("windlass.serving", *PACKAGES):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"the model server needs {package}", name=package)
        origin, name = Path(spec.origin), package.replace(".", "/")
        if origin.name != "__init__.py":
            yield origin.name, origin.read_bytes()
            continue
        for path in origin.parent.rglob("*.py"):
            yield f"{name}/{path.relative_to(origin.parent).as_posix()}", path.read_bytes()
