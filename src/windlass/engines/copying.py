"""Copies files and folders on this machine in the same way as files of pods."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

from windlass.errors import UsageError
from windlass.worker import tarpipe


def copy(source: Path, destination: Path | str, on_progress: Callable[[int], None], name: str) -> tarpipe.Received:
    """Copies `source` with the program that also sends files from pods, so that the same file types and attributes are
    kept.

    A `destination` that ends in a slash is a folder, which is created if missing. `name` is the name of the source;
    `on_progress` gets the bytes so far. Raises UsageError, OSError.
    """
    if not (source.is_file() or source.is_dir()):
        raise UsageError(
            f"{source} {f'is {tarpipe.SPECIAL}' if source.exists() else 'does not exist'}",
            "windlass artifacts lists what a run has made",
        )
    command = [sys.executable, "-I", "-S", tarpipe.__file__, "send", str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        assert sender.stderr is not None
        try:
            found = tarpipe.receive(sender.stdout, str(destination), name, on_progress)
            sender.stdout.read()  # padding after the archive
        except tarfile.TarError as error:
            sender.stdout.close()  # the sender ends when it can no longer write
            raise OSError(sender.stderr.read().decode(errors="replace").strip() or str(error)) from error
        if why := sender.stderr.read().decode(errors="replace").strip():
            raise OSError(why)
    return found
