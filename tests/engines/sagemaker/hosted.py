"""Deployments against an emulated control plane and a real S3 server, with a clock that tests advance. Not AWS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from tests.engines.sagemaker.planning import BUCKET, FIELDS
from tests.fakeaws.account import Account
from tests.fakeaws.control_plane import ACCOUNT, REGION, ControlPlane
from tests.fakeaws.hosting import Hosting as EmulatedHosting
from tests.servers.s3 import s3_server

from windlass.engines.deployments import DeploymentRequest
from windlass.engines.sagemaker.deployments import SageMakerDeployments
from windlass.engines.sagemaker.hosting import Hosting
from windlass.runs.clock import Clock
from windlass.spec.targets import SageMakerTarget

SCHEDULE_ROLE = f"arn:aws:iam::{ACCOUNT}:role/ends"
ONCE = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=5)
HOUR = 3600.0


def fields(**others: Any) -> dict[str, Any]:
    """Returns the fields of a target for deployments."""
    return {**FIELDS, "storage": f"s3://{BUCKET}/windlass", "schedule_role": SCHEDULE_ROLE, **others}


class EmulatedClock(Clock):
    """The clock of the emulated account; a wait advances it."""

    def __init__(self, hosting: EmulatedHosting) -> None:
        super().__init__()
        self._hosting = hosting

    def time(self) -> float:
        return self._hosting.time()

    def wait(self, seconds: float) -> None:
        self._hosting.advance(seconds)


class World:
    """An account with deployments, and a model on this machine."""

    def __init__(self, folder: Path, plane: ControlPlane, s3: Any, s3_port: int) -> None:
        self.folder, self.plane, self.s3, self.s3_port = folder, plane, s3, s3_port
        self.client = self.new_client()
        self.said: list[str] = []
        self.model = folder / "model"
        (self.model / "code").mkdir(parents=True)
        (self.model / "weights.bin").write_bytes(b"weights")
        (self.model / "code" / "inference.py").write_text("import torch\n\ndef model_fn(folder):\n    return 1\n")

    @property
    def hosting(self) -> EmulatedHosting:
        return self.plane.hosting

    def new_client(self) -> Hosting:
        """Returns a client for the endpoints that the environment names."""
        return Hosting(REGION, ACCOUNT, config=ONCE)

    def reset(self) -> None:
        """Empties the account and the store."""
        self.plane.account, self.plane.errors, self.said = Account(ACCOUNT), {}, []
        self.plane.on_call = lambda operation: None
        self.plane.hosting = EmulatedHosting(self.plane.account, REGION)
        self.plane.hosting.delete_object = lambda bucket, key: self.s3.delete_object(Bucket=bucket, Key=key)
        for key in self.keys():
            self.s3.delete_object(Bucket=BUCKET, Key=key)

    def deployments(self, **others: Any) -> SageMakerDeployments:
        """Returns the deployments of a target, as a new process has them."""
        target = SageMakerTarget(**fields(**others))
        return SageMakerDeployments(target, self.folder / "home", self.client, EmulatedClock(self.hosting))

    def request(self, name: str = "digits", **fields: Any) -> DeploymentRequest:
        """Returns a request that ends in eight hours."""
        given = {
            "ends_at": self.hosting.time() + 8 * HOUR,
            "owner": "ada",
            "run_id": "digits-7f3k2",
            "instance": "ml.m5.large",
            **fields,
        }
        return DeploymentRequest(name, self.model, **given)

    def deploy(self, request: DeploymentRequest | None = None, **fields: Any) -> Any:
        """Plans and deploys a request."""
        deployments = self.deployments(**fields)
        return deployments.deploy(deployments.plan(request or self.request()), self.said.append)

    def undeploy(self, name: str = "digits") -> tuple[str, ...]:
        return self.deployments().undeploy(name, self.said.append)

    def objects(self) -> list[str]:
        """Returns the names of all objects in the account and in the store."""
        kinds = (self.hosting.endpoints, self.hosting.configs, self.hosting.models, self.hosting.schedules)
        return [*(name for kind in kinds for name in kind), *self.keys()]

    def keys(self) -> list[str]:
        return [one["Key"] for one in self.s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


@contextmanager
def hosted(folder: Path) -> Iterator[World]:
    """Yields an account without deployments, and points boto3 of this process to it."""
    with s3_server(folder / "s3") as server, pytest.MonkeyPatch.context() as patch:
        client = server.client()
        client.create_bucket(Bucket=BUCKET)
        plane = ControlPlane(folder, {**os.environ, **server.environ()})
        plane.start()
        for name, value in {**server.environ(), **plane.environ}.items():
            patch.setenv(name, value)
        world = World(folder, plane, client, server.port)
        world.reset()
        try:
            yield world
        finally:
            plane.hosting.close()
            plane.stop()
