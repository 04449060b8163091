"""Converts a file or folder to a stream and back: `tarpipe.py send PATH` and `tarpipe.py receive PATH NAME`.

The receiver does not trust the stream: it rejects names that lead out of the destination folder, never writes through a
link, and creates only links that stay inside. Also runs with `python -c` in pods of any image, so it imports only the
standard library of Python 3.9.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tarfile
from typing import IO, Any, Callable, Optional  # noqa: UP035 - runs on Python 3.9 too

ROOT = "root"
"""Name of the copied file or folder in the stream. The real name is not sent."""
BUFFER_BYTES = 1 << 20
SPECIAL = "neither a file nor a folder"
"""Reason for rejecting a socket, pipe or device."""
UNREAD = "WINDLASS.unread"
"""Tar header with the reason why an entry could not be read."""


class Received:
    """Result of receiving a stream."""

    def __init__(self, path: str) -> None:
        self.path = path
        """Path of the received file or folder."""
        self.files = 0
        self.bytes = 0
        self.left_out: list[str] = []
        """Entries that were not created, each as name and reason."""

    def leave_out(self, name: str, why: str) -> None:
        """Records an entry that is not created, by its path below the copied folder."""
        shown = name[len(ROOT) + 1 :] if name.startswith(f"{ROOT}/") else name
        self.left_out.append(f"{shown}: {why}")


def send(path: str, out: IO[bytes]) -> None:
    """Writes the file or folder at `path` to `out`. For unreadable entries, writes the reason. Raises OSError."""
    path = os.path.realpath(path)  # for a link, its target is copied
    if is_special(path):
        raise OSError(errno.EINVAL, SPECIAL, path)
    with tarfile.open(fileobj=out, mode="w|", bufsize=BUFFER_BYTES, format=tarfile.PAX_FORMAT) as tar:
        _add(tar, path, ROOT)
        if os.path.isdir(path):

            def leave_out(error: OSError) -> None:
                if error.filename == path:
                    raise error
                if not isinstance(error, FileNotFoundError):  # a missing folder was removed during sending
                    info = _without_content(os.path.join(ROOT, os.path.relpath(error.filename, path)))
                    info.pax_headers = {UNREAD: str(error.strerror)}
                    tar.addfile(info)

            for folder, folders, files in os.walk(path, onerror=leave_out):
                folders.sort()
                base = os.path.join(ROOT, os.path.relpath(folder, path))
                for name in sorted([*folders, *files]):
                    _add(tar, os.path.join(folder, name), os.path.normpath(os.path.join(base, name)))


def _without_content(name: str) -> tarfile.TarInfo:
    """Returns an entry without content, which the receiver skips and reports by name."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.FIFOTYPE
    return info


def _add(tar: tarfile.TarFile, path: str, name: str) -> None:
    """Adds one entry, or none if the file was removed. Raises OSError if the copied file or folder is unreadable."""
    setattr(tar, "inodes", {})  # noqa: B010 - what has two names is sent twice: receivers make no hard links
    file = None
    try:
        info = tar.gettarinfo(path, name)
        if info is not None and info.isreg():
            file = open(path, "rb")  # noqa: SIM115 - closed below
            # read again from the open file, because the file may have been replaced
            info = tar.gettarinfo(arcname=name, fileobj=file)
    except OSError as error:
        if name == ROOT:
            raise
        if isinstance(error, FileNotFoundError):
            return
        info = _without_content(name)
        info.pax_headers = {UNREAD: str(error.strerror)}
    if info is None or not (info.isreg() or info.isdir() or info.issym() or UNREAD in info.pax_headers):
        info = _without_content(name)  # sockets and devices are sent without content
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if file is None:
        tar.addfile(info)
    else:
        with file:
            tar.addfile(info, file)


