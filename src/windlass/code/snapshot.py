"""Keeps the code of a run with its record: `code.tar.gz` in the folder of the run.

The archive contains the files that are sent to a cluster, or would be. Runs with the same code share one file on disk.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from windlass.code.kept import FILE, NOT_KEPT, why_not_kept
from windlass.code.pack import CODE, archive_of, code_of, leads_out
from windlass.code.selection import select, with_credentials
from windlass.code.unpack import extract
from windlass.errors import UsageError

LIMIT_BYTES: Final = 16_000_000
"""Maximum bytes of the files before compression; packing more takes seconds, and larger folders usually contain
data."""
MAX_ENTRIES: Final = 20_000
"""Maximum number of entries of the folder, without ignored entries and `.git`; listing more takes seconds."""


def keep_snapshot(
    folder: Path,
    run_dir: Path,
    environ: Mapping[str, str],
    others: Iterable[Path] = (),
    own: Collection[str] = (),
    *,
    max_entries: int = MAX_ENTRIES,
) -> None:
    """Keeps the code of `folder` in the folder of a run. A failure is written to `NOT_KEPT` and does not fail the run.

    `others` are the folders of earlier runs; a run with the same code shares its file. `own` are folders of Windlass,
    which are not code.
    """
    _keep(lambda: _packed(folder, environ, own, max_entries), run_dir, others)


def keep_sent(archive: bytes, num_bytes: int, run_dir: Path, others: Iterable[Path] = ()) -> None:
    """Keeps the code of an archive that was sent with a run, like `keep_snapshot`. `num_bytes` is the size of the
    code before compression.
    """

    def packed() -> bytes:
        _check_size(num_bytes)
        return code_of(archive)

    _keep(packed, run_dir, others)


def _keep(packed: Callable[[], bytes], run_dir: Path, others: Iterable[Path]) -> None:
    try:
        _write(packed(), run_dir / FILE, [one / FILE for one in others])
    except (UsageError, OSError) as error:
        hint = f" ({error.hint})" if isinstance(error, UsageError) and error.hint else ""
        why = f"{error.message if isinstance(error, UsageError) else error}{hint}\n"
        with contextlib.suppress(OSError):  # a path in the reason may contain bytes that are not UTF-8
            (run_dir / NOT_KEPT).write_text(why, encoding="utf-8", errors="backslashreplace")


def _packed(folder: Path, environ: Mapping[str, str], own: Collection[str], max_entries: int = MAX_ENTRIES) -> bytes:
    """Returns the archive of a folder, without files that contain credentials and links that lead out. Raises
    UsageError.
    """
    files = select(folder, environ, own, max_entries=max_entries).files
    files = [file for file in files if not (file.is_link and leads_out(file.path, folder))]
    _check_size(sum(file.num_bytes for file in files))
    secret = set(with_credentials(files))
    return archive_of((f"{CODE}/{file.name}", file.path) for file in files if file.name not in secret)[0]


def _check_size(num_bytes: int) -> None:
    if num_bytes > LIMIT_BYTES:
        raise UsageError(
            f"the code is {num_bytes / 1e6:.1f} MB; at most {LIMIT_BYTES / 1e6:.0f} MB are kept with a run",
            "list files that are not code in .windlassignore",
        )


def _write(data: bytes, path: Path, others: Iterable[Path]) -> None:
    for other in others:
        with contextlib.suppress(OSError):
            if other.stat().st_size == len(data) and other.read_bytes() == data:
                path.unlink(missing_ok=True)
                os.link(other, path)
                return
    new = path.with_name(f"{FILE}.new")
    new.touch(mode=0o600)
    new.write_bytes(data)
    new.replace(path)


def differing(
    folder: Path, run_dir: Path, environ: Mapping[str, str], own: Collection[str] = (), *, with_new: bool = True
) -> list[str] | None:
    """Returns the sorted names of files of `folder` that are changed, removed or, `with_new`, new since the run began.

    Returns None if the run has no snapshot, or if the folder cannot be packed now.
    """
    try:
        before, now = _contents((run_dir / FILE).read_bytes()), _contents(_packed(folder, environ, own))
    except (UsageError, OSError, EOFError, zlib.error, tarfile.TarError):
        return None
    names = before.keys() | now.keys() if with_new else before.keys()
    return sorted(name for name in names if before.get(name) != now.get(name))


def _contents(archive: bytes) -> dict[str, bytes | str]:
    """Returns the bytes of each file of an archive, and the target of each link, by name."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as tar:
        return {
            entry.name.removeprefix(f"{CODE}/"): entry.linkname if entry.issym() else _read(tar, entry) for entry in tar
        }


def _read(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(entry)
    return b"" if file is None else file.read()


def extract_snapshot(run_dir: Path, path: str, destination: Path) -> tuple[int, int]:
    """Extracts a file or folder of a run's code to `destination`; returns the number of files and their bytes.

    `path` is relative to the code folder, `.` for the whole folder. Raises UsageError if the run has no such code or if
    `destination` exists, OSError, and tarfile.TarError for a damaged archive. After an error, nothing is left behind.
    """
    archive = run_dir / FILE
    if not archive.exists():
        why = why_not_kept(run_dir)
        raise UsageError(
            f"the code of {run_dir.name} was not kept here{f': {why}' if why else ''}", "it is in its own folder"
        )
    if os.path.lexists(destination):
        raise UsageError(f"{destination} already exists", "choose a path that does not exist")
    name = os.path.normpath(f"{CODE}/{path}")
    new = destination.with_name(f".{destination.name}.new-{os.getpid()}")
    new.mkdir(mode=0o755)
    try:
        with tarfile.open(archive, mode="r:gz") as tar:
            entries = [entry for entry in tar if entry.name == name or entry.name.startswith(f"{name}/")]
            if not entries and name != CODE:
                raise UsageError(f"the code of {run_dir.name} has no {path}", f"windlass cp {run_dir.name}:code FOLDER")
            extract(tar, entries, new)
        (new / CODE).mkdir(exist_ok=True)  # the archive of an empty folder has no entry `code`
        (new / name).rename(destination)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return len(entries), sum(entry.size for entry in entries)
