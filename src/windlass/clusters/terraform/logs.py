"""Keeps the output of the last Terraform commands, without secrets from the environment."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

KEPT: Final = 30
"""Number of logs kept per cluster."""
_SECRET_NAME: Final = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|PRIVATE_KEY|CREDENTIAL|API_KEY", re.IGNORECASE)
_PATH_NAME: Final = re.compile(r"_(FILE|PATH|DIR|URI|URL|ENDPOINT)$", re.IGNORECASE)
SHORTEST: Final = 8
"""Minimum characters of a value that is redacted: a shorter one could match inside ordinary words."""
MASK: Final = b"(secret)"


def new_log(folder: Path, command: str) -> Path:
    """Returns the path of a new log for one command, and deletes the oldest logs beyond KEPT."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    path = folder / f"{stamp}-{time.monotonic_ns() % 10**9:09d}-{command}.log"
    for old in logs_in(folder)[: -(KEPT - 1)]:
        old.unlink(missing_ok=True)
    return path


def logs_in(folder: Path) -> list[Path]:
    """Returns all logs, oldest first."""
    return sorted(folder.glob("*.log"), key=lambda path: (path.name.split("-")[0], path.stat().st_mtime_ns))


def secrets_of(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """Returns the values of variables such as AWS_SECRET_ACCESS_KEY, longest first."""
    found = {
        os.fsencode(value)
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and not _PATH_NAME.search(name) and len(value) >= SHORTEST
    }
    return tuple(sorted(found, key=len, reverse=True))


def redact(log: Path, secrets: tuple[bytes, ...]) -> None:
    """Replaces secrets in a complete log."""
    try:
        before = log.read_bytes()
    except FileNotFoundError:
        return
    after = before
    for secret in secrets:
        after = after.replace(secret, MASK)
    if after != before:
        log.write_bytes(after)