def receive(
    stream: Any,
    destination: str,
    name: str,
    progress: Optional[Callable[[int], None]] = None,  # noqa: UP045 - see above
) -> Received:
    """Writes the received file or folder to `destination/name` if `destination` is a folder, else to `destination`.

    A `destination` that ends with a slash is a folder, which is created. `progress` is called with the bytes received
    so far. Raises OSError, and tarfile.TarError if the stream is truncated.
    """
    parent = os.path.dirname(os.path.abspath(destination))
    if not os.path.isdir(parent):
        raise FileNotFoundError(2, "there is no such folder", parent)
    is_folder = destination.endswith("/") or os.path.isdir(destination)
    into = os.path.join(destination, name) if is_folder else destination
    found, links = Received(into), []
    if is_special(into):
        raise OSError(errno.EINVAL, SPECIAL, into)
    with tarfile.open(fileobj=stream, mode="r|", bufsize=BUFFER_BYTES) as tar:
        for member in tar:
            parts = _parts(member.name)
            if parts is None:
                found.left_out.append(f"{member.name}: leads out")
            elif not _is_plain(into, parts[:-1]):
                found.leave_out(member.name, "goes through a link")
            elif member.isdir():
                _make_folder(os.path.join(into, *parts), found, member.name)
            elif member.isreg() and is_special(os.path.join(into, *parts)):
                found.leave_out(member.name, "something else is there")
            elif member.isreg():
                _write(os.path.join(into, *parts), member, tar, found)
                if progress is not None:
                    progress(found.bytes)
            elif member.issym():
                links.append((parts, member.linkname, member.name))
            else:
                found.leave_out(member.name, member.pax_headers.get(UNREAD, "neither file, folder nor link"))
        if not links and not found.files and not found.left_out and not os.path.isdir(into):
            raise tarfile.ReadError("nothing was received")
    for parts, target, shown in links:  # created last, so that nothing is written through a link
        _make_link(into, parts, target, shown, found)
    return found


def is_special(path: str) -> bool:
    """Whether a path, after following links, is a socket, pipe or device. Such files are neither read nor replaced."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


def _parts(name: str) -> Optional[list[str]]:  # noqa: UP045 - see above
    """Returns the parts of a name below the root of the stream; None if the name leads out of the root."""
    parts = name.split("/")
    if parts[0] != ROOT or any(part in ("", ".", "..") or "\0" in part for part in parts[1:]):
        return None
    return parts[1:]


def _is_plain(into: str, parts: list[str]) -> bool:
    """Whether no existing folder on a path is a link."""
    return not any(os.path.islink(os.path.join(into, *parts[: at + 1])) for at in range(len(parts)))


def _make_folder(path: str, found: Received, shown: str) -> None:
    if os.path.islink(path) and path != found.path:
        found.leave_out(shown, "a link is there")
    else:
        os.makedirs(path, exist_ok=True)


def _write(path: str, member: tarfile.TarInfo, tar: tarfile.TarFile, found: Received) -> None:
    """Writes one file atomically."""
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", exist_ok=True)
    partial = os.path.join(folder, f".{name[:50]}.{os.getpid()}.part")
    source = tar.extractfile(member)
    assert source is not None
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(partial, flags, 0o600), "wb") as file:
            shutil.copyfileobj(source, file, BUFFER_BYTES)
            size = file.tell()
        if size != member.size:
            raise tarfile.ReadError(f"{member.name} broke off after {size} of {member.size} bytes")
        os.chmod(partial, (member.mode & 0o777) | 0o600)
        os.utime(partial, (member.mtime, member.mtime))
        os.replace(partial, path)
    except BaseException:
        if os.path.lexists(partial):
            os.unlink(partial)
        raise
    found.files += 1
    found.bytes += size


def _make_link(into: str, parts: list[str], target: str, shown: str, found: Received) -> None:
    path = os.path.join(into, *parts)
    if not parts or leads_out(len(parts) - 1, target):
        found.leave_out(shown, f"a link that leads out, to {target}")
    elif not _is_plain(into, parts[:-1]) or (os.path.isdir(path) and not os.path.islink(path)):
        found.leave_out(shown, "something else is there")
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.lexists(path):
            os.unlink(path)
        os.symlink(target, path)


def leads_out(depth: int, target: str) -> bool:
    """Whether a symlink `depth` folders below the root may point outside the root. In its target, `..` is allowed only
    at the start, because a name before `..` may itself be a symlink.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return not target or target.startswith("/") or ups > depth or ".." in parts[ups:]


def main(argv: list[str]) -> int:
    """Runs `send` to stdout, or `receive` from stdin, which prints the result as JSON."""
    try:
        if argv[0] == "send":
            send(argv[1], sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            # Unbuffered, because a read for a full buffer would block on connections that do not signal their end.
            with open(0, "rb", buffering=0, closefd=False) as stream:
                found = receive(stream, argv[1], argv[2])
            print(json.dumps(vars(found)), flush=True)
    except FileNotFoundError as error:
        return _complain(f"{error.filename} does not exist", argv[0])
    except (OSError, tarfile.TarError) as error:
        where, why = getattr(error, "filename", None) or argv[1], getattr(error, "strerror", None) or error
        return _complain(f"{where}: {why}", argv[0])
    return 0


def _complain(text: str, what: str) -> int:
    print(text, file=sys.stderr, flush=True)
    # The sender stops when it reads this message. It may not notice that a process ends with unread input, so the rest
    # is read.
    while what == "receive" and os.read(0, 1 << 16):
        pass
    return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
