"""Calls in a process of another user, who has no rights of root's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

OTHER = 12345


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter and write, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o777)
        yield Path(made)


def as_other_user(call: Callable[[], object]) -> str:
    """What `call` raises as another user, as text; empty for nothing. Skips the test where none may be become."""
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = ""
        try:
            os.setgid(OTHER)
            os.setuid(OTHER)
            call()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with open(read) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text
