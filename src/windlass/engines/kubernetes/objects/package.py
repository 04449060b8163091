"""Packs parts of Windlass into zip files that Python can run: the supervisor, and the program that transfers files."""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""Modification time of all packed files, so that the same version gives the same bytes."""
FILE: Final = "windlass.zip"
IMPORTER: Final = Path(__file__).with_name("zip_importer.py")
"""Path of the importer that a packed program installs first. It halves the time spent on compiling modules."""

RUNNER: Final = """
import json, os, sys, tempfile
handle, path = tempfile.mkstemp(".zip")
with open(handle, "wb") as file:
    file.write(sys.stdin.buffer.read(int(sys.argv[1])))
os.environ.update(json.loads(sys.argv[2]))
os.execv(sys.executable, [sys.executable, "-I", "-S", path, *sys.argv[3:]])
"""
"""Program that runs a packed program from standard input. Arguments: its length, variables as JSON, then the packed
program's own arguments."""
SUPERVISOR_PARTS: Final = (
    "__init__.py",
    "compat.py",
    "errors.py",
    "code",
    "engines/__init__.py",
    "engines/checks.py",
    "engines/travel.py",
    "engines/kubernetes",
    "plan",
    "runs",
    "spec/__init__.py",
    "spec/labels.py",
    "spec/pod_patch.py",
    "storage/__init__.py",
    "storage/files.py",
    "stores",
    "supervise",
    "worker",
)
"""Files and folders of Windlass that a supervisor in the cluster needs. They import only the standard library."""
AGAIN: Final = 75
"""Exit code of a supervisor that ends before its run; the Job then starts another supervisor."""
SUPERVISOR_MAIN: Final = f'''"""Starts the supervisor, where the interpreter is new enough for it."""
import signal
import sys

# The first process of a container ignores a signal without a handler: a deleted pod would stay for its whole grace
# period if it was deleted during the imports.
signal.signal(signal.SIGTERM, lambda *_: sys.exit({AGAIN}))

if sys.version_info < (3, 11):
    sys.exit("the supervisor needs Python 3.11, and the image has %d.%d: set supervisor_image: in the target, or "
             "supervisor: machine" % sys.version_info[:2])

import zip_importer

zip_importer.install()
try:
    from windlass.engines.kubernetes.supervisor.main import main
except ImportError as error:  # Debian's python3-minimal, builds without the headers of SQLite or OpenSSL
    sys.exit("the supervisor needs the whole standard library, and the image lacks a part of it (%s): set "
             "supervisor_image: in the target, or supervisor: machine" % error)

sys.exit(main())
'''
TRANSFER_PARTS: Final = (
    "__init__.py",
    "compat.py",
    "errors.py",
    "runs/__init__.py",
    "runs/clock.py",
    "storage",
    "stores",
    "worker/__init__.py",
    "worker/process.py",
)
"""Files and folders of Windlass that a transfer pod needs. They import only the standard library."""
REFUSED: Final = 64
"""Exit code of a transfer that would fail in every pod; the Job does not retry it."""
TRANSFER_MAIN: Final = f'''"""Fetches the code of a job by Python 3.9 or newer; else moves files, by 3.11 or newer."""
import json
import os
import signal
import sys

# The first process of a container ignores a signal without a handler.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def refuse(words):
    message = {{"error": "the pod that moves files needs " + words, "hint": "set supervisor_image: in the target"}}
    with open(os.environ["WINDLASS_TRANSFER_RESULT"], "w") as file:
        json.dump(message, file)
    sys.exit({REFUSED})


if len(sys.argv) == 3:
    from windlass.stores.opening import open_store

    try:
        store, key = open_store(sys.argv[1])
        store.fetch(key, sys.argv[2])
    except OSError as error:
        sys.exit(str(error))
    sys.exit()

if sys.version_info < (3, 11):
    refuse("Python 3.11, and its image has %d.%d" % sys.version_info[:2])

import zip_importer

zip_importer.install()
try:
    from windlass.storage.pod import main
except ImportError as error:  # Debian's python3-minimal, builds without the headers of OpenSSL
    refuse("the whole standard library, and its image lacks a part of it: %s" % error)

sys.exit(main())
'''


@functools.cache
def supervisor_archive() -> bytes:
    """Returns the zip file of a supervisor in the cluster."""
    return packed(SUPERVISOR_MAIN, SUPERVISOR_PARTS)


@functools.cache
def transfer_archive() -> bytes:
    """Returns the zip file of the program in transfer pods."""
    return packed(TRANSFER_MAIN, TRANSFER_PARTS)


def packed(main: str, parts: Sequence[str]) -> bytes:
    """Returns a zip file with these files and folders of Windlass, which runs the program `main`."""
    root = Path(__file__).parents[3]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        _add(file, "__main__.py", main.encode())
        _add(file, "zip_importer.py", IMPORTER.read_bytes())
        for path in sorted(set(_files(root, parts))):
            _add(file, f"windlass/{path.relative_to(root)}", path.read_bytes())
    return made.getvalue()


def _files(root: Path, parts: Sequence[str]) -> Iterator[Path]:
    for part in parts:
        path = root / part
        yield from path.rglob("*.py") if path.is_dir() else (path,)


def _add(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    file.writestr(info, data)
