"""Harness for runs against an emulated control plane and a real S3 server. Not AWS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.engines.harness import Harness, Way
from tests.engines.sagemaker.planning import BUCKET, EMULATED
from tests.fakeaws.control_plane import ControlPlane
from tests.servers.s3 import s3_server


@contextmanager
def emulated(folder: Path, way: Way = EMULATED) -> Iterator[tuple[Harness, ControlPlane]]:
    """Yields a harness with records below a folder, and the control plane of its training jobs."""
    with s3_server(folder / "s3") as server, pytest.MonkeyPatch.context() as patch:
        server.client().create_bucket(Bucket=BUCKET)
        plane = ControlPlane(folder, {**os.environ, **server.environ()})
        plane.start()
        for name, value in {**server.environ(), **plane.environ}.items():
            patch.setenv(name, value)
        harness = Harness(way, folder / "home")
        try:
            yield harness, plane
        finally:
            harness.close()
            plane.stop()
