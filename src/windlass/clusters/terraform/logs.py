"""Keeps the output of the last Terraform commands, without secrets of the environment."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

KEPT: Final = 30
"""Number of logs of one cluster."""
_SECRET_NAME: Final = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|PRIVATE_KEY|CREDENTIAL|API_KEY", re.IGNORECASE)
_PATH_NAME: Final = re.compile(r"_(FILE|PATH|DIR|URI|URL|ENDPOINT)$", re.IGNORECASE)
SHORTEST: Final = 8
"""Letters of a value that is taken for a secret: a shorter one would be replaced in words that merely contain it."""
MASK: Final = b"(secret)"


def new_log(folder: Path, command: str) -> Path:
    """The path of a log for one command that starts now; the oldest logs beyond KEPT are deleted."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    path = folder / f"{stamp}-{time.monotonic_ns() % 10**9:09d}-{command}.log"
    for old in logs_in(folder)[: -(KEPT - 1)]:
        old.unlink(missing_ok=True)
    return path


def logs_in(folder: Path) -> list[Path]:
    """All logs, the oldest first."""
    return sorted(folder.glob("*.log"), key=lambda path: (path.name.split("-")[0], path.stat().st_mtime_ns))


def secrets_of(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """Values of variables with names such as AWS_SECRET_ACCESS_KEY, the longest first."""
    found = {
        os.fsencode(value)
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and not _PATH_NAME.search(name) and len(value) >= SHORTEST
    }
    return tuple(sorted(found, key=len, reverse=True))


def redact(log: Path, secrets: tuple[bytes, ...]) -> None:
    """Replace secrets in a log that is complete."""
    try:
        before = log.read_bytes()
    except FileNotFoundError:
        return
    after = before
    for secret in secrets:
        after = after.replace(secret, MASK)
    if after != before:
        log.write_bytes(after)
