"""Whether this machine allows namespaces is tested once, and again if the answer may have changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.engines.sagemaker.twin.conftest import MAY_ISOLATE
from tests.engines.sagemaker.twin.jobs import ended, request

from windlass.engines.sagemaker.twin.service import ALLOWED, FOLDER, Twin

pytestmark = pytest.mark.skipif(not MAY_ISOLATE, reason="needs root")


def isolation(home: Path, name: str) -> str:
    """Returns the isolation of a job's hosts, chosen by the emulation."""
    twin = Twin(home, os.environ)
    twin.create(request(home, name, "true"))
    return str(ended(twin, name)["WindlassHosts"]["isolation"])


def test_isolation_result_is_stored_for_this_boot_and_container(home: Path) -> None:
    assert isolation(home, "first") == "namespaces"
    known = home / FOLDER / ALLOWED
    seen, inode = known.read_text(), known.stat().st_ino
    assert isolation(home, "second") == "namespaces"
    assert known.stat().st_ino == inode  # the file was not written again
    known.write_text(seen.replace(str(Path("/proc/self/ns/mnt").readlink()), "mnt:[1]"))
    assert isolation(home, "third") == "namespaces"
    assert known.read_text() == seen
